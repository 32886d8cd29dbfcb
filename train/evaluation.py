"""Judging held-out rows with the weights as they are in training: the agreement with people beside the loss."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attention
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
from eval_agreement import agreement


class HeldOut(Struct, frozen=True):
    """Rows to judge: token ids up to the rating, and a 1 behind it where 10 is two tokens; people's score, 1..10; the
    names of the images that each row shows. `ends`: the rating is the last of a verdict."""

    ids: list[list[int]]
    human: list[float]
    refused: list[str]
    images: list[list[str]]
    ends: bool = False


def held_out(
    path: Path, spec: EvaluationSpec, tokenizer: Any, tokens: RatingTokens | None, limit: int, form: str = "pointwise"
) -> HeldOut:
    """The first `spec.rows` rows of a file, rendered as in judging, shortest first; up to the prompt's end for a
    scoring head, which has no rating's `tokens`. Raises UsageError if none fits."""
    found: list[tuple[list[int], float, list[str]]] = []
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
            found.append((source_ids(tokenizer, made.messages) + behind, response.human.score, made.images))
    if not found:
        raise UsageError(f"{path}: no row to evaluate fits into {limit} source tokens")
    found.sort(key=lambda row: len(row[0]))
    ids, human, images = map(list, zip(*found, strict=True))
    asked = inquiry(form, response.question.lang, form_of(form).material(response, None))
    return HeldOut(ids, human, refused, images, ends=asked.keys()[-1:] == (RATING,))


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
    rows: list[dict[str, Any]] = [
        {
            "input_ids": one,
            "images": names,
            "image_tokens": [seeing.image_tokens(name) for name in names] if seeing else [],
        }
        for one, names in zip(ids, shown, strict=True)
    ]

    def likely(some: list[dict[str, Any]]) -> torch.Tensor:
        return _log_distributions(model, some, tokens, pad, seeing, ends).exp()

    return _by_all_processes(model, rows, size, seeing.image_token_id if seeing is not None else -1, likely)


def last_hidden(model: Any, ids: list[list[int]], size: int, pad: int) -> NDArray[np.float64]:
    """What the model makes [rows × width] of each row's last token, computed as in `distributions`."""
    rows: list[dict[str, Any]] = [{"input_ids": one, "images": [], "image_tokens": []} for one in ids]
    return _by_all_processes(model, rows, size, -1, lambda some: _ends(model, some, pad, None)[0])


def _by_all_processes(
    model: Any,
    rows: list[dict[str, Any]],
    size: int,
    image_token: int,
    of: Callable[[list[dict[str, Any]]], torch.Tensor],
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
    model: Any,
    rows: list[dict[str, Any]],
    tokens: RatingTokens | None,
    pad: int,
    seeing: SeeingTokenizer | None,
    ends: bool,
) -> torch.Tensor:
    last, before = _ends(model, rows, pad, seeing)
    if tokens is None:
        return torch.log_softmax(model.score(last).float(), dim=-1)
    if tokens.zero is None:
        return log_distribution(tokens, model.lm_head(last), None)
    ending = torch.full((len(rows),), ends, device=last.device)
    return log_distribution(tokens, model.lm_head(before), model.lm_head(last), ending)


def _ends(
    model: Any, rows: list[dict[str, Any]], pad: int, seeing: SeeingTokenizer | None
) -> tuple[torch.Tensor, torch.Tensor]:
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


def _packed(
    rows: list[dict[str, Any]], seeing: SeeingTokenizer | None
) -> tuple[dict[str, Any], torch.Tensor, list[str]]:
    """What the model is given, where each row's last token stands in it, and the images in their order."""
    ids, image_token = [row["input_ids"] for row in rows], seeing.image_token_id if seeing is not None else -1
    nodes = prefix_tree(told_apart(rows, image_token), [len(each) - 2 for each in ids])
    ends = torch.tensor([node.end - node.start for node in nodes]).cumsum(0)
    last = {node.row: int(end) - 1 for node, end in zip(nodes, ends, strict=True) if node.leaf}
    positions = torch.tensor([last[row] for row in range(len(rows))])
    return sequence(nodes, ids), positions, images_of(nodes, rows, image_token)


def _padded(
    rows: list[dict[str, Any]], pad: int, seeing: SeeingTokenizer | None
) -> tuple[dict[str, Any], torch.Tensor, list[str]]:
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


def figures(shares: NDArray[np.float64], human: list[float], kind: str) -> dict[str, float]:
    """Every metric of agreement by name, and the number of rows `n`; an undefined metric is left out."""
    scores = [distribution.score(list(each), kind) for each in shares]
    found = agreement(human, scores)
    known = {name: one.value for name, one in found.estimates.items() if one.value is not None}
    return {"n": float(len(human)), **known}
