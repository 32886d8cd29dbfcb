"""Judge held-out rows during training to measure the agreement with human scores."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attention
import datasets
import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object, send_to_device
from batches import Batches, Collation, PromptCollation, Row, Tensors, average_answer, build_prompt_row, score_ratings
from msgspec import Struct
from numpy.typing import NDArray
from objective import Objective, log_distribution
from vision import SeeingTokenizer, number_images

from critic import human_scored
from critic.backends.answers import cut_answer, find_answer
from critic.errors import UsageError, located
from critic.images import ImageError
from critic.judging import distribution
from critic.judging.examples import Planned, build_example
from critic.judging.forms import form_of, inquiry
from critic.judging.targets import RATING, source_ids
from critic.records import Scale
from critic.stats.estimate import FEWEST_TO_DECIDE, Bootstrap
from eval_agreement import METRICS, measured
from eval_agreement.metrics import resampled

_PROMPTS = PromptCollation()


class HeldOut(Struct, frozen=True):
    """Held-out rows to judge, with the human score (1..10) and the group of each.

    - `rows`: token ids up to the position of the rating. If 10 is two tokens, they also include a 1 at that position.
    - `refused`: ids of rows that are too long or lack a field that the form needs.
    - `ends`: True if the rating is the last value of the verdict.
    - `behind`: number of verdict tokens after the prompt in each row.
    """

    rows: list[Row]
    human: list[float]
    refused: list[str]
    groups: list[str]
    ends: bool = False
    behind: int = 0


def read_held_out(path: Path, objective: Objective, tokenizer: Any) -> HeldOut:
    """Read the first rows of a file, as many as the recipe's `evaluation` says, and render them as in judging.

    The rows are sorted by length. For a scoring head they end with the prompt. Raise UsageError if an image cannot be
    shown or no row can be used.
    """
    spec, limit, form = objective.recipe.evaluation, objective.recipe.max_source_tokens, objective.watched_form()
    tokens = objective.tokens
    assert spec is not None
    usable: list[tuple[Row, float, str]] = []
    refused: list[str] = []
    behind = [*tokens.before, *(tokens.first[:1] if tokens.zero is not None else [])] if tokens else []
    sees = isinstance(tokenizer, SeeingTokenizer)
    for response in human_scored.load(path, pictures=sees).responses[: spec.rows]:
        rendered = None
        with located(f"{path}: {response.id}", ImageError):
            question, known = response.question, objective.criteria
            strange = bool(known) and not known.keys() >= question.criteria.keys()
            if form_of(form).lacking(response) is None and not strange:
                planned, by_id = Planned(form, (response.id,)), {response.id: response}
                rendered = build_example(
                    planned, by_id, limit, lambda messages: len(source_ids(tokenizer, messages)), sees
                )
        if rendered is None:
            refused.append(response.id)
        else:
            assert response.human is not None
            takes = [tokenizer.image_tokens(name) for name in rendered.images]
            ids = source_ids(tokenizer, rendered.messages)
            without = source_ids(tokenizer, cut_answer(rendered.messages))
            row = build_prompt_row(ids + behind, rendered.images, takes, find_answer(ids, without))
            row["criteria"] = {name: question.criteria_weights.get(name, 1.0) for name in question.criteria}
            usable.append((row, response.human.score, question.group))
    if not usable:
        problem = f"none fits into {limit} source tokens and has what {form} needs"
        raise UsageError(f"{path}: no row to evaluate: of {len(refused)} {problem}")
    # So batches need little padding.
    usable.sort(key=lambda entry: entry[0]["length"])
    rows, human, groups = map(list, zip(*usable, strict=True))
    request = inquiry(form, response.question.lang, form_of(form).material(response, None))
    return HeldOut(rows, human, refused, groups, request.keys()[-1:] == (RATING,), len(behind))


def compute_distributions(
    model: Any, tokenizer: Any, rows: list[Row], objective: Objective, size: int, ends: bool = False
) -> NDArray[np.float64]:
    """Return the judge's probabilities of the ratings [rows × 10]. The processes share the rows, `size` per batch.

    - `model`: the causal model without adapter wrapper. Under ZeRO-3 its modules gather their weights when called.
    - `objective`: what the judge is trained for, with the tokens that spell ratings. `ends`: as in HeldOut.
    """
    tokens, criteria = objective.tokens, objective.criteria

    def likely(states: torch.Tensor, batch: Tensors) -> torch.Tensor:
        # A head has classes, not tokens.
        if tokens is None:
            parts = score_ratings(model, states, batch).split(distribution.count_scores(criteria), dim=-1)
            return torch.cat([torch.softmax(part, dim=-1) for part in parts], dim=-1)
        last, before = states[batch["ends"]], states[batch["ends"] - 1]
        # A 10 is one token, so nothing behind a 1 needs to be known.
        if tokens.zero is None:
            return log_distribution(tokens, model.lm_head(last), None).exp()
        ending = torch.full((len(last),), ends, device=last.device)
        return log_distribution(tokens, model.lm_head(before), model.lm_head(last), ending).exp()

    shares = _compute_by_batch(model, tokenizer, rows, size, likely)
    return add_criteria_of_rows(rows, shares, criteria) if criteria else shares


def add_criteria_of_rows(
    rows: list[Row], shares: NDArray[np.float64], scales: Mapping[str, Scale]
) -> NDArray[np.float64]:
    """Compute the probabilities of the ratings [rows × 10] from `shares`, those of the scores by criteria.

    - `shares` [rows × scores]: probabilities of the scores by each criterion, in alphabetical order of the criteria.
    - `scales`: criterion -> lowest and highest score.
    - `rows`: the key `criteria` of a row maps its criteria to their weights; if empty, all criteria count equally.
    """
    added = []
    for row, own in zip(rows, shares.tolist(), strict=True):
        weights = row["criteria"] or dict.fromkeys(scales, 1.0)
        added.append(distribution.add_criteria(distribution.split_by_criterion(own, scales), weights))
    return np.array(added)


def compute_last_hidden(model: Any, tokenizer: Any, rows: list[Row], size: int) -> NDArray[np.float64]:
    """Return two vectors of each row [rows × 2 × width], both made of the last layer's hidden states.

    The first is the hidden state of the row's last token. The second is the mean from the beginning of the answer to
    the row's end. The processes share the rows, `size` per batch.
    """

    def read(states: torch.Tensor, batch: Tensors) -> torch.Tensor:
        return torch.stack([states[batch["ends"]], average_answer(states, batch)], dim=1)

    return _compute_by_batch(model, tokenizer, rows, size, read)


def compute_head_scores(model: Any, tokenizer: Any, collation: Collation, rows: list[Row]) -> NDArray[np.float64]:
    """Return the scores of the model's scoring head for rows that are collated by `collation`.

    The shape is [rows × classes], or [rows × 2 × classes] if a row has two prompts. The processes share the rows. Every
    process must call it.
    """
    return _compute_by_batch(
        model, tokenizer, rows, 8, lambda states, batch: model.score(states[batch["ends"]]).float(), collation
    )


def _compute_by_batch(
    model: Any,
    tokenizer: Any,
    rows: list[Row],
    size: int,
    compute: Callable[[torch.Tensor, Tensors], torch.Tensor],
    collation: Collation = _PROMPTS,
) -> NDArray[np.float64]:
    """Return the results [rows × …] of `compute`, in the order of `rows`.

    `compute` takes the hidden states [tokens × width] of a batch and its tensors (`Collation.tensors`), and returns a
    tensor with one entry per row. The processes share the rows, `size` per batch. Rows with a common prefix are batched
    together, and the prefix is computed once if the attention supports prefix trees.
    """
    seeing = tokenizer if isinstance(tokenizer, SeeingTokenizer) else None
    packing = attention.install(model) and not attention.list_obstacles(model, tokenizer)
    collate = Batches(tokenizer.pad_token_id, collation=collation, packing=packing, seeing=seeing, several=True)
    apart = number_images(rows, collate.image_token)
    alike = sorted(range(len(rows)), key=lambda row: apart[row])
    vectors: list[tuple[int, NDArray[np.float64]]] = []
    training, device = model.training, next(model.parameters()).device
    model.eval()
    # Every process makes as many calls as the others, repeating the last row where there are no more.
    with PartialState().split_between_processes(alike, apply_padding=True) as own, torch.no_grad():
        for start in range(0, len(own), size):
            indices = own[start : start + size]
            batch = collate([rows[index] for index in indices])
            batch = send_to_device(batch, device)
            inputs = {name: value for name, value in batch.items() if name not in collation.inputs}
            hidden = model.model(**inputs, use_cache=False).last_hidden_state.flatten(0, 1)
            computed = compute(hidden, batch)
            vectors += zip(indices, computed.double().cpu().numpy(), strict=True)
    model.train(training)
    vector_of = dict(gather_object(vectors))
    return np.array([vector_of[index] for index in range(len(rows))])


def rate_held_out(model: Any, tokenizer: Any, objective: Objective, held: HeldOut) -> list[float]:
    """Return the judge's expected ratings (1..10) of held-out rows; the arguments are as in `compute_distributions`."""
    spec = objective.recipe.evaluation
    assert spec is not None
    shares = compute_distributions(model, tokenizer, held.rows, objective, spec.batch_size, held.ends)
    return [distribution.score(list(row), "expected") for row in shares]


