"""JSON-lines files: read with file:line errors, append so that a killed run can resume, and the
sidecar that says what made a file."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

import msgspec

from critic.errors import UsageError

T = TypeVar("T")


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Non-blank lines of a UTF-8 file with their numbers, from 1. Raises UsageError when the file is missing, is not
    UTF-8, or has no line."""
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    found = False
    with path.open("rb") as file:
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
    decoder = msgspec.json.Decoder(record)
    for number, line in lines(path):
        try:
            yield number, decoder.decode(line)
        except msgspec.DecodeError as error:
            raise UsageError(f"{path}:{number}: {str(error).replace(chr(10), ' ')}") from None


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Raises UsageError for what the system says against writing: a full disk, a missing right."""
    try:
        yield
    except OSError as error:
        problem = f"cannot be written: {error.strerror or error}"
        raise UsageError(f"{path}: {problem}; then run the same command again to go on") from None


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` once it is whole: a crash leaves the old file or none."""
    partial = path.with_name(path.name + ".partial")
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            yield file
        partial.replace(path)


def write(path: Path, records: Iterable[Any]) -> int:
    """Write records to `path` in one step (a crash leaves the old file or none); returns how many. Its sidecar goes
    first: what it says is said of the file that was there. Like everything here that writes, it raises UsageError for
    what the system says against it."""
    count = 0
    with _replacing(path) as file:
        for record in records:
            file.write(msgspec.json.encode(record) + b"\n")
            count += 1
        sidecar(path).unlink(missing_ok=True)
    return count


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8 in one step."""
    with _replacing(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write one indented JSON document in one step."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def write_sidecar(path: Path, facts: dict[str, Any]) -> None:
    """Write `path`.run.json: what made the file. Written last, and gone as soon as the file is changed (`write`,
    `rewrite`, `Appender`), so its presence means `path` is whole."""
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    write_json(sidecar(path), {"critic": version("critic"), "finished": finished, **facts})


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


def repair(path: Path) -> int:
    """Cut a torn last line off a file that a killed run was appending to; returns the bytes cut."""
    size = path.stat().st_size if path.is_file() else 0
    if not size:
        return 0
    with path.open("rb+") as file:
        with mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            keep = content.rfind(b"\n") + 1
        file.truncate(keep)
    return size - keep


class Appender:
    """Appends records to a file, each line handed to the system whole as soon as it is known, and none behind a line
    that could not be written whole. The file's sidecar is taken away at once. Raises UsageError for what the system
    says against writing."""

    def __init__(self, path: Path) -> None:
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
