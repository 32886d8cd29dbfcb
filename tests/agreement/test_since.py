"""Was it the model or the judge: simulated judges, and as a command."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import assert_one_line_error, run
from two_judges import AUDIT, sample, table

from eval_agreement.two_judges import change


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
        found = change(both)
        truths = zip((found.judge, found.model, found.total), (judge, model, judge + model), strict=True)
        hits.append([part.interval is not None and part.interval[0] <= x <= part.interval[1] for part, x in truths])
        assert found.total.value == pytest.approx((found.judge.value or 0) + (found.model.value or 0))
        holds.append(found.holds)
    assert np.all(np.mean(hits, axis=0) >= 0.89), np.mean(hits, axis=0)
    assert np.mean(holds) == pytest.approx(0.0 if judge or model else 0.95, abs=0.06)


def test_command(tmp_path: Path) -> None:
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
