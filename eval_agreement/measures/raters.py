"""Agreement among several raters, of a judge with single raters, and of a judge with itself (--repeat).

- Alpha: Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability".
- Soft agreement, with the raters' distribution in place of their mean: Peterson et al. 2019, "Human Uncertainty Makes
  Classification More Robust", §3. Its noise ceiling: Nili et al. 2014, "A Toolbox for Representational Similarity
  Analysis".
- Alternative annotator test, for replacing a rater by the judge: Calderon, Reichart and Dror 2025, "The Alternative
  Annotator Test for LLM-as-a-Judge", ACL.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from critic.records import RATINGS
from critic.stats.arrays import Floats, Group, group_numbers, ratio
from critic.stats.estimate import Bootstrap, Estimate
from eval_agreement.metrics import half_up, mean_estimate
from eval_agreement.sample import EPSILON, AuditRequest, Indices, RatedSample
from eval_agreement.sentences import say

Level = Literal["ordinal", "nominal"]
"""Level of measurement: scores are ordinal, verdicts nominal."""

Ratings = Sequence[Mapping[str, float]]
"""Each item's scores, or codes of verdicts, by rater (`HumanScore.raters`). They are compared to 12 decimals."""

Judge = Sequence[float | None] | NDArray[np.floating]
"""The judge's score or code per item; None or NaN for a failed judgment."""

FALSE_DISCOVERIES, WINNING_RATE = 0.05, 0.5
"""False discovery rate over raters (Benjamini and Yekutieli). Smallest share of raters that the judge must match."""

FEWEST_RATERS, FEWEST_ITEMS = 3, 30
"""Fewest raters for an alternative annotator test, and fewest items that a rater must have rated."""

FEWEST_BLOCKS = 10
"""Fewest groups that a rater's items must lie in. With six groups the alternative annotator test, at a level of 5 %,
rejected up to 18 % of true hypotheses."""

_DECIMALS, _ROUNDING = 12, 1e-9
"""Decimals to which scores are compared; size below which a difference is a rounding error."""


class RaterAgreement(Struct, frozen=True, kw_only=True):
    """Krippendorff's alpha (at most 1; 0 is chance) of `raters` people, and of people and the judge as one more rater.

    `difference`: alpha with the judge minus alpha without. Items without a judgment (`failed`) and items with fewer
    than two ratings (`single`) are left out.
    """

    level: Level
    items: int
    single: int
    failed: int
    raters: int
    ratings: int
    people: Estimate
    with_judge: Estimate | None = None
    difference: Estimate | None = None


class SoftAgreement(Struct, frozen=True, kw_only=True):
    """Agreement with a randomly chosen rater, on items with two ratings or more.

    - judge: chance (0..1) that the judge gives the same rating as this rater. people: chance that another rater does.
    - ceiling: chance for an ideal judge, which always gives the item's most frequent rating.
    - differ: share of items on which raters differ. difference: `judge` minus `people`.
    """

    differ: Estimate
    judge: Estimate
    people: Estimate
    ceiling: Estimate
    difference: Estimate
    reading: str


class RaterTest(Struct, frozen=True, kw_only=True):
    """Comparison of the judge with one rater on `n` items in `groups` groups.

    - judge_advantage: share (0..1) of items on which the judge is at least as close to the other raters as this rater.
    - rater_advantage: share (0..1) of items on which this rater is at least as close to the other raters as the judge.
    - p: of the hypothesis that judge_advantage is at most rater_advantage minus epsilon. rejected: True if p is
      significant after correction over the raters, so that the judge does as well as this rater.
    """

    rater: str
    n: int
    groups: int
    judge_advantage: float
    rater_advantage: float
    p: float
    rejected: bool = False


class AlternativeAnnotator(Struct, frozen=True, kw_only=True):
    """Result of the alternative annotator test of a judge; `lines` has one test per rater.

    - omega: winning rate, the share (0..1) of raters whose test is `rejected`. rho: mean `judge_advantage`.
    - over_constant: how much better the judge is than a constant judge (`_beat_constant`).
    - passes: True if omega is at least WINNING_RATE, and `over_constant` is shown to be above 0.
    - left_out: number of raters with too few items or groups.
    - undefined: why there is no result, or None.
    """

    epsilon: float
    left_out: int
    lines: list[RaterTest]
    omega: float | None = None
    rho: float | None = None
    over_constant: Estimate | None = None
    passes: bool | None = None
    reading: str
    undefined: str | None = None


