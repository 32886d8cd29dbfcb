"""Ask a judge for one rating, truncating the prompt to the context window, and read the full rating distribution.

How the distribution is read depends on the server. There is one strategy for each case:

- `ByHead`: a scoring head returns the distribution as class probabilities.
- `ByProbe`: for vLLM, which can continue a text. If the log probabilities of the written verdict do not hold the whole
  distribution, a second request (a probe) generates two tokens after `…"Rating":`. The first token shows the
  probabilities of all ratings. It is forced to be a 1 by a logit bias, so that the second token tells 1 from 10.
- `FromTokens`: for other servers, which only return the log probabilities of the written verdict.
- `AsStated`: for servers without log probabilities. The rating counts as the judge stated it.
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
"""Number of top log probabilities to request per token: the default maximum of OpenAI-compatible servers."""

NEGLIGIBLE = 1e-6
"""If the probability that the rating starts with "1" is below this, no request is made to tell 1 from 10."""

RATING_ALONE = '{"Rating":'
"""Text of a verdict without a reason, up to its rating."""

Shares = list[float] | None
"""Probabilities of a scale's ratings, lowest first, or None if they are unknown."""

SharesRead = tuple[Shares, list[Reply]]
"""Rating probabilities, and the replies to the extra requests that were made to read them."""

RatedVerdict = tuple[Verdict, list[Reply]]
"""A verdict, and the replies to all requests that were made for it. The first reply holds the verdict's text."""


class Strategy(Struct, frozen=True, kw_only=True):
    """A way to request a rating and to read its distribution.

    Strategies are immutable. The grader replaces its strategy when a reply shows what the server can do.

    - `score_kind`: the score computed from a distribution (distribution.ScoreKind).
    - `alternatives`: number of top log probabilities to request per token of a written verdict. None means as many as
      the scale has ratings, which is enough for vLLM: its grammar allows only ratings there.
    - `logprobs`: True if the server returns log probabilities, False if not, None until a reply shows it.
    """

    score_kind: str
    alternatives: int | None = 0
    logprobs: bool | None = None

    async def rate(self, grader: "Grader", request: JudgeRequest) -> tuple[JudgeRequest, RatedVerdict]:
        """Request a verdict. Return the request as it was sent (perhaps truncated), and the verdict."""
        request, reply = await grader.send(request, partial(grader.build_request, alternatives=self.alternatives))
        # Another reply may have replaced the strategy in the meantime.
        return request, await grader.strategy.read(grader, request, reply)

    async def read(self, grader: "Grader", request: JudgeRequest, reply: Reply) -> RatedVerdict:
        """Read the verdict and its distribution from `reply`, the text that the judge wrote."""
        return grader.settle(request, reply, None, [])

    def as_stated(self) -> "Strategy":
        """Return a strategy that sends the same requests but takes ratings as the judge states them."""
        return AsStated(score_kind="argmax", alternatives=self.alternatives, logprobs=self.logprobs)


class AsStated(Strategy, frozen=True):
    """Strategy that takes the rating as the judge states it, without a distribution."""


class ByHead(Strategy, frozen=True):
    """Strategy for a scoring head, which generates no text. Its class probabilities are the rating distribution."""

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
    """Strategy that reads the distribution from the log probabilities of the written verdict."""

    async def read(self, grader: "Grader", request: JudgeRequest, reply: Reply) -> RatedVerdict:
        shares, calls = await from_logprobs(grader, request, reply, parse.prefix(reply.text))
        return grader.settle(request, reply, shares, calls)


class ByProbe(FromTokens, frozen=True):
    """Strategy that reads the written verdict's log probabilities, and sends a probe if they do not hold all ratings.

    If the verdict is a rating without a reason, only the probe is sent: nothing has to be written before the rating.
    """

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
            # If the prompt is not too long, the server cannot continue a message: no verdict can be probed.
            if error.failure != "context_length_exceeded":
                grader.stop_probing()
            return await super().read(grader, request, reply)
        return grader.settle(request, reply, *await read_probe(grader, request, prefix, probed))


