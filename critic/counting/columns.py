"""Columns: what many rows say, in few bytes a row."""

import marshal
import os
from abc import abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise
from tempfile import TemporaryFile
from typing import Any, Generic, TypeVar, overload
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

V = TypeVar("V")
U = TypeVar("U")
Rows = NDArray[np.integer[Any]]

_FEW, _SHARE = 4096, 4
"""So many different values are kept once each, and more where they are at most one in so many rows."""

_NEAR = 256
"""Values that are unpacked at a time."""

_PLAIN = 2
"""The version of bytes that do not depend on how often a value is used."""


_LAST = 1 << 14
"""Numbers that are held in memory before they are written."""

_AROUND = 1 << 10
"""Numbers that are read around one that is asked for."""

_SORTED = 1 << 20
"""Numbers that are sorted at a time."""

BLOCK = 1 << 14
"""Rows that are worked on at a time, where not all are."""


class Spooled(Sequence[Any]):
    """Numbers of one of the kinds of `array`, one appended after the other. A file without a name, which ends with the
    object, holds all but the last: read in parts, for pages of a mapped file would count as memory of the process."""

    def __init__(self, kind: str, given: Iterable[Any] = ()) -> None:
        self.kind, self._last, self._written = kind, array(kind), 0
        self._near, self._first = array(kind), 0
        for number in given:
            self.append(number)

    def append(self, number: Any) -> None:
        self._last.append(number)
        if len(self._last) >= _LAST:
            self._write()

    def add(self, numbers: bytes) -> None:
        """Append numbers by their bytes."""
        self._last.frombytes(numbers)
        if len(self._last) >= _LAST:
            self._write()

    def _write(self) -> None:
        if not self._written:
            self._file = TemporaryFile(buffering=1 << 12)  # noqa: SIM115 - it is closed when this object ends
            finalize(self, self._file.close)
        self._file.write(self._last)
        self._file.flush()
        self._written += len(self._last)
        self._last = array(self.kind)

    def part(self, start: int, stop: int) -> "array[Any]":
        """Those from `start` to before `stop`."""
        found, size = array(self.kind), self._last.itemsize
        if start < self._written:
            found.frombytes(os.pread(self._file.fileno(), (min(stop, self._written) - start) * size, start * size))
        if stop > self._written:
            found += self._last[max(start - self._written, 0) : stop - self._written]
        return found

    def blocks(self) -> Iterator[NDArray[Any]]:
        """All, some thousands at a time."""
        return (np.asarray(self.part(start, start + BLOCK)) for start in range(0, len(self), BLOCK))

    def __len__(self) -> int:
        return self._written + len(self._last)

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self), _LAST):
            yield from self.part(start, start + _LAST)

    def __getitem__(self, place: Any) -> Any:
        if place < 0:
            place += len(self)
        if place >= self._written:
            return self._last[place - self._written]
        near = place - self._first
        if not 0 <= near < len(self._near):
            self._first, near = place - place % _AROUND, place % _AROUND
            self._near = self.part(self._first, min(self._first + _AROUND, self._written))
        return self._near[near]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        found: NDArray[Any] = np.empty(len(self), dtype=dtype or self.kind)
        start = 0
        for block in self.blocks():
            found[start : start + len(block)] = block
            start += len(block)
        return found


def equal(numbers: Spooled) -> NDArray[Any]:
    """Those that are there more than once."""
    parts = len(numbers) // _SORTED + 1
    found = [np.zeros(0, dtype=np.int64)]
    for part in range(parts):
        chosen = np.sort(np.concatenate([found[0], *(one[one % parts == part] for one in numbers.blocks())]))
        found.append(chosen[1:][chosen[1:] == chosen[:-1]])
    return np.concatenate(found)


class MadeAgain(Sequence[V], Generic[V]):
    """Rows that are made wherever they are looked at, by `at_row`."""

    @abstractmethod
    def at_row(self, row: int) -> V:
        """What row 0..n-1 says."""

    @overload
    def __getitem__(self, row: int) -> V: ...
    @overload
    def __getitem__(self, row: slice) -> list[V]: ...
    def __getitem__(self, row: int | slice) -> V | list[V]:
        rows = range(len(self))[row]
        return self.at_row(rows) if isinstance(rows, int) else list(map(self.at_row, rows))


