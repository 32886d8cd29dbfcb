"""Agreement of scores as functions of sums over rows: of a sample, and of its resamples, block by block.

Mean error, moments and shares are sums over rows. Ranks and concordance depend on how often each pair of values occurs:
a table of counts, which is a sum over rows as well. Where a side has more values than `_CELLS` allow, its neighbouring
values share a row of the table (some thirty of about equal size); how far a rank metric of this table moves from
resample to resample is then added to its exact value on the sample.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from scipy import sparse

from critic.counting.coded import Coded, chosen, distinct
from critic.counting.estimate import Bootstrap
from critic.counting.resampling import SEED, Estimate, Floats, Group, Interval, group_numbers
from eval_agreement import metrics
from eval_agreement.metrics import METRICS, Agreement, Indices, OfPairs, Scores, no_correlation, paired, same_length

_DUST = 1e-9
_CELLS, _SIDE = 1024, 32
"""Cells of a table of counts, and values of a side where both sides have many."""


class Cells:
    """A sample of pairs: rows with the same scores on both sides are one cell, and some rows one unit of resampling.

    `human` and `judge`, shape (C,), are the scores of each cell, `by_unit`, shape (C, U), how many rows of it each
    unit has, and `weight`, shape (C,), how many there are in the sample.
    """

    def __init__(self, human: Floats, judge: Floats, by_unit: Any, weight: Floats) -> None:
        self.human, self.judge, self.by_unit, self.weight = human, judge, by_unit, weight
        self.ranks = tuple(np.unique(side, return_inverse=True)[1] for side in (human, judge))
        self._columns: dict[OfPairs, Floats] = {}
        values = [int(code.max(initial=0)) + 1 for code in self.ranks]
        most = [max(_SIDE, _CELLS // other) for other in values[::-1]]
        self.coarse = values[0] > most[0] or values[1] > most[1]
        rows, columns = (self._levels(code, many) for code, many in zip(self.ranks, most, strict=True))
        self.shape = int(rows.max(initial=0)) + 1, int(columns.max(initial=0)) + 1
        places = rows * self.shape[1] + columns, np.arange(len(human))
        into = sparse.coo_array((np.ones(len(human)), places), shape=(self.shape[0] * self.shape[1], len(human)))
        self.table = into.tocsr() @ by_unit
        human_mean, judge_mean = self.centre = tuple(float(weight @ side / weight.sum()) for side in (human, judge))
        self.centred: tuple[OfPairs, ...] = (
            lambda human, _: human - human_mean,
            lambda _, judge: judge - judge_mean,
            lambda human, _: (human - human_mean) ** 2,
            lambda _, judge: (judge - judge_mean) ** 2,
        )

    def _levels(self, code: Indices, most: int) -> Indices:
        """A number for each cell by the value it has, 0..most - 1: neighbouring values share one where there are more,
        each about as many rows."""
        if code.max(initial=0) < most:
            return code
        counts = np.bincount(code, self.weight)
        middle = (np.cumsum(counts) - counts / 2) / counts.sum()
        return np.unique(np.floor(middle * most), return_inverse=True)[1][code]

    def column(self, of: OfPairs) -> Floats:
        """What each unit adds to the sum of a function: shape (U,)."""
        if of not in self._columns:
            self._columns[of] = np.asarray(of(self.human, self.judge) @ self.by_unit, dtype=np.float64)
        return self._columns[of]

    def known_totals(self, drawn: Floats) -> dict[OfPairs, Floats]:
        """The sums, (r,) each, of all functions asked for so far, in samples where units occur `drawn` (U, r) times:
        one product of matrices, which takes a fraction of one for each."""
        return (
            dict(zip(self._columns, np.stack(list(self._columns.values())) @ drawn, strict=True))
            if self._columns
            else {}
        )


def _one(human: Floats, _: Floats) -> Floats:
    return np.ones_like(human)


class PairSums(metrics.PairCounts):
    """R samples of pairs, by how often each unit of the `cells` occurs in each, (U, R). None is empty."""

    def __init__(self, cells: Cells, drawn: Floats) -> None:
        self._cells, self._drawn = cells, drawn
        self._totals = cells.known_totals(drawn)

    def total(self, of: OfPairs) -> Floats:
        if of not in self._totals:
            self._totals[of] = self._cells.column(of) @ self._drawn
        return self._totals[of]

    @property
    def size(self) -> Floats:
        return self.total(_one)

    @cached_property
    def table(self) -> Floats:
        """How often each pair of values occurs, shape (K, L, R), values ascending."""
        return np.asarray(self._cells.table @ self._drawn).reshape(*self._cells.shape, -1)

    @cached_property
    def margins(self) -> tuple[Floats, Floats]:
        """How often each value of people's and of the judge's occurs, shape (K, R) and (L, R)."""
        return self.table.sum(axis=1), self.table.sum(axis=0)

    @cached_property
    def _several(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        human, judge = ((margin > 0).sum(axis=0) > 1 for margin in self.margins)
        return human, judge

    @property
    def varied(self) -> NDArray[np.bool_]:
        human, judge = self._several
        return human & judge

    @cached_property
    def moments(self) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
        human, judge, human_square, judge_square = (self.mean(of) for of in self._cells.centred)
        centre = self._cells.centre
        human_variance = np.where(self._several[0], human_square - human**2, 0.0)
        judge_variance = np.where(self._several[1], judge_square - judge**2, 0.0)
        return (human + centre[0], human_variance), (judge + centre[1], judge_variance)

    @cached_property
    def _ranks(self) -> tuple[Floats, Floats]:
        """The average rank of each value, less the mean of all: shape (K, R) and (L, R)."""
        human, judge = (np.cumsum(margin, axis=0) - margin / 2 - self.size / 2 for margin in self.margins)
        return human, judge

    @property
    def rank_squares(self) -> tuple[Floats, Floats]:
        human, judge = ((margin * rank**2).sum(axis=0) for margin, rank in zip(self.margins, self._ranks, strict=True))
        return human, judge

    @property
    def rank_product(self) -> Floats:
        human, judge = self._ranks
        return np.asarray(sum((row * judge).sum(axis=0) * rank for row, rank in zip(self.table, human, strict=True)))

    @property
    def ties(self) -> tuple[Floats, Floats]:
        human, judge = ((margin**2).sum(axis=0) for margin in self.margins)
        return human, judge

    @property
    def balance(self) -> Floats:
        """Row by row, values ascending. `lead` says for each value of the judge's how many pairs of earlier rows lie
        below it, less those above: with a pair at that value these are the concordant and the discordant ones."""
        found, lead = np.zeros_like(self.size), np.zeros_like(self.margins[1])
        for row in self.table:
            found += (row * lead).sum(axis=0)
            up_to = row.cumsum(axis=0)
            # Below a value lie up_to - row, above it what is left of the row: up_to[-1] - up_to.
            lead += 2 * up_to - row - up_to[-1]
        return found


def exact_spearman(cells: Cells) -> float:
    """Spearman's correlation of the sample, whatever the number of values; both sides vary."""
    total, ranks = cells.weight.sum(), []
    for code in cells.ranks:
        counts = np.bincount(code, cells.weight)
        ranks.append((np.cumsum(counts) - counts / 2 - total / 2)[code])
    human, judge = ranks
    product, *squares = (float(cells.weight @ values) for values in (human * judge, human**2, judge**2))
    return product / float(np.sqrt(squares[0] * squares[1]))


