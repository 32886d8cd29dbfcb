"""A pool of servers that serve the same judge. Requests go to the least busy one; a failed one rests for a while."""

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from msgspec.structs import replace

from critic.backends import NO_ANSWER, Backend, ChatMessage, ModelInfo, Reply, Request
from critic.backends.address import redact_url
from critic.backends.openai import FIRST_PAUSE, LONGEST_PAUSE, LONGEST_WISH
from critic.errors import Hopeless, Refused, Transient, UsageError, notify


class Choosing(Backend, Protocol):
    """A backend that can select the model that it serves."""

    def choose(self, name: str | None) -> ModelInfo:
        """Select the model `name` and return what is known about it.

        Raises UsageError if the server does not answer or has no such model.
        """


class Upstream:
    """One server of a pool, with its state.

    `backend`: None until the server has answered for the first time.
    `in_flight`: number of requests in progress.
    `asked`: number of requests answered so far.
    `failures`: number of failures in a row.
    `problem`: message of the last failure, or "".
    `rests_until`: time (time.monotonic, in seconds) until which no request is sent after a failure.
    `checked`: True if the server was found to serve the pool's judge and has not failed since.
    `reported`: True if it has been printed that the server is left out.
    """

    def __init__(self, url: str) -> None:
        # Messages name it without its credentials.
        self.address, self.url, self.problem = url, redact_url(url), ""
        self.backend: Choosing | None = None
        self.in_flight = self.asked = self.failures = 0
        self.rests_until = 0.0
        self.checked = self.reported = False

    def may_be_asked(self, limit: int) -> bool:
        """Return True if a request may be sent to this server now. `limit`: most requests in flight per server."""
        # After a failure the server may still be down, so it is tried with a single request.
        return self.rests_until <= time.monotonic() and self.in_flight < (1 if self.failures else limit)

    def fail(self, problem: str, wish: float | None = None) -> None:
        """Record a failure and let the server rest for a while, longer after each failure in a row.

        Args:
            problem: The failure's message.
            wish: The wait in seconds that the server requests, or None.
        """
        now = time.monotonic()
        self.problem, self.checked = problem, False
        # Requests that were in flight together fail together: they count as one failure.
        self.failures += self.rests_until <= now
        pause = min(FIRST_PAUSE * 2 ** min(self.failures - 1, 10), LONGEST_PAUSE)
        pause = max(pause, min(wish or 0.0, LONGEST_WISH))
        self.rests_until = max(self.rests_until, now + pause * random.uniform(0.8, 1.2))

    def retire(self, problem: str, attempts: int) -> None:
        """Stop using this server for the rest of the run.

        `attempts`: recorded as the number of failures, so that the server counts as tried often enough.
        """
        self.report(problem)
        self.problem, self.failures, self.rests_until = problem, attempts, math.inf

    def report(self, problem: str) -> None:
        """Print that this server is left out. It is printed once until the server is back."""
        # The server is tried again and again; a line each time would be too many.
        if not self.reported:
            notify(f"{self.url} is left out: {problem}")
        self.reported = True


