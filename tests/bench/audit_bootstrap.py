"""How much faster the audit's bootstrap is than a loop over SciPy: 5,000 pairs, one thread, in CPU seconds.

python tests/bench/audit_bootstrap.py
"""

import json
import os
import platform
import resource
import time
from collections.abc import Callable
from itertools import islice
from statistics import median

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import numpy as np
from audit_size import simulated
from numpy.typing import NDArray
from scipy import stats
from sklearn.metrics import mean_absolute_error

from critic.stats import estimate
from critic.stats.estimate import Bootstrap
from eval_agreement import agreement, measured
from eval_agreement.metrics import FUZZY_RANGES, STRICT_RANGES

PAIRS, GROUPS, RESAMPLES, LOOP_RESAMPLES, ROUNDS = 5000, 1000, 10_000, 40, 5
Scores = NDArray[np.float64]


def same(human: Scores, judge: Scores, ranges: tuple[tuple[int, int], ...]) -> float:
    edges = [high + 0.5 for _, high in ranges]
    return float(np.mean(np.digitize(human, edges) == np.digitize(judge, edges)))


LIBRARY: dict[str, Callable[[Scores, Scores], float]] = {
    "mae": mean_absolute_error,
    "pearson": lambda human, judge: stats.pearsonr(human, judge).statistic,
    "spearman": lambda human, judge: stats.spearmanr(human, judge).statistic,
    "kendall": lambda human, judge: stats.kendalltau(human, judge).statistic,
    "fuzzy": lambda human, judge: same(human, judge, FUZZY_RANGES),
    "strict": lambda human, judge: same(human, judge, STRICT_RANGES),
}
"""The six metrics of AlignMMBench as one would write them with SciPy and scikit-learn."""


def by_library(human: Scores, judge: Scores) -> list[float]:
    return [metric(human, judge) for metric in LIBRARY.values()]


def loop(human: Scores, judge: Scores, draws: Bootstrap) -> Scores:
    """The metrics of each resample (6, R), rows repeated as often as their group was drawn."""
    resampled = []
    for block in islice(draws.draw_counts(), 1, None):
        for count in block.T:
            rows = np.repeat(np.arange(len(human)), count[draws.member].astype(int))
            resampled.append(by_library(human[rows], judge[rows]))
    values = np.array(resampled).T
    np.quantile(values, [0.025, 0.975], axis=1)
    return values


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def compare(name: str, human: Scores, judge: Scores, group: NDArray[np.intp], resamples: int) -> dict[str, float]:
    metrics = agreement(human, judge)
    difference = float(
        np.abs(np.subtract([getattr(metrics, name) for name in LIBRARY], by_library(human, judge))).max()
    )
    assert difference <= 1e-12, difference
    estimate.RESAMPLES = resamples
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(seconds(lambda: measured(human, judge, group).interval) / resamples)
        theirs.append(seconds(lambda: loop(human, judge, Bootstrap(group, LOOP_RESAMPLES))) / LOOP_RESAMPLES)
    ratio = median(theirs) / median(ours)
    micros = median(ours) * 1e6
    print(f"{name}: a resample takes {micros:.1f} us, the loop's {median(theirs) * 1e6:.0f} us: {ratio:.0f} x")
    return {"ratio": round(ratio, 1), "us": round(micros, 1), "largest_difference": difference}


def main() -> None:
    human, judge, _ = simulated(PAIRS)
    smooth = np.clip(judge + np.random.default_rng(1).normal(0, 0.3, PAIRS), 1, 10)
    rough = np.clip(human + np.random.default_rng(3).normal(0, 0.3, PAIRS), 1, 10)
    alone, grouped = np.arange(PAIRS), np.repeat(np.arange(GROUPS), PAIRS // GROUPS)
    sizes = {
        "grouped": compare("grouped", human, judge, grouped, RESAMPLES),
        "ungrouped": compare("ungrouped", human, judge, alone, RESAMPLES),
        "continuous": compare("continuous", human, smooth, grouped, RESAMPLES // 5),
        "both": compare("continuous on both sides", rough, smooth, grouped, RESAMPLES // 5),
    }
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    estimate.RESAMPLES = 10 * RESAMPLES
    measured(human, judge, grouped)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"ten times the resamples: {grown:.0f} MB more memory")
    facts = {"pairs": PAIRS, "groups": GROUPS, "resamples": RESAMPLES, "python": platform.python_version()}
    result = {"name": "audit_bootstrap", "ratio": sizes["grouped"]["ratio"], "more_mb_at_10x": round(grown, 1)}
    print(json.dumps({**result, **sizes, **facts}))


if __name__ == "__main__":
    main()
