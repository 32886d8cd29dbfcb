"""Raters and the alternative annotator test against other implementations, arithmetic by hand, and simulations."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from draws import counts_of
from scipy import stats

from critic.stats.estimate import Bootstrap
from eval_agreement.measures import raters
from eval_agreement.measures.raters import (
    FEWEST_BLOCKS,
    AlternativeAnnotator,
    Level,
    RaterAgreement,
    Ratings,
    beside_raters,
    move_to_ratings,
)

LEVELS: tuple[Level, ...] = ("ordinal", "nominal")
NAN = math.nan

# Krippendorff (2011), the worked example with four observers and missing data.
FOUR_OBSERVERS = np.array(
    [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, NAN, NAN, NAN],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NAN, 3],
        [NAN, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NAN],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NAN],
    ]
).T


def by_item(ratings: Any) -> Ratings:
    """Of an array (items, raters), NaN where a rater gave no score: each item's by rater, called 1, 2, …"""
    rows = [enumerate(row, 1) if isinstance(row, np.ndarray) else row.items() for row in ratings]
    return [{str(name): float(score) for name, score in row if not np.isnan(score)} for row in rows]


def rater_agreement(ratings: Any, *rest: Any, **options: Any) -> RaterAgreement:
    return raters.rater_agreement(by_item(ratings), *rest, **options)


def alternative_annotator(ratings: Any, judge: Any, group: Any, **options: Any) -> AlternativeAnnotator:
    return raters.alternative_annotator(raters.collect_ratings(by_item(ratings), judge, group), **options)


def soft_agreement(ratings: Ratings, judge: Any, group: Any) -> Any:
    return raters.soft_agreement(raters.collect_ratings(ratings, judge, group))


def scored(items: int, raters: int, seed: int, missing: float = 0.2, step: float = 1.0) -> Any:
    """People's scores, a judge's, and groups of about three items; all err about a true score."""
    random = np.random.default_rng(seed)
    true = random.normal(5.5, 2.5, items)[:, None] + random.normal(0, 1, (items, raters + 1))
    scores = np.clip(np.round(true / step) * step, 1, 10)
    scores[:, :raters][random.random((items, raters)) < missing] = NAN
    return scores[:, :raters], scores[:, raters], random.integers(items // 3 + 1, size=items)


def alpha_of(ratings: Any, level: Level = "ordinal") -> float | None:
    return rater_agreement(ratings, range(len(ratings)), level=level, resamples=0).people.value


@pytest.mark.parametrize(("level", "alpha"), [("nominal", 0.743), ("ordinal", 0.815)])
def test_alpha_of_the_published_example(level: Level, alpha: float) -> None:
    assert alpha_of(FOUR_OBSERVERS, level) == pytest.approx(alpha, abs=5e-4)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("step", [1.0, 0.25, 1e-9])
def test_alpha_equals_the_reference_package(level: Level, step: float) -> None:
    krippendorff = pytest.importorskip("krippendorff")
    for seed in range(5):
        ratings = scored(60, 5, seed, missing=0.5, step=step)[0]
        expected = krippendorff.alpha(reliability_data=ratings.T, level_of_measurement=level)
        assert alpha_of(ratings, level) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("ratings", "reason"),
    [
        (np.full((4, 3), 7.0), "same score"),
        (np.full((3, 2), 1.1 + 2.2), "same score"),
        (np.array([[7.0, NAN], [NAN, 3.0]]), "no item has two ratings"),
        (np.full((3, 2), NAN), "no item has two ratings"),
        (np.zeros((0, 3)), "no item has two ratings"),
        ([], "no item has two ratings"),
        (np.array([[7.0, 7.0], [7.0, 7.0], [NAN, 3.0]]), "same score"),
    ],
)
@pytest.mark.parametrize("level", LEVELS)
def test_alpha_without_a_value_has_a_reason(ratings: Any, reason: str, level: Level) -> None:
    judge = np.full(len(ratings), 7.0 if len(ratings) != 3 else 3.3)
    result = rater_agreement(ratings, list(range(len(ratings))), judge, level)
    assert result.people.value is None and result.people.interval is None
    assert reason in (result.people.undefined or "")
    assert result.difference is not None and result.difference.value is None and result.difference.undefined
    assert alpha_of(ratings, level) is None


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("step", [1.0, 1e-9])
def test_interval_is_that_of_alpha_on_repeated_rows(level: Level, step: float) -> None:
    ratings, judge, group = scored(60, 3, 3, step=step, missing=0.1)
    kept = (~np.isnan(ratings)).sum(axis=1) > 1
    agreed = rater_agreement(ratings, group, judge, level, resamples=40)
    draws = Bootstrap(group[kept], 40)
    ratings, judge = ratings[kept], judge[kept]
    everyone = np.column_stack([ratings, judge])
    people, both = [], []
    for count in counts_of(draws).T:
        rows = np.repeat(np.arange(len(judge)), count[draws.member])
        people.append(alpha_of(ratings[rows], level))
        both.append(alpha_of(everyone[rows], level))
    alone, together = np.array(people, dtype=float), np.array(both, dtype=float)
    for estimate, values in (
        (agreed.people, alone),
        (agreed.with_judge, together),
        (agreed.difference, together - alone),
    ):
        assert estimate.interval == pytest.approx(draws.interval(values), abs=1e-10)


