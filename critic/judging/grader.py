"""Ask a judge for one rating, truncating the prompt to the context window, and read the full rating distribution.

A strategy says how the distribution is read. It depends on the server:

- `ByHead`: a scoring head returns the distribution as class probabilities.
- `ByProbe`: vLLM returns log probabilities under a grammar that allows only ratings. If the verdict's own tokens do not
  hold the whole distribution, a probe of two tokens after `…"Rating":` asks for it. The first token shows the
  probabilities of all ratings. A logit bias then forces a 1, and the second token tells 1 from 10.
- `FromTokens`: other servers only return the log probabilities of the verdict's own tokens.
- `AsStated`: without log probabilities, the rating counts as the judge stated it.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any, TypeVar

from msgspec import Struct, convert
from msgspec.structs import replace

from critic.backends import NO_TEXT, Backend, Reply, Request, Token, add_cost, count_images, find_failure, read_usage
from critic.errors import Refused, UsageError, notify
from critic.judging import distribution, parse
from critic.judging.forms import JudgeRequest, rates
from critic.judging.kinds import graded
from critic.judging.prompt import truncate_to_fit
from critic.judging.targets import RATING
from critic.records import RATINGS, TEN, Call, JudgeConfig, Message, PromptInputs, Scale, Verdict

T = TypeVar("T")

ALTERNATIVES = 20
"""Top log probabilities requested per token: the default maximum of OpenAI-compatible servers."""

NEGLIGIBLE = 1e-6
"""If a rating starts with "1" with a lower probability than this, no request is spent on the token after it."""

RATING_ALONE = '{"Rating":'
"""The prefix of a verdict without a reason."""

Shares = list[float] | None
"""Probabilities of a scale's ratings, or None if they are unknown."""

SharesRead = tuple[Shares, list[Reply]]
"""Rating probabilities, and the replies to the requests that were made for them besides the verdict's."""

RatedVerdict = tuple[Verdict, list[Reply]]
"""A verdict and all replies that it took. The first reply holds the verdict's text."""


class Strategy(Struct, frozen=True, kw_only=True):
    """A way to request a rating and to read it.

    Strategies are immutable. The grader replaces its strategy when a reply shows what the server can do.

    - `score_kind`: the score computed from a distribution (distribution.ScoreKind).
    - `alternatives`: top log probabilities to request per token of a written verdict. None means one per rating, since
      no other token can begin a rating under vLLM's grammar.
    - `logprobs`: whether the server returns log probabilities; None until a reply shows it.
    """

    score_kind: str
    alternatives: int | None = 0
    logprobs: bool | None = None

    async def rate(self, grader: "Grader", request: JudgeRequest) -> tuple[JudgeRequest, RatedVerdict]:
        """Request a written verdict. Return the request as it was sent (perhaps truncated), and the verdict."""
        request, reply = await grader.send(request, partial(grader.build_request, alternatives=self.alternatives))
        # Another reply may have replaced the strategy in the meantime.
        return request, await grader.strategy.read(grader, request, reply)

    async def read(self, grader: "Grader", request: JudgeRequest, reply: Reply) -> RatedVerdict:
        """Read the verdict and its distribution from a written `reply`."""
        return grader.settle(request, reply, None, [])

    def as_stated(self) -> "Strategy":
        """Return the strategy that sends the same requests but takes ratings as the judge stated them."""
        return AsStated(score_kind="argmax", alternatives=self.alternatives, logprobs=self.logprobs)


class AsStated(Strategy, frozen=True):
    """Strategy that takes the rating as the judge stated it, without a distribution."""


class ByHead(Strategy, frozen=True):
    """Strategy for a scoring head, which generates no text: its class probabilities are the distribution."""

    async def rate(self, grader: "Grader", request: JudgeRequest) -> tuple[JudgeRequest, RatedVerdict]:
        about = grader.backend.served.about
        scales = convert(about.get("criteria", {}), dict[str, Scale])
        weights = _choose_criteria(request.material, about) if scales else {}
        request, reply = await grader.send(request, classify)
        score, ordinal = _check_classes(reply, 1), about.get("ordinal")
        if score and ordinal:
            verdict, _ = read_classes(replace(reply, classes=spread_score(score[0], ordinal)))
            return request, (verdict, [replace(reply, text=f"{score[0]:.6g}")])
        return request, read_classes(reply, scales, weights)

    def as_stated(self) -> Strategy:
        return replace(self, score_kind="argmax")


