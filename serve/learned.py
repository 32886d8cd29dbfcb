"""Convert a client's request to a form that the judge was trained on, and compose the reply that its parser expects.

The code of `critic judge` runs within this process and asks the served judge. Therefore the certificate of an audit
applies to replies to clients too, and scoring heads, which generate no text, can serve clients.

The composed reply has the layout that the contract describes. Its verdict is on the client's scale or one of the
client's labels, and the judge's reason is placed where the client expects reasoning. The functions that compose are
pure.
"""

import asyncio
import json
import math
import re
import time
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import httpx
import regex
from api_formats import Headers, Refusal, Request, called, forced_tool, list_parts, read_limit
from chat_request import ChatRequest
from contracts import LABELLED, Contract, Contracts, Unanswerable, read_form, reply_schema
from options import Settings
from parts import RequestParts, find_parts
from scales import Schema, is_verdict
from schemas import Unbounded, bounded

from critic.backends import ModelInfo
from critic.backends.openai import OpenAIBackend
from critic.building.replies import is_in_language
from critic.human_scored import build_unscored
from critic.images import Images
from critic.judging.forms import Form, can_give, form_of
from critic.judging.judge import TOKENS, Judge, build_served, plan_response
from critic.judging.kinds.choices import is_right
from critic.records import Judgment, Response, Turn, sum_usage


class InnerBackend(OpenAIBackend):
    """Backend for `critic judge` that calls the server's own routes within this process."""

    def __init__(self, server: Any, key: str | None, served: ModelInfo) -> None:
        super().__init__("http://127.0.0.1/v1", api_key=key, attempts=1)
        self.served = served
        self._loop = asyncio.get_running_loop()
        headers = {**self._headers, "Content-Type": "application/json"}
        self._inside = httpx.AsyncClient(transport=httpx.ASGITransport(server), headers=headers, timeout=None)

    async def _post(self, url: str, sent: bytes) -> tuple[int, bytes, Mapping[str, str]]:
        answer = await self._inside.post(url, content=sent)
        return answer.status_code, answer.content, answer.headers

    def _post_once(self, route: str, body: dict[str, Any]) -> httpx.Response:
        posted = self._inside.post(self._address.url(route), json=body)
        # Called in a thread, while the server's loop answers.
        return asyncio.run_coroutine_threadsafe(posted, self._loop).result()


def usable_forms(about: Mapping[str, Any]) -> dict[str, Form]:
    """Return the forms, by name, that the judge was trained on and that client requests can be converted to.

    `about` is `Settings.about`.
    """
    usable = dict[str, Form]()
    for name in about.get("forms", ()):
        form = form_of(name)
        # The others need what no client shows: the turns of a benchmark, and the verdicts on them.
        is_shown = (form.protocol, form.scope) == ("pointwise", "turn") and form.kind.is_verdict
        if is_shown and ("gives" not in about or can_give(about, name)):
            usable[name] = form
    return usable


def describe_service(settings: Settings, contracts: Contracts) -> str:
    """Return a line that lists the usable forms and the clients whose requests can be converted to them.

    Return "" if there is no usable form, or if requests are not converted (`Settings.as_learned`).

    >>> from contracts import load
    >>> from msgspec.structs import replace
    >>> plain = Settings(model="m", aliases=[], contracts=[], max_bytes=1, images=False, as_learned=True)
    >>> about = {"forms": ["pointwise_short"], "gives": "one rating on 1..10"}
    >>> head = replace(plain, about=about)
    >>> learned, _, others = describe_service(head, load()).rpartition(", ")
    >>> learned
    'as learned (pointwise_short): inspect-ai, lmms-eval, FastChat, prometheus-eval, mlflow, promptfoo'
    >>> others
    'prompts with Question: and Answer:'
    >>> about = {"forms": ["pairwise"], "gives": "one score of each answer that is compared", "tie_band": 0.1}
    >>> describe_service(replace(plain, about=about), load())
    'as learned (pairwise): FastChat, prometheus-eval'
    >>> unasked = [plain, replace(plain, about={"forms": ["direct_turn", "pairwise_whole"]})]
    >>> unasked.append(replace(head, as_learned=False))
    >>> [describe_service(settings, load()) for settings in unasked]
    ['', '', '']
    """
    forms, clients = usable_forms(settings.about), dict[str, None]()
    pairs = {form.pair for form in forms.values()}
    for entry in (entry for table in contracts.tables for entry in table if entry.asks):
        if pairs & {"{other}" in frame for frame in entry.parts if frame != LABELLED}:
            # The first word is the client's name.
            clients[entry.client.split()[0].rstrip(",")] = None
    if False in pairs:
        clients["prompts with Question: and Answer:"] = None
    return f"as learned ({', '.join(forms)}): {', '.join(clients)}" if forms and settings.as_learned else ""


