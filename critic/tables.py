"""Tables in files: rows of .csv, .jsonl, .parquet and .xlsx, each with the place that an error names; sheets."""

import base64
import csv
import io
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from critic import jsonl
from critic.errors import UsageError, loads, one_line

Row = dict[str, Any]

CHINESE = re.compile(r"[\u4e00-\u9fff]")

FORMATS = (".csv", ".jsonl", ".parquet", ".xlsx")
"""What can be read, .parquet and .xlsx by libraries that are not part of a plain installation."""

_WORKBOOK = re.compile(r"xl/workbook\d*\.xml")
_UNCOMPUTED = re.compile(rb'<(\w+:)?calcPr\b[^>]*\bfullCalcOnLoad="(1|true)"')
"""How a workbook says that its formulas are yet to be computed, as those do that pandas, xlsxwriter, openpyxl write."""

_ROUNDED = re.compile(r"[+-]?\d([.,]\d+)?[eE]\+\d+")
"""What spreadsheet programs and data frames make of a long whole number."""

_EXACT = 1e15
"""Whole numbers from here up have digits that a spreadsheet program does not keep."""

_HIGH = re.compile(rb"[\x80-\xff]+")

_EMPTY = frozenset(("", "-", "#n/a", "#na", "<na>", "n/a", "na", "nan", "none", "null"))
"""What people and programs write, in small letters, into a cell that holds no number and no label."""

_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}")

_LINES = (".csv", ".tsv", ".jsonl")
"""What may be packed as well: .jsonl.gz, .csv.zst."""

MEDIA_TYPES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}
"""How the images inside parquet files begin."""


def place(path: Path, number: int) -> str:
    """Where a row is: file:line, for spreadsheets and parquet file:row N."""
    return f"{path}:{number}" if jsonl.suffix(path) in _LINES else f"{path}:row {number}"


def rows(path: Path, formats: Collection[str] = FORMATS) -> Iterator[tuple[str, Row]]:
    """The rows of a table with their places. Raises UsageError as `numbered` does."""
    for number, row in numbered(path, formats):
        yield place(path, number), row


def numbered(path: Path, formats: Collection[str] = FORMATS) -> Iterator[tuple[int, Row]]:
    """The rows of a table by column, read as they are asked for, with the line that each begins on (spreadsheets: the
    row, parquet: the row from 1). Cells of .csv are text; the header of .csv and .xlsx is the first line. Raises
    UsageError for a file that is missing, empty, torn or of another format, naming the line, and where the library that
    reads it is not installed."""
    readers: dict[str, Callable[[Path], Iterable[tuple[int, Row]]]] = {
        ".csv": _csv,
        ".tsv": partial(_csv, separators="\t"),
        ".jsonl": lambda path: jsonl.read(path, Row),
        ".json": _json,
        ".parquet": jsonl.parquet_rows,
        ".xlsx": _xlsx,
    }
    kind = jsonl.suffix(path)
    if path.is_dir():
        raise UsageError(f"{path}: a folder; expected a file, {', '.join(formats)}")
    if kind not in formats or (kind != path.suffix and kind not in _LINES):
        raise UsageError(f"{path}: cannot read {path.suffix or 'a file without suffix'}; expected {', '.join(formats)}")
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    found = False
    for number, row in readers[kind](path):
        found = True
        yield number, row
    if not found:
        raise UsageError(f"{path}: no rows")


def first(path: Path) -> Row | None:
    """The first object of a file of JSON lines or of Parquet; None for another file, or one that begins otherwise.
    Never raises."""
    try:
        return next((row for _, row in jsonl.read(path, Row)), None)
    except (OSError, UsageError):
        return None


def _json(path: Path) -> Iterable[tuple[int, Row]]:
    """A list of objects, or such a list under `logs`."""
    try:
        found = loads(path.read_bytes())
    except ValueError as error:
        raise UsageError(f"{path}: not JSON: {error}") from None
    found = found.get("logs") if isinstance(found, dict) else found
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise UsageError(f"{path}: expected a list of objects")
    return enumerate(found, 1)


def _csv(path: Path, separators: str = ",;\t") -> Iterator[tuple[int, Row]]:
    """The header is split by the separator that makes most columns, of several the first."""
    csv.field_size_limit(1 << 30)  # cells may hold images as data URIs
    with jsonl.opened(path) as plain:
        content = plain.read()
    name = encoding(content)
    try:
        text = content.decode(name).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: not {name.upper()}, as other lines are; save the file as UTF-8") from None
    mark = max(separators, key=lambda mark: len(next(csv.reader(io.StringIO(text, newline=""), delimiter=mark), [])))
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=mark)
    try:
        header = [column.strip() for column in next(reader, [])]
        _check_header(path, [column for column in header if column])
        end = reader.line_num
        for cells in reader:
            # A quoted cell may hold line breaks: a row begins where the one before ended.
            number, end = end + 1, reader.line_num
            if len(cells) not in (0, len(header)):
                raise UsageError(f"{path}:{number}: {len(cells)} cells, but the header has {len(header)}")
            if any(cells):  # spreadsheet programs write rows and columns that were emptied as well
                row = dict(zip(header, cells, strict=True))
                row.pop("", None)
                yield number, row
    except csv.Error as error:
        raise UsageError(f"{path}:{reader.line_num}: not CSV: {error}") from None


