"""The four benchmarks on the sample conversations, from images to the HTML reports, with tiny models on real parts.

    python data/bench_demo.py --out runs/bench-demo

A random vision-language model of a few million parameters and a tiny judge that is trained for a minute, both served by
vLLM. The scores mean nothing; every step is the real one.
"""

import shutil
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from critic.cli import run_program
from critic.stages.demo import check_programs, done, run, script, served, step, train

SAMPLES = {
    "alignmmbench": ("metadata.jsonl", ("own", "no_image")),
    "convbench": ("ConvBench.csv", ("own", "perfect_perception")),
    "multiverse": ("conversations.jsonl", ("own", "oracle")),
    "visitbench": ("visit_bench.csv", ("own", "no_image")),
}
"""Benchmark -> its file in data/samples/, and the conditions that are run."""

REPLY_TOKENS, VERDICT_TOKENS = 24, 64

STEPS = 60
"""Of training, where there is no judge yet: enough to write verdicts, not to judge."""

PROGRAMS = ("tests/tiny_vlm.py", "serve/judge.py", "train/sft.py", "data/sample_world.py", "data/human_scores.py")


def _build_vlm(folder: Path) -> None:
    if folder.is_dir():
        return
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    run([sys.executable, "tests/tiny_vlm.py", str(partial)])
    partial.rename(folder)


def _train_judge(out: Path) -> Path:
    """A judge from the tiny recipe, stopped early."""
    judge = out / "judge"
    if (judge / "critic.json").is_file():
        return judge
    run([sys.executable, "data/sample_world.py", "--out", str(out / "world.jsonl")])
    run([sys.executable, "data/human_scores.py", str(out / "world.jsonl"), "--out", str(out / "data")])
    short = [f"--set=training.max_steps={STEPS}", f"--set=training.lr_scheduler_kwargs.num_decay_steps={STEPS // 2}"]
    short += [f"--set=training.warmup_steps={STEPS // 6}", "--set=global_batch=4"]
    short += ["--set=training.per_device_train_batch_size=4"]
    train(Path("train/recipes/tiny.yaml"), out / "data" / "train.jsonl", judge, *short)
    return judge


def main(
    out: Annotated[Path, typer.Option(help="Folder for everything the demo makes.")] = Path("runs/bench-demo"),
    judge: Annotated[
        Path | None,
        typer.Option(help="A judge's checkpoint that writes verdicts; without one a tiny one is trained briefly."),
    ] = None,
) -> None:
    """All four benchmarks on the samples, two conditions each. Run again, it goes on where it stopped."""
    check_programs(PROGRAMS)
    start = time.monotonic()
    critic = script("critic")

    step("1/4", "infer: a tiny vision-language model through every conversation", start)
    vlm = out / "vlm"
    _build_vlm(vlm)
    with served(vlm, out / "vlm.log") as (url, _):
        for benchmark, (file, conditions) in SAMPLES.items():
            words = [critic, "infer", f"data/samples/{benchmark}/{file}", "--benchmark", benchmark, "--base-url", url]
            words += [word for condition in conditions for word in ("--condition", condition)]
            words += ["--name", "tiny-vlm", "--max-tokens", str(REPLY_TOKENS), "--max-failed", "1"]
            run([*words, "--out", str(out / benchmark / "replies.jsonl")])

    step("2/4", "judge: a tiny judge", start)
    judge = judge or _train_judge(out)

    step("3/4", "judge: every turn, and every conversation as a whole", start)
    with served(judge, out / "judge.log") as (url, model):
        judged = f"judged-{model.replace('@', '-')}.jsonl"  # another training, another file
        for benchmark in SAMPLES:
            words = [critic, "judge", str(out / benchmark / "replies.jsonl"), "--benchmark", benchmark]
            words += ["--base-url", url, "--max-tokens", str(VERDICT_TOKENS), "--max-failed", "1", "--force-form"]
            run([*words, "--out", str(out / benchmark / judged)])

    step("4/4", "score: tables and reports", start)
    for benchmark, (file, _) in SAMPLES.items():
        words = [critic, "score", str(out / benchmark / judged), "--benchmark", benchmark, "--max-failed", "1"]
        run([*words, "--questions", f"data/samples/{benchmark}/{file}", "--out", str(out / benchmark)])
    done(out, "*/report.html", start)


if __name__ == "__main__":
    run_program(main)
