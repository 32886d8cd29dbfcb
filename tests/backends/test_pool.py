"""One judge behind many endpoints: which is asked, which is left out, and which is another judge."""

import asyncio
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, assert_one_line_error, human_rows, read_jsonl, run

from critic import jsonl
from critic.backends import Request, pool
from critic.errors import Refused
from critic.stages import options

sys.path.insert(0, str(ROOT / "tests/bench"))
from _standin import StandIn

Stands = Callable[..., list[StandIn]]


@pytest.fixture
def stands() -> Iterator[Stands]:
    with ExitStack() as servers:
        yield lambda count, **how: [servers.enter_context(closing(StandIn(**how))) for _ in range(count)]


def build_request(prompt: str) -> Request:
    messages = [{"role": "system", "content": "x" * 400}, {"role": "user", "content": prompt}]
    return Request(messages=messages, max_tokens=16)


def opened(servers: list[StandIn], **how: Any) -> pool.Pool:
    backend = options.Endpoint(**{"timeout": 60.0, **how}).connect(",".join(server.url for server in servers))
    assert isinstance(backend, pool.Pool)
    return backend


async def ask(backend: pool.Pool, prompts: list[str], concurrency: int = 16) -> None:
    waiting = iter(prompts)

    async def work() -> None:
        for prompt in waiting:
            await backend.chat(build_request(prompt))

    await asyncio.gather(*(work() for _ in range(concurrency)))


def judge(data: Path, servers: list[StandIn], *words: object, code: int | None = None) -> Any:
    out = data.parent / "out.jsonl"
    spelled = ",".join(server.url for server in servers)
    return run("critic", "judge", data, "--out", out, "--judge", spelled, *words, code=code)


def scores(path: Path) -> list[tuple[str, Any]]:
    lines = read_jsonl(path / "out.jsonl")
    return sorted((line["sample"]["id"], line.get("score")) for line in lines)


def test_every_endpoint_works_and_each_row_is_judged_once(tmp_path: Path, stands: Stands) -> None:
    servers = stands(3, seconds=0.005, slots=4)
    judge(human_rows(tmp_path, 90), servers, code=0)
    assert len(scores(tmp_path)) == len(dict(scores(tmp_path))) == 90 and all(score for _, score in scores(tmp_path))
    assert all(server.asked >= 20 for server in servers) and sum(server.asked for server in servers) == 90
    assert jsonl.facts(tmp_path / "out.jsonl")["tokens"] == {"prompt": 9000, "cached": 0, "completion": 90 * 9}


def test_a_slow_endpoint_gets_less(stands: Stands) -> None:
    """It is slow on any machine: each of its answers takes as long as 64 of the other."""
    (fast,) = stands(1)

    class Slow(StandIn):
        async def answer(self, path: str, body: bytes, to: asyncio.Transport) -> None:
            before, end = fast.answered, time.monotonic() + 10
            while self.asked and fast.answered < min(before + 64, 150) and time.monotonic() < end:
                await asyncio.sleep(0.005)
            await super().answer(path, body, to)

    slow = Slow()

    async def go() -> None:
        async with opened([slow, fast]) as backend:
            await ask(backend, [str(number) for number in range(200)])

    asyncio.run(go())
    slow.close()
    assert slow.asked * 4 < fast.asked and slow.asked > 2


def test_a_dead_endpoint_is_left_out_and_comes_back(stands: Stands) -> None:
    dying, living = stands(2, seconds=0.01)

    async def go() -> None:
        async with opened([dying, living]) as backend:
            await ask(backend, [str(number) for number in range(40)])
            await asyncio.to_thread(dying.close)
            await ask(backend, [str(number) for number in range(40, 80)])
            assert backend.endpoints[0].failures >= 1 and not backend.endpoints[0].checked
            again = await asyncio.to_thread(dying.again)
            try:
                ends = time.monotonic() + 120
                numbers = itertools.count(80)
                while again.answered < 5 and time.monotonic() < ends:
                    await ask(backend, [str(next(numbers)) for _ in range(8)])
                assert again.answered >= 5
            finally:
                await asyncio.to_thread(again.close)

    asyncio.run(go())


def test_one_that_comes_back_as_another_judge_stays_out(stands: Stands, capsys: Any) -> None:
    """It has the same name but another context."""
    changing, living = stands(2, seconds=0.01)

    async def go() -> None:
        async with opened([changing, living]) as backend:
            await ask(backend, [str(number) for number in range(20)])
            changing.fault = "reset"
            await ask(backend, [str(number) for number in range(20, 40)])
            changing.fault, changing.context, before = None, 4096, changing.asked
            ends = time.monotonic() + 120
            numbers = itertools.count()  # the same words would go where they are known
            while not backend.endpoints[0].reported and time.monotonic() < ends:
                await ask(backend, [f"again {next(numbers)}"])
            await ask(backend, [str(number) for number in range(40, 60)])
            assert changing.asked == before

    asyncio.run(go())
    assert "is not the same judge as the others: " in capsys.readouterr().err


