"""What a model sees at turn 3 under each condition. What else it sees is shown in critic/judging/history.py."""

import pytest

from critic.judging.history import CONDITIONS, REPHRASE, messages
from critic.records import Conversation, ConversationTurn

TURNS = [ConversationTurn(prompt=f"ask {n}", reference=f"ref {n}") for n in (1, 2, 3)]
TURNS[0].images.extend(["a.png", "b.png"])
TALK = Conversation(id="c", benchmark="convbench", lang="en", group="c", turns=TURNS)
FIRST = "[a.png][b.png]ask 1"

CASES = {
    "own": ([1, 2, 3], [FIRST, "own 1", "ask 2", "own 2", "ask 3"]),
    "perfect_perception": ([2, 3], [FIRST, "ref 1", "ask 2", "own 2", "ask 3"]),
    "perfect_perception_reasoning": ([3], [FIRST, "ref 1", "ask 2", "ref 2", "ask 3"]),
    "oracle": ([1, 2, 3], [FIRST, "ref 1", "ask 2", "ref 2", "ask 3"]),
    "no_history": ([1, 2, 3], ["[a.png][b.png]ask 3"]),
    "no_image": ([1, 2, 3], ["ask 1", "own 1", "ask 2", "own 2", "ask 3"]),
    "single_turn": ([3], ["[a.png][b.png]ask 3"]),
    "rephrased_reference": ([1, 2, 3], [REPHRASE["en"].format(question="ask 3", reference="ref 3")]),
}
"""The turns of three that each condition asks, and what it shows at the third."""


def test_every_condition_has_its_case() -> None:
    assert set(CONDITIONS) == set(CASES)


@pytest.mark.parametrize(("name", "asked", "turn_3"), [(name, *case) for name, case in CASES.items()])
def test_what_a_condition_asks_and_shows(name: str, asked: list[int], turn_3: list[str]) -> None:
    assert list(CONDITIONS[name].asked(3)) == asked
    said = messages(TALK, 3, {1: "own 1", 2: "own 2", 3: "own 3"}, CONDITIONS[name])
    assert ["".join(f"[{name}]" for name in message.images) + message.content for message in said] == turn_3
    assert [message.role for message in said] == [("user", "assistant")[n % 2] for n in range(len(said))]
