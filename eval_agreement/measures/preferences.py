"""Preferences, and verdicts of yes or no: agreement of judges with people, position bias, length bias, and rates.

A rate is a share of yes or a win rate, from few labels of people and many verdicts of a judge. It is corrected in two
ways. Prediction-powered inference (`ppi.py`) is valid however wrong the judge is, if the labelled items are a random
draw. Rogan and Gladen (1978, Am. J. Epidemiol. 107) invert the judge's confusion matrix, which for yes and no consists
of sensitivity and specificity. This is valid for any items on which the judge errs as on the labelled ones. The
interval is by the delta method, by group, with one more item per cell (Lang and Reiczigel 2014, Prev. Vet. Med. 113).
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations, product

import numpy as np
import scipy
from msgspec import Struct, field

from critic.stats import verdicts as three_way
from critic.stats.arrays import Floats, Group, group_numbers, ratio
from critic.stats.estimate import FEWEST_GROUPS, LEVEL, Bootstrap, Estimate
from critic.stats.verdicts import LABELS, TIE, UNASKED, A, B, Codes, VerdictAgreement
from eval_agreement.measures.ppi import Answers, parts_of
from eval_agreement.measures.raters import BesideRaters, Repeats, beside_raters, compare_repeats
from eval_agreement.metrics import mean_estimate
from eval_agreement.sample import AuditRequest, AuditSample, Indices, Mask

PEOPLE, LONGER, CONSTANT = "people", "longer", "constant"
"""Names used in an audit for people's verdict and for the two trivial judges."""


class Preferences(AuditSample, frozen=True, kw_only=True):
    """n pairs of answers with verdicts of people and judges, as codes of `critic.stats.verdicts`.

    - people[rater], (n,): A, TIE, B, or UNASKED if the rater did not see the item.
    - judges[name]: (n, 2), the verdict with answer a shown first and the one with b first; or (n,) if the order is
      irrelevant or unknown.
    - length_a, length_b: (n,), in the same unit.
    - yes_or_no: True if an item is a single answer and a verdict is yes (A) or no (B).
    - models: names of the two models of each pair, None if unknown; empty if no pair names any.
    - weight: 1 / chance of being labelled, (n,), NaN if not labelled; None if all had the same chance.
    """

    people: dict[str, Codes]
    length_a: Floats | None = None
    length_b: Floats | None = None
    yes_or_no: bool = False
    models: Sequence[tuple[str | None, str | None]] = ()
    weight: Floats | None = None

    @property
    def raters(self) -> dict[str, Codes]:
        """Verdicts by rater, to compare raters with each other; empty if there is only one rater."""
        return self.people if len(self.people) > 1 else {}

    @cached_property
    def verdict(self) -> Codes:
        """People's verdict on each item, the majority of raters, (n,)."""
        return three_way.majority([*self.people.values()])

    @cached_property
    def verdicts(self) -> dict[str, Codes]:
        """Verdicts of each judge, (n,), by name. Verdicts in both orders are combined by `both_orders`."""
        return {name: three_way.both_orders(orders) for name, orders in self.judges.items()}

    @cached_property
    def trivial(self) -> dict[str, Codes]:
        """Verdicts of the trivial judges, (n,), by name.

        CONSTANT always gives people's most frequent verdict. LONGER prefers the longer answer; it is left out without
        lengths.
        """
        # An item without a label has a code beyond the labels, and no weight.
        commonest = np.bincount(self.verdict, self.weight, minlength=LABELS)[:LABELS].argmax()
        judges = {CONSTANT: np.full(len(self.verdict), commonest, dtype=np.int8)}
        # Lengths are known of all pairs or of none.
        if self.length_a is not None and self.length_b is not None:
            judges[LONGER] = prefer_longer(self.length_a, self.length_b)
        return judges


def prefer_longer(length_a: Floats, length_b: Floats) -> Codes:
    """Return the verdicts of the trivial judge that prefers the longer answer. Equal lengths are a tie.

    >>> prefer_longer(np.array([9.0, 4.0, 5.0]), np.array([3.0, 8.0, 5.0])).tolist() == [A, B, TIE]
    True
    """
    return np.select([length_a > length_b, length_a < length_b], [A, B], default=TIE).astype(np.int8)


class PairAgreement(Struct, frozen=True, kw_only=True):
    """The share (0..1) of equal verdicts of two scorers, on items on which both have a verdict.

    `failed`: number of items that both were asked about, but on which at least one has no verdict.
    """

    first: str
    second: str
    failed: int
    equal: Estimate


