"""A model's mean human score from few human labels and many judge scores.

Prediction-powered inference (Angelopoulos et al. 2023, Science 382) with power tuning (Angelopoulos, Duchi, Zrnic 2023,
"PPI++", arXiv 2311.01453): the mean of the labels, plus a multiple of what the judge's mean over the unlabelled answers
exceeds its mean over the labelled ones by. However biased the judge is, the two biases cancel. It gains where the
correlation is above about 1 / sqrt(labels - 2) (Mani et al. 2025, arXiv 2505.20178).

It holds where the labelled answers are a random draw, or are weighted by 1 over the chance that each had (Zrnic and
Candès 2024, arXiv 2403.03208; Hájek 1971). Variances are those of ppi_py, clustered by group; the quantile is
Student's.
"""

from math import ceil
from typing import NamedTuple

import numpy as np
import scipy
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from critic.stats.arrays import Floats, Group, group_numbers
from critic.stats.estimate import FEWEST_GROUPS, LEVEL, Interval
from eval_agreement.metrics import Indices, Scores, on_scale
from eval_agreement.sentences import say

_FAR, _GROUPS = 5.0, 30
"""Standard errors that labelled answers lie from the others before that is no chance, with so many groups of both: of
scores that crowd at 10 fewer set them as far apart by chance."""

_A_GAIN = 1.1
"""Labels worth less than so many times their number show no gain: a useless judge comes to that by chance."""


class CorrectedMean(Struct, frozen=True, kw_only=True):
    """A mean human score, 1..10, with 95 % intervals: by labels and judge, by `human_only` and `judge_only`.
    `effective` labels would do as well without the judge, `lam` (0..1) is the multiple of its part. What is None has
    its reason in `undefined`; `caution` says that the labels do not look like a random draw."""

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
    """Labels among `rows` answers for a 95 % interval of ± `half_width` points; None where `undefined` says why."""

    half_width: float
    rows: int
    with_judge: int | None = None
    without_judge: int | None = None
    undefined: str | None = None
    reading: str


class Answers(NamedTuple):
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
    def quantile(self) -> float:
        """Half of a 95 % interval, in standard errors: Student's, with the usual factor for few groups."""
        return float(scipy.stats.t.ppf((1 + LEVEL) / 2, self.groups - 1) * np.sqrt(self.groups / (self.groups - 1)))

    @property
    def too_few(self) -> str | None:
        few = f"labels in {self.groups} groups; at least {FEWEST_GROUPS} are needed"
        return few if self.groups < FEWEST_GROUPS else None


class Parts(NamedTuple):
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

    def less(self, other: "Parts") -> "Parts":
        """Of the difference, where both have the same groups; its lam has the least variance."""
        human = self.human_by_group - other.human_by_group
        excess = self.excess_by_group - other.excess_by_group
        lam = float(np.clip(human @ excess / (excess @ excess), 0, 1)) if excess.any() else 0.0
        return Parts(self.human_mean - other.human_mean, self.excess - other.excess, human, excess, lam)


def corrected_mean(
    human: Scores,
    judge: Scores,
    group: Group,
    lam: float | None = None,
    weight: Floats | None = None,
    undefined: str | None = None,
) -> CorrectedMean:
    """A model's mean human score, from one row an answer; None or NaN in `human` where it has no label.

    `lam` is the multiple of the judge's part: None is tuned (PPI++, cut to 0..1), 1 is plain PPI, 0 the mean of the
    labels. A failed judgment counts as the judge's mean score: a judge with that rule is just another judge, so that
    nothing is biased. `weight` (n,) is 1 over the chance of being labelled. None with labels in fewer than
    FEWEST_GROUPS groups, and where the caller says why it is `undefined`. Raises ValueError for scores outside 1..10.
    """
    sample, failed = answers_of(human, judge, group, weight)
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
    parts = parts_of(sample)
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
    weight: Floats | None = None,
    undefined: str | None = None,
) -> LabelPlan:
    """How many labels make the 95 % interval of the mean ± `half_width` points, drawn as those that there are;
    arguments as of `corrected_mean`. With n labels out of T answers the variance of PPI++ is F + s²/n · (1 - r² (1 -
    n/T)): s² is that of a label, r² the judge's share of it, F what labels cannot reduce, because answers share groups.
    """
    sample, _ = answers_of(human, judge, group, weight)
    rows = len(sample.human)
    plan = LabelPlan(half_width=half_width, rows=rows, reading="")
    shared = _shared_variance(sample)
    undefined = undefined or sample.too_few
    if shared is None:
        undefined = undefined or "no two labelled answers share a group, so how alike such answers are is unknown"
    if undefined or shared is None:
        return replace(plan, undefined=undefined, reading=f"Not planned: {undefined}.")
    parts = parts_of(sample)
    alone, judged = (max(parts.variance(lam) - shared, 0.0) for lam in (0.0, parts.lam))
    allowed = (half_width / sample.quantile) ** 2 - shared
    labels = labels_for(allowed, alone, judged, sample.n, rows) if allowed > 0 else (rows + 1, rows + 1)
    if max(labels) > rows:
        smallest = sample.quantile * np.sqrt(shared + sample.n * alone / rows)
        undefined = say("plan_too_far", rows=rows, smallest=smallest)
        reading = say("plan_unreached", half_width=half_width, why=undefined)
        return replace(plan, undefined=undefined, reading=reading)
    with_judge, without_judge = (max(FEWEST_GROUPS, ceil(count)) for count in labels)
    counts = {"with_judge": with_judge, "without_judge": without_judge}
    return replace(plan, **counts, reading=say("plan", half_width=half_width, **counts))


