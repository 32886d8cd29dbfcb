"""critic demo: the whole main job on a small sample world, with the commands a user would type.

critic demo --out runs/demo
"""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from critic import jsonl
from critic.errors import UsageError
from critic.records import Judgment

EXTERNAL = "Nightjar-9B"
"""The answerer of the sample world that is kept out of training."""

PROGRAMS = ("data/sample_world.py", "data/human_scores.py", "train/sft.py", "serve/judge.py")


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _show(words: list[str]) -> None:
    shown = [
        Path(word).name if word in (sys.executable, script("deepspeed"), script("critic")) else word for word in words
    ]
    print(f"      $ {shlex.join(shown)}", flush=True)


def script(name: str) -> str:
    """A program that stands beside this Python."""
    return str(Path(sys.executable).with_name(name))


def run(words: list[str], environment: dict[str, str] | None = None) -> None:
    """Show a command and run it. Raises UsageError when the command fails; its own words stand above."""
    _show(words)
    with subprocess.Popen(words, env={**os.environ, **(environment or {})}) as process:
        try:
            code = process.wait()
        except BaseException:
            process.send_signal(signal.SIGTERM)
            raise
    if code:
        raise UsageError(f"{Path(words[0]).name} ended with code {code}, see above; earlier steps are kept")


@contextmanager
def served(checkpoint: Path, log: Path, *options: str) -> Iterator[tuple[str, str]]:
    """A model behind its API for as long as the context lasts, with `options` for vLLM; gives the base URL and the
    model's name."""
    port = free_port()
    words = [sys.executable, "serve/judge.py", str(checkpoint), "--port", str(port), "--log", str(log)]
    more = ["--", *options] if options else []
    _show([*words, *more])
    server = subprocess.Popen([*words, "--stop-with-parent", *more], stdout=subprocess.PIPE, text=True)
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


def _drop_of_another_judge(judged: Path, model: str) -> None:
    """A judge that was trained anew judges anew; `critic judge` itself would refuse the old file."""
    jsonl.repair(judged)
    if judged.is_file() and judged.stat().st_size and next(jsonl.read(judged, Judgment))[1].judge != model:
        judged.unlink()


def _step(number: int, what: str, start: float) -> None:
    print(f"\n[{number}/5] {what}  ({time.monotonic() - start:.0f} s so far)", flush=True)


def main(
    out: Annotated[Path, typer.Option(help="Folder for everything the demo makes.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of the sample world.")] = 0,
    recipe: Annotated[Path, typer.Option(help="Training recipe.")] = Path("train/recipes/tiny.yaml"),
    questions: Annotated[
        int | None, typer.Option(help="Questions of the sample world, for a shorter demo.", show_default="1144")
    ] = None,
) -> None:
    """The whole main job on a small sample world. Run again, it goes on where it stopped."""
    missing = [program for program in PROGRAMS if not Path(program).is_file()]
    if missing:
        raise UsageError(f"run this in the root of a clone of the repository: {missing[0]} is not here")
    start = time.monotonic()
    python, data, judge = sys.executable, out / "data", out / "judge"
    tests = ("internal", "external")

    _step(1, "data: a sample world with simulated answerers and raters", start)
    world = out / "world.jsonl"
    size = [] if questions is None else ["--questions", str(questions)]
    run([python, "data/sample_world.py", "--out", str(world), "--seed", str(seed), *size])
    run([python, "data/human_scores.py", str(world), "--out", str(data), "--external", EXTERNAL, "--per-task"])

    _step(2, "train: a tiny judge from nothing", start)
    cpu = {} if _has_gpu() else {"DS_ACCELERATOR": "cpu"}
    deepspeed = [script("deepspeed"), "--log_level", "error", "--master_port", str(free_port())]
    words = ["train/sft.py", "--config", str(recipe), "--train", str(data / "train.jsonl"), "--out", str(judge)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run([*deepspeed, *words], {"PATH": path, **cpu})

    _step(3, "serve: vLLM behind its OpenAI-compatible API", start)
    with served(judge, out / "serve.log") as (url, model):
        _step(4, "judge: both tests through the server", start)
        for test in tests:
            judged = out / f"{test}.jsonl"
            _drop_of_another_judge(judged, model)
            words = [script("critic"), "judge", str(data / f"{test}.jsonl"), "--out", str(judged)]
            run([*words, "--base-url", url, "--model", model])

    _step(5, "audit: how far to trust it", start)
    files = [f"{test}={out / test}.jsonl" for test in tests]
    learned = ["--train", str(data / "train.jsonl"), "--loss", str(judge / "loss.jsonl")]
    run([script("critic"), "audit", *files, *learned, "--out", str(out)])
    jsonl.write_json(out / "seconds.json", {"total": round(time.monotonic() - start, 1)})
    print(f"\ndone in {time.monotonic() - start:.0f} s: open {out / 'report.html'}", flush=True)


def _has_gpu() -> bool:
    import torch  # noqa: PLC0415 - heavy, and not part of a plain installation

    return bool(torch.cuda.is_available())
