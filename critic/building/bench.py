"""What is made, written as the benchmarks' own files; what it shares with other texts; and its frozen form."""

import hashlib
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from critic import benchmarks, jsonl
from critic.benchmarks.alignmmbench import CATEGORY_OF
from critic.benchmarks.convbench import CAPTION, FOCUS, IMAGE, INSTRUCTIONS, REFERENCES, TASKS
from critic.building.replies import Made
from critic.counting.diversity import words
from critic.errors import UsageError

RUN = 8
"""Words in a row (Chinese: characters) of which two texts that share many say the same."""

OVERLAP = 0.5
"""The share of the shorter text's runs that another has as well, from which on they are one."""

COMMON = 50
"""A run that more texts than this have is a phrase, and says nothing."""

SPLITS = ("train", "internal", "external")


def _multiverse(one: Made, image: str) -> list[dict[str, Any]]:
    spoken: list[dict[str, Any]] = []
    for turn in one.turns:
        items = [
            {"question": item.question, "main_criteria": item.main, "sub_criteria": item.sub} for item in turn.items
        ]
        spoken.append({"speaker": "user", "utterance": turn.question, "checklist": items})
        spoken.append({"speaker": "assistant", "utterance": turn.answer, "checklist": []})
    about = {
        "main_goal_category": one.goal, "sub_goal_category": one.sub_goal, "main_task_category": one.task,
        "sub_task_category": one.sub_task, "image_main_category": one.category,
        "image_sub_category": one.sub_category, "lang": one.lang,
    }  # fmt: skip
    return [{"index": one.id, "image": image, **about, "conversation": spoken}]


def _convbench(one: Made, image: str) -> list[dict[str, Any]]:
    row: dict[str, Any] = {"ID": one.id, IMAGE: image, CAPTION: one.caption}
    for place, turn in enumerate(one.turns):
        row |= {INSTRUCTIONS[place]: turn.question, TASKS[place]: turn.task, REFERENCES[place]: turn.answer}
    return [{**row, FOCUS: one.turns[-1].focus, "lang": one.lang}]


def _alignmmbench(one: Made, image: str) -> list[dict[str, Any]]:
    (turn,) = one.turns
    history = [{"user": before.question, "assistant": before.answer} for before in one.dialogue]
    row = {"image_path": image, "history": history, "ref_answer": turn.answer, "task": turn.task}
    row["category"] = CATEGORY_OF[str(turn.task)]
    asked = [turn.question, *one.wordings]
    return [{"question_id": f"{one.id}-{number}", "prompt": text, **row} for number, text in enumerate(asked)]


FORMS: dict[str, Callable[[Made, str], list[dict[str, Any]]]] = {
    "multiverse": _multiverse,
    "convbench": _convbench,
    "alignmmbench": _alignmmbench,
}
"""Benchmark -> the rows of its file that a conversation becomes."""


def write(path: Path, form: str, made: Iterable[Made], image_of: Callable[[Made], str] = lambda one: one.image) -> int:
    """Write conversations as a benchmark's own file; how many rows."""
    return jsonl.write(path, (row for one in made for row in FORMS[form](one, image_of(one))))


class SharedText(Struct, frozen=True):
    """Two texts that say much of the same: the share of the shorter one's runs of words."""

    one: str
    other: str
    share: float


def overlaps(texts: Mapping[str, str], others: Mapping[str, str] | None = None) -> list[SharedText]:
    """The texts that say the same as another, of `others` where they are given (contamination). Only texts that share a
    run of RUN words are compared."""
    runs = {("", key): _runs(text) for key, text in texts.items()}
    runs |= {("other", key): _runs(text) for key, text in (others or {}).items()}
    having = defaultdict[int, list[tuple[str, str]]](list)
    for key, some in runs.items():
        for run in some:
            having[run].append(key)
    shared = Counter[tuple[tuple[str, str], tuple[str, str]]]()
    for keys in having.values():
        if len(keys) <= COMMON:
            shared.update(pair for pair in combinations(keys, 2) if others is None or pair[0][0] != pair[1][0])
    found = []
    for (one, other), count in shared.items():
        share = count / min(len(runs[one]), len(runs[other]))
        if share >= OVERLAP:
            found.append(SharedText(one[1], other[1], share))
    return sorted(found, key=lambda pair: (pair.one, pair.other))


def _runs(text: str) -> set[int]:
    said = words(text)
    runs = {" ".join(said[place : place + RUN]) for place in range(max(1, len(said) - RUN + 1))} if said else set()
    # The hashes of Python's own texts differ from run to run; these do not.
    return {int.from_bytes(hashlib.blake2b(run.encode(), digest_size=8).digest(), "big") for run in runs}