class FromTokens(Strategy, frozen=True):
    """Strategy that reads the log probabilities of the verdict's own tokens."""

    async def read(self, grader: "Grader", request: JudgeRequest, reply: Reply) -> RatedVerdict:
        shares, calls = await from_logprobs(grader, request, reply, parse.prefix(reply.text))
        return grader.settle(request, reply, shares, calls)


class ByProbe(FromTokens, frozen=True):
    """Strategy that reads the verdict's own tokens if they hold the whole distribution, and else sends a probe."""

    async def rate(self, grader: "Grader", request: JudgeRequest) -> tuple[JudgeRequest, RatedVerdict]:
        if grader.decoding.reason or request.keys(False) != (RATING,):
            return await super().rate(grader, request)
        # Without a reason nothing has to be written: the probe behind the empty verdict is the verdict.
        sent, reply = await grader.send(request, lambda request: build_probe(request, RATING_ALONE))
        verdict, probes = await rate_by_probe(grader, sent, reply)
        if grader.can_probe:
            return sent, (verdict, probes)
        # The probe has shown that there are no log probabilities. Its text was forced, so the rating is asked for.
        grader.use_stated_ratings()
        request, (verdict, written) = await grader.strategy.rate(grader, request)
        # The probe was paid for, and stays in the record.
        return request, (verdict, [*written, *probes])

    async def read(self, grader: "Grader", request: JudgeRequest, reply: Reply) -> RatedVerdict:
        prefix = parse.prefix(reply.text)
        first = distribution.first_digit(reply.tokens, reply.reasoned, request.prompt.scale, prefix or "")
        is_whole = first is not None and abs(first.on_ratings - 1.0) < 1e-5  # but for rounding
        if is_whole or not grader.can_probe:
            return await super().read(grader, request, reply)
        # A probe needs all that the rating follows from. Hidden reasoning is not in the reply.
        if reply.reasoned:
            grader.stop_probing()
            return await super().read(grader, request, reply)
        # A verdict cut off before its rating has no distribution.
        if prefix is None:
            return grader.settle(request, reply, None, [])
        try:
            probed = await grader.chat(request, build_probe(request, prefix))
        except Refused as error:
            # Too long a prompt is this verdict's misfortune. Otherwise the server cannot continue a message.
            if error.failure != "context_length_exceeded":
                grader.stop_probing()
            return await super().read(grader, request, reply)
        return grader.settle(request, reply, *await read_probe(grader, request, prefix, probed))


