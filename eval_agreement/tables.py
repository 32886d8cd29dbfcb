"""Scores and preferences in tables, in columns, with the place of every row."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from critic import tables
from critic.counting.arrays import Floats
from critic.counting.coded import Coded
from critic.counting.columns import Column, Reread, Spooled, as_column
from critic.errors import UsageError
from critic.records import RATINGS, Question, Response
from eval_agreement.metrics import Indices

V = TypeVar("V")

Scale = tuple[float, float]
Parts = Mapping[str, Sequence[str | None]]

SCALE: Scale = (RATINGS[0], RATINGS[-1])
"""The scale of scores, unless the user names another."""


PART_COLUMNS = {"task": "task", "category": "category", "lang": "lang", "system": "answerer", "turn": "turn"}
"""Columns of a table that break a sample down, and the property each stands for."""


NO_GROUP = (
    "no column group says which rows are on the same question: each row counts as a question of its own, and intervals "
    "are too narrow where several share one; --group COLUMN names another column that says so"
)

MOST_NAMED = 8
"""Unused columns that are named."""

USED = ("id", "rater", "group", *PART_COLUMNS, "question", "reference", "label_probability", "first")
"""Columns that an audit reads beside scores, lengths and texts."""


class Source(Struct, frozen=True):
    """A file and the column that holds the scores; None: the usual one. `named` are pairs of the usual name of another
    column and the name that it has here, if it is here at all."""

    path: Path
    column: str | None = None
    named: tuple[tuple[str, str], ...] = ()

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
    columns: dict[str, Column[Any]]
    line: Sequence[int]

    def place(self, row: int) -> str:
        return tables.place(self.path, self.line[row])

    def column(self, name: str) -> Column[Any]:
        """Raises UsageError naming the columns there are."""
        if name not in self.columns:
            there = ", ".join(self.columns)
            raise UsageError(f"{self.path}: no column {name!r}; there are {there} (name one as FILE:COLUMN)")
        return self.columns[name]

    def texts(self, name: str) -> Column[str | None]:
        """A column as texts, whole numbers without the .0 of columns with empty cells; None where empty or NaN. All
        None where there is no such column."""
        if name not in self.columns:
            return Column(repeat(None, len(self.line)))
        return self.columns[name].map(tables.cell_text)

    def numbers(self, name: str, scale: Scale = SCALE, option: str = "--scale", none: float | None = None) -> Coded:
        """A column of scores on `scale`, which `option` names, moved onto 1..10; NaN where empty, or `none` and that is
        off the scale. Raises UsageError with the line."""
        low, high = scale
        plain = self.plain(name, high)
        if none is not None and not low <= none <= high:
            plain = plain.map(lambda given: np.where(given == none, np.nan, given))
        outside = (plain.values < low) | (plain.values > high)
        if outside.any():
            row = int(np.argmax(outside[plain.code]))
            expected = f"is outside {low:g}..{high:g} (see {option})"
            raise UsageError(f"{self.place(row)}: {name} {plain[row]:g} {expected}")
        return plain.map(lambda given: (given - low) * (SCALE[1] - SCALE[0]) / (high - low) + SCALE[0])

    def plain(self, name: str, below: float = math.inf) -> Coded:
        """A column of numbers, as `tables.number` has them, NaN where empty. Raises UsageError with the line."""
        found = []
        for row, cell in enumerate(self.column(name)):
            try:
                found.append(tables.number(cell, below))
            except ValueError as error:
                raise UsageError(f"{self.place(row)}: {name} {cell!r} {error}") from None
        return Coded.of(found)

    def empty_notes(self, name: str) -> list[str]:
        """What to say of the cells of a column that say in words that they are empty."""
        said = [text for text in self.texts(name) if text and text.strip() and tables.is_empty(text)]
        note = f"{self.path}: {len(said)} cells of {name} say {said[0]!r} or the like" if said else ""
        return [f"{note} and count as empty"] if said else []


def read_table(path: Path) -> ColumnTable:
    """A CSV (with a header), JSONL, Parquet or Excel file, read again only where it has changed. Raises UsageError
    naming file and line."""
    facts = path.stat() if path.is_file() else None
    return _read_table(path, facts and (facts.st_mtime_ns, facts.st_size, facts.st_ino))


def table_of(source: Source) -> ColumnTable:
    """The table in a file, with the columns that `source` names under their usual names as well."""
    table = read_table(source.path)
    named = {usual: table.columns[name] for usual, name in source.named if name in table.columns}
    return msgspec.structs.replace(table, columns={**table.columns, **named}) if named else table


def column_notes(sources: Sequence[Source], column: str, grouped: bool) -> list[str]:
    """What to say of the columns of tables, of which `column` is the usual one of the scores: those that an audit does
    not read, and that none names the question, unless it is `grouped`."""
    notes = []
    lengths = [f"{name}{which}" for name in ("length", *TEXTS) for which in ("", "_a", "_b")]
    for path in dict.fromkeys(source.path for source in sources):
        of_path = [source for source in sources if source.path == path]
        read = {
            *USED,
            *lengths,
            *(source.column or column for source in of_path),
            *(name for _, name in sources[0].named),
        }
        if left := [name for name in read_table(path).columns if name not in read]:
            more = f" and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
            notes.append(f"{path}: columns that are not used: {', '.join(left[:MOST_NAMED])}{more}")
    if sources and not grouped:
        notes.append(NO_GROUP)
    return notes


@lru_cache(maxsize=2)
def _read_table(path: Path, _: object) -> ColumnTable:
    columns: dict[str, Column[Any]] = {}
    lines = Spooled("q")
    for number, row in tables.numbered(path):
        for name in row:
            if name not in columns:
                columns[name] = Column(repeat(None, len(lines)))
        for name, cells in columns.items():
            cells.append(row.get(name))
        lines.append(number)
    return ColumnTable(path, columns, lines)


def forget() -> None:
    """Let go of the tables that were read."""
    _read_table.cache_clear()


def places(known: Sequence[str], ids: Sequence[str]) -> NDArray[np.integer[Any]]:
    """Where each of `ids` stands in `known`, in which each stands once; -1 where it does not."""
    if known is ids:
        return np.arange(len(ids), dtype=np.int32)
    index = {key: place for place, key in enumerate(known)}
    return np.fromiter((index.get(key, -1) for key in ids), dtype=np.int32, count=len(ids))


def keys_of(table: ColumnTable) -> Column[str]:
    """The ids; places where there is no such column."""
    if "id" not in table.columns:
        return Column(table.place(row) for row in range(len(table.line)))
    keys = table.texts("id")
    if None in keys:
        raise UsageError(f"{table.place(keys.index(None))}: the id is empty")
    tables.check_ids(keys, table.place)
    tables.check_ids(table.texts("group"), table.place, "group")
    return cast(Column[str], keys)


class RowsOfIds(Struct, frozen=True):
    """Which rows are about which of I ids: `first` (I,) is the first row of each, `item` (n,) the place there of each
    row's id."""

    table: ColumnTable
    first: Indices
    item: Indices

    @classmethod
    def of(cls, table: ColumnTable) -> "RowsOfIds":
        return cls(table, *_numbered(keys_of(table)))

    def texts(self, name: str) -> Column[str | None]:
        """A column as texts, one for each id: what the first of its rows that is not empty says. Raises UsageError with
        the line where another row says another thing."""
        if name not in self.table.columns:
            return Column(repeat(None, len(self.first)))
        texts = self.table.texts(name)
        known = texts.each(lambda text: text is not None, bool)
        return texts.rows(self._said(name, texts, known, _numbered(texts)[1]))

    def numbers(self, name: str, values: Floats) -> Floats:
        """The same of the numbers in a column, NaN where empty."""
        return np.asarray(values[self._said(name, values, ~np.isnan(values), values)])

    def first_of(self, values: Floats) -> Floats:
        """Of each id the first number, whatever stands in its other rows; NaN where none does."""
        return np.asarray(values[self._place(np.flatnonzero(~np.isnan(values)))])

    def _place(self, known: Indices) -> Indices:
        place = self.first.copy()
        place[self.item[known[::-1]]] = known[::-1]  # the first row of an id comes last, and stays
        return place

    def _said(self, name: str, values: Any, known: NDArray[np.bool_], number: NDArray[Any]) -> Indices:
        rows = np.flatnonzero(known)
        place = self._place(rows)
        if len(differ := rows[number[rows] != number[place[self.item[rows]]]]):
            row = int(differ[0])
            said = values[row], values[int(place[self.item[row]])]
            now, before = (f"{one:g}" if isinstance(one, float) else one for one in said)
            key = self.table.texts("id")[row]
            raise UsageError(f"{self.table.place(row)}: {key!r} has the {name} {now}, but {before} before")
        return place


