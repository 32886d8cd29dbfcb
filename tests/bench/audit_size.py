"""How the audit grows: seconds and peak memory at 10,000 rows and up, two judges, questions with 20 answers each.

python tests/bench/audit_size.py [--most 1000000] [--fractional] [--whole] [--picture audit_size.png]

Without --whole: all metrics of both judges with intervals from 2,000 resamples over groups. With it: `critic audit` on
a Parquet table, reading, breakdowns, bias, calibration and report included. Seconds are those of the clock, and of the
processor in brackets; memory is the most that the process held.
"""

import argparse
import atexit
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from audit_full import ANSWERERS, TASKS, simulated

from eval_agreement.metrics import agreement_interval

RESAMPLES = 2000


def metrics(rows: int, fractional: bool) -> None:
    human, *judges = simulated(rows)
    if fractional:
        noise = np.random.default_rng(1).normal(0, 0.3, (2, rows))
        judges = [np.clip(judge + one, 1, 10) for judge, one in zip(judges, noise, strict=True)]
    group = np.arange(rows) // ANSWERERS
    for judge in judges:
        agreement_interval(human, judge, group, RESAMPLES)


def audit(table: Path) -> None:
    from critic.cli import main

    judges = [word for name in ("first", "second") for word in ("--judge", f"{name}={table}:{name}")]
    sys.argv = ["critic", "audit", "--human", f"{table}:human", *judges, "--out", str(table.with_suffix(""))]
    main()


def say_peak() -> None:
    """At the end, the most kilobytes. This one's `ru_maxrss` would begin with the peak of the process
    that started it, which wrote the table."""

    def largest() -> int:
        status = Path("/proc/self/status").read_text("utf-8")
        own = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)

    atexit.register(lambda: print("\n", largest()))


def write(table: Path, rows: int) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    scores = dict(zip(("human", "first", "second"), simulated(rows), strict=True))
    number = np.arange(rows)
    question = number // ANSWERERS
    texts = {"group": question, "task": question % TASKS, "system": number % ANSWERERS, "lang": question % 2}
    columns = {"id": number, **texts}
    lengths = np.random.default_rng(1).integers(10, 900, rows)
    cells = {name: pa.array(values).cast(pa.string()) for name, values in columns.items()}
    parquet.write_table(pa.table({**cells, **scores, "length": lengths}), table)


def measured(rows: int, fractional: bool, whole: bool) -> dict[str, float]:
    """Seconds, seconds of the processor and megabytes of a program of its own."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.parquet"
        if whole:
            write(table, rows)
        call = f"audit(Path({str(table)!r}))" if whole else f"metrics({rows}, {fractional})"
        here = str(Path(__file__).parent)
        program = f"import sys; sys.path.insert(0, {here!r}); from audit_size import *; say_peak(); {call}"
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        words = [sys.executable, "-c", program]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    megabytes = int(done.stdout.split()[-1]) / 1024
    return {"rows": rows, "seconds": round(seconds, 1), "cpu": round(spent, 1), "mb": round(megabytes)}


def draw(path: Path, found: list[dict[str, float]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    for axes, names, unit in zip(figure.subplots(1, 2), (("seconds", "cpu"), ("mb",)), ("seconds", "MB"), strict=True):
        for name in names:
            axes.loglog([one["rows"] for one in found], [one[name] for one in found], marker="o", label=name)
        axes.set(xlabel="rows", ylabel=unit)
        axes.grid(visible=True, which="both", alpha=0.2)
        axes.legend()
    figure.savefig(path)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--most", type=int, default=1_000_000)
    options.add_argument("--fractional", action="store_true")
    options.add_argument("--whole", action="store_true")
    options.add_argument("--picture", type=Path)
    given = options.parse_args()
    found, rows = [], 10_000
    while rows <= given.most:
        found.append(measured(rows, given.fractional, given.whole))
        print(f"{rows:>10,} rows: {found[-1]['seconds']} s ({found[-1]['cpu']} s), {found[-1]['mb']} MB", flush=True)
        rows *= 10
    if given.picture:
        draw(given.picture, found)
    how = {"whole": given.whole, "fractional": given.fractional, "resamples": RESAMPLES}
    ratio = round(found[0]["cpu"] / found[-1]["cpu"] * found[-1]["rows"] / found[0]["rows"], 2)  # above 1: less a row
    print(json.dumps({"name": "audit_size", "ratio": ratio, **how, "sizes": found}))


if __name__ == "__main__":
    main()
