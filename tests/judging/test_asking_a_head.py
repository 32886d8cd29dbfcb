"""A scoring head gives the distribution of the ratings at once: no text, no second call."""

import math
from pathlib import Path
from typing import Any

import pytest
from conftest import Servers, assert_one_line_error, human_row, human_rows, read_jsonl, run, write_jsonl
from stages.test_judge_conversations import replies

from critic.backends import Reply
from critic.judging import grader

SHARES = [0.0, 0.0, 0.125, 0.0, 0.0, 0.25, 0.5, 0.0, 0.0, 0.125]


def classes(body: dict[str, Any]) -> dict[str, Any]:
    """What vLLM's `/classify` answers."""
    data = [{"index": 0, "label": "7", "probs": SHARES, "num_classes": 10}]
    return {"object": "list", "model": body["model"], "data": data, "usage": {"prompt_tokens": 11}}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return human_rows(tmp_path, 4)


def test_its_classes_are_the_distribution(scripted: Servers, rows: Path, tmp_path: Path) -> None:
    server, out = scripted(classes, owner="vllm", head=True), tmp_path / "out.jsonl"
    run("critic", "judge", str(rows), "--out", str(out), "--base-url", server.url, code=0)
    for line in read_jsonl(out):
        assert line["verdict"]["distribution"] == SHARES and line["verdict"]["rating"] == 7
        assert line["score"] == pytest.approx(6.625)
        assert line["reply"] == '{"Rating":7' and "reason" not in line["verdict"]
        assert (line["prompt_tokens"], line.get("completion_tokens", 0)) == (11, 0)
    first, *requests = server.requests
    assert first["messages"][0]["content"] == "?", "whether it is a head is asked once"
    assert len(requests) == 4, "one call a row"
    for body in requests:
        assert body["add_generation_prompt"] is True and body["messages"][0]["role"] == "user"
        assert "apples lie on table" in body["messages"][0]["content"]


@pytest.mark.parametrize("form", ["correct", "scale_5", "commit_first"])
def test_other_verdicts_are_refused_in_one_line(scripted: Servers, rows: Path, tmp_path: Path, form: str) -> None:
    server = scripted(classes, owner="vllm", head=True)
    out = tmp_path / "out.jsonl"
    done = run("critic", "judge", str(rows), "--out", str(out), "--base-url", server.url, "--prompt", form)
    assert_one_line_error(done, f"--prompt {form}: tiny is a scoring head, which gives one rating on 1..10")
    assert not out.exists() and len(server.requests) == 1
    words = ["--benchmark", "multiverse", "--protocol", "checklist", "--force-form", "--base-url", server.url]
    done = run("critic", "judge", replies(tmp_path / "m.jsonl", "multiverse"), "--out", out, *words)
    assert done.returncode == 2 and "--protocol checklist: tiny is a scoring head" in done.stderr


@pytest.mark.parametrize("shares", [None, [0.5, 0.5], [*SHARES[1:], math.nan]])
def test_what_is_no_ten_numbers_is_no_verdict(shares: list[float] | None) -> None:
    assert grader.read_classes(Reply(text="", classes=shares))[0].failure == "no_distribution"


def test_another_number_of_classes_is_no_judge(scripted: Servers, rows: Path, tmp_path: Path) -> None:
    def two(body: dict[str, Any]) -> dict[str, Any]:
        return {**classes(body), "data": [{"probs": [0.5, 0.5]}]}

    server, out = scripted(two, owner="vllm", head=True), tmp_path / "out.jsonl"
    done = run("critic", "judge", str(rows), "--out", str(out), "--base-url", server.url)
    assert done.returncode == 3 and out.is_file(), done.stderr
    lines = read_jsonl(out)
    assert {line["verdict"]["failure"] for line in lines} == {"refused"}


def longer(body: dict[str, Any]) -> dict[str, Any]:
    """One score, by the length of what is asked, as `/classify` answers for a head that compares."""
    score = len(body["messages"][0]["content"].split("# The assistant's reply")[-1]) / 10
    return {**classes(body), "data": [{"label": "score", "probs": [score], "num_classes": 1}]}


