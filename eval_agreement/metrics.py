"""Agreement between people's scores and a judge's, both on 1..10: one entry of METRICS for each way to measure it.

Definitions: AlignMMBench §5.2 (mean absolute error, Pearson, Spearman, Kendall, fuzzy and strict ranges), and
the quadratic weighted kappa. Each has two forms: of the pairs of one sample, and of many resamples at once, which
depend on the pairs only through how often each pair of values occurs (`PairCounts`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from critic.counting.coded import Coded, chosen
from critic.counting.resampling import Estimate, Floats, Interval, blocks, ratio
from critic.records import RATINGS

Scores = Sequence[float | None] | Coded | NDArray[np.floating] | NDArray[np.integer]
Indices = NDArray[np.intp]
Range = tuple[int, int]
OfPairs = Callable[[Floats, Floats], Floats]
"""People's and the judge's scores, arrays of one shape, to a number for each pair."""

FUZZY_RANGES: tuple[Range, ...] = ((1, 2), (3, 5), (6, 8), (9, 10))
"""AlignMMBench §5.2: unusable, mostly wrong, mostly right, right. Both ends included."""

STRICT_RANGES: tuple[Range, ...] = ((1, 1), (2, 2), (3, 3), (4, 5), (6, 6), (7, 8), (9, 10))
"""AlignMMBench §5.2: the bands of the scoring rubric. Both ends included."""

_LOW, _HIGH = RATINGS[0], RATINGS[-1]
_DECIMALS = 12


class PairCounts(ABC):
    """R samples of pairs of scores, known by how often every pair of values occurs in each. No sample is empty."""

    @abstractmethod
    def total(self, of: OfPairs) -> Floats:
        """The sum over pairs of a function of both scores, in each sample: shape (R,)."""

    @property
    @abstractmethod
    def size(self) -> Floats:
        """Pairs of each sample: shape (R,)."""

    @property
    @abstractmethod
    def varied(self) -> NDArray[np.bool_]:
        """Whether neither side of a sample is constant: shape (R,)."""

    @property
    @abstractmethod
    def moments(self) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
        """Mean and variance of people's scores and of the judge's, shape (R,) each."""

    @property
    @abstractmethod
    def rank_squares(self) -> tuple[Floats, Floats]:
        """The sums over pairs of people's and of the judge's average ranks, less their mean, squared: (R,) each."""

    @property
    @abstractmethod
    def rank_product(self) -> Floats:
        """The sum over pairs of the product of both ranks, less their means: shape (R,)."""

    @property
    @abstractmethod
    def ties(self) -> tuple[Floats, Floats]:
        """How often each value of people's and of the judge's occurs, squared and summed: shape (R,) each."""

    @property
    @abstractmethod
    def balance(self) -> Floats:
        """Concordant less discordant pairs of pairs: shape (R,)."""

    def mean(self, of: OfPairs) -> Floats:
        """The mean over pairs of a function of both scores, in each sample: shape (R,)."""
        return self.total(of) / self.size

    def correlation(self, values: Floats) -> Floats:
        """`values` cut to -1..1, NaN in samples where either side is constant."""
        return np.where(self.varied, np.clip(values, -1, 1), np.nan)


class Metric(Struct, frozen=True, kw_only=True):
    """A way to say how far a judge's scores agree with people's.

    `name` is what people write. `of_pairs` takes both sides' scores, shape (n,) each, and gives None where the metric
    is undefined; `of_counts` takes R samples and gives one number for each, shape (R,), NaN where it is undefined.
    A `share` lies in 0..1. `note` explains the metric, and those after it without one, in the report's small print.
    """

    name: str
    of_pairs: Callable[[Floats, Floats], float | None]
    of_counts: Callable[[PairCounts], Floats]
    lower_is_better: bool = False
    share: bool = False
    note: str = ""


def half_up(scores: Floats) -> Floats:
    """Nearest whole numbers, halves upwards (2.5 -> 3; Python's and NumPy's `round` give 2)."""
    return np.floor(scores + 0.5)


def bands(scores: Floats, ranges: Sequence[Range]) -> Indices:
    """Index of the range each score falls in. A score between two ranges (2.5) is rounded half up first."""
    return np.searchsorted([high for _, high in ranges], half_up(scores))


def _mean_of_pairs(of: OfPairs) -> Callable[[Floats, Floats], float | None]:
    """The form for pairs of a metric that is the mean over pairs of a function; None without pairs."""
    return lambda human, judge: float(np.mean(of(human, judge))) if human.size else None


def _distance(human: Floats, judge: Floats) -> Floats:
    return np.abs(human - judge)


def _squared_distance(human: Floats, judge: Floats) -> Floats:
    return (human - judge) ** 2


def _same_band(ranges: Sequence[Range]) -> OfPairs:
    return lambda human, judge: np.asarray(bands(human, ranges) == bands(judge, ranges), dtype=np.float64)


def no_correlation(human: Floats | Coded, judge: Floats | Coded) -> str | None:
    """Why two samples have no correlation; None when they have one."""
    if len(human) < 2:
        return "a correlation needs at least two pairs"
    if _constant(judge):
        return "the judge gave every response the same score"
    if _constant(human):
        return "people gave every response the same score"
    return None


def _constant(scores: Floats | Coded) -> bool:
    return len(scores.values) == 1 if isinstance(scores, Coded) else bool(np.ptp(scores) == 0)


def _scipy(test: Callable[..., Any]) -> Callable[[Floats, Floats], float | None]:
    """A correlation of SciPy's; None with fewer than two pairs or where either side is constant."""

    def correlation(human: Floats, judge: Floats) -> float | None:
        if no_correlation(human, judge):
            return None
        return float(np.clip(test(human, judge).statistic, -1, 1))

    return correlation


