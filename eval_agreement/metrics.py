"""Agreement between people's scores and a judge's, both on 1..10, with bootstrap intervals.

Definitions: AlignMMBench §5.2 (mean absolute error, Pearson, Spearman, Kendall, fuzzy and strict ranges).
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray
from scipy import sparse, stats

from critic.records import RATINGS

Scores = Sequence[float | None] | NDArray[np.floating] | NDArray[np.integer]
Floats = NDArray[np.float64]
Range = tuple[int, int]

FUZZY_RANGES: tuple[Range, ...] = ((1, 2), (3, 5), (6, 8), (9, 10))
"""AlignMMBench §5.2: unusable, mostly wrong, mostly right, right. Both ends included."""

STRICT_RANGES: tuple[Range, ...] = ((1, 1), (2, 2), (3, 3), (4, 5), (6, 6), (7, 8), (9, 10))
"""AlignMMBench §5.2: the bands of the scoring rubric. Both ends included."""

LEVEL = 0.95
"""Coverage of every interval."""

RESAMPLES, SEED = 1000, 0
"""Of every interval, unless asked otherwise."""

FEWEST_GROUPS = 5
"""Below this many groups a bootstrap interval is far too narrow, and none is given."""

_LOW, _HIGH = RATINGS[0], RATINGS[-1]
_DECIMALS = 12
_CELLS_PER_CHUNK = 200_000
_DRAWS_PER_BLOCK = 100_000


class Agreement(Struct, frozen=True, kw_only=True):
    """The six numbers over `n` pairs; `failed` judgments are left out of them.

    mae is in points (0..9), fuzzy and strict are shares (0..1), the correlations lie in -1..1.
    A metric is None exactly when `undefined` says why. `interval` holds the 95 % interval of each
    metric, None where there is none, and is empty where no interval was asked for.
    """

    n: int
    failed: int
    mae: float | None
    pearson: float | None
    spearman: float | None
    kendall: float | None
    fuzzy: float | None
    strict: float | None
    undefined: dict[str, str] = field(default_factory=dict)
    interval: dict[str, tuple[float, float] | None] = field(default_factory=dict)


def half_up(scores: Floats) -> Floats:
    """Nearest whole numbers, halves upwards (2.5 -> 3; Python's and NumPy's `round` give 2)."""
    return np.floor(scores + 0.5)


def bands(scores: Floats, ranges: Sequence[Range]) -> NDArray[np.intp]:
    """Index of the range each score falls in. A score between two ranges (2.5) is rounded half up first."""
    return np.searchsorted([high for _, high in ranges], half_up(scores))


def _same_band(human: Floats, judge: Floats, ranges: Sequence[Range]) -> float | None:
    return float(np.mean(bands(human, ranges) == bands(judge, ranges))) if human.size else None


def mae(human: Floats, judge: Floats) -> float | None:
    """Mean absolute difference in points; None without pairs."""
    return float(np.mean(np.abs(human - judge))) if human.size else None


def fuzzy(human: Floats, judge: Floats) -> float | None:
    """Share of pairs in the same of FUZZY_RANGES; None without pairs."""
    return _same_band(human, judge, FUZZY_RANGES)


def strict(human: Floats, judge: Floats) -> float | None:
    """Share of pairs in the same of STRICT_RANGES; None without pairs."""
    return _same_band(human, judge, STRICT_RANGES)


def _no_correlation(human: Floats, judge: Floats) -> str | None:
    """Why two samples have no correlation; None when they have one."""
    if human.size < 2:
        return "a correlation needs at least two pairs"
    if np.ptp(judge) == 0:
        return "the judge gave every response the same score"
    if np.ptp(human) == 0:
        return "people gave every response the same score"
    return None


def _correlation(test: Callable[..., Any], human: Floats, judge: Floats) -> float | None:
    if _no_correlation(human, judge):
        return None
    return float(np.clip(test(human, judge).statistic, -1, 1))


def pearson(human: Floats, judge: Floats) -> float | None:
    """Pearson's r; None with fewer than two pairs or where either side is constant."""
    return _correlation(stats.pearsonr, human, judge)


def spearman(human: Floats, judge: Floats) -> float | None:
    """Spearman's rho, ties at their average rank; None as for `pearson`."""
    return _correlation(stats.spearmanr, human, judge)


def kendall(human: Floats, judge: Floats) -> float | None:
    """Kendall's tau-b; None as for `pearson`."""
    return _correlation(stats.kendalltau, human, judge)


