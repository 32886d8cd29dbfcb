"""Tables in files: CSV, JSONL and Parquet, in columns, with the place of every row."""

import csv
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from critic import jsonl
from critic.errors import UsageError
from critic.records import RATINGS
from eval_agreement.metrics import Floats

Scale = tuple[float, float]

SCALE: Scale = (RATINGS[0], RATINGS[-1])
"""The scale of scores, unless the user names another."""


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


class Table(Struct, frozen=True):
    """A file in columns. `line[i]` is the line (Parquet: the row, from 1) that row i came from."""

    path: Path
    columns: dict[str, list[Any]]
    line: Sequence[int]

    def place(self, row: int) -> str:
        return f"{self.path}:{self.line[row]}"

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


def read_table(path: Path) -> Table:
    """A CSV (with a header), JSONL or Parquet file. Raises UsageError naming file and line."""
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    readers: dict[str, Callable[[Path], Table]] = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
    if path.suffix not in readers:
        raise UsageError(f"{path}: expected a file that ends in {', '.join(readers)}")
    table = readers[path.suffix](path)
    if not table.line:
        raise UsageError(f"{path}: no rows")
    return table


def _csv(path: Path) -> Table:
    lines: list[int] = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        try:
            header = next(reader, [])
            if twice := [name for name in header if header.count(name) > 1]:
                raise UsageError(f"{path}:1: the column {twice[0]!r} is there twice")
            columns: list[list[Any]] = [[] for _ in header]
            for row in reader:
                if len(row) not in (0, len(header)):
                    raise UsageError(f"{path}:{reader.line_num}: {len(row)} cells, but the header has {len(header)}")
                lines += [reader.line_num] if row else []
                for column, cell in zip(columns, row, strict=False):
                    column.append(cell)
        except (UnicodeDecodeError, csv.Error) as error:
            raise UsageError(f"{path}: cannot be read after line {reader.line_num}: {error}") from None
    return Table(path, dict(zip(header, columns, strict=True)), lines)


def _jsonl(path: Path) -> Table:
    rows = list(jsonl.read(path, dict[str, Any]))
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    return Table(path, {name: [row.get(name) for _, row in rows] for name in names}, [number for number, _ in rows])


def _parquet(path: Path) -> Table:
    try:
        from pyarrow import ArrowInvalid, parquet  # noqa: PLC0415 - only for those who have Parquet
    except ImportError:
        raise UsageError(f"{path}: to read Parquet, pip install pyarrow") from None
    try:
        table = parquet.read_table(path)
    except (ArrowInvalid, OSError) as error:
        raise UsageError(f"{path}: not a Parquet file: {error}") from None
    return Table(path, table.to_pydict(), range(1, table.num_rows + 1))
