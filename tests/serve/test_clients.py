"""Other people's clients judge with a real server of ours: their own code, in throw-away environments.

    make test-clients

lmms-eval is part of `make test`, the others only of this, as is the audit of result files by tools' own writers. All
come from PyPI or npm; where those cannot be reached the tests are skipped, and with CLIENTS=all they fail. Environments
are kept under build/clients, where `make clean` finds them. At the end stands a table of the verdicts read. Before them
the same servers are asked, in this process, what clients ask.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from clients.forms import FORMS, single_grading
from clients.tiny_server import make_judge
from conftest import ROOT, needs, run, run_apart, serving, write_jsonl

pytestmark = pytest.mark.e2e

PROGRAMS, KEPT = ROOT / "tests/clients", ROOT / "build/clients"
INSTALL_SECONDS = 300
FORM = "pointwise_short"
ROWS = ROOT.parent / "shared/data/human_scored/llmeval2.jsonl"
RATED = 12
"""Rows that people scored."""

README = "Rate the answer from 1 to 10.\nQuestion: 3 + 4?\nAnswer: 7\nEnd with: Score: n"
GRADING = [
    form
    for form in FORMS
    if form.contract
    in (
        *("grade-ci", "grade-cpi", "zero-one", "yes-no", "zero-one-only", "yes-no-only", "rubric-scores"),
        *("bracketed-rating", "prometheus-absolute", "pass-and-score"),
    )
]
"""Clients that rate or grade one answer."""


class Client(NamedTuple):
    """What is installed for a client, by pip or by npm, how many verdicts its program asks for, and which of its calls
    rate or grade one answer by a template whose parts are known: a head answers these."""

    packages: list[list[str]]
    verdicts: int
    rated: tuple[str, ...] = ()


CLIENTS = {
    "inspect": Client(
        [["inspect-ai", "openai"]],
        12,
        ("model_graded_qa", "model_graded_qa, partial credit", "model_graded_fact"),
    ),
    "lmms": Client(
        [["aiohttp", "openai", "requests", "loguru", "pillow", "numpy", "tqdm"], ["--no-deps", "lmms-eval"]],
        8,
        ("binary 0/1", "binary yes/no", "binary, reasoning model", "rubric", "rubric, json", "correctness"),
    ),
    "autoevals": Client([["autoevals", "openai"]], 14, ("ClosedQA",)),
    "mlflow": Client(
        [["mlflow-skinny", "openai", "pandas"]], 8, ("answer_correctness", "answer_relevance", "make_genai_metric")
    ),
    # Newer ones have moved what ragas imports.
    "ragas": Client([["ragas", "openai", "langchain-community<0.4"]], 8),
    "promptfoo": Client([["promptfoo"]], 3, ("llm-rubric",)),
    "lm_eval": Client([["lm-eval"]], 0),
    "deepeval": Client([["deepeval"]], 0),
    "evalscope": Client([["evalscope"]], 0),
}

WAYS = {"writer, as asked": ["--as-asked"], "writer, as learned": [], "head": []}
"""How the judge is asked, and the server's options."""

# What `critic audit` takes from a file by the tool's own writer: for the question, the text and the model.
RESULT_FILES = {
    "inspect": ("inspect_ai", "input", "output.completion", "output.model"),
    "lm_eval": ("lm_eval", "doc.question", "filtered_resps", None),
    "mlflow": ("mlflow_skinny", "info.request_preview", "info.response_preview", "info.tags.model"),
    "ragas": ("ragas", "user_input", "response", None),
    "deepeval": ("deepeval", "input", "actualOutput", None),
    "evalscope": ("evalscope", "messages.0.content", "sample_score.score.prediction", None),
}


class NotToBeHad(Exception):
    """A package that its index does not give."""


