"""What the layer does with a request and its reply, before an inner server that keeps what it is asked."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from clients.forms import FORMS
from clients.inner import Ask, Inner, respond, streamed
from prometheus_client import REGISTRY, generate_latest
from serving import chat_request, contracts, layer

from critic.backends.openai import OURS, RED

BY_NAME = {contract.name: contract for contract in contracts.load().tables[-1]}


pytest_plugins = ["clients.asking"]
HELLO = {"model": "gpt-4", "messages": [{"role": "user", "content": "hello"}]}


def test_few_requests_are_prepared_at_once_and_all_are_answered(build_layer: Callable[..., Any]) -> None:
    """As many as there are generate together; one that fails, or is left, makes room for the next."""
    preparing, generating, most = 0, 0, [0, 0]
    everyone = asyncio.Event()

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        nonlocal preparing, generating
        number = json.loads((await receive())["body"])["seed"]
        preparing += 1
        most[0] = max(most[0], preparing)
        await asyncio.sleep(0.001)
        preparing -= 1
        if number % 5 == 1:
            raise FileNotFoundError("no such image")
        chat_request.checking(lambda *_: 1)(1000, None, 20)
        generating += 1
        most[1] = max(most[1], generating)
        if generating == 80:
            everyone.set()
        await asyncio.wait_for(everyone.wait(), 60)
        await respond(send, {})

    async def all_at_once() -> list[httpx.Response]:
        app = build_layer(inner)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://judge") as client:
            asking = [client.post("/v1/chat/completions", json={**HELLO, "seed": number}) for number in range(100)]
            return await asyncio.gather(*asking)

    answers = [answer.status_code for answer in asyncio.run(all_at_once())]
    assert answers.count(200) == 80 and answers.count(500) == 20
    assert most[0] == layer.MOST_PREPARED and most[1] == 80


def test_an_unknown_request_goes_on_byte_for_byte_and_its_stream_as_it_is(ask: Ask, inner: Inner) -> None:
    body = b'{ "messages" : [{"role":"user","content":"h\\u00e9llo"}],"foo": 1e0, "max_tokens":9,\n"seed":1}'
    answer = ask(inner, body)
    assert inner.chats == [body] and inner.paths == ["/v1/models", "/v1/chat/completions"]
    assert answer.headers["x-critic-contract"] == "none" and answer.headers["x-critic-model"] == "judge@1"
    answer = ask(inner, {**HELLO, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-critic-contract"] == "none"
    assert "".join(choice["delta"].get("content", "") for choice in streamed(answer)) == "fine"


def test_a_tool_whose_schema_cannot_be_measured_is_held_to_it_all_the_same(ask: Ask) -> None:
    schema = {"type": "object", "properties": {"a": {"allOf": [{"format": "date"}, {"format": "email"}]}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    inner = Inner("{}")
    answer = ask(inner, {**HELLO, "tools": tools, "tool_choice": {"type": "function", "function": {"name": "f"}}})
    assert answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "f"
    assert "allOf" in json.dumps(json.loads(inner.chats[0])["structured_outputs"]["json"])


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/v1/chat/completions/",
        "/v1/chat/completions/chat/completions",
        "/chat/completions",
        "/v1/v1/chat/completions",
        "/v1//chat/completions",
        "/v1/chat/completions/v1/chat/completions",
    ],
)
def test_paths_that_clients_put_together(ask: Ask, inner: Inner, path: str) -> None:
    assert ask(inner, HELLO, path=path).status_code == 200 and inner.paths == ["/v1/chat/completions"]


def test_a_request_can_say_that_it_wants_no_contract(ask: Ask, inner: Inner) -> None:
    form = next(form for form in FORMS if form.contract == "json-schema")
    assert ask(inner, form.request).headers["x-critic-contract"] == "json-schema"
    answer = ask(inner, form.request, headers=OURS)
    assert answer.headers["x-critic-contract"] == "none" and json.loads(inner.chats[-1]) == form.request


@pytest.mark.parametrize(
    ("name", "true"),
    [
        *(("gpt-4", "judge@1"), (None, "judge@1"), ("adapter", "adapter"), ("x" * 100_000, "x" * 200)),
        *((name, "judge@1") for name in ("a\r\nb: c", "a\x00b", "\u200b" * 300)),
    ],
)
def test_the_true_model_is_named(ask: Ask, name: str | None, true: str) -> None:
    """Within a header's bounds, whatever a client writes."""
    assert ask(Inner(), {**HELLO, "model": name}).headers["x-critic-model"] == true


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/models", "/tokenize", "/metrics", "/version", "/ping", "/"]
)
def test_every_route_but_health_asks_for_the_key(ask: Ask, path: str) -> None:
    for headers in (None, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}, {"Authorization": "Bearer "}):
        for method in ("GET", "POST", "OPTIONS"):
            inner = Inner()
            answer = ask(inner, HELLO, path=path, method=method, key="secret", headers=headers)
            assert answer.status_code == 401 and inner.paths == [] and answer.headers["WWW-Authenticate"] == "Bearer"
            assert answer.json()["error"]["code"] == "invalid_api_key"
    inner = Inner()
    ask(inner, HELLO, path=path, key="secret", headers={"Authorization": "Bearer secret"})
    assert inner.paths
    inner = Inner()
    ask(inner, path="/health", method="GET", key="secret")
    assert inner.paths == ["/health"]


