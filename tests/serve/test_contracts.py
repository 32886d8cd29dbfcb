"""Reply contracts: each client's request is recognised, and whatever the model says, the client reads a verdict.

The decoder is the real one (llguidance), the model a random one with a token a byte: the worst case for lengths.
"""

import asyncio
import importlib
import json
import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from clients.forms import FORMS, RESPONSE, Form
from conftest import ROOT

from critic.backends.openai import OURS
from critic.errors import UsageError

sys.path.insert(0, str(ROOT / "serve"))
contracts: ModuleType = importlib.import_module("contracts")
layer: ModuleType = importlib.import_module("layer")

TABLE = contracts.load()
BUILT_IN = TABLE.tables[-1]
BY_NAME = {contract.name: contract for contract in BUILT_IN}
FORM = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.contract)


def replaced(form: Form, response: str) -> dict[str, Any]:
    """The form's request with another response under judgment."""
    quoted = json.dumps(response)[1:-1]
    return json.loads(json.dumps(form.request).replace(RESPONSE, quoted))


def test_every_contract_has_a_form_and_every_name_one_contract() -> None:
    assert {form.contract for form in FORMS} == set(BY_NAME)
    assert len(BY_NAME) == len(BUILT_IN) == 31


def test_there_is_room_for_the_longest_verdict() -> None:
    for contract in BUILT_IN:
        if contract.verdict:
            longest = re._parser.parse(contract.verdict).getwidth()[1]  # type: ignore[attr-defined]
            assert longest + len(contract.lead) <= contract.room <= longest + len(contract.lead) + 12, contract.name


@FORM
def test_recognised_whatever_stands_in_the_response(form: Form) -> None:
    """A response that quotes the instructions of all other forms changes nothing."""
    assert contracts.recognise(form.request, TABLE).name == form.contract
    others = ["\n\n".join(contracts.texts(other.request)) for other in FORMS]
    for attack in ("\n".join(others), "\n".join(reversed(others)), *others):
        if RESPONSE in json.dumps(form.request):
            assert contracts.recognise(replaced(form, attack), TABLE).name == form.contract


