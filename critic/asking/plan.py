"""What is judged of a file of replies: its transcripts, alone or beside another model's, and their verdicts."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from critic import jsonl
from critic.asking.history import CONDITIONS
from critic.asking.protocols import Transcript, lacking, verdicts_planned
from critic.errors import UsageError
from critic.records import Judging, ModelTurn, Protocol, TurnVerdict

Pair = tuple[Transcript, Transcript | None]
"""A model's transcript, and the other model's where two are compared."""

VerdictKey = tuple[str, str, Protocol, str, int | None, str | None]


def key(verdict: TurnVerdict) -> VerdictKey:
    """What tells the verdicts of a file apart."""
    one = verdict
    return one.conversation, one.condition, one.protocol, one.judging, one.turn, one.opponent


def read_transcripts(path: Path, benchmark: str) -> dict[tuple[str, str], Transcript]:
    """A model's transcripts by conversation and condition, in the file's order. Raises UsageError for replies to
    another benchmark, by several models, or twice to one turn."""
    found: dict[tuple[str, str], Transcript] = {}
    system: str | None = None
    for number, line in jsonl.read(path, ModelTurn):
        place = f"{path}:{number}"
        if line.conversation.benchmark != benchmark:
            raise UsageError(f"{place}: a conversation of {line.conversation.benchmark}, expected {benchmark}")
        if system not in (None, line.system):
            raise UsageError(f"{place}: replies of {line.system!r} after those of {system!r}; one model a file")
        if line.condition not in CONDITIONS:
            raise UsageError(f"{place}: unknown condition {line.condition!r}; expected {', '.join(CONDITIONS)}")
        system = line.system
        name = line.conversation.id, line.condition
        if name not in found:
            found[name] = Transcript(
                conversation=line.conversation, condition=line.condition, system=line.system, turns={}
            )
        if line.turn in found[name].turns:
            raise UsageError(f"{place}: turn {line.turn} of {name[0]!r} ({name[1]}) is there twice")
        found[name].turns[line.turn] = line
    return found


def paired(mine: dict[tuple[str, str], Transcript], against: Path, benchmark: str) -> list[Pair]:
    """Each transcript with the other model's. Raises UsageError where the two are not of the same conversations."""
    theirs = read_transcripts(against, benchmark)
    for name, one in mine.items():
        if name not in theirs or theirs[name].conversation != one.conversation:
            raise UsageError(f"{against}: lacks conversation {name[0]!r} ({name[1]}), or has another of this id")
        if theirs[name].system == one.system:
            raise UsageError(f"{against}: the same model, {one.system!r}; infer with --name tells them apart")
    return [(one, theirs[name]) for name, one in mine.items()]


class VerdictPlan(Struct, frozen=True):
    """Which verdicts are asked for."""

    pairs: list[Pair]
    protocols: list[Protocol]
    judgings: list[Judging]

    def wanted(self) -> Iterator[VerdictKey]:
        for one, other in self.pairs:
            for protocol, judging, turn in verdicts_planned(one, other, self.protocols, self.judgings):
                opponent = other.system if other is not None and protocol == "pairwise" else None
                yield one.conversation.id, one.condition, protocol, judging, turn, opponent

    def by_conversation(self) -> Iterable[list[Pair]]:
        """The conditions of a conversation together, for they share what is shown alike."""
        found: dict[str, list[Pair]] = {}
        for one, other in self.pairs:
            found.setdefault(one.conversation.id, []).append((one, other))
        return found.values()

    def lacking(self) -> Counter[str]:
        """Turns that are not judged, by what they lack."""
        found: Counter[str] = Counter()
        for one, other in self.pairs:
            for protocol in self.protocols:
                against_model = other is not None and protocol == "pairwise"
                turns = [one.conversation.turns[turn - 1] for turn in one.asked]
                reasons = (lacking(turn, protocol, "standard", against_model) for turn in turns)
                found.update(f"{protocol}: no {reason}" for reason in reasons if reason)
        return found