def test_a_large_request_is_refused_unread(ask: Ask) -> None:
    for size in (1001, 3000, 50_000):
        inner = Inner()
        answer = ask(inner, b"x" * size, max_bytes=1000)
        assert answer.status_code == 413 and inner.paths == []
        assert answer.json()["error"]["code"] == "request_too_large"
    assert ask(Inner(), HELLO, max_bytes=len(json.dumps(HELLO))).status_code == 200


def sent(inner: Inner) -> Any:
    return json.loads(inner.chats[0])


def refuse_as_too_long(ask: Ask, tokens: int, request: dict[str, Any], headers: Any = None) -> str:
    """Return the message of a request that is refused in OpenAI's shape before it costs anything."""
    inner = Inner(tokens=tokens)
    answer = ask(inner, request, headers=headers)
    error = answer.json()["error"]
    assert answer.status_code == 400 and inner.chats == []
    assert error["code"] == "context_length_exceeded" and "context_length_exceeded" in error["message"]
    assert error["type"] == "invalid_request_error"
    return str(error["message"])


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_reply_gets_what_the_prompt_leaves(ask: Ask, name: str) -> None:
    long = {"messages": [{"role": "user", "content": "x" * 900}]}
    for wish, tokens in ((601, 400), (999, 400), (700, 980), (600, 400)):
        inner = Inner(tokens=tokens)
        assert ask(inner, {**long, name: wish}).status_code == 200
        assert json.loads(inner.chats[0])[name] == 1000 - tokens
        assert inner.paths == ["/v1/models", "/v1/chat/completions"], "vLLM prepares a prompt only once"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("contract", ["grade-ci", "json-schema", "tool-call", "rating-of-turn-alone"])
