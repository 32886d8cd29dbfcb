"""The judge's layer on vLLM's OpenAI-compatible server: ASGI middleware that vLLM loads on behalf of `judge.py`.

It requires the API key on every route except /health, limits the size of requests, refuses requests that cannot fit
into the context before anything is generated, and returns errors in OpenAI's format.

A contract (contracts.toml) describes the reply that a client's parser expects. If a chat request matches one, the judge
is asked in a form that it was trained on (learned.py), or decoding is constrained to the contract. A request with the
header x-critic-contract "none" matches no contract. A request that matches none is passed on byte for byte, except that

- control tokens in its texts are replaced by look-alikes (control_tokens.py),
- `guided_*` fields of earlier vLLM versions are converted to `structured_outputs` (request_limits.py),
- images and other message parts that are not text are removed if the judge sees only text (the reply's header
  x-critic-left-out counts them), and
- a token limit above the whole context is reduced.

A scoring head, which generates no text, refuses such a request.
"""

import asyncio
import importlib
import json
import logging
import os
import re
import secrets
import sys
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import replies
import request_limits
from api_formats import CUT_OFF, Headers, Refusal, read_limit
from chat_request import BUDGET, ChatRequest, ReadFields, TokenBudget, checking, reply_tokens
from contracts import Unanswerable, constrain, fingerprint, judges, load, recognise
from control_tokens import ControlTokens
from learned import LearnedJudge, describe_service
from msgspec.structs import replace
from options import SETTINGS, Settings
from prometheus_client import Counter
from ratings import wrap_generate
from replies import Answer, App, Message, Receive, Scope, Send

from critic.errors import UsageError

CHAT = "/v1/chat/completions"
_ROUTES = msgspec.toml.decode(Path(__file__).with_name("routes.toml").read_bytes(), type=dict[str, str])
ROUTES = {name: re.compile(path, re.VERBOSE) for name, path in _ROUTES.items()}
"""The content of routes.toml, which explains it."""

MOST_NAME = 200
"""Most characters of a model name from the client that are copied into a header."""

UNREAD = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Exceptions that reading a malformed request raises."""

REQUESTS = Counter("critic_requests", "Chat requests, by contract.", ["contract"])
UNKNOWN_FORMS = Counter("critic_unknown_forms", "Judging requests without a contract, by template.", ["fingerprint"])
"""Counters that vLLM's /metrics shows, summed over all processes of its API."""

MOST_PREPARED = 8
"""Most requests that vLLM parses, renders and validates at the same time, before it generates."""


