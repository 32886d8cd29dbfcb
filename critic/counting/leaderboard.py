"""Tables over models: one row a model, its scores with intervals, and paired differences from a baseline model.

Every score is a weighted sum of means over verdicts (or one over it), so one bootstrap over groups gives the interval
of each, of each difference, and of the mean over models: all of a table come from the same draws.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import islice, repeat
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from critic.counting.aggregate import Aggregate, Difference, Scale, combine, mean
from critic.counting.arrays import Floats, ratio
from critic.counting.columns import BLOCK
from critic.counting.estimate import Bootstrap, Interval
from critic.counting.judged import scores_of


class Term(Struct, frozen=True):
    """`weight` times the mean of `verdicts` (None: failed) over what was asked, by key with its group of resampling.
    Rows whose scores are not all of the same parts have these by `name`."""

    weight: float
    verdicts: Mapping[Any, float | None]
    asked: Mapping[Any, str]
    scale: Scale
    name: str = ""


class Score(Struct, frozen=True, kw_only=True):
    """A named score of a model: the sum of its parts, or one over it (`inverse`). `of` is how many parts there are
    where some may have no verdict and are left out, of a mean over the others; such a model stands behind those that
    have all. `counts` has the counts and the range where they are not those of the parts."""

    parts: Sequence[Term]
    inverse: bool = False
    of: int = 0
    counts: Aggregate | None = None

    def partly(self, parts: int) -> str:
        """Of how many parts something is, where it is not of all."""
        return f"{parts} of {self.of}" if parts < self.of else ""


class Entry(Struct, frozen=True, kw_only=True):
    """A model's row in a table, its scores by column. `key` names the table and its file, `caption` says what it
    shows. `system` is the model, `judge` its judge, `name` tells rows of one table apart. `folded` tables open on
    demand. Rows that stand `apart`, such as those without the image, come last and are not in the mean over the models.
    `drawn` are pictures of the table, by kind ("lines", "bars", "radar") with the columns that they show, on
    `scale`."""

    key: str
    caption: str
    system: str
    name: str
    scores: Mapping[str, Score]
    drawn: Mapping[str, Sequence[str]] = {}
    scale: Scale = (0, 1)
    folded: bool = False
    apart: bool = False
    judge: str = ""


class Standing(Aggregate, frozen=True, kw_only=True):
    """A score with its 95 % interval over groups, and its difference from another row's on what both have. `infinite`:
    it has no value because it is one over 0."""

    interval: Interval | None
    difference: Difference | None = None
    partly: str = ""
    infinite: bool = False


Standings = dict[str, dict[str, Standing]]
"""By row and column."""

MEAN = "mean of the models"


def score_of(verdicts: Mapping[Any, float | None], asked: Mapping[Any, str], scale: Scale) -> Score:
    """The plain mean of verdicts by key."""
    return Score(parts=[Term(1.0, verdicts, asked, scale)])


def aggregate_of(score: Score) -> Aggregate:
    """A score's value and counts. Of one over a sum no range is known."""
    found = combine([(part.weight, mean(part.verdicts, part.asked, part.scale)) for part in score.parts])
    if score.inverse:
        found = replace(found, value=1 / found.value if found.value else None, low=None, high=None)
    fields = Aggregate.__struct_fields__
    return (
        found
        if score.counts is None
        else Aggregate(**({name: getattr(score.counts, name) for name in fields} | {"value": found.value}))
    )


def _there(part: Term, other: Term | None) -> Iterable[bool]:
    """For what was asked of a part, whether the other has it as well."""
    if other is None:
        return repeat(True, len(part.asked))
    return (key in other.asked and other.verdicts.get(key) is not None for key in part.asked)


