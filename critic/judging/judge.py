"""Ask a judge for the verdict on an answer or a conversation, and combine the judgments of a panel of judges."""

import asyncio
import math
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from critic import records
from critic.backends import Backend, Reply, find_failure
from critic.certificate import FittedMap
from critic.errors import Refused, Transient, hash_value
from critic.images import ImageError, Images
from critic.judging import distribution, forms
from critic.judging.forms import JudgeRequest, PlannedVerdict, form_of, inquiry
from critic.judging.grader import Grader, call_of, gather_all, with_mixture
from critic.judging.packs import Pack, own_pack
from critic.judging.prompt import EXTRACTION, TruncatedPrompt, in_order, load, prompt_hash
from critic.judging.targets import target
from critic.judging.thoughts import without_thoughts
from critic.records import UNREADABLE, Call, JudgeConfig, Judgment, Position, PromptInputs, Response, Sample, Verdict

EXTRACTED = ("direct", "pairwise")
"""Protocols in which the judge is asked once more for the verdict of an unreadable reply (ConvBench, VisIT-Bench)."""


TOKENS = 256
"""Default limit on the tokens of a verdict."""


class JudgeResult(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict, and the records of the calls that were made for it.

    - `verdict`: in a comparison, A is the model and B its opponent.
    - `reply`: the text of the first reply.
    - `detail`: why there is no verdict, or None.
    - `unread`: True if the verdict is a tie because the comparison was unreadable.
    - `attempts`: number of tries of a request that got no reply; 0 if all got one.
    """

    verdict: Verdict
    reply: str = ""
    calls: list[Call] = msgspec.field(default_factory=list)
    detail: str | None = None
    unread: bool = False
    attempts: int = 0


def plan_response(form: str, response: Response, other: Response | None = None) -> PlannedVerdict:
    """Plan the verdict on a response in the form called `form`.

    `other`: the response that it is compared with, or None. If an answer ended within its thoughts, the plan has a
    `problem` instead of prompt inputs.
    """
    planned = PlannedVerdict(sample=Sample.of(response, other), form=form)
    # There is no answer that a judge could rate.
    if response.cut_off or (other is not None and other.cut_off):
        return replace(planned, problem=("truncated", records.CUT_OFF))
    return replace(planned, material=form_of(form).material(response, other))


class Judge:
    """A judge model with one setup, for verdicts in any form. Use: `await judge.verdict_on(judge.prepare(planned))`."""

    def __init__(
        self,
        backend: Backend,
        setup: JudgeConfig,
        max_tokens: int,
        images: Images | None = None,
        needs: str | None = "--score",
        pack: Pack | None = None,
    ) -> None:
        """Create a judge from a model and its setup.

        Args:
            backend: The source of the judge's replies.
            max_tokens: Most tokens of a verdict.
            images: Loads the images that the judge sees; None for a judge that sees none.
            needs: As in Grader.
            pack: Prompts in place of ours; None for the prompts that the judge brings along, or else ours.
        """
        if images is not None:
            limits = {"max_image_pixels": images.resize_to, "frames": images.frames}
            setup = replace(setup, decoding=replace(setup.decoding, images="show", **limits))
        self.backend, self.setup, self.max_tokens = backend, setup, max_tokens
        self.recalibration: FittedMap | None = None
        self.images, self.sees, self.pack = images, images is not None, pack or own_pack(backend.served.about)
        # Such a scoring head compares two answers by scoring each of them.
        self.scores_sides = backend.served.tie_band is not None
        self.grader = Grader(backend, setup, max_tokens, needs)

    def recalibrate(self, recalibration: FittedMap | None) -> None:
        """Apply a map (fitted score -> recalibrated score) to all scores from now on; None changes nothing."""
        if recalibration is not None:
            self.recalibration = recalibration
            self.setup = replace(self.setup, recalibrated=recalibration.map.digest)

    def prepare(self, planned: PlannedVerdict) -> PlannedVerdict:
        """Return a planned verdict with its requests, whose prompts are rendered, and with its hashes.

        `asked` is a hash of setup, protocol and prompts. It is set only if the verdict has a protocol.
        """
        requests = [request.rendered() for request in self._build_requests(planned)]
        # The hash is of the prompts before truncation.
        shown = [self.setup, planned.protocol, [request.fitted.messages for request in requests]]
        asked = hash_value(shown, 16) if requests and planned.protocol is not None else None
        return replace(planned, prompt_hash=self.hash_prompt(planned.form), requests=requests, asked=asked)

    def _build_requests(self, planned: PlannedVerdict, again: int = 0) -> list[JudgeRequest]:
        """Build the requests for a verdict: one or, in a comparison, one per presentation order; [] without material.

        `again`: how often the verdict was requested before. It changes the seed and a random order.
        """
        sample, material = planned.sample, planned.material
        if material is None:
            return []
        request = inquiry(planned.form, sample.conversation.lang, material, self.sees)
        if self.pack is not None:
            request = replace(request, prompt=self.pack.prompt(request.prompt, planned.form, sample.turn))
        if self.setup.decoding.temperature:
            request = replace(request, seed=int(hash_value(sample.key, 6), 16) + again)
        if not request.form.pair:
            return [request]
        orders: Sequence[Position] = records.PLAYERS
        # A random order is the same in every run. Each repetition swaps it.
        if self.setup.orders == 1:
            # All turns of a conversation and the whole have the same order, so the turn's number is not hashed.
            named = self.setup.seed, sample.system, sample.id, sample.condition, "", planned.judging, sample.opponent
            drawn = int(hash_value("/".join(map(str, named)), 2), 16)
            orders = [records.PLAYERS[(drawn + again) % 2]]
        return [replace(request, first=first, material=in_order(request.prompt, material, first)) for first in orders]

    async def verdict_on(self, prepared: PlannedVerdict) -> Judgment:
        """Return the judgment of a verdict that `prepare` returned: a score or a failure.

        Server and image errors become failures. If each verdict is requested several times (`JudgeConfig.repeat`), the
        first one counts, and the others are its `repeats`. They differ in the batch that the server computes them in,
        in the seed (unless decoding is greedy), and in a random order.
        """
        judgment, repeats = await self._judge_once(prepared), list[Judgment]()
        for again in range(1, self.setup.repeat if prepared.requests else 1):
            requests = self._build_requests(prepared, again)
            repeats.append(await self._judge_once(replace(prepared, requests=requests)))
        if repeats:
            usage = records.sum_usage([judgment, *repeats])
            judgment = replace(judgment, repeats=[each.part for each in repeats], **usage)
        return self.recalibration.apply(judgment) if self.recalibration else judgment

    async def _judge_once(self, planned: PlannedVerdict) -> Judgment:
        """Request a verdict once and return its judgment, without recalibration."""
        try:
            result = await self._ask(planned)
        except (Transient, Refused, ImageError) as error:
            # Calls made before the error still count.
            paid, failed = planned.requests[0].paid, Verdict(failure=error.failure)
            result = JudgeResult(verdict=failed, calls=paid, detail=str(error), attempts=error.tries)
        calls, tokens = result.calls, records.sum_usage(result.calls)
        kind, verdict, score = form_of(planned.form).kind, result.verdict, None
        if verdict.failure is None:
            score = distribution.scored(verdict, self.grader.score_kind) if kind.rates else kind.score(verdict)
        judgment = Judgment(
            sample=planned.sample,
            setup=self.current_setup,
            verdict=verdict,
            score=score,
            unread=result.unread,
            reply=result.reply,
            detail=result.detail,
            shortened=calls[-1].shortened if calls else {},
            **{**tokens, "attempts": max(result.attempts, tokens["attempts"])},
            # If a single call was enough, the judgment itself holds all of its record.
            calls=calls if planned.protocol or form_of(planned.form).shown > 1 else [],
            images=min((call.images for call in calls), default=0),
            answered_by=list(dict.fromkeys(call.answered_by for call in calls if call.answered_by)),
        )
        return planned.of(judgment)

    def hash_prompt(self, form: str) -> str:
        """Return one hash of the prompt for `form`, in all languages and wordings that this judge may get."""
        if self.pack is not None:
            return hash_value(f"{self.pack.name}/{form}", 16)
        return prompt_hash(forms.ONE_SIDE[form] if self.scores_sides else form, self.sees)

    @property
    def current_setup(self) -> JudgeConfig:
        """Return the setup with the kind of score that is computed now (it changes if ratings count as stated)."""
        return replace(self.setup, score_kind=self.grader.score_kind)

    async def _ask(self, planned: PlannedVerdict) -> JudgeResult:
        requests = planned.requests
        if not requests:
            # 0 attempts would mean a reply from the cache.
            failure, detail = planned.problem or ("not_run", "nothing to judge")
            return JudgeResult(verdict=Verdict(failure=failure), detail=detail, attempts=1)
        if self.images is not None and requests[0].prompt.sees:
            loaded = [await asyncio.to_thread(self.images.load, name) for name in requests[0].material.pictures()]
            shown = {image.path: image.parts for image in loaded}
            requests = [replace(request, shown=shown) for request in requests]
        request = requests[0]
        before: list[Call] = []
        if request.form.first is not None:
            # The judge answers the question itself before it sees the answer that it judges.
            question = replace(request.material, sides=[replace(side, answer=None) for side in request.material.sides])
            own = inquiry(request.form.first, request.prompt.language, question, request.prompt.sees)
            own = replace(own, shown=request.shown, paid=request.paid)
            own, reply = await self.grader.send(own, self.grader.build_request)
            answer = own.answer(reply)
            before = [call_of(own, reply, answer)]
            if answer.failure is not None:
                return JudgeResult(verdict=Verdict(failure=answer.failure), calls=before, detail=_get_detail(reply))
            material = replace(request.material, own_answer=answer.value)
            # The prompt is another one now, so it is rendered anew.
            request = replace(request, material=material, fitted=TruncatedPrompt())
        if request.form.pair and self.scores_sides:
            result = await self._compare_scores(request)
        elif request.form.pair:
            result = await self._compare(requests)
        else:
            result = await self._judge_in_order(request)
        return replace(result, calls=[*before, *result.calls])

    async def _judge_in_order(self, request: JudgeRequest) -> JudgeResult:
        """Send one request and return its verdict. In a comparison, A is the side that the prompt shows first."""
        probes = list[Reply]()
        if request.form.kind.rates:
            # The first reply has the rating.
            request, (verdict, (reply, *probes)) = await self.grader.rate(request)
        else:
            request, reply = await self.grader.send(request, self.grader.build_request)
            verdict = request.answer(reply)
        calls = [call_of(request, reply, verdict), *(call_of(request, probe) for probe in probes)]
        verdict, further = await self._extract(request, reply, verdict)
        unread = request.form.pair and self.setup.unread == "tie" and verdict.failure in (*UNREADABLE, "empty")
        if unread:
            verdict = Verdict(value="tie", reason=verdict.reason)
        calls += further
        return JudgeResult(verdict=verdict, reply=reply.text, calls=calls, unread=unread, detail=_get_detail(reply))

    async def _extract(self, request: JudgeRequest, reply: Reply, verdict: Verdict) -> tuple[Verdict, list[Call]]:
        """Ask the judge once more which verdict its unreadable reply comes to; the prompt shows only that reply.

        Follows ConvBench (figures 25 and 26) and VisIT-Bench (appendix F). Return the verdict and the record of the
        call. If `verdict` needs no second question, return it with no call; if the second reply has no verdict, return
        `verdict` with the call.
        """
        text = without_thoughts(reply.text)
        # An extracted rating has no distribution, which other scores need.
        as_stated = not request.form.kind.rates or self.grader.score_kind == "argmax"
        asks = as_stated and self.setup.second_question and request.form.protocol in EXTRACTED
        if not asks or verdict.failure not in UNREADABLE or not text:
            return verdict, []
        prompt = load(EXTRACTION, request.prompt.language)
        second = replace(request, prompt=prompt, material=PromptInputs(text=text), fitted=TruncatedPrompt())
        # With the verdict's schema, the judge could not say that there is none.
        second, settled = await self.grader.send(
            second, lambda sent: replace(self.grader.build_request(sent), schema=None)
        )
        extracted = second.answer(settled)
        call = replace(call_of(second, settled, extracted), extracted=True)
        # Without a verdict in the second reply, the failure of the first reply stays.
        return (verdict if extracted.failure else replace(extracted, reason=verdict.reason)), [call]

    async def _compare_scores(self, request: JudgeRequest) -> JudgeResult:
        """Compare two sides by a scoring head's score of each. The presentation order makes no difference.

        A is better with the probability σ(s_A - s_B) (Bradley & Terry 1952, eq. 1), where A is the model. If the scores
        differ by no more than the judge's tie band, the verdict is a tie.
        """
        sides = await gather_all(self.grader.head_score(side) for side in forms.split_sides(request))
        first, second = (float(reply.text) for _, reply in sides)
        ahead, band = first - second, self.backend.served.tie_band or 0.0
        better = (1 + math.tanh(ahead / 2)) / 2
        value = "tie" if abs(ahead) <= band else "A" if ahead > 0 else "B"
        return JudgeResult(
            verdict=Verdict(value=value, distribution=[1 - better, better]),
            reply=target(value, "", [request.prompt.key]),
            calls=[call_of(side, reply, Verdict(value=reply.text)) for side, reply in sides],
        )

    async def _compare(self, requests: Sequence[JudgeRequest]) -> JudgeResult:
        """Compare two sides in each requested presentation order.

        If the orders give different verdicts, the result is a tie. If one order fails, the result is its failure.
        """
        results = await gather_all(map(self._judge_in_order, requests))
        failed = next((result.verdict.failure for result in results if result.verdict.failure is not None), None)
        value = None
        if failed is None:
            verdicts = zip(requests, results, strict=True)
            winners = {_find_winner(result.verdict, first=request.first) for request, result in verdicts}
            value = winners.pop() if len(winners) == 1 else "tie"
        return JudgeResult(
            verdict=Verdict(value=value, failure=failed, reason=results[0].verdict.reason),
            reply=results[0].reply,
            calls=[call for result in results for call in result.calls],
            detail=next((result.detail for result in results if result.detail is not None), None),
            unread=failed is None and any(result.unread for result in results),
        )


def build_served(backend: Backend, form: str, images: Images | None) -> Judge:
    """Build the judge that a server of `critic serve` serves, for verdicts in the form called `form`.

    `images`: as in Judge. If the server's certificate covers this form and a recalibrated judge, its map is applied.
    """
    kind = "argmax" if backend.served.writes_freely else "expected"
    setup = JudgeConfig(judge=backend.served.name, score_kind=kind, pointwise_prompt=form)
    judge = Judge(backend, setup, TOKENS, images=images, needs=None)
    certificate = backend.served.about.get("certificate", {"how": {}})
    # The certificate is about the judge with its map, in the forms that were audited.
    if certificate["how"].get("recalibrated") and form in certificate["how"]["prompts"].values():
        judge.recalibrate(msgspec.convert(certificate["recalibration"], FittedMap))
    return judge


def _find_winner(verdict: Verdict, *, first: Position | None) -> str:
    """Return the winner as "A" (the model), "B" (its opponent) or "tie". `first`: the side that `verdict` calls A."""
    value = verdict.value or "tie"
    return value if first == "model" else {"A": "B", "B": "A"}.get(value, value)


def _get_detail(reply: Reply) -> str | None:
    """Return the server's explanation why a reply has no answer, or None if there is none."""
    lost = find_failure(reply)
    return lost[1] if lost else None


def panel_judgment(members: Sequence[Judgment], how: distribution.Aggregation, name: str) -> Judgment:
    """Combine the judgments of a panel's members on one response into the panel's judgment.

    Scores and ratings are combined by `how`, rating distributions by their mean. Ratings by single criteria are not
    combined. If a member failed, the panel's judgment has the same failure, and `detail` names the member: a mean over
    the remaining members would be that of another panel.

    Args:
        members: The judges' judgments, in the panel's order.
        how: "mean" or "median".
        name: The panel's name.

    >>> from critic.records import RATINGS, Sample
    >>> def member(judge, rating, failure=None, detail=None, unlearned=""):
    ...     shares = None if failure else [float(each == rating) for each in RATINGS]
    ...     verdict = Verdict(rating=rating, failure=failure, distribution=shares)
    ...     setup = JudgeConfig(judge=judge, score_kind="expected", unlearned=unlearned)
    ...     return Judgment(sample=Sample(id="r"), setup=setup, verdict=verdict, score=rating, detail=detail)
    >>> members = [member("a", 2.0), member("b", 2.0), member("c", 6.0), member("d", 10.0)]
    >>> panel = panel_judgment(members, "mean", "panel")
    >>> panel.judge, panel.score, panel.verdict.rating, panel.verdict.distribution
    ('panel', 5.0, 5.0, [0.0, 0.5, 0.0, 0.0, 0.0, 0.25, 0.0, 0.0, 0.0, 0.25])
    >>> [(each.judge, each.score) for each in panel.members]
    [('a', 2.0), ('b', 2.0), ('c', 6.0), ('d', 10.0)]
    >>> median = panel_judgment(members, "median", "panel")
    >>> median.score, median.verdict.rating, median.verdict.distribution == panel.verdict.distribution
    (4.0, 4.0, True)
    >>> lost = panel_judgment([member("a", 9.0), member("b", None, "truncated", "cut off")], "mean", "panel")
    >>> lost.score, lost.verdict.failure, lost.detail, [each.score for each in lost.members]
    (None, 'truncated', 'b: cut off', [9.0, None])
    >>> panel_judgment([member("a", 9.0), member("b", 2.0, unlearned="pointwise")], "mean", "panel").setup.unlearned
    'pointwise (b)'
    """
    first, verdicts = members[0], [member.verdict for member in members]
    unlearned = (each.setup.unlearned and f"{each.setup.unlearned} ({each.judge})" for each in members)
    detail = score = None
    if failed := next((member for member in members if member.verdict.failure is not None), None):
        joint = Verdict(failure=failed.verdict.failure)
        detail = f"{failed.judge}: {failed.detail or failed.verdict.failure}"
    else:
        rating = distribution.aggregated(how, (verdict.rating for verdict in verdicts))
        distributions = [verdict.distribution for verdict in verdicts]
        joint = with_mixture(Verdict(rating=rating, scale=first.verdict.scale), distributions)
        score = distribution.aggregated(how, (member.score for member in members))
    return Judgment(
        sample=first.sample,
        setup=replace(first.setup, judge=name, unlearned=", ".join(filter(None, unlearned))),
        verdict=joint,
        prompt=first.prompt,
        prompt_hash=first.prompt_hash,
        score=score,
        detail=detail,
        members=[member.part for member in members],
        repeats=[panel_judgment(each, how, name).part for each in zip(*(one.repeats for one in members), strict=True)],
        images=min(member.images for member in members),
        **records.sum_usage(members),
    )
