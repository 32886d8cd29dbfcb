"""OpenAI-compatible stand-ins for judges: as fast as a socket allows, as slow or as broken as they are told to be."""

import asyncio
import contextlib
import json
import threading
import time
import uuid
from typing import Any

MODEL = "stand-in@00000000"
TEXTS = ('{"Rating": ', "7", ', "Reason": "fine"}')


def completion(rating: str = "7", cached: int = 0) -> dict[str, Any]:
    """A verdict with the probabilities of its rating."""
    texts = (TEXTS[0], rating, TEXTS[2])
    chances = [[(texts[0], 0.0)], [(rating, -0.1), ("3" if rating != "3" else "4", -2.4)], [(texts[2], 0.0)]]
    tokens = []
    for text, alternatives in zip(texts, chances, strict=True):
        top = [{"token": token, "logprob": chance} for token, chance in alternatives]
        tokens.append({"token": text, "logprob": alternatives[0][1], "top_logprobs": top})
    message = {"role": "assistant", "content": "".join(texts)}
    usage = {"prompt_tokens": 100, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": cached}}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": {"content": tokens}}
    return {"choices": [choice], "usage": usage}


def _without(part: str) -> bytes:
    """A verdict as servers give it that say nothing of log probabilities, or of tokens."""
    reply = completion()
    (reply if part in reply else reply["choices"][0]).pop(part)
    return json.dumps(reply).encode()


def _http(status: int, body: bytes, length: int | None = None, more: str = "") -> bytes:
    size = len(body) if length is None else length
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n{more}\r\n"
    return head.encode() + body


FAULTS = {
    "truncated": _http(200, b'{"choices"', length=4096),
    "stalled": _http(200, b'{"choices"', length=4096),
    "page": _http(200, b"<html><body>Welcome to the proxy</body></html>"),
    "garbage": _http(200, b'{"choices": [], "usage": 3}'),
    "429": _http(429, b'{"error": {"message": "slow down"}}', more="Retry-After: 0.2\r\n"),
    "500": _http(500, b'{"error": {"message": "boom"}}'),
    "no probabilities": _http(200, _without("logprobs")),
    "no usage": _http(200, _without("usage")),
    "404": _http(404, b'{"error": {"message": "The model does not exist."}}'),
}


class StandIn:
    """One endpoint on loopback in a thread of its own. `seconds` is how long each answer takes, `slots` how many are
    made at once (None: any number). `fault` is what it does to the next requests: None, "hang", "reset",
    or one of FAULTS."""

    def __init__(self, seconds: float = 0.0, slots: int | None = None, port: int = 0) -> None:
        self.seconds, self.slots = seconds, slots
        self.fault: str | None = None
        self.name, self.context, self.rating = MODEL, 8192, "7"
        self.answered = self.asked = 0
        self._plain = _http(200, json.dumps(completion()).encode())
        self._started, self._port = threading.Event(), port
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        self._started.wait()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self._gate = asyncio.Semaphore(self.slots) if self.slots else None
        self._open = set[asyncio.Transport]()
        server = await asyncio.start_server(self._read, "127.0.0.1", self._port, backlog=1024)
        self._port = server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}/v1"
        self._started.set()
        await self._end.wait()
        server.close()
        for connection in [*self._open]:
            connection.abort()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer each request of a connection until it is closed."""
        transport = writer.transport
        assert isinstance(transport, asyncio.Transport)
        self._open.add(transport)
        with contextlib.suppress(asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                length = int(head.partition("content-length:")[2].partition("\r\n")[0] or 0)
                await self.answer(head.split(" ", 2)[1], await reader.readexactly(length), transport)
        self._open.discard(transport)
        transport.close()

    def close(self) -> None:
        """As killed: nothing that is under way is answered."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join()

    def again(self) -> "StandIn":
        """Another one at the same address."""
        return StandIn(self.seconds, self.slots, self._port)

    async def answer(self, path: str, body: bytes, to: asyncio.Transport) -> None:
        if path.endswith("/models"):
            # vLLM numbers the permission anew in every answer.
            of_answer = {"created": time.time(), "permission": [{"id": f"modelperm-{uuid.uuid4()}"}]}
            model = {"id": self.name, "owned_by": "someone", "max_model_len": self.context, **of_answer}
            to.write(_http(200, json.dumps({"data": [model]}).encode()))
            return
        self.asked += 1
        fault = self.fault
        if fault == "hang":
            return
        if self._gate is not None:
            async with self._gate:
                await asyncio.sleep(self.seconds)
        elif self.seconds:
            await asyncio.sleep(self.seconds)
        if to.is_closing():
            return
        self.answered += fault is None
        if fault == "reset":
            to.abort()
        elif self.rating != "7" and fault is None:
            to.write(_http(200, json.dumps(completion(self.rating)).encode()))
        else:
            to.write(FAULTS[fault] if fault else self._plain)
        if fault == "truncated":
            to.close()