class _Sums:
    """Sums and counts of verdicts by group, in the sample and in each resample, asked for once all are known."""

    def __init__(self, groups: Iterable[str]) -> None:
        self._number = dict.fromkeys(groups, 0)
        for number, name in enumerate(names := sorted(self._number)):
            self._number[name] = number
        self._columns: list[Floats] = []
        self._held: dict[Hashable, tuple[int, int]] = {}
        self.draws = Bootstrap(np.arange(len(names)))
        self.totals = np.zeros((1, 0))

    def add(self, part: Term, other: Term | None = None) -> tuple[int, int]:
        """The places of the sum and of the count of a part's verdicts, as far as the `other` has them too; one that
        several scores share is held once."""
        known = id(part.verdicts), id(part.asked), other and (id(other.verdicts), id(other.asked))
        if known in self._held:
            return self._held[known]
        sums, counts = np.zeros((2, len(self._number)))
        given = (
            (self._number[group], value)
            for group, value, there in zip(
                part.asked.values(), scores_of(part.verdicts, part.asked), _there(part, other), strict=True
            )
            if value is not None and there
        )
        while some := list(islice(given, BLOCK)):
            member, values = zip(*some, strict=True)
            np.add.at(sums, np.array(member), np.array(values, dtype=np.float64))
            np.add.at(counts, np.array(member), 1.0)
        self._columns += [sums, counts]
        self._held[known] = len(self._columns) - 2, len(self._columns) - 1
        return self._held[known]

    def close(self) -> None:
        by_group = np.stack(self._columns)
        self._columns.clear()
        self._there = by_group > 0
        self.totals = self.draws.of_groups(by_group)

    def of(self, score: Score, places: Sequence[tuple[int, int]]) -> Floats:
        """The score of the sample and of each resample, shape (1 + R,)."""
        means = [
            part.weight * ratio(self.totals[:, top], self.totals[:, count])
            for part, (top, count) in zip(score.parts, places, strict=True)
        ]
        found = np.sum(means, axis=0) if means else np.full(len(self.totals), np.nan)
        return ratio(np.ones_like(found), found) if score.inverse else found

    def groups(self, counts: Iterable[int]) -> int:
        """How many groups have a verdict in any of these columns of counts."""
        return int(self._there[list(counts)].any(axis=0).sum())


def standings(entries: Sequence[Entry], less: Mapping[str, str] | None = None) -> Standings:
    """The scores of each row by column, and, of two models or more with one row each, their mean by the name MEAN.
    Rows in `less` have their differences from the row that it names; p-values are two-sided and not corrected for the
    number of scores."""
    rows = {one.name: one.scores for one in entries}
    every = [score for scores in rows.values() for score in scores.values()]
    sums = _Sums(group for score in every for part in score.parts for group in part.asked.values())
    places = {
        (row, column): [sums.add(part) for part in score.parts]
        for row, scores in rows.items()
        for column, score in scores.items()
    }
    base = {row: rows[other] for row, other in (less or {}).items() if row != other}
    paired = {
        (row, column): _pairs(sums, score, theirs[column])
        for row, theirs in base.items()
        for column, score in rows[row].items()
        if column in theirs
    }
    if not places:
        return {}
    sums.close()
    found: Standings = {row: {} for row in rows}
    drawn: dict[str, dict[str, Floats]] = {}
    for (row, column), where in places.items():
        score, values = rows[row][column], sums.of(rows[row][column], where)
        drawn.setdefault(column, {})[row] = values
        pair, whole = paired.get((row, column)), aggregate_of(score)
        found[row][column] = Standing(
            **asdict(whole),
            interval=_interval(sums, score, values, [count for _, count in where]),
            difference=None if pair is None else _difference(sums, score, base[row][column], pair),
            partly=score.partly(len(score.parts)),
            infinite=score.inverse and whole.value is None and whole.n > 0,
        )
    together = [one.name for one in entries if not one.apart]
    # Where several judges or ways of judging give a model several rows, it would count as several models.
    if len({one.system for one in entries if not one.apart}) == len(together) > 1:
        found[MEAN] = {}
        for column, by_row in drawn.items():
            if some := [row for row in together if row in by_row]:
                found[MEAN][column] = _mean_of(
                    [found[row][column] for row in some], [by_row[row] for row in some], sums
                )
    return found


