"""Two judges of the same answers, linked by anchors, the answers that both scored.

`measure_change` splits a change of the mean into the judge's and the model's part; `convert` moves scores of one judge
onto the other's scale. Every figure is a function of sums over answers, which are resampled by group.
"""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from critic.errors import UsageError
from critic.records import RATINGS
from critic.stats.arrays import Floats, ratio
from critic.stats.estimate import FEWEST_TO_DECIDE, Bootstrap, Estimate
from eval_agreement.measures.compare import MARGINS
from eval_agreement.sample import RatedSample

MOST_OUTSIDE = 0.1
"""Largest share (0..1) of the scores to convert that may lie outside the range of the anchors' scores."""

KNOTS = (0.25, 0.5, 0.75)
"""Quantiles of the anchors' scores that are knots of the linear spline."""


class Converted(Struct, frozen=True, kw_only=True):
    """A score converted to the other judge's scale: the mean of all answers, the mean of a model, or a single score.

    `score`: the value before conversion. `mean`: the value after it.
    `rank`: a model's best and worst possible place among the models, from 1; None for other lines.
    """

    name: str
    score: float
    mean: Estimate
    rank: tuple[int, int] | None = None


class Conversion(Struct, frozen=True, kw_only=True):
    """Scores of judge `source` on the scale of judge `target`, fitted on `anchors` answers that both scored."""

    source: str
    target: str
    anchors: int
    lines: list[Converted]

    @property
    def reading(self) -> str:
        """The converted mean of all answers, as a sentence."""
        low, high = self.lines[0].mean.interval or (np.nan, np.nan)
        worth = f"{self.lines[0].mean.value:.2f} ({low:.2f} to {high:.2f})"
        return f"A mean of {self.lines[0].score:.2f} by {self.source} is {worth} on the scale of {self.target}."


def convert_both_ways(sample: RatedSample, names: tuple[str, str]) -> list[Conversion]:
    """Convert the earlier judge's scores (the sample's `human`) to the scale of the later judge (its `scores`).

    If the later judge scored answers that the earlier did not, also convert the later judge's scores back. `names`: the
    earlier and the later judge.
    """
    before, after = sample.human, sample.scores
    conversions = [convert(sample, names, before, after)]
    if (np.isnan(before) & ~np.isnan(after)).any():
        conversions.append(convert(sample, (names[1], names[0]), after, before))
    return conversions


def convert(sample: RatedSample, names: tuple[str, str], source: Floats, target: Floats) -> Conversion:
    """Convert the scores `source` to the scale of `target`, both (n,), NaN if not scored.

    `names`: the judges of `source` and `target`. The conversion is a linear spline with KNOTS, fitted by least squares
    on the answers that both scored (anchors).
    Raises UsageError if there are too few anchors, or if too many scores to convert lie outside the anchors' range.
    """
    anchors, known = ~np.isnan(source + target), ~np.isnan(source)
    questions = len(np.unique(sample.groups[anchors]))
    if questions < FEWEST_TO_DECIDE:
        both = f"{names[0]} and {names[1]} both scored answers to {questions} questions"
        raise UsageError(f"{both}; a conversion takes {FEWEST_TO_DECIDE}")
    low, high = float(source[anchors].min()), float(source[anchors].max())
    models = {"all": known}
    for name, rows in sample.part_rows("answerer"):
        if (rows & known).any():
            models[name] = rows & known
    for name, rows in models.items():
        # Beyond the anchors the line would be extrapolated, and its intervals would not show it.
        if (share := np.mean((source[rows] < low) | (source[rows] > high))) > MOST_OUTSIDE:
            whose = f"{name}: {share:.0%} of the scores by {names[0]} lie outside {low:g} to {high:g}"
            raise UsageError(f"{whose}, where both scored answers; have {names[1]} score some of these")
    knots = np.unique(np.quantile(source[anchors], KNOTS))
    knots = knots[(knots > low) & (knots < high)]
    draws = Bootstrap(sample.groups)
    slopes, means = _resample_line(
        draws,
        source=np.where(known, source, 0),
        target=np.where(anchors, target, 0),
        anchors=anchors,
        models=models,
        knots=knots,
    )
    # The first column of means is that of all answers, which has no place among models.
    places = draws.places(dict(zip(list(models)[1:], means[1:, 1:].T, strict=True)))
    lines = []
    for (name, rows), values in zip(models.items(), means.T, strict=True):
        mean = draws.estimate(values, int(rows.sum()), undefined="no answers", groups=questions)
        lines.append(Converted(name=name, score=float(source[rows].mean()), mean=mean, rank=places.get(name)))
    levels = [score for score in RATINGS if low <= score <= high]
    converted_levels = slopes @ _basis(np.array(levels, dtype=np.float64), knots)
    n = int(anchors.sum())
    for score, values in zip(levels, converted_levels.T, strict=True):
        mean = draws.estimate(values, n, undefined="no answers", groups=questions)
        lines.append(Converted(name=f"a score of {score}", score=score, mean=mean))
    return Conversion(source=names[0], target=names[1], anchors=n, lines=lines)


