"""The judge's layer on vLLM's OpenAI-compatible server: ASGI middleware that `judge.py` hands to vLLM.

It asks for the API key on every route but /health, limits the size of requests, holds replies to the
contract that a request asks for (unless its header x-critic-contract says none), refuses what cannot fit the
context before anything is generated, and gives errors OpenAI's shape. A chat request that no contract fits goes
on byte for byte, except for images that a text-only judge cannot see (the reply's header x-critic-left-out counts
them), and for more tokens than the whole context has.
"""

import asyncio
import json
import logging
import os
import re
import secrets
import sys
from collections import Counter
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import ratings
import replies
import request_limits
from api_formats import CUT_OFF, Known, as_seen, forced_tool, sent_on, with_named_tool
from contracts import Contract, constrain, fingerprint, judges, load, recognise
from control_tokens import ControlTokens
from replies import Answer, App, Asked, Headers, Message, Receive, Refusal, Scope, Send
from schemas import Limits
from token_budget import ROOM, Room, limit_to, reply_tokens, watch, wish_of

SETTINGS = "CRITIC_SERVE_LAYER"
"""The environment variable that carries the settings (JSON) from judge.py to the server process."""

CHAT = "/v1/chat/completions"
CHAT_PATH = re.compile(r"(/v1|/chat/completions)*/chat/completions/?")
SERVED = re.compile(
    r"/(?:health|ping|version|load|metrics|docs|redoc|openapi\.json|tokenize|detokenize|invocations|"
    r"classify|pooling|score|rerank|generative_scoring|"
    r"v[12]/(?:models|chat/completions|completions|responses|messages|embeddings|embed|score|rerank)(?:/.*)?)?/?"
)
"""Routes for clients. vLLM has others, which resize, profile or change the server."""

WRITES = re.compile("/v1/(?:chat/completions|completions|responses|messages)")
"""Routes whose reply is a text."""

MOST_NAME = 200
"""Characters of a client's own that stand in a header."""

LABELS = {"requests": "contract", "unknown_forms": "fingerprint"}
MOST_PREPARED = 8
"""Requests that vLLM reads, renders and checks at the same time, before it generates."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`model` is the true name; `contracts` are the operator's files; `images` says whether the judge sees them.
    `about` stands beside the judge's name under /v1/models: the hash of its processor, the forms that it was trained
    in, its certificate and that one's hash. `control_tokens` are the judge's own, which no message may hold."""

    model: str
    aliases: list[str]
    contracts: list[str]
    max_bytes: int
    images: bool
    about: dict[str, Any] = {}
    control_tokens: list[str] = []


