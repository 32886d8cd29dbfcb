"""Labels of rows that were not all as likely to be labelled: with their chances, the audit is right of all rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import assert_one_line_error, run, write_jsonl
from msgspec.structs import replace
from samples import build_pairs, build_sample

from critic.stats import estimate
from critic.stats.verdicts import A, B, verdict_agreement
from eval_agreement.measure_tables import PREFERENCE_MEASURES, preference_sections
from eval_agreement.measures.baselines import trivial
from eval_agreement.measures.measure import run_audit
from eval_agreement.measures.ppi import corrected_mean
from eval_agreement.metrics import measured
from eval_agreement.page.decision import decide_verdicts
from eval_agreement.reading.loaders import read_labels
from eval_agreement.reading.tables import Source
from eval_agreement.sample import AuditRequest


def world(rng: np.random.Generator, n: int) -> tuple[Any, Any, Any, Any]:
    """People, a judge that is off upwards and at random where it is unsure, and four answers to a question."""
    group = np.repeat(np.arange(n // 4), 4)
    quality = rng.normal(5.5, 1.8, n // 4)[group]
    unsure = rng.beta(1, 3, n)
    human = np.clip(np.round(quality + rng.normal(0, 1, n)), 1, 10)
    judge = np.clip(quality + 2.4 * unsure + unsure * rng.normal(0, 3, n) + rng.normal(0, 0.4, n), 1, 10)
    return human, judge, unsure, group


@pytest.mark.slow
def test_means_and_agreement_of_doubtful_rows_are_those_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coverage by simulation: 95 % intervals that hold the truth about 95 times of 100 with the chances known, and
    far less often where they are ignored."""
    monkeypatch.setattr(estimate, "RESAMPLES", 400)
    human, judge, _, _ = world(np.random.default_rng(99), 200_000)
    truth = {"mean": human.mean(), "mae": np.abs(human - judge).mean(), "pearson": np.corrcoef(human, judge)[0, 1]}
    rng, runs = np.random.default_rng(5), 40
    kept, naive = dict.fromkeys(truth, 0), dict.fromkeys(truth, 0)
    narrower = 0.0
    for _ in range(runs):
        human, judge, unsure, group = world(rng, 600)
        chance = np.minimum(1.0, 120 * (0.3 / 600 + 0.7 * unsure / unsure.sum()))
        labelled = rng.random(600) < chance
        people = np.where(labelled, human, np.nan)
        for covered, probability in ((kept, chance), (naive, None)):
            mean = corrected_mean(build_sample(people, judge, group, probability=probability))
            on_them = None if probability is None else 1 / chance[labelled]
            agreed = measured(human[labelled], judge[labelled], group[labelled], on_them).estimates
            intervals = {"mean": mean.interval, "mae": agreed["mae"].interval, "pearson": agreed["pearson"].interval}
            for name, interval in intervals.items():
                covered[name] += interval is not None and interval[0] <= truth[name] <= interval[1]
            if probability is not None:
                (low, high), (low_alone, high_alone) = mean.interval, mean.human_interval
                narrower += (high - low) / (high_alone - low_alone) / runs
    assert min(kept.values()) >= 0.85 * runs, kept
    assert naive["mae"] < 0.7 * runs, "such rows are not like the others, and only the chances tell"
    assert narrower < 0.9, "the judge's scores of the other rows are worth labels"


def test_preferences_are_weighted_as_if_rows_were_there_so_often() -> None:
    rng = np.random.default_rng(2)
    people, judge = (rng.integers(0, 3, 80).astype(np.int8) for _ in range(2))
    times = rng.integers(1, 4, 80)
    weighted = verdict_agreement(people, judge, np.arange(80), times.astype(float))
    whole = verdict_agreement(np.repeat(people, times), np.repeat(judge, times), np.arange(times.sum()))
    for name in ("accuracy", "decided", "coverage", "kappa"):
        assert getattr(weighted, name).value == pytest.approx(getattr(whole, name).value), name
        assert weighted.n == 80


