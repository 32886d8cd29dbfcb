"""Answers drawn where the judge is unsure: the chances are known, and what the audit says of all rows stays right."""

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from annotating import label_all, page_of, planned, rows_file
from conftest import assert_one_line_error, run, write_jsonl
from hypothesis import given
from hypothesis import strategies as st
from judgments import of_answer
from msgspec.structs import replace

from critic.records import Call, Judgment, Question, Response, Verdict
from critic.stats import estimate
from critic.stats.verdicts import A, B, verdict_agreement
from eval_agreement.analysis import trivial
from eval_agreement.annotate.active_sampling import chances, doubt, doubts, drawn, next_rows
from eval_agreement.metrics import agreement, measured
from eval_agreement.page.preferences import preference_sections, preference_verdict
from eval_agreement.ppi import corrected_mean, labels_needed
from eval_agreement.preferences import Preferences, preference_audit
from eval_agreement.sample import RatedSample
from eval_agreement.sources import of_labels, of_tables
from eval_agreement.tables import Source


def judgment(key: str, verdict: Verdict, **changes: Any) -> Judgment:
    question = Question(id="q", prompt="?", task="", group=key, lang="en")
    response = Response(id=key, question=question, text="an answer")
    score = None if verdict.failure else verdict.rating
    return of_answer(response, verdict=verdict, score=score, score_kind="expected", **changes)


def test_doubt_is_entropy_disagreement_and_failure() -> None:
    sure, torn = [1.0] + [0.0] * 9, [0.1] * 10
    assert doubt(judgment("a", Verdict(rating=1, distribution=sure))) == 0
    assert doubt(judgment("a", Verdict(rating=1, distribution=torn))) == pytest.approx(1)
    assert doubt(judgment("a", Verdict(rating=1, distribution=[0.5, 0.5] + [0.0] * 8))) == pytest.approx(0.30103)
    assert doubt(judgment("a", Verdict(failure="truncated"))) == 1
    panel = [judgment("", Verdict(rating=score), judge=str(score)) for score in (1.0, 10.0)]
    assert doubt(judgment("a", Verdict(rating=5.5), members=panel)) == pytest.approx(1)
    turned = [Call(reply="", value="A", first="model"), Call(reply="", value="A", first="opponent")]
    assert doubt(judgment("a", Verdict(value="tie"), calls=turned)) == 1
    same = [Call(reply="", value="A", first="model"), Call(reply="", value="B", first="opponent")]
    assert doubt(judgment("a", Verdict(value="A"), calls=same)) == 0


@given(st.lists(st.floats(0, 1), min_size=2, max_size=80).filter(any), st.data())
def test_chances_add_up_to_the_labels_and_grow_with_them(given_doubts: list[float], data: Any) -> None:
    known = {str(n): one for n, one in enumerate(given_doubts)}
    fewer, more = sorted(data.draw(st.integers(1, len(known))) for _ in range(2))
    small, large = chances(known, fewer), chances(known, more)
    assert sum(small.values()) == pytest.approx(fewer) and sum(large.values()) == pytest.approx(more)
    assert all(0 < small[key] <= large[key] + 1e-9 <= 1 + 2e-9 for key in known)
    assert set(drawn(small, 3)) <= set(drawn(large, 3)), "a larger draw holds the smaller one"
    order = sorted(known, key=lambda key: known[key])
    assert all(small[one] <= small[two] + 1e-12 for one, two in pairwise(order))


def test_every_answer_is_drawn_as_often_as_its_chance_says() -> None:
    chance = chances({str(n): n / 40 for n in range(40)}, 10)
    times = np.array([[key in drawn(chance, seed) for key in chance] for seed in range(600)]).mean(axis=0)
    assert np.abs(times - np.array(list(chance.values()))).max() < 0.09