@pytest.mark.parametrize("how", ["name", "context"])
def test_two_judges_are_refused_before_the_first_row(tmp_path: Path, stands: Stands, how: str) -> None:
    servers = stands(2)
    setattr(servers[1], how, {"name": "other@1", "context": 4096}[how])
    other = "is not the same judge as the others"
    words = {"name": [other, "name 'other@1'"], "context": [other, "context 4096, not 8192"]}
    assert_one_line_error(judge(human_rows(tmp_path, 20), servers), *words[how])
    assert not (tmp_path / "out.jsonl").is_file() or not scores(tmp_path)


def test_without_any_endpoint_it_says_so_and_with_one_it_goes_on(tmp_path: Path, stands: Stands) -> None:
    alive, dead = stands(2)
    dead.close()
    assert_one_line_error(judge(human_rows(tmp_path, 5), [dead, dead]), "none of 1 endpoints answers")
    assert "it is tried again" in judge(human_rows(tmp_path, 5), [dead, alive], code=0).stderr
    assert all(score for _, score in scores(tmp_path))


def test_endpoints_that_are_not_there_cost_no_row_a_try(tmp_path: Path, stands: Stands) -> None:
    """Any number of missing endpoints is looked up before a busy one is asked."""
    alive, *dead = stands(8, seconds=0.2)
    for server in dead:
        server.close()
    done = judge(human_rows(tmp_path, 40), [*dead, alive], "--attempts", 2, "--concurrency", 2)
    assert done.returncode == 0 and jsonl.facts(tmp_path / "out.jsonl")["retries"] == 0, done.stderr
    assert all(score for _, score in scores(tmp_path)) and done.stderr.count("it is tried again") == 7


@pytest.mark.parametrize("count", [1, 2])
def test_what_was_closed_is_opened_again(stands: Stands, count: int) -> None:
    """In another event loop it opens both of its clients again."""
    servers = stands(count)
    backend = options.Endpoint(timeout=2.0).connect(",".join(server.url for server in servers))

    async def go(number: int) -> None:
        async with backend:
            assert (await backend.chat(build_request(f"{number}"))).text
            with pytest.raises(Refused, match="no tokens can be counted"):
                backend.count_tokens([])

    async def left_alone() -> None:
        async with backend:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(backend.chat(build_request("?")), 0.5)

    for server in servers:
        server.fault = "hang"
    asyncio.run(left_alone())
    for server in servers:
        server.fault = None
    for number in range(3):
        asyncio.run(go(number))
    assert sum(server.answered for server in servers) == 3 + 3


def test_where_all_are_gone_the_run_ends(tmp_path: Path, stands: Stands) -> None:
    servers = stands(2, seconds=0.05)

    def go() -> None:
        while sum(server.answered for server in servers) < 30:
            time.sleep(0.005)
        for server in servers:
            server.fault = "500"

    going = threading.Thread(target=go)
    going.start()
    done = judge(human_rows(tmp_path, 400), servers, "--attempts", 2, "--concurrency", 4)
    going.join()
    assert_one_line_error(done, "rows in a row", "run again with --retry-failed")
    names = [name for name, _ in scores(tmp_path)]
    assert len(names) == len({*names})


def test_a_wrong_list_of_endpoints_is_one_line(tmp_path: Path) -> None:
    empty = tmp_path / "none"
    empty.write_text("# nobody\n", "utf-8")
    words = ["critic", "judge", human_rows(tmp_path, 2), "--out", tmp_path / "o.jsonl", "--judge"]
    assert_one_line_error(run(*words, f"@{empty}"), "names no server")
    assert_one_line_error(run(*words, "@nowhere"), "no file of servers")


def test_infer_asks_the_pool(tmp_path: Path, stands: Stands) -> None:
    servers = stands(2, seconds=0.01)
    out, file = tmp_path / "replies.jsonl", ROOT / "data/samples/convbench/ConvBench.csv"
    spelled = ",".join(server.url for server in servers)
    words = ["--benchmark", "convbench", "--condition", "no_image", "--limit", 6, "--base-url", spelled]
    run("critic", "infer", file, "--out", out, *words, code=0)
    assert all(server.asked > 2 for server in servers)
