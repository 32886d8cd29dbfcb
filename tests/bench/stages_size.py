"""How judge, merge, score and audit grow: seconds, peak memory and time a row at 10,000 rows and up.

python tests/bench/stages_size.py [--least 10000] [--most 1000000] [--stages judge,merge] [--picture sizes.svg]

Rows of some 700 bytes, twenty answers to a question. Of each of two shards all but a hundredth was judged before, as by
a run that was killed: what is left is judged by scripted replies. The shards are merged, and the whole is scored and
audited. Each stage is a process of its own.
"""

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from audit_size import draw

from critic import jsonl
from critic.stages.run import Shard

STAGES = ("judge", "merge", "score", "audit")
SHARDS, LEFT, ANSWERERS, TASKS = 2, 100, 20, ("Counting", "OCR", "Meme", "Chart")
PROGRAM = """
import atexit, re
from critic.cli import main
# Not getrusage's, which begins with what the process held that started this one.
atexit.register(lambda: print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]))
main()
"""

RATINGS = (3, 7, 8, 5, 9)

PERIOD = 420
"""Questions after which a row's numbers come again: the least common multiple of 4 tasks, 7 and 3 apples, 10 scores."""

NUMBERED = re.compile(rb"(?<=question-)\d+|(?<=group-)\d+|(?<=table )\d+")


def row(number: int) -> dict[str, Any]:
    question = number // ANSWERERS
    return {
        "id": f"question-{question}/model-{number % ANSWERERS}",
        "task": TASKS[question % len(TASKS)],
        "lang": "en",
        "question": f"How many apples lie on table {question}, and which of them are red? " * 3,
        "reference": f"There are {question % 7 + 2} apples, of which {question % 3} are red." * 2,
        "response": f"I see {number % 5 + 2} apples on the table, and I think that two of them are red. " * 3,
        "system": "model",
        "human_score": float((number * 7 + question) % 10 + 1),
        "scale_min": 1,
        "scale_max": 10,
        "group": f"group-{question}",
    }


def judgments(folder: Path, count: int) -> Iterator[bytes]:
    """What the scripted judge says of the first `count` rows, as lines: of PERIOD questions it is asked, and those
    behind them differ from these in their number alone."""
    few, judged = folder / "few.jsonl", folder / "few.judged.jsonl"
    jsonl.write(few, map(row, range(PERIOD * ANSWERERS)))
    measured(*judge(few, judged))
    lines = {json.loads(line)["sample"]["id"]: line for line in judged.read_bytes().splitlines(keepends=True)}
    texts = [NUMBERED.split(lines[row(number)["id"]]) for number in range(PERIOD * ANSWERERS)]
    for number in range(count):
        parts = texts[number % len(texts)]
        yield (b"%d" % (number // ANSWERERS)).join(parts)


def judged_before(lines: Iterable[bytes], parts: list[Path]) -> None:
    """Write what killed runs of the shards left: all but every LEFT-th of the rows."""
    shard = Shard(1, len(parts))
    with ExitStack() as stack:
        files = [stack.enter_context(part.open("wb")) for part in parts]
        for number, line in enumerate(lines):
            if number % LEFT:
                files[shard.of(f"group-{number // ANSWERERS}").number - 1].write(line)


def measured(*words: object) -> dict[str, float]:
    """Seconds of the processor and of the clock, and megabytes, of a command."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    program = [sys.executable, "-c", PROGRAM, *map(str, words)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"critic {words[0]}: {done.returncode}\n{done.stderr[-2000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    peak = int(done.stdout.split()[-1]) / 1024
    return {"seconds": round(time.perf_counter() - start, 1), "cpu": round(cpu, 2), "mb": round(peak)}


def judge(rows: Path, out: Path, *words: str) -> tuple[object, ...]:
    scripted = rows.with_name("replies.jsonl")
    texts = [{"text": f'{{"Rating": {rating}, "Reason": "fine"}}'} for rating in RATINGS]
    scripted.write_text("".join(json.dumps(one) + "\n" for one in texts), "utf-8")
    return "judge", rows, "--judge", scripted, "--score", "argmax", "--out", out, *words


def sizes(folder: Path, count: int, stages: list[str]) -> dict[str, dict[str, float]]:
    rows, whole = folder / "rows.jsonl", folder / "whole.jsonl"
    found, parts = dict[str, dict[str, float]](), [folder / f"part.{number}.jsonl" for number in range(1, SHARDS + 1)]
    if {"judge", "merge"} & set(stages):
        jsonl.write(rows, map(row, range(count)))
        judged_before(judgments(folder, count), parts)
        for number, part in enumerate(parts, 1):
            found["judge"] = measured(*judge(rows, part, "--shard", f"{number}/{SHARDS}"))
        found["merge"] = measured("merge", *parts, "--out", whole)
        for part in [rows, *parts]:
            part.unlink()
    else:
        with whole.open("wb") as file:
            file.writelines(judgments(folder, count))
    if "score" in stages:
        found["score"] = measured("score", whole, "--out", folder / "score.json")
    if "audit" in stages:
        found["audit"] = measured("audit", f"internal={whole}", "--out", folder / "audit")
    return {stage: found[stage] for stage in stages}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--least", type=int, default=10_000)
    options.add_argument("--most", type=int, default=100_000)
    options.add_argument("--stages", default=",".join(STAGES))
    options.add_argument("--picture", type=Path)
    given = options.parse_args()
    found: list[dict[str, Any]] = []
    count = given.least
    while count <= given.most:
        with tempfile.TemporaryDirectory() as folder:
            for stage, one in sizes(Path(folder), count, given.stages.split(",")).items():
                found.append({"stage": stage, "rows": count, **one, "us_a_row": round(one["cpu"] / count * 1e6, 1)})
                print(f"{stage:>6} {count:>10,} rows: {one['cpu']} s, {one['mb']} MB", flush=True)
        count *= 10
    if given.picture:
        draw(given.picture, [one for one in found if one["stage"] == given.stages.split(",")[0]])
    first, last = found[0], found[-1]
    ratio = round(first["cpu"] / last["cpu"] * last["rows"] / first["rows"], 2)  # above 1: less a row
    print(json.dumps({"name": "stages_size", "ratio": ratio, "sizes": found}))


if __name__ == "__main__":
    main()
