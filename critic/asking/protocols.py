"""The protocols by which a model's conversations are judged: which verdicts each gets, and what a judge is shown.

pointwise: 1..10 against the reference (AlignMMBench). direct: 1..10, the reference fixed at 10, each turn and the whole
(ConvBench). pairwise: against the reference or another model, each turn and the whole (ConvBench, VisIT-Bench).
checklist and quality: yes or no by item, and 1..10 with the reference fixed at 10, each turn (MultiVerse).
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from critic.asking.forms import graded, prompt_of
from critic.asking.history import CONDITIONS
from critic.asking.render import Exchange, Material, Side, TurnJudgment
from critic.records import (
    Conversation,
    ConversationJudgment,
    ConversationTurn,
    ModelTurn,
    Protocol,
    Setup,
    TurnVerdict,
)

OF_WHOLES: tuple[Protocol, ...] = ("direct", "pairwise")
"""The protocols that judge whole conversations as well as turns."""

NOT_JUDGED = "turn_not_judged"
"""The failure of a whole conversation that was to be judged in sight of its turns' judgments, and one failed."""

_FORMS: dict[tuple[Protocol, bool], str] = {
    ("direct", False): "direct_turn",
    ("direct", True): "direct_whole",
    ("pairwise", False): "pairwise_turn",
    ("pairwise", True): "pairwise_whole",
    ("checklist", False): "checklist",
    ("quality", False): "quality",
}
"""The form of a protocol for a turn, or for the whole (True)."""


def form_name(protocol: Protocol, whole: bool, setup: Setup) -> str:
    """The form in which a protocol asks, within the setup's pack."""
    if protocol == "pointwise":
        return setup.pointwise_prompt
    name = _FORMS[protocol, whole] + ("_forced" if protocol == "pairwise" and setup.order == "forced" else "")
    return f"{setup.pack}/{name}" if setup.pack else name


def form_names(chosen: Iterable[str], setup: Setup) -> list[str]:
    """The forms in which the chosen protocols ask, pointwise apart, which has a prompt of its own choice."""
    return [form_name(protocol, whole, setup) for protocol, whole in _FORMS if protocol in chosen]


class Transcript(Struct, frozen=True, kw_only=True):
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


class PlannedVerdict(Struct, frozen=True, kw_only=True):
    """One verdict to be asked for in a form; `verdict` lacks its score. Of a pair the model stands first in
    `material`, which is None where a `problem` (failure and sentence) leaves nothing to judge."""

    conversation: Conversation
    verdict: TurnVerdict
    form: str
    problem: tuple[str, str] | None = None
    material: Material | None = None


def lacking(turn: ConversationTurn, protocol: Protocol, judging: str, against_model: bool) -> str | None:
    """What a turn lacks that the protocol needs; such turns are not judged."""
    if judging == "no_focus" and turn.focus is None:
        return "focus points"
    if protocol == "checklist" and not turn.checklist:
        return "checklist"
    if turn.reference is None and not (protocol == "pairwise" and against_model):
        return "reference"
    return None


def turns_judged(one: Transcript, protocol: Protocol, judging: str, against: Transcript | None) -> list[int]:
    """The turns that get a verdict of their own."""
    if judging == "no_turn_verdicts" or (judging == "no_focus" and protocol not in OF_WHOLES):
        return []
    turns = one.conversation.turns
    return [turn for turn in one.asked if not lacking(turns[turn - 1], protocol, judging, against is not None)]


def is_judged_whole(one: Transcript, protocol: Protocol, judging: str, against: Transcript | None) -> bool:
    """Whether the conversation as a whole gets a verdict: one of several turns that the model saw one after another,
    all of which have what the protocol needs."""
    turns = one.conversation.turns
    if protocol not in OF_WHOLES or judging == "no_focus" or len(turns) < 2:
        return False
    complete = not any(lacking(turn, protocol, judging, against is not None) for turn in turns)
    return complete and CONDITIONS[one.condition].history and bool(one.asked)


def of_turn(
    one: Transcript,
    turn: int,
    protocol: Protocol,
    setup: Setup,
    judging: str = "standard",
    against: Transcript | None = None,
) -> PlannedVerdict:
    """The verdict on one turn, in sight of the exchanges that the model saw."""
    blank = _blank(one, turn, protocol, setup, judging, against)
    planned = PlannedVerdict(conversation=one.conversation, verdict=blank, form=form_name(protocol, False, setup))
    problem = one.problem([turn]) or (against.problem([turn]) if against else None)
    if problem is not None:
        return replace(planned, problem=problem)
    asked = one.conversation.turns[turn - 1]
    side = Side(earlier=_earlier(one, turn), answer=one.answer(turn))
    material = Material(sides=[side], question=asked.prompt)
    if protocol == "pointwise":
        material = replace(material, references=[asked.reference or ""], task=asked.task or "none")
    else:
        material = replace(
            material,
            caption=one.conversation.caption,
            sides=[side, _opponent(one, turn, against, len(side.earlier))] if protocol == "pairwise" else [side],
            references=[asked.reference] if _shows_reference(protocol, setup, against) else [],
            focus=None if judging == "no_focus" else asked.focus,
            checklist=asked.checklist if protocol in ("checklist", "quality") else [],
        )
    return replace(planned, verdict=replace(blank, length=len(one.answer(turn))), material=material)


