"""Wrappers around a backend: a cache of replies, and a meter that counts tokens and keeps a budget."""

import hashlib
import sqlite3
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from msgspec import Struct, msgpack
from msgspec.structs import replace

from critic.backends import Backend, ChatMessage, ModelInfo, Reply, Request
from critic.errors import Refused, UsageError, located, notify


class Layer:
    """A backend that wraps the backend `inner`. What a subclass does not override is delegated to `inner`."""

    endpoint: str
    max_concurrency: int
    retries: int
    served: ModelInfo
    sees: Callable[[], bool | None]
    count_tokens: Callable[[Sequence[ChatMessage]], int]
    count_prefix_hits: Callable[[], Counter[str]]

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def __aenter__(self) -> Self:
        await self.inner.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.inner.__aexit__(*error)

    async def chat(self, request: Request) -> Reply:
        return await self.inner.chat(request)


def walk_layers(backend: Backend) -> Iterator[Backend]:
    """Yield a backend and, if it is a Layer, the backends that it wraps, from the outermost to the innermost."""
    yield backend
    while isinstance(backend, Layer):
        backend = backend.inner
        yield backend


def list_unsupported(backend: Backend) -> set[str]:
    """Return the names of the request fields that the servers of a backend have refused so far.

    Later requests omit these fields (`OpenAIBackend.unsupported`).
    """
    *_, inner = walk_layers(backend)
    sources = [inner, *(endpoint.backend for endpoint in getattr(inner, "endpoints", ()))]
    return {name for source in sources for name in getattr(source, "unsupported", ())}


class Cached(Layer):
    """A cache of replies in the SQLite file `path`, keyed by model name (NAME@HASH), processor hash and request.

    A cached reply has 0 `attempts`. Set `fresh` to ignore cached replies and overwrite them. Raises UsageError if the
    file cannot be used.
    """

    def __init__(self, inner: Backend, path: Path, fresh: bool = False) -> None:
        super().__init__(inner)
        self.path, self.fresh = path, fresh
        self._file: sqlite3.Connection
        name = inner.served.name
        # Otherwise replies of one model would be returned for another model with the same name.
        if "@" not in name:
            problem = f"{name} has no mark of its weights (NAME@HASH): replies are cached by its name only"
            notify(f"--cache {path}: {problem}")

    async def __aenter__(self) -> Self:
        with located(f"--cache {self.path}: expected an SQLite file of ours", sqlite3.Error, OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(self.path, timeout=60, isolation_level=None)
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = NORMAL")
            columns = "name BLOB PRIMARY KEY, reply BLOB"
            self._file.execute(f"CREATE TABLE IF NOT EXISTS replies ({columns}) WITHOUT ROWID")
        return await super().__aenter__()

    async def __aexit__(self, *error: object) -> None:
        self._file.close()
        await super().__aexit__(*error)

    async def chat(self, request: Request) -> Reply:
        """Return the cached reply, or request one and store it.

        Raises Refused and Transient as the wrapped backend does; failures are not cached.
        """
        key = [self.served.name, self.served.processor, request]
        name = hashlib.sha256(msgpack.encode(key, order="deterministic")).digest()
        with located(f"--cache {self.path}: run the same command again to go on", sqlite3.Error, OSError):
            if not self.fresh:
                row = self._file.execute("SELECT reply FROM replies WHERE name = ?", (name,)).fetchone()
                if row is not None:
                    return replace(msgpack.decode(zlib.decompress(row[0]), type=Reply), attempts=0)
            reply = await self.inner.chat(request)
            # The fastest level: the reply is needed now, and most of it compresses well.
            packed = zlib.compress(msgpack.encode(reply), 1)
            self._file.execute("INSERT OR REPLACE INTO replies VALUES (?, ?)", (name, packed))
            return reply


class Budget(Struct, kw_only=True):
    """The token budget of a run, shared by all judges of a panel.

    `limit`: most tokens to use, prompt and completion together, including cached prompt tokens. Requests that are in
        flight when the limit is reached may exceed it.
    `used`: tokens used so far.
    `uncounted`: the endpoint of a reply that had no token counts, or None.
    """

    limit: int
    used: int = 0
    uncounted: str | None = None


class Metered(Layer):
    """A meter of tokens and time, which refuses requests once a `budget` is used up (None for no budget).

    `chat` raises Refused with the failure `budget` then. With a budget, it raises UsageError after a reply without
    token counts, because the budget cannot be kept.
    """

    def __init__(self, inner: Backend, budget: Budget | None) -> None:
        super().__init__(inner)
        self.budget, self._spent = budget, Counter[str]()
        self._in_flight, self._since = 0, 0.0

    def measure(self) -> Counter[str]:
        """Return totals over all requests so far. This call blocks as `Backend.count_prefix_hits` does.

        - tokens: tokens used, prompt and completion together.
        - waiting_ms: milliseconds during which at least one request was in flight, pauses between tries included.
        - queries, hits: the counters of vLLM's prefix cache.
        """
        return self._spent + self.inner.count_prefix_hits()

    async def chat(self, request: Request) -> Reply:
        if self.budget and self.budget.uncounted is not None:
            raise UsageError(f"--budget: {self.budget.uncounted} does not say how many tokens a reply took")
        if self.budget and self.budget.used >= self.budget.limit:
            raise Refused("budget", f"--budget {self.budget.limit}tokens is spent")
        self._since = self._since if self._in_flight else time.monotonic()
        self._in_flight += 1
        try:
            reply = await self.inner.chat(request)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._spent["waiting_ms"] += round(1000 * (time.monotonic() - self._since))
        tokens = reply.prompt_tokens + reply.completion_tokens
        self._spent["tokens"] += tokens
        if self.budget:
            self.budget.used += tokens
            self.budget.uncounted = self.budget.uncounted if reply.counted else self.endpoint
        return reply
