"""Pairwise preferences: how far judges agree with people on which of two answers, a or b, is better, and their biases.

Tables of agreement among judges and people: ConvBench, tables 3-7.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations, product

import numpy as np
from msgspec import Struct, field

from critic.counting.arrays import Floats, Group, group_numbers
from critic.counting.estimate import Estimate
from critic.counting.verdicts import (
    LABELS,
    TIE,
    UNASKED,
    A,
    B,
    Codes,
    Integers,
    VerdictAgreement,
    VerdictStatistic,
    both_orders,
    breakdown,
    estimates,
    failures,
    labelled,
    majority,
    rows_of,
    share_of,
    verdict_agreement,
)
from eval_agreement.preference_bias import (
    LengthPreference,
    PairedDifference,
    PositionBias,
    length_preference,
    paired_difference,
    position_bias,
)

PEOPLE, LONGER, CONSTANT = "people", "longer", "constant"
"""Names of people's verdict and of the trivial judges in an audit."""


class Preferences(Struct, frozen=True, kw_only=True, eq=False):
    """Pairs of answers, with verdicts of people and of judges: arrays of codes (see `codes`) over n items.

    - `people[rater]`, shape (n,): A, TIE, B, or UNASKED where the rater did not see the item.
    - `judges[name]`, shape (n, 2): the verdict with a shown first, and with b shown first; or shape (n,) where the
      order is unknown or does not matter to the judge. FAILED is a failed judgment, UNASKED no judgment.
    - `parts[property]`, n names: what agreement is broken down by (category, turn, lang).
    - `length_a`, `length_b`, shape (n,): lengths of the answers, in any one unit.
    - `yes_or_no`: each item is one answer, and a verdict is yes (A) or no (B).
    - `weight`, shape (n,): 1 over the chance that an item had of being labelled (NaN: not labelled); None where all
      had the same.
    - `notes` say what was left out on reading.

    Raises ValueError where a name would stand for two scorers.
    """

    ids: Sequence[str]
    group: Group
    people: dict[str, Codes]
    judges: dict[str, Codes]
    parts: dict[str, Sequence[str]] = field(default_factory=dict)
    length_a: Floats | None = None
    length_b: Floats | None = None
    yes_or_no: bool = False
    weight: Floats | None = None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        raters, names = set(self.people), set(self.judges)
        ambiguous = names & {PEOPLE, LONGER, CONSTANT, *raters} | (raters & {PEOPLE} if len(raters) > 1 else set())
        if ambiguous:
            raise ValueError(f"{min(ambiguous)!r} would name two scorers; rename the rater or judge")


def longer(length_a: Floats, length_b: Floats) -> Codes:
    """The trivial judge: it prefers the longer answer, and says tie where both are equally long."""
    return np.select([length_a > length_b, length_a < length_b], [A, B], default=TIE).astype(np.int8)


class PairAgreement(Struct, frozen=True, kw_only=True):
    """The share (0..1) of equal verdicts of two scorers, over the items on which both have one; of the items that both
    were asked about, at least one of them `failed` on so many."""

    first: str
    second: str
    failed: int
    equal: Estimate


class Matrix(Struct, frozen=True, kw_only=True):
    """Agreement of every pair of scorers: over all items, and `by[property][value]`."""

    overall: list[PairAgreement]
    by: dict[str, dict[str, list[PairAgreement]]] = field(default_factory=dict)


def matrix(
    scorers: Mapping[str, Codes],
    group: Group,
    parts: Mapping[str, Sequence[str]] | None = None,
    raters: Collection[str] = (),
    weight: Floats | None = None,
) -> Matrix:
    """Agreement among any judges and people (ConvBench, tables 3-7), columns of verdicts of shape (n,) by name; without
    the pairs of PEOPLE and one of the `raters` that they are. `weight` as in `Preferences`: of two judges items may
    count that nobody labelled, and then each counts once."""
    members = group_numbers(group)

    def of(rows: Integers) -> list[PairAgreement]:
        columns = {scorer: column[rows] for scorer, column in scorers.items()}
        pairs = _pairs(columns, members[rows], None if weight is None else weight[rows])
        return [pair for pair in pairs if pair.first != PEOPLE or pair.second not in raters]

    by = {name: {value: of(rows) for value, rows in rows_of(part).items()} for name, part in (parts or {}).items()}
    return Matrix(overall=of(np.arange(len(members))), by=by)


def _pairs(scorers: Mapping[str, Codes], group: Integers, weight: Floats | None) -> list[PairAgreement]:
    """Every pair in the order of names. Pairs with verdicts on the same items share their resamples."""
    pairs = list(combinations(scorers, 2))
    alike: dict[bytes, list[tuple[str, str]]] = {}
    for first, second in pairs:
        alike.setdefault(np.packbits(labelled(scorers[first], scorers[second])).tobytes(), []).append((first, second))
    equal: dict[tuple[str, str], Estimate] = {}
    for members in alike.values():
        rows = labelled(*(scorers[name] for name in members[0]))
        columns = {name: scorers[name][rows] for pair in members for name in pair}
        # The number of each row's combination of labels, 0..P-1, and for each combination the place of one row.
        cell, place = np.zeros(int(rows.sum()), dtype=np.intp), np.zeros(0, dtype=np.intp)
        for column in columns.values():
            _, place, cell = np.unique(cell * LABELS + column, return_index=True, return_inverse=True)
        same = {(first, second): columns[first][place] == columns[second][place] for first, second in members}
        every = np.ones(len(place), dtype=bool)
        wanted = {
            pair: VerdictStatistic(share_of(cells, every), "no items", share=True) for pair, cells in same.items()
        }
        times = None if weight is None or np.isnan(weight[rows]).any() else weight[rows]
        equal |= estimates(cell, len(place), group[rows], wanted, times)
    return [
        PairAgreement(first=one, second=other, failed=failures(scorers[one], scorers[other]), equal=equal[one, other])
        for one, other in pairs
    ]


