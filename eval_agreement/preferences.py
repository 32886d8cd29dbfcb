"""Pairwise preferences: how far judges agree with people on which of two answers, a or b, is better, and their biases.

Tables of agreement among judges and people: ConvBench, tables 3-7. Kappa: Cohen 1960. Every statistic here depends on
a sample only through counts of verdicts, so intervals come from resampled tables of counts.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Literal, TypeVar

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from critic.counting.resampling import Estimate, Floats, Group, Resamples, group_numbers, ratio

Integers = NDArray[np.intp]
Codes = NDArray[np.int8]
Label = Literal["a", "tie", "b", "failed"]

A, TIE, B, FAILED, UNASKED = range(5)
"""Codes of verdicts in arrays; the first three are labels. FAILED: asked, but no verdict could be read."""

PEOPLE, LONGER, CONSTANT = "people", "longer", "constant"
"""Names of people's verdict and of the trivial judges in an audit."""

_CODES: dict[str | None, int] = {"a": A, "tie": TIE, "b": B, "failed": FAILED, None: UNASKED}
_LABELS = 3


class Preferences(Struct, frozen=True, kw_only=True, eq=False):
    """Pairs of answers, with verdicts of people and of judges: arrays of codes (see `codes`) over n items.

    - `people[rater]`, shape (n,): A, TIE, B, or UNASKED where the rater did not see the item.
    - `judges[name]`, shape (n, 2): the verdict with a shown first, and with b shown first; or shape (n,) where the
      order is unknown or does not matter to the judge. FAILED is a failed judgment, UNASKED no judgment.
    - `parts[property]`, n names: what agreement is broken down by (category, turn, lang).
    - `length_a`, `length_b`, shape (n,): lengths of the answers, in any one unit.

    Raises ValueError where ids repeat, shapes or codes differ from this, or names are ambiguous.
    """

    ids: Sequence[str]
    group: Group
    people: dict[str, Codes]
    judges: dict[str, Codes]
    parts: dict[str, Sequence[str]] = field(default_factory=dict)
    length_a: Floats | None = None
    length_b: Floats | None = None

    def __post_init__(self) -> None:
        n = len(self.ids)
        if len(set(self.ids)) != n:
            raise ValueError("an id comes twice")
        for name, part in [("groups", self.group), *self.parts.items()]:
            if len(part) != n:
                raise ValueError(f"{n} ids but {len(part)} {name}")
        for name, verdicts in self.people.items():
            _check(name, verdicts, [(n,)], (A, TIE, B, UNASKED))
        for name, verdicts in self.judges.items():
            _check(name, verdicts, [(n,), (n, 2)], (A, TIE, B, FAILED, UNASKED))
        _check_names(self.people, self.judges)
        _check_lengths(self.length_a, self.length_b, n)


def _check(name: str, verdicts: Codes, shapes: Sequence[tuple[int, ...]], allowed: Sequence[int]) -> None:
    if verdicts.shape not in shapes:
        raise ValueError(f"the verdicts of {name} have shape {verdicts.shape}; expected {shapes[-1]}")
    if not np.isin(verdicts, allowed).all():
        raise ValueError(f"the verdicts of {name} hold other codes than {', '.join(map(str, allowed))}")


def _check_names(people: Iterable[str], judges: Iterable[str]) -> None:
    raters, names = set(people), set(judges)
    if not raters:
        raise ValueError("no verdicts of people")
    ambiguous = names & {PEOPLE, LONGER, CONSTANT, *raters} | (raters & {PEOPLE} if len(raters) > 1 else set())
    if ambiguous:
        raise ValueError(f"{min(ambiguous)!r} would name two scorers; rename the rater or judge")


def _check_lengths(length_a: Floats | None, length_b: Floats | None, n: int) -> None:
    if (length_a is None) != (length_b is None):
        raise ValueError("the lengths of a and of b come together")
    for name, lengths in (("a", length_a), ("b", length_b)):
        if lengths is not None and (lengths.shape != (n,) or not (lengths >= 0).all()):
            raise ValueError(f"the lengths of {name} must be {n} numbers from 0 up")


