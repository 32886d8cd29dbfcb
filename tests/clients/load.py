"""Load on a server: requests in flight all at once, clients that hang up, bad requests and slow readers among them.

    python tests/clients/load.py http://127.0.0.1:8000 --requests 1000 --rounds 5 [--pid SERVER] [--held]

With `--held` the requests ask vLLM itself for what the judge's layer would make of them: to compare with a server
without it. Prints a JSON line a round: how requests ended, how long `/health` took meanwhile (asked by a process of its
own, in milliseconds), and the memory of the server's processes in megabytes.
"""

import asyncio
import http.client
import importlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import typer

GRADED: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "[BEGIN DATA] Four. End with 'GRADE: $LETTER' where LETTER is one of CI."}
    ],
    "max_tokens": 24,
}
BAD = (b"{", b'{"messages": 5}', b'{"messages": [{"role": "user", "content": "x"}], "n": 0}')
PROBE_SECONDS = 0.02


def ask_health(url: str) -> None:
    """Ask `/health` until standard input ends, then print how long each took, in milliseconds; -1 for a failure."""
    took: list[float] = []
    os.set_blocking(0, False)
    while not _ended():
        began = time.perf_counter()
        try:
            connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
            connection.request("GET", "/health")
            ok = connection.getresponse().status == 200
            connection.close()
        except OSError:
            ok = False
        took.append((time.perf_counter() - began) * 1000 if ok else -1)
        time.sleep(PROBE_SECONDS)
    print(json.dumps(took))


def _ended() -> bool:
    try:
        return os.read(0, 1) == b""
    except BlockingIOError:
        return False


def hold(request: dict[str, Any]) -> dict[str, Any]:
    """What the judge's layer makes of a request."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "serve"))
    contracts = importlib.import_module("contracts")
    limited: dict[str, Any] = contracts.constrain(contracts.recognise(request, contracts.load()), request, 24).request
    return limited


async def one(client: httpx.AsyncClient, number: int, graded: dict[str, Any]) -> str:
    """How a request ended. Every tenth hangs up, every twentieth is a bad one, every fiftieth is read slowly."""
    chooser = random.Random(number)
    if number % 20 == 7:
        answer = await client.post("/v1/chat/completions", content=chooser.choice(BAD))
        return "refused" if answer.status_code == 400 else f"bad: {answer.status_code}"
    content = f"{number}: {graded['messages'][0]['content']}"
    request = {**graded, "messages": [{"role": "user", "content": content}]}
    if number % 10 == 3:
        try:
            async with asyncio.timeout(chooser.uniform(0.05, 2)):
                await client.post("/v1/chat/completions", json=request)
        except TimeoutError:
            return "hung up"
        return "answered"
    if number % 50 == 1:
        said = ""
        async with client.stream("POST", "/v1/chat/completions", json={**request, "stream": True}) as answer:
            async for line in answer.aiter_lines():
                said += line
                await asyncio.sleep(0.1)
        return "answered slowly" if said.endswith("[DONE]") else "lost"
    answer = await client.post("/v1/chat/completions", json=request)
    if answer.status_code == 503 and "retry-after" in answer.headers:
        return "told to come again"
    graded = answer.status_code == 200 and "GRADE: " in answer.json()["choices"][0]["message"]["content"]
    return "answered" if graded else f"lost: {answer.status_code}"


async def together(url: str, numbers: range, key: str, graded: dict[str, Any]) -> Counter[str]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    headers = {"Authorization": key} if key else {}
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits, trust_env=False, headers=headers) as client:
        ended = await asyncio.gather(*(one(client, number, graded) for number in numbers), return_exceptions=True)
    return Counter(end if isinstance(end, str) else f"lost: {type(end).__name__}" for end in ended)


def memory(pid: int) -> float:
    """Megabytes of the process and all below it."""
    total, waiting = 0.0, [pid]
    while waiting:
        one_of = waiting.pop()
        try:
            fields = Path(f"/proc/{one_of}/smaps_rollup").read_text()
            waiting += map(int, Path(f"/proc/{one_of}/task/{one_of}/children").read_text().split())
        except OSError:
            continue
        total += int(fields.split("Pss:")[1].split()[0]) / 1000
    return round(total, 1)


def load(
    url: str, requests: int, rounds: int, pid: int | None, key: str = "", graded: dict[str, Any] = GRADED
) -> list[dict[str, Any]]:
    results = []
    for turn in range(rounds):
        words = [sys.executable, __file__, url, "--probe"]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as prober:
            began = time.perf_counter()
            ended = asyncio.run(together(url, range(turn * requests, (turn + 1) * requests), key, graded))
            seconds = time.perf_counter() - began
            took = sorted(json.loads(prober.communicate()[0]))
        shown = {"requests": requests, "seconds": round(seconds, 1), "ended": ended}
        shown |= {"health_p50": round(took[len(took) // 2], 1), "health_p99": round(took[int(len(took) * 0.99)], 1)}
        shown |= {"health_failed": took.count(-1), "probes": len(took), "memory": memory(pid) if pid else None}
        results.append(shown)
        print(json.dumps(shown), flush=True)
    return results


def main(
    url: str, requests: int = 1000, rounds: int = 5, pid: int | None = None, held: bool = False, probe: bool = False
) -> None:
    """Put load on a server."""
    if probe:
        ask_health(url)
    else:
        load(url, requests, rounds, pid, graded=hold(GRADED) if held else GRADED)


if __name__ == "__main__":
    typer.run(main)