def _pearson(counts: PairCounts) -> Floats:
    (human_mean, human_variance), (judge_mean, judge_variance) = counts.moments
    covariance = counts.mean(np.multiply) - human_mean * judge_mean
    return counts.correlation(ratio(covariance, np.sqrt(human_variance * judge_variance)))


def _spearman(counts: PairCounts) -> Floats:
    human, judge = counts.rank_squares
    return counts.correlation(ratio(counts.rank_product, np.sqrt(human * judge)))


def _kendall(counts: PairCounts) -> Floats:
    """Tau-b: `balance` over the root of the pairs of pairs not tied on each side, all counted in both orders."""
    size = counts.size**2
    human, judge = (np.maximum(size - ties, 0) for ties in counts.ties)
    return counts.correlation(ratio(2 * counts.balance, np.sqrt(human * judge)))


def _qwk(human: Floats, judge: Floats) -> float | None:
    """Cohen's kappa with quadratic weights over the whole scale 1..10 (Cohen 1968).

    1 - sum (h - j)^2 / expected sum under independence: for whole scores what scikit-learn gives with
    labels 1..10, for others Lin's concordance coefficient, which is the same formula. None without pairs
    and where both sides are one and the same constant.
    """
    if not human.size:
        return None
    expected = np.var(human) + np.var(judge) + (np.mean(human) - np.mean(judge)) ** 2
    return float(1 - np.mean((human - judge) ** 2) / expected) if expected else None


def _qwk_of_counts(counts: PairCounts) -> Floats:
    (human_mean, human_variance), (judge_mean, judge_variance) = counts.moments
    expected = human_variance + judge_variance + (human_mean - judge_mean) ** 2
    return 1 - ratio(counts.mean(_squared_distance), expected)


_same_fuzzy, _same_strict = _same_band(FUZZY_RANGES), _same_band(STRICT_RANGES)

METRICS: dict[str, Metric] = {
    "mae": Metric(
        name="MAE",
        of_pairs=_mean_of_pairs(_distance),
        of_counts=lambda counts: counts.mean(_distance),
        lower_is_better=True,
        note="MAE: mean distance in points, lower is better.",
    ),
    "pearson": Metric(
        name="Pearson",
        of_pairs=_scipy(stats.pearsonr),
        of_counts=_pearson,
        note="Correlations: −1 to 1, Kendall is tau-b.",
    ),
    "spearman": Metric(name="Spearman", of_pairs=_scipy(stats.spearmanr), of_counts=_spearman),
    "kendall": Metric(name="Kendall", of_pairs=_scipy(stats.kendalltau), of_counts=_kendall),
    "fuzzy": Metric(
        name="fuzzy",
        of_pairs=_mean_of_pairs(_same_fuzzy),
        of_counts=lambda counts: counts.mean(_same_fuzzy),
        share=True,
        note="Fuzzy and strict: share of answers in the same range, {1–2, 3–5, 6–8, 9–10} and "
        "{1, 2, 3, 4–5, 6, 7–8, 9–10}; scores between whole numbers are rounded half up first.",
    ),
    "strict": Metric(
        name="strict",
        of_pairs=_mean_of_pairs(_same_strict),
        of_counts=lambda counts: counts.mean(_same_strict),
        share=True,
    ),
    "qwk": Metric(name="kappa", of_pairs=_qwk, of_counts=_qwk_of_counts, note="Kappa: quadratic weights."),
}
"""Every metric by its name in options and files. What reports, gates, comparisons and training measure follows from
this table: a metric is added by its two functions and an entry."""


