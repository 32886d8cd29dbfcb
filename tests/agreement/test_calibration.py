"""eval_agreement.calibration against brute force and simulated judges."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draws import times_of
from numpy.typing import NDArray

from critic.stats.estimate import Bootstrap
from eval_agreement import calibration
from eval_agreement.calibration import conformal, fitted, recalibration, reliability
from eval_agreement.metrics import half_up
from eval_agreement.rows import JudgedRows

Floats = NDArray[np.float64]
Answers = tuple[Floats, Floats, NDArray[np.intp]]


def answers(
    random: np.random.Generator, groups: int, size: int, offset: Floats | float = 0.0, noise: float = 0.5
) -> Answers:
    """People's scores, a judge's 4..7, and groups of `size` that share up to 0.4 points; people's mean at judge score j
    is j - offset[j - 4] exactly."""
    group = np.repeat(np.arange(groups), size)
    judge = random.integers(4, 8, len(group)).astype(float)
    error = np.broadcast_to(offset, 4)[judge.astype(int) - 4]
    human = judge - error + random.uniform(-0.4, 0.4, groups)[group] + random.uniform(-noise, noise, len(group))
    return human, judge, group


def test_bins_and_error_by_hand() -> None:
    human = [1.0, 3, 2, 8, 9, 10, 10]
    judge = [2.0, 2, 2, 8.5, 9, 9.4, None]
    result = reliability(JudgedRows(human, judge, list("abcdefg")))
    assert (result.n, result.failed) == (6, 1)
    assert [(b.score, b.n, b.groups, b.human) for b in result.bins] == [(2, 3, 3, 2.0), (9, 3, 3, 9.0)]
    assert result.bins[1].judge == pytest.approx(26.9 / 3)
    assert result.plain == pytest.approx(0.5 * (9 - 26.9 / 3))
    assert all(b.interval is None and "at least 10" in (b.undefined or "") for b in result.bins)


def test_intervals_of_bins_are_those_of_rows_drawn_group_by_group() -> None:
    human, judge, group = answers(np.random.default_rng(1), 60, 4)
    result = reliability(JudgedRows(human, judge, group, resamples=300))
    draws = Bootstrap(group, 300)
    weights = times_of(draws)
    for part in result.bins:
        inside = judge == part.score
        means = (weights[inside] * human[inside, None]).sum(axis=0) / weights[inside].sum(axis=0)
        assert part.interval == pytest.approx(draws.interval(means), abs=1e-9)
        assert part.human == pytest.approx(human[inside].mean())
    gaps = sum(abs((weights[judge == j] * (human - judge)[judge == j, None]).sum(axis=0)) for j in range(4, 8))
    assert result.plain is not None and result.error is not None
    assert result.error == pytest.approx(2 * result.plain - np.mean(gaps / weights.sum(axis=0)), abs=1e-9)


@pytest.mark.parametrize(
    ("offset", "lowest", "highest"),
    [
        ([0.0] * 4, 0.93, 0.98),
        ([0.8] * 4, 0.93, 0.97),
        ([1.0, 0.5, -0.2, -1.0], 0.93, 0.98),
        # One gap hides among bins without: the interval may be wide, but not too narrow.
        ([0.3, 0, 0, 0], 0.93, 1.0),
        ([0.05, -0.05] * 2, 0.93, 1.0),
    ],
)
def test_the_error_s_interval_covers(offset: list[float], lowest: float, highest: float) -> None:
    random = np.random.default_rng(2)
    truth = np.abs(offset).mean()
    hits, errors, plain = [], [], []
    for seed in range(400):
        result = reliability(JudgedRows(*answers(random, 80, 3, np.array(offset)), resamples=300, seed=seed))
        assert result.interval is not None and result.error is not None and result.plain is not None
        assert result.interval[0] <= result.error <= result.interval[1]
        hits.append(result.interval[0] - 1e-12 <= truth <= result.interval[1])
        errors.append(result.error)
        plain.append(result.plain)
        assert ("No sign" in result.reading) == (result.interval[0] == 0)
    assert lowest <= np.mean(hits) <= highest
    assert np.mean(errors) - truth < 0.65 * (np.mean(plain) - truth) + 0.005


def test_few_groups_and_no_rows() -> None:
    human, judge, group = answers(np.random.default_rng(4), 4, 30)
    few = reliability(JudgedRows(human, judge, group))
    assert few.interval is few.error is None and few.plain is not None
    assert few.undefined == "4 groups; an interval needs at least 5"
    none = reliability(JudgedRows([3, 4], [None, math.nan], ["a", "b"]))
    assert (none.n, none.failed, none.bins, none.plain) == (0, 2, [], None)
    assert none.undefined and none.undefined in none.reading
    assert reliability(JudgedRows([], [], [])).n == 0


def test_maps_are_least_squares_and_pooled_adjacent_violators() -> None:
    judge = np.array([2.0, 4, 4, 6, 8, 9])
    human = np.array([1.0, 5, 7, 3, 8, 10])
    steps = fitted("isotonic", human, judge)
    assert steps(np.array([1.0, 2, 4, 5, 6, 8, 10])) == pytest.approx([1, 1, 5, 5, 5, 8, 10])
    line = fitted("linear", human, judge)
    slope, intercept = np.polyfit(judge, human, 1)
    assert line(np.array([3.0, 7.5])) == pytest.approx([intercept + 3 * slope, intercept + 7.5 * slope])
    assert line(np.array([1.0, 10]))[1] == 10
    steep = fitted("linear", np.array([1.0, 9]), np.array([4.0, 6]))
    assert steep(np.array([1.0, 10])).tolist() == [1, 10]


@pytest.mark.parametrize("method", ["isotonic", "linear"])
def test_maps_are_those_of_scikit_learn(method: calibration.Method) -> None:
    isotonic, linear = (pytest.importorskip(f"sklearn.{name}") for name in ("isotonic", "linear_model"))
    random = np.random.default_rng(13)
    human, judge = random.uniform(1, 10, 30), random.integers(1, 9, 30).astype(float)
    library = isotonic.IsotonicRegression(out_of_bounds="clip") if method == "isotonic" else linear.LinearRegression()
    expected = library.fit(judge[:, None], human).predict(np.linspace(1, 10, 40)[:, None])
    assert fitted(method, human, judge)(np.linspace(1, 10, 40)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("method", ["isotonic", "linear"])
def test_a_lenient_judge_is_recalibrated(method: calibration.Method) -> None:
    human, judge, group = answers(np.random.default_rng(5), 120, 4, offset=1.5)
    judge[:7] = np.nan
    result = recalibration(JudgedRows(human, judge, group), method)
    assert (result.n, result.failed) == (473, 7)
    assert result.before is not None and result.after is not None
    used = ~np.isnan(judge)
    assert result.before.mae == pytest.approx(np.abs(judge - human)[used].mean())
    assert result.before.mean_error == pytest.approx((judge - human)[used].mean())
    assert result.before.rmse == pytest.approx(math.sqrt(((judge - human)[used] ** 2).mean()))
    assert result.before.mean_error == pytest.approx(1.5, abs=0.1)
    assert result.after.mean_error == pytest.approx(0, abs=0.1)
    assert result.after.mae < 0.45
    change = result.changes["mae"]
    assert change.value == pytest.approx(result.after.mae - result.before.mae)
    assert result.changes["mean_error"].value == pytest.approx(
        abs(result.after.mean_error) - abs(result.before.mean_error)
    )
    assert change.interval is not None and change.interval[0] < change.value < change.interval[1] < -1
    assert change.p_value is not None and change.p_value < 0.01
    assert "closer to people" in result.reading and "No sign" not in result.reading
    assert [score for score, _ in result.table] == [4, 5, 6, 7]
    assert [score for _, score in result.table] == pytest.approx([2.5, 3.5, 4.5, 5.5], abs=0.25)


def test_coarse_truth_costs_mean_absolute_error() -> None:
    """Where people say 1 or 10, the mean that recalibration predicts is never right."""
    random = np.random.default_rng(8)
    judge = random.choice([1.0, 10.0], 400)
    human = np.where(random.random(400) < 0.8, judge, 11 - judge)
    result = recalibration(JudgedRows(human, judge, np.arange(400)))
    assert result.before is not None and result.after is not None
    assert result.after.mae > result.before.mae and result.after.rmse < result.before.rmse
    assert "away from" in result.reading


def test_no_row_meets_a_map_or_an_interval_that_saw_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every group has a judge score of its own, so that what a map has seen shows in the scores."""
    group = np.repeat(np.arange(60), 3)
    judge = 1 + group / 10
    human = np.clip(judge + np.random.default_rng(9).normal(0, 0.3, 180), 1, 10)
    maps: list[list[set[float]]] = []
    fit = calibration.fitted

    def spied(method: calibration.Method, human: Floats, judge: Floats) -> calibration.Map:
        made, met = fit(method, human, judge), [set(judge.tolist())]
        maps.append(met)

        def predict(scores: Floats) -> Floats:
            met.append(set(scores.tolist()))
            return made(scores)

        return predict

    monkeypatch.setattr(calibration, "fitted", spied)
    recalibration(JudgedRows(human, judge, group))
    *folds, whole = maps
    assert whole[0] == set(judge.tolist()) and len(folds) == 5
    assert all(made_on.isdisjoint(measured_on) for made_on, measured_on in folds)
    assert set[float]().union(*(fold[1] for fold in folds)) == whole[0]
    maps.clear()
    conformal(JudgedRows(human, judge, group))
    for made_on, intervals_on, measured_on in maps:
        assert made_on.isdisjoint(intervals_on) and measured_on.isdisjoint(made_on | intervals_on)
    assert set[float]().union(*(each[2] for each in maps)) == set(judge.tolist())


