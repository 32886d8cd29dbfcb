"""The metrics of resamples where both sides together have too many values for a table: fractional scores.

The distinct pairs of values (cells) are sorted once by the side of more values, the columns, and dealt into blocks of
neighbours. A resample is a weight for each cell. Ranks and concordance within a block are products of its weights with
small matrices that no resample changes; between blocks they follow from how often each value of the other side, the
rows, occurs in the blocks before. So the work is a few numbers a cell and resample, all of it in matrix products.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from critic.counting.resampling import Drawn, Floats, tables_by_group

Indices = NDArray[np.intp]

_BLOCK, _LEVELS = 64, 64
"""Cells of a block, and row values that are told apart in one walk over them."""

_CHUNK, _KEPT = 1 << 18, 1 << 25
"""Numbers of the matrices that are worked on at a time, and those that are kept from one resample to the next."""

_TOGETHER = 64
"""Resamples that are weighed at a time: a chunk's weights stay in the processor's cache."""


class _Chunk(NamedTuple):
    """Blocks of cells, filled up to the same length with cells that no group has.

    `by_group` (blocks x length, G), sparse, says how often each group has each cell. `column` and `digit` (blocks,
    length) are their values, -1 where a block is filled up. Cells of one block and row make a segment, of this `block`
    and `row`; `segments` (segments, blocks x length) sums cells. `begun[b]` is the first block of those that block b is
    compared with, -1 where that lies in an earlier chunk.
    """

    by_group: Any
    column: NDArray[np.int32]
    digit: NDArray[np.int32]
    segments: Any
    block: Indices
    row: Indices
    begun: Indices

    def weights(self, counts: NDArray[np.float32]) -> NDArray[Any]:
        """How often each cell occurs, (blocks, length, R), from how often each group was drawn (G, R)."""
        return np.asarray((self.by_group @ counts).reshape(*self.column.shape, -1))


class SortedPairs:
    """The pairs of a sample, shape (n,) each, in groups 0..G-1; with a `weight` each counts for so many."""

    def __init__(self, human: Floats, judge: Floats, member: Indices, weight: Floats | None = None) -> None:
        self._human, self._judge, self._member, self._weight = human, judge, member, weight
        sides = [np.unique(side, return_inverse=True)[1] for side in (human, judge)]
        row, column = sorted(sides, key=lambda side: int(side.max()))
        self.swapped = row is not sides[0]
        self.rows, groups = int(row.max()) + 1, int(member.max()) + 1
        self.by_row = tables_by_group(row, member, (self.rows, groups), weight)
        if self.rows * groups <= _CHUNK:
            self.by_row = self.by_row.toarray()
        key, cell = np.unique(column * self.rows + row, return_inverse=True)
        self._row, self._column = key % self.rows, key // self.rows
        self._weights = tables_by_group(cell, member, (len(key) + 1, groups), weight).tocsr()
        alone = np.bincount(column)[column] == 1
        ones = np.ones(len(row)) if weight is None else weight
        self.alone = np.stack([np.bincount(member[alone], ones[alone] ** power, minlength=groups) for power in (2, 3)])
        _, column = np.unique(column[~alone], return_inverse=True)
        shape = int(column.max(initial=-1)) + 1, groups
        self.several = tables_by_group(column, member[~alone], shape, None if weight is None else weight[~alone])
        if shape[0] * groups <= _CHUNK:
            self.several = self.several.toarray()
        self._sums: dict[Callable[[Floats, Floats], Floats], Floats] = {}
        self._matrices: dict[tuple[int, int], NDArray[np.float32]] = {}
        self.centre = float(human.mean()), float(judge.mean())
        squares = [(side - centre) ** 2 for side, centre in zip((human, judge), self.centre, strict=True)]
        self.moments = np.concatenate([self._by_group(values) for values in (human, judge, *squares)])

    def _by_group(self, values: Floats) -> Floats:
        weighed = values if self._weight is None else values * self._weight
        return np.bincount(self._member, weighed)[None].astype(np.float64)

    def sums(self, of: Callable[[Floats, Floats], Floats]) -> Floats:
        """What each group adds to the sum of a function: shape (1, G)."""
        if of not in self._sums:
            self._sums[of] = self._by_group(of(self._human, self._judge))
        return self._sums[of]

    def parts(self, drawn: Drawn) -> Iterator[Drawn]:
        """As many resamples at a time as are best weighed together: matrices that are not kept are made anew for
        each."""
        size = _TOGETHER if len(self._row) * _BLOCK < _KEPT else len(drawn)
        return (drawn[start : start + size] for start in range(0, len(drawn), size))

    @cached_property
    def walks(self) -> list[list[_Chunk]]:
        """Two row values compare as the first digit in which their numbers differ: a walk for each digit, over cells
        that agree in the digits before it."""
        return [list(self._chunks(self.levels**place)) for place in reversed(range(self._digits))]

    @cached_property
    def levels(self) -> int:
        """Values of a digit."""
        return int(np.ceil(self.rows ** (1 / self._digits) - 1e-9))

    @property
    def _digits(self) -> int:
        return max(1, int(np.ceil(np.log(self.rows) / np.log(_LEVELS) - 1e-9)))

    def _chunks(self, unit: int) -> Iterator[_Chunk]:
        over, digit = np.divmod(self._row // unit, self.levels)
        order = np.lexsort((self._column, over))
        # All cells of a column stay in one block, which so begins at a column's first cell.
        run = _starts(over[order])
        place = _starts(over[order], self._column[order]) - run
        block = np.cumsum(np.diff(place // _BLOCK, prepend=0) + np.diff(run, prepend=0) != 0)
        order = order[np.lexsort((self._row[order], block))]
        first = np.flatnonzero(np.diff(block, prepend=-1))
        sizes, start = np.diff(first, append=len(block)), 0
        begins = over[order][first]
        while start < len(first):
            widest = np.maximum.accumulate(sizes[start : start + _CHUNK])
            much = np.arange(1, len(widest) + 1) * widest**2
            stop = start + max(1, int(np.searchsorted(much, _CHUNK, side="right")))
            cells = order[first[start] : first[start] + int(sizes[start:stop].sum())]
            begun = _starts(begins[start:stop])
            if start and begins[start - 1] == begins[start]:
                begun = np.where(begun == 0, -1, begun)
            yield self._chunk(cells, sizes[start:stop], digit, begun)
            start = stop

    def _chunk(self, cells: Indices, sizes: Indices, digit: Indices, begun: Indices) -> _Chunk:
        blocks, length = len(sizes), int(sizes.max())
        block = np.repeat(np.arange(blocks), sizes)
        place = block * length + np.arange(len(cells)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        padded = np.full(blocks * length, len(self._row))
        padded[place] = cells
        row = self._row[cells]
        new = np.diff(block * self.rows + row, prepend=-1) != 0
        first, segment = np.flatnonzero(new), np.cumsum(new) - 1
        columns, numbers = (np.full(blocks * length, -1, dtype=np.int32) for _ in range(2))
        columns[place], numbers[place] = self._column[cells], digit[cells]
        return _Chunk(
            by_group=self._weights[padded],
            column=columns.reshape(blocks, length),
            digit=numbers.reshape(blocks, length),
            segments=_sums_of(segment, place, len(first), blocks * length),
            block=block[first],
            row=row[first],
            begun=begun,
        )

    def matrices(self, walk: int, number: int) -> NDArray[np.float32]:
        """Of a chunk, each (blocks, …, length), one below the other: which cells have which digit; which columns lie
        below which, with the sign of the digits' difference; in the first walk the same without it, equal ones by
        half."""
        if (found := self._matrices.get((walk, number))) is not None:
            return found
        chunk = self.walks[walk][number]
        below = (chunk.column[:, None, :] < chunk.column[:, :, None]).astype(np.float32)
        parts = [
            (chunk.digit[:, None, :] == np.arange(self.levels)[:, None]).astype(np.float32),
            below * np.sign(chunk.digit[:, :, None] - chunk.digit[:, None, :]).astype(np.float32),
        ]
        if walk == 0:
            parts.append(below + (chunk.column[:, None, :] == chunk.column[:, :, None]).astype(np.float32) / 2)
        made: NDArray[np.float32] = np.concatenate(parts, axis=1)
        if len(self._row) * _BLOCK < _KEPT:
            self._matrices[walk, number] = made
        return made


def _sums_of(into: Indices, which: Indices, rows: int, columns: int) -> Any:
    """The matrix of ones that sums the columns `which` into the rows `into`."""
    return sparse.csr_array((np.ones(len(which), dtype=np.float32), (into, which)), shape=(rows, columns))


def _starts(*keys: Indices) -> Indices:
    """Where the run of equal neighbours begins that each place belongs to."""
    new = np.zeros(len(keys[0]), dtype=bool)
    for key in keys:
        new |= np.diff(key, prepend=-1) != 0
    return np.maximum.accumulate(np.where(new, np.arange(len(new)), 0))
