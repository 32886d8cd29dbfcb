"""Whether a judge may stand in for one of the people who rate: the alternative annotator test.

Calderon, Reichart and Dror 2025, "The Alternative Annotator Test for LLM-as-a-Judge", ACL.
"""

import numpy as np
import scipy
from msgspec import Struct
from msgspec.structs import replace

from critic.stats.arrays import Floats, Group, group_numbers
from eval_agreement.metrics import Indices
from eval_agreement.ratings import Judge, RatingEntries, Ratings, mean_of_others, rated_items

EPSILON = 0.2
"""Calderon et al.'s allowance for what the judge saves: 0.2 beside experts, 0.15 skilled raters, 0.1 a crowd."""

FALSE_DISCOVERIES, WINNING_RATE = 0.05, 0.5
"""Rate at which rejections over raters may be false (Benjamini and Yekutieli); the share of raters against which the
judge has to hold its own."""

FEWEST_RATERS, FEWEST_ITEMS = 3, 30
"""What the alternative annotator test needs."""

FEWEST_BLOCKS = 10
"""Groups that a rater's items must come from: with six, the test rejected up to 18 % of true hypotheses at 5 %."""

_DUST = 1e-9


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


def alternative_annotator(
    ratings: Ratings, judge: Judge, group: Group, epsilon: float = EPSILON
) -> AlternativeAnnotator:
    """The alternative annotator test of Calderon, Reichart and Dror (2025): may the judge replace a rater?

    Each rater j is left out in turn; S is minus the root mean square distance to the others' ratings. On item i is
    W^f_ij = 1 where S(judge) >= S(rater), W^h_ij = 1 where S(rater) >= S(judge). H0 of rater j, that the mean of W^f_ij
    is at most that of W^h_ij less epsilon, is tested one-sidedly on d_ij = W^h_ij - W^f_ij and corrected over raters.
    The t-test is clustered by `group`. Raters with fewer than FEWEST_ITEMS items or FEWEST_BLOCKS groups are left out:
    the paper's signed ranks reject a fifth to a third of true hypotheses there.

    None or NaN in `judge` is a failed judgment. Undefined with fewer than FEWEST_RATERS raters that have
    items enough, or where the median item has fewer ratings than that.
    """
    counted = rated_items(ratings, judge, group)
    entries = counted.entries
    # The mean square distance to the others is the squared distance to their mean plus their variance, which is the
    # same for judge and rater: the one nearer to the mean has the higher S.
    mean = mean_of_others(entries)
    lead = np.abs(entries.score - mean) - np.abs(counted.judge[entries.item] - mean)
    lines = []
    for number, name in enumerate(entries.names):
        rows = np.flatnonzero(entries.rater == number)
        members = group_numbers(counted.group[entries.item[rows]])
        groups = int(members.max(initial=-1)) + 1
        if len(rows) < FEWEST_ITEMS or groups < FEWEST_BLOCKS:
            continue
        wins, losses = ((sign * lead[rows] >= -_DUST).astype(np.float64) for sign in (1, -1))
        test = RaterTest(
            rater=name,
            n=len(rows),
            groups=groups,
            judge_advantage=float(wins.mean()),
            rater_advantage=float(losses.mean()),
            p=_p_value(losses - wins, members, epsilon),
            rejected=False,
        )
        lines.append(test)
    # Benjamini and Yekutieli's correction is undefined of no p-values.
    adjusted = scipy.stats.false_discovery_control([line.p for line in lines], method="by") if lines else []
    lines = [replace(line, rejected=bool(p <= FALSE_DISCOVERIES)) for line, p in zip(lines, adjusted, strict=True)]
    undefined = _no_test(entries, lines)
    omega = None if undefined else float(np.mean([line.rejected for line in lines]))
    rho = None if undefined else float(np.mean([line.judge_advantage for line in lines]))
    return AlternativeAnnotator(
        epsilon=epsilon,
        items=entries.items,
        single=counted.single,
        failed=counted.failed,
        per_item=len(entries.score) / entries.items if entries.items else None,
        left_out=len(entries.names) - len(lines),
        lines=lines,
        omega=omega,
        rho=rho,
        passes=None if omega is None else omega >= WINNING_RATE,
        reading=_reading(lines, omega, rho, epsilon, undefined),
        undefined=undefined,
    )


def _p_value(difference: Floats, group: Indices, epsilon: float) -> float:
    """One-sided p of "the mean difference, of shape (n,), is epsilon or more".

    The variance of the mean is that of G sums of groups around n times the mean: G / (G - 1) times their
    squares, over n squared, which is the usual variance over n where each item is its own group.
    """
    mean, groups = float(difference.mean()), int(group.max()) + 1
    spread = float((np.bincount(group, difference - mean) ** 2).sum())
    if spread > _DUST:
        error = np.sqrt(groups / (groups - 1) * spread) / len(difference)
        return float(scipy.stats.t.cdf((mean - epsilon) / error, groups - 1))
    # Without spread: a group's mean is at most 1, so one of expectation epsilon is at `mean` or below with
    # probability (1 - epsilon) / (1 - mean) at most, and all of them are with that to the power of their number.
    return float(((1 - epsilon) / max(1 - mean, 1 - epsilon)) ** groups)


def _no_test(entries: RatingEntries, lines: list[RaterTest]) -> str | None:
    if not entries.items:
        return "no item has a judgment and two ratings"
    if np.median(entries.ratings()) < FEWEST_RATERS:
        return f"the test needs {FEWEST_RATERS} raters an item, and half of the items or more have two"
    if len(lines) < FEWEST_RATERS:
        enough = f"{FEWEST_ITEMS} items in {FEWEST_BLOCKS} groups"
        return f"the test needs {FEWEST_RATERS} raters with {enough} or more, and there are {len(lines)}"
    return None


def _reading(
    lines: list[RaterTest], omega: float | None, rho: float | None, epsilon: float, undefined: str | None
) -> str:
    if omega is None or rho is None:
        return f"Whether the judge may replace a person cannot be told: {undefined}."
    verdict = "may replace" if omega >= WINNING_RATE else "may not replace"
    won = f"{sum(line.rejected for line in lines)} of {len(lines)} raters"
    raters = float(np.mean([line.rater_advantage for line in lines]))
    return (
        f"The judge {verdict} a person: within {epsilon:g} it holds its own against {won} "
        f"(winning rate {omega:.2f}, {WINNING_RATE:g} needed). Ties counting for both, the judge is at least as close "
        f"to the other raters on {rho:.0%} of the items, and the rater on {raters:.0%}."
    )
