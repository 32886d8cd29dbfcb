"""critic merge: the files of all shards of one run -> one file.

critic judge rows.jsonl --shard 3/64 --out part.3.jsonl …    # one of 64, on any machine; killed, it goes on
critic merge part.*.jsonl --out judged.jsonl

Or the judgments of all folds of rows (data/human_scores.py --folds), each by the judge trained on the other folds:
critic merge fold-?.jsonl --cross-fit DATA --out judged.jsonl
"""

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Raw, Struct
from msgspec.structs import replace

from critic import jsonl
from critic.errors import UsageError, hash_value, located, notify, quoted
from critic.records import Judgment, ModelTurn
from critic.stages import options
from critic.stages.run import RunOptions, Shard, finish, join_facts
from critic.stages.totals import RunSummary, sum_judgments, sum_replies

HOW = options.NAMES["of_shards"]
"""Facts in the sidecars that must be equal in all shards."""

ELSEWHERE = ("data_root", "images")
"""Facts that may differ between machines; the merged file gets those of the first shard."""

KINDS: dict[str, tuple[type[Any], str, Callable[..., RunSummary]]] = {
    "responses": (Judgment, "rows", partial(sum_judgments, unit="row")),
    "replies": (Judgment, "verdicts", partial(sum_judgments, unit="verdict")),
    "conversations": (ModelTurn, "turns", sum_replies),
}
"""The source of a run, as its sidecar names it -> the type of its records, the fact that counts them, and the function
from the records and their file to their totals."""


class ShardFile(Struct, frozen=True):
    """The file of one shard, with its number and the facts in its sidecar."""

    path: Path
    shard: Shard
    facts: dict[str, Any]


def merge(parts: Sequence[Path], out: Path, max_failed: float) -> int:
    """Merge the files of all shards (`parts`) into `out`, and write its sidecar. Return the exit code.

    The merged file has the same lines as a run without --shard, the first shard's lines first. Raises UsageError for
    overlaps, gaps and a mixture of judges, prompts or sources.
    """
    shards = sorted(_without_members([_part(path) for path in parts]), key=lambda part: part.shard.number)
    _check_shards(shards)
    # A shard without any group does not tell how the others were made.
    full = [part for part in shards if not jsonl.is_empty(part.path)] or shards
    for name in HOW:
        _check_equal({part.path: part.facts for part in full}, name)
    # Places in a sidecar are relative to it, and the merged file may lie in another folder.
    first = jsonl.restore_places(full[0].path)
    kind = next((KINDS[name] for name in KINDS if name in first), None)
    if kind is None:
        raise UsageError(f"{shards[0].path}: expected what critic judge or critic infer made with --shard")
    record, counted, summarise = kind
    jsonl.write(out, _lines(shards, record, counted))
    whole = summarise((line for _, line in jsonl.read(out, record)), out)
    facts = {name: first[name] for name in (*HOW, *ELSEWHERE) if name in first}
    for name in ("not_judged", "speed"):
        facts[name] = sum((Counter(part.facts.get(name)) for part in shards), Counter[str]())
    # Of parts that ran at the same time, these are the minutes of all machines together.
    facts |= {name: sum(part.facts.get(name, 0) for part in shards) for name in ("seconds", "seconds_for")}
    facts |= {"memory_mib": max(part.facts.get("memory_mib", 0) for part in shards)}
    facts |= {"server_lacks": [], **join_facts([part.facts for part in shards])}
    answered_by = facts.get("answered_by", [])
    print(f"{len(shards)} shards" + (f", answered by {', '.join(answered_by)}" if len(answered_by) > 1 else ""))
    return finish(RunOptions(out=out, max_failed=max_failed), whole, {**facts, "shards": len(shards)})


