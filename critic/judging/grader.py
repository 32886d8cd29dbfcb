"""Asking a judge model for one verdict: in a prompt that fits, and of a rating the distribution as well.

vLLM's log probabilities are those under its grammar, where nothing but a rating can stand: a verdict's own tokens tell
the distribution, but for what follows a 1 that was not written, which our server tells beside them (serve/ratings.py).
Where they do not tell all, it is asked for behind the verdict, by a probe of two tokens after `…"Rating":`. The first
shows the chances of all ratings; a logit bias then writes a 1, which log probabilities do not show, and the second
token tells 1 from 10.
"""

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from statistics import fmean
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from critic.backends import NO_TEXT, Backend, Reply, Request, Token, add_cost, count_images, find_failure, read_usage
from critic.errors import Refused, UsageError
from critic.judging import distribution, parse
from critic.judging.forms import JudgeRequest, rates
from critic.judging.render import TruncatedPrompt, render, truncate_to_fit
from critic.judging.targets import RATING
from critic.records import GREEDY, RATINGS, TEN, Call, Message, SamplingParams, Verdict

T = TypeVar("T")

ALTERNATIVES = 20
"""Alternatives asked for each token: the most that OpenAI-compatible servers give by default."""

NEGLIGIBLE = 1e-6
"""Probability of a first "1" below which it is not worth asking whether a 0 follows."""

RATING_ALONE = '{"Rating":'
"""The prefix of a verdict whose reason is left out."""

Shares = list[float] | None
"""Probabilities of a scale's ratings; None where they cannot be told."""


class RatedVerdict(Struct, frozen=True):
    """A verdict, and the calls it took; the first call's reply is the verdict's text."""

    verdict: Verdict
    calls: list[Reply]


