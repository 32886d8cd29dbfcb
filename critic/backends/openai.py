"""Any OpenAI-compatible server, over HTTP: bounded, jittered, visible retries."""

import asyncio
import base64
import math
import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from typing import Any, Self

import aiohttp
import httpx
import msgspec
from msgspec.structs import replace

from critic import backends
from critic.backends import ChatMessage, ModelInfo, Reply, Request, Token, refusals
from critic.backends.address import parse, redact_url
from critic.errors import Hopeless, Refused, Transient, UsageError, loads, mask, one_line
from critic.records import RATINGS

TOO_LONG = (
    "context length",
    "context_length_exceeded",
    "max_tokens must be at least 1",  # vLLM, of a prompt that fills its context exactly
    "maximum model length",  # vLLM, of one that is too long with its images
    "context size",  # llama.cpp
)
"""How servers say that a prompt does not fit."""

ODD = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
"""What reading an answer raises that is not as it should be."""

THOUGHTS = ("reasoning_content", "reasoning")
"""The fields of a message in which servers give thoughts apart from the answer (DeepSeek's name, and vLLM's)."""

RED = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAAJ0lEQVR42u3NsQkAAAjAsP7/tF7hIASyp6lTCQQC"
    "gUAgEAgEgi/BAjLD/C5w/SM9AAAAAElFTkSuQmCC"
)
"""A small image, 32 x 32 red pixels."""

RETRIED_STATUS = {408, 409, 425, 429}

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds between the first two tries, and between two tries at most, unless the server asks for more."""

LONGEST_WISH = 120.0
"""Seconds of a server's Retry-After that are obeyed."""

OURS = {"x-critic-contract": "none", "x-critic-rating": "whole"}
"""What tells our own server that requests say themselves what their replies must be, and that of alternatives only a
rating's are read."""


NO_LIST = (httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED, httpx.codes.NOT_IMPLEMENTED)
"""How servers without a list of models answer when they are asked for it."""

NO_KEY = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)
GIVE_KEY = "does not take the API key: give its own by --api-key or OPENAI_API_KEY"


