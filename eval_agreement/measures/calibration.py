"""Calibration of a judge: the mean human score at each judge score, and an isotonic map, evaluated on other groups.

Prediction intervals give for each answer a range that holds the human score 9 times out of 10, and decide whether the
judge or people should rate the answer. They are ordinal prediction sets (Lu, Angelopoulos and Pomerantz 2022,
"Improving Trustworthiness of AI Disease Severity Rating in Medical Imaging with Ordinal Conformal Prediction Sets",
§2). A set starts at the most probable rating and adds the more probable neighbour, up to a probability mass that split
conformal prediction finds per task.
Probabilities are the judge's own. If records lack them, they are the frequencies of human ratings of answers with the
same judge score.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
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
from critic.stats.estimate import Bootstrap, Estimate
from eval_agreement.measures.baselines import trivial
from eval_agreement.metrics import half_up, mean_estimate, measured
from eval_agreement.sample import NARROW, AuditRequest, Indices, Mask, RatedSample
from eval_agreement.sentences import say

FOLDS, FEWEST_FIT_GROUPS, FEWEST_ROWS = 5, 10, 20
"""Number of folds for cross-fitting; fewest groups to fit on; fewest rows in a fold."""

MAPPED_PARTS = ("lang", "task")
"""Properties whose values may have maps of their own. Not `answerer`: a new model has no labels to fit a map on."""

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

    `before`, `after`: errors without and with a map fitted on other groups. `change`: mean absolute error with the map
    minus that without it, in points. All three are None if there are too few rows; `undefined` then says why.
    `readings`: the result as sentences.
    """

    n: int
    failed: int
    bins: list[Bin]
    before: Errors | None = None
    after: Errors | None = None
    change: Estimate | None = None
    undefined: str | None = None
    readings: list[str] = field(default_factory=list)


def calibrate(sample: RatedSample, _: AuditRequest) -> Calibration:
    """Measure the mean human score at each judge score, and how an isotonic map changes the judge's errors.

    Each of FOLDS folds of whole groups is evaluated with the map fitted on the other folds. The map minimises squared
    error, so the absolute error can rise.
    """
    rows = sample.labelled.judged
    human, judge, group = rows.human, rows.scores, rows.groups
    calibration = Calibration(n=len(human), failed=len(sample.labelled.ids) - len(human), bins=[*_bins(rows)])
    if undefined := _too_few(group):
        return replace(calibration, undefined=undefined, readings=[f"Not calibrated: {undefined}."])
    mapped = cross_fit(human, judge, group)
    before, after = _errors(judge - human), _errors(mapped - human)
    change = mean_estimate(np.abs(mapped - human) - np.abs(judge - human), group, null=0.0)
    readings = [say("map", change=change, before=before, after=after).replace("-", "−")]
    return replace(calibration, before=before, after=after, change=change, readings=readings)


