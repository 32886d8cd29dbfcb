"""Replies on their way from vLLM to a client: whole ones, streams, and errors in OpenAI's shape."""

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import Any

import msgspec
from dialects import Dialect
from schemas import Limits

from critic.backends.openai import TOO_LONG

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

RETRY_SECONDS = 10
ENDING = {
    "EngineCore encountered an issue": "the engine has ended, and the server is about to",
    "EngineDeadError": "the engine has ended, and the server is about to",
    "cannot schedule new futures after shutdown": "the server is stopping, and only finishes what it has begun",
}
"""What vLLM says of every request once its engine has died, or it was asked to end, and what that means."""

ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


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


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it goes on: its body, and what its reply needs. `request` is what the client sent, `copies` how
    often a choice is repeated, `tool` the function whose arguments the text is; `trim` takes the end of the text out
    of its logprobs. The reply has up to `tokens`, and `needed` have to be left for it; `tight` makes the body to send
    where it is cut off of the tokens that are left, and says what it limits. `warnings` stand in the reply."""

    request: dict[str, Any]
    dialect: Dialect
    body: bytes
    headers: Headers
    stream: bool = False
    copies: int = 1
    tool: str | None = None
    trim: bool = False
    tight: Callable[[int], tuple[bytes, Limits]] | None = None
    tokens: int = 0
    needed: int = 0
    warnings: list[str] = []

    @property
    def rewrites(self) -> bool:
        return self.copies > 1 or self.tool is not None or self.trim or bool(self.warnings)


class Events:
    """The `send` of a streamed reply: gives it its headers and what its contract needs."""

    def __init__(self, asked: Asked, send: Send) -> None:
        self.asked, self.send = asked, send
        self.start: Message = {}
        self.held: list[bytes] = []
        self.rest = b""
        self.is_stream = self.started = False

    @property
    def said_nothing(self) -> bool:
        return self.is_stream and not self.started

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.start = message
            kind = dict(message.get("headers", [])).get(b"content-type", b"")
            self.is_stream = message["status"] == HTTPStatus.OK and kind.startswith(b"text/event-stream")
        elif message["type"] == "http.response.body":
            *events, self.rest = (self.rest + message.get("body", b"")).split(b"\n\n")
            for event in events:
                await self._event(event + b"\n\n")

    async def _event(self, event: bytes) -> None:
        event, has_text = self._changed(event)
        self.held.append(event)
        if self.is_stream and (self.started or has_text):
            await self._release(more=True)

    def _changed(self, event: bytes) -> tuple[bytes, bool]:
        """The event as the client gets it, and whether it says something (a space does not; an error does)."""
        data = event.removeprefix(b"data: ").strip()
        if not event.startswith(b"data: ") or data == b"[DONE]" or (self.started and not self.asked.rewrites):
            return event, False
        chunk = json.loads(data)
        choices = chunk.get("choices", [])
        says = "error" in chunk or any(says_something(choice) for choice in choices)
        if self.asked.rewrites and choices:
            chunk = rewritten(chunk, self.asked)
            event = b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n"
        return event, says

    async def _release(self, more: bool) -> None:
        if not self.started:
            self.started = True
            headers = [*self.start["headers"], *self.asked.headers]
            await self.send({**self.start, "headers": headers})
        body, self.held = b"".join(self.held), []
        await self.send({"type": "http.response.body", "body": body, "more_body": more})

    async def close(self) -> None:
        """End the reply with what is left of it."""
        if not self.start:
            return
        if self.is_stream:
            self.held.append(self.rest)
            await self._release(more=False)
        else:
            body = b"".join(self.held) + self.rest
            answer = Answer(self.start["status"], list(self.start["headers"]), body)
            await send_answer(self.send, shaped(answer, self.asked.headers))


def rewritten(reply: dict[str, Any], asked: Asked) -> dict[str, Any]:
    """A reply, or a stream's piece of one, as its client needs it."""
    if asked.trim:
        reply = {**reply, "choices": [_without_end(choice) for choice in reply["choices"]]}
    if asked.tool is not None:
        reply = asked.dialect.called(asked.request, reply, asked.tool)
    if asked.copies > 1:
        copied = [{**choice, "index": copy} for copy in range(asked.copies) for choice in reply["choices"]]
        reply = {**reply, "choices": copied}
    return reply | ({"warnings": asked.warnings} if asked.warnings else {})


