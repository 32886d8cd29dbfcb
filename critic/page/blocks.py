"""What a page is made of, the same for the terminal and HTML, and how its numbers are written."""

import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

T = TypeVar("T")

Bounds = tuple[float, float]


class TableCell(Struct, frozen=True):
    """A number or word, with its interval in small print; `title` is shown where the mouse rests."""

    text: str
    small: str = ""
    title: str = ""


class Bar(Struct, frozen=True):
    """A value with its interval, to be drawn on the table's axis."""

    value: float
    interval: Bounds | None


class Panel(Struct, frozen=True, kw_only=True):
    """One score in a picture: a bar for each row of its table, over an axis from the first to the last of `ticks`."""

    heading: str
    bars: list[Bar | None]
    ticks: list[float]


class TableRow(Struct, frozen=True, kw_only=True):
    """`about` says in small print what the row is; `strong` rows are what the table is about. What is of one `model`
    has one colour on a page."""

    name: str
    cells: list[TableCell]
    about: str = ""
    bar: Bar | None = None
    strong: bool = False
    model: str = ""


class Table(Struct, frozen=True, kw_only=True):
    """`head` names the first column and every cell. With `axis`, the rows' bars are drawn between its ends, behind
    the column number `drawn` (from 1). `folded` tables open on demand, and are left out of text; `details` open on
    demand on a page alone. The names of `sticky` ones stay in sight where the table is wider than the page. The
    `panels` are drawn side by side above the table, and into the file `picture`.svg beside the page."""

    caption: str
    head: list[str]
    rows: list[TableRow]
    axis: Bounds | None = None
    drawn: int = 4
    folded: bool = False
    details: bool = False
    sticky: bool = False
    panels: list[Panel] = field(default_factory=list)
    picture: str = ""


class Part(Struct, frozen=True, kw_only=True):
    """Sentences and tables under a heading."""

    heading: str = ""
    readings: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


class Section(Part, frozen=True, kw_only=True):
    """What a page's list of contents names, by way of `parts` of several things of one kind, such as samples. `key` is
    its address in the page, its number where there is none."""

    key: str = ""
    parts: list[Part] = field(default_factory=list)
    note: str = ""


Shown = TableCell | str | int


def row(name: str, *cells: Shown, **rest: Any) -> TableRow:
    """`rest` are the other fields of TableRow."""
    table_cells = [cell if isinstance(cell, TableCell) else TableCell(str(cell)) for cell in cells]
    return TableRow(name=name, cells=table_cells, **rest)


class Columns(Generic[T]):
    """How things of one kind become the rows of a table: each column's heading and its cell, the first of which names
    the row. `about`, `bar`, `strong` and `model` as in TableRow."""

    def __init__(
        self,
        *columns: tuple[str, Callable[[T], Shown]],
        about: Callable[[T], str] = lambda _: "",
        bar: Callable[[T], Bar | None] = lambda _: None,
        strong: Callable[[T], bool] = lambda _: False,
        model: Callable[[T], str] = lambda _: "",
    ) -> None:
        self.columns, self.bar = columns, bar
        self._rest: dict[str, Callable[[T], Any]] = {"about": about, "bar": bar, "strong": strong, "model": model}

    def table(self, caption: str, items: Iterable[T], **rest: Any) -> Table:
        """`rest` are the other fields of Table."""
        rows = []
        for item in items:
            name, *cells = (cell(item) for _, cell in self.columns)
            rows.append(row(str(name), *cells, **{field: of(item) for field, of in self._rest.items()}))
        return Table(caption=caption, head=[heading for heading, _ in self.columns], rows=rows, **rest)


def lean(table: Table, merge: bool = True) -> Table:
    """The table without columns that say nothing: those without any number or word and, to `merge`, those that say one
    thing in each of three rows or more, which goes into the caption. What is drawn stays."""
    kept, constants = list[int](), list[str]()
    for index, cells in enumerate(zip(*(row.cells for row in table.rows), strict=True)):
        texts = {cell.text.strip("–") + cell.small for cell in cells}
        constant = merge and len(texts) == 1 and len(cells) > 2 and not cells[0].small
        if (table.axis and index + 2 == table.drawn) or not (constant or texts == {""}):
            kept.append(index)
        elif texts != {""}:
            constants.append(f"{table.head[index + 1]} {cells[0].text}")
    if not table.rows or len(kept) == len(table.head) - 1:
        return table
    return replace(
        table,
        caption=f"{table.caption.rstrip('.')}. In each row: {', '.join(constants)}." if constants else table.caption,
        head=[table.head[0], *(table.head[index + 1] for index in kept)],
        rows=[replace(row, cells=[row.cells[index] for index in kept]) for row in table.rows],
        drawn=2 + sum(index + 2 < table.drawn for index in kept),
    )


