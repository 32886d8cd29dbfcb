"""Files of scores and labels (`Source`), with typed access to the columns of a table.

If rows hold whole conversations, the texts of the single turns are read from them. Numbers beside two responses are
codes of preferences, whose meaning differs between files.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Literal

from critic import jsonl, tables
from critic.errors import UsageError, loads, quoted, shorten_line
from critic.records import RATINGS, Turn, is_judgment
from critic.stats.verdicts import Label
from eval_agreement.sentences import say

if TYPE_CHECKING:
    import pandas as pd

FileKind = Literal["judgments", "human-scored rows", "table"]
Scale = tables.Scale

Codes = Mapping[float, Label | None]
"""Labels (a, tie, b) by number, for numbers that compare two responses. None means no verdict."""

Mapped = Mapping[str, Sequence[str]]
"""Columns given by --map, as named in the file, keyed by field."""

SCALE: Scale = (RATINGS[0], RATINGS[-1])
"""The scale of scores, unless the user names another."""

PART_COLUMNS = {name: name for name in ("task", "category", "lang", "system", "turn", "condition")}
PART_COLUMNS["system"] = "answerer"
"""Columns of a table, with the part (property for breakdowns) that each fills."""

TEXTS = ("response", "text")
"""Names of the response column; the first that exists counts."""

USED = {
    *("id", "rater", "group", *PART_COLUMNS, "model_a", "model_b", "question", "reference", "label_probability"),
    *(f"{name}{which}" for name in ("length", *TEXTS) for which in ("", "_a", "_b")),
}
"""Columns that an audit reads beside the scores."""

ROLES = ("people", "judge", "criterion")
"""Fields of --map in files whose columns are detected. Elsewhere FILE:COLUMN names the column."""


@dataclass(frozen=True, eq=False)
class Source:
    """A file and its score column (None: the default name).

    `mapped` holds columns by usual name (--map). `scale` is the scale of the scores. `table` is the data frame if it
    was read before, as by `result_formats`; `note` then says which columns were chosen. `codes` maps numbers to labels.
    `answered_by` holds the names of the models that gave a judge's verdicts, "(not named)" for verdicts without one;
    None if such files name no models.
    """

    path: Path
    column: str | None = None
    mapped: Mapped = field(default_factory=dict)
    scale: Scale | None = None
    table: "pd.DataFrame | None" = None
    note: str = ""
    codes: Codes = field(default_factory=dict)
    answered_by: "frozenset[str] | None" = None

    @classmethod
    def parse(cls, text: str) -> "Source":
        """Parse FILE or FILE:COLUMN. A text that as a whole names an existing file, or a workbook's sheet, is FILE."""
        file, separator, column = text.rpartition(":")
        if not separator or Path(text).is_file() or column in tables.list_sheets(Path(file)):
            return cls(Path(text))
        return cls(Path(file), column)

    @cached_property
    def content(self) -> FileKind:
        """The kind of the file, decided by its first line.

        Human-scored rows count as a table if the source names a column. In judgments this "column" names a protocol.
        """
        if self.table is not None or jsonl.suffix(self.path) != ".jsonl":
            return "table"
        _, first = next(jsonl.read(self.path, dict[str, Any]))
        if is_judgment(first):
            return "judgments"
        is_row = {"human_score", "scale_min", "response"} <= set(first)
        return "human-scored rows" if is_row and not self.column else "table"

    @cached_property
    def frame(self) -> "pd.DataFrame":
        """The table as a data frame with unconverted cells.

        The index holds the line on which each row begins (`critic.tables.read_numbered`). Columns in `mapped` are
        repeated under the usual name of their field. `fill_turns` adds the texts of turns; `frame.attrs["filled"]`
        names the columns that it filled.
        """
        if self.table is not None:
            return self.table
        import pandas as pd  # noqa: PLC0415 - keeps --help fast

        numbers, records = zip(*tables.read_numbered(self.path), strict=True)
        frame = pd.DataFrame(records, index=numbers, dtype=object)
        for usual, names in self.mapped.items():
            columns = [name for name in names if name in frame]
            if columns[1:]:
                # An id may be composed of several columns.
                frame[usual] = frame[columns].map(tables.cell_text).fillna("").agg("/".join, axis=1)
            elif columns:
                frame[usual] = frame[columns[0]]
        frame.attrs["filled"] = fill_turns(self.path, frame, self.mapped)
        return frame

    @property
    def origin(self) -> str:
        """Sentence on the chosen columns: the `note`, or the columns filled from conversations; "" without either."""
        filled = self.frame.attrs.get("filled")
        if self.note or not filled:
            return self.note
        return say("filled", path=self.path, columns=filled, by_turn="turn" in self.frame)

    @property
    def verdicts(self) -> list[Any]:
        """Cells of the source's score column, which must be named."""
        return list(self.frame[self.column])

    def place(self, row: int) -> str:
        """Return file and line of a row, counted from 0, for messages."""
        return tables.locate_row(self.path, self.frame.index[row])

    def cells(self, name: str) -> list[Any]:
        """Return a column's cells. If it is missing, raise UsageError and list the existing columns."""
        if name not in self.frame:
            there = shorten_line(", ".join(self.frame))
            raise UsageError(f"{self.path}: no column {quoted(name)}; there are {there} (name one as FILE:COLUMN)")
        return list(self.frame[name])

    def texts(self, name: str) -> list[str | None]:
        """Return a column as texts, None for an empty cell. A missing column is all None."""
        cells = self.frame[name] if name in self.frame else [None] * len(self.frame)
        return [tables.cell_text(cell) for cell in cells]

    def filled(self, name: str) -> list[str]:
        """Return a column of texts without empty cells. Raises UsageError with the line of the first empty cell."""
        texts = self.texts(name)
        if None in texts:
            raise UsageError(f"{self.place(texts.index(None))}: the {name} is empty")
        return [text for text in texts if text is not None]

    def numbers(self, name: str, scale: Scale, *, hint: str = "", none: float | None = None) -> list[float | None]:
        """Return a column of numbers, None for an empty cell (`critic.tables.parse_optional_number`).

        `hint`: end of the error message. `none`: number that means an empty cell. Raises UsageError with the line for a
        cell that is not a number on the `scale`.
        """
        parse = partial(tables.parse_optional_number, column=name, ends=scale, none=none, hint=hint)
        return [parse(self.place(row), cell=cell) for row, cell in enumerate(self.cells(name))]

    def with_scale(self, column: str, people: Scale | None = None) -> "Source":
        """Return the source with the scale of its scores, detected from its numbers unless given.

        `column`: default name of the score column. `people`: people's scale, which is preferred if the scores fit it.
        Raises UsageError for a number far from all others, which is a typing error or a code for no answer, such as 99.
        """
        if self.scale or self.content != "table":
            return self
        name = self.column or column
        if name.endswith(tables.SCORE_SUFFIX):
            return replace(self, scale=SCALE)
        cells = [(self.place(row), cell) for row, cell in enumerate(self.cells(name))]
        scale = tables.detect_scale(cells, name, self.path, people)
        # The frame goes along, so that the file is not read again.
        return replace(self, scale=scale, table=self.frame)

    def keys(self) -> list[str]:
        """Return the ids; if there is no column id, file and line of each row.

        Raises UsageError for an empty id, or if ids or groups are numbers that a spreadsheet program has rounded.
        """
        if "id" not in self.frame:
            return [self.place(row) for row in range(len(self.frame))]
        keys = self.filled("id")
        tables.check_ids(keys, self.place)
        tables.check_ids(self.texts("group"), self.place, "group")
        return keys

    def cut_notes(self) -> list[str]:
        """Return a note on texts that a workbook cut at its cell limit; [] if there are none."""
        if tables.find_format(self.path) != ".xlsx":
            return []
        cut = self.frame.map(tables.is_cut).to_numpy().any(axis=1)
        first = self.place(int(cut.argmax())) if cut.any() else ""
        return [say("cut", first=first + tables.say_first_of(cut.sum()), limit=tables.CELL_LIMIT)] if first else []

    def empty_notes(self, name: str) -> list[str]:
        """Return a note on cells that hold a word for empty, such as `nan`; [] if there are none."""
        words = [text for text in self.texts(name) if text and text.strip() and tables.is_empty(text)]
        facts = {"path": self.path, "name": name, "cells": len(words)}
        return [say("empty_words", **facts, first=quoted(words[0]))] if words else []


