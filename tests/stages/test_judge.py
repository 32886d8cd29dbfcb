"""critic judge against a scripted server: scores, failures by name, retries, resume."""

import json
import math
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
from conftest import (
    ROOT,
    Done,
    Scripted,
    Servers,
    asked_of,
    assert_one_line_error,
    completion,
    human_row,
    human_rows,
    read_jsonl,
    run,
    scored_response,
    write_jsonl,
)

from critic import human_scored, jsonl
from critic.backends.identity import list_learned_forms
from critic.errors import UsageError
from critic.judging.forms import inquiry
from critic.records import Judgment, PromptInputs


def judge(server: Scripted, out: Path, *words: object, count: int = 3, code: int | None = None) -> Done:
    data = human_rows(out.parent, count)
    return run("critic", "judge", data, "--out", out, "--base-url", server.url, "--attempts", "1", *words, code=code)


def token(text: str, alternatives: dict[str, float] | None = None) -> dict[str, Any]:
    shares = alternatives or {text: 1.0}
    return {
        "token": text,
        "logprob": math.log(shares[text]),
        "top_logprobs": [{"token": other, "logprob": math.log(share)} for other, share in shares.items()],
    }


def reply_with(first: dict[str, float], chosen: str = "7") -> dict[str, Any]:
    """A verdict whose rating token has the alternatives `first`."""
    tail = '"Reason":"fine"}'
    tokens = [token('{"'), token("Rating"), token('":'), token(chosen, first), token(",")]
    return completion(f'{{"Rating":{chosen},{tail}', tokens=[*tokens, token(tail)])


def test_expected_median_and_argmax_of_the_distribution(tmp_path: Path, scripted: Servers) -> None:
    server = scripted(lambda body: reply_with({"7": 0.6, "2": 0.3, "9": 0.1}))
    for kind, score in {"expected": 0.6 * 7 + 0.3 * 2 + 0.1 * 9, "median": 7, "argmax": 7}.items():
        judge(server, out := tmp_path / f"{kind}.jsonl", "--score", kind, code=0)
        lines = read_jsonl(out)
        assert sorted(line["sample"]["id"] for line in lines) == ["row-0", "row-1", "row-2"]
        for line in lines:
            assert line["score"] == pytest.approx(score, abs=1e-12)
            assert line["verdict"]["rating"] == 7 and line["verdict"]["reason"] == "fine"
            assert sum(line["verdict"]["distribution"]) == pytest.approx(1.0, abs=1e-12)
            assert line["sample"]["human"]["score"] >= 1
        assert jsonl.facts(out)["rows"] == 3
    body = server.requests[0]
    assert re.search(r"> How many apples lie on table [012]\?", body["messages"][0]["content"])
    assert body["temperature"] == 0.0 and body["model"] == "tiny" and body["logprobs"] is True
    assert body["response_format"]["json_schema"]["schema"] == inquiry("pointwise", "en", PromptInputs()).schema()


class LikeVllm:
    """A judge whose first token of a rating has the chances `first`, and in which `ten` is the chance of a 0 behind
    a 1. As on vLLM, a 1 is written where it is favoured, and its chances do not show that. Where the `grammar` lets
    something else stand there, a verdict's own tokens show that, too; None: they show nothing."""

    def __init__(
        self, first: dict[str, float], ten: float, refuses_bias: bool = False, grammar: dict[str, float] | None = None
    ) -> None:
        self.first, self.ten, self.refuses_bias, self.grammar = first, ten, refuses_bias, grammar

    def __call__(self, body: dict[str, Any]) -> Any:
        if self.refuses_bias and "logit_bias" in body:
            return 400, {}, b'{"error": {"message": "logit_bias is not supported with speculative decoding"}}'
        if not body.get("continue_final_message"):
            if self.grammar is None or not body.get("logprobs"):
                return completion('{"Rating":7,"Reason":"fine"}')
            left = 1 - sum(self.grammar.values())
            return reply_with(self.grammar | {text: left * share for text, share in self.first.items()})
        behind = {",": 1 - self.ten} | ({"0": self.ten} if self.ten else {})
        if body["messages"][-1]["content"] == '{"Rating":1':
            assert body["max_tokens"] == 1 and re.fullmatch(body["structured_outputs"]["regex"], ',"Reason')
            return completion(",", "length", tokens=[token(",", behind)])
        assert body["messages"][-1] == {"role": "assistant", "content": '{"Rating":'} and body["max_tokens"] == 2
        assert re.fullmatch(body["structured_outputs"]["regex"], '7,"Reason'), "a token may hold more than the digit"
        chosen = "1" if body.get("logit_bias") == {str(ord("1")): 100} and "1" in self.first else max(self.first)
        after = behind if chosen == "1" else {",": 1.0}
        return completion(f"{chosen},", "length", tokens=[token(chosen, self.first), token(",", after)])


