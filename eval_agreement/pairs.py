"""Agreement metrics as functions of sums over pairs of scores, for a sample and all its resamples at once.

Mean error, moments and shares are means of a function of both scores. Rank correlations are computed from a table that
counts each pair of values. If people or the judge use too many different values for the table, neighbouring values
share a row or column. The deviations of the resamples from the sample are then added to the sample's exact value.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from critic.stats.arrays import Floats, ratio

Ranks = NDArray[np.intp]
OfPairs = Callable[[Floats, Floats], Floats]
"""A function from human and judge scores, arrays of one shape, to one number per pair."""

_DUST = 1e-9

_CELLS, _SIDE = 1024, 32
"""Largest number of cells in a table of counts; number of rows and of columns if people and judge use many values."""


class Cells:
    """A sample of pairs of scores (human, judge), grouped into C cells: the rows with the same pair are one cell.

    `human`, `judge` (C,): the scores of each cell. `by_unit` (C, U): number of the cell's rows in each of U resampling
    units (groups). `once` (U, 1): draw counts that take every unit once, which is the sample itself. The arguments have
    the same meaning, but may hold a pair in several rows.
    """

    def __init__(self, human: Floats, judge: Floats, by_unit: Any, once: Floats) -> None:
        ranks = [np.unique(side, return_inverse=True)[1] for side in (human, judge)]
        many = [int(rank.max()) + 1 for rank in ranks]
        # One number per pair of ranks, so that equal pairs are found by a single sort.
        _, first, cell = np.unique(ranks[0] * many[1] + ranks[1], return_index=True, return_inverse=True)
        self.human, self.judge, self.ranks = human[first], judge[first], [rank[first] for rank in ranks]
        self.by_unit = _added_up(cell, len(first)) @ by_unit
        self.weight: Floats = np.asarray(self.by_unit @ once)[:, 0]
        most = [max(_SIDE, _CELLS // count) for count in reversed(many)]
        self.coarse = many[0] > most[0] or many[1] > most[1]
        rows, columns = (self._levels(rank, levels) for rank, levels in zip(self.ranks, most, strict=True))
        self.shape = int(rows.max()) + 1, int(columns.max()) + 1
        self.table = _added_up(rows * self.shape[1] + columns, self.shape[0] * self.shape[1]) @ self.by_unit
        human_mean, judge_mean = (self.weight @ side / self.weight.sum() for side in (self.human, self.judge))
        # Centred at the sample's means, so that the differences of squares below lose no digits.
        self.centred: tuple[OfPairs, ...] = (
            lambda human, _: human - human_mean,
            lambda _, judge: judge - judge_mean,
            lambda human, _: (human - human_mean) ** 2,
            lambda _, judge: (judge - judge_mean) ** 2,
            lambda human, judge: (human - human_mean) * (judge - judge_mean),
        )
        self._columns: dict[OfPairs, Floats] = {}

    def _levels(self, rank: Ranks, most: int) -> Ranks:
        """Map the rank of each value to its row (or column) in the contingency table, from 0 to `most` - 1.

        Ranks and rows have the shape of `rank`. With more than `most` values, neighbouring values share a row.
        """
        if rank.max() < most:
            return rank
        # Quantiles, not equal steps: every row of the table then holds about as many pairs.
        counts = np.bincount(rank, self.weight)
        middle = (np.cumsum(counts) - counts / 2) / counts.sum()
        return np.unique(np.floor(middle * most), return_inverse=True)[1][rank]

    def column(self, of: OfPairs) -> Floats:
        """Evaluate `of` on all pairs, and return its sum per resampling unit, shape (U,)."""
        if of not in self._columns:
            self._columns[of] = np.asarray(of(self.human, self.judge) @ self.by_unit, dtype=np.float64)
        return self._columns[of]


def _added_up(target: Ranks, targets: int) -> Any:
    """Build the matrix (targets, n) that sums n rows into `targets` rows; row i goes into row target[i].

    >>> (_added_up(np.array([0, 1, 0]), targets=2) @ np.array([1.0, 2.0, 4.0])).tolist()
    [5.0, 2.0]
    """
    return scipy.sparse.csr_array(
        (np.ones(len(target)), (target, np.arange(len(target)))), shape=(targets, len(target))
    )


class PairSums:
    """Sums over the pairs of R samples: resamples, or the sample itself. No sample is empty.

    `drawn` (U, R): how often each resampling unit of `cells` occurs in each sample.
    """

    def __init__(self, cells: Cells, drawn: Floats) -> None:
        self._cells, self._drawn = cells, drawn

    def mean(self, of: OfPairs) -> Floats:
        """Return the mean of `of` (a function of both scores) over the pairs of each sample, (R,)."""
        return self._cells.column(of) @ self._drawn / self.size

    @cached_property
    def size(self) -> Floats:
        """Number of pairs of each sample, or their weight, (R,)."""
        return np.asarray(self._cells.by_unit.sum(axis=0)) @ self._drawn

    @cached_property
    def table(self) -> Floats:
        """Number of pairs with each human and judge value, (K, L, R), values ascending."""
        return np.asarray(self._cells.table @ self._drawn).reshape(*self._cells.shape, -1)

    @cached_property
    def margins(self) -> tuple[Floats, Floats]:
        """Number of pairs with each human value, (K, R), and with each judge value, (L, R)."""
        return self.table.sum(axis=1), self.table.sum(axis=0)

    @cached_property
    def varied(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Masks of the samples whose human scores, and whose judge scores, are not all the same, (R,) each."""
        human, judge = ((margin > 0).sum(axis=0) > 1 for margin in self.margins)
        return human, judge

    @cached_property
    def moments(self) -> tuple[Floats, Floats, Floats]:
        """Variances of human and judge scores, and their covariance, (R,) each.

        A constant side has variance exactly 0.
        """
        human, judge, human_square, judge_square, product = (self.mean(of) for of in self._cells.centred)
        human_variance = np.where(self.varied[0], human_square - human**2, 0.0)
        judge_variance = np.where(self.varied[1], judge_square - judge**2, 0.0)
        return human_variance, judge_variance, product - human * judge

    @cached_property
    def within(self) -> Floats:
        """Three sums over each sample, (3, R): squared human deviations, squared judge deviations, and their products.

        A deviation is a score minus the mean score of its resampling unit. With a single unit the sums of squares are
        0, because its deviations are those from the sample's mean.
        """
        size = np.asarray(self._cells.by_unit.sum(axis=0))
        human, judge, *products = (self._cells.column(of) for of in self._cells.centred)
        means = (human**2, judge**2, human * judge)
        apart = np.stack([product - mean / size for product, mean in zip(products, means, strict=True)])
        # What a constant side leaves are rounding errors.
        apart[:2] = np.where((apart[:2] > _DUST * size) & (len(size) > 1), apart[:2], 0.0)
        return np.asarray(apart @ self._drawn)

    def correlation(self, top: Floats, left: Floats, right: Floats) -> Floats:
        """Compute top / sqrt(left right), clipped to -1..1; NaN for samples with a constant side."""
        values = ratio(top, np.sqrt(np.maximum(left, 0) * np.maximum(right, 0)))
        return np.where(self.varied[0] & self.varied[1], np.clip(values, -1, 1), np.nan)


