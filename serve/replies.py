"""Rewrite vLLM's replies for clients: complete replies, streams, and errors in OpenAI's format."""

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
from api_formats import Headers, Refusal, called
from chat_request import ChatRequest

from critic.backends.openai import TOO_LONG

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

ERRORS: dict[str, dict[str, str]] = msgspec.toml.decode(Path(__file__).with_name("errors.toml").read_bytes())
"""The content of errors.toml, which explains it."""

MOST_MESSAGE = 2000
"""Most characters of an error message, which may repeat text from the client."""


class Answer(msgspec.Struct, frozen=True):
    """A complete HTTP response, of vLLM or composed by the layer."""

    status: int
    headers: Headers
    body: bytes

    def with_body(self, body: bytes, more: Iterable[tuple[bytes, bytes]] = ()) -> "Answer":
        return Answer(self.status, [*resized(self.headers, body), *more], body)


def collect(messages: list[Message]) -> Answer:
    """Join the `messages` of an ASGI application to one response. It has status 500 if there are none."""
    start: Message = messages[0] if messages else {"status": HTTPStatus.INTERNAL_SERVER_ERROR}
    body = b"".join(message.get("body", b"") for message in messages)
    return Answer(start["status"], list(start.get("headers", [])), body)


def rewrites(request: ChatRequest) -> bool:
    """Return True if vLLM's reply must be rewritten for the client."""
    return request.tool is not None or request.trims


def rewrite(reply: dict[str, Any], request: ChatRequest) -> dict[str, Any]:
    """Return a reply, or a chunk of a stream, rewritten for the client.

    If the request forces a function call, the text is turned into that call. The end-of-text token is removed from the
    log probabilities.
    """
    if request.trims:
        reply = {**reply, "choices": [*map(_without_end, reply["choices"])]}
    if request.tool is not None:
        reply = called(request.client, reply, request.tool)
    return reply


def _without_end(choice: dict[str, Any]) -> dict[str, Any]:
    """Return the choice without the log probability of the end-of-text token, which OpenAI's replies do not have."""
    logprobs, message = choice.get("logprobs") or {}, choice.get("message") or choice.get("delta") or {}
    tokens = logprobs.get("content")
    # A reply that was cut off has no token that ended it.
    if choice.get("finish_reason") != "stop" or not tokens:
        return choice
    if (message.get("content") or "").endswith(tokens[-1]["token"]):
        return choice
    return {**choice, "logprobs": {**logprobs, "content": tokens[:-1]}}


def shape_error(answer: Answer, extra: Iterable[tuple[bytes, bytes]] = ()) -> Answer:
    """Return an error response in OpenAI's format: `{"error": {"message", "type", "param", "code"}}`.

    `code` is a string or null. `extra` are headers to add.

    >>> print(shape_error(Answer(404, [], b"no such route")).body.decode())
    {"error": {"message": "no such route", "type": "not_found_error", "param": null, "code": null}}
    >>> ended = shape_error(Answer(500, [], b"EngineDeadError: CUDA"))
    >>> ended.status.value, json.loads(ended.body)["error"]["message"]
    (503, 'the engine has ended, and the server is about to')
    """
    details, message = _details(answer.body)
    status, code = answer.status, details.get("code") if isinstance(details.get("code"), str) else None
    # Clients shorten their prompts at this word only.
    if code is None and any(sign in message for sign in TOO_LONG):
        code = "context_length_exceeded"
    # Some clients look for the word in the message.
    if code == "context_length_exceeded" and code not in message:
        message = f"{message} ({code})"
    ending = next((meaning for sign, meaning in ERRORS["ending"].items() if sign in message), None)
    # Another server, or this one started again, may answer: the client should try later.
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and ending:
        status, message = HTTPStatus.SERVICE_UNAVAILABLE, ending
    kind = ERRORS["types"].get(f"{status:d}", "server_error" if status >= 500 else "invalid_request_error")
    error = {"message": message[:MOST_MESSAGE], "type": kind, "param": details.get("param"), "code": code}
    body = json.dumps({"error": error}).encode()
    headers = [header for header in resized(answer.headers, body) if header[0].lower() != b"content-type"]
    headers += [*extra, (b"content-type", b"application/json")]
    # Clients that retry wait as long as this says.
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append((b"retry-after", b"10"))
    return Answer(status, headers, body)


def _details(body: bytes) -> tuple[dict[str, Any], str]:
    """Return the fields of an error body ({} if it has none) and its message, whatever the body's format."""
    try:
        payload = json.loads(body)
    except ValueError:
        payload = body.decode("utf-8", "replace")[:1000]
    error = payload.get("error", payload.get("detail", payload)) if isinstance(payload, dict) else payload
    details = error if isinstance(error, dict) else {}
    return details, str(details.get("message") or error)


def shape_errors(send: Send) -> Send:
    """Wrap `send` to convert error responses to OpenAI's format. All other messages pass unchanged."""
    failed: list[Message] = []

    async def sending(message: Message) -> None:
        # A stream that has begun is no error: only the first message has a status.
        if failed or message.get("status", HTTPStatus.OK) >= HTTPStatus.BAD_REQUEST:
            failed.append(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                await send_answer(send, shape_error(collect(failed)))
        else:
            await send(message)

    return sending


async def send_answer(send: Send, answer: Answer) -> None:
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": answer.body})


async def send_error(send: Send, problem: Refusal) -> None:
    body = json.dumps({"error": {"message": str(problem), "code": problem.code}}).encode()
    headers = [(b"www-authenticate", b"Bearer")] if problem.status == HTTPStatus.UNAUTHORIZED else []
    await send_answer(send, shape_error(Answer(problem.status, headers, body)))


def resized(headers: Iterable[tuple[bytes, bytes]], body: bytes) -> Headers:
    kept = [(name, value) for name, value in headers if name.lower() != b"content-length"]
    return [*kept, (b"content-length", str(len(body)).encode())]


def rewrite_stream(send: Send, request: ChatRequest) -> Send:
    """Wrap `send` to rewrite each event of a stream for the client of `request`."""
    rest = b""

    def changed(event: bytes) -> bytes:
        data = event.removeprefix(b"data: ")
        # The last events hold usage, or nothing.
        if data in (event, b"[DONE]") or not (chunk := json.loads(data)).get("choices"):
            return event
        return b"data: " + json.dumps(rewrite(chunk, request), ensure_ascii=False).encode()

    async def sending(message: Message) -> None:
        nonlocal rest
        if message["type"] == "http.response.body":
            # A message may end within an event.
            *events, rest = (rest + message.get("body", b"")).split(b"\n\n")
            body = b"".join(changed(event) + b"\n\n" for event in events)
            if not message.get("more_body", False):
                body, rest = body + rest, b""
            message = {**message, "body": body}
        await send(message)

    return sending if rewrites(request) else send


def add_headers(send: Send, headers: Headers) -> Send:
    """Wrap `send` to add `headers` to the response."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *headers]}
        await send(message)

    return sending
