"""Spearman's correlation of resamples of many different values: the sum of the products of both sides' ranks.

The values of a side are sorted once. Those that occur once, which need no more than their group's weight, are dealt
into blocks of neighbours: a rank is that of the block's first value and a product of the block's weights with a small
matrix. So a resample is a few passes over its weights, all of them over many resamples at a time.
"""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from critic.counting.resampling import WHOLE, Drawn, Floats, Room, memory, slices, tables_by_group

Indices = NDArray[np.intp]

_STEP, _SHORT = 16, 4
"""Values of a block, and how many that occur once have to follow each other to be dealt into blocks."""

_PART, _TOGETHER = 256, 400
"""Values and resamples that are ranked together, so that they stay in the processor's cache: more values where there
are fewer resamples."""

_RANKS, _FEWEST = 1 << 22, 16
"""Ranks that are kept at a time, and resamples that are ranked at a time however many these are."""


class _Part(NamedTuple):
    """Neighbouring values of an order, most of them dealt into blocks.

    `group` (blocks, _STEP) is the group of each value that occurs once, G where a block is filled up; `tied` says
    which of the other values stand here, between the blocks; `below` (blocks + tied + 1, blocks + tied) makes twice the
    pairs below a block, twice the rank of a tied value, and twice all, of the pairs in each.
    """

    start: int
    group: Indices
    tied: slice
    below: NDArray[np.float32]