def encoding(content: bytes) -> str:
    """The encoding of a text: utf-8, utf-16, gb18030 (of which GBK is a part) or cp1252. Text that is mostly UTF-8 is
    UTF-8 also where a byte is torn: read as cp1252, every letter with an accent would be two others."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    if b"\0" in content[:2]:  # the first letter of a column's name, without a byte order mark
        return "utf-16-be" if content[:1] == b"\0" else "utf-16-le"
    try:
        content.decode()
        return "utf-8"
    except UnicodeDecodeError:
        letters = [letter for letter in content.decode(errors="replace") if letter > "\x7f"]
    if letters.count("\ufffd") * 4 < len(letters):
        return "utf-8"
    # Chinese characters are bytes above ASCII in pairs, Western letters one between plain letters.
    runs = _HIGH.findall(content)
    return "gb18030" if sum(len(run) > 1 for run in runs) * 2 > len(runs) else "cp1252"


def _xlsx(path: Path) -> Iterator[tuple[int, Row]]:
    openpyxl = jsonl.optional_module("openpyxl", path, "or save the sheet as CSV UTF-8")
    try:
        with ZipFile(path) as parts:
            books = [parts.read(name) for name in parts.namelist() if _WORKBOOK.fullmatch(name)]
        book, formulas = (openpyxl.load_workbook(path, read_only=True, data_only=only) for only in (True, False))
    except Exception as error:  # whatever a damaged archive makes zipfile and openpyxl raise
        raise UsageError(f"{path}: not a spreadsheet: {one_line(error)}") from None
    try:
        _check_computed(path, book, formulas, computed=not any(map(_UNCOMPUTED.search, books)))
        lines = _xlsx_lines(path, book)
        header = _header(cell.value for cell in next(lines, ()))
        _check_header(path, [column for column in header if column])
        for number, line in enumerate(lines, 2):
            cells = [cell.value for cell in line]
            if any(cell is not None for cell in cells):
                row = {column: _number(cell) for column, cell in zip(header, cells, strict=False) if column}
                yield number, row
    finally:
        book.close()
        formulas.close()


def _number(cell: Any) -> Any:
    """A cell of a sheet, where every number is a float, also one that its writer wrote out as a whole one."""
    return float(cell) if type(cell) is int and abs(cell) >= _EXACT else cell


def _header(cells: Iterable[Any]) -> list[str]:
    return ["" if cell is None else str(cell).strip() for cell in cells]


def _check_computed(path: Path, values: Any, formulas: Any, *, computed: bool) -> None:
    """Raises UsageError for formulas whose value a workbook does not hold: read as values they are empty cells. A text
    of no characters is a value. Without `computed` what stands beside a formula is none, as its program says."""
    lines = _xlsx_lines(path, formulas)
    named = {column for column, name in enumerate(_header(cell.value for cell in next(lines, ()))) if name}
    cells = {
        (number, column): cell.coordinate
        for number, line in enumerate(lines, 2)
        for column, cell in enumerate(line)
        if cell.data_type == "f" and column in named
    }
    if computed and cells:  # most sheets have none and are not read again
        for number, line in enumerate(_xlsx_lines(path, values), 1):
            for column, cell in enumerate(line):
                if cell.value is not None or cell.data_type == "str":
                    cells.pop((number, column), None)
    if not cells:
        return
    (number, _), coordinate = next(iter(cells.items()))
    raise UsageError(
        f"{place(path, number)}: {coordinate}{first_of(len(cells))} is a formula that may not be computed; a text that "
        'begins with "=" became one when the file was written: write it as .csv or .jsonl; what is meant to be one is '
        "computed when a spreadsheet program opens the file and saves it"
    )


def _xlsx_lines(path: Path, book: Any) -> Iterator[Any]:
    """The first sheet's lines. Raises UsageError where it is torn, which shows only where it is read."""
    number = 0
    try:
        for line in book.worksheets[0].iter_rows():
            number += 1
            yield line
    except Exception as error:  # whatever a damaged archive makes zipfile and openpyxl raise
        raise UsageError(f"{place(path, number + 1)}: the sheet is torn: {one_line(error)}") from None


def _check_header(path: Path, header: list[str]) -> None:
    if not header:
        raise UsageError(f"{path}: no header row; expected the names of the columns in the first line")
    if twice := sorted({column for column in header if header.count(column) > 1}):
        raise UsageError(f"{path}:1: the column {twice[0]!r} is there twice")


