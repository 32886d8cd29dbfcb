"""Asking a judge model for one verdict: in a prompt that fits, and of a rating the distribution as well."""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from critic import rating, verdict
from critic.backends import Backend, Reply, Request, Token
from critic.errors import Refused
from critic.judge_prompt import VERDICT_SCHEMA, Fitted
from critic.records import GREEDY, Decoding, Message, Verdict

ALTERNATIVES = 20
"""Alternatives asked for each token: the most that OpenAI-compatible servers give by default."""

NEGLIGIBLE = 1e-4
"""Probability of a first "1" below which it is not worth asking whether a 0 follows."""

BEGUN = '{"Rating":'
"""How a verdict starts whose reason is left out."""

Shorten = Callable[[int, Callable[[list[Message]], int]], Fitted | None]
"""The prompt in at most so many tokens, as the given function counts them; None where it cannot be."""


class Asked(Struct, frozen=True, kw_only=True):
    """What a judge is asked: the whole prompt, how it is shortened, and the keys of the verdict in their order. What is
    sampled for one `key` is the same in every run. Where the verdict is free text it is not `constrained`."""

    key: str
    whole: list[Message]
    shorten: Shorten
    keys: tuple[str, ...]
    constrained: bool = True


class Reading(Struct, frozen=True):
    """One verdict of the model, and the calls it took; the first call's reply is the verdict's text."""

    verdict: Verdict
    calls: list[Reply]


class Rated(Struct, frozen=True):
    """What a judge made of a prompt: the verdict that counts, its score (None exactly when it failed), the prompt as it
    was sent, and each verdict drawn."""

    verdict: Verdict
    score: float | None
    fitted: Fitted
    readings: list[Reading]

    @property
    def calls(self) -> list[Reply]:
        return [call for reading in self.readings for call in reading.calls]


