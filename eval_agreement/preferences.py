"""Pairwise preferences: how far judges agree with people on which of two answers, a or b, is better, and their biases.

Tables of agreement among judges and people: ConvBench, tables 3-7.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np
from msgspec import Struct, field

from critic.counting.resampling import Estimate, Floats, Group, group_numbers
from critic.counting.verdicts import (
    FAILED,
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

    Raises ValueError where ids repeat, shapes or codes differ from this, or names are ambiguous.
    """

    ids: Sequence[str]
    group: Group
    people: dict[str, Codes]
    judges: dict[str, Codes]
    parts: dict[str, Sequence[str]] = field(default_factory=dict)
    length_a: Floats | None = None
    length_b: Floats | None = None
    yes_or_no: bool = False

    def __post_init__(self) -> None:
        n = len(self.ids)
        if len(set(self.ids)) != n:
            raise ValueError("an id comes twice")
        for name, part in [("groups", self.group), *self.parts.items()]:
            if len(part) != n:
                raise ValueError(f"{n} ids but {len(part)} {name}")
        for name, verdicts in self.people.items():
            _check(name, verdicts, [(n,)], (A, TIE, B, UNASKED))
        for name, verdicts in self.judges.items():
            _check(name, verdicts, [(n,), (n, 2)], (A, TIE, B, FAILED, UNASKED))
        _check_names(self.people, self.judges)
        _check_lengths(self.length_a, self.length_b, n)


def _check(name: str, verdicts: Codes, shapes: Sequence[tuple[int, ...]], allowed: Sequence[int]) -> None:
    if verdicts.shape not in shapes:
        raise ValueError(f"the verdicts of {name} have shape {verdicts.shape}; expected {shapes[-1]}")
    if not np.isin(verdicts, allowed).all():
        raise ValueError(f"the verdicts of {name} hold other codes than {', '.join(map(str, allowed))}")


def _check_names(people: Iterable[str], judges: Iterable[str]) -> None:
    raters, names = set(people), set(judges)
    if not raters:
        raise ValueError("no verdicts of people")
    ambiguous = names & {PEOPLE, LONGER, CONSTANT, *raters} | (raters & {PEOPLE} if len(raters) > 1 else set())
    if ambiguous:
        raise ValueError(f"{min(ambiguous)!r} would name two scorers; rename the rater or judge")


def _check_lengths(length_a: Floats | None, length_b: Floats | None, n: int) -> None:
    if (length_a is None) != (length_b is None):
        raise ValueError("the lengths of a and of b come together")
    for name, lengths in (("a", length_a), ("b", length_b)):
        if lengths is not None and (lengths.shape != (n,) or not (lengths >= 0).all()):
            raise ValueError(f"the lengths of {name} must be {n} numbers from 0 up")


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


def matrix(scorers: Mapping[str, Codes], group: Group, parts: Mapping[str, Sequence[str]] | None = None) -> Matrix:
    """Agreement among any judges and people (ConvBench, tables 3-7), columns of verdicts of shape (n,) by name."""
    members = group_numbers(group)
    by: dict[str, dict[str, list[PairAgreement]]] = {}
    for name, part in (parts or {}).items():
        by[name] = {
            value: _pairs({scorer: column[rows] for scorer, column in scorers.items()}, members[rows])
            for value, rows in rows_of(part).items()
        }
    return Matrix(overall=_pairs(scorers, members), by=by)


def _pairs(scorers: Mapping[str, Codes], group: Integers) -> list[PairAgreement]:
    """Every pair in the order of names. Pairs with verdicts on the same items share their resamples."""
    pairs = list(combinations(scorers, 2))
    items: dict[bytes, list[tuple[str, str]]] = {}
    for first, second in pairs:
        items.setdefault(np.packbits(labelled(scorers[first], scorers[second])).tobytes(), []).append((first, second))
    equal: dict[tuple[str, str], Estimate] = {}
    for members in items.values():
        equal |= _equal_shares(members, scorers, group)
    return [
        PairAgreement(
            first=first,
            second=second,
            failed=failures(scorers[first], scorers[second]),
            equal=equal[first, second],
        )
        for first, second in pairs
    ]


def _equal_shares(
    pairs: Sequence[tuple[str, str]], scorers: Mapping[str, Codes], group: Integers
) -> dict[tuple[str, str], Estimate]:
    """The share of equal verdicts of pairs that have verdicts on the same items."""
    rows = labelled(*(scorers[name] for name in pairs[0]))
    columns = {name: scorers[name][rows] for pair in pairs for name in pair}
    cell, place = _patterns(list(columns.values()))
    everywhere = np.ones(len(place), dtype=bool)
    wanted = {
        (first, second): VerdictStatistic(
            share_of(columns[first][place] == columns[second][place], everywhere), "no items", share=True
        )
        for first, second in pairs
    }
    return estimates(cell, len(place), group[rows], wanted)


