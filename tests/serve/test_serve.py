"""Serving: mistakes end before anything is loaded, and a real server gives every client what it needs.

What the layer does with a request is part of test_contracts.py, what `critic judge` makes of it of test_demo.py.
"""

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from clients.forms import FORMS, Form
from clients.load import load
from clients.tiny_server import CONTEXT
from clients.words import ASKED
from conftest import ROOT, Scripted, assert_one_line_error, command, free_port, needs, run, run_apart, run_with_vllm
from serving import judge

from critic.errors import UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Looks like a model from outside; its configuration names no architecture."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "none"}))
    (model / "tokenizer_config.json").write_text("{}")
    return model


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([""], ["no model folder", "config.json"]),
        (["none"], ["no such model folder"]),
        (["model", "--port", "{taken}"], ["cannot listen on 127.0.0.1:{taken}", "--port"]),
        (["model", "--host", "0.0.0.0"], ["VLLM_API_KEY", "--api-key"]),
        (["model", "--host", "no.such.host.invalid"], ["--host"]),
        (["model", "--alias-of", "vlm"], ["--alias-of vlm: unknown; choose vlmevalkit, lmms-eval"]),
        (["model", "--contracts", "model/tokenizer_config.json"], ["tokenizer_config.json"]),
        (["model", "--log", "."], ["--log .: cannot be written"]),
        (["model", "--log", "model/config.json/serve.log"], ["--log model/config.json/serve.log: cannot be written"]),
    ],
)
def test_mistakes_are_told_before_anything_is_loaded(folder: Path, words: list[str], parts: list[str]) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        taken = str(listening.getsockname()[1])
        port = [] if "--port" in words else ["--port", str(free_port())]
        filled = [word.format(taken=taken) for word in [f"{folder.parent / words[0]}", *words[1:], *port]]
        done = run("serve/judge.py", *filled, cwd=folder.parent)
        assert_one_line_error(done, *(part.format(taken=taken) for part in parts))


@pytest.mark.parametrize("key", ["", " ", " \t ", "\u3000", "\u200b", "secret ", "schlüssel"])
def test_a_key_that_no_client_can_send_is_refused_on_any_host(folder: Path, key: str) -> None:
    for host in ("127.0.0.1", "0.0.0.0"):
        done = run("serve/judge.py", folder, "--host", host, "--port", str(free_port()), f"--api-key={key}")
        assert_one_line_error(done, "blank", "--api-key")