def merge_folds(parts: Sequence[Path], out: Path, data: Path, max_failed: float) -> int:
    """Merge the judgments of all folds into `out`, and name the folds' judges in its sidecar. Return the exit code.

    `parts`: one file of judgments per fold, in any order.
    `data`: the folder of the folds' rows (data/human_scores.py --folds).
    `max_failed`: as in RunOptions.

    Raises UsageError unless each fold's rows were judged once, by a judge trained on the other folds, and all folds
    with the same prompt and settings.
    """
    judged = _find_folds({path: _read_facts(path) for path in parts}, data)
    first, how = judged[0][1], ("prompt", "max_tokens", "images", "recalibration")
    for name in how:
        _check_equal(dict(judged), name)
    judges = [facts["judge"] for _, facts in judged]
    # All later stages take one judge a file.
    name = f"cross-fitted@{hash_value(judges, 8)}"
    lines = (line for path, _ in judged for _, line in jsonl.read(path, Judgment))
    jsonl.write(out, (replace(line, setup=replace(line.setup, judge=name)) for line in lines))
    whole = sum_judgments((line for _, line in jsonl.read(out, Judgment)), out, unit="row")
    kept = {name: first.get(name) for name in (*how, "learned")} | join_facts([facts for _, facts in judged])
    print(f"{len(judges)} folds: no row was judged by a judge that learned from its question")
    return finish(RunOptions(out=out, max_failed=max_failed), whole, {**kept, "judge": name, "cross_fitted": judges})