@pytest.mark.parametrize("ten", [0.0, 0.25, 0.9])
@pytest.mark.parametrize(
    ("refuses", "grammar"),
    [(False, {}), (False, None), (False, {" ": 0.2}), (True, None)],
    ids=["at once", "probed", "blanks", "speculating"],
)
def test_ten_is_told_from_one(
    tmp_path: Path, scripted: Servers, ten: float, refuses: bool, grammar: dict[str, float] | None
) -> None:
    """Where 10 is "1" then "0", the mass of the 1 is split by what follows it: in one more token behind a verdict that
    tells all else, in one probe, or in two where the server cannot be made to write a 1."""
    server = scripted(LikeVllm({"7": 0.5, "1": 0.4, "3": 0.1}, ten, refuses, grammar), owner="vllm")
    judge(server, out := tmp_path / "out.jsonl", "--concurrency", "1", code=0)
    for line in read_jsonl(out):
        distribution = line["verdict"]["distribution"]
        assert distribution[0] == pytest.approx(0.4 * (1 - ten)) and distribution[9] == pytest.approx(0.4 * ten)
        assert line["score"] == pytest.approx(0.5 * 7 + 0.1 * 3 + 0.4 * (1 - ten) + 4 * ten)
        assert line["verdict"]["rating"] == 7 and line["verdict"]["reason"] == "fine"
    assert len(server.requests) == (1 + 3 * 3 if refuses else 3 * 2)
    top_logprobs = [body.get("top_logprobs") for body in server.requests if not body.get("continue_final_message")]
    assert top_logprobs == [10] * 3, "no more tokens than ratings can stand there"
    written = [body["max_tokens"] for body in server.requests if body.get("continue_final_message")]
    assert refuses or written == [1 if grammar == {} else 2] * 3


def test_no_second_probe_where_a_one_is_out_of_the_question(tmp_path: Path, scripted: Servers) -> None:
    server = scripted(LikeVllm({"7": 1 - 5e-7, "1": 5e-7}, 0.5, refuses_bias=True), owner="vllm")
    judge(server, out := tmp_path / "out.jsonl", "--concurrency", "1")
    assert len(server.requests) == 1 + 3 * 2 and len(read_jsonl(out)) == 3


def test_log_probabilities_that_show_what_was_asked_for_end_the_run(tmp_path: Path, scripted: Servers) -> None:
    """A server can be told to give them as sampling leaves them: then every answer would look like a 1."""
    like, out = LikeVllm({"1": 1.0, "7": 1e-44, "3": 1e-44}, 0.5), tmp_path / "out.jsonl"
    server = scripted(like, owner="vllm")
    assert_one_line_error(judge(server, out), "processed_logprobs", "raw_logprobs")
    like.first = {"1": math.exp(100), "8": math.exp(20), "7": math.exp(18)}
    assert_one_line_error(judge(server, out), "processed_logprobs")  # logits in their place
    like.first = {"1": 1.0 - 1e-20, "7": 1e-20}
    assert judge(server, out).returncode == 0, "a judge may be as sure as that"


@pytest.mark.parametrize("words", [[], ["--no-reason"]])
def test_a_probe_that_is_not_constrained_is_no_rating(tmp_path: Path, scripted: Servers, words: list[str]) -> None:
    """Where the model would go on with a space, what little is left to the favoured 1 says nothing."""
    server = scripted(LikeVllm({" ": 0.99, "1": 0.01}, 0.5), owner="vllm")
    judge(server, out := tmp_path / "out.jsonl", *words, count=1)
    assert read_jsonl(out)[0]["verdict"]["failure"] == "no_distribution"


