"""Table of training objectives, one per module in `objectives/`. README.md explains how to add one."""

from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from objective import Objective
from rating_tokens import RatingTokens
from recipe_keys import Recipe

from critic.errors import UsageError, did_you_mean

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
    forbid_unknown_fields=True,
    kw_only=True,
)
"""A recipe with the keys of all objectives."""


def objective_of(recipe: Recipe, tokens: RatingTokens | None = None) -> Objective:
    """Return the objective of a recipe. `tokens` say how its tokenizer spells ratings, None if not yet known.

    Raise UsageError if the recipe names an unknown objective.
    """
    name = recipe.objective
    if name not in OBJECTIVES:
        raise UsageError(f"objective: unknown {name!r}; {did_you_mean(name, OBJECTIVES)}choose {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name](recipe, tokens)
