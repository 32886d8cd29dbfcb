"""eval_agreement.measures.preferences against counting by hand, scikit-learn, simulated judges and real preferences."""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import msgspec
import numpy as np
import pytest
from draws import share_that_holds
from samples import build_pairs
from scipy import stats

from critic.stats.estimate import Estimate
from critic.stats.verdicts import FAILED, TIE, UNASKED, A, B, Codes, both_orders, codes, majority, verdict_agreement
from eval_agreement.measure_tables import PREFERENCE_MEASURES, preference_sections
from eval_agreement.measures.measure import Findings, run_audit
from eval_agreement.measures.preferences import (
    PairedDifference,
    Preferences,
    VerdictScorers,
    length_preference,
    measure_matrix,
    paired_difference,
    position_bias,
    prefer_longer,
)
from eval_agreement.page.words import percent
from eval_agreement.sample import AuditRequest

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

LETTERS = {"a": "a", "b": "b", "t": "tie", "f": "failed", "-": None}


def column(letters: str) -> Codes:
    """One letter an item: a, b, t(ie), f(ailed), - (not asked)."""
    return codes(LETTERS[letter] for letter in letters)  # type: ignore[misc]


def draw(n: int, seed: int, weights: Sequence[float] = (1, 1, 1)) -> Codes:
    """Random verdicts; `weights` of a, tie, b, failed, unasked."""
    share = np.array(weights) / np.sum(weights)
    return np.random.default_rng(seed).choice(len(share), size=n, p=share).astype(np.int8)


def noisy(true: Codes, right: float, random: np.random.Generator) -> Codes:
    return np.where(random.random(len(true)) < right, true, random.integers(0, 3, len(true))).astype(np.int8)


def audit(given: Preferences) -> Findings[Preferences]:
    return run_audit(given, AuditRequest(), PREFERENCE_MEASURES)


def clustered(seed: int, right: Sequence[float]) -> tuple[Codes, list[Codes], np.ndarray[Any, Any]]:
    """60 groups of 4 items; half of the groups are easy for every judge. True verdicts, judges, groups."""
    random = np.random.default_rng(seed)
    group = np.repeat(np.arange(60), 4)
    true = random.integers(0, 3, 240).astype(np.int8)
    easy = (random.random(60) < 0.5)[group]
    judges = [np.where(easy, true, noisy(true, share, random)).astype(np.int8) for share in right]
    return true, judges, group


@pytest.mark.worlds
def test_intervals_cover_the_truth() -> None:
    """A judge right on easy groups and on 1/3 of the rest: accuracy 2/3, kappa 1/2. Rows alone are too sure."""
    worlds = [clustered(seed, [0.0]) for seed in range(300)]
    grouped = [verdict_agreement(true, judge, group) for true, (judge,), group in worlds]
    alone = [verdict_agreement(true, judge, np.arange(240)).accuracy for true, (judge,), _ in worlds[1::2]]
    for name, truth in (("accuracy", 2 / 3), ("kappa", 0.5)):
        assert 0.92 <= share_that_holds((getattr(agreed, name).interval for agreed in grouped), truth) <= 0.98, name
    assert share_that_holds((accuracy.interval for accuracy in alone), 2 / 3) < 0.9


def compared(people: Codes, first: Codes, second: Codes, group: Any) -> PairedDifference:
    return paired_difference(build_pairs(people, {"x": first, "y": second}, [f"q{name}" for name in group]), "x", "y")


def test_p_values_of_paired_differences() -> None:
    """Two judges alike: p is below 0.05 in about 5 of 100 worlds. A better one: nearly always."""

    def differences(worlds: int, *right: float) -> list[Any]:
        drawn = (clustered(seed, right) for seed in range(worlds))
        return [compared(true, first, second, group) for true, (first, second), group in drawn]

    alike, better = differences(300, 0.4, 0.4), differences(40, 0.8, 0.2)
    for name in ("accuracy", "kappa"):
        assert 0.02 <= np.mean([getattr(difference, name).p_value < 0.05 for difference in alike]) <= 0.08, name
    assert min(difference.accuracy.value for difference in better) > 0
    assert sum(difference.accuracy.p_value < 0.05 for difference in better) >= 38


