"""Calibration of a judge: the mean human score at each judge score, and an isotonic map, evaluated on other groups."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from msgspec import Struct, field, to_builtins
from msgspec.structs import replace
from numpy.typing import NDArray

from critic import jsonl
from critic.certificate import FittedMap, ScoreMap, part_value, row_key
from critic.errors import UsageError
from critic.records import RATINGS, Judgment
from critic.stats.arrays import Floats, ratio
from critic.stats.estimate import Estimate
from eval_agreement.measures.baselines import trivial
from eval_agreement.metrics import JudgedRows, half_up, mean_estimate, measured
from eval_agreement.sample import FEWEST_FIT_GROUPS, FEWEST_ROWS, FOLDS, AuditRequest, RatedSample, folds
from eval_agreement.sentences import say

MAPPED_PARTS = ("lang", "task")
"""Properties whose values may have maps of their own. A new answerer has no labels, and so can have none."""

FEWEST_BIN_GROUPS = 10
"""Fewest groups for the interval of a bin. With fewer, the bootstrap's interval is too narrow."""


class Bin(Struct, frozen=True, kw_only=True):
    """The answers whose judge score rounds half up to `score`, with their mean `judge` and `human` scores (1..10).

    With fewer than FEWEST_BIN_GROUPS `groups` the human mean has no interval.
    """

    score: int
    groups: int
    judge: float
    human: Estimate


class Errors(Struct, frozen=True, kw_only=True):
    """Mean absolute error, mean error (judge - human) and root mean square error, in points."""

    mae: float
    mean_error: float
    rmse: float


class Calibration(Struct, frozen=True, kw_only=True):
    """Calibration of a judge on `n` judged rows; `failed` rows have no judgment.

    `before`, `after`: errors without and with a map fitted on other groups. `change`: change of the mean absolute
    error. All three are None if there are too few rows; `undefined` then says why.
    """

    n: int
    failed: int
    bins: list[Bin]
    before: Errors | None = None
    after: Errors | None = None
    change: Estimate | None = None
    undefined: str | None = None
    readings: list[str] = field(default_factory=list)


def calibrate(rows: JudgedRows) -> Calibration:
    """Measure the mean human score at each judge score, and how an isotonic map changes the judge's errors.

    Each of FOLDS folds of whole groups is evaluated with the map fitted on the other folds. The map minimises squared
    error, so the absolute error can rise.
    """
    fold = folds(rows.resamples.member)
    calibration = Calibration(n=rows.n, failed=rows.failed, bins=_bins(rows))
    if undefined := _too_few(rows, fold):
        return replace(calibration, undefined=undefined, readings=[f"Not calibrated: {undefined}."])
    human, judge, group = rows.human, rows.judge, rows.resamples.member
    mapped = cross_fit(human, judge, group)
    before, after = _errors(judge - human), _errors(mapped - human)
    change = mean_estimate(np.abs(mapped - human) - np.abs(judge - human), group, null=0.0)
    moves = say("map_moves", before=before, after=after).replace("-", "−")
    readings = [say(("map_same", "map_further", "map_closer")[change.side], moves=moves)]
    return replace(calibration, before=before, after=after, change=change, readings=readings)


class Recalibration(Struct, frozen=True, kw_only=True):
    """What a judge's scores are worth after a map to human scores, fitted on other folds ("recalibrated").

    - error: mean absolute error after the map, in points.
    - explained: share of the variance of human scores that the mapped scores explain, at most 1.
    - helps: squared error before the map minus squared error after it.
    - over, over_judges: squared error of each trivial or other judge, recalibrated alike, minus this judge's.
    - by: property (such as language) with a separate map per value, used if that reduces the error; None for one map.
    - fitted: the map fitted on all rows, for `critic judge --recalibrate`. It is None for judges that are not under
      audit, and for one that was recalibrated already.
    """

    error: float
    explained: float
    helps: Estimate
    over: dict[str, Estimate]
    over_judges: dict[str, Estimate]
    by: str | None = None
    fitted: FittedMap | None = None


def recalibrate(sample: RatedSample, request: AuditRequest) -> dict[str, Recalibration]:
    """Recalibrate every judge of a sample, and return the results by judge name.

    Judges with scores in fewer than FEWEST_FIT_GROUPS groups are left out.
    """
    results = {}
    for name, scores in sample.labelled.judges.items():
        judged = sample.labelled.rows(~np.isnan(scores))
        if len(np.unique(judged.groups)) >= FEWEST_FIT_GROUPS:
            results[name] = _recalibrate(judged, name, request)
            # A map on top of a map would hide the raw scores.
            mapped = any(judgment and judgment.raw_score is not None for judgment in sample.judgments)
            if name == sample.judge and not mapped:
                results[name] = replace(results[name], fitted=_fit_whole(judged, results[name].by))
    return results


