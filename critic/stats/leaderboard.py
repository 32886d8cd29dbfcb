"""Tables over models: one row per model, its scores with intervals, and paired differences from a baseline model.

Every score is a weighted sum of means over verdicts, or one over such a sum. One bootstrap over groups therefore
gives the interval of each score, of each difference and of the mean over models: a table uses the same draws
throughout.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from critic.stats.aggregate import Aggregate, Difference, Groups, Scale, Scores, combine, mean
from critic.stats.arrays import Floats, ratio
from critic.stats.estimate import Bootstrap, Interval, Places


class Term(Struct, frozen=True):
    """A weighted mean: `weight` times the mean of `verdicts` over the keys of `asked`.

    - `verdicts`: key -> score on `scale`, None for a failed judgment.
    - `asked`: requested key -> its resampling group.
    - `name`: to compare two scores, their terms are paired by this name; "" pairs them by position.
    """

    weight: float
    verdicts: Scores
    asked: Groups
    scale: Scale
    name: str = ""

    @property
    def judged(self) -> Groups:
        """The keys of `asked` that have a verdict, each with its group."""
        return {key: group for key, group in self.asked.items() if self.verdicts.get(key) is not None}

    def among(self, keys: Container[Any]) -> "Term":
        """Return the term restricted to those of its requested keys that are in `keys`."""
        return replace(self, asked={key: group for key, group in self.asked.items() if key in keys})


class Score(Struct, frozen=True, kw_only=True):
    """A named score of a model: the sum of its parts, or 1 divided by that sum (`inverse`).

    - `of`: the full number of parts if parts without a verdict are left out of the mean, else 0. Models with fewer
      parts rank after the others.
    - `counts`: if given, replaces the counts and the range that follow from the parts.
    - `basis`: what the score covers, such as "6 of 13 tasks (8 questions)"; "" means its number of verdicts.
    """

    parts: Sequence[Term]
    inverse: bool = False
    of: int = 0
    counts: Aggregate | None = None
    basis: str = ""

    @property
    def highest(self) -> float | None:
        """Return the highest possible value, or None for an inverse score."""
        return None if self.inverse else sum(max(part.weight * end for end in part.scale) for part in self.parts)

    def partly(self, parts: int) -> str:
        """Return "2 of 3" if the score has fewer than all parts, else ""."""
        return f"{parts} of {self.of}" if parts < self.of else ""


class LeaderboardRow(Struct, frozen=True):
    """A run's scores, by column, in one table over models.

    - `key`, `caption`: the table's name, also of its file, and its description.
    - `condition`: rows with another condition than "own" come last and are not part of the mean over models.
    - `system`, `name`: the model, and the row's unique name in its table.
    - `judge`: the judge's name; a model is ranked only among the models of the same judge.
    - `collapsed`: the table opens on demand.
    - `charted`: the scores to chart in tables of several rows; None charts the first score.
    - `stated`: the scores, beside the first, for which the headline names the leader.
    - `ranked`: True if the table shows the models' ranks by the first score.
    """

    key: str
    caption: str
    scores: Mapping[str, Score]
    condition: str = "own"
    system: str = ""
    name: str = ""
    judge: str = ""
    collapsed: bool = False
    charted: Sequence[str] | None = None
    stated: Sequence[str] = ()
    ranked: bool = True

    @property
    def apart(self) -> bool:
        """Return True for a row that is neither ranked nor part of the mean over models."""
        return self.condition != "own"


class LeaderboardCell(Aggregate, frozen=True, kw_only=True):
    """A score with its 95 % interval over groups, and its paired difference from the baseline row, if there is one.

    `partly` is "2 of 3" if parts of the score are missing, else "". `infinite` is True for 1 divided by 0; `value` is
    None then.
    """

    interval: Interval | None
    difference: Difference | None = None
    partly: str = ""
    infinite: bool = False


Standings = dict[str, dict[str, LeaderboardCell]]
"""Cells by row name and column."""

MEAN = "mean of the models"


class Leaderboard(Struct, frozen=True, kw_only=True):
    """A table over models: its cells in the page's order, and the rows that they come from.

    - `baseline`: the row that the others are compared with, or None.
    - `places`: the possible ranks by the first score; empty if models are not ranked.
    - `charted`: the scores that are charted. `stated`: those, beside the first, whose leader is named.
    """

    key: str
    caption: str
    columns: list[str]
    entries: dict[str, LeaderboardRow]
    standings: Standings
    baseline: str | None = None
    collapsed: bool = False
    places: Places = {}
    charted: Sequence[str] = ()
    stated: Sequence[str] = ()


def score_of(verdicts: Scores, asked: Groups, scale: Scale) -> Score:
    """Build a score that is the plain mean of `verdicts` over the keys of `asked`, as in Term."""
    return Score(parts=[Term(1.0, verdicts, asked, scale)])


def scores_by_part(verdicts: Scores, parts: Mapping[str, Groups], scale: Scale) -> dict[str, Score]:
    """Build one score per part: the mean of its verdicts. `parts` maps part names to their keys, with groups.

    >>> list(scores_by_part({"q1": 7.0, "q2": 4.0}, {"all": {"q1": "g", "q2": "h"}, "OCR": {"q1": "g"}}, (1, 10)))
    ['all', 'OCR']
    """
    return {part: score_of(verdicts, asked, scale) for part, asked in parts.items()}


def aggregate_of(score: Score) -> Aggregate:
    """Return the Aggregate of a score: its value, its numbers of verdicts, and its range with missing verdicts.

    Counts and range are those in `score.counts`, if given. Otherwise an inverse score has no range (None). Its value is
    None if the sum of its parts is 0.
    """
    total = combine([(part.weight, mean(part.verdicts, part.asked, part.scale)) for part in score.parts])
    if score.inverse:
        total = replace(total, value=1 / total.value if total.value else None, low=None, high=None)
    if score.counts is None:
        return total
    return replace(score.counts, value=total.value)


class _Sums:
    """The scores of a table, computed in the sample and in each bootstrap resample.

    All scores use the same resamples, which are drawn from the groups of all requests in the table.
    """

    def __init__(self, entries: Sequence[LeaderboardRow]) -> None:
        parts = [part for entry in entries for score in entry.scores.values() for part in score.parts]
        groups = {group for part in parts for group in part.asked.values()}
        self._number = {name: number for number, name in enumerate(sorted(groups))}
        self.draws = Bootstrap(np.arange(len(self._number)))

    def _mean(self, part: Term) -> Floats:
        """Return the mean of a term's verdicts in the sample and in each resample, shape (1 + R,); NaN without any."""
        by_group = np.zeros((2, len(self._number)))
        for key, group in part.asked.items():
            if (value := part.verdicts.get(key)) is not None:
                by_group[:, self._number[group]] += value, 1
        total, n = self.draws.resample_group_sums(by_group).T
        return ratio(total, n)

    def values(self, score: Score) -> Floats:
        """Return the score of the sample and of each resample, shape (1 + R,); NaN if a part has no verdict."""
        # A score without parts has no value, not the value 0.
        if not score.parts:
            return np.full(1 + self.draws.resamples, np.nan)
        means = np.stack([self._mean(part) for part in score.parts])
        weights = np.broadcast_to(np.array([[part.weight] for part in score.parts]), means.shape)
        total = np.sum(weights * means, axis=0)
        if score.of:
            # A resample may lack a part, as a model's file may: its mean is over the others.
            here = np.where(np.isnan(means), 0.0, weights)
            total = ratio(np.nansum(here * means, axis=0) * weights.sum(axis=0), here.sum(axis=0))
        return ratio(np.ones_like(total), total) if score.inverse else total


