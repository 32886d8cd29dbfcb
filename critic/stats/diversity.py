"""MTLD, the measure of textual lexical diversity (McCarthy and Jarvis 2010), and the words of a text."""

import re
from collections.abc import Sequence

RATIO = 0.72
"""Types per token below which a factor is full."""

SHORTEST = 10
"""Tokens of a factor, at least."""


def words(text: str) -> list[str]:
    """A text's words in lower case; of Chinese and Japanese, which do without spaces, every character."""
    return re.findall(r"[\u3040-\u30ff\u4e00-\u9fff]|[^\W\u3040-\u30ff\u4e00-\u9fff]+(?:['’-]\w+)*", text.lower())


def mtld(tokens: Sequence[str]) -> float | None:
    """The mean number of tokens in a row that keep their share of types at RATIO or more, read forwards and backwards;
    what is left at the end counts as part of a factor. Longer rows are richer; None where no token comes twice, and
    hence there is no end to them. As `lexical_diversity.mtld` (Kyle 2020) has it, which gives 0 there."""
    ways = [_one_way(tokens), _one_way(tokens[::-1])]
    return None if None in ways else sum(way for way in ways if way is not None) / 2


def _one_way(tokens: Sequence[str]) -> float | None:
    factors, types, length = 0.0, set[str](), 0
    for position, token in enumerate(tokens, 1):
        types.add(token)
        length += 1
        ratio = len(types) / length
        if position == len(tokens):
            factors += (1 - ratio) / (1 - RATIO)
        elif ratio < RATIO and length >= SHORTEST:
            factors, types, length = factors + 1, set(), 0
    return len(tokens) / factors if factors else None