class JudgeLayer:
    def __init__(self, app: App) -> None:
        self.app = app
        self.settings = msgspec.json.decode(os.environ[SETTINGS], type=Settings)
        self.contracts = load([Path(file) for file in self.settings.contracts])
        self.control_tokens = ControlTokens(self.settings.control_tokens)
        self.key = os.environ.get("VLLM_API_KEY")
        self.context: int | None = None
        # Images are fetched meanwhile: nobody waits for other people's.
        self.turns = asyncio.Semaphore(sys.maxsize if self.settings.images else MOST_PREPARED)
        self.counts: Counter[tuple[str, str]] = Counter()
        watch()
        ratings.watch()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # nothing is asked of a judge by one
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = re.sub("//+", "/", scope["path"])
        path = CHAT if CHAT_PATH.fullmatch(path) else path
        digest = self.settings.about.get("certificate_sha256")
        send = replies.with_headers(send, [(b"x-critic-certificate", digest[:16].encode())]) if digest else send
        try:
            if path != "/health" and not self._authorised(scope):
                raise Refusal(HTTPStatus.UNAUTHORIZED, "invalid_api_key", "the API key is missing or wrong")
            await self._route({**scope, "path": path, "raw_path": path.encode()}, receive, send)
        except Refusal as problem:
            await replies.send_error(send, problem)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that has the key. Raises Refusal."""
        method, path = scope["method"], scope["path"]
        if not SERVED.fullmatch(path):
            raise Refusal(HTTPStatus.NOT_FOUND, None, "Not Found")
        body = await self._read(receive) if method == "POST" else b""
        request, body = await asyncio.to_thread(self._parsed, path, body) if body else (None, body)
        if "gives" in self.settings.about and WRITES.match(path):
            reason = "this judge is a scoring head: ask /classify, or serve a judge that writes"
            raise Refusal(HTTPStatus.BAD_REQUEST, "scoring_head", reason)
        if path == "/metrics":
            await replies.send_answer(send, await self._metrics(scope, receive))
        elif path == "/v1/models" and method == "GET" and self.settings.about:
            await replies.send_answer(send, await self._models(scope, receive))
        elif path == CHAT and method == "POST" and isinstance(request, dict) and "messages" in request:
            await self._generate(scope, body, request, receive, send)
        else:
            await self._inner(scope, body, receive, replies.shaping(send))

    def _parsed(self, path: str, body: bytes) -> tuple[Any, bytes]:
        """Return a request's JSON (None if it is none) and its body, without `guided_*` fields and control tokens.

        Raises Refusal beyond a bound."""
        request, changed = request_limits.read(body)
        try:
            respelt = self.control_tokens.respelt(path, request)
        except RecursionError:
            raise Refusal(HTTPStatus.BAD_REQUEST, None, "the request is nested too deep") from None
        return respelt, json.dumps(respelt).encode() if changed or respelt is not request else body

    def _authorised(self, scope: Scope) -> bool:
        if not self.key:
            return True
        scheme, _, key = _header(scope, b"authorization").partition(" ")
        return scheme.lower() == "bearer" and secrets.compare_digest(key.encode(), self.key.encode())

    async def _read(self, receive: Receive) -> bytes:
        """The request's body. Raises Refusal (413) when it is too large; up to four times the limit is read, so that
        the client gets to read the answer."""
        limit, size, parts, more = self.settings.max_bytes, 0, [], True
        while more and size <= 4 * limit:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refusal(HTTPStatus.BAD_REQUEST, None, "the connection was closed within the request")
            size += len(message.get("body", b""))
            if size <= limit:
                parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        if size > limit:
            reason = f"the request is larger than {limit / 1e6:g} MB (--max-request-mb)"
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "request_too_large", reason)
        return b"".join(parts)

    async def _metrics(self, scope: Scope, receive: Receive) -> Answer:
        """vLLM's metrics and how many requests fell under which contract. Requests that judge answers and fall under
        none are counted by the fingerprint of their template."""
        answer = await self._capture(scope, b"", receive)
        lines = [f'critic_{name}_total{{{LABELS[name]}="{value}"}} {n}' for (name, value), n in self.counts.items()]
        types = [f"# TYPE critic_{name}_total counter" for name in LABELS]
        return answer.with_body(answer.body + "\n".join([*types, *sorted(lines), ""]).encode())

    async def _models(self, scope: Scope, receive: Receive) -> Answer:
        """vLLM's list of models, with what is said about the judge at its names: an adapter is another judge."""
        answer = await self._capture(scope, b"", receive)
        reply, names = json.loads(answer.body), {self.settings.model, *self.settings.aliases}
        for model in reply.get("data", []):
            if model.get("id") in names:
                model.update(self.settings.about)
        return answer.with_body(json.dumps(reply).encode())

    async def _generate(self, scope: Scope, body: bytes, request: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request for a reply. vLLM counts its prompt: if that leaves too little room, nothing has been sent
        yet, and it is asked once more with its length known."""
        try:
            msgspec.convert(request, Known)
        except msgspec.ValidationError as error:
            raise Refusal(HTTPStatus.BAD_REQUEST, None, f"not a request for a reply: {error}") from None
        prompt_tokens: int | None = None
        while True:
            await self.turns.acquire()  # what vLLM does until it generates keeps it from answering /health
            token_budget = Room(self.turns.release, whole=_header(scope, b"x-critic-rating") == "whole")
            ROOM.set(token_budget)
            try:
                asked = await self._prepared(scope, body, request, prompt_tokens)
                token_budget.needed = asked.needed if prompt_tokens is None else 0
                await self._answer(asked, scope, receive, send, token_budget)
            finally:
                token_budget.done()
            if not token_budget.short:
                return
            prompt_tokens = token_budget.prompt

    async def _answer(self, asked: Asked, scope: Scope, receive: Receive, send: Send, token_budget: Room) -> None:
        """vLLM's reply as its client needs it; nothing where the room turns out to be too short."""

        async def sending(message: Message) -> None:
            if not token_budget.short:
                await send(message)

        if asked.stream:
            out = replies.rewriting(replies.shaping(replies.with_headers(sending, asked.headers)), asked)
            await self._inner(replies.sized(scope, asked.body), asked.body, receive, out)
        else:
            await replies.send_answer(sending, await self._whole_reply(scope, asked, receive))

    def _headers(self, request: dict[str, Any], contract: Contract | None = None, left_out: int = 0) -> Headers:
        # The judge answers to its aliases and to no name, an adapter to its own.
        name = request.get("model")
        keeps_name = isinstance(name, str) and name.isprintable() and name not in self.settings.aliases
        model = str(name if keeps_name else self.settings.model)[:MOST_NAME].encode("latin-1", "replace")
        headers = [(b"x-critic-model", model), (b"x-critic-contract", (contract.name if contract else "none").encode())]
        if contract and contract.found:
            headers.append((b"x-critic-found", re.sub("[^ -~]", "?", contract.found)[:200].encode()))
        if left_out:
            headers.append((b"x-critic-left-out", f"images={left_out}".encode()))
        return headers

    async def _prepared(self, scope: Scope, body: bytes, request: dict[str, Any], count: int | None) -> Asked:
        """The request as it goes on behind a prompt of `count` tokens, if that is known: as it came, where it cannot be
        read. Raises Refusal when it cannot fit the context."""
        try:
            return await self._constrained(scope, body, request, count)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
            logging.getLogger(__name__).info("a request that is left to vLLM as it came", exc_info=True)
            stream = bool(request.get("stream"))
            return Asked(request=request, body=body, headers=self._headers(request), stream=stream)

    async def _constrained(self, scope: Scope, body: bytes, request: dict[str, Any], count: int | None) -> Asked:
        shown, left_out = as_seen(request, self.settings.images)
        before = with_named_tool(shown)
        chat = dict(before)
        contract, plain = await self._contract_of(scope, chat, first=count is None)
        context = await self._context(scope) if contract or wish_of(chat) else None
        tokens, needed = reply_tokens(chat, contract, plain, context, count or 0)
        held = await asyncio.to_thread(constrain, contract, chat, tokens) if contract and tokens else None

        def shortened(left: int) -> tuple[bytes, Limits]:
            """The body of the same request for a reply that ends within so many tokens."""
            assert held is not None and held.tight is not None
            asking, limits = held.tight(left)
            return json.dumps(sent_on(shown, before, {**asking, **limit_to(left)})).encode(), limits

        again = bool(held and held.tight and not chat.get("stream"))
        if held and tokens:
            needed = needed if again else max(needed, min(tokens, held.enough))
            chat = {**held.sent(tokens), **limit_to(tokens)}
        elif tokens:
            needed = tokens if contract else needed
            chat |= limit_to(tokens) if tokens < (wish_of(chat) or 0) else {}
        outgoing = sent_on(shown, before, chat)
        return Asked(
            request=request,
            body=body if outgoing is request else json.dumps(outgoing).encode(),
            headers=self._headers(request, contract if held else None, left_out),
            stream=bool(chat.get("stream")),
            tool=forced_tool(before) if held else None,
            trim=bool(held and chat.get("logprobs")),
            tight=shortened if again else None,
            tokens=tokens or 0,
            needed=needed,
        )

    async def _contract_of(self, scope: Scope, chat: dict[str, Any], first: bool) -> tuple[Contract | None, bool]:
        """The contract that a request falls under, and whether it has a form of its own instead. Each is counted when
        it is looked at for the `first` time."""
        if _header(scope, b"x-critic-contract") == "none":
            return None, True
        try:
            contract = await asyncio.to_thread(recognise, chat, self.contracts)
        except TimeoutError:
            reason = "the words of the request take too long to read; send fewer, or the header x-critic-contract: none"
            raise Refusal(HTTPStatus.BAD_REQUEST, None, reason) from None
        if first:
            self.counts["requests", contract.name if contract else "none"] += 1
        if first and contract is None and await asyncio.to_thread(judges, chat):
            known = sum(name == "unknown_forms" for name, _ in self.counts)
            counter = ("unknown_forms", fingerprint(chat))
            self.counts[counter if known < 100 or counter in self.counts else ("unknown_forms", "others")] += 1
        form = (chat.get("response_format") or {}).get("type", "text")
        return contract, contract is None and (bool(chat.get("structured_outputs")) or form != "text")

    async def _context(self, scope: Scope) -> int | None:
        """The context in tokens, by the inner server's own word; None if it does not say."""
        if self.context is None:
            models = {**scope, "method": "GET", "path": "/v1/models", "raw_path": b"/v1/models", "query_string": b""}
            never_disconnects: Any = asyncio.Event().wait
            answer = await self._capture(models, b"", never_disconnects)
            if answer.status == HTTPStatus.OK:
                self.context = json.loads(answer.body)["data"][0]["max_model_len"]
        return self.context

    def _tokens_left(self, tokens: int) -> int:
        """As many of the tokens as the prompt has left."""
        room = ROOM.get()
        if self.context is None or room is None or room.prompt is None:
            return tokens
        return min(tokens, self.context - room.prompt)

    async def _capture(self, scope: Scope, body: bytes, receive: Receive) -> Answer:
        status, headers, parts = 500, [], []

        async def keep(message: Message) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], list(message.get("headers", []))
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))

        await self._inner(replies.sized(scope, body), body, receive, keep)
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
            await replies.send_answer(send, Answer(HTTPStatus.INTERNAL_SERVER_ERROR, [], answer))

    async def _whole_reply(self, scope: Scope, asked: Asked, receive: Receive) -> Answer:
        answer = await self._capture(scope, asked.body, receive)
        if answer.status >= HTTPStatus.BAD_REQUEST:
            return replies.shaped(answer, asked.headers)
        headers = asked.headers
        if asked.tight and CUT_OFF in answer.body:
            shorter, limits = await asyncio.to_thread(asked.tight, self._tokens_left(asked.tokens))
            again = await self._capture(scope, shorter, receive)
            if again.status == HTTPStatus.OK:
                answer, headers = again, [*headers, (b"x-critic-limits", str(limits).encode())]
        body = answer.body
        if asked.rewrites and isinstance(reply := json.loads(body), dict):  # null to a client that hung up
            body = json.dumps(replies.rewritten(reply, asked), ensure_ascii=False).encode()
        room = ROOM.get()
        ten_header = [(b"x-critic-ten", repr(room.ten).encode())] if room is not None and room.ten is not None else []
        return answer.with_body(body, [*headers, *ten_header])


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body once and then what the connection says."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return waiting.pop() if waiting else await receive()

    return replayed


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name), "")
