"""The fixture `ask`: one request through the layer to an inner server."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from clients.inner import Inner
from serving import layer


@pytest.fixture
def build_layer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Build the layer before an inner server, with the settings of a text judge except for those that are given."""

    def build(inner: Any, key: str = "", **settings: Any) -> Any:
        usual = {"model": "judge@1", "aliases": ["gpt-4"], "contracts": [], "max_bytes": 10**6, "images": False}
        monkeypatch.setenv(layer.SETTINGS, json.dumps(usual | settings))
        monkeypatch.setenv("VLLM_API_KEY", key)
        return layer.JudgeLayer(inner)

    return build


@pytest.fixture
def inner() -> Inner:
    """An inner server that says "fine" to whatever it is asked."""
    return Inner()


@pytest.fixture
def ask(build_layer: Callable[..., Any]) -> Callable[..., httpx.Response]:
    """One request through the layer to an inner server."""

    def asking(
        inner: Any,
        body: Any = None,
        *,
        path: str = "/v1/chat/completions",
        method: str = "POST",
        headers: dict[str, str] | None = None,
        **settings: Any,
    ) -> httpx.Response:
        app = build_layer(inner, **settings)
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()

        async def once() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://judge") as client:
                return await client.request(method, path, content=content, headers=headers)

        return asyncio.run(once())

    return asking