class Recalibration(Struct, frozen=True, kw_only=True):
    """How close a judge's scores come to people's after "recalibration": a map to human scores, fitted on other folds.

    - error: mean absolute error after the map, in points.
    - explained: share of the variance of human scores that the mapped scores explain, at most 1.
    - helps: squared error before the map minus squared error after it.
    - over, over_judges: squared error of each trivial judge, or of each other judge, recalibrated in the same way,
      minus the squared error of this judge.
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
    """Fit the map of the judge under audit on all rows of `sample`, which holds only rows that it judged.

    `by`: the property whose values get maps of their own, or None. The agreement that goes with the map is measured
    with maps fitted on other folds.
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

    `files`: the judges' files of judgments, by judge name. With `use_folds`, the raw scores of recalibrated judges are
    mapped again, each fold by a map fitted on the other folds. Returns the sample, or a new one if scores were mapped.
    Raises UsageError if a map was fitted on labelled answers, or if it is unknown on which answers it was fitted.
    """
    labelled = ~np.isnan(sample.human)
    # A map is one of overall scores, not of single criteria.
    for name, path in files.items() if sample.criterion is None else ():
        by_id = {judgment.id: judgment for _, judgment in jsonl.read(path, Judgment)}
        rows = [by_id.get(key) for key in sample.ids]
        facts = jsonl.facts(path)
        # A reward model brings a map of its own along, and no scores without it.
        own = facts.get("calibrated_on")
        if not (own or any(row and row.setup.recalibrated for row in rows)):
            continue
        applied = facts.get("recalibration")
        keys = {*(own or ()), *(applied["keys"] if applied else ())}
        seen = labelled & [row is not None and row_key(row) in keys for row in rows]
        counts = {"seen": seen.sum(), "labelled": labelled.sum(), "sidecar": jsonl.sidecar(path).name}
        what = say("map_seen", unknown=not (applied or own), **counts)
        if use_folds and not own:
            sample = _map_by_folds(sample, name, rows, applied["map"].get("by") if applied else None)
            sample.notes.append(f"{name}: {what}; its scores are by maps fitted on other folds (--folds)")
        elif seen.any() or not (applied or own):
            raise UsageError(say("map_on_others", path=path, what=what, own=own))
    return sample


def _map_by_folds(sample: RatedSample, name: str, rows: Sequence[Judgment | None], by: str | None) -> RatedSample:
    """Return the sample with the raw scores of judge `name` on labelled answers mapped to human scores.

    Each fold is mapped by a map fitted on the other folds. `rows`: the judgment of each answer, or None.
    `by`: property whose values have maps of their own, or None.
    Raises UsageError if there are too few questions to fit maps on.
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


def _bins(rows: RatedSample) -> Iterator[Bin]:
    """Yield one bin per rounded judge score, ascending."""
    rounded = half_up(rows.scores)
    for score in np.unique(rounded):
        inside = rounded == score
        groups = len(np.unique(rows.groups[inside]))
        human = mean_estimate(rows.human[inside], rows.groups[inside])
        # The mean is shown all the same: without an interval it is read with care.
        if groups < FEWEST_BIN_GROUPS:
            why = f"{groups} groups; an interval needs at least {FEWEST_BIN_GROUPS}"
            human = replace(human, interval=None, undefined=why)
        yield Bin(score=int(score), groups=groups, judge=float(rows.scores[inside].mean()), human=human)


def _too_few(group: Indices) -> str | None:
    """Return why there are too few rows or groups to fit a map and measure it, or None if there are enough.

    `group`: number of each row's group, (n,).
    """
    groups, fewest = len(np.unique(group)), int(np.bincount(folds(group), minlength=FOLDS).min())
    if not groups:
        return "no judged rows to evaluate on"
    if groups < FEWEST_FIT_GROUPS:
        return f"{groups} groups to fit on; at least {FEWEST_FIT_GROUPS} are needed"
    few = f"only {fewest} rows in a fifth of the groups; at least {FEWEST_ROWS} are needed"
    return few if fewest < FEWEST_ROWS else None


def _errors(error: Floats) -> Errors:
    """Summarise the errors `error` (n,), in points."""
    return Errors(
        mae=float(np.abs(error).mean()), mean_error=float(error.mean()), rmse=float(np.sqrt((error**2).mean()))
    )


def fit_ordinal(human: Floats, scores: Floats) -> list[float]:
    """Fit an adjacent-category model that predicts the probabilities of the ratings 1..10 from a reward model's scores.

    Returns 11 numbers: the slope, at least 0, and an offset for each rating (`critic.judging.grader.spread_score`). The
    offsets have a weak ridge penalty, so that ratings that nobody gave stay possible. Arrays have shape (n,). `human`
    is on 1..10; a score between two ratings counts for both in proportion.

    >>> slope, *offsets = fit_ordinal(np.array([2.0, 3.0, 8.0, 9.5]), np.array([-1.0, 0.0, 4.0, 5.0]))
    >>> slope > 0, len(offsets)
    (True, 10)
    """
    ratings, spread = np.array(RATINGS), float(scores.std()) or 1.0
    shares = np.maximum(0.0, 1.0 - np.abs(human[:, None] - ratings))
    centred = (scores - scores.mean())[:, None] / spread

    def loss(parameters: Floats) -> float:
        logits = parameters[0] * centred * ratings + parameters[1:]
        likelihood = shares * (logits - scipy.special.logsumexp(logits, axis=1, keepdims=True))
        return float((parameters[1:] ** 2).sum() / 20 - likelihood.sum())

    bounds = [(0.0, None), *[(None, None)] * len(ratings)]
    slope, *offsets = scipy.optimize.minimize(loss, np.zeros(1 + len(ratings)), bounds=bounds).x.tolist()
    return [slope / spread, *(np.array(offsets) - slope * ratings * scores.mean() / spread).tolist()]


