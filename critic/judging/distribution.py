"""Compute a distribution over ratings from the judge's token probabilities, and a score from the distribution.

The reply is constrained to `{"Rating":N,…` or `{"Reason":"…","Rating":N}`, so the top log probabilities of the token
where N begins are the judge's probabilities of the first digit. If 10 is tokenized as "1" + "0", the token after a 1
tells 1 from 10. Ratings are whole numbers on a scale (lowest, highest), by default 1..10. Scores are always on 1..10.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise, product
from statistics import fmean, median
from typing import Literal

from msgspec import Struct

from critic.backends import Token
from critic.judging.targets import RATING
from critic.judging.thoughts import answer_at
from critic.records import RATINGS, TEN, Scale, Summary, Verdict, to_ten

ScoreKind = Literal["expected", "median", "argmax"]
"""The statistic of a rating distribution that is used as the score: mean, median or mode."""

Aggregation = Literal["mean", "median"]
"""The statistic that combines the scores of a panel of judges."""

_NUMBER = re.compile(r"\s*(10|\d)(?!\d)")
_VALUE = re.compile(rf'"{RATING}"\s*:\s*$')


MOST_RATINGS = 1000
"""The largest difference between highest and lowest rating of a scale. Wider scales would exhaust the memory."""


class FirstDigit(Struct, frozen=True):
    """Probabilities of the ratings, read at the first token of the rating.

    - `mass`: a probability for each rating of the scale, lowest first, with the sum 1. If 10 is tokenized as "1" + "0",
      the entry of rating 1 includes the probability of 10.
    - `ten_given_one`: the probability (0..1) that a 0 follows the 1, or None if the tokens do not show it.
    - `on_ratings`: the total probability (0..1) of all ratings before normalization.
    """

    mass: list[float]
    ten_given_one: float | None
    on_ratings: float


def first_digit(tokens: list[Token], last: bool = False, scale: Scale = TEN, behind: str = "") -> FirstDigit | None:
    r"""Return the probabilities of the ratings, read at the first token of the rating in a judge's reply.

    Return None if the reply has no rating, if no rating is among that token's top log probabilities, or if the scale is
    too wide (MOST_RATINGS).

    Args:
        tokens: The reply's tokens with their top log probabilities.
        last: Read the last rating in the reply instead of the first.
        scale: The lowest and the highest rating.
        behind: Text that directly precedes the rating to read, to select one of several ratings; "" for any.

    >>> tokens = [Token('"Rating":', []), Token("?", [("3", -0.1), ("1", -3.0)])]
    >>> first_digit(tokens, scale=(1, 10**12)), len(first_digit(tokens, scale=(0, 100)).mass)
    (None, 101)

    A 10 may be one token, or a 1 and a 0. Probability that the token after the 1 leaves open does not count as a 0:

    >>> def read(rating, behind):
    ...     chances = [[(text, math.log(share)) for text, share in each.items()] for each in (rating, behind)]
    ...     return first_digit([Token('"Rating":', []), *(Token(each[0][0], each) for each in chances)])
    >>> whole = read(rating={"10": 0.5, "1": 0.25, "8": 0.25}, behind={",": 1.0})
    >>> whole.ten_given_one, distribution(whole, 0.0)
    (0.0, [0.25, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.25, 0.0, 0.5])
    >>> written = read(rating={"1": 0.8, "9": 0.2}, behind={"0": 0.75, ',"': 0.25})
    >>> round(written.ten_given_one, 9), round(distribution(written, 0.75)[9], 9)
    (0.75, 0.6)
    >>> round(read(rating={"1": 1.0}, behind={"0": 0.6, ",": 0.3}).ten_given_one, 9)
    0.6

    Ratings within thoughts do not count, with or without a mark at the beginning of the thoughts:

    >>> def rating(*texts, **options):
    ...     digit = first_digit([Token(text, [(text, 0.0)]) for text in texts], **options)
    ...     return digit and digit.mass.index(1.0) + 1
    >>> quoted = 'I quote {"Rating":', "9", '}. No. {"Rating":', "2", "}"
    >>> rating(*quoted, last=True), rating(*quoted), rating()
    (2, 9, None)
    >>> thoughts, verdict = ['{"Rating":', "9", "</think>"], ['{"Rating":', "2", ","]
    >>> rating("<think>", *thoughts, *verdict), rating("<think>", *thoughts[:-1]), rating("Maybe ", *thoughts, *verdict)
    (2, None, 2)
    >>> rating('{"Rating":', "2", ',"Reason":"it ends with\n</think>\n', '\\"Rating\\":10"}')
    2
    """
    text, digit = "", None
    start = answer_at("".join(token.text for token in tokens))
    for index, token in enumerate(tokens):
        is_value = token.text.strip() and len(text) >= start and _VALUE.search(text)
        if is_value and text.rstrip().endswith(behind.rstrip()):
            digit = _read_mass(tokens[index : index + 2], *scale)
            if not last:
                return digit
        text += token.text
    return digit


def _read_mass(tokens: list[Token], low: int, high: int) -> FirstDigit | None:
    if high - low > MOST_RATINGS:
        return None
    mass = [0.0] * (high - low + 1)
    for text, logprob in tokens[0].alternatives:
        number = _NUMBER.match(text)
        if number and low <= int(number[1]) <= high:
            mass[int(number[1]) - low] += math.exp(logprob)
    total = sum(mass)
    if total <= 0.0:
        return None
    ten_given_one: float | None = None
    if high < 10 or mass[-1] > 0.0 or mass[1 - low] == 0.0:
        ten_given_one = 0.0  # 10 is no rating, or a token of its own, or neither it nor a 1 can come
    elif tokens[0].text.strip() == "1":
        ten_given_one = zero_share(tokens[1:])
    return FirstDigit([value / total for value in mass], ten_given_one, total)


def zero_share(tokens: list[Token]) -> float | None:
    """Return the probability (0..1) that the first of `tokens` begins with "0", or None without top log probabilities.

    The probability outside the top alternatives does not count as a 0.
    """
    shares = [(text, math.exp(logprob)) for token in tokens[:1] for text, logprob in token.alternatives]
    total = sum(share for _, share in shares)
    return sum(share for text, share in shares if text.startswith("0")) / max(total, 1.0) if total > 0.0 else None


def distribution(first: FirstDigit, ten_given_one: float, scale: Scale = TEN) -> list[float]:
    """Return the probabilities of the scale's ratings, lowest first, with the sum 1.

    Args:
        first: The probabilities read at the rating's first token.
        ten_given_one: The probability (0..1) that a 0 follows the 1. This share of the probability of 1 moves to 10.
    """
    shares, at_one = list(first.mass), 1 - scale[0]
    if scale[1] >= 10:
        shares[-1] += shares[at_one] * ten_given_one
        shares[at_one] *= 1.0 - ten_given_one
    return shares


def _list_points(scale: Scale) -> tuple[float, ...]:
    """Return the scale's ratings, lowest first, converted to 1..10."""
    return tuple(to_ten(rating, *scale) for rating in range(scale[0], scale[1] + 1))