def compute_metrics(scores: list[float], held: HeldOut) -> dict[str, float]:
    """Return all agreement metrics by name, and the number of rows as `n`. Undefined metrics are left out.

    >>> held = HeldOut([], [5.0, 5.0, 6.5], [], ["one", "one", "two"])
    >>> compute_metrics([5.0, 5.0, 5.0], held)
    {'n': 3.0, 'mae': 0.5, 'fuzzy': 0.6666666666666666, 'strict': 0.6666666666666666, 'qwk': 0.0}
    >>> sorted(compute_metrics([1.0, 5.0, 10.0], HeldOut([], [5.0] * 3, [], ["one", "one", "two"])))
    ['fuzzy', 'mae', 'n', 'qwk', 'strict']
    """
    estimates = measured(held.human, scores, held.groups).estimates
    known = {name: estimate.value for name, estimate in estimates.items() if estimate.value is not None}
    return {"n": float(len(held.human)), **known}


def _key_prompt(row: Row, behind: int = 0) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return a key that identifies a row's prompt: its images, and its tokens without the last `behind`."""
    return tuple(row["input_ids"][: row["source"] - behind]), tuple(row["images"])


def require_foreign(held: HeldOut, trained: datasets.Dataset, path: str) -> None:
    """Raise UsageError if foreign rows or their groups leak into training, or cover too few groups.

    `trained` are the tokenized training rows. `path` names the foreign file in the message.
    """
    groups, columns = set(held.groups), trained.select_columns(["input_ids", "source", "images"])
    of = {_key_prompt(row, held.behind): group for row, group in zip(held.rows, held.groups, strict=True)}
    known = {*trained["group"], *(of.get(_key_prompt(row)) for row in columns)}
    # Groups count, not rows: answers to one question are no independent evidence.
    if groups & known or len(groups) < FEWEST_TO_DECIDE:
        counts = f"{len(groups)} groups, of which {len(groups & known)} are trained on"
        need = f"at least {FEWEST_TO_DECIDE} are needed among the first rows (evaluation.rows), and none of --train's"
        raise UsageError(f"foreign: {path}: {counts}; {need}")


