"""The bootstrap over groups: where the project's intervals and p-values come from.

Rows that share a question or an image are not independent, so whole groups are drawn with replacement. A statistic is a
function of sums over rows: it is computed from the sums of the sample and from those of each resample, and all that is
said of it follows from these values in `Bootstrap.estimate`. A paired difference is the difference of two such arrays.
Intervals are percentile intervals, widened for few groups (Hesterberg 2015, "What Teachers Should Know About the
Bootstrap", §3.2).

The p-value is the interval read backwards, so that it never contradicts it.

SciPy, which the rest of `critic` does without, may stand in this folder: it is installed with the project, and a stage
is loaded when it is run. Its parts are written out, `scipy.special`, for so they are imported when they are first
used, and no --help waits for them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import permutations
from typing import Any

import numpy as np
import scipy
from msgspec import Struct
from numpy.typing import NDArray

from critic.stats.arrays import Codes, Floats, Group, group_numbers

Interval = tuple[float, float]
Places = dict[str, tuple[int, int]]
"""The best and the worst place, from 1, of things by name. Those that may share a place are tied."""

LEVEL = 0.95
"""Coverage of every interval."""

POWER = 0.8
"""How often a detectable effect is seen."""

RESAMPLES, SEED = 2000, 0
"""Draws behind every interval, and their seed, unless asked otherwise."""

MANY_GROUPS, RESAMPLES_OF_MANY = 20_000, 500
"""Above so many groups intervals are so narrow that fewer resamples show their ends as well."""

FEWEST_GROUPS = 5
"""Below this many groups a bootstrap interval is far too narrow, and none is given."""

FEWEST_TO_DECIDE = 20
"""Below this many groups an interval still misses the truth too often to decide on it: a bound that should be wrong in
2.5 % of audits was wrong in 5 to 11 % with five to ten groups (simulation)."""

_DEFINED = 0.9
"""The share of resamples that must have a value for an interval."""

_DRAWN_AT_ONCE = 400_000
"""Numbers drawn at once: few enough for the processor's cache, enough for NumPy. What a seed draws depends on it."""

_KEPT = 1 << 26
"""Bytes of draws that are kept at most, for one number of groups."""

_ROWS_OF_A_CELL = 4
"""Where every row is a group, cells are drawn in place of rows if they are so many times fewer."""


class Estimate(Struct, frozen=True, kw_only=True):
    """A number over `n` cases with its 95 % interval. `undefined` says why the value is None or, with a value, why the
    interval is. `p_value` is two-sided, of "it is 0", where that is a question; an effect as large as `detectable`
    would be seen (p below 5 %) in 80 of 100 such samples."""

    value: float | None = None
    n: int
    interval: Interval | None = None
    p_value: float | None = None
    undefined: str | None = None
    detectable: float | None = None

    @property
    def side(self) -> int:
        """1 where the interval lies above 0, -1 where it lies below, else 0."""
        low, high = self.interval or (0.0, 0.0)
        return int(low > 0) - int(high < 0)

    @property
    def unseen(self) -> float | None:
        """`detectable` where no effect is shown."""
        return self.detectable if self.p_value is not None and self.p_value > 1 - LEVEL else None


class CorrectedEstimate(Estimate, frozen=True, kw_only=True):
    """One of a family: `p_holm` is `p_value` held against all of it (Holm 1979)."""

    p_holm: float | None = None

    @property
    def unseen(self) -> float | None:
        return self.detectable if self.p_holm is not None and self.p_holm > 1 - LEVEL else None


def detectable(interval: Interval, groups: int) -> float:
    """The smallest true effect that is seen in 80 of 100 samples whose 95 % intervals are as wide: the quantiles of
    Student's t at 97.5 % and at 80 %, added up, times the standard error (Bloom 1995, "Minimum Detectable Effects",
    Evaluation Review 19(5), p. 548). Half the interval is the first of these."""
    first, second = scipy.special.stdtrit(groups - 1, [(1 + LEVEL) / 2, POWER])
    return float((interval[1] - interval[0]) / 2 * (1 + second / first))