def _fit_whole(sample: RatedSample, by: str | None) -> FittedMap:
    """Fit the map of the judge under audit on a sample that holds only rows that it judged.

    `by`: the property whose values get maps of their own, or None. Agreement is measured with maps fitted on other
    folds.
    """
    judgments = [judgment for judgment in sample.judgments if judgment]
    # When it judges, the judge knows a property only as its own records have it.
    if by and [part_value(judgment, by) for judgment in judgments] != sample.parts[by]:
        by = None
    parts = {}
    for value, rows in sample.part_rows(by or ""):
        if len(np.unique(sample.groups[rows])) >= FEWEST_FIT_GROUPS:
            parts[value] = choose_fit(sample.groups[rows])(sample.human[rows], sample.scores[rows])
    mapped = _cross_fit_by_part(sample, sample.scores, by)
    return FittedMap(
        map=replace(choose_fit(sample.groups)(sample.human, sample.scores), by=by or "", parts=parts),
        rows=len(sample.ids),
        groups=len(np.unique(sample.groups)),
        keys=sorted({row_key(judgment) for judgment in judgments}),
        agreement=dict(measured(sample.human, mapped, sample.groups, sample.weight).estimates),
    )


def fitted_values(results: Mapping[str, Recalibration]) -> dict[str, Any]:
    """Return the map of the judge under audit as JSON values, without the hashes of the rows."""
    fitted = next((result.fitted for result in results.values() if result.fitted), None)
    return {"recalibration": fitted and {**to_builtins(fitted), "keys": None}}


def check_unseen(sample: RatedSample, files: Mapping[str, Path], *, use_folds: bool) -> RatedSample:
    """Check that judges were not recalibrated by maps that were fitted on labelled answers of the sample.

    `files`: the judges' files of judgments, by judge name. With `use_folds`, raw scores of recalibrated judges are
    mapped anew, each fold by a map fitted on the others. Returns the sample, which is a new one if scores were mapped.
    Raises UsageError if a map was fitted on labelled answers, or if that is unknown.
    """
    labelled = ~np.isnan(sample.human)
    # A map is one of overall scores, not of single criteria.
    for name, path in files.items() if sample.criterion is None else ():
        by_id = {judgment.id: judgment for _, judgment in jsonl.read(path, Judgment)}
        rows = [by_id.get(key) for key in sample.ids]
        if not any(row and row.setup.recalibrated for row in rows):
            continue
        applied = jsonl.facts(path).get("recalibration")
        keys = set(applied["keys"] if applied else ())
        seen = labelled & [row is not None and row_key(row) in keys for row in rows]
        what = f"its map was fitted on {seen.sum()} of the {labelled.sum()} answers with people's scores"
        if not applied:
            what = f"{jsonl.sidecar(path).name} is gone, which says on which answers its map was fitted"
        if use_folds:
            sample = _map_by_folds(sample, name, rows, applied["map"].get("by") if applied else None)
            sample.notes.append(f"{name}: {what}; its scores are by maps fitted on other folds (--folds)")
        elif seen.any() or not applied:
            raise UsageError(f"{path}: {what}; audit it on others, or with --folds by maps fitted on other folds")
    return sample


def _map_by_folds(sample: RatedSample, name: str, rows: Sequence[Judgment | None], by: str | None) -> RatedSample:
    """Return the sample with the judge's raw scores mapped by folds. `by`: as in ScoreMap, or None.

    `rows`: the judgment of each answer, or None. Raises UsageError if there are too few questions to fit maps on.
    """
    raw = np.array([row.raw_score if row else None for row in rows], dtype=np.float64)
    known = ~np.isnan(sample.human) & ~np.isnan(raw)
    if (groups := len(np.unique(sample.groups[known]))) < FEWEST_FIT_GROUPS:
        raise UsageError(f"--folds: {name} has labels on {groups} questions, and maps take {FEWEST_FIT_GROUPS}")
    scores = sample.judges[name].copy()
    scores[known] = _cross_fit_by_part(sample.rows(known), raw[known], by)
    return replace(sample, judges={**sample.judges, name: scores}, notes=[*sample.notes])


def _recalibrate(sample: RatedSample, name: str, request: AuditRequest) -> Recalibration:
    """Recalibrate the judge `name` on `sample`, which holds only rows that it judged."""
    human, judge = sample.human, sample.judges[name]

    def fit_error(scores: Floats) -> Floats:
        # Missing scores, such as chrF without a reference, get the mean of the others.
        filled = np.where(np.isnan(scores), np.nanmean(scores), scores)
        return cross_fit(human, filled, sample.groups) - human

    def gain(before: Floats, after: Floats) -> Estimate:
        return mean_estimate(before**2 - after**2, sample.groups, null=0.0, weight=sample.weight)

    error, by = fit_error(judge), None
    for part in MAPPED_PARTS:
        own = _cross_fit_by_part(sample, judge, part) - human
        # Properties are tried one after the other, so that a second one must still bring scores closer.
        if gain(error, own).side > 0:
            error, by = own, part
    over_judges = {}
    for other, scores in sample.judges.items():
        if other != name and not np.isnan(scores).all():
            over_judges[other] = gain(fit_error(scores), np.where(np.isnan(scores), np.nan, error))
    baselines = trivial(sample, request.training)
    left, spread = (np.average(each**2, weights=sample.weight) for each in (error, fit_error(np.zeros(len(human)))))
    return Recalibration(
        error=float(np.average(np.abs(error), weights=sample.weight)),
        explained=float(1 - left / spread) if spread else 0.0,
        helps=gain(judge - human, error),
        over={rival: gain(fit_error(scores), error) for rival, (scores, _) in baselines.items()},
        over_judges=over_judges,
        by=by,
    )