def groups(keys: Iterable[str], pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The group of each key, by its first one: what is a pair of a pair is one group."""
    above = {key: key for key in keys}

    def top(key: str) -> str:
        while above[key] != key:
            above[key] = above[above[key]]
            key = above[key]
        return key

    for one, other in pairs:
        low, high = sorted((top(one), top(other)))
        above[high] = low
    return {key: top(key) for key in above}


def splits(made: Sequence[Made], group_of: Mapping[str, str], internal: float, external: str | None) -> dict[str, str]:
    """The split of each conversation by its id. Groups stay together: one with an image from the source `external` is
    external as a whole, of the others a share is internal, by the hash of the group."""
    outside = {group_of[one.id] for one in made if external is not None and one.source == external}

    def split(group: str) -> str:
        if group in outside:
            return "external"
        drawn = int.from_bytes(hashlib.sha256(group.encode()).digest()[:8], "big") / 2**64
        return "internal" if drawn < internal else "train"

    return {one.id: split(group_of[one.id]) for one in made}


def leaks(folder: Path, form: str) -> list[str]:
    """What two of the splits in a folder share, a sentence for each two: conversations that say much of the same, and
    images."""
    texts, shown = dict[str, str](), defaultdict[str, dict[str, str]](dict)
    for split in SPLITS:
        path = folder / f"{split}.jsonl"
        for one in benchmarks.read(form, path) if path.is_file() else ():
            key = f"{split}/{one.id}"
            texts[key] = "\n".join(part for turn in one.turns for part in (turn.prompt, turn.reference) if part)
            for image in (image for turn in one.turns for image in turn.images):
                shown[image][split] = key
    pairs = [(pair.one, pair.other) for pair in overlaps(texts)]
    pairs += [two for some in shown.values() for two in combinations(some.values(), 2)]
    between = defaultdict[tuple[str, str], list[tuple[str, str]]](list)
    for pair in dict.fromkeys(pairs):
        left, right = (key.partition("/")[0] for key in pair)
        if left != right:
            between[left, right].append(pair)
    return [
        f"{left} and {right} share text or images: {len(some)} pairs of conversations, such as {' and '.join(some[0])}."
        for (left, right), some in between.items()
    ]


def freeze(
    folder: Path, form: str, made: Sequence[Made], root: Path, md5_of: Mapping[str, str], split_of: Mapping[str, str],
    facts: Mapping[str, Any],
) -> str:  # fmt: skip
    """Write a benchmark into a folder: benchmark.jsonl, its images, its splits as JSONL and, where pyarrow is there, as
    Parquet with the images inside (`datasets.load_dataset(FOLDER/datasets)`), and last frozen.json with the SHA-256 of
    every file; what was there goes. Gives the hash of all. Raises UsageError for an image that is another than when it
    was hashed."""
    named, hashes = dict[str, str](), dict[str, str]()
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "images").mkdir(parents=True)
    for one in made:
        data = (root / one.image).read_bytes()
        if hashlib.md5(data, usedforsecurity=False).hexdigest() != md5_of[one.image]:
            raise UsageError(f"{root / one.image}: is another image than when it was hashed; build in another --out")
        name = f"images/{md5_of[one.image]}{Path(one.image).suffix.lower()}"
        jsonl.write_bytes(folder / name, data)
        named[one.image], hashes[name] = name, hashlib.sha256(data).hexdigest()
    write(folder / "benchmark.jsonl", form, made, lambda one: named[one.image])
    hashes["benchmark.jsonl"] = jsonl.sha256(folder / "benchmark.jsonl")
    for split in SPLITS:
        part = [one for one in made if split_of[one.id] == split]
        if part:
            write(folder / f"{split}.jsonl", form, part, lambda one: named[one.image])
            hashes[f"{split}.jsonl"] = jsonl.sha256(folder / f"{split}.jsonl")
            _write_parquet(folder, form, split, part, named)
    if (folder / "datasets").is_dir():
        files = [{"split": path.stem, "path": path.name} for path in sorted((folder / "datasets").iterdir())]
        configs = yaml.safe_dump({"configs": [{"config_name": "default", "data_files": files}]})
        jsonl.write_text(folder / "datasets/README.md", f"---\n{configs}---\n")
    whole = _hash(hashes)
    jsonl.write_json(folder / "frozen.json", {"benchmark": form, "hash": whole, **facts, "sha256": hashes})
    return whole


def _hash(hashes: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(sorted(hashes.items()))).encode()).hexdigest()[:16]


def _write_parquet(folder: Path, form: str, split: str, part: Sequence[Made], named: Mapping[str, str]) -> None:
    """A split as a `datasets` folder has it. Nothing where pyarrow is not there."""
    try:
        from pyarrow import Table, parquet  # noqa: PLC0415 - not part of a plain installation
    except ImportError:
        return
    rows = [row for one in part for row in FORMS[form](one, named[one.image])]
    key = "image" if form == "multiverse" else IMAGE if form == "convbench" else "image_path"
    for row in rows:
        row[key] = {"bytes": (folder / row[key]).read_bytes(), "path": row[key]}
    path = folder / "datasets" / f"{split}.parquet"
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(".partial")
    parquet.write_table(Table.from_pylist(rows), partial)
    partial.replace(path)


def check_frozen(folder: Path) -> dict[str, Any]:
    """What frozen.json says of a frozen benchmark; nothing where there is none. Raises UsageError for a file that is
    another by now."""
    path = folder / "frozen.json"
    if not path.is_file():
        return {}
    said: dict[str, Any] = json.loads(path.read_text("utf-8"))
    for name, expected in said["sha256"].items():
        if not (folder / name).is_file() or jsonl.sha256(folder / name) != expected:
            raise UsageError(f"{folder / name}: is not as it was frozen ({said['hash']})")
    if _hash(said["sha256"]) != said["hash"]:
        raise UsageError(f"{path}: its hash is not that of its files")
    return said
