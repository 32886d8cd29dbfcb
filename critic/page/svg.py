"""Pictures of scores as SVG. Text goes in as text; colours are the page's."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from xml.etree import ElementTree

from critic.page.blocks import Bounds, Picture, number

WIDTH, HEIGHT = 720, 330
LEFT, RIGHT, TOP, BOTTOM = 56, 220, 26, 42
COLOURS = 6
"""Colours that the page has for series; more series start again with the first."""

BINS = 12

Spot = tuple[float, float]
Ranged = tuple[float | None, float | None, float | None]
"""A score, the lowest that it could be, and the highest."""


class _Canvas:
    """A picture being drawn; `label` says it in words."""

    def __init__(self, label: str) -> None:
        self.root = ElementTree.Element("svg", viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img")
        self.root.set("aria-label", label)

    def add(self, tag: str, kind: str = "", text: str = "", **places: float | str) -> ElementTree.Element:
        made = ElementTree.SubElement(self.root, tag)
        if kind:
            made.set("class", kind)
        for name, value in places.items():
            made.set(name.replace("_", "-"), value if isinstance(value, str) else f"{value:.1f}")
        made.text = text or None
        return made

    def dot(self, series: int, spot: Spot, hint: str, size: float) -> None:
        circle = self.add("circle", f"s{series % COLOURS}", cx=spot[0], cy=spot[1], r=size)
        ElementTree.SubElement(circle, "title").text = hint

    def stroke(self, series: int, one: Spot, other: Spot) -> None:
        self.add("line", f"s{series % COLOURS} stroke", x1=one[0], y1=one[1], x2=other[0], y2=other[1])

    def axis(self, low: float, high: float, label: str = "") -> None:
        """Five lines across, with their values."""
        for value in _steps(low, high):
            y = _y(value, low, high)
            self.add("line", "grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y)
            self.add("text", text=f"{value:.3g}", x=LEFT - 8, y=y + 4, text_anchor="end")
        self.add("text", "soft", text=label, x=4, y=TOP - 14)

    def places(self, labels: Iterable[str], count: int) -> None:
        """The names of places below the picture."""
        for place, label in enumerate(labels):
            self.add("text", text=label, x=_x((place + 0.5) / count), y=HEIGHT - 20, text_anchor="middle")

    def picture(self, caption: str, series: Iterable[str]) -> Picture:
        """With the legend."""
        for place, name in enumerate(series):
            y = TOP + 8 + 18 * place
            self.add("rect", f"s{place % COLOURS}", x=WIDTH - RIGHT + 14, y=y - 8, width=10, height=10)
            self.add("text", text=_short(name, 30), x=WIDTH - RIGHT + 30, y=y + 1)
        return Picture(caption, ElementTree.tostring(self.root, encoding="unicode"))


def _short(name: str, length: int) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"


def _steps(low: float, high: float) -> list[float]:
    return [low + (high - low) * step / 4 for step in range(5)]


def _y(value: float, low: float, high: float) -> float:
    return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - BOTTOM - TOP)


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - RIGHT - LEFT)


def lines(caption: str, series: Mapping[str, Sequence[float | None]], labels: Sequence[str], scale: Bounds) -> Picture:
    """Scores of each series over the same places, such as turns; None leaves a gap."""
    canvas = _Canvas("; ".join(f"{name}: {', '.join(number(v) for v in values)}" for name, values in series.items()))
    canvas.axis(*scale)
    canvas.places(labels, len(labels))
    for place, (name, values) in enumerate(series.items()):
        spots = [
            (_x((n + 0.5) / len(labels)), _y(value, *scale)) if value is not None else None
            for n, value in enumerate(values)
        ]
        for one, other in pairwise(spots):
            if one and other:
                canvas.stroke(place, one, other)
        for spot, value, label in zip(spots, values, labels, strict=True):
            if spot:
                canvas.dot(place, spot, f"{name}, {label}: {number(value)}", 4.5)
    return canvas.picture(caption, series)


def radar(caption: str, series: Mapping[str, Mapping[str, float | None]], scale: Bounds) -> Picture | None:
    """One axis a task, one outline a series; None with fewer than three tasks that any series has a score for. A task
    without a score leaves a series' outline open."""
    known = (name for scores in series.values() for name, value in scores.items() if value is not None)
    axes = list(dict.fromkeys(known))
    if len(axes) < 3:
        return None
    centre, reach = (WIDTH - RIGHT) / 2 + 20, HEIGHT / 2 - 40
    low, high = scale

    def spot(axis: int, value: float) -> Spot:
        angle = 2 * math.pi * axis / len(axes) - math.pi / 2
        far = reach * (value - low) / (high - low)
        return centre + far * math.cos(angle), HEIGHT / 2 + far * math.sin(angle)

    canvas = _Canvas(caption)
    for ring in _steps(low, high)[1:]:
        corners = [spot(axis, ring) for axis in range(len(axes))]
        canvas.add("polygon", "grid", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in corners))
    for axis, name in enumerate(axes):
        x, y = spot(axis, high)
        dx, dy = spot(axis, high + 0.12 * (high - low))
        canvas.add("line", "grid", x1=centre, y1=HEIGHT / 2, x2=x, y2=y)
        anchor = "middle" if abs(dx - centre) < 5 else "start" if dx > centre else "end"
        canvas.add("text", text=_short(name, 16), x=dx, y=dy + 4, text_anchor=anchor)
    for place, (name, scores) in enumerate(series.items()):
        spots = [None if (value := scores.get(task)) is None else spot(axis, value) for axis, task in enumerate(axes)]
        for task, one, other in zip(axes, spots, [*spots[1:], spots[0]], strict=True):
            if one:
                canvas.dot(place, one, f"{name}, {task}: {number(scores[task])}", 3.5)
            if one and other:
                canvas.stroke(place, one, other)
    return canvas.picture(caption, series)


