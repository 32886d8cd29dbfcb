"""The bootstrap over groups: what every interval in this package shares.

Rows that share a question or an image are not independent, so whole groups are drawn with replacement. Intervals are
percentile intervals, widened for few groups (Hesterberg 2015, §3.2).
"""

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Interval = tuple[float, float]

LEVEL = 0.95
"""Coverage of every interval."""

FEWEST_GROUPS = 5
"""Below this many groups a bootstrap interval is far too narrow, and none is given."""

RESAMPLES, FLIPS, SEED = 2000, 10_000, 0

_CELLS_PER_BLOCK = 4_000_000


def tail(groups: int) -> float:
    """The share of resamples beyond each end of an interval: that of the normal distribution, widened to Student's t
    with groups - 1 degrees of freedom (its quantile by the Cornish-Fisher series, Abramowitz and Stegun 26.7.5)."""
    z, free = NormalDist().inv_cdf((1 + LEVEL) / 2), groups - 1
    series = [
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    ]
    quantile = sum(term / free**power for power, term in enumerate(series))
    return NormalDist().cdf(-quantile * math.sqrt(groups / free))


def mean_interval(sums: Floats, counts: Floats) -> Interval:
    """The interval of a mean over rows, from each group's sum and number of rows (G,). Needs FEWEST_GROUPS groups."""
    groups = len(sums)
    random = np.random.default_rng(SEED)
    block = max(1, _CELLS_PER_BLOCK // groups)
    draws = []
    for start in range(0, RESAMPLES, block):
        drawn = random.multinomial(groups, np.full(groups, 1 / groups), size=min(block, RESAMPLES - start))
        draws.append((drawn @ sums) / (drawn @ counts))
    low, high = np.quantile(np.concatenate(draws), [tail(groups), 1 - tail(groups)]).tolist()
    return low, high


def sign_flip_p(sums: Floats) -> float:
    """Two-sided p-value of "the differences are as likely as their opposites", from each group's sum (G,): the share
    of random signs whose total is at least as far from 0 (Phipson and Smyth 2010: the data count as one draw)."""
    random = np.random.default_rng(SEED)
    block = max(1, _CELLS_PER_BLOCK // len(sums))
    # Totals that are equal but for rounding count as equal.
    bar = abs(float(sums.sum())) * (1 - 1e-12) - 1e-12 * float(np.abs(sums).sum())
    beyond = 0
    for start in range(0, FLIPS, block):
        signs = random.choice((-1.0, 1.0), size=(min(block, FLIPS - start), len(sums)))
        beyond += int((np.abs(signs @ sums) >= bar).sum())
    return (beyond + 1) / (FLIPS + 1)
