"""The sections of a recipe that go to transformers and DeepSpeed as they are, checked beforehand."""

import difflib
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import get_type_hints

import deepspeed
import msgspec
import torch
import transformers
from recipe import Recipe

from critic.errors import UsageError


def _require_known(section: str, given: Iterable[str], known: Iterable[str], *, all_known: bool = True) -> None:
    """Raises UsageError for a key that is not known, naming the nearest; if not all are, only where one is near."""
    for key in set(given).difference(known):
        near = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.6 if all_known else 0.8)
        if near or all_known:
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"the recipe's {section} section: there is no {key}{hint}")


_SECTIONS = {
    "zero_optimization",
    "bf16",
    "fp16",
    "optimizer",
    "scheduler",
    "tensorboard",
    "flops_profiler",
    "checkpoint",
}
"""What DeepSpeed reads keys and values of."""


def check(recipe: Recipe) -> None:
    """Raises UsageError for what DeepSpeed and transformers pass over, or stumble over once the run is under way: a key
    that they do not know, a value of another type, a stage that there is not."""
    fields_by_name = {each.name: each for each in fields(transformers.TrainingArguments)}
    _require_known("training", recipe.training, fields_by_name)
    kinds = get_type_hints(transformers.TrainingArguments)
    given = {
        name: value for name, value in recipe.training.items() if (name, value) != ("train_sampling_strategy", None)
    }
    for name, value in given.items():
        try:
            msgspec.convert(value, kinds[name])
        except msgspec.ValidationError as error:
            raise UsageError(f"the recipe's training section: {name}: {error}, {value!r}") from None
        except TypeError:
            pass  # a kind that is no plain one
        choices = list(fields_by_name[name].metadata.get("choices") or [value])
        if value is not None and value not in choices:
            raise UsageError(f"the recipe's training section: {name}: {value!r} is none of {', '.join(choices)}")
    names = {name for name in vars(deepspeed.runtime.constants).values() if isinstance(name, str)}
    _require_known("deepspeed", recipe.deepspeed, names | {"zero_optimization"}, all_known=False)
    config, section = deepspeed.runtime.zero.config.DeepSpeedZeroConfig, "deepspeed.zero_optimization"
    for name in _SECTIONS & recipe.deepspeed.keys():
        if not isinstance(given_there := recipe.deepspeed[name], dict):
            raise UsageError(f"the recipe's deepspeed.{name} section: expected keys and values, got {given_there!r}")
    zero = recipe.deepspeed.get("zero_optimization", {})
    aliases = {each.alias for each in config.model_fields.values() if each.alias}
    _require_known(section, zero, {*config.model_fields, *aliases})
    try:
        config(**{name: value for name, value in zero.items() if value != "auto"})  # which transformers fills in
    except ValueError as error:  # pydantic's: how many, and then for each a line with its place and one that says it
        lines = str(error).splitlines()
        raise UsageError(f"the recipe's {section} section: {' '.join(map(str.strip, lines[1:3] or lines))}") from None


def require_free(recipe: Recipe, fixed: Iterable[str]) -> None:
    """Raises UsageError for a setting of transformers that is `fixed` here, whatever the recipe says."""
    for key in recipe.training.keys() & {*fixed}:
        raise UsageError(f"training.{key} is set by the program")


def require_logged_when_saved(found: transformers.TrainingArguments) -> None:
    """Raises UsageError for steps at which a run that is continued would log other losses."""
    both = found.save_strategy == found.logging_strategy == "steps" and found.logging_steps > 0
    times = found.save_steps / found.logging_steps if both else 1.0
    if not math.isclose(times, round(times), rel_tol=1e-9):
        raise UsageError(
            f"save_steps {found.save_steps:g} must be a multiple of logging_steps {found.logging_steps:g}, "
            "so that a run that is continued logs the same losses"
        )


@contextmanager
def telling() -> Iterator[None]:
    """Turns what transformers and PyTorch say against a value of the training section into one line."""
    try:
        yield
    except (UsageError, torch.OutOfMemoryError):  # of which no value is to blame
        raise
    except (ImportError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"the recipe's training section: {_words(error)}") from None


_OF_A_VALUE = ("is not supported on your device", "DeepSpeed does not recognize")
"""What DeepSpeed says where a value of its section is to blame."""


@contextmanager
def telling_of_deepspeed() -> Iterator[None]:
    """Turns what is said against the deepspeed section once training begins into one line: values that the training
    section has otherwise, and a precision that the device does not have."""
    try:
        yield
    except (ValueError, AssertionError) as error:
        unlike = [line.removeprefix("- ") for line in str(error).splitlines() if line.startswith("- ds ")]
        if not unlike and not any(words in str(error) for words in _OF_A_VALUE):
            raise
        told = f"unlike the training section: {'; '.join(unlike)}" if unlike else _words(error)
        raise UsageError(f"the recipe's deepspeed section: {told}") from None


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
