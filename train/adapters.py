"""Faster LoRA layers, which add the adapter's product to the layer's output in place."""

import types
from collections.abc import Callable
from typing import Any

import torch


def join_adapters(model: Any) -> Any:
    """Replace the forward pass of plain LoRA layers in peft's `model` by one fused operation, and return the model.

    peft computes the product, scales it and adds it. These are three more passes over [tokens × width], which take
    longer than the matmul on a CPU.
    """
    from peft.tuners.lora import Linear  # noqa: PLC0415  # takes seconds to import and only adapters need it

    # Not isinstance: subclasses, as for quantized layers, compute something else.
    plain: list[Any] = [module for module in model.modules() if type(module) is Linear]
    for module in plain:
        module.forward = types.MethodType(_join_product(module.forward), module)
    return model


def _join_product(peft_forward: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        to, back, dropout = (part["default"] for part in (self.lora_A, self.lora_B, self.lora_dropout))
        # Under ZeRO-3 a weight is elsewhere until its module is called.
        if hasattr(back.weight, "ds_id") or self.base_layer.weight.dtype != back.weight.dtype:
            return peft_forward(x)
        # In place on a view, the gradient would be copied.
        rows = x.reshape(-1, x.shape[-1])
        result = self.base_layer(rows)
        seen = to(dropout(self._cast_input_dtype(rows, to.weight.dtype))) * self.scaling["default"]
        result = result.addmm_(seen, back.weight.t()) if result.dtype == seen.dtype else result + back(seen)
        return result.view(*x.shape[:-1], -1)

    return forward