def shortened(name: str, length: int) -> str:
    """Without its middle where it is too long: names of models are alike at the beginning."""
    return name if len(name) <= length else f"{name[: length // 2]}…{name[(length - 1) // -2 + 1 :]}"


def number(value: float | None, decimals: int = 2) -> str:
    """With a true minus, no minus before zero, and a dash for what is not defined."""
    # Adding 0 to what is rounded makes −0.0 a 0.
    return "–" if value is None else f"{round(value, decimals) + 0.0:.{decimals}f}".replace("-", "−")


def span(low: float | None, high: float | None, decimals: int = 2) -> str:
    """The range in which a score could lie; empty where it is not known."""
    return "" if low is None or high is None else f"{number(low, decimals)} … {number(high, decimals)}"


def interval(bounds: Bounds | None, decimals: int = 2) -> str:
    """`0.95–1.10`, with "to" between negative bounds; empty where there is none."""
    if bounds is None:
        return ""
    low, high = (number(bound, decimals) for bound in bounds)
    return f"{low} to {high}" if "−" in low + high else f"{low}–{high}"


def share(value: float | None) -> str:
    return "–" if value is None else f"{number(100 * value, 1)} %"


def shares(bounds: Bounds | None) -> str:
    """An interval of a share, in per cent."""
    return f"{interval((100 * bounds[0], 100 * bounds[1]), 1)} %" if bounds else ""


def listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def bar(value: float | None, bounds: Bounds | None) -> Bar | None:
    return None if value is None else Bar(value, bounds)


def axis_of(bars: Iterable[Bar | None], *, centred: bool = False) -> Bounds:
    """From 0 (or symmetric about it) to a round number beyond every bar."""
    ends = [abs(end) for bar in bars if bar for end in (bar.value, *(bar.interval or ()))]
    furthest = max(ends, default=1.0)
    step = next(step for step in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10) if furthest <= 10 * step)
    end = step * -(-furthest // step) or step  # rounded up to a whole step, one at least
    return (-end, end) if centred else (0.0, end)


def ticks_of(bars: Iterable[Bar | None], most: int) -> list[float]:
    """At most so many round numbers, evenly spaced, from below every bar to above it; three or more are asked for."""
    ends = [end for bar in bars if bar for end in (bar.value, *(bar.interval or ()))] or [0.0]
    low, high = min(ends), max(ends)
    unit = 10.0 ** math.floor(math.log10(max(high - low, abs(high) / 100, 0.01)))
    for step in (unit * size / 10 for size in (1, 2, 5, 10, 20, 50, 100)):
        first, last = math.floor(low / step), math.ceil(high / step)
        if last - first < most:
            break
    return [round(number * step, 9) for number in range(first, max(last, first + 1) + 1)]


def as_text(sections: Sequence[Section]) -> str:
    """The sections as fixed-width text, folded tables left out."""
    lines: list[str] = []
    for section in sections:
        body = [line for part in (section, *section.parts) for line in _paragraphs(part)]
        if body:
            lines += ["", section.heading, "=" * _width(section.heading), *body]
            lines += ["", section.note] if section.note else []
    return "\n".join(lines).strip("\n")


def _paragraphs(part: Part) -> Iterator[str]:
    shown = [table for table in part.tables if not table.folded]
    if part.heading and not isinstance(part, Section) and (part.readings or shown):
        yield from ("", part.heading)
    yield from part.readings
    for table in (lean(table, merge=False) for table in shown):
        yield from ("", table.caption, *_lines(table))


def _lines(table: Table) -> list[str]:
    """The first column to the left, all others to the right."""
    grid = [table.head]
    for row in table.rows:
        cells = [f"{cell.text} ({cell.small})" if cell.small else cell.text for cell in row.cells]
        grid.append([row.name, *cells])
    widths = [max(map(_width, column)) for column in zip(*grid, strict=True)]
    lines = []
    for line in grid:
        spaces = [" " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)]
        aligned = [space + cell for cell, space in zip(line[1:], spaces[1:], strict=True)]
        lines.append("  ".join([line[0] + spaces[0], *aligned]).rstrip())
    return lines


def _width(text: str) -> int:
    """Columns on a terminal."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)