METRICS: dict[str, Callable[[Floats, Floats], float | None]] = {
    "mae": mae,
    "pearson": pearson,
    "spearman": spearman,
    "kendall": kendall,
    "fuzzy": fuzzy,
    "strict": strict,
}
"""Every metric by name: two float arrays of one length on 1..10 in, a number out."""


def _array(scores: Scores, whose: str) -> Floats:
    values = np.array([np.nan if score is None else score for score in scores], dtype=np.float64)
    off = values[(values < _LOW) | (values > _HIGH)]
    if off.size:
        raise ValueError(f"{whose} score {off[0]:g} is outside {_LOW}..{_HIGH}")
    # Arithmetic leaves dust (1.1 + 2.2 != 3.3), which would make ties and constant samples look varied.
    return np.round(values, _DECIMALS)


def _paired(human: Scores, judge: Scores) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Both as float arrays, and which pairs have a judgment. Raises ValueError as `agreement` says."""
    people, judged = _array(human, "human"), _array(judge, "judge")
    if len(people) != len(judged):
        raise ValueError(f"{len(people)} human scores but {len(judged)} judge scores")
    if np.isnan(people).any():
        raise ValueError(f"the human score of pair {int(np.argmax(np.isnan(people)))} (from 0) is missing")
    return people, judged, ~np.isnan(judged)


def agreement(human: Scores, judge: Scores) -> Agreement:
    """The agreement of two equally long samples on 1..10; None or NaN in `judge` is a failed judgment.

    - Failed judgments are dropped and counted; nothing is put in their place.
    - What is undefined is None with a reason, never 0 and never NaN: everything without pairs; the
      correlations with one pair, or where either side is constant (MAE and ranges stay defined).
    - Scores need not be whole. MAE and correlations take them as they are; for the ranges a score is
      rounded half up first, so 2.5 counts as 3. Scores equal to 12 decimals are equal.

    Raises ValueError for unequal lengths, a missing human score, or a score outside 1..10.
    """
    people, judged, used = _paired(human, judge)
    people, judged = people[used], judged[used]
    values = {name: metric(people, judged) for name, metric in METRICS.items()}
    reason = "no pairs" if not people.size else _no_correlation(people, judged)
    return Agreement(
        n=int(used.sum()),
        failed=int((~used).sum()),
        mae=values["mae"],
        pearson=values["pearson"],
        spearman=values["spearman"],
        kendall=values["kendall"],
        fuzzy=values["fuzzy"],
        strict=values["strict"],
        undefined={name: reason for name, value in values.items() if value is None and reason},
    )


def group_counts(groups: int, resamples: int, seed: int) -> Iterator[NDArray[np.intp]]:
    """For each resample, how often each of `groups` groups was drawn (with replacement, `groups` draws)."""
    random = np.random.default_rng(seed)
    block = max(1, _DRAWS_PER_BLOCK // groups)
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        drawn = random.integers(groups, size=(size, groups)) + groups * np.arange(size)[:, None]
        yield from np.bincount(drawn.ravel(), minlength=size * groups).reshape(size, groups)


def agreement_interval(
    human: Scores, judge: Scores, group: Sequence[Hashable], resamples: int = RESAMPLES, seed: int = SEED
) -> dict[str, tuple[float, float] | None]:
    """95 % percentile intervals of all metrics from a bootstrap over groups (rows that share a question).

    Whole groups are drawn, because answers to one question are not independent; failed judgments are
    dropped first. Resamples in which a metric is undefined are left out. None where the metric is
    undefined on the sample, in more than a tenth of the resamples, or where there are fewer than
    FEWEST_GROUPS groups. Raises ValueError as `agreement` does.
    """
    people, judged, used = _paired(human, judge)
    if len(group) != len(people):
        raise ValueError(f"{len(people)} human scores but {len(group)} groups")
    people, judged = people[used], judged[used]
    names = [name for name, keep in zip(group, used, strict=True) if keep]
    index = {name: number for number, name in enumerate(sorted(set(names), key=str))}
    if len(index) < FEWEST_GROUPS:
        return dict.fromkeys(METRICS)
    member = np.array([index[name] for name in names])
    draws = np.array(list(resampled(people, judged, member, group_counts(len(index), resamples, seed))))
    intervals: dict[str, tuple[float, float] | None] = {}
    for (name, metric), values in zip(METRICS.items(), draws.T, strict=True):
        defined = values[~np.isnan(values)]
        if metric(people, judged) is None or len(defined) < 0.9 * resamples:
            intervals[name] = None
        else:
            low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
            intervals[name] = (float(low), float(high))
    return intervals


def measured(human: Scores, judge: Scores, group: Sequence[Hashable]) -> Agreement:
    """`agreement` with its `agreement_interval`."""
    return replace(agreement(human, judge), interval=agreement_interval(human, judge, group))


def resampled(
    human: Floats, judge: Floats, member: NDArray[np.intp], counts: Iterator[NDArray[np.intp]]
) -> Iterator[Floats]:
    """The metrics of each resample, in the order of METRICS; NaN where undefined.

    `member[i]` is the group number of pair i; `counts` yields how often each group was drawn.

    All six metrics depend on a resample only through its table of counts (human value x judge value),
    and that is a weighted sum of the groups' tables: so no pair is touched again. Where scores have so
    many distinct values that the table is much larger than the sample, the pairs are repeated instead.
    """
    people, row = np.unique(human, return_inverse=True)
    judged, column = np.unique(judge, return_inverse=True)
    cells = len(people) * len(judged)
    if cells > 100 * len(human):
        for count in counts:
            drawn = np.repeat(np.arange(len(human)), count[member])
            values = [metric(human[drawn], judge[drawn]) for metric in METRICS.values()]
            yield np.array([np.nan if value is None else value for value in values])
        return
    groups = int(member.max()) + 1
    pairs = (np.ones(len(human)), (row * len(judged) + column, member))
    tables = sparse.csr_array(pairs, shape=(cells, groups))
    for chunk in _chunks(counts, max(1, _CELLS_PER_CHUNK // cells)):
        flat = np.ascontiguousarray((tables @ chunk.T.astype(np.float64)).T)
        yield from _of_tables(flat.reshape(-1, len(people), len(judged)), people, judged)


def _chunks(counts: Iterator[NDArray[np.intp]], size: int) -> Iterator[NDArray[np.intp]]:
    chunk = []
    for count in counts:
        chunk.append(count)
        if len(chunk) == size:
            yield np.array(chunk)
            chunk = []
    if chunk:
        yield np.array(chunk)


def _of_tables(tables: Floats, people: Floats, judged: Floats) -> Floats:
    """The metrics, shape (R, 6), of tables of counts, shape (R, K, L), over K human and L judge values."""
    flat = tables.reshape(len(tables), -1)
    size = flat.sum(axis=1)
    rows, columns = tables.sum(axis=2), tables.sum(axis=1)
    varied = ((rows > 0).sum(axis=1) > 1) & ((columns > 0).sum(axis=1) > 1)

    def mean(cell: NDArray[np.generic]) -> Floats:
        return np.asarray(flat @ cell.ravel().astype(np.float64) / size)

    def same(ranges: Sequence[Range]) -> Floats:
        return mean(bands(people, ranges)[:, None] == bands(judged, ranges))

    def correlation(x: Floats, y: Floats) -> Floats:
        x = x - (rows * x).sum(axis=1, keepdims=True) / size[:, None]
        y = y - (columns * y).sum(axis=1, keepdims=True) / size[:, None]
        product = (np.matmul(tables, y[:, :, None])[:, :, 0] * x).sum(axis=1)
        spread = np.sqrt((rows * x**2).sum(axis=1) * (columns * y**2).sum(axis=1))
        return np.asarray(product / spread)

    def average_ranks(counts: Floats) -> Floats:
        return np.cumsum(counts, axis=1) - (counts - 1) / 2

    def tau_b() -> Floats:
        # below[k, l]: pairs with a smaller human value than k and a judge value up to l.
        below = tables[:, :-1].cumsum(axis=1).cumsum(axis=2)
        smaller = np.pad(below, ((0, 0), (0, 0), (1, 0)))[:, :, :-1]
        balance = (tables[:, 1:] * (smaller + below - below[:, :, -1:])).sum(axis=(1, 2))
        untied = (size**2 - (rows**2).sum(axis=1)) * (size**2 - (columns**2).sum(axis=1))
        return np.asarray(2 * balance / np.sqrt(untied))

    # A resample may hold one value only; its 0 / 0 is replaced by NaN below.
    with np.errstate(invalid="ignore", divide="ignore"):
        correlations = np.stack(
            [
                correlation(np.tile(people, (len(size), 1)), np.tile(judged, (len(size), 1))),
                correlation(average_ranks(rows), average_ranks(columns)),
                tau_b(),
            ]
        )
    correlations = np.where(varied, np.clip(correlations, -1, 1), np.nan)
    distance = np.abs(people[:, None] - judged)
    return np.stack([mean(distance), *correlations, same(FUZZY_RANGES), same(STRICT_RANGES)], axis=1)
