"""Moving average of the weights under DeepSpeed's ZeRO. Each process averages only its own shard.

Memory: 4 bytes per trained parameter, divided over the processes like the optimizer states. No communication.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from recipe_keys import EmaSpec

from critic.errors import UsageError

MASTERS = ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups", "fp32_groups_flat_partition")
"""Attributes in which DeepSpeed's optimizers (ZeRO-3, ZeRO-1/2, bf16 without ZeRO) store this process's fp32 weights.
The names are private. Therefore deepspeed is pinned, and tests compare with an average computed without them.
"""


def find_masters(optimizer: Any) -> list[torch.Tensor]:
    """Return this process's fp32 weights, one flat tensor per parameter group.

    Raise UsageError if the optimizer has none (no ZeRO).
    """
    for name in MASTERS:
        if hasattr(optimizer, name):
            return list(getattr(optimizer, name))
    raise UsageError(
        f"{type(optimizer).__name__} keeps no fp32 weights to average; "
        "set deepspeed.zero_optimization.stage to 1, 2 or 3"
    )


def _copy_to_model(optimizer: Any) -> None:
    """Copy the optimizer's fp32 weights to the weights that the model computes with."""
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
"""Numbers copied at a time between an average in host memory and the device (256 MiB)."""


class ShardedEma:
    """Moving average of the weights of a DeepSpeed engine, with the decay of `spec`."""

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
        """Yield pairs (average, weights) of slices with at most CHUNK numbers."""
        for average, weights in zip(self.shadow, find_masters(self._optimizer), strict=True):
            yield from zip(average.split(CHUNK), weights.data.split(CHUNK), strict=True)

    def update(self) -> None:
        """Update the average with the current weights. Call it after each optimizer step."""
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
        """Decide after the first step whether the average is kept on the GPU, now that the memory use is known.

        It is kept there if at least 5 % of the GPU's memory then stays free, else in host memory. Return a line that
        says where it is kept, or None if that was decided before.
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
        """Exchange the average and the weights."""
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
        """Run the block with the averaged weights in the model, and restore the exact weights afterwards.

        Every process must enter it.
        """
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
