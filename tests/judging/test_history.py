"""What a model sees at turn k under each condition, and which prompts are the same."""

from typing import Any

import pytest

from critic.judging.history import CONDITIONS, REPHRASE, HistoryMessage, call_id, messages, missing_reference
from critic.records import Conversation, ConversationTurn, Turn

REPLIES = {1: "own 1", 2: "own 2", 3: "own 3"}


def conversation(count: int = 3, **changes: Any) -> Conversation:
    turns = [ConversationTurn(prompt=f"ask {n}", reference=f"ref {n}") for n in range(1, count + 1)]
    turns[0] = ConversationTurn(prompt="ask 1", reference="ref 1", images=["a.png", "b.png"])
    return Conversation(**{"id": "c", "benchmark": "convbench", "lang": "en", "group": "c", "turns": turns, **changes})


def shown(said: list[HistoryMessage]) -> list[str]:
    return ["".join(f"[{name}]" for name in message.images) + message.content for message in said]


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
    said = messages(conversation(), 3, REPLIES, CONDITIONS[name])
    assert shown(said) == turn_3
    assert [message.role for message in said] == [("user", "assistant")[n % 2] for n in range(len(said))]


def test_oracle_shows_all_of_more_turns() -> None:
    said = messages(conversation(5), 5, {}, CONDITIONS["oracle"])
    assert shown(said)[1::2] == ["ref 1", "ref 2", "ref 3", "ref 4"]


def test_images_stay_with_their_turn_or_go_to_the_only_one() -> None:
    two = conversation(
        turns=[ConversationTurn(prompt="ask 1", images=["a.png"]), ConversationTurn(prompt="ask 2", images=["b.png"])]
    )
    assert shown(messages(two, 1, {}, CONDITIONS["own"])) == ["[a.png]ask 1"]
    assert shown(messages(two, 2, REPLIES, CONDITIONS["own"])) == ["[a.png]ask 1", "own 1", "[b.png]ask 2"]
    assert shown(messages(two, 2, REPLIES, CONDITIONS["no_history"])) == ["[a.png][b.png]ask 2"]
    assert shown(messages(two, 2, REPLIES, CONDITIONS["no_image"])) == ["ask 1", "own 1", "ask 2"]


def test_a_given_history_comes_first_and_has_the_image() -> None:
    given_one = conversation(history=[Turn(user="was 1", assistant="said 1"), Turn(user="was 2", assistant="said 2")])
    history = ["[a.png][b.png]was 1", "said 1", "was 2", "said 2"]
    assert shown(messages(given_one, 1, {}, CONDITIONS["own"])) == [*history, "ask 1"]
    assert shown(messages(given_one, 2, REPLIES, CONDITIONS["oracle"])) == [*history, "ask 1", "ref 1", "ask 2"]
    assert shown(messages(given_one, 1, {}, CONDITIONS["no_history"])) == [FIRST]
    assert shown(messages(given_one, 1, {}, CONDITIONS["no_image"])) == ["was 1", *history[1:], "ask 1"]


def calls(talk: Conversation) -> dict[tuple[str, int], str]:
    return {
        (name, turn): call_id(talk, messages(talk, turn, REPLIES, condition))
        for name, condition in CONDITIONS.items()
        for turn in condition.asked(len(talk.turns))
    }


def test_what_the_conditions_share() -> None:
    by_place = calls(conversation())
    groups: dict[str, set[tuple[str, int]]] = {}
    for place, call in by_place.items():
        groups.setdefault(call, set()).add(place)
    assert {frozenset(group) for group in groups.values() if len(group) > 1} == {
        frozenset({("own", 1), ("oracle", 1), ("no_history", 1)}),
        frozenset({("perfect_perception", 2), ("oracle", 2)}),
        frozenset({("perfect_perception_reasoning", 3), ("oracle", 3)}),
        frozenset({("no_history", 3), ("single_turn", 3)}),
    }


def test_sharing_follows_from_what_is_sent() -> None:
    blind = conversation(turns=[ConversationTurn(prompt="ask 1", reference="own 1"), ConversationTurn(prompt="ask 2")])
    by_place = calls(blind)
    assert by_place["own", 1] == by_place["no_image", 1] and by_place["own", 2] == by_place["no_image", 2]
    assert by_place["own", 2] == by_place["perfect_perception", 2], "the reply happens to be the reference"
    assert not set(by_place.values()) & set(calls(conversation(id="other")).values())


def test_a_missing_reference_is_found_where_it_would_be_shown() -> None:
    turns = [ConversationTurn(prompt=f"ask {n}", reference=None if n == 2 else "ref") for n in (1, 2, 3)]
    talk = conversation(turns=turns)
    missing = {name: missing_reference(talk, condition) for name, condition in CONDITIONS.items()}
    assert {name for name, turn in missing.items() if turn is not None} == {
        "perfect_perception_reasoning", "oracle", "rephrased_reference",
    }  # fmt: skip
    assert missing["oracle"] == 2
    unanswered_end = conversation(turns=[*conversation(2).turns, ConversationTurn(prompt="ask 3")])
    assert missing_reference(unanswered_end, CONDITIONS["oracle"]) is None
    assert missing_reference(unanswered_end, CONDITIONS["rephrased_reference"]) == 3
