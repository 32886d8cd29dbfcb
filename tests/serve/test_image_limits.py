"""Which images a judge that sees takes: data URIs, files below a folder, and from the network only what is named."""

import base64
import importlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from clients.forms import FORMS
from clients.inner import Ask, Inner
from PIL import Image as Pillow

pytest_plugins = ["clients.asking"]


def png(side: int = 8, colour: str = "red") -> bytes:
    out = io.BytesIO()
    Pillow.new("RGB", (side, side), colour).save(out, "PNG")
    return out.getvalue()


def uri(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def showing(*addresses: str, text: str = "hello") -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": each}} for each in addresses]
    return {"model": "gpt-4", "messages": [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]}


RULES = {"most": 2, "max_bytes": 5000, "max_pixels": 400, "domains": ["pictures.example"]}


@pytest.fixture
def rules(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.png").write_bytes(png())
    (tmp_path / "in/torn.png").write_bytes(png()[:50])
    (tmp_path / "outside.png").write_bytes(png())
    (tmp_path / "in/link.png").symlink_to(tmp_path / "outside.png")
    return {**RULES, "folder": str(tmp_path / "in")}


def test_what_is_let_through_goes_on_byte_for_byte(ask: Ask, rules: dict[str, Any]) -> None:
    for shown in (
        [uri(png())], [uri(png()), uri(png(9))], [f"file://{rules['folder']}/a.png"], ["https://pictures.example/a.png"],
    ):  # fmt: skip
        inner, body = Inner(), json.dumps(showing(*shown)).encode()
        answer = ask(inner, body, images=True, rules=rules)
        assert answer.status_code == 200 and inner.chats == [body]


REFUSED = {
    "three": ([uri(png())] * 3, "too_many_images"),
    "large": ([uri(png(30))], "image_too_large"),
    "heavy": ([f"data:image/png;base64,{'A' * 9000}"], "image_too_large"),
    "torn": ([uri(png()[:50])], "image_unreadable"),
    "no image": (["data:image/png;base64,aGVsbG8="], "image_unreadable"),
    "bare path": (["/etc/passwd"], "image_unreadable"),
    "missing": (["file://FOLDER/none.png"], "image_missing"),
    "torn file": (["file://FOLDER/torn.png"], "image_unreadable"),
    "above": (["file://FOLDER/../outside.png"], "image_outside_root"),
    "linked": (["file://FOLDER/link.png"], "image_outside_root"),
    "elsewhere": (["file:///etc/hostname"], "image_outside_root"),
    "network": (["http://127.0.0.1:9/a.png"], "image_outside_root"),
    "other host": (["https://pictures.example.org/a.png"], "image_outside_root"),
    "user part": (["https://pictures.example@evil.example/a.png"], "image_outside_root"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/tokenize", "/classify"])
def test_each_violation_is_a_400_with_its_name(ask: Ask, rules: dict[str, Any], name: str, path: str) -> None:
    addresses, code = REFUSED[name]
    request = showing(*(each.replace("FOLDER", rules["folder"]) for each in addresses))
    if path == "/v1/responses":
        parts = request["messages"][0]["content"]
        said = [
            {"type": "input_image", "image_url": part["image_url"]["url"]}
            if part["type"] == "image_url"
            else {"type": "input_text", "text": part["text"]}
            for part in parts
        ]
        request = {"model": "gpt-4", "input": [{"role": "user", "content": said}]}
    for body in (json.dumps(request), json.dumps(request).replace("image_url", "image\\u005furl")):
        inner = Inner()
        answer = ask(inner, body.encode(), path=path, images=True, rules=rules)
        assert answer.status_code == 400 and answer.json()["error"]["code"] == code, answer.text
        assert inner.chats == [], "vLLM never saw it"


def anthropic(address: str, inside: bool) -> dict[str, Any]:
    """Anthropic's form of a request: an image of its own or one of a tool's result."""
    head, _, data = address.partition(";base64,")
    source = {"type": "base64", "media_type": head.removeprefix("data:"), "data": data}
    image = {"type": "image", "source": source if data else {"type": "url", "url": address}}
    part = {"type": "tool_result", "tool_use_id": "t", "content": [image]} if inside else image
    return {"model": "gpt-4", "max_tokens": 9, "messages": [{"role": "user", "content": [part]}]}


@pytest.mark.parametrize("name", [name for name, (addresses, _) in REFUSED.items() if len(addresses) == 1])
@pytest.mark.parametrize("inside", [False, True])
def test_anthropics_images_are_looked_at_too(ask: Ask, rules: dict[str, Any], name: str, inside: bool) -> None:
    (address,), code = REFUSED[name]
    inner = Inner()
    request = anthropic(address.replace("FOLDER", rules["folder"]), inside)
    answer = ask(inner, request, path="/v1/messages", images=True, rules=rules)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == code and inner.paths == []
    for good in (uri(png()), "https://pictures.example/a.png"):
        inner = Inner()
        ask(inner, anthropic(good, inside), path="/v1/messages", images=True, rules=rules)
        assert inner.paths == ["/v1/messages"]
    many = anthropic(uri(png()), inside)
    many["messages"][0]["content"] *= 3
    answer = ask(Inner(), many, path="/v1/messages", images=True, rules=rules)
    assert answer.json()["error"]["code"] == "too_many_images"


@pytest.mark.parametrize("written", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32", "utf-32-be"])
def test_no_encoding_of_a_request_goes_round_the_rules(ask: Ask, rules: dict[str, Any], written: str) -> None:
    """What reads the body behind us guesses its encoding."""
    inner = Inner()
    body = json.dumps(showing("http://127.0.0.1:9/a.png")).encode(written)
    answer = ask(inner, body, images=True, rules=rules)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "image_outside_root" and inner.chats == []


def test_no_depth_of_a_request_goes_round_the_rules(ask: Ask, rules: dict[str, Any]) -> None:
    part = json.dumps({"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/a.png"}})
    body = ('{"messages": [' + '{"content": [' * 900 + part + "]}" * 901).encode()
    assert ask(Inner(), body, images=True, rules=rules).json()["error"]["code"] == "image_outside_root"


def test_an_address_that_shows_nothing_is_no_image(ask: Ask, rules: dict[str, Any]) -> None:
    inner = Inner()
    schema = {"type": "object", "properties": {"image_url": {"type": "string", "default": "https://x.y/z"}}}
    fields = {
        "metadata": {"trace_url": "https://x.y/z", "image_url": "https://x.y/z"},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
    }
    answer = ask(inner, body := json.dumps({**showing(uri(png())), **fields}).encode(), images=True, rules=rules)
    assert answer.status_code == 200 and inner.chats == [body]


def test_vllm_is_always_told_from_where_it_may_fetch() -> None:
    """It takes an empty list for every host."""
    rules: Any = importlib.import_module("image_limits").Rules
    assert rules().words() == ["--allowed-media-domains", "none.invalid"]
    assert rules(domains=["a.example"]).words() == ["--allowed-media-domains", "a.example"]


def test_no_clients_picture_is_kept(rules: dict[str, Any]) -> None:
    image_limits: Any = importlib.import_module("image_limits")
    gate = image_limits.Gate(image_limits.Rules(**rules))
    held = uri(png())
    before = sys.getrefcount(held)
    for shown in (held, f"file://{rules['folder']}/a.png"):
        gate.check(json.loads(json.dumps(showing(shown))))
        gate._look(shown)
    assert sys.getrefcount(held) == before and gate._images._kept.cache_info().currsize == 0


def test_without_a_folder_no_file_is_read(ask: Ask, rules: dict[str, Any]) -> None:
    answer = ask(Inner(), showing(f"file://{rules['folder']}/a.png"), images=True)
    assert answer.status_code == 400 and "--allowed-local-media-path" in answer.json()["error"]["message"]


def test_images_pass_under_every_contract(ask: Ask, rules: dict[str, Any]) -> None:
    """With an image in front of its words every client's request is held to the form that it has without."""
    for form in FORMS:
        given = form.request
        last = given["messages"][-1]
        text = last["content"]
        parts = text if isinstance(text, list) else [{"type": "text", "text": text}]
        parts = [part for part in parts if part.get("type") == "text"]
        shown = [{"type": "image_url", "image_url": {"url": uri(png())}}, *parts]
        inner = Inner()
        answer = ask(
            inner,
            {**given, "messages": [*given["messages"][:-1], {**last, "content": shown}]},
            images=True,
            rules=rules,
        )
        assert answer.headers["x-critic-contract"] == form.contract, form
        assert all("data:image/png" in chat.decode() for chat in inner.chats) and inner.chats, form
