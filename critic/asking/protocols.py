"""The protocols by which a model's conversations are judged: what is shown to a judge, and what its replies come to.

pointwise: 1..10 against the reference (AlignMMBench). direct: 1..10, the reference fixed at 10, each turn and the whole
(ConvBench). pairwise: against the reference or another model, each turn and the whole (ConvBench, VisIT-Bench).
checklist and quality: yes or no by item, and 1..10 with the reference fixed at 10, each turn (MultiVerse).
"""

import asyncio
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from critic.asking import prompt as judge_prompt
from critic.asking import verdict
from critic.asking.asker import Asked, Asker, Rated
from critic.asking.conversation_prompt import (
    Exchange,
    Kind,
    Material,
    Output,
    Side,
    TurnJudgment,
    fit,
    load,
    prompt_hash,
    render,
)
from critic.asking.examples import verdict_keys
from critic.asking.history import CONDITIONS
from critic.asking.prompt import Fitted
from critic.backends import Backend, Reply
from critic.benchmarks.multiverse import completion_ratio
from critic.errors import Refused, Transient
from critic.records import (
    Call,
    Conversation,
    ConversationJudgment,
    ConversationTurn,
    Message,
    ModelTurn,
    Protocol,
    Question,
    Response,
    Setup,
    Turn,
    TurnVerdict,
)

OF_WHOLES: tuple[Protocol, ...] = ("direct", "pairwise")
"""The protocols that judge whole conversations as well as turns."""

NOT_JUDGED = "turn_not_judged"
"""The failure of a whole conversation that was to be judged in sight of its turns' judgments, and one failed."""

_KINDS: dict[tuple[Protocol, bool], Kind] = {
    ("direct", False): "direct_turn",
    ("direct", True): "direct_whole",
    ("pairwise", False): "pairwise_turn",
    ("pairwise", True): "pairwise_whole",
    ("checklist", False): "checklist",
    ("quality", False): "quality",
}
"""The prompt of a protocol for a turn, or for the whole (True)."""


def kinds(chosen: Iterable[str]) -> list[Kind]:
    """The conversation prompts of these protocols; the short second question belongs to each."""
    return [*(kind for (protocol, _), kind in _KINDS.items() if protocol in chosen), "extraction"]


UNREADABLE = ("no_rating", "no_verdict", "out_of_range", "truncated")
"""Failures of a reply that says something, which a second, short question may settle."""

EXTRACTION_TOKENS = 64

Player = Literal["model", "opponent"]
PLAYERS: tuple[Player, Player] = ("model", "opponent")


class Told(Struct, frozen=True, kw_only=True):
    """A model's conversation under a condition: what was recorded of its turns, by number from 1."""

    conversation: Conversation
    condition: str
    system: str
    turns: dict[int, ModelTurn]

    @property
    def asked(self) -> range:
        """The turns that the condition has the model answer."""
        return CONDITIONS[self.condition].asked(len(self.conversation.turns))

    def problem(self, turns: Iterable[int]) -> tuple[str, str] | None:
        """Why one of these turns has no reply: the failure's name and a sentence."""
        for number in turns:
            line = self.turns.get(number)
            if line is None:
                return "not_run", f"turn {number} of {self.system} is not in the file of replies"
            if line.failure is not None:
                return line.failure, f"turn {number} of {self.system} has no reply: {line.detail or line.failure}"
        return None

    def answer(self, turn: int) -> str:
        """The reply to a turn, or the reference where the condition gives it."""
        line = self.turns.get(turn)
        text = self.conversation.turns[turn - 1].reference if line is None else line.reply
        assert text is not None
        return text


class Case(Struct, frozen=True, kw_only=True):
    """One verdict to be asked for; `verdict` lacks its score. Shown is `material` (of a pair the model first) or, to a
    pointwise judge, `response`; neither where a `problem` (failure and sentence) leaves nothing to judge."""

    conversation: Conversation
    verdict: TurnVerdict
    problem: tuple[str, str] | None = None
    material: Material | None = None
    response: Response | None = None
    turns: list[ConversationJudgment] = field(default_factory=list)