def fit_map(human: Floats, judge: Floats) -> ScoreMap:
    """Fit an isotonic map from judge scores to human scores, (n,) each.

    The map is linear between the judge scores in the data and constant outside them.

    >>> fit_map(human=np.array([2.0, 6.0, 4.0]), judge=np.array([1.0, 3.0, 5.0]))(np.array([2.0, 9.0])).tolist()
    [3.5, 5.0]
    >>> steps = fit_map(human=np.array([1.0, 5, 7, 3, 8, 10]), judge=np.array([2.0, 4, 4, 6, 8, 9]))
    >>> steps(np.array([1.0, 2, 4, 5, 6, 8, 10])).tolist()  # adjacent violators are pooled
    [1.0, 1.0, 5.0, 5.0, 5.0, 8.0, 10.0]
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


def cross_fit(human: Floats, judge: Floats, group: Indices) -> Floats:
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


def folds(group: Indices) -> Indices:
    """Return the fold (0..FOLDS-1) of each row, (n,), with all rows of a group in one fold.

    Groups are placed from the largest to the smallest, each into the fold with the fewest rows so far.

    >>> folds(np.array([0, 0, 0, 1, 1, 2, 3, 4, 5])).tolist()
    [0, 0, 0, 1, 1, 2, 4, 3, 2]
    """
    _, member, size = np.unique(group, return_inverse=True, return_counts=True)
    fold = np.empty(len(size), dtype=np.intp)
    rows_in_fold = np.zeros(FOLDS, dtype=np.intp)
    # The sort is stable and read backwards: among groups of one size the last comes first, in every run alike.
    for number in np.argsort(size, kind="stable")[::-1]:
        fold[number] = np.argmin(rows_in_fold)
        rows_in_fold[fold[number]] += size[number]
    return np.asarray(fold[member])


def choose_fit(group: Indices) -> Callable[[Floats, Floats], ScoreMap]:
    """Return the function that fits a map: `fit_map`, or `fit_line` if a fold has few rows.

    `group`: number of each row's group, (n,).
    """
    # With few rows an isotonic map follows single ones.
    return fit_map if np.bincount(folds(group), minlength=FOLDS).min() >= FEWEST_ROWS else fit_line


CONFORMAL_LEVEL = 0.9
"""Share of answers whose human score must lie in the prediction interval."""

SAME_RATING = 0.5
"""Largest error, in points, at which rounding a score still gives the right rating. If the judge's mean error on the
rows to leave to it is not larger, its error there need not be shown to be lower than on other rows."""

_SMOOTHING = 1e-3
"""Probability mass spread evenly over all ratings, so that every rating has some when a set grows."""


class TaskWidths(Struct, frozen=True, kw_only=True):
    """Prediction intervals of a task's `n` answers that have a judge's and a human score.

    - coverage: share (0..1) of intervals that contain the human score. narrow: share at most NARROW wide.
    - width: median width in points.
    - borrowed: True if the task has too few labels to calibrate its intervals, which are then calibrated on all tasks.
    """

    task: str
    n: int
    coverage: Estimate
    width: float
    narrow: Estimate
    borrowed: bool = False


class Widths(Struct, frozen=True, kw_only=True):
    """Prediction intervals at CONFORMAL_LEVEL, of all answers and by task.

    - own: True if intervals are based on the judge's own probabilities.
    - left: share (0..1) of the answers that are left to the judge; 0 unless `_is_worth_leaving`.
    - routed_mae: mean absolute error if the judge rates the answers left to it, and people the others.
    - random_mae: the same if the judge rates as many answers, chosen at random.
    - recalibrated: True if the scores of rows.csv are recalibrated, because that brings them closer to people's.
    """

    own: bool
    tasks: list[TaskWidths]
    left: float
    recalibrated: bool
    routed_mae: float
    random_mae: float
    reading: str


def measure_intervals(sample: RatedSample, _: AuditRequest) -> tuple[Widths, Floats] | tuple[None, None]:
    """Compute a prediction interval for each judged answer, and decide which answers are left to the judge.

    Returns the finding and an array (4, n): low end, high end, score, and 1 if the row is left to the judge, else 0.
    Both are None if there are too few groups or rows. The score is recalibrated if that brings scores closer to
    people's. A row is left to the judge if its interval is at most NARROW wide and its score, rounded to a rating, lies
    inside, provided that leaving rows is worth it (`_is_worth_leaving`). An answer's interval and map are derived from
    answers to other questions.
    """
    judged, labelled = ~np.isnan(sample.scores), ~np.isnan(sample.human)
    known, group = judged & labelled, sample.groups
    if _too_few(group[known]):
        return None, None
    own = _distributions(sample, judged)
    task = np.array(sample.parts.get("task") or [None] * len(judged), dtype=object)
    low, high = np.full((2, len(judged)), np.nan)
    borrowed = set[str | None]()
    part = np.full(len(judged), -1)
    part[known] = folds(group[known])
    # Fold -1 holds the rows without a human score: their intervals are made from all folds.
    for number in range(-1, FOLDS):
        at, others = judged & (part == number), known & (part != number)
        # Human frequencies take half of the folds; the mass must be found on rows that these did not see.
        fit_on = np.zeros_like(known) if own is not None else others & (part % 2 == 0)
        probabilities = own if own is not None else _by_score(sample, fit_on)
        made_on = others & ~fit_on
        low[at], high[at] = _intervals(probabilities, sample.human, task, made_on, at)
        borrowed |= {name for name in set(task[at]) if (made_on & (task == name)).sum() < FEWEST_ROWS}
    score, recalibrated = _usable_scores(sample, known)
    # Intervals end at ratings, so a score between two ratings is moved to the nearer one.
    nearest = np.clip(score, low, high)
    inside = (high - low <= NARROW) & (np.abs(score - nearest) <= SAME_RATING)
    score = np.where(inside, nearest, score)
    left = inside & _is_worth_leaving(sample, known, score=score, left=inside)
    ends = np.stack([low, high, score, left])
    return _summarise(sample, known, ends, borrowed, own=own is not None, recalibrated=recalibrated), ends


def _usable_scores(sample: RatedSample, known: Mask) -> tuple[Floats, bool]:
    """Return the judge's scores (n,), and True if they are recalibrated.

    They are recalibrated if that is shown to bring them closer to people's. `known`: mask of the rows with a judge's
    and a human score; these rows are mapped by maps fitted on other folds.
    """
    human, judge, groups = sample.human[known], sample.scores[known], sample.groups[known]
    mapped = cross_fit(human, judge, groups)
    gain = mean_estimate(np.abs(judge - human) - np.abs(mapped - human), groups, null=0.0)
    if gain.side <= 0:
        return sample.scores, False
    scores = fit_map(human, judge)(sample.scores)
    scores[known] = mapped
    return scores, True


def _is_worth_leaving(sample: RatedSample, known: Mask, *, score: Floats, left: Mask) -> bool:
    """Return True if the rows `left` may be left to the judge. Two conditions must hold.

    1. On all rows, the judge is shown to err less than a constant judge that gives people's median.
    2. On the rows left, the judge is shown to err less than on as many chosen at random. This is not needed if every
       row is left, or if the judge hardly errs on them (SAME_RATING) and not more than on average.

    `known`: mask of the rows with a judge's and a human score. `score`: the judge's scores (`_usable_scores`), (n,).
    `left`: mask of the rows to leave, (n,).
    """
    human, groups, left = sample.human[known], sample.groups[known], left[known]
    error = np.abs(score[known] - human)
    over_constant = mean_estimate(np.abs(np.median(human) - human) - error, groups, null=0.0)
    if over_constant.side <= 0 or left.all():
        return over_constant.side > 0
    # Mean error of the rows left less that of all rows.
    draws = Bootstrap(groups)
    columns = np.array([np.ones(len(human)), left, error, error * left])
    n, count, total, routed = draws.resample_sums(np.arange(len(human)), columns).T
    gain = draws.estimate(total / n - ratio(routed, count), len(human), null=0.0)
    same = (gain.value or 0.0) >= 0 and error[left].sum() <= SAME_RATING * left.sum()
    return bool(left.any()) and (gain.side > 0 or bool(same))


def _distributions(sample: RatedSample, judged: Mask) -> Floats | None:
    """Return the judge's probabilities of the ratings, (n, 10), or None if any judged row lacks them."""
    rows = [judgment.verdict.distribution if judgment else None for judgment in sample.judgments]
    own = [row for row, is_judged in zip(rows, judged, strict=False) if is_judged and len(row or ()) == len(RATINGS)]
    if not own or len(own) < judged.sum():
        return None
    probabilities = np.ones((len(judged), len(RATINGS)))
    probabilities[judged] = own
    return probabilities


