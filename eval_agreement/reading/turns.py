"""Texts of single turns, for files of verdicts on turns that hold the whole conversation in each row."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from critic import tables
from critic.errors import UsageError
from critic.records import Turn
from eval_agreement.reading.tables import Source

if TYPE_CHECKING:
    import pandas as pd

_CONVERSATION = re.compile(r"(?:.*\.)?(?:conversations?|messages|dialog(?:ue)?|chat)(?:[ _]?([ab12]))?", re.IGNORECASE)
"""Name of a column of conversations, and its side."""

_USUAL = {None: "response", "a": "response_a", "1": "response_a", "b": "response_b", "2": "response_b"}
_RESPONSES = frozenset((*_USUAL.values(), "text", "text_a", "text_b"))
_USER = frozenset(("user", "human", "question", "prompt", "instruction"))
_ASSISTANT = frozenset(("assistant", "gpt", "model", "bot", "answer", "response"))
_NUMBERED = re.compile(r"(?:turn[ _-]?)?(\d+)(?:\.0)?", re.IGNORECASE)


def exchanges(value: Any) -> list[Turn]:
    """Return the exchanges of a conversation: messages with role and content (OpenAI) or from and value (ShareGPT), or
    objects of user and assistant; also as JSON in a cell. Empty for anything else.

    >>> exchanges([{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}])
    [Turn(user='Why?', assistant='So.')]
    """
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return []
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        return []
    said = list[tuple[Any, Any]]()
    for message in value:
        role = message.get("role", message.get("from"))
        said += message.items() if role is None else [(role, message.get("content", message.get("value")))]
    asked, read = list[str](), list[Turn]()
    for role, content in said:
        text = content_text(content) or ""
        if str(role).lower() in _USER:
            asked.append(text)
        elif str(role).lower() in _ASSISTANT and (asked or not read):
            read.append(Turn(user="\n".join(asked), assistant=text))
            asked = []
        elif str(role).lower() in _ASSISTANT:  # a model may answer in several messages
            read[-1] = Turn(user=read[-1].user, assistant=f"{read[-1].assistant}\n{text}")
    return read


def content_text(value: Any, mark: str = "\n") -> str | None:
    """Return a cell as text, or None if empty. The texts of messages and of their parts are joined by `mark`.

    >>> content_text([{"type": "text", "text": "Two cats."}, {"type": "image_url"}])
    'Two cats.'
    """
    if isinstance(value, list):
        return mark.join(filter(None, (content_text(part, mark) for part in value))) or None
    if isinstance(value, dict):
        return content_text(value.get("content") or value.get("text") or value.get("prompt"), mark)
    return value if isinstance(value, str) else tables.cell_text(value)


def with_turns(source: Source) -> Source:
    """Return the source with the texts of its turns, if a column holds conversations. Raises UsageError as
    `texts_of_turns`."""
    if source.table is not None or source.content != "table":
        return source
    named = dict(source.named)
    texts = {usual: filled for usual, filled in texts_of_turns(source.path, source.frame).items() if usual not in named}
    if not texts:
        return source
    note = f"{source.path}: {'; '.join(f'{usual}: {column}' for usual, (column, _) in texts.items())}"
    table = source.frame.assign(**{usual: cells for usual, (_, cells) in texts.items()})
    return replace(source, table=table, note=f"{note} (of each row's turn)" if "turn" in table else note)


def texts_of_turns(path: Path, frame: "pd.DataFrame") -> dict[str, tuple[str, list[str | None]]]:
    """Return the usual columns that conversations fill in a frame without responses, each with the column that it is
    from: the responses, their question, and the first question as group. They are of the turn that a row names,
    else of the whole conversation. Raises UsageError for a turn that a conversation does not have."""
    read = dict[str, tuple[str, list[list[Turn]]]]()
    for column in [] if _RESPONSES & {*frame} else frame:  # beside responses it is the history
        side = _CONVERSATION.fullmatch(str(column))
        usual = _USUAL[side[1] and side[1].lower()] if side else ""
        if side and usual not in read and any(talks := [*map(exchanges, frame[column])]):
            read[usual] = str(column), talks
    if not read:
        return {}
    turns = _turns(frame["turn"]) if "turn" in frame else [None] * len(frame)
    filled = dict[str, tuple[str, list[str | None]]]()
    for usual, (column, talks) in read.items():
        chosen = [
            _chosen(path, frame, row, talk, turn) for row, (talk, turn) in enumerate(zip(talks, turns, strict=True))
        ]
        filled[usual] = column, [_joined(exchange.assistant for exchange in part) for part in chosen]
        filled.setdefault("question", (column, [_joined(exchange.user for exchange in part) for part in chosen]))
        filled.setdefault("group", (column, [talk[0].user if talk else None for talk in talks]))
    if "group" in frame:
        del filled["group"]
    return filled


def _turns(cells: Iterable[Any]) -> list[int | None]:
    """Return turns from 1, None for words such as `whole`; a column that has a turn 0 counts from there."""
    matches = [_NUMBERED.fullmatch(str(cell).strip()) for cell in cells]
    numbers = [int(match[1]) if match else None for match in matches]
    return [number if number is None else number + (0 in numbers) for number in numbers]


def _chosen(path: Path, frame: "pd.DataFrame", row: int, talk: Sequence[Turn], turn: int | None) -> Sequence[Turn]:
    if turn is None or not talk:
        return talk
    if turn > len(talk):
        where = tables.locate_row(path, frame.index[row])
        raise UsageError(f"{where}: a verdict on turn {turn} of a conversation that has {len(talk)}")
    return talk[turn - 1 : turn]


def _joined(texts: Iterable[str]) -> str | None:
    said = [*texts]
    return "\n".join(said) if said else None
