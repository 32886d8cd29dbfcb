"""Pictures of scores as SVG. Text goes in as text; colours are the page's."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from xml.etree import ElementTree

from critic.page.blocks import Picture, number

WIDTH, HEIGHT = 720, 330
LEFT, RIGHT, TOP, BOTTOM = 56, 220, 26, 42
COLOURS = 6
"""Colours that the page has for series; more series start again with the first."""

BINS = 12


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

    def hint(self, element: ElementTree.Element, text: str) -> None:
        ElementTree.SubElement(element, "title").text = text

    def svg(self) -> str:
        return ElementTree.tostring(self.root, encoding="unicode")


def _series(place: int) -> str:
    return f"s{place % COLOURS}"


def _legend(canvas: _Canvas, names: Sequence[str]) -> None:
    for place, name in enumerate(names):
        y = TOP + 8 + 18 * place
        canvas.add("rect", _series(place), x=WIDTH - RIGHT + 14, y=y - 8, width=10, height=10)
        canvas.add("text", text=_short(name), x=WIDTH - RIGHT + 30, y=y + 1)


def _short(name: str, length: int = 30) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"


def _axis(canvas: _Canvas, low: float, high: float, label: str) -> None:
    """Five lines across, with their values."""
    for step in range(5):
        value = low + (high - low) * step / 4
        y = _y(value, low, high)
        canvas.add("line", "grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y)
        canvas.add("text", text=f"{value:.3g}", x=LEFT - 8, y=y + 4, text_anchor="end")
    canvas.add("text", "soft", text=label, x=4, y=TOP - 14)


def _y(value: float, low: float, high: float) -> float:
    return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - BOTTOM - TOP)


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - RIGHT - LEFT)


def lines(
    caption: str, series: Mapping[str, Sequence[float | None]], labels: Sequence[str], scale: tuple[float, float]
) -> Picture:
    """Scores of each series over the same places, such as turns; None leaves a gap."""
    canvas = _Canvas("; ".join(f"{name}: {', '.join(number(v) for v in values)}" for name, values in series.items()))
    _axis(canvas, *scale, "")
    for place, label in enumerate(labels):
        canvas.add("text", text=label, x=_x((place + 0.5) / len(labels)), y=HEIGHT - 20, text_anchor="middle")
    for place, (name, values) in enumerate(series.items()):
        spots = [
            (_x((n + 0.5) / len(labels)), _y(value, *scale)) if value is not None else None
            for n, value in enumerate(values)
        ]
        for one, other in pairwise(spots):
            if one and other:
                canvas.add("line", f"{_series(place)} stroke", x1=one[0], y1=one[1], x2=other[0], y2=other[1])
        for spot, value, label in zip(spots, values, labels, strict=True):
            if spot:
                circle = canvas.add("circle", _series(place), cx=spot[0], cy=spot[1], r=4.5)
                canvas.hint(circle, f"{name}, {label}: {number(value)}")
    _legend(canvas, list(series))
    return Picture(caption, canvas.svg())


def radar(caption: str, series: Mapping[str, Mapping[str, float | None]], scale: tuple[float, float]) -> Picture | None:
    """One axis a task, one outline a series; None with fewer than three tasks that any series has a score for. A task
    without a score leaves a series' outline open."""
    axes = list(
        dict.fromkeys(name for scores in series.values() for name, value in scores.items() if value is not None)
    )
    if len(axes) < 3:
        return None
    centre, reach = (WIDTH - RIGHT) / 2 + 20, HEIGHT / 2 - 40
    low, high = scale

    def spot(axis: int, value: float) -> tuple[float, float]:
        angle = 2 * math.pi * axis / len(axes) - math.pi / 2
        far = reach * (value - low) / (high - low)
        return centre + far * math.cos(angle), HEIGHT / 2 + far * math.sin(angle)

    canvas = _Canvas(caption)
    for ring in (0.25, 0.5, 0.75, 1.0):
        corners = [spot(axis, low + ring * (high - low)) for axis in range(len(axes))]
        canvas.add("polygon", "grid", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in corners))
    for axis, name in enumerate(axes):
        x, y = spot(axis, high)
        dx, dy = spot(axis, high + 0.12 * (high - low))
        canvas.add("line", "grid", x1=centre, y1=HEIGHT / 2, x2=x, y2=y)
        anchor = "middle" if abs(dx - centre) < 5 else "start" if dx > centre else "end"
        canvas.add("text", text=_short(name, 16), x=dx, y=dy + 4, text_anchor=anchor)
    for place, (name, scores) in enumerate(series.items()):
        values = [scores.get(axis) for axis in axes]
        for axis, value in enumerate(values):
            following = values[(axis + 1) % len(axes)]
            if value is not None:
                x, y = spot(axis, value)
                circle = canvas.add("circle", _series(place), cx=x, cy=y, r=3.5)
                canvas.hint(circle, f"{name}, {axes[axis]}: {number(value)}")
            if value is not None and following is not None:
                (x1, y1), (x2, y2) = spot(axis, value), spot((axis + 1) % len(axes), following)
                canvas.add("line", f"{_series(place)} stroke", x1=x1, y1=y1, x2=x2, y2=y2)
    _legend(canvas, list(series))
    return Picture(caption, canvas.svg())


