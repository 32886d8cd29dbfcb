"""Two judges of the same answers, by anchors that both scored: was it the model or the judge that changed, and what are
the scores of one on the scale of the other? All is a function of sums over answers, which are drawn by group."""

import numpy as np
from msgspec import Struct

from critic.errors import UsageError
from critic.records import RATINGS
from critic.stats.arrays import Floats, ratio
from critic.stats.estimate import FEWEST_TO_DECIDE, Bootstrap, Estimate
from eval_agreement.measures.compare import MARGINS
from eval_agreement.sample import RatedSample

MOST_OUTSIDE = 0.1
"""The share of scores to convert that may lie outside of those of the anchors."""

KNOTS = (0.25, 0.5, 0.75)
"""Quantiles of the anchors' scores between which a conversion is straight."""


class Converted(Struct, frozen=True, kw_only=True):
    """A mean `score` by one judge, on the other's scale: of all answers, of a model's, or a single score. `rank` is the
    best and the worst place that a model's differences from the others allow."""

    name: str
    score: float
    mean: Estimate
    rank: tuple[int, int] | None = None


class Conversion(Struct, frozen=True, kw_only=True):
    """Scores of a judge `source` on the scale of `target`, by so many `anchors`."""

    source: str
    target: str
    anchors: int
    lines: list[Converted]

    @property
    def reading(self) -> str:
        """What the mean of all answers is worth."""
        low, high = self.lines[0].mean.interval or (np.nan, np.nan)
        worth = f"{self.lines[0].mean.value:.2f} ({low:.2f} to {high:.2f})"
        return f"A mean of {self.lines[0].score:.2f} by {self.source} is {worth} on the scale of {self.target}."


def both_ways(sample: RatedSample, names: tuple[str, str]) -> list[Conversion]:
    """Of the judge before (`human`) to the one after it and, of answers that only the latter scored, back."""
    before, after = sample.human, sample.scores
    conversions = [convert(sample, names, before, after)]
    if (np.isnan(before) & ~np.isnan(after)).any():
        conversions.append(convert(sample, (names[1], names[0]), after, before))
    return conversions


def convert(sample: RatedSample, names: tuple[str, str], source: Floats, target: Floats) -> Conversion:
    """Least squares of the target on the source, (n,), NaN where not scored: a linear spline with KNOTS. Raises
    UsageError where anchors are too few, or the scores to convert lie outside of theirs."""
    anchors, known, draws = ~np.isnan(source + target), ~np.isnan(source), Bootstrap(sample.groups)
    questions = len(np.unique(sample.groups[anchors]))
    if questions < FEWEST_TO_DECIDE:
        both = f"{names[0]} and {names[1]} both scored answers to {questions} questions"
        raise UsageError(f"{both}; a conversion takes {FEWEST_TO_DECIDE}")
    low, high = source[anchors].min(), source[anchors].max()
    models = {"all": known} | {name: rows & known for name, rows in sample.values("answerer") if (rows & known).any()}
    for name, rows in models.items():
        if (share := np.mean((source[rows] < low) | (source[rows] > high))) > MOST_OUTSIDE:
            whose = f"{name}: {share:.0%} of the scores by {names[0]} lie outside {low:g} to {high:g}"
            raise UsageError(f"{whose}, where both scored answers; have {names[1]} score some of these")
    knots = np.unique(np.quantile(source[anchors], KNOTS))
    knots = knots[(knots > low) & (knots < high)]
    basis = _basis(np.where(known, source, 0), knots)
    columns = [*(left * right for left in basis * anchors for right in basis), *(basis * np.where(anchors, target, 0))]
    columns += [row for rows in models.values() for row in basis * rows]
    sums, k = draws.resample_sums(np.arange(len(known)), np.array(columns)), len(basis)
    squares, products, totals = np.split(sums, [k * k, k * k + k], axis=1)
    inverse = np.linalg.pinv(squares.reshape(-1, k, k), hermitian=True)
    slopes, totals = np.einsum("rij,rj->ri", inverse, products), totals.reshape(len(sums), -1, k)
    means = ratio(np.einsum("rmi,ri->rm", totals, slopes), totals[:, :, 0])
    whole = [score for score in RATINGS if low <= score <= high]
    levels = zip(whole, (slopes @ _basis(np.array(whole, dtype=np.float64), knots)).T, strict=True)
    places = draws.places(dict(zip(list(models)[1:], means[1:, 1:].T, strict=True)))

    def of(name: str, score: float, n: int, values: Floats, rank: tuple[int, int] | None = None) -> Converted:
        mean = draws.estimate(values, n, undefined="no answers", groups=questions)
        return Converted(name=name, score=score, mean=mean, rank=rank)

    lines = [
        of(name, float(source[rows].mean()), int(rows.sum()), values, places.get(name))
        for (name, rows), values in zip(models.items(), means.T, strict=True)
    ]
    lines += [of(f"a score of {score}", score, int(anchors.sum()), values) for score, values in levels]
    return Conversion(source=names[0], target=names[1], anchors=int(anchors.sum()), lines=lines)