def lacking(turn: ConversationTurn, protocol: Protocol, judging: str, against_model: bool) -> str | None:
    """What a turn lacks that the protocol needs; such turns are not judged."""
    if judging == "no_focus" and turn.focus is None:
        return "focus points"
    if protocol == "checklist" and not turn.checklist:
        return "checklist"
    if turn.reference is None and not (protocol == "pairwise" and against_model):
        return "reference"
    return None


def turns_judged(told: Told, protocol: Protocol, judging: str, against: Told | None) -> list[int]:
    """The turns that get a verdict of their own."""
    if judging == "no_turn_verdicts" or (judging == "no_focus" and protocol not in OF_WHOLES):
        return []
    turns = told.conversation.turns
    return [turn for turn in told.asked if not lacking(turns[turn - 1], protocol, judging, against is not None)]


def is_judged_whole(told: Told, protocol: Protocol, judging: str, against: Told | None) -> bool:
    """Whether the conversation as a whole gets a verdict: one of several turns that the model saw one after another,
    all of which have what the protocol needs."""
    turns = told.conversation.turns
    if protocol not in OF_WHOLES or judging == "no_focus" or len(turns) < 2:
        return False
    complete = not any(lacking(turn, protocol, judging, against is not None) for turn in turns)
    return complete and CONDITIONS[told.condition].history and bool(told.asked)


def turn_case(
    told: Told, turn: int, protocol: Protocol, setup: Setup, judging: str = "standard", against: Told | None = None
) -> Case:
    """The verdict on one turn, in sight of the exchanges that the model saw."""
    blank = _blank(told, turn, protocol, setup, judging, against)
    problem = told.problem([turn]) or (against.problem([turn]) if against else None)
    if problem is not None:
        return Case(conversation=told.conversation, verdict=blank, problem=problem)
    blank = replace(blank, length=len(told.answer(turn)))
    if protocol == "pointwise":
        return Case(conversation=told.conversation, verdict=blank, response=_response(told, turn))
    asked = told.conversation.turns[turn - 1]
    model = Side(earlier=_earlier(told, turn), answer=told.answer(turn))
    material = Material(
        kind=_KINDS[protocol, False],
        language=told.conversation.lang,
        output=_output(protocol, setup),
        caption=told.conversation.caption,
        sides=[model, _opponent(told, turn, against, len(model.earlier))] if protocol == "pairwise" else [model],
        question=asked.prompt,
        references=[asked.reference] if _shows_reference(protocol, setup, against) else [],
        focus=None if judging == "no_focus" else asked.focus,
        checklist=asked.checklist if protocol in ("checklist", "quality") else [],
        pack=setup.pack,
    )
    return Case(conversation=told.conversation, verdict=blank, material=material)


def whole_case(
    told: Told,
    protocol: Protocol,
    setup: Setup,
    judging: str = "standard",
    against: Told | None = None,
    turns: Sequence[ConversationJudgment] = (),
) -> Case:
    """The verdict on the whole conversation, in sight of the judgments of its turns."""
    blank = _blank(told, None, protocol, setup, judging, against)
    problem = told.problem(told.asked) or (against.problem(against.asked) if against else None)
    failed = [line.verdict for line in turns if line.verdict.failure is not None]
    if problem is None and failed:
        problem = NOT_JUDGED, f"the verdict on turn {failed[0].turn} failed: {failed[0].failure}"
    if problem is not None:
        return Case(conversation=told.conversation, verdict=blank, problem=problem)
    numbers = range(1, len(told.conversation.turns) + 1)
    material = Material(
        kind=_KINDS[protocol, True],
        language=told.conversation.lang,
        output=_output(protocol, setup),
        caption=told.conversation.caption,
        sides=[_whole(told), *([_whole(against) if against else _references(told)] if protocol == "pairwise" else [])],
        references=(
            [told.conversation.turns[turn - 1].reference for turn in numbers]
            if _shows_reference(protocol, setup, against)
            else []
        ),
        pack=setup.pack,
    )
    return Case(conversation=told.conversation, verdict=blank, material=material, turns=list(turns))


