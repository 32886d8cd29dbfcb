"""Scores and preferences in tables: a data frame, and what its rows say of each id."""

import math
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from critic import tables
from critic.errors import UsageError
from critic.records import RATINGS, Question, Response

if TYPE_CHECKING:
    import pandas as pd

Key = TypeVar("Key", bound=Hashable)
V = TypeVar("V")

Scale = tuple[float, float]

SCALE: Scale = (RATINGS[0], RATINGS[-1])
"""The scale of scores, unless the user names another."""

PART_COLUMNS = {"task": "task", "category": "category", "lang": "lang", "system": "answerer", "turn": "turn"}
"""Columns of a table that break a sample down, and the property each stands for."""

NO_GROUP = (
    "no column group says which rows are on the same question: each row counts as a question of its own, and intervals "
    "are too narrow where several share one; --map COLUMN=group names another column that says so"
)

MOST_NAMED = 8
"""Unused columns that are named."""

TEXTS = ("response", "text")
"""Columns that hold the answer; the first that is there counts."""

USED = {
    *("id", "rater", "group", *PART_COLUMNS, "question", "reference", "label_probability"),
    *(f"{name}{which}" for name in ("length", *TEXTS) for which in ("", "_a", "_b")),
}
"""Columns that an audit reads beside the scores."""

SEVERAL_RATERS = " (several raters need a column rater)"
"""What to do about people's table in which an id stands twice."""


class Source(Struct, frozen=True):
    """A file and the column that holds the scores; None: the usual one. `named` are pairs of the usual name of another
    column and the name that it has here, if it is here at all. A table that was read is in `frame`; `shapes` says the
    `scale` of scores and, in a `note`, what was taken for what."""

    path: Path
    column: str | None = None
    named: tuple[tuple[str, str], ...] = ()
    scale: Scale | None = None
    frame: "pd.DataFrame | None" = None
    note: str = ""

    @classmethod
    def parse(cls, text: str) -> "Source":
        """FILE or FILE:COLUMN."""
        file, separator, column = text.rpartition(":")
        if not separator or Path(text).is_file():
            return cls(Path(text))
        return cls(Path(file), column)


