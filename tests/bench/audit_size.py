"""How `critic audit` grows: seconds and peak memory at 10,000 rows and up, two judges, questions with 20 answers each.

python tests/bench/audit_size.py [--most 1000000]

Of a Parquet table, reading, breakdowns, bias, calibration and report included. Seconds are those of the clock, and of
the processor in brackets; memory is the most that the process held.
"""

import atexit
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import typer
from numpy.typing import NDArray

ANSWERERS, TASKS = 20, 10


def simulated(rows: int) -> list[NDArray[np.float64]]:
    """People and two judges that share a true quality, in whole scores."""
    random = np.random.default_rng(0)
    quality = random.normal(5.5, 2.5, rows)
    return [np.clip(np.rint(quality + random.normal(0, noise, rows)), 1, 10) for noise in (1, 1, 1.5)]


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


def measured(rows: int) -> dict[str, float]:
    """Seconds, seconds of the processor and megabytes of a program of its own."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.parquet"
        write(table, rows)
        here = str(Path(__file__).parent)
        call = f"say_peak(); audit(Path({str(table)!r}))"
        program = f"import sys; sys.path.insert(0, {here!r}); from audit_size import *; {call}"
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    megabytes = int(done.stdout.split()[-1]) / 1024
    return {"rows": rows, "seconds": round(seconds, 1), "cpu": round(spent, 1), "mb": round(megabytes)}


def main(most: int = 1_000_000) -> None:
    """Audit 10,000 rows, and ten times as many again, up to --most."""
    sizes, rows = [], 10_000
    while rows <= most:
        sizes.append(measured(rows))
        print(f"{rows:>10,} rows: {sizes[-1]['seconds']} s ({sizes[-1]['cpu']} s), {sizes[-1]['mb']} MB", flush=True)
        rows *= 10
    first, last = sizes[0], sizes[-1]
    ratio = round(first["cpu"] / last["cpu"] * last["rows"] / first["rows"], 2)  # above 1: less a row
    print(json.dumps({"name": "audit_size", "ratio": ratio, "sizes": sizes}))


if __name__ == "__main__":
    typer.run(main)
