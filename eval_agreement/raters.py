"""What several raters an item allow: how far people agree, and whether the judge may stand in for one of them.

Krippendorff's alpha (Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability"); the alternative
annotator test (Calderon, Reichart and Dror 2025, "The Alternative Annotator Test for LLM-as-a-Judge", ACL);
each rater against the mean of the others.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from scipy import sparse, stats

from critic.counting.resampling import FEWEST_GROUPS, SEED, Estimate, Floats, Group, Resamples, group_numbers

Level = Literal["ordinal", "interval", "nominal"]
Ratings = NDArray[np.floating] | Sequence[Mapping[str, float]]
"""Who gave which item which score: an array of shape (items, raters), NaN where a rater gave none, or each
item's scores by the rater's name (`HumanScore.raters`), which stays small where a crowd rated. The raters of
an array are called "1", "2", … by column. Scores are compared to 12 decimals."""
Judge = Sequence[float | None] | NDArray[np.floating]

EPSILON = 0.2
"""Calderon et al.'s allowance for what the judge saves: 0.2 beside experts, 0.15 beside skilled raters, 0.1
beside a crowd."""

FALSE_DISCOVERIES = 0.05
"""Rate at which rejections over raters may be false (Benjamini and Yekutieli)."""

WINNING_RATE = 0.5
"""The judge passes when it holds its own against this share of the raters."""

FEWEST_RATERS, FEWEST_ITEMS, ADVISED_ITEMS = 3, 30, 50
"""What the alternative annotator test needs, and the items a rater that its authors advise."""

FEWEST_BLOCKS = 10
"""Groups that a rater's items must come from: with six, the test rejected up to 18 % of true hypotheses at 5 %."""

_DECIMALS = 12
_DUST = 1e-9
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


class RaterTest(Struct, frozen=True, kw_only=True):
    """The judge against one rater on `n` items in `groups` groups, the other raters being the yardstick.

    `judge_advantage` and `rater_advantage` are the shares (0..1) of items on which either is at least as close
    to the others as the other; a tie counts for both. A small `p` says that the judge's is higher than the
    rater's less epsilon; `rejected` that it stays small when all raters are taken together.
    """

    rater: str
    n: int
    groups: int
    judge_advantage: float
    rater_advantage: float
    p: float
    rejected: bool


class AlternativeAnnotator(Struct, frozen=True, kw_only=True):
    """Whether the judge may replace a rater (Calderon, Reichart and Dror 2025).

    `omega` is the share of `lines` rejected, `rho` the mean of their `judge_advantage`; the judge `passes` at
    WINNING_RATE. All three are None exactly when `undefined` says why. `items` were compared, with `per_item`
    raters on average; `failed` items have no judgment and `single` ones fewer than two ratings. `left_out`
    raters have too few items for a line of their own; their ratings still serve as a yardstick.
    """

    epsilon: float
    items: int
    single: int
    failed: int
    per_item: float | None
    left_out: int
    lines: list[RaterTest]
    omega: float | None
    rho: float | None
    passes: bool | None
    reading: str
    undefined: str | None = None


class _Entries(NamedTuple):
    """Ratings in long form, ordered by item: `item`, `rater` and `score` have one entry a rating."""

    items: int
    names: list[str]
    item: NDArray[np.intp]
    rater: NDArray[np.intp]
    score: Floats

    def of(self, kept: NDArray[np.bool_]) -> "_Entries":
        """The entries of the items kept, which are numbered anew."""
        here = kept[self.item]
        number = np.cumsum(kept) - 1
        return _Entries(int(kept.sum()), self.names, number[self.item[here]], self.rater[here], self.score[here])

    def ratings(self) -> NDArray[np.intp]:
        """How many ratings each item has."""
        return np.bincount(self.item, minlength=self.items)


class _Counted(NamedTuple):
    """The items that can be used, and how many cannot."""

    entries: _Entries
    judge: Floats
    group: NDArray[np.intp]
    single: int
    failed: int


class _Sets(NamedTuple):
    """The different sets of ratings that items have: `counts[s, v]` is how often `values[v]` occurs in set s."""

    values: Floats
    counts: Any


class _Tables(NamedTuple):
    """The sets of ratings by people, and those with the judge (None without one).

    `kind[i]` is the set of item i with the judge; `first[s]` the first of these whose people's ratings are
    set s of `people`. There are much fewer of the latter where the judge's scores are not whole.
    """

    kind: NDArray[np.intp]
    first: NDArray[np.intp]
    people: _Sets
    everyone: _Sets | None

    @property
    def sets(self) -> int:
        return int(self.kind.max(initial=-1)) + 1