def _by_score(sample: RatedSample, fit_on: Mask) -> Floats:
    """Return for each row the frequencies of human ratings among answers with the same rounded judge score, (n, 10).

    `fit_on`: mask of the rows to count.
    """
    score = np.nan_to_num(half_up(sample.scores), nan=1).astype(np.intp) - 1
    counts = np.zeros((len(RATINGS), len(RATINGS)))
    np.add.at(counts, (score[fit_on], half_up(sample.human[fit_on]).astype(np.intp) - 1), 1)
    # One more answer with the overall frequencies, so that a judge score never seen has some.
    counts += (counts.sum(axis=0) + 1) / counts.sum()
    return np.asarray((counts / counts.sum(axis=1, keepdims=True))[score])


def _nested_sets(probabilities: Floats) -> tuple[Indices, Indices, Floats]:
    """Return ten nested sets of ratings for each row: lowest rating, highest rating and probability mass, (n, 10) each.

    `probabilities`: of the ratings 1..10, (n, 10). The first set is the most probable rating; each next set adds the
    more probable of the two neighbours.

    >>> low, high, mass = _nested_sets(np.array([[0, 0, 0.1, 0.5, 0.3, 0.1, 0, 0, 0, 0]]))
    >>> low[0].tolist(), high[0, :4].tolist(), high[0, -1].tolist()
    ([4, 4, 4, 3, 3, 3, 3, 3, 2, 1], [4, 5, 6, 6], 10)
    >>> mass[0, :4].round(2).tolist(), bool((np.diff(mass[0]) > 0).all()), round(float(mass[0, -1]), 9)
    ([0.5, 0.8, 0.9, 1.0], True, 1.0)
    """
    smooth = (1 - _SMOOTHING) * probabilities / probabilities.sum(axis=1, keepdims=True) + _SMOOTHING / len(RATINGS)
    # The padding of -1 is never the more probable neighbour, so that sets stay within the ratings.
    padded = np.pad(smooth, ((0, 0), (1, 1)), constant_values=-1.0)
    row = np.arange(len(probabilities))
    low = high = padded.argmax(axis=1)
    mass = padded[row, low]
    sets = [(low, high, mass)]
    for _ in RATINGS[1:]:
        below, above = padded[row, low - 1], padded[row, high + 1]
        low, high, mass = low - (below > above), high + (below <= above), mass + np.maximum(below, above)
        sets.append((low, high, mass))
    lows, highs, masses = zip(*sets, strict=True)
    return np.stack(lows, axis=1), np.stack(highs, axis=1), np.stack(masses, axis=1)