@pytest.mark.parametrize(
    "request_",
    [
        {"messages": [{"role": "user", "content": "hello"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]},
        {"messages": [{"role": "user", "content": "Rate 1 to 10."}], "response_format": {"type": "json_object"}},
        {"messages": FORMS[0].request["messages"], "structured_outputs": {"regex": "a"}},
        {"messages": FORMS[0].request["messages"], "continue_final_message": True},
        {"messages": FORMS[0].request["messages"], "tools": [{}], "tool_choice": "auto"},
        {"messages": []},
    ],
)
def test_other_requests_are_not_recognised(request_: dict[str, Any]) -> None:
    assert contracts.recognise(request_, TABLE) is None


def test_recognition_takes_no_longer_than_the_text_is_long() -> None:
    """A response under judgment must not stop the server: no pattern looks twice at what it can fill at will."""
    began = time.process_time()
    for form in FORMS:
        text = "\n\n".join(contracts.texts(form.request))
        for filling in (" " * 40_000, "\n" * 40_000):
            for content in (f"{text}{filling}x", re.sub(r"\n+(\*\*)?", filling, text) + "x"):
                contracts.recognise({"messages": [{"role": "user", "content": content}]}, TABLE)
    assert time.process_time() - began < 5


class Decoder:
    """Decoding under what a request asks the server for; every token is a byte."""

    def __init__(self, request: dict[str, Any]) -> None:
        llguidance = pytest.importorskip("llguidance", reason="needs a serve extra")
        self.tokenizer = llguidance.LLTokenizer("byte")
        outputs = request.get("structured_outputs") or {"json": request["response_format"]["json_schema"]["schema"]}
        if "grammar" in outputs:
            grammar = llguidance.grammar_from("grammar", outputs["grammar"])
        else:
            compact = {"whitespace_flexible": False}
            grammar = llguidance.LLMatcher.grammar_from_json_schema(outputs["json"], defaults=compact)
        self.matcher = llguidance.LLMatcher(self.tokenizer, grammar)
        assert not self.matcher.is_error(), self.matcher.get_error()

    def allowed(self) -> list[int]:
        bits = int.from_bytes(self.matcher.compute_bitmask(), "little")
        return [token for token in range(self.tokenizer.vocab_size) if bits >> token & 1]

    def take(self, token: int) -> bool:
        return token in self.allowed() and self.matcher.consume_token(token)

    def feed(self, text: str) -> int:
        """How many bytes of the text are accepted."""
        return next((at for at, byte in enumerate(text.encode()) if not self.take(byte)), len(text.encode()))

    @property
    def may_end(self) -> bool:
        return self.tokenizer.eos_token in self.allowed()

    def babble(self, seed: int) -> tuple[str, int]:
        """What a model says that ends only where it must, and how many tokens it took."""
        chooser, said = random.Random(seed), b""
        while not self.matcher.is_stopped() and len(said) < 3000:
            tokens = [token for token in self.allowed() if token < 256]
            if not tokens:
                break
            token = chooser.choice(tokens)
            assert self.matcher.consume_token(token)
            said += bytes([token])
        assert not self.matcher.is_error(), self.matcher.get_error()
        return said.decode("utf-8", "replace"), len(said)


def as_choice(form: Form, said: str) -> dict[str, Any]:
    choice = {"message": {"role": "assistant", "content": said}}
    name = contracts.forced_tool(form.request)
    return contracts.as_tool_call(choice, name, "call_0") if name else choice


@FORM
@pytest.mark.parametrize("more", [0, 150])
def test_the_verdict_is_where_the_client_looks(form: Form, more: int) -> None:
    """Of a model that never stops by itself, with the least tokens and with more; one of them is for the end."""
    contract = BY_NAME[form.contract]
    tokens = contract.least_tokens + more if contract.verdict else 250 + more
    held = contracts.constrain(contract, form.request, tokens)
    for seed in range(5):
        said, length = Decoder(held).babble(seed)
        assert length < tokens or contract.verdict is None, said
        assert length < tokens + 50, said
        assert form.parse(as_choice(form, said)) is not None, said


BEFORE = [form for form in FORMS if BY_NAME[form.contract].reasoning == "before"]


@pytest.mark.parametrize("form", BEFORE, ids=lambda form: form.contract)
def test_a_model_may_come_to_its_verdict_by_itself(form: Form) -> None:
    contract = BY_NAME[form.contract]
    held = contracts.constrain(contract, form.request, 1000)
    verdict = Decoder({"structured_outputs": {"grammar": f"start: /{contract.verdict}/\n"}}).babble(1)[0]
    decoder = Decoder(held)
    said = f"The answer says four, 理由。{contract.lead}{verdict}"
    assert decoder.feed("The answer says four, 理由。") == len("The answer says four, 理由。".encode())
    assert not decoder.may_end, "without a verdict there is no end"
    assert decoder.feed(contract.lead + verdict) == len((contract.lead + verdict).encode())
    assert decoder.may_end
    assert form.parse({"message": {"content": said}}) is not None
    again = f" No: {contract.lead}{verdict}"
    assert decoder.feed(again) < len(again.encode()), "a second verdict"


@pytest.mark.parametrize("form", BEFORE, ids=lambda form: form.contract)
def test_a_verdict_cut_off_at_the_limit_is_given_once_more(form: Form) -> None:
    contract, budget = BY_NAME[form.contract], 250
    held = contracts.constrain(contract, form.request, budget + contract.room + 1)
    verdict = (
        contract.lead + Decoder({"structured_outputs": {"grammar": f"start: /{contract.verdict}/\n"}}).babble(2)[0]
    )
    for said_before in range(1, len(verdict)):
        said = "x" * (budget - said_before) + verdict[:said_before]
        decoder = Decoder(held)
        assert decoder.feed(said) == budget
        said += decoder.babble(said_before)[0]
        assert form.parse({"message": {"content": said}}) is not None, said


def test_an_explanation_after_the_verdict_is_limited_and_free_to_end() -> None:
    held = contracts.constrain(BY_NAME["two-scores"], FORMS[2].request, 60)
    decoder = Decoder(held)
    assert decoder.feed("8 10") == 4 and decoder.may_end
    assert decoder.feed("\nBecause 1 2 3.") == 15 and decoder.may_end
    assert Decoder(held).babble(3)[1] <= 60


def test_what_a_schema_leaves_open_is_bounded_and_the_rest_kept() -> None:
    free = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": ["integer", "null"]}}}
    array = {"type": "array", "items": {"type": "number", "minimum": 0}}
    bounded = contracts.bounded({**free, "$defs": {"c": array}}, 800)
    assert bounded["properties"]["a"] == {"type": "string", "maxLength": 100}
    assert bounded["properties"]["b"]["minimum"] == -1_000_000 and bounded["properties"]["b"]["maximum"] == 1_000_000
    assert bounded["$defs"]["c"]["maxItems"] == contracts.LONGEST_ARRAY
    assert bounded["$defs"]["c"]["items"]["minimum"] == 0 and bounded["$defs"]["c"]["items"]["multipleOf"] == 0.01
    own = {
        "type": "object",
        "properties": {
            "r": {"type": "integer", "minimum": 1, "maximum": 10},
            "s": {"type": "string", "maxLength": 400},
            "t": {"type": "string", "enum": ["x"]},
        },
    }
    asked = {"messages": [], "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": own}}}
    assert contracts.constrain(BY_NAME["json-schema"], asked, 256) is None, "nothing to bound: goes on as it is"


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        ("[[contract]", ["no table"]),
        ('[[contract]]\nname = "x"\nclient = "y"\nroom = 3\nverdct = "a"', ["verdct"]),
        ('[[contract]]\nname = "x"\nclient = "y"\nroom = 3\nasks = "("\nverdict = "a"', ["'x'", "regular"]),
        ('[[contract]]\nname = "x"\nclient = "y"\nroom = 3', ["'x'", "verdict"]),
        ('[[contract]]\nname = "X"\nclient = "y"\nroom = 3\nverdict = "a"', ["'X'", "name"]),
        ('[[contract]]\nname = "x"\nclient = "y"\nroom = 3\nverdict = "a"\nforms = ["tool"]', ["'x'", "text"]),
        ('[[contract]]\nname = "x"\nclient = "y"\nroom = 3\nproperties = {}\nnever = "a"', ["'x'", "never"]),
        ("[[contract]]\nname = 'x'\nclient = 'y'\nroom = 3\nverdict = '\\d'", ["'x'", "\\d", "too wide"]),
        ('[[contract]]\nname = "x"\nclient = "y"\nroom = 3\nverdict = "a"\nopening = "ab"', ["'x'", "opening"]),
        ('[[contract]]\nname = "x"\nclient = "y"\nroom = 3\nproperties = {}\nverdict = "a"', ["exclude"]),
        ('[[contract]]\nname = "x"\nclient = "y"\nroom = 3\nproperties = {a = {}}\nbounds = "a"', ["low and high"]),
    ],
)
def test_a_wrong_table_is_named(tmp_path: Path, table: str, parts: list[str]) -> None:
    file = tmp_path / "own.toml"
    file.write_text(table)
    with pytest.raises(UsageError) as error:
        contracts.load([file])
    for part in ["own.toml", *parts]:
        assert part in str(error.value)


