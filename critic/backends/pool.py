"""One judge behind many endpoints: work goes to the one with the fewest requests in flight."""

import asyncio
import math
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol, Self

from msgspec.structs import replace

from critic.backends import NO_ANSWER, Backend, ChatMessage, Reply, Request, Served, instead, spent
from critic.backends.openai import FIRST_PAUSE, LONGEST_PAUSE, LONGEST_WISH
from critic.errors import Refused, Transient, UsageError

APART = 0.05
"""The most by which probabilities of one judge may differ between endpoints: batches and kernels round otherwise."""

PROBED, ALTERNATIVES = 128, 20
"""Tokens of the probe, and alternatives of each."""

PATIENCE = 0.05
"""Seconds between two looks whether one of those that rest is to be tried."""

LOOK = 10.0
"""Seconds between two looks at the file of endpoints."""


class Choosing(Backend, Protocol):
    """A backend that can be asked what it serves."""

    def choose(self, name: str | None) -> Served:
        """Raises UsageError where it does not answer, or serves nothing of this name; maybe Transient."""


class Upstream:
    """One server of a pool. After a failure it rests until `rests` (seconds of the monotonic clock); `lost` counts how
    often in a row. `proven`: it gave the same distributions as the first, and has not been away since."""

    def __init__(self, url: str, backend: Choosing) -> None:
        self.url, self.backend = url, backend
        self.under_way = self.asked = self.lost = 0
        self.rests = 0.0
        self.proven, self.problem = False, ""

    def is_free(self, now: float) -> bool:
        """Whether it may be asked: one that failed last is tried with one request at a time."""
        return self.rests <= now and not (self.lost and self.under_way)

    def lose(self, why: str, wish: float | None = None) -> None:
        """Leave it out for a while: for longer each time, and for as long as it asks for itself."""
        now = time.monotonic()
        self.problem = why
        self.proven = self.proven and "HTTP 429" in why  # one that is only busy is still the same
        self.lost += self.rests <= now  # what was under way together is lost once
        pause = max(min(FIRST_PAUSE * 2 ** min(self.lost - 1, 10), LONGEST_PAUSE), min(wish or 0.0, LONGEST_WISH))
        self.rests = max(self.rests, now + pause * random.uniform(0.8, 1.2))