def text(place: str, row: Mapping[str, Any], column: str) -> str:
    """A cell that must say something. Raises UsageError naming place and column for an empty one."""
    found = optional_text(row, column)
    if found is None:
        raise UsageError(f"{place}: {column!r} is empty")
    return found


def optional_text(row: Mapping[str, Any], column: str) -> str | None:
    """A cell as text; None where it is empty, absent or NaN."""
    text = cell_text(row.get(column))
    return text and (text.strip() or None)


def cell_text(value: Any) -> str | None:
    """A cell as text; None where it is empty or NaN. Whole numbers lose the .0 that spreadsheets add; those that a
    float may have rounded are written with an exponent, which `check_ids` refuses."""
    if isinstance(value, float):
        if math.isnan(value):
            return None
        if value.is_integer():
            value = int(value) if abs(value) < _EXACT else f"{value:.14e}"
    return None if value is None or value == "" else str(value)


def is_empty(cell: Any) -> bool:
    """Whether a cell of numbers or labels holds none, or says so: `N/A`, NaN and the like."""
    return cell is None or str(cell).strip().lower() in _EMPTY


def number(cell: Any, below: float = math.inf) -> float:
    """A cell as a number, with a decimal point or comma; NaN where it is empty. `below` is what no number of its column
    reaches. Raises ValueError with what is wrong."""
    if isinstance(cell, str) and "," in cell:
        if below > 1000 and _THOUSANDS.fullmatch(cell.strip()):
            raise ValueError("may have decimals or thousands behind the comma; write it without")
        cell = cell.replace(",", ".")
    try:
        found = math.nan if isinstance(cell, bool) else float(cell)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if math.isnan(found) and not is_empty(cell):
        raise ValueError("is not a number; expected one as 7.5, or an empty cell where there is none")
    if math.isinf(found):
        raise ValueError("is not a finite number")
    return found


def first_of(count: int) -> str:
    """What an error says behind the first of several cells or rows."""
    return f", the first of {count}," if count > 1 else ""


def check_ids(keys: Iterable[str | None], place: str | Callable[[int], str], column: str = "id") -> None:
    """Raises UsageError for ids that were longer numbers before a spreadsheet program or a data frame rounded them:
    different ones may be the same now. `place` is where they stand, `place(i)` where id i does."""
    rounded = [(number, key) for number, key in enumerate(keys) if key and "+" in key and _ROUNDED.fullmatch(key)]
    if not rounded:
        return
    number, key = rounded[0]
    raise UsageError(
        f"{place if isinstance(place, str) else place(number)}: the {column} {key!r}{first_of(len(rounded))} is a long "
        "number that a spreadsheet program or a data frame has rounded; write the file again from its source with the "
        f"{column} as text, and open it in no such program before"
    )


def language(place: str, row: Mapping[str, Any]) -> Any:
    """The row's own `lang`, a column that published files lack: they are English."""
    lang = optional_text(row, "lang") or "en"
    if lang not in ("zh", "en"):
        raise UsageError(f"{place}: 'lang' is {lang!r}; expected zh or en")
    return lang


def image(place: str, value: Any) -> str:
    """An image as conversations hold it: a path, or a data URI of the bytes that a parquet file embeds."""
    if isinstance(value, str) and value.strip():
        return value.strip()
    value = value if isinstance(value, dict) else {"bytes": value}
    content, path = value.get("bytes"), value.get("path")
    if isinstance(content, bytes):
        for start, media_type in MEDIA_TYPES.items():
            if content.startswith(start):
                return f"data:{media_type};base64,{base64.b64encode(content).decode()}"
        raise UsageError(f"{place}: the embedded image is none of {', '.join(MEDIA_TYPES.values())}")
    if isinstance(path, str) and path.strip():
        return path.strip()
    raise UsageError(f"{place}: no image; expected a path or an embedded image")


class Ids:
    """Ids already seen. Raises UsageError naming both places for a second one."""

    def __init__(self) -> None:
        self._places: dict[str, str] = {}

    def add(self, place: str, key: str) -> str:
        check_ids([key], place)
        if key in self._places:
            raise UsageError(f"{place}: duplicate id {key!r}, first at {self._places[key]}")
        self._places[key] = place
        return key


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> int:
    """Rows as CSV in one step; what a spreadsheet would take for a formula stays text."""
    text = io.StringIO()
    columns = list(dict.fromkeys(column for row in rows for column in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: harmless(value) for name, value in row.items()} for row in rows)
    jsonl.write_text(path, text.getvalue())
    return len(rows)


def harmless(value: Any) -> Any:
    """A cell that no spreadsheet reads as a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(tuple("=+-@\t\r")) else value
