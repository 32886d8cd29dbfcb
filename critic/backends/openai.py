"""Backend for any OpenAI-compatible server over HTTP, with bounded, jittered and counted retries."""

import asyncio
import base64
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import msgspec
from msgspec.structs import replace

from critic import backends
from critic.backends import ChatMessage, ModelInfo, Reply, Request, Token, ends_open, refusals
from critic.backends.address import parse, redact_url
from critic.backends.answers import cut_answer, find_answer, rate_answer
from critic.errors import Hopeless, Refused, Transient, UsageError, loads, mask, notify, one_line
from critic.images import image_part
from critic.records import RATINGS

_FILE = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes())

TOO_LONG: list[str] = _FILE["too_long"]
"""Phrases in servers' error messages about a prompt that does not fit the context window."""

ODD = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
"""Exceptions that may be raised while a malformed answer of a server is parsed."""

THOUGHTS = ("reasoning_content", "reasoning")
"""Message fields that hold the reasoning, separate from the answer: DeepSeek's name and vLLM's."""

RED: str = _FILE["red"]
"""A small image (32 x 32 red pixels) as a data URI."""

Parser = Callable[[dict[str, Any], int], Reply]
"""Function that parses a server's decoded answer; its second argument is the number of the try, from 1.

It raises one of ODD if the answer is malformed.
"""

RETRIED_STATUS = {408, 409, 425, 429}

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before the second try, and the longest pause between two tries unless the server requests more."""

LONGEST_WISH = 120.0
"""Longest wait that a server may request, in seconds; longer waits are cut to this."""

OURS = {"x-critic-contract": "none", "x-critic-rating": "whole"}
"""Headers for a server started by `critic serve`: do not apply its prompt contracts, and return the log probabilities
of the rating only."""

NO_LIST = (httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED, httpx.codes.NOT_IMPLEMENTED)
"""HTTP statuses of servers without a list of models."""

NO_KEY = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)
"""HTTP statuses of servers that reject the API key."""

_PREFIX_CACHE = re.compile(r"^vllm:prefix_cache_(queries|hits)_total(?:\{.*\})? ([\d.e+]+)", re.MULTILINE)
"""Matches a counter of the prefix cache in the text of vLLM's route /metrics."""

GIVE_KEY = "does not take the API key: give its own by --api-key or OPENAI_API_KEY"


