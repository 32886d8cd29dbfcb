"""Licences: what a base says of itself, and its terms, go with every folder that is made from it."""

import json
import shutil
from pathlib import Path
from typing import Any

BASE_NOTES = "base.json"
"""In a base that base.py made: its source, the source's SHA-256, and its licence."""

TERMS = ("LICENSE", "LICENCE", "NOTICE", "TERMS", "USE_POLICY")
"""What is in the names of files that hold terms, in capitals, or how they begin."""


def folder_of(base: str, revision: str | None = None) -> Path:
    """Where a base's own files lie: its folder, or of a base by a hub's name the one in the hub's cache, together with
    its terms, which loading its weights does not fetch."""
    if Path(base).is_dir():
        return Path(base)
    named = [pattern for word in TERMS for pattern in (f"*{word}*", f"{word.lower()}*", f"{word.title()}*")]
    import huggingface_hub  # noqa: PLC0415 - --help does without

    try:
        wanted = [*named, BASE_NOTES, "critic.json"]
        return Path(huggingface_hub.snapshot_download(base, revision=revision, allow_patterns=wanted))
    except (OSError, ValueError):  # no network, or a name that is none
        return Path(base)


def copy_terms(base: Path, out: Path) -> None:
    """Copy a base's terms beside what was made from it, as those of ChatGLM3 and Gemma ask for."""
    for file in sorted(base.iterdir()) if base.is_dir() else ():
        if file.is_file() and any(word in file.name or file.name.upper().startswith(word) for word in TERMS):
            shutil.copyfile(file, out / file.name)


def made_from(base: Path) -> dict[str, Any] | None:
    """What the base that base.py made says of itself: `base`, or the one that the judge in it was trained from."""
    own, judge = base / BASE_NOTES, base / "critic.json"
    notes = own if own.is_file() else judge
    if not notes.is_file():
        return None
    facts: dict[str, Any] = json.loads(notes.read_text("utf-8"))
    return facts if notes == own else facts.get("base")