class LearnedJudge:
    """The served judge, asked in the forms that it was trained on.

    - `server`: the ASGI application. `key`: its API key, or None.
    - `settings`: those of the layer. `context`: context length in tokens, or None if unknown.
    """

    def __init__(self, server: Any, key: str | None, settings: Settings, context: int | None) -> None:
        self.about = about = settings.about
        served = ModelInfo(settings.model, context, True, about.get("processor"), "gives" in about, about)
        self.backend = InnerBackend(server, key, served)

    async def answer(self, request: ChatRequest, contract: Contract, sees: bool) -> tuple[Headers, bytes]:
        """Ask the judge, and return the headers and body of the reply to a client. `sees`: the judge can see images.

        Raise Unanswerable if the request cannot be converted to a form of the judge or the reply cannot be composed.
        Raise Refusal if the judge returns no verdict.
        """
        client = request.client
        if client.get("n") not in (None, 1):
            raise Unanswerable("it asks for several replies (n), and the judge gives one verdict")
        if client.get("logprobs"):
            raise Unanswerable("it asks for log probabilities, which a composed reply has not")
        parts = await asyncio.to_thread(find_parts, contract, client)
        shown = chain.from_iterable(map(list_parts, client["messages"]))
        images = [str(part["image_url"]["url"]) for part in shown if part.get("type") == "image_url"]
        if images and not (sees and all(image.startswith("data:") for image in images)):
            raise Unanswerable("its images are none that a form shows")
        # Each criterion of a rubric is judged separately.
        rubrics = {"": parts.rubric}
        if contract.keys:
            lines = parts.rubric.splitlines()
            rubrics = {key: line for line in lines for key in regex.findall(contract.keys.each, line)}
        # Fail before asking the judge if the reply cannot be composed.
        score = ClientScore(dict.fromkeys(rubrics, 0.0), contract.values)
        compose(contract, client, score)
        name = self._choose(contract, pair=parts.other is not None)
        judge = self._judge(name, bool(images))
        judgments = []
        for key, rubric in rubrics.items():
            # A head that rates by criteria knows them by their names.
            named = {key: rubric} if key and self.about.get("criteria") else {}
            answer = _build_response(parts, rubric, images, named)
            judgments.append(await judge.verdict_on(judge.prepare(plan_response(name, answer, answer.other))))
        for key, judgment in zip(rubrics, judgments, strict=True):
            if judgment.score is None:
                failure, detail = judgment.verdict.failure, judgment.detail or judgment.reply
                message = f"the judge gave no verdict: {failure} ({detail})"[:500]
                status = HTTPStatus.SERVICE_UNAVAILABLE if failure == "server_error" else HTTPStatus.BAD_REQUEST
                raise Refusal(message, code=failure, status=status)
            score.shares[key] = (judgment.score - 1) / 9 if form_of(name).kind.rates else judgment.score
        reason = judgments[0].verdict.reason or ""
        # A reason longer than the client's limit would cut off the verdict.
        score = score._replace(reason=reason if len(reason) <= (read_limit(client) or TOKENS * 8) else None)
        return self._reply(request, name, compose(contract, client, score), judgments)

    def _choose(self, contract: Contract, pair: bool) -> str:
        """Return the name of the form in which to ask the judge. `pair` is True if the request has two answers.

        Raise Unanswerable if the judge was not trained on a form with that number of answers.
        """
        forms = {name: form for name, form in usable_forms(self.about).items() if form.pair == pair}
        if not forms:
            shown = "two answers, and this judge rates one" if pair else "one answer, and this judge compares two"
            raise Unanswerable(f"it shows {shown}")
        # Forms with labels are for clients with labels, ratings are for clients with scales.
        return min(forms, key=lambda name: forms[name].kind.rates == bool(contract.values))

    @cache  # noqa: B019 - one judge a process
    def _judge(self, form: str, shows: bool) -> Judge:
        # The names of images are data URIs: none is looked for in the folder.
        images = Images(Path(__file__).parent) if shows else None
        return build_served(self.backend, form, images)

    def _reply(self, request: ChatRequest, form: str, text: str, judgments: list[Judgment]) -> tuple[Headers, bytes]:
        """Return the headers and body of a reply with the composed `text`, in the format of vLLM's replies.

        `form` is the name of the form in which the judge was asked. `judgments` has one judgment per criterion.
        """
        certificate = self.about.get("certificate_sha256")
        tokens = sum_usage(judgments)
        usage = {name: tokens[name] for name in ("prompt_tokens", "completion_tokens")}
        message = {"role": "assistant", "content": text}
        reply = {
            "id": f"chatcmpl-critic-{time.time_ns():x}",
            "object": "chat.completion.chunk" if request.stream else "chat.completion",
            "created": int(time.time()),
            # An alias is no name of the judge, and logs keep this one.
            "model": self.backend.served.name,
            # Clients' logs drop headers.
            "system_fingerprint": f"critic-form={form}"
            + (f" critic-certificate={certificate[:16]}" if certificate else ""),
            "choices": [{"index": 0, "delta" if request.stream else "message": message, "finish_reason": "stop"}],
            "usage": {**usage, "total_tokens": sum(usage.values())},
        }
        if (tool := forced_tool(request.client)) is not None:
            reply = called(request.client, reply, tool)
        body, kind = json.dumps(reply, ensure_ascii=False), "application/json"
        if request.stream:
            body, kind = f"data: {body}\n\ndata: [DONE]\n\n", "text/event-stream; charset=utf-8"
        headers = [(b"x-critic-form", form.encode()), (b"content-type", kind.encode())]
        if cuts := ", ".join(f"{name}={count}" for name, count in judgments[0].shortened.items()):
            headers.append((b"x-critic-shortened", cuts.encode()))
        return headers, body.encode()