def test_paired_difference_is_that_of_the_common_items() -> None:
    people = draw(80, 0, (1, 1, 1, 0, 0.3))
    first, second = draw(80, 1, (1, 1, 1, 0.3, 0.3)), draw(80, 2, (1, 1, 1, 0.3, 0.3))
    first[:30], group = people[:30], np.arange(80) // 2
    difference = compared(people, first, second, group)
    rows = (people < 3) & (first < 3) & (second < 3)
    requested = (people != UNASKED) & (first != UNASKED) & (second != UNASKED)
    assert (difference.first, difference.second) == ("x", "y")
    assert difference.accuracy.n == difference.kappa.n == rows.sum()
    assert difference.failed == requested.sum() - rows.sum() > 0
    alone_first, alone_second = (verdict_agreement(people[rows], judge[rows], group[rows]) for judge in (first, second))
    for name in ("accuracy", "kappa"):
        expected = getattr(alone_first, name).value - getattr(alone_second, name).value
        assert getattr(difference, name).value == pytest.approx(expected, abs=1e-12)
    back = compared(people, second, first, group)
    assert difference.accuracy.interval and back.accuracy.interval and difference.kappa.interval
    assert back.accuracy.interval == pytest.approx([-bound for bound in difference.accuracy.interval[::-1]], abs=1e-12)
    assert back.kappa.p_value == difference.kappa.p_value
    alike = compared(people, first, first, group)
    assert (alike.accuracy.value, alike.accuracy.interval, alike.accuracy.p_value) == (0.0, (0.0, 0.0), 1.0)


def test_convbench_tables() -> None:
    """ConvBench, tables 4-7 and their pooled table 3, with 315 verdicts a turn: human against GPT-3.5 and GPT-4."""
    equal = {"perception": (241, 250), "reasoning": (253, 276), "creation": (265, 277), "overall": (272, 275)}
    published = {
        "perception": (0.7651, 0.7937),
        "reasoning": (0.8032, 0.8762),
        "creation": (0.8413, 0.8793),
        "overall": (0.8635, 0.8730),
    }
    human = np.tile(np.array([A, B, B], dtype=np.int8), 4 * 105)
    judges = []
    for judge in (0, 1):
        hits = np.concatenate([np.arange(315) < counts[judge] for counts in equal.values()])
        judges.append(np.where(hits, human, B - human).astype(np.int8))
    turn = np.repeat(list(equal), 315).tolist()
    conversation = np.tile(np.arange(315), 4)
    given = build_pairs(human, {"chatgpt": judges[0], "gpt4": judges[1]}, conversation, parts={"turn": turn})
    matrix = measure_matrix(given, AuditRequest())
    compared = [f"{pair.first} {pair.second}" for pair in matrix.overall]
    assert compared == ["people chatgpt", "people gpt4", "chatgpt gpt4"]
    assert [pair.equal.value for pair in matrix.overall[:2]] == pytest.approx([0.8183, 0.8556], abs=6e-5)
    for name, values in published.items():
        pairs = matrix.by["turn"][name]
        assert [pair.equal.value for pair in pairs[:2]] == pytest.approx(values, abs=7e-5)
        assert all(pair.equal.n == 315 for pair in pairs)


@pytest.mark.worlds
def test_first_place_with_one_random_order() -> None:
    """a is better 4 times in 5 and shown first 9 times in 10: quality must not pass for a bias, and bias must show."""
    random = np.random.default_rng(0)
    n = 6000
    quality = np.where(random.random(n) < 0.8, A, B)
    a_is_first = random.random(n) < 0.9
    for lean in (0.0, 0.3):
        swayed = random.random(n) < lean
        verdict = np.where(swayed, np.where(a_is_first, A, B), quality).astype(np.int8)
        verdicts = np.full((n, 2), UNASKED, dtype=np.int8)
        verdicts[np.arange(n), np.where(a_is_first, 0, 1)] = verdict
        bias = position_bias(verdicts, np.arange(n))
        assert bias["first_place"].interval[0] < lean / 2 < bias["first_place"].interval[1]
        assert bias["first_place"].n == n
        assert bias["flips"].value is None and bias["flips"].undefined == "no items" and bias["flips"].n == 0
    share = np.mean(verdict == np.where(a_is_first, A, B)) - 0.5
    assert share > 0.3  # what counting all verdicts alike would call the bias


@pytest.mark.worlds
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_pulls_of_place_and_length_are_found_and_covered(share: float) -> None:
    """A judge that follows people, but in a `share` of its verdicts takes the first answer, or the longer one."""
    effects_by_world = []
    for seed in range(200):
        random = np.random.default_rng(seed)
        people, group, sizes = random.choice([A, B], 200), np.arange(200) // 2, random.integers(50, 500, (2, 200))
        pulled = random.random((3, 200)) < share
        by_order = [np.where(swayed, first, people) for swayed, first in zip(pulled, (A, B), strict=False)]
        by_length = np.where(pulled[2], prefer_longer(sizes[0] + 0.5, sizes[1] + 0.0), people).astype(np.int8)
        place = position_bias(np.stack(by_order, axis=1).astype(np.int8), group)["first_place"]
        length = length_preference(people.astype(np.int8), by_length, sizes[0] + 0.5, sizes[1] + 0.0, group)
        effects_by_world.append((place, length["difference"]))
    for effects in zip(*effects_by_world, strict=True):
        covered = share_that_holds((effect.interval for effect in effects), share / 2)
        assert 0.91 <= covered <= (0.985 if share else 1)
        assert not share or np.mean([effect.unseen is None for effect in effects]) > 0.98


