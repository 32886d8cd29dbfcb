"""A judge in the actors of a Ray cluster of several nodes, and a run in which a part of the cluster dies.

pip install 'critic[ray]', then: pytest -m slow tests/backends/test_ray.py
"""

import asyncio
import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from conftest import ROOT, assert_one_line_error, command, human_row, read_jsonl, run, run_apart, write_jsonl

from critic import jsonl
from critic.backends import Reply, Request
from critic.backends.ray import RayBackend
from critic.backends.scripted import ScriptedBackend
from critic.backends.vllm import count_gpus
from critic.errors import Refused, Transient, UsageError

slow = pytest.mark.slow
ROWS = 3000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Start a cluster of three nodes that can hold one replica each."""
    pytest.importorskip("ray", reason="needs the ray extra")
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(3):
        nodes.add_node(num_cpus=1)
    yield nodes
    nodes.shutdown()


def replies(path: Path) -> Path:
    texts = [{"text": f'{{"Rating": {rating}, "Reason": "fine"}}'} for rating in (3, 5, 7, 8)]
    return write_jsonl(path / "judge3.jsonl", texts)


def judging(path: Path, cluster: Any, out: str = "out.jsonl") -> list[object]:
    if not (path / "rows.jsonl").is_file():
        write_jsonl(path / "rows.jsonl", [human_row(n, id=f"r{n}", response=f"{n}") for n in range(ROWS)])
    words: list[object] = ["critic", "judge", path / "rows.jsonl", "--out", path / out, "--judge", replies(path)]
    where = ["--engine", "ray", "--ray-address", cluster.address, "--replicas", 2] if cluster else []
    return [*words, *where, "--score", "argmax", "--concurrency", 8]


def started(words: list[object], out: Path, lines: int = 300) -> "subprocess.Popen[str]":
    """Start the run, and wait until it has written `lines` lines."""
    process = subprocess.Popen(command(*words), cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (out.is_file() and out.read_bytes().count(b"\n") >= lines):
        time.sleep(0.02)
    assert process.poll() is None, process.communicate()[1]
    return process


def workers() -> list[int]:
    """Return the processes of the actors."""
    processes = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if entry.read_bytes().startswith(b"ray::Worker") and entry.stat().st_uid == os.getuid():
                processes.append(int(entry.parent.name))
        except OSError:
            pass
    return processes


def nodes_of(workers: list[int], cluster: Any) -> list[Any]:
    """Return the nodes, except the head, that hold one of these processes."""
    parents = {int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1]) for worker in workers}
    raylets = {node: {p.process.pid for p in node.all_processes["raylet"]} for node in cluster.worker_nodes}
    return [node for node, pids in raylets.items() if pids & parents]


def assert_whole(path: Path) -> None:
    """Assert that the lines are those of a run without Ray: none lost, none doubled, none failed."""
    assert run(*judging(path, None, "alone.jsonl")).returncode == 0
    # How often a row was asked for is what may differ.
    lines, expected = (read_sorted(path / name) for name in ("out.jsonl", "alone.jsonl"))
    assert lines == expected and len(lines) == ROWS


def read_sorted(path: Path) -> list[str]:
    """Return the lines of a file in an order of their own, without times and numbers of attempts."""
    return sorted(json.dumps({**line, "seconds": 0, "attempts": 0}, sort_keys=True) for line in read_jsonl(path))


@slow
@pytest.mark.parametrize("victim", ["worker", "node", "only replica"])
def test_what_is_killed_takes_no_row_with_it(victim: str, tmp_path: Path, cluster: Any) -> None:
    """A killed worker is started again; where it is the only one, it is waited for."""
    words = judging(tmp_path, cluster)
    if victim == "only replica":
        words = [1 if word == 2 else word for word in words]
    process = started(words, tmp_path / "out.jsonl")
    if victim == "node":
        (node, *_) = nodes_of(workers(), cluster)
        cluster.remove_node(node, allow_graceful=False)
    else:
        for worker in workers()[: 1 if victim == "worker" else None]:
            os.kill(worker, signal.SIGKILL)
    _, stderr = process.communicate(timeout=180)
    assert process.returncode == 0, stderr
    assert_whole(tmp_path)
    facts = jsonl.facts(tmp_path / "out.jsonl")
    assert (facts["retries"] >= 1 or victim == "only replica") and facts["failed"] == {}
    assert facts["server"] == f"ray: {1 if victim == 'only replica' else 2} x judge3"
    if victim == "node":
        cluster.add_node(num_cpus=1)


@slow
def test_a_killed_driver_goes_on_where_it_was(tmp_path: Path, cluster: Any) -> None:
    out = tmp_path / "out.jsonl"
    for lines in (300, 900):
        process = started(judging(tmp_path, cluster), out, lines)
        process.kill()
        process.communicate()
    assert 900 <= out.read_bytes().count(b"\n") < ROWS
    done = run_apart(*judging(tmp_path, cluster))
    assert done.returncode == 0 and "judged before" in done.stderr, done.stderr
    assert_whole(tmp_path)


@slow
def test_conversations_and_their_replies_go_the_same_way(tmp_path: Path, cluster: Any) -> None:
    file = ROOT / "data/samples/convbench/ConvBench.csv"
    said = write_jsonl(tmp_path / "model.jsonl", [{"text": f"A reply, number {n}."} for n in range(5)])
    on_ray = ["--engine", "ray", "--ray-address", cluster.address, "--replicas", 2]
    for where, name in ((on_ray, "ray"), ([], "alone")):
        turns, judged = tmp_path / f"{name}.jsonl", tmp_path / f"{name}-judged.jsonl"
        words = ("critic", "infer", file, "--benchmark", "convbench", "--out", turns, "--condition", "no_image")
        run_apart(*words, "--model", said, *where, code=0)
        judge = ("critic", "judge", turns, "--benchmark", "convbench", "--out", judged, "--judge", replies(tmp_path))
        run_apart(*judge, "--max-failed", 1, *where, code=0)

    for end in (".jsonl", "-judged.jsonl"):
        assert read_sorted(tmp_path / f"ray{end}") == read_sorted(tmp_path / f"alone{end}")


@slow
def test_a_checkpoint_judges_in_vllm_in_two_actors(tmp_path: Path, cluster: Any, tiny_judge: Path) -> None:
    """Batches differ, so the last digits differ; ratings must not."""
    write_jsonl(tmp_path / "rows.jsonl", [human_row(n, id=f"r{n}", image=None) for n in range(24)])
    words = ("critic", "judge", tmp_path / "rows.jsonl", "--judge", tiny_judge, "--no-reason", "--out")
    on_ray = ("--engine", "ray", "--ray-address", cluster.address, "--replicas", 2)
    by_way = {}
    for name, where in (("ray", on_ray), ("alone", ())):
        run_apart(*words, tmp_path / f"{name}.jsonl", *where, code=0)
        by_way[name] = {line["sample"]["id"]: line for line in read_jsonl(tmp_path / f"{name}.jsonl")}
    assert by_way["ray"].keys() == by_way["alone"].keys() and len(by_way["ray"]) == 24
    for key, line in by_way["ray"].items():
        assert line["setup"]["judge"] == by_way["alone"][key]["setup"]["judge"] and "@" in line["setup"]["judge"]
        assert line["score"] == pytest.approx(by_way["alone"][key]["score"], abs=0.05)


class Ref(concurrent.futures.Future[Any]):
    """The future result of an actor."""

    def __await__(self) -> Any:
        return asyncio.wrap_future(self).__await__()


class StandInRay(ModuleType):
    """The part of Ray that we use, in this process.

    An actor is a thread. `kill` ends its calls in flight, and the next call finds it restarted, unless it is `gone`.
    """

    def __init__(self) -> None:
        super().__init__("ray")
        self.exceptions = ModuleType("ray.exceptions")
        self.exceptions.RayError = type("RayError", (Exception,), {})  # type: ignore[attr-defined]
        late = type("GetTimeoutError", (self.exceptions.RayError,), {})  # type: ignore[attr-defined]
        self.exceptions.GetTimeoutError = late  # type: ignore[attr-defined]
        self.actors, self.open = list[Any](), 0

    def init(self, *_: Any, **__: Any) -> None:
        self.open += 1

    def shutdown(self) -> None:
        self.open -= 1
        for actor in self.actors:
            actor.loop.call_soon_threadsafe(actor.loop.stop)

    def get(self, ref: Ref, timeout: float) -> Any:
        try:
            return ref.result(timeout)
        except concurrent.futures.TimeoutError:
            raise self.exceptions.GetTimeoutError from None

    def wait(self, refs: list[Ref], **_: Any) -> tuple[list[Ref], list[Ref]]:
        return [each for each in refs if each.done()], [each for each in refs if not each.done()]

    def remote(self, worker: type) -> Any:
        def actor(make: Callable[[], Any]) -> Any:
            self.actors.append(Actor(self.exceptions.RayError, lambda: worker(make)))
            return self.actors[-1]

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=actor))


class Actor:
    def __init__(self, lost: type[Exception], make: Callable[[], Any]) -> None:
        self.lost, self.make, self.worker, self.gone, self.asked = lost, make, make(), False, 0
        self.loop, self.under_way = asyncio.new_event_loop(), set[Ref]()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def kill(self, gone: bool = False) -> None:
        self.worker, self.gone = self.make(), gone
        for ref in [each for each in self.under_way if not each.done()]:
            ref.set_exception(self.lost("the actor died"))

    def __getattr__(self, name: str) -> Any:
        def remote(*given: Any) -> Ref:
            ref = Ref()
            ref.set_running_or_notify_cancel()
            self.asked += name == "chat"
            if self.gone:
                ref.set_exception(self.lost("the actor died"))
            else:
                self.under_way.add(ref)
                asyncio.run_coroutine_threadsafe(self._do(getattr(self.worker, name)(*given), ref), self.loop)
            return ref

        return SimpleNamespace(remote=remote)

    async def _do(self, work: Coroutine[Any, Any, Any], ref: Ref) -> None:
        said = await work
        if ref in self.under_way and not ref.done():
            ref.set_result(said)
        self.under_way.discard(ref)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandInRay:
    stand = StandInRay()
    monkeypatch.setitem(sys.modules, "ray", stand)
    monkeypatch.setitem(sys.modules, "ray.exceptions", stand.exceptions)
    return stand


class Answering(ScriptedBackend):
    """A backend that gives fixed replies after a moment."""

    async def chat(self, request: Request) -> Reply:
        await asyncio.sleep(0.01)
        return await super().chat(request)


def answer(request: Request) -> Reply:
    words = request.messages[0]["content"]
    if words == "too long":
        raise Refused("context_length_exceeded", "9 tokens")
    if words == "never":
        raise Transient("not now")
    return Reply(text=words)


def build_request(words: str) -> Request:
    return Request(messages=[{"role": "user", "content": words}], max_tokens=4)


def replicas(make: Callable[[], Any] = lambda: Answering(answer)) -> RayBackend:
    return RayBackend(make, None, 2, 0, 2, 5.0)


async def ask(backend: RayBackend, count: int) -> None:
    replies = await asyncio.gather(*(backend.chat(build_request(f"{number}")) for number in range(count)))
    assert [reply.text for reply in replies] == [f"{number}" for number in range(count)]


def test_two_replicas_share_the_work_and_say_why_they_refuse(stand_in: StandInRay) -> None:
    async def go() -> None:
        async with replicas() as backend:
            await ask(backend, 40)
            assert all(actor.asked > 10 for actor in stand_in.actors)
            assert await asyncio.to_thread(backend.count_tokens, build_request("abc").messages) == 3
            with pytest.raises(Refused, match="9 tokens") as refusal:
                await backend.chat(build_request("too long"))
            assert refusal.value.failure == "context_length_exceeded"
            with pytest.raises(Transient, match="after 2 tries"):
                await backend.chat(build_request("never"))

    asyncio.run(go())
    assert stand_in.open == 0


def test_what_a_dead_replica_had_is_asked_elsewhere_until_it_is_back(stand_in: StandInRay) -> None:
    async def go() -> None:
        async with replicas() as backend:
            await ask(backend, 4)
            first = stand_in.actors[0]
            first.kill(gone=True)
            await ask(backend, 20)
            before = first.asked
            await ask(backend, 20)
            assert backend.retries >= 1 and first.asked <= before + 1
            first.gone, ends = False, time.monotonic() + 20
            while first.asked < before + 12 and time.monotonic() < ends:
                await ask(backend, 8)
            assert first.asked >= before + 12

            under_way = asyncio.create_task(ask(backend, 8))
            while not first.under_way:
                if under_way.done():  # on a busy machine they may be answered between two looks
                    await under_way
                    under_way = asyncio.create_task(ask(backend, 8))
                await asyncio.sleep(0.001)
            first.kill()
            await under_way

    asyncio.run(go())


def test_replicas_that_cannot_start_or_are_two_judges_end_the_run(stand_in: StandInRay) -> None:
    here = threading.current_thread()

    def broken() -> Any:
        if threading.current_thread() is here:
            return Answering(answer)
        raise UsageError("no GPU memory left")

    names = iter(["here", "one@1", "other@2"])
    for make, message in (
        (broken, "no GPU memory left"),
        (lambda: Answering(answer, name=next(names)), "not the same"),
    ):

        async def go(make: Callable[[], Any] = make) -> None:
            async with replicas(make):
                pass

        with pytest.raises(UsageError, match=message):
            asyncio.run(go())


def test_what_ray_cannot_do_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jsonl(tmp_path / "rows.jsonl", [human_row(1)])
    words = ["critic", "judge", tmp_path / "rows.jsonl", "--out", tmp_path / "out.jsonl"]
    url = run(*words, "--judge", "http://127.0.0.1:9/v1", "--engine", "ray")
    assert_one_line_error(url, "--engine ray runs a checkpoint folder itself: give no URL")
    words += ["--judge", replies(tmp_path)]
    assert_one_line_error(run(*words, "--replicas", 2), "go with --engine ray")
    monkeypatch.setitem(sys.modules, "ray", None)
    assert_one_line_error(run(*words, "--engine", "ray"), "pip install -e '.[ray]'")


@pytest.mark.parametrize(
    ("words", "count"), [([], 1), (["--tensor-parallel-size", "4"], 4), (["-tp=2", "-pp", "2"], 4)]
)
def test_a_replica_gets_the_gpus_of_its_engine(monkeypatch: pytest.MonkeyPatch, words: list[str], count: int) -> None:
    monkeypatch.setattr("critic.backends.vllm.find_build", lambda: "vllm")
    assert count_gpus(words) == count
