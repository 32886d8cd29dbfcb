"""How far people who rate the same items agree, what a judge as one more rater changes, and how often it says what one
of them says.

Krippendorff's alpha (Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability"). Soft agreement: people's
distribution in place of their mean (Peterson et al. 2019, "Human Uncertainty Makes Classification More Robust", §3).
"""

from typing import Any, Literal

import numpy as np
import scipy
from msgspec import Struct

from critic.records import RATINGS
from critic.stats.arrays import Floats, Group
from critic.stats.estimate import Bootstrap, Estimate
from eval_agreement.metrics import Indices, half_up, mean_estimate
from eval_agreement.ratings import Judge, Ratings, entries_of, rated_items

Level = Literal["ordinal", "nominal"]

_NUMBERS_AT_ONCE = 1 << 22


class RaterAgreement(Struct, frozen=True, kw_only=True):
    """Krippendorff's alpha (at most 1; 0 is chance, below 0 is worse) of people, and of people with the judge.

    Every number is over the same `items`: those with two ratings by people or more and, with a judge, a
    judgment. `failed` items have no judgment, `single` ones fewer than two ratings; both are left out.
    `raters` people gave `ratings` scores to `items`. `with_judge` counts the judge as one more rater and
    `difference` is what that adds (below 0: the judge is the odd one out); both None without a judge.
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
    """On items with two ratings or more, of which people differ on the share `differ`: the chance (0..1) that a rater
    drawn at random gives the `judge`'s rating, that two of them give the same (`people`), and the most that any rating
    could reach (`ceiling`, where it is the commonest). `difference` is judge less people; it has a p-value."""

    differ: Estimate
    judge: Estimate
    people: Estimate
    ceiling: Estimate
    difference: Estimate
    reading: str


def nearest_rating(ratings: Ratings, judge: Floats) -> Floats:
    """The judge's scores, shape (n,), moved to the nearest rating that people use, if those are ten or fewer: a score
    that lies between theirs could never be the same as one."""
    used = np.unique(entries_of(ratings).score)
    if not 0 < len(used) <= len(RATINGS):
        return judge
    edges = (used[1:] + used[:-1]) / 2
    return np.where(np.isnan(judge), np.nan, used[np.searchsorted(edges, judge, side="right")])


def soft_agreement(ratings: Ratings, judge: Floats, group: Group) -> SoftAgreement:
    """How often the judge says what one of the raters says; where people use more than ten ratings, these are rounded
    half up. Raises ValueError as `rater_agreement`."""
    rated = rated_items(ratings, nearest_rating(ratings, judge), group)
    item, items, size = rated.entries.item, rated.entries.items, rated.entries.ratings()
    score, judged = rated.entries.score, rated.judge
    if len(np.unique(score)) > len(RATINGS):
        score, judged = half_up(score), half_up(judged)
    counts = _counts(item, score, items)
    by_judge = np.bincount(item, score == judged[item], minlength=items) / size
    by_people = (counts.power(2).sum(axis=1) - size) / (size * (size - 1))
    commonest = np.asarray(counts.max(axis=1).todense()).ravel() / size if items else by_people
    shares = by_judge, by_people, commonest, (commonest < 1).astype(np.float64)
    of_judge, people, ceiling, differ = (mean_estimate(share, rated.group, share=True) for share in shares)
    difference = mean_estimate(by_judge - by_people, rated.group, null=0.0)
    reading = "No answer has a judgment and two ratings."
    if items:
        low, high = difference.interval or (-1.0, 1.0)
        how = "more often than" if low > 0 else "less often than" if high < 0 else "not shown to differ from how often"
        judge_in, person_in, most, apart = (f"{share.mean():.0%}" for share in shares)
        reading = (
            f"People differ on {apart} of {items} answers. A rater drawn at random gives the judge's rating on "
            f"{judge_in} of them and another rater's on {person_in}; no rating could reach more than {most}. The judge "
            f"agrees with a person {how} people agree with each other."
        )
    estimates = {"judge": of_judge, "people": people, "ceiling": ceiling, "differ": differ, "difference": difference}
    return SoftAgreement(**estimates, reading=reading)


def rater_agreement(
    ratings: Ratings,
    group: Group,
    judge: Judge | None = None,
    level: Level = "ordinal",
    resamples: int | None = None,
) -> RaterAgreement:
    """Krippendorff's alpha of people and, given a `judge`, of people with the judge and their paired difference.

    Any rater may have left items out; items with fewer than two ratings do not count. Alpha is undefined where no item
    has two ratings, or all that count are the same.

    `group` names each item's group: whole groups are resampled. With `resamples` 0 there are no intervals and
    `group` may be empty. None or NaN in `judge` is a failed judgment.
    """
    rated = rated_items(ratings, judge, group if resamples != 0 else np.arange(len(ratings)))
    entries, draws = rated.entries, Bootstrap(rated.group, resamples)
    every = np.arange(entries.items)
    columns = [_counts(entries.item, entries.score, entries.items)]
    if judge is not None:
        item, score = np.concatenate([entries.item, every]), np.concatenate([entries.score, rated.judge])
        columns.append(_counts(item, score, entries.items))
    alphas = []
    for block in draws.drawn():
        # Items are more than groups: some resamples at a time keep the tables small.
        for times in np.array_split(block, 1 + block.shape[1] * entries.items // _NUMBERS_AT_ONCE, axis=1):
            alphas.append([_alpha(times[draws.member], counts, level) for counts in columns])
    people, *together = np.concatenate(alphas, axis=1)
    reason = "people gave every item the same score" if entries.items else "no item has two ratings"
    values = [people, *together, *(one - people for one in together)]
    estimates = [draws.estimate(each, entries.items, undefined=reason) for each in values]
    return RaterAgreement(
        level=level,
        items=entries.items,
        single=rated.single,
        failed=rated.failed,
        raters=len(np.unique(entries.rater)),
        ratings=len(entries.score),
        people=estimates[0],
        with_judge=None if judge is None else estimates[1],
        difference=None if judge is None else estimates[2],
    )


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
