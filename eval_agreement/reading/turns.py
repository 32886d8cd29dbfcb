"""Read the texts of single turns from files whose rows each hold a whole conversation."""

import json
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from critic import tables
from critic.errors import UsageError
from critic.records import Turn

if TYPE_CHECKING:
    import pandas as pd

_CONVERSATION = re.compile(r"(?:.*\.)?(?:conversations?|messages|dialog(?:ue)?|chat)(?:[ _]?([ab12]))?", re.IGNORECASE)
"""Name of a column of conversations; its group is the side, if the name has one."""

_USUAL = {None: "response", "a": "response_a", "1": "response_a", "b": "response_b", "2": "response_b"}
_RESPONSES = frozenset((*_USUAL.values(), "text", "text_a", "text_b"))
_USER = frozenset(("user", "human", "question", "prompt", "instruction"))
_ASSISTANT = frozenset(("assistant", "gpt", "model", "bot", "answer", "response"))
_NUMBERED = re.compile(r"(?:turn[ _-]?)?(\d+)(?:\.0)?", re.IGNORECASE)


def read_exchanges(value: Any) -> list[Turn]:
    """Return the exchanges (user, assistant) of a conversation; [] for anything else.

    A conversation is a list of messages with role and content (OpenAI) or from and value (ShareGPT), a list of objects
    with keys user and assistant, or JSON of one of these.

    >>> read_exchanges([{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}])
    [Turn(user='Why?', assistant='So.')]
    """
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return []
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        return []
    messages = list[tuple[Any, Any]]()
    for message in value:
        role = message.get("role", message.get("from"))
        messages += message.items() if role is None else [(role, message.get("content", message.get("value")))]
    prompts, turns = list[str](), list[Turn]()
    for role, content in messages:
        text = content_text(content) or ""
        if str(role).lower() in _USER:
            prompts.append(text)
        elif str(role).lower() in _ASSISTANT and (prompts or not turns):
            turns.append(Turn(user="\n".join(prompts), assistant=text))
            prompts = []
        elif str(role).lower() in _ASSISTANT:  # a model may answer in several messages
            turns[-1] = Turn(user=turns[-1].user, assistant=f"{turns[-1].assistant}\n{text}")
    return turns


def content_text(value: Any) -> str | None:
    """Return a cell as text, or None if it is empty. Texts of messages and of their parts are joined by line breaks.

    >>> content_text([{"type": "text", "text": "Two cats."}, {"type": "image_url"}])
    'Two cats.'
    """
    if isinstance(value, list):
        return _join(filter(None, map(content_text, value)))
    if isinstance(value, dict):
        return content_text(value.get("content") or value.get("text") or value.get("prompt"))
    return value if isinstance(value, str) else tables.cell_text(value)


def fill_turns(path: Path, frame: "pd.DataFrame", named: Collection[str]) -> dict[str, str]:
    """Fill the response, question and group columns of a frame without responses from its conversations.

    The texts are those of the turn that a row names, or else of the whole conversation; the group is the first
    question. Columns in `named` are kept. Returns the source column of each filled column.
    Raises UsageError if a row names a turn that its conversation does not have.
    """
    conversations = _find_conversations(frame)
    if not conversations:
        return {}
    turns = _read_turns(frame["turn"]) if "turn" in frame else [None] * len(frame)
    kept, filled = {*named, *({"group"} & {*frame})}, dict[str, str]()
    for usual, (column, talks) in conversations.items():
        judged = list[list[Turn]]()
        for row, (talk, turn) in enumerate(zip(talks, turns, strict=True)):
            if turn is not None and talk and turn > len(talk):
                where = tables.locate_row(path, frame.index[row])
                raise UsageError(f"{where}: a verdict on turn {turn} of a conversation that has {len(talk)}")
            judged.append(talk if turn is None else talk[turn - 1 : turn])
        texts = {
            usual: [_join(exchange.assistant for exchange in talk) for talk in judged],
            "question": [_join(exchange.user for exchange in talk) for talk in judged],
            "group": [_join(exchange.user for exchange in talk[:1]) for talk in talks],
        }
        # The second side has the same questions.
        for name in [name for name in texts if name not in {*filled, *kept}]:
            frame[name], filled[name] = texts[name], column
    return filled


def _find_conversations(frame: "pd.DataFrame") -> dict[str, tuple[str, list[list[Turn]]]]:
    """Return the first column of conversations for each side, with their exchanges, keyed by the usual column it fills.

    Returns {} if the frame has responses.
    """
    conversations = dict[str, tuple[str, list[list[Turn]]]]()
    # Beside responses a conversation is the history before them.
    for column in [] if _RESPONSES & {*frame} else frame:
        side = _CONVERSATION.fullmatch(str(column))
        usual = _USUAL[side[1] and side[1].lower()] if side else ""
        if side and usual not in conversations and any(talks := list(map(read_exchanges, frame[column]))):
            conversations[usual] = str(column), talks
    return conversations


def _read_turns(cells: Iterable[Any]) -> list[int | None]:
    """Return turn numbers from 1, None for words such as `whole`. If a column has a turn 0, its turns count from 0."""
    matches = [_NUMBERED.fullmatch(str(cell).strip()) for cell in cells]
    numbers = [int(match[1]) if match else None for match in matches]
    return [number if number is None else number + (0 in numbers) for number in numbers]


def _join(texts: Iterable[str]) -> str | None:
    """Join texts by line breaks; return None if there are none."""
    listed = [*texts]
    return "\n".join(listed) if listed else None
