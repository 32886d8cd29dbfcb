"""Direct: 1..10, with the rating of the reference fixed at 10, for each turn and the whole (ConvBench §4)."""

from critic.judging.assignments import turn_inputs, whole_inputs
from critic.judging.protocols import Protocol

PROTOCOL = Protocol(
    scale=(1, 10), form="direct_turn", whole_form="direct_whole", show_turn=turn_inputs, show_whole=whole_inputs
)
