"""Access to the package's tables of texts: the sentences of audits (`sentences.toml`) and other .toml files."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def texts_of(name: str) -> dict[str, Any]:
    """Load a .toml file of the package, given its path in the package."""
    return tomllib.loads((files("eval_agreement") / name).read_text("utf-8"))


def say(key: str, **values: object) -> str:
    """Return the sentence `key` of `sentences.toml` with `values` filled in.

    >>> say("too_few_questions", who="gpt4", groups=12, fewest=20, more=8)
    'No decision on gpt4: 12 questions are too few, 20 are needed; label answers to 8 more.'
    """
    return str(texts_of("sentences.toml")[key]).format(**values)
