"""JSON-lines files, packed (.gz, .zst) or not, and the same records in Parquet: read with file:line errors, append so
that a killed run can resume, pack what is whole, and the sidecar that says what made a file."""

import errno
import fcntl
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from functools import lru_cache
from importlib import import_module
from importlib.metadata import version
from itertools import islice
from mmap import ACCESS_READ, mmap
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Self, TypeVar, cast

import msgspec

from critic.errors import UsageError, one_line

T = TypeVar("T")

PACKED = (".gz", ".zst")
"""What may stand behind .jsonl or .csv; .zst is read and written by pyarrow."""

_MALFORMED = re.compile(r"malformed.*\(byte (\d+)\)")
"""Where the decoder stopped."""

_ROWS, _ROWS_WITH_BYTES = 4096, 32
"""Rows of a Parquet file in memory at a time; few where images may be inside."""


@lru_cache  # asked of every row of a file
def suffix(path: Path) -> str:
    """What a file holds by its name: what stands before .gz or .zst where it is packed."""
    return path.with_suffix("").suffix if path.suffix in PACKED else path.suffix


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file to read, unpacked. Raises UsageError where what is packed is torn or none, or cannot be unpacked here."""
    if path.suffix not in PACKED:
        with path.open("rb") as file:
            yield file
        return
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as plain:
                yield cast(BinaryIO, plain)
        else:
            with optional_module("pyarrow", path).input_stream(str(path), compression="zstd") as stream:
                yield cast(BinaryIO, io.BufferedReader(stream))
    except (EOFError, OSError, zlib.error) as error:
        raise UsageError(f"{path}: not whole, or no {path.suffix}: {error}") from None


def optional_module(name: str, path: Path, otherwise: str = "") -> ModuleType:
    """What reads files of a kind. Raises UsageError with what to install."""
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise UsageError(f"{path}: reading {path.suffix} needs: pip install {package} {otherwise}".rstrip()) from None


def parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a Parquet file with their numbers, from 1. Raises UsageError for another file."""
    parquet = optional_module("pyarrow.parquet", path)
    try:
        table = parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not a parquet file: {one_line(error)}") from None
    number = 0
    with table:
        size = _ROWS_WITH_BYTES if "binary" in str(table.schema_arrow) else _ROWS
        try:
            for batch in table.iter_batches(batch_size=size):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
        except (OSError, ValueError, NotImplementedError) as error:
            raise UsageError(f"{path}:row {number + 1}: not to be read: {one_line(error)}") from None


def _said(value: Any) -> Any:
    """A value of Parquet without the keys that its row does not have, and without tables that have none: there every
    row has all of them."""
    if isinstance(value, dict):
        said = ((key, _said(one)) for key, one in value.items())
        return {key: one for key, one in said if one is not None and one != {}}
    return [_said(one) for one in value] if isinstance(value, list) else value


def _to_parquet(source: Path, target: Path) -> None:
    """The lines of a file as rows, read twice: all have the columns of all. Raises UsageError where a column would hold
    values of several kinds."""
    arrow, parquet = optional_module("pyarrow", target), optional_module("pyarrow.parquet", target)

    def tables(columns: Any = None) -> Iterator[Any]:
        found = (_said(msgspec.json.decode(line)) for _, line in lines(source)) if source.stat().st_size else iter(())
        while part := list(islice(found, _ROWS)):
            # Not from_pylist, which takes the columns of the first row for those of all.
            rows = arrow.array(part, columns and arrow.struct(list(columns)))
            yield arrow.Table.from_struct_array(rows)

    columns = arrow.schema([])
    try:
        for table in tables():
            columns = arrow.unify_schemas([columns, table.schema], promote_options="permissive")
        with _replacing(target) as file, parquet.ParquetWriter(file, columns) as out:
            for table in tables(columns):
                out.write_table(table)
    except (arrow.ArrowInvalid, arrow.ArrowTypeError, arrow.ArrowNotImplementedError, OverflowError) as error:
        raise UsageError(f"{target}: these records are no table ({error}); name it .jsonl.zst") from None


