"""A whole `critic audit` (two judges, groups, every breakdown, the report) against a loop over SciPy that makes the
intervals of its first table only.

python tests/bench/audit_full.py [--rows 1000000]
"""

import argparse
import csv
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from critic.counting.estimate import RESAMPLES
from eval_agreement.metrics import FUZZY_RANGES, STRICT_RANGES, bands

ROUNDS, LOOP_RESAMPLES, ANSWERERS, TASKS = 3, 20, 20, 10
Floats = NDArray[np.float64]


def simulated(rows: int) -> tuple[Floats, Floats, Floats]:
    """People and two judges that share a true quality, in whole scores."""
    random = np.random.default_rng(0)
    quality = random.normal(5.5, 2.5, rows)
    human, first, second = (np.clip(np.rint(quality + random.normal(0, s, rows)), 1, 10) for s in (1, 1, 1.5))
    return human, first, second


def write(path: Path, human: Floats, first: Floats, second: Floats) -> None:
    """As llmeval2 is laid out: a question is answered by all answerers, and is a group."""
    length = np.random.default_rng(1).integers(10, 900, len(human))
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["id", "human", "first", "second", "group", "task", "system", "lang", "length"])
        for row, scores in enumerate(zip(human, first, second, strict=True)):
            question = row // ANSWERERS
            facts = [f"q{question}", f"task{question % TASKS}", f"m{row % ANSWERERS}", ["zh", "en"][question % 2]]
            table.writerow([row, *scores, *facts, length[row]])


def audit_seconds(folder: Path, table: Path) -> float:
    source = [f"{name}={table}:{name}" for name in ("first", "second")]
    words = [
        "audit",
        "--human",
        f"{table}:human",
        "--judge",
        source[0],
        "--judge",
        source[1],
        "--out",
        str(folder / "out"),
    ]
    start = time.perf_counter()
    program = "from critic.cli import main; main()"
    subprocess.run([sys.executable, "-c", program, *words], check=True, capture_output=True)
    return time.perf_counter() - start


def loop_seconds(human: Floats, judges: list[Floats]) -> float:
    """What the six metrics' intervals of both judges would take, from LOOP_RESAMPLES of RESAMPLES resamples."""
    random = np.random.default_rng(0)
    groups = len(human) // ANSWERERS
    start = time.perf_counter()
    for _ in range(LOOP_RESAMPLES):
        drawn = random.integers(groups, size=groups)
        rows = (drawn[:, None] * ANSWERERS + np.arange(ANSWERERS)).ravel()
        for judge in judges:
            x, y = human[rows], judge[rows]
            np.mean(np.abs(x - y))
            for test in (stats.pearsonr, stats.spearmanr, stats.kendalltau):
                test(x, y)
            for ranges in (FUZZY_RANGES, STRICT_RANGES):
                np.mean(bands(x, ranges) == bands(y, ranges))
    return (time.perf_counter() - start) * RESAMPLES / LOOP_RESAMPLES


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=8000)
    rows = options.parse_args().rows
    human, first, second = simulated(rows)
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "table.csv", human, first, second)
        for _ in range(ROUNDS if rows <= 100_000 else 1):
            ours.append(audit_seconds(folder, folder / "table.csv"))
            theirs.append(loop_seconds(human, [first, second]))
            print(f"whole audit {ours[-1]:.1f} s, SciPy loop for its first table {theirs[-1]:.0f} s")
    print(
        json.dumps(
            {
                "name": "audit_full",
                "ratio": round(median(theirs) / median(ours), 1),
                "audit_seconds": round(median(ours), 1),
                "rows": rows,
                "peak_mb": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024),
            }
        )
    )


if __name__ == "__main__":
    main()
