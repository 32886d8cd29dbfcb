"""critic demo: the whole main job on a small sample world, with the commands a user would type.

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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from critic import jsonl
from critic.errors import UsageError
from critic.judging.prompt import load
from critic.judging.targets import REASON

EXTERNAL = "Nightjar-9B"
"""The answerer of the sample world that is kept out of training."""

CRITIC = str(Path(sys.executable).with_name("critic"))
"""The command line that stands beside this Python."""

PROGRAMS = ("data/sample_world.py", "data/human_scores.py", "train/base.py", "serve/judge.py")

BASE = ("gemma-3-270m", "runs/base/gemma-3-270m-10", "--layers", "10")
"""What train/base.py is given for the pretrained base: its name, the folder in which the recipe looks for it, and the
layers that a scoring head needs, which are trained and served in half of the time."""

RECIPE, SEEING = Path("train/recipes/demo.yaml"), Path("train/recipes/tiny-vl.yaml")
"""With the base, and of the judge that sees."""


def check_programs(programs: Iterable[str]) -> None:
    """Raises UsageError where one is not here: those of data/ are not part of an installation."""
    for program in programs:
        if not Path(program).is_file():
            raise UsageError(f"run this in the root of a clone of the repository: {program} is not here")


def step(number: str, title: str, start: float) -> None:
    print(f"\n[{number}] {title}  ({time.monotonic() - start:.0f} s so far)", flush=True)


def _show(words: list[str]) -> None:
    beside = (sys.executable, CRITIC)
    print(f"      $ {shlex.join(Path(word).name if word in beside else word for word in words)}", flush=True)


def run(words: list[str]) -> None:
    """Show a command and run it. Raises UsageError when the command fails; its own words stand above."""
    _show(words)
    with subprocess.Popen(words) as process:
        try:
            code = process.wait()
        except BaseException:
            process.send_signal(signal.SIGTERM)
            raise
    if code:
        raise UsageError(f"{Path(words[0]).name} ended with code {code}, see above; earlier steps are kept")


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def train(recipe: Path, rows: Path, out: Path, *options: str) -> None:
    """Train a judge on `rows`, on the GPU where there is one."""
    run([CRITIC, "train", str(recipe), "--train", str(rows), "--out", str(out), *options])


def form_asked(judge: Path) -> list[str]:
    """Options of `critic judge` for the form that a judge learned most; no reason where the form has none."""
    forms: dict[str, float] = json.loads((judge / "critic.json").read_text("utf-8"))["recipe"]["forms"]
    form = max(forms, key=lambda name: forms[name])
    return ["--prompt", form, *([] if f'"{REASON}"' in load(form, "en").template else ["--no-reason"])]


@contextmanager
def served(checkpoint: Path, log: Path) -> Iterator[tuple[str, str]]:
    """A model behind its API for as long as the context lasts; gives the base URL and the model's name."""
    words = [sys.executable, "serve/judge.py", str(checkpoint), "--port", str(free_port()), "--log", str(log)]
    _show(words)
    server = subprocess.Popen([*words, "--stop-with-parent"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        ready = server.stdout.readline()
        if not ready.startswith("ready: "):
            raise UsageError(f"the server did not come up, see above; its log is {log}")
        _, url, _, model = ready.split()
        print(f"      {ready.strip()}", flush=True)
        yield url, model.rstrip(")")
    finally:
        server.terminate()
        server.wait()


def done(out: Path, report: str, start: float) -> None:
    seconds = time.monotonic() - start
    jsonl.write_json(out / "seconds.json", {"total": round(seconds, 1)})
    print(f"\ndone in {seconds:.0f} s: open {out}/{report}", flush=True)


def _benchmark(judged: Path, options: Sequence[str]) -> list[str]:
    """Judge a benchmark in small, eight questions in AlignMMBench's layout; the command that then scores it."""
    questions = "data/samples/alignmmbench/metadata.jsonl"
    words = [CRITIC, "judge", "data/samples/alignmmbench/answers.jsonl", "--questions", questions]
    run([*words, "--out", str(judged), *options])
    return [CRITIC, "score", str(judged), "--questions", questions]


PICTURED = 1500
"""Questions of a world with pictures: a tiny judge needs as many to learn to look."""


def _arms(data: Path, tests: Iterable[str]) -> dict[str, Path]:
    """What tells whether the judge looks, by the name of its judgments: 250 answers of each test without their image,
    with another's, and with one fact edited."""
    arms = {f"{test}-arms": data / f"{test}-arms.jsonl" for test in tests}
    for test, rows in zip(tests, arms.values(), strict=True):
        words = [CRITIC, "attack", str(data / f"{test}.jsonl"), "--images", "--out", str(rows)]
        run([*words, "--limit", "250"])
    return arms


def main(
    out: Annotated[Path, typer.Option(help="Folder for everything the demo makes.")] = Path("runs/demo"),
    recipe: Annotated[
        Path | None,
        typer.Option(help="Training recipe; without an index: train/recipes/tiny.yaml.", show_default=str(RECIPE)),
    ] = None,
    questions: Annotated[
        int | None,
        typer.Option(
            help="Questions of the sample world, for a shorter demo.", show_default=f"1144, {PICTURED} with pictures"
        ),
    ] = None,
    pictures: Annotated[
        bool, typer.Option("--pictures", help="A world with pictures, and a judge that sees: does it look?")
    ] = False,
) -> None:
    """The whole main job on a small sample world. Run again, it goes on where it stopped."""
    check_programs(PROGRAMS)
    start = time.monotonic()
    python, data, judge = sys.executable, out / "data", out / "judge"
    tests = ("internal", "external")
    drawn, root, shown, arms = list[str](), list[str](), list[str](), tuple[str, ...]()
    base = "from a small pretrained base"
    if pictures:
        drawn, root, arms = ["--pictures"], ["--data-root", str(out)], tests
        shown = ["--images", "show", *root]
        base = "that sees, from random weights"
        questions, recipe = questions or PICTURED, recipe or SEEING

    step("1/5", "data: a sample world with simulated answerers and raters", start)
    world = out / "world.jsonl"
    size = ["--questions", str(questions)] if questions else []
    run([python, "data/sample_world.py", "--out", str(world), *size, *drawn])
    words = [python, "data/human_scores.py", str(world), "--out", str(data), "--external", EXTERNAL, "--per-task"]
    run([*words, *drawn])

    step("2/5", f"train: a judge {base}", start)
    if recipe is None:
        run([python, "train/base.py", *BASE])
    train(recipe or RECIPE, data / "train.jsonl", judge, *root)

    step("3/5", "serve: vLLM behind its OpenAI-compatible API", start)
    with served(judge, out / "serve.log") as (url, model):
        step("4/5", "judge: both tests through the server", start)
        for name, rows in {**{test: data / f"{test}.jsonl" for test in tests}, **_arms(data, arms)}.items():
            judged = out / f"{name}.jsonl"
            words = [CRITIC, "judge", str(rows), "--out", str(judged), *shown]
            run([*words, "--base-url", url, "--model", model, *form_asked(judge)])
        scoring = []
        if not pictures:
            scoring = _benchmark(out / "answers.jsonl", ["--base-url", url, "--model", model, *form_asked(judge)])

    step("5/5", "audit: how far to trust it", start)
    files = [f"{test}={out / test}.jsonl" for test in tests]
    learned = ["--train", str(data / "train.jsonl")]
    for test in arms:
        learned += ["--attacked", str(out / f"{test}-arms.jsonl")]
    run([CRITIC, "audit", *files, *learned, "--out", str(out)])
    if scoring:
        run([*scoring, "--out", str(out / "benchmark")])
        form = form_asked(judge)[1]
        print(f"\nThis judge learned one form, {form}: single answers. For pairs and conversations see train/README.md")
    done(out, "report.html", start)