class BesideRaters(Struct, frozen=True, kw_only=True):
    """Three comparisons of a judge with several raters; None for each if no item has two ratings."""

    raters: RaterAgreement | None = None
    soft: SoftAgreement | None = None
    replaces: AlternativeAnnotator | None = None


class RatedItems(NamedTuple):
    """All ratings of the items that have a judgment and two ratings or more, as arrays in the order of the items.

    `item`, `rater` (an index into `names`) and `score` have one entry per rating; `judge` and `group` one per item.
    `single` and `failed` count items left out: those with fewer ratings, and those without a judgment.
    """

    names: list[str]
    item: Indices
    rater: Indices
    score: Floats
    judge: Floats
    group: Indices
    single: int
    failed: int

    @property
    def items(self) -> int:
        """Number of items."""
        return len(self.judge)

    @property
    def sizes(self) -> Indices:
        """Number of ratings of each item."""
        return np.bincount(self.item, minlength=self.items)

    @property
    def mean_of_others(self) -> Floats:
        """For each rating, the mean of the other raters' ratings of the same item."""
        total = np.bincount(self.item, self.score, minlength=self.items)[self.item]
        # A difference of sums leaves rounding errors, which could put a mean of tens above ten.
        return np.round((total - self.score) / (self.sizes[self.item] - 1), _DECIMALS)

    @property
    def equal_others(self) -> tuple[Indices, Indices]:
        """For each rating, how many other ratings of the item equal the judge's, and how many equal this rating."""
        equal_to_judge = self.score == self.judge[self.item]
        with_judge = np.bincount(self.item, equal_to_judge, minlength=self.items)[self.item].astype(np.intp)
        pairs = np.stack([self.item, self.score])
        _, value, count = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
        return with_judge - equal_to_judge, count[value] - 1


def collect_ratings(ratings: Ratings, judge: Judge | None, group: Group) -> RatedItems:
    """Collect the ratings of the items with a judgment and two ratings or more.

    `ratings`, `judge`, `group`: one entry per item. If `judge` is None, items need no judgment.
    """
    names = sorted(set[str]().union(*ratings))
    number = {name: index for index, name in enumerate(names)}
    sizes = np.array([len(rated) for rated in ratings], dtype=np.intp)
    scores = np.zeros(len(ratings)) if judge is None else np.asarray(judge, dtype=np.float64)
    judged, several = ~np.isnan(scores), sizes > 1
    kept = judged & several
    given = [(number[name], score) for index in np.flatnonzero(kept) for name, score in ratings[index].items()]
    rater, score = np.array(given, dtype=np.float64).reshape(-1, 2).T
    return RatedItems(
        names=names,
        item=np.repeat(np.arange(int(kept.sum())), sizes[kept]),
        rater=rater.astype(np.intp),
        score=np.round(score, _DECIMALS),
        judge=np.round(scores[kept], _DECIMALS),
        group=group_numbers(group)[kept],
        single=int((judged & ~several).sum()),
        failed=int((~judged).sum()),
    )


def leave_one_out(ratings: Ratings) -> tuple[Floats, Floats, Indices]:
    """Compare each rater with the mean of the others, pooled over raters.

    Returns three arrays with one entry per rating of an item with two ratings or more: the mean of the item's other
    ratings, the rating, and the index of the item.

    >>> [array.tolist() for array in leave_one_out([{"ann": 4, "bob": 6}, {"ann": 5}])]
    [[6.0, 4.0], [4.0, 6.0], [0, 0]]
    """
    rated = collect_ratings(ratings, None, np.arange(len(ratings)))
    return rated.mean_of_others, rated.score, rated.group[rated.item]


