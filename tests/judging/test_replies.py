"""Replies that other programs made: every layout comes to the transcripts that critic infer would have written."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, assert_one_line_error, run, sample, write_jsonl, write_xlsx
from stages.test_judge_conversations import answer_all, prompt_of, replies

from critic import benchmarks
from critic.benchmarks.alignmmbench import read_conversations
from critic.errors import UsageError
from critic.judging.transcripts import Transcript, is_table, read_table, read_transcripts
from critic.records import Conversation

CONVBENCH = benchmarks.read("convbench", sample("convbench"))
VISITBENCH = benchmarks.read("visitbench", sample("visitbench"))


LOST = (
    "Failed to obtain answer via API.",
    "Failed to obtain answer",
    "Failed to obtain answer: <class 'requests.exceptions.ReadTimeout'> timed out",
)


def said(talk: Conversation, turn: int) -> str:
    return f"m on {talk.id} turn {turn}."


def every(transcripts: dict[tuple[str, str], Transcript]) -> dict[tuple[str, str, int], str | None]:
    return {(*key, turn): line.reply for key, talk in transcripts.items() for turn, line in talk.turns.items()}


def plain(path: Path) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerow(["id", "turn", "text"])
        writer.writerows([talk.id, turn, said(talk, turn)] for talk in CONVBENCH for turn in (1, 2, 3))
    return path


def vlmevalkit(path: Path) -> Path:
    rows = []
    for talk in CONVBENCH:
        predictions = {f"prediction_{turn - 1}": said(talk, turn) for turn in (1, 2, 3)}
        rows.append({"index": int(talk.id), "question": talk.turns[0].prompt, **predictions})
    return write_xlsx(path, rows)


def lmms_eval(path: Path) -> Path:
    lines = []
    for number, talk in enumerate(CONVBENCH):
        about = {"doc_id": number, "target": "t", "input": f"<image>\n{talk.turns[0].prompt}\nBe brief."}
        lines.append(about | {"filtered_resps": [[said(talk, turn) for turn in (1, 2, 3)]]})
    return write_jsonl(path, lines)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("m.csv", plain), ("m.tsv", plain), ("m.xlsx", vlmevalkit), ("m.jsonl", lmms_eval),
    ],
)  # fmt: skip
def test_every_layout_reads_as_what_critic_infer_wrote(tmp_path: Path, name: str, make: Any) -> None:
    ours = read_transcripts(replies(tmp_path / "infer.jsonl", "convbench"), "convbench")
    theirs = read_transcripts(make(tmp_path / name), "convbench", CONVBENCH)
    assert every(theirs) == every(ours) and len(every(ours)) == 18
    for key, transcript in theirs.items():
        assert [transcript.earlier(turn) for turn in (1, 2, 3)] == [ours[key].earlier(turn) for turn in (1, 2, 3)]
        assert transcript.system == "m" and transcript.conversation == ours[key].conversation


def test_single_answers_of_the_harnesses_and_what_they_lost(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [{"index": talk.id, "prediction": said(talk, 1)} for talk in VISITBENCH]
    for line, text in zip(lines, (*LOST, None), strict=False):
        line["prediction"] = text
    kept = every(read_transcripts(write_jsonl(tmp_path / "v.jsonl", lines), "visitbench", VISITBENCH, "named"))
    transcripts = read_transcripts(tmp_path / "v.jsonl", "visitbench", VISITBENCH, "named")
    failures = [talk.turns[1].failure for talk in transcripts.values()]
    assert failures[:4] == [*["server_error"] * 3, "empty"] and set(failures[4:]) == {None}
    assert {talk.system for talk in transcripts.values()} == {"named"} and len(kept) == len(VISITBENCH)
    write_jsonl(tmp_path / "l.jsonl", [{"doc_id": n, "resps": [["x"]]} for n, _ in enumerate(VISITBENCH)])
    assert set(every(read_transcripts(tmp_path / "l.jsonl", "visitbench", VISITBENCH)).values()) == {"x"}


def test_a_turn_behind_a_lost_one_is_there_where_its_history_shows_no_own_reply(tmp_path: Path) -> None:
    texts = {1: "r1", 2: LOST[0], 3: "r3"}
    for name, third in (("own", "not_run"), ("no_image", "not_run"), ("oracle", None), ("no_history", None)):
        rows = [{"id": "1", "turn": turn, "text": text, "condition": name} for turn, text in texts.items()]
        transcripts = read_transcripts(write_jsonl(tmp_path / "t.jsonl", rows), "convbench", CONVBENCH)
        turns = transcripts["1", name].turns
        assert [turns[turn].failure for turn in (1, 2, 3)] == [None, "server_error", third], name
        assert turns[3].reply == (None if third else "r3")
    assert [each.answer for each in transcripts["1", "no_history"].earlier(3)] == []
    rows = [{"id": "1", "turn": turn, "text": "x", "condition": "oracle"} for turn in (1, 3)]
    transcripts = read_transcripts(write_jsonl(tmp_path / "t.jsonl", rows), "convbench", CONVBENCH)
    answers = [each.answer for each in transcripts["1", "oracle"].earlier(3)]
    assert answers == [turn.reference for turn in CONVBENCH[0].turns[:2]]


def asks(layout: str, number: int, question: str) -> dict[str, Any]:
    """An answer to a question of VisIT-Bench, and what was asked."""
    key: Any = VISITBENCH[number].id
    return {
        "plain": {"id": key, "text": "x", "prompt": question},
        "vlmevalkit": {"index": key, "question": question, "prediction": "x"},
        "lmms-eval": {"doc_id": number, "doc": {"question": question}, "filtered_resps": ["x"], "input": "<image>"},
        "alignmmbench": {"question_id": key, "predict": "x", "question": question and ["an earlier one", question]},
    }[layout]


@pytest.mark.parametrize("layout", ["plain", "vlmevalkit", "lmms-eval", "alignmmbench"])
def test_replies_to_other_questions_are_refused(tmp_path: Path, layout: str) -> None:
    """Rows of which the first asks its own question with other white space, the second another one of the file, the
    third one that is not there; a cell without a question says nothing."""
    own, other = (VISITBENCH[number].turns[0].prompt for number in (0, 2))
    rows = [asks(layout, 0, f"<image>\\n{own.upper().replace(' ', '  ')} Be brief."), asks(layout, 1, other)]
    rows.append(asks(layout, 3, "How deep is the sea at Dover?"))
    file = write_jsonl(tmp_path / "m.jsonl", rows)
    with pytest.raises(UsageError, match=r"m\.jsonl:2: .* asks .*, the row has .*; give as"):
        read_transcripts(file, "visitbench", VISITBENCH)
    file = write_jsonl(tmp_path / "m.jsonl", [rows[0], asks(layout, 1, "")])
    assert len(read_transcripts(file, "visitbench", VISITBENCH)) == 2


def test_all_of_alignmmbench_in_its_own_layout(tmp_path: Path, shared: Path) -> None:
    """4,978 real questions, answered in the lines that its authors' script reads."""
    questions = read_conversations(shared / "data/alignmmbench/questions.jsonl")
    lines = [{"question_id": question.id, "predict": f"答 {question.id}"} for question in questions]
    transcripts = read_transcripts(write_jsonl(tmp_path / "m.jsonl", lines), "alignmmbench", questions)
    assert len(transcripts) == 4978 and every(transcripts)[questions[7].id, "own", 1] == f"答 {questions[7].id}"


