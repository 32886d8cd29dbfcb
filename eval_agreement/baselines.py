"""Judges that understand nothing, fitted on the training rows: what a real judge has to beat."""

from collections.abc import Callable, Sequence

import numpy as np
from tqdm import tqdm

from critic.records import RATINGS, Response
from critic.stats.arrays import Floats

Predict = Callable[[Sequence[Response]], Floats]
"""Responses in, one score each on 1..10 out; NaN where the baseline has nothing to go by."""

CHRF_ROWS = 4000
"""Training rows the chrF line is fitted on at most (a seeded draw): its two numbers gain nothing from more."""


def constant(train: Sequence[Response]) -> Predict:
    """Always the median of the training scores."""
    median = float(np.median(_human(train)))
    return lambda responses: np.full(len(responses), median)


def chrf(train: Sequence[Response]) -> Predict:
    """A line on sentence chrF against the reference, the best one where there are several."""
    rows = list(train)
    if len(rows) > CHRF_ROWS:
        drawn = np.random.default_rng(0).choice(len(rows), CHRF_ROWS, replace=False)
        rows = [rows[index] for index in drawn]
    line = _line(_chrf_scores(rows), rows)
    return lambda responses: line(_chrf_scores(responses))


def length(train: Sequence[Response]) -> Predict:
    """A line on log(1 + characters): lengths are skewed, and one very long answer should not steer the fit."""
    line = _line(np.log1p(_characters(train)), train)
    return lambda responses: line(np.log1p(_characters(responses)))


BASELINES: dict[str, Callable[[Sequence[Response]], Predict]] = {"constant": constant, "length": length, "chrf": chrf}
"""Name -> fit. Every fit takes human-scored responses, at least one."""


def without_texts(train: Sequence[Response], answers: int, characters: Floats | None) -> dict[str, Floats]:
    """The scores, shape (n,), of those that need no texts: of so many answers, and where it is known of `characters`,
    shape (n,), NaN where they are not."""
    found = {"constant": np.full(answers, np.median(_human(train)))}
    if characters is not None and not np.isnan(characters).all():
        found["length"] = _line(np.log1p(_characters(train)), train)(np.log1p(characters))
    return found


def _characters(responses: Sequence[Response]) -> Floats:
    return np.array([len(response.text) for response in responses], dtype=np.float64)


def _human(responses: Sequence[Response]) -> Floats:
    return np.array([np.nan if response.human is None else response.human.score for response in responses])


def _line(x: Floats, train: Sequence[Response]) -> Callable[[Floats], Floats]:
    """Least-squares line from one feature of the training rows, shape (n,), to the human score, cut to 1..10; flat if
    the feature is constant."""
    y = _human(train)
    known = ~np.isnan(x)
    slope, intercept = 0.0, float(np.mean(y))
    if known.any() and np.ptp(x[known]) > 0:
        slope, intercept = np.polyfit(x[known], y[known], 1)
    return lambda feature: np.clip(intercept + slope * feature, RATINGS[0], RATINGS[-1])


def _chrf_scores(responses: Sequence[Response]) -> Floats:
    """Sentence chrF, 0..100; NaN without a reference."""
    from sacrebleu.metrics.chrf import CHRF  # noqa: PLC0415 - half a second, for this baseline only

    metric = CHRF()
    scores = np.full(len(responses), np.nan)
    for index, response in enumerate(tqdm(responses, desc="chrF", unit="row", leave=False, delay=2)):
        question = response.question
        references = question.references or ([question.reference] if question.reference else [])
        if references:
            scores[index] = metric.sentence_score(response.text, references).score
    return scores