def _blank(
    told: Told, turn: int | None, protocol: Protocol, setup: Setup, judging: str, against: Told | None
) -> TurnVerdict:
    return TurnVerdict(
        conversation=told.conversation.id,
        system=told.system,
        condition=told.condition,
        protocol=protocol,
        judge=setup.judge,
        turn=turn,
        judging=judging,
        opponent=against.system if against and protocol == "pairwise" else None,
    )


def _output(protocol: Protocol, setup: Setup) -> Output:
    return "output_forced" if protocol == "pairwise" and setup.order == "forced" else "output"


def _shows_reference(protocol: Protocol, setup: Setup, against: Told | None) -> bool:
    """Against the reference itself there is no other one to show."""
    return protocol != "pairwise" or (against is not None and setup.reference_backed)


def _earlier(told: Told, turn: int) -> list[Exchange]:
    """The exchanges that the model saw before a turn: those that were left out are not judged by."""
    said = told.turns[turn].seen[:-1]
    return [Exchange(user.content, reply.content) for user, reply in zip(said[::2], said[1::2], strict=True)]


def _opponent(told: Told, turn: int, against: Told | None, shown: int) -> Side:
    """What the opponent said; the reference's conversation begins where the model's does."""
    if against is not None:
        return Side(earlier=_earlier(against, turn), answer=against.answer(turn))
    whole = _references(told, turn - 1).earlier
    return Side(earlier=whole[len(whole) - shown :], answer=told.conversation.turns[turn - 1].reference)


def _references(told: Told, turns: int | None = None) -> Side:
    """The conversation as the references answer it, or its first turns."""
    asked = told.conversation.turns[:turns]
    given = [Exchange(one.user, one.assistant) for one in told.conversation.history]
    return Side(earlier=[*given, *(Exchange(turn.prompt, turn.reference or "") for turn in asked)])


def _whole(told: Told) -> Side:
    given = [Exchange(one.user, one.assistant) for one in told.conversation.history]
    asked = enumerate(told.conversation.turns, 1)
    return Side(earlier=[*given, *(Exchange(turn.prompt, told.answer(number)) for number, turn in asked)])


def _response(told: Told, turn: int) -> Response:
    asked = told.conversation.turns[turn - 1]
    question = Question(
        id=told.conversation.id,
        prompt=asked.prompt,
        task=asked.task or "none",
        group=told.conversation.group,
        lang=told.conversation.lang,
        reference=asked.reference,
        category=told.conversation.category,
        history=[Turn(one.question, one.answer) for one in _earlier(told, turn)],
    )
    return Response(id=told.conversation.id, question=question, text=told.answer(turn), system=told.system)


def hash_of(case: Case, setup: Setup) -> str:
    """The hash of the prompt by which a case is judged."""
    if case.verdict.protocol == "pointwise":
        return judge_prompt.prompt_hash(setup.pointwise_prompt)
    return prompt_hash(_KINDS[case.verdict.protocol, case.verdict.turn is None], setup.pack)