def _interval(sums: _Sums, score: Score, values: Floats, counts: Sequence[int]) -> Interval | None:
    """A plain mean is a share of its scale: all of it, or nothing, in every resample has an interval, too."""
    groups = sums.groups(counts)
    if score.inverse or len(score.parts) > 1:
        return sums.draws.interval(values[1:], groups=groups)
    low, high = (score.parts[0].weight * end for end in score.parts[0].scale)
    ends = sums.draws.interval((values[1:] - low) / (high - low), share=True, groups=groups)
    return ends and (low + ends[0] * (high - low), low + ends[1] * (high - low))


class _Pair(NamedTuple):
    """A part of two scores, and where the sums and counts are of what both have in it."""

    mine: Term
    theirs: Term
    place: tuple[int, int]
    other: tuple[int, int]


def _pairs(sums: _Sums, score: Score, base: Score) -> list[_Pair]:
    """The parts that both scores have, by name, or by place where they have no names."""
    theirs = {part.name or place: part for place, part in enumerate(base.parts)}
    both = ((part, theirs.get(part.name or place)) for place, part in enumerate(score.parts))
    return [_Pair(part, other, sums.add(part, other), sums.add(other, part)) for part, other in both if other]


def _over(score: Score, parts: Sequence[Term]) -> Score:
    """A score over some of its parts, which weigh what all weighed."""
    if len(parts) == len(score.parts):
        return score
    more = sum(part.weight for part in score.parts) / sum(part.weight for part in parts) if parts else 0.0
    return replace(score, parts=[replace(part, weight=more * part.weight) for part in parts])


def _difference(sums: _Sums, score: Score, base: Score, pairs: Sequence[_Pair]) -> Difference:
    # A mean over parts is compared on those in which both have something.
    pairs = [pair for pair in pairs if not pair.mine.name or sums.totals[0, pair.place[1]]]
    mine, theirs = _over(score, [pair.mine for pair in pairs]), _over(base, [pair.theirs for pair in pairs])
    values = sums.of(mine, [pair.place for pair in pairs]) - sums.of(theirs, [pair.other for pair in pairs])
    counts = [pair.place[1] for pair in pairs]
    n, groups = int(sums.totals[0, counts].sum()), sums.groups(counts)
    estimate = sums.draws.estimate(values, n, undefined="not defined" if n else "no pairs", null=0.0, groups=groups)
    missing = ("mean", "interval", "p_value") if estimate.value is None else ("interval", "p_value")
    one, other = aggregate_of(score), aggregate_of(base)
    return Difference(
        mean=estimate.value,
        n=n,
        missing=one.asked - n,
        groups=groups,
        low=None if one.low is None or other.high is None else one.low - other.high,
        high=None if one.high is None or other.low is None else one.high - other.low,
        interval=estimate.interval,
        p_value=estimate.p_value,
        undefined=dict.fromkeys(missing, estimate.undefined) if estimate.undefined else {},
        partly=score.partly(len(pairs)),
    )


def _mean_of(parts: Sequence[Standing], drawn: Sequence[Floats], sums: _Sums) -> Standing:
    """Of the models that have the whole score; `partly` says of how many where others lack it or a part of it."""
    known = [number for number, part in enumerate(parts) if part.value is not None and not part.partly]
    held = [parts[number] for number in known]
    interval = None
    if held and all(one.interval for one in held):
        interval = sums.draws.interval(np.mean([drawn[number][1:] for number in known], axis=0))
    return Standing(
        **asdict(combine([(1 / len(held or parts), one) for one in held or parts])),
        interval=interval,
        partly="" if len(held) == len(parts) else f"{len(held)} of {len(parts)}",
    )
