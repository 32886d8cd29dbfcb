"""What a layer computes between its matmuls, in as few passes over memory as can be.

Modules of transformers compute a norm in some twenty passes over [tokens × width] in fp32, forward and backward, which
take longer than the matmuls of a small model. PyTorch compiles the same formulas into two passes where there is a C++
compiler; without one modules stay what they are. Adapters add to what their layer computes in place, by one matmul.
"""

import types
from collections.abc import Callable
from typing import Any

import torch

_SIGMOIDS = {"gelu_pytorch_tanh": (1.5957691216057308, 0.044715), "silu": (1.0, 0.0)}
"""Activations a · σ(c (a + d a³)) by transformers' names -> c and d. GELU by tanh is one, as 1 + tanh z = 2 σ(2 z)."""


def _normed(states: torch.Tensor, scale: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    inverse = torch.rsqrt(states.float().square().mean(-1, keepdim=True) + eps)
    return (states.float() * inverse * scale).to(states.dtype), inverse


def _normed_back(
    given: torch.Tensor, states: torch.Tensor, scale: torch.Tensor, inverse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    normed, wanted = states.float() * inverse, given.float() * scale
    found = inverse * (wanted - normed * (wanted * normed).mean(-1, keepdim=True))
    return found.to(states.dtype), (given.float() * normed).sum(0)


def _gated(gate: torch.Tensor, up: torch.Tensor, c: float, d: float) -> torch.Tensor:
    a = gate.float()
    return (a * torch.sigmoid(c * (a + d * a * a * a)) * up.float()).to(gate.dtype)


def _gated_back(
    given: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, c: float, d: float
) -> tuple[torch.Tensor, torch.Tensor]:
    a, g = gate.float(), given.float()
    share = torch.sigmoid(c * (a + d * a * a * a))
    slope = share * (1.0 + a * (1.0 - share) * c * (1.0 + 3.0 * d * a * a))
    return (g * up.float() * slope).to(gate.dtype), (g * a * share).to(gate.dtype)


_PLAIN = (_normed, _normed_back, _gated, _gated_back)
_compiled: dict[Callable[..., Any], Callable[..., Any]] = {}


def _moved(states: torch.Tensor) -> bool:
    """Whether these are heads that were moved before tokens, [rows × heads × tokens × width]."""
    return states.dim() == 4 and not states.is_contiguous()


def _rows(states: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """[… × width] as [tokens × width] in the order of `like`, of moved heads too without a copy. They lie in memory one
    behind the other: for every other layout PyTorch would compile anew, and it gives up after eight."""
    seen = states.transpose(1, 2) if _moved(like) else states
    return seen.reshape(-1, seen.shape[-1]).contiguous()


def _like(rows: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    if _moved(states):
        return rows.view(states.transpose(1, 2).shape).transpose(1, 2)
    return rows.view(states.shape)


class _Norm(torch.autograd.Function):  # type: ignore[misc]  # a base of type Any
    """x / sqrt(mean(x²) + eps) · scale in fp32, rounded once; `scale` is in fp32."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, scale: torch.Tensor, eps: float) -> torch.Tensor:
        found, inverse = _compiled[_normed](_rows(states, states), scale, eps)
        ctx.save_for_backward(states, scale, inverse)
        return _like(found, states)

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        states, scale, inverse = ctx.saved_tensors
        rows = _rows(given[0], states), _rows(states, states)
        found, of_scale = _compiled[_normed_back](*rows, scale, inverse)
        return _like(found, states), of_scale, None


class _Gate(torch.autograd.Function):  # type: ignore[misc]  # a base of type Any
    """activation(gate) · up, of which the backward pass keeps the two alone."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor, c: float, d: float) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        ctx.shape = c, d
        return _like(_compiled[_gated](_rows(gate, gate), _rows(up, gate), c, d), gate)

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        gate, up = ctx.saved_tensors
        rows = [_rows(each, gate) for each in (given[0], gate, up)]
        of_gate, of_up = _compiled[_gated_back](*rows, *ctx.shape)
        return _like(of_gate, gate), _like(of_up, gate), None, None


def compile_all() -> str | None:
    """Compile what there is, once a process; why not where that fails, None where it does not."""
    if _compiled:
        return None
    # One process compiles four small functions sooner than it starts others to do so.
    torch._inductor.config.compile_threads = 1
    made = {each: torch.compile(each, dynamic=True, fullgraph=True) for each in _PLAIN}
    rows, scale = torch.randn(48, 32), torch.randn(32)
    try:
        _, inverse = made[_normed](rows, scale, 1e-6)
        made[_normed_back](rows, rows, scale, inverse)
        made[_gated](rows, rows, 1.0, 0.5)
        made[_gated_back](rows, rows, rows, 1.0, 0.5)
    except Exception as error:  # no compiler, one that fails, no room for what it writes: each raises another one
        return str(error).strip().splitlines()[0]
    _compiled.update(made)
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
            if torch.allclose(_normed(sample, weight.float() + added, eps)[0], wanted, rtol=2e-2, atol=1e-6)
        ]
    if len(fits) != 1:
        return None
    added = fits[0]

    def forward(self: Any, states: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _Norm.apply(states, self.weight.float() + added, eps)
        return found

    return forward


def _gate_of(module: Any) -> Callable[..., Any] | None:
    parts = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj", "act_fn")]
    config = getattr(module, "config", None)
    shape = _SIGMOIDS.get(getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", None) or "")
    if not type(module).__name__.endswith("MLP") or None in parts or shape is None:
        return None
    c, d = shape

    def forward(self: Any, states: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.down_proj(_Gate.apply(self.gate_proj(states), self.up_proj(states), c, d))
        return found

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
    def forward(self: Any, x: torch.Tensor, *args: Any, **given: Any) -> Any:
        names = [name for name in self.active_adapters if name in self.lora_A]
        if args or given or self.disable_adapters or self.merged or len(names) != 1 or names[0] in self.lora_variant:
            return peft_forward(x, *args, **given)
        to, back, dropout = (part[names[0]] for part in (self.lora_A, self.lora_B, self.lora_dropout))
        # Under ZeRO-3 a weight is elsewhere until its module is called.
        if back.bias is not None or hasattr(back.weight, "ds_id") or self.base_layer.weight.dtype != back.weight.dtype:
            return peft_forward(x)
        rows = x.reshape(-1, x.shape[-1])  # in place on a view, the gradient would be copied
        found = self.base_layer(rows)
        seen = to(dropout(self._cast_input_dtype(rows, to.weight.dtype))) * self.scaling[names[0]]
        found = found.addmm_(seen, back.weight.t()) if found.dtype == seen.dtype else found + back(seen)
        return found.view(*x.shape[:-1], -1)

    return forward