class JudgeLayer:
    def __init__(self, app: App) -> None:
        self.app = app
        self.settings = msgspec.json.decode(os.environ[SETTINGS], type=Settings)
        self.contracts = load([*map(Path, self.settings.contracts)])
        self.control_tokens = ControlTokens(self.settings.control_tokens)
        self.key = os.environ.get("VLLM_API_KEY")
        self.context: int | None = None
        self.learned: LearnedJudge | None = None
        # No limit with images: requests would wait while the images of others are fetched.
        self.turns = asyncio.Semaphore(sys.maxsize if self.settings.images else MOST_PREPARED)
        self.unknown_forms = set[str]()
        _watch_vllm()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # no route uses websockets
            await send({"type": "websocket.close", "code": 1008})
            return
        # vLLM handles start and stop (lifespan).
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = re.sub("//+", "/", scope["path"])
        # Clients append the route to a base URL that may have it already.
        path = CHAT if ROUTES["chat"].fullmatch(path) else path
        digest = self.settings.about.get("certificate_sha256")
        send = replies.add_headers(send, [(b"x-critic-certificate", digest[:16].encode())]) if digest else send
        try:
            # Load balancers send no key.
            if path != "/health" and not self._authorised(scope):
                raise Refusal("the API key is missing or wrong", code="invalid_api_key", status=HTTPStatus.UNAUTHORIZED)
            await self._route({**scope, "path": path, "raw_path": path.encode()}, receive, send)
        except Refusal as problem:
            await replies.send_error(send, problem)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose API key is valid. Raise Refusal if its route is not served or its body not allowed."""
        method, path = scope["method"], scope["path"]
        # vLLM's other routes resize, profile or change the server.
        if not ROUTES["served"].fullmatch(path):
            raise Refusal("Not Found", status=HTTPStatus.NOT_FOUND)
        body = await self._read(receive) if method == "POST" else b""
        # A large body takes long to parse, and others wait for the event loop.
        request, body = await asyncio.to_thread(self._parsed, path, body) if body else (None, body)
        if "gives" in self.settings.about and ROUTES["writes"].match(path):
            raise self._refuse_text("it is no chat request")
        # vLLM's list of models also describes the judge to clients.
        if path == "/v1/models" and method == "GET" and self.settings.about:
            await replies.send_answer(send, await self._models(scope, receive))
        elif path == CHAT and method == "POST" and isinstance(request, dict) and "messages" in request:
            await self._generate(scope, body, request, receive, send)
        else:
            await self._inner(scope, body, receive, replies.shape_errors(send))

    def _parsed(self, path: str, body: bytes) -> tuple[Any, bytes]:
        """Return the parsed JSON of a request body, and the body to send on.

        In both, `guided_*` fields are converted and control tokens are replaced by look-alikes. Without these the
        second value is `body` itself. The JSON is None if the body is not valid JSON. Raise Refusal if the request
        exceeds a limit (request_limits.py) or is nested too deeply.
        """
        request, changed = request_limits.read(body)
        try:
            respelt = self.control_tokens.respell(path, request)
        except RecursionError:
            raise Refusal("the request is nested too deep") from None
        return respelt, json.dumps(respelt).encode() if changed or respelt is not request else body

    def _authorised(self, scope: Scope) -> bool:
        if not self.key:
            return True
        scheme, _, key = _header(scope, b"authorization").partition(" ")
        return scheme.lower() == "bearer" and secrets.compare_digest(key.encode(), self.key.encode())

    async def _read(self, receive: Receive) -> bytes:
        """Read the request body. Raise Refusal if it is too large (413) or the client disconnects while sending it
        (400).
        """
        limit, size, parts, more = self.settings.max_bytes, 0, [], True
        # Read up to four times the limit: a client that is still sending would not read the error.
        while more and size <= 4 * limit:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refusal("the connection was closed within the request")
            size += len(message.get("body", b""))
            if size <= limit:
                parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        if size > limit:
            reason = f"the request is larger than {limit / 1e6:g} MB (--max-request-mb)"
            raise Refusal(reason, code="request_too_large", status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        return b"".join(parts)

    async def _models(self, scope: Scope, receive: Receive) -> Answer:
        """Return vLLM's list of models. The entries of the judge also have the fields of `settings.about`."""
        answer = await self._capture(scope, b"", receive)
        reply, names = json.loads(answer.body), {self.settings.model, *self.settings.aliases}
        for model in reply.get("data", []):
            # An adapter served next to the judge is another judge.
            if model.get("id") in names:
                model.update(self.settings.about)
        return answer.with_body(json.dumps(reply).encode())

    async def _generate(self, scope: Scope, body: bytes, client: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer a chat request. `client` is the parsed request, `body` are its bytes.

        vLLM counts the tokens of the prompt before it generates. If the prompt leaves too few tokens for the reply,
        vLLM is stopped before anything is sent to the client. The request is then limited with the known count, and
        sent to vLLM once more.
        """
        try:
            msgspec.convert(client, ReadFields)
        except msgspec.ValidationError as error:
            raise Refusal(f"not a request for a reply: {error}") from None
        request = await self._read_request(scope, body, client)
        if (answer := await self._answer_as_learned(scope, request)) is not None:
            await replies.send_answer(send, answer)
            return
        prompt_tokens: int | None = None
        while True:
            # vLLM does not answer /health while it prepares a request.
            await self.turns.acquire()
            # Closed once vLLM has counted the prompt, or at the end of a request that it does not count.
            with ExitStack() as turn:
                turn.callback(self.turns.release)
                is_whole = _header(scope, b"x-critic-rating") == "whole"
                budget = TokenBudget(turn.close, prompt=prompt_tokens, whole=is_whole)
                BUDGET.set(budget)

                async def sending(message: Message, budget: TokenBudget = budget) -> None:
                    if not budget.short:
                        await send(message)

                request = await self._constrain(scope, request, budget)
                if request.stream:
                    out = replies.add_headers(sending, self._headers(request))
                    out = replies.rewrite_stream(replies.shape_errors(out), request)
                    await self._inner(scope, request.body, receive, out)
                else:
                    await replies.send_answer(sending, await self._whole_reply(scope, request, receive))
            if not budget.short:
                return
            prompt_tokens = budget.prompt

    async def _answer_as_learned(self, scope: Scope, request: ChatRequest) -> Answer | None:
        """Ask the judge in a form that it was trained on, and return the reply composed for the client.

        Return None if the request cannot be converted to such a form; the caller then asks with the client's own
        prompt. Raise Refusal if the judge returns no verdict, or if a scoring head cannot answer the request.
        """
        contract, reason = request.contract, "it falls under no contract"
        # An adapter is another judge, and a name that nobody has is vLLM's to refuse.
        if request.client.get("model") not in (None, self.settings.model, *self.settings.aliases):
            contract, reason = None, "it names another model"
        if contract is not None and self.settings.as_learned:
            if self.learned is None:
                # The outermost application, which vLLM's routes look up in each request.
                app = scope.get("app", self)
                self.learned = LearnedJudge(app, self.key, self.settings, await self._context(scope))
            try:
                headers, body = await self.learned.answer(request, contract, self.settings.images)
                return Answer(HTTPStatus.OK, [*self._headers(request, as_learned=True), *headers], body)
            except Unanswerable as problem:
                reason = str(problem)
            except (TimeoutError, UsageError, *UNREAD):
                logging.getLogger(__name__).info("a request that is not asked as learned", exc_info=True)
                reason = "its parts cannot be read"
        if "gives" in self.settings.about:
            raise self._refuse_text(reason)
        return None

    def _refuse_text(self, reason: str) -> Refusal:
        """Return the error for a request that a scoring head cannot answer. `reason` is a clause that says why."""
        route = "/pooling" if self.settings.about.get("read_answer") else "/classify"
        served = describe_service(self.settings, self.contracts) or route
        message = f"this judge is a scoring head and cannot answer this request: {reason}. It serves {served}"
        return Refusal(message, code="scoring_head")

    def _headers(self, request: ChatRequest, as_learned: bool = False) -> Headers:
        """Return the headers that name the judge and the contract that the reply follows.

        The reply follows the request's contract if decoding was constrained to it, or if the judge was asked in a form
        that it was trained on (`as_learned`). Else the second header says "none".
        """
        name = request.client.get("model")
        contract = request.contract if request.constrained or as_learned else None
        # An alias is no name of the judge; an adapter has its own.
        keeps_name = isinstance(name, str) and name.isprintable() and name not in self.settings.aliases
        model = str(name if keeps_name else self.settings.model)[:MOST_NAME].encode("latin-1", "replace")
        headers = [(b"x-critic-model", model), (b"x-critic-contract", (contract.name if contract else "none").encode())]
        # Text from the client must not be able to add headers.
        if contract and contract.found:
            headers.append((b"x-critic-found", re.sub("[^ -~]", "?", contract.found)[:200].encode()))
        if request.left_out:
            headers.append((b"x-critic-left-out", f"images={request.left_out}".encode()))
        return headers

    async def _read_request(self, scope: Scope, raw: bytes, client: dict[str, Any]) -> ChatRequest:
        """Return the client's request with the contract that it matches, and count it for /metrics.

        `client` is the parsed request, `raw` are its bytes. A request that the layer cannot read is passed on
        unchanged, so that vLLM reports what is wrong with it. Raise Refusal if matching takes too long.
        """
        try:
            request = ChatRequest.read(client, raw, self.settings.images)
            # critic's own requests contain their constraints.
            if _header(scope, b"x-critic-contract") == "none":
                return replace(request, plain=True)
            chat = request.visible
            contract = await asyncio.to_thread(recognise, chat, self.contracts)
            REQUESTS.labels(contract.name if contract else "none").inc()
            if contract is None and await asyncio.to_thread(judges, chat):
                # A client that changes its templates must not fill the memory.
                if len(self.unknown_forms) < 100:
                    self.unknown_forms.add(fingerprint(chat))
                UNKNOWN_FORMS.labels(fingerprint(chat) if fingerprint(chat) in self.unknown_forms else "others").inc()
            form = (chat.get("response_format") or {}).get("type", "text")
            plain = contract is None and (bool(chat.get("structured_outputs")) or form != "text")
            return replace(request, contract=contract, plain=plain)
        except TimeoutError:
            reason = "the words of the request take too long to read; send fewer, or the header x-critic-contract: none"
            raise Refusal(reason) from None
        except UNREAD:
            logging.getLogger(__name__).info("a request that is left to vLLM as it came", exc_info=True)
            return ChatRequest(client=client, raw=raw, visible=client)

    async def _constrain(self, scope: Scope, request: ChatRequest, budget: TokenBudget) -> ChatRequest:
        """Return the request with its token limit and with decoding constrained to its contract.

        Set `budget.needed`: the fewest tokens that the prompt must leave, or 0 if the length of the prompt
        (`budget.prompt`) is known already. Raise Refusal if prompt and reply cannot fit into the context.
        """
        visible, contract = request.visible, request.contract
        try:
            context = await self._context(scope) if contract or read_limit(visible) else None
            tokens, needed = reply_tokens(request, context, budget.prompt or 0)
            held = await asyncio.to_thread(constrain, contract, visible, tokens) if contract and tokens else None
            request = replace(request, constrained=held, tokens=tokens)
            # A reply that can be shortened later only needs its minimum now.
            if held and tokens and not request.shorten:
                needed = max(needed, min(tokens, held.min_tokens))
            elif contract and tokens and not held:
                needed = tokens
            budget.needed = needed if budget.prompt is None else 0
            return request
        except UNREAD:
            logging.getLogger(__name__).info("a request that is left to vLLM as it came", exc_info=True)
            return replace(request, visible=request.client, left_out=0, contract=None)

    async def _context(self, scope: Scope) -> int | None:
        """Return the context length in tokens that vLLM reports, or None if it reports none."""
        # Known only after vLLM has loaded the model.
        if self.context is None:
            models = {**scope, "method": "GET", "path": "/v1/models", "raw_path": b"/v1/models", "query_string": b""}
            never_disconnects: Any = asyncio.Event().wait
            answer = await self._capture(models, b"", never_disconnects)
            if answer.status == HTTPStatus.OK:
                self.context = json.loads(answer.body)["data"][0]["max_model_len"]
        return self.context

    async def _capture(self, scope: Scope, body: bytes, receive: Receive) -> Answer:
        messages: list[Message] = []

        async def keep(message: Message) -> None:
            messages.append(message)

        await self._inner(scope, body, receive, keep)
        return replies.collect(messages)

    async def _inner(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Pass a request to vLLM. Reply with a 500 error if vLLM raises before it has begun to answer."""
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            sized = {**scope, "headers": replies.resized(scope["headers"], body)}
            await self.app(sized, _replay(body, receive), sending)
        except Exception as error:
            # Once a reply has begun, an error can only close the connection.
            if begun:
                raise
            logging.getLogger(__name__).exception("%s failed", scope["path"])
            answer = json.dumps({"error": {"message": f"{type(error).__name__}: {error}"}}).encode()
            await replies.send_answer(send, Answer(HTTPStatus.INTERNAL_SERVER_ERROR, [], answer))

    async def _whole_reply(self, scope: Scope, request: ChatRequest, receive: Receive) -> Answer:
        """Return vLLM's complete reply to a request without streaming, rewritten for the client.

        A reply that was truncated is generated once more with tighter limits, if its contract allows that.
        """
        answer = await self._capture(scope, request.body, receive)
        headers, budget = self._headers(request), BUDGET.get()
        if answer.status >= HTTPStatus.BAD_REQUEST:
            return replies.shape_error(answer, headers)
        if request.shorten and CUT_OFF in answer.body:
            left = request.tokens or 0
            if self.context is not None and budget is not None and budget.prompt is not None:
                left = min(left, self.context - budget.prompt)
            shorter, limits = await asyncio.to_thread(request.shorten, left)
            again = await self._capture(scope, json.dumps(shorter).encode(), receive)
            # If the second try fails, the first reply is returned.
            if again.status == HTTPStatus.OK:
                answer = again
                headers = [*headers, (b"x-critic-limits", str(limits).encode())]
        body = answer.body
        # vLLM answers null if the client has disconnected.
        if replies.rewrites(request) and isinstance(reply := json.loads(body), dict):
            body = json.dumps(replies.rewrite(reply, request), ensure_ascii=False).encode()
        # The client reads the whole distribution from its reply and this header.
        if budget is not None and budget.ten is not None:
            headers = [*headers, (b"x-critic-ten", repr(budget.ten).encode())]
        return answer.with_body(body, headers)


def _watch_vllm() -> None:
    """Wrap this process's vLLM functions that count prompt tokens and generate. Do nothing if vLLM is not loaded."""
    # Tests run the layer before other servers: vLLM would take seconds to import.
    if "vllm" in sys.modules:
        serving: Any = importlib.import_module("vllm.entrypoints.openai.chat_completion.serving")
        serving.get_max_tokens = checking(serving.get_max_tokens)
        engine: Any = importlib.import_module("vllm.v1.engine.async_llm").AsyncLLM
        engine.generate = wrap_generate(engine.generate)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that returns `body` first, and then the messages of the original `receive`."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return waiting.pop() if waiting else await receive()

    return replayed


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name), "")
