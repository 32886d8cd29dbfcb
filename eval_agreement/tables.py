"""Scores and preferences in tables, in columns, with the place of every row."""

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from critic import tables
from critic.counting.resampling import Floats
from critic.errors import UsageError
from critic.records import RATINGS

V = TypeVar("V")

Scale = tuple[float, float]
Parts = Mapping[str, Sequence[str | None]]

SCALE: Scale = (RATINGS[0], RATINGS[-1])
"""The scale of scores, unless the user names another."""


_MOST_SHARED = 1 << 20

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

    def texts(self, name: str, rows: Sequence[int] | None = None) -> list[str | None]:
        """A column, or some rows of it, as texts; None where empty. All None where there is no such column."""
        rows = range(len(self.line)) if rows is None else rows
        if name not in self.columns:
            return [None] * len(rows)
        cells = self.columns[name]
        return [None if cells[row] is None or cells[row] == "" else str(cells[row]) for row in rows]

    def numbers(self, name: str, scale: Scale = SCALE) -> Floats:
        """A column of scores on `scale`, moved onto 1..10; NaN where empty. Raises UsageError with the line."""
        low, high = scale
        found, plain = np.full(len(self.line), np.nan), self.plain(name)
        if plain is not None and not ((plain < low) | (plain > high)).any():
            found = plain
        for row, value in enumerate(self.column(name) if found is not plain else ()):
            number = self.number(row, name, value)
            if number is None:
                continue
            if not low <= number <= high:
                raise UsageError(f"{self.place(row)}: {name} {number:g} is outside {low:g}..{high:g} (see --scale)")
            found[row] = number
        first, last = SCALE
        return first + (last - first) * (found - low) / (high - low)

    def plain(self, name: str) -> Floats | None:
        """A column of numbers as it is, NaN where empty; None where a cell has to be looked at by itself."""
        cells = self.column(name)
        try:
            found = None if bool in set(map(type, cells)) else np.array(cells, dtype=np.float64)
        except (TypeError, ValueError):
            return None
        return None if found is None or np.isinf(found).any() else found

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
    """A CSV (with a header), JSONL, Parquet or Excel file, read again only where it has changed. Raises UsageError
    naming file and line."""
    facts = path.stat() if path.is_file() else None
    return _read_table(path, facts and (facts.st_mtime_ns, facts.st_size, facts.st_ino))


class _Shared(dict[str, str]):
    """Texts that a column holds again and again, kept once."""

    def __missing__(self, text: str) -> str:
        if len(self) < _MOST_SHARED:
            self[text] = text
        return text


@lru_cache(maxsize=2)
def _read_table(path: Path, _: object) -> ColumnTable:
    columns: dict[str, list[Any]] = {}
    shared: dict[str, _Shared] = {}
    lines = array("q")
    for number, row in tables.numbered(path):
        for name in row:
            if name not in columns:
                columns[name], shared[name] = [None] * len(lines), _Shared()
        for name, cells in columns.items():
            value = row.get(name)
            cells.append(shared[name][value] if type(value) is str else value)
        lines.append(number)
    return ColumnTable(path, columns, lines)


def forget() -> None:
    """Let go of the tables that were read."""
    _read_table.cache_clear()


def all_differ(ids: Sequence[str]) -> bool:
    """Whether none comes twice, by sorted hashes: 8 bytes an id, where a set takes a hundred."""
    hashes = np.sort(_hashes(ids))
    return not (hashes[1:] == hashes[:-1]).any() or len(set(ids)) == len(ids)


def places(known: Sequence[str], ids: Sequence[str]) -> NDArray[np.intp]:
    """Where each of `ids` stands in `known`, in which each stands once; -1 where it does not."""
    if known is ids or known == ids:
        return np.arange(len(ids))
    if not known:
        return np.full(len(ids), -1)
    there, wanted = _hashes(known), _hashes(ids)
    order = np.argsort(there)
    spot = np.minimum(np.searchsorted(there, wanted, sorter=order), len(order) - 1)
    found: NDArray[np.intp] = order[spot]
    for row in np.flatnonzero([known[place] != key for place, key in zip(found.tolist(), ids, strict=True)]):
        # Another text may have the same hash; they stand side by side.
        alike = order[spot[row] :][: int((there == wanted[row]).sum())] if there[found[row]] == wanted[row] else ()
        found[row] = next((place for place in alike if known[place] == ids[row]), -1)
    return found


