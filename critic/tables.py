"""Tables in files: rows of .csv, .jsonl, .parquet and .xlsx, each with the place that an error names; sheets."""

import base64
import csv
import io
import math
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from critic import jsonl
from critic.counting.keys import KeySet
from critic.errors import UsageError, loads, one_line

Row = dict[str, Any]

_PLACE = re.compile(r"(.*?)([0-9]{0,12})", re.DOTALL)
"""What a place begins with, and the number that it ends in."""

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
        ".csv": _csv, ".tsv": partial(_csv, delimiter="\t"), ".jsonl": lambda path: jsonl.read(path, Row),
        ".json": _json, ".parquet": jsonl.parquet_rows, ".xlsx": _xlsx,
    }  # fmt: skip
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


def _csv(path: Path, delimiter: str = ",") -> Iterator[tuple[int, Row]]:
    csv.field_size_limit(1 << 30)  # cells may hold images as data URIs
    with jsonl.opened(path) as plain, io.TextIOWrapper(plain, "utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True, delimiter=delimiter)
        try:
            header = [column.strip() for column in next(reader, [])]
            _check_header(path, [column for column in header if column])
            if len(header) == 1 and (found := next((mark for mark in ";\t" if mark in header[0]), None)):
                instead = "commas, and decimal points in numbers, or as .xlsx" if delimiter == "," else "tabs"
                raise UsageError(
                    f"{path}:1: the columns are separated by {found!r}; expected {delimiter!r}: save it with {instead}"
                )
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
        except UnicodeDecodeError:
            deque(jsonl.lines(path), maxlen=0)  # names the line that is not UTF-8
            raise
        except csv.Error as error:
            raise UsageError(f"{path}:{reader.line_num}: not CSV: {error}") from None


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
        self._seen, self._files = KeySet(numbered=8), list[str]()

    def add(self, place: str, key: str) -> str:
        check_ids([key], place)
        file, number = _PLACE.fullmatch(place).groups()  # type: ignore[union-attr]  # fits any text
        if not self._files or self._files[-1] != file:
            self._files.append(file)
        if not self._seen.add(key, (len(self._files) - 1 << 40) + int(number or 0)):
            first = self._seen.get(key) or 0
            there = f"{self._files[first >> 40]}{first % (1 << 40) or ''}"
            raise UsageError(f"{place}: duplicate id {key!r}, first at {there}")
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
