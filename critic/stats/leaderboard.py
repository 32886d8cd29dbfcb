"""Tables over models: one row a model, its scores with intervals, and paired differences from a baseline model.

Every score is a weighted sum of means over verdicts (or one over it), so one bootstrap over groups gives the interval
of each, of each difference, and of the mean over models: all of a table come from the same draws.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from critic.stats.aggregate import Aggregate, Difference, Scale, combine, mean
from critic.stats.arrays import Floats, ratio
from critic.stats.estimate import Bootstrap, Interval, Places


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


class LeaderboardRow(Struct, frozen=True, kw_only=True):
    """A run's scores in a table over models, by column. `key` names the table and its file, `caption` says what it
    shows. `system` is the model, `name` tells rows of one table apart. `collapsed` tables open on demand. Rows under
    another condition than the model's own, such as without the image, come last and are not in the mean over models.
    `charted` scores are drawn, of a table of several rows: the first, unless others are named. `ranked` tables say
    which models are tied by the first."""

    key: str
    caption: str
    scores: Mapping[str, Score]
    condition: str = "own"
    system: str = ""
    name: str = ""
    collapsed: bool = False
    charted: Sequence[str] | None = None
    ranked: bool = True

    @property
    def apart(self) -> bool:
        return self.condition != "own"


class LeaderboardCell(Aggregate, frozen=True, kw_only=True):
    """A score with its 95 % interval over groups, and its difference from another row's on what both have. `infinite`:
    it has no value because it is one over 0."""

    interval: Interval | None
    difference: Difference | None = None
    partly: str = ""
    infinite: bool = False


Standings = dict[str, dict[str, LeaderboardCell]]
"""By row and column."""

MEAN = "mean of the models"


def score_of(verdicts: Mapping[Any, float | None], asked: Mapping[Any, str], scale: Scale) -> Score:
    """The plain mean of verdicts by key."""
    return Score(parts=[Term(1.0, verdicts, asked, scale)])


def aggregate_of(score: Score) -> Aggregate:
    """A score's value and counts. Of one over a sum no range is known."""
    total = combine([(part.weight, mean(part.verdicts, part.asked, part.scale)) for part in score.parts])
    if score.inverse:
        total = replace(total, value=1 / total.value if total.value else None, low=None, high=None)
    if score.counts is None:
        return total
    return Aggregate(**{name: getattr(score.counts, name) for name in total.__struct_fields__} | {"value": total.value})


class _Column(NamedTuple):
    """A part's verdicts added up: their sum and number in the sample and in each resample, shape (1 + R,) each, and
    which groups have one, shape (G,)."""

    total: Floats
    n: Floats
    there: NDArray[np.bool_]


class _Sums:
    """The parts of a table's scores, added up by group, on the same resamples of all its groups."""

    def __init__(self, groups: Iterable[str]) -> None:
        self._number = {name: number for number, name in enumerate(sorted(set(groups)))}
        self._known: dict[Hashable, _Column] = {}
        self.draws = Bootstrap(np.arange(len(self._number)))

    def of(self, part: Term, other: Term | None = None) -> _Column:
        """A part's verdicts, as far as the `other` has them too; those that several scores share are added up once."""
        key = id(part.verdicts), id(part.asked), other and (id(other.verdicts), id(other.asked))
        if key not in self._known:
            self._known[key] = self._added_up(part, other)
        return self._known[key]

    def _added_up(self, part: Term, other: Term | None) -> _Column:
        by_group = np.zeros((2, len(self._number)))
        for key, group in part.asked.items():
            value = part.verdicts.get(key)
            if value is not None and (other is None or (key in other.asked and other.verdicts.get(key) is not None)):
                by_group[:, self._number[group]] += value, 1
        total, n = self.draws.resample_group_sums(by_group).T
        return _Column(total, n, by_group[1] > 0)

    def values(self, score: Score, others: Sequence[Term] = ()) -> Floats:
        """The score of the sample and of each resample, shape (1 + R,), NaN where a part has no verdict; with `others`
        of what these have as well."""
        columns = [self.of(part, other) for part, other in zip_longest(score.parts, others)]
        if not columns:
            return np.full(1 + self.draws.resamples, np.nan)
        means = (part.weight * ratio(column.total, column.n) for part, column in zip(score.parts, columns, strict=True))
        total = np.sum(list(means), axis=0)
        return ratio(np.ones_like(total), total) if score.inverse else total

    def groups(self, columns: Sequence[_Column]) -> int:
        """How many groups have a verdict in any of the columns."""
        return int(np.any([column.there for column in columns], axis=0).sum())


def standings(entries: Sequence[LeaderboardRow], baseline: str | None = None) -> Standings:
    """The scores of each row by column, and, of two models or more with one row each, their mean by the name MEAN.
    With a `baseline` the other rows have their differences from that row; p-values are two-sided and not corrected for
    the number of scores."""
    rows = {entry.name: entry.scores for entry in entries}
    if not any(rows.values()):
        return {}
    sums = _Sums(_groups(entries))
    base = rows[baseline] if baseline else {}
    cells: Standings = {row: {} for row in rows}
    drawn: dict[str, dict[str, Floats]] = {}
    for row, scores in rows.items():
        for column, score in scores.items():
            values = drawn.setdefault(column, {})[row] = sums.values(score)
            cells[row][column] = _standing(sums, score, values, None if row == baseline else base.get(column))
    together = {entry.name: entry.system for entry in entries if not entry.apart}
    # Where several judges or ways of judging give a model several rows, it would count as several models.
    if len(set(together.values())) == len(together) > 1:
        cells[MEAN] = _means(cells, drawn, {row: rows[row] for row in together}, sums)
    return cells