class Pool:
    """The servers at `urls`, which may change while it is open, all of which must be one judge: the same name, context
    and processor (`Served`) and, in reply to the first request, the same distributions. `connect` gives a backend that
    tries once and has its model chosen; it raises UsageError where no server answers.

    A request goes to the endpoint with the fewest requests in flight. One that fails is left out, each time for longer,
    and then has to prove itself again; its request goes elsewhere. One that turns out to be another judge is left out
    with a line on standard error; before the first row that is a UsageError. What these probes take counts with the
    next reply (`Reply.probes`). Raises UsageError where none answers.
    """

    def __init__(
        self,
        urls: Callable[[], Sequence[str]],
        connect: Callable[[str], Choosing],
        attempts: int,
        connections: int,
    ) -> None:
        self._urls, self._connect, self._attempts = urls, connect, attempts
        self.retries = 0
        self._told = set[tuple[str, bool]]()
        self._probes: Reply | None = None  # with the tokens of all that no reply was charged with yet
        self._first: tuple[Request, Reply] | None = None
        self._proving: asyncio.Task[Refused | None] | None = None
        named = urls()
        self.endpoints, problems = self._joined(named)
        if not self.endpoints:
            raise UsageError(f"none of {len(named)} endpoints answers: {'; '.join(problems.values())}")
        self.served = self.endpoints[0].backend.served
        for one in self.endpoints[1:]:
            if (wrong := _differs(self.served, one.backend.served)) is not None:
                raise UsageError(f"{one.url} is not the same judge as {self.endpoints[0].url}: {wrong}")
        self.place = ",".join(one.url for one in self.endpoints)
        self._connections, self.in_flight = connections, connections * len(self.endpoints)
        for url, problem in problems.items():
            self._tell(url, f"{problem}; it is tried again")

    async def __aenter__(self) -> Self:
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watching.cancel()
        for one in self.endpoints:
            await one.backend.__aexit__()

    def sees(self) -> bool | None:
        return self.endpoints[0].backend.sees()

    def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Raises Refused where the servers do not tell, Transient where none answers."""
        *others, last = sorted(self.endpoints, key=lambda one: (one.rests == math.inf, one.lost))
        for one in others:
            with suppress(Transient):
                return one.backend.count_tokens(messages)
        return last.backend.count_tokens(messages)

    async def chat(self, request: Request) -> Reply:
        """Raises Refused and Transient as an OpenAIBackend does; UsageError where two endpoints are two judges."""
        await self._prove(request)
        for attempt in range(1, self._attempts + 1):
            one = await self._next()
            try:
                reply = await self._asked(one, request)
                probes, self._probes = self._probes, None
                took = tuple(spent(probes).values()) if probes else reply.probes
                return replace(reply, attempts=attempt, probes=took)
            except Transient as error:
                if attempt == self._attempts:
                    said = f"{error} (after {attempt} tries; last at {one.url})"
                    raise Transient(said, tries=attempt) from None
                self.retries += 1
        raise AssertionError("unreachable: the last try raises")

    async def _asked(self, one: Upstream, request: Request) -> Reply:
        """One try at one endpoint. Raises Transient where another should be asked."""
        one.under_way += 1
        try:
            if not one.proven:
                await self._prove_again(one)
            reply = await one.backend.chat(request)
        except Transient as error:
            one.lose(str(error), error.retry_after)
            raise
        except Refused as error:
            if not _gone(error):
                raise
            one.lose(str(error))
            raise Transient(str(error)) from None
        finally:
            one.under_way -= 1
        one.asked, one.lost, one.problem = one.asked + 1, 0, ""
        return reply

    async def _free(self) -> list[Upstream]:
        """The endpoints that may be asked; waits while all rest. Raises Transient where all were lost too often."""
        while not (free := [one for one in self.endpoints if one.is_free(time.monotonic())]):
            if all(one.lost >= self._attempts or one.rests == math.inf for one in self.endpoints):
                raise Transient(f"no endpoint answers: {self.endpoints[0].problem}")
            await asyncio.sleep(PATIENCE)
        return free

    async def _next(self) -> Upstream:
        """The endpoint to ask. Raises Transient as `_free` does."""
        free = await self._free()
        return min(free, key=lambda endpoint: (endpoint.under_way, endpoint.asked))

    async def _prove(self, request: Request) -> None:
        """Have the endpoints compared before any is asked for what counts: by this request, where none before it was
        answered. Raises Refused where this one is, and Transient and UsageError as `_prove_all` does."""
        while self._first is None:
            mine = self._proving is None
            self._proving = self._proving or asyncio.create_task(self._prove_all(request))
            refused = await asyncio.shield(self._proving)
            if mine and refused is not None:
                raise refused

    async def _prove_all(self, request: Request) -> Refused | None:
        """Ask every endpoint the first request and compare; why it was refused where none answers it, and another one
        has to be the first. Raises Transient as `_free` does, UsageError naming an endpoint that is another judge."""
        asked = _probe(request)
        try:
            await self._free()
            ready = [one for one in self.endpoints if one.rests != math.inf]
            replies = await asyncio.gather(*(self._probed(one, asked) for one in ready))
            if any(isinstance(reply, Reply) and _tells(reply) for reply in replies):
                # One bad moment, such as an empty reply, makes no other judge of an endpoint.
                for number, one in enumerate(ready):
                    if isinstance(reply := replies[number], Reply) and not _tells(reply):
                        replies[number] = await self._probed(one, asked)
        finally:
            self._proving = None
        answered = [(one, reply) for one, reply in zip(ready, replies, strict=True) if isinstance(reply, Reply)]
        if not answered:
            return next((reply for reply in replies if isinstance(reply, Refused)), None)
        same, first = next((each for each in answered if _tells(each[1])), answered[0])
        for one, reply in answered:
            if (wrong := _apart(first, reply)) is not None:
                raise UsageError(f"{one.url} is not the same judge as {same.url}: {wrong}")
            one.proven = True
        self._first = asked, first
        if not _tells(first) and len(self.endpoints) > 1:
            print(f"{self.place}: no probabilities; that all are one judge is known by name alone", file=sys.stderr)
        return None

    async def _probed(self, one: Upstream, asked: Request) -> Reply | Refused | None:
        """None where it does not answer, and is left out for a while."""
        one.under_way += 1
        try:
            return await self._answer(one, asked)
        except Transient as error:
            one.lose(str(error), error.retry_after)
        except Refused as error:
            if not _gone(error):
                return error
            one.lose(str(error))
        finally:
            one.under_way -= 1
        return None

    async def _answer(self, one: Upstream, asked: Request) -> Reply:
        """A probe's reply, without probabilities where there are none to be had."""
        try:
            reply = await one.backend.chat(asked)
        except Refused:
            reply = await one.backend.chat(replace(asked, top_logprobs=0))
        self._probes = instead(reply, self._probes)
        return reply

    async def _prove_again(self, one: Upstream) -> None:
        """Compare one that joins, or comes back, with what was proven. Raises Transient where it is another judge."""
        assert self._first is not None
        asked, first = self._first
        try:
            served = await asyncio.to_thread(one.backend.choose, self.served.name)
            wrong = _differs(self.served, served) or _apart(first, await self._answer(one, asked))
        except (UsageError, Refused) as error:
            if NO_ANSWER in str(error):
                raise Transient(str(error)) from None
            wrong = str(error)
        if wrong is not None:
            self._tell(one.url, f"it is not the same judge: {wrong}")
            raise Transient(wrong)
        self._told -= {(one.url, True), (one.url, False)}
        one.proven = True

    def _tell(self, url: str, why: str) -> None:
        """Say once that an endpoint is left out, once where it does not answer and once for what it answers."""
        if (told := (url, NO_ANSWER in why)) not in self._told:
            print(f"{url} is left out: {why}", file=sys.stderr)
        self._told.add(told)

    async def _watch(self) -> None:
        """Take in what is new among the endpoints or answers at last, and let go what is there no more."""
        while True:
            await asyncio.sleep(LOOK)
            with suppress(UsageError):  # as while the file is written
                self._take(*await asyncio.to_thread(self._news))

    def _news(self) -> tuple[set[str], list[Upstream], dict[str, str]]:
        named, known = self._urls(), {one.url for one in self.endpoints}
        return set(named), *self._joined([url for url in named if url not in known], late=True)

    def _take(self, named: set[str], joined: Sequence[Upstream], problems: Mapping[str, str]) -> None:
        for url, problem in problems.items():
            self._tell(url, problem)
        all_of_them = [*self.endpoints, *joined]
        if not any(one.url in named for one in all_of_them):
            return  # none of those that are named now answers yet
        for one in all_of_them:
            if one.url not in named:
                one.rests = math.inf  # what is under way there ends as it will
            elif one in joined or one.rests == math.inf:
                one.rests, one.lost, one.proven = 0.0, 1, False
        self.endpoints += joined
        there = sum(one.rests != math.inf for one in self.endpoints)
        self.in_flight = max(self.in_flight, self._connections * there)

    def _joined(self, urls: Sequence[str], late: bool = False) -> tuple[list[Upstream], dict[str, str]]:
        """The endpoints that answer, and why others do not. Raises UsageError for one that serves something else,
        unless it is `late`."""
        problems: dict[str, str] = {}

        def join(url: str) -> Upstream | None:
            try:
                return Upstream(url, self._connect(url))
            except UsageError as error:
                if not late and NO_ANSWER not in str(error):
                    raise
                problems[url] = str(error)
                return None

        with ThreadPoolExecutor(max(1, min(32, len(urls)))) as threads:
            return [one for one in threads.map(join, urls) if one is not None], problems