SEVERAL_RATERS = " (several raters need a column rater)"
"""What to do about people's table in which an id stands twice."""


def by_rater(
    table: ColumnTable, said: Sequence[V], differ: Callable[[V, V, str | None], str]
) -> dict[str | None, dict[str, V]]:
    """What each rater said of each id (all under None without a column `rater`).

    `said` holds what each row says. Raises UsageError naming the line for a rater who says two things of one id:
    `differ` puts the later and the earlier one, and who said them, into words.
    """
    raters: dict[str | None, dict[str, V]] = {}
    for row, (key, rater, value) in enumerate(zip(keys_of(table), table.texts("rater"), said, strict=True)):
        if rater is None and "rater" in table.columns:
            raise UsageError(f"{table.place(row)}: the rater is empty")
        before = raters.setdefault(rater, {}).setdefault(key, value)
        if before != value:
            raise UsageError(f"{table.place(row)}: {key!r} has the {differ(value, before, rater)}")
    return raters


def ratings_in(
    table: ColumnTable, score: Floats, differ: Callable[[float | None, float | None, str | None], str]
) -> tuple[list[dict[str, float]], int]:
    """`by_rater` of scores, NaN where there is none: the scores of each id by rater, in the order in which these first
    appear, and how many rows say again what another said."""
    raters = by_rater(table, [None if math.isnan(value) else value for value in score.tolist()], differ)
    rated: dict[str, dict[str, float]] = {key: {} for key in keys_of(table)}
    for rater, theirs in raters.items():
        for key, value in theirs.items():
            if value is not None:
                rated[key][rater or ""] = value
    return list(rated.values()), len(table.line) - sum(map(len, raters.values()))


