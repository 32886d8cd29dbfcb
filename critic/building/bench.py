"""Write generated conversations in the benchmarks' own file formats, find shared texts, and freeze a benchmark."""

import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from critic import jsonl
from critic.benchmarks import visitbench
from critic.benchmarks.alignmmbench import CATEGORY_OF
from critic.benchmarks.convbench import CAPTION, FOCUS, IMAGE, INSTRUCTIONS, REFERENCES, TASKS
from critic.benchmarks.multiverse import ChecklistItem, Utterance
from critic.building.replies import DraftConversation
from critic.errors import UsageError, refusing
from critic.stats.diversity import words

RUN = 8
"""Length of an n-gram in words (Chinese: characters). Texts that share many n-grams repeat each other."""

OVERLAP = 0.5
"""Two texts count as repeating each other if they share at least this fraction of the shorter text's n-grams."""

INTERNAL = 0.1
"""Fraction of the groups that goes into the internal test (AlignMMBench §4.2)."""


def _build_multiverse_row(conversation: DraftConversation) -> dict[str, Any]:
    """Build a row in the format of MultiVerse's data set."""
    turns = list[Utterance]()
    for turn in conversation.turns:
        items = [ChecklistItem(item.question, item.main, item.sub) for item in turn.items]
        turns += [Utterance("user", turn.question, items), Utterance("assistant", turn.answer, [])]
    about = {"main_goal_category": conversation.goal, "sub_goal_category": conversation.sub_goal}
    about |= {"main_task_category": conversation.task, "sub_task_category": conversation.sub_task}
    about |= {"image_main_category": conversation.category, "image_sub_category": conversation.sub_category}
    about |= {"lang": conversation.lang}
    return {"index": conversation.id, "image": conversation.image, **about, "conversation": turns}


def _build_convbench_row(conversation: DraftConversation) -> dict[str, Any]:
    """Build a row in the format of ConvBench's sheet."""
    row: dict[str, Any] = {"ID": conversation.id, IMAGE: conversation.image, CAPTION: conversation.caption}
    for position, turn in enumerate(conversation.turns):
        row |= {INSTRUCTIONS[position]: turn.question, TASKS[position]: turn.task, REFERENCES[position]: turn.answer}
    return {**row, FOCUS: conversation.turns[-1].focus, "lang": conversation.lang}


def _build_alignmmbench_row(conversation: DraftConversation) -> dict[str, Any]:
    """Build a row in the format of AlignMMBench's questions file."""
    (turn,) = conversation.turns
    history = [{"user": before.question, "assistant": before.answer} for before in conversation.dialogue]
    row: dict[str, Any] = {"question_id": conversation.id, "prompt": turn.question, "image_path": conversation.image}
    row |= {"history": history, "ref_answer": turn.answer, "task": turn.task}
    return {**row, "category": CATEGORY_OF[str(turn.task)]}


FORMS: dict[str, Callable[[DraftConversation], dict[str, Any]]] = {
    "multiverse": _build_multiverse_row,
    "convbench": _build_convbench_row,
    "alignmmbench": _build_alignmmbench_row,
}
"""Benchmark -> function that converts a conversation to a row of the benchmark's file."""


def correct(form: str | None, row: dict[str, Any], kind: str, turn: int, text: str) -> None:
    """Put a person's correction into `row`, in place.

    `form`: the benchmark whose file format the row has; None for any other table.
    `kind`: what is corrected: "reference", "caption", "focus" or "checklist".
    `turn`: number of the turn, from 1.
    `text`: the new text; a checklist has one item per line.
    """
    # Only MultiVerse nests its turns; the other formats are flat rows.
    if form == "multiverse":
        question, answer = row["conversation"][2 * turn - 2 : 2 * turn]
        if kind == "reference":
            answer["utterance"] = text
        else:
            old = {item["question"].strip(): item for item in question["checklist"] or answer["checklist"]}
            # A reworded item may test something else, so it loses its aspect.
            question["checklist"] = [old.get(line, {"question": line}) for line in text.splitlines() if line]
            answer["checklist"] = []
        return
    names = {"caption": (kind, *visitbench.CAPTIONS, CAPTION), "focus": (kind, FOCUS)}
    names["reference"] = (kind, "ref_answer", *visitbench.REFERENCES, REFERENCES[turn - 1])
    column = next((name for name in names.get(kind, ()) if name in row), kind)
    lines = text.splitlines()
    if column.startswith("images"):  # a caption for each, which are shown numbered
        lines = [re.sub(r"^\d+\. ", "", line) for line in lines]
    row[column] = lines if kind == "checklist" or column.startswith("images") else text


SharedText = tuple[str, str, float]
"""The ids of two texts that repeat each other, and the share (0..1) of the shorter text's n-grams that both have."""


def find_overlaps(texts: Mapping[str, str]) -> Iterator[SharedText]:
    """Yield the pairs of texts that share at least the fraction OVERLAP of their word n-grams (n = RUN), each pair
    once.

    `texts` maps ids to texts. The fraction refers to the shorter text. All pairs are compared, which takes about 1 s
    for 1,000 texts.

    >>> numbers = [f"word{number}" for number in range(60)]
    >>> start, end = " ".join(numbers[:12]), " ".join([*numbers[40:], *(f"more{number}" for number in range(12))])
    >>> other = "quite another thing that nobody has said before"
    >>> pairs = [*find_overlaps({"a": " ".join(numbers), "b": other, "c": start, "d": end})]
    >>> [pair[:2] for pair in pairs], pairs[0][2], group_overlaps("abcd", pairs)
    ([('a', 'c'), ('a', 'd')], 1.0, {'a': 'a', 'b': 'b', 'c': 'a', 'd': 'a'})
    """
    runs = {key: _collect_runs(text) for key, text in texts.items()}
    for first, second in combinations(texts, 2):
        share = len(runs[first] & runs[second]) / min(len(runs[first]), len(runs[second]))
        # The shorter text decides: a text contained in a long one is repeated in full.
        if share >= OVERLAP:
            yield first, second, share


