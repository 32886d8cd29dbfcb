"""Columns: what many rows say, in few bytes a row."""

import marshal
from abc import abstractmethod
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

V = TypeVar("V")
U = TypeVar("U")
Rows = NDArray[np.integer[Any]]

_FEW, _SHARE = 4096, 4
"""So many different values are kept once each, and more where they are at most one in so many rows."""

_BLOCK = 4096
"""Rows that are unpacked at a time."""

_PLAIN = 2
"""The version of bytes that do not depend on how often a value is used."""


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
    """Values one behind the other in bytes: their own and 8 each. What has no bytes, such as a date, stays as it is."""

    def __init__(self) -> None:
        self._bytes, self._ends, self._others = bytearray(), array("q", [0]), list[V]()

    def append(self, value: V) -> None:
        packed = _packed(value)
        if packed is None:
            packed = marshal.dumps((len(self._others),), _PLAIN)  # no cell is a tuple
            self._others.append(value)
        self._bytes += packed
        self._ends.append(len(self._bytes))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, row: Any) -> Any:
        found = marshal.loads(self._bytes[self._ends[row] : self._ends[row + 1]])
        return self._others[found[0]] if type(found) is tuple else found


def _packed(value: Any) -> bytes | None:
    try:
        return marshal.dumps(value, _PLAIN)
    except ValueError:
        return None


class Column(MadeAgain[V]):
    """What each row says. Where few values differ, each is kept once, and a row takes 1 to 4 bytes; where more than a
    quarter do, they are packed, in 8 bytes and their own. A column that was taken from another does not grow."""

    def __init__(self, given: Iterable[V] = ()) -> None:
        self.values: Sequence[V] = []
        self._number: dict[Hashable, int] | None = {}
        self._codes: array[int] | Rows | None = array("b")
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
                self._codes = array("h" if number < 1 << 15 else "i", self._codes)  # type: ignore[arg-type]
        self._codes.append(number)  # type: ignore[union-attr]  # an array
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
        return np.arange(len(self.values)) if self._codes is None else np.asarray(self._codes)

    def __len__(self) -> int:
        return len(self.values if self._codes is None else self._codes)

    def at_row(self, row: int) -> V:
        return self.values[row if self._codes is None else self._codes[row]]

    def __iter__(self) -> Iterator[V]:
        if self._codes is None:
            return map(self.values.__getitem__, range(len(self.values)))
        starts = range(0, len(self._codes), _BLOCK)
        codes = chain.from_iterable(self._codes[start : start + _BLOCK].tolist() for start in starts)
        return map(self.values.__getitem__, codes)

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
        found = Column[V]()
        codes = self.codes[index]
        found.values, found._number, found._codes = self.values, None, codes
        if codes.dtype.itemsize == 8 and len(self.values) <= np.iinfo(np.int32).max:
            found._codes = codes.astype(np.int32)
        return found

    def map(self, of: Callable[[V], U]) -> "Column[U]":
        """What `of` makes of each row's value."""
        if not self.repeats:
            return Column(map(of, self))
        made = Column(map(of, self.values))
        return made.rows(self.codes) if len(made) else made

    def at(self, place: Rows) -> "Column[V | None]":
        """Rows by their numbers, None for those below 0."""
        if not (place < 0).any():
            return self.rows(place)  # type: ignore[return-value]  # it has no None
        if not self.repeats:
            return Column(None if row < 0 else self[row] for row in place.tolist())
        found: Column[V | None] = Column()
        found.values, found._number = [*self.values, None], None
        found._codes = np.where(place < 0, len(self.values), np.append(self.codes, 0)[place]).astype(np.int32)
        return found

    def present(self) -> list[V]:
        """The different values, by their first rows."""
        if not self.repeats:
            return list(dict.fromkeys(self))
        codes, first = np.unique(self.codes, return_index=True)
        return [self.values[code] for code in codes[np.argsort(first)].tolist()]

    def numbers(self) -> NDArray[np.intp]:
        """A whole number for each row, by the sorted values."""
        index = {value: number for number, value in enumerate(sorted(self.present(), key=str))}
        return self.each(index.__getitem__, np.intp)

    def each(self, of: Callable[[V], Any], kind: Any) -> NDArray[Any]:
        """What `of` makes of each row's value, as an array of a kind."""
        if not self.repeats:
            return np.fromiter(map(of, self), dtype=kind, count=len(self))
        # Values that no row has any more may be such as `of` cannot be asked.
        codes, number = np.unique(self.codes, return_inverse=True)
        found = np.fromiter((of(self.values[code]) for code in codes.tolist()), dtype=kind, count=len(codes))
        return found[number]


class Reread(MadeAgain[V | None], Generic[V]):
    """What rows are made from, read again where it is asked for: of each row the number (from 0) of its record among
    those that `read` gives, -1 where it has none."""

    def __init__(self, read: Callable[[], Iterable[V]], number: Any) -> None:
        self._read, self._number = read, np.asarray(number, dtype=np.int32)

    def __len__(self) -> int:
        return len(self._number)

    def at_row(self, row: int) -> V | None:
        return self.few([row])[row]

    def rows(self, index: Rows) -> "Reread[V]":
        """Some rows, by their numbers; none for one below 0."""
        return Reread(self._read, np.where(index < 0, -1, self._number[index]))

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
        made = array("d", map(of, self._read()))
        made.append(np.nan)
        return np.asarray(made)[self._number]


def as_column(values: Sequence[V]) -> Column[V]:
    return values if isinstance(values, Column) else Column(values)


class RatingColumns(MadeAgain[Mapping[str, float]]):
    """Each item's scores by the rater's name, in a few bytes a rating."""

    def __init__(self, given: Iterable[Mapping[str, float]] = ()) -> None:
        self.who, self.score = Column[str](), Column[float]()
        self._size = array("i")
        for rated in given:
            self.append(rated)

    @classmethod
    def of(cls, who: Column[str], score: Column[float], sizes: Rows) -> "RatingColumns":
        """From the ratings, one item's behind the other's, and how many each has."""
        found = cls()
        found.who, found.score, found._size = who, score, array("i", sizes.astype(np.int32).tobytes())
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
