"""Arrays of numbers, and of whole numbers that say which of several things a row is."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[Any]
"""Whole numbers from 0."""
Group = Sequence[Hashable] | NDArray[np.generic]
"""The group of each row: names, or whole numbers."""


def distinct(*keys: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows that are alike in every key share a cell: (one row of each cell, the cell of each row)."""
    cell = np.zeros(len(keys[0]), dtype=np.intp)
    for key in keys:
        values, number = np.unique(key, return_inverse=True)
        cell = np.unique(cell * len(values) + number, return_inverse=True)[1]
    first = np.empty(int(cell.max(initial=-1)) + 1, dtype=np.intp)
    first[cell] = np.arange(len(cell))
    return first, cell


def group_numbers(group: Group) -> NDArray[np.intp]:
    """A whole number 0..G-1 for each row, by the sorted names, so that the order of rows does not matter."""
    if isinstance(group, np.ndarray) and group.dtype.kind in "iu":
        return np.unique(group, return_inverse=True)[1]
    index = {name: number for number, name in enumerate(sorted(set(group), key=str))}
    return np.array([index[name] for name in group], dtype=np.intp)


def ratio(top: Floats, bottom: Floats, empty: float = np.nan) -> Floats:
    """top / bottom, `empty` where the bottom is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        # Rows of what comes back lie together, or sums over them would round by how those of what comes in lie.
        return np.asarray(np.where(bottom != 0, top / bottom, empty), order="C")
