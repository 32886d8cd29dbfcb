"""Run a stage that asks a model. If a run is killed at any byte, the same command resumes where it stopped."""

import asyncio
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Generic, Never, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from tqdm import tqdm

from critic import jsonl, tables
from critic.backends import Backend
from critic.backends.middleware import list_unsupported, walk_layers
from critic.backends.vllm import VllmBackend
from critic.certificate import FittedMap
from critic.errors import UsageError, hash_value, located, notify, quoted
from critic.stages.totals import Price, RunSummary, describe_speed, measure_gpus, measure_memory

T = TypeVar("T")
Item = TypeVar("Item")
Record = TypeVar("Record", bound=Any)
"""A record with a key, a failure and its detail: Judgment, ModelTurn, AskedRow."""

LOG_PAUSE = 60.0
"""Seconds between two updates of the progress bar if standard error is not a terminal."""


class Shard(Struct, frozen=True):
    """Part number `number` (from 1) of the `count` parts of a run. A hash of a group's name decides its part.

    >>> Shard(2, 3).of("conversation 7")
    Shard(number=1, count=3)

    A group's part is the same on every machine and in every version, because a run may be resumed elsewhere. Parts have
    about equal numbers of groups:

    >>> [Shard(1, 64).of(name).number for name in ("a", "b", "图")]
    [11, 11, 39]
    >>> counts = Counter(Shard(1, 64).of(f"group {number}").number for number in range(64_000))
    >>> sorted(counts) == [*range(1, 65)] and 850 < min(counts.values()) and max(counts.values()) < 1150
    True
    """

    number: int
    count: int

    @classmethod
    def read(cls, words: str | None) -> "Shard | None":
        """Parse the value K/N of --shard; None if it is not given. Raises UsageError unless K is in 1..N."""
        if words is None:
            return None
        number, _, count = words.partition("/")
        if number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count):
            return cls(int(number), int(count))
        raise UsageError(f"--shard {words}: expected K/N, such as 3/64, from 1/64 to 64/64")

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def of(self, group: str) -> "Shard":
        """Return the part that a group belongs to, for the same number of parts."""
        # A hash is the same on every machine, whatever else the file holds.
        return Shard(int(hash_value(group, 16), 16) % self.count + 1, self.count)


class RunOptions(Struct, frozen=True, kw_only=True):
    """How a stage is run.

    `out`: the file of records.
    `max_failed`: share of failures (0..1) above which the exit code is 3.
    `concurrency`: most requests at a time; None for as many as keep the backend busy.
    `retry_failed`: True to repeat requests whose records in the file are failures.
    `certificate`: certificate of the only judge that is accepted, or None.
    `recalibration`: the map from the judge's ratings to people's scale, or None.
    `shard`: the part of the groups to work on; None for all.
    `prices`: model or judge name -> price.
    """

    out: Path
    max_failed: float
    concurrency: int | None = None
    retry_failed: bool = False
    certificate: Path | None = None
    recalibration: FittedMap | None = None
    shard: Shard | None = None
    prices: Mapping[str, Price] = {}

    def takes(self, group: str) -> bool:
        """Return True if a group belongs to the shard of this run."""
        return self.shard is None or self.shard.of(group) == self.shard


