"""Compare what scoring heads read of a frozen base, cross-fitted, beside another judge's column.

    python tests/bench/cross_fit.py ROWS.jsonl DATA BASE [gpt4]

DATA is the folder of `data/human_scores.py ROWS.jsonl --folds K`. Features are taken from the cache of `critic train`;
what is missing is computed. Every figure is over all questions, each judged by a head that never saw it; behind the
semicolon is the paired difference from the head on the last token (median).
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import typer

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "train")]
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import linear_head  # noqa: E402
import run as training  # noqa: E402
from recipe import read_recipe  # noqa: E402
from rows import prepare  # noqa: E402
from scipy.special import softmax  # noqa: E402

from critic import human_scored  # noqa: E402
from critic.judging import distribution  # noqa: E402
from critic.stats.estimate import Bootstrap, Estimate  # noqa: E402
from eval_agreement.metrics import resampled  # noqa: E402

BASIS, SHOWN = "last, median", ("mae", "pearson", "within")


def main(rows: Path, data: Path, base: str, other: str = "", cache: Path = Path("runs/cache")) -> None:
    recipe = read_recipe(
        ROOT / "train/recipes/qwen-1.5b-head.yaml", [f"base={base}", "read_answer=true", "precision=bf16"]
    )
    prepared, tokenizer = prepare(recipe, rows, cache, 1)
    folder = training.feature_folder(recipe, training.describe(recipe, rows), cache)
    model = training.build_model(recipe, tokenizer, None)
    features = linear_head.compute_features(model, prepared.rows, tokenizer, folder)
    answers = {response.id: response for response in human_scored.load(rows, judges=[other] * bool(other)).responses}
    known = [answers[name] for name in prepared.rows["id"]]
    people = np.array([answer.human.score for answer in known if answer.human])
    parts = sorted(data.glob("fold-*/internal.jsonl"))
    fold_of = {row.id: number for number, part in enumerate(parts) for row in human_scored.load(part).rows}
    folds, half = np.array([fold_of[answer.id] for answer in known]), features.shape[1] // 2
    scores = {"constant": np.full(len(known), np.median(people))}
    if other:
        scores[other] = np.array([answer.columns[f"{other}_score_1_10"] for answer in known])
    for name, read in {"last": slice(half), "answer": slice(half, None), "both": slice(None)}.items():
        shares = np.zeros((len(known), 10))
        for number in range(len(parts)):
            inside, outside = np.flatnonzero(folds != number), folds == number
            weights, _ = linear_head.fit_ridge(features[inside, read], prepared.rows.select(inside))
            shares[outside] = softmax(features[outside, read] @ weights.T, axis=1)
        for kind in ("median", "expected"):
            scores[f"{name}, {kind}"] = np.array([distribution.score(list(row), kind) for row in shares])
    draws = Bootstrap(prepared.rows["group"])
    samples = dict(zip(scores, resampled(people, [*scores.values()], draws), strict=True))

    def show(estimate: Estimate, form: str) -> str:
        return " ".join(
            [format(estimate.value or 0, form), *(str([round(end, 3) for end in estimate.interval or ()]),)]
        )

    for name, sample in samples.items():
        own = [show(draws.estimate(sample[metric], len(known)), ".3f") for metric in SHOWN]
        apart = [show(draws.estimate(sample[metric] - samples[BASIS][metric], len(known)), "+.3f") for metric in SHOWN]
        print(f"| {name} | {' | '.join(map('; '.join, zip(own, apart, strict=True)))} |", flush=True)
    ratio = samples["both, median"]["mae"][0] / samples[BASIS]["mae"][0]
    print(
        json.dumps({"name": "cross_fit", "ratio": round(float(ratio), 4), "rows": len(known), "groups": draws.groups})
    )


if __name__ == "__main__":
    typer.run(main)
