"""critic merge: the files of all shards of one run -> the file of the whole.

critic judge rows.jsonl --shard 3/64 --out part.3.jsonl …    # one of 64, on any machine; killed, it goes on
critic merge part.*.jsonl --out judged.jsonl
"""

import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Struct

from critic import jsonl
from critic.errors import UsageError
from critic.records import Judgment, ModelTurn
from critic.stages import judge_samples, options
from critic.stages.run import RunOptions, RunSummary, Shard, failed, finish

HOW = (
    *("responses", "replies", "conversations", "benchmark", "protocols", "judgings", "against", "system", "sampling"),
    *("judge", "aggregate", "model", "processors", "prompt", "setup", "max_tokens"),
)
"""What a sidecar says of how a run was made: the same of all shards."""

ALIKE = ("data_root", "images")
"""What may be another on each machine: said of the whole where it is not. A number by such a name is a count."""

OF_ONE = ("critic", "finished", "shard", "server", "concurrency", "members")
"""What it says of one shard alone. All else is counted, and added up."""


class Kind(Struct, frozen=True):
    """What tells the records of a file apart and how each was made. `counted` is the sidecar's name for how many."""

    record: Any
    counted: str
    key: Callable[[Any], Hashable]
    origin: tuple[str, ...]


KINDS = {
    "responses": Kind(Judgment, "rows", judge_samples.key, ("prompt", "prompt_hash", "setup")),
    "replies": Kind(Judgment, "verdicts", judge_samples.key, ("setup",)),
    "conversations": Kind(
        ModelTurn, "turns", lambda one: (one.conversation.id, one.condition, one.turn), ("system", "sampling")
    ),
}
"""What a run was made of, as its sidecar names it -> its records."""


class ShardFile(Struct, frozen=True):
    """A shard's file and what its sidecar says."""

    path: Path
    shard: Shard
    facts: dict[str, Any]


def main(
    parts: Annotated[list[Path], typer.Argument(help="The files of all shards, in any order.")],
    out: Annotated[Path, typer.Option(help="Where the whole goes (.jsonl, .jsonl.gz).")],
    max_failed: options.MaxFailed = options.MAX_FAILED,
) -> int:
    """Put together what critic judge or infer made with --shard. Overlaps, gaps and a mixture of judges, prompts or
    sources are refused by name. The whole has the lines of a run without --shard, those of the first shard first."""
    found = sorted(_without_members([_part(path) for path in parts]), key=lambda one: one.shard.number)
    _check_shards(found)
    full = [part for part in found if not jsonl.is_empty(part.path)]
    first = (full or found)[0].facts
    _check_alike(full, first)
    kind = next((KINDS[name] for name in KINDS if name in first), None)
    if kind is None:
        raise UsageError(f"{found[0].path}: expected what critic judge or critic infer made with --shard")
    count = jsonl.write(out, _lines(found, kind))
    facts: dict[str, Any] = {name: first[name] for name in HOW if name in first}
    for name in ALIKE:
        if not _counts(name, first.get(name)) and all(one.facts.get(name) == first.get(name) for one in full):
            facts |= {name: first[name]} if name in first else {}
    added = dict[str, Any]()
    for part in found:
        added = _added(added, {name: value for name, value in part.facts.items() if _counts(name, value)})
    added["peak_memory_mib"] = max(part.facts.get("peak_memory_mib", 0) for part in found)
    failures = Counter[str](added.get("failed", {}))
    lines = [f"{out}: {count} {kind.counted} of {len(found)} shards, {failed(failures)}"]
    summary = RunSummary(count=count, failures=failures, facts={**added, "shards": len(found)}, lines=lines)
    run = RunOptions(out=out, concurrency=None, max_failed=max_failed, retry_failed=False)
    return finish(run, summary, facts, "failed; --retry-failed asks again, shard by shard")