def _collect_runs(text: str) -> frozenset[tuple[str, ...]]:
    """Return the set of word n-grams (n = RUN) in a text; a shorter text is a single n-gram."""
    tokens = words(text)
    starts = range(max(1, len(tokens) - RUN + 1))
    return frozenset(tuple(tokens[start : start + RUN]) for start in starts)


def group_overlaps(keys: Iterable[str], pairs: Iterable[SharedText]) -> dict[str, str]:
    """Return the group of each key. Keys that are linked by pairs, directly or through others, share a group.

    A group is named after its first key in sorted order.

    >>> group_overlaps(["a", "b", "c", "d"], [("a", "b", 0.9), ("b", "c", 0.6)])
    {'a': 'a', 'b': 'a', 'c': 'a', 'd': 'd'}
    """
    from scipy.cluster.hierarchy import DisjointSet  # noqa: PLC0415 - takes half a second

    groups = DisjointSet(keys)
    for key, other, _ in pairs:
        groups.merge(key, other)
    return {key: min(groups.subset(key)) for key in groups}


def assign_splits(group_of: Mapping[str, str]) -> dict[str, str]:
    """Return the split of each key, "internal" or "train"; `group_of` maps keys to groups.

    The fraction INTERNAL of the groups (at least one), chosen by hash, is internal.

    >>> for groups in (200, 12, 1):
    ...     split_of = assign_splits({f"{group} {turn}": f"{group}" for group in range(groups) for turn in "ab"})
    ...     internal = [key for key, split in split_of.items() if split == "internal"]
    ...     print(len(internal), "keys of", len({key.split()[0] for key in internal}), "groups")
    40 keys of 20 groups
    4 keys of 2 groups
    2 keys of 1 groups
    """
    # Hashes, not positions: a group keeps its split when others are added.
    ranked = sorted(set(group_of.values()), key=lambda group: hashlib.sha256(group.encode()).digest())
    internal = set(ranked[: math.ceil(INTERNAL * len(ranked))])
    return {key: "internal" if group in internal else "train" for key, group in group_of.items()}


def freeze(
    folder: Path,
    form: str,
    conversations: Sequence[DraftConversation],
    root: Path,
    md5_of: Mapping[str, str],
    split_of: Mapping[str, str],
    facts: Mapping[str, Any],
) -> str:
    """Write a benchmark into `folder` and return a hash of all its files.

    The folder gets benchmark.jsonl, one file per split, the images, and frozen.json with the SHA-256 of every file. It
    replaces an earlier folder only once it is complete.

    `form`: the benchmark whose file format is used. `root`: folder of the source images.
    `md5_of`: image path -> MD5 at the time when the image was chosen. `split_of`: conversation id -> split.
    `facts`: additional content of frozen.json.

    Raises UsageError if an image has changed since its MD5 was computed.
    """
    target = jsonl.resolve_links(folder)
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with jsonl.remove_on_failure(partial):
        published, hashes = list[DraftConversation](), dict[str, str]()
        for conversation in conversations:
            path = root / conversation.image
            data = path.read_bytes()
            # An edited image would no longer fit the texts that were generated from it.
            if hashlib.md5(data, usedforsecurity=False).hexdigest() != md5_of[conversation.image]:
                raise UsageError(f"{path}: is another image than when it was hashed; build in another --out")
            name = f"images/{md5_of[conversation.image]}{path.suffix.lower()}"
            jsonl.write_bytes(partial / name, data)
            published.append(replace(conversation, image=name))
            hashes[name] = hashlib.sha256(data).hexdigest()
        for name in ("benchmark", *sorted(set(split_of.values()))):
            part = [talk for talk in published if name in ("benchmark", split_of[talk.id])]
            jsonl.write(partial / f"{name}.jsonl", map(FORMS[form], part))
            hashes[f"{name}.jsonl"] = jsonl.sha256(partial / f"{name}.jsonl")
        content = {"benchmark": form, "hash": _combine_hashes(hashes), **facts, "sha256": hashes}
        jsonl.write_json(partial / "frozen.json", content)
    shutil.rmtree(target, ignore_errors=True)
    partial.replace(target)
    return _combine_hashes(hashes)


def _combine_hashes(hashes: Mapping[str, str]) -> str:
    """Return one short hash of the files' hashes (file name -> SHA-256)."""
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()[:16]


def check_frozen(folder: Path) -> dict[str, Any]:
    """Return the content of frozen.json in a benchmark's folder, or {} if there is none.

    Raises UsageError if one of the files has changed since, or if frozen.json is malformed.
    """
    path = folder / "frozen.json"
    if not path.is_file():
        return {}
    with refusing(path, "not as critic build writes it"):
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
        files = dict[str, str](content["sha256"])
        frozen_hash = str(content["hash"])
    for name, expected in files.items():
        if not (folder / name).is_file() or jsonl.sha256(folder / name) != expected:
            raise UsageError(f"{folder / name}: is not as it was frozen ({frozen_hash})")
    # An edited frozen.json must not vouch for edited files.
    if _combine_hashes(files) != frozen_hash:
        raise UsageError(f"{path}: its hash is not that of its files")
    return content