def codes(verdicts: Iterable[Label | None]) -> Codes:
    """Verdicts as codes: "a", "tie", "b", "failed" (asked, unreadable), None (not asked). Raises ValueError."""
    given = list(verdicts)
    unknown = len(_CODES)
    found = np.fromiter((_CODES.get(verdict, unknown) for verdict in given), dtype=np.int8, count=len(given))
    if (found == unknown).any():
        place = int(np.argmax(found == unknown))
        choices = ", ".join(str(name) for name in _CODES)
        raise ValueError(f"verdict {place} (from 0) is {given[place]!r}; expected one of {choices}")
    return found


def both_orders(orders: Codes) -> Codes:
    """A judge's verdict on each item, shape (n,), from those in both orders, shape (n, 2) (or (n,): as it is).

    Two equal verdicts are the verdict, two different ones a tie. Asked in one order only, that one counts. A failure in
    either order is a failed judgment: half of an answer is not a tie.
    """
    if orders.ndim == 1:
        return orders
    a_first, b_first = orders.T
    verdict = np.where(a_first == b_first, a_first, TIE)
    verdict = np.where(a_first == UNASKED, b_first, verdict)
    verdict = np.where(b_first == UNASKED, a_first, verdict)
    return np.where((orders == FAILED).any(axis=1), FAILED, verdict).astype(np.int8)


def majority(raters: Sequence[Codes]) -> Codes:
    """What more than half of the raters of each item say; a tie where none has that many, UNASKED without raters."""
    return _majority(_votes(raters))


def _votes(raters: Sequence[Codes]) -> Integers:
    """How many raters gave each of the three labels, shape (3, n)."""
    return np.stack([sum((rater == label for rater in raters), start=np.intp(0)) for label in range(_LABELS)])


def _majority(votes: Integers) -> Codes:
    total = votes.sum(axis=0)
    chosen = np.where(2 * votes[A] > total, A, np.where(2 * votes[B] > total, B, TIE))
    return np.where(total == 0, UNASKED, chosen).astype(np.int8)


def longer(length_a: Floats, length_b: Floats) -> Codes:
    """The trivial judge: it prefers the longer answer, and says tie where both are equally long."""
    return np.select([length_a > length_b, length_a < length_b], [A, B], default=TIE).astype(np.int8)


Statistic = Callable[[Floats], tuple[Floats, Floats]]
"""Counts of C cells in r samples, shape (C, r), to the statistic in each, shape (r,), NaN where it is undefined, and
the number of items it is about, shape (r,)."""


Key = TypeVar("Key", bound=Hashable)


class _Wanted(Struct, frozen=True):
    """A statistic, why it would be undefined, whether a p-value of 0 is asked for, and whether it is a share."""

    statistic: Statistic
    undefined: str
    p_value: bool = False
    share: bool = False


def _estimates(cell: Integers, cells: int, group: Integers, wanted: Mapping[Key, _Wanted]) -> dict[Key, Estimate]:
    """Every statistic of the items' cells (0..cells - 1), on the sample and in the same resamples of its groups."""
    # All of them come from the same tables, so these draws need not be those of any other call.
    draws = Resamples(group, shared=False)
    counts = np.bincount(cell, minlength=cells).astype(np.float64)[:, None]
    drawn: dict[Key, list[Floats]] = {name: [] for name in wanted}
    if draws.enough:
        for block in draws.tables(cell, cells):
            for name, one in wanted.items():
                drawn[name].append(one.statistic(block)[0])
    return {name: _estimate(one, counts, drawn[name], draws) for name, one in wanted.items()}


def _estimate(wanted: _Wanted, counts: Floats, drawn: list[Floats], draws: Resamples) -> Estimate:
    (value,), (n,) = wanted.statistic(counts)
    if np.isnan(value):
        return Estimate(value=None, n=int(n), undefined=wanted.undefined if counts.any() else "no items")
    if not draws.enough:
        return Estimate(value=float(value), n=int(n))
    values = np.concatenate(drawn)
    p_value = draws.p_value(values) if wanted.p_value else None
    return Estimate(value=float(value), n=int(n), interval=draws.interval(values, share=wanted.share), p_value=p_value)