@pytest.mark.parametrize("reasons", [False, True])
def test_a_judge_that_no_probe_goes_on_from_is_read_at_its_tokens(
    tmp_path: Path, scripted: Servers, reasons: bool
) -> None:
    """A server that goes on with nothing, or a judge that reasons out of sight: what the rating follows from is not in
    the reply."""

    def answer(body: dict[str, Any]) -> Any:
        if body.get("continue_final_message"):
            assert not reasons
            return 400, {}, b'{"error": {"message": "continue_final_message: the template changes the message"}}'
        time.sleep(0.1 * reasons)  # both of the first are under way before one is read
        reply = reply_with({"7": 0.75, "3": 0.25}) if body.get("logprobs") else completion('{"Rating":7,"Reason":"x"}')
        reply["choices"][0]["message"] |= {"reasoning": "Let me see."} if reasons else {}
        return reply

    server, count = scripted(answer, owner="vllm"), 6 if reasons else 4
    judge(server, out := tmp_path / "out.jsonl", "--concurrency", 1 + reasons, count=count, code=0)
    assert [line["score"] for line in read_jsonl(out)] == [6.0] * count and len(server.requests) == count


def test_what_our_server_says_of_a_one_needs_no_second_call(tmp_path: Path, scripted: Servers) -> None:
    def answer(_: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        return 200, {"x-critic-ten": "0.25"}, json.dumps(reply_with({"7": 0.6, "1": 0.4})).encode()

    server = scripted(answer, owner="vllm")
    judge(server, out := tmp_path / "out.jsonl", count=1, code=0)
    assert len(server.requests) == 1
    shares = read_jsonl(out)[0]["verdict"]["distribution"]
    assert shares == pytest.approx([0.3, 0, 0, 0, 0, 0, 0.6, 0, 0, 0.1])


FAILING: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no_rating": (lambda body: completion("I would say seven.")),
    "out_of_range": (lambda body: completion('{"Rating": 0, "Reason": "x"}')),
    "no_distribution": (lambda body: completion('{"Rating": 7, "Reason": "x"}', tokens=[token("x")])),
    "refused": (lambda body: (400, {}, b'{"error": {"message": "no such parameter"}}')),
    "server_error": (lambda body: (500, {}, b"oops")),
}


@pytest.mark.parametrize("failure", FAILING)
def test_failures_are_named_and_never_a_number(tmp_path: Path, scripted: Servers, failure: str) -> None:
    """What is refused is not asked twice."""
    server = scripted(FAILING[failure])
    done = judge(server, out := tmp_path / "out.jsonl", "--attempts", "2", count=2, code=3)
    assert [line["verdict"]["failure"] for line in read_jsonl(out)] == [failure] * 2
    assert all(line.get("score") is None for line in read_jsonl(out))
    assert f"{failure} 2" in done.stdout
    assert len(server.requests) == (4 if failure == "server_error" else 2)


@pytest.mark.parametrize(
    "trouble",
    [(500, {}, b"oops"), (429, {"Retry-After": "0.2"}, b"slow down"), None, (200, {}, b"not json"), (200, {}, b"{}")],
    ids=["500", "429", "hang up", "no JSON", "no completion"],
)
def test_transient_trouble_is_tried_again(tmp_path: Path, scripted: Servers, trouble: Any) -> None:
    answers = chain([trouble, trouble], repeat(reply_with({"7": 1.0})))
    server, words = scripted(lambda _: next(answers)), ["--concurrency", "1", "--attempts", "5"]
    judge(server, out := tmp_path / "out.jsonl", *words, count=2, code=0)
    assert [line["score"] for line in read_jsonl(out)] == [7, 7]
    assert sorted(line.get("attempts", 1) for line in read_jsonl(out)) == [1, 3]
    assert len(server.requests) == 4


