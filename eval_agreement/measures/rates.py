"""Shares of yes, and win rates, from few labels of people and many verdicts of a judge.

A share is corrected in two ways. Prediction-powered inference (`ppi.py`) is valid however wrong the judge is, if the
labelled items are a random draw. Rogan and Gladen (1978, Am. J. Epidemiol. 107) invert the judge's confusion matrix, of
which sensitivity and specificity are the case of yes and no. It holds for any items on which the judge errs as on the
labelled ones. Its interval is by the delta method, by group, with one more item per cell (Lang and Reiczigel 2014,
Prev. Vet. Med. 113).
"""

import numpy as np
import scipy
from msgspec import Struct
from numpy.typing import NDArray

from critic.stats.arrays import Floats, group_numbers
from critic.stats.estimate import FEWEST_GROUPS, LEVEL, Estimate
from critic.stats.verdicts import LABELS, Integers, rows_of
from eval_agreement.measures.ppi import Answers, parts_of
from eval_agreement.measures.preferences import Preferences
from eval_agreement.metrics import mean_estimate
from eval_agreement.sample import AuditRequest, Indices

Mask = NDArray[np.bool_]

WORTH = np.array([1.0, 0.5, 0.0])
"""Worth of each verdict in a share: yes or a win, a tie, no or a loss."""

WEAKEST = 0.1
"""Smallest singular value of the judge's confusion matrix (for yes and no about sensitivity + specificity - 1) at which
it is inverted."""


class Rate(Struct, frozen=True, kw_only=True):
    """The share (0..1) of people's yes, or of a model's wins (ties half), with 95 % intervals.

    - people: from labels only. judge: from the judge's verdicts only.
    - corrected: by prediction-powered inference. inverted: by the judge's confusion matrix.
    - labelled, unlabelled: numbers of items with the judge's verdict that have, or lack, a label.
    """

    name: str
    labelled: int
    unlabelled: int
    people: Estimate
    judge: Estimate
    corrected: Estimate
    inverted: Estimate


def measure_shares(sample: Preferences, _: AuditRequest) -> list[Rate]:
    """Measure the share of yes, overall and by answerer; or each model's win rate, or else that of the answers a.

    Models are compared if pairs name theirs, the best first. Items without the judge's verdict are left out.
    """
    judged = sample.verdicts[sample.judge] < LABELS
    if sample.models and not sample.yes_or_no:
        first, second = (np.array(names, dtype=object) for names in zip(*sample.models, strict=True))
        # A pair of a model with itself says nothing of it.
        met = {name: judged & ((first == name) != (second == name)) for name in {*first, *second} - {None}}
        rates = [_measure_rate(name, sample, rows, second == name) for name, rows in met.items() if rows.any()]
        return sorted(rates, key=lambda rate: (-(rate.corrected.value or 0.0), rate.name))
    unturned = np.zeros(len(judged), dtype=bool)
    rates = [_measure_rate("yes" if sample.yes_or_no else "answers a", sample, judged, unturned)]
    for name, rows in rows_of(sample.parts.get("answerer", [])).items() if sample.yes_or_no else ():
        rates.append(_measure_rate(f"yes, {name}", sample, judged & np.isin(np.arange(len(judged)), rows), unturned))
    return rates


def _measure_rate(name: str, sample: Preferences, rows: Mask, turned: Mask) -> Rate:
    """Measure the rate of the items `rows`. On `turned` items verdicts count for the second answer. Masks are (n,)."""
    people, judge = sample.verdict.astype(np.intp), sample.verdicts[sample.judge].astype(np.intp)
    people, judge = (np.where(turned & (side < LABELS), LABELS - 1 - side, side)[rows] for side in (people, judge))
    labelled, groups = people < LABELS, group_numbers(sample.groups[rows])
    weight = np.ones(len(people)) if sample.weight is None else np.nan_to_num(sample.weight[rows])
    chances = None if sample.weight is None else weight
    human = np.where(labelled, WORTH[people % LABELS], np.nan)
    return Rate(
        name=name,
        labelled=int(labelled.sum()),
        unlabelled=int((~labelled).sum()),
        people=mean_estimate(human, groups, share=True, weight=weight),
        judge=mean_estimate(WORTH[judge], groups, share=True),
        corrected=_correct(Answers(np.nan_to_num(human), WORTH[judge], labelled, groups, chances)),
        inverted=_invert(people, judge=judge, member=groups, weight=weight),
    )


