"""Direct: each turn and the whole conversation are rated 1..10; the reference would get a 10 (ConvBench §4)."""

from critic.judging.assignments import turn_inputs, whole_inputs
from critic.judging.protocols import Protocol

PROTOCOL = Protocol(
    scale=(1, 10), form="direct_turn", whole_form="direct_whole", show_turn=turn_inputs, show_whole=whole_inputs
)
