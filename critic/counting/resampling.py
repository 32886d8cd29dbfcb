"""The bootstrap over groups: where every interval and every p-value of the project comes from.

Rows that share a question or an image are not independent, so whole groups are drawn with replacement. Intervals are
percentile intervals, widened for few groups (Hesterberg 2015, "What Teachers Should Know About the Bootstrap", §3.2).

There are two p-values, both two-sided. `Resamples.p_value` is the interval read backwards: it goes with every statistic
that can be resampled and never contradicts its interval; audits give it. `sign_flip_p` is for means of paired
differences alone, where changing the signs of whole groups is exact if differences are as likely as their opposites;
tables of scores give it.

SciPy, which the rest of `critic` does without, may stand in this folder: it is installed with the project, and a stage
is loaded when it is run, so that `critic --help` does not wait for it. `scipy.special` holds the functions behind
`scipy.stats` and loads in a third of the time.
"""

import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray
from scipy import sparse, special

Floats = NDArray[np.float64]
Drawn = NDArray[np.uint8]
Codes = NDArray[Any]
"""Whole numbers from 0 of the smallest kind that holds them."""
Interval = tuple[float, float]
Group = Sequence[Hashable] | NDArray[np.generic]
"""The group of each row: names, or whole numbers."""

LEVEL = 0.95
"""Coverage of every interval."""

RESAMPLES, FLIPS, SEED = 2000, 10_000, 0
"""Draws behind every interval, random signs behind every `sign_flip_p`, and their seed, unless asked otherwise."""

MANY_GROUPS, RESAMPLES_OF_MANY = 20_000, 500
"""Above so many groups intervals are so narrow that fewer resamples show their ends as well."""

FEWEST_GROUPS = 5
"""Below this many groups a bootstrap interval is far too narrow, and none is given."""

FEWEST_TO_DECIDE = 20
"""Below this many groups an interval still misses the truth too often to decide on it: a bound that should be wrong in
2.5 % of audits was wrong in 5 to 11 % with five to ten groups (simulation)."""

_DEFINED = 0.9
_COUNTS = 400_000
"""Numbers drawn at once: small enough for the processor's cache, large enough for NumPy. The draws depend on it."""

_DRAWS, _BYTES, _CHUNK = 256, 1 << 25, 4096
"""Resamples of a block at most, its bytes at most, and groups that are summed at a time."""

_KEPT = 1 << 24
"""Bytes up to which memory is used again."""

_SPARSE = 4
"""Whole numbers up to so many times the rows are made consecutive without sorting."""

_FULL, WHOLE = 0.03, 1 << 24
"""The share of filled cells above which a plain product is faster than a sparse one, and where whole numbers end to be
exact in 32 bits."""

_ROWS = 1 << 14
"""Rows that are looked at together."""

_TOGETHER = 1 << 18
"""Rows whose groups are counted together."""

_SIGNS = 4_000_000
"""Numbers of a block of random signs."""


class Estimate(Struct, frozen=True, kw_only=True):
    """A number over `n` cases with its 95 % interval. `undefined` says why the value is None or, with a value, why the
    interval is. `p_value` is two-sided, of "it is 0", where that is a question."""

    value: float | None = None
    n: int
    interval: Interval | None = None
    p_value: float | None = None
    undefined: str | None = None


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


def tables_by_group(
    cell: NDArray[Any], member: NDArray[Any], shape: tuple[int, int], weight: Floats | None = None
) -> Any:
    """How many rows of each group (or how much `weight`) fall into each cell: sparse, of shape (cells, G)."""
    parts = list(parts_by_group(cell, member, shape, weight))
    return parts[0] if len(parts) == 1 else sparse.hstack(parts, format="csc")


