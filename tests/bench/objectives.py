"""Which objective and which decoding judge best: {sft, raft} x {argmax, expected, median}, over several seeds.

    python tests/bench/objectives.py --data runs/llmeval2/data

Same model, rows and steps; only the objective and the seed differ. Judged are the folder's internal.jsonl and
external.jsonl. Ends in one JSON line: `ratio` is the best cell's internal MAE over that of sft with argmax.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "train")]

KINDS = ("argmax", "expected", "median")


def train(data: Path, out: Path, recipe: Path, settings: list[str], port: int) -> None:
    words = [sys.executable, "-m", "deepspeed.launcher.runner", "--log_level", "error", "--num_gpus", "1"]
    words += ["--master_port", str(port), str(ROOT / "train/sft.py"), "--config", str(recipe)]
    words += ["--train", str(data / "train.jsonl"), "--out", str(out), "--cache", str(out.parent / "cache")]
    if any(setting.startswith("evaluation=") for setting in settings):
        words += ["--internal", str(data / "internal.jsonl")]
    for setting in settings:
        words += ["--set", setting]
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.with_suffix(".log").open("w") as log:
        done = subprocess.run(words, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise SystemExit(out.with_suffix(".log").read_text("utf-8", "replace")[-3000:])


def judge(folder: Path, data: Path, limit: int) -> dict[str, dict[str, dict[str, float]]]:
    """Split -> decoding -> agreement metrics."""
    import torch
    from evaluation import distributions, figures, held_out
    from objective import rating_tokens
    from recipe import EvaluationSpec
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(folder).to(device)
    tokens = rating_tokens(tokenizer)
    found = {}
    for split in ("internal", "external"):
        rows = held_out(data / f"{split}.jsonl", EvaluationSpec(every=1, rows=10**9), tokenizer, tokens, limit)
        shares = distributions(model, rows.ids, tokens, 32, tokenizer.pad_token_id)
        found[split] = {kind: figures(shares, rows.human, kind) for kind in KINDS}
    return found


def table(results: dict[str, list[Any]], split: str) -> list[str]:
    lines = [f"| {split} | decoding | MAE | Pearson | Spearman |", "|---|---|---|---|---|"]
    for objective, runs in results.items():
        for kind in KINDS:
            cells = []
            for metric in ("mae", "pearson", "spearman"):
                values = [run[split][kind].get(metric, float("nan")) for run in runs]
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                cells.append(f"{statistics.mean(values):.3f} ± {spread:.3f}")
            lines.append(f"| {objective} | {kind} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train, internal and external.jsonl")
    parser.add_argument("--recipe", type=Path, default=ROOT / "train/recipes/tiny-real.yaml")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], help="more settings, for every run")
    parser.add_argument(
        "--raft", action="append", default=[], help="more settings for raft alone, divided by ;; one variant each"
    )
    parser.add_argument("--at-once", type=int, default=1, help="runs at a time")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "critic-objectives")
    given = parser.parse_args()
    from recipe import read_recipe

    variants: dict[str, list[str]] = {"sft": ["objective=sft"]}
    for extra in given.raft or [""]:
        variants[f"raft {extra}".strip()] = ["objective=raft", *filter(None, extra.split(";"))]
    limit = read_recipe(given.recipe, given.set).max_source_tokens
    runs: list[tuple[str, Path, list[str], int]] = []
    for seed in range(given.seeds):
        for number, (name, settings) in enumerate(variants.items()):
            own = [f"training.seed={seed}", f"tiny.seed={seed}", "training.save_strategy=no"]
            out = given.scratch / f"{number}-{seed}"
            runs.append((name, out, [*settings, *own, *given.set], 29800 + len(runs)))
    with ThreadPoolExecutor(given.at_once) as pool:
        list(pool.map(lambda run: train(given.data, run[1], given.recipe, run[2], run[3]), runs))
    results: dict[str, list[Any]] = {}
    for name, out, *_ in runs:
        results.setdefault(name, []).append(judge(out, given.data, limit))
    for split in ("internal", "external"):
        print("\n".join(table(results, split)), "\n")

    def mean(name: str, kind: str, metric: str) -> float:
        return float(statistics.mean(run["internal"][kind].get(metric, 0.0) for run in results[name]))

    means = {(name, kind): (mean(name, kind, "mae"), mean(name, kind, "pearson")) for name in results for kind in KINDS}
    plain = means["sft", "argmax"]
    best = min(means, key=lambda cell: means[cell][0])
    line = {"name": "objectives", "ratio": round(means[best][0] / plain[0], 4), "best": list(best)}
    line |= {"pearson_gain": round(means[best][1] - plain[1], 4), "seeds": given.seeds, "cores": os.cpu_count()}
    print(json.dumps(line))


if __name__ == "__main__":
    main()
