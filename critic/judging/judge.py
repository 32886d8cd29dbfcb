"""One judge, whatever it is shown: from material and form to an opinion; and a panel's judgment of one response."""

import asyncio
import hashlib
import math
from collections.abc import Sequence

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from critic import records
from critic.backends import Backend, Reply, find_failure
from critic.errors import Refused, Transient
from critic.images import ImageError, Images
from critic.judging import distribution, forms
from critic.judging.distribution import Aggregation
from critic.judging.forms import UNREADABLE, JudgeRequest, form_of, inquiry
from critic.judging.grader import Grader, all_of, call_of, with_mixture
from critic.judging.kinds import POINTS, graded
from critic.judging.planned import PlannedVerdict
from critic.judging.prompt import prompt_hash
from critic.judging.render import in_orders, render
from critic.judging.targets import target
from critic.records import GREEDY, Call, JudgeConfig, Judgment, Position, Sample, Verdict


class JudgeResult(Struct, frozen=True, kw_only=True):
    """What a judge made of some material, and every call that it took; of a comparison with the model as A, whoever
    stood first. `attempts` are the tries of a call that was lost."""

    verdict: Verdict
    score: float | None = None
    reply: str = ""
    calls: list[Call] = field(default_factory=list)
    detail: str | None = None
    unread: bool = False
    attempts: int = 0


