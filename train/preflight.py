"""Check before the first step that the judge can be trained here and served, and that the disk has enough space.

This avoids training for hours in vain.
"""

import math
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import datasets
import msgspec
import pyarrow.compute
import torch
import transformers
from recipe_keys import Recipe
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils.hub import resolve_revision

from critic.errors import UsageError


def pin_revision(recipe: Recipe, begun: dict[str, Any] | None) -> Recipe:
    """Return the recipe with its revision replaced by the commit, if the hub or its cache knows it.

    All files are then read from one state of the base. `begun` is the recipe of the run to resume, or None; a resumed
    run keeps its commit even if main has moved.
    """
    # Folders have no commits.
    if recipe.base is None or Path(recipe.base).exists():
        return recipe
    # main may have moved since the run began.
    if begun and recipe.revision is None:
        return msgspec.structs.replace(recipe, revision=begun.get("revision"))
    commit = resolve_revision(recipe.base, recipe.revision)
    return msgspec.structs.replace(recipe, revision=getattr(commit, "resolved", commit))


def read_served_tokens(base: str, revision: str | None = None) -> float:
    """Return the most tokens that vLLM serves a base with: its positions, or its tokenizer's limit if that is lower.

    Return infinity if there is no limit. Raise OSError or ValueError if the base cannot be read.
    """
    config = transformers.AutoConfig.from_pretrained(base, revision=revision).get_text_config()
    positions = getattr(config, "max_position_embeddings", None)
    by_tokenizer = get_tokenizer_config(base, revision=revision).get("model_max_length")
    return min(positions or math.inf, by_tokenizer or math.inf)


def require_served_tokens(recipe: Recipe) -> None:
    """Raise UsageError if prompt and verdict may be longer than vLLM can serve.

    A base that cannot be read is ignored here; loading it reports the error.
    """
    if recipe.base is None:
        return
    try:
        most = read_served_tokens(recipe.base, recipe.revision)
    except (OSError, ValueError):
        return
    longest = recipe.max_source_tokens + recipe.max_target_tokens
    if longest > most:
        raise UsageError(
            f"max_source_tokens {recipe.max_source_tokens} and max_target_tokens {recipe.max_target_tokens} are "
            f"{longest} tokens, but base {recipe.base} is served with {most:.0f} at most: set max_source_tokens to "
            f"{max(1, int(most) - recipe.max_target_tokens)}"
        )


def require_embeddings(model: Any, tokenizer: Any, rows: datasets.Dataset, base: str) -> None:
    """Raise UsageError if prompts may contain token ids without an embedding.

    This happens if tokens were added to a tokenizer without resizing the model. The check covers tokens that plain text
    can contain, padding and other named tokens, and all tokens in `rows` (rows.Data). Other special tokens may lack an
    embedding, as in Gemma 3 without its vision part.
    """
    known = model.get_input_embeddings().num_embeddings
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    # Padding and ends of turns come into batches whatever the text is.
    named = {tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id} - {None}
    ids = [*({*tokenizer.get_vocab().values()} - special), *named]
    for column in ("input_ids", "other_ids"):
        most = pyarrow.compute.max(pyarrow.compute.list_flatten(rows.with_format("arrow")[column])).as_py()
        ids.append(most or 0)
    if max(ids) >= known:
        problem = f"the tokenizer has ids up to {max(ids)}, the base has embeddings for {known}"
        advice = "resize the model's embeddings and save it, or take the tokenizer it came with"
        raise UsageError(f"base {base!r}: {problem} (ids 0 to {known - 1}); {advice}")


def require_device(recipe: Recipe) -> None:
    """Raise UsageError if the recipe needs a GPU or library that is not available."""
    if recipe.lora is not None and recipe.lora.bits is not None:
        if not torch.cuda.is_available():
            raise UsageError("lora bits 4 needs a GPU, and none is seen; leave bits out")
        if find_spec("bitsandbytes") is None:
            raise UsageError("lora bits 4 needs bitsandbytes: pip install bitsandbytes")


def require_alike(device: torch.device) -> None:
    """Raise UsageError if the GPUs of the processes differ. The slowest would limit the speed, the smallest the memory.

    Every process must call it, after init_distributed.
    """
    names = [""] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(names, torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU")
    if len(kinds := sorted(set(names))) > 1:
        ranks = ",".join(str(rank) for rank, name in enumerate(names) if name == names[0])
        raise UsageError(f"the GPUs are not alike: {', '.join(kinds)}; use some (-- --include localhost:{ranks})")


def estimate_disk_use(
    recipe: Recipe, settings: transformers.TrainingArguments, whole: int, trained: int
) -> tuple[int, int]:
    """Return the size of a checkpoint in bytes (0 if none is written), and the peak disk use of the run in bytes.

    `whole` is the number of parameters, `trained` the number of trained ones. DeepSpeed saves the weights that the
    model computes with, except those below adapters; under ZeRO-3 only frozen ones. For each trained parameter it adds
    12 bytes of fp32 weights and Adam states, and our average 4 bytes.
    """
    sections = [recipe.deepspeed.get(name, {}) for name in ("bf16", "fp16")]
    halved = settings.bf16 or settings.fp16 or any(section.get("enabled") is True for section in sections)
    width = 2 if halved else 4
    frozen = 0 if recipe.lora else whole - trained
    sharded = recipe.deepspeed.get("zero_optimization", {}).get("stage") == 3
    weights = width * (frozen if sharded else frozen + trained)
    checkpoint = weights + 12 * trained + (4 * trained if recipe.ema else 0)
    if settings.save_strategy == "no" or (settings.max_steps <= 0 and settings.num_train_epochs <= 0):
        checkpoint = 0
    # A new checkpoint is whole before the oldest goes, and the judge is written beside those that stay.
    most = recipe.keep * checkpoint + max(checkpoint, width * whole)
    # The best weights so far are there twice while they are exchanged.
    best = 2 * width * (trained if recipe.lora and not recipe.foreign else whole) if recipe.evaluation else 0
    return checkpoint, best + most


def require_room(out: Path, checkpoint: int, most: int, keep: int) -> str:
    """Return a sentence about the space that will be used in `out`. Raise UsageError if its disk has less.

    - `checkpoint`, `most`: bytes, as returned by `estimate_disk_use`.
    - `keep`: number of checkpoints to keep.

    Files of an interrupted run count as free, because they will be replaced.
    """
    written = [file for part in ("checkpoint-*", "best*") for file in out.glob(f"{part}/**/*") if file.is_file()]
    room = shutil.disk_usage(out).free + sum(file.stat().st_size for file in written)
    text = f"the judge takes {most / 1e9:.1f} GB"
    if checkpoint:
        text = f"a checkpoint takes {checkpoint / 1e9:.1f} GB, {most / 1e9:.1f} GB at most with keep: {keep}"
    if most > room:
        raise UsageError(
            f"{out}: {text}, and its disk has {room / 1e9:.1f} GB; make room, lower keep, or choose an --out elsewhere"
        )
    return text
