"""What the report draws, as numbers: nothing here knows of HTML."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from msgspec import Struct

from critic import jsonl
from critic.counting.arrays import Floats, distinct
from critic.counting.estimate import Bootstrap, Interval
from critic.records import RATINGS
from eval_agreement.metrics import half_up
from eval_agreement.sample import Sample

SLICES = 10
"""Parts of equal size into which answers are cut by length."""


class ScoreSpread(Struct, frozen=True):
    """Where the judge gave `score` (rounded half up): people's mean and the middle half of their scores."""

    score: int
    n: int
    mean: float
    low: float
    high: float


class Spot(Struct, frozen=True):
    """`n` answers whose mean of both scores is about `level`, and judge less people about `difference`, to a half."""

    level: float
    difference: float
    n: int


class BlandAltman(Struct, frozen=True):
    """Judge less people over their mean (Bland and Altman 1986): the mean difference, and the limits between which
    95 % of the differences would lie were they normal (1.96 standard deviations)."""

    spots: list[Spot]
    mean: float
    limits: tuple[float, float]


class Slice(Struct, frozen=True):
    """Answers of about `length` characters (the median of the slice): judge less people, and its 95 % interval."""

    length: float
    n: int
    mean: float
    interval: Interval | None


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
    differences: BlandAltman | None
    lengths: list[Slice]


def pictures(sample: Sample) -> Pictures:
    judged = ~np.isnan(sample.scores)
    human, judge = sample.human[judged], sample.scores[judged]
    return Pictures(
        confusion=confusion(human, judge),
        calibration=calibration(human, judge),
        differences=bland_altman(human, judge),
        lengths=by_length(sample),
    )


def confusion(human: Floats, judge: Floats) -> list[list[int]]:
    """Counts, human score down and judge score across, both rounded half up to 1..10."""
    table = np.zeros((len(RATINGS), len(RATINGS)), dtype=int)
    rows, columns = ((half_up(scores) - RATINGS[0]).astype(np.intp) for scores in (human, judge))
    np.add.at(table, (rows, columns), 1)
    return table.tolist()


def calibration(human: Floats, judge: Floats) -> list[ScoreSpread]:
    """The human scores (not rounded) of each rounded judge score that occurs."""
    rounded = half_up(judge)
    bins = []
    for score in np.unique(rounded):
        there = human[rounded == score]
        low, high = np.quantile(there, [0.25, 0.75])
        bins.append(ScoreSpread(int(score), len(there), float(there.mean()), float(low), float(high)))
    return bins


def bland_altman(human: Floats, judge: Floats) -> BlandAltman | None:
    """None with fewer than two answers. Answers that fall on the same half point share a spot."""
    if len(human) < 2:
        return None
    difference = judge - human
    levels, differences = half_up(human + judge) / 2, half_up(2 * difference) / 2
    first, spot = distinct(levels, differences)
    mean, spread = float(difference.mean()), float(difference.std(ddof=1))
    cells = zip(levels[first].tolist(), differences[first].tolist(), np.bincount(spot).tolist(), strict=True)
    spots = [Spot(x, y, n) for x, y, n in cells]
    return BlandAltman(spots, mean, (mean - 1.96 * spread, mean + 1.96 * spread))


def by_length(sample: Sample) -> list[Slice]:
    """The judge's error in slices of equal size by length, the shortest first; empty without lengths."""
    if sample.length is None:
        return []
    known = ~np.isnan(sample.length + sample.scores)
    length, less, group = sample.length[known], (sample.scores - sample.human)[known], sample.groups[known]
    if len(length) < 2 * SLICES or np.ptp(length) == 0:
        return []
    edges = np.unique(np.quantile(length, np.arange(1, SLICES) / SLICES))
    slices = []
    for low, high in pairwise([-np.inf, *edges.tolist(), np.inf]):
        rows = (low <= length) & (length < high)
        if not rows.any():
            continue
        draws, (first, cell) = Bootstrap(group[rows]), distinct(less[rows])
        n, total = draws.sums(cell, np.stack([np.ones(len(first)), less[rows][first]])).T
        mean = total / n
        slices.append(Slice(float(np.median(length[rows])), int(n[0]), float(mean[0]), draws.interval(mean[1:])))
    return slices


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
    series = {name: points for name, points in series.items() if points}
    first, last = min(line.step for line in steps), max(line.step for line in steps)
    losses = ticks(0.0, max(loss for points in series.values() for _, loss in points))
    width, top = max(last - first, 1), losses[-1] or 1.0
    places = {
        name: [f"{(step - first) / width:.4f} {1 - loss / top:.4f}" for step, loss in points]
        for name, points in series.items()
    }
    return Curve(
        paths={name: "M" + "L".join(points) for name, points in places.items()},
        steps=[((step - first) / width, f"{step:g}") for step in ticks(first, last) if first <= step <= last],
        losses=[(1 - loss / top, f"{loss:g}") for loss in losses],
        last={name: points[-1][1] for name, points in series.items()},
    )


def ticks(low: float, high: float) -> list[float]:
    """Four to nine round numbers that cover low..high."""
    raw = max(high - low, 1e-9) / 5
    power = 10 ** np.floor(np.log10(raw))
    step = next(float(power * factor) for factor in (1, 2, 5, 10) if power * factor >= raw)
    return [round(float(index * step), 10) for index in np.arange(np.floor(low / step), np.ceil(high / step) + 1)]
