"""How far people who rate the same items agree, and what a judge as one more rater changes.

Krippendorff's alpha (Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability").
"""

from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from scipy import sparse

from critic.counting.arrays import Floats, Group
from critic.counting.estimate import Bootstrap, Estimate
from eval_agreement.metrics import Indices
from eval_agreement.ratings import Judge, RatedItems, Ratings, rated_items

Level = Literal["ordinal", "interval", "nominal"]

_MOST_SETS = 50_000
"""An interval over so many different sets of scores takes about ten seconds; their number is the cost."""


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


class _Sets(NamedTuple):
    """The different sets of ratings that items have: `counts[s, v]` is how often `values[v]` occurs in set s."""

    values: Floats
    counts: Any


class _Tables(NamedTuple):
    """The sets of ratings by people, and those with the judge (None without one).

    `kind[i]` is the set of item i with the judge; `first[s]` the first of these whose people's ratings are
    set s of `people`. There are much fewer of the latter where the judge's scores are not whole.
    """

    kind: Indices
    first: Indices
    people: _Sets
    everyone: _Sets | None


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
    `group` may be empty. None or NaN in `judge` is a failed judgment. Raises ValueError for an infinite score, an array
    that is not of shape (items, raters), and where `judge` or `group` is not as long as `ratings`.
    """
    counted = rated_items(ratings, judge, group if resamples != 0 else np.arange(len(ratings)))
    tables = _tables(counted, judge is not None)
    draws = Bootstrap(counted.group, resamples)
    values, refused = _resampled(tables, draws, level)
    reason = "people gave every item the same score" if counted.entries.items else "no item has two ratings"
    estimates = [draws.estimate(each, counted.entries.items, undefined=reason) for each in values]
    if refused:
        estimates = [each if each.value is None else replace(each, undefined=refused) for each in estimates]
    people, everyone, difference = estimates
    return RaterAgreement(
        level=level,
        items=counted.entries.items,
        single=counted.single,
        failed=counted.failed,
        raters=len(np.unique(counted.entries.rater)),
        ratings=len(counted.entries.score),
        people=people,
        with_judge=None if judge is None else everyone,
        difference=None if judge is None else difference,
    )


def _tables(counted: RatedItems, with_judge: bool) -> _Tables:
    entries, every = counted.entries, np.arange(counted.entries.items)
    values, counts = _count(entries.item, entries.score, entries.items)
    kind = _row_kinds(counts)
    _, example, kind = np.unique(kind, return_index=True, return_inverse=True)
    people = _Sets(values, counts[example])
    if not with_judge:
        return _Tables(kind, np.arange(len(example)), people, None)
    scores, code = np.unique(counted.judge, return_inverse=True)
    both, example, joint = np.unique(kind * len(scores) + code, return_index=True, return_inverse=True)
    first = np.searchsorted(both // max(len(scores), 1), np.arange(people.counts.shape[0]))
    all_scores = np.concatenate([entries.score, counted.judge])
    values, counts = _count(np.concatenate([entries.item, every]), all_scores, entries.items)
    return _Tables(joint, first, people, _Sets(values, counts[example]))


def _count(item: Indices, score: Floats, items: int) -> tuple[Floats, Any]:
    """The different scores, and how often each item has each of them (a sparse matrix)."""
    values, code = np.unique(score, return_inverse=True)
    counts = sparse.csr_array((np.ones(len(score)), (item, code)), shape=(items, len(values)))
    counts.sum_duplicates()
    return values, counts


def _row_kinds(counts: Any) -> Indices:
    """A number for each row of a sparse matrix, the same for equal rows and no other."""
    cells = counts.indices * (counts.data.max(initial=0) + 1) + counts.data
    token = np.unique(cells, return_inverse=True)[1] + 1
    start, size = counts.indptr[:-1], np.diff(counts.indptr)
    kind = np.zeros(len(size), dtype=np.intp)
    for position in range(size.max(initial=0)):
        long = size > position
        here = np.zeros(len(size), dtype=np.intp)
        here[long] = token[start[long] + position]
        kind = np.unique(kind * (len(token) + 1) + here, return_inverse=True)[1]
    return kind


def _alphas(times: Floats, tables: _Tables, level: Level) -> Floats:
    """Alpha of people, of everyone, and the difference: shape (3, r), NaN where undefined.

    `times[s, k]` is how many items of resample k have set s.
    """
    people = _alpha(np.add.reduceat(times, tables.first, axis=0) if len(times) else times, tables.people, level)
    everyone = _alpha(times, tables.everyone, level) if tables.everyone else people
    return np.stack([people, everyone, everyone - people])


def _alpha(times: Floats, sets: _Sets, level: Level) -> Floats:
    """Alpha of each column of `times`, whose items have the ratings `sets` says."""
    counts = sets.counts
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
            if level == "interval":
                position = sets.values[:, None] - sets.values @ marginal / total
            # With squared distances the coincidence matrix O enters as p'Op alone, so that it is never made:
            # an item with m ratings adds (its sum of p, squared, less its sum of p squared) / (m - 1).
            share = times / (size - 1)[:, None]
            pairs = (share * (counts @ position) ** 2).sum(axis=0) - ((counts.T @ share) * position**2).sum(axis=0)
            coincidence = pairs / (marginal * position**2).sum(axis=0)
            alpha = 1 - (total - 1) / total * (1 - coincidence)
    return np.where((marginal > 0).sum(axis=0) > 1, alpha, np.nan)


def _resampled(tables: _Tables, draws: Bootstrap, level: Level) -> tuple[Floats, str | None]:
    """`_alphas` of the sample and of every resample, or of the sample alone and why."""
    sets = int(tables.kind.max(initial=-1)) + 1
    refused = None if draws.resamples else "no resamples were asked for"
    if sets > _MOST_SETS:
        refused = f"{sets} different sets of scores are too many for an interval"
    blocks = draws.tables(tables.kind, sets)
    alphas = [_alphas(times, tables, level) for times in (islice(blocks, 1) if refused else blocks)]
    return np.concatenate(alphas, axis=1), refused