def parts_by_group(
    cell: NDArray[Any], member: NDArray[Any], shape: tuple[int, int], weight: Floats | None = None
) -> Iterator[Any]:
    """`tables_by_group` of neighbouring groups at a time: making one takes several times its memory."""
    # Ones are kept in 32 bits, half of the memory of as many rows.
    kind = np.float32 if weight is None and len(cell) < WHOLE else np.float64
    narrow = np.int32 if max(len(cell), *shape) <= np.iinfo(np.int32).max else np.int64
    step = max(1, shape[1] * _TOGETHER // max(len(cell), 1) // _CHUNK) * _CHUNK
    for low in range(0, max(shape[1], 1), step):
        high = min(low + step, shape[1])
        if high - low == shape[1]:
            rows: Any = slice(None)
        else:
            found, start = [], 0
            for part in blocks(member):
                found.append(start + np.flatnonzero((part >= low) & (part < high)))
                start += len(part)
            rows = np.concatenate(found)
        places = cell[rows].astype(narrow), member[rows].astype(narrow) - low
        times = np.ones(len(places[0]), dtype=kind) if weight is None else weight[rows]
        yield sparse.coo_array((times, places), shape=(shape[0], high - low)).tocsc()


def held(parts: Iterable[Any]) -> list[Any]:
    """`parts_by_group` that count rows, in 5 bytes a filled cell: most counts have room in one byte."""
    found = []
    for part in parts:
        if part.data.max(initial=0) <= np.iinfo(np.uint8).max:
            part.data = part.data.astype(np.uint8)
        found.append(part)
    return found


def totals_of(drawn: Drawn, by_group: Any, columns: Any = None) -> Floats:
    """The sums of what the drawn groups add, (r, G) and (k, G), or a list of its parts, -> (r, k): exact where those
    are whole. With `columns`, shape (k, cells), groups add `columns @ by_group`, which is made of some at a time."""
    wholes = by_group if isinstance(by_group, list) else [by_group]
    found = np.zeros((len(drawn), (wholes[0] if columns is None else columns).shape[0]))
    most, group = int(drawn.max(initial=0)), 0
    for some in (whole[:, start : start + _CHUNK] for whole in wholes for start in range(0, whole.shape[1], _CHUNK)):
        times, group = drawn[:, group : group + some.shape[1]], group + some.shape[1]
        part = some if columns is None else (columns @ some).tocsc()
        kind = np.float32 if part.dtype != np.float64 and part.sum() * most < WHOLE else np.float64
        if isinstance(part, np.ndarray):
            found += times.astype(kind) @ part.T
        elif part.nnz > _FULL * part.shape[0] * part.shape[1]:
            found += times.astype(kind) @ part.toarray().T.astype(kind)
        else:
            found += (part.astype(kind) @ np.ascontiguousarray(times.T, dtype=kind)).T
    return found


Room = dict[Any, NDArray[Any]]
"""Memory for products, used again: getting it anew each time would take longer than many of them."""


def memory(room: Room, name: str, shape: tuple[int, ...], kind: Any) -> NDArray[Any]:
    """An array for a name; those of one name share their memory."""
    if (found := room.get((name, shape, kind))) is None:
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        if name not in room or room[name].nbytes < size:
            room[name] = np.empty(size, dtype=np.uint8)
        found = room[name, shape, kind] = room[name][:size].view(kind).reshape(shape)
    return found


def slices(samples: int, most: int) -> list[slice]:
    """Equal parts of no more than so many."""
    edges = np.linspace(0, samples, -(-samples // most) + 1).astype(int)
    return [slice(start, stop) for start, stop in itertools.pairwise(edges)]


class Resamples:
    """`resamples` draws of G groups out of the G groups of `group` (one name a row), with replacement.

    Every call draws the same, so statistics of one object can be subtracted resample by resample; only
    with `shared=False` may `tables` take a shorter way. Memory does not grow with the number of resamples
    beyond the statistics that are asked for.
    """

    def __init__(self, group: Group, resamples: int | None = None, seed: int = SEED, *, shared: bool = True) -> None:
        self.member = group_numbers(group)
        self.shared = shared
        self.groups = int(self.member.max()) + 1 if len(self.member) else 0
        usual = RESAMPLES if self.groups <= MANY_GROUPS else RESAMPLES_OF_MANY
        self.resamples = usual if resamples is None else resamples
        self.seed = seed

    @property
    def enough(self) -> bool:
        """Whether there are groups enough for an interval."""
        return self.groups >= FEWEST_GROUPS

    def drawn(self) -> Iterator[Drawn]:
        """How often each group was drawn, in blocks of shape (r, G) that hold `resamples` rows together: no group is
        drawn 256 times, for it takes as many groups, of which all draws but one in 256! leave some other. A block holds
        until the next one is asked for."""
        random = np.random.default_rng(self.seed)
        small = np.uint16 if self.groups <= np.iinfo(np.uint16).max else np.int64
        each, most = max(1, _COUNTS // max(self.groups, 1)), max(1, min(_DRAWS, _BYTES // max(self.groups, 1)))
        together = max(1, most // each) * each
        # Once an array as large was given back, the C library keeps what is smaller for the next ones: else each block
        # of numbers here, and of what is made of them, would be new memory, and its first use as slow as a sum over it.
        np.empty(_KEPT, dtype=np.uint8)
        held = np.empty((min(together, self.resamples), self.groups), dtype=np.uint8)
        for start in range(0, self.resamples, together):
            found = held[: self.resamples - start]
            for first in range(0, len(found), each):
                size = min(each, len(found) - first)
                drawn = random.integers(self.groups, size=(size, self.groups), dtype=small)
                found[first : first + size] = self._counted(drawn)
            yield found

    def _counted(self, drawn: NDArray[Any]) -> Drawn:
        """How often each group occurs in each row of (r, G) numbers."""
        ends = np.arange(len(drawn) + 1) * drawn.shape[1]
        table = sparse.csr_array((np.ones(drawn.size, np.uint8), drawn.ravel(), ends), shape=drawn.shape)
        return np.asarray(table.toarray())

    def counts(self) -> Iterator[NDArray[np.float32]]:
        """`drawn`, with the groups first: blocks of shape (G, r)."""
        for block in self.drawn():
            yield np.ascontiguousarray(block.T, dtype=np.float32)

    def weights(self) -> Iterator[Floats]:
        """How often each row was drawn, in blocks of shape (n, r)."""
        width = max(1, _COUNTS // max(len(self.member), 1))
        for count in self.counts():
            for start in range(0, count.shape[1], width):
                yield count[self.member, start : start + width].astype(np.float64)

    def tables(self, cell: NDArray[np.intp], cells: int, weight: Floats | None = None) -> Iterator[Floats]:
        """How many rows of each resample fall into each of `cells` cells, in blocks of shape (cells, r).

        `cell` is the cell of each row; with a `weight` (n,) each row counts for so many. Without one, where every row
        is its own group and draws need not be shared, the counts are drawn from the multinomial distribution that they
        follow, and no row is touched at all.
        """
        if self.groups == len(self.member) and not self.shared and weight is None:
            random = np.random.default_rng(self.seed)
            share = counted(cell, cells) / len(cell)
            block = max(1, _COUNTS // cells)
            for start in range(0, self.resamples, block):
                drawn = random.multinomial(len(cell), share, size=min(block, self.resamples - start))
                yield np.ascontiguousarray(drawn.T, dtype=np.float64)
            return
        parts = parts_by_group(cell, self.member, (cells, self.groups), weight)
        by_group = held(parts) if weight is None else list(parts)
        width = max(1, _COUNTS // cells)
        for times in self.drawn():
            found = totals_of(times, by_group)
            for start in range(0, len(found), width):
                yield np.ascontiguousarray(found[start : start + width].T)

    def totals(self, values: Floats) -> Floats:
        """The sum of the rows' values in each resample: shape (n, k) in, (resamples, k) out."""
        rows = values.reshape(len(self.member), -1)
        return self.sums(np.stack([np.bincount(self.member, column, minlength=self.groups) for column in rows.T]))

    def sums(self, by_group: Any, columns: Any = None) -> Floats:
        """`totals`, from what each group adds: shape (k, G), NumPy's or SciPy's by columns, or a list of parts, and
        `columns` as `totals_of` has them."""
        found = [totals_of(block, by_group, columns) for block in self.drawn()]
        return np.concatenate(found or [totals_of(np.zeros((0, self.groups), dtype=np.uint8), by_group, columns)])

    def interval(self, values: Floats, *, share: bool = False, groups: int | None = None) -> Interval | None:
        """The 95 % interval of a statistic from its value in each resample (NaN where it is undefined there), which
        is about `groups` of them where it is not about all.

        Resamples without a value are left out; None where they are more than a tenth, or with fewer than
        FEWEST_GROUPS groups. A `share` that is 0 or 1 in every resample gets the exact interval of G trials
        (Clopper and Pearson 1934), because no resample can show what the sample does not hold.
        """
        defined, groups = values[~np.isnan(values)], groups or self.groups
        if groups < FEWEST_GROUPS or len(defined) < _DEFINED * self.resamples:
            return None
        wide = special.stdtrit(groups - 1, (1 + LEVEL) / 2) * np.sqrt(groups / (groups - 1))
        tail = special.ndtr(-wide)
        low, high = np.quantile(defined, [tail, 1 - tail])
        if share and low == high and low in (0.0, 1.0):
            furthest = ((1 - LEVEL) / 2) ** (1 / groups)
            return (furthest, 1.0) if low else (0.0, 1 - furthest)
        return float(low), float(high)

    def p_value(self, values: Floats, null: float = 0.0, groups: int | None = None) -> float | None:
        """Two-sided p of "the statistic is `null`": 1 minus the level at which `interval` just excludes it.

        None where `interval` is. At least about 2 / resamples, because no resample says more.
        """
        defined, groups = values[~np.isnan(values)], groups or self.groups
        if groups < FEWEST_GROUPS or len(defined) < _DEFINED * self.resamples:
            return None
        beyond = min(int((defined <= null).sum()), int((defined >= null).sum()))
        tail = min(0.5, (beyond + 1) / (len(defined) + 1))
        narrow = special.ndtri(tail) * np.sqrt((groups - 1) / groups)
        return float(2 * special.stdtr(groups - 1, narrow))


def sign_flip_p(sums: Floats) -> float:
    """Two-sided p of "the differences are as likely as their opposites", from each group's sum, shape (G,): the share
    of random signs whose total is at least as far from 0 (Phipson and Smyth 2010: the data count as one draw)."""
    random = np.random.default_rng(SEED)
    block = max(1, _SIGNS // len(sums))
    # Totals that are equal but for rounding count as equal.
    bar = abs(float(sums.sum())) * (1 - 1e-12) - 1e-12 * float(np.abs(sums).sum())
    beyond = 0
    for start in range(0, FLIPS, block):
        signs = random.choice((-1.0, 1.0), size=(min(block, FLIPS - start), len(sums)))
        beyond += int((np.abs(signs @ sums) >= bar).sum())
    return (beyond + 1) / (FLIPS + 1)


def correlation_p(r_squared: float, n: int) -> float | None:
    """Two-sided p of "the correlation is 0" by Student's t, the n pairs taken for independent; None with fewer than
    three."""
    if n < 3:
        return None
    t = np.inf if r_squared >= 1 else np.sqrt((n - 2) * r_squared / (1 - r_squared))
    return float(2 * special.stdtr(n - 2, -t))


class Fit(Struct, frozen=True, kw_only=True):
    """How much of one number the best line through another explains: `r_squared` 0..1, the `slope` of that line, and
    the two-sided `p_value` of its being 0 (Student's t, turns taken for independent; needs three), over `n` turns;
    `missing` lack one of the two. What is None is so exactly because of what `undefined` says."""

    n: int
    missing: int
    r_squared: float | None
    slope: float | None
    p_value: float | None = None
    undefined: dict[str, str] = field(default_factory=dict)


def fit(pairs: Iterable[tuple[float | None, float | None]]) -> Fit:
    """The least-squares line of the second number on the first."""
    given = list(pairs)
    kept = np.array([pair for pair in given if None not in pair], dtype=np.float64).reshape(-1, 2)
    n, missing = len(kept), len(given) - len(kept)
    constant = [name for name, column in zip(("first", "second"), kept.T, strict=True) if n and np.ptp(column) == 0]
    if n < 2 or constant:
        reason = f"the {constant[0]} does not vary" if n > 1 else "needs two turns"
        undefined = dict.fromkeys(("r_squared", "slope"), reason)
        return Fit(n=n, missing=missing, r_squared=None, slope=None, undefined=undefined)
    x, y = (column - column.mean() for column in kept.T)
    r_squared = min(1.0, float((x @ y) ** 2 / ((x @ x) * (y @ y))))
    slope = float(x @ y / (x @ x))
    return Fit(n=n, missing=missing, r_squared=r_squared, slope=slope, p_value=correlation_p(r_squared, n))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjustment; None stays None and is not counted."""
    known = sorted((p, number) for number, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, number) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * p))
        adjusted[number] = highest
    return adjusted
