"""Asking a judge model for one verdict: in a prompt that fits, and of a rating the distribution as well.

Where a server can go on with a message that is begun for it (vLLM), the distribution is not read off the verdict's own
tokens but asked for behind it, by a probe: the verdict's prefix `…"Rating":`, a reply constrained to the scale's
ratings, and the log probabilities of its first token. With 10 on the scale one more thing is unknown, whether a 1 goes
on to be a 10. A probe of two tokens tells both: its first token shows the chances of all ratings, a logit bias then
writes a 1 whatever they are (log probabilities do not show it), and the second token shows what follows a 1.
"""

import asyncio
import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from critic.asking import rating
from critic.asking.forms import CriteriaKind, Form, form_of, keys, prompt_of, schema
from critic.asking.prompt import Prompt
from critic.asking.render import Fitted, Material, fit, render
from critic.asking.tokens import RATING
from critic.backends import Backend, Reply, Request, Token
from critic.errors import Refused, UsageError
from critic.records import GREEDY, TEN, Decoding, Language, Message, Scale, Verdict

ALTERNATIVES = 20
"""Alternatives asked for each token: the most that OpenAI-compatible servers give by default."""

NEGLIGIBLE = 1e-4
"""Probability of a first "1" below which it is not worth asking whether a 0 follows."""

LEAST_LIKELY = -60.0
"""A log probability that no rating's token has beside another, whatever the model: it is 100 less than a favoured one's
where the favour shows."""

RATING_ALONE = '{"Rating":'
"""The prefix of a verdict whose reason is left out."""

Distributions = dict[str | None, list[float] | None]
"""Distributions over the ratings that follow a prefix, by the prefix."""


class Inquiry(Struct, frozen=True, kw_only=True):
    """What a judge is asked in a form. What is sampled for one `key` is the same in every run."""

    key: str
    form: Form
    prompt: Prompt
    material: Material

    @property
    def messages(self) -> list[Message]:
        """The whole prompt, before anything is left out of it."""
        return render(self.prompt, self.material)

    def keys(self, reason: bool = True) -> tuple[str, ...]:
        return keys(self.form, self.prompt, self.material, reason)

    def schema(self, reason: bool = True) -> dict[str, Any] | None:
        """The constraint on the reply; None where it is free text."""
        return schema(self.form, self.prompt, self.material, reason) if self.prompt.constrained else None

    def read(self, reply: Reply) -> Verdict:
        return self.form.kind.read(self.prompt, self.material, reply.text, reply.truncated)

    def fit(self, limit: int, count: Callable[[list[Message]], int]) -> Fitted | None:
        return fit(self.prompt, self.material, limit, count)


def inquiry(name: str, language: Language, material: Material, key: str = "") -> Inquiry:
    """What is asked of some material in the form `name`, by the prompt for `language`. Raises UsageError for an unknown
    form."""
    return Inquiry(key=key, form=form_of(name), prompt=prompt_of(name, language), material=material)


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


