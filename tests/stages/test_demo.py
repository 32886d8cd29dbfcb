"""The demo as a newcomer runs it, on real parts: what it must reach, and that its parts are exact."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, assert_one_line_error, run

pytestmark = pytest.mark.e2e

DEMO = [sys.executable, "-c", "from critic.cli import main; main()", "demo"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo, run once. Its output is shown as it comes, so that a slow machine shows where it is."""
    for module in ("deepspeed", "vllm"):
        pytest.importorskip(module, reason="the demo needs the train extra and a serve extra")
    out = tmp_path_factory.mktemp("demo")
    done = subprocess.run([*DEMO, "--out", str(out)], cwd=ROOT, stdout=sys.__stderr__, check=False, timeout=1500)
    assert done.returncode == 0
    return out


def summary(demo: Path) -> dict[str, Any]:
    return json.loads((demo / "summary.json").read_text("utf-8"))


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_the_tiny_judge_has_learned(demo: Path) -> None:
    found = summary(demo)
    internal, constant = found["internal"], found["baselines"]["constant"]["internal"]
    assert internal["mae"] <= 0.8 * constant["mae"]
    assert internal["pearson"] >= 0.55
    assert set(found["external"]) >= {"n", "failed", "mae", "pearson", "spearman", "kendall", "fuzzy", "strict"}
    assert set(found["baselines"]) == {"constant", "length", "chrf"}


def test_nothing_is_lost_on_the_way(demo: Path) -> None:
    found = summary(demo)
    for test in ("internal", "external"):
        rows = {row["id"] for row in records(demo / f"data/{test}.jsonl")}
        judged = records(demo / f"{test}.jsonl")
        assert sorted(rows) == sorted(line["response"]["id"] for line in judged)
        assert found[test]["n"] == len(rows) and found[test]["failed"] == 0
    trained = records(demo / "data/train.jsonl")
    internal = records(demo / "data/internal.jsonl")
    assert not {row["group"] for row in trained} & {row["group"] for row in internal}
    assert "Nightjar-9B" not in {row["system"] for row in trained}
    for task in {row["task"] for row in trained}:
        groups = [len({row["group"] for row in part if row["task"] == task}) for part in (trained, internal)]
        assert 0.09 <= groups[1] / sum(groups) <= 0.115, task


def test_every_verdict_is_strict_json_from_constrained_decoding(demo: Path) -> None:
    for line in records(demo / "internal.jsonl"):
        verdict = json.loads(line["reply"])
        assert list(verdict) == ["Rating", "Reason"] and 1 <= verdict["Rating"] <= 10


def test_the_report_is_one_file_without_network(demo: Path) -> None:
    page = (demo / "report.html").read_text("utf-8")
    assert "src=" not in page and "@import" not in page and "<link" not in page
    for part in ("internal", "external", "constant", "chrf", "Nightjar-9B"):
        assert part in page
    assert (demo / "judge/loss.png").read_bytes().startswith(b"\x89PNG")


def test_the_distribution_is_the_models_own(demo: Path) -> None:
    """Ratings 1..10 as transformers gives them, on the very prompts that were judged, 10 included."""
    torch = pytest.importorskip("torch")
    import msgspec
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from critic.asking.examples import source_ids
    from critic.asking.prompt import load, render
    from critic.records import Judgment

    tokenizer = AutoTokenizer.from_pretrained(demo / "judge")
    model = AutoModelForCausalLM.from_pretrained(demo / "judge", dtype=torch.float32).eval()
    digits = [tokenizer.convert_tokens_to_ids(str(digit)) for digit in range(10)]

    commas = [number for number in range(len(tokenizer)) if tokenizer.decode([number]).startswith(",")]

    def following(ids: list[int]) -> Any:
        with torch.no_grad():
            return model(torch.tensor([ids])).logits[0, -1].double().softmax(-1)

    begun = tokenizer('{"Rating":', add_special_tokens=False)["input_ids"]
    for line in (demo / "internal.jsonl").read_text("utf-8").splitlines()[:30]:
        judgment = msgspec.json.decode(line, type=Judgment)
        messages = render(load("pointwise", judgment.response.question.lang), judgment.response)
        ids = source_ids(tokenizer, messages) + begun
        first = following(ids)[digits]
        # Behind a 1 a verdict can only go on with a 0 or a comma; other tokens are no rating at all.
        after_one = following([*ids, digits[1]])
        ten = after_one[digits[0]] / (after_one[digits[0]] + after_one[commas].sum())
        shares = [first[1] * (1 - ten), *first[2:10], first[1] * ten]
        total = float(first[1:10].sum())
        expected = [float(share) / total for share in shares]
        assert judgment.verdict.distribution == pytest.approx(expected, abs=2e-4)
        assert judgment.score == pytest.approx(sum((i + 1) * p for i, p in enumerate(expected)), abs=2e-3)


def test_run_again_it_has_nothing_to_do(demo: Path) -> None:
    before = {path: path.read_bytes() for path in (demo / "internal.jsonl", demo / "judge/model.safetensors")}
    done = subprocess.run(
        [*DEMO, "--out", str(demo)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "holds this judge already" in done.stdout and "0 to go" in done.stderr
    assert all(path.read_bytes() == content for path, content in before.items())


def serving(judge: Path, port: int) -> subprocess.Popen[str]:
    words = [sys.executable, "serve/judge.py", str(judge), "--port", str(port), "--alias", "gpt-4", "--log"]
    server = subprocess.Popen([*words, str(judge.parent / "again.log")], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    ready = server.stdout.readline()
    assert ready.startswith("ready: "), ready
    return server


def children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in listed.stdout.split()]


def alive(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=["Ctrl-C", "TERM", "kill -9"])
def test_vllm_ends_with_its_server(demo: Path, how: signal.Signals) -> None:
    import httpx

    server = serving(demo / "judge", 8790 + how)
    names = [model["id"] for model in httpx.get(f"http://127.0.0.1:{8790 + how}/v1/models").json()["data"]]
    assert names[0].startswith("judge@") and names[1] == "gpt-4"
    (vllm,) = children(server.pid)
    os.kill(server.pid, how)
    server.wait(60)
    deadline = time.monotonic() + 60
    while alive(vllm) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not alive(vllm)


def test_an_unknown_model_name_lists_the_served_ones(demo: Path, tmp_path: Path) -> None:
    server = serving(demo / "judge", 8799)
    try:
        words = ["--out", tmp_path / "out.jsonl", "--base-url", "http://127.0.0.1:8799/v1", "--model", "gpt-5"]
        assert_one_line_error(run("critic", "judge", demo / "data/internal.jsonl", *words), "'gpt-5'", "judge@")
    finally:
        server.terminate()
        server.wait(60)
