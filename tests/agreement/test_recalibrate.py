"""critic judge --recalibrate: the map of a certificate, the judge with its map, and rows that the map has seen."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
from conftest import Scripted, Servers, assert_one_line_error, completion, human_row, read_jsonl, run, write_jsonl
from judgments import of_turn

from critic import jsonl
from critic.certificate import FittedMap, ScoreMap, read
from critic.judging.assignments import _build_turn_judgment
from critic.records import Call, Conversation, Language, Verdict
from critic.stats.arrays import group_numbers
from eval_agreement.measures.calibration import cross_fit, fit_line, fit_map
from eval_agreement.metrics import agreement

Judge = Callable[..., Any]


def worth(number: int) -> int:
    return number * 7 % 10 + 1


def rows_of(folder: Path, name: str, numbers: range, **changes: Any) -> Path:
    """Write rows whose answers say what people give them; two languages if `changes` has none."""
    rows = []
    for number in numbers:
        lang = {"lang": "zh" if number % 2 else "en"} | changes
        rows.append(human_row(number, response=f"{number} is worth {worth(number)}", image=None, **lang))
        rows[-1] |= {"human_score": worth(number), "score_1_10": worth(number)}
    return write_jsonl(folder / f"{name}.rows.jsonl", rows)


def severe(body: dict[str, Any]) -> dict[str, Any]:
    """Rate half of what the answer is worth, or a point more."""
    number, score = map(int, re.findall(r"(\d+) is worth (\d+)", body["messages"][-1]["content"])[-1])
    return completion(json.dumps({"Rating": max(1, score // 2 + number % 3 // 2), "Reason": "r"}))


@pytest.fixture
def judge(tmp_path: Path, scripted: Servers) -> Judge:
    """Judge the rows of a file into OUT.jsonl, by a server that is too severe."""
    server: Scripted = scripted(severe)

    def judged(rows: Path, out: str, *words: object, **kept: Any) -> Any:
        options = ("--base-url", server.url, "--score", "argmax", "--max-failed", 1)
        return run("critic", "judge", rows, "--out", tmp_path / f"{out}.jsonl", *options, *words, **kept)

    return judged


def fitted_by(score_map: ScoreMap) -> FittedMap:
    return FittedMap(map=score_map, rows=1, groups=1, keys=[], agreement={})


def audit(folder: Path, judged: str, *words: object, certificate: str = "c", code: int | None = None) -> Any:
    options = ("--certificate", folder / f"{certificate}.json", "--out", folder / "audits" / judged)
    return run("critic", "audit", folder / f"{judged}.jsonl", *options, *words, code=code)


def test_the_certificate_holds_the_map_and_judging_applies_it(tmp_path: Path, judge: Judge) -> None:
    judge(rows_of(tmp_path, "first", range(200), lang="en"), "first", code=0)
    audit(tmp_path, "first", code=0)
    fitted, labels = read(tmp_path / "c.json").recalibration, read_jsonl(tmp_path / "first.jsonl")
    assert fitted is not None and (fitted.rows, fitted.groups, len(fitted.keys)) == (200, 200, 200)
    human = np.array([line["sample"]["human"]["score"] for line in labels])
    raw = np.array([line["score"] for line in labels])
    for score, people in zip(fitted.map.judge, fitted.map.people, strict=True):
        assert people == pytest.approx(human[raw == score].mean())
    assert fitted.map.people == sorted(fitted.map.people)
    # The figures are of folds: a map measured on its own rows would always seem to help.
    groups = group_numbers([line["sample"]["conversation"]["group"] for line in labels])
    mapped = (fitted.map(raw), cross_fit(human, raw, groups))
    seen, unseen = (agreement(human, scores).mae for scores in mapped)
    assert fitted.agreement["mae"].value == pytest.approx(unseen) != pytest.approx(seen)
    summary = json.loads((tmp_path / "audits/first/summary.json").read_text())["first"]["recalibration"]
    assert summary["map"]["people"] == fitted.map.people and summary["rows"] == 200 and summary["keys"] is None

    rows = rows_of(tmp_path, "second", range(200, 320), lang="en")
    done = judge(rows, "second", "--recalibrate", tmp_path / "c.json", code=0)
    assert "recalibrated by a map fitted on 200 answers (figures from folds)" in done.stdout
    for line in read_jsonl(tmp_path / "second.jsonl"):
        assert line["raw_score"] == line["verdict"]["rating"] and line["setup"]["recalibrated"] == fitted.map.digest
        assert line["score"] == pytest.approx(float(fitted.map(np.array(line["raw_score"]))))
    assert_one_line_error(judge(rows, "second"), "made with recalibrated")
    assert_one_line_error(judge(rows, "no", "--recalibrate", rows), "no certificate")


def test_the_pair_is_certified_and_held_to(tmp_path: Path, judge: Judge) -> None:
    judge(rows_of(tmp_path, "first", range(200)), "first", code=0)
    audit(tmp_path, "first", "--gate", "mae<=1.5", code=1)
    second, pair = rows_of(tmp_path, "second", range(200, 320)), tmp_path / "pair.json"
    judge(second, "second", "--recalibrate", tmp_path / "c.json", code=0)
    audit(tmp_path, "second", "--gate", "mae<=1.5", certificate="pair", code=0)
    held = read(pair)
    assert held.recalibration is not None and held.how.recalibrated == held.recalibration.map.digest and held.kept
    assert held.recalibration == read(tmp_path / "c.json").recalibration
    again = judge(second, "again", "--recalibrate", pair, code=0)
    assert "mae<=1.5 kept" in again.stdout and "folds" not in again.stdout
    assert_one_line_error(judge(second, "no", "--certificate", pair), "now used without it; add --recalibrate")
    # A certificate without the pair's figures holds for the judge without its map as well, and for no other map.
    judge(second, "raw", "--certificate", tmp_path / "c.json", code=0)
    judge(second, "p", "--certificate", tmp_path / "c.json", "--recalibrate", pair, code=0)
    content = json.loads((tmp_path / "c.json").read_text())
    content["recalibration"]["map"]["people"][0] += 0.5
    (tmp_path / "other.json").write_text(json.dumps(content))
    other = ("--certificate", pair, "--recalibrate", tmp_path / "other.json")
    assert_one_line_error(judge(second, "no", *other), "with another map", "audit again")
    assert_one_line_error(judge(second, "no", "--recalibrate", pair, "--name", "x"), "made with judge")
    content["recalibration"] = None
    (tmp_path / "other.json").write_text(json.dumps(content))
    assert_one_line_error(judge(second, "no", "--recalibrate", tmp_path / "other.json"), "it holds no map")


@pytest.mark.parametrize("change", ["same", "renamed", "some"])
def test_no_map_is_certified_on_rows_that_it_was_fitted_on(tmp_path: Path, judge: Judge, change: str) -> None:
    """Nor if these rows have other ids and stand in another file, or if only some of them are audited."""
    judge(rows_of(tmp_path, "first", range(200)), "first", code=0)
    audit(tmp_path, "first", code=0)
    numbers, seen = (range(150, 270), 50) if change == "some" else (range(200), 200)
    rows = rows_of(tmp_path, "rows", numbers)
    if change == "renamed":
        write_jsonl(rows, [line | {"id": f"new{line['id']}", "group": ""} for line in reversed(read_jsonl(rows))])
    judge(rows, "mapped", "--recalibrate", tmp_path / "c.json", code=0)
    refused = audit(tmp_path, "mapped", certificate="again")
    assert_one_line_error(refused, f"fitted on {seen} of the {len(numbers)} answers", "--folds")
    assert not (tmp_path / "again.json").exists()
    done = audit(tmp_path, "mapped", "--folds", certificate="again", code=0)
    assert f"its map was fitted on {seen} of the {len(numbers)} answers" in done.stdout
    certified, first = read(tmp_path / "again.json"), read(tmp_path / "c.json").recalibration
    assert certified.folds and "(figures from folds)" in certified.line(recalibrated=True) and first is not None
    if change == "same":
        assert certified.agreement["mae"].value == pytest.approx(first.agreement["mae"].value)
    jsonl.sidecar(tmp_path / "mapped.jsonl").unlink()
    assert_one_line_error(audit(tmp_path, "mapped"), "is gone", "--folds")
    assert_one_line_error(audit(tmp_path, "first", "--folds"), "--folds: no judge was recalibrated")


def test_a_panel_is_mapped_as_a_whole(tmp_path: Path, judge: Judge, scripted: Servers) -> None:
    rows, other = rows_of(tmp_path, "first", range(120)), scripted(severe)
    words = ("critic", "judge", rows, "--score", "argmax", "--judge", other.url, "--judge", f"{other.url}#tiny")
    run(*words, "--out", tmp_path / "panel.jsonl", code=0)
    audit(tmp_path, "panel", code=0)
    run(*words, "--out", tmp_path / "mapped.jsonl", "--recalibrate", tmp_path / "c.json", code=0)
    for line in read_jsonl(tmp_path / "mapped.jsonl"):
        assert {member["score"] for member in line["members"]} == {line["raw_score"]} != {line["score"]}
    assert_one_line_error(audit(tmp_path, "mapped"), "fitted on 120 of the 120")


def test_languages_have_maps_of_their_own() -> None:
    own = {"zh": ScoreMap(judge=[1, 10], people=[5, 5])}
    fitted = fitted_by(ScoreMap(judge=[1, 10], people=[2, 10], by="lang", parts=own))
    cases: list[tuple[Language, float]] = [("en", 2.0), ("zh", 5.0)]
    for lang, score in cases:
        conversation = Conversation(id=lang, lang=lang, group="g", turns=[])
        judged = of_turn(conversation, "direct", score=1.0, verdict=Verdict(rating=1.0))
        mapped = fitted.apply(judged)
        assert (mapped.score, mapped.raw_score, mapped.verdict) == (score, 1.0, judged.verdict)
    failed = fitted.apply(of_turn("c", "direct", verdict=Verdict(failure="no_rating")))
    assert failed.score is failed.raw_score is None and failed.setup.recalibrated == fitted.map.digest


def test_points_of_a_map_are_kept_exactly() -> None:
    """Points within a step are left out, and the map stays the same function; a line reaches beyond its data."""
    random = np.random.default_rng(0)
    judged = random.uniform(1, 10, 300)
    human = np.clip(judged + random.normal(0, 3, 300), 1, 10)
    fitted, at = fit_map(human, judged), np.linspace(1, 10, 500)
    order = np.argsort(judged)
    steps = scipy.optimize.isotonic_regression(human[order]).x
    assert np.allclose(fitted(at), np.interp(at, judged[order], steps)) and len(fitted.judge) < 150
    assert fit_line(np.array([2.0, 4.0]), np.array([1.0, 2.0]))(np.array([9.0])).tolist() == [10.0]


def test_the_judge_of_a_conversation_is_shown_its_own_grades(tmp_path: Path) -> None:
    """A map must not change what is asked: the pair would be another judge."""
    own = of_turn("c", "direct", turn=1, score=3.0, verdict=Verdict(rating=3.0), calls=[Call(reply="{}", value="3")])
    mapped = fitted_by(ScoreMap(judge=[1, 10], people=[5, 10])).apply(own)
    assert mapped.score != own.score
    shown = [_build_turn_judgment(line, "direct_turn", None).verdict for line in (own, mapped)]
    assert shown == ["3", "3"]
