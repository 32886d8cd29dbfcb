"""Two actors of Ray against two processes by shards: rows judged a second.

python tests/bench/ray_actors.py [ROWS]     # needs the ray extra, no judge: the model in each is a stand-in that sleeps

`ratio`: judgments a second by two actors of a local cluster ÷ by two processes that judge a shard each, from the first
row to the last; `ratio_with_start`: the whole programs, from nothing to their end, a cluster's start and end among it.
`driver_processor_second`: judgments that one driver gets through in a second of its processor time.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from _standin import MODEL, completion
from pool import responses

from critic.backends import Backend, Reply, Request
from critic.backends.openai import _reply
from critic.backends.ray import RayBackend
from critic.backends.scripted import ScriptedBackend
from critic.judging.judge import ResponseJudge
from critic.stages.judge_responses import FormResponses, JudgeResponses
from critic.stages.run import RunOptions, Shard

ROWS, SECONDS, SLOTS = 8000, 0.2, 16
"""Each model answers so many at once, each in so many seconds: 80 a second, 50 seconds of work."""


class Sleeping(ScriptedBackend):
    def __init__(self, reply: Reply) -> None:
        super().__init__(lambda request: reply, name=MODEL)
        self.max_concurrency, self._gate = 2 * SLOTS, asyncio.Semaphore(SLOTS)

    async def chat(self, request: Request) -> Reply:
        async with self._gate:
            await asyncio.sleep(SECONDS)
        return self.answer(request)


def judged(backend: Backend, out: Path, shard: str | None, count: int) -> tuple[float, float]:
    """Seconds from the first row to the last, and of the processor."""
    run = RunOptions(out=out, concurrency=None, max_failed=0.0, retry_failed=False, shard=Shard.read(shard))
    rows = FormResponses(lambda _: responses(count), out, "pointwise", run)
    stage = JudgeResponses(run, ResponseJudge(backend, MODEL, "pointwise", "expected", 64), rows, "rows")
    times = [time.time()]
    work = stage.work

    async def timed(*given: object) -> None:
        times.append(time.time())
        await work(*given)  # type: ignore[arg-type]
        times.append(time.time())

    stage.work = timed  # type: ignore[method-assign, assignment]
    processor = time.process_time()
    assert stage.run() == 0
    return max(times) - times[1], time.process_time() - processor


def together(folder: Path, count: int, *ways: str) -> tuple[float, float, float]:
    """Seconds of the slowest of programs that run side by side, its processor time, and seconds of all of them with
    their start and end."""
    start = time.time()
    words = [sys.executable, __file__, str(count), str(folder)]
    made = [subprocess.Popen([*words, way], stdout=subprocess.PIPE, text=True) for way in ways]
    said = [one.communicate()[0].split()[-2:] for one in made]
    seconds, processor = max((float(took), float(busy)) for took, busy in said)
    return seconds, processor, time.time() - start


def one_way(count: int, folder: Path, way: str) -> None:
    sleeping = partial(Sleeping, _reply(completion(), 1))
    if way == "ray":
        found = judged(RayBackend(sleeping, None, 2, 0, 5, 300.0), folder / "ray.jsonl", None, count)
    else:
        found = judged(sleeping(), folder / f"part.{way[0]}.jsonl", way, count)
    print(*found)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    if len(sys.argv) > 2:
        one_way(count, Path(sys.argv[2]), sys.argv[3])
        return
    with tempfile.TemporaryDirectory() as name:
        shards, _, shards_whole = together(Path(name), count, "1/2", "2/2")
        actors, processor, whole = together(Path(name), count, "ray")
        lines = (Path(name) / "ray.jsonl").read_text("utf-8").splitlines()
        assert len(lines) == len({json.loads(line)["sample"]["id"] for line in lines}) == count
    result = {
        "name": "ray_actors",
        "ratio": round(shards / actors, 3),
        "ratio_with_start": round(shards_whole / whole, 3),
        "seconds": [round(shards, 1), round(actors, 1)],
        "with_start": [round(shards_whole, 1), round(whole, 1)],
        "driver_processor_second": round(count / processor),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
