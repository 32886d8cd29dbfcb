"""The page for raters, and one for the owner: HTML from this process, no network, no script but its own.

A rater is known by the token of an unguessable link. What is shown of an item is its `parts`: no id, no model, no
judge, no score and no path is in a page, a picture's address or a reply. What was written by models is text: Jinja
escapes it, and the content security policy lets nothing run or load that is not this server's.
"""

import secrets
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, urlencode

from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from critic.images import ImageError, Images
from critic.page.page import render
from eval_agreement.annotate.formats import picture
from eval_agreement.annotate.people import owner_page
from eval_agreement.annotate.schemes import SCHEMES, LabelItem, Scheme, exchanged, read_choices
from eval_agreement.annotate.store import RaterTask, RaterVerdict, Stale, Store
from eval_agreement.sentences import texts_of

_PAGE = files("eval_agreement") / "annotate" / "page"

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_LONGEST = 100_000
"""Largest body of a request, in characters: one label."""


class Annotation:
    """The application on a database."""

    def __init__(self, store: Store, images: Images | None) -> None:
        self.store, self.images, facts = store, images, store.facts()
        self.name, self.key = facts["scheme"], facts["owner"]
        self.scheme = SCHEMES[self.name]
        self._raters = store.raters()

    def app(self, hosts: list[str]) -> Starlette:
        """The ASGI application. It accepts only requests to `hosts`, so that no other site's name leads here."""
        routes = [
            Route("/", self._guarded(self.page)),
            Route("/label", self._guarded(self.label), methods=["POST"]),
            Route("/image", self._guarded(self.image)),
            Route("/owner", self._guarded(self.report)),
            Route("/page.css", _static("page.css", "text/css")),
            Route("/page.js", _static("page.js", "text/javascript")),
        ]
        return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)])

    def _guarded(self, answer: Callable[[Request, Mapping[str, str]], Response]) -> Any:
        async def endpoint(request: Request) -> Response:
            try:
                body: Mapping[str, str] = {}
                if request.method == "POST":
                    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
                        raise HTTPException(403, "another site may not send labels")
                    if (_number(request.headers.get("content-length")) or _LONGEST + 1) > _LONGEST:
                        raise HTTPException(413, "too long")
                    body = dict(parse_qsl((await request.body()).decode("utf-8", "replace")))
                reply = await run_in_threadpool(answer, request, body)
            except HTTPException as refused:
                reply = JSONResponse({"error": refused.detail}, refused.status_code)
            reply.headers.update({name: value for name, value in _HEADERS.items() if name not in reply.headers})
            return reply

        return endpoint

    def _rater(self, request: Request) -> str:
        name = self._raters.get(request.query_params.get("rater", ""))
        if name is None:
            raise HTTPException(403, "open the link that you were given: this one names no rater")
        return name

    def _task(self, rater: str, number: str | None) -> RaterTask:
        try:
            return self.store.opened(_number(number) or 0, rater)
        except KeyError:
            raise HTTPException(404, "there is no such item") from None

    def page(self, request: Request, _: Mapping[str, str]) -> Response:
        """Return the page of the next item or of the named one, with the rater's earlier label if there is one."""
        rater, query = self._rater(request), request.query_params
        opened = self._task(rater, query["task"]) if "task" in query else self.store.next(rater)
        preferred = "zh" if request.headers.get("accept-language", "").lower().startswith("zh") else "en"
        lang = query["lang"] if query.get("lang") in ("en", "zh") else preferred
        done, tasks = self.store.counts()[rater]
        words, other_lang = texts_of("annotate/page/words.toml")[lang], "en" if lang == "zh" else "zh"
        facts = {"words": words, "lang": lang, "other": other_lang, "scheme": self.name}
        facts |= {"stale": "stale" in query, "rater": query["rater"], "done": done, "tasks": tasks, "open": opened}
        facts |= {"last": self.store.last(rater, opened.label if opened else 0)}
        facts |= {} if opened is None else self._shown(opened)
        return HTMLResponse(render("eval_agreement.annotate", "page/label.html.jinja", facts))

    def _shown(self, opened: RaterTask) -> dict[str, Any]:
        """The item as this rater sees it: the side B called A where sides are exchanged."""
        item, choices = opened.item, opened.verdict.choices
        parts = [replace(part, side=exchanged(part.side, opened.swapped)) for part in item.parts]
        chosen = {ask: exchanged(value, opened.swapped) for ask, value in choices.items()}
        shown = {"parts": sorted(parts, key=lambda part: part.side), "turns": sorted({part.turn for part in parts})}
        shown |= {"chosen": chosen, "choices": self.scheme.choices, "edits": self.scheme.edits}
        return shown | {"rubric": self.scheme.rubric(item.lang, item.task)}

    def label(self, request: Request, body: Mapping[str, str]) -> Response:
        """Keep the label, then lead to the next page. The page never goes on without a kept label."""
        rater = self._rater(request)
        opened = self._task(rater, body.get("task"))
        verdict = read_verdict(body, opened.item, self.scheme, opened.swapped)
        query = {"rater": request.query_params["rater"], "lang": request.query_params.get("lang", "")}
        status, seen = 200, _number(body.get("seen")) or 0
        try:
            self.store.label(rater, opened.task, seen, verdict, body.get("version", ""))
        except Stale:
            status, query = 409, {**query, "task": str(opened.task), "stale": "1"}
        return JSONResponse({"next": f"./?{urlencode(query)}"}, status)

    def image(self, request: Request, _: Mapping[str, str]) -> Response:
        """Return a picture of one of the rater's items by number, because its path may reveal the model."""
        shown = self._task(self._rater(request), request.query_params.get("task")).item.images
        number = _number(request.query_params.get("n"))
        if number is None or number >= len(shown) or self.images is None:
            raise HTTPException(404, "there is no such picture")
        try:
            media, content = picture(self.images, shown[number])
        except ImageError as error:
            raise HTTPException(404, error.failure) from None
        return Response(content, media_type=media)

    def report(self, request: Request, _: Mapping[str, str]) -> Response:
        if not secrets.compare_digest(request.query_params.get("key", "").encode(), self.key.encode()):
            raise HTTPException(403, "this page is the owner's")
        policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
        return HTMLResponse(owner_page(self.store), headers={"Content-Security-Policy": policy})


