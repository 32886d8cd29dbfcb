"""Judging held-out rows with the weights as they are in training: the agreement with people beside the loss."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attention
import datasets
import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from objective import RatingTokens, log_distribution
from packing import prefix_tree, sequence
from recipe import EvaluationSpec
from vision import SeeingTokenizer, images_of, told_apart

from critic import human_scored
from critic.errors import UsageError
from critic.images import ImageError
from critic.judging import distribution
from critic.judging.examples import TooLong, example
from critic.judging.forms import form_of, inquiry
from critic.judging.targets import RATING, source_ids
from critic.stats.estimate import FEWEST_TO_DECIDE, Bootstrap
from eval_agreement import METRICS, agreement
from eval_agreement.metrics import resampled

Rows = list[dict[str, Any]]
"""What is computed: input_ids, images and image_tokens of each."""


class HeldOut(Struct, frozen=True):
    """Rows to judge: token ids up to the rating, and a 1 behind it where 10 is two tokens; people's score, 1..10; the
    names of the images that each row shows, and its group. `ends`: the rating is the last of a verdict."""

    ids: list[list[int]]
    human: list[float]
    refused: list[str]
    images: list[list[str]]
    groups: list[str]
    ends: bool = False


def held_out(
    path: Path, spec: EvaluationSpec, tokenizer: Any, tokens: RatingTokens | None, limit: int, form: str = "pointwise"
) -> HeldOut:
    """The first `spec.rows` rows of a file, rendered as in judging, shortest first; up to the prompt's end for a
    scoring head, which has no rating's `tokens`. Raises UsageError if none fits."""
    found: list[tuple[Any, ...]] = []
    refused: list[str] = []
    behind = [*tokens.before, *(tokens.first[:1] if tokens.zero is not None else [])] if tokens else []
    sees = isinstance(tokenizer, SeeingTokenizer)
    for response in human_scored.load(path, pictures=sees).responses[: spec.rows]:
        if form_of(form).lacking(response) is not None:
            refused.append(response.id)
            continue
        try:
            made = example(response, form, limit, lambda messages: len(source_ids(tokenizer, messages)), sees=sees)
        except ImageError as error:
            raise UsageError(f"{path}: {response.id}: {error}") from None
        if isinstance(made, TooLong):
            refused.append(response.id)
        else:
            assert response.human is not None
            prompt = source_ids(tokenizer, made.messages) + behind
            found.append((prompt, response.human.score, made.images, response.question.group))
    if not found:
        raise UsageError(f"{path}: no row to evaluate fits into {limit} source tokens")
    found.sort(key=lambda row: len(row[0]))
    ids, human, images, groups = ([*column] for column in zip(*found, strict=True))
    asked = inquiry(form, response.question.lang, form_of(form).material(response, None))
    return HeldOut(ids, human, refused, images, groups, ends=asked.keys()[-1:] == (RATING,))


def distributions(
    model: Any,
    ids: list[list[int]],
    tokens: RatingTokens | None,
    size: int,
    pad: int,
    images: list[list[str]] | None = None,
    seeing: SeeingTokenizer | None = None,
    ends: bool = False,
) -> NDArray[np.float64]:
    """The judge's probabilities [rows × 10], computed by all processes together, `size` rows at a time.

    `model` is the bare causal model; under ZeRO-3 its parts gather their weights as they are called. `seeing` makes the
    rows' `images` ready for a model that is shown them. `ends` is that of HeldOut.
    """
    shown = images if images is not None and seeing is not None else [[]] * len(ids)
    takes = [[seeing.image_tokens(name) for name in names] if seeing else [] for names in shown]
    columns = zip(ids, shown, takes, strict=True)
    rows: Rows = [{"input_ids": one, "images": names, "image_tokens": each} for one, names, each in columns]

    def likely(some: Rows) -> torch.Tensor:
        return _log_distributions(model, some, tokens, pad, seeing, ends).exp()

    return _by_all_processes(model, rows, size, seeing.image_token_id if seeing is not None else -1, likely)


