"""Files of earlier versions are still read: a line of every record as an earlier version wrote it (`tests/records/`).

To add a record, let the version that introduces it write one, and commit the line. Lines are never changed.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import ROOT, human_row, run, write_jsonl
from msgspec.structs import replace
from stages.test_judge_conversations import answer_all, replies

from critic import human_scored, jsonl
from critic.judging.forms import form_of
from critic.records import Judgment, ModelTurn
from critic.stages.rewrite import Rewrite
from eval_agreement.reading.audit_items import items_of

RECORDS = ROOT / "tests/records"
OF_BEFORE = {("extraction", False), ("samples", 2), ("temperature", 1.0)}
"""Values in committed lines for options that no longer exist."""

WRITTEN: dict[str, type[Any]] = {
    "judgments": Judgment,
    "conversation_judgments": Judgment,
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
        assert lost <= OF_BEFORE
        assert jsonl.build_decoder(WRITTEN[name])(written) == record


@pytest.mark.parametrize("kind", ["answers", "conversations"])
def test_a_file_of_an_earlier_version_is_gone_on_with(kind: str, tmp_path: Path, scripted: Any) -> None:
    """Its judgments are not asked for again, and new ones are scored and audited with them."""
    server, out = scripted(answer_all), tmp_path / "j.jsonl"
    if kind == "answers":
        file = write_jsonl(tmp_path / "rows.jsonl", [human_row(number, system="m") for number in range(4)])
    else:
        file = replies(tmp_path / "r.jsonl", "convbench")
    words = ["critic", "judge", file, "--out", out, "--base-url", server.url]
    assert run(*words).returncode == 0
    complete = [line for _, line in jsonl.read(out, Judgment)]
    count, half = len(server.requests), len(complete) // 2
    write_jsonl(out, [as_before(line) for line in complete[:half]])
    done = run(*words)
    assert done.returncode == 0 and f"{half} judged before, {half} to go" in done.stderr, done.stderr
    assert len(server.requests) - count < count
    judgments = [line for _, line in jsonl.read(out, Judgment)]
    # What a judge was shown of a conversation older lines do not say.
    complete[:half] = [replace(line, sample=replace(line.sample, shown=None)) for line in complete[:half]]
    assert judgments[:half] == complete[:half] and {*map(repr, judgments)} == {*map(repr, complete)}
    if kind == "answers":
        assert run("critic", "audit", out, "--out", tmp_path / "audit").returncode == 0
    run("critic", "score", out, "--out", tmp_path / "scores", code=0)


def as_before(line: Judgment) -> dict[str, Any]:
    """Return a judgment as versions before 2026-11-26 wrote it."""
    row: dict[str, Any] = msgspec.to_builtins(line)
    judged = line.sample
    sample, setup, verdict = row.pop("sample"), row.pop("setup"), row.pop("verdict")
    if line.protocol is None:
        how = {name: setup[name] for name in ("judge", "score_kind", "decoding") if name in setup}
        return row | how | {"response": msgspec.to_builtins(judged.response), "verdict": verdict}
    about = {"conversation": judged.id, "judge": line.judge, "protocol": line.protocol, "score": line.score}
    about |= {name: sample[name] for name in ("system", "condition", "turn", "length") if name in sample}
    kept = {name: row[name] for name in ("prompt_hash", "asked", "detail", "calls") if name in row}
    read = {"rating": verdict, "reason": verdict.get("reason"), "answer": judged.answer}
    return kept | read | {"conversation": sample["conversation"], "verdict": about, "setup": setup}


def said(value: Any, key: str = "") -> set[tuple[str, Any]]:
    """Return every number and text of a line by its innermost key."""
    if isinstance(value, dict):
        return {each for name, inner in value.items() for each in said(inner, NAMES.get(str(name), str(name)))}
    if isinstance(value, list):
        return {each for inner in value for each in said(inner, key)}
    return set() if value is None else {(key, value)}


NAMES = {"conversation": "id", "text": "answer"}
"""Keys that have other names today: of a verdict the id of its conversation, of a response its text."""


def test_what_they_say_is_what_they_said() -> None:
    """Ratings with distributions, samples and panels, a named failure; grades, pairs and checklists."""
    judgments = [judgment for _, judgment in jsonl.read(RECORDS / "judgments.jsonl", Judgment)]
    assert [judgment.verdict.failure for judgment in judgments] == [None, None, None, "no_distribution"]
    assert all(judgment.score == pytest.approx(6.75) for judgment in judgments[:3]) and judgments[3].score is None
    assert len(judgments[2].members) == 2
    assert all(form_of(judgment.prompt).shown == 1 for judgment in judgments)
    talks = [line for _, line in jsonl.read(RECORDS / "conversation_judgments.jsonl", Judgment)]
    assert {line.protocol for line in talks} == {"direct", "pairwise", "checklist", "quality", "pointwise"}
    kinds = {item.kind for line in [*judgments, *talks] for item in items_of(line)}
    assert kinds == {"score", "preference", "yes or no"}
    # Human-scored rows without the later columns are single answers.
    assert {path.stem for path in RECORDS.iterdir()} == {*WRITTEN, "human_scored"}, "no file is left out"
    rows = human_scored.load(Path(RECORDS / "human_scored.jsonl")).responses
    assert len(rows) == 3 and all(row.human and row.human.scope == "turn" for row in rows)
    assert not any(row.question.checklist or row.question.criteria for row in rows)
