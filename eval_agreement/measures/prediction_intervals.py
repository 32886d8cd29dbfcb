"""How far people's score of a single answer may lie from the judge's: an interval for each, and who should rate it.

Ordinal prediction sets (Lu, Angelopoulos and Pomerantz 2022, "Improving Trustworthiness of AI Disease Severity Rating
in Medical Imaging with Ordinal Conformal Prediction Sets", §2): from the most probable rating a set grows to the more
probable neighbour up to a mass that split conformal prediction finds on its task. Probabilities are the judge's own or,
where records lack them, how often people gave each rating to answers that it scored alike.
"""

from collections.abc import Iterable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from critic.records import RATINGS
from critic.stats.arrays import Floats
from critic.stats.estimate import Estimate
from eval_agreement.metrics import Indices, half_up, mean_estimate
from eval_agreement.sample import FEWEST_FIT_GROUPS, FEWEST_ROWS, FOLDS, RatedSample, folds
from eval_agreement.sentences import say

CONFORMAL_LEVEL = 0.9
"""Share of answers whose human score is to lie in the interval."""

NARROW = 2.0
"""Points from end to end of an interval that is narrow enough to leave the answer to the judge."""

_SMOOTHING = 1e-3
"""Part of the probability that is the same for all ratings: no set grows by a rating of probability 0."""


class TaskWidths(Struct, frozen=True, kw_only=True):
    """Intervals of `n` judged answers that people scored: the share (0..1) that holds people's score, the median width
    in points, and the share that is NARROW."""

    task: str
    n: int
    coverage: Estimate
    width: float
    narrow: Estimate


class Widths(Struct, frozen=True, kw_only=True):
    """Intervals at CONFORMAL_LEVEL, from the judge's `own` probabilities or people's by its score: of all answers, and
    by task. With people on those that are not NARROW the mean error is `routed_mae`, by chance `random_mae`."""

    own: bool
    tasks: list[TaskWidths]
    routed_mae: float
    random_mae: float
    reading: str


def widths(sample: RatedSample) -> tuple[Widths, Floats] | tuple[None, None]:
    """What intervals of single rows are worth, and their ends, (2, n), made from other questions; None from too few."""
    judged, labelled = ~np.isnan(sample.scores), ~np.isnan(sample.human)
    known, group = judged & labelled, sample.groups
    fold = folds(group[known])
    if len(np.unique(group[known])) < FEWEST_FIT_GROUPS or np.bincount(fold, minlength=FOLDS).min() < FEWEST_ROWS:
        return None, None
    own = _distributions(sample, judged)
    task = np.array(sample.parts.get("task") or [None] * len(judged), dtype=object)
    low, high = np.full((2, len(judged)), np.nan)
    part = np.full(len(judged), -1)
    part[known] = fold
    # Rows of no fold, which people did not score, are measured by all folds.
    for number in range(-1, FOLDS):
        at, others = judged & (part == number), known & (part != number)
        fit_on = np.zeros_like(known) if own is not None else others & (part % 2 == 0)
        chances = own if own is not None else _by_score(sample, fit_on)
        low[at], high[at] = _intervals(chances, sample.human, task, others & ~fit_on, at)
    return _summary(sample, own is not None, known, low, high), np.stack([low, high])


def _distributions(sample: RatedSample, judged: NDArray[np.bool_]) -> Floats | None:
    """The judge's probabilities of the ratings, shape (n, 10); None unless there are those of every judged row."""
    rows = [judgment.verdict.distribution if judgment else None for judgment in sample.judgments]
    own = [row for row, is_judged in zip(rows, judged, strict=False) if is_judged and len(row or ()) == len(RATINGS)]
    if not own or len(own) < judged.sum():
        return None
    chances = np.ones((len(judged), len(RATINGS)))
    chances[judged] = own
    return chances