class _Packed(Sequence[V], Generic[V]):
    """Values one behind the other in a spooled file. What has no bytes, such as a date, stays as it is in memory."""

    def __init__(self) -> None:
        self._bytes, self._ends, self._others = Spooled("B"), Spooled("q", [0]), list[V]()
        self._next, self._near, self._first = 0, list[V](), 0

    def append(self, value: V) -> None:
        packed = _packed(value)
        if packed is None:
            packed = marshal.dumps((len(self._others),), _PLAIN)  # no cell is a tuple
            self._others.append(value)
        self._bytes.add(packed)
        self._ends.append(len(self._bytes))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, row: Any) -> Any:
        if 0 <= row - self._first < len(self._near):
            return self._near[row - self._first]
        if row == self._next:  # of rows that are asked for in turn those behind as well
            self._first, self._near = row, list(islice(self._from(row), _NEAR))
            self._next = row + len(self._near)
            return self._near[0]
        self._next = row + 1
        return self._value(self._bytes.part(self._ends[row], self._ends[row + 1]))

    def _value(self, packed: Any) -> Any:
        found = marshal.loads(packed)
        return self._others[found[0]] if type(found) is tuple else found

    def __iter__(self) -> Iterator[V]:
        return self._from(0)

    def _from(self, row: int) -> Iterator[V]:
        for start in range(row, len(self), _NEAR):
            ends = self._ends.part(start, start + _NEAR + 1)
            held = memoryview(self._bytes.part(ends[0], ends[-1]))
            for first, last in pairwise(ends):
                yield self._value(held[first - ends[0] : last - ends[0]])


def _packed(value: Any) -> bytes | None:
    try:
        return marshal.dumps(value, _PLAIN)
    except ValueError:
        return None


