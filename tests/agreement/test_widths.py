"""An interval for each row: coverage by task in simulated worlds, and who should rate which row."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import run as run_program
from judgments import of_answer
from scipy.stats import norm

from critic.records import Judgment, Question, Response, Verdict
from eval_agreement import widths as intervals
from eval_agreement.sample import RatedSample
from eval_agreement.widths import NARROW, _nested, _quantile, widths

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
    return RatedSample(
        name="w",
        ids=[f"r{row}" for row in range(n)],
        human=human,
        judges={"j": chances @ np.arange(1, 11)},
        group=[f"q{row // 3}" for row in range(n)],
        parts={"task": task.tolist()},
        judgments=[judged(row, one) for row, one in enumerate(chances.tolist())] if own else [],
    )


@pytest.mark.worlds
@pytest.mark.parametrize("own", [True, False])
def test_coverage_is_as_promised_by_task(own: bool) -> None:
    random, held = np.random.default_rng(5), dict[str, list[float]]()
    for _ in range(25):
        found, ends = widths(world(random, own=own))
        assert found is not None and ends is not None and found.own == own
        for task in found.tasks:
            held.setdefault(task.task, []).append(task.coverage.value or 0)
    assert {*held} == {"all", *NOISE}
    for name, shares in held.items():
        assert 0.89 <= np.mean(shares) <= 0.93, (name, np.mean(shares))


@pytest.mark.parametrize("own", [True, False])
def test_no_row_is_measured_by_its_own_question(monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
    """Neither in the intervals nor, where the judge has no probabilities, in those by its score."""
    sample, seen = world(np.random.default_rng(3), own=own, unlabelled=60), list[Any]()
    make, fit, fitted_on = intervals._intervals, intervals._by_score, np.zeros(600, dtype=bool)

    def spied_fit(sample: RatedSample, fit_on: Any) -> Any:
        fitted_on[:] = fit_on
        return fit(sample, fit_on)

    def spied(*given: Any) -> Any:
        seen.append((given[3] | fitted_on, given[4]))
        assert not (given[3] & fitted_on).any()
        return make(*given)

    monkeypatch.setattr(intervals, "_intervals", spied)
    monkeypatch.setattr(intervals, "_by_score", spied_fit)
    widths(sample)
    for made_on, at in seen:
        assert not {*sample.groups[made_on]} & {*sample.groups[at]} and not np.isnan(sample.human[made_on]).any()
    assert sum(at.sum() for _, at in seen) == 600


def test_noisy_rows_are_wide_and_routing_beats_chance() -> None:
    sample = world(np.random.default_rng(1), 1500, unlabelled=300)
    found, ends = widths(sample)
    assert found is not None and ends is not None and ends.shape == (2, 1500) and not np.isnan(ends).any()
    share = {task.task: task.narrow.value or 0 for task in found.tasks}
    width = {task.task: task.width for task in found.tasks}
    assert share["OCR"] > 0.9 and share["Meme"] < 0.4 and width["OCR"] < width["Counting"] < width["Meme"]
    known = ~np.isnan(sample.human)
    assert found.tasks[0].n == 1200 == known.sum()
    error, narrow = np.abs(sample.scores - sample.human), np.ptp(ends, axis=0) <= NARROW
    assert f"off by {error[known & narrow].mean():.2f} points" in found.reading
    assert found.routed_mae == pytest.approx(error[known & narrow].sum() / 1200)
    assert found.routed_mae < 0.7 * found.random_mae
    assert narrow[~known].mean() == pytest.approx(share["all"], abs=0.1)


def test_sets_grow_to_the_likelier_neighbour() -> None:
    chances = np.array([[0, 0, 0.1, 0.5, 0.3, 0.1, 0, 0, 0, 0.0]])
    low, high, mass = _nested(chances)
    assert list(zip(low[0][:4].tolist(), high[0][:4].tolist(), strict=True)) == [(4, 4), (4, 5), (4, 6), (3, 6)]
    assert (low[0][-1], high[0][-1]) == (1, 10) and (np.diff(mass[0]) > 0).all() and mass[0][-1] == pytest.approx(1)
    assert _quantile(np.arange(1, 10) / 10) == 0.9 and _quantile(np.arange(1, 9) / 10) == np.inf


def test_rows_are_written_with_who_should_rate_them(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    judge = random.integers(1, 11, 200)
    lines = [f"{row},{score if row % 4 else ''},{score},q{row}" for row, score in enumerate(judge)]
    (tmp_path / "t.csv").write_text("\n".join(["id,human,judge,group", *lines]))
    done = run_program("critic", "audit", "t.csv", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done
    rows = (tmp_path / "out/rows.csv").read_text().splitlines()
    assert rows[0] == "sample,id,score,low,high,rate_by" and len(rows) == 201
    for row, line in enumerate(rows[1:]):
        sample, key, score, low, high, by = line.split(",")
        assert (sample, key, int(score)) == ("t", str(row), judge[row]) and int(low) <= judge[row] <= int(high)
        assert by == ("judge" if int(high) - int(low) <= NARROW else "people")
    assert "at most 2 wide" in (tmp_path / "out/report.html").read_text()
