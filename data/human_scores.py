"""Split human labels into train, internal test and external test by group (question), with a leak check.

    python data/human_scores.py rows.jsonl --out runs/mine/data --external GPT4 --internal 20
    python data/human_scores.py mine.csv --map answer=response --map stars=human_score --scale 1:5 --out runs/mine/data
    python data/human_scores.py pairs.csv --map winner=preference --out runs/mine/data
    python data/human_scores.py rows.jsonl --folds 5 --out runs/mine/folds

Internal test: all rows of the groups with `sha1(group) % 10 == 0`. With `--per-task` it is exactly a tenth of each
task's groups, those with the smallest hashes. `--internal N` adds the other groups with the smallest hashes until there
are N. External test: all answers of the system given by --external. Neither test is trained on. (AlignMMBench §4.1)
With `--folds K` each question is tested once: fold-k/internal.jsonl holds a K-th of the groups, fold-k/train.jsonl the
others (cross-fitting).
"""

import hashlib
import math
import posixpath
import re
import unicodedata
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import typer

from critic import human_scored, jsonl, tables
from critic.cli import run_program
from critic.errors import UsageError, notify, quoted
from critic.stages import options
from critic.stats.estimate import FEWEST_TO_DECIDE

PARTS = ("train", "internal", "external")


def _hash_group(group: str) -> int:
    """Return the SHA-1 of the group's name as an integer."""
    return int(hashlib.sha1(group.encode()).hexdigest(), 16)


def choose_internal_groups(rows: list[human_scored.Row], per_task: bool, least: int = 0) -> set[str]:
    """Return the groups of the internal test: about a tenth of all groups, and at least `least` if there are enough.

    With `per_task` it is exactly a tenth of each task's groups, rounded up.

    >>> about = {"task": "", "lang": "en", "question": "?", "reference": "!", "response": ".", "system": None}
    >>> scores = {"human_score": 1, "scale_min": 1, "scale_max": 10}
    >>> rows = [human_scored.Row(id=str(n), group=str(n), **about, **scores) for n in range(60)]
    >>> len(choose_internal_groups(rows, per_task=False)), len(choose_internal_groups(rows, per_task=False, least=20))
    (4, 20)
    """
    # A group's place in the tenth is independent of the other rows, so it keeps its part when data is added.
    chosen = {row.group for row in rows if _hash_group(row.group) % 10 == 0}
    if per_task:
        groups = defaultdict[str, set[str]](set)
        for row in rows:
            groups[row.task].add(row.group)
        tenths = (sorted(members, key=_hash_group)[: math.ceil(len(members) / 10)] for members in groups.values())
        chosen = set().union(*tenths)
    rest = sorted({row.group for row in rows} - chosen, key=_hash_group)
    return chosen | {*rest[: max(0, least - len(chosen))]}


def _list_material(row: human_scored.Row) -> set[str]:
    """Return a key for each part of a row that must not be in both training and test: image, question with reference.

    Without a reference the question counts only if it has no images and no earlier turns, which could change its
    meaning.
    """
    text = "|".join(map(_normalize_words, (row.question, row.reference or "")))
    is_complete = row.reference or not (row.pictures or row.history or row.shown)
    return {*([f"text {text}"] if is_complete else []), *(f"image {_normalize_path(name)}" for name in row.pictures)}


def _list_systems(row: human_scored.Row) -> set[str]:
    """Return the names of the systems that wrote the row's answers."""
    return {row.system or "unknown", row.other_system or row.system or "unknown"}


def _normalize_words(text: str) -> str:
    """Return a text in lower case without spaces and punctuation, except operators that distinguish formulas.

    >>> _normalize_words("What is 2 + 3?"), _normalize_words("what is 2+3"), _normalize_words("What is 2 - 3?")
    ('whatis2+3', 'whatis2+3', 'whatis23')
    """
    return re.sub(r"[^\w+<=>×÷±√]+", "", unicodedata.normalize("NFKC", text)).lower()


def _normalize_path(image: str) -> str:
    """Return a canonical path of an image. URLs (data:, https:) are unchanged.

    >>> _normalize_path("images/../kite.png"), _normalize_path("https://host/a//b.png")
    ('kite.png', 'https://host/a//b.png')
    """
    return image if re.match(r"\w+:", image) else posixpath.normpath(image.replace("\\", "/"))


def split(
    loaded: human_scored.Loaded, groups: set[str], external: str | None, rows: Path
) -> tuple[dict[str, list[dict[str, Any]]], int]:
    """Return the rows of each part (train, internal, external), and the number of rows that the leak check removed.

    `groups` are those of the internal test, `external` is the external system or None. A training row is removed if it
    shares an image, or question and reference, with an internal test row (`_list_material`). Raise UsageError, which
    names the file `rows`, if nothing is left to train on or to test.
    """
    held_out = set().union(*(_list_material(row) for row in loaded.rows if row.group in groups))
    parts: dict[str, list[dict[str, Any]]] = {name: [] for name in (*PARTS, "leaks")}
    for row, line in zip(loaded.rows, loaded.raw, strict=True):
        tests = {"internal": row.group in groups, "external": external in _list_systems(row)}
        # A leak would teach the answer to a test question under another group's name.
        untested = "leaks" if _list_material(row) & held_out else "train"
        for name in [name for name, is_in in tests.items() if is_in] or [untested]:
            parts[name].append(line)
    leaks = len(parts.pop("leaks"))
    # Write no split at all if training or testing with it would fail.
    if empty := " and ".join(name for name in ("train", "internal") if not parts[name]):
        total = f"{len({row.group for row in loaded.rows})} questions (groups), of which {len(groups)} are held out"
        also = f", and all that {external} answered" if external else ""
        also += f"; {leaks} rows share an image, or question and reference, with those held out" if leaks else ""
        need = "give at least 40 questions, two of each task with --per-task, or a smaller --internal"
        raise UsageError(f"{rows}: nothing falls into the split {empty}; it has {total}{also}: {need}")
    return parts, leaks