class Stage(ABC, Generic[Item, Record]):
    """A stage that works on items by asking a model, and keeps the resulting records in one file.

    `wanted` holds the keys of all records, each with its item. `run` loads the records that the file already has, makes
    the others concurrently, writes each as soon as it is made, and finally writes the sidecar and prints the totals.
    """

    name: ClassVar[str]  # in front of the progress bar
    unit: ClassVar[str]  # what the bar counts: what one call of `keep` gets
    counted: ClassVar[str]  # "12 judged before", and the sidecar's judged_in_this_run
    facts: dict[str, Any]  # what the sidecar says of how the records were made

    def __init__(self, options: RunOptions, record: type[Record], backend: Backend, wanted: Mapping[Any, Any]) -> None:
        self.options, self.out, self.record, self.backend = options, options.out, record, backend
        self.concurrency = options.concurrency or backend.max_concurrency
        self.wanted, self.done = wanted, dict[Hashable, Record]()
        self._lost, self.without, self.gpus, self.speed = 0, set[str](), list[int](), Counter[str]()
        # Who answered according to the replies of this run and of the file, and according to the certificate.
        self.answered_by, self.certified_by = dict[str, None](), list[str]()

    @abstractmethod
    def problem(self, record: Record) -> str | None:
        """Return an error message if a record in the file does not belong to this run, else None."""

    def should_retry(self, record: Record) -> bool:
        """Return True if --retry-failed removes a record and makes it again."""
        return bool(record.failure is not None)

    def load_existing(self, record: Record) -> None:
        """Register a record that is already in the file. Raises UsageError if the file has its key twice."""
        self.note_answered(getattr(record, "answered_by", ()))
        if self.done.setdefault(record.key, record) is not record:
            # Both were paid for, and nobody can tell which of the two counts.
            raise UsageError(
                f"{self.out}: {quoted(record.key)} is there twice, as where two runs wrote at once; "
                "take one of the two out, or choose another --out"
            )

    def items(self) -> Iterable[Item]:
        """Return the items to work on: each that lacks a record, once. The result is iterated only once."""
        return {id(item): item for key, item in self.wanted.items() if key not in self.done}.values()

    @abstractmethod
    async def work(self, item: Item, keep: Callable[..., None]) -> None:
        """Work on one item, and write its records with `keep(record, …)`, one call per unit of the progress bar."""

    @abstractmethod
    def summary(self, records: Iterable[Record]) -> RunSummary:
        """Return the totals of all records in the file."""

    async def nothing_left(self) -> None:
        """Check a file that already has all records. Raises UsageError if one was made from other inputs than now."""
        for item in self.items():
            await self.work(item, lambda *_: None)

    def run(self) -> int:
        """Run the stage and return the exit code: 0, or 3 if too many records are failures.

        Raises UsageError for a problem that the user can fix, such as a file that another run has made.
        """
        with growing(self.options.out) as self.out:
            self.options = replace(self.options, out=self.out)
            # Records that are tried again take what the sidecar says of them with them: it is read first.
            earlier = jsonl.facts(self.out)
            self.resume()
            left = len(self.wanted) - len(self.done)
            if self.done:
                notify(f"{self.out}: {len(self.done)} {self.counted} before, {left} to go")
            if not self.wanted:
                notify(f"no group falls into shard {self.options.shard}")
                jsonl.write(self.out, [])
            start = time.monotonic()
            asyncio.run(self.ask(left) if left else self.nothing_left())
            facts = {
                **self.facts,
                "retries": self.backend.retries,
                "concurrency": self.concurrency,
                # A run that is resumed, or tried again, goes on counting; a killed one leaves no count.
                "seconds": round(time.monotonic() - start + earlier.get("seconds", 0), 1),
                "seconds_for": left + earlier.get("seconds_for", 0),
                "speed": Counter(earlier.get("speed", {})) + self.speed,
                f"{self.counted}_in_this_run": left,
                "memory_mib": measure_memory(),
                "gpus_mib": self.gpus,
            }
            if without := {*self.without, *list_unsupported(self.backend), *earlier.get("server_lacks", ())}:
                facts["server_lacks"] = sorted(without)
            if self.answered_by:
                facts["answered_by"] = list(self.answered_by)
            summary = self.summary(known(self.out, self.record))
            if waiting := summary.failures["budget"]:
                whose = "the budget is spent, of this run or of critic infer; the same command goes on with them"
                summary.lines.append(f"{waiting} {self.unit}s were not asked for: {whose}")
            return finish(self.options, summary, facts)

    def resume(self) -> None:
        """Load the records of an earlier run.

        Failures to be repeated, and records that lacked budget, are removed from the file.
        """
        failed = False
        # All records are checked before any is taken out: a file of another run stays as it is.
        for record in known(self.out, self.record, self.problem):
            if self._goes(record):
                failed = True
            else:
                self.load_existing(record)
        if failed:
            jsonl.write(self.out, (record for record in known(self.out, self.record) if not self._goes(record)))

    def _goes(self, record: Record) -> bool:
        """Return True if a record must be removed from the file and requested again."""
        # No budget was left for it, or for another that it follows from.
        waits = record.failure == "budget" or (record.detail or "").endswith("failed: budget")
        return waits or (self.options.retry_failed and self.should_retry(record))

    async def ask(self, left: int) -> None:
        """Work on the items, `concurrency` at a time; `left` is the number of records to make, for the progress bar."""
        waiting, failed = iter(self.items()), 0
        with jsonl.Appender(self.out) as file, progress(self.name, self.unit, left) as bar:
            # An engine says before it starts if compiled kernels do not pay for so few.
            for source in walk_layers(self.backend):
                if isinstance(source, VllmBackend):
                    source.rows = left
            async with self.backend as backend:
                # An engine says how much keeps it busy once it runs.
                self.concurrency = self.options.concurrency or backend.max_concurrency
                # One item may ask for much at once: requests in flight are bounded here, not by the number of items.
                self._gate = asyncio.Semaphore(self.concurrency)

                def keep(*records: Record) -> None:
                    nonlocal failed
                    # Rate and time left count from the first reply: until then an engine starts.
                    if not bar.n:
                        bar.unpause()
                    for record in records:
                        file.append(record)
                        failed += record.failure is not None
                    bar.set_postfix(failed=failed, retries=backend.retries, refresh=False)
                    bar.update()

                async def worker() -> None:
                    for item in waiting:
                        await self.work(item, keep)

                # One backend may serve several stages, and a server other clients.
                measure = getattr(backend, "measure", Counter[str])
                before = await asyncio.to_thread(measure)
                await gather_cancel_on_error(worker() for _ in range(min(self.concurrency, left)))
                self.speed = await asyncio.to_thread(measure) - before
                # While an engine of this process runs: GPUs beside a server elsewhere are others' business.
                if any(isinstance(source, VllmBackend) for source in walk_layers(backend)):
                    self.gpus = measure_gpus()

    def note_answered(self, names: Iterable[str]) -> None:
        """Record the model names that replies state, and print a line if one is new: the provider may have changed the
        model.

        Raises UsageError instead of printing if the judge must match a certificate.
        """
        served = self.backend.served.name
        for name in names:
            # The name of a judge that critic serves contains a hash of its weights (NAME@HASH).
            others = [served] if "@" in served and "@" in name and name.partition(" (")[0] != served else []
            before = ", ".join(dict.fromkeys([*others, *self.certified_by, *self.answered_by]))
            if not name or name in self.answered_by:
                continue
            if before and name not in self.certified_by:
                changed = f"{self.backend.endpoint} answered as {before} before, now as {name}"
                if path := self.options.certificate:
                    raise UsageError(f"--certificate {path}: {changed}: another judge under the same name; audit again")
                notify(f"{changed}: another model under the same name, {self.out} has both")
            self.answered_by[name] = None

    def note(self, failure: str | None, detail: str | None = None) -> None:
        """Record the outcome of a request; `failure` is None for a success.

        Raises UsageError if so many requests in a row got a server error that the server seems to be down.
        """
        self._lost = self._lost + 1 if failure == "server_error" else 0
        # One bad moment loses all calls in flight, which must not end the run.
        if self._lost >= 2 * self.concurrency:
            raise UsageError(
                f"{self.backend.endpoint} failed {self._lost} {self.unit}s in a row ({detail}); "
                f"see to the server, then run again with --retry-failed"
            )