class Pool(Backend):
    """A backend that distributes requests over the servers at `urls`. All must serve the same judge (`ModelInfo`).

    `connect`: function from a URL to a backend with its model selected. The backend must try each request only once.
    `attempts`: most tries per request, each on the server that is the least busy.
    `limit`: most requests in flight per server.

    A server that fails is not used for a while, longer after each failure. Raises UsageError if no server answers, or
    if two serve different judges.
    """

    def __init__(self, urls: Sequence[str], connect: Callable[[str], Choosing], attempts: int, limit: int) -> None:
        self._connect, self._attempts, self._limit = connect, attempts, limit
        self.endpoints = [Upstream(url) for url in urls]
        self.endpoint, self.max_concurrency, self.retries = ",".join(map(redact_url, urls)), limit * len(urls), 0
        with ThreadPoolExecutor(min(32, len(urls))) as threads:
            list(threads.map(self._reach, self.endpoints))
        # A single server may start late. If none answers, the addresses are wrong or the servers are down.
        if not self._backends():
            problems = "; ".join(endpoint.problem for endpoint in self.endpoints)
            raise UsageError(f"none of {len(urls)} endpoints answers: {problems}")
        self.served = self._backends()[0].served
        for endpoint in self.endpoints:
            # The others are checked when they answer.
            if endpoint.backend is not None:
                self._check(endpoint, endpoint.backend.served)

    def _backends(self) -> list[Choosing]:
        """Return the backends that have answered at least once, those with the fewest failures first."""
        ranked = sorted(self.endpoints, key=lambda endpoint: endpoint.failures)
        return [endpoint.backend for endpoint in ranked if endpoint.backend is not None]

    def _reach(self, endpoint: Upstream) -> None:
        """Connect to a server. If it does not answer, record a failure.

        Raises UsageError if it answers but does not have the model.
        """
        try:
            endpoint.backend = self._connect(endpoint.address)
        except UsageError as error:
            if NO_ANSWER not in str(error):
                # The server runs without the model: waiting would not help.
                raise
            # The server may be starting. The run begins with the other ones.
            endpoint.fail(str(error))
            endpoint.report(f"{error}; it is tried again")

    def _check(self, endpoint: Upstream, served: ModelInfo) -> None:
        """Mark a server as checked. Raises UsageError if `served`, its model, is not the pool's judge."""
        # Other facts in a list of models, such as a permission's number, may change from one answer to the next.
        for name in (*ModelInfo.__struct_fields__[:-1], "forms", "tie_band"):
            now, others = getattr(served, name), getattr(self.served, name)
            if now != others:
                raise UsageError(f"{endpoint.url} is not the same judge as the others: {name} {now!r}, not {others!r}")
        endpoint.checked, endpoint.reported = True, False

    async def __aexit__(self, *_: object) -> None:
        for backend in self._backends():
            await backend.__aexit__()

    def sees(self) -> bool | None:
        return self._backends()[0].sees()

    def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Return the number of tokens of a prompt, counted by the server with the fewest failures.

        Raises Refused if that server cannot count tokens, or Transient if it does not answer.
        """
        return self._backends()[0].count_tokens(messages)

    def count_prefix_hits(self) -> Counter[str]:
        return sum((backend.count_prefix_hits() for backend in self._backends()), Counter[str]())

    async def chat(self, request: Request) -> Reply:
        """Return the reply to a request from the server that is the least busy. If it fails, try others.

        Raises Refused and Transient as an OpenAIBackend does, or Hopeless once no server can be used any more.
        """
        for attempt in range(1, self._attempts + 1):
            endpoint, backend = await self._next()
            endpoint.in_flight += 1
            try:
                reply = await backend.chat(request)
            except Transient as error:
                # This server rests now, so the next try goes to another one.
                endpoint.fail(str(error), error.retry_after)
                problem = f"{error} (after {attempt} tries; last at {endpoint.url})"
            except Hopeless as error:
                endpoint.retire(str(error), self._attempts)
                problem = str(error)
                if all(other.rests_until == math.inf for other in self.endpoints):
                    raise
            except Refused as error:
                # If one server no longer has the model, others may. Any other refusal is about the request itself.
                if "HTTP 404" not in str(error):
                    raise
                endpoint.fail(str(error))
                problem = str(error)
            else:
                # Only an answer shows that the server works again; the check before it does not.
                endpoint.asked, endpoint.failures = endpoint.asked + 1, 0
                return replace(reply, attempts=attempt)
            finally:
                endpoint.in_flight -= 1
            self.retries += attempt < self._attempts
        raise Transient(problem, tries=self._attempts)

    async def _next(self) -> tuple[Upstream, Choosing]:
        """Return the server for the next request and its backend, waiting while all servers are busy or at rest.

        Raises Transient if every server has failed as often in a row as a request may be tried.
        """
        while True:
            free = [endpoint for endpoint in self.endpoints if endpoint.may_be_asked(self._limit)]
            if free:
                # Among equally busy servers, take the least used one. Otherwise the first would get all requests of a
                # slow run.
                endpoint = min(free, key=lambda endpoint: (endpoint.in_flight, endpoint.asked))
                if endpoint.backend is not None and endpoint.checked:
                    return endpoint, endpoint.backend
                # The server may have come back with another judge. This check does not count as a try.
                await self._look_at(endpoint)
            # Each has failed as often in a row as a request may be tried.
            elif all(endpoint.failures >= self._attempts for endpoint in self.endpoints):
                raise Transient(f"no endpoint answers: {self.endpoints[0].problem}")
            else:
                await asyncio.sleep(0.05)

    async def _look_at(self, endpoint: Upstream) -> None:
        """Check the judge of a server that was unavailable. No answer, or another judge, counts as a failure."""
        endpoint.in_flight += 1
        try:
            if endpoint.backend is None:
                endpoint.backend = await asyncio.to_thread(self._connect, endpoint.address)
            self._check(endpoint, await asyncio.to_thread(endpoint.backend.choose, self.served.name))
        except UsageError as error:
            endpoint.fail(str(error))
            # That a server does not answer was reported when it failed. Another judge was not.
            if NO_ANSWER not in str(error):
                endpoint.report(str(error))
        finally:
            endpoint.in_flight -= 1