class Matrix(Struct, frozen=True, kw_only=True):
    """Agreement of every pair of scorers: over all items, and in `by[property][value]` over items with this value."""

    overall: list[PairAgreement]
    by: dict[str, dict[str, list[PairAgreement]]] = field(default_factory=dict)


def measure_matrix(sample: Preferences, _: AuditRequest) -> Matrix:
    """Measure the agreement of every pair of judges, people and single raters (ConvBench, tables 3-7).

    PEOPLE, the majority of raters, is not paired with its own raters. A pair's agreement is unweighted if it includes
    an item that people did not label.
    """
    scorers = {PEOPLE: sample.verdict, **sample.raters, **sample.verdicts}
    members, weight = sample.groups, sample.weight

    def measure_rows(rows: Indices) -> Iterator[PairAgreement]:
        for first, second in combinations(scorers, 2):
            # People's verdict holds the rater's own, so that they would agree too often.
            if first == PEOPLE and second in sample.raters:
                continue
            left, right = scorers[first][rows], scorers[second][rows]
            both = rows[three_way.labelled(left, right)]
            times = None if weight is None or np.isnan(weight[both]).any() else weight[both]
            same = scorers[first][both] == scorers[second][both]
            equal = mean_estimate(same, members[both], share=True, weight=times)
            yield PairAgreement(first=first, second=second, failed=three_way.failures(left, right), equal=equal)

    by: dict[str, dict[str, list[PairAgreement]]] = {}
    for name, part in sample.parts.items():
        by[name] = {value: [*measure_rows(rows)] for value, rows in three_way.rows_of(part).items()}
    return Matrix(overall=[*measure_rows(np.arange(len(members)))], by=by)


def position_bias(orders: Codes, group: Group) -> dict[str, Estimate]:
    """Measure how the order of answers affects a judge's verdicts `orders`, (n, 2): a shown first, b shown first.

    - flips: share (0..1) of items whose verdict changes with the order.
    - first_place: share of verdicts for the answer shown first, without ties, minus 1/2. It is the mean over both
      orders, which separates position from quality. Its n counts verdicts.

    By hand: letters stand for verdicts a, b, t(ie), f(ailed) and - (not asked). The first text has a shown first, the
    second b. Of the 9 items with both verdicts, 6 change. The answer shown first wins 6 of 8 verdicts if it is a, and 4
    of 9 if it is b:

    >>> columns = [["atbf-".index(letter) for letter in column] for column in ("aaabtatbfaa-", "bbaaattbab-a")]
    >>> bias = position_bias(np.array(columns).T, range(12))
    >>> bias["flips"].n, round(bias["flips"].value * 9, 9), bias["flips"].p_value
    (9, 6.0, None)
    >>> bias["first_place"].n, round(bias["first_place"].value, 9), bias["first_place"].p_value is None
    (17, 0.097222222, False)
    >>> round((6 / 8 + 4 / 9) / 2 - 1 / 2, 9)
    0.097222222
    """
    members = group_numbers(group)
    a_first, b_first = orders.T
    both = three_way.labelled(a_first, b_first)
    # Rows: wins of a if shown first, verdicts other than ties with a first, and the same two for b.
    decided = [(column == A) | (column == B) for column in (a_first, b_first)]
    columns = np.stack([a_first == A, decided[0], b_first == B, decided[1]]).astype(np.float64)
    judged = np.flatnonzero((orders < LABELS).any(axis=1))
    draws = Bootstrap(members[judged])
    a_wins, a_shown, b_wins, b_shown = draws.resample_sums(np.arange(len(judged)), columns[:, judged]).T
    lean = (ratio(a_wins, a_shown) + ratio(b_wins, b_shown) - 1) / 2
    needs = "needs a verdict other than tie in each order: otherwise place and quality are one"
    return {
        "flips": mean_estimate(a_first[both] != b_first[both], members[both], share=True),
        "first_place": draws.estimate(lean, int(a_shown[0] + b_shown[0]), undefined=needs, null=0.0),
    }


def measure_positions(sample: Preferences, _: AuditRequest) -> dict[str, dict[str, Estimate]]:
    """Measure the effect of the order of answers on each judge whose verdicts have a known order, by judge name."""
    return {name: position_bias(orders, sample.groups) for name, orders in sample.judges.items() if orders.ndim == 2}


