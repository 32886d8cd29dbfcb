"""What is seen of a run while it runs: a line a minute, a JSON file beside what it writes, metrics for Prometheus."""

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from critic import jsonl
from critic.backends import Backend
from critic.backends.layers import Cached, Limited, layers
from critic.backends.pool import Pool, Upstream
from critic.errors import UsageError

EVERY = 60.0
"""Seconds between two lines."""


def status_file(out: Path) -> Path:
    return out.with_name(out.name + ".status.json")


class Status:
    """Counts what a run has done of `left` units, and says so every minute, in OUT.status.json as well; on request (an
    address `metrics`, [HOST:]PORT) whenever Prometheus asks. A run of less than a minute leaves no file. Raises
    UsageError for an address that is not to be had."""

    def __init__(self, out: Path, stage: str, unit: str, left: int, backend: Backend, metrics: str | None) -> None:
        self.stage, self.unit, self.left, self.backend = stage, unit, left, backend
        self.done, self.failures, self._file = 0, Counter[str](), status_file(out)
        self._start = self._last = time.monotonic()
        self._before: dict[str, int] = {}
        self._server = None if metrics is None else _serve(metrics, self)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._task.cancel()
        if self._file.is_file():
            with suppress(UsageError):  # a full disk has been said
                jsonl.write_json(self._file, {**self.facts(), "state": "ended" if kind is None else "stopped"})
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def add(self, failure: str | None) -> None:
        if failure is not None:
            self.failures[failure] += 1

    def facts(self) -> dict[str, Any]:
        """Rates are of the time since the last line; `eta_seconds` is by the mean rate so far."""
        now, backend = time.monotonic(), self.backend
        mean = self.done / max(now - self._start, 1e-9)
        asked = {one.url: one.asked for one in _upstreams(backend)}
        seconds = max(now - self._last, 1e-9)
        rates = {name: count - self._before.get(name, 0) for name, count in {**asked, "": self.done}.items()}
        facts: dict[str, Any] = {
            "stage": self.stage,
            "unit": self.unit,
            "state": "running",
            "seconds": round(now - self._start, 1),
            "done": self.done,
            "left": self.left - self.done,
            "per_second": round(rates.pop("") / seconds, 2),
            "eta_seconds": round((self.left - self.done) / mean) if mean else None,
            "failed": dict(self.failures),
            "retries": backend.retries,
        }
        for one in layers(backend):
            if isinstance(one, Cached):
                facts["cache"] = {"hits": one.hits, "misses": one.misses}
            if isinstance(one, Limited):
                facts["budget"] = {"limit": one.budget.limit, "used": round(one.budget.used, 6)}
        if asked:
            facts["endpoints"] = {
                one.url: {
                    "per_second": round(rates[one.url] / seconds, 2),
                    "asked": one.asked,
                    "failed": one.failed,
                    "under_way": one.under_way,
                    "mean_seconds": round(one.seconds / one.asked, 3) if one.asked else None,
                    "left_out": one.problem if one.lost else None,
                }
                for one in _upstreams(backend)
            }
        return facts

    def line(self, facts: dict[str, Any]) -> str:
        parts = [f"{self.stage}: {self.done} of {self.left} {self.unit}s, {facts['per_second']:.1f}/s"]
        if self.failures:
            named = ", ".join(f"{name} {count}" for name, count in self.failures.most_common())
            parts.append(f"{self.failures.total()} failed ({named})")
        if "cache" in facts:
            parts.append(f"{facts['cache']['hits']} replies from the cache")
        if facts["eta_seconds"] is not None:
            parts.append(f"{facts['eta_seconds'] / 60:.0f} min left")
        endpoints = [
            f"{url} left out" if one["left_out"] else f"{url} {one['per_second']:.1f}/s"
            for url, one in facts.get("endpoints", {}).items()
        ]
        return "; ".join([", ".join(parts), *endpoints])

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            facts = self.facts()
            print(self.line(facts), file=sys.stderr, flush=True)
            self._last = time.monotonic()
            self._before = {one.url: one.asked for one in _upstreams(self.backend)} | {"": self.done}
            jsonl.write_json(self._file, facts)

    def metrics(self) -> str:
        """In Prometheus' text format."""
        return "".join(f"{line}\n" for line in self._metrics())

    def _metrics(self) -> Iterator[str]:
        facts = self.facts()
        cache, endpoints = facts.get("cache"), facts.get("endpoints", {})
        found: dict[str, list[tuple[dict[str, str], float]]] = {
            "critic_done_total": [({"unit": self.unit}, self.done)],
            "critic_left": [({"unit": self.unit}, facts["left"])],
            "critic_failed_total": [({"failure": name}, count) for name, count in self.failures.items()],
            "critic_retries_total": [({}, facts["retries"])],
            "critic_cache_total": [({"result": name}, count) for name, count in (cache or {}).items()],
        }
        for name in ("asked", "failed"):
            found[f"critic_endpoint_{name}_total"] = [({"endpoint": url}, one[name]) for url, one in endpoints.items()]
        found["critic_endpoint_under_way"] = [({"endpoint": url}, one["under_way"]) for url, one in endpoints.items()]
        found["critic_endpoint_up"] = [({"endpoint": url}, not one["left_out"]) for url, one in endpoints.items()]
        for name, values in found.items():
            yield f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}"
            for labels, value in values:
                said = ",".join(f'{key}="{text}"' for key, text in {"stage": self.stage, **labels}.items())
                yield f"{name}{{{said}}} {value:g}" if value < 1e6 else f"{name}{{{said}}} {value:.0f}"


def _upstreams(backend: Backend) -> list[Upstream]:
    return [each for one in layers(backend) if isinstance(one, Pool) for each in one.endpoints]


def _serve(address: str, status: Status) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = status.metrics().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    host, _, port = address.rpartition(":")
    try:
        server = ThreadingHTTPServer((host or "127.0.0.1", int(port)), Handler)
    except (OSError, ValueError, OverflowError) as error:
        raise UsageError(f"--metrics {address}: expected a free [HOST:]PORT: {error}") from None
    threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    return server
