"""The demos as a newcomer runs them, on real parts: what they must reach, and that their parts are exact.

    make test-demo

runs them whole. In `make test` each is shortened: fewer questions, fewer steps, one judge for both.
"""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, Servers, asked_of, command, completion, needs, read_jsonl, run_apart, start_with_vllm
from probabilities import by_transformers

from critic import jsonl
from critic.page.page import render
from critic.records import Judgment

pytestmark = pytest.mark.e2e

WHOLE = pytest.param("whole", marks=pytest.mark.whole)
"""With a pretrained base, which pip has to reach."""


def short_recipe(path: Path) -> Path:
    """The demo's recipe, stopped when it has learned what a verdict looks like."""
    recipe = yaml.safe_load((ROOT / "train/recipes/tiny.yaml").read_text("utf-8"))
    recipe["global_batch"] = recipe["training"]["per_device_train_batch_size"] = 4
    recipe["training"] |= {"max_steps": 60, "warmup_steps": 10, "logging_steps": 10}
    recipe["training"]["lr_scheduler_kwargs"]["num_decay_steps"] = 30
    path.write_text(yaml.safe_dump(recipe), "utf-8")
    return path


@pytest.fixture(scope="module", params=["short", WHOLE])
def demo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo, run once. Its output is shown as it comes, so that a slow machine shows where it is."""
    needs("deepspeed", "vllm")
    out = tmp_path_factory.mktemp("demo")
    words: list[Any] = []
    if request.param == "short":
        words = ["--questions", "130", "--recipe", short_recipe(out / "recipe.yaml")]
    done = subprocess.run(
        command("critic", "demo", "--out", out, *words), cwd=ROOT, stdout=sys.__stderr__, check=False, timeout=3600
    )
    assert done.returncode == 0
    return out


def summary(demo: Path) -> dict[str, Any]:
    return json.loads((demo / "summary.json").read_text("utf-8"))


@pytest.mark.parametrize("demo", [WHOLE], indirect=True)
def test_the_judge_is_one_to_use(demo: Path) -> None:
    """Above every trivial judge, with intervals that do not overlap, on both tests."""
    figures = summary(demo)
    for test in ("internal", "external"):
        judge = figures[test]
        assert judge["pearson"] >= 0.85 and judge["mae"] <= 1.0
        for trivial in figures["baselines"].values():
            assert judge["interval"]["mae"][1] < trivial[test]["interval"]["mae"][0]


def test_nothing_is_lost_on_the_way(demo: Path) -> None:
    figures = summary(demo)
    for test in ("internal", "external"):
        rows = {row["id"] for row in read_jsonl(demo / f"data/{test}.jsonl")}
        judged = read_jsonl(demo / f"{test}.jsonl")
        assert sorted(rows) == sorted(line["sample"]["id"] for line in judged)
        assert figures[test]["n"] == len(rows) and figures[test]["failed"] == 0
    trained = read_jsonl(demo / "data/train.jsonl")
    internal = read_jsonl(demo / "data/internal.jsonl")
    assert not {row["group"] for row in trained} & {row["group"] for row in internal}
    assert "Nightjar-9B" not in {row["system"] for row in trained}
    for task in {row["task"] for row in trained}:
        groups = [len({row["group"] for row in part if row["task"] == task}) for part in (trained, internal)]
        assert 0.09 <= groups[1] / sum(groups) <= 0.115, task


def test_its_judge_does_what_a_user_tries_next(demo: Path) -> None:
    """AlignMMBench's sample questions, all judged and scored."""
    judged = read_jsonl(demo / "answers.jsonl")
    assert len(judged) == 8 and not any(line.get("failure") for line in judged)
    assert (demo / "benchmark/report.html").is_file()


def next_commands(out: Path) -> dict[str, list[str]]:
    """The commands that the demo shows at its end, by their first two words."""
    text = render("critic.page", "next_steps.jinja", {"out": out, "form": "pointwise"}).replace("\\\n", " ")
    words = [shlex.split(line) for line in text.splitlines() if line.startswith("    ")]
    return {" ".join(command[:3] if command[1] == "run" else command[:2]): command for command in words}


def test_its_closing_text_shows_the_gate(demo: Path) -> None:
    """The pretrained judge passes it, one that was stopped early does not."""
    words = next_commands(demo)["critic audit"]
    done = run_apart(*words)
    assert done.returncode in (0, 1), done.stderr
    assert len(re.findall(r"gate: internal: \S+ (?:kept|NOT kept)", done.stdout + done.stderr)) == 2, done.stderr
    if (demo / "judge/config.json").read_text("utf-8").count("ForSequenceClassification"):
        assert done.returncode == 0


