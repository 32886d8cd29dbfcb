"""Which endpoint a row goes to: the one that has read the beginning of its prompt, or the next in turn.

python tests/bench/pool_prefix.py         # two servers of a random judge on this machine, no GPU

Six answers to each question, whose reference is long, as `critic judge` orders them. What a server has not kept of a
prompt it computes: vLLM counts the tokens that it looked for in its prefix cache, and those that it found (/metrics).
Each round has questions of its own, so that no server knows them.

`ratio`: judgments a second by the pool ÷ by the same pool that deals rows out in turn. `in_turn_over_affinity`: prompt
tokens computed in turn ÷ by the pool; `computed` are those of a row. `alone`: by one endpoint, which computes what is
new and nothing else, the least there is.
"""

import itertools
import json
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
from _judge import checkpoint

from critic.asking.judge import ResponseJudge
from critic.backends.pool import Pool, Upstream
from critic.records import Decoding, Question, Response
from critic.stages import options
from critic.stages.judge_responses import FormResponses, JudgeResponses
from critic.stages.run import RunOptions

ROUNDS, QUESTIONS, ANSWERS, IN_FLIGHT = 3, 24, 6, 8
"""IN_FLIGHT at each endpoint."""

WAYS = ("pool", "in turn", "alone")


class InTurn(Pool):
    """Deals requests out one by one."""

    _turn = itertools.count()

    async def _next(self, _: Sequence[int]) -> Upstream:
        return self.endpoints[next(self._turn) % len(self.endpoints)]


def responses(number: int, questions: int = QUESTIONS) -> list[Response]:
    """Rows of a round: what is asked, and what is known of it, is in no other round."""
    return [
        Response(
            id=f"r{number}-{n}-{answer}",
            question=Question(
                id=f"q{number}-{n}",
                group=f"q{number}-{n}",
                lang="en",
                task="Counting",
                prompt=f"In harbour {number * 1000 + n}, how many red boats lie there, and which one is the largest?",
                reference=f"Harbour {number * 1000 + n} has {n % 9} red boats; the largest is named Swallow {n}. " * 12,
            ),
            text=f"I can see {answer} red boats in the picture, and number {answer} is the largest of them.",
        )
        for n in range(questions)
        for answer in range(ANSWERS)
    ]


def served(folder: Path, count: int) -> list[subprocess.Popen[str]]:
    """Servers of one judge, started side by side."""
    made = []
    for number in range(count):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        words = [sys.executable, "serve/judge.py", str(folder), "--port", port, "--log", str(folder / f"{number}.log")]
        made.append(subprocess.Popen([*words, "--stop-with-parent"], stdout=subprocess.PIPE, text=True))
    return made


def looked_for(urls: Sequence[str]) -> tuple[int, int]:
    """Tokens that the servers looked for in their prefix caches so far, and those that they found."""
    found = [0, 0]
    for url in urls:
        said = httpx.get(f"{url.removesuffix('/v1')}/metrics").raise_for_status().text
        for place, name in enumerate(("queries", "hits")):
            counts = re.findall(rf"^vllm:prefix_cache_{name}_total{{.*}} (.*)$", said, re.MULTILINE)
            found[place] += int(sum(map(float, counts)))
    return found[0], found[1]


def judged(way: str, urls: Sequence[str], rows: Sequence[Response], out: Path) -> tuple[float, float, float]:
    """Seconds a row; tokens computed, and sent, for each."""
    asked = urls[:1] if way == "alone" else urls
    made = options.Endpoint(concurrency=IN_FLIGHT).connect(",".join(asked), None)
    if way == "in turn":
        made.__class__ = InTurn
    run = RunOptions(out=out, concurrency=IN_FLIGHT * len(asked), max_failed=0.0, retry_failed=False)
    judge = ResponseJudge(made, made.served.name, "pointwise", "expected", 16, Decoding(reason=False))
    stage = JudgeResponses(run, judge, FormResponses(lambda _: iter(rows), out, "pointwise"), "rows")
    before, start = looked_for(asked), time.perf_counter()
    assert stage.run() == 0
    took, after = time.perf_counter() - start, looked_for(asked)
    sent, kept = (now - then for now, then in zip(after, before, strict=True))
    return took / len(rows), (sent - kept) / len(rows), sent / len(rows)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = checkpoint(Path(name) / "judge", responses(0), hidden=128, layers=2)
        servers = served(folder, 2)
        try:
            urls = [f"{one.stdout.readline().split()[1]}" for one in servers if one.stdout is not None]
            found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
            judged("in turn", urls, responses(1, 4), Path(name) / "rubric.jsonl")  # which both have read then
            for number in range(ROUNDS * len(WAYS)):
                way = WAYS[number % len(WAYS)]
                found[way].append(judged(way, urls, responses(number + 2), Path(name) / f"{number}.jsonl"))
        finally:
            for one in servers:
                one.terminate()
            for one in servers:
                one.wait()
    print({way: [tuple(round(part, 3) for part in each) for each in rounds] for way, rounds in found.items()})
    seconds, computed, sent = (
        {way: statistics.median(each[part] for each in found[way]) for way in WAYS} for part in range(3)
    )
    result = {
        "name": "pool_prefix",
        "ratio": round(seconds["in turn"] / seconds["pool"], 3),
        "in_turn_over_affinity": round(computed["in turn"] / computed["pool"], 2),
        "computed": {way: round(count) for way, count in computed.items()},
        "sent": round(sent["pool"]),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
