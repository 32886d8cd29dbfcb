"""Calibration of a judge: the mean human score at each judge score, and an isotonic map, evaluated on other groups."""

from collections.abc import Callable

import numpy as np
import scipy
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from critic.records import RATINGS
from critic.stats.arrays import Floats
from critic.stats.estimate import Estimate
from eval_agreement.judged_rows import JudgedRows
from eval_agreement.metrics import half_up, mean_estimate
from eval_agreement.sample import FEWEST_FIT_GROUPS, FEWEST_ROWS, FOLDS, folds
from eval_agreement.sentences import say

FEWEST_BIN_GROUPS = 10
"""Fewest groups for the interval of a bin. With fewer, the bootstrap's interval is too narrow."""


class Bin(Struct, frozen=True, kw_only=True):
    """The answers whose judge score rounds half up to `score`: mean `judge` and mean `human` score, 1..10.

    They lie in `groups` groups. With fewer than FEWEST_BIN_GROUPS the human mean has no interval.
    """

    score: int
    groups: int
    judge: float
    human: Estimate


class Errors(Struct, frozen=True, kw_only=True):
    """Mean absolute error, mean of judge - human, and root mean square error, in points."""

    mae: float
    mean_error: float
    rmse: float


class Calibration(Struct, frozen=True, kw_only=True):
    """Calibration of a judge on `n` judged rows; `failed` rows have no judgment.

    `before` and `after` are errors without and with the map fitted on other groups; `change` is the change of the MAE.
    All three are None if `undefined` says why.
    """

    n: int
    failed: int
    bins: list[Bin]
    before: Errors | None = None
    after: Errors | None = None
    change: Estimate | None = None
    undefined: str | None = None
    readings: list[str] = field(default_factory=list)


Map = Callable[[Floats], Floats]
"""A function from judge scores (n,) to expected human scores (n,), cut to 1..10."""


def calibrate(rows: JudgedRows) -> Calibration:
    """Measure the mean human score at each judge score, and the gain of an isotonic map.

    Each of FOLDS folds of whole groups is measured with the map fitted on the other folds. The map minimises the
    squared error, so the absolute error can rise.
    """
    fold = folds(rows.resamples.member)
    calibration = Calibration(n=rows.n, failed=rows.failed, bins=_bins(rows))
    if undefined := _too_few(rows, fold):
        return replace(calibration, undefined=undefined, readings=[f"Not calibrated: {undefined}."])
    human, judge, group = rows.human, rows.judge, rows.resamples.member
    mapped = np.empty(rows.n)
    # A map measured on the rows that it was fitted on would always seem to help.
    for number in range(FOLDS):
        held_out = fold == number
        mapped[held_out] = fit_map(human[~held_out], judge[~held_out])(judge[held_out])
    before, after = _errors(judge - human), _errors(mapped - human)
    change = mean_estimate(np.abs(mapped - human) - np.abs(judge - human), group, null=0.0)
    moves = say("map_moves", before=before, after=after).replace("-", "−")
    readings = [say(("map_same", "map_further", "map_closer")[change.side], moves=moves)]
    return replace(calibration, before=before, after=after, change=change, readings=readings)


def fit_map(human: Floats, judge: Floats) -> Map:
    """Fit an isotonic map to pairs of scores, (n,) each. It is linear between the judge scores seen, flat outside.

    >>> fit_map(human=np.array([2.0, 6.0, 4.0]), judge=np.array([1.0, 3.0, 5.0]))(np.array([2.0, 9.0])).tolist()
    [3.5, 5.0]
    """
    seen, position, times = np.unique(judge, return_inverse=True, return_counts=True)
    mean = np.bincount(position, human) / times
    # Scores seen more than once are one point of their mean, with their number as weight.
    steps = scipy.optimize.isotonic_regression(mean, weights=times).x
    return lambda scores: np.clip(np.interp(scores, seen, steps), RATINGS[0], RATINGS[-1])


def _bins(rows: JudgedRows) -> list[Bin]:
    """Return one bin per rounded judge score, ascending."""
    rounded = half_up(rows.judge)
    bins = []
    for score in np.unique(rounded):
        inside = rounded == score
        group = rows.resamples.member[inside]
        groups = len(np.unique(group))
        human = mean_estimate(rows.human[inside], group)
        # The mean is shown all the same: without an interval it is read with care.
        if groups < FEWEST_BIN_GROUPS:
            why = f"{groups} groups; an interval needs at least {FEWEST_BIN_GROUPS}"
            human = replace(human, interval=None, undefined=why)
        bins.append(Bin(score=int(score), groups=groups, judge=float(rows.judge[inside].mean()), human=human))
    return bins


def _too_few(rows: JudgedRows, fold: NDArray[np.intp]) -> str | None:
    """Return why no map can be fitted, or None."""
    if not rows.n:
        return "no judged rows to evaluate on"
    if rows.resamples.groups < FEWEST_FIT_GROUPS:
        return f"{rows.resamples.groups} groups to fit on; at least {FEWEST_FIT_GROUPS} are needed"
    fewest = int(np.bincount(fold, minlength=FOLDS).min())
    few = f"only {fewest} rows in a fifth of the groups; at least {FEWEST_ROWS} are needed"
    return few if fewest < FEWEST_ROWS else None


def _errors(error: Floats) -> Errors:
    """Summarise differences judge - human, (n,), in points."""
    return Errors(
        mae=float(np.abs(error).mean()), mean_error=float(error.mean()), rmse=float(np.sqrt((error**2).mean()))
    )
