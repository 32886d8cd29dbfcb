"""Prediction intervals: for each answer, a range that holds the human score 9 times out of 10, and who should rate it.

Ordinal prediction sets (Lu, Angelopoulos and Pomerantz 2022, "Improving Trustworthiness of AI Disease Severity Rating
in Medical Imaging with Ordinal Conformal Prediction Sets", §2). A set starts at the most probable rating and grows to
the more probable neighbour, up to a probability mass that split conformal prediction finds per task. Probabilities are
the judge's own. If records lack them, they are the frequencies of human ratings of answers with the same judge score.
"""

from collections.abc import Container
from typing import Any

import numpy as np
from msgspec import Struct, to_builtins
from numpy.typing import NDArray

from critic.records import RATINGS
from critic.stats.arrays import Floats, ratio
from critic.stats.estimate import Bootstrap, Estimate
from eval_agreement.measures.calibration import cross_fit, fit_map
from eval_agreement.metrics import half_up, mean_estimate
from eval_agreement.sample import FEWEST_FIT_GROUPS, FEWEST_ROWS, FOLDS, NARROW, AuditRequest, RatedSample, folds
from eval_agreement.sentences import say

CONFORMAL_LEVEL = 0.9
"""Share of answers whose human score must lie in the prediction interval."""

SAME_RATING = 0.5
"""Error, in points, up to which a score is rounded to the right rating. A judge with so small a mean error may be left
rows that are no better than others."""

_SMOOTHING = 1e-3
"""Probability mass spread evenly over all ratings, so that every rating has some when a set grows."""


class TaskWidths(Struct, frozen=True, kw_only=True):
    """Prediction intervals of a task's `n` answers that have a judge's and a human score.

    - coverage: share (0..1) of intervals that contain the human score. narrow: share at most NARROW wide.
    - width: median width in points.
    - borrowed: True if the task has too few labels for intervals of its own, and takes those of all tasks.
    """

    task: str
    n: int
    coverage: Estimate
    width: float
    narrow: Estimate
    borrowed: bool = False


class Widths(Struct, frozen=True, kw_only=True):
    """Prediction intervals at CONFORMAL_LEVEL, of all answers and by task.

    - own: True if they are based on the judge's own probabilities.
    - left: share (0..1) of the answers that are left to the judge. None is, unless its error is shown to be lower than
      that of people's median, and lower on these answers than on as many chosen at random.
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
    """Return the finding on a sample's intervals, and for each row its low and high end, score, and 1 if it is left.

    The second has shape (4, n). The score is recalibrated if that brings scores closer to people's. A row is left to
    the judge (1) if this score lies inside an interval at most NARROW wide, to the nearest rating. Both are None if
    there are too few groups or rows. An answer's interval and map are derived from answers to other questions.
    """
    judged, labelled = ~np.isnan(sample.scores), ~np.isnan(sample.human)
    known, group = judged & labelled, sample.groups
    fold = folds(group[known])
    if len(np.unique(group[known])) < FEWEST_FIT_GROUPS or np.bincount(fold, minlength=FOLDS).min() < FEWEST_ROWS:
        return None, None
    own = _distributions(sample, judged)
    task = np.array(sample.parts.get("task") or [None] * len(judged), dtype=object)
    low, high = np.full((2, len(judged)), np.nan)
    borrowed = set[str | None]()
    part = np.full(len(judged), -1)
    part[known] = fold
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


def _usable_scores(sample: RatedSample, known: NDArray[np.bool_]) -> tuple[Floats, bool]:
    """Return the judge's scores (n,), recalibrated if that is shown to bring them closer to people's; and if it is.

    `known`: mask of the rows with a judge's and a human score. Their maps are fitted on other folds.
    """
    human, judge, groups = sample.human[known], sample.scores[known], sample.groups[known]
    mapped = cross_fit(human, judge, groups)
    gain = mean_estimate(np.abs(judge - human) - np.abs(mapped - human), groups, null=0.0)
    if gain.side <= 0:
        return sample.scores, False
    scores = fit_map(human, judge)(sample.scores)
    scores[known] = mapped
    return scores, True


def _is_worth_leaving(sample: RatedSample, known: NDArray[np.bool_], *, score: Floats, left: NDArray[np.bool_]) -> bool:
    """Return True if leaving rows to the judge is shown to be better than leaving as many chosen at random.

    `score`: the judge's usable scores, (n,). `left`: mask of the rows to leave. In any case the judge must be shown to
    err less than people's median; that is enough if every row is left, or if the judge hardly errs (SAME_RATING).
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


