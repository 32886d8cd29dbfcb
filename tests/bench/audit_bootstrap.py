"""How much faster the audit's bootstrap is than a loop over SciPy, on 5,000 pairs in 1,000 groups.

python tests/bench/audit_bootstrap.py
"""

import json
import platform
import time
from collections.abc import Callable
from statistics import median

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn.metrics import mean_absolute_error

from eval_agreement.metrics import FUZZY_RANGES, METRICS, STRICT_RANGES, agreement_interval, group_counts, resampled

PAIRS, GROUPS, RESAMPLES, LOOP_RESAMPLES, ROUNDS = 5000, 1000, 1000, 40, 5
Scores = NDArray[np.float64]


def simulated() -> tuple[Scores, Scores, NDArray[np.intp]]:
    """Whole scores of people and a judge that share a true quality, and the group of each pair."""
    random = np.random.default_rng(0)
    quality = random.normal(5.5, 2.5, PAIRS)
    human, judge = (np.clip(np.rint(quality + random.normal(0, 1, PAIRS)), 1, 10) for _ in range(2))
    return human, judge, np.repeat(np.arange(GROUPS), PAIRS // GROUPS)


def by_library(human: Scores, judge: Scores) -> list[float]:
    """The six metrics as one would write them with SciPy and scikit-learn."""

    def same(ranges: tuple[tuple[int, int], ...]) -> float:
        edges = [high + 0.5 for _, high in ranges]
        return float(np.mean(np.digitize(human, edges) == np.digitize(judge, edges)))

    return [
        mean_absolute_error(human, judge),
        stats.pearsonr(human, judge).statistic,
        stats.spearmanr(human, judge).statistic,
        stats.kendalltau(human, judge).statistic,
        same(FUZZY_RANGES),
        same(STRICT_RANGES),
    ]


def loop(human: Scores, judge: Scores, group: NDArray[np.intp], resamples: int) -> NDArray[np.float64]:
    """The metrics of each resample, rows repeated as often as their group was drawn."""
    found = []
    for count in group_counts(GROUPS, resamples, seed=0):
        rows = np.repeat(np.arange(PAIRS), count[group])
        found.append(by_library(human[rows], judge[rows]))
    values = np.array(found)
    np.quantile(values, [0.025, 0.975], axis=0)
    return values


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    human, judge, group = simulated()
    names = group.tolist()
    expected = loop(human, judge, group, LOOP_RESAMPLES)
    found = np.array(list(resampled(human, judge, group, group_counts(GROUPS, LOOP_RESAMPLES, seed=0))))
    difference = float(np.abs(found - expected).max())
    assert difference <= 1e-12, difference
    print(f"{LOOP_RESAMPLES} resamples x {len(METRICS)} metrics: largest difference {difference:.1e}")

    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(seconds(lambda: agreement_interval(human, judge, names, RESAMPLES)) / RESAMPLES)
        theirs.append(seconds(lambda: loop(human, judge, group, LOOP_RESAMPLES)) / LOOP_RESAMPLES)
        print(f"a resample: audit {ours[-1] * 1e6:.1f} us, loop {theirs[-1] * 1e6:.1f} us")
    print(
        json.dumps(
            {
                "name": "audit_bootstrap",
                "ratio": round(median(theirs) / median(ours), 1),
                "audit_seconds_per_1000": round(median(ours) * 1000, 4),
                "loop_seconds_per_1000": round(median(theirs) * 1000, 3),
                "largest_difference": difference,
                "pairs": PAIRS,
                "groups": GROUPS,
                "rounds": ROUNDS,
                "python": platform.python_version(),
            }
        )
    )


if __name__ == "__main__":
    main()
