"""Helpers that several tests share.

Programs and how they are run, the real data by path, sample records, scripted servers and real ones, and a tiny judge
that is trained and served once for all.
"""

import contextlib
import csv
import functools
import gc
import importlib.util
import io
import json
import os
import random
import re
import runpy
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, settings
from warm import Warm

from critic import cli, human_scored
from critic.judging.examples import Planned, build_example
from critic.judging.forms import JudgeRequest, form_of, inquiry
from critic.records import Example, Message, Response

if TYPE_CHECKING:
    import psutil

# Machines are shared: how long an example takes says nothing about the code.
settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared"
GOLDEN = ROOT / "tests/golden"

SAMPLES = {
    "convbench": "ConvBench.csv",
    "multiverse": "conversations.jsonl",
    "visitbench": "visit_bench.csv",
    "alignmmbench": "metadata.jsonl",
}
"""Benchmark -> the file of its sample in data/samples."""

Done = subprocess.CompletedProcess[str]
"""A program that has ended: its exit code and what it printed."""


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job. Programs started from here inherit that and would not hear Ctrl-C either; behind a
    # handler, though it does nothing, they start as in a terminal.
    signal.signal(signal.SIGINT, lambda *_: None)


GROUPS = {
    "train": ("train/",),
    "serve": ("serve/",),
    "demo": ("stages/test_demo.py",),
    "readme": ("test_readme_commands.py",),
    "layout": ("test_layout.py",),
    "judge": ("backends/test_vllm.py", "test_every_form.py"),
    "adding": ("test_adding.py",),
    "sees": ("backends/test_vllm_sees.py",),
    "head": ("backends/test_vllm_head.py",),
    "ratings": ("stats/test_tournament.py",),
    "worlds": ("agreement/test_coverage.py",),
}
"""Group -> files whose tests share what takes long to make, or take long by themselves; the longest group first, so
that no process works alone in the end. Other files are one each."""


def group(nodeid: str) -> str:
    file = nodeid.split("::", maxsplit=1)[0].removeprefix("tests/")
    return next((name for name, files in GROUPS.items() if file.startswith(files)), file)


def pytest_configure(config: pytest.Config) -> None:
    """Training is tested on the CPU, a GPU or not; with `-m gpu` what is marked so is, on the GPU. Programs compute in
    one thread each: three processes share two cores, and threads that wait for each other take a fifth of the time."""
    os.environ["DS_ACCELERATOR"] = "cuda" if config.option.markexpr == "gpu" else "cpu"
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collectstart() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """Modules and tests are there to the end: to look through them for garbage takes a third of the time in which they
    are collected, and then a twentieth of the tests'."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Extensions name what is not freed in the end."""
    gc.unfreeze()


def on_gpu() -> bool:
    return os.environ.get("DS_ACCELERATOR") == "cuda"