class Agreement(Struct, frozen=True, kw_only=True):
    """Every metric of METRICS over `n` pairs, by name; `failed` judgments are left out of them.

    `agreement.mae` is short for `agreement.estimates["mae"].value`: mae is in points (0..9), fuzzy and strict are
    shares (0..1), the correlations and qwk lie in -1..1. An estimate's value is None exactly when its `undefined` says
    why.
    `groups` is the number of groups that the 95 % intervals stand on, None where none were asked for.
    """

    n: int
    failed: int
    estimates: Mapping[str, Estimate]
    groups: int | None = None

    def __getattr__(self, name: str) -> float | None:
        if name not in METRICS:
            raise AttributeError(f"{name!r} is neither a metric nor a field of Agreement")
        return self.estimates[name].value

    @property
    def undefined(self) -> dict[str, str]:
        """Why metrics have no value, by name; those that have one are not in it."""
        return {name: one.undefined for name, one in self.estimates.items() if one.value is None and one.undefined}

    @property
    def interval(self) -> dict[str, Interval | None]:
        """The 95 % interval of each metric, None where it has none; empty where no interval was asked for."""
        return {} if self.groups is None else {name: one.interval for name, one in self.estimates.items()}


def on_scale(scores: Scores, whose: str) -> Coded:
    """Coded, NaN for None. Raises ValueError for a score outside 1..10, saying whose it is."""
    found = Coded.of(scores)
    off = (found.values < _LOW) | (found.values > _HIGH)
    if off.any():
        first = next(part for part in blocks(found.code) if off[part].any())
        raise ValueError(f"{whose} score {found.values[first][off[first]][0]:g} is outside {_LOW}..{_HIGH}")
    # Arithmetic leaves dust (1.1 + 2.2 != 3.3), which would make ties and constant samples look varied.
    plain = np.round(found.values, _DECIMALS)
    return found if np.array_equal(found.values, plain, equal_nan=True) else found.map(lambda _: plain)


def same_length(human: Sized, others: Mapping[str, Sized | None]) -> None:
    """Raises ValueError for a column that is not as long as people's scores, naming it."""
    for what, values in others.items():
        if values is not None and len(values) != len(human):
            raise ValueError(f"{len(human)} human scores but {len(values)} {what}")


def paired(human: Scores, judge: Scores) -> tuple[Coded, Coded, NDArray[np.bool_]]:
    """Both coded, and which pairs have a judgment (n,). Raises ValueError as `agreement` says."""
    people, judged = on_scale(human, "human"), on_scale(judge, "judge")
    same_length(human, {"judge scores": judge})
    if np.isnan(people.values).any():
        raise ValueError(f"the human score of row {int(np.argmin(people.known))} (from 0) is missing")
    return people, judged, judged.known


def values_of_pairs(human: ArrayLike, judge: ArrayLike) -> dict[str, float | None]:
    """Every metric of two samples without failures, shape (n,) each, by name; None where it is undefined."""
    people, judged = np.asarray(human, dtype=np.float64), np.asarray(judge, dtype=np.float64)
    return {name: metric.of_pairs(people, judged) for name, metric in METRICS.items()}


def agreement(
    human: Scores, judge: Scores, *, values_of: Callable[[Coded, Coded], Mapping[str, float | None]] = values_of_pairs
) -> Agreement:
    """The agreement of two equally long samples on 1..10; None or NaN in `judge` is a failed judgment. `values_of`
    measures.

    - Failed judgments are dropped and counted; nothing is put in their place.
    - What is undefined is None with a reason, never 0 and never NaN: everything without pairs; the
      correlations with one pair, or where either side is constant (MAE and ranges stay defined); kappa
      where both sides are the same constant.
    - Scores need not be whole. MAE and correlations take them as they are; for the ranges a score is
      rounded half up first, so 2.5 counts as 3. Scores equal to 12 decimals are equal.

    Raises ValueError for unequal lengths, a missing human score, or a score outside 1..10.
    """
    people, judged, used = paired(human, judge)
    people, judged = chosen(used, people), chosen(used, judged)
    reason = "no pairs" if not len(people) else no_correlation(people, judged) or "undefined on these scores"
    values = values_of(people, judged)
    return Agreement(
        n=len(people),
        failed=int((~used).sum()),
        estimates={
            name: Estimate(value=value, n=len(people), undefined=reason if value is None else None)
            for name, value in values.items()
        },
    )
