"""critic import-grades: a table of people's verdicts on a benchmark's replies -> judgments like those of critic judge.

critic import-grades grades.csv --replies replies.jsonl --out people.jsonl    # critic score people.jsonl judged.jsonl
"""

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import replace

from critic import benchmarks, human_scored, jsonl, tables
from critic.errors import UsageError, quoted
from critic.images import name_images
from critic.judging import protocols
from critic.judging.assignments import Assignment
from critic.judging.forms import PlannedVerdict
from critic.judging.transcripts import Transcripts, benchmark_of, read_transcripts
from critic.records import Conversation, HumanScore, JudgeConfig, Judgment, Scope, TurnContext, Verdict, to_ten

WHOLE = "whole"

Key = tuple[str, str, int | None, str]
"""What a verdict is on: conversation id, condition, turn (None for the whole conversation) and protocol."""

Grades = dict[str, float]
"""Rater -> verdict on one turn or conversation: a grade on 1..10, or 1, 0.5 or 0 for a comparison."""


_ANNOTATED = re.compile(r"(?P<id>.+)/(?P<condition>\w+)/\w+/(whole|\d+)(/opponent=.*)?")
"""Matches the ids in exports of `critic annotate`."""


def read_opinions(path: Path, transcripts: Transcripts, opponent: str | None, scale: tables.Scale) -> dict[Key, Grades]:
    """Read people's grades and preferences from a table.

    `transcripts`: the replies that were graded.
    `opponent`: name of the model they were compared with; None for the reference.
    `scale`: lowest and highest grade.

    Raises UsageError, naming the location, if there is no reply to a conversation or turn, for an invalid preference,
    for a grade outside the scale, or if a rater has two verdicts on one turn.
    """
    opinions: dict[Key, Grades] = {}
    opponent = opponent or "reference"
    words = {"model": 1.0, "tie": 0.5, opponent.lower(): 0.0, "a": 1.0, "b": 0.0, "both bad": 0.5}
    for location, row in tables.rows(path):
        key, condition = tables.require_text(location, row, "id"), tables.optional_text(row, "condition") or "own"
        # What critic annotate exports names conversation and condition in one id.
        if (key, condition) not in transcripts and (named := _ANNOTATED.match(key)):
            key, condition = named["id"], named["condition"]
        preference = tables.optional_text(row, "preference")
        grade = tables.optional_text(row, "grade") or tables.optional_text(row, "score")
        # A column of whole numbers with gaps is read as decimals.
        turn = (tables.optional_text(row, "turn") or "1").lower().removesuffix(".0")
        transcript = transcripts.get((key, condition))
        if transcript is None or not (turn == WHOLE or (turn.isdecimal() and int(turn) in transcript.asked)):
            raise UsageError(f"{location}: no reply to turn {turn} of {quoted(key)} ({condition})")
        if problem := transcript.problem(transcript.asked if turn == WHOLE else [int(turn)]):
            raise UsageError(f"{location}: no reply to turn {turn} of {quoted(key)} ({condition}): {problem[1]}")
        # One row is one opinion: of two, nobody knows which counts.
        if (preference is None) == (grade is None):
            raise UsageError(f"{location}: either preference or grade, got {quoted(preference)} and {quoted(grade)}")
        if preference is not None and preference.lower() not in words:
            raise UsageError(f"{location}: preference {quoted(preference)}; expected {', '.join(words)}")
        score = words[preference.lower()] if preference is not None else _grade(location, grade or "", scale)
        protocol = "pairwise" if preference is not None else _graded(transcript.conversation.benchmark)
        rater = tables.optional_text(row, "rater") or "people"
        grades = opinions.setdefault((key, condition, None if turn == WHOLE else int(turn), protocol), {})
        if rater in grades:
            raise UsageError(f"{location}: {rater} on turn {turn} of {quoted(key)} ({condition}) is there twice")
        grades[rater] = score
    return opinions


def _graded(benchmark: str) -> str:
    """Return the protocol under which people's grades are filed: the benchmark's rating protocol, or "pointwise"."""
    return next((name for name in benchmarks.load(benchmark).protocols if protocols.load(name).rates), "pointwise")


def _grade(location: str, text: str, scale: tables.Scale) -> float:
    """Parse a grade and convert it from `scale` to 1..10. Raises UsageError unless it is a number on the scale."""
    grade = tables.parse_optional_number(location, "grade", text, scale, hint=" (--scale)")
    if grade is None:
        raise UsageError(f"{location}: grade {quoted(text)}; expected a number on --scale")
    return grade if scale == (1, 10) else to_ten(grade, *scale)


def _read_judged(path: Path, opponent: str | None) -> dict[Key, Judgment]:
    """Return a judge's verdicts in the file `path` by Key, without ablations.

    Of comparisons, only those with the model `opponent` (None: with the reference) are included.
    """
    judgments = {}
    for _, line in jsonl.read(path, Judgment):
        protocol = line.protocol or "pointwise"
        if line.judging == "standard" and line.opponent == (opponent if protocols.load(protocol).compares else None):
            judgments[line.sample.id, line.condition, line.turn, protocol] = line
    return judgments


