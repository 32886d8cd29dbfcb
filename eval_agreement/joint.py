"""The metrics of resamples, from joint tables of counts: no pair is touched again.

Every metric depends on a sample only through its table of counts (human value x judge value), and the table of a
resample is a weighted sum of the groups' tables. Where a table would be too large, `sorted_pairs` says the same.
"""

from collections.abc import Callable, Iterator
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from critic.counting.coded import Coded
from critic.counting.resampling import (
    Codes,
    Drawn,
    Floats,
    Resamples,
    counted,
    totals_of,
)
from eval_agreement.metrics import (
    METRICS,
    OfPairs,
    PairCounts,
    values_of_pairs,
)
from eval_agreement.rank_product import RankProduct
from eval_agreement.sorted_pairs import SortedPairs

_DUST = 1e-9
_MOST_CELLS = 2000
"""Larger tables are slower than `SortedCounts`."""

_SAME = 1e-11

_AT_ONCE = 1 << 12
"""Groups up to which all sums over them are products with one matrix."""

_NEAR, _FEW = 80, 256
"""Resamples and groups of which as many are worked on at a time as the processor's cache holds."""

_MANY_ROWS = 100_000
"""From so many rows on a table of counts gives a metric sooner than the pairs do."""


def values_of(human: Coded, judge: Coded, weight: Floats | None = None) -> dict[str, float | None]:
    """Every metric of one sample, n scores each, by name; None where it is undefined. `weight` as in `measured`."""
    if not len(human) or (weight is None and (len(human) < _MANY_ROWS or _cells(human, judge) > _MOST_CELLS)):
        return values_of_pairs(human, judge)
    counts: PairCounts
    if weight is None:
        table = counted(_cell(human, judge), _cells(human, judge)).astype(np.float64)
        counts = TableCounts(human.values, judge.values, table[:, None])
    else:
        (counts,) = _blocks(human, judge, _AsTheyAre(len(human)), weight / weight.mean())
    values = {name: float(metric.of_counts(counts)[0]) for name, metric in METRICS.items()}
    return {name: None if np.isnan(value) else value for name, value in values.items()}


def _cell(human: Coded, judge: Coded) -> Codes:
    """The cell of each row in the table of counts."""
    cell = human.code.astype(np.min_scalar_type(_cells(human, judge)))
    cell *= cell.dtype.type(len(judge.values))
    cell += judge.code
    return cell


def _cells(human: Coded, judge: Coded) -> int:
    return len(human.values) * len(judge.values)


class _AsTheyAre(Resamples):
    """The rows once each."""

    def __init__(self, rows: int) -> None:
        super().__init__(np.zeros(rows, dtype=np.int32), 1)


def resampled(human: Coded, judge: Coded, draws: Resamples, weight: Floats | None = None) -> dict[str, Floats]:
    """Every metric of each resample, by name: shape (resamples,) each, NaN where undefined.

    `human` and `judge` are the n scores of the rows that `draws` were made for.
    """
    weight = None if weight is None else weight / weight.mean()
    found = [[metric.of_counts(one) for metric in METRICS.values()] for one in _blocks(human, judge, draws, weight)]
    return {name: np.concatenate(values) for name, values in zip(METRICS, zip(*found, strict=True), strict=True)}


def _blocks(human: Coded, judge: Coded, draws: Resamples, weight: Floats | None) -> Iterator[PairCounts]:
    if (cells := _cells(human, judge)) <= _MOST_CELLS:
        tables = draws.tables(_cell(human, judge), cells, weight)
        return (TableCounts(human.values, judge.values, table) for table in tables)
    pairs = SortedPairs(np.asarray(human), np.asarray(judge), draws.member, weight)
    ranks = cache(partial(RankProduct, pairs.sides, draws.member, pairs.groups, weight))
    return (SortedCounts(pairs, ranks, part) for part in pairs.parts(draws.drawn()))


class TableCounts(PairCounts):
    """Samples as tables of counts, shape (K x L, R), over K human and L judge values, ascending."""

    def __init__(self, people: Floats, judged: Floats, flat: Floats) -> None:
        self._people, self._judged = people, judged
        self._flat, self._tables = flat, flat.reshape(len(people), len(judged), -1)
        self._human, self._judge = self._tables.sum(axis=1), self._tables.sum(axis=0)

    def total(self, of: OfPairs) -> Floats:
        values = of(*np.broadcast_arrays(self._people[:, None], self._judged))
        return np.asarray(values.ravel() @ self._flat)

    @cached_property
    def size(self) -> Floats:
        return np.asarray(self._human.sum(axis=0))

    @cached_property
    def varied(self) -> NDArray[np.bool_]:
        return np.asarray(((self._human > 0).sum(axis=0) > 1) & ((self._judge > 0).sum(axis=0) > 1))

    @cached_property
    def moments(self) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
        return _moments(self._people, self._human), _moments(self._judged, self._judge)

    @cached_property
    def _ranks(self) -> tuple[Floats, Floats]:
        return _centred_ranks(self._human), _centred_ranks(self._judge)

    @property
    def rank_squares(self) -> tuple[Floats, Floats]:
        human, judge = self._ranks
        return (self._human * human**2).sum(axis=0), (self._judge * judge**2).sum(axis=0)

    @property
    def ties(self) -> tuple[Floats, Floats]:
        return (self._human**2).sum(axis=0), (self._judge**2).sum(axis=0)

    @cached_property
    def _short(self) -> tuple[Floats, Floats, Floats]:
        """The tables with the side of fewer values first, and the ranks of that side and of the other: what ranks and
        concordance say is the same with people and judge swapped, and their loops are over the first side."""
        human, judge = self._ranks
        return (self._tables, human, judge) if len(human) <= len(judge) else (self._tables.swapaxes(0, 1), judge, human)

    @property
    def rank_product(self) -> Floats:
        tables, first, second = self._short
        found = np.zeros(len(self.size))
        for table, rank in zip(tables, first, strict=True):
            found += (table * second).sum(axis=0) * rank
        return found

    @property
    def balance(self) -> Floats:
        """Row by row, values ascending. `lead` says for each value of the other side how many pairs of earlier rows lie
        below it, less those above: with a pair at that value these are the concordant and the discordant ones."""
        tables, _, second = self._short
        found, lead = np.zeros(len(self.size)), np.zeros_like(second)
        for table in tables:
            found += (table * lead).sum(axis=0)
            up_to = table.cumsum(axis=0)
            # Below a value lie up_to - table, above it what is left of the row: up_to[-1] - up_to.
            lead += 2 * up_to - table - up_to[-1]
        return found


