"""A model's mean human score from few human labels and many judge scores.

Prediction-powered inference (Angelopoulos et al. 2023, "Prediction-Powered Inference", Science 382) with power tuning
(Angelopoulos, Duchi, Zrnic 2023, "PPI++: Efficient Prediction-Powered Inference", arXiv 2311.01453): the mean of the
labels, plus a multiple of what the judge's mean over the unlabelled answers exceeds its mean over the labelled ones by.
However biased the judge is, the two biases cancel; a useless judge gets a multiple near 0. Tuning is not quite free:
there is a gain where the correlation is above about 1 / sqrt(labels - 2) (Mani et al. 2025, arXiv 2505.20178).

It holds where the labelled answers are a random draw of all, judged in the same way; or where the chance that each had
of being labelled is known: then the labelled ones are weighted by 1 over it (Zrnic and Candès 2024, "Active Statistical
Inference", arXiv 2403.03208), shares being those of the weights (Hájek 1971). The mean is that of answers like
these, not of exactly these. Where every answer is its own group, estimate and variance are those of the method as
published (and of ppi_py); variances are clustered where answers share groups, and the quantile is Student's.
"""

from bisect import bisect_left
from typing import NamedTuple

import numpy as np
import scipy
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from critic.stats.arrays import Floats, Group, group_numbers
from critic.stats.estimate import FEWEST_GROUPS, LEVEL, SEED, Interval
from eval_agreement.metrics import Indices, Scores, on_scale, same_length

_NOT_RANDOM = 0.001
"""Below this p, the labelled answers are said not to be a random draw."""

_DRAWS = 1_999
"""Random draws of the labels, none of which may differ as far: p is then 1 / (_DRAWS + 1), half of _NOT_RANDOM."""

_MANY_GROUPS = 1_000
"""With as many groups of either kind means are normal enough for Student's test alone."""

_MOST_ROWS = 20_000
"""Of more answers in fewer groups nothing is claimed: to draw their labels again takes minutes."""

_A_GAIN = 1.1
"""Labels worth less than so many times their number show no gain: a useless judge comes to that by chance."""


class CorrectedMean(Struct, frozen=True, kw_only=True):
    """A mean human score, 1..10, with 95 % intervals that allow for groups.

    `value` is from `labelled` human and all judge scores, `human_only` from the labels, `judge_only` from the judge's
    scores where it gave one. `effective` is the number of labels that would do as well without the judge, `lam`
    (0..1) the multiple of the judge's part. `failed_labelled` and `failed_unlabelled` answers have no judgment;
    `corrected_mean` says what becomes of them. What is None has its reason in `undefined`; `caution` says where the
    labels do not look like a random draw.
    """

    labelled: int
    unlabelled: int
    groups: int
    failed_labelled: int
    failed_unlabelled: int
    value: float | None = None
    interval: Interval | None = None
    human_only: float | None = None
    human_interval: Interval | None = None
    judge_only: float | None = None
    lam: float | None = None
    effective: float | None = None
    undefined: str | None = None
    caution: str | None = None
    reading: str


class LabelPlan(Struct, frozen=True, kw_only=True):
    """Labels among `rows` answers for a 95 % interval of ± `half_width` points, with the judge and without.

    `smallest` is the half width where every answer is labelled, which the judge cannot improve on. What is None has
    its reason in `undefined`.
    """

    half_width: float
    rows: int
    with_judge: int | None = None
    without_judge: int | None = None
    smallest: float | None = None
    undefined: str | None = None
    reading: str


class _Sample(NamedTuple):
    """Answers, labelled or not. `human` is 0 and ignored where not labelled, `judge` filled where it failed."""

    human: Floats
    judge: Floats
    labelled: NDArray[np.bool_]
    member: Indices
    weight: Floats | None

    @property
    def n(self) -> int:
        return int(self.labelled.sum())

    @property
    def shares(self) -> Floats:
        """What each answer counts for in a mean over the labelled ones, shape (n,)."""
        times = np.where(self.labelled, 1.0 if self.weight is None else self.weight, 0.0)
        return np.asarray(times / times.sum())

    @property
    def unlabelled(self) -> int:
        return len(self.human) - self.n

    @property
    def groups(self) -> int:
        """Groups with a label."""
        return int(np.count_nonzero(np.bincount(self.member[self.labelled])))

    @property
    def too_few(self) -> str | None:
        few = f"labels in {self.groups} groups; at least {FEWEST_GROUPS} are needed"
        return few if self.groups < FEWEST_GROUPS else None


class _Parts(NamedTuple):
    """human_mean - lam * excess is the estimate; the arrays are what each group adds to these two, shape (G,)."""

    human_mean: float
    excess: float
    human_by_group: Floats
    excess_by_group: Floats
    lam: float

    def value(self, lam: float) -> float:
        return self.human_mean - lam * self.excess

    def variance(self, lam: float) -> float:
        """Of the estimate; groups are independent, answers in one need not be."""
        return float(((self.human_by_group - lam * self.excess_by_group) ** 2).sum())


