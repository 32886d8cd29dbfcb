"""PyTorch's own flash attention over packed rows, as an attention of transformers: no further package on a GPU."""

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "varlen"


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each packed row: [1 × heads × tokens × width] in, [1 × tokens × heads × width] out,
    bf16 or fp16 on a GPU. Without the rows' boundaries (a padded batch, as in evaluation) it is sdpa."""
    if cu_seq_lens_q is None:
        found: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling
        )
        return found
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415  # registers GPU kernels when imported

    q, k, v = (each[0].transpose(0, 1) for each in (query, key, value))
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    causal = (-1, 0)
    out = varlen_attn(
        q, k, v, cu_seq_lens_q, cu_seq_lens_q, max_length_q, max_length_q, scale=scaling, window_size=causal
    )
    return out[None], None


def _mask(*places: Any, attention_mask: torch.Tensor | None = None, **options: Any) -> torch.Tensor | None:
    """None for packed rows, which come without a mask and would cost one of [tokens × tokens]."""
    return None if attention_mask is None else sdpa_mask(*places, attention_mask=attention_mask, **options)


def register() -> None:
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, _mask)