def move_to_ratings(ratings: Ratings, judge: Floats) -> Floats:
    """Round the judge's scores (n,) to the nearest rating that people use.

    If people use more than ten different ratings, or none, the scores are returned unchanged.

    >>> move_to_ratings([{"ann": 1, "bob": 5}, {"ann": 3}], np.array([1.9, 2.4, np.nan])).tolist()
    [1.0, 3.0, nan]
    """
    used = np.unique(np.round([score for rated in ratings for score in rated.values()], _DECIMALS))
    if not 0 < len(used) <= len(RATINGS):
        return judge
    edges = (used[1:] + used[:-1]) / 2
    return np.where(np.isnan(judge), np.nan, used[np.searchsorted(edges, judge, side="right")])


def beside_raters(
    ratings: Ratings, judge: Floats, group: Group, epsilon: float = EPSILON, level: Level = "ordinal"
) -> BesideRaters:
    """Compare a judge with single raters in three ways; the result is empty if no item has two ratings.

    `ratings`, `judge`, `group`: one entry per item. NaN in `judge` is a failed judgment.
    """
    if not any(len(rated) > 1 for rated in ratings):
        return BesideRaters()
    # A score between two ratings would equal nobody's. Alpha needs no such move: it knows the order of scores.
    nearest = move_to_ratings(ratings, judge) if level == "ordinal" else judge
    rated = collect_ratings(ratings, nearest, group)
    return BesideRaters(
        raters=rater_agreement(ratings, group, judge=judge, level=level),
        soft=soft_agreement(rated, level=level),
        replaces=alternative_annotator(rated, epsilon=epsilon, level=level),
    )


def soft_agreement(rated: RatedItems, level: Level = "ordinal") -> SoftAgreement:
    """Measure a judge's agreement with a randomly chosen rater, beside that of another rater and of an ideal judge.

    On an item with m ratings, m_v of which are v, the chance is m_v / m for a judge who says v, the sum over v of m_v
    (m_v - 1) / (m (m - 1)) for another rater, and the largest m_v / m for an ideal judge. If people use more than ten
    different ratings, all are rounded half up.
    """
    if len(np.unique(rated.score)) > len(RATINGS):
        rated = rated._replace(score=half_up(rated.score), judge=half_up(rated.judge))
    item, items, size = rated.item, rated.items, rated.sizes
    _, same = rated.equal_others
    by_judge = np.bincount(item, rated.score == rated.judge[item], minlength=items) / size
    by_people = np.bincount(item, same, minlength=items) / (size * (size - 1))
    # reduceat takes the largest count of each item; it cannot take none.
    commonest = (np.maximum.reduceat(same, np.cumsum(size) - size) + 1) / size if items else by_people
    estimates = {
        "judge": mean_estimate(by_judge, rated.group, share=True),
        "people": mean_estimate(by_people, rated.group, share=True),
        "ceiling": mean_estimate(commonest, rated.group, share=True),
        "differ": mean_estimate(commonest < 1, rated.group, share=True),
        "difference": mean_estimate(by_judge - by_people, rated.group, null=0.0),
    }
    return SoftAgreement(**estimates, reading=say("soft", level=level, items=items, **estimates))