def _without_end(choice: dict[str, Any]) -> dict[str, Any]:
    """The choice without the token that ended it: in OpenAI's logprobs the text's last token is the last."""
    logprobs, message = choice.get("logprobs") or {}, choice.get("message") or choice.get("delta") or {}
    tokens = logprobs.get("content")
    if choice.get("finish_reason") != "stop" or not tokens:
        return choice
    if (message.get("content") or "").endswith(tokens[-1]["token"]):
        return choice
    return {**choice, "logprobs": {**logprobs, "content": tokens[:-1]}}


def says_something(choice: dict[str, Any]) -> bool:
    """Whether a choice, or a stream's piece of one, has anything for its client: a text, thoughts, a refusal or a call.
    One that was cut off at its limit has all that it can get."""
    message = choice.get("message") or choice.get("delta") or {}
    texts = (message.get(key) for key in ("content", "reasoning", "reasoning_content", "refusal"))
    said = any(isinstance(text, str) and text.strip() for text in texts)
    return (
        said
        or bool(message.get("tool_calls") or message.get("function_call"))
        or choice.get("finish_reason") == "length"
    )


def shaped(answer: Answer, extra: Iterable[tuple[bytes, bytes]] = ()) -> Answer:
    """An error in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`, `code` a word or null."""
    try:
        given = json.loads(answer.body)
    except ValueError:
        given = {"detail": answer.body.decode("utf-8", "replace")[:1000]}
    error = given.get("error", given.get("detail", given)) if isinstance(given, dict) else given
    details = error if isinstance(error, dict) else {}
    message = str(details.get("message") or error)
    code = details.get("code") if isinstance(details.get("code"), str) else None
    if any(sign in message for sign in TOO_LONG) and code is None:
        code = "context_length_exceeded"
    if code == "context_length_exceeded" and code not in message:
        message = f"{message} ({code})"
    status = answer.status
    ending = next((meaning for sign, meaning in ENDING.items() if sign in message), None)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and ending:
        status, message = HTTPStatus.SERVICE_UNAVAILABLE, ending
    kind = ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    body = json.dumps({"error": {"message": message, "type": kind, "param": details.get("param"), "code": code}})
    headers = [*resized(answer.headers, body.encode()), *extra]
    headers = [(name, value) for name, value in headers if name.lower() != b"content-type"]
    if status == HTTPStatus.SERVICE_UNAVAILABLE and not any(name.lower() == b"retry-after" for name, _ in headers):
        headers.append((b"retry-after", str(RETRY_SECONDS).encode()))
    return Answer(status, [*headers, (b"content-type", b"application/json")], body.encode())


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
                await send_answer(
                    send, shaped(Answer(failed["status"], list(failed.get("headers", [])), b"".join(parts)))
                )

    return sending


async def send_answer(send: Send, answer: Answer) -> None:
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": answer.body})


async def send_error(send: Send, status: int, code: str | None, message: str, headers: Headers | None = None) -> None:
    body = json.dumps({"error": {"message": message, "code": code}}).encode()
    await send_answer(send, shaped(Answer(status, headers or [], body)))


def sized(scope: Scope, body: bytes) -> Scope:
    return {**scope, "headers": resized(scope["headers"], body)}


def resized(headers: Iterable[tuple[bytes, bytes]], body: bytes) -> Headers:
    kept = [(name, value) for name, value in headers if name.lower() != b"content-length"]
    return [*kept, (b"content-length", str(len(body)).encode())]


def warning(send: Send, warnings: list[str]) -> Send:
    """`send` that puts the warnings into the response that events of a stream of /v1/responses carry: the first
    and the last do."""
    rest = b""

    def changed(event: bytes) -> bytes:
        name, mark, data = event.partition(b"data: ")
        if not mark or b'"response"' not in data:
            return event
        said = json.loads(data)
        if not isinstance(said.get("response"), dict):
            return event
        said["response"]["warnings"] = warnings
        return name + mark + json.dumps(said, ensure_ascii=False).encode()

    async def sending(message: Message) -> None:
        nonlocal rest
        if message["type"] == "http.response.body":
            *events, rest = (rest + message.get("body", b"")).split(b"\n\n")
            body = b"".join(changed(event) + b"\n\n" for event in events)
            if not message.get("more_body", False):
                body, rest = body + rest, b""
            message = {**message, "body": body}
        await send(message)

    return sending if warnings else send


def with_headers(send: Send, headers: Headers) -> Send:
    """`send` that adds headers to the answer."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *headers]}
        await send(message)

    return sending
