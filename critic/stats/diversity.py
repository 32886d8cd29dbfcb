"""Lexical diversity (MTLD, McCarthy and Jarvis 2010), and the words of a text."""

import re
from collections.abc import Sequence

RATIO = 0.72
"""Type-token ratio below which a factor is complete."""

SHORTEST = 10
"""The fewest tokens of a factor."""


def words(text: str) -> list[str]:
    """Return a text's words in lower case; Chinese and Japanese, written without spaces, give one per character.

    >>> words("It's a well-known 红色 Kite!")
    ["it's", 'a', 'well-known', '红', '色', 'kite']
    """
    return re.findall(r"[\u3040-\u30ff\u4e00-\u9fff]|[^\W\u3040-\u30ff\u4e00-\u9fff]+(?:['’-]\w+)*", text.lower())


def mtld(tokens: Sequence[str]) -> float | None:
    """Return the MTLD of a text: the mean number of consecutive tokens with a type-token ratio of RATIO or more.

    The mean is over a forward and a backward pass; the tokens after the last factor count as part of a factor. A higher
    value means a richer text. Return None if no token repeats, so that no factor ends; `lexical_diversity.mtld`
    (Kyle 2020) returns 0 in that case.

    >>> round(mtld("the kite and the sea and the kite".split()), 2)
    4.48
    >>> mtld(words("a b c d")), mtld([])
    (None, None)

    Of these ten tokens, nine are different. The ratio fell from 1 to 0.9, which counts as a factor of 0.1 / 0.28:

    >>> round(mtld(words("a b c d e f g h i a")) * 0.1 / 0.28, 12)
    10.0
    """
    ways = [_one_way(tokens), _one_way(tokens[::-1])]
    return None if None in ways else sum(way for way in ways if way is not None) / 2


def _one_way(tokens: Sequence[str]) -> float | None:
    """Return the MTLD of one pass: the number of tokens divided by the number of factors, or None without factors.

    A factor is a run of tokens that ends when its type-token ratio falls below RATIO. The tokens after the last factor
    count as a fraction of one.
    """
    # A factor is a run of tokens that ends as soon as its ratio falls below RATIO.
    factors, types, length = 0.0, set[str](), 0
    for position, token in enumerate(tokens, 1):
        types.add(token)
        length += 1
        ratio = len(types) / length
        # The incomplete factor counts by how far its ratio has fallen towards RATIO.
        if position == len(tokens):
            factors += (1 - ratio) / (1 - RATIO)
        elif ratio < RATIO and length >= SHORTEST:
            factors, types, length = factors + 1, set(), 0
    return len(tokens) / factors if factors else None