@dataclass(frozen=True)
class TableOptions:
    """What the user says about tables and other tools' files.

    `mapped`: columns by field (--map COLUMN=FIELD). `codes`: labels of numbers beside two answers (--map CODE=WORD).
    `scales`: of people's scores and of the judges'; None to detect it.
    """

    mapped: Mapped = field(default_factory=dict)
    codes: Codes = field(default_factory=dict)
    scales: tuple[Scale | None, Scale | None] = (None, None)

    def add_to(self, source: Source, *, judge: bool = False) -> Source:
        """Return a source with these options. `judge`: its scores are a judge's."""
        return replace(source, mapped=self.mapped, codes=self.codes, scale=self.scales[judge])


def column_notes(sources: Sequence[Source], column: str, grouped: bool) -> list[str]:
    """Return notes on tables: unused columns, cut cells, and a missing group column (unless `grouped`).

    `column`: default name of the score column.
    """
    records = {source.path for source in sources if source.content != "table"}
    # A column that is named in a file of records is no table of its own.
    read = [source for source in sources if source.path not in records]
    notes = list(dict.fromkeys(line for source in read for line in source.origin.splitlines()))
    # A note on the columns that were chosen says as much.
    for path, source in ({} if notes else {source.path: source for source in read}).items():
        scores = {table.column or column for table in read if table.path == path}
        used = (USED | scores).union(*source.mapped.values())
        if left := [name for name in source.frame if name not in used]:
            notes.append(f"{path}: columns that are not used: {shorten(', '.join(left), 200)}")
    notes += dict.fromkeys(note for source in read for note in source.cut_notes())
    return notes if grouped or not read else [*notes, say("no_group")]