def _counts(groups: int, resamples: int, seed: int) -> Iterator[NDArray[np.uint8]]:
    """How often each group is drawn in each resample, in blocks of shape (G, r)."""
    random = np.random.default_rng(seed)
    kind = np.uint16 if groups <= np.iinfo(np.uint16).max else np.int64
    block = max(1, _DRAWN_AT_ONCE // groups)
    for start in range(0, resamples, block):
        shape = min(block, resamples - start), groups
        drawn = random.integers(groups, size=shape, dtype=kind)
        # Counted as the entries of a sparse matrix, which adds those of one place up: four times as fast as NumPy's
        # bincount. That 256 draws, too many for 8 bits, are of one group never happens: it takes as many groups, and
        # all draws of these but one in 256! differ.
        ends = np.arange(len(drawn) + 1) * groups
        counts = scipy.sparse.csr_array((np.ones(drawn.size, dtype=np.uint8), drawn.ravel(), ends), shape=shape)
        yield np.ascontiguousarray(counts.toarray().T)


@lru_cache(maxsize=2)
def _kept_counts(groups: int, resamples: int, seed: int) -> list[NDArray[np.uint8]]:
    """`_counts`, kept: an audit asks for the same draws some forty times."""
    return list(_counts(groups, resamples, seed))


class Bootstrap:
    """`resamples` draws of G groups out of the G groups of `group` (one name a row), with replacement.

    What is computed from `drawn`, `tables` or `sums` has the sample first and then each resample. All draws of a seed
    are the same, except where every row is a group of its own: there `tables` and `sums` draw the counts of alike rows,
    so a paired difference has to come from one call.
    """

    def __init__(self, group: Group, resamples: int | None = None, seed: int = SEED) -> None:
        self.member = group_numbers(group)
        self.groups = int(self.member.max()) + 1 if len(self.member) else 0
        usual = RESAMPLES if self.groups <= MANY_GROUPS else RESAMPLES_OF_MANY
        self.resamples = usual if resamples is None else resamples
        self.seed = seed

    @property
    def enough(self) -> bool:
        """Whether there are groups enough for an interval."""
        return self.too_few() is None

    def too_few(self, groups: int | None = None) -> str | None:
        """Why what is about so many groups (None: all) has no interval; None where they are enough."""
        groups = self.groups if groups is None else groups
        return f"{groups} groups; an interval needs at least {FEWEST_GROUPS}" if groups < FEWEST_GROUPS else None

    def draw_counts(self) -> Iterator[Floats]:
        """How often each group occurs, in blocks of shape (G, r): once in the sample, which is the first block, then as
        drawn. With fewer than FEWEST_GROUPS groups there is no other block."""
        yield np.ones((self.groups, 1))
        if self.enough:
            blocks = _kept_counts if self.groups * self.resamples <= _KEPT else _counts
            yield from (block.astype(np.float64) for block in blocks(self.groups, self.resamples, self.seed))

    def _draw_cells(self, cells: NDArray[np.intp]) -> Iterator[Floats]:
        """`drawn` of rows that are each a group of their own, as counts of those that are alike: how often each cell
        occurs follows a multinomial distribution. `cells` (k,) are the counts in the sample."""
        yield cells[:, None].astype(np.float64)
        random = np.random.default_rng(self.seed)
        block = max(1, _DRAWN_AT_ONCE // len(cells))
        for start in range(0, self.resamples, block):
            drawn = random.multinomial(self.groups, cells / self.groups, size=min(block, self.resamples - start))
            yield np.ascontiguousarray(drawn.T, dtype=np.float64)

    def resampling_units(self, cell: Codes, cells: int, weight: Floats | None = None) -> tuple[Any, Iterator[Floats]]:
        """What is drawn: a sparse table (cells, U) of how many rows of each cell a unit has (with a `weight` (n,), how
        much they weigh), and how often each unit occurs, in blocks of shape (U, r). `cell` is the cell of each row.
        Units are the groups or, if every row is one, the cells."""
        alone = self.enough and self.groups == len(cell) and weight is None
        if alone and cells * _ROWS_OF_A_CELL <= len(cell):
            return scipy.sparse.eye_array(cells, format="csr"), self._draw_cells(np.bincount(cell, minlength=cells))
        times = np.ones(len(cell)) if weight is None else weight
        table = scipy.sparse.coo_array((times, (cell, self.member)), shape=(cells, self.groups))
        return table.tocsr(), self.draw_counts()

    def tables(self, cell: Codes, cells: int, weight: Floats | None = None) -> Iterator[Floats]:
        """How many rows fall into each of the cells, in blocks of shape (cells, r). Arguments as in `units`."""
        table, blocks = self.resampling_units(cell, cells, weight)
        return (table @ block for block in blocks)

    def resample_sums(
        self, cell: Codes, columns: "Floats | scipy.sparse.csr_array", weight: Floats | None = None
    ) -> Floats:
        """The columns' sums over rows: shape (1 + resamples, k). `columns`, shape (k, cells), says what a row of each
        cell adds to each sum; other arguments as in `units`."""
        table, blocks = self.resampling_units(cell, columns.shape[1], weight)
        by_unit = columns @ table
        return np.concatenate([(by_unit @ block).T for block in blocks])

    def resample_group_sums(self, by_group: Floats) -> Floats:
        """`sums` of what each group adds, shape (k, G): (1 + resamples, k)."""
        return np.concatenate([(by_group @ block).T for block in self.draw_counts()])

    def estimate(
        self,
        values: Floats,
        n: int,
        *,
        undefined: str = "",
        share: bool = False,
        null: float | None = None,
        groups: int | None = None,
    ) -> Estimate:
        """Of a statistic over `n` cases from its `values`, the sample's first, NaN where it is undefined; `undefined`
        says why it could be on the sample. With a `null` there is a p-value. `share` and `groups` as in `interval`."""
        if np.isnan(values[0]):
            return Estimate(n=n, undefined=undefined)
        interval = self.interval(values[1:], share=share, groups=groups)
        p = None if null is None else self.p_value(values[1:], null, groups)
        if interval is None:
            none = self.too_few(groups) or "undefined in more than a tenth of the resamples"
            return Estimate(value=float(values[0]), n=n, undefined=none)
        seen = None if null is None else detectable(interval, self.groups if groups is None else groups)
        return Estimate(value=float(values[0]), n=n, interval=interval, p_value=p, detectable=seen)

    def interval(self, values: Floats, *, share: bool = False, groups: int | None = None) -> Interval | None:
        """The 95 % interval of a statistic from its value in each resample (NaN where it is undefined there), which
        is about `groups` of them where it is not about all.

        Resamples without a value are left out; None where they are more than a tenth, or with fewer than
        FEWEST_GROUPS groups. A `share` that is 0 or 1 in every resample gets the exact interval of G trials
        (Clopper and Pearson 1934), because no resample can show what the sample does not hold.
        """
        defined, groups = values[~np.isnan(values)], self.groups if groups is None else groups
        if groups < FEWEST_GROUPS or len(defined) < max(1, _DEFINED * self.resamples):
            return None
        wide = scipy.special.stdtrit(groups - 1, (1 + LEVEL) / 2) * np.sqrt(groups / (groups - 1))
        tail = scipy.special.ndtr(-wide)
        low, high = np.quantile(defined, [tail, 1 - tail])
        if share and low == high and low in (0.0, 1.0):
            furthest = ((1 - LEVEL) / 2) ** (1 / groups)
            return (furthest, 1.0) if low else (0.0, 1 - furthest)
        return float(low), float(high)

    def places(self, drawn: Mapping[str, Floats]) -> Places:
        """Of things by their values in each resample, shape (R,): as many stand before a thing as are shown to be ahead
        of it, the 95 % interval of the difference being above 0, or as are not shown to be behind it."""
        ahead, behind = Counter[str](), Counter[str]()
        for first, second in permutations(drawn, 2):
            interval = self.interval(drawn[first] - drawn[second])
            if interval and interval[0] > 0:
                ahead[second] += 1
                behind[first] += 1
        return {name: (1 + ahead[name], len(drawn) - behind[name]) for name in drawn}

    def p_value(self, values: Floats, null: float = 0.0, groups: int | None = None) -> float | None:
        """Two-sided p of "the statistic is `null`": 1 minus the level at which `interval` just excludes it.

        None where `interval` is. At least about 2 / resamples, because no resample says more.
        """
        defined, groups = values[~np.isnan(values)], self.groups if groups is None else groups
        if groups < FEWEST_GROUPS or len(defined) < max(1, _DEFINED * self.resamples):
            return None
        beyond = min(int((defined <= null).sum()), int((defined >= null).sum()))
        tail = min(0.5, (beyond + 1) / (len(defined) + 1))
        narrow = scipy.special.ndtri(tail) * np.sqrt((groups - 1) / groups)
        return float(2 * scipy.special.stdtr(groups - 1, narrow))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjustment; None stays None and is not counted."""
    known = sorted((p, number) for number, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, number) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * p))
        adjusted[number] = highest
    return adjusted
