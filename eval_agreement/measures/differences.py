"""Comparison of models by human labels and judge scores together.

A difference is that of two prediction-powered means (`ppi`), paired over the questions that both models answered. One
`lam`, of least variance, multiplies the judge's correction of both (PPI++, arXiv 2311.01453, §6).
"""

from collections.abc import Iterable, Iterator
from itertools import combinations

import numpy as np
import scipy
from msgspec.structs import replace
from numpy.typing import NDArray

from critic.stats.estimate import LEVEL, CorrectedEstimate, count_unshown, detectable, holm
from eval_agreement.measures.ppi import Answers, answers_of, labels_for, parts_of
from eval_agreement.sample import AuditRequest, RatedSample

Rows = NDArray[np.bool_]
"""Mask of rows, (n,)."""

TO_SEE = 0.2
"""Difference between models, in points, that the planned number of labels is to detect."""

MOST_BY_TASK = 20
"""Most models whose pairs are compared task by task."""


class ModelDifference(CorrectedEstimate, frozen=True, kw_only=True):
    """Mean human score of model `second` minus that of model `first`, in points.

    - n: labels of both models. questions: number of questions that both answered.
    - task: the task compared, None for all questions. judge_only: the difference of the judge's mean scores.
    - p_holm, detectable: corrected over all pairs (and tasks). ahead: the better model if p_holm is at most 5 %, else
      None.
    - needed: number of labels, sampled like the present ones, that show a difference of TO_SEE, corrected alike, in 80
      of 100 such samples.
    """

    first: str
    second: str
    task: str | None = None
    questions: int = 0
    judge_only: float | None = None
    ahead: str | None = None
    needed: float | None = None


Pair = tuple[ModelDifference, Answers, Answers]
"""Names of two models, and their answers to the questions that both answered."""


def compare_models(sample: RatedSample, _: AuditRequest) -> list[ModelDifference]:
    """Compare every pair of models with labels, overall and, if there are several tasks, on each task.

    Returns [] if answers are not grouped by question, since a pair is compared on the questions that both answered. If
    the groups of unlabelled answers are unknown, only labelled answers count.
    """
    if not sample.grouped:
        sample = sample.labelled
    models = {}
    for name, rows in sample.part_rows("answerer"):
        if not np.isnan(sample.human[rows]).all():
            models[name] = rows
    if sample.ungrouped or len(models) < 2:
        return []

    def list_pairs(rows: Rows, task: str | None) -> Iterator[Pair]:
        for (first, first_rows), (second, second_rows) in combinations(models.items(), 2):
            names = ModelDifference(first=first, second=second, task=task, n=0)
            answers = _common_answers(sample, rows & first_rows, rows & second_rows)
            yield names, next(answers), next(answers)

    lines = _compare_family(list_pairs(np.ones(len(sample.ids), dtype=bool), task=None))
    if len(sample.part_values("task")) > 1 and len(models) <= MOST_BY_TASK:
        # The tasks are a family of their own: overall differences do not pay for them.
        lines += _compare_family(pair for task, rows in sample.part_rows("task") for pair in list_pairs(rows, task))
    return lines


def _compare_family(pairs: Iterable[Pair]) -> list[ModelDifference]:
    """Compare the pairs of a family, correct their p-values (Holm), and name the model ahead in each difference."""
    family = list(pairs)
    adjusted = holm([_difference(*pair).p_value for pair in family])
    lines = []
    for pair, p in zip(family, adjusted, strict=True):
        line = _difference(*pair, tests=count_unshown(adjusted))
        ahead = line.second if (line.value or 0) > 0 else line.first
        lines.append(replace(line, p_holm=p, ahead=ahead if p is not None and p <= 1 - LEVEL else None))
    return lines


def _common_answers(sample: RatedSample, first: Rows, second: Rows) -> Iterator[Answers]:
    """Yield each model's answers to the questions that both models answered. Both use the same group numbers.

    `first`, `second`: masks of the models' rows.
    """
    groups, weight = sample.groups, sample.weight
    common = np.intersect1d(groups[first], groups[second])
    for rows in (first, second):
        kept = rows & np.isin(groups, common)
        times = None if weight is None else weight[kept]
        yield answers_of(sample.human[kept], sample.scores[kept], groups[kept], times)[0]


def _difference(line: ModelDifference, first: Answers, second: Answers, tests: int = 1) -> ModelDifference:
    """Return `line` with the difference and its statistics, computed from the answers of both models.

    `tests`: the number of tests that share the 5 %, for the effect and the labels that would show it.
    """
    line = replace(line, n=first.n + second.n, questions=len(np.unique(first.member)))
    fewest = min(first, second, key=lambda side: side.groups)
    if fewest.too_few:
        return replace(line, undefined=fewest.too_few)
    both = parts_of(second).subtract(parts_of(first))
    variance = both.variance(both.lam)
    # Sums leave rounding errors, which would show models with the same scores to differ.
    value = round(both.value(both.lam), 12)
    half_width = round(fewest.quantile * variance**0.5, 12)
    smallest = detectable((-half_width, half_width), fewest.groups, tests)
    # The p-value is the interval read backwards, so that the two never contradict each other.
    t = np.inf * abs(value)
    if half_width:
        t = scipy.special.stdtrit(fewest.groups - 1, (1 + LEVEL) / 2) * abs(value) / half_width
    rows = len(first.human) + len(second.human)
    allowed = variance * (TO_SEE / smallest) ** 2 if smallest else np.inf
    return replace(
        line,
        value=value,
        interval=(value - half_width, value + half_width),
        p_value=float(2 * scipy.special.stdtr(fewest.groups - 1, -t)) if value else 1.0,
        detectable=smallest,
        judge_only=float(second.judge.mean() - first.judge.mean()),
        needed=labels_for(allowed, both.variance(0.0), variance, line.n, rows)[0],
    )
