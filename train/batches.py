"""Rows of token ids (rows.py) as batches of tensors, and how much each of their tokens counts in the loss."""

import math
from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import pyarrow.compute
import torch
from msgspec import Struct
from objective import RatingTokens
from packing import LEAST, Node, prefix_tree, sequence
from torch.nn import functional
from vision import BLANK, SeeingTokenizer, images_of, told_apart

from critic.backends.identity import HEADS
from critic.judging.targets import IGNORED
from critic.records import RATINGS

if TYPE_CHECKING:
    from recipe import Recipe


class Weights(Struct, frozen=True):
    """How much a token counts in the loss: `by_rating[k]` for rows with rating k (0: none), times `value` where the
    verdict's value is spelt, times the row's own weight. They average 1 over all learned tokens, so that the loss stays
    one per token. Of pairs, scores are to differ by `margin` times what people find an answer ahead above `least`."""

    value: float
    by_rating: list[float]
    margin: float = 0.0
    least: float = 1.0


def weights(recipe: "Recipe", rows: datasets.Dataset) -> Weights:
    columns = rows.select_columns(["rating", "length", "source", "value", "weight"]).with_format("arrow")[:]
    rating = columns["rating"].to_numpy().astype(np.intp)
    counts = columns["weight"].to_numpy().astype(np.float64)
    frequency = np.bincount(rating, counts, minlength=len(RATINGS) + 1) / counts.sum()
    raw = np.where(frequency > 0, np.maximum(frequency, 1e-12) ** -recipe.balance, 0.0)
    if (rating > 0).any():
        raw /= np.average(raw[rating[rating > 0]], weights=counts[rating > 0])
    raw[0] = 1.0
    spelling = pyarrow.compute.list_value_length(columns["value"]).to_numpy()
    learned = columns["length"].to_numpy() - columns["source"].to_numpy()
    compared = rows["people"] if recipe.objective == "pairwise" else []
    least = min((abs(ahead) for (ahead,) in compared if ahead), default=1.0)
    if recipe.objective in HEADS:
        spelling, learned = np.zeros_like(spelling), np.ones_like(learned)
    total = (counts * raw[rating] * (learned + (recipe.rating_weight - 1.0) * spelling)).sum()
    by_rating = [float(share) for share in raw * learned.sum() / total]
    return Weights(recipe.rating_weight, by_rating, recipe.margin, least)