class _Order:
    """The values 0..U-1 of one side, `value` (n,), and their ranks in resamples.

    `place` (U,) is where a value stands among `length` ranks: in its block, where all blocks are filled up to one
    length, or after the blocks of its part. `several` (U,) are values that occur more than once, and others that stand
    too lonely among these for a block; how often each occurs is `times` (several, G + 1) times the groups drawn.
    """

    def __init__(self, value: Indices, member: Indices, groups: int, weight: Floats | None) -> None:
        times = np.bincount(value)
        several = (times > 1) if weight is None else np.ones(len(times), dtype=bool)
        edges = np.flatnonzero(np.diff(several, prepend=not several[0]))
        long = np.diff(edges, append=len(times))
        several |= np.repeat(long < _SHORT, long)
        within = np.arange(len(times)) - np.repeat(edges, long)
        first = several | (within % _STEP == 0)
        item = np.cumsum(first) - 1
        part = np.cumsum(np.where(several[first], _STEP // 4, _STEP)) // (_PART * _TOGETHER // _at_once(len(value)))
        # Where the items of each part begin, and their values.
        begins = np.append(np.flatnonzero(np.diff(part, prepend=-1)), len(part))
        starts = np.searchsorted(item, begins)
        row = np.zeros(len(times), dtype=np.intp)
        row[value] = np.arange(len(value))
        self.several, self.place, self.parts = several, np.zeros(len(times), dtype=np.intp), list[_Part]()
        self.length = number = 0
        for (begin, end), (low, high) in zip(itertools.pairwise(begins), itertools.pairwise(starts), strict=True):
            values, item_tied = np.arange(low, high), several[first][begin:end]
            tied = several[values]
            blocks = int((~item_tied).sum())
            once = values[~tied]
            block = (np.cumsum(~item_tied) - 1)[item[once] - begin]
            group = np.full((blocks, _STEP), groups)
            group[block, within[once] % _STEP] = member[row[once]]
            self.place[once] = self.length + (_STEP + 1) * block + within[once] % _STEP
            count = int(tied.sum())
            self.place[values[tied]] = self.length + (_STEP + 1) * blocks + np.arange(count)
            order = np.argsort(item_tied, kind="stable")
            below = 2.0 * (order < order[:, None]) + np.diag(item_tied[order])
            below = np.concatenate([below, np.full((1, len(order)), 2)], dtype=np.float32)
            self.parts.append(_Part(self.length, group, slice(number, number + count), below))
            self.length, number = self.length + (_STEP + 1) * blocks + count, number + count
        some = several[value]
        into = (np.cumsum(several) - 1)[value[some]]
        self.times = _matrix(into, member[some], (number, groups + 1), None if weight is None else weight[some])

    def ranks(self, counts: NDArray[Any], size: Floats, room: Room) -> Iterator[tuple[Any, ...]]:
        """For each part how often the values of blocks occur, (blocks, _STEP, R), and twice their ranks, less the mean:
        within a block, (blocks, _STEP + 1, R), after them all of its pairs; where it begins, (blocks, R); and those of
        the tied values, (tied, R)."""
        samples, kind = counts.shape[1], counts.dtype.type
        within = (2 * np.tri(_STEP + 1, _STEP, -1) + np.eye(_STEP + 1, _STEP)).astype(kind)
        within[-1] = 1
        tied, so_far = self.times @ counts, -size.astype(kind)
        for part in self.parts:
            blocks = len(part.group)
            weight = memory(room, "weight", (blocks, _STEP, samples), kind)
            counts.take(part.group, axis=0, out=weight, mode="clip")
            local = np.matmul(within, weight, out=memory(room, "local", (blocks, _STEP + 1, samples), kind))
            items = memory(room, "items", (len(part.below) - 1, samples), kind)
            items[:blocks], items[blocks:] = local[:, -1], tied[part.tied]
            base = memory(room, "base", (len(part.below), samples), kind)
            np.matmul(part.below.astype(kind, copy=False), items, out=base)
            base += so_far
            yield part, weight, local, base[:blocks], base[blocks:-1]
            so_far = base[-1].copy()


class RankProduct:
    """The sum of the products of both sides' ranks."""

    def __init__(self, sides: tuple[Indices, Indices], member: Indices, groups: int, weight: Floats | None) -> None:
        self._row, self._column = (_Order(side, member, groups, weight) for side in sides)
        self._weighed, (row, column) = weight is not None, sides
        self._at_once, self._room = _at_once(len(row)), dict[Any, NDArray[Any]]()
        row_of = np.zeros(len(self._column.place), dtype=np.intp)
        row_of[column] = row
        once = ~self._column.several
        row_at = np.zeros(self._column.length + _STEP, dtype=np.intp)
        row_at[self._column.place[once]] = self._row.place[row_of[once]]
        self._rows = [
            row_at[part.start : part.start + (_STEP + 1) * len(part.group)].reshape(-1, _STEP + 1)[:, :-1].copy()
            for part in self._column.parts
        ]
        some, rows = self._column.several[column], len(self._row.place)
        key, cell = np.unique(column[some] * rows + row[some], return_inverse=True)
        self._cells = _matrix(cell, member[some], (len(key), groups + 1), None if weight is None else weight[some])
        self._cell_rows = self._row.place[key % rows]
        into = (np.cumsum(self._column.several) - 1)[key // rows]
        self._tied = tables_by_group(np.arange(len(key)), into, (len(key), self._column.times.shape[0])).T.tocsr()

    def product(self, drawn: Drawn, size: Floats) -> Floats:
        """Of resamples, (R,), from how often each group was drawn, (G + 1, R), and their pairs, (R,)."""
        parts = slices(len(size), self._at_once)
        return np.concatenate([self._product(drawn[:, part], size[part]) for part in parts])

    def _product(self, drawn: Drawn, size: Floats) -> Floats:
        room = self._room
        kind: Any = np.float64 if self._weighed or 2 * size.max() >= WHOLE else np.float32
        counts, samples = drawn.astype(kind), drawn.shape[1]
        ranks = memory(room, "ranks", (self._row.length, samples), kind)
        for part, _, local, base, tied in self._row.ranks(counts, size, room):
            stop = part.start + local.shape[0] * local.shape[1]
            np.add(local, base[:, None], out=ranks[part.start : stop].reshape(local.shape))
            ranks[stop : stop + len(tied)] = tied
        found, columns = np.zeros(samples), np.zeros((self._tied.shape[0], samples))
        for (part, weight, local, base, tied), rows in zip(
            self._column.ranks(counts, size, room), self._rows, strict=True
        ):
            columns[part.tied] = tied
            if not len(rows):
                continue
            product = memory(room, "product", weight.shape, kind)
            ranks.take(rows, axis=0, out=product, mode="clip")
            # Both sums of a block, of ranks and of products, stay below this.
            if kind == np.float32 and size.max() * float(local[:, -1].max()) ** 2 >= WHOLE:
                product = product.astype(np.float64)
            product *= weight
            sums = product.sum(axis=1).astype(np.float64)
            sums *= base
            product *= local[:, :-1]
            sums += product.sum(axis=1)
            found += sums.sum(axis=0)
        cells = (self._cells @ counts) * ranks[self._cell_rows].astype(np.float64)
        return np.asarray(found + ((self._tied @ cells) * columns).sum(axis=0)) / 4


def _matrix(cell: Indices, member: Indices, shape: tuple[int, int], weight: Floats | None) -> Any:
    """`tables_by_group`, dense where much of it is filled."""
    found = tables_by_group(cell, member, shape, weight).tocsr()
    return found.toarray() if 4 * found.nnz > shape[0] * shape[1] else found


def _at_once(pairs: int) -> int:
    """Resamples that are ranked at a time."""
    return min(_TOGETHER, max(_FEWEST, _RANKS // pairs))