def _basis(scores: Floats, knots: Floats) -> Floats:
    """What a straight line that bends at the knots is made of: shape (2 + knots, n)."""
    return np.stack([np.ones_like(scores), scores, *(np.maximum(scores - knot, 0) for knot in knots)])


class Change(Struct, frozen=True, kw_only=True):
    """How the mean score now differs from that of then, in points, `total`: the `judge`'s part is the mean of now less
    then over the anchors, the `model`'s what is left, None without new answers. `holds`: neither is the judge shown to
    have moved by more than a margin, nor the model to have fallen."""

    total: Estimate
    judge: Estimate
    model: Estimate
    holds: bool
    reading: str


def change(sample: RatedSample) -> Change:
    """Of scores then (`human`) and now (the judge's), NaN where not scored. Raises UsageError without anchors."""
    then, now, draws = sample.human, sample.scores, Bootstrap(sample.groups)
    scored, again = ~np.isnan(then), ~np.isnan(now)
    rows = scored, scored & again, again & ~scored
    if not rows[1].any():
        raise UsageError(
            "no answer was judged at both times: judge some of the earlier ones again, to tell who changed"
        )
    columns = [np.where(of, value, 0) for of, value in zip(rows, (then, now - then, now), strict=True)]
    sums = draws.resample_sums(np.arange(len(then)), np.array([*columns, *rows], dtype=np.float64)).T
    before, judge, after = (ratio(top, count) for top, count in zip(sums[:3], sums[3:], strict=True))
    groups = len(np.unique(sample.groups[rows[1]]))
    new = bool(rows[2].any())
    total = after - before if new else judge

    def of(values: Floats, n: int) -> Estimate:
        return draws.estimate(values, n, undefined="no answer is new", null=0.0, groups=groups)

    judged, model = of(judge, int(rows[1].sum())), of(total - judge if new else after, int(rows[2].sum()))
    moved, fallen = _shown(judged) != 0, _shown(model) < 0
    changes = ["the judge has changed"] * moved + ["the model has become worse"] * fallen
    if groups < FEWEST_TO_DECIDE:
        changes = [f"not decided: anchors on {groups} questions, {FEWEST_TO_DECIDE} are needed"]
    reading = f"{', and '.join(changes) or 'no change that counts is shown'} (by {MARGINS['mae']:g} points or more)"
    whole = of(total, int((rows[2] if new else rows[1]).sum()))
    return Change(total=whole, judge=judged, model=model, holds=not changes, reading=reading)


def _shown(part: Estimate) -> int:
    """1 or -1 where a change is shown and may be as large as the margin."""
    low, high = part.interval or (0.0, 0.0)
    return part.side * (max(-low, high) > MARGINS["mae"])
