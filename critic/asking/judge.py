"""One judge, whatever it is shown: from material and form to an opinion; and a panel's judgment of one response."""

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from critic.asking import rating
from critic.asking.asker import Asker, Inquiry, Rated, inquiry, with_mixture
from critic.asking.forms import (
    POINTS,
    ChecklistKind,
    ChoiceKind,
    completion_ratio,
    form_of,
    graded,
    prompt_name,
    prompt_of,
)
from critic.asking.prompt import Prompt, prompt_hash
from critic.asking.protocols import PlannedVerdict
from critic.asking.rating import Aggregation
from critic.asking.render import Fitted, Material, render
from critic.backends import Backend, Reply
from critic.errors import Refused, Transient
from critic.records import (
    GREEDY,
    TEN,
    Call,
    ConversationJudgment,
    Decoding,
    Failure,
    Judgment,
    Language,
    Member,
    Message,
    Response,
    Setup,
    Verdict,
)

UNREADABLE = ("no_rating", "no_verdict", "out_of_range", "truncated")
"""Failures of a reply that says something, which a second, short question may settle."""

EXTRACTION_TOKENS = 64
TOKENS_AN_ITEM = 8

Player = Literal["model", "opponent"]
PLAYERS: tuple[Player, Player] = ("model", "opponent")


class Opinion(Struct, frozen=True, kw_only=True):
    """What a judge made of some material, and every call that it took. `score` is None exactly when the verdict failed;
    of a comparison the verdict's value speaks of the model as A, whoever stood first. `samples` are the verdicts that
    were drawn, `reply` is the text of the first."""

    verdict: Verdict
    score: float | None
    reply: str = ""
    calls: list[Call] = field(default_factory=list)
    samples: list[Verdict] = field(default_factory=list)
    detail: str | None = None


