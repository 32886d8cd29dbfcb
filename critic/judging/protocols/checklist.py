"""Checklist: yes or no for each item of a turn's checklist. The score is the share of yes, 0..1 (MultiVerse §4)."""

from critic.judging.protocols import Protocol
from critic.judging.protocols.quality import show_turn

PROTOCOL = Protocol(scale=(0, 1), form="checklist", needs=("checklist", "reference"), show_turn=show_turn)