class Batches:
    """Rows to tensors: padded on the right to the longest, or packed into one sequence without padding, which with
    `share` has what rows begin with alike once (packing.py).

    With `raft` tokens rows are packed in any case, and each that is rated gets a 1 beside it, at the position of its
    rating, that sees what the rating sees; nothing sees it. With `head` they are packed too, the prompts alone, whose
    last token is what is learned from, both of a pair. With a tokenizer that sees, the pixels of images come along; of
    `several` processes one whose rows have none is given a white one.
    """

    def __init__(
        self,
        pad: int,
        weighing: Weights,
        *,
        packing: bool = False,
        raft: RatingTokens | None = None,
        head: bool = False,
        share: bool = True,
        seeing: SeeingTokenizer | None = None,
        several: bool = False,
    ) -> None:
        self.seeing, self.several = seeing, several
        self.image_token = seeing.image_token_id if seeing is not None else -1
        self.pad, self.weighing, self.raft, self.head, self.share = pad, weighing, raft, head, share
        # A head's rows as well, but where the family tells images' tokens from others.
        self.packing = packing or raft is not None or (head and not (seeing and seeing.types))

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        if self.seeing is not None and self.several and not any(row["images"] for row in rows):
            rows = [*rows, _blank_row(self.seeing)]
        if self.head:
            rows = [prompt for row in rows for prompt in _prompts_alone(row)]
        return self._packed(rows) if self.packing else self._padded(rows)

    def _pixels(self, names: list[str]) -> dict[str, torch.Tensor]:
        return self.seeing.pixels(names) if self.seeing is not None and names else {}

    def _row_weight(self, row: dict[str, Any]) -> float:
        return float(self.weighing.by_rating[row["rating"]] * row["weight"])

    def _row_weights(self, row: dict[str, Any]) -> list[float]:
        of_row = self._row_weight(row)
        weights = [of_row] * row["length"]
        for position in row["value"]:
            weights[position] = of_row * self.weighing.value
        return weights

    @staticmethod
    def _labels(row: dict[str, Any]) -> list[int]:
        return [IGNORED] * row["source"] + list(row["input_ids"][row["source"] :])

    def _padded(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        longest = max(row["length"] for row in rows)

        def padded(values: list[list[Any]], fill: float) -> torch.Tensor:
            return torch.tensor([row + [fill] * (longest - len(row)) for row in values])

        lengths = torch.tensor([row["length"] for row in rows])
        ids = padded([list(row["input_ids"]) for row in rows], self.pad)
        labels = padded([self._labels(row) for row in rows], IGNORED)
        return {
            "input_ids": ids,
            "attention_mask": (torch.arange(longest) < lengths[:, None]).long(),
            "labels": labels,
            "learned": learned_places(labels),
            "weights": padded([self._row_weights(row) for row in rows], 0.0),
            **(self._of_head(rows, (torch.arange(len(rows)) * longest + lengths - 1).tolist()) if self.head else {}),
            **(self.seeing.types_of(ids) if self.seeing is not None else {}),
            **self._pixels([name for row in rows for name in row.get("images", [])]),
        }

    def _packed(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        # The last token of a prompt stays with its row: the first of the verdict is learned from it.
        most = [row["source"] - 1 for row in rows]
        nodes = prefix_tree(told_apart(rows, self.image_token), most, LEAST if self.share else math.inf)
        extra: dict[str, Any] = {}
        if self.head:
            behind = accumulate(node.end - node.start for node in nodes)
            last = {node.row: end - 1 for node, end in zip(nodes, behind, strict=True) if node.leaf}
            extra = self._of_head(rows, [last[row] for row in range(len(rows))])
        if self.raft:
            nodes, rows, extra = self._with_ratings(nodes, rows, self.raft)

        def flat(values: Callable[[dict[str, Any]], list[Any]]) -> torch.Tensor:
            return torch.tensor([[value for node in nodes for value in values(rows[node.row])[node.start : node.end]]])

        labels = flat(self._labels)
        return {
            **sequence(nodes, [row["input_ids"] for row in rows]),
            "labels": labels,
            "learned": learned_places(labels),
            "weights": flat(self._row_weights),
            **extra,
            **self._pixels(images_of(nodes, rows, self.image_token)),
        }

    def _of_head(self, rows: list[dict[str, Any]], ends: list[int]) -> dict[str, torch.Tensor]:
        """Where the last token of each prompt stands, of a pair those of both, and what people said; of rows from which
        something is learned."""
        known = [index for index, row in enumerate(rows) if row["people"]]
        compares = bool(rows[known[0]]["other_ids"])
        first = [rows[index] for index in known[:: 1 + compares]]
        last, people = torch.tensor([ends[index] for index in known]), torch.tensor([row["people"] for row in first])
        weights = torch.tensor([self._row_weight(row) for row in first])
        if not compares:
            return {"ends": last, "people": people, "row_weights": weights}
        way = (ahead := people[:, 0]).sign()
        margins = self.weighing.margin * way * (ahead.abs() - self.weighing.least).clamp(min=0)
        return {"ends": last.reshape(-1, 2), "people": (1 + way) / 2, "margins": margins, "row_weights": weights}

    def _with_ratings(
        self, nodes: list[Node], rows: list[dict[str, Any]], raft: RatingTokens
    ) -> tuple[list[Node], list[dict[str, Any]], dict[str, Any]]:
        """Leaves cut before the rating, and the 1 beside what follows, as a row of its own."""
        rows, tree, moved = list(rows), list[Node](), list[int]()
        rated: list[tuple[dict[str, Any], int]] = []
        for node in nodes:
            row, parent = rows[node.row], moved[node.parent] if node.parent >= 0 else -1
            if node.leaf and row["rating"]:
                position, trunk = row["value"][0], len(tree)
                tree.append(node._replace(end=position, parent=parent))
                tree.append(node._replace(start=position, parent=trunk))
                tree.append(Node(len(rows), position, position + 1, trunk, leaf=True))
                ids = [*row["input_ids"][:position], raft.first[0]]
                cut = {"input_ids": ids, "length": position + 1, "source": position + 1, "value": []}
                rows.append({**row, **cut, "images": [], "image_tokens": []})
                rated.append((row, trunk))
            else:
                tree.append(node._replace(parent=parent))
            moved.append(len(tree) - 1)
        last = list(accumulate((node.end - node.start for node in tree), initial=-1))[1:]
        people = torch.tensor([row["people"] for row, _ in rated]).reshape(-1, len(RATINGS))
        return (
            tree,
            rows,
            {
                "people": people,
                "rated": torch.tensor([last[trunk] for _, trunk in rated], dtype=torch.long),
                "branch": torch.tensor([last[trunk + 2] for _, trunk in rated], dtype=torch.long),
                "last": torch.tensor(
                    [row["input_ids"][row["value"][-1] + 1] in raft.ending for row, _ in rated]
                ).bool(),
                "row_weights": torch.tensor([self._row_weight(row) for row, _ in rated]),
            },
        )


def _prompts_alone(row: dict[str, Any]) -> list[dict[str, Any]]:
    """A row up to its verdict, the last token in the verdict's place; behind that of a pair the other's, unlearned."""
    if not row["people"]:  # a white image
        return [row]
    size, second = row["source"], row["other_ids"]
    alone = {**row, "input_ids": row["input_ids"][:size], "length": size, "source": size - 1, "value": []}
    if not second:
        return [alone]
    return [alone, {**alone, "input_ids": second, "length": len(second), "source": len(second)}]


def learned_places(labels: torch.Tensor) -> torch.Tensor:
    """Where in [rows x tokens] (rows one behind the other) what comes next is learned. Known on the CPU, before a batch
    goes to the GPU: asked there, how many they are would be waited for."""
    return functional.pad(labels[:, 1:] != IGNORED, (0, 1)).flatten().nonzero()[:, 0]


def prompt_row(ids: list[int], images: list[str], image_tokens: list[int]) -> dict[str, Any]:
    """A row that is a prompt alone, for what judges it; nobody's rating is known."""
    row = {"input_ids": ids, "source": len(ids), "length": len(ids), "images": images, "image_tokens": image_tokens}
    return {**row, "value": [], "rating": 0, "people": [0.0], "other_ids": [], "weight": 0.0}


def _blank_row(seeing: SeeingTokenizer) -> dict[str, Any]:
    """A row that is a white image and nothing else, and learns nothing."""
    ids = seeing.ids(seeing.expansion(BLANK))
    return {**prompt_row(ids, [BLANK], [ids.count(seeing.image_token_id)]), "people": []}
