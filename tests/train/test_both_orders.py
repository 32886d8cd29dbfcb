"""One judge trained with the rating first and with the reason first, and asked for each: served, and in process."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, human_row, write_jsonl

pytest.importorskip("vllm", reason="needs a serve extra")

from training import sample_rows, train, write_recipe, write_rows  # isort: skip
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from critic import human_scored
from critic.asking.prompt import load, render

ORDERS = {"pointwise": ["Rating", "Reason"], "pointwise_reason_first": ["Reason", "Rating"]}
SAME = 1e-3
"""How far the probabilities of one rating may lie apart: float32 sums in another order, in another batch."""


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny recipe with both forms, for as many steps as it takes to write verdicts of its own accord."""
    folder = tmp_path_factory.mktemp("orders")
    steps = {"max_steps": 240, "save_steps": 240, "logging_steps": 60, "per_device_train_batch_size": 8}
    steps |= {"learning_rate": 0.004, "warmup_steps": 20}
    changes: dict[str, Any] = {"evaluation": None, "ema": None, "global_batch": 8, "max_source_tokens": 500}
    changes["tiny"] = {
        "hidden_size": 64,
        "heads": 1,
        "initializer_range": 0.06,
    }  # vLLM on a CPU knows no smaller heads than of 32
    recipe = write_recipe(folder, forms=dict.fromkeys(ORDERS, 1.0), **changes, training=steps)
    train(recipe, write_rows(folder), folder / "judge", internal=False)
    return folder / "judge"


@pytest.fixture(scope="module")
def served(judge: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    words = [sys.executable, "serve/judge.py", str(judge), "--port", port, "--log", str(judge.parent / "log")]
    server = subprocess.Popen([*words, "--stop-with-parent"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    ready = server.stdout.readline()
    assert ready.startswith("ready: "), (judge.parent / "log").read_text("utf-8")[-3000:]
    yield ready.split()[1]
    server.terminate()
    server.wait()


def test_both_are_trained(judge: Path) -> None:
    """Unconstrained and greedily, it writes the verdict that the prompt asks for, and ends it."""
    facts = json.loads((judge / "critic.json").read_text("utf-8"))
    assert facts["forms"] == dict.fromkeys(ORDERS, 24) and set(facts["prompts"]) == set(ORDERS)
    tokenizer = AutoTokenizer.from_pretrained(judge)
    model = AutoModelForCausalLM.from_pretrained(judge, dtype=torch.float32).eval()
    responses = human_scored.load(judge.parent / "rows.jsonl").responses
    for prompt, keys in ORDERS.items():
        for response in responses[:6]:
            messages = render(load(prompt, response.question.lang), response)
            asked = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
            with torch.no_grad():
                written = model.generate(**asked, max_new_tokens=60, do_sample=False)
            text = tokenizer.decode(written[0, asked["input_ids"].shape[1] :], skip_special_tokens=True)
            assert list(json.loads(text)) == keys, text


ONE_AFTER_THE_OTHER = """
import contextlib, json, sys
from critic.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    with contextlib.suppress(SystemExit):
        main()
"""
"""In one process, since loading vLLM takes longest."""


def judging(judge: Path, way: str, where: str) -> subprocess.Popen[str]:
    """Judge the sample rows, and one that does not fit, in both orders."""
    data = write_jsonl(judge.parent / f"{way}.jsonl", [*sample_rows(), human_row(61, question="8" * 3000)])
    words = ["judge", str(data), "--judge", where, "--max-tokens", "64", "--max-failed", "0.1"]
    runs = [[*words, "--prompt", prompt, "--out", str(judge.parent / f"{way}-{prompt}.jsonl")] for prompt in ORDERS]
    program = [sys.executable, "-c", ONE_AFTER_THE_OTHER, json.dumps(runs)]
    return subprocess.Popen(program, cwd=ROOT, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def in_process(judge: Path) -> subprocess.Popen[str]:
    """Under way while the server starts."""
    return judging(judge, "here", str(judge))


@pytest.fixture(scope="module")
def judged(judge: Path, in_process: Any, served: str) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """What was said of the rows, by who judged (served, here) and the order."""
    found = {}
    for way, running in {"served": judging(judge, "served", served), "here": in_process}.items():
        _, said = running.communicate(timeout=240)
        for prompt in ORDERS:
            out = judge.parent / f"{way}-{prompt}.jsonl"
            assert out.is_file(), said
            found[way, prompt] = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    return found


def by_id(lines: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {line["response"]["id"]: line for line in lines}


@pytest.mark.parametrize("prompt", ORDERS)
@pytest.mark.parametrize("way", ["served", "here"])
def test_each_row_is_judged_in_the_order_asked_for(way: str, prompt: str, judged: Any) -> None:
    """With a distribution; or it has failed by name."""
    lines = judged[way, prompt]
    assert sorted(line["response"]["id"] for line in lines) == sorted([row["id"] for row in sample_rows()] + ["row-61"])
    for line in lines:
        assert line["prompt"] == prompt
        if line["response"]["id"] == "row-61":
            assert line["verdict"]["failure"] == "context_length_exceeded" and "score" not in line
            continue
        assert "failure" not in line["verdict"], line
        assert list(json.loads(line["reply"])) == ORDERS[prompt]
        assert line["verdict"]["rating"] == json.loads(line["reply"])["Rating"]
        shares = line["verdict"]["distribution"]
        assert sum(shares) == pytest.approx(1.0) and min(shares) >= 0.0
        assert line["score"] == pytest.approx(sum(n * share for n, share in enumerate(shares, 1)))
    scores = [line["score"] for line in lines if "score" in line]
    assert max(scores) - min(scores) > 0.5, "a judge that cannot tell rows apart proves nothing"


@pytest.mark.parametrize("prompt", ORDERS)
def test_server_and_process_agree(prompt: str, judged: Any) -> None:
    served, here = by_id(judged["served", prompt]), by_id(judged["here", prompt])
    replies = [{key: line.get("reply") for key, line in found.items()} for found in (here, served)]
    assert replies[0] == replies[1]
    for key, line in here.items():
        shares = served[key]["verdict"].get("distribution")
        assert line["verdict"].get("distribution") == (shares and pytest.approx(shares, abs=SAME)), key
