"""What is looked at before the first step, so that hours of training are not in vain: whether what comes out can be
served, and whether the disk has room for it."""

import math
import shutil
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import torch
import transformers
from msgspec import Struct
from recipe import Recipe
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils.hub import resolve_revision

from critic.errors import UsageError


def pinned(recipe: Recipe, begun: dict[str, Any] | None) -> Recipe:
    """The recipe with its revision as a commit, where a hub or its cache tells: all is then read from one state of the
    base. Of a run that goes on (`begun` is its recipe) it is the commit that it began with, wherever main is now."""
    if recipe.base is None or Path(recipe.base).exists():
        return recipe
    if begun and recipe.revision is None:
        return msgspec.structs.replace(recipe, revision=begun.get("revision"))
    found = resolve_revision(recipe.base, recipe.revision)
    return msgspec.structs.replace(recipe, revision=getattr(found, "resolved", found))


def served_tokens(base: str, revision: str | None = None) -> float:
    """The most tokens that vLLM serves a base with: its positions, fewer where its tokenizer says so, and stretched
    where its rotation is. Infinite where nothing bounds them. Raises OSError or ValueError where it cannot be read."""
    config = transformers.AutoConfig.from_pretrained(base, revision=revision).get_text_config()
    bounds = [
        getattr(config, "max_position_embeddings", None),
        get_tokenizer_config(base, revision=revision).get("model_max_length"),
    ]
    rope = getattr(config, "rope_parameters", None) or {}
    # Of the other kinds the positions are those of the stretched rotation already.
    stretched = rope["factor"] if rope.get("rope_type") in ("linear", "dynamic") else 1.0
    return min((bound for bound in bounds if bound is not None), default=float("inf")) * stretched


def require_served_tokens(recipe: Recipe) -> None:
    """Raises UsageError where prompt and verdict may have more tokens than the judge could be served with. A base that
    cannot be read is left to what loads it."""
    if recipe.base is None:
        return
    try:
        most = served_tokens(recipe.base, recipe.revision)
    except (OSError, ValueError):
        return
    longest = recipe.max_source_tokens + recipe.max_target_tokens
    if longest > most:
        raise UsageError(
            f"max_source_tokens {recipe.max_source_tokens} and max_target_tokens {recipe.max_target_tokens} are "
            f"{longest} tokens, but base {recipe.base} is served with {most:.0f} at most: set max_source_tokens to "
            f"{max(1, int(most) - recipe.max_target_tokens)}"
        )


def require_device(recipe: Recipe) -> None:
    """Raises UsageError where what a recipe asks for needs a GPU, or a library, that is not here."""
    if recipe.lora is not None and recipe.lora.bits is not None:
        if not torch.cuda.is_available():
            raise UsageError("lora bits 4 needs a GPU, and none is seen; leave bits out")
        if find_spec("bitsandbytes") is None:
            raise UsageError("lora bits 4 needs bitsandbytes: pip install bitsandbytes")


def device_names(device: torch.device) -> list[str]:
    """What each process computes on, by rank; every process must call it, once they have met."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    names = [""] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(names, name)
    return names


def require_alike(names: list[str]) -> None:
    """Raises UsageError where the processes' devices differ: the slowest would set the pace, the smallest the size."""
    kinds = Counter(names).most_common()
    if len(kinds) > 1:
        ranks = ",".join(str(rank) for rank, name in enumerate(names) if name == kinds[0][0])
        raise UsageError(f"the GPUs are not alike: {dict(kinds)}; train on equal ones (-- --include localhost:{ranks})")


class DiskUse(Struct, frozen=True):
    """Bytes that a run writes: `checkpoint` is one of them, 0 where none is made, `most` all that is there at once."""

    checkpoint: int
    most: int


def disk_use(recipe: Recipe, settings: transformers.TrainingArguments, whole: int, trained: int) -> DiskUse:
    """What a run with Adam writes that has so many parameters in all, and trains so many.

    DeepSpeed saves the weights that the model computes with, but not those below adapters, and under ZeRO-3 only frozen
    ones; 12 bytes a trained parameter are fp32 weights and Adam's two averages, 4 ours.
    """
    sections = [recipe.deepspeed.get(name, {}) for name in ("bf16", "fp16")]
    halved = settings.bf16 or settings.fp16 or any(section.get("enabled") is True for section in sections)
    width = 2 if halved else 4
    frozen = 0 if recipe.lora else whole - trained
    sharded = recipe.deepspeed.get("zero_optimization", {}).get("stage") == 3
    weights = width * (frozen if sharded else frozen + trained)
    checkpoint = weights + 12 * trained + (4 * trained if recipe.ema else 0)
    # A new checkpoint is whole before the oldest goes.
    copies = min(recipe.keep + 1, _saves(settings))
    at_the_end = min(recipe.keep, copies) * checkpoint + width * whole
    # The best weights so far are there twice while they are exchanged.
    best = 2 * width * (trained if recipe.lora else whole) if recipe.evaluation else 0
    return DiskUse(checkpoint if copies else 0, best + max(copies * checkpoint, at_the_end))


def _saves(settings: Any) -> int:
    """How many checkpoints a run makes; more than anybody keeps where that follows from the number of rows."""
    if settings.save_strategy == "no" or (settings.max_steps <= 0 and settings.num_train_epochs <= 0):
        return 0
    if settings.save_strategy != "steps" or settings.max_steps <= 0:
        return 2**31
    steps: int = settings.max_steps
    each: float = settings.save_steps
    return math.ceil(steps / (each if each >= 1 else math.ceil(each * steps)))


def require_room(out: Path, use: DiskUse, keep: int) -> str:
    """What is written to `out`, in words. Raises UsageError where its disk has less room, counting what a run that was
    killed has written there."""
    written = [file for part in ("checkpoint-*", "best*") for file in out.glob(f"{part}/**/*") if file.is_file()]
    room = shutil.disk_usage(out).free + sum(file.stat().st_size for file in written)
    text = f"the judge takes {in_bytes(use.most)}"
    if use.checkpoint:
        text = f"a checkpoint takes {in_bytes(use.checkpoint)}, {in_bytes(use.most)} at most with keep: {keep}"
    if use.most > room:
        raise UsageError(
            f"{out}: {text}, and its disk has {in_bytes(room)}; make room, lower keep, or choose an --out elsewhere"
        )
    return text


UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def in_bytes(count: float) -> str:
    """Such as 110 GB or 1.5 MB."""
    scale, unit = next((unit for unit in UNITS if count >= unit[0]), UNITS[-1])
    return f"{count / scale:.{1 if count < 10 * scale else 0}f} {unit}"
