"""Types of NumPy arrays, and helpers that number distinct rows and groups."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[Any]
"""Integers from 0 that say which category a row belongs to."""
Group = Sequence[Hashable] | NDArray[np.generic]
"""The group of each row, as names or integers."""


def distinct(*keys: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Number the distinct combinations of `keys`, arrays with one value per row.

    Return the index of each combination's first row, and the combination number of each row.
    """
    _, first, cell = np.unique(np.column_stack(keys), axis=0, return_index=True, return_inverse=True)
    return first, cell.ravel()  # a column in NumPy 2.0.0


def group_numbers(group: Group) -> NDArray[np.intp]:
    """Number groups 0..G-1 by their sorted names, so that the order of rows does not matter.

    >>> group_numbers(["b", "a", "b"]).tolist()
    [1, 0, 1]
    """
    if isinstance(group, np.ndarray) and group.dtype.kind in "iu":
        return np.unique(group, return_inverse=True)[1]
    index = {name: number for number, name in enumerate(sorted(set(group), key=str))}
    return np.array([index[name] for name in group], dtype=np.intp)


def ratio(top: Floats, bottom: Floats, empty: float = np.nan) -> Floats:
    """Return `top` / `bottom`, with `empty` for each bottom of 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        # Fixed memory order: otherwise the rounding of later sums would depend on the layout of the input.
        return np.asarray(np.where(bottom != 0, top / bottom, empty), order="C")
