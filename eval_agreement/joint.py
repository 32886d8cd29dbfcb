"""The metrics of resamples, from joint tables of counts: no pair is touched again.

Every metric depends on a sample only through its table of counts (human value x judge value), and the table of a
resample is a weighted sum of the groups' tables.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray
from scipy import sparse

from critic.counting.resampling import SEED, Group, Interval, Resamples, group_numbers, ratio
from eval_agreement.metrics import (
    FUZZY_RANGES,
    METRICS,
    SHARES,
    STRICT_RANGES,
    Agreement,
    Floats,
    Scores,
    agreement,
    bands,
    paired,
)

_DUST = 1e-9
_CELLS_PER_ROW = 4
"""Tables with more cells than this for each row are slower than the rows themselves."""


def agreement_interval(
    human: Scores, judge: Scores, group: Group, resamples: int | None = None, seed: int = SEED
) -> dict[str, Interval | None]:
    """95 % intervals of all metrics from a bootstrap over groups (rows that share a question).

    Failed judgments are dropped first. None where the metric is undefined on the sample or in more than a
    tenth of the resamples, is the same in all of them, or where there are fewer than FEWEST_GROUPS groups.
    Raises ValueError as `agreement` does.
    """
    people, judged, used = paired(human, judge)
    if len(group) != len(people):
        raise ValueError(f"{len(people)} human scores but {len(group)} groups")
    people, judged = people[used], judged[used]
    draws = Resamples(group_numbers(group)[used], resamples, seed, shared=False)
    if not draws.enough:
        return dict.fromkeys(METRICS)
    values = resampled(people, judged, draws)
    return {
        name: _bounds(draws, column, share=name in SHARES) if metric(people, judged) is not None else None
        for (name, metric), column in zip(METRICS.items(), values, strict=True)
    }


def _bounds(draws: Resamples, values: Floats, *, share: bool) -> Interval | None:
    """A sample in which every resample is alike (a judge that is never off) says nothing of how far it could be."""
    bounds = draws.interval(values, share=share)
    return None if bounds and bounds[1] - bounds[0] < _DUST else bounds


def measured(human: Scores, judge: Scores, group: Group) -> Agreement:
    """`agreement` with its `agreement_interval`."""
    result = agreement(human, judge)
    judged = ~np.isnan(paired(human, judge)[1])
    groups = len(np.unique(group_numbers(group)[judged]))
    return replace(result, interval=agreement_interval(human, judge, group), groups=groups)


def resampled(human: Floats, judge: Floats, draws: Resamples) -> Floats:
    """The metrics of each resample, shape (7, resamples) in the order of METRICS; NaN where undefined."""
    if len(np.unique(human)) > len(np.unique(judge)):
        human, judge = judge, human  # every metric is symmetric, and tables want the short side first
    people, row = np.unique(human, return_inverse=True)
    judged, column = np.unique(judge, return_inverse=True)
    if len(people) * len(judged) > _CELLS_PER_ROW * len(row):
        return np.concatenate(list(_by_rows(people, row, judged, column, draws)), axis=1)
    blocks = draws.tables(row * len(judged) + column, len(people) * len(judged))
    return np.concatenate([of_tables(block, people, judged) for block in blocks], axis=1)


def of_tables(flat: Floats, people: Floats, judged: Floats) -> Floats:
    """The metrics, shape (7, R), of tables of counts, shape (K x L, R), over K human and L judge values."""
    tables = flat.reshape(len(people), len(judged), -1)
    rows, columns = tables.sum(axis=1), tables.sum(axis=0)
    human_ranks, judge_ranks = _centred_ranks(rows), _centred_ranks(columns)
    product, balance = np.zeros((2, flat.shape[1]))
    before = np.zeros_like(columns)
    for table, rank in zip(tables, human_ranks, strict=True):
        product += (table * judge_ranks).sum(axis=0) * rank
        balance += (table * before).sum(axis=0)
        up_to = table.cumsum(axis=0)
        before += 2 * up_to - table - up_to[-1]
    return _metrics(
        _Sums(
            human=rows,
            judge=columns,
            cells=_cell_values(people[:, None], judged).reshape(5, -1) @ flat,
            ranks=np.stack([product, (rows * human_ranks**2).sum(axis=0), (columns * judge_ranks**2).sum(axis=0)]),
            balance=balance,
        ),
        people,
        judged,
    )


def _by_rows(
    people: Floats, row: NDArray[np.intp], judged: Floats, column: NDArray[np.intp], draws: Resamples
) -> Iterator[Floats]:
    """The metrics in blocks of shape (7, r), where both sides have many distinct values.

    `row` and `column` are the numbers of each pair's values among `people` and `judged`.
    """
    cell_values, steps = _cell_values(people[row], judged[column]), _bits(row, column)
    pairs = np.arange(len(row))
    human_of = sparse.csr_array((np.ones(len(row)), (row, pairs)), shape=(len(people), len(row)))
    judge_of = sparse.csr_array((np.ones(len(row)), (column, pairs)), shape=(len(judged), len(row)))
    for weight in draws.weights():
        human, judge = human_of @ weight, judge_of @ weight
        human_ranks, judge_ranks = _centred_ranks(human), _centred_ranks(judge)
        product = np.einsum("ij,ij,ij->j", weight, human_ranks[row], judge_ranks[column])
        sums = _Sums(
            human=human,
            judge=judge,
            cells=cell_values @ weight,
            ranks=np.stack(
                [
                    product,
                    np.einsum("ij,ij,ij->j", human, human_ranks, human_ranks),
                    np.einsum("ij,ij,ij->j", judge, judge_ranks, judge_ranks),
                ]
            ),
            balance=_balance(steps, weight),
        )
        yield _metrics(sums, people, judged)


class _Sums(Struct):
    """What the metrics of R resamples need: counts of each human value (K, R) and judge value (L, R), and sums over
    pairs: of the rows of `_cell_values` (5, R), of centred ranks (their product and both squares: 3, R), and
    concordant less discordant pairs (R)."""

    human: Floats
    judge: Floats
    cells: Floats
    ranks: Floats
    balance: Floats


def _cell_values(human: Floats, judge: Floats) -> Floats:
    """Of pairs: distance, same fuzzy range, same strict range, product, squared distance."""
    distance = np.abs(human - judge)
    same = [bands(human, ranges) == bands(judge, ranges) for ranges in (FUZZY_RANGES, STRICT_RANGES)]
    return np.stack([distance, *same, human * judge, distance**2])


def _centred_ranks(counts: Floats) -> Floats:
    """Average ranks less their mean, shape (K, R), of K ascending values that occur `counts` times."""
    return np.asarray(np.cumsum(counts, axis=0) - (counts + counts.sum(axis=0)) / 2)


def _metrics(sums: _Sums, people: Floats, judged: Floats) -> Floats:
    size = sums.human.sum(axis=0)
    mae, fuzzy, strict, product, square = sums.cells / size
    human_mean, human_variance = _mean_and_variance(people, sums.human)
    judge_mean, judge_variance = _mean_and_variance(judged, sums.judge)
    varied = ((sums.human > 0).sum(axis=0) > 1) & ((sums.judge > 0).sum(axis=0) > 1)
    rank_product, human_ranks, judge_ranks = sums.ranks
    untied = (size**2 - (sums.human**2).sum(axis=0)) * (size**2 - (sums.judge**2).sum(axis=0))
    correlations = [
        ratio(product - human_mean * judge_mean, np.sqrt(human_variance * judge_variance)),
        ratio(rank_product, np.sqrt(human_ranks * judge_ranks)),
        ratio(2 * sums.balance, np.sqrt(untied)),
    ]
    defined = [np.where(varied, np.clip(value, -1, 1), np.nan) for value in correlations]
    expected = human_variance + judge_variance + (human_mean - judge_mean) ** 2
    return np.stack([mae, *defined, fuzzy, strict, 1 - ratio(square, expected)])


def _mean_and_variance(values: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Of each column of `counts` (K, R); the variance from distances, so that nothing cancels."""
    size = counts.sum(axis=0)
    mean = values @ counts / size
    return mean, ((values[:, None] - mean) ** 2 * counts).sum(axis=0) / size