def _static(name: str, media: str) -> Callable[[Request], Response]:
    content = (_PAGE / name).read_bytes()
    return lambda _: Response(content, media_type=media, headers={**_HEADERS, "Cache-Control": "max-age=300"})


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else None


def read_verdict(body: Mapping[str, str], item: LabelItem, scheme: Scheme, swapped: bool) -> RaterVerdict:
    """Return the label in a form. Raises HTTPException if a question is open, unless the item is skipped or broken."""
    skipped, broken = body.get("skipped", "").strip()[:500], bool(body.get("broken"))
    replies = {ask.key: body.get(f"choice {ask.key}", "").replace("\r\n", "\n") for ask in item.asks}
    try:
        choices = {} if skipped or broken else read_choices(item, scheme, replies, swapped)
    except ValueError as error:
        raise HTTPException(422, str(error)) from None
    try:
        seconds: float | None = min(max(float(body["seconds"]), 0.0), 86_400.0)
    except (KeyError, ValueError):
        seconds = None
    return RaterVerdict(
        choices=choices,
        edits=_edits(body, item) if scheme.edits else {},
        reason=body.get("reason", "").strip()[:2000],
        skipped=skipped,
        broken=broken,
        seconds=seconds,
    )


def _edits(body: Mapping[str, str], item: LabelItem) -> dict[str, tuple[str, str]]:
    """Return a form's corrections of an item's texts. Raises HTTPException for an emptied text."""
    old = {name: text.strip().splitlines() for name, text in item.texts().items()}
    new = {name: body.get(f"edit {name}", item.texts()[name]).strip().splitlines() for name in old}
    if empty := [name for name, lines in new.items() if not lines]:
        raise HTTPException(422, f"{empty[0]}: is empty now; write what it should say")
    return {name: (item.texts()[name], "\n".join(new[name])) for name in old if new[name] != old[name]}
