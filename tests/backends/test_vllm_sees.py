"""A judge that sees, in vLLM: in a process and served, one image is told from another, and both ways agree."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import ROOT, needs, serving

from critic.backends import Request, image_part
from critic.backends.openai import OpenAIBackend
from critic.images import Images
from critic.records import Judgment, Question, Response

pytestmark = pytest.mark.e2e

SAME = 2e-3
"""How far probabilities may lie apart: float32 sums in another order, in another batch."""

HERE = """
import asyncio, sys
from pathlib import Path
import msgspec
from test_vllm_sees import judged
from critic.backends.vllm import VllmBackend
made = asyncio.run(judged(VllmBackend(Path(sys.argv[1]), ["--max-model-len", "4096"]), Path(sys.argv[2])))
print(msgspec.json.encode(made).decode())
"""


def rows() -> list[Response]:
    """One text with two images by turns, and rows without any."""
    shown = [["a.png"], ["b.png"], ["a.png", "b.png"], []]
    questions = [
        Question(
            id=f"q{n}", group="g", task="Counting", lang="en", prompt="How many boats?", reference="3", images=each
        )
        for n, each in enumerate(shown)
    ]
    return [Response(id=one.id, question=one, text="Three red boats.") for one in questions]


async def judged(backend: Any, root: Path) -> tuple[list[Judgment], list[str], list[int]]:
    """The judgments of all rows; the replies to the same text with two images by turns, 32 in flight; and the tokens
    of a prompt with an image and without."""
    from critic.asking.judge import ResponseJudge

    images = Images(root)
    async with backend:
        judge = ResponseJudge(backend, "judge", "pointwise_short", "expected", 48, images=images)
        made = [await judge.judge(one) for one in rows()]

        def asked(name: str) -> Request:
            parts = [image_part(images.load(name).uri), {"type": "text", "text": "What is it?"}]
            return Request(messages=[{"role": "user", "content": parts}], max_tokens=12)

        replies = await asyncio.gather(*(backend.chat(asked("ab"[n % 2] + ".png")) for n in range(64)))
        plain = [{"role": "user", "content": "What is it?"}]
        counts = [await asyncio.to_thread(backend.count_tokens, one) for one in (asked("a.png").messages, plain)]
    return made, [reply.text for reply in replies], counts


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    needs("torch", "vllm", "PIL")
    import tiny_vlm
    from PIL import Image as Picture

    root = tmp_path_factory.mktemp("seeing")
    for name, shade in {"a.png": 0, "b.png": 120}.items():
        Picture.linear_gradient("L").point(lambda x, shade=shade: (x + shade) % 256).convert("RGB").save(root / name)
    return tiny_vlm.build(root / "vlm"), root


def test_in_process_and_served_a_judge_sees_the_same(seeing: tuple[Path, Path]) -> None:
    folder, root = seeing
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'tests/backends'}"}
    words = [sys.executable, "-c", HERE, str(folder), str(root)]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    made, replies, counts = json.loads(done.stdout.strip().splitlines()[-1])
    here: list[dict[str, Any]] = made
    told_apart(here, replies, counts)
    allowed = ["--allowed-local-media-path", str(root), "--max-images", "3"]
    with serving(folder, *allowed, "--", "--max-model-len", "4096") as (_, url):
        backend = OpenAIBackend(url)
        backend.choose(None)
        assert backend.sees() is True
        theirs, served, counted = asyncio.run(judged(backend, root))
        told_apart([as_json(one) for one in theirs], served, counted)
        assert served == replies and counted == counts
        for mine, other in zip(here, theirs, strict=True):
            assert mine["images"] if mine["response"]["question"].get("images") else not mine.get("images")
            assert mine.get("images", 0) == other.images
            distribution = other.verdict.distribution
            assert distribution is not None and distribution == pytest.approx(mine["verdict"]["distribution"], abs=SAME)
        refused_and_served(url, root)


def as_json(one: Judgment) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(one)
    return found


def told_apart(made: list[dict[str, Any]], replies: list[str], counts: list[int]) -> None:
    assert [one.get("images", 0) for one in made] == [1, 1, 2, 0]
    assert all("failure" not in one["verdict"] for one in made), [one["verdict"] for one in made]
    assert made[0]["verdict"]["distribution"] != made[1]["verdict"]["distribution"], "the image makes no difference"
    assert len(set(replies[::2])) == len(set(replies[1::2])) == 1 and replies[0] != replies[1], "images are mixed up"
    assert counts[0] > counts[1] + 4


def refused_and_served(url: str, root: Path) -> None:
    """The limits hold before a real vLLM: a missing file is a 400 there too, one below the folder is shown."""

    def asked(address: str, times: int = 1) -> httpx.Response:
        parts = [image_part(address)] * times + [{"type": "text", "text": "What is it?"}]
        body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 8}
        return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)

    assert asked(f"file://{root}/a.png").status_code == 200
    for address, times in (
        (f"file://{root}/none.png", 1),
        ("http://127.0.0.1:9/a.png", 1),
        (f"file://{root}/a.png", 4),
    ):
        assert asked(address, times).status_code == 400
