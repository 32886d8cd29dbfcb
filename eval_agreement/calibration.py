"""What a judge's score means: people's mean at each score, a map that corrects it, how far a single one is off.

Every interval is from the bootstrap over groups. Maps and conformal intervals are evaluated only on rows whose
groups took no part in making them; the bootstrap holds the maps as they are.
"""

import heapq
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray
from scipy import optimize, sparse

from critic.counting.arrays import Codes, Floats, distinct, groups_in, ratio
from critic.counting.estimate import Interval
from critic.records import RATINGS
from eval_agreement.metrics import Indices, half_up
from eval_agreement.rows import JudgedRows

Method = Literal["isotonic", "linear"]
Mode = Literal["held out", "cross-fitted"]

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
    makes it positive: `plain` is the sample's, `by_chance` that of a calibrated judge on as much data (the mean
    over resamples), and `error` is `plain` less its bias by the bootstrap, at least 0. What is None has its reason
    in `undefined`.
    """

    n: int
    failed: int
    bins: list[Bin] = field(default_factory=list)
    error: float | None = None
    interval: Interval | None = None
    plain: float | None = None
    by_chance: float | None = None
    undefined: str | None = None
    reading: str


class Errors(Struct, frozen=True, kw_only=True):
    """Mean absolute error, mean of judge - human, and root mean square error, in points."""

    mae: float
    mean_error: float
    rmse: float


class Change(Struct, frozen=True, kw_only=True):
    """After minus before on the same rows, in points; 95 % interval and two-sided p of "no change"."""

    value: float
    interval: Interval | None
    p: float | None


class Recalibration(Struct, frozen=True, kw_only=True):
    """What a map from judge score to human score is worth, on `n` judged rows that it has not seen.

    `fitted` rows made the map; `left_out` judged rows of the fitting split did not, because their group is among
    the evaluated ones. `changes` has mae, rmse, and mean_error without its sign. `table` is the map, (judge score,
    recalibrated score); where `mode` is cross-fitted, the map of all rows. Everything but the counts is None or
    empty where `undefined` says why; a change without an interval is one of too few groups.
    """

    method: Method
    mode: Mode
    n: int
    failed: int
    fitted: int
    left_out: int
    before: Errors | None = None
    after: Errors | None = None
    changes: dict[str, Change] = field(default_factory=dict)
    table: list[tuple[float, float]] = field(default_factory=list)
    undefined: str | None = None
    reading: str


class Conformal(Struct, frozen=True, kw_only=True):
    """Intervals for single scores, around the recalibrated score.

    `half_width` is the typical (median) distance in points from the recalibrated score to the ends of its interval,
    `mean_width` the mean width of what of the intervals lies on 1..10. `coverage` is the share (0..1) of the `n`
    judged rows whose human score is inside; they took part in neither map nor interval. It should be `level`.
    `fitted`, `left_out` and `undefined` as in `Recalibration`.
    """

    level: float = CONFORMAL_LEVEL
    method: Method
    mode: Mode
    n: int
    failed: int
    fitted: int
    left_out: int
    half_width: float | None = None
    mean_width: float | None = None
    coverage: float | None = None
    interval: Interval | None = None
    undefined: str | None = None
    reading: str


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
    scores, rounded = np.unique(half_up(rows.judge), return_inverse=True)
    first, cell = distinct(rows.human, rows.judge)
    h, j = rows.human[first], rows.judge[first]
    places = (np.ones(len(first)), (rounded[first], np.arange(len(first))))
    at = sparse.csr_array(places, shape=(len(scores), len(first)))
    columns = sparse.vstack([at, at * h, at * j], format="csr")
    n, human_sum, judge_sum = np.split(rows.resamples.sums(cell, columns), 3, axis=1)
    # A bin's part in mean human - mean judge score, and what of a resample's is due to a gap other than the sample's.
    share = (human_sum - judge_sum) / n.sum(axis=1, keepdims=True)
    noise = share[1:] - n[1:] / n[1:].sum(axis=1, keepdims=True) * (share[0] * rows.n / n[0])
    error, interval = _calibration_error(rows, share, noise)
    plain = float(np.abs(share[0]).sum())
    human_mean, judge_mean = ratio(human_sum, n), judge_sum[0] / n[0]
    bins = []
    for index, score in enumerate(scores):
        groups = groups_in(rows.resamples.member, rounded == index)
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
        by_chance=float(np.abs(noise).sum(axis=1).mean()) if len(noise) else None,
        undefined=rows.too_few,
        reading=_reliability_reading(plain if error is None else error, interval, rows.too_few),
    )


Map = Callable[[Floats], Floats]
"""Judge scores to expected human scores, shape (n,) each, cut to 1..10."""


def fitted(method: Method, human: Floats, judge: Floats, times: NDArray[np.number]) -> Map:
    """The map by pairs of scores that occur so many times, shape (k,) each.

    Isotonic: the best non-decreasing values at the scores seen, straight between them, flat outside. Linear: the
    least-squares line.
    """
    seen, place = np.unique(judge, return_inverse=True)
    weight = np.bincount(place, times)
    mean = np.bincount(place, times * human) / weight
    if method == "isotonic":
        steps = optimize.isotonic_regression(mean, weights=weight).x
        return lambda scores: np.clip(np.interp(scores, seen, steps), RATINGS[0], RATINGS[-1])
    centre, height = (weight @ values / weight.sum() for values in (seen, mean))
    spread = weight @ (seen - centre) ** 2
    slope = weight @ ((seen - centre) * mean) / spread if spread else 0.0
    return lambda scores: np.clip(height + slope * (scores - centre), RATINGS[0], RATINGS[-1])


def recalibration(rows: JudgedRows, method: Method = "isotonic", fit_on: JudgedRows | None = None) -> Recalibration:
    """What the judge gains from a map of its scores, on rows that the map has not seen.

    With `fit_on`, the map is fitted there and evaluated on the rows given. Without, whole groups are dealt into
    FOLDS folds and each fold is evaluated by the map of the others. Both maps minimise the squared error, so the
    mean absolute one can rise where scores crowd at the ends of the scale. A rising line leaves correlations as they
    are (except where it is cut to 1..10); isotonic steps can make ties, and change them.
    """
    source, about, undefined = _fitting_rows(rows, method, fit_on)
    if undefined:
        return Recalibration(**about, undefined=undefined, reading=f"Not measured: {undefined}.")
    seen, tested = _parted(rows, source, 0 if fit_on else FOLDS)
    whole = fitted(method, *seen.scores)
    if fit_on:
        recalibrated = whole(tested.judge)
    else:
        recalibrated = np.empty(len(tested.judge))
        for inside in (tested.fold == number for number in range(FOLDS)):
            recalibrated[inside] = fitted(method, *seen.of(~inside))(tested.judge[inside])
    (before, after), changes = _errors(rows, tested, recalibrated)
    # The map at the judge's scores, or at the whole ones where there are too many.
    scores = np.unique(source.judge)
    if len(scores) > _MOST_TABLE_ROWS:
        scores = np.array(RATINGS, dtype=np.float64)
    return Recalibration(
        **about,
        before=before,
        after=after,
        changes=changes,
        table=list(zip(scores.tolist(), whole(scores).tolist(), strict=True)),
        reading=_recalibration_reading(method, before, after, changes["mae"]),
    )


def conformal(rows: JudgedRows, method: Method = "isotonic", fit_on: JudgedRows | None = None) -> Conformal:
    """How far people's score of a single answer is from the recalibrated one, 9 times out of 10.

    Split conformal prediction with absolute residuals (Lei et al. 2018, "Distribution-Free Predictive Inference for
    Regression", §2.2). With `fit_on`, half of its groups make the map and half the intervals, and coverage
    is measured on the rows given. Without, groups are dealt into FOLDS folds; each fold is measured with the intervals
    of the next one and the map of the others. The promise is about answers like these on average, not about each
    group or score; whole scores tie, which makes coverage larger than promised.
    """
    source, about, undefined = _fitting_rows(rows, method, fit_on)
    if not undefined:
        seen, tested = _parted(rows, source, 2 if fit_on else FOLDS)
        thirds = _thirds(seen, tested, held_out=fit_on is not None)
        residuals = min(int(seen.times[intervals_on].sum()) for _, intervals_on, _ in thirds)
        if residuals < FEWEST_RESIDUALS:
            undefined = f"only {residuals} rows to make the intervals from; at least {FEWEST_RESIDUALS} are needed"
    if undefined:
        return Conformal(**about, undefined=undefined, reading=f"Not measured: {undefined}.")
    centre, half_width = np.empty(len(tested.judge)), np.empty(len(tested.judge))
    for made_on, intervals_on, measured_on in thirds:
        to_human = fitted(method, *seen.of(made_on))
        half_width[measured_on] = _half_width(to_human, *seen.of(intervals_on))
        centre[measured_on] = to_human(tested.judge[measured_on])
    width = np.clip(centre + half_width, RATINGS[0], RATINGS[-1])
    width -= np.clip(centre - half_width, RATINGS[0], RATINGS[-1])
    covered = np.abs(tested.human - centre) <= half_width + _DUST
    first, place = distinct(covered)
    columns = np.stack([np.ones(len(first)), covered[first].astype(np.float64)])
    n, inside = rows.resamples.sums(place[tested.cell], columns).T
    coverage, *drawn = ratio(inside, n)
    interval = rows.resamples.interval(np.array(drawn), share=True)
    typical = float(np.median(np.repeat(half_width, tested.times)))
    return Conformal(
        **about,
        half_width=typical,
        mean_width=float(tested.times @ width / rows.n),
        coverage=float(coverage),
        interval=interval,
        undefined=rows.too_few,
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


def _fitting_rows(
    rows: JudgedRows, method: Method, fit_on: JudgedRows | None
) -> tuple[JudgedRows, dict[str, Any], str | None]:
    """The judged rows to fit on (none that share a group with the rows to evaluate), what a `Recalibration` and a
    `Conformal` say of both, and why neither can be made."""
    source = rows if fit_on is None else fit_on.apart_from(rows)
    mode: Mode = "cross-fitted" if fit_on is None else "held out"
    about = {"method": method, "mode": mode, "n": rows.n, "failed": rows.failed}
    about |= {"fitted": source.n, "left_out": fit_on.n - source.n if fit_on else 0}
    undefined = None if rows.n else f"{_NO_ROWS} to evaluate on"
    if source.n < FEWEST_FIT_ROWS or source.resamples.groups < FEWEST_FIT_GROUPS:
        least = f"at least {FEWEST_FIT_ROWS} in {FEWEST_FIT_GROUPS} are needed"
        undefined = f"{source.n} judged rows in {source.resamples.groups} groups to fit on; {least}"
    return source, about, undefined


class _Cells(NamedTuple):
    """Rows that share people's score, the judge's, and a fold: of each cell these three and how many `times` it occurs,
    shape (k,), and the `cell` of each row, shape (n,)."""

    human: Floats
    judge: Floats
    fold: Codes
    times: Indices
    cell: Codes

    @property
    def scores(self) -> tuple[Floats, Floats, Indices]:
        return self.human, self.judge, self.times

    def of(self, which: NDArray[np.bool_]) -> tuple[Floats, Floats, Indices]:
        """The `scores` of some cells."""
        return self.human[which], self.judge[which], self.times[which]


def _parted(rows: JudgedRows, source: JudgedRows, folds: int) -> tuple[_Cells, _Cells]:
    """The cells of the rows to fit on, in so many folds, and of the rows to evaluate: one and the same where these are
    the same rows."""

    def cells(of: JudgedRows, folds: int) -> _Cells:
        fold = _folds(of, folds) if folds else np.zeros(of.n, dtype=np.intp)
        first, cell = distinct(of.human, of.judge, fold)
        return _Cells(of.human[first], of.judge[first], fold[first], np.bincount(cell), cell)

    seen = cells(source, folds)
    return seen, seen if source is rows else cells(rows, 0)


def _folds(rows: JudgedRows, folds: int) -> Codes:
    """The fold of each row, whole groups together, the largest first, each into the fold that has the fewest rows."""
    member, size = rows.resamples.member, np.bincount(rows.resamples.member, minlength=rows.resamples.groups)
    fold, fewest = np.empty(len(size), dtype=np.uint8), [(0, number) for number in range(folds)]
    for group in np.argsort(size, kind="stable")[::-1].tolist():
        filled, fold[group] = fewest[0]
        heapq.heapreplace(fewest, (filled + int(size[group]), int(fold[group])))
    return fold[member].astype(np.intp)


_Third = tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]


def _thirds(seen: _Cells, tested: _Cells, held_out: bool) -> list[_Third]:
    """Cells of `seen` for the map and for the intervals, and cells of `tested` to measure on: all groups apart."""
    if held_out:
        return [(seen.fold == 0, seen.fold == 1, np.ones(len(tested.fold), dtype=bool))]
    thirds = []
    for number in range(FOLDS):
        intervals_on = seen.fold == (number + 1) % FOLDS
        thirds.append((~intervals_on & (seen.fold != number), intervals_on, seen.fold == number))
    return thirds


def _half_width(to_human: Map, human: Floats, judge: Floats, times: Indices) -> float:
    """Of n absolute residuals the one that n + 1 times the level, rounded up, are no greater than."""
    residual = np.abs(human - to_human(judge))
    order = np.argsort(residual)
    wanted = np.ceil(round(CONFORMAL_LEVEL * (int(times.sum()) + 1), 9))
    return float(residual[order][np.searchsorted(np.cumsum(times[order]), wanted)])


def _errors(rows: JudgedRows, cells: _Cells, recalibrated: Floats) -> tuple[list[Errors], dict[str, Change]]:
    """Before and after, and what changes."""
    draws = rows.resamples
    first, place = distinct(cells.human, cells.judge, recalibrated)
    columns = [np.ones(len(first))]
    for scores in (cells.judge, recalibrated):
        error = (scores - cells.human)[first]
        columns += [np.abs(error), error, error**2]
    n, *sums = draws.sums(place[cells.cell], np.stack(columns)).T
    mae, mean, square, new_mae, new_mean, new_square = (total / n for total in sums)
    rmse, new_rmse = np.sqrt(square), np.sqrt(new_square)
    moved = {"mae": new_mae - mae, "rmse": new_rmse - rmse, "mean_error": np.abs(new_mean) - np.abs(mean)}
    return (
        [
            Errors(mae=float(mae[0]), mean_error=float(mean[0]), rmse=float(rmse[0])),
            Errors(mae=float(new_mae[0]), mean_error=float(new_mean[0]), rmse=float(new_rmse[0])),
        ],
        {
            name: Change(value=float(values[0]), interval=draws.interval(values[1:]), p=draws.p_value(values[1:]))
            for name, values in moved.items()
        },
    )


def _recalibration_reading(method: Method, before: Errors, after: Errors, change: Change) -> str:
    moves = (
        f"mean absolute error {before.mae:.2f} → {after.mae:.2f} points, "
        f"root mean square {before.rmse:.2f} → {after.rmse:.2f}, "
        f"mean error {before.mean_error:+z.2f} → {after.mean_error:+z.2f}"
    ).replace("-", "−")
    if change.interval is None:
        return f"Recalibrated ({method}): {moves}; this may be chance, with so few groups."
    low, high = change.interval
    if low <= 0 <= high:
        return f"No sign that recalibration ({method}) brings single scores closer to people's: {moves}."
    if change.value < 0:
        return f"Recalibration ({method}) brings single scores closer to people's: {moves}."
    return f"Recalibration ({method}) takes single scores away from people's: {moves}."


def _conformal_reading(half_width: float, coverage: float, interval: Interval | None, n: int) -> str:
    promise = f"For a single answer, people's score should lie within ±{half_width:.1f} of the recalibrated score"
    times = f"about {10 * CONFORMAL_LEVEL:.0f} times out of 10"
    measured = f"on {n} answers that took no part it did in {coverage:.1%}"
    if interval is None:
        return f"{promise} {times} ({measured})."
    low, high = interval
    measured += f", {low:.1%} to {high:.1%}"
    if high < CONFORMAL_LEVEL:
        return f"{promise} less often than {times} ({measured}): do not rely on it."
    return f"{promise} {times} ({measured})."
