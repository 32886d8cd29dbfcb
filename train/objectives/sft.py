"""Supervised fine-tuning: the cross-entropy of the verdict's tokens."""

import types
from typing import Any

import torch
from batches import Tensors
from objective import Objective
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from critic.errors import UsageError

PLAIN = {"logits_scaling": 1.0, "logit_scale": 1.0, "lm_head_multiplier": 1.0, "final_logit_softcapping": None}
"""Configuration keys of families that transform the logits after `lm_head` -> the value that means no transformation.
"""


class Sft(Objective):
    """Verdicts as text.

    A judging prompt is about thirty times as long as its verdict, so logits are computed only for learned positions.
    The loss then needs memory for [learned tokens × vocabulary], in parts, instead of [tokens × vocabulary].
    """

    def install(self, model: Any) -> None:
        """Replace `model.forward` with the training forward pass, which computes the loss itself.

        Raise UsageError if the base transforms its logits (scaling or soft-capping), which this pass would skip.
        """
        require_plain_logits(model)
        super().install(model)
        compute_in_parts(model.lm_head)

    def loss(self, model: Any, hidden: torch.Tensor, batch: Tensors) -> tuple[torch.Tensor, int]:
        """Return the weighted cross-entropy of the n tokens after the positions `learned` [n], and n."""
        learned = batch["learned"]
        states, behind = hidden.flatten(0, 1).index_select(0, learned), learned + 1
        labels, weights = batch["labels"].flatten()[behind], batch["weights"].flatten()[behind]
        return model.lm_head(states, negative_log_likelihood, labels, weights).sum(), len(learned)


OBJECTIVE = Sft


def negative_log_likelihood(
    head: Any, hidden: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Return the sum [1] of the weighted negative log likelihoods of `labels` [n], with `weights` [n].

    `hidden` [n × width] are the hidden states that predict the labels, `head` is the output layer.
    """
    logits = functional.linear(hidden, head.weight, head.bias).float()
    return (functional.cross_entropy(logits, labels, reduction="none") * weights).sum(0, keepdim=True)


def rows_at_once(vocabulary: int) -> int:
    """Return how many rows of logits, with copies and gradients, fit into 1/16 of the GPU's memory (CPU: 4 GiB)."""
    room = torch.cuda.get_device_properties().total_memory // 16 if torch.cuda.is_available() else 2**32
    return max(1, room // (16 * vocabulary))


def compute_in_parts(head: Any) -> None:
    """Extend the linear layer `head` so that it can compute what follows from its logits in parts.

    If it is called with a function `part`, it splits its inputs into slices of `rows_at_once` rows, computes
    `part(head, *slices)` one after the other, and returns the results concatenated. Without `part` it behaves as
    before. Several slices are computed again in the backward pass, to save memory. All slices are computed within one
    call, because under ZeRO-3 each call is a collective operation and processes have different numbers of slices.
    """

    def forward(self: Any, hidden: torch.Tensor, part: Any = None, *more: torch.Tensor) -> torch.Tensor:
        if part is None:
            return plain_forward(hidden)
        size = rows_at_once(self.weight.shape[0])
        # One part needs no checkpoint: its logits are kept for the backward pass.
        if len(hidden) <= size:
            return part(self, hidden, *more)
        parts = zip(*(tensor.split(size) for tensor in (hidden, *more)), strict=True)
        return torch.cat([checkpoint(part, self, *rows, use_reentrant=False) for rows in parts])

    plain_forward = head.forward
    head.forward = types.MethodType(forward, head)


def require_plain_logits(model: Any) -> None:
    """Raise UsageError if the base transforms its logits (scaling or soft-capping), which training would skip."""
    config = model.config.get_text_config()
    for name, plain in PLAIN.items():
        if (value := getattr(config, name, plain)) not in (plain, None):
            raise UsageError(f"base: {name} {value:g} changes its logits, which training does not; take another base")
