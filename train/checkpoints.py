"""Checkpoints that are whole or do not count: a manifest is written last, and a killed run goes on from the newest."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from critic import jsonl
from critic.errors import UsageError

MANIFEST = "complete.json"
FORMAT = 1


def _folders(out: Path) -> list[Path]:
    """Checkpoint folders, newest first."""
    folders = [path for path in out.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    return sorted(folders, key=lambda path: int(path.name.removeprefix("checkpoint-")), reverse=True)


def seal(folder: Path, facts: dict[str, Any]) -> None:
    """Declare a checkpoint whole: every file's size and `facts` (what run it belongs to, JSON), written last."""
    sizes = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
        sizes[file.relative_to(folder).as_posix()] = file.stat().st_size
    jsonl.write_json(folder / MANIFEST, {"format": FORMAT, "facts": facts, "files": sizes})


def fault(folder: Path) -> str | None:
    """Why a checkpoint cannot be used, None when it is whole."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
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
    """Give weights below the folder of a file its mode: safetensors writes what nobody else may read."""
    for weights in file.parent.rglob("*.safetensors"):
        shutil.copymode(file, weights)


def changed(earlier: dict[str, Any], facts: dict[str, Any]) -> list[str]:
    """The names of `facts` that differ from a run's `earlier` ones, of a recipe with its keys."""
    differing = {name: value for name, value in json.loads(json.dumps(facts)).items() if earlier.get(name) != value}
    if "recipe" not in differing or not earlier.get("recipe"):
        return list(differing)
    keys = [key for key, value in differing["recipe"].items() if earlier["recipe"].get(key) != value]
    return [f"recipe ({', '.join(keys)})" if name == "recipe" else name for name in differing]


def newest(out: Path, facts: dict[str, Any], warn: Any) -> Path | None:
    """The newest whole checkpoint in `out`; `warn(text)` is told of every broken one that is passed over.

    Raises UsageError when it belongs to a run that `facts` does not describe.
    """
    for folder in _folders(out):
        reason = fault(folder)
        if reason is not None:
            warn(f"{folder} is passed over: {reason}")
            continue
        if differing := changed(json.loads((folder / MANIFEST).read_text("utf-8"))["facts"], facts):
            raise UsageError(f"{folder} belongs to a run with another {' and '.join(differing)}; choose another --out")
        return folder
    return None


def noted(out: Path, name: str) -> Any:
    """What the newest whole checkpoint in `out` has noted under `name`, None where there is none."""
    for folder in _folders(out):
        if fault(folder) is None:
            return json.loads((folder / MANIFEST).read_text("utf-8"))["facts"].get(name)
    return None


def discard(out: Path, keep: int) -> None:
    """Delete all but the `keep` newest whole checkpoints, and the broken ones."""
    whole = 0
    for folder in _folders(out):
        whole += fault(folder) is None
        if fault(folder) is not None or whole > keep:
            shutil.rmtree(folder, ignore_errors=True)
