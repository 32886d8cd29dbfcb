"""Three-way verdicts (a, tie, b), and how often two judges, or a judge and people, agree.

Yes/no verdicts are coded as a and b, without ties. Every statistic depends on a sample only through counts of verdicts,
so intervals come from resampled tables of counts. Kappa: Cohen 1960.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from critic.stats.arrays import Floats, Group, group_numbers, ratio
from critic.stats.estimate import Bootstrap, Estimate, span_both

Codes = NDArray[np.int8]
Label = Literal["a", "tie", "b", "failed"]

A, TIE, B, FAILED, UNASKED = range(5)
"""Codes of verdicts in arrays; the first three are labels. FAILED: requested, but no verdict could be read."""

CODES: dict[str | None, int] = {"a": A, "tie": TIE, "b": B, "failed": FAILED, None: UNASKED}
LABELS = 3
"""The number of codes that are labels."""


def codes(verdicts: Iterable[Label | None]) -> Codes:
    """Encode verdicts: "a", "tie", "b", "failed" (requested, unreadable), None (not requested).

    >>> codes(["a", "tie", None, "failed"]).tolist()
    [0, 1, 4, 3]
    """
    return np.array([CODES[verdict] for verdict in verdicts], dtype=np.int8)


def both_orders(orders: Codes) -> Codes:
    """Merge a judge's verdicts in both presentation orders, shape (n, 2), into one per item, shape (n,).

    An array of shape (n,) is returned unchanged. Two different verdicts are a tie. If only one order was requested, its
    verdict counts. A failure in either order is a failure, because half an answer is not a tie.

    >>> every = np.array([(first, second) for first in range(5) for second in range(5)])  # A, TIE, B, FAILED, UNASKED
    >>> both_orders(every).reshape(5, 5).tolist()
    [[0, 1, 1, 3, 0], [1, 1, 1, 3, 1], [1, 1, 2, 3, 2], [3, 3, 3, 3, 3], [0, 1, 2, 3, 4]]
    >>> both_orders(np.arange(5)).tolist()
    [0, 1, 2, 3, 4]
    """
    if orders.ndim == 1:
        return orders
    a_first, b_first = orders.T
    verdict = np.where(a_first == b_first, a_first, TIE)
    # A second request may be missing on purpose (half as many calls), which is no failure.
    verdict = np.where(a_first == UNASKED, b_first, verdict)
    verdict = np.where(b_first == UNASKED, a_first, verdict)
    return np.where((orders == FAILED).any(axis=1), FAILED, verdict).astype(np.int8)


def majority(raters: Sequence[Codes]) -> Codes:
    """Return each item's majority label among raters: TIE without a majority, UNASKED if nobody labelled it.

    >>> labels = {"a": "a", "t": "tie", "b": "b", "-": None}
    >>> raters = [codes(labels[letter] for letter in column) for column in ("aaaab-t", "aabbb--", "ab-tt--", "bbtta-b")]
    >>> majority(raters).tolist()  # of a a a b, a a b b, a b - t, a b t t, b b t a, - - - - and t - - b
    [0, 1, 1, 1, 1, 4, 1]
    """
    codes = np.stack(raters)
    votes = (codes < LABELS).sum(axis=0)
    for_a, for_b = (2 * (codes == label).sum(axis=0) > votes for label in (A, B))
    return np.select([votes == 0, for_a, for_b], [UNASKED, A, B], default=TIE).astype(np.int8)


def labelled(first: Codes, second: Codes) -> NDArray[np.bool_]:
    """Return a mask, shape (n,), of the items that have a label from both sides."""
    return (first < LABELS) & (second < LABELS)


def failures(first: Codes, second: Codes) -> int:
    """Count the items that both sides were asked about and on which at least one side failed."""
    both_asked = (first != UNASKED) & (second != UNASKED)
    return int((both_asked & ~labelled(first, second)).sum())


def kappa(counts: Floats) -> Floats:
    """Return Cohen's kappa of r tables, shape (r,); NaN if both sides always give the same single label.

    `counts`, shape (9, r): the number of items per pair of labels, in the order of FIRST and SECOND.
    """
    table = counts.reshape(LABELS, LABELS, -1)
    n = counts.sum(axis=0)
    chance = (table.sum(axis=0) * table.sum(axis=1)).sum(axis=0)
    return ratio(n * np.einsum("iir->r", table) - chance, n**2 - chance)


FIRST, SECOND = np.divmod(np.arange(LABELS**2), LABELS)
"""The first and the second side's label in each of a table's nine cells.

