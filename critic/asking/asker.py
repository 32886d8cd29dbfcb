"""Asking a judge model for one verdict: in a prompt that fits, and of a rating the distribution as well."""

import asyncio
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from critic.asking import rating, verdict
from critic.asking.prompt import VERDICT_SCHEMA, Fitted, verdict_object
from critic.backends import Backend, Reply, Request, Token
from critic.errors import Refused, UsageError
from critic.records import GREEDY, Decoding, Message, Verdict

ALTERNATIVES = 20
"""Alternatives asked for each token: the most that OpenAI-compatible servers give by default."""

NEGLIGIBLE = 1e-4
"""Probability of a first "1" below which it is not worth asking whether a 0 follows."""

LEAST_LIKELY = -60.0
"""A log probability that no rating's token has beside another, whatever the model: it is 100 less than a favoured one's
where the favour shows."""

BEGUN = '{"Rating":'
"""How a verdict starts whose reason is left out."""

Distributions = dict[str | None, list[float] | None]
"""Distributions over 1..10 of the rating that follows a text, by that text."""

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
        self._probes = backend.served.is_vllm

    async def rate(self, asked: Asked) -> Rated:
        """A rating on 1..10, or a named failure. Raises Refused and Transient as the backend does."""
        if self._rating_alone:
            fitted, reply = await self.fitted(asked, lambda fitted: probe(fitted.messages, BEGUN, asked.keys))
            readings = [await self._alone(asked, fitted, reply)]
        else:
            fitted, reply = await self.fitted(asked, lambda fitted: self._request(asked, fitted, 0))
            first = await self._read(asked, fitted, reply, 0, {})
            known = {} if first.calls[0].tokens else {rating.begun(first.calls[0].text): first.verdict.distribution}
            others = (self._sample(asked, fitted, number, known) for number in range(1, self.decoding.samples))
            readings = [first, *await asyncio.gather(*others)]
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

    async def _sample(self, asked: Asked, fitted: Fitted, number: int, known: Distributions) -> Reading:
        reply = await self.backend.chat(self._request(asked, fitted, number))
        return await self._read(asked, fitted, reply, number, known)

    def _request(self, asked: Asked, fitted: Fitted, number: int) -> Request:
        """What is asked for the verdict with this number, from 0."""
        by_its_tokens = self.backend.served.is_vllm or self.score_kind != "argmax"
        if self._probes and asked.constrained:
            by_its_tokens = False
        sampled = self.decoding.temperature > 0.0
        return Request(
            messages=fitted.messages,
            max_tokens=self.max_tokens,
            temperature=self.decoding.temperature,
            seed=_seed(self.decoding.seed, asked.key, number) if sampled else None,
            schema=schema(asked.keys if self.decoding.reason else ("Rating",)) if asked.constrained else None,
            top_logprobs=ALTERNATIVES if by_its_tokens else 0,
        )

    @property
    def _rating_alone(self) -> bool:
        """Whether no more is asked for than what follows a verdict that is begun for the model."""
        return not self.decoding.reason and self.backend.served.is_vllm

    async def _alone(self, asked: Asked, fitted: Fitted, probed: Reply) -> Reading:
        probabilities, calls = await self._probed(asked, fitted, BEGUN, probed)
        if probabilities is None:
            return Reading(Verdict(failure="no_distribution"), calls)
        most = rating.score(probabilities, "argmax")
        calls[0] = msgspec.structs.replace(probed, text=f"{BEGUN}{most:.0f}")  # what was forced says nothing
        return Reading(with_mixture(Verdict(rating=most), [Verdict(distribution=probabilities)]), calls)

    async def _read(self, asked: Asked, fitted: Fitted, reply: Reply, number: int, known: Distributions) -> Reading:
        """The verdict in `reply`, with the distribution of its rating: one that is `known`, by a probe or, where the
        judge cannot be probed, at the reply's own tokens."""
        if reply.tokens or not (self.backend.served.is_vllm and asked.constrained):
            return await self._at_its_tokens(asked, fitted, reply)
        begun = rating.begun(reply.text)
        if reply.reasoned:  # what the rating follows from is not in the reply
            self._probes = False
            return await self._asked_again(asked, fitted, number)
        if begun is None or known.get(begun) is not None:
            return self._reading(reply, known.get(begun), [])
        try:
            probed = await self.backend.chat(probe(fitted.messages, begun, asked.keys))
        except Refused as error:
            if error.failure != "context_length_exceeded":  # which the next verdict may be spared
                self._probes = False
            return await self._asked_again(asked, fitted, number)
        return self._reading(reply, *await self._probed(asked, fitted, begun, probed))

    async def _asked_again(self, asked: Asked, fitted: Fitted, number: int) -> Reading:
        request = msgspec.structs.replace(self._request(asked, fitted, number), top_logprobs=ALTERNATIVES)
        return await self._at_its_tokens(asked, fitted, await self.backend.chat(request))

    async def _at_its_tokens(self, asked: Asked, fitted: Fitted, reply: Reply) -> Reading:
        # Thoughts that do not show in the text may hold a verdict's draft. What follows a 1 is asked without them.
        first = rating.first_digit(reply.tokens, last=reply.reasoned)
        begun = rating.begun(reply.text) if asked.constrained else None
        return self._reading(reply, *await self._distribution(asked, fitted, begun, first))

    def _reading(self, reply: Reply, probabilities: list[float] | None, calls: list[Reply]) -> Reading:
        found = verdict.parse(reply.text, reply.truncated)
        if probabilities is not None:
            found = with_mixture(found, [Verdict(distribution=probabilities)])
        elif found.failure is None and self.score_kind != "argmax":
            found = msgspec.structs.replace(found, failure="no_distribution")
        return Reading(found, [reply, *calls])

    async def _probed(
        self, asked: Asked, fitted: Fitted, begun: str, probed: Reply
    ) -> tuple[list[float] | None, list[Reply]]:
        """The probabilities of the ratings behind `begun`, and the calls that they took. Raises UsageError where the
        log probabilities are not the model's own."""
        if _shows_favour(probed):
            message = "log probabilities show what was asked for (vLLM's --logprobs-mode processed_logprobs); "
            raise UsageError(f"{self.backend.place}: {message}judging needs raw_logprobs, its default")
        if not _among_ratings(probed):
            return None, [probed]
        first = rating.first_digit([Token(begun, []), *probed.tokens])
        probabilities, more = await self._distribution(asked, fitted, begun, first)
        return probabilities, [probed, *more]

    async def _distribution(
        self, asked: Asked, fitted: Fitted, begun: str | None, first: rating.FirstDigit | None
    ) -> tuple[list[float] | None, list[Reply]]:
        """The probabilities of the ratings, and the call that was needed where what follows a 1 is still unknown."""
        if first is None:
            return None, []
        if first.ten_given_one is not None:
            return rating.distribution(first, first.ten_given_one), []
        if first.mass[0] < NEGLIGIBLE:
            return rating.distribution(first, 0.0), []
        if begun is None or not self.backend.served.is_vllm:
            return None, []
        reply = await self.backend.chat(_behind(fitted.messages, f"{begun}1", f"[0{_end(asked.keys)}].*", max_tokens=1))
        zero = rating.zero_share(reply.tokens[0]) if reply.tokens else None
        return None if zero is None else rating.distribution(first, zero), [reply]

    def _score(self, found: Verdict) -> float | None:
        if found.failure is not None:
            return None
        return found.rating if found.distribution is None else rating.score(found.distribution, self.score_kind)