def score(probabilities: Sequence[float], kind: str, scale: Scale = TEN) -> float:
    """Return the score of a distribution on 1..10.

    Args:
        probabilities: One for each rating of the scale, lowest first.
        kind: "expected" for the mean, "median" for the smallest rating with half of the probability at or below it,
            "argmax" for the most probable rating (the lowest one in a tie).

    >>> [round(score([0.5, 0, 0, 0, 0, 0, 0, 0, 0.25, 0.25], kind), 2) for kind in ("expected", "median", "argmax")]
    [5.25, 1.0, 1.0]
    >>> score([0.49, 0, 0, 0, 0, 0, 0, 0, 0, 0.51], "median"), score([0.5, 0, 0, 0, 0, 0, 0, 0, 0, 0.5], "median")
    (10.0, 1.0)
    """
    points = _list_points(scale)
    if kind == "expected":
        mean = math.fsum(point * share for point, share in zip(points, probabilities, strict=True))
        return min(max(mean, points[0]), points[-1])
    if kind == "median":
        half = (point for point, below in zip(points, accumulate(probabilities), strict=True) if below >= 0.5)
        return next(half, points[-1])
    return max(zip(probabilities, points, strict=True), key=lambda pair: (pair[0], -pair[1]))[1]


def summary(probabilities: Sequence[float], scale: Scale = TEN) -> Summary:
    """Return the mode, mean, median, standard deviation (all on 1..10) and entropy (in bits) of a rating distribution.

    `probabilities`: one for each rating of `scale`, lowest first.
    """
    expected = score(probabilities, "expected", scale)
    spread = (share * (point - expected) ** 2 for point, share in zip(_list_points(scale), probabilities, strict=True))
    return Summary(
        argmax=score(probabilities, "argmax", scale),
        expected=expected,
        median=score(probabilities, "median", scale),
        deviation=math.sqrt(math.fsum(spread)),
        entropy=math.fsum(-share * math.log2(share) for share in probabilities if share > 0.0),
    )


def scored(verdict: Verdict, kind: str) -> float | None:
    """Return the score (1..10) of a rating verdict, or None if the verdict failed.

    `kind`: a ScoreKind. If the verdict has no distribution, the score is the rating that the judge stated.
    """
    if verdict.failure is not None or verdict.distribution is None:
        return None if verdict.failure else verdict.rating
    return score(verdict.distribution, kind, verdict.scale or TEN)