def check_plain(path: Path) -> Path:
    """Return the path of a file to append to. Raises UsageError if its suffix is .gz, .zst or .parquet."""
    if path.suffix in (".gz", ".zst", ".parquet"):
        raise UsageError(
            f"{path}: --out grows line by line, so that a killed run can go on: give a name that ends in .jsonl, and "
            "pack the file when it is complete"
        )
    return path


@contextmanager
def growing(path: Path) -> Iterator[Path]:
    """Yield the file that `path` leads to (through symbolic links), locked against other processes.

    Raises UsageError as `check_plain` and `jsonl.lock_file` do, and if the file was made with --gpus.
    """
    path = check_plain(jsonl.resolve_links(check_plain(path)))
    if any((parts := path.with_name(f"{path.name}.parts")).glob("*.jsonl")):
        raise UsageError(f"{path}: made with --gpus, whose records are in {parts}: go on with --gpus")
    with jsonl.lock_file(path):
        yield path


def progress(name: str, unit: str, total: int) -> "tqdm[Never]":
    """Return a progress bar on standard error; if that is not a terminal, it is updated once a minute.

    `name` stands in front of it, and `unit` is what it counts.
    """
    pause, delay = (0.1, 0.0) if sys.stderr.isatty() else (LOG_PAUSE, LOG_PAUSE)
    return tqdm(total=total, desc=name, unit=unit, mininterval=pause, maxinterval=max(pause, 10.0), delay=delay)