def write_parts(parts: dict[str, list[dict[str, Any]]], out: Path) -> dict[str, Any]:
    """Write the rows of each part to PART.jsonl in `out`. Return the entries of splits.json: rows and hash by part."""
    files = {name: out / f"{name}.jsonl" for name in parts}
    for name, file in files.items():
        if parts[name]:
            jsonl.write(file, parts[name])
        else:
            # A file left from an earlier split would be trained on or tested.
            file.unlink(missing_ok=True)
    hashes = {name: jsonl.sha256(file) for name, file in files.items() if parts[name]}
    return {"rows": {name: len(lines) for name, lines in parts.items()}, "sha256": hashes}


def write_folds(loaded: human_scored.Loaded, count: int, rows: Path, out: Path) -> list[dict[str, Any]]:
    """Write train.jsonl and internal.jsonl of each of `count` folds, and return the folds' entries of splits.json.

    The groups are dealt out to the folds in the order of their hashes. Raise UsageError, which names the file `rows`,
    if there are too few groups.
    """
    groups, folds = sorted({row.group for row in loaded.rows}, key=_hash_group), []
    if len(groups) < 2 * count:
        raise UsageError(f"{rows}: {len(groups)} questions (groups) make no {count} folds, each needs two; give fewer")
    for number in range(count):
        parts, leaks = split(loaded, {*groups[number::count]}, None, rows)
        del parts["external"]
        folds.append(write_parts(parts, out / f"fold-{number + 1}") | {"leaks": leaks})
    return folds


def main(
    rows: Path,
    out: Annotated[Path, typer.Option()],
    external: str | None = None,
    per_task: Annotated[bool, typer.Option("--per-task")] = False,
    internal: Annotated[int, typer.Option(min=0)] = 0,
    folds: Annotated[int | None, typer.Option(min=2)] = None,
    pictures: Annotated[bool, typer.Option("--pictures")] = False,
    mapped: options.Mapped = None,
    scale: options.OwnScale = None,
    lang: options.OwnLanguage = None,
) -> None:
    """Validate human labels (scores or preferences), and write the splits.
    \f
    - rows: Human labels: scored rows, pairs, or output of import-grades; a table or a folder.
    - out: Folder for train.jsonl, internal.jsonl, external.jsonl.
    - external: System whose answers are kept out of training.
    - per_task: Test exactly a tenth of each task's groups.
    - internal: Fewest groups in the internal test; an audit needs at least 20.
    - folds: Write so many splits instead, in which each question is tested once.
    - pictures: Keep rows without a reference if they have an image.
    """
    own = human_scored.OwnColumns.parse(mapped, scale, lang)
    if folds and (external or per_task or internal):
        raise UsageError("--folds tests each question once; leave --external, --internal and --per-task out")
    sources = tables.list_files(rows, *(out / f"{name}.jsonl" for name in PARTS))
    loaded = human_scored.load(rows, pictures=pictures, own=own)
    if not loaded.rows:
        reasons = "; ".join(f"{count} rows, {reason}" for reason, count in loaded.left_out.most_common())
        raise UsageError(f"{rows}: no usable row ({reasons or 'the file holds none'})")
    systems = set[str]().union(*map(_list_systems, loaded.rows))
    # A mistyped name would silently leave the system in training.
    if external is not None and external not in systems:
        raise UsageError(f"no answer is by --external {quoted(external)}; the systems are {', '.join(sorted(systems))}")
    facts: dict[str, Any] = {
        "sources": {jsonl.relative_place(file, out): jsonl.sha256(file) for file in sources},
        "left_out": dict(loaded.left_out),
    }
    if folds:
        written = write_folds(loaded, folds, rows, out)
        jsonl.write_json(out / "splits.json", {**facts, "folds": written, "rule": f"sha1(group), dealt out to {folds}"})
        for number, fold in enumerate(written, 1):
            sizes = ", ".join(f"{name} {count} rows" for name, count in fold["rows"].items())
            print(f"{out}/fold-{number}: {sizes}; leaks taken out: {fold['leaks']}")
        human_scored.say_left_out(loaded.left_out)
        return
    groups = choose_internal_groups(loaded.rows, per_task, internal)
    parts, leaks = split(loaded, groups, external, rows)
    rule = "a tenth of each task's groups by sha1" if per_task else "sha1(group) % 10 == 0"
    facts |= {"leaks": leaks, "external": external, "rule": rule + f", at least {internal} groups" * (internal > 0)}
    jsonl.write_json(out / "splits.json", write_parts(parts, out) | facts)
    print(f"{out}: " + ", ".join(f"{name} {len(lines)} rows" for name, lines in parts.items()))
    print(f"internal test: {len(groups)} questions (groups)")
    print(f"leak check: training rows that share material with another group of the internal test, taken out: {leaks}")
    human_scored.say_left_out(loaded.left_out)
    if len(groups) < FEWEST_TO_DECIDE:
        way = f"label more questions, or give --internal {FEWEST_TO_DECIDE}"
        notify(f"warning: an internal test of {len(groups)} groups is too small to decide by: {way}")
    if one_class := human_scored.describe_one_class(loaded.responses):
        notify(f"{rows}: {one_class}")


if __name__ == "__main__":
    run_program(main)