def raters_agreement(raters: Sequence[Codes], group: Group) -> VerdictAgreement | None:
    """Every two raters with each other, pooled: what a judge that is like one of them would reach against them, by
    `against_raters`. n counts pairs of verdicts. None where no item has two raters. The order of the raters does not
    matter.
    """
    pairs = list(combinations(raters, 2))
    first = [one for one, _ in pairs]
    return _pooled(first, [other for _, other in pairs], group, alike=True) if pairs else None


def against_raters(raters: Sequence[Codes], judge: Codes, group: Group) -> VerdictAgreement | None:
    """A judge's verdicts, shape (n,), with each single rater's, pooled: n counts (item, rater) pairs."""
    return _pooled(raters, [judge] * len(raters), group)


def _pooled(
    first: Sequence[Codes], second: Sequence[Codes], group: Group, *, alike: bool = False
) -> VerdictAgreement | None:
    one, other = np.concatenate(first), np.concatenate(second)
    asked = (one != UNASKED) & (other != UNASKED)
    members = np.tile(group_numbers(group), len(first))
    found = verdict_agreement(one[asked], other[asked], members[asked], alike=alike)
    return found if found.n else None


class PreferenceAudit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that is known of judges' preferences, over `items` of which `rated` have a verdict of people.

    - `people_ties`: the share of ties in people's verdict (the `majority` of `raters` raters).
    - `agreement[judge]` with people's verdict; `baselines` of trivial judges: always people's commonest verdict and,
      where lengths are known, the longer answer.
    - `ceiling`: `raters_agreement`, and `as_a_rater[judge]`: `against_raters`; None and empty with one rater.
    - `matrix`: among people's verdict (named "people"), the raters where there are several, and the judges; without the
      pairs of people and a rater, who is one of them.
    - `position[judge]` of judges whose order is known, `length[judge]` where lengths are known.
    - `differences` of every two judges, and of every judge and the trivial one.
    - `by[judge][property][value]`: agreement on a part of the items.
    - `yes_or_no`: the verdicts are yes (a) and no (b), not preferences.
    - `weighted`: `people_ties`, `agreement`, `baselines`, `matrix`, `differences` and `by` are those of all items that
      labels were drawn from, with known chances; the rest are those of the labelled ones.
    - `notes` say what was left out on reading.
    """

    items: int
    rated: int
    groups: int
    raters: int
    people_ties: Estimate
    agreement: dict[str, VerdictAgreement]
    baselines: dict[str, VerdictAgreement]
    ceiling: VerdictAgreement | None
    as_a_rater: dict[str, VerdictAgreement]
    matrix: Matrix
    position: dict[str, PositionBias]
    length: dict[str, LengthPreference]
    differences: list[PairedDifference]
    by: dict[str, dict[str, dict[str, VerdictAgreement]]]
    yes_or_no: bool = False
    weighted: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def things(self) -> str:
        """What verdicts are about, in a word."""
        return "items" if self.yes_or_no else "pairs"


def preference_audit(sample: Preferences) -> PreferenceAudit:
    """Everything a report says about pairwise preferences. Judges asked in both orders count by `both_orders`."""
    group = group_numbers(sample.group)
    people = majority(list(sample.people.values()))
    judges = {name: both_orders(orders) for name, orders in sample.judges.items()}
    rated = people != UNASKED
    weight = None if sample.weight is None else sample.weight[rated]
    commonest = np.bincount(people[rated], weight, minlength=LABELS).argmax()
    baselines: dict[str, Codes] = {CONSTANT: np.full(len(people), commonest, dtype=np.int8)}
    length: dict[str, LengthPreference] = {}
    if sample.length_a is not None and sample.length_b is not None:
        baselines[LONGER] = longer(sample.length_a, sample.length_b)
        for name, judge in judges.items():
            length[name] = length_preference(people, judge, sample.length_a, sample.length_b, group)
    verdicts = {**judges, **baselines}
    several = sample.people if len(sample.people) > 1 else {}
    raters = list(sample.people.values())
    alike = {name: against_raters(raters, judge, group) for name, judge in judges.items()} if several else {}
    ties = VerdictStatistic(share_of(np.arange(LABELS) == TIE, np.ones(LABELS, dtype=bool)), "no items", share=True)
    return PreferenceAudit(
        items=len(people),
        rated=int(rated.sum()),
        yes_or_no=sample.yes_or_no,
        weighted=weight is not None,
        notes=sample.notes,
        groups=len(np.unique(group[rated])),
        raters=len(sample.people),
        people_ties=estimates(people[rated].astype(np.intp), LABELS, group[rated], {"": ties}, weight)[""],
        agreement={name: verdict_agreement(people, judge, group, sample.weight) for name, judge in judges.items()},
        baselines={name: verdict_agreement(people, judge, group, sample.weight) for name, judge in baselines.items()},
        ceiling=raters_agreement(raters, group),
        as_a_rater={name: found for name, found in alike.items() if found},
        matrix=matrix({PEOPLE: people, **several, **judges}, group, sample.parts, several, sample.weight),
        position={name: position_bias(orders, group) for name, orders in sample.judges.items() if orders.ndim == 2},
        length=length,
        differences=[
            paired_difference(people, verdicts[one], verdicts[other], group, (one, other), sample.weight)
            for one, other in [*combinations(judges, 2), *product(judges, baselines)]
        ],
        by={
            name: {
                part: breakdown(people, judge, group, values, sample.weight) for part, values in sample.parts.items()
            }
            for name, judge in judges.items()
        },
    )