def scatter(caption: str, points: Mapping[str, Spot], axes: tuple[str, str]) -> Picture | None:
    """Named points, with a dashed line at the median of each axis; None without points."""
    if not points:
        return None
    xs, ys = zip(*points.values(), strict=True)
    x_range, y_range = _padded(xs), _padded(ys)
    canvas = _Canvas("; ".join(f"{name}: {number(x)}, {number(y)}" for name, (x, y) in points.items()))
    canvas.axis(*y_range, axes[1])

    def across(x: float) -> float:
        return _x((x - x_range[0]) / (x_range[1] - x_range[0]))

    for value in _steps(*x_range):
        canvas.add("text", text=f"{value:.3g}", x=across(value), y=HEIGHT - 24, text_anchor="middle")
    canvas.add("text", "soft", text=axes[0], x=_x(0.5), y=HEIGHT - 6, text_anchor="middle")
    middle_x, middle_y = across(median(xs)), _y(median(ys), *y_range)
    canvas.add("line", "median", x1=middle_x, x2=middle_x, y1=TOP, y2=HEIGHT - BOTTOM)
    canvas.add("line", "median", x1=LEFT, x2=WIDTH - RIGHT, y1=middle_y, y2=middle_y)
    for place, (name, (x, y)) in enumerate(points.items()):
        canvas.dot(place, (across(x), _y(y, *y_range)), f"{name}: {number(x)}, {number(y)}", 6)
    return canvas.picture(caption, points)


def _padded(values: Sequence[float]) -> Bounds:
    """From a little below the lowest to a little above the highest."""
    low, high = min(values), max(values)
    margin = 0.1 * (high - low) or 0.1 * abs(high) or 1.0
    return low - margin, high + margin


def lengths(caption: str, series: Mapping[str, Sequence[int]]) -> Picture | None:
    """How long the answers of each series are, in characters: the share of them in each of BINS bins."""
    longest = max((length for values in series.values() for length in values), default=None)
    if longest is None:
        return None
    step = math.ceil((longest + 1) / BINS)
    shares: dict[str, list[float | None]] = {}
    for name, values in series.items():
        counts = Counter(length // step for length in values)
        shares[name] = [counts[bin_] / len(values) if values else None for bin_ in range(BINS)]
    highest = max(share for found in shares.values() for share in found if share is not None)
    top = max(0.2, math.ceil(highest * 5) / 5)
    return lines(caption, shares, [f"{bin_ * step}" for bin_ in range(BINS)], (0.0, top))


def dots(caption: str, rows: Mapping[str, Mapping[str, Ranged]], scale: Bounds) -> Picture:
    """For each row a score of each series, the bar from the lowest to the highest."""
    names = list(dict.fromkeys(name for found in rows.values() for name in found))
    canvas = _Canvas(caption)
    canvas.axis(*scale)
    canvas.places(rows, len(rows))
    for place, (label, found) in enumerate(rows.items()):
        for series, name in enumerate(names):
            value, low, high = found.get(name, (None, None, None))
            x = _x((place + (series + 1) / (len(names) + 1)) / len(rows))
            if low is not None and high is not None:
                canvas.stroke(series, (x, _y(low, *scale)), (x, _y(high, *scale)))
            if value is not None:
                canvas.dot(series, (x, _y(value, *scale)), f"{label}, {name}: {number(value)}", 5)
    return canvas.picture(caption, names)