def _correct(answers: Answers) -> Estimate:
    """Correct a share by prediction-powered inference."""
    if why := answers.too_few:
        return Estimate(n=answers.n, undefined=why)
    parts = parts_of(answers)
    # Errors that no label happened to show would leave the interval too narrow: one more group errs.
    unseen = 1 / (answers.groups + 2) ** 2
    return _estimate(parts.value(parts.lam), parts.variance(parts.lam) + unseen, answers.n, answers.groups)


def _invert(people: Integers, judge: Integers, member: Indices, weight: Floats) -> Estimate:
    """Correct a share by the inverse of the judge's confusion matrix.

    `people`, `judge`: codes of verdicts, (n,). People's are at least LABELS without a label, the judge's are labels.
    `member`: number of each item's group. `weight`: of each item.
    """
    rows = np.flatnonzero(people < LABELS)
    groups, kinds, seen = len(np.unique(member[rows])), np.unique(people[rows]), np.unique(judge)
    if groups < FEWEST_GROUPS or len(kinds) < 2:
        return Estimate(n=len(rows), undefined=f"people's labels are of {len(kinds)} kinds, in {groups} groups")
    # One more item in each cell of the matrix, in a group of its own: no rate is then known to be 0 or 1.
    truth = np.r_[people[rows], np.repeat(kinds, len(seen))]
    given = np.r_[judge[rows], np.tile(seen, len(kinds))]
    group = np.r_[member[rows], len(member) + np.arange(len(kinds) * len(seen))]
    times = np.r_[weight[rows] / weight[rows].mean(), np.ones(len(kinds) * len(seen))]
    of_kind = np.where(truth[:, None] == kinds, times[:, None], 0.0)
    of_kind /= of_kind.sum(axis=0)
    hits, judged = given[:, None] == seen, judge[:, None] == seen
    matrix = hits.T @ of_kind
    # Nor do fewer kinds of verdicts than people give tell theirs apart.
    if len(seen) < len(kinds) or np.linalg.svd(matrix, compute_uv=False).min() < WEAKEST:
        return Estimate(n=len(rows), undefined="the judge hardly tells people's verdicts apart")
    inverse = np.linalg.pinv(matrix)
    shares = inverse @ judged.mean(axis=0)
    gain = WORTH[kinds] @ inverse
    # What each item, and each label, adds to the estimate less its expectation. Groups are independent.
    of_items = (judged - judged.mean(axis=0)) @ gain / len(judged)
    of_labels = -(of_kind @ shares) * ((hits - matrix.T[np.searchsorted(kinds, truth)]) @ gain)
    by_group = np.bincount(np.r_[member, group], np.r_[of_items, of_labels])
    return _estimate(float(WORTH[kinds] @ shares), float(by_group @ by_group), len(rows), groups)


def _estimate(value: float, variance: float, n: int, groups: int) -> Estimate:
    """Build the estimate of a share, within 0..1, from its variance. The quantile is as in `ppi.Answers`."""
    half = float(scipy.stats.t.ppf((1 + LEVEL) / 2, groups - 1)) * np.sqrt(variance * groups / (groups - 1))
    low, high = np.clip([value - half, value + half], 0.0, 1.0).tolist()
    return Estimate(value=float(np.clip(value, 0.0, 1.0)), n=n, interval=(low, high))
