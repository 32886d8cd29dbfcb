"""Two judges of the same answers: was it the model or the judge, and scores on another judge's scale; simulated judges,
and as commands."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import assert_one_line_error, run
from msgspec.structs import replace
from numpy.typing import NDArray
from samples import build_sample

from critic.stats import estimate
from eval_agreement.measures.two_judges import Conversion, convert, measure_change
from eval_agreement.page.scores import change_sections
from eval_agreement.sample import RatedSample

Floats = NDArray[np.float64]
AUDIT = ("critic", "audit", "--out", "out")


def sample(human: Floats, judge: Floats) -> RatedSample:
    """Scores of a question's answers by the models a, b and c in a row, shape (questions, 3)."""
    parts = {"answerer": list("abc") * len(human)}
    return build_sample(human.ravel(), {"new": judge.ravel()}, np.arange(len(human)).repeat(3), parts=parts)


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
        change = measure_change(both)
        truths = zip((change.judge, change.model, change.total), (judge, model, judge + model), strict=True)
        hits.append([part.interval is not None and part.interval[0] <= x <= part.interval[1] for part, x in truths])
        assert change.total.value == pytest.approx((change.judge.value or 0) + (change.model.value or 0))
        holds.append(change.holds)
    assert np.all(np.mean(hits, axis=0) >= 0.89), np.mean(hits, axis=0)
    assert np.mean(holds) == pytest.approx(0.0 if judge or model else 0.95, abs=0.06)


def asked_twice(seed: int, harder: float = 0.0, drop: float = 0.0, others: int = 0) -> RatedSample:
    """Answers of then, half of them judged again, and new ones to the same questions, but for `others` harder ones."""
    random = np.random.default_rng(seed)
    hard = np.append(random.normal(0, 1, 80), random.normal(0, 1, others) - harder)
    questions = np.append(np.arange(80 - others), np.arange(80, 80 + others))
    then = 5.5 + hard[:80, None] + random.normal(0, 0.6, (80, 3))
    again = np.where(np.arange(80)[:, None] < 40, then + random.normal(0, 0.3, (80, 3)), np.nan)
    new = 5.5 + hard[questions, None] - drop + random.normal(0, 0.6, (80, 3))
    both = sample(np.append(then, np.full((80, 3), np.nan), axis=0), np.append(again, new, axis=0))
    both.group[:] = [f"q{number}" for number in np.append(np.arange(80), questions).repeat(3)]
    return both


def test_other_questions_are_not_taken_for_another_model() -> None:
    """With half of the questions new and harder, those asked at both times tell; with all, nobody can."""
    half = measure_change(asked_twice(3, harder=2.0, others=40))
    assert half.total.side < 0 and half.holds and half.shared == 40 and half.model.side == 0
    worse = measure_change(asked_twice(3, harder=-2.0, drop=0.7, others=40))
    assert not worse.holds and "the model has become worse, on 40 questions asked at both times" in worse.reading
    for others in (61, 80):  # 19 shared questions are too few, as none are
        every = measure_change(asked_twice(3, harder=2.0, others=others))
        assert not every.holds and every.shared == 0 and "the model has become worse, or the questions" in every.reading
    (section,) = change_sections("j", every)
    assert section.parts[0].tables[0].rows[2].name == "by the model or the questions"
    # A question with more answers than before weighs no more.
    data = asked_twice(4)
    more = np.flatnonzero(np.isnan(data.human) & (data.scores < 5))[:40]
    rows = np.append(np.arange(480), np.repeat(more, 5))
    repeated: dict[str, Any] = {name: [getattr(data, name)[row] for row in rows] for name in ("ids", "group")}
    data = replace(data, **repeated, human=data.human[rows], judges={"new": data.scores[rows]}, parts={})
    assert measure_change(data).model.value == pytest.approx(measure_change(asked_twice(4)).model.value or 0, abs=0.1)