REAL = {"demo", "parser", "served"}
"""Fixtures that load vLLM: who uses one is an end-to-end test."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what is end to end. In a process of pytest-xdist (`make test`) the longest groups come first."""
    if on_gpu() and not pytest.importorskip("torch").cuda.is_available():
        for item in items:
            item.add_marker(pytest.mark.skip(reason="no GPU is seen"))
    for item in items:
        if isinstance(item, pytest.Function) and REAL & set(item.fixturenames):
            item.add_marker("e2e")
    if hasattr(config, "workerinput"):
        ranks = {name: rank for rank, name in enumerate(GROUPS)}
        items.sort(key=lambda item: ranks.get(group(item.nodeid), len(ranks)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keeps a group in one process."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    return ByGroup(config, log)


def needs(*modules: str) -> None:
    """Skip the test where an optional library is not installed. Libraries are not loaded: that takes seconds."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs the train extra and a serve extra: {module} is not installed")


@pytest.fixture
def shared() -> Path:
    """Real data that is not part of the repository."""
    if not SHARED.is_dir():
        pytest.skip("the real data (../shared) is not here")
    return SHARED


def command(*words: object) -> list[str]:
    """Return the command that starts a program of the repository: `critic …`, or a path."""
    program = ["-c", "from critic.cli import main; main()"] if words[0] == "critic" else [str(ROOT / str(words[0]))]
    return [sys.executable, *program, *(str(word) for word in words[1:])]


def assert_ended(done: Done, code: int | None) -> Done:
    """Return `done`, whose exit code must be `code` unless that is None."""
    assert code in (None, done.returncode), f"exit code {done.returncode} instead of {code}\n{done.stderr}"
    return done


def run_apart(*words: object, cwd: Path = ROOT, env: dict[str, str] | None = None, code: int | None = None) -> Done:
    """Run a program of the repository in a process of its own, to see it start.

    With `code` it must end with that exit code.
    """
    done = subprocess.run(command(*words), cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)
    return assert_ended(done, code)


def start_with_vllm(words: list[str], **options: Any) -> subprocess.Popen[str]:
    """Start a Python program that uses vLLM as subprocess.Popen does, by a process that has loaded it (warm.py).

    What has seen a GPU cannot be forked: there it starts from nothing, as where sockets have no abstract names.
    """
    start: type[subprocess.Popen[str]] = Warm if sys.platform == "linux" and not on_gpu() else subprocess.Popen
    return start(words, text=True, **options)


def run_with_vllm(words: list[str], code: int | None = 0, **options: Any) -> Done:
    """Run a Python program that uses vLLM to its end. It must end with `code`."""
    with start_with_vllm(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        try:
            stdout, stderr = process.communicate(timeout=400)
        except BaseException:
            process.kill()
            raise
    return assert_ended(Done(words, process.returncode, stdout, stderr), code)


def run(*words: object, cwd: Path = ROOT, code: int | None = None) -> Done:
    """Run a program as `run_apart` does, but in this process, a second sooner. Errors that it does not catch rise."""
    stdout, stderr = io.StringIO(), io.StringIO()
    arguments = [str(word) for word in words]
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(cwd):
        patch.setattr(sys, "argv", arguments)
        patch.setattr(sys, "stdout", stdout)
        patch.setattr(sys, "stderr", stderr)
        try:
            if words[0] == "critic":
                cli.main()
            else:
                program = ROOT / arguments[0]
                patch.syspath_prepend(program.parent)
                runpy.run_path(str(program), run_name="__main__")
        except SystemExit as end:
            assert isinstance(end.code, int), end.code
            return assert_ended(Done(arguments, end.code, stdout.getvalue(), stderr.getvalue()), code)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    raise AssertionError("a command ends with an exit code")


def kill_after_output(words: Sequence[object], out: Path, chance: random.Random | None = None) -> None:
    """Start a program and kill it with SIGKILL once it has added to `out`, at a random moment if `chance` is given."""
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command(*words), cwd=ROOT, **quiet)
    before = out.stat().st_size if out.is_file() else 0
    while process.poll() is None and (not out.is_file() or out.stat().st_size <= before):
        time.sleep(0.002)
    time.sleep(chance.uniform(0.0, 0.15) if chance else 0)
    process.kill()
    process.wait()


IN_TURN = """
import json, pathlib, sys
from conftest import run
for line in sys.stdin:
    done = run(*json.loads(line), cwd=pathlib.Path.cwd())
    print(json.dumps([done.returncode, done.stdout, done.stderr]), flush=True)
"""


class Copied:
    """`critic …` of a copy of the packages, which must succeed unless another code is expected. All commands run in one
    process, whose start takes longest: from the first one on nothing may be added to the copy."""

    def __init__(self, package: Path, cwd: Path) -> None:
        self.cwd, self.env = cwd, os.environ | {"PYTHONPATH": f"{package}{os.pathsep}{ROOT / 'tests'}"}
        self.process: subprocess.Popen[str] | None = None

    def __call__(self, *words: object, code: int = 0) -> Done:
        return self.program("critic", *words, code=code)

    def program(self, *words: object, code: int = 0) -> Done:
        """Run `critic …`, or a program by its path."""
        if self.process is None:
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self.process = subprocess.Popen([sys.executable, "-c", IN_TURN], cwd=self.cwd, env=self.env, **pipes)
        assert self.process.stdin is not None and self.process.stdout is not None
        said = [str(word) for word in words]
        self.process.stdin.write(json.dumps(said) + "\n")
        self.process.stdin.flush()
        return assert_ended(Done(said, *json.loads(self.process.stdout.readline())), code)

    def close(self) -> None:
        if self.process is not None:
            self.process.communicate()


def free_port() -> int:
    """Below those that Linux gives to connections (from 32768): until it is listened on, none of these takes it."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def serving(
    judge: Path, *options: str, end: signal.Signals = signal.SIGTERM
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`serve/judge.py` on a judge: its process, and its URL without `/v1`. Whatever ends it, vLLM ends with it."""
    import psutil

    log = judge / "log"
    words = command("serve/judge.py", judge, "--port", str(free_port()), "--log", log, "--stop-with-parent", *options)
    server = start_with_vllm(words, cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        ready = server.stdout.readline()
        assert ready.startswith("ready: "), log.read_text("utf-8")[-3000:]
        yield server, ready.split()[1].removesuffix("/v1")
    finally:
        started = psutil.Process(server.pid).children(recursive=True) if server.poll() is None else []
        server.send_signal(end)
        server.wait(60)
        _, left = psutil.wait_procs(started, 60)
        for process in left:
            process.kill()
    assert not left, f"after {end.name} there still run {left}"


@pytest.fixture(autouse=True)
def recursion_limit() -> Iterator[None]:
    """Python's limit as it was: the server raises it for its own process, which is the tests' process where they call
    its layer, and a file nested too deep for `critic` would then be read by tests that come after."""
    limit = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(limit)


@pytest.fixture(scope="session", autouse=True)
def certificates() -> Iterator[None]:
    """Read once: each client reads them, which takes 20 ms, and none needs any for http."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        yield


@contextlib.contextmanager
def stopped_engine(server: subprocess.Popen[str]) -> Iterator["psutil.Process"]:
    """A server whose engine computes nothing until the end of the block: what is asked in it waits, on any machine."""
    import psutil

    (engine,) = [child for child in psutil.Process(server.pid).children(recursive=True) if "EngineCore" in child.name()]
    engine.suspend()
    try:
        yield engine
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            engine.resume()


def asked_without_waiting(client: httpx.Client, pool: Executor, url: str, body: object) -> Future[httpx.Response]:
    """A request whose bytes the server has read, not answered yet."""
    sent = threading.Event()

    def note(event: str, _: object) -> None:
        if event == "http11.send_request_body.complete":
            sent.set()

    answer = pool.submit(client.post, url, json=body, extensions={"trace": note})
    assert sent.wait(60), "not sent"
    for _ in range(2):
        client.get("/health")
    return answer


@pytest.fixture(scope="session")
def tiny_judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A judge that writes verdicts of its own accord, rating first or reason first."""
    needs("deepspeed", "vllm")
    import training

    return training.tiny_judge(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Human-scored rows of tests/training.py, in a file."""
    import training

    return training.write_rows(tmp_path)


@pytest.fixture
def base(tmp_path: Path, rows: Path) -> Path:
    """A random base to train on `rows`."""
    import training

    return training.save_base(tmp_path / "base", rows)


@pytest.fixture
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run that nothing interrupted, of one process if the test has no other as its parameter."""
    import training

    return getattr(request, "param", training.whole)(tmp_path_factory)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """An untrained judge behind the real server, with a key that other people's clients send: the process, and a client
    that has it. The last test of tests/serve stops it."""
    needs("deepspeed", "vllm")
    from clients.tiny_server import make_judge

    judge, headers = make_judge(tmp_path_factory.mktemp("judge")), {"Authorization": "Bearer none"}
    options = ["--alias-of", "lmms-eval", "--alias", "o3", "--api-key", "none", "--max-request-mb", "1"]
    with serving(judge, *options) as (process, url), httpx.Client(base_url=url, headers=headers, timeout=300) as client:
        yield process, client


def certify(path: Path, judge: str) -> Path:
    """Write a certificate of a judge, as if 60 answers in people.csv beside it had been labelled."""
    agreement = {"mae": {"value": 0.8, "n": 60, "interval": [0.7, 0.95]}, "kappa": {"n": 60}}
    labels = {"file": str(path.with_name("people.csv")), "sha256": "5a" * 32, "rows": 60, "raters": 2}
    certificate = {"how": {"judge": judge, "prompts": {"0f": "pointwise"}, "setup": {}}, "labels": labels, "gate": []}
    certificate |= {"kept": True, "date": "2026-11-29", "judged": {"file": "j.jsonl", "sha256": ""}}
    path.write_text(json.dumps({**certificate, "agreement": agreement}))
    return path


def assert_one_line_error(done: Done, *parts: str) -> str:
    """Return the one line that names the caller's mistake; the exit code must be 2, and it must contain `parts`."""
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in lines[0], lines[0]
    return lines[0]


def assert_golden(name: str, text: str) -> None:
    """Check a text against tests/golden; a missing file is written, and the test fails once."""
    golden = GOLDEN / f"{name}.txt"
    if not golden.exists():
        golden.write_text(text + "\n", "utf-8")
        pytest.fail(f"{golden.name} was missing and has been written; look at it and run again")
    assert text + "\n" == golden.read_text("utf-8")


def sample(benchmark: str) -> Path:
    """Return the sample file of a benchmark."""
    return ROOT / "data" / "samples" / benchmark / SAMPLES[benchmark]


def human_row(number: int, **changes: Any) -> dict[str, Any]:
    row = {
        "id": f"row-{number}",
        "task": "Counting",
        "lang": "en",
        "question": f"How many apples lie on table {number}?",
        "history": [],
        "image": f"images/{number:03}.png",
        "reference": f"There are {number % 7 + 2} apples.",
        "references": [],
        "response": f"I see {number % 5 + 2} apples.",
        "system": ["alpha", "beta"][number % 2],
        "human_score": float(number % 10 + 1),
        "scale_min": 1,
        "scale_max": 10,
        "score_1_10": float(number % 10 + 1),
        "group": f"group-{number}",
        "flags": [],
    }
    return {**row, **changes}


def scored_response(number: int = 0, **changes: Any) -> Response:
    """Return the row of `human_row` as a response."""
    return human_scored.build_response(msgspec.convert(human_row(number, **changes), human_scored.Row), {})


def count_characters(messages: Sequence[Message]) -> int:
    """Return the length of messages of text, in place of their number of tokens."""
    return sum(len(message["content"]) for message in messages)


def rows_of(**columns: Any) -> list[dict[str, Any]]:
    """Rows of a table with these columns; a single value stands in each of them."""
    import pandas as pd

    return pd.DataFrame(columns).to_dict("records")  # type: ignore[no-any-return]


def write_xlsx(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """A sheet with the columns of the first row."""
    import openpyxl

    book = openpyxl.Workbook()
    for cells in [list(rows[0]), *(list(row.values()) for row in rows)]:
        book.active.append(cells)
    book.save(path)
    return path


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]], encoding: str = "utf-8") -> Path:
    """Write a table with the columns that any row has."""
    with path.open("w", encoding=encoding, newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)
    return path


