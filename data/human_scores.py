"""Split people's labels into train, internal test and external test by group, with a leak check.

    python data/human_scores.py rows.jsonl --out runs/mine/data --external GPT4     python data/human_scores.py
mine.csv --map answer=response --map stars=human_score --scale 1:5 --out runs/mine/data     python
data/human_scores.py pairs.csv --map winner=preference --out runs/mine/data

Internal test: every row whose group falls into the tenth that `sha1(group) % 10 == 0` picks, or with `--per-
task` exactly a tenth of the groups of each task, in the order of that hash. External test: every answer of the
system named by --external. Neither is trained on. (AlignMMBench §4.1)
"""

import hashlib
import math
import posixpath
import re
import sys
import unicodedata
from collections import Counter, defaultdict
from pathlib import Path
from typing import Annotated, Any

import typer

from critic import human_scored, jsonl
from critic.cli import run_program
from critic.errors import UsageError, quoted
from critic.human_scored import Loaded, Row
from critic.stages import options

PARTS = ("train", "internal", "external")


def _hash(group: str) -> int:
    """Return the group's SHA-1 as a number."""
    return int(hashlib.sha1(group.encode()).hexdigest(), 16)


def internal_groups(rows: list[Row], per_task: bool) -> set[str]:
    """Return the groups of the internal test."""
    # Independent of the other rows, so a group keeps its part when data is added.
    if not per_task:
        return {row.group for row in rows if _hash(row.group) % 10 == 0}
    groups = defaultdict[str, set[str]](set)
    for row in rows:
        groups[row.task].add(row.group)
    tenths = (sorted(members, key=_hash)[: math.ceil(len(members) / 10)] for members in groups.values())
    return set().union(*tenths)


def _material(row: Row) -> set[str]:
    """Return what must not occur on both sides of the split: the images, and the question with its reference.

    Without a reference, the question only counts if no image and no earlier turns give it another meaning.
    """
    text = "|".join(map(_words, (row.question, row.reference or "")))
    images = row.images or ([row.image] if row.image else [])
    is_complete = row.reference or not (images or row.history or row.shown)
    return {*([f"text {text}"] if is_complete else []), *(f"image {_path(image)}" for image in images)}


def _systems(row: Row) -> set[str]:
    """Return the systems whose answers the row holds."""
    return {row.system or "unknown", row.other_system or row.system or "unknown"}


def _words(text: str) -> str:
    """Return a text without white space, punctuation and capitals, but with the operators that distinguish formulas.

    >>> _words("What is 2 + 3?"), _words("what is 2+3"), _words("What is 2 - 3?")
    ('whatis2+3', 'whatis2+3', 'whatis23')
    """
    return re.sub(r"[^\w+<=>×÷±√]+", "", unicodedata.normalize("NFKC", text)).lower()


def _path(image: str) -> str:
    """Return one spelling of an image's path; an address (data:, https:) is unchanged.

    >>> _path("images/../kite.png"), _path("https://host/a//b.png")
    ('kite.png', 'https://host/a//b.png')
    """
    return image if re.match(r"\w+:", image) else posixpath.normpath(image.replace("\\", "/"))


def split(loaded: Loaded, external: str | None, per_task: bool) -> tuple[dict[str, list[dict[str, Any]]], int]:
    """Return the rows of each part, and the number of rows that the leak check took out of training.

    Those share an image, or question and reference (`_material`), with an internal test row of another group.
    """
    groups = internal_groups(loaded.rows, per_task)
    held_out = set().union(*(_material(row) for row in loaded.rows if row.group in groups))
    parts: dict[str, list[dict[str, Any]]] = {name: [] for name in PARTS}
    leaks = 0
    for row, line in zip(loaded.rows, loaded.raw, strict=True):
        is_internal, is_external = row.group in groups, external in _systems(row)
        if is_internal:
            parts["internal"].append(line)
        if is_external:
            parts["external"].append(line)
        if is_internal or is_external:
            continue
        # Such a row would teach the answer to a test question under another group's name.
        if _material(row) & held_out:
            leaks += 1
        else:
            parts["train"].append(line)
    return parts, leaks


