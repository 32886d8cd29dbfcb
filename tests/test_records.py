"""Files written before are still read: lines of every record as an earlier version wrote them (`tests/records/`).

To add a record: have it written once by the version that brings it, and commit a line. None is ever changed.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import ROOT

from critic import human_scored, jsonl
from critic.records import Judgment, ModelTurn
from critic.stages.rewrite import Rewrite

RECORDS = ROOT / "tests/records"
WRITTEN: dict[str, type[Any]] = {
    "samples": Judgment,
    "model_turns": ModelTurn,
    "rewrites": Rewrite,
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_was_written_before_is_read_and_nothing_of_it_lost(name: str) -> None:
    path = RECORDS / f"{name}.jsonl"
    for (_, record), line in zip(jsonl.read(path, WRITTEN[name]), path.read_bytes().splitlines(), strict=True):
        written = msgspec.json.encode(record)
        lost = said(msgspec.json.decode(line)) - said(msgspec.json.decode(written))
        assert lost <= {("extraction", False)}  # an option that went
        assert msgspec.json.decode(written, type=WRITTEN[name]) == record


def said(value: Any, key: str = "") -> set[tuple[str, Any]]:
    """Every number and text of a line by the innermost key that it stands under."""
    if isinstance(value, dict):
        return {one for name, inner in value.items() for one in said(inner, str(name))}
    if isinstance(value, list):
        return {one for inner in value for one in said(inner, key)}
    return set() if value is None else {(key, value)}


def test_every_file_of_records_is_read() -> None:
    assert {path.stem for path in RECORDS.iterdir()} == {*WRITTEN, "human_scored"}


def test_human_scored_rows_without_the_later_columns_are_single_answers() -> None:
    rows = human_scored.load(Path(RECORDS / "human_scored.jsonl")).responses
    assert len(rows) == 3 and all(row.human and row.human.scope == "turn" for row in rows)
    assert not any(row.question.checklist or row.question.criteria for row in rows)