class Clients:
    """Runs the clients' programs, each in an environment of its own, and keeps how many verdicts they read."""

    def __init__(self, names: list[str]) -> None:
        self.read: dict[tuple[str, str], tuple[int, int] | None] = {(name, way): None for name in names for way in WAYS}
        self.installing = ThreadPoolExecutor(2)
        self.folders: dict[str, Future[Path]] = {name: self.installing.submit(installed, name) for name in names}
        self.servers, self.urls = contextlib.ExitStack(), dict[str, str]()

    def url(self, way: str) -> str:
        """Return the URL of an untrained judge that is asked in one way; it starts when it is first wanted."""
        if way not in self.urls:
            judge = make_judge(Path(tempfile.mkdtemp()), [FORM], head=way == "head")
            options = [*WAYS[way], "--alias", "gpt-4", "--alias", "gpt-3.5-turbo", "--alias", "o3", "--api-key", "none"]
            _, url = self.servers.enter_context(serving(judge, *options))
            self.urls[way] = f"{url}/v1"
        return self.urls[way]

    def lines(self, name: str, *arguments: str, **variables: str) -> list[dict[str, Any]]:
        """What the program of a client prints: a JSON line a verdict."""
        folder = had(self.folders[name].result)
        if name == "promptfoo":
            words = ["node", shutil.copy(PROGRAMS / "promptfoo_client.mjs", folder)]
        else:
            words = [folder / "bin/python", PROGRAMS / f"{name}_client.py"]
        return printed([*words, *arguments], folder, variables)

    def check(self, name: str, way: str, right: list[tuple[str, bool, Any]]) -> None:
        """Check that a client read the verdict of each call: its name, whether the verdict was read, and the line.

        Of a head only ratings and grades of one answer count.
        """
        assert len(right) == CLIENTS[name].verdicts
        wanted = [line for line in right if way != "head" or line[0] in CLIENTS[name].rated]
        self.read[name, way] = (sum(is_read for _, is_read, _ in wanted), len(wanted))
        assert not [line for _, is_read, line in wanted if not is_read]

    def table(self) -> str:
        rows = ["", f"| client | {' | '.join(WAYS)} |", "|---|---|---|---|"]
        for name in dict.fromkeys(name for name, _ in self.read):
            cells = [self.read[name, way] for way in WAYS]
            shown = ["not run" if cell is None else f"{cell[0]} / {cell[1]}" for cell in cells]
            rows.append(f"| {name} | {' | '.join(shown)} |")
        return "\n".join(rows)


def had(environment: Callable[[], Path]) -> Path:
    try:
        return environment()
    except NotToBeHad as problem:
        (pytest.fail if os.environ.get("CLIENTS") == "all" else pytest.skip)(str(problem))


def installed(name: str) -> Path:
    """The environment of a client, made unless a whole one is there. Raises NotToBeHad."""
    packages = CLIENTS[name].packages
    mark = hashlib.sha256(json.dumps([packages, sys.version]).encode()).hexdigest()[:8]
    folder = KEPT / f"{name}-{mark}"
    if (folder / "whole").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if name == "promptfoo":
        if shutil.which("npm") is None or shutil.which("node") is None:
            raise NotToBeHad("npm is not here")
        fetched(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *packages[0]], folder)
    else:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        pip = [sys.executable, "-m", "pip", "--python", folder / "bin/python", "--disable-pip-version-check", "-q"]
        for words in packages:
            fetched([*pip, "install", "--no-compile", "--retries", "1", "--timeout", "20", *words], folder)
    (folder / "whole").touch()
    return folder


def fetched(words: list[Any], folder: Path) -> None:
    """Runs what installs packages. Raises NotToBeHad."""
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NotToBeHad(f"{words[-1]} was not installed within {INSTALL_SECONDS} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no word why"]
        raise NotToBeHad(f"not to be had from the package index: {lines[-1]}")


def printed(words: list[Any], folder: Path, variables: dict[str, str]) -> list[dict[str, Any]]:
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "OPENAI_API_KEY": "none", **variables},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def clients(request: pytest.FixtureRequest) -> Iterator[Clients]:
    """The clients whose tests are run: their environments are made while the first of them judges."""
    needs("deepspeed", "vllm")
    tests = [item.name for item in request.session.items if item.path == request.path]
    clients = Clients([name for name in CLIENTS if any(test.startswith(f"test_{name}[") for test in tests)])
    yield clients
    clients.servers.close()
    clients.installing.shutdown(cancel_futures=True)
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(clients.table())


@pytest.fixture(scope="module", params=WAYS)
def served_way(request: pytest.FixtureRequest, clients: Clients) -> Iterator[tuple[str, httpx.Client]]:
    """One of the three ways: its name, and a client of its server."""
    url, headers = clients.url(request.param).removesuffix("/v1"), {"Authorization": "Bearer none"}
    with httpx.Client(base_url=url, headers=headers, timeout=300) as client:
        yield request.param, client


