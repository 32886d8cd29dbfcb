"""The metrics of resamples where both sides together have too many values for a table: fractional scores.

Where groups are few, how far any two of them agree is counted once, and concordance is a quadratic form of how often
groups were drawn. Else the pairs are sorted once by the side of more values, the columns. Neighbours of one row value
are one cell, and neighbouring cells are dealt into blocks. A resample is a weight for each cell. Ranks and concordance
within a block are products of its weights with a small matrix that no resample changes; with the blocks before they
follow from how often each value of the other side, the rows, occurs there. So the work is a few numbers a cell and
resample, over hundreds of resamples at once.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from critic.counting.resampling import WHOLE, Drawn, Floats, Room, memory, tables_by_group

Indices = NDArray[np.intp]

_FORM, _ROWS, _BLOCK_OF_FORM = 4096, 64, 128
"""Groups up to which pairs of groups are compared once for all resamples, how many pairs are compared with all others
at a time (groups of more are not), and groups whose sums are made together."""

_UNIT = 2.0**18
"""Three whole numbers between half of this and its negative are exact as digits of one number."""

_BLOCK, _LEVELS = 16, 64
"""Cells of a block, and row values that are told apart in one walk over them."""

_CHUNK, _TOGETHER = 512, 1024
"""Cells and resamples that are weighed at a time, so that a block's stay in the processor's cache."""

_JOINED, _BYTES = 800, 1 << 21
"""Resamples, and groups drawn in them, from which on blocks are not joined."""

_RANKS = 1 << 21
"""Sums of values that are kept at a time."""

_DENSE = 1 << 18
"""Numbers up to which sums over groups are products with plain matrices."""


class _Chunk(NamedTuple):
    """Blocks of cells, filled up to the same length with cells that no group has.

    `times` (blocks x length, others), sparse, is how often each of the groups `others` has each cell. `sums` (blocks,
    k, length) makes of a block's weights: for each cell, how many pairs of lower columns have a lower digit less how
    many have a higher one; the same for each digit after the block; all pairs, twice; and, where a digit is a row, each
    cell's rank in the block, twice. `digits` (levels, blocks x length) says which cells have which digit. `before`
    (blocks, length) is the digit of each cell, or that of none where the blocks before are not compared with it, and
    `fresh` (blocks,) whether the next block is compared with none before this.
    """

    times: Any
    others: Indices
    sums: NDArray[np.int8]
    digits: NDArray[np.bool_]
    before: Indices
    fresh: list[bool]

    def weights(self, drawn: Drawn, room: Room) -> NDArray[Any]:
        """How often each cell occurs, (blocks, length, R), from how often each group was drawn, (G + 1, R)."""
        shape = len(self.others), drawn.shape[1]
        drawn = drawn.take(self.others, axis=0, out=memory(room, "drawn", shape, np.uint8), mode="clip")
        counts = memory(room, "counts", shape, self.times.dtype.type)
        counts[:] = drawn
        return np.asarray((self.times @ counts).reshape(*self.before.shape, -1))


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
        self.centre = float(human.mean()), float(judge.mean())
        squares = [(side - centre) ** 2 for side, centre in zip((human, judge), self.centre, strict=True)]
        first = self.values.toarray() if shape[0] * shape[1] <= _DENSE else np.zeros((0, shape[1]))
        sums = (self._by_group(values) for values in (np.ones(len(row)), human, judge, *squares))
        self.start, self.sums = len(first), np.concatenate([first, *sums], dtype=np.float64)
        self._place: dict[Callable[[Floats, Floats], Floats], int] = {}

    def _by_group(self, values: Floats) -> Floats:
        weighed = values if self._weight is None else values * self._weight
        return np.bincount(self._member, weighed)[None].astype(np.float64)

    def parts(self, drawn: Iterator[Drawn]) -> Iterator[Drawn]:
        """As many resamples at a time as are best weighed together, of blocks of them (r, G)."""
        size = max(_TOGETHER, _RANKS // max(1, self.values.shape[0]))
        for block in joined(drawn):
            yield from (block[start : start + size] for start in range(0, len(block), size))

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
        parts = [slice(start, start + _TOGETHER) for start in range(0, len(size), _TOGETHER)]
        found = [self._walks_of(np.ascontiguousarray(drawn[:, part]), size[part]) for part in parts]
        balance, product = (np.concatenate(both) for both in zip(*found, strict=True))
        return balance, product

    def _walks_of(self, drawn: Drawn, size: Floats) -> tuple[Floats, Floats]:
        levels, most, each = self.levels, float(size.max()), self._digits == 1  # where a digit is a row's
        balance, ranks = np.zeros(len(size)), np.zeros((levels, len(size)))
        for chunks in self.walks:
            # Of the blocks so far: pairs of lower less those of higher digits, for each digit; where the next rank
            # begins, twice, less the mean; and none.
            lead: NDArray[Any] = np.zeros((levels + 2, len(size)))
            lead[levels] = -size
            for chunk in chunks:
                weights = chunk.weights(drawn, self._room)
                # No sum over a block, or over all blocks, is larger than its pairs times all.
                pairs = weights.sum(axis=1)
                block, whole = (_kind(weights, float(part.max()) * most) for part in (pairs, pairs.sum(axis=0)))
                weights, length = weights.astype(block, copy=False), weights.shape[1]
                lead, sums, ones = lead.astype(block, copy=False), chunk.sums.astype(block), np.ones(length, block)
                made = memory(self._room, "made", (sums.shape[1], len(size)), block)
                near = memory(self._room, "near", (length, len(size)), block)
                for weight, matrix, before, fresh in zip(weights, sums, chunk.before, chunk.fresh, strict=True):
                    np.matmul(matrix, weight, out=made)
                    lead.take(before, axis=0, out=near, mode="clip")
                    near += made[:length]
                    near *= weight
                    balance += ones @ near
                    if each:
                        rank = made[length + levels + 1 :]
                        rank += lead[levels]
                        np.multiply(weight, rank, out=weight)
                    if fresh:
                        lead[:levels] = 0
                    lead[:-1] += made[length : length + levels + 1]
                if each:
                    weights = weights.reshape(-1, len(size)).astype(whole, copy=False)
                    ranks += chunk.digits.astype(whole) @ weights
        return balance, np.einsum("kr,kr->r", lead[:levels], ranks) / 4

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
        # A group's sum over others stays below this, and what it adds to the sum over all below that times its draws.
        largest = 2 * most * float(size.max())
        many = 3 if 2 * largest <= _UNIT else 1
        kind: Any = np.float32 if many == 1 and int(drawn.max()) * largest < WHOLE else np.float64
        each = -(-len(size) // many)
        counts = memory(self._room, "counts", (len(form), many * each), kind)
        counts[:, : len(size)], counts[:, len(size) :] = drawn.take(order, axis=0), 0
        times = counts.reshape(len(form), many, each).swapaxes(0, 1)
        # Numbers of three resamples share 64 bits: so they take two thirds of the time that each in 32 bits would.
        together = times[0] if many == 1 else (times[2] * _UNIT + times[1]) * _UNIT + times[0]
        found = np.zeros((many, each))
        for start in range(0, len(form), _BLOCK_OF_FORM):
            stop = min(start + _BLOCK_OF_FORM, len(form))
            sums = form[start:stop, start:].astype(kind) @ together[start:]
            for number, one in enumerate(times):
                rest = np.rint(sums / _UNIT) if many > 1 else 0
                found[number] += ((sums - rest * _UNIT) * one[start:stop]).sum(axis=0, dtype=np.float64)
                sums = rest
        return found.ravel()[: len(size)] / 2

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
        row, column = self.sides
        over, digit = np.divmod(row // unit, self.levels)
        order = np.lexsort((digit, column, over))
        over, digit = over[order], digit[order]
        first, turn = _new(over, column[order]), _new(over, digit)
        column = np.cumsum(first) - 1
        # Neighbouring columns of one and the same digit are as good as one; those of several digits have several cells.
        mixed = (np.bincount(column[first | turn]) > 1)[column]
        starts = turn | (first & (mixed | np.roll(mixed, 1)))
        weight, number = None if self._weight is None else self._weight[order], int(starts.sum())
        shape = number + 1, self.groups
        times = tables_by_group(np.cumsum(starts) - 1, self._member[order], shape, weight).tocsr()
        over, digit, column = (np.append(key[starts], -1) for key in (over, digit, column))
        # All cells of a column stay in one block, which so begins at a column's first cell.
        place = np.maximum.accumulate(np.where(_new(column[:-1]), np.arange(number), 0))
        begins = np.append(np.flatnonzero(_new(place // _BLOCK)), number)
        blocks, start, before = max(1, _CHUNK // _BLOCK), 0, -1
        while start < len(begins) - 1:
            # A block of a column with many cells is long, and others with it would be filled up to its length.
            sizes = np.diff(begins[start : start + blocks + 1])
            much = np.arange(1, len(sizes) + 1) * np.maximum.accumulate(sizes) ** 2
            sizes = sizes[: max(1, int(np.searchsorted(much, 2 * blocks * _BLOCK**2, side="right")))]
            within = np.arange(int(sizes.max()))
            cells = np.where(within < sizes[:, None], begins[start : start + len(sizes), None] + within, number)
            yield self._chunk(times, cells, over[cells], digit[cells], column[cells], before)
            start, before = start + len(sizes), int(over[begins[start + len(sizes)] - 1])

    def _chunk(self, times: Any, cells: Indices, over: Indices, digit: Indices, column: Indices, before: int) -> _Chunk:
        last = over.max(axis=1)
        earlier = np.append(before, last[:-1])
        by_group = times[cells.ravel()]
        others, by_group.indices = np.unique(by_group.indices, return_inverse=True)
        by_group.resize(cells.size, len(others))
        one, other = (slice(None), slice(None), None), (slice(None), None, slice(None))
        below = (column[other] < column[one]) & (over[other] == over[one])
        levels = np.arange(self.levels + 1)[:, None]
        signs = np.sign(levels - digit[other]) * (over == last[:, None])[other]
        signs[:, -1] *= 2
        made = [below * np.sign(digit[one] - digit[other]), signs]
        if self._digits == 1:
            made.append(2 * below + (column[other] == column[one]))
        return _Chunk(
            times=by_group,
            others=others,
            sums=np.concatenate(made, axis=1, dtype=np.int8, casting="unsafe"),
            digits=digit.ravel() == levels[:-1],
            before=np.where(over == earlier[:, None], digit, self.levels + 1),
            fresh=(last != earlier).tolist(),
        )


def joined(drawn: Iterator[Drawn]) -> Iterator[Drawn]:
    """Blocks of resamples (r, G), small ones together."""
    held = list[Drawn]()
    for block in drawn:
        if not held and (len(block) >= _JOINED or block.size >= _BYTES):
            yield block
            continue
        held.append(block.copy())
        if sum(map(len, held)) >= _JOINED or sum(one.size for one in held) >= _BYTES:
            yield np.concatenate(held)
            held.clear()
    if held:
        yield np.concatenate(held)


def _kind(weights: NDArray[Any], most: float) -> Any:
    """What sums up to so many are made in."""
    return np.float32 if weights.dtype == np.float32 and most < WHOLE else np.float64


def _new(*keys: Indices) -> NDArray[np.bool_]:
    """Where the neighbour before differs."""
    return np.asarray(np.any([np.diff(key, prepend=-1) != 0 for key in keys], axis=0))
