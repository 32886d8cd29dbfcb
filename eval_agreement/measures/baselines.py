"""Judges that understand nothing, fitted on the training rows: what a real judge has to beat."""

import random
from collections.abc import Sequence

import numpy as np

from critic.records import RATINGS, Response
from critic.stats.arrays import Floats
from eval_agreement.sample import RatedSample

BASELINES = ("constant", "length", "chrf")
"""Names of the trivial judges."""

CHRF_ROWS = 4000
"""Training rows the chrF line is fitted on at most: its two numbers gain nothing from more."""


def trivial(sample: RatedSample, training: Sequence[Response]) -> dict[str, tuple[Floats, str]]:
    """The trivial judges' scores, (n,), and what each does: people's median and, as far as lengths and texts are known,
    lines on log(1 + characters) and on chrF; without training rows the median here."""
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
    if len(responses) == rows:
        drawn = random.Random(0).sample(training, min(len(training), CHRF_ROWS))
        judges["chrf"] = _line(_chrf(drawn), drawn, _chrf(responses)), "a line on chrf"
    return {name: judge for name, judge in judges.items() if not np.isnan(judge[0]).all()}


def _median(scores: Floats, weight: Floats | None) -> float:
    """The score with half of the weight on either side; halfway between two such, as without weights."""
    times = np.ones(len(scores)) if weight is None else weight
    low, high = (sign * np.quantile(sign * scores, 0.5, weights=times, method="inverted_cdf") for sign in (1, -1))
    return float(low + high) / 2


def _human(responses: Sequence[Response]) -> Floats:
    return np.array([np.nan if response.human is None else response.human.score for response in responses])


def _line(x: Floats, train: Sequence[Response], feature: Floats) -> Floats:
    """Least squares from a feature of the training rows, (t,), to the human score, at that of the sample, (n,)."""
    y = _human(train)
    known = ~np.isnan(x)
    slope, intercept = 0.0, float(np.mean(y))
    if known.any() and np.ptp(x[known]) > 0:
        slope, intercept = np.polyfit(x[known], y[known], 1)
    return np.clip(intercept + slope * feature, RATINGS[0], RATINGS[-1])


def _chrf(responses: Sequence[Response]) -> Floats:
    """Sentence chrF, 0..100; NaN without a reference."""
    from sacrebleu.metrics.chrf import CHRF  # noqa: PLC0415 - half a second, for this baseline only

    metric = CHRF()
    scores = np.full(len(responses), np.nan)
    for index, response in enumerate(responses):
        question = response.question
        references = question.references or ([question.reference] if question.reference else [])
        if references:
            scores[index] = metric.sentence_score(response.text, references).score
    return scores
