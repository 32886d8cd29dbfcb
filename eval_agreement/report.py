"""The audit as one HTML page that needs no network: text in HTML, pictures as inline SVG."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from msgspec import Struct

from critic import jsonl
from critic.records import RATINGS, Judgment
from eval_agreement.compare import Audit, Line, Split
from eval_agreement.metrics import FEWEST_GROUPS, METRICS, Agreement, half_up

WORST = 10
"""Disagreements shown for each split."""

LONG = 400
"""Characters of a text that are shown before the rest is folded away."""


class Loss(Struct):
    """A line of a training log. Lines without either loss (the trainer's summary) are passed over."""

    step: int
    loss: float | None = None
    eval_loss: float | None = None


class Bin(Struct, frozen=True):
    """What people gave where the judge gave `score` (rounded half up): mean and middle half."""

    score: int
    n: int
    mean: float
    low: float
    high: float


class Curve(Struct, frozen=True):
    """A loss curve in a box of 0..1 x 0..1, y downwards, with its axis labels."""

    paths: dict[str, str]
    steps: list[tuple[float, str]]
    losses: list[tuple[float, str]]
    last: dict[str, float]


def write(path: Path, found: Audit, origin: dict[str, Any], steps: Sequence[Loss], title: str) -> None:
    """Write the page in one step. `origin` is the audit's provenance, as in summary.json."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(render(found, origin, steps, title), "utf-8")
    partial.replace(path)


def render(found: Audit, origin: dict[str, Any], steps: Sequence[Loss], title: str) -> str:
    """The page as text. Everything that comes from files is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("eval_agreement", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["number"] = number
    environment.filters["interval"] = interval
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False, indent=2)
    return environment.get_template("report.html.jinja").render(
        title=title,
        found=found,
        origin=origin,
        verdicts={split.name: verdict(found, split) for split in found.splits},
        warnings=warnings(origin),
        scale=scale(found),
        metrics=list(METRICS),
        ratings=RATINGS,
        confusion={split.name: confusion(split) for split in found.splits},
        calibration={split.name: calibration(split) for split in found.splits},
        curve=curve(steps),
        worst={split.name: worst(split) for split in found.splits},
        failures={split.name: failures(split) for split in found.splits},
        long=LONG,
        fewest=FEWEST_GROUPS,
    )


def number(value: float | None, decimals: int = 3) -> str:
    return "–" if value is None else f"{value:.{decimals}f}".replace("-", "−")


def interval(bounds: tuple[float, float] | None, decimals: int = 2) -> str:
    """`0.95–1.10`, with "to" between negative bounds; empty where there is none."""
    if bounds is None:
        return ""
    low, high = (number(bound, decimals) for bound in bounds)
    return f"{low}–{high}" if bounds[0] >= 0 else f"{low} to {high}"


def verdict(found: Audit, split: Split) -> str:
    """What a split says of the judge, in one or two sentences."""
    (line,) = found.of(split.name, "judge")
    judge = line.result
    baselines = {other.name: other for other in found.of(split.name, "baseline")}
    if judge.mae is None:
        return f"On the {split.name} test every judgment failed (n = 0, {judge.failed} failed)."
    text = f"On the {split.name} test the judge is off by {judge.mae:.2f} points on average"
    if bounds := judge.interval.get("mae"):
        text += f" (95 % interval {interval(bounds)})"
    if "constant" in baselines:
        constant = baselines["constant"]
        text += f", against {number(constant.result.mae, 2)} for {constant.about.replace('always', 'always answering')}"
    text += f"; Pearson {number(judge.pearson, 2)}. n = {judge.n}, {judge.failed} failed."
    better = [name for name, other in baselines.items() if not _beats(judge, other)]
    if better:
        text += f" That is not better than the trivial judge{'s' * (len(better) > 1)} {' and '.join(better)}."
    return text


def _beats(judge: Agreement, other: Line) -> bool:
    return judge.mae is not None and other.result.mae is not None and judge.mae < other.result.mae


def warnings(origin: dict[str, Any]) -> list[str]:
    """What makes the numbers doubtful."""
    return [
        f"{facts['in_training']} of the {facts['rows']} responses of {name} are also in the training file."
        for name, facts in origin["files"].items()
        if facts.get("in_training")
    ]


def scale(found: Audit) -> float:
    """The right end of the MAE axes, in points: a whole number, the same for every picture of the page."""
    results = [line.result for line in found.lines]
    for parts in found.by.values():
        results += [result for values in parts.values() for result in values.values()]
    ends = [result.mae or 0.0 for result in results]
    ends += [bounds[1] for result in results if (bounds := result.interval.get("mae"))]
    return float(max(1, np.ceil(max(ends))))


def confusion(split: Split) -> list[list[int]]:
    """Counts, human score down and judge score across, both rounded half up to 1..10."""
    counts = np.zeros((len(RATINGS), len(RATINGS)), dtype=int)
    human, judge = _pairs(split)
    np.add.at(counts, (human.astype(int) - RATINGS[0], judge.astype(int) - RATINGS[0]), 1)
    return [[int(count) for count in row] for row in counts]


def _pairs(split: Split) -> tuple[Any, Any]:
    pairs = [(h, j) for h, j in zip(split.human, split.judge, strict=True) if j is not None]
    human, judge = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    return half_up(human), half_up(judge)


def calibration(split: Split) -> list[Bin]:
    """The human scores (not rounded) of each rounded judge score that occurs."""
    bins: dict[int, list[float]] = {}
    for human, judge in zip(split.human, split.judge, strict=True):
        if judge is not None and human is not None:
            bins.setdefault(int(half_up(np.array(judge))), []).append(human)
    return [
        Bin(score, len(values), float(np.mean(values)), *(float(edge) for edge in np.quantile(values, [0.25, 0.75])))
        for score, values in sorted(bins.items())
    ]


def worst(split: Split) -> list[Judgment]:
    """The judged responses furthest from people's score, furthest first; ties by id."""

    def order(judgment: Judgment) -> tuple[float, str]:
        human = judgment.response.human
        assert human is not None and judgment.score is not None
        return -abs(human.score - judgment.score), judgment.response.id

    return sorted((judgment for judgment in split.judgments if judgment.score is not None), key=order)[:WORST]


def failures(split: Split) -> list[tuple[str, int, list[Judgment]]]:
    """Failures by name, the commonest first: how many, and the first three judgments."""
    failed = [judgment for judgment in split.judgments if judgment.score is None]
    names = Counter(_failure(judgment) for judgment in failed)
    return [
        (name, count, [judgment for judgment in failed if _failure(judgment) == name][:3])
        for name, count in names.most_common()
    ]


def _failure(judgment: Judgment) -> str:
    return judgment.verdict.failure or "not named"


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

    def path(points: list[tuple[int, float]]) -> str:
        places = (f"{(step - first) / width:.4f} {1 - loss / top:.4f}" for step, loss in points)
        return "M" + "L".join(places)

    return Curve(
        paths={name: path(points) for name, points in series.items()},
        steps=[((step - first) / width, f"{step:g}") for step in ticks(first, last) if first <= step <= last],
        losses=[(1 - loss / top, f"{loss:g}") for loss in losses],
        last={name: points[-1][1] for name, points in series.items()},
    )


def ticks(low: float, high: float) -> list[float]:
    """Four to nine round numbers that cover low..high."""
    raw = max(high - low, 1e-9) / 5
    power = 10 ** np.floor(np.log10(raw))
    step = next(float(power * factor) for factor in (1, 2, 5, 10) if power * factor >= raw)
    first, last = np.floor(low / step), np.ceil(high / step)
    return [round(float(index * step), 10) for index in np.arange(first, last + 1)]
