"""Pointwise: each answer is rated 1..10 against the reference, by the rules of its task (AlignMMBench §4.1)."""

from msgspec.structs import replace

from critic.judging.assignments import Assignment, turn_inputs
from critic.judging.protocols import Protocol
from critic.records import JudgeConfig, PromptInputs


def show_turn(assignment: Assignment, turn: int, setup: JudgeConfig) -> PromptInputs:
    """Return the prompt inputs for a turn (`turn_inputs`), with its task and only the reference of this turn.

    Focus points and the description of the image are left out; the prompt has rules for the task instead.
    """
    question, shown = assignment.question(turn), turn_inputs(assignment, turn, setup)
    references: list[str | None] = [question.reference or ""]
    return replace(shown, references=references, task=question.task or "none", caption=None, focus=None)


PROTOCOL = Protocol(scale=(1, 10), show_turn=show_turn)
