"""critic audit on judged conversations: grades as scores, pairs as preferences, checklists as yes and no."""

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from conftest import ROOT, Done, assert_one_line_error, completion, run
from judgments import of_turn

from critic import benchmarks, jsonl
from critic.benchmarks import convbench
from critic.records import (
    Call,
    Conversation,
    ConversationTurn,
    Judgment,
    ModelTurn,
    Protocol,
    Sampling,
    Verdict,
)
from critic.stats.leaderboard import aggregate_of
from critic.stats.verdicts import TIE, UNASKED, A, B
from eval_agreement import measured
from eval_agreement.items import items_of
from eval_agreement.sources import of_labels
from eval_agreement.tables import Source

COUNT = 48


def conversation(number: int) -> Conversation:
    """Two conversations share an image."""
    tasks = ("OCR", "Math" if number % 3 else "Logic")
    turns = [ConversationTurn(prompt="?", reference="four", task=task, checklist=["red?", "round?"]) for task in tasks]
    return Conversation(id=f"c{number}", benchmark="convbench", lang="en", group=f"image-{number // 2}", turns=turns)


def verdict(number: int, protocol: Protocol, turn: int | None, **more: Any) -> Judgment:
    return of_turn(conversation(number), protocol, **{"length": 9 + number, **more}, turn=turn)