class Judge:
    """A judge model, how its verdicts are drawn and scored, and whether one that cannot be read is asked for again
    (`extraction`). Questions beside a form's own are those of the form's pack, or else of `pack`."""

    def __init__(
        self,
        backend: Backend,
        score_kind: str,
        max_tokens: int,
        decoding: Decoding = GREEDY,
        extraction: bool = False,
        pack: str | None = None,
    ) -> None:
        self.extraction, self._pack = extraction, pack
        self._asker = Asker(backend, score_kind, max_tokens, decoding)
        self._extractor = Asker(backend, "argmax", min(EXTRACTION_TOKENS, max_tokens))

    async def opinion(
        self, name: str, language: Language, material: Material, key: str, firsts: Sequence[Player] = ("model",)
    ) -> Opinion:
        """The opinion on `material` in the form `name`, in the prompt for `language`. Of two sides the first is the
        model's; they are compared in each order that `firsts` names. Never raises for what a server does."""
        failure: Failure = "server_error"
        try:
            return await self._opinion(inquiry(name, language, material, key), name, firsts)
        except Transient as error:
            detail = str(error)
        except Refused as error:
            failure, detail = error.failure, str(error)
        return Opinion(verdict=Verdict(failure=failure), score=None, detail=detail)

    async def _opinion(self, asked: Inquiry, name: str, firsts: Sequence[Player]) -> Opinion:
        before: list[Call] = []
        if asked.form.first is not None:
            asked, call = await self._answered_first(asked, name)
            before = [call]
            if call.failure is not None:
                return Opinion(verdict=Verdict(failure="empty"), score=None, calls=before)
        if asked.form.pair:
            found = await self._compared(asked, name, firsts)
        elif isinstance(asked.form.kind, ChoiceKind | ChecklistKind):
            found = await self._chosen(asked, name)
        else:
            found = await self._rated(asked, name)
        return replace(found, calls=[*before, *found.calls])

    async def _answered_first(self, asked: Inquiry, name: str) -> tuple[Inquiry, Call]:
        """The inquiry with the judge's own answer to the question, which it gives before it sees the one it judges."""
        question = replace(asked.material, sides=[replace(side, answer=None) for side in asked.material.sides])
        form = asked.form.first
        assert form is not None
        first = inquiry(self._beside(name, form), asked.prompt.language, question, asked.key)
        fitted, reply = await self._asker.ask(first)
        said = first.read(reply)
        seen = replace(asked.material, own_answer=said.value)
        return replace(asked, material=seen), _call(reply, said, fitted=fitted)

    def _beside(self, name: str, form: str) -> str:
        """Another form, in the pack of the form `name`."""
        pack = name.rpartition("/")[0] or self._pack
        return f"{pack}/{form}" if pack else form

    async def _rated(self, asked: Inquiry, name: str) -> Opinion:
        rated = await self._asker.rate(asked)
        found, score, calls = rated.verdict, rated.score, _rating_calls(rated)
        text = calls[0].reply
        second = await self._extracted(asked, name, text, found)
        if second is not None:
            calls.append(second[1])
            if second[0].failure is None:
                found, score = replace(second[0], reason=found.reason), second[0].rating
        verdicts = [reading.verdict for reading in rated.readings]
        samples = verdicts if len(verdicts) > 1 else []
        return Opinion(verdict=found, score=score, reply=text, calls=calls, samples=samples)

    async def _chosen(self, asked: Inquiry, name: str, first: Player | None = None) -> Opinion:
        """A choice, or the answers to a checklist, of what is shown as it stands."""
        fitted, reply = await self._asker.ask(asked)
        found = asked.read(reply)
        calls = [_call(reply, found, first=first, fitted=fitted)]
        second = await self._extracted(asked, name, reply.text, found)
        if second is not None:
            calls.append(replace(second[1], first=first))
            # A verdict that stays unread keeps the failure of the reply itself; of a checklist what could be read.
            read = second[0] if second[0].failure is None else replace(found, answers=second[0].answers)
            found = replace(read, reason=found.reason)
        return Opinion(verdict=found, score=_worth(found), reply=reply.text, calls=calls)

    async def _compared(self, asked: Inquiry, name: str, firsts: Sequence[Player]) -> Opinion:
        """Two sides compared in each order: where the verdicts differ, a tie."""
        orders = {"model": asked, "opponent": replace(asked, material=swapped(asked.prompt, asked.material))}
        shown = [orders[first] for first in firsts]
        both = await asyncio.gather(*(self._chosen(one, name, first) for one, first in zip(shown, firsts, strict=True)))
        calls = [call for found in both for call in found.calls]
        failed = next((found.verdict for found in both if found.verdict.failure is not None), None)
        if failed is not None:
            verdict = Verdict(failure=failed.failure, reason=both[0].verdict.reason)
            return Opinion(verdict=verdict, score=None, reply=both[0].reply, calls=calls)
        winners = {_winner(found.verdict.value, first) for found, first in zip(both, firsts, strict=True)}
        value = winners.pop() if len(winners) == 1 else "tie"
        verdict = Verdict(value=value, reason=both[0].verdict.reason)
        return Opinion(verdict=verdict, score=POINTS[value], reply=both[0].reply, calls=calls)

    async def _extracted(self, asked: Inquiry, name: str, text: str, found: Verdict) -> tuple[Verdict, Call] | None:
        """What the second, short question finds in a reply that could not be read; None where it is not asked."""
        form = asked.form.extraction
        if not (self.extraction and form and found.failure in UNREADABLE and text.strip()):
            return None
        items = asked.material.checklist
        second = inquiry(
            self._beside(name, form), asked.prompt.language, Material(text=text, checklist=items), asked.key
        )
        _, reply = await self._extractor.ask(second, max(self._extractor.max_tokens, TOKENS_AN_ITEM * len(items)))
        read = second.read(reply)
        return read, _call(reply, read, extracted=True)


def swapped(prompt: Prompt, material: Material) -> Material:
    """The material of a pair the other way round: the sides, and their names in the verdicts on turns."""
    first, second = prompt.sides or ("A", "B")
    names = {first: second, second: first}
    verdicts = [replace(one, verdict=names.get(one.verdict, one.verdict)) for one in material.verdicts]
    return replace(material, sides=material.sides[::-1], verdicts=verdicts)


def _winner(value: str | None, first: Player) -> str:
    """A verdict with `first` as A, in the names that it has with the model as A."""
    return (value or "tie") if first == "model" else {"A": "B", "B": "A"}.get(value or "tie", "tie")


def _worth(found: Verdict) -> float | None:
    if found.failure is not None:
        return None
    if found.answers:
        return completion_ratio(found.answers)
    return POINTS[found.value or ""]


def _rating_calls(rated: Rated) -> list[Call]:
    """The calls of each verdict drawn; the first of them has its rating."""
    return [
        _call(reply, reading.verdict if number == 0 else None, fitted=rated.fitted)
        for reading in rated.readings
        for number, reply in enumerate(reading.calls)
    ]