def _hashes(texts: Sequence[str]) -> NDArray[np.int64]:
    return np.fromiter(map(hash, texts), dtype=np.int64, count=len(texts))


def keys_of(table: ColumnTable) -> list[str]:
    """The ids; places where there is no such column."""
    if "id" not in table.columns:
        return [table.place(row) for row in range(len(table.line))]
    keys = table.texts("id")
    if None in keys:
        raise UsageError(f"{table.place(keys.index(None))}: the id is empty")
    return [key for key in keys if key is not None]


def parts_of(table: ColumnTable, rows: Sequence[int]) -> dict[str, list[str | None]]:
    """What breaks the rows down; None where it is not known."""
    return {part: table.texts(name, rows) for name, part in PART_COLUMNS.items()}


def by_rater(
    table: ColumnTable, said: Sequence[V], differ: Callable[[V, V, str | None], str]
) -> tuple[dict[str, int], dict[str | None, dict[str, V]]]:
    """The first row of each id, and what each rater said of each id (all under None without a column `rater`).

    `said` holds what each row says. Raises UsageError naming the line for a rater who says two things of one id:
    `differ` puts the later and the earlier one, and who said them, into words.
    """
    rows: dict[str, int] = {}
    raters: dict[str | None, dict[str, V]] = {}
    for row, (key, rater, value) in enumerate(zip(keys_of(table), table.texts("rater"), said, strict=True)):
        if rater is None and "rater" in table.columns:
            raise UsageError(f"{table.place(row)}: the rater is empty")
        before = raters.setdefault(rater, {}).setdefault(key, value)
        if before != value:
            raise UsageError(f"{table.place(row)}: {key!r} has the {differ(value, before, rater)}")
        rows.setdefault(key, row)
    return rows, raters


def filled(ids: Sequence[str], mine: Parts, other_ids: Sequence[str], other: Parts) -> dict[str, list[str | None]]:
    """Columns by name over `ids`: where `mine` do not say anything of an id, what `other`, over `other_ids`, say."""
    nothing: dict[str, str | None] = {}
    columns = {name: dict(zip(other_ids, values, strict=True)) for name, values in other.items()}
    return {
        name: [
            columns.get(name, nothing).get(key) if own is None else own
            for key, own in zip(ids, mine.get(name, [None] * len(ids)), strict=True)
        ]
        for name in {**mine, **other}
    }


def probabilities_of(table: ColumnTable) -> Floats:
    """The chance that each row had of being labelled, from a column `label_probability`; NaN where it is not known.
    Raises UsageError with the line for one that is not above 0 and at most 1."""
    found = _numbers_in(table, "label_probability")
    if (wrong := (found <= 0) | (found > 1)).any():
        raise UsageError(f"{table.place(int(np.argmax(wrong)))}: label_probability is not above 0 and at most 1")
    return found


def _numbers_in(table: ColumnTable, name: str) -> Floats:
    """A column that may be missing, as numbers; NaN where empty. Raises UsageError with the line."""
    if name not in table.columns:
        return np.full(len(table.line), np.nan)
    if (plain := table.plain(name)) is not None:
        return plain
    given = [table.number(row, name, value) for row, value in enumerate(table.columns[name])]
    return np.array(given, dtype=np.float64)


def lengths_of(table: ColumnTable, which: str = "") -> Floats:
    """Characters of each answer, from a column `length`, `response` or `text` (`length_a` …); NaN where unknown."""
    length = f"length{which}"
    if length in table.columns:
        found = _numbers_in(table, length)
        if (found < 0).any():
            raise UsageError(f"{table.place(int(np.argmax(found < 0)))}: {length} is below 0")
        return found
    name = next((name for name in (f"response{which}", f"text{which}") if name in table.columns), None)
    texts = table.columns[name] if name else [None] * len(table.line)
    return np.array([None if text is None else len(str(text)) for text in texts], dtype=np.float64)