class Judge:
    """A judge model with one setup, whatever it is shown."""

    def __init__(
        self,
        backend: Backend,
        setup: JudgeConfig,
        max_tokens: int,
        images: Images | None = None,
        needs: str | None = "--score",
    ) -> None:
        """`images` are those that a judge is shown; without them it is asked as one that cannot see. What `needs` log
        probabilities is as in Grader."""
        if images is not None:
            shown = replace(setup.decoding, images="show", max_image_pixels=images.resize_to)
            setup = replace(setup, decoding=shown)
        self.backend, self.setup, self.max_tokens = backend, setup, max_tokens
        self.images, self.sees = images, images is not None
        self.grader = Grader(backend, setup.score_kind, max_tokens, setup.decoding, needs)

    async def verdict_on(self, planned: PlannedVerdict) -> Judgment:
        """One judgment: a score, or a named failure. Never raises for what a server does."""
        sample, material = planned.sample, planned.material
        if material is None:
            # None is taken for a reply from a cache without tries.
            failure, detail = planned.problem or ("not_run", "nothing to judge")
            return self._judgment(planned, JudgeResult(verdict=Verdict(failure=failure), detail=detail, attempts=1))
        asked = inquiry(planned.form, sample.conversation.lang, material, self.sees)
        if self.setup.decoding.temperature:
            asked = replace(asked, seed=int.from_bytes(hashlib.sha256(sample.key.encode()).digest()[:3]))
        return self._judgment(planned, await self.opinion(asked, self.presentation_orders(planned)))

    def _judgment(self, planned: PlannedVerdict, result: JudgeResult) -> Judgment:
        calls, form, tokens = result.calls, planned.form, records.sum_usage(result.calls)
        return Judgment(
            sample=planned.sample,
            setup=replace(self.setup, score_kind=self.grader.score_kind),
            prompt=form,
            prompt_hash=self.hash_of(form),
            protocol=planned.protocol,
            judging=planned.judging,
            verdict=result.verdict,
            score=result.score,
            unread=result.unread,
            unjudged=planned.unjudged,
            asked=self.asked(planned),
            reply=result.reply,
            detail=result.detail,
            shortened=calls[-1].shortened if calls else {},
            **{**tokens, "attempts": max(result.attempts, tokens["attempts"])},
            # Of a form with one question the reply says all that its calls do.
            calls=calls if planned.protocol or form_of(form).shown > 1 else [],
            images=min((call.images for call in calls), default=0),
            answered_by=list(dict.fromkeys(call.answered_by for call in calls if call.answered_by)),
        )

    def asked(self, planned: PlannedVerdict) -> str | None:
        """A name for what a protocol shows the judge, None where that is nothing: the prompts before anything is left
        out. Judgments of a conversation that have the same one are asked for once."""
        if planned.material is None or planned.protocol is None:
            return None
        prompt = inquiry(planned.form, planned.sample.conversation.lang, planned.material, sees=self.sees).prompt
        orders = in_orders(prompt, planned.material, self.presentation_orders(planned))
        shown = [self.setup, planned.protocol, [render(prompt, material) for material in orders]]
        return hashlib.sha256(msgspec.json.encode(shown)).hexdigest()[:16]

    def presentation_orders(self, planned: PlannedVerdict) -> tuple[Position, ...]:
        """Return who stands first in each question to the judge. A random order is the same in every run."""
        sample = planned.sample
        if not form_of(planned.form).pair:
            return records.PLAYERS[:1]
        if self.setup.order == "both":
            return records.PLAYERS
        # The turns of a conversation and the whole have one order, hence no turn's number here.
        named = self.setup.seed, sample.system, sample.id, sample.condition, "", planned.judging, sample.opponent
        words = "/".join(map(str, named))
        return (records.PLAYERS[hashlib.sha256(words.encode()).digest()[0] % 2],)

    def hash_of(self, form: str) -> str:
        """Return the hash of a form's prompt in the wordings that are used."""
        return prompt_hash(forms.ONE_SIDE[form] if self._compares else form, self.sees)

    @property
    def _compares(self) -> bool:
        """Whether comparisons are decided by a head that scores answers one at a time."""
        return self.backend.served.tie_band is not None

    async def opinion(self, asked: JudgeRequest, presentation_orders: Sequence[Position] = ("model",)) -> JudgeResult:
        """The opinion on what is asked. Of two sides the first is the model's; they are compared in each of the
        `presentation_orders`. Never raises for what a server does."""
        try:
            return await self._opinion(asked, presentation_orders)
        except Transient as error:
            failed, detail, tries = Verdict(failure="server_error"), str(error), error.tries
        except (Refused, ImageError) as error:
            failed, detail, tries = Verdict(failure=error.failure), str(error), 1
        return JudgeResult(verdict=failed, calls=asked.paid, detail=detail, attempts=tries)

    async def _opinion(self, asked: JudgeRequest, presentation_orders: Sequence[Position]) -> JudgeResult:
        if self.images is not None and asked.prompt.sees:
            load = self.images.load
            loaded = [await asyncio.to_thread(load, name) for name in asked.material.pictures()]
            asked = replace(asked, uris={image.path: image.uri for image in loaded})
        before: list[Call] = []
        if asked.form.first is not None:
            # The judge's own answer to the question, which it gives before it sees the one it judges.
            question = replace(asked.material, sides=[replace(side, answer=None) for side in asked.material.sides])
            beside = inquiry(asked.form.first, asked.prompt.language, question, asked.prompt.sees)
            first, reply = await self.grader.ask(replace(beside, uris=asked.uris, paid=asked.paid))
            own_answer = first.answer(reply)
            before = [_call(first, reply, own_answer)]
            if own_answer.failure is not None:
                return JudgeResult(verdict=Verdict(failure=own_answer.failure), calls=before, detail=_detail(reply))
            asked = replace(asked, material=replace(asked.material, own_answer=own_answer.value))
        if asked.form.pair and self._compares:
            result = await self._scored(asked)
        elif asked.form.pair:
            result = await self._compared(asked, presentation_orders)
        elif asked.form.kind.rates:
            result = await self._rated(asked)
        else:
            result = await self._chosen(asked)
        return replace(result, calls=[*before, *result.calls])

    async def _rated(self, asked: JudgeRequest) -> JudgeResult:
        asked, rated = await self.grader.rate(asked)
        # The first of a verdict's calls has its rating.
        verdict, (reply, *probes) = rated.verdict, rated.calls
        return JudgeResult(
            verdict=verdict,
            score=distribution.scored(verdict, self.grader.score_kind),
            reply=reply.text,
            calls=[_call(asked, reply, verdict), *(_call(asked, probe, None) for probe in probes)],
            detail=_detail(reply) if verdict.failure is not None else None,
        )

    async def _chosen(self, asked: JudgeRequest, first: Position | None = None) -> JudgeResult:
        """Ask for a verdict that counts as it is stated, on what is shown in the order in which it stands."""
        asked, reply = await self.grader.ask(asked)
        verdict = asked.answer(reply)
        call = _call(asked, reply, verdict, first)
        unread = asked.form.pair and self.setup.unread == "tie" and verdict.failure in (*UNREADABLE, "empty")
        if unread:
            verdict = Verdict(value="tie", reason=verdict.reason)
        score = asked.form.kind.score(verdict) if verdict.failure is None else None
        return JudgeResult(
            verdict=verdict, score=score, reply=reply.text, calls=[call], unread=unread, detail=_detail(reply)
        )

    async def _scored(self, asked: JudgeRequest) -> JudgeResult:
        """Two sides compared by a head's score of each, which no order can change: A is better with the probability
        σ(s_A - s_B) (Bradley & Terry 1952, eq. 1), and a tie is what differs by no more than the judge's band."""
        sides = await all_of(self.grader.worth(side) for side in forms.each_alone(asked))
        first, second = (float(reply.text) for _, reply in sides)
        ahead, band = first - second, self.backend.served.tie_band or 0.0
        better = (1 + math.tanh(ahead / 2)) / 2
        value = "tie" if abs(ahead) <= band else "A" if ahead > 0 else "B"
        return JudgeResult(
            verdict=Verdict(value=value, distribution=[1 - better, better]),
            score=POINTS[value],
            reply=target(value, "", [asked.prompt.key]),
            calls=[_call(side, reply, Verdict(value=reply.text)) for side, reply in sides],
        )

    async def _compared(self, asked: JudgeRequest, presentation_orders: Sequence[Position]) -> JudgeResult:
        """Two sides compared in each order: where the verdicts differ, a tie."""
        in_order = in_orders(asked.prompt, asked.material, presentation_orders)
        shown = [replace(asked, material=material) for material in in_order]
        both = await all_of(self._chosen(side, first) for side, first in zip(shown, presentation_orders, strict=True))
        failed = next((result.verdict.failure for result in both if result.verdict.failure is not None), None)
        value = None
        if failed is None:
            winners = {_winner(result.verdict, first) for result, first in zip(both, presentation_orders, strict=True)}
            value = winners.pop() if len(winners) == 1 else "tie"
        return JudgeResult(
            verdict=Verdict(value=value, failure=failed, reason=both[0].verdict.reason),
            score=None if value is None else POINTS[value],
            reply=both[0].reply,
            calls=[call for result in both for call in result.calls],
            detail=next((result.detail for result in both if result.detail is not None), None),
            unread=failed is None and any(result.unread for result in both),
        )