def test_soft_agreement_is_with_peoples_distribution_not_their_mean() -> None:
    ratings = np.array([[1, 1, 2], [3, 3, 3], [5, 4, NAN], [2, 2, 5], [4, NAN, NAN]] * 10)
    soft = beside_raters(by_item(ratings), np.array([1, 3.2, 4.9, 5, 4] * 10), np.arange(50)).soft
    assert soft.judge.value == pytest.approx((2 / 3 + 1 + 1 / 2 + 1 / 3) / 4)
    assert soft.people.value == pytest.approx((1 / 3 + 1 + 0 + 1 / 3) / 4)
    assert soft.ceiling.value == pytest.approx((2 / 3 + 1 + 1 / 2 + 2 / 3) / 4) and soft.differ.value == 0.75
    assert soft.difference.interval is not None and soft.difference.interval[0] > 0
    assert "agree more often than two people do" in soft.reading and soft.differ.n == 40
    split = np.where(np.random.default_rng(0).random((200, 6)) < 0.5, 1.0, 10.0)
    mean, same = split.mean(axis=1), np.random.default_rng(1).permuted(split, axis=1)[:, 0]
    crowd = np.column_stack([split, np.tile(np.arange(1, 10.9, 0.9), 19)[:200]])  # more than ten ratings
    assert soft_agreement(by_item(crowd), mean, np.arange(200)).judge.value < 0.1
    by_rater = soft_agreement(by_item(split), same, np.arange(200))
    assert by_rater.judge.value == pytest.approx(0.58, abs=0.04) and "more often" in by_rater.reading  # it saw them
    assert soft_agreement([{"a": 1.0}], np.ones(1), [0]).reading.startswith("None of the answers")
    assert move_to_ratings(by_item(split), np.array([3.0, NAN, 9])).tolist()[::2] == [1.0, 10.0]


def test_people_and_judge_are_compared_on_the_same_items() -> None:
    ratings, judge, group = scored(90, 3, 5, missing=0.4)
    judge[:20] = NAN
    result = rater_agreement(ratings, group, judge, resamples=100)
    given = (~np.isnan(ratings)).sum(axis=1)
    kept = (given > 1) & ~np.isnan(judge)
    assert (result.items, result.failed) == (int(kept.sum()), 20)
    assert result.single == int(((given < 2) & ~np.isnan(judge)).sum()) > 0
    assert result.items + result.failed + result.single == 90
    assert (result.raters, result.ratings) == (3, int(given[kept].sum()))
    together = np.column_stack([ratings, judge])[kept]
    assert result.people.value == pytest.approx(alpha_of(ratings[kept]), abs=1e-12)
    assert result.with_judge.value == pytest.approx(alpha_of(together), abs=1e-12)
    assert result.difference.value == pytest.approx(result.with_judge.value - result.people.value, abs=1e-12)  # type: ignore[operator]
    assert rater_agreement(ratings[kept], group[kept], judge[kept], resamples=100).people == result.people


