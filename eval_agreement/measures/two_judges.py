"""Compare two judges, or one judge at two times, through anchors: the answers that both scored.

`measure_change` splits a change of the mean score into the judge's and the model's part. `convert` converts scores of
one judge to the scale of the other. Models' means are converted by prediction-powered inference (`ppi`): the anchors
are the labelled answers, and the other judge's scores are their labels.
"""

from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from critic.errors import UsageError
from critic.records import RATINGS, TEN
from critic.stats.arrays import Floats, ratio
from critic.stats.estimate import FEWEST_TO_DECIDE, Bootstrap, Estimate, Places, count_places, widen
from eval_agreement.measures.compare import MARGINS
from eval_agreement.measures.ppi import compare_models, corrected_mean
from eval_agreement.sample import AuditRequest, Mask, RatedSample
from eval_agreement.sentences import say

MOST_OUTSIDE = 0.1
"""Largest share (0..1) of the scores to convert that may lie outside the range of the anchors' scores."""

FEWEST_ANCHORS = 10
"""Fewest questions on which a model must have anchors for its mean to be converted. With fewer, intervals are too
narrow."""

KNOTS = (0.25, 0.5, 0.75)
"""Quantiles of the anchors' scores that are the knots of the linear spline by which single scores are converted."""


class Converted(Struct, frozen=True, kw_only=True):
    """A score converted to the other judge's scale: the mean of all answers, the mean of a model, or a single score.

    `score`: the value before conversion. `mean`: the value after conversion. For a single score this is the mean score
    that the other judge is expected to give to answers with that score.
    `rank`: a model's best and worst possible place among the models, from 1; None for other lines.
    """

    name: str
    score: float
    mean: Estimate
    rank: tuple[int, int] | None = None


