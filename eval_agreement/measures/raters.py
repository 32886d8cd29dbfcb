"""People's own disagreement: how far raters of the same items agree, and what a judge is as one of them.

Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability". Soft agreement, with people's distribution in place of
their mean: Peterson et al. 2019, "Human Uncertainty Makes Classification More Robust", §3; its noise ceiling: Nili et
al. 2014, "A Toolbox for Representational Similarity Analysis". Whether the judge may stand in for a rater: Calderon,
Reichart and Dror 2025, "The Alternative Annotator Test for LLM-as-a-Judge", ACL.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from critic.records import RATINGS
from critic.stats.arrays import Floats, Group, group_numbers
from critic.stats.estimate import Bootstrap, Estimate
from eval_agreement.metrics import Indices, half_up, mean_estimate
from eval_agreement.sentences import say

Level = Literal["ordinal", "nominal"]
Ratings = Sequence[Mapping[str, float]]
"""Each item's scores, or codes of verdicts, by rater (`HumanScore.raters`). They are compared to 12 decimals."""
Judge = Sequence[float | None] | NDArray[np.floating]

EPSILON = 0.2
"""Calderon et al.'s allowance for what the judge saves: 0.2 beside experts, 0.15 skilled raters, 0.1 a crowd."""

FALSE_DISCOVERIES, WINNING_RATE = 0.05, 0.5
"""Rate at which rejections over raters may be false (Benjamini and Yekutieli); the share of raters against which the
judge has to hold its own."""

FEWEST_RATERS, FEWEST_ITEMS = 3, 30
"""What the alternative annotator test needs."""

FEWEST_BLOCKS = 10
"""Groups that a rater's items must come from: with six, the test rejected up to 18 % of true hypotheses at 5 %."""

_DECIMALS, _DUST = 12, 1e-9


class RaterAgreement(Struct, frozen=True, kw_only=True):
    """Krippendorff's alpha (at most 1; 0 is chance) of `raters` people, and with the judge as one more; `difference` is
    what it adds. Left out: `failed` items without a judgment, `single` ones with fewer than two ratings."""

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
    """On items with two ratings or more, of which people `differ` on a share: the chance (0..1) that a rater drawn at
    random gives the `judge`'s rating, that two of them give the same (`people`), and that one gives the commonest
    (`ceiling`: an ideal judge). `difference` is judge less people."""

    differ: Estimate
    judge: Estimate
    people: Estimate
    ceiling: Estimate
    difference: Estimate
    reading: str


class RaterTest(Struct, frozen=True, kw_only=True):
    """The judge against a rater on `n` items in `groups` groups: the shares (0..1) of items on which either is at least
    as close to the others. A small `p`: the judge's is higher than the rater's less epsilon."""

    rater: str
    n: int
    groups: int
    judge_advantage: float
    rater_advantage: float
    p: float
    rejected: bool = False


class AlternativeAnnotator(Struct, frozen=True, kw_only=True):
    """Whether the judge may replace a rater: `omega` is the share of `lines` rejected, `rho` the mean of their
    `judge_advantage`; it `passes` at WINNING_RATE. `left_out` raters have too few items for a line of their own."""

    epsilon: float
    left_out: int
    lines: list[RaterTest]
    omega: float | None = None
    rho: float | None = None
    passes: bool | None = None
    reading: str
    undefined: str | None = None


class BesideRaters(Struct, frozen=True, kw_only=True):
    """What a judge is as one more rater, beside single ones, and in the place of one."""

    raters: RaterAgreement | None = None
    soft: SoftAgreement | None = None
    replaces: AlternativeAnnotator | None = None


class RatedItems(NamedTuple):
    """Ratings in long form, ordered by item: `item`, `rater` (`names[rater]` is who), `score`. Each item has two or
    more, a `judge`'s score and a `group`; `single` ones have fewer, `failed` no judgment."""

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
        return len(self.judge)

    @property
    def sizes(self) -> Indices:
        """How many ratings each item has."""
        return np.bincount(self.item, minlength=self.items)

    @property
    def mean_of_others(self) -> Floats:
        """For each rating the mean of the item's other ratings."""
        total = np.bincount(self.item, self.score, minlength=self.items)[self.item]
        # A difference of sums leaves dust, which would put a mean of tens above ten.
        return np.round((total - self.score) / (self.sizes[self.item] - 1), _DECIMALS)

    @property
    def alike(self) -> tuple[Indices, Indices]:
        """For each rating, how many of the item's other ratings are the judge's, and how many are the same as it."""
        same = self.score == self.judge[self.item]
        pairs = np.stack([self.item, self.score])
        _, value, count = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
        return np.bincount(self.item, same, minlength=self.items)[self.item].astype(np.intp) - same, count[value] - 1