def describe_source(path: Path) -> dict[str, str]:
    """Return the facts about an input for a sidecar: its path, and the SHA-256 of the file or of all files in the
    folder."""
    if not path.is_dir():
        return {"file": str(path), "sha256": jsonl.sha256(path)}
    inside = [(file.name, jsonl.sha256(file)) for file in tables.list_files(path)]
    return {"file": str(path), "sha256": hash_value(inside)}


def known(out: Path, record: type[Record], check: Callable[[Record], str | None] = lambda _: None) -> Iterator[Record]:
    """Yield the records in the file `out`, after removing an incomplete last line; none if there is no file.

    `record`: their type. `check`: returns an error message for a record that must not be there, else None.

    Raises UsageError with the message of `check`, or if the file does not begin with a record.
    """
    if not out.is_file():
        return
    with out.open("rb") as file:
        # An editor may have put a byte-order mark there.
        first = file.readline().removeprefix(b"\xef\xbb\xbf")
    # A file of something else stays as it is: it is checked before its last line is repaired.
    with located(f"--out {out}: no judgments or replies of an earlier run; choose another", ValueError):
        if first.strip() and first.endswith(b"\n"):
            jsonl.build_decoder(record)(first)
    jsonl.repair(out)
    for number, line in jsonl.read(out, record) if out.stat().st_size else ():
        if (wrong := check(line)) is not None:
            raise UsageError(f"{out}:{number}: {wrong}")
        yield line


def join_facts(parts: Collection[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Merge the lists in several sidecars, and return those that are not empty, by key.

    They are: what servers do not support, the model names that replies state, and the hashes of the data that judges
    were calibrated and trained on. `parts`: the content of each sidecar.
    """
    joined = dict[str, list[str]]()
    for name in ("server_lacks", "answered_by", "calibrated_on", "trained_on"):
        if values := {value for facts in parts for value in facts.get(name) or ()}:
            joined[name] = sorted(values)
    return joined


def finish(options: RunOptions, summary: RunSummary, facts: dict[str, Any]) -> int:
    """Write the sidecar of a complete file, print the totals, and return the exit code: 0, or 3 if too many records
    failed.

    `summary`: the totals of the records. `facts`: further content of the sidecar.
    """
    facts = {**facts, **summary.facts}
    facts |= {"shard": str(options.shard)} if options.shard else {}
    lines = [*summary.lines, *describe_speed(facts)]
    # Each member of a panel has said its own.
    if options.prices and "tokens" in facts and "members" not in facts:
        name = str(facts.get("judge") or facts.get("system"))
        price = options.prices.get(name)
        facts["cost"] = None if price is None else {"amount": price.of(facts["tokens"]), "currency": price.currency}
        lines.append("cost: {amount:.4f} {currency}".format(**facts["cost"]) if price else f"cost: no price of {name}")
    jsonl.write_sidecar(options.out, facts)
    for text in lines:
        print(text)
    if summary.failures.total() > options.max_failed * summary.count:
        notify(f"more than {options.max_failed:.0%} failed; --retry-failed asks again")
        return 3
    return 0


async def gather_cancel_on_error(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines concurrently. The first error cancels the others and is raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def once(tasks: dict[str, asyncio.Task[T]], key: str, make: Callable[..., Coroutine[Any, Any, T]], *of: Any) -> T:
    """Await `make(*of)` and return its result; calls with the same `key` share one task, which `tasks` holds."""
    if key not in tasks:
        tasks[key] = asyncio.create_task(make(*of))
    return await tasks[key]
