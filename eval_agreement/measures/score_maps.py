"""Fit monotone maps from a judge's scores to people's, and map each fold of questions with a map of the others."""

from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import NDArray

from critic.certificate import ScoreMap
from critic.records import RATINGS
from critic.stats.arrays import Floats, ratio
from eval_agreement.sample import FEWEST_ROWS, FOLDS, folds


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