def test_ties_are_those_of_all_pairs_and_judges_meet_on_pairs_without_a_label(tmp_path: Path) -> None:
    """Twenty labelled ties stand for ten times as many pairs; of the rest nobody knows what people would have said."""
    lines = [{"id": f"t{n}", "preference": "tie", "label_probability": 0.1} for n in range(20)]
    lines += [{"id": f"a{n}", "preference": "a", "label_probability": 1.0} for n in range(100)]
    lines += [{"id": f"u{n}", "preference": "", "label_probability": 0.1} for n in range(180)]
    people = write_jsonl(tmp_path / "people.jsonl", lines)
    judges = {}
    for name, unlabelled in (("j", "a"), ("k", "b")):
        said = [{"id": line["id"], "preference": "a" if line["preference"] else unlabelled} for line in lines]
        judges[name] = Source(write_jsonl(tmp_path / f"{name}.jsonl", said))
    findings = run_audit(read_labels(Source(people), judges, "preference"), AuditRequest(), PREFERENCE_MEASURES)
    assert findings.scorers.people_ties.value == pytest.approx(200 / 300)
    equal = {(pair.first, pair.second): pair.equal.value for pair in findings.matrix.overall}
    assert equal["people", "j"] == pytest.approx(100 / 300) and equal["j", "k"] == pytest.approx(120 / 300)


def test_differences_of_preferences_and_the_decision_are_those_of_the_table() -> None:
    """A judge that is good on most of the labelled pairs, and bad on those that stand for many more."""
    rng = np.random.default_rng(0)
    rare = np.arange(1000) < 200
    people = np.where(rng.random(1000) < np.where(rare, 0.75, 0.5), A, B).astype(np.int8)
    judge = np.where(rng.random(1000) < np.where(rare, 0.45, 0.05), B - people, people).astype(np.int8)
    given = build_pairs(people, judge, weight=np.where(rare, 20.0, 1.0))
    findings = run_audit(given, AuditRequest(), PREFERENCE_MEASURES)
    (difference,) = findings.differences
    for name in ("accuracy", "kappa"):
        judged, constant = findings.scorers.agreement["j"], findings.scorers.baselines["constant"]
        expected = getattr(judged, name).value - getattr(constant, name).value
        assert getattr(difference, name).value == pytest.approx(expected, abs=1e-12), name
    assert difference.accuracy.value < 0 and difference.accuracy.n == 1000
    (pair,) = findings.matrix.overall
    assert pair.equal.value == pytest.approx(judged.accuracy.value) and findings.scorers.weighted
    (note,) = preference_sections("pairs", findings)[0].parts[0].readings
    assert "each label stands for 1 / label_probability pairs" in note
    (decision,) = decide_verdicts("pairs", findings).judges
    assert decision.startswith("j cannot replace people: it agrees with them on 60.5 %") and "kappa 0.21" in decision


def test_the_constant_judge_is_the_best_one_on_the_rows_that_it_is_scored_on() -> None:
    """People's median, and their commonest verdict, of all rows and not of the labelled ones alone."""
    rare = np.arange(400) < 100
    human = np.where(rare, 8.0, 2.0) + np.random.default_rng(0).integers(-1, 2, 400).astype(float)
    chance = np.where(rare, 0.02, 1.0)
    sample = build_sample(human, human, probability=chance)
    scores, about = trivial(sample, [])["constant"]
    whole = np.repeat(human, np.round(1 / chance).astype(int))
    assert scores[0] == np.median(whole) == 8 and about.startswith("always 8")
    for even in (None, np.full(400, 0.5)):
        assert trivial(replace(sample, probability=even), [])["constant"][0][0] == np.median(human)
    halves = replace(sample, human=np.repeat([2.0, 5.0], 200), probability=np.full(400, 0.25))
    assert trivial(halves, [])["constant"][0][0] == 3.5
    people = np.where(rare, A, B).astype(np.int8)
    findings = run_audit(build_pairs(people, people, weight=1 / chance), AuditRequest(), PREFERENCE_MEASURES)
    assert findings.scorers.baselines["constant"].accuracy.value == pytest.approx(5000 / 5300)


def test_a_label_without_its_chance_is_refused_and_a_row_without_label_needs_none(tmp_path: Path) -> None:
    def audited(lines: list[dict[str, Any]]) -> Any:
        people = write_jsonl(tmp_path / "p.jsonl", lines)
        return run("critic", "audit", "--human", people, "--judge", f"j={people}", "--out", tmp_path / "a")

    lines = [{"id": str(n), "score": 5, "label_probability": 0.5 if n else None} for n in range(30)]
    assert_one_line_error(audited(lines), "p.jsonl", "label_probability is given for some labels, but not for that of")
    pairs = [{"id": str(n), "preference": "ab"[n % 2], "label_probability": 0.5} for n in range(30)]
    assert audited([{"id": "0", "preference": None, "label_probability": None}, *pairs[1:]]).returncode == 0
