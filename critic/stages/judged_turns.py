"""Judged turns of a file in columns, made again one at a time as scores are counted."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from critic.benchmarks import JudgedTurn
from critic.counting.columns import Column, MadeAgain, Spooled
from critic.counting.judged import AskedConversations
from critic.records import Conversation, TurnVerdict


class Turns(MadeAgain[JudgedTurn]):
    """Judged turns, spooled; their conversations, without texts, are in `asked`."""

    def __init__(self, asked: AskedConversations) -> None:
        self.asked = asked
        self._row, self._length, self._score = Spooled("i"), Spooled("i"), Spooled("d")
        self._kind, self._calls = Column[TurnVerdict](), Column[list[tuple[str | None, str]]]()
        self._answers, self._answer = Column[list[bool | None]](), Column[str | None]()

    def append(self, conversation: Conversation, turn: JudgedTurn) -> bool:
        """Whether the conversation reads as the one of its id that is there."""
        row, alike = self.asked.add(conversation)
        self._row.append(row)
        one = turn.verdict
        self._length.append(-1 if one.length is None else one.length)
        self._score.append(np.nan if one.score is None else one.score)
        kind = one.system, one.condition, one.protocol, one.judge, one.turn, one.judging, one.opponent
        self._kind.put(
            (*kind, one.failure, one.unread, one.unjudged, one.score is None),
            lambda: replace(one, conversation="", score=None, length=None),
        )
        self._calls.append(turn.calls)
        self._answers.append(turn.answers)
        self._answer.append(turn.answer)
        return alike

    def __len__(self) -> int:
        return len(self._row)

    def _verdict(self, row: int, kind: TurnVerdict, score: float, length: int) -> TurnVerdict:
        return replace(
            kind,
            conversation=self.asked.key(row),
            score=None if math.isnan(score) else score,
            length=None if length < 0 else length,
        )

    def verdicts(self) -> Iterator[TurnVerdict]:
        return map(self._verdict, self._row, self._kind, self._score, self._length)

    def at_row(self, row: int) -> JudgedTurn:
        return JudgedTurn(
            conversation=self.asked[self._row[row]],
            verdict=self._verdict(self._row[row], self._kind.at_row(row), self._score[row], self._length[row]),
            answer=self._answer[row],
            calls=self._calls[row],
            answers=self._answers[row],
        )

    def counted(self, of: Callable[[TurnVerdict], Any]) -> Counter[Any]:
        """How many verdicts there are of what `of` says of one without its conversation, score and length."""
        names = self._kind.map(of)
        return Counter({names.values[code]: count for code, count in names.counted().items()})

    def rows(self, index: NDArray[np.intp]) -> "Turns":
        """Some of them."""
        found = Turns(self.asked)
        for name in ("_row", "_length", "_score"):
            getattr(found, name).add(np.asarray(getattr(self, name))[index].tobytes())
        for name in ("_kind", "_calls", "_answers", "_answer"):
            setattr(found, name, getattr(self, name).rows(index))
        return found

    def by(self, of: Callable[[TurnVerdict], Any]) -> Iterable["Turns"]:
        """Those of each value that `of` says, as `counted` takes it."""
        names = self._kind.map(of)
        return [self.rows(np.flatnonzero(names.each(name.__eq__, bool))) for name in names.present()]

    def among(self, asked: AskedConversations, place: NDArray[np.intp]) -> "Turns":
        """The same turns, of conversations that stand at other places, in another list."""
        found = self.rows(np.arange(len(self)))
        found.asked = asked
        found._row = Spooled("i")
        found._row.add(place[np.asarray(self._row)].astype(np.int32).tobytes())
        return found

    def measured(self, length: Callable[[str], int]) -> "Turns":
        """With other lengths, of the answers that are there."""
        found = self.rows(np.arange(len(self)))
        found._length = Spooled("i", (-1 if answer is None else length(answer) for answer in self._answer))
        return found
