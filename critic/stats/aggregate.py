"""Means over verdicts that report how many are missing, and paired differences on the same questions."""

from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import TypeVar

from msgspec import Struct

from critic.errors import UsageError, quoted
from critic.judging.history import CONDITIONS, lacks
from critic.records import Conversation, Judgment, Protocol
from critic.stats.estimate import Interval

Key = TypeVar("Key", bound=Hashable)
Part = TypeVar("Part", bound=Hashable)
Scale = tuple[float, float]

SCALES: dict[Protocol, Scale] = {
    "pointwise": (1, 10),
    "direct": (1, 10),
    "pairwise": (0, 1),
    "checklist": (0, 1),
    "quality": (1, 10),
}
"""The lowest and the highest score of each protocol."""


class Aggregate(Struct, frozen=True, kw_only=True):
    """A score over `n` verdicts of `asked` requests; `failed` requests were judged without a score, the rest never.

    `value` is None if there is no verdict. Missing verdicts are not imputed: `low` and `high` are the score if all
    of them were the lowest or the highest possible (None if nothing was asked).
    """

    value: float | None
    n: int
    failed: int
    asked: int
    low: float | None
    high: float | None

    @property
    def coverage(self) -> float:
        """Return the share (0..1) of requests that have a verdict."""
        return self.n / self.asked if self.asked else 0.0


def mean(scores: Mapping[Key, float | None], asked: Iterable[Key], scale: Scale) -> Aggregate:
    """Return the mean score of the `asked` ids on `scale`, ignoring other ids.

    A score of None is a failed judgment; an id without a score was never judged.

    >>> mean({"a": 8.0, "b": 6.0, "c": None}, asked=["a", "b", "c", "d"], scale=(1, 10))
    Aggregate(value=7.0, n=2, failed=1, asked=4, low=4.0, high=8.5)
    """
    keys = list(asked)
    judged = [scores[key] for key in keys if key in scores]
    valid = [score for score in judged if score is not None]
    missing, total = len(keys) - len(valid), sum(valid)
    low, high = ((total + missing * end) / len(keys) if keys else None for end in scale)
    return Aggregate(
        value=fmean(valid) if valid else None,
        n=len(valid),
        failed=len(judged) - len(valid),
        asked=len(keys),
        low=low,
        high=high,
    )


def each(scores: Mapping[Key, float | None], of: Callable[[float], float]) -> dict[Key, float | None]:
    """Apply a function to each score; None, a failed judgment, stays None."""
    return {key: None if score is None else of(score) for key, score in scores.items()}


def paired(
    first: Mapping[Key, float | None], second: Mapping[Key, float | None], of: Callable[[float, float], float]
) -> dict[Key, float | None]:
    """Apply a function to both scores of each id that has two; the result is None if either judgment failed."""
    both = {key: (score, second[key]) for key, score in first.items() if key in second}
    return {key: None if left is None or right is None else of(left, right) for key, (left, right) in both.items()}


def combine(parts: Sequence[tuple[float, Aggregate]]) -> Aggregate:
    """Return the weighted sum of aggregates and the sums of their counts.

    The value is None unless every part has one. The range treats the parts' missing verdicts as independent.
    """
    values = [(weight, part.value) for weight, part in parts]
    ends = [(weight, part.low, part.high) for weight, part in parts]
    return Aggregate(
        value=_sum(values),
        n=sum(part.n for _, part in parts),
        failed=sum(part.failed for _, part in parts),
        asked=sum(part.asked for _, part in parts),
        # A negative weight, as in a difference, turns the best case into the worst.
        low=_sum([(weight, low if weight > 0 else high) for weight, low, high in ends]),
        high=_sum([(weight, high if weight > 0 else low) for weight, low, high in ends]),
    )


def _sum(terms: Sequence[tuple[float, float | None]]) -> float | None:
    """Return the weighted sum, or None if a value is missing."""
    # A sum over some of the terms would be a number on another scale.
    weighted = [weight * value for weight, value in terms if value is not None]
    return sum(weighted) if len(weighted) == len(terms) else None


class Difference(Struct, frozen=True, kw_only=True):
    """The mean of `n` paired differences between two runs on the same conversations.

    `missing` of the asked pairs lack a side; `low` and `high` bound the mean as in Aggregate. `interval` and the
    two-sided `p_value` come from the bootstrap over `groups`. `undefined` gives the reason if they, or all three,
    are None. `partly` reads "2 of 3" if only some parts could be compared, else "".
    """

    mean: float | None
    n: int
    missing: int
    groups: int
    low: float | None
    high: float | None
    interval: Interval | None
    p_value: float | None
    undefined: str | None = None
    partly: str = ""


