"""What is made, written as the benchmarks' own files; what it shares with other texts; and its frozen form."""

import hashlib
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from critic import jsonl
from critic.benchmarks.alignmmbench import CATEGORY_OF
from critic.benchmarks.convbench import CAPTION, FOCUS, IMAGE, INSTRUCTIONS, REFERENCES, TASKS
from critic.building.replies import Made
from critic.errors import UsageError, one_line
from critic.stats.diversity import words

RUN = 8
"""Words in a row (Chinese: characters) of which two texts that share many say the same."""

OVERLAP = 0.5
"""The share of the shorter text's runs that another has as well, from which on they are one."""

SPLITS = ("train", "internal", "external")


def _multiverse(conversation: Made, image: str) -> list[dict[str, Any]]:
    spoken: list[dict[str, Any]] = []
    for turn in conversation.turns:
        items = [
            {"question": item.question, "main_criteria": item.main, "sub_criteria": item.sub} for item in turn.items
        ]
        spoken.append({"speaker": "user", "utterance": turn.question, "checklist": items})
        spoken.append({"speaker": "assistant", "utterance": turn.answer, "checklist": []})
    about = {
        "main_goal_category": conversation.goal,
        "sub_goal_category": conversation.sub_goal,
        "main_task_category": conversation.task,
        "sub_task_category": conversation.sub_task,
        "image_main_category": conversation.category,
        "image_sub_category": conversation.sub_category,
        "lang": conversation.lang,
    }
    return [{"index": conversation.id, "image": image, **about, "conversation": spoken}]


def _convbench(conversation: Made, image: str) -> list[dict[str, Any]]:
    row: dict[str, Any] = {"ID": conversation.id, IMAGE: image, CAPTION: conversation.caption}
    for position, turn in enumerate(conversation.turns):
        row |= {INSTRUCTIONS[position]: turn.question, TASKS[position]: turn.task, REFERENCES[position]: turn.answer}
    return [{**row, FOCUS: conversation.turns[-1].focus, "lang": conversation.lang}]


def _alignmmbench(conversation: Made, image: str) -> list[dict[str, Any]]:
    (turn,) = conversation.turns
    history = [{"user": before.question, "assistant": before.answer} for before in conversation.dialogue]
    row = {"image_path": image, "history": history, "ref_answer": turn.answer, "task": turn.task}
    row["category"] = CATEGORY_OF[str(turn.task)]
    asked = [turn.question, *conversation.wordings]
    return [{"question_id": f"{conversation.id}-{number}", "prompt": text, **row} for number, text in enumerate(asked)]


FORMS: dict[str, Callable[[Made, str], list[dict[str, Any]]]] = {
    "multiverse": _multiverse,
    "convbench": _convbench,
    "alignmmbench": _alignmmbench,
}
"""Benchmark -> the rows of its file that a conversation becomes."""


def write(path: Path, form: str, made: Iterable[Made], copies: Mapping[str, str] | None = None) -> int:
    """Write conversations as a benchmark's own file, each image by the name of its copy; how many rows."""
    name_of = copies or {}
    rows = (row for talk in made for row in FORMS[form](talk, name_of.get(talk.image, talk.image)))
    return jsonl.write(path, rows)


class SharedText(Struct, frozen=True):
    """Two texts that say much of the same: the share of the shorter one's runs of words."""

    key: str
    other: str
    share: float


class TextIndex:
    """Texts by their runs of words."""

    def __init__(self) -> None:
        self._sizes, self._keys_of = dict[str, int](), defaultdict[int, list[str]](list)

    def add(self, key: str, runs: frozenset[int]) -> None:
        self._sizes[key] = len(runs)
        for run in runs:
            self._keys_of[run].append(key)

    def similar(self, runs: frozenset[int]) -> Iterator[tuple[str, float]]:
        """The texts that say much of what these runs say, and how much."""
        for key, count in Counter(key for run in runs for key in self._keys_of.get(run, ())).items():
            share = count / min(len(runs), self._sizes[key])
            if share >= OVERLAP:
                yield key, share


def overlaps(texts: Mapping[str, str]) -> list[SharedText]:
    """The texts that say the same as an earlier one. Of texts that are alike run by run the first stands for all."""
    index, first, pairs = TextIndex(), dict[frozenset[int], str](), list[SharedText]()
    for key, text in texts.items():
        runs = _runs(text)
        if runs in first:
            pairs.append(SharedText(first[runs], key, 1.0))
        elif runs:
            first[runs] = key
            pairs += [SharedText(other, key, share) for other, share in index.similar(runs)]
            index.add(key, runs)
    return pairs


def contamination(texts: Mapping[str, str], rows: Iterable[tuple[str, Sequence[str]]]) -> list[SharedText]:
    """The texts that say what one of other rows says: each with the first of these rows, which are given by their
    place and passages, and read once."""
    index, found = TextIndex(), dict[str, SharedText]()
    for key, text in texts.items():
        index.add(key, _runs(text))
    for place, passages in rows:
        for key, share in index.similar(_runs("\n".join(passages))):
            found.setdefault(key, SharedText(key, place, share))
    return list(found.values())


def _runs(text: str) -> frozenset[int]:
    tokens = words(text)
    runs = (
        {" ".join(tokens[start : start + RUN]) for start in range(max(1, len(tokens) - RUN + 1))} if tokens else set()
    )
    # The hashes of Python's own texts differ from run to run; these do not.
    return frozenset(int.from_bytes(hashlib.blake2b(run.encode(), digest_size=8).digest(), "big") for run in runs)


