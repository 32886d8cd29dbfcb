"""Scores and preferences in tables, in columns, with the place of every row."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from critic import tables
from critic.counting.resampling import Floats
from critic.errors import UsageError
from critic.records import RATINGS

Scale = tuple[float, float]

SCALE: Scale = (RATINGS[0], RATINGS[-1])
"""The scale of scores, unless the user names another."""


PART_COLUMNS = {"task": "task", "category": "category", "lang": "lang", "system": "answerer", "turn": "turn"}
"""Columns of a table that break a sample down, and the property each stands for."""


class Source(Struct, frozen=True):
    """A file and the column that holds the scores; None: the usual one."""

    path: Path
    column: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Source":
        """FILE or FILE:COLUMN."""
        file, separator, column = text.rpartition(":")
        if not separator or Path(text).is_file():
            return cls(Path(text))
        return cls(Path(file), column)


class ColumnTable(Struct, frozen=True):
    """A file in columns. `line[i]` is the line (Parquet and Excel: the row) that row i came from."""

    path: Path
    columns: dict[str, list[Any]]
    line: Sequence[int]

    def place(self, row: int) -> str:
        return tables.place(self.path, self.line[row])

    def column(self, name: str) -> list[Any]:
        """Raises UsageError naming the columns there are."""
        if name not in self.columns:
            raise UsageError(f"{self.path}: no column {name!r}; there are {', '.join(self.columns)}")
        return self.columns[name]

    def texts(self, name: str) -> list[str | None]:
        """A column as texts; None where empty. All None where there is no such column."""
        if name not in self.columns:
            return [None] * len(self.line)
        return [None if value is None or value == "" else str(value) for value in self.columns[name]]

    def numbers(self, name: str, scale: Scale = SCALE) -> Floats:
        """A column of scores on `scale`, moved onto 1..10; NaN where empty. Raises UsageError with the line."""
        low, high = scale
        found = np.full(len(self.line), np.nan)
        for row, value in enumerate(self.column(name)):
            number = self.number(row, name, value)
            if number is None:
                continue
            if not low <= number <= high:
                raise UsageError(f"{self.place(row)}: {name} {number:g} is outside {low:g}..{high:g} (see --scale)")
            found[row] = number
        first, last = SCALE
        return first + (last - first) * (found - low) / (high - low)

    def number(self, row: int, name: str, value: Any) -> float | None:
        """A cell as a number; None where empty. Raises UsageError with the line."""
        if value is None or value == "":
            return None
        try:
            if isinstance(value, bool):
                raise ValueError
            number = float(value)
        except (TypeError, ValueError):
            raise UsageError(f"{self.place(row)}: {name} {value!r} is not a number") from None
        if math.isinf(number):
            raise UsageError(f"{self.place(row)}: {name} {value!r} is not a finite number")
        return None if math.isnan(number) else number


def read_table(path: Path) -> ColumnTable:
    """A CSV (with a header), JSONL, Parquet or Excel file. Raises UsageError naming file and line."""
    columns: dict[str, list[Any]] = {}
    lines: list[int] = []
    for number, row in tables.numbered(path):
        for name in row:
            if name not in columns:
                columns[name] = [None] * len(lines)
        for name, cells in columns.items():
            cells.append(row.get(name))
        lines.append(number)
    return ColumnTable(path, columns, lines)


def keys_of(table: ColumnTable) -> list[str]:
    """The ids; places where there is no such column."""
    if "id" not in table.columns:
        return [table.place(row) for row in range(len(table.line))]
    keys = table.texts("id")
    if None in keys:
        raise UsageError(f"{table.place(keys.index(None))}: the id is empty")
    return [key for key in keys if key is not None]


def lengths_of(table: ColumnTable, which: str = "") -> Floats:
    """Characters of each answer, from a column `length`, `response` or `text` (`length_a` …); NaN where unknown."""
    length = f"length{which}"
    if length in table.columns:
        given = [table.number(row, length, value) for row, value in enumerate(table.columns[length])]
        found = np.array(given, dtype=np.float64)
        if (found < 0).any():
            raise UsageError(f"{table.place(int(np.argmax(found < 0)))}: {length} is below 0")
        return found
    name = next((name for name in (f"response{which}", f"text{which}") if name in table.columns), None)
    texts = table.columns[name] if name else [None] * len(table.line)
    return np.array([None if text is None else len(str(text)) for text in texts], dtype=np.float64)
