"""Record every figure that a change of structure must leave alone, and compare two records.

    python tests/same_figures.py --out before.json
    python tests/same_figures.py --out after.json --against before.json

Runs the commands of the checkout it stands in: seven audits, ten benchmark scores, a few training steps by each
objective, and the golden prompts. Needs no network and no GPU; some five minutes on two cores. Audits of real data are
recorded if `../shared` is there.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from conftest import ROOT, SHARED, run_apart, sample, write_jsonl

SAMPLES = ROOT / "data/samples"

CASES = "{shared}/cases/audit"
GPT4 = "{shared}/data/human_scored/llmeval2.jsonl"

AUDITS: dict[str, list[str]] = {
    "sample scores": ["--human", "{samples}/scores.csv", "--judge", "mine={samples}/scores.csv:overlap"],
    "severe judge": [f"{CASES}/severe.csv"],
    "severe in one language": [f"{CASES}/severe_in_zh.csv"],
    "sampled labels": [f"{CASES}/weighted_kendall.csv"],
    "preferences": ["{shared}/cases/calls/10/prefwords.csv"],
    "yes or no": ["--human", f"{CASES}/yesno_25_equal.csv", "--judge", f"same={CASES}/yesno_25_equal.csv"],
    "GPT-4": ["--human", GPT4, "--judge", f"gpt4={GPT4}:gpt4_score_1_10"],
}
"""Name -> arguments of `critic audit`."""

SCORES: dict[str, tuple[str, list[str]]] = {
    "alignmmbench": ("alignmmbench", []),
    "alignmmbench, reason first": ("alignmmbench", ["--prompt", "pointwise_reason_first"]),
    "convbench": ("convbench", []),
    "convbench, direct": ("convbench", ["--protocol", "direct"]),
    "convbench, as published": ("convbench", ["--as", "published"]),
    "multiverse": ("multiverse", []),
    "multiverse, quality": ("multiverse", ["--protocol", "quality"]),
    "multiverse, checklist": ("multiverse", ["--protocol", "checklist"]),
    "visitbench": ("visitbench", []),
    "visitbench, pointwise": ("visitbench", ["--protocol", "pointwise"]),
}
"""Name -> benchmark, options of `critic judge`."""

OBJECTIVES = {
    "sft": [],
    "raft": ["objective=raft"],
    "head": ["objective=head"],
    "pairwise": ["objective=pairwise", "forms={pairwise: 1.0}"],
}
"""Training objective -> settings of the tiny recipe."""

STEPS = 4
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
VOLATILE = re.compile(
    r"(sha256|seconds|date|time|path|runtime|per_second|version|sources|files|flos|made)", re.IGNORECASE
)
"""Names of values that differ from run to run, or from folder to folder."""


run = partial(run_apart, "critic", env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200", "OMP_NUM_THREADS": "1"})
"""Runs a stage of this checkout."""


def numbers_of(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each number and text of a JSON value with its place, without what differs from run to run."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if not VOLATILE.search(str(name)):
                yield from numbers_of(inner, f"{key}/{name}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from numbers_of(inner, f"{key}/{index}")
    else:
        yield key, value


def record_command(name: str, words: list[object], folder: Path) -> dict[str, Any]:
    """Run `words --out folder` and return its exit code, the numbers it prints and those of the files it writes."""
    done = run(*words, "--out", folder)
    record: dict[str, Any] = {
        f"{name}/exit": done.returncode,
        f"{name}/printed": NUMBER.findall(done.stdout.replace(str(folder.parent), "")),
    }
    if done.returncode not in (0, 1, 3):
        record[f"{name}/error"] = done.stderr.replace(str(folder.parent), "")[-300:]
    for file in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        record |= {f"{name}/{file.name}{key}": value for key, value in numbers_of(json.loads(file.read_text("utf-8")))}
    for file in sorted(folder.glob("*.csv")) if folder.is_dir() else []:
        record[f"{name}/{file.name}"] = hashlib.sha256(file.read_bytes()).hexdigest()
    return record


def record_audits(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for number, (name, words) in enumerate(AUDITS.items()):
        places = [word.format(samples=SAMPLES, shared=SHARED) for word in words]
        if SHARED.is_dir() or not any("{shared}" in word for word in words):
            record |= record_command(f"audit {name}", ["audit", *places], folder / f"audit-{number}")
    return record


def write_replies(path: Path, texts: list[str]) -> Path:
    return write_jsonl(path, [{"text": text} for text in texts])


def record_scores(folder: Path) -> dict[str, Any]:
    """Judge each sample benchmark's replies by a scripted judge, and score the verdicts."""
    model = write_replies(folder / "model.jsonl", ["A red sign.", "Three apples and two pears.", "It closes at five."])
    verdicts = []
    for rating in (2, 5, 8):
        answers = dict.fromkeys(map(str, range(1, 7)), "yes" if rating > 4 else "no")
        verdicts.append(json.dumps({"Rating": rating, "Reason": "so"} | answers))
    choices = [json.dumps({"Verdict": choice, "Reason": "so"}) for choice in ("A", "B")]
    judges = {
        "pairwise": write_replies(folder / "choices.jsonl", choices),
        "": write_replies(folder / "ratings.jsonl", verdicts),
    }
    record: dict[str, Any] = {}
    for number, (name, (benchmark, options)) in enumerate(SCORES.items()):
        questions = sample(benchmark)
        replies, judged = folder / f"replies-{number}.jsonl", folder / f"judged-{number}.jsonl"
        common = ["--max-failed", "1", "--out"]
        run("infer", questions, "--benchmark", benchmark, "--model", model, *common, replies)
        compares = benchmark in ("convbench", "visitbench") and "--protocol" not in options
        judge = judges["pairwise" if compares else ""]
        words = ["judge", replies, "--judge", judge, "--benchmark", benchmark, "--questions", questions]
        done = run(*words, *options, *common, judged)
        if done.returncode not in (0, 3):
            record[f"score {name}/judge"] = done.stderr.replace(str(folder), "")[-300:]
        scoring = ["score", judged, "--questions", questions, "--max-failed", "1"]
        record |= record_command(f"score {name}", scoring, folder / f"score-{number}")
    return record