def _build_response(parts: RequestParts, rubric: str, images: list[str], criteria: dict[str, str]) -> Response:
    """Return the answer to judge, and the one to compare it with, as `critic judge` would read them from a row.

    - `parts`: the parts of the client's request. `images`: data URIs.
    - `rubric`: text of the criteria, which is added to the question.
    - `criteria`: the row's criteria (name -> description), for a scoring head that rates by criteria; else {}.
    """
    # If the template has no question, the answer is judged by the rubric.
    asked = "\n\n".join(filter(None, (parts.question, rubric)))
    cells = {"id": "client", "question": asked, "response": parts.answer, "other": parts.other, "images": images}
    history = [] if parts.answer_1 is None else [Turn(parts.question_1, parts.answer_1)]
    lang = "en" if is_in_language(asked or parts.answer, "en") else "zh"
    about = {"reference": parts.reference, "history": history, "lang": lang, "criteria": criteria}
    return build_unscored({**cells, **about})


NO_REASON = "The judge wrote no reason."
"""Text to use if a client needs a reason and the judge wrote none."""

RANKS = dict.fromkeys(("no", "n", "false", "incorrect", "wrong", "fail", "failed", "bad"), 0)
RANKS |= dict.fromkeys(("partial", "partially", "partially correct"), 1)
RANKS |= dict.fromkeys(("yes", "y", "true", "correct", "right", "pass", "passed", "good"), 2)
"""Common labels with an obvious order -> rank, 0 for the worst."""


class ClientScore(NamedTuple):
    """A judge's score of one answer, or of the first of two answers.

    - `shares`: criterion -> score from 0.0 (worst) to 1.0 (best). The key is "" if there are no criteria.
    - `order`: the client's labels from worst to best, or empty if RANKS has them.
    - `reason`: the judge's reason, or None to leave it out.
    """

    shares: dict[str, float]
    order: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def share(self) -> float:
        return fmean(self.shares.values())


def compose(contract: Contract, request: Request, score: ClientScore) -> str:
    """Return the text of the reply that tells `score` in the contract's form.

    Raise Unanswerable if the score does not determine the verdict.
    """
    if contract.verdict is None:
        return _compose_object(contract, request, score)
    verdict = _spell_verdict(contract.verdict, score)
    # A client might read a draft verdict in the reason instead of the verdict.
    drafts = [contract.verdict, contract.never or re.escape(contract.opening or contract.verdict)]
    reason = score.reason or ""
    reason = NO_REASON if not reason or any(regex.search(draft, reason) for draft in drafts) else reason
    if contract.reasoning == "before":
        return f"{contract.begin}{reason}{contract.lead}{verdict}"
    follow = contract.follow or "\n"
    return f"{verdict}{follow}{reason}" if contract.reasoning == "after" else verdict


def _spell_verdict(pattern: str, score: ClientScore) -> str:
    """Return the verdict text that is nearest to the score.

    `pattern` is a regular expression whose only group is the value. Raise Unanswerable for any other expression, or if
    the order of the labels in the group is unknown.

    >>> _spell_verdict(r"\\[\\[(10|[1-9])\\]\\]", ClientScore({"": 0.65}))
    '[[7]]'
    """
    shape = re.fullmatch(r"([^(]*)\((.*)\)([^)]*)", pattern, re.DOTALL)
    if shape is None:
        raise Unanswerable("its verdict is no single value")
    values = [*map(_plain, re.split(r"(?<!\\)\|", shape[2]))]
    scale = dict[str, float]()
    for value in (*values, *map(str, range(101))):
        # "7/10" is a 7.
        if (number := re.fullmatch(r"(-?[0-9.]+)(?: ?/ ?[0-9]+)?", value)) and re.fullmatch(shape[2], value):
            scale[value] = float(number[1])
    value = _label(values, score) if score.order or not scale else _nearest(scale, score.share)
    return f"{_plain(shape[1])}{value}{_plain(shape[3])}"


