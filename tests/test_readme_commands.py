"""The commands that the pages show, run as they stand: what they print has the shape of what is shown below them."""

import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Servers, completion, run, write_jsonl

LEFT_OUT = ("deepspeed", "python serve/judge.py")
"""What trains and what serves for good: tests/train and tests/serve run them."""


def blocks(page: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a page, continued lines joined, and the lines that are shown below it."""
    joined = re.sub(r"\\\n\s+", " ", (ROOT / page).read_text("utf-8"))
    for block in re.findall(r"(?m)(?:^    .*\n)+", joined):
        found: list[tuple[str, list[str]]] = []
        for line in block.splitlines():
            if line.startswith("    $ "):
                found.append((line[6:], []))
            elif found:
                found[-1][1].append(line[4:])
        yield from found


def shape(line: str) -> str:
    """Numbers of any size are alike, and so is how wide columns are."""
    return re.sub(r"\d+(?:[.,]\d+)*", "#", " ".join(line.split()))


def answer(body: dict[str, Any]) -> Any:
    """A judge whose context one prompt in seventy does not fit, and a model that says five lines to anything."""
    schema = json.dumps(body.get("response_format", ""))
    number = int(hashlib.sha256(json.dumps(body["messages"]).encode()).hexdigest(), 16)
    if "Rating" in schema and "Verdict" not in schema and number % 70 == 0:
        told = b'{"error": {"message": "This model\'s maximum context length is 3000 tokens", "code": 400}}'
        return 400, {}, told
    if schema == '""':
        return completion("\n".join(f"line {place}" for place in range(5)))
    return completion(json.dumps({"Rating": number % 10 + 1, "Reason": "so"} | {"Verdict": "AB"[number % 2]}))


def check(page: str, cwd: Path, url: str) -> list[str]:
    """The commands that were run; asserts that each ends well and prints what is shown."""
    ran = []
    for command, shown in blocks(page):
        if command.startswith(LEFT_OUT):
            continue
        words = shlex.split(command, comments=True)
        words = words[1:] if words[0] == "python" else words
        asks = words[:2] in (["critic", "infer"], ["critic", "judge"], ["critic", "rewrite"])
        if "--base-url" in words:
            words[words.index("--base-url") + 1] = url
        elif asks and "--judge" not in words and "--apply" not in words:
            words += ["--base-url", url]
        if words[:2] == ["critic", "judge"] and "--judge" not in words:
            words += ["--score", "argmax"]
        done = run(*words, cwd=cwd)
        assert done.returncode in (0, 3), (command, done.stderr[-500:])
        printed = [shape(line) for line in (done.stdout + done.stderr).splitlines()]
        for line in shown:
            assert line == "…" or shape(line) in printed, (command, line, done.stdout[-1500:], done.stderr[-500:])
        ran.append(command)
    return ran


def test_those_of_the_benchmarks(tmp_path: Path, scripted: Servers) -> None:
    samples = ROOT / "data" / "samples"
    (tmp_path / "ConvBench.csv").symlink_to(samples / "convbench" / "ConvBench.csv")
    (tmp_path / "images").symlink_to(samples / "convbench" / "images")
    (tmp_path / "seeds.jsonl").symlink_to(samples / "alignmmbench" / "metadata.jsonl")
    ran = check("critic/benchmarks/README.md", tmp_path, scripted(answer).url)
    assert [command.split()[1] for command in ran][:3] == ["infer", "judge", "score"] and len(ran) >= 5
    assert (tmp_path / "runs" / "convbench" / "report.html").is_file()


def test_those_of_the_first_page(tmp_path: Path, shared: Path, scripted: Servers) -> None:
    (tmp_path / "llmeval2.jsonl").symlink_to(shared / "data" / "human_scored" / "llmeval2.jsonl")
    for name in ("questions.jsonl", "demo_response.jsonl"):
        (tmp_path / name).symlink_to(shared / "data" / "alignmmbench" / name)
    replies = [{"text": text} for text in ('{"Rating": 7, "Reason": "对"}', "看不清", '{"Rating": 9, "Reason": "好"}')]
    write_jsonl(tmp_path / "scripted.jsonl", replies)
    ran = check("README.md", tmp_path, scripted(answer, context=1400, owner="vllm").url)
    assert len(ran) == 6


@pytest.mark.parametrize("line", ["  Coherence   7.50  2   5    181 ", "Coherence 10 20 3.25 7"])
def test_a_shape_is_what_is_said_but_for_the_numbers(line: str) -> None:
    assert shape(line) == "Coherence # # # #" != shape(line + " more")