def _moments(values: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Of each column of `counts` (K, R); the variance from distances, so that nothing cancels."""
    size = counts.sum(axis=0)
    mean = values @ counts / size
    return mean, ((values[:, None] - mean) ** 2 * counts).sum(axis=0) / size


def _centred_ranks(counts: Floats) -> Floats:
    """Average ranks less their mean, shape (K, R), of K ascending values that occur `counts` times."""
    return np.asarray(np.cumsum(counts, axis=0) - (counts + counts.sum(axis=0)) / 2)


class SortedCounts(PairCounts):
    """Samples of sorted pairs, from how often each group was drawn: shape (R, G)."""

    def __init__(self, pairs: SortedPairs, ranks: Callable[[], RankProduct], drawn: Drawn) -> None:
        self._pairs, self._ranks, self._drawn = pairs, ranks, drawn
        self._turned = np.zeros((drawn.shape[1] + 1, len(drawn)), dtype=np.uint8)
        self._turned[:-1] = drawn.T
        self._sums = self._totals(pairs.sums)
        values = self._sums[: pairs.start] if pairs.start else self._totals(pairs.values)
        self._values = values[: pairs.rows], values[pairs.rows :]

    def _totals(self, by_group: Any) -> Floats:
        """The sums of what the drawn groups add, (k, G) -> (k, R)."""
        groups = self._drawn.shape[1]
        if groups > _AT_ONCE or not isinstance(by_group, np.ndarray):
            return np.ascontiguousarray(totals_of(self._drawn, by_group).T)
        found, times = np.empty((len(by_group), len(self._drawn))), np.empty((groups, _NEAR))
        for start in range(0, len(self._drawn), _NEAR):
            into = found[:, start : start + _NEAR]
            part = times[:, : into.shape[1]]
            part[:] = self._turned[:-1, start : start + _NEAR]
            into[:] = by_group @ part
        return found

    def total(self, of: OfPairs) -> Floats:
        place = self._pairs.place(of)
        if place >= len(self._sums):
            self._sums = np.concatenate([self._sums, self._totals(self._pairs.sums[len(self._sums) :])])
        return np.asarray(self._sums[place])

    @cached_property
    def size(self) -> Floats:
        return np.asarray(self._sums[self._pairs.start])

    @property
    def varied(self) -> NDArray[np.bool_]:
        return np.logical_and(*self._several)

    @cached_property
    def _several(self) -> list[NDArray[np.bool_]]:
        """Whether the rows and the columns of a sample have several values each."""
        # A constant has the cube of all pairs, whatever else a little less.
        return [cubed < (1 - _SAME) * self.size**3 for _, cubed in self._powers]

    @cached_property
    def moments(self) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
        human, judge, *squares = self._sums[self._pairs.start + 1 :][:4] / self.size
        varied = self._several[::-1] if self._pairs.swapped else self._several
        variances = [
            np.where(several, square - (mean - centre) ** 2, 0.0)
            for several, square, mean, centre in zip(varied, squares, (human, judge), self._pairs.centre, strict=True)
        ]
        return (human, variances[0]), (judge, variances[1])

    @property
    def rank_squares(self) -> tuple[Floats, Floats]:
        """Which of the two is whose does not matter to their product."""
        rows, columns = ((self.size**3 - cubed) / 12 for _, cubed in self._powers)
        return rows, columns

    @property
    def rank_product(self) -> Floats:
        product = self._ranked[1]
        return self._ranks().product(self._turned, self.size) if product is None else product

    @property
    def ties(self) -> tuple[Floats, Floats]:
        (rows, _), (columns, _) = self._powers
        return rows, columns

    @property
    def balance(self) -> Floats:
        return self._ranked[0]

    @cached_property
    def _ranked(self) -> tuple[Floats, Floats | None]:
        return self._pairs.ranked(self._turned, self.size)

    @cached_property
    def _powers(self) -> list[tuple[Floats, Floats]]:
        """How often each value of the rows and of the columns occurs, squared and cubed, summed: where it occurs once
        in all, that is how often its group was drawn."""
        kind: Any = np.float32 if self._pairs.exact(int(self._drawn.max())) else np.float64
        alone = np.zeros((4, len(self.size)))
        for start in range(0, self._drawn.shape[1], _FEW):
            times = self._pairs.alone[:, start : start + _FEW].astype(kind)
            drawn = self._turned[start : start + times.shape[1]].astype(kind)
            power: NDArray[Any] = drawn * drawn
            alone[::2] += times[::2] @ power
            power *= drawn
            alone[1::2] += times[1::2] @ power
        squared, cubed = ([(values**power).sum(axis=0) for values in self._values] for power in (2, 3))
        return [(squared[0] + alone[0], cubed[0] + alone[1]), (squared[1] + alone[2], cubed[1] + alone[3])]
