"""The rating as a distribution: from the judge's token probabilities to one score.

The reply is constrained to `{"Rating":N,…`, so the alternatives of the token at N are the judge's
probabilities of a first digit. Where 10 is spelt "1" + "0", what follows a 1 decides between them.
"""

import math
import re

from msgspec import Struct

from critic.backends import Token
from critic.records import RATINGS

SCORE_KINDS = ("expected", "median", "argmax")
_BEFORE_RATING = re.compile(r'"Rating"\s*:\s*$')
_NUMBER = re.compile(r"\s*(10|[1-9])(?!\d)")


class FirstDigit(Struct, frozen=True):
    """Probabilities read at the rating's first token: `mass[i]` of rating i + 1, where `mass[0]` is
    of "1" with whatever follows. `ten_given_one` is the probability that a 0 follows the 1, None
    if it is still to be asked with `prefix` (the reply up to and with the 1) as the beginning."""

    mass: list[float]
    ten_given_one: float | None
    prefix: str


def first_digit(tokens: list[Token]) -> FirstDigit | None:
    """What the reply's tokens say of the rating, or None when they carry no alternatives for it."""
    text = ""
    for index, token in enumerate(tokens):
        if _BEFORE_RATING.search(text) and token.text.strip() and not _still_thinking(text):
            return _read(tokens, index, text)
        text += token.text
    return None


def _still_thinking(text: str) -> bool:
    return text.lstrip().startswith("<think>") and "</think>" not in text


def _read(tokens: list[Token], index: int, before: str) -> FirstDigit | None:
    mass = [0.0] * len(RATINGS)
    for text, logprob in tokens[index].alternatives:
        if number := _NUMBER.match(text):
            mass[int(number[1]) - 1] += math.exp(logprob)
    total = sum(mass)
    if total <= 0.0:
        return None
    ten_given_one: float | None = None
    if mass[-1] > 0.0 or mass[0] == 0.0:
        ten_given_one = 0.0  # 10 is a token of its own, or neither can come
    elif tokens[index].text.strip() == "1" and index + 1 < len(tokens):
        ten_given_one = zero_share(tokens[index + 1])
    return FirstDigit([value / total for value in mass], ten_given_one, before + "1")


def zero_share(token: Token) -> float | None:
    """The probability that a 0 comes at this token, among all its alternatives."""
    shares = [(text, math.exp(logprob)) for text, logprob in token.alternatives]
    total = sum(share for _, share in shares)
    return sum(share for text, share in shares if text.startswith("0")) / total if total > 0.0 else None


def distribution(first: FirstDigit, ten_given_one: float) -> list[float]:
    """Probabilities of the ratings 1..10 (ten numbers that sum to 1)."""
    ten = first.mass[-1] + first.mass[0] * ten_given_one
    return [first.mass[0] * (1.0 - ten_given_one), *first.mass[1:-1], ten]


def score(probabilities: list[float], kind: str) -> float:
    """One number on 1..10: the expected rating, the median (smallest rating with half of the mass
    at or below it), or the most probable rating (the lowest of equals)."""
    if kind == "expected":
        mean = math.fsum(rating * share for rating, share in zip(RATINGS, probabilities, strict=True))
        return min(max(mean, RATINGS[0]), RATINGS[-1])
    if kind == "median":
        below = 0.0
        for rating, share in zip(RATINGS, probabilities, strict=True):
            below += share
            if below >= 0.5:
                return float(rating)
        return float(RATINGS[-1])
    return float(max(RATINGS, key=lambda rating: probabilities[rating - 1]))