def _count_groups(parts: Iterable[Term]) -> int:
    """Count the groups with a verdict in any of the parts."""
    return len({group for part in parts for group in part.judged.values()})


def standings(entries: Sequence[LeaderboardRow], baseline: str | None = None) -> Standings:
    """Return each row's cells by column, and the mean of two or more models as the row MEAN.

    There is a mean only if each model has one row, and all rows are by the same judge. All rows but `baseline` get
    their differences from it; None computes none. The p-values are two-sided and not corrected for the number of
    scores.
    """
    rows = {entry.name: entry.scores for entry in entries}
    if not any(rows.values()):
        return {}
    sums = _Sums(entries)
    base = rows[baseline] if baseline else {}
    cells: Standings = {row: {} for row in rows}
    drawn: dict[str, dict[str, Floats]] = {}
    for row, scores in rows.items():
        for column, score in scores.items():
            values = drawn.setdefault(column, {})[row] = sums.values(score)
            cells[row][column] = _build_cell(sums, score, values, None if row == baseline else base.get(column))
    models = {entry.name: entry.system for entry in entries if not entry.apart}
    judges = {entry.judge for entry in entries}
    # A model with several rows would count several times, and two judges' scores are on two scales.
    if len(set(models.values())) == len(models) > 1 == len(judges):
        cells[MEAN] = _average_models(cells, drawn, {row: rows[row] for row in models}, sums)
    return cells


