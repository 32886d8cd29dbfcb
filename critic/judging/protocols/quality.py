"""Quality: each turn is rated 1..10. The judge sees its checklist; the reference would get a 10 (MultiVerse §4)."""

from msgspec.structs import replace

from critic.judging.assignments import Assignment, turn_inputs
from critic.judging.protocols import Protocol
from critic.records import JudgeConfig, PromptInputs


def show_turn(assignment: Assignment, turn: int, setup: JudgeConfig) -> PromptInputs:
    """Return the prompt inputs for a turn (`turn_inputs`) with its checklist, which may be empty."""
    return replace(turn_inputs(assignment, turn, setup), checklist=assignment.question(turn).checklist)


PROTOCOL = Protocol(scale=(1, 10), form="quality", show_turn=show_turn)