def rated_items(ratings: Ratings, judge: Judge | None, group: Group) -> RatedItems:
    """The items to compare a judge on, all with two ratings where there is none."""
    names = sorted({name for rated in ratings for name in rated})
    number = {name: index for index, name in enumerate(names)}
    sizes = np.array([len(rated) for rated in ratings], dtype=np.intp)
    scores = np.zeros(len(ratings)) if judge is None else np.asarray(judge, dtype=np.float64)
    judged, several = ~np.isnan(scores), sizes > 1
    kept = judged & several
    chosen = [ratings[index] for index in np.flatnonzero(kept).tolist()]
    score = np.array([score for rated in chosen for score in rated.values()], dtype=np.float64)
    return RatedItems(
        names=names,
        item=np.repeat(np.arange(len(chosen)), sizes[kept]),
        rater=np.array([number[name] for rated in chosen for name in rated], dtype=np.intp),
        score=np.round(score, _DECIMALS),
        judge=np.round(scores[kept], _DECIMALS),
        group=group_numbers(group)[kept],
        single=int((judged & ~several).sum()),
        failed=int((~judged).sum()),
    )


def leave_one_out(ratings: Ratings) -> tuple[Floats, Floats, Indices]:
    """Each rater against the mean of the others, pooled: the mean of the item's other ratings, the rating, and the
    number of the item, one entry for every rating of an item that has two or more."""
    rated = rated_items(ratings, None, np.arange(len(ratings)))
    return rated.mean_of_others, rated.score, rated.group[rated.item]


def nearest_rating(ratings: Ratings, judge: Floats) -> Floats:
    """The judge's scores, (n,), moved to the nearest rating that people use, if those are ten or fewer."""
    used = np.unique(np.round([score for rated in ratings for score in rated.values()], _DECIMALS))
    if not 0 < len(used) <= len(RATINGS):
        return judge
    edges = (used[1:] + used[:-1]) / 2
    return np.where(np.isnan(judge), np.nan, used[np.searchsorted(edges, judge, side="right")])


def beside_raters(
    ratings: Ratings, judge: Floats, group: Group, epsilon: float = EPSILON, level: Level = "ordinal"
) -> BesideRaters:
    """All of it; nothing where no item has two ratings. None or NaN in `judge` is a failed judgment."""
    if not any(len(rated) > 1 for rated in ratings):
        return BesideRaters()
    nearest = nearest_rating(ratings, judge) if level == "ordinal" else judge
    return BesideRaters(
        raters=rater_agreement(ratings, group, judge, level),
        soft=soft_agreement(ratings, nearest, group, level),
        replaces=alternative_annotator(ratings, nearest, group, epsilon, level),
    )


def soft_agreement(ratings: Ratings, judge: Floats, group: Group, level: Level = "ordinal") -> SoftAgreement:
    """How often the judge says what one of the raters says: of an item with m ratings, m_v of them v, the judge's v
    has m_v / m, a person the mean over v of m_v (m_v - 1) / (m (m - 1)), and an ideal judge the greatest m_v / m. Where
    people use more than ten ratings, these are rounded half up. Raises ValueError as `rater_agreement`."""
    rated = rated_items(ratings, judge, group)
    if len(np.unique(rated.score)) > len(RATINGS):
        rated = rated._replace(score=half_up(rated.score), judge=half_up(rated.judge))
    item, items, size, same = rated.item, rated.items, rated.sizes, rated.alike[1]
    by_judge = np.bincount(item, rated.score == rated.judge[item], minlength=items) / size
    by_people = np.bincount(item, same, minlength=items) / (size * (size - 1))
    commonest = (np.maximum.reduceat(same, np.cumsum(size) - size) + 1) / size if items else by_people
    shares = by_judge, by_people, commonest, (commonest < 1).astype(np.float64)
    names = "judge", "people", "ceiling", "differ"
    estimates = {name: mean_estimate(share, rated.group, share=True) for name, share in zip(names, shares, strict=True)}
    difference = mean_estimate(by_judge - by_people, rated.group, null=0.0)
    unit, things = ("rating", "answers") if level == "ordinal" else ("verdict", "items")
    about: dict[str, Any] = {"what": unit, "things": things, "items": items}
    reading = say("soft_none", **about)
    if items:
        about["how"] = ("not shown to differ from how often", "more often than", "less often than")[difference.side]
        about["unseen"] = f"; {difference.unseen:.0%} would be seen 8 times in 10" if difference.unseen else ""
        reading = say("soft", **about, **{name: estimate.value for name, estimate in estimates.items()})
    return SoftAgreement(**estimates, difference=difference, reading=reading)


