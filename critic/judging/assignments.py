"""Plan which verdicts a protocol requests on a model's conversations, with the prompt inputs of each verdict."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from critic import records
from critic.judging import protocols
from critic.judging.forms import FORMS, PlannedVerdict, inquiry
from critic.judging.history import CONDITIONS
from critic.judging.kinds import graded, preferred
from critic.judging.prompt import focus_of_turns, load
from critic.judging.thoughts import without_thoughts
from critic.judging.transcripts import Pair, Transcript
from critic.records import Candidate, JudgeConfig, Judgment, PromptInputs, Sample, VerdictKey


def form_name(protocol: str, turn: int | None, setup: JudgeConfig) -> str:
    """Return the full name of the form, flags included, in which a protocol judges a turn or the whole conversation.

    Args:
        turn: The number of the turn; None for the whole conversation.
        setup: Its options (no ties, reason first, later turns shown) add those flags that the form has.

    >>> form_name("pairwise", 1, JudgeConfig(judge="mine", score_kind="argmax", reason_first=True))
    'pairwise_turn_reason_first'
    """
    entry = protocols.load(protocol)
    base = entry.form if turn is not None else entry.whole_form
    if base is None:
        return setup.pointwise_prompt
    wanted = {"forced": setup.forced, "reason_first": setup.reason_first, "in_full": setup.sight == "all"}
    # A form's flags stand in the order in which its name has them.
    endings = [ending for flag in FORMS[base] for ending in flag if wanted.get(ending)]
    return "_".join([base, *endings])


class Assignment(Struct, frozen=True, kw_only=True):
    """A transcript of one conversation, to be judged by one protocol.

    - `judging`: "standard", or the ablation that is applied (records.Ablation).
    - `against`: the transcript of another model on the same conversation, to compare with; None if the protocol
      compares with the reference, or does not compare.
    - `backed`: True if a judge that compares two models also sees the reference.
    """

    transcript: Transcript
    protocol: str
    judging: str = "standard"
    against: Transcript | None = None
    backed: bool = True

    @property
    def entry(self) -> protocols.Protocol:
        return protocols.load(self.protocol)

    def question(self, turn: int) -> records.ConversationTurn:
        """Return turn number `turn` (from 1) of the conversation."""
        return self.transcript.conversation.turns[turn - 1]

    def lacks(self, turn: records.ConversationTurn) -> str | None:
        """Return the name of a field that the protocol needs but the turn lacks, or None.

        A turn that lacks one is not judged.
        """
        return self.entry.lacks(turn, self.judging, self.against is None or self.backed)

    def looks_ahead(self, setup: JudgeConfig) -> bool:
        """Return True if the judge of a turn also sees the later turns.

        The `setup` must ask for it, the protocol must also judge whole conversations, and the model must have seen the
        turns as one dialogue.
        """
        # Turns that the model saw apart are no conversation to look ahead in.
        continues = CONDITIONS[self.transcript.condition].history
        return setup.sight == "all" and self.entry.whole_form is not None and continues

    def turns(self) -> list[int]:
        """Return the numbers (from 1) of the turns that are judged one by one."""
        # "no_turn_verdicts" judges whole conversations only. Protocols that judge only turns use no focus points.
        turns_only = self.entry.whole_form is None
        if self.judging == "no_turn_verdicts" or (self.judging == "no_focus" and turns_only):
            return []
        return [turn for turn in self.transcript.asked if not self.lacks(self.question(turn))]

    def is_judged_whole(self) -> bool:
        """Return True if the whole conversation is judged.

        It must have several turns, and the model must have seen them as one dialogue. Each turn must have the fields
        that the protocol needs.
        """
        turns = self.transcript.conversation.turns
        # A single turn is its own whole; to leave out focus points is an ablation of turns.
        if self.entry.whole_form is None or self.judging == "no_focus" or len(turns) < 2:
            return False
        complete = not any(map(self.lacks, turns))
        return complete and CONDITIONS[self.transcript.condition].history and bool(self.transcript.asked)

    def plan(self, turn: int | None, setup: JudgeConfig, judged: Sequence[Judgment] = ()) -> PlannedVerdict:
        """Plan the verdict on a turn or on the whole conversation.

        Args:
            turn: The number of the turn, from 1; None for the whole conversation.
            judged: The judgments of the turns, which are shown to the judge of the whole conversation.
        """
        transcript, against, material = self.transcript, self.against, None
        shown = transcript.asked if turn is None else [turn]
        problem = transcript.problem(shown) or (against.problem(shown) if against else None)
        answer = transcript.answer(turn) if turn is not None and problem is None else None
        # A turn without a reply, the model's or its opponent's, leaves nothing to judge or to compare.
        if problem is None and turn is not None:
            material = self.entry.show_turn(self, turn, setup)
        elif problem is None and self.entry.show_whole is not None:
            material = self.entry.show_whole(self, setup, judged)
        sample = Sample(
            id=transcript.conversation.id,
            conversation=transcript.conversation,
            system=transcript.system,
            condition=transcript.condition,
            turn=turn,
            answer=answer,
            length=None if answer is None else len(answer),
            opponent=against.system if against else None,
            shown=material,
        )
        return PlannedVerdict(
            sample=sample,
            protocol=self.protocol,
            form=form_name(self.protocol, turn, setup),
            judging=self.judging,
            # The whole is judged without the judgment of a turn that failed, and says how many it lacked.
            unjudged=sum(line.failure is not None for line in judged) if problem is None else 0,
            problem=problem,
            material=material,
        )


def turn_inputs(assignment: Assignment, turn: int, setup: JudgeConfig) -> PromptInputs:
    """Return the prompt inputs for a turn: earlier exchanges, question, images, reply, reference and focus points.

    If the judge sees the later turns (`Assignment.looks_ahead`), later exchanges and all references are included.
    """
    transcript, question = assignment.transcript, assignment.question(turn)
    reply = Candidate(earlier=transcript.earlier(turn), answer=transcript.answer(turn))
    references = [question.reference]
    if assignment.looks_ahead(setup):
        reply = replace(reply, later=transcript.later(turn))
        references = [shown_turn.reference for shown_turn in transcript.conversation.turns]
    return PromptInputs(
        question=question.prompt,
        caption=transcript.conversation.caption,
        sides=[reply],
        references=references,
        focus=None if assignment.judging == "no_focus" else question.focus,
        # Of all turns so far, whether or not the model saw them.
        images=[name for shown in transcript.conversation.turns[:turn] for name in shown.images],
    )


def whole_inputs(assignment: Assignment, setup: JudgeConfig, judged: Sequence[Judgment]) -> PromptInputs:
    """Return the prompt inputs for a whole conversation: all exchanges and references, and the judgments of the turns.

    `judged`: the judgments of the turns; empty to show none.
    """
    transcript, turns = assignment.transcript, assignment.transcript.conversation.turns
    focus = {number: turn.focus for number, turn in enumerate(turns, 1) if turn.focus}
    return PromptInputs(
        caption=transcript.conversation.caption,
        sides=[Candidate(earlier=transcript.whole(transcript.answer))],
        references=[turn.reference for turn in turns],
        focus=focus_of_turns(focus, transcript.conversation.lang),
        verdicts=turn_judgments(assignment, setup, judged),
    )


UNJUDGED: dict[records.Language, str] = {"en": "not judged", "zh": "未评判"}
"""Language -> text that is shown instead of a turn's judgment if that judgment failed."""


