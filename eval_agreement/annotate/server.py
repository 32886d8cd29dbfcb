"""Serve the page for raters, and one for the owner, from this process, without network and foreign scripts.

A rater is known by the token of an unguessable link. Only the `parts` of an item are shown: no id, model, judge, score
or path is in a page, a picture's address or a reply. Texts by models are escaped (Jinja), and the content security
policy lets nothing run or load that is not this server's.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, urlencode

from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from critic.images import ImageError, Images
from critic.page.page import render
from eval_agreement.annotate.formats import load_picture
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
"""Largest body of a request (one label), in bytes."""


class Annotation:
    """The pages on a database. Starlette runs their plain functions in threads, each with a connection of its own."""

    def __init__(self, store: Store, images: Images | None) -> None:
        self.store, self.images, facts = store, images, store.facts()
        self.name, self.key = facts["scheme"], facts["owner"]
        self.scheme = SCHEMES[self.name]
        self._raters = store.raters()

    def app(self, hosts: list[str]) -> Starlette:
        """Return the ASGI application. It answers only requests to `hosts`, so that no other site's name leads here."""
        routes = [
            Route("/", self.show_page),
            Route("/label", self.post_label, methods=["POST"]),
            Route("/image", self.show_image),
            Route("/owner", self.show_report),
            Route("/page.css", _serve_file("page.css", "text/css")),
            Route("/page.js", _serve_file("page.js", "text/javascript")),
        ]
        middleware = [
            Middleware(TrustedHostMiddleware, allowed_hosts=hosts),
            Middleware(BaseHTTPMiddleware, dispatch=_add_headers),
        ]
        return Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: _refuse})

    def _find_rater(self, request: Request) -> str:
        """Return the name behind the link's token. Raises HTTPException for an unknown one."""
        name = self._raters.get(request.query_params.get("rater", ""))
        if name is None:
            raise HTTPException(403, "open the link that you were given; this one names no rater")
        return name

    def _find_task(self, rater: str, number: str | None) -> RaterTask:
        """Return a rater's own task. Raises HTTPException for any other number."""
        try:
            return self.store.opened(_parse_count(number) or 0, rater)
        except KeyError:
            raise HTTPException(404, "there is no such item") from None

    def show_page(self, request: Request) -> Response:
        """Return the page of the next item or of the named one, with the rater's earlier label if there is one."""
        rater, query = self._find_rater(request), request.query_params
        opened = self._find_task(rater, query["task"]) if "task" in query else self.store.next(rater)
        preferred = "zh" if request.headers.get("accept-language", "").lower().startswith("zh") else "en"
        lang = query["lang"] if query.get("lang") in ("en", "zh") else preferred
        done, tasks = self.store.counts()[rater]
        words = texts_of("annotate/page/words.toml")[lang]
        facts = {"words": words, "lang": lang, "other": "en" if lang == "zh" else "zh", "scheme": self.name}
        facts |= {"stale": "stale" in query, "rater": query["rater"], "done": done, "tasks": tasks, "open": opened}
        facts |= {"last": self.store.last(rater, opened.label if opened else 0)}
        # Without an open task the page says that all is done.
        facts |= {} if opened is None else self._describe_item(opened)
        return HTMLResponse(render("eval_agreement.annotate", "page/label.html.jinja", facts))

    def _describe_item(self, opened: RaterTask) -> dict[str, Any]:
        """Return the item as this rater sees it, with side B called A if sides are exchanged."""
        item, choices = opened.item, opened.verdict.choices
        parts = [replace(part, side=exchanged(part.side, opened.swapped)) for part in item.parts]
        chosen = {ask: exchanged(value, opened.swapped) for ask, value in choices.items()}
        shown = {"parts": sorted(parts, key=lambda part: part.side), "turns": sorted({part.turn for part in parts})}
        shown |= {"chosen": chosen, "choices": self.scheme.choices, "edits": self.scheme.edits}
        return shown | {"rubric": self.scheme.rubric(item.lang, item.task)}

    async def post_label(self, request: Request) -> Response:
        """Keep the label of a form. Raises HTTPException for a form of another site, and for one that is too long."""
        # Another site could send a form in the name of a rater whose browser holds the link.
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise HTTPException(403, "another site may not send labels")
        if (_parse_count(request.headers.get("content-length")) or _LONGEST + 1) > _LONGEST:
            raise HTTPException(413, "too long")
        body = dict(parse_qsl((await request.body()).decode("utf-8", "replace")))
        return await run_in_threadpool(self._keep_label, request, body)

    def _keep_label(self, request: Request, body: Mapping[str, str]) -> Response:
        """Keep the label, then lead to the next page. The page never goes on without a kept label."""
        rater = self._find_rater(request)
        opened = self._find_task(rater, body.get("task"))
        verdict = read_verdict(body, opened.item, self.scheme, opened.swapped)
        query = {"rater": request.query_params["rater"], "lang": request.query_params.get("lang", "")}
        seen = _parse_count(body.get("seen")) or 0
        status = 200
        try:
            self.store.label(rater, opened.task, seen, verdict, body.get("version", ""))
        except Stale:
            # The rater sees what has changed before anything is kept.
            status, query = 409, {**query, "task": str(opened.task), "stale": "1"}
        return JSONResponse({"next": f"./?{urlencode(query)}"}, status)

    def show_image(self, request: Request) -> Response:
        """Return a picture of one of the rater's items by number, because its path may reveal the model."""
        shown = self._find_task(self._find_rater(request), request.query_params.get("task")).item.images
        number = _parse_count(request.query_params.get("n"))
        if number is None or number >= len(shown) or self.images is None:
            raise HTTPException(404, "there is no such picture")
        try:
            media, content = load_picture(self.images, shown[number])
        except ImageError as error:
            raise HTTPException(404, error.failure) from None
        return Response(content, media_type=media)

    def show_report(self, request: Request) -> Response:
        """Return the owner's page. Raises HTTPException without the owner's key."""
        if not secrets.compare_digest(request.query_params.get("key", "").encode(), self.key.encode()):
            raise HTTPException(403, "this page is the owner's")
        policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
        return HTMLResponse(owner_page(self.store), headers={"Content-Security-Policy": policy})