def schema(keys: Sequence[str]) -> dict[str, Any]:
    """JSON Schema of a verdict that has these keys, in this order."""
    return verdict_object({key: VERDICT_SCHEMA["properties"][key] for key in keys})


def _seed(seed: int, key: str, number: int) -> int:
    """A seed of its own for each verdict under each key, the same in every run."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}/{key}".encode()).digest()[:4], "big")


def probe(messages: Sequence[Message], begun: str, keys: Sequence[str]) -> Request:
    """Asks for the probabilities of what follows `begun`, the start of a verdict with these keys: of the rating's first
    token whatever it would be, and of what follows a 1, since a 1 is written."""
    return _behind(messages, begun, f"(10|[1-9]){_end(keys)}.*", max_tokens=2, favoured="1")


def _behind(
    messages: Sequence[Message], begun: str, regex: str, *, max_tokens: int, favoured: str | None = None
) -> Request:
    return Request(
        messages=[*messages, {"role": "assistant", "content": begun}],
        max_tokens=max_tokens,
        regex=regex,
        continue_final=True,
        top_logprobs=ALTERNATIVES,
        favoured=favoured,
    )


def _shows_favour(probed: Reply) -> bool:
    """Whether nothing but the favoured 1 has a chance that a model could give it."""
    alternatives = _first_alternatives(probed)
    most = max((logprob for _, logprob in alternatives), default=0.0)
    return [text for text, logprob in alternatives if logprob > most + LEAST_LIKELY] == ["1"]


def _among_ratings(probed: Reply) -> bool:
    """Whether the first token had to be a rating: its chances say little where a server disobeys the constraint."""
    shares = [(text, math.exp(logprob)) for text, logprob in _first_alternatives(probed)]
    return sum(share for text, share in shares if text.strip()[:1].isdigit()) > 0.5 * sum(share for _, share in shares)


def _first_alternatives(probed: Reply) -> list[tuple[str, float]]:
    return probed.tokens[0].alternatives if probed.tokens else []


def _end(keys: Sequence[str]) -> str:
    """The character behind the rating."""
    return "}" if keys[-1] == "Rating" else ","


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
