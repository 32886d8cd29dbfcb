"""What scores are made of, in columns: the conversations that were asked, and each one's score."""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from critic.counting.columns import BLOCK, Column, MadeAgain, Spooled
from critic.counting.keys import KeySet
from critic.records import Conversation, ConversationTurn

_MISSING, _FAILED, _SCORED = range(3)
_MOST_VALUES = 256
_AT_ONCE = 1 << 20


class Key(str):
    """A conversation's id that knows its place among those that were asked."""

    __slots__ = ("asked", "row")
    asked: "AskedConversations"
    row: int


class AskedConversations(MadeAgain[Conversation]):
    """Conversations, each once, without their texts, spooled, with an index of their ids in 27 bytes each."""

    def __init__(self, given: Iterable[Conversation] = ()) -> None:
        self._ids, self.group, self._shape = Column[str](), Column[str](), Column[Conversation]()
        self._mark, self._place = Spooled("q"), KeySet(numbered=4)
        self.prompts, self.references = Spooled("i"), Spooled("i")
        """Characters of the first turn's prompts and references, -1 where there is none."""
        for one in given:
            self.add(one)

    def add(self, one: Conversation) -> tuple[int, bool]:
        """The place of a conversation, which may be here already, and whether it then reads as here (`alike`)."""
        mark = _mark(one)
        if not self._place.add(one.id, len(self)):
            place = self.find(one.id)
            return place, self._mark[place] == mark
        given = ((t.task, t.reference is None, t.focus is None, len(t.checklist), t.aspects) for t in one.turns)
        shape = [(*facts, *map(tuple, aspects)) for *facts, aspects in given]
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
        which = names.each(number.__getitem__, np.min_scalar_type(len(number)))
        return {name: Groups(self, which, place) for name, place in number.items()}

    def by_group(self, scores: Mapping[str, float | None]) -> Iterator[tuple[str, list[float | None]]]:
        """The scores of each group that has one or a failure, in the order of the first of each."""
        number = self.group.codes if self.group.repeats else self.group.numbers()
        here = scores if isinstance(scores, Scores) else Scores(self, scores)
        starts = range(0, len(self), BLOCK)
        first = np.full(int(number.max(initial=-1)) + 1, len(self), dtype=np.int32)
        for start in reversed(starts):
            rows = start + np.flatnonzero(here.known(start, start + BLOCK))[::-1]
            first[number[rows]] = rows  # of several the last stays, which is the first row
        rank = np.empty_like(first)
        rank[np.argsort(first, kind="stable")] = np.arange(len(first), dtype=np.int32)
        # As many groups at a time as have some blocks of rows, however these lie.
        step = max(1, len(first) * _AT_ONCE // max(len(self), 1))
        for low in range(0, len(first), step):
            found = []
            for start in starts:
                place = rank[number[start : start + BLOCK]]
                known = here.known(start, start + BLOCK) & (place >= low) & (place < low + step)
                found.append(start + np.flatnonzero(known).astype(np.int32))
            rows = np.concatenate(found)
            rows = rows[np.argsort(rank[number[rows]], kind="stable")]
            given, ends = here.of(rows), np.flatnonzero(np.diff(number[rows], append=-1)) + 1
            for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True) if len(ends) else ():
                yield self.group.at_row(rows[start]), given[start:end]


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
            focus=None if turn.focus is None else "",
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

    def __init__(self, asked: AskedConversations, which: NDArray[Any] | None = None, part: int = 0) -> None:
        self._asked, self._which, self._part = asked, which, part

    def rows(self) -> Iterator[NDArray[np.intp]]:
        """Their places, those of some neighbours at a time."""
        for start in range(0, len(self._asked), BLOCK):
            stop = min(start + BLOCK, len(self._asked))
            if self._which is None:
                yield np.arange(start, stop)
            else:
                yield start + np.flatnonzero(self._which[start:stop] == self._part)

    def __getitem__(self, key: str) -> str:
        row = self._asked.find(key)
        if not self._has(row):
            raise KeyError(key)
        return self._asked.group[row]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._has(self._asked.find(key))

    def _has(self, row: int) -> bool:
        return row >= 0 and (self._which is None or bool(self._which[row] == self._part))

    def __iter__(self) -> Iterator[Key]:
        return chain.from_iterable(map(self._asked.key, rows.tolist()) for rows in self.rows())

    def items(self) -> Any:
        """Each id with its group, one after the other."""
        return zip(self, self.values(), strict=True)

    def values(self) -> Any:
        return chain.from_iterable(map(self._asked.group.near, self.rows()))

    def __len__(self) -> int:
        return len(self._asked) if self._which is None else int(np.count_nonzero(self._which == self._part))


