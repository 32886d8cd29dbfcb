"""Agreement between people's scores and a judge's, both on 1..10.

Definitions: AlignMMBench §5.2 (mean absolute error, Pearson, Spearman, Kendall, fuzzy and strict ranges), and
the quadratic weighted kappa.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray
from scipy import stats

from critic.records import RATINGS

Scores = Sequence[float | None] | NDArray[np.floating] | NDArray[np.integer]
Floats = NDArray[np.float64]
Range = tuple[int, int]

FUZZY_RANGES: tuple[Range, ...] = ((1, 2), (3, 5), (6, 8), (9, 10))
"""AlignMMBench §5.2: unusable, mostly wrong, mostly right, right. Both ends included."""

STRICT_RANGES: tuple[Range, ...] = ((1, 1), (2, 2), (3, 3), (4, 5), (6, 6), (7, 8), (9, 10))
"""AlignMMBench §5.2: the bands of the scoring rubric. Both ends included."""

_LOW, _HIGH = RATINGS[0], RATINGS[-1]
_DECIMALS = 12


class Agreement(Struct, frozen=True, kw_only=True):
    """The seven numbers over `n` pairs; `failed` judgments are left out of them.

    mae is in points (0..9), fuzzy and strict are shares (0..1), the correlations and qwk lie in -1..1.
    A metric is None exactly when `undefined` says why. `interval` holds the 95 % interval of each
    metric, None where there is none, and is empty where no interval was asked for; `groups` is the number of
    groups it stands on.
    """

    n: int
    failed: int
    mae: float | None
    pearson: float | None
    spearman: float | None
    kendall: float | None
    fuzzy: float | None
    strict: float | None
    qwk: float | None
    undefined: dict[str, str] = field(default_factory=dict)
    interval: dict[str, tuple[float, float] | None] = field(default_factory=dict)
    groups: int | None = None


def half_up(scores: Floats) -> Floats:
    """Nearest whole numbers, halves upwards (2.5 -> 3; Python's and NumPy's `round` give 2)."""
    return np.floor(scores + 0.5)


def bands(scores: Floats, ranges: Sequence[Range]) -> NDArray[np.intp]:
    """Index of the range each score falls in. A score between two ranges (2.5) is rounded half up first."""
    return np.searchsorted([high for _, high in ranges], half_up(scores))


def _same_band(human: Floats, judge: Floats, ranges: Sequence[Range]) -> float | None:
    return float(np.mean(bands(human, ranges) == bands(judge, ranges))) if human.size else None


def mae(human: Floats, judge: Floats) -> float | None:
    """Mean absolute difference in points; None without pairs."""
    return float(np.mean(np.abs(human - judge))) if human.size else None


def fuzzy(human: Floats, judge: Floats) -> float | None:
    """Share of pairs in the same of FUZZY_RANGES; None without pairs."""
    return _same_band(human, judge, FUZZY_RANGES)


def strict(human: Floats, judge: Floats) -> float | None:
    """Share of pairs in the same of STRICT_RANGES; None without pairs."""
    return _same_band(human, judge, STRICT_RANGES)


def _no_correlation(human: Floats, judge: Floats) -> str | None:
    """Why two samples have no correlation; None when they have one."""
    if human.size < 2:
        return "a correlation needs at least two pairs"
    if np.ptp(judge) == 0:
        return "the judge gave every response the same score"
    if np.ptp(human) == 0:
        return "people gave every response the same score"
    return None


def _correlation(test: Callable[..., Any], human: Floats, judge: Floats) -> float | None:
    if _no_correlation(human, judge):
        return None
    return float(np.clip(test(human, judge).statistic, -1, 1))


def pearson(human: Floats, judge: Floats) -> float | None:
    """Pearson's r; None with fewer than two pairs or where either side is constant."""
    return _correlation(stats.pearsonr, human, judge)