_CONVERSATION = re.compile(r"(?:.*\.)?(?:conversations?|messages|dialog(?:ue)?|chat)(?:[ _]?([ab12]))?", re.IGNORECASE)
"""Name of a column of conversations. Its group is the side (a, b, 1 or 2), if the name has one."""

_USUAL = {None: "response", "a": "response_a", "1": "response_a", "b": "response_b", "2": "response_b"}
RESPONSES = frozenset((*_USUAL.values(), "text", "text_a", "text_b"))
_USER = frozenset(("user", "human", "question", "prompt", "instruction"))
_ASSISTANT = frozenset(("assistant", "gpt", "model", "bot", "answer", "response"))
_NUMBERED = re.compile(r"(?:turn[ _-]?)?(\d+)(?:\.0)?", re.IGNORECASE)


def read_exchanges(value: Any) -> list[Turn]:
    """Return a conversation as turns (user, assistant); [] for a value that is no conversation.

    A conversation is a list of messages with role and content (OpenAI) or from and value (ShareGPT), a list of objects
    with keys user and assistant, or JSON of one of these.

    >>> read_exchanges([{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}])
    [Turn(user='Why?', assistant='So.')]
    """
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(ValueError):
            value = loads(value)
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        return []
    messages = list[tuple[Any, Any]]()
    for message in value:
        role = message.get("role", message.get("from"))
        messages += message.items() if role is None else [(role, message.get("content", message.get("value")))]
    prompts, turns = list[str](), list[Turn]()
    for role, content in messages:
        text = content_text(content) or ""
        if str(role).lower() in _USER:
            prompts.append(text)
        elif str(role).lower() in _ASSISTANT and (prompts or not turns):
            turns.append(Turn(user="\n".join(prompts), assistant=text))
            prompts = []
        elif str(role).lower() in _ASSISTANT:  # a model may answer in several messages
            turns[-1] = Turn(user=turns[-1].user, assistant=f"{turns[-1].assistant}\n{text}")
    return turns