@pytest.mark.parametrize("limit", [None, 300, 2000])
def test_a_prompt_is_counted_again_only_if_it_leaves_too_little(
    ask: Ask, contract: str, limit: int | None, stream: bool
) -> None:
    """Whether it is read as a stream or not, a request is held as if its length had been known. Of a JSON reply that
    can be asked for once more only the second schema depends on it."""
    request = next(form.request for form in FORMS if form.contract == contract) | {"stream": stream}
    request = {name: value for name, value in request.items() if name not in ("max_tokens", "temperature")}
    request |= {"max_tokens": limit} if limit else {}
    known = Inner(tokens=20)
    assert ask(known, request).status_code == 200
    held = json.loads(known.chats[0])["structured_outputs"]
    for tokens in (20, 700, 930):
        inner = Inner(tokens=tokens)
        answer = ask(inner, request)
        assert answer.status_code == 200 and answer.headers["x-critic-contract"] == contract
        again, sent = json.loads(inner.chats[0])["structured_outputs"], inner.paths.count("/v1/chat/completions")
        assert len(inner.chats) == 1 and json.loads(inner.chats[0]).get("max_tokens", 0) <= 1000 - tokens
        if "json" in held and stream:
            assert sent == (2 if 1000 - tokens < (limit or 1000) else 1)
            assert (again == held) == (1000 - tokens >= min(limit or 980, 980))
        elif "json" in held:
            assert sent == 1 and again == held
        else:
            enough = BY_NAME[contract].least_tokens - contracts.LEAST_REASONING + contracts.REASONING_TOKENS
            short = 1000 - tokens < min(limit or 1000, enough)
            assert sent == (2 if short else 1) and (again == held) == (not short)
    assert "999 in the messages" in refuse_as_too_long(ask, 999, request)


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_ends_by_itself_is_held_where_too_little_is_left(ask: Ask, stream: bool) -> None:
    why = {"type": "object", "properties": {"why": {"type": "string", "maxLength": 60}}, "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {**why, "required": ["why"]}}}
    for tokens, contract in ((20, "none"), (900, "json-schema")):
        answer = ask(Inner(tokens=tokens), {**HELLO, "response_format": form, "stream": stream})
        assert answer.headers["x-critic-contract"] == contract


@pytest.mark.parametrize("constraint", [{}, {"structured_outputs": {"regex": "a*"}}])
def test_a_request_that_does_not_fit_is_refused_before_it_costs_anything(ask: Ask, constraint: dict[str, Any]) -> None:
    """Cut off, a form of the client's own would be worth nothing: it gets all that it asks for."""
    long = {"messages": [{"role": "user", "content": "x" * 900}], **constraint}
    for tokens, wish, headers in ((990, 100, None), (400, 601, OURS)):
        refuse_as_too_long(ask, tokens, {**long, "max_tokens": wish}, headers=headers)
    inner = Inner(tokens=400)
    assert ask(inner, {**long, "max_tokens": 601}).status_code == (400 if constraint else 200)


@pytest.mark.parametrize("limit", [1000, 2048])
def test_more_than_the_whole_context_is_only_a_limit_and_nothing_is_none(ask: Ask, limit: int) -> None:
    """Harnesses send what suits GPT-4, with their probes, too: no shorter prompt would help a smaller judge."""
    inner = Inner(tokens=20)
    assert ask(inner, {**HELLO, "max_tokens": limit}).status_code == 200
    assert json.loads(inner.chats[0]) == {**HELLO, "max_tokens": 980}
    refuse_as_too_long(ask, 1000, {**HELLO, "max_tokens": limit})
    answer = ask(inner, {**HELLO, "max_tokens": 0})
    assert answer.status_code == 400 and answer.json()["error"]["code"] is None and len(inner.chats) == 1


def test_under_a_contract_only_the_verdict_must_fit(ask: Ask) -> None:
    request = {**FORMS[0].request, "max_tokens": 2048}
    inner = Inner(tokens=900)
    assert ask(inner, request).status_code == 200
    sent = json.loads(inner.chats[0])
    assert sent["max_tokens"] == 100 and "max_tokens=87]" in sent["structured_outputs"]["grammar"]
    refuse_as_too_long(ask, 1000 - BY_NAME["grade-ci"].least_tokens + 1, request)


@pytest.mark.parametrize(
    ("given", "message", "code"),
    [
        ({"detail": "Not Found"}, "Not Found", None),
        ({"error": "Unauthorized"}, "Unauthorized", None),
        ({"error": {"message": "m", "type": "BadRequestError", "code": 400, "param": "n"}}, "m", None),
        (
            {"error": {"message": "This model's maximum context length is 9 tokens.", "code": 400}},
            "This model's maximum context length is 9 tokens. (context_length_exceeded)",
            "context_length_exceeded",
        ),
        (
            {"error": {"message": "max_tokens must be at least 1, got 0.", "code": 400}},
            "max_tokens must be at least 1, got 0. (context_length_exceeded)",
            "context_length_exceeded",
        ),
    ],
)
def test_errors_have_openais_shape(ask: Ask, given: Any, message: str, code: str | None) -> None:
    for stream in (False, True):
        answer = ask(Inner(error=given, status=400), {**HELLO, "stream": stream})
        assert answer.status_code == 400 and answer.headers["content-type"] == "application/json"
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (error["message"], error["code"], error["type"]) == (message, code, "invalid_request_error")
    assert ask(Inner(error=given, status=500), HELLO).json()["error"]["type"] == "server_error"
    assert ask(Inner(), method="GET", path="/none").json()["error"]["message"] == "Not Found"


@pytest.mark.parametrize("stream", [False, True])
def test_what_vllm_does_not_catch_has_openais_shape_too(ask: Ask, stream: bool) -> None:
    class Failing(Inner):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["path"] != "/v1/models":
                raise FileNotFoundError("no such image")
            await super().__call__(scope, receive, send)

    for request in (HELLO, FORMS[0].request):
        answer = ask(Failing(), {**request, "stream": stream})
        error = answer.json()["error"]
        assert answer.status_code == 500 and answer.headers["x-critic-model"] == "judge@1"
        assert (error["type"], error["code"]) == ("server_error", None) and "no such image" in error["message"]
    assert ask(Failing(), method="GET", path="/version").json()["error"]["type"] == "server_error"


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_end_with_the_text(ask: Ask, stream: bool) -> None:
    """Clients read the verdict's probability from the last token, which OpenAI never makes the end of the text."""

    class Scored(Inner):
        def event(self, delta: dict[str, Any]) -> str:
            token = delta.get("content", "<end>")
            logprobs = {"content": [{"token": token}]} if token else None
            choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": None if delta else "stop"}
            return f"data: {json.dumps({'id': 'chatcmpl-1', 'choices': [choice]})}\n\n"

        def choice(self, reply: str) -> dict[str, Any]:
            tokens = [{"token": token} for token in [*reply, "<end>"]]
            return {**super().choice(reply), "logprobs": {"content": tokens}}

    def tokens(request: dict[str, Any]) -> str:
        answer = ask(Scored("so\nm"), {**request, "stream": stream})
        choices = streamed(answer) if stream else answer.json()["choices"]
        return "".join(entry["token"] for choice in choices for entry in (choice["logprobs"] or {}).get("content", []))

    form = next(form for form in FORMS if form.contract == "best-identifier-last")
    assert tokens(form.request) == "so\nm"
    assert tokens({**HELLO, "logprobs": True}) == "so\nm<end>", "without a contract a reply is as vLLM gives it"


def test_what_is_found_cannot_write_headers(ask: Ask) -> None:
    properties = {"score\r\nset-cookie: a\x00\r": {"type": "integer"}, "理由": {"type": "string"}}
    schema = {"type": "object", "properties": properties}
    words = f"Judge the answer. Return a JSON object that follows this schema: {json.dumps(schema)}"
    answer = ask(Inner('{"score": 1}'), {"messages": [{"role": "user", "content": words}]})
    assert answer.headers["x-critic-found"].isprintable() and answer.headers["x-critic-found"].startswith("score")


@pytest.mark.parametrize("contract", ["grade-ci", "json-schema", "tool-call"])
def test_a_held_reply_ends_with_its_form_and_beams_are_not_held(ask: Ask, inner: Inner, contract: str) -> None:
    """What would keep a reply from ending, or cut it, is left out. Beams follow no grammar."""
    request = next(form.request for form in FORMS if form.contract == contract)
    ask(inner, {**request, "ignore_eos": True, "min_tokens": 9, "stop": ["x"]})
    assert not {"ignore_eos", "min_tokens", "stop"} & json.loads(inner.chats[0]).keys()
    beams = {**request, "use_beam_search": True}
    assert ask(inner, beams).headers["x-critic-contract"] == "none" and json.loads(inner.chats[1]) == beams


def test_an_adapter_is_another_judge_than_the_one_that_is_told_of(ask: Ask) -> None:
    class Listing(Inner):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            listed = {"data": [{"id": name} for name in ("judge@1", "gpt-4", "adapter")]}
            await respond(send, listed)

    listed = ask(Listing(), method="GET", path="/v1/models", about={"certificate": "c"}).json()["data"]
    assert [model.get("certificate") for model in listed] == ["c", "c", None]


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": 5},
        {"response_format": "json"},
        {"tools": {}},
        {"tools": [5]},
        {"tool_choice": 3},
        {"stream": "false"},
        {"messages": [5]},
        {"messages": None},
        {"messages": [{"content": 3}]},
    ],
)
def test_what_is_no_chat_request_is_refused_in_plain_words(ask: Ask, inner: Inner, fields: dict[str, Any]) -> None:
    answer = ask(inner, {**HELLO, **fields})
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400 and inner.chats == [] and next(iter(fields)) in message
    for word in ("attribute", "object has no", "NoneType", "Error", "Traceback", "subscript"):
        assert word not in message


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": [5]}], "max_tokens": 5},
        {"messages": [{"role": "user", "content": [{"type": "text"}]}], "max_tokens": 5},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"properties": 3}}}},
        {"tools": [{"function": 5}], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    ],
)
def test_what_the_layer_cannot_read_is_left_to_vllm(ask: Ask, inner: Inner, fields: dict[str, Any]) -> None:
    assert ask(inner, body := json.dumps({**HELLO, **fields}).encode(), images=True).status_code == 200
    assert inner.chats == [body]


