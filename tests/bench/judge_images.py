"""Judgments a second of a judge that sees, against the engine it runs on and against transformers.

python tests/bench/judge_images.py [--hidden 512 --layers 6 | --model runs/demo-vision/judge] [--rows 48] [--side 64]

`ratio`: `critic`'s judge on vLLM in this process, images read from the disk and checked, ÷ the same engine given the
same requests, images included, by vLLM's own renderer. Each measurement starts with empty caches. `second_over_first`:
questions about images that were just asked about ÷ the first ones. `over_transformers`: the judge ÷ transformers
generating one reply at a time.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path

from _judge import REPLY_TOKENS, Shown, laps, ratios, responses, seconds
from judge_inprocess import drained, judged
from msgspec.structs import replace

from critic.backends import Request
from critic.backends.vllm import _parameters
from critic.images import Images
from critic.judging.judge import ResponseJudge
from critic.records import Response

ROUNDS, ONE_BY_ONE = 5, 4


def drawn(root: Path, rows: list[Response], side: int) -> list[Response]:
    """The rows, each about a picture of its own: rectangles of random colours, `side` pixels wide and high."""
    from PIL import Image, ImageDraw

    chooser, shown = random.Random(0), []
    for row in rows:
        picture = Image.new("RGB", (side, side), "white")
        for _ in range(6):
            (left, right), (top, bottom) = (sorted(chooser.sample(range(side), 2)) for _ in range(2))
            colour = tuple(chooser.randrange(256) for _ in range(3))
            ImageDraw.Draw(picture).rectangle((left, top, right, bottom), colour)
        picture.save(root / f"{row.id}.png")
        shown.append(replace(row, question=replace(row.question, images=[f"{row.id}.png"])))
    return shown


def same_requests(backend: Shown, asked: list[Request]) -> None:
    """What the judge asked, at once and in its order: the verdicts, then their probes."""
    from vllm.renderers.params import ChatParams, TokenizeParams

    backend.forget()
    for follows in (False, True):
        for number, request in enumerate(asked):
            if request.continue_final != follows:
                continue
            begun = backend._begun(request.messages[-1]["content"]) if follows else []
            _, (prompt,) = backend.engine.renderer.render_chat(
                [request.messages[:-1] if follows else request.messages],
                ChatParams(chat_template_kwargs={"add_generation_prompt": True, "tokenize": False}),
                TokenizeParams(max_total_tokens=None, add_special_tokens=False),
            )
            ids = [*prompt["prompt_token_ids"], *begun]
            made = _parameters(request, backend._favoured(request))
            backend.engine.add_request(str(number), {**prompt, "prompt_token_ids": ids}, made)
        drained(backend.engine)


def one_by_one(folder: Path, root: Path, asked: list[Request], rows: list[Response]) -> float:
    """Seconds a reply with transformers."""
    import torch
    from PIL import Image
    from transformers import AutoModelForImageTextToText, AutoProcessor

    processor = AutoProcessor.from_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()

    def generate() -> None:
        for request, row in zip(asked, rows, strict=True):
            (said,) = request.messages
            parts = [{"type": "image"} if part["type"] != "text" else part for part in said["content"]]
            message = [{"role": "user", "content": parts}]
            text = processor.apply_chat_template(message, add_generation_prompt=True)
            images = [Image.open(root / row.question.images[0])]
            given = processor(text=text, images=images, return_tensors="pt")
            model.generate(**given, max_new_tokens=REPLY_TOKENS, min_new_tokens=REPLY_TOKENS, do_sample=False)

    generate()
    return seconds(generate) / len(rows)


async def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--model", type=Path, help="a folder of a model that sees, instead of a random one")
    words.add_argument("--hidden", type=int, default=512, help="width of the random model")
    words.add_argument("--layers", type=int, default=6)
    words.add_argument("--rows", type=int, default=48)
    words.add_argument("--side", type=int, default=64, help="of each image, in pixels")
    size = words.parse_args()
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        rows = drawn(root, responses(size.rows), size.side)
        others = [replace(row, question=replace(row.question, prompt="Is the largest one red?")) for row in rows]
        folder = size.model or _random(root / "judge", size.hidden, size.layers)
        async with Shown(folder, ["--max-model-len", "4096"]) as backend:
            loop, images = asyncio.get_running_loop(), Images(root)

            def judge(which: list[Response], *, cold: bool = True) -> None:
                if cold:
                    backend.forget()
                asked_of = ResponseJudge(backend, "judge", "pointwise", "expected", REPLY_TOKENS, images=images)
                asyncio.run_coroutine_threadsafe(judged(asked_of, which), loop).result()

            await asyncio.to_thread(judge, rows)
            asked = [*backend.asked]
            works = {
                "judge": lambda: judge(rows),
                "second": lambda: judge(others, cold=False),
                "engine": lambda: same_requests(backend, asked),
            }
            laps_of = await asyncio.to_thread(laps, works, ROUNDS)
        first = [request for request in asked if not request.continue_final][:ONE_BY_ONE]
        slow = one_by_one(folder, root, first, rows[: len(first)])
    took = {name: statistics.median(times) for name, times in laps_of.items()}
    result = {
        "name": "judge_images",
        **ratios(laps_of, "engine", "judge"),
        "second_over_first": ratios(laps_of, "judge", "second"),
        "over_transformers": round(slow * size.rows / took["judge"], 1),
        "a_second": {name: round(size.rows / time, 1) for name, time in took.items()},
    }
    print(json.dumps(result))


def _random(folder: Path, hidden: int, layers: int) -> Path:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tiny_vlm import build

    return build(folder, hidden, layers)


if __name__ == "__main__":
    asyncio.run(main())