def _probe(request: Request) -> Request:
    """The first request as all endpoints get it: with probabilities, and drawn greedily."""
    alternatives = 0 if request.classify else ALTERNATIVES
    most = min(request.max_tokens, PROBED)
    return replace(request, temperature=0.0, seed=None, max_tokens=most, top_logprobs=alternatives)


def _gone(error: Refused) -> bool:
    """Whether a server no more has the model."""
    return "HTTP 404" in str(error)


def _differs(one: Served, other: Served) -> str | None:
    for name in Served.__struct_fields__:
        if (then := getattr(one, name)) != (now := getattr(other, name)):
            return f"{name} {now!r}, not {then!r}"
    return None


def _tells(reply: Reply) -> bool:
    """Whether it has probabilities."""
    return bool(reply.tokens or reply.classes)


def _apart(one: Reply, other: Reply) -> str | None:
    """Where two replies to one request show two models: one alone has probabilities or, up to the first token that was
    drawn otherwise, which may be a tie, the distributions do not agree."""
    if _tells(one) != _tells(other):
        return "it gives no probabilities" if _tells(one) else "it gives probabilities, where the first gave none"
    for rating, (share, found) in enumerate(zip(one.classes or [], other.classes or [], strict=False), 1):
        if abs(share - found) > APART:
            return f"the probe's rating {rating} has a probability of {found:.3f}, not {share:.3f}"
    for number, (token, theirs) in enumerate(zip(one.tokens, other.tokens, strict=False), 1):
        before, after = ({text: math.exp(share) for text, share in each.alternatives} for each in (token, theirs))
        for text in before | after:
            then, now = before.get(text, 0.0), after.get(text, 0.0)
            if abs(then - now) > APART:
                return f"at token {number} of the probe {text!r} has a probability of {now:.3f}, not {then:.3f}"
        if token.text != theirs.text:
            return None
    return None
