"""Differences between models (eval_agreement.measures.ppi): against ppi_py, in simulated worlds, and as a command."""

import json
import math
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import run
from draws import share_that_holds
from msgspec.structs import replace
from numpy.typing import NDArray
from samples import build_sample, corrected_mean
from scipy import stats

from eval_agreement.measures.ppi import ModelDifference, compare_models
from eval_agreement.sample import AuditRequest, RatedSample

Floats = NDArray[np.float64]
TRUTH = {("a", "b"): 0.0, ("a", "c"): 0.5, ("b", "c"): 0.5}


def sample(seed: int, labelled: int = 60, questions: int = 300, noise: float = 0.4) -> RatedSample:
    """Models a, b and c answer each question; c is half a point better, and its family's judge favours a by one. People
    label all answers to a random draw of questions."""
    random = np.random.default_rng(seed)
    hard = random.normal(0, 1, (questions, 1))
    human = 5.5 + hard + np.array([0, 0, 0.5]) + random.normal(0, 0.7, (questions, 3))
    judge = human + np.array([1.0, 0, 0]) + random.normal(0, noise, (questions, 3))
    human[random.permutation(questions)[labelled:]] = np.nan
    human, judge = (np.clip(scores, 1, 10).ravel() for scores in (human, judge))
    return build_sample(human, judge, np.arange(questions).repeat(3), parts={"answerer": list("abc") * questions})


def by_pair(data: RatedSample) -> dict[tuple[str, str], ModelDifference]:
    return {(line.first, line.second): line for line in compare_models(data, AuditRequest()) if line.task is None}


def test_independent_pairs_equal_ppi_py() -> None:
    ppi_py = pytest.importorskip("ppi_py")
    data = sample(3)
    line = by_pair(data)["a", "c"]
    human, judge = (scores.reshape(-1, 3)[:, 2] - scores.reshape(-1, 3)[:, 0] for scores in (data.human, data.scores))
    known = ~np.isnan(human)
    lam = (np.cov(human[known], judge[known])[0, 1] / np.var(judge)) / (1 + 60 / 240)
    published = [
        float(np.squeeze(end)) for end in ppi_py.ppi_mean_ci(human[known], judge[known], judge[~known], lam=lam)
    ]
    assert line.value == pytest.approx(np.mean(published), abs=0.01) and line.interval is not None
    narrower = stats.norm.ppf(0.95) / (stats.t.ppf(0.975, 59) * math.sqrt(60 / 59))
    assert narrower * np.ptp(line.interval) == pytest.approx(np.ptp(published), rel=0.03)
    assert (line.n, line.questions) == (120, 300) and line.judge_only == pytest.approx(judge.mean())
    complete = by_pair(sample(3, labelled=300))["a", "c"]
    alone = sample(3, labelled=300).human.reshape(-1, 3)
    assert complete.value == pytest.approx((alone[:, 2] - alone[:, 0]).mean())