SCHEMA = {"type": "object", "properties": {"why": {"type": "string"}, "score": {"type": "integer", "minimum": 1}}}
OBJECT = {**HELLO, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}


def test_a_json_reply_that_was_cut_off_is_asked_for_once_more_in_short(ask: Ask) -> None:
    class Rambling(Inner):
        def choice(self, reply: str) -> dict[str, Any]:
            return {**super().choice(reply), "finish_reason": "length" if reply.startswith("{..") else "stop"}

    inner = Rambling("{...", '{"why":"x"}')
    answer = ask(inner, {**OBJECT, "max_tokens": 200})
    assert answer.json()["choices"][0]["message"]["content"] == '{"why":"x"}' and len(inner.chats) == 2
    lengths = [json.loads(chat)["structured_outputs"]["json"]["properties"]["why"]["maxLength"] for chat in inner.chats]
    assert lengths[0] == 600 and lengths[1] < 40 and f"characters={lengths[1]}," in answer.headers["x-critic-limits"]
    inner = Inner()
    ask(inner, OBJECT)
    assert json.loads(inner.chats[0])["max_tokens"] == 980, "the context is smaller than what a reply may take"
    inner = Rambling("{...", '{"why":"x"}', tokens=900)
    ask(inner, {**OBJECT, "max_tokens": 200})
    assert json.loads(inner.chats[1])["structured_outputs"]["json"]["properties"]["why"]["maxLength"] < 15
    inner = Rambling("fine")
    assert "x-critic-limits" not in ask(inner, {**OBJECT, "max_tokens": 200}).headers and len(inner.chats) == 1
    inner = Rambling("fine")
    ask(inner, {**OBJECT, "max_tokens": 200, "stream": True})
    streamed_ = json.loads(inner.chats[0])["structured_outputs"]["json"]["properties"]["why"]
    assert streamed_["maxLength"] == lengths[1], "what a stream has said cannot be taken back"