def exact_kendall(cells: Cells) -> float:
    """Kendall's tau-b of the sample, whatever the number of values; both sides vary."""
    weight, (human, judge) = cells.weight, cells.ranks
    every, both = float(weight.sum()) ** 2, float(weight @ weight)
    ties = [float((np.bincount(code, weight) ** 2).sum()) for code in (human, judge)]
    concordant = _concordant(human, judge, weight)
    # Pairs of rows that differ on both sides, in both orders, are concordant or discordant.
    discordant = (every - ties[0] - ties[1] + both) / 2 - concordant
    return 2 * (concordant - discordant) / float(np.sqrt((every - ties[0]) * (every - ties[1])))


def _concordant(human: Indices, judge: Indices, weight: Floats) -> float:
    """The weight of all pairs of cells of which one is lower on both sides, in n log² n: in the order of people's
    ranks, two of the judge's ranks compare by the highest bit in which they differ."""
    order = np.lexsort((-judge, human))  # equal human ranks count as falling
    code, weight, found = judge[order], weight[order], 0.0
    for bit in reversed(range(int(code.max(initial=0)).bit_length())):
        # Ranks that agree in all higher bits lie together, in the order of people's: each one bit here beats the zero
        # bits before it.
        key = code >> bit
        one = (key & 1) == 1
        zeros = np.where(one, 0.0, weight)
        start = np.flatnonzero(np.diff(key >> 1, prepend=-1))
        before = np.cumsum(zeros)
        outside = np.repeat((before - zeros)[start], np.diff(start, append=len(code)))
        found += float((weight * (before - outside))[one].sum())
        order = np.argsort(key, kind="stable")
        code, weight = code[order], weight[order]
    return found


