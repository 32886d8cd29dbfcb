"""Numbers of many rows, of which few differ: each once, and in each row a byte or more that say which."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from critic.counting.arrays import Codes, Floats, blocks, coded, counted, joined, occurring, small, taken
from critic.counting.columns import Column, Spooled


class Coded:
    """n numbers: `values`, shape (k,), are those that occur, ascending, NaN behind; `code`, shape (n,), is the place
    among these of each row's. Some rows' numbers are an array of 64-bit floats: `numbers[5:9]`."""

    def __init__(self, values: Floats, code: Codes) -> None:
        self.values, self.code = values, code

    @classmethod
    def of(cls, numbers: "ArrayLike | Sequence[float | None] | Spooled | Coded") -> "Coded":
        """NaN for None."""
        if isinstance(numbers, Coded):
            return numbers
        return cls(*coded(numbers if isinstance(numbers, Spooled) else np.asarray(numbers, dtype=np.float64)))

    @classmethod
    def each(cls, column: Column[Any], of: Callable[[Any], float]) -> "Coded":
        """What `of` makes of what each row of a column says."""
        if not column.repeats:
            return cls.of(column.each(of, np.float64))
        made = np.full(len(column.values), np.nan)
        for code in column.counted():  # values that no row has any more may be such as `of` cannot be asked
            made[code] = of(column.values[code])
        return cls.among(made, joined(column.blocks(), len(column), np.min_scalar_type(len(made))))

    @classmethod
    def one(cls, number: float, rows: int) -> "Coded":
        """The same number in each row."""
        return cls(np.full(1, number)[:rows], np.broadcast_to(np.uint8(0), rows))

    @classmethod
    def among(cls, values: Floats, code: Codes) -> "Coded":
        """From numbers in any order, of which some may be alike, or in no row."""
        there = occurring(code, len(values))
        rising = (values[:-1] < values[1:]) | np.isnan(values[1:])
        if there.all() and rising.all() and not np.isnan(values[:-1]).any():
            return cls(values, code)
        found, place = np.unique(values[there], return_inverse=True)
        number = np.zeros(len(values), dtype=np.intp)
        number[there] = place
        return cls(found, taken(small(number), code))

    def __len__(self) -> int:
        return len(self.code)

    @overload
    def __getitem__(self, rows: int) -> float: ...
    @overload
    def __getitem__(self, rows: slice | NDArray[Any]) -> Floats: ...
    def __getitem__(self, rows: Any) -> Any:
        found = self.values[self.code[rows]]
        return found if isinstance(found, np.ndarray) else float(found)

    def __iter__(self) -> Iterator[float]:
        return chain.from_iterable(self.values[part].tolist() for part in blocks(self.code))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return joined((self.values[part] for part in blocks(self.code)), len(self), dtype or np.float64)

    def rows(self, which: NDArray[Any]) -> "Coded":
        """Some rows, by their numbers, or those for which a mask is true."""
        return Coded.among(self.values, self.code[which])

    def at(self, place: NDArray[Any]) -> "Coded":
        """Rows by their numbers, NaN for those below 0."""
        unknown = len(self.values)
        code = np.append(self.code, self.code.dtype.type(0)).astype(np.min_scalar_type(unknown))
        code[-1] = unknown
        return Coded.among(np.append(self.values, np.nan), taken(code, np.where(place < 0, len(self), place)))

    def map(self, of: Callable[[Floats], Floats]) -> "Coded":
        """What `of` makes of the numbers."""
        return Coded.among(of(self.values), self.code)

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which rows have a number, shape (n,)."""
        missing = np.isnan(self.values)
        return np.asarray(self.code != len(self.values) - 1) if missing.any() else np.ones(len(self), dtype=bool)

    @property
    def counts(self) -> NDArray[np.intp]:
        """How often each of `values` occurs, shape (k,)."""
        return counted(self.code, len(self.values))

    def mean(self) -> float:
        return float(self.values @ self.counts / len(self))

    def std(self) -> float:
        return float(np.sqrt((self.values - self.mean()) ** 2 @ self.counts / len(self)))

    def quantile(self, share: ArrayLike) -> Floats:
        """As NumPy's, between the two nearest numbers; of numbers that are all known."""
        return quantile(self.values, self.counts, share)


def quantile(values: Floats, counts: NDArray[Any], share: ArrayLike) -> Floats:
    """NumPy's quantile of `values`, ascending, that occur `counts` times."""
    ends = np.cumsum(counts)
    place = np.asarray(share) * (ends[-1] - 1)
    low, high = (values[np.searchsorted(ends, spot, side="right")] for spot in (np.floor(place), np.ceil(place)))
    return np.asarray(low + (high - low) * (place - np.floor(place)))


@overload
def chosen(which: NDArray[np.bool_], values: Coded) -> Coded: ...
@overload
def chosen(which: NDArray[np.bool_], values: NDArray[Any]) -> NDArray[Any]: ...
def chosen(which: NDArray[np.bool_], values: Any) -> Any:
    """The rows for which `which` is true: where it is for all, the object itself."""
    if which.all():
        return values
    return values.rows(which) if isinstance(values, Coded) else values[which]


def distinct(*keys: NDArray[np.generic] | Coded) -> tuple[NDArray[np.intp], Codes]:
    """Rows that are alike in every key share a cell: (one row of each cell, the cell of each row)."""
    cell, cells = np.zeros(len(keys[0]), dtype=np.uint8), min(1, len(keys[0]))
    for key in keys:
        values, number = (key.values, key.code) if isinstance(key, Coded) else coded(key)
        wide = np.min_scalar_type(cells * len(values))
        pairs = zip(blocks(cell), blocks(number), strict=True)
        both = (one.astype(wide) * wide.type(len(values)) + other for one, other in pairs)
        there, cell = coded(joined(both, len(cell), wide))
        cells = len(there)
    first = np.empty(cells, dtype=np.intp)
    first[cell[::-1]] = np.arange(len(cell))[::-1]  # of several the last stays
    return first, cell
