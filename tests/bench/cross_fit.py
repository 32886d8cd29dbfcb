"""Compare what scoring heads read of a frozen base, cross-fitted, beside another judge's column.

    python tests/bench/cross_fit.py ROWS.jsonl DATA BASE [--other gpt4] [--criteria "{right: [1, 3]}"]

DATA is the folder of `data/human_scores.py ROWS.jsonl --folds K`. Features are taken from the cache of `critic train`;
what is missing is computed. Every figure is over all questions, each judged by a head that never saw it; behind the
semicolon is the paired difference from the head on the last token (median). With `--criteria`, scales of the rows'
criteria, heads that score each criterion are compared too.
"""

import json
import os
import re
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import numpy as np
import typer
from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "train")]
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import linear_head  # noqa: E402
import run as training  # noqa: E402
from evaluation import add_criteria_of_rows  # noqa: E402
from recipe import objective_of, read_recipe  # noqa: E402
from rows import Data, prepare  # noqa: E402
from scipy.special import softmax  # noqa: E402
from sklearn.ensemble import HistGradientBoostingRegressor  # noqa: E402

from critic import human_scored  # noqa: E402
from critic.judging import distribution  # noqa: E402
from critic.records import Response, Scale  # noqa: E402
from critic.stats.estimate import Bootstrap, Estimate  # noqa: E402
from eval_agreement.measures.baselines import _chrf as chrf  # noqa: E402
from eval_agreement.metrics import resampled  # noqa: E402

BASIS, SHOWN = "last, median", ("mae", "pearson", "within")


def describe_surface(answers: list[Response]) -> NDArray[np.float64]:
    """Return what can be seen of answers without understanding: lengths, and what they share with the reference."""
    described = []
    for answer in answers:
        texts = answer.text, answer.question.reference or "", answer.question.prompt
        features: list[float] = [*map(len, texts)]
        # Characters, bigrams, and numbers or chosen options.
        for pattern in (r"(?s).", r"(?s)(?=(..))", r"[0-9.]+|[A-D](?![a-z])"):
            own, other = (set(re.findall(pattern, text)) for text in texts[:2])
            features += [len(own & other) / max(1, len(other)), len(own & other) / max(1, len(own)), len(own)]
        described.append(features)
    return np.hstack([described, chrf(answers)[:, None]])


def main(
    rows: Path, data: Path, base: str, other: str = "", criteria: str = "", cache: Path = Path("runs/cache")
) -> None:
    given = [f"base={base}", "read_answer=true", "precision=bf16"]
    recipe, by_criteria = (
        read_recipe(ROOT / "train/recipes/qwen-1.5b-head.yaml", [*given, f"criteria={scales}"])
        for scales in ("null", criteria or "null")
    )
    prepared, tokenizer = prepare(recipe, rows, cache, 1)
    taught: dict[str, tuple[Data, Mapping[str, Scale]]] = {"": (prepared, {})}
    if criteria:
        taught["criteria of "] = prepare(by_criteria, rows, cache, 1)[0], objective_of(by_criteria).criteria
        assert taught["criteria of "][0].rows["id"] == prepared.rows["id"]
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
    surface = describe_surface(known)
    scores["boosting"] = np.zeros(len(known))
    for number in range(len(parts)):
        outside, boosting = folds == number, HistGradientBoostingRegressor(loss="absolute_error")
        boosting.fit(surface[~outside], people[~outside])
        scores["boosting"][outside] = np.clip(boosting.predict(surface[outside]), 1, 10)
    reads = {"last": slice(half), "answer": slice(half, None), "both": slice(None)}
    for (of, (labelled, scales)), (read_name, read) in product(taught.items(), reads.items()):
        name, counts = f"{of}{read_name}", distribution.count_scores(scales)
        classes = np.zeros((len(known), sum(counts)))
        for number in range(len(parts)):
            inside, outside = np.flatnonzero(folds != number), folds == number
            weights, _ = linear_head.fit_head(features[inside][:, read], labelled.rows.select(inside), counts)
            ends = np.cumsum(counts)[:-1]
            scored = [softmax(part, axis=1) for part in np.split(features[outside][:, read] @ weights.T, ends, axis=1)]
            classes[outside] = np.concatenate(scored, axis=1)
        named = [{"criteria": dict.fromkeys(answer.question.criteria, 1.0)} for answer in known]
        shares = add_criteria_of_rows(named, classes, scales) if scales else classes
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
