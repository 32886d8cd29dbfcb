"""Checklist: yes or no for each item of the turn's checklist; the score is the share of yes (MultiVerse §4)."""

from critic.judging.protocols import Protocol
from critic.judging.protocols.quality import show_turn

PROTOCOL = Protocol(scale=(0, 1), form="checklist", needs=("checklist", "reference"), show_turn=show_turn)
