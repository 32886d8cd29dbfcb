"""JSON-lines files, packed (.gz) or not: read with file:line errors, append so that a killed run can resume, and the
sidecar that says what made a file."""

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
"""Where the decoder stopped."""


def suffix(path: Path) -> str:
    """What a file holds by its name: what stands before .gz where it is packed."""
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix


@contextmanager
def open_plain(path: Path) -> Iterator[BinaryIO]:
    """A file to read, unpacked. Raises UsageError where what is packed is torn."""
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
    """A record as a line. Raises UsageError for one that is nested too deep."""
    try:
        return encode(record) + b"\n"
    except RecursionError:
        raise UsageError(f"{path}: a record is nested too deep") from None


def build_decoder(record: type[T]) -> Callable[[bytes], T]:
    """Return what decodes a line of records, of today's version and (by the record's `upgrade`) of earlier ones. It
    raises ValueError for a line that is no record, also by the record's own `check`."""
    today, upgrade, check = (
        msgspec.json.Decoder(record),
        getattr(record, "upgrade", None),
        getattr(record, "check", None),
    )

    def decoded(line: bytes) -> T:
        try:
            value = decode(line, today)
        except msgspec.ValidationError:
            if (upgraded := _upgrade(upgrade, line)) is None:
                raise
            value = cast(T, upgraded)
        if check is not None:
            check(value)
        return value

    return decoded


def _upgrade(upgrade: Callable[[Any], Any] | None, line: bytes) -> Any:
    """Return the record of an earlier version in today's form, or None if it is none."""
    if upgrade is None:
        return None
    try:
        return upgrade(loads(line))
    except (AttributeError, LookupError, TypeError):  # a part is of another kind than any version wrote
        return None


def _iterate_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the non-blank lines of a file with their numbers, from 1. Raise UsageError if the file is missing or has no
    line."""
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
    try:
        line.decode()
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 (byte {error.start}); convert the file to UTF-8"
        raise UsageError(f"{path}:{number}: {problem}") from None


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the non-blank lines of a UTF-8 file with their numbers, from 1. Raise UsageError if the file is missing, is
    not UTF-8, or has no line."""
    for number, line in _iterate_lines(path):
        _check_utf8(path, number, line)
        yield number, line


def read(path: Path, record: type[T]) -> Iterator[tuple[int, T]]:
    """Yield the records of a file with their line numbers. Raise UsageError naming file, line and key for a line that
    is no such record, and for a key that an object has twice, of which JSON readers keep the last."""
    decoded = build_decoder(record)
    for number, line in _iterate_lines(path):
        try:
            value = decoded(line)
            _check_keys(line, value)
        except ValueError as error:
            _check_utf8(path, number, line)
            where = _MALFORMED.search(str(error))
            no_number = where and line[int(where[1]) :].startswith((b"NaN", b"Infinity"))
            hint = "; NaN and Infinity are no JSON: write null" if no_number else ""
            raise UsageError(f"{path}:{number}: {shorten_line(str(error))}{hint}") from None
        yield number, value


def _check_keys(line: bytes, value: Any) -> None:
    """Raise ValueError if an object of a line, decoded as `value`, has a key twice.

    A key that comes twice leaves the value with fewer colons than the line. Counting them takes a tenth of the time of
    a reader that sees every key, which is asked only if the counts differ (a colon may be written as an escape).
    """
    colons = line.count(b":")
    if type(value) is dict and len(value) == colons:
        return
    try:
        encoded = _encode(value)
        if type(value) is not dict and encoded != line.rstrip():  # not as we write records
            encoded = _encode(msgspec.json.decode(line))
        if encoded.count(b":") == colons:
            return
    except (ValueError, RecursionError):  # halves of characters, which have to be replaced first
        pass
    loads(line, unique=True)


_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def resolve_links(path: Path) -> Path:
    """What symbolic links lead to, also where it is not there yet. Raises UsageError for a device or a pipe, beside
    which nothing can be written."""
    real = Path(os.path.realpath(path))
    if real.exists() and not (real.is_file() or real.is_dir()):
        raise UsageError(f"{path}: a device or a pipe; give the name of a file")
    return real


def _open_locked(name: Path, path: Path) -> BinaryIO:
    """The file `name`, made where it is not there, and locked until this process closes it. The system releases the
    lock of a process that is killed, also where others that it started live on. A file system without locks is written
    without. Raises UsageError where another process has the lock."""
    while True:
        file = name.open("ab")
        try:
            # Not flock, whose lock a forked child would keep.
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
        file.close()  # of a run that ended in between, and took it away


def identify(path: Path) -> tuple[int, int] | Path:
    """Return what all names of one file have in common, hard and symbolic links alike: of a path where nothing is yet,
    what its links lead to."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return path.resolve()
    return there.st_dev, there.st_ino


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """While nobody else writes a file that grows, or in a folder: its lock is `path`.lock, or .lock in the folder, and
    goes with the end; what is left of it by a run that is killed is an empty file, which locks nothing. Names that
    links lead from have the same lock. Raises UsageError where another process has it, and for a file with another
    name (a hard link), which has a lock of its own."""
    real = resolve_links(path)
    if real.is_file() and (names := real.stat().st_nlink) > 1:
        problem = (
            f"has {names} names (hard links), by each of which a run could write it; copy it, or give another --out"
        )
        raise UsageError(f"{path}: {problem}")
    name = real / ".lock" if real.is_dir() else real.with_name(real.name + ".lock")
    with report_write_errors(path):
        name.parent.mkdir(parents=True, exist_ok=True)
        held = _open_locked(name, path)
    try:
        yield
    finally:
        # Before it is let go: whoever takes it then sees that it is gone (`_open_locked`).
        name.unlink(missing_ok=True)
        held.close()


def lock_folder(folder: Path) -> AbstractContextManager[None]:
    """`lock_file` in a folder, which is made: its lock is inside from the first run on."""
    with report_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return lock_file(folder)


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` once it is whole, under this one of its names: a crash leaves the old file
    or none, any other failure gives back the room of what was written. The sidecar of the old file goes first. Raises
    UsageError where the system does not let it be written, and where another process is writing it."""
    real = resolve_links(path)
    partial = real.with_name(real.name + ".partial")
    with report_write_errors(path):
        real.parent.mkdir(parents=True, exist_ok=True)
        with _open_locked(partial, path) as file:
            try:
                file.truncate(0)
                file.seek(0)
                yield file
                if not file.closed:  # a packer closes what it writes to
                    file.flush()
                sidecar(path).unlink(missing_ok=True)
                partial.replace(real)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise


