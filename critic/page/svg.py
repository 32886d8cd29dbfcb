"""Pictures of scores as SVG. Text goes in as text; colours are the page's."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from xml.etree import ElementTree

from critic.page.blocks import Bounds, Picture, number, shortened

WIDTH, HEIGHT = 800, 330
LEFT, RIGHT, TOP, BOTTOM = 56, 300, 26, 42
COLOURS = 6
"""Colours that the page has for series. With as many shapes less one, thirty series look different."""

SHAPES = ("", "M-1,-1H1V1H-1Z", "M0,-1.3L1.2,1H-1.2Z", "M0,-1.4L1.4,0L0,1.4L-1.4,0Z", "M0,1.3L1.2,-1H-1.2Z")
"""Marks of series about the origin, the first a circle: not everybody sees the colours."""

WIDE = 7.3
"""How wide a character is at most, as the fonts of browsers go."""

NAMES = 60
"""Characters of a name before bars at most."""

BINS = 12

Spot = tuple[float, float]


class _Canvas:
    """A picture being drawn; `label` says it in words."""

    def __init__(self, label: str) -> None:
        self.root = self.into = ElementTree.Element("svg", role="img")
        self.root.set("class", "wide")
        self.root.set("aria-label", label)

    def add(self, tag: str, kind: str = "", text: str = "", **places: float | str) -> ElementTree.Element:
        made = ElementTree.SubElement(self.into, tag)
        if kind:
            made.set("class", kind)
        for name, value in places.items():
            made.set(name.replace("_", "-"), value if isinstance(value, str) else f"{value:.1f}")
        made.text = text or None
        return made

    def dot(self, series: int, spot: Spot, hint: str, size: float) -> None:
        """A series' mark, in its colour and shape."""
        kind, shape = f"s{series % COLOURS}", SHAPES[series % len(SHAPES)]
        if shape:
            place = f"translate({spot[0]:.1f} {spot[1]:.1f}) scale({size})"
            made = self.add("path", kind, d=shape, transform=place)
        else:
            made = self.add("circle", kind, cx=spot[0], cy=spot[1], r=size)
        ElementTree.SubElement(made, "title").text = hint

    def stroke(self, series: int, one: Spot, other: Spot) -> None:
        self.add("line", f"s{series % COLOURS} stroke", x1=one[0], y1=one[1], x2=other[0], y2=other[1])

    def axis(self, low: float, high: float) -> None:
        """Five lines across, with their values."""
        for value in _steps(low, high):
            y = _y(value, low, high)
            self.add("line", "grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y)
            self.add("text", text=f"{value:.3g}", x=LEFT - 8, y=y + 4, text_anchor="end")

    def places(self, labels: Iterable[str], count: int) -> None:
        """The names of places below the picture."""
        for place, label in enumerate(labels):
            self.add("text", text=label, x=_x((place + 0.5) / count), y=HEIGHT - 20, text_anchor="middle")

    def picture(self, caption: str, series: Iterable[str]) -> Picture:
        """With the legend, which may be longer than the picture is high."""
        bottom = float(HEIGHT)
        self.into = self.add("g", "legend")
        for place, name in enumerate(series):
            y = TOP + 8 + 18 * place
            self.dot(place, (WIDTH - RIGHT + 19, y - 3), name, 5)
            self.add("text", text=shortened(name, 36), x=WIDTH - RIGHT + 30, y=y + 1)
            bottom = max(bottom, y + 10)
        return self.drawn(caption, bottom)

    def drawn(self, caption: str, height: float) -> Picture:
        self.root.set("viewBox", f"0 0 {WIDTH} {height:.0f}")
        return Picture(caption, ElementTree.tostring(self.root, encoding="unicode"))


def _wide(name: str, length: int = 44) -> int:
    return sum(2 if ord(char) > 0x2E7F else 1 for char in shortened(name, length))


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


def bars(caption: str, rows: Mapping[str, Mapping[str, float | None]], scale: Bounds) -> Picture | None:
    """A number with its bar for each row and column, such as models and tasks; None without any."""
    columns = list(dict.fromkeys(name for found in rows.values() for name in found))
    if not columns:
        return None
    canvas, left = _Canvas(caption), 8 + min(WIDE * max(_wide(name, NAMES) for name in rows), WIDE * NAMES)
    longest = WIDE * max(map(_wide, columns))
    turned = longest > (WIDTH - 8 - left) / len(columns)
    top = 20 + (0.8 * longest if turned else 2)
    wide = (WIDTH - 8 - left - (0.65 * longest if turned else 0)) / (len(columns) - turned / 2)
    for number_, name in enumerate(columns):
        x, y = (left + wide * (number_ + turned / 2), top - 6)
        turn = {"transform": f"rotate(-50 {x:.1f} {y:.1f})"} if turned else {}
        canvas.add("text", text=shortened(name, 44), x=x, y=y, **turn)
    for place, (name, found) in enumerate(rows.items()):
        y = top + 18 * place
        canvas.add("text", text=shortened(name, NAMES), x=left - 6, y=y + 13, text_anchor="end")
        for number_, column in enumerate(columns):
            x, value = left + wide * number_, found.get(column)
            if value is not None:
                part = (value - scale[0]) / (scale[1] - scale[0])
                canvas.add("rect", "s0 pale", x=x, y=y, width=(wide - 2) * part, height=16)
                canvas.add("text", text=number(value, 0 if wide < 36 else 1), x=x + 2, y=y + 13)
    return canvas.drawn(caption, top + 18 * len(rows) + 6)