def _resample_line(
    draws: Bootstrap,
    source: Floats,
    target: Floats,
    anchors: NDArray[np.bool_],
    models: Mapping[str, NDArray[np.bool_]],
    knots: Floats,
) -> tuple[Floats, Floats]:
    """Fit the linear spline in the sample and in each of R resamples.

    `anchors`: mask of the rows to fit on. `models`: masks of the rows to average, by name. Rows without a score hold 0.
    Returns the coefficients, (1 + R, 2 + knots), and each model's converted mean, (1 + R, models), the sample first.
    """
    basis = _basis(source, knots)
    k = len(basis)
    # Sums over the anchors for the normal equations, then each model's sums of the basis.
    columns = [left * right for left in basis * anchors for right in basis]
    columns += [*(basis * target)]
    for rows in models.values():
        columns += [*(basis * rows)]
    sums = draws.resample_sums(np.arange(len(source)), np.array(columns))
    squares, products, totals = np.split(sums, [k * k, k * k + k], axis=1)
    # A resample without anchors on one side of a knot has no unique line; the pseudo-inverse takes the smallest.
    inverse = np.linalg.pinv(squares.reshape(-1, k, k), hermitian=True)
    slopes = np.einsum("rij,rj->ri", inverse, products)
    totals = totals.reshape(len(sums), -1, k)
    return slopes, ratio(np.einsum("rmi,ri->rm", totals, slopes), totals[:, :, 0])


def _basis(scores: Floats, knots: Floats) -> Floats:
    """Return the basis functions of a linear spline at `scores` (n,), shape (2 + knots, n).

    >>> _basis(np.array([2.0, 6.0]), knots=np.array([5.0])).tolist()
    [[1.0, 1.0], [2.0, 6.0], [0.0, 1.0]]
    """
    return np.stack([np.ones_like(scores), scores, *(np.maximum(scores - knot, 0) for knot in knots)])


class Change(Struct, frozen=True, kw_only=True):
    """A change of the mean score between two times, in points, split into two parts.

    - judge: mean of now minus then, over the answers judged at both times. model: the rest of `total`; undefined
      without new answers.
    - holds: False if the judge has changed or the model has become worse by a margin that counts, or if there are too
      few questions to decide; else True.
    """

    total: Estimate
    judge: Estimate
    model: Estimate
    holds: bool
    reading: str


def measure_change(sample: RatedSample) -> Change:
    """Measure the change from the earlier scores (the sample's `human`) to the present ones (its `scores`).

    NaN is an answer not scored at that time. Raises UsageError if no answer was judged at both times.
    """
    then, now = sample.human, sample.scores
    before, after = ~np.isnan(then), ~np.isnan(now)
    again, new = before & after, after & ~before
    if not again.any():
        raise UsageError(
            "no answer was judged at both times: judge some of the earlier ones again, to tell who changed"
        )
    draws = Bootstrap(sample.groups)
    columns = [np.where(before, then, 0), np.where(again, now - then, 0), np.where(new, now, 0), before, again, new]
    sums = draws.resample_sums(np.arange(len(then)), np.array(columns, dtype=np.float64)).T
    mean_before, moved, mean_new = (ratio(total, count) for total, count in zip(sums[:3], sums[3:], strict=True))
    groups = len(np.unique(sample.groups[again]))
    # Without new answers the whole change is the judge's; the mean of none, NaN, leaves the model's part undefined.
    total = mean_new - mean_before if new.any() else moved
    by_model = total - moved if new.any() else mean_new

    def estimate(values: Floats, rows: NDArray[np.bool_]) -> Estimate:
        return draws.estimate(values, int(rows.sum()), undefined="no answer is new", null=0.0, groups=groups)

    judge = estimate(moved, again)
    model = estimate(by_model, new)
    changes = []
    if _shown_side(judge) != 0:
        changes.append("the judge has changed")
    if _shown_side(model) < 0:
        changes.append("the model has become worse")
    # Few questions may hide a change: exit code 0 would say that there is none.
    if groups < FEWEST_TO_DECIDE:
        changes = [f"not decided: anchors on {groups} questions, {FEWEST_TO_DECIDE} are needed"]
    reading = f"{', and '.join(changes) or 'no change that counts is shown'} (by {MARGINS['mae']:g} points or more)"
    overall = estimate(total, new if new.any() else again)
    return Change(total=overall, judge=judge, model=model, holds=not changes, reading=reading)


def _shown_side(part: Estimate) -> int:
    """Return the sign of a change (1 or -1) if it is shown and may be as large as the margin, else 0."""
    low, high = part.interval or (0.0, 0.0)
    return part.side * (max(-low, high) > MARGINS["mae"])
