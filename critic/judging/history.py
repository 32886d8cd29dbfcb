"""Build the messages that a model sees at a turn of a conversation: one table in conditions.toml for each ablation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from critic.errors import hash_value
from critic.records import Conversation, Language


class HistoryMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message to the model under judgment. Its `images` (paths or other names) precede its text."""

    role: Literal["user", "assistant"]
    content: str
    images: list[str] = msgspec.field(default_factory=list)


class Condition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The history that a model sees before it answers a turn.

    - `references`: the number of initial turns that are answered by their references; later turns have the model's own
      replies.
    - `history`: False leaves out all earlier turns.
    - `images`: False leaves out all images.
    - `first`: the first turn (from 1) that the model answers. `only_last`: it answers no turn but the last.
    - `rephrase`: the model is asked to rephrase the reference instead of answering.
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
        """Return the earlier turns (from 1) that appear with the model's own replies when it answers `turn`.

        If one of these replies is missing, the model is not asked.
        """
        return range(self.references + 1, turn) if self.history else range(0)


_FILE = msgspec.toml.decode(Path(__file__).with_name("conditions.toml").read_bytes())

CONDITIONS = msgspec.convert(_FILE["conditions"], dict[str, Condition])
"""Condition name -> the history that the model sees."""

REPHRASE: dict[Language, str] = _FILE["rephrase"]
"""Prompts that ask a model to rephrase a reference, by language."""


def missing_reference(conversation: Conversation, condition: Condition) -> int | None:
    """Return the first turn (from 1) whose reference the condition shows but the conversation lacks, or None."""
    shown = max(condition.asked(len(conversation.turns)), default=0) - 1
    count = len(conversation.turns) if condition.rephrase else min(shown, condition.references)
    turns = enumerate(conversation.turns[:count], 1)
    return next((number for number, turn in turns if turn.reference is None), None)


def messages(
    conversation: Conversation, turn: int, replies: Mapping[int, str], condition: Condition
) -> list[HistoryMessage]:
    """Build the messages that the model sees at turn `turn` (from 1), ending with that turn's question.

    Images accompany the question of their own turn; the first turn's images accompany the first question of a given
    history, if there is one. Images of omitted turns accompany the question of this turn.

    Args:
        replies: The model's own replies by turn number, including all that the condition shows.

    Raises ValueError if a reference that the condition shows is missing.
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
    """Return a hash of conversation id and messages. Requests with the same hash are sent once and share the reply."""
    return hash_value([conversation.id, sent], 16)