def krippendorff_alpha(ratings: Ratings, level: Level = "ordinal") -> float | None:
    """Krippendorff's alpha of several raters, any of whom may have left items out; at most 1.

    Items with fewer than two ratings do not count. None where no item has two, or all ratings that count are
    the same. Raises ValueError for an infinite score or an array that is not of shape (items, raters).
    """
    return rater_agreement(ratings, (), level=level, resamples=0).people.value


def rater_agreement(
    ratings: Ratings,
    group: Group,
    judge: Judge | None = None,
    level: Level = "ordinal",
    resamples: int | None = None,
    seed: int = SEED,
) -> RaterAgreement:
    """Krippendorff's alpha of people and, given a `judge`, of people with the judge and their paired difference.

    `group` names each item's group: whole groups are resampled. With `resamples` 0 there are no intervals and
    `group` may be empty. None or NaN in `judge` is a failed judgment. Raises ValueError where `judge` or
    `group` is not as long as `ratings`, and as `krippendorff_alpha` does.
    """
    entries = _entries(ratings)
    every = np.zeros(entries.items) if judge is None else np.asarray(judge, dtype=np.float64)
    counted = _counted(entries, every, group if resamples != 0 else np.arange(entries.items))
    tables = _tables(counted, judge is not None)
    # One call of `tables` serves people and judge alike, so its draws need not be shared with others.
    draws = Resamples(counted.group, resamples, seed, shared=False)
    point = _alphas(np.bincount(tables.kind)[:, None].astype(np.float64), tables, level)
    resampled, refused = _resampled(tables, draws, level)
    people, everyone, difference = (
        _estimate(value, drawn, draws, counted.entries, refused)
        for value, drawn in zip(point[:, 0], resampled, strict=True)
    )
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


def leave_one_out(ratings: Ratings) -> tuple[Floats, Floats, NDArray[np.intp]]:
    """Each rater against the mean of the others, pooled: what a perfect judge could reach.

    Three arrays with one entry for every rating of an item that has two or more: the mean of the item's other
    ratings, the rating, and the number of the item (from 0), ordered by item. Raises ValueError as
    `krippendorff_alpha` does.
    """
    entries = _entries(ratings)
    several = entries.ratings()[entries.item] > 1
    return _others(entries)[several], entries.score[several], entries.item[several]


def alternative_annotator(
    ratings: Ratings,
    judge: Judge,
    group: Group,
    epsilon: float = EPSILON,
    nominal: bool = False,
    fewest_items: int = FEWEST_ITEMS,
) -> AlternativeAnnotator:
    """The alternative annotator test of Calderon, Reichart and Dror (2025): may the judge replace a rater?

    Each rater j is left out in turn. On every item i that j and others rated, judge and rater are scored by S:
    minus the root mean square distance to the others' ratings or, if `nominal`, the share of the others who
    gave the same label. W^f_ij = 1 where S(judge) >= S(rater) and W^h_ij = 1 where S(rater) >= S(judge);
    rho^f_j and rho^h_j are their means. H0 of rater j, rho^f_j <= rho^h_j - epsilon, is tested one-sidedly on
    d_ij = W^h_ij - W^f_ij and corrected over raters after Benjamini and Yekutieli. A judge whose scores are not
    whole rarely ties with people whose scores are, and has a lower rho than its rounded scores would have.

    The t-test takes its variance from the sums of `group`s, and its degrees of freedom from their number: with
    one item a group it is the paper's. Raters with fewer than `fewest_items` items or FEWEST_BLOCKS groups are
    left out. Where `fewest_items` is set below FEWEST_ITEMS, raters with fewer than FEWEST_ITEMS items are
    tested with Wilcoxon's signed ranks of the groups' means, as the paper has it: d has three values only and
    is not symmetric, so that this rejects far too often (a fifth to a third of true hypotheses in simulations
    at 5 %). Where no sum differs from the others, p is the largest probability that H0 gives to means as low
    as these.

    None or NaN in `judge` is a failed judgment. Undefined with fewer than FEWEST_RATERS raters that have
    items enough, or where the median item has fewer ratings than that. Raises ValueError for an epsilon
    outside 0..1 (1 excluded), and as `rater_agreement` does.
    """
    if not 0 <= epsilon < 1:
        raise ValueError(f"epsilon is {epsilon:g}, not in 0..1 (1 excluded)")
    counted = _counted(_entries(ratings), np.asarray(judge, dtype=np.float64), group)
    judge_wins, rater_wins = (_same_label if nominal else _as_close)(counted.entries, counted.judge)
    lines, left_out = _lines(counted, judge_wins, rater_wins, epsilon, fewest_items)
    undefined = _no_test(counted.entries, lines, fewest_items)
    omega = None if undefined else float(np.mean([line.rejected for line in lines]))
    rho = None if undefined else float(np.mean([line.judge_advantage for line in lines]))
    return AlternativeAnnotator(
        epsilon=epsilon,
        items=counted.entries.items,
        single=counted.single,
        failed=counted.failed,
        per_item=len(counted.entries.score) / counted.entries.items if counted.entries.items else None,
        left_out=left_out,
        lines=lines,
        omega=omega,
        rho=rho,
        passes=None if omega is None else omega >= WINNING_RATE,
        reading=_reading(lines, omega, rho, epsilon, undefined),
        undefined=undefined,
    )