def test_where_people_differ_a_judge_is_held_against_all_of_them() -> None:
    """By hand, of aab, abt, bb, ab and one verdict alone: the judge's share, another rater's, and the greatest."""
    people = {"x": column("aab-a"), "y": column("ab-a-"), "z": column("btbb-")}
    judges = {"j": column("abaaa"), "lost": column("f----")}
    people = {name: np.tile(codes, 20) for name, codes in people.items()}
    judges = {name: np.tile(codes, 20) for name, codes in judges.items()}
    findings = audit(build_pairs(people, judges))
    soft, agree, test = findings.beside["j"].soft, findings.beside["j"].raters, findings.beside["j"].replaces
    assert soft and agree and test
    assert soft.judge.value == pytest.approx((2 / 3 + 1 / 3 + 0 + 1 / 2) / 4)
    assert soft.people.value == pytest.approx((1 / 3 + 0 + 1 + 0) / 4)
    assert soft.ceiling.value == pytest.approx((2 / 3 + 1 / 3 + 1 + 1 / 2) / 4) and soft.differ.value == 3 / 4
    assert (soft.judge.n, agree.items, agree.single, agree.failed, agree.level) == (80, 80, 20, 0, "nominal")
    assert soft.difference.value == pytest.approx(1 / 24) and soft.difference.unseen
    assert "ideal judge on 62%" in soft.reading
    lost = findings.beside["lost"]
    assert lost.soft and lost.raters and lost.soft.judge.undefined == "no items" and lost.raters.failed == 100
    assert [line.n for line in test.lines] == [60, 60, 80] and test.undefined and "half of the items" in test.undefined
    (of_people,) = [section for section in preference_sections("s", findings) if section.key == "people"]
    assert [part.heading for part in of_people.parts] == ["s: j", "s: lost"]
    assert audit(build_pairs(column("a"), column("a"))).beside == {}, "one rater"


def sample(n: int = 120, raters: int = 3, **changes: Any) -> Preferences:
    random = np.random.default_rng(9)
    true = draw(n, 0)
    x = np.stack([noisy(true, 0.8, random), noisy(true, 0.8, random)], axis=1)
    x[::17, 0] = FAILED
    fields: dict[str, Any] = {
        "group": [f"g{place // 2}" for place in range(n)],
        "people": {f"r{number}": noisy(true, 0.9, random) for number in range(raters)},
        "judge": {"x": x, "y": noisy(true, 0.4, random)},
        "parts": {"turn": [f"{place % 3}" for place in range(n)], "lang": ["en"] * n},
        "length_a": random.integers(1, 30, n).astype(float),
        "length_b": random.integers(1, 30, n).astype(float),
    }
    return build_pairs(**{**fields, **changes})


def estimates(value: Any) -> list[Estimate]:
    if isinstance(value, Estimate):
        return [value]
    if isinstance(value, msgspec.Struct):
        value = [getattr(value, name) for name in value.__struct_fields__]
    elif isinstance(value, dict):
        value = list(value.values())
    return [estimate for part in value for estimate in estimates(part)] if isinstance(value, list) else []


def test_audit_holds_everything() -> None:
    given = sample()
    findings = audit(given)
    assert (findings.scorers.items, findings.scorers.rated, findings.scorers.raters) == (120, 120, 3)
    people = majority(list(given.people.values()))
    assert findings.scorers.people_ties.value == pytest.approx(np.mean(people == TIE))
    assert findings.scorers.agreement["x"] == verdict_agreement(people, both_orders(given.judges["x"]), given.group)
    assert findings.scorers.agreement["x"].failed == 8
    trivial = prefer_longer(given.length_a, given.length_b)
    assert list(findings.scorers.baselines) == ["constant", "longer"]
    assert findings.scorers.baselines["longer"] == verdict_agreement(people, trivial, given.group)
    commonest = Counter(people.tolist()).most_common(1)[0][1]
    assert findings.scorers.baselines["constant"].accuracy.value == pytest.approx(commonest / 120)
    assert set(findings.beside) == {"x", "y"} and findings.scorers.groups == 60
    assert list(findings.position) == ["x"] and list(findings.length) == ["x", "y"]
    compared = [f"{difference.first} {difference.second}" for difference in findings.differences]
    assert compared == ["x y", "x constant", "x longer", "y constant", "y longer"]
    assert findings.differences[0].accuracy.n == findings.scorers.agreement["x"].n
    pairs = {(pair.first, pair.second) for pair in findings.matrix.overall}
    assert pairs == set(combinations(["r0", "r1", "r2", "x", "y"], 2)) | {("people", "x"), ("people", "y")}
    assert {(pair.first, pair.second) for pair in findings.matrix.by["turn"]["1"]} == pairs
    assert {name: list(parts) for name, parts in findings.by.items()} == {judge: ["turn", "lang"] for judge in "xy"}
    assert findings.by["y"]["lang"]["en"] == findings.scorers.agreement["y"]
    assert len(estimates(findings)) > 100
    for estimate in estimates(findings):
        assert (estimate.value is None) == (estimate.undefined is not None)
        assert estimate.value is not None or (estimate.interval is None and estimate.p_value is None)
        assert estimate.interval is None or estimate.interval[0] <= estimate.interval[1]
    assert msgspec.json.decode(msgspec.json.encode(findings.scorers), type=VerdictScorers) == findings.scorers


