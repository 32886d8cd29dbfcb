"""Check and complete the recipe's sections for transformers and DeepSpeed."""

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import deepspeed
import msgspec
import torch
import transformers
from cpu import say
from joblib import cpu_count
from recipe_keys import Count, Recipe
from transformers.utils.import_utils import is_liger_kernel_available

from critic.errors import UsageError, install_extra, one_line

_TABLES = tomllib.loads(Path(__file__).with_name("trainer_args.toml").read_text("utf-8"))

SET_HERE: dict[str, dict[str, str]] = _TABLES["set_here"]
"""Keys that this program sets itself, by section -> the reason, or the key to give instead."""

NESTED = {"zero_optimization", "bf16", "fp16", "optimizer", "scheduler", "tensorboard", "flops_profiler", "checkpoint"}
"""Sections of DeepSpeed's configuration that contain further keys."""

TRACKERS: dict[str, str] = _TABLES["trackers"]
"""Trackers with exceptions of their own -> what they need."""

_NOT_IN_NAMES = re.compile(r"[^\w.-]")
"""Matches characters that MLflow does not take in the name of a parameter."""


class TrackedArguments(transformers.TrainingArguments):  # type: ignore[misc]  # a base of type Any
    """TrainingArguments that trackers log together with the facts of the run (`facts`, by name)."""

    facts: Mapping[str, Any] = {}

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), **self.facts}


def _refuse(section: str, problem: str) -> UsageError:
    return UsageError(f"the recipe's {section} section: {problem}")


def _require_known(section: str, keys: Iterable[str], known: Iterable[str], *, all_known: bool = True) -> None:
    """Raise UsageError for a key of `section` that is not in `known`, and name the most similar known key.

    Without `all_known` the list is incomplete, and only keys that are similar to a known one are refused.
    """
    for key in set(keys).difference(known):
        near = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.6 if all_known else 0.8)
        # DeepSpeed reads keys that are not among its constants, so only a near miss is refused.
        if near or all_known:
            hint = f"; did you mean {near[0]}?" if near else ""
            raise _refuse(section, f"there is no {key}{hint}")


def check(recipe: Recipe) -> None:
    """Raise UsageError for values that DeepSpeed or transformers would ignore, or reject only once the run has started.

    These are keys that are unknown or set by this program, values of the wrong type, and invalid ZeRO settings.
    """
    for section, owned in SET_HERE.items():
        for key in owned.keys() & getattr(recipe, section).keys():
            raise UsageError(f"{section}.{key} is set by the program; {owned[key]}")
    _check_training(recipe.training)
    _check_deepspeed(recipe.deepspeed)


def _check_training(section: dict[str, Any]) -> None:
    known = {field.name: field for field in fields(transformers.TrainingArguments)}
    _require_known("training", section, known)
    kinds = get_type_hints(transformers.TrainingArguments) | {"per_device_train_batch_size": Count}
    for name, value in section.items():
        try:
            msgspec.convert(value, kinds[name])
        except msgspec.ValidationError as error:
            raise _refuse("training", f"{name}: {error}, {value!r}") from None
        except TypeError:
            # Some kinds are no plain types.
            pass
        choices = list(known[name].metadata.get("choices") or [value])
        # TrainingArguments would find this out too, but in every process.
        if value is not None and value not in choices:
            raise _refuse("training", f"{name}: {value!r} is none of {', '.join(choices)}")


def _check_deepspeed(section: dict[str, Any]) -> None:
    names = {name for name in vars(deepspeed.runtime.constants).values() if isinstance(name, str)}
    _require_known("deepspeed", section, names | NESTED, all_known=False)
    for name in NESTED & section.keys():
        if not isinstance(section[name], dict):
            raise _refuse(f"deepspeed.{name}", f"expected keys and values, got {section[name]!r}")
    # transformers fills in what is auto.
    zero = {name: value for name, value in section.get("zero_optimization", {}).items() if value != "auto"}
    try:
        deepspeed.runtime.zero.config.DeepSpeedZeroConfig(**zero)
    except ValueError as error:
        # Pydantic says how many, and then for each a line with its key and one with the problem.
        lines = str(error).splitlines()
        problem = " ".join(line.strip() for line in lines[1:3] or lines)
        raise _refuse("deepspeed.zero_optimization", problem) from None


def micro_batch(global_batch: int, most: int, processes: int) -> int:
    """Return the rows per micro-batch: the largest divisor of a process's rows per step that is at most `most`.

    Raise UsageError if `global_batch` is no multiple of `processes`.

    >>> micro_batch(global_batch=48, most=32, processes=1)
    24
    """
    share, remainder = divmod(global_batch, processes)
    if remainder or not share:
        works = [str(number) for number in range(1, global_batch + 1) if global_batch % number == 0]
        raise UsageError(
            f"global_batch {global_batch} is no multiple of {processes} processes; give another, or start "
            f"{', '.join(works)} of them (-- --num_gpus N)"
        )
    return max(rows for rows in range(1, min(most, share) + 1) if share % rows == 0)


