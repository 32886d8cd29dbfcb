"""Prediction-powered means against ppi_py, a clustered variance by its definition, and simulated answers."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import human_row, run, write_jsonl
from draws import share_that_holds
from numpy.typing import NDArray
from samples import build_sample, corrected_mean, read_llmeval2
from scipy import stats

from eval_agreement.measures import ppi
from eval_agreement.measures.ppi import CorrectedMean, LabelPlan, worth_beside_any_number
from eval_agreement.sample import AuditRequest

Floats = NDArray[np.float64]
TRUTH = 5.5


def answers(
    random: np.random.Generator,
    labelled: int,
    rows: int,
    size: int = 1,
    alike: float = 0.0,
    slope: float = 0.8,
    whole_groups: bool = False,
    noise_of_group: float = 0.0,
) -> tuple[Floats, Floats, Floats, NDArray[np.intp]]:
    """All human scores (mean TRUTH), those of a random draw of labels, a lenient judge's scores, groups of `size`."""
    group = np.repeat(np.arange(rows // size), size)
    quality = random.normal(0, 1.2, rows) + random.normal(0, alike, rows // size)[group]
    human = np.clip(TRUTH + quality, 1, 10)
    noise = slope * (random.normal(0, 1.2, rows) + random.normal(0, 1, rows // size)[group] * noise_of_group)
    judge = np.clip(TRUTH + 1 + slope * quality + noise, 1, 10)
    if whole_groups:
        drawn = np.isin(group, random.choice(rows // size, labelled // size, replace=False))
    else:
        drawn = np.isin(np.arange(rows), random.choice(rows, labelled, replace=False))
    return human, np.where(drawn, human, np.nan), judge, group


def plan(half_width: float, human: Any, judge: Any, group: Any, **fields: Any) -> LabelPlan:
    planned = ppi.plan_labels(build_sample(human, judge, group, **fields), AuditRequest(within=half_width))
    assert planned is not None
    return planned


def independent(labels: Floats, judge: Floats, lam: float | None = None) -> tuple[CorrectedMean, tuple[float, float]]:
    """The mean without groups, and its interval with the normal quantile, as published."""
    result = corrected_mean(labels, judge, np.arange(len(judge)), lam)
    n = result.labelled
    narrower = stats.norm.ppf(0.975) / (stats.t.ppf(0.975, n - 1) * math.sqrt(n / (n - 1)))
    low, high = (result.value + narrower * (end - result.value) for end in result.interval)
    return result, (low, high)


@pytest.mark.parametrize("lam", [None, 0.0, 0.37, 1.0])
@pytest.mark.parametrize(("n", "rest"), [(40, 15), (40, 700)])
@pytest.mark.parametrize("slope", [0.7, -0.7, 0.1])
def test_independent_answers_equal_ppi_py(lam: float | None, n: int, rest: int, slope: float) -> None:
    ppi_py = pytest.importorskip("ppi_py")
    random = np.random.default_rng(n + rest)
    human = np.clip(random.normal(5, 2, n), 1, 10)
    judge = np.clip(5 + slope * (human - 5) + slope * random.normal(0, 2, n), 1, 10)
    others = np.clip(5 + slope * random.normal(-0.5, 2.8, rest), 1, 10)
    ours, interval = independent(np.append(human, np.full(rest, np.nan)), np.append(judge, others), lam)
    ends = ppi_py.ppi_mean_ci(human, judge, others, alpha=0.05, lam=lam)
    assert interval == pytest.approx(tuple(float(np.squeeze(end)) for end in ends), abs=1e-9)
    value = ppi_py.ppi_mean_pointestimate(human, judge, others, **({} if lam is None else {"lam": lam}))
    assert ours.value == pytest.approx(float(np.squeeze(value)), abs=1e-9)
    assert lam is not None or ours.lam == {-0.7: 0, 0.1: 1}.get(slope, pytest.approx(0.5, abs=0.49))


def test_clustered_variance_is_the_sum_of_squared_group_totals() -> None:
    _, labels, judge, group = answers(np.random.default_rng(2), 120, 400, size=8, alike=1)
    names = [f"question {number}" for number in group]
    result = corrected_mean(labels, judge, names, lam=0.6)
    known = ~np.isnan(labels)
    n, rest = known.sum(), (~known).sum()
    left = labels[known].mean() - 0.6 * judge[known].mean()
    variance = variance_alone = 0.0
    for number in set(group):
        total = alone = 0.0
        for row in np.flatnonzero(group == number):
            if known[row]:
                total += (labels[row] - 0.6 * judge[row] - left) / n
                alone += (labels[row] - labels[known].mean()) / n
            else:
                total += 0.6 * (judge[row] - judge[~known].mean()) / rest
        variance += total**2
        variance_alone += alone**2
    groups = len(set(group[known]))
    far = stats.t.ppf(0.975, groups - 1) * math.sqrt(groups / (groups - 1))
    assert result.groups == groups
    assert np.ptp(result.interval) == pytest.approx(2 * far * math.sqrt(variance))
    assert np.ptp(result.human_interval) == pytest.approx(2 * far * math.sqrt(variance_alone))
    assert result.effective == pytest.approx(n * variance_alone / variance)


@pytest.mark.worlds
@pytest.mark.parametrize("whole_groups", [False, True])
def test_intervals_cover_grouped_answers_and_ignoring_groups_does_not(whole_groups: bool) -> None:
    random = np.random.default_rng(5)
    grouped, published = [], []
    for _ in range(1000):
        _, labels, judge, group = answers(random, 300, 1500, size=10, alike=1, whole_groups=whole_groups)
        grouped.append(corrected_mean(labels, judge, group).interval)
        published.append(independent(labels, judge)[1])
    assert 0.93 <= share_that_holds(grouped, TRUTH) <= 0.97
    assert share_that_holds(published, TRUTH) < 0.85


@pytest.mark.worlds
def test_failures_that_go_with_quality_do_not_bias() -> None:
    random = np.random.default_rng(7)
    values, dropped, intervals = [], [], []
    for _ in range(1000):
        human, labels, judge, group = answers(random, 150, 1000)
        judge[(human < 4.5) & (random.random(1000) < 0.8)] = np.nan
        result = corrected_mean(labels, judge, group)
        intervals.append(result.interval)
        values.append(result.value)
        kept = ~np.isnan(judge)
        dropped.append(corrected_mean(labels[kept], judge[kept], group[kept]).value)
    assert abs(np.mean(values) - TRUTH) < 4 * np.std(values) / math.sqrt(1000)
    assert 0.93 <= share_that_holds(intervals, TRUTH) <= 0.97
    assert np.mean(dropped) > TRUTH + 0.2
    known = ~np.isnan(labels)
    assert result.failed_labelled == (np.isnan(judge) & known).sum() > 0
    assert result.failed_unlabelled == (np.isnan(judge) & ~known).sum() > 0
    assert (result.labelled, result.unlabelled) == (150, 850)
    assert result.judge_only == pytest.approx(np.nanmean(judge))


def test_edges() -> None:
    human, labels, judge, group = answers(np.random.default_rng(8), 30, 90)
    nothing = corrected_mean(np.full(90, np.nan), judge, group)
    assert nothing.value is nothing.interval is nothing.human_only is None
    assert nothing.undefined == "labels in 0 groups; at least 5 are needed"
    assert nothing.undefined in nothing.reading
    few = corrected_mean(labels, judge, np.arange(90) % 4)
    assert few.value is few.interval is few.effective is None and few.human_only is not None
    assert corrected_mean([], [], []).undefined

    known = ~np.isnan(labels)
    complete = corrected_mean(labels[known], judge[known], group[known])
    assert (complete.unlabelled, complete.lam, complete.effective) == (0, 0.0, pytest.approx(30))
    assert complete.value == complete.human_only
    two_values = np.where(known, 5.3, 6.7)
    for blind in ([None] * 90, np.where(known, np.nan, judge), np.full(90, 7.3), two_values, np.where(known, 5, 7)):
        result = corrected_mean(labels, blind, group)
        assert (result.lam, result.effective) == (pytest.approx(0, abs=1e-12), pytest.approx(30)), blind
        assert result.interval == pytest.approx(complete.interval)
    assert corrected_mean(labels, [None] * 90, group).judge_only is None
    unsure = np.where(human < np.sort(human)[23], np.nan, 7)
    result = corrected_mean(labels, unsure, group)
    assert (result.lam, result.effective, result.judge_only) == (0, pytest.approx(30), 7)
    assert result.failed_labelled + result.failed_unlabelled == 23
    constant = corrected_mean(np.where(known, 4.0, np.nan), judge, group)
    assert (constant.value, constant.interval, constant.effective) == (4.0, (4.0, 4.0), 30.0)


@pytest.mark.parametrize(("apart", "rest", "warned"), [(2.9, 200, False), (3.2, 200, True), (9.0, 29, False)])
def test_a_warning_takes_three_standard_errors_and_thirty_groups(apart: float, rest: int, warned: bool) -> None:
    spread = np.resize([1.0, -1.0], 100 + rest)  # of variance 1 on both sides, but for the one in 29
    spread[100:] -= spread[100:].mean()
    judge = 5.5 + spread
    judge[:100] += apart * np.sqrt(1 / 100 + np.var(spread[100:]) / rest)
    labels = np.where(np.arange(100 + rest) < 100, 5.0 + spread, np.nan)
    mean = corrected_mean(labels, judge, np.arange(100 + rest))
    assert (mean.caution is not None) == warned == ("above its mean on the others" in mean.reading)


@pytest.mark.parametrize(
    ("size", "alike", "half_width", "slope"),
    [(1, 0.0, 0.12, 0.8), (1, 0.0, 0.25, 0.8), (1, 0.0, 0.25, 0.15), (6, 1.0, 0.2, 0.8), (6, 1.0, 0.3, 0.8)],
)
def test_planned_labels_reach_the_half_width(size: int, alike: float, half_width: float, slope: float) -> None:
    random = np.random.default_rng(10)
    plans = []
    for _ in range(60):
        _, labels, judge, group = answers(random, 300, 1200, size, alike, slope)
        plans.append(plan(half_width, labels, judge, group))
    assert all(planned.with_judge and planned.without_judge for planned in plans)
    with_judge = round(np.median([planned.with_judge or 0 for planned in plans]))
    without_judge = round(np.median([planned.without_judge or 0 for planned in plans]))
    assert with_judge < 0.85 * without_judge

    def reached(count: int, judged: bool) -> float:
        widths = []
        for _ in range(80):
            _, labels, judge, group = answers(random, count, 1200, size, alike, slope)
            result = corrected_mean(labels, judge, group)
            widths.append(np.ptp(result.interval if judged else result.human_interval) / 2)
        return float(np.mean(widths))

    assert reached(with_judge, True) == pytest.approx(half_width, rel=0.06)
    assert reached(without_judge, False) == pytest.approx(half_width, rel=0.06)


def test_what_labels_cannot_reach_takes_more_answers() -> None:
    human, labels, judge, group = answers(np.random.default_rng(14), 100, 400)
    short = plan(0.05, labels, judge, group)
    assert short.with_judge is short.without_judge is None
    everything = corrected_mean(human, judge, group)
    said = float(short.reading.rpartition("even with all 400 answers labelled it is ±")[2].split(",")[0])
    assert said == pytest.approx(np.ptp(everything.interval) / 2, rel=0.15)
    just = plan(said + 0.01, labels, judge, group)
    assert 280 <= just.with_judge <= just.without_judge <= 400


@pytest.mark.filterwarnings("error")
def test_a_good_judge_never_takes_more_labels_than_none() -> None:
    """Few labels whose scores happen to lie further apart than those of all answers."""
    random = np.random.default_rng(0)
    for _ in range(40):
        quality = random.normal(5.5, 2, 400)
        human, judge = (np.clip(np.round(quality + random.normal(0, noise, 400)), 1, 10) for noise in (0, 0.35))
        labels = np.where(np.isin(np.arange(400), random.permutation(400)[:30]), human, np.nan)
        for probability in (None, np.full(400, 30 / 400)):
            planned = plan(0.3, labels, judge, np.arange(400), probability=probability)
            assert planned.with_judge < planned.without_judge / 2


def test_plans_that_cannot_be_made() -> None:
    _, labels, judge, _ = answers(np.random.default_rng(12), 40, 400)
    few = plan(0.3, labels, judge, np.arange(400) % 3)
    assert few.undefined == "labels in 3 groups; at least 5 are needed"
    lonely = np.arange(400)
    unlabelled = np.flatnonzero(np.isnan(labels))
    lonely[unlabelled[1]] = lonely[unlabelled[0]]
    apart = plan(0.3, labels, judge, lonely)
    assert apart.with_judge is None and "no two labelled answers" in (apart.undefined or "")


def test_gpt4_on_llmeval2(shared: Path) -> None:
    """200 labels of GPT-4's own answers say what all 399 do, more closely than without the judge."""
    _, human, judge, group = read_llmeval2(shared, "GPT4")
    random = np.random.default_rng(0)
    results = []
    for _ in range(50):
        labels = np.full(len(human), np.nan)
        drawn = random.choice(len(human), 200, replace=False)
        labels[drawn] = human[drawn]
        results.append(corrected_mean(labels, judge, group))
    errors = np.array([[(r.value or 0) - human.mean(), (r.human_only or 0) - human.mean()] for r in results])
    assert (errors**2).mean(axis=0)[0] < 0.7 * (errors**2).mean(axis=0)[1]
    assert 220 < np.mean([result.effective for result in results]) < 300


@pytest.mark.parametrize("noise", [0.8, 1.5, 30.0])
def test_labels_beside_many_judged_answers_are_worth_what_is_said_of_them_alone(noise: float) -> None:
    """Questions of two answers that share half of what they are worth; 600 of 60,000 answers are labelled."""
    random = np.random.default_rng(4)
    quality = 5.5 + random.normal(0, 0.7, (30_000, 1)) + random.normal(0, 0.7, (30_000, 2))
    judge = np.clip(quality + random.normal(0, noise, quality.shape), 1, 10).ravel()
    human, group = np.clip(quality, 1, 10).ravel(), np.arange(60_000) // 2
    beside = corrected_mean(np.where(np.arange(60_000) < 600, human, np.nan), judge, group)
    worth = worth_beside_any_number(build_sample(human[:600], judge[:600], group[:600]))
    assert worth is not None and worth == pytest.approx(beside.effective, rel=0.06)
    r = np.corrcoef(human[:600], judge[:600])[0, 1]
    plain = worth_beside_any_number(build_sample(human[:600], judge[:600]))
    assert noise > 1 or plain == pytest.approx(600 / (1 - r**2) * (1 - 1 / 599))


def test_what_several_files_save_is_pooled_beside_the_best(tmp_path: Path) -> None:
    """A good judge on 120 answers by two models and a blind one on 180: each file is a sample, none is left out."""
    random = np.random.default_rng(0)
    for name, count in {"good": 120, "blind": 180}.items():
        human, blind = random.integers(1, 11, (2, count)).tolist()
        # It errs on the two lowest ratings, most with wide intervals: the others are better than a random draw.
        judge = [{1: 2, 2: 1}.get(score, score) for score in human] if name == "good" else blind
        rows = []
        for number, (score, judged) in enumerate(zip(human, judge, strict=True)):
            rows.append(human_row(number, human_score=score, score_1_10=score, j_score_1_10=float(judged)))
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    done = run("critic", "audit", "good.jsonl", "blind.jsonl", "--out", "out", cwd=tmp_path, code=0)
    found = json.loads((tmp_path / "out/summary.json").read_text())
    saved, (good, blind) = found["savings"], found["savings"]["means"]
    assert (good["name"], good["labels"], blind["name"], blind["labels"]) == ("good", 120, "blind", 180)
    assert good["worth"] > 1200 and blind["worth"] < 190
    assert saved["pooled"] == {"name": "all", "labels": 300, "worth": pytest.approx(good["worth"] + blind["worth"])}
    worth = f"{saved['pooled']['worth'] / 3:.0f} without it: from"
    assert f"Together with the judge, 100 of these 300 labels are as precise as {worth}" in done.stdout
    assert saved["reading"] in done.stdout and saved["reading"] in (tmp_path / "out/report.html").read_text()
    widths = [found[name]["widths"] for name in ("good", "blind")]
    assert widths[0]["left"] == widths[0]["tasks"][0]["narrow"]["value"] > 0.5 and widths[1]["left"] == 0
    assert 0 < widths[0]["routed_mae"] < widths[0]["random_mae"]
    for name in ("left", "routed_mae", "random_mae"):
        assert saved[name] == pytest.approx(np.average([width[name] for width in widths], weights=[120, 180])), name
    one = run("critic", "audit", "blind.jsonl", "--out", "one", cwd=tmp_path)
    assert "labels are as precise as" in one.stdout and "(alpha)" in one.stdout, one  # of one sample its answerers