class ConversationJudge:
    """A judge model with one setup."""

    def __init__(self, backend: Backend, setup: Setup, max_tokens: int) -> None:
        self.backend, self.setup = backend, setup
        self._asker = Asker(backend, setup.score_kind, max_tokens, setup.decoding)
        self._extractor = Asker(backend, "argmax", min(EXTRACTION_TOKENS, max_tokens))

    def shown(self, case: Case) -> list[list[Message]]:
        """The prompts of a case as they are before anything is left out; a pair's in the order of `firsts`."""
        if case.response is not None:
            return [judge_prompt.render(self._pointwise(case.response), case.response)]
        if case.material is None:
            return []
        if len(case.material.sides) == 1:
            return [render(_graded(case))]
        return [render(_ordered(case, first)) for first in self.firsts(case)]

    def asked(self, case: Case) -> str | None:
        """A name for what is shown to the judge, None where nothing is."""
        if case.problem is not None:
            return None
        shown = [self.setup, case.verdict.protocol, self.shown(case)]
        return hashlib.sha256(msgspec.json.encode(shown)).hexdigest()[:16]

    def firsts(self, case: Case) -> tuple[Player, ...]:
        """Who stands first, question by question: a random order is the same in every run."""
        if self.setup.order == "both":
            return PLAYERS
        one = case.verdict
        words = (
            f"{self.setup.seed}/{one.system}/{one.conversation}/{one.condition}/{one.turn}/{one.judging}/{one.opponent}"
        )
        return (PLAYERS[hashlib.sha256(words.encode()).digest()[0] % 2],)

    async def judge(self, case: Case) -> ConversationJudgment:
        """One judgment: a score, or a named failure. Never raises for what a server does."""
        if case.problem is not None:
            failure, detail = case.problem
            return self._record(case, score=None, failure=failure, detail=detail)
        try:
            return await self._judge(case)
        except Transient as error:
            return self._record(case, score=None, failure="server_error", detail=str(error))
        except Refused as error:
            return self._record(case, score=None, failure=error.failure, detail=str(error))

    async def _judge(self, case: Case) -> ConversationJudgment:
        if case.response is not None:
            return await self._pointwise_judgment(case, case.response)
        assert case.material is not None
        if len(case.material.sides) > 1:
            return await self._pair_judgment(case)
        if case.material.kind == "checklist":
            return await self._checklist_judgment(case, case.material)
        return await self._rated(case, _asked(case, _graded(case), ("Rating", "Reason")))

    def _record(self, case: Case, score: float | None, failure: str | None, **facts: Any) -> ConversationJudgment:
        return ConversationJudgment(
            conversation=case.conversation,
            verdict=replace(case.verdict, score=score, failure=failure),
            setup=self.setup,
            prompt_hash=hash_of(case, self.setup),
            asked=self.asked(case),
            answer=_answer(case),
            **facts,
        )

    def _pointwise(self, response: Response) -> judge_prompt.Prompt:
        return judge_prompt.load(self.setup.pointwise_prompt, response.question.lang)

    async def _pointwise_judgment(self, case: Case, response: Response) -> ConversationJudgment:
        prompt = self._pointwise(response)
        asked = Asked(
            key=response.id,
            whole=judge_prompt.render(prompt, response),
            shorten=partial(judge_prompt.fit, prompt, response),
            keys=verdict_keys(prompt),
        )
        return await self._rated(case, asked)

    async def _rated(self, case: Case, asked: Asked) -> ConversationJudgment:
        rated = await self._asker.rate(asked)
        found, score, calls = rated.verdict, rated.score, _rating_calls(rated)
        text = rated.calls[0].text
        if found.failure in UNREADABLE and self.setup.extraction and text.strip():
            schema = judge_prompt.verdict_object({"Rating": {"anyOf": [_GRADE, {"const": "Unknown"}]}})
            reply = await self._extract(case, text, "output_rating", schema)
            second = verdict.parse(reply.text, reply.truncated)
            calls.append(_call(reply, _number(second.rating), second.failure, extracted=True))
            if second.failure is None:
                found, score = replace(second, reason=found.reason), second.rating
        return self._record(case, score, found.failure, rating=found, reason=found.reason, calls=calls)

    async def _pair_judgment(self, case: Case) -> ConversationJudgment:
        both = await asyncio.gather(*(self._compared(case, first) for first in self.firsts(case)))
        calls = [call for found in both for call in found.calls]
        failure = next((found.failure for found in both if found.failure is not None), None)
        winners = [_winner(found) for found in both]
        score = None if failure else _POINTS[winners[0]] if len(set(winners)) == 1 else 0.5
        return self._record(case, score, failure, reason=both[0].reason, calls=calls)

    async def _compared(self, case: Case, first: Player) -> "_Compared":
        labels = ["A", "B"] if self.setup.order == "forced" else ["A", "B", "tie"]
        properties: dict[str, Any] = {"Verdict": {"type": "string", "enum": labels}}
        if self.setup.decoding.reason:
            properties["Reason"] = judge_prompt.REASON
        material = _ordered(case, first)
        fitted, reply = await self._asker.ask(
            _asked(case, material, tuple(properties)), judge_prompt.verdict_object(properties)
        )
        found = _choice(reply, labels)
        calls = [_call(reply, found.value, found.failure, first=first, fitted=fitted)]
        if found.failure in UNREADABLE and self.setup.extraction:
            schema = judge_prompt.verdict_object({"Verdict": {"type": "string", "enum": [*labels, "Unknown"]}})
            reply = await self._extract(case, reply.text, "output", schema)
            second = _choice(reply, labels)
            calls.append(_call(reply, second.value, second.failure, first=first, extracted=True))
            found = second if second.failure is None else found
        return _Compared(first, found.value, found.failure, found.reason, calls)

    async def _checklist_judgment(self, case: Case, material: Material) -> ConversationJudgment:
        items = [str(number) for number in range(1, len(material.checklist) + 1)]
        schema = judge_prompt.verdict_object(dict.fromkeys(items, _YES_NO))
        fitted, reply = await self._asker.ask(_asked(case, material, tuple(items)), schema)
        answers = parse_checklist(reply.text, len(items))
        calls = [_call(reply, _shown(answers), _missing(answers, reply), fitted=fitted)]
        if calls[0].failure in UNREADABLE and self.setup.extraction:
            schema = judge_prompt.verdict_object(dict.fromkeys(items, _YES_NO_UNKNOWN))
            reply = await self._extract(case, reply.text, "output_checklist", schema, 8 * len(items))
            answers = parse_checklist(reply.text, len(items))
            calls.append(_call(reply, _shown(answers), _missing(answers, reply), extracted=True))
        failure = calls[-1].failure
        score = None if failure else completion_ratio(answers)
        return self._record(case, score, failure and calls[0].failure, answers=answers, calls=calls)

    async def _extract(self, case: Case, text: str, output: Output, schema: dict[str, Any], tokens: int = 0) -> Reply:
        """The reply to the second, short question: which verdict the text of the first comes to."""
        material = Material(
            kind="extraction", language=case.conversation.lang, output=output, text=text, pack=self.setup.pack
        )
        asker = self._extractor
        if tokens > asker.max_tokens:
            asker = Asker(self.backend, "argmax", tokens)
        _, reply = await asker.ask(_asked(case, material, ()), schema)
        return reply