@pytest.mark.slow
def test_means_and_differences_beside_those_of_other_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """truescore's formulas, with its normal quantile or Student's, and cje-eval's isotonic calibration, another
    estimator of the same mean; ppi_py is compared above. Where groups were labelled truescore tunes lambda as if they
    were rows, which leaves more variance than ours does: given one lambda they agree."""
    packages = ["truescore==0.7.4", "cje-eval==0.9.3"]
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path), *packages]
    if subprocess.run(install, check=False).returncode:
        pytest.skip(f"{' and '.join(packages)} cannot be installed")
    monkeypatch.syspath_prepend(str(tmp_path))
    compare, correct, cje = map(import_module, ("truescore.compare", "truescore.correct", "cje.array_api"))

    def held_against_cje(ours: Any, judge: Floats, labels: Floats, low: float, **options: Any) -> None:
        span = 9.0 if low > 0 else 18.0  # it takes shares
        calibrated = cje.calibrated_mean_ci((judge - low) / span, (labels - low) / span, **options)
        assert abs(low + span * calibrated.estimate - ours.value) < 0.25 * np.ptp(ours.interval)
        assert 0.95 < span * np.ptp(calibrated.ci) / np.ptp(ours.interval) < 1.3

    for size in (1, 10):
        random, group = np.random.default_rng(0), np.repeat(np.arange(1500 // size), size)
        quality = 5.5 + random.normal(0, 1, 1500) + (size > 1) * random.normal(0, 1, 1500)[group]
        judge, human = np.clip([quality + random.normal(0.5, 1, 1500), quality], 1, 10)
        labels = np.where(group < 300 / size, human, np.nan)
        known, clusters = np.flatnonzero(~np.isnan(labels)), {"clusters": group} if size > 1 else {}
        theirs = correct.ppi_estimate(judge, labels[known], known, **clusters)
        ours = corrected_mean(labels, judge, group, lam=theirs.lambda_)
        quantiles = stats.norm.ppf(0.975) if size == 1 else stats.t.ppf(0.975, 29)
        student = stats.t.ppf(0.975, 300 / size - 1)
        assert ours.value == pytest.approx(theirs.point, abs=1e-9) and ours.interval is not None
        assert np.ptp(ours.interval) / student == pytest.approx((theirs.high - theirs.low) / quantiles, rel=0.003)
        tuned = corrected_mean(labels, judge, group)
        assert tuned.interval is not None and np.ptp(tuned.interval) <= np.ptp(ours.interval) + 1e-9
        held_against_cje(tuned, judge, labels, 1.0, cluster_ids=group)
    data = sample(3)
    line, human, judged = by_pair(data)["a", "c"], data.human.reshape(-1, 3), data.scores.reshape(-1, 3)
    known = np.flatnonzero(~np.isnan(human[:, 0]))
    pair = compare.ppi_compare(judged[:, 2], judged[:, 0], human[known, 2], human[known, 0], known)
    assert line.interval and line.value == pytest.approx(pair.difference, abs=0.05 * np.ptp(line.interval))
    assert np.ptp(line.interval) == pytest.approx(pair.high - pair.low, rel=0.05)
    held_against_cje(line, judged[:, 2] - judged[:, 0], human[:, 2] - human[:, 0], -9.0)


@pytest.mark.worlds
def test_differences_are_covered_however_biased_the_judge_is_and_told_apart_after_correction() -> None:
    worlds = [by_pair(sample(seed)) for seed in range(400)]
    for pair, truth in TRUTH.items():
        assert 0.93 <= share_that_holds((world[pair].interval for world in worlds), truth) <= 0.97
    assert np.mean([world["a", "b"].ahead is not None for world in worlds]) <= 0.05
    ahead = [world["a", "c"].ahead for world in worlds]
    assert ahead.count("c") > 270 and "a" not in ahead
    first = min(worlds[0].values(), key=lambda line: line.p_value or 0)
    assert first.p_holm == pytest.approx(3 * (first.p_value or 0))
    # Unpaired, the questions would add their spread to that of the models; without the judge all that it explains.
    paired = np.mean([np.ptp(world["b", "c"].interval or 0) for world in worlds])
    assert paired < 0.75 * 2 * 2 * math.sqrt(2 * 0.7**2 / 60)


@pytest.mark.parametrize(("noise", "labelled"), [(0.4, 60), (3.0, 60), (0.4, 300)])
def test_so_many_labels_show_a_difference_of_a_fifth_of_a_point(noise: float, labelled: int) -> None:
    needed = [by_pair(sample(seed, labelled, 3000, noise))["b", "c"].needed or 0 for seed in range(10)]
    questions = round(float(np.median(needed)) / 2)
    shift = [by_pair(sample(seed, questions, 3000, noise))["b", "c"] for seed in range(30)]
    assert np.mean([line.detectable for line in shift]) == pytest.approx(0.2, rel=0.08)


def test_what_cannot_be_compared_says_why(tmp_path: Path) -> None:
    data = sample(1, labelled=4)
    why = {line.undefined for line in compare_models(data, AuditRequest())}
    assert why == {"labels in 4 groups; at least 5 are needed"}
    apart = [f"{group}{name}" for group, name in zip(data.group, "abc" * 300, strict=True)]
    assert "0 groups" in (compare_models(replace(data, group=apart), AuditRequest())[0].undefined or "")
    assert compare_models(replace(data, group=[None] * 900), AuditRequest()) == []
    rows = ["id,score,j,group,system,task"]
    rows += [f"{n},{5 + n % 3},{4 + n % 3},q{n // 3},{'abc'[n % 3]},{'xy'[n // 3 % 2]}" for n in range(180)]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    done = run("critic", "audit", "--human", "t.csv", "--judge", "j=t.csv:j", "--out", "out", cwd=tmp_path)
    assert "3 of 3 pairs of models are told apart." in done.stdout, done.stderr
    page = (tmp_path / "out/report.html").read_text()
    assert "c less a, x" in done.stdout and "labels to see 0.2" in page and "; needs 0.00 to show" not in page
    models = json.loads((tmp_path / "out/summary.json").read_text())["t"]["models"]
    assert [line["task"] for line in models] == [None] * 3 + ["x"] * 3 + ["y"] * 3
    assert models[1]["value"] == pytest.approx(2) and models[1]["ahead"] == "c" and models[1]["p_value"] == 0