class Grader:
    """A judge model and the strategy by which its ratings are requested and read.

    - `setup`: how verdicts are sampled, and which score is computed.
    - `max_tokens`: most tokens of a verdict.
    - `needs`: the command-line option that requires a rating distribution, or None. If the server turns out to return
      no log probabilities, UsageError names this option; with None, ratings count as stated from then on.

    `strategy` is replaced when a reply shows what the server can do.
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

        In forms with criteria, the verdict also has a rating per criterion. Raises Refused and Transient as the backend
        does, and UsageError as `use_stated_ratings` does.
        """
        # An earlier reply had no log probabilities.
        if self.strategy.logprobs is False:
            self.use_stated_ratings()
        return await self.strategy.rate(self, request)

    async def head_score(self, request: JudgeRequest) -> tuple[JudgeRequest, Reply]:
        """Request the score of one answer from a scoring head that compares answers by their scores.

        Return the request as it was sent, and a reply whose text is the score. Raises Refused if the head does not
        return exactly one score; otherwise raises as `rate` does.
        """
        request, reply = await self.send(request, classify)
        score = _check_classes(reply, 1)
        if score is None:
            raise Refused("no_distribution", f"{self.backend.served.name} gives no single score")
        return request, replace(reply, text=f"{score[0]:.6g}")

    def build_request(self, request: JudgeRequest, alternatives: int | None = 0) -> Request:
        """Build the backend request for a verdict that the judge writes.

        `alternatives`: number of top log probabilities per token, as in Strategy.
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
        """Send a request. If prompt and reply exceed the context window, truncate the prompt and send it once more.

        `build` converts the request to a backend request. Return the request as it was sent, and the reply. Raises
        Refused if the prompt cannot be truncated enough.
        """
        # A scoring head writes nothing, but vLLM needs room for one token.
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

        The call is added to `request.paid`. The first reply to a request for log probabilities shows whether the server
        returns them, which is noted in the strategy.
        """
        reply = await self.backend.chat(sent)
        # Recorded at once, so that the cost counts even if a later step fails.
        request.paid.append(call_of(request, reply))
        # If a judge can be probed, a written verdict without log probabilities does not prove that there are none. A
        # reply without an answer never has any.
        shows_lack = sent.schema is None or self.strategy.alternatives is not None
        is_first = bool(sent.top_logprobs) and self.strategy.logprobs is None
        if is_first and (reply.tokens or (shows_lack and find_failure(reply) is None)):
            self.strategy = replace(self.strategy, logprobs=bool(reply.tokens))
        return reply

    def use_stated_ratings(self, reason: str = "") -> None:
        """Take ratings as the judge states them from now on, and print `reason`.

        The default reason is that the server gives no log probabilities. Raises UsageError if an option (`needs`)
        requires a distribution.
        """
        reason = reason or f"{self.backend.endpoint} gives no log probabilities"
        # With argmax nothing changes, so there is nothing to say.
        if self.score_kind != "argmax":
            # A user who chose a score must not silently get another one.
            if self.needs is not None:
                remedy = "--score argmax takes the ratings as they are stated, into another --out where some have more"
                raise UsageError(f"{reason}, which {self.needs} needs; {remedy}")
            notify(f"{reason}: the ratings count as they are stated (--score argmax)")
        self.strategy = self.strategy.as_stated()

    def stop_probing(self) -> None:
        """Send no more probes: from now on, read only the log probabilities of the written verdicts."""
        if isinstance(self.strategy, ByProbe):
            now = self.strategy
            self.strategy = FromTokens(score_kind=now.score_kind, alternatives=ALTERNATIVES, logprobs=now.logprobs)

    def settle(self, request: JudgeRequest, reply: Reply, shares: Shares, calls: list[Reply]) -> RatedVerdict:
        """Parse the verdict in `reply` and add its rating distribution. Return it with the replies that it took.

        If the distribution is unknown, the verdict gets the failure `no_distribution`, unless ratings count as stated.

        Args:
            reply: The reply that states the verdict.
            shares: The rating probabilities, or None if they are unknown.
            calls: The replies to the extra requests that were made to read the probabilities.

        Raises UsageError as `use_stated_ratings` does.
        """
        verdict = request.answer(reply)
        # Once ratings count as stated, no score comes from a distribution: a file has one kind of score.
        if shares is not None and not isinstance(self.strategy, AsStated):
            verdict = with_mixture(verdict, [shares])
        # A verdict that failed keeps its failure, and argmax needs no distribution.
        elif verdict.failure is None and self.score_kind != "argmax":
            if self.strategy.logprobs is False:
                self.use_stated_ratings()
            else:
                verdict = replace(verdict, failure="no_distribution")
        return verdict, [reply, *calls]


async def rate_by_probe(grader: Grader, request: JudgeRequest, probed: Reply) -> RatedVerdict:
    """Build a verdict without a reason from a probe directly after `{"Rating":`, and return it with all replies.

    `probed`: the reply to the probe. Raises as `read_probe` does.
    """
    shares, calls = await read_probe(grader, request, RATING_ALONE, probed)
    # There is no written rating that could count instead.
    if shares is None:
        return Verdict(failure="no_distribution"), calls
    low, _ = request.prompt.scale
    # The text of the probe was forced, so the most probable rating is recorded instead.
    calls[0] = replace(probed, text=f"{RATING_ALONE}{low + shares.index(max(shares))}")
    return build_verdict(shares, request.prompt.scale), calls


