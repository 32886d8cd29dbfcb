"""eval_agreement.savings: what labels are worth with a judge against corrected means, and pooled over files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import human_row, run, write_jsonl

from eval_agreement.ppi import corrected_mean
from eval_agreement.sample import RatedSample
from eval_agreement.savings import beside_any_number


@pytest.mark.parametrize("noise", [0.8, 1.5, 30.0])
def test_labels_beside_many_judged_answers_are_worth_what_is_said_of_them_alone(noise: float) -> None:
    """Questions of two answers that share half of what they are worth; 600 of 60,000 answers are labelled."""
    random = np.random.default_rng(4)
    quality = 5.5 + random.normal(0, 0.7, (30_000, 1)) + random.normal(0, 0.7, (30_000, 2))
    judge = np.clip(quality + random.normal(0, noise, quality.shape), 1, 10).ravel()
    human, group = np.clip(quality, 1, 10).ravel(), [f"q{row // 2}" for row in range(60_000)]
    beside = corrected_mean(np.where(np.arange(60_000) < 600, human, np.nan), judge, group)
    facts: dict[str, Any] = {
        "name": "s",
        "ids": [str(row) for row in range(600)],
        "human": human[:600],
        "judges": {"j": judge[:600]},
    }
    worth = beside_any_number(RatedSample(**facts, group=[*group[:600]]))
    assert worth is not None and worth == pytest.approx(beside.effective, rel=0.06)
    r = np.corrcoef(human[:600], judge[:600])[0, 1]
    plain = beside_any_number(RatedSample(**facts, group=[None] * 600))
    assert noise > 1 or plain == pytest.approx(600 / (1 - r**2) * (1 - 1 / 599))


def test_what_several_files_save_is_pooled_beside_the_best(tmp_path: Path) -> None:
    """A good judge on 120 answers by two models and a blind one on 180: each file is a sample, none is left out."""
    random = np.random.default_rng(0)
    for name, count in {"good": 120, "blind": 180}.items():
        human, blind = random.integers(1, 11, (2, count)).tolist()
        judge = [min(one + 1, 10) for one in human] if name == "good" else blind
        each = enumerate(zip(human, judge, strict=True))
        rows = [
            human_row(i, human_score=one, score_1_10=one) | {"j_score_1_10": float(other)} for i, (one, other) in each
        ]
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    done = run("critic", "audit", "good.jsonl", "blind.jsonl", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out/summary.json").read_text())
    saved, (good, blind) = found["savings"], found["savings"]["means"]
    assert (good["name"], good["labels"], blind["name"], blind["labels"]) == ("good", 120, "blind", 180)
    assert good["worth"] > 1200 and blind["worth"] < 190
    assert saved["pooled"] == {"name": "all", "labels": 300, "worth": pytest.approx(good["worth"] + blind["worth"])}
    assert f"With the judge 100 of these 300 labels are worth {saved['pooled']['worth'] / 3:.0f}: from" in done.stdout
    assert saved["reading"] in done.stdout and saved["reading"] in (tmp_path / "out/report.html").read_text()
    widths = [found[name]["widths"] for name in ("good", "blind")]
    shares = {"left": [one["tasks"][0]["narrow"]["value"] for one in widths]}
    shares |= {name: [one[name] for one in widths] for name in ("routed_mae", "random_mae")}
    for name, values in shares.items():
        assert saved[name] == pytest.approx(np.average(values, weights=[120, 180])), name
    one = run("critic", "audit", "blind.jsonl", "--out", "one", cwd=tmp_path)
    assert "labels are worth" in one.stdout and "(alpha)" in one.stdout, one  # of one sample its answerers
