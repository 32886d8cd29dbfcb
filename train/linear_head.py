"""Fit the initial scoring head by logistic regression on the base model's hidden states.

If training starts with a head of zeros, the layers below it are first changed to suit a head that knows nothing. A
fitted head lets training start from what the base already knows (linear probing, then fine-tuning: Kumar et al. 2022,
arXiv 2202.10054, section 4). If no training step follows, the base with the fitted head is the judge.
"""

import io
import time
import warnings
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import datasets
import deepspeed
import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from batches import build_prompt_row, count_last_classes
from cpu import is_first, say
from evaluation import compute_last_hidden
from numpy.typing import NDArray
from recipe import objective_of
from recipe_keys import Recipe

from critic import jsonl
from critic.errors import UsageError, hash_value
from critic.judging.distribution import count_scores

STRENGTHS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
"""Values of C, the inverse strength of the ridge penalty, to try."""

_FOLDS, _AT_ONCE, _PART = 3, 16, 128

_MEAN = 30.0
"""Length that the mean of the scaled features is brought to. It does an intercept's work. Shorter, its coefficients
have to be large, and the penalty keeps too little of how frequent ratings are (with 3, .1 to .3 nats are lost on
held-out groups). At its own length, some hundreds, the regression takes five times the steps."""

Floats = NDArray[np.float64]