def content_text(value: Any) -> str | None:
    """Return a cell as text, or None if it is empty. Texts of messages and of their parts are joined by line breaks.

    >>> content_text([{"type": "text", "text": "Two cats."}, {"type": "image_url"}])
    'Two cats.'
    """
    if isinstance(value, list):
        return _join(filter(None, map(content_text, value)))
    if isinstance(value, dict):
        return content_text(value.get("content") or value.get("text") or value.get("prompt"))
    return value if isinstance(value, str) else tables.cell_text(value)


def fill_turns(path: Path, frame: "pd.DataFrame", named: Collection[str]) -> dict[str, str]:
    """Fill the response, question and group columns of a frame from its conversations, if it has no responses.

    The texts are those of the turn that a row names, or else of the whole conversation; the group is the first
    question. Columns in `named` are kept. Returns, for each filled column, the column of conversations that it is from.
    Raises UsageError if a row names a turn that its conversation does not have.
    """
    turns = _read_turns(frame["turn"]) if "turn" in frame else [None] * len(frame)
    kept, filled = {*named, *({"group"} & {*frame})}, dict[str, str]()
    for usual, (column, talks) in _find_conversations(frame).items():
        judged = list[list[Turn]]()
        for row, (talk, turn) in enumerate(zip(talks, turns, strict=True)):
            if turn is not None and talk and turn > len(talk):
                where = tables.locate_row(path, frame.index[row])
                raise UsageError(f"{where}: a verdict on turn {turn} of a conversation that has {len(talk)}")
            judged.append(talk if turn is None else talk[turn - 1 : turn])
        texts = {
            usual: [_join(exchange.assistant for exchange in talk) for talk in judged],
            "question": [_join(exchange.user for exchange in talk) for talk in judged],
            "group": [_join(exchange.user for exchange in talk[:1]) for talk in talks],
        }
        # The second side has the same questions.
        for name in [name for name in texts if name not in {*filled, *kept}]:
            frame[name], filled[name] = texts[name], column
    return filled


def _find_conversations(frame: "pd.DataFrame") -> dict[str, tuple[str, list[list[Turn]]]]:
    """Find the first column of conversations for each side: a, b, or the only one.

    Returns the column's name and its conversations as turns, keyed by the column to fill (such as response_a); {} if
    the frame has responses.
    """
    conversations = dict[str, tuple[str, list[list[Turn]]]]()
    # Beside responses a conversation is the history before them.
    for column in [] if RESPONSES & {*frame} else frame:
        side = _CONVERSATION.fullmatch(str(column))
        usual = _USUAL[side[1] and side[1].lower()] if side else ""
        if side and usual not in conversations and any(talks := list(map(read_exchanges, frame[column]))):
            conversations[usual] = str(column), talks
    return conversations


def _read_turns(cells: Iterable[Any]) -> list[int | None]:
    """Return turn numbers from 1, None for words such as `whole`. If a column has a turn 0, its turns count from 0."""
    matches = [_NUMBERED.fullmatch(str(cell).strip()) for cell in cells]
    numbers = [int(match[1]) if match else None for match in matches]
    return [number if number is None else number + (0 in numbers) for number in numbers]


def _join(texts: Iterable[str]) -> str | None:
    """Join texts by line breaks; return None if there are none."""
    listed = [*texts]
    return "\n".join(listed) if listed else None


CODED: dict[str, Label | None] = {"a": "a", "b": "b", "tie": "tie", "none": None}
"""Labels for the words in --map CODE=WORD."""