def ask(client: httpx.Client, request: dict[str, Any]) -> httpx.Response:
    # An untrained judge would reason for hundreds of tokens.
    return client.post("/v1/chat/completions", json={**request, "max_tokens": 80, "model": "gpt-4"})


def test_every_client_that_rates_or_grades_reads_its_verdict(
    served_way: tuple[str, httpx.Client], capfd: pytest.CaptureFixture[str]
) -> None:
    name, client = served_way
    answers = [(form, ask(client, form.request)) for form in GRADING]
    problems = [(form.contract, answer.text) for form, answer in answers if answer.status_code != 200]
    assert not problems
    unread = [
        (form.contract, answer.text) for form, answer in answers if form.parse(answer.json()["choices"][0]) is None
    ]
    with capfd.disabled():
        print(f"\n| {name} | {len(answers) - len(unread)} / {len(answers)} |")
    assert not unread
    marked = {answer.headers.get("x-critic-form") for _, answer in answers}
    assert marked == ({None} if name == "writer, as asked" else {FORM})


def test_the_first_request_of_the_readme(served_way: tuple[str, httpx.Client]) -> None:
    _, client = served_way
    answer = ask(client, {"messages": [{"role": "user", "content": README}]})
    text = answer.json()["choices"][0]["message"]["content"]
    assert len(re.findall(r"(?m)^Score: (?:10|[1-9])$", text)) == 1, text


def test_other_requests(served_way: tuple[str, httpx.Client]) -> None:
    name, client = served_way
    answer = ask(client, {"messages": [{"role": "user", "content": "Which is the capital of Peru?"}]})
    assert answer.status_code == (400 if name == "head" else 200), answer.text
    assert name != "head" or "inspect-ai" in answer.json()["error"]["message"]
    long = "four " * 6000
    grading = json.loads(json.dumps(GRADING[0].request).replace("Four apples.", long))
    answer = ask(client, grading)
    if name == "writer, as asked":
        assert answer.json()["error"]["code"] == "context_length_exceeded"
    else:
        assert answer.status_code == 200, answer.text
        assert int(answer.headers["x-critic-shortened"].removeprefix("reference=")) > 1000