def ranks(entries: Sequence[LeaderboardRow], column: str) -> Places:
    """The places of the models by a score, resampled together; none where a model has several rows, as by several
    judges. Rows that stand apart, and scores over some of their parts, have no place."""
    rows = [entry for entry in entries if not entry.apart and column in entry.scores]
    if len({entry.system for entry in rows}) < len(rows):
        return {}
    sums, scores = _Sums(_groups(entries)), {entry.name: entry.scores[column] for entry in rows}
    drawn = {name: sums.values(score) for name, score in scores.items() if not score.partly(len(score.parts))}
    return sums.draws.places({name: values[1:] for name, values in drawn.items() if not np.isnan(values[0])})


def _groups(entries: Iterable[LeaderboardRow]) -> Iterator[str]:
    for entry in entries:
        for score in entry.scores.values():
            for part in score.parts:
                yield from part.asked.values()


def _means(
    cells: Standings, drawn: Mapping[str, Mapping[str, Floats]], rows: Mapping[str, Mapping[str, Score]], sums: _Sums
) -> dict[str, LeaderboardCell]:
    """The mean of some rows by column, of those that have the whole score; `partly` says of how many where others lack
    it or a part of it."""
    means = {}
    for column, by_row in drawn.items():
        known = [row for row in rows if row in by_row]
        complete = [row for row in known if cells[row][column].value is not None and not cells[row][column].partly]
        if not known:
            continue
        parts = [cells[row][column] for row in complete or known]
        whole = combine([(1 / len(parts), cell) for cell in parts])
        interval = None
        if complete and all(cell.interval for cell in parts):
            values = np.mean([by_row[row] for row in complete], axis=0)
            interval = _interval(sums, [rows[row][column] for row in complete], values)
        means[column] = LeaderboardCell(
            **asdict(whole if complete else replace(whole, value=None)),
            interval=interval,
            partly="" if len(complete) == len(known) else f"{len(complete)} of {len(known)}",
        )
    return means


def _standing(sums: _Sums, score: Score, values: Floats, base: Score | None) -> LeaderboardCell:
    whole = aggregate_of(score)
    return LeaderboardCell(
        **asdict(whole),
        interval=_interval(sums, [score], values),
        difference=None if base is None else _difference(sums, score, base),
        partly=score.partly(len(score.parts)),
        infinite=score.inverse and whole.value is None and whole.n > 0,
    )


def _interval(sums: _Sums, scores: Sequence[Score], values: Floats) -> Interval | None:
    """The interval of a score, or of several models' mean. A plain mean is a share of its scale: all of it, or nothing,
    in every resample has an interval, too."""
    score = scores[0]
    groups = sums.groups([sums.of(part) for model_score in scores for part in model_score.parts])
    if score.inverse or len(score.parts) > 1:
        return sums.draws.interval(values[1:], groups=groups)
    low, high = (score.parts[0].weight * end for end in score.parts[0].scale)
    ends = sums.draws.interval((values[1:] - low) / (high - low), share=True, groups=groups)
    return ends and (low + ends[0] * (high - low), low + ends[1] * (high - low))


def _over(score: Score, parts: Sequence[Term]) -> Score:
    """A score over some of its parts, which weigh what all weighed."""
    if len(parts) == len(score.parts):
        return score
    more = sum(part.weight for part in score.parts) / sum(part.weight for part in parts) if parts else 0.0
    return replace(score, parts=[replace(part, weight=more * part.weight) for part in parts])


def _difference(sums: _Sums, score: Score, base: Score) -> Difference:
    """A score less another on the verdicts that both have, part by part: by name, or by position where they have no
    names. A mean over parts is compared on those in which both have something."""
    of_base = {part.name or position: part for position, part in enumerate(base.parts)}
    both = [(part, of_base.get(part.name or position)) for position, part in enumerate(score.parts)]
    pairs = [
        (part, base_part) for part, base_part in both if base_part and (not part.name or sums.of(part, base_part).n[0])
    ]
    mine, theirs = [part for part, _ in pairs], [base_part for _, base_part in pairs]
    values = sums.values(_over(score, mine), theirs) - sums.values(_over(base, theirs), mine)
    columns = [sums.of(part, base_part) for part, base_part in pairs]
    n, groups = sum(int(column.n[0]) for column in columns), sums.groups(columns)
    estimate = sums.draws.estimate(values, n, undefined="not defined" if n else "no pairs", null=0.0, groups=groups)
    own, baseline = aggregate_of(score), aggregate_of(base)
    return Difference(
        mean=estimate.value,
        n=n,
        missing=own.asked - n,
        groups=groups,
        low=None if own.low is None or baseline.high is None else own.low - baseline.high,
        high=None if own.high is None or baseline.low is None else own.high - baseline.low,
        interval=estimate.interval,
        p_value=estimate.p_value,
        undefined=estimate.undefined,
        partly=score.partly(len(pairs)),
    )
