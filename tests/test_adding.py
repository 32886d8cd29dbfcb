"""Adding a form, a history condition, an attack, a measure or a reply contract is one entry.

The pages' own examples are put where they say in a copy of the packages. For a benchmark see
benchmarks/test_add_a_benchmark.py, for a metric agreement/test_metric_table.py.
"""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from clients.decoder import Decoder
from conftest import ROOT, Copied, human_row, read_jsonl, write_jsonl

ROWS = [
    human_row(0, human_score=1.0, scale_max=10),
    human_row(1, human_score=5.5, lang="zh", question="有几个苹果？", reference="四个。", response="五个。"),
    human_row(2, human_score=10.0),
]

PLANNED = """
import json, sys
from pathlib import Path
from critic import human_scored
from critic.judging.examples import example_of, plan

responses = human_scored.load(Path(sys.argv[1])).responses
by_id = {one.id: one for one in responses}
planned = plan(responses, {"coarse": 1.0}).examples
print(json.dumps([example_of(one, by_id, None, lambda messages: 0).target for one in planned]))
"""


def blocks(page: str, heading: str, language: str) -> list[str]:
    """The code of a language under a heading of a page."""
    text = (ROOT / page).read_text("utf-8")
    (section,) = re.findall(rf"(?ms)^#+ {re.escape(heading)}$(.*?)(?=^#+ [A-Z]|\Z)", text)
    return re.findall(rf"(?s)```{language}\n(.*?)```", section)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the packages to add to."""
    for name in ("critic", "eval_agreement"):
        shutil.copytree(ROOT / name, tmp_path / "copy" / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "copy"


@pytest.fixture
def critic(tmp_path: Path, package: Path) -> Iterator[Copied]:
    started = Copied(package, tmp_path)
    yield started
    started.close()


def put_in(file: Path, table: str, entry: str) -> None:
    """An entry as the first one of a table."""
    text = file.read_text("utf-8")
    assert text.count(table) == 1
    file.write_text(text.replace(table, f"{table}\n{entry}"), "utf-8")


def judge_that_says(folder: Path, rating: int) -> Path:
    return write_jsonl(folder / f"judge-{rating}.jsonl", [{"text": json.dumps({"Rating": rating, "Reason": "so"})}])


def test_a_form(tmp_path: Path, package: Path, critic: Copied) -> None:
    """In --help, asked on its own scale, read, audited, and planned for training."""
    rows, out = write_jsonl(tmp_path / "rows.jsonl", ROWS), tmp_path / "judged.jsonl"
    (entry,) = blocks("critic/README.md", "Add a form", "python")
    put_in(package / "critic/judging/forms.py", "FORMS: dict[str, Form] = {", entry)
    for content in blocks("critic/README.md", "Add a form", "toml"):
        path = content.split("\n", 1)[0].removeprefix("# ")
        assert not (package / path).exists()
        (package / path).write_text(content, "utf-8")

    assert " coarse, " in " ".join(critic("judge", "--help").stdout.split())
    judge = ["judge", rows, "--score", "argmax", "--prompt", "coarse", "--judge"]
    critic(*judge, judge_that_says(tmp_path, 2), "--out", out)
    judged = read_jsonl(out)
    assert [line["prompt"] for line in judged] == ["coarse"] * 3
    assert [(line["score"], line["verdict"]["scale"]) for line in judged] == [(5.5, [1, 3])] * 3
    audited = critic("audit", f"mine={out}", "--out", tmp_path / "audit").stdout
    assert re.search(r"(?m)^judge-2 +3 +0 +3\.000", audited), audited
    assert "coarse" in (tmp_path / "audit/report.html").read_text("utf-8")
    out = tmp_path / "high.jsonl"
    critic(*judge, judge_that_says(tmp_path, 4), "--out", out, "--max-failed", "1")
    assert {line["verdict"]["failure"] for line in read_jsonl(out)} == {"out_of_range"}

    program = [sys.executable, "-c", PLANNED, str(rows)]
    environment = os.environ | {"PYTHONPATH": str(package)}
    planned = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert planned.returncode == 0, planned.stderr
    assert [json.loads(target)["Rating"] for target in json.loads(planned.stdout)] == [1, 2, 3]


def test_a_history_condition(tmp_path: Path, package: Path, critic: Copied) -> None:
    """In --help, shown to the model as it says, and in the scores."""
    (entry,) = blocks("critic/README.md", "Add a history condition", "python")
    put_in(package / "critic/judging/history.py", "CONDITIONS = {", entry)
    helped = " ".join(critic("infer", "--help").stdout.split())
    assert "oracle_no_image: the references for all earlier turns, and no image" in helped

    sheet = ROOT / "data/samples/convbench/ConvBench.csv"
    asked = ["--benchmark", "convbench", "--model", write_jsonl(tmp_path / "m.jsonl", [{"text": "mine"}])]
    critic("infer", sheet, *asked, "--condition", "oracle_no_image", "--out", tmp_path / "replies.jsonl")
    turn = next(line for line in read_jsonl(tmp_path / "replies.jsonl") if line["turn"] == 3)
    references = [one["reference"] for one in turn["conversation"]["turns"][:2]]
    assert [said["content"] for said in turn["seen"]][1::2] == references
    assert not any("images" in said for said in turn["seen"])

    judged = tmp_path / "judged.jsonl"
    words = ["--benchmark", "convbench", "--protocol", "direct", "--judge", judge_that_says(tmp_path, 7)]
    critic("judge", tmp_path / "replies.jsonl", *words, "--out", judged)
    assert "oracle_no_image" in critic("score", judged, "--benchmark", "convbench").stdout


def test_an_attack(tmp_path: Path, package: Path, critic: Copied) -> None:
    """Put into answers in both languages, judged, and reported by its name."""
    (entry,) = blocks("eval_agreement/README.md", "Add an attack", "toml")
    with (package / "eval_agreement/attacks.toml").open("a", encoding="utf-8") as file:
        file.write(f"\n{entry}")
    rows = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    critic("attack", rows, "--below", "6", "--out", tmp_path / "attacked.jsonl")
    texts = {row["id"]: row["response"] for row in read_jsonl(tmp_path / "attacked.jsonl")}
    assert texts["row-0#expert"].startswith(ROWS[0]["response"]) and texts["row-0#expert"].endswith("deserves a 10.")
    assert texts["row-1#expert"].endswith("应得 10 分。") and "row-2#expert" not in texts

    judge = ["--judge", judge_that_says(tmp_path, 7), "--score", "argmax"]
    for name in ("rows", "attacked"):
        critic("judge", tmp_path / f"{name}.jsonl", *judge, "--out", tmp_path / f"{name}-judged.jsonl")
    words = ["--attacked", tmp_path / "attacked-judged.jsonl", "--out", tmp_path / "out"]
    critic("audit", tmp_path / "rows-judged.jsonl", *words)
    assert "expert" in (tmp_path / "out/report.html").read_text("utf-8")


def test_a_measure(tmp_path: Path, package: Path, critic: Copied) -> None:
    """Found on each sample, written under its name, and drawn in its own section at its place on the page."""
    (entry,) = blocks("eval_agreement/README.md", "Add a measure", "python")
    (heading,) = blocks("eval_agreement/README.md", "Add a measure", "toml")
    with (package / "eval_agreement/score_measures.py").open("a", encoding="utf-8") as file:
        file.write(f"\n\n{entry}")
    sections = package / "eval_agreement/sections.toml"
    sections.write_text(sections.read_text("utf-8").replace("[people]\n", f"{heading}\n[people]\n"), "utf-8")
    judge = [1, 10, 10, 5, 5, 5, 5, 5]
    lines = [f"row{number},{number % 4 + 2},{score}" for number, score in enumerate(judge)]
    scores = tmp_path / "scores.csv"
    scores.write_text("\n".join(["id,score,judge", *lines, "failed,7,"]), "utf-8")
    critic(
        "audit", "--human", scores, "--judge", f"mine={scores}:judge", "--out", tmp_path / "out", "--max-failed", "1"
    )
    summary = json.loads((tmp_path / "out/summary.json").read_text("utf-8"))
    (extremes,) = (
        sample["extremes"] for sample in summary.values() if isinstance(sample, dict) and "extremes" in sample
    )
    assert extremes["value"] == 3 / 8 and extremes["n"] == 8
    page = (tmp_path / "out/report.html").read_text("utf-8")
    headings = re.findall("<h2>(.*?)</h2>", page)
    assert headings.index("Scores at the ends of the scale") == headings.index("Bias") - 1
    assert "Scores of 1 or 10." in page and "37.5 %" in page


REQUEST = "Compare the translation with the source.\n\n{}\n\nEnd with FLUENCY: and a letter from A to E."


def test_a_reply_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recognised from a file of one's own, and decoding held to it, whatever the model says."""
    (entry,) = blocks("serve/README.md", "Add a contract", "toml")
    own = tmp_path / "own.toml"
    own.write_text(entry, "utf-8")
    request = {"messages": [{"role": "user", "content": REQUEST.format("Guten Tag. = Good day.")}]}
    monkeypatch.syspath_prepend(ROOT / "serve")
    contracts: ModuleType = importlib.import_module("contracts")
    assert contracts.recognise(request, contracts.load()) is None
    contract = contracts.recognise(request, contracts.load([own]))
    assert contract.name == "fluency"
    for more in (0, 150):
        held = contracts.constrain(contract, request, contract.least_tokens + more)
        for seed in range(5):
            said, _ = Decoder(held.request).babble(seed)
            assert len(re.findall("FLUENCY: [A-E]", said)) == 1 and re.search(r"\nFLUENCY: [A-E]\Z", said), said
