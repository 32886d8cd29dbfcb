"""The page for raters: items a second with ten at once, time to the next item among many rows and labels, and kills.

    python tests/bench/annotate.py

A server in a process of its own, raters that answer at once; the times are those of one rater alone. `ratio` is the
time to the next item among 1,000 rows ÷ that among 100,000 rows and 990,000 labels: 1 where it does not grow.
"""

import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))
from annotating import client_of, fields, forked, label, planned, rows_file
from conftest import write_jsonl

from eval_agreement.annotate.store import Said, Store

RATERS, LABELS, KILLS = 10, 100, 200
SIZES = ((1_000, 0), (100_000, 0), (100_000, 990_000))


def seconds_each(url: str, rater: str, count: int) -> dict[str, list[float]]:
    """Seconds until a label is kept, and until the page after it is there."""
    found: dict[str, list[float]] = {"label": [], "next_page": []}
    with client_of(url) as client:
        form = fields(client, rater)
        for _ in range(count):
            start = time.perf_counter()
            label(client, rater, form)
            found["label"].append(time.perf_counter() - start)
            start = time.perf_counter()
            form = fields(client, rater)
            found["next_page"].append(time.perf_counter() - start)
    return found


def many(folder: Path, rows: int, labelled: int) -> Store:
    """A database of so many rows before ten raters, of whose tasks so many are labelled."""
    lines = [{"id": f"row-{n}", "question": f"Question {n}?", "response": "An answer. " * 20} for n in range(rows)]
    options = ("--raters", RATERS, "--overlap", 1)
    store = planned(folder, *options, rows=write_jsonl(folder / "rows.jsonl", lines))
    said = msgspec.json.encode(Said(choices={"overall": "7"}, seconds=5.0))
    with store._writing() as database:
        chosen = "SELECT id, rater FROM tasks ORDER BY place LIMIT ?"
        given = [(task, rater, str(task), 0.0, said) for task, rater in database.execute(chosen, (labelled,))]
        database.executemany("INSERT INTO labels (task, rater, once, at, said) VALUES (?, ?, ?, ?, ?)", given)
        database.executemany("UPDATE tasks SET label = ? WHERE id = ?", enumerate((one[0] for one in given), 1))
        done = "UPDATE raters SET done = (SELECT count(*) FROM tasks WHERE rater = name AND label IS NOT NULL)"
        database.execute(done)
    return store


def kills(folder: Path) -> tuple[int, int]:
    """Labels that were confirmed over KILLS kills of the server, and those of them that are gone."""
    store = planned(folder, rows=rows_file(folder, 20_000))
    confirmed = set()
    for number in range(KILLS):
        with forked(store.path) as (child, url), client_of(url) as client:
            form = fields(client, "rater-1")
            timer = threading.Timer(0.01 + 0.02 * (number % 17), os.kill, (child, signal.SIGKILL))
            timer.start()
            try:
                while form.hidden and label(client, "rater-1", form).status_code == 200:
                    confirmed.add(int(form.hidden["task"]))
                    form = fields(client, "rater-1")
            except httpx.HTTPError:
                timer.join()
    kept = {task for (task,) in store._rows("SELECT task FROM labels")}
    return len(confirmed), len(confirmed - kept)


def measured(store: Store) -> dict[str, float]:
    """Milliseconds of a label and of the next page, and items a second of ten raters at once."""
    raters = [f"rater-{number}" for number in range(1, RATERS + 1)]
    with forked(store.path) as (_, url):
        found = seconds_each(url, raters[0], 4 * LABELS)
        threads = [threading.Thread(target=seconds_each, args=(url, rater, LABELS)) for rater in raters]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rate = RATERS * LABELS / (time.perf_counter() - start)
    shown = {"items_a_second": float(round(rate))}
    for name, seconds in found.items():
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
        confirmed, lost = kills(Path(name))
    few, *_, many_labels = (sizes["next_page_median_ms"] for sizes in results.values())
    more = {"kills": KILLS, "confirmed": confirmed, "lost": lost}
    print(json.dumps({"name": "annotate", "ratio": round(few / many_labels, 2), **results, **more}))


if __name__ == "__main__":
    main()
