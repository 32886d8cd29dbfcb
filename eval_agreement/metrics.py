"""Agreement metrics between human and judge scores, both on 1..10, one entry of METRICS each.

Definitions: AlignMMBench §5.2, and Cohen's kappa with quadratic weights. A metric is a function of sums over pairs
(`PairSums`). The same function gives its value on the sample and on every resample.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import scipy
from msgspec import Struct
from msgspec.structs import replace

from critic.stats.arrays import Floats, Group, distinct, group_numbers, ratio
from critic.stats.estimate import LEVEL, Bootstrap, Estimate, Interval, span_both
from eval_agreement.pairs import (
    Cells,
    PairSums,
    around,
    exact_kendall,
    exact_spearman,
    kendall,
    pearson,
    pearson_within,
    spearman,
)
from eval_agreement.sample import Indices, Mask, Scores, on_scale

Range = tuple[int, int]

FUZZY_RANGES: tuple[Range, ...] = ((1, 2), (3, 5), (6, 8), (9, 10))
"""AlignMMBench §5.2: unusable, mostly wrong, mostly right, right. Both ends included."""

STRICT_RANGES: tuple[Range, ...] = ((1, 1), (2, 2), (3, 3), (4, 5), (6, 6), (7, 8), (9, 10))
"""AlignMMBench §5.2: the bands of the scoring rubric. Both ends included."""

_DUST = 1e-9

RARE, RARE_SHARE = 10, 0.2
"""Errors are rare if only a few groups have a mean error above that of the sample: fewer than RARE groups, and less
than the share RARE_SHARE (0..1) of all groups."""


class Metric(Struct, frozen=True, kw_only=True):
    """An agreement metric.

    - of: compute the metric of R samples from their sums, (R,), NaN if undefined.
    - exact: compute the exact value on one sample, for a metric whose `of` uses a coarse table; None otherwise.
    - share: True if values lie in 0..1. null: the value without any agreement, or None if there is no such value.
    - note: explanation for readers. It also covers the following metrics, if these have no note.
    """

    name: str
    of: Callable[[PairSums], Floats]
    exact: Callable[[Cells], float] | None = None
    lower_is_better: bool = False
    share: bool = False
    null: float | None = None
    note: str = ""


def half_up(scores: Floats) -> Floats:
    """Round to whole numbers, halves upwards (2.5 to 3, unlike Python's and NumPy's `round`).

    >>> half_up(np.array([2.4, 2.5, 3.5])).tolist()
    [2.0, 3.0, 4.0]
    """
    return np.floor(scores + 0.5)


def bands(scores: Floats, ranges: Sequence[Range]) -> Indices:
    """Return the index of the range that each score falls in. Scores are rounded half up first.

    >>> bands(np.array([1.0, 2.5, 9.0]), FUZZY_RANGES).tolist()
    [0, 1, 3]
    """
    return np.searchsorted([high for _, high in ranges], half_up(scores))


def _distance(human: Floats, judge: Floats) -> Floats:
    return np.abs(human - judge)


def _squared_distance(human: Floats, judge: Floats) -> Floats:
    return (human - judge) ** 2


def _same_band(human: Floats, judge: Floats, ranges: Sequence[Range]) -> Floats:
    return np.asarray(bands(human, ranges) == bands(judge, ranges), dtype=np.float64)


def _kappa(sums: PairSums) -> Floats:
    """Compute Cohen's kappa with quadratic weights over 1..10 (Cohen 1968).

    It is 1 - sum (h - j)² / its expectation under independence. For fractional scores this is Lin's concordance
    coefficient. Undefined if both sides are the same constant.
    """
    human, judge, _ = sums.moments
    return 1 - ratio(sums.mean(_squared_distance), human + judge + sums.mean(np.subtract) ** 2)


_same_fuzzy, _same_strict = (partial(_same_band, ranges=ranges) for ranges in (FUZZY_RANGES, STRICT_RANGES))

METRICS: dict[str, Metric] = {
    "mae": Metric(
        name="MAE",
        of=lambda sums: sums.mean(_distance),
        lower_is_better=True,
        note="MAE: mean distance in points, lower is better.",
    ),
    "pearson": Metric(name="Pearson", of=pearson, null=0.0, note="Correlations: −1 to 1, Kendall is tau-b."),
    "spearman": Metric(name="Spearman", of=spearman, exact=exact_spearman, null=0.0),
    "kendall": Metric(name="Kendall", of=kendall, exact=exact_kendall, null=0.0),
    "fuzzy": Metric(
        name="fuzzy",
        of=lambda sums: sums.mean(_same_fuzzy),
        share=True,
        note="Fuzzy and strict: share of answers in the same range, {1–2, 3–5, 6–8, 9–10} and "
        "{1, 2, 3, 4–5, 6, 7–8, 9–10}; scores between whole numbers are rounded half up first.",
    ),
    "strict": Metric(name="strict", of=lambda sums: sums.mean(_same_strict), share=True),
    "qwk": Metric(name="kappa", of=_kappa, null=0.0, note="Kappa: quadratic weights."),
    "within": Metric(
        name="within",
        of=pearson_within,
        null=0.0,
        note="Within: Pearson of each score's distance from the mean of its question (group), over all questions.",
    ),
}
"""Every metric by its name in options and files. Reports, gates, comparisons and training use exactly these."""


class Agreement(Struct, frozen=True, kw_only=True):
    """Every metric of METRICS over `n` pairs, by name. `failed` judgments are left out.

    `agreement.mae` is short for `agreement.estimates["mae"].value`: points (0..9), a share (0..1), or a number in
    -1..1. It is None if and only if `undefined` has a reason. `groups`: number of groups used for the 95 % intervals;
    None if no intervals were requested. `rare`: number of groups that hold most errors, if they are so few that the
    intervals are widened; else None.
    """

    n: int
    failed: int
    estimates: Mapping[str, Estimate]
    groups: int | None = None
    rare: int | None = None

    def __getattr__(self, name: str) -> float | None:
        """Return a metric's value. Raises AttributeError if there is no metric of that name."""
        if name not in METRICS:
            raise AttributeError(f"{name!r} is neither a metric nor a field of Agreement")
        return self.estimates[name].value

    @property
    def undefined(self) -> dict[str, str]:
        """Reasons why metrics are undefined, by name of the metric. Metrics with a value are left out."""
        return {name: each.undefined for name, each in self.estimates.items() if each.value is None and each.undefined}

    @property
    def interval(self) -> dict[str, Interval | None]:
        """95 % interval of each metric by name, None if undefined; empty if no intervals were requested."""
        return {} if self.groups is None else {name: estimate.interval for name, estimate in self.estimates.items()}