def _plain(pattern: str) -> str:
    """Return the text that a regular expression of literal characters matches."""
    return re.sub(r"\\(.)", r"\1", pattern.replace("\\n", "\n"))


def _nearest(scale: Mapping[Any, float], share: float) -> Any:
    """Return the key of `scale` whose number is nearest to the position `share` (0..1) between its lowest and highest
    number.

    On a scale of two numbers the higher one means that the answer is right, as in `_label`.

    >>> _nearest({"0": 0.0, "1": 1.0, "2": 2.0}, 0.8)
    '2'
    """
    low, high = min(scale.values()), max(scale.values())
    # On a scale of two numbers, one means that the answer is right.
    if len(scale) == 2:
        return max(scale, key=lambda value: scale[value] * (1 if is_right([share * 9 + 1]) == "yes" else -1))
    aim = low + share * (high - low)
    return min(scale, key=lambda value: (abs(scale[value] - aim), -scale[value]))


def _label(labels: list[str], score: ClientScore) -> str:
    """Return the label for a score. Raise Unanswerable if the order of the labels is unknown.

    Two or three labels mean wrong, (partly right) and right, with the thresholds of AlignMMBench, section 4.1: an
    answer is right from 7 on the scale 1..10. With more labels, each gets an equal part of the scale.

    >>> [_label(["incorrect", "partial", "correct"], ClientScore({"": (rating - 1) / 9})) for rating in (5, 6, 7)]
    ['incorrect', 'partial', 'correct']
    """
    ranks = {label: RANKS.get(label.strip(" []*\"'").lower()) for label in labels}
    if not score.order and (None in ranks.values() or len({*ranks.values()}) < len(labels)):
        raise Unanswerable(f"nothing says which of its labels is better: {', '.join(labels)}"[:200])
    order = score.order or sorted(labels, key=lambda label: ranks[label] or 0)
    if len(order) > 3:
        return order[min(math.floor(score.share * len(order)), len(order) - 1)]
    is_best = is_right([score.share * 9 + 1])
    return order[-1] if is_best == "yes" else order[0] if is_best == "no" or len(order) == 2 else order[1]


def _compose_object(contract: Contract, request: Request, score: ClientScore) -> str:
    """Return the JSON object of the reply as text. A generative judge would be constrained to the same schema.

    Raise Unanswerable if the schema cannot be filled from the score.
    """
    schema = reply_schema(contract, request, read_form(request))
    try:
        fields = bounded(schema).schema["properties"] if schema else {}
    except (Unbounded, LookupError):
        raise Unanswerable("its schema is none that a score fills") from None
    # One score cannot fill more than one rating, unless each has a criterion of the request.
    ratings = {name for name, field in fields.items() if field.get("type") in ("integer", "number")}
    if (len(ratings) > 1 and not ratings <= score.shares.keys()) or not (ratings or any(map(is_verdict, fields))):
        raise Unanswerable("it asks for several ratings, or for none")
    values = {name: _value(name, field, score) for name, field in fields.items()}
    return json.dumps(values, ensure_ascii=False)


def _value(name: str, field: Schema, score: ClientScore) -> Any:
    """Return the value that tells `score` under the key `name`, whose schema is `field`.

    Raise Unanswerable if the score does not determine the value.
    """
    field = next((branch for branch in field.get("anyOf", ()) if branch.get("type") != "null"), field)
    share, kind = score.shares.get(name, score.share), field.get("type")
    values = field.get("enum") or ([False, True] if kind == "boolean" else [])
    if kind == "string" and not is_verdict(name):
        # The client may bound its texts.
        return (score.reason or NO_REASON)[: field.get("maxLength")]
    if values and all(isinstance(value, str) for value in values):
        return _label(values, score)
    if values and all(isinstance(value, int | float) for value in values):
        return _nearest(dict(zip(values, map(float, values), strict=True)), share)
    if kind in ("integer", "number") and (is_verdict(name) or name in score.shares):
        number = field["minimum"] + share * (field["maximum"] - field["minimum"])
        return math.floor(number + 0.5) if kind == "integer" else round(number, 2)
    raise Unanswerable(f"its key {name!r} is none that a score fills"[:200])
