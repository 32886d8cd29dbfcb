"""Patterns by which a request is read: lists of words and verbose expressions in words.toml."""

from pathlib import Path

import regex as re
from msgspec import toml

_WORDS: dict[str, list[str] | str] = toml.decode(Path(__file__).with_name("words.toml").read_bytes())


def expand(name: str) -> str:
    """Return a pattern of words.toml: the alternatives in the list `name`, or the verbose expression of this name.

    >>> expand("object")
    '(?-x:json|object|dictionary|structure|format|fields|keys|schema)'
    """
    words = _WORDS[name]
    written = f"(?x:{words})" if isinstance(words, str) else f"(?-x:{'|'.join(words)})"
    return str(re.sub(r"\{([a-z_]+)\}", lambda inner: expand(inner[1]), written))


def pattern(name: str, flags: int = 0) -> re.Pattern[str]:
    """Compile a pattern of words.toml (`expand`)."""
    return re.compile(expand(name), flags)
