"""critic score: the tables over models, on the page and as CSV."""

import re
from pathlib import Path

import pytest
from conftest import assert_golden, assert_one_line_error, read_csv, run
from scoring import ASKED, CONV, Score, grades, judged, score_of_sample, scored, write_judged

from critic.benchmarks import convbench
from critic.page import leaderboards
from critic.records import Judgment
from critic.stats.leaderboard import LeaderboardRow, score_of


def rows(path: Path) -> dict[str, dict[str, str]]:
    return {row["model"]: row for row in read_csv(path)}


def test_models_stand_side_by_side_best_first(tmp_path: Path) -> None:
    add = {"tiny": 0, "big": 4, "other": 2}
    files = write_judged(tmp_path, "convbench", CONV, lambda v: min(10, 1 + grades(v) / 2 + add[v.system]), add)
    summary, _, printed = scored(tmp_path / "out", "convbench", *files, "--baseline", "tiny")
    board = summary["leaderboards"]["direct"]
    assert list(board) == ["big", "other", "tiny", "mean of the models"]
    single = {name: board[name] for name in ("tiny", "big", "other")}
    assert all(list(cells) == list(convbench.HEADINGS.values()) for cells in single.values())
    assert board["mean of the models"]["S1"]["value"] == pytest.approx(
        sum(theirs["S1"]["value"] for theirs in single.values()) / 3
    )
    less = board["big"]["R1"]["difference"]
    assert less["mean"] == pytest.approx(single["big"]["R1"]["value"] - single["tiny"]["R1"]["value"])
    assert board["tiny"]["R1"].get("difference") is None
    table = rows(tmp_path / "out" / "leaderboard-direct.csv")
    assert list(table) == list(board)
    assert float(table["big"]["S1"]) == pytest.approx(single["big"]["S1"]["value"])
    low, value, high = (float(table["big"][column]) for column in ("S1 low95", "S1", "S1 high95"))
    assert low < value < high
    assert float(table["big"]["R1 less tiny"]) == pytest.approx(less["mean"]) and table["tiny"]["R1 less tiny"] == ""
    assert "less tiny" in printed


def test_models_have_one_order_and_their_tables_go_into_a_paper(tmp_path: Path) -> None:
    """That of the first table, by pairs; by grades it would be the other way round. Long tables open on demand."""
    names = [f"LLaVA_{number}&co" for number in range(6)]

    def score(verdict: Judgment) -> float:
        rank = names.index(verdict.system)
        return float(rank < 3) if verdict.protocol == "pairwise" else min(10.0, 2 + rank + grades(verdict) / 10)

    files = write_judged(tmp_path, "convbench", ASKED["convbench"], score, names)
    summary, page, _ = scored(tmp_path / "out", "convbench", *files)
    boards = summary["leaderboards"]
    assert all(list(boards[key])[:6] == names for key in ("pairwise", "direct", "direct-errors", "direct-S1-tasks"))
    assert boards["direct"][names[5]]["R1"]["value"] > boards["direct"][names[0]]["R1"]["value"]
    assert summary["places"]["pairwise"] == {name: [1, 3] if n < 3 else [4, 6] for n, name in enumerate(names)}
    tied = "LLaVA_0&amp;co (100.00), LLaVA_1&amp;co (100.00) and LLaVA_2&amp;co (100.00) are tied in the first place"
    assert tied in page and page.count("<summary>In numbers</summary>") == page.count('class="picture"') == 4
    hues = [
        set(re.findall(rf"--m(\d+)\)[^>]*>(?:<[^>]*>)*\n?{re.escape(name)}<", page.replace("&amp;", "&")))
        for name in names
    ]
    assert hues == [{str(n)} for n in range(6)], "a model has one colour"
    lines = (tmp_path / "out/leaderboard-pairwise.tex").read_text("utf-8").splitlines()
    assert lines[:2] == [r"\begin{tabular}{l" + "r" * 18 + "}", r"\toprule"] and lines[-1] == r"\end{tabular}"
    assert r"$\tilde{S}$3$-$$\hat{S}$3" in lines[2] and {line.count(" & ") for line in lines[4:-2]} == {18}
    assert lines[4].startswith(r"LLaVA\_0\&co & 1--3 & 100.00 {\scriptsize 100.00--100.00} & ")


