"""Attention over the prefix tree of a packed sequence (packing.py), as attentions of transformers.

`sdpa` and `eager` go through the tree a few segments at a time, with the keys of their path, `sdpa` on a CPU by plain
matmuls; `varlen` is PyTorch's own flash attention on a GPU, which takes all segments in one call.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from packing import Tree
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

VARLEN = "varlen"
OVER_TREES = {"sdpa": "tree_sdpa", "eager": "tree_eager", VARLEN: VARLEN}
"""Attentions that can look at a prefix tree -> the name under which they do."""

KINDS = {"full_attention", "sliding_attention"}
"""Layers, as configs call them, in which a token depends on those it sees alone, and by their distance."""

KEPT = 2**26
"""Bytes of probabilities that matmuls may keep of a layer for the backward pass; more goes to PyTorch's kernel, which
keeps none, but whose backward pass takes three times as long on a CPU in bf16 (and about as long in fp32)."""


def register() -> None:
    """Make them known to transformers. Without a tree each is what it is made of."""
    known = {
        "tree_sdpa": (_by_segments(lambda module: _sdpa), sdpa_mask),
        # Each family keeps a function of its own under this name.
        "tree_eager": (_by_segments(lambda module: sys.modules[module.__module__].eager_attention_forward), eager_mask),
        VARLEN: (_varlen, sdpa_mask),
    }
    for name, (function, mask) in known.items():
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, mask)


def packs(model: Any) -> bool:
    """Whether no layer keeps a state of its own, which rows in one sequence would share."""
    return KINDS.issuperset(getattr(model.config.get_text_config(), "layer_types", None) or ())


def install(model: Any) -> bool:
    """Let `model` look at prefix trees. False for an attention or a kind of layer that cannot."""
    reads = model.get_decoder()  # not what looks at images
    now = reads.config._attn_implementation
    if packs(model) and OVER_TREES.get(now, now) != now:
        register()
        reads.set_attn_implementation(OVER_TREES[now])
    return packs(model) and reads.config._attn_implementation in OVER_TREES.values()


def _by_segments(attention: Callable[[Any], Callable[..., Any]]) -> Callable[..., Any]:
    """[1 × heads × tokens × width] in, [1 × tokens × heads × width] out, by the attention of a module."""

    def forward(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        tree: Tree | None = None,
        **given: Any,
    ) -> Any:
        attend = attention(module)
        if tree is None:
            return attend(module, query, key, value, attention_mask, **given)
        masks = tree.masks(given.get("sliding_window"), query)
        if attend is _sdpa and _few_and_plain(query, masks, **given):
            attend = _matmuls
        parts = zip(query.split(tree.sizes, dim=2), tree.keys(key), tree.keys(value), masks, strict=True)
        return torch.cat([attend(module, *part, **given)[0] for part in parts], dim=1), None

    return forward


def _sdpa(*given: Any, **options: Any) -> Any:
    return sdpa_attention_forward(*given, **options)


def _few_and_plain(query: torch.Tensor, masks: list[torch.Tensor], dropout: float = 0.0, **_: Any) -> bool:
    pairs = sum(mask.numel() for mask in masks)
    return query.device.type == "cpu" and not dropout and pairs * query.shape[1] * query.element_size() <= KEPT


def _matmuls(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scaling: float | None = None,
    **given: Any,
) -> Any:
    """The same written out. The heads that share keys and values stand one behind the other in one matmul."""
    heads, count, width = query.shape[1:]
    groups, places = key.shape[1:3]
    looks = (query * (width**-0.5 if scaling is None else scaling)).reshape(groups, -1, width)
    scores = (looks @ key[0].transpose(1, 2)).view(heads, count, places).add_(mask[0])
    out = scores.softmax(-1).view(groups, -1, places) @ value[0]
    return out.view(1, heads, count, width).transpose(1, 2), None


def _varlen(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    tree: Tree | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **given: Any,
) -> Any:
    """The same in bf16 or fp16 on a GPU, the keys of every path gathered. Without a tree, as padded, it is sdpa."""
    if tree is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **given)
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415  # registers GPU kernels when imported

    keys, query_ends, key_ends = tree.varlen(query.device)
    q, k, v = query[0].transpose(0, 1), *(each[0].transpose(0, 1)[keys] for each in (key, value))
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    # Fewer queries than keys are the last of them; the kernel's window does not count the token that looks.
    window = (sliding_window - 1 if sliding_window else -1, 0)
    longest, deepest = max(tree.lengths), max(tree.depths)
    out = varlen_attn(q, k, v, query_ends, key_ends, longest, deepest, scale=scaling, window_size=window)
    return out[None], None