def test_a_prompt_that_is_too_long_is_shortened_and_said(tmp_path: Path, scripted: Servers) -> None:
    """The scripted server counts characters as tokens and does as vLLM does: it refuses a prompt beyond its
    context, and cuts the reply short where the prompt leaves too little room for it."""

    def answer(body: dict[str, Any]) -> Any:
        length = sum(len(message["content"]) for message in body["messages"])
        if length > 4000:
            return 400, {}, b'{"error": {"message": "This model\'s maximum context length is 4000 tokens."}}'
        if length == 4000:
            return 400, {}, b'{"error": {"message": "max_tokens must be at least 1, got 0."}}'
        cut = length + body["max_tokens"] > 4000
        reply = completion('{"Rating":', "length") if cut else reply_with({"7": 1.0})
        reply["usage"]["prompt_tokens"] = length
        return reply

    def filling(number: int, length: int) -> dict[str, Any]:
        """A row whose prompt has exactly `length` characters."""
        without = asked_of("pointwise", scored_response(number, response="w")).messages[0]["content"]
        return human_row(number, response="w" * (length - len(without) + 1))

    long = [human_row(0, response="w " * 2000), human_row(2, question="q" * 5000), filling(3, 3900), filling(4, 4000)]
    megabytes = human_row(5, response="word " * 500_000)
    data = write_jsonl(tmp_path / "rows.jsonl", [human_row(1), *long, megabytes])
    out = tmp_path / "out.jsonl"
    run("critic", "judge", data, "--out", out, "--base-url", scripted(answer, context=4000).url)
    by_id = {line["sample"]["id"]: line for line in read_jsonl(out)}
    for name in ("row-0", "row-3", "row-4"):
        assert by_id[name]["score"] == 7 and by_id[name]["shortened"]["response"] > 0, name
    assert by_id["row-5"]["score"] == 7 and by_id["row-5"]["shortened"]["response"] > 2_400_000
    assert by_id["row-1"]["score"] == 7 and "shortened" not in by_id["row-1"]
    assert by_id["row-2"]["verdict"]["failure"] == "context_length_exceeded"


def test_interrupted_it_says_how_to_go_on(tmp_path: Path, scripted: Servers) -> None:
    def answer(body: dict[str, Any]) -> Any:
        time.sleep(0.05)
        return reply_with({"7": 1.0})

    out = tmp_path / "out.jsonl"
    words = ["judge", str(human_rows(tmp_path, 200)), "--out", str(out), "--concurrency", "2"]
    command = [sys.executable, "-c", "from critic.cli import main; main()", *words, "--base-url", scripted(answer).url]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not out.is_file() or out.stat().st_size == 0:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "run the same command again" in errors and "Traceback" not in errors
    assert len(read_jsonl(out)) > 0


def test_another_judge_does_not_write_into_the_file(tmp_path: Path, scripted: Servers) -> None:
    server, out = scripted(lambda body: reply_with({"7": 1.0})), tmp_path / "out.jsonl"
    assert judge(server, out).returncode == 0
    before = out.read_bytes()
    assert_one_line_error(judge(server, out, "--name", "other"), "judge 'tiny'", "--out")
    assert_one_line_error(judge(server, out, "--no-reason"), "decoding", "--out")
    assert_one_line_error(judge(server, out, count=1), "not asked for now")
    # What people said of a row may change; what the judge was shown may not.
    for change in ({"response": "another"}, {"reference": "another"}, {"question": "another"}, {"task": "another"}):
        rows = [human_row(0), human_row(1, **change), human_row(2)]
        data = write_jsonl(tmp_path / "changed.jsonl", rows)
        done = run("critic", "judge", data, "--out", out, "--base-url", server.url)
        assert_one_line_error(done, "judges 'row-1', of which", "choose another --out")
    assert out.read_bytes() == before