async def _add_headers(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
    """Add _HEADERS to a response, except those that it has already."""
    response = await call(request)
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def _refuse(_: Request, refused: Exception) -> Response:
    """Answer a refused request with the reason, which the page shows."""
    return JSONResponse({"error": getattr(refused, "detail", "")}, getattr(refused, "status_code", 500))


def _serve_file(name: str, media: str) -> Callable[[Request], Response]:
    """Return a function that answers with a file of the page."""
    content = (_PAGE / name).read_bytes()
    return lambda _: Response(content, media_type=media, headers={"Cache-Control": "max-age=300"})


def _parse_count(text: str | None) -> int | None:
    """Parse a whole number in ASCII digits of up to 15 places, or return None."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else None


def read_verdict(body: Mapping[str, str], item: LabelItem, scheme: Scheme, swapped: bool) -> RaterVerdict:
    """Read the label in a form. Raises HTTPException if a question is open, unless the item is skipped or broken."""
    skipped, broken = body.get("skipped", "").strip()[:500], bool(body.get("broken"))
    replies = {ask.key: body.get(f"choice {ask.key}", "").replace("\r\n", "\n") for ask in item.asks}
    try:
        choices = {} if skipped or broken else read_choices(item, scheme, replies, swapped)
    except ValueError as error:
        raise HTTPException(422, str(error)) from None
    # The clock is the browser's: without it, or with nonsense in it, the label still counts.
    try:
        seconds: float | None = min(max(float(body["seconds"]), 0.0), 86_400.0)
    except (KeyError, ValueError):
        seconds = None
    return RaterVerdict(
        choices=choices,
        edits=_read_edits(body, item) if scheme.edits else {},
        reason=body.get("reason", "").strip()[:2000],
        skipped=skipped,
        broken=broken,
        seconds=seconds,
    )


def _read_edits(body: Mapping[str, str], item: LabelItem) -> dict[str, tuple[str, str]]:
    """Return a form's corrections, old and new text by field. Raises HTTPException for an emptied text."""
    edits = {}
    for name, text in item.texts().items():
        # Browsers change line ends, and people leave spaces at the end of a text: neither is a correction.
        lines = body.get(f"edit {name}", text).strip().splitlines()
        if not lines:
            raise HTTPException(422, f"{name}: is empty now; write what it should say")
        if lines != text.strip().splitlines():
            edits[name] = (text, "\n".join(lines))
    return edits
