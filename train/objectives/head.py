"""Scoring head for ratings: ten classes on a prompt's last token, and ten more on the mean over its answer.

With `criteria` it has a class for each score by each criterion instead of the ten.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from batches import OF_ANSWER, Row, Tensors, Weights, score_ratings
from objective import ScoringHead, compute_rank_error, name_classes, number_groups

from critic.errors import UsageError
from critic.judging.distribution import count_scores
from critic.records import RATINGS, Scale

MOST_SCORES = 99
"""The widest scale of a criterion, in points: each score is a class."""


class Head(ScoringHead):
    """Cross-entropy of the rating against the distribution of human scores, plus the ranking error (`rank`)."""

    classes = tuple(map(str, RATINGS))
    keys: ClassVar = {"read_answer": (bool | None, None), "criteria": (dict[str, Scale] | None, None)}
    learned = "ratings on 1..10"
    takes_probe = ranks = True
    inputs = ScoringHead.inputs | {"groups"}

    def check(self, forms: Sequence[str]) -> None:
        super().check(forms)
        if self.own("read_answer") and self.recipe.images == "show":
            raise UsageError("read_answer is for a head that sees no images; set images: blind")
        if self.criteria and self.recipe.rank:
            raise UsageError("rank compares ratings, and a head with criteria learns their scores; leave one out")
        for name, (low, high) in self.criteria.items():
            if not low < high <= low + MOST_SCORES:
                raise UsageError(f"criteria: {name}: {low}..{high} is no scale of 2 to {MOST_SCORES + 1} whole scores")

    @property
    def criteria(self) -> Mapping[str, Scale]:
        # In one order, that of the classes, however the recipe lists them.
        return dict(sorted((self.own("criteria") or {}).items()))

    def head_config(self) -> dict[str, Any]:
        """Return the configuration for ten classes, or those of `criteria`; twice as many with `read_answer`."""
        scores = [f"{name} {score}" for name, (low, high) in self.criteria.items() for score in range(low, high + 1)]
        classes = scores or [*self.classes]
        again = [f"{OF_ANSWER}{name}" for name in classes] if self.own("read_answer") else []
        return name_classes([*classes, *again])

    def tensors(self, rows: list[Row], places: list[list[int]], weighing: Weights) -> Tensors:
        groups = number_groups(self.recipe.rank, [row for row in rows if row["people"]])
        return super().tensors(rows, places, weighing) | groups

    def loss(self, model: Any, hidden: torch.Tensor, batch: Tensors) -> tuple[torch.Tensor, int]:
        scores = score_ratings(model, hidden.flatten(0, 1), batch)
        # People may disagree on a row, so the target is a distribution and not a class.
        shares = torch.cat([part.log_softmax(-1) for part in scores.split(count_scores(self.criteria), -1)], -1)
        errors = (self.error(shares, batch["people"]) * batch["row_weights"]).sum()
        return errors + compute_rank_error(self.recipe.rank, shares, batch), len(batch["ends"])

    def error(self, log_probabilities: torch.Tensor, people: torch.Tensor) -> torch.Tensor:
        """Return the cross-entropy [rows] of the head's log probabilities against human distributions, both [rows ×
        classes].
        """
        return -(people * log_probabilities).sum(-1)


OBJECTIVE = Head