def alternative_annotator(
    rated: RatedItems, epsilon: float = EPSILON, level: Level = "ordinal"
) -> AlternativeAnnotator:
    """Run the alternative annotator test of Calderon, Reichart and Dror (2025): may the judge replace a rater?

    Each rater j is left out in turn. The score S of judge or rater is minus the root mean square distance to the other
    raters' ratings or, at the nominal level, the share of the others that give the same verdict. On item i, W^f_ij = 1
    if S(judge) >= S(rater), and W^h_ij = 1 if S(rater) >= S(judge). The hypothesis mean W^f_ij <= mean W^h_ij - epsilon
    is tested one-sidedly for each rater, by a t-test clustered by group, and corrected over raters.

    Beside noisy raters a constant judge passes as well, so the judge must also be shown to beat a constant one.

    Raters with fewer than FEWEST_ITEMS items or FEWEST_BLOCKS groups are left out. The test is undefined with fewer
    than FEWEST_RATERS raters, on the median item or in all.

    Without spread the p-value is an exact bound. With equal ratings everywhere it is (1 - epsilon)^n:

    >>> def run(ratings, judge, epsilon=0.2):
    ...     rated = collect_ratings([dict(zip("abc", ratings))] * 35, [judge] * 35, range(35))
    ...     test = alternative_annotator(rated, epsilon)
    ...     return test.omega, [line.p for line in test.lines]
    >>> omega, p_values = run((3, 3, 3), judge=3)
    >>> omega, np.allclose(p_values, 0.8**35, atol=0)
    (1.0, True)
    >>> run((3, 3, 3), judge=4), run((3, 3, 3), judge=3, epsilon=0)
    ((0.0, [1.0, 1.0, 1.0]), (0.0, [1.0, 1.0, 1.0]))
    >>> bool(np.isclose(run((1, 9, 5), judge=5)[1][0], 0.4**35, atol=0))
    True

    Without enough raters, items or judgments there is no result:

    >>> two, three = {"a": 5.0, "b": 5.0}, {"a": 5.0, "b": 5.0, "c": 5.0}
    >>> pairs = [{f"r{n % 20}": 5.0, f"r{(n + 1) % 20}": 6.0} for n in range(900)]
    >>> unjudged = [([three] * 60, np.nan), ([{}] * 60, 5.0), ([], 5.0)]
    >>> for ratings, judge in (([two] * 60, 5.0), (pairs, 5.0), ([three] * 29, 5.0), *unjudged):
    ...     test = alternative_annotator(collect_ratings(ratings, [judge] * len(ratings), range(len(ratings))))
    ...     print(test.omega, test.rho, test.passes, test.undefined in test.reading, test.undefined)
    None None None True the test needs 3 raters an item, and half of the items or more have two
    None None None True the test needs 3 raters an item, and half of the items or more have two
    None None None True the test needs 3 raters with 30 items in 10 groups or more, and there are 0
    None None None True no item has a judgment and two ratings
    None None None True no item has a judgment and two ratings
    None None None True no item has a judgment and two ratings
    """
    # The mean square distance to the others is the squared distance to their mean plus their variance. The variance is
    # the same for judge and rater, so the one nearer to the mean has the higher S.
    mean = rated.mean_of_others
    lead = np.abs(rated.score - mean) - np.abs(rated.judge[rated.item] - mean)
    if level == "nominal":
        lead = np.subtract(*rated.equal_others).astype(np.float64)
    lines = []
    for number, name in enumerate(rated.names):
        rows = np.flatnonzero(rated.rater == number)
        members = group_numbers(rated.group[rated.item[rows]])
        groups = int(members.max(initial=-1)) + 1
        if len(rows) < FEWEST_ITEMS or groups < FEWEST_BLOCKS:
            continue
        # Ties count for both.
        wins, losses = ((sign * lead[rows] >= -_ROUNDING).astype(np.float64) for sign in (1, -1))
        line = RaterTest(
            rater=name,
            n=len(rows),
            groups=groups,
            judge_advantage=float(wins.mean()),
            rater_advantage=float(losses.mean()),
            p=_p_value(losses - wins, members, epsilon),
        )
        lines.append(line)
    # SciPy's correction by Benjamini and Yekutieli refuses an empty list.
    adjusted = scipy.stats.false_discovery_control([line.p for line in lines], method="by") if lines else []
    lines = [replace(line, rejected=bool(p <= FALSE_DISCOVERIES)) for line, p in zip(lines, adjusted, strict=True)]
    test = AlternativeAnnotator(epsilon=epsilon, left_out=len(rated.names) - len(lines), lines=lines, reading="")
    if why := _why_no_test(rated, lines):
        return replace(test, undefined=why, reading=say("replaces_untold", why=why))
    omega = sum(line.rejected for line in lines) / len(lines)
    rho = float(np.mean([line.judge_advantage for line in lines]))
    rater = float(np.mean([line.rater_advantage for line in lines]))
    over_constant = _beat_constant(rated, level)
    passes = omega >= WINNING_RATE and over_constant.side > 0
    test = replace(test, omega=omega, rho=rho, over_constant=over_constant, passes=passes)
    # A judge that wins often and passes all the same not is no better than a constant.
    rho_counts = passes or omega < WINNING_RATE
    return replace(test, reading=say("replaces", test=test, rater=rater, needed=WINNING_RATE, rho_counts=rho_counts))


