"""Collate rows of token ids (rows.py) into batches of tensors, with the weight of each token in the loss."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, ClassVar

import torch
from msgspec import Struct
from packing import LEAST, add_branches, build_prefix_tree, build_sequence, locate_tokens
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from vision import BLANK, SeeingTokenizer, list_images, number_images

from critic.judging.targets import IGNORED

Row = dict[str, Any]
"""A tokenized example, with the columns of rows.Data."""

Tensors = dict[str, torch.Tensor]
"""Tensors of a batch by name."""


OF_ANSWER = "answer: "
"""Beginning of the names of the classes that read the mean over the answer."""


class Weights(Struct, frozen=True):
    """Weights of the learned tokens in the loss.

    - `by_rating[k]`: weight of a token in rows with rating k (0: no rating, as in prompts to judge), multiplied by the
      row's own weight.
    - `value`: additional factor for tokens that spell the value of the verdict.
    - `margin`, `least`: the scores of a pair should differ by `margin` times (strength of the human preference -
      `least`).

    The weights average 1 over all learned tokens, so the loss is still a mean per token.
    """

    value: float = 1.0
    by_rating: Sequence[float] = (1.0,)
    margin: float = 0.0
    least: float = 1.0

    def of_row(self, row: Row) -> float:
        """Return the weight of each token of a row that does not spell the verdict's value."""
        return float(self.by_rating[row["rating"]] * row["weight"])


class Collation:
    """Defines how rows become a batch.

    This base class keeps rows as they are and learns the tokens after the prompt.
    """

    packs: ClassVar[bool] = False
    """True to pack rows even if the recipe does not ask for it, unless the base cannot pack."""

    inputs: ClassVar[frozenset[str]] = frozenset({"labels", "learned", "weights"})
    """Names of the batch's tensors that go to the loss. All others go to the model."""

    def parts(self, row: Row) -> list[Row]:
        """Return the rows of a batch that are made from `row`, such as one per prompt."""
        return [row]

    def branch(self, row: Row) -> Row | None:
        """Return the beginning of `row` with an alternative last token, or None if the loss needs none.

        The loss needs the hidden state of that token too. A packed batch contains only the token in addition, a padded
        batch the whole beginning as a row. In the `rows` of `tensors`, branches follow all other rows; their key
        `branch_of` is the index of the row that they belong to.
        """
        return None

    def tensors(self, rows: list[Row], places: list[list[int]], weighing: Weights) -> Tensors:
        """Return additional tensors for the loss.

        `places[i]` are the indices of row i's tokens among all tokens of the batch.
        """
        return {}


class PromptCollation(Collation):
    """Collates prompts without their verdicts, for scoring heads and for judging. Their last tokens are read."""

    packs = True
    inputs = Collation.inputs | {"people", "ends", "answers", "answer_of", "row_weights"}

    def parts(self, row: Row) -> list[Row]:
        """Return the row without its verdict. The prompt's last token counts as learned in place of the verdict."""
        # A blank row has no verdict.
        if not row["people"]:
            return [row]
        size = row["source"]
        return [{**row, "input_ids": row["input_ids"][:size], "length": size, "source": size - 1, "value": []}]

    def tensors(self, rows: list[Row], places: list[list[int]], weighing: Weights) -> Tensors:
        """Return tensors for the n prompts with human scores. Indices are among all tokens of the batch.

        - `ends` [n]: index of the prompt's last token.
        - `answers` [m]: indices of all tokens from the beginning of a prompt's answer to the prompt's end.
        - `answer_of` [m]: number 0..n-1 of the prompt that each of these tokens belongs to.
        - `people` [n × classes]: distribution of the human scores. `row_weights` [n]: weights in the loss.
        """
        known = [index for index, row in enumerate(rows) if row["people"]]
        answers = [places[index][rows[index]["answer"] :] for index in known]
        lengths = torch.tensor([*map(len, answers)], dtype=torch.long)
        return {
            "ends": torch.tensor([places[index][-1] for index in known]),
            "answers": torch.tensor([*chain.from_iterable(answers)]),
            "answer_of": torch.arange(len(known)).repeat_interleave(lengths),
            "people": torch.tensor([rows[index]["people"] for index in known]),
            "row_weights": torch.tensor([weighing.of_row(rows[index]) for index in known]),
        }


