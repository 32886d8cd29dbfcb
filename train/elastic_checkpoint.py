"""A checkpoint for another number of processes: ZeRO cuts weights and optimizer states into one part a process, and
DeepSpeed's universal checkpoint puts them together, one file a parameter, for each process to cut anew.

The averaged weights are ours, which DeepSpeed does not know; they lie as the weights do, and go the same way in their
place.
"""

import shutil
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from deepspeed.checkpoint import ds_to_universal
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from critic.errors import UsageError

AVERAGES = "averages_universal"
WEIGHTS = ("single_partition_of_fp32_groups", "fp32_flat_groups")
"""How ZeRO's stages 1 and 2, and 3, call this process's part of the fp32 weights in a checkpoint."""

OBJECTS = (DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address)
"""What DeepSpeed's optimizer states hold besides tensors and plain values; none runs code when it is read."""


def put_together(folder: Path) -> None:
    """Write a checkpoint's states whole beside their parts, and the averaged weights where there are some. What a
    killed run left half written of that goes first. As large as the checkpoint; `clear` takes it away again.
    Raises UsageError for a checkpoint without parts, and for one that holds other `OBJECTS`."""
    clear(folder)
    parts = folder / (folder / "latest").read_text("utf-8").strip()
    if not any(parts.glob("*_optim_states.pt")):
        raise UsageError(f"{folder}: without ZeRO (stage 0) a run goes on with as many processes as it began with")
    _check_objects(parts)
    if any(folder.glob("ema_*.pt")):
        with _averages_as_weights(parts) as averaged:
            _universal(averaged, folder / AVERAGES)
    _universal(parts, folder / f"{parts.name}_universal")  # the last: it also says which is to be loaded


def _check_objects(parts: Path) -> None:
    """DeepSpeed reads these files with `weights_only=False`, which runs whatever code they name: that is looked at
    before."""
    known = {f"{each.__module__}.{each.__qualname__}" for each in OBJECTS}
    for file in sorted(parts.glob("*.pt")):
        if strange := set(get_unsafe_globals_in_checkpoint(file)) - known:
            names = ", ".join(sorted(strange))
            raise UsageError(f"{file}: names code that no checkpoint of a training run holds ({names}); it is not read")


def clear(folder: Path) -> None:
    for path in (*folder.glob("*_universal"), *folder.glob("averages")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def averages(folder: Path, names: Iterable[str]) -> Iterator[torch.Tensor]:
    """The averaged weights that `put_together` wrote, flat, by parameter."""
    for name in names:
        found = torch.load(folder / AVERAGES / "zero" / name / "fp32.pt", map_location="cpu", weights_only=True)
        yield (found["param"] if isinstance(found, dict) else found).flatten()


def set_apart(optimizer: Any, decays: Sequence[float]) -> None:
    """Give each of the optimizer's groups what is its own: under ZeRO-3 DeepSpeed loads the first one's weight decay
    and one counter of steps, which each of them would then advance, into all."""
    for group, decay in zip(optimizer.param_groups, decays, strict=False):
        group["weight_decay"] = decay
    for state in optimizer.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].clone()


def _universal(parts: Path, whole: Path) -> None:
    # In this process alone: others would be forked from one that may hold a GPU.
    ds_to_universal.main(
        Namespace(
            input_folder=str(parts),
            output_folder=str(whole),
            num_extract_workers=1,
            num_merge_workers=1,
            keep_temp_folder=False,
            strict=True,
            inject_missing_state=True,
        )
    )


@contextmanager
def _averages_as_weights(parts: Path) -> Iterator[Path]:
    """A checkpoint's parts with the averaged weights in place of the weights."""
    made = parts.with_name("averages")
    made.mkdir()
    for file in parts.glob("*model_states.pt"):
        (made / file.name).symlink_to(file.resolve())
    states = sorted(parts.glob("*_optim_states.pt"), key=lambda file: ds_to_universal.natural_keys(file.name))
    for rank, file in enumerate(states):
        with safe_globals([*OBJECTS]):
            state = torch.load(file, map_location="cpu", weights_only=True)
        held = state["optimizer_state_dict"]
        (name,) = (name for name in WEIGHTS if name in held)
        shadow = torch.load(parts.parent / f"ema_{rank}.pt", map_location="cpu", weights_only=True)["shadow"]
        held[name] = [average[: len(part)] for average, part in zip(shadow, held[name], strict=True)]
        torch.save(state, made / file.name)
    try:
        yield made
    finally:
        shutil.rmtree(made)
