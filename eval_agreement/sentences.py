"""What this room says in words, kept beside the code: tables of sentences (`sentences.toml`) and of other texts."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def texts_of(name: str) -> dict[str, Any]:
    """A .toml file of the package, by its path in it."""
    return tomllib.loads((files("eval_agreement") / name).read_text("utf-8"))


def say(key: str, **values: object) -> str:
    """The sentence of that name in `sentences.toml`, filled in."""
    return str(texts_of("sentences.toml")[key]).format(**values)
