"""critic import-grades: people's verdicts on a benchmark's replies, out of a table -> judgments as of critic judge.

critic import-grades grades.csv --replies replies.jsonl --out people.jsonl    # critic score people.jsonl judged.jsonl
"""

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import replace

from critic import benchmarks, human_scored, jsonl, tables
from critic.errors import UsageError
from critic.images import named_images
from critic.judging import protocols
from critic.judging.protocols import Assignment, Transcripts
from critic.judging.replies import benchmark_of
from critic.records import Conversation, HumanScore, JudgeConfig, Judgment, Protocol, Scope, TurnContext, Verdict

WHOLE = "whole"
COLUMNS = (
    "id (of the conversation), turn (1, 2 … or whole; 1 where it is left out), rater, condition (own where it is left "
    "out), and either preference (model, tie, and reference or the other model's name) or grade (1 to 10)"
)

GRADED: dict[str, Protocol] = {"convbench": "direct", "multiverse": "quality"}
"""The protocol that people's grades stand beside, by benchmark; pointwise in the others."""

Key = tuple[str, str, int | None, Protocol]
"""Conversation, condition, turn and protocol of a verdict."""

Grades = dict[str, float]
"""What each rater said of one turn or conversation: 1..10, or of a comparison 1, 1/2 or 0."""


_ANNOTATED = re.compile(r"(?P<id>.+)/(?P<condition>\w+)/(direct|pairwise)/(whole|\d+)(/opponent=.*)?")
"""The ids of what critic annotate exports, which is read as well."""


def read_opinions(path: Path, transcripts: Transcripts, opponent: str | None) -> dict[Key, Grades]:
    """People's opinions by what they are on. Raises UsageError naming the place for a conversation or turn without a
    reply, a word that is no verdict, a grade outside 1..10, or a rater who says two things of one turn."""
    found: dict[Key, Grades] = {}
    other = opponent or "reference"
    words = {"model": 1.0, "tie": 0.5, other.lower(): 0.0, "a": 1.0, "b": 0.0}
    for place, row in tables.rows(path):
        key, condition = tables.text(place, row, "id"), tables.optional_text(row, "condition") or "own"
        if (key, condition) not in transcripts and (named := _ANNOTATED.match(key)):
            key, condition = named["id"], named["condition"]
        said = tables.optional_text(row, "preference")
        grade = tables.optional_text(row, "grade") or tables.optional_text(row, "score")
        turn = (tables.optional_text(row, "turn") or "1").removesuffix(".0")  # of a column of numbers with gaps
        one = transcripts.get((key, condition))
        if one is None or not (turn == WHOLE or (turn.isdigit() and int(turn) in one.asked)):
            raise UsageError(f"{place}: no reply to turn {turn} of {key!r} ({condition})")
        if problem := one.problem(one.asked if turn == WHOLE else [int(turn)]):
            raise UsageError(f"{place}: no reply to turn {turn} of {key!r} ({condition}): {problem[1]}")
        if (said is None) == (grade is None):
            raise UsageError(f"{place}: either preference or grade, got {said!r} and {grade!r}")
        if said is not None and said.lower() not in words:
            raise UsageError(f"{place}: preference {said!r}; expected {', '.join(words)}")
        score = words[said.lower()] if said is not None else _grade(place, grade or "")
        protocol = "pairwise" if said is not None else GRADED.get(one.conversation.benchmark, "pointwise")
        rater = tables.optional_text(row, "rater") or "people"
        opinions = found.setdefault((key, condition, None if turn == WHOLE else int(turn), protocol), {})
        if rater in opinions:
            raise UsageError(f"{place}: {rater} on turn {turn} of {key!r} ({condition}) is there twice")
        opinions[rater] = score
    return found


def _grade(place: str, text: str) -> float:
    try:
        grade = float(text)
    except ValueError:
        grade = 0.0
    if not 1 <= grade <= 10:
        raise UsageError(f"{place}: grade {text!r}; expected a number from 1 to 10")
    return grade


def main(
    table: Annotated[Path, typer.Argument(help=f"People's verdicts (CSV, JSONL …). Columns: {COLUMNS}.")],
    replies: Annotated[Path, typer.Option(help="The replies they are on (critic infer, or another program's).")],
    out: Annotated[Path, typer.Option(help="Where the judgments go (JSONL).")],
    benchmark: Annotated[
        str | None, typer.Option(help="Of which benchmark.", show_default="what the replies' file says")
    ] = None,
    questions: Annotated[
        Path | None, typer.Option(help="The benchmark's file, which a table of replies needs.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Of two that were compared the other's replies (to train on), or its name.")
    ] = None,
    turn_context: Annotated[
        TurnContext, typer.Option(help="The turns in sight of which people judged one.")
    ] = "before",
    name: Annotated[str, typer.Option(help="The judge's name.")] = "people",
    system: Annotated[str | None, typer.Option(help="The model's name.", show_default="the file's stem")] = None,
) -> int:
    """People's grades and preferences as judgments: scored, and held against judges', like any judge's."""
    benchmark = benchmark or benchmark_of(replies, questions)
    if benchmark is None:
        raise UsageError(f"{replies}: names no benchmark; give --benchmark")
    asked: list[Conversation] = named_images(benchmarks.read(benchmark, questions))[0] if questions else []
    transcripts = protocols.read_transcripts(replies, benchmark, asked, system)
    theirs, opponent = Transcripts(), against
    if against and Path(against).is_file():
        theirs = protocols.read_transcripts(Path(against), benchmark, asked)
        opponent = next(iter(theirs.values())).system
    opinions = read_opinions(table, transcripts, opponent)
    setup = JudgeConfig(judge=name, score_kind="argmax", order="random", sight=turn_context)
    judgments: list[Judgment] = []
    # The whole last: a judge sees the verdicts on its turns.
    for (key, condition, turn, protocol), grades in sorted(opinions.items(), key=lambda one: one[0][2] is None):
        compares, of = protocol == "pairwise", (key, condition, protocol)
        score = human_scored.settled(grades.values(), compares)
        other = theirs.get((key, condition)) if compares else None
        beside = [one for one in judgments if (one.sample.id, one.condition, one.protocol) == of and turn is None]
        one = Assignment(one=transcripts[key, condition], protocol=protocol, against=other)
        planned = one.planned(turn, setup, beside)
        if compares:
            shown = None if opponent and other is None else planned.material
            labels: dict[str, Any] = {"preference": score, "opponent": opponent, "shown": shown}
        else:
            scope: Scope = "conversation" if turn is None else "turn"
            labels = {"human": HumanScore(score=score, raters=grades, scope=scope)}
        made: dict[str, Any] = {"prompt": planned.form, "prompt_hash": "people", "protocol": protocol, "score": score}
        judgments.append(Judgment(sample=replace(planned.sample, **labels), setup=setup, verdict=Verdict(), **made))
    jsonl.write(out, judgments)
    raters = {rater for grades in opinions.values() for rater in grades}
    print(f"{out}: {len(judgments)} verdicts of {len(raters)} raters")
    return 0
