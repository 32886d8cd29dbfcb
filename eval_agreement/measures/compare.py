"""Comparison of two judges on the same answers: paired differences, and non-inferiority within margins."""

from itertools import combinations

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from critic.stats.estimate import LEVEL, Bootstrap, CorrectedEstimate, Interval, count_unshown, detectable, holm
from eval_agreement.metrics import METRICS, resampled
from eval_agreement.sample import AuditRequest, RatedSample

MARGINS = {"mae": 0.1, "pearson": 0.05}
"""Non-inferiority margins by metric, in the metric's own unit."""


class MetricDifference(CorrectedEstimate, frozen=True, kw_only=True):
    """A metric of judge `first` minus the same metric of judge `second`.

    - p_holm, detectable: corrected over the pair's metrics. better: name of the judge ahead if p_holm is at most 5 %,
      else None.
    - no_worse: True if `first` is shown to be worse than `second` by less than the margin in MARGINS, if at all; False
      if that is not shown; None without a margin or an interval.
    """

    metric: str
    first: float
    second: float
    better: str | None = None
    no_worse: bool | None = None


class Comparison(Struct, frozen=True, kw_only=True):
    """Comparison of two judges on `n` answers, in `groups` groups, that both scored.

    `left_out`: number of answers that at least one of the judges did not score.
    """

    first: str
    second: str
    n: int
    left_out: int
    groups: int
    differences: list[MetricDifference]


def compare_judges(sample: RatedSample, _: AuditRequest) -> list[Comparison]:
    """Compare every pair of a sample's judges on the labelled answers, in the order given."""
    return [compare(sample.labelled, first, second) for first, second in combinations(sample.judges, 2)]


def compare(sample: RatedSample, first: str, second: str) -> Comparison:
    """Compare two judges of a sample: return the differences of all metrics, on the same resamples of groups."""
    pair = sample.rows(~np.isnan(sample.judges[first] + sample.judges[second]))
    draws = Bootstrap(pair.groups)
    scores = [pair.judges[first], pair.judges[second]]
    left_values, right_values = resampled(pair.human, scores, draws, pair.weight) if pair.ids else ({}, {})
    estimates = {}
    for name, left_value in left_values.items():
        estimate = draws.estimate(left_value - right_values[name], len(pair.ids), null=0.0)
        # A metric that is undefined for one of the judges has no difference.
        if estimate.value is not None:
            estimates[name] = estimate
    # A pair's metrics are one family: with many metrics, one of them differs by chance.
    adjusted = holm([estimate.p_value for estimate in estimates.values()])
    lines = []
    for (name, estimate), p in zip(estimates.items(), adjusted, strict=True):
        first_ahead = ((estimate.value or 0) > 0) != METRICS[name].lower_is_better
        ahead = first if first_ahead else second
        needed = estimate.interval and detectable(estimate.interval, draws.groups, tests=count_unshown(adjusted))
        line = MetricDifference(
            metric=name,
            first=float(left_values[name][0]),
            second=float(right_values[name][0]),
            p_holm=p,
            better=ahead if p is not None and p <= 1 - LEVEL else None,
            no_worse=within_margin(name, estimate.interval),
            **asdict(estimate) | {"detectable": needed},
        )
        lines.append(line)
    counts = {"n": len(pair.ids), "left_out": len(sample.ids) - len(pair.ids), "groups": draws.groups}
    return Comparison(first=first, second=second, differences=lines, **counts)


def within_margin(metric: str, interval: Interval | None) -> bool | None:
    """Return True if the first judge is shown to be worse than the second by less than the metric's margin, if at all.

    `interval`: interval of the metric's difference, first minus second. Returns None if the metric has no margin or the
    difference no interval.

    >>> within_margin("mae", (-0.3, 0.05)), within_margin("mae", (-0.3, 0.15)), within_margin("kendall", (0.0, 0.1))
    (True, False, None)
    """
    if metric not in MARGINS or interval is None:
        return None
    low, high = interval
    return high < MARGINS[metric] if METRICS[metric].lower_is_better else low > -MARGINS[metric]