def record_losses(folder: Path) -> dict[str, Any]:
    """Train a tiny judge for a few steps by each objective, and record the losses of its log."""
    world, record = folder / "world.jsonl", dict[str, Any]()
    run_apart("data/sample_world.py", "--questions", "60", "--out", world, cwd=folder, code=0)
    for name, settings in OBJECTIVES.items():
        words = ["--train", world, "--out", folder / name, "--cache", folder / "cache", "--threads", "1"]
        steps = [f"training.max_steps={STEPS}", "training.logging_steps=1", "training.warmup_steps=1"]
        steps += ["training.lr_scheduler_kwargs.num_decay_steps=2", f"training.save_steps={STEPS}", *settings]
        words += [word for setting in steps for word in ("--set", setting)]
        done = run("train", "tiny", *words, cwd=folder)
        if done.returncode:
            record[f"train {name}/error"] = done.stderr[-300:]
        losses = re.findall(r"'?loss'?: '?([\d.e-]+)", done.stdout + done.stderr)
        for state in sorted((folder / name).rglob("trainer_state.json")):
            log = json.loads(state.read_text("utf-8"))["log_history"]
            losses = [entry["loss"] for entry in log if "loss" in entry]
        record[f"train {name}/losses"] = losses
    return record


def record_golden() -> dict[str, Any]:
    files = sorted((ROOT / "tests/golden").iterdir())
    return {f"golden {file.name}": hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def main(out: Annotated[Path, typer.Option()], against: Path | None = None) -> None:
    """Record every figure in OUT (.json), and print each that differs from the earlier record AGAINST: exit code 1."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        record = record_golden() | record_audits(folder) | record_scores(folder) | record_losses(folder)
    out.write_text(json.dumps(record, indent=0, ensure_ascii=False), "utf-8")
    errors = [key for key in record if key.count("/") == 1 and key.endswith(("/error", "/judge"))]
    print(f"{len(record)} figures, {len(errors)} errors {errors}")
    if against is None:
        return
    before, record = (json.loads(file.read_text("utf-8")) for file in (against, out))
    differing = [key for key in sorted({*before, *record}) if before.get(key) != record.get(key)]
    for key in differing[:40]:
        print(f"{key}: {before.get(key)} -> {record.get(key)}"[:300])
    print(f"{len(differing)} of {len({*before, *record})} figures differ")
    raise typer.Exit(1 if differing else 0)


if __name__ == "__main__":
    typer.run(main)