def _patterns(columns: Sequence[Codes]) -> tuple[Integers, Integers]:
    """The number of each row's combination of labels, 0..P-1, and for each combination the place of one row."""
    cell, place = np.zeros(len(columns[0]), dtype=np.intp), np.zeros(0, dtype=np.intp)
    for column in columns:
        _, place, cell = np.unique(cell * LABELS + column, return_index=True, return_inverse=True)
    return cell, place


def raters_agreement(raters: Sequence[Codes], group: Group) -> VerdictAgreement | None:
    """Every two raters with each other, pooled: what a judge that is like one of them would reach against them, by
    `against_raters`. n counts pairs of verdicts. None where no item has two raters.
    """
    pairs = list(combinations(raters, 2))
    first = [one for one, _ in pairs]
    return _pooled(first, [other for _, other in pairs], group) if pairs else None


def against_raters(raters: Sequence[Codes], judge: Codes, group: Group) -> VerdictAgreement | None:
    """A judge's verdicts, shape (n,), with each single rater's, pooled: n counts (item, rater) pairs."""
    return _pooled(raters, [judge] * len(raters), group)


def _pooled(first: Sequence[Codes], second: Sequence[Codes], group: Group) -> VerdictAgreement | None:
    one, other = np.concatenate(first), np.concatenate(second)
    asked = (one != UNASKED) & (other != UNASKED)
    members = np.tile(group_numbers(group), len(first))
    found = verdict_agreement(one[asked], other[asked], members[asked])
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
    commonest = np.bincount(people[rated], minlength=LABELS).argmax()
    baselines: dict[str, Codes] = {CONSTANT: np.full(len(people), commonest, dtype=np.int8)}
    length: dict[str, LengthPreference] = {}
    if sample.length_a is not None and sample.length_b is not None:
        baselines[LONGER] = longer(sample.length_a, sample.length_b)
        for name, judge in judges.items():
            length[name] = length_preference(people, judge, sample.length_a, sample.length_b, group)
    raters = list(sample.people.values())
    alike = {name: against_raters(raters, judge, group) for name, judge in judges.items()} if len(raters) > 1 else {}
    ties = VerdictStatistic(share_of(np.arange(LABELS) == TIE, np.ones(LABELS, dtype=bool)), "no items", share=True)
    return PreferenceAudit(
        items=len(people),
        rated=int(rated.sum()),
        yes_or_no=sample.yes_or_no,
        groups=len(np.unique(group[rated])),
        raters=len(sample.people),
        people_ties=estimates(people[rated].astype(np.intp), LABELS, group[rated], {"": ties})[""],
        agreement={name: verdict_agreement(people, judge, group) for name, judge in judges.items()},
        baselines={name: verdict_agreement(people, judge, group) for name, judge in baselines.items()},
        ceiling=raters_agreement(raters, group),
        as_a_rater={name: found for name, found in alike.items() if found},
        matrix=_matrix_of_all(people, sample, judges, group),
        position={name: position_bias(orders, group) for name, orders in sample.judges.items() if orders.ndim == 2},
        length=length,
        differences=_all_differences(people, judges, baselines, group),
        by={
            name: {part: breakdown(people, judge, group, values) for part, values in sample.parts.items()}
            for name, judge in judges.items()
        },
    )


def _matrix_of_all(people: Codes, sample: Preferences, judges: Mapping[str, Codes], group: Integers) -> Matrix:
    raters = sample.people if len(sample.people) > 1 else {}
    found = matrix({PEOPLE: people, **raters, **judges}, group, sample.parts)

    def apart(pairs: list[PairAgreement]) -> list[PairAgreement]:
        return [pair for pair in pairs if pair.first != PEOPLE or pair.second not in raters]

    by = {part: {value: apart(pairs) for value, pairs in values.items()} for part, values in found.by.items()}
    return Matrix(overall=apart(found.overall), by=by)


def _all_differences(
    people: Codes, judges: Mapping[str, Codes], baselines: Mapping[str, Codes], group: Integers
) -> list[PairedDifference]:
    pairs = [*combinations(judges, 2), *((judge, baseline) for judge in judges for baseline in baselines)]
    verdicts = {**judges, **baselines}
    return [paired_difference(people, verdicts[one], verdicts[other], group, (one, other)) for one, other in pairs]
