"""An inner server that keeps what the layer asks it, in vLLM's place."""

import json
from collections.abc import Callable
from typing import Any

import httpx
from serving import chat_request

Ask = Callable[..., httpx.Response]
CONTEXT = 1000
LIMITS = ("max_completion_tokens", "max_tokens")


async def respond(send: Any, body: object) -> None:
    """Answer a request with JSON, by ASGI."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


def get_max_tokens(context: int, limit: int | None, prompt: int) -> int:
    """vLLM's own rule."""
    return min(context - prompt, limit or context)


class Inner:
    """An inner server that keeps what it is asked to generate, with the limit that vLLM would set. `replies` are given
    in turn, the last one for ever; every prompt has so many `tokens`."""

    def __init__(self, *replies: str, tokens: int = 20, status: int = 200, error: Any = None) -> None:
        self.replies, self.tokens, self.status, self.error = list(replies) or ["fine"], tokens, status, error
        self.chats: list[bytes] = []
        self.paths: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.paths.append(scope["path"])
        body = (await receive())["body"] if scope["method"] == "POST" else b""
        headers, status = [(b"content-type", b"application/json")], 200
        if scope["path"] == "/v1/models":
            parts = [json.dumps({"data": [{"id": "judge@1", "max_model_len": CONTEXT}]})]
        elif scope["path"] != "/v1/chat/completions":
            status, parts = 404, ['{"detail":"Not Found"}']
        elif (problem := self.kept(body)) is not None:
            status, parts = 400, [json.dumps({"error": {"message": problem, "code": 400}})]
        else:
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
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for part in parts:
            await send({"type": "http.response.body", "body": part.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def kept(self, body: bytes) -> str | None:
        """What vLLM would say against a request; None for one that is kept."""
        try:
            request = json.loads(body)
            name = next((name for name in LIMITS if request.get(name) is not None), None)
            limit = int(request[name]) if name else None
            if limit and limit > CONTEXT:
                return "max_tokens is greater than the context"
            tokens = chat_request.checking(get_max_tokens)(CONTEXT, limit, self.tokens)
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            return str(error)
        self.chats.append(json.dumps({**request, name: tokens}).encode() if limit and tokens < limit else body)
        return None

    def choice(self, reply: str) -> dict[str, Any]:
        return {"index": 0, "message": {"role": "assistant", "content": reply}, "finish_reason": "stop"}

    def pieces(self, reply: str) -> list[dict[str, Any]]:
        return [{"content": letter} for letter in reply] + [{}]

    def event(self, delta: dict[str, Any]) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}
        return f"data: {json.dumps({'id': 'chatcmpl-1', 'choices': [choice]})}\n\n"


def streamed(answer: httpx.Response) -> list[dict[str, Any]]:
    events = [event.removeprefix("data: ") for event in answer.text.split("\n\n") if event]
    assert events[-1] == "[DONE]"
    return [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