def _call(
    reply: Reply,
    found: Verdict | None,
    first: Player | None = None,
    extracted: bool = False,
    fitted: Fitted | None = None,
) -> Call:
    return Call(
        reply=reply.text,
        value=_shown(found) if found else None,
        failure=found.failure if found else None,
        first=first,
        extracted=extracted,
        shortened=fitted.shortened if fitted else {},
        prompt_tokens=reply.prompt_tokens,
        cached_tokens=reply.cached_tokens,
        completion_tokens=reply.completion_tokens,
        attempts=reply.attempts,
    )


def _shown(found: Verdict) -> str | None:
    """What was read, in short."""
    if found.answers:
        return " ".join("?" if answer is None else "yes" if answer else "no" for answer in found.answers)
    return found.value if found.rating is None else graded(found.rating)


def key_of(response: Response, other: Response | None = None) -> str:
    """What tells the judgments of a file apart: of two answers both ids."""
    return response.id if other is None else f"{response.id}+{other.id}"


class ResponseJudge:
    """A judge of single responses, by one form."""

    def __init__(
        self,
        backend: Backend,
        name: str,
        form: str,
        score_kind: str,
        max_tokens: int,
        decoding: Decoding = GREEDY,
        firsts: Sequence[Player] = PLAYERS,
    ) -> None:
        self.backend, self.name, self.prompt, self.firsts = backend, name, form, firsts
        self.score_kind, self.max_tokens, self.decoding = score_kind, max_tokens, decoding
        self.form, self.prompt_hash = form_of(form), prompt_hash(prompt_name(form))
        self._judge = Judge(backend, score_kind, max_tokens, decoding)

    async def judge(self, response: Response, other: Response | None = None) -> Judgment:
        """One judgment: a score, or a named failure; of a form that compares, on `response` beside the `other`. Never
        raises for what a server does."""
        key = key_of(response, other)
        material = self.form.material(response, other)
        found = await self._judge.opinion(self.prompt, response.question.lang, material, key, self.firsts)
        calls = found.calls
        return Judgment(
            response=response,
            **self.origin(),
            verdict=found.verdict,
            score=found.score,
            reply=found.reply,
            detail=found.detail,
            shortened=calls[-1].shortened if calls else {},
            prompt_tokens=sum(call.prompt_tokens for call in calls),
            cached_tokens=sum(call.cached_tokens for call in calls),
            completion_tokens=sum(call.completion_tokens for call in calls),
            attempts=max((call.attempts for call in calls), default=1),
            samples=found.samples,
            other=other,
            calls=calls if self.form.shown > 1 else [],
        )

    def origin(self) -> dict[str, Any]:
        """The fields of a judgment that say how it was made: those of one file are all alike."""
        return {
            "judge": self.name,
            "prompt": self.prompt,
            "prompt_hash": self.prompt_hash,
            "score_kind": self.score_kind,
            "decoding": self.decoding,
        }


def hash_of(planned: PlannedVerdict) -> str:
    """The hash of the prompt by which a verdict is asked for."""
    return prompt_hash(prompt_name(planned.form))