_PLAIN: Codes = {1.0: "a", 2.0: "b"}
"""Default meaning of numbers: 1 is the first answer, 2 the second, if the column has no other number."""


def is_pair(source: Source) -> bool:
    """Return True if each row of a file compares two answers, so that its numbers are codes of preferences."""
    return bool(source.codes) or (source.content == "table" and holds_two_answers(source.frame))


def holds_two_answers(frame: "pd.DataFrame") -> bool:
    """Return True if each row holds two answers, or names two models.

    Such a frame has a text column of answers or models for each side, as response_a and response_b, or Answer 1 and 2.
    Three such columns are options, not a pair. Columns of numbers are scores, not answers.

    >>> import pandas as pd
    >>> pairs = "response_a response_b", "Answer1 Answer2", "model_1 model_2", "left_response right_response"
    >>> [holds_two_answers(pd.DataFrame(dict.fromkeys(names.split(), ["text"]))) for names in pairs]
    [True, True, True, True]
    >>> others = "answer_1 answer_2 answer_3", "reference_answer_1 reference_answer_2", "response reference"
    >>> [holds_two_answers(pd.DataFrame(dict.fromkeys(names.split(), ["text"]))) for names in others]
    [False, False, False]
    >>> holds_two_answers(pd.DataFrame({"question_a": ["text"], "question_b": ["text"]}))
    False
    >>> holds_two_answers(pd.DataFrame({"model_a or model_b": ["text"]}))
    False
    >>> any(holds_two_answers(pd.DataFrame(dict.fromkeys(names.split(), [4.5]))) for names in (*pairs, *others))
    False
    """
    table = tables.load_columns()
    # Two columns of numbers are scores of two models, not their answers.
    texts = [name for name in frame if not tables.can_read(tables.read_number, frame[name])]
    answers = [name for name in map(str, texts) if table.is_named("answer", name)]
    sides = ("first", "second", "third")
    first, second, third = ({name for name in answers if table.is_named(side, name)} for side in sides)
    return bool(first - second and second - first and not third)


def find_meanings(cells: Iterable[Any], codes: Codes) -> tuple[Codes, list[float]]:
    """Return the meanings of numbers in a column of preferences, and its numbers without a meaning in ascending order.

    The meanings are `codes` if given, else the default ones if the column's numbers are exactly 1 and 2, else {}.

    >>> find_meanings([1, 2], {})[1], find_meanings([0, 1, 2, "a"], {})[1], find_meanings([0, 1], {0.0: "a"})[1]
    ([], [0.0, 1.0, 2.0], [1.0])
    """
    numbers = {number for number in map(tables.read_number, cells) if number is not None}
    meanings = codes or (_PLAIN if numbers == {*_PLAIN} else {})
    return meanings, sorted(numbers - meanings.keys())


def decode_preferences(path: Path, column: str, cells: Sequence[Any], codes: Codes) -> list[Any]:
    """Replace the numbers in a column of preferences by their labels. Words stay as they are.

    Raises UsageError for a number without a known meaning.
    """
    meanings, unknown = find_meanings(cells, codes)
    if unknown:
        raise uncoded(path, column, cells, codes)
    return [cell if (number := tables.read_number(cell)) is None else meanings[number] for cell in cells]


def uncoded(path: Path, column: str, cells: Iterable[Any], codes: Codes) -> UsageError:
    """Build the error for numbers without a known meaning beside two answers, with the --map options to give."""
    meanings, unknown = find_meanings(cells, codes)
    numbers = unknown or sorted(meanings)
    # A guess at what they mean, to be edited: the ends are the two answers, what lies between them is a tie.
    words = ["tie"] * len(numbers)
    if len(numbers) > 1 and not codes:
        words[0], words[-1] = "a", "b"
    options = [f"--map {number:g}={word}" for number, word in zip(numbers, words, strict=True)]
    return UsageError(say("uncoded", path=path, column=column, numbers=numbers, options=options))