def corrected_mean(
    human: Scores,
    judge: Scores,
    group: Group,
    lam: float | None = None,
    weight: Floats | None = None,
    undefined: str | None = None,
) -> CorrectedMean:
    """A model's mean human score, from one row an answer; None or NaN in `human` where it has no label.

    `lam` is the multiple of the judge's part: None is tuned (PPI++, power tuning, cut to 0..1), 1 is plain PPI, 0 the
    mean of the labels. The variance divides by n and is clustered by group, and the quantile is Student's with one
    degree of freedom less than there are groups with labels.

    A failed judgment (None or NaN in `judge`) counts as the judge's mean score, among labelled and unlabelled answers
    alike. The judge with that rule is just another judge: the estimate stays unbiased even where failures go with
    quality, and only precision is lost. Dropping such answers would give the mean of the answers that can be judged.

    `weight`, shape (n,), is 1 over the chance that a labelled answer had of being labelled; what it is elsewhere does
    not matter.

    None with labels in fewer than FEWEST_GROUPS groups, and where the caller gives a reason why it is `undefined`.
    Raises ValueError for unequal lengths or scores outside 1..10.
    """
    sample, failed = _sample(human, judge, group, weight)
    judged = sample.judge[~failed]
    result = CorrectedMean(
        labelled=sample.n,
        unlabelled=sample.unlabelled,
        groups=sample.groups,
        failed_labelled=int((failed & sample.labelled).sum()),
        failed_unlabelled=int((failed & ~sample.labelled).sum()),
        human_only=float(sample.shares @ sample.human) if sample.n else None,
        judge_only=float(judged.mean()) if len(judged) else None,
        reading="",
    )
    if undefined := undefined or sample.too_few:
        return replace(result, undefined=undefined, reading=f"Not measured: {undefined}.")
    parts = _parts(sample)
    lam = parts.lam if lam is None else lam
    alone, corrected = parts.variance(0.0), parts.variance(lam)
    result = replace(
        result,
        value=parts.value(lam),
        interval=_interval(sample, parts, lam),
        human_interval=_interval(sample, parts, 0.0),
        lam=lam,
        effective=sample.n * alone / corrected if corrected else None if alone else float(sample.n),
        caution=_caution(sample, parts),
    )
    return replace(result, reading=_mean_reading(result))


def labels_needed(
    half_width: float,
    human: Scores,
    judge: Scores,
    group: Group,
    rows: int | None = None,
    weight: Floats | None = None,
    undefined: str | None = None,
) -> LabelPlan:
    """How many human labels make the 95 % interval of the mean ± `half_width` points, from a first sample's variances.

    The arrays are those of `corrected_mean` (with a `weight`, more labels are drawn in the same way); `rows` is how
    many answers there will be to draw labels from, all of them judged (as many as now unless given). Every label takes
    an answer out of the unlabelled ones: the judge's part fades as these run out, and with all answers labelled both
    intervals are the same. So a half width is out of reach with the judge exactly where it is without, and then takes
    more answers, not more labels.

    With n labels drawn at random from T answers, the variance is F + s²/n - 2 lam c/n + lam² v T / (n (T - n)), where
    s², v and c are the variances of human and judge scores and their covariance, lam is the best on 0..1, and F is the
    covariance of two human scores in a group times the chance that two answers share one. PPI++ is the case F = 0.

    None with labels in fewer than FEWEST_GROUPS groups, where answers share groups but no two labelled ones do, and
    where the caller gives a reason why it is `undefined`. Raises ValueError as `corrected_mean`.
    """
    sample, _ = _sample(human, judge, group, weight)
    total = len(sample.human) if rows is None else rows
    plan = LabelPlan(half_width=half_width, rows=total, reading="")
    undefined = undefined or sample.too_few
    shared = None if undefined else _shared_variance(sample, total)
    if shared is None:
        undefined = undefined or "no two labelled answers share a group, so how alike such answers are is unknown"
        return replace(plan, undefined=undefined, reading=f"Not planned: {undefined}.")
    spread = float(np.var(sample.judge, ddof=1))
    (variance, covariance), (_, seen) = np.cov(sample.human[sample.labelled], sample.judge[sample.labelled]).tolist()
    # The correlation of the labelled, for the spread of all: with another spread, more than all of s² could be c² / v.
    covariance *= float(np.sqrt(spread / seen)) if seen else 0.0
    if weight is not None:
        # The variances that the labels have shown, each times their number: what the design does is in them.
        parts = _parts(sample)
        before, after = (sample.n * parts.variance(lam) for lam in (0.0, parts.lam))
        variance = max(before - sample.n * shared, 0.0)
        explained = max(before - after, 0.0) * total / max(total - sample.n, 1)
        covariance = float(np.sqrt(min(explained, variance) * spread))
    forecast = _Forecast(
        human=variance,
        judge=spread,
        covariance=covariance,
        shared=shared,
        rows=total,
        groups=len(np.unique(sample.member)) * total / len(sample.human),
    )
    smallest = forecast.half_width(total, judged=False)
    fewest, alone = (forecast.labels(half_width, with_judge) for with_judge in (True, False))
    reading = f"±{half_width:g} points takes {fewest} labels with the judge and {alone} without."
    if fewest is None or alone is None:
        undefined = f"even with all {total} answers labelled it is ±{smallest:.2f}, so it takes more answers"
        reading = f"±{half_width:g} points cannot be reached: {undefined}."
    return replace(
        plan, with_judge=fewest, without_judge=alone, smallest=smallest, undefined=undefined, reading=reading
    )