def _beat_constant(rated: RatedItems, level: Level) -> Estimate:
    """Estimate how much better the judge is than the best constant judge; above 0 is better.

    For ordinal ratings it is how much closer, on average, the judge is to a rater than the median of all ratings is, in
    points. For nominal ratings it is how much more often (as a share) the judge gives a rater's verdict than a judge
    that always gives the most frequent verdict.
    """
    if level == "nominal":
        values, counts = np.unique(rated.score, return_counts=True)
        gain = (rated.score == rated.judge[rated.item]) * 1.0 - (rated.score == values[counts.argmax()])
    else:
        gain = np.abs(rated.score - np.median(rated.score)) - np.abs(rated.score - rated.judge[rated.item])
    return mean_estimate(gain, rated.group[rated.item], null=0.0)


def _p_value(difference: Floats, group: Indices, epsilon: float) -> float:
    """Return the one-sided p-value of the hypothesis that the mean of `difference` (n,) is at least epsilon.

    `group`: number of each item's group, from 0. The variance of the mean is clustered: G / (G - 1) times the sum of
    the groups' squared deviations, over n squared.
    """
    mean = float(difference.mean())
    groups = int(group.max()) + 1
    spread = float((np.bincount(group, difference - mean) ** 2).sum())
    if spread > _ROUNDING:
        error = np.sqrt(groups / (groups - 1) * spread) / len(difference)
        return float(scipy.stats.t.cdf((mean - epsilon) / error, groups - 1))
    # Without spread there is no t. A group's mean is at most 1, so a group of expectation epsilon is at `mean` or below
    # with probability (1 - epsilon) / (1 - mean) at most; all groups are with that to the power of their number.
    return float(((1 - epsilon) / max(1 - mean, 1 - epsilon)) ** groups)


def _why_no_test(rated: RatedItems, lines: list[RaterTest]) -> str | None:
    """Return why the alternative annotator test is undefined, or None if it is defined."""
    if not rated.items:
        return "no item has a judgment and two ratings"
    if np.median(rated.sizes) < FEWEST_RATERS:
        return f"the test needs {FEWEST_RATERS} raters an item, and half of the items or more have two"
    if len(lines) < FEWEST_RATERS:
        return say("few_raters", raters=FEWEST_RATERS, items=FEWEST_ITEMS, groups=FEWEST_BLOCKS, there=len(lines))
    return None


def rater_agreement(
    ratings: Ratings, group: Group, judge: Judge | None = None, level: Level = "ordinal", resamples: int | None = None
) -> RaterAgreement:
    """Measure Krippendorff's alpha of the raters and, if `judge` is given, with the judge as one more rater.

    Undefined if no item has two ratings, or if all ratings are the same. None or NaN in `judge` is a failed judgment.

    >>> ratings = [{"ann": score, "bob": score} for score in (2, 4, 6, 8, 9)]
    >>> rater_agreement(ratings, group=range(5)).people.value
    1.0
    """
    rated = collect_ratings(ratings, judge, group)
    draws = Bootstrap(rated.group, resamples)

    def resample_alpha(item: Indices, score: Floats) -> Floats:
        # How many of each item's ratings have each value, values ascending.
        values, code = np.unique(score, return_inverse=True)
        counts = scipy.sparse.csr_array((np.ones(len(score)), (item, code)), shape=(rated.items, len(values)))
        return np.concatenate([_alpha(block[draws.member], counts, level) for block in draws.draw_counts()])

    people = resample_alpha(rated.item, rated.score)
    reason = "people gave every item the same score" if rated.items else "no item has two ratings"
    with_judge = difference = None
    if judge is not None:
        item = np.concatenate([rated.item, np.arange(rated.items)])
        together = resample_alpha(item, np.concatenate([rated.score, rated.judge]))
        with_judge = draws.estimate(together, rated.items, undefined=reason)
        difference = draws.estimate(together - people, rated.items, undefined=reason, null=0.0)
    return RaterAgreement(
        level=level,
        items=rated.items,
        single=rated.single,
        failed=rated.failed,
        raters=len(np.unique(rated.rater)),
        ratings=len(rated.score),
        people=draws.estimate(people, rated.items, undefined=reason),
        with_judge=with_judge,
        difference=difference,
    )