def test_each_gpu_has_an_engine_and_a_process_of_the_api(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By vllm serve: the program that serves one engine ignores that there are to be several processes."""
    started = list[Any]()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,7")
    monkeypatch.setattr(judge, "find_build", lambda: "vllm")
    monkeypatch.setattr(judge, "count_gpus", lambda _: 1)
    monkeypatch.setattr(judge, "attend", lambda words, environ, *_: started.append((words, environ)))
    for gpus, visible in (("2", "4,6"), ("all", "4,6,7"), (None, "4,6,7")):
        judge.main(str(folder), port=free_port(), gpu_count=gpus)
        words, environ = started[-1]
        assert environ["CUDA_VISIBLE_DEVICES"] == visible
        several = [str(visible.count(",") + 1)] if gpus else []
        assert [words[n + 1] for n, word in enumerate(words) if word == "--data-parallel-size"] == several
        assert words[2:4] == (["vllm.entrypoints.cli.main", "serve"] if gpus else [judge.ENTRY, "--served-model-name"])
        assert words[-2:] == ["--middleware", "layer.JudgeLayer"]
    for gpus in ("4", "none"):
        done = run("serve/judge.py", folder, "--port", str(free_port()), "--gpus", gpus)
        assert_one_line_error(done, f"--gpus {gpus}:")


def test_no_stream_ends_with_what_nobody_asked_for() -> None:
    """A last piece without choices ends clients that look at the first of them."""
    words = judge.list_options("m", "127.0.0.1", 8000, {}, on_cpu=True)
    assert "--enable-force-include-usage" not in words and "--override-generation-config" in words
    assert words[words.index("--allowed-media-domains") + 1] == "none.invalid", "vLLM takes no host for every one"


@pytest.mark.e2e
def test_what_is_checked_cannot_be_gone_round(folder: Path) -> None:
    needs("vllm")
    for option, parts in ((["--ho", "127.0.0.2"], ["before the --"]), (["--nope"], ["behind the --", "--nope"])):
        assert_one_line_error(run_with_vllm(command("serve/judge.py", folder, "--", *option), 2, cwd=ROOT), *parts)


@pytest.mark.slow
@pytest.mark.e2e
def test_a_server_that_does_not_come_up(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="needs a serve extra")
    done = run_apart("serve/judge.py", folder, "--port", str(free_port()), "--log", tmp_path / "serve.log")
    assert_one_line_error(done, "before it was ready", "serve.log")
    assert "ready" not in done.stdout


def test_the_engine_of_a_killed_server_does_not_stay() -> None:
    words = ["sh", "-c", "sleep 300 & echo $!; exec sleep 300"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as server:
        assert server.stdout is not None
        engine = Path(f"/proc/{int(server.stdout.readline())}/stat")
        server.kill()
        server.wait()
        assert engine.exists()
        judge.stop(server)
    deadline = time.monotonic() + 10
    while engine.exists() and " Z " not in engine.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not engine.exists() or " Z " in engine.read_text()


def test_a_server_that_ends_or_stays_silent_is_told(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    log.write_text("ValueError: no such architecture\n")
    url = f"http://127.0.0.1:{free_port()}"
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as server:
        server.wait()
        with pytest.raises(UsageError, match=rf"code 3 before it was ready: .*no such architecture \(log: {log}\)"):
            judge.wait_until_ready(server, url, 60, log)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as server:
        with pytest.raises(UsageError, match=r"did not answer within 0\.1 s \(--ready-timeout\); its messages"):
            judge.wait_until_ready(server, url, 0.1, None)
        server.kill()


def test_a_proxy_does_not_stand_before_the_server(
    scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as server:
        judge.wait_until_ready(server, scripted(lambda _: None).url.removesuffix("/v1"), 10, None)
        server.kill()


ModelInfo = tuple[subprocess.Popen[str], httpx.Client]


def chat(served: ModelInfo, path: str = "/v1/chat/completions", **request: Any) -> httpx.Response:
    return served[1].post(path, json={"model": "gpt-4", **request})


def reply(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] > 0
    return str(answer.json()["choices"][0]["message"]["content"])


def hello(content: Any = "hello") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 12}


def test_every_client_reads_a_verdict(served: ModelInfo) -> None:
    """All at once, as harnesses send them; an untrained model says nothing of use by itself."""

    def ask(form: Form) -> httpx.Response:
        return chat(served, **form.request)

    with ThreadPoolExecutor(len(FORMS)) as pool:
        for form, answer in zip(FORMS, pool.map(ask, FORMS), strict=True):
            assert answer.status_code == 200, (form.contract, answer.text)
            assert answer.headers["x-critic-contract"] == form.contract
            assert answer.headers["x-critic-model"] == answer.json()["model"] != "gpt-4"
            choice = answer.json()["choices"][0]
            assert form.parse(choice) is not None, (form.contract, choice["message"])


def test_a_probe_on_a_doubled_path(served: ModelInfo) -> None:
    """What VLMEvalKit does first; no temperature is greedy, unknown fields do no harm, image parts are left out."""
    path = "/v1/chat/completions/chat/completions"
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    first = chat(served, path, **hello([{"type": "text", "text": "hello"}]), unheard_of=1)
    assert first.headers["x-critic-contract"] == "none"
    reply(first)
    for again in (hello(), {**hello(), "temperature": 0}, hello([{"type": "text", "text": "hello"}, picture])):
        assert reply(chat(served, **again)) == reply(first)
    larger = {**hello(), "max_tokens": 2 * CONTEXT, "structured_outputs": {"choice": ["hi"]}}
    assert reply(chat(served, path, **larger)) == "hi", "a limit made for a larger model"
    newer = {**hello(), "max_completion_tokens": 5, "max_tokens": None}
    assert chat(served, **newer).json()["usage"]["completion_tokens"] <= 5


def test_a_stream_says_the_same_and_ends_with_its_usage_if_asked_for(served: ModelInfo) -> None:
    form = FORMS[0]
    for request in (hello(), form.request):
        for told in ({}, {"stream_options": {"include_usage": True}}):
            body = {"model": "gpt-4", **request, "stream": True, **told}
            with served[1].stream("POST", "/v1/chat/completions", json=body) as answer:
                lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
            chunks = [json.loads(line) for line in lines[:-1]]
            said = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
            assert lines[-1] == "[DONE]" and said == reply(chat(served, **request))
            if told:
                assert chunks[-1]["usage"]["completion_tokens"] > 0
            else:
                assert all(chunk["choices"] for chunk in chunks), "clients look at the first of them"


def test_several_replies(served: ModelInfo) -> None:
    refused = chat(served, **hello(), n=3)
    assert refused.status_code == 400 and "greedy" in refused.json()["error"]["message"], "they would be the same"
    assert chat(served, **hello(), n=129, temperature=1).status_code == 400
    sampled = chat(served, **hello(), n=3, temperature=1, seed=1).json()["choices"]
    assert len({choice["message"]["content"] for choice in sampled}) > 1


def test_the_alternatives_of_a_one_token_answer(served: ModelInfo) -> None:
    request = next(form.request for form in FORMS if form.contract == "best-identifier")
    content = chat(served, **request).json()["choices"][0]["logprobs"]["content"]
    assert len(content) == 1
    shares = {entry["token"]: math.exp(entry["logprob"]) for entry in content[0]["top_logprobs"]}
    assert shares["m"] + shares["M"] == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    "request_",
    [
        {"messages": [{"role": "user", "content": "how many apples " * 3000}], "max_tokens": 12},
        {**hello("how many apples " * 20), "max_tokens": CONTEXT - 20, "structured_outputs": {"regex": "a+"}},
        {
            **FORMS[0].request,
            "messages": [{"role": "user", "content": "apples " * 8000}, *FORMS[0].request["messages"]],
        },
    ],
)
def test_what_does_not_fit_is_refused(served: ModelInfo, request_: dict[str, Any]) -> None:
    """As OpenAI does, with the word that ConvBench's scripts wait for."""
    answer = chat(served, **request_)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "context_length_exceeded" and "context_length_exceeded" in error["message"]


def test_what_is_no_schema_is_the_clients_mistake(served: ModelInfo) -> None:
    def wanting(schema: Any) -> dict[str, Any]:
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}

    deep: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 5}
    for _ in range(300):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    assert chat(served, **hello() | wanting({**deep, "properties": {"b": {"type": "null"}}})).status_code in (200, 400)
    answer = chat(served, **{**hello(), "max_tokens": 600} | wanting(deep["properties"]["a"]["properties"]["a"]))
    assert answer.status_code != 500, answer.text
    for fields in ({"structured_outputs": 5}, wanting(5), wanting({"type": "nothing"}), {"tools": 5}, {"n": {}}):
        answer = chat(served, **hello(), **fields)
        assert answer.status_code == 400, (fields, answer.text)