def _share(part: NDArray[np.bool_], whole: NDArray[np.bool_]) -> Statistic:
    """The share of items in the cells `part` among those in the cells `whole`, both of shape (C,)."""
    part = part & whole

    def statistic(counts: Floats) -> tuple[Floats, Floats]:
        n = whole @ counts
        return ratio(part @ counts, n), n

    return statistic


def _kappa(counts: Floats) -> tuple[Floats, Floats]:
    """Cohen's kappa of tables (9, r); undefined where both sides always give one and the same label."""
    table = counts.reshape(_LABELS, _LABELS, -1)
    n = counts.sum(axis=0)
    chance = (table.sum(axis=0) * table.sum(axis=1)).sum(axis=0)
    return ratio(n * np.einsum("iir->r", table) - chance, n**2 - chance), n


_FIRST, _SECOND = np.divmod(np.arange(_LABELS**2), _LABELS)
_EQUAL = _FIRST == _SECOND
_DECIDED = (_FIRST != TIE) & (_SECOND != TIE)
_ALL = np.ones(_LABELS**2, dtype=bool)


class VerdictAgreement(Struct, frozen=True, kw_only=True):
    """Agreement of a judge with people over the `n` items on which both have a verdict.

    Of the other items with a verdict of people the judge `failed` on some and was never asked about `unasked`.
    `accuracy` is the share (0..1) of equal verdicts over all three labels; `decided` the same where neither says tie,
    and `coverage` the share of those items; `kappa` is Cohen's, over three labels (-1..1). `table` counts the items:
    a row for each label of people, a column for each of the judge, both in the order a, tie, b.
    """

    n: int
    failed: int
    unasked: int
    table: list[list[int]]
    accuracy: Estimate
    decided: Estimate
    coverage: Estimate
    kappa: Estimate


def verdict_agreement(people: Codes, judge: Codes, group: Group) -> VerdictAgreement:
    """Agreement of two columns of verdicts, shape (n,) each; items that `people` were not asked about do not count."""
    both = _labelled(people, judge)
    cell = people[both].astype(np.intp) * _LABELS + judge[both]
    found = _estimates(cell, _LABELS**2, group_numbers(group)[both], _AGREEMENT)
    unasked = (people != UNASKED) & (judge == UNASKED)
    table = np.bincount(cell, minlength=_LABELS**2).reshape(_LABELS, _LABELS).tolist()
    n = int(both.sum())
    return VerdictAgreement(n=n, failed=_failures(people, judge), unasked=int(unasked.sum()), table=table, **found)


_AGREEMENT = {
    "accuracy": _Wanted(_share(_EQUAL, _ALL), "no items", share=True),
    "decided": _Wanted(_share(_EQUAL, _DECIDED), "one side or the other says tie on every item", share=True),
    "coverage": _Wanted(_share(_DECIDED, _ALL), "no items", share=True),
    "kappa": _Wanted(_kappa, "both sides give every item the same verdict"),
}


def breakdown(people: Codes, judge: Codes, group: Group, part: Sequence[str]) -> dict[str, VerdictAgreement]:
    """`verdict_agreement` on the items of each value of `part`, the largest first."""
    members = group_numbers(group)
    return {
        value: verdict_agreement(people[rows], judge[rows], members[rows]) for value, rows in _rows_of(part).items()
    }


def _rows_of(part: Sequence[str]) -> dict[str, Integers]:
    """The rows of each value, the largest first, equally large ones by name."""
    values, number, sizes = np.unique(np.array(part, dtype=object), return_inverse=True, return_counts=True)
    rows = np.split(np.argsort(number, kind="stable"), np.cumsum(sizes)[:-1])
    order = np.argsort(-sizes, kind="stable")
    return {str(values[place]): rows[place] for place in order}


