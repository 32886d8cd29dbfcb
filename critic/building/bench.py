"""What is made, written as the benchmarks' own files; what it shares with other texts; and its frozen form."""

import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from msgspec import Struct

from critic import jsonl
from critic.benchmarks.alignmmbench import CATEGORY_OF
from critic.benchmarks.convbench import CAPTION, FOCUS, IMAGE, INSTRUCTIONS, REFERENCES, TASKS
from critic.benchmarks.visitbench import CAPTIONS
from critic.benchmarks.visitbench import REFERENCES as OF_SHEET
from critic.building.replies import Made
from critic.errors import UsageError, one_line
from critic.stats.diversity import words

RUN = 8
"""Words in a row (Chinese: characters) of which two texts that share many say the same."""

OVERLAP = 0.5
"""The share of the shorter text's runs that another has as well, from which on they are one."""

INTERNAL = 0.1
"""The share of the groups that are the internal test (AlignMMBench §4.2)."""


def _multiverse(conversation: Made, image: str) -> dict[str, Any]:
    turns: list[dict[str, Any]] = []
    for turn in conversation.turns:
        items = [
            {"question": item.question, "main_criteria": item.main, "sub_criteria": item.sub} for item in turn.items
        ]
        turns.append({"speaker": "user", "utterance": turn.question, "checklist": items})
        turns.append({"speaker": "assistant", "utterance": turn.answer, "checklist": []})
    about = {"main_goal_category": conversation.goal, "sub_goal_category": conversation.sub_goal}
    about |= {"main_task_category": conversation.task, "sub_task_category": conversation.sub_task}
    about |= {"image_main_category": conversation.category, "image_sub_category": conversation.sub_category}
    about |= {"lang": conversation.lang}
    return {"index": conversation.id, "image": image, **about, "conversation": turns}


def _convbench(conversation: Made, image: str) -> dict[str, Any]:
    row: dict[str, Any] = {"ID": conversation.id, IMAGE: image, CAPTION: conversation.caption}
    for position, turn in enumerate(conversation.turns):
        row |= {INSTRUCTIONS[position]: turn.question, TASKS[position]: turn.task, REFERENCES[position]: turn.answer}
    return {**row, FOCUS: conversation.turns[-1].focus, "lang": conversation.lang}


def _alignmmbench(conversation: Made, image: str) -> dict[str, Any]:
    (turn,) = conversation.turns
    history = [{"user": before.question, "assistant": before.answer} for before in conversation.dialogue]
    row = {"question_id": conversation.id, "prompt": turn.question, "image_path": image, "history": history}
    return {**row, "ref_answer": turn.answer, "task": turn.task, "category": CATEGORY_OF[str(turn.task)]}


FORMS: dict[str, Callable[[Made, str], dict[str, Any]]] = {
    "multiverse": _multiverse,
    "convbench": _convbench,
    "alignmmbench": _alignmmbench,
}
"""Benchmark -> the row of its file that a conversation becomes."""


def write(path: Path, form: str, conversations: Iterable[Made], copies: Mapping[str, str] | None = None) -> None:
    """Write conversations as a benchmark's own file, each image by the name of its copy."""
    name_of = copies or {}
    jsonl.write(path, (FORMS[form](talk, name_of.get(talk.image, talk.image)) for talk in conversations))


def correct(form: str | None, row: dict[str, Any], kind: str, turn: int, text: str) -> None:
    """Put what a person made of a `reference`, `caption`, `focus` or `checklist` (an item a line) into a row of a
    benchmark's file, or with the form None of any table."""
    if form == "multiverse":
        question, answer = row["conversation"][2 * turn - 2 : 2 * turn]
        if kind == "reference":
            answer["utterance"] = text
        else:
            old = {item["question"].strip(): item for item in question["checklist"] or answer["checklist"]}
            # An item that is worded anew has no aspect until somebody gives it one.
            question["checklist"] = [old.get(line, {"question": line}) for line in text.splitlines() if line]
            answer["checklist"] = []
        return
    names = {"caption": (kind, *CAPTIONS, CAPTION), "focus": (kind, FOCUS)}
    names["reference"] = (kind, "ref_answer", *OF_SHEET, REFERENCES[turn - 1])
    column = next((name for name in names.get(kind, ()) if name in row), kind)
    lines = text.splitlines()
    if column.startswith("images"):  # a caption for each, which are shown numbered
        lines = [re.sub(r"^\d+\. ", "", line) for line in lines]
    row[column] = lines if kind == "checklist" or column.startswith("images") else text