def _check_parts(
    rows: Path, loaded: Loaded, parts: dict[str, list[dict[str, Any]]], external: str | None, leaks: int
) -> None:
    """Raise UsageError if nothing is left to train on, or to test."""
    # Better no split than one whose training or test cannot run.
    if not parts["train"] or not parts["internal"]:
        empty = " and ".join(name for name in ("train", "internal") if not parts[name])
        total = f"{len({row.group for row in loaded.rows})} questions (groups), of which a tenth is held out"
        also = f", and all that {external} answered" if external else ""
        also += f"; {leaks} rows share an image, or question and reference, with those held out" if leaks else ""
        need = "give at least 40 questions, or two of each task with --per-task"
        raise UsageError(f"{rows}: nothing falls into the split {empty}; it has {total}{also}: {need}")


def main(
    rows: Annotated[
        Path,
        typer.Argument(help="People's labels: rows with scores, pairs, import-grades' judgments; a table or a folder."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for train.jsonl, internal.jsonl, external.jsonl.")],
    external: Annotated[str | None, typer.Option(help="The answering system kept out of training.")] = None,
    per_task: Annotated[bool, typer.Option("--per-task", help="Exactly a tenth of each task's groups.")] = False,
    pictures: Annotated[
        bool, typer.Option("--pictures", help="Keep rows without a reference if they have an image.")
    ] = False,
    mapped: options.Mapped = None,
    scale: options.OwnScale = None,
    lang: options.OwnLanguage = None,
) -> None:
    """Validate people's labels, scores or preferences, and write the splits."""
    own = human_scored.OwnColumns.parse(mapped, scale, lang)
    sources = human_scored.list_files(rows, *(out / f"{name}.jsonl" for name in PARTS))
    loaded = human_scored.load(rows, pictures=pictures, own=own)
    if not loaded.rows:
        raise UsageError(f"{rows}: no usable row ({_listed(loaded.left_out)})")
    systems = set[str]().union(*map(_systems, loaded.rows))
    # A mistyped name would silently leave the system in training.
    if external is not None and external not in systems:
        raise UsageError(f"no answer is by --external {quoted(external)}; the systems are {', '.join(sorted(systems))}")
    parts, leaks = split(loaded, external, per_task)
    _check_parts(rows, loaded, parts, external, leaks)
    jsonl.write_json(
        out / "splits.json",
        {
            "sources": {jsonl.relative_place(file, out): jsonl.sha256(file) for file in sources},
            "rows": {name: len(lines) for name, lines in parts.items()},
            "sha256": _write(out, parts),
            "left_out": dict(loaded.left_out),
            "leaks": leaks,
            "external": external,
            "rule": "a tenth of each task's groups by sha1" if per_task else "sha1(group) % 10 == 0",
        },
    )
    print(f"{out}: " + ", ".join(f"{name} {len(lines)} rows" for name, lines in parts.items()))
    print(f"leak check: training rows that share material with another group of the internal test, taken out: {leaks}")
    human_scored.say_left_out(loaded.left_out)
    if one_class := human_scored.describe_one_class(loaded.responses):
        print(f"{rows}: {one_class}", file=sys.stderr)


def _write(out: Path, parts: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    """Write each part and return its SHA-256; delete the file of a part without rows."""
    digests = {}
    for name, lines in parts.items():
        file = out / f"{name}.jsonl"
        if lines:
            jsonl.write(file, lines)
            digests[name] = jsonl.sha256(file)
        else:
            # A file left from an earlier split would be trained on or tested.
            file.unlink(missing_ok=True)
    return digests


def _listed(counts: Counter[str]) -> str:
    """Return the reasons for rows left out as a text."""
    return "; ".join(f"{count} rows, {reason}" for reason, count in counts.most_common()) or "the file holds none"


if __name__ == "__main__":
    run_program(main)
