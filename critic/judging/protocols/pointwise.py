"""Pointwise: each answer gets 1..10 against the reference, by the rules of its task (AlignMMBench §4.1)."""

from critic.judging.assignments import Assignment
from critic.judging.protocols import Protocol
from critic.records import Candidate, JudgeConfig, PromptInputs


def show_turn(assignment: Assignment, turn: int, setup: JudgeConfig) -> PromptInputs:
    """Return the prompt inputs for a turn: question, reference, reply and task.

    The rules of the task replace focus points and checklists.
    """
    transcript, question = assignment.transcript, assignment.question(turn)
    return PromptInputs(
        sides=[Candidate(earlier=transcript.earlier(turn), answer=transcript.answer(turn))],
        question=question.prompt,
        references=[question.reference or ""],
        task=question.task or "none",
        images=transcript.images(turn),
    )


PROTOCOL = Protocol(scale=(1, 10), show_turn=show_turn)