def _by_score(sample: RatedSample, fit_on: NDArray[np.bool_]) -> Floats:
    """How often people gave each rating to answers with the judge's score, rounded, shape (n, 10)."""
    score = np.nan_to_num(half_up(sample.scores), nan=1).astype(np.intp) - 1
    counts = np.zeros((len(RATINGS), len(RATINGS)))
    np.add.at(counts, (score[fit_on], half_up(sample.human[fit_on]).astype(np.intp) - 1), 1)
    counts += (counts.sum(axis=0) + 1) / counts.sum()  # as of one answer more, which is like any
    return np.asarray((counts / counts.sum(axis=1, keepdims=True))[score])


def _nested(chances: Floats) -> tuple[Indices, Indices, Floats]:
    """The ends and the mass of the ten sets of each row, each (n, 10)."""
    smooth = (1 - _SMOOTHING) * chances / chances.sum(axis=1, keepdims=True) + _SMOOTHING / len(RATINGS)
    padded = np.pad(smooth, ((0, 0), (1, 1)), constant_values=-1.0)
    row = np.arange(len(chances))
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
    chances: Floats, human: Floats, task: NDArray[np.object_], made_on: NDArray[np.bool_], at: NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """The ends of the intervals of the rows `at`, from the masses that people's scores took in those `made_on`."""
    low, high, mass = _nested(chances)
    inside = (low <= human[:, None]) & (human[:, None] <= high)
    needed = mass[np.arange(len(mass)), inside.argmax(axis=1)]
    wanted = np.full(len(mass), _quantile(needed[made_on]))
    for name in set(task[at]):
        alike = made_on & (task == name)
        if alike.sum() >= FEWEST_ROWS:
            wanted[task == name] = _quantile(needed[alike])
    size = np.maximum((mass <= wanted[:, None]).sum(axis=1) - 1, 0)
    row = np.arange(len(mass))
    return low[row, size][at].astype(np.float64), high[row, size][at].astype(np.float64)


def _quantile(needed: Floats) -> float:
    """Of n values the one that n + 1 times the level, rounded up, are no greater than."""
    index = int(np.ceil(round(CONFORMAL_LEVEL * (len(needed) + 1), 9))) - 1
    return float(np.sort(needed)[index]) if index < len(needed) else np.inf


def _summary(sample: RatedSample, own: bool, known: NDArray[np.bool_], low: Floats, high: Floats) -> Widths:
    human, width, error = sample.human, high - low, np.abs(sample.scores - sample.human)
    narrow = width <= NARROW

    def of(task: str, rows: NDArray[np.bool_]) -> TaskWidths:
        covered = (low <= human) & (human <= high)
        shares = covered[rows].astype(np.float64), narrow[rows].astype(np.float64)
        held, kept = (mean_estimate(share, sample.groups[rows], share=True) for share in shares)
        return TaskWidths(task=task, n=held.n, coverage=held, width=float(np.median(width[rows])), narrow=kept)

    parts: Iterable[tuple[str, NDArray[np.bool_]]] = sample.values("task") if len(sample.said("task")) > 1 else ()
    whole, *tasks = [of("all", known), *(of(name, rows & known) for name, rows in parts if (rows & known).any())]
    kept, share = known & narrow, float(narrow[known].mean())
    routed, by_chance = float(error[kept].sum() / known.sum()), float(error[known].mean() * share)
    at_least, at_most = whole.coverage.interval or (0.0, 1.0)
    reading = say("intervals", all=whole, low=at_least, high=at_most, times=10 * CONFORMAL_LEVEL)
    if at_most < CONFORMAL_LEVEL:
        reading += say("intervals_broken")
    left = {"share": share, "routed": routed, "by_chance": by_chance, "narrow": NARROW}
    reading += say("narrow", error=routed / share, **left) if share else say("none_narrow", **left)
    return Widths(own=own, tasks=[whole, *tasks], routed_mae=routed, random_mae=by_chance, reading=reading)
