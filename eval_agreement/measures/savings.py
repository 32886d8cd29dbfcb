"""What a judge saves, of labels and of rows to rate, pooled over all means and samples, not the best alone."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from critic.stats.arrays import Floats
from eval_agreement.measures.ppi import answers_of
from eval_agreement.measures.prediction_intervals import NARROW
from eval_agreement.sample import RatedSample
from eval_agreement.sentences import say

if TYPE_CHECKING:  # all that it needs of an audit are its parts, which stand below
    from eval_agreement.measures.analysis import Findings


class Saving(Struct, frozen=True, kw_only=True):
    """With the judge so many `labels`, of an answerer's mean or of all of a sample, do as well as `worth` without."""

    name: str
    labels: int
    worth: float

    @property
    def of_hundred(self) -> float:
        return 100 * self.worth / self.labels


class Savings(Struct, frozen=True, kw_only=True):
    """Of each of the `means`, and `pooled`: labels and worth added up. Of `rows` with an interval a share (0..1) is
    `left` to the judge; their mean error is `routed_mae` then, `random_mae` if as many are left to it by chance."""

    means: list[Saving]
    pooled: Saving
    rows: int = 0
    left: float | None = None
    routed_mae: float | None = None
    random_mae: float | None = None
    reading: str


def savings(audits: Mapping[str, "Findings"]) -> Savings | None:
    """Over the corrected means of each sample's answerers or, where all answers are labelled, their means beside any
    number of judged answers; of several samples the answerers of each are added up. None where there is one alone."""
    means, routed = list[Saving](), dict[str, Floats]()
    for name, findings in audits.items():
        worths = {answerer: (mean.labelled, mean.effective) for answerer, mean in findings.corrected.items()}
        if not worths:
            rows_of = dict(findings.sample.values("answerer")) or {"all answers": ~np.isnan(findings.sample.human)}
            samples = {answerer: findings.sample.rows(rows) for answerer, rows in rows_of.items()}
            worths = {answerer: (len(sample.ids), beside_any_number(sample)) for answerer, sample in samples.items()}
        known = [Saving(name=who, labels=n, worth=worth) for who, (n, worth) in worths.items() if worth]
        means += [_sum(name, known)] if known and len(audits) > 1 else known
        if widths := findings.widths:
            whole = widths.tasks[0]
            routed[name] = whole.n * np.array([1.0, whole.narrow.value or 0.0, widths.routed_mae, widths.random_mae])
    if len(means) < 2:
        return None
    total = _sum("all", means)
    worst, *_, best = sorted(means, key=lambda mean: mean.of_hundred)
    reading = say("saved_labels", total=total, worst=worst, best=best)
    if len(routed) < 2:
        return Savings(means=means, pooled=total, reading=reading)
    rows, *sums = np.sum([*routed.values()], axis=0).tolist()
    kept = dict(zip(("left", "routed_mae", "random_mae"), (part / rows for part in sums), strict=True))
    least, *_, most = sorted((part[1] / part[0], name) for name, part in routed.items())
    reading += say("saved_rows", rows=rows, narrow=NARROW, least=least, most=most, **kept)
    return Savings(means=means, pooled=total, reading=reading, rows=round(rows), **kept)


def _sum(name: str, savings: Sequence[Saving]) -> Saving:
    labels, worth = sum(saving.labels for saving in savings), sum(saving.worth for saving in savings)
    return Saving(name=name, labels=labels, worth=worth)


def beside_any_number(sample: RatedSample) -> float | None:
    """What n labels, of all answers, are worth beside many more that are judged: n / (1 - r²), r the correlation of
    what groups add to people's mean and the judge's (PPI++, arXiv 2311.01453, §6), less one in G - 1 groups for the
    fitted multiple (Mani et al. 2025, arXiv 2505.20178)."""
    answers, _ = answers_of(sample.human, sample.scores, sample.groups, sample.weight)
    if answers.too_few:
        return None
    human, judge = (
        np.bincount(answers.member, answers.shares * (scores - answers.shares @ scores))
        for scores in (answers.human, answers.judge)
    )
    multiple = np.clip(human @ judge / (judge @ judge), 0, 1) if judge.any() else 0.0
    left = float(((human - multiple * judge) ** 2).sum())
    return answers.n * float(human @ human) / left * (1 - 1 / (answers.groups - 1)) if left else None