class Asker:
    """A judge model, and how its verdicts are drawn and its ratings scored (rating.ScoreKind)."""

    def __init__(self, backend: Backend, score_kind: str, max_tokens: int, decoding: Decoding = GREEDY) -> None:
        self.backend, self.score_kind, self.max_tokens, self.decoding = backend, score_kind, max_tokens, decoding
        # True until a server shows that it cannot be probed: it refuses to go on with a message, or it reasons out of
        # sight, so that what the rating follows from is not in the reply. From then on every distribution is read at
        # the reply's own tokens, which have to be asked for with log probabilities.
        self._probes = backend.served.is_vllm

    async def rate(self, asked: Inquiry) -> Rated:
        """A rating, or a named failure; of several criteria the rating by each as well. Raises Refused and Transient
        as the backend does."""
        if self._rating_alone(asked):
            # Without a reason nothing is generated: the probe behind the empty verdict is the verdict.
            fitted, reply = await self.fitted(
                asked, lambda fitted: probe(fitted.messages, RATING_ALONE, asked.keys(), RATING, asked.prompt.scale)
            )
            readings = [await self._alone(asked, fitted, reply)]
        else:
            fitted, reply = await self.fitted(asked, lambda fitted: self._request(asked, fitted, 0))
            first = await self._read(asked, fitted, reply, 0, {})
            # Verdicts that begin alike up to the rating have one distribution: samples of a rating-first verdict
            # all share the first one's. One read at its own tokens is not shared, for each brings its own.
            known: Distributions = {}
            if not first.calls[0].tokens:
                known = {rating.prefix(first.calls[0].text): first.verdict.distribution}
            others = (self._sample(asked, fitted, number, known) for number in range(1, self.decoding.samples))
            readings = [first, *await asyncio.gather(*others)]
        verdicts = [reading.verdict for reading in readings]
        found = verdicts[0] if len(verdicts) == 1 else pooled(verdicts)
        return Rated(found, rating.scored(found, self.score_kind), fitted, readings)

    async def ask(self, asked: Inquiry, max_tokens: int | None = None) -> tuple[Fitted, Reply]:
        """A reply, greedily, of at most `max_tokens` or the asker's own limit. Raises Refused and Transient as the
        backend does."""
        limit = self.max_tokens if max_tokens is None else max_tokens
        constraint = asked.schema(self.decoding.reason)

        def request(fitted: Fitted) -> Request:
            return Request(messages=fitted.messages, max_tokens=limit, schema=constraint)

        return await self.fitted(asked, request, limit)

    async def fitted(
        self, asked: Inquiry, request: Callable[[Fitted], Request], max_tokens: int | None = None
    ) -> tuple[Fitted, Reply]:
        """The judge's first reply to the whole prompt or, where prompt and reply do not fit together, to one
        that fits. Raises Refused where none does.

        vLLM refuses a prompt longer than its context; one that only leaves too little room for the
        reply it answers with a reply cut short.
        """
        context, longest = self.backend.served.context, self.max_tokens if max_tokens is None else max_tokens
        whole = Fitted(asked.messages, {})
        try:
            reply = await self.backend.chat(request(whole))
            if context is None or reply.prompt_tokens + longest <= context:
                return whole, reply
        except Refused as error:
            if error.failure != "context_length_exceeded" or context is None:
                raise
        fitted = await asyncio.to_thread(asked.fit, context - longest, self.backend.count_tokens)
        if fitted is None:
            raise Refused("context_length_exceeded", "rubric and question alone do not fit")
        return fitted, await self.backend.chat(request(fitted))

    async def _sample(self, asked: Inquiry, fitted: Fitted, number: int, known: Distributions) -> Reading:
        reply = await self.backend.chat(self._request(asked, fitted, number))
        return await self._read(asked, fitted, reply, number, known)

    def _request(self, asked: Inquiry, fitted: Fitted, number: int) -> Request:
        """What is asked for the verdict with this number, from 0."""
        by_its_tokens = self.backend.served.is_vllm or self.score_kind != "argmax"
        if self._probes and asked.prompt.constrained:
            by_its_tokens = False
        sampled = self.decoding.temperature > 0.0
        return Request(
            messages=fitted.messages,
            max_tokens=self.max_tokens,
            temperature=self.decoding.temperature,
            seed=_seed(self.decoding.seed, asked.key, number) if sampled else None,
            schema=asked.schema(self.decoding.reason),
            top_logprobs=ALTERNATIVES if by_its_tokens else 0,
        )

    def _rating_alone(self, asked: Inquiry) -> bool:
        """Whether no more is asked for than what follows a verdict that is begun for the model."""
        return not self.decoding.reason and self.backend.served.is_vllm and asked.keys(False) == (RATING,)

    async def _alone(self, asked: Inquiry, fitted: Fitted, probed: Reply) -> Reading:
        shares, calls = await self._probed(asked, fitted, RATING_ALONE, probed, RATING)
        if shares is None:
            return Reading(Verdict(failure="no_distribution"), calls)
        low, _ = asked.prompt.scale
        most = max(range(len(shares)), key=lambda place: shares[place])
        calls[0] = replace(probed, text=f"{RATING_ALONE}{low + most}")  # what was forced says nothing
        empty = Verdict(rating=rating.score(shares, "argmax", asked.prompt.scale), scale=_named(asked.prompt.scale))
        return Reading(with_mixture(empty, [Verdict(distribution=shares)]), calls)

    async def _read(self, asked: Inquiry, fitted: Fitted, reply: Reply, number: int, known: Distributions) -> Reading:
        """The verdict in `reply`, with the distribution of its rating: one that is `known`, by a probe or, where the
        judge cannot be probed, at the reply's own tokens."""
        # The reply came with log probabilities, or from a server that cannot go on with a message, or is free text
        # whose rating stands at no known place.
        if reply.tokens or not (self.backend.served.is_vllm and asked.prompt.constrained):
            return await self._at_its_tokens(asked, fitted, reply)
        if reply.reasoned:  # what the rating follows from is not in the reply
            self._probes = False
            return await self._asked_again(asked, fitted, number)
        prefix = rating.prefix(reply.text)
        # Nothing to probe behind, a verdict cut off before its rating; or the distribution is known already.
        if prefix is None or known.get(prefix) is not None:
            return await self._with_criteria(asked, fitted, self._reading(asked, reply, known.get(prefix), []))
        try:
            probed = await self.backend.chat(probe(fitted.messages, prefix, asked.keys(), RATING, asked.prompt.scale))
        except Refused as error:
            if error.failure != "context_length_exceeded":  # which the next verdict may be spared
                self._probes = False
            return await self._asked_again(asked, fitted, number)
        found = self._reading(asked, reply, *await self._probed(asked, fitted, prefix, probed, RATING))
        return await self._with_criteria(asked, fitted, found)

    async def _asked_again(self, asked: Inquiry, fitted: Fitted, number: int) -> Reading:
        request = replace(self._request(asked, fitted, number), top_logprobs=ALTERNATIVES)
        return await self._at_its_tokens(asked, fitted, await self.backend.chat(request))

    async def _at_its_tokens(self, asked: Inquiry, fitted: Fitted, reply: Reply) -> Reading:
        # Thoughts that do not show in the text may hold a verdict's draft. What follows a 1 is asked without them.
        first = rating.first_digit(reply.tokens, reply.reasoned, RATING, asked.prompt.scale)
        prefix = rating.prefix(reply.text) if asked.prompt.constrained else None
        found = self._reading(asked, reply, *await self._distribution(asked, fitted, prefix, first, RATING))
        return await self._with_criteria(asked, fitted, found)

    def _reading(self, asked: Inquiry, reply: Reply, shares: list[float] | None, calls: list[Reply]) -> Reading:
        found = asked.read(reply)
        if shares is not None:
            found = with_mixture(found, [Verdict(distribution=shares)])
        elif found.failure is None and self.score_kind != "argmax":
            found = replace(found, failure="no_distribution")
        return Reading(found, [reply, *calls])

    async def _with_criteria(self, asked: Inquiry, fitted: Fitted, found: Reading) -> Reading:
        """The reading with the distribution of the rating by each criterion: each by a probe of its own, side by side,
        or at the reply's own tokens."""
        if not isinstance(asked.form.kind, CriteriaKind):
            return found
        names = list(found.verdict.criteria)
        parts = await asyncio.gather(*(self._by_criterion(asked, fitted, found, name) for name in names))
        criteria = {name: part.verdict for name, part in zip(names, parts, strict=True)}
        calls = [call for part in parts for call in part.calls]
        return Reading(replace(found.verdict, criteria=criteria), [*found.calls, *calls])

    async def _by_criterion(self, asked: Inquiry, fitted: Fitted, found: Reading, name: str) -> Reading:
        reply, one = found.calls[0], found.verdict.criteria[name]
        prefix = rating.prefix(reply.text, name)
        if one.failure is not None:
            return Reading(one, [])
        if self._probes and not reply.tokens and asked.prompt.constrained and prefix is not None:
            probed = await self.backend.chat(probe(fitted.messages, prefix, asked.keys(), name, asked.prompt.scale))
            shares, calls = await self._probed(asked, fitted, prefix, probed, name)
        else:
            first = rating.first_digit(reply.tokens, reply.reasoned, name, asked.prompt.scale)
            shares, calls = await self._distribution(asked, fitted, prefix, first, name)
        if shares is not None:
            return Reading(with_mixture(one, [Verdict(distribution=shares)]), calls)
        return Reading(one if self.score_kind == "argmax" else replace(one, failure="no_distribution"), calls)

    async def _probed(
        self, asked: Inquiry, fitted: Fitted, prefix: str, probed: Reply, key: str
    ) -> tuple[list[float] | None, list[Reply]]:
        """The probabilities of the ratings behind `prefix`, and the calls that they took. Raises UsageError where the
        log probabilities are not the model's own."""
        if asked.prompt.scale[1] >= 10 and _shows_favour(probed):
            message = "log probabilities show what was asked for (vLLM's --logprobs-mode processed_logprobs); "
            raise UsageError(f"{self.backend.place}: {message}judging needs raw_logprobs, its default")
        if not _among_ratings(probed):
            return None, [probed]
        first = rating.first_digit([Token(prefix, []), *probed.tokens], False, key, asked.prompt.scale)
        shares, more = await self._distribution(asked, fitted, prefix, first, key)
        return shares, [probed, *more]

    async def _distribution(
        self, asked: Inquiry, fitted: Fitted, prefix: str | None, first: rating.FirstDigit | None, key: str
    ) -> tuple[list[float] | None, list[Reply]]:
        """The probabilities of the ratings, and the call that was needed where what follows a 1 is still unknown."""
        if first is None:
            return None, []
        if first.ten_given_one is not None:
            return rating.distribution(first, first.ten_given_one, asked.prompt.scale), []
        if first.mass[1 - asked.prompt.scale[0]] < NEGLIGIBLE:
            return rating.distribution(first, 0.0, asked.prompt.scale), []
        if prefix is None or not self.backend.served.is_vllm:
            return None, []
        regex = f"[0{_end(asked.keys(), key)}].*"
        reply = await self.backend.chat(_behind(fitted.messages, f"{prefix}1", regex, max_tokens=1))
        zero = rating.zero_share(reply.tokens[0]) if reply.tokens else None
        return None if zero is None else rating.distribution(first, zero, asked.prompt.scale), [reply]


