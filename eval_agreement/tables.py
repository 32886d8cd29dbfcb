"""Scores and preferences in tables: columns, with the place of every row, and what the rows say of each id."""

import math
from collections.abc import Hashable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from critic import tables
from critic.errors import UsageError
from critic.records import RATINGS, Question, Response

Key = TypeVar("Key", bound=Hashable)
V = TypeVar("V")

Scale = tuple[float, float]

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

TEXTS = ("response", "text")
"""Columns that hold the answer; the first that is there counts."""

USED = {
    *("id", "rater", "group", *PART_COLUMNS, "question", "reference", "label_probability", "first"),
    *(f"{name}{which}" for name in ("length", *TEXTS) for which in ("", "_a", "_b")),
}
"""Columns that an audit reads beside the scores."""

SEVERAL_RATERS = " (several raters need a column rater)"
"""What to do about people's table in which an id stands twice."""


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
    columns: dict[str, list[Any]]
    line: list[int]

    def place(self, row: int) -> str:
        return tables.place(self.path, self.line[row])

    def column(self, name: str) -> list[Any]:
        """Raises UsageError naming the columns there are."""
        if name not in self.columns:
            there = ", ".join(self.columns)
            raise UsageError(f"{self.path}: no column {name!r}; there are {there} (name one as FILE:COLUMN)")
        return self.columns[name]

    def texts(self, name: str) -> list[str | None]:
        """A column as texts, whole numbers without the .0 of columns with empty cells; None where empty or NaN. All
        None where there is no such column."""
        return [tables.cell_text(cell) for cell in self.columns.get(name) or [None] * len(self.line)]

    def numbers(self, name: str, high: float = math.inf) -> list[float | None]:
        """A column of numbers, as `tables.number` has them, of which none should be above `high`; None where empty.
        Raises UsageError with the line."""
        numbers = []
        for row, cell in enumerate(self.column(name)):
            try:
                number = tables.number(cell, high)
            except ValueError as error:
                raise UsageError(f"{self.place(row)}: {name} {cell!r} {error}") from None
            numbers.append(None if math.isnan(number) else number)
        return numbers

    def check(self, name: str, numbers: Sequence[float | None], low: float, high: float, problem: str) -> None:
        """Raises UsageError with the line and the `problem` for a number of a column that is not in low..high."""
        for row, number in enumerate(numbers):
            if number is not None and not low <= number <= high:
                raise UsageError(f"{self.place(row)}: {name} {number:g} {problem}")

    def keys(self) -> list[str]:
        """The ids; places where there is no such column."""
        if "id" not in self.columns:
            return [self.place(row) for row in range(len(self.line))]
        keys = self.texts("id")
        if None in keys:
            raise UsageError(f"{self.place(keys.index(None))}: the id is empty")
        tables.check_ids(keys, self.place)
        tables.check_ids(self.texts("group"), self.place, "group")
        return [key for key in keys if key is not None]

    def raters(self) -> list[str]:
        """Who rated each row. Raises UsageError with the line where nobody is named."""
        names = self.texts("rater")
        if None in names:
            raise UsageError(f"{self.place(names.index(None))}: the rater is empty")
        return [name for name in names if name is not None]

    def of_keys(
        self, keys: Sequence[Key], values: Sequence[V | None], name: str, more: str = ""
    ) -> dict[Key, V | None]:
        """What the rows say of each key, an id or an id and a rater, in the order of the keys: the first that is not
        None. Raises UsageError with the line, and `more` to say, where another row says another thing."""
        by_key: dict[Key, V | None] = dict.fromkeys(keys)
        for row, (key, now) in enumerate(zip(keys, values, strict=True)):
            if now is None:
                continue
            before = by_key[key]
            if before is None:
                by_key[key] = now
            elif before != now:
                of, by = (key[0], f" by {key[1]}") if isinstance(key, tuple) else (key, "")
                shown = [f"{one:g}" if isinstance(one, float) else one for one in (now, before)]
                raise UsageError(
                    f"{self.place(row)}: {of!r} has the {name} {shown[0]}, but {shown[1]} before{by}{more}"
                )
        return by_key

    def texts_of(self, keys: Sequence[str], name: str) -> list[str | None]:
        """A column as texts, one for each id."""
        if name not in self.columns:
            return [None] * len(set(keys))
        return list(self.of_keys(keys, self.texts(name), name).values())

    def parts_of(self, keys: Sequence[str]) -> dict[str, list[str | None]]:
        """What breaks the ids down; None where it is not known."""
        return {part: self.texts_of(keys, name) for name, part in PART_COLUMNS.items()}

    def probabilities_of(self, keys: Sequence[str]) -> list[float | None]:
        """The chance that each id had of being labelled, from a column `label_probability`; None where it is not known.
        Raises UsageError with the line for one that is not above 0 and at most 1."""
        name = "label_probability"
        if name not in self.columns:
            return [None] * len(set(keys))
        chances = self.numbers(name, 1)
        self.check(name, chances, math.nextafter(0, 1), 1, "is not above 0 and at most 1")
        return list(self.of_keys(keys, chances, name).values())

    def answers_of(self, keys: Sequence[str], which: str = "") -> dict[str, str | None]:
        """The text of each id's answer, or of one of two; none where there is no such column. An empty cell is an empty
        answer where no other row of the id has one. Raters may have a text of their own: the first counts."""
        column = next((f"{name}{which}" for name in TEXTS if f"{name}{which}" in self.columns), None)
        answers: dict[str, str | None] = {}
        for key, text in zip(keys, self.columns[column] if column else (), strict=False):
            if key not in answers or (text and not answers[key]):
                answers[key] = None if text is None else str(text)
        return answers

    def lengths_of(self, keys: Sequence[str], which: str = "") -> list[float | None]:
        """Characters of each id's answer, from a column `length`, `response` or `text` (`length_a` …); None where
        unknown."""
        name = f"length{which}"
        if name in self.columns:
            lengths = self.numbers(name)
            self.check(name, lengths, 0, math.inf, "is below 0")
            return list(self.of_keys(keys, lengths, name).values())
        answers = self.answers_of(keys, which)
        return [None if (text := answers.get(key)) is None else float(len(text)) for key in dict.fromkeys(keys)]

    def responses_of(self, keys: Sequence[str]) -> list[Response | None]:
        """The answers with what the table says of their questions, to be shown; empty where it holds no texts."""
        if not (answers := self.answers_of(keys)):
            return []
        rows = {key: row for row, key in zip(reversed(range(len(keys))), reversed(keys), strict=True)}
        columns = {name: self.texts(name) for name in ("question", "reference", "task", "group", "system")}
        responses: list[Response | None] = []
        for key, answer in answers.items():
            cells = {name: column[rows[key]] for name, column in columns.items()}
            text, prompt = answer or "", cells["question"] or ""
            question = Question(
                id="",
                prompt=prompt,
                reference=cells["reference"],
                task=cells["task"] or "",
                group=cells["group"] or "",
                lang="zh" if tables.CHINESE.search(prompt + text) else "en",
            )
            responses.append(Response(id=key, question=question, text=text, system=cells["system"]))
        return responses

    def empty_notes(self, name: str) -> list[str]:
        """What to say of the cells of a column that say in words that they are empty."""
        words = [text for text in self.texts(name) if text and text.strip() and tables.is_empty(text)]
        note = f"{self.path}: {len(words)} cells of {name} say {words[0]!r} or the like" if words else ""
        return [f"{note} and count as empty"] if words else []