class OpenAIBackend(backends.Backend):
    """An OpenAI-compatible server at `base_url`. Call `choose` to select a model before the first request.

    `api_key`: None or "" if the server needs no key.
    `timeout`: seconds per try.
    `connections`: most concurrent requests.
    `attempts`: most tries per call. A call is repeated after a timeout, a lost connection, a malformed reply, a status
        in RETRIED_STATUS, or 5xx (except 501).
    `offered`: model name -> entry in the server's list of models; {} before `choose`, or if there is no list.
    `unsupported`: names of the request fields that the server has refused so far (`refusals.OPTIONAL`). Later requests
        omit them.

    Error messages contain neither the key nor the password in the URL.
    """

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
        self._headers = OURS | _build_credentials(self._address.user, api_key, self._address.azure)
        self.attempts, self.timeout = attempts, timeout
        self.endpoint, self.max_concurrency, self.retries = redact_url(base_url).removesuffix("/v1"), connections, 0
        self.unsupported, self.offered = set[str](), dict[str, dict[str, Any]]()
        self._tokens: dict[str, int | None] = {}
        # True once a list of models or a reply has shown an OpenAI-compatible server.
        self._is_known = False

    async def __aexit__(self, *_: object) -> None:
        attributes = vars(self)
        if "_session" in attributes:
            await attributes.pop("_session").close()
        if "_plain" in attributes:
            attributes.pop("_plain").close()

    @cached_property
    def _plain(self) -> httpx.Client:
        """HTTP client for the few synchronous requests, such as the list of models."""
        # Minutes may lie between two of them, in which a server closes a kept connection: each has its own.
        return httpx.Client(headers=self._headers, timeout=30.0, limits=httpx.Limits(max_keepalive_connections=0))

    @cached_property
    def _session(self) -> aiohttp.ClientSession:
        """HTTP client for concurrent chat requests. It needs a running event loop.

        aiohttp is used because, with dozens of requests in flight, httpx takes ten times the processor time.
        """
        return aiohttp.ClientSession(
            headers={**self._headers, "Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=self.timeout),
            # An idle connection is kept for less than uvicorn's 5 seconds, which would cut it off.
            connector=aiohttp.TCPConnector(limit=self.max_concurrency, keepalive_timeout=4.0),
            trust_env=True,  # proxies
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    def choose(self, name: str | None) -> ModelInfo:
        """Select a model and return what is known about it.

        `name`: the model's name; None selects the model that the URL names, or else the server's first one.

        If the server has no list of models, a name given here or in the URL is trusted. Raises UsageError if the server
        does not answer, or does not list the model.
        """
        name = name or self._address.deployment
        offered = self._list_models(name)
        if offered is None:
            self.served = ModelInfo(str(name), None, is_vllm=False)
            return self.served
        self._is_known, self.offered = True, offered
        if name is not None and name not in offered:
            raise UsageError(f"the server at {self.endpoint} has no model {name!r}; it offers {', '.join(offered)}")
        chosen = offered[name] if name is not None else next(iter(offered.values()))
        is_vllm, processor = chosen.get("owned_by") == "vllm", chosen.get("processor")
        if is_vllm and chosen.get("root"):
            # A judge may be served under several names; the one with a hash of its weights is used.
            same = (model for model in offered.values() if model.get("root") == chosen["root"] and "@" in model["id"])
            chosen = next(same, chosen)
        classes = self._count_classes(chosen["id"]) if is_vllm else 0
        try:
            msgspec.convert(chosen, backends.Told)
        except msgspec.ValidationError as error:
            # Other programs may use the same field names. Only `critic serve` publishes a pack.
            if "pack" in chosen:
                raise UsageError(f"{self.endpoint}: another version of critic serves {chosen['id']}: {error}") from None
            chosen = {name: value for name, value in chosen.items() if name not in backends.Told.__struct_fields__}
        # A reward model that another program serves: it compares answers, and only equal scores are a tie.
        chosen = {"tie_band": 0.0, **chosen} if classes == 1 else chosen
        self.served = ModelInfo(
            chosen["id"],
            _read_count(chosen.get("max_model_len")),
            is_vllm,
            processor if isinstance(processor, str) else None,
            classes in (1, len(RATINGS)) or chosen.get("read_answer") is True or bool(chosen.get("criteria")),
            chosen,
        )
        return self.served

    def _list_models(self, name: str | None) -> dict[str, dict[str, Any]] | None:
        """Return the server's list of models: name -> entry.

        `name`: the model that will be used, or None. If it is given and the server has no usable list, return None.
        Raises UsageError if the server does not answer or offers no model.
        """
        # Azure lists what could be deployed, not what is.
        if name is not None and self._address.azure:
            return None
        place, status = redact_url(self._address.url("")), 0
        try:
            answer = self._plain.get(self._address.url("/models"))
            status = answer.status_code
            # Some keys are valid for completions but not for the list.
            if name is not None and status in (*NO_LIST, *(NO_KEY if self._key else ())):
                return None
            if status in NO_KEY:
                raise UsageError(f"{self.endpoint} {GIVE_KEY}")
            answer.raise_for_status()
            models = loads(answer.content)["data"]
            offered = {str(model["id"]): {**model, "id": str(model["id"])} for model in models}
        except (httpx.HTTPError, httpx.InvalidURL, *ODD) as error:
            hint = "; name the model (URL#MODEL, --model) if it has no list of them" if status in NO_LIST else ""
            problem = f"{self._mask(one_line(error))}{hint}; `critic serve FOLDER` starts one"
            raise UsageError(f"{backends.NO_ANSWER} at {place}: {problem}") from None
        if not offered:
            raise UsageError(f"{backends.NO_ANSWER} at {place}: it offers no model")
        # Google lists models/NAME, and takes NAME.
        if name is not None and f"models/{name}" in offered:
            offered[name] = {**offered[f"models/{name}"], "id": name}
        return offered

    def _mask(self, text: str) -> str:
        """Return the text without secrets (`errors.mask`), such as this server's key and password."""
        return mask(text, [self._key, *self._address.secrets])

    @cache  # noqa: B019 - of the few backends of a run
    def sees(self) -> bool | None:
        """Return True if the model accepts images, False if not, or None if unknown.

        Only vLLM can be tested, by asking it to tokenize a small image; the result is None for other servers.
        """
        if not self.served.is_vllm:
            return None
        messages = [{"role": "user", "content": [image_part(RED), {"type": "text", "text": "?"}]}]
        body = {"model": self.served.name, "messages": messages}
        with suppress(httpx.HTTPError):
            answer = self._post_once("/tokenize", body)
            return answer.is_success if answer.status_code in (httpx.codes.OK, httpx.codes.BAD_REQUEST) else None
        return None

    def _count_classes(self, name: str) -> int:
        """Return the number of classes of the vLLM model `name`: 10 for a head that rates, 1 for a head that compares.

        Return 0 for models that generate text.
        """
        question = [{"role": "user", "content": "?"}]
        with suppress(httpx.HTTPError, *ODD):
            answer = self._post_once("/classify", _build_classify_body(name, question))
            # Models that write have no such route.
            return len(loads(answer.content)["data"][0]["probs"]) if answer.is_success else 0
        return 0

    def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Return the number of tokens of a prompt as vLLM counts them (route `/tokenize`).

        Raises Refused if the server has no such route or gives no count, or Transient if it does not answer.
        """
        try:
            return int(self._tokenize(messages, add_generation_prompt=ends_open(messages))["count"])
        except httpx.TransportError as error:
            raise Transient(f"no tokens can be counted: {one_line(error)}") from None
        except (httpx.HTTPError, *ODD) as error:
            problem = f"too long, and no tokens can be counted: {one_line(error)}"
            raise Refused("context_length_exceeded", problem) from None

    def count_prefix_hits(self) -> Counter[str]:
        counters = Counter[str]()
        with suppress(httpx.HTTPError):
            text = self._plain.get(self._address.url("/metrics")).text if self.served.is_vllm else ""
            # Each engine of a server has counters of its own.
            for name, value in _PREFIX_CACHE.findall(text):
                counters[name] += int(float(value))
        return counters

    def _tokenize(self, messages: Sequence[ChatMessage], **options: bool) -> Any:
        """Return vLLM's answer to a `/tokenize` request for the messages; `options` are passed on to vLLM."""
        body = {"model": self.served.name, "messages": messages, **options}
        answer = self._post_once("/tokenize", body)
        answer.raise_for_status()
        return loads(answer.content)

    def _post_once(self, route: str, body: dict[str, Any]) -> httpx.Response:
        """Send one POST request and return the answer. This call blocks: make it outside the event loop's thread."""
        return self._plain.post(self._address.url(route), json=body)

    async def chat(self, request: Request) -> Reply:
        """Return the reply to a request.

        If the server's error names an optional field, the request is repeated without that field. Once that succeeds,
        later requests omit the field. Raises Refused if the server will never accept the request, Transient after the
        last try failed, or Hopeless if the account is empty or the key is wrong.
        """
        self.served.check(request)
        if request.classify:
            return await self._classify(request.messages)
        body = self._build_body(request)
        # A rating is forced by a bias: the probabilities that the server reports stay the model's own.
        if (token := await self._find_token(request)) is not None:
            body["logit_bias"] = {str(token): backends.FAVOUR}
        left_out, innocent = dict[str, Refused](), set[str]()
        while True:
            try:
                reply = await self._request(refusals.drop_unsupported(body, self.unsupported | left_out.keys()))
            except Refused as error:
                last = next(reversed(left_out), "max_tokens")
                # The same error without the field: another field is the cause. `max_tokens` and
                # `max_completion_tokens` are the same field.
                if last != "max_tokens" and str(left_out[last]) == str(error):
                    innocent |= {"max_tokens", last} if last == "max_completion_tokens" else {last}
                    left_out = {name: why for name, why in left_out.items() if name not in innocent}
                fields = [name for name in error.fields if name not in {*innocent, *left_out}]
                if not fields:
                    self._check_route(error)
                    raise
                left_out[fields[0]] = error
                continue
            # Only success shows that this field was the cause: some servers repeat the whole request in their error.
            for name in left_out.keys() - self.unsupported:
                notify(f"{self.endpoint} takes no {name}; {refusals.OPTIONAL[name][1]}: {left_out[name]}")
            self.unsupported |= left_out.keys()
            self._is_known = True
            return reply

    async def _classify(self, messages: Sequence[ChatMessage]) -> Reply:
        """Return a scoring head's reply to a prompt, with its outputs in `classes`. Raises as `chat` does."""
        body = _build_classify_body(self.served.name, messages)
        if not self.served.reads_answer:
            return await self._request(body, "/classify", _parse_classes)
        answer = await asyncio.to_thread(self._find_answer, messages)
        return await self._request(body, "/pooling", partial(_parse_logits, answer=answer))

    def _find_answer(self, messages: Sequence[ChatMessage]) -> int:
        """Return the index of the first token of the judged answer in a prompt (`answers.find_answer`).

        Raises Transient if the server does not tokenize the prompt.
        """
        try:
            shown = (self._tokenize(part, add_generation_prompt=True) for part in (messages, cut_answer(messages)))
            return find_answer(*(tokenized["tokens"] for tokenized in shown))
        except (httpx.HTTPError, *ODD) as error:
            raise Transient(f"the prompt cannot be tokenized: {one_line(error)}") from None

    def _check_route(self, error: Refused) -> None:
        """Raise Hopeless if `error` says that there is no chat route (status 404 or 405), unless the server is known.

        A server is known once a list of models or a reply has shown that it is OpenAI-compatible.
        """
        if not self._is_known and str(error).startswith(("HTTP 404", "HTTP 405")):
            where = f"{self._address.api}/chat/completions"
            raise Hopeless(f"{backends.NO_ANSWER} at {where}: {error}; give what stands before /chat") from None

    async def _find_token(self, request: Request) -> int | None:
        """Return the token id of the request's `forced_token`.

        Return None if the request has none, if no single token spells it, or if the server accepts no logit bias.
        """
        text = request.forced_token
        if text is None or "logit_bias" in self.unsupported:
            return None
        if text not in self._tokens:
            self._tokens[text] = await asyncio.to_thread(self._find_last_token, request.messages, text)
        return self._tokens[text]

    def _find_last_token(self, messages: Sequence[ChatMessage], text: str) -> int | None:
        """Return the id of the token that spells `text` as a continuation of the last message.

        Return None if no single token spells it, or if the server cannot tokenize.
        """
        prefixed = [{"role": "user", "content": "?"}, {**messages[-1], "content": messages[-1]["content"] + text}]
        unfinished = {"continue_final_message": True, "add_generation_prompt": False}
        with suppress(httpx.HTTPError, *ODD):
            tokenized = self._tokenize(prefixed, return_token_strs=True, **unfinished)
            return int(tokenized["tokens"][-1]) if tokenized["token_strs"][-1] == text else None
        return None

    async def _request(
        self, body: dict[str, Any], route: str = "/chat/completions", parse: Parser | None = None
    ) -> Reply:
        """Send `body` to a route up to `attempts` times until there is a reply.

        `parse`: parses the server's answer; by default as a chat completion. Raises Transient with the last problem, or
        Refused or Hopeless at once.
        """
        for attempt in range(1, self.attempts + 1):
            try:
                return await self._request_once(body, route, attempt, parse or _parse_reply)
            except Transient as error:
                if attempt == self.attempts:
                    raise Transient(f"{error} (after {attempt} tries)", tries=attempt) from None
                self.retries += 1
                # Jitter keeps many requests from coming back in one burst.
                wait = min(FIRST_PAUSE * 2 ** (attempt - 1), LONGEST_PAUSE) * random.uniform(0.5, 1.5)
                await asyncio.sleep(max(wait, min(error.retry_after or 0.0, LONGEST_WISH)))
        raise AssertionError("unreachable: the last try raises")

    def _build_body(self, request: Request) -> dict[str, Any]:
        """Build the JSON body of a chat completion request."""
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
            # Without include_reasoning, vLLM with a reasoning parser constrains only after the end of thoughts.
            body |= {"continue_final_message": True, "add_generation_prompt": False, "include_reasoning": False}
        if request.top_logprobs:
            body |= {"logprobs": True, "top_logprobs": request.top_logprobs}
        return body

    async def _request_once(self, body: dict[str, Any], route: str, attempt: int, parse: Parser) -> Reply:
        """Send one request and return the reply that `parse` reads from the server's answer.

        `attempt`: number of the try, from 1. Raises Transient, Refused or Hopeless, depending on the answer.
        """
        url = self._address.url(route)
        try:
            sent = msgspec.json.encode(body)
            status, raw, headers = await self._post(url, sent)
        # OSError includes TimeoutError.
        except (aiohttp.ClientError, OSError) as error:
            raise Transient(self._mask(one_line(error))) from None
        answered = _decode(raw)
        problem = _find_error(answered)
        # Gateways report another server's failure in an answer with status 200.
        if status != httpx.codes.OK or problem is not None:
            fields = refusals.find_refused_fields(answered, _read_message(raw, answered), body)
            message = self._describe_error(status, raw, answered)
            if status == httpx.codes.OK:
                status = _find_status(problem, message, fields)
            self._check_account(status, problem, message, sent)
            wish = refusals.read_retry_after(headers, raw[:10_000].decode(errors="replace"))
            self._raise_for_status(status, message, wish, fields)
        try:
            reply = parse(answered, attempt)
            ten = headers.get("x-critic-ten")
            return reply if ten is None else replace(reply, ten_given_one=float(ten))
        except ODD as error:
            # A page of a proxy, or another program on this port: a later try may succeed.
            message = self._describe_error(status, raw, answered)
            self._check_account(status, None, message, sent)
            raise Transient(f"not a chat completion ({one_line(error)}): {message}") from None

    async def _post(self, url: str, sent: bytes) -> tuple[int, bytes, Mapping[str, str]]:
        """Send a POST request with the body `sent`; return the answer's status, body and headers."""
        async with self._session.post(url, data=sent, allow_redirects=False) as answer:
            return answer.status, await answer.read(), answer.headers

    def _describe_error(self, status: int, raw: bytes, answered: Any) -> str:
        """Return the status and the server's error message, without secrets; the message is cut to 300 characters."""
        return f"HTTP {status}: {self._mask(_read_message(raw, answered))[:300]}"

    def _raise_for_status(self, status: int, message: str, wish: float | None, fields: Sequence[str]) -> None:
        """Raise Transient or Refused if the HTTP status is an error.

        Args:
            message: The error message for the exception.
            wish: The wait in seconds that the server requests, or None.
            fields: The names of the request fields that it rejects.
        """
        if status in RETRIED_STATUS or (status >= 500 and status != httpx.codes.NOT_IMPLEMENTED):
            raise Transient(message, wish)
        if status >= 400:
            if any(sign in message for sign in TOO_LONG):
                raise Refused("context_length_exceeded", message)
            if "content_filter" in message:
                raise Refused("content_filter", message)
            raise Refused("refused", message, fields)

    def _check_account(self, status: int, error: Any, message: str, sent: bytes) -> None:
        """Raise Hopeless if the account is empty or the key is wrong, so that waiting cannot help.

        Args:
            status: The HTTP status of the answer.
            error: The error object in the answer, or None.
            message: The error message for the exception.
            sent: The request body, which some servers repeat in their error.
        """
        if status == httpx.codes.UNAUTHORIZED:
            raise Hopeless(f"{self.endpoint} {GIVE_KEY} ({message})")
        table = _as_table(error)
        if refusals.is_out_of_credit(status, f"{table.get('type')} ({table.get('code')}) {message}", sent):
            problem = f"{self.endpoint}: its account has no credit left ({message})"
            raise Hopeless(f"{problem}; see to it and run the same command again: what is judged is kept")


def _build_credentials(user: str | None, api_key: str | None, azure: bool) -> dict[str, str]:
    """Return the HTTP header that authenticates, as a dict; {} without credentials.

    `user`: USER:PASSWORD from the URL, or None. It takes precedence over `api_key`. `azure`: the key goes into Azure's
    header `api-key`.
    """
    if user:
        return {"Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}
    if not api_key:
        return {}
    return {"api-key": api_key} if azure else {"Authorization": f"Bearer {api_key}"}


def _decode(raw: bytes) -> Any:
    """Decode the JSON body of an answer. A list with one item becomes that item. Return None if it is not JSON."""
    answer = None
    try:
        answer = msgspec.json.decode(raw)
    # json takes lone surrogates and NaN, and five times as long.
    except (ValueError, RecursionError):
        with suppress(ValueError):
            answer = loads(raw)
    # Google puts an error in a list.
    return answer[0] if isinstance(answer, list) and len(answer) == 1 else answer


def _build_classify_body(name: str, messages: Sequence[ChatMessage]) -> dict[str, Any]:
    """Build the JSON body of a request to vLLM's route `/classify`."""
    return {
        "model": name,
        "messages": messages,
        "add_generation_prompt": ends_open(messages),
        "add_special_tokens": False,
    }


def _read_count(value: Any) -> int | None:
    """Return `value` if it is a whole number in 0..2^53 - 1, else None."""
    return value if type(value) is int and 0 <= value < 1 << 53 else None


def _as_table(value: Any) -> dict[str, Any]:
    """Return `value` if it is a dict, else {}."""
    return value if isinstance(value, dict) else {}


def _parse_logits(answered: dict[str, Any], attempt: int, answer: int) -> Reply:
    """Parse the answer of vLLM's route `/pooling` for a scoring head that also reads the judged answer's tokens.

    `answer`: index of the first token of the judged answer. Raises one of ODD if the server's answer is malformed.
    """
    (prompt,) = answered["data"]
    return _parse_classes({**answered, "data": [{"probs": rate_answer(prompt["data"], answer)}]}, attempt)


def _parse_classes(answer: dict[str, Any], attempt: int) -> Reply:
    """Parse the answer of vLLM's route `/classify`: class probabilities, or a single score.

    Raises one of ODD if it is malformed.
    """
    shares = [float(share) for share in answer["data"][0]["probs"]]
    if not all(math.isfinite(share) and (len(shares) == 1 or 0 <= share <= 1) for share in shares):
        raise ValueError("probabilities outside 0..1, or a score that is not finite")
    prompt = _read_count(_as_table(answer.get("usage")).get("prompt_tokens"))
    answered_by = _read_answered_by(answer)
    return Reply(text="", prompt_tokens=prompt or 0, attempts=attempt, classes=shares, answered_by=answered_by)


def _parse_tokens(logprobs: Any) -> list[Token]:
    """Parse the field `logprobs` of a chat completion to tokens. Return [] if it has no top log probabilities."""
    tokens = list[Token]()
    with suppress(*ODD):
        for entry in logprobs["content"]:
            # NaN and values above 700 (some servers give logits) have no probability.
            likely = [other for other in entry.get("top_logprobs") or [] if other["logprob"] < 700]
            alternatives = [(other["token"], other["logprob"]) for other in likely]
            tokens.append(msgspec.convert({"text": entry["token"], "alternatives": alternatives}, Token))
        return tokens if any(token.alternatives for token in tokens) else []
    return []


def _parse_reply(answer: dict[str, Any], attempt: int) -> Reply:
    """Parse a server's chat completion. Raises one of ODD if it is malformed."""
    choice, usage = answer["choices"][0], _as_table(answer.get("usage"))
    message, finish = choice["message"], choice.get("finish_reason")
    text, refusal = message.get("content") or "", message.get("refusal")
    # Mistral gives content in parts if the model reasons.
    if isinstance(text, list):
        text = "".join(part["text"] for part in text if part["type"] == "text")
    if not isinstance(text, str):
        raise TypeError(f"the content is no text but {type(text).__name__}")
    if not text.strip() and isinstance(refusal, str) and refusal.strip():
        text, finish = refusal, "refusal"
    prompt, completion = _read_count(usage.get("prompt_tokens")), _read_count(usage.get("completion_tokens"))
    cached = _read_count(_as_table(usage.get("prompt_tokens_details")).get("cached_tokens"))
    thoughts = (message.get(name) for name in THOUGHTS)
    return Reply(
        text=text,
        truncated=finish == "length",
        tokens=_parse_tokens(choice.get("logprobs")),
        prompt_tokens=prompt or 0,
        cached_tokens=cached or 0,
        completion_tokens=completion or 0,
        attempts=attempt,
        finish=finish if isinstance(finish, str) and finish else "stop",
        counted=bool(prompt or completion),
        reasoned=bool(message.get("reasoning") or message.get("reasoning_content")),
        answered_by=_read_answered_by(answer),
        thoughts=next((text for text in thoughts if isinstance(text, str) and text.strip()), ""),
    )


def _read_answered_by(answer: Mapping[str, Any]) -> str:
    """Return the model name in an answer and, in brackets, its system fingerprint; "" if the answer has neither.

    >>> _read_answered_by({"model": "gpt-4o-2024-08-06", "system_fingerprint": "fp_1"})
    'gpt-4o-2024-08-06 (fp_1)'
    """
    model, fingerprint = (
        " ".join(value.split())[:100] if isinstance(value := answer.get(name), str) else ""
        for name in ("model", "system_fingerprint")
    )
    return f"{model} ({fingerprint})".strip() if fingerprint else model


def _find_error(answer: Any) -> Any:
    """Return the field `error` of a decoded answer or, if there are choices, of its first choice; None without one."""
    if not isinstance(answer, dict):
        return None
    choices = answer.get("choices")
    if isinstance(choices, list) and choices:
        return _as_table(choices[0]).get("error")
    return answer.get("error")


def _find_status(error: Any, message: str, fields: Sequence[str]) -> int:
    """Return the HTTP status that fits an error in an answer with status 200.

    It is the code in the error if that is an HTTP status, else 400 if a retry would be useless, else 500. `fields`: the
    request fields that the error rejects.
    """
    code = _as_table(error).get("code")
    if type(code) is int and 400 <= code < 600:
        return code
    refused = fields or any(sign in message for sign in TOO_LONG)
    return 400 if refused or "invalid_request" in str(error) else 500


def _read_message(raw: bytes, answer: Any) -> str:
    """Return a server's error message on one line, or the beginning of the raw body if there is no message.

    `answer`: the decoded body, or None.
    """
    error = _find_error(answer)
    table = _as_table(answer if error is None else error)
    text, code = table.get("message", error), table.get("code")
    if not (isinstance(text, str) and text.strip()):
        # A web page, or JSON of another kind.
        text = raw[:10_000].decode(errors="replace")
    elif isinstance(code, str):
        text = f"{text} ({code})"
    return " ".join(text.split())
