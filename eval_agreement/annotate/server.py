"""Serve a page for raters and a page for the owner from this process, without other hosts or their scripts.

A rater is known by the token of an unguessable link. Only the `parts` of an item are shown: no id, model, judge, score
or path is in a page, a picture's address or a reply. Texts by models are escaped (Jinja), and the content security
policy allows only what this server itself delivers to run or load.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from critic.images import ImageError, Images
from critic.page.page import render
from critic.tables import read_number
from eval_agreement.annotate.people import owner_page
from eval_agreement.annotate.schemes import SCHEMES, LabelItem, Scheme, read_choices
from eval_agreement.annotate.store import RaterTask, RaterVerdict, Stale, Store
from eval_agreement.sentences import texts_of

_PAGE = Path(__file__).with_name("page")

_HEADERS: dict[str, str] = texts_of("annotate/page/headers.toml")
"""Headers of every reply. A page may run, load and send only to and from this server, and is not cached."""

_CACHED = {"Cache-Control": "max-age=300"}
_LONGEST = 100_000
"""Largest body of a request (one label), in bytes."""


class Annotation:
    """The pages of one store of labels, for raters and the owner.

    Starlette runs the plain methods in threads, and each thread has its own connection to the database.
    """

    def __init__(self, store: Store, images: Images | None) -> None:
        self.store, self.images, facts = store, images, store.facts()
        self.name, self.key = facts["scheme"], facts["owner"]
        self.scheme = SCHEMES[self.name]
        self._raters = store.raters()

    def app(self, hosts: list[str]) -> Starlette:
        """Return the ASGI application. It answers only requests to the host names `hosts`, against DNS rebinding."""
        routes = [
            Route("/", self.show_page),
            Route("/label", self.post_label, methods=["POST"]),
            Route("/image", self.show_image),
            Route("/owner", self.show_report),
            *(Route(f"/{name}", FileResponse(_PAGE / name, headers=_CACHED)) for name in ("page.css", "page.js")),
        ]
        middleware = [
            Middleware(TrustedHostMiddleware, allowed_hosts=hosts),
            Middleware(BaseHTTPMiddleware, dispatch=_add_headers),
        ]
        return Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: _refuse})

    def _find_rater(self, request: Request) -> str:
        """Return the name of the rater whose token is in the link. Raises HTTPException for an unknown token."""
        name = self._raters.get(request.query_params.get("rater", ""))
        if name is None:
            raise HTTPException(403, "open the link that you were given; this one names no rater")
        return name

    def _find_task(self, rater: str, number: str | None) -> RaterTask:
        """Return task `number` of a rater. Raises HTTPException if the rater has no such task."""
        try:
            return self.store.opened(_parse_count(number) or 0, rater)
        except KeyError:
            raise HTTPException(404, "there is no such item") from None

    def show_page(self, request: Request) -> Response:
        """Return the page of the task in the query, or of the rater's next task.

        If the rater has labelled the task before, the label is filled in.
        """
        rater, query = self._find_rater(request), request.query_params
        opened = self._find_task(rater, query["task"]) if "task" in query else self.store.next(rater)
        preferred = "zh" if request.headers.get("accept-language", "").lower().startswith("zh") else "en"
        lang = query["lang"] if query.get("lang") in ("en", "zh") else preferred
        done, tasks = self.store.counts()[rater]
        words = texts_of("annotate/page/words.toml")[lang]
        facts = {"words": words, "lang": lang, "other": "en" if lang == "zh" else "zh", "scheme": self.scheme}
        facts |= {"stale": "stale" in query, "rater": query["rater"], "done": done, "tasks": tasks}
        # Without an open task the page says that all is done.
        facts |= {"name": self.name, "open": opened, "last": self.store.last(rater, opened.label if opened else 0)}
        return HTMLResponse(render("eval_agreement.annotate", "page/label.html.jinja", facts))

    async def post_label(self, request: Request) -> Response:
        """Store the label in a submitted form.

        Raises HTTPException if another site sent it, or if it is too long or invalid.
        """
        # Another site could send a form in the name of a rater whose browser holds the link.
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise HTTPException(403, "another site may not send labels")
        if (_parse_count(request.headers.get("content-length")) or _LONGEST + 1) > _LONGEST:
            raise HTTPException(413, "too long")
        body = dict(parse_qsl((await request.body()).decode("utf-8", "replace")))
        return await run_in_threadpool(self._keep_label, request, body)

    def _keep_label(self, request: Request, body: Mapping[str, str]) -> Response:
        """Store the label, and return the address of the next page.

        If the label or the item changed since the page was opened, nothing is stored and the address is that of the
        same task.
        """
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
        """Return a picture of a task. It is addressed by number, because its path may reveal the model.

        Raises HTTPException if there is no such picture or it cannot be read.
        """
        shown = self._find_task(self._find_rater(request), request.query_params.get("task")).item.images
        number = _parse_count(request.query_params.get("n"))
        if number is None or number >= len(shown) or self.images is None:
            raise HTTPException(404, "there is no such picture")
        try:
            picture = self.images.load(shown[number])
        except ImageError as error:
            raise HTTPException(404, error.failure) from None
        return Response(picture.data, media_type=picture.kind)

    def show_report(self, request: Request) -> Response:
        """Return the owner's page, or that of the item in the query.

        Raises HTTPException if the owner's key is missing or wrong.
        """
        if not secrets.compare_digest(request.query_params.get("key", "").encode(), self.key.encode()):
            raise HTTPException(403, "this page is the owner's")
        policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; frame-ancestors 'none'"
        page = owner_page(self.store, _parse_count(request.query_params.get("item")), self.images)
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})


async def _add_headers(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
    """Add _HEADERS to a response. Headers that it already has stay."""
    response = await call(request)
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def _refuse(_: Request, refused: Exception) -> Response:
    """Return the reason for a refused request as JSON, which the page shows."""
    return JSONResponse({"error": getattr(refused, "detail", "")}, getattr(refused, "status_code", 500))


def _parse_count(text: str | None) -> int | None:
    """Return the number in a text of at most 15 ASCII digits, or None for any other text."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else None