class SharedText(Struct, frozen=True):
    """Two texts that say much of the same: the share of the shorter one's runs of words."""

    key: str
    other: str
    share: float


def overlaps(texts: Mapping[str, str]) -> list[SharedText]:
    """The texts that say much of what an earlier one says, each pair once. Every text is compared with every other:
    a second for a thousand of them."""
    runs = {key: _runs(text) for key, text in texts.items()}
    pairs = []
    for first, second in combinations(texts, 2):
        share = len(runs[first] & runs[second]) / min(len(runs[first]), len(runs[second]))
        if share >= OVERLAP:
            pairs.append(SharedText(first, second, share))
    return pairs


def _runs(text: str) -> frozenset[tuple[str, ...]]:
    tokens = words(text)
    starts = range(max(1, len(tokens) - RUN + 1))
    return frozenset(tuple(tokens[start : start + RUN]) for start in starts)


def groups(keys: Iterable[str], pairs: Iterable[SharedText]) -> dict[str, str]:
    """The group of each key, by its first one: what is a pair of a pair is one group."""
    group_of = {key: key for key in keys}
    for pair in pairs:
        kept, gone = sorted((group_of[pair.key], group_of[pair.other]))
        if kept != gone:
            group_of = {key: kept if group == gone else group for key, group in group_of.items()}
    return group_of


def splits(group_of: Mapping[str, str]) -> dict[str, str]:
    """The split of each key: of the groups a share, one at least, is internal, drawn by their hashes."""
    ranked = sorted(set(group_of.values()), key=lambda group: hashlib.sha256(group.encode()).digest())
    internal = set(ranked[: math.ceil(INTERNAL * len(ranked))])
    return {key: "internal" if group in internal else "train" for key, group in group_of.items()}


def freeze(
    folder: Path,
    form: str,
    conversations: Sequence[Made],
    root: Path,
    md5_of: Mapping[str, str],
    split_of: Mapping[str, str],
    facts: Mapping[str, Any],
) -> str:
    """Write a benchmark into a folder: benchmark.jsonl, its images, its splits, and frozen.json with the SHA-256 of
    every file. It takes the place of what was there once it is whole. Gives the hash of all. Raises UsageError for an
    image that is another than when it was hashed."""
    whole = jsonl.resolve_links(folder)
    partial = whole.with_name(f"{whole.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with jsonl.remove_on_failure(partial):
        named, hashes = dict[str, str](), dict[str, str]()
        for conversation in conversations:
            path = root / conversation.image
            data = path.read_bytes()
            if hashlib.md5(data, usedforsecurity=False).hexdigest() != md5_of[conversation.image]:
                raise UsageError(f"{path}: is another image than when it was hashed; build in another --out")
            name = f"images/{md5_of[conversation.image]}{path.suffix.lower()}"
            jsonl.write_bytes(partial / name, data)
            named[conversation.image], hashes[name] = name, hashlib.sha256(data).hexdigest()
        parts = {"benchmark": conversations}
        for name in sorted(set(split_of.values())):
            parts[name] = [conversation for conversation in conversations if split_of[conversation.id] == name]
        for name, part in parts.items():
            write(partial / f"{name}.jsonl", form, part, named)
            hashes[f"{name}.jsonl"] = jsonl.sha256(partial / f"{name}.jsonl")
        content = {"benchmark": form, "hash": _hash(hashes), **facts, "sha256": hashes}
        jsonl.write_json(partial / "frozen.json", content)
    shutil.rmtree(whole, ignore_errors=True)
    partial.replace(whole)
    return _hash(hashes)


def _hash(hashes: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()[:16]


def check_frozen(folder: Path) -> dict[str, Any]:
    """What frozen.json says of a frozen benchmark; nothing where there is none. Raises UsageError for a file that is
    another by now, and for a frozen.json that is not whole."""
    path = folder / "frozen.json"
    if not path.is_file():
        return {}
    try:
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
        files, whole = dict[str, str](content["sha256"]), str(content["hash"])
    except (ValueError, LookupError, TypeError) as error:
        raise UsageError(f"{path}: not as critic build writes it: {one_line(error)}") from None
    for name, expected in files.items():
        if not (folder / name).is_file() or jsonl.sha256(folder / name) != expected:
            raise UsageError(f"{folder / name}: is not as it was frozen ({whole})")
    if _hash(files) != whole:
        raise UsageError(f"{path}: its hash is not that of its files")
    return content
