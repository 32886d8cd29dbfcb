"""Means over verdicts that report how many verdicts are missing, and paired differences on the same questions."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from msgspec import Struct

from critic.errors import UsageError, quoted
from critic.judging import protocols
from critic.judging.history import CONDITIONS
from critic.records import Conversation, Judgment
from critic.stats.estimate import Interval

Scale = tuple[float, float]
Scores = Mapping[Any, float | None]
"""Key, such as a conversation's id -> score; None for a failed judgment."""
Groups = Mapping[Any, str]
"""Key whose verdict was requested -> its group. A bootstrap resamples whole groups."""


class Aggregate(Struct, frozen=True, kw_only=True):
    """A score over `n` verdicts.

    - `asked`: the number of requests. `failed` of them were judged without a score; the rest of the missing were never
      judged.
    - `value`: None if there is no verdict. Missing verdicts are not imputed.
    - `low`, `high`: the score if all missing verdicts were the lowest, or the highest, possible; None if nothing was
      asked.
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


def mean(scores: Scores, asked: Iterable[Any], scale: Scale) -> Aggregate:
    """Return the mean of `scores` over the `asked` ids; other ids are ignored. `scale` bounds missing scores.

    A score of None is a failed judgment; an id without a score was never judged.

    >>> mean({"a": 8.0, "b": 6.0, "c": None}, asked=["a", "b", "c", "d"], scale=(1, 10))
    Aggregate(value=7.0, n=2, failed=1, asked=4, low=4.0, high=8.5)
    """
    keys = list(asked)
    judged = [scores[key] for key in keys if key in scores]
    valid = [score for score in judged if score is not None]
    missing, total = len(keys) - len(valid), sum(valid)
    low, high = ((total + missing * end) / len(keys) if keys else None for end in scale)
    value = fmean(valid) if valid else None
    return Aggregate(value=value, n=len(valid), failed=len(judged) - len(valid), asked=len(keys), low=low, high=high)


def each(scores: Scores, of: Callable[[float], float]) -> dict[Any, float | None]:
    """Apply the function `of` to each score, and return the results by key. None, a failed judgment, stays None."""
    return {key: None if score is None else of(score) for key, score in scores.items()}


def paired(first: Scores, second: Scores, of: Callable[[float, float], float]) -> dict[Any, float | None]:
    """Apply the function `of` to the scores of each key that is in `first` and `second`, and return the results by key.

    The result is None if either judgment failed.
    """
    both = {key: (score, second[key]) for key, score in first.items() if key in second}
    return {key: None if left is None or right is None else of(left, right) for key, (left, right) in both.items()}


def combine(parts: Sequence[tuple[float, Aggregate]]) -> Aggregate:
    """Return the weighted sum of aggregates, and the sums of their counts. `parts`: pairs (weight, aggregate).

    The value is None unless every part has one. The range assumes that missing verdicts of different parts are
    independent.

    >>> ten, open_end = mean({"a": 10}, ["a"], (1, 10)), Aggregate(value=5, n=1, failed=1, asked=2, low=3, high=8)
    >>> difference = combine([(1, ten), (-1, open_end)])
    >>> difference.value, difference.low, difference.high, difference.n, difference.failed, difference.asked
    (5.0, 2.0, 7.0, 2, 1, 3)
    >>> unknown = combine([(1, ten), (1, Aggregate(value=None, n=0, failed=2, asked=2, low=1, high=10))])
    >>> unknown.value, unknown.high
    (None, 20.0)
    """
    return Aggregate(
        value=_add_weighted([(weight, part.value) for weight, part in parts]),
        n=sum(part.n for _, part in parts),
        failed=sum(part.failed for _, part in parts),
        asked=sum(part.asked for _, part in parts),
        # A negative weight, as in a difference, turns the best case into the worst.
        low=_add_weighted([(weight, part.low if weight > 0 else part.high) for weight, part in parts]),
        high=_add_weighted([(weight, part.high if weight > 0 else part.low) for weight, part in parts]),
    )


def _add_weighted(terms: Sequence[tuple[float, float | None]]) -> float | None:
    """Return the weighted sum, or None if a value is missing."""
    # A sum over some of the terms would be a number on another scale.
    weighted = [weight * value for weight, value in terms if value is not None]
    return sum(weighted) if len(weighted) == len(terms) else None


class Difference(Struct, frozen=True, kw_only=True):
    """The mean of `n` paired differences between two runs on the same conversations.

    - `missing`: the number of requested pairs that lack a side.
    - `low`, `high`: bounds of the mean, as in Aggregate.
    - `interval`, `p_value` (two-sided): from the bootstrap over `groups`.
    - `undefined`: the reason if these, or the mean as well, are None.
    - `partly`: "2 of 3" if only some parts could be compared, else "".
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
    """The key of one score: condition, turn (None: the whole conversation) and way of judging."""

    condition: str
    turn: int | None = None
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