def read_csv(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def human_rows(folder: Path, count: int = 12, **changes: Any) -> Path:
    return write_jsonl(folder / "rows.jsonl", [human_row(number, **changes) for number in range(count)])


def png_header(width: int, height: int) -> bytes:
    """Return a PNG that declares this size and holds a few bytes of data."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(b"\0" * 4096)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def completion(text: str, finish: str = "stop", tokens: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """A chat completion as OpenAI-compatible servers send it."""
    choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
    if tokens is not None:
        choice["logprobs"] = {"content": tokens}
    return {"choices": [choice], "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512  # of five a client's burst would be let in after a second
    problem: BaseException | None = None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that is gone; the standard library writes a traceback into whoever's stderr it is."""
        if not isinstance(error := sys.exception(), OSError):
            self.problem = error


class Scripted:
    """An OpenAI-compatible server on loopback that answers each chat request as `answer` says.

    `answer(body)` returns a completion, or (status, headers, body bytes), or None to hang up. With `head` it is what is
    asked for the probabilities of classes, as vLLM's `/classify`, which others do not have. Its routes lie below
    `prefix`, and `listed` is the status of its list of models.
    """

    def __init__(
        self,
        answer: Callable[[dict[str, Any]], Any],
        context: int = 8192,
        owner: str = "someone",
        head: bool = False,
        prefix: str = "/v1",
        listed: int = 200,
    ) -> None:
        self.requests: list[dict[str, Any]] = []
        self.seen: list[tuple[str, dict[str, str]]] = []  # path and headers of every request, the list's as well
        self.told: dict[str, Any] = {}  # what it says about its model besides
        self.counters = ""  # what it says at /metrics, {} for how often it was asked
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body in one packet: a second one would wait 40 ms for the first to be acknowledged

            def log_message(self, *_: Any) -> None:
                pass

            def send(self, status: int, headers: dict[str, str], body: bytes, length: int | None = None) -> None:
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body) if length is None else length))
                self.end_headers()
                with contextlib.suppress(OSError):  # the client may be gone
                    self.wfile.write(body)

            def parse_request(self) -> bool:
                parsed = super().parse_request()
                if parsed:
                    scripted.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
                return parsed

            def do_GET(self) -> None:
                if self.path == "/health":
                    self.send(200, {}, b"")
                    return
                if self.path == "/metrics" and scripted.counters:
                    self.send(200, {}, scripted.counters.replace("{}", str(len(scripted.requests))).encode())
                    return
                if listed != 200 or self.path.partition("?")[0] != f"{prefix}/models":
                    self.send(404 if listed == 200 else listed, {}, b'{"error": {"message": "no such route"}}')
                    return
                model = {"id": "tiny", "owned_by": owner, "max_model_len": context, **scripted.told}
                self.send(200, {}, json.dumps({"data": [model]}).encode())

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                raw = self.rfile.read(length)
                if len(raw) < length:  # the client is gone
                    self.close_connection = True
                    return
                body = json.loads(raw)
                if self.path == "/tokenize":
                    texts = [message["content"] for message in body["messages"]]
                    if not all(isinstance(text, str) for text in texts):
                        self.send(400, {}, b'{"error": {"message": "it takes no images"}}')
                        return
                    last = texts[-1][-1]
                    tokens = {"count": sum(map(len, texts)), "tokens": [ord(last)], "token_strs": [last]}
                    self.send(200, {}, json.dumps(tokens).encode())
                    return
                if not head and self.path.partition("?")[0] not in (f"{prefix}/chat/completions", "/classify"):
                    self.send(404, {}, b'{"error": {"message": "no such route"}}')
                    return
                if head != (self.path == "/classify"):
                    self.send(404, {}, b'{"detail": "Not Found"}')
                    return
                scripted.requests.append(body)
                reply = answer(body)
                if reply is None:
                    self.send(200, {}, b'{"choices"', length=4096)
                    self.close_connection = True
                elif isinstance(reply, tuple):
                    self.send(*reply)
                else:
                    self.send(200, {}, json.dumps(reply).encode())

        self.server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        """Raises what `answer` has raised, of which the client has seen a closed connection."""
        self.server.shutdown()
        self.server.server_close()
        if self.server.problem is not None:
            raise self.server.problem


