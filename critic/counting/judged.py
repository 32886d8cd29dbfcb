"""What scores are made of, in columns: the conversations that were asked, and each one's score."""

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from critic.counting.columns import Column, MadeAgain
from critic.counting.keys import KeySet
from critic.records import Conversation, ConversationTurn

_MISSING, _FAILED, _SCORED = range(3)


class Key(str):
    """A conversation's id that knows its place among those that were asked."""

    __slots__ = ("asked", "row")
    asked: "AskedConversations"
    row: int


class AskedConversations(MadeAgain[Conversation]):
    """Conversations, each once, without their texts, in some 100 bytes each."""

    def __init__(self, given: Iterable[Conversation] = ()) -> None:
        self._ids, self.group, self._shape = Column[str](), Column[str](), Column[Conversation]()
        self._mark, self._place = array("q"), KeySet(numbered=True)
        self.prompts, self.references = array("i"), array("i")
        """Characters of the first turn's prompts and references, -1 where there is none."""
        for one in given:
            self.add(one)

    def add(self, one: Conversation) -> tuple[int, bool]:
        """The place of a conversation, which may be here already, and whether it then reads as here (`alike`)."""
        place, mark = self._place.get(one.id), _mark(one)
        if place is not None:
            return place, self._mark[place] == mark
        self._place.add(one.id, len(self))
        shape = [(t.task, t.reference is None, len(t.checklist), *map(tuple, t.aspects)) for t in one.turns]
        self._shape.put((one.benchmark, one.lang, one.category, one.goal, one.domain, *shape), lambda: _shape(one))
        first = one.turns[0] if one.turns else ConversationTurn(prompt="")
        self.prompts.append(len(first.prompt))
        self.references.append(-1 if first.reference is None else len(first.reference))
        self._ids.append(one.id)
        self.group.append(one.group)
        self._mark.append(mark)
        return len(self) - 1, True

    def find(self, key: str) -> int:
        """The place of an id, -1 where it is none of these."""
        if isinstance(key, Key) and key.asked is self:
            return key.row
        place = self._place.get(str(key))
        return -1 if place is None else place

    def same(self, row: int, other: "AskedConversations", place: int) -> bool:
        """Whether a conversation reads as one of another list."""
        return self._mark[row] == other._mark[place]

    def key(self, row: int, text: str | None = None) -> Key:
        key = Key(self._ids.at_row(row) if text is None else text)
        key.asked, key.row = self, row
        return key

    def keys(self) -> Iterator[Key]:
        return map(self.key, range(len(self)), self._ids)

    def __len__(self) -> int:
        return len(self._mark)

    def at_row(self, row: int) -> Conversation:
        return replace(self._shape[row], id=self.key(row), group=self.group[row])

    def parts(self, of: Callable[[Conversation], Any]) -> dict[Any, "Groups"]:
        """The conversations by what `of` says of one without its id, in the order of the first of each."""
        names = self._shape.map(of)
        number = {name: place for place, name in enumerate(names.present())}
        which = names.each(number.__getitem__, np.int32)
        return {name: Groups(self, np.flatnonzero(which == place)) for name, place in number.items()}

    def by_group(self, scores: Mapping[str, float | None]) -> Iterator[tuple[str, list[float | None]]]:
        """The scores of each group that has one or a failure, in the order of the first of each."""
        rows = np.fromiter((key.row for key in self.keys() if key in scores), np.int32)
        _, first, number = np.unique(self.group.rows(rows).numbers(), return_index=True, return_inverse=True)
        order = np.argsort(first[number], kind="stable")
        ends = np.flatnonzero(np.diff(number[order], append=-1)) + 1
        for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
            members = rows[order[start:end]]
            yield self.group.at_row(members[0]), [scores[self.key(row)] for row in members.tolist()]


def _mark(one: Conversation) -> int:
    # What `alike` compares. Within a process a hash of bytes is one and the same.
    if any(turn.aspects for turn in one.turns):
        one = replace(one, turns=[replace(turn, aspects=[]) for turn in one.turns])
    return hash(msgspec.json.encode(one))


