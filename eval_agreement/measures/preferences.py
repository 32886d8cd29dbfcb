"""Preferences, and verdicts of yes or no: agreement of judges with people, position bias and length bias."""

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations, product

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from critic.stats.arrays import Floats, Group, group_numbers, ratio
from critic.stats.estimate import Bootstrap, Estimate
from critic.stats.verdicts import (
    LABELS,
    TIE,
    UNASKED,
    A,
    B,
    Codes,
    Integers,
    VerdictAgreement,
    both_orders,
    breakdown,
    failures,
    kappa,
    labelled,
    majority,
    rows_of,
    verdict_agreement,
)
from eval_agreement.measures.raters import EPSILON, BesideRaters, beside_raters
from eval_agreement.metrics import mean_estimate

PEOPLE, LONGER, CONSTANT = "people", "longer", "constant"
"""Names of people's verdict and of the trivial judges in an audit."""


class Preferences(Struct, frozen=True, kw_only=True, eq=False):
    """n pairs of answers with verdicts of people and judges, as codes of `critic.stats.verdicts`.

    - people[rater], (n,): A, TIE, B, or UNASKED if the rater did not see the item.
    - judges[name]: (n, 2), the verdict with answer a shown first and with b first; or (n,) if order is irrelevant.
    - parts[property]: n names, to break agreement down by. length_a, length_b: (n,), in the same unit.
    - yes_or_no: True if an item is a single answer and a verdict is yes (A) or no (B).
    - weight: 1 / chance of being labelled, (n,), NaN if not labelled; None if all had the same chance.
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


def prefer_longer(length_a: Floats, length_b: Floats) -> Codes:
    """Return the verdicts of the trivial judge that prefers the longer answer, a tie for equal lengths.

    >>> prefer_longer(np.array([9.0, 4.0, 5.0]), np.array([3.0, 8.0, 5.0])).tolist() == [A, B, TIE]
    True
    """
    return np.select([length_a > length_b, length_a < length_b], [A, B], default=TIE).astype(np.int8)


class PairAgreement(Struct, frozen=True, kw_only=True):
    """The share (0..1) of equal verdicts of two scorers on items where both have one; `failed` items lack one."""

    first: str
    second: str
    failed: int
    equal: Estimate


class Matrix(Struct, frozen=True, kw_only=True):
    """Agreement of every pair of scorers: over all items, and in `by[property][value]` on a part."""

    overall: list[PairAgreement]
    by: dict[str, dict[str, list[PairAgreement]]] = field(default_factory=dict)


def measure_matrix(
    scorers: Mapping[str, Codes],
    group: Group,
    parts: Mapping[str, Sequence[str]] | None = None,
    raters: Collection[str] = (),
    weight: Floats | None = None,
) -> Matrix:
    """Measure the agreement of every pair of judges and people (ConvBench, tables 3-7).

    `scorers` are verdicts (n,) by name. PEOPLE is not paired with its own `raters`, whose majority it is. `weight` is
    that of `Preferences`; a pair with an item that nobody labelled is not weighted.
    """
    members = group_numbers(group)

    def measure_rows(rows: Integers) -> list[PairAgreement]:
        pairs = []
        for first, second in combinations(scorers, 2):
            # People's verdict holds the rater's own, so that they would agree too often.
            if first == PEOPLE and second in raters:
                continue
            left, right = scorers[first][rows], scorers[second][rows]
            both = rows[labelled(left, right)]
            times = None if weight is None or np.isnan(weight[both]).any() else weight[both]
            equal = equal_share(scorers[first][both] == scorers[second][both], members[both], weight=times)
            pairs.append(PairAgreement(first=first, second=second, failed=failures(left, right), equal=equal))
        return pairs

    by: dict[str, dict[str, list[PairAgreement]]] = {}
    for name, part in (parts or {}).items():
        by[name] = {value: measure_rows(rows) for value, rows in rows_of(part).items()}
    return Matrix(overall=measure_rows(np.arange(len(members))), by=by)


def equal_share(equal: NDArray[np.bool_], group: Group, weight: Floats | None = None) -> Estimate:
    """Estimate the share (0..1) of items on which two verdicts are equal, from the mask `equal` (n,)."""
    return mean_estimate(equal.astype(np.float64), group_numbers(group), share=True, weight=weight)


def position_bias(orders: Codes, group: Group) -> dict[str, Estimate]:
    """Measure the effect of the order of answers on a judge's verdicts, (n, 2): a shown first, b shown first.

    - flips: share (0..1) of items whose verdict changes with the order.
    - first_place: share of verdicts for the answer shown first, ties aside, less 1/2. It is the mean of both orders'
      shares, which separates position from quality; n counts verdicts.
    """
    members = group_numbers(group)
    a_first, b_first = orders.T
    both = labelled(a_first, b_first)
    # Rows: wins of a if shown first, verdicts other than ties with a first, and the same two for b.
    decided = [(column == A) | (column == B) for column in (a_first, b_first)]
    columns = np.stack([a_first == A, decided[0], b_first == B, decided[1]]).astype(np.float64)
    judged = np.flatnonzero((orders < LABELS).any(axis=1))
    draws = Bootstrap(members[judged])
    a_wins, a_shown, b_wins, b_shown = draws.resample_sums(np.arange(len(judged)), columns[:, judged]).T
    lean = (ratio(a_wins, a_shown) + ratio(b_wins, b_shown) - 1) / 2
    needs = "needs a verdict other than tie in each order: otherwise place and quality are one"
    return {
        "flips": equal_share(a_first[both] != b_first[both], members[both]),
        "first_place": draws.estimate(lean, int(a_shown[0] + b_shown[0]), undefined=needs, null=0.0),
    }


def length_preference(
    people: Codes, judge: Codes, length_a: Floats, length_b: Floats, group: Group
) -> dict[str, Estimate]:
    """Measure how often the longer answer wins by `judge` and by `people`, and their `difference`.

    Only items of unequal length count on which neither says tie.
    """
    decided = (length_a != length_b) & labelled(people, judge) & (people != TIE) & (judge != TIE)
    longer = prefer_longer(length_a, length_b)
    wins = [(column == longer)[decided].astype(np.float64) for column in (judge, people)]
    members = group_numbers(group)[decided]
    shares = [mean_estimate(column, members, share=True) for column in wins]
    return {"judge": shares[0], "people": shares[1], "difference": mean_estimate(wins[0] - wins[1], members, null=0.0)}


class PairedDifference(Struct, frozen=True, kw_only=True):
    """Agreement of the `first` judge with people less that of the `second`: accuracy and kappa.

    It is measured on the items on which all three have a verdict. On `failed` items all were asked and one has none.
    """

    first: str
    second: str
    failed: int
    accuracy: Estimate
    kappa: Estimate


def paired_difference(
    people: Codes,
    first: Codes,
    second: Codes,
    group: Group,
    names: tuple[str, str] = ("first", "second"),
    weight: Floats | None = None,
) -> PairedDifference:
    """Return the difference of two judges' accuracy and kappa on the same resamples, as in `verdict_agreement`."""
    columns = np.stack([people, first, second])
    rows = (columns < LABELS).all(axis=0)
    failed = (columns != UNASKED).all(axis=0) & ~rows
    truth, left, right = columns[:, rows].astype(np.intp)
    n = int(rows.sum())
    draws = Bootstrap(group_numbers(group)[rows])
    times = None if weight is None else weight[rows]
    # The table of all three verdicts holds all that is needed: axis 0 people's, axes 1 and 2 the judges'.
    cell = (truth * LABELS + left) * LABELS + right
    counts = draws.resample_sums(cell, np.eye(LABELS**3), times).T.reshape(LABELS, LABELS, LABELS, -1)
    better = ratio(np.einsum("iijr->r", counts) - np.einsum("ijir->r", counts), counts.sum(axis=(0, 1, 2)))
    kappas = [kappa(counts.sum(axis=axis).reshape(LABELS**2, -1)) for axis in (2, 1)]
    same = "people and a judge give every item the same verdict"
    return PairedDifference(
        first=names[0],
        second=names[1],
        failed=int(failed.sum()),
        accuracy=draws.estimate(better, n, undefined="no items", null=0.0),
        kappa=draws.estimate(kappas[0] - kappas[1], n, undefined=same, null=0.0),
    )


