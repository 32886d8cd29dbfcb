"""Models under judgment that think aloud: thoughts are no answer, no history and no length, and they are not lost."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import ROOT, assert_one_line_error, completion, human_row, read_jsonl, run, sample, write_jsonl
from judgments import Recorder, of_answer
from msgspec.structs import replace
from stages.test_infer import by_place, content, converse, digest, talks
from stages.test_judge_conversations import answer_all, judge, judged, prompt_of, replies

from critic import benchmarks, human_scored, jsonl
from critic.backends import Reply, Request
from critic.judging import history
from critic.judging.thoughts import split_thoughts, without_thoughts_in
from critic.judging.transcripts import read_transcripts
from critic.records import CUT_OFF, ModelTurn, Question, Response, Verdict
from critic.stages.totals import sum_replies
from eval_agreement.reading.audit_items import items_of
from eval_agreement.reading.loaders import read_scores
from eval_agreement.reading.tables import Source

MARKED = {
    "<think>Four?</think>\n\nFive.": "Four?",
    "<thinking>\nFour?\n</thinking>Five.": "Four?",
    "<seed:think>Four?</seed:think>Five.": "Four?",
    "[THINK]Four?[/THINK]Five.": "Four?",
    "【思考】Four?【/思考】Five.": "Four?",
    "◁think▷Four?◁/think▷Five.": "Four?",
    "<|begin_of_thought|>Four?<|end_of_thought|>Five.": "Four?",
    "<|start_thinking|>Four?<|end_thinking|>Five.": "Four?",
    "<|channel|>analysis<|message|>Four?<|end|><|start|>assistant<|channel|>final<|message|>Five.": "Four?",
    "<|channel>thought\nFour?<channel|>Five.": "Four?",
    "analysisFour?assistantfinalFive.": "Four?",
    "Four?\n</think>\n\nFive.": "Four?",
    "I count four?</think>\nFive.": "I count four?",
    "<think>Four?</think>\n<think>No.</think>Five.": "Four?\n\nNo.",
    "<think>\n\n</think>\n\nFive.": "",
    '<think>"Four?" asks the user.</think>Five.': '"Four?" asks the user.',
    'I say "Four?"</think>\nFive.': 'I say "Four?"',
    "<think>```\n4 apples</think>\nFive.": "```\n4 apples",
}

SPOKEN_OF = (
    "Five.",
    "Models put their thoughts between <think> and </think>.",
    "Use <think> before and </think>\nafter them.",
    "A model closes its thoughts with </think>\nand answers then.",
    "<think> and </think> are tags that mark thoughts.",
    "`<think>` begins a block of thoughts, `</think>` ends it.",
    "Write it so:\n```xml\n<think>\nFour?\n</think>\nFive.\n```",
    "```\n<think>\n```\nis where thoughts begin.",
    "Write <think>your thoughts</think> before the answer.",
    "The tags:\n\n    <think>\n    </think>\n",
    "[Analysis]\nThe picture shows five apples.",
    "analysis: five apples.",
    "<think>标签用来标记思考。",
)


@pytest.mark.parametrize("text", MARKED)
def test_an_answer_stands_behind_its_thoughts(text: str) -> None:
    split = split_thoughts(text)
    assert split.answer == "Five." and MARKED[text] in split.thoughts and split.closed
    assert split_thoughts(split.answer).answer == split.answer


@pytest.mark.parametrize("text", SPOKEN_OF)
def test_an_answer_about_thoughts_is_left_as_it_is(text: str) -> None:
    assert split_thoughts(text) == (text, "", True)


def a_turn() -> ModelTurn:
    (turn,) = converse(talks(1, turns=1), Recorder(lambda _: Reply(text="Five.")), "own")
    return replace(turn, reply=None)


def thinking(request: Request) -> Reply:
    return Reply(text=f"<think>Four? No.</think>\nown {digest([dict(message) for message in request.messages])}")


def test_the_next_turn_is_asked_without_the_thoughts_of_the_last() -> None:
    backend = Recorder(thinking)
    turns = by_place(converse(talks(1), backend, "own"))
    assert all(turn.thoughts == "Four? No." and (turn.reply or "").startswith("own ") for turn in turns.values())
    assert not any("Four" in text for request in backend.requests for text in content(request.messages))
    totals = sum_replies(turns.values(), Path("out.jsonl"))
    assert totals.facts["with_thoughts"] == 3 and any("3 replies have thoughts" in line for line in totals.lines)


def test_thoughts_that_a_server_gives_apart_are_kept(tmp_path: Path, scripted: Any) -> None:
    def answer(body: dict[str, Any]) -> dict[str, Any]:
        reply = completion("Five.")
        reply["choices"][0]["message"]["reasoning_content"] = "Four? No."
        return reply

    file, root = sample("visitbench"), ROOT / "data/samples/visitbench"
    words = ("--benchmark", "visitbench", "--data-root", root, "--base-url", scripted(answer).url, "--limit", 2)
    done = run("critic", "infer", file, *words, "--out", tmp_path / "r.jsonl", code=0)
    assert "2 replies have thoughts" in done.stdout
    lines = read_jsonl(tmp_path / "r.jsonl")
    assert [(line["reply"], line["thoughts"]) for line in lines] == [("Five.", "Four? No.")] * 2


def older(turns: list[ModelTurn]) -> list[ModelTurn]:
    """The same as versions before recorded it: thoughts in the reply, and in the history of the turns behind it."""
    mark, lines = "<think>Four? No.</think>\n", []
    for turn in turns:
        seen = [
            replace(message, content=mark + message.content) if message.role == "assistant" else message
            for message in turn.seen
        ]
        lines.append(replace(turn, reply=mark + (turn.reply or ""), seen=seen))
    return lines


def test_a_file_with_thoughts_in_its_replies_is_judged_without_them(tmp_path: Path, scripted: Any) -> None:
    file = replies(tmp_path / "r.jsonl", "convbench")
    jsonl.write(file, older([turn for _, turn in jsonl.read(file, ModelTurn)]))
    jsonl.write_sidecar(file, {})
    server = scripted(answer_all)
    done = judge(file, tmp_path / "j.jsonl", "convbench", server.url, "--protocol", "direct")
    assert done.returncode == 0 and "18 of 18 answers have thoughts" in done.stderr, done.stderr
    assert server.requests and not any("Four?" in prompt_of(body) for body in server.requests)
    lengths = {
        (line.sample.length, len(line.sample.answer or "")) for line in judged(tmp_path / "j.jsonl") if line.turn
    }
    assert all(length == characters for length, characters in lengths)


def test_a_run_with_thoughts_in_its_history_is_gone_on_with() -> None:
    """What an earlier version asked stays; what is still to be asked shows no thoughts."""

    def verbatim(request: Request) -> Reply:
        return Reply(text=f"Spoken {digest([dict(message) for message in request.messages])}")

    known = converse(talks(1), Recorder(verbatim), "own")[:1]
    first = replace(known[0], reply="<think>Four?</think> " + (known[0].reply or ""))
    backend = Recorder(verbatim)
    turns = by_place(converse(talks(1), backend, "own", known=[first]))
    assert set(turns) == {("own", 2), ("own", 3)} and len(backend.requests) == 2
    assert not any("Four" in text for request in backend.requests for text in content(request.messages))
    # An earlier version asked turn 2 with the whole reply to turn 1.
    (conversation,) = talks(1)
    shown = history.messages(conversation, 2, {1: first.reply or ""}, history.CONDITIONS["own"])
    second = replace(turns["own", 2], call=history.call_id(conversation, shown))
    assert list(by_place(converse(talks(1), Recorder(verbatim), "own", known=[first, second]))) == [("own", 3)]


@pytest.mark.parametrize(
    ("benchmark", "id", "text"),
    [("visitbench", "index", "prediction"), ("alignmmbench", "question_id", "predict"), ("visitbench", "id", "text")],
)
def test_replies_of_other_programs_have_no_thoughts(benchmark: str, id: str, text: str, tmp_path: Path) -> None:
    conversations = benchmarks.read(benchmark, sample(benchmark))
    said = ["<think>Four?</think>Five.", "<think>Four? No", *["Five."] * len(conversations)]
    rows = [{id: talk.id, text: reply} for talk, reply in zip(conversations, said, strict=False)]
    turns = read_transcripts(write_jsonl(tmp_path / "m.jsonl", rows), benchmark, conversations)
    first, second, *rest = (transcript.turns[1] for transcript in turns.values())
    assert (first.reply, first.thoughts) == ("Five.", "Four?")
    assert (second.reply, second.failure) == (None, "truncated") and rest[0].thoughts is None


def test_scored_answers_are_learned_from_and_judged_without_thoughts(tmp_path: Path, scripted: Any) -> None:
    told = [{"user": "How many?", "assistant": "<think>Hm.</think>Some."}]
    rows = [
        human_row(0, response="<think>Four? No.</think>\nFive.", history=told),
        human_row(1, response="<think>Four? No, let"),
        human_row(2, response="Five."),
    ]
    file, left_out = write_jsonl(tmp_path / "rows.jsonl", rows), Counter[str]()
    scored = [response for *_, response in human_scored.walk(file, left_out)]
    assert [response.text for response in scored] == ["Five.", "Five."] and left_out == {CUT_OFF: 1}
    assert [turn.assistant for turn in scored[0].question.history] == ["Some."]
    server = scripted(answer_all)
    done = run("critic", "judge", file, "--out", tmp_path / "j.jsonl", "--base-url", server.url, "--max-failed", 1)
    assert done.returncode == 0 and "2 of 3 answers have thoughts" in done.stderr, done.stderr
    assert [line.failure for line in judged(tmp_path / "j.jsonl")].count("truncated") == 1
    assert len(server.requests) == 2 and not any("Four?" in prompt_of(body) for body in server.requests)


def test_the_length_of_an_answer_is_that_without_thoughts(tmp_path: Path) -> None:
    question = Question(id="q", prompt="?", task="t", group="g", lang="en", reference="5")
    older_judgment = of_answer(
        Response(id="a", question=question, text="<think>Four?</think>Five."), verdict=Verdict(rating=5)
    )
    assert [item.length for item in items_of(older_judgment)] == [5]
    answers = ["<think>Four? No.</think>" + "x" * 10, "y" * 20]
    people = write_jsonl(tmp_path / "p.jsonl", [{"id": str(n), "score": n + 1} for n in range(2)])
    judges = [{"id": str(n), "score": 5, "response": answer} for n, answer in enumerate(answers)]
    audited = read_scores(Source(people), {"j": Source(write_jsonl(tmp_path / "j.jsonl", judges))})
    assert audited.length is not None and audited.length.tolist() == [10, 20]


def test_a_record_whose_parts_do_not_fit_is_named_by_its_line(tmp_path: Path) -> None:
    file = replies(tmp_path / "r.jsonl", "convbench")
    whole, verdicts = read_jsonl(file), write_jsonl(tmp_path / "judge.jsonl", [{"text": "7"}])
    lacking = [
        ({"reply": None}, "either a `reply` or a `failure`"),
        ({"failure": "empty"}, "either a `reply` or a `failure`"),
        ({"turn": 4}, "turn 4 of a conversation that has 3"),
        ({"turn": 0}, "turn 0 of a conversation"),
        ({"seen": whole[1]["seen"][:2]}, "`seen` has 2 messages"),
        ({"seen": whole[2]["seen"]}, "`seen` has 5 messages"),
    ]
    for changes, problem in lacking:
        write_jsonl(file, [whole[0] | changes, *whole[1:]])
        words = ("--benchmark", "convbench", "--judge", verdicts, "--out", tmp_path / "j.jsonl")
        assert_one_line_error(run("critic", "judge", file, *words), "r.jsonl:1", problem)


def test_thoughts_are_read_once_and_stay() -> None:
    turn = replace(a_turn(), reply="Five.", thoughts="<think> was cut", finish="stop")
    assert without_thoughts_in(turn) == turn
    assert json.loads(msgspec.json.encode(turn))["thoughts"] == "<think> was cut"
