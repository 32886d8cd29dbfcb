"""Doubts about the files of an audit: columns that are copies, reversed or on another scale, labels and ids that leak.

With such files, every figure of an audit is computed correctly and still says nothing about the judge. Doubts are
therefore reported before all figures.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct

from critic.records import RATINGS
from critic.stats.arrays import Floats, distinct, group_numbers
from critic.stats.verdicts import LABELS
from eval_agreement.measures.preferences import Preferences
from eval_agreement.sample import AuditRequest, RatedSample
from eval_agreement.sentences import say

DOUBTS = ("equal", "rater", "reversed", "scale", "labels", "ids", "unfit")
"""Names of doubts, which --accept takes. "unfit": labels that cannot test a judge (page/decision.py)."""

FEWEST_ROWS = 10
"""Fewest rows that two columns are compared on."""

_SAME, _FOLLOWS, _RISES = 0.98, 0.999, 0.8
"""A column is a copy of another if their share of equal values is at least _SAME, or Pearson's r at least _FOLLOWS. An
r of _RISES is enough if each value of the other column goes with one value of this column, as after rounding."""

_REVERSED, _UNRELATED = -0.4, 0.15
"""Largest Pearson's r with people at which a judge is reversed, and largest |r| at which two columns are unrelated."""

_LEAK, _MOST_PARTS = 0.95, 0.25
"""A part of the ids, such as "good" in "good-12", leaks the labels if it explains at least the share _LEAK of their
variance. It must have few different values: at most _MOST_PARTS times the number of ids."""

_OTHER_HALF, _FEWEST_THERE = 0.1, 5
"""If people (or the judge) have at least this share and this number of their scores in one half of the scale, the judge
(or people) should have scores there too."""

_MIDDLE = (RATINGS[0] + RATINGS[-1]) / 2


class Doubt(Struct, frozen=True, kw_only=True):
    """A reason to distrust every figure on a judge, as `text`. `name`: one of DOUBTS, for --accept NAME."""

    name: str
    text: str


def find_score_doubts(sample: RatedSample, _: AuditRequest) -> dict[str, list[Doubt]]:
    """Return, by judge name, the doubts about each judge of scores."""
    labelled = sample.labelled
    names = sorted(set[str]().union(*labelled.raters))
    raters = {}
    for name in names if len(names) > 1 else ():
        raters[name] = np.array([rated.get(name, np.nan) for rated in labelled.raters])
    doubts = find_doubts(labelled.ids, labelled.human, raters, labelled.judges)
    for name, scores in labelled.judges.items():
        doubts[name] += _doubt_scale(name, scores, labelled.human)
    return doubts


def find_verdict_doubts(sample: Preferences, _: AuditRequest) -> dict[str, list[Doubt]]:
    """Return, by judge name, the doubts about each judge of preferences or of yes/no verdicts."""
    columns = {}
    for name, codes in {"": sample.verdict, **sample.raters, **sample.verdicts}.items():
        columns[name] = np.where(codes < LABELS, codes, np.nan)
    raters = {name: columns[name] for name in sample.raters}
    return find_doubts(sample.ids, columns[""], raters, {name: columns[name] for name in sample.verdicts})


