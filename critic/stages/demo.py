"""Run the whole main job on a small sample world, with the commands a user would type (critic demo).

critic demo --out runs/demo
critic demo --pictures --out runs/demo-vision
"""

import json
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from critic import jsonl
from critic.errors import UsageError
from critic.judging.prompt import load
from critic.judging.targets import REASON
from critic.page.page import render

EXTERNAL = "Nightjar-9B"
"""The simulated answerer whose answers are kept out of training."""

CRITIC = str(Path(sys.executable).with_name("critic"))
"""The command line that stands beside this Python."""

PROGRAMS = ("data/sample_world.py", "data/human_scores.py", "train/base.py", "serve/judge.py")

BASE = ("gemma-3-270m", "runs/base/gemma-3-270m-10", "--layers", "10")
"""Arguments of train/base.py: the pretrained base, the folder where the recipe expects it, and the number of layers. A
scoring head needs only some, which halves the time for training and serving."""

RECIPE, SEEING = Path("train/recipes/demo.yaml"), Path("train/recipes/tiny-vl.yaml")
"""Training recipes: for the judge on the pretrained base, and for the judge that sees images (--pictures)."""

SAMPLES = "data/samples/alignmmbench"
"""Folder of eight sample questions with answers, in AlignMMBench's format."""


def begin(programs: Iterable[str]) -> float:
    """Prepare a demo that runs the `programs` (paths), and return the start time, a value of time.monotonic.

    From now on SIGTERM interrupts the demo as Ctrl-C does, so that the demo ends its child processes (`run`, `served`).
    Raises UsageError if a program is missing, because the demo is not run in the root of a clone.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # The programs of data/ are not part of an installation.
    for program in programs:
        if not Path(program).is_file():
            raise UsageError(f"run this in the root of a clone of the repository: {program} is not here")
    return time.monotonic()


def step(number: str, title: str, start: float) -> None:
    """Print the heading of a step with the seconds since `start`, a value of time.monotonic."""
    print(f"\n[{number}] {title}  ({time.monotonic() - start:.0f} s so far)", flush=True)


def _show(words: list[str]) -> None:
    """Print a command as a user would type it."""
    beside = (sys.executable, CRITIC)
    print(f"      $ {shlex.join(Path(word).name if word in beside else word for word in words)}", flush=True)


def run(*command: object) -> None:
    """Print a command, given as its words, and run it. Raises UsageError if it exits with a code other than 0."""
    words = [*map(str, command)]
    _show(words)
    with subprocess.Popen(words) as process:
        try:
            code = process.wait()
        except BaseException:
            # Whoever stops the demo stops what it started, and Popen itself does not wait for that.
            process.send_signal(signal.SIGTERM)
            process.wait()
            raise
    if code:
        raise UsageError(f"{Path(words[0]).name} ended with code {code}, see above; earlier steps are kept")


def free_port() -> int:
    """Return a free TCP port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def form_asked(judge: Path) -> list[str]:
    """Return the `critic judge` options that request the form a judge was trained on most, with its reason or
    without."""
    forms: dict[str, float] = json.loads((judge / "critic.json").read_text("utf-8"))["recipe"]["forms"]
    form = max(forms, key=lambda name: forms[name])
    return ["--prompt", form, *([] if f'"{REASON}"' in load(form, "en").template else ["--no-reason"])]


