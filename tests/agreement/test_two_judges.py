"""Two judges of the same answers: was it the model or the judge, and scores on another judge's scale; simulated judges,
and as commands."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import assert_one_line_error, run
from numpy.typing import NDArray

from critic.stats import estimate
from eval_agreement.measures.two_judges import convert, measure_change
from eval_agreement.sample import RatedSample

Floats = NDArray[np.float64]
AUDIT = ("critic", "audit", "--out", "out")


def sample(human: Floats, judge: Floats) -> RatedSample:
    """Scores of a question's answers by the models a, b and c in a row, shape (questions, 3)."""
    rows = human.size
    models: list[str | None] = ["a", "b", "c"]
    return RatedSample(
        name="x",
        ids=[str(row) for row in range(rows)],
        human=human.ravel(),
        judges={"new": judge.ravel()},
        group=[f"q{row // 3}" for row in range(rows)],
        parts={"answerer": models * (rows // 3)},
    )


def table(path: Path, scores: Floats, text: str = "x") -> None:
    rows = [f"{row},{score:g},q{row // 3},m,{text}" for row, score in enumerate(scores.ravel()) if score > 0]
    path.write_text("\n".join(["id,score,group,system,text", *rows]))


@pytest.mark.parametrize(("judge", "model"), [(0.0, 0.0), (0.5, 0.0), (0.0, -0.5), (0.5, -0.5)])
def test_a_change_is_split_into_the_judge_s_and_the_model_s(judge: float, model: float) -> None:
    hits, holds = [], []
    for seed in range(120):
        random = np.random.default_rng(seed)
        hard = random.normal(0, 1, (80, 1))
        then = 5.5 + hard + random.normal(0, 0.6, (80, 3))
        again = np.where(np.arange(80)[:, None] < 40, then + judge + random.normal(0, 0.3, (80, 3)), np.nan)
        new = 5.5 + hard + model + judge + random.normal(0, 0.6, (80, 3))
        both = sample(np.append(then, np.full((80, 3), np.nan), axis=0), np.append(again, new, axis=0))
        both.group[:] = [f"q{row // 3 % 80}" for row in range(480)]
        found = measure_change(both)
        truths = zip((found.judge, found.model, found.total), (judge, model, judge + model), strict=True)
        hits.append([part.interval is not None and part.interval[0] <= x <= part.interval[1] for part, x in truths])
        assert found.total.value == pytest.approx((found.judge.value or 0) + (found.model.value or 0))
        holds.append(found.holds)
    assert np.all(np.mean(hits, axis=0) >= 0.89), np.mean(hits, axis=0)
    assert np.mean(holds) == pytest.approx(0.0 if judge or model else 0.95, abs=0.06)


def test_since_a_file(tmp_path: Path) -> None:
    old = np.random.default_rng(0).integers(2, 11, (150, 3)).astype(float)
    table(tmp_path / "old.csv", old)
    table(tmp_path / "low.csv", np.where(old < 7, old - 0.5, 0))
    changed = run(*AUDIT, "--judge", "low=low.csv", "--since", "old.csv", cwd=tmp_path)
    assert changed.returncode == 1 and "the judge has changed (by 0.1 points or more)" in changed.stdout
    assert "by the model" in changed.stdout and "no answer is new" in (tmp_path / "out/summary.json").read_text()
    same = run(*AUDIT, "--judge", "old=old.csv", "--since", "old.csv", cwd=tmp_path)
    assert same.returncode == 0 and "no change that counts is shown" in same.stdout
    assert "Was it the model or the judge?" in (tmp_path / "out/report.html").read_text()
    for name, scores in {"then.json": old, "now.json": np.where(old > 2, old - 1, old)}.items():  # of another tool
        rows = [{"index": row, "question": row // 3, "score": score} for row, score in enumerate(scores.ravel())]
        (tmp_path / name).write_text(json.dumps({"results": rows}))
    results = run(*AUDIT, "now.json", "--since", "then.json", cwd=tmp_path)
    assert results.returncode == 1 and "the judge has changed" in results.stdout, results
    assert "then.json: taken for a table; judge: score on 1..10; id: index" in results.stdout
    (tmp_path / "now.json").write_text(json.dumps([row | {"score": row["score"] / 10} for row in rows]))
    assert_one_line_error(run(*AUDIT, "now.json", "--since", "then.json", cwd=tmp_path), "several scales, those")
    table(tmp_path / "other.csv", old, "another text")
    for words, what in (
        (("--judge", "o=other.csv"), "no answer was judged at both times"),
        (("--judge", "o=old.csv", "--human", "old.csv"), "--human says nothing about two judges"),
        (("--judge", "o=old.csv", "--judge", "two=old.csv"), "takes one other judge"),
        (("--judge", "o=old.csv", "--map", "nothing=group"), "--map nothing=group: no table has such a column"),
        (("--judge", "o=none.csv"), "none.csv"),
    ):
        assert_one_line_error(run(*AUDIT, *words, "--since", "old.csv", cwd=tmp_path), what)


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


def test_exchange_of_a_file(tmp_path: Path) -> None:
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