def by_cell(verdicts: Iterable[Judgment], protocol: str, unit: float = 1.0) -> dict[Cell, dict[str, float | None]]:
    """Return the scores of one protocol by cell and conversation id, multiplied by `unit`; None for a failed judgment.

    Verdicts by other protocols are ignored.

    All verdicts must be of one system, by one judge, against one opponent. Raises UsageError for two verdicts on the
    same turn, for a score outside the protocol's scale, and unless a verdict has either a score or a failure.

    >>> from critic.records import JudgeConfig, Sample, Verdict
    >>> def judged(score=None, protocol="direct", turn=1, **verdict):
    ...     sample = Sample(id="c", conversation=Conversation(id="c", lang="en", group="c", turns=[]), turn=turn)
    ...     setup = JudgeConfig(judge="j", score_kind="argmax")
    ...     return Judgment(sample=sample, setup=setup, verdict=Verdict(**verdict), protocol=protocol, score=score)
    >>> cells = by_cell([judged(5.0), judged(turn=2, failure="empty"), judged(99.0, "quality")], "direct", unit=0.1)
    >>> for cell, scores in cells.items():
    ...     print(cell.words, scores)
    own, turn 1 {'c': 0.5}
    own, turn 2 {'c': None}
    >>> unscored = [judged()], [judged(5.0, failure="empty")], [judged(turn=None)]
    >>> for verdicts in ([judged(5.0), judged(6.0)], [judged(0.0)], [judged(50.0, "pairwise")], *unscored):
    ...     try:
    ...         by_cell(verdicts, verdicts[0].protocol)
    ...     except UsageError as error:
    ...         print(error)
    conversation 'c', turn 1, condition own: two direct verdicts; expected one
    conversation 'c', turn 1, condition own: direct score 0; expected 1 to 10
    conversation 'c', turn 1, condition own: pairwise score 50; expected 0 to 1
    conversation 'c', turn 1, condition own: expected either a score or a failure
    conversation 'c', turn 1, condition own: expected either a score or a failure
    conversation 'c', whole conversation, condition own: expected either a score or a failure
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
        scores[verdict.sample.id] = None if verdict.score is None else unit * verdict.score
    return cells


def groups_by(entries: Iterable[tuple[str, Any, str]]) -> dict[str, dict[Any, str]]:
    """Collect entries (part, key, group) by part: return part -> {key: group}, in the given order.

    >>> groups_by([("OCR", "q1", "g"), ("Chart", "q2", "h"), ("OCR", "q3", "g")])
    {'OCR': {'q1': 'g', 'q3': 'g'}, 'Chart': {'q2': 'h'}}
    """
    parts: dict[str, dict[Any, str]] = {}
    for part, key, group in entries:
        parts.setdefault(part, {})[key] = group
    return parts


def groups_of(conversations: Iterable[Conversation]) -> dict[str, str]:
    """Return conversation id -> group."""
    return {conversation.id: conversation.group for conversation in conversations}


def asked_of(
    conversations: Sequence[Conversation], cell: Cell, protocol: str, scored: Container[str] = (), backed: bool = True
) -> dict[str, str]:
    """Return the conversations (id -> group) on which a protocol requests the verdict of a cell.

    A conversation must have the cell's turn (for the whole: several turns), the model must answer it under the
    condition, and it must have what the judge needs (with `backed`, the reference as well).

    `scored`: ids of the conversations with verdicts. People also judge turns without what a judge needs. Therefore
    conversations in `scored` are returned in any case, and so are conversations that lack no more than one of these.

    >>> from critic.records import ConversationTurn
    >>> none, bare = ConversationTurn(prompt="q"), ConversationTurn(prompt="q", reference="r")
    >>> full = ConversationTurn(prompt="q", reference="r", checklist=["?"], focus="f")
    >>> def ask(turns, condition, turn, judging="standard", protocol="direct", **options):
    ...     talks = [Conversation(id=key, lang="en", group=key, turns=each) for key, each in turns.items()]
    ...     return " ".join(asked_of(talks, Cell(condition, turn, judging), protocol, **options))
    >>> turns = {"one": [full], "two": [bare, full], "three": [full, none, bare]}
    >>> ask(turns, "own", 1), ask(turns, "own", 2), ask(turns, "own", None)
    ('one two three', 'two', 'two')
    >>> ask(turns, "own", 2, protocol="pairwise", backed=False), ask(turns, "own", None, backed=False)
    ('two three', 'two three')
    >>> ask(turns, "single_turn", 2), ask(turns, "single_turn", 3)
    ('two', 'three')
    >>> ask(turns, "perfect_perception", 1), ask(turns, "perfect_perception", 3)
    ('', 'three')
    >>> ask(turns, "own", 1, protocol="checklist"), ask(turns, "own", 2, "no_focus"), ask(turns, "own", 3, "no_focus")
    ('one three', 'two', '')
    >>> focused = ConversationTurn(prompt="q", reference="r", focus="f")
    >>> ask({"without": [bare], "with": [focused]}, "own", 1, "no_focus")
    'with'
    >>> ask(turns, "own", 2, scored=["three"]), ask(turns, "own", None, scored=["one"])
    ('two three', 'one two three')
    """
    condition, entry = CONDITIONS.get(cell.condition, CONDITIONS["own"]), protocols.load(protocol)

    def short(conversation: Conversation) -> int:
        """Return 0 if a conversation is judged, 1 if a turn lacks a field the judge needs, 2 if it lacks the turn."""
        count = len(conversation.turns)
        if cell.turn is None:
            turns = conversation.turns if count > 1 else []
        else:
            turns = [conversation.turns[cell.turn - 1]] if cell.turn in condition.asked(count) else []
        return any(entry.lacks(turn, cell.judging, backed) for turn in turns) if turns else 2

    lacking = {conversation.id: short(conversation) for conversation in conversations}
    most = max((count for key, count in lacking.items() if key in scored), default=0)
    return {conversation.id: conversation.group for conversation in conversations if lacking[conversation.id] <= most}


def check(verdict: Judgment) -> None:
    """Raise UsageError unless the verdict has either a score on its protocol's scale or a failure."""
    low, high = protocols.load(verdict.protocol or "pointwise").scale
    if (verdict.score is None) == (verdict.failure is None):
        raise UsageError(f"{name(verdict)}: expected either a score or a failure")
    if verdict.score is not None and not low <= verdict.score <= high:
        raise UsageError(f"{name(verdict)}: {verdict.protocol} score {verdict.score:g}; expected {low:g} to {high:g}")


def name(verdict: Judgment) -> str:
    """Return the words that name a verdict in an error message: its conversation, turn and condition."""
    turn = "whole conversation" if verdict.turn is None else f"turn {verdict.turn}"
    return f"conversation {quoted(verdict.sample.id)}, {turn}, condition {verdict.condition}"
