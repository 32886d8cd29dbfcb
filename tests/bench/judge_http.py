"""Judgments a second through HTTP with 64 requests in flight, against a bare asyncio client on the same server.

python tests/bench/judge_http.py [--model runs/base/smollm2-135m]

`ratio`: `Judge` on a served judge ÷ a client that posts what it takes without our server's `x-critic-rating` (a verdict
with its rating's alternatives, and what follows a 1), through the same HTTP library. `ratio_verdicts`: ÷ a client that
does without the ratings' probabilities. `over_log_probabilities`: ÷ one that asks for the log probabilities of every
token, as one usually does, and still cannot tell 1 from 10. Each with the least and the most of the rounds. The server
keeps its prefix cache, so every round finds the prompts cached for all alike.
"""

import asyncio
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import aiohttp
import typer
from _judge import POINTWISE, REPLY_TOKENS, ROWS, checkpoint, judged, laps, ordered, prompts, ratios, responses
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parents[1]))

from conftest import serving

from critic.backends import Request
from critic.backends.openai import OpenAIBackend
from critic.judging.grader import ALTERNATIVES, RATING_ALONE, build_continuation
from critic.judging.judge import Judge
from critic.judging.prompt import TruncatedPrompt
from critic.records import RATINGS, JudgeConfig, Judgment, Message, Response, SamplingParams

ROUNDS, CONCURRENCY = 5, 64
BARE = {"x-critic-contract": "none"}


async def judged_by(url: str, rows: list[Response], decoding: SamplingParams) -> list[Judgment]:
    backend = OpenAIBackend(url, connections=CONCURRENCY)
    backend.choose(None)
    judge = Judge(backend, JudgeConfig(judge="judge", score_kind="expected", decoding=decoding), REPLY_TOKENS)
    async with backend:
        return await judged(judge, rows, CONCURRENCY)


async def posted(url: str, messages: list[list[Message]], alternatives: int = 0, probed: bool = False) -> list[object]:
    backend = OpenAIBackend(url, connections=CONCURRENCY)
    backend.choose(None)
    connector, waiting, replies = aiohttp.TCPConnector(limit=CONCURRENCY), iter(messages), []
    async with backend, aiohttp.ClientSession(headers=BARE, connector=connector, raise_for_status=True) as client:

        async def post(body: dict[str, Any]) -> None:
            async with client.post(f"{url}/chat/completions", json=body) as answer:
                replies.append(await answer.json())

        async def work() -> None:
            for each in waiting:
                wanted: dict[str, Any] = {"schema": POINTWISE.schema(), "top_logprobs": alternatives}
                await post(backend._build_body(Request(messages=each, max_tokens=REPLY_TOKENS, **wanted)))
                if probed:
                    request = replace(POINTWISE, fitted=TruncatedPrompt(each, {}))
                    behind = build_continuation(request, f"{RATING_ALONE}1", "[0,].*", max_tokens=1)
                    await post(backend._build_body(behind))

        await asyncio.gather(*(work() for _ in range(CONCURRENCY)))
    return replies


def main(model: Path | None = None) -> None:
    rows = responses()
    with tempfile.TemporaryDirectory() as scratch:
        folder = model or checkpoint(Path(scratch), rows)
        with serving(folder, "--log", f"{scratch}/serve.log") as (_, address):
            url = f"{address}/v1"
            messages = prompts(ordered(rows))
            greedy, alone = SamplingParams(), SamplingParams(reason=False)
            judgments = asyncio.run(judged_by(url, rows, greedy))
            assert model or all(line.score is not None for line in judgments), [line.verdict for line in judgments][:3]
            works = {
                "judge": lambda: asyncio.run(judged_by(url, rows, greedy)),
                "client_verdicts": lambda: asyncio.run(posted(url, messages)),
                "client": lambda: asyncio.run(posted(url, messages, len(RATINGS), probed=True)),
                "client_log_probabilities": lambda: asyncio.run(posted(url, messages, ALTERNATIVES)),
                "rating_alone": lambda: asyncio.run(judged_by(url, rows, alone)),
            }
            took = laps(works, ROUNDS)
    a_second = {name: round(ROWS / statistics.median(times), 1) for name, times in took.items()}
    print(f"{ROWS} prompts, {CONCURRENCY} in flight, replies of {REPLY_TOKENS} tokens at most; a second: {a_second}")
    result = {
        "name": "judge_http",
        **ratios(took, "client", "judge"),
        "ratio_verdicts": ratios(took, "client_verdicts", "judge"),
        "over_log_probabilities": ratios(took, "client_log_probabilities", "judge"),
        "rating_alone_over_whole": ratios(took, "judge", "rating_alone"),
        "a_second": a_second,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    typer.run(main)