class Conversion(Struct, frozen=True, kw_only=True):
    """Scores of judge `source` on the scale of judge `target`, by `anchors` answers that both scored.

    `cautions`: sentences on models whose anchors do not look like a random draw of their answers.
    """

    source: str
    target: str
    anchors: int
    lines: list[Converted]
    cautions: list[str]

    @property
    def reading(self) -> str:
        """The converted mean of all answers, as a sentence."""
        return say("exchanged", conversion=self, overall=self.lines[0])


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

    `names`: the judges of `source` and `target`. Anchors are the answers that both scored. Means are converted model by
    model, by prediction-powered inference with the anchors' `target` scores as labels. (One line through all anchors
    would draw the models towards each other, because both judges err.) A model without enough anchors has no converted
    mean. Single scores are converted by a linear spline with KNOTS, fitted to the anchors by least squares.
    Raises UsageError if there are too few anchors, or if too many scores to convert lie outside the anchors' range.
    """
    anchors, known = ~np.isnan(source + target), ~np.isnan(source)
    questions = len(np.unique(sample.groups[anchors]))
    if questions < FEWEST_TO_DECIDE:
        raise UsageError(say("few_in_common", names=names, questions=questions, fewest=FEWEST_TO_DECIDE))
    low, high = float(source[anchors].min()), float(source[anchors].max())
    models = {"all": known, **{name: rows & known for name, rows in sample.part_rows("answerer")}}
    for name, rows in models.items():
        # Scores that no anchor has show that the anchors are no random draw.
        if rows.any() and (share := np.mean((source[rows] < low) | (source[rows] > high))) > MOST_OUTSIDE:
            raise UsageError(say("outside_anchors", model=name, share=share, names=names, low=low, high=high))
    # Ranks are those of the models over all tasks.
    parts = {"answerer": sample.parts.get("answerer", [])}
    answers = replace(sample, human=target, judges={names[0]: source}, parts=parts)
    lines, cautions = _convert_means(answers.rows(known), target=names[1])
    lines += _expect_scores(sample.rows(anchors), source[anchors], target[anchors])
    return Conversion(source=names[0], target=names[1], anchors=int(anchors.sum()), lines=lines, cautions=cautions)


def _convert_means(answers: RatedSample, target: str) -> tuple[list[Converted], list[str]]:
    """Return the converted means of all answers and of each model, and cautions on models' anchors.

    `answers`: the answers to convert. Their `human` scores are those of the judge `target`, NaN if it gave none.
    """
    anchored, chance = ~np.isnan(answers.human), np.ones(len(answers.ids))
    models = dict(answers.part_rows("answerer"))
    lacking = dict[str, str]()
    for name, rows in models.items():
        anchors = rows & anchored
        questions = len(np.unique(answers.groups[anchors]))
        if questions < FEWEST_ANCHORS:
            lacking[name] = say("few_anchors", target=target, model=name, questions=questions, fewest=FEWEST_ANCHORS)
        # Shares of anchors may differ, but a model counts by its answers in the mean of all.
        chance[rows] = max(anchors.sum(), 1) / rows.sum()
    enough = np.array([name not in lacking for name in answers.parts["answerer"]], dtype=bool)
    places = _rank(answers.rows(enough)) if models else {}
    lines, cautions = list[Converted](), list[str]()
    for name, rows in {"all": np.ones_like(anchored), **models}.items():
        chosen = replace(answers.rows(rows), probability=chance if models and name == "all" else None)
        mean = corrected_mean(chosen, "; ".join(lacking.values()) if name == "all" else lacking.get(name))
        estimate = Estimate(value=mean.value, n=len(chosen.ids), interval=mean.interval, undefined=mean.undefined)
        score = float(chosen.scores.mean())
        lines.append(Converted(name=name, score=score, mean=estimate, rank=places.get(name)))
        if mean.caution:
            cautions.append(say("no_random_anchors", name=name, target=target, why=mean.caution))
    return lines, cautions


def _rank(answers: RatedSample) -> Places:
    """Return each model's possible places by converted mean; empty if answers are not grouped by question.

    `answers`: as in `_convert_means`, only models with enough anchors.
    """
    pairs = compare_models(answers, AuditRequest())
    names = {name for pair in pairs for name in (pair.first, pair.second)}
    shown = [(pair.ahead, pair.first if pair.ahead == pair.second else pair.second) for pair in pairs if pair.ahead]
    return count_places(names, shown)


def _expect_scores(anchors: RatedSample, source: Floats, target: Floats) -> Iterator[Converted]:
    """Yield one line per rating: the mean `target` score expected for answers whose `source` score is this rating.

    `source`, `target`: the anchors' scores by the judge to convert from, and by the judge to convert to, (n,). Ratings
    outside the range of `source` are left out. A linear spline with KNOTS predicts `target` from `source`; it is fitted
    to the sample and to each resample.
    """
    draws, (low, high) = Bootstrap(anchors.groups), (source.min(), source.max())
    knots = np.unique(np.quantile(source, KNOTS))
    knots = knots[(knots > low) & (knots < high)]
    basis = _basis(source, knots)
    k = len(basis)
    columns = [left * right for left in basis for right in basis] + [*(basis * target)]
    squares, products = np.split(draws.resample_sums(np.arange(len(source)), np.array(columns)), [k * k], axis=1)
    # A resample without anchors on one side of a knot has no unique line; the pseudo-inverse takes the smallest.
    slopes = np.einsum("rij,rj->ri", np.linalg.pinv(squares.reshape(-1, k, k), hermitian=True), products)
    for score in [score for score in RATINGS if low <= score <= high]:
        # A line may leave the scale, where no mean of scores lies.
        values = np.clip((slopes @ _basis(np.array([float(score)]), knots))[:, 0], *TEN)
        mean = draws.estimate(values, len(source), undefined="no answers")
        yield Converted(name=f"a score of {score} (expected to get)", score=score, mean=mean)


def _basis(scores: Floats, knots: Floats) -> Floats:
    """Return the basis functions of a linear spline at `scores` (n,), shape (2 + knots, n).

    >>> _basis(np.array([2.0, 6.0]), knots=np.array([5.0])).tolist()
    [[1.0, 1.0], [2.0, 6.0], [0.0, 1.0]]
    """
    return np.stack([np.ones_like(scores), scores, *(np.maximum(scores - knot, 0) for knot in knots)])


class Change(Struct, frozen=True, kw_only=True):
    """A change of the mean score between two times, in points, split into two parts.

    - judge: the judge's part, the mean of now minus then over the answers that were judged at both times.
    - model: the model's part, the mean change over the questions that have earlier and new answers, minus the judge's
      part. With too few of these questions it is `total` minus the judge's part, which the model or other questions may
      have caused. Undefined without new answers.
    - shared: number of questions on which the model's part is measured; 0 if it is the rest of `total`.
    - holds: False if the judge has changed, if scores have fallen for another reason by a margin that counts, or if
      there are too few questions to decide; else True.
    """

    total: Estimate
    judge: Estimate
    model: Estimate
    shared: int
    holds: bool
    reading: str


def measure_change(sample: RatedSample, looks: int | None = None) -> Change:
    """Measure the change from the earlier scores (the sample's `human`) to the present ones (its `scores`).

    NaN is an answer not scored at that time. `looks`: planned number of such audits, which share 5 % of false alarms in
    equal parts (Bonferroni, valid even if audits share data); None for a single audit without correction.
    Raises UsageError if no answer was judged at both times.
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
    by_group = np.array([np.bincount(draws.member, column) for column in columns])
    # Question by question, so that neither other questions nor other numbers of answers look like another model.
    both = (by_group[3] > 0) & (by_group[5] > 0)
    paired = np.where(both, ratio(by_group[2], by_group[5]) - ratio(by_group[0], by_group[3]), 0)
    sums = draws.resample_group_sums(np.array([*by_group, paired, both])).T
    pairs = [(0, 3), (1, 4), (2, 5), (6, 7)]
    mean_before, moved, mean_new, on_shared = (ratio(sums[total], sums[count]) for total, count in pairs)
    # Without new answers the whole change is the judge's; the mean of none, NaN, leaves the model's part undefined.
    total = mean_new - mean_before if new.any() else moved
    shared = int(both.sum()) if both.sum() >= FEWEST_TO_DECIDE else 0
    by_model = on_shared - moved if shared else mean_new - mean_before - moved

    def estimate(values: Floats, rows: Mask) -> Estimate:
        count = len(np.unique(sample.groups[rows]))
        part = draws.estimate(values, int(rows.sum()), undefined="no answer is new", null=0.0, groups=count)
        # The judge's part and the model's part are two tests.
        return widen(part, count, tests=2 * looks) if looks else part

    judge, model = estimate(moved, again), estimate(by_model, new)
    changes = []
    if _shown_side(judge) != 0:
        changes.append("the judge has changed")
    if _shown_side(model) < 0:
        changes.append(say("model_worse" if shared else "model_or_questions", questions=shared))
    # Few questions may hide a change: exit code 0 would say that there is none.
    if (groups := len(np.unique(sample.groups[again]))) < FEWEST_TO_DECIDE:
        changes = [f"not decided: anchors on {groups} questions, {FEWEST_TO_DECIDE} are needed"]
    reading = say("change", changes=changes, looks=looks, margin=MARGINS["mae"])
    overall = estimate(total, new if new.any() else again)
    return Change(total=overall, judge=judge, model=model, shared=shared, holds=not changes, reading=reading)


def _shown_side(part: Estimate) -> int:
    """Return the sign of a change (1 or -1) if it is shown and may be as large as the margin, else 0."""
    low, high = part.interval or (0.0, 0.0)
    return part.side * (max(-low, high) > MARGINS["mae"])
