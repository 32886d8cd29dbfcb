"""Preferences, yes and no: how far judges agree with people, and what pulls them: places and lengths of answers."""

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
    """Pairs of answers, with verdicts of people and of judges: arrays of codes (see `codes`) over n items.

    - `people[rater]`, (n,): A, TIE, B, or UNASKED where the rater did not see the item.
    - `judges[name]`, (n, 2): the verdict with a shown first, and with b; or (n,) where the order does not matter.
    - `parts[property]`, n names: what agreement is broken down by; `length_a`, `length_b`, (n,), in any one unit.
    - `yes_or_no`: each item is one answer, and a verdict is yes (A) or no (B).
    - `weight`, (n,): 1 over the chance of being labelled (NaN: not labelled); None where all had the same.
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


def longer(length_a: Floats, length_b: Floats) -> Codes:
    """The trivial judge: it prefers the longer answer, and says tie where both are equally long."""
    return np.select([length_a > length_b, length_a < length_b], [A, B], default=TIE).astype(np.int8)


class PairAgreement(Struct, frozen=True, kw_only=True):
    """The share (0..1) of equal verdicts of two scorers, where both have one; one of them `failed` on so many."""

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
    """Agreement among judges and people (ConvBench, tables 3-7), columns of verdicts, (n,), by name; PEOPLE not with
    its own `raters`. `weight` as in `Preferences`: items that nobody labelled count once each."""
    members = group_numbers(group)

    def of(rows: Integers) -> list[PairAgreement]:
        pairs = []
        for first, second in combinations(scorers, 2):
            if first == PEOPLE and second in raters:
                continue
            left, right = scorers[first][rows], scorers[second][rows]
            both = rows[labelled(left, right)]
            times = None if weight is None or np.isnan(weight[both]).any() else weight[both]
            equal = equal_share(scorers[first][both] == scorers[second][both], members[both], times)
            pairs.append(PairAgreement(first=first, second=second, failed=failures(left, right), equal=equal))
        return pairs

    by = {name: {value: of(rows) for value, rows in rows_of(part).items()} for name, part in (parts or {}).items()}
    return Matrix(overall=of(np.arange(len(members))), by=by)


def equal_share(equal: NDArray[np.bool_], group: Group, weight: Floats | None = None) -> Estimate:
    """The share (0..1) of items, shape (n,), on which two verdicts are equal."""
    return mean_estimate(equal.astype(np.float64), group_numbers(group), share=True, weight=weight)


def position_bias(orders: Codes, group: Group) -> dict[str, Estimate]:
    """What the order in which answers are shown does to a judge's verdicts, (n, 2): a shown first, b shown first.
    `flips`: the share of items in which the verdict changes. `first_place`: the share of verdicts for the first answer,
    ties aside, less 1/2: the mean of both orders' shares, which tells place from quality; its n counts verdicts."""
    members = group_numbers(group)
    a_first, b_first = orders.T
    both = labelled(a_first, b_first)
    # What each item adds to: wins of a shown first, verdicts but ties with a first, and the same of b.
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
    """How often the longer answer wins by `people` and by a `judge`, and the `difference`, where neither says tie."""
    decided = (length_a != length_b) & labelled(people, judge) & (people != TIE) & (judge != TIE)
    wins = [(column == longer(length_a, length_b))[decided].astype(np.float64) for column in (judge, people)]
    members = group_numbers(group)[decided]
    shares = [mean_estimate(column, members, share=True) for column in wins]
    return {"judge": shares[0], "people": shares[1], "difference": mean_estimate(wins[0] - wins[1], members, null=0.0)}


class PairedDifference(Struct, frozen=True, kw_only=True):
    """How much better the `first` judge agrees with people than the `second`: accuracy and kappa, first - second, over
    the items on which all three have a verdict; `failed`: where all were asked, and one has none."""

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
    """The difference of two judges' accuracy and kappa in the same resamples, as in `verdict_agreement`."""
    columns = np.stack([people, first, second])
    rows = (columns < LABELS).all(axis=0)
    failed = (columns != UNASKED).all(axis=0) & ~rows
    whole, left, right = columns[:, rows].astype(np.intp)
    n, draws = int(rows.sum()), Bootstrap(group_numbers(group)[rows])
    cell, times = (whole * LABELS + left) * LABELS + right, None if weight is None else weight[rows]
    counts = np.concatenate(list(draws.tables(cell, LABELS**3, times)), axis=1).reshape(LABELS, LABELS, LABELS, -1)
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