def measure_lengths(sample: Preferences, _: AuditRequest) -> dict[str, dict[str, Estimate]]:
    """Measure how often judges and people prefer the longer answer, by judge name; empty without lengths."""
    if sample.length_a is None or sample.length_b is None:
        return {}
    lengths = sample.length_a, sample.length_b
    verdicts = sample.verdicts.items()
    return {name: length_preference(sample.verdict, judge, *lengths, sample.groups) for name, judge in verdicts}


def length_preference(
    people: Codes, judge: Codes, length_a: Floats, length_b: Floats, group: Group
) -> dict[str, Estimate]:
    """Measure how often `judge` and `people` prefer the longer answer, and the `difference` judge minus people.

    Only items with unequal lengths count, and only if neither verdict is a tie.

    By hand: a is longer in seven items and b in four; two are of equal length. Both decide seven of the eleven, in
    which people prefer the longer answer five times, and the judge also:

    >>> columns = [["atbf-".index(letter) for letter in column] for column in ("aabttababtaba", "aaaatbbbafaft")]
    >>> people, judge = np.array(columns)
    >>> length_a = np.array([9] * 6 + [1] * 4 + [5, 5, 9])
    >>> preferred = length_preference(people, judge, length_a, np.full(13, 5), range(13))
    >>> {name: (estimate.n, round(estimate.value * 7, 9)) for name, estimate in preferred.items()}
    {'judge': (7, 5.0), 'people': (7, 5.0), 'difference': (7, 0.0)}
    """
    decided = (length_a != length_b) & three_way.labelled(people, judge) & (people != TIE) & (judge != TIE)
    longer = prefer_longer(length_a, length_b)
    wins = [(column == longer)[decided].astype(np.float64) for column in (judge, people)]
    members = group_numbers(group)[decided]
    shares = [mean_estimate(column, members, share=True) for column in wins]
    return {"judge": shares[0], "people": shares[1], "difference": mean_estimate(wins[0] - wins[1], members, null=0.0)}


class PairedDifference(Struct, frozen=True, kw_only=True):
    """Agreement of the `first` judge with people minus that of the `second`: accuracy and kappa.

    It is measured on items on which people and both judges have a verdict. `failed`: number of items that people and
    both judges were asked about, but on which at least one of them has no verdict.
    """

    first: str
    second: str
    failed: int
    accuracy: Estimate
    kappa: Estimate


def compare_verdicts(sample: Preferences, _: AuditRequest) -> list[PairedDifference]:
    """Compare every pair of judges, then every judge with every trivial judge, by their agreement with people."""
    pairs = [*combinations(sample.verdicts, 2), *product(sample.verdicts, sample.trivial)]
    return [paired_difference(sample, first, second) for first, second in pairs]


def paired_difference(sample: Preferences, first: str, second: str) -> PairedDifference:
    """Return the differences of two judges' accuracy and kappa (`first` minus `second`), on the same resamples.

    `first`, `second`: names of judges or of trivial judges.
    """
    scorers = {**sample.verdicts, **sample.trivial}
    columns = np.stack([sample.verdict, scorers[first], scorers[second]])
    rows = (columns < LABELS).all(axis=0)
    failed = (columns != UNASKED).all(axis=0) & ~rows
    truth, left, right = columns[:, rows].astype(np.intp)
    n = int(rows.sum())
    draws = Bootstrap(sample.groups[rows])
    times = None if sample.weight is None else sample.weight[rows]
    # The table of all three verdicts holds all that is needed: axis 0 people's, axes 1 and 2 the judges'.
    cell = (truth * LABELS + left) * LABELS + right
    counts = np.concatenate(list(draws.tables(cell, LABELS**3, times)), axis=1).reshape(LABELS, LABELS, LABELS, -1)
    better = ratio(np.einsum("iijr->r", counts) - np.einsum("ijir->r", counts), counts.sum(axis=(0, 1, 2)))
    kappas = [three_way.kappa(counts.sum(axis=axis).reshape(LABELS**2, -1)) for axis in (2, 1)]
    same = "people and a judge give every item the same verdict"
    return PairedDifference(
        first=first,
        second=second,
        failed=int(failed.sum()),
        accuracy=draws.estimate(better, n, undefined="no items", null=0.0),
        kappa=draws.estimate(kappas[0] - kappas[1], n, undefined=same, null=0.0),
    )


