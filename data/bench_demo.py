"""Run the four benchmarks on sample conversations, from images to HTML reports, with tiny models and the real
programs.

    python data/bench_demo.py --out runs/bench-demo

It uses three random vision-language models of a few million parameters and a tiny judge, trained for a minute and
served by vLLM. Two models run through every benchmark as published and are scored together; in VisIT-Bench's
tournament the third is the newcomer. The scores mean nothing; every step is the real one.
"""

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from critic.cli import run_program
from critic.stages.demo import CRITIC, check_programs, done, run, served, step, train

SAMPLES = {
    "alignmmbench": "metadata.jsonl",
    "convbench": "ConvBench.csv",
    "multiverse": "conversations.jsonl",
    "visitbench": "visit_bench.csv",
}
"""Benchmark -> its file in data/samples/."""

LAYERS = {"tiny-2": 2, "tiny-3": 3, "tiny-1": 1}
"""Models -> number of layers; the last is the newcomer."""

REPLY_TOKENS, VERDICT_TOKENS = 24, 160

SHORT = [
    "--set=forms={pointwise: 0.5, pointwise_reason_first: 0.5}",
    "--set=training.max_steps=150",
    "--set=training.lr_scheduler_kwargs.num_decay_steps=75",
    "--set=training.warmup_steps=10",
    "--set=training.per_device_train_batch_size=4",
    "--set=global_batch=4",
]
"""Overrides of the tiny recipe: the judge learns to write verdicts, and short reasons before them, not to judge."""

PROGRAMS = ("tests/tiny_vlm.py", "serve/judge.py", "train/sft.py", "data/sample_world.py", "data/human_scores.py")


def _trained(out: Path) -> Path:
    """Return the folder of the judge, training it first if it is missing."""
    judge = out / "judge"
    if not (judge / "critic.json").is_file():
        run([sys.executable, "data/sample_world.py", "--out", str(out / "world.jsonl")])
        run([sys.executable, "data/human_scores.py", str(out / "world.jsonl"), "--out", str(out / "data")])
        train(Path("train/recipes/tiny.yaml"), out / "data" / "train.jsonl", judge, *SHORT)
    return judge


def main(
    out: Annotated[Path, typer.Option(help="Folder for everything the demo makes.")] = Path("runs/bench-demo"),
) -> None:
    """Run all four benchmarks on the samples, as published, and a tournament. Rerun the same command to resume."""
    check_programs(PROGRAMS)
    start = time.monotonic()
    files = {name: f"data/samples/{name}/{file}" for name, file in SAMPLES.items()}
    *models, newcomer = LAYERS

    step("1/4", "models: three tiny vision-language models and a tiny judge, served by vLLM", start)
    judge = _trained(out)
    folders = {name: out / "models" / name for name in LAYERS}
    for name, folder in folders.items():
        if not (folder / "processor_config.json").is_file():  # written last, so present only if complete
            run([sys.executable, "tests/tiny_vlm.py", str(folder), str(LAYERS[name])])
    with ExitStack() as servers:
        urls = {name: servers.enter_context(served(folder, out / f"{name}.log"))[0] for name, folder in folders.items()}
        judge_url, model = servers.enter_context(served(judge, out / "judge.log"))
        # Untrained models fail often: the demo shows the steps, not their quality.
        lenient = ["--max-failed", "1", "--force-form"]
        # Verdicts of a newly trained judge must not mix with those of an earlier one.
        by = f"by-{model.replace('@', '-')}"
        folder_of = {(benchmark, name): out / benchmark / f"{name}-{by}" for benchmark in SAMPLES for name in models}

        step("2/4", "run: two models through every benchmark, as published", start)
        for (benchmark, name), folder in folder_of.items():
            words = [CRITIC, "run", benchmark, files[benchmark], "--model", urls[name], "--judge", judge_url]
            words += ["--as", "published", "--name", name, "--reply-tokens", str(REPLY_TOKENS)]
            words += ["--verdict-tokens", str(VERDICT_TOKENS)]
            run([*words, *lenient, "--out", str(folder)])

        step("3/4", "tournament: the two, and a newcomer who plays its own battles alone", start)
        first, second = (folder_of["visitbench", name] / "replies.jsonl" for name in models)
        last, folder = out / "visitbench" / "newcomer.jsonl", folder_of["visitbench", models[0]]
        words = [CRITIC, "infer", files["visitbench"], "--benchmark", "visitbench", "--base-url", urls[newcomer]]
        run([*words, "--name", newcomer, "--max-tokens", str(REPLY_TOKENS), "--max-failed", "1", "--out", str(last)])
        finished, added = folder / "battles.jsonl", folder / "battles-newcomer.jsonl"
        words = ["--base-url", judge_url, "--max-tokens", str(VERDICT_TOKENS), *lenient]
        run([CRITIC, "judge", str(first), "--against", str(second), *words, "--out", str(finished)])
        against = ["--against", str(first), "--against", str(second), "--battles", "newcomer"]
        run([CRITIC, "judge", str(last), *against, *words, "--out", str(added)])

    step("4/4", "score: both models of a benchmark on one page, old and new battles on another", start)
    scores = {out / name: [str(folder_of[name, model] / "judged.jsonl") for model in models] for name in SAMPLES}
    for folder, judged in {**scores, out / "tournament": [str(finished), str(added)]}.items():
        questions = files.get(folder.name, files["visitbench"])
        run([CRITIC, "score", *judged, "--questions", questions, "--max-failed", "1", "--out", str(folder)])
    done(out, "*/report.html", start)


if __name__ == "__main__":
    run_program(main)