def _entries(ratings: Ratings) -> _Entries:
    if isinstance(ratings, np.ndarray):
        if ratings.ndim != 2:
            raise ValueError(f"ratings have shape {ratings.shape}, not (items, raters)")
        item, rater = np.nonzero(~np.isnan(ratings))
        score = ratings[item, rater].astype(np.float64)
        names = [str(column + 1) for column in range(ratings.shape[1])]
    else:
        names = sorted({name for row in ratings for name in row})
        number = {name: index for index, name in enumerate(names)}
        item = np.repeat(np.arange(len(ratings)), np.array([len(row) for row in ratings], dtype=np.intp))
        rater = np.array([number[name] for row in ratings for name in row], dtype=np.intp)
        score = np.array([value for row in ratings for value in row.values()], dtype=np.float64)
        given = ~np.isnan(score)
        item, rater, score = item[given], rater[given], score[given]
    if np.isinf(score).any():
        raise ValueError(f"the rating of item {item[np.argmax(np.isinf(score))]} (from 0) is infinite")
    return _Entries(len(ratings), names, item, rater, np.round(score, _DECIMALS))


def _counted(entries: _Entries, judge: Floats, group: Group) -> _Counted:
    for length, what in ((len(judge), "judge scores"), (len(group), "groups")):
        if length != entries.items:
            raise ValueError(f"{entries.items} items but {length} {what}")
    if np.isinf(judge).any():
        raise ValueError(f"the judge's score of item {np.argmax(np.isinf(judge))} (from 0) is infinite")
    judged = ~np.isnan(judge)
    several = entries.ratings() > 1
    kept = judged & several
    return _Counted(
        entries=entries.of(kept),
        judge=np.round(judge[kept], _DECIMALS),
        group=group_numbers(group)[kept],
        single=int((judged & ~several).sum()),
        failed=int((~judged).sum()),
    )


def _tables(counted: _Counted, with_judge: bool) -> _Tables:
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


def _count(item: NDArray[np.intp], score: Floats, items: int) -> tuple[Floats, Any]:
    """The different scores, and how often each item has each of them (a sparse matrix)."""
    values, code = np.unique(score, return_inverse=True)
    counts = sparse.csr_array((np.ones(len(score)), (item, code)), shape=(items, len(values)))
    counts.sum_duplicates()
    return values, counts


def _row_kinds(counts: Any) -> NDArray[np.intp]:
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
            position = _positions(marginal, total, sets.values, level)
            # With squared distances the coincidence matrix O enters as p'Op alone, so that it is never made:
            # an item with m ratings adds (its sum of p, squared, less its sum of p squared) / (m - 1).
            share = times / (size - 1)[:, None]
            pairs = (share * (counts @ position) ** 2).sum(axis=0) - ((counts.T @ share) * position**2).sum(axis=0)
            coincidence = pairs / (marginal * position**2).sum(axis=0)
            alpha = 1 - (total - 1) / total * (1 - coincidence)
    return np.where((marginal > 0).sum(axis=0) > 1, alpha, np.nan)


def _positions(marginal: Floats, total: Floats, values: Floats, level: Level) -> Floats:
    """Where each value lies on its scale, centred: alpha's distance is the squared difference of positions.

    The ordinal distance, the number of ratings from one value to the other with half of those at both ends, is
    the difference of two average ranks.
    """
    if level == "ordinal":
        return np.cumsum(marginal, axis=0) - marginal / 2 - total / 2
    return values[:, None] - values @ marginal / total