def test_a_forced_function_is_called(ask: Ask) -> None:
    form = next(form for form in FORMS if form.contract == "leaderboard-call")
    inner = Inner('{"ordered_models":[]}')
    message = ask(inner, form.request).json()["choices"][0]["message"]
    function = {"name": "make_partial_leaderboard", "arguments": '{"ordered_models":[]}'}
    (call,) = message["tool_calls"]
    assert message["content"] is None and (call["type"], call["function"]) == ("function", function)
    assert json.loads(inner.chats[0])["tool_choice"] == "none"
    deltas = [choice["delta"] for choice in streamed(ask(Inner('{"a":1}'), {**form.request, "stream": True}))]
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert calls[0]["function"]["name"] == "make_partial_leaderboard" and calls[0]["id"]
    assert "".join(call["function"]["arguments"] for call in calls) == '{"a":1}'
    unknown = {**form.request, "tool_choice": {"type": "function", "function": {"name": "other"}}}
    inner = Inner()
    ask(inner, unknown)
    assert json.loads(inner.chats[0]) == unknown, "vLLM refuses it"


RATING = {"type": "integer", "description": "from 1 to 5"}
PARAMETERS = {"type": "object", "properties": {"score": RATING, "why": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "grade", "parameters": PARAMETERS}}
OTHER = {"type": "function", "function": {"name": "skip", "parameters": {"type": "object", "properties": {}}}}
WORDS = {"messages": [{"role": "user", "content": "Score it from 1 to 5."}], "max_tokens": 200}
CALL = '{"score":3,"why":"so"}'


