"""What a single score means, against brute force and simulated judges: recalibration, and an interval for each row."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import run as run_program
from judgments import of_answer
from numpy.typing import NDArray
from samples import build_sample, read_llmeval2
from scipy.stats import norm

from critic.records import Judgment, Question, Response, Verdict
from eval_agreement.measures import calibration
from eval_agreement.measures.calibration import (
    Calibration,
    cross_fit,
    measure_intervals,
)
from eval_agreement.sample import NARROW, AuditRequest, RatedSample

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


def calibrate(human: Any, judge: Any, group: Any) -> Calibration:
    return calibration.calibrate(build_sample(human, judge, group), AuditRequest())


def test_bins_by_hand() -> None:
    human = [1.0, 3, 2, 8, 9, 10, 10]
    judge = [2.0, 2, 2, 8.5, 9, 9.4, None]
    result = calibrate(human, judge, list("abcdefg"))
    assert (result.n, result.failed) == (6, 1)
    assert [(b.score, b.human.n, b.groups, b.human.value) for b in result.bins] == [(2, 3, 3, 2.0), (9, 3, 3, 9.0)]
    assert result.bins[1].judge == pytest.approx(26.9 / 3)
    assert all(b.human.interval is None and "at least 10" in (b.human.undefined or "") for b in result.bins)


def test_a_lenient_judge_is_recalibrated() -> None:
    human, judge, group = answers(np.random.default_rng(5), 120, 4, offset=1.5)
    judge[:7] = np.nan
    result = calibrate(human, judge, group)
    assert (result.n, result.failed) == (473, 7)
    used = ~np.isnan(judge)
    assert result.before.mae == pytest.approx(np.abs(judge - human)[used].mean())
    assert result.before.mean_error == pytest.approx((judge - human)[used].mean())
    assert result.before.rmse == pytest.approx(math.sqrt(((judge - human)[used] ** 2).mean()))
    folded = cross_fit(human[used], judge[used], build_sample(human, judge, group).groups[used])
    assert result.after.mae == pytest.approx(np.abs(folded - human[used]).mean())
    assert result.after.mean_error == pytest.approx(0, abs=0.1)
    assert result.after.mae < 0.45
    change = result.change
    assert change.value == pytest.approx(result.after.mae - result.before.mae)
    assert change.interval is not None and change.interval[0] < change.value < change.interval[1] < -1
    assert change.p_value is not None and change.p_value < 0.01
    assert "brings single scores closer" in result.readings[0]


def test_too_little_to_fit_on() -> None:
    human, judge, group = answers(np.random.default_rng(11), 9, 20)
    few = calibrate(human, judge, group)
    assert few.undefined == "9 groups to fit on; at least 10 are needed"
    assert few.readings == [f"Not calibrated: {few.undefined}."] and len(few.bins) == 4
    small = calibrate(*answers(np.random.default_rng(11), 49, 1))
    assert small.after is None and "only 9 rows in a fifth of the groups" in (small.undefined or "")
    uneven = np.where(np.arange(180) < 140, 0, np.arange(180) // 2)
    assert "only 10 rows in" in (calibrate(human, judge, uneven).undefined or "")
    failed = calibrate(human, np.full(180, np.nan), group)
    assert (failed.n, failed.failed, failed.bins, failed.undefined) == (0, 180, [], "no judged rows to evaluate on")
    enough = answers(np.random.default_rng(11), 100, 1)
    constant = calibrate(enough[0], np.full(100, 7), enough[2])
    assert constant.after is not None and abs(constant.after.mean_error) < 0.2


def test_gpt4_on_llmeval2(shared: Path) -> None:
    rows, human, judge, group = read_llmeval2(shared)
    calibrated = calibrate(human, judge, group)
    assert [part.score for part in calibrated.bins] == list(range(1, 11))
    assert sum(part.human.n for part in calibrated.bins) == calibrated.n == len(rows)
    assert calibrated.bins[-1].human.value == pytest.approx(human[judge == 10].mean())
    assert (calibrated.before.rmse, calibrated.after.rmse) == pytest.approx((2.87, 2.59), abs=0.01)
    assert (calibrated.before.mae, calibrated.after.mae) == pytest.approx((1.53, 1.94), abs=0.02)


def test_no_row_is_left_to_a_score_far_from_its_own_interval() -> None:
    """People give 8 where the judge gives 6, and 3 where it gives 7: no monotone map mends that, but intervals show."""
    random = np.random.default_rng(7)
    score = random.integers(1, 11, 600).astype(float)
    human = np.select([score == 6, score == 7], [8.0, 3.0], score)
    _, (low, high, _, left) = measure_intervals(build_sample(human, score, np.arange(600) // 2), AuditRequest())
    swapped = np.isin(score, (6, 7))
    assert np.all((high - low)[swapped] <= NARROW) and not left[swapped].any() and left[~swapped].mean() > 0.7


NOISE = {"OCR": 0.4, "Counting": 1.0, "Meme": 2.2}
EDGES = np.arange(0.5, 11)


def judged(number: int, distribution: list[float]) -> Judgment:
    response = Response(id=f"r{number}", question=Question(id="q", prompt="?", task="", group="q", lang="en"), text="")
    return of_answer(response, judge="j", score=5.0, verdict=Verdict(rating=5, distribution=distribution))


def world(random: Any, n: int = 600, *, own: bool = True, unlabelled: int = 0) -> RatedSample:
    """The judge knows how noisy a task is, but takes half of it (it is overconfident)."""
    task = random.choice([*NOISE], n)
    noise = np.array([NOISE[name] for name in task]) * random.uniform(0.5, 1.5, n)
    centre = random.uniform(1, 10, n)
    human = np.clip(np.rint(centre + random.normal(0, noise)), 1, 10)
    chances = np.diff(norm.cdf((EDGES - centre[:, None]) / (noise[:, None] / 2)), axis=1) + 1e-6
    chances /= chances.sum(axis=1, keepdims=True)
    human[:unlabelled] = np.nan
    judgments = [judged(row, distribution) for row, distribution in enumerate(chances.tolist())] if own else []
    scores, parts = chances @ np.arange(1, 11), {"task": task.tolist()}
    return build_sample(human, scores, np.arange(n) // 3, parts=parts, judgments=judgments)


@pytest.mark.worlds
@pytest.mark.parametrize("own", [True, False])
def test_coverage_is_as_promised_by_task(own: bool) -> None:
    random, held = np.random.default_rng(5), dict[str, list[float]]()
    for _ in range(25):
        widths, ends = measure_intervals(world(random, own=own), AuditRequest())
        assert widths is not None and ends is not None and widths.own == own
        for task in widths.tasks:
            held.setdefault(task.task, []).append(task.coverage.value or 0)
    assert {*held} == {"all", *NOISE}
    for name, shares in held.items():
        assert 0.89 <= np.mean(shares) <= 0.93, (name, np.mean(shares))


@pytest.mark.parametrize("own", [True, False])
def test_no_row_is_measured_by_its_own_question(monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
    """Neither in the intervals nor, where the judge has no probabilities, in those by its score."""
    sample, seen = world(np.random.default_rng(3), own=own, unlabelled=60), list[Any]()
    make, fit, fitted_on = calibration._intervals, calibration._by_score, np.zeros(600, dtype=bool)

    def spied_fit(sample: RatedSample, fit_on: Any) -> Any:
        fitted_on[:] = fit_on
        return fit(sample, fit_on)

    def spied(*given: Any) -> Any:
        seen.append((given[3] | fitted_on, given[4]))
        assert not (given[3] & fitted_on).any()
        return make(*given)

    monkeypatch.setattr(calibration, "_intervals", spied)
    monkeypatch.setattr(calibration, "_by_score", spied_fit)
    measure_intervals(sample, AuditRequest())
    for made_on, at in seen:
        assert not {*sample.groups[made_on]} & {*sample.groups[at]} and not np.isnan(sample.human[made_on]).any()
    assert sum(at.sum() for _, at in seen) == 600


def test_noisy_rows_are_wide_and_routing_beats_chance() -> None:
    sample = world(np.random.default_rng(1), 1500, unlabelled=300)
    widths, ends = measure_intervals(sample, AuditRequest())
    assert widths is not None and ends is not None and ends.shape == (4, 1500) and not np.isnan(ends).any()
    share = {task.task: task.narrow.value or 0 for task in widths.tasks}
    width = {task.task: task.width for task in widths.tasks}
    assert share["OCR"] > 0.9 and share["Meme"] < 0.4 and width["OCR"] < width["Counting"] < width["Meme"]
    known = ~np.isnan(sample.human)
    assert widths.tasks[0].n == 1200 == known.sum()
    (low, high, score, left), narrow = ends, np.ptp(ends[:2], axis=0) <= NARROW
    error, left = np.abs(score - sample.human), left > 0
    assert np.array_equal(left, narrow & (low <= score) & (score <= high)) and widths.left == left[known].mean()
    assert (np.abs(score - sample.scores)[left] <= 0.5).all()
    assert f"(mean error there {error[known & left].mean():.2f} points)" in widths.reading
    assert widths.routed_mae == pytest.approx(error[known & left].sum() / 1200)
    assert widths.routed_mae < 0.7 * widths.random_mae
    assert narrow[~known].mean() == pytest.approx(share["all"], abs=0.1)


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_a_severe_judge_s_rows_are_left_to_it_recalibrated(shift: float) -> None:
    """The score of rows.csv lies in its own interval; as the judge gave it, 3 points too low, it would not."""
    random = np.random.default_rng(4)
    easy = np.arange(900) < 450
    human = np.clip(np.rint(random.uniform(4, 10, 900)), 1, 10)
    judge = np.clip(human - shift + np.where(easy, 0, random.normal(0, 2, 900)), 1, 10)
    sample = build_sample(human, judge, parts={"task": ["easy" if row else "hard" for row in easy]})
    widths, ends = measure_intervals(sample, AuditRequest())
    assert widths is not None and ends is not None and widths.recalibrated == (shift > 0)
    low, high, score, left = ends
    assert widths.left > 0.1 and (low <= score)[left > 0].all() and (score <= high)[left > 0].all()
    assert ("whose recalibrated scores" in widths.reading) == (shift > 0) and widths.routed_mae < widths.random_mae


def test_a_judge_that_knows_nothing_is_left_no_row_and_small_tasks_say_whose_intervals_they_have() -> None:
    random = np.random.default_rng(7)
    human = np.append(random.integers(5, 7, 300), random.integers(1, 11, 12)).astype(float)
    judge = random.integers(1, 11, 312).astype(float)
    sample = build_sample(human, judge, parts={"task": ["large"] * 300 + ["small"] * 12})
    widths, ends = measure_intervals(sample, AuditRequest())
    assert not ends[3].any() and widths.left == 0 and "Leave no single answer to the judge" in widths.reading
    assert {task.task: task.borrowed for task in widths.tasks} == {"all": False, "large": False, "small": True}
    assert "Tasks with fewer than 20 labels" in widths.reading and widths.reading.count("small") == 1


def test_rows_are_written_with_who_should_rate_them(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    judge = random.integers(1, 11, 200)
    lines = [f"{row},{score if row % 4 else ''},{score},q{row}" for row, score in enumerate(judge)]
    (tmp_path / "t.csv").write_text("\n".join(["id,human,judge,group", *lines]))
    run_program("critic", "audit", "t.csv", "--out", "out", cwd=tmp_path, code=0)
    rows = (tmp_path / "out/rows.csv").read_text().splitlines()
    assert rows[0] == "sample,id,score,low,high,rate_by" and len(rows) == 201
    for row, line in enumerate(rows[1:]):
        sample, key, score, low, high, by = line.split(",")
        assert (sample, key, int(score)) == ("t", str(row), judge[row]) and int(low) <= judge[row] <= int(high)
        assert by == ("judge" if int(high) - int(low) <= NARROW else "people")
    assert "at most 2 wide" in (tmp_path / "out/report.html").read_text()
