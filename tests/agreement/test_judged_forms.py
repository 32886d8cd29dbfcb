"""critic audit on answers judged in every form: criteria one by one, choices and checklists as labels."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Done, assert_one_line_error, completion, human_row, run, write_jsonl
from judgments import of_answer

from critic import jsonl
from critic.judging.forms import BY_NAME
from critic.records import Call, HumanScore, Judgment, Question, Response, Verdict
from eval_agreement import agreement
from eval_agreement.items import items_of

COUNT = 40
CRITERIA = {"clarity": "Is it clear?", "tone": "Is it polite?"}


def response(number: int, score: float, name: str = "r", **human: Any) -> Response:
    question = Question(
        id=f"q{number}", prompt="?", task="OCR", group=f"g{number // 2}", lang="en", checklist=["red?", "round?"],
        criteria=CRITERIA,
    )  # fmt: skip
    return Response(
        id=f"{name}{number}", question=question, text="x" * (number + 1), human=HumanScore(score=score, **human)
    )


def judgment(form: str, of: Response, verdict: Verdict, **more: Any) -> Judgment:
    return of_answer(of, prompt=form, score_kind="expected", verdict=verdict, **more)


def audit(folder: Path, *words: str, code: int = 0) -> tuple[dict[str, Any], Done]:
    done = run("critic", "audit", "--out", "out", *words, cwd=folder)
    assert done.returncode == code, done.stderr
    return json.loads((folder / "out/summary.json").read_text("utf-8")), done


def test_every_form_says_something_but_an_answer_of_its_own() -> None:
    """A form that is added has to be told apart here, or it is taken for a rating."""
    kinds = {}
    for name, form in BY_NAME.items():
        other = response(1, 5, "s") if form.pair else None
        line = judgment(name, response(0, 5), Verdict(failure="empty"), other=other)
        kinds[name] = {item.kind for item in items_of(line)}
    rated = {"pointwise", "pointwise_reason_first", "scale_5", "scale_0_10", "criteria", "commit_first", "direct_turn"}
    rated |= {"pointwise_short", "pointwise_one_shot", "direct_whole", "quality"}
    rated |= {f"{name}_reason_first" for name in ("direct_turn", "direct_whole", "quality")}
    rated |= {"direct_turn_in_full", "direct_turn_reason_first_in_full"}
    assert {name for name, kind in kinds.items() if kind == {"score"}} == rated
    yes = {"correct", "checklist", "checklist_reason_first"}
    assert {name for name, kind in kinds.items() if kind == {"yes or no"}} == yes
    assert {name for name, kind in kinds.items() if not kind} == {"answer"}
    assert {name for name, kind in kinds.items() if kind == {"preference"}} == BY_NAME.keys() - rated - yes - {"answer"}


def test_each_criterion_is_a_sample(tmp_path: Path) -> None:
    """Beside the overall score, by its own people's scores, and by its distribution as the overall one is."""
    random = np.random.default_rng(0)
    lines, people, ours = [], [], []
    for number in range(COUNT):
        overall, clarity = random.integers(1, 11, 2).tolist()
        shares = np.zeros(10)
        place = int(np.clip(clarity - 1 + random.integers(-1, 2), 1, 8))
        shares[place - 1 : place + 2] = (0.25, 0.25, 0.5)
        people.append(float(clarity))
        ours.append(place + 1.25)
        verdict = Verdict(
            rating=overall,
            criteria={
                "clarity": Verdict(rating=place + 2, distribution=shares.tolist()),
                "tone": Verdict(rating=5) if number else Verdict(failure="no_rating"),
            },
        )
        human: dict[str, Any] = {"criteria": {"clarity": float(clarity)}}
        lines.append(judgment("criteria", response(number, overall, **human), verdict, score=float(overall)))
    jsonl.write(tmp_path / "judged.jsonl", lines)
    summary, done = audit(tmp_path, "judged.jsonl", "--gate", "judged/clarity:mae<=1.5")
    assert summary["judged"]["mae"] == 0 and summary["judged"]["n"] == COUNT
    found = summary["judged/clarity"]
    assert found["mae"] == pytest.approx(agreement(people, ours).mae)
    assert found["interval"]["mae"] and found["groups"] == COUNT // 2 and "criterion" not in found["by"]
    assert "judged/tone" not in summary  # nobody scored the tone
    assert "judged/clarity: mae<=1.5 kept" in done.stdout
    # In a table of people's: only the criteria that they scored count, answers keep their groups.
    rows = [f"r{number}/criterion=clarity,{score}" for number, score in enumerate(people)]
    (tmp_path / "people.csv").write_text("\n".join(["id,score", *rows]))
    summary, _ = audit(tmp_path, "--human", "people.csv", "--judge", "ours=judged.jsonl")
    table = summary["people.csv"]
    assert (table["mae"], table["interval"]["mae"], table["unlabelled"]) == (found["mae"], found["interval"]["mae"], 0)


