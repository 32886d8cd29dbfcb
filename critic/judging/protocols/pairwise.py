"""Pairwise: each turn, and the whole, is compared with the reference or another model (ConvBench, VisIT-Bench)."""

from collections.abc import Sequence

from msgspec.structs import replace

from critic.judging.assignments import Assignment, turn_inputs, turn_judgments, whole_inputs
from critic.judging.protocols import Protocol
from critic.records import PLAYERS, Candidate, JudgeConfig, Judgment, PromptInputs


def show_turn(assignment: Assignment, turn: int, setup: JudgeConfig) -> PromptInputs:
    """Return the prompt inputs for a turn (`turn_inputs`), with the opponent's or the reference's answer added."""
    transcript, against = assignment.transcript, assignment.against
    shown = turn_inputs(assignment, turn, setup)
    if against is not None:
        other = Candidate(earlier=against.earlier(turn), answer=against.answer(turn), later=against.later(turn))
    else:  # the reference's conversation begins where the model's does
        earlier = transcript.whole(transcript.reference, turn - 1)
        begins = len(earlier) - len(shown.sides[0].earlier)
        later = transcript.later(turn, transcript.reference)
        other = Candidate(earlier=earlier[begins:], answer=assignment.question(turn).reference, later=later)
    if not assignment.looks_ahead(setup):
        other = replace(other, later=[])
    return _beside(assignment, setup, shown, other)


def show_whole(assignment: Assignment, setup: JudgeConfig, judged: Sequence[Judgment]) -> PromptInputs:
    """Return the prompt inputs for the model's whole conversation (first side) and the opponent's or the reference's.

    `judged`: the judgments of the turns; the inputs hold them for both orders of the sides.
    """
    transcript, against = assignment.transcript, assignment.against
    answers = transcript.whole(transcript.reference) if against is None else against.whole(against.answer)
    verdicts, turned = (turn_judgments(assignment, setup, judged, first) for first in PLAYERS)
    shown = replace(whole_inputs(assignment, setup, ()), verdicts=verdicts, turned=turned)
    return _beside(assignment, setup, shown, Candidate(earlier=answers))


def _beside(assignment: Assignment, setup: JudgeConfig, shown: PromptInputs, other: Candidate) -> PromptInputs:
    """Return the prompt inputs `shown` with `other` as the second side.

    The references are removed, unless two models are compared and the setup shows the reference to the judge.
    """
    backed = assignment.against is not None and setup.reference_backed
    return replace(shown, sides=[*shown.sides, other], references=shown.references if backed else [])


PROTOCOL = Protocol(
    scale=(0, 1),
    form="pairwise_turn",
    whole_form="pairwise_whole",
    compares=True,
    show_turn=show_turn,
    show_whole=show_whole,
)
