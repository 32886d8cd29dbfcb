"""Build the regular expressions that parse a judge's answer, from words.toml (lists of words) and patterns.toml."""

import re
from functools import cache
from pathlib import Path

from msgspec import toml

LISTS: dict[str, dict[str, list[str]]] = toml.decode(Path(__file__).with_name("words.toml").read_bytes())
"""Name of a list -> key or language -> words: the content of words.toml, whose comments explain it."""

_EXPRESSIONS = toml.decode(Path(__file__).with_name("patterns.toml").read_bytes(), type=dict[str, str])

_PLACE = re.compile(r"\{([a-z_]+)(?:\.(en|zh))?\}")
"""Matches a placeholder: a value, another expression or a list of words. It does not match quantifiers ({2,60})."""


def any_of(name: str, edge: str = "") -> str:
    """Return a pattern that matches any word in the list `name` of words.toml.

    `edge`: pattern to put before and after the English words, such as a word boundary.
    """
    english, chinese = ("|".join(LISTS[name][lang]) for lang in ("en", "zh"))
    return f"(?:{edge}(?:{english}){edge}|{chinese})"


def word_pattern(name: str) -> re.Pattern[str]:
    """Compile a pattern that matches any word in the list `name` of words.toml, ignoring case."""
    return re.compile(any_of(name, r"\b"), re.IGNORECASE)


def expand(name: str, **values: object) -> str:
    """Return the expression `name` of patterns.toml with its placeholders filled, as a group to use in other patterns.

    `values`: patterns for the placeholders that are neither another expression nor a list of words.

    >>> re.fullmatch(expand("ordered"), "A >> B") is not None
    True
    """

    def fill(place: re.Match[str]) -> str:
        inner, lang = place.groups()
        if inner in _EXPRESSIONS:
            return expand(inner, **values)
        words = "|".join(LISTS[inner][lang]) if lang else values[inner] if inner in values else any_of(inner)
        # Blanks in words are significant, unlike those in expressions.
        return f"(?-x:{words})"

    return f"(?x:{_PLACE.sub(fill, _EXPRESSIONS[name])})"


@cache
def pattern(name: str, flags: int = 0, **values: object) -> re.Pattern[str]:
    """Compile the expression `name` of patterns.toml. `flags`: as in `re.compile`. `values`: as in `expand`."""
    return re.compile(expand(name, **values), flags)
