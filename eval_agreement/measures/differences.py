"""Model against model by people's labels and the judge's scores together: which pairs are told apart.

The difference of two prediction-powered means (`ppi`), paired over the questions that both models answered. The judge's
part has one multiple, that of the least variance (PPI++, arXiv 2311.01453, §6).
"""

from collections.abc import Iterable, Iterator
from itertools import combinations

import numpy as np
import scipy
from msgspec.structs import replace
from numpy.typing import NDArray

from critic.stats.estimate import LEVEL, CorrectedEstimate, detectable, holm
from eval_agreement.measures.ppi import Answers, answers_of, labels_for, parts_of
from eval_agreement.sample import RatedSample

Rows = NDArray[np.bool_]

TO_SEE = 0.2
"""The difference, in points, for which labels are planned."""

MOST_BY_TASK = 20
"""With more models their pairs are not compared task by task."""


class ModelDifference(CorrectedEstimate, frozen=True, kw_only=True):
    """People's mean score of model `second` less that of `first`, in points, by `n` labels of both on `questions` that
    both answered, all or those of a `task`; `judge_only` by the judge's scores alone. `p_holm` is held against all
    pairs (and tasks), `ahead` the better model where it is at most 5 %. `needed` labels, drawn as those that there are,
    show TO_SEE in 80 of 100 samples."""

    first: str
    second: str
    task: str | None = None
    questions: int = 0
    judge_only: float | None = None
    ahead: str | None = None
    needed: float | None = None


def differences(sample: RatedSample) -> list[ModelDifference]:
    """Every pair of models with labels, and on each task where there are several; empty without groups by question."""
    models = {name: rows for name, rows in sample.values("answerer") if not np.isnan(sample.human[rows]).all()}
    if sample.ungrouped or len(models) < 2:
        return []
    everywhere = np.ones(len(sample.ids), dtype=bool)

    def every_pair(rows: Rows, task: str | None) -> Iterator[ModelDifference]:
        for (first, first_rows), (second, second_rows) in combinations(models.items(), 2):
            names = ModelDifference(first=first, second=second, task=task, n=0)
            yield _difference(names, *_both(sample, rows & first_rows, rows & second_rows))

    lines = _corrected(every_pair(everywhere, None))
    if len(sample.said("task")) > 1 and len(models) <= MOST_BY_TASK:
        lines += _corrected(line for task, rows in sample.values("task") for line in every_pair(rows, task))
    return lines


def _corrected(lines: Iterable[ModelDifference]) -> list[ModelDifference]:
    """With p-values held against each other."""
    family, adjusted = list(lines), []
    for line, p in zip(family, holm([line.p_value for line in family]), strict=True):
        ahead = line.second if (line.value or 0) > 0 else line.first
        adjusted.append(replace(line, p_holm=p, ahead=ahead if p is not None and p <= 1 - LEVEL else None))
    return adjusted


def _both(sample: RatedSample, *models: Rows) -> Iterator[Answers]:
    """The answers of two models to the questions that both answered; groups are numbered alike."""
    groups, weight = sample.groups, sample.weight
    common = np.zeros((2, groups.max() + 1), dtype=bool)
    for has, rows in zip(common, models, strict=True):
        has[groups[rows]] = True
    for rows in models:
        kept = rows & np.logical_and(*common)[groups]
        times = None if weight is None else weight[kept]
        yield answers_of(sample.human[kept], sample.scores[kept], groups[kept], times)[0]


def _difference(line: ModelDifference, first: Answers, second: Answers) -> ModelDifference:
    line = replace(line, n=first.n + second.n, questions=len(np.unique(first.member)))
    fewest = min(first, second, key=lambda side: side.groups)
    if fewest.too_few:
        return replace(line, undefined=fewest.too_few)
    both = parts_of(second).less(parts_of(first))
    variance = both.variance(both.lam)
    # Sums leave dust, which would tell models apart that have the same scores.
    value, far = round(both.value(both.lam), 12), round(fewest.quantile * variance**0.5, 12)
    seen = detectable((-far, far), fewest.groups)
    # The p-value is the interval read backwards.
    t = scipy.special.stdtrit(fewest.groups - 1, (1 + LEVEL) / 2) * abs(value) / far if far else np.inf * abs(value)
    labels, rows = line.n, len(first.human) + len(second.human)
    allowed = variance * (TO_SEE / seen) ** 2 if seen else np.inf
    return replace(
        line,
        value=value,
        interval=(value - far, value + far),
        p_value=float(2 * scipy.special.stdtr(fewest.groups - 1, -t)) if value else 1.0,
        detectable=seen,
        judge_only=float(second.judge.mean() - first.judge.mean()),
        needed=labels_for(allowed, both.variance(0.0), variance, labels, rows)[0],
    )
