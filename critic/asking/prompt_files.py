"""The prompt files: those packaged in `critic/prompts/`, and prompt packs that stand in for parts of them."""

import hashlib
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from critic.errors import UsageError

_PACKS: dict[str, dict[str, dict[str, Any]]] = {}
"""The packs that were opened: NAME@HASH -> path in critic/prompts/ -> what the pack says otherwise. A pack's name is
that of its content, so opening one twice changes nothing."""


def packaged() -> set[str]:
    """The prompts that judge, by their path in critic/prompts/."""
    root = files("critic") / "prompts"
    named = {entry.name for entry in root.iterdir() if entry.name.endswith(".toml")}
    talks = (entry.name for entry in (root / "conversations").iterdir())
    return named | {f"conversations/{name}" for name in talks if name.endswith(".toml")}


def content(path: str, pack: str | None = None) -> dict[str, Any]:
    """A packaged file, with what a pack (as `add_pack` named it) says otherwise."""
    ours = tomllib.loads((files("critic") / "prompts" / path).read_text("utf-8"))
    return over(ours, _PACKS[pack].get(path, {})) if pack else ours


def has(pack: str, name: str) -> bool:
    """Whether a pack has a part in the prompt `name`, in any language."""
    return any(path.rsplit("_", 1)[0] == name for path in _PACKS[pack])


def over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Two tables as one, table by table; elsewhere what `above` says counts."""
    both = {key: over(below[key], above[key]) for key in below.keys() & above.keys() if isinstance(below[key], dict)}
    return {**below, **above, **both}


def add_pack(folder: Path) -> tuple[str, Mapping[str, dict[str, Any]]]:
    """A folder's prompt files under the folder's name and the first 16 hex digits of the SHA-256 of their paths and
    content, NAME@HASH. Raises UsageError for a folder without any, a file that is none of ours, and bad TOML."""
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.toml"))}
    if not found:
        raise UsageError(f"{folder}: no prompt pack: expected a folder with some of {', '.join(sorted(packaged()))}")
    digest, tables = hashlib.sha256(), {}
    for path, raw in found.items():
        if path not in packaged():
            raise UsageError(f"{folder / path}: stands in for none of {', '.join(sorted(packaged()))}")
        try:
            tables[path] = tomllib.loads(raw.decode())
        except ValueError as error:
            raise UsageError(f"{folder / path}: {error}") from None
        digest.update(f"{path}\0{len(raw)}\0".encode() + raw)
    name = f"{folder.resolve().name}@{digest.hexdigest()[:16]}"
    _PACKS[name] = tables
    return name, tables


def environment(**options: Any) -> jinja2.Environment:
    """Where templates are compiled: sandboxed, for those of a pack may be anyone's."""
    return ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, autoescape=False, **options)
