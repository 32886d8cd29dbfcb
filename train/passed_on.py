"""The sections of a recipe that go to transformers and DeepSpeed as they are, checked beforehand."""

import difflib
from collections.abc import Iterable
from dataclasses import fields
from typing import get_type_hints

import deepspeed
import msgspec
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


def check(recipe: Recipe) -> None:
    """Raises UsageError for what DeepSpeed and transformers pass over, or stumble over once the run is under way: a key
    that they do not know, a value of another type, a stage that there is not."""
    _require_known("training", recipe.training, {each.name for each in fields(transformers.TrainingArguments)})
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
            continue  # a kind that is no plain one
    names = {name for name in vars(deepspeed.runtime.constants).values() if isinstance(name, str)}
    _require_known("deepspeed", recipe.deepspeed, names | {"zero_optimization"}, all_known=False)
    config, section = deepspeed.runtime.zero.config.DeepSpeedZeroConfig, "deepspeed.zero_optimization"
    zero = recipe.deepspeed.get("zero_optimization", {})
    if not isinstance(zero, dict):
        raise UsageError(f"the recipe's {section} section: expected keys and values, got {zero!r}")
    aliases = {each.alias for each in config.model_fields.values() if each.alias}
    _require_known(section, zero, {*config.model_fields, *aliases})
    try:
        config(**{name: value for name, value in zero.items() if value != "auto"})  # which transformers fills in
    except ValueError as error:  # pydantic's: how many, and then for each a line with its place and one that says it
        lines = str(error).splitlines()
        raise UsageError(f"the recipe's {section} section: {' '.join(map(str.strip, lines[1:3] or lines))}") from None