class Scores(MutableMapping[str, float | None]):
    """The score of each of some conversations by its id, None where the judgment failed: each different one is kept
    once, and of each conversation its number, in a byte; with many that differ 9 bytes each."""

    def __init__(self, asked: AskedConversations, given: Mapping[str, float | None] | None = None) -> None:
        self._asked, self._values = asked, list[float | None]([None, None])
        self._number: dict[float | None, int] = {None: _FAILED}
        self._code: NDArray[Any] = np.zeros(0, dtype=np.uint8)
        self._score: NDArray[np.float64] | None = None
        for key in asked.keys() if given else ():
            if key in given:  # type: ignore[operator]  # not None
                self[key] = given[key]  # type: ignore[index]

    def __setitem__(self, key: str, score: float | None) -> None:
        row = self._asked.find(key)
        if row >= len(self._code):
            # All at once: conversations come in any order.
            more = len(self._asked) - len(self._code)
            self._code = np.append(self._code, np.zeros(more, dtype=np.uint8))
            self._score = None if self._score is None else np.append(self._score, np.zeros(more))
        number = self._number.get(score)
        if number is None and self._score is None and len(self._values) == _MOST_VALUES:
            self._score = np.array(self._values, dtype=np.float64)[self._code]
            np.minimum(self._code, _SCORED, out=self._code)
        if self._score is not None:
            number, self._score[row] = _FAILED if score is None else _SCORED, np.nan if score is None else score
        elif number is None:
            number = self._number[score] = len(self._values)
            self._values.append(score)
        self._code[row] = number

    def _at(self, row: int) -> int:
        return int(self._code[row]) if 0 <= row < len(self._code) else _MISSING

    def _value(self, row: int, code: int) -> float | None:
        return self._values[code] if self._score is None or code != _SCORED else float(self._score[row])

    def __getitem__(self, key: str) -> float | None:
        code = self._at(row := self._asked.find(key))
        if code == _MISSING:
            raise KeyError(key)
        return self._value(row, code)

    def get(self, key: str, default: Any = None) -> Any:
        code = self._at(row := self._asked.find(key))
        return default if code == _MISSING else self._value(row, code)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._at(self._asked.find(key)) != _MISSING

    def __delitem__(self, key: str) -> None:
        self._code[self._asked.find(key)] = _MISSING

    def __iter__(self) -> Iterator[Key]:
        return (self._asked.key(row) for row, code in enumerate(self._code) if code != _MISSING)

    def __len__(self) -> int:
        return int(np.count_nonzero(self._code))

    def known(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Which of some neighbouring conversations have a score, or a failure."""
        there = np.zeros(max(0, min(stop, len(self._asked)) - start), dtype=bool)
        code = self._code[start:stop]
        there[: len(code)] = code != _MISSING
        return there

    def of(self, rows: NDArray[Any]) -> list[float | None]:
        """Those of some conversations that have one, by their places."""
        return list(map(self._value, rows.tolist(), self._code[rows].tolist()))

    def each(self, ids: Groups, never: Any) -> Iterator[Any]:
        """That of each of some conversations, None where it failed, `never` where it was not judged."""
        values = [never, *self._values[1:]]
        for rows in ids.rows():
            code = np.zeros(len(rows), dtype=np.uint8)
            there = rows[rows < len(self._code)]
            code[: len(there)] = self._code[there]
            if self._score is None:
                yield from map(values.__getitem__, code.tolist())
            else:
                yield from (
                    never if kind == _MISSING else self._value(row, kind)
                    for row, kind in zip(rows.tolist(), code.tolist(), strict=True)
                )

    def scaled(self, unit: float) -> "Scores":
        """In another unit."""
        found = Scores(self._asked)
        found._values, found._code = [None if one is None else unit * one for one in self._values], self._code
        found._score = None if self._score is None else self._score * unit
        return found


def scores_of(scores: Mapping[Any, float | None], ids: Iterable[Any], never: Any = None) -> Iterator[Any]:
    """The score of each id, `never` where it has none."""
    if isinstance(scores, Scores) and isinstance(ids, Groups):
        return scores.each(ids, never)
    return (scores.get(key, never) for key in ids)


def scaled(scores: Mapping[str, float | None], unit: float) -> Mapping[str, float | None]:
    """Scores in another unit."""
    if isinstance(scores, Scores):
        return scores.scaled(unit)
    return {key: None if score is None else unit * score for key, score in scores.items()}
