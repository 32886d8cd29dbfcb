"""Judge against judge, and the gate."""

import numpy as np
import pytest
from msgspec.structs import replace
from samples import build_sample

from critic.errors import UsageError
from critic.stats.verdicts import codes, verdict_agreement
from eval_agreement import METRICS, agreement
from eval_agreement.measures.compare import compare, compare_judges
from eval_agreement.measures.gate import PREFERENCES, Limit, check, of_preferences, parse
from eval_agreement.measures.scorers import measure_scorers
from eval_agreement.metrics import measured
from eval_agreement.page.scores import draw_comparisons
from eval_agreement.sample import AuditRequest, RatedSample


def sample(seed: int = 0, noise: tuple[float, ...] = (0.5, 2.0), n: int = 300) -> RatedSample:
    random = np.random.default_rng(seed)
    human = random.integers(1, 11, n).astype(float)
    judges = [np.clip(np.rint(human + random.normal(0, spread, n)), 1, 10) for spread in noise]
    by_name = {f"judge{number}": scores for number, scores in enumerate(judges)}
    return build_sample(human, by_name, random.integers(n // 3, size=n))


def test_differences_are_those_of_the_metrics_on_the_rows_both_scored() -> None:
    data = sample()
    data.judges["judge0"][:7] = data.judges["judge1"][5:9] = np.nan
    comparison = compare(data, "judge0", "judge1")
    rows = np.arange(9, 300)
    first, second = (measured(data.human[rows], data.judges[name][rows], data.groups[rows]) for name in data.judges)
    assert (comparison.n, comparison.left_out) == (291, 9)
    assert [difference.metric for difference in comparison.differences] == list(METRICS)
    for difference in comparison.differences:
        better, worse = getattr(first, difference.metric), getattr(second, difference.metric)
        assert (difference.first, difference.second) == pytest.approx((better, worse), abs=1e-12)
        assert difference.value == difference.first - difference.second
        assert difference.interval is not None and difference.interval[0] < difference.value < difference.interval[1]
        assert difference.better == "judge0" and difference.p_holm is not None and difference.p_holm < 0.05


def test_the_judge_under_audit_is_compared_with_the_constant_judge() -> None:
    scorers = measure_scorers(sample(), AuditRequest())
    (pair,) = scorers.over_trivial
    error = pair.differences[0]
    assert (pair.first, pair.second, error.metric) == ("judge0", "constant", "mae")
    assert (error.first, error.second) == pytest.approx((scorers.judge.mae, scorers.constant.result.mae))


def test_equal_judges_are_never_told_apart() -> None:
    data = sample(noise=(1.0,))
    (comparison,) = compare_judges(replace(data, judges={**data.judges, "b": data.scores}), AuditRequest())
    for difference in comparison.differences:
        assert (difference.value, difference.interval, difference.p_value, difference.better) == (0, (0, 0), 1, None)
    assert [line.no_worse for line in comparison.differences[:2]] == [True, True]


def test_non_inferiority_needs_the_whole_interval() -> None:
    better, worse = (compare(sample(), *names) for names in (("judge0", "judge1"), ("judge1", "judge0")))
    assert [line.no_worse for line in better.differences] == [True, True, *[None] * 6]
    assert [line.no_worse for line in worse.differences] == [False, False, *[None] * 6]
    unsure = compare(sample(noise=(1.5, 1.5), n=60), "judge0", "judge1").differences[0]
    assert unsure.interval is not None and unsure.interval[0] < 0.1 < unsure.interval[1] and unsure.no_worse is False
    few = compare(sample(n=9), "judge0", "judge1")
    assert few.differences[0].no_worse is None and few.differences[0].interval is None


def test_a_pair_has_a_sentence_and_a_table_on_the_page() -> None:
    (part,) = draw_comparisons(compare_judges(sample(), AuditRequest()), None)
    (table,) = part.tables
    assert len(part.readings) == 1 and [row.name for row in table.rows] == [metric.name for metric in METRICS.values()]
    assert table.caption.startswith("judge0 less judge1, 300 answers (0 left out: not scored by both).")


def test_every_pair_of_judges_and_undefined_metrics() -> None:
    data = sample(noise=(0.5, 1.0, 2.0))
    data.judges["judge2"] = np.full(len(data.ids), 5.0)
    comparisons = compare_judges(data, AuditRequest())
    pairs = [(line.first, line.second) for line in comparisons]
    assert pairs == [("judge0", "judge1"), ("judge0", "judge2"), ("judge1", "judge2")]
    named = [difference.metric for difference in comparisons[1].differences]
    assert named == ["mae", "fuzzy", "strict", "qwk"]  # a constant has no correlation, so nothing to subtract


def test_a_metric_is_ahead_only_when_it_stands_against_all_of_them() -> None:
    """One look at seven metrics finds a difference by chance about once in six pairs of equal judges."""
    seeds = np.random.default_rng(8).integers(1 << 31, size=120).tolist()
    equal = (compare(sample(seed, noise=(1.5, 1.5), n=120), "judge0", "judge1") for seed in seeds)
    ahead = sum(any(line.better for line in comparison.differences) for comparison in equal)
    assert ahead <= 12


def test_gate_decides_on_the_bound_not_on_the_point() -> None:
    data = sample()
    result = measured(data.human, data.judges["judge0"], data.group)
    between = (result.mae + result.interval["mae"][1]) / 2
    (outcome,) = check([Limit("mae", between)], {"x": result})
    assert result.mae < between and not outcome.holds and outcome.bound == result.interval["mae"][1]
    (outcome,) = check([Limit("mae", result.interval["mae"][1] + 1e-9)], {"x": result})
    assert outcome.holds and "mae<=" in outcome.text and "kept" in outcome.text
    low = result.interval["pearson"][0]  # type: ignore[index]
    limits = [Limit("pearson", low - 1e-9), Limit("pearson", low + 1e-9)]
    assert [line.holds for line in check(limits, {"x": result})] == [True, False]


def test_gate_on_failures_and_on_what_cannot_be_decided() -> None:
    result = agreement([5, 6, 7, 8], [5, 5, None, 5])
    held = {line.limit.metric: line for line in check(parse("failed<=0.25, mae<=9, pearson>=-1"), {"x": result})}
    assert held["failed"].holds and not held["mae"].holds and not held["pearson"].holds
    assert "0 questions, 20 are needed" in held["mae"].text and "the same score" in held["pearson"].text
    assert not check(parse("failed<=0.2"), {"x": result})[0].holds


def test_gate_needs_enough_questions_and_an_interval_with_a_width() -> None:
    human = np.arange(1, 11).repeat(4).astype(float)
    off = np.clip(human + 1, 1, 10)
    few, many = (measured(human, off, np.arange(40) % groups) for groups in (10, 40))
    assert not check(parse("mae<=9"), {"x": few})[0].holds
    assert check(parse("mae<=9"), {"x": many})[0].holds
    perfect = measured(human, human, np.arange(40))
    assert perfect.interval["mae"] is None and perfect.interval["pearson"] is None
    assert "the same in every resample" in check(parse("mae<=1."), {"x": perfect})[0].text
    assert check(parse("strict>=9e-1"), {"x": perfect})[0].holds  # 40 of 40: at least 91 %


def test_gate_reads_numbers_and_can_be_about_one_sample() -> None:
    results = {"a": agreement([5], [5]), "b": agreement([5], [None])}
    assert [line.sample for line in check(parse("failed<=0"), results)] == ["a", "b"]
    assert [(line.sample, line.holds) for line in check(parse("b:failed<=0"), results)] == [("b", False)]
    with pytest.raises(UsageError, match="no sample 'c'; there are a, b"):
        check(parse("c:failed<=0"), results)


def test_gate_on_preferences_counts_pairs_not_asked_about() -> None:
    people, judge = codes(["a", "b"] * 20), codes([*["a", "b"] * 18, "a", "a", None, "failed"])
    held = check(
        parse("accuracy>=0.855,kappa>=0.99,failed<=0.05,failed<=0.04", PREFERENCES),
        {"x": of_preferences(verdict_agreement(people, judge, list(range(40))), 40)},
    )
    # With 37 of 38 equal it is 85.9 % at least, by the exact interval; of resamples 92 %.
    assert [line.holds for line in held] == [True, False, True, False]
    with pytest.raises(UsageError, match="no metric 'mae'; there are accuracy, decided"):
        parse("mae<=1", PREFERENCES)
