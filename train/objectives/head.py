"""Scoring head for ratings: ten classes on a prompt's last token, and ten more on the mean over its answer."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from batches import Row, Tensors, Weights, score_ratings
from objective import ScoringHead, compute_rank_error, name_classes, number_groups
from torch.nn import functional

from critic.errors import UsageError
from critic.records import RATINGS


class Head(ScoringHead):
    """Cross-entropy of the rating against the distribution of human scores, plus the ranking error (`rank`)."""

    classes = tuple(map(str, RATINGS))
    keys: ClassVar = {"read_answer": (bool | None, None)}
    learned = "ratings on 1..10"
    takes_probe = ranks = True
    inputs = ScoringHead.inputs | {"groups"}

    def check(self, forms: Sequence[str]) -> None:
        super().check(forms)
        if self.own("read_answer") and self.recipe.images == "show":
            raise UsageError("read_answer is for a head that sees no images; set images: blind")

    def head_config(self) -> dict[str, Any]:
        """Return the configuration for ten classes, or for twenty if the recipe has `read_answer`."""
        again = [f"answer: {rating}" for rating in RATINGS] if self.own("read_answer") else []
        return name_classes([*self.classes, *again])

    def tensors(self, rows: list[Row], places: list[list[int]], weighing: Weights) -> Tensors:
        groups = number_groups(self.recipe.rank, [row for row in rows if row["people"]])
        return super().tensors(rows, places, weighing) | groups

    def loss(self, model: Any, hidden: torch.Tensor, batch: Tensors) -> tuple[torch.Tensor, int]:
        scores = score_ratings(model, hidden.flatten(0, 1), batch)
        # People may disagree on a row, so the target is a distribution and not a class.
        shares = functional.log_softmax(scores, dim=-1)
        errors = (self.error(shares, batch["people"]) * batch["row_weights"]).sum()
        return errors + compute_rank_error(self.recipe.rank, shares, batch), len(batch["ends"])

    def error(self, log_probabilities: torch.Tensor, people: torch.Tensor) -> torch.Tensor:
        """Return the cross-entropy [rows] of the head's log probabilities against human distributions, both [rows ×
        10].
        """
        return -(people * log_probabilities).sum(-1)


OBJECTIVE = Head
