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
        about: dict[str, Any] | None = None,
        as_learned: bool = False,
    ) -> httpx.Response:
        settings: dict[str, Any] = {
            "about": about or {},
            "model": "judge@1",
            "aliases": ["gpt-4"],
            "contracts": [],
            "max_bytes": max_bytes,
            "images": images,
            "as_learned": as_learned,
        }
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
