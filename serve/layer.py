"""The judge's layer on vLLM's OpenAI-compatible server: ASGI middleware that `judge.py` hands to vLLM.

It asks for the API key on every route but /health, limits the size of requests, holds replies to the
contract that a request asks for (unless its header x-critic-contract says none), refuses what cannot fit the
context before anything is generated, and gives errors OpenAI's shape. A chat request that no contract fits goes
on byte for byte, except for images that a text-only judge cannot see (the reply's header x-critic-left-out counts
them), for several greedy replies, which are one reply several times, and for more tokens than the whole context has.
"""

import asyncio
import hashlib
import json
import logging
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
from contracts import Contract, as_tool_call, constrain, forced_tool, load, recognise

from critic.backends.openai import TOO_LONG

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

SETTINGS = "CRITIC_SERVE_LAYER"
"""The environment variable that carries the settings (JSON) from judge.py to the server process."""

CHAT = "/v1/chat/completions"
CHAT_PATH = re.compile(r"(/v1|/chat/completions)*/chat/completions/?")
BLANK = re.compile(rb'"content":(null|"(\s|\\[nrtf])*")')
SOME_TEXT = {"regex": r"\S(?s:.*)"}
MOST_REPLIES = 128
TEMPLATE_TOKENS = 16
"""More than a chat template puts around a message: part of the bound that spares most requests a count."""

ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`model` is the true name, `aliases` its others; `contracts` the operator's files; `images` whether
    the judge sees them."""

    model: str
    aliases: list[str]
    contracts: list[str]
    max_bytes: int
    images: bool


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
    """A chat request as it goes on: its body, and what its reply needs. `copies` is how often a choice is
    repeated, `tool` the function whose arguments the text is; `trim` takes the end of the text out of its logprobs."""

    body: bytes
    headers: Headers
    stream: bool = False
    copies: int = 1
    tool: str | None = None
    trim: bool = False

    @property
    def rewrites(self) -> bool:
        return self.copies > 1 or self.tool is not None or self.trim


class JudgeLayer:
    def __init__(self, app: App) -> None:
        self.app = app
        self.settings = msgspec.json.decode(os.environ[SETTINGS], type=Settings)
        self.contracts = load([Path(file) for file in self.settings.contracts])
        key = os.environ.get("VLLM_API_KEY")
        self.key_hash = _hash(key) if key else None
        self.context: int | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        path = re.sub("//+", "/", scope["path"])
        path = CHAT if CHAT_PATH.fullmatch(path) else path
        if path != "/health" and not self._authorised(scope):
            await _refuse_connection(scope, send)
            return
        if scope["type"] == "websocket":
            await self.app(scope, receive, send)
            return
        scope = {**scope, "path": path, "raw_path": path.encode()}
        try:
            body = await self._read(scope, receive) if scope["method"] == "POST" else b""
            if path == CHAT and scope["method"] == "POST":
                await self._chat(scope, body, receive, send)
            else:
                await self._inner(scope, body, receive, _shaped(send))
        except Refusal as refusal:
            await _send_error(send, refusal.status, refusal.code, str(refusal))

    def _authorised(self, scope: Scope) -> bool:
        if self.key_hash is None:
            return True
        scheme, _, key = _header(scope, b"authorization").partition(" ")
        return scheme.lower() == "bearer" and secrets.compare_digest(_hash(key), self.key_hash)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        """The request's body. Raises Refusal (413) when it is too large; up to four times the limit is read
        and dropped, so that the client gets to read the answer."""
        limit, size, parts = self.settings.max_bytes, 0, []
        declared = _header(scope, b"content-length")
        if declared.isdigit() and int(declared) > 4 * limit:
            raise _too_large(limit)
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refusal(HTTPStatus.BAD_REQUEST, None, "the connection was closed within the request")
            size += len(message.get("body", b""))
            if size <= limit:
                parts.append(message.get("body", b""))
            elif size > 4 * limit:
                break
            more = message.get("more_body", False)
        if size > limit:
            raise _too_large(limit)
        return b"".join(parts)

    async def _chat(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        try:
            request = json.loads(body)
        except (ValueError, RecursionError):
            request = None
        if not isinstance(request, dict) or not isinstance(request.get("messages"), list):
            await self._inner(scope, body, receive, _shaped(send))  # vLLM says what is wrong with it
            return
        try:
            asked = await self._asked(scope, body, request)
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise Refusal(HTTPStatus.BAD_REQUEST, None, f"not a chat request: {error}") from None
        if asked.stream:
            await self._stream(scope, asked, receive, send)
        else:
            await _send(send, await self._whole(scope, asked, receive))

    async def _asked(self, scope: Scope, body: bytes, request: dict[str, Any]) -> Asked:
        """The request as it goes on. Raises Refusal when it cannot fit the context."""
        whole = request
        headers = [(b"x-critic-model", self._true_model(request.get("model")).encode("latin-1", "replace"))]
        contract = None if _header(scope, b"x-critic-contract") == "none" else recognise(request, self.contracts)
        if not self.settings.images:
            request, left_out = without_images(request)
            if left_out:
                headers.append((b"x-critic-left-out", f"images={left_out}".encode()))
        copies = _replies(request)
        if copies > 1 and request.get("temperature"):
            copies = 1  # samples differ: they are vLLM's
        elif copies > 1:
            request = {**request, "n": 1}
        tokens = await self._tokens(scope, request, contract)
        held = constrain(contract, request, tokens) if contract and tokens else None
        headers.append((b"x-critic-contract", contract.name.encode() if contract and held else b"none"))
        tool = forced_tool(request) if held and contract else None
        if held:
            request = {**held, **_limit(request, tokens)}
        elif tokens and tokens < (_wish(request) or 0):
            request = {**request, **_limit(request, tokens)}
        return Asked(
            body=body if request is whole else json.dumps(request).encode(),
            headers=headers,
            stream=bool(request.get("stream")),
            copies=copies,
            tool=tool,
            trim=bool(held and request.get("logprobs")),
        )

    def _true_model(self, name: Any) -> str:
        """What answers to `name`: the judge to its aliases and to none, an adapter to its own."""
        return (
            name
            if isinstance(name, str) and name.isprintable() and name not in self.settings.aliases
            else (self.settings.model)
        )

    async def _tokens(self, scope: Scope, request: dict[str, Any], contract: Contract | None) -> int | None:
        """How long the reply may be: what is asked for or, without a wish, what the prompt leaves of the
        context. None if that is not known, as the prompt is too long or no chat request.

        Raises Refusal where the prompt leaves less than the request asks for or, under a contract, less than its
        verdict needs. More than the whole context is no wish but a limit made for larger models: no shorter prompt
        would help, so what is left has to do. A prompt is counted only where its size in bytes does not settle
        the matter.
        """
        limit = _wish(request)
        if limit is None and contract is None:
            return None
        context = await self._context(scope)
        if context is None:
            return limit
        needed = contract.least_tokens if contract else _at_least(limit, context)
        longest = _most_tokens(request)
        if longest is not None and limit is not None and longest + limit <= context:
            return limit
        count = await self._count(scope, request)
        if count is None:
            return limit
        left = context - count
        if left < min(needed, limit or needed):
            wanted = f"{count} in the messages, at least {needed} in the completion"
            raise Refusal(
                HTTPStatus.BAD_REQUEST,
                "context_length_exceeded",
                f"This model's maximum context length is {context} tokens. However, you requested {count + needed} "
                f"tokens ({wanted}). Please reduce the length of the messages or completion.",
            )
        return min(left, limit or left)

    async def _context(self, scope: Scope) -> int | None:
        if self.context is None:
            answer = await self._ask(scope, "GET", "/v1/models")
            self.context = answer["data"][0]["max_model_len"] if answer else None
        return self.context

    async def _count(self, scope: Scope, request: dict[str, Any]) -> int | None:
        """Tokens of the prompt; None where the server cannot say, because it is too long or not valid."""
        kept = ("model", "messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")
        body = {name: request[name] for name in kept if request.get(name) is not None}
        answer = await self._ask(scope, "POST", "/tokenize", json.dumps(body).encode())
        return answer["count"] if answer else None

    async def _ask(self, scope: Scope, method: str, path: str, body: bytes = b"") -> Any:
        """The inner server's own word on something; None if it is an error."""
        inner = {**scope, "method": method, "path": path, "raw_path": path.encode(), "query_string": b""}
        answer = await self._capture(inner, body, _never_disconnects)
        return json.loads(answer.body) if answer.status == HTTPStatus.OK else None

    async def _capture(self, scope: Scope, body: bytes, receive: Receive) -> Answer:
        status, headers, parts = 500, [], []

        async def keep(message: Message) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], list(message.get("headers", []))
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))

        await self._inner(_sized(scope, body), body, receive, keep)
        return Answer(status, headers, b"".join(parts))

    async def _inner(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """vLLM's answer. What it does not catch itself (an image that cannot be had) is an error of its own, too."""
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, _replay(body, receive), sending)
        except Exception as error:
            if begun:
                raise
            logging.getLogger(__name__).exception("%s failed", scope["path"])
            answer = json.dumps({"error": {"message": f"{type(error).__name__}: {error}"}}).encode()
            await _send(send, Answer(HTTPStatus.INTERNAL_SERVER_ERROR, [], answer))

    async def _whole(self, scope: Scope, asked: Asked, receive: Receive) -> Answer:
        answer = await self._capture(scope, asked.body, receive)
        if answer.status >= HTTPStatus.BAD_REQUEST:
            return shaped(answer, asked.headers)
        if BLANK.search(answer.body):
            answer = await self._with_text(scope, asked, receive, answer)
        body = answer.body
        if asked.rewrites and isinstance(reply := json.loads(body), dict):  # null to a client that hung up
            body = json.dumps({**reply, "choices": _choices(reply, asked)}, ensure_ascii=False).encode()
        return Answer(answer.status, _resized(answer.headers, body) + asked.headers, body)

    async def _with_text(self, scope: Scope, asked: Asked, receive: Receive, answer: Answer) -> Answer:
        """The answer or, if a reply in it says nothing at all, another one that has to say something."""
        if _constrained(asked.body) or all(_says(one["message"]) for one in json.loads(answer.body)["choices"]):
            return answer
        again = await self._capture(scope, _must_say_something(asked.body), receive)
        return again if again.status == HTTPStatus.OK else answer

    async def _stream(self, scope: Scope, asked: Asked, receive: Receive, send: Send) -> None:
        """Pass events on as they come. Until a first piece of text they are held back, so that a reply without
        any can be asked for once more."""
        events = Events(asked, send)
        await self._inner(_sized(scope, asked.body), asked.body, receive, events)
        if events.said_nothing and not _constrained(asked.body):
            body = _must_say_something(asked.body)
            events = Events(asked, send)
            await self._inner(_sized(scope, body), body, receive, events)
        await events.close()


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
        says = "error" in chunk or any(_says(choice.get("delta") or {}) for choice in choices)
        if self.asked.rewrites and choices:
            chunk["choices"] = _choices(chunk, self.asked)
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
            await _send(self.send, shaped(answer, self.asked.headers))


