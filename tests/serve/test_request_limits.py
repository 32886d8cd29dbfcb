"""What a server of the layer does with requests that would cost it too much: a real one, on the loopback address."""

import contextlib
import itertools
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from clients.inner import Inner, respond

uvicorn = pytest.importorskip("uvicorn", reason="needs a serve extra")
pytest_plugins = ["clients.asking"]

CHAT, KEY = "/v1/chat/completions", {"Authorization": "Bearer secret"}
TURNS = [{"role": "user", "content": "hello"}]
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}
CIRCLE = {
    "$defs": {
        "one": {"type": "object", "properties": {"two": {"$ref": "#/$defs/two"}}, "required": ["two"]},
        "two": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/two"}]}, "minItems": 1},
    },
    "allOf": [{"$ref": "#/$defs/one"}],
}


def either(branch: dict[str, Any]) -> dict[str, Any]:
    """A list of nodes that ends where `branch` allows it."""
    following = {"anyOf": [{"$ref": "#/$defs/node"}, branch]}
    return {"$ref": "#/$defs/node", "$defs": {"node": {**NODE, "properties": {"next": following}}}}


@pytest.fixture
def url(build_layer: Callable[..., Any]) -> Iterator[str]:
    """A server of the layer before an inner one that answers at once."""
    answering = Inner()

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/health":
            await respond(send, {})
        else:
            await answering(scope, receive, send)

    app = build_layer(inner, key="secret", max_bytes=32_000_000)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", timeout_keep_alive=30))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@contextlib.contextmanager
def asking_for_health(url: str) -> Iterator[list[float]]:
    """Ask /health without end during the block: the seconds that each answer took."""
    waits, done = list[float](), threading.Event()

    def ask() -> None:
        with httpx.Client() as client:
            while not done.wait(0.01):
                began = time.monotonic()
                assert client.get(f"{url}/health").status_code == 200
                waits.append(time.monotonic() - began)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield waits
    finally:
        done.set()
        thread.join()


def schema(wanted: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": wanted}}}


REFUSED = {
    "choices": ({"structured_outputs": {"choice": [f"label {number}" for number in range(100_000)]}}, "2,000"),
    "a million choices": ({"structured_outputs": {"choice": list(map(str, range(1_000_000)))}}, "500,000"),
    "enum": (schema({"properties": {"a": {"enum": list(range(2001))}}}), "enum has 2,001 entries; at most 2,000"),
    "branches": ({"structured_outputs": {"json": json.dumps({"anyOf": [{"const": 1}] * 3000})}}, "anyOf has 3,000"),
    "compared": (schema({"oneOf": [{"const": number} for number in range(65)]}), "oneOf has 65 entries; at most 64"),
    "patterns": (schema({"patternProperties": {f"^{at}": {} for at in range(65)}}), "patternProperties has 65"),
    "least items": (schema({"type": "array", "minItems": 10**9}), "minItems of a schema is 1e+09; at most 99,999"),
    "most items": ({"structured_outputs": {"json": '{"maxItems": 1e9}'}}, "maxItems of a schema is 1e+09"),
    "stop": ({"stop": ["x"] * 3000}, "stop has 3,000"),
    "regex": ({"structured_outputs": {"regex": "a" * 1_000_000}}, "at most 20,000"),
    "grammar": ({"structured_outputs": {"grammar": "a" * 1_000_000}}, "at most 20,000"),
    "pattern": (schema({"type": "string", "pattern": "(a|b)?" * 170_000}), "pattern has 1,020,000 characters"),
    "long words": (schema({"const": "x" * 600_000}), "response_format has more than 500,000 characters"),
    "itself": (schema({"$ref": "#"}), "requires itself"),
    "a node": (schema({**NODE, "$defs": {"node": NODE}}), "requires itself"),
    "a circle": ({"structured_outputs": {"json": CIRCLE}}, "requires itself"),
    "a circle in a text": ({"structured_outputs": {"json": json.dumps(CIRCLE)}}, "requires itself"),
    "a tool's": ({"tools": [{"type": "function", "function": {"name": "f", "parameters": CIRCLE}}]}, "requires itself"),
    "no way out": (schema(either({"type": "array", "items": {"$ref": "#"}, "minItems": 1})), "requires itself"),
    "half in a turn": ({"messages": [{"role": "user", "content": "a\udfffb"}]}, "holds half"),
    "half in a key": ({"metadata": {"\udc00": 1}}, "holds half"),
    "halves in order": ({"user": "\udc00\ud800"}, "holds half"),
}


@pytest.mark.usefixtures("without_collection")
def test_what_costs_too_much_is_refused_at_once_and_health_is_answered(url: str) -> None:
    turns = {"messages": TURNS, "input": "hello"}
    bodies = [(json.dumps({**turns, **fields}).encode(), said) for fields, said in REFUSED.values()]
    least, said = json.dumps({**turns, **REFUSED["least items"][0]}), REFUSED["least items"][1]
    bodies += [(least.replace("minItems", "min\\u0049tems").encode(), said), (least.encode("utf-16"), said)]
    with asking_for_health(url) as waits, httpx.Client() as client:
        for body, said in bodies:
            for path in (CHAT, "/v1/completions", "/v1/responses"):
                began = time.monotonic()
                answer = client.post(url + path, content=body, headers=KEY)
                assert answer.status_code == 400 and said in answer.json()["error"]["message"], answer.text
                assert time.monotonic() - began < 2, said
    assert sorted(waits)[len(waits) // 2] < 0.1 and max(waits) < 3, "once it was 23 s"


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"choice": [f"label {number}" for number in range(2000)]}},
        {"structured_outputs": {"regex": "a" * 20_000}},
        schema(either({"type": "null"})),
        schema(either({"$ref": "#/$defs/none"})),
        schema({"type": "object", "properties": {"schema": {"$ref": "#"}}}),
        schema({"type": "object", "properties": {"enum": {"type": "array", "items": {"$ref": "#"}}}}),
        {"messages": [{"role": "user", "content": "half is \\ud800, a whole one \U0001f600"}]},
        {"messages": [{"role": "user", "content": json.dumps({"stop": ["x"] * 3000, "regex": "a" * 30_000})}]},
        {"messages": [{"role": "user", "content": '{"text": {"$ref": "#"}}'}]},
        {"messages": [{"role": "user", "content": 'Answer: {"tags": {"maxItems": 1000000}}'}]},
        {"metadata": {"said": '{"maxItems": 1000000}'}},
    ],
)
def test_what_stays_within_the_bounds_goes_on(url: str, fields: dict[str, Any]) -> None:
    for dumped in (
        json.dumps({"messages": TURNS, **fields}),
        json.dumps({"messages": TURNS, **fields}, ensure_ascii=False),
    ):
        assert httpx.post(url + CHAT, content=dumped.encode(), headers=KEY).status_code == 200


