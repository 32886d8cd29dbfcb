"""The page for raters: items a second with ten at once, and time to the next item among many rows and labels.

    python tests/bench/annotate.py

A server in a process of its own, raters that answer at once; the times are those of one rater alone. `ratio` is the
time to the next item among 1,000 rows ÷ that among 100,000 rows and 990,000 labels: 1 where it does not grow.
"""

import json
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))
from annotating import client_of, fields, forked, label, planned
from conftest import write_jsonl

from eval_agreement.annotate.store import RaterVerdict, Store

RATERS, LABELS = 10, 100
SIZES = ((1_000, 0), (100_000, 0), (100_000, 990_000))


def seconds_each(url: str, rater: str, count: int) -> dict[str, list[float]]:
    """Seconds until a label is kept, and until the page after it is there."""
    seconds_of: dict[str, list[float]] = {"label": [], "next_page": []}
    with client_of(url) as client:
        form = fields(client, rater)
        for _ in range(count):
            start = time.perf_counter()
            label(client, rater, form)
            seconds_of["label"].append(time.perf_counter() - start)
            start = time.perf_counter()
            form = fields(client, rater)
            seconds_of["next_page"].append(time.perf_counter() - start)
    return seconds_of


def many(folder: Path, rows: int, labelled: int) -> Store:
    """A database of so many rows before ten raters, of whose tasks so many are labelled."""
    lines = [{"id": f"row-{n}", "question": f"Question {n}?", "response": "An answer. " * 20} for n in range(rows)]
    options = ("--raters", RATERS, "--overlap", 1)
    store = planned(folder, *options, rows=write_jsonl(folder / "rows.jsonl", lines))
    said = msgspec.json.encode(RaterVerdict(choices={"overall": "7"}, seconds=5.0))
    with store._writing() as database:
        chosen = "SELECT id FROM tasks ORDER BY place LIMIT ?"
        given = [(task, 0.0, said) for (task,) in database.execute(chosen, (labelled,))]
        database.executemany("INSERT INTO labels (task, at, said) VALUES (?, ?, ?)", given)
        database.executemany("UPDATE tasks SET label = ? WHERE id = ?", enumerate((row[0] for row in given), 1))
    return store


def measured(store: Store) -> dict[str, float]:
    """Milliseconds of a label and of the next page, and items a second of ten raters at once."""
    raters = [f"rater-{number}" for number in range(1, RATERS + 1)]
    with forked(store.path) as (_, url):
        seconds_of = seconds_each(url, raters[0], 4 * LABELS)
        start = time.perf_counter()
        with ThreadPoolExecutor(RATERS) as pool:
            list(pool.map(lambda rater: seconds_each(url, rater, LABELS), raters))
    rate = RATERS * LABELS / (time.perf_counter() - start)
    shown = {"items_a_second": float(round(rate))}
    for name, seconds in seconds_of.items():
        shown[f"{name}_median_ms"] = round(1000 * statistics.median(seconds), 1)
        shown[f"{name}_p99_ms"] = round(1000 * sorted(seconds)[int(0.99 * len(seconds))], 1)
    return shown


def main() -> None:
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        for rows, labelled in SIZES:
            folder = Path(name) / f"{rows}-{labelled}"
            folder.mkdir()
            results[f"{rows} rows, {labelled} labels"] = measured(many(folder, rows, labelled))
    few, *_, many_labels = (sizes["next_page_median_ms"] for sizes in results.values())
    print(json.dumps({"name": "annotate", "ratio": round(few / many_labels, 2), **results}))


if __name__ == "__main__":
    main()