def groups(keys: Sequence[str], pairs: Iterable[SharedText]) -> dict[str, str]:
    """The group of each key, by its first one: what is a pair of a pair is one group."""
    group_of = {key: key for key in keys}
    members = {key: [key] for key in keys}
    for pair in pairs:
        kept, gone = sorted((group_of[pair.key], group_of[pair.other]))
        if kept != gone:
            members[kept] += members.pop(gone)
            group_of.update(dict.fromkeys(members[kept], kept))
    return group_of


def splits(made: Sequence[Made], group_of: Mapping[str, str], internal: float, external: str | None) -> dict[str, str]:
    """The split of each conversation by its id. Groups stay together: one with an image from the source `external` is
    external as a whole, of the others a share is internal, by the hash of the group."""
    outside = {
        group_of[conversation.id] for conversation in made if external is not None and conversation.source == external
    }

    def split(group: str) -> str:
        if group in outside:
            return "external"
        drawn = int.from_bytes(hashlib.sha256(group.encode()).digest()[:8], "big") / 2**64
        return "internal" if drawn < internal else "train"

    return {conversation.id: split(group_of[conversation.id]) for conversation in made}


def freeze(
    folder: Path,
    form: str,
    made: Sequence[Made],
    root: Path,
    md5_of: Mapping[str, str],
    split_of: Mapping[str, str],
    facts: Mapping[str, Any],
) -> str:
    """Write a benchmark into a folder: benchmark.jsonl, its images, its splits as JSONL and, where pyarrow is there, as
    Parquet with the images inside (`datasets.load_dataset(FOLDER/datasets)`), and frozen.json with the SHA-256 of every
    file. It takes the place of what was there once it is whole. Gives the hash of all. Raises UsageError for an image
    that is another than when it was hashed."""
    with _replacing(jsonl.resolved(folder)) as partial:
        named, hashes = dict[str, str](), dict[str, str]()
        for conversation in made:
            data = (root / conversation.image).read_bytes()
            if hashlib.md5(data, usedforsecurity=False).hexdigest() != md5_of[conversation.image]:
                raise UsageError(
                    f"{root / conversation.image}: is another image than when it was hashed; build in another --out"
                )
            name = f"images/{md5_of[conversation.image]}{Path(conversation.image).suffix.lower()}"
            jsonl.write_bytes(partial / name, data)
            named[conversation.image], hashes[name] = name, hashlib.sha256(data).hexdigest()
        parts = dict[str, list[Made]]()
        for split in SPLITS:
            if part := [conversation for conversation in made if split_of[conversation.id] == split]:
                parts[split] = part
        for name, written in {"benchmark": made, **parts}.items():
            write(partial / f"{name}.jsonl", form, written, named)
            hashes[f"{name}.jsonl"] = jsonl.sha256(partial / f"{name}.jsonl")
        _write_datasets(partial, form, parts, named)
        datasets = {path.relative_to(partial).as_posix(): jsonl.sha256(path) for path in partial.glob("datasets/*")}
        whole = _hash(hashes)
        content = {"benchmark": form, "hash": whole, **facts, "sha256": {**hashes, **dict(sorted(datasets.items()))}}
        jsonl.write_json(partial / "frozen.json", content)
    return whole


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """A folder to write into, which takes the place of another one when it is whole."""
    partial, before = folder.with_name(f"{folder.name}.partial"), folder.with_name(f"{folder.name}.before")
    shutil.rmtree(partial, ignore_errors=True)
    with jsonl.removed_on_failure(partial):
        yield partial
    shutil.rmtree(before, ignore_errors=True)
    if folder.is_dir():
        folder.replace(before)
    partial.replace(folder)
    shutil.rmtree(before, ignore_errors=True)


def _hash(hashes: Mapping[str, str]) -> str:
    """The hash of all files but those of `datasets`: each version of pyarrow writes the same rows in other bytes."""
    own = {name: value for name, value in sorted(hashes.items()) if not name.startswith("datasets/")}
    return hashlib.sha256(json.dumps(own).encode()).hexdigest()[:16]


def _write_datasets(folder: Path, form: str, parts: Mapping[str, Sequence[Made]], named: Mapping[str, str]) -> None:
    """The splits as a `datasets` folder has them, all by one schema: what no row of a split has is there as well.
    Nothing where pyarrow is not there."""
    try:
        from pyarrow import Table, parquet  # noqa: PLC0415 - not part of a plain installation
    except ImportError:
        return
    key = "image" if form == "multiverse" else IMAGE if form == "convbench" else "image_path"

    def table(part: Iterable[Made], shown: Callable[[str], bytes], schema: Any = None) -> Any:
        rows = [row for conversation in part for row in FORMS[form](conversation, named[conversation.image])]
        return Table.from_pylist([{**row, key: {"bytes": shown(row[key]), "path": row[key]}} for row in rows], schema)

    schema = table((conversation for part in parts.values() for conversation in part), lambda _: b"").schema
    for split, part in parts.items():
        path = folder / "datasets" / f"{split}.parquet"
        path.parent.mkdir(exist_ok=True)
        parquet.write_table(table(part, lambda name: (folder / name).read_bytes(), schema), path)
    files = [{"split": split, "path": f"{split}.parquet"} for split in sorted(parts)]
    configs = yaml.safe_dump({"configs": [{"config_name": "default", "data_files": files}]})
    jsonl.write_text(folder / "datasets/README.md", f"---\n{configs}---\n")


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