def _move_onto(score: float, scale: Scale) -> float:
    """Convert a score on 1..10 linearly to `scale`, rounded so that whole numbers stay whole."""
    low, high = scale
    return round(score if scale == TEN else low + (high - low) * (score - TEN[0]) / (TEN[1] - TEN[0]), 9)


def whole_rating(score: float, scale: Scale = TEN) -> int:
    """Convert a score on 1..10 to the nearest whole rating of `scale`; halves go up.

    >>> whole_rating(6.5), whole_rating(9.549), whole_rating(to_ten(4.8, 1, 5))
    (7, 10, 10)
    >>> scores = 2.124, 2.125, 4.374, 4.375, 5.5, 9.549, to_ten(4.8, 1, 5)
    >>> [whole_rating(score, (1, 5)) for score in scores], [whole_rating(score, (0, 10)) for score in scores]
    ([1, 2, 2, 3, 3, 5, 5], [1, 1, 4, 4, 5, 9, 10])
    """
    low, high = scale
    return min(max(math.floor(_move_onto(score, scale) + 0.5), low), high)


def probabilities(score: float, scale: Scale = TEN) -> list[float]:
    """Convert a score on 1..10 to probabilities of the ratings of `scale`, lowest first, with the sum 1.

    A score between two ratings is split between them, so that the mean is the score.

    >>> probabilities(2.25, (1, 10))[:3]
    [0.0, 0.75, 0.25]
    """
    low, high = scale
    return [max(0.0, 1.0 - abs(_move_onto(score, scale) - rating)) for rating in range(low, high + 1)]


def count_scores(scales: Mapping[str, Scale]) -> list[int]:
    """Return the number of possible scores of each criterion, in the sorted order of the criteria.

    `scales`: criterion -> lowest and highest score. If it is empty, return [10], the number of ratings.

    >>> count_scores({"right": (0, 2), "fluent": (0, 1)})
    [2, 3]
    """
    return [high - low + 1 for _, (low, high) in sorted(scales.items())] or [len(RATINGS)]


def split_by_criterion(shares: Sequence[float], scales: Mapping[str, Scale]) -> dict[str, Sequence[float]]:
    """Split the class probabilities of a scoring head that rates by criteria into one sequence per criterion.

    `shares`: the probabilities of all criteria, sorted by criterion (`count_scores`). `scales`: criterion -> lowest and
    highest score.

    >>> split_by_criterion([0.5, 0.5, 0.2, 0.8], {"right": (1, 2), "fluent": (0, 1)})
    {'fluent': [0.5, 0.5], 'right': [0.2, 0.8]}
    """
    ends = [0, *accumulate(count_scores(scales))]
    return {name: shares[start:end] for name, (start, end) in zip(sorted(scales), pairwise(ends), strict=True)}


def add_criteria(by_name: Mapping[str, Sequence[float]], weights: Mapping[str, float]) -> list[float]:
    """Return the probabilities [10] of the ratings 1..10 for a weighted sum of the scores by several criteria.

    The scores are taken as independent. The lowest possible sum becomes 1 and the highest 10; sums are rounded to
    0.0001 on that scale. A sum between two ratings is split between them (`probabilities`).

    Args:
        by_name: Criterion -> probabilities of its scores, lowest first.
        weights: The criteria to add -> weight of one point of their scores.

    >>> by_name = {"right": [0.5, 0, 0.5], "explained": [0.5, 0.5], "polite": [0.5, 0.5], "fluent": [1, 0]}
    >>> [round(share, 3) for share in add_criteria(by_name, {"right": 1, "explained": 1})]
    [0.25, 0.0, 0.0, 0.25, 0.0, 0.0, 0.25, 0.0, 0.0, 0.25]
    >>> [round(share, 3) for share in add_criteria(by_name, {"polite": 2, "fluent": 1})][6:8]
    [0.5, 0.0]
    """
    highest = sum(weight * (len(by_name[name]) - 1) for name, weight in weights.items())
    sums: Mapping[float, float] = {TEN[0]: 1.0}
    for name, weight in weights.items():
        step = (TEN[1] - TEN[0]) * weight / highest
        longer = defaultdict[float, float](float)
        for (point, share), (index, own) in product(sums.items(), enumerate(by_name[name])):
            longer[round(point + step * index, 4)] += share * own
        sums = longer
    totals = [0.0] * len(RATINGS)
    for point, share in sums.items():
        for index, part in enumerate(probabilities(min(point, float(TEN[1])))):
            totals[index] += share * part
    return totals


def aggregated(how: Aggregation, scores: Iterable[float | None]) -> float:
    """Return the mean or median (`how`) of a panel's scores. None is ignored; at least one score must not be None."""
    return float((fmean if how == "mean" else median)(score for score in scores if score is not None))