def pearson(sums: PairSums) -> Floats:
    """Compute Pearson's r of each sample, (R,)."""
    human, judge, covariance = sums.moments
    return sums.correlation(covariance, human, judge)


def pearson_within(sums: PairSums) -> Floats:
    """Compute Pearson's r of the deviations from the group's means, pooled over the groups, of each sample, (R,).

    It is how well a judge tells the answers to one question apart; the difficulty of questions does not count.
    """
    human, judge, product = sums.within
    return np.clip(ratio(product, np.sqrt(human * judge)), -1, 1)


def spearman(sums: PairSums) -> Floats:
    """Compute Spearman's correlation of each sample, (R,): Pearson's r of the average ranks in the table."""
    # The average rank of a value is the count of lower ones plus half its own; centred by half of all.
    human, judge = (np.cumsum(margin, axis=0) - margin / 2 - sums.size / 2 for margin in sums.margins)
    squares = [(margin * rank**2).sum(axis=0) for margin, rank in zip(sums.margins, (human, judge), strict=True)]
    product = np.zeros(len(sums.size))
    for row, rank in zip(sums.table, human, strict=True):
        product += (row * judge).sum(axis=0) * rank
    return sums.correlation(product, *squares)


def kendall(sums: PairSums) -> Floats:
    """Compute Kendall's tau-b of each sample from its table, (R,) (Kendall 1945).

    It is the number of concordant minus discordant pairs, divided by the geometric mean of the number of pairs with
    different human scores and the number of pairs with different judge scores.
    """
    balance, lead = np.zeros(len(sums.size)), np.zeros_like(sums.margins[1])
    for row in sums.table:
        # For each judge value, `lead` counts the answers with a lower human score whose judge score is lower, less
        # those whose judge score is higher. Of this row's answers, up_to - row lie below a value and up_to[-1] - up_to
        # above it.
        balance += (row * lead).sum(axis=0)
        up_to = row.cumsum(axis=0)
        lead += 2 * up_to - row - up_to[-1]
    human, judge = (sums.size**2 - (margin**2).sum(axis=0) for margin in sums.margins)
    return sums.correlation(2 * balance, human, judge)


