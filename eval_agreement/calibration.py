"""What a judge's score means: people's mean at each score, a map that corrects it, how far a single one is off.

Map and conformal intervals are evaluated only on rows whose groups took no part in making them; the bootstrap over
groups holds both as they are.
"""

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
from eval_agreement.rows import JudgedRows

CONFORMAL_LEVEL = 0.9
"""Share of answers whose human score is to lie in the conformal interval."""

FEWEST_FIT_GROUPS, FEWEST_RESIDUALS, FEWEST_BIN_GROUPS = 10, 20, 10
"""Nothing is fitted on fewer groups or made from folds of fewer rows; of a bin in fewer groups the bootstrap's interval
would be too narrow."""

FOLDS = 5
"""Of cross-fitting, by whole groups."""

_DUST = 1e-9


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
    """What one judge's scores mean, on `n` judged rows; `failed` rows have no judgment.

    - `before`, `after` the scores are mapped to people's by what other groups made, and the `change` of their MAE.
    - `half_width`: the typical (median) distance in points from a mapped score to the ends of its conformal interval;
      `coverage`: the share (0..1) of rows whose human score is inside. It should be CONFORMAL_LEVEL.

    All but the bins are None where `undefined` says why.
    """

    n: int
    failed: int
    bins: list[Bin]
    before: Errors | None = None
    after: Errors | None = None
    change: Estimate | None = None
    half_width: float | None = None
    coverage: Estimate | None = None
    undefined: str | None = None
    readings: list[str] = field(default_factory=list)


Map = Callable[[Floats], Floats]
"""Judge scores to expected human scores, shape (n,) each, cut to 1..10."""


def calibrate(rows: JudgedRows) -> Calibration:
    """People's mean at each judge score, what the judge gains from a map of its scores, and how far people's score of
    a single answer is from the mapped one, 9 times out of 10.

    Whole groups are dealt into FOLDS folds. Each fold is measured with the conformal intervals of the next one and the
    isotonic map of the others. The map minimises the squared error, so the mean absolute one can rise where scores
    crowd at the ends of the scale. Intervals are those of split conformal prediction with absolute residuals (Lei et
    al. 2018, "Distribution-Free Predictive Inference for Regression", §2.2): their promise is about answers like these
    on average, not about each group or score; whole scores tie, which makes coverage larger than promised.
    """
    calibration, fold = Calibration(n=rows.n, failed=rows.failed, bins=_bins(rows)), _folds(rows)
    if undefined := _too_few(rows, fold):
        return replace(calibration, undefined=undefined, readings=[f"Not calibrated: {undefined}."])
    human, judge, group = rows.human, rows.judge, rows.resamples.member
    mapped, half_width = np.empty(rows.n), np.empty(rows.n)
    for number in range(FOLDS):
        measured_on, intervals_on = fold == number, fold == (number + 1) % FOLDS
        made_on = ~(measured_on | intervals_on)
        to_human = fitted(human[made_on], judge[made_on])
        half_width[measured_on] = _half_width(to_human, human[intervals_on], judge[intervals_on])
        mapped[measured_on] = to_human(judge[measured_on])
    before, after = _errors(judge - human), _errors(mapped - human)
    change = mean_estimate(np.abs(mapped - human) - np.abs(judge - human), group, null=0.0)
    covered = np.abs(human - mapped) <= half_width + _DUST
    coverage = mean_estimate(covered.astype(np.float64), group, share=True)
    typical = float(np.median(half_width))
    return replace(
        calibration,
        before=before,
        after=after,
        change=change,
        half_width=typical,
        coverage=coverage,
        readings=[_map_reading(before, after, change), _conformal_reading(typical, coverage)],
    )


def fitted(human: Floats, judge: Floats) -> Map:
    """The isotonic map by pairs of scores, shape (n,) each: the best non-decreasing values at the scores seen, straight
    between them, flat outside."""
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
    residuals = int(np.bincount(fold, minlength=FOLDS).min())
    if residuals < FEWEST_RESIDUALS:
        return f"only {residuals} rows to make intervals from; at least {FEWEST_RESIDUALS} are needed"
    return None


def _folds(rows: JudgedRows) -> NDArray[np.intp]:
    """The fold of each row, whole groups together, the largest first, each into the fold that has the fewest rows."""
    size = np.bincount(rows.resamples.member, minlength=rows.resamples.groups)
    fold, filled = np.empty(len(size), dtype=np.intp), np.zeros(FOLDS, dtype=np.intp)
    for group in np.argsort(size, kind="stable")[::-1]:
        fold[group] = np.argmin(filled)
        filled[fold[group]] += size[group]
    return np.asarray(fold[rows.resamples.member])


def _half_width(to_human: Map, human: Floats, judge: Floats) -> float:
    """Of n absolute residuals the one that n + 1 times the level, rounded up, are no greater than."""
    residual = np.sort(np.abs(human - to_human(judge)))
    return float(residual[int(np.ceil(round(CONFORMAL_LEVEL * (len(residual) + 1), 9))) - 1])


def _errors(error: Floats) -> Errors:
    return Errors(
        mae=float(np.abs(error).mean()), mean_error=float(error.mean()), rmse=float(np.sqrt((error**2).mean()))
    )


def _map_reading(before: Errors, after: Errors, change: Estimate) -> str:
    moves = (
        f"mean absolute error {before.mae:.2f} → {after.mae:.2f} points, "
        f"root mean square {before.rmse:.2f} → {after.rmse:.2f}, "
        f"mean error {before.mean_error:+z.2f} → {after.mean_error:+z.2f}"
    ).replace("-", "−")
    low, high = change.interval or (0.0, 0.0)
    if low <= 0 <= high:
        return f"No sign that recalibration brings single scores closer to people's: {moves}."
    direction = "brings single scores closer to" if high < 0 else "takes single scores away from"
    return f"Recalibration {direction} people's: {moves}."


def _conformal_reading(half_width: float, coverage: Estimate) -> str:
    low, high = coverage.interval or (0.0, 1.0)
    often, warning = ("less often than ", ": do not rely on it") if high < CONFORMAL_LEVEL else ("", "")
    return (
        f"For a single answer, people's score should lie within ±{half_width:.1f} of the recalibrated score {often}"
        f"about {10 * CONFORMAL_LEVEL:.0f} times out of 10 (on {coverage.n} answers that took no part it did in "
        f"{coverage.value:.1%}, {low:.1%} to {high:.1%}){warning}."
    )