class _Forecast(NamedTuple):
    """What `labels_needed` writes as s², v, c, F and T, and in how many groups the T answers lie."""

    human: float
    judge: float
    covariance: float
    shared: float
    rows: int
    groups: float

    def variance(self, labels: int, judged: bool) -> float:
        """Of the mean with so many labels, with the judge's part or without."""
        alone = self.shared + self.human / labels
        rest = self.rows - labels
        if not (judged and rest and self.judge):
            return alone
        # The judge's part is the difference of two means of its scores, over n labelled and T - n other answers:
        # its variance is v/n + v/(T - n) = v T / (n (T - n)), and its covariance with the mean label c/n.
        spread = self.judge * self.rows / (labels * rest)
        lam = min(max(self.covariance / labels / spread, 0.0), 1.0)
        return alone - 2 * lam * self.covariance / labels + lam**2 * spread

    def half_width(self, labels: int, judged: bool) -> float:
        """Of the 95 % interval; the labels are taken to lie in as many groups as there can be."""
        groups = max(min(labels, self.groups), FEWEST_GROUPS)
        return float(scipy.stats.t.ppf((1 + LEVEL) / 2, groups - 1) * np.sqrt(self.variance(labels, judged)))

    def labels(self, half_width: float, judged: bool) -> int | None:
        """The fewest that are enough; None where all are not. More labels never make an interval wider."""
        possible = range(FEWEST_GROUPS, self.rows + 1)
        # False, …, False, True, …, True: the first True is where the half width has become small enough.
        index = bisect_left(possible, True, key=lambda labels: self.half_width(labels, judged) <= half_width)
        return possible[index] if index < len(possible) else None


def _sample(human: Scores, judge: Scores, group: Group, weight: Floats | None) -> tuple[_Sample, NDArray[np.bool_]]:
    """The answers, and which of them have no judgment."""
    people, judged = np.asarray(on_scale(human, "human")), np.asarray(on_scale(judge, "judge"))
    same_length(human, {"judge scores": judge, "groups": group})
    labelled, failed = ~np.isnan(people), np.isnan(judged)
    filled = np.where(failed, judged[~failed].mean() if not failed.all() else 0, judged)
    return _Sample(np.where(labelled, people, 0), filled, labelled, group_numbers(group), weight), failed


def _shared_variance(sample: _Sample, rows: int) -> float | None:
    """The part of the variance that labels cannot reduce, because answers share groups, with `rows` answers.

    None where answers share groups, but no labelled ones do.
    """
    answers = len(sample.human)
    pairs = _pairs_in_groups(sample.member)
    if not pairs:
        return 0.0
    labelled_pairs = _pairs_in_groups(sample.member[sample.labelled])
    if not labelled_pairs:
        return None
    human = sample.human[sample.labelled]
    human = human - human.mean()
    # The products of all pairs of a group are the square of its total, those of an answer with itself taken off.
    totals = np.bincount(sample.member[sample.labelled], human)
    covariance = (totals @ totals - human @ human) / labelled_pairs
    return max(0.0, float(covariance * pairs / (answers * (rows - 1))))


def _pairs_in_groups(member: Indices) -> int:
    """Ordered pairs of different answers in the same group."""
    sizes = np.bincount(member)
    return int((sizes * (sizes - 1)).sum())


