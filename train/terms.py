"""Licences: what a base says of itself, and its terms, go with every folder that is made from it."""

import json
import shutil
from pathlib import Path
from typing import Any

BASE_NOTES = "base.json"
"""In a base that base.py made: its source, the source's SHA-256, and its licence."""

TERMS = ("*LICENSE*", "*LICENCE*", "*NOTICE*", "*TERMS*")


def copy_terms(base: Path, out: Path) -> None:
    """Copy a base's terms beside what was made from it, as those of ChatGLM3 and Gemma ask for."""
    for file in (file for pattern in TERMS for file in base.glob(pattern) if file.is_file()):
        shutil.copy(file, out)


def base_notes(base: Path) -> dict[str, Any] | None:
    """What `base` says of itself, None where base.py did not make it."""
    return _read(base / BASE_NOTES)


def made_from(base: Path) -> dict[str, Any] | None:
    """What the base that base.py made says of itself: `base`, or the one that the judge in it was trained from."""
    return base_notes(base) or (_read(base / "critic.json") or {}).get("base")


def _read(file: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
