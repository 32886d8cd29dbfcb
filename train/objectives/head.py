"""Scoring head for ratings: ten classes, the ratings, on a prompt's last token."""

from typing import Any

import torch
from batches import Row, Tensors, Weights
from objective import ScoringHead, compute_rank_error, number_groups
from torch.nn import functional

from critic.records import RATINGS


class Head(ScoringHead):
    """Cross-entropy of the rating against the distribution of human scores, plus the ranking error (`rank`)."""

    classes = tuple(map(str, RATINGS))
    learned = "ratings on 1..10"
    takes_probe = ranks = True
    inputs = ScoringHead.inputs | {"groups"}

    def tensors(self, rows: list[Row], ends: list[int], weighing: Weights) -> Tensors:
        groups = number_groups(self.recipe.rank, [row for row in rows if row["people"]])
        return super().tensors(rows, ends, weighing) | groups

    def loss(self, model: Any, hidden: torch.Tensor, batch: Tensors) -> tuple[torch.Tensor, int]:
        scores = model.score(hidden.flatten(0, 1)[batch["ends"]]).float()
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