class Cell(Struct, frozen=True):
    """The key of one score: `condition`, `turn` (None: the whole conversation) and way of judging."""

    condition: str
    turn: int | None
    judging: str = "standard"

    @property
    def order(self) -> tuple[bool, str, str, bool, int]:
        """Return a sort key: the model's own replies first, turns before the whole conversation."""
        return self.condition != "own", self.condition, self.judging, self.turn is None, self.turn or 0

    @property
    def words(self) -> str:
        """Return the cell as it is printed, such as "own, turn 2"."""
        turn = "whole conversation" if self.turn is None else f"turn {self.turn}"
        return f"{self.condition}, {turn}" + (f", {self.judging}" if self.judging != "standard" else "")


def by_cell(verdicts: Iterable[Judgment], protocol: Protocol) -> dict[Cell, dict[str, float | None]]:
    """Return scores by cell and conversation id, from verdicts of one judge on one system against one opponent.

    Raises UsageError for two verdicts on the same turn, and for a score that is outside the protocol's scale,
    missing without a failure, or beside one.
    """
    cells: dict[Cell, dict[str, float | None]] = {}
    for verdict in verdicts:
        # Files may hold several protocols, whose scores are on different scales.
        if verdict.protocol != protocol:
            continue
        check(verdict)
        scores = cells.setdefault(Cell(verdict.condition, verdict.turn, verdict.judging), {})
        if verdict.sample.id in scores:
            raise UsageError(f"{name(verdict)}: two {protocol} verdicts; expected one")
        scores[verdict.sample.id] = verdict.score
    return cells


def groups_by(
    conversations: Iterable[Conversation], part: Callable[[Conversation], Part]
) -> dict[Part, dict[str, str]]:
    """Return the group of each conversation by id, separately for each value of `part`, in order of first use."""
    parts: dict[Part, dict[str, str]] = {}
    for conversation in conversations:
        parts.setdefault(part(conversation), {})[conversation.id] = conversation.group
    return parts


def groups_of(conversations: Iterable[Conversation]) -> dict[str, str]:
    """Return the group of each conversation by its id."""
    return {conversation.id: conversation.group for conversation in conversations}


def asked_of(
    conversations: Sequence[Conversation], cell: Cell, protocol: Protocol, *scored: Container[str], backed: bool = True
) -> dict[str, str]:
    """Return the groups, by id, of the conversations that a protocol judges for a cell.

    A turn counts if the condition asks for it and it has the fields the judge needs, with the reference in sight
    (`backed`) or without; for a whole conversation, several turns are needed. People also judge conversations that a
    judge skips: if one of those is in `scored`, all conversations that lack as much count too.
    """
    condition = CONDITIONS.get(cell.condition, CONDITIONS["own"])

    def short(conversation: Conversation) -> int:
        """0: is asked, 1: lacks what the judge is to see, 2: has no such turn."""
        count = len(conversation.turns)
        if cell.turn is None:
            turns = conversation.turns if count > 1 else []
        else:
            turns = [conversation.turns[cell.turn - 1]] if cell.turn in condition.asked(count) else []
        return any(lacks(turn, protocol, cell.judging, backed) for turn in turns) if turns else 2

    lacking = {conversation.id: short(conversation) for conversation in conversations}
    most = max((count for key, count in lacking.items() if any(key in ids for ids in scored)), default=0)
    return {conversation.id: conversation.group for conversation in conversations if lacking[conversation.id] <= most}


def check(verdict: Judgment) -> None:
    """Raise UsageError unless the verdict has either a score on its protocol's scale or a failure."""
    # Older files name no protocol: all of their ratings are pointwise.
    low, high = SCALES[verdict.protocol or "pointwise"]
    if (verdict.score is None) == (verdict.failure is None):
        raise UsageError(f"{name(verdict)}: expected either a score or a failure")
    if verdict.score is not None and not low <= verdict.score <= high:
        raise UsageError(f"{name(verdict)}: {verdict.protocol} score {verdict.score:g}; expected {low:g} to {high:g}")


def name(verdict: Judgment) -> str:
    """Return a verdict's name for error messages."""
    turn = "whole conversation" if verdict.turn is None else f"turn {verdict.turn}"
    return f"conversation {quoted(verdict.sample.id)}, {turn}, condition {verdict.condition}"
