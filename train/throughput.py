"""Measure the training speed: tokens and model FLOPs per second, utilisation of the hardware, memory."""

import resource
import time
from typing import Any

import torch
from vision import TOWERS

PEAK_BF16 = {"H200": 989e12, "H100": 989e12, "H800": 989e12, "A100": 312e12, "A800": 312e12, "L40S": 362e12}
"""Part of a GPU's name -> dense bf16 FLOP/s from the vendor's data sheet (SXM parts)."""


def size_of(parameter: torch.Tensor) -> int:
    """Return the number of elements in a parameter, even if it is sharded (ZeRO-3) or quantized to 4 bits."""
    packed = getattr(parameter, "quant_state", None)
    size: int = packed.shape.numel() if packed is not None else getattr(parameter, "ds_numel", parameter.numel())
    return size


class Meter:
    """Counts the tokens and FLOPs that a process computes between two calls of `take`.

    Model FLOPs of a row of s tokens, t of them learned: 3 x (2 N s + 2 A s² + 2 V h t). N is the number of weights in
    the decoder's matrices. A is layers x heads x head size (half of 4 A s², because attention is causal). V h is the
    size of the output matrix, which only learned positions pass. The factor 3 stands for one forward and two backward
    products; for frozen weights (LoRA) it is 2 in matrices. The fraction `below` of the decoder, before its first
    trained weight, has only a forward pass. Recomputation for gradient checkpointing is not counted. Common prefixes of
    a prefix tree count once; a segment that ends at position d and has s tokens takes d² - (d - s)². An image counts as
    its tokens; the vision part is not counted.
    """

    def __init__(self, model: Any, pad: int) -> None:
        config = model.config.get_text_config()
        heads = config.num_attention_heads
        head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
        self.attention = config.num_hidden_layers * heads * head_size
        # A scoring head has a few outputs, not the vocabulary.
        scores = any(name.endswith("score.weight") for name, _ in model.named_parameters())
        self.head = (config.num_labels if scores else config.vocab_size) * config.hidden_size
        self.matrices = below = 0
        self.passes, learns = 2, False
        for name, weight in model.named_parameters():
            if set(TOWERS) & set(name.split(".")):
                continue
            # From the first trained weight on there is a backward pass.
            learns = learns or weight.requires_grad
            if "layers." in name and "lora_" not in name:
                self.matrices += size_of(weight)
                below += 0 if learns else size_of(weight)
                self.passes = 3 if weight.requires_grad else self.passes
        self.below: float = below / self.matrices
        self.pad = pad
        self._clear()

    def _clear(self) -> None:
        # Counted on the GPU, which is not waited for until they are looked at.
        self.tokens, self.flops = torch.zeros(2, dtype=torch.float64)
        self.seconds = self.cpu_seconds = 0.0
        self._started: tuple[float, float] | None = None

    def add(self, inputs: dict[str, Any]) -> None:
        """Add a micro-batch."""
        ids = inputs["input_ids"]
        present = torch.ones_like(ids) if "position_ids" in inputs else ids != self.pad
        positions = inputs.get("position_ids", torch.arange(ids.shape[1], device=ids.device))
        # A token behind p others adds (p + 1)² - p².
        squares, tokens = (present * (2 * positions + 1)).sum().double(), present.sum().double()
        learned = (inputs["labels"] >= 0).sum().double()
        self.tokens = self.tokens + tokens
        layers = self.matrices * tokens * (self.below + (1.0 - self.below) * self.passes)
        pairs = self.attention * squares * (self.below + (1.0 - self.below) * 3)
        self.flops = self.flops + 2 * (layers + self.head * learned * self.passes + pairs)

    def start(self) -> None:
        """Start the clock unless it is running."""
        self._started = self._started or (time.monotonic(), time.process_time())

    def stop(self) -> None:
        """Wait for the GPU and stop the clock."""
        if self._started is None:
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds += time.monotonic() - self._started[0]
        self.cpu_seconds += time.process_time() - self._started[1]
        self._started = None

    def take(self) -> dict[str, float]:
        """Return this process's figures since the last call, and reset them. Return {} if no time was measured.

        They are tokens per second and peak memory in GiB; on a CPU also model GFLOP per second and per CPU second (of
        all threads); on a GPU with known peak also the model FLOPs utilisation (0..1).
        """
        self.stop()
        if not self.seconds:
            return {}
        figures = {"tokens_per_second": round(float(self.tokens) / self.seconds, 1)}
        if torch.cuda.is_available():
            name = torch.cuda.get_device_name()
            peak = next((value for part, value in PEAK_BF16.items() if part in name), None)
            if peak is not None:
                figures["mfu"] = round(float(self.flops) / self.seconds / peak, 4)
            figures["memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
        else:
            figures["gflops"] = round(float(self.flops) / self.seconds / 1e9, 1)
            figures["cpu_gflops"] = round(float(self.flops) / self.cpu_seconds / 1e9, 1)
            figures["memory_gib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 1)
        self._clear()
        return figures