class PairAgreement(Struct, frozen=True, kw_only=True):
    """The share (0..1) of equal verdicts of two scorers, over the items on which both have one; of the items that both
    were asked about, at least one of them `failed` on so many."""

    first: str
    second: str
    failed: int
    equal: Estimate


class Matrix(Struct, frozen=True, kw_only=True):
    """Agreement of every pair of scorers: over all items, and `by[property][value]`."""

    overall: list[PairAgreement]
    by: dict[str, dict[str, list[PairAgreement]]] = field(default_factory=dict)


def matrix(scorers: Mapping[str, Codes], group: Group, parts: Mapping[str, Sequence[str]] | None = None) -> Matrix:
    """Agreement among any judges and people (ConvBench, tables 3-7), columns of verdicts of shape (n,) by name."""
    members = group_numbers(group)
    by: dict[str, dict[str, list[PairAgreement]]] = {}
    for name, part in (parts or {}).items():
        by[name] = {
            value: _pairs({scorer: column[rows] for scorer, column in scorers.items()}, members[rows])
            for value, rows in _rows_of(part).items()
        }
    return Matrix(overall=_pairs(scorers, members), by=by)


def _pairs(scorers: Mapping[str, Codes], group: Integers) -> list[PairAgreement]:
    """Every pair in the order of names. Pairs with verdicts on the same items share their resamples."""
    pairs = list(combinations(scorers, 2))
    items: dict[bytes, list[tuple[str, str]]] = {}
    for first, second in pairs:
        items.setdefault(np.packbits(_labelled(scorers[first], scorers[second])).tobytes(), []).append((first, second))
    equal: dict[tuple[str, str], Estimate] = {}
    for members in items.values():
        equal |= _equal_shares(members, scorers, group)
    return [
        PairAgreement(
            first=first,
            second=second,
            failed=_failures(scorers[first], scorers[second]),
            equal=equal[first, second],
        )
        for first, second in pairs
    ]


def _labelled(first: Codes, second: Codes) -> NDArray[np.bool_]:
    return (first < _LABELS) & (second < _LABELS)


def _failures(first: Codes, second: Codes) -> int:
    asked = (first != UNASKED) & (second != UNASKED)
    return int((asked & ~_labelled(first, second)).sum())


def _equal_shares(
    pairs: Sequence[tuple[str, str]], scorers: Mapping[str, Codes], group: Integers
) -> dict[tuple[str, str], Estimate]:
    """The share of equal verdicts of pairs that have verdicts on the same items."""
    rows = _labelled(*(scorers[name] for name in pairs[0]))
    columns = {name: scorers[name][rows] for pair in pairs for name in pair}
    cell, place = _patterns(list(columns.values()))
    everywhere = np.ones(len(place), dtype=bool)
    wanted = {
        (first, second): _Wanted(
            _share(columns[first][place] == columns[second][place], everywhere), "no items", share=True
        )
        for first, second in pairs
    }
    return _estimates(cell, len(place), group[rows], wanted)


def _patterns(columns: Sequence[Codes]) -> tuple[Integers, Integers]:
    """The number of each row's combination of labels, 0..P-1, and for each combination the place of one row."""
    cell, place = np.zeros(len(columns[0]), dtype=np.intp), np.zeros(0, dtype=np.intp)
    for column in columns:
        _, place, cell = np.unique(cell * _LABELS + column, return_index=True, return_inverse=True)
    return cell, place


class PositionBias(Struct, frozen=True, kw_only=True):
    """What the order in which two answers are shown does to a judge.

    `flips` is the share of items whose verdict changes when the order is swapped, among those with a verdict in both
    orders; of the items asked in both orders, `failed_items` lack one. It is the sum of `stays_first` (each time the
    answer shown first wins), `stays_second`, and `to_tie` (a tie in one order only).

    `first_place` is the share of verdicts for the answer shown first, ties aside, less 1/2 (-0.5..0.5): the mean of
    both orders' shares, so that it tells place from quality also where each item is asked in one order and the orders
    are not equally many. Its n counts verdicts; `failed_verdicts` could not be read.
    """

    failed_items: int
    flips: Estimate
    stays_first: Estimate
    stays_second: Estimate
    to_tie: Estimate
    failed_verdicts: int
    first_place: Estimate