def test_mistakes_end_in_one_line(tmp_path: Path, scripted: Servers) -> None:
    here, data = scripted(lambda body: reply_with({"7": 1.0})).url, human_rows(tmp_path, 2)
    for file, words, parts in (
        (data, ["--base-url", here, "--model", "gpt-4"], ["'gpt-4'", "it offers tiny"]),
        (data, ["--base-url", "http://127.0.0.1:9"], ["no OpenAI-compatible server answers"]),
        (data, ["--base-url", "127.0.0.1:8000"], ["http(s) URL"]),
        (data, ["--base-url", here, "--score", "mean"], ["'expected', 'median', 'argmax'"]),
        (data, ["--base-url", here, "--prompt", "pairwice"], ["unknown form 'pairwice'"]),
        (data, ["--concurrency", "0"], ["--concurrency"]),
        (data, ["--judge", tmp_path / "none"], ["checkpoint folder", "URL#MODEL"]),
        (data, ["--judge", f"{here}#gpt-4"], ["'gpt-4'", "it offers tiny"]),
        (data, ["--judge", here, "--base-url", here], ["either --judge or --base-url"]),
        (data, ["--base-url", here, "--", "--tensor-parallel-size", "2"], ["checkpoint folder"]),
        (data, ["--judge", here, "--no-reason", "--prompt", "pointwise_reason_first"], ["reason before the verdict"]),
        (tmp_path / "none.jsonl", ["--base-url", here], ["none.jsonl: no such file"]),
    ):
        assert_one_line_error(run("critic", "judge", file, "--out", tmp_path / "out.jsonl", *words), *parts)
    assert not (tmp_path / "out.jsonl").exists()


def test_other_servers_get_no_vllm_fields(tmp_path: Path, scripted: Servers) -> None:
    """Without vLLM's continuation, a 10 that is spelt 1 + 0 stays unknown: a named failure, not a guess."""
    server, out = scripted(lambda body: reply_with({"7": 0.6, "1": 0.4})), tmp_path / "out.jsonl"
    judge(server, out, count=1)
    assert read_jsonl(out)[0]["verdict"]["failure"] == "no_distribution"
    assert all("structured_outputs" not in body for body in server.requests)
    out.unlink()
    judge(server, out, "--score", "argmax", count=1)
    assert read_jsonl(out)[0]["score"] == 7


def two_questions(path: Path) -> Path:
    """Three answers to one question and two to another, one of them alone of its kind."""
    lines = [
        human_row(
            10 * question + number, question=f"Question {question}?", reference="r", group=f"g{question}", image=None,
            system=f"system-{number}", response=f"answer {number}",
        )
        for question, number in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))
    ]  # fmt: skip
    return write_jsonl(path, [*lines, human_row(99, question="Alone?", image=None)])


def test_answers_to_one_question_are_compared(tmp_path: Path, scripted: Servers) -> None:
    """Who says A to whatever stands first is undecided; a killed run goes on with the same pairs."""
    server = scripted(lambda body: completion('{"Verdict":"A"}'))
    data, out = two_questions(tmp_path / "rows.jsonl"), tmp_path / "pairs.jsonl"
    common = ["critic", "judge", data, "--out", out]
    words = [*common, "--base-url", server.url, "--concurrency", "1", "--prompt"]
    done = run(*words, "pairwise", code=0)
    assert "left out 1 rows: no other answer to the same question to compare with" in done.stderr
    lines = read_jsonl(out)
    assert {line["sample"]["conversation"]["turns"][0]["prompt"] for line in lines} == {"Question 0?", "Question 1?"}
    assert all(line["sample"]["conversation"] == line["sample"]["other"]["conversation"] for line in lines)
    assert all(line["score"] == 0.5 and [call["value"] for call in line["calls"]] == ["A", "A"] for line in lines)
    assert len(server.requests) == 2 * len(lines)
    out.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[:1]))
    assert run(*words, "pairwise").returncode == 0
    assert sorted(map(json.dumps, lines)) == sorted(map(json.dumps, read_jsonl(out)))
    assert_one_line_error(run(*words, "pairwise_turn"), "prompt 'pairwise'")
    panel = ["--judge", server.url, "--judge", server.url, "--prompt", "pairwise"]
    assert_one_line_error(run(*common, *panel), "does not rate")