class Column(MadeAgain[V]):
    """What each row says, spooled: where few values differ, each is kept once in memory, and a row is its number; where
    more than a quarter do, they are packed. A column that was taken from another does not grow."""

    def __init__(self, given: Iterable[V] = ()) -> None:
        self.values: Sequence[V] = []
        self._number: dict[Hashable, int] | None = {}
        self._codes: Spooled | None = Spooled("b")
        for value in given:
            self.append(value)

    def append(self, value: V) -> None:
        # Texts are their own keys; 1, 1.0 and True are not the same.
        key = value if type(value) is str or value is None else _packed(value) or (type(value), repr(value))
        self.put(key, lambda: value)

    def put(self, key: Hashable, made: Callable[[], V]) -> None:
        """Append what `made` makes, unless rows before have the same key: then what those have."""
        if self._number is None:
            self.values.append(made())  # type: ignore[attr-defined]  # packed
            return
        number = self._number.get(key)
        if number is None:
            number = self._number[key] = len(self._number)
            self.values.append(made())  # type: ignore[attr-defined]  # a list
            if number in (1 << 7, 1 << 15):
                self._codes = Spooled("h" if number < 1 << 15 else "i", self._codes or ())
        self._codes.append(number)  # type: ignore[union-attr]  # spooled
        if number > _FEW and number > len(self._codes) // _SHARE:  # type: ignore[arg-type]
            self._pack()

    def _pack(self) -> None:
        packed = _Packed[V]()
        for value in self:
            packed.append(value)
        self.values, self._number, self._codes = packed, None, None

    @property
    def repeats(self) -> bool:
        """Whether values that several rows share are kept once."""
        return not isinstance(self.values, _Packed)

    @property
    def codes(self) -> Rows:
        """The place of each row's value in `values`."""
        return np.arange(len(self.values), dtype=np.int32) if self._codes is None else np.asarray(self._codes)

    def blocks(self) -> Iterator[Rows]:
        """The `codes`, some thousands at a time."""
        if self._codes is not None:
            return self._codes.blocks()
        return (np.arange(start, min(start + BLOCK, len(self))) for start in range(0, len(self), BLOCK))

    def __len__(self) -> int:
        return len(self.values if self._codes is None else self._codes)

    def at_row(self, row: int) -> V:
        return self.values[row if self._codes is None else self._codes[row]]

    def __iter__(self) -> Iterator[V]:
        if self._codes is None:
            return iter(self.values)
        return map(self.values.__getitem__, chain.from_iterable(codes.tolist() for codes in self.blocks()))

    def near(self, rows: Rows) -> Iterator[V]:
        """What some ascending rows say, that lie near each other."""
        first, last = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
        if self._codes is not None:
            rows = np.asarray(self._codes.part(first, last))[rows - first]
        return map(self.values.__getitem__, rows.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Column) and other.values is self.values:
            return bool(np.array_equal(self.codes, other.codes))
        if not isinstance(other, Sequence) or len(other) != len(self):
            return False
        return all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Sequence[V]) -> "Column[V]":
        return Column(chain(self, other)) if len(other) else self

    def rows(self, index: NDArray[Any]) -> "Column[V]":
        """Some rows, by their numbers, or those for which a mask is true."""
        return _taken(self.values, [self.codes[index]])

    def map(self, of: Callable[[V], U]) -> "Column[U]":
        """What `of` makes of each row's value."""
        if not self.repeats:
            return Column(map(of, self))
        made = Column(map(of, self.values))
        if not len(made):
            return made
        place = made.codes
        return _taken(made.values, (place[block] for block in self.blocks()))

    def at(self, place: Rows) -> "Column[V | None]":
        """Rows by their numbers, None for those below 0."""
        if np.array_equal(place, np.arange(len(self))):
            return self  # type: ignore[return-value]  # it has no None
        if not (place < 0).any():
            return self.rows(place)  # type: ignore[return-value]  # it has no None
        if not self.repeats:
            return Column(None if row < 0 else self[row] for row in place.tolist())
        code = np.append(self.codes, np.int32(len(self.values)))
        return _taken([*self.values, None], [code[np.where(place < 0, len(self), place)]])

    def present(self) -> list[V]:
        """The different values, by their first rows."""
        if not self.repeats:
            return list(dict.fromkeys(self))
        return [self.values[code] for code in self.counted()]

    def counted(self) -> Counter[int]:
        """How many rows have each place in `values`, by their first rows."""
        found = Counter[int]()
        for block in self.blocks():
            codes, first, count = np.unique(block, return_index=True, return_counts=True)
            order = np.argsort(first)
            found.update(dict(zip(codes[order].tolist(), count[order].tolist(), strict=True)))
        return found

    def numbers(self) -> Rows:
        """A whole number for each row, by the sorted values."""
        index = {value: number for number, value in enumerate(sorted(self.present(), key=str))}
        return self.each(index.__getitem__, np.int32)

    def each(self, of: Callable[[V], Any], kind: Any) -> NDArray[Any]:
        """What `of` makes of each row's value, as an array of a kind."""
        if not self.repeats:
            return np.fromiter(map(of, self), dtype=kind, count=len(self))
        # Values that no row has any more may be such as `of` cannot be asked.
        made = np.zeros(len(self.values), dtype=kind)
        for code in self.counted():
            made[code] = of(self.values[code])
        found, start = np.empty(len(self), dtype=kind), 0
        for block in self.blocks():
            found[start : start + len(block)] = made[block]
            start += len(block)
        return found


def _taken(values: Sequence[V], codes: Iterable[Rows]) -> Column[V]:
    """Rows with those of some values whose places the codes are, one part behind the other, all of one kind."""
    found = Column[V]()
    found.values, found._number, spooled = values, None, Spooled("b")
    for part in codes:
        spooled = spooled if len(spooled) else Spooled(part.dtype.char)
        spooled.add(part.tobytes())
    found._codes = spooled
    return found