@pytest.mark.usefixtures("without_collection")
def test_a_schema_that_takes_long_leaves_health_answered(url: str) -> None:
    names = {f"k{n}": {"type": "integer", "description": f"{n}" + "1, a " * 200} for n in range(390)}
    body = {"messages": TURNS, **schema({"type": "object", "properties": names})}
    began = time.monotonic()
    with asking_for_health(url) as waits:
        assert httpx.post(url + CHAT, json=body, headers=KEY, timeout=60).status_code == 200
    took = time.monotonic() - began
    assert len(waits) > 10 and max(waits) < took / 2, "all that time on a loaded machine, too"


def test_a_connection_goes_on_with_large_bodies(url: str) -> None:
    """What follows the headers is none of them, in a request that is refused early, too."""
    long = {"messages": [{"role": "user", "content": "x" * 500_000}]}
    with httpx.Client(base_url=url) as client:
        for headers, status in ((KEY, 200), (KEY, 200), ({}, 401), (KEY, 200)):
            assert client.post(CHAT, json=long, headers=headers).status_code == status


TEXTS = [
    *("x " * 18_000, "first then return " * 2000, '{"a":1} ' * 4000, "Question:\n" + "only\n" * 7000),
    "<answer>a" * 4000,
    *("Question:\n" * 3500, "{" + " " * 24_000 + "}", "Return JSON " + '{"score": "<a|b>"} ' * 1800, "输出" * 12_000),
    "Return JSON {" + ",".join(f'"s{number}":"x"' for number in range(1500)) + "}",
]


@pytest.mark.usefixtures("without_collection")
def test_health_is_answered_while_words_are_read(url: str) -> None:
    took = Counter[str]()
    with asking_for_health(url) as waits:
        for text, form in itertools.product(TEXTS, ({}, {"response_format": {"type": "json_object"}})):
            began = time.process_time()
            turns = [{"role": "user", "content": f"Rate the response. {text}"}]
            assert httpx.post(url + CHAT, json={"messages": turns, **form}, headers=KEY, timeout=60).status_code == 200
            took[text[:30]] = max(took[text[:30]], time.process_time() - began)
    assert max(took.values()) < 1.5, took
    assert sorted(waits)[int(len(waits) * 0.9)] < 0.1 and max(waits) < 1, "this machine may be loaded"