# Five items, three raters and a judge f. For each rater, the others' mean decides who is nearer:
#   item  h1 h2 h3  f | h1: mean  |h1-m| |f-m| | h2: mean  |h2-m| |f-m| | h3: mean  |h3-m| |f-m|
#    1     4  6  8  7 |     7.0     3.0   0.0  |     6.0     0.0   1.0  |     5.0     3.0   2.0
#    2     5  5  5  5 |     5.0     0.0   0.0  |     5.0     0.0   0.0  |     5.0     0.0   0.0
#    3     2  9  1  4 |     5.0     3.0   1.0  |     1.5     7.5   2.5  |     5.5     4.5   1.5
#    4     7  3  -  5 |     3.0     4.0   2.0  |     7.0     4.0   2.0  |      -
#    5     6  6  9  3 |     7.5     1.5   4.5  |     7.5     1.5   4.5  |     6.0     3.0   3.0
HAND = np.array([[4, 6, 8], [5, 5, 5], [2, 9, 1], [7, 3, NAN], [6, 6, 9]])
HAND_JUDGE = [7.0, 5.0, 4.0, 5.0, 3.0]
HAND_WINS = {"1": ([1, 1, 1, 1, 0], [0, 1, 0, 0, 1]), "2": ([0, 1, 1, 1, 0], [1, 1, 0, 0, 1])} | {
    "3": ([1, 1, 1, 1], [0, 1, 0, 1])
}
"""W^f and W^h of each rater, item by item; rater 3 skipped item 4."""


def test_the_alternative_annotator_by_hand() -> None:
    """The five items forty times, each a group of its own: rho, d and t follow from the table above."""
    result = alternative_annotator(np.tile(HAND, (40, 1)), HAND_JUDGE * 40, np.arange(200))
    assert [line.rater for line in result.lines] == ["1", "2", "3"]
    assert [line.n for line in result.lines] == [200, 200, 160]
    assert [line.judge_advantage for line in result.lines] == [4 / 5, 3 / 5, 4 / 4]
    assert [line.rater_advantage for line in result.lines] == [2 / 5, 3 / 5, 2 / 4]
    for line in result.lines:
        judge, rater = HAND_WINS[line.rater]
        d = np.tile(np.subtract(rater, judge), 40)
        assert line.p == pytest.approx(stats.ttest_1samp(d, 0.2, alternative="less").pvalue, rel=1e-9)
    assert result.rho == pytest.approx((4 / 5 + 3 / 5 + 1) / 3)
    # It does as well as each rater, but knows no more than a constant: 7, 5, 4, 5, 3 beside means of 6, 5, 4, 5, 7.
    assert (result.omega, result.passes, result.undefined) == (1.0, False, None)
    assert result.over_constant and result.over_constant.value == pytest.approx(-5 / 14)
    assert (result.left_out, result.epsilon) == (0, 0.2)


def nearness(value: float, others: list[float]) -> float:
    """Return S of a score: how near it is to the others'."""
    return round(-math.sqrt(math.fsum((value - other) ** 2 for other in others) / len(others)), 9)


def brute_wins(
    ratings: Any, judge: Any, rater: int, score: Callable[[float, list[float]], float] = nearness
) -> tuple[list[int], list[int]]:
    """Return W^f and W^h by the definition of S."""
    judge_wins, rater_wins = [], []
    for row, judged in zip(ratings, judge, strict=True):
        others = [v for k, v in enumerate(row) if k != rater and not math.isnan(v)]
        if others and not math.isnan(row[rater]) and not math.isnan(judged):
            of_judge, of_rater = score(judged, others), score(row[rater], others)
            judge_wins.append(int(of_judge >= of_rater))
            rater_wins.append(int(of_rater >= of_judge))
    return judge_wins, rater_wins


def clustered_p(d: Any, group: Any, epsilon: float) -> float:
    names = sorted(set(group))
    mean = sum(d) / len(d)
    squares = sum(sum(x - mean for x, g in zip(d, group, strict=True) if g == name) ** 2 for name in names)
    error = math.sqrt(len(names) / (len(names) - 1) * squares) / len(d)
    return float(stats.t.cdf((mean - epsilon) / error, len(names) - 1))


