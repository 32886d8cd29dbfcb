"""What pulls a judge's preferences between two answers: their places and lengths; and which of two judges is closer to
people. All from counts of verdicts, as in `critic.counting.verdicts`."""

import numpy as np
from msgspec import Struct

from critic.counting.arrays import Floats, Group, group_numbers, ratio
from critic.counting.estimate import Estimate
from critic.counting.verdicts import (
    CODES,
    DECIDED,
    EQUAL,
    EVERY,
    FAILED,
    FIRST,
    LABELS,
    SECOND,
    TIE,
    UNASKED,
    A,
    B,
    Codes,
    Statistic,
    VerdictStatistic,
    estimates,
    failures,
    kappa,
    labelled,
    share_of,
)


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
    members = group_numbers(group)
    a_first, b_first = orders.T
    both = labelled(a_first, b_first)
    cell = a_first[both].astype(np.intp) * LABELS + b_first[both]
    flips = estimates(cell, LABELS**2, members[both], _FLIPS)
    given = (orders < LABELS).any(axis=1)
    verdicts = a_first[given].astype(np.intp) * len(CODES) + b_first[given]
    return PositionBias(
        failed_items=failures(a_first, b_first),
        failed_verdicts=int((orders == FAILED).sum()),
        first_place=estimates(verdicts, len(CODES) ** 2, members[given], {"": _FIRST_PLACE})[""],
        **flips,
    )


_FLIPS = {
    name: VerdictStatistic(share_of(cells, EVERY), "no items", share=True)
    for name, cells in {
        "flips": ~EQUAL,
        "stays_first": (FIRST == A) & (SECOND == B),
        "stays_second": (FIRST == B) & (SECOND == A),
        "to_tie": ~EQUAL & ~DECIDED,
    }.items()
}


def _first_place(counts: Floats) -> tuple[Floats, Floats]:
    """Of counts by the codes of both orders, shape (25, r)."""
    table = counts.reshape(len(CODES), len(CODES), -1)
    a_first, b_first = table.sum(axis=1)[:LABELS], table.sum(axis=0)[:LABELS]
    shares = [ratio(a_first[A], a_first[A] + a_first[B]), ratio(b_first[B], b_first[A] + b_first[B])]
    return (shares[0] + shares[1] - 1) / 2, a_first[A] + a_first[B] + b_first[A] + b_first[B]


_FIRST_PLACE = VerdictStatistic(
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
    rows = differ & labelled(people, judge)
    # Said of the longer and the shorter answer instead of a and b: a is code 0, b is code 2.
    longer_is_b = (length_b > length_a)[rows]
    by_people, by_judge = (np.where(longer_is_b, B - column[rows], column[rows]) for column in (people, judge))
    cell = by_people.astype(np.intp) * LABELS + by_judge
    found = estimates(cell, LABELS**2, group_numbers(group)[rows], _LENGTH)
    return LengthPreference(failed=failures(people[differ], judge[differ]), **found)


def _difference(first: Statistic, second: Statistic) -> Statistic:
    """first - second, which are about the same items."""

    def statistic(counts: Floats) -> tuple[Floats, Floats]:
        (minuend, n), (subtrahend, _) = first(counts), second(counts)
        return minuend - subtrahend, n

    return statistic


_PEOPLE_LONGER, _JUDGE_LONGER = share_of(FIRST == A, DECIDED), share_of(SECOND == A, DECIDED)
_NONE_DECIDED = "one side or the other says tie on every item"
_LENGTH = {
    "judge": VerdictStatistic(_JUDGE_LONGER, _NONE_DECIDED, share=True),
    "people": VerdictStatistic(_PEOPLE_LONGER, _NONE_DECIDED, share=True),
    "difference": VerdictStatistic(_difference(_JUDGE_LONGER, _PEOPLE_LONGER), _NONE_DECIDED, p_value=True),
    "at_ties": VerdictStatistic(
        share_of(SECOND == A, (FIRST == TIE) & (SECOND != TIE)),
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
    people: Codes,
    first: Codes,
    second: Codes,
    group: Group,
    names: tuple[str, str] = ("first", "second"),
    weight: Floats | None = None,
) -> PairedDifference:
    """The difference of two judges' accuracy and kappa in the same resamples; arrays of shape (n,). `weight` as in
    `verdict_agreement`: the difference is that of what it says of both."""
    columns = np.stack([people, first, second])
    rows = (columns < LABELS).all(axis=0)
    failed = (columns != UNASKED).all(axis=0) & ~rows
    place = columns[:, rows].astype(np.intp)
    cell = (place[0] * LABELS + place[1]) * LABELS + place[2]
    times = None if weight is None else weight[rows]
    found = estimates(cell, LABELS**3, group_numbers(group)[rows], _DIFFERENCES, times)
    return PairedDifference(first=names[0], second=names[1], failed=int(failed.sum()), **found)


def _against_people(statistic: Statistic, judge: int) -> Statistic:
    """A statistic of tables (people, judge), for one of two judges (1 or 2) of tables (people, judge, judge)."""

    def of_three(counts: Floats) -> tuple[Floats, Floats]:
        tables = counts.reshape(LABELS, LABELS, LABELS, -1).sum(axis=3 - judge)
        return statistic(tables.reshape(LABELS**2, -1))

    return of_three


_DIFFERENCES = {
    name: VerdictStatistic(
        _difference(_against_people(statistic, 1), _against_people(statistic, 2)), undefined, p_value=True
    )
    for name, statistic, undefined in [
        ("accuracy", share_of(EQUAL, EVERY), "no items"),
        ("kappa", kappa, "people and a judge give every item the same verdict"),
    ]
}
