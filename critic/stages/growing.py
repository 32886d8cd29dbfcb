"""Files that grow line by line, so that a killed run can go on, and are packed (.gz, .zst, .parquet) once whole."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from critic import jsonl
from critic.errors import UsageError

_INTO = "packed_into"
"""Key of the sidecar of a plain file that is whole and not packed yet: without it, it is a file of its own."""


def plain_of(path: Path) -> Path:
    """Where a file grows line by line: beside its place, without .gz or .zst, or as .jsonl of a .parquet."""
    if path.suffix not in (*jsonl.PACKED, ".parquet"):
        return path
    return path.with_suffix(".jsonl" if path.suffix == ".parquet" else "")


def begun(path: Path, record: type[Any]) -> Path:
    """`plain_of` a file, where what is there is the beginning of that file or nothing. Raises UsageError for a file of
    its own: one that a run has finished by this name, or one of other records, such as what the run reads."""
    plain = plain_of(path)
    if plain == path or not plain.is_file():
        return plain
    problem = None
    if jsonl.sidecar(plain).is_file():
        other = jsonl.facts(plain).get(_INTO)
        # One whose packing failed may be packed otherwise.
        if other is None or (other != path.name and path.with_name(other).is_file()):
            problem = "a run has finished it"
    with plain.open("rb") as file:
        first = file.readline()
    try:
        if first.strip() and first.endswith(b"\n"):
            msgspec.json.decode(first.removeprefix(b"\xef\xbb\xbf"), type=record)
    except (ValueError, RecursionError):
        problem = "it has other records"
    if problem is not None:
        raise UsageError(
            f"{path}: would grow as {plain.name}, which is there and is a file of its own ({problem}); "
            "give another --out, or that one another name"
        )
    return plain


def followed(path: Path) -> Path:
    """The file that a link leads to, so that what lies beside it is the same by each name; its sidecar goes with it.
    Raises UsageError where the file's own name says that it is packed otherwise."""
    real = jsonl.resolved(path)
    if path.suffix != real.suffix and {path.suffix, real.suffix} & {*jsonl.PACKED, ".parquet"}:
        raise UsageError(f"{path}: a link to {real}; give that a name that ends in {path.suffix}, or another --out")
    if (said := jsonl.sidecar(path)) != jsonl.sidecar(real):
        said.replace(jsonl.sidecar(real))
    return real


@contextmanager
def growing(path: Path, record: type[Any]) -> Iterator[Path]:
    """`plain_of` a file of these records, which is packed once it is whole; no other process writes it meanwhile. A run
    that ends early leaves the plain one, and goes on with it; one that is packed is unpacked for that. Raises
    UsageError as `begun` and `alone` do."""
    path = followed(path)
    with jsonl.alone(plain_of(path)):
        plain = begun(path, record)
        if plain == path:
            yield path
            return
        if path.is_file() and not plain.is_file():
            said = jsonl.facts(path)
            jsonl.copy(path, plain)
            if said:
                jsonl.write_json(jsonl.sidecar(plain), {**said, _INTO: path.name})
        jsonl.ALSO_SAID[plain] = {_INTO: path.name}
        try:
            yield plain
        finally:
            del jsonl.ALSO_SAID[plain]
        jsonl.sidecar(path).unlink(missing_ok=True)
        jsonl.copy(plain, path)
        # In this order nothing is lost wherever it stops: the next run finds the plain file, and does this again.
        if said := jsonl.facts(plain):
            jsonl.write_json(jsonl.sidecar(path), {name: value for name, value in said.items() if name != _INTO})
        jsonl.sidecar(plain).unlink(missing_ok=True)
        jsonl.resolved(plain).unlink(missing_ok=True)