def _intervals(
    probabilities: Floats, human: Floats, task: NDArray[np.object_], made_on: Mask, at: Mask
) -> tuple[Floats, Floats]:
    """Return the low and the high ends of the prediction intervals of the rows in the mask `at`, on 1..10.

    An interval is the largest of a row's nested sets whose probability mass is at most the mass found for its task (or
    the first set). That mass is chosen on the rows in the mask `made_on`, so that CONFORMAL_LEVEL of the sets hold the
    human score. A task with few rows takes the mass of all tasks.
    `probabilities`: (n, 10). `human`, `task`: (n,).
    """
    low, high, mass = _nested_sets(probabilities)
    inside = (low <= human[:, None]) & (human[:, None] <= high)
    needed = mass[np.arange(len(mass)), inside.argmax(axis=1)]
    wanted = np.full(len(mass), _quantile(needed[made_on]))
    for name in set(task[at]):
        same_task = made_on & (task == name)
        # A task with few rows takes the mass of all tasks.
        if same_task.sum() >= FEWEST_ROWS:
            wanted[task == name] = _quantile(needed[same_task])
    size = np.maximum((mass <= wanted[:, None]).sum(axis=1) - 1, 0)
    row = np.arange(len(mass))
    return low[row, size][at].astype(np.float64), high[row, size][at].astype(np.float64)