def test_of_a_score_that_asked_nothing_nothing_is_missing() -> None:
    groups, nothing = {f"c{n}": f"g{n}" for n in range(6)}, score_of({}, {}, (0, 1))
    for scores, coverage in (
        ({"S": score_of(dict.fromkeys(groups, 1.0), groups, (0, 1)), "T": nothing}, "100.0%"), ({"T": nothing}, "–"),
    ):  # fmt: skip
        entry = LeaderboardRow(key="k", caption="c", system="m", name="m", scores=scores)
        (board,) = leaderboards.leaderboards([entry])
        (line,) = leaderboards.table_of(board).rows
        assert line.cells[-1].text == coverage


def test_an_infinite_alignment_is_said(tmp_path: Path) -> None:
    """That of ratings which never differ."""
    first_turn: list[tuple[str, str, int | None]] = [("pointwise", "own", 1)]
    scores: dict[str, Score] = {"low": grades, "even": lambda _: 5.0, "none": lambda _: "empty"}
    files = write_judged(tmp_path, "alignmmbench", first_turn, lambda v: scores[v.system](v), scores)
    summary, page, _ = scored(tmp_path / "out", "alignmmbench", *files, "--max-failed", "1")
    board = summary["leaderboards"]["tasks"]
    assert board["even"]["alignment"]["value"] is None and board["even"]["alignment"]["infinite"]
    written = rows(tmp_path / "out" / "leaderboard-tasks.csv")
    assert written["even"]["alignment"] == "inf" and written["none"]["alignment"] == "" and "∞" in page


def test_a_baseline_is_a_row(tmp_path: Path) -> None:
    """A model that two judges judged has two rows, and neither is the model's."""
    add = {"a": 0.0, "b": 1.0, "x": 1.0, "y": 4.0}
    files = [
        judged(tmp_path / f"{name}{by}.jsonl", "convbench", CONV, lambda v: 1 + add[v.system] + add[v.judge],
               system=name, judge=by)
        for name, by in ("ax", "ay", "bx", "by")
    ]  # fmt: skip
    summary, _, printed = scored(tmp_path / "out", "convbench", *files, "--baseline", "a by x")
    board = summary["leaderboards"]["direct"]
    assert set(board) == {"a by x", "a by y", "b by x", "b by y"}, "no mean: a model counts once"
    assert [board[f"b by {by}"]["S1"]["difference"]["mean"] for by in "xy"] == pytest.approx([1, 4])
    assert board["a by x"]["S1"].get("difference") is None and ": less a by x\n" in printed
    done = run("critic", "score", *files, "--baseline", "a", "--out", tmp_path / "no")
    assert_one_line_error(done, "--baseline a: not among a by x, a by y, b by x, b by y")
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("benchmark", list(ASKED))
def test_the_golden_page(tmp_path: Path, benchmark: str) -> None:
    """What is printed of two models is kept to the letter."""
    models, cells = ("Alpha-7B", "Beta-13B"), ASKED[benchmark]
    files = write_judged(tmp_path, benchmark, cells, score_of_sample, models)
    if benchmark == "visitbench":
        files.append(judged(tmp_path / "battles.jsonl", benchmark, cells[:1], score_of_sample, *models))
    _, _, printed = scored(tmp_path / "out", benchmark, *files, "--baseline", "Alpha-7B")
    assert_golden(f"page_{benchmark}", printed.replace(str(tmp_path), "FOLDER").removesuffix("\n"))


def test_scores_that_are_not_there_are_not_drawn(tmp_path: Path) -> None:
    files = write_judged(tmp_path, "convbench", CONV, lambda _: "truncated", "mn")
    scored(tmp_path / "out", "convbench", *files, "--max-failed", "1")
    assert not [*(tmp_path / "out").glob("*.svg")]
