"""What a layer computes between its matmuls, in as few passes over memory as can be.

Modules of transformers compute a norm in some twenty passes over [tokens × width] in fp32, forward and backward, which
take longer than the matmuls of a small model. PyTorch compiles the same formulas into two passes where there is a C++
compiler; without one modules stay what they are. Adapters add to what their layer computes in place, by one matmul.
"""

import types
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional

_ACTIVATIONS = {"gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"), "silu": functional.silu}
"""By transformers' names."""

_compiled: dict[Callable[..., Any], Callable[..., Any]] = {}


def _normed(states: torch.Tensor, scale: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · scale in fp32, rounded once; `scale` is in fp32."""
    wide = states.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * scale).to(states.dtype)


def _gated(gate: torch.Tensor, up: torch.Tensor, activation: Callable[..., torch.Tensor]) -> torch.Tensor:
    return (activation(gate.float()) * up.float()).to(gate.dtype)


def _by_rows(function: Callable[..., torch.Tensor], states: torch.Tensor, *options: Any) -> torch.Tensor:
    """A compiled function of [tokens × width] on [… × width]. Rows lie in memory one behind the other: for every other
    layout PyTorch would compile anew, and it gives up after eight. Heads that were moved before tokens, [rows × heads ×
    tokens × width], are moved back, which spares a copy."""
    moved = states.dim() == 4 and not states.is_contiguous()
    seen = states.transpose(1, 2) if moved else states
    result = _compiled[function](seen.reshape(-1, seen.shape[-1]).contiguous(), *options).view(seen.shape)
    return result.transpose(1, 2) if moved else result


def compile_all() -> str | None:
    """Compile what there is, once a process; why not where that fails, None where it does not."""
    if _compiled:
        return None
    # One process compiles two small functions sooner than it starts others to do so.
    torch._inductor.config.compile_threads = 1
    normed, gated = (torch.compile(each, dynamic=True, fullgraph=True) for each in (_normed, _gated))
    rows, scale = torch.randn(48, 32, requires_grad=True), torch.randn(32)
    try:
        (normed(rows, scale, 1e-6) + gated(rows, rows, functional.silu)).sum().backward()
    except Exception as error:  # no compiler, one that fails, no room for what it writes: each raises another one
        return str(error).strip().splitlines()[0]
    _compiled.update({_normed: normed, _gated: gated})
    return None


def install(model: Any) -> int:
    """Let norms and gated layers of `model`, as Llama, Qwen and Gemma have them, compute what they compute by compiled
    functions (`compile_all` first); how many do. Others stay as they are."""
    changed = 0
    for module in model.modules():
        forward = _norm_of(module) or _gate_of(module)
        if forward is not None:
            module.forward = types.MethodType(forward, module)
            changed += 1
    return changed


def _norm_of(module: Any) -> Callable[..., Any] | None:
    weight, eps = getattr(module, "weight", None), getattr(module, "eps", getattr(module, "variance_epsilon", None))
    # Under ZeRO-3 a weight is elsewhere until its module is called.
    if not type(module).__name__.endswith("RMSNorm") or weight is None or not weight.numel() or eps is None:
        return None
    with torch.no_grad():
        sample = torch.randn(4, weight.numel(), dtype=weight.dtype, device=weight.device)
        wanted = module(sample)
        fits = [
            added
            for added in (0.0, 1.0)
            if torch.allclose(_normed(sample, weight.float() + added, eps), wanted, rtol=2e-2, atol=1e-6)
        ]
    if len(fits) != 1:
        return None
    added = fits[0]

    def forward(self: Any, states: torch.Tensor) -> torch.Tensor:
        return _by_rows(_normed, states, self.weight.float() + added, eps)

    return forward


def _gate_of(module: Any) -> Callable[..., Any] | None:
    parts = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj", "act_fn")]
    config = getattr(module, "config", None)
    name = getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", None)
    activation = _ACTIVATIONS.get(name or "")
    if not type(module).__name__.endswith("MLP") or None in parts or activation is None:
        return None

    def forward(self: Any, states: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_proj(states), self.up_proj(states)
        result: torch.Tensor = self.down_proj(_by_rows(_gated, gate, up.reshape(-1, up.shape[-1]), activation))
        return result

    return forward


def join_adapters(model: Any) -> Any:
    """`model`, of peft, whose plain LoRA layers add to what they adapt within the matmul: peft's own makes the product,
    scales it and adds it, three more passes over [tokens × width], which on a CPU take longer than that matmul."""
    from peft.tuners.lora import Linear  # noqa: PLC0415  # takes seconds to import and only adapters need it

    plain: list[Any] = [each for each in model.modules() if type(each) is Linear]
    for module in plain:
        module.forward = types.MethodType(_joined(module.forward), module)
    return model


def _joined(peft_forward: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, x: torch.Tensor, *args: Any, **options: Any) -> Any:
        names = [name for name in self.active_adapters if name in self.lora_A]
        if args or options or self.disable_adapters or self.merged or len(names) != 1 or names[0] in self.lora_variant:
            return peft_forward(x, *args, **options)
        to, back, dropout = (part[names[0]] for part in (self.lora_A, self.lora_B, self.lora_dropout))
        # Under ZeRO-3 a weight is elsewhere until its module is called.
        if back.bias is not None or hasattr(back.weight, "ds_id") or self.base_layer.weight.dtype != back.weight.dtype:
            return peft_forward(x)
        rows = x.reshape(-1, x.shape[-1])  # in place on a view, the gradient would be copied
        result = self.base_layer(rows)
        seen = to(dropout(self._cast_input_dtype(rows, to.weight.dtype))) * self.scaling[names[0]]
        result = result.addmm_(seen, back.weight.t()) if result.dtype == seen.dtype else result + back(seen)
        return result.view(*x.shape[:-1], -1)

    return forward
