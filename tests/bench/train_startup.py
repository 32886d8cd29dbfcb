"""How long training waits for its data: rows rendered and tokenized in one process, in all, and found done.

    python tests/bench/train_startup.py --rows 100000

Rows of the sample world, the tiny recipe. Ends in one JSON line: `ratio` is one process over finding them done,
`parallel` one process over all.
"""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "train")]
os.environ.setdefault("DS_ACCELERATOR", "cpu")

from recipe import read_recipe  # noqa: E402
from rows import prepare  # noqa: E402

from critic import jsonl  # noqa: E402


def make_rows(path: Path, count: int) -> None:
    world = path.with_name("world.jsonl")
    subprocess.run([sys.executable, str(ROOT / "data/sample_world.py"), "--out", str(world)], check=True)
    lines = [json.loads(line) for _, line in jsonl.lines(world)]
    repeated = itertools.islice(itertools.cycle(lines), count)
    jsonl.write(path, ({**line, "id": f"{number}"} for number, line in enumerate(repeated)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20000)
    given = parser.parse_args()
    scratch = Path(tempfile.mkdtemp())
    rows = scratch / "rows.jsonl"
    make_rows(rows, given.rows)
    recipe = read_recipe(ROOT / "train/recipes/tiny.yaml")

    def seconds(processes: int) -> float:
        start = time.perf_counter()
        data, _ = prepare(recipe, rows, scratch / "cache", processes)
        assert len(data.rows) == given.rows
        return time.perf_counter() - start

    alone = seconds(1)
    found = seconds(1)
    shutil.rmtree(scratch / "cache")
    every = seconds(os.cpu_count() or 1)
    shutil.rmtree(scratch)
    parts = [f"one process {alone:.1f} s", f"{os.cpu_count()} processes {every:.1f} s", f"found done {found:.2f} s"]
    print(f"{given.rows} rows: {', '.join(parts)}")
    print(json.dumps({"name": "train_startup", "ratio": round(alone / found, 1), "parallel": round(alone / every, 2)}))


if __name__ == "__main__":
    main()