def world(rng: np.random.Generator, n: int) -> tuple[Any, Any, dict[str, float], Any]:
    """People, a judge that is off upwards and at random where it is unsure, and four answers to a question."""
    group = np.repeat(np.arange(n // 4), 4)
    quality = rng.normal(5.5, 1.8, n // 4)[group]
    unsure = rng.beta(1, 3, n)
    human = np.clip(np.round(quality + rng.normal(0, 1, n)), 1, 10)
    judge = np.clip(quality + 2.4 * unsure + unsure * rng.normal(0, 3, n) + rng.normal(0, 0.4, n), 1, 10)
    return human, judge, {str(n): float(one) for n, one in enumerate(unsure)}, group


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
    for seed in range(runs):
        human, judge, unsure, group = world(rng, 600)
        chance = chances(unsure, 120)
        labelled = np.array([key in drawn(chance, seed) for key in chance])
        weight = 1 / np.array(list(chance.values()))
        people = np.where(labelled, human, np.nan)
        for found, times in ((kept, weight), (naive, None)):
            mean = corrected_mean(people, judge, group, weight=times)
            on_them = None if times is None else times[labelled]
            agreed = measured(human[labelled], judge[labelled], group[labelled], on_them).estimates
            intervals = {"mean": mean.interval, "mae": agreed["mae"].interval, "pearson": agreed["pearson"].interval}
            for name, interval in intervals.items():
                found[name] += interval is not None and interval[0] <= truth[name] <= interval[1]
            if times is not None:
                (low, high), (low_alone, high_alone) = mean.interval, mean.human_interval
                narrower += (high - low) / (high_alone - low_alone) / runs
    assert min(kept.values()) >= 0.85 * runs, kept
    assert naive["mae"] < 0.7 * runs, "such rows are not like the others, and only the chances tell"
    assert narrower < 0.9, "the judge's scores of the other rows are worth labels"


def test_equal_chances_change_nothing() -> None:
    rng = np.random.default_rng(1)
    human, judge, _, group = world(rng, 400)
    labelled = rng.random(400) < 0.4
    people = np.where(labelled, human, np.nan)
    even = np.full(400, 2.5)
    agreed = measured(human[labelled], judge[labelled], group[labelled], even[labelled])
    for name, one in agreement(human[labelled], judge[labelled]).estimates.items():
        assert agreed.estimates[name].value == pytest.approx(one.value), name
    mean, plain_mean = corrected_mean(people, judge, group, weight=even), corrected_mean(people, judge, group)
    assert mean.human_only == pytest.approx(plain_mean.human_only)
    assert mean.value == pytest.approx(plain_mean.value, abs=0.05)
    plan, plain = (labels_needed(0.4, people, judge, group, weight=times) for times in (even, None))
    assert plan.with_judge == pytest.approx(plain.with_judge, rel=0.35)


def test_preferences_are_weighted_as_if_rows_were_there_so_often() -> None:
    rng = np.random.default_rng(2)
    people, judge = (rng.integers(0, 3, 80).astype(np.int8) for _ in range(2))
    times = rng.integers(1, 4, 80)
    found = verdict_agreement(people, judge, np.arange(80), times.astype(float))
    whole = verdict_agreement(np.repeat(people, times), np.repeat(judge, times), np.arange(times.sum()))
    for name in ("accuracy", "decided", "coverage", "kappa"):
        assert getattr(found, name).value == pytest.approx(getattr(whole, name).value), name
        assert found.n == 80


def test_ties_are_those_of_all_pairs_and_judges_meet_on_pairs_without_a_label(tmp_path: Path) -> None:
    """Twenty labelled ties stand for ten times as many pairs; of the rest nobody knows what people would have said."""
    lines = [{"id": f"t{n}", "preference": "tie", "label_probability": 0.1} for n in range(20)]
    lines += [{"id": f"a{n}", "preference": "a", "label_probability": 1.0} for n in range(100)]
    lines += [{"id": f"u{n}", "preference": "", "label_probability": 0.1} for n in range(180)]
    people = write_jsonl(tmp_path / "people.jsonl", lines)
    judges = {}
    for name, unlabelled in (("j", "a"), ("k", "b")):
        said = [{"id": one["id"], "preference": "a" if one["preference"] else unlabelled} for one in lines]
        judges[name] = Source(write_jsonl(tmp_path / f"{name}.jsonl", said))
    found = preference_audit(of_labels(Source(people), judges, "preference"))
    assert found.people_ties.value == pytest.approx(200 / 300)
    equal = {(pair.first, pair.second): pair.equal.value for pair in found.matrix.overall}
    assert equal["people", "j"] == pytest.approx(100 / 300) and equal["j", "k"] == pytest.approx(120 / 300)


def test_differences_of_preferences_and_the_decision_are_those_of_the_table() -> None:
    """A judge that is good on most of the labelled pairs, and bad on those that stand for many more."""
    rng = np.random.default_rng(0)
    rare = np.arange(1000) < 200
    people = np.where(rng.random(1000) < np.where(rare, 0.75, 0.5), A, B).astype(np.int8)
    judge = np.where(rng.random(1000) < np.where(rare, 0.45, 0.05), B - people, people).astype(np.int8)
    names = [str(number) for number in range(1000)]
    given = Preferences(
        ids=names, group=names, people={"p": people}, judges={"j": judge}, weight=np.where(rare, 20.0, 1.0)
    )
    found = preference_audit(given)
    (difference,) = found.differences
    for name in ("accuracy", "kappa"):
        one, other = (getattr(line, name).value for line in (found.agreement["j"], found.baselines["constant"]))
        assert getattr(difference, name).value == pytest.approx(one - other, abs=1e-12), name
    assert difference.accuracy.value < 0 and difference.accuracy.n == 1000
    (pair,) = found.matrix.overall
    assert pair.equal.value == pytest.approx(found.agreement["j"].accuracy.value) and found.weighted
    (note,) = preference_sections("pairs", found)[0].parts[0].readings
    assert "each label stands for 1 / label_probability pairs" in note
    (decision, *_) = preference_verdict("pairs", found, [], 0.02)
    assert decision.startswith("Do not rely on j here") and "constant" in decision


def test_the_constant_judge_is_the_best_one_on_the_rows_that_it_is_scored_on() -> None:
    """People's median, and their commonest verdict, of all rows and not of the labelled ones alone."""
    rare = np.arange(400) < 100
    human = np.where(rare, 8.0, 2.0) + np.random.default_rng(0).integers(-1, 2, 400).astype(float)
    names, chance = [str(number) for number in range(400)], np.where(rare, 0.02, 1.0)
    scored = np.asarray(human, dtype=np.float64)
    sample = RatedSample(name="s", ids=names, human=scored, judges={"j": scored}, group=names, probability=chance)
    scores, about = trivial(sample, [])["constant"]
    whole = np.repeat(human, np.round(1 / chance).astype(int))
    assert scores[0] == np.median(whole) == 8 and about.startswith("always 8")
    even = [trivial(replace(sample, probability=one), [])["constant"][0][0] for one in (None, np.full(400, 0.5))]
    assert even == [np.median(human)] * 2
    halves = replace(sample, human=np.repeat([2.0, 5.0], 200), probability=np.full(400, 0.25))
    assert trivial(halves, [])["constant"][0][0] == 3.5
    people = np.where(rare, A, B).astype(np.int8)
    given = Preferences(ids=names, group=names, people={"p": people}, judges={"j": people}, weight=1 / chance)
    assert preference_audit(given).baselines["constant"].accuracy.value == pytest.approx(5000 / 5300)


def judged(folder: Path, count: int) -> Path:
    """Judgments of the rows of rows_file, every fourth of them unsure."""
    spread = [0.1] * 10
    lines = []
    for number in range(count):
        sure = [0.0] * 10
        sure[number * 7 % 10] = 1.0
        verdict = Verdict(rating=number * 7 % 10 + 1, distribution=sure if number % 4 else spread)
        lines.append(msgspec.to_builtins(judgment(f"row-{number}", verdict)))
    return write_jsonl(folder / "judged.jsonl", lines)


def test_from_doubt_to_the_audit_and_on_to_the_next_labels(tmp_path: Path) -> None:
    rows, doubtful = rows_file(tmp_path, 400), judged(tmp_path, 400)
    store = planned(tmp_path, "--doubtful", doubtful, "--draw", 80, rows=rows)
    first = {item.id for item in store.items().values()}
    numbers = [int(key.partition("-")[2]) for key in first]
    assert 50 < len(first) < 110 and sum(number % 4 == 0 for number in numbers) > 0.6 * len(first)
    label_all(page_of(store), "rater-1", lambda name, values: values[5])
    (tmp_path / "labels.jsonl").unlink(missing_ok=True)
    run("critic", "annotate", "--db", store.path, "--export", tmp_path / "labels.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "labels.jsonl").open()]
    known = chances(doubts(doubtful), 80)
    assert {line["id"]: line["label_probability"] for line in lines} == {key: known[key] for key in first}
    human, judge = tmp_path / "labels.jsonl", f"ours={doubtful}"
    done = run("critic", "audit", "--human", human, "--judge", judge, "--within", 0.4, "--out", tmp_path / "audit")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "audit/summary.json").read_text())["labels"]
    agreed = agreement([line["human_score"] for line in lines], [int(line["id"][4:]) * 7 % 10 + 1 for line in lines])
    assert found["mae"] != pytest.approx(agreed.mae), "weighted"
    # A larger draw keeps what is labelled; its new rows are those that the audit names.
    run(
        "critic",
        "annotate",
        rows,
        "--db",
        store.path,
        "--doubtful",
        doubtful,
        "--draw",
        160,
        "--export",
        tmp_path / "l.jsonl",
    )
    more = {
        item.id: store._rows("SELECT probability FROM items WHERE key = ?", item.id)[0][0]
        for item in store.items().values()
    }
    larger = chances(doubts(doubtful), 160)
    assert first < set(more) and more == {key: larger[key] for key in more}
    assert store.counts()["rater-1"] == (len(first), len(more))
    again = run("critic", "annotate", rows, "--db", store.path, "--doubtful", doubtful, "--draw", 100)
    assert_one_line_error(again, "160 rows were drawn before")
    if (tmp_path / "audit/next.jsonl").is_file():
        assert not {json.loads(line)["id"] for line in (tmp_path / "audit/next.jsonl").open()} & first


def test_what_to_label_next_is_what_a_larger_draw_adds(tmp_path: Path) -> None:
    path = judged(tmp_path, 200)
    small, large = (drawn(chances(doubts(path), count), 0) for count in (40, 90))

    def sample(labels: Mapping[str, float | None]) -> RatedSample:
        lines = [{"id": key, "score": 5, "label_probability": chance} for key, chance in labels.items()]
        return of_tables(Source(write_jsonl(tmp_path / "people.jsonl", lines)), {"ours": Source(path)})

    found = {str(line["id"]): line["label_probability"] for line in next_rows(sample(small), 90)}
    assert found == {key: chance for key, chance in large.items() if key not in small}
    # With any other label nobody knows how likely the two are together.
    other = next(key for key in doubts(path) if key not in large)
    assert next_rows(sample({**small, other: 0.5}), 90) == []


def test_beside_labels_without_chances_the_next_are_drawn_at_random(tmp_path: Path) -> None:
    """Half of the unsure answers and of the others come next, so that all are as likely, as the audit takes them."""
    path, rng = judged(tmp_path, 400), np.random.default_rng(1)
    taken = [f"row-{n}" for n in rng.choice(400, 80, replace=False)]
    people = write_jsonl(
        tmp_path / "people.jsonl", [{"id": key, "score": 1 + n * 7 % 10} for n, key in enumerate(taken)]
    )
    sample = of_tables(Source(people), {"ours": Source(path)})
    lines = next_rows(sample, 240)
    found = {str(line["id"]) for line in lines}
    assert len(found) == len(lines) == 160 and all(line.keys() == {"id"} for line in lines)
    assert found.isdisjoint(taken) and 25 <= sum(int(key[4:]) % 4 == 0 for key in found) <= 55
    assert found <= {line["id"] for line in next_rows(sample, 300)} and not next_rows(sample, 80)
    words = ["--human", people, "--judge", f"ours={path}", "--within", 0.4, "--out", tmp_path / "a"]
    done = run("critic", "audit", *words)
    assert "rows to label next, each as likely as another" in done.stdout, done.stderr
    more = [{"id": json.loads(line)["id"], "score": 5} for line in (tmp_path / "a/next.jsonl").open()]
    with people.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in more)
    done = run("critic", "audit", *words)
    assert done.returncode == 0, done.stderr


def test_what_to_label_next_is_that_of_the_last_audit(tmp_path: Path) -> None:
    """Judges' scores in a table will do where all are as likely; where it is not known what to label next, that is
    said, and nothing from before is left."""
    scored = [{"id": f"x{n}", "score": 1 + n * 7 % 10} for n in range(200)]
    judge = write_jsonl(tmp_path / "judge.jsonl", [line | {"score": 1 + n % 9} for n, line in enumerate(scored)])
    people, chosen = (
        write_jsonl(tmp_path / f"{name}.jsonl", [line | more for line in scored[:40]])
        for name, more in (("people", {}), ("chosen", {"label_probability": 0.5}))
    )
    out = tmp_path / "out"

    def said(human: Path, *more: object) -> str:
        done = run("critic", "audit", "--human", human, "--judge", f"ours={judge}", "--out", out, *more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "rows to label next, each as likely as another" in said(people, "--within", 0.6)
    lines = [json.loads(line) for line in (out / "next.jsonl").open()]
    assert lines and {line["id"] for line in lines} <= {line["id"] for line in scored[40:]}
    assert "no rows to label next: the labels were not drawn" in said(chosen, "--within", 0.6)
    assert not (out / "next.jsonl").exists()
    said(people, "--within", 0.6)
    assert "label next" not in said(people) and not (out / "next.jsonl").exists()


def test_a_chance_that_cannot_be_is_refused(tmp_path: Path) -> None:
    people = write_jsonl(tmp_path / "p.jsonl", [{"id": "a", "score": 5, "label_probability": 1.5}])
    done = run("critic", "audit", "--human", people, "--judge", f"j={people}", "--out", tmp_path / "a")
    assert_one_line_error(done, "p.jsonl:1", "label_probability")
    lines = [{"id": str(n), "score": 5, "label_probability": 0.5 if n else None} for n in range(30)]
    people = write_jsonl(tmp_path / "p.jsonl", lines)
    done = run("critic", "audit", "--human", people, "--judge", f"j={people}", "--out", tmp_path / "a")
    assert_one_line_error(done, "label_probability is given for some scored answers, but not for")
    pairs = [{"id": str(n), "preference": "ab"[n % 2], "label_probability": 0.5 if n else None} for n in range(30)]
    people = write_jsonl(tmp_path / "p.jsonl", pairs)
    done = run("critic", "audit", "--human", people, "--judge", f"j={people}", "--out", tmp_path / "a")
    assert_one_line_error(done, "p.jsonl", "label_probability is given for some verdicts, but not for that on")
    pairs[0] = {"id": "0", "preference": None, "label_probability": None}  # was not labelled, and needs no chance
    people = write_jsonl(tmp_path / "p.jsonl", pairs)
    done = run("critic", "audit", "--human", people, "--judge", f"j={people}", "--out", tmp_path / "a")
    assert done.returncode == 0, done.stderr
