"""What comes from outside ends no run and loses nothing that was paid for: replies, bodies, counts, rows, names."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import chain, cycle, repeat
from pathlib import Path
from typing import Any

import pytest
from backends.test_endpoints import error
from conftest import (
    ROOT,
    Servers,
    assert_one_line_error,
    completion,
    human_row,
    human_rows,
    read_jsonl,
    run,
    scored_response,
    write_jsonl,
)
from hypothesis import given
from hypothesis import strategies as st
from judgments import ResponseJudge
from stages.test_infer import infer, sheet
from stages.test_judge import judge, reply_with, token

from critic import jsonl
from critic.backends.openai import OpenAIBackend
from critic.errors import UsageError
from critic.judging.forms import inquiry
from critic.records import Judgment, PromptInputs

RATED = '{"Rating":7,"Reason":"fine"}'


DEEP = "[" * 5000 + "]" * 5000


def raw(text: str) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, text.encode()


def failing(out: Path) -> list[tuple[str | None, str]]:
    return [(line["verdict"].get("failure"), line.get("detail", "")) for line in read_jsonl(out)]


COUNTS: dict[str, list[Any]] = {
    "text": ["eleven", "7", ""],
    "list": [[], [11]],
    "not whole": [12.0, float("nan"), float("inf")],
    "not a count": [-1, True, 10**30, 10**400, None, {}],
}


@pytest.mark.parametrize("kind", COUNTS)
@pytest.mark.parametrize("stage", ["judge", "infer"])
def test_counts_that_are_none_are_left_out(tmp_path: Path, scripted: Servers, kind: str, stage: str) -> None:
    """Each reply of a run has another usage: bad in all counts, in the cached ones as well, or as a whole."""
    usages = []
    for value in COUNTS[kind]:
        whole = dict.fromkeys(["prompt_tokens", "completion_tokens", "prompt_tokens_details", "cost"], value)
        usages += [whole, whole | {"prompt_tokens_details": {"cached_tokens": value}}, value]
    in_turn, out = cycle(usages), tmp_path / "out.jsonl"
    server = scripted(lambda _: {**completion(RATED), "usage": next(in_turn)})
    file, words = sheet(tmp_path / "b", len(usages)), ["--max-failed", 0]
    for _ in range(2):  # it can be read again
        if stage == "infer":
            infer(file, out, "--condition", "no_image", "--base-url", server.url, *words, code=0)
        else:
            judge(server, out, *words, count=len(usages), code=0)
    assert len(server.requests) >= len(usages) and not any(line.get("prompt_tokens") for line in read_jsonl(out))


def bodies(data: st.DataObject) -> dict[str, Any]:
    """A completion in which anything may stand anywhere."""
    odd = st.none() | st.booleans() | st.integers() | st.floats() | st.text("a7\ud83d\udc80\0", max_size=6)
    odd |= st.lists(odd, max_size=2) | st.dictionaries(st.sampled_from(["content", "token", "cached_tokens"]), odd)
    body = data.draw(st.fixed_dictionaries({}, optional={"error": odd, "usage": odd, "choices": odd}))
    message = st.fixed_dictionaries({}, optional={"content": odd | st.just(RATED), "refusal": odd})
    logprobs = odd | st.builds(lambda share: {"content": [token("{"), token("7", {"7": share})]}, st.floats(0.1, 1))
    choice = {"message": message, "finish_reason": odd, "logprobs": logprobs}
    if data.draw(st.booleans()):
        body["choices"] = [data.draw(st.fixed_dictionaries(choice, optional={"error": odd}))]
    return body


def test_whatever_a_body_holds_there_is_a_judgment_that_can_be_read(tmp_path: Path, scripted: Servers) -> None:
    body, out, shown = dict[str, Any](), tmp_path / "out.jsonl", scored_response(1)
    server = scripted(lambda _: raw(json.dumps(body)))

    @given(st.data())
    def holds(data: st.DataObject) -> None:
        body.clear()
        body.update(bodies(data))
        backend = OpenAIBackend(server.url, attempts=1)
        backend.choose(None)

        async def judge_once() -> Judgment:
            async with backend:
                return await ResponseJudge(backend, "j", "pointwise", "expected", 64, needs=None).judge(shown)

        jsonl.write(out, [asyncio.run(judge_once())])
        ((_, judgment),) = jsonl.read(out, Judgment)
        assert (judgment.score is None) == (judgment.verdict.failure is not None) and judgment.score in (None, 7.0)

    holds()


def ended(finish: str, **message: Any) -> dict[str, Any]:
    """Return a completion whose only choice has this message and the reason why it ended."""
    return {"choices": [{"message": message, "finish_reason": finish}]}


LOST: dict[str, tuple[Any, str, str]] = {
    "an error": (error(200, "Upstream\nis down", code=502), "server_error", "Upstream is down"),
    "an error that is a text": (raw('{"error": "no credits left"}'), "server_error", "no credits left"),
    "an error for good": (error(200, "no such model", code=404), "refused", "no such model"),
    "a prompt too long": (error(200, "maximum context length is 9"), "context_length_exceeded", "context length is 9"),
    "an error in the choice": (
        raw('{"choices": [{"error": {"message": "cut by the provider", "code": 429}}]}'), "server_error", "cut by the"
    ),
    "no choices": (raw('{"choices": [], "id": "17"}'), "server_error", '"id": "17"'),
    "nested deep": (raw(f'{{"choices": {DEEP}}}'), "server_error", "not a chat completion"),
    "an error nested deep": ((400, {}, DEEP.encode()), "refused", "HTTP 400"),
    "cut off": (ended("length", content=None), "truncated", ""),
    "thoughts alone": (ended("length", content="", reasoning="Hm"), "truncated", ""),
    "filtered": (ended("content_filter", content=None), "content_filter", "filter"),
    "filtered on the way": (ended("content_filter", content="This is"), "content_filter", ""),
    "filtered before": (error(400, "It was filtered", code="content_filter"), "content_filter", "It was filtered"),
    "a refusal": (ended("stop", content=None, refusal="I will \ud83d not."), "refused", "I will \ufffd not."),
    "refused without a word": (ended("refusal", content=None), "refused", ""),
    "hung up": (None, "server_error", "ClientPayloadError"),
    "nothing": (ended("stop", content=None), "empty", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
@pytest.mark.parametrize("stage", ["judge", "infer"])
def test_a_lost_reply_has_the_provider_s_words(tmp_path: Path, scripted: Servers, name: str, stage: str) -> None:
    answer, failure, detail = LOST[name]
    server, out = scripted(lambda body: answer), tmp_path / "out.jsonl"
    if stage == "judge":
        done = judge(server, out)
        failures = failing(out)
    else:
        words = ["--condition", "no_image", "--base-url", server.url, "--attempts", "1"]
        done = infer(sheet(tmp_path / "b", 1), out, *words)
        failures = [(line.get("failure"), line.get("detail", "")) for line in read_jsonl(out) if line["turn"] == 1]
        if name == "filtered on the way":
            assert (done.returncode, failures) == (0, [(None, "")]), "what a model said before is its reply"
            return
    assert done.returncode == 3, done.stderr
    assert {each for each, _ in failures} == {failure}
    assert all(detail in each and "KeyError: 'choices'" not in each[:30] for _, each in failures), failures


@pytest.mark.parametrize("logprobs", ["text", 5, [1], {"content": "text"}, {"content": [{"token": 7}]}, {"content": 1}])
def test_log_probabilities_that_are_none_lose_no_rating(tmp_path: Path, scripted: Servers, logprobs: Any) -> None:
    def answer(_: dict[str, Any]) -> Any:
        reply = completion(RATED)
        reply["choices"][0]["logprobs"] = logprobs
        return reply

    assert judge(scripted(answer), out := tmp_path / "out.jsonl").returncode == 0
    assert [line["score"] for line in read_jsonl(out)] == [7.0] * 3


@pytest.mark.parametrize("logprob", ["NaN", "1e999", "Infinity", "-Infinity", "1000"])
def test_a_log_probability_that_is_no_number_is_left_out(tmp_path: Path, scripted: Servers, logprob: str) -> None:
    reply = json.dumps(reply_with({"7": 0.5, "3": 0.5})).replace(
        '"logprob": -0.69', f'"logprob": {logprob}, "x": -0.69', 2
    )
    server, out = scripted(lambda body: raw(reply)), tmp_path / "out.jsonl"
    assert judge(server, out).returncode == 0
    assert judge(server, out).returncode == 0
    assert {line["score"] for line in read_jsonl(out)} == {3.0}


def reply_of_written_tokens(**shown: Any) -> dict[str, Any]:
    """Return a verdict whose tokens have a log probability of their own, and `shown` in place of alternatives."""
    return completion(RATED, tokens=[{"token": text, "logprob": -0.1, **shown} for text in ("{", "7", "}")])


WITHOUT: dict[str, Callable[[dict[str, Any]], Any]] = {
    "ignores them": lambda body: completion(RATED),
    "gives null": lambda body: {"choices": [{"message": {"content": RATED}, "logprobs": None}]},
    "gives no alternatives": lambda body: reply_of_written_tokens(),
    "gives null alternatives": lambda body: reply_of_written_tokens(top_logprobs=None),
    "gives empty alternatives": lambda body: reply_of_written_tokens(top_logprobs=[]),
    "refuses them": lambda body: (
        error(400, "logprobs is not supported") if body.keys() & {"logprobs", "top_logprobs"} else completion(RATED)
    ),
}


@pytest.mark.parametrize("owner", ["someone", "vllm"])
@pytest.mark.parametrize("name", WITHOUT)
def test_without_them_the_stated_rating_counts(tmp_path: Path, scripted: Servers, name: str, owner: str) -> None:
    server, out = scripted(WITHOUT[name], owner=owner), tmp_path / "out.jsonl"
    for count in (3, 5):
        done = judge(server, out, "--concurrency", "1", count=count, code=0)
        assert [(line["score"], line["setup"]["score_kind"]) for line in read_jsonl(out)] == [(7.0, "argmax")] * count
        assert jsonl.facts(out)["setup"]["score_kind"] == "argmax"
        if count == 3:
            assert done.stderr.count("gives no log probabilities") == 1
        assert "logprobs" in jsonl.facts(out)["server_lacks"]
    paid = sum(not isinstance(WITHOUT[name](body), tuple) for body in server.requests)
    assert paid == (5 if owner == "someone" else 6), "on vLLM one probe shows it"
    request_count = len(server.requests)
    assert judge(server, out, "--retry-failed", count=5).returncode == 0 and len(server.requests) == request_count
    write_jsonl(some := tmp_path / "one.jsonl", read_jsonl(out)[::2])
    assert run("critic", "score", some, "--out", tmp_path / "scores").returncode == 0
    audited = run("critic", "audit", "--human", tmp_path / "rows.jsonl", "--judge", f"mine={out}", "--html", "")
    assert "Traceback" not in audited.stderr


def test_where_some_replies_come_with_them_all_are_stated(tmp_path: Path, scripted: Servers) -> None:
    """As through a gateway: what the first reply shows holds for the file. A cache knows the requests."""
    answers = chain([completion(RATED)], repeat(reply_with({"7": 0.5, "3": 0.5})))
    server = scripted(lambda _: next(answers))
    for number in range(2):
        out = tmp_path / f"{number}.jsonl"
        done = judge(server, out, "--concurrency", "1", "--cache", tmp_path / "cache.db", count=4)
        assert done.returncode == 0 and len(server.requests) == 4, done.stderr
        assert [(line["score"], line["setup"]["score_kind"]) for line in read_jsonl(out)] == [(7.0, "argmax")] * 4
    assert judge(server, out, "--concurrency", "1", count=5).returncode == 0, "it goes on as it was begun"
    assert not any("distribution" in line["verdict"] for line in read_jsonl(out))


@pytest.mark.parametrize("owner", ["someone", "vllm"])
@pytest.mark.parametrize("kind", ["expected", "median"])
def test_what_needs_them_stops_at_once(tmp_path: Path, scripted: Servers, kind: str, owner: str) -> None:
    """After the first verdicts."""
    server, out = scripted(WITHOUT["ignores them"], owner=owner), tmp_path / "out.jsonl"
    for number in (1, 2):
        done = judge(server, out, "--score", kind, "--concurrency", "2", count=40)
        assert_one_line_error(done, "no log probabilities", f"--score {kind}", "--score argmax")
        # The server may hear of a request of the first run when that has ended.
        assert len(server.requests) <= number * (2 if owner == "someone" else 4)
    judge(server, out, "--score", "argmax", code=0)
    assert [line["score"] for line in read_jsonl(out)] == [7.0] * 3


def test_without_a_reason_or_by_criteria_the_stated_ratings_count(tmp_path: Path, scripted: Servers) -> None:
    out = tmp_path / "out.jsonl"
    server = scripted(
        lambda body: completion("1," if "continue_final_message" in body else '{"Rating":6}'), owner="vllm"
    )
    assert judge(server, out, "--no-reason", "--concurrency", "1").returncode == 0
    assert [line["score"] for line in read_jsonl(out)] == [6.0] * 3, "not what a probe was made to write"
    assert len(server.requests) == 1 + 3 and read_jsonl(out)[0]["prompt_tokens"] == 22
    by_name = scripted(lambda body: completion('{"clarity":4,"Rating":6,"Reason":"x"}'))
    row = human_row(0, criteria={"clarity": "Is it easy to follow?"})
    data, out = write_jsonl(tmp_path / "criteria.jsonl", [row]), tmp_path / "by_name.jsonl"
    words = ["--out", out, "--base-url", by_name.url, "--prompt", "criteria"]
    assert run("critic", "judge", data, *words).returncode == 0
    assert all(line["verdict"]["criteria"]["clarity"]["rating"] == 4 and line["score"] == 6 for line in read_jsonl(out))


def test_what_failed_before_the_first_rating_is_of_the_same_kind(tmp_path: Path, scripted: Servers) -> None:
    """Killed or not: of one file all have one kind of score, which scoring and merging ask for."""
    answers = chain([completion("")], repeat(completion(RATED)))
    server, out = scripted(lambda _: next(answers)), tmp_path / "out.jsonl"
    judge(server, out, "--concurrency", "1", "--max-failed", "1")
    assert [line["setup"]["score_kind"] for line in read_jsonl(out)] == ["argmax"] * 3
    lines = read_jsonl(out)
    lines[0]["setup"]["score_kind"] = "expected"  # as a run leaves it that was killed
    write_jsonl(out, lines[:2])
    judge(server, out, "--concurrency", "1", "--max-failed", "1")
    assert [line["setup"]["score_kind"] for line in read_jsonl(out)] == ["argmax"] * 3
    assert judge(server, out, "--retry-failed").returncode == 0 and len(server.requests) == 5
    assert [line["score"] for line in read_jsonl(out)] == [7.0] * 3


def test_a_file_with_distributions_takes_no_stated_ratings(tmp_path: Path, scripted: Servers) -> None:
    out = tmp_path / "out.jsonl"
    assert judge(scripted(lambda body: reply_with({"7": 0.5, "3": 0.5})), out, count=2).returncode == 0
    before = out.read_bytes()
    assert_one_line_error(judge(scripted(WITHOUT["ignores them"]), out), "gives no log probabilities", "out.jsonl")
    assert out.read_bytes() == before


def test_a_panel_takes_the_stated_rating_of_whoever_gives_no_more(tmp_path: Path, scripted: Servers) -> None:
    silent = scripted(WITHOUT["ignores them"])
    other = scripted(lambda body: reply_with({"5": 0.5, "3": 0.5}, chosen="5"))
    out = tmp_path / "panel.jsonl"
    words = ["critic", "judge", human_rows(tmp_path, 3), "--judge", silent.url, "--judge", other.url]
    for number in range(2):
        run(*words, "--out", out, "--name", "both", "--retry-failed", code=0)
        assert [line["score"] for line in read_jsonl(out)] == [5.5] * 3
        assert number or "logprobs" in jsonl.facts(out)["server_lacks"]
    assert (len(silent.requests), len(other.requests)) == (3, 3)


@pytest.mark.parametrize(
    "words",
    [
        "Unknown parameter: 'response_format'",
        "json_schema is not supported",
        "guided decoding is off",
        "Structured outputs: no backend",
        "This Response Format is unavailable",
    ],
)
@pytest.mark.parametrize("status", [400, 422, 501, 200])
def test_who_refuses_the_format_is_asked_without(tmp_path: Path, scripted: Servers, words: str, status: int) -> None:
    refusal, out = error(status, words), tmp_path / "out.jsonl"
    server = scripted(lambda body: refusal if "response_format" in body else reply_with({"7": 1.0}))
    done = judge(server, out, "--concurrency", "1", code=0)
    assert [line["score"] for line in read_jsonl(out)] == [7.0] * 3
    assert len(server.requests) == 4 and done.stderr.count("takes no response_format") == 1
    assert jsonl.facts(out)["server_lacks"] == ["response_format"]


def test_another_refusal_is_no_reason_to_ask_without_the_format(tmp_path: Path, scripted: Servers) -> None:
    for said, request_count in (("bad image", 3), ("bad image in {..., 'response_format': ...}", 6)):
        server = scripted(lambda body, said=said: error(400, said))
        assert judge(server, out := tmp_path / f"{request_count}.jsonl").returncode == 3
        assert len(server.requests) == request_count and {each for each, _ in failing(out)} == {"refused"}
        assert "server_lacks" not in jsonl.facts(out)


HALVES = [r"{\"Rating\":7,\"Reason\":\"so \ud83d\"}", r"\ude00 {\"Rating\":7,\"Reason\":\"so \\ud83d\"}"]


@pytest.mark.parametrize("text", HALVES)
def test_half_a_character_in_a_reply_ends_no_run(tmp_path: Path, scripted: Servers, text: str) -> None:
    body = f'{{"choices": [{{"message": {{"content": "{text}"}}, "finish_reason": "stop \\ud83d"}}]}}'
    scripts = tmp_path / "scripts.jsonl"
    scripts.write_text(f'{{"text": "{text}"}}\n', "utf-8")
    data = human_rows(tmp_path, 2)
    for number, words in enumerate((["--base-url", scripted(lambda _: raw(body)).url], ["--judge", scripts])):
        out = tmp_path / f"{number}.jsonl"
        for _ in range(2):
            assert run("critic", "judge", data, "--out", out, *words, "--score", "argmax").returncode == 0
        assert all(line["score"] == 7 and "\ufffd" in line["verdict"]["reason"] for line in read_jsonl(out))
    for name in ("judge_half_surrogate", "judge_one_in_ten_surrogate"):
        case = f'{{"text": "{{\\"Reason\\": \\"fine {chr(92) * 2}ud83d\\", \\"Rating\\": 7}}", "finish": "{name}"}}\n'
        scripts.write_text(case, "utf-8")
        out = tmp_path / f"{name}.jsonl"
        assert run("critic", "judge", data, "--judge", scripts, "--out", out).returncode == 0
        assert all(line["verdict"]["reason"] == "fine \ufffd" for line in read_jsonl(out))
    # Before it is written as well: a reason may stand in a later question.
    assert inquiry("pointwise", "en", PromptInputs()).read(r'{"Rating":7,"Reason":"\ud83d"}', False).reason == "\ufffd"


def test_bytes_that_are_no_utf_8_and_nul_in_a_body(tmp_path: Path, scripted: Servers) -> None:
    text = rb"{\"Rating\":7,\"Reason\":\"a %b \\u0000\u0000\"}" % b"\xed\xa0\xbd\xff"
    broken = b'{"choices": [{"message": {"content": "%b"}}]}' % text
    assert judge(scripted(lambda body: (200, {}, broken)), out := tmp_path / "out.jsonl").returncode == 0
    assert all("\ufffd" in line["reply"] and "\0" in line["reply"] for line in read_jsonl(out))


def test_what_a_server_says_of_its_models_may_be_anything(scripted: Servers) -> None:
    server = scripted(lambda body: completion(RATED), context="long")  # type: ignore[arg-type]
    server.told = {"id": "tiny \ud83d", "processor": 7, "forms": 3, "root": [1], "deep": [[[]]]}
    backend = OpenAIBackend(server.url)
    served = backend.choose(None)
    assert (served.name, served.context, served.processor, served.forms) == ("tiny \ufffd", None, None, ())
    server.told = {"pack": {"name": "chat", "prompts": {"pointwise": {"as_video": True}}}}
    with pytest.raises(UsageError, match="another version of critic serves tiny: Object contains unknown field"):
        backend.choose(None)


def test_people_s_rows_with_half_a_character_are_judged_and_deep_ones_named(tmp_path: Path, scripted: Servers) -> None:
    server, words = scripted(lambda body: reply_with({"7": 1.0})), ["--out", tmp_path / "out.jsonl", "--base-url"]
    data = tmp_path / "data.jsonl"
    whole = json.dumps(human_row(0, response="half \ud83d", id="id \udc00", group="\ud83d")) + "\n"
    data.write_text(whole, "utf-8")
    for _ in range(2):
        assert run("critic", "judge", data, *words, server.url).returncode == 0
    assert read_jsonl(tmp_path / "out.jsonl")[0]["sample"]["answer"] == "half \ufffd"
    data.write_text(whole + json.dumps(human_row(1))[:-1] + f', "more": {"[" * 2000 + "]" * 2000}}}\n', "utf-8")
    assert_one_line_error(run("critic", "judge", data, *words, server.url), "data.jsonl:2: nested too deep")
    columns = "id,question,response,reference,history"
    for cell, code in ((r'[{""user"": ""\ud83d"", ""assistant"": ""b""}]', 0), (DEEP, 2)):
        (data := tmp_path / "data.csv").write_text(f'{columns}\na,q,r,f,"{cell}"\n', "utf-8")
        done = run("critic", "judge", data, "--out", tmp_path / f"{code}.jsonl", "--base-url", server.url, code=code)
    assert_one_line_error(done, "data.csv:2")


IN_TURN = """
import sys
from critic.cli import main
for command in sys.argv[1:]:
    sys.argv = ["critic", *command.split()]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code