def _resampled(tables: _Tables, draws: Resamples, level: Level) -> tuple[Floats, str | None]:
    """`_alphas` of every resample, or of none and why."""
    if not draws.resamples:
        return np.zeros((3, 0)), "no resamples were asked for"
    if not draws.enough:
        return np.zeros((3, 0)), f"an interval needs at least {FEWEST_GROUPS} groups, not {draws.groups}"
    if tables.sets > _MOST_SETS:
        return np.zeros((3, 0)), f"{tables.sets} different sets of scores are too many for an interval"
    blocks = [_alphas(times, tables, level) for times in draws.tables(tables.kind, tables.sets)]
    return np.concatenate(blocks, axis=1), None


def _estimate(value: float, drawn: Floats, draws: Resamples, entries: _Entries, refused: str | None) -> Estimate:
    if not entries.items or np.isnan(value):
        return Estimate(n=entries.items, undefined=_no_alpha(entries) or "people gave every item the same score")
    interval = None if refused else draws.interval(drawn)
    undefined = refused or (None if interval else "undefined in too many resamples")
    return Estimate(n=entries.items, value=float(value), interval=interval, undefined=undefined)


def _no_alpha(entries: _Entries) -> str | None:
    return None if entries.items else "no item has two ratings"


def _others(entries: _Entries) -> Floats:
    """For each rating the mean of the item's other ratings; NaN where there are none."""
    total = np.bincount(entries.item, entries.score, minlength=entries.items)[entries.item]
    others = (entries.ratings()[entries.item] - 1).astype(np.float64)
    mean = np.full(len(others), np.nan)
    np.divide(total - entries.score, others, out=mean, where=others > 0)
    # A difference of sums leaves dust, which would put a mean of tens above ten.
    return np.round(mean, _DECIMALS)


