"""Vision models in vLLM: a judge in a process and served gives the same results, and the judged model answers over
several turns."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
from conftest import ROOT, needs, on_gpu, run_with_vllm, serving
from judgments import ResponseJudge

from critic.backends import Request
from critic.backends.openai import OpenAIBackend
from critic.images import Images, image_part
from critic.records import Conversation, ConversationTurn, Judgment, ModelTurn, Question, Response, Sampling

pytestmark = pytest.mark.e2e

FLOAT = ["--max-model-len", "4096", "--dtype", "float32", *(["--gpu-memory-utilization", "0.3"] if on_gpu() else [])]

SAME = 2e-3
"""Largest difference between probabilities: float32 sums in another order, in another batch."""

HERE = """
import asyncio, sys
from pathlib import Path
import msgspec
from test_vllm_sees import FLOAT, conversed, judged
from critic.backends.vllm import VllmBackend
folder, root = map(Path, sys.argv[1:])
async def both():
    async with VllmBackend(folder, FLOAT) as backend:
        return *await judged(backend, root), await conversed(backend, root)
print(msgspec.json.encode(asyncio.run(both())).decode())
"""
"""Both in one process, since loading vLLM takes longest."""


def rows() -> list[Response]:
    """Return rows with one text and two alternating images, and rows without any."""
    shown = [["a.png"], ["b.png"], ["a.png", "b.png"], []]
    common: Any = {"group": "g", "task": "Counting", "lang": "en", "prompt": "How many boats?", "reference": "3"}
    questions = [Question(id=f"q{n}", images=each, **common) for n, each in enumerate(shown)]
    return [Response(id=question.id, question=question, text="Three red boats.") for question in questions]


async def judged(backend: Any, root: Path) -> tuple[list[Judgment], list[str], list[int]]:
    """Return the judgments of all rows; the replies to one text with two alternating images, 32 in flight; and the
    tokens of a prompt with and without an image."""

    images = Images(root)
    judge = ResponseJudge(backend, "judge", "pointwise_short", "expected", 48, images=images)
    judgments = [await judge.judge(each) for each in rows()]

    def build_request(name: str) -> Request:
        parts = [image_part(images.load(name).uri), {"type": "text", "text": "What is it?"}]
        return Request(messages=[{"role": "user", "content": parts}], max_tokens=12)

    replies = await asyncio.gather(*(backend.chat(build_request("ab"[n % 2] + ".png")) for n in range(64)))
    plain = [{"role": "user", "content": "What is it?"}]
    counts = [await asyncio.to_thread(backend.count_tokens, each) for each in (build_request("a.png").messages, plain)]
    return judgments, [reply.text for reply in replies], counts


def talk(name: str, *turns: tuple[str, list[str]]) -> Conversation:
    turns_made = [
        ConversationTurn(prompt=text, reference="It lies on the left.", images=images) for text, images in turns
    ]
    return Conversation(id=name, benchmark="convbench", lang="en", group=name, turns=turns_made)


async def conversed(backend: Any, root: Path) -> list[ModelTurn]:
    """Return the turns of two conversations that differ in their first image, and of one that is too long."""
    from critic.stages.infer import Infer, Questions
    from critic.stages.run import RunOptions

    asks = ("How many boats are red, and why?", "And here, which one is the largest of them?", "Tell me more.")
    talks = [
        talk(name, (asks[0], [first, "b.png"]), (asks[1], ["c.png"]), (asks[2], []))
        for name, first in (("one", "a.png"), ("two", "c.png"))
    ]
    talks.append(talk("long", ("long " * 4000, [])))
    run = RunOptions(out=root / "none", concurrency=64, max_failed=1.0, retry_failed=False)
    conditions = ["own", "oracle", "no_image"]
    asked = Questions(conversations=talks, conditions=conditions, uris={}, root=root, images=Images(root))
    stage = Infer(run, backend, asked, "tiny", Sampling(max_tokens=24))
    replies: list[ModelTurn] = []
    stage._gate = asyncio.Semaphore(64)
    await asyncio.gather(*(stage.work(each, replies.append) for each in talks))
    return replies


class Here(NamedTuple):
    """The folders of the model and the images, and the results of `judged` and `conversed` in a process."""

    folder: Path
    root: Path
    judgments: list[dict[str, Any]]
    replies: list[str]
    counts: list[int]
    turns: list[ModelTurn]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Here:
    needs("torch", "vllm", "PIL", *(["torchvision"] if on_gpu() else []))
    import tiny_vlm
    from PIL import Image as Picture

    root = tmp_path_factory.mktemp("seeing")
    for name, shade in {"a.png": 0, "b.png": 120, "c.png": 250}.items():
        Picture.linear_gradient("L").point(lambda x, shade=shade: (x + shade) % 256).convert("RGB").save(root / name)
    # Qwen3-VL needs torchvision.
    folder = tiny_vlm.build_base("qwen3_vl", root / "vlm") if on_gpu() else tiny_vlm.build(root / "vlm")
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'tests/backends'}"}
    words = [sys.executable, "-c", HERE, str(folder), str(root)]
    done = run_with_vllm(words, cwd=ROOT, env=env)
    judgments, replies, counts, turns = json.loads(done.stdout.strip().splitlines()[-1])
    return Here(folder, root, judgments, replies, counts, msgspec.convert(turns, list[ModelTurn]))


@pytest.mark.gpu
def test_in_process_and_served_a_judge_sees_the_same(here: Here) -> None:
    folder, root, judgments, replies, counts, _ = here
    told_apart(judgments, replies, counts)
    allowed = ["--allowed-local-media-path", str(root), "--limit-mm-per-prompt", '{"image": 3}']
    with serving(folder, "--", *allowed, *FLOAT) as (_, url):
        backend = OpenAIBackend(url)
        backend.choose(None)
        assert backend.sees() is True

        async def judge_all() -> tuple[list[Judgment], list[str], list[int]]:
            async with backend:
                return await judged(backend, root)

        theirs, served, counted = asyncio.run(judge_all())
        told_apart([as_json(each) for each in theirs], served, counted)
        assert served == replies and counted == counts
        for mine, other in zip(judgments, theirs, strict=True):
            assert bool(mine.get("images")) == bool(mine["sample"]["conversation"]["turns"][0].get("images"))
            assert mine.get("images", 0) == other.images
            distribution = other.verdict.distribution
            assert distribution is not None and distribution == pytest.approx(mine["verdict"]["distribution"], abs=SAME)
        refused_and_served(url, root)


def as_json(judgment: Judgment) -> dict[str, Any]:
    record: dict[str, Any] = msgspec.to_builtins(judgment)
    return record


def told_apart(judgments: list[dict[str, Any]], replies: list[str], counts: list[int]) -> None:
    assert [judgment.get("images", 0) for judgment in judgments] == [1, 1, 2, 0]
    assert not [judgment["verdict"] for judgment in judgments if "failure" in judgment["verdict"]]
    first, second, *_ = (judgment["verdict"]["distribution"] for judgment in judgments)
    assert first != second, "the image makes no difference"
    assert len(set(replies[::2])) == len(set(replies[1::2])) == 1 and replies[0] != replies[1], "images are mixed up"
    assert counts[0] > counts[1] + 4


def refused_and_served(url: str, root: Path) -> None:
    """Assert that a file below the folder is read, and that a missing one, another host and a fourth image are
    errors."""

    def post_image(address: str, times: int = 1) -> httpx.Response:
        parts = [image_part(address)] * times + [{"type": "text", "text": "What is it?"}]
        body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 8}
        return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)

    assert post_image(f"file://{root}/a.png").status_code == 200
    for address, times in (
        (f"file://{root}/none.png", 1),
        ("http://127.0.0.1:9/a.png", 1),
        (f"file://{root}/a.png", 4),
    ):
        assert post_image(address, times).status_code >= 400


def generated(folder: Path, messages: list[dict[str, Any]], pictures: list[Any]) -> str:
    """Return transformers' own generation for a conversation, without vLLM."""
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    processor = AutoProcessor.from_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    prompt = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    inputs = processor(text=prompt, images=[pictures], return_tensors="pt", add_special_tokens=False)
    with torch.inference_mode():
        out = model.generate(**inputs, max_new_tokens=24, do_sample=False)
    return processor.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True).rstrip("\ufffd")


