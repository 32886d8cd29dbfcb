"""critic import-grades: people's verdicts out of a table, as judgments that stand beside a judge's."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import assert_one_line_error, completion, run, sample, write_csv, write_jsonl
from scoring import read_sample
from stages.test_judge_conversations import judge, judged, replies

from critic import human_scored
from critic.judging.examples import build_example, plan

Row = dict[str, object]


def preferences(turn: object, *said: str, key: str = "1") -> list[Row]:
    return [{"id": key, "turn": turn, "rater": f"r{n}", "preference": preference} for n, preference in enumerate(said)]


def test_what_most_say_and_the_mean_grade(tmp_path: Path) -> None:
    file, out = replies(tmp_path / "m.jsonl", "convbench"), tmp_path / "people.jsonl"
    rows = [
        *preferences(1, "model", "model", "reference"), *preferences(2, "model", "Reference"),
        *preferences("3.0", "reference", "tie"), *preferences("whole", "tie"),
        *preferences(1, "model", "tie", "tie", "tie", "tie", key="3"),
        *preferences(2, "model", "tie", "reference", "model", "tie", key="3"),
        *preferences(3, "model", "reference", "tie", "reference", key="3"),
        *({"id": "2", "turn": 1, "rater": name, "grade": grade} for name, grade in (("r0", 4), ("r1", 7))),
    ]  # fmt: skip
    grades = write_csv(tmp_path / "g.csv", rows)
    done = run("critic", "import-grades", grades, "--replies", file, "--out", out)
    assert done.returncode == 0 and "8 verdicts of 5 raters" in done.stdout, done.stderr
    by_turn = {(line.sample.id, line.turn): line for line in judged(out)}
    assert {key: (judgment.protocol, judgment.score) for key, judgment in by_turn.items()} == {
        ("1", 1): ("pairwise", 1.0), ("1", 2): ("pairwise", 0.5), ("1", 3): ("pairwise", 0.5),
        ("1", None): ("pairwise", 0.5), ("2", 1): ("direct", 5.5),
        ("3", 1): ("pairwise", 0.5), ("3", 2): ("pairwise", 0.5), ("3", 3): ("pairwise", 0.0),
    }  # fmt: skip
    assert {judgment.judge for judgment in by_turn.values()} == {"people"}
    assert by_turn["1", 1].sample.length == len("m on 1 turn 1.")


def test_grades_of_another_scale_are_moved_onto_ten(tmp_path: Path) -> None:
    file = replies(tmp_path / "m.jsonl", "convbench")
    rows: list[Row] = [{"id": "1", "turn": "Whole", "grade": "4,5"}, {"id": "2", "turn": 1, "grade": 1}]
    words = ["import-grades", write_csv(tmp_path / "g.csv", rows), "--replies", file, "--out", tmp_path / "p.jsonl"]
    assert_one_line_error(run("critic", *words, "--scale", "2:5"), "g.csv:3: grade 1 is outside 2..5 (--scale)")
    assert run("critic", *words, "--scale", "1:5", "--against", "model_a").returncode == 0
    assert sorted(json.loads(line)["score"] for line in (tmp_path / "p.jsonl").open()) == [1.0, 8.875]


def test_what_people_say_of_a_reply_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """It would be a number for a failed call."""
    file, out = replies(tmp_path / "m.jsonl", "convbench"), tmp_path / "people.jsonl"
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    of_first = [line for line in lines if line["conversation"]["id"] == "1"]
    lost = {"reply": None, "failure": "server_error", "detail": "HTTP 500"}
    lines = [line | lost if line is of_first[1] else line for line in lines if line is not of_first[2]]
    write_jsonl(file, lines)
    for turn, why in ((2, "HTTP 500"), ("whole", "HTTP 500"), (3, "not in the file of replies")):
        grades = write_csv(tmp_path / "g.csv", [{"id": "1", "turn": turn, "grade": 1}])
        done = run("critic", "import-grades", grades, "--replies", file, "--out", out)
        assert_one_line_error(done, f"no reply to turn {turn} of '1' (own)", why)
    assert not out.exists()


@pytest.mark.parametrize("protocol", ["direct", "pairwise"])
def test_grades_on_a_judges_records_teach_what_it_was_shown(tmp_path: Path, scripted: Any, protocol: str) -> None:
    """Row 6: each turn's and whole's prompt, the judge's reasons on its turns included, is the one that was sent."""
    file, out, taught = replies(tmp_path / "m.jsonl", "convbench"), tmp_path / "p.jsonl", tmp_path / "j.jsonl"
    answer = {"direct": '{"Rating":7,"Reason":"It is %s."}', "pairwise": '{"Verdict":"A","Reason":"It is %s."}'}
    server = scripted(lambda body: completion(answer[protocol] % len(json.dumps(body))))
    assert judge(file, taught, "convbench", server.url, "--protocol", protocol, "--order", "both").returncode == 0
    opinion: dict[str, Any] = {"direct": {"grade": 3}, "pairwise": {"preference": "model"}}[protocol]
    keys = [(talk.id, turn) for talk in read_sample("convbench") for turn in (1, 2, 3, "whole")]
    grades = write_csv(tmp_path / "g.csv", [{"id": key, "turn": turn, **opinion} for key, turn in keys])
    words = ["import-grades", grades, "--replies", file, "--out", out]
    run("critic", *words, "--judged", taught, code=0)
    rows = human_scored.load(out).responses
    examples = plan(rows, dict.fromkeys(sorted({row.form for row in rows}), 1.0)).examples
    by_id, sent = {row.id: row for row in rows}, [body["messages"] for body in server.requests if "messages" in body]
    shown = [
        build_example(each, by_id, None, lambda _: 0).messages
        for each in examples
        if each.form == by_id[each.ids[0]].form
    ]
    assert len(rows) == len(keys) and len(shown) == len(sent) == len(keys) * (1 + (protocol == "pairwise"))
    assert sorted(map(json.dumps, shown)) == sorted(map(json.dumps, sent))
    lines = [json.loads(line) for line in taught.read_text("utf-8").splitlines()]
    write_jsonl(taught, [line for line in lines if line["sample"].get("turn") != 2])
    refused = run("critic", *words, "--judged", taught)
    assert_one_line_error(refused, f"has no {protocol} verdict on turn 2 of '1' (own)")
    other = replies(tmp_path / "n.jsonl", "convbench", system="n")
    words[3] = other
    assert_one_line_error(run("critic", *words, "--judged", taught), "judges another reply to turn 1 of '1' (own)")