def test_a_client_reads_what_critic_judge_writes_of_the_same_rows(
    served_way: tuple[str, httpx.Client], tmp_path: Path
) -> None:
    name, client = served_way
    if name == "writer, as asked" or not ROWS.is_file():
        pytest.skip("asked in other words" if ROWS.is_file() else f"{ROWS} is not here")
    with ROWS.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in islice(lines, 0, 8000, 8000 // RATED)][:RATED]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    out = tmp_path / "judged.jsonl"
    words = ["--base-url", str(client.base_url.join("v1")), "--api-key", "none", "--prompt", FORM, "--out", str(out)]
    run_apart("critic", "judge", str(tmp_path / "rows.jsonl"), *words, code=0)
    judged = {line["sample"]["id"]: line["score"] for line in map(json.loads, out.read_text("utf-8").splitlines())}
    assert len(judged) == RATED
    ratings = dict[str, int]()
    for row in rows:
        request = {"messages": [{"role": "user", "content": single_grading(row)}]}
        text = ask(client, request).json()["choices"][0]["message"]["content"]
        (rating,) = re.findall(r"\[\[([0-9]+)\]\]", text)
        ratings[row["id"]] = int(rating)
    assert {key: abs(ratings[key] - score) <= 0.5 for key, score in judged.items()} == dict.fromkeys(judged, True)
    assert len({*ratings.values()}) > 1, "ratings that are all alike prove nothing"


in_each_way = pytest.mark.parametrize("way", WAYS)


@pytest.mark.clients
@in_each_way
def test_inspect(clients: Clients, way: str) -> None:
    allowed = {
        "model_graded_qa": {"C", "I"},
        "model_graded_qa, partial credit": {"C", "P", "I"},
        "model_graded_fact": {"C", "I"},
    }
    graded = clients.lines("inspect", clients.url(way))
    grades = [(line["grader"], grade) for line in graded if line["status"] == "success" for grade in line["grades"]]
    clients.check("inspect", way, [(name, grade in allowed[name], (name, grade)) for name, grade in grades])


@in_each_way
def test_lmms(clients: Clients, way: str) -> None:
    def is_read(line: dict[str, Any]) -> bool:
        if "problem" in line:
            return False
        call, read, raw = line["call"], line["read"], line["raw"]
        if call in ("binary 0/1", "binary, reasoning model"):
            return raw == str(read) and read in (0, 1)
        if call in ("binary yes/no", "correctness"):
            return raw == ("Yes" if read else "No")
        if call in ("comparative", "comparative, image"):
            return all(1 <= score <= 10 for score in read)
        return list(read) == ["accuracy", "clarity"] and all(0 <= score <= 10 for score in read.values())

    judged = clients.lines("lmms", OPENAI_API_URL=clients.url(way))
    clients.check("lmms", way, [(line["call"], is_read(line), line) for line in judged])


@pytest.mark.clients
@in_each_way
def test_autoevals(clients: Clients, way: str) -> None:
    scored = clients.lines("autoevals", clients.url(way))
    reads = [(line["scorer"], line["problem"] is None and 0 <= line["score"] <= 1, line) for line in scored]
    clients.check("autoevals", way, reads)


@pytest.mark.clients
@in_each_way
def test_mlflow(clients: Clients, way: str) -> None:
    def is_read(name: str, value: Any) -> bool:
        if name.startswith(("is_", "meets_")):
            return value in ("yes", "no")
        return value in ((1, 2, 3) if name == "make_genai_metric" else (1, 2, 3, 4, 5))

    lines = clients.lines("mlflow", clients.url(way))
    clients.check("mlflow", way, [(line["metric"], is_read(line["metric"], line["value"]), line) for line in lines])


@pytest.mark.clients
@in_each_way
def test_ragas(clients: Clients, way: str) -> None:
    def is_read(line: dict[str, Any]) -> bool:
        most = 5 if line["metric"] == "RubricsScore" else 1
        # What an untrained judge finds may be an empty list, of which ragas makes no number.
        return line["problem"] is None and (math.isnan(line["value"]) or 0 <= line["value"] <= most)

    lines = clients.lines("ragas", clients.url(way))
    clients.check("ragas", way, [(line["metric"], is_read(line), line) for line in lines])


@pytest.mark.clients
@in_each_way
def test_promptfoo(clients: Clients, way: str, tmp_path: Path) -> None:
    def is_read(line: dict[str, Any]) -> bool:
        read = not re.search("did not match|Could not", line.get("reason", "Could not"))
        return read and isinstance(line["pass"], bool) and 0 <= line["score"] <= 1

    quiet = {"PROMPTFOO_DISABLE_TELEMETRY": "1", "PROMPTFOO_DISABLE_UPDATE": "1", "PROMPTFOO_CONFIG_DIR": str(tmp_path)}
    lines = clients.lines("promptfoo", clients.url(way), **quiet)
    clients.check("promptfoo", way, [(line["assertion"], is_read(line), line) for line in lines])


@pytest.mark.clients
@pytest.mark.parametrize("name", RESULT_FILES)
def test_result_files_of_their_own_writers_are_audited(name: str, tmp_path: Path) -> None:
    package, *paths = RESULT_FILES[name]
    quiet = {"MLFLOW_ALLOW_FILE_STORE": "true", "DEEPEVAL_TELEMETRY_OPT_OUT": "1"}
    words = [had(lambda: installed(name)) / "bin/python", PROGRAMS / "writers.py", name, package]
    (written,) = printed(words, tmp_path, quiet)
    people = [f"{key},{score}" for key, score in zip(written["ids"], (5, 3, 1, 4, 2, 5), strict=True)]
    by = "user_input" if name == "ragas" else "id"  # ragas has no ids
    (tmp_path / "people.csv").write_text("\n".join([f"{by},human", *people]))
    ids = ["--map", "user_input=id"] if name == "ragas" else []
    done = run("critic", "audit", written["file"], "people.csv", *ids, "--out", "out", cwd=tmp_path, code=0)
    named = dict(zip(("question", "response", "system"), paths, strict=True))
    facts = [
        "people: human on 1..5",
        "judge: graded on 0..1",
        *(f"{usual}: {path}" for usual, path in named.items() if path),
    ]
    assert not [fact for fact in facts if fact not in done.stdout], (written["version"], done.stdout)
    summary = json.loads((tmp_path / "out/summary.json").read_text("utf-8"))["people.csv"]
    assert (summary["n"], summary["failed"], summary["mae"]) == (6, 0, 0.0)