def measure_rates(people: Codes, judge: Codes, group: Group, weight: Floats | None = None) -> dict[str, Estimate]:
    """Measure a judge's sensitivity and specificity (Altman and Bland 1994, BMJ 308:1552), without its failures.

    Sensitivity is the share (0..1) of people's yes to which the judge says yes, specificity that of their no to which
    it says no. Arrays have shape (n,).
    """
    shares = {}
    for name, label in (("sensitivity", A), ("specificity", B)):
        # Only items on which people say so: shares of people's yes and no do not depend on how common each is.
        rows = (people == label) & (judge < LABELS)
        times = None if weight is None else weight[rows]
        shares[name] = equal_share(judge[rows] == label, group_numbers(group)[rows], times)
    return shares


class PreferenceAudit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The findings on judges' preferences over `items`, of which `rated` have a verdict by people.

    - people_ties: share of ties in people's verdict, the majority of `raters` raters.
    - agreement[judge]: with people's verdict; by[judge][property][value]: on a part; beside[judge]: beside raters.
    - position: of judges asked in a known order. length: if lengths are known.
    - yes_or_no: True if verdicts are yes (a) and no (b); rates[judge] then has sensitivity and specificity.
    - weighted: True if labels are weighted; all but `beside`, `position` and `length` then holds for all items.
    """

    items: int
    rated: int
    groups: int
    raters: int
    people_ties: Estimate
    agreement: dict[str, VerdictAgreement]
    baselines: dict[str, VerdictAgreement]
    beside: dict[str, BesideRaters]
    matrix: Matrix
    position: dict[str, dict[str, Estimate]]
    length: dict[str, dict[str, Estimate]]
    differences: list[PairedDifference]
    by: dict[str, dict[str, dict[str, VerdictAgreement]]]
    yes_or_no: bool = False
    rates: dict[str, dict[str, Estimate]] = field(default_factory=dict)
    weighted: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def things(self) -> str:
        """Word for what is judged."""
        return "items" if self.yes_or_no else "pairs"


def preference_audit(sample: Preferences, epsilon: float = EPSILON) -> PreferenceAudit:
    """Measure all that a report says about preferences. Judges asked in both orders count by `both_orders`."""
    group, weight = group_numbers(sample.group), sample.weight
    raters = list(sample.people.values())
    # With a single rater people's verdict is that rater's: there is nobody to be compared with.
    several = sample.people if len(raters) > 1 else {}
    people = majority(raters)
    judges = {name: both_orders(orders) for name, orders in sample.judges.items()}
    rated = people != UNASKED
    rated_weight = None if weight is None else weight[rated]
    # The constant judge, which knows only what people say most.
    commonest = np.bincount(people[rated], rated_weight, minlength=LABELS).argmax()
    baselines: dict[str, Codes] = {CONSTANT: np.full(len(people), commonest, dtype=np.int8)}
    length: dict[str, dict[str, Estimate]] = {}
    if sample.length_a is not None and sample.length_b is not None:
        lengths = sample.length_a, sample.length_b
        # Lengths are known of all pairs or of none.
        baselines[LONGER] = prefer_longer(*lengths)
        length = {name: length_preference(people, judge, *lengths, group) for name, judge in judges.items()}
    verdicts = {**judges, **baselines}

    def agree_with_people(scorers: Mapping[str, Codes]) -> dict[str, VerdictAgreement]:
        return {name: verdict_agreement(people, verdicts, group, weight) for name, verdicts in scorers.items()}

    differences = []
    # Every pair of judges, then every judge with every trivial judge.
    for first, second in [*combinations(judges, 2), *product(judges, baselines)]:
        pair = verdicts[first], verdicts[second]
        differences.append(paired_difference(people, *pair, group, names=(first, second), weight=weight))
    by: dict[str, dict[str, dict[str, VerdictAgreement]]] = {}
    for name, judge in judges.items():
        by[name] = {part: breakdown(people, judge, group, values, weight) for part, values in sample.parts.items()}
    rates = {}
    if sample.yes_or_no:
        rates = {name: measure_rates(people, judge, group, weight) for name, judge in judges.items()}
    return PreferenceAudit(
        items=len(people),
        rated=int(rated.sum()),
        yes_or_no=sample.yes_or_no,
        rates=rates,
        weighted=weight is not None,
        notes=sample.notes,
        groups=len(np.unique(group[rated])),
        raters=len(raters),
        people_ties=equal_share(people[rated] == TIE, group[rated], rated_weight),
        agreement=agree_with_people(judges),
        baselines=agree_with_people(baselines),
        beside=_compare_with_raters(several, judges, group, epsilon),
        matrix=measure_matrix({PEOPLE: people, **several, **judges}, group, sample.parts, several, weight),
        position={name: position_bias(orders, group) for name, orders in sample.judges.items() if orders.ndim == 2},
        length=length,
        differences=differences,
        by=by,
    )


def _compare_with_raters(
    raters: Mapping[str, Codes], judges: Mapping[str, Codes], group: Integers, epsilon: float
) -> dict[str, BesideRaters]:
    """Compare each judge with single raters; empty without raters."""
    if not raters:
        return {}
    ratings = []
    for codes in zip(*raters.values(), strict=True):
        # A code beyond the labels is no verdict.
        ratings.append({name: float(code) for name, code in zip(raters, codes, strict=True) if code < LABELS})
    results = {}
    for name, judge in judges.items():
        verdicts = np.where(judge < LABELS, judge, np.nan)
        results[name] = beside_raters(ratings, verdicts, group, epsilon=epsilon, level="nominal")
    return results
