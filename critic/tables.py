"""Read tables: rows of .csv, .tsv, .jsonl, .json, .parquet and .xlsx, each with a location for error messages.

Training and audits use the same names of columns and words of labels (`column_names.toml`).
"""

import base64
import csv
import io
import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from statistics import multimode
from types import SimpleNamespace
from typing import Any, Literal
from zipfile import ZipFile

from msgspec import Struct, toml

from critic import jsonl
from critic.errors import UsageError, did_you_mean, located, one_line, quoted, refusing, replace_surrogates
from critic.records import NO_VERDICT, VIDEO

Row = dict[str, Any]

CHINESE = re.compile(r"[\u4e00-\u9fff]")

FORMATS = (".csv", ".tsv", ".jsonl", ".parquet", ".xlsx")
"""File formats that are read from a folder of rows. Reading .parquet needs pyarrow, which is not installed by default.
"""

READABLE = (*FORMATS, ".json")
"""File formats that are read if the file is named directly. A .json found in a folder may be anything, so it is
skipped."""

CELL_LIMIT = 32_767
"""Largest number of characters in a workbook's cell (Excel's limit). Programs that write longer texts cut them there.
"""

_SEPARATORS = {".csv": ",;\t", ".tsv": "\t"}

_WORKBOOK = re.compile(r"xl/workbook\d*\.xml")
_UNCOMPUTED = re.compile(rb'<(\w+:)?calcPr\b[^>]*\bfullCalcOnLoad="(1|true)"')
"""Matches the mark of a workbook whose formulas are not computed yet, as pandas, xlsxwriter and openpyxl write it."""

_TO_ESCAPE = re.compile("\r|_(?=x[0-9A-Fa-f]{4}_)")
"""Matches the characters that must be escaped in a workbook's text."""

_ROUNDED = re.compile(r"[+-]?\d([.,]\d+)?[eE]\+\d+")
"""Matches a long whole number that a spreadsheet program or data frame has rounded, such as 1.23E+17."""

_EXACT = 1e15
"""Whole numbers of this size or larger lose digits in spreadsheet programs."""

_HIGH = re.compile(rb"[\x80-\xff]+")

_BLANKS = str.maketrans("", "", " .\t\r\n\u00a0\u3000")

_TITLES = 10
"""Number of rows at the top of a table in which its header is searched for."""

_HIGHEST = 10
"""Scores above this may be typing errors, if few of a column's scores are (`detect_scale`)."""

_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}")

MEDIA_TYPES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}
"""First bytes of images in parquet files, and their MIME types."""


Kind = Literal["score", "preference", "yes or no"]
"""Kind of verdict that a column holds."""

Choice = Literal["a", "tie", "b"]
"""A label: the first answer ("a"), a tie or the second answer ("b"); of yes and no, "a" means yes and "b" no."""

Scale = tuple[float, float]

UNBOUNDED: Scale = (-math.inf, math.inf)
"""The scale of numbers without limits."""

SCALES: tuple[Scale, ...] = ((0, 1), (1, 5), (0, 5), (1, 10), (0, 10), (0, 100))
"""Scales that scores may have. The first that contains all scores is assumed; if none does, the scores' own range."""

_FEW = 0.02
"""Largest share of a column's numbers that count as mistakes if they are off the scale of the others."""

SCORE_SUFFIX = "_score_1_10"
"""Suffix of the columns of human-scored rows that hold another judge's scores, on 1..10."""


class ColumnTable(Struct, frozen=True):
    """The content of `column_names.toml`.

    `names`: field -> usual column names. `labels`: the same for columns with human labels. `rows`: the same for fields
    that only rows have. `scores`: role of a column of verdicts, such as "people" or "judge" -> regular expression for
    its name.
    `words`: for each kind of verdict, label -> words that stand for it. `empty`: texts that mean "no value" in a cell
    for a number or label, in lower case without spaces and dots. `flags`: flags that exclude a row -> the reason.
    """

    names: dict[str, list[str]]
    labels: dict[str, list[str]]
    rows: dict[str, list[str]]
    scores: dict[str, str]
    words: dict[Kind, dict[Choice, list[str]]]
    empty: frozenset[str]
    flags: dict[str, str]

    def is_named(self, role: str, column: str) -> bool:
        """Return True if a column of verdicts has a name that is typical of a role (a key of `scores`).

        >>> judges = "llm_score_turn_1", "gpt-4o", "Claude rating", "deepseek", "grader", "judgeScore"
        >>> all(load_columns().is_named("judge", name) and load_columns().is_verdict(name) for name in judges)
        True
        """
        return re.fullmatch(self.scores[role], column, re.IGNORECASE) is not None

    def is_verdict(self, column: str) -> bool:
        """Return False if a column's name says that its numbers are no verdicts, but ids, counts, times or the like.

        >>> names = "turn turn_id version model_version judge_version time eval_time evalTime gpt4_latency_ms judge_id"
        >>> names += " doc_hash n_tokens difficulty num_turns judge_prompt_tokens reward_seed score_timestamp year"
        >>> [name for name in [*names.split(), "conversation_turns"] if load_columns().is_verdict(name)]
        []
        """
        # In camel case a word begins with a capital.
        spaced = re.sub(r"(?<=[a-z\d])(?=[A-Z])", "_", column)
        about = chain.from_iterable(self.names[usual] for usual in ("id", "group", "system", "rater", "task"))
        pattern = rf"each\..*|(.*\.)?({'|'.join(about)}|{self.scores['never']})"
        return re.fullmatch(pattern, spaced, re.IGNORECASE) is None


