"""What the report draws, as numbers: nothing here knows of HTML."""

import numpy as np
from msgspec import Struct

from critic.records import RATINGS
from critic.stats.arrays import Floats
from eval_agreement.metrics import half_up
from eval_agreement.sample import RatedSample


class ScoreSpread(Struct, frozen=True):
    """Where the judge gave `score` (rounded half up): people's mean and the middle half of their scores."""

    score: int
    n: int
    mean: float
    low: float
    high: float


class Pictures(Struct, frozen=True, kw_only=True):
    """Every picture of a sample. `confusion[h][j]` counts answers with human score h + 1 and judge score j + 1."""

    confusion: list[list[int]]
    calibration: list[ScoreSpread]


def pictures(sample: RatedSample) -> Pictures:
    human, judge = sample.human, sample.scores
    judged = ~np.isnan(judge)
    return Pictures(
        confusion=confusion(human[judged], judge[judged]), calibration=calibration(human[judged], judge[judged])
    )


def confusion(human: Floats, judge: Floats) -> list[list[int]]:
    """Counts, human score down and judge score across, both rounded half up to 1..10."""
    edges = np.append(RATINGS, RATINGS[-1] + 1) - 0.5
    table, _, _ = np.histogram2d(half_up(human), half_up(judge), bins=[edges, edges])
    return [[int(count) for count in row] for row in table]


def calibration(human: Floats, judge: Floats) -> list[ScoreSpread]:
    """The human scores (not rounded) of each rounded judge score that occurs."""
    rounded, bins = half_up(judge), []
    for score in np.unique(rounded):
        there = human[rounded == score]
        low, high = np.quantile(there, [0.25, 0.75])
        bins.append(ScoreSpread(int(score), len(there), float(there.mean()), float(low), float(high)))
    return bins
