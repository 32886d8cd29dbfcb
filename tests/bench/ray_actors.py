"""Two actors of Ray against two processes by shards: rows judged a second.

python tests/bench/ray_actors.py        # needs the ray extra, no judge: the model in each is a stand-in that sleeps

`ratio`: judgments a second by two actors of a local cluster ÷ by two processes that judge a shard each, from the first
row to the last; `ratio_with_start`: with all that comes before. `driver_processor_second`: judgments that one driver
gets through in a second of its processor time.
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

from critic.asking.judge import ResponseJudge
from critic.backends import Backend, Reply, Request
from critic.backends.openai import _reply
from critic.backends.ray import RayBackend
from critic.backends.scripted import ScriptedBackend
from critic.stages.judge_responses import FormResponses, JudgeResponses
from critic.stages.run import RunOptions, Shard

ROWS, SECONDS, SLOTS = 3000, 0.2, 16
"""Each model answers so many at once, each in so many seconds: 80 a second."""


class Sleeping(ScriptedBackend):
    def __init__(self) -> None:
        super().__init__(lambda request: _reply(completion(), 1), name=MODEL)
        self.in_flight, self._gate = 2 * SLOTS, asyncio.Semaphore(SLOTS)

    async def chat(self, request: Request) -> Reply:
        async with self._gate:
            await asyncio.sleep(SECONDS)
        return self.answer(request)


def judged(backend: Backend, out: Path, shard: str | None) -> tuple[float, float]:
    """Seconds from the first row to the last, and of the processor."""
    run = RunOptions(out=out, concurrency=None, max_failed=0.0, retry_failed=False, shard=Shard.read(shard))
    rows = FormResponses(lambda _: responses(ROWS), out, "pointwise", run)
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


def by_shards(folder: Path) -> tuple[float, float]:
    """Seconds of the slower shard, and of both with their start."""
    start = time.time()
    words = [sys.executable, __file__, str(folder / "part"), "--shard"]
    made = [subprocess.Popen([*words, f"{one}/2"], stdout=subprocess.PIPE, text=True) for one in (1, 2)]
    seconds = [float(one.communicate()[0].split()[-1]) for one in made]
    return max(seconds), time.time() - start


def main() -> None:
    if "--shard" in sys.argv:
        shard = sys.argv[-1]
        print(judged(Sleeping(), Path(f"{sys.argv[1]}.{shard[0]}.jsonl"), shard)[0])
        return
    with tempfile.TemporaryDirectory() as name:
        shards, shards_whole = by_shards(Path(name))
        start = time.time()
        made = RayBackend(partial(Sleeping), None, 2, 0, 5, 300.0)
        actors, processor = judged(made, Path(name) / "ray.jsonl", None)
        whole = time.time() - start
        lines = (Path(name) / "ray.jsonl").read_text("utf-8").splitlines()
        assert len(lines) == len({json.loads(line)["response"]["id"] for line in lines}) == ROWS
    result = {
        "name": "ray_actors",
        "ratio": round(shards / actors, 3),
        "ratio_with_start": round(shards_whole / whole, 3),
        "seconds": round(actors, 1),
        "driver_processor_second": round(ROWS / processor),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
