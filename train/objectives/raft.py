"""Regression-aware fine-tuning: cross-entropy of the verdict, plus the error of the rating decoded from it.

Lukasik et al. 2024 and 2025 (RAFT, TRACT): the final rating is a number computed from the distribution over the
ratings, so the error of that number is minimised as well.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from batches import Row, Tensors, Weights
from msgspec import Struct
from objective import RatingTokens, compute_rank_error, log_distribution, number_groups, token_index
from objectives.sft import Sft
from recipe_keys import Weight
from torch.nn import functional

from critic.errors import UsageError
from critic.judging.prompt import load
from critic.records import RATINGS


class RaftSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Loss term for the error of a row's rating distribution against the human scores.

    `weight` is the weight of the term in units of target tokens, `kind` is as in `compute_rating_error`.
    """

    kind: Literal["squared", "rps"] = "rps"
    weight: Weight = 4.0


class Raft(Sft):
    """Verdicts as text, plus the error of each rating distribution against the human scores, and of their ranking.

    Each rated row gets a branch: a 1 as an alternative to its rating. The 1 sees the same tokens as the rating, and no
    token sees the 1. Its logits give the probability that a 0 follows, which would make it a 10.
    """

    packs = ranks = True
    keys: ClassVar = {"raft": (RaftSpec, RaftSpec())}
    inputs = Sft.inputs | {"people", "rated", "branch", "last", "row_weights", "groups"}
    tokens: RatingTokens

    def check(self, forms: Sequence[str]) -> None:
        if not any(load(form, "en").on_ten for form in forms):
            raise UsageError("objective raft needs a form on 1..10 in forms, such as pointwise")

    def branch(self, row: Row) -> Row | None:
        """Return the row up to and including its rating, with a 1 as the rating. Return None for forms that do not
        rate.
        """
        if not row["rating"]:
            return None
        position = row["value"][0]
        ids = [*row["input_ids"][:position], self.tokens.first[0]]
        return {**row, "input_ids": ids, "length": position + 1, "source": position + 1, "value": []}

    def tensors(self, rows: list[Row], places: list[list[int]], weighing: Weights) -> Tensors:
        """Return tensors for the n rated rows.

        - `people` [n × 10]: the distribution of the human scores.
        - `rated` [n]: index of the position whose logits predict the rating. `branch` [n]: index of the 1.
        - `last` [n]: True if the rating is the verdict's last value.
        - `row_weights` [n]: weights in the loss.

        With `rank` also their groups (`number_groups`).
        """
        branches = [index for index, row in enumerate(rows) if "branch_of" in row]
        numbers = [rows[index]["branch_of"] for index in branches]
        rated = [rows[number] for number in numbers]
        before = [places[number][row["value"][0] - 1] for number, row in zip(numbers, rated, strict=True)]
        closing = [row["input_ids"][row["value"][-1] + 1] in self.tokens.ending for row in rated]
        return {
            "people": torch.tensor([row["people"] for row in rated]).reshape(-1, len(RATINGS)),
            "rated": torch.tensor(before, dtype=torch.long),
            "branch": torch.tensor([places[index][-1] for index in branches], dtype=torch.long),
            "last": torch.tensor(closing).bool(),
            "row_weights": torch.tensor([weighing.of_row(row) for row in rated]),
            **number_groups(self.recipe.rank, rated),
        }

    def loss(self, model: Any, hidden: torch.Tensor, batch: Tensors) -> tuple[torch.Tensor, int]:
        """Return the sum of the loss, and the number of learned tokens.

        The loss is Sft's cross-entropy, plus `raft.weight` times the errors of the ratings, plus the ranking error.
        """

        def distribute(head: Any, states: Any, branch: Any, last: Any) -> torch.Tensor:
            at_rating, behind_one = functional.linear(torch.cat([states, branch]), head.weight, head.bias).chunk(2)
            return log_distribution(self.tokens, at_rating, behind_one, last)

        spec: RaftSpec = self.own("raft")
        # The count stays that of the tokens, so that `weight` is in tokens.
        total, count = super().loss(model, hidden, batch)
        states, branch = (hidden.flatten(0, 1)[batch[name]] for name in ("rated", "branch"))
        shares = model.lm_head(states, distribute, branch, batch["last"])
        errors = compute_rating_error(spec.kind, shares, batch["people"]) * batch["row_weights"]
        ranked = compute_rank_error(self.recipe.rank, shares, batch)
        return total + spec.weight * errors.sum() + ranked, count


OBJECTIVE = Raft


def compute_rating_error(kind: str, log_probabilities: torch.Tensor, people: torch.Tensor) -> torch.Tensor:
    """Return the error [rows] of rating distributions against human distributions, both [rows × 10].

    `kind` "squared" is (expected rating - mean human score)² (RAFT). "rps" is the ranked probability score: the sum
    over the ratings of the squared difference of the cumulative distributions. Its expectation is minimal at the true
    distribution, so it preserves median and spread, not only the mean.

    Half for 1 and half for 2, where people say 3:

    >>> shares, people = torch.tensor([[0.5, 0.5] + 8 * [0.0]]), torch.eye(10)[[2]]
    >>> compute_rating_error("squared", shares.log(), people), compute_rating_error("rps", shares.log(), people)
    (tensor([2.2500]), tensor([1.2500]))
    """
    probabilities = log_probabilities.exp()
    if kind == "squared":
        return ((probabilities - people) @ token_index(RATINGS, probabilities.device).to(probabilities.dtype)) ** 2
    return ((probabilities.cumsum(-1) - people.cumsum(-1)) ** 2).sum(-1)