def turn_judgments(
    assignment: Assignment, setup: JudgeConfig, judged: Sequence[Judgment], first: records.Position | None = None
) -> list[records.TurnJudgment]:
    """Convert the judgments of turns to what the prompt on the whole conversation shows: grade or side, and reason.

    `first`: in a comparison, the side that is A in that prompt; None for grades. Verdicts from the presentation order
    with this side first are used.
    """
    return [_build_turn_judgment(line, form_name(assignment.protocol, line.turn, setup), first) for line in judged]


def _build_turn_judgment(line: Judgment, form: str, first: records.Position | None) -> records.TurnJudgment:
    turn, lang = line.turn or 0, line.conversation.lang
    calls = [call for call in line.calls if call.first == first]
    score = line.score if line.raw_score is None else line.raw_score  # the judge's score before recalibration
    if not calls and score is not None:  # a human score, or an order in which the judge was not asked
        side = score if first == "model" else 1 - score
        return records.TurnJudgment(turn, graded(score) if first is None else preferred(side))
    verdict = next((call.value for call in reversed(calls) if call.value is not None), None)
    if first is None and verdict is not None:  # a grade without a score counts as missing
        verdict = None if score is None else graded(score)
    # A comparison that could not be read counts as a tie, and is shown as what it counts.
    if verdict is None:
        return records.TurnJudgment(turn, load(form, lang).tie if line.unread else UNJUDGED[lang])
    text = without_thoughts(calls[0].reply)
    reason = inquiry(form, lang, PromptInputs()).read(text, False).reason
    # Free text is its own reason; an object without one would only show braces.
    return records.TurnJudgment(turn, verdict, reason or (None if text.startswith("{") else text))