def _as_close(entries: _Entries, judge: Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """W^f and W^h of each rating, S being minus the root mean square distance to the others.

    The mean square distance is the squared distance to the others' mean plus their variance, which is the
    same for judge and rater: the one nearer to the mean has the higher S.
    """
    mean = _others(entries)
    lead = np.abs(entries.score - mean) - np.abs(judge[entries.item] - mean)
    return lead >= -_DUST, lead <= _DUST


def _same_label(entries: _Entries, judge: Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """W^f and W^h of each rating, S being the share of the others with the same label."""
    labels, code = np.unique(np.concatenate([entries.score, judge]), return_inverse=True)
    rated, judged = code[: len(entries.score)], code[len(entries.score) :][entries.item]
    cells, cell, times = np.unique(entries.item * len(labels) + rated, return_inverse=True, return_counts=True)
    wanted = entries.item * len(labels) + judged
    found = np.minimum(np.searchsorted(cells, wanted), len(cells) - 1)
    like_rater = times[cell] - 1
    like_judge = np.where(cells[found] == wanted, times[found], 0) - (rated == judged)
    return like_judge >= like_rater, like_rater >= like_judge


def _lines(
    counted: _Counted,
    judge_wins: NDArray[np.bool_],
    rater_wins: NDArray[np.bool_],
    epsilon: float,
    fewest_items: int,
) -> tuple[list[RaterTest], int]:
    """The tests of the raters with items enough, by rater, and how many raters have too few."""
    entries = counted.entries
    raters = len(entries.names)
    n = np.bincount(entries.rater, minlength=raters)
    blocks = _blocks(rater_wins.astype(np.float64) - judge_wins, entries.rater, counted.group[entries.item])
    groups = np.bincount(blocks.rater, minlength=raters)
    enough = (n >= fewest_items) & (groups >= FEWEST_BLOCKS)
    tested = np.flatnonzero(enough)
    p = _p_values(blocks.of(enough), raters, epsilon)[tested]
    rejected = stats.false_discovery_control(p, method="by") <= FALSE_DISCOVERIES if len(p) else []
    advantage = [np.bincount(entries.rater, wins, minlength=raters) for wins in (judge_wins, rater_wins)]
    lines = [
        RaterTest(
            rater=entries.names[rater],
            n=int(n[rater]),
            groups=int(groups[rater]),
            judge_advantage=float(advantage[0][rater] / n[rater]),
            rater_advantage=float(advantage[1][rater] / n[rater]),
            p=float(chance),
            rejected=bool(below),
        )
        for rater, chance, below in zip(tested, p, rejected, strict=True)
    ]
    return lines, raters - len(lines)


class _Blocks(NamedTuple):
    """The differences d of one rater in one group: how many there are, and their sum."""

    rater: NDArray[np.intp]
    n: NDArray[np.intp]
    total: Floats

    def of(self, kept: NDArray[np.bool_]) -> "_Blocks":
        """The blocks of the raters kept."""
        here = kept[self.rater]
        return _Blocks(self.rater[here], self.n[here], self.total[here])


def _blocks(difference: Floats, rater: NDArray[np.intp], group: NDArray[np.intp]) -> _Blocks:
    groups = int(group.max(initial=0)) + 1
    cells, cell, n = np.unique(rater * groups + group, return_inverse=True, return_counts=True)
    total = np.bincount(cell, difference, minlength=len(cells)).astype(np.float64)
    return _Blocks(cells // groups, n, total)


def _p_values(blocks: _Blocks, raters: int, epsilon: float) -> Floats:
    """One-sided p of "the mean difference is epsilon or more", for each rater; NaN where he has no block.

    The variance of the mean is that of G sums of groups around n times the mean: G / (G - 1) times their
    squares, over n squared, which is the usual variance over n where each item is its own group.
    """
    n = np.bincount(blocks.rater, blocks.n, minlength=raters)
    groups = np.bincount(blocks.rater, minlength=raters).astype(np.float64)
    mean = np.bincount(blocks.rater, blocks.total, minlength=raters) / np.maximum(n, 1)
    residual = blocks.total - blocks.n * mean[blocks.rater]
    spread = np.bincount(blocks.rater, residual**2, minlength=raters)
    varied = spread > _DUST
    p = np.full(raters, np.nan)
    error = np.sqrt(groups[varied] / (groups[varied] - 1) * spread[varied]) / n[varied]
    p[varied] = stats.t.cdf((mean[varied] - epsilon) / error, groups[varied] - 1)
    same = (groups > 0) & ~varied
    p[same] = _p_without_spread(mean[same], groups[same], epsilon)
    for rater in np.flatnonzero(varied & (n < FEWEST_ITEMS)):
        here = blocks.rater == rater
        means = blocks.total[here] / blocks.n[here] - epsilon
        # Ties rule out the exact distribution, and SciPy would permute at a fifth of a second a rater instead.
        p[rater] = stats.wilcoxon(means, alternative="less", method="approx").pvalue
    return p


def _p_without_spread(mean: Floats, groups: Floats, epsilon: float) -> Floats:
    """The largest probability that groups all have a mean as low as `mean`, if one is expected to have `epsilon`.

    A mean is at most 1, so one of expectation epsilon is at `mean` or below with probability
    (1 - epsilon) / (1 - mean) at most.
    """
    share = (1 - epsilon) / np.maximum(1 - mean, 1 - epsilon)
    return np.asarray(share**groups)


def _no_test(entries: _Entries, lines: list[RaterTest], fewest_items: int) -> str | None:
    if not entries.items:
        return "no item has a judgment and two ratings"
    if np.median(entries.ratings()) < FEWEST_RATERS:
        return f"the test needs {FEWEST_RATERS} raters an item, and half of the items or more have two"
    if len(lines) < FEWEST_RATERS:
        enough = f"{fewest_items} items in {FEWEST_BLOCKS} groups"
        return f"the test needs {FEWEST_RATERS} raters with {enough} or more, and there are {len(lines)}"
    return None


def _reading(
    lines: list[RaterTest], omega: float | None, rho: float | None, epsilon: float, undefined: str | None
) -> str:
    if omega is None or rho is None:
        return f"Whether the judge may replace a person cannot be told: {undefined}."
    verdict = "may replace" if omega >= WINNING_RATE else "may not replace"
    won = f"{sum(line.rejected for line in lines)} of {len(lines)} raters"
    few = sum(line.n < ADVISED_ITEMS for line in lines)
    raters = float(np.mean([line.rater_advantage for line in lines]))
    return (
        f"The judge {verdict} a person: within {epsilon:g} it holds its own against {won} "
        f"(winning rate {omega:.2f}, {WINNING_RATE:g} needed). Ties counting for both, the judge is at least as close "
        f"to the other raters on {rho:.0%} of the items, and the rater on {raters:.0%}."
        + (f" For {few} of them there are fewer than the {ADVISED_ITEMS} items advised." if few else "")
    )