def _part(path: Path) -> ShardFile:
    """Raises UsageError for a file that is not whole, or no shard."""
    facts = jsonl.facts(path)
    if not path.is_file() or not facts:
        raise UsageError(f"{path}: not finished: no {jsonl.sidecar(path).name}; run its command again")
    shard = Shard.read(facts.get("shard"))
    if shard is None:
        raise UsageError(f"{path}: made without --shard")
    return ShardFile(path, shard, facts)


def _without_members(found: Sequence[ShardFile]) -> list[ShardFile]:
    """Without the files of a panel's members, which a pattern that fits the panel's fits too."""
    members = {
        (Path(one["file"]).name, part.shard, one["judge"]) for part in found for one in part.facts.get("members") or []
    }
    left_out = [part for part in found if (part.path.name, part.shard, part.facts.get("judge")) in members]
    if left_out:
        print(f"left out {len(left_out)} files of a panel's members: the panel's are given", file=sys.stderr)
    return [part for part in found if part not in left_out]


def _check_alike(parts: Sequence[ShardFile], first: Mapping[str, Any]) -> None:
    """Raises UsageError for shards that were made in two ways."""
    for part in parts:
        for name in HOW:
            if (now := wherever(part.facts.get(name))) != (then := wherever(first.get(name))):
                raise UsageError(f"{part.path}: made with {name} {now!r}, the others with {then!r}")


def _check_shards(found: Sequence[ShardFile]) -> None:
    """Raises UsageError for overlaps and gaps."""
    count, by_number = found[0].shard.count, dict[int, Path]()
    for part in found:
        if part.shard.count != count:
            raise UsageError(f"{part.path}: shard {part.shard}, but {found[0].path} is shard {found[0].shard}")
        if part.shard.number in by_number:
            raise UsageError(f"shard {part.shard} is there twice: {by_number[part.shard.number]} and {part.path}")
        by_number[part.shard.number] = part.path
    if missing := [str(Shard(number, count)) for number in range(1, count + 1) if number not in by_number]:
        more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
        raise UsageError(f"no file of shard {', '.join(missing[:10])}{more}")


def _lines(parts: Sequence[ShardFile], kind: Kind) -> Iterator[msgspec.Raw]:
    """The lines of all files as they stand there. Only one file's keys are in memory. Raises UsageError for one that
    is there twice, or in another shard than its group, or was made otherwise than the first."""
    decode, origin = jsonl.decoder(kind.record), dict[str, Any]()
    for part in parts:
        keys, expected = set[Hashable](), part.facts.get(kind.counted)
        for number, line in jsonl.lines(part.path) if not jsonl.is_empty(part.path) else ():
            place = f"{part.path}:{number}"
            try:
                one = decode(line)
            except ValueError as error:
                raise UsageError(f"{place}: {error}") from None
            origin = origin or {name: getattr(one, name) for name in kind.origin}
            for name, then in origin.items():
                if (now := getattr(one, name)) != then:
                    raise UsageError(f"{place}: made with {name} {now!r}, the first line with {then!r}")
            if (right := part.shard.of(group := one.conversation.group)) != part.shard:
                raise UsageError(f"{place}: group {group!r} belongs to shard {right}, not {part.shard}")
            if (key := kind.key(one)) in keys:
                raise UsageError(f"{place}: {key!r} is there twice")
            keys.add(key)
            yield msgspec.Raw(line.strip())
        if len(keys) != expected:
            raise UsageError(f"{part.path}: {len(keys)} {kind.counted}, its sidecar says {expected}; run it again")


def wherever(found: Any) -> Any:
    """What a sidecar says without where that was: the same file may be elsewhere on another machine."""
    if isinstance(found, list):
        return [wherever(one) for one in found]
    return {name: one for name, one in found.items() if name != "file"} if isinstance(found, dict) else found


def _counts(name: str, value: Any) -> bool:
    return isinstance(value, int) if name in ALIKE else name not in (*HOW, *OF_ONE)


def _added(one: Any, other: Any) -> Any:
    """Counts added up, those of tables name by name."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: _added(one.get(name), other.get(name)) for name in one | other}
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one + other
    return other if one is None else one
