"""Read and write JSON Lines files, plain or compressed (.gz), and the sidecar that records how a file was made.

The sidecar of PATH is the file PATH.run.json beside it. Errors name file and line. Runs append their output line by
line (`Appender`), so that a killed run can resume.
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
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar, cast

import msgspec

from critic.errors import UsageError, decode, encode, loads, replace_surrogates, report_write_errors, shorten_line

T = TypeVar("T")

_MALFORMED = re.compile(r"malformed.*\(byte (\d+)\)")
"""Matches the byte position in msgspec's message about malformed JSON."""


def suffix(path: Path) -> str:
    """Return the suffix of a file's format, ignoring a final .gz.

    >>> suffix(Path("scores.csv.gz"))
    '.csv'
    """
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix


@contextmanager
def open_plain(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading bytes, decompressing .gz. Raises UsageError if a .gz file is truncated or invalid."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield cast(BinaryIO, file)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(f"{path}: not whole, or no .gz: {error}") from None


def _encode_line(path: Path, record: Any) -> bytes:
    """Encode a record as one line of JSON. Raises UsageError, naming `path`, if the record is nested too deeply."""
    try:
        return encode(record) + b"\n"
    except RecursionError:
        raise UsageError(f"{path}: a record is nested too deep") from None


def build_decoder(record: type[T]) -> Callable[[bytes], T]:
    """Return a function that decodes a line of JSON to an instance of the type `record`.

    If the type has a class method `upgrade`, it converts lines that an earlier version wrote. If it has a method
    `check`, it is called on the decoded record. The function raises ValueError if the line does not fit the type, or if
    `check` rejects the record.
    """
    today = msgspec.json.Decoder(record)
    upgrade: Callable[[Any], T | None] = getattr(record, "upgrade", lambda _: None)
    check: Callable[[T], None] = getattr(record, "check", lambda _: None)

    def decode_line(line: bytes) -> T:
        try:
            value = decode(line, today)
        except msgspec.ValidationError:
            upgraded = None
            # The line may have been written by no version at all.
            with suppress(AttributeError, LookupError, TypeError):
                upgraded = upgrade(loads(line))
            # The error about the current layout is reported, since it names the wrong key.
            if upgraded is None:
                raise
            value = upgraded
        check(value)
        return value

    return decode_line


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the non-blank lines of a UTF-8 file as pairs (line number from 1, bytes).

    Raises UsageError if the file is missing, is a folder, is not UTF-8, or has only blank lines.
    """
    if not path.is_file():
        raise UsageError(f"{path}: a folder; expected a file" if path.is_dir() else f"{path}: no such file")
    has_line = False
    with open_plain(path) as file:
        for number, line in enumerate(file, 1):
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if text.isspace() or not text:
                continue
            try:
                text.decode()
            except UnicodeDecodeError as error:
                problem = f"not UTF-8 (byte {error.start}); convert the file to UTF-8"
                raise UsageError(f"{path}:{number}: {problem}") from None
            has_line = True
            yield number, text
    if not has_line:
        raise UsageError(f"{path}: the file is empty; expected one JSON object a line")


def read(path: Path, record: type[T]) -> Iterator[tuple[int, T]]:
    """Yield the records of a file as pairs (line number from 1, instance of the type `record`).

    Raises UsageError, naming file, line and key, if a line does not fit the type or repeats a key.
    """
    decoded = build_decoder(record)
    for number, line in read_lines(path):
        try:
            value = decoded(line)
            # msgspec keeps the last of two equal keys silently.
            loads(line, unique=True)
        except ValueError as error:
            # Python's json and pandas write NaN, which no JSON reader has to accept.
            where = _MALFORMED.search(str(error))
            no_number = where and line[int(where[1]) :].startswith((b"NaN", b"Infinity"))
            hint = "; NaN and Infinity are no JSON: write null" if no_number else ""
            raise UsageError(f"{path}:{number}: {shorten_line(str(error))}{hint}") from None
        yield number, value


_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
"""Error numbers of file systems that do not support locks."""


def resolve_links(path: Path) -> Path:
    """Return the file that a path leads to once symbolic links are resolved, even if it does not exist yet.

    Raises UsageError if it is a device or a pipe.
    """
    real = Path(os.path.realpath(path))
    if real.exists() and not (real.is_file() or real.is_dir()):
        raise UsageError(f"{path}: a device or a pipe; give the name of a file")
    return real


def _open_locked(name: Path, path: Path) -> BinaryIO:
    """Open the file `name` for appending, creating it if missing, and lock it until it is closed.

    The operating system releases the lock if the process is killed. On a file system without locks, the file stays
    unlocked. Raises UsageError if another process holds the lock; the message names `path` instead of `name`.
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
        # The run that held the lock has ended and deleted the file: lock the new file.
        file.close()


def identify(path: Path) -> tuple[int, int] | Path:
    """Return a value that is the same for all names (hard or symbolic links) of a file.

    It is the device and inode number, or the resolved path if the file does not exist.
    """
    with suppress(FileNotFoundError):
        status = path.stat()
        return status.st_dev, status.st_ino
    return path.resolve()


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Lock the file or folder `path` while the body runs, so that no other run writes it.

    The lock file is PATH.lock, or .lock inside a folder, and is deleted at the end. If a run is killed, an empty lock
    file remains, which locks nothing. All symbolic links to the file share the lock. Raises UsageError if another
    process holds the lock, or if the file has several hard links, because each would have its own lock.
    """
    real = resolve_links(path)
    if real.is_file() and (names := real.stat().st_nlink) > 1:
        problem = f"{names} names (hard links), by each of which a run could write it"
        raise UsageError(f"{path}: has {problem}; copy it, or give another --out")
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
    """Create a folder if it is missing, and return a context manager that locks it (`lock_file`)."""
    with report_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return lock_file(folder)


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a temporary file that replaces `path` once the body has finished.

    What is written to it is compressed if `path` ends in .gz. If the body fails, the temporary file is deleted, and the
    old file stays, as it does in a crash. The old file's sidecar is deleted just before the replacement. Raises
    UsageError if the file cannot be written, or if another process is writing it.
    """
    real = resolve_links(path)
    partial = real.with_name(real.name + ".partial")
    with report_write_errors(path):
        real.parent.mkdir(parents=True, exist_ok=True)
        with _open_locked(partial, path) as file:
            try:
                file.truncate(0)
                file.seek(0)
                # Without a time stamp, so that the same records give the same bytes.
                packed = gzip.GzipFile("", "wb", fileobj=file, mtime=0) if path.suffix == ".gz" else nullcontext(file)
                with packed as unpacked:
                    yield cast(BinaryIO, unpacked)
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


def write(path: Path, records: Iterable[Any]) -> int:
    """Write records to `path`, one per line, and return their number.

    The old file is replaced only once the new one is complete. Raises UsageError if the file cannot be written, as all
    writing functions of this module do.
    """
    count = 0
    with replace_file(path) as file:
        for record in records:
            file.write(_encode_line(path, record))
            count += 1
    return count


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file, replacing the old one only once the new one is complete."""
    with replace_file(path) as file:
        file.write(content)


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8, replacing the old file only once the new one is complete."""
    write_bytes(path, replace_surrogates(text).encode())


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, replacing the old file only once the new one is complete. It may hold Structs."""
    text = json.dumps(value, default=msgspec.to_builtins, ensure_ascii=False, indent=2, allow_nan=False)
    write_text(path, f"{text}\n")


PLACES = ("file", "folder", "data_root", "server")
"""Keys in sidecars whose values may be paths on this machine, or addresses."""


def relative_place(path: Path | str, beside: Path) -> str:
    """Return a path in a form that is safe to publish: relative, so that it does not show where it is on this machine.

    An absolute path becomes relative to the folder `beside`, if the two have a common folder below the root. Otherwise
    it becomes relative to the working directory, or only the file's name if the path is outside the working directory.
    Relative paths and texts that are not paths are returned unchanged.

    >>> beside = Path("/home/me/study")
    >>> relative_place("/home/me/study/images", beside), relative_place("/home/me/images", beside)
    ('images', '../images')
    >>> relative_place("/data/images", beside), relative_place("images", beside), relative_place("http://h", beside)
    ('images', 'images', 'http://h')
    """
    text, folder = str(path), os.path.abspath(beside)  # noqa: PTH100 - links would show where they lead
    if not os.path.isabs(text):  # noqa: PTH117 - an URL is no path
        return text
    if os.path.commonpath([text, folder]) != os.sep:
        return os.path.relpath(text, folder)
    return os.path.relpath(text) if Path(text).is_relative_to(Path.cwd()) else Path(text).name


def _replace_places(facts: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return sidecar facts with `change` applied to every string under one of the keys PLACES, at any depth."""

    def replace(table: dict[str, Any]) -> dict[str, Any]:
        return table | {name: change(table[name]) for name in PLACES if isinstance(table.get(name), str)}

    changed: dict[str, Any] = json.loads(json.dumps(facts, default=msgspec.to_builtins), object_hook=replace)
    return changed


def hide_places(facts: Any, beside: Path) -> Any:
    """Return sidecar facts as they are published in the folder `beside`: with relative paths (`relative_place`)."""
    return _replace_places(facts, lambda item: relative_place(item, beside) if os.path.exists(item) else item)  # noqa: PTH110


def restore_places(path: Path) -> dict[str, Any]:
    """Return the facts in the sidecar of `path`, with relative paths turned back into paths on this machine."""
    folder = sidecar(path).parent
    return _replace_places(facts(path), lambda item: str(folder / item) if (folder / item).exists() else item)


def list_places(path: Path) -> list[Path]:
    """Return `path` and the paths that its sidecar names, such as the input file and the folder of images."""
    facts = restore_places(path)
    tables = [facts, *(value for value in facts.values() if isinstance(value, dict))]
    return [path, *(Path(str(table[key])) for table in tables for key in PLACES if key in table)]


def write_sidecar(path: Path, facts: dict[str, Any]) -> None:
    """Write the sidecar of a file: `facts` about how it was made, with critic's version and the date.

    The sidecar is written last and deleted as soon as the file changes, so its presence means that the file is
    complete. Paths in it are made relative for publication (`hide_places`).
    """
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    beside = sidecar(path)
    content = {"critic": version("critic"), "finished": finished, **facts}
    write_json(beside, hide_places(content, beside.parent))


def sidecar(path: Path) -> Path:
    """Return the path of a file's sidecar, FILE.run.json. If `path` is a symbolic link, FILE is its target."""
    real = resolve_links(path)
    return real.with_name(real.name + ".run.json")


def facts(path: Path) -> dict[str, Any]:
    """Return the facts in a file's sidecar, or {} if the sidecar is missing or unreadable."""
    with suppress(OSError, ValueError):
        content = loads(sidecar(path).read_bytes())
        return content if isinstance(content, dict) else {}
    return {}


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_empty(path: Path) -> bool:
    """Return True if an existing file has no content (after decompression)."""
    with open_plain(path) as file:
        return not file.read(1)


def repair(path: Path) -> None:
    """Repair a JSON Lines file after a killed run: remove an incomplete last line, or add a missing line end.

    Raises UsageError, and leaves the file unchanged, if it is compressed or not JSON Lines. A missing file is ignored.
    """
    if path.suffix == ".gz":
        raise UsageError(f"{path}: written line by line, to go on where it stops: name it .jsonl")
    if not path.is_file():
        return
    with path.open("rb+") as file:
        first = last = file.readline()
        for line in file:
            last = line
        if not last or last.endswith(b"\n"):
            return
        # The user may have named a file of another kind by mistake: it must not be cut.
        if not (_is_record(first) if first.endswith(b"\n") else last[:1] in (b"{", b"[")):
            raise UsageError(f"{path}: not JSON Lines; give another name for what is written line by line")
        if _is_record(last):
            file.write(b"\n")
        else:
            file.truncate(file.tell() - len(last))


def _is_record(line: bytes) -> bool:
    """Return True if a line is a complete JSON object or list. Other values, such as numbers, may be incomplete."""
    with suppress(msgspec.DecodeError, RecursionError):
        return isinstance(msgspec.json.decode(line), dict | list)
    return False


class Appender:
    """A file to which records are appended as lines. Each line is written completely before `append` returns.

    If a line cannot be written, `append` raises UsageError and ignores later records, so that nothing follows half a
    line. Opening the file repairs it (`repair`) and deletes its sidecar. Only one process may write to a file: lock it
    with `lock_file`.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._broken = path, False
        with report_write_errors(path):
            repair(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            sidecar(path).unlink(missing_ok=True)
            self._file = path.open("ab", buffering=0)

    def append(self, record: Any) -> None:
        """Write one record as a line. Do nothing if an earlier write failed."""
        # After a failed write, nothing may follow half a line.
        if self._broken:
            return
        self._broken = True
        with report_write_errors(self._path):
            self._write(_encode_line(self._path, record))
        self._broken = False

    def _write(self, line: bytes) -> None:
        """Write all bytes of a line, in several system calls if one accepts only a part."""
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
