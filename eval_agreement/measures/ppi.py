"""Mean human scores of models from few human labels and many judge scores; their differences, and the labels saved.

Prediction-powered inference (Angelopoulos et al. 2023, Science 382) with power tuning (Angelopoulos, Duchi, Zrnic 2023,
"PPI++", arXiv 2311.01453). The estimate is the mean of the labels plus `lam` times a correction: the judge's mean over
the unlabelled answers less its mean over the labelled ones. The judge's bias is in both means and cancels. The judge
helps if its correlation with people is above about 1 / sqrt(labels - 2) (Mani et al. 2025, arXiv 2505.20178).

The estimate is valid if the labelled answers are a random draw, or if they are weighted by 1 / chance of being labelled
(Zrnic and Candès 2024, arXiv 2403.03208; Hájek 1971). Variances are those of ppi_py, clustered by group; the quantile
is Student's.

A difference between models is that of two such means, paired over the questions that both models answered. One `lam`,
of least variance, multiplies the judge's correction of both (PPI++, §6). Savings of labels, and of answers that people
need not rate, are pooled over means and samples.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from math import ceil
from typing import NamedTuple

import numpy as np
import scipy
from msgspec import Struct
from msgspec.structs import replace

from critic.stats.arrays import Floats
from critic.stats.estimate import FEWEST_GROUPS, LEVEL, CorrectedEstimate, Interval, count_unshown, detectable, holm
from eval_agreement.measures.measure import RatedFindings
from eval_agreement.sample import NARROW, AuditRequest, Indices, Mask, RatedSample, on_scale
from eval_agreement.sentences import say

_FAR, _FEWEST_GROUPS_TO_WARN = 3.0, 30
"""Labels do not look like a random draw if the judge's means over labelled and over other answers are more than _FAR
standard errors apart (with few groups: as improbable a distance by Student's t). The warning needs this many groups
among the labelled and among the other answers. With fewer, scores that crowd at 10 lie as far apart by chance."""

_SHOWN_GAIN = 1.1
"""Ratio of effective labels to labels that must be reached to report a gain. A useless judge reaches less by chance."""

_UNGROUPED = "only labelled answers have a group; give every answer's in a column group of the judge's file"
_NO_SYSTEM = "of answers without a label it is not known who answered; give a column system in the judge's file"


class CorrectedMean(Struct, frozen=True, kw_only=True):
    """A mean human score on 1..10 with its 95 % interval, from labels and judge together.

    - human_only, judge_only: the mean from labels only and from the judge's scores only.
    - lam: factor (0..1) of the judge's correction.
    - effective: number of labels that would be as precise without the judge.
    - undefined: why values are None. caution: a warning that the labels do not look like a random draw, or None.
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
    reading: str = ""


class LabelPlan(Struct, frozen=True, kw_only=True):
    """The number of labels needed for a 95 % interval of ± `half_width` points, if `rows` answers may be labelled.

    Both numbers are None if `undefined` gives a reason.
    """

    half_width: float
    rows: int
    with_judge: int | None = None
    without_judge: int | None = None
    undefined: str | None = None
    reading: str


class Answers(NamedTuple):
    """Scores of T answers, labelled or not; every array has shape (T,).

    `human`: the human score, 0 for unlabelled answers. `judge`: the judge's score, or the judge's mean if a judgment
    failed. `labelled`: mask. `member`: number of the answer's group, from 0. `weight`: 1 / chance of being labelled, or
    None if all chances are equal.
    """

    human: Floats
    judge: Floats
    labelled: Mask
    member: Indices
    weight: Floats | None

    @property
    def n(self) -> int:
        """Number of labelled answers."""
        return int(self.labelled.sum())

    @property
    def shares(self) -> Floats:
        """Weight of each answer in a mean over the labelled ones, (T,). The weights sum to 1."""
        times = np.where(self.labelled, 1.0 if self.weight is None else self.weight, 0.0)
        return np.asarray(times / times.sum())

    @property
    def groups(self) -> int:
        """Number of groups with a label."""
        return int(np.count_nonzero(np.bincount(self.member[self.labelled])))

    @property
    def quantile(self) -> float:
        """Factor from standard error to half width of a 95 % interval.

        It is Student's t, times sqrt(G / (G - 1)) for few groups.
        """
        return float(scipy.stats.t.ppf((1 + LEVEL) / 2, self.groups - 1) * np.sqrt(self.groups / (self.groups - 1)))

    @property
    def too_few(self) -> str | None:
        """Reason why the labels lie in too few groups for an interval, or None."""
        few = f"labels in {self.groups} groups; at least {FEWEST_GROUPS} are needed"
        return few if self.groups < FEWEST_GROUPS else None


class Parts(NamedTuple):
    """The two parts of the estimate `human_mean - lam * excess`, and each group's contribution to them, (G,).

    `excess`: the judge's mean over the labelled answers minus its mean over the others. `lam`: the factor of least
    variance.
    """

    human_mean: float
    excess: float
    human_by_group: Floats
    excess_by_group: Floats
    lam: float

    def value(self, lam: float) -> float:
        """Return the estimate for a given factor `lam`."""
        return self.human_mean - lam * self.excess

    def variance(self, lam: float) -> float:
        """Return the cluster-robust variance of the estimate, by group, for a given factor `lam`."""
        return float(((self.human_by_group - lam * self.excess_by_group) ** 2).sum())

    def subtract(self, other: "Parts") -> "Parts":
        """Return the parts of this estimate minus another on the same groups, with the `lam` of least variance."""
        human = self.human_by_group - other.human_by_group
        excess = self.excess_by_group - other.excess_by_group
        lam = float(np.clip(human @ excess / (excess @ excess), 0, 1)) if excess.any() else 0.0
        return Parts(self.human_mean - other.human_mean, self.excess - other.excess, human, excess, lam)


def measure_corrected_means(sample: RatedSample, _: AuditRequest) -> dict[str, CorrectedMean]:
    """Estimate the mean human score of each answerer (model) from labels and judge together.

    Returns the means by answerer, or one for "all answers" if no answerer is known. Answerers without labels are left
    out, and so are answerers without unlabelled answers. But if some unlabelled answers do not name their
    answerer, they may belong to any answerer, and an answerer without other unlabelled answers has an undefined mean.
    """
    labelled, unlabelled = ~np.isnan(sample.human), np.isnan(sample.human)
    rows_of = dict(sample.part_rows("answerer"))
    if rows_of:
        unlabelled &= np.array([name is None for name in sample.parts["answerer"]], dtype=bool)
    means = {}
    for name, rows in (rows_of or {"all answers": np.ones(len(labelled), dtype=bool)}).items():
        known = labelled[rows]
        if not known.any() or (known.all() and not unlabelled.any()):
            continue
        undefined = _NO_SYSTEM if known.all() else _why_ungrouped(sample)
        means[name] = corrected_mean(sample.rows(rows), undefined)
    return means


def _why_ungrouped(sample: RatedSample) -> str | None:
    """Return why no interval can be given for a sample with unlabelled answers, or None if it can.

    The groups of unlabelled answers must be known. Counting each as a group of its own would make the interval too
    narrow.
    """
    return None if sample.grouped else _UNGROUPED


def corrected_mean(sample: RatedSample, undefined: str | None = None) -> CorrectedMean:
    """Estimate the mean human score of a sample's answers, some of which people scored.

    A failed judgment counts as the judge's mean score. This only defines another judge, so the estimate is unbiased.
    The factor of the judge's correction is tuned (PPI++, clipped to 0..1): 1 is plain PPI, 0 the labels' mean.
    `undefined`: the caller's reason to give no value, or None. The value is None as well if the labels lie in fewer
    than FEWEST_GROUPS groups. Raises ValueError for scores outside 1..10.

    >>> labels, judge = np.array([6, 7, 5, 8, 6, 7, *[np.nan] * 6]), np.array([7.0, 8, 6, 9, 7, 8, 8, 9, 7, 10, 8, 9])
    >>> answers = RatedSample(name="", ids=[*"abcdefghijkl"], group=[None] * 12, human=labels, judges={"j": judge})
    >>> mean = corrected_mean(answers)
    >>> mean.human_only, round(mean.value, 2)  # the judge gives the others a point more
    (6.5, 6.86)
    """
    answers, failed = answers_of(sample), np.isnan(sample.scores)
    judged = answers.judge[~failed]
    result = CorrectedMean(
        labelled=answers.n,
        unlabelled=len(failed) - answers.n,
        groups=answers.groups,
        failed_labelled=int((failed & answers.labelled).sum()),
        failed_unlabelled=int((failed & ~answers.labelled).sum()),
        human_only=float(answers.shares @ answers.human) if answers.n else None,
        judge_only=float(judged.mean()) if len(judged) else None,
    )
    if undefined := undefined or answers.too_few:
        return replace(result, undefined=undefined, reading=f"Not measured: {undefined}.")
    parts = parts_of(answers)
    result = replace(
        result,
        value=parts.value(parts.lam),
        interval=_interval(answers, parts, parts.lam),
        human_interval=_interval(answers, parts, lam=0.0),
        lam=parts.lam,
        effective=_effective_labels(answers, parts),
        caution=_caution(answers, parts),
    )
    gained = round(result.effective or 0) >= _SHOWN_GAIN * answers.n
    return replace(result, reading=say("corrected_mean", mean=result, gained=gained))


def _effective_labels(answers: Answers, parts: Parts) -> float | None:
    """Return how many labels would be as precise as the corrected estimate without the judge; None if unlimited."""
    labels_only, corrected = parts.variance(0.0), parts.variance(parts.lam)
    if corrected:
        return answers.n * labels_only / corrected
    # A perfect judge has no finite worth; labels without variance need no judge.
    return None if labels_only else float(answers.n)


def plan_labels(sample: RatedSample, request: AuditRequest) -> LabelPlan | None:
    """Plan the labels for a mean over a sample within ± `request.within` points, or return None without a half width.

    The labels are sampled like the present ones. With n labels of T answers the variance of PPI++ is F + s² / n ·
    (1 - r² (1 - n / T)). s² is the variance of a label and r² the judge's share of it. F is the part that more labels
    do not reduce, because answers share groups.
    """
    if not request.within:
        return None
    answers, rows = answers_of(sample), len(sample.ids)
    plan = LabelPlan(half_width=request.within, rows=rows, reading="")
    shared = _shared_variance(answers)
    alone = "no two labelled answers share a group, so how alike such answers are is unknown"
    undefined = _why_ungrouped(sample) or answers.too_few or (alone if shared is None else None)
    if undefined or shared is None:
        return replace(plan, undefined=undefined, reading=f"Not planned: {undefined}.")
    parts = parts_of(answers)
    labels_only, judged = (max(parts.variance(lam) - shared, 0.0) for lam in (0.0, parts.lam))
    allowed = (plan.half_width / answers.quantile) ** 2 - shared
    # Without room left by the shared part no number of labels is enough.
    labels = labels_for(allowed, labels_only, judged, answers.n, rows) if allowed > 0 else (rows + 1, rows + 1)
    if max(labels) > rows:
        smallest = answers.quantile * np.sqrt(shared + answers.n * labels_only / rows)
        undefined = say("plan_too_far", rows=rows, smallest=smallest)
        reading = say("plan_unreached", half_width=plan.half_width, why=undefined)
        return replace(plan, undefined=undefined, reading=reading)
    with_judge, without_judge = (max(FEWEST_GROUPS, ceil(count)) for count in labels)
    counts = {"with_judge": with_judge, "without_judge": without_judge}
    return replace(plan, **counts, reading=say("plan", half_width=plan.half_width, **counts))


def labels_for(allowed: float, labels_only: float, judged: float, n: int, rows: int) -> tuple[float, float]:
    """Return the numbers of labels, with the judge and without, that reduce a variance to `allowed`.

    With `n` labels of `rows` answers the variance is `judged` with the judge and `labels_only` without. If all answers
    would have to be labelled, the judge does not help and both numbers are equal. A number above `rows` needs more
    answers than there are.

    >>> labels_for(allowed=0.5, labels_only=1.0, judged=0.55, n=10, rows=100)
    (11.11111111111111, 20.0)
    """
    explained = (1 - judged / labels_only) * rows / (rows - n) if labels_only and rows > n else 0.0
    # A perfect judge on these answers is not perfect on all: some labels are always needed.
    explained = min(max(explained, 0.0), 0.99)
    without = n * labels_only / allowed
    if without > rows:
        return without, without
    return without * (1 - explained) / (1 - explained * without / rows), without


def answers_of(sample: RatedSample) -> Answers:
    """Convert a sample to `Answers`. Raises ValueError for scores outside 1..10."""
    people, judged = on_scale(sample.human, "human"), on_scale(sample.scores, "judge")
    labelled, failed = ~np.isnan(people), np.isnan(judged)
    filled = np.where(failed, judged[~failed].mean() if not failed.all() else 0, judged)
    return Answers(np.where(labelled, people, 0), filled, labelled, sample.groups, sample.weight)


def _shared_variance(sample: Answers) -> float | None:
    """Return the part of the variance that more labels do not reduce.

    It is the covariance of two labels of a group times the chance that two answers share a group. Returns None if it is
    unknown because answers share groups but labelled answers do not.
    """
    member, human = sample.member[sample.labelled], sample.human[sample.labelled]
    # Ordered pairs of different answers in the same group.
    pairs, labelled_pairs = (int((sizes * (sizes - 1)).sum()) for sizes in map(np.bincount, (sample.member, member)))
    if not pairs or not labelled_pairs:
        return None if pairs else 0.0
    human = human - human.mean()
    # The sum over a group's pairs is the square of its total less the products of an answer with itself.
    totals = np.bincount(member, human)
    covariance = (totals @ totals - human @ human) / labelled_pairs
    return max(0.0, float(covariance * pairs / (len(sample.human) * (len(sample.human) - 1))))


def parts_of(sample: Answers) -> Parts:
    """Return the two parts of the estimate, the groups' contributions to them, and the tuned `lam`."""
    labelled, n, rest, shares = sample.labelled, sample.n, len(sample.human) - sample.n, sample.shares
    human_mean = float(shares @ sample.human)
    by_group = np.asarray(np.bincount(sample.member, shares * (sample.human - human_mean)), dtype=np.float64)
    # Without other answers, or with a constant judge, there is nothing to correct by.
    if not rest or np.ptp(sample.judge) == 0:
        return Parts(human_mean, 0.0, by_group, np.zeros_like(by_group), 0.0)
    # Labels with known chances are compared with all answers: those without a label are no random draw either.
    others = ~labelled / rest if sample.weight is None else np.full(len(labelled), 1 / len(labelled))
    judge_mean, others_mean = float(shares @ sample.judge), float(others @ sample.judge)
    # Contribution of each answer to the difference of these means, less its expectation. Sums over a group are
    # independent of other groups' sums, so the sum of their squares is the variance.
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
    half_width = sample.quantile * np.sqrt(parts.variance(lam))
    return float(parts.value(lam) - half_width), float(parts.value(lam) + half_width)


def _caution(sample: Answers, parts: Parts) -> str | None:
    """Return a warning if the labels do not look like a random draw, or None.

    The judge's mean over the labelled answers is then too far from its mean over the others.
    """
    fewest = min(sample.groups, len(np.unique(sample.member[~sample.labelled])))
    # Weighted labels are known to be no simple random draw, and are corrected for it.
    if sample.weight is not None or fewest < _FEWEST_GROUPS_TO_WARN:
        return None
    error = np.linalg.norm(parts.excess_by_group)
    if abs(parts.excess) <= scipy.special.stdtrit(fewest - 1, scipy.special.ndtr(_FAR)) * error:
        return None
    return say("no_random_draw", far=abs(parts.excess), way="above" if parts.excess > 0 else "below")


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
"""A difference that has only the names of two models (and the task) yet, and each model's answers to the questions that
both answered."""


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

    def list_pairs(rows: Mask, task: str | None) -> Iterator[Pair]:
        for (first, first_rows), (second, second_rows) in combinations(models.items(), 2):
            names = ModelDifference(first=first, second=second, task=task, n=0)
            answers = _common_answers(sample, rows & first_rows, rows & second_rows)
            yield names, next(answers), next(answers)

    lines = [*_compare_family(list_pairs(np.ones(len(sample.ids), dtype=bool), task=None))]
    if len(sample.part_values("task")) > 1 and len(models) <= MOST_BY_TASK:
        # The tasks are a family of their own: overall differences do not pay for them.
        lines += _compare_family(pair for task, rows in sample.part_rows("task") for pair in list_pairs(rows, task))
    return lines


def _compare_family(pairs: Iterable[Pair]) -> Iterator[ModelDifference]:
    """Compare the models of each pair, and correct the p-values over all pairs, which are one family (Holm)."""
    family = list(pairs)
    adjusted = holm([_difference(*pair).p_value for pair in family])
    for pair, p in zip(family, adjusted, strict=True):
        line = _difference(*pair, tests=count_unshown(adjusted))
        ahead = line.second if (line.value or 0) > 0 else line.first
        yield replace(line, p_holm=p, ahead=ahead if p is not None and p <= 1 - LEVEL else None)


def _common_answers(sample: RatedSample, first: Mask, second: Mask) -> Iterator[Answers]:
    """Yield each model's answers to the questions that both models answered. Both use the same group numbers.

    `first`, `second`: masks of the models' rows.
    """
    common = np.intersect1d(sample.groups[first], sample.groups[second])
    for rows in (first, second):
        yield answers_of(sample.rows(rows & np.isin(sample.groups, common)))


def _difference(line: ModelDifference, first: Answers, second: Answers, tests: int = 1) -> ModelDifference:
    """Return `line` with the difference and its statistics, computed from the answers of both models.

    `line`: the models' names, as in `Pair`. `tests`: the number of tests that share the 5 %; `detectable` and `needed`
    depend on it.
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


class Saving(Struct, frozen=True, kw_only=True):
    """Labels that the judge saves on one mean.

    `labels`: number of labels of the mean. `worth`: number of labels that would be as precise without the judge.
    """

    name: str
    labels: int
    worth: float

    @property
    def of_hundred(self) -> float:
        """Number of labels that are as precise without the judge as 100 labels with it."""
        return 100 * self.worth / self.labels


class Savings(Struct, frozen=True, kw_only=True):
    """Savings by the judge, of labels and of answers that people need not rate, pooled over all means and samples.

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
    """Pool the savings of all samples, or return None if there are fewer than two means.

    Each mean is the corrected mean of an answerer. If all answers of a sample are labelled, the saving is computed for
    an unlimited number of further judged answers. With several samples, each sample's answerers are added up.
    """
    means: list[Saving] = []
    routed: dict[str, Floats] = {}
    for name, findings in audits.items():
        savings = _of_corrected(findings) if findings.corrected else [*_of_labelled(findings.sample.labelled)]
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


def _of_labelled(sample: RatedSample) -> Iterator[Saving]:
    """Yield the saving of each answerer of a labelled sample, with an unlimited number of further judged answers."""
    rows_of = dict(sample.part_rows("answerer")) or {"all answers": ~np.isnan(sample.human)}
    for answerer, rows in rows_of.items():
        answers = sample.rows(rows)
        if worth := worth_beside_any_number(answers):
            yield Saving(name=answerer, labels=len(answers.ids), worth=worth)


def _add_up(name: str, savings: Sequence[Saving]) -> Saving:
    """Add up the labels and worths of several savings.

    >>> _add_up("all", [Saving(name="a", labels=10, worth=12.0), Saving(name="b", labels=20, worth=30.0)]).of_hundred
    140.0
    """
    labels = sum(saving.labels for saving in savings)
    return Saving(name=name, labels=labels, worth=sum(saving.worth for saving in savings))


def worth_beside_any_number(sample: RatedSample) -> float | None:
    """Return how many labels without the judge are worth n labels with an unlimited number of further judged answers.

    This is n / (1 - r²), with r the correlation of the groups' contributions to the human and the judge's mean (PPI++,
    arXiv 2311.01453, §6), times 1 - 1 / (G - 1) for the fitted factor (Mani et al. 2025, arXiv 2505.20178). G is the
    number of groups. Returns None if there are too few groups, or if r is 1.
    """
    answers = answers_of(sample)
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