def test_criteria_come_with_the_rows(tmp_path: Path, scripted: Servers) -> None:
    """And others are another run."""
    server = scripted(lambda body: completion('{"clarity":3,"other":4,"Rating":6,"Reason":"so"}'))
    words = ["--prompt", "criteria", "--score", "argmax"]
    assert_one_line_error(judge(server, tmp_path / "out.jsonl", *words), "no usable row to judge")
    own = {"clarity": "What the row says it is"}
    data, other = write_jsonl(tmp_path / "own.jsonl", [human_row(0, criteria=own)]), tmp_path / "own-out.jsonl"
    assert run("critic", "judge", data, "--out", other, "--base-url", server.url, *words).returncode == 0
    assert read_jsonl(other)[0]["sample"]["conversation"]["criteria"] == own
    write_jsonl(data, [human_row(0, criteria={"clarity": "What it says now"})])
    done = run("critic", "judge", data, "--out", other, "--base-url", server.url, *words)
    assert_one_line_error(done, "are others now", "--out")


def test_a_form_that_a_judge_did_not_learn_is_refused_or_said(tmp_path: Path, scripted: Servers) -> None:
    server = scripted(lambda _: completion('{"Rating":4,"Reason":"x"}'))
    server.told = {"forms": list_learned_forms({"recipe": {"forms": {"pointwise_short@zh": 0.4, "scale_5": 0.0}}})}
    said = f"{server.url.removesuffix('/v1')} learned pointwise_short, and not"
    commit = judge(server, tmp_path / "c.jsonl", "--score", "argmax", "--prompt", "commit_first")
    assert_one_line_error(commit, f"{said} commit_first, answer (--prompt)")
    for form in ("pointwise", "scale_5"):
        out, words = tmp_path / f"{form}.jsonl", ("--score", "argmax", "--prompt", form)
        assert_one_line_error(judge(server, out, *words), f"{said} {form} (--prompt)", "--force-form")
        assert judge(server, out, *words, "--force-form").returncode == 0
        audited = run("critic", "audit", out, "--out", tmp_path / "audit")
        assert f"did not learn {form}, in which it was asked (--force-form)" in audited.stdout, audited.stderr
    words = ("--score", "argmax", "--prompt", "pointwise_short")
    assert judge(server, known := tmp_path / "known.jsonl", *words).returncode == 0
    assert "did not learn" not in run("critic", "audit", known, "--out", tmp_path / "audit").stdout
    server.told = {"forms": list_learned_forms({})}
    assert judge(server, tmp_path / "none.jsonl", "--score", "argmax").returncode == 0


def test_pairs_that_people_compared_are_judged_and_audited(tmp_path: Path, scripted: Servers) -> None:
    server = scripted(lambda _: completion('{"Verdict":"A","Reason":"x"}'))
    pairs = [{"id": f"p{n}", "question": f"Q{n}?", "response_a": "x", "response_b": "y", "preference": "ab"[n % 2]}
             | {"task": "", "lang": "en", "reference": None, "group": f"g{n}"} for n in range(4)]  # fmt: skip
    data, out = write_jsonl(tmp_path / "pairs.jsonl", pairs), tmp_path / "judged.jsonl"
    run("critic", "judge", data, "--out", out, "--base-url", server.url, "--prompt", "pairwise", code=0)
    assert len(server.requests) == 8
    said = {line["sample"]["id"]: (line["sample"]["preference"], line["score"]) for line in read_jsonl(out)}
    assert said == {f"p{n}": (1.0 - n % 2, 0.5) for n in range(4)}
    assert "agrees with people on 0.0 % of 4 pairs" in run("critic", "audit", out, "--out", tmp_path / "a").stdout


