"""Replies a second with the verdict's schema against none, of equal length, on the engine in this process.

python tests/bench/judge_constrained.py
"""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from _judge import REPLY_TOKENS, ROWS, alternated, checkpoint, prompts, responses

from critic.asking import schema
from critic.backends import Request
from critic.backends.vllm import VllmBackend, _sampling
from critic.judge import in_order

ROUNDS = 5


class _Shown(VllmBackend):
    """Shows its engine, which stands still as long as nothing is asked."""

    def _start(self) -> Any:
        self.engine = super()._start()
        return self.engine


def long_verdict() -> dict[str, Any]:
    """The schema of a verdict whose reason fills any REPLY_TOKENS."""
    made = schema(("Rating", "Reason"))
    return {**made, "properties": {**made["properties"], "Reason": {"type": "string", "minLength": 300}}}


def written(engine: Any, texts: list[str], constrained: bool) -> int:
    """Tokens written: REPLY_TOKENS for every prompt."""
    engine.reset_prefix_cache()
    for number, text in enumerate(texts):
        request = Request(messages=[], max_tokens=REPLY_TOKENS, schema=long_verdict() if constrained else None)
        sampling = _sampling(request)
        sampling.ignore_eos = not constrained
        engine.add_request(str(number), {"prompt": text}, sampling)
    tokens = 0
    while engine.has_unfinished_requests():
        tokens += sum(len(output.outputs[0].token_ids) for output in engine.step() if output.finished)
    return tokens


async def main() -> None:
    rows = responses()
    with tempfile.TemporaryDirectory() as made:
        folder = checkpoint(Path(made), rows)
        async with _Shown(folder, ["--max-model-len", "2048"]) as backend:
            texts = [
                backend._tokenizer.apply_chat_template(each, tokenize=False, add_generation_prompt=True)
                for each in prompts(list(in_order(rows, ROWS)))
            ]
            for constrained in (True, False):
                tokens = await asyncio.to_thread(written, backend.engine, texts, constrained)
                assert tokens == ROWS * REPLY_TOKENS, (constrained, tokens)
            works = {
                "constrained": lambda: written(backend.engine, texts, True),
                "free": lambda: written(backend.engine, texts, False),
            }
            took = await asyncio.to_thread(alternated, works, ROUNDS)
    a_second = {name: round(ROWS / time, 1) for name, time in took.items()}
    print(f"{ROWS} prompts, {REPLY_TOKENS} tokens written for each; a second: {a_second}")
    ratio = round(took["free"] / took["constrained"], 3)
    print(json.dumps({"name": "judge_constrained", "ratio": ratio, "a_second": a_second}))


if __name__ == "__main__":
    asyncio.run(main())
