"""Scores on another judge's scale: simulated judges, and as a command."""

from pathlib import Path

import numpy as np
import pytest
from conftest import assert_one_line_error, run
from two_judges import AUDIT, Floats, sample, table

from critic.stats import estimate
from eval_agreement.sample import RatedSample
from eval_agreement.two_judges import convert


def judged_twice(seed: int, questions: int = 150) -> tuple[Floats, Floats]:
    """An old judge on whole scores, crowded at the upper end, and a new one that is stricter in the middle."""
    random = np.random.default_rng(seed)
    quality = 5.5 + random.normal(0, 1, (questions, 1)) + [0, 0.6, 0.6] + random.normal(0, 0.8, (questions, 3))
    old = np.clip(np.rint(1 + 9 / (1 + np.exp((5 - quality) / 1.2)) + random.normal(0, 0.7, (questions, 3))), 1, 10)
    by_question = random.normal(0, 0.4, (questions, 1))
    return old, 1 + 0.085 * old**2 + by_question + random.normal(0, 0.8, (questions, 3))


def anchored(seed: int, anchors: int = 60) -> RatedSample:
    """The new judge on all answers to so many questions only."""
    old, new = judged_twice(seed)
    new[np.random.default_rng(seed).permutation(150)[anchors:]] = np.nan
    return sample(old, new)


@pytest.mark.worlds
@pytest.mark.parametrize("worlds", [120, pytest.param(1000, marks=pytest.mark.slow)])
def test_converted_means_and_leaderboards_are_covered(worlds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "RESAMPLES", 400)
    _, new = judged_twice(10**6, 200_000)
    truths = [new.mean(), *new.mean(axis=0)]
    hits, apart = [], []
    for seed in range(worlds):
        data = anchored(seed)
        found = convert(data, ("old", "new"), data.human, data.scores).lines
        hits.append([line.mean.interval[0] <= truth <= line.mean.interval[1]  # type: ignore[index]
                     for line, truth in zip(found, truths, strict=False)])  # fmt: skip
        ranks = {line.name: line.rank for line in found}
        apart.append((ranks["a"] == (3, 3), ranks["b"] != ranks["c"]))
    covered = np.mean(hits, axis=0)
    assert np.all(np.abs(covered - 0.95) <= (0.02 if worlds == 1000 else 0.06)), covered
    assert np.mean(apart, axis=0)[0] > 0.9 and np.mean(apart, axis=0)[1] <= 0.08


def test_anchors_as_uncertain_as_they_are() -> None:
    """With a fifth of the anchors the interval is much wider, though as many scores are converted."""
    widths = []
    for anchors in (150, 30):
        data = anchored(3, anchors)
        found = convert(data, ("old", "new"), data.human, data.scores)
        widths.append(np.ptp(found.lines[0].mean.interval or 0))
        scores = {line.score: line.mean.value for line in found.lines[4:]}
        assert all(scores[score] == pytest.approx(1 + 0.085 * score**2, abs=0.5) for score in (4, 7, 10))
    assert widths[1] > 1.25 * widths[0]


def test_command(tmp_path: Path) -> None:
    old, new = judged_twice(1)
    table(tmp_path / "old.csv", old)
    table(tmp_path / "new.csv", np.clip(new[:60], 1, 10))
    done = run(*AUDIT, "--judge", "new=new.csv", "--exchange", "old=old.csv", cwd=tmp_path)
    assert done.returncode == 0 and "\nm              450" in done.stdout and "a score of 10" in done.stdout
    assert "A mean of " in (tmp_path / "out/report.html").read_text()
    table(tmp_path / "low.csv", np.where(old < 7, np.maximum(old - 0.5, 1), 0))
    table(tmp_path / "few.csv", old[:19])
    for words, what in (
        (("low=low.csv", "--exchange", "old=old.csv"), "all: 57% of the scores by old lie outside 2 to 6, where both"),
        (("few=few.csv", "--exchange", "old=old.csv"), "both scored answers to 19 questions; a conversion takes 20"),
        (("new=new.csv", "--exchange", "old.csv"), "--exchange 'old.csv': expected NAME=FILE"),
        (("new=new.csv", "--exchange", "new=old.csv"), "takes one other judge"),
    ):
        assert_one_line_error(run(*AUDIT, "--judge", *words, cwd=tmp_path), what)