def read_verdict(body: Mapping[str, str], item: LabelItem, scheme: Scheme, swapped: bool) -> RaterVerdict:
    """Read a rater's label from a submitted form.

    Raises HTTPException if an answer is missing or invalid, unless the item is skipped or broken.
    """
    skipped, broken = body.get("skipped", "").strip()[:500], bool(body.get("broken"))
    replies = {ask.key: body.get(f"choice {ask.key}", "").replace("\r\n", "\n") for ask in item.asks}
    try:
        choices = {} if skipped or broken else read_choices(item, scheme, replies, swapped)
    except ValueError as error:
        raise HTTPException(422, str(error)) from None
    # The clock is the browser's: without it, or with nonsense in it, the label still counts.
    seconds = read_number(body.get("seconds"))
    return RaterVerdict(
        choices=choices,
        edits=_read_edits(body, item) if scheme.edits else {},
        reason=body.get("reason", "").strip()[:2000],
        skipped=skipped,
        broken=broken,
        seconds=None if seconds is None else min(max(seconds, 0.0), 86_400.0),
    )


def _read_edits(body: Mapping[str, str], item: LabelItem) -> dict[str, tuple[str, str]]:
    """Return a form's corrections as (old text, new text) by field. Raises HTTPException for an emptied text."""
    edits = {}
    for name, text in item.texts().items():
        # Browsers change line ends, and people leave spaces at the end of a text: neither is a correction.
        lines = body.get(f"edit {name}", text).strip().splitlines()
        if not lines:
            raise HTTPException(422, f"{name}: is empty now; write what it should say")
        if lines != text.strip().splitlines():
            edits[name] = (text, "\n".join(lines))
    return edits