def position_bias(orders: Codes, group: Group) -> PositionBias:
    """The position bias of a judge's verdicts, shape (n, 2): with a shown first, with b shown first."""
    if orders.ndim != 2:
        raise ValueError("position bias needs to know which answer was shown first")
    members = group_numbers(group)
    a_first, b_first = orders.T
    both = _labelled(a_first, b_first)
    cell = a_first[both].astype(np.intp) * _LABELS + b_first[both]
    flips = _estimates(cell, _LABELS**2, members[both], _FLIPS)
    given = (orders < _LABELS).any(axis=1)
    verdicts = a_first[given].astype(np.intp) * len(_CODES) + b_first[given]
    return PositionBias(
        failed_items=_failures(a_first, b_first),
        failed_verdicts=int((orders == FAILED).sum()),
        first_place=_estimates(verdicts, len(_CODES) ** 2, members[given], {"": _FIRST_PLACE})[""],
        **flips,
    )


_FLIPS = {
    name: _Wanted(_share(cells, _ALL), "no items", share=True)
    for name, cells in {
        "flips": ~_EQUAL,
        "stays_first": (_FIRST == A) & (_SECOND == B),
        "stays_second": (_FIRST == B) & (_SECOND == A),
        "to_tie": ~_EQUAL & ~_DECIDED,
    }.items()
}


def _first_place(counts: Floats) -> tuple[Floats, Floats]:
    """Of counts by the codes of both orders, shape (25, r)."""
    table = counts.reshape(len(_CODES), len(_CODES), -1)
    a_first, b_first = table.sum(axis=1)[:_LABELS], table.sum(axis=0)[:_LABELS]
    shares = [ratio(a_first[A], a_first[A] + a_first[B]), ratio(b_first[B], b_first[A] + b_first[B])]
    return (shares[0] + shares[1] - 1) / 2, a_first[A] + a_first[B] + b_first[A] + b_first[B]


_FIRST_PLACE = _Wanted(
    _first_place, "needs a verdict other than tie in each order: otherwise place and quality are one", p_value=True
)


class LengthPreference(Struct, frozen=True, kw_only=True):
    """How often the longer answer wins (shares 0..1), by a judge's and by people's verdicts.

    `judge`, `people` and `difference` (judge - people) are over the same items: answers of different length, where
    neither says tie. `at_ties` is the judge's share where people call it a tie and the judge does not: length is then
    no mark of quality. On `failed` items with answers of different length and a verdict of people the judge failed.
    """

    failed: int
    judge: Estimate
    people: Estimate
    difference: Estimate
    at_ties: Estimate


def length_preference(
    people: Codes, judge: Codes, length_a: Floats, length_b: Floats, group: Group
) -> LengthPreference:
    """The preference for the longer answer in verdicts of people and of a judge; all arrays of shape (n,)."""
    differ = length_a != length_b
    rows = differ & _labelled(people, judge)
    # Said of the longer and the shorter answer instead of a and b: a is code 0, b is code 2.
    longer_is_b = (length_b > length_a)[rows]
    by_people, by_judge = (np.where(longer_is_b, B - column[rows], column[rows]) for column in (people, judge))
    cell = by_people.astype(np.intp) * _LABELS + by_judge
    found = _estimates(cell, _LABELS**2, group_numbers(group)[rows], _LENGTH)
    return LengthPreference(failed=_failures(people[differ], judge[differ]), **found)


def _difference(first: Statistic, second: Statistic) -> Statistic:
    """first - second, which are about the same items."""

    def statistic(counts: Floats) -> tuple[Floats, Floats]:
        (minuend, n), (subtrahend, _) = first(counts), second(counts)
        return minuend - subtrahend, n

    return statistic