def arguments(recipe: Recipe, out: Path, facts: Mapping[str, Any] | None = None) -> TrackedArguments:
    """Return the TrainingArguments: the recipe's `training` section plus what this program sets itself.

    Trackers get the recipe's keys and the hashes of prompts and data in `facts` (`run.describe`), each as one
    parameter. Raise UsageError for invalid values and if there is no step to take.
    """
    check(recipe)
    on_cpu = not torch.cuda.is_available()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    section = {**_TABLES["defaults"]["training"], "run_name": out.name, **recipe.training}
    most = section["per_device_train_batch_size"]
    rows = section["per_device_train_batch_size"] = micro_batch(recipe.global_batch, most, world)
    if rows < most:
        why = f"the {recipe.global_batch} rows of a step over {world} process{'es' if world > 1 else ''}"
        say(f"per_device_train_batch_size {rows} instead of {most}: {why}")
    micro_batches = recipe.global_batch // (rows * world)
    # On a CPU other processes would take the cores that compute the step.
    if not on_cpu:
        section = {**_overlap_batches(section, micro_batches, world), **section}
    os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(out / "tensorboard"))
    # A server that does not answer is given up after half a minute, and not after four.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "4")
    with report_bad_values():
        settings = TrackedArguments(
            **section,
            **_TABLES["fixed"],
            output_dir=str(out),
            deepspeed=_deepspeed_config(recipe),
            gradient_accumulation_steps=micro_batches,
            use_cpu=on_cpu,
            dataloader_pin_memory=not on_cpu,
        )
    named = [(part, item) for part in ("recipe", "prompts", "data") for item in (facts or {}).get(part, {}).items()]
    settings.facts = {f"{part}.{_NOT_IN_NAMES.sub('_', name)}": value for part, (name, value) in named}
    takes_none = settings.max_steps == 0 or (settings.max_steps < 0 and settings.num_train_epochs <= 0)
    if takes_none and (settings.max_steps == 0 or recipe.probe is None):
        raise _refuse("training", "no step to take: max_steps, or else num_train_epochs, is above 0")
    return settings


def _overlap_batches(section: dict[str, Any], micro_batches: int, processes: int) -> dict[str, Any]:
    """Return data loader options that keep a GPU busy.

    While the GPU computes a step, worker processes collate the next batches in the same order and copy them to the GPU.
    """
    cores = cpu_count() // int(os.environ.get("LOCAL_SIZE", processes))
    workers = section.get("dataloader_num_workers", max(1, min(4, cores - 1)))
    return {
        "dataloader_num_workers": workers,
        "dataloader_persistent_workers": workers > 0,
        "dataloader_prefetch_factor": max(2, -(-micro_batches // workers)) if workers else None,
        "accelerator_config": {"non_blocking": True},
    }


def use_liger(settings: transformers.TrainingArguments, recipe: Recipe, model: Any) -> str | None:
    """Enable Liger's kernels on a GPU if they support the model family.

    Return a line that says what Liger computes, or why it is not used; None if it is not wanted.
    """
    if not recipe.training.get("use_liger_kernel", torch.cuda.is_available()):
        return None
    if not is_liger_kernel_available():
        return f"Liger's kernels are not installed; with them training is faster and smaller: {install_extra('gpu')}"
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN  # noqa: PLC0415 - wants Triton

    family = model.config.model_type
    settings.use_liger_kernel = known = family in MODEL_TYPE_TO_APPLY_LIGER_FN
    return "Liger computes norms, rotation and gates" if known else f"Liger has no kernels for {family}"


def _deepspeed_config(recipe: Recipe) -> dict[str, Any]:
    """Return DeepSpeed's configuration: the recipe's `deepspeed` section plus defaults and what this program needs."""
    section = recipe.deepspeed
    # In bf16 what many micro-batches add to a gradient is rounded away; adapters have few gradients to keep in fp32.
    exact = recipe.lora is not None and section.get("bf16", {}).get("enabled") is True
    # Without the last key ZeRO-3 would export no weights.
    zero = {**section.get("zero_optimization", {}), "stage3_gather_16bit_weights_on_model_save": True}
    sums = {"data_types": {"grad_accum_dtype": "fp32"}} if exact else {}
    return {**_TABLES["defaults"]["deepspeed"], **sums, **section, "zero_optimization": zero}


@contextmanager
def report_bad_values(begun: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Convert errors of transformers, PyTorch, DeepSpeed and trackers about configuration values to a UsageError of one
    line.

    Errors after training has started (`begun()` is True) are raised unchanged, because no value causes them.
    """
    try:
        yield
    except (ImportError, RuntimeError, TypeError, ValueError) as error:
        # No value is to blame for a lack of memory.
        if begun() or isinstance(error, torch.OutOfMemoryError):
            raise
        why = " ".join(str(error).split())
        if isinstance(error, torch.distributed.DistNetworkError):
            port = os.environ.get("MASTER_PORT")
            message = f"port {port}, at which the processes meet, cannot be used; give another (-- --master_port N): "
            raise UsageError(message + why[:200]) from None
        raise _refuse("training", why[:300]) from None
    except Exception as error:
        # Each tracker has exceptions of its own.
        tracker = type(error).__module__.partition(".")[0]
        if begun() or tracker not in TRACKERS:
            raise
        problem = f"report_to {tracker} cannot be used ({one_line(error)}); {TRACKERS[tracker]}"
        raise _refuse("training", problem) from None