class _Compared(Struct, frozen=True):
    """A comparison in one order: A, B or tie, or a failure."""

    first: Player
    value: str | None
    failure: str | None
    reason: str | None
    calls: list[Call]


_POINTS: dict[str, float] = {"model": 1.0, "tie": 0.5, "opponent": 0.0}
_YES_NO = {"type": "string", "enum": ["yes", "no"]}
_YES_NO_UNKNOWN = {"type": "string", "enum": ["yes", "no", "Unknown"]}
_GRADE = judge_prompt.VERDICT_SCHEMA["properties"]["Rating"]


def _winner(found: _Compared) -> str:
    if found.value == "tie" or found.value is None:
        return "tie"
    return found.first if found.value == "A" else PLAYERS[1 - PLAYERS.index(found.first)]


def _graded(case: Case) -> Material:
    """The material with the grades of the turns."""
    assert case.material is not None
    judged = [
        TurnJudgment(line.verdict.turn or 0, _number(line.verdict.score) or "", line.reason) for line in case.turns
    ]
    return replace(case.material, verdicts=judged)


def _ordered(case: Case, first: Player) -> Material:
    """The material of a pair with `first` as A, and the verdicts on the turns in these names. Their reasons speak of
    other orders and stay out."""
    assert case.material is not None
    model, opponent = case.material.sides
    prompts = load(case.material.language, case.material.pack)
    names = {1.0: prompts.sides[0], 0.0: prompts.sides[1], 0.5: prompts.tie}
    if first == "opponent":
        model, opponent = opponent, model
        names = {1.0: prompts.sides[1], 0.0: prompts.sides[0], 0.5: prompts.tie}
    judged = [TurnJudgment(line.verdict.turn or 0, names[line.verdict.score or 0.0]) for line in case.turns]
    return replace(case.material, sides=[model, opponent], verdicts=judged)


def _asked(case: Case, material: Material, keys: tuple[str, ...]) -> Asked:
    key = f"{case.conversation.id}/{case.verdict.condition}/{case.verdict.turn}/{case.verdict.protocol}"
    constrained = load(material.language, material.pack).prompts[material.kind].constrained
    return Asked(key=key, whole=render(material), shorten=partial(fit, material), keys=keys, constrained=constrained)


