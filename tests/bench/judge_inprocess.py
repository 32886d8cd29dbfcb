"""Judgments a second of the in-process judge, against the engine it runs on and against transformers.

python tests/bench/judge_inprocess.py [--hidden 512 --layers 6 | --model runs/base/gemma-3-270m --rows 24]

`ratio`: `Judge` on vLLM in this process ÷ the same engine given every request that the judge makes, verdicts and
probes, as token ids. `ratio_verdicts`: ÷ the engine given nothing but the verdicts' prompts, as text, which tells no
probabilities. Every measurement starts with an empty prefix cache. Beside it: the rating alone ÷ whole verdicts, the
cached prefix ÷ no cache, constrained decoding ÷ free replies of the same lengths, and the judge ÷ transformers
generating one reply at a time. A `--model` need not have learned anything.
"""

import asyncio
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import typer
from _judge import POINTWISE, REPLY_TOKENS, ROWS, checkpoint, judged, laps, ordered, prompts, ratios, responses, seconds
from msgspec.structs import replace

from critic.backends import Reply, Request
from critic.backends.vllm import VllmBackend
from critic.judging.judge import Judge
from critic.records import JudgeConfig, Judgment, SamplingParams

ROUNDS, ONE_BY_ONE = 5, 6


class Shown(VllmBackend):
    """Shows its engine, which stands still as long as nothing is asked, and remembers what was asked."""

    def __init__(self, folder: Path, extra: list[str]) -> None:
        super().__init__(folder, extra)
        self.asked: list[Request] = []

    def _start(self) -> Any:
        self.engine = super()._start()
        return self.engine

    async def chat(self, request: Request) -> Reply:
        self.asked.append(request)
        return await super().chat(request)


def drained(engine: Any) -> list[Any]:
    """Run all that waits: what came of each request, in their order."""
    outputs = dict[int, Any]()
    while engine.has_unfinished_requests():
        outputs |= {int(output.request_id): output for output in engine.step() if output.finished}
    return [outputs[number] for number in sorted(outputs)]


def engine_alone(
    backend: VllmBackend, engine: Any, texts: list[str], cached: bool = True, lengths: list[int] | None = None
) -> list[Any]:
    """Every prompt at once, text in and text out: verdicts, or without any constraint as many tokens as `lengths`
    says."""
    engine.reset_prefix_cache()
    for number, text in enumerate(texts):
        tokens, schema = (lengths[number], None) if lengths else (REPLY_TOKENS, POINTWISE.schema())
        parameters = backend._build_parameters(Request(messages=[], max_tokens=tokens, schema=schema))
        parameters.detokenize = True
        parameters.ignore_eos = lengths is not None
        parameters.skip_reading_prefix_cache = not cached
        engine.add_request(str(number), {"prompt": text}, parameters)
    return drained(engine)


def same_requests(backend: VllmBackend, engine: Any, jobs: list[tuple[list[int], Request]]) -> None:
    """What the judge asked: the verdicts, then what tells 10 from 1."""
    for follows in (False, True):
        for number, (ids, request) in enumerate(jobs):
            if request.continue_final == follows:
                engine.add_request(str(number), {"prompt_token_ids": ids}, backend._build_parameters(request))
        drained(engine)


def one_by_one(folder: Path, texts: list[str]) -> float:
    """Seconds a reply with transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def generate() -> None:
        for text in texts:
            prompt = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
            model.generate(**prompt, max_new_tokens=REPLY_TOKENS, min_new_tokens=REPLY_TOKENS, do_sample=False)

    generate()
    return seconds(generate) / len(texts)


async def measure(hidden: int, layers: int, model: Path | None, count: int) -> dict[str, Any]:
    rows = responses(count)
    with tempfile.TemporaryDirectory() as folder_name:
        folder = model or checkpoint(Path(folder_name), rows, hidden, layers)
        async with Shown(folder, ["--max-model-len", "2048"]) as backend:
            loop = asyncio.get_running_loop()
            setup = JudgeConfig(judge="judge", score_kind="expected")
            whole = Judge(backend, setup, REPLY_TOKENS)
            alone = Judge(backend, replace(setup, decoding=SamplingParams(reason=False)), REPLY_TOKENS)
            texts = [
                backend._tokenizer.apply_chat_template(each, tokenize=False, add_generation_prompt=True)
                for each in prompts(ordered(rows))
            ]

            def judge(which: Judge) -> list[Judgment]:
                backend.engine.reset_prefix_cache()
                judging = judged(which, rows, backend.max_concurrency)
                return asyncio.run_coroutine_threadsafe(judging, loop).result()

            def again() -> None:
                backend.engine.reset_prefix_cache()
                same_requests(backend, backend.engine, jobs)

            def alone_on(**how: Any) -> list[Any]:
                return engine_alone(backend, backend.engine, texts, **how)

            verdicts = await asyncio.to_thread(alone_on)
            lengths = [len(output.outputs[0].token_ids) for output in verdicts]
            backend.asked.clear()
            judgments = await asyncio.to_thread(judge, whole)
            jobs = [((await backend._render(request))["prompt_token_ids"], request) for request in backend.asked]
            assert model or all(line.score is not None for line in judgments), [line.verdict for line in judgments][:3]
            works = {
                "judge": lambda: judge(whole),
                "engine_verdicts": alone_on,
                "engine": again,
                "rating_alone": lambda: judge(alone),
                "engine_verdicts_uncached": lambda: alone_on(cached=False),
                "engine_free": lambda: alone_on(lengths=lengths),
            }
            laps_of = await asyncio.to_thread(laps, works, ROUNDS)
        slow = one_by_one(folder, texts[:ONE_BY_ONE])
    took = {name: statistics.median(times) for name, times in laps_of.items()}
    a_second = {name: round(count / time, 1) for name, time in took.items()}
    prompt = sum(len(output.prompt_token_ids) for output in verdicts)
    cached = sum(output.num_cached_tokens or 0 for output in verdicts)
    mean = f"{prompt // count} tokens, {sum(lengths) // count} written"
    print(f"{count} prompts of {mean}; a second: {a_second}")
    return {
        "name": "judge_inprocess",
        **ratios(laps_of, "engine", "judge"),
        "ratio_verdicts": ratios(laps_of, "engine_verdicts", "judge"),
        "rating_alone_over_whole": ratios(laps_of, "judge", "rating_alone"),
        "cached_over_uncached": ratios(laps_of, "engine_verdicts_uncached", "engine_verdicts"),
        "constrained_over_free": ratios(laps_of, "engine_free", "engine_verdicts"),
        "prompt_tokens_saved": round(cached / prompt, 3),
        "over_transformers_one_by_one": round(slow * count / took["judge"], 1),
        "a_second": {**a_second, "transformers": round(1 / slow, 2)},
    }


def main(hidden: int = 256, layers: int = 4, model: Path | None = None, rows: int = ROWS) -> None:
    """Measure a random judge of a width, a multiple of 64, and layers, or a model folder instead of it."""
    print(json.dumps(asyncio.run(measure(hidden, layers, model, rows))))


if __name__ == "__main__":
    typer.run(main)
