"""Scoring head for ratings: ten classes, the ratings, on a prompt's last token."""

from typing import Any

import torch
from batches import Tensors
from objective import ScoringHead
from torch.nn import functional

from critic.records import RATINGS


class Head(ScoringHead):
    """Cross-entropy of the rating against the distribution of human scores."""

    classes = tuple(map(str, RATINGS))
    learned = "ratings on 1..10"
    takes_probe = True

    def loss(self, model: Any, hidden: torch.Tensor, batch: Tensors) -> tuple[torch.Tensor, int]:
        scores = model.score(hidden.flatten(0, 1)[batch["ends"]]).float()
        # People may disagree on a row, so the target is a distribution and not a class.
        errors = self.error(functional.log_softmax(scores, dim=-1), batch["people"])
        return (errors * batch["row_weights"]).sum(), len(batch["ends"])

    def error(self, log_probabilities: torch.Tensor, people: torch.Tensor) -> torch.Tensor:
        """Return the cross-entropy [rows] of the head's log probabilities against human distributions, both [rows ×
        10].
        """
        return -(people * log_probabilities).sum(-1)


OBJECTIVE = Head