@pytest.mark.parametrize("words", [(), ("--benchmark", "alignmmbench")])
def test_what_is_lost_fails_on_both_roads_unasked(tmp_path: Path, scripted: Any, words: tuple[str, ...]) -> None:
    server, questions = scripted(answer_all), sample("alignmmbench")
    talks = benchmarks.read("alignmmbench", questions)
    lines = [{"question_id": talk.id, "predict": said(talk, 1)} for talk in talks]
    for line, text in zip(lines, (" ", *LOST), strict=False):
        line["predict"] = text
    file, out = write_jsonl(tmp_path / "m.jsonl", lines), tmp_path / "j.jsonl"
    given = ("--questions", questions, *words, "--score", "argmax", "--concurrency", "1", "--max-failed", "1")
    done = run("critic", "judge", file, "--out", out, "--base-url", server.url, *given)
    assert done.returncode == 0 and "4 failed (server_error 3, empty 1)" in done.stdout, done.stderr
    assert "from the cache" not in done.stdout and ", 0 cached" in done.stdout, "nobody was asked of it"
    assert not any(text in prompt_of(body) for body in server.requests for text in LOST)
    assert run("critic", "judge", file, "--out", out, "--base-url", server.url, *given).returncode == 0
    scores = ("--questions", questions) if words else ()
    run("critic", "score", out, *scores, "--out", tmp_path / "s.json", "--max-failed", "1", code=0)
    (row,) = json.loads((tmp_path / "s.json").read_text("utf-8"))["leaderboards"]["categories"].values()
    questions = row["mean of the questions"]
    assert (questions["n"], questions["failed"]) == (len(talks) - 4, 4)


@pytest.mark.parametrize(
    ("lines", "words", "parts"),
    [
        ([{"question_id": "1", "predict": "x"}], [], ("answers to AlignMMBench", "--questions", "--benchmark")),
        ([{"id": "1", "turn": 1, "text": "x"}], [], ("another program", "--questions", "--benchmark")),
        ([{"id": "1", "turn": 1, "text": "x"}], ["--benchmark", "convbench"], ("give the benchmark's file",)),
        ([{"id": "9", "turn": 1, "text": "x"}], ["convbench"], (":1: id '9' is not in the benchmark's file",)),
        ([{"id": "1", "turn": 4, "text": "x"}], ["convbench"], (":1: turn 4 of '1' (own) is not there: it has 3",)),
        ([{"id": "1", "turn": 2, "text": "x"}], ["convbench"], ("turn 2 of '1' (own) is there, turn 1 is not",)),
        ([{"id": "1", "turn": "²", "text": "x"}], ["convbench"], ("'turn' is '²'; expected a turn's number",)),
        ([{"id": "1", "text": "x"}] * 2, ["convbench"], (":2: turn 1 of '1' (own) is there twice",)),
        ([{"id": "1", "text": "x", "condition": "none"}], ["convbench"], (":1: no 'none'",)),
        ([{"id": "1", "answer": "x"}], ["convbench"], (":1: columns id, answer are no known layout", "index, pred")),
    ],
)  # fmt: skip
def test_mistakes_end_in_one_line(
    tmp_path: Path, scripted: Any, lines: list[dict[str, Any]], words: list[str], parts: tuple[str, ...]
) -> None:
    file = write_jsonl(tmp_path / "t.jsonl", lines)
    given = ["--benchmark", *words, "--questions", str(sample("convbench"))] if len(words) == 1 else words
    done = run("critic", "judge", file, "--out", tmp_path / "o.jsonl", "--base-url", scripted(answer_all).url, *given)
    assert_one_line_error(done, "t.jsonl", *parts)
    assert not (tmp_path / "o.jsonl").exists()


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.xml").write_text("<replies/>")
    with pytest.raises(UsageError, match=r"cannot read \.xml; expected \.csv"):
        list(read_table(tmp_path / "t.xml", CONVBENCH, "m"))
    assert not is_table(ROOT / "data")
