"""Ranking of the answers to one question, which `raft` and `head` can learn in addition to ratings (`rank`)."""

import torch
from batches import Row, Tensors
from objective import token_index
from objectives.pairwise import compute_preference_error
from recipe_keys import RankSpec

from critic.records import RATINGS


def number_groups(spec: RankSpec | None, rows: list[Row]) -> Tensors:
    """Return `groups` [rows], equal for rows that are compared; nothing if `spec` is None.

    They have one group, form and scorer. Scorers have scales of their own, and forms show something else.

    >>> rows = [{"group": group, "form": "pointwise", "scorer": "people"} for group in "abba"]
    >>> number_groups(RankSpec(), rows)
    {'groups': tensor([0, 1, 1, 0])}
    """
    if spec is None:
        return {}
    keys = [(row["group"], row["form"], row["scorer"]) for row in rows]
    return {"groups": torch.tensor([keys.index(key) for key in keys], dtype=torch.long)}


def compute_rank_error(spec: RankSpec | None, log_probabilities: torch.Tensor, batch: Tensors) -> torch.Tensor | float:
    """Return the weighted Bradley-Terry error of expected ratings, summed over the pairs of a batch; 0 without `spec`.

    `log_probabilities` [rows × 10] are those of the ratings. `batch` holds `people`, `row_weights` and `groups` of the
    same rows. A pair's error counts by the points between its human scores, so not at all for a tie. The k (k - 1) / 2
    pairs of k rows in a group weigh as k / 2 rows, so that the ranking counts as ratings do, however many rows meet.

    A step down the error's slope moves the expected ratings apart:

    >>> shares = torch.full((2, 10), 0.1).log().requires_grad_()
    >>> batch = {"people": torch.eye(10)[[6, 2]], "row_weights": torch.ones(2), "groups": torch.zeros(2)}
    >>> error = compute_rank_error(RankSpec(weight=0.5), shares, batch)
    >>> error.backward()
    >>> print(f"{error.item():.3f} = 0.5 * 4 * log(2)")
    1.386 = 0.5 * 4 * log(2)
    >>> (shares - shares.grad).softmax(-1).detach() @ torch.arange(1.0, 11.0) > 5.5
    tensor([ True, False])
    """
    if spec is None:
        return 0.0
    ratings = token_index(RATINGS, log_probabilities.device).to(log_probabilities.dtype)
    # Rounded, so that equal means of several raters are equal.
    human, expected = (batch["people"] @ ratings).round(decimals=3), log_probabilities.exp() @ ratings
    groups, weights, points = batch["groups"], batch["row_weights"], human[:, None] - human
    together = (groups[:, None] == groups).float()
    errors = compute_preference_error(expected[:, None] - expected, (points > 0).float(), spec.margin * points)
    counts = points.abs() * (weights[:, None] * weights).sqrt() / (together.sum(-1) - 1).clamp(min=1)
    # Each pair is there twice.
    return spec.weight * (errors * counts * together).sum() / 2