def test_its_closing_text_serves_the_clients_of_the_readme(demo: Path) -> None:
    """The README's client gets a score, of a judge that writes and of the demo's scoring head."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = command(*next_commands(demo)["critic serve"], "--port", port)
    with start_with_vllm(words, cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True) as server:
        try:
            assert any(line.startswith("ready: ") for line in iter(server.stdout.readline, ""))
            (code,) = re.findall(r"(?m)^```python\n((?:.*\n)*?)```", (ROOT / "README.md").read_text("utf-8"))
            client = [sys.executable, "-c", code.replace("8000", port)]
            done = subprocess.run(client, capture_output=True, text=True, check=False, timeout=300)
        finally:
            os.killpg(server.pid, signal.SIGTERM)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\b([1-9]|10)\b", done.stdout), done.stdout


@pytest.mark.slow  # two minutes of a core
def test_its_closing_text_runs_conversations_by_a_judge_that_learned_them(tmp_path: Path, scripted: Servers) -> None:
    """ConvBench's and MultiVerse's samples as published, by a judge of the recipe that `make bench-demo` trains."""
    needs("deepspeed", "vllm")
    world, data, judge = tmp_path / "world.jsonl", tmp_path / "data", tmp_path / "judge"
    short = ["training.max_steps=20", "training.lr_scheduler_kwargs.num_decay_steps=10", "training.warmup_steps=5"]
    for words in (
        ["data/sample_world.py", "--conversations", "--questions", "60", "--out", world],
        ["data/human_scores.py", world, "--internal", "20", "--out", data],
        ["critic", "train", "tiny-benchmarks", "--train", data / "train.jsonl", "--out", judge]
        + [word for key in short for word in ("--set", key)],
    ):
        run_apart(*words, code=0)
    url = scripted(lambda body: completion("a line")).url
    for benchmark in ("convbench", "multiverse"):
        words = next_commands(tmp_path)[f"critic run {benchmark}"]
        sample = ROOT / words[3]
        # The first conversation only: a judge of twenty steps rambles to the limit of every reply.
        lines = sample.read_text("utf-8-sig").splitlines(keepends=True)[: 2 if sample.suffix == ".csv" else 1]
        (tmp_path / sample.name).write_text("".join(lines), "utf-8")
        places = {words[3]: tmp_path / sample.name, "URL": url, "runs/bench-demo/judge": judge}
        # It may fail to write a verdict, but it is never refused for the form.
        limits = ("--data-root", sample.parent, "--verdict-tokens", "160", "--max-failed", "1")
        run_apart(*(places.get(word, word) for word in words), *limits, code=0)
        lines = read_jsonl(tmp_path / benchmark / "judged.jsonl")
        assert lines and not any("unlearned" in line["setup"] for line in lines)
        assert "as published" in (tmp_path / benchmark / "score/report.html").read_text("utf-8")


def test_every_verdict_is_strict_json_from_constrained_decoding(demo: Path) -> None:
    for line in read_jsonl(demo / "internal.jsonl"):
        if line["prompt"] == "pointwise_short":  # of a head, which writes nothing
            assert re.fullmatch(r'\{"Rating":([1-9]|10)', line["reply"])
        else:
            verdict = json.loads(line["reply"])
            assert list(verdict) == ["Rating", "Reason"] and 1 <= verdict["Rating"] <= 10


@pytest.mark.parametrize("demo", ["short"], indirect=True)
def test_the_distribution_is_the_models_own(demo: Path) -> None:
    """Ratings 1..10 as transformers gives them, on the very prompts that were judged, 10 included."""
    judged = [judgment for _, judgment in jsonl.read(demo / "internal.jsonl", Judgment)][:12]
    prompts = [asked_of("pointwise", judgment.sample.response).messages for judgment in judged]
    for judgment, shares in zip(judged, by_transformers(demo / "judge", prompts, end=","), strict=True):
        assert judgment.verdict.distribution == pytest.approx(shares, abs=2e-4)
        mean = sum(rating * share for rating, share in enumerate(shares, 1))
        assert judgment.score == pytest.approx(mean, abs=2e-3)


@pytest.mark.whole
@pytest.mark.parametrize("demo", ["short"], indirect=True)
def test_run_again_it_has_nothing_to_do(demo: Path) -> None:
    before = {path: path.read_bytes() for path in (demo / "internal.jsonl", demo / "judge/model.safetensors")}
    done = run_apart("critic", "demo", "--out", demo, "--questions", "130", "--recipe", demo / "recipe.yaml", code=0)
    assert "holds this judge already" in done.stdout and "0 to go" in done.stderr
    assert all(path.read_bytes() == content for path, content in before.items())


@pytest.mark.whole
def test_the_judge_of_pictures_looks_at_them(tmp_path: Path) -> None:
    """On answers of systems it has learned from and of one it has not it agrees more with people seeing than blind, and
    another picture costs right answers points."""
    needs("PIL", "deepspeed", "vllm")
    words = command("critic", "demo", "--pictures", "--out", tmp_path)
    assert subprocess.run(words, cwd=ROOT, stdout=sys.__stderr__, check=False, timeout=1500).returncode == 0
    figures = summary(tmp_path)
    assert len(figures["looking"]) == 2
    for looks in figures["looking"]:
        (pearson,) = (difference for difference in looks["differences"] if difference["metric"] == "pearson")
        assert pearson["value"] >= 0.20 and pearson["interval"][0] > 0
        assert looks["swap"]["change"]["value"] <= -2 and looks["edit"]["moved"]["value"] >= 0.80
        assert looks["reached"] == looks["answers"] and looks["reading"].startswith("It looks at the image")
    assert json.loads((tmp_path / "seconds.json").read_text("utf-8"))["total"] <= 1200


@pytest.mark.whole
def test_all_four_benchmarks_with_a_judge_of_their_own(tmp_path: Path) -> None:
    needs("PIL", "deepspeed", "vllm")
    words = command("data/bench_demo.py", "--out", tmp_path)
    assert subprocess.run(words, cwd=ROOT, stdout=sys.__stderr__, check=False, timeout=3600).returncode == 0
    for benchmark in ("alignmmbench", "convbench", "multiverse", "visitbench", "tournament"):
        for facts in summary(tmp_path / benchmark)["files"].values():
            assert facts["verdicts"] > 0 and sum(facts["failed"].values()) <= 0.1 * facts["verdicts"], facts["failed"]