_PEOPLE_LONGER, _JUDGE_LONGER = _share(_FIRST == A, _DECIDED), _share(_SECOND == A, _DECIDED)
_NONE_DECIDED = "one side or the other says tie on every item"
_LENGTH = {
    "judge": _Wanted(_JUDGE_LONGER, _NONE_DECIDED, share=True),
    "people": _Wanted(_PEOPLE_LONGER, _NONE_DECIDED, share=True),
    "difference": _Wanted(_difference(_JUDGE_LONGER, _PEOPLE_LONGER), _NONE_DECIDED, p_value=True),
    "at_ties": _Wanted(
        _share(_SECOND == A, (_FIRST == TIE) & (_SECOND != TIE)),
        "the judge decides no item that people call a tie",
        share=True,
    ),
}


class PairedDifference(Struct, frozen=True, kw_only=True):
    """How much better the `first` judge agrees with people than the `second`, over the items on which all three have a
    verdict: differences of accuracy and of kappa, first - second. Of the items all were asked about, one `failed` on
    so many."""

    first: str
    second: str
    failed: int
    accuracy: Estimate
    kappa: Estimate


def paired_difference(
    people: Codes, first: Codes, second: Codes, group: Group, names: tuple[str, str] = ("first", "second")
) -> PairedDifference:
    """The difference of two judges' accuracy and kappa in the same resamples; arrays of shape (n,)."""
    columns = np.stack([people, first, second])
    rows = (columns < _LABELS).all(axis=0)
    failed = (columns != UNASKED).all(axis=0) & ~rows
    place = columns[:, rows].astype(np.intp)
    cell = (place[0] * _LABELS + place[1]) * _LABELS + place[2]
    found = _estimates(cell, _LABELS**3, group_numbers(group)[rows], _DIFFERENCES)
    return PairedDifference(first=names[0], second=names[1], failed=int(failed.sum()), **found)


def _against_people(statistic: Statistic, judge: int) -> Statistic:
    """A statistic of tables (people, judge), for one of two judges (1 or 2) of tables (people, judge, judge)."""

    def of_three(counts: Floats) -> tuple[Floats, Floats]:
        tables = counts.reshape(_LABELS, _LABELS, _LABELS, -1).sum(axis=3 - judge)
        return statistic(tables.reshape(_LABELS**2, -1))

    return of_three


_DIFFERENCES = {
    name: _Wanted(_difference(_against_people(statistic, 1), _against_people(statistic, 2)), undefined, p_value=True)
    for name, statistic, undefined in [
        ("accuracy", _share(_EQUAL, _ALL), "no items"),
        ("kappa", _kappa, "people and a judge give every item the same verdict"),
    ]
}


def raters_agreement(raters: Sequence[Codes], group: Group) -> VerdictAgreement | None:
    """Every two raters with each other, pooled: what a judge that is like one of them would reach against them, by
    `against_raters`. n counts pairs of verdicts. None where no item has two raters.
    """
    pairs = list(combinations(raters, 2))
    first = [one for one, _ in pairs]
    return _pooled(first, [other for _, other in pairs], group) if pairs else None


def against_raters(raters: Sequence[Codes], judge: Codes, group: Group) -> VerdictAgreement | None:
    """A judge's verdicts, shape (n,), with each single rater's, pooled: n counts (item, rater) pairs."""
    return _pooled(raters, [judge] * len(raters), group)


def _pooled(first: Sequence[Codes], second: Sequence[Codes], group: Group) -> VerdictAgreement | None:
    one, other = np.concatenate(first), np.concatenate(second)
    asked = (one != UNASKED) & (other != UNASKED)
    members = np.tile(group_numbers(group), len(first))
    found = verdict_agreement(one[asked], other[asked], members[asked])
    return found if found.n else None