@pytest.mark.worlds
def test_looks_share_their_false_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 500 looks without a cause about one in fifteen finds something, as one of 52 none; what is large is found."""
    monkeypatch.setattr(estimate, "RESAMPLES", 400)
    for looks, few, many in ((None, 0.03, 0.11), (52, 0.0, 0.004)):
        alarms = np.mean([not measure_change(asked_twice(seed), looks).holds for seed in range(500)])
        assert few <= alarms <= many, alarms
    assert not measure_change(asked_twice(1, drop=1.0), 52).holds
    assert "one of 52 planned looks" in measure_change(asked_twice(1), 52).reading


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
    assert "then.json: taken as judge: score on 1..10 (change with --map score=FIELD," in results.stdout
    (tmp_path / "now.json").write_text(json.dumps([row | {"score": row["score"] / 10} for row in rows]))
    assert_one_line_error(run(*AUDIT, "now.json", "--since", "then.json", cwd=tmp_path), "several scales, those")
    planned = run(*AUDIT, "--judge", "old=old.csv", "--since", "old.csv", "--looks", "52", cwd=tmp_path, code=0)
    assert "one of 52 planned looks" in planned.stdout and "--looks 52" in same.stdout
    unplanned = run(*AUDIT, "--human", "old.csv", "--judge", "o=old.csv", "--looks", "52", cwd=tmp_path)
    assert_one_line_error(unplanned, "--looks 52 plans audits against an earlier one; name it with --since FILE")
    table(tmp_path / "other.csv", old, "another text")
    for words, what in (
        (("--judge", "o=other.csv"), "no answer was judged at both times"),
        (("--judge", "o=old.csv", "--human", "old.csv"), "--human says nothing about two judges"),
        (("--judge", "o=old.csv", "--judge", "two=old.csv"), "takes one other judge"),
        (("--judge", "o=old.csv", "--map", "nothing=group"), "--map nothing=group: no table has such a column"),
        (("--judge", "o=none.csv"), "none.csv"),
        (("--judge", "o=old.csv", "--looks", "0"), "--looks"),
    ):
        assert_one_line_error(run(*AUDIT, *words, "--since", "old.csv", cwd=tmp_path), what)


def judged_twice(seed: int, questions: int = 150) -> tuple[Floats, Floats]:
    """Two noisy judges of one truth, which neither sees: the new one has another scale, and an opinion of questions."""
    random = np.random.default_rng(seed)
    quality = 6 + random.normal(0, 1.2, (questions, 1)) + [-1, 0.6, 0.6] + random.normal(0, 0.8, (questions, 3))
    old = quality + random.normal(0, 1.5, (questions, 3))
    new = 1.2 * (quality - 5) + 4.6 + random.normal(0, 0.4, (questions, 1)) + random.normal(0, 0.8, (questions, 3))
    return np.clip(np.rint(old), 1, 10), np.clip(np.rint(new), 1, 10)


def anchored(seed: int, anchors: int = 60) -> RatedSample:
    """The new judge on all answers to so many questions only."""
    old, new = judged_twice(seed)
    new[np.random.default_rng(seed).permutation(150)[anchors:]] = np.nan
    return sample(old, new)


def exchanged(data: RatedSample) -> Conversion:
    return convert(data, ("old", "new"), data.human, data.scores)


@pytest.mark.worlds
@pytest.mark.parametrize("worlds", [120, pytest.param(1000, marks=pytest.mark.slow)])
def test_converted_means_and_leaderboards_are_covered(worlds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worlds in which a line through the anchors held the means of the models in 28 to 77 of 100."""
    monkeypatch.setattr(estimate, "RESAMPLES", 400)
    old, new = judged_twice(10**6, 200_000)
    truths = [new.mean(), *new.mean(axis=0), *(new[old == score].mean() for score in range(4, 10))]
    hits, apart = [], []
    for seed in range(worlds):
        lines = {line.name: line for line in exchanged(anchored(seed)).lines}
        names = ["all", "a", "b", "c", *(f"a score of {score} (expected to get)" for score in range(4, 10))]
        ends = [lines[name].mean.interval or (np.nan, np.nan) for name in names]
        hits.append([low <= truth <= high for (low, high), truth in zip(ends, truths, strict=True)])
        apart.append((lines["a"].rank == (3, 3), lines["b"].rank != lines["c"].rank))
    covered = np.mean(hits, axis=0)
    assert np.all(np.abs(covered - 0.95) <= (0.03 if worlds == 1000 else 0.06)), covered
    assert np.mean(apart, axis=0)[0] > 0.9 and np.mean(apart, axis=0)[1] <= 0.08