@contextmanager
def served(checkpoint: Path, log: Path) -> Iterator[tuple[str, str]]:
    """Serve a model while the body runs; yield the base URL and the model's name.

    Raises UsageError if the server does not start; `log` is its log file.
    """
    words = [sys.executable, "serve/judge.py", str(checkpoint), "--port", str(free_port()), "--log", str(log)]
    _show(words)
    server = subprocess.Popen([*words, "--stop-with-parent"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        ready = server.stdout.readline()
        # The server prints this line once it answers requests; if it ends first, the line is empty.
        if not ready.startswith("ready: "):
            raise UsageError(f"the server did not come up, see above; its log is {log}")
        _, url, _, model, *_ = ready.split()
        print(f"      {ready.strip()}", flush=True)
        yield url, model.rstrip(");")
    finally:
        server.terminate()
        server.wait()


def done(out: Path, report: str, start: float) -> None:
    """Write the seconds since `start` to seconds.json, and print which `report` to open."""
    seconds = time.monotonic() - start
    jsonl.write_json(out / "seconds.json", {"total": round(seconds, 1)})
    print(f"\ndone in {seconds:.0f} s: open {out}/{report}", flush=True)


PICTURED = 1500
"""Number of questions in a sample world with pictures. A tiny judge needs this many to learn to use the image."""


def main(
    out: Path = Path("runs/demo"),
    recipe: Annotated[Path | None, typer.Option(show_default=str(RECIPE))] = None,
    questions: Annotated[int | None, typer.Option(show_default=f"1144, {PICTURED} with pictures")] = None,
    pictures: Annotated[bool, typer.Option("--pictures")] = False,
) -> None:
    """Run the whole pipeline (train, serve, judge, audit) on a small sample world. Rerun the same command to resume.
    \f
    - out: Folder for everything the demo makes.
    - recipe: Training recipe; train/recipes/tiny.yaml needs no package index.
    - questions: Questions of the sample world, for a shorter demo.
    - pictures: Add pictures, train a judge that sees them, and test if it does.
    """
    start = begin(PROGRAMS)
    python, data, judge, answers = sys.executable, out / "data", out / "judge", out / "answers.jsonl"
    tests, arms = ["internal", "external"], list[str]()
    drawn, root, shown = list[str](), list[str](), list[str]()
    asked_about = ["--questions", f"{SAMPLES}/metadata.jsonl"]
    base = "from a small pretrained base"
    if pictures:
        drawn, root, arms = ["--pictures"], ["--data-root", str(out)], [f"{test}-arms" for test in tests]
        shown = ["--images", "show", *root]
        base = "that sees, from random weights"
        questions, recipe = questions or PICTURED, recipe or SEEING

    step("1/5", "data: a sample world with simulated answerers and raters", start)
    world = out / "world.jsonl"
    size = ["--questions", questions] if questions else []
    run(python, "data/sample_world.py", "--out", world, *size, *drawn)
    run(python, "data/human_scores.py", world, "--out", data, "--external", EXTERNAL, "--per-task", *drawn)

    step("2/5", f"train: a judge {base}", start)
    # Another recipe names a base of its own, or none.
    if recipe is None:
        run(python, "train/base.py", *BASE)
    run(CRITIC, "train", recipe or RECIPE, "--train", data / "train.jsonl", "--out", judge, *root)

    step("3/5", "serve: vLLM behind its OpenAI-compatible API", start)
    with served(judge, out / "serve.log") as (url, model):
        step("4/5", "judge: both tests through the server", start)
        # Does the judge use the image? 250 answers without theirs, with another one's, and with one fact edited.
        for test, name in zip(tests, arms, strict=False):
            changed = data / f"{name}.jsonl"
            run(CRITIC, "attack", data / f"{test}.jsonl", "--images", "--out", changed, "--limit", 250)
        asking = ["--base-url", url, "--model", model, *form_asked(judge)]
        for name in (*tests, *arms):
            run(CRITIC, "judge", data / f"{name}.jsonl", "--out", out / f"{name}.jsonl", *shown, *asking)
        # The sample questions are about other pictures than those that this judge learned to see.
        if not pictures:
            run(CRITIC, "judge", f"{SAMPLES}/answers.jsonl", *asked_about, "--out", answers, *asking)

    step("5/5", "audit: how far to trust it", start)
    files = [f"{test}={out / test}.jsonl" for test in tests]
    attacked = [word for name in arms for word in ("--attacked", out / f"{name}.jsonl")]
    run(CRITIC, "audit", *files, "--train", data / "train.jsonl", *attacked, "--out", out)
    if not pictures:
        run(CRITIC, "score", answers, *asked_about, "--out", out / "benchmark")
        print(render("critic.page", "next_steps.jinja", {"out": out, "form": form_asked(judge)[1]}), flush=True)
    done(out, "report.html", start)