def alternative_annotator(
    ratings: Ratings, judge: Judge, group: Group, epsilon: float = EPSILON, level: Level = "ordinal"
) -> AlternativeAnnotator:
    """The alternative annotator test of Calderon, Reichart and Dror (2025): may the judge replace a rater? Undefined
    with fewer than FEWEST_RATERS raters, on the median item or with items enough.

    Each rater j is left out in turn; S is minus the root mean square distance to the others' ratings or, of `nominal`
    ones, the share of the others that give the same. On item i is W^f_ij = 1 where S(judge) >= S(rater), W^h_ij = 1
    where S(rater) >= S(judge). H0 of rater j, mean W^f_ij <= mean W^h_ij - epsilon, is tested one-sidedly and corrected
    over raters. The t-test is clustered by `group`; raters with fewer than FEWEST_ITEMS items or FEWEST_BLOCKS groups
    are left out.
    """
    rated = rated_items(ratings, judge, group)
    # The mean square distance to the others is the squared distance to their mean plus their variance, which is the
    # same for judge and rater: the one nearer to the mean has the higher S.
    mean = rated.mean_of_others
    lead = np.abs(rated.score - mean) - np.abs(rated.judge[rated.item] - mean)
    if level == "nominal":
        lead = np.subtract(*rated.alike).astype(np.float64)
    lines = []
    for number, name in enumerate(rated.names):
        rows = np.flatnonzero(rated.rater == number)
        members = group_numbers(rated.group[rated.item[rows]])
        groups = int(members.max(initial=-1)) + 1
        if len(rows) < FEWEST_ITEMS or groups < FEWEST_BLOCKS:
            continue
        wins, losses = ((sign * lead[rows] >= -_DUST).astype(np.float64) for sign in (1, -1))
        line = RaterTest(
            rater=name,
            n=len(rows),
            groups=groups,
            judge_advantage=float(wins.mean()),
            rater_advantage=float(losses.mean()),
            p=_p_value(losses - wins, members, epsilon),
        )
        lines.append(line)
    # Benjamini and Yekutieli's correction is undefined of no p-values.
    adjusted = scipy.stats.false_discovery_control([line.p for line in lines], method="by") if lines else []
    lines = [replace(line, rejected=bool(p <= FALSE_DISCOVERIES)) for line, p in zip(lines, adjusted, strict=True)]
    test = AlternativeAnnotator(epsilon=epsilon, left_out=len(rated.names) - len(lines), lines=lines, reading="")
    if why := _no_test(rated, lines):
        return replace(test, undefined=why, reading=say("replaces_untold", why=why))
    omega, rho, raters = (
        float(np.mean([getattr(line, name) for line in lines]))
        for name in ("rejected", "judge_advantage", "rater_advantage")
    )
    passes = omega >= WINNING_RATE
    facts = {"held": sum(line.rejected for line in lines), "raters": len(lines), "needed": WINNING_RATE}
    means = {"omega": omega, "rho": rho, "rater": raters}
    reading = say("replaces", test=test, may="may" if passes else "may not", **facts, **means)
    return replace(test, omega=omega, rho=rho, passes=passes, reading=reading)


def _p_value(difference: Floats, group: Indices, epsilon: float) -> float:
    """One-sided p of "the mean difference, of shape (n,), is epsilon or more". The variance of the mean is that of G
    sums of groups around n times the mean: G / (G - 1) times their squares, over n squared."""
    mean, groups = float(difference.mean()), int(group.max()) + 1
    spread = float((np.bincount(group, difference - mean) ** 2).sum())
    if spread > _DUST:
        error = np.sqrt(groups / (groups - 1) * spread) / len(difference)
        return float(scipy.stats.t.cdf((mean - epsilon) / error, groups - 1))
    # Without spread: a group's mean is at most 1, so one of expectation epsilon is at `mean` or below with
    # probability (1 - epsilon) / (1 - mean) at most, and all of them are with that to the power of their number.
    return float(((1 - epsilon) / max(1 - mean, 1 - epsilon)) ** groups)


