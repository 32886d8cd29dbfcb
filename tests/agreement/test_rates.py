"""Shares of yes and win rates from few labels: corrections against their formulas, coverage, and what is counted."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, run
from samples import build_pairs

from eval_agreement.measures.preferences import Rate, measure_shares
from eval_agreement.sample import AuditRequest


def rates(people: list[int], judge: list[int], **fields: object) -> dict[str, Rate]:
    pairs = build_pairs(np.array(people), np.array(judge), **fields)
    return {rate.name: rate for rate in measure_shares(pairs, AuditRequest())}


def test_a_share_of_yes_by_both_corrections() -> None:
    """80 labels with sensitivity 30/40 and specificity 32/40, and 400 items of which the judge calls 200 right."""
    people = [0] * 40 + [2] * 40 + [4] * 320
    judge = [0] * 30 + [2] * 10 + [0] * 8 + [2] * 32 + [0] * 162 + [2] * 158
    rate = rates(people, judge, yes_or_no=True)["yes"]
    assert (rate.labelled, rate.unlabelled, rate.people.value, rate.judge.value) == (80, 320, 0.5, 0.5)
    sensitivity, specificity = 31 / 42, 33 / 42  # one more of each
    assert rate.inverted.value == pytest.approx((0.5 + specificity - 1) / (sensitivity + specificity - 1))
    human, mine = np.array(people) == 0, np.array(judge) == 0
    excess = mine[:80].mean() - mine[80:].mean()
    # Of all factors the best one lies between labels alone and plain prediction-powered inference.
    low, high = sorted([human[:80].mean(), human[:80].mean() - excess])
    assert rate.corrected.value is not None and low < rate.corrected.value < high
    assert rate.corrected.interval and rate.people.interval
    assert np.ptp(rate.corrected.interval) < np.ptp(rate.people.interval)


def test_no_interval_without_width_and_no_inverse_of_a_coin() -> None:
    perfect = rates([0] * 20 + [2] * 20, [0] * 20 + [2] * 20, yes_or_no=True)["yes"]
    assert perfect.corrected.interval and perfect.inverted.interval
    alike = rates([0] * 25, [0] * 25, yes_or_no=True)["yes"]
    assert alike.corrected.interval and alike.corrected.interval[0] < 0.93 and alike.inverted.value is None
    coin = rates([0, 2] * 20, [0, 0, 2, 2] * 10, yes_or_no=True)["yes"]
    assert coin.inverted.undefined == "the judge hardly tells people's verdicts apart"
    assert coin.corrected.value == pytest.approx(0.5)
    two_kinds = rates([0, 1, 2] * 20, [0, 0, 2] * 20)["answers a"]
    assert two_kinds.inverted.undefined == coin.inverted.undefined and two_kinds.corrected.value == pytest.approx(0.5)
    few = rates([0, 2, 0, 4], [0, 2, 0, 2], yes_or_no=True)["yes"]
    assert "groups" in str(few.corrected.undefined) and few.judge.value == 0.5


@pytest.mark.worlds
def test_intervals_hold_the_truth_in_simulated_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests/bench")
    from rates_coverage import DESIGNS, coverage

    for design, row in coverage(150, labels=(100,)).items():
        # 150 worlds of 95 %: below .9 in one of 200.
        assert row["corrected"] >= 0.9 and row["inverted"] >= 0.9, (design, row)
    assert len(DESIGNS) == 5


def test_an_audit_counts_pairs_that_only_the_judge_has(tmp_path: Path) -> None:
    lines = [f"{n},{'ab'[n % 2]},q{n // 2},{'xy'[n % 2]},{'yx'[n % 2]}" for n in range(80)]
    head = "id,preference,group,model_a,model_b"
    (tmp_path / "judge.csv").write_text("\n".join([head, *lines]))
    (tmp_path / "labels.csv").write_text("\n".join([head, *lines[:40]]))
    words = ("--human", tmp_path / "labels.csv", "--judge", f"j={tmp_path / 'judge.csv'}", "--out", tmp_path / "out")
    done = run("critic", "audit", *words)
    assert "Shares and win rates" in done.stdout and "not used" not in done.stdout
    (first, _) = json.loads((tmp_path / "out/summary.json").read_text())["labels"]["shares"]
    assert (first["name"], first["labelled"], first["unlabelled"], first["corrected"]["value"]) == ("x", 40, 40, 1.0)