def scatter(caption: str, points: Mapping[str, tuple[float, float]], axes: tuple[str, str]) -> Picture | None:
    """Named points, with a dashed line at the median of each axis; None without points."""
    if not points:
        return None
    xs, ys = [x for x, _ in points.values()], [y for _, y in points.values()]
    x_range, y_range = _padded(xs), _padded(ys)
    canvas = _Canvas("; ".join(f"{name}: {number(x)}, {number(y)}" for name, (x, y) in points.items()))
    _axis(canvas, *y_range, axes[1])

    def across(x: float) -> float:
        return _x((x - x_range[0]) / (x_range[1] - x_range[0]))

    for step in range(5):
        value = x_range[0] + (x_range[1] - x_range[0]) * step / 4
        canvas.add("text", text=f"{value:.3g}", x=across(value), y=HEIGHT - 24, text_anchor="middle")
    canvas.add("text", "soft", text=axes[0], x=_x(0.5), y=HEIGHT - 6, text_anchor="middle")
    middle_x, middle_y = across(median(xs)), _y(median(ys), *y_range)
    canvas.add("line", "median", x1=middle_x, x2=middle_x, y1=TOP, y2=HEIGHT - BOTTOM)
    canvas.add("line", "median", x1=LEFT, x2=WIDTH - RIGHT, y1=middle_y, y2=middle_y)
    for place, (name, (x, y)) in enumerate(points.items()):
        circle = canvas.add("circle", _series(place), cx=across(x), cy=_y(y, *y_range), r=6)
        canvas.hint(circle, f"{name}: {number(x)}, {number(y)}")
    _legend(canvas, list(points))
    return Picture(caption, canvas.svg())


def _padded(values: Sequence[float]) -> tuple[float, float]:
    """From a little below the lowest to a little above the highest."""
    low, high = min(values), max(values)
    margin = 0.1 * (high - low) or 0.1 * abs(high) or 1.0
    return low - margin, high + margin


def lengths(caption: str, series: Mapping[str, Sequence[int]]) -> Picture | None:
    """How long the answers of each series are, in characters: the share of them in each of BINS bins."""
    everything = [length for values in series.values() for length in values]
    if not everything:
        return None
    step = max(1, math.ceil((max(everything) + 1) / BINS))
    shares = {}
    for name, values in series.items():
        counts = [0] * BINS
        for length in values:
            counts[length // step] += 1
        shares[name] = [count / len(values) if values else None for count in counts]
    return lines(caption, shares, [f"{number_ * step}" for number_ in range(BINS)], (0.0, _top(shares.values())))


def _top(shares: Iterable[Sequence[float | None]]) -> float:
    highest = max((value for values in shares for value in values if value is not None), default=1.0)
    return max(0.2, math.ceil(highest * 5) / 5)


def dots(
    caption: str,
    rows: Mapping[str, Mapping[str, tuple[float | None, float | None, float | None]]],
    scale: tuple[float, float],
) -> Picture:
    """For each row a score of each series, (score, lowest, highest), the bar from the lowest to the highest."""
    names = list(dict.fromkeys(name for found in rows.values() for name in found))
    canvas = _Canvas(caption)
    _axis(canvas, *scale, "")
    for place, (label, found) in enumerate(rows.items()):
        canvas.add("text", text=label, x=_x((place + 0.5) / len(rows)), y=HEIGHT - 20, text_anchor="middle")
        for number_, name in enumerate(names):
            value, low, high = found.get(name, (None, None, None))
            x = _x((place + (number_ + 1) / (len(names) + 1)) / len(rows))
            if low is not None and high is not None:
                canvas.add("line", f"{_series(number_)} stroke", x1=x, x2=x, y1=_y(low, *scale), y2=_y(high, *scale))
            if value is not None:
                circle = canvas.add("circle", _series(number_), cx=x, cy=_y(value, *scale), r=5)
                canvas.hint(circle, f"{label}, {name}: {number(value)}")
    _legend(canvas, names)
    return Picture(caption, canvas.svg())