class LabelTable(Struct, frozen=True):
    """A file as a data frame (`critic.tables.frame`), its columns under their usual names as well."""

    path: Path
    frame: "pd.DataFrame"

    def place(self, row: int) -> str:
        return tables.place(self.path, self.frame.index[row])

    def __contains__(self, column: str) -> bool:
        return column in self.frame

    def column(self, name: str) -> list[Any]:
        """Raises UsageError naming the columns there are."""
        if name not in self:
            there = ", ".join(self.frame)
            raise UsageError(f"{self.path}: no column {name!r}; there are {there} (name one as FILE:COLUMN)")
        cells: list[Any] = self.frame[name].tolist()
        return cells

    def texts(self, name: str) -> list[str | None]:
        """A column as texts, None where empty; all None where there is no such column."""
        return [tables.cell_text(cell) for cell in self.frame[name]] if name in self else [None] * len(self.frame)

    def filled(self, name: str) -> list[str]:
        """A column of texts. Raises UsageError with the line where one is empty."""
        texts = self.texts(name)
        if None in texts:
            raise UsageError(f"{self.place(texts.index(None))}: the {name} is empty")
        return [text for text in texts if text is not None]

    def numbers(
        self, name: str, fits: Callable[[float], bool], problem: str, high: float = math.inf
    ) -> list[float | None]:
        """A column of numbers, as `critic.tables.number` has them, of which none should be above `high`; None where
        empty. Raises UsageError with the line, for one that does not fit with the `problem`."""
        numbers: list[float | None] = []
        for row, cell in enumerate(self.column(name)):
            try:
                number = tables.number(cell, high)
            except ValueError as error:
                raise UsageError(f"{self.place(row)}: {name} {cell!r} {error}") from None
            if number < math.inf and not fits(number):
                raise UsageError(f"{self.place(row)}: {name} {number:g} {problem}")
            numbers.append(None if math.isnan(number) else number)
        return numbers

    def keys(self) -> list[str]:
        """The ids; places where there is no such column."""
        if "id" not in self:
            return [self.place(row) for row in range(len(self.frame))]
        keys = self.filled("id")
        tables.check_ids(keys, self.place)
        tables.check_ids(self.texts("group"), self.place, "group")
        return keys

    def by_key(self, keys: Sequence[Key], values: Sequence[V | None], name: str, more: str = "") -> dict[Key, V | None]:
        """What the rows say of each key, an id or an id and a rater, in the order of the keys: the first that is not
        None. Raises UsageError with the line, and `more` to say, where another row says another thing."""
        by_key: dict[Key, V | None] = dict.fromkeys(keys)
        for row, (key, now) in enumerate(zip(keys, values, strict=True)):
            before = by_key[key]
            if before is None:
                by_key[key] = now
            elif now is not None and before != now:
                of, by = (key[0], f" by {key[1]}") if isinstance(key, tuple) else (key, "")
                shown = [f"{value:g}" if isinstance(value, float) else value for value in (now, before)]
                raise UsageError(
                    f"{self.place(row)}: {of!r} has the {name} {shown[0]}, but {shown[1]} before{by}{more}"
                )
        return by_key

    def about(self, keys: Sequence[str], sides: Sequence[str]) -> dict[str, list[Any]]:
        """What the rows say of each id beside scores and labels, by the names of `sources`; None where it is not known.
        `sides` are the suffixes of the columns of the answers: of two _a and _b."""

        def known(name: str, values: Sequence[Any]) -> list[Any]:
            return list(self.by_key(keys, values, name).values())

        columns = {part: known(name, self.texts(name)) for name, part in PART_COLUMNS.items()}
        columns["group"] = known("group", self.texts("group"))
        if (name := "label_probability") in self:
            chances = self.numbers(name, lambda chance: 0 < chance <= 1, "is not above 0 and at most 1", 1)
            columns["probability"] = known(name, chances)
        for side, column in zip(sides, ("length", "length_b"), strict=False):
            if (name := f"length{side}") in self:
                columns[column] = known(name, self.numbers(name, lambda length: length >= 0, "is below 0"))
            else:
                texts = self._answers(keys, side).values()
                columns[column] = [None if text is None else float(len(text)) for text in texts]
        answers = self._answers(keys)
        if any(text is not None for text in answers.values()):
            columns["response"] = self._responses(keys, answers)
        return columns

    def _answers(self, keys: Sequence[str], side: str = "") -> dict[str, str | None]:
        """The text of each id's answer, or of one of two. An empty cell is an empty answer where no other row of the id
        has one. Raters may have a text of their own: the first counts."""
        column = next((f"{name}{side}" for name in TEXTS if f"{name}{side}" in self), None)
        answers: dict[str, str | None] = dict.fromkeys(keys)
        for key, text in zip(keys, self.frame[column] if column else (), strict=False):
            if not answers[key] and (text == "" or tables.cell_text(text) is not None):
                answers[key] = str(text)
        return answers

    def _responses(self, keys: Sequence[str], answers: dict[str, str | None]) -> list[Response]:
        """The answers with what the table says of their questions, to be shown."""
        cells = {name: self.texts(name) for name in ("question", "reference", "task", "group", "system")}
        rows = {key: row for row, key in zip(reversed(range(len(keys))), reversed(keys), strict=True)}
        responses = []
        for key, answer in answers.items():
            prompt, reference, task, group, system = (texts[rows[key]] for texts in cells.values())
            text, prompt = answer or "", prompt or ""
            lang: Any = "zh" if tables.CHINESE.search(prompt + text) else "en"
            question = Question(
                id="", prompt=prompt, reference=reference, task=task or "", group=group or "", lang=lang
            )
            responses.append(Response(id=key, question=question, text=text, system=system))
        return responses

    def empty_notes(self, name: str) -> list[str]:
        """What to say of the cells of a column that say in words that they are empty."""
        words = [text for text in self.texts(name) if text and text.strip() and tables.is_empty(text)]
        note = f"{self.path}: {len(words)} cells of {name} say {words[0]!r} or the like" if words else ""
        return [f"{note} and count as empty"] if words else []


def read_table(source: Source) -> LabelTable:
    """The table in a file, with the columns that `source` names under their usual names as well. Raises UsageError
    naming file and line."""
    frame = tables.frame(source.path) if source.frame is None else source.frame
    named = {usual: frame[name] for usual, name in source.named if name in frame}
    return LabelTable(source.path, frame.assign(**named))


def column_notes(sources: Sequence[Source], column: str, grouped: bool) -> list[str]:
    """What to say of the columns of tables, of which `column` is the usual one of the scores: those that an audit does
    not read, and that none names the question, unless it is `grouped`."""
    notes = [source.note for source in sources if source.note]
    for path in dict.fromkeys(source.path for source in sources if not notes):
        read = USED | {source.column or column for source in sources if source.path == path}
        read |= {name for _, name in sources[0].named}
        frame = next(read_table(source).frame for source in sources if source.path == path)
        if left := [name for name in frame if name not in read]:
            more = f" and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
            notes.append(f"{path}: columns that are not used: {', '.join(left[:MOST_NAMED])}{more}")
    if sources and not grouped:
        notes.append(NO_GROUP)
    return notes