def agreement(human: Scores, judge: Scores) -> Agreement:
    """Measure the agreement of n pairs of scores on 1..10.

    None or NaN in `judge` is a failed judgment, which is left out and counted. An undefined metric is None and has a
    reason: without pairs all metrics are undefined, with one pair or a constant side the correlations, and if both
    sides are the same constant, kappa. Raises ValueError for unequal lengths, a missing human score, or a score outside
    1..10.

    >>> result = agreement(human=[3, 8, 5, 9], judge=[4, 8, None, 7])
    >>> result.n, result.failed, result.mae
    (3, 1, 1.0)
    >>> agreement([7, 8, 3, 5], np.array([7, np.nan, 4, np.nan])).mae
    0.5
    >>> one = agreement([7], [8])
    >>> one.n, one.mae, one.fuzzy, one.strict, list(one.undefined)
    (1, 1.0, 1.0, 1.0, ['pearson', 'spearman', 'kendall', 'within'])
    >>> one.undefined["pearson"]
    'a correlation needs at least two pairs'
    >>> for judge in ([7] * 5, [0.1 + 3.2] * 4 + [3.3000000000000003]):
    ...     constant = agreement([1, 2, 3, 4, 5], judge)
    ...     print(constant.pearson, constant.spearman, constant.kendall, list(constant.undefined), constant.mae)
    None None None ['pearson', 'spearman', 'kendall', 'within'] 4.0
    None None None ['pearson', 'spearman', 'kendall', 'within'] 1.26
    >>> constant.undefined["pearson"]
    'the judge gave every response the same score'
    >>> for none in (agreement([], []), agreement([3, 4], [None, np.nan])):
    ...     print(none.n, none.failed, set(none.undefined.values()), {getattr(none, name) for name in METRICS})
    0 0 {'no pairs'} {None}
    0 2 {'no pairs'} {None}
    >>> none.undefined.keys() == METRICS.keys()
    True
    >>> for human, judge in (([0], [1]), ([1], [11]), ([1], [np.inf]), ([1, 5], [1]), ([1, None], [1, 2])):
    ...     try:
    ...         agreement(human, judge)
    ...     except ValueError as error:
    ...         print(error)
    human score 0 is outside 1..10
    judge score 11 is outside 1..10
    judge score inf is outside 1..10
    2 human scores but 1 judge scores
    the human score of row 1 (from 0) is missing
    """
    # One group has no intervals, and so costs no resamples.
    return replace(measured(human, judge, np.zeros(len(human), dtype=np.uint8)), groups=None)


