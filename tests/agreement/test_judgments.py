"""critic audit on judgments of conversations, and of answers in every form."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from conftest import Done, assert_one_line_error, completion, human_row, run, write_csv, write_jsonl
from judgments import of_answer, of_turn, run_of
from samples import build_conversation, build_question

from critic import jsonl
from critic.benchmarks import convbench
from critic.judging.forms import BY_NAME
from critic.records import Call, Conversation, ConversationTurn, HumanScore, Judgment, Response, Verdict
from critic.stats.leaderboard import aggregate_of
from critic.stats.verdicts import TIE, UNASKED, A, B
from eval_agreement import agreement, measured
from eval_agreement.reading.audit_items import items_of
from eval_agreement.reading.loaders import read_labels
from eval_agreement.reading.tables import Source

COUNT = 48


def conversation(number: int) -> Conversation:
    """Two conversations share an image."""
    tasks = ("OCR", "Math" if number % 3 else "Logic")
    turns = [ConversationTurn(prompt="?", reference="four", task=task, checklist=["red?", "round?"]) for task in tasks]
    return build_conversation(f"c{number}", *turns, benchmark="convbench", group=f"image-{number // 2}")


def verdict(number: int, protocol: str, turn: int | None, **more: Any) -> Judgment:
    return of_turn(conversation(number), protocol, **{"length": 9 + number, **more}, turn=turn)


def grades(seed: int, protocol: str = "direct", **more: Any) -> list[Judgment]:
    """Grades of both turns and of the whole, near those of the other seeds; one judgment failed."""
    truth, noise = np.random.default_rng(0), np.random.default_rng(seed)
    lines = []
    for number in range(COUNT):
        for turn in (1, 2, None):
            score = float(np.clip(truth.integers(1, 11) + noise.integers(-1, 2), 1, 10))
            fate: dict[str, Any] = {"score": score}
            if seed == 1 and number == 5 and turn == 2:
                fate = {"failure": "no_rating"}
            lines.append(verdict(number, protocol, turn, **fate, **more))
    return lines


def pairs(flips: Callable[[int], bool], wins: Callable[[int], str]) -> list[Judgment]:
    """Pairs in both orders; the judge that flips takes the answer that stands first."""
    lines = []
    for number in range(COUNT):
        winners = [first if flips(number) else wins(number) for first in ("model", "opponent")]
        values = ["A" if winner == first else "B" for first, winner in zip(("model", "opponent"), winners, strict=True)]
        # The first order had to be asked for once more: the last call of an order counts.
        calls = [Call(reply="hm", failure="no_verdict", first="model"), Call(reply="A", value=values[0], first="model")]
        calls.append(Call(reply="", value=values[1], first="opponent"))
        score = {"model": 1.0, "opponent": 0.0}[winners[0]] if winners[0] == winners[1] else 0.5
        lines.append(verdict(number, "pairwise", 1, score=score, calls=calls))
    return lines


def table(path: Path, column: str, rows: Iterable[tuple[str, object]]) -> Path:
    return write_csv(path, [{"id": key, column: cell} for key, cell in rows])


def audit(folder: Path, *words: object, code: int = 0) -> tuple[dict[str, Any], Done]:
    done = run("critic", "audit", "--out", "out", *words, cwd=folder)
    assert done.returncode == code, done.stderr
    return json.loads((folder / "out/summary.json").read_text("utf-8")), done


def test_a_verdict_has_a_stable_id() -> None:
    assert verdict(7, "direct", 2).id == "c7/own/direct/2"
    assert verdict(7, "pairwise", None).id == "c7/own/pairwise/whole"
    other = verdict(7, "pairwise", 3, judging="no_focus", opponent="gpt", condition="oracle")
    assert other.id == "c7/oracle/pairwise/3/judging=no_focus/opponent=gpt"
    (_, second) = items_of(verdict(7, "checklist", 1, score=0.5, answers=[True, False]))
    assert second.id == "c7/own/checklist/1/item=2"


@pytest.mark.parametrize("form", ["criteria", "pointwise"])
def test_raters_and_other_judges_score_the_answer_and_not_its_criteria(form: str) -> None:
    """A judge that writes rates them in a form of their own, a scoring head in others."""
    question = build_question(criteria={"clarity": "Is it clear?"})
    human = HumanScore(score=6.0, raters={"ann": 5.0, "bob": 7.0}, criteria={"clarity": 9.0})
    response = Response(id="r", question=question, text="four", human=human, columns={"gpt_score_1_10": 4.0})
    said = Verdict(rating=5.0, criteria={"clarity": Verdict(rating=8.0)})
    overall, clarity = items_of(of_answer(response, prompt=form, verdict=said, score=5.0))
    assert (overall.score, overall.human, overall.others) == (5.0, 6.0, {"gpt": 4.0})
    assert (clarity.id, clarity.criterion, clarity.score, clarity.human) == ("r/criterion=clarity", "clarity", 8.0, 9.0)
    assert overall.raters == human.raters and not clarity.raters and not clarity.others


def test_the_length_of_the_other_answer_is_known_of_a_turn_s_reference_only() -> None:
    for turn, opponent, other in ((1, None, len("four")), (None, None, None), (1, "gpt", None)):
        (item,) = items_of(verdict(7, "pairwise", turn, score=1.0, opponent=opponent))
        assert (item.length, item.length_b) == (16, other)


def test_grades_are_scores(tmp_path: Path) -> None:
    """Against a table of people's: the numbers of `agreement`, and groups that the table does not hold."""
    ours, people = grades(1), grades(2)
    jsonl.write(tmp_path / "ours.jsonl", [*ours, *grades(3, "quality"), *pairs(lambda n: False, lambda n: "model")])
    rows = [(line.id, line.score) for line in people]
    table(tmp_path / "people.csv", "score", rows)
    words = ["--human", "people.csv", "--judge", "ours=ours.jsonl", "--gate", "mae<=1.5,failed<=0.1"]
    summary, done = audit(tmp_path, *words)
    sample = summary["people.csv"]
    human, judge = ([line.score for line in lines] for lines in (people, ours))
    assert (sample["n"], sample["failed"], sample["unlabelled"]) == (3 * COUNT - 1, 1, 0)
    by_image = [line.conversation.group for line in ours]
    assert sample["groups"] == COUNT // 2
    expected = measured(human, judge, by_image).interval
    assert {name: end and tuple(end) for name, end in sample["interval"].items()} == expected
    assert expected != measured(human, judge, list(range(len(human)))).interval
    assert set(sample["by"]) == {"task", "turn"} and set(sample["by"]["turn"]) == {"1", "2", "whole"}
    origin = summary["provenance"]["samples"]["people.csv"]
    assert (origin["judge"], origin["prompt"]) == ("j", "direct_turn, direct_whole")
    assert any("protocols that people did not use are left out: quality" in note for note in origin["notes"])
    assert "no_rating" in (tmp_path / "out/report.html").read_text("utf-8")
    assert done.stdout.count("kept") == 2


