"""What comes from outside ends no run and loses nothing that was paid for: replies, bodies, counts, rows, names."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from conftest import (
    Done,
    Scripted,
    Servers,
    assert_one_line_error,
    completion,
    human_row,
    run,
    run_apart,
    write_jsonl,
)
from stages.test_infer import infer, sheet
from stages.test_judge import judged, reply_with, rows

from critic import jsonl
from critic.backends.openai import OpenAIBackend
from critic.backends.scripted import from_file

RATED = '{"Rating":7,"Reason":"fine"}'


DEEP = "[" * 5000 + "]" * 5000


def judge(server: Scripted, out: Path, *words: object, count: int = 3) -> Done:
    data = rows(out.with_name("rows.jsonl"), count)
    return run("critic", "judge", data, "--out", out, "--base-url", server.url, "--attempts", "1", *words)


def raw(text: str) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, text.encode()


def failing(out: Path) -> list[tuple[str | None, str]]:
    return [(line["verdict"].get("failure"), line.get("detail", "")) for line in judged(out)]


LOST: dict[str, tuple[Any, str, str]] = {
    "an error": (raw('{"error": {"message": "Upstream\\nis down", "code": 502}}'), "server_error", "Upstream is down"),
    "an error that is a text": (raw('{"error": "no credits left"}'), "server_error", "no credits left"),
    "an error for good": (raw('{"error": {"message": "no such model", "code": 404}}'), "refused", "no such model"),
    "a prompt too long": (
        raw('{"error": {"message": "maximum context length is 9"}}'), "context_length_exceeded", "context length is 9"
    ),
    "an error in the choice": (
        raw('{"choices": [{"error": {"message": "cut by the provider", "code": 429}}]}'), "server_error", "cut by the"
    ),
    "no choices": (raw('{"choices": [], "id": "17"}'), "server_error", '"id": "17"'),
    "nested deep": (raw(f'{{"choices": {DEEP}}}'), "server_error", "not a chat completion"),
    "an error nested deep": ((400, {}, DEEP.encode()), "refused", "HTTP 400"),
    "cut off": ({"choices": [{"message": {"content": None}, "finish_reason": "length"}]}, "truncated", ""),
    "thoughts alone": (
        {"choices": [{"message": {"content": "", "reasoning": "Hm"}, "finish_reason": "length"}]}, "truncated", ""
    ),
    "filtered": (
        {"choices": [{"message": {"content": None}, "finish_reason": "content_filter"}]}, "content_filter", "filter"
    ),
    "filtered on the way": (
        {"choices": [{"message": {"content": "This is"}, "finish_reason": "content_filter"}]}, "content_filter", ""
    ),
    "filtered before": (
        (400, {}, b'{"error": {"message": "The prompt was filtered", "code": "content_filter"}}'),
        "content_filter",
        "The prompt was filtered",
    ),
    "a refusal": (
        {"choices": [{"message": {"content": None, "refusal": "I will \ud83d not."}, "finish_reason": "stop"}]},
        "refused", "I will \ufffd not.",
    ),
    "refused without a word": (
        {"choices": [{"message": {"content": None}, "finish_reason": "refusal"}]}, "refused", ""
    ),
    "nothing": ({"choices": [{"message": {"content": None}, "finish_reason": "stop"}]}, "empty", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
@pytest.mark.parametrize("stage", ["judge", "infer"])
def test_a_reply_that_is_none_is_named_in_the_provider_s_words(
    tmp_path: Path, scripted: Servers, name: str, stage: str
) -> None:
    answer, failure, detail = LOST[name]
    server, out = scripted(lambda body: answer), tmp_path / "out.jsonl"
    if stage == "judge":
        done = judge(server, out)
        found = failing(out)
    else:
        words = ["--condition", "no_image", "--base-url", server.url, "--attempts", "1"]
        done = infer(sheet(tmp_path / "b", 1), out, *words)
        found = [(line.get("failure"), line.get("detail", "")) for line in judged(out) if line["turn"] == 1]
        if name == "filtered on the way":
            assert (done.returncode, found) == (0, [(None, "")]), "what a model said before is its reply"
            return
    assert done.returncode == 3, done.stderr
    assert {each for each, _ in found} == {failure}
    assert all(detail in each and "KeyError: 'choices'" not in each[:30] for _, each in found), found


@pytest.mark.parametrize("logprob", ["NaN", "1e999", "Infinity", "-Infinity", "1000"])
def test_a_log_probability_that_is_no_number_is_left_out(tmp_path: Path, scripted: Servers, logprob: str) -> None:
    made = json.dumps(reply_with({"7": 0.5, "3": 0.5})).replace(
        '"logprob": -0.69', f'"logprob": {logprob}, "x": -0.69', 2
    )
    server, out = scripted(lambda body: raw(made)), tmp_path / "out.jsonl"
    assert judge(server, out).returncode == 0
    assert judge(server, out).returncode == 0
    assert {line["score"] for line in judged(out)} == {3.0}


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
def test_a_server_that_refuses_the_format_is_asked_without_it(
    tmp_path: Path, scripted: Servers, words: str, status: int
) -> None:
    def answer(body: dict[str, Any]) -> Any:
        refused = json.dumps({"error": {"message": words}}).encode()
        return (status, {}, refused) if "response_format" in body else reply_with({"7": 1.0})

    server, out = scripted(answer), tmp_path / "out.jsonl"
    done = judge(server, out, "--concurrency", "1")
    assert done.returncode == 0, done.stderr
    assert [line["score"] for line in judged(out)] == [7.0] * 3
    assert len(server.requests) == 4 and done.stderr.count("takes no response_format") == 1
    assert jsonl.facts(out)["server_lacks"] == ["response_format"]


def test_another_refusal_is_no_reason_to_ask_without_the_format(tmp_path: Path, scripted: Servers) -> None:
    for said, asked in (("bad image", 3), ("bad image in {..., 'response_format': ...}", 6)):
        refusal = json.dumps({"error": {"message": said}}).encode()
        server = scripted(lambda body, refusal=refusal: (400, {}, refusal))
        assert judge(server, out := tmp_path / f"{asked}.jsonl").returncode == 3
        assert len(server.requests) == asked and {each for each, _ in failing(out)} == {"refused"}
        assert "server_lacks" not in jsonl.facts(out)


def test_what_a_server_says_of_its_models_may_be_anything(scripted: Servers) -> None:
    server = scripted(lambda body: completion(RATED), context="long")  # type: ignore[arg-type]
    server.told = {"id": "tiny \ud83d", "processor": 7, "forms": 3, "root": [1], "deep": [[[]]]}
    backend = OpenAIBackend(server.url)
    served = backend.choose(None)
    assert (served.name, served.context, served.processor, served.forms) == ("tiny \ufffd", None, None, ())


def test_people_s_rows_with_half_a_character_are_judged_and_deep_ones_named(tmp_path: Path, scripted: Servers) -> None:
    server, words = scripted(lambda body: reply_with({"7": 1.0})), ["--out", tmp_path / "out.jsonl", "--base-url"]
    data = tmp_path / "data.jsonl"
    whole = json.dumps(human_row(0, response="half \ud83d", id="id \udc00", group="\ud83d")) + "\n"
    data.write_text(whole, "utf-8")
    for _ in range(2):
        assert run("critic", "judge", data, *words, server.url).returncode == 0
    assert judged(tmp_path / "out.jsonl")[0]["response"]["text"] == "half \ufffd"
    data.write_text(whole + json.dumps(human_row(1))[:-1] + f', "more": {"[" * 2000 + "]" * 2000}}}\n', "utf-8")
    assert_one_line_error(run("critic", "judge", data, *words, server.url), "data.jsonl:2: nested too deep")
    columns = "id,question,response,reference,history"
    for number, (cell, problem) in enumerate(
        ((r'[{""user"": ""\ud83d"", ""assistant"": ""b""}]', ""), (DEEP, "data.csv:2"))
    ):
        (data := tmp_path / "data.csv").write_text(f'{columns}\na,q,r,f,"{cell}"\n', "utf-8")
        done = run("critic", "judge", data, "--out", tmp_path / f"{number}.jsonl", "--base-url", server.url)
        if problem:
            assert_one_line_error(done, problem)
        else:
            assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("encoding", "env"), [("gbk", {}), ("utf-8", {"LC_ALL": "C", "PYTHONUTF8": "0"})], ids=["GBK", "ASCII locale"]
)
def test_file_names_that_the_locale_cannot_read(tmp_path: Path, encoding: str, env: dict[str, str]) -> None:
    def named(name: str) -> str:
        return os.fsdecode(name.encode(encoding))

    folder = tmp_path / named("数据")
    folder.mkdir()
    data, scripts = write_jsonl(folder / named("行.jsonl"), [human_row(1)]), folder / named("评委.jsonl")
    scripts.write_text('{"text": "{\\"Rating\\": 7}"}\n', "utf-8")
    apart = os.environ | env
    for where in (data, folder / named("夹")):
        if where != data:
            where.mkdir()
            data.rename(where / data.name)
        out = folder / named(f"{where.name}出.jsonl") if encoding == "utf-8" else folder / f"{where.is_dir()}.jsonl"
        words = [
            "critic",
            "judge",
            where,
            "--judge",
            scripts,
            "--out",
            out,
            "--name",
            named("法官"),
            "--score",
            "argmax",
        ]
        for _ in range(2):
            done = run_apart(*words, env=apart)
            assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
        (line,) = judged(out)
        assert line["score"] == 7
        if encoding == "utf-8":
            assert line["judge"] == "法官" and jsonl.facts(out)["model"] == "评委"
    assert run_apart("critic", "score", out, "--out", folder / named("分"), env=apart).returncode == 0


def test_an_image_is_found_by_its_name_where_the_locale_is_not_utf_8(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    pillow.new("RGB", (8, 8), "red").save(tmp_path / "图.png")
    data = write_jsonl(tmp_path / "rows.jsonl", [human_row(1, image="图.png"), human_row(2, image="nul\0.png")])
    (scripts := tmp_path / "s.jsonl").write_text('{"text": "{\\"Rating\\": 7}"}\n', "utf-8")
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0"}
    words = ["--out", tmp_path / "out.jsonl", "--judge", scripts, "--images", "show", "--score", "argmax"]
    done = run_apart("critic", "judge", data, *words, env=env)
    assert done.returncode == 3 and "Traceback" not in done.stderr, done.stderr
    found = {line["response"]["id"]: line["verdict"].get("failure") for line in judged(tmp_path / "out.jsonl")}
    assert found == {"row-1": None, "row-2": "image_missing"}


def test_scripted_replies_say_why_they_are_none(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "judge.jsonl", [{"text": "No.", "finish": "refusal"}])
    out = tmp_path / "out.jsonl"
    assert run("critic", "judge", rows(tmp_path / "rows.jsonl", 2), "--judge", path, "--out", out).returncode == 3
    assert failing(out) == [("refused", "No.")] * 2
    assert from_file(path).served.name == "judge"