EXACT = {"spearman": exact_spearman, "kendall": exact_kendall}


def agreement_interval(
    human: Scores,
    judge: Scores,
    group: Group,
    resamples: int | None = None,
    seed: int = SEED,
    weight: Floats | None = None,
) -> dict[str, Interval | None]:
    """The 95 % interval of every metric by name, as `measured` gives it."""
    return measured(human, judge, group, weight, resamples, seed).interval


def measured(
    human: Scores,
    judge: Scores,
    group: Group,
    weight: Floats | None = None,
    resamples: int | None = None,
    seed: int = SEED,
) -> Agreement:
    """`agreement` with 95 % intervals from a bootstrap over groups (rows that share a question).

    With a `weight` (n,) each row stands for so many: where it is 1 over the chance that the row had of being labelled,
    values and intervals are those of all rows (Hájek 1971). No interval where the metric is undefined on the sample or
    in more than a tenth of the resamples, is the same in all of them, or where there are fewer than FEWEST_GROUPS
    groups. Raises ValueError as `agreement` does.
    """
    people, judged, used = paired(human, judge)
    same_length(human, {"groups": group})
    people, judged = chosen(used, people), chosen(used, judged)
    draws = Bootstrap(chosen(used, group_numbers(group)), resamples, seed)
    about = {"n": len(people), "failed": int((~used).sum()), "groups": draws.groups}
    if not len(people):
        return Agreement(**about, estimates={name: Estimate(n=0, undefined="no pairs") for name in METRICS})
    (values,) = resampled(people, [judged], draws, None if weight is None else weight[used])
    reason = no_correlation(people, judged) or "undefined on these scores"
    estimates = {
        name: _varying(draws.estimate(values[name], len(people), undefined=reason, share=metric.share))
        for name, metric in METRICS.items()
    }
    return Agreement(**about, estimates=estimates)


def _varying(found: Estimate) -> Estimate:
    """A sample in which every resample is alike (a judge that is never off) says nothing of how far it could be."""
    if found.interval is None or found.interval[1] - found.interval[0] >= _DUST:
        return found
    return replace(found, interval=None, undefined="the same in every resample")


def resampled(
    human: Coded, judges: Sequence[Coded], draws: Bootstrap, weight: Floats | None = None
) -> list[dict[str, Floats]]:
    """Every metric of each judge by name, the sample's value first and then each resample's: shape (1 + resamples,),
    NaN where undefined. `human` and `judges` are the scores of the n rows that `draws` were made for, `weight` (n,)
    what each counts for. All judges have the same resamples, so their values may be subtracted."""
    first, cell = distinct(human, *judges)
    weight = None if weight is None else weight / weight.mean()
    table, blocks = draws.units(cell, len(first), weight)
    start = next(blocks)
    samples = [_cells(human[first], judge[first], table, start) for judge in judges]
    found: list[dict[str, list[Floats]]] = [{name: [] for name in METRICS} for _ in judges]
    for block in chain([start], blocks):
        for cells, values in zip(samples, found, strict=True):
            counts = PairSums(cells, block)
            for name, metric in METRICS.items():
                values[name].append(metric.of_counts(counts))
    return [
        {name: _exact(name, cells, np.concatenate(parts)) for name, parts in values.items()}
        for cells, values in zip(samples, found, strict=True)
    ]


def _cells(human: Floats, judge: Floats, by_unit: Any, once: Floats) -> Cells:
    """The cells of one judge, from those that several judges have together; `once` (U, 1) is the sample."""
    first, place = distinct(human, judge)
    ones = np.ones(len(place)), (place, np.arange(len(place)))
    own = sparse.csr_array(ones, shape=(len(first), len(place))) @ by_unit
    return Cells(human[first], judge[first], own, np.asarray(own @ once)[:, 0])


def _exact(name: str, cells: Cells, values: Floats) -> Floats:
    """Where ranks are of a coarse table, the exact value with what the table's own moves by. Ties of a coarse table can
    hide disagreement, and a correlation r moves as 1 - r² (Fisher 1915), so moves are widened by what it hides."""
    if name not in EXACT or not cells.coarse or np.isnan(values[0]):
        return values
    exact, coarse = EXACT[name](cells), float(values[0])
    wider = max(1.0, (1 - exact**2) / (1 - coarse**2)) if coarse**2 < 1 else 1.0
    return np.asarray(np.clip(exact + (values - coarse) * wider, -1, 1))