def measured(human: Scores, judge: Scores, group: Group, weight: Floats | None = None) -> Agreement:
    """Measure the agreement as `agreement` does, with 95 % intervals from a bootstrap over groups.

    `group`: the question of each row, or any other cluster. `weight` (n,): 1 / chance of being labelled. With it,
    values and intervals estimate those of all rows, labelled or not (Hájek 1971).
    If errors are rare (RARE), the interval is widened to include Student's t interval, whose degrees of freedom are the
    number of groups that hold the errors.
    A metric has no interval if it is undefined in more than a tenth of the resamples, if all resamples have the same
    value, or with fewer than FEWEST_GROUPS groups. Raises ValueError as `agreement` does.
    """
    people, judged = on_scale(human, "human"), on_scale(judge, "judge")
    for things, column in (("judge scores", judge), ("groups", group)):
        if len(column) != len(human):
            raise ValueError(f"{len(human)} human scores but {len(column)} {things}")
    if (missing := np.isnan(people)).any():
        raise ValueError(f"the human score of row {int(np.argmax(missing))} (from 0) is missing")
    kept = ~np.isnan(judged)
    people, judged, draws = people[kept], judged[kept], Bootstrap(group_numbers(group)[kept])
    n = len(people)
    about: dict[str, Any] = {"n": n, "failed": len(kept) - n, "groups": draws.groups}
    if not n:
        return Agreement(**about, estimates={name: Estimate(n=0, undefined="no pairs") for name in METRICS})
    # Weights are those of the rows that are left.
    (values,) = resampled(people, [judged], draws, None if weight is None else weight[kept])
    reason = _no_correlation(people, judged)
    rare = _count_rare(np.abs(people - judged), draws.member)
    estimates = {}
    for name, metric in METRICS.items():
        estimate = draws.estimate(values[name], n, undefined=reason, share=metric.share, null=metric.null)
        if rare:
            # The resamples do not know that the next sample may have errors on more groups.
            far = scipy.special.stdtrit(rare, (1 + LEVEL) / 2) * np.nanstd(values[name][1:])
            least, most = (0.0, 1.0) if metric.share else (0.0, np.inf) if metric.null is None else (-1.0, 1.0)
            low, high = values[name][0] - far, values[name][0] + far
            estimate = span_both(estimate, (max(float(low), least), min(float(high), most)))
        estimates[name] = _varying(estimate)
    return Agreement(**about, estimates=estimates, rare=rare)


def _count_rare(error: Floats, member: Indices) -> int | None:
    """Return the number of groups whose mean error is above the sample's if errors are rare (RARE), else None.

    `error`: absolute error of each row, (n,). `member`: number of each row's group, (n,), from 0.
    """
    sizes = np.bincount(member)
    count = int((np.bincount(member, error) > sizes * error.mean() + _DUST).sum())
    return count if 0 < count < min(RARE, RARE_SHARE * len(sizes)) else None


