"""Agreement of two sides' scores as functions of sums over rows, of a sample and of its resamples.

Mean error, moments and shares are means of a function of both scores; ranks and concordance depend on a table of how
often each pair of values occurs. Where the sides have more values than fit, neighbouring ones share a row of the table,
and what a rank correlation moves by there is added to its exact value on the sample.
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
"""People's and the judge's scores, arrays of one shape, to a number for each pair."""

_CELLS, _SIDE = 1024, 32
"""Cells of a table of counts, and values of a side where both sides have many."""


class Cells:
    """A sample of pairs: rows with the same scores on both sides are one cell, some rows one unit of resampling.
    `human` and `judge`, (C,), are each cell's scores, `by_unit`, (C, U), its rows a unit, `once`, (U, 1), all."""

    def __init__(self, human: Floats, judge: Floats, by_unit: Any, once: Floats) -> None:
        ranks = [np.unique(side, return_inverse=True)[1] for side in (human, judge)]
        many = [int(rank.max()) + 1 for rank in ranks]
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
        self.centred: tuple[OfPairs, ...] = (
            lambda human, _: human - human_mean,
            lambda _, judge: judge - judge_mean,
            lambda human, _: (human - human_mean) ** 2,
            lambda _, judge: (judge - judge_mean) ** 2,
            lambda human, judge: (human - human_mean) * (judge - judge_mean),
        )
        self._columns: dict[OfPairs, Floats] = {}

    def _levels(self, rank: Ranks, most: int) -> Ranks:
        """The row of the table, from 0, of each cell by the rank of its value."""
        if rank.max() < most:
            return rank
        counts = np.bincount(rank, self.weight)
        middle = (np.cumsum(counts) - counts / 2) / counts.sum()
        return np.unique(np.floor(middle * most), return_inverse=True)[1][rank]

    def column(self, of: OfPairs) -> Floats:
        """What each unit adds to the sum of a function: shape (U,)."""
        if of not in self._columns:
            self._columns[of] = np.asarray(of(self.human, self.judge) @ self.by_unit, dtype=np.float64)
        return self._columns[of]


def _added_up(target: Ranks, targets: int) -> Any:
    """The matrix (targets, n) that adds n rows of another matrix up, each into the row that `target` says."""
    return scipy.sparse.csr_array(
        (np.ones(len(target)), (target, np.arange(len(target)))), shape=(targets, len(target))
    )


class PairSums:
    """R samples of pairs, none empty, by how often each unit of the `cells` occurs in each, `drawn` (U, R)."""

    def __init__(self, cells: Cells, drawn: Floats) -> None:
        self._cells, self._drawn = cells, drawn

    def mean(self, of: OfPairs) -> Floats:
        """The mean over pairs of a function of both scores, in each sample: shape (R,)."""
        return self._cells.column(of) @ self._drawn / self.size

    @cached_property
    def size(self) -> Floats:
        """Pairs of each sample, or what they weigh: shape (R,)."""
        return np.asarray(self._cells.by_unit.sum(axis=0)) @ self._drawn

    @cached_property
    def table(self) -> Floats:
        """How often each pair of values occurs, shape (K, L, R), values ascending."""
        return np.asarray(self._cells.table @ self._drawn).reshape(*self._cells.shape, -1)

    @cached_property
    def margins(self) -> tuple[Floats, Floats]:
        """How often each value of people's and of the judge's occurs, shape (K, R) and (L, R)."""
        return self.table.sum(axis=1), self.table.sum(axis=0)

    @cached_property
    def varied(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Whether people's, and the judge's, scores of a sample are not all the same: shape (R,) each."""
        human, judge = ((margin > 0).sum(axis=0) > 1 for margin in self.margins)
        return human, judge

    @cached_property
    def moments(self) -> tuple[Floats, Floats, Floats]:
        """The variance of people's scores, the judge's, and their covariance, (R,) each; a constant's are exactly 0."""
        human, judge, human_square, judge_square, product = (self.mean(of) for of in self._cells.centred)
        human_variance = np.where(self.varied[0], human_square - human**2, 0.0)
        judge_variance = np.where(self.varied[1], judge_square - judge**2, 0.0)
        return human_variance, judge_variance, product - human * judge

    def correlation(self, top: Floats, left: Floats, right: Floats) -> Floats:
        """`top` over the root of `left` times `right`, cut to -1..1; NaN in samples where either side is constant."""
        values = ratio(top, np.sqrt(np.maximum(left, 0) * np.maximum(right, 0)))
        return np.where(self.varied[0] & self.varied[1], np.clip(values, -1, 1), np.nan)


def pearson(sums: PairSums) -> Floats:
    """Pearson's r of each sample."""
    human, judge, covariance = sums.moments
    return sums.correlation(covariance, human, judge)


def spearman(sums: PairSums) -> Floats:
    """Pearson's r of the average ranks in the table of each sample."""
    human, judge = (np.cumsum(margin, axis=0) - margin / 2 - sums.size / 2 for margin in sums.margins)
    squares = [(margin * rank**2).sum(axis=0) for margin, rank in zip(sums.margins, (human, judge), strict=True)]
    product = np.zeros(len(sums.size))
    for row, rank in zip(sums.table, human, strict=True):
        product += (row * judge).sum(axis=0) * rank
    return sums.correlation(product, *squares)


def kendall(sums: PairSums) -> Floats:
    """Tau-b in the table of each sample (Kendall 1945): concordant less discordant over the root of untied pairs."""
    balance, lead = np.zeros(len(sums.size)), np.zeros_like(sums.margins[1])
    for row in sums.table:
        # For each value of the judge's, `lead` is how many answers with lower scores of people lie below it, less those
        # above. Of this row's own, up_to - row lie below a value and up_to[-1] - up_to above.
        balance += (row * lead).sum(axis=0)
        up_to = row.cumsum(axis=0)
        lead += 2 * up_to - row - up_to[-1]
    human, judge = (sums.size**2 - (margin**2).sum(axis=0) for margin in sums.margins)
    return sums.correlation(2 * balance, human, judge)


def exact_spearman(cells: Cells) -> float:
    """Spearman's correlation of a sample whose sides vary, whatever the number of values."""
    total, ranks = cells.weight.sum(), []
    for rank in cells.ranks:
        counts = np.bincount(rank, cells.weight)
        ranks.append((np.cumsum(counts) - counts / 2 - total / 2)[rank])
    human, judge = ranks
    product, *squares = (float(cells.weight @ values) for values in (human * judge, human**2, judge**2))
    return product / float(np.sqrt(squares[0] * squares[1]))


def exact_kendall(cells: Cells) -> float:
    """Kendall's tau-b of a sample whose sides vary; NaN where rows have weights, which SciPy does not know."""
    times = cells.weight.astype(np.intp)
    if (times != cells.weight).any():
        return float("nan")
    human, judge = (np.repeat(rank, times) for rank in cells.ranks)
    return float(scipy.stats.kendalltau(human, judge).statistic)


def around(exact: float, values: Floats) -> Floats:
    """Values of a correlation in a coarse table, the sample's first, moved so that it is `exact`. Coarse ties raise it,
    and a correlation r moves as 1 - r² (Fisher 1915): moves are widened by as much."""
    coarse = float(values[0])
    if np.isnan(exact):
        return values
    wider = max(1.0, (1 - exact**2) / (1 - coarse**2)) if coarse**2 < 1 else 1.0
    return np.asarray(np.clip(exact + (values - coarse) * wider, -1, 1))
