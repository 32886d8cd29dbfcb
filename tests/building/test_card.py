"""critic describe: counts as the papers publish them, and lexical diversity as other programs measure it."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from conftest import SAMPLES, run, sample

from critic import benchmarks, jsonl, tables
from critic.building import card
from critic.stats.diversity import mtld


@pytest.mark.parametrize(
    ("length", "expected"), [(50, 10.652475476434258), (200, 10.912016271639231), (1000, 10.848549043343757)]
)
def test_diversity_is_that_of_another_program(length: int, expected: float) -> None:
    """The result of `lexical_diversity.mtld` 0.1.1 for these words."""
    draw = random.Random(5)
    texts = {n: [f"w{int(draw.paretovariate(0.6)) % 500}" for _ in range(n)] for n in (50, 200, 1000)}
    assert mtld(texts[length]) == pytest.approx(expected, rel=1e-14)


def test_the_published_counts_of_alignmmbench_come_out(shared: Path) -> None:
    """Row 12: lengths (figure 6) and the data card (figure 2). Its 4,978 questions have 1,054 images (the abstract),
    thirteen tasks, and three categories with their images."""
    facts = card.collect_facts(benchmarks.read("alignmmbench", shared / "data/alignmmbench/questions.jsonl"))
    assert (facts.counts["questions"], facts.counts["images"], len(facts.classes["task"])) == (4978, 1054, 13)
    assert sum(count for count, _ in facts.classes["category"].values()) == 4978
    assert sum(images for _, images in facts.classes["category"].values()) in (1054, 1055, 1056)


TURN = ("The_first_turn_instruction", "The_second_turn_instruction", "The_third_turn_instruction")


def test_the_public_sheet_of_convbench_has_a_card(shared: Path, tmp_path: Path) -> None:
    """All of it: 578 rows (the paper says 577) without references."""
    rows = [
        {"image_id": line["image"], **dict(zip(TURN, line["turns"], strict=True))}
        for _, line in jsonl.read(shared / "data/convbench/conversations.jsonl", dict[str, Any])
    ]
    tables.write_csv(tmp_path / "sheet.csv", rows)
    run("critic", "describe", tmp_path / "sheet.csv", "--benchmark", "convbench", "--out", tmp_path, code=0)
    counts = json.loads((tmp_path / "card.json").read_text("utf-8"))["counts"]
    assert [*counts.values()][:3] == [578, 1734, 574] and counts["questions without reference"] == 1734


@pytest.mark.parametrize("name", SAMPLES)
def test_every_benchmark_has_a_card(name: str, tmp_path: Path) -> None:
    done = run("critic", "describe", sample(name), "--benchmark", name, "--out", tmp_path)
    assert done.returncode == 0 and "diversity of questions" in done.stdout, done.stderr
    said = json.loads((tmp_path / "card.json").read_text("utf-8"))
    page = (tmp_path / "card.html").read_text("utf-8")
    assert "By task" in page and "https:" not in page and f">{said['counts']['conversations']}<" in page
    assert 'class="forest' in page, "shares are drawn"
    levels = [*said["classes"].get("task and turn", ())]
    assert {level[:2] for level in levels} == ({"1.", "2.", "3."} if name == "convbench" else set())
    assert ("length of a caption" in page) == (name in ("convbench", "visitbench"))
