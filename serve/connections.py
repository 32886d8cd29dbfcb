"""Connections on which no request comes: uvicorn leaves them open for ever, and reads headers of any size."""

import importlib
import json
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from replies import Answer, Scope, shaped

IDLE_SECONDS = 60
"""How long a client may take for the headers of a request, and be silent within its body."""

MOST_HEADERS = 64 * 1024
"""Bytes of a request's line and headers."""

LINGER_SECONDS = 5
"""How long a client that still sends gets to read why it is refused."""

TOO_LARGE = f"the headers of a request have at most {MOST_HEADERS:,} bytes"


def guard() -> None:
    """Have uvicorn's connections end after IDLE_SECONDS without the headers of a request, and after MOST_HEADERS of
    them; nothing where the server is another one. A request that is being answered has all the time it needs."""
    with suppress(ImportError):
        protocol = importlib.import_module("uvicorn.protocols.http.httptools_impl").HttpToolsProtocol
        if protocol.data_received is not _data_received:
            UNGUARDED.update({name: getattr(protocol, name) for name in GUARDED})
            for name, method in GUARDED.items():
                setattr(protocol, name, method)


def header_bytes(scope: Scope) -> int:
    """The size of a request's line and headers, separators among them."""
    line = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
    return line + sum(len(name) + len(value) + 4 for name, value in scope["headers"])


def _connection_made(self: Any, transport: Any) -> None:
    UNGUARDED["connection_made"](self, transport)
    self.waiting, self.refused, self.timer = True, False, None
    _expect(self)


def _data_received(self: Any, data: bytes) -> None:
    if self.refused:
        return
    self.unread += len(data)
    UNGUARDED["data_received"](self, data)
    handed_on = self.transport.get_protocol() is not self  # to a WebSocket's
    if not self.waiting or handed_on or self.transport.is_closing():
        return
    if self.timer is None:
        _expect(self)
    elif self.unread > MOST_HEADERS:
        _refuse(self)


def _on_headers_complete(self: Any) -> None:
    self.waiting = False
    _forget(self)
    UNGUARDED["on_headers_complete"](self)


def _on_message_complete(self: Any) -> None:
    UNGUARDED["on_message_complete"](self)
    self.waiting = True


def _connection_lost(self: Any, exc: Exception | None) -> None:
    _forget(self)
    UNGUARDED["connection_lost"](self, exc)


def _expect(self: Any) -> None:
    """Begin to wait for the headers of a request."""
    self.unread, self.timer = 0, self.loop.call_later(IDLE_SECONDS, _end, self)


def _forget(self: Any) -> None:
    if self.timer is not None:
        self.timer.cancel()
    self.timer = None


def _answering(self: Any) -> bool:
    return self.cycle is not None and not self.cycle.response_complete


def _end(self: Any) -> None:
    if _answering(self):
        _expect(self)
    else:
        self.transport.close()


def _refuse(self: Any) -> None:
    """Say why in OpenAI's shape; what the client still sends is dropped, so that it gets to read that."""
    self.refused = True
    if not _answering(self):
        body = json.dumps({"error": {"message": TOO_LARGE, "code": None}}).encode()
        answer = shaped(Answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, [], body))
        headers = b"".join(b"%b: %b\r\n" % header for header in [*answer.headers, (b"connection", b"close")])
        self.transport.write(b"HTTP/1.1 431 Request Header Fields Too Large\r\n%b\r\n%b" % (headers, answer.body))
    self.loop.call_later(LINGER_SECONDS, self.transport.close)


UNGUARDED: dict[str, Any] = {}
GUARDED: dict[str, Any] = {
    "connection_made": _connection_made,
    "data_received": _data_received,
    "on_headers_complete": _on_headers_complete,
    "on_message_complete": _on_message_complete,
    "connection_lost": _connection_lost,
}