def interval_values(intervals: tuple[Widths | None, Floats | None]) -> dict[str, Any]:
    """Return the finding on intervals as JSON values, without the ends, which go to rows.csv."""
    widths, _ = intervals
    return {"widths": to_builtins(widths)}


def _distributions(sample: RatedSample, judged: NDArray[np.bool_]) -> Floats | None:
    """Return the judge's probabilities of the ratings, (n, 10), or None if any judged row lacks them."""
    rows = [judgment.verdict.distribution if judgment else None for judgment in sample.judgments]
    own = [row for row, is_judged in zip(rows, judged, strict=False) if is_judged and len(row or ()) == len(RATINGS)]
    if not own or len(own) < judged.sum():
        return None
    probabilities = np.ones((len(judged), len(RATINGS)))
    probabilities[judged] = own
    return probabilities


def _by_score(sample: RatedSample, fit_on: NDArray[np.bool_]) -> Floats:
    """Return the frequencies of human ratings among answers with the same judge score (rounded) as each row, (n, 10).

    `fit_on`: mask of the rows to count.
    """
    score = np.nan_to_num(half_up(sample.scores), nan=1).astype(np.intp) - 1
    counts = np.zeros((len(RATINGS), len(RATINGS)))
    np.add.at(counts, (score[fit_on], half_up(sample.human[fit_on]).astype(np.intp) - 1), 1)
    # One more answer with the overall frequencies, so that a judge score never seen has some.
    counts += (counts.sum(axis=0) + 1) / counts.sum()
    return np.asarray((counts / counts.sum(axis=1, keepdims=True))[score])


def _nested_sets(probabilities: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats]:
    """Return ten nested sets of ratings for each row: lowest rating, highest rating and probability mass, (n, 10) each.

    >>> low, high, mass = _nested_sets(np.array([[0, 0, 0.1, 0.6, 0.3, 0, 0, 0, 0, 0]]))
    >>> low[0, :3].tolist(), high[0, :3].tolist(), mass[0, :3].round(2).tolist()
    ([4, 4, 3], [4, 5, 5], [0.6, 0.9, 1.0])
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
    probabilities: Floats, human: Floats, task: NDArray[np.object_], made_on: NDArray[np.bool_], at: NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """Return the ends of the prediction intervals of the rows in the mask `at`.

    `made_on`: mask of the rows whose human scores determine the probability mass of a set, by task.
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

    >>> _quantile(np.arange(1.0, 20.0)), _quantile(np.arange(1.0, 5.0))
    (18.0, inf)
    """
    # Rounded first: 0.9 * 20 must not become 19 by a rounding error.
    index = int(np.ceil(round(CONFORMAL_LEVEL * (len(needed) + 1), 9))) - 1
    return float(np.sort(needed)[index]) if index < len(needed) else np.inf


def _summarise(
    sample: RatedSample, known: NDArray[np.bool_], ends: Floats, borrowed: Container[str | None], **facts: bool
) -> Widths:
    """Build the finding from the `ends` (low, high, score, left) of `measure_intervals`, (4, n).

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
            held = mean_estimate(covered[used].astype(np.float64), group, share=True)
            kept = mean_estimate(narrow[used].astype(np.float64), group, share=True)
            median, pooled = float(np.median(width[used])), task in borrowed
            tasks.append(TaskWidths(task=task, n=held.n, coverage=held, width=median, narrow=kept, borrowed=pooled))
    overall = tasks[0]
    share = float(left[known].mean())
    routed = float(error[known & left].sum() / known.sum())
    by_chance = float(error[known].mean() * share)
    at_least, at_most = overall.coverage.interval or (0.0, 1.0)
    reading = say("intervals", all=overall, low=at_least, high=at_most, times=10 * CONFORMAL_LEVEL)
    # The coverage is shown to miss the level, for instance because questions differ much.
    if at_most < CONFORMAL_LEVEL:
        reading += say("intervals_broken")
    if names := [task.task for task in tasks if task.borrowed]:
        reading += say("intervals_borrowed", tasks=", ".join(names), fewest=FEWEST_ROWS)
    values = {"share": share, "routed": routed, "by_chance": by_chance, "narrow": NARROW}
    if share:
        scores = "recalibrated scores" if facts["recalibrated"] else "scores"
        reading += say("narrow", error=routed / share, scores=scores, **values)
    else:
        reading += say("narrow_no_better" if narrow[known].any() else "none_narrow", **values)
    return Widths(tasks=tasks, left=share, routed_mae=routed, random_mae=by_chance, reading=reading, **facts)