def _numbered(keys: Iterable[Hashable]) -> tuple[Indices, Indices]:
    """The rows where keys first appear, and for each row the number of its key by those."""
    index: dict[Hashable, int] = {}
    number = np.array([index.setdefault(key, len(index)) for key in keys], dtype=np.intp)
    return np.unique(number, return_index=True)[1], number


def filled(ids: Sequence[str], mine: Parts, other_ids: Sequence[str], other: Parts) -> dict[str, Sequence[str | None]]:
    """Columns by name over `ids`: where `mine` do not say anything of an id, what `other`, over `other_ids`, say."""
    place, found = places(other_ids, ids), dict(mine)
    for name, values in other.items():
        own = as_column(mine.get(name, ()))
        known = own.present()
        if any(known) and None not in known:
            continue
        there = as_column(values).at(place)
        if not any(known):
            found[name] = there
        elif any(there.present()):
            found[name] = Column(theirs if said is None else said for said, theirs in zip(own, there, strict=True))
    return found


def parts_of(table: ColumnTable, ids: RowsOfIds | None = None) -> dict[str, Sequence[str | None]]:
    """What breaks the rows down, or the ids where several rows may be about one; None where it is not known."""
    return {part: (ids or table).texts(name) for name, part in PART_COLUMNS.items()}


def probabilities_of(table: ColumnTable, ids: RowsOfIds | None = None) -> Floats | None:
    """The chance that each row, or id, had of being labelled, from a column `label_probability`; NaN where it is not
    known, None where none is. Raises UsageError with the line for one that is not above 0 and at most 1."""
    name = "label_probability"
    if name not in table.columns:
        return None
    found = np.asarray(table.plain(name, below=2))
    if (wrong := (found <= 0) | (found > 1)).any():
        row = int(np.argmax(wrong))
        raise UsageError(f"{table.place(row)}: {name} {found[row]:g} is not above 0 and at most 1")
    found = found if ids is None else ids.numbers(name, found)
    return None if np.isnan(found).all() else found


TEXTS = ("response", "text")
"""Columns that hold the answer; the first that is there counts."""


def text_column(table: ColumnTable, which: str = "") -> str | None:
    """The column of the answers, or of one of two."""
    return next((f"{name}{which}" for name in TEXTS if f"{name}{which}" in table.columns), None)


def responses_of(source: Source, record: Indices) -> Sequence[Response | None]:
    """The answers' texts with what the table says of their questions, read again where they are shown; `record` are
    their rows. Empty where there are none."""
    table = table_of(source)
    if (column := text_column(table)) is None:
        return []
    named = dict(source.named)

    def response(row: Mapping[str, Any]) -> Response:
        cells = {name: tables.cell_text(row.get(named.get(name, name))) for name in (column, *USED)}
        text, prompt = cells[column] or "", cells["question"] or ""
        question = Question(
            id="",
            prompt=prompt,
            reference=cells["reference"],
            task=cells["task"] or "",
            group=cells["group"] or "",
            lang="zh" if tables.CHINESE.search(prompt + text) else "en",
        )
        return Response(id=cells["id"] or "", question=question, text=text, system=cells["system"])

    return Reread(lambda: (response(row) for _, row in tables.numbered(source.path)), record)


def lengths_of(table: ColumnTable, which: str = "", ids: RowsOfIds | None = None) -> Coded:
    """Characters of each row's, or id's, answer, from a column `length`, `response` or `text` (`length_a` …); NaN where
    unknown."""
    length = f"length{which}"
    if length in table.columns:
        found = table.plain(length)
        if (found.values < 0).any():
            raise UsageError(f"{table.place(int(np.argmax(np.asarray(found) < 0)))}: {length} is below 0")
        return found if ids is None else Coded.of(ids.numbers(length, np.asarray(found)))
    name = text_column(table, which)
    if name is None:
        return Coded.one(np.nan, len(table.line if ids is None else ids.first))
    found = Coded.each(table.columns[name], lambda text: math.nan if text is None else len(str(text)))
    if ids is None:
        return found
    # An empty cell is an empty answer where no other row of the id has one. Raters may have a text of their own there.
    size = np.asarray(found)
    said = ids.first_of(np.where(size > 0, size, np.nan))
    return Coded.of(np.where(np.isnan(said), size[ids.first], said))
