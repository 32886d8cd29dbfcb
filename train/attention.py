"""Attention over the prefix tree of a packed sequence (packing.py), registered with transformers.

`sdpa` processes a few segments of the tree at a time, each with the keys on its path, and on a CPU uses plain matrix
products. `flex_attention` is PyTorch's FlexAttention (arXiv 2412.05496), one kernel over the whole tree on a GPU.
"""

import os
import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from cpu import say
from packing import Tree
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import flex_attention_mask, sdpa_mask
from vision import SeeingTokenizer

from critic.errors import UsageError

AUTO, FLEX = "auto", "flex_attention"
OVER_TREES = {"sdpa": "tree_sdpa", FLEX: "tree_flex"}
"""Attention that has a version for prefix trees -> the registered name of that version."""

KINDS = {"full_attention", "sliding_attention"}
"""Kinds of layers, as configs name them, whose tokens depend only on the visible tokens and their distance."""

KEPT = 2**26
"""Most bytes of probabilities per layer that matrix products may keep for the backward pass. Larger ones use PyTorch's
kernel, which keeps none, but whose backward pass on a CPU takes three times as long in bf16 (and about as long in
fp32).
"""


def choose_attention(wanted: str, *, packed: bool) -> str:
    """Return the attention implementation to use for `wanted`, the recipe's `attention`.

    `auto` becomes FlexAttention if rows are `packed` and a GPU is present whose kernels can be compiled, else `sdpa`;
    the first process prints the choice. Raise UsageError for FlexAttention without a GPU.
    """
    if not torch.cuda.is_available():
        # Its block masks are made for the GPU's kernel.
        if wanted == FLEX:
            raise UsageError(f"attention {FLEX} needs a GPU; set attention: auto")
        return "sdpa" if wanted == AUTO else wanted
    if wanted != AUTO:
        return wanted
    # Triton, which FlexAttention's kernels are written in, compiles what starts them.
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    builds = find_spec("triton") and compiler and Path(sysconfig.get_path("include"), "Python.h").is_file()
    kind = FLEX if packed and builds else "sdpa"
    wants = f" ({FLEX} wants packed rows, Triton, a C compiler and Python's headers)" if kind != FLEX else ""
    say(f"attention {kind}{wants}")
    return kind


def list_obstacles(model: Any, tokenizer: Any = None) -> list[str]:
    """Return the features of a base that prevent its rows from being packed, by their names in transformers.

    - Kinds of layers other than KINDS, such as layers that carry a state from one token to the next (Mamba).
    - Token types that the model needs as inputs, if `tokenizer` is a SeeingTokenizer. A model with token types gives
      image tokens positions in two dimensions (Qwen, GLM), or lets them see later tokens (Gemma).
    - An attention implementation without a version for prefix trees.
    """
    reads = model.get_decoder()
    kinds = sorted(set(getattr(model.config.get_text_config(), "layer_types", None) or ()) - KINDS)
    # Not all families with a state name the kinds of their layers, and not all get their attention from transformers.
    if not kinds and (getattr(reads, "_is_stateful", False) or not getattr(reads, "_supports_attention_backend", True)):
        kinds = [type(reads).__name__]
    kind = reads.config._attn_implementation
    others = [] if kind in {*OVER_TREES, *OVER_TREES.values()} else [f"attention {kind}"]
    return [*kinds, *(tokenizer.types if isinstance(tokenizer, SeeingTokenizer) else []), *others]


def install(model: Any, kind: str | None = None) -> bool:
    """Switch `model` to the tree version of an attention implementation. Return True if it can then use prefix trees.

    `kind` is the implementation, None for the model's current one. Return False if the base cannot pack rows
    (`list_obstacles`). Raise UsageError if FlexAttention would omit the base's attention dropout.
    """
    # Only the text part has packed rows, not the vision part.
    reads = model.get_decoder()
    now = kind or reads.config._attn_implementation
    if list_obstacles(model):
        return False
    if OVER_TREES.get(now, now) != now:
        # FlexAttention takes no dropout, and would leave it out without a word.
        if now == FLEX and (dropout := getattr(reads.config, "attention_dropout", 0.0)):
            raise UsageError(f"attention {FLEX} has no dropout, the base has {dropout:g}; set attention: sdpa")
        reads.set_attn_implementation(OVER_TREES[now])
    return True


def _attend_by_segments(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    tree: Tree | None = None,
    **options: Any,
) -> Any:
    """Attend to a packed sequence segment by segment, or as transformers' sdpa does without a `tree`.

    Query, key and value are [1 × heads × tokens × width], the output is [1 × tokens × heads × width].
    """
    if tree is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    masks = tree.masks(options.get("sliding_window"), query)
    attend = _attend_by_matmuls if _fits_in_matmuls(query, masks, **options) else sdpa_attention_forward
    parts = zip(query.split(tree.sizes, dim=2), tree.keys(key), tree.keys(value), masks, strict=True)
    return torch.cat([attend(module, *part, **options)[0] for part in parts], dim=1), None


def _fits_in_matmuls(query: torch.Tensor, masks: list[torch.Tensor], dropout: float = 0.0, **_: Any) -> bool:
    """Return True on a CPU without dropout if the probabilities of a layer take at most KEPT bytes."""
    pairs = sum(mask.numel() for mask in masks)
    return query.device.type == "cpu" and not dropout and pairs * query.shape[1] * query.element_size() <= KEPT


def _attend_by_matmuls(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scaling: float | None = None,
    **options: Any,
) -> Any:
    """Attend by plain matrix products, with shapes as in `_attend_by_segments`.

    Query heads that share keys and values are stacked in one product. The mean key is subtracted, which shifts all
    scores of a query equally and so leaves the probabilities unchanged. Otherwise a base whose keys have large biases
    (Qwen2) has scores in the hundreds, which bf16 rounds to whole numbers.
    """
    heads, count, width = query.shape[1:]
    groups, keys = key.shape[1:3]
    looks = (query * (width**-0.5 if scaling is None else scaling)).reshape(groups, -1, width)
    differing = key[0] - key[0].detach().mean(1, keepdim=True)
    scores = (looks @ differing.transpose(1, 2)).view(heads, count, keys).add_(mask[0])
    out = scores.softmax(-1).view(groups, -1, keys) @ value[0]
    return out.view(1, heads, count, width).transpose(1, 2), None


def _attend_by_flex(
    module: Any, query: Any, key: Any, value: Any, mask: Any, tree: Tree | None = None, **options: Any
) -> Any:
    """Attend by one FlexAttention kernel, without gathering keys or repeating keys that heads share."""
    if tree is not None:
        mask = tree.block_mask(options.get("sliding_window"), query.device)
    return flex_attention_forward(module, query, key, value, mask, **options)


# transformers finds both by name. Without a tree each equals the attention that it is based on.
AttentionInterface.register("tree_sdpa", _attend_by_segments)
AttentionMaskInterface.register("tree_sdpa", sdpa_mask)
AttentionInterface.register("tree_flex", _attend_by_flex)
AttentionMaskInterface.register("tree_flex", flex_attention_mask)
