"""Build the regular expressions that read a request from the lists of words and verbose expressions in words.toml."""

from pathlib import Path

import regex as re
from msgspec import toml

_WORDS: dict[str, list[str] | str] = toml.decode(Path(__file__).with_name("words.toml").read_bytes())


def expand(name: str) -> str:
    """Return the entry `name` of words.toml as a regular expression: a list as alternatives, or a verbose expression.

    A placeholder `{other}` in the entry stands for the expression of the entry `other`.

    >>> expand("object")
    '(?-x:json|object|dictionary|structure|format|fields|keys|schema)'
    """
    words = _WORDS[name]
    written = f"(?x:{words})" if isinstance(words, str) else f"(?-x:{'|'.join(words)})"
    return str(re.sub(r"\{([a-z_]+)\}", lambda inner: expand(inner[1]), written))


def pattern(name: str, flags: int = 0) -> re.Pattern[str]:
    """Compile the entry `name` of words.toml (`expand`)."""
    return re.compile(expand(name), flags)