def grades(seed: int, protocol: Protocol = "direct", **more: Any) -> list[Judgment]:
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
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("id", column), *rows])
    return path


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
    found = summary["people.csv"]
    human, judge = ([line.score for line in lines] for lines in (people, ours))
    assert (found["n"], found["failed"], found["unlabelled"]) == (3 * COUNT - 1, 1, 0)
    by_image = [line.conversation.group for line in ours]
    assert found["groups"] == COUNT // 2
    expected = measured(human, judge, by_image).interval
    assert {name: end and tuple(end) for name, end in found["interval"].items()} == expected
    assert expected != measured(human, judge, list(range(len(human)))).interval
    assert set(found["by"]) == {"task", "turn"} and set(found["by"]["turn"]) == {"1", "2", "whole"}
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
    found = summary["people.csv"]
    assert (found["n"], found["unlabelled"], found["corrected"]["m"]["unlabelled"]) == (COUNT // 2, *[COUNT // 2] * 2)
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
    table(
        tmp_path / "people.csv",
        "preference",
        [(line.id, labels[line.score or 0.0]) for line in people],
    )
    summary, done = audit(tmp_path, "--human", "people.csv", "--judge", "ours=ours.jsonl", "--gate", "accuracy>=0.1")
    found = summary["people.csv"]
    asked = [conversation(number) for number in range(COUNT)]
    own = aggregate_of(convbench.agreement([(ours, people)], asked, "pairwise")["S1"])
    assert 100 * found["agreement"]["ours"]["accuracy"]["value"] == pytest.approx(own.value)
    assert found["groups"] == COUNT // 2 and found["position"]["ours"]["flips"]["value"] == 0.25
    assert "of 48 pairs" in done.stdout
    assert "25.0 % of its verdicts change" in (tmp_path / "out/report.html").read_text("utf-8")
    assert found["length"]["ours"]["judge"]["n"] > 0  # the model's answers, and the references


def test_an_order_that_was_not_asked_and_one_that_failed(tmp_path: Path) -> None:
    def one(number: int, *calls: Call, **fate: Any) -> Judgment:
        return verdict(number, "pairwise", 1, **fate, calls=list(calls))

    lines = [
        one(0, Call(reply="", value="B", first="opponent"), score=1.0),
        one(1, Call(reply="", value="tie", first="model"), Call(reply="", value="B", first="opponent"), score=0.5),
        one(2, Call(reply="", failure="no_verdict", first="model"), failure="no_verdict"),
        one(3, failure="not_run"),
    ]
    jsonl.write(tmp_path / "ours.jsonl", lines)
    people = table(tmp_path / "people.csv", "preference", [(line.id, "a") for line in lines])
    found = of_labels(Source(people), {"ours": Source(tmp_path / "ours.jsonl")}, "preference").judges["ours"]
    assert found.tolist() == [[UNASKED, A], [TIE, A], [3, UNASKED], [3, UNASKED]]
    assert [items_of(line)[0].labels for line in lines][3] == ("failed",)
    # A verdict without calls does not say which answer stood first: the orders of all are taken together.
    jsonl.write(tmp_path / "ours.jsonl", [*lines[:3], one(3, score=0.25)])
    found = of_labels(Source(people), {"ours": Source(tmp_path / "ours.jsonl")}, "preference").judges["ours"]
    assert found.tolist() == [A, TIE, 3, B]


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
    found = summary[name]["agreement"]["ours"]
    both = [(theirs[key], answer) for key, answer in answered(ours).items() if theirs[key] is not None]
    judged = [(human, judge) for human, judge in both if judge is not None]
    assert (found["n"], found["failed"], summary[name]["rated"]) == (len(judged), 0, 2 * COUNT - 1)
    assert found["accuracy"]["value"] == pytest.approx(np.mean([human == judge for human, judge in judged]))
    assert found["kappa"]["value"] == pytest.approx(sklearn.cohen_kappa_score(*zip(*judged, strict=True)))
    assert found["accuracy"]["interval"] and found["kappa"]["interval"] and summary[name]["groups"] == COUNT // 2
    assert summary[name]["yes_or_no"] is True and "pairs" not in summary["provenance"]["samples"][name]
    report = (tmp_path / "out/report.html").read_text("utf-8")
    assert "pairs" not in report + done.stdout and "In tables a is yes and b is no" in report


def test_what_cannot_be_audited_is_one_line(tmp_path: Path) -> None:
    mixed = [*grades(1), *pairs(lambda n: False, lambda n: "model")]
    jsonl.write(tmp_path / "mixed.jsonl", mixed)
    jsonl.write(tmp_path / "pairs.jsonl", mixed[3 * COUNT :])
    jsonl.write(tmp_path / "twice.jsonl", [mixed[0], mixed[0]])
    jsonl.write(tmp_path / "two.jsonl", [mixed[0], *grades(1, judge="k")[1:]])
    jsonl.write(tmp_path / "late.jsonl", [verdict(0, "direct", 3, score=5.0)])
    jsonl.write(tmp_path / "off.jsonl", [verdict(0, "direct", 1, score=11.0)])
    table(tmp_path / "people.csv", "score", [("c0/own/direct/1", 5)])
    judged = {
        "pairs.jsonl": "pairs.jsonl: no verdict is a score; it holds other verdicts",
        "mixed.jsonl:mood": "unknown protocol 'mood'; choose pointwise, direct",
        "mixed.jsonl:quality": "mixed.jsonl: no verdict by the protocol quality",
        "twice.jsonl": "twice.jsonl:2: duplicate id 'c0/own/direct/1', first at twice.jsonl:1",
        "two.jsonl": "two.jsonl:2: judged by 'k', line 1 by 'j'; one judge a file",
        "late.jsonl": "late.jsonl:1: a verdict on turn 3 of a conversation that has 2",
        "off.jsonl": "off.jsonl:1: conversation 'c0', turn 1, condition own: direct score 11; expected 1 to 10",
    }
    for file, message in judged.items():
        done = run("critic", "audit", "--human", "people.csv", "--judge", f"ours={file}", cwd=tmp_path)
        assert_one_line_error(done, message)
    done = run("critic", "audit", "--human", "mixed.jsonl", "--judge", "ours=mixed.jsonl", cwd=tmp_path)
    assert_one_line_error(done, "verdicts of several kinds (direct, pairwise); name one, as in mixed.jsonl:direct")
    jsonl.write(tmp_path / "grades.jsonl", grades(1))
    done = run("critic", "audit", "grades.jsonl", cwd=tmp_path)
    assert_one_line_error(done, "grades.jsonl: no people's verdicts (sample.human); give --human FILE")
    jsonl.write(tmp_path / "mute.jsonl", [verdict(0, "pairwise", 1, failure="no_verdict")])
    done = run("critic", "audit", "--human", "mute.jsonl", "--judge", "ours=pairs.jsonl", cwd=tmp_path)
    assert_one_line_error(done, "mute.jsonl: no pair has a preference; an audit needs people's")
    words = ["--human", "pairs.jsonl", "--judge", "ours=pairs.jsonl", "--attacked", "pairs.jsonl"]
    assert_one_line_error(run("critic", "audit", *words, cwd=tmp_path), "--attacked says nothing about preferences")


def test_what_critic_judge_writes_is_audited(tmp_path: Path, scripted: Any) -> None:
    """From replies to the report: a judge that always prefers what stands first, and grades 7."""
    asked = benchmarks.read("convbench", ROOT / "data/samples/convbench/ConvBench.csv")
    replies = [
        ModelTurn(conversation=one, condition="own", turn=turn, system="m", sampling=Sampling(max_tokens=9), reply="so")
        for one in asked
        for turn in (1, 2, 3)
    ]
    jsonl.write(tmp_path / "replies.jsonl", replies)

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        keys = body["response_format"]["json_schema"]["schema"]["properties"]
        return completion(json.dumps({key: {"Rating": 7, "Verdict": "A"}.get(key, "so") for key in keys}))

    words = ["--benchmark", "convbench", "--base-url", scripted(answer).url, "--out", "judged.jsonl"]
    protocols = ["--protocol", "direct", "--protocol", "pairwise"]
    done = run("critic", "judge", "replies.jsonl", *words, *protocols, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    turns = [(one.id, turn) for one in asked for turn in ("1", "2", "3", "whole")]
    table(tmp_path / "grades.csv", "score", [(f"{key}/own/direct/{turn}", 8) for key, turn in turns])
    table(tmp_path / "pairs.csv", "preference", [(f"{key}/own/pairwise/{turn}", "tie") for key, turn in turns])
    summary, _ = audit(tmp_path, "--human", "grades.csv", "--judge", "ours=judged.jsonl")
    assert (summary["grades"]["n"], summary["grades"]["mae"]) == (len(turns), 1.0)
    summary, _ = audit(tmp_path, "--human", "pairs.csv", "--judge", "ours=judged.jsonl")
    assert summary["pairs"]["agreement"]["ours"]["accuracy"]["value"] == 1  # two different answers are a tie
    assert summary["pairs"]["position"]["ours"]["flips"]["value"] == 1
