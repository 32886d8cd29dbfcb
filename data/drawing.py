"""Pictures of the sample world: shapes, numbers and charts on a grid of three by three cells, drawn with Pillow."""

import random
from collections.abc import Callable
from itertools import product

from PIL import Image, ImageDraw

CELL = 32
"""Pixels of a cell; a picture has three by three."""

SIZE = 3 * CELL

COLOURS = {
    "red": (214, 39, 40),
    "green": (34, 139, 60),
    "blue": (40, 90, 220),
    "yellow": (240, 205, 30),
    "purple": (140, 50, 170),
    "black": (25, 25, 25),
    "orange": (245, 130, 20),
    "pink": (245, 130, 190),
}

PLACES = {
    f"{row} {column}".replace("middle centre", "middle"): (3 * y + x)
    for (y, row), (x, column) in product(enumerate(("top", "middle", "bottom")), enumerate(("left", "centre", "right")))
}
"""Words for the nine cells."""

_SEGMENTS = {
    "0": "abcdef", "1": "bc", "2": "abged", "3": "abgcd", "4": "fgbc",
    "5": "afgcd", "6": "afgedc", "7": "abc", "8": "abcdefg", "9": "abcdfg",
}  # fmt: skip

_LINES = {
    "a": (0, 0, 1, 0), "b": (1, 0, 1, 1), "c": (1, 1, 1, 2), "d": (0, 2, 1, 2),
    "e": (0, 1, 0, 2), "f": (0, 0, 0, 1), "g": (0, 1, 1, 1),
}  # fmt: skip


class Canvas:
    """A picture in the making; a cell is a number from 0 (top left) to 8 (bottom right)."""

    def __init__(self, draw: random.Random) -> None:
        self.random = draw
        shade = draw.randint(235, 255)
        self.image = Image.new("RGB", (SIZE, SIZE), (shade, shade, shade))
        self.pen = ImageDraw.Draw(self.image)

    def shape(self, cell: int, shape: str, colour: str) -> None:
        size = self.random.randint(10, 13)
        slack = CELL // 2 - size - 1
        x = cell % 3 * CELL + CELL // 2 + self.random.randint(-slack, slack)
        y = cell // 3 * CELL + CELL // 2 + self.random.randint(-slack, slack)
        ink, box = COLOURS[colour], (x - size, y - size, x + size, y + size)
        if shape == "circle":
            self.pen.ellipse(box, fill=ink)
        elif shape == "square":
            self.pen.rectangle(box, fill=ink)
        elif shape == "ring":
            self.pen.ellipse(box, outline=ink, width=5)
        elif shape == "triangle":
            self.pen.polygon([(x, y - size), (x - size, y + size), (x + size, y + size)], fill=ink)
        else:
            self.pen.rectangle((x - 3, y - size, x + 3, y + size), fill=ink)
            self.pen.rectangle((x - size, y - 3, x + size, y + 3), fill=ink)

    def digit(self, cell: int, digit: str, colour: str) -> None:
        x, y = cell % 3 * CELL + 9, cell // 3 * CELL + 4
        for name in _SEGMENTS[digit]:
            x1, y1, x2, y2 = _LINES[name]
            self.pen.line((x + 14 * x1, y + 12 * y1, x + 14 * x2, y + 12 * y2), COLOURS[colour], 4)

    def bar(self, column: int, height: int, colour: str) -> None:
        """A bar of 1 to 6 sixths of the picture's height."""
        left, top = column * CELL + 5, SIZE - 2 - height * (SIZE - 6) // 6
        self.pen.rectangle((left, top, left + CELL - 10, SIZE - 2), fill=COLOURS[colour])


def _object(canvas: Canvas, values: dict[str, str]) -> None:
    canvas.shape(canvas.random.randrange(9), values["shape"], values["colour"])


def _pair(canvas: Canvas, values: dict[str, str]) -> None:
    row = canvas.random.randrange(3)
    canvas.shape(3 * row, values["shape"], values["colour"])
    canvas.shape(3 * row + 2, values["shape2"], values["colour2"])


def _several(canvas: Canvas, values: dict[str, str]) -> None:
    for cell in canvas.random.sample(range(9), int(values["n"])):
        canvas.shape(cell, values["shape"], values["colour"])


def _place(canvas: Canvas, values: dict[str, str]) -> None:
    canvas.shape(PLACES[values["place"]], values["shape"], values["colour"])


def _card(canvas: Canvas, values: dict[str, str]) -> None:
    cell = 3 * canvas.random.randrange(3) + canvas.random.randrange(2)
    for place, digit in enumerate(values["number"]):
        canvas.digit(cell + place, digit, values["colour"])


def _chart(canvas: Canvas, values: dict[str, str]) -> None:
    names = [values["high"], values["low"], values["third"]]
    heights = dict(zip(names, (canvas.random.randint(5, 6), 1, 3), strict=True))
    canvas.random.shuffle(names)
    for column, name in enumerate(names):
        canvas.bar(column, heights[name], name)


DRAWN: dict[str, Callable[[Canvas, dict[str, str]], None]] = {
    "object": _object,
    "pair": _pair,
    "several": _several,
    "place": _place,
    "card": _card,
    "chart": _chart,
}


def draw(kind: str, values: dict[str, str], seed: str) -> Image.Image:
    """A picture of a kind in which the values are true."""
    canvas = Canvas(random.Random(seed))
    DRAWN[kind](canvas, values)
    return canvas.image
