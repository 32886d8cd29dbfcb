"""Run the four benchmarks on sample conversations, from images to HTML reports, with tiny models and the real programs.

    python data/bench_demo.py --out runs/bench-demo

A tiny judge learns every form in the papers' protocols from human labels of the sample world, and is compared with
people in each form. It then judges two random vision-language models with a few million parameters, which run through
every benchmark as published (but for the images that MultiVerse's judge sees, since this one is blind) and are scored
together. In VisIT-Bench's tournament a third model is added. The models' scores mean nothing, but every step is the
real one.
"""

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from critic.backends.identity import list_learned_forms
from critic.cli import run_program
from critic.judging.forms import REASON_FIRST
from critic.stages.demo import CRITIC, begin, done, run, served, step

SAMPLES = {
    "alignmmbench": "metadata.jsonl",
    "convbench": "ConvBench.csv",
    "multiverse": "conversations.jsonl",
    "visitbench": "visit_bench.csv",
}
"""Benchmark -> its file in data/samples/."""

LAYERS = {"tiny-2": 2, "tiny-3": 3, "tiny-1": 1}
"""Model -> number of layers. The last model is added to the tournament later."""

REPLY_TOKENS, VERDICT_TOKENS = 24, 160

PROGRAMS = ("tests/tiny_vlm.py", "serve/judge.py", "train/sft.py", "data/sample_world.py", "data/human_scores.py")


def _train_judge(out: Path) -> Path:
    """Return the folder of the tiny judge. Train it first if it does not exist."""
    judge, world = out / "judge", out / "world.jsonl"
    if not (judge / "critic.json").is_file():
        run(sys.executable, "data/sample_world.py", "--conversations", "--out", world)
        run(sys.executable, "data/human_scores.py", world, "--out", out / "data")
        rows = out / "data" / "train.jsonl"
        run(CRITIC, "train", "train/recipes/tiny-benchmarks.yaml", "--train", rows, "--out", judge)
    return judge


def _compare_with_people(out: Path, by: str, judge: Path, asking: list[str]) -> None:
    """Judge the internal test in each form that the judge learned, audit the verdicts, and print the agreement.

    `judge` is the judge's folder, `by` its name in the folders of the verdicts. `asking` are the options of
    `critic judge` that select the judge.
    """
    lines = []
    for form in list_learned_forms(json.loads((judge / "critic.json").read_text("utf-8"))):
        folder = out / "forms" / f"{form}-{by}"
        judged = folder / "judged.jsonl"
        # Reasons behind the verdict do not change it, and take most of the time. A third of the questions is some 40.
        without = ["--shard", "1/3", *([] if REASON_FIRST in form else ["--no-reason"])]
        run(CRITIC, "judge", out / "data" / "internal.jsonl", "--prompt", form, *asking, *without, "--out", judged)
        run(CRITIC, "audit", f"{form}={judged}", "--max-failed", 1, "--out", folder)
        lines.append(_describe_agreement(form, json.loads((folder / "summary.json").read_text("utf-8"))[form]))
    print("\n".join(["\nagreement with people's labels by form: kappa, and its 95 % interval", *lines]), flush=True)


def _describe_agreement(form: str, figures: dict[str, Any]) -> str:
    """Return a line with Cohen's kappa between a form's verdicts and the human labels (weighted kappa for ratings).

    `figures` is the form's entry in the audit's summary.json.
    """
    # Comparisons and checklists have no rating; their audit has a table for each judge.
    if "agreement" in figures:
        (figures,) = figures["agreement"].values()
    kappa = figures.get("kappa") or {"value": figures["qwk"], "interval": figures["interval"].get("qwk")}
    # Without a spread of verdicts there is no kappa, and with few questions no interval.
    known = [f"{value:5.2f}" for value in (kappa["value"], *(kappa["interval"] or ())) if value is not None]
    return f"  {form:42} {figures['n']:4} verdicts, {figures['failed']} failed  kappa {' '.join(known)}"


def main(out: Path = Path("runs/bench-demo")) -> None:
    """Run all four benchmarks on the samples, as published, and a tournament. Rerun the same command to resume.
    \f
    - out: Folder for all files of the demo.
    """
    start = begin(PROGRAMS)
    files = {name: f"data/samples/{name}/{file}" for name, file in SAMPLES.items()}
    *models, newcomer = LAYERS

    step("1/5", "models: three tiny vision-language models and a tiny judge, served by vLLM", start)
    judge = _train_judge(out)
    folders = {name: out / "models" / name for name in LAYERS}
    for name, folder in folders.items():
        # Written last, so present only if complete.
        if not (folder / "processor_config.json").is_file():
            run(sys.executable, "tests/tiny_vlm.py", folder, LAYERS[name])
    with ExitStack() as servers:
        urls = {name: servers.enter_context(served(folder, out / f"{name}.log"))[0] for name, folder in folders.items()}
        judge_url, model = servers.enter_context(served(judge, out / "judge.log"))
        # Untrained models fail often: the demo shows the steps, not their quality.
        asking = ["--base-url", judge_url, "--max-tokens", str(VERDICT_TOKENS), "--max-failed", "1"]
        # Verdicts of a newly trained judge must not mix with those of an earlier one.
        by = f"by-{model.replace('@', '-')}"
        folder_of = {(benchmark, name): out / benchmark / f"{name}-{by}" for benchmark in SAMPLES for name in models}

        step("2/5", "audit: the judge beside people, in every form that it learned", start)
        _compare_with_people(out, by, judge, asking)

        step("3/5", "run: two models through every benchmark, as published", start)
        lengths = ["--reply-tokens", REPLY_TOKENS, "--verdict-tokens", VERDICT_TOKENS, "--max-failed", 1]
        for (benchmark, name), folder in folder_of.items():
            words = [files[benchmark], "--model", urls[name], "--name", name, "--judge", judge_url]
            run(CRITIC, "run", benchmark, *words, "--as", "published", *lengths, "--out", folder)

        step("4/5", "tournament: the two, and a newcomer who plays its own battles alone", start)
        first, second = (folder_of["visitbench", name] / "replies.jsonl" for name in models)
        last, folder = out / "visitbench" / "newcomer.jsonl", folder_of["visitbench", models[0]]
        words = [files["visitbench"], "--benchmark", "visitbench", "--base-url", urls[newcomer], "--name", newcomer]
        run(CRITIC, "infer", *words, "--max-tokens", REPLY_TOKENS, "--max-failed", 1, "--out", last)
        finished, added = folder / "battles.jsonl", folder / "battles-newcomer.jsonl"
        run(CRITIC, "judge", first, "--against", second, *asking, "--out", finished)
        against = ["--against", first, "--against", second, "--battles", "newcomer"]
        run(CRITIC, "judge", last, *against, *asking, "--out", added)

    step("5/5", "score: both models of a benchmark on one page, old and new battles on another", start)
    scores = {out / "tournament": [finished, added]}
    for name in SAMPLES:
        scores[out / name] = [folder_of[name, model] / "judged.jsonl" for model in models]
    for folder, judged in scores.items():
        questions = files.get(folder.name, files["visitbench"])
        run(CRITIC, "score", *judged, "--questions", questions, "--max-failed", 1, "--out", folder)
    done(out, "*/report.html", start)


if __name__ == "__main__":
    run_program(main)
