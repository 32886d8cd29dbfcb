"""Read a training recipe, apply overrides from the command line, and check that its keys are consistent.

A recipe names its objective, one of the modules in `objectives/`. README.md explains how to add one.
"""

import re
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from objective import Objective, RatingTokens
from recipe_keys import SAVED_AS, Recipe, used_forms
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from critic.errors import UsageError, did_you_mean, located
from critic.judging.forms import check_mix, form_of

OBJECTIVES: dict[str, type[Objective]] = {
    file.stem: import_module(f"objectives.{file.stem}").OBJECTIVE
    for file in sorted(Path(__file__).with_name("objectives").glob("*.py"))
}
"""Name in a recipe -> objective."""

OWN_KEYS = {name: key for objective in OBJECTIVES.values() for name, key in objective.keys.items()}
"""Recipe keys that belong to one objective: name -> (type, default)."""

FullRecipe: Any = msgspec.defstruct(
    "FullRecipe",
    [(name, kind, default) for name, (kind, default) in OWN_KEYS.items()],
    bases=(Recipe,),
    # Processes that make batches are sent the recipe by this name.
    module=__name__,
    kw_only=True,
)
"""A recipe with the keys of all objectives."""


def objective_of(recipe: Recipe, tokens: RatingTokens | None = None) -> Objective:
    """Return the objective of a recipe. `tokens` say how the base's tokenizer spells ratings, None if not yet known.

    Raise UsageError if the recipe names an unknown objective.
    """
    name = recipe.objective
    if name not in OBJECTIVES:
        raise UsageError(f"objective: unknown {name!r}; {did_you_mean(name, OBJECTIVES)}choose {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name](recipe, tokens)


def read_recipe(path: Path, overrides: list[str] | None = None) -> Recipe:
    """Return the recipe in a YAML file, with `overrides` such as `training.max_steps=100` applied.

    Raise UsageError, which names the wrong key and the most similar valid one, if the recipe is invalid.
    """
    content = _parse(path.read_bytes(), str(path))
    if isinstance(content, dict):
        if twice := next((name for name, saved in SAVED_AS.items() if {name, saved} <= content.keys()), None):
            raise UsageError(f"{path}: {SAVED_AS[twice]} is the former name of {twice}; give one of them")
        # Recipe knows these keys by the names under which they are saved.
        content = {SAVED_AS.get(name, name): section for name, section in content.items()}
        for override in overrides or []:
            _put(content, override)
    with located(path, UsageError):
        try:
            recipe: Recipe = msgspec.convert(content, FullRecipe)
        except msgspec.ValidationError as error:
            raise UsageError(_with_nearest(str(error).splitlines()[0])) from None
        _check(recipe)
    return recipe


def _parse(text: str | bytes, location: str) -> Any:
    """Parse YAML 1.2, in which 1e-5 is a number and `no` (a value of save_strategy) a word.

    Raise UsageError, with `location` and line, if it is not valid or a key is given twice.

    >>> _parse("{learning_rate: 1e-5, save_strategy: no}", "recipe.yaml")
    {'learning_rate': 1e-05, 'save_strategy': 'no'}
    """
    try:
        return YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UsageError(f"{location}{line}: not YAML: {error.problem}") from None
    except YAMLError as error:
        raise UsageError(f"{location}: not YAML: {str(error).splitlines()[0]}") from None


def _put(content: Any, override: str) -> None:
    """Set one KEY=VALUE in the parsed recipe `content`. Raise UsageError if KEY is inside a plain value.

    >>> sections = {"training": {"seed": 0}}
    >>> _put(sections, "training.max_steps=100")
    >>> sections
    {'training': {'seed': 0, 'max_steps': 100}}
    """
    name, equals, value = override.partition("=")
    if not equals:
        raise UsageError(f"--set takes KEY=VALUE, such as training.max_steps=100; got {override!r}")
    first, *deeper = name.split(".")
    *folders, last = SAVED_AS.get(first, first), *deeper
    for folder in folders:
        content = content.setdefault(folder, {}) if isinstance(content, dict) else None
    if not isinstance(content, dict):
        raise UsageError(f"--set {override}: {name} is no place in a recipe")
    content[last] = _parse(value, f"--set {override}")


def _with_nearest(message: str) -> str:
    """Rewrite msgspec's error message: name keys as in a recipe, and suggest the nearest key for an unknown one.

    msgspec names some keys as older recipes and saved judges do (SAVED_AS).
    """
    for name, saved in SAVED_AS.items():
        message = message.replace(f"`$.{saved}", f"`$.{name}")
    unknown = re.search(r"contains unknown field `([^`]+)`", message)
    if unknown is None:
        return message
    sections = msgspec.json.schema(FullRecipe)["$defs"].values()
    known = [*SAVED_AS, *chain.from_iterable(section.get("properties", ()) for section in sections)]
    return f"{message}; {did_you_mean(unknown[1], known)}".rstrip("; ")


def require(good: object, problem: str) -> None:
    """Raise UsageError with the message `problem` if `good` is falsy."""
    if not good:
        raise UsageError(problem)


def _check(recipe: Recipe) -> None:
    """Raise UsageError if the recipe's keys contradict each other."""
    require((recipe.base is None) != (recipe.tiny is None), "give either base (a model) or tiny (a random one)")
    objective = objective_of(recipe)
    _check_base(recipe, objective)
    sees = recipe.images == "show"
    has_vision = (recipe.vision is not None) == (sees and recipe.tiny is not None)
    require(has_vision, "a tiny model needs a vision section to be shown images, and no other has one")
    can_be_fitted = recipe.probe is None or (objective.takes_probe and not sees)
    require(can_be_fitted, "probe is for a scoring head that sees no images; set objective: head, images: blind")
    require(recipe.foreign is None or recipe.evaluation, "foreign needs evaluation and --internal FILE")
    # Two orders of the rows cannot both hold.
    ordered = recipe.training.get("train_sampling_strategy", "random") != "random"
    grouped = bool(recipe.group_by_question)
    require(not (grouped and ordered), "group_by_question decides on the order; set train_sampling_strategy: random")
    alone = 1 in (recipe.global_batch, recipe.training.get("per_device_train_batch_size", 1))
    meets = not alone and (recipe.group_by_question is True or recipe.group_by_question > 1)
    wanted = "objective: raft or head, group_by_question: true and per_device_train_batch_size: 2 or more"
    require(recipe.rank is None or (objective.ranks and meets), f"rank compares answers to one question; set {wanted}")
    _check_forms(recipe, objective)
    # Who asks for packed rows by name should not train padded ones unnoticed.
    packs = recipe.attention in {"auto", "sdpa", "flex_attention"}
    require(packs or not recipe.packing, f"rows are packed with auto, sdpa or flex_attention, not {recipe.attention}")
    # One precision in two places could differ.
    also = {"bf16", "fp16"} & (set(recipe.training) | set(recipe.deepspeed))
    require(recipe.precision is None or not also, f"precision decides on {', '.join(sorted(also))}; give one of them")


def _check_base(recipe: Recipe, objective: Objective) -> None:
    """Raise UsageError if adapters or a revision do not fit the base or the objective."""
    require(recipe.lora is None or recipe.base is not None, "lora adapts a base; a tiny model is trained whole")
    on_hub = recipe.revision is None or not Path(str(recipe.base)).exists()
    require(on_hub, f"revision is for a base by a hub's name; {recipe.base} is a folder")
    if recipe.lora is not None and recipe.lora.bits is not None:
        zero = recipe.deepspeed.get("zero_optimization")
        sharded = isinstance(zero, dict) and zero.get("stage") == 3
        require(not sharded, "lora bits 4 needs the base whole on each GPU; set zero_optimization stage 2 instead of 3")
        require(not objective.is_head(), f"lora bits 4 is for judges that write, not for objective {recipe.objective}")


def _check_forms(recipe: Recipe, objective: Objective) -> None:
    """Raise UsageError for unknown forms, and for forms that objective, counterfactuals or evaluation cannot use."""
    with located("forms", UsageError):
        check_mix(recipe.forms)
    used = used_forms(recipe)
    objective.check(used)
    if (changed := recipe.counterfactuals) is not None:
        require(changed.edited or changed.swapped, "counterfactuals: say how many points edited or swapped costs")
        # Without the image a swapped answer looks like the original, and would teach noise.
        sees = recipe.images == "show" and not objective.compares
        require(sees or not changed.swapped, "counterfactuals: swapped teaches ratings by images (images: show) alone")
        rated = any(form_of(form).kind.single_rating for form in used)
        learned = "pairwise" in used if objective.compares else rated
        where = "in forms such as pointwise, or the form pairwise by objective pairwise"
        require(learned, f"counterfactuals teach ratings, {where}")
    if recipe.evaluation is not None:
        objective.check_evaluation(used)
