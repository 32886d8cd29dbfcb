"""Build the parts of a page (sections, tables, cells), the same for terminal and HTML, and format numbers."""

import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

T = TypeVar("T")

Bounds = tuple[float, float]


class TableCell(Struct, frozen=True):
    """A number or word with its interval in small print; `title` is the tooltip."""

    text: str
    small: str = ""
    title: str = ""


class Bar(Struct, frozen=True):
    """A value and its interval (None without one), drawn on an axis."""

    value: float
    interval: Bounds | None = None


class Panel(Struct, frozen=True, kw_only=True):
    """The chart of one score: one bar per table row, on an axis from the first to the last of `ticks`."""

    heading: str
    bars: list[Bar | None]
    ticks: list[float]


class TableRow(Struct, frozen=True, kw_only=True):
    """A row of a table.

    - `about`: an explanation of the row in small print.
    - `bar`: the row's bar on the table's axis, or None.
    - `strong`: the row is set in bold.
    - `model`: rows of one model share a colour on the page; "" for no colour.
    """

    name: str
    cells: list[TableCell]
    about: str = ""
    bar: Bar | None = None
    strong: bool = False
    model: str = ""


class Table(Struct, frozen=True, kw_only=True):
    """A table of a page.

    - `head`: the headings of the first column and of each cell.
    - `axis`: the ends of an axis on which the rows' bars are drawn, after column number `chart_column` (from 1); None
      for no bars.
    - `collapsed`: closed on the page and left out of text. `details`: only closed on the page.
    - `sticky`: the first column stays in sight if the table is wider than the page.
    - `panels`: charts side by side above the table, also written to `picture`.svg and .png beside the page.
    - `picture`: the name of the table's files beside the page, `picture`.tex among them; "" for no files.
    """

    caption: str
    head: list[str]
    rows: list[TableRow]
    axis: Bounds | None = None
    chart_column: int = 4
    collapsed: bool = False
    details: bool = False
    sticky: bool = False
    panels: list[Panel] = field(default_factory=list)
    picture: str = ""


class Mark(Struct, frozen=True, kw_only=True):
    """A point of a scatter, with an interval in each direction. `label` is for the legend, `radius` is in pixels."""

    x: Bar
    y: Bar
    radius: float = 4.0
    label: str = ""
    model: str = ""


class Axis(Struct, frozen=True):
    """An axis of a scatter: its name, and the label of each tick. The axis ends at the first and the last tick."""

    name: str
    ticks: dict[float, str]


class Scatter(Struct, frozen=True, kw_only=True):
    """Points in a plane.

    - `line`: the two ends of a straight line, such as a fit, or ().
    - `guides`: the x of a vertical and the y of a horizontal dashed line, each None for no line.
    - `corners`: names for the upper left, upper right, lower left and lower right of these lines, or ().
    """

    heading: str = ""
    x: Axis
    y: Axis
    marks: list[Mark]
    line: Sequence[tuple[float, float]] = ()
    guides: tuple[float | None, float | None] = (None, None)
    corners: Sequence[str] = ()


class GridRow(Struct, frozen=True, kw_only=True):
    """A model's values in a radar or a row of a heat map, one per column: (place, text), or None without a score.

    The place is 0 for the lowest and 1 for the highest value of the picture's scale; the text is the formatted score.
    """

    name: str
    model: str
    values: list[tuple[float, str] | None]


class Grid(Struct, frozen=True, kw_only=True):
    """Values by model and column, for a radar or a heat map. `rings`: place (0..1) of a radar's circle -> its label."""

    heading: str = ""
    columns: Sequence[str]
    shapes: list[GridRow]
    rings: dict[float, str] = {}

    def place(self, column: float, share: float) -> Bounds:
        """Return the x and y of a value on axis number `column` (from 0), for a radar of radius 1; y points down."""
        angle = 2 * math.pi * column / len(self.columns)
        return share * math.sin(angle), -share * math.cos(angle)


class Figure(Struct, frozen=True, kw_only=True):
    """Charts of one kind side by side, also written to the files `picture`.svg and .png beside the page."""

    caption: str
    picture: str
    kind: Literal["scatter", "radar", "heatmap"] = "scatter"
    panels: Sequence[Scatter | Grid]


class Part(Struct, frozen=True, kw_only=True):
    """Sentences, pictures and tables under a heading."""

    heading: str = ""
    readings: list[str] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


class Section(Part, frozen=True, kw_only=True):
    """An entry of the page's table of contents.

    - `parts`: subsections of one kind, such as one per test sample.
    - `key`: the section's anchor; "" uses its number.
    - `note`: a closing sentence in small print, or "".
    """

    key: str = ""
    parts: list[Part] = field(default_factory=list)
    note: str = ""


