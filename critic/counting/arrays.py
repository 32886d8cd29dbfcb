"""Columns of whole numbers and of 64-bit floats, some thousands of rows at a time."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[Any]
"""Whole numbers from 0 of the smallest kind that holds them."""
Group = Sequence[Hashable] | NDArray[np.generic]
"""The group of each row: names, or whole numbers."""

_ROWS = 1 << 14
"""Rows that are looked at together."""

_SPARSE = 4
"""Whole numbers up to so many times the rows are made consecutive without sorting."""


@runtime_checkable
class Numbered(Protocol):
    """A column of names that are kept once each (critic.counting.columns)."""

    def numbers(self) -> NDArray[Any]: ...


class InBlocks(Protocol):
    """Numbers that are read some thousands at a time (critic.counting.columns)."""

    def blocks(self) -> Iterator[NDArray[Any]]: ...
    def __len__(self) -> int: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]: ...


def blocks(values: NDArray[Any] | InBlocks) -> Iterator[NDArray[Any]]:
    """Some thousands at a time: NumPy makes 64 bits of all numbers that it is to take rows by, or to count."""
    if not isinstance(values, np.ndarray):
        return values.blocks()
    return (values[start : start + _ROWS] for start in range(0, len(values), _ROWS))


def joined(parts: Iterable[NDArray[Any]], rows: int, kind: Any) -> NDArray[Any]:
    """The parts one behind the other, as one array of a kind."""
    found, start = np.empty(rows, dtype=kind), 0
    for part in parts:
        found[start : start + len(part)] = part
        start += len(part)
    return found


def taken(values: NDArray[Any], place: NDArray[Any]) -> NDArray[Any]:
    """`values[place]`."""
    return joined((values[part] for part in blocks(place)), len(place), values.dtype)


def small(numbers: NDArray[Any]) -> Codes:
    """Whole numbers from 0 in the smallest kind that holds them."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


def counted(code: Codes, many: int) -> NDArray[np.intp]:
    """How often each of 0..many-1 occurs."""
    found = np.zeros(many, dtype=np.intp)
    for part in blocks(code):
        some = np.bincount(part)
        found[: len(some)] += some
    return found


def occurring(code: Codes, many: int, which: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
    """Which of 0..many-1 occur, in the rows for which `which` is true."""
    found = np.zeros(many, dtype=bool)
    for start in range(0, len(code), _ROWS):
        part = code[start : start + _ROWS]
        found[part if which is None else part[which[start : start + _ROWS]]] = True
    return found


def coded(values: NDArray[Any] | InBlocks) -> tuple[NDArray[Any], Codes]:
    """The different values, ascending, and the place among these of each row: `np.unique` with its inverse, in little
    memory."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu" and len(values) and values.min() >= 0:
        most = int(values.max())
        if most < max(_SPARSE * len(values), _ROWS):
            there = occurring(values, most + 1)
            return np.flatnonzero(there), taken(small(np.cumsum(there) - 1), values)
    found = np.asarray([], dtype=values.dtype if isinstance(values, np.ndarray) else np.float64)
    for part in blocks(values):
        found = np.union1d(found, part)
        if len(found) > _ROWS:
            found = np.unique(np.asarray(values))
            break
    places = (np.searchsorted(found, part) for part in blocks(values))
    return found, joined(places, len(values), np.min_scalar_type(len(found)))


def group_numbers(group: Group) -> NDArray[Any]:
    """A whole number 0..G-1 for each row, by the sorted names, so that the order of rows does not matter."""
    if isinstance(group, np.ndarray) and group.dtype.kind in "iu":
        if len(group) and group.min() >= 0 and group.max() < _SPARSE * len(group):
            there = occurring(group, int(group.max()) + 1)
            return group if there.all() else taken((np.cumsum(there) - 1).astype(group.dtype), group)
        return np.asarray(np.unique(group, return_inverse=True)[1], dtype=np.intp)
    if isinstance(group, Numbered):
        return group.numbers()
    index = {name: number for number, name in enumerate(sorted(set(group), key=str))}
    return np.fromiter((index[name] for name in group), dtype=np.intp, count=len(group))


def groups_in(member: NDArray[Any], which: NDArray[np.bool_] | None = None) -> int:
    """How many groups have a row, among those for which `which` is true; `member` is the number of each row's group."""
    return int(occurring(member, int(member.max(initial=-1)) + 1, which).sum())


def ratio(top: Floats, bottom: Floats, empty: float = np.nan) -> Floats:
    """top / bottom, `empty` where the bottom is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        # Rows of what comes back lie together, or sums over them would round by how those of what comes in lie.
        return np.asarray(np.where(bottom != 0, top / bottom, empty), order="C")