def test_the_operators_contracts_come_first(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(
        "[[contract]]\nname = 'mine'\nclient = 'me'\nroom = 5\nasks = 'BEGIN DATA.*'\nwhere = 'tail'\nverdict = 'hello'"
    )
    table = contracts.load([file])
    assert [contract.name for contract in table.tables[0]] == ["mine"] and table.tables[1:] == TABLE.tables
    assert contracts.recognise(FORMS[0].request, table).name == "mine"


def golden(shared: Path, peer: str) -> dict[str, tuple[str, Any]]:
    parsers = json.loads((shared / "fixtures/golden.json").read_text("utf-8"))["parsers"]
    return {name: (parsers["replies"][name], value) for name, value in parsers["by_peer"][peer]["parsed"].items()}


@pytest.mark.parametrize(
    ("peer", "contract", "wanted"),
    [
        ("inspect", "grade-cpi", lambda value: value["partial"]),
        ("prometheus", "prometheus-relative", lambda value: value["relative"]),
        ("fastchat", "bracketed-choice", lambda value: value if value in ("A", "B") else None),
        ("vlmevalkit", "correctness-float", lambda value: value["mmvet"] if value["mmvet"] == 0.7 else None),
    ],
)
def test_our_parsers_refuse_what_the_clients_refuse(
    shared: Path, peer: str, contract: str, wanted: Callable[[Any], Any]
) -> None:
    """A parser of ours that read more than the client's would hide a verdict that the client misses."""
    form = next(form for form in FORMS if form.contract == contract)
    for name, (reply, value) in golden(shared, peer).items():
        read = form.parse({"message": {"content": reply}})
        if read is not None and not (peer == "fastchat" and read == "C"):
            assert read == wanted(value), (name, reply)


class Inner:
    """An inner server that keeps what it is asked. `replies` are given in turn, the last one for ever."""

    def __init__(self, *replies: str, tokens: int = 20, status: int = 200, error: Any = None) -> None:
        self.replies, self.tokens, self.status, self.error = list(replies) or ["fine"], tokens, status, error
        self.chats: list[bytes] = []
        self.paths: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.paths.append(scope["path"])
        body = (await receive())["body"] if scope["method"] == "POST" else b""
        headers, status = [(b"content-type", b"application/json")], 200
        if scope["path"] == "/v1/models":
            parts = [json.dumps({"data": [{"max_model_len": 1000}]})]
        elif scope["path"] == "/tokenize":
            parts = [json.dumps({"count": self.tokens})]
        elif scope["path"] == "/v1/chat/completions":
            self.chats.append(body)
            reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
            if self.error is not None:
                status, parts = self.status, [json.dumps(self.error)]
            elif json.loads(body).get("stream"):
                headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
                parts = [self.event({"role": "assistant", "content": ""}), *map(self.event, self.pieces(reply))]
                parts += ["data: [DO", "NE]\n\n"]
            else:
                completion = {"id": "chatcmpl-1", "choices": [self.choice(reply)], "usage": {}}
                parts = [json.dumps(completion, separators=(",", ":"))]
        else:
            status, parts = 404, ['{"detail":"Not Found"}']
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for part in parts:
            await send({"type": "http.response.body", "body": part.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def choice(self, reply: str) -> dict[str, Any]:
        return {"index": 0, "message": {"role": "assistant", "content": reply}, "finish_reason": "stop"}

    def pieces(self, reply: str) -> list[dict[str, Any]]:
        return [{"content": letter} for letter in reply] + [{}]

    def event(self, delta: dict[str, Any]) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}
        return f"data: {json.dumps({'id': 'chatcmpl-1', 'choices': [choice]})}\n\n"


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Callable[..., httpx.Response]:
    """One request through the layer to an inner server."""

    def asking(
        inner: Inner,
        body: Any = None,
        *,
        path: str = "/v1/chat/completions",
        method: str = "POST",
        headers: dict[str, str] | None = None,
        key: str | None = None,
        max_bytes: int = 100_000,
        images: bool = False,
    ) -> httpx.Response:
        settings = {"model": "judge@1", "aliases": ["gpt-4"], "contracts": [], "max_bytes": max_bytes, "images": images}
        monkeypatch.setenv("CRITIC_SERVE_LAYER", json.dumps(settings))
        monkeypatch.delenv("VLLM_API_KEY", raising=False)
        if key:
            monkeypatch.setenv("VLLM_API_KEY", key)
        app = layer.JudgeLayer(inner)
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()

        async def once() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://judge") as client:
                return await client.request(method, path, content=content, headers=headers)

        return asyncio.run(once())

    return asking


Ask = Callable[..., httpx.Response]
HELLO = {"model": "gpt-4", "messages": [{"role": "user", "content": "hello"}]}


def test_an_unknown_request_goes_on_byte_for_byte(ask: Ask) -> None:
    body = b'{ "messages" : [{"role":"user","content":"h\\u00e9llo"}],"foo": 1e0, "max_tokens":9,\n"seed":1}'
    inner = Inner()
    answer = ask(inner, body)
    assert inner.chats == [body] and inner.paths == ["/v1/models", "/v1/chat/completions"]
    assert answer.headers["x-critic-contract"] == "none" and answer.headers["x-critic-model"] == "judge@1"


@pytest.mark.parametrize(
    "body", [b"{bad", b"[]", b'{"messages":"x"}', b'{"messages":[1]}', b'{"messages":[{"content":3}]}']
)
def test_what_is_no_chat_request_is_left_to_vllm_or_refused(ask: Ask, body: bytes) -> None:
    inner = Inner(error={"error": {"message": "no"}}, status=400)
    assert ask(inner, body).status_code == 400


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
def test_paths_that_clients_put_together(ask: Ask, path: str) -> None:
    inner = Inner()
    assert ask(inner, HELLO, path=path).status_code == 200 and inner.paths == ["/v1/chat/completions"]


def test_bounds_of_a_tail_are_read_where_it_was_recognised(tmp_path: Path) -> None:
    table = tmp_path / "own.toml"
    table.write_text(
        "[[contract]]\nname = 'own'\nclient = 'c'\nwhere = 'tail'\nroom = 9\nforms = ['json_object']\nbounds = 's'\n"
        "asks = 'a score from (?P<low>[0-9]) to (?P<high>[0-9])[.]'\nproperties = { s = { type = 'integer' } }\n"
    )
    content = {"messages": [{"role": "user", "content": "Give a score from 1 to 5.\n "}]}
    request = {**content, "response_format": {"type": "json_object"}}
    contract = contracts.recognise(request, contracts.load([table]))
    assert contract is not None and contract.name == "own"
    schema = contracts.constrain(contract, request, 50)["structured_outputs"]["json"]
    assert schema["properties"]["s"] == {"type": "integer", "minimum": 1, "maximum": 5}


def test_a_request_can_say_that_it_wants_no_contract(ask: Ask) -> None:
    form = next(form for form in FORMS if form.contract == "json-schema")
    inner = Inner()
    assert ask(inner, form.request).headers["x-critic-contract"] == "json-schema"
    answer = ask(inner, form.request, headers=OURS)
    assert answer.headers["x-critic-contract"] == "none" and json.loads(inner.chats[-1]) == form.request


def test_the_true_model_is_named(ask: Ask) -> None:
    for name, true in [("gpt-4", "judge@1"), (None, "judge@1"), ("adapter", "adapter"), ("a\r\nb: c", "judge@1")]:
        answer = ask(Inner(), {**HELLO, "model": name})
        assert answer.headers["x-critic-model"] == true


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/models", "/tokenize", "/metrics", "/version", "/ping", "/"]
)
def test_every_route_but_health_asks_for_the_key(ask: Ask, path: str) -> None:
    for headers in (None, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}, {"Authorization": "Bearer "}):
        for method in ("GET", "POST", "OPTIONS"):
            inner = Inner()
            answer = ask(inner, HELLO, path=path, method=method, key="secret", headers=headers)
            assert answer.status_code == 401 and inner.paths == []
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


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_request_that_does_not_fit_is_refused_before_it_costs_anything(ask: Ask, name: str) -> None:
    long = {"messages": [{"role": "user", "content": "x" * 900}]}
    inner = Inner(tokens=400)
    answer = ask(inner, {**long, name: 601})
    assert answer.status_code == 400 and inner.chats == []
    error = answer.json()["error"]
    assert error["code"] == "context_length_exceeded" and "context_length_exceeded" in error["message"]
    assert error["type"] == "invalid_request_error"
    inner = Inner(tokens=400)
    assert ask(inner, {**long, name: 600}).status_code == 200 and "/tokenize" in inner.paths
    inner = Inner(tokens=400)
    assert ask(inner, {**HELLO, name: 600}).status_code == 200 and "/tokenize" not in inner.paths