@pytest.mark.parametrize("kind", [".jsonl", ".csv"])
def test_rows_that_nobody_scored_are_judged(tmp_path: Path, scripted: Servers, kind: str) -> None:
    server = scripted(lambda body: reply_with({"7": 1.0}))
    row = {"id": "a", "question": "What is it?", "response": "A cat.", "reference": "A dog."}
    data, out = tmp_path / f"rows{kind}", tmp_path / "judged.jsonl"
    as_csv = f"{','.join(row)}\n{','.join(row.values())}\n"
    data.write_text(as_csv if kind == ".csv" else json.dumps(row) + "\n", "utf-8")
    run("critic", "judge", data, "--out", out, "--base-url", server.url, code=0)
    (line,) = read_jsonl(out)
    assert line["score"] == 7 and line["sample"]["conversation"]["lang"] == "en"
    assert line["sample"].get("human") is None, "the score in people's place is nobody's"
    for column in ("id", "response", "question"):
        lacking = write_jsonl(tmp_path / "lacking.jsonl", [{name: row[name] for name in row if name != column}])
        again = run("critic", "judge", lacking, "--out", tmp_path / "not.jsonl", "--base-url", server.url)
        assert_one_line_error(again, f"missing required field `{column}`")
    if kind == ".jsonl":
        # As pandas writes a data frame: an empty cell is null.
        write_jsonl(data, [{**dict.fromkeys(human_scored.Row.__struct_fields__), **row}])
        done = run("critic", "judge", data, "--out", out, "--base-url", server.url)
        assert done.returncode == 0 and "1 judged before, 0 to go" in done.stderr, done.stderr
        write_jsonl(data, [{**row, "question": None}])
        again = run("critic", "judge", data, "--out", tmp_path / "not.jsonl", "--base-url", server.url)
        assert_one_line_error(again, "missing required field `question`")


@pytest.mark.parametrize("count", [1, 2])
def test_what_else_is_said_of_a_judgment_is_as_in_a_new_file(tmp_path: Path, scripted: Servers, count: int) -> None:
    """Of one judge, and of a panel and its members."""
    server = scripted(lambda body: reply_with({"7": 1.0}))
    members = [f"out.{number + 1}.jsonl" for number in range(count)] if count > 1 else []

    def judge(folder: str, *rows: Any) -> Any:
        data = write_jsonl(tmp_path / "rows.jsonl", [human_row(0, annotators={"a": 1.0, "b": 2.0}), *rows])
        judges = [word for _ in range(count) for word in ("--judge", server.url)]
        return run("critic", "judge", data, "--out", tmp_path / folder / "out.jsonl", *judges, code=0).stderr

    def read(folder: str) -> Any:
        files = [tmp_path / folder / file for file in ("out.jsonl", *members)]
        judgments = [{judgment.sample.id: judgment for _, judgment in jsonl.read(file, Judgment)} for file in files]
        return judgments, [jsonl.facts(file)["responses"] for file in files]

    judge("a", human_row(1), human_row(2))
    out = tmp_path / "a" / "out.jsonl"
    out.write_bytes(b"\xef\xbb\xbf" + out.read_bytes() + b"\n")  # as an editor leaves it
    rated = human_row(1, human_score=1, annotators={"b": 1.0, "a": 2.0})
    changed = judge("a", rated, human_row(2))
    assert changed.count("1 responses have other scores") == count
    assert changed.count("3 judged before, 0 to go") == count
    judge("b", rated, human_row(2))
    assert read("a") == read("b")
    now = [rated, human_row(2, human_score=2), human_row(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("critic.stages.run.Stage.ask", lambda *_: (_ for _ in ()).throw(UsageError("killed")))
        with pytest.raises(AssertionError, match="killed"):
            judge("a", *now)
    assert not any(jsonl.sidecar(tmp_path / "a" / file).is_file() for file in (members or ["out.jsonl"])[:1])
    assert judge("a", *now).count("3 judged before, 1 to go") == count
    request_count = len(server.requests)
    assert "other scores" not in judge("a", *now) and len(server.requests) == request_count
    judge("c", *now)
    assert read("a") == read("c")


def test_each_row_is_sampled_by_a_seed_of_its_own(tmp_path: Path, scripted: Servers) -> None:
    """And by the same one again: a row is drawn alike in every run."""
    seeds = []
    for number in range(2):
        server = scripted(lambda body: reply_with({"7": 1.0}))
        judge(server, tmp_path / f"{number}.jsonl", "--temperature", "0.7", "--score", "argmax", code=0)
        seeds.append(sorted(body["seed"] for body in server.requests))
    assert len({*seeds[0]}) == len(seeds[0]) == 3 and seeds[0] == seeds[1]