def _no_test(rated: RatedItems, lines: list[RaterTest]) -> str | None:
    if not rated.items:
        return "no item has a judgment and two ratings"
    if np.median(rated.sizes) < FEWEST_RATERS:
        return f"the test needs {FEWEST_RATERS} raters an item, and half of the items or more have two"
    if len(lines) < FEWEST_RATERS:
        enough = f"{FEWEST_ITEMS} items in {FEWEST_BLOCKS} groups"
        return f"the test needs {FEWEST_RATERS} raters with {enough} or more, and there are {len(lines)}"
    return None


def rater_agreement(
    ratings: Ratings, group: Group, judge: Judge | None = None, level: Level = "ordinal", resamples: int | None = None
) -> RaterAgreement:
    """Krippendorff's alpha; undefined where no item has two ratings, or all that count are the same. None or NaN in
    `judge` is a failed judgment."""
    rated = rated_items(ratings, judge, group)
    draws, every = Bootstrap(rated.group, resamples), np.arange(rated.items)
    columns = [_counts(rated.item, rated.score, rated.items)]
    if judge is not None:
        item, score = np.concatenate([rated.item, every]), np.concatenate([rated.score, rated.judge])
        columns.append(_counts(item, score, rated.items))
    alphas = []
    for block in draws.draw_counts():
        times = block[draws.member]
        alphas.append([_alpha(times, counts, level) for counts in columns])
    people, *together = np.concatenate(alphas, axis=1)
    reason = "people gave every item the same score" if rated.items else "no item has two ratings"
    alone, *both = (draws.estimate(values, rated.items, undefined=reason) for values in (people, *together))
    both += [draws.estimate(values - people, rated.items, undefined=reason, null=0.0) for values in together]
    with_judge, difference = both or (None, None)
    counts = {"items": rated.items, "single": rated.single, "failed": rated.failed}
    counts |= {"raters": len(np.unique(rated.rater)), "ratings": len(rated.score)}
    return RaterAgreement(level=level, **counts, people=alone, with_judge=with_judge, difference=difference)


def _counts(item: Indices, score: Floats, items: int) -> Any:
    """How often each item has each of the different scores, ascending: a sparse matrix."""
    values, code = np.unique(score, return_inverse=True)
    return scipy.sparse.csr_array((np.ones(len(score)), (item, code)), shape=(items, len(values)))


def _alpha(times: Floats, counts: Any, level: Level) -> Floats:
    """Alpha in each of r resamples, NaN where it is undefined. `times[i, k]` is how often item i is in resample k,
    `counts[i, v]` how many of its ratings are value v."""
    size = counts.sum(axis=1)
    marginal = counts.T @ times
    total = marginal.sum(axis=0)
    # A resample may hold one value only; its 0 / 0 is replaced by NaN below.
    with np.errstate(invalid="ignore", divide="ignore"):
        if level == "nominal":
            equal = ((counts.power(2).sum(axis=1) - size) / (size - 1)) @ times
            alpha = 1 - (total - 1) * (total - equal) / (total**2 - (marginal**2).sum(axis=0))
        else:
            # Where each value lies on its scale, centred: alpha's distance is the squared difference of positions. The
            # ordinal distance, the number of ratings from one value to the other with half of those at both ends, is
            # the difference of two average ranks.
            position = np.cumsum(marginal, axis=0) - marginal / 2 - total / 2
            # With squared distances the coincidence matrix O enters as p'Op alone, so that it is never made:
            # an item with m ratings adds (its sum of p, squared, less its sum of p squared) / (m - 1).
            share = times / (size - 1)[:, None]
            pairs = (share * (counts @ position) ** 2).sum(axis=0) - ((counts.T @ share) * position**2).sum(axis=0)
            coincidence = pairs / (marginal * position**2).sum(axis=0)
            alpha = 1 - (total - 1) / total * (1 - coincidence)
    return np.where((marginal > 0).sum(axis=0) > 1, alpha, np.nan)