def average_answer(states: torch.Tensor, batch: Tensors) -> torch.Tensor:
    """Return the mean [n × width] of each prompt's hidden states from the beginning of its answer to its end.

    `states` are the hidden states [tokens × width] of all tokens in `batch`.
    """
    of = batch["answer_of"]
    sums = states.new_zeros(len(batch["ends"]), states.shape[1], dtype=torch.float32)
    return (sums.index_add(0, of, states[batch["answers"]].float()) / of.bincount()[:, None]).to(states.dtype)


def count_last_classes(model: Any) -> int:
    """Return the number of a scoring head's classes that read the last token. The others read the answer."""
    return sum(not name.startswith(OF_ANSWER) for name in model.config.id2label.values())


def score_ratings(model: Any, states: torch.Tensor, batch: Tensors) -> torch.Tensor:
    """Return a scoring head's logits [n × classes] of the ratings. `states` are the hidden states [tokens × width].

    A head that reads the answer has two outputs for each class, one for the last token and one for the mean over the
    answer. They are added.
    """
    scores = model.score(states[batch["ends"]]).float()
    half = count_last_classes(model)
    if half == model.config.num_labels:
        return scores
    return scores[:, :half] + model.score(average_answer(states, batch)).float()[:, half:]


class Batches:
    """Collates rows into a batch, padded on the right or packed into one sequence without padding.

    - `pad`: id of the padding token. `weighing`: weights of the learned tokens.
    - `collation`: defines which parts of a row the model gets and which tokens are learned.
    - `packing`: True to pack; default: as the collation wants it.
    - `share`: True to store common prefixes of packed rows only once (packing.py).
    - `seeing`: the tokenizer of a model that sees images, whose batches also hold pixels; None for other models.
    - `several`: True if several processes train. A process whose rows have no image then gets a white one, because all
      processes must run the vision part.
    """

    def __init__(
        self,
        pad: int,
        weighing: Weights = Weights(),
        collation: Collation = Collation(),
        *,
        packing: bool | None = None,
        share: bool = True,
        seeing: SeeingTokenizer | None = None,
        several: bool = False,
    ) -> None:
        self.pad, self.weighing, self.collation, self.share = pad, weighing, collation, share
        self.seeing, self.several = seeing, several
        self.image_token = seeing.image_token_id if seeing is not None else -1
        self.packing = collation.packs if packing is None else packing

    def __call__(self, rows: list[Row]) -> dict[str, Any]:
        # All processes must call the vision part, or those that do would wait for ever.
        if self.seeing is not None and self.several and not any(row["images"] for row in rows):
            rows = [*rows, _build_blank_row(self.seeing)]
        rows = [*chain.from_iterable(map(self.collation.parts, rows))]
        return self._packed(rows) if self.packing else self._padded(rows)

    def _pixels(self, names: list[str]) -> Tensors:
        """Return the pixel tensors of the named images, or {} for a batch without images."""
        return self.seeing.pixels(names) if self.seeing is not None and names else {}

    def _token_weights(self, row: Row) -> list[float]:
        """Return the weight of each token of a row."""
        row_weight = self.weighing.of_row(row)
        weights = [row_weight] * row["length"]
        for position in row["value"]:
            weights[position] = row_weight * self.weighing.value
        return weights

    def _branches(self, rows: list[Row], order: Iterable[int]) -> list[Row]:
        """Return the branches of the rows with the indices `order`. Each has the index of its row as `branch_of`."""
        branches = ((index, self.collation.branch(rows[index])) for index in order)
        return [{**branch, "branch_of": index} for index, branch in branches if branch is not None]

    @staticmethod
    def _labels(row: Row) -> list[int]:
        """Return the token ids of a row with those of the prompt replaced by IGNORED."""
        return [IGNORED] * row["source"] + list(row["input_ids"][row["source"] :])

    def _padded(self, rows: list[Row]) -> dict[str, Any]:
        """Return a batch of [rows × longest row] tensors. Branches are rows of their own, behind the others."""

        def padded(values: Callable[[Row], list[Any]], fill: float) -> torch.Tensor:
            return pad_sequence([torch.tensor(values(row)) for row in rows], batch_first=True, padding_value=fill)

        rows = [*rows, *self._branches(rows, range(len(rows)))]
        ids = padded(itemgetter("input_ids"), self.pad)
        labels = padded(self._labels, IGNORED)
        longest = ids.shape[1]
        lengths = torch.tensor([row["length"] for row in rows])
        places = [[*range(number * longest, number * longest + row["length"])] for number, row in enumerate(rows)]
        return {
            "input_ids": ids,
            "attention_mask": (torch.arange(longest) < lengths[:, None]).long(),
            "labels": labels,
            "learned": find_learned_places(labels),
            "weights": padded(self._token_weights, 0.0),
            **self.collation.tensors(rows, places, self.weighing),
            **(self.seeing.types_of(ids) if self.seeing is not None else {}),
            **self._pixels([*chain.from_iterable(row.get("images", []) for row in rows)]),
        }

    def _packed(self, rows: list[Row]) -> dict[str, Any]:
        """Return a batch of one sequence [1 × tokens], in which common prefixes are stored once if `share` is True."""
        # The last token of a prompt stays with its row: the first of the verdict is learned from it.
        most = [row["source"] - 1 for row in rows]
        nodes = build_prefix_tree(number_images(rows, self.image_token), most, LEAST if self.share else math.inf)
        branches = self._branches(rows, [node.row for node in nodes if node.leaf])
        beside = {row["branch_of"]: (number, row["length"] - 1) for number, row in enumerate(branches, len(rows))}
        nodes, rows = add_branches(nodes, beside), [*rows, *branches]
        places = locate_tokens(nodes)

        def flat(values: Callable[[Row], list[Any]]) -> torch.Tensor:
            shown = (values(rows[node.row])[node.start : node.end] for node in nodes)
            return torch.tensor([[*chain.from_iterable(shown)]])

        labels = flat(self._labels)
        return {
            **build_sequence(nodes, [row["input_ids"] for row in rows]),
            "labels": labels,
            "learned": find_learned_places(labels),
            "weights": flat(self._token_weights),
            **self.collation.tensors(rows, [places[row] for row in range(len(rows))], self.weighing),
            **self._pixels(list_images(nodes, rows, self.image_token)),
        }


def find_learned_places(labels: torch.Tensor) -> torch.Tensor:
    """Return the positions directly before each learned token, as indices into the flattened [rows × tokens].

    They are computed on the CPU before the batch is copied, because on a GPU their number would require a
    synchronisation.
    """
    return functional.pad(labels[:, 1:] != IGNORED, (0, 1)).flatten().nonzero()[:, 0]


def build_prompt_row(ids: list[int], images: list[str], image_tokens: list[int], answer: int = 0) -> Row:
    """Return a row that consists of a prompt without verdict or human score.

    `images` are names of images, `image_tokens` the number of tokens of each. `answer` is the index of the answer's
    first token.
    """
    row = {"input_ids": ids, "source": len(ids), "length": len(ids), "images": images, "image_tokens": image_tokens}
    return {**row, "answer": answer, "value": [], "rating": 0, "people": [0.0], "other_ids": [], "weight": 0.0}


def _build_blank_row(seeing: SeeingTokenizer) -> Row:
    """Return a row that contains only a white image and from which nothing is learned."""
    ids = seeing.ids(seeing.expansion(BLANK))
    return {**build_prompt_row(ids, [BLANK], [ids.count(seeing.image_token_id)]), "people": []}
