"""Ray: one model in many actors of a cluster, asked by the one process that writes the file.

An actor holds our own in-process backend and stands in the pool as a server does (critic/backends/pool.py): work goes
to whoever is free, what begins alike to one that has seen it, what fails to another; keys, resume, named failures,
cache, budget and status are those of every run. So ray.data is not needed. Its workers write the file, and go on from a
checkpoint that may write a row twice; and the requests of a conversation follow from replies. ray.llm pins a vLLM of
its own.

`pip install 'critic[ray]'` on every node, the model's folder at the same place on each.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from msgspec import Struct

from critic.backends import NO_ANSWER, Backend, ChatMessage, Reply, Request, Served
from critic.backends.layers import Layer
from critic.errors import Refused, Transient, UsageError, one_line

LATE = 30.0
"""Seconds, and as long again as the first took to start, until a replica that has not started joins later."""


class Failed(Struct, frozen=True):
    """What an actor says in place of a reply: `failure` is None where another try may help."""

    failure: Any
    message: str
    retry_after: float | None = None


class Started(Struct, frozen=True):
    """What an actor says of its backend."""

    served: Served
    sees: bool | None


class Worker:
    """What an actor runs: the backend that `make` gives, opened when it is first asked, and again after a restart."""

    def __init__(self, make: Callable[[], Backend]) -> None:
        self._make, self._opening = make, asyncio.Lock()
        self._backend: Backend | None = None

    async def _opened(self) -> Backend:
        async with self._opening:
            if self._backend is None:
                self._backend = await self._make().__aenter__()
            return self._backend

    async def started(self) -> Started | str:
        """What is served, or why it cannot be had."""
        try:
            backend = await self._opened()
        except UsageError as error:
            return str(error)
        return Started(backend.served, backend.sees())

    async def chat(self, request: Request) -> Reply | Failed:
        try:
            return await (await self._opened()).chat(request)
        except Refused as error:
            return Failed(error.failure, str(error))
        except Transient as error:
            return Failed(None, str(error), error.retry_after)
        except UsageError as error:  # the engine is gone: Ray starts another in a new process
            print(error, file=sys.stderr, flush=True)
            os._exit(1)

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int | Failed:
        backend = await self._opened()
        try:
            return await asyncio.to_thread(backend.count_tokens, messages)
        except Refused as error:
            return Failed(error.failure, str(error))


class Replica:
    """An actor as one endpoint of a pool. One that is lost rests for as long as it took to start (`seconds`)."""

    def __init__(self, actor: Any, found: Started, seconds: float, timeout: float) -> None:
        self.place, self.in_flight, self.retries = "ray", 0, 0
        self.served, self._sees = found.served, found.sees
        self._actor, self._seconds, self._timeout = actor, seconds, timeout

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def sees(self) -> bool | None:
        return self._sees

    def choose(self, _: str | None) -> Served:
        """What it serves now. Called from another thread than the event loop's, as `count_tokens` is."""
        found: Started | str = self._got(self._actor.started)
        if isinstance(found, str):
            raise UsageError(found)
        return found.served

    def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        found: int | Failed = self._got(self._actor.count_tokens, messages)
        if isinstance(found, Failed):
            raise Refused(found.failure, found.message)
        return found

    def _got(self, method: Any, *given: Any) -> Any:
        import ray  # noqa: PLC0415 - not part of a plain installation

        try:
            return ray.get(method.remote(*given), timeout=self._timeout)
        except ray.exceptions.RayError as error:
            raise self._lost(error) from None

    async def chat(self, request: Request) -> Reply:
        from ray.exceptions import RayError  # noqa: PLC0415

        try:
            found: Reply | Failed = await asyncio.wait_for(self._actor.chat.remote(request), self._timeout)
        except (RayError, TimeoutError) as error:
            raise self._lost(error) from None
        if isinstance(found, Reply):
            return found
        if found.failure is None:
            raise Transient(found.message, found.retry_after)
        raise Refused(found.failure, found.message)

    def _lost(self, error: Exception) -> Transient:
        return Transient(one_line(error), self._seconds)


class RayBackend(Layer):
    """`replicas` of the backend that `make` gives, each in an actor with so many `gpus` of the Ray cluster at `address`
    (None: RAY_ADDRESS, or one that is started here). They start when the context is entered; before that, the backend
    as it is here says what it serves. Raises UsageError where Ray is not installed or reached, and where no replica
    starts."""

    def __init__(
        self, make: Callable[[], Backend], address: str | None, replicas: int, gpus: int, attempts: int, timeout: float
    ) -> None:
        super().__init__(make())
        self._make, self._address, self._gpus = make, address, gpus
        self._attempts, self._timeout, self._each = attempts, timeout, self.inner.in_flight
        self._place, self._names = self.inner.place, [f"replica {number}" for number in range(1, replicas + 1)]
        self._actors, self._asked = dict[str, Any](), dict[str, Any]()

    @property
    def place(self) -> str:
        return f"ray: {len(self._names)} x {self._place}"

    @property
    def in_flight(self) -> int:
        return self._each * len(self._names)

    async def __aenter__(self) -> Self:
        try:
            import ray  # noqa: PLC0415
        except ImportError:
            raise UsageError("--engine ray needs: pip install 'critic[ray]'") from None
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray.init(self._address, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UsageError(f"--ray-address {self._address}: {one_line(error)}") from None
        how = {"num_cpus": 1, "num_gpus": self._gpus, "scheduling_strategy": "SPREAD", "max_restarts": -1}
        worker: Any = ray.remote(Worker).options(max_concurrency=self._each, **how)
        self._actors = {name: worker.remote(self._make) for name in self._names}
        self._asked = {name: actor.started.remote() for name, actor in self._actors.items()}
        print(f"starting {len(self._names)} replicas of {self._place} on Ray", file=sys.stderr, flush=True)
        self._start, ends = time.monotonic(), None
        late: Sequence[Any] = list(self._asked.values())
        while late and (ends is None or time.monotonic() < ends):
            await asyncio.sleep(0.05)
            up, late = ray.wait(list(self._asked.values()), num_returns=len(self._asked), timeout=0)
            if up and ends is None:
                ends = time.monotonic() * 2 - self._start + LATE
        self._took = time.monotonic() - self._start
        from critic.backends.pool import Pool  # noqa: PLC0415 - actors, which import this file, ask no server

        self.inner = Pool(lambda: self._names, self._join, self._attempts, self._each)
        await self.inner.__aenter__()
        return self

    def _join(self, name: str) -> Replica:
        """Raises UsageError where the replica does not run (yet)."""
        import ray  # noqa: PLC0415

        try:
            found: Started | str = ray.get(self._asked[name], timeout=0)
        except ray.exceptions.GetTimeoutError:
            raise UsageError(f"{NO_ANSWER}: Ray has not started it yet") from None
        except ray.exceptions.RayError as error:
            self._asked[name] = self._actors[name].started.remote()
            raise UsageError(f"{NO_ANSWER}: {one_line(error)}") from None
        if isinstance(found, str):
            raise UsageError(found)
        return Replica(self._actors[name], found, self._took, self._timeout)

    async def __aexit__(self, *error: object) -> None:
        import ray  # noqa: PLC0415

        await super().__aexit__(*error)
        ray.shutdown()
