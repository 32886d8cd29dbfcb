"""Trivial judges, which understand no answer and are fitted on training rows. A useful judge has to beat them."""

import random
from collections.abc import Sequence

import numpy as np

from critic.records import RATINGS, Response
from critic.stats.arrays import Floats
from eval_agreement.sample import RatedSample

BASELINES = ("constant", "length", "chrf")
"""Names of the trivial judges."""

CHRF_ROWS = 4000
"""Most training rows to fit the chrF line on: its two coefficients gain nothing from more."""


def trivial(sample: RatedSample, training: Sequence[Response]) -> dict[str, tuple[Floats, str]]:
    """Return the scores (n,) and a description of each trivial judge, keyed by name.

    `constant` always gives the training rows' median human score (without training rows: the sample's). `length` is a
    line on log(1 + characters), `chrf` a line on chrF against the reference; both need the sample's lengths or texts.
    """
    rows = len(sample.ids)
    if not training:
        median = _median(sample.human, sample.weight)
        return {"constant": (np.full(rows, median), f"always {median:.3g}, people's median here")}
    median = _median(_human(training), None)
    judges = {"constant": (np.full(rows, median), f"always {median:.3g}")}
    if sample.length is not None:
        characters = np.array([len(response.text) for response in training], dtype=np.float64)
        judges["length"] = _line(np.log1p(characters), training, np.log1p(sample.length)), "a line on length"
    responses = [response for response in sample.responses if response]
    # A judge that scores only some answers could not be compared on all.
    if len(responses) == rows:
        drawn = random.Random(0).sample(training, min(len(training), CHRF_ROWS))
        judges["chrf"] = _line(_chrf(drawn), drawn, _chrf(responses)), "a line on chrf"
    return {name: judge for name, judge in judges.items() if not np.isnan(judge[0]).all()}


def _median(scores: Floats, weight: Floats | None) -> float:
    """Return the weighted median. If two scores qualify, return their midpoint. `weight` None means equal weights.

    >>> _median(np.array([2.0, 4.0, 9.0]), None), _median(np.array([2.0, 4.0, 9.0]), np.array([1.0, 1.0, 4.0]))
    (4.0, 9.0)
    """
    times = np.ones(len(scores)) if weight is None else weight
    # The lower and the upper median; the upper one is the lower one of the negated scores.
    low, high = (sign * np.quantile(sign * scores, 0.5, weights=times, method="inverted_cdf") for sign in (1, -1))
    return float(low + high) / 2


def _human(responses: Sequence[Response]) -> Floats:
    """Return the human scores (n,). A response without one has NaN."""
    return np.array([np.nan if response.human is None else response.human.score for response in responses])


def _line(x: Floats, train: Sequence[Response], feature: Floats) -> Floats:
    """Fit a line that predicts the human score from one feature, and return its predictions, (n,), clipped to 1..10.

    `x`: the feature of each training row, (t,). `feature`: the feature of each row to score, (n,).
    """
    y = _human(train)
    known = ~np.isnan(x)
    slope, intercept = 0.0, float(np.mean(y))
    # A constant feature has no line; the judge is then as good as constant.
    if known.any() and np.ptp(x[known]) > 0:
        slope, intercept = np.polyfit(x[known], y[known], 1)
    return np.clip(intercept + slope * feature, RATINGS[0], RATINGS[-1])


def _chrf(responses: Sequence[Response]) -> Floats:
    """Return the sentence chrF of each response, 0..100; NaN without a reference."""
    from sacrebleu.metrics.chrf import CHRF  # noqa: PLC0415 - half a second, for this baseline only

    metric = CHRF()
    scores = np.full(len(responses), np.nan)
    for index, response in enumerate(responses):
        question = response.question
        references = question.references or ([question.reference] if question.reference else [])
        if references:
            scores[index] = metric.sentence_score(response.text, references).score
    return scores