class Asker:
    """A judge model, and how its verdicts are drawn and its ratings scored (rating.SCORE_KINDS)."""

    def __init__(self, backend: Backend, score_kind: str, max_tokens: int, decoding: Decoding = GREEDY) -> None:
        self.backend, self.score_kind, self.max_tokens, self.decoding = backend, score_kind, max_tokens, decoding

    async def rate(self, asked: Asked) -> Rated:
        """A rating on 1..10, or a named failure. Raises Refused and Transient as the backend does."""
        fitted, reply = await self.fitted(asked, lambda fitted: self._request(asked, fitted, 0))
        first = self._read(asked, fitted, reply)
        others = (self._sample(asked, fitted, number) for number in range(1, self.decoding.samples))
        readings = list(await asyncio.gather(first, *others))
        verdicts = [reading.verdict for reading in readings]
        found = verdicts[0] if len(verdicts) == 1 else pooled(verdicts)
        return Rated(found, self._score(found), fitted, readings)

    async def ask(self, asked: Asked, schema: dict[str, Any]) -> tuple[Fitted, Reply]:
        """A reply, greedily, under a JSON schema if constrained. Raises Refused and Transient as the backend does."""

        def request(fitted: Fitted) -> Request:
            constraint = schema if asked.constrained else None
            return Request(messages=fitted.messages, max_tokens=self.max_tokens, schema=constraint)

        return await self.fitted(asked, request)

    async def fitted(self, asked: Asked, request: Callable[[Fitted], Request]) -> tuple[Fitted, Reply]:
        """The judge's first reply to the whole prompt or, where prompt and reply do not fit together, to one
        that fits. Raises Refused where none does.

        vLLM refuses a prompt longer than its context; one that only leaves too little room for the
        reply it answers with a reply cut short.
        """
        context = self.backend.served.context
        whole = Fitted(asked.whole, {})
        try:
            reply = await self.backend.chat(request(whole))
            if context is None or reply.prompt_tokens + self.max_tokens <= context:
                return whole, reply
        except Refused as error:
            if error.failure != "context_length_exceeded" or context is None:
                raise
        fitted = await asyncio.to_thread(asked.shorten, context - self.max_tokens, self.backend.count_tokens)
        if fitted is None:
            raise Refused("context_length_exceeded", "rubric and question alone do not fit")
        return fitted, await self.backend.chat(request(fitted))

    async def _sample(self, asked: Asked, fitted: Fitted, number: int) -> Reading:
        return await self._read(asked, fitted, await self.backend.chat(self._request(asked, fitted, number)))

    def _request(self, asked: Asked, fitted: Fitted, number: int) -> Request:
        """What is asked for the verdict with this number, from 0."""
        alternatives = 0 if self.score_kind == "argmax" and not self.backend.served.is_vllm else ALTERNATIVES
        if self._rating_alone:
            messages = [*fitted.messages, {"role": "assistant", "content": BEGUN}]
            regex = "(10|[1-9]),.*"
            return Request(messages=messages, max_tokens=1, regex=regex, continue_final=True, top_logprobs=alternatives)
        sampled = self.decoding.temperature > 0.0
        return Request(
            messages=fitted.messages,
            max_tokens=self.max_tokens,
            temperature=self.decoding.temperature,
            seed=_seed(self.decoding.seed, asked.key, number) if sampled else None,
            schema=schema(asked.keys if self.decoding.reason else ("Rating",)) if asked.constrained else None,
            top_logprobs=alternatives,
        )

    @property
    def _rating_alone(self) -> bool:
        """Whether one token is asked for, behind a verdict that is begun for the model."""
        return not self.decoding.reason and self.backend.served.is_vllm

    async def _read(self, asked: Asked, fitted: Fitted, reply: Reply) -> Reading:
        if self._rating_alone:
            reply = _behind(BEGUN, reply)
        found = verdict.parse(reply.text, reply.truncated and not self._rating_alone)
        probabilities, follow_up = await self._distribution(asked, fitted, reply)
        if probabilities is not None:
            found = msgspec.structs.replace(found, distribution=probabilities, summary=rating.summary(probabilities))
            if self._rating_alone:  # its 1 may be the first digit of a 10
                found = msgspec.structs.replace(found, rating=rating.score(probabilities, "argmax"), failure=None)
        elif self._rating_alone or (found.failure is None and self.score_kind != "argmax"):
            found = msgspec.structs.replace(found, failure="no_distribution")
        return Reading(found, [reply, follow_up] if follow_up else [reply])

    async def _distribution(
        self, asked: Asked, fitted: Fitted, reply: Reply
    ) -> tuple[list[float] | None, Reply | None]:
        """The probabilities of the ratings, as far as the reply's tokens tell, and the second call where one
        was needed to tell a 10 from a 1."""
        first = rating.first_digit(reply.tokens)
        if first is None:
            return None, None
        follow_up: Reply | None = None
        ten_given_one = first.ten_given_one
        if ten_given_one is None and first.mass[0] < NEGLIGIBLE:
            ten_given_one = 0.0
        if ten_given_one is None and self.backend.served.is_vllm:
            # Token texts are no beginning to go on from where a character is spelt by several tokens.
            whole = reply.text.startswith(first.prefix.removesuffix("1"))
            follow_up = await self._after_one(asked, fitted, first.prefix if whole else rating.begun(reply.text))
            ten_given_one = rating.zero_share(follow_up.tokens[0]) if follow_up.tokens else None
        return None if ten_given_one is None else rating.distribution(first, ten_given_one), follow_up

    async def _after_one(self, asked: Asked, fitted: Fitted, begun: str) -> Reply:
        messages = [*fitted.messages, {"role": "assistant", "content": begun}]
        regex = "[0}].*" if asked.keys[-1] == "Rating" else "[0,].*"
        return await self.backend.chat(
            Request(messages=messages, max_tokens=1, regex=regex, continue_final=True, top_logprobs=ALTERNATIVES)
        )

    def _score(self, found: Verdict) -> float | None:
        if found.failure is not None:
            return None
        return found.rating if found.distribution is None else rating.score(found.distribution, self.score_kind)


def schema(keys: Sequence[str]) -> dict[str, Any]:
    """JSON Schema of a verdict that has these keys, in this order."""
    properties = {key: VERDICT_SCHEMA["properties"][key] for key in keys}
    return {**VERDICT_SCHEMA, "properties": properties, "required": list(keys)}


def _seed(seed: int, key: str, number: int) -> int:
    """A seed of its own for each verdict under each key, the same in every run."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}/{key}".encode()).digest()[:4], "big")


def _behind(begun: str, reply: Reply) -> Reply:
    """A reply that went on with `begun`, as if the model had written all of it."""
    return msgspec.structs.replace(reply, text=begun + reply.text, tokens=[Token(begun, []), *reply.tokens])


def pooled(verdicts: Sequence[Verdict]) -> Verdict:
    """Several verdicts by one judge on one response as one: the mean of their distributions, the most frequent
    rating (the lowest of equals), and the first reason that came with it. Verdicts that failed are left out; if
    all did, the first one's failure stands for all."""
    valid = [found for found in verdicts if found.failure is None and found.rating is not None]
    if not valid:
        return verdicts[0]
    most = rating.majority(found.rating for found in valid if found.rating is not None)
    reasons = [found.reason for found in valid if found.rating == most and found.reason]
    return with_mixture(Verdict(rating=most, reason=reasons[0] if reasons else None), valid)


def with_mixture(found: Verdict, parts: Sequence[Verdict]) -> Verdict:
    """`found` with the mean of its parts' distributions, where each of them has one."""
    distributions = [part.distribution for part in parts if part.distribution is not None]
    if len(distributions) < len(parts):
        return found
    mixture = rating.mixture(distributions)
    return msgspec.structs.replace(found, distribution=mixture, summary=rating.summary(mixture))