class Reread(MadeAgain[V | None], Generic[V]):
    """What rows are made from, read again where it is asked for: of each row the number (from 0) of its record among
    those that `read` gives, -1 where it has none."""

    def __init__(self, read: Callable[[], Iterable[V]], number: Any) -> None:
        self._read, self._number = read, number if isinstance(number, Spooled) else np.asarray(number, dtype=np.int32)

    def __len__(self) -> int:
        return len(self._number)

    def at_row(self, row: int) -> V | None:
        return self.few([row])[row]

    def rows(self, index: Rows) -> "Reread[V]":
        """Some rows, by their numbers; none for one below 0."""
        return Reread(self._read, np.where(index < 0, -1, np.asarray(self._number)[index]))

    def of(self, what: Callable[[V], Any]) -> "Reread[Any]":
        """What `what` takes from the records."""
        return Reread(lambda: map(what, self._read()), self._number)

    def few(self, rows: Iterable[int]) -> dict[int, V | None]:
        """Those of some rows."""
        found: dict[int, V | None] = dict.fromkeys(rows)
        wanted = {int(self._number[row]): row for row in found}
        for number, record in enumerate(self._read() if max(wanted, default=-1) >= 0 else ()):
            if number in wanted:
                found |= {row: record for row in found if self._number[row] == number}
            if number >= max(wanted):
                break
        return found

    def each(self, of: Callable[[V], float]) -> NDArray[np.float64]:
        """A number for each row, NaN where there is no record."""
        return self.table(lambda record: (of(record),), 1)[:, 0]

    def table(self, of: Callable[[V], Sequence[float]], width: int) -> NDArray[np.float64]:
        """`width` numbers for each row, NaN where there is no record: shape (n, width)."""
        made = array("d", chain.from_iterable(map(of, self._read())))
        made.extend([np.nan] * width)
        found: NDArray[np.float64] = np.asarray(made).reshape(-1, width)[np.asarray(self._number)]
        return found


def as_column(values: Sequence[V]) -> Column[V]:
    return values if isinstance(values, Column) else Column(values)


class RatingColumns(MadeAgain[Mapping[str, float]]):
    """Each item's scores by the rater's name, in a few bytes a rating."""

    def __init__(self, given: Iterable[Mapping[str, float]] = ()) -> None:
        self.who, self.score = Column[str](), Column[float]()
        self._size = Spooled("i")
        for rated in given:
            self.append(rated)

    @classmethod
    def of(cls, who: Column[str], score: Column[float], sizes: Rows) -> "RatingColumns":
        """From the ratings, one item's behind the other's, and how many each has."""
        found = cls()
        found.who, found.score = who, score
        found._size.add(sizes.astype(np.int32).tobytes())
        return found

    def append(self, rated: Mapping[str, float]) -> None:
        for name, score in rated.items():
            self.who.append(name)
            self.score.append(score)
        self._size.append(len(rated))

    @property
    def sizes(self) -> Rows:
        """How many ratings each item has."""
        return np.asarray(self._size, dtype=np.intp)

    @property
    def several(self) -> bool:
        """Whether an item has two raters."""
        return bool((self.sizes > 1).any())

    def __len__(self) -> int:
        return len(self._size)

    def at_row(self, row: int) -> dict[str, float]:
        ratings = self._of(np.array([row]))
        return dict(zip(self.who.rows(ratings), self.score.rows(ratings), strict=True))

    def __eq__(self, other: object) -> bool:
        return list(self) == other

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Sequence[Mapping[str, float]]) -> "RatingColumns":
        return RatingColumns(chain(self, other)) if len(other) else self

    def _of(self, rows: Rows) -> Rows:
        """The places of the ratings of some items, one item's behind the other's."""
        size, end = self.sizes, np.cumsum(self.sizes)
        first = np.repeat(end[rows] - np.cumsum(size[rows]), size[rows])
        return first + np.arange(len(first))

    def rows(self, index: Rows) -> "RatingColumns":
        """Some items, by their numbers."""
        ratings = self._of(index)
        return RatingColumns.of(self.who.rows(ratings), self.score.rows(ratings), self.sizes[index])

    def entries(self) -> tuple[list[str], NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
        """In long form: the raters by name, and of each rating the item, the rater and the score."""
        names = sorted(self.who.present())
        number = {name: index for index, name in enumerate(names)}
        item, rater = np.repeat(np.arange(len(self)), self.sizes), self.who.each(number.__getitem__, np.intp)
        return names, item, rater, self.score.each(float, np.float64)


def as_ratings(ratings: Sequence[Mapping[str, float]]) -> RatingColumns:
    return ratings if isinstance(ratings, RatingColumns) else RatingColumns(ratings)