class Grader:
    """A judge model, and how its ratings are scored (distribution.ScoreKind). Where its first replies come without log
    probabilities, the ratings count that are stated (`score_kind` is argmax from then on), or a UsageError names the
    option that `needs` them."""

    def __init__(
        self,
        backend: Backend,
        score_kind: str,
        max_tokens: int,
        decoding: SamplingParams = GREEDY,
        needs: str | None = "--score",
    ) -> None:
        self.backend, self.score_kind, self.max_tokens, self.decoding = backend, score_kind, max_tokens, decoding
        self.needs = needs
        # Whether the server gives log probabilities, None until the first reply tells; whether ratings are taken as
        # they are stated; whether log probabilities are asked for all the same, so that a cache knows the requests.
        self.logprobs: bool | None = None
        self.stated, self._asks = False, score_kind != "argmax"
        # True until a server shows that it cannot be probed: it refuses to go on with a message, or it reasons out of
        # sight, so that what the rating follows from is not in the reply.
        self._probes = backend.served.is_vllm

    async def rate(self, asked: JudgeRequest) -> tuple[JudgeRequest, RatedVerdict]:
        """The question as it was sent, and the verdict: a rating, or a named failure; of several criteria the rating by
        each as well. Raises Refused and Transient as the backend does."""
        # An earlier reply showed it: nothing more is paid for scores that cannot be had.
        if self.logprobs is False and not self.stated:
            self.take_stated()
        probed: list[Reply] = []
        # A scoring head writes nothing: its classes are the distribution. vLLM wants a token less than the context.
        if self.backend.served.is_classifier:
            asked, reply = await self._fitted(asked, _classified, 1)
            return asked, _by_head(asked, reply)
        if not self.decoding.reason and self._can_probe and asked.keys(False) == (RATING,):
            # Without a reason nothing is generated: the probe behind the empty verdict is the verdict.
            asked, reply = await self._fitted(asked, lambda asked: probe(asked, RATING_ALONE), self.max_tokens)
            alone = await self._alone(asked, reply)
            # The probe itself may have shown that there are no log probabilities.
            if self._can_probe:
                return asked, alone
            self.take_stated()  # what a probe writes is forced: the rating is asked for
            # It was paid for, and stays in the record.
            probed = alone.calls
        asked, reply = await self._fitted(asked, self._request, self.max_tokens)
        rated = await self._read(asked, reply)
        return asked, replace(rated, calls=[*rated.calls, *probed])

    async def worth(self, asked: JudgeRequest) -> tuple[JudgeRequest, Reply]:
        """What is asked as it was sent, and as text the one score of a head that compares. Raises as `rate` does."""
        asked, reply = await self._fitted(asked, _classified, 1)
        if (score := _classes(reply, 1)) is None:
            raise Refused("no_distribution", f"{self.backend.served.name} gives no single score")
        return asked, replace(reply, text=f"{score[0]:.6g}")

    async def ask(self, asked: JudgeRequest) -> tuple[JudgeRequest, Reply]:
        """The question as it was sent and a reply. Raises Refused and Transient as the backend does."""
        how: dict[str, Any] = {"temperature": self.decoding.temperature, "seed": asked.seed}
        request = partial(Request, max_tokens=self.max_tokens, schema=asked.schema(self.decoding.reason), **how)
        return await self._fitted(asked, lambda asked: request(messages=asked.messages), self.max_tokens)

    async def _fitted(
        self, asked: JudgeRequest, request: Callable[[JudgeRequest], Request], max_tokens: int
    ) -> tuple[JudgeRequest, Reply]:
        """The judge's reply to the whole prompt or, where prompt and reply do not fit together, to one that fits.
        Raises Refused where none does."""
        context = self.backend.served.context
        asked, lost = replace(asked, fitted=TruncatedPrompt(render(asked.prompt, asked.material), {})), None
        try:
            lost = await self._chat(asked, request(asked))
            # vLLM answers a prompt that leaves too little room with a reply cut short, whose tokens count as well.
            if context is None or not lost.truncated or lost.prompt_tokens + max_tokens <= context:
                return asked, lost
        except Refused as error:
            # Without a known context nobody can tell what would fit.
            if error.failure != "context_length_exceeded" or context is None:
                raise

        def count(messages: Sequence[Message]) -> int:
            return self.backend.count_tokens(asked.sent(messages))

        fitted = await asyncio.to_thread(truncate_to_fit, asked.prompt, asked.material, context - max_tokens, count)
        # The rubric and the question are never shortened: that would be another task.
        if fitted is None:
            raise Refused("context_length_exceeded", "rubric and question alone do not fit")
        asked = replace(asked, fitted=fitted)
        return asked, add_cost(await self._chat(asked, request(asked)), lost)

    async def _chat(self, asked: JudgeRequest, request: Request) -> Reply:
        reply = await self.backend.chat(request)
        # At once, so that what fails later still counts what it took.
        asked.paid.append(call_of(asked, reply))
        # A reply that is no answer has no tokens either, which says nothing of the server.
        # Of a judge that can be probed only a probe shows it.
        shows = request.schema is None or not self._probes
        if request.top_logprobs and self.logprobs is None and (reply.tokens or (shows and find_failure(reply) is None)):
            self.logprobs = bool(reply.tokens)
        return reply

    @property
    def _can_probe(self) -> bool:
        return self.backend.served.is_vllm and not self.stated and self.logprobs is not False

    def take_stated(self, reason: str = "") -> None:
        """From now on ratings count as stated, for this `reason`. Raises UsageError where distributions are needed."""
        reason = reason or f"{self.backend.endpoint} gives no log probabilities"
        # Who named a score must not get another one under its name.
        if self.needs is not None and self.score_kind != "argmax":
            remedy = "--score argmax takes the ratings as they are stated, into another --out where some have more"
            raise UsageError(f"{reason}, which {self.needs} needs; {remedy}")
        # With argmax nothing changes, so there is nothing to say.
        if self.score_kind != "argmax":
            print(f"{reason}: the ratings count as they are stated (--score argmax)", file=sys.stderr)
        self.score_kind, self.stated = "argmax", True

    def _request(self, asked: JudgeRequest) -> Request:
        low, high = asked.prompt.scale
        # Without a probe the reply's own tokens must tell all, also where a server keeps to no grammar.
        others = ALTERNATIVES if self.backend.served.is_vllm or self._asks else 0
        return Request(
            messages=asked.messages,
            max_tokens=self.max_tokens,
            temperature=self.decoding.temperature,
            seed=asked.seed,
            schema=asked.schema(self.decoding.reason),
            # Under vLLM's grammar no more tokens can begin a rating than there are ratings.
            top_logprobs=high - low + 1 if self._probes else others,
        )

    async def _alone(self, asked: JudgeRequest, probed: Reply) -> RatedVerdict:
        shares, calls = await self._probed(asked, RATING_ALONE, probed)
        # The judge wrote no rating of its own that could count instead.
        if shares is None:
            return RatedVerdict(Verdict(failure="no_distribution"), calls)
        scale = asked.prompt.scale
        most = scale[0] + max(range(len(shares)), key=lambda index: shares[index])
        calls[0] = replace(probed, text=f"{RATING_ALONE}{most}")  # what was forced says nothing
        return RatedVerdict(_of(shares, scale), calls)

    async def _read(self, asked: JudgeRequest, reply: Reply) -> RatedVerdict:
        """The verdict in `reply`, and the distribution of its rating: at the reply's own tokens where they tell all of
        it, or the judge cannot be probed, and by a probe otherwise."""
        prefix = parse.prefix(reply.text)
        first = distribution.first_digit(reply.tokens, reply.reasoned, asked.prompt.scale, prefix or "")
        whole = first is not None and abs(first.on_ratings - 1.0) < 1e-5  # but for rounding
        if self._probes and self._can_probe and not whole:
            if reply.reasoned:  # what the rating follows from is not in the reply
                self._probes = False
            elif prefix is None:  # a verdict cut off before its rating has no distribution
                return self._reading(asked, reply, None, [])
            else:
                try:
                    probed = await self._chat(asked, probe(asked, prefix))
                except Refused as error:
                    if error.failure != "context_length_exceeded":  # which the next verdict may be spared
                        self._probes = False
                else:
                    return self._reading(asked, reply, *await self._probed(asked, prefix, probed))
        return self._reading(asked, reply, *await self._at_its_tokens(asked, reply, prefix))

    def _reading(self, asked: JudgeRequest, reply: Reply, shares: Shares, calls: list[Reply]) -> RatedVerdict:
        """The verdict in `reply` with its rating's distribution; without one it fails unless what is stated counts."""
        verdict = asked.answer(reply)
        if self.stated:  # a file has one kind of score
            return RatedVerdict(verdict, [reply, *calls])
        if shares is not None:
            verdict = with_mixture(verdict, [shares])
        # A verdict that failed keeps its own reason, and argmax needs no distribution.
        elif verdict.failure is None and self.score_kind != "argmax":
            if self.logprobs is False:  # this reply shows that the server gives none at all
                self.take_stated()
            else:
                verdict = replace(verdict, failure="no_distribution")
        return RatedVerdict(verdict, [reply, *calls])

    async def _probed(self, asked: JudgeRequest, prefix: str, probed: Reply) -> tuple[Shares, list[Reply]]:
        """The probabilities of the ratings behind `prefix`, and the calls that they took. Raises UsageError where the
        log probabilities are not the model's own."""
        alternatives = probed.tokens[0].alternatives if probed.tokens else []
        # Where the logit bias of 100 shows, nothing but the favoured 1 has a chance that a model could give it.
        most = max((logprob for _, logprob in alternatives), default=0.0)
        likely = [text for text, logprob in alternatives if logprob > most - 60.0]
        if asked.prompt.scale[1] >= 10 and likely == ["1"]:
            message = "log probabilities show what was asked for (vLLM's --logprobs-mode processed_logprobs); "
            raise UsageError(f"{self.backend.endpoint}: {message}judging needs raw_logprobs, its default")
        # The first token had to be a rating: its chances say little where a server disobeys the constraint.
        all_in_all = sum(math.exp(logprob) for _, logprob in alternatives)
        ratings = sum(math.exp(logprob) for text, logprob in alternatives if text.strip()[:1].isdigit())
        if ratings <= 0.5 * all_in_all:
            return None, [probed]
        reply = replace(probed, tokens=[Token(prefix, []), *probed.tokens], reasoned=False)
        shares, calls = await self._at_its_tokens(asked, reply, prefix)
        return shares, [probed, *calls]

    async def _at_its_tokens(self, asked: JudgeRequest, reply: Reply, prefix: str | None) -> tuple[Shares, list[Reply]]:
        """The probabilities of the ratings, and the call that was needed where what follows a 1 is still unknown."""
        scale = asked.prompt.scale
        # Thoughts that do not show in the text may hold a verdict's draft. What follows a 1 is asked without them.
        first = distribution.first_digit(reply.tokens, reply.reasoned, scale, prefix or "")
        # Where the rating begins cannot be told, and any other place has other chances.
        if first is None:
            return None, []
        zero, calls = first.ten_given_one, list[Reply]()
        if zero is None:
            zero = reply.ten_given_one
        if zero is None and first.mass[1 - scale[0]] < NEGLIGIBLE:
            zero = 0.0
        # The reply goes on with another rating than a 1, so it does not show whether a 1 would be a 10.
        elif zero is None and prefix is not None and self._can_probe:
            regex = f"[0{_end(asked)}].*"
            calls = [await self._chat(asked, _behind(asked, f"{prefix}1", regex, max_tokens=1))]
            zero = distribution.zero_share(calls[0].tokens)
        return None if zero is None else distribution.distribution(first, zero, scale), calls