def fit(model: Any, recipe: Recipe, rows: datasets.Dataset, tokenizer: Any, device: torch.device, folder: Path) -> None:
    """Fit the scoring head `model.score`, and print its cross-entropy (nats) on held-out groups.

    It is fitted on at most `recipe.probe` rows, which are sampled with the recipe's seed. The processes share the rows;
    each needs memory for the whole model. `folder` caches the base's features (`compute_features`). Raise UsageError if
    the base already has a scoring head, and as `fit_ridge` does.
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
    broadcast_object_list(named)
    folder, begun = Path(named[0]), time.monotonic()
    reads_answer = count_last_classes(model) < model.config.num_labels
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        order = np.random.default_rng(recipe.training.get("seed", 42)).permutation(len(rows))
        drawn = rows.select(np.sort(order[: recipe.probe]).tolist())
        features = compute_features(model, drawn, tokenizer, folder)
        read = features if reads_answer else features[:, : features.shape[1] // 2]
        weights, loss = fit_head(read, drawn, count_scores(objective_of(recipe).criteria))
    if reads_answer:
        # The classes of the last token, then those of the answer.
        weights = np.concatenate(np.split(weights, 2, axis=1))
    with deepspeed.zero.GatheredParameters(heads, modifier_rank=0), torch.no_grad():
        for head in heads:
            head.copy_(torch.as_tensor(weights))
    say(f"head fitted on {len(drawn)} examples: loss {loss:.3f} held out, {time.monotonic() - begun:.0f} s")


def compute_features(model: Any, rows: datasets.Dataset, tokenizer: Any, folder: Path) -> Floats:
    """Return features of each row's prompt [rows × 2 width], computed with the base.

    They are the last layer's hidden state of the prompt's last token, and then the mean of these states over the
    answer. `folder` caches the features of one model by prompt. So an interrupted run continues, and other heads or
    folds reuse the features.
    """
    prompts = [
        build_prompt_row(row["input_ids"][: row["source"]], [], [], row["answer"])
        for row in rows.select_columns(["input_ids", "source", "answer"])
    ]
    keys = [hash_value([row["answer"], row["input_ids"]]) for row in prompts]
    folder.mkdir(parents=True, exist_ok=True)
    # All processes must see the same, while other runs may write more.
    files = [sorted(folder.glob("*.npz"))]
    broadcast_object_list(files)
    known: dict[str, Floats] = {}
    for file in files[0]:
        with np.load(file) as part:
            if not {*keys}.isdisjoint(part["keys"].tolist()):
                known |= zip(part["keys"].tolist(), part["states"], strict=True)
    missing = {key: row for key, row in zip(keys, prompts, strict=True) if key not in known}
    # Neighbours begin alike.
    left, begun = sorted(missing.items(), key=lambda entry: entry[1]["input_ids"]), time.monotonic()
    for start in range(0, len(left), _PART):
        names, part = zip(*left[start : start + _PART], strict=True)
        states = compute_last_hidden(model, tokenizer, [*part], _AT_ONCE).astype(np.float32).reshape(len(part), -1)
        known |= zip(names, states, strict=True)
        if is_first():
            # A part that was written by half must not be taken for one; savez goes back in what it writes.
            np.savez(packed := io.BytesIO(), keys=names, states=states)
            jsonl.write_bytes(folder / f"{names[0]}.npz", packed.getvalue())
            done = start + len(part)
            rate = done / (time.monotonic() - begun)
            known_rows, seconds = len(rows) - len(left) + done, (len(left) - done) / rate
            print(f"head: {known_rows}/{len(rows)} rows  {rate:.1f} rows/s  {seconds:.0f} s left", flush=True)
    return np.array([known[key] for key in keys], dtype=np.float64)


def fit_head(states: Floats, rows: datasets.Dataset, counts: list[int]) -> tuple[Floats, float]:
    """Fit a head on the features `states` [rows × width] of `rows` by `fit_ridge`.

    Return its weights [classes × width] and its held-out loss (nats). `counts`: number of scores of each criterion, or
    [10] for the ratings. Each criterion is fitted separately, on the rows that are scored by it.
    """
    people, fitted = np.array(rows["people"], dtype=np.float64), list[tuple[Floats, float]]()
    for own in np.split(people, np.cumsum(counts)[:-1], axis=1):
        scored = np.flatnonzero(own.any(axis=1))
        fitted.append(fit_ridge(states[scored], rows.select(scored), own[scored]))
    weights, losses = zip(*fitted, strict=True)
    return np.concatenate(weights), fmean(losses)


def fit_ridge(states: Floats, rows: datasets.Dataset, people: Floats) -> tuple[Floats, float]:
    """Fit a head on the features `states` [rows × width] of `rows`.

    Return its weights [classes × width] and its held-out loss (nats). `people`: distributions [rows × classes] of human
    scores. The strength of the ridge penalty is chosen by cross-validation over groups. Raise UsageError if all rows
    have one rating or one group, or if no held-out group can be evaluated.
    """
    from sklearn.model_selection import GroupKFold  # noqa: PLC0415 - takes a second to import

    # One penalty for all features needs features of one scale.
    scale = states.std(axis=0) + 1e-6
    scaled = states / scale
    mean = scaled.mean(axis=0)
    length = float(np.linalg.norm(mean)) + 1e-6
    shorten = partial(_scale_along, mean / length, _MEAN / length)
    weight = np.array(rows["weight"], dtype=np.float64)
    # What people said may be between two ratings: then a row counts in part for each.
    row, rating = np.nonzero(people)
    shares, groups = people[row, rating] * weight[row], np.array(rows["group"])[row]
    if len(set(rating.tolist())) < 2 or len(set(groups.tolist())) < 2:
        raise UsageError("probe: rows of one rating or of one group tell nothing; leave it out")
    features = shorten(scaled)[row]
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
        # Weaker ones take longer, and fit the rows still closer.
        if losses[strength] > min(losses.values()):
            break
    best = min(losses, key=losses.__getitem__)
    fitted = _fit_regression(best, features, rating, shares)
    # Of two classes scikit-learn gives one row, the difference of both.
    by_class = fitted.coef_ if len(fitted.classes_) > 2 else np.vstack([-fitted.coef_ / 2, fitted.coef_ / 2])
    # A rating that nobody gave is as unlikely as the rarest.
    rarest = int(np.argmin([shares[rating == label].sum() for label in fitted.classes_]))
    weights = np.tile(by_class[rarest], (people.shape[1], 1))
    weights[fitted.classes_] = by_class
    return shorten(weights) / scale, losses[best]


def _scale_along(direction: Floats, factor: float, vectors: Floats) -> Floats:
    """Multiply the part of `vectors` [n × width] along a unit vector `direction` [width] by `factor`.

    >>> _scale_along(np.array([0.0, 1.0]), 0.5, np.array([[3.0, 4.0]])).tolist()
    [[3.0, 2.0]]
    """
    return np.asarray(vectors + np.outer(vectors @ direction, (factor - 1) * direction))


def _fit_regression(strength: float, features: Floats, rating: NDArray[np.intp], shares: Floats) -> Any:
    from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415 - takes a second to import
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - takes a second to import
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 - comes with scikit-learn

    # Products with ten columns wait for their threads: two take five times as long as one where the cores are busy.
    with warnings.catch_warnings(), threadpool_limits(1):
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
