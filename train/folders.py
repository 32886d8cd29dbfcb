"""Folders that appear whole or not at all: what base.py writes."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from critic import jsonl
from critic.errors import UsageError, one_line


@contextmanager
def refusing(path: Path, problem: str) -> Iterator[None]:
    """Turns any error into one line: there are as many kinds as there are ways for a file to be damaged."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{path}: {problem}: {one_line(error)}") from None


def is_made(out: Path, notes: str, facts: dict[str, Any], what: str) -> bool:
    """Whether `out` is finished: its file `notes` has these facts. Raises UsageError when it holds anything else."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not (out / notes).is_file():
        raise UsageError(f"{out} is not empty and holds no {what}; choose another folder")
    made = json.loads((out / notes).read_text("utf-8"))
    if changed := [name for name, value in facts.items() if made.get(name) != value]:
        raise UsageError(f"{out} holds another {what} (by its {', '.join(changed)}); choose another folder")
    return True


@contextmanager
def made_whole(out: Path) -> Iterator[Path]:
    """A folder to make and to fill; it becomes `out` at the end of the block. What lies beside it, such as downloads,
    is still there for the next try when this one fails or is killed."""
    target = out.resolve()  # "." has no name to make another one of, and a link stays one
    partial = target.with_name(f"{target.name}.partial")
    fresh = partial / "folder"
    with jsonl.alone_in(partial):
        shutil.rmtree(fresh, ignore_errors=True)
        with jsonl.removed_on_failure(fresh):
            yield fresh
            fresh.rename(target)
        shutil.rmtree(partial)