def exact_spearman(cells: Cells) -> float:
    """Compute Spearman's correlation of a sample without a coarse table. Both sides must vary."""
    total, ranks = cells.weight.sum(), []
    for rank in cells.ranks:
        counts = np.bincount(rank, cells.weight)
        ranks.append((np.cumsum(counts) - counts / 2 - total / 2)[rank])
    human, judge = ranks
    product, *squares = (float(cells.weight @ values) for values in (human * judge, human**2, judge**2))
    return product / float(np.sqrt(squares[0] * squares[1]))


def exact_kendall(cells: Cells) -> float:
    """Compute Kendall's tau-b of a sample without a coarse table, also of weighted rows. Both sides must vary.

    A pair of rows counts by the product of their weights. Discordant pairs are inversions of the judge's ranks in the
    order of people's. Two ranks are compared at the highest bit in which they differ, so that each bit takes one pass.
    """
    human, judge = cells.ranks
    order = np.lexsort((judge, human))
    rank, weight = judge[order], cells.weight[order]
    discordant = 0.0
    for bit in range(int(rank.max()).bit_length()):
        # Stable, so that ranks with the same higher bits stay in the order of people's scores.
        order = np.argsort(rank >> (bit + 1), kind="stable")
        higher, is_high = rank[order] >> (bit + 1), rank[order] >> bit & 1
        above = np.append(0.0, np.cumsum(weight[order] * is_high))
        start = np.searchsorted(higher, higher)
        discordant += float((weight[order] * (1 - is_high)) @ (above[:-1] - above[start]))
    total = cells.weight.sum() ** 2
    ties = [float((np.bincount(side, cells.weight) ** 2).sum()) for side in (human, judge)]
    # Twice the weight of the pairs that differ on both sides, less four times that of the discordant ones.
    top = total - sum(ties) + float(cells.weight @ cells.weight) - 4 * discordant
    return float(top / np.sqrt((total - ties[0]) * (total - ties[1])))


def around(exact: float, values: Floats) -> Floats:
    """Correct a correlation that was computed from a coarse table, so that the sample's value is `exact`.

    `values` (1 + resamples,): the sample's value, then the resamples'. Coarse ties raise a correlation r, and its
    standard error is proportional to 1 - r² (Fisher 1915). The resamples' deviations from the sample are therefore
    widened in this proportion.

    >>> around(0.5, np.array([0.5, 0.6, 0.4])).round(2).tolist()
    [0.5, 0.6, 0.4]
    """
    coarse = float(values[0])
    wider = max(1.0, (1 - exact**2) / (1 - coarse**2)) if coarse**2 < 1 else 1.0
    return np.asarray(np.clip(exact + (values - coarse) * wider, -1, 1))