@pytest.mark.parametrize("limit", [1000, 2048])
def test_more_than_the_whole_context_is_only_a_limit(ask: Ask, limit: int) -> None:
    """Harnesses send what suits GPT-4, with their probes, too: no shorter prompt would help a smaller judge."""
    inner = Inner(tokens=20)
    assert ask(inner, {**HELLO, "max_tokens": limit}).status_code == 200
    assert json.loads(inner.chats[0]) == {**HELLO, "max_tokens": 980, "max_completion_tokens": None}
    inner = Inner(tokens=1000)
    answer = ask(inner, {**HELLO, "max_tokens": limit})
    assert answer.json()["error"]["code"] == "context_length_exceeded" and inner.chats == []


@pytest.mark.parametrize("limit", [64, 64.0, "64"])
def test_a_limit_counts_in_every_form_that_vllm_reads(ask: Ask, limit: Any) -> None:
    inner = Inner()
    ask(inner, {**FORMS[0].request, "max_tokens": limit})
    sent = json.loads(inner.chats[0])
    assert sent["max_tokens"] == 64 and "max_tokens=51]" in sent["structured_outputs"]["grammar"]


def test_under_a_contract_only_the_verdict_must_fit(ask: Ask) -> None:
    request = {**FORMS[0].request, "max_tokens": 2048}
    inner = Inner(tokens=900)
    assert ask(inner, request).status_code == 200
    sent = json.loads(inner.chats[0])
    assert sent["max_tokens"] == 100 and "max_tokens=87]" in sent["structured_outputs"]["grammar"]
    inner = Inner(tokens=1000 - BY_NAME["grade-ci"].least_tokens + 1)
    answer = ask(inner, request)
    assert answer.status_code == 400 and inner.chats == []
    assert "context_length_exceeded" in answer.json()["error"]["message"]


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