def _winner(verdict: Verdict, first: Position) -> str:
    """Return the better side, named as if the model stood first (A)."""
    value = verdict.value or "tie"
    return value if first == "model" else {"A": "B", "B": "A"}.get(value, value)


def _call(asked: JudgeRequest, reply: Reply, verdict: Verdict | None, first: Position | None = None) -> Call:
    call = replace(call_of(asked, reply), first=first)
    return replace(call, value=_shown(verdict), failure=verdict.failure) if verdict else call


def _detail(reply: Reply) -> str | None:
    """Return what is known of a reply that is no answer, or None."""
    lost = find_failure(reply)
    return lost[1] if lost else None


def _shown(verdict: Verdict) -> str | None:
    """Return what was read, in short."""
    if verdict.answers:
        return " ".join("?" if answer is None else "yes" if answer else "no" for answer in verdict.answers)
    return verdict.value if verdict.rating is None else graded(verdict.rating)


class ResponseJudge(Judge):
    """A judge of single responses, by one form."""

    def __init__(
        self,
        backend: Backend,
        name: str,
        form: str,
        score_kind: str,
        max_tokens: int,
        decoding: records.SamplingParams = GREEDY,
        images: Images | None = None,
        needs: str | None = "--score",
    ) -> None:
        setup = JudgeConfig(judge=name, score_kind=score_kind, decoding=decoding, pointwise_prompt=form)
        super().__init__(backend, setup, max_tokens, images, needs)
        self.name, self.prompt = name, form
        self.form, self.prompt_hash = form_of(form), self.hash_of(form)

    async def judge(self, response: records.Response, other: records.Response | None = None) -> Judgment:
        """Judge a response; in a form that compares, beside the `other` one."""
        sample, material = Sample.of(response, other), self.form.material(response, other)
        return await self.verdict_on(PlannedVerdict(sample=sample, form=self.prompt, material=material))


def panel_judgment(members: Sequence[Judgment], how: Aggregation, name: str) -> Judgment:
    """One response judged by a panel: the members' scores and ratings made one by `how`. A panel judges whole or not at
    all: where a member failed, the judgment fails with the member's failure and `detail` names the member, because a
    mean over those who are left is another panel's. Ratings by single criteria stay with the members."""
    first, verdicts = members[0], [member.verdict for member in members]
    unlearned = (each.setup.unlearned and f"{each.setup.unlearned} ({each.judge})" for each in members)
    detail = score = None
    if failed := next((member for member in members if member.verdict.failure is not None), None):
        joint = Verdict(failure=failed.verdict.failure)
        detail = f"{failed.judge}: {failed.detail or failed.verdict.failure}"
    else:
        rating = distribution.aggregated(how, (verdict.rating for verdict in verdicts))
        distributions = (verdict.distribution for verdict in verdicts)
        joint = with_mixture(Verdict(rating=rating, scale=first.verdict.scale), distributions)
        score = distribution.aggregated(how, (member.score for member in members))
    return replace(
        first,
        setup=replace(first.setup, judge=name, unlearned=", ".join(filter(None, unlearned))),
        verdict=joint,
        score=score,
        reply="",
        detail=detail,
        shortened={},
        members=[member.part for member in members],
        calls=[],
        answered_by=[],
        images=min(member.images for member in members),
        **records.sum_usage(members),
    )