def last_hidden(model: Any, ids: list[list[int]], size: int, pad: int) -> NDArray[np.float64]:
    """What the model makes [rows × width] of each row's last token, computed as in `distributions`."""
    rows: Rows = [{"input_ids": one, "images": [], "image_tokens": []} for one in ids]
    return _by_all_processes(model, rows, size, -1, lambda some: _ends(model, some, pad, None)[0])


def tie_band(model: Any, rows: datasets.Dataset, tokenizer: Any) -> float:
    """The width by `fitted_band` for 300 of the pairs `rows`, as the model scores their answers now; it is said."""
    seeing = tokenizer if isinstance(tokenizer, SeeingTokenizer) else None
    drawn = rows.select(np.linspace(0, len(rows) - 1, min(len(rows), 300)).astype(int).tolist())
    both = [{**row, "input_ids": row[ids]} for row in drawn for ids in ("input_ids", "other_ids")]
    image_token = seeing.image_token_id if seeing is not None else -1

    def scored(some: list[dict[str, Any]]) -> torch.Tensor:
        return model.score(_ends(model, some, tokenizer.pad_token_id, seeing)[0]).float()

    scores = _by_all_processes(model, both, 16, image_token, scored)[:, 0]
    band = fitted_band(scores[::2] - scores[1::2], np.array(drawn["people"])[:, 0])
    if _place()[0] == 0:
        print(f"ties: scores at most {band:.3f} apart, fitted on {len(drawn)} pairs", flush=True)
    return band


def fitted_band(difference: NDArray[np.float64], ahead: NDArray[np.float64]) -> float:
    """The width up to which a `difference` [n] of two answers' scores is called a tie: that by which most pairs get
    people's verdict (`ahead` [n]: above 0 the first is better, 0 a tie); the smallest of several, 0 for none."""
    apart, right = np.abs(difference), np.sign(difference) == np.sign(ahead)
    order = np.argsort(apart, kind="stable")
    gained = np.cumsum(np.where(ahead == 0, 1, -1 * right)[order])
    best = int(np.argmax([0, *gained]))
    return float(apart[order[best - 1]]) if best else 0.0