def read_table(path: Path) -> ColumnTable:
    """A CSV (with a header), JSONL, Parquet or Excel file, read again only where it has changed. Raises UsageError
    naming file and line."""
    facts = path.stat() if path.is_file() else None
    return _read_table(path, facts and (facts.st_mtime_ns, facts.st_size, facts.st_ino))


@lru_cache(maxsize=2)
def _read_table(path: Path, _: object) -> ColumnTable:
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


def forget() -> None:
    """Let go of the tables that were read."""
    _read_table.cache_clear()


def table_of(source: Source) -> ColumnTable:
    """The table in a file, with the columns that `source` names under their usual names as well."""
    table = read_table(source.path)
    named = {usual: table.columns[name] for usual, name in source.named if name in table.columns}
    return msgspec.structs.replace(table, columns={**table.columns, **named}) if named else table


def column_notes(sources: Sequence[Source], column: str, grouped: bool) -> list[str]:
    """What to say of the columns of tables, of which `column` is the usual one of the scores: those that an audit does
    not read, and that none names the question, unless it is `grouped`."""
    notes = []
    for path in dict.fromkeys(source.path for source in sources):
        read = USED | {source.column or column for source in sources if source.path == path}
        read |= {name for _, name in sources[0].named}
        if left := [name for name in read_table(path).columns if name not in read]:
            more = f" and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
            notes.append(f"{path}: columns that are not used: {', '.join(left[:MOST_NAMED])}{more}")
    if sources and not grouped:
        notes.append(NO_GROUP)
    return notes