def _parquet_records(path: Path, record: type[T]) -> Iterator[tuple[int, T]]:
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    number = 0
    for number, row in parquet_rows(path):
        try:
            yield number, msgspec.convert(_said(row), record)
        except msgspec.ValidationError as error:
            raise UsageError(f"{path}:row {number}: {error}") from None
    if not number:
        raise UsageError(f"{path}: no rows")


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Non-blank lines of a UTF-8 file with their numbers, from 1; rows of Parquet as lines. Raises UsageError when the
    file is missing, is not UTF-8, or has no line."""
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    if path.suffix == ".parquet":
        yield from ((number, msgspec.json.encode(_said(row))) for number, row in parquet_rows(path))
        return
    found = False
    with opened(path) as file:
        for number, line in enumerate(file, 1):
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if not text.strip():
                continue
            try:
                text.decode()
            except UnicodeDecodeError as error:
                problem = f"not UTF-8 (byte {error.start}); convert the file to UTF-8"
                raise UsageError(f"{path}:{number}: {problem}") from None
            found = True
            yield number, text
    if not found:
        raise UsageError(f"{path}: the file is empty; expected one JSON object a line")


def read(path: Path, record: type[T]) -> Iterator[tuple[int, T]]:
    """The records of a file with their line numbers. Raises UsageError naming file, line and key."""
    if path.suffix == ".parquet":
        yield from _parquet_records(path, record)
        return
    decoder = msgspec.json.Decoder(record)
    for number, line in lines(path):
        try:
            yield number, decoder.decode(line)
        except msgspec.DecodeError as error:
            where = _MALFORMED.search(str(error))
            no_number = where and line[int(where[1]) :].startswith((b"NaN", b"Infinity"))
            hint = "; NaN and Infinity are no JSON: write null" if no_number else ""
            raise UsageError(f"{path}:{number}: {str(error).replace(chr(10), ' ')}{hint}") from None


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Raises UsageError for what the system says against writing: a full disk, a missing right."""
    try:
        yield
    except OSError as error:
        problem = f"cannot be written: {error.strerror or error}"
        raise UsageError(f"{path}: {problem}; once it can be, run the same command again") from None


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` once it is whole: a crash leaves the old file or none."""
    partial = path.with_name(path.name + ".partial")
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file, _packing(file, path) as out:
            yield out
        partial.replace(path)


def _packing(file: BinaryIO, path: Path) -> AbstractContextManager[BinaryIO]:
    if path.suffix == ".gz":
        return cast(AbstractContextManager[BinaryIO], gzip.GzipFile("", "wb", fileobj=file, mtime=0))
    if path.suffix == ".zst":
        stream = optional_module("pyarrow", path).CompressedOutputStream(file, "zstd")
        return cast(AbstractContextManager[BinaryIO], stream)
    return nullcontext(file)


def write(path: Path, records: Iterable[Any]) -> int:
    """Write records to `path` in one step (a crash leaves the old file or none); returns how many. Its sidecar goes
    first: what it says is said of the file that was there. Like everything here that writes, it raises UsageError for
    what the system says against it."""
    count = 0
    if path.suffix == ".parquet":
        plain = path.with_name(path.name + ".lines")
        count = write(plain, records)
        sidecar(path).unlink(missing_ok=True)
        _copy(plain, path)
        plain.unlink()
        return count
    with _replacing(path) as file:
        for record in records:
            file.write(msgspec.json.encode(record) + b"\n")
            count += 1
        sidecar(path).unlink(missing_ok=True)
    return count


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file in one step."""
    with _replacing(path) as file:
        file.write(content)


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8 in one step."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write one indented JSON document in one step."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def write_sidecar(path: Path, facts: dict[str, Any]) -> None:
    """Write `path`.run.json: what made the file. Written last, and gone as soon as the file is changed (`write`,
    `rewrite`, `Appender`), so its presence means `path` is whole."""
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    into = {_INTO: _growing[path]} if path in _growing else {}
    write_json(sidecar(path), {"critic": version("critic"), "finished": finished, **facts, **into})


def sidecar(path: Path) -> Path:
    return path.with_name(path.name + ".run.json")


def facts(path: Path) -> dict[str, Any]:
    """What the file's sidecar says; nothing where there is none, or none that can be read."""
    try:
        found = json.loads(sidecar(path).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def plain_of(path: Path) -> Path:
    """Where a file grows line by line: beside its place, without .gz or .zst, or as .jsonl of a .parquet."""
    if path.suffix not in (*PACKED, ".parquet"):
        return path
    return path.with_suffix(".jsonl" if path.suffix == ".parquet" else "")


_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """While nobody else writes a file that grows, or in a folder: its lock is `path`.lock, or .lock in the folder, and
    goes with the end. The system lets go of the lock of a process that is killed, also where others that it started
    live on; what is left of it is an empty file, which locks nothing. A file system without locks is written without.
    Raises UsageError where another process has the lock."""
    name = path / ".lock" if path.is_dir() else path.with_name(path.name + ".lock")
    with _writing(path):
        name.parent.mkdir(parents=True, exist_ok=True)
        lock = _locked(path, name)
    try:
        yield
    finally:
        # Before it is let go: whoever takes it then sees that it is gone (`_locked`).
        name.unlink(missing_ok=True)
        lock.close()


def _locked(path: Path, name: Path) -> BinaryIO:
    while True:
        lock = name.open("ab")
        try:
            # Not flock, whose lock a forked child would keep.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _WITHOUT_LOCKS:
                return lock
            lock.close()
            if error.errno in (errno.EACCES, errno.EAGAIN):
                problem = "another run is writing it; wait for its end, or give another --out"
                raise UsageError(f"{path}: {problem}") from None
            raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), name.stat()):
                return lock
        lock.close()  # of a run that ended in between, and took it away


_INTO = "packed_into"
"""Key of the sidecar of a plain file that is whole and not packed yet: without it, it is a file of its own."""

_growing: dict[Path, str] = {}
"""Files that are growing now, and the names of those that they will be packed into."""


def begun(path: Path, record: type[Any]) -> Path:
    """`plain_of` a file, where what is there is the beginning of that file or nothing. Raises UsageError for a file of
    its own: one that a run has finished by this name, or one of other records, such as what the run reads."""
    plain = plain_of(path)
    if plain == path or not plain.is_file():
        return plain
    problem = None
    if sidecar(plain).is_file():
        other = facts(plain).get(_INTO)
        # One whose packing failed may be packed otherwise.
        if other is None or (other != path.name and path.with_name(other).is_file()):
            problem = "a run has finished it"
    with plain.open("rb") as file:
        first = file.readline()
    try:
        if first.strip() and first.endswith(b"\n"):
            msgspec.json.decode(first.removeprefix(b"\xef\xbb\xbf"), type=record)
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = "it has other records"
    if problem is not None:
        raise UsageError(f"{path}: would grow as {plain.name}, which is there and is a file of its own ({problem}); "
                         "give another --out, or that one another name")  # fmt: skip
    return plain


@contextmanager
def growing(path: Path, record: type[Any]) -> Iterator[Path]:
    """`plain_of` a file of these records, which is packed once it is whole; no other process writes it meanwhile. A run
    that ends early leaves the plain one, and goes on with it; one that is packed is unpacked for that. Raises
    UsageError as `begun` and `alone` do."""
    with alone(plain_of(path)):
        plain = begun(path, record)
        if plain == path:
            yield path
            return
        if path.is_file() and not plain.is_file():
            said = facts(path)
            _copy(path, plain)
            if said:
                write_json(sidecar(plain), {**said, _INTO: path.name})
        _growing[plain] = path.name
        try:
            yield plain
        finally:
            del _growing[plain]
        sidecar(path).unlink(missing_ok=True)
        _copy(plain, path)
        # In this order nothing is lost wherever it stops: the next run finds the plain file, and does this again.
        if said := facts(plain):
            write_json(sidecar(path), {name: value for name, value in said.items() if name != _INTO})
        sidecar(plain).unlink(missing_ok=True)
        plain.unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    if target.suffix == ".parquet":
        _to_parquet(source, target)
    elif source.suffix == ".parquet":
        write(target, (msgspec.Raw(line) for _, line in lines(source)))
    else:
        with opened(source) as content, _replacing(target) as file:
            shutil.copyfileobj(content, file)


def is_empty(path: Path) -> bool:
    """Whether a file that is there has no line."""
    if path.suffix == ".parquet":
        return not any(True for _ in parquet_rows(path))
    with opened(path) as file:
        return not file.read(1)


def repair(path: Path) -> int:
    """Cut a torn last line off a file that a killed run was appending to; returns the bytes cut. One that lacks but its
    end gets that. Raises UsageError for a file that is not of plain lines, and leaves it as it is."""
    if path.suffix in (*PACKED, ".parquet"):
        raise UsageError(f"{path}: written line by line, to go on where it stops: name it .jsonl")
    size = path.stat().st_size if path.is_file() else 0
    if not size:
        return 0
    with path.open("rb+") as file:
        with mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            keep, first = content.rfind(b"\n") + 1, content[: content.find(b"\n") + 1]
            last = content[keep:]
        if not last:
            return 0
        if not (_is_whole(first) if first else last[:1] in (b"{", b"[")):
            raise UsageError(f"{path}: not JSON Lines; give another name for what is written line by line")
        if _is_whole(last):
            file.seek(size)
            file.write(b"\n")
            return 0
        file.truncate(keep)
    return size - keep


def _is_whole(line: bytes) -> bool:
    """Whether it is a record: a number could be the beginning of another."""
    with suppress(msgspec.DecodeError):
        return isinstance(msgspec.json.decode(line), dict | list)
    return False


class Appender:
    """Appends records to a file, each line handed to the system whole as soon as it is known, and none behind a line
    that could not be written whole. The file's sidecar is taken away at once. Raises UsageError for what the system
    says against writing."""

    def __init__(self, path: Path) -> None:
        if path.suffix in (*PACKED, ".parquet"):
            raise UsageError(
                f"{path}: written line by line, to go on where it stops: name it .jsonl, pack it when whole"
            )
        self._path, self._broken = path, False
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            sidecar(path).unlink(missing_ok=True)
            self.cut = repair(path)
            self._file = path.open("ab", buffering=0)

    def append(self, record: Any) -> None:
        if self._broken:  # the run is ending; what else is ready must not follow half a line
            return
        self._broken = True
        with _writing(self._path):
            self._write(msgspec.json.encode(record) + b"\n")
        self._broken = False

    def _write(self, line: bytes) -> None:
        while line:
            line = line[self._file.write(line) :]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with _writing(self._path), self._file:
                os.fsync(self._file.fileno())
        except UsageError:
            if kind is None:  # else the first error says more
                raise


def rewrite(path: Path, record: type[T], keep: Callable[[T], bool]) -> int:
    """Drop the records for which `keep` is false, in one step; returns how many went."""
    dropped = 0

    def kept() -> Iterator[T]:
        nonlocal dropped
        for _, value in read(path, record):
            if keep(value):
                yield value
            else:
                dropped += 1

    write(path, kept())
    return dropped