def of_whole(
    one: Transcript,
    protocol: Protocol,
    setup: Setup,
    judging: str = "standard",
    against: Transcript | None = None,
    turns: Sequence[ConversationJudgment] = (),
) -> PlannedVerdict:
    """The verdict on the whole conversation, in sight of the judgments of its turns."""
    blank = _blank(one, None, protocol, setup, judging, against)
    planned = PlannedVerdict(conversation=one.conversation, verdict=blank, form=form_name(protocol, True, setup))
    problem = one.problem(one.asked) or (against.problem(against.asked) if against else None)
    failed = [line.verdict for line in turns if line.verdict.failure is not None]
    if problem is None and failed:
        problem = NOT_JUDGED, f"the verdict on turn {failed[0].turn} failed: {failed[0].failure}"
    if problem is not None:
        return replace(planned, problem=problem)
    pair = protocol == "pairwise"
    given = [turn.reference for turn in one.conversation.turns]
    material = Material(
        caption=one.conversation.caption,
        sides=[_whole(one), *([_whole(against) if against else _references(one)] if pair else [])],
        references=given if _shows_reference(protocol, setup, against) else [],
        verdicts=[_shown(line, planned.form) for line in turns],
    )
    return replace(planned, material=material)


def _shown(line: ConversationJudgment, form: str) -> TurnJudgment:
    """The judgment of a turn as it is shown: a grade with its reason, or of two sides the better one's name. What was
    said of them speaks of other orders and stays out."""
    turn, score = line.verdict.turn or 0, line.verdict.score or 0.0
    if line.verdict.protocol != "pairwise":
        return TurnJudgment(turn, graded(score), line.reason)
    prompt = prompt_of(form, line.conversation.lang)
    return TurnJudgment(turn, {1.0: prompt.sides[0], 0.0: prompt.sides[1], 0.5: prompt.tie}[score])


def _blank(
    one: Transcript, turn: int | None, protocol: Protocol, setup: Setup, judging: str, against: Transcript | None
) -> TurnVerdict:
    return TurnVerdict(
        conversation=one.conversation.id,
        system=one.system,
        condition=one.condition,
        protocol=protocol,
        judge=setup.judge,
        turn=turn,
        judging=judging,
        opponent=against.system if against and protocol == "pairwise" else None,
    )


def _shows_reference(protocol: Protocol, setup: Setup, against: Transcript | None) -> bool:
    """Against the reference itself there is no other one to show."""
    return protocol != "pairwise" or (against is not None and setup.reference_backed)


def _earlier(one: Transcript, turn: int) -> list[Exchange]:
    """The exchanges that the model saw before a turn: those that were left out are not judged by."""
    sent = one.turns[turn].seen[:-1]
    return [Exchange(user.content, reply.content) for user, reply in zip(sent[::2], sent[1::2], strict=True)]


def _opponent(one: Transcript, turn: int, against: Transcript | None, shown: int) -> Side:
    """What the opponent said; the reference's conversation begins where the model's does."""
    if against is not None:
        return Side(earlier=_earlier(against, turn), answer=against.answer(turn))
    whole = _references(one, turn - 1).earlier
    return Side(earlier=whole[len(whole) - shown :], answer=one.conversation.turns[turn - 1].reference)


def _references(one: Transcript, turns: int | None = None) -> Side:
    """The conversation as the references answer it, or its first turns."""
    asked = one.conversation.turns[:turns]
    given = [Exchange(turn.user, turn.assistant) for turn in one.conversation.history]
    return Side(earlier=[*given, *(Exchange(turn.prompt, turn.reference or "") for turn in asked)])


def _whole(one: Transcript) -> Side:
    given = [Exchange(turn.user, turn.assistant) for turn in one.conversation.history]
    asked = enumerate(one.conversation.turns, 1)
    return Side(earlier=[*given, *(Exchange(turn.prompt, one.answer(number)) for number, turn in asked)])


async def judge_all(
    one: Transcript,
    against: Transcript | None,
    protocols: Sequence[Protocol],
    judgings: Sequence[str],
    setup: Setup,
    judged: Callable[[PlannedVerdict], Any],
) -> None:
    """Every verdict on a conversation under a condition: turns side by side, then the whole in sight of them.

    `judged` gives the judgment of a planned verdict, asking for it unless it is known.
    """
    for protocol in protocols:
        other = against if protocol == "pairwise" else None
        standard: list[ConversationJudgment] = []
        for judging in sorted(judgings, key=lambda name: name != "standard"):
            numbers = turns_judged(one, protocol, judging, other)
            planned = [of_turn(one, turn, protocol, setup, judging, other) for turn in numbers]
            lines = await asyncio.gather(*(judged(each) for each in planned))
            standard = list(lines) if judging == "standard" else standard
            if is_judged_whole(one, protocol, judging, other):
                shown = standard if judging == "standard" else []
                await judged(of_whole(one, protocol, setup, judging, other, shown))


def verdicts_planned(
    one: Transcript, against: Transcript | None, protocols: Sequence[Protocol], judgings: Sequence[str]
) -> Iterator[tuple[Protocol, str, int | None]]:
    """What `judge_all` judges: protocol, judging, turn (None: the whole)."""
    for protocol in protocols:
        other = against if protocol == "pairwise" else None
        for judging in judgings:
            for turn in turns_judged(one, protocol, judging, other):
                yield protocol, judging, turn
            if is_judged_whole(one, protocol, judging, other):
                yield protocol, judging, None
