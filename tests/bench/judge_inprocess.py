"""Judgments a second of the in-process judge, against the engine it runs on and against transformers.

python tests/bench/judge_inprocess.py [--hidden 512 --layers 6 | --model runs/base/gemma-3-270m --rows 24]

`ratio`: `Judge` on vLLM in this process ÷ the same engine given every request that the judge makes, verdicts and
probes, as token ids. `ratio_verdicts`: ÷ the engine given nothing but the verdicts' prompts, as text, which tells no
probabilities. Every measurement starts with an empty prefix cache. Beside it: the rating alone ÷ whole verdicts, the
cached prefix ÷ no cache, and the judge ÷ transformers generating one reply at a time.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from _judge import POINTWISE, REPLY_TOKENS, ROWS, checkpoint, laps, ordered, prompts, ratios, responses, seconds

from critic.asking.judge import ResponseJudge
from critic.backends import Reply, Request
from critic.backends.vllm import VllmBackend, _parameters
from critic.records import Decoding, Judgment, Response

ROUNDS, ONE_BY_ONE = 5, 6


class _Shown(VllmBackend):
    """Shows its engine, which stands still as long as nothing is asked, and remembers what was asked."""

    def __init__(self, folder: Path, extra: list[str]) -> None:
        super().__init__(folder, extra)
        self.asked: list[tuple[list[int], Request, int | None]] = []

    def _start(self) -> Any:
        self.engine = super()._start()
        return self.engine

    async def chat(self, request: Request) -> Reply:
        ids = self._ids(request.messages, request.continue_final)
        self.asked.append((ids, request, self._favoured(request)))
        return await super().chat(request)


async def judged(judge: ResponseJudge, rows: list[Response]) -> list[Judgment]:
    waiting, found = iter(ordered(rows)), []

    async def work() -> None:
        for row in waiting:
            found.append(await judge.judge(row))

    await asyncio.gather(*(work() for _ in range(judge.backend.in_flight)))
    return found


def drained(engine: Any) -> dict[str, int]:
    """Run all that waits: how many tokens of the prompts there were, were cached, and how many were written."""
    counts = {"prompt": 0, "cached": 0, "written": 0}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                counts["prompt"] += len(output.prompt_token_ids)
                counts["cached"] += output.num_cached_tokens or 0
                counts["written"] += len(output.outputs[0].token_ids)
    return counts


def engine_alone(engine: Any, texts: list[str], cached: bool) -> dict[str, int]:
    """Every prompt at once, text in and text out."""
    wanted = POINTWISE.schema()
    for number, text in enumerate(texts):
        made = _parameters(Request(messages=[], max_tokens=REPLY_TOKENS, schema=wanted))
        made.detokenize = True
        made.skip_reading_prefix_cache = not cached
        engine.add_request(str(number), {"prompt": text}, made)
    return drained(engine)


def same_requests(engine: Any, asked: list[tuple[list[int], Request, int | None]]) -> None:
    """What the judge asked: the verdicts, then their probes."""
    for follows in (False, True):
        for number, (ids, request, favoured) in enumerate(asked):
            if request.continue_final == follows:
                engine.add_request(str(number), {"prompt_token_ids": ids}, _parameters(request, favoured))
        drained(engine)


def one_by_one(folder: Path, texts: list[str]) -> float:
    """Seconds a reply with transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def generate() -> None:
        for text in texts:
            model.generate(
                **tokenizer(text, return_tensors="pt", return_token_type_ids=False),
                max_new_tokens=REPLY_TOKENS,
                min_new_tokens=REPLY_TOKENS,
                do_sample=False,
            )

    generate()
    return seconds(generate) / len(texts)


async def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--hidden", type=int, default=256, help="width of the random judge, a multiple of 64")
    words.add_argument("--layers", type=int, default=4)
    words.add_argument("--model", type=Path, help="a model folder instead of a random judge")
    words.add_argument("--rows", type=int, default=ROWS)
    size = words.parse_args()
    rows = responses(size.rows)
    with tempfile.TemporaryDirectory() as made:
        folder = size.model or checkpoint(Path(made), rows, size.hidden, size.layers)
        async with _Shown(folder, ["--max-model-len", "2048"]) as backend:
            loop = asyncio.get_running_loop()
            whole = ResponseJudge(backend, "judge", "pointwise", "expected", REPLY_TOKENS)
            alone = ResponseJudge(backend, "judge", "pointwise", "expected", REPLY_TOKENS, Decoding(reason=False))
            texts = [
                backend._tokenizer.apply_chat_template(each, tokenize=False, add_generation_prompt=True)
                for each in prompts(ordered(rows))
            ]

            def judge(which: ResponseJudge) -> list[Judgment]:
                backend.engine.reset_prefix_cache()
                return asyncio.run_coroutine_threadsafe(judged(which, rows), loop).result()

            def verdicts(cached: bool) -> dict[str, int]:
                backend.engine.reset_prefix_cache()
                return engine_alone(backend.engine, texts, cached)

            def again() -> None:
                backend.engine.reset_prefix_cache()
                same_requests(backend.engine, asked)

            works = {
                "judge": lambda: judge(whole),
                "engine_verdicts": lambda: verdicts(True),
                "engine": again,
                "rating_alone": lambda: judge(alone),
                "engine_verdicts_uncached": lambda: verdicts(False),
            }
            counts = await asyncio.to_thread(verdicts, True)
            backend.asked.clear()
            found = await asyncio.to_thread(judge, whole)
            asked = list(backend.asked)
            assert all(line.score is not None for line in found), [line.verdict for line in found][:3]
            laps_of = await asyncio.to_thread(laps, works, ROUNDS)
        slow = one_by_one(folder, texts[:ONE_BY_ONE])
    took = {name: statistics.median(times) for name, times in laps_of.items()}
    a_second = {name: round(size.rows / time, 1) for name, time in took.items()}
    mean = {name: count // size.rows for name, count in counts.items()}
    print(f"{size.rows} prompts of {mean['prompt']} tokens, {mean['written']} written; a second: {a_second}")
    result = {
        "name": "judge_inprocess",
        **ratios(laps_of, "engine", "judge"),
        "ratio_verdicts": ratios(laps_of, "engine_verdicts", "judge"),
        "rating_alone_over_whole": ratios(laps_of, "judge", "rating_alone"),
        "cached_over_uncached": ratios(laps_of, "engine_verdicts_uncached", "engine_verdicts"),
        "prompt_tokens_saved": round(counts["cached"] / counts["prompt"], 3),
        "over_transformers_one_by_one": round(slow * size.rows / took["judge"], 1),
        "a_second": {**a_second, "transformers": round(1 / slow, 2)},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    asyncio.run(main())
