"""Draw pictures of the sample world with Pillow: shapes, digits and charts on a grid of three by three cells.

The pictures differ in few, simple ways, so that a model with a million parameters learns them in minutes.
"""

import random

from PIL import Image, ImageDraw

CELL = 32
"""Side of a cell in pixels."""

SIZE = 3 * CELL

COLOURS = {"red": (214, 39, 40), "green": (34, 139, 60), "blue": (40, 90, 220)}
COLOURS |= {"yellow": (240, 205, 30), "black": (25, 25, 25)}

PLACES = {"top": 1, "left": 3, "middle": 4, "right": 5, "bottom": 7}
"""Words for cells, which are numbered from 0 (top left) to 8 (bottom right)."""

_SEGMENTS = {"1": "bc", "2": "abged", "3": "abgcd", "4": "fgbc", "5": "afgcd"}

_ENDS = [(0, 0, 1, 0), (1, 0, 1, 1), (1, 1, 1, 2), (0, 2, 1, 2), (0, 1, 0, 2), (0, 0, 0, 1), (0, 1, 1, 1)]
_LINES = dict(zip("abcdefg", _ENDS, strict=True))


class Canvas:
    """A picture to draw on. `draw` generates small random variations."""

    def __init__(self, draw: random.Random) -> None:
        self.random = draw
        shade = draw.randint(240, 255)
        self.image = Image.new("RGB", (SIZE, SIZE), (shade, shade, shade))
        self.pen = ImageDraw.Draw(self.image)

    def shape(self, cell: int, shape: str, colour: str, size: int = 12) -> None:
        """Draw a shape that extends about `size` pixels from the middle of `cell` (0..8)."""
        # Small shifts keep a model from memorizing pixels.
        size += self.random.randint(-1, 1)
        x = cell % 3 * CELL + CELL // 2 + self.random.randint(-2, 2)
        y = cell // 3 * CELL + CELL // 2 + self.random.randint(-2, 2)
        ink, box = COLOURS[colour], (x - size, y - size, x + size, y + size)
        if shape == "triangle":
            self.pen.polygon([(x, y - size), (x - size, y + size), (x + size, y + size)], fill=ink)
        elif shape == "cross":
            arm = size // 4
            self.pen.rectangle((x - arm, y - size, x + arm, y + size), fill=ink)
            self.pen.rectangle((x - size, y - arm, x + size, y + arm), fill=ink)
        else:
            (self.pen.ellipse if shape == "circle" else self.pen.rectangle)(box, fill=ink)

    def digit(self, digit: str, colour: str) -> None:
        """Draw a digit (1..5) in seven-segment style over the whole picture."""
        # The digit fills the picture, whose middle is at 48 pixels.
        x, y = 30 + self.random.randint(-3, 3), 14 + self.random.randint(-3, 3)
        for name in _SEGMENTS[digit]:
            x1, y1, x2, y2 = _LINES[name]
            self.pen.line((x + 36 * x1, y + 34 * y1, x + 36 * x2, y + 34 * y2), COLOURS[colour], 12)

    def bar(self, left: int, height: int, colour: str) -> None:
        """Draw a bar of `height` 1..3 cells whose left edge is at pixel `left`."""
        self.pen.rectangle((left, SIZE - CELL * height + 2, left + 24, SIZE - 2), fill=COLOURS[colour])


def draw(kind: str, values: dict[str, str], seed: str) -> Image.Image:
    """Return a picture of the given kind that shows `values` (slot -> value). The seed determines every pixel."""
    canvas = Canvas(random.Random(seed))
    colour = values.get("colour") or canvas.random.choice([*COLOURS])
    match kind:
        case "object":
            canvas.shape(PLACES["middle"], values["shape"], colour, canvas.random.randint(28, 36))
        case "pair":
            canvas.shape(PLACES["left"], "square", colour, 15)
            canvas.shape(PLACES["right"], "square", values["colour2"], 15)
        case "several":
            for cell in canvas.random.sample(range(9), int(values["n"])):
                canvas.shape(cell, values["shape"], colour)
        case "place":
            canvas.shape(PLACES[values["place"]], values["shape"], colour)
        case "card":
            canvas.digit(values["number"], colour)
        case "chart":
            canvas.bar(canvas.random.randint(2, 8), int(values["left"]), colour)
            canvas.bar(canvas.random.randint(65, 70), int(values["right"]), colour)
    return canvas.image