def labels_for(allowed: float, alone: float, judged: float, n: int, rows: int) -> tuple[float, float]:
    """Labels that bring a variance down to what is `allowed`, with the judge and without, where `n` labels of `rows`
    answers leave `judged` and `alone`. With all answers labelled both are the same; above, it takes more answers."""
    explained = (1 - judged / alone) * rows / (rows - n) if alone and rows > n else 0.0
    explained = min(max(explained, 0.0), 0.99)
    without = n * alone / allowed
    if without > rows:
        return without, without
    return without * (1 - explained) / (1 - explained * without / rows), without


def answers_of(human: Scores, judge: Scores, group: Group, weight: Floats | None) -> tuple[Answers, NDArray[np.bool_]]:
    """The answers, and which of them have no judgment."""
    people, judged = np.asarray(on_scale(human, "human")), np.asarray(on_scale(judge, "judge"))
    labelled, failed = ~np.isnan(people), np.isnan(judged)
    filled = np.where(failed, judged[~failed].mean() if not failed.all() else 0, judged)
    return Answers(np.where(labelled, people, 0), filled, labelled, group_numbers(group), weight), failed


def _shared_variance(sample: Answers) -> float | None:
    """The part of the variance that labels cannot reduce: the covariance of two labels in a group times the chance that
    two answers share one. None where answers share groups, but no labelled ones do."""
    member, human = sample.member[sample.labelled], sample.human[sample.labelled]
    # Ordered pairs of different answers in the same group.
    pairs, labelled_pairs = (int((sizes * (sizes - 1)).sum()) for sizes in map(np.bincount, (sample.member, member)))
    if not pairs or not labelled_pairs:
        return None if pairs else 0.0
    human = human - human.mean()
    # The products of all pairs of a group are the square of its total, those of an answer with itself taken off.
    totals = np.bincount(member, human)
    covariance = (totals @ totals - human @ human) / labelled_pairs
    return max(0.0, float(covariance * pairs / (len(sample.human) * (len(sample.human) - 1))))


def parts_of(sample: Answers) -> Parts:
    """The two parts of the estimate, what groups add to them, and the tuned lam."""
    labelled, n, rest, shares = sample.labelled, sample.n, sample.unlabelled, sample.shares
    human_mean = float(shares @ sample.human)
    by_group = np.asarray(np.bincount(sample.member, shares * (sample.human - human_mean)), dtype=np.float64)
    if not rest or np.ptp(sample.judge) == 0:
        return Parts(human_mean, 0.0, by_group, np.zeros_like(by_group), 0.0)
    # Labels with known chances are held against all answers: those without a label are no random draw either.
    others = ~labelled / rest if sample.weight is None else np.full(len(labelled), 1 / len(labelled))
    judge_mean, others_mean = float(shares @ sample.judge), float(others @ sample.judge)
    # What each answer adds to the difference of these means, less its expectation: sums over a group's answers are
    # independent of other groups', and their squares the variance.
    excess = shares * (sample.judge - judge_mean) - others * (sample.judge - others_mean)
    excess_by_group = np.asarray(np.bincount(sample.member, excess), dtype=np.float64)
    spread = float(excess_by_group @ excess_by_group)
    if sample.weight is None and spread:
        # PPI++ pools the judge's variance over labelled and other answers; groups multiply that of independent ones.
        spread *= float(np.var(sample.judge, ddof=1)) * (1 / n + 1 / rest) / float(excess @ excess)
    # lam has the least variance: covariance of labels and excess / variance of the excess.
    lam = float(np.clip(float(by_group @ excess_by_group) / spread, 0, 1)) if spread else 0.0
    return Parts(human_mean, judge_mean - others_mean, by_group, excess_by_group, lam)


def _interval(sample: Answers, parts: Parts, lam: float) -> Interval:
    far = sample.quantile * np.sqrt(parts.variance(lam))
    return float(parts.value(lam) - far), float(parts.value(lam) + far)


def _caution(sample: Answers, parts: Parts) -> str | None:
    """A warning where the labelled answers' mean judgment lies further from the others' than a random draw sets it."""
    unlabelled = len(np.unique(sample.member[~sample.labelled]))
    error = float(np.sqrt(parts.excess_by_group @ parts.excess_by_group))
    if sample.weight is not None or min(sample.groups, unlabelled) < _GROUPS or abs(parts.excess) <= _FAR * error:
        return None
    return say("no_random_draw", far=abs(parts.excess), way="above" if parts.excess > 0 else "below")


def _mean_reading(result: CorrectedMean) -> str:
    if result.interval is None or result.effective is None:
        return say("corrected_mean_alike", mean=result)
    gained = round(result.effective) >= _A_GAIN * result.labelled
    gain = say("labels_are_worth" if gained else "no_gain", mean=result)
    return " ".join(filter(None, (say("corrected_mean", mean=result, gain=gain), result.caution)))