def _parts(sample: _Sample) -> _Parts:
    """The two parts of the estimate, what groups add to them, and the tuned lam."""
    labelled, n, rest, shares = sample.labelled, sample.n, sample.unlabelled, sample.shares
    human_mean = float(shares @ sample.human)
    human = shares * (sample.human - human_mean)
    by_group: Floats = np.bincount(sample.member, human).astype(np.float64)
    if not rest or np.ptp(sample.judge) == 0:
        return _Parts(human_mean, 0.0, by_group, np.zeros_like(by_group), 0.0)
    if sample.weight is not None:
        # Against the mean of all answers, labelled or not: those without a label are no random draw either.
        judge_mean, every_mean = float(shares @ sample.judge), float(sample.judge.mean())
        row = shares * (sample.judge - judge_mean) - (sample.judge - every_mean) / len(labelled)
        groups: Floats = np.bincount(sample.member, row).astype(np.float64)
        alone = float(groups @ groups)
        lam = float(np.clip(by_group @ groups / alone, 0, 1)) if alone else 0.0
        return _Parts(human_mean, judge_mean - every_mean, by_group, groups, lam)
    judge_mean, rest_mean = float(sample.judge[labelled].mean()), float(sample.judge[~labelled].mean())
    # What each answer adds to (judge's mean over the labelled - over the others), less its expectation: with the same
    # of the mean label, sums over a group's answers are independent of other groups', and their squares the variance.
    excess = np.where(labelled, (sample.judge - judge_mean) / n, (rest_mean - sample.judge) / rest)
    excess_by_group: Floats = np.bincount(sample.member, excess).astype(np.float64)
    # lam has the least variance: covariance of labels and excess / variance of the excess. The latter is that of
    # independent answers, labelled or not, times what groups make of it, which is 1 where each answer is its own.
    pooled = float(np.var(sample.judge, ddof=1)) * (1 / n + 1 / rest)
    alone = excess @ excess
    spread = pooled * ((excess_by_group @ excess_by_group) / alone) if alone else 0.0
    lam = float(np.clip(float(by_group @ excess_by_group) / spread, 0, 1)) if spread else 0.0
    return _Parts(human_mean, judge_mean - rest_mean, by_group, excess_by_group, lam)


def _interval(sample: _Sample, parts: _Parts, lam: float) -> Interval:
    far = scipy.stats.t.ppf((1 + LEVEL) / 2, sample.groups - 1) * _error(sample, parts.variance(lam))
    return float(parts.value(lam) - far), float(parts.value(lam) + far)


def _error(sample: _Sample, variance: float) -> float:
    """Standard error, with the usual factor for few groups."""
    return float(np.sqrt(variance * sample.groups / (sample.groups - 1)))


def _caution(sample: _Sample, parts: _Parts) -> str | None:
    """A warning where the judge sees another quality in the labelled answers than chance allows.

    Student's test alone does not hold its level with few unlabelled answers, or scores that crowd at one value, so what
    it finds must stand against random draws as well. With a known chance for each answer the draw is taken as known.
    """
    if sample.weight is not None:
        return None
    error = _error(sample, float((parts.excess_by_group**2).sum()))
    if not parts.excess or (
        error and 2 * scipy.stats.t.sf(abs(parts.excess) / error, sample.groups - 1) >= _NOT_RANDOM
    ):
        return None
    if not _beyond_random_draws(sample):
        return None
    way = "above" if parts.excess > 0 else "below"
    return (
        f"The labelled answers are no random draw: the judge's mean on them is {abs(parts.excess):.2f} points {way} "
        "that on the others."
    )


def _beyond_random_draws(sample: _Sample) -> bool:
    """Whether no random draw of the labels leaves the judge's means as far apart (a permutation test, which holds its
    level at any size: Phipson and Smyth 2010, "Permutation P-values Should Never Be Zero").

    Labels change places within groups, and whole groups with others of their size: a draw of answers and a draw of
    groups are both as likely after such a change as before it.
    """
    member, labelled, rows = sample.member, sample.labelled, len(sample.human)
    if min(len(np.unique(member[labelled])), len(np.unique(member[~labelled]))) >= _MANY_GROUPS:
        return True
    if rows > _MOST_ROWS:
        return False
    sizes = np.bincount(member)

    def difference(order: Indices) -> float:
        judge = sample.judge[order]
        return abs(float(judge[mask].mean() - judge[~mask].mean()))

    by_size = np.lexsort((member, sizes[member]))
    mask = labelled[by_size]
    least, random = difference(by_size) - 1e-9, np.random.default_rng(SEED)
    orders = (
        np.lexsort((random.random(rows), random.random(len(sizes))[member], sizes[member])) for _ in range(_DRAWS)
    )
    return not any(difference(order) >= least for order in orders)


def _mean_reading(result: CorrectedMean) -> str:
    if result.interval is None or result.effective is None:
        return f"People's mean score is {result.value:.2f}, without variation."
    low, high = result.interval
    labels, worth = result.labelled, round(result.effective)
    gained = worth >= _A_GAIN * labels
    value = f"your {labels} labels are worth {worth}" if gained else "no gain from the judge is shown"
    reading = (
        f"People's mean score is {result.value:.2f} ({low:.2f} to {high:.2f}) by {labels} labels and "
        f"{result.unlabelled} answers with a judge's score only: {value}."
    )
    return reading if result.caution is None else f"{reading} {result.caution}"