class Grader:
    """A judge model and the strategy by which its ratings are requested and read.

    The `setup` says how verdicts are sampled, and which score is computed. Only `strategy` changes: if the first
    replies have no log probabilities, ratings count as stated from then on. If `needs` names a command-line option that
    requires a distribution, UsageError is raised instead; None means that no option does.
    """

    def __init__(self, backend: Backend, setup: JudgeConfig, max_tokens: int, needs: str | None) -> None:
        self.backend, self.decoding, self.max_tokens, self.needs = backend, setup.decoding, max_tokens, needs
        kind = setup.score_kind
        if backend.served.is_classifier:
            self.strategy: Strategy = ByHead(score_kind=kind)
        elif backend.served.is_vllm:
            self.strategy = ByProbe(score_kind=kind, alternatives=None)
        else:
            self.strategy = FromTokens(score_kind=kind, alternatives=0 if kind == "argmax" else ALTERNATIVES)

    @property
    def score_kind(self) -> str:
        """Return the kind of score that is computed now (distribution.ScoreKind)."""
        return self.strategy.score_kind

    @property
    def can_probe(self) -> bool:
        """Return True if the server can continue a verdict and return log probabilities of the next tokens."""
        stated = isinstance(self.strategy, AsStated)
        return self.backend.served.is_vllm and not stated and self.strategy.logprobs is not False

    async def rate(self, request: JudgeRequest) -> tuple[JudgeRequest, RatedVerdict]:
        """Request a rating. Return the request as it was sent, and the verdict: a rating or a failure.

        Forms with criteria also get a rating per criterion. Raises Refused and Transient as the backend does.
        """
        # An earlier reply showed it: nothing more is paid for scores that cannot be had.
        if self.strategy.logprobs is False:
            self.use_stated_ratings()
        return await self.strategy.rate(self, request)

    async def head_score(self, request: JudgeRequest) -> tuple[JudgeRequest, Reply]:
        """Request the score of a comparing head.

        Return the request as it was sent, and a reply with the score as its text. Raises Refused if the head does not
        return exactly one score; otherwise raises as `rate` does.
        """
        request, reply = await self.send(request, classify)
        score = _check_classes(reply, 1)
        if score is None:
            raise Refused("no_distribution", f"{self.backend.served.name} gives no single score")
        return request, replace(reply, text=f"{score[0]:.6g}")

    def build_request(self, request: JudgeRequest, alternatives: int | None = 0) -> Request:
        """Build the backend request for a written verdict.

        `alternatives`: top log probabilities per token, as in Strategy.
        """
        low, high = request.prompt.scale
        return Request(
            messages=request.messages,
            max_tokens=self.max_tokens,
            temperature=self.decoding.temperature,
            seed=request.seed,
            schema=request.schema(self.decoding.reason),
            top_logprobs=high - low + 1 if alternatives is None else alternatives,
        )

    async def send(self, request: JudgeRequest, build: Callable[[JudgeRequest], Request]) -> tuple[JudgeRequest, Reply]:
        """Send the request that `build` makes, with a truncated prompt if prompt and reply exceed the context window.

        Return the request as it was sent, and the reply. Raises Refused if the prompt cannot be truncated enough.
        """
        # A scoring head writes nothing, but vLLM wants a token less than the context.
        max_tokens = 1 if self.backend.served.is_classifier else self.max_tokens
        context, lost = self.backend.served.context, None
        request = request.rendered()
        try:
            lost = await self.chat(request, build(request))
            # vLLM answers a prompt that leaves too little room with a reply cut short, whose tokens count as well.
            if context is None or not lost.truncated or lost.prompt_tokens + max_tokens <= context:
                return request, lost
        except Refused as error:
            # Without a known context nobody can tell what would fit.
            if error.failure != "context_length_exceeded" or context is None:
                raise

        def count(messages: Sequence[Message]) -> int:
            return self.backend.count_tokens(request.sent(messages))

        fitted = await asyncio.to_thread(truncate_to_fit, request.prompt, request.material, context - max_tokens, count)
        # The rubric and the question are never shortened: that would be another task.
        if fitted is None:
            raise Refused("context_length_exceeded", "rubric and question alone do not fit")
        truncated = replace(request, fitted=fitted)
        return truncated, add_cost(await self.chat(truncated, build(truncated)), lost)

    async def chat(self, request: JudgeRequest, sent: Request) -> Reply:
        """Send a backend request and return its reply.

        Its cost is recorded, and whether the server returns log probabilities.
        """
        reply = await self.backend.chat(sent)
        # At once, so that what fails later still counts what it took.
        request.paid.append(call_of(request, reply))
        # From a judge that can be probed a written verdict without log probabilities shows nothing. A reply that is no
        # answer never has any.
        shows_lack = sent.schema is None or self.strategy.alternatives is not None
        is_first = bool(sent.top_logprobs) and self.strategy.logprobs is None
        if is_first and (reply.tokens or (shows_lack and find_failure(reply) is None)):
            self.strategy = replace(self.strategy, logprobs=bool(reply.tokens))
        return reply

    def use_stated_ratings(self, reason: str = "") -> None:
        """Take ratings as stated from now on, and print `reason` (default: the server gives no log probabilities).

        Raises UsageError if an option needs a distribution.
        """
        reason = reason or f"{self.backend.endpoint} gives no log probabilities"
        # With argmax nothing changes, so there is nothing to say.
        if self.score_kind != "argmax":
            # Who named a score must not get another one under its name.
            if self.needs is not None:
                remedy = "--score argmax takes the ratings as they are stated, into another --out where some have more"
                raise UsageError(f"{reason}, which {self.needs} needs; {remedy}")
            notify(f"{reason}: the ratings count as they are stated (--score argmax)")
        self.strategy = self.strategy.as_stated()

    def stop_probing(self) -> None:
        """Send no more probes: read only the verdicts' own tokens from now on."""
        if isinstance(self.strategy, ByProbe):
            now = self.strategy
            self.strategy = FromTokens(score_kind=now.score_kind, alternatives=ALTERNATIVES, logprobs=now.logprobs)

    def settle(self, request: JudgeRequest, reply: Reply, shares: Shares, calls: list[Reply]) -> RatedVerdict:
        """Return the verdict in `reply` with its distribution.

        Without a distribution the verdict fails, unless stated ratings count.

        Args:
            shares: The rating probabilities, or None if they are unknown.
            calls: The replies to the requests that were made for the probabilities.
        """
        verdict = request.answer(reply)
        # A file has one kind of score.
        if shares is not None and not isinstance(self.strategy, AsStated):
            verdict = with_mixture(verdict, [shares])
        # A verdict that failed keeps its own reason, and argmax needs no distribution.
        elif verdict.failure is None and self.score_kind != "argmax":
            if self.strategy.logprobs is False:
                self.use_stated_ratings()
            else:
                verdict = replace(verdict, failure="no_distribution")
        return verdict, [reply, *calls]