EQUAL marks the cells with equal labels, DECIDED the cells in which neither label is a tie.
"""
EQUAL = FIRST == SECOND
DECIDED = (FIRST != TIE) & (SECOND != TIE)


class VerdictAgreement(Struct, frozen=True, kw_only=True):
    """Agreement between a judge and people over the `n` items on which both have a verdict.

    - `failed`, `unasked`: numbers of items that people labelled but on which the judge failed, or was not asked.
    - `accuracy`: the share (0..1) of equal verdicts, over all three labels.
    - `decided`: the share of equal verdicts over items on which neither says tie. `coverage`: the share of such items.
    - `kappa`: Cohen's kappa over three labels (-1..1).
    - `table`: counts of items, with a row per label of people and a column per label of the judge, in the order a, tie,
      b.
    """

    n: int
    failed: int
    unasked: int
    table: list[list[int]]
    accuracy: Estimate
    decided: Estimate
    coverage: Estimate
    kappa: Estimate


def verdict_agreement(people: Codes, judge: Codes, group: Group, weight: Floats | None = None) -> VerdictAgreement:
    """Return the agreement of the judge with people over the items that both labelled.

    `people`, `judge`: one code per item, shape (n,).
    `group`: each item's resampling group.
    `weight`, shape (n,): 1 divided by each item's chance of being labelled; None if all chances are equal.

    The interval of accuracy is widened to contain the exact interval of a share (`Bootstrap.exact_share`), because
    resamples of few items or few errors vary too little. The interval of kappa is widened to contain the same exact
    interval, converted to kappa with the agreement by chance of the sample.

    >>> said = {"a": "a", "b": "b", "t": "tie", "f": "failed", "-": None}
    >>> people, judge = (codes(said[letter] for letter in column) for column in ("aabtabtab-t--", "aabtbtaf-af-f"))
    >>> agreement = verdict_agreement(people, judge, range(13))
    >>> agreement.n, agreement.failed, agreement.unasked, agreement.table
    (7, 2, 1, [[2, 0, 1], [1, 1, 0], [0, 1, 1]])
    >>> shares = agreement.accuracy, agreement.decided, agreement.coverage, agreement.kappa
    >>> chance = (3 * 3 + 2 * 2 + 2 * 2) / 49
    >>> np.allclose([share.value for share in shares], [4 / 7, 3 / 4, 4 / 7, (4 / 7 - chance) / (1 - chance)])
    True
    >>> [share.n for share in shares]
    [7, 4, 7, 7]

    Too few groups have no interval, and without items nothing is defined:

    >>> few = verdict_agreement(np.array([A, A, B, B]), np.array([A, A, B, TIE]), [0, 0, 1, 2]).accuracy
    >>> few.value, few.interval
    (0.75, None)
    >>> verdict_agreement(codes([]), codes([]), []).accuracy.undefined
    'no items'
    """
    both = labelled(people, judge)
    cell, draws = people[both].astype(np.intp) * LABELS + judge[both], Bootstrap(group_numbers(group)[both])
    # Normalised to a mean of 1, so that the weighted number of items stays the number of items.
    times = weight[both] / weight[both].mean() if weight is not None and both.any() else None
    counts = np.concatenate(list(draws.tables(cell, LABELS**2, times)), axis=1)
    # Column 0 is the sample, the others its resamples.
    n, decided = counts.sum(axis=0), DECIDED @ counts
    items = round(n[0])
    equal, equal_decided = ratio(EQUAL @ counts, n), ratio((EQUAL & DECIDED) @ counts, decided)
    accuracy = draws.estimate(equal, items, undefined="no items", share=True)
    same = "both sides give every item the same verdict" if items else "no items"
    agreed = draws.estimate(kappa(counts), items, undefined=same, null=0.0)
    # With few items, or few errors, resamples vary too little: without an error not at all.
    if agreed.interval and (exact := draws.exact_share(equal)):
        by_side = counts[:, 0].reshape(LABELS, LABELS) / n[0]
        differ_by_chance = 1 - by_side.sum(axis=0) @ by_side.sum(axis=1)
        low, high = (1 - (1 - end) / differ_by_chance for end in exact)
        accuracy, agreed = span_both(accuracy, exact), span_both(agreed, (max(low, -1.0), high))
    no_decision = "one side or the other says tie on every item" if items else "no items"
    return VerdictAgreement(
        n=len(cell),
        failed=failures(people, judge),
        unasked=int(((people != UNASKED) & (judge == UNASKED)).sum()),
        table=np.bincount(cell, minlength=LABELS**2).reshape(LABELS, LABELS).tolist(),
        accuracy=accuracy,
        decided=draws.estimate(equal_decided, round(decided[0]), undefined=no_decision, share=True),
        coverage=draws.estimate(ratio(decided, n), items, undefined="no items", share=True),
        kappa=agreed,
    )


def rows_of(part: Sequence[str]) -> dict[str, NDArray[np.intp]]:
    """Return the row numbers (from 0) of each value in `part`, most frequent value first, equal counts by name.

    >>> {value: rows.tolist() for value, rows in rows_of(["zh", "en", "en"]).items()}
    {'en': [1, 2], 'zh': [0]}
    """
    values, number, sizes = np.unique(np.array(part, dtype=object), return_inverse=True, return_counts=True)
    rows = np.split(np.argsort(number, kind="stable"), np.cumsum(sizes)[:-1])
    order = np.argsort(-sizes, kind="stable")
    return {str(values[index]): rows[index] for index in order}
