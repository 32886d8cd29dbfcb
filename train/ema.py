"""A moving average of the weights under DeepSpeed's ZeRO. Each process keeps it for its own shard only.

Memory: 4 bytes a trained parameter, shared by the processes as the optimizer's own states are; no communication.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from recipe_keys import EmaSpec

from critic.errors import UsageError

MASTERS = ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups", "fp32_groups_flat_partition")
"""Attributes in which DeepSpeed's optimizers (ZeRO-3, ZeRO-1/2, bf16 without ZeRO) keep this process's fp32 weights.
Private names: deepspeed is pinned, and the tests compare with an average taken without it."""


def find_masters(optimizer: Any) -> list[torch.Tensor]:
    """Return this process's fp32 weights, one flat tensor a group of parameters. Raises UsageError without ZeRO."""
    for name in MASTERS:
        if hasattr(optimizer, name):
            return list(getattr(optimizer, name))
    raise UsageError(
        f"{type(optimizer).__name__} keeps no fp32 weights to average; "
        "set deepspeed.zero_optimization.stage to 1, 2 or 3"
    )


def _copy_to_model(optimizer: Any) -> None:
    """Copy the fp32 weights into those that the model computes with."""
    if hasattr(optimizer, "fp32_partitioned_groups_flat"):
        # Small parameters stay gathered in every process, and must be let go and gathered anew.
        small = optimizer.persistent_parameters
        if small:
            small[0].partition(small)
        for group in range(len(optimizer.fp32_partitioned_groups_flat)):
            optimizer._reassign_or_swap_out_partitioned_parameters(group)
        if small:
            small[0].all_gather(small)
    else:
        optimizer.update_lp_params()


CHUNK = 2**26
"""Numbers that travel at a time between an average in the host's memory and the device (256 MiB)."""


class ShardedEma:
    """The average of an engine's weights, with the decay of EmaSpec."""

    def __init__(self, engine: Any, spec: EmaSpec) -> None:
        self._optimizer = engine.optimizer
        self.spec = spec
        self.updates = 0
        self.undecided = spec.device == "auto" and torch.cuda.is_available()
        device = "cpu" if self.undecided or spec.device == "cpu" else None
        self.shadow = [
            part.detach().to(device=device, dtype=torch.float32, copy=True) for part in find_masters(self._optimizer)
        ]
        if device == "cpu" and torch.cuda.is_available():
            # Only from pinned memory are copies to the GPU asynchronous.
            self.shadow = [part.pin_memory() for part in self.shadow]

    def _split_in_chunks(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield (average, weights) in pieces of at most CHUNK numbers."""
        for average, weights in zip(self.shadow, find_masters(self._optimizer), strict=True):
            yield from zip(average.split(CHUNK), weights.data.split(CHUNK), strict=True)

    def update(self) -> None:
        """Add the weights after an optimizer step to the average."""
        # Early updates count more, so that the random or unadapted start is soon forgotten.
        decay = min(self.spec.decay, (1 + self.updates) / (10 + self.updates))
        for average, weights in self._split_in_chunks():
            # The average itself where it lies on the device.
            on_device = average.to(weights.device, non_blocking=True)
            on_device.lerp_(weights.float(), 1.0 - decay)
            if on_device is not average:
                average.copy_(on_device, non_blocking=True)
        self.updates += 1

    def settle(self) -> str | None:
        """Decide after the first step, which shows how much memory one takes, if the average is kept on the GPU.

        It is if the GPU has room for it and a twentieth of its memory more. Return a line that says where it is kept,
        or None if that was decided before.
        """
        if not self.undecided:
            return None
        self.undecided = False
        size = 4 * sum(part.numel() for part in self.shadow)
        free, total = torch.cuda.mem_get_info()
        fits = size + total // 20 <= free
        if fits:
            self.shadow = [
                part.to(weights.device)
                for part, weights in zip(self.shadow, find_masters(self._optimizer), strict=True)
            ]
        location = "on the GPU" if fits else "in the host's memory"
        return f"averaged weights are kept {location}: {size / 2**30:.1f} GiB, {free / 2**30:.1f} GiB free on the GPU"

    def _swap(self) -> None:
        """Exchange average and weights."""
        if torch.cuda.is_available():
            # An average in the host's memory may still be on its way.
            torch.cuda.synchronize()
        for average, weights in self._split_in_chunks():
            own = weights.to(average.device, torch.float32, copy=True)
            weights.copy_(average)
            average.copy_(own)
        _copy_to_model(self._optimizer)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the model the averaged weights in the block, and exactly its own after it. Every process must enter."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def save(self, path: Path) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        torch.save({"updates": self.updates, "shadow": self.shadow}, path)

    def load(self, path: Path) -> None:
        state = torch.load(path, map_location="cpu", weights_only=True)
        self.updates = state["updates"]
        for average, saved in zip(self.shadow, state["shadow"], strict=True):
            average.copy_(saved)