Shown = TableCell | str | int


def row(name: str, *cells: Shown, **rest: Any) -> TableRow:
    """Build a table row from texts, numbers or cells; `rest` sets the other fields of TableRow."""
    table_cells = [cell if isinstance(cell, TableCell) else TableCell(str(cell)) for cell in cells]
    return TableRow(name=name, cells=table_cells, **rest)


class Columns(Generic[T]):
    """The columns of a table of items of one kind.

    `columns`: a heading and a function from item to cell per column. The first column gives the row's name.
    `fields`: field of TableRow -> function from item to the field's value.

    >>> columns = Columns(("name", str), ("twice", lambda value: number(2 * value, 1)), strong=lambda value: value < 0)
    >>> table = columns.table("Numbers.", [1.5, -0.04], axis=(-5, 5), chart_column=2)
    >>> table.head, table.axis, table.chart_column
    (['name', 'twice'], (-5, 5), 2)
    >>> [(row.name, row.cells[0].text, row.strong) for row in table.rows]
    [('1.5', '3.0', False), ('-0.04', '−0.1', True)]
    """

    def __init__(self, *columns: tuple[str, Callable[[T], Shown]], **fields: Callable[[T], Any]) -> None:
        self.columns, self._fields = columns, fields
        self.bar: Callable[[T], Bar | None] = fields.get("bar", lambda _: None)

    def table(self, caption: str, items: Iterable[T], **rest: Any) -> Table:
        """Build a table with one row per item; `rest` sets the other fields of Table."""
        rows = []
        for item in items:
            name, *cells = (cell(item) for _, cell in self.columns)
            rows.append(row(str(name), *cells, **{field: of(item) for field, of in self._fields.items()}))
        return Table(caption=caption, head=[heading for heading, _ in self.columns], rows=rows, **rest)


def lean(table: Table, merge: bool = True) -> Table:
    """Remove columns without information from a table, except the one before its bars.

    Empty columns are dropped. With `merge`, a column with the same text in all of three or more rows moves into the
    caption.

    >>> rows = [row("a", "–", 3, "1.5", "0 … 1"), row("b", "–", 3, "1.5", ""), row("c", "", 3, "1.5", "")]
    >>> table = Table(caption="Counts.", head=["", "p", "n", "MAE", "range"], rows=rows, axis=(0, 2), chart_column=4)
    >>> leaner = lean(table)
    >>> leaner.head, leaner.caption, leaner.chart_column, [len(row.cells) for row in leaner.rows]
    (['', 'MAE', 'range'], 'Counts. In each row: n 3.', 2, [2, 2, 2])
    >>> lean(table, merge=False).head, lean(replace(table, rows=rows[:2])).head
    (['', 'n', 'MAE', 'range'], ['', 'n', 'MAE', 'range'])
    >>> lean(replace(table, rows=[])).head
    ['', 'p', 'n', 'MAE', 'range']
    """
    kept, constants = list[int](), list[str]()
    for index, cells in enumerate(zip(*(row.cells for row in table.rows), strict=True)):
        # A dash is a missing value, so a column of dashes is empty.
        texts = {cell.text.strip("–") + cell.small for cell in cells}
        constant = merge and len(texts) == 1 and len(cells) > 2 and not cells[0].small
        if (table.axis and index + 2 == table.chart_column) or not (constant or texts == {""}):
            kept.append(index)
        elif texts != {""}:
            constants.append(f"{table.head[index + 1]} {cells[0].text}")
    # Without rows nothing is known to be empty.
    if not table.rows or len(kept) == len(table.head) - 1:
        return table
    return replace(
        table,
        caption=f"{table.caption.rstrip('.')}. In each row: {', '.join(constants)}." if constants else table.caption,
        head=[table.head[0], *(table.head[index + 1] for index in kept)],
        rows=[replace(row, cells=[row.cells[index] for index in kept]) for row in table.rows],
        chart_column=2 + sum(index + 2 < table.chart_column for index in kept),
    )


def shortened(name: str, length: int) -> str:
    """Cut the middle out of a name longer than `length` characters, because names of models often begin alike."""
    return name if len(name) <= length else f"{name[: length // 2]}…{name[(length - 1) // -2 + 1 :]}"