def measure_rates(people: Codes, judge: Codes, group: Group, weight: Floats | None = None) -> dict[str, Estimate]:
    """Measure a judge's sensitivity and specificity (Altman and Bland 1994, BMJ 308:1552), without failed judgments.

    Sensitivity is the share (0..1) of items with people's yes on which the judge says yes. Specificity is the share
    (0..1) of items with people's no on which the judge says no. Arrays have shape (n,).

    >>> columns = [["atbf-".index(letter) for letter in column] for column in ("aaaaabbbba-f", "aaabfbbaa-ba")]
    >>> people, judge = np.array(columns)
    >>> {name: (rate.value, rate.n) for name, rate in measure_rates(people, judge, range(12)).items()}
    {'sensitivity': (0.75, 4), 'specificity': (0.5, 4)}
    >>> measure_rates(people, judge, range(12), np.array([1.0, 1, 1, 3, *[1] * 8]))["sensitivity"].value
    0.5
    >>> measure_rates(np.array([A, A]), np.array([A, B]), range(2))["specificity"].undefined
    'no items'

    The interval has no width if the rate is the same in every group, though not on every item:

    >>> measure_rates(np.tile(people, 20), np.tile(judge, 20), np.repeat(np.arange(20), 12))["specificity"].interval
    (0.5, 0.5)
    """
    shares = {}
    for name, label in (("sensitivity", A), ("specificity", B)):
        # Only items on which people say so: shares of people's yes and no do not depend on how common each is.
        rows = (people == label) & (judge < LABELS)
        shares[name] = mean_estimate(np.where(rows, judge == label, np.nan), group, share=True, weight=weight)
    return shares