Servers = Callable[..., Scripted]


def blocks(page: str, heading: str, language: str) -> list[str]:
    """Return the code blocks of a language under a heading of a page."""
    text = (ROOT / page).read_text("utf-8")
    (section,) = re.findall(rf"(?ms)^#+ {re.escape(heading)}$(.*?)(?=^#+ [A-Z]|\Z)", text)
    return re.findall(rf"(?s)```{language}\n(.*?)```", section)


@pytest.fixture
def without_collection() -> Iterator[None]:
    """A look through all that other tests have left takes a second now and then."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def scripted() -> Iterator[Servers]:
    """Makes scripted servers and stops them after the test."""
    with contextlib.ExitStack() as servers:
        yield lambda answer, **options: servers.enter_context(contextlib.closing(Scripted(answer, **options)))


def example_in(
    form: str,
    *responses: Response,
    limit: int | None = None,
    count: Callable[[list[Message]], int] = lambda messages: 0,
    sees: bool = False,
) -> Example | None:
    """Build the training example that shows the responses in a form."""
    planned = Planned(form, tuple(response.id for response in responses))
    return build_example(planned, {response.id: response for response in responses}, limit, count, sees)


def asked_of(form: str, response: Response, other: Response | None = None) -> JudgeRequest:
    """Return the request about a response in a form: its `messages` before anything is left out, its `schema()`."""
    return inquiry(form, response.question.lang, form_of(form).material(response, other))
