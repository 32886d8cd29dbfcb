"""Copy the licence and terms of a base into every folder that is made from it."""

import json
import shutil
from pathlib import Path
from typing import Any

BASE_NOTES = "base.json"
"""File that base.py writes into a base, with its source, the SHA-256 of the source, and its licence."""

TERMS = ("LICENSE", "LICENCE", "NOTICE", "TERMS", "USE_POLICY")
"""Words in the names of files with licence terms: in capitals anywhere, or in any case at the beginning."""


def find_folder(base: str, revision: str | None = None) -> Path:
    """Return the folder with a base's files: `base` if it is a folder, else its snapshot in the hub's cache.

    Files with licence terms are downloaded, because loading the weights does not do so. Return Path(base) if that
    fails.
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
    """Copy the files with licence terms from a base's folder to `out`, as the licences of some bases require."""
    for file in sorted(base.iterdir()) if base.is_dir() else ():
        if file.is_file() and any(word in file.name or file.name.upper().startswith(word) for word in TERMS):
            shutil.copyfile(file, out / file.name)


def read_origin(base: Path) -> dict[str, Any] | None:
    """Return the notes of base.py about `base`, or None if there are none.

    If `base` is a trained judge, return those about the base that it was trained from.
    """
    own, judge = base / BASE_NOTES, base / "critic.json"
    notes = own if own.is_file() else judge
    if not notes.is_file():
        return None
    facts: dict[str, Any] = json.loads(notes.read_text("utf-8"))
    return facts if notes == own else facts.get("base")
