"""The metrics of resamples, from joint tables of counts: no pair is touched again.

Every metric depends on a sample only through its table of counts (human value x judge value), and the table of a
resample is a weighted sum of the groups' tables.
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from msgspec.structs import replace
from scipy import sparse

from critic.counting.resampling import SEED, Floats, Group, Interval, Resamples, group_numbers
from eval_agreement.metrics import (
    METRICS,
    Agreement,
    Indices,
    OfPairs,
    PairCounts,
    Scores,
    agreement,
    paired,
    same_length,
)

_DUST = 1e-9
_CELLS_PER_ROW = 4
"""Tables with more cells than this for each row are slower than the rows themselves."""


def agreement_interval(
    human: Scores,
    judge: Scores,
    group: Group,
    resamples: int | None = None,
    seed: int = SEED,
    weight: Floats | None = None,
) -> dict[str, Interval | None]:
    """95 % intervals of all metrics from a bootstrap over groups (rows that share a question).

    Failed judgments are dropped first; `weight` as in `measured`. None where the metric is undefined on the sample or
    in more than a tenth of the resamples, is the same in all of them, or where there are fewer than FEWEST_GROUPS
    groups. Raises ValueError as `agreement` does.
    """
    people, judged, used = paired(human, judge)
    same_length(human, {"groups": group})
    people, judged = people[used], judged[used]
    draws = Resamples(group_numbers(group)[used], resamples, seed, shared=False)
    if not draws.enough:
        return dict.fromkeys(METRICS)
    found: dict[str, Interval | None] = dict.fromkeys(METRICS)
    for name, values in resampled(people, judged, draws, None if weight is None else weight[used]).items():
        bounds = draws.interval(values, share=METRICS[name].share)
        # A sample in which every resample is alike (a judge that is never off) says nothing of how far it could be.
        if bounds and bounds[1] - bounds[0] >= _DUST and METRICS[name].of_pairs(people, judged) is not None:
            found[name] = bounds
    return found


def measured(human: Scores, judge: Scores, group: Group, weight: Floats | None = None) -> Agreement:
    """`agreement` with its `agreement_interval`. With a `weight` (n,) each row stands for so many: where it is 1 over
    the chance that the row had of being labelled, both are those of all rows (Hájek 1971)."""
    result = agreement(human, judge)
    people, judged, used = paired(human, judge)
    intervals = agreement_interval(human, judge, group, weight=weight)
    estimates = {name: replace(one, interval=intervals[name]) for name, one in result.estimates.items()}
    if weight is not None and used.any():
        values = values_of(people[used], judged[used], weight[used])
        estimates = {name: replace(one, value=values[name]) for name, one in estimates.items()}
    return replace(result, estimates=estimates, groups=len(np.unique(group_numbers(group)[used])))


def values_of(human: Floats, judge: Floats, weight: Floats | None = None) -> dict[str, float | None]:
    """Every metric of one sample, shape (n,) each, by name; None where it is undefined. `weight` as in `measured`."""
    values = {name: metric.of_pairs(human, judge) for name, metric in METRICS.items()}
    if weight is None:
        return values
    counts = _RowCounts(_Pairs(human, judge), weight[:, None] / weight.mean())
    return {name: None if one is None else float(METRICS[name].of_counts(counts)[0]) for name, one in values.items()}


def resampled(human: Floats, judge: Floats, draws: Resamples, weight: Floats | None = None) -> dict[str, Floats]:
    """Every metric of each resample, by name: shape (resamples,) each, NaN where undefined.

    `human` and `judge`, shape (n,), are the scores of the rows that `draws` were made for.
    """
    people, row = np.unique(human, return_inverse=True)
    judged, column = np.unique(judge, return_inverse=True)
    blocks: Iterator[PairCounts]
    if weight is not None or len(people) * len(judged) > _CELLS_PER_ROW * len(row):
        pairs, times = _Pairs(human, judge), 1.0 if weight is None else weight[:, None] / weight.mean()
        blocks = (_RowCounts(pairs, drawn * times) for drawn in draws.weights())
    else:
        tables = draws.tables(row * len(judged) + column, len(people) * len(judged))
        blocks = (TableCounts(people, judged, table) for table in tables)
    found = [[metric.of_counts(block) for metric in METRICS.values()] for block in blocks]
    return {name: np.concatenate(values) for name, values in zip(METRICS, zip(*found, strict=True), strict=True)}


class TableCounts(PairCounts):
    """Samples as tables of counts, shape (K x L, R), over K human and L judge values."""

    def __init__(self, people: Floats, judged: Floats, flat: Floats) -> None:
        self._flat, self._tables = flat, flat.reshape(len(people), len(judged), -1)
        super().__init__(people, judged, self._tables.sum(axis=1), self._tables.sum(axis=0))

    def total(self, of: OfPairs) -> Floats:
        values = of(*np.broadcast_arrays(self.people[:, None], self.judged))
        return np.asarray(values.ravel() @ self._flat)

    @cached_property
    def _short(self) -> tuple[Floats, Floats, Floats]:
        """The tables with the side of fewer values first, and the ranks of that side and of the other: what ranks and
        concordance say is the same with people and judge swapped, and their loops are over the first side."""
        human, judge = self.centred_ranks
        return (self._tables, human, judge) if len(human) <= len(judge) else (self._tables.swapaxes(0, 1), judge, human)

    @cached_property
    def rank_product(self) -> Floats:
        tables, first, second = self._short
        found = np.zeros(len(self.size))
        for table, rank in zip(tables, first, strict=True):
            found += (table * second).sum(axis=0) * rank
        return found

    @cached_property
    def balance(self) -> Floats:
        """Row by row, values ascending. `lead` says for each value of the other side how many pairs of earlier rows lie
        below it, less those above: with a pair at that value these are the concordant and the discordant ones."""
        tables, _, second = self._short
        found, lead = np.zeros(len(self.size)), np.zeros_like(second)
        for table in tables:
            found += (table * lead).sum(axis=0)
            up_to = table.cumsum(axis=0)
            # Below a value lie up_to - table, above it what is left of the row: up_to[-1] - up_to.
            lead += 2 * up_to - table - up_to[-1]
        return found


class _Pairs:
    """The rows of a sample of scores, shape (n,) each: `row` and `column` are the numbers of their values among
    `people` and `judged`, and how often each value occurs is a sum over rows."""

    def __init__(self, human: Floats, judge: Floats) -> None:
        people, row = np.unique(human, return_inverse=True)
        judged, column = np.unique(judge, return_inverse=True)
        self.people, self.row, self.judged, self.column = people, row, judged, column
        ones, order = np.ones(len(row)), np.arange(len(row))
        self.human_of = sparse.csr_array((ones, (row, order)), shape=(len(people), len(row)))
        self.judge_of = sparse.csr_array((ones, (column, order)), shape=(len(judged), len(row)))
        self.steps = _bits(row, column)


class _RowCounts(PairCounts):
    """Samples as weights of rows, shape (n, R), where both sides have many distinct values."""

    def __init__(self, pairs: _Pairs, weight: Floats) -> None:
        self._pairs, self._weight = pairs, weight
        super().__init__(pairs.people, pairs.judged, pairs.human_of @ weight, pairs.judge_of @ weight)

    def total(self, of: OfPairs) -> Floats:
        pairs = self._pairs
        return np.asarray(of(pairs.people[pairs.row], pairs.judged[pairs.column]) @ self._weight)

    @cached_property
    def rank_product(self) -> Floats:
        human_ranks, judge_ranks = self.centred_ranks
        ranks = human_ranks[self._pairs.row], judge_ranks[self._pairs.column]
        return np.asarray(np.einsum("ij,ij,ij->j", self._weight, *ranks))

    @cached_property
    def balance(self) -> Floats:
        total = np.zeros(len(self.size))
        for without, having, before, after, block, block_ends in self._pairs.steps:
            running = np.zeros((len(without) + 1, len(total)))
            np.cumsum(self._weight[without], axis=0, out=running[1:])
            weight = self._weight[having]
            # Of a row's block, from `start` to `end` of the running sum, the rows up to `before` are below it and those
            # from `after` above: (before - start) - (end - after). start + end is the block's, and taken off once.
            total += np.einsum("ij,ij->j", weight, running[before] + running[after])
            start, end = running[block_ends]
            total -= (np.add.reduceat(weight, block, axis=0) * (start + end)).sum(axis=0)
        return total


def _bits(row: Indices, column: Indices) -> list[tuple[Indices, ...]]:
    """How pairs of rows with human value number `row` and judge value number `column` are counted, in one step a bit.

    Two human values compare as the highest bit in which their numbers differ. So for each bit, the rows that agree
    above it form a block, sorted by the judge value; a running sum over those without the bit tells each row with
    the bit how many of them lie below and above. Every two rows meet in exactly one block of exactly one bit, and there
    the one with the bit has the higher human value.

    A step holds the rows without the bit and those having it, for each of the latter the place in the running sum
    before and after its judge value (equal ones are neither concordant nor discordant), and for each block its first
    row of the latter, and its ends in the running sum.
    """
    steps: list[tuple[Indices, ...]] = []
    for bit in range(int(row.max()).bit_length()):
        # One number for block and judge value, the block first: where rows stand when sorted by both.
        place = (row >> (bit + 1)) * (int(column.max()) + 1) + column
        order = np.argsort(place, kind="stable")
        has_bit = (row[order] >> bit & 1).astype(bool)
        without, having = order[~has_bit], order[has_bit]
        if not len(having):
            continue
        before, after = (np.searchsorted(place[without], place[having], side) for side in ("left", "right"))
        blocks, block = np.unique(row[having] >> (bit + 1), return_inverse=True)
        block_ends = np.searchsorted(row[without] >> (bit + 1), [blocks, blocks + 1])
        steps.append((without, having, before, after, np.flatnonzero(np.diff(block, prepend=-1)), block_ends))
    return steps
