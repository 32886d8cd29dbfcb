"""Replies a second with the verdict's schema against none, of the same lengths, on the engine in this process.

python tests/bench/judge_constrained.py [--model runs/base/gemma-3-270m --rows 24]

The free replies are as long as the constrained ones to the same prompts: REPLY_TOKENS, or what the verdict took. With
`--model` a folder stands in for the tiny random judge; it need not have learned anything.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from _judge import POINTWISE, REPLY_TOKENS, ROWS, checkpoint, laps, ordered, prompts, ratios, responses

from critic.backends import Request
from critic.backends.vllm import VllmBackend, _parameters

ROUNDS = 5


class _Shown(VllmBackend):
    """Shows its engine, which stands still as long as nothing is asked."""

    def _start(self) -> Any:
        self.engine = super()._start()
        return self.engine


def written(engine: Any, texts: list[str], lengths: list[int] | None = None) -> list[int]:
    """Tokens written for each prompt: a verdict, or without any constraint as many as `lengths` says."""
    engine.reset_prefix_cache()
    wanted = POINTWISE.schema()
    for number, text in enumerate(texts):
        tokens = lengths[number] if lengths else REPLY_TOKENS
        sampling = _parameters(Request(messages=[], max_tokens=tokens, schema=None if lengths else wanted))
        sampling.ignore_eos = lengths is not None
        engine.add_request(str(number), {"prompt": text}, sampling)
    found = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                found[int(output.request_id)] = len(output.outputs[0].token_ids)
    return [found[number] for number in range(len(texts))]


async def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--model", type=Path, help="a model folder")
    words.add_argument("--rows", type=int, default=ROWS)
    given = words.parse_args()
    rows = responses(given.rows)
    with tempfile.TemporaryDirectory() as made:
        folder = given.model or checkpoint(Path(made), rows)
        async with _Shown(folder, ["--max-model-len", "2048"]) as backend:
            texts = [
                backend._tokenizer.apply_chat_template(each, tokenize=False, add_generation_prompt=True)
                for each in prompts(ordered(rows))
            ]
            lengths = await asyncio.to_thread(written, backend.engine, texts)
            assert await asyncio.to_thread(written, backend.engine, texts, lengths) == lengths
            works = {
                "constrained": lambda: written(backend.engine, texts),
                "free": lambda: written(backend.engine, texts, lengths),
            }
            took = await asyncio.to_thread(laps, works, ROUNDS)
    a_second = {name: round(given.rows / statistics.median(times), 1) for name, times in took.items()}
    print(f"{given.rows} prompts, {sum(lengths) / given.rows:.0f} tokens written for each; a second: {a_second}")
    found = ratios(took, "free", "constrained")
    print(json.dumps({"name": "judge_constrained", "ratio": found["ratio"], **found, "a_second": a_second}))


if __name__ == "__main__":
    asyncio.run(main())