def test_a_wish_for_nothing_is_no_long_prompt(ask: Ask) -> None:
    inner = Inner()
    answer = ask(inner, {**HELLO, "max_tokens": 0})
    assert answer.status_code == 400 and answer.json()["error"]["code"] is None and inner.chats == []


def streamed(answer: httpx.Response) -> list[dict[str, Any]]:
    events = [event.removeprefix("data: ") for event in answer.text.split("\n\n") if event]
    assert events[-1] == "[DONE]"
    return [choice for event in events[:-1] for choice in json.loads(event)["choices"]]


def test_several_greedy_replies_are_one_several_times(ask: Ask) -> None:
    inner = Inner("yes")
    answer = ask(inner, {**HELLO, "n": 3, "temperature": 0})
    choices = answer.json()["choices"]
    assert [(choice["index"], choice["message"]["content"]) for choice in choices] == [(n, "yes") for n in range(3)]
    assert json.loads(inner.chats[0])["n"] == 1
    choices = streamed(ask(Inner("yes"), {**HELLO, "n": 2, "stream": True}))
    assert ["".join(c["delta"].get("content", "") for c in choices if c["index"] == n) for n in (0, 1)] == ["yes"] * 2
    inner = Inner("yes")
    ask(inner, body := json.dumps({**HELLO, "n": 3, "temperature": 1}).encode())
    assert inner.chats == [body], "samples differ: they are vLLM's"


