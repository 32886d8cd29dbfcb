"""Judge against judge on the same answers: paired differences, and whether one may take the other's place."""

from itertools import combinations

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from critic.stats.estimate import LEVEL, Bootstrap, CorrectedEstimate, Interval, holm
from eval_agreement.metrics import METRICS, resampled
from eval_agreement.sample import RatedSample

MARGINS = {"mae": 0.1, "pearson": 0.05}
"""By how much a judge may be worse and still count as good enough, in the metric's own unit."""


class MetricDifference(CorrectedEstimate, frozen=True, kw_only=True):
    """A metric of judge `first` less that of `second`. The family of `p_holm` are the pair's metrics; `better` is ahead
    where it is at most 5 %. `no_worse`: as good but for the margin of MARGINS, by the whole interval."""

    metric: str
    first: float
    second: float
    better: str | None = None
    no_worse: bool | None = None


class Comparison(Struct, frozen=True, kw_only=True):
    """Two judges on the `n` answers, to `groups` questions, that both scored; `left_out` ones lack a score."""

    first: str
    second: str
    n: int
    left_out: int
    groups: int
    differences: list[MetricDifference]


def comparisons(sample: RatedSample) -> list[Comparison]:
    """Every pair of a sample's judges, in the order given."""
    return [compare(sample, first, second) for first, second in combinations(sample.judges, 2)]


def compare(sample: RatedSample, first: str, second: str) -> Comparison:
    """The paired differences of all metrics, on the same resamples of groups."""
    both = ~np.isnan(sample.judges[first] + sample.judges[second])
    human, left, right = (scores[both] for scores in (sample.human, sample.judges[first], sample.judges[second]))
    draws = Bootstrap(sample.groups[both])
    weight = None if sample.weight is None else sample.weight[both]
    mine, theirs = resampled(human, [left, right], draws, weight) if both.any() else ({}, {})
    estimates = {name: draws.estimate(mine[name] - theirs[name], len(human), null=0.0) for name in mine}
    estimates = {name: estimate for name, estimate in estimates.items() if estimate.value is not None}
    lines, adjusted = [], holm([estimate.p_value for estimate in estimates.values()])
    for (name, estimate), p in zip(estimates.items(), adjusted, strict=True):
        ahead = (first, second)[((estimate.value or 0) > 0) == METRICS[name].lower_is_better]
        values = {"first": float(mine[name][0]), "second": float(theirs[name][0]), **asdict(estimate)}
        values |= {"p_holm": p, "better": ahead if p is not None and p <= 1 - LEVEL else None}
        lines.append(MetricDifference(metric=name, no_worse=_within_margin(name, estimate.interval), **values))
    counts = {"n": int(both.sum()), "left_out": int((~both).sum()), "groups": draws.groups}
    return Comparison(first=first, second=second, differences=lines, **counts)


def _within_margin(metric: str, interval: Interval | None) -> bool | None:
    if metric not in MARGINS or interval is None:
        return None
    low, high = interval
    return high < MARGINS[metric] if METRICS[metric].lower_is_better else low > -MARGINS[metric]