@cache
def load_columns() -> ColumnTable:
    """Return the content of `column_names.toml`."""
    return toml.decode(Path(__file__).with_name("column_names.toml").read_bytes(), type=ColumnTable)


def spell_plainly(column: str) -> str:
    """Return the last part of a column's name in the spelling of `column_names.toml`: small letters, joined by _.

    >>> spell_plainly("doc.Model Answer"), spell_plainly("Response (A)"), spell_plainly("userInput")
    ('model_answer', 'response_a', 'user_input')
    """
    words = re.sub(r"(?<=[a-z\d])(?=[A-Z])", "_", column.strip().rpartition(".")[2])
    return re.sub(r"[\W_]+", "_", words.lower()).strip("_")


def match_columns(columns: Iterable[str], names: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the column of each field, leaving out fields without a matching column.

    `names` maps fields to possible column names, most usual first. A column also matches by its part after the last
    dot. If several match, the first name in `names` wins, and then the shortest column. No column is used twice.

    >>> match_columns(["doc.answer", "prediction"], {"text": ["prediction", "answer"], "reference": ["answer"]})
    {'text': 'prediction', 'reference': 'doc.answer'}
    """
    matched, spelled = dict[str, str](), {column: spell_plainly(column) for column in columns}
    for usual, choices in names.items():
        ranked = [column for column, name in spelled.items() if name in choices and column not in matched.values()]
        if ranked:
            matched[usual] = min(ranked, key=lambda column: (choices.index(spelled[column]), len(column)))
    return matched


_NUMBERED = re.compile(r"(?<=[^\W\d])(?:[ _-]?\d+|[ _-][A-Ha-h]|(?<![A-Z])[A-H])$")
"""Matches the number or letter by which names such as rater1, Annotator B and 标注员3 differ."""


def find_people(columns: Sequence[str]) -> list[str]:
    """Return which columns of verdicts hold people's verdicts: one, several if each rater has one, or [].

    Take the columns whose names are typical of people or, without such columns, those with a usual name of a label. If
    several of these differ only in a number or letter, as raters' names do, return them; else return the first. If no
    column has such a name, return the columns without a judge's name, if there are several, none of them is named after
    a criterion, and there are judges' columns as well.

    >>> find_people(["human_mean", "human_1", "human_2", "gpt4"]), find_people(["score", "gpt4"])
    (['human_1', 'human_2'], ['score'])
    >>> find_people(["alice", "bob", "gpt4"]), find_people(["fluency", "depth", "gpt4"])
    (['alice', 'bob'], [])
    >>> find_people(["score_1", "score_2", "llm"]), find_people(["Annotator A", "Annotator B", "Claude"])
    (['score_1', 'score_2'], ['Annotator A', 'Annotator B'])
    >>> find_people(["human_mean", "expert1_score", "expert2_score"]), find_people(["human_rater", "llm_rater"])
    (['expert1_score', 'expert2_score'], ['human_rater'])
    >>> find_people(["标注员1", "标注员2", "模型评分"]), find_people(["brightness", "contrast"])
    (['标注员1', '标注员2'], [])
    """
    table = load_columns()
    stems = {column: re.sub(r"\d+", "", _NUMBERED.sub("", column)) for column in columns}
    named = [column for column in columns if table.is_named("people", column)]
    named = named or [column for column in columns if match_columns([_NUMBERED.sub("", column)], table.labels)]
    others = [column for column in columns if not table.is_named("judge", column)]
    # Of columns whose names say nothing, one alone may be anything, and so may several without a judge.
    if not named and 1 < len(others) < len(columns) and not list_criteria(others):
        return others
    first = multimode(stems[column] for column in named)[:1]
    return [column for column in named if stems[column] in first]


def list_criteria(columns: Iterable[str]) -> set[str]:
    """Return the criteria that the names of columns contain, as the word stems listed in `column_names.toml`.

    >>> sorted(list_criteria(["human_fluency", "judgeFluent", "gpt4_accuracy", "score"]))
    ['accura', 'fluen']
    """
    return set(re.findall(load_columns().scores["criterion"], " ".join(columns).lower()))


def can_read(read: Callable[[Any], Any], cells: Iterable[Any]) -> bool:
    """Return True if there are filled cells and the function `read` can read all of them (never returns None).

    >>> can_read(read_number, [1, "2", None]), can_read(read_number, ["a", 2]), can_read(read_number, [])
    (True, False, False)
    """
    filled = [cell for cell in cells if not is_empty(cell)]
    return bool(filled) and None not in map(read, filled)


def say_taken(role: str, column: str, scale: Scale | None = None, *, named: bool = True) -> str:
    """Return a message about how a column is read, and about the options that change this.

    `role`: what the column was taken for. `scale`: its scale, if that was detected. `named`: True if --map can name the
    column; otherwise the message shows COLUMN.

    >>> say_taken("judge", "gpt4", (1, 5))
    'taken as judge: gpt4 on 1..5 (change with --map gpt4=FIELD, --judge-scale LOW:HIGH)'
    """
    ends = f" on {scale[0]:g}..{scale[1]:g}" if scale else ""
    mapping = f"--map {shlex.quote(column)}=FIELD" if named else f"--map COLUMN={role}"
    option = ", --judge-scale LOW:HIGH" if role == "judge" else ", --scale LOW:HIGH"
    return f"taken as {role}: {column}{ends} (change with {mapping}{option if scale else ''})"


def score_column(judge: str) -> str:
    """Return the name of the column that holds a judge's scores on 1..10."""
    return f"{judge}{SCORE_SUFFIX}"


def find_label(kind: Kind, cell: Any) -> Choice | None:
    """Return the label that a cell's word stands for, or None if the word is unknown.

    >>> find_label("preference", " Model_A "), find_label("yes or no", True), find_label("preference", 4)
    ('a', 'a', None)
    """
    word = str(cell).strip().lower()
    return next((label for label, words in load_columns().words[kind].items() if word in words), None)


def name_labels(kind: Kind) -> dict[str, Choice]:
    """Return the labels of a kind of verdict by the word that messages use for each.

    >>> name_labels("yes or no")
    {'yes': 'a', 'no': 'b'}
    """
    return {words[0]: label for label, words in load_columns().words[kind].items()}


def parse_mapping(
    texts: Iterable[str],
    fields: Collection[str],
    *,
    several: Collection[str],
    aliases: Mapping[str, str] | None = None,
    suffixes: tuple[str, ...] = (),
) -> dict[str, list[str]]:
    """Parse the values COLUMN=FIELD of --map, and return the columns of each field in the given order.

    A valid field is one of `fields`, a key of `aliases` (alias -> field), or a name with one of the `suffixes`. Only
    the fields in `several` may have more than one column. Raises UsageError for an unknown field or a second column.

    >>> parse_mapping(["ann=rater", "bob=rater", "text=answer"], ["rater", "answer"], several=["rater"])
    {'rater': ['ann', 'bob'], 'answer': ['text']}
    """
    columns = dict[str, list[str]]()
    for text in texts:
        column, _, field = text.rpartition("=")
        field = (aliases or {}).get(field, field)
        if not column or not (field in fields or field.endswith(suffixes)):
            choices = f"{did_you_mean(field, fields)}the fields are {', '.join(fields)}"
            raise UsageError(f"--map {quoted(text)}: expected COLUMN=FIELD, as in answer=response; {choices}")
        columns.setdefault(field, []).append(column)
    for field, named in columns.items():
        if len(named) > 1 and field not in several:
            only = f"only {' and '.join(several)} may have several columns"
            raise UsageError(f"--map: {' and '.join(named)} are both {field}; {only}")
    return columns


def locate_row(path: Path, number: int) -> str:
    """Return the location of a row for messages: FILE:LINE, or "FILE:row N" for .xlsx, .parquet and .json.

    >>> locate_row(Path("scores.xlsx"), 7)
    'scores.xlsx:row 7'
    """
    return f"{path}:{number}" if jsonl.suffix(path) in (".csv", ".tsv", ".jsonl") else f"{path}:row {number}"


def split_sheet(path: Path) -> tuple[Path, str | None]:
    """Split FILE.xlsx:SHEET into workbook and sheet; return any other path with None.

    >>> split_sheet(Path("labels.xlsx:March"))[1]
    'March'
    """
    file, separator, sheet = str(path).rpartition(":")
    is_sheet = bool(separator) and jsonl.suffix(Path(file)) == ".xlsx" and not path.exists()
    return (Path(file), sheet) if is_sheet else (path, None)


def find_format(path: Path) -> str:
    """Return the suffix of a table's file format; for FILE.xlsx:SHEET it is ".xlsx"."""
    return jsonl.suffix(split_sheet(path)[0])


def rows(path: Path, formats: Collection[str] = READABLE) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a table as dicts (column -> cell), each with its location for messages.

    Cells of .csv are strings. A workbook must have only one sheet with rows, unless the path names a sheet. Raises
    UsageError, naming the line, if the file is missing, empty, truncated or in another format. Also raises it if a
    workbook's cell was cut at CELL_LIMIT, or if the library for the format is not installed.
    """
    in_workbook = find_format(path) == ".xlsx"
    for number, row in read_numbered(path, formats):
        if in_workbook and (cut := next((column for column, cell in row.items() if is_cut(cell)), None)):
            raise UsageError(
                f"{locate_row(path, number)}: {cut!r} has {CELL_LIMIT} characters, all that a cell of a workbook "
                "holds, and is probably cut: write the table again from its source as .csv or .jsonl, or leave out the "
                "row"
            )
        yield locate_row(path, number), row


def read_first_row(path: Path) -> Row | None:
    """Return the first row of a table or JSON Lines file, or None if the file cannot be read. Never raises."""
    with suppress(OSError, UsageError):
        read = rows(path) if find_format(path) in READABLE else jsonl.read(path, Row)
        return next((row for _, row in read), None)
    return None


def read_numbered(path: Path, formats: Collection[str] = READABLE) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a table with the line on which each begins, or the row number as in `locate_row`.

    Raises UsageError as `rows` does, except for cells cut at CELL_LIMIT, which are kept.
    """
    file, kind = split_sheet(path)[0], find_format(path)
    if file.is_dir():
        raise UsageError(f"{path}: a folder; expected a file, {', '.join(formats)}")
    # Both are packed already, and their readers need to seek.
    if kind not in formats or (kind != file.suffix and kind in (".xlsx", ".parquet")):
        raise UsageError(f"{path}: cannot read {file.suffix or 'a file without suffix'}; expected {', '.join(formats)}")
    if not file.is_file():
        raise UsageError(f"{path}: no such file")
    number = 0
    readers = {".xlsx": _read_xlsx, ".parquet": _read_parquet, ".json": _read_json_table}
    readers[".jsonl"] = partial(jsonl.read, record=Row)
    try:
        for number, row in readers.get(kind, _read_csv)(path):
            yield number, row
    except UsageError:
        raise
    # A damaged file makes zipfile, openpyxl and pyarrow raise anything.
    except Exception as error:
        where = locate_row(path, number + 1) if number else path
        raise UsageError(f"{where}: cannot be read as {kind}: {one_line(error)}") from None
    if not number:
        raise UsageError(f"{path}: no rows")


def _read_json_table(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a .json table, numbered from 1. Raises UsageError if the document is not a table."""
    document = as_records(read_json(path))
    if not isinstance(document, list) or not all(isinstance(row, dict) for row in document):
        raise UsageError(f"{path}: no table; expected a list of rows, or a mapping from columns to their cells")
    yield from enumerate(document, 1)


def read_json(path: Path) -> Any:
    """Return the content of a .json or .json.gz file. Raises UsageError if it is truncated or not JSON."""
    with refusing(path, "not .json"), jsonl.open_plain(path) as plain:
        document = json.load(plain)
    return document


def as_records(document: Any) -> Any:
    """Convert a table that pandas wrote by columns (`orient` split, list or columns) to a list of rows.

    Return any other document unchanged.

    >>> as_records({"index": {"0": 7, "1": 8}, "prediction": {"0": "two", "1": ["a", "b"]}})
    [{'index': 7, 'prediction': 'two'}, {'index': 8, 'prediction': ['a', 'b']}]
    >>> as_records({"index": [7, 8], "prediction": ["two", ["a", "b"]]})
    [{'index': 7, 'prediction': 'two'}, {'index': 8, 'prediction': ['a', 'b']}]
    >>> as_records({"columns": ["index", "prediction"], "index": [0, 1], "data": [[7, "two"], [8, ["a", "b"]]]})
    [{'index': 7, 'prediction': 'two'}, {'index': 8, 'prediction': ['a', 'b']}]
    >>> others = {"0": {"index": 7}, "1": {"index": 8}}, {"a": 1}, [1], 3, {"a": [1]}, {}, {"a": [{}], "b": [{}]}
    >>> all(as_records(document) == document for document in others)
    True
    """
    if not isinstance(document, dict) or not document:
        return document
    columns, data = document.get("columns"), document.get("data")
    if isinstance(columns, list) and isinstance(data, list) and data and all(isinstance(row, list) for row in data):
        return [dict(zip(columns, cells, strict=False)) for cells in data]
    values = list(document.values())
    if all(isinstance(cells, dict) for cells in values):
        # Rows by key look the same: their inner keys are names of columns, not numbers of rows.
        numbers = list(values[0])
        if any(list(cells) != numbers for cells in values) or not all(number.isdecimal() for number in numbers):
            return document
        values = [list(cells.values()) for cells in values]
    # A document with one list may be anything, such as {"data": [...]}.
    # A list of objects is a table, not the cells of a column.
    of_cells = all(isinstance(cells, list) and {*map(type, cells)} != {dict} for cells in values)
    if not values[1:] or not of_cells or len(set(map(len, values))) > 1:
        return document
    return [dict(zip(document, cells, strict=True)) for cells in zip(*values, strict=True)]


def _read_csv(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a .csv or .tsv with the line on which each begins; all cells are strings.

    The separator is the one that splits the header into the most columns. Raises UsageError if a row has more or fewer
    cells than the header, or if a quote is not closed.
    """
    # Cells may hold images as data URIs.
    csv.field_size_limit(1 << 30)
    with jsonl.open_plain(path) as plain:
        content = plain.read()
    name = detect_encoding(content)
    try:
        text = content.decode(name).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: not {name.upper()}, as other lines are; save the file as UTF-8") from None
    marks = _SEPARATORS[jsonl.suffix(path)]
    headers = [(*_find_header(csv.reader(io.StringIO(text, newline=""), delimiter=mark)), mark) for mark in marks]
    top, header, mark = max(headers, key=lambda place: len(place[1]))
    _check_header(path, header)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=mark)
    end = 0
    try:
        for number, cells in enumerate(reader):
            if number > top and len(cells) not in (0, len(header)):
                raise UsageError(f"{path}:{end + 1}: {len(cells)} cells, but the header has {len(header)}")
            # Spreadsheet programs write rows and columns that were emptied as well.
            if number > top and any(cells):
                yield end + 1, {column: cell for column, cell in zip(header, cells, strict=True) if column}
            end = reader.line_num
    except csv.Error as error:
        raise UsageError(f"{path}:{reader.line_num}: not CSV: {error}") from None


def _find_header(table: Iterable[Iterable[Any]]) -> tuple[int, list[str]]:
    """Return the index of the header row (from 0) and its column names.

    The header is normally the first row. Title rows above it are skipped: rows with a single cell that is not a usual
    column name, rows whose first cell ends in a colon, and rows with fewer cells than one below that has two usual
    names. The header is then the first row with several names.

    >>> _find_header([["score"], ["3"], ["5"]]), _find_header([["id"], ["a", "b"]]), _find_header([["marks"], [3, 4]])
    ((0, ['score']), (0, ['id']), (0, ['marks']))
    """
    cells = [["" if cell is None else str(_read_value(cell)).strip() for cell in row] for row in islice(table, _TITLES)]
    filled = [[name for name in names if name] for names in cells]
    for place, names in enumerate(filled):
        if len(names) == 1 and _count_usual(names):
            break
        is_title = any(len(row) > len(names) and _count_usual(row) > 1 for row in filled[place:])
        if len(names) > 1 and not (is_title or names[0].endswith(":")):
            # Numbers are cells below a header of one name.
            has_number = place > 0 and any(read_number(name) is not None for name in names)
            return (0, cells[0]) if has_number else (place, cells[place])
    return 0, cells[0] if cells else []


def _count_usual(columns: Iterable[str]) -> int:
    """Return how many fields and labels have a column with a usual name (`column_names.toml`)."""
    return len(match_columns(columns, load_columns().labels | load_columns().names))


def detect_encoding(content: bytes) -> str:
    """Return the encoding of a text: utf-8, utf-16 (also -le or -be), gb18030 (a superset of GBK) or cp1252.

    A text that is mostly valid UTF-8 counts as UTF-8 in spite of damaged bytes.

    >>> detect_encoding("答案".encode("gbk"))
    'gb18030'
    """
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    # UTF-16 without a byte order mark: a zero byte beside the first letter of a column's name.
    if b"\0" in content[:2]:
        return "utf-16-be" if content[:1] == b"\0" else "utf-16-le"
    try:
        content.decode()
        return "utf-8"
    except UnicodeDecodeError:
        letters = [letter for letter in content.decode(errors="replace") if letter > "\x7f"]
    if letters.count("\ufffd") * 4 < len(letters):
        return "utf-8"
    # In GBK a Chinese character is two bytes above ASCII; in cp1252 a Western letter is one, between plain letters.
    runs = _HIGH.findall(content)
    return "gb18030" if sum(len(run) > 1 for run in runs) * 2 > len(runs) else "cp1252"


def _read_parquet(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a parquet file, numbered from 1. Raises UsageError if pyarrow is missing."""
    with located(f"{path}: reading .parquet needs: pip install pyarrow", ImportError):
        from pyarrow import parquet  # noqa: PLC0415 - not part of a plain installation
    with parquet.ParquetFile(path) as table:
        batches = (batch.to_pylist() for batch in table.iter_batches(batch_size=1000))
        yield from enumerate(chain.from_iterable(batches), 1)


def _read_xlsx(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a workbook's sheet with their row numbers.

    The sheet is the one that the path names, or else the only one with rows. pandas is not used, because it turns
    rounded numbers into whole ones and skips formulas. Raises UsageError for an uncomputed formula.
    """
    file, sheet = split_sheet(path)
    with ZipFile(file) as parts:
        books = [parts.read(name) for name in parts.namelist() if _WORKBOOK.fullmatch(name)]
    computed = not any(map(_UNCOMPUTED.search, books))
    values, sources = (_open_workbook(file, data_only=only) for only in (True, False))
    title = _find_sheet(file, values, sheet)
    top, header = _find_header(values[title].iter_rows(values_only=True))
    _check_header(path, header)
    sheets = zip(values[title].iter_rows(), sources[title].iter_rows(), strict=True)
    for number, (cells, written) in enumerate(islice(sheets, top + 1, None), top + 2):
        row = Row()
        for column, cell, source in zip(header, cells, written, strict=False):
            if column:
                _check_formula(locate_row(path, number), cell, source, computed)
                row[column] = _read_value(cell.value)
        # Programs store rows that were emptied as well.
        if any(cell.value is not None for cell in cells):
            yield number, row


def _open_workbook(path: Path, *, data_only: bool) -> Any:
    """Open a workbook so that its texts keep their escapes.

    openpyxl drops `x005F_` from shared strings, so that `_x005F_x000D_`, the escaped text `_x000D_`, would look like a
    carriage return. Set `data_only` to read the values of formulas instead of the formulas.
    """
    from openpyxl.cell.text import Text  # noqa: PLC0415 - only such tables need it
    from openpyxl.reader.excel import SHARED_STRINGS, ExcelReader  # noqa: PLC0415
    from openpyxl.xml.functions import fromstring  # noqa: PLC0415

    reader = ExcelReader(path, read_only=True, data_only=data_only)
    reader.read()
    if (part := reader.package.find(SHARED_STRINGS)) is not None:
        table = fromstring(reader.archive.read(part.PartName[1:]))
        # The list itself is replaced in: each sheet holds it.
        reader.shared_strings[:] = [Text.from_tree(node).content for node in table.findall("{*}si")]
    return reader.wb


def decode_xstring(text: str) -> str:
    """Replace the escapes `_xHHHH_` in a workbook's text by the UTF-16 code units they stand for.

    `_x005F_` is an escaped underscore (ECMA-376-1, 22.9.2.19, ST_Xstring).

    >>> decode_xstring("one_x000D_\\ntwo _x005F_x000D_")
    'one\\r\\ntwo _x000D_'
    """
    from openpyxl.utils.escape import unescape  # noqa: PLC0415 - only such tables need it

    # A character above U+FFFF is two units, which are joined here.
    return str(replace_surrogates(unescape(text)))


def encode_xstring(text: str) -> str:
    """Escape a text for a workbook (ECMA-376-1, 22.9.2.19).

    Carriage returns are escaped because XML reads them as line feeds, and so are underscores that would begin an
    escape.
    """
    return _TO_ESCAPE.sub(lambda match: f"_x{ord(match[0]):04X}_", text)


def is_cut(cell: Any) -> bool:
    """Return True if a workbook's cell holds CELL_LIMIT characters: it was probably cut when it was written."""
    return isinstance(cell, str) and len(cell) >= CELL_LIMIT


def list_sheets(path: Path) -> list[str]:
    """Return the names of a workbook's sheets, or [] if the file is not a readable workbook."""
    # A damaged archive makes zipfile and openpyxl raise anything; reading it says what is wrong.
    with suppress(Exception):
        return list(_open_workbook(path, data_only=True).sheetnames) if jsonl.suffix(path) == ".xlsx" else []
    return []


def _find_sheet(path: Path, book: Any, named: str | None) -> str:
    """Return the name of the sheet to read: `named`, or the only one with a table, or the first if no sheet has rows.

    Of several sheets with rows, only those count whose header has at least two usual column names, if there are any.
    `book`: the opened workbook. Raises UsageError if there is no sheet `named`, or if `named` is None and several
    sheets count.
    """
    if named is not None:
        if named not in book.sheetnames:
            raise UsageError(f"{path}: no sheet {quoted(named)}; there are {', '.join(book.sheetnames)}")
        return named
    full = [sheet.title for sheet in book.worksheets if any(map(any, sheet.iter_rows(values_only=True)))]
    full = [name for name in full if _count_usual(_find_header(book[name].iter_rows(values_only=True))[1]) > 1] or full
    if full[1:]:
        raise UsageError(f"{path}: the sheets {', '.join(full)} have rows; name the one meant, as in {path}:{full[0]}")
    return str(full[0] if full else book.sheetnames[0])


def _check_formula(location: str, cell: Any, source: Any, computed: bool) -> None:
    """Raise UsageError if a cell holds a formula whose value is not stored.

    `cell` holds the value and `source` the formula; `computed` is False if the workbook marks its formulas as
    uncomputed.
    """
    is_stored = computed and (cell.value is not None or cell.data_type == "str")
    if source.data_type == "f" and not is_stored:
        raise UsageError(
            f"{location}: {source.coordinate} is a formula that may not be "
            'computed; a text that begins with "=" became one when the file was written: write it as .csv or .jsonl; '
            "what is meant to be one is computed when a spreadsheet program opens the file and saves it"
        )


def _read_value(cell: Any) -> Any:
    """Convert a workbook's cell: decode a text's escapes, and make large whole numbers floats, since their digits are
    lost."""
    if isinstance(cell, str):
        return decode_xstring(cell)
    return float(cell) if type(cell) is int and abs(cell) >= _EXACT else cell


def _check_header(path: Path, header: Sequence[str]) -> None:
    """Raise UsageError if a table's header has no names or repeats one."""
    names = [column for column in header if column]
    if not names:
        raise UsageError(f"{path}: no header row; expected the names of the columns in the first line")
    if twice := sorted({column for column in names if names.count(column) > 1}):
        raise UsageError(f"{path}:1: the column {quoted(twice[0])} is there twice")


def require_text(location: str, row: Mapping[str, Any], column: str) -> str:
    """Return the text in a cell. Raises UsageError, naming location and column, if it is empty."""
    cell = optional_text(row, column)
    if cell is None:
        raise UsageError(f"{location}: {quoted(column)} is empty")
    return cell


def optional_text(row: Mapping[str, Any], column: str) -> str | None:
    """Return the stripped text in a cell, or None if it is empty, absent or NaN."""
    text = cell_text(row.get(column))
    return text and (text.strip() or None)


def cell_text(value: Any) -> str | None:
    """Return a cell as text, or None if it is empty or NaN.

    A whole number given as a float loses its ".0". If it is so large that digits may be lost, it is written with an
    exponent, which `check_ids` rejects.

    >>> cell_text(12.0), cell_text(1e17)
    ('12', '1.00000000000000e+17')
    >>> cell_text(123456789012345.0), cell_text(1234567890123456789), cell_text("123456789012345678")
    ('123456789012345', '1234567890123456789', '123456789012345678')
    """
    if isinstance(value, float):
        if math.isnan(value):
            return None
        if value.is_integer():
            value = int(value) if abs(value) < _EXACT else f"{value:.14e}"
    return None if value is None or value == "" else str(value)


def is_empty(cell: Any) -> bool:
    """Return True if a cell for a number or label holds no value: blank, `N/A`, `k. A.`, NaN and the like.

    >>> all(map(is_empty, ["k. A.", "k.A.", "keine Angabe", "n. a.", "N/A", ".", "unknown", "缺失", "?"]))
    True
    """
    return cell is None or str(cell).translate(_BLANKS).lower() in load_columns().empty


def parse_number(cell: Any, below: float = math.inf) -> float:
    """Return a cell as a number, written with a decimal point or comma; NaN if it is empty.

    `below` is the upper limit of the column's numbers. If it exceeds 1000, a cell like "4,333" is ambiguous. Raises
    ValueError for an ambiguous or infinite number, or a cell that is no number.

    >>> [parse_number(cell) for cell in ("7,5", "-1", 7, "1e1")], parse_number(" 4,333 ", below=10)
    ([7.5, -1.0, 7.0, 10.0], 4.333)
    >>> empty = (None, "", " ", "N/A", "#N/A", "n/a", "NaN", "None", "null", "-", float("nan"))
    >>> all(math.isnan(parse_number(cell)) for cell in empty)
    True
    """
    if isinstance(cell, str) and "," in cell:
        # "4,333" is a rating only if ratings stay below a thousand.
        if below > 1000 and _THOUSANDS.fullmatch(cell.strip()):
            raise ValueError("may have decimals or thousands behind the comma; write it without")
        cell = cell.replace(",", ".")
    try:
        # float() would take True as 1.
        value = math.nan if isinstance(cell, bool) else float(cell)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if math.isnan(value) and not is_empty(cell):
        raise ValueError("is not a number; expected one as 7.5, or an empty cell where there is none")
    if math.isinf(value):
        raise ValueError("is not a finite number")
    return value


def read_number(cell: Any) -> float | None:
    """Return a cell as a number, or None if it is empty or not a number.

    >>> read_number("7,5"), read_number("good"), read_number([7])
    (7.5, None, None)

    Without a bound "4,333" may be thousands, such as a length in characters.

    >>> refused = "4,333", "good", "1.234,5", "1,234,567", True, "inf", [1], "1,2.5"
    >>> any(is_empty(cell) or read_number(cell) is not None for cell in refused)
    False
    """
    with suppress(ValueError):
        number = parse_number(cell)
        return None if math.isnan(number) else number
    return None


def parse_optional_number(
    location: str, column: str, cell: Any, ends: Scale = UNBOUNDED, *, none: float | None = None, hint: str = ""
) -> float | None:
    """Return a cell as a number (`parse_number`), or None if it is empty or equals `none`.

    `location`: the location for the error message. `ends`: lowest and highest value allowed. `hint`: text at the end of
    the message for a value outside them.

    Raises UsageError, naming location and column, if the cell is not a number within `ends`.
    """
    low, high = ends
    try:
        value = parse_number(cell, high)
        if math.isnan(value) or value == none:
            return None
        if low <= value <= high:
            return value
        problem = f"{value:g} is outside {low:g}..{high:g}{hint}"
    except ValueError as error:
        problem = f"{quoted(cell)} {error}"
    raise UsageError(f"{location}: {column} {problem}")


def find_scale(numbers: Sequence[float], people: Scale | None = None) -> Scale:
    """Return the scale that numbers are on: the first of SCALES that contains all, or else their own range.

    `people`: people's scale. It is returned if it contains all numbers and the largest is at least half its upper end.

    >>> find_scale([2.0, 9.0], people=(1.0, 10.0)), find_scale([1, 4])
    ((1.0, 10.0), (1, 5))
    """
    lowest, highest = min(numbers), max(numbers)
    if people and people[0] <= lowest and people[1] / 2 <= highest <= people[1]:
        return people
    return next((scale for scale in SCALES if scale[0] <= lowest and highest <= scale[1]), (lowest, highest))


def detect_scale(cells: Sequence[tuple[str, Any]], name: str, path: Path, people: Scale | None = None) -> Scale | None:
    """Return the scale of a column's scores, or None if the column has no scores.

    `cells`: pairs (location, cell). NO_VERDICT in a cell is no score.
    `name`, `path`: name of the column and file, for messages.
    `people`: people's scale, which is preferred if the scores fit it.

    Raises UsageError if all scores are equal, or for a number far from all others: it may be a typing error or a code
    for "no answer", such as 99.
    """
    numbers = [(score, at) for at, cell in cells if (score := read_number(cell)) is not None and score != NO_VERDICT]
    near = [number for number, _ in numbers if 0 <= number <= _HIGHEST]
    far = [entry for entry in numbers if not 0 <= entry[0] <= _HIGHEST]
    few = len(far) <= max(1, len(numbers) * _FEW) or len({number for number, _ in far}) == 1
    if far and few and near:
        low, high = find_scale(near, people)
        others = f"outside {low:g}..{high:g}, on which the others are; if it is a score, give --scale or --judge-scale"
        raise UsageError(f"{far[0][1]}: {name} {far[0][0]:g} is {others}")
    scale = find_scale([number for number, _ in numbers], people) if numbers else None
    if scale and scale[0] == scale[1]:
        raise UsageError(f"{path}: every {name} is {scale[0]:g}; give their --scale or --judge-scale")
    return scale


def say_first_of(count: int) -> str:
    """Return ", the first of N," for an error about the first of `count` problems, or "" if there is only one."""
    return f", the first of {count}," if count > 1 else ""


def check_ids(keys: Iterable[str | None], location: str | Callable[[int], str], column: str = "id") -> None:
    """Raise UsageError if an id is a long number that a spreadsheet program or data frame has rounded.

    Ids that were different may have become equal by rounding. `location` is the location for the message, or a function
    that returns it for the index of an id.

    >>> check_ids(["3", "123456789012345", "1234567890123456789", "123456789012345678", "1.5e3", "7e12", "a1E+17"], "")
    """
    rounded = [(number, key) for number, key in enumerate(keys) if key and "+" in key and _ROUNDED.fullmatch(key)]
    if not rounded:
        return
    number, key = rounded[0]
    where = location if isinstance(location, str) else location(number)
    raise UsageError(
        f"{where}: the {column} {quoted(key)}{say_first_of(len(rounded))} is a long "
        "number that a spreadsheet program or a data frame has rounded; write the file again from its source with the "
        f"{column} as text, and open it in no such program before"
    )


YES, NO = {"yes", "y", "1", "true", "是"}, {"no", "n", "0", "false", "否"}


def parse_yes_no(location: str, row: Mapping[str, Any], column: str) -> bool:
    """Return True if a cell means yes and False if it means no. Raises UsageError for another word, or none."""
    cell = (optional_text(row, column) or "").lower()
    if cell not in YES | NO:
        raise UsageError(f"{location}: {quoted(column)} is {quoted(cell)}; expected yes or no, true or false")
    return cell in YES


def parse_language(location: str, row: Mapping[str, Any]) -> Any:
    """Return a row's `lang`, "zh" or "en"; "en" if it is empty. Raises UsageError for any other value."""
    lang = optional_text(row, "lang") or "en"
    if lang not in ("zh", "en"):
        raise UsageError(f"{location}: 'lang' is {quoted(lang)}; expected zh or en")
    return lang


def parse_image(location: str, value: Any) -> str:
    """Return an image as a path or a data URI.

    `value` is a path, or the bytes or dict (`bytes`, `path`) of an image embedded in a parquet file. Raises UsageError
    for anything else.
    """
    value = value if isinstance(value, dict) else {"bytes": value, "path": value}
    content, path = value.get("bytes"), value.get("path")
    if isinstance(content, bytes):
        for start, media_type in MEDIA_TYPES.items():
            if content.startswith(start):
                return f"data:{media_type};base64,{base64.b64encode(content).decode()}"
        raise UsageError(f"{location}: the embedded image is none of {', '.join(MEDIA_TYPES.values())}")
    if isinstance(path, str) and path.strip():
        return path.strip()
    raise UsageError(f"{location}: no image; expected a path or an embedded image")


def list_pictures(location: str, row: Mapping[str, Any], column: str) -> list[str]:
    """Return the names of a row's image, in `column`, and of its video, in `video`; it may have only one of them.

    Raises UsageError if it has neither, or as `parse_image` does.
    """
    video = optional_text(row, "video")
    images = [] if video and not row.get(column) else [parse_image(location, row.get(column))]
    return [*images, *([f"{VIDEO}{video}"] if video else [])]


class Ids(dict[str, str]):
    """The ids seen so far in a file -> the location of each."""

    def add(self, location: str, key: str) -> str:
        """Remember an id and return it. Raises UsageError, naming both locations, if it was seen before."""
        check_ids([key], location)
        if key in self:
            raise UsageError(f"{location}: duplicate id {quoted(key)}, first at {self[key]}")
        self[key] = location
        return key


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> int:
    """Write rows as CSV and return their number. The old file is replaced only once the new one is complete.

    Cells and headers that a spreadsheet program would run as formulas are escaped (`escape_formula`). All CSV files of
    the project are written here.
    """
    lines = list[str]()
    columns = list(dict.fromkeys(column for row in rows for column in row))
    # Before Python 3.13 csv quotes only the line breaks of its own line terminator, so that must contain both.
    writer = csv.writer(SimpleNamespace(write=lines.append), lineterminator="\r\n")
    writer.writerow(map(escape_formula, columns))
    writer.writerows([escape_formula(row.get(column, "")) for column in columns] for row in rows)
    jsonl.write_text(path, "".join(line.removesuffix("\r\n") + "\n" for line in lines))
    return len(rows)


def escape_formula(value: Any) -> Any:
    """Return a cell with an apostrophe in front if a spreadsheet program would read it as a formula; else unchanged."""
    return f"'{value}" if isinstance(value, str) and value.startswith(tuple("=+-@\t\r")) else value


def list_files(path: Path, *outs: Path) -> list[Path]:
    """Return the tables in a folder (suffixes in `FORMATS`), sorted, or `path` itself if it is a file.

    `outs` are the files to be written. Raises UsageError if the folder holds no table, or if an output is the same file
    as an input or another output.
    """
    sources = [path]
    if path.is_dir():
        sources = sorted(entry for entry in path.iterdir() if jsonl.suffix(entry) in FORMATS)
    if not sources:
        raise UsageError(f"{path}: the folder holds no .jsonl file, nor another of {', '.join(FORMATS)}")
    names = Counter(map(jsonl.identify, [*sources, *outs]))
    if clash := next((out for out in outs if names[jsonl.identify(out)] > 1), None):
        problem = "is among the rows that are read, or is another name of what is written beside it"
        raise UsageError(f"--out: {clash} {problem}; choose another, or take the link away")
    return sources