def number(value: float | None, decimals: int = 2) -> str:
    """Format a number with a true minus sign and no negative zero; None (undefined) is a dash.

    >>> number(-1.25), number(-0.001), number(None)
    ('−1.25', '0.00', '–')
    """
    # Adding 0 to what is rounded makes −0.0 a 0.
    return "–" if value is None else f"{round(value, decimals) + 0.0:.{decimals}f}".replace("-", "−")


def span(low: float | None, high: float | None, decimals: int = 2) -> str:
    """Format the range in which a score could lie, such as "0.50 … 0.75"; "" if it is unknown."""
    return "" if low is None or high is None else f"{number(low, decimals)} … {number(high, decimals)}"


def interval(bounds: Bounds | None, decimals: int = 2) -> str:
    """Format an interval as `0.95–1.10`, with "to" if a bound is negative; "" for None.

    >>> interval((0.95, 1.1)), interval((-0.2, 0.3))
    ('0.95–1.10', '−0.20 to 0.30')
    """
    if bounds is None:
        return ""
    low, high = (number(bound, decimals) for bound in bounds)
    return f"{low} to {high}" if "−" in low + high else f"{low}–{high}"


def share(value: float | None) -> str:
    """Format a share from 0 to 1 in per cent."""
    return "–" if value is None else f"{number(100 * value, 1)} %"


def shares(bounds: Bounds | None) -> str:
    """Format the interval of a share from 0 to 1 in per cent; "" for None."""
    return f"{interval((100 * bounds[0], 100 * bounds[1]), 1)} %" if bounds else ""


def listed(words: Sequence[str]) -> str:
    """Join one or more words with commas and a final "and"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def bar(value: float | None, bounds: Bounds | None) -> Bar | None:
    """Build a bar, or return None if `value` is None."""
    return None if value is None else Bar(value, bounds)


def axis_of(bars: Iterable[Bar | None], *, centred: bool = False) -> Bounds:
    """Return the ends of an axis: 0 and a round number beyond every bar; with `centred`, symmetric about 0.

    Bars below 0 count by their absolute length.

    >>> bars = [Bar(1.5, (0.5, 2.5)), Bar(-0.04, (-1.04, 0.96)), None]
    >>> axis_of(bars), axis_of(bars, centred=True)
    ((0.0, 2.5), (-2.5, 2.5))
    >>> axis_of([Bar(-3.2, None)]), axis_of([])
    ((0.0, 3.5), (0.0, 1.0))
    """
    ends = [abs(end) for bar in bars if bar for end in (bar.value, *(bar.interval or ()))]
    furthest = max(ends, default=1.0)
    step = next(step for step in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10) if furthest <= 10 * step)
    end = step * -(-furthest // step) or step  # rounded up to a whole step, one at least
    # Effects may lie on either side of 0 and are compared by length.
    return (-end, end) if centred else (0.0, end)


def ticks_of(bars: Iterable[Bar | None], most: int) -> list[float]:
    """Return at most `most` (3 or more) evenly spaced round numbers that span every bar."""
    ends = [end for bar in bars if bar for end in (bar.value, *(bar.interval or ()))] or [0.0]
    low, high = min(ends), max(ends)
    unit = 10.0 ** math.floor(math.log10(max(high - low, abs(high) / 100, 0.01)))
    # The smallest round step with few enough ticks; the last one always is.
    for step in (unit * size / 10 for size in (1, 2, 5, 10, 20, 50, 100)):
        first, last = math.floor(low / step), math.ceil(high / step)
        if last - first < most:
            break
    return [round(number * step, 9) for number in range(first, max(last, first + 1) + 1)]


def axis(name: str, bars: Iterable[Bar | None], most: int = 7) -> Axis:
    """Return an axis with at most `most` ticks that spans every bar."""
    return Axis(name, {tick: f"{tick:g}".replace("-", "−") for tick in ticks_of(bars, most)})


def align(grid: Sequence[Sequence[str]], *, right: bool = False) -> Iterator[str]:
    """Yield each row as one line of text, with its cells padded to the widest of their column. Rows may be short.

    `right`: True to align all columns but the first to the right.

    >>> [*align([["judge", "n"], ["ours", "12"]])], [*align([["judge", "n"], ["ours", "12"]], right=True)]
    (['judge  n', 'ours   12'], ['judge   n', 'ours   12'])
    """
    widths = [max(map(measure_width, column)) for column in zip_longest(*grid, fillvalue="")]
    for line in grid:
        cells = []
        for number, cell in enumerate(line):
            space = " " * (widths[number] - measure_width(cell))
            cells.append(space + cell if right and number else cell + space)
        yield "  ".join(cells).rstrip()


def measure_width(text: str) -> int:
    """Return the width of a text in terminal columns; East Asian wide characters take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)