@pytest.mark.parametrize("number", [0, -1, 129, 10**9, 2.5, "3"])
def test_a_wrong_number_of_replies_is_refused(ask: Ask, number: Any) -> None:
    inner = Inner()
    answer = ask(inner, {**HELLO, "n": number})
    assert answer.status_code == 400 and inner.chats == []
    assert (
        answer.json()["error"]["type"] == "invalid_request_error" and "n must be" in answer.json()["error"]["message"]
    )


def test_a_schema_without_a_bottom_is_refused(ask: Ask) -> None:
    schema: dict[str, Any] = {}
    for _ in range(600):
        schema = {"type": "array", "items": schema}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    answer = ask(Inner(), {**HELLO, "response_format": wanted})
    assert answer.status_code == 400 and "not a chat request" in answer.json()["error"]["message"]


def test_a_forced_function_is_called(ask: Ask) -> None:
    form = next(form for form in FORMS if form.contract == "leaderboard-call")
    inner = Inner('{"ordered_models":[]}')
    message = ask(inner, form.request).json()["choices"][0]["message"]
    assert message["content"] is None and message["tool_calls"][0]["type"] == "function"
    assert message["tool_calls"][0]["function"] == {
        "name": "make_partial_leaderboard",
        "arguments": '{"ordered_models":[]}',
    }
    assert json.loads(inner.chats[0])["tool_choice"] == "none"
    deltas = [choice["delta"] for choice in streamed(ask(Inner('{"a":1}'), {**form.request, "stream": True}))]
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert calls[0]["function"]["name"] == "make_partial_leaderboard" and calls[0]["id"]
    assert "".join(call["function"]["arguments"] for call in calls) == '{"a":1}'
    unknown = {**form.request, "tool_choice": {"type": "function", "function": {"name": "other"}}}
    assert ask(Inner(), unknown).status_code == 400


