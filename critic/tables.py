"""Tables in files: rows of .csv, .jsonl, .parquet and .xlsx, each with the place that an error names; sheets."""

import base64
import csv
import io
import json
import math
import re
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from critic import jsonl
from critic.errors import UsageError

Row = dict[str, Any]

_NAME = 16
"""Bytes of the hash that a key is known by: of ten million keys two are taken for one with a probability of 1e-25."""

_FULL = 32
"""Keys of a bucket, on average: fewer take more memory, more take longer to find."""

_PLACE = re.compile(r"(.*?)([0-9]{0,12})", re.DOTALL)
"""What a place begins with, and the number that it ends in."""

FORMATS = (".csv", ".jsonl", ".parquet", ".xlsx")
"""What can be read, .parquet and .xlsx by libraries that are not part of a plain installation."""

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
        found = json.loads(path.read_bytes())
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
            header = next(reader, [])
            _check_header(path, header)
            end = reader.line_num
            for cells in reader:
                # A quoted cell may hold line breaks: a row begins where the one before ended.
                number, end = end + 1, reader.line_num
                if len(cells) not in (0, len(header)):
                    raise UsageError(f"{path}:{number}: {len(cells)} cells, but the header has {len(header)}")
                if cells:
                    yield number, dict(zip(header, cells, strict=True))
        except UnicodeDecodeError:
            deque(jsonl.lines(path), maxlen=0)  # names the line that is not UTF-8
            raise
        except csv.Error as error:
            raise UsageError(f"{path}:{reader.line_num}: not CSV: {error}") from None


def _xlsx(path: Path) -> Iterator[tuple[int, Row]]:
    openpyxl = jsonl.optional_module("openpyxl", path, "or save the sheet as CSV UTF-8")
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    except Exception as error:  # whatever a damaged archive makes openpyxl raise
        raise UsageError(f"{path}: not a spreadsheet: {error}") from None
    try:
        lines = book.worksheets[0].iter_rows(values_only=True)
        header = ["" if cell is None else str(cell).strip() for cell in next(lines, ())]
        _check_header(path, [column for column in header if column])
        for number, cells in enumerate(lines, 2):
            if any(cell is not None for cell in cells):
                row = {column: cell for column, cell in zip(header, cells, strict=False) if column}
                yield number, row
    finally:
        book.close()


def _check_header(path: Path, header: list[str]) -> None:
    if not header:
        raise UsageError(f"{path}: no header row")
    if twice := sorted({column for column in header if header.count(column) > 1}):
        raise UsageError(f"{path}:1: the column {twice[0]!r} is there twice")


def text(place: str, row: Mapping[str, Any], column: str) -> str:
    """A cell that must say something. Raises UsageError naming place and column for an empty one."""
    found = optional_text(row, column)
    if found is None:
        raise UsageError(f"{place}: {column!r} is empty")
    return found


def optional_text(row: Mapping[str, Any], column: str) -> str | None:
    """A cell as text; None where it is empty, absent or NaN. Whole numbers lose the .0 that spreadsheets add."""
    value = row.get(column)
    if isinstance(value, float):
        value = int(value) if value.is_integer() else None if math.isnan(value) else value
    return None if value is None else str(value).strip() or None


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


class KeySet:
    """Keys (texts, and tuples of texts, numbers and None) in about 24 bytes each, where a set takes 110; `numbered`, in
    8 more, with a number (0 to 2^63 - 1) for each. Only their hashes are kept.

    A hash table that grows by one bucket at a time, so that it is never there twice: linear hashing (Litwin 1980).
    """

    def __init__(self, *, numbered: bool = False) -> None:
        self._size, self._count = _NAME + 8 * numbered, 0
        # Half of the buckets at least are told apart by the hash's bits below `_bit`, those split since by one more.
        self._bit, self._buckets = 1, [bytearray()]

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: Hashable) -> bool:
        return self._found(key)[2] >= 0

    def get(self, key: Hashable) -> int | None:
        """The number of a key, None of one that is not there."""
        bucket, _, place = self._found(key)
        return None if place < 0 else int.from_bytes(bucket[place + _NAME : place + self._size], "little")

    def add(self, key: Hashable, number: int = 0) -> bool:
        """Whether the key was not there; one that was keeps its number."""
        bucket, name, place = self._found(key)
        if place >= 0:
            return False
        bucket += name
        bucket += number.to_bytes(self._size - _NAME, "little")
        self._count += 1
        if self._count > _FULL * len(self._buckets):
            self._split()
        return True

    def _found(self, key: Hashable) -> tuple[bytearray, bytes, int]:
        """The bucket of a key, its hash, and where in the bucket that stands; -1 where it does not."""
        name = blake2b(msgspec.json.encode(key), digest_size=_NAME).digest()
        bits = int.from_bytes(name, "little")
        number = bits & (2 * self._bit - 1)
        bucket = self._buckets[number if number < len(self._buckets) else number & (self._bit - 1)]
        place = bucket.find(name)
        while place % self._size and place > 0:  # across two neighbours
            place = bucket.find(name, place + 1)
        return bucket, name, place

    def _split(self) -> None:
        """Move to a new bucket, of the oldest not yet split, what the next bit of the hash says."""
        if len(self._buckets) == 2 * self._bit:
            self._bit *= 2
        number = len(self._buckets) - self._bit
        stays, goes = bytearray(), bytearray()
        for start in range(0, len(old := self._buckets[number]), self._size):
            one = old[start : start + self._size]
            (goes if int.from_bytes(one[:_NAME], "little") & self._bit else stays).extend(one)
        self._buckets[number] = stays
        self._buckets.append(goes)


class Ids:
    """Ids already seen. Raises UsageError naming both places for a second one."""

    def __init__(self) -> None:
        self._seen, self._files = KeySet(numbered=True), list[str]()

    def add(self, place: str, key: str) -> str:
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
