"""Fit the initial scoring head by logistic regression on the base model's hidden states.

A head of zeros is trained together with the layers below it, which first follow a head that knows nothing. With a
fitted head they start from what the base already knows (linear probing, then fine-tuning: Kumar et al. 2022, arXiv
2202.10054, section 4). If no training step follows, the fitted head is the judge.
"""

import time
import warnings
from pathlib import Path
from statistics import fmean
from typing import Any

import datasets
import deepspeed
import numpy as np
import torch
from cpu import is_first
from evaluation import compute_last_hidden
from numpy.typing import NDArray
from recipe_keys import Recipe

from critic import jsonl
from critic.errors import UsageError

STRENGTHS = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2)
"""Values of C, the inverse strength of the ridge penalty, to try."""

_FOLDS, _AT_ONCE, _PART = 3, 16, 128

Floats = NDArray[np.float64]


def fit(model: Any, recipe: Recipe, rows: datasets.Dataset, tokenizer: Any, device: torch.device, folder: Path) -> None:
    """Fit `model.score` on at most `recipe.probe` rows, sampled with the recipe's seed, and print its cross-entropy
    (nats) on held-out groups.

    The processes share the rows; each needs memory for the whole model. `folder` stores the features
    (`compute_features`). Raise UsageError if the base already has a scoring head, and as `fit_ridge` does.
    """
    # With adapters there are two, the base's and that which is learned.
    heads = [head for name, head in model.named_parameters() if name.startswith("score.")]
    with deepspeed.zero.GatheredParameters(heads):
        # A random tiny model has a random head, which is replaced.
        if recipe.base is not None and any(bool(head.any()) for head in heads):
            raise UsageError("probe: the base has a scoring head already; leave probe out to go on from that one")
    # Under ZeRO-3 DeepSpeed decides where the weights are.
    if recipe.deepspeed.get("zero_optimization", {}).get("stage") != 3:
        model.to(device)
    # The first process alone knows the base's weights, by which the folder is named.
    named = [str(folder)]
    torch.distributed.broadcast_object_list(named)
    folder, begun = Path(named[0]), time.monotonic()
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        order = np.random.default_rng(recipe.training.get("seed", 42)).permutation(len(rows))
        drawn = rows.select(np.sort(order[: recipe.probe]).tolist())
        weights, loss = fit_ridge(compute_features(model, drawn, tokenizer, folder), drawn)
    with deepspeed.zero.GatheredParameters(heads, modifier_rank=0), torch.no_grad():
        for head in heads:
            head.copy_(torch.as_tensor(weights))
    if is_first():
        took = time.monotonic() - begun
        print(f"head fitted on {len(drawn)} examples: loss {loss:.3f} held out, {took:.0f} s", flush=True)


def compute_features(model: Any, rows: datasets.Dataset, tokenizer: Any, folder: Path) -> Floats:
    """Return the last hidden state [rows × width] of the last prompt token of each row.

    Parts of the result are written to `folder`, from which an interrupted run resumes. A folder belongs to one model
    and one set of rows.
    """
    prompts = [ids[:source] for ids, source in zip(rows["input_ids"], rows["source"], strict=True)]
    alike = sorted(range(len(prompts)), key=lambda row: prompts[row])
    folder.mkdir(parents=True, exist_ok=True)
    parts, begun, computed = [], time.monotonic(), 0
    for start in range(0, len(alike), _PART):
        # No process looks for a part before all have computed the one before, so all see the same.
        file, part = folder / f"{start}.npy", alike[start : start + _PART]
        if file.is_file():
            parts.append(np.load(file))
            continue
        states = compute_last_hidden(model, tokenizer, [prompts[row] for row in part], _AT_ONCE).astype(np.float32)
        parts.append(states)
        computed += len(part)
        if is_first():
            # A part that was written by half must not be taken for one.
            with jsonl.replace_file(file) as output:
                np.save(output, states)
            rate, done = computed / (time.monotonic() - begun), start + len(part)
            left = (len(alike) - done) / rate
            print(f"head: {done}/{len(alike)} rows  {rate:.1f} rows/s  {left:.0f} s left", flush=True)
    return np.asarray(np.concatenate(parts)[np.argsort(alike)], dtype=np.float64)


def fit_ridge(states: Floats, rows: datasets.Dataset) -> tuple[Floats, float]:
    """Fit a head on the `states` [rows × width] of `rows`; return its weights [10 × width] and held-out loss (nats).

    The strength of the ridge penalty is chosen by cross-validation over groups. Raise UsageError if all rows have one
    rating or one group, or if no held-out group can be evaluated.
    """
    from sklearn.model_selection import GroupKFold  # noqa: PLC0415 - takes a second to import

    # One penalty for all features needs features of one scale.
    scale = states.std(axis=0) + 1e-6
    people, weight = np.array(rows["people"], dtype=np.float64), np.array(rows["weight"], dtype=np.float64)
    # What people said may be between two ratings: then a row counts in part for each.
    row, rating = np.nonzero(people)
    shares, groups = people[row, rating] * weight[row], np.array(rows["group"])[row]
    if len(set(rating.tolist())) < 2 or len(set(groups.tolist())) < 2:
        raise UsageError("probe: rows of one rating or of one group tell nothing; leave it out")
    features = (states / scale)[row]
    # A part that only knows one rating learns nothing, and none can be judged by ratings that it does not know.
    parts = [
        (inside, outside)
        for inside, outside in GroupKFold(min(_FOLDS, len(set(groups)))).split(features, rating, groups)
        if len(set(rating[inside].tolist())) > 1 and np.isin(rating[outside], rating[inside]).any()
    ]
    if not parts:
        raise UsageError("probe: no group can be rated by what the others teach; leave it out")
    losses = {}
    for strength in STRENGTHS:
        losses[strength] = fmean(_compute_held_out_loss(features, rating, shares, part, strength) for part in parts)
    best = min(losses, key=losses.__getitem__)
    fitted = _fit_regression(best, features, rating, shares)
    # Of two classes scikit-learn gives one row, the difference of both.
    by_class = fitted.coef_ if len(fitted.classes_) > 2 else np.vstack([-fitted.coef_ / 2, fitted.coef_ / 2])
    # A rating that nobody gave is as unlikely as the rarest.
    rarest = int(np.argmin([shares[rating == label].sum() for label in fitted.classes_]))
    weights = np.tile(by_class[rarest], (people.shape[1], 1))
    weights[fitted.classes_] = by_class
    return weights / scale, losses[best]


def _fit_regression(strength: float, features: Floats, rating: NDArray[np.intp], shares: Floats) -> Any:
    from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415 - takes a second to import
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - takes a second to import

    with warnings.catch_warnings():
        # One that was stopped before its end is one with more penalty: held-out rows choose among them alike.
        warnings.simplefilter("ignore", ConvergenceWarning)
        # The layer of scores has no intercept.
        fitted = LogisticRegression(C=strength, fit_intercept=False, max_iter=500)
        return fitted.fit(features, rating, sample_weight=shares)


def _compute_held_out_loss(
    features: Floats, rating: NDArray[np.intp], shares: Floats, part: tuple[Any, Any], strength: float
) -> float:
    from sklearn.metrics import log_loss  # noqa: PLC0415 - takes a second to import

    inside, outside = part
    fitted = _fit_regression(strength, features[inside], rating[inside], shares[inside])
    seen = outside[np.isin(rating[outside], fitted.classes_)]
    predicted = fitted.predict_proba(features[seen])
    return float(log_loss(rating[seen], predicted, sample_weight=shares[seen], labels=fitted.classes_))
