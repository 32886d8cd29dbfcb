"""One judge behind several endpoints: a request goes to the one with the fewest in flight, a dead one is left out."""

import asyncio
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol, Self

from msgspec.structs import replace

from critic.backends import NO_ANSWER, Backend, ChatMessage, ModelInfo, Reply, Request
from critic.backends.openai import FIRST_PAUSE, LONGEST_PAUSE, LONGEST_WISH
from critic.errors import Refused, Transient, UsageError

APART = 0.05
"""The most by which probabilities of one judge may differ between endpoints: batches and kernels round otherwise."""

PROBE = "How good is this answer, from 1 to 10? Reply with the number alone.\n\nQuestion: What is 2 + 3?\nAnswer: 6"
"""What every endpoint is asked before its first row: one judge gives the same probabilities everywhere."""

PATIENCE = 0.05
"""Seconds between two looks whether an endpoint may be asked."""


class Choosing(Backend, Protocol):
    """A backend that can be asked what it serves."""

    def choose(self, name: str | None) -> ModelInfo:
        """Raises UsageError where it does not answer, or serves nothing of this name; maybe Transient."""


class Upstream:
    """One server of a pool; `backend` is None until it has answered. After a failure it rests until `rests_until`
    (seconds of the monotonic clock); `failures` counts how often in a row. `checked`: it serves the pool's judge, and
    has not failed since. `reported`: it was said that it is left out."""

    def __init__(self, url: str) -> None:
        self.url, self.problem = url, ""
        self.backend: Choosing | None = None
        self.max_concurrency = self.asked = self.failures = 0
        self.rests_until = 0.0
        self.checked = self.reported = False

    def may_be_asked(self, limit: int) -> bool:
        """Whether it takes one more request: one that failed last is tried with one at a time."""
        return self.rests_until <= time.monotonic() and self.max_concurrency < (1 if self.failures else limit)

    def fail(self, problem: str, wish: float | None = None) -> None:
        """Leave it out for a while: for longer each time, and for as long as it asks for itself."""
        now = time.monotonic()
        self.problem = problem
        self.checked = self.checked and "HTTP 429" in problem  # one that is only busy is still the same judge
        self.failures += self.rests_until <= now  # requests that fail together are one failure
        pause = min(FIRST_PAUSE * 2 ** min(self.failures - 1, 10), LONGEST_PAUSE)
        pause = max(pause, min(wish or 0.0, LONGEST_WISH))
        self.rests_until = max(self.rests_until, now + pause * random.uniform(0.8, 1.2))

    def report(self, problem: str) -> None:
        """Say once that it is left out, until it is back."""
        if not self.reported:
            print(f"{self.url} is left out: {problem}", file=sys.stderr)
        self.reported = True


class OtherJudgeError(UsageError):
    """An endpoint serves another judge than the others do."""


