"""An inner server that keeps what the layer asks it, in vLLM's place."""

import json
from collections.abc import Callable
from typing import Any

import httpx

Ask = Callable[..., httpx.Response]


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
        elif scope["path"] == "/v1/responses":
            self.chats.append(body)
            reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
            parts = [json.dumps(self.response(reply), separators=(",", ":"))]
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

    def response(self, reply: str) -> dict[str, Any]:
        content = [{"type": "output_text", "text": reply, "annotations": []}]
        message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
        return {"id": "resp_1", "object": "response", "incomplete_details": None, "output": [message]}

    def pieces(self, reply: str) -> list[dict[str, Any]]:
        return [{"content": letter} for letter in reply] + [{}]

    def event(self, delta: dict[str, Any]) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}
        return f"data: {json.dumps({'id': 'chatcmpl-1', 'choices': [choice]})}\n\n"


def streamed(answer: httpx.Response) -> list[dict[str, Any]]:
    events = [event.removeprefix("data: ") for event in answer.text.split("\n\n") if event]
    assert events[-1] == "[DONE]"
    return [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
