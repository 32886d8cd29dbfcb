"""The bootstrap over groups, the source of all intervals and p-values.

Rows that share a question or an image are not independent, so whole groups are drawn with replacement. A statistic
is a function of sums over rows. It is computed from the sums of the sample and of each resample, and
`Bootstrap.estimate` derives interval and p-value from these values. A paired difference subtracts two such arrays.
Intervals are percentile intervals, widened for few groups (Hesterberg 2015, "What Teachers Should Know About the
Bootstrap", §3.2).

The p-value inverts the interval, so that the two never contradict each other.

Within `critic`, only this folder imports SciPy when a module is loaded; other modules import it where they use it.
Submodules are written out (`scipy.special`), so that they are imported on first use and no --help waits for them.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
import scipy
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from critic.stats.arrays import Codes, Floats, Group, group_numbers

Interval = tuple[float, float]
Places = dict[str, tuple[int, int]]
"""Name -> its best and its worst possible place, from 1. Names whose ranges overlap are tied."""

LEVEL = 0.95
"""Coverage of every interval."""

POWER = 0.8
"""The probability of seeing a detectable effect."""

RESAMPLES, SEED = 2000, 0
"""Default number of resamples behind every interval, and their seed."""

MANY_GROUPS, RESAMPLES_OF_MANY = 20_000, 500
"""Above this many groups intervals are so narrow that fewer resamples determine their ends as well."""

FEWEST_GROUPS = 5
"""The fewest groups for an interval: with fewer, a bootstrap interval is far too narrow."""

FEWEST_TO_DECIDE = 20
"""The fewest groups to base a decision on. With fewer, an interval misses the truth too often: a bound that should be
wrong in 2.5 % of audits was wrong in 5 to 11 % with five to ten groups (simulation)."""

FEWEST_BEYOND = 5
"""The fewest resamples beyond a value whose share estimates the probability beyond it."""

_DEFINED = 0.9
"""The share of resamples that must have a value for an interval."""

_DRAWN_AT_ONCE = 400_000
"""How many random numbers are drawn at once: they fit the processor's cache. Changing it changes a seed's draws."""

_KEPT = 1 << 26
"""The most bytes of draws kept for one number of groups."""

_ROWS_OF_A_CELL = 4
"""If every row is a group of its own, cells are drawn instead of rows if there are this many times fewer cells."""


class Estimate(Struct, frozen=True, kw_only=True):
    """A statistic over `n` cases with its 95 % interval.

    - `undefined`: why the value, or only the interval, is missing; None if both are there.
    - `p_value`: two-sided, for the hypothesis that the statistic is 0; None if that is not tested.
    - `detectable`: an effect of this size would be seen (p below 5 %) in 80 of 100 such samples.
    """

    value: float | None = None
    n: int
    interval: Interval | None = None
    p_value: float | None = None
    undefined: str | None = None
    detectable: float | None = None

    @property
    def side(self) -> int:
        """Return 1 if the interval lies above 0, -1 if it lies below, else 0."""
        low, high = self.interval or (0.0, 0.0)
        return int(low > 0) - int(high < 0)

    @property
    def unseen(self) -> float | None:
        """Return `detectable` if the test shows no effect, else None."""
        return self.detectable if self.p_value is not None and self.p_value > 1 - LEVEL else None


class CorrectedEstimate(Estimate, frozen=True, kw_only=True):
    """An estimate from a family of tests; `p_holm` is `p_value` corrected for all of them (Holm 1979)."""

    p_holm: float | None = None

    @property
    def unseen(self) -> float | None:
        """Return `detectable` if the test shows no effect after the correction, else None."""
        return self.detectable if self.p_holm is not None and self.p_holm > 1 - LEVEL else None


def count_places(names: Collection[str], shown: Sequence[tuple[str, str]]) -> Places:
    """Return the range of possible places of each name. `shown`: the pairs (better, worse) that are shown to differ.

    The best place is 1 plus the number of names shown to be better. The worst place is the number of names that are not
    shown to be worse, including the name itself.

    >>> count_places(["a", "b", "c"], [("a", "c")])
    {'a': (1, 2), 'b': (1, 3), 'c': (2, 3)}
    """
    wins, losses = (Counter(pair[side] for pair in shown) for side in (0, 1))
    return {name: (1 + losses[name], len(names) - wins[name]) for name in names}


def detectable(interval: Interval, groups: int, tests: int = 1) -> float:
    """Return the smallest true effect that is seen in 80 of 100 samples with a 95 % interval as wide as `interval`.

    It is the standard error times the sum of Student's t quantiles at 97.5 % and 80 % (Bloom 1995, "Minimum Detectable
    Effects", Evaluation Review 19(5), p. 548). `groups`: the number of groups. `tests`: the number of tests that share
    the 5 %; with two, the first quantile is that at 98.75 %.

    >>> round(detectable((-0.1, 0.1), groups=100), 3), round(detectable((-0.1, 0.1), groups=100, tests=10), 3)
    (0.143, 0.187)
    """
    tails = [(1 + LEVEL) / 2, 1 - (1 - LEVEL) / (2 * tests), POWER]
    half, first, second = scipy.special.stdtrit(groups - 1, tails)
    return float((interval[1] - interval[0]) / 2 * (first + second) / half)


def widen(estimate: Estimate, groups: int, tests: int) -> Estimate:
    """Return an estimate with its interval widened for `tests` tests that share the 5 % (Bonferroni).

    Both halves of the interval are scaled by the ratio of Student's t quantiles, because percentiles that far out would
    rest on a handful of resamples. `groups`: the number of groups.
    """
    if estimate.interval is None or estimate.value is None:
        return estimate
    usual, wide = scipy.special.stdtrit(groups - 1, [(1 + LEVEL) / 2, 1 - (1 - LEVEL) / (2 * tests)])
    low, high = (estimate.value + wide / usual * (end - estimate.value) for end in estimate.interval)
    return replace(estimate, interval=(float(low), float(high)))


def span_both(estimate: Estimate, other: Interval | None) -> Estimate:
    """Return an estimate whose interval also spans the interval `other`; unchanged if either is missing."""
    if estimate.interval is None or other is None:
        return estimate
    low, high = min(estimate.interval[0], other[0]), max(estimate.interval[1], other[1])
    return replace(estimate, interval=(float(low), float(high)))


def _tail_of(groups: int) -> float:
    """Return the share of resamples beyond each end of a 95 % interval over `groups` groups.

    This is Hesterberg's widening: the normal tail beyond the t quantile, corrected for the bias of a bootstrap's
    variance.
    """
    wide = scipy.special.stdtrit(groups - 1, (1 + LEVEL) / 2) * np.sqrt(groups / (groups - 1))
    return float(scipy.special.ndtr(-wide))


def _draw_blocks(groups: int, resamples: int, seed: int) -> Iterator[NDArray[np.uint8]]:
    """Yield how often each group is drawn in each resample, in blocks of shape (G groups, r resamples)."""
    random = np.random.default_rng(seed)
    kind = np.uint16 if groups <= np.iinfo(np.uint16).max else np.int64
    block = max(1, _DRAWN_AT_ONCE // groups)
    for start in range(0, resamples, block):
        shape = min(block, resamples - start), groups
        drawn = random.integers(groups, size=shape, dtype=kind)
        # A sparse matrix adds up entries at the same place: four times as fast as NumPy's bincount. Its 8 bits overflow
        # if one group is drawn 256 times, which happens about once in 256! resamples.
        ends = np.arange(len(drawn) + 1) * groups
        counts = scipy.sparse.csr_array((np.ones(drawn.size, dtype=np.uint8), drawn.ravel(), ends), shape=shape)
        yield np.ascontiguousarray(counts.toarray().T)


@lru_cache(maxsize=2)
def _keep_blocks(groups: int, resamples: int, seed: int) -> list[NDArray[np.uint8]]:
    """Return `_draw_blocks` as a cached list, because an audit needs the same draws some forty times."""
    return list(_draw_blocks(groups, resamples, seed))


class Bootstrap:
    """Bootstrap over groups: each of `resamples` draws takes G of the G groups with replacement.

    `group` names each row's group. Results of `draw_counts`, `tables` and `resample_sums` have the sample first, then
    each resample. All draws of a seed are the same, with one exception: if every row is its own group, `tables` and
    `resample_sums` draw counts of identical rows, so both sides of a paired difference must come from one call.

    >>> draws = Bootstrap(["a", "b", "c", "d", "e", "f"], resamples=500)
    >>> draws.resample_group_sums(np.ones((1, 6)))[:3, 0].tolist()
    [6.0, 6.0, 6.0]
    """

    def __init__(self, group: Group, resamples: int | None = None, seed: int = SEED) -> None:
        self.member = group_numbers(group)
        self.groups = int(self.member.max()) + 1 if len(self.member) else 0
        usual = RESAMPLES if self.groups <= MANY_GROUPS else RESAMPLES_OF_MANY
        self.resamples = usual if resamples is None else resamples
        self.seed = seed

    @property
    def enough(self) -> bool:
        """Return True if there are enough groups for an interval."""
        return self.too_few() is None

    def too_few(self, groups: int | None = None) -> str | None:
        """Return why `groups` groups (default: all) are too few for an interval, or None."""
        groups = self.groups if groups is None else groups
        return f"{groups} groups; an interval needs at least {FEWEST_GROUPS}" if groups < FEWEST_GROUPS else None

    def draw_counts(self) -> Iterator[Floats]:
        """Yield the draw counts of the bootstrap per group, in blocks of shape (G groups, r resamples).

        The first block is the sample itself: all ones, r = 1. With fewer than FEWEST_GROUPS groups it is the only one.
        """
        yield np.ones((self.groups, 1))
        if self.enough:
            blocks = _keep_blocks if self.groups * self.resamples <= _KEPT else _draw_blocks
            yield from (block.astype(np.float64) for block in blocks(self.groups, self.resamples, self.seed))

    def _draw_cells(self, cells: NDArray[np.intp]) -> Iterator[Floats]:
        """Yield resampled counts of identical rows (cells), shape (k, r), if every row is its own group.

        The first block is the sample, `cells` of shape (k,). The others follow a multinomial distribution.
        """
        yield cells[:, None].astype(np.float64)
        random = np.random.default_rng(self.seed)
        block = max(1, _DRAWN_AT_ONCE // len(cells))
        for start in range(0, self.resamples, block):
            drawn = random.multinomial(self.groups, cells / self.groups, size=min(block, self.resamples - start))
            yield np.ascontiguousarray(drawn.T, dtype=np.float64)

    def resampling_units(self, cell: Codes, cells: int, weight: Floats | None = None) -> tuple[Any, Iterator[Floats]]:
        """Return the rows of each cell in each resampling unit, and the bootstrap's draw counts of these units.

        A resampling unit is a group of rows; if every row is a group of its own, it is a cell.
        `cell`: each row's cell, shape (n,), from 0 to `cells` - 1.
        `weight`: each row's weight, shape (n,); None counts every row once.
        The first result is a sparse table, (cells, U units): the number, or total weight, of the rows. The second
        yields draw counts in blocks of shape (U, r resamples); its first block is the sample itself.
        """
        row_is_group = self.enough and self.groups == len(cell) and weight is None
        # A multinomial draw per cell replaces drawing every single row: as exact, and much faster.
        if row_is_group and cells * _ROWS_OF_A_CELL <= len(cell):
            return scipy.sparse.eye_array(cells, format="csr"), self._draw_cells(np.bincount(cell, minlength=cells))
        times = np.ones(len(cell)) if weight is None else weight
        table = scipy.sparse.coo_array((times, (cell, self.member)), shape=(cells, self.groups))
        return table.tocsr(), self.draw_counts()

    def tables(self, cell: Codes, cells: int, weight: Floats | None = None) -> Iterator[Floats]:
        """Yield the number, or total weight, of the rows in each cell, in blocks of shape (cells, r resamples).

        The first block is the sample itself, r = 1. Arguments are as in `resampling_units`.
        """
        table, blocks = self.resampling_units(cell, cells, weight)
        return (table @ block for block in blocks)

    def resample_sums(
        self, cell: Codes, columns: "Floats | scipy.sparse.csr_array", weight: Floats | None = None
    ) -> Floats:
        """Return k sums over rows, in the sample and each resample, shape (1 + resamples, k).

        `columns`, shape (k, cells), is what a row of each cell adds to each sum. Other arguments are as in
        `resampling_units`.
        """
        table, blocks = self.resampling_units(cell, columns.shape[1], weight)
        by_unit = columns @ table
        return np.concatenate([(by_unit @ block).T for block in blocks])

    def resample_group_sums(self, by_group: Floats) -> Floats:
        """Return k sums over groups, in the sample and each resample, shape (1 + resamples, k).

        `by_group`, shape (k, G), is what each group adds to each sum.
        """
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
        """Build the Estimate of a statistic over `n` cases from its value in the sample, then in each resample.

        - `undefined`: the reason to give if the sample's value is NaN.
        - `null`: the value to test against; None for no test.
        - `share`, `groups`: as in `interval`.

        >>> few, many = Bootstrap([0, 1, 2, 3]), Bootstrap(np.arange(20), 10)
        >>> few.estimate(np.array([0.5]), 4, null=0.0) == Estimate(
        ...     value=0.5, n=4, undefined="4 groups; an interval needs at least 5"
        ... )
        True
        >>> many.estimate(np.full(11, np.nan), 4, undefined="no pairs") == Estimate(n=4, undefined="no pairs")
        True
        >>> values = np.array([0.5, *np.linspace(0, 1, 8), np.nan, np.nan])
        >>> lacking = many.estimate(values, 4, null=0.0)
        >>> lacking.value, lacking.interval, lacking.p_value, lacking.undefined
        (0.5, None, None, 'undefined in more than a tenth of the resamples')
        >>> values[-1] = 0.5
        >>> enough = many.estimate(values, 4, null=0.0)
        >>> enough.interval is None, enough.p_value is None, enough.undefined
        (False, False, None)
        >>> many.estimate(values, 4, null=0.0, groups=4).undefined
        '4 groups; an interval needs at least 5'
        >>> many.estimate(values, 4, groups=0).interval
        """
        if np.isnan(values[0]):
            return Estimate(n=n, undefined=undefined)
        interval = self.interval(values[1:], share=share, groups=groups)
        p = None if null is None else self.p_value(values[1:], null, groups)
        if interval is None:
            reason = self.too_few(groups) or "undefined in more than a tenth of the resamples"
            return Estimate(value=float(values[0]), n=n, undefined=reason)
        smallest = None if null is None else detectable(interval, self.groups if groups is None else groups)
        return Estimate(value=float(values[0]), n=n, interval=interval, p_value=p, detectable=smallest)

    def interval(self, values: Floats, *, share: bool = False, groups: int | None = None) -> Interval | None:
        """Return the 95 % interval of a statistic from its value in each resample, or None if there is no interval.

        `groups`: the number of groups that the statistic uses (default: all). Resamples without a value (NaN) are
        ignored. There is no interval if these are more than a tenth, or with fewer than FEWEST_GROUPS groups. A `share`
        that is 0 or 1 in every resample gets the exact interval of G trials (Clopper and Pearson 1934), because no
        resample shows other values.
        """
        defined, groups = values[~np.isnan(values)], self.groups if groups is None else groups
        if groups < FEWEST_GROUPS or len(defined) < max(1, _DEFINED * self.resamples):
            return None
        low, high = np.quantile(defined, [_tail_of(groups), 1 - _tail_of(groups)])
        # All or nothing: the percentile interval would have no width, as if there were no doubt.
        if share and low == high and low in (0.0, 1.0):
            furthest = ((1 - LEVEL) / 2) ** (1 / groups)
            return (furthest, 1.0) if low else (0.0, 1 - furthest)
        return float(low), float(high)

    def exact_share(self, values: Floats) -> Interval | None:
        """Return the exact interval of a share (Clopper and Pearson 1934), or None with too few groups.

        `values`: the share in the sample, then in each resample. The number of trials is that of the independent rows
        with the variance of the resamples (Korn and Graubard 1998, "Confidence intervals for proportions with small
        expected number of positive counts"), or that of the groups if the resamples do not vary.
        """
        share, spread = float(values[0]), float(np.nanvar(values[1:])) if self.enough else 0.0
        trials = min(share * (1 - share) / spread, len(self.member)) if spread > 1e-12 else self.groups
        hits, tail = share * trials, (1 - LEVEL) / 2
        low = scipy.special.betaincinv(hits, trials - hits + 1, tail) if hits > 0 else 0.0
        high = scipy.special.betaincinv(hits + 1, trials - hits, 1 - tail) if hits < trials else 1.0
        return (float(low), float(high)) if self.enough else None

    def places(self, drawn: Mapping[str, Floats]) -> Places:
        """Return the range of possible places of each name. `drawn`: its value in the sample, then in each resample.

        A pair is shown to differ (`count_places`) if its difference, in standard errors, exceeds the 95 % quantile of
        the largest deviation of all pairs in a resample (single-step max-T; Westfall and Young 1993, "Resampling-Based
        Multiple Testing"), widened as intervals are. If all names are in truth equal, 5 in 100 families show a pair.
        """
        leads, largest = dict[tuple[str, str], float](), np.zeros(self.resamples)
        for pair in combinations(drawn, 2):
            # Sums leave rounding errors, by which equal names would always differ.
            difference = np.round(drawn[pair[0]] - drawn[pair[1]], 9)
            if self.enough and np.isnan(difference).mean() <= 1 - _DEFINED:
                error = max(float(np.nanstd(difference[1:])), 1e-9)
                leads[pair] = float(difference[0]) / error
                largest = np.fmax(largest, np.abs(difference[1:] - difference[0]) / error)
        # Widened as in `interval`. Two groups at least, so that there is a limit where no pair is compared.
        groups = max(self.groups, 2)
        tail = scipy.special.ndtr(-np.quantile(largest, LEVEL))
        limit = scipy.special.stdtrit(groups - 1, 1 - tail) * np.sqrt(groups / (groups - 1))
        shown = [pair if lead > 0 else pair[::-1] for pair, lead in leads.items() if abs(lead) > limit]
        return count_places(drawn, shown)

    def p_value(self, values: Floats, null: float = 0.0, groups: int | None = None) -> float | None:
        """Return the two-sided p-value of "the statistic is `null`", or None if there is no `interval`.

        It is 1 minus the level of the interval that just excludes `null`, from the share of resamples beyond `null`. If
        `null` is outside the 95 % interval and fewer than FEWEST_BEYOND resamples reach it, that share is replaced by
        the tail of a normal distribution with the resamples' mean and deviation, unless that tail exceeds the share of
        FEWEST_BEYOND resamples. Tests in a large family need p-values smaller than counts of resamples can give.

        `values`: the statistic in each resample. `groups`: as in `interval`.
        """
        defined, groups = values[~np.isnan(values)], self.groups if groups is None else groups
        if groups < FEWEST_GROUPS or len(defined) < max(1, _DEFINED * self.resamples):
            return None
        beyond = min(int((defined <= null).sum()), int((defined >= null).sum()))
        tail, spread = min(0.5, max(beyond, 1) / len(defined)), float(defined.std())
        # Beyond the interval only, which the resamples alone decide.
        few = min(FEWEST_BEYOND / len(defined), _tail_of(groups))
        # Resamples that are all equal, as of a judge without an error, do not prove that null is impossible.
        if beyond < few * len(defined) and spread > 1e-9:
            normal = scipy.special.ndtr(-abs(float(defined.mean()) - null) / spread)
            tail = normal if normal < few else tail
        narrow = scipy.special.ndtri(tail) * np.sqrt((groups - 1) / groups)
        return float(2 * scipy.special.stdtr(groups - 1, narrow))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return Holm's step-down adjusted p-values; None stays None and is not counted.

    >>> [round(p, 12) for p in holm([0.01, 0.04, 0.03, 0.005])]
    [0.03, 0.06, 0.06, 0.02]
    >>> holm([0.9, None, 0.8]), holm([0.01, None, 0.04]), holm([])
    ([1.0, None, 1.0], [0.02, None, 0.04], [])
    """
    tested = sorted((p, number) for number, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, number) in enumerate(tested):
        # An adjusted p never falls below that of a smaller p.
        highest = max(highest, min(1.0, (len(tested) - rank) * p))
        adjusted[number] = highest
    return adjusted


def count_unshown(adjusted: Sequence[float | None]) -> int:
    """Return how many tests of a family show no effect yet (adjusted p above 5 %), at least 1.

    Holm's correction divides the 5 % by this number for the next effect. `adjusted`: the family's p-values by `holm`.

    >>> count_unshown([0.01, None, 0.2, 0.6])
    2
    """
    return max(1, sum(p is not None and p > 1 - LEVEL for p in adjusted))
