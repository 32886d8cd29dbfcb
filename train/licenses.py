"""Copy the licence and terms of a base into every folder that is made from it."""

import json
import shutil
from pathlib import Path
from typing import Any

BASE_NOTES = "base.json"
"""File in a base that base.py made, with its source, the source's SHA-256, and its licence."""

TERMS = ("LICENSE", "LICENCE", "NOTICE", "TERMS", "USE_POLICY")
"""Words in capitals that names of files with terms contain, or that begin them in any case."""


def find_folder(base: str, revision: str | None = None) -> Path:
    """Return the folder of a base's own files: the base itself, or its folder in the hub's cache.

    The terms are fetched from the hub, as loading the weights does not fetch them.
    """
    # A folder may hold anything, so it is taken as it is.
    if Path(base).is_dir():
        return Path(base)
    named = [pattern for word in TERMS for pattern in (f"*{word}*", f"{word.lower()}*", f"{word.title()}*")]
    import huggingface_hub  # noqa: PLC0415 - --help does without

    try:
        wanted = [*named, BASE_NOTES, "critic.json"]
        return Path(huggingface_hub.snapshot_download(base, revision=revision, allow_patterns=wanted))
    except (OSError, ValueError):
        # No network, or a name that is none.
        return Path(base)


def copy_terms(base: Path, out: Path) -> None:
    """Copy the terms in a base's folder to `out`, as those of ChatGLM3 and Gemma require."""
    for file in sorted(base.iterdir()) if base.is_dir() else ():
        if file.is_file() and any(word in file.name or file.name.upper().startswith(word) for word in TERMS):
            shutil.copyfile(file, out / file.name)


def read_origin(base: Path) -> dict[str, Any] | None:
    """Return the notes of base.py on `base`, or on the base that the judge in it was trained from, or None."""
    own, judge = base / BASE_NOTES, base / "critic.json"
    notes = own if own.is_file() else judge
    if not notes.is_file():
        return None
    facts: dict[str, Any] = json.loads(notes.read_text("utf-8"))
    return facts if notes == own else facts.get("base")