@contextmanager
def remove_on_failure(folder: Path) -> Iterator[None]:
    """While a folder is made that is renamed once it is whole: an error gives back the room of what was written."""
    try:
        yield
    except Exception:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _pack(file: BinaryIO, path: Path) -> AbstractContextManager[BinaryIO]:
    if path.suffix == ".gz":
        return cast(AbstractContextManager[BinaryIO], gzip.GzipFile("", "wb", fileobj=file, mtime=0))
    return nullcontext(file)


def write(path: Path, records: Iterable[Any]) -> int:
    """Write records to `path` in one step (a crash leaves the old file or none); returns how many. Like everything here
    that writes, it raises UsageError for what the system says against it."""
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
"""Keys of what is published whose values say where something lies on this machine."""


def relative_place(path: Path | str, beside: Path) -> str:
    """Return a path as it is published: an absolute one relative to the folder `beside` or, if the two have nothing in
    common, to the folder where this runs; else only its name. A relative path, and what is no path, stays as it is.

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
    """Return facts with every one of the PLACES changed."""
    if isinstance(value, list):
        return [_replace_places(item, change) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: change(item) if name in PLACES and isinstance(item, str) else _replace_places(item, change)
        for name, item in value.items()
    }


def hide_places(facts: Any, beside: Path) -> Any:
    """Return facts as they are published in the folder `beside`: with no path of this machine."""
    return _replace_places(facts, lambda item: relative_place(item, beside) if os.path.exists(item) else item)  # noqa: PTH110


def restore_places(path: Path) -> dict[str, Any]:
    """Return what a file's sidecar says, with the paths of this machine."""
    folder = sidecar(path).parent

    def found(item: str) -> str:
        return str(folder / item) if (folder / item).exists() else item

    return cast(dict[str, Any], _replace_places(facts(path), found))


def write_sidecar(path: Path, facts: dict[str, Any]) -> None:
    """Write `path`.run.json: what made the file. Written last, and gone as soon as the file is changed (`write`,
    `rewrite`, `Appender`), so its presence means `path` is whole. It is published: absolute paths become relative to
    its folder (`relative_place`)."""
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    beside = sidecar(path)
    content = {"critic": version("critic"), "finished": finished, **facts}
    write_json(beside, hide_places(content, beside.parent))


def sidecar(path: Path) -> Path:
    """Beside the file that links lead to, whatever name the file goes by."""
    real = resolve_links(path)
    return real.with_name(real.name + ".run.json")


def facts(path: Path) -> dict[str, Any]:
    """What the file's sidecar says; nothing where there is none, or none that can be read."""
    try:
        content = loads(sidecar(path).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_empty(path: Path) -> bool:
    """Whether a file that is there has no line."""
    with open_plain(path) as file:
        return not file.read(1)


def repair(path: Path) -> None:
    """Cut a torn last line off a file that a killed run was appending to; one that lacks but its end gets that. Raises
    UsageError for a file that is not of plain lines, and leaves it as it is."""
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
        if not (_is_whole(first) if first else last[:1] in (b"{", b"[")):
            raise UsageError(f"{path}: not JSON Lines; give another name for what is written line by line")
        if _is_whole(last):
            file.seek(size)
            file.write(b"\n")
        else:
            file.truncate(keep)


def _is_whole(line: bytes) -> bool:
    """Whether it is a record: a number could be the beginning of another."""
    with suppress(msgspec.DecodeError, RecursionError):
        return isinstance(msgspec.json.decode(line), dict | list)
    return False


class Appender:
    """Appends records to a file, each line handed to the system whole as soon as it is known, and none behind a line
    that could not be written whole. The file's sidecar is taken away at once. Raises UsageError for what the system
    says against writing. One process at a time may write a file: `lock_file`."""

    def __init__(self, path: Path) -> None:
        self._path, self._broken = path, False
        with report_write_errors(path):
            repair(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            sidecar(path).unlink(missing_ok=True)
            self._file = path.open("ab", buffering=0)

    def append(self, record: Any) -> None:
        if self._broken:  # the run is ending; what else is ready must not follow half a line
            return
        self._broken = True
        with report_write_errors(self._path):
            self._write(_encode_line(self._path, record))
        self._broken = False

    def _write(self, line: bytes) -> None:
        while line:
            line = line[self._file.write(line) :]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with report_write_errors(self._path), self._file:
                os.fsync(self._file.fileno())
        except UsageError:
            if kind is None:  # else the first error says more
                raise


def rewrite(path: Path, record: type[T], keep: Callable[[T], bool]) -> None:
    """Drop the records for which `keep` is false, in one step."""
    write(path, (value for _, value in read(path, record) if keep(value)))