def test_a_schema_left_open_gives_whole_replies(served: ModelInfo) -> None:
    """Tools as OpenAI's clients send them: an untrained model would invent keys until its tokens end."""
    note = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    properties: dict[str, Any] = {"notes": {"type": "array", "items": {"$ref": "#/$defs/note"}}}
    properties["score"] = {"type": "number", "description": "From 0 to 10."}
    parameters = {"type": "object", "properties": properties, "required": [*properties], "$defs": {"note": note}}
    forced = {"type": "function", "function": {"name": "grade"}}
    tools = [{"type": "function", "function": {"name": "grade", "parameters": parameters}}]
    words = hello("Score the answer from 0 to 10.") | {"max_tokens": 300}
    for seed in range(4):
        answer = chat(served, **words, tools=tools, tool_choice=forced, temperature=1.5, seed=seed)
        choice = answer.json()["choices"][0]
        called = json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])
        assert choice["finish_reason"] == "stop" and called.keys() == {"notes", "score"}
        assert 0 <= called["score"] <= 10 and all(note.keys() == {"text"} for note in called["notes"])


def test_forms_that_stand_only_in_words(served: ModelInfo) -> None:
    with ThreadPoolExecutor(len(ASKED)) as pool:
        answers = list(pool.map(lambda form: chat(served, **{"max_tokens": 200, **form.request}), ASKED))
    for form, answer in zip(ASKED, answers, strict=True):
        assert answer.headers["x-critic-contract"] != "none", form.name
        assert form.parse(answer.json()["choices"][0]["message"]["content"]) is not None, (form.name, answer.text)
    metrics = served[1].get("/metrics").text
    assert 'critic_requests_total{contract="general-json"}' in metrics and "vllm:" in metrics