def call_of(asked: JudgeRequest, reply: Reply) -> Call:
    """The call that a reply took, without what is read in it."""
    return Call(
        reply=reply.text,
        shortened=asked.fitted.shortened if asked.fitted else {},
        attempts=reply.attempts,
        images=count_images(asked.messages),
        answered_by=reply.answered_by,
        **read_usage(reply),
    )


async def all_of(work: Iterable[Awaitable[T]]) -> list[T]:
    """What is done side by side. The first error is raised when all have ended, so that what they took is known."""
    tasks = [asyncio.ensure_future(call) for call in work]
    await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]


def _of(shares: list[float], scale: tuple[int, int]) -> Verdict:
    """The verdict without a reason that a distribution is."""
    empty = Verdict(rating=distribution.score(shares, "argmax", scale), scale=None if scale == TEN else scale)
    return with_mixture(empty, [shares])


def _classified(asked: JudgeRequest) -> Request:
    """Asks a scoring head. Raises Refused for a form that is no single rating on 1..10."""
    if not rates(asked.name):
        raise Refused("refused", f"form {asked.name}: {NO_TEXT}")
    return Request(messages=asked.messages, max_tokens=0, classify=True)


def _classes(reply: Reply, count: int) -> list[float] | None:
    """What a head gives, if it is so many numbers."""
    known = reply.classes is not None and len(reply.classes) == count and all(map(math.isfinite, reply.classes))
    return reply.classes if known else None