async def rate_by_probe(grader: Grader, request: JudgeRequest, probed: Reply) -> RatedVerdict:
    """Build a verdict without a reason from `probed`, the reply to a probe directly after `{"Rating":`."""
    shares, calls = await read_probe(grader, request, RATING_ALONE, probed)
    # The judge wrote no rating of its own that could count instead.
    if shares is None:
        return Verdict(failure="no_distribution"), calls
    low, _ = request.prompt.scale
    # The text of the probe was forced. In the record stands the most probable rating.
    calls[0] = replace(probed, text=f"{RATING_ALONE}{low + shares.index(max(shares))}")
    return build_verdict(shares, request.prompt.scale), calls


async def read_probe(grader: Grader, request: JudgeRequest, prefix: str, probed: Reply) -> SharesRead:
    """Return the rating probabilities after `prefix` from a probe's reply `probed`, and all replies they took.

    The probabilities are None if the server ignored the grammar. Raises UsageError if the log probabilities are not the
    model's own but include the logit bias.
    """
    alternatives = probed.tokens[0].alternatives if probed.tokens else []
    # If the logit bias of 100 shows, nothing but the favoured 1 has a probability that a model could give it.
    most = max((logprob for _, logprob in alternatives), default=0.0)
    likely = [text for text, logprob in alternatives if logprob > most - 60.0]
    if request.prompt.scale[1] >= 10 and likely == ["1"]:
        message = "log probabilities show what was asked for (vLLM's --logprobs-mode processed_logprobs); "
        raise UsageError(f"{grader.backend.endpoint}: {message}judging needs raw_logprobs, its default")
    # The first token had to be a rating. If a server disobeys the constraint, its probabilities mean little.
    on_all = on_ratings = 0.0
    for text, logprob in alternatives:
        on_all += math.exp(logprob)
        on_ratings += math.exp(logprob) if text.strip()[:1].isdigit() else 0.0
    if on_ratings <= 0.5 * on_all:
        return None, [probed]
    verdict = replace(probed, tokens=[Token(prefix, []), *probed.tokens], reasoned=False)
    shares, calls = await from_logprobs(grader, request, verdict, prefix)
    return shares, [probed, *calls]