@pytest.mark.parametrize("nothing", ["", " ", "\n\t \n"])
def test_a_reply_that_says_nothing_is_asked_for_once_more(ask: Ask, nothing: str) -> None:
    for stream in (False, True):
        inner = Inner(nothing, "text")
        answer = ask(inner, {**HELLO, "stream": stream})
        assert len(inner.chats) == 2 and json.loads(inner.chats[1])["structured_outputs"]["regex"].startswith(r"\S")
        if stream:
            assert "".join(choice["delta"].get("content", "") for choice in streamed(answer)) == "text"
        else:
            assert answer.json()["choices"][0]["message"]["content"] == "text"
        inner = Inner("text")
        ask(inner, {**HELLO, "stream": stream})
        assert len(inner.chats) == 1


@pytest.mark.parametrize(
    "constraint", [{"structured_outputs": {"regex": " *"}}, {"response_format": {"type": "json_object"}}]
)
def test_a_blank_reply_to_a_constraint_is_the_clients_own(ask: Ask, constraint: dict[str, Any]) -> None:
    for stream in (False, True):
        inner = Inner(" ", "text")
        answer = ask(inner, {**HELLO, **constraint, "stream": stream}, headers=OURS)
        assert answer.status_code == 200 and len(inner.chats) == 1


def test_a_client_that_hung_up_leaves_nothing_to_rewrite(ask: Ask) -> None:
    class Left(Inner):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"null"})

    assert ask(Left(), {**HELLO, "n": 2}).json() is None


def test_a_stream_of_calls_says_something(ask: Ask) -> None:
    class Calling(Inner):
        def pieces(self, reply: str) -> list[dict[str, Any]]:
            return [{"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": reply}}]}, {}]

    inner = Calling("{}")
    choices = streamed(ask(inner, {**HELLO, "stream": True}))
    assert len(inner.chats) == 1 and any("tool_calls" in choice["delta"] for choice in choices)


def test_a_stream_goes_on_as_it_is(ask: Ask) -> None:
    answer = ask(Inner("four"), {**HELLO, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-critic-contract"] == "none"
    assert "".join(choice["delta"].get("content", "") for choice in streamed(answer)) == "four"


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


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
