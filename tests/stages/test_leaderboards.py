"""critic score: the tables over models, on the page and as Markdown and CSV."""

import csv
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, assert_one_line_error, run
from scoring import ASKED, CONV, grades, judged, labels, sample, scored

from critic import benchmarks
from critic.benchmarks import convbench
from critic.page import leaderboards
from critic.records import Judgment
from critic.stats.leaderboard import LeaderboardRow, score_of

MODELS = '[tiny]\nsize = "850M"\nfamily = "f"\n[big]\nsize = 7\nfamily = "f"\n[other]\nLLM = "Vicuna"\n'


def three(folder: Path) -> list[Path]:
    add = {"tiny": 0, "big": 4, "other": 2}

    def score(verdict: Judgment) -> float:
        return min(10.0, 1 + grades(verdict) / 2 + add[verdict.system])

    return [judged(folder / f"{name}.jsonl", "convbench", CONV, score, system=name) for name in add]


def rows(path: Path) -> dict[str, dict[str, str]]:
    return {row["model"]: row for row in csv.DictReader(path.read_text("utf-8").splitlines())}


def test_models_stand_side_by_side_best_first(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(MODELS)
    words = ["--baseline", "tiny", "--models", tmp_path / "models.toml"]
    summary, page, printed = scored(tmp_path / "out", "convbench", *three(tmp_path), *words)
    found = summary["leaderboards"]["direct"]
    assert list(found) == ["big", "other", "tiny", "mean of the models"]
    single = {name: found[name] for name in ("tiny", "big", "other")}
    assert all(list(one) == list(convbench.HEADINGS.values()) for one in single.values())
    assert found["mean of the models"]["S1"]["value"] == pytest.approx(
        sum(theirs["S1"]["value"] for theirs in single.values()) / 3
    )
    less = found["big"]["R1"]["difference"]
    assert less["mean"] == pytest.approx(single["big"]["R1"]["value"] - single["tiny"]["R1"]["value"])
    assert found["tiny"]["R1"].get("difference") is None
    table = rows(tmp_path / "out" / "leaderboard-direct.csv")
    assert list(table) == list(found) and table["other"]["LLM"] == "Vicuna" and table["tiny"]["size"] == "850M"
    assert float(table["big"]["S1"]) == pytest.approx(single["big"]["S1"]["value"])
    low, value, high = (float(table["big"][column]) for column in ("S1 low95", "S1", "S1 high95"))
    assert low < value < high
    assert float(table["big"]["R1 less tiny"]) == pytest.approx(less["mean"]) and table["tiny"]["R1 less tiny"] == ""
    written = (tmp_path / "out" / "leaderboard.md").read_text("utf-8")
    assert written.count("\n| big |") == 5 and "**mean of the models**" in written
    assert "Models side by side" in printed and "less tiny" in printed
    tasks = [one.turns[0].task for one in benchmarks.read("convbench", sample("convbench"))]
    drawn = labels(page, "S1 by task, direct grading, 1 to 10 (figure 6")
    assert {text for text in drawn if not text.replace(".", "").isdigit()} == {*tasks, "big", "other", "tiny"}


def test_the_tables_are_sorted_by_any_score(tmp_path: Path) -> None:
    files = three(tmp_path)
    for column in ("S3", "Ŝ2−S2"):
        summary, _, _ = scored(tmp_path / "out", "convbench", *files, "--sort", column)
        found = summary["leaderboards"]["direct"]
        values = [row[column]["value"] for name, row in found.items() if name in ("tiny", "big", "other")]
        assert values == sorted(values, reverse=True)


def test_the_best_by_a_score_may_lack_the_first(tmp_path: Path) -> None:
    """B was judged with perfect perception alone, and is best by it: a table's columns are those of any row."""
    shown: list[tuple[str, str, int | None]] = [("direct", "perfect_perception", turn) for turn in (2, 3, None)]
    own: list[tuple[str, str, int | None]] = [("direct", "own", turn) for turn in (1, 2, 3, None)]
    files = [
        judged(tmp_path / "a.jsonl", "convbench", [*own, *shown], lambda _: 3.0, system="A"),
        judged(tmp_path / "b.jsonl", "convbench", shown, lambda _: 8.0, system="B"),
    ]
    summary, page, _ = scored(tmp_path / "out", "convbench", *files, "--sort", "Ŝ2")
    found = summary["leaderboards"]["direct"]
    assert list(found)[:2] == ["B", "A"] and "R1" not in found["B"] and "Models side by side" in page
    assert rows(tmp_path / "out" / "leaderboard-direct.csv")["B"]["R1"] == ""


def test_without_the_image_stands_apart(tmp_path: Path) -> None:
    asked: list[tuple[str, str, int | None]] = [("pointwise", "own", 1), ("pointwise", "no_image", 1)]
    files = [judged(tmp_path / f"{name}.jsonl", "alignmmbench", asked, grades, system=name) for name in "mn"]
    summary, page, _ = scored(tmp_path / "out", "alignmmbench", *files, "--sort", "alignment")
    found = summary["leaderboards"]["tasks"]
    assert [name.endswith("without image") for name in found] == [False, False, True, True, False]
    assert found["m"]["alignment"]["value"] >= 0 and "alignment without singletons" in page
    means = [found[name]["mean of tasks"]["value"] for name in ("m", "n", "mean of the models")]
    assert means[2] == pytest.approx((means[0] + means[1]) / 2)
    own = summary["systems"]["m"]["own"]
    for heading, name in (("alignment", "score"), ("alignment without singletons", "without_singletons")):
        assert found["m"][heading]["value"] == pytest.approx(own["alignment"][name])


def test_of_a_score_that_asked_nothing_nothing_is_missing() -> None:
    asked, nothing = {f"c{n}": f"g{n}" for n in range(6)}, score_of({}, {}, (0, 1))
    for scores, coverage in (
        ({"S": score_of(dict.fromkeys(asked, 1.0), asked, (0, 1)), "T": nothing}, "100.0%"), ({"T": nothing}, "–"),
    ):  # fmt: skip
        entry = LeaderboardRow(key="k", caption="c", system="m", name="m", scores=scores)
        (board,) = leaderboards.leaderboards([entry])
        (line,) = leaderboards.table_of(board, {}).rows
        assert line.cells[-1].text == coverage


def test_an_infinite_alignment_is_the_best(tmp_path: Path) -> None:
    """That of ratings which never differ."""
    asked: list[tuple[str, str, int | None]] = [("pointwise", "own", 1)]
    files = [
        judged(tmp_path / f"{name}.jsonl", "alignmmbench", asked, score, system=name)
        for name, score in (("low", grades), ("even", lambda _: 5.0), ("none", lambda _: "empty"))
    ]
    words = ("--sort", "alignment", "--max-failed", "1")
    summary, page, _ = scored(tmp_path / "out", "alignmmbench", *files, *words)
    found = summary["leaderboards"]["tasks"]
    assert list(found)[:3] == ["even", "low", "none"]
    assert found["even"]["alignment"]["value"] is None and found["even"]["alignment"]["infinite"]
    written = rows(tmp_path / "out" / "leaderboard-tasks.csv")
    assert written["even"]["alignment"] == "inf" and written["none"]["alignment"] == "" and "∞" in page


def test_a_baseline_is_by_the_same_judge(tmp_path: Path) -> None:
    add = {"a": 0.0, "b": 1.0, "x": 1.0, "y": 4.0}
    files = [
        judged(tmp_path / f"{name}{by}.jsonl", "convbench", CONV, lambda one: 1 + add[one.system] + add[one.judge],
               system=name, judge=by)
        for name, by in ("ax", "ay", "bx", "by")
    ]  # fmt: skip
    summary, _, printed = scored(tmp_path / "out", "convbench", *files, "--baseline", "a")
    found = summary["leaderboards"]["direct"]
    assert set(found) == {"a by x", "a by y", "b by x", "b by y"}
    assert [found[f"b by {by}"]["S1"]["difference"]["mean"] for by in "xy"] == [pytest.approx(1)] * 2
    assert found["a by x"]["S1"].get("difference") is None and ": less a\n" in printed
    assert "by its own judge" in printed
    summary, _, _ = scored(tmp_path / "out", "convbench", *files, "--baseline", "a by x")
    assert summary["leaderboards"]["direct"]["b by y"]["S1"]["difference"]["mean"] == pytest.approx(4)
    summary, _, _ = scored(tmp_path / "out", "convbench", files[0], *files[2:], "--baseline", "a")
    assert summary["leaderboards"]["direct"]["b by y"]["S1"].get("difference") is None
    again = tmp_path / "again.jsonl"
    again.write_bytes(files[0].read_bytes())
    done = run("critic", "score", *files, again, "--baseline", "a")
    assert_one_line_error(done, "--baseline a: one judge has several of it", "name one: a by x (again), a by x (ax)")


@pytest.mark.parametrize(
    ("words", "text", "said"),
    [
        (["--baseline", "nobody"], "", ["--baseline nobody", "tiny"]),
        (["--sort", "R9"], "", ["--sort R9", "R1"]),
        (["--models", "models.toml"], "[tiny", ["models.toml", "expected"]),
        (["--models", "models.toml"], "tiny = 7", ["models.toml: tiny", "expected"]),
        (["--models", "nowhere.toml"], "", ["nowhere.toml"]),
    ],
)
def test_bad_input_ends_in_one_line(tmp_path: Path, words: list[str], text: str, said: list[str]) -> None:
    (tmp_path / "models.toml").write_text(text)
    files = three(tmp_path)
    done = run("critic", "score", *files, "--benchmark", "convbench", "--out", tmp_path / "out", *words, cwd=tmp_path)
    assert_one_line_error(done, *said)
    assert not (tmp_path / "out").exists()


def test_names_of_models_are_texts(tmp_path: Path) -> None:
    """Names of models are texts on the page, and one cell each in Markdown."""
    name = "a|b <i>\n"
    summary, page, _ = scored(
        tmp_path / "out", "convbench", judged(tmp_path / "j.jsonl", "convbench", CONV, grades, name)
    )
    assert "<i>" not in page and json.dumps(summary)
    written = (tmp_path / "out" / "leaderboard.md").read_text("utf-8")
    for table in re.findall(r"(?m)(?:^\|.*\n)+", written):
        assert len({line.count("|") - line.count("\\|") for line in table.splitlines()}) == 1
    assert not re.search(r"<i>", written.replace("\\<i\\>", ""))


def test_only_what_was_judged_is_a_column(tmp_path: Path) -> None:
    """A run that judged the conversation as a whole has its score and none of the others."""
    asked: list[tuple[str, str, int | None]] = [("direct", "own", None)]
    found: dict[str, Any]
    found, page, _ = scored(tmp_path / "out", "convbench", judged(tmp_path / "j.jsonl", "convbench", asked, grades))
    assert set(found["leaderboards"]["direct"]["m"]) == {"SO"} and "Models side by side" in page


@pytest.mark.parametrize("benchmark", list(ASKED))
def test_the_golden_page(tmp_path: Path, benchmark: str) -> None:
    """What is printed of two models is kept to the letter."""
    files = [
        judged(tmp_path / f"{name}.jsonl", benchmark, ASKED[benchmark], score_of_sample, system=name)
        for name in ("Alpha-7B", "Beta-13B")
    ]
    if benchmark == "visitbench":
        files.append(
            judged(tmp_path / "battles.jsonl", benchmark, ASKED[benchmark][:1], score_of_sample, "Alpha-7B", "Beta-13B")
        )
    _, _, printed = scored(tmp_path / "out", benchmark, *files, "--baseline", "Alpha-7B")
    text = printed.replace(str(tmp_path), "FOLDER")
    golden = ROOT / "tests" / "golden" / f"page_{benchmark}.txt"
    if not golden.exists():
        golden.write_text(text, "utf-8")
        pytest.fail(f"{golden.name} was missing and has been written; look at it and run again")
    assert text == golden.read_text("utf-8")


def score_of_sample(verdict: Judgment) -> float:
    draw = random.Random(f"{verdict.system} {verdict.sample.id} {verdict.condition} {verdict.turn} {verdict.protocol}")
    if verdict.protocol in ("pairwise", "checklist"):
        return draw.choice([0.0, 0.5, 1.0])
    return float(draw.randint(1, 10))