def test_anchors_as_uncertain_as_they_are() -> None:
    """With a fifth of the anchors the interval is much wider, though as many scores are converted."""
    many, few = (exchanged(anchored(3, anchors)).lines[0].mean.interval or (0, 0) for anchors in (150, 30))
    assert np.ptp(few) > 1.25 * np.ptp(many)
    ends = [end for line in exchanged(anchored(8, 20)).lines for end in line.mean.interval or ()]
    assert min(ends) >= 1 and max(ends) <= 10


def test_a_model_without_anchors_has_no_mean_and_odd_anchors_are_named() -> None:
    data = anchored(5)
    model, anchors = np.arange(450) % 3, np.flatnonzero(~np.isnan(data.scores))
    data.scores[(model == 1) & (np.arange(450) // 3 != anchors[0] // 3)] = np.nan
    lacking = exchanged(data)
    lines = {line.name: line for line in lacking.lines}
    assert lines["b"].mean.value is None and lines["b"].rank is None
    why = "new scored answers to 1 questions by b, 10 are needed: have it score more"
    assert lines["b"].mean.undefined == lines["all"].mean.undefined == why and why in lacking.reading
    assert lines["a"].mean.interval and lines["a"].rank == (2, 2) and not lacking.cautions
    # Of model c the new judge scored what the old one liked.
    old, new = judged_twice(5)
    new[60:, :2] = np.nan
    new[old[:, 2] < 7, 2] = np.nan
    (caution,) = exchanged(sample(old, new)).cautions
    assert caution.startswith("c: do not rely on the converted mean. The labelled answers are no random draw")


def test_unequal_shares_of_anchors_do_not_weigh_in_the_mean_of_all() -> None:
    old, new = judged_twice(8, 2000)
    part = new.copy()
    part[100:, 1:] = np.nan
    lines = convert(data := sample(old, part), ("old", "new"), data.human, data.scores).lines
    assert lines[0].mean.value == pytest.approx(np.mean([line.mean.value for line in lines[1:4]]), abs=0.1)
    assert lines[0].mean.value == pytest.approx(new.mean(), abs=0.2)


def test_exchange_of_a_file(tmp_path: Path) -> None:
    old, new = judged_twice(1)
    table(tmp_path / "old.csv", old)
    table(tmp_path / "new.csv", np.clip(new[:60], 1, 10))
    done = run(*AUDIT, "--judge", "new=new.csv", "--exchange", "old=old.csv", cwd=tmp_path)
    assert done.returncode == 0 and re.search(r"\nm +450 ", done.stdout), done.stdout
    assert "a score of 9 (expected to get)" in done.stdout
    assert "A mean of " in (tmp_path / "out/report.html").read_text()
    table(tmp_path / "low.csv", np.where(old < 7, np.maximum(old - 0.5, 1), 0))
    table(tmp_path / "few.csv", old[:19])
    for words, what in (
        (("low=low.csv", "--exchange", "old=old.csv"), "all: 39% of the scores by old lie outside 1 to 6, where both"),
        (("few=few.csv", "--exchange", "old=old.csv"), "both scored answers to 19 questions; a conversion takes 20"),
        (("new=new.csv", "--exchange", "old.csv"), "--exchange 'old.csv': expected NAME=FILE"),
        (("new=new.csv", "--exchange", "new=old.csv"), "takes one other judge"),
    ):
        assert_one_line_error(run(*AUDIT, "--judge", *words, cwd=tmp_path), what)