class VerdictPlan(Struct, frozen=True):
    """The verdicts to request on the conversations of a `benchmark`.

    - `pairs`: the transcripts to judge, each with the transcript of the model that it is compared with, or None.
    - `protocols`, `judgings`: each pair is judged by each protocol, in each variant ("standard" or an ablation).
    - `backed`: as in Assignment.
    """

    benchmark: str
    pairs: list[Pair]
    protocols: list[str]
    judgings: Sequence[str]
    backed: bool

    def assignments(self) -> Iterator[Assignment]:
        """Yield one assignment per pair, protocol and variant of judging, the standard variant first.

        The other model's transcript is dropped if the protocol does not compare.
        """
        for transcript, opponent in self.pairs:
            for protocol in self.protocols:
                against = opponent if protocols.load(protocol).compares else None
                given = Assignment(transcript=transcript, protocol=protocol, against=against, backed=self.backed)
                # If two variants give the same prompt, only the first is sent; the second reuses its verdict.
                for judging in sorted(self.judgings, key=lambda name: name != "standard"):
                    yield replace(given, judging=judging)

    async def judge_all(self, setup: JudgeConfig, judged: Callable[[PlannedVerdict], Awaitable[Judgment]]) -> None:
        """Request all verdicts, one assignment after another.

        The turns of an assignment are judged concurrently, then the whole conversation. `judged`: function that returns
        the judgment of a planned verdict, from the output file if it is already there.
        """
        for assignment in self.assignments():
            lines = await asyncio.gather(*(judged(assignment.plan(turn, setup)) for turn in assignment.turns()))
            if assignment.is_judged_whole():
                await judged(assignment.plan(None, setup, lines))

    def wanted(self) -> Iterator[VerdictKey]:
        """Yield the key (records.VerdictKey) of each verdict to request."""
        for assignment in self.assignments():
            transcript, whole = assignment.transcript, [None] if assignment.is_judged_whole() else []
            named = transcript.system, transcript.conversation.id, transcript.condition
            opponent = assignment.against.system if assignment.against else None
            for turn in [*assignment.turns(), *whole]:
                yield *named, assignment.protocol, assignment.judging, turn, opponent

    def lacking(self) -> Counter[str]:
        """Count the turns that are not judged, by "PROTOCOL: no FIELD", where FIELD is what the turns lack."""
        counts: Counter[str] = Counter()
        # A turn without focus points lacks nothing: there is just nothing to leave out.
        for assignment in replace(self, judgings=["standard"]).assignments():
            reasons = (assignment.lacks(assignment.question(turn)) for turn in assignment.transcript.asked)
            counts.update(f"{assignment.protocol}: no {reason}" for reason in reasons if reason)
        return counts