def test_the_judged_model_sees_over_several_turns(here: Here) -> None:
    """The replies are those of transformers, and no history is computed twice."""
    from PIL import Image as Picture

    by_turn = {(line.conversation.id, line.condition, line.turn): line for line in here.turns}
    assert len(by_turn) == 2 * 9 + 3

    for condition in ("own", "oracle", "no_image"):
        assert by_turn["long", condition, 1].failure == "context_length_exceeded"
    answered = {place: line for place, line in by_turn.items() if line.failure is None}
    assert ("one", "own", 2) in answered and ("two", "oracle", 3) in answered, by_turn
    for (name, condition, turn), line in answered.items():
        assert line.prompt_tokens and line.completion_tokens and line.cached_tokens is not None
        before = answered.get((name, condition, turn - 1))
        if before is not None:
            assert before.prompt_tokens is not None
            blocks = before.prompt_tokens // 32
            assert line.cached_tokens >= 32 * blocks > 0, (name, condition, turn, "history computed again")
    on_first, on_second, without = (
        answered[place].reply for place in (("one", "own", 1), ("two", "own", 1), ("one", "no_image", 1))
    )
    assert len({on_first, on_second, without}) == 3, "the images make no difference"

    second = answered["one", "own", 2]
    messages = list[dict[str, Any]]()
    for message in second.seen:
        parts = [*({"type": "image"} for _ in message.images), {"type": "text", "text": message.content}]
        messages.append({"role": message.role, "content": parts})
    shown = [Picture.open(here.root / image.path) for message in second.seen for image in message.images]
    assert generated(here.folder, messages, shown) == second.reply
    assert generated(here.folder, messages[:1], shown[:2]) == on_first
