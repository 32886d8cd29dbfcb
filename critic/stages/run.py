"""One run for every stage that asks a model: killed at any byte, the same command goes on where it stopped."""

import asyncio
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct
from tqdm import tqdm

from critic import jsonl
from critic.backends import Backend
from critic.errors import UsageError

Item = TypeVar("Item")
Record = TypeVar("Record")


class RunOptions(Struct, frozen=True, kw_only=True):
    """How a stage is run, whatever it asks. `concurrency` None is what keeps the source of replies busy."""

    out: Path
    concurrency: int | None
    max_failed: float
    retry_failed: bool


class Tally(ABC, Generic[Record]):
    """What the records of a whole file add up to: `failures` by name, out of `count`."""

    def __init__(self) -> None:
        self.count = 0
        self.failures: Counter[str] = Counter()

    @abstractmethod
    def add(self, record: Record) -> None: ...

    def note(self, failure: str | None) -> None:
        """One more, and what it failed of."""
        self.count += 1
        if failure is not None:
            self.failures[failure] += 1

    def failed(self, word: str = "failed") -> str:
        return f"{self.failures.total()} {word}" + (f" ({listed(self.failures)})" if self.failures else "")

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """For the sidecar."""

    @abstractmethod
    def lines(self) -> Iterable[str]:
        """For whoever ran the stage."""


class Stage(ABC, Generic[Item, Record]):
    """A stage that works on items by asking a model, and keeps the records it gets in one file.

    `run` is the same for all of them: take note of what the file has, work on what is left side by side, keep each
    record as it comes, and only then write the sidecar, say what happened and give the exit code. What a stage adds is
    below: which records are its own, what is left, and how one item is worked on.
    """

    name: ClassVar[str]
    """In front of the progress bar."""
    unit: ClassVar[str]
    """What the bar counts: what one call of `keep` gets."""
    counted: ClassVar[str]
    """How what was there before is spoken of ("12 judged before"), and the sidecar's COUNTED_in_this_run."""
    too_many: ClassVar[str] = "failed; --retry-failed asks again"
    """Behind "more than 2%", where the exit code is 3."""

    def __init__(self, options: RunOptions, record: type[Record], backend: Backend) -> None:
        self.options, self.out, self.record, self.backend = options, options.out, record, backend
        self.concurrency = options.concurrency or backend.in_flight

    @abstractmethod
    def problem(self, record: Record) -> str | None:
        """Why a record that is in the file is none of this run's, and what to do about it."""

    @abstractmethod
    def failure(self, record: Record) -> str | None: ...

    @abstractmethod
    def know(self, record: Record) -> None:
        """Take note of a record that is in the file and stays there."""

    @abstractmethod
    def left(self) -> int:
        """How many units are not known."""

    @abstractmethod
    def items(self) -> Iterable[Item]:
        """What is to be worked on; gone through once, so it may be as long as it likes."""

    @abstractmethod
    async def work(self, item: Item, keep: Callable[..., None]) -> None:
        """Work on one item. `keep(record, …)` writes the records of one unit."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What the sidecar says of how the records were made."""

    @abstractmethod
    def tally(self) -> Tally[Record]: ...

    def nothing_left(self) -> None:
        """A last look at what is known, where nothing is asked."""

    always_opens: bool = False
    """Whether the source of replies is opened even where nothing is left."""

    async def afterwards(self) -> None:
        """What is done last with the source of replies, when all records are in the file."""

    def run(self) -> int:
        """The exit code: 3 when too many failed. Raises UsageError for what the caller has to mend."""
        before = self.resume()
        left = self.left()
        if before:
            print(f"{self.out}: {before} {self.counted} before, {left} to go", file=sys.stderr)
        start = time.monotonic()
        opens = bool(left or self.always_opens)
        if opens:
            asyncio.run(self.ask(left))
        else:
            self.nothing_left()
        facts = {
            **self.facts(),
            "retries": self.backend.retries,
            "seconds": round(time.monotonic() - start, 1),
            f"{self.counted}_in_this_run": left,
        }
        return finish(self.options, self.record, self.tally(), facts, opens, self.too_many)

    def resume(self) -> int:
        """Take note of the records that an earlier run left; how many stay. With `retry_failed` the failed ones go."""
        count, failed = 0, 0
        # All are looked at before any goes: a file of another run is left as it is.
        for record in known(self.out, self.record, self.problem):
            if self.options.retry_failed and self.failure(record) is not None:
                failed += 1
            else:
                self.know(record)
                count += 1
        if failed:
            jsonl.rewrite(self.out, self.record, lambda record: self.failure(record) is None)
        return count

    async def ask(self, left: int) -> None:
        """Work on the items, `concurrency` at a time; each record is in the file once it is known."""
        waiting, failures = iter(self.items()), Counter[str]()
        with jsonl.Appender(self.out) as file, tqdm(total=left, desc=self.name, unit=self.unit) as bar:
            async with self.backend as backend:

                def keep(*records: Record) -> None:
                    for record in records:
                        file.append(record)
                        if (failure := self.failure(record)) is not None:
                            failures[failure] += 1
                    bar.set_postfix(failed=failures.total(), retries=backend.retries, refresh=False)
                    bar.update()

                async def worker() -> None:
                    for item in waiting:
                        await self.work(item, keep)

                await side_by_side(worker() for _ in range(min(self.concurrency, left)))
                await self.afterwards()


def known(out: Path, record: type[Record], problem: Callable[[Record], str | None]) -> Iterator[Record]:
    """The records that an earlier run left in `out`; a torn last line is cut off. Raises UsageError for one that has a
    `problem`."""
    jsonl.repair(out)
    if not out.is_file() or out.stat().st_size == 0:
        return
    for number, line in jsonl.read(out, record):
        if (wrong := problem(line)) is not None:
            raise UsageError(f"{out}:{number}: {wrong}")
        yield line


def finish(
    options: RunOptions,
    record: type[Record],
    tally: Tally[Record],
    facts: dict[str, Any],
    changed: bool,
    too_many: str = Stage.too_many,
) -> int:
    """Write the sidecar of a file that is whole, say what happened, and give the exit code."""
    for _, line in jsonl.read(options.out, record):
        tally.add(line)
    if changed or not jsonl.sidecar(options.out).is_file():
        jsonl.write_sidecar(options.out, {**facts, **tally.facts()})
    for text in tally.lines():
        print(text)
    if tally.failures.total() > options.max_failed * tally.count:
        print(f"more than {options.max_failed:.0%} {too_many}", file=sys.stderr)
        return 3
    return 0


class Outage:
    """Ends a run whose server seems to be gone: after twice as many lost calls in a row as are under way at once, so
    that one bad moment, which loses all of those, does not."""

    def __init__(self, backend: Backend, concurrency: int, units: str) -> None:
        self._backend, self._most, self._units, self._lost = backend, 2 * concurrency, units, 0

    def note(self, failure: str | None, detail: str | None = None) -> None:
        """What a call came to. Raises UsageError when it is one lost call too many."""
        self._lost = self._lost + 1 if failure == "server_error" else 0
        if self._lost >= self._most:
            raise UsageError(
                f"{self._backend.place} failed {self._lost} {self._units} in a row ({detail}); "
                f"see to the server, then run again with --retry-failed"
            )


async def side_by_side(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run side by side; the first error ends the others."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())