def find_doubts(
    ids: Sequence[str], people: Floats, raters: Mapping[str, Floats], judges: Mapping[str, Floats]
) -> dict[str, list[Doubt]]:
    """Compare the columns of people and judges, and return the doubts about each judge, by judge name.

    Columns hold scores or codes of verdicts, (n,), NaN if missing. `ids`: the id of each row. `people`: the mean or
    majority of all people. `raters`: the column of each person; empty if there is only one. `judges`: the column of
    each judge.

    >>> scores = np.array([1.0, 5.0, 9.0] * 4)
    >>> [doubt.name for doubt in find_doubts(["x"] * 12, scores, {}, {"mine": 10 - scores})["mine"]]
    ['reversed']
    """
    leak = _find_leak(ids, people)
    doubts: dict[str, list[Doubt]] = {}
    for name, scores in judges.items():
        others = {other: column for other, column in judges.items() if other != name}
        doubts[name] = []
        for other, column in {"people": people, **raters, **others}.items():
            # One copy is enough: if people all agree, a copy of them repeats each rater.
            if copied := _find_copy(scores, column):
                key = "rater" if other in raters else "equal"
                doubts[name].append(Doubt(name=key, text=say(f"doubt_{key}", who=name, other=other, how=copied)))
                break
        r = _correlate(scores, people)
        # A correlation of few rows may be that low by chance.
        if r <= _REVERSED and r * np.sqrt(len(people)) <= -2:
            doubts[name].append(Doubt(name="reversed", text=say("doubt_reversed", who=name, r=r)))
        for other, column in others.items():
            between, beside = _correlate(scores, column), _correlate(column, people)
            # Two judges that see the same in answers do not err alike by chance.
            if between >= -_REVERSED and max(abs(r), abs(beside)) <= _UNRELATED:
                text = say("doubt_labels", who=name, other=other, between=between, r=r)
                doubts[name].append(Doubt(name="labels", text=text))
                break
        if leak:
            doubts[name].append(Doubt(name="ids", text=leak))
    return doubts


def _find_copy(first: Floats, second: Floats) -> str:
    """Return a phrase that says how the column `first` copies `second`, or "" if it does not.

    Values may be equal, or on a stretched scale, or rounded.
    """
    both = ~np.isnan(first + second)
    equal, n = int(np.isclose(first, second)[both].sum()), int(both.sum())
    # Columns of one value are equal without being copies.
    if n < FEWEST_ROWS or np.ptp(second[both]) == 0:
        return ""
    if equal >= _SAME * n:
        return say("copy_equal", equal=equal, n=n)
    r, levels = _correlate(first, second), len(np.unique(second[both]))
    pairs, _ = distinct(first[both], second[both])
    rounded = r >= _RISES and len(pairs) == levels and n >= 3 * levels
    return say("copy_stretched", r=r, n=n) if r >= _FOLLOWS or rounded else ""


def _correlate(first: Floats, second: Floats) -> float:
    """Return Pearson's r on the rows with both values.

    Returns 0 if a column is constant, or with fewer than FEWEST_ROWS such rows.
    """
    both = ~np.isnan(first + second)
    first, second = first[both], second[both]
    if len(first) < FEWEST_ROWS or not (np.ptp(first) and np.ptp(second)):
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def _doubt_scale(name: str, scores: Floats, people: Floats) -> Iterator[Doubt]:
    """Yield a doubt for each half of the scale that the judge never uses although people do, or the other way round."""
    for who, option, column, other in ((name, "--judge-scale", scores, people), ("people", "--scale", people, scores)):
        # A single value is no scale.
        varies = len(np.unique(column[~np.isnan(column)])) > 1
        for sign, half in ((1, "upper"), (-1, "lower")):
            used, there = (sign * (values - _MIDDLE) > 0 for values in (column, other))
            if varies and not used.any() and there.sum() >= max(_FEWEST_THERE, _OTHER_HALF * len(there)):
                text = say("doubt_scale", who=who, half=half, option=option, share=there.mean())
                yield Doubt(name="scale", text=text)


def _find_leak(ids: Sequence[str], people: Floats) -> str:
    """Return a sentence on the part of the ids that reveals people's scores, as "good" in "good-12"; "" if none does.

    A part is a run of letters or of digits, counted from the start or the end of the id.
    """
    rated = np.flatnonzero(~np.isnan(people))
    parts = [re.findall(r"[^\W\d_]+|\d+", ids[row]) for row in rated]
    scores = people[rated]
    spread = float(((scores - scores.mean()) ** 2).sum()) if len(rated) >= FEWEST_ROWS else 0.0
    shared = min(map(len, parts), default=0) if spread else 0
    # From both ends, since the parts in between may be more or fewer.
    for position in range(-shared, shared):
        values = group_numbers([part[position] for part in parts])
        means = np.bincount(values, scores) / np.bincount(values)
        # With a value for nearly every row each would explain its own label.
        if len(means) <= _MOST_PARTS * len(rated):
            explained = 1 - float(((scores - means[values]) ** 2).sum()) / spread
            if explained >= _LEAK:
                return say("doubt_ids", example=ids[rated[0]], part=parts[0][position], explained=explained)
    return ""