async def read_probe(grader: Grader, request: JudgeRequest, prefix: str, probed: Reply) -> SharesRead:
    """Read the rating probabilities from the reply to a probe. Return them, and all replies that they took.

    The probabilities are None if the server ignored the grammar.

    Args:
        prefix: The verdict up to its rating, which the probe continued.
        probed: The reply to the probe.

    Raises UsageError if the log probabilities include the logit bias instead of being the model's own.
    """
    alternatives = probed.tokens[0].alternatives if probed.tokens else []
    # If the log probabilities include the bias of 100, only the forced 1 has a probability that a model could give it.
    most = max((logprob for _, logprob in alternatives), default=0.0)
    likely = [text for text, logprob in alternatives if logprob > most - 60.0]
    if request.prompt.scale[1] >= 10 and likely == ["1"]:
        message = "log probabilities show what was asked for (vLLM's --logprobs-mode processed_logprobs); "
        raise UsageError(f"{grader.backend.endpoint}: {message}judging needs raw_logprobs, its default")
    # Under the grammar, the first token is the start of a rating. If not, the server ignored the grammar.
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
    """Read the rating probabilities from the tokens of a verdict. Return them, and the replies to further requests.

    At most one further request is made, to tell 1 from 10. The probabilities are None if the tokens do not show them.

    Args:
        reply: The verdict with its tokens.
        prefix: The text of the verdict up to the rating, or None if it has no rating.
    """
    scale = request.prompt.scale
    # Hidden reasoning may be among the tokens and hold a draft of the verdict, so the last rating counts.
    first = distribution.first_digit(reply.tokens, reply.reasoned, scale, prefix or "")
    # It is unknown where the rating begins, or which probabilities it has.
    if first is None:
        return None, []
    zero, calls = first.ten_given_one, list[Reply]()
    if zero is None:
        zero = reply.ten_given_one
    if zero is None and first.mass[1 - scale[0]] < NEGLIGIBLE:
        zero = 0.0
    # The verdict has another rating than 1, so its tokens do not show whether a 1 would have become a 10.
    elif zero is None and prefix is not None and grader.can_probe:
        behind = build_continuation(request, f"{prefix}1", f"[0{_get_end(request)}].*", max_tokens=1)
        calls = [await grader.chat(request, behind)]
        zero = distribution.zero_share(calls[0].tokens)
    return None if zero is None else distribution.distribution(first, zero, scale), calls