class VerdictScorers(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Agreement of judges and trivial judges with people over `items`; people have a verdict on `rated` of them.

    - people_ties: share of ties in people's verdict, the majority of `raters` raters.
    - yes_or_no: True if verdicts are yes (a) and no (b); rates[judge] then has sensitivity and specificity.
    - weighted: True if labels are weighted, so that figures hold for all items. notes: the sample's notes.
    """

    items: int
    rated: int
    groups: int
    raters: int
    people_ties: Estimate
    agreement: dict[str, VerdictAgreement]
    baselines: dict[str, VerdictAgreement]
    yes_or_no: bool = False
    rates: dict[str, dict[str, Estimate]] = field(default_factory=dict)
    weighted: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def things(self) -> str:
        """Word for the judged items in sentences."""
        return "items" if self.yes_or_no else "pairs"


def measure_verdicts(sample: Preferences, _: AuditRequest) -> VerdictScorers:
    """Measure the agreement of every judge and trivial judge with people's verdict."""
    people, group, weight = sample.verdict, sample.groups, sample.weight
    rated = people != UNASKED

    def agree_with_people(scorers: Mapping[str, Codes]) -> dict[str, VerdictAgreement]:
        return {name: three_way.verdict_agreement(people, judge, group, weight) for name, judge in scorers.items()}

    rates = {}
    if sample.yes_or_no:
        rates = {name: measure_rates(people, judge, group, weight) for name, judge in sample.verdicts.items()}
    return VerdictScorers(
        items=len(people),
        rated=int(rated.sum()),
        groups=len(np.unique(group[rated])),
        raters=len(sample.people),
        people_ties=mean_estimate(np.where(rated, people == TIE, np.nan), group, share=True, weight=weight),
        agreement=agree_with_people(sample.verdicts),
        baselines=agree_with_people(sample.trivial),
        yes_or_no=sample.yes_or_no,
        rates=rates,
        weighted=weight is not None,
        notes=sample.notes,
    )


VerdictKinds = dict[str, dict[str, dict[str, VerdictAgreement]]]
"""Agreement with people, keyed by judge, property and value."""


def break_down_verdicts(sample: Preferences, _: AuditRequest) -> VerdictKinds:
    """Measure each judge's agreement with people on the items with each value of each property."""
    by: VerdictKinds = {name: {part: {} for part in sample.parts} for name in sample.verdicts}
    for (name, judge), (part, values) in product(sample.verdicts.items(), sample.parts.items()):
        for value, rows in three_way.rows_of(values).items():
            weight = None if sample.weight is None else sample.weight[rows]
            agreement = three_way.verdict_agreement(sample.verdict[rows], judge[rows], sample.groups[rows], weight)
            by[name][part][value] = agreement
    return by


def compare_with_raters(sample: Preferences, request: AuditRequest) -> dict[str, BesideRaters]:
    """Compare each judge with single raters, by judge name; empty if there is only one rater."""
    if not sample.raters:
        return {}
    ratings = []
    for codes in zip(*sample.raters.values(), strict=True):
        # A code beyond the labels is no verdict.
        ratings.append({name: float(code) for name, code in zip(sample.raters, codes, strict=True) if code < LABELS})
    results = {}
    for name, judge in sample.verdicts.items():
        verdicts = np.where(judge < LABELS, judge, np.nan)
        results[name] = beside_raters(ratings, verdicts, sample.groups, epsilon=request.epsilon, level="nominal")
    return results


def measure_verdict_repeats(sample: Preferences, _: AuditRequest) -> Repeats:
    """Measure the share of verdicts of the judge under audit that change when it is asked again."""
    first = sample.verdicts[sample.judge]
    codes: Codes = np.column_stack([first] if sample.repeats is None else [first, sample.repeats])
    verdicts = np.where(codes < LABELS, codes, np.nan)
    equal = np.where(np.isnan(verdicts), np.nan, verdicts == sample.verdict[:, None])
    equal[sample.verdict == UNASKED] = np.nan
    return compare_repeats(verdicts, equal, sample.groups, "the share of people's verdicts that it gives")


WORTH = np.array([1.0, 0.5, 0.0])
"""Worth of each verdict in a share: yes or a win, a tie, no or a loss."""

WEAKEST = 0.1
"""Smallest singular value at which the judge's confusion matrix is inverted. For yes and no this value is about
sensitivity + specificity - 1."""


class Rate(Struct, frozen=True, kw_only=True):
    """The share (0..1) of people's yes, or of a model's wins (ties half), with 95 % intervals.

    - name: whose share it is, as in "yes", or the model's name.
    - people: from labels only. judge: from the judge's verdicts only.
    - corrected: from both, by prediction-powered inference. inverted: from both, by the judge's confusion matrix.
    - labelled, unlabelled: numbers of items with the judge's verdict that have, or lack, a label.
    """

    name: str
    labelled: int
    unlabelled: int
    people: Estimate
    judge: Estimate
    corrected: Estimate
    inverted: Estimate


def measure_shares(sample: Preferences, _: AuditRequest) -> list[Rate]:
    """Measure people's share of yes, or win rates, from labels and the verdicts of the judge under audit.

    For yes/no verdicts, return the share of yes over all items, then over each answerer's. For preferences, return each
    model's win rate, the best model first, or the win rate of the answers a if no pair names its models. Items without
    the judge's verdict are left out.

    A pair counts for both of its models, and a pair of a model with itself for none:

    >>> def measure(people, judge, models):
    ...     ids, columns = [str(n) for n in range(40)], {"people": {"p": np.array(people * 10)}}
    ...     columns["judges"] = {"j": np.array(judge * 10)}
    ...     sample = Preferences(ids=ids, group=ids, models=models * 10, **columns)
    ...     for rate in measure_shares(sample, AuditRequest()):
    ...         print(rate.name, rate.people.value, rate.judge.value, rate.labelled, rate.unlabelled)
    >>> measure([A, A, A, TIE], [A, TIE, B, three_way.FAILED], [("x", "y"), ("y", "x"), ("x", "x"), ("z", None)])
    x 0.5 0.75 20 0
    y 0.5 0.25 20 0
    >>> measure([A, UNASKED] * 2, [A, A] * 2, [("x", "y"), ("y", "x")] * 2)
    x 1.0 0.5 20 20
    y 0.0 0.5 20 20
    """
    judged = sample.verdicts[sample.judge] < LABELS
    if sample.models and not sample.yes_or_no:
        first, second = (np.array(names, dtype=object) for names in zip(*sample.models, strict=True))
        # A pair of a model with itself says nothing of it.
        met = {name: judged & ((first == name) != (second == name)) for name in {*first, *second} - {None}}
        rates = [_measure_rate(name, sample, rows, second == name) for name, rows in met.items() if rows.any()]
        return sorted(rates, key=lambda rate: (-(rate.corrected.value or 0.0), rate.name))
    unturned = np.zeros(len(judged), dtype=bool)
    rates = [_measure_rate("yes" if sample.yes_or_no else "answers a", sample, judged, unturned)]
    for name, rows in three_way.rows_of(sample.parts.get("answerer", [])).items() if sample.yes_or_no else ():
        rates.append(_measure_rate(f"yes, {name}", sample, judged & np.isin(np.arange(len(judged)), rows), unturned))
    return rates


def _measure_rate(name: str, sample: Preferences, rows: Mask, turned: Mask) -> Rate:
    """Estimate the share of yes, or a model's win rate (ties half), over the items in the mask `rows`, (n,).

    `name`: the name of the rate. `turned`: mask of the items whose second answer is the model's, (n,): a verdict for
    answer b is a win there, elsewhere one for answer a.
    """
    people, judge = sample.verdict.astype(np.intp), sample.verdicts[sample.judge].astype(np.intp)
    people, judge = (np.where(turned & (side < LABELS), LABELS - 1 - side, side)[rows] for side in (people, judge))
    known, groups = people < LABELS, group_numbers(sample.groups[rows])
    weight = np.ones(len(people)) if sample.weight is None else np.nan_to_num(sample.weight[rows])
    chances = None if sample.weight is None else weight
    human = np.where(known, WORTH[people % LABELS], np.nan)
    return Rate(
        name=name,
        labelled=int(known.sum()),
        unlabelled=int((~known).sum()),
        people=mean_estimate(human, groups, share=True, weight=weight),
        judge=mean_estimate(WORTH[judge], groups, share=True),
        corrected=_correct(Answers(np.nan_to_num(human), WORTH[judge], known, groups, chances)),
        inverted=_invert(people, judge=judge, member=groups, weight=weight),
    )


def _correct(answers: Answers) -> Estimate:
    """Estimate people's share over all items by prediction-powered inference. `answers`: verdicts as 0, 1/2 or 1."""
    if why := answers.too_few:
        return Estimate(n=answers.n, undefined=why)
    parts = parts_of(answers)
    # Errors that no label happened to show would leave the interval too narrow: one more group errs.
    unseen = 1 / (answers.groups + 2) ** 2
    return _estimate(parts.value(parts.lam), parts.variance(parts.lam) + unseen, answers.n, answers.groups)


def _invert(people: Indices, judge: Indices, member: Indices, weight: Floats) -> Estimate:
    """Estimate people's share over all items by inverting the judge's confusion matrix.

    `people`, `judge`: codes of verdicts, (n,). An item without a label has a code of at least LABELS in `people`; the
    judge has a verdict on every item. `member`: number of each item's group, (n,). `weight`: 1 / chance of being
    labelled, (n,).
    """
    rows = np.flatnonzero(people < LABELS)
    groups, kinds, seen = len(np.unique(member[rows])), np.unique(people[rows]), np.unique(judge)
    if groups < FEWEST_GROUPS or len(kinds) < 2:
        return Estimate(n=len(rows), undefined=f"people's labels are of {len(kinds)} kinds, in {groups} groups")
    # One more item in each cell of the matrix, in a group of its own: no rate is then known to be 0 or 1.
    truth = np.r_[people[rows], np.repeat(kinds, len(seen))]
    given = np.r_[judge[rows], np.tile(seen, len(kinds))]
    group = np.r_[member[rows], len(member) + np.arange(len(kinds) * len(seen))]
    times = np.r_[weight[rows] / weight[rows].mean(), np.ones(len(kinds) * len(seen))]
    of_kind = np.where(truth[:, None] == kinds, times[:, None], 0.0)
    of_kind /= of_kind.sum(axis=0)
    hits, judged = given[:, None] == seen, judge[:, None] == seen
    matrix = hits.T @ of_kind
    # Nor do fewer kinds of verdicts than people give tell theirs apart.
    if len(seen) < len(kinds) or np.linalg.svd(matrix, compute_uv=False).min() < WEAKEST:
        return Estimate(n=len(rows), undefined="the judge hardly tells people's verdicts apart")
    inverse = np.linalg.pinv(matrix)
    shares = inverse @ judged.mean(axis=0)
    gain = WORTH[kinds] @ inverse
    # What each item, and each label, adds to the estimate less its expectation. Groups are independent.
    of_items = (judged - judged.mean(axis=0)) @ gain / len(judged)
    of_labels = -(of_kind @ shares) * ((hits - matrix.T[np.searchsorted(kinds, truth)]) @ gain)
    by_group = np.bincount(np.r_[member, group], np.r_[of_items, of_labels])
    return _estimate(float(WORTH[kinds] @ shares), float(by_group @ by_group), len(rows), groups)


def _estimate(value: float, variance: float, n: int, groups: int) -> Estimate:
    """Build the estimate of a share from its variance, clipped to 0..1. The quantile is that of `ppi.Answers`."""
    half = float(scipy.stats.t.ppf((1 + LEVEL) / 2, groups - 1)) * np.sqrt(variance * groups / (groups - 1))
    low, high = np.clip([value - half, value + half], 0.0, 1.0).tolist()
    return Estimate(value=float(np.clip(value, 0.0, 1.0)), n=n, interval=(low, high))