def without_images(request: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """The request with its text parts only, and how many parts were left out."""
    left_out, messages = 0, []
    for message in request["messages"]:
        content = message.get("content")
        if isinstance(content, list):
            texts = [part for part in content if not isinstance(part, dict) or part.get("type") in (None, "text")]
            left_out += len(content) - len(texts)
            messages.append({**message, "content": texts or ""})
        else:
            messages.append(message)
    return ({**request, "messages": messages}, left_out) if left_out else (request, 0)


def _wish(request: dict[str, Any]) -> int | None:
    """The most tokens that the request asks for, under either of the two names. Raises Refusal for none at
    all: what vLLM says of that, it says of a prompt that fills the context, too."""
    newer = request.get("max_completion_tokens")
    wish = request.get("max_tokens") if newer is None else newer
    if (isinstance(wish, float) and wish.is_integer()) or (isinstance(wish, str) and wish.isdecimal()):
        wish = int(wish)  # as vLLM reads them
    if isinstance(wish, int) and wish < 1:
        raise Refusal(HTTPStatus.BAD_REQUEST, None, f"max_tokens must be positive, got {wish}")
    return wish if isinstance(wish, int) else None


def _at_least(wish: int | None, context: int) -> int:
    return 1 if wish is None or wish >= context else wish


def _replies(request: dict[str, Any]) -> int:
    """How many replies the request asks for. Raises Refusal for more than OpenAI gives."""
    number = request.get("n")
    if number is None:
        return 1
    if not isinstance(number, int) or not 1 <= number <= MOST_REPLIES:
        raise Refusal(HTTPStatus.BAD_REQUEST, None, f"n must be an integer from 1 to {MOST_REPLIES}")
    return number


def _limit(request: dict[str, Any], tokens: int | None) -> dict[str, Any]:
    if _wish(request) is None:
        return {}
    return {"max_tokens": tokens, "max_completion_tokens": None}


def _most_tokens(request: dict[str, Any]) -> int | None:
    """A bound on the prompt's tokens: none of them is shorter than a byte. None with images or tools in it."""
    if request.get("tools"):
        return None
    total = TEMPLATE_TOKENS
    for message in request["messages"]:
        content = message.get("content") or ""
        parts = [{"text": content}] if isinstance(content, str) else content
        if any(part.get("type") not in (None, "text") for part in parts):
            return None
        total += TEMPLATE_TOKENS + sum(len(part["text"].encode("utf-8", "replace")) for part in parts)
    return total


def _choices(reply: dict[str, Any], asked: Asked) -> list[dict[str, Any]]:
    choices = reply["choices"]
    if asked.trim:
        choices = [_without_end(choice) for choice in choices]
    if asked.tool:
        call_id = "call_" + _hash(reply["id"]).hex()[:24]
        choices = [as_tool_call(choice, asked.tool, call_id) for choice in choices]
    return (
        [{**choice, "index": copy} for copy in range(asked.copies) for choice in choices]
        if asked.copies > 1
        else (choices)
    )


def _without_end(choice: dict[str, Any]) -> dict[str, Any]:
    """The choice without the token that ended it: in OpenAI's logprobs the text's last token is the last."""
    logprobs, message = choice.get("logprobs") or {}, choice.get("message") or choice.get("delta") or {}
    tokens = logprobs.get("content")
    if choice.get("finish_reason") != "stop" or not tokens:
        return choice
    if (message.get("content") or "").endswith(tokens[-1]["token"]):
        return choice
    return {**choice, "logprobs": {**logprobs, "content": tokens[:-1]}}


def _says(message: dict[str, Any]) -> bool:
    return bool((message.get("content") or "").strip() or message.get("tool_calls"))


def _constrained(body: bytes) -> bool:
    """Whether a chat request says what its reply must be: then a blank one is what it asked for."""
    request = json.loads(body)
    form = (request.get("response_format") or {}).get("type", "text")
    return bool(request.get("structured_outputs")) or form != "text"


def _must_say_something(body: bytes) -> bytes:
    return json.dumps({**json.loads(body), "response_format": None, "structured_outputs": SOME_TEXT}).encode()


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
    kind = ERROR_TYPES.get(answer.status, "server_error" if answer.status >= 500 else "invalid_request_error")
    body = json.dumps({"error": {"message": message, "type": kind, "param": details.get("param"), "code": code}})
    headers = [*_resized(answer.headers, body.encode()), *extra]
    headers = [(name, value) for name, value in headers if name.lower() != b"content-type"]
    return Answer(answer.status, [*headers, (b"content-type", b"application/json")], body.encode())


def _shaped(send: Send) -> Send:
    """`send` that gives errors OpenAI's shape and passes everything else on."""
    failed: Message | None = None
    parts: list[bytes] = []

    async def shaping(message: Message) -> None:
        nonlocal failed
        if message["type"] == "http.response.start" and message["status"] >= HTTPStatus.BAD_REQUEST:
            failed = message
        elif failed is None:
            await send(message)
        else:
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                await _send(send, shaped(Answer(failed["status"], list(failed.get("headers", [])), b"".join(parts))))

    return shaping


async def _send(send: Send, answer: Answer) -> None:
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": answer.body})


async def _send_error(send: Send, status: int, code: str | None, message: str) -> None:
    body = json.dumps({"error": {"message": message, "code": code}}).encode()
    await _send(send, shaped(Answer(status, [], body)))


async def _refuse_connection(scope: Scope, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
    else:
        await _send_error(send, HTTPStatus.UNAUTHORIZED, "invalid_api_key", "the API key is missing or wrong")


def _too_large(limit: int) -> Refusal:
    message = f"the request is larger than {limit / 1e6:g} MB (--max-request-mb)"
    return Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "request_too_large", message)


def _replay(body: bytes, receive: Receive) -> Receive:
    """`receive` that gives the body once and then what the connection says."""
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


async def _never_disconnects() -> Message:
    await asyncio.Event().wait()
    raise AssertionError("unreachable: the event is never set")


def _sized(scope: Scope, body: bytes) -> Scope:
    return {**scope, "headers": _resized(scope["headers"], body)}


def _resized(headers: Iterable[tuple[bytes, bytes]], body: bytes) -> Headers:
    kept = [(name, value) for name, value in headers if name.lower() != b"content-length"]
    return [*kept, (b"content-length", str(len(body)).encode())]


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name), "")


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