class ConversationJudge:
    """A judge of conversations, with one setup."""

    def __init__(self, backend: Backend, setup: Setup, max_tokens: int) -> None:
        self.backend, self.setup = backend, setup
        self._judge = Judge(backend, setup.score_kind, max_tokens, setup.decoding, setup.extraction, setup.pack)

    def shown(self, planned: PlannedVerdict) -> list[list[Message]]:
        """The prompts of a verdict as they are before anything is left out; a pair's in the order of `firsts`."""
        if planned.material is None:
            return []
        prompt, material = prompt_of(planned.form, planned.conversation.lang), planned.material
        if planned.verdict.protocol != "pairwise":
            return [render(prompt, material)]
        orders = {"model": material, "opponent": swapped(prompt, material)}
        return [render(prompt, orders[first]) for first in self.firsts(planned)]

    def asked(self, planned: PlannedVerdict) -> str | None:
        """A name for what is shown to the judge, None where nothing is."""
        if planned.problem is not None:
            return None
        shown = [self.setup, planned.verdict.protocol, self.shown(planned)]
        return hashlib.sha256(msgspec.json.encode(shown)).hexdigest()[:16]

    def firsts(self, planned: PlannedVerdict) -> tuple[Player, ...]:
        """Who stands first, question by question: a random order is the same in every run."""
        if self.setup.order == "both":
            return PLAYERS
        one = planned.verdict
        words = (
            f"{self.setup.seed}/{one.system}/{one.conversation}/{one.condition}/{one.turn}/{one.judging}/{one.opponent}"
        )
        return (PLAYERS[hashlib.sha256(words.encode()).digest()[0] % 2],)

    async def judge(self, planned: PlannedVerdict) -> ConversationJudgment:
        """One judgment: a score, or a named failure. Never raises for what a server does."""
        if planned.problem is not None or planned.material is None:
            failure, detail = planned.problem or ("not_run", "nothing to judge")
            return self._record(planned, score=None, failure=failure, detail=detail)
        one = planned.verdict
        # A pointwise question is the same whatever the turn it comes from, so its samples are.
        pointwise = one.protocol == "pointwise"
        key = one.conversation if pointwise else f"{one.conversation}/{one.condition}/{one.turn}/{one.protocol}"
        firsts = self.firsts(planned) if one.protocol == "pairwise" else PLAYERS[:1]
        found = await self._judge.opinion(planned.form, planned.conversation.lang, planned.material, key, firsts)
        verdict = found.verdict
        rates = bool(found.calls) and one.protocol not in ("pairwise", "checklist")
        return self._record(
            planned,
            score=found.score,
            failure=verdict.failure,
            detail=found.detail,
            rating=verdict if rates else None,
            answers=verdict.answers,
            reason=verdict.reason,
            calls=found.calls,
        )

    def _record(
        self, planned: PlannedVerdict, score: float | None, failure: str | None, **facts: Any
    ) -> ConversationJudgment:
        return ConversationJudgment(
            conversation=planned.conversation,
            verdict=replace(planned.verdict, score=score, failure=failure),
            setup=self.setup,
            prompt_hash=hash_of(planned),
            asked=self.asked(planned),
            answer=planned.material.sides[0].answer if planned.material else None,
            **facts,
        )


def panel_judgment(members: Sequence[Judgment], how: Aggregation, name: str) -> Judgment:
    """One response judged by a panel: the members' scores and ratings made one by `how` (rating.AGGREGATES).

    A panel judges whole or not at all: where a member failed, the judgment fails with the member's failure and
    `detail` names the member, because a mean over those who are left is another panel's.
    """
    parts = [Member(judge=one.judge, score=one.score, verdict=one.verdict) for one in members]
    first = members[0]
    common: dict[str, Any] = {
        "response": first.response,
        "judge": name,
        "prompt": first.prompt,
        "prompt_hash": first.prompt_hash,
        "score_kind": first.score_kind,
        "decoding": first.decoding,
        "members": parts,
        "prompt_tokens": sum(one.prompt_tokens for one in members),
        "cached_tokens": sum(one.cached_tokens for one in members),
        "completion_tokens": sum(one.completion_tokens for one in members),
        "attempts": max(one.attempts for one in members),
    }
    for one in members:
        if one.verdict.failure is not None:
            detail = f"{one.judge}: {one.detail or one.verdict.failure}"
            return Judgment(**common, verdict=Verdict(failure=one.verdict.failure), detail=detail)
    verdicts, scale = [one.verdict for one in members], first.verdict.scale or TEN
    ratings = [one.rating for one in verdicts if one.rating is not None]
    found = Verdict(
        rating=rating.aggregated(how, ratings, scale),
        criteria={name: _of_criterion(verdicts, name, how, first.score_kind) for name in first.verdict.criteria},
        scale=first.verdict.scale,
    )
    score = rating.aggregated(how, [one.score for one in members if one.score is not None], scale)
    return Judgment(**common, verdict=with_mixture(found, verdicts), score=score)


def _of_criterion(verdicts: Sequence[Verdict], name: str, how: Aggregation, score_kind: str) -> Verdict:
    """The panel's rating by one criterion, of the members' scores by it; failed where a member did."""
    parts = [one.criteria[name] for one in verdicts]
    failed = next((part for part in parts if part.failure is not None), None)
    if failed is not None:
        return Verdict(failure=failed.failure)
    scale, given = parts[0].scale or TEN, [rating.scored(part, score_kind) for part in parts]
    return Verdict(
        rating=rating.aggregated(how, [score for score in given if score is not None], scale), scale=parts[0].scale
    )