def _cross_fit_by_part(sample: RatedSample, judge: Floats, part: str | None) -> Floats:
    """Map a judge's scores (n,) to human scores with a separate map for each value of the property `part`.

    Without a `part` there is one map. Values in fewer than FEWEST_FIT_GROUPS groups use the map of all rows.
    """
    mapped = cross_fit(sample.human, judge, sample.groups)
    for _, rows in sample.part_rows(part or ""):
        if len(np.unique(sample.groups[rows])) >= FEWEST_FIT_GROUPS:
            mapped[rows] = cross_fit(sample.human[rows], judge[rows], sample.groups[rows])
    return mapped


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
    """Return why there are too few rows or groups to fit a map, or None if there are enough."""
    if not rows.n:
        return "no judged rows to evaluate on"
    if rows.resamples.groups < FEWEST_FIT_GROUPS:
        return f"{rows.resamples.groups} groups to fit on; at least {FEWEST_FIT_GROUPS} are needed"
    fewest = int(np.bincount(fold, minlength=FOLDS).min())
    few = f"only {fewest} rows in a fifth of the groups; at least {FEWEST_ROWS} are needed"
    return few if fewest < FEWEST_ROWS else None


def _errors(error: Floats) -> Errors:
    """Summarise the errors `error` (n,), in points."""
    return Errors(
        mae=float(np.abs(error).mean()), mean_error=float(error.mean()), rmse=float(np.sqrt((error**2).mean()))
    )


def fit_map(human: Floats, judge: Floats) -> ScoreMap:
    """Fit an isotonic map from judge scores to human scores, (n,) each.

    It is linear between the judge scores in the data and constant outside them.

    >>> fit_map(human=np.array([2.0, 6.0, 4.0]), judge=np.array([1.0, 3.0, 5.0]))(np.array([2.0, 9.0])).tolist()
    [3.5, 5.0]
    """
    seen, position, times = np.unique(judge, return_inverse=True, return_counts=True)
    mean = np.bincount(position, human) / times
    # Scores seen more than once are one point of their mean, with their number as weight.
    steps = scipy.optimize.isotonic_regression(mean, weights=times).x
    # Within a step the points between its ends add nothing.
    same = np.r_[False, np.diff(steps) == 0]
    ends = ~(same & np.r_[same[1:], False])
    return ScoreMap(judge=seen[ends].tolist(), people=steps[ends].tolist())


def fit_line(human: Floats, judge: Floats) -> ScoreMap:
    """Fit a non-decreasing line from judge scores to human scores, (n,) each, clipped to 1..10.

    If human scores do not rise with the judge's, the line is their mean.

    >>> fit_line(human=np.array([2.0, 4.0]), judge=np.array([1.0, 2.0]))(np.array([3.0])).round(9).tolist()
    [6.0]
    """
    spread = judge - judge.mean()
    slope = max(float(ratio(spread @ human, spread @ spread, empty=0)), 0.0)
    ends = [float(RATINGS[0]), float(RATINGS[-1])]
    return ScoreMap(judge=ends, people=[float(human.mean() + slope * (end - judge.mean())) for end in ends])


def cross_fit(human: Floats, judge: Floats, group: NDArray[np.intp]) -> Floats:
    """Map a judge's scores (n,) to human scores, each fold with a map fitted on the other folds.

    Maps are isotonic, or lines if a fold has few rows. `group`: the group of each row, (n,).
    """
    fold, fit = folds(group), choose_fit(group)
    mapped = np.empty(len(human))
    # A map measured on the rows that it was fitted on would always seem to help.
    for number in range(FOLDS):
        held_out = fold == number
        mapped[held_out] = fit(human[~held_out], judge[~held_out])(judge[held_out])
    return mapped


def choose_fit(group: NDArray[np.intp]) -> Callable[[Floats, Floats], ScoreMap]:
    """Return the function that fits a map on rows of these groups, (n,): isotonic, or a line if they are few."""
    # With few rows an isotonic map follows single ones.
    return fit_map if np.bincount(folds(group), minlength=FOLDS).min() >= FEWEST_ROWS else fit_line
