"""What the report draws, as numbers: nothing here knows of HTML."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from critic import jsonl
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


class Loss(Struct):
    """A line of a training log. Lines without either loss (the trainer's summary) are passed over."""

    step: int
    loss: float | None = None
    eval_loss: float | None = None


class Curve(Struct, frozen=True):
    """A loss curve in a box of 0..1 x 0..1, y downwards, with its axis labels."""

    paths: dict[str, str]
    steps: list[tuple[float, str]]
    losses: list[tuple[float, str]]
    last: dict[str, float]


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


def read_loss(path: Path) -> Iterator[Loss]:
    """The lines of a training log that hold a loss. Raises UsageError naming file and line."""
    for _, line in jsonl.read(path, Loss):
        if line.loss is not None or line.eval_loss is not None:
            yield line


def curve(steps: Sequence[Loss]) -> Curve | None:
    """The losses as SVG paths in the unit square; None where there is nothing to draw."""
    if not steps:
        return None
    series = {
        "training": [(line.step, line.loss) for line in steps if line.loss is not None],
        "evaluation": [(line.step, line.eval_loss) for line in steps if line.eval_loss is not None],
    }
    first, last = min(line.step for line in steps), max(line.step for line in steps)
    losses = ticks(0.0, max(loss for points in series.values() for _, loss in points))
    width, top = max(last - first, 1), losses[-1] or 1.0
    paths, ends = {}, {}
    for name, points in series.items():
        if points:
            paths[name] = "M" + "L".join(f"{(step - first) / width:.4f} {1 - loss / top:.4f}" for step, loss in points)
            ends[name] = points[-1][1]
    across = [((step - first) / width, f"{step:g}") for step in ticks(first, last) if first <= step <= last]
    return Curve(paths=paths, steps=across, losses=[(1 - loss / top, f"{loss:g}") for loss in losses], last=ends)


def ticks(low: float, high: float) -> list[float]:
    """Four to nine round numbers that cover low..high."""
    raw = max(high - low, 1e-9) / 5
    power = 10 ** np.floor(np.log10(raw))
    step = next(float(power * factor) for factor in (1, 2, 5, 10) if power * factor >= raw)
    return [round(float(index * step), 10) for index in np.arange(np.floor(low / step), np.ceil(high / step) + 1)]