def _by_all_processes(
    model: Any, rows: Rows, size: int, image_token: int, of: Callable[[Rows], torch.Tensor]
) -> NDArray[np.float64]:
    """A vector for each row; rows that begin alike are in one batch."""
    rank, world = _place()
    batches = -(-len(rows) // (size * world))
    apart = told_apart(rows, image_token)
    alike = sorted(range(len(rows)), key=lambda row: apart[row])
    found: dict[int, NDArray[np.float64]] = {}
    training = model.training
    model.eval()
    for batch in range(batches):
        # Every process makes as many calls as the others, repeating the last row where there are no more.
        places = [alike[min((batch * world + rank) * size + i, len(rows) - 1)] for i in range(size)]
        with torch.no_grad():
            made = of([rows[place] for place in places])
        found |= dict(zip(places, made.double().cpu().numpy(), strict=True))
    model.train(training)
    return _gathered(found, len(rows))


def _log_distributions(
    model: Any, rows: Rows, tokens: RatingTokens | None, pad: int, seeing: SeeingTokenizer | None, ends: bool
) -> torch.Tensor:
    last, before = _ends(model, rows, pad, seeing)
    if tokens is None:
        return torch.log_softmax(model.score(last).float(), dim=-1)
    if tokens.zero is None:
        return log_distribution(tokens, model.lm_head(last), None)
    ending = torch.full((len(rows),), ends, device=last.device)
    return log_distribution(tokens, model.lm_head(before), model.lm_head(last), ending)


def _ends(model: Any, rows: Rows, pad: int, seeing: SeeingTokenizer | None) -> tuple[torch.Tensor, torch.Tensor]:
    """What the model makes [rows × width] of each row's last token and of the one before; what rows begin with alike is
    computed once where its attention can."""
    count = len(rows)
    if seeing is not None and not any(row["images"] for row in rows):
        rows = [*rows, seeing.blank_row()]  # all processes must call what looks
    device = next(model.parameters()).device
    if (seeing is None or not seeing.types) and attention.install(model):
        batch, positions, shown = _packed(rows, seeing)
    else:
        batch, positions, shown = _padded(rows, pad, seeing)
    if seeing is not None:
        batch |= seeing.pixels(shown)
    inputs = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
    hidden = model.model(**inputs, use_cache=False).last_hidden_state.flatten(0, 1)
    return hidden[positions[:count]], hidden[positions[:count] - 1]


def _packed(rows: Rows, seeing: SeeingTokenizer | None) -> tuple[dict[str, Any], torch.Tensor, list[str]]:
    """What the model is given, where each row's last token stands in it, and the images in their order."""
    ids, image_token = [row["input_ids"] for row in rows], seeing.image_token_id if seeing is not None else -1
    nodes = prefix_tree(told_apart(rows, image_token), [len(each) - 2 for each in ids])
    ends = torch.tensor([node.end - node.start for node in nodes]).cumsum(0)
    last = {node.row: int(end) - 1 for node, end in zip(nodes, ends, strict=True) if node.leaf}
    positions = torch.tensor([last[row] for row in range(len(rows))])
    return sequence(nodes, ids), positions, images_of(nodes, rows, image_token)


def _padded(rows: Rows, pad: int, seeing: SeeingTokenizer | None) -> tuple[dict[str, Any], torch.Tensor, list[str]]:
    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    longest = int(lengths.max())
    ids = torch.tensor([row["input_ids"] + [pad] * (longest - len(row["input_ids"])) for row in rows])
    batch = {"input_ids": ids, "attention_mask": (torch.arange(longest) < lengths[:, None]).long()}
    batch |= seeing.types_of(ids) if seeing is not None else {}
    return batch, torch.arange(len(rows)) * longest + lengths - 1, [name for row in rows for name in row["images"]]


def _place() -> tuple[int, int]:
    if not torch.distributed.is_initialized():
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def _gathered(found: dict[int, NDArray[np.float64]], count: int) -> NDArray[np.float64]:
    parts: list[dict[int, NDArray[np.float64]]] = [found]
    if torch.distributed.is_initialized():
        parts = [{} for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather_object(parts, found)
    whole = {place: shares for part in parts for place, shares in part.items()}
    return np.array([whole[place] for place in range(count)])


def scored(shares: NDArray[np.float64], kind: str) -> list[float]:
    """The scores on 1..10 of probabilities [rows × 10]."""
    return [distribution.score(list(each), kind) for each in shares]


def figures(scores: list[float], human: list[float]) -> dict[str, float]:
    """Every metric of agreement by name, and the number of rows `n`; an undefined metric is left out."""
    found = agreement(human, scores)
    known = {name: one.value for name, one in found.estimates.items() if one.value is not None}
    return {"n": float(len(human)), **known}


def require_foreign(held: HeldOut, trained: set[str], path: str) -> None:
    """Raises UsageError where groups of foreign rows are `trained` on, or too few to decide by."""
    groups = set(held.groups)
    if groups & trained or len(groups) < FEWEST_TO_DECIDE:
        there = f"{len(groups)} groups, of which {len(groups & trained)} are trained on"
        raise UsageError(f"foreign: {path}: {there}; at least {FEWEST_TO_DECIDE} are needed, and none of --train's")


def beside_base(held: HeldOut, base: list[float], scores: list[float]) -> dict[str, Any]:
    """A judge's scores of held-out rows beside its base's. By metric `base`, `judge` and their `difference`: the value
    and the ends of its 95 % interval (whole groups are resampled, the same for both); `worse` names the metrics in
    which the judge is worse with the whole interval of the difference."""
    draws, worse = Bootstrap(held.groups), []
    judge, before = resampled(np.array(held.human), [np.array(scores), np.array(base)], draws)
    table: dict[str, dict[str, list[float]]] = {}
    for name, metric in METRICS.items():
        values = {"base": before[name], "judge": judge[name], "difference": judge[name] - before[name]}
        found = {side: draws.estimate(each, len(scores)) for side, each in values.items()}
        known = {side: one for side, one in found.items() if one.value is not None}
        table[name] = {side: [one.value or 0.0, *(one.interval or ())] for side, one in known.items()}
        low, high = found["difference"].interval or (0.0, 0.0)
        if low > 0.0 if metric.lower_is_better else high < 0.0:
            worse.append(name)
    return {"n": len(scores), "groups": draws.groups, "metrics": table, "worse": worse}