def _answer(case: Case) -> str | None:
    if case.response is not None:
        return case.response.text
    return case.material.sides[0].answer if case.material else None


def _choice(reply: Reply, labels: Sequence[str]) -> verdict.Choice:
    found = verdict.parse_choice(reply.text, "Verdict", reply.truncated)
    return found if found.value is None or found.value in labels else verdict.Choice(failure="no_verdict")


_ITEM = re.compile(r"""(?:^|[{,\n])\s*["']?(\d{1,3})["']?\s*[:.)：]\s*["']?(yes|no)\b""", re.IGNORECASE)


def parse_checklist(text: str, items: int) -> list[bool | None]:
    """The answer to each item (from 1), None where there is none or where an item is answered both ways.

    Read are `{"1":"yes","2":"no"}` and lists of "1: yes" or "1. yes".
    """
    found: dict[int, set[bool]] = {}
    for number, word in _ITEM.findall(text):
        found.setdefault(int(number), set()).add(word.lower() == "yes")
    answers = [found.get(number, set()) for number in range(1, items + 1)]
    return [next(iter(one)) if len(one) == 1 else None for one in answers]


def _missing(answers: Sequence[bool | None], reply: Reply) -> str | None:
    if None not in answers:
        return None
    return "empty" if not reply.text.strip() else "truncated" if reply.truncated else "no_verdict"


def _shown(answers: Sequence[bool | None]) -> str:
    return " ".join("?" if answer is None else "yes" if answer else "no" for answer in answers)


def _number(score: float | None) -> str | None:
    return None if score is None else f"{score:.3g}"


def _rating_calls(rated: Rated) -> list[Call]:
    return [
        _call(
            call,
            _number(reading.verdict.rating) if first else None,
            reading.verdict.failure if first else None,
            fitted=rated.fitted,
        )
        for reading in rated.readings
        for first, call in zip([True, False], reading.calls, strict=False)
    ]


def _call(
    reply: Reply,
    value: str | None,
    failure: str | None,
    first: Player | None = None,
    extracted: bool = False,
    fitted: Fitted | None = None,
) -> Call:
    return Call(
        reply=reply.text,
        value=value,
        failure=failure,
        first=first,
        extracted=extracted,
        shortened=fitted.shortened if fitted else {},
        prompt_tokens=reply.prompt_tokens,
        cached_tokens=reply.cached_tokens,
        completion_tokens=reply.completion_tokens,
        attempts=reply.attempts,
    )


async def judge_all(
    told: Told,
    against: Told | None,
    protocols: Sequence[Protocol],
    judgings: Sequence[str],
    setup: Setup,
    judged: Callable[[Case], Any],
) -> None:
    """Every verdict on a conversation under a condition: turns side by side, then the whole in sight of them.

    `judged` gives the judgment of a case, asking for it unless it is known.
    """
    for protocol in protocols:
        other = against if protocol == "pairwise" else None
        standard: list[ConversationJudgment] = []
        for judging in sorted(judgings, key=lambda name: name != "standard"):
            numbers = turns_judged(told, protocol, judging, other)
            cases = [turn_case(told, turn, protocol, setup, judging, other) for turn in numbers]
            lines = await asyncio.gather(*(judged(case) for case in cases))
            standard = list(lines) if judging == "standard" else standard
            if is_judged_whole(told, protocol, judging, other):
                shown = standard if judging == "standard" else []
                await judged(whole_case(told, protocol, setup, judging, other, shown))


def planned(
    told: Told, against: Told | None, protocols: Sequence[Protocol], judgings: Sequence[str]
) -> Iterator[tuple[Protocol, str, int | None]]:
    """What `judge_all` judges: protocol, judging, turn (None: the whole)."""
    for protocol in protocols:
        other = against if protocol == "pairwise" else None
        for judging in judgings:
            for turn in turns_judged(told, protocol, judging, other):
                yield protocol, judging, turn
            if is_judged_whole(told, protocol, judging, other):
                yield protocol, judging, None