def test_the_only_tool_is_called(ask: Ask) -> None:
    inner = Inner(CALL)
    answer = ask(inner, {**WORDS, "tools": [TOOL], "tool_choice": "required"})
    assert answer.headers["x-critic-contract"] == "tool-call"
    (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "grade", "arguments": CALL}
    score = sent(inner)["structured_outputs"]["json"]["properties"]["score"]
    assert (score["minimum"], score["maximum"]) == (1, 5) and sent(inner)["tool_choice"] == "none"


def test_a_tool_that_need_not_be_called_is_the_models_to_call(ask: Ask) -> None:
    for tools, choice in (([TOOL], "auto"), ([TOOL], None), ([TOOL, OTHER], "required"), ([TOOL], "none")):
        inner = Inner()
        request = {**WORDS, "tools": tools, "tool_choice": choice}
        assert ask(inner, request).headers["x-critic-contract"] == "none"
        assert sent(inner) == request


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_ends_with_a_call_unless_the_client_named_its_function(ask: Ask, stream: bool) -> None:
    named = {"type": "function", "function": {"name": "grade"}}
    for fields, end in (
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_calls"),
        ({"tools": [TOOL], "tool_choice": named}, "stop"),
    ):
        answer = ask(Inner(CALL), {**WORDS, **fields, "stream": stream})
        choices = streamed(answer) if stream else answer.json()["choices"]
        assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == [end], fields


def test_a_client_that_hung_up_leaves_nothing_to_rewrite(ask: Ask) -> None:
    class Left(Inner):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await respond(send, None)

    assert ask(Left(), next(form.request for form in FORMS if form.contract == "tool-call")).json() is None


PICTURE = {"type": "image_url", "image_url": {"url": RED}}


def test_images_that_the_judge_cannot_see_are_left_out_and_counted(ask: Ask) -> None:
    content = [{"type": "text", "text": "look"}, PICTURE, PICTURE]
    request = {"messages": [{"role": "user", "content": content}]}
    inner = Inner()
    answer = ask(inner, request)
    assert answer.headers["x-critic-left-out"] == "images=2"
    assert json.loads(inner.chats[0])["messages"][0]["content"] == content[:1]
    inner = Inner()
    answer = ask(inner, body := json.dumps(request).encode(), images=True)
    assert inner.chats == [body] and "x-critic-left-out" not in answer.headers


def test_contracts_and_unknown_forms_are_counted(ask: Ask) -> None:
    """In the registry that vLLM's /metrics shows, where no text of a request stands."""
    unknown = {"messages": [{"role": "user", "content": "Judge the answer as you like, in a haiku."}]}
    counters = [("requests", {"contract": "none"}), ("requests", {"contract": FORMS[0].contract})]
    counters.append(("unknown_forms", {"fingerprint": contracts.fingerprint(unknown)}))

    def read_counts() -> list[float]:
        return [REGISTRY.get_sample_value(f"critic_{name}_total", labels) or 0.0 for name, labels in counters]

    before = read_counts()
    for request in (HELLO, FORMS[0].request, unknown, unknown):
        ask(Inner(), request)
    assert np.subtract(read_counts(), before).tolist() == [3, 1, 2] and b"haiku" not in generate_latest()


@pytest.mark.parametrize("stream", [False, True])
def test_a_dead_engine_is_worth_another_try(ask: Ask, stream: bool) -> None:
    dead = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    stopping = "RuntimeError: cannot schedule new futures after shutdown"
    for status, said, told in (
        (500, dead, "engine has ended"),
        (503, dead, "engine has ended"),
        (500, stopping, "is stopping"),
    ):
        answer = ask(Inner(error={"error": {"message": said}}, status=status), {**HELLO, "stream": stream})
        assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0
        assert answer.json()["error"]["type"] == "server_error" and told in answer.json()["error"]["message"]
    assert "retry-after" not in ask(Inner(error={"error": {"message": "no"}}, status=500), HELLO).headers
