"""Turns a second of `critic infer`, against the engine it runs on and against one conversation at a time.

python tests/bench/infer_multiturn.py [CONVERSATIONS]

`ratio`: conversations of three turns and an image, through the runner (images read and checked, records written) ÷ the
same vLLM engine given the prompts that the runner made, one batch a turn, images at hand as data URIs.
`over_one_by_one`: ÷ the runner with one request under way at a time. Every measurement starts with empty caches.
`cached_by_turn` is the share of the prompts' tokens that were cached.
"""

import asyncio
import json
import statistics
import sys
import tempfile
from pathlib import Path

from _judge import Shown, laps, ratios

sys.path.insert(0, str(Path(__file__).parents[1]))
import tiny_vlm
from PIL import Image

from critic.backends import Request
from critic.backends.vllm import VllmBackend, _parameters
from critic.images import Images
from critic.jsonl import Appender
from critic.records import Conversation, ConversationTurn, ModelTurn, Sampling
from critic.stages.infer import Infer
from critic.stages.run import RunOptions

CONVERSATIONS, TURNS, REPLY_TOKENS, ROUNDS = 64, 3, 48, 5
QUESTION = "How many red boats lie in harbour {n}, and which one of them is the largest? Say why, in a sentence. " * 3


def conversations(count: int, pictures: Path) -> list[Conversation]:
    made = []
    for n in range(count):
        gradient = Image.linear_gradient("L").rotate(360 * n / count).resize((512, 384))
        gradient.convert("RGB").save(pictures / f"{n}.png")
        turns = [ConversationTurn(prompt=f"Turn {k}. " + QUESTION.format(n=n)) for k in range(1, TURNS + 1)]
        turns[0] = ConversationTurn(prompt=turns[0].prompt, images=[f"{n}.png"])
        made.append(Conversation(id=f"c{n}", benchmark="convbench", lang="en", group=f"c{n}", turns=turns))
    return made


async def inferred(backend: VllmBackend, rows: list[Conversation], pictures: Path, concurrency: int) -> list[ModelTurn]:
    """All turns of all conversations, written to a file as `critic infer` does."""
    images, made = Images(pictures), list[ModelTurn]()
    options = RunOptions(out=Path("none"), concurrency=concurrency, max_failed=1.0, retry_failed=False)
    stage = Infer(options, backend, "tiny", ["own"], Sampling(max_tokens=REPLY_TOKENS), rows, images.load, {})
    waiting = iter(rows)
    with tempfile.TemporaryDirectory() as folder, Appender(Path(folder) / "out.jsonl") as file:

        def keep(line: ModelTurn) -> None:
            file.append(line)
            made.append(line)

        async def work() -> None:
            for one in waiting:
                await stage.work(one, keep)

        await asyncio.gather(*(work() for _ in range(min(concurrency, len(rows)))))
    return made


def batches(backend: Shown) -> list[list[Request]]:
    """What was asked, by turn."""
    return [[one for one in backend.asked if len(one.messages) == 2 * turn + 1] for turn in range(TURNS)]


def engine_alone(backend: Shown, turns: list[list[Request]]) -> None:
    for number, requests in enumerate(turns):
        for n, request in enumerate(requests):
            prompt = backend._with_images(backend.engine, request)
            backend.engine.add_request(f"{number}/{n}", prompt, _parameters(request))
        while backend.engine.has_unfinished_requests():
            backend.engine.step()


def cached_by_turn(made: list[ModelTurn]) -> dict[int, float]:
    found = {}
    for turn in range(1, TURNS + 1):
        lines = [line for line in made if line.turn == turn]
        tokens = sum(line.prompt_tokens or 0 for line in lines)
        found[turn] = round(sum(line.cached_tokens or 0 for line in lines) / tokens, 3)
    return found


async def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder, pictures = Path(made) / "vlm", Path(made) / "pictures"
        pictures.mkdir()
        tiny_vlm.build(folder, hidden=256, layers=4)
        rows = conversations(count, pictures)
        async with Shown(folder, ["--max-model-len", "4096"]) as backend:
            loop = asyncio.get_running_loop()

            def infer(concurrency: int) -> list[ModelTurn]:
                backend.forget()
                work = inferred(backend, rows, pictures, concurrency)
                return asyncio.run_coroutine_threadsafe(work, loop).result()

            def engine() -> None:
                backend.forget()
                engine_alone(backend, turns)

            found = await asyncio.to_thread(infer, count)
            assert all(line.failure in (None, "empty", "not_run") for line in found), found[0]
            asked = sum(line.prompt_tokens is not None for line in found)
            turns = batches(backend)
            works = {"infer": lambda: infer(count), "engine": engine, "one_by_one": lambda: infer(1)}
            took = await asyncio.to_thread(laps, works, ROUNDS)
    a_second = {name: round(asked / statistics.median(times), 1) for name, times in took.items()}
    tokens = sum(line.prompt_tokens or 0 for line in found) // asked
    print(f"{asked} turns of {count} conversations, {tokens} tokens a prompt; turns a second: {a_second}")
    result = {
        "name": "infer_multiturn",
        **ratios(took, "engine", "infer"),
        "over_one_by_one": ratios(took, "one_by_one", "infer"),
        "turns": asked,
        "cached_by_turn": cached_by_turn(found),
        "a_second": a_second,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else CONVERSATIONS))