def compare_with_base(held: HeldOut, base: list[float], scores: list[float]) -> dict[str, Any]:
    """Compare a judge's scores of held-out rows with the scores of its base model.

    Return a JSON object. For each metric, `base`, `judge` and `difference` hold the value and the ends of its 95 %
    confidence interval, from a bootstrap over groups with the same draws for both. `worse` lists the metrics for which
    the whole interval of the difference says that the judge is worse.

    >>> human = [float(2 + n % 7) for n in range(80)]
    >>> base = [score + (0.5 if n % 3 else -0.25) for n, score in enumerate(human)]
    >>> twice_as_far = [2 * score - human[n] for n, score in enumerate(base)]
    >>> held = HeldOut([], human, [], [f"group {n // 2}" for n in range(80)])
    >>> compared = compare_with_base(held, base, twice_as_far)
    >>> {side: [round(value, 2) for value in mae] for side, mae in compared["metrics"]["mae"].items()}
    {'base': [0.42, 0.4, 0.43], 'judge': [0.83, 0.79, 0.87], 'difference': [0.42, 0.4, 0.43]}
    >>> "mae" in compared["worse"], "pearson" in compared["worse"], compare_with_base(held, twice_as_far, base)["worse"]
    (True, True, [])

    A correlation with a base that says the same of all rows is undefined, so the judge's is not worse.

    >>> "pearson" in compare_with_base(held, [5.0] * 80, twice_as_far)["worse"]
    False
    """
    draws, worse = Bootstrap(held.groups), []
    judge, before = resampled(np.array(held.human), [np.array(scores), np.array(base)], draws)
    table: dict[str, dict[str, list[float]]] = {}
    for name, metric in METRICS.items():
        values = {"base": before[name], "judge": judge[name], "difference": judge[name] - before[name]}
        estimates = {side: draws.estimate(sample, len(scores)) for side, sample in values.items()}
        known = {side: estimate for side, estimate in estimates.items() if estimate.value is not None}
        table[name] = {side: [estimate.value or 0.0, *(estimate.interval or ())] for side, estimate in known.items()}
        low, high = estimates["difference"].interval or (0.0, 0.0)
        if low > 0.0 if metric.lower_is_better else high < 0.0:
            worse.append(name)
    return {"n": len(scores), "groups": draws.groups, "metrics": table, "worse": worse}