def _quantile(needed: Floats) -> float:
    """Return the conformal quantile of n values: the k-th smallest, k = ceil(CONFORMAL_LEVEL (n + 1)); inf if k > n.

    >>> _quantile(np.arange(1.0, 20.0)), _quantile(np.arange(1.0, 10.0)), _quantile(np.arange(1.0, 9.0))
    (18.0, 9.0, inf)
    """
    return float(np.quantile(np.r_[needed, np.inf], CONFORMAL_LEVEL, method="inverted_cdf"))


def _summarise(
    sample: RatedSample, known: Mask, ends: Floats, borrowed: Container[str | None], **facts: bool
) -> Widths:
    """Build the finding from the `ends` (low, high, score, left) that `measure_intervals` returns, (4, n).

    `known`: mask of the rows with a judge's and a human score. `borrowed`: tasks without intervals of their own.
    `facts`: further fields of the finding.
    """
    human, (low, high, score, is_left) = sample.human, ends
    width, error, left = high - low, np.abs(score - human), is_left > 0
    narrow = width <= NARROW
    covered = (low <= human) & (human <= high)
    tasks = list[TaskWidths]()
    rows_of = sample.part_rows("task") if len(sample.part_values("task")) > 1 else ()
    for task, rows in [("all", known), *rows_of]:
        if (used := rows & known).any():
            group = sample.groups[used]
            held = mean_estimate(covered[used], group, share=True)
            kept = mean_estimate(narrow[used], group, share=True)
            median, pooled = float(np.median(width[used])), task in borrowed
            tasks.append(TaskWidths(task=task, n=held.n, coverage=held, width=median, narrow=kept, borrowed=pooled))
    share = float(left[known].mean())
    routed = float(error[known & left].sum() / known.sum())
    by_chance = float(error[known].mean() * share)
    widths = Widths(tasks=tasks, left=share, routed_mae=routed, random_mae=by_chance, reading="", **facts)
    limits = {"level": CONFORMAL_LEVEL, "fewest": FEWEST_ROWS, "narrow": NARROW, "any_narrow": narrow[known].any()}
    # Shown to miss the level, for instance because questions differ much.
    misses = (tasks[0].coverage.interval or (0, 1))[1] < CONFORMAL_LEVEL
    return replace(widths, reading=say("intervals", widths=widths, all=tasks[0], misses=misses, **limits))
