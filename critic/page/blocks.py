"""What a report is made of, the same for the terminal and for HTML."""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from critic.counting.aggregate import Aggregate, Difference


class Row(Struct, frozen=True, kw_only=True):
    """`strong` rows are what the table is about; `depth` sets a row in."""

    name: str
    cells: list[str]
    strong: bool = False
    depth: int = 0


class Table(Struct, frozen=True, kw_only=True):
    """`head` names the first column and every cell. `folded` tables are in the page only, and open on demand."""

    caption: str
    head: list[str]
    rows: list[Row]
    folded: bool = False


class Picture(Struct, frozen=True):
    """An SVG that was drawn here, and what it shows."""

    caption: str
    svg: str


class Section(Struct, frozen=True, kw_only=True):
    heading: str
    readings: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    note: str = ""


AGGREGATE_HEAD = ["", "score", "n", "failed", "asked", "coverage", "range with what is missing"]
DIFFERENCE_HEAD = ["", "difference", "95 % interval", "p", "pairs", "missing", "range with what is missing"]


def number(value: float | None, decimals: int = 2) -> str:
    return "–" if value is None else f"{round(value, decimals) + 0.0:.{decimals}f}".replace("-", "−")


def span(low: float | None, high: float | None, decimals: int = 2) -> str:
    return "" if low is None or high is None else f"{number(low, decimals)} … {number(high, decimals)}"


def aggregate(name: str, found: Aggregate, strong: bool = False, depth: int = 0) -> Row:
    """A score with how much of it is missing; the range only where something is."""
    missing = found.n < found.asked
    cells = [number(found.value), str(found.n), str(found.failed), str(found.asked), f"{found.coverage:.1%}"]
    return Row(name=name, cells=[*cells, span(found.low, found.high) if missing else ""], strong=strong, depth=depth)


def aggregates(caption: str, rows: Mapping[str, Aggregate], folded: bool = False) -> Table:
    return Table(
        caption=caption,
        head=AGGREGATE_HEAD,
        rows=[aggregate(name, found) for name, found in rows.items()],
        folded=folded,
    )


def difference(name: str, found: Difference) -> Row:
    interval = "–" if found.interval is None else span(*found.interval)
    p = "–" if found.p_value is None else f"{found.p_value:.4f}"
    why = next(iter(found.undefined.values()), "")
    bounds = span(found.low, found.high) if found.missing else ""
    return Row(
        name=name,
        cells=[number(found.mean), interval if not why else f"– ({why})", p, str(found.n), str(found.missing), bounds],
    )


def differences(caption: str, rows: Iterable[Row], folded: bool = False) -> Table:
    return Table(caption=caption, head=DIFFERENCE_HEAD, rows=list(rows), folded=folded)


def as_text(sections: Sequence[Section]) -> str:
    """The sections as fixed-width text, folded tables and pictures left out."""
    lines: list[str] = []
    for section in sections:
        if not section.readings and all(table.folded for table in section.tables):
            continue
        lines += ["", section.heading, "=" * _width(section.heading), *section.readings]
        for table in section.tables:
            if not table.folded:
                lines += ["", table.caption, *_lines(table)]
        if section.note:
            lines += ["", section.note]
    return "\n".join(lines).strip("\n")


def _lines(table: Table) -> list[str]:
    grid = [table.head, *(["  " * row.depth + row.name, *row.cells] for row in table.rows)]
    widths = [max(_width(line[column]) for line in grid) for column in range(len(table.head))]
    return [
        "  ".join(
            _padded(cell, width, left=column == 0)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in grid
    ]


def _padded(text: str, width: int, left: bool) -> str:
    space = " " * (width - _width(text))
    return text + space if left else space + text


def _width(text: str) -> int:
    """Columns on a terminal."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)