def test_too_little_to_fit_on() -> None:
    human, judge, group = answers(np.random.default_rng(11), 9, 20)
    for result in (recalibration(JudgedRows(human, judge, group)), conformal(JudgedRows(human, judge, group))):
        assert result.undefined == "180 judged rows in 9 groups to fit on; at least 50 in 10 are needed"
        assert result.undefined in result.reading
    small = conformal(JudgedRows(*answers(np.random.default_rng(11), 49, 1)))
    assert small.half_width is small.coverage is small.interval is None and "49 judged rows" in (small.undefined or "")
    uneven = np.where(np.arange(180) < 140, 0, np.arange(180) // 2)
    lopsided = conformal(JudgedRows(human, judge, uneven))
    assert lopsided.coverage is None and lopsided.undefined is not None and "only 10 rows to make" in lopsided.undefined
    failed = recalibration(JudgedRows(human, np.full(180, np.nan), group))
    assert (failed.n, failed.failed, failed.after, failed.changes, failed.table) == (0, 180, None, {}, [])
    enough = answers(np.random.default_rng(11), 60, 1)
    constant = recalibration(JudgedRows(enough[0], np.full(60, 7), enough[2]))
    assert constant.after is not None and abs(constant.after.mean_error) < 0.1


def test_half_width_is_the_quantile_of_split_conformal_prediction() -> None:
    """Of 9 residuals 0.1 to 0.9 the largest: nine tenths of ten, rounded up."""
    human, judge = np.arange(1, 10) / 10 + 2, np.full(9, 2.0)
    assert calibration._half_width(lambda scores: scores, human, judge) == pytest.approx(0.9)
    human, judge = np.arange(1, 101) / 100 + 2, np.full(100, 2.0)
    assert calibration._half_width(lambda scores: scores, human, judge) == pytest.approx(0.91)


def test_conformal_intervals_hold_what_they_promise() -> None:
    random = np.random.default_rng(13)
    coverage, hits = [], []
    for seed in range(60):
        human, judge, group = answers(random, 100, 3, noise=1.5)
        result = conformal(JudgedRows(human, judge, group, resamples=200, seed=seed), "linear")
        assert result.coverage is not None and result.interval is not None
        coverage.append(result.coverage)
        hits.append(result.interval[0] <= 0.9 <= result.interval[1])
    assert np.mean(coverage) == pytest.approx(0.9, abs=0.012)
    assert np.mean(hits) > 0.9


def test_full_coverage_is_as_sure_as_its_groups_are_many() -> None:
    scores = np.random.default_rng(0).integers(1, 11, 120).astype(float)
    found = calibration.conformal(JudgedRows(scores, scores, np.arange(120)))
    assert found.coverage == 1.0 and found.interval == pytest.approx((0.025 ** (1 / 120), 1.0))
    assert "100.0%, 97.0% to 100.0%" in found.reading


def test_gpt4_on_llmeval2(shared: Path) -> None:
    lines = (shared / "data/human_scored/llmeval2.jsonl").read_text("utf-8").splitlines()
    rows: list[dict[str, Any]] = [row for line in lines if not (row := json.loads(line))["flags"]]
    human = half_up(np.array([row["score_1_10"] for row in rows]))
    judge = np.array([row["gpt4_score_1_10"] for row in rows])
    group = [row["group"] for row in rows]
    curve = reliability(JudgedRows(human, judge, group))
    assert [part.score for part in curve.bins] == list(range(1, 11))
    assert sum(part.n for part in curve.bins) == curve.n == len(rows)
    assert curve.bins[-1].human == pytest.approx(human[judge == 10].mean())
    assert curve.interval is not None and 1 < curve.interval[0] < curve.interval[1] < 1.4
    spread = conformal(JudgedRows(human, judge, group))
    assert spread.coverage == pytest.approx(0.9, abs=0.02)
    assert spread.half_width is not None and spread.half_width > 3.5