def _named(scale: Scale) -> Scale | None:
    return None if scale == TEN else scale


def _seed(seed: int, key: str, number: int) -> int:
    """A seed of its own for each verdict under each key, the same in every run."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}/{key}".encode()).digest()[:4], "big")


def probe(
    messages: Sequence[Message],
    prefix: str,
    order: Sequence[str],
    key: str = RATING,
    scale: Scale = TEN,
) -> Request:
    """Asks for the probabilities of what follows `prefix`, the start of a verdict with keys in this `order`: of the
    first token of the rating under `key` whatever it would be and, with 10 on the scale, of what follows a 1, since a 1
    is written."""
    low, high = scale
    digits = f"[{low}-{min(high, 9)}]"
    if high < 10:
        return _behind(messages, prefix, f"{digits}{_end(order, key)}.*", max_tokens=1)
    return _behind(messages, prefix, f"(10|{digits}){_end(order, key)}.*", max_tokens=2, favoured="1")


def _behind(
    messages: Sequence[Message], prefix: str, regex: str, *, max_tokens: int, favoured: str | None = None
) -> Request:
    return Request(
        messages=[*messages, {"role": "assistant", "content": prefix}],
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


def _end(order: Sequence[str], key: str) -> str:
    """The character behind the rating under `key`."""
    return "}" if order[-1] == key else ","


def pooled(verdicts: Sequence[Verdict]) -> Verdict:
    """Several verdicts by one judge on one response as one: the mean of their distributions, the most frequent
    rating (the lowest of equals), and the first reason that came with it. Verdicts that failed are left out; if
    all did, the first one's failure stands for all. Of several criteria each is pooled by itself."""
    valid = [found for found in verdicts if found.failure is None and found.rating is not None]
    if not valid:
        return verdicts[0]
    scale = valid[0].scale
    most = rating.majority((found.rating for found in valid if found.rating is not None), scale or TEN)
    reasons = [found.reason for found in valid if found.rating == most and found.reason]
    by_name = {name: pooled([found.criteria[name] for found in valid]) for name in valid[0].criteria}
    one = Verdict(rating=most, reason=reasons[0] if reasons else None, criteria=by_name, scale=scale)
    return with_mixture(one, valid)


def with_mixture(found: Verdict, parts: Iterable[Verdict]) -> Verdict:
    """`found` with the mean of its parts' distributions, where each of them has one."""
    given = [part.distribution for part in parts]
    known = [shares for shares in given if shares is not None]
    if len(known) < len(given):
        return found
    mixture = rating.mixture(known)
    return replace(found, distribution=mixture, summary=rating.summary(mixture, found.scale or TEN))