def _alpha(times: Floats, counts: Any, level: Level) -> Floats:
    """Compute alpha in each of r resamples, (r,), NaN if undefined.

    `times[i, k]`: how often item i occurs in resample k. `counts[i, v]`: how many of item i's ratings have value v.
    """
    size = counts.sum(axis=1)
    marginal = counts.T @ times
    total = marginal.sum(axis=0)
    # A resample may hold a single value. Its 0 / 0 is replaced by NaN below.
    with np.errstate(invalid="ignore", divide="ignore"):
        if level == "nominal":
            equal = ((counts.power(2).sum(axis=1) - size) / (size - 1)) @ times
            alpha = 1 - (total - 1) * (total - equal) / (total**2 - (marginal**2).sum(axis=0))
        else:
            # Position of each value on its scale, centred: alpha's distance is the squared difference of positions. The
            # ordinal distance counts the ratings from one value to the other, with half of those at both ends. This is
            # the difference of two average ranks.
            position = np.cumsum(marginal, axis=0) - marginal / 2 - total / 2
            # With squared distances the coincidence matrix O enters only as p'Op, so it is never built: an item with m
            # ratings adds ((sum of p)² - sum of p²) / (m - 1).
            share = times / (size - 1)[:, None]
            pairs = (share * (counts @ position) ** 2).sum(axis=0) - ((counts.T @ share) * position**2).sum(axis=0)
            coincidence = pairs / (marginal * position**2).sum(axis=0)
            alpha = 1 - (total - 1) / total * (1 - coincidence)
    return np.where((marginal > 0).sum(axis=0) > 1, alpha, np.nan)


class Repeats(Struct, frozen=True, kw_only=True):
    """The verdicts of a judge that was asked `times` times.

    - changed: share (0..1) of the later verdicts that differ from the first; undefined if the judge was asked once.
    - runs: agreement with people in each run: mean absolute error of scores, or share of equal verdicts.
    """

    times: int
    changed: Estimate
    runs: list[float]
    reading: str


def measure_score_repeats(sample: RatedSample, _: AuditRequest) -> Repeats:
    """Measure the share of ratings (rounded half up) of the judge under audit that change when it is asked again."""
    scores: Floats = np.column_stack([sample.scores] if sample.repeats is None else [sample.scores, sample.repeats])
    return compare_repeats(
        half_up(scores), np.abs(scores - sample.human[:, None]), sample.groups, "the mean absolute error"
    )


def compare_repeats(verdicts: Floats, agreement: Floats, groups: Indices, name: str) -> Repeats:
    """Compare a judge's later verdicts with its first ones, and list its agreement with people in each run.

    `verdicts`: (n, times), a column per run, NaN if failed. `agreement`: each verdict's agreement with people, such as
    its absolute error, (n, times). `name`: what the mean of `agreement` is called in the sentence.
    """
    times = verdicts.shape[1]
    if times == 1:
        once = Estimate(n=0, undefined="the judge was asked once; critic judge --repeat 2 asks again")
        return Repeats(times=times, changed=once, runs=[], reading=say("asked_once"))
    both = ~np.isnan(verdicts[:, :1]) & ~np.isnan(verdicts[:, 1:])
    differs = both & (verdicts[:, 1:] != verdicts[:, :1])
    changed = mean_estimate(ratio(differs.sum(axis=1), both.sum(axis=1)), groups, share=True)
    runs = [float(np.mean(run[~np.isnan(run)])) for run in agreement.T if not np.isnan(run).all()]
    reading = say("asked_again", times=times, changed=changed, runs=runs, name=name)
    return Repeats(times=times, changed=changed, runs=runs, reading=reading)
