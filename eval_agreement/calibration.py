"""What a judge's score means: people's mean at each score, a map that corrects it, how far a single one is off.

Every interval is from the bootstrap over groups. Maps and conformal intervals are evaluated only on rows whose
groups took no part in making them; the bootstrap holds the maps as they are.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
import scipy
from msgspec import Struct, field
from numpy.typing import NDArray

from critic.records import RATINGS
from critic.stats.arrays import Floats, ratio
from critic.stats.estimate import Estimate, Interval
from eval_agreement.metrics import half_up
from eval_agreement.rows import JudgedRows

Method = Literal["isotonic", "linear"]

CONFORMAL_LEVEL = 0.9
"""Share of answers whose human score is to lie in the conformal interval."""

FEWEST_FIT_ROWS, FEWEST_FIT_GROUPS, FEWEST_RESIDUALS, FEWEST_BIN_GROUPS = 50, 10, 20, 10
"""Nothing is fitted on fewer, no conformal interval made from fewer residuals; of a bin in fewer groups the bootstrap's
interval would be too narrow."""

FOLDS = 5
"""Of cross-fitting, by whole groups."""

_MOST_TABLE_ROWS = 20
_DUST = 1e-9
_SURE = 2.0
_NO_ROWS = "no judged rows"


class Bin(Struct, frozen=True, kw_only=True):
    """The `n` answers whose judge score rounds half up to `score`: mean judge and mean human score (1..10), and
    the 95 % interval of the latter or why it has none."""

    score: int
    n: int
    groups: int
    judge: float
    human: float
    interval: Interval | None
    undefined: str | None = None


class Reliability(Struct, frozen=True, kw_only=True):
    """Human score against judge score, bin by bin, and the expected calibration error in points.

    That error is the distance between a bin's mean human and mean judge score, averaged over answers. Noise alone
    makes it positive: `plain` is the sample's, and `error` is `plain` less its bias by the bootstrap, at least 0. What
    is None has its reason in `undefined`.
    """

    n: int
    failed: int
    bins: list[Bin] = field(default_factory=list)
    error: float | None = None
    interval: Interval | None = None
    plain: float | None = None
    undefined: str | None = None
    reading: str


class Errors(Struct, frozen=True, kw_only=True):
    """Mean absolute error, mean of judge - human, and root mean square error, in points."""

    mae: float
    mean_error: float
    rmse: float


class _Fitted(Struct, frozen=True, kw_only=True):
    """What is tried on `n` judged rows, each by what other groups made. What is None or empty has its reason in
    `undefined`."""

    method: Method
    n: int
    failed: int
    undefined: str | None = None
    reading: str


class Recalibration(_Fitted, frozen=True, kw_only=True):
    """What a map from judge score to human score is worth.

    `changes` are after minus before: of mae, rmse, and mean_error without its sign. `table` is the map, (judge score,
    recalibrated score), made of all rows.
    """

    before: Errors | None = None
    after: Errors | None = None
    changes: dict[str, Estimate] = field(default_factory=dict)
    table: list[tuple[float, float]] = field(default_factory=list)


class Conformal(_Fitted, frozen=True, kw_only=True):
    """Intervals for single scores, around the recalibrated score.

    `half_width` is the typical (median) distance in points from the recalibrated score to the ends of its interval,
    `coverage` is the share (0..1) of rows whose
    human score is inside, with its `interval`. It should be `level`.
    """

    level: float = CONFORMAL_LEVEL
    half_width: float | None = None
    coverage: float | None = None
    interval: Interval | None = None


class Calibration(Struct, frozen=True):
    """Of one judge."""

    reliability: Reliability
    maps: list[Recalibration]
    conformal: Conformal


def reliability(rows: JudgedRows) -> Reliability:
    """People's mean score at each judge score (rounded half up), and how far the two are apart on average.

    Expected calibration error: Naeini et al. 2015, "Obtaining Well Calibrated Probabilities Using Bayesian Binning",
    with scores in place of probabilities. A distance is not smooth at 0, so its bootstrap alone is too optimistic:
    the interval's lower end is where bins whose gap is within two standard errors may have none at all (moment
    selection: Andrews and Soares 2010, "Inference for Parameters Defined by Moment Inequalities").
    """
    if not rows.n:
        return Reliability(n=0, failed=rows.failed, undefined=_NO_ROWS, reading=f"Not measured: {_NO_ROWS}.")
    human, judge = rows.human, rows.judge
    scores, number = np.unique(half_up(judge), return_inverse=True)
    at = scipy.sparse.csr_array((np.ones(rows.n), (number, np.arange(rows.n))), shape=(len(scores), rows.n))
    columns = scipy.sparse.vstack([at, at * human, at * judge], format="csr")
    n, human_sum, judge_sum = np.split(rows.resamples.sums(np.arange(rows.n), columns), 3, axis=1)
    # A bin's part in mean human - mean judge score, and what of a resample's is due to a gap other than the sample's.
    share = (human_sum - judge_sum) / n.sum(axis=1, keepdims=True)
    noise = share[1:] - n[1:] / n[1:].sum(axis=1, keepdims=True) * (share[0] * rows.n / n[0])
    error, interval = _calibration_error(rows, share, noise)
    plain = float(np.abs(share[0]).sum())
    human_mean, judge_mean = ratio(human_sum, n), judge_sum[0] / n[0]
    bins = []
    for index, score in enumerate(scores):
        groups = len(np.unique(rows.resamples.member[number == index]))
        few = f"{groups} groups; an interval needs at least {FEWEST_BIN_GROUPS}" if groups < FEWEST_BIN_GROUPS else None
        bins.append(
            Bin(
                score=int(score),
                n=int(n[0, index]),
                groups=groups,
                judge=float(judge_mean[index]),
                human=float(human_mean[0, index]),
                interval=None if few else rows.resamples.interval(human_mean[1:, index]),
                undefined=few,
            )
        )
    return Reliability(
        n=rows.n,
        failed=rows.failed,
        bins=bins,
        error=error,
        interval=interval,
        plain=plain,
        undefined=rows.too_few,
        reading=_reliability_reading(plain if error is None else error, interval, rows.too_few),
    )


Map = Callable[[Floats], Floats]
"""Judge scores to expected human scores, shape (n,) each, cut to 1..10."""


def fitted(method: Method, human: Floats, judge: Floats) -> Map:
    """The map by pairs of scores, shape (n,) each.

    Isotonic: the best non-decreasing values at the scores seen, straight between them, flat outside. Linear: the
    least-squares line.
    """
    seen, place, times = np.unique(judge, return_inverse=True, return_counts=True)
    mean = np.bincount(place, human) / times
    if method == "isotonic":
        steps = scipy.optimize.isotonic_regression(mean, weights=times).x
        return lambda scores: np.clip(np.interp(scores, seen, steps), RATINGS[0], RATINGS[-1])
    centre, height = judge.mean(), human.mean()
    spread = times @ (seen - centre) ** 2
    slope = times @ ((seen - centre) * mean) / spread if spread else 0.0
    return lambda scores: np.clip(height + slope * (scores - centre), RATINGS[0], RATINGS[-1])


def recalibration(rows: JudgedRows, method: Method = "isotonic") -> Recalibration:
    """What the judge gains from a map of its scores, on rows that the map has not seen.

    Whole groups are dealt into FOLDS folds and each fold is evaluated by the map of the others. Both maps minimise the
    squared error, so the mean absolute one can rise where scores crowd at the ends of the scale. A rising line leaves
    correlations as they are (except where it is cut to 1..10); isotonic steps can make ties, and change them.
    """
    if undefined := _too_few(rows):
        return Recalibration(
            method=method, n=rows.n, failed=rows.failed, undefined=undefined, reading=f"Not measured: {undefined}."
        )
    human, judge = rows.human, rows.judge
    recalibrated, fold = np.empty(rows.n), _folds(rows)
    for inside in (fold == number for number in range(FOLDS)):
        recalibrated[inside] = fitted(method, human[~inside], judge[~inside])(judge[inside])
    before, after, changes = _errors(rows, recalibrated)
    # The map at the judge's scores, or at the whole ones where there are too many.
    scores = np.unique(judge)
    if len(scores) > _MOST_TABLE_ROWS:
        scores = np.array(RATINGS, dtype=np.float64)
    return Recalibration(
        method=method,
        n=rows.n,
        failed=rows.failed,
        before=before,
        after=after,
        changes=changes,
        table=list(zip(scores.tolist(), fitted(method, human, judge)(scores).tolist(), strict=True)),
        reading=_recalibration_reading(method, before, after, changes["mae"]),
    )


def conformal(rows: JudgedRows, method: Method = "isotonic") -> Conformal:
    """How far people's score of a single answer is from the recalibrated one, 9 times out of 10.

    Split conformal prediction with absolute residuals (Lei et al. 2018, "Distribution-Free Predictive Inference for
    Regression", §2.2). Groups are dealt into FOLDS folds; each fold is measured with the intervals of the next one and
    the map of the others. The promise is about answers like these on average, not about each group or score; whole
    scores tie, which makes coverage larger than promised.
    """
    undefined, fold = _too_few(rows), _folds(rows)
    residuals = int(np.bincount(fold, minlength=FOLDS).min())
    if not undefined and residuals < FEWEST_RESIDUALS:
        undefined = f"only {residuals} rows to make the intervals from; at least {FEWEST_RESIDUALS} are needed"
    if undefined:
        return Conformal(
            method=method, n=rows.n, failed=rows.failed, undefined=undefined, reading=f"Not measured: {undefined}."
        )
    human, judge = rows.human, rows.judge
    centre, half_width = np.empty(rows.n), np.empty(rows.n)
    for number in range(FOLDS):
        measured_on, intervals_on = fold == number, fold == (number + 1) % FOLDS
        made_on = ~(measured_on | intervals_on)
        to_human = fitted(method, human[made_on], judge[made_on])
        half_width[measured_on] = _half_width(to_human, human[intervals_on], judge[intervals_on])
        centre[measured_on] = to_human(judge[measured_on])
    covered = np.abs(human - centre) <= half_width + _DUST
    inside, n = rows.resamples.sums(np.arange(rows.n), np.stack([covered, np.ones(rows.n)])).T
    coverage, *drawn = ratio(inside, n)
    interval = rows.resamples.interval(np.array(drawn), share=True)
    typical = float(np.median(half_width))
    return Conformal(
        method=method,
        n=rows.n,
        failed=rows.failed,
        half_width=typical,
        coverage=float(coverage),
        interval=interval,
        reading=_conformal_reading(typical, float(coverage), interval, rows.n),
    )


def _calibration_error(rows: JudgedRows, share: Floats, noise: Floats) -> tuple[float | None, Interval | None]:
    """The error without its bias, and its interval; None with too few groups. `share`, shape (1 + resamples, bins), has
    the sample first, `noise` the resamples only."""
    if not rows.resamples.enough:
        return None, None
    plain, sign = np.abs(share).sum(axis=1), np.sign(share[0])
    moved = share[1:] @ sign - plain[0]
    unsure = np.abs(share[0]) <= _SURE * noise.std(axis=0)
    risen = (np.abs(noise) - sign * noise)[:, unsure].sum(axis=1)
    lower, upper = (rows.resamples.interval(plain[0] - change) for change in (moved + risen, moved))
    if lower is None or upper is None:
        return None, None
    return max(0.0, float(2 * plain[0] - plain[1:].mean())), (max(0.0, lower[0]), upper[1])


def _reliability_reading(error: float, interval: Interval | None, undefined: str | None) -> str:
    if interval is None:
        return f"A judge score is {error:.2f} points off people's mean on average, some of it by chance: {undefined}."
    low, high = interval
    if low == 0:
        return f"No sign of miscalibration: a judge score is at most {high:.2f} points off people's mean on average."
    return f"A judge score is on average {error:.2f} points ({low:.2f} to {high:.2f}) off people's mean at that score."


def _too_few(rows: JudgedRows) -> str | None:
    """Why no map can be made."""
    if not rows.n:
        return f"{_NO_ROWS} to evaluate on"
    if rows.n < FEWEST_FIT_ROWS or rows.resamples.groups < FEWEST_FIT_GROUPS:
        least = f"at least {FEWEST_FIT_ROWS} in {FEWEST_FIT_GROUPS} are needed"
        return f"{rows.n} judged rows in {rows.resamples.groups} groups to fit on; {least}"
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


def _errors(rows: JudgedRows, recalibrated: Floats) -> tuple[Errors, Errors, dict[str, Estimate]]:
    """Before, after, and what changes."""
    human, judge = rows.human, rows.judge
    columns = [np.ones(rows.n)]
    for error in (judge - human, recalibrated - human):
        columns += [np.abs(error), error, error**2]
    n, *sums = rows.resamples.sums(np.arange(rows.n), np.stack(columns)).T
    mae, mean, square, new_mae, new_mean, new_square = (total / n for total in sums)
    rmse, new_rmse = np.sqrt(square), np.sqrt(new_square)
    moved = {"mae": new_mae - mae, "rmse": new_rmse - rmse, "mean_error": np.abs(new_mean) - np.abs(mean)}
    return (
        Errors(mae=float(mae[0]), mean_error=float(mean[0]), rmse=float(rmse[0])),
        Errors(mae=float(new_mae[0]), mean_error=float(new_mean[0]), rmse=float(new_rmse[0])),
        {name: rows.resamples.estimate(values, rows.n, null=0.0) for name, values in moved.items()},
    )


def _recalibration_reading(method: Method, before: Errors, after: Errors, change: Estimate) -> str:
    moves = (
        f"mean absolute error {before.mae:.2f} → {after.mae:.2f} points, "
        f"root mean square {before.rmse:.2f} → {after.rmse:.2f}, "
        f"mean error {before.mean_error:+z.2f} → {after.mean_error:+z.2f}"
    ).replace("-", "−")
    low, high = change.interval or (0.0, 0.0)
    if low <= 0 <= high:
        return f"No sign that recalibration ({method}) brings single scores closer to people's: {moves}."
    if (change.value or 0) < 0:
        return f"Recalibration ({method}) brings single scores closer to people's: {moves}."
    return f"Recalibration ({method}) takes single scores away from people's: {moves}."


def _conformal_reading(half_width: float, coverage: float, interval: Interval | None, n: int) -> str:
    low, high = interval or (0.0, 1.0)
    often, warning = ("less often than ", ": do not rely on it") if high < CONFORMAL_LEVEL else ("", "")
    return (
        f"For a single answer, people's score should lie within ±{half_width:.1f} of the recalibrated score {often}"
        f"about {10 * CONFORMAL_LEVEL:.0f} times out of 10 (on {n} answers that took no part it did in {coverage:.1%}, "
        f"{low:.1%} to {high:.1%}){warning}."
    )
