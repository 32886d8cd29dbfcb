"""Manage complete checkpoints. A manifest is written last, and a killed run resumes from the newest complete one."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from critic import jsonl
from critic.errors import UsageError

MANIFEST = "complete.json"
FORMAT = 1


def _list_folders(out: Path) -> list[Path]:
    """Return the checkpoint folders in `out`, newest first."""
    folders = [path for path in out.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    return sorted(folders, key=lambda path: int(path.name.removeprefix("checkpoint-")), reverse=True)


def seal(folder: Path, facts: dict[str, Any]) -> None:
    """Write the manifest that marks a checkpoint as complete: the size of every file, and `facts` of the run (JSON)."""
    sizes = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        # Else the manifest could reach the disk before the files that it vouches for.
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
        sizes[file.relative_to(folder).as_posix()] = file.stat().st_size
    jsonl.write_json(folder / MANIFEST, {"format": FORMAT, "facts": facts, "files": sizes})


def find_fault(folder: Path) -> str | None:
    """Return why a checkpoint cannot be used, or None if it is complete."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    # The manifest is written last, so the run was killed before.
    except FileNotFoundError:
        return "it was never finished"
    except ValueError:
        return f"its {MANIFEST} is damaged"
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        return f"it has another format than this version's ({FORMAT})"
    for name, size in manifest["files"].items():
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes instead of {size}"
    return None


def let_others_read(file: Path) -> None:
    """Set the permissions of all weight files in `file`'s folder and below to those of `file`.

    safetensors writes files that only the owner can read.
    """
    for weights in file.parent.rglob("*.safetensors"):
        shutil.copymode(file, weights)


def list_changes(earlier: dict[str, Any], facts: dict[str, Any]) -> list[str]:
    """Return the names of the facts whose values differ from those of an `earlier` run, and of a recipe the keys.

    >>> list_changes({"recipe": {"keep": 2}, "data": 1}, {"recipe": {"keep": 3}, "data": 2})
    ['recipe (keep)', 'data']
    >>> list_changes({"recipe": {"keep": [2]}, "data": {"x": "1"}}, {"recipe": {"keep": [2]}, "data": {"x": "2"}})
    ['data']

    A key that the earlier version did not have yet makes no difference as long as it is None.

    >>> list_changes({"recipe": {"keep": 2}}, {"recipe": {"keep": 2, "rank": None}})
    []
    """
    differing = {name: value for name, value in json.loads(json.dumps(facts)).items() if earlier.get(name) != value}
    # A judge from before recipes were noted has none to compare.
    if "recipe" not in differing or not earlier.get("recipe"):
        return list(differing)
    keys = [key for key, value in differing["recipe"].items() if earlier["recipe"].get(key) != value]
    # Not one differs if a key has been added since, and has its default here.
    changed = (f"recipe ({', '.join(keys)})" if name == "recipe" else name for name in differing)
    return [name for name in changed if name != "recipe ()"]


def read_newest(out: Path, warn: Callable[[str], object] = lambda text: None) -> tuple[Path | None, dict[str, Any]]:
    """Return the newest complete checkpoint in `out` and the facts of its run, or (None, {}) if there is none.

    Call `warn(text)` for every incomplete one that is newer.
    """
    for folder in _list_folders(out):
        if (reason := find_fault(folder)) is None:
            return folder, json.loads((folder / MANIFEST).read_text("utf-8"))["facts"]
        warn(f"{folder} is passed over: {reason}")
    return None, {}


def find_newest(out: Path, facts: dict[str, Any], warn: Callable[[str], object]) -> Path | None:
    """Return the checkpoint that `read_newest` finds. Raise UsageError if it belongs to a run with other `facts`."""
    folder, earlier = read_newest(out, warn)
    if folder is not None and (differing := list_changes(earlier, facts)):
        raise UsageError(f"{folder} belongs to a run with another {' and '.join(differing)}; choose another --out")
    return folder


def discard(out: Path, keep: int) -> None:
    """Delete all incomplete checkpoints in `out`, and all complete ones except the newest `keep`."""
    complete = [folder for folder in _list_folders(out) if find_fault(folder) is None]
    for folder in {*_list_folders(out)}.difference(complete[:keep]):
        shutil.rmtree(folder, ignore_errors=True)
