"""The papers' published cells through our aggregators: every derived cell comes out, but for the known misprints."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from judgments import of_outcome, run_of
from samples import build_conversation

from critic.benchmarks import alignmmbench, convbench, multiverse, name_row
from critic.page.leaderboards import leaderboards
from critic.records import ConversationTurn, Judgment
from critic.stats import estimate
from critic.stats.aggregate import Aggregate, Cell, combine
from critic.stats.leaderboard import MEAN, LeaderboardRow, aggregate_of


def published(shared: Path, name: str) -> Any:
    return json.loads((shared / "fixtures" / f"{name}_published.json").read_text("utf-8"))


def cell(value: float, n: int) -> Aggregate:
    return Aggregate(value=value, n=n, failed=0, asked=n, low=value, high=value)


def mismatches(rows: list[dict[str, Any]], tolerance: dict[str, float], n: int) -> dict[tuple[str, str], float]:
    """The derived cells that are not as printed, with what follows from the printed judged cells."""
    wrong = {}
    for row in rows:
        cells = {
            name: combine([(by, cell(row[part], n)) for part, by in weights.items()])
            for name, weights in convbench.DERIVED.items()
        }
        assert set(cells) | set(convbench.CELLS) | {"model"} == set(row)
        for name, computed in cells.items():
            if abs(computed.value - row[name]) > tolerance["R" if name.startswith("R") else "delta"]:
                wrong[row["model"], name] = round(computed.value, 2)
    return wrong


def test_convbench_tables_1_and_8(shared: Path) -> None:
    """Row 13."""
    paper = published(shared, "convbench")
    errata = {(line["row"], line["cell"]): line["recomputed"] for line in paper["known_errata"]}
    derived = {place: value for place, value in errata.items() if place[1] in convbench.DERIVED}
    assert len(derived) == 3
    for table, listed in (("pairwise_win_rate_percent", derived), ("direct_rating", {})):
        assert len(paper[table]) == 20
        assert mismatches(paper[table], paper["tolerance"], paper["conversations"]) == listed


def test_convbench_table_1_from_verdicts(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of 20 files of 577 wins and losses a cell, as many wins as the printed rate says: each row as printed, the
    order by R1, and the means over the models; what the text says otherwise is listed as wrong in the specification."""
    monkeypatch.setattr(estimate, "RESAMPLES", 400)  # of the intervals one is read, which is far from 0
    paper = published(shared, "convbench")
    rows, count = paper["pairwise_win_rate_percent"], paper["conversations"]
    turns = [ConversationTurn(prompt="?", reference="!", task="task")] * 3
    talks = [build_conversation(str(number), *turns, benchmark="convbench") for number in range(count)]
    entries = []

    @cache  # of all models a verdict reads alike
    def outcome(key: str, cell: Cell, score: float) -> Judgment:
        return of_outcome(key, "pairwise", score, condition=cell.condition, turn=cell.turn)

    for row in rows:
        wins = {cell: round(row[name] / 100 * count) for name, cell in convbench.CELLS.items()}
        verdicts = [outcome(talk.id, cell, float(n < wins[cell])) for cell in wins for n, talk in enumerate(talks)]
        scores = {convbench.HEADINGS[key]: cell for key, cell in convbench.scores(verdicts, talks, "pairwise").items()}
        assert list(scores) == list(convbench.HEADINGS.values())
        entries.append(LeaderboardRow(key="t", caption="", system=row["model"], name=row["model"], scores=scores))
    (board,) = leaderboards(entries, baseline="GPT4V")
    assert list(board.standings)[:-1] == [row["model"] for row in sorted(rows, key=lambda row: -row["R1"])]
    wrong = set()
    for row in rows:
        for name, heading in convbench.HEADINGS.items():
            standing = board.standings[row["model"]][heading]
            assert standing.value is not None and standing.low == pytest.approx(standing.value) == standing.high
            assert standing.coverage == 1
            tolerance = {"R": paper["tolerance"]["R"], "d": paper["tolerance"]["delta"], "S": 0.0051}[name[0]]
            if abs(standing.value - row[name]) > tolerance:
                wrong.add((row["model"], name))
    # The delta of a misprinted cell follows the misprint, so it is off from the truth with it.
    listed = {(error["row"], error["cell"]) for error in paper["known_errata"]}
    assert wrong - {("BLIP2-FLAN-T5-XL", "delta_S3_tilde")} == listed
    assert len(listed) == 6
    means = {heading: standing.value for heading, standing in board.standings[MEAN].items()}
    expected = {"S1": 15.76, "S2": 15.70, "S3": 12.82, "Ŝ2−S2": 10.875, "S̃3−Ŝ3": 5.007}
    assert {name: means[name] for name in expected} == pytest.approx(expected, abs=0.02)
    less = board.standings["BLIP2-FLAN-T5-XL"]["S1"].difference
    assert less is not None and less.interval is not None and less.interval[1] < 0 and less.n == count


def test_multiverse_table_2(shared: Path) -> None:
    """Row 25."""
    paper = published(shared, "multiverse")
    assert len(paper["per_turn"]) == 18
    wrong = []
    for row in paper["per_turn"]:
        turns = {("c", number): value for number, value in enumerate(row["turns"], 1)}
        means = multiverse.turn_means(turns, {str(turn[1]): {turn: "c"} for turn in turns})
        average, slope = (aggregate_of(means[name]) for name in ("average", "slope"))
        if abs(average.value - row["average"]) > paper["tolerance"]["average"]:
            wrong.append((row["model"], "average"))
        if abs(slope.value - row["slope"]) > paper["tolerance"]["slope"]:
            wrong.append((row["model"], "slope"))
    assert wrong == [(error["row"], error["cell"]) for error in paper.get("known_errata", [])]


def test_alignmmbench_table_3(shared: Path) -> None:
    paper = published(shared, "alignmmbench")
    assert len(paper["leaderboard"]) == 17
    for row in paper["leaderboard"]:
        talks = [build_conversation(task, ConversationTurn(prompt="?", task=task)) for task in row["tasks"]]
        mean = alignmmbench.scores(row["tasks"], talks)["mean of tasks"]
        assert len(mean.parts) == mean.of == 13
        # Half a hundredth from rounding the tasks, and another from rounding their mean.
        assert aggregate_of(mean).value == pytest.approx(row["average"], abs=0.01)


def test_multiverse_table_3(shared: Path) -> None:
    """The goals' scores of 18 models, and the goals that the text names as the strongest and the weakest."""
    paper = published(shared, "multiverse")
    turn = ConversationTurn(prompt="?", reference="!", checklist=["?"])
    goals = list(next(iter(paper["per_goal"].values())))
    talks = [build_conversation(goal, turn, benchmark="multiverse", goal=goal) for goal in goals]
    entries = []
    for model, row in paper["per_goal"].items():
        verdicts = [
            of_outcome(goal, protocol, score, condition="oracle", turn=1)
            for goal in goals
            for protocol, score in (("checklist", row[goal] / 100), ("quality", 10.0))
        ]
        run = run_of(verdicts, system=model)
        entries += (name_row(row, run) for row in multiverse.BENCHMARK.entries(run, talks))
    board = next(table for table in leaderboards(entries) if table.key == "goal-score-oracle")
    for model, row in paper["per_goal"].items():
        assert {goal: board.standings[model][goal].value for goal in goals} == pytest.approx(row)
    means = {goal: board.standings[MEAN][goal].value or 0 for goal in goals}
    assert set(sorted(means, key=lambda goal: -means[goal])[:2]) == {"Analysis", "Understanding"}