def test_errors(served: ModelInfo) -> None:
    client = served[1]
    wrong = client.post("/v1/chat/completions", json={**hello(), "model": "none"})
    bad = client.post("/v1/chat/completions", content=b"{bad", headers={"Content-Type": "application/json"})
    large = chat(served, **hello("x" * 2_000_000))
    for answer, status in ((wrong, 404), (bad, 400), (large, 413), (client.get("/none"), 404)):
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_the_key_and_the_metrics(served: ModelInfo) -> None:
    client = served[1]
    for path in ("/metrics", "/v1/models", "/tokenize", "/version", "/docs"):
        answer = httpx.get(client.base_url.join(path))
        assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_api_key", path
    assert httpx.get(client.base_url.join("/health")).status_code == 200
    assert "vllm:request_success_total" in client.get("/metrics").text


def test_seeded_samples_of_long_prompts_do_not_end_the_engine(served: ModelInfo) -> None:
    """On CPU vLLM cannot take back what it drew for half of a prompt: together these are more than it reads at once."""

    def ask(seed: int) -> httpx.Response:
        return chat(served, **hello(f"{seed} how many apples " * 300), temperature=1, seed=seed)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    assert all(600 < answer.json()["usage"]["prompt_tokens"] < CONTEXT for answer in answers if reply(answer))
    assert served[1].get("/health").status_code == 200


def test_under_load_nothing_is_lost(served: ModelInfo) -> None:
    """All at once, with clients that hang up, bad requests and slow readers."""
    process, client = served
    key = client.headers["Authorization"]
    (figures,) = load(str(client.base_url).rstrip("/"), 200, 1, process.pid, key)
    ended = figures["ended"]
    assert sum(ended.values()) == 200 and ended["refused"] == 10
    assert not [end for end in ended if end.startswith(("lost", "bad"))], figures
    assert figures["health_failed"] == 0


def test_a_running_request_ends_before_the_server_does(served: ModelInfo) -> None:
    """The last test: it stops the server."""
    process, client = served
    body = {"model": "gpt-4", **hello(), "max_tokens": 100, "ignore_eos": True, "stream": True}
    body["stream_options"] = {"include_usage": True}
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        read = [next(lines)]
        process.send_signal(signal.SIGINT)
        read += lines
    assert read[0].startswith("data: ") and '"completion_tokens":100' in "".join(read)
    assert process.wait(60) == 0