def _find_folds(parts: Mapping[Path, dict[str, Any]], data: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return the files of judgments, each with the facts in its sidecar, in the order of the folds in `data`.

    `parts`: file -> facts. A file belongs to the fold whose rows have the hash that the facts give for the judged rows.

    Raises UsageError if a file judged other rows, if its judge was trained on other rows, or if a fold has no file.
    """
    with located(data / "splits.json", OSError, LookupError, TypeError, ValueError):
        folds = [fold["sha256"] for fold in json.loads((data / "splits.json").read_text("utf-8"))["folds"]]
    by_rows = {fold["internal"]: number for number, fold in enumerate(folds, 1)}
    every = {digest for fold in folds for digest in fold.values()}
    found = dict[int, tuple[Path, dict[str, Any]]]()
    for path, facts in parts.items():
        number = by_rows.get((facts.get("responses") or {}).get("sha256"), 0)
        if not number or number in found:
            again = f" that {found[number][0]} does not hold already" if number else ""
            raise UsageError(f"{path}: its rows are not the internal.jsonl of a fold in {data}{again}")
        # Any other of these files holds questions that are asked here.
        if {*(facts.get("trained_on") or ())} & every != {folds[number - 1]["train"]}:
            raise UsageError(f"{path}: its judge was not trained on fold-{number}/train.jsonl in {data} alone")
        found[number] = path, facts
    if missing := [str(number) for number in by_rows.values() if number not in found]:
        raise UsageError(f"no file with the judgments of fold {', '.join(missing)}")
    return [found[number] for number in sorted(found)]


def _check_equal(facts: Mapping[Path, dict[str, Any]], name: str) -> None:
    """Raise UsageError if sidecars differ in the fact `name`; only file paths in it may differ.

    `facts` maps each file to the content of its sidecar.
    """
    values = {path: _wherever(each.get(name)) for path, each in facts.items()}
    then = next(iter(values.values()))
    for path, now in values.items():
        if now != then:
            raise UsageError(f"{path}: made with {name} {quoted(now)}, the others with {quoted(then)}")


def _part(path: Path) -> ShardFile:
    """Read the sidecar of a shard's file. Raises UsageError if the file is unfinished or was made without --shard."""
    facts = _read_facts(path)
    shard = Shard.read(facts.get("shard"))
    if shard is None:
        raise UsageError(f"{path}: made without --shard")
    return ShardFile(path, shard, facts)


def _read_facts(path: Path) -> dict[str, Any]:
    """Return what the sidecar of a finished file says. Raises UsageError if there is none."""
    facts = jsonl.facts(path)
    if not path.is_file() or not facts:
        raise UsageError(f"{path}: not finished: no {jsonl.sidecar(path).name}; run its command again")
    return facts


def _without_members(shards: Sequence[ShardFile]) -> list[ShardFile]:
    """Drop the files of a panel's members, which a file pattern may have matched beside the panel's own, and print how
    many."""
    members = {Path(member["file"]).name for part in shards for member in part.facts.get("members") or []}
    kept = [part for part in shards if part.path.name not in members]
    if len(kept) < len(shards):
        notify(f"left out {len(shards) - len(kept)} files of a panel's members: the panel's are given")
    return kept


def _check_shards(shards: Sequence[ShardFile]) -> None:
    """Raise UsageError if the files are not exactly one for each shard of one run."""
    count, by_number = shards[0].shard.count, dict[int, Path]()
    for part in shards:
        if part.shard.count != count:
            raise UsageError(f"{part.path}: shard {part.shard}, but {shards[0].path} is shard {shards[0].shard}")
        if part.shard.number in by_number:
            raise UsageError(f"shard {part.shard} is there twice: {by_number[part.shard.number]} and {part.path}")
        by_number[part.shard.number] = part.path
    if missing := [str(Shard(number, count)) for number in range(1, count + 1) if number not in by_number]:
        more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
        raise UsageError(f"no file of shard {', '.join(missing[:10])}{more}")


def _lines(shards: Sequence[ShardFile], record: type[Any], counted: str) -> Iterator[Raw]:
    """Yield the lines of all files unchanged; only one file's keys are in memory at a time.

    `counted` is the key in the sidecars for the number of records. Raises UsageError for an invalid or repeated line,
    one whose group belongs to another shard, or a wrong number of lines.
    """
    decode = jsonl.build_decoder(record)
    for part in shards:
        # Groups do not cross shards, so that a key can be doubled only within a file.
        keys = set[Hashable]()
        for number, line in jsonl.read_lines(part.path) if not jsonl.is_empty(part.path) else ():
            with located(f"{part.path}:{number}", ValueError):
                row = decode(line)
            group = row.conversation.group
            if (right := part.shard.of(group)) != part.shard:
                raise UsageError(
                    f"{part.path}:{number}: group {quoted(group)} belongs to shard {right}, not {part.shard}"
                )
            if row.key in keys:
                raise UsageError(f"{part.path}:{number}: {quoted(row.key)} is there twice")
            keys.add(row.key)
            yield Raw(line.strip())
        if len(keys) != (expected := part.facts.get(counted)):
            raise UsageError(f"{part.path}: {len(keys)} {counted}, its sidecar says {expected}; run it again")


def _wherever(value: Any) -> Any:
    """Return a fact without the file paths in it, which may differ between machines."""
    if isinstance(value, list):
        return [_wherever(item) for item in value]
    return {name: item for name, item in value.items() if name != "file"} if isinstance(value, dict) else value


def main(
    parts: list[Path],
    out: Annotated[Path, typer.Option()],
    cross_fit: Annotated[Path | None, typer.Option(metavar="DATA")] = None,
    max_failed: options.MaxFailed = options.MAX_FAILED,
) -> int:
    """Merge the files that critic judge or critic infer made with --shard.

    Overlaps, gaps and a mixture of judges, prompts or sources are refused, naming the file. The merged file has the
    same lines as a run without --shard, in the order of the shards. With --cross-fit the files are the judgments of all
    folds, each by the judge that the other folds' rows trained; together they are one sample, for one audit.
    \f
    - parts: The files of all shards, or of all folds, in any order.
    - out: Output file (.jsonl or .jsonl.gz).
    - cross_fit: Folder of human_scores.py --folds; the files are its folds' judgments.
    """
    if jsonl.suffix(out) != ".jsonl":
        raise UsageError(f"--out {out}: JSON lines are written; give a name that ends in .jsonl or .jsonl.gz")
    return merge_folds(parts, out, cross_fit, max_failed) if cross_fit else merge(parts, out, max_failed)