def mean_estimate(
    values: Floats | Mask, group: Group, *, share: bool = False, null: float | None = None, weight: Floats | None = None
) -> Estimate:
    """Estimate the mean of `values` (n,), ignoring NaN, by a bootstrap over the groups that have a value.

    The mean of a mask is the share (0..1) of its true entries. `group`, `weight` (n,): group and weight of each value.
    `share`: True if values lie in 0..1. `null`: the mean to test against; None for no test.

    >>> mean_estimate(np.array([1.0, 2.0, np.nan, 6.0]), group=["a", "a", "b", "c"]).value
    3.0
    >>> mean_estimate(np.array([True, False]), group=["a", "b"], share=True).value
    0.5
    """
    # Groups without a value are not resampled: a resample of only such groups would have no mean.
    known = ~np.isnan(values)
    times = np.where(known, 1.0 if weight is None else weight, 0.0)
    by_group = [np.bincount(group_numbers(group), times * column) for column in (np.nan_to_num(values), known)]
    sums = np.stack(by_group)[:, by_group[1] > 0].astype(np.float64)
    if not sums.size:
        return Estimate(n=0, undefined="no items")
    draws = Bootstrap(np.arange(sums.shape[1]))
    total, count = draws.resample_group_sums(sums).T
    return draws.estimate(total / count, int(known.sum()), share=share, null=null)


def _no_correlation(human: Floats, judge: Floats) -> str:
    """Return why a correlation or kappa is undefined on these scores."""
    if len(human) < 2:
        return "a correlation needs at least two pairs"
    if np.ptp(judge) == 0:
        return "the judge gave every response the same score"
    if np.ptp(human) == 0:
        return "people gave every response the same score"
    return "it needs several questions (groups), and different scores within one"


def _varying(estimate: Estimate) -> Estimate:
    """Return the estimate, without its interval if all resamples have the same value.

    An interval without width would claim too much: a judge that was never wrong here may be wrong elsewhere.
    """
    if estimate.interval is None or estimate.interval[1] - estimate.interval[0] >= _DUST:
        return estimate
    return replace(estimate, interval=None, detectable=None, undefined="the same in every resample")


def resampled(
    human: Floats, judges: Sequence[Floats], draws: Bootstrap, weight: Floats | None = None
) -> list[dict[str, Floats]]:
    """Compute every metric of each judge on the sample and on its resamples.

    Returns one dictionary per judge: the values by name of the metric, (1 + resamples,), the sample's first, NaN if
    undefined. Scores and `weight` (n,) have one entry per row of `draws`. All judges have the same resamples, so that
    the difference of two judges is paired.
    """
    # Rows with the same scores of all judges are summed once.
    first, cell = distinct(human, *judges)
    weight = None if weight is None else weight / weight.mean()
    by_unit, drawn = draws.resampling_units(cell, len(first), weight)
    once = next(drawn)
    samples = [Cells(human[first], judge[first], by_unit, once) for judge in judges]
    # Resamples come in blocks, so that memory does not grow with their number.
    blocks_of: list[dict[str, list[Floats]]] = [{name: [] for name in METRICS} for _ in judges]
    for block in chain([once], drawn):
        for cells, values in zip(samples, blocks_of, strict=True):
            sums = PairSums(cells, block)
            for name, metric in METRICS.items():
                values[name].append(metric.of(sums))
    results = [{name: np.concatenate(parts) for name, parts in values.items()} for values in blocks_of]
    for cells, of_judge in zip(samples, results, strict=True):
        for name, metric in METRICS.items():
            # A coarse table shifts rank correlations; the exact value of the sample corrects all resamples.
            if cells.coarse and metric.exact and not np.isnan(of_judge[name][0]):
                of_judge[name] = around(metric.exact(cells), of_judge[name])
    return results