class _Bit(Struct):
    """One step of `_balance`: which rows have the bit and which not, and for each row with it the place in the
    running sum over those without it before and after its judge value, and the same of its block."""

    without: NDArray[np.intp]
    having: NDArray[np.intp]
    before: NDArray[np.intp]
    after: NDArray[np.intp]
    block: NDArray[np.intp]
    block_ends: NDArray[np.intp]


def _bits(row: NDArray[np.intp], column: NDArray[np.intp]) -> list[_Bit]:
    """How `_balance` counts the pairs of rows with human value number `row` and judge value number `column`.

    Two human values compare as the highest bit in which their numbers differ. So for each bit, the rows that agree
    above it form a block, sorted by the judge value; a running sum over those without the bit tells each row with
    the bit how many of them lie below and above.
    """
    steps = []
    for bit in range(int(row.max()).bit_length()):
        place = (row >> (bit + 1)) * (int(column.max()) + 1) + column
        order = np.argsort(place, kind="stable")
        has_bit = (row[order] >> bit & 1).astype(bool)
        without, having = order[~has_bit], order[has_bit]
        blocks, block = np.unique(row[having] >> (bit + 1), return_inverse=True)
        steps.append(
            _Bit(
                without=without,
                having=having,
                before=np.searchsorted(place[without], place[having]),
                after=np.searchsorted(place[without], place[having], "right"),
                block=np.flatnonzero(np.diff(block, prepend=-1)),
                block_ends=np.searchsorted(row[without] >> (bit + 1), [blocks, blocks + 1]),
            )
        )
    return [step for step in steps if len(step.having)]


def _balance(steps: Sequence[_Bit], weight: Floats) -> Floats:
    """Concordant less discordant pairs, shape (R,), of rows that occur `weight` (n, R) times."""
    total = np.zeros(weight.shape[1])
    for step in steps:
        running = np.zeros((len(step.without) + 1, len(total)))
        np.cumsum(weight[step.without], axis=0, out=running[1:])
        having = weight[step.having]
        total += np.einsum("ij,ij->j", having, running[step.before] + running[step.after])
        start, end = running[step.block_ends]
        total -= (np.add.reduceat(having, step.block, axis=0) * (start + end)).sum(axis=0)
    return total
