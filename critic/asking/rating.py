"""The rating as a distribution: from the judge's token probabilities to one score.

The reply is constrained to `{"Rating":N,…` or `{"Reason":"…","Rating":N}`, so the alternatives of the token
at N are the judge's probabilities of a first digit. Where 10 is spelt "1" + "0", what follows a 1 decides
between them.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median

from msgspec import Struct

from critic.backends import Token
from critic.records import RATINGS, Summary

SCORE_KINDS = ("expected", "median", "argmax")
_RATING_KEY = re.compile(r'"Rating"\s*:\s*')
_BEFORE_RATING = re.compile(_RATING_KEY.pattern + "$")
_NUMBER = re.compile(r"\s*(10|[1-9])(?!\d)")


class FirstDigit(Struct, frozen=True):
    """Probabilities read at the rating's first token: `mass[i]` of rating i + 1, where `mass[0]` is
    of "1" with whatever follows. `ten_given_one` is the probability that a 0 follows the 1, None
    if the tokens do not tell."""

    mass: list[float]
    ten_given_one: float | None


def first_digit(tokens: list[Token], last: bool = False) -> FirstDigit | None:
    """What the reply's tokens say of the rating, the first in them or the last, or None when they carry no
    alternatives for it."""
    text, found = "", None
    for index, token in enumerate(tokens):
        if _BEFORE_RATING.search(text) and token.text.strip() and not _still_thinking(text):
            found = _read(tokens, index)
            if not last:
                return found
        text += token.text
    return found


def _still_thinking(text: str) -> bool:
    return text.lstrip().startswith("<think>") and "</think>" not in text


def _read(tokens: list[Token], index: int) -> FirstDigit | None:
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
    return FirstDigit([value / total for value in mass], ten_given_one)


def begun(text: str) -> str | None:
    """The reply `text` up to its last rating, `…"Rating":`; None where it has none."""
    keys = list(_RATING_KEY.finditer(text))
    return text[: keys[-1].end()] if keys else None


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


def summary(probabilities: Sequence[float]) -> Summary:
    """The figures that people read of a distribution over 1..10."""
    shares = list(probabilities)
    expected = score(shares, "expected")
    variance = math.fsum(share * (rating - expected) ** 2 for rating, share in zip(RATINGS, shares, strict=True))
    return Summary(
        argmax=score(shares, "argmax"),
        expected=expected,
        median=score(shares, "median"),
        deviation=math.sqrt(variance),
        entropy=math.fsum(-share * math.log2(share) for share in shares if share > 0.0),
    )


def mixture(distributions: Sequence[Sequence[float]]) -> list[float]:
    """The mean of one or more distributions over 1..10: each counts alike."""
    return [fmean(shares) for shares in zip(*distributions, strict=True)]


def majority(ratings: Iterable[float]) -> float:
    """The most frequent whole rating, halves rounded up; the lowest of equals."""
    counts = Counter(math.floor(rating + 0.5) for rating in ratings)
    most = max(counts.values())
    return float(min(rating for rating, count in counts.items() if count == most))


AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {"mean": fmean, "median": median, "majority": majority}
"""How a panel's scores become one: name -> function of one or more scores on 1..10."""