def _by_head(asked: JudgeRequest, reply: Reply) -> RatedVerdict:
    # Which class is which rating is known of ten alone.
    if (shares := _classes(reply, len(RATINGS))) is None:
        return RatedVerdict(Verdict(failure="no_distribution"), [reply])
    verdict = _of(shares, TEN)
    # A text as any judge's, for whoever reads it in the file.
    return RatedVerdict(verdict, [replace(reply, text=f"{RATING_ALONE}{verdict.rating:g}")])


def probe(asked: JudgeRequest, prefix: str) -> Request:
    """Asks for the probabilities of what follows `prefix`, a verdict up to its rating: of the rating's first token
    whatever it would be and, with 10 on the scale, of what follows a 1, since a 1 is written."""
    low, high = asked.prompt.scale
    digits, behind = f"[{low}-{min(high, 9)}]", f"{_end(asked)}.*"
    # Ratings of one digit are told apart by one token.
    if high < 10:
        return _behind(asked, prefix, f"{digits}{behind}", max_tokens=1)
    return _behind(asked, prefix, f"(10|{digits}){behind}", max_tokens=2, forced_token="1")


def _behind(
    asked: JudgeRequest, prefix: str, regex: str, *, max_tokens: int, forced_token: str | None = None
) -> Request:
    return Request(
        messages=[*asked.messages, {"role": "assistant", "content": prefix}],
        max_tokens=max_tokens,
        regex=regex,
        continue_final=True,
        top_logprobs=ALTERNATIVES,
        forced_token=forced_token,
    )


def _end(asked: JudgeRequest) -> str:
    """The character behind the rating."""
    return "}" if asked.keys()[-1] == RATING else ","


def with_mixture(verdict: Verdict, distributions: Iterable[Shares]) -> Verdict:
    """The verdict with the mean of the distributions, each counting alike, where all of them are known."""
    components = list(distributions)
    known = [shares for shares in components if shares is not None]
    # The mean of those that are known would be another panel's.
    if len(known) < len(components):
        return verdict
    mixture = list(known[0]) if len(known) == 1 else [fmean(shares) for shares in zip(*known, strict=True)]
    return replace(verdict, distribution=mixture, summary=distribution.summary(mixture, verdict.scale or TEN))
