"""The judged files that a report is made of."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from critic import jsonl
from critic.errors import UsageError
from critic.page.blocks import Section
from critic.records import Conversation, ConversationJudgment, Protocol, Setup, TurnVerdict, differing


class Line(Struct, frozen=True, kw_only=True):
    """Of a judgment what scores are made of: its verdict, the answer that was judged, and for each call who stood first
    and what was said."""

    class Said(Struct, frozen=True):
        value: str | None = None
        first: str | None = None
        extracted: bool = False

    conversation: Conversation
    verdict: TurnVerdict
    answer: str | None = None
    calls: list[Said] = []


class Run(Struct, frozen=True, kw_only=True):
    """One model's verdicts by one judge, asked in one way. `name` tells the runs of a report apart."""

    name: str
    path: Path
    system: str
    judge: str
    setup: Setup
    lines: list[Line]

    @property
    def verdicts(self) -> list[TurnVerdict]:
        """Those that are not on another model's answers as well."""
        return [line.verdict for line in self.lines if line.verdict.opponent is None]

    @property
    def battles(self) -> list[TurnVerdict]:
        return [line.verdict for line in self.lines if line.verdict.opponent is not None]

    def protocols(self) -> list[Protocol]:
        return list(dict.fromkeys(verdict.protocol for verdict in self.verdicts))

    def conditions(self) -> list[str]:
        return list(dict.fromkeys(verdict.condition for verdict in self.verdicts))


class Report(Struct, frozen=True, kw_only=True):
    """What a benchmark's report shows, and its numbers for summary.json."""

    sections: list[Section]
    summary: dict[str, Any]


def read(paths: Sequence[Path], benchmark: str) -> list[Run]:
    """The runs of judged files. Raises UsageError for a file of another benchmark, of several models or judges, or
    given twice."""
    twice = [path for path, count in Counter(path.resolve() for path in paths).items() if count > 1]
    if twice:
        raise UsageError(f"{twice[0]}: given twice")
    runs = [_read(path, benchmark) for path in paths]
    runs = _told_apart(runs, [f"{run.name} by {run.judge}" for run in runs])
    stems = {run.path.stem for run in runs}
    return _told_apart(runs, [f"{run.name} ({run.path.stem if len(stems) == len(runs) else run.path})" for run in runs])


def _told_apart(runs: Sequence[Run], longer: Sequence[str]) -> list[Run]:
    """The runs, with a longer name where two have the same."""
    shared = Counter(run.name for run in runs)
    return [
        msgspec.structs.replace(run, name=name) if shared[run.name] > 1 else run
        for run, name in zip(runs, longer, strict=True)
    ]


def _read(path: Path, benchmark: str) -> Run:
    lines, setup = list[Line](), None
    for number, line in jsonl.read(path, ConversationJudgment):
        if line.conversation.benchmark != benchmark:
            raise UsageError(f"{path}:{number}: judges {line.conversation.benchmark}, expected {benchmark}")
        said = [Line.Said(call.value, call.first, call.extracted) for call in line.calls]
        lines.append(Line(conversation=line.conversation, verdict=line.verdict, answer=line.answer, calls=said))
        setup = setup or line.setup
        if line.setup != setup:
            raise UsageError(f"{path}:{number}: {differing(setup, line.setup)}; one of each in a file")
    assert setup is not None
    for what in ("system", "judge"):
        values = sorted({getattr(line.verdict, what) for line in lines})
        if len(values) > 1:
            raise UsageError(f"{path}: several values of {what} ({', '.join(values)}); one of each in a file")
    verdict = lines[0].verdict
    opponents = sorted({line.verdict.opponent or "" for line in lines})
    name = verdict.system if "" in opponents else f"{verdict.system} against {' and '.join(opponents)}"
    return Run(name=name, path=path, system=verdict.system, judge=verdict.judge, setup=setup, lines=lines)


def conversations(runs: Iterable[Run]) -> list[Conversation]:
    """The conversations of all runs, each once. Raises UsageError where two files have one id for two of them."""
    found: dict[str, Conversation] = {}
    for run in runs:
        for line in run.lines:
            one = found.setdefault(line.conversation.id, line.conversation)
            if one != line.conversation:
                raise UsageError(f"{run.path}: conversation {one.id!r} reads otherwise than in the files before")
    return list(found.values())


def order_reading(run: Run, battles: bool = False) -> list[str]:
    """How far pairwise verdicts, on the reference's answers or on another model's, follow the places of the answers."""
    pairs = [
        line.calls
        for line in run.lines
        if line.verdict.protocol == "pairwise" and (line.verdict.opponent is not None) == battles
    ]
    last = [[call for call in calls if call.value] for calls in pairs]
    said = [call for calls in last for call in calls]
    if not said:
        return []
    first = sum(call.value == "A" for call in said)
    decided = sum(call.value != "tie" for call in said)
    reading = f"{run.name}: of {decided} comparisons with a winner, the first of the two answers won {first}"
    both = [calls for calls in last if {call.first for call in calls} == {"model", "opponent"}]
    if both:
        differ = sum(_winner(calls, "model") != _winner(calls, "opponent") for calls in both)
        reading += f"; {differ} of {len(both)} pairs were judged otherwise in the other order and count as ties"
    return [reading + "."]


def _winner(calls: Sequence[Line.Said], first: str) -> str:
    value = [call.value for call in calls if call.first == first][-1]
    if value == "tie":
        return "tie"
    return first if value == "A" else "opponent" if first == "model" else "model"