def test_choices_are_audited_against_what_people_s_scores_make_right(tmp_path: Path, scripted: Any) -> None:
    """critic judge --prompt correct: people's 7 and more are right, 5 and less wrong, a 6 says neither."""
    scores = [9, 6, 3] * 12
    rows = [human_row(number, human_score=score, scale_min=1, scale_max=10) for number, score in enumerate(scores)]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    server = scripted(lambda body: completion('{"Correct":"yes"}'))
    words = ["--prompt", "correct", "--base-url", server.url, "--out", "judged.jsonl"]
    done = run("critic", "judge", "rows.jsonl", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary, _ = audit(tmp_path, "judged.jsonl", "--gate", "accuracy>=0.1")
    found = summary["judged"]
    assert (found["items"], found["rated"], found["yes_or_no"]) == (36, 24, True)
    assert found["agreement"]["tiny"]["accuracy"]["value"] == 0.5
    assert found["agreement"]["tiny"]["kappa"]["value"] == 0 and "failed" in found["agreement"]["tiny"]


@pytest.mark.filterwarnings("error")  # people's scores are all the same
@pytest.mark.parametrize("form", ["correct", "pairwise", "checklist", "criteria"])
def test_labels_that_were_less_likely_stand_for_more_rows(tmp_path: Path, form: str) -> None:
    """The judge is wrong on those that stand for two (of pairs for four) rows each: the rest, half of them, for one."""
    lines = []
    for number in range(COUNT):
        wrong = number % 2 == 1
        chance = 0.5 if wrong else 1.0
        right = response(number, 9.0, probability=chance, answers=[True, True], criteria={"clarity": 9.0})
        other = response(number, 2.0, "s", probability=chance) if form == "pairwise" else None
        verdict = {
            "correct": Verdict(value="no" if wrong else "yes"),
            "pairwise": Verdict(value="B" if wrong else "A"),
            "checklist": Verdict(answers=[not wrong, not wrong]),
            "criteria": Verdict(rating=9, criteria=dict.fromkeys(CRITERIA, Verdict(rating=3 if wrong else 9))),
        }[form]
        score = {"criteria": 3.0 if wrong else 9.0}.get(form, 1.0)
        lines.append(judgment(form, right, verdict, other=other, score=score))
    jsonl.write(tmp_path / "j.jsonl", lines)
    summary, _ = audit(tmp_path, "j.jsonl")
    if form == "criteria":
        assert summary["j"]["mae"] == pytest.approx(4.0) == summary["j/clarity"]["mae"]
    else:
        accuracy = summary["j"]["agreement"]["j"]["accuracy"]["value"]
        assert accuracy == pytest.approx(1 / 5 if form == "pairwise" else 1 / 3)


def test_pairs_and_checklists(tmp_path: Path) -> None:
    pairs, lists = [], []
    for number in range(COUNT):
        one, two = response(number, 8.0, answers=[True, None]), response(number, 8.0 - number % 3, "s")
        right = {0: "tie", 1: "A", 2: "A"}[number % 3]
        calls = [Call(reply="", value="A", first="model"), Call(reply="", value="B", first="opponent")]
        if number % 4 == 0:
            calls = [Call(reply="", value="tie", first="model"), Call(reply="", value="tie", first="opponent")]
        said = "tie" if number % 4 == 0 else "A"
        verdict = Verdict(value=said)
        pairs.append((right, said, judgment("pairwise", one, verdict, other=two, calls=calls, score=1.0)))
        lists.append(judgment("checklist", one, Verdict(answers=[number % 5 > 0, True]), score=1.0))
    lists[1] = judgment("checklist", lists[1].sample.response, Verdict(failure="server_error"))
    jsonl.write(tmp_path / "pairs.jsonl", [line for _, _, line in pairs])
    jsonl.write(tmp_path / "lists.jsonl", lists)
    summary, _ = audit(tmp_path, "p=pairs.jsonl")
    found = summary["p"]["agreement"]["j"]
    assert found["accuracy"]["value"] == np.mean([right == said for right, said, _ in pairs]) and found["n"] == COUNT
    assert summary["p"]["position"]["j"]["flips"]["value"] == 0 and summary["p"]["groups"] == COUNT // 2
    assert summary["p"]["length"]["j"]["judge"]["n"] == 0  # equally long
    limits = ("--gate", "sensitivity>=0.5,specificity>=0.5")
    summary, done = audit(tmp_path, "lists.jsonl", "--max-failed", "0.1", *limits, code=1)
    assert (
        "lists: sensitivity>=0.5 kept: 0.795" in done.stdout and "specificity>=0.5 NOT kept: undefined" in done.stderr
    )
    assert "it finds: sensitivity 79.5 % (95 % interval " in done.stdout
    found = summary["lists"]["agreement"]["j"]
    assert (found["n"], found["failed"], summary["lists"]["rated"]) == (COUNT - 1, 1, COUNT)
    assert found["accuracy"]["value"] == pytest.approx(1 - 8 / (COUNT - 1))
    done = run("critic", "audit", "pairs.jsonl", "lists.jsonl", cwd=tmp_path)
    assert_one_line_error(done, "one file of judgments is audited at a time")
    done = run("critic", "audit", "pairs.jsonl", "--attacked", "pairs.jsonl", cwd=tmp_path)
    assert_one_line_error(done, "--attacked says nothing about preferences")
    odd = judgment("checklist", response(0, 5, answers=[True]), Verdict(answers=[True, True]))
    jsonl.write(tmp_path / "odd.jsonl", [judgment("pointwise", response(1, 5), Verdict(rating=5), score=5.0), odd])
    done = run("critic", "audit", "odd.jsonl", cwd=tmp_path)
    assert_one_line_error(done, "odd.jsonl:2: people's and the judge's answers are not alike")