def test_two_answers_are_compared_by_a_score_of_each(scripted: Servers, rows: Path, tmp_path: Path) -> None:
    answers = [("x" * 40, "x" * 10), ("x" * 10, "x" * 40), ("x" * 40, "x" * 38)]
    pair_rows = [human_row(n, preference="A", response_a=a, response_b=b) for n, (a, b) in enumerate(answers)]
    pairs = write_jsonl(tmp_path / "pairs.jsonl", pair_rows)
    server, out = scripted(longer, owner="vllm", head=True), tmp_path / "out.jsonl"
    server.told = {"forms": ["pairwise"], "tie_band": 0.25}
    run("critic", "judge", pairs, "--prompt", "pairwise", "--out", out, "--base-url", server.url, code=0)
    lines = sorted(read_jsonl(out), key=lambda line: line["sample"]["id"])
    assert [(line["verdict"]["value"], line["score"]) for line in lines] == [("A", 1.0), ("B", 0.0), ("tie", 0.5)]
    assert [line["reply"] for line in lines] == [f'{{"Verdict":"{value}"}}' for value in ("A", "B", "tie")]
    for line, ahead in zip(lines, (3.0, -3.0, 0.2), strict=True):
        assert line["verdict"]["distribution"][1] == pytest.approx(1 / (1 + math.exp(-ahead)))
        first, second = (float(call["value"]) for call in line["calls"])
        assert first - second == pytest.approx(ahead) and not any("first" in call for call in line["calls"])
    prompts = [body["messages"][0]["content"] for body in server.requests[1:]]
    assert len(prompts) == 6 and all(text.count("xxxxxxxxxx") in (1, 3, 4) for text in prompts), "one call an answer"
    rated = run("critic", "judge", rows, "--out", out, "--base-url", server.url, "--force-form")
    assert_one_line_error(rated, "--prompt pointwise: tiny is a scoring head, which compares two answers (pairwise, ")


def test_turns_and_conversations_are_compared_by_a_score_of_each(scripted: Servers, tmp_path: Path) -> None:
    mine, theirs = (replies(tmp_path / f"{name}.jsonl", "convbench", system=name) for name in ("mine", "theirs"))
    server, out = scripted(longer, owner="vllm", head=True), tmp_path / "out.jsonl"
    server.told = {"forms": ["pairwise_turn", "pairwise_whole"], "tie_band": 0.05}
    words = ["--against", theirs, "--protocol", "pairwise", "--out", out, "--base-url", server.url]
    run("critic", "judge", mine, *words, code=0)
    lines = read_jsonl(out)
    assert {line["prompt"] for line in lines} == {"pairwise_turn", "pairwise_whole"}
    assert {line["verdict"]["value"] for line in lines} == {"B"}, "whose replies are two letters longer"
    prompts = [body["messages"][0]["content"] for body in server.requests[1:]]
    assert len(prompts) == 2 * len(lines), "one call an answer"
    assert all(("mine on" in text) != ("theirs on" in text) and "of the single turns" not in text for text in prompts)
    whole = [line for line in lines if line["prompt"] == "pairwise_whole"]
    assert sum("the conversation as a whole" in text or "在整段对话中" in text for text in prompts) == 2 * len(whole)


def test_what_is_shortened_for_a_head_is_less_than_the_context(scripted: Servers, tmp_path: Path) -> None:
    def strict(body: dict[str, Any]) -> Any:
        full = len(body["messages"][0]["content"]) >= 6000
        return (400, {}, b'{"message": "maximum context length is 6000"}') if full else classes(body)

    rows = write_jsonl(tmp_path / "rows.jsonl", [human_row(0, response="x" * 9000)])
    server = scripted(strict, owner="vllm", head=True, context=6000)
    run("critic", "judge", rows, "--out", tmp_path / "out.jsonl", "--base-url", server.url, code=0)