def _show_judged(planned: PlannedVerdict, line: Judgment | None, path: Path) -> PlannedVerdict:
    """Return a planned verdict with the form and the prompt inputs that a judge was given for the same reply.

    `line`: the judge's judgment, None if it has none. `path`: its file, for messages.

    Raises UsageError if there is no judgment, or if it is about another reply.
    """
    sample, what = planned.sample, f"turn {planned.sample.turn or WHOLE} of {quoted(planned.sample.id)}"
    if line is None or line.sample.shown is None or planned.material is None:
        raise UsageError(f"--judged {path}: has no {planned.protocol} verdict on {what} ({sample.condition})")
    replied, shown = planned.material.sides[0], line.sample.shown.sides[0]
    about = line.system, line.conversation, shown.earlier, shown.answer
    if about != (sample.system, sample.conversation, replied.earlier, replied.answer):
        raise UsageError(f"--judged {path}: judges another reply to {what} ({sample.condition})")
    return replace(planned, sample=line.sample, form=line.prompt, material=line.sample.shown)


def main(
    table: Path,
    replies: Annotated[Path, typer.Option()],
    out: Annotated[Path, typer.Option()],
    benchmark: Annotated[str | None, typer.Option(show_default="what the replies' file says")] = None,
    questions: Path | None = None,
    against: str | None = None,
    turn_context: TurnContext = "before",
    scale: Annotated[str, typer.Option(metavar="LOW:HIGH")] = "1:10",
    judged: Path | None = None,
    name: str = "people",
    system: Annotated[str | None, typer.Option(show_default="the file's stem")] = None,
) -> None:
    """Import people's grades and preferences as judgments, which can then be scored and compared like any judge's.
    \f
    - table: People's verdicts (CSV, JSONL …). Columns: id (of the conversation), turn (1, 2 … or whole; 1 where it is
      left out), rater, condition (own where it is left out), and either preference (model, tie, and reference or the
      other model's name) or grade (on --scale).
    - replies: The replies that were graded (of critic infer or others).
    - out: Output file of judgments (JSONL).
    - benchmark: Benchmark of the replies.
    - questions: The benchmark's file; needed if the replies are a table.
    - against: Other model of a comparison: its file of replies (for training) or name.
    - turn_context: The turns that people saw when they judged one.
    - scale: Lowest and highest grade.
    - judged: A judge's verdicts on these replies; training then shows what that judge saw.
    - name: The judge's name.
    - system: The model's name.
    """
    benchmark = benchmark or benchmark_of(replies, questions)
    if benchmark is None:
        raise UsageError(f"{replies}: names no benchmark; give --benchmark")
    conversations: list[Conversation] = name_images(benchmarks.read(benchmark, questions))[0] if questions else []
    transcripts = read_transcripts(replies, benchmark, conversations, system)
    theirs, opponent = Transcripts(), against
    # Training needs the other model's replies; for scores its name is enough.
    if against and Path(against).is_file():
        theirs = read_transcripts(Path(against), benchmark, conversations)
        opponent = next(iter(theirs.values())).system
    opinions = read_opinions(table, transcripts, opponent, human_scored.parse_scale(scale))
    seen = _read_judged(judged, opponent) if judged else {}
    turn_context = next((line.setup.sight for line in seen.values()), turn_context)
    setup = JudgeConfig(judge=name, score_kind="argmax", order="random", sight=turn_context)
    judgments: list[Judgment] = []
    # The whole conversation comes last: its judge sees the verdicts on its turns.
    for (key, condition, turn, protocol), grades in sorted(opinions.items(), key=lambda opinion: opinion[0][2] is None):
        compares, of = protocols.load(protocol).compares, (key, condition, protocol)
        score = human_scored.settle_scores(grades.values(), compares)
        rival = theirs.get((key, condition)) if compares else None
        earlier = judgments if turn is None else []
        beside = [judgment for judgment in earlier if (judgment.sample.id, judgment.condition, judgment.protocol) == of]
        assignment = Assignment(transcript=transcripts[key, condition], protocol=protocol, against=rival)
        planned = assignment.plan(turn, setup, beside)
        if judged:
            planned = _show_judged(planned, seen.get((key, condition, turn, protocol)), judged)
        if compares:
            shown = None if opponent and rival is None and not judged else planned.material
            labels: dict[str, Any] = {"preference": score, "opponent": opponent, "shown": shown}
        else:
            scope: Scope = "conversation" if turn is None else "turn"
            labels = {"human": HumanScore(score=score, raters=grades, scope=scope)}
        fields: dict[str, Any] = {"prompt": planned.form, "prompt_hash": "people", "protocol": protocol, "score": score}
        judgments.append(Judgment(sample=replace(planned.sample, **labels), setup=setup, verdict=Verdict(), **fields))
    jsonl.write(out, judgments)
    raters = {rater for grades in opinions.values() for rater in grades}
    print(f"{out}: {len(judgments)} verdicts of {len(raters)} raters")