def rates(people: Codes, judge: Codes, group: Group, weight: Floats | None = None) -> dict[str, Estimate]:
    """The shares (0..1) of people's yes to which the judge says yes, its sensitivity, and of their no to which it says
    no, its specificity (Altman and Bland 1994, BMJ 308:1552); arrays of shape (n,), without its failures."""
    shares = {}
    for name, label in (("sensitivity", A), ("specificity", B)):
        rows = (people == label) & (judge < LABELS)
        times = None if weight is None else weight[rows]
        shares[name] = equal_share(judge[rows] == label, group_numbers(group)[rows], times)
    return shares


class PreferenceAudit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that is known of judges' preferences, over `items` of which `rated` have a verdict of people.

    - `people_ties`: the share of ties in people's verdict (the `majority` of `raters` raters).
    - `agreement[judge]` with it, `by[judge][property][value]` of a part; `beside[judge]`: beside single raters.
    - `position` of judges whose order is known, `length` where lengths are known.
    - `yes_or_no`: the verdicts are yes (a) and no (b); `rates[judge]` has then its sensitivity and specificity.
    - `weighted`: all but `beside`, `position` and `length` is of all items that labels were drawn from.
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
        """What verdicts are about, in a word."""
        return "items" if self.yes_or_no else "pairs"


def preference_audit(sample: Preferences, epsilon: float = EPSILON) -> PreferenceAudit:
    """Everything a report says about preferences. Judges asked in both orders count by `both_orders`."""
    group, weight = group_numbers(sample.group), sample.weight
    raters = list(sample.people.values())
    several = sample.people if len(raters) > 1 else {}
    people, judges = majority(raters), {name: both_orders(orders) for name, orders in sample.judges.items()}
    rated = people != UNASKED
    rated_weight = None if weight is None else weight[rated]
    commonest = np.bincount(people[rated], rated_weight, minlength=LABELS).argmax()
    baselines: dict[str, Codes] = {CONSTANT: np.full(len(people), commonest, dtype=np.int8)}
    length: dict[str, dict[str, Estimate]] = {}
    if sample.length_a is not None and sample.length_b is not None:
        lengths = sample.length_a, sample.length_b
        baselines[LONGER] = longer(*lengths)
        length = {name: length_preference(people, judge, *lengths, group) for name, judge in judges.items()}
    verdicts = {**judges, **baselines}

    def with_people(scorers: Mapping[str, Codes]) -> dict[str, VerdictAgreement]:
        return {name: verdict_agreement(people, verdicts, group, weight) for name, verdicts in scorers.items()}

    return PreferenceAudit(
        items=len(people),
        rated=int(rated.sum()),
        yes_or_no=sample.yes_or_no,
        rates={name: rates(people, judge, group, weight) for name, judge in judges.items() if sample.yes_or_no},
        weighted=weight is not None,
        notes=sample.notes,
        groups=len(np.unique(group[rated])),
        raters=len(raters),
        people_ties=equal_share(people[rated] == TIE, group[rated], rated_weight),
        agreement=with_people(judges),
        baselines=with_people(baselines),
        beside=_beside(several, judges, group, epsilon),
        matrix=matrix({PEOPLE: people, **several, **judges}, group, sample.parts, several, weight),
        position={name: position_bias(orders, group) for name, orders in sample.judges.items() if orders.ndim == 2},
        length=length,
        differences=[
            paired_difference(people, verdicts[first], verdicts[second], group, (first, second), weight)
            for first, second in [*combinations(judges, 2), *product(judges, baselines)]
        ],
        by={
            name: {part: breakdown(people, judge, group, values, weight) for part, values in sample.parts.items()}
            for name, judge in judges.items()
        },
    )


def _beside(
    raters: Mapping[str, Codes], judges: Mapping[str, Codes], group: Integers, epsilon: float
) -> dict[str, BesideRaters]:
    """What each judge is beside several raters."""
    rows = (zip(raters, row, strict=True) for row in zip(*raters.values(), strict=True))
    ratings = [{name: float(code) for name, code in row if code < LABELS} for row in rows]
    verdicts = {name: np.where(judge < LABELS, judge, np.nan) for name, judge in judges.items() if raters}
    return {name: beside_raters(ratings, judge, group, epsilon, "nominal") for name, judge in verdicts.items()}
