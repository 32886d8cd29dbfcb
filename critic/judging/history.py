"""Build the messages that a model sees at a turn of a conversation, under the conditions of conditions.toml.

A condition says which earlier turns and images the model sees, and whether they show its own replies or references.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from critic.errors import hash_value
from critic.records import Conversation, Language


class HistoryMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message to the model under test. Its `images` (paths or other names) precede its text (`content`)."""

    role: Literal["user", "assistant"]
    content: str
    images: list[str] = msgspec.field(default_factory=list)


class Condition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The history that a model sees before it answers a turn.

    - `help`: the description in `critic infer --help`.
    - `references`: number of turns, from the first on, whose references are shown instead of the model's own replies.
    - `history`: False leaves out all earlier turns.
    - `images`: False leaves out all images.
    - `first`: the first turn (from 1) that the model answers.
    - `only_last`: True if the model answers only the last turn.
    - `rephrase`: True if the model is asked to rephrase the reference instead of answering.
    """

    help: str
    references: int = 0
    history: bool = True
    images: bool = True
    first: int = 1
    only_last: bool = False
    rephrase: bool = False

    def asked(self, turns: int) -> range:
        """Return the turns (from 1) that the model answers in a conversation of `turns` turns."""
        return range(turns if self.only_last else self.first, turns + 1)

    def own(self, turn: int) -> range:
        """Return the earlier turns (from 1) that are shown with the model's own replies when it answers `turn`.

        If one of these replies is missing, the turn cannot be asked.
        """
        return range(self.references + 1, turn) if self.history else range(0)


_FILE = msgspec.toml.decode(Path(__file__).with_name("conditions.toml").read_bytes())

CONDITIONS = msgspec.convert(_FILE["conditions"], dict[str, Condition])
"""Name of a condition -> the history that the model sees under it."""

REPHRASE: dict[Language, str] = _FILE["rephrase"]
"""Language -> prompt that asks a model to rephrase a reference."""


def missing_reference(conversation: Conversation, condition: Condition) -> int | None:
    """Return the first turn (from 1) without the reference that the condition shows, or None if none is missing.

    >>> from critic.records import ConversationTurn
    >>> def lacking(*references):
    ...     turns = [ConversationTurn(prompt="?", reference=reference) for reference in references]
    ...     talk = Conversation(id="c", lang="en", group="c", turns=turns)
    ...     missing = {name: missing_reference(talk, condition) for name, condition in CONDITIONS.items()}
    ...     return {name: turn for name, turn in missing.items() if turn is not None}
    >>> lacking("four", None, "five")
    {'perfect_perception_reasoning': 2, 'oracle': 2, 'rephrased_reference': 2}
    >>> lacking("four", "five", None)
    {'rephrased_reference': 3}
    """
    shown = max(condition.asked(len(conversation.turns)), default=0) - 1
    count = len(conversation.turns) if condition.rephrase else min(shown, condition.references)
    turns = enumerate(conversation.turns[:count], 1)
    return next((number for number, turn in turns if turn.reference is None), None)


def messages(
    conversation: Conversation, turn: int, replies: Mapping[int, str], condition: Condition
) -> list[HistoryMessage]:
    """Build the messages that the model sees at turn `turn` (from 1), ending with that turn's question.

    Images are shown with the question of their turn. If the conversation comes with a history (`Conversation.history`),
    the first turn's images are shown with the history's first question. Images of omitted turns are shown with the
    question of this turn.

    Args:
        replies: Turn number -> the model's own reply, for all turns that the condition shows with own replies.

    Raises ValueError if a reference that the condition shows is missing.

    >>> from critic.records import ConversationTurn, Turn
    >>> def talk_of(count, **fields):
    ...     turns = [ConversationTurn(prompt=f"ask {n + 1}", reference=f"ref {n + 1}") for n in range(count)]
    ...     turns[0].images.extend(["a.png", "b.png"])
    ...     turns[-1].images.append("c.png")
    ...     return Conversation(id="c", lang="en", group="c", turns=turns, **fields)
    >>> def show(talk, turn, name):
    ...     sent = messages(talk, turn, {1: "own 1"}, CONDITIONS[name])
    ...     return [" ".join([*message.images, message.content]) for message in sent]
    >>> show(talk_of(2), 1, "own"), show(talk_of(2), 2, "own")
    (['a.png b.png ask 1'], ['a.png b.png ask 1', 'own 1', 'c.png ask 2'])
    >>> show(talk_of(2), 2, "no_history"), show(talk_of(2), 2, "no_image")
    (['a.png b.png c.png ask 2'], ['ask 1', 'own 1', 'ask 2'])
    >>> show(talk_of(5), 5, "oracle")[1::2]
    ['ref 1', 'ref 2', 'ref 3', 'ref 4']

    The conversation's own history comes before the first turn:

    >>> given = talk_of(2, history=[Turn(user="was 1", assistant="said 1"), Turn(user="was 2", assistant="said 2")])
    >>> show(given, 1, "own")
    ['a.png b.png was 1', 'said 1', 'was 2', 'said 2', 'ask 1']
    >>> show(given, 2, "oracle")
    ['a.png b.png was 1', 'said 1', 'was 2', 'said 2', 'ask 1', 'ref 1', 'c.png ask 2']
    >>> show(given, 1, "no_history"), show(given, 1, "no_image")
    (['a.png b.png ask 1'], ['was 1', 'said 1', 'was 2', 'said 2', 'ask 1'])
    """
    turns = conversation.turns[:turn]
    images = [question.images if condition.images else [] for question in turns]
    if condition.rephrase:
        words = {"question": turns[-1].prompt, "reference": turns[-1].reference or ""}
        return [_user_message(REPHRASE[conversation.lang].format(**words), [])]
    if not condition.history:
        return [_user_message(turns[-1].prompt, [name for names in images for name in names])]
    exchanges = [(given.user, given.assistant) for given in conversation.history]
    for number, question in enumerate(turns[:-1], 1):
        answer = replies[number] if number > condition.references else question.reference
        if answer is None:
            raise ValueError(f"{conversation.id}: turn {number} has no reference")
        exchanges.append((question.prompt, answer))
    # The first turn's images move to the first question of a given history; all others of it have none.
    shown = [images[0], *[[]] * len(conversation.history), *images[1:]]
    sent = list[HistoryMessage]()
    for (prompt, answer), names in zip(exchanges, shown, strict=False):
        sent += [_user_message(prompt, names), HistoryMessage(role="assistant", content=answer)]
    return [*sent, _user_message(turns[-1].prompt, shown[-1])]


def _user_message(content: str, images: list[str]) -> HistoryMessage:
    return HistoryMessage(role="user", content=content, images=images)


def call_id(conversation: Conversation, sent: Sequence[HistoryMessage]) -> str:
    """Return a hash of the conversation's id and the messages `sent`, which identifies the request.

    Requests with the same hash, such as turn 1 under several conditions, are sent once and share the reply.

    >>> from critic.records import ConversationTurn
    >>> def calls(talk):
    ...     replies, places = {1: "own 1", 2: "own 2"}, {}
    ...     for name, condition in CONDITIONS.items():
    ...         for turn in condition.asked(len(talk.turns)):
    ...             call = call_id(talk, messages(talk, turn, replies, condition))
    ...             places.setdefault(call, []).append(f"{name} {turn}")
    ...     return places
    >>> turns = [ConversationTurn(prompt=f"ask {n}", reference=f"ref {n}", images=["a.png"]) for n in (1, 2, 3)]
    >>> talk = Conversation(id="c", lang="en", group="c", turns=turns)
    >>> [shared for shared in calls(talk).values() if shared[1:]]  # doctest: +NORMALIZE_WHITESPACE
    [['own 1', 'oracle 1', 'no_history 1'], ['perfect_perception 2', 'oracle 2'],
     ['perfect_perception_reasoning 3', 'oracle 3'], ['no_history 3', 'single_turn 3']]

    Without an image, and with a reference that is also the model's reply, more requests are the same:

    >>> turns = [ConversationTurn(prompt="ask 1", reference="own 1"), ConversationTurn(prompt="ask 2")]
    >>> plain = Conversation(id="c", lang="en", group="c", turns=turns)
    >>> [shared for shared in calls(plain).values() if "own" in shared[0]]  # doctest: +NORMALIZE_WHITESPACE
    [['own 1', 'oracle 1', 'no_history 1', 'no_image 1'],
     ['own 2', 'perfect_perception 2', 'oracle 2', 'no_image 2']]
    >>> {*calls(plain)} & {*calls(msgspec.structs.replace(plain, id="other"))}
    set()
    """
    return hash_value([conversation.id, sent], 16)