def test_what_people_did_not_mean_to_judge_is_no_answer_without_a_label(tmp_path: Path) -> None:
    """People graded turn 1 of some conversations under one condition."""
    jsonl.write(tmp_path / "ours.jsonl", [*grades(1), *grades(3, condition="oracle")])
    rows = [(line.id, line.score) for line in grades(2) if line.turn == 1]
    table(tmp_path / "people.csv", "score", rows[: COUNT // 2])
    summary, _ = audit(tmp_path, "--human", "people.csv", "--judge", "ours=ours.jsonl")
    sample = summary["people.csv"]
    assert sample["n"] == sample["unlabelled"] == sample["corrected"]["m"]["unlabelled"] == COUNT // 2
    notes = summary["provenance"]["samples"]["people.csv"]["notes"]
    assert [note.split("left out: ")[1] for note in notes if "did not use" in note] == ["oracle", "2, whole"]


def test_people_may_write_their_verdicts_as_judges_do(tmp_path: Path) -> None:
    people = [*grades(2), *pairs(lambda n: False, lambda n: "opponent")]
    jsonl.write(tmp_path / "people.jsonl", [msgspec.structs.replace(line, calls=[]) for line in people])
    jsonl.write(tmp_path / "ours.jsonl", [*grades(4), *pairs(lambda n: False, lambda n: "opponent")])
    summary, _ = audit(tmp_path, "--human", "people.jsonl:direct", "--judge", "ours=ours.jsonl")
    assert summary["people.jsonl"]["n"] == 3 * COUNT
    summary, _ = audit(tmp_path, "--human", "people.jsonl:pairwise", "--judge", "ours=ours.jsonl")
    assert summary["people.jsonl"]["agreement"]["ours"]["accuracy"]["value"] == 1


def test_pairs_are_preferences_in_both_orders(tmp_path: Path) -> None:
    """As ConvBench's own table of agreement has it, and the bias that only the orders show."""
    ours = pairs(lambda n: n % 4 == 0, lambda n: "model" if n % 3 else "opponent")
    people = pairs(lambda n: False, lambda n: "model" if n % 5 else "opponent")
    jsonl.write(tmp_path / "ours.jsonl", ours)
    labels = {1.0: "a", 0.0: "b", 0.5: "tie"}
    table(tmp_path / "people.csv", "preference", [(line.id, labels[line.score or 0.0]) for line in people])
    summary, done = audit(tmp_path, "--human", "people.csv", "--judge", "ours=ours.jsonl", "--gate", "accuracy>=0.1")
    sample = summary["people.csv"]
    conversations = [conversation(number) for number in range(COUNT)]
    own = aggregate_of(convbench.agreement([(run_of(ours), run_of(people))], conversations, "pairwise")["S1"])
    assert 100 * sample["agreement"]["ours"]["accuracy"]["value"] == pytest.approx(own.value)
    assert sample["groups"] == COUNT // 2 and sample["position"]["ours"]["flips"]["value"] == 0.25
    assert "of 48 pairs" in done.stdout
    assert "25.0 % of its verdicts change" in (tmp_path / "out/report.html").read_text("utf-8")
    assert sample["length"]["ours"]["judge"]["n"] > 0  # the model's answers, and the references


def test_an_order_that_was_not_asked_and_one_that_failed(tmp_path: Path) -> None:
    def pair(number: int, *calls: Call, **fate: Any) -> Judgment:
        return verdict(number, "pairwise", 1, **fate, calls=list(calls))

    lines = [
        pair(0, Call(reply="", value="B", first="opponent"), score=1.0),
        pair(1, Call(reply="", value="tie", first="model"), Call(reply="", value="B", first="opponent"), score=0.5),
        pair(2, Call(reply="", failure="no_verdict", first="model"), failure="no_verdict"),
        pair(3, failure="not_run"),
    ]
    jsonl.write(tmp_path / "ours.jsonl", lines)
    people = table(tmp_path / "people.csv", "preference", [(line.id, "a") for line in lines])
    labels = read_labels(Source(people), {"ours": Source(tmp_path / "ours.jsonl")}, "preference").judges["ours"]
    assert labels.tolist() == [[UNASKED, A], [TIE, A], [3, UNASKED], [3, UNASKED]]
    assert [items_of(line)[0].labels for line in lines][3] == ("failed",)
    # A verdict without calls does not say which answer stood first: the orders of all are taken together.
    jsonl.write(tmp_path / "ours.jsonl", [*lines[:3], pair(3, score=0.25)])
    labels = read_labels(Source(people), {"ours": Source(tmp_path / "ours.jsonl")}, "preference").judges["ours"]
    assert labels.tolist() == [A, TIE, 3, B]


def checklists(seed: int) -> list[Judgment]:
    truth, noise = np.random.default_rng(0), np.random.default_rng(seed)
    lines = []
    for number in range(COUNT):
        answers = [bool(truth.random() < 0.6) ^ bool(noise.random() < 0.15) for _ in range(2)]
        lines.append(verdict(number, "checklist", 1, score=sum(answers) / 2, answers=answers))
    failed = Verdict(failure="no_verdict", answers=[True, None])
    lines[0] = msgspec.structs.replace(lines[0], score=None, verdict=failed)
    return lines


def answered(lines: Sequence[Judgment]) -> dict[str, bool | None]:
    return {f"{line.id}/item={place}": answer for line in lines for place, answer in enumerate(line.verdict.answers, 1)}


@pytest.mark.parametrize("from_table", [True, False])
def test_checklists_are_yes_and_no_item_by_item(from_table: bool, tmp_path: Path) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    ours, people = checklists(1), checklists(2)
    theirs = answered(people)
    words = {True: "yes", False: "No", None: ""}
    table(tmp_path / "people.csv", "verdict", [(key, words[answer]) for key, answer in theirs.items()])
    jsonl.write(tmp_path / "people.jsonl", people)
    jsonl.write(tmp_path / "ours.jsonl", ours)
    name = "people.csv" if from_table else "people.jsonl"
    summary, done = audit(tmp_path, "--human", name, "--judge", "ours=ours.jsonl", "--gate", "kappa>=0.1,failed<=0.1")
    agreed = summary[name]["agreement"]["ours"]
    both = [(theirs[key], answer) for key, answer in answered(ours).items() if theirs[key] is not None]
    judged = [(human, judge) for human, judge in both if judge is not None]
    assert (agreed["n"], agreed["failed"], summary[name]["rated"]) == (len(judged), 0, 2 * COUNT - 1)
    assert agreed["accuracy"]["value"] == pytest.approx(np.mean([human == judge for human, judge in judged]))
    assert agreed["kappa"]["value"] == pytest.approx(sklearn.cohen_kappa_score(*zip(*judged, strict=True)))
    assert agreed["accuracy"]["interval"] and agreed["kappa"]["interval"] and summary[name]["groups"] == COUNT // 2
    assert summary[name]["yes_or_no"] is True and "pairs" not in summary["provenance"]["samples"][name]
    report = (tmp_path / "out/report.html").read_text("utf-8")
    assert "pairs" not in report + done.stdout and "In tables a is yes and b is no" in report


def test_what_cannot_be_audited_is_one_line(tmp_path: Path) -> None:
    mixed = [*grades(1), *pairs(lambda n: False, lambda n: "model")]
    jsonl.write(tmp_path / "mixed.jsonl", mixed)
    jsonl.write(tmp_path / "pairs.jsonl", mixed[3 * COUNT :])
    jsonl.write(tmp_path / "late.jsonl", [verdict(0, "direct", 3, score=5.0)])
    jsonl.write(tmp_path / "off.jsonl", [verdict(0, "direct", 1, score=11.0)])
    table(tmp_path / "people.csv", "score", [("c0/own/direct/1", 5)])
    jsonl.write(tmp_path / "mute.jsonl", [verdict(0, "pairwise", 1, failure="no_verdict")])
    for files, message in {
        "people.csv pairs.jsonl": "pairs.jsonl: no verdict is a score; it holds other verdicts",
        "people.csv mixed.jsonl:mood": "unknown protocol 'mood'; choose checklist, direct",
        "people.csv mixed.jsonl:quality": "mixed.jsonl: no verdict by the protocol quality",
        "people.csv late.jsonl": "late.jsonl:1: a verdict on turn 3 of a conversation that has 2",
        "people.csv off.jsonl": (
            "off.jsonl:1: conversation 'c0', turn 1, condition own: direct score 11; expected 1 to 10"
        ),
        "mixed.jsonl mixed.jsonl": "verdicts of several kinds (direct, pairwise); name one, as in mixed.jsonl:direct",
        "mute.jsonl pairs.jsonl": "mute.jsonl: no pair has a preference; an audit needs people's",
        "pairs.jsonl pairs.jsonl --attacked pairs.jsonl": "--attacked says nothing about preferences",
    }.items():
        human, judge, *more = files.split()
        words = ("--human", human, "--judge", f"ours={judge}", *more)
        assert_one_line_error(run("critic", "audit", *words, cwd=tmp_path), message)


ANSWERS = 40
CRITERIA = {"clarity": "Is it clear?", "tone": "Is it polite?"}


def response(number: int, score: float, name: str = "r", **human: Any) -> Response:
    question = build_question(f"q{number}", group=f"g{number // 2}", checklist=["red?", "round?"], criteria=CRITERIA)
    return Response(
        id=f"{name}{number}", question=question, text="x" * (number + 1), human=HumanScore(score=score, **human)
    )


def judgment(form: str, of: Response, verdict: Verdict, **more: Any) -> Judgment:
    return of_answer(of, prompt=form, score_kind="expected", verdict=verdict, **more)


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
    for number in range(ANSWERS):
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
    assert summary["judged"]["mae"] == 0 and summary["judged"]["n"] == ANSWERS
    clarity_sample = summary["judged/clarity"]
    assert clarity_sample["mae"] == pytest.approx(agreement(people, ours).mae)
    assert clarity_sample["interval"]["mae"] and clarity_sample["groups"] == ANSWERS // 2
    assert "criterion" not in clarity_sample["by"]
    assert "judged/tone" not in summary  # nobody scored the tone
    assert "judged/clarity: mae<=1.5 kept" in done.stdout
    # In a table of people's: only the criteria that they scored count, answers keep their groups.
    rows = [f"r{number}/criterion=clarity,{score}" for number, score in enumerate(people)]
    (tmp_path / "people.csv").write_text("\n".join(["id,score", *rows]))
    summary, _ = audit(tmp_path, "--human", "people.csv", "--judge", "ours=judged.jsonl")
    table = summary["people.csv"]
    assert table["mae"] == clarity_sample["mae"] and table["interval"]["mae"] == clarity_sample["interval"]["mae"]
    assert table["unlabelled"] == 0


def test_choices_are_audited_against_what_people_s_scores_make_right(tmp_path: Path, scripted: Any) -> None:
    """critic judge --prompt correct: people's 7 and more are right, 5 and less wrong, a 6 says neither."""
    scores = [9, 6, 3] * 12
    rows = [human_row(number, human_score=score, scale_min=1, scale_max=10) for number, score in enumerate(scores)]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    server = scripted(lambda body: completion('{"Correct":"yes"}'))
    words = ["--prompt", "correct", "--base-url", server.url, "--out", "judged.jsonl"]
    run("critic", "judge", "rows.jsonl", *words, cwd=tmp_path, code=0)
    summary, _ = audit(tmp_path, "judged.jsonl", "--gate", "accuracy>=0.1")
    sample = summary["judged"]
    assert (sample["items"], sample["rated"], sample["yes_or_no"]) == (36, 24, True)
    assert sample["agreement"]["tiny"]["accuracy"]["value"] == 0.5
    assert sample["agreement"]["tiny"]["kappa"]["value"] == 0 and "failed" in sample["agreement"]["tiny"]


@pytest.mark.filterwarnings("error")  # people's scores are all the same
@pytest.mark.parametrize("form", ["correct", "pairwise", "checklist", "criteria"])
def test_labels_that_were_less_likely_stand_for_more_rows(tmp_path: Path, form: str) -> None:
    """The judge is wrong on those that stand for two (of pairs for four) rows each: the rest, half of them, for one."""
    lines = []
    for number in range(ANSWERS):
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
    for number in range(ANSWERS):
        first, second = response(number, 8.0, answers=[True, None]), response(number, 8.0 - number % 3, "s")
        right = {0: "tie", 1: "A", 2: "A"}[number % 3]
        calls = [Call(reply="", value="A", first="model"), Call(reply="", value="B", first="opponent")]
        if number % 4 == 0:
            calls = [Call(reply="", value="tie", first="model"), Call(reply="", value="tie", first="opponent")]
        said = "tie" if number % 4 == 0 else "A"
        verdict = Verdict(value=said)
        pairs.append((right, said, judgment("pairwise", first, verdict, other=second, calls=calls, score=1.0)))
        lists.append(judgment("checklist", first, Verdict(answers=[number % 5 > 0, True]), score=1.0))
    lists[1] = judgment("checklist", lists[1].sample.response, Verdict(failure="server_error"))
    jsonl.write(tmp_path / "pairs.jsonl", [line for _, _, line in pairs])
    jsonl.write(tmp_path / "lists.jsonl", lists)
    summary, _ = audit(tmp_path, "p=pairs.jsonl")
    agreed = summary["p"]["agreement"]["j"]
    assert agreed["accuracy"]["value"] == np.mean([right == said for right, said, _ in pairs])
    assert agreed["n"] == ANSWERS
    assert summary["p"]["position"]["j"]["flips"]["value"] == 0 and summary["p"]["groups"] == ANSWERS // 2
    assert summary["p"]["length"]["j"]["judge"]["n"] == 0  # equally long
    limits = ("--gate", "sensitivity>=0.5,specificity>=0.5")
    summary, done = audit(tmp_path, "lists.jsonl", "--max-failed", "0.1", *limits, code=1)
    assert "specificity>=0.5 NOT kept: undefined" in done.stderr
    for said in ("lists: sensitivity>=0.5 kept: 0.795", "it finds: sensitivity 79.5 % (95 % interval "):
        assert said in done.stdout
    agreed = summary["lists"]["agreement"]["j"]
    assert (agreed["n"], agreed["failed"], summary["lists"]["rated"]) == (ANSWERS - 1, 1, ANSWERS)
    assert summary["lists"]["rates"]["j"]["sensitivity"]["value"] == pytest.approx(0.795, abs=0.001)
    assert agreed["accuracy"]["value"] == pytest.approx(1 - 8 / (ANSWERS - 1))
    done = run("critic", "audit", "pairs.jsonl", "lists.jsonl", cwd=tmp_path)
    assert_one_line_error(done, "one file of judgments is audited at a time")
    odd = judgment("checklist", response(0, 5, answers=[True]), Verdict(answers=[True, True]))
    jsonl.write(tmp_path / "odd.jsonl", [judgment("pointwise", response(1, 5), Verdict(rating=5), score=5.0), odd])
    done = run("critic", "audit", "odd.jsonl", cwd=tmp_path)
    assert_one_line_error(done, "odd.jsonl:2: people's and the judge's answers are not alike")