async def from_logprobs(grader: Grader, request: JudgeRequest, reply: Reply, prefix: str | None) -> SharesRead:
    """Return the rating probabilities from the reply's tokens, and the replies to further requests.

    A further request is made only to tell 1 from 10. The probabilities are None if the tokens do not show them.

    Args:
        prefix: The reply up to the rating, or None if it states none.
    """
    scale = request.prompt.scale
    # Thoughts that do not show in the text may hold a draft of the verdict, so the last rating counts.
    first = distribution.first_digit(reply.tokens, reply.reasoned, scale, prefix or "")
    # Where the rating begins is unknown, and any other place has other probabilities.
    if first is None:
        return None, []
    zero, calls = first.ten_given_one, list[Reply]()
    if zero is None:
        zero = reply.ten_given_one
    if zero is None and first.mass[1 - scale[0]] < NEGLIGIBLE:
        zero = 0.0
    # The reply goes on with another rating than a 1, so it does not show whether a 1 would be a 10.
    elif zero is None and prefix is not None and grader.can_probe:
        behind = build_continuation(request, f"{prefix}1", f"[0{_get_end(request)}].*", max_tokens=1)
        calls = [await grader.chat(request, behind)]
        zero = distribution.zero_share(calls[0].tokens)
    return None if zero is None else distribution.distribution(first, zero, scale), calls


def call_of(request: JudgeRequest, reply: Reply, verdict: Verdict | None = None) -> Call:
    """Build the record of one call from its request, its reply, and the `verdict` read from the reply, if any."""
    call = Call(
        reply=reply.text,
        shortened=request.fitted.shortened,
        attempts=reply.attempts,
        images=count_images(request.messages),
        answered_by=reply.answered_by,
        **read_usage(reply),
    )
    if verdict is None:
        return call
    value = verdict.value if verdict.rating is None else graded(verdict.rating)
    if verdict.answers:
        value = " ".join("?" if answer is None else "yes" if answer else "no" for answer in verdict.answers)
    return replace(call, first=request.first, value=value, failure=verdict.failure)


async def gather_all(work: Iterable[Awaitable[T]]) -> list[T]:
    """Run awaitables concurrently and return their results.

    The first error is raised only after all have ended, so that the cost of each is recorded.
    """
    tasks = [asyncio.ensure_future(call) for call in work]
    await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]


def build_verdict(shares: list[float], scale: Scale) -> Verdict:
    """Build a verdict without a reason from rating probabilities (lowest rating first)."""
    empty = Verdict(rating=distribution.score(shares, "argmax", scale), scale=None if scale == TEN else scale)
    return with_mixture(empty, [shares])


def classify(request: JudgeRequest) -> Request:
    """Build the backend request for a scoring head. Raise Refused unless the form asks only for one rating on 1..10."""
    if not rates(request.name):
        raise Refused("refused", f"form {request.name}: {NO_TEXT}")
    return Request(messages=request.messages, max_tokens=0, classify=True)


def _check_classes(reply: Reply, count: int) -> list[float] | None:
    """Return the head's outputs if they are `count` finite numbers, else None."""
    has_them = reply.classes is not None and len(reply.classes) == count and all(map(math.isfinite, reply.classes))
    return reply.classes if has_them else None


