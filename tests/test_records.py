"""Files written before are still read: lines of every record as an earlier version wrote them (`tests/records/`).

To add a record: have it written once by the version that brings it, and commit a line. None is ever changed.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import ROOT

from critic import human_scored, jsonl
from critic.asking.forms import form_of
from critic.records import ConversationJudgment, Judgment, ModelTurn
from critic.stages.rewrite import Rewrite
from eval_agreement.items import items_of

RECORDS = ROOT / "tests/records"
WRITTEN: dict[str, type[Any]] = {
    "judgments": Judgment,
    "conversation_judgments": ConversationJudgment,
    "model_turns": ModelTurn,
    "rewrites": Rewrite,
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_was_written_before_is_read_and_nothing_of_it_lost(name: str) -> None:
    path = RECORDS / f"{name}.jsonl"
    for (_, record), line in zip(jsonl.read(path, WRITTEN[name]), path.read_bytes().splitlines(), strict=True):
        assert msgspec.json.decode(msgspec.json.encode(record)) == msgspec.json.decode(line)


def test_every_file_of_records_is_read() -> None:
    assert {path.stem for path in RECORDS.iterdir()} == {*WRITTEN, "human_scored"}


def test_what_they_say_is_what_they_said() -> None:
    """Ratings with distributions, samples and panels, a named failure; grades, pairs and checklists."""
    found = [judgment for _, judgment in jsonl.read(RECORDS / "judgments.jsonl", Judgment)]
    assert [judgment.verdict.failure for judgment in found] == [None, None, None, "no_distribution"]
    assert all(judgment.score == pytest.approx(6.75) for judgment in found[:3]) and found[3].score is None
    assert [len(judgment.samples) for judgment in found[:3]] == [0, 2, 0] and len(found[2].members) == 2
    assert all(form_of(judgment.prompt).shown == 1 for judgment in found)
    talks = [line for _, line in jsonl.read(RECORDS / "conversation_judgments.jsonl", ConversationJudgment)]
    assert {line.verdict.protocol for line in talks} == {"direct", "pairwise", "checklist", "quality", "pointwise"}
    said: list[Judgment | ConversationJudgment] = [*found, *talks]
    kinds = {item.kind for line in said for item in items_of(line)}
    assert kinds == {"score", "preference", "yes or no"}


def test_human_scored_rows_without_the_later_columns_are_single_answers() -> None:
    rows = human_scored.load(Path(RECORDS / "human_scored.jsonl")).responses
    assert len(rows) == 3 and all(row.human and row.human.scope == "turn" for row in rows)
    assert not any(row.question.checklist or row.question.criteria for row in rows)