def _shape(one: Conversation) -> Conversation:
    turns = [
        ConversationTurn(
            prompt="",
            reference=None if turn.reference is None else "",
            task=turn.task,
            checklist=[""] * len(turn.checklist),
            aspects=turn.aspects,
        )
        for turn in one.turns
    ]
    return replace(one, id="", group="", turns=turns, caption=None, history=[])


def as_asked(conversations: Sequence[Conversation]) -> AskedConversations:
    return conversations if isinstance(conversations, AskedConversations) else AskedConversations(conversations)


class Groups(Mapping[str, str]):
    """The group of each of some conversations by its id."""

    def __init__(self, asked: AskedConversations, rows: NDArray[np.intp] | None = None) -> None:
        self._asked = asked
        self._rows = None if rows is None else rows.astype(np.int32)

    @property
    def _numbers(self) -> Iterable[int]:
        return range(len(self._asked)) if self._rows is None else iter(self._rows.tolist())

    def __getitem__(self, key: str) -> str:
        row = self._asked.find(key)
        if not self._has(row):
            raise KeyError(key)
        return self._asked.group[row]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._has(self._asked.find(key))

    def _has(self, row: int) -> bool:
        if self._rows is None or row < 0:
            return row >= 0
        place = int(np.searchsorted(self._rows, row))
        return place < len(self._rows) and bool(self._rows[place] == row)

    def __iter__(self) -> Iterator[Key]:
        return self._asked.keys() if self._rows is None else map(self._asked.key, self._numbers)

    def items(self) -> Any:
        """Each id with its group, one after the other."""
        return zip(self, self.values(), strict=True)

    def values(self) -> Any:
        return iter(self._asked.group) if self._rows is None else map(self._asked.group.at_row, self._numbers)

    def __len__(self) -> int:
        return len(self._asked) if self._rows is None else len(self._rows)


class Scores(MutableMapping[str, float | None]):
    """The score of each of some conversations by its id, None where the judgment failed: 9 bytes for each of all."""

    def __init__(self, asked: AskedConversations) -> None:
        self._asked, self._score, self._state = asked, array("d"), bytearray()

    def __setitem__(self, key: str, score: float | None) -> None:
        row = self._asked.find(key)
        if row >= len(self._state):
            # All at once: conversations come in any order.
            more = max(len(self._asked), row + 1) - len(self._state)
            self._score.extend(array("d", bytes(8 * more)))
            self._state.extend(bytes(more))
        self._score[row] = math.nan if score is None else score
        self._state[row] = _FAILED if score is None else _SCORED

    def __getitem__(self, key: str) -> float | None:
        row = self._asked.find(key)
        state = self._state[row] if 0 <= row < len(self._state) else _MISSING
        if state == _MISSING:
            raise KeyError(key)
        return self._score[row] if state == _SCORED else None

    def get(self, key: str, default: Any = None) -> Any:
        row = self._asked.find(key)
        state = self._state[row] if 0 <= row < len(self._state) else _MISSING
        return self._score[row] if state == _SCORED else default if state == _MISSING else None

    def __contains__(self, key: object) -> bool:
        row = self._asked.find(key) if isinstance(key, str) else -1
        return 0 <= row < len(self._state) and self._state[row] != _MISSING

    def __delitem__(self, key: str) -> None:
        self._state[self._asked.find(key)] = _MISSING

    def __iter__(self) -> Iterator[Key]:
        return (self._asked.key(row) for row, state in enumerate(self._state) if state != _MISSING)

    def __len__(self) -> int:
        return len(self._state) - self._state.count(_MISSING)


def scaled(scores: Mapping[str, float | None], unit: float) -> Mapping[str, float | None]:
    """Scores in another unit."""
    if not isinstance(scores, Scores):
        return {key: None if score is None else unit * score for key, score in scores.items()}
    found = Scores(scores._asked)
    found._score, found._state = array("d", (np.asarray(scores._score) * unit).tobytes()), scores._state
    return found