def spearman(human: Floats, judge: Floats) -> float | None:
    """Spearman's rho, ties at their average rank; None as for `pearson`."""
    return _correlation(stats.spearmanr, human, judge)


def kendall(human: Floats, judge: Floats) -> float | None:
    """Kendall's tau-b; None as for `pearson`."""
    return _correlation(stats.kendalltau, human, judge)


def qwk(human: Floats, judge: Floats) -> float | None:
    """Cohen's kappa with quadratic weights over the whole scale 1..10 (Cohen 1968).

    1 - sum (h - j)^2 / expected sum under independence: for whole scores what scikit-learn gives with
    labels 1..10, for others Lin's concordance coefficient, which is the same formula. None without pairs
    and where both sides are one and the same constant.
    """
    if not human.size:
        return None
    expected = np.var(human) + np.var(judge) + (np.mean(human) - np.mean(judge)) ** 2
    return float(1 - np.mean((human - judge) ** 2) / expected) if expected else None


METRICS: dict[str, Callable[[Floats, Floats], float | None]] = {
    "mae": mae,
    "pearson": pearson,
    "spearman": spearman,
    "kendall": kendall,
    "fuzzy": fuzzy,
    "strict": strict,
    "qwk": qwk,
}
"""Every metric by name: two float arrays of one length on 1..10 in, a number out."""

NAMES = {
    "mae": "MAE",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "kendall": "Kendall",
    "fuzzy": "fuzzy",
    "strict": "strict",
    "qwk": "kappa",
}
"""The metrics as people write them."""

LOWER_IS_BETTER = frozenset({"mae"})
SHARES = frozenset({"fuzzy", "strict"})


def _array(scores: Scores, whose: str) -> Floats:
    values = np.array([np.nan if score is None else score for score in scores], dtype=np.float64)
    off = values[(values < _LOW) | (values > _HIGH)]
    if off.size:
        raise ValueError(f"{whose} score {off[0]:g} is outside {_LOW}..{_HIGH}")
    # Arithmetic leaves dust (1.1 + 2.2 != 3.3), which would make ties and constant samples look varied.
    return np.round(values, _DECIMALS)


def paired(human: Scores, judge: Scores) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Both as float arrays, and which pairs have a judgment. Raises ValueError as `agreement` says."""
    people, judged = _array(human, "human"), _array(judge, "judge")
    if len(people) != len(judged):
        raise ValueError(f"{len(people)} human scores but {len(judged)} judge scores")
    if np.isnan(people).any():
        raise ValueError(f"the human score of pair {int(np.argmax(np.isnan(people)))} (from 0) is missing")
    return people, judged, ~np.isnan(judged)


def agreement(human: Scores, judge: Scores) -> Agreement:
    """The agreement of two equally long samples on 1..10; None or NaN in `judge` is a failed judgment.

    - Failed judgments are dropped and counted; nothing is put in their place.
    - What is undefined is None with a reason, never 0 and never NaN: everything without pairs; the
      correlations with one pair, or where either side is constant (MAE and ranges stay defined); kappa
      where both sides are the same constant.
    - Scores need not be whole. MAE and correlations take them as they are; for the ranges a score is
      rounded half up first, so 2.5 counts as 3. Scores equal to 12 decimals are equal.

    Raises ValueError for unequal lengths, a missing human score, or a score outside 1..10.
    """
    people, judged, used = paired(human, judge)
    people, judged = people[used], judged[used]
    values = {name: metric(people, judged) for name, metric in METRICS.items()}
    reason = "no pairs" if not people.size else _no_correlation(people, judged)
    return Agreement(
        n=int(used.sum()),
        failed=int((~used).sum()),
        mae=values["mae"],
        pearson=values["pearson"],
        spearman=values["spearman"],
        kendall=values["kendall"],
        fuzzy=values["fuzzy"],
        strict=values["strict"],
        qwk=values["qwk"],
        undefined={name: reason for name, value in values.items() if value is None and reason},
    )