def test_of_verdicts_a_rater_is_as_close_as_so_many_others_say_the_same() -> None:
    """The nominal test against S by its definition: the share of the other raters that give the verdict. That codes of
    verdicts have an order and a mean plays no part: a tie lies between a and b, but is no nearer to either."""
    random = np.random.default_rng(3)
    ratings, judge = random.integers(0, 3, (60, 4)).astype(float), random.integers(0, 3, 60).astype(float)
    ratings[random.random((60, 4)) < 0.1] = NAN
    test = alternative_annotator(ratings, judge, np.arange(60), level="nominal")
    assert len(test.lines) == 4
    for rater, line in enumerate(test.lines):
        wins = brute_wins(ratings, judge, rater, score=lambda verdict, others: others.count(verdict))
        assert (line.judge_advantage, line.rater_advantage) == pytest.approx(tuple(np.mean(wins, axis=1)))
    split, ties = np.tile([0.0, 0, 2, 2], (60, 1)), np.full(60, 1.0)
    assert alternative_annotator(split, ties, np.arange(60), level="nominal").passes is False
    assert alternative_annotator(split, ties, np.arange(60)).omega == 1  # as scores 1 is the mean of 0 and 2


def test_the_variance_is_that_of_the_sums_of_groups() -> None:
    ratings, judge, _ = scored(300, 4, 17, missing=0.3)
    group = [f"g{int(x)}" for x in np.random.default_rng(0).integers(0, 30, 300) ** 1.3]
    result = alternative_annotator(ratings, judge, group)
    for rater, line in enumerate(result.lines):
        judge_wins, rater_wins = brute_wins(ratings.tolist(), judge.tolist(), rater)
        others = np.delete(ratings, rater, axis=1)
        used = ~np.isnan(ratings[:, rater]) & ~np.isnan(others).all(axis=1)
        names = [name for name, keep in zip(group, used, strict=True) if keep]
        assert line.groups == len(set(names))
        assert line.p == pytest.approx(clustered_p(np.subtract(rater_wins, judge_wins), names, 0.2), rel=1e-9)


def test_raters_with_few_items_are_left_out_and_counted() -> None:
    ratings, judge, _ = scored(200, 5, 19, missing=0.0)
    ratings[29:, 4] = NAN
    result = alternative_annotator(ratings, judge, np.arange(200))
    assert [line.rater for line in result.lines] == ["1", "2", "3", "4"]
    assert result.left_out == 1
    without = alternative_annotator(np.delete(ratings, 4, axis=1), judge, np.arange(200))
    assert [line.p for line in result.lines] != [line.p for line in without.lines]
    ratings[29, 4] = 5.0
    thirty = alternative_annotator(ratings, judge, np.arange(200))
    assert [line.n for line in thirty.lines] == [200, 200, 200, 200, 30] and thirty.left_out == 0
    lumped = np.where(np.arange(200) < 100, np.arange(200) % (FEWEST_BLOCKS - 1), np.arange(200))
    ratings[100:, 3] = NAN
    assert [line.rater for line in alternative_annotator(ratings, judge, lumped).lines] == ["1", "2", "3"]


@pytest.mark.parametrize("level", ["ordinal", "nominal"])
def test_a_constant_judge_does_not_replace_noisy_raters(level: Any) -> None:
    """By closeness only it would, at the default epsilon; a judge that knows the answers does."""
    random = np.random.default_rng(5)
    truth = random.integers(4, 8, 200) if level == "ordinal" else random.random(200) < 0.8
    noisy = random.normal(0, 2, (4, 200)) if level == "ordinal" else random.random((4, 200)) < 0.15
    scores = np.clip(np.rint(truth + noisy), 1, 10) if level == "ordinal" else truth ^ noisy.astype(bool)
    ratings = [dict(zip("abcd", map(float, column), strict=True)) for column in scores.T]
    knows = alternative_annotator(ratings, truth.astype(float), range(200), level=level)
    constant = alternative_annotator(ratings, np.full(200, 6.0 if level == "ordinal" else 1.0), range(200), level=level)
    nearly = np.where(np.arange(200) == 7, 5.0 if level == "ordinal" else 0.0, 6.0 if level == "ordinal" else 1.0)
    assert knows.passes and knows.over_constant and knows.over_constant.side > 0
    assert constant.omega == 1 and constant.passes is False and "than a constant judge" in constant.reading
    assert alternative_annotator(ratings, nearly, range(200), level=level).passes is False