class Pool:
    """The servers at `urls`, all of which must be one judge: the same name, context and processor (`Served`), and the
    same probabilities in reply to PROBE. `connect` gives a backend that tries once and has its model chosen; it raises
    UsageError where no server answers.

    An endpoint that fails is left out, each time for longer, and its request goes elsewhere. When it answers again it
    is checked again: another judge stays out, with a line on standard error; before the first row it is a UsageError.
    Raises UsageError where none answers.
    """

    def __init__(self, urls: Sequence[str], connect: Callable[[str], Choosing], attempts: int, limit: int) -> None:
        self._connect, self._attempts, self._limit = connect, attempts, limit
        self._probabilities: list[dict[str, float]] | None = None
        self.endpoints = [Upstream(url) for url in urls]
        self.place, self.max_concurrency, self.retries = ",".join(urls), limit * len(urls), 0
        with ThreadPoolExecutor(min(32, len(urls))) as threads:
            list(threads.map(self._reach, self.endpoints))
        reached = [endpoint.backend for endpoint in self.endpoints if endpoint.backend is not None]
        if not reached:
            problems = "; ".join(endpoint.problem for endpoint in self.endpoints)
            raise UsageError(f"none of {len(urls)} endpoints answers: {problems}")
        self.served = reached[0].served

    def _reach(self, endpoint: Upstream) -> None:
        """Raises UsageError for an endpoint that answers, but lacks the model."""
        try:
            endpoint.backend = self._connect(endpoint.url)
        except UsageError as error:
            if NO_ANSWER not in str(error):
                raise
            endpoint.fail(str(error))
            endpoint.report(f"{error}; it is tried again")

    async def __aenter__(self) -> Self:
        """Raises UsageError where two endpoints are two judges."""
        reached = [endpoint for endpoint in self.endpoints if endpoint.backend is not None and not endpoint.checked]
        results = await asyncio.gather(*map(self._check, reached), return_exceptions=True)
        for endpoint, result in zip(reached, results, strict=True):
            if isinstance(result, Transient):
                endpoint.fail(str(result), result.retry_after)
            elif isinstance(result, BaseException):
                raise result
        if self._probabilities == [] and len(reached) > 1:
            print(f"{self.place}: no probabilities; that all are one judge is known by name alone", file=sys.stderr)
        return self

    async def __aexit__(self, *_: object) -> None:
        for endpoint in self.endpoints:
            if endpoint.backend is not None:
                await endpoint.backend.__aexit__()

    def sees(self) -> bool | None:
        return next(endpoint.backend.sees() for endpoint in self.endpoints if endpoint.backend is not None)

    def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Raises Refused where the servers do not tell, Transient where none answers."""
        ranked = sorted(self.endpoints, key=lambda endpoint: endpoint.failures)
        *others, last = [endpoint.backend for endpoint in ranked if endpoint.backend is not None]
        for backend in others:
            with suppress(Transient):
                return backend.count_tokens(messages)
        return last.count_tokens(messages)

    async def chat(self, request: Request) -> Reply:
        """Raises Refused and Transient as an OpenAIBackend does."""
        for attempt in range(1, self._attempts + 1):
            endpoint, backend = await self._next()
            endpoint.max_concurrency += 1
            try:
                reply = await backend.chat(request)
            except Transient as error:
                endpoint.fail(str(error), error.retry_after)
                problem = f"{error} (after {attempt} tries; last at {endpoint.url})"
            except Refused as error:
                # A model that is gone from one server may still be at others; any other refusal is the request's.
                if "HTTP 404" not in str(error):
                    raise
                endpoint.fail(str(error))
                problem = str(error)
            else:
                endpoint.asked, endpoint.failures = endpoint.asked + 1, 0
                return replace(reply, attempts=attempt)
            finally:
                endpoint.max_concurrency -= 1
            self.retries += attempt < self._attempts
        raise Transient(problem, tries=self._attempts)

    async def _next(self) -> tuple[Upstream, Choosing]:
        """The endpoint to ask: one that was away is checked first, which is no try of the request. Waits while all rest
        or are busy. Raises Transient where all failed too often."""
        while True:
            free = [endpoint for endpoint in self.endpoints if endpoint.may_be_asked(self._limit)]
            if free:
                endpoint = min(free, key=lambda endpoint: (endpoint.max_concurrency, endpoint.asked))
                if endpoint.backend is not None and endpoint.checked:
                    return endpoint, endpoint.backend
                # Only a look can tell whether it is back. By whoever would be next: nobody waits for a timer.
                await self._look_at(endpoint)
            elif all(endpoint.failures >= self._attempts for endpoint in self.endpoints):
                raise Transient(f"no endpoint answers: {self.endpoints[0].problem}")
            else:
                await asyncio.sleep(PATIENCE)

    async def _look_at(self, endpoint: Upstream) -> None:
        """Check an endpoint that was away, while nobody else asks it; it stays out where it is not this judge."""
        endpoint.max_concurrency += 1
        try:
            await self._check(endpoint)
        except Transient as error:
            endpoint.fail(str(error), error.retry_after)
        except OtherJudgeError as error:
            endpoint.fail(str(error))
            endpoint.report(str(error))
        finally:
            endpoint.max_concurrency -= 1

    async def _check(self, endpoint: Upstream) -> None:
        """Whether an endpoint serves this judge; the first to answer says which probabilities are its. Raises Transient
        where it does not answer, OtherJudgeError where it serves another one."""
        backend = endpoint.backend
        try:
            if backend is None:
                backend = await asyncio.to_thread(self._connect, endpoint.url)
            served = await asyncio.to_thread(backend.choose, self.served.name)
        except UsageError as error:
            raise (Transient if NO_ANSWER in str(error) else OtherJudgeError)(str(error)) from None
        endpoint.backend = backend  # whose judge may be another one today, and the right one tomorrow
        problem: str | None = f"{served}, not {self.served}"
        if served == self.served:
            probabilities = await _probe(backend)
            if self._probabilities is None:
                self._probabilities = probabilities
            problem = _apart(self._probabilities, probabilities)
        if problem:
            raise OtherJudgeError(f"{endpoint.url} is not the same judge as the others: {problem}")
        endpoint.checked, endpoint.reported = True, False


async def _probe(backend: Choosing) -> list[dict[str, float]]:
    """The probabilities in the reply to PROBE, a table for each token, or one of a scoring head's ratings; none where
    the server gives none. Raises Transient."""
    head = backend.served.is_classifier
    messages = [{"role": "user", "content": PROBE}]
    try:
        reply = await backend.chat(
            Request(messages=messages, max_tokens=8, top_logprobs=0 if head else 20, classify=head)
        )
    except Refused:
        return []
    if reply.classes:
        return [{str(rating): share for rating, share in enumerate(reply.classes, 1)}]
    return [_exponentials(token.alternatives) for token in reply.tokens]


def _exponentials(alternatives: Sequence[tuple[str, float]]) -> dict[str, float]:
    return {text: math.exp(logarithm) for text, logarithm in alternatives}


def _likeliest(table: dict[str, float]) -> str | None:
    return max(table, key=table.__getitem__, default=None)


def _apart(first: Sequence[dict[str, float]], other: Sequence[dict[str, float]]) -> str | None:
    """Where two replies to PROBE show two models. Behind a token that the two drew otherwise, as in a tie, nothing can
    be compared."""
    if bool(first) != bool(other):
        return "one gives probabilities, the other none"
    for number, (expected, actual) in enumerate(zip(first, other, strict=False), 1):
        for text in expected | actual:
            before, now = expected.get(text, 0.0), actual.get(text, 0.0)
            if abs(before - now) > APART:
                return f"{text!r} has a probability of {now:.3f}, not {before:.3f}, at token {number} of the probe"
        if _likeliest(expected) != _likeliest(actual):
            return None
    return None