def call_of(request: JudgeRequest, reply: Reply, verdict: Verdict | None = None) -> Call:
    """Build the record of one call. `verdict`: the verdict that was read from the reply, or None."""
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

    If some fail, the first error is raised, but only after all have ended, so that the cost of each call is recorded.
    """
    tasks = [asyncio.ensure_future(call) for call in work]
    await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]


def build_verdict(shares: list[float], scale: Scale) -> Verdict:
    """Build a verdict without a reason from the probabilities of the scale's ratings, lowest first.

    Its rating is the most probable one, on 1..10.
    """
    empty = Verdict(rating=distribution.score(shares, "argmax", scale), scale=None if scale == TEN else scale)
    return with_mixture(empty, [shares])


def classify(request: JudgeRequest) -> Request:
    """Build the backend request for a scoring head. Raise Refused unless the form is a single rating on 1..10."""
    if not rates(request.name):
        raise Refused("refused", f"form {request.name}: {NO_TEXT}")
    return Request(messages=request.messages, max_tokens=0, classify=True)


def _check_classes(reply: Reply, count: int) -> list[float] | None:
    """Return the outputs of a scoring head (`reply.classes`) if they are `count` finite numbers, else None."""
    has_them = reply.classes is not None and len(reply.classes) == count and all(map(math.isfinite, reply.classes))
    return reply.classes if has_them else None


def spread_score(score: float, ordinal: Sequence[float]) -> list[float]:
    """Convert a reward model's score to probabilities of the ratings 1..10, by the adjacent-categories logit model.

    p(k) is proportional to exp(slope · k · score + c_k) (Agresti 2010, "Analysis of Ordinal Categorical Data", §4.1),
    so a higher score never means a lower expected rating. `ordinal`: the slope (at least 0), then c_1 to c_10.

    >>> [round(share, 3) for share in spread_score(2.0, [0.5, *[0.0] * 10])[-3:]]
    [0.086, 0.233, 0.632]
    """
    slope, *offsets = ordinal
    logits = [slope * rating * score + offset for rating, offset in zip(RATINGS, offsets, strict=True)]
    weights = [math.exp(logit - max(logits)) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def read_classes(reply: Reply, scales: Mapping[str, Scale] = {}, weights: Mapping[str, float] = {}) -> RatedVerdict:
    """Build the verdict from a scoring head's class probabilities (`reply.classes`).

    The head must have one class per rating 1..10 or, if it rates by criteria, one per score of each criterion
    (distribution.count_scores); otherwise the verdict has the failure `no_distribution`. The returned reply gets a text
    like a generative judge's, for people who read the output file.

    Args:
        scales: Criterion -> lowest and highest score; {} for a head that does not rate by criteria.
        weights: The criteria whose weighted sum is the overall rating -> weight of one point (add_criteria).

    >>> _, (reply,) = read_classes(Reply(text="", classes=[0.0] * 6 + [0.75, 0.25, 0.0, 0.0]))
    >>> reply.text
    '{"Rating":7'
    >>> verdict, _ = read_classes(Reply(text="", classes=[0.1, 0.1, 0.2, 0.6]), {"a": (0, 1), "b": (1, 2)}, {"b": 1})
    >>> verdict.rating, [round(share, 2) for share in verdict.criteria["b"].distribution], list(verdict.criteria)
    (10.0, [0.25, 0.75], ['b'])
    """
    # With another number of classes, it is unknown which class is which rating.
    shares = _check_classes(reply, sum(distribution.count_scores(scales)))
    if shares is None:
        return Verdict(failure="no_distribution"), [reply]
    by_name = dict[str, Verdict]()
    if scales:
        parts = distribution.split_by_criterion(shares, scales)
        # The server normalizes over the classes of all criteria, so those of one criterion may all round to 0.
        if not all(sum(parts[name]) for name in weights):
            return Verdict(failure="no_distribution"), [reply]
        known = {name: [share / sum(parts[name]) for share in parts[name]] for name in weights}
        by_name = {name: build_verdict(known[name], scales[name]) for name in weights}
        shares = distribution.add_criteria(known, weights)
    verdict = replace(build_verdict(shares, TEN), criteria=by_name)
    return verdict, [replace(reply, text=f"{RATING_ALONE}{verdict.rating:g}")]


def _choose_criteria(material: PromptInputs, about: Mapping[str, Any]) -> dict[str, float]:
    """Return the criteria whose weighted sum is the rating of an answer: name -> weight of one point (default 1).

    They are the criteria of the answer's row. If the row has none, they are all criteria of the judge, provided that
    every training row was scored by all of them. `about`: the published facts about the judge (ModelInfo.about). Raise
    Refused if the judge does not rate by one of the criteria, or if the row has to name them.
    """
    names = [*(material.criteria or about["criteria"])]
    known = ", ".join(about["criteria"])
    if not material.criteria and about.get("apart"):
        raise Refused("refused", f"{known} are not all criteria of one answer; its row has to name its criteria")
    if strange := [name for name in names if name not in about["criteria"]]:
        raise Refused("refused", f"the judge does not rate by {strange[0]}, but by {known}")
    return {name: material.criteria_weights.get(name, 1.0) for name in names}


def build_probe(request: JudgeRequest, prefix: str) -> Request:
    """Build the backend request for a probe: a short continuation of a verdict, for its rating probabilities.

    `prefix` is the text of the verdict up to its rating. The first token of the reply shows the probability of each
    first digit. If the scale includes 10, that token is forced to be a 1, and the second token shows whether a 0
    follows.
    """
    low, high = request.prompt.scale
    digits, behind = f"[{low}-{min(high, 9)}]", f"{_get_end(request)}.*"
    # If all ratings have one digit, one token is enough.
    if high < 10:
        return build_continuation(request, prefix, f"{digits}{behind}", max_tokens=1)
    return build_continuation(request, prefix, f"(10|{digits}){behind}", max_tokens=2, forced_token="1")


def build_continuation(
    request: JudgeRequest, prefix: str, regex: str, *, max_tokens: int, forced_token: str | None = None
) -> Request:
    """Build the backend request to continue a verdict after `prefix`, with the top log probabilities of each token.

    Args:
        regex: Pattern that the continuation must match.
        forced_token: Text of the token to force by a logit bias, or None.
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
    """Return the character that follows the rating in the prompt's output format: "}" or ","."""
    return "}" if request.keys()[-1] == RATING else ","


def with_mixture(verdict: Verdict, distributions: Sequence[Shares]) -> Verdict:
    """Return the verdict with the unweighted mean of the distributions and its summary.

    `distributions`: probabilities of the ratings on the verdict's scale, lowest first. If one is None, return the
    verdict unchanged.
    """
    known = [shares for shares in distributions if shares is not None]
    # A mean over only the known ones would be that of another panel.
    if len(known) < len(distributions):
        return verdict
    mixture = [fmean(shares) for shares in zip(*known, strict=True)]
    return replace(verdict, distribution=mixture, summary=distribution.summary(mixture, verdict.scale or TEN))