def ranks(entries: Sequence[LeaderboardRow], column: str) -> Places:
    """Return the possible places of each row among the rows of the same judge, by the score in `column`.

    Places are left out for a judge with several rows of one model, for rows that stand apart (`LeaderboardRow.apart`),
    and for scores that lack some of their parts.
    """
    sums = _Sums(entries)
    places = Places()
    for judge in dict.fromkeys(entry.judge for entry in entries):
        rows = [entry for entry in entries if entry.judge == judge and not entry.apart and column in entry.scores]
        if len({entry.system for entry in rows}) == len(rows):
            scores = {entry.name: entry.scores[column] for entry in rows}
            drawn = {name: sums.values(score) for name, score in scores.items() if not score.partly(len(score.parts))}
            places |= sums.draws.places({name: values for name, values in drawn.items() if not np.isnan(values[0])})
    return places


def _average_models(
    cells: Standings, drawn: Mapping[str, Mapping[str, Floats]], rows: Mapping[str, Mapping[str, Score]], sums: _Sums
) -> dict[str, LeaderboardCell]:
    """Return the mean over `rows` by column, using only rows with a complete score.

    `drawn`: values in the sample and each resample, by column and row. A cell's `partly` reads "2 of 3" if other rows
    lack the score or a part of it.
    """
    means = {}
    for column, by_row in drawn.items():
        scored = [row for row in rows if row in by_row]
        # A mean over other tasks would rank models by the tasks they lack.
        complete = [row for row in scored if cells[row][column].value is not None and not cells[row][column].partly]
        # Rows that stand apart may have columns that no model in the mean has.
        if not scored:
            continue
        parts = [cells[row][column] for row in complete or scored]
        average = combine([(1 / len(parts), cell) for cell in parts])
        interval = None
        if complete and all(cell.interval for cell in parts):
            values = np.mean([by_row[row] for row in complete], axis=0)
            interval = _estimate_interval(sums, [rows[row][column] for row in complete], values)
        means[column] = LeaderboardCell(
            **asdict(average if complete else replace(average, value=None)),
            interval=interval,
            partly="" if len(complete) == len(scored) else f"{len(complete)} of {len(scored)}",
        )
    return means


def _build_cell(sums: _Sums, score: Score, values: Floats, base: Score | None) -> LeaderboardCell:
    """Build a row's cell from its resampled `values`, with its difference from `base` unless that is None."""
    aggregate = aggregate_of(score)
    return LeaderboardCell(
        **asdict(aggregate),
        interval=_estimate_interval(sums, [score], values),
        difference=None if base is None else _compare(sums, score, base),
        partly=score.partly(len(score.parts)),
        infinite=score.inverse and aggregate.value is None and aggregate.n > 0,
    )


def _estimate_interval(sums: _Sums, scores: Sequence[Score], values: Floats) -> Interval | None:
    """Return the interval of a score, or of the mean of several models' scores; None if there are too few groups.

    `values`: the value in the sample, then in each resample. A plain mean is treated as a share of its scale, so that
    its interval has a width even if every resample is at one end of the scale (`Bootstrap.interval`).
    """
    score = scores[0]
    groups = _count_groups(part for model_score in scores for part in model_score.parts)
    # Only a plain mean lies on one known scale.
    if score.inverse or len(score.parts) > 1:
        return sums.draws.interval(values[1:], groups=groups)
    low, high = (score.parts[0].weight * end for end in score.parts[0].scale)
    ends = sums.draws.interval((values[1:] - low) / (high - low), share=True, groups=groups)
    return ends and (low + ends[0] * (high - low), low + ends[1] * (high - low))


def _restrict(score: Score, parts: Sequence[Term]) -> Score:
    """Return the score over `parts`, with their weights scaled up to the total weight of all its parts."""
    if len(parts) == len(score.parts):
        return replace(score, parts=parts)
    more = sum(part.weight for part in score.parts) / sum(part.weight for part in parts) if parts else 0.0
    return replace(score, parts=[replace(part, weight=more * part.weight) for part in parts])


def _compare(sums: _Sums, score: Score, base: Score) -> Difference:
    """Return `score` minus `base` over the verdicts that both have, part by part.

    Parts are paired by name, or by position without names. A mean over named parts is compared only on parts for which
    both have a verdict.
    """
    of_base = {part.name or position: part for position, part in enumerate(base.parts)}
    mine, theirs = list[Term](), list[Term]()
    for position, part in enumerate(score.parts):
        if base_part := of_base.get(part.name or position):
            both = part.judged.keys() & base_part.judged.keys()
            if both or not part.name:
                # Both sides keep only verdicts of the other, so the difference is paired.
                mine.append(part.among(both))
                theirs.append(base_part.among(both))
    values = sums.values(_restrict(score, mine)) - sums.values(_restrict(base, theirs))
    n, groups = sum(len(part.asked) for part in mine), _count_groups(mine)
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
        partly=score.partly(len(mine)),
    )