class PreferenceAudit(Struct, frozen=True, kw_only=True):
    """All that is known of judges' preferences, over `items` of which `rated` have a verdict of people.

    - `people_ties`: the share of ties in people's verdict (the `majority` of `raters` raters).
    - `agreement[judge]` with people's verdict; `baselines` of trivial judges: always people's commonest verdict and,
      where lengths are known, the longer answer.
    - `ceiling`: `raters_agreement`, and `as_a_rater[judge]`: `against_raters`; None and empty with one rater.
    - `matrix`: among people's verdict (named "people"), the raters where there are several, and the judges; without the
      pairs of people and a rater, who is one of them.
    - `position[judge]` of judges whose order is known, `length[judge]` where lengths are known.
    - `differences` of every two judges, and of every judge and the trivial one.
    - `by[judge][property][value]`: agreement on a part of the items.
    """

    items: int
    rated: int
    groups: int
    raters: int
    people_ties: Estimate
    agreement: dict[str, VerdictAgreement]
    baselines: dict[str, VerdictAgreement]
    ceiling: VerdictAgreement | None
    as_a_rater: dict[str, VerdictAgreement]
    matrix: Matrix
    position: dict[str, PositionBias]
    length: dict[str, LengthPreference]
    differences: list[PairedDifference]
    by: dict[str, dict[str, dict[str, VerdictAgreement]]]


def preference_audit(sample: Preferences) -> PreferenceAudit:
    """Everything a report says about pairwise preferences. Judges asked in both orders count by `both_orders`."""
    group = group_numbers(sample.group)
    people = majority(list(sample.people.values()))
    judges = {name: both_orders(orders) for name, orders in sample.judges.items()}
    rated = people != UNASKED
    commonest = np.bincount(people[rated], minlength=_LABELS).argmax()
    baselines: dict[str, Codes] = {CONSTANT: np.full(len(people), commonest, dtype=np.int8)}
    length: dict[str, LengthPreference] = {}
    if sample.length_a is not None and sample.length_b is not None:
        baselines[LONGER] = longer(sample.length_a, sample.length_b)
        for name, judge in judges.items():
            length[name] = length_preference(people, judge, sample.length_a, sample.length_b, group)
    raters = list(sample.people.values())
    alike = {name: against_raters(raters, judge, group) for name, judge in judges.items()} if len(raters) > 1 else {}
    ties = _Wanted(_share(np.arange(_LABELS) == TIE, np.ones(_LABELS, dtype=bool)), "no items", share=True)
    return PreferenceAudit(
        items=len(people),
        rated=int(rated.sum()),
        groups=len(np.unique(group[rated])),
        raters=len(sample.people),
        people_ties=_estimates(people[rated].astype(np.intp), _LABELS, group[rated], {"": ties})[""],
        agreement={name: verdict_agreement(people, judge, group) for name, judge in judges.items()},
        baselines={name: verdict_agreement(people, judge, group) for name, judge in baselines.items()},
        ceiling=raters_agreement(raters, group),
        as_a_rater={name: found for name, found in alike.items() if found},
        matrix=_matrix_of_all(people, sample, judges, group),
        position={name: position_bias(orders, group) for name, orders in sample.judges.items() if orders.ndim == 2},
        length=length,
        differences=_all_differences(people, judges, baselines, group),
        by={
            name: {part: breakdown(people, judge, group, values) for part, values in sample.parts.items()}
            for name, judge in judges.items()
        },
    )


def _matrix_of_all(people: Codes, sample: Preferences, judges: Mapping[str, Codes], group: Integers) -> Matrix:
    raters = sample.people if len(sample.people) > 1 else {}
    found = matrix({PEOPLE: people, **raters, **judges}, group, sample.parts)

    def apart(pairs: list[PairAgreement]) -> list[PairAgreement]:
        return [pair for pair in pairs if pair.first != PEOPLE or pair.second not in raters]

    by = {part: {value: apart(pairs) for value, pairs in values.items()} for part, values in found.by.items()}
    return Matrix(overall=apart(found.overall), by=by)


def _all_differences(
    people: Codes, judges: Mapping[str, Codes], baselines: Mapping[str, Codes], group: Integers
) -> list[PairedDifference]:
    pairs = [*combinations(judges, 2), *((judge, baseline) for judge in judges for baseline in baselines)]
    verdicts = {**judges, **baselines}
    return [paired_difference(people, verdicts[one], verdicts[other], group, (one, other)) for one, other in pairs]
