"""Replies on their way from vLLM to a client: whole ones, streams, and errors in OpenAI's shape."""

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import Any

import msgspec
from api_formats import called
from schemas import Limits

from critic.backends.openai import TOO_LONG

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

ENDING = {
    "EngineCore encountered an issue": "the engine has ended, and the server is about to",
    "EngineDeadError": "the engine has ended, and the server is about to",
    "cannot schedule new futures after shutdown": "the server is stopping, and only finishes what it has begun",
}
"""What vLLM says of every request once its engine has died, or it was asked to end, and what that means."""

ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


MOST_MESSAGE = 2000
"""Characters of an error's message, which may repeat what the client sent."""


class Refusal(Exception):
    """A request that is answered with an error; `code` is OpenAI's word for it."""

    def __init__(self, status: int, code: str | None, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Answer(msgspec.Struct, frozen=True):
    """A whole reply of the inner server."""

    status: int
    headers: Headers
    body: bytes

    def with_body(self, body: bytes, more: Iterable[tuple[bytes, bytes]] = ()) -> "Answer":
        return Answer(self.status, [*resized(self.headers, body), *more], body)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it goes on: its body, and what its reply needs. `request` is what the client sent, `tool` the
    function whose arguments the text is; `trim` takes the end of the text out of its logprobs. The reply has up to
    `tokens`, and `needed` have to be left for it; `tight` makes the body to send where it is cut off of the tokens that
    are left, and says what it limits."""

    request: dict[str, Any]
    body: bytes
    headers: Headers
    stream: bool = False
    tool: str | None = None
    trim: bool = False
    tight: Callable[[int], tuple[bytes, Limits]] | None = None
    tokens: int = 0
    needed: int = 0

    @property
    def rewrites(self) -> bool:
        return self.tool is not None or self.trim


def rewritten(reply: dict[str, Any], asked: Asked) -> dict[str, Any]:
    """A reply, or a stream's piece of one, as its client needs it."""
    if asked.trim:
        reply = {**reply, "choices": [_without_end(choice) for choice in reply["choices"]]}
    if asked.tool is not None:
        reply = called(asked.request, reply, asked.tool)
    return reply


def _without_end(choice: dict[str, Any]) -> dict[str, Any]:
    """The choice without the token that ended it: in OpenAI's logprobs the text's last token is the last."""
    logprobs, message = choice.get("logprobs") or {}, choice.get("message") or choice.get("delta") or {}
    tokens = logprobs.get("content")
    if choice.get("finish_reason") != "stop" or not tokens:
        return choice
    if (message.get("content") or "").endswith(tokens[-1]["token"]):
        return choice
    return {**choice, "logprobs": {**logprobs, "content": tokens[:-1]}}


def shaped(answer: Answer, extra: Iterable[tuple[bytes, bytes]] = ()) -> Answer:
    """An error in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`, `code` a word or null."""
    details, message = _details(answer.body)
    status, code = answer.status, details.get("code") if isinstance(details.get("code"), str) else None
    if code is None and any(sign in message for sign in TOO_LONG):
        code = "context_length_exceeded"
    if code == "context_length_exceeded" and code not in message:
        message = f"{message} ({code})"
    ending = next((meaning for sign, meaning in ENDING.items() if sign in message), None)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and ending:
        status, message = HTTPStatus.SERVICE_UNAVAILABLE, ending
    kind = ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    error = {"message": message[:MOST_MESSAGE], "type": kind, "param": details.get("param"), "code": code}
    body = json.dumps({"error": error}).encode()
    headers = [header for header in resized(answer.headers, body) if header[0].lower() != b"content-type"]
    headers += [*extra, (b"content-type", b"application/json")]
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append((b"retry-after", b"10"))
    return Answer(status, headers, body)


def _details(body: bytes) -> tuple[dict[str, Any], str]:
    """What an error of any shape says: its fields, and its message."""
    try:
        payload = json.loads(body)
    except ValueError:
        payload = body.decode("utf-8", "replace")[:1000]
    error = payload.get("error", payload.get("detail", payload)) if isinstance(payload, dict) else payload
    details = error if isinstance(error, dict) else {}
    return details, str(details.get("message") or error)


def shaping(send: Send) -> Send:
    """`send` that gives errors OpenAI's shape and passes everything else on."""
    failed: Message | None = None
    parts: list[bytes] = []

    async def sending(message: Message) -> None:
        nonlocal failed
        if message["type"] == "http.response.start" and message["status"] >= HTTPStatus.BAD_REQUEST:
            failed = message
        elif failed is None:
            await send(message)
        else:
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                answer = Answer(failed["status"], list(failed.get("headers", [])), b"".join(parts))
                await send_answer(send, shaped(answer))

    return sending


async def send_answer(send: Send, answer: Answer) -> None:
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": answer.body})


async def send_error(send: Send, problem: Refusal) -> None:
    body = json.dumps({"error": {"message": str(problem), "code": problem.code}}).encode()
    headers = [(b"www-authenticate", b"Bearer")] if problem.status == HTTPStatus.UNAUTHORIZED else []
    await send_answer(send, shaped(Answer(problem.status, headers, body)))


def sized(scope: Scope, body: bytes) -> Scope:
    return {**scope, "headers": resized(scope["headers"], body)}


def resized(headers: Iterable[tuple[bytes, bytes]], body: bytes) -> Headers:
    kept = [(name, value) for name, value in headers if name.lower() != b"content-length"]
    return [*kept, (b"content-length", str(len(body)).encode())]


def rewriting(send: Send, asked: Asked) -> Send:
    """`send` of a stream whose events its client needs `rewritten`."""
    rest = b""

    def changed(event: bytes) -> bytes:
        data = event.removeprefix(b"data: ")
        if data in (event, b"[DONE]") or not (chunk := json.loads(data)).get("choices"):
            return event
        return b"data: " + json.dumps(rewritten(chunk, asked), ensure_ascii=False).encode()

    async def sending(message: Message) -> None:
        nonlocal rest
        if message["type"] == "http.response.body":
            *events, rest = (rest + message.get("body", b"")).split(b"\n\n")
            body = b"".join(changed(event) + b"\n\n" for event in events)
            if not message.get("more_body", False):
                body, rest = body + rest, b""
            message = {**message, "body": body}
        await send(message)

    return sending if asked.rewrites else send


def with_headers(send: Send, headers: Headers) -> Send:
    """`send` that adds headers to the answer."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *headers]}
        await send(message)

    return sending
