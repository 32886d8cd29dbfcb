"""JSON Lines files, packed (.gz) or plain, and the sidecar that records how a file was made.

Errors name file and line. Files are appended so that a killed run can resume.
"""

import errno
import fcntl
import gzip
import hashlib
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar, cast

import msgspec

from critic.errors import UsageError, decode, encode, loads, replace_surrogates, report_write_errors, shorten_line

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode

_MALFORMED = re.compile(r"malformed.*\(byte (\d+)\)")
"""Position in the decoder's error message."""


def suffix(path: Path) -> str:
    """Return the suffix that names a file's format: the one before .gz if it is packed.

    >>> suffix(Path("scores.csv.gz"))
    '.csv'
    """
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix


@contextmanager
def open_plain(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading, unpacked. Raises UsageError if a packed file is truncated."""
    if path.suffix != ".gz":
        with path.open("rb") as file:
            yield file
        return
    try:
        with gzip.open(path) as plain:
            yield cast(BinaryIO, plain)
    except (EOFError, OSError, zlib.error) as error:
        raise UsageError(f"{path}: not whole, or no .gz: {error}") from None


def _encode_line(path: Path, record: Any) -> bytes:
    """Return a record as a line. Raises UsageError if it is nested too deep."""
    try:
        return encode(record) + b"\n"
    except RecursionError:
        raise UsageError(f"{path}: a record is nested too deep") from None


def build_decoder(record: type[T]) -> Callable[[bytes], T]:
    """Return a function that decodes one line of records, of this version or (by the record's `upgrade`) an earlier
    one.

    It raises ValueError for a line that is no such record, or that the record's own `check` refuses.
    """
    today = msgspec.json.Decoder(record)
    upgrade: Callable[[Any], T | None] = getattr(record, "upgrade", lambda _: None)
    check: Callable[[T], None] = getattr(record, "check", lambda _: None)

    def decode_line(line: bytes) -> T:
        try:
            value = decode(line, today)
        except msgspec.ValidationError:
            upgraded = None
            # A part may have another type than any version wrote.
            with suppress(AttributeError, LookupError, TypeError):
                upgraded = upgrade(loads(line))
            # The error about today's form is reported: it names the wrong key.
            if upgraded is None:
                raise
            value = upgraded
        check(value)
        return value

    return decode_line


def _iterate_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the non-blank lines of a file with their numbers, from 1. Raises UsageError if it is missing or has
    none."""
    if not path.is_file():
        raise UsageError(f"{path}: a folder; expected a file" if path.is_dir() else f"{path}: no such file")
    has_line = False
    with open_plain(path) as file:
        for number, line in enumerate(file, 1):
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if text.isspace() or not text:
                continue
            has_line = True
            yield number, text
    if not has_line:
        raise UsageError(f"{path}: the file is empty; expected one JSON object a line")


def _check_utf8(path: Path, number: int, line: bytes) -> None:
    """Raise UsageError if a line is not UTF-8."""
    try:
        line.decode()
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 (byte {error.start}); convert the file to UTF-8"
        raise UsageError(f"{path}:{number}: {problem}") from None


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the non-blank lines of a UTF-8 file with their numbers, from 1. Raises UsageError if it is missing, not
    UTF-8 or has none."""
    for number, line in _iterate_lines(path):
        _check_utf8(path, number, line)
        yield number, line


def read(path: Path, record: type[T]) -> Iterator[tuple[int, T]]:
    """Yield the records of a file with their line numbers.

    Raises UsageError naming file, line and key for a line that is no such record, and for a repeated key, of which JSON
    readers keep only the last.
    """
    decoded = build_decoder(record)
    for number, line in _iterate_lines(path):
        try:
            value = decoded(line)
            _check_keys(line, value)
        except ValueError as error:
            _check_utf8(path, number, line)
            # Python's json and pandas write NaN, which no JSON reader has to accept.
            where = _MALFORMED.search(str(error))
            no_number = where and line[int(where[1]) :].startswith((b"NaN", b"Infinity"))
            hint = "; NaN and Infinity are no JSON: write null" if no_number else ""
            raise UsageError(f"{path}:{number}: {shorten_line(str(error))}{hint}") from None
        yield number, value


def _check_keys(line: bytes, value: Any) -> None:
    """Raise ValueError if an object of a line, decoded as `value`, has a repeated key.

    A repeated key leaves the value with fewer colons than the line. Counting them takes a tenth of the time of a parser
    that sees every key. That parser runs only if the counts differ (a colon may be written as an escape).
    """
    colons = line.count(b":")
    if type(value) is dict and len(value) == colons:
        return
    try:
        encoded = _encode(value)
        # A line with other spaces or keys than we write is counted in its own form.
        if type(value) is not dict and encoded != line.rstrip():
            encoded = _encode(msgspec.json.decode(line))
        if encoded.count(b":") == colons:
            return
    # Lone surrogates, which `loads` replaces first.
    except (ValueError, RecursionError):
        pass
    loads(line, unique=True)


_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
"""Errors of a file system that has no locks."""


def resolve_links(path: Path) -> Path:
    """Return the target of symbolic links, even if it does not exist yet. Raises UsageError for a device or a pipe."""
    real = Path(os.path.realpath(path))
    if real.exists() and not (real.is_file() or real.is_dir()):
        raise UsageError(f"{path}: a device or a pipe; give the name of a file")
    return real


def _open_locked(name: Path, path: Path) -> BinaryIO:
    """Open the file `name`, created if missing, locked until this process closes it.

    The system releases the lock of a killed process, even if its children live on. On a file system without locks none
    is taken. Raises UsageError naming `path` if another process holds the lock.
    """
    while True:
        file = name.open("ab")
        try:
            # Not flock: a forked child would keep its lock.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                file.close()
                problem = "another run is writing it; wait for its end, or give another --out"
                raise UsageError(f"{path}: {problem}") from None
            if error.errno not in _WITHOUT_LOCKS:
                raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), name.stat()):
                return file
        # The run that held it ended in between and deleted it: lock the new file.
        file.close()


def identify(path: Path) -> tuple[int, int] | Path:
    """Return what all names of one file have in common, hard and symbolic links alike; for a missing file the target of
    its links."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return path.resolve()
    return status.st_dev, status.st_ino


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Keep other processes from writing a growing file, or in a folder, while the body runs.

    The lock is `path`.lock, or .lock in a folder, and is deleted at the end. A killed run leaves an empty file that
    locks nothing. Names that symbolic links lead from share the lock. Raises UsageError if another process holds it,
    and for a file with a second name (a hard link), which would have a lock of its own.
    """
    real = resolve_links(path)
    if real.is_file() and (names := real.stat().st_nlink) > 1:
        problem = (
            f"has {names} names (hard links), by each of which a run could write it; copy it, or give another --out"
        )
        raise UsageError(f"{path}: {problem}")
    name = real / ".lock" if real.is_dir() else real.with_name(real.name + ".lock")
    with report_write_errors(path):
        name.parent.mkdir(parents=True, exist_ok=True)
        lock = _open_locked(name, path)
    try:
        yield
    finally:
        # Deleted before it is released: the next process then sees that it is gone (`_open_locked`).
        name.unlink(missing_ok=True)
        lock.close()


def lock_folder(folder: Path) -> AbstractContextManager[None]:
    """Create a folder and lock it (`lock_file`): the lock is inside from the first run on."""
    with report_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return lock_file(folder)


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` once the body is done, under this one of its names.

    A crash leaves the old file or none. Any other failure deletes what was written. The sidecar of the old file is
    deleted first. Raises UsageError if it cannot be written, or if another process is writing it.
    """
    real = resolve_links(path)
    partial = real.with_name(real.name + ".partial")
    with report_write_errors(path):
        real.parent.mkdir(parents=True, exist_ok=True)
        with _open_locked(partial, path) as file:
            try:
                file.truncate(0)
                file.seek(0)
                yield file
                file.flush()
                sidecar(path).unlink(missing_ok=True)
                partial.replace(real)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise


@contextmanager
def remove_on_failure(folder: Path) -> Iterator[None]:
    """Delete a folder under construction if the body raises."""
    try:
        yield
    except Exception:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _pack(file: BinaryIO, path: Path) -> AbstractContextManager[BinaryIO]:
    """Return a context that compresses what is written to `file` if `path` ends in .gz."""
    if path.suffix == ".gz":
        # Without a time stamp, so that the same records give the same bytes.
        return cast(AbstractContextManager[BinaryIO], gzip.GzipFile("", "wb", fileobj=file, mtime=0))
    return nullcontext(file)


def write(path: Path, records: Iterable[Any]) -> int:
    """Write records to `path` in one step (a crash leaves the old file or none). Return how many.

    Like every writer here it raises UsageError if the system refuses to write.
    """
    count = 0
    with replace_file(path) as unpacked, _pack(unpacked, path) as file:
        for record in records:
            file.write(_encode_line(path, record))
            count += 1
    return count


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file in one step."""
    with replace_file(path) as plain, _pack(plain, path) as file:
        file.write(content)


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8 in one step."""
    write_bytes(path, replace_surrogates(text).encode())


def write_json(path: Path, value: Any) -> None:
    """Write one indented JSON document in one step."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n")


PLACES = ("file", "folder", "data_root", "server")
"""Keys of published facts whose values are places on this machine."""


def relative_place(path: Path | str, beside: Path) -> str:
    """Return a path as it is published.

    An absolute path becomes relative to the folder `beside` or, if they have nothing in common, to the working
    directory; outside both only its name is kept. A relative path, and text that is no path, stay as they are.

    >>> relative_place("/home/me/study/images", Path("/home/me/study/out"))
    '../images'
    >>> relative_place("/none/images", Path("/home/me"))
    'images'
    """
    text, folder = str(path), os.path.abspath(beside)  # noqa: PTH100 - links would show where they lead
    if not os.path.isabs(text):  # noqa: PTH117 - an URL is no path
        return text
    if os.path.commonpath([text, folder]) != os.sep:
        return os.path.relpath(text, folder)
    return os.path.relpath(text) if Path(text).is_relative_to(Path.cwd()) else Path(text).name


def _replace_places(value: Any, change: Callable[[str], str]) -> Any:
    """Return facts with `change` applied to every value of the PLACES."""
    if isinstance(value, list):
        return [_replace_places(item, change) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: change(item) if name in PLACES and isinstance(item, str) else _replace_places(item, change)
        for name, item in value.items()
    }


def hide_places(facts: Any, beside: Path) -> Any:
    """Return facts as they are published in the folder `beside`: without paths of this machine."""
    return _replace_places(facts, lambda item: relative_place(item, beside) if os.path.exists(item) else item)  # noqa: PTH110


def restore_places(path: Path) -> dict[str, Any]:
    """Return the facts of a file's sidecar with the paths of this machine."""
    folder = sidecar(path).parent

    def restore(item: str) -> str:
        return str(folder / item) if (folder / item).exists() else item

    return cast(dict[str, Any], _replace_places(facts(path), restore))


def write_sidecar(path: Path, facts: dict[str, Any]) -> None:
    """Write `path`.run.json, the facts about how the file was made.

    It is written last, and deleted as soon as the file changes (`write`, `rewrite`, `Appender`): its presence means
    that `path` is complete. It is published, so absolute paths become relative to its folder (`relative_place`).
    """
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    beside = sidecar(path)
    content = {"critic": version("critic"), "finished": finished, **facts}
    write_json(beside, hide_places(content, beside.parent))


def sidecar(path: Path) -> Path:
    """Return the path of the sidecar, beside the target of links, whatever name the file goes by."""
    real = resolve_links(path)
    return real.with_name(real.name + ".run.json")


def facts(path: Path) -> dict[str, Any]:
    """Return the facts in the file's sidecar; empty if there is none, or none that can be read."""
    try:
        content = loads(sidecar(path).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_empty(path: Path) -> bool:
    """Return whether an existing file has no line."""
    with open_plain(path) as file:
        return not file.read(1)


def repair(path: Path) -> None:
    """Cut a torn last line off a file that a killed run was appending to; add a missing line end.

    Raises UsageError for a file that is not plain JSON Lines, and leaves it unchanged.
    """
    if path.suffix == ".gz":
        raise UsageError(f"{path}: written line by line, to go on where it stops: name it .jsonl")
    size = path.stat().st_size if path.is_file() else 0
    if not size:
        return
    with path.open("rb+") as file:
        with mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            keep, first = content.rfind(b"\n") + 1, content[: content.find(b"\n") + 1]
            last = content[keep:]
        if not last:
            return
        # Nothing is cut off a file of another kind that was named by mistake.
        if not (_is_record(first) if first else last[:1] in (b"{", b"[")):
            raise UsageError(f"{path}: not JSON Lines; give another name for what is written line by line")
        if _is_record(last):
            file.seek(size)
            file.write(b"\n")
        else:
            file.truncate(keep)


def _is_record(line: bytes) -> bool:
    """Return whether a line is a complete record. A number is none: it could be the beginning of a longer one."""
    with suppress(msgspec.DecodeError, RecursionError):
        return isinstance(msgspec.json.decode(line), dict | list)
    return False


class Appender:
    """A file to which records are appended, each as one complete line as soon as it is known.

    Nothing follows a line that could not be written completely. The file's sidecar is deleted at once. Raises
    UsageError if the system refuses to write. One process at a time may write a file (`lock_file`).
    """

    def __init__(self, path: Path) -> None:
        self._path, self._broken = path, False
        with report_write_errors(path):
            repair(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            sidecar(path).unlink(missing_ok=True)
            self._file = path.open("ab", buffering=0)

    def append(self, record: Any) -> None:
        """Append one record."""
        # The run is ending: what else is ready must not follow half a line.
        if self._broken:
            return
        self._broken = True
        with report_write_errors(self._path):
            self._write(_encode_line(self._path, record))
        self._broken = False

    def _write(self, line: bytes) -> None:
        """Write all bytes of a line; one call of the system may take only some."""
        while line:
            line = line[self._file.write(line) :]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with report_write_errors(self._path), self._file:
                os.fsync(self._file.fileno())
        except UsageError:
            # After another error, that one says more.
            if kind is None:
                raise


def rewrite(path: Path, record: type[T], keep: Callable[[T], bool]) -> None:
    """Drop the records for which `keep` is false, in one step."""
    write(path, (value for _, value in read(path, record) if keep(value)))