"""
"""Runs commands by their names in bytes, as a shell gives them, and prints as they do."""


@pytest.mark.parametrize(
    ("encoding", "env"), [("gbk", {}), ("utf-8", {"LC_ALL": "C", "PYTHONUTF8": "0"})], ids=["GBK", "ASCII locale"]
)
def test_file_names_that_the_locale_cannot_read(tmp_path: Path, encoding: str, env: dict[str, str]) -> None:
    def named(name: str) -> str:
        return os.fsdecode(name.encode(encoding))

    folder = tmp_path / named("数据")
    inner = folder / named("夹")
    data, scripts = write_jsonl(inner / named("行.jsonl"), [human_row(1)]), folder / named("评委.jsonl")
    scripts.write_text('{"text": "{\\"Rating\\": 7}"}\n', "utf-8")
    outs = [
        folder / (named(f"{stem}出.jsonl") if encoding == "utf-8" else f"{stem}.jsonl") for stem in ("file", "folder")
    ]
    judging = [
        f"judge {where} --out {out} --judge {scripts} --name {named('法官')} --score argmax"
        for where, out in zip((data, inner), outs, strict=True)
    ]
    words = [sys.executable, "-c", IN_TURN, *judging, *judging, f"score {outs[1]} --out {folder / named('分')}"]
    done = subprocess.run(words, cwd=ROOT, env=os.environ | env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    for out in outs:
        (line,) = read_jsonl(out)
        assert line["score"] == 7
        if encoding == "utf-8":
            assert line["setup"]["judge"] == "法官" and jsonl.facts(out)["model"] == "评委"
