"""Savings by a judge: of labels, and of answers that people need not rate, pooled over means and samples."""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from critic.stats.arrays import Floats
from eval_agreement.measures.measure import RatedFindings
from eval_agreement.measures.ppi import answers_of
from eval_agreement.sample import NARROW, RatedSample
from eval_agreement.sentences import say


class Saving(Struct, frozen=True, kw_only=True):
    """Savings on one mean.

    `labels`: number of its labels. `worth`: number of labels that would be as precise without the judge.
    """

    name: str
    labels: int
    worth: float

    @property
    def of_hundred(self) -> float:
        """Number of labels that are as precise without the judge as 100 labels with it."""
        return 100 * self.worth / self.labels


class Savings(Struct, frozen=True, kw_only=True):
    """Savings pooled over all means and samples.

    - means: one saving per answerer, or per sample if there are several samples. pooled: the sums of labels and worths.
    - rows: number of answers with a prediction interval. left: share (0..1) of them that is left to the judge.
    - routed_mae: mean absolute error of this routing. random_mae: the same for as many answers chosen at random.
    """

    means: list[Saving]
    pooled: Saving
    rows: int = 0
    left: float | None = None
    routed_mae: float | None = None
    random_mae: float | None = None
    reading: str


def measure_savings(audits: Mapping[str, RatedFindings]) -> Savings | None:
    """Pool the savings of all samples, or return None if there is only one mean.

    Each mean is the corrected mean of an answerer. If all answers of a sample are labelled, the saving is computed as
    if there were any number of further judged answers. With several samples, the answerers of each are added up.
    """
    means: list[Saving] = []
    routed: dict[str, Floats] = {}
    for name, findings in audits.items():
        savings = _of_corrected(findings) if findings.corrected else _of_labelled(findings.sample.labelled)
        means += [_add_up(name, savings)] if savings and len(audits) > 1 else savings
        widths, _ = findings.widths
        if widths:
            routed[name] = widths.tasks[0].n * np.array([1.0, widths.left, widths.routed_mae, widths.random_mae])
    if len(means) < 2:
        return None
    total = _add_up("all", means)
    worst, *_, best = sorted(means, key=lambda mean: mean.of_hundred)
    reading = say("saved_labels", total=total, worst=worst, best=best)
    # One sample has its own sentence on intervals already.
    if len(routed) < 2:
        return Savings(means=means, pooled=total, reading=reading)
    rows, left, routed_sum, random_sum = np.sum([*routed.values()], axis=0).tolist()
    kept = {"left": left / rows, "routed_mae": routed_sum / rows, "random_mae": random_sum / rows}
    least, *_, most = sorted((part[1] / part[0], name) for name, part in routed.items())
    reading += say("saved_rows", rows=rows, narrow=NARROW, least=least, most=most, **kept)
    return Savings(means=means, pooled=total, reading=reading, rows=round(rows), **kept)


def _of_corrected(findings: RatedFindings) -> list[Saving]:
    """Return the savings of a sample's corrected means. Means without a value are left out."""
    means = findings.corrected.items()
    return [Saving(name=name, labels=mean.labelled, worth=mean.effective) for name, mean in means if mean.effective]


def _of_labelled(sample: RatedSample) -> list[Saving]:
    """Return the savings for answerers whose answers are all labelled, if any number of answers were judged besides."""
    rows_of = dict(sample.part_rows("answerer")) or {"all answers": ~np.isnan(sample.human)}
    savings = []
    for answerer, rows in rows_of.items():
        answers = sample.rows(rows)
        if worth := worth_beside_any_number(answers):
            savings.append(Saving(name=answerer, labels=len(answers.ids), worth=worth))
    return savings


def _add_up(name: str, savings: Sequence[Saving]) -> Saving:
    """Add up the labels and worths of several savings.

    >>> _add_up("all", [Saving(name="a", labels=10, worth=12.0), Saving(name="b", labels=20, worth=30.0)]).of_hundred
    140.0
    """
    labels = sum(saving.labels for saving in savings)
    return Saving(name=name, labels=labels, worth=sum(saving.worth for saving in savings))


def worth_beside_any_number(sample: RatedSample) -> float | None:
    """Return the worth of n labels if any number of further answers were judged; None if there are too few groups.

    It is n / (1 - r²), with r the correlation of the groups' contributions to the human and the judge's mean (PPI++,
    arXiv 2311.01453, §6), times 1 - 1 / (G - 1) for the fitted factor (Mani et al. 2025, arXiv 2505.20178).
    """
    answers, _ = answers_of(sample.human, sample.scores, sample.groups, sample.weight)
    if answers.too_few:
        return None
    human, judge = (
        np.bincount(answers.member, answers.shares * (scores - answers.shares @ scores))
        for scores in (answers.human, answers.judge)
    )
    # A multiple outside 0..1 would follow noise: the judge's correction is used in part, never reversed.
    multiple = np.clip(human @ judge / (judge @ judge), 0, 1) if judge.any() else 0.0
    left = float(((human - multiple * judge) ** 2).sum())
    return answers.n * float(human @ human) / left * (1 - 1 / (answers.groups - 1)) if left else None
