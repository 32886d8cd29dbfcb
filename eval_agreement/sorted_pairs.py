"""The metrics of resamples where both sides together have too many values for a table: fractional scores.

Where groups are few, how far any two of them agree is counted once, and concordance is a quadratic form of how often
groups were drawn. Else the distinct pairs of values (cells) are sorted once by the side of more values, the columns,
and dealt into blocks of neighbours. A resample is a weight for each cell. Ranks and concordance within a block are
products of its weights with small matrices that no resample changes; between blocks they follow from how often each
value of the other side, the rows, occurs in the blocks before. So the work is a few numbers a cell and resample, all of
it in matrix products.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from critic.counting.resampling import WHOLE, Drawn, Floats, Room, memory, slices, tables_by_group

Indices = NDArray[np.intp]

_FORM, _ROWS, _BLOCK_OF_FORM = 4096, 64, 256
"""Groups up to which pairs of groups are compared once for all resamples, how many pairs are compared with all others
at a time (groups of more are not), and groups whose sums are made together."""

_BLOCK, _LEVELS = 32, 64
"""Cells of a block, and row values that are told apart in one walk over them."""

_CHUNK, _KEPT = 768, 1 << 26
"""Rows whose cells are worked on together, so that these stay in the processor's cache; and numbers of the matrices
that are kept from one resample to the next."""

_TOGETHER = 80
"""Resamples that are weighed at a time, for the same reason."""

_RANKS = 1 << 20
"""Sums of values that are kept at a time."""

_DENSE = 1 << 18
"""Numbers up to which sums over groups are products with plain matrices."""


class _Chunk(NamedTuple):
    """Blocks of cells, filled up to the same length with cells that no group has.

    `group` (blocks x length,) is a group that has each cell, G where none has; `times` (blocks x length, 1) how often,
    None where all have it once; `more` (shared, others), sparse, what the groups `others` have of the cells `shared`
    too. `column` and `digit` (blocks, length) are values, -1 where a block is filled up. `earlier` (blocks, blocks)
    says which blocks each is compared with, `ends` (3, blocks) which of them with those of earlier chunks too, which
    with those of the next, and all; `on` that these are not the first of theirs.
    """

    group: Indices
    times: NDArray[Any] | None
    more: Any
    shared: Indices
    others: Indices
    column: NDArray[np.int32]
    digit: NDArray[np.int16]
    earlier: NDArray[np.float32]
    ends: NDArray[np.float32]
    on: bool

    def weights(self, drawn: Drawn, room: Room) -> NDArray[Any]:
        """How often each cell occurs, (blocks x length, R), from how often each group was drawn, (G + 1, R)."""
        shape = len(self.group), drawn.shape[1]
        found: NDArray[Any] = drawn.take(self.group, axis=0, out=memory(room, "drawn", shape, np.uint8), mode="clip")
        if self.times is None:
            return found
        found = np.multiply(found, self.times, out=memory(room, "times", shape, self.times.dtype.type))
        found[self.shared] += self.more @ drawn[self.others].astype(self.more.dtype)
        return found


class _Matrices(NamedTuple):
    """What sums the cells of a chunk, whatever their weights.

    `tables` (blocks, 2 levels + 2, length): which cells have which digit; all; the sign of each digit less each level;
    none. `pairs` (blocks, length, length): which columns lie below which, with the sign of the digits' difference;
    `ranks`, where a digit is a row, the same without it, equal ones by half. `digits` (levels, blocks x length): which
    cells have which digit.
    """

    tables: NDArray[Any]
    pairs: NDArray[Any]
    ranks: NDArray[Any]
    digits: NDArray[Any]


class SortedPairs:
    """The pairs of a sample, shape (n,) each, in groups 0..G-1; with a `weight` each counts for so many."""

    def __init__(self, human: Floats, judge: Floats, member: Indices, weight: Floats | None = None) -> None:
        self._human, self._judge, self._member, self._weight = human, judge, member, weight
        sides = [np.unique(side, return_inverse=True)[1] for side in (human, judge)]
        row, column = sorted(sides, key=lambda side: int(side.max()))
        self.swapped = row is not sides[0]
        self.sides, self.groups = (row, column), int(member.max()) + 1
        self._room: Room = {}
        once = [np.bincount(side)[side] == 1 for side in self.sides]
        ones = np.ones(len(row)) if weight is None else weight
        self.alone = np.stack(
            [np.bincount(member[one], ones[one] ** power, minlength=self.groups) for one in once for power in (2, 3)]
        )
        # A sum for each value that occurs several times, those of the rows first.
        several = [np.unique(side[~one], return_inverse=True)[1] for side, one in zip(self.sides, once, strict=True)]
        self.rows = int(several[0].max(initial=-1)) + 1
        into = np.concatenate([several[0], self.rows + several[1]])
        which = np.concatenate([np.flatnonzero(~one) for one in once])
        shape = int(into.max(initial=-1)) + 1, self.groups
        self.values = tables_by_group(into, member[which], shape, None if weight is None else weight[which])
        self._matrices: dict[tuple[int, int], _Matrices] = {}
        self.centre = float(human.mean()), float(judge.mean())
        squares = [(side - centre) ** 2 for side, centre in zip((human, judge), self.centre, strict=True)]
        first = self.values.toarray() if shape[0] * shape[1] <= _DENSE else np.zeros((0, shape[1]))
        sums = (self._by_group(values) for values in (np.ones(len(row)), human, judge, *squares))
        self.start, self.sums = len(first), np.concatenate([first, *sums], dtype=np.float64)
        self._place: dict[Callable[[Floats, Floats], Floats], int] = {}

    def _by_group(self, values: Floats) -> Floats:
        weighed = values if self._weight is None else values * self._weight
        return np.bincount(self._member, weighed)[None].astype(np.float64)

    def parts(self, drawn: Drawn) -> Iterator[Drawn]:
        """As many resamples at a time as are best weighed together."""
        size = max(_TOGETHER, _RANKS // max(1, self.values.shape[0]))
        return (drawn[start : start + size] for start in range(0, len(drawn), size))

    def exact(self, most: int) -> bool:
        """Whether sums of cubes are exact in 32 bits where no group was drawn more often."""
        return self._weight is None and most**3 * len(self._human) < WHOLE

    def place(self, of: Callable[[Floats, Floats], Floats]) -> int:
        """The row of `sums` (k, G) that says what each group adds to the sum of a function. Before those are `values`
        where they are few, and from `start` on how many pairs it has, people's scores,
        the judge's, and their squared distances from the `centre`."""
        if of not in self._place:
            self._place[of] = len(self.sums)
            self.sums = np.concatenate([self.sums, self._by_group(of(self._human, self._judge))])
        return self._place[of]

    def ranked(self, drawn: Drawn, size: Floats) -> tuple[Floats, Floats | None]:
        """Concordant less discordant pairs of pairs, and the sum of the products of both ranks, less their means, (R,)
        each, from how often each group was drawn, (G + 1, R), the last never, and the pairs of each sample (R,). None
        for the second where `RankProduct` has to say it."""
        if self._digits == 1 and not self._formed:
            return self._walked(drawn, size)
        return (self._by_form(drawn, size) if self._formed else self._walked(drawn, size)[0]), None

    def _walked(self, drawn: Drawn, size: Floats) -> tuple[Floats, Floats]:
        """`ranked`; the second is not made in several walks."""
        samples, each = len(size), self._digits == 1  # where a digit is a row's
        balance, rows = np.zeros(samples), np.zeros((self.levels, samples))
        for walk, chunks in enumerate(self.walks):
            # How often each digit has occurred in the chunks so far that the next is compared with.
            so_far = np.zeros((self.levels, samples))
            for number, chunk in enumerate(chunks):
                matrices, weights = self._made(walk, number), chunk.weights(drawn, self._room)
                for part in slices(samples, _TOGETHER):
                    before = so_far[:, part]
                    sums = _Sums(chunk, matrices, weights[:, part], self._room)
                    balance[part] += sums.balance(before)
                    if each:
                        rows[:, part] += sums.by_digit(before.sum(axis=0) - size[part] / 2)
                    so_far[:, part] = chunk.on * before + sums.left
        ranks = np.cumsum(so_far, axis=0) - (so_far + size) / 2
        return balance, np.einsum("kr,kr->r", rows, ranks)

    @cached_property
    def _formed(self) -> bool:
        """Whether a quadratic form of groups takes less than walks over cells, in nanoseconds a resample."""
        pairs = len(self._member)
        walks = 0.08 * pairs * self._digits * (2 * self.levels + _BLOCK)
        form = 0.009 * self.groups**2 + 0.0001 * pairs**2 + (2.3 * pairs if self._digits == 1 else 0)
        few = self.groups <= _FORM and np.bincount(self._member).max() <= _ROWS
        return self._weight is None and bool(few) and form < walks

    def _by_form(self, drawn: Drawn, size: Floats) -> Floats:
        order, most, form = self._form
        found, shape = np.zeros(len(size)), (len(form), len(size))
        # What a group adds to the sum over all stays below this.
        kind: Any = np.float32 if 2 * int(drawn.max()) * most * float(size.max()) < WHOLE else np.float64
        counts = memory(self._room, "counts", shape, kind)
        counts[:] = drawn.take(order, axis=0)
        for start in range(0, len(form), _BLOCK_OF_FORM):
            stop = min(start + _BLOCK_OF_FORM, len(form))
            some = memory(self._room, "form", (stop - start, len(form) - start), kind)
            some[:] = form[start:stop, start:]
            sums = memory(self._room, "sums", (stop - start, len(found)), kind)
            np.matmul(some, counts[start:], out=sums)
            sums *= counts[start:stop]
            found += sums.sum(axis=0, dtype=np.float64)
        return found / 2

    @cached_property
    def _form(self) -> tuple[Indices, int, NDArray[Any]]:
        """The groups by their number of pairs, the most that one has, and for two of them, (G, G), twice how many pairs
        of a pair of each are concordant, less the discordant; 0 where the second stands before the first."""
        sizes = np.bincount(self._member)
        order = np.argsort(-sizes, kind="stable")
        # The first pairs of all groups, then the second of those that have one, and so on.
        pairs = np.argsort(np.argsort(order)[self._member], kind="stable")
        number = np.arange(len(pairs)) - np.repeat(np.cumsum(sizes[order]) - sizes[order], sizes[order])
        pairs = pairs[np.argsort(number, kind="stable")]
        sides = [side[pairs].astype(np.min_scalar_type(-int(side.max()) - 1)) for side in self.sides]
        layers = np.bincount(number)
        begins = np.cumsum(layers) - layers
        form = np.zeros((len(sizes), len(sizes)), dtype=np.min_scalar_type(-2 * int(sizes.max()) ** 2))
        for start in range(0, len(sizes), _ROWS):
            slices = [slice(begin + start, begin + layer) for begin, layer in zip(begins, layers, strict=True)]
            slices = [one for one in slices if one.start < one.stop]
            others = [np.concatenate([side[one] for one in slices]) for side in sides]
            edges = np.cumsum([0, *(one.stop - one.start for one in slices)])
            for one in slices:
                some = slice(one.start, min(one.stop, one.start + _ROWS))
                signs = self._signs("row", sides[0][some], others[0])
                signs *= self._signs("column", sides[1][some], others[1])
                for first, last in itertools.pairwise(edges[1:]):
                    signs[:, : last - first] += signs[:, first:last]
                form[start : start + len(signs), start:] += signs[:, : edges[1]]
            corner = form[start : start + _ROWS, start : start + _ROWS]
            corner[:] = 2 * np.triu(corner, 1) + np.diag(np.diag(corner))
            form[start : start + _ROWS, start + _ROWS :] *= 2
        return order, int(sizes.max()), form

    def _signs(self, name: str, first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.int8]:
        """Of all differences, (first, second)."""
        shape = len(first), len(second)
        above, below = (memory(self._room, name + word, shape, np.bool_) for word in (" above", " below"))
        np.greater(first[:, None], second, out=above)
        np.less(first[:, None], second, out=below)
        found: NDArray[np.int8] = above.view(np.int8)
        found -= below.view(np.int8)
        return found

    @cached_property
    def _cells(self) -> tuple[Indices, Indices, Any]:
        """The row and the column of each pair of values that occurs, and how often each group has it, (cells, G)."""
        row, column = self.sides
        rows = int(row.max()) + 1
        key, cell = np.unique(column * rows + row, return_inverse=True)
        weights = tables_by_group(cell, self._member, (len(key) + 1, self.groups + 1), self._weight)
        return key % rows, key // rows, weights.tocsr()

    @cached_property
    def walks(self) -> list[list[_Chunk]]:
        """Two row values compare as the first digit in which their numbers differ: a walk for each digit, over cells
        that agree in the digits before it."""
        return [list(self._chunks(self.levels**place)) for place in reversed(range(self._digits))]

    @cached_property
    def levels(self) -> int:
        """Values of a digit."""
        return int(np.ceil(self._values ** (1 / self._digits) - 1e-9))

    @property
    def _values(self) -> int:
        """Values of the rows."""
        return int(self.sides[0].max()) + 1

    @property
    def _digits(self) -> int:
        return max(1, int(np.ceil(np.log(self._values) / np.log(_LEVELS) - 1e-9)))

    def _chunks(self, unit: int) -> Iterator[_Chunk]:
        row, column, _ = self._cells
        over, digit = np.divmod(row // unit, self.levels)
        order = np.lexsort((column, over))
        # All cells of a column stay in one block, which so begins at a column's first cell.
        run = _starts(over[order])
        place = _starts(over[order], column[order]) - run
        block = np.cumsum(np.diff(place // _BLOCK, prepend=0) + np.diff(run, prepend=0) != 0)
        order = order[np.lexsort((row[order], block))]
        first = np.flatnonzero(np.diff(block, prepend=-1))
        sizes, begins, before = np.diff(first, append=len(block)), over[order][first], -1
        blocks, start = max(1, _CHUNK * len(row) // (_BLOCK * len(self._human))), 0
        while start < len(first):
            # A block of a column with many cells is long, and others with it would be filled up to its length.
            widest = np.maximum.accumulate(sizes[start : start + blocks])
            much = np.arange(1, len(widest) + 1) * widest**2
            stop = start + max(1, int(np.searchsorted(much, 2 * blocks * _BLOCK**2, side="right")))
            cells = order[first[start] : first[start] + int(sizes[start:stop].sum())]
            yield self._chunk(cells, sizes[start:stop], digit, begins[start:stop], before)
            start, before = stop, int(begins[stop - 1])

    def _chunk(self, cells: Indices, sizes: Indices, digit: Indices, begins: Indices, before: int) -> _Chunk:
        blocks, length = len(sizes), int(sizes.max())
        block = np.repeat(np.arange(blocks), sizes)
        place = block * length + np.arange(len(cells)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        row, column, weights = self._cells
        padded = np.full(blocks * length, len(row))
        padded[place] = cells
        columns = np.full((blocks, length), -1, dtype=np.int32)
        digits = np.full((blocks, length), -1, dtype=np.int16)
        columns.flat[place], digits.flat[place] = column[cells], digit[cells]
        by_group = weights[padded]
        some = np.diff(by_group.indptr) > 0
        first = by_group.indptr[:-1][some]
        group, times = np.full(len(padded), by_group.shape[1] - 1), np.zeros((len(padded), 1), dtype=by_group.dtype)
        group[some], times[some, 0] = by_group.indices[first], by_group.data[first]
        shared = np.flatnonzero(np.diff(by_group.indptr) > 1)
        alone = not len(shared) and (times[some] == 1).all()
        by_group.data[first] = 0
        others = np.unique(by_group.indices[by_group.data != 0])
        return _Chunk(
            group=group,
            times=None if alone else times,
            more=None if alone else by_group[shared][:, others],
            shared=shared,
            others=others,
            column=columns,
            digit=digits,
            earlier=np.tri(blocks, k=-1, dtype=np.float32) * (begins[:, None] == begins),
            ends=np.stack([begins == before, begins == begins[-1], np.ones(blocks)]).astype(np.float32),
            on=bool(begins[-1] == before),
        )

    def _made(self, walk: int, number: int) -> _Matrices:
        if (found := self._matrices.get((walk, number))) is not None:
            return found
        chunk, levels = self.walks[walk][number], self.levels
        (blocks, length), level = chunk.digit.shape, np.arange(levels, dtype=np.int16)[:, None]
        digit, column = chunk.digit[:, None, :], chunk.column[:, None, :]
        tables = np.zeros((blocks, 2 * levels + 2, length), dtype=np.float32)
        tables[:, :levels], tables[:, levels], tables[:, levels + 1 : -1] = digit == level, 1, np.sign(digit - level)
        below, equal = (compare(column, chunk.column[:, :, None]) for compare in (np.less, np.equal))
        made = _Matrices(
            tables=tables,
            pairs=(below * np.sign(chunk.digit[:, :, None] - digit)).astype(np.float32),
            ranks=(below + equal / np.float32(2)) if self._digits == 1 else tables[:0],
            digits=np.ascontiguousarray(tables[:, :levels].swapaxes(0, 1)).reshape(levels, -1),
        )
        if len(self._cells[0]) * self._digits * (3 * levels + 2 * _BLOCK) < _KEPT:
            self._matrices[walk, number] = made
        return made


class _Sums:
    """A chunk's cells in R resamples, from how often each occurs, (blocks x length, R)."""

    def __init__(self, chunk: _Chunk, matrices: _Matrices, weight: NDArray[Any], room: Room) -> None:
        self._chunk, self._matrices, self._room = chunk, matrices, room
        self._levels = len(matrices.digits)
        kind: Any = np.float64 if weight.dtype == np.float64 else np.float32
        sums = self._weigh(weight, kind)
        if kind == np.float32 and sums[2, self._levels].max() ** 2 >= WHOLE // 2:
            sums = self._weigh(weight, np.float64)
        self._compared, self.left = sums[0, self._levels + 1 : -1], sums[1, : self._levels]

    def _weigh(self, weight: NDArray[Any], kind: Any) -> NDArray[Any]:
        levels, shape = self._levels, (*self._chunk.digit.shape, weight.shape[1])
        self._weight = memory(self._room, "weight", shape, kind)
        self._weight[:] = weight.reshape(shape)
        tables = self._product("tables", self._matrices.tables, self._weight)
        self._table, self._signs = tables[:, : levels + 1], tables[:, levels + 1 :]
        flat = tables.reshape(len(tables), -1)
        before = self._product("before", self._chunk.earlier, flat[:, : (levels + 1) * shape[-1]])
        self._before = before.reshape(self._table.shape)
        return self._product("sums", self._chunk.ends, flat).reshape(3, *tables.shape[1:])

    def _product(self, name: str, first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
        made = memory(self._room, name, (*first.shape[:-1], second.shape[-1]), second.dtype.type)
        return np.matmul(first.astype(second.dtype, copy=False), second, out=made)

    def _among(self, first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
        made = memory(self._room, "among", first.shape, first.dtype.type)
        return np.asarray(np.multiply(first, second, out=made))

    def balance(self, so_far: Floats) -> Floats:
        """What the chunk adds, (R,), after earlier ones in which each digit occurred `so_far`, (levels, R)."""
        pairs = self._product("pairs", self._matrices.pairs, self._weight)
        pairs *= self._weight
        among = self._all(pairs) + self._all(self._among(self._before, self._signs))
        return np.asarray(among + (self._compared * so_far).sum(axis=0))

    def _all(self, of: NDArray[Any]) -> NDArray[Any]:
        """The sum over all axes but the last."""
        flat = of.reshape(-1, of.shape[-1])
        return np.asarray(np.ones(len(flat), of.dtype) @ flat)

    def by_digit(self, base: Floats) -> Floats:
        """What the chunk adds to the sums of the columns' ranks, less their mean, over the pairs of each digit,
        (levels, R), where these ranks begin at `base` (R,)."""
        rows = self._product("rows", self._matrices.digits, self._ranks().reshape(-1, len(base)))
        among = self._among(self._table, self._before[:, -1:])
        return np.asarray(rows + among.sum(axis=0)[:-1] + base * self.left)

    def _ranks(self) -> NDArray[Any]:
        local = self._product("pairs", self._matrices.ranks, self._weight)
        local *= self._weight
        return local


def _starts(*keys: Indices) -> Indices:
    """Where the run of equal neighbours begins that each place belongs to."""
    new = np.zeros(len(keys[0]), dtype=bool)
    for key in keys:
        new |= np.diff(key, prepend=-1) != 0
    return np.maximum.accumulate(np.where(new, np.arange(len(new)), 0))
