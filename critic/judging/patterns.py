"""Patterns by which a judge's answer is read: from the words in words.toml and the expressions in patterns.toml."""

import re
from functools import cache
from pathlib import Path

from msgspec import toml

LISTS: dict[str, dict[str, list[str]]] = toml.decode(Path(__file__).with_name("words.toml").read_bytes())
"""The content of words.toml, which explains it."""

_EXPRESSIONS = toml.decode(Path(__file__).with_name("patterns.toml").read_bytes(), type=dict[str, str])

_PLACE = re.compile(r"\{([a-z_]+)(?:\.(en|zh))?\}")
"""Matches the place of a value, another expression or a list of words. A quantifier such as {2,60} is none."""


def any_of(name: str, edge: str = "") -> str:
    """Return a pattern of the words in the list `name` of words.toml, with the pattern `edge` around English words."""
    english, chinese = ("|".join(LISTS[name][lang]) for lang in ("en", "zh"))
    return f"(?:{edge}(?:{english}){edge}|{chinese})"


def word_pattern(name: str) -> re.Pattern[str]:
    """Return a pattern that finds a word of the list `name` in words.toml, ignoring case."""
    return re.compile(any_of(name, r"\b"), re.IGNORECASE)


def expand(name: str, **values: object) -> str:
    """Return the expression `name` of patterns.toml as a group, which may stand within any other expression.

    `values`: the patterns of places that are neither another expression nor a list of words.

    >>> re.fullmatch(expand("ordered"), "A >> B") is not None
    True
    """

    def fill(place: re.Match[str]) -> str:
        inner, lang = place.groups()
        if inner in _EXPRESSIONS:
            return expand(inner, **values)
        words = "|".join(LISTS[inner][lang]) if lang else values[inner] if inner in values else any_of(inner)
        # Blanks in words are meant.
        return f"(?-x:{words})"

    return f"(?x:{_PLACE.sub(fill, _EXPRESSIONS[name])})"


@cache
def pattern(name: str, flags: int = 0, **values: object) -> re.Pattern[str]:
    """Compile the expression `name` of patterns.toml; `values` are as in `expand`."""
    return re.compile(expand(name, **values), flags)
