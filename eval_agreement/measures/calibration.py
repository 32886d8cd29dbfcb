"""What a judge's score means: people's mean at each score, and a map that corrects it, evaluated on other groups."""

from collections.abc import Callable

import numpy as np
import scipy
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from critic.records import RATINGS
from critic.stats.arrays import Floats
from critic.stats.estimate import Estimate
from eval_agreement.metrics import half_up, mean_estimate
from eval_agreement.sample import FEWEST_FIT_GROUPS, FEWEST_ROWS, FOLDS, JudgedRows, folds
from eval_agreement.sentences import say

FEWEST_BIN_GROUPS = 10
"""Of a bin in fewer groups the bootstrap's interval would be too narrow."""


class Bin(Struct, frozen=True, kw_only=True):
    """Answers in `groups` groups whose judge score rounds half up to `score`: mean `judge` and `human` score (1..10).
    The latter has an interval where it stands on FEWEST_BIN_GROUPS groups."""

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
    """What one judge's scores mean, on `n` judged rows; `failed` have no judgment. Errors `before` and `after` the map
    that other groups made, and the `change` of the MAE: None where `undefined` says why."""

    n: int
    failed: int
    bins: list[Bin]
    before: Errors | None = None
    after: Errors | None = None
    change: Estimate | None = None
    undefined: str | None = None
    readings: list[str] = field(default_factory=list)


Map = Callable[[Floats], Floats]
"""Judge scores to expected human scores, shape (n,) each, cut to 1..10."""


def calibrate(rows: JudgedRows) -> Calibration:
    """People's mean at each judge score, and what an isotonic map of the scores gains, each of FOLDS folds of whole
    groups being measured with the map of the others. It minimises the squared error: the absolute one can rise."""
    calibration, fold = Calibration(n=rows.n, failed=rows.failed, bins=_bins(rows)), folds(rows.resamples.member)
    if undefined := _too_few(rows, fold):
        return replace(calibration, undefined=undefined, readings=[f"Not calibrated: {undefined}."])
    human, judge, group = rows.human, rows.judge, rows.resamples.member
    mapped = np.empty(rows.n)
    for number in range(FOLDS):
        measured_on = fold == number
        mapped[measured_on] = fitted(human[~measured_on], judge[~measured_on])(judge[measured_on])
    before, after = _errors(judge - human), _errors(mapped - human)
    change = mean_estimate(np.abs(mapped - human) - np.abs(judge - human), group, null=0.0)
    moves = say("map_moves", before=before, after=after).replace("-", "−")
    readings = [say(("map_same", "map_further", "map_closer")[change.side], moves=moves)]
    return replace(calibration, before=before, after=after, change=change, readings=readings)


def fitted(human: Floats, judge: Floats) -> Map:
    """The isotonic map by pairs of scores, (n,) each: straight between the scores seen, flat outside."""
    seen, position, times = np.unique(judge, return_inverse=True, return_counts=True)
    mean = np.bincount(position, human) / times
    steps = scipy.optimize.isotonic_regression(mean, weights=times).x
    return lambda scores: np.clip(np.interp(scores, seen, steps), RATINGS[0], RATINGS[-1])


def _bins(rows: JudgedRows) -> list[Bin]:
    rounded, bins = half_up(rows.judge), []
    for score in np.unique(rounded):
        inside = rounded == score
        group = rows.resamples.member[inside]
        groups, human = len(np.unique(group)), mean_estimate(rows.human[inside], group)
        if groups < FEWEST_BIN_GROUPS:
            why = f"{groups} groups; an interval needs at least {FEWEST_BIN_GROUPS}"
            human = replace(human, interval=None, undefined=why)
        bins.append(Bin(score=int(score), groups=groups, judge=float(rows.judge[inside].mean()), human=human))
    return bins


def _too_few(rows: JudgedRows, fold: NDArray[np.intp]) -> str | None:
    """Why no map can be made."""
    if not rows.n:
        return "no judged rows to evaluate on"
    if rows.resamples.groups < FEWEST_FIT_GROUPS:
        return f"{rows.resamples.groups} groups to fit on; at least {FEWEST_FIT_GROUPS} are needed"
    fewest = int(np.bincount(fold, minlength=FOLDS).min())
    few = f"only {fewest} rows in a fifth of the groups; at least {FEWEST_ROWS} are needed"
    return few if fewest < FEWEST_ROWS else None


def _errors(error: Floats) -> Errors:
    return Errors(
        mae=float(np.abs(error).mean()), mean_error=float(error.mean()), rmse=float(np.sqrt((error**2).mean()))
    )
