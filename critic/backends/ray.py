"""Run one model in many Ray actors of a cluster. Each is an in-process backend, and they form a Pool as servers do.

Every node needs the extra `ray`, and the model's folder at the same path.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from critic.backends import NO_ANSWER, Backend, ChatMessage, ModelInfo, Reply, Request
from critic.backends.middleware import Layer
from critic.errors import Refused, Transient, UsageError, install_extra, located, notify, one_line


class Worker:
    """The class that runs as a Ray actor, with the backend that `make` builds. The backend is opened on first use.

    Methods return critic's own errors instead of raising them, because Ray would raise errors of another type.
    """

    def __init__(self, make: Callable[[], Backend]) -> None:
        self._make, self._opening = make, asyncio.Lock()
        self._backend: Backend | None = None

    async def _opened(self) -> Backend:
        """Return the backend. The first call opens it; concurrent calls wait until it is open."""
        async with self._opening:
            if self._backend is None:
                self._backend = await self._make().__aenter__()
            return self._backend

    async def started(self) -> tuple[ModelInfo, bool | None] | UsageError:
        """Open the backend. Return its model and whether that accepts images, or the error if it cannot start."""
        try:
            backend = await self._opened()
        except UsageError as error:
            return error
        return backend.served, backend.sees()

    async def chat(self, request: Request) -> Reply | Refused | Transient:
        try:
            return await (await self._opened()).chat(request)
        except (Refused, Transient) as error:
            return error
        # The engine has died. Ray starts a new actor in a new process.
        except UsageError as error:
            notify(error)
            os._exit(1)

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int | Refused:
        backend = await self._opened()
        try:
            return await asyncio.to_thread(backend.count_tokens, messages)
        except Refused as error:
            return error


def unwrap(answer: Any) -> Any:
    """Return the value that a method of Worker returned. If it is an error, raise it."""
    if isinstance(answer, Exception):
        raise answer
    return answer


class Replica(Backend):
    """A Ray actor as a member of a Pool.

    `actor`: handle of a Worker.
    `seconds`: the wait before the next request after the actor was lost: how long the first start took.
    `timeout`: seconds per request.

    Raises UsageError if the actor is not running (yet).
    """

    def __init__(self, actor: Any, seconds: float, timeout: float) -> None:
        self.endpoint, self.max_concurrency, self.retries = "ray", 0, 0
        self._actor, self._seconds, self._timeout = actor, seconds, timeout
        self._sees: bool | None = None
        self.served = self.choose(None)

    def sees(self) -> bool | None:
        return self._sees

    def choose(self, _: str | None) -> ModelInfo:
        """Return the model that the actor serves now; the name is ignored.

        Like `count_tokens`, this call blocks: make it outside the event loop's thread.
        """
        import ray  # noqa: PLC0415 - not part of a plain installation

        try:
            state: tuple[ModelInfo, bool | None] = unwrap(ray.get(self._actor.started.remote(), timeout=5.0))
        except ray.exceptions.RayError as error:
            raise UsageError(f"{NO_ANSWER}: {one_line(error)}") from None
        served, self._sees = state
        return served

    def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        import ray  # noqa: PLC0415

        try:
            return int(unwrap(ray.get(self._actor.count_tokens.remote(messages), timeout=self._timeout)))
        except ray.exceptions.RayError as error:
            raise Transient(one_line(error), self._seconds) from None

    async def chat(self, request: Request) -> Reply:
        from ray.exceptions import RayError  # noqa: PLC0415

        try:
            reply: Reply = unwrap(await asyncio.wait_for(self._actor.chat.remote(request), self._timeout))
        except (RayError, TimeoutError) as error:
            raise Transient(one_line(error), self._seconds) from None
        return reply


class RayBackend(Layer):
    """A backend that runs several replicas of another backend as Ray actors.

    `make`: builds the backend; each actor calls it.
    `address`: the Ray cluster's address; None uses RAY_ADDRESS or starts a local cluster.
    `replicas`: number of actors.
    `gpus`: number of GPUs per actor.
    `attempts`: most tries per request.
    `timeout`: seconds per try.

    The actors start when the context is entered. Raises UsageError if Ray is not installed or not reachable, or if no
    replica starts.
    """

    def __init__(
        self, make: Callable[[], Backend], address: str | None, replicas: int, gpus: int, attempts: int, timeout: float
    ) -> None:
        super().__init__(make())
        self._make, self._address, self._gpus = make, address, gpus
        self._attempts, self._timeout, self._limit = attempts, timeout, self.inner.max_concurrency
        self._model, self._names = self.inner.endpoint, [f"replica {number}" for number in range(1, replicas + 1)]
        self.endpoint, self.max_concurrency = f"ray: {replicas} x {self._model}", self._limit * replicas

    async def __aenter__(self) -> Self:
        with located(f"--engine ray needs: {install_extra('ray')}", ImportError):
            import ray  # noqa: PLC0415
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray.init(self._address, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UsageError(f"--ray-address {self._address}: {one_line(error)}") from None
        # max_restarts -1: a lost actor is started again as often as it is lost.
        options = {"num_cpus": 1, "num_gpus": self._gpus, "scheduling_strategy": "SPREAD", "max_restarts": -1}
        worker: Any = ray.remote(Worker).options(max_concurrency=self._limit, **options)
        actors = {name: worker.remote(self._make) for name in self._names}
        notify(f"starting {len(self._names)} replicas of {self._model} on Ray")
        start, states = time.monotonic(), [actor.started.remote() for actor in actors.values()]
        # Wait for the first replica. The others join the pool once they have started.
        await asyncio.to_thread(ray.wait, states, num_returns=1)
        seconds = time.monotonic() - start
        from critic.backends.pool import Pool  # noqa: PLC0415 - actors, which import this file, ask no server

        def connect(name: str) -> Replica:
            return Replica(actors[name], seconds, self._timeout)

        self.inner = Pool(self._names, connect, self._attempts, self._limit)
        await self.inner.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        import ray  # noqa: PLC0415

        await super().__aexit__(*error)
        ray.shutdown()