def test_the_matrix_of_judges_and_people(tmp_path: Path, scripted: Any) -> None:
    """One judge takes the model every time, another never, people in every second conversation."""

    def answer(winner: str) -> Any:
        return lambda body: completion(json.dumps({"Verdict": winner, "Reason": "x"}))

    conversations = read_sample("convbench")
    file = replies(tmp_path / "m.jsonl", "convbench")
    rows = [row for n, conversation in enumerate(conversations) for turn in (1, 2, 3, "whole")
            for row in preferences(turn, "model" if n % 2 else "reference", key=conversation.id)]  # fmt: skip
    outs = [tmp_path / "people.jsonl", tmp_path / "j1.jsonl", tmp_path / "j2.jsonl"]
    run("critic", "import-grades", write_csv(tmp_path / "g.csv", rows), "--replies", file, "--out", outs[0])
    for out, name in zip(outs[1:], ("one", "two"), strict=True):
        words = ["--protocol", "pairwise", "--order", "forced", "--name", name]
        assert judge(file, out, "convbench", scripted(answer("A")).url, *words).returncode == 0
    done = run("critic", "score", *outs, "--out", tmp_path / "score", code=0)
    page = (tmp_path / "score" / "report.html").read_text("utf-8")
    assert "judged by people (paper: by a model)" in page
    # On each answer people's verdict stands beside either judge's, and where they are apart comes first.
    listed = json.loads(re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)[0])["rows"]
    sides = [(*row["scores"], row["parts"][-1]) for row in listed]
    distances = [abs(people - judged) for people, judged, _ in sides]
    assert [row["apart"] for row in listed] == sorted(distances, reverse=True) and {*distances} == {0, 1}
    assert [judged for *_, judged in sides].count("two") == len(rows) == len(sides) / 2
    printed = done.stdout.partition("in % (pairwise; tables 3 to 7)\n")[2].splitlines()[:4]
    head, *lines = (re.split(" {2,}", line.strip()) for line in printed)
    cells = {pair: equal[0] for pair, *equal in lines}
    assert {"all", "S1", "S2", "S3", "SO"} <= {*head} and cells["m: one and two"].startswith("100.0")
    assert cells["m: people and one"] == cells["m: people and two"]
    assert "mean of the models" not in done.stdout, "there is one model"


def test_answers_of_other_programs_and_two_models(tmp_path: Path) -> None:
    lines = [{"id": conversation.id, "text": "x"} for conversation in read_sample("visitbench")]
    answers = write_jsonl(tmp_path / "m.jsonl", lines)
    grades = write_csv(tmp_path / "g.csv", [{"id": "1", "preference": "other model", "rater": "a"}])
    words = ["--benchmark", "visitbench", "--questions", sample("visitbench"), "--against", "other model"]
    words += ["--replies", answers, "--out", tmp_path / "p.jsonl"]
    run("critic", "import-grades", grades, *words, code=0)
    (line,) = judged(tmp_path / "p.jsonl")
    assert (line.score, line.opponent, line.system) == (0.0, "other model", "m")


def test_mistakes_end_in_one_line(tmp_path: Path) -> None:
    file, out = replies(tmp_path / "m.jsonl", "convbench"), tmp_path / "o.jsonl"
    cases: list[tuple[list[Row], str]] = [
        ([{"id": "9", "preference": "model"}], ":2: no reply to turn 1 of '9' (own)"),
        ([{"id": "1", "turn": 4, "preference": "model"}], ":2: no reply to turn 4"),
        ([{"id": "1", "turn": "²", "grade": 3}], ":2: no reply to turn ²"),
        ([{"id": "1", "grade": 3, "preference": "model"}], "either preference or grade"),
        ([{"id": "1", "turn": 1}], "either preference or grade"),
        ([{"id": "1", "preference": "left"}], "'left'; expected model, tie, reference"),
        ([{"id": "1", "grade": 11}], "grade 11 is outside 1..10 (--scale)"),
        ([{"id": "1", "grade": "good"}], "grade 'good'"),
        ([{"id": "1", "grade": 3}] * 2, ":3: people on turn 1 of '1' (own) is there twice"),
    ]
    for rows, part in cases:
        words = [write_csv(tmp_path / "g.csv", rows), "--replies", file, "--out", out]
        assert_one_line_error(run("critic", "import-grades", *words), part)
    assert not out.exists()
