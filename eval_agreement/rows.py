"""Judged rows, and the sums over them that the bootstrap resamples: what bias and calibration are made from."""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from scipy import sparse

from critic.counting.resampling import SEED, Floats, Group, Resamples
from eval_agreement.metrics import Scores, on_scale

Indices = NDArray[np.intp]

_MOST_CELLS = 20_000
_ROWS_OF_A_CELL = 4


class JudgedRows(Struct, frozen=True):
    """The rows with a judgment; `kept` marks them among all rows."""

    human: Floats
    judge: Floats
    kept: NDArray[np.bool_]
    resamples: Resamples

    @property
    def n(self) -> int:
        return len(self.human)

    @property
    def failed(self) -> int:
        return len(self.kept) - self.n


def pick(names: Group, kept: NDArray[np.bool_]) -> Group:
    """The names of the rows that `kept` marks."""
    if isinstance(names, np.ndarray):
        return names[kept]
    return [name for name, keep in zip(names, kept, strict=True) if keep]


def judged_rows(
    human: Scores, judge: Scores, group: Group, resamples: int | None = None, seed: int = SEED
) -> JudgedRows:
    """The rows that have a judgment; None or NaN in `judge` is a failed one.

    Raises ValueError for unequal lengths, a missing human score, or a score outside 1..10.
    """
    people, judged = on_scale(human, "human"), on_scale(judge, "judge")
    if not len(people) == len(judged) == len(group):
        raise ValueError(f"{len(people)} human scores, {len(judged)} judge scores and {len(group)} groups")
    if np.isnan(people).any():
        raise ValueError(f"the human score of row {int(np.argmax(np.isnan(people)))} (from 0) is missing")
    kept = ~np.isnan(judged)
    return JudgedRows(people[kept], judged[kept], kept, Resamples(pick(group, kept), resamples, seed, shared=False))


def distinct(*keys: NDArray[np.generic]) -> tuple[Indices, Indices]:
    """Rows that are alike in every key share a cell: (one row of each cell, the cell of each row)."""
    cell = np.zeros(len(keys[0]), dtype=np.intp)
    first = cell[:0]
    for key in keys:
        values, number = np.unique(key, return_inverse=True)
        _, first, cell = np.unique(cell * len(values) + number, return_index=True, return_inverse=True)
    return first, cell


def sums_and_resampled(resamples: Resamples, cell: Indices, columns: sparse.csr_array) -> Floats:
    """The columns' sums over the sample (first row) and over each resample: shape (1 + resamples, k).

    `columns`, shape (k, cells), holds what a row of each cell adds to each sum; `cell` is the cell of each row.
    Only the sample's row comes back where there are too few groups. Where every row is its own group, few
    cells are drawn instead of many rows.
    """
    cells = columns.shape[1]
    blocks = [np.atleast_2d(columns @ np.bincount(cell, minlength=cells).astype(np.float64)).T]
    few_cells = cells <= min(_MOST_CELLS, len(cell) // _ROWS_OF_A_CELL)
    if resamples.enough and resamples.groups == len(cell) and few_cells:
        blocks += [columns @ table for table in resamples.tables(cell, cells)]
    elif resamples.enough:
        members = (np.ones(len(cell)), (cell, resamples.member))
        by_group = columns @ sparse.csr_array(members, shape=(cells, resamples.groups))
        blocks += [by_group @ count for count in resamples.counts()]
    return np.asarray(np.concatenate(blocks, axis=1).T)