class OpenAIBackend:
    """Chat completions at `base_url` (`address.parse` says where exactly); `choose` a model first.

    Every call is tried up to `attempts` times where trouble may pass: no answer in `timeout` seconds, a lost
    connection, a reply that is no completion, RETRIED_STATUS and 5xx. `unsupported` are the fields that the server
    refused (`refusals.OPTIONAL`). Messages hold neither the key nor the URL's password."""

    served: ModelInfo

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout: float = backends.TIMEOUT,
        attempts: int = backends.ATTEMPTS,
        connections: int = backends.CONNECTIONS,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            example = "an http(s) URL such as http://127.0.0.1:8000/v1"
            raise UsageError(f"--base-url must be {example}, got {mask(base_url)!r}")
        self._address, self._key = parse(base_url), api_key or ""
        self._headers = OURS | _credentials(self._address.user, api_key, self._address.azure)
        self.root, self.attempts, self.timeout = self._address.root, attempts, timeout
        self.endpoint, self.max_concurrency, self.retries = redact_url(base_url).removesuffix("/v1"), connections, 0
        self.unsupported = set[str]()
        self._tokens: dict[str, int | None] = {}
        # Whether it has shown that there is a server of this kind: by its list of models, or a reply.
        self._is_known = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        attributes = vars(self)
        if "_session" in attributes:
            await attributes.pop("_session").close()
        if "_plain" in attributes:
            attributes.pop("_plain").close()

    @cached_property
    def _plain(self) -> httpx.Client:
        """For the few requests before and beside the others."""
        # Minutes may lie between two of them, in which a server closes a kept connection: each has its own.
        alone = httpx.Limits(max_keepalive_connections=0)
        return httpx.Client(base_url=self.root, headers=self._headers, timeout=30.0, limits=alone)

    @cached_property
    def _session(self) -> aiohttp.ClientSession:
        """For requests side by side; needs a running loop. With dozens httpx takes ten times the processor time."""
        return aiohttp.ClientSession(
            headers={**self._headers, "Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=self.timeout),
            # An idle connection is kept for less than uvicorn's 5 seconds, which would cut it off.
            connector=aiohttp.TCPConnector(limit=self.max_concurrency, keepalive_timeout=4.0),
            trust_env=True,  # proxies
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    def choose(self, name: str | None) -> ModelInfo:
        """Use the model called `name`, or the server's first. A server without a list of models is taken at its word,
        if the model is named here or in the URL. Raises UsageError with the choices."""
        name = name or self._address.deployment
        offered = self._offered(name)
        if offered is None:
            self.served = ModelInfo(str(name), None, is_vllm=False)
            return self.served
        self._is_known = True
        if name is not None and name not in offered:
            raise UsageError(f"the server at {self.endpoint} has no model {name!r}; it offers {', '.join(offered)}")
        chosen = offered[name] if name is not None else next(iter(offered.values()))
        is_vllm, processor, forms = chosen.get("owned_by") == "vllm", chosen.get("processor"), chosen.get("forms")
        if is_vllm and chosen.get("root"):  # of a judge's names its own has a mark of its weights
            same = (model for model in offered.values() if model.get("root") == chosen["root"] and "@" in model["id"])
            chosen = next(same, chosen)
        classes = self._number_of_classes(chosen["id"]) if is_vllm else 0
        self.served = ModelInfo(
            chosen["id"],
            _count(chosen.get("max_model_len")),
            is_vllm,
            processor if isinstance(processor, str) else None,
            classes in (1, len(RATINGS)),
            tuple(map(str, forms)) if isinstance(forms, list) else (),
            float(chosen.get("tie_band") or 0.0) if classes == 1 else None,
        )
        return self.served

    def _offered(self, name: str | None) -> dict[str, dict[str, Any]] | None:
        """Return the server's models by name, or None if it has no list of them and `name` says which to use. Raises
        UsageError if it does not answer."""
        # Azure lists what could be deployed, not what is.
        if name is not None and self._address.azure:
            return None
        place, status = redact_url(self._address.url("")), 0
        try:
            answer = self._plain.get(self._address.url("/models"))
            status = answer.status_code
            # A key may be good for completions only.
            if name is not None and status in (*NO_LIST, *(NO_KEY if self._key else ())):
                return None
            if status in NO_KEY:
                raise UsageError(f"{self.endpoint} {GIVE_KEY}")
            answer.raise_for_status()
            models = loads(answer.content)["data"]
            offered = {str(model["id"]): {**model, "id": str(model["id"])} for model in models}
        except (httpx.HTTPError, httpx.InvalidURL, *ODD) as error:
            hint = "; name the model (URL#MODEL, --model) if it has no list of them" if status in NO_LIST else ""
            problem = f"{self._masked(one_line(error))}{hint}; `critic serve FOLDER` starts one"
            raise UsageError(f"{backends.NO_ANSWER} at {place}: {problem}") from None
        if not offered:
            raise UsageError(f"{backends.NO_ANSWER} at {place}: it offers no model")
        # Google lists models/NAME, and takes NAME.
        if name is not None and f"models/{name}" in offered:
            offered[name] = {**offered[f"models/{name}"], "id": name}
        return offered

    def _masked(self, text: str) -> str:
        return mask(text, [self._key, *self._address.secrets])

    @cache  # noqa: B019 - of the few backends of a run
    def sees(self) -> bool | None:
        """Whether a vLLM takes images: it counts the tokens of a small one, or refuses it."""
        if not self.served.is_vllm:
            return None
        messages = [{"role": "user", "content": [backends.image_part(RED), {"type": "text", "text": "?"}]}]
        body = {"model": self.served.name, "messages": messages}
        try:
            answer = self._plain.post(self._address.beside("/tokenize"), json=body)
        except httpx.HTTPError:
            return None
        return answer.is_success if answer.status_code in (httpx.codes.OK, httpx.codes.BAD_REQUEST) else None

    def _number_of_classes(self, name: str) -> int:
        """How many classes a vLLM gives: ten a head that rates, one a head that compares. Others lack the route."""
        question = [{"role": "user", "content": "?"}]
        try:
            answer = self._plain.post(self._address.beside("/classify"), json=_to_classify(name, question))
            return len(loads(answer.content)["data"][0]["probs"]) if answer.is_success else 0
        except (httpx.HTTPError, *ODD):
            return 0

    def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """By vLLM's `/tokenize`. Raises Refused where the server has none, Transient where it does not answer."""
        try:
            return int(self._tokenized(messages, add_generation_prompt=True)["count"])
        except httpx.TransportError as error:
            raise Transient(f"no tokens can be counted: {one_line(error)}") from None
        except (httpx.HTTPError, *ODD) as error:
            problem = f"too long, and no tokens can be counted: {one_line(error)}"
            raise Refused("context_length_exceeded", problem) from None

    def _tokenized(self, messages: Sequence[ChatMessage], **how: bool) -> Any:
        body = {"model": self.served.name, "messages": messages, **how}
        answer = self._plain.post(self._address.beside("/tokenize"), json=body)
        answer.raise_for_status()
        return loads(answer.content)

    async def chat(self, request: Request) -> Reply:
        """Return the reply. A field that the server refuses by name is left out, for good once a reply shows that it
        was this field. Raises Refused for what the server will never accept, Transient when the tries are used up,
        Hopeless if its account is empty or the key is wrong."""
        if self.served.is_classifier and not request.classify:
            raise Refused("refused", backends.NO_TEXT)
        if request.classify:
            return await self._tried(_to_classify(self.served.name, request.messages), "/classify")
        body = self._body(request)
        if (token := await self._token(request)) is not None:
            body["logit_bias"] = {str(token): backends.FAVOUR}
        left_out, innocent = dict[str, Refused](), set[str]()
        while True:
            try:
                reply = await self._tried(refusals.drop_unsupported(body, self.unsupported | left_out.keys()))
            except Refused as error:
                last = next(reversed(left_out), "max_tokens")
                if last != "max_tokens" and str(left_out[last]) == str(error):
                    # Refused in the same words without it: it was another field. The limit's two names are one field.
                    innocent |= {"max_tokens", last} if last == "max_completion_tokens" else {last}
                    left_out = {name: why for name, why in left_out.items() if name not in innocent}
                fields = [name for name in error.fields if name not in {*innocent, *left_out}]
                if not fields:
                    self._check_route(error)
                    raise
                left_out[fields[0]] = error
                continue
            # Only a reply shows that it was this which was refused: some servers repeat the request in what they say.
            for name in left_out.keys() - self.unsupported:
                print(
                    f"{self.endpoint} takes no {name}; {refusals.OPTIONAL[name][1]}: {left_out[name]}", file=sys.stderr
                )
            self.unsupported |= left_out.keys()
            self._is_known = True
            return reply

    def _check_route(self, error: Refused) -> None:
        """Raise Hopeless if nothing has shown yet that there is a server of this kind, and this is none."""
        if not self._is_known and str(error).startswith(("HTTP 404", "HTTP 405")):
            where = f"{self._address.api}/chat/completions"
            raise Hopeless(f"{backends.NO_ANSWER} at {where}: {error}; give what stands before /chat") from None

    async def _token(self, request: Request) -> int | None:
        """The id of the token that is favoured, asked for once; None where that cannot be done."""
        text = request.forced_token
        if text is None or "logit_bias" in self.unsupported:
            return None
        if text not in self._tokens:
            self._tokens[text] = await asyncio.to_thread(self._last_token, request.messages, text)
        return self._tokens[text]

    def _last_token(self, messages: Sequence[ChatMessage], text: str) -> int | None:
        """The token that spells `text` behind the last message; None if none does, or the server does not tell."""
        prefixed = [{"role": "user", "content": "?"}, {**messages[-1], "content": messages[-1]["content"] + text}]
        begun = {"continue_final_message": True, "add_generation_prompt": False}
        try:
            tokenized = self._tokenized(prefixed, return_token_strs=True, **begun)
            return int(tokenized["tokens"][-1]) if tokenized["token_strs"][-1] == text else None
        except (httpx.HTTPError, *ODD):
            return None

    async def _tried(self, body: dict[str, Any], route: str = "/chat/completions") -> Reply:
        for attempt in range(1, self.attempts + 1):
            try:
                return await self._once(body, route, attempt)
            except Transient as error:
                if attempt == self.attempts:
                    raise Transient(f"{error} (after {attempt} tries)", tries=attempt) from None
                self.retries += 1
                wait = min(FIRST_PAUSE * 2 ** (attempt - 1), LONGEST_PAUSE) * random.uniform(0.5, 1.5)
                await asyncio.sleep(max(wait, min(error.retry_after or 0.0, LONGEST_WISH)))
        raise AssertionError("unreachable: the last try raises")

    def _body(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.served.name,
            "messages": request.messages,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
        }
        if request.seed is not None:
            body["seed"] = request.seed
        if request.schema is not None:
            schema = {"name": "verdict", "schema": request.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if request.regex is not None:
            body["structured_outputs"] = {"regex": request.regex}
        if request.continue_final:
            # Without the last, vLLM with a reasoning parser waits for the end of thoughts before it constrains.
            body |= {"continue_final_message": True, "add_generation_prompt": False, "include_reasoning": False}
        if request.top_logprobs:
            body |= {"logprobs": True, "top_logprobs": request.top_logprobs}
        return body

    async def _once(self, body: dict[str, Any], route: str, attempt: int) -> Reply:
        url = self._address.beside(route) if route == "/classify" else self._address.url(route)
        try:
            sent = msgspec.json.encode(body)
            async with self._session.post(url, data=sent, allow_redirects=False) as answer:
                status, raw, headers = answer.status, await answer.read(), answer.headers
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError among them
            raise Transient(self._masked(one_line(error))) from None
        answered = _decoded(raw)
        problem = _error_in(answered)
        if status != httpx.codes.OK or problem is not None:
            fields = refusals.find_refused_fields(answered, _words(raw, answered), body)
            message = self._message(status, raw, answered)
            if status == httpx.codes.OK:
                status = _status(problem, message, fields)
            self._check_account(status, _kind(problem), message, sent)
            wish = refusals.read_retry_after(headers, raw[:10_000].decode(errors="replace"))
            self._check_answer(status, message, wish, fields)
        try:
            reply = (_classes if route == "/classify" else _reply)(answered, attempt)
            ten = headers.get("x-critic-ten")
            return reply if ten is None else replace(reply, ten_given_one=float(ten))
        except ODD as error:
            message = self._message(status, raw, answered)
            self._check_account(status, "", message, sent)
            raise Transient(f"not a chat completion ({one_line(error)}): {message}") from None

    def _message(self, status: int, raw: bytes, answered: Any) -> str:
        """Return the server's own words in at most 300 characters, without secrets."""
        return f"HTTP {status}: {self._masked(_words(raw, answered))[:300]}"

    def _check_answer(self, status: int, message: str, wish: float | None, fields: Sequence[str]) -> None:
        """Raise what an answer's error calls for: Transient with the server's `wish` in seconds, or Refused with the
        `fields` that it names."""
        if status in RETRIED_STATUS or (status >= 500 and status != httpx.codes.NOT_IMPLEMENTED):
            raise Transient(message, wish)
        if status >= 400:
            if any(sign in message for sign in TOO_LONG):
                raise Refused("context_length_exceeded", message)
            if "content_filter" in message:
                raise Refused("content_filter", message)
            raise Refused("refused", message, fields)

    def _check_account(self, status: int, kind: str, message: str, sent: bytes) -> None:
        """Raise Hopeless if no waiting helps: the account is empty, or the key is wrong."""
        if status == httpx.codes.UNAUTHORIZED:
            raise Hopeless(f"{self.endpoint} {GIVE_KEY} ({message})")
        if refusals.is_out_of_credit(status, f"{kind} {message}", sent):
            problem = f"{self.endpoint}: its account has no credit left ({message})"
            raise Hopeless(f"{problem}; see to it and run the same command again: what is judged is kept")


def _credentials(user: str | None, api_key: str | None, azure: bool) -> dict[str, str]:
    """Return the header that says who asks. A URL's user and password count before a key."""
    if user:
        return {"Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}
    if not api_key:
        return {}
    return {"api-key": api_key} if azure else {"Authorization": f"Bearer {api_key}"}


def _decoded(raw: bytes) -> Any:
    """Return what an answer holds, or None if it is no JSON."""
    answer = None
    try:
        answer = msgspec.json.decode(raw)
    except (ValueError, RecursionError):  # json takes halves of characters and NaN, and five times as long
        with suppress(ValueError):
            answer = loads(raw)
    # Google puts an error in a list.
    return answer[0] if isinstance(answer, list) and len(answer) == 1 else answer


def _to_classify(name: str, messages: Sequence[ChatMessage]) -> dict[str, Any]:
    return {"model": name, "messages": messages, "add_generation_prompt": True, "add_special_tokens": False}


def _count(value: Any) -> int | None:
    """A number of tokens, None for what is none; what no file can hold is none either."""
    return value if type(value) is int and 0 <= value < 1 << 53 else None


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _classes(answer: dict[str, Any], attempt: int) -> Reply:
    shares = [float(share) for share in answer["data"][0]["probs"]]
    if not all(math.isfinite(share) and (len(shares) == 1 or 0 <= share <= 1) for share in shares):
        raise ValueError("probabilities outside 0..1, or a score that is not finite")
    prompt = _count(_table(answer.get("usage")).get("prompt_tokens"))
    answered_by = _answered_by(answer)
    return Reply(text="", prompt_tokens=prompt or 0, attempts=attempt, classes=shares, answered_by=answered_by)


def _alternatives(token: dict[str, Any]) -> list[tuple[str, float]]:
    # Of NaN and of what is beyond 700 (some servers give logits) there is no probability.
    return [(entry["token"], entry["logprob"]) for entry in token.get("top_logprobs") or [] if entry["logprob"] < 700]


def _tokens(logprobs: Any) -> list[Token]:
    """The tokens with their alternatives; none where a server gives each token's own log probability alone."""
    try:
        entries = [{"text": entry["token"], "alternatives": _alternatives(entry)} for entry in logprobs["content"]]
        tokens = msgspec.convert(entries, list[Token])
    except ODD:
        return []
    return tokens if any(token.alternatives for token in tokens) else []


def _reply(answer: dict[str, Any], attempt: int) -> Reply:
    choice, usage = answer["choices"][0], _table(answer.get("usage"))
    message, finish = choice["message"], choice.get("finish_reason")
    text, refusal = message.get("content") or "", message.get("refusal")
    if isinstance(text, list):
        text = "".join(part["text"] for part in text if part["type"] == "text")
    if not isinstance(text, str):
        raise TypeError(f"the content is no text but {type(text).__name__}")
    if not text.strip() and isinstance(refusal, str) and refusal.strip():
        text, finish = refusal, "refusal"
    prompt, completion = (_count(usage.get(f"{name}_tokens")) for name in ("prompt", "completion"))
    cached = _count(_table(usage.get("prompt_tokens_details")).get("cached_tokens"))
    return Reply(
        text=text,
        truncated=finish == "length",
        tokens=_tokens(choice.get("logprobs")),
        prompt_tokens=prompt or 0,
        cached_tokens=cached or 0,
        completion_tokens=completion or 0,
        attempts=attempt,
        finish=finish if isinstance(finish, str) and finish else "stop",
        counted=bool(prompt or completion),
        reasoned=bool(message.get("reasoning") or message.get("reasoning_content")),
        answered_by=_answered_by(answer),
        thoughts=next((said for name in THOUGHTS if isinstance(said := message.get(name), str) and said.strip()), ""),
    )


def _answered_by(answer: Mapping[str, Any]) -> str:
    """Return who a reply says it is from: the model's name and the system's fingerprint, if it says so."""
    model, fingerprint = (
        " ".join(value.split())[:100] if isinstance(value := answer.get(name), str) else ""
        for name in ("model", "system_fingerprint")
    )
    return f"{model} ({fingerprint})".strip() if fingerprint else model


def _error_in(answer: Any) -> Any:
    """What an answer says went wrong, in place of choices or of a choice's message; None where nothing did."""
    if not isinstance(answer, dict):
        return None
    choices = answer.get("choices")
    if isinstance(choices, list) and choices:
        return _table(choices[0]).get("error")
    return answer.get("error")


def _status(error: Any, message: str, fields: Sequence[str]) -> int:
    """Return the HTTP status of an error inside a 200: its own code, or 400 for what is not worth another try."""
    code = _table(error).get("code")
    if type(code) is int and 400 <= code < 600:
        return code
    refused = fields or any(sign in message for sign in TOO_LONG)
    return 400 if refused or "invalid_request" in str(error) else 500


def _kind(error: Any) -> str:
    """Return an error's type and code."""
    table = _table(error)
    return f"{table.get('type')} ({table.get('code')})"


def _words(raw: bytes, answer: Any) -> str:
    """Return the server's own words on an error, on one line."""
    error = _error_in(answer)
    table = _table(answer if error is None else error)
    text, code = table.get("message", error), table.get("code")
    if not (isinstance(text, str) and text.strip()):
        text = raw[:10_000].decode(errors="replace")  # of a reply that is none, or a page
    elif isinstance(code, str):
        text = f"{text} ({code})"
    return " ".join(text.split())