@pytest.mark.parametrize(
    ("judge", "people", "reason"),
    [
        (np.full((120, 2), FAILED), None, "no items"),
        (None, np.full(120, UNASKED), "no items"),
        (np.full(120, A), np.full(120, A), "the same verdict"),
        (np.full(120, TIE), None, "says tie on every item"),
    ],
)
def test_what_is_undefined_has_a_reason(judge: Any, people: Any, reason: str) -> None:
    changes: dict[str, Any] = {} if judge is None else {"judge": {"x": judge}}
    findings = audit(sample(**changes | ({} if people is None else {"people": {"r": people}})))
    reasons = [estimate.undefined for estimate in estimates(findings.scorers.agreement["x"]) if estimate.undefined]
    assert reasons and all(reason in text for text in reasons)
    for estimate in estimates(findings):
        assert (estimate.value is None) == (estimate.undefined is not None)


def test_an_audit_without_items_and_a_difference_of_few_groups() -> None:
    empty = column("")
    nothing = audit(build_pairs(empty, empty))
    assert nothing.scorers.items == 0 and nothing.scorers.agreement["j"].accuracy.undefined == "no items"
    difference = compared(column("ab"), column("ab"), column("bb"), ["q", "r"])
    assert difference.accuracy.value == 0.5 and difference.accuracy.p_value is None


def test_a_page_of_yes_and_no_says_nothing_of_ties() -> None:
    """Nor what was decided, which is all; what was left out on reading stands above its table."""
    verdicts = column("abab" * 10)
    for yes_or_no in (True, False):
        sample = build_pairs(verdicts, verdicts, yes_or_no=yes_or_no, notes=["1 rows repeat"])
        first = preference_sections("s", audit(sample))[0].parts[0]
        ties, heads = "0.0 % ties" in first.tables[0].caption, "decided" in first.tables[0].head
        assert (ties, heads, first.readings) == (not yes_or_no, not yes_or_no, ["1 rows repeat"])


def test_the_matrix_has_a_row_and_a_column_for_each_scorer() -> None:
    """Each cell is the agreement of its two scorers, and by turn there is a table more for each turn."""
    findings = audit(sample())
    (matrix,) = [section for section in preference_sections("s", findings) if section.key == "matrix"]
    (part,) = matrix.parts
    assert [table.caption for table in part.tables] == ["Overall", "Turn 0", "Turn 1", "Turn 2"]
    table = part.tables[0]
    names = table.head[1:]
    assert [line.name for line in table.rows] == names and {"people", "x", "y"} <= {*names}
    for pair in findings.matrix.overall:
        line = table.rows[names.index(pair.first)]
        assert line.cells[names.index(pair.second)].text == percent(pair.equal).text


@pytest.mark.parametrize("errors", [0, 1, 3])
def test_kappa_is_never_certain_with_few_items(errors: int) -> None:
    """25 verdicts: without an error every resample is perfect, and with few they vary too little."""
    people = np.where(np.arange(25) < 15, A, B).astype(np.int8)
    judge = np.where(np.arange(25) < errors, B, people).astype(np.int8)
    agreed = verdict_agreement(people, judge, range(25))
    exact = stats.binomtest(25 - errors, 25).proportion_ci(method="exact")
    low, high = agreed.accuracy.interval or (0, 0)
    assert low <= exact.low + 1e-3 and high >= exact.high - 1e-3
    low, high = agreed.kappa.interval or (0, 0)
    chance = 1 - (0.6 * (0.6 - errors / 25) + 0.4 * (0.4 + errors / 25))
    assert low <= 1 - (1 - exact.low) / chance + 2e-2 and (high == 1 or errors)
    # Five copies of each item in a group are no more items.
    many = verdict_agreement(np.repeat(people, 5), np.repeat(judge, 5), np.arange(25).repeat(5)).kappa.interval
    assert many == pytest.approx(agreed.kappa.interval, abs=0.06)