def spread_score(score: float, ordinal: Sequence[float]) -> list[float]:
    """Return the probabilities of the ratings 1..10 at a reward model's score, by the model of adjacent categories.

    p(k) is proportional to exp(slope k score + c_k) (Agresti 2010, "Analysis of Ordinal Categorical Data", §4.1), so
    that a higher score never means a lower expected rating. `ordinal`: the slope (at least 0), and c_1 to c_10.

    >>> [round(share, 3) for share in spread_score(2.0, [0.5, *[0.0] * 10])[-3:]]
    [0.086, 0.233, 0.632]
    """
    slope, *offsets = ordinal
    logits = [slope * rating * score + offset for rating, offset in zip(RATINGS, offsets, strict=True)]
    weights = [math.exp(logit - max(logits)) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def read_classes(reply: Reply, scales: Mapping[str, Scale] = {}, weights: Mapping[str, float] = {}) -> RatedVerdict:
    """Build the verdict from a scoring head's class probabilities, with a text like that of a generative judge.

    The verdict fails unless there is a class for each rating 1..10, or for each score by each criterion. The text is
    for people who read the file.

    Args:
        scales: Criterion -> lowest and highest score; empty for a head that does not rate by criteria.
        weights: The criteria that the rating is the sum of -> weight of a point (distribution.add_criteria).

    >>> _, (reply,) = read_classes(Reply(text="", classes=[0.0] * 6 + [0.75, 0.25, 0.0, 0.0]))
    >>> reply.text
    '{"Rating":7'
    >>> verdict, _ = read_classes(Reply(text="", classes=[0.1, 0.1, 0.2, 0.6]), {"a": (0, 1), "b": (1, 2)}, {"b": 1})
    >>> verdict.rating, [round(share, 2) for share in verdict.criteria["b"].distribution], list(verdict.criteria)
    (10.0, [0.25, 0.75], ['b'])
    """
    # Of another number of classes nobody knows which class is which rating.
    shares = _check_classes(reply, sum(distribution.count_scores(scales)))
    if shares is None:
        return Verdict(failure="no_distribution"), [reply]
    by_name = dict[str, Verdict]()
    if scales:
        parts = distribution.split_by_criterion(shares, scales)
        # The server normalises over all classes; what is too small for it is unknown.
        if not all(sum(parts[name]) for name in weights):
            return Verdict(failure="no_distribution"), [reply]
        known = {name: [share / sum(parts[name]) for share in parts[name]] for name in weights}
        by_name = {name: build_verdict(known[name], scales[name]) for name in weights}
        shares = distribution.add_criteria(known, weights)
    verdict = replace(build_verdict(shares, TEN), criteria=by_name)
    return verdict, [replace(reply, text=f"{RATING_ALONE}{verdict.rating:g}")]


def _choose_criteria(material: PromptInputs, about: Mapping[str, Any]) -> dict[str, float]:
    """Return the criteria that the rating of an answer is the sum of, name -> weight of a point.

    They are those of the row, or else all by which every row of training was scored. `about`: as in ModelInfo. Raise
    Refused if the judge does not rate by one of them.
    """
    names = [*(material.criteria or about["criteria"])]
    known = ", ".join(about["criteria"])
    if not material.criteria and about.get("apart"):
        raise Refused("refused", f"{known} are not all criteria of one answer; its row has to name its criteria")
    if strange := [name for name in names if name not in about["criteria"]]:
        raise Refused("refused", f"the judge does not rate by {strange[0]}, but by {known}")
    return {name: material.criteria_weights.get(name, 1.0) for name in names}


def build_probe(request: JudgeRequest, prefix: str) -> Request:
    """Build the request for the rating probabilities after `prefix`, a verdict up to its rating.

    The first token of the reply shows the probability of each first digit. If the scale includes 10, a 1 is forced, and
    the second token shows whether a 0 follows it.
    """
    low, high = request.prompt.scale
    digits, behind = f"[{low}-{min(high, 9)}]", f"{_get_end(request)}.*"
    # One token tells ratings of one digit apart.
    if high < 10:
        return build_continuation(request, prefix, f"{digits}{behind}", max_tokens=1)
    return build_continuation(request, prefix, f"(10|{digits}){behind}", max_tokens=2, forced_token="1")


def build_continuation(
    request: JudgeRequest, prefix: str, regex: str, *, max_tokens: int, forced_token: str | None = None
) -> Request:
    """Build the request to continue a verdict after `prefix`, with the top log probabilities of each token.

    `regex`: pattern of the continuation. `forced_token`: token to force by a logit bias, or None.
    """
    return Request(
        messages=[*request.messages, {"role": "assistant", "content": prefix}],
        max_tokens=max_tokens,
        regex=regex,
        continue_final=True,
        top_logprobs=ALTERNATIVES,
        forced_token=forced_token,
    )


def _get_end(request: JudgeRequest) -> str:
    """Return the character that follows the rating in the output format."""
    return "}" if request.keys()[-1] == RATING else ","


def with_mixture(verdict: Verdict, distributions: Sequence[Shares]) -> Verdict:
    """Return the verdict with the unweighted mean of the distributions, or unchanged if one of them is None."""
    known = [shares for shares in distributions if shares is not None]
    # The mean of those that are known would be another panel's.
    if len(known) < len(distributions):
        return verdict
    mixture = [fmean(shares) for shares in zip(*known, strict=True)]
    return replace(verdict, distribution=mixture, summary=distribution.summary(mixture, verdict.scale or TEN))
