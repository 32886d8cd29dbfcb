"""The papers' published cells through our aggregators: every derived cell comes out, but for the known misprints."""

import json
from pathlib import Path
from typing import Any

import pytest

from critic.benchmarks import alignmmbench, convbench, multiverse
from critic.counting.aggregate import Aggregate
from critic.records import Conversation, ConversationTurn, TurnVerdict


def published(shared: Path, name: str) -> Any:
    return json.loads((shared / "fixtures" / f"{name}_published.json").read_text("utf-8"))


def cell(value: float, n: int) -> Aggregate:
    return Aggregate(value=value, n=n, failed=0, asked=n, low=value, high=value)


def mismatches(rows: list[dict[str, Any]], tolerance: dict[str, float], n: int) -> dict[tuple[str, str], float]:
    """The derived cells that are not as printed, with what follows from the printed judged cells."""
    found = {}
    for row in rows:
        cells = convbench.derived({name: cell(row[name], n) for name in convbench.CELLS})
        assert set(cells) | set(convbench.CELLS) | {"model"} == set(row)
        for name, computed in cells.items():
            assert computed.value is not None
            if abs(computed.value - row[name]) > tolerance["R" if name.startswith("R") else "delta"]:
                found[row["model"], name] = round(computed.value, 2)
    return found


def test_convbench_table_1(shared: Path) -> None:
    paper = published(shared, "convbench")
    rows = paper["pairwise_win_rate_percent"]
    listed = {
        (one["row"], one["cell"]): one["recomputed"]
        for one in paper["known_errata"]
        if one["cell"] in convbench.DERIVED
    }
    assert len(rows) == 20 and len(listed) == 3
    assert mismatches(rows, paper["tolerance"], paper["conversations"]) == listed


def test_convbench_table_8(shared: Path) -> None:
    paper = published(shared, "convbench")
    assert len(paper["direct_rating"]) == 20
    assert mismatches(paper["direct_rating"], paper["tolerance"], paper["conversations"]) == {}


def test_convbench_table_1_from_verdicts(shared: Path) -> None:
    """From 577 wins and losses a cell, as many wins as the printed rate says: all cells, judged and derived."""
    paper = published(shared, "convbench")
    count = paper["conversations"]
    turns = [ConversationTurn(prompt="?", reference="!", task="task")] * 3
    asked = [
        Conversation(id=str(number), benchmark="convbench", lang="en", group=str(number), turns=turns)
        for number in range(count)
    ]
    wrong = set()
    for row in paper["pairwise_win_rate_percent"]:
        wins = {name: round(row[name] / 100 * count) for name in convbench.CELLS}
        verdicts = [
            TurnVerdict(
                conversation=str(number),
                system=row["model"],
                condition=where.condition,
                protocol="pairwise",
                judge="GPT-3.5",
                turn=where.turn,
                score=float(number < wins[name]),
            )
            for name, where in convbench.CELLS.items()
            for number in range(count)
        ]
        found = convbench.scores(verdicts, asked, "pairwise")
        assert {one.coverage for one in found.values()} == {1.0}
        for name, score in found.items():
            assert score.value is not None and score.low == pytest.approx(score.value) == score.high
            tolerance = {"R": paper["tolerance"]["R"], "d": paper["tolerance"]["delta"], "S": 0.0051}[name[0]]
            if abs(score.value - row[name]) > tolerance:
                wrong.add((row["model"], name))
    # The delta of a misprinted cell follows the misprint, so it is off from the truth with it.
    listed = {(one["row"], one["cell"]) for one in paper["known_errata"]}
    assert wrong - {("BLIP2-FLAN-T5-XL", "delta_S3_tilde")} == listed
    assert len(listed) == 6


def test_multiverse_table_2(shared: Path) -> None:
    paper = published(shared, "multiverse")
    assert len(paper["per_turn"]) == 18
    wrong = []
    for row in paper["per_turn"]:
        average, slope = multiverse.summary([cell(value, 647) for value in row["turns"]])
        assert average.value is not None and slope.value is not None
        if abs(average.value - row["average"]) > paper["tolerance"]["average"]:
            wrong.append((row["model"], "average"))
        if abs(slope.value - row["slope"]) > paper["tolerance"]["slope"]:
            wrong.append((row["model"], "slope"))
    assert wrong == [(one["row"], one["cell"]) for one in paper.get("known_errata", [])]


def test_alignmmbench_table_3(shared: Path) -> None:
    paper = published(shared, "alignmmbench")
    assert len(paper["leaderboard"]) == 17
    for row in paper["leaderboard"]:
        asked = [
            Conversation(
                id=task,
                benchmark="alignmmbench",
                lang="zh",
                group=task,
                turns=[ConversationTurn(prompt="?", task=task)],
            )
            for task in row["tasks"]
        ]
        found = alignmmbench.scores(row["tasks"], asked).task_mean
        assert found.whole and found.tasks == 13
        # Half a hundredth from rounding the tasks, and another from rounding their mean.
        assert found.value == pytest.approx(row["average"], abs=0.01)


def test_alignmmbench_questions_as_conversations(shared: Path) -> None:
    path = shared / "data" / "alignmmbench" / "questions.jsonl"
    questions, found = alignmmbench.read_questions(path), alignmmbench.read_conversations(path)
    assert len(found) == 4978
    for question, one in zip(questions.values(), found, strict=True):
        (turn,) = one.turns
        assert (one.id, one.group, one.lang, one.category) == (
            question.id,
            question.group,
            question.lang,
            question.category,
        )
        assert (turn.prompt, turn.reference, turn.task, turn.images) == (
            question.prompt,
            question.reference,
            question.task,
            question.images,
        )
        assert one.history == question.history
    assert sum(bool(one.history) for one in found) == sum(
        one.turns[0].task in alignmmbench.CATEGORIES["Dialogue Context"] for one in found
    )
