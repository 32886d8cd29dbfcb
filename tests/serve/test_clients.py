"""Other people's clients judge with a real server of ours: their own code, in throw-away environments.

    make test-clients

lmms-eval is part of `make test`, the others only of this, as is the audit of result files by tools' own writers. All
come from PyPI or npm; where those cannot be reached the tests are skipped, and with CLIENTS=all they fail. Environments
are kept under build/clients, where `make clean` finds them. At the end stands a table of the verdicts read. Before them
the same servers are asked, in this process, what clients ask.
"""

import contextlib
import json
import math
import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import pytest
from clients.environments import CLIENTS, KEY, PROGRAMS, had, installed, printed
from clients.forms import FORMS, single_grading
from clients.tiny_server import make_judge
from conftest import ROOT, certify, needs, run, serving, write_jsonl

pytestmark = pytest.mark.e2e

FORM = "pointwise_short"
ROWS = ROOT.parent / "shared/data/human_scored/llmeval2.jsonl"
HARNESSES = tomllib.loads((ROOT / "serve/harnesses.toml").read_text("utf-8"))
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


WAYS = {"writer, as asked": ["--as-asked"], "writer, as learned": [], "head": []}
"""How the judge is asked, and the server's options."""


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
            options = [*WAYS[way], "--alias-of", "vlmevalkit", "--alias-of", "lmms-eval", "--alias", "o3"]
            _, url = self.servers.enter_context(serving(judge, *options, "--api-key", KEY))
            self.urls[way] = f"{url}/v1"
        return self.urls[way]

    def name(self, way: str) -> str:
        """Return the judge's own name, which logs are to have."""
        listed = httpx.get(f"{self.url(way)}/models", headers={"Authorization": f"Bearer {KEY}"}).json()
        return str(listed["data"][0]["id"])

    def lines(self, name: str, *arguments: str, **variables: str) -> list[dict[str, Any]]:
        """What the program of a client prints: a JSON line a verdict."""
        folder = had(self.folders[name].result)
        if name == "promptfoo":
            words = ["node", shutil.copy(PROGRAMS / "promptfoo_client.mjs", folder)]
        else:
            words = [folder / "bin/python", PROGRAMS / f"{name}_client.py"]
        return printed([*words, *arguments], folder, {"PYTHONPATH": str(ROOT / "tests"), **variables})

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


@pytest.fixture(scope="module")
def clients(request: pytest.FixtureRequest) -> Iterator[Clients]:
    """The clients whose tests are run: their environments are made while the first of them judges."""
    needs("deepspeed", "vllm")
    tests = [item.name for item in request.session.items if item.path == request.path]
    clients = Clients(
        [name for name in CLIENTS if any(test.startswith(f"test_{name}[") or f"[{name}-" in test for test in tests)]
    )
    yield clients
    clients.servers.close()
    clients.installing.shutdown(cancel_futures=True)
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(clients.table())


@pytest.fixture(scope="module", params=WAYS)
def served_way(request: pytest.FixtureRequest, clients: Clients) -> Iterator[tuple[str, httpx.Client]]:
    """One of the three ways: its name, and a client of its server."""
    url, headers = clients.url(request.param).removesuffix("/v1"), {"Authorization": f"Bearer {KEY}"}
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
    words = ["--base-url", str(client.base_url.join("v1")), "--api-key", KEY, "--prompt", FORM, "--out", str(out)]
    run("critic", "judge", str(tmp_path / "rows.jsonl"), *words, code=0)
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


def is_read(name: str, call: str, value: Any) -> bool:
    """Return True if a client may have read this value from the verdict of a call."""
    if call.startswith("model_graded"):
        return value in ("C", "I", *(["P"] if call == "model_graded_qa1" else []))
    if name == "mlflow":
        whole = range(1, 4 if call == "make_genai_metric" else 6)
        return value in (("yes", "no") if call.startswith(("is_", "meets_")) else whole)
    # What an untrained judge finds may be an empty list, of which ragas makes no number.
    is_empty = name == "ragas" and math.isnan(value)
    return is_empty or 0 <= value <= {"RubricsScore": 5, "judge": 10}.get(call, 1)


@pytest.mark.clients
@in_each_way
@pytest.mark.parametrize("name", ["inspect", "autoevals", "mlflow", "ragas", "promptfoo"])
def test_verdicts_are_read(clients: Clients, name: str, way: str, tmp_path: Path) -> None:
    quiet = {"PROMPTFOO_DISABLE_TELEMETRY": "1", "PROMPTFOO_DISABLE_UPDATE": "1", "PROMPTFOO_CONFIG_DIR": str(tmp_path)}
    lines, judge = clients.lines(name, clients.url(way), **quiet), clients.name(way)
    reads = [line.get("problem") is None and is_read(name, line["call"], line["value"]) for line in lines]
    assert all(line.get("model", judge) == judge for line in lines)
    clients.check(name, way, [(line["call"], read, line) for read, line in zip(reads, lines, strict=True)])
    if name != "inspect":
        return
    # Only in its environment are there the packages that unpack its logs.
    critic = clients.folders[name].result() / "bin/critic"
    for certified, code in ((judge, 0), ("judge@1", 2)):
        words = [critic, "audit", lines[0]["log"], "--map", "metadata.people=people", "--out", tmp_path / "out"]
        words += ["--certificate", certify(tmp_path / "c.json", certified)]
        done = subprocess.run(words, cwd=critic.parents[1], capture_output=True, text=True, check=False)
        assert done.returncode == code and judge in (done.stderr if code else done.stdout), done.stderr


@pytest.mark.clients
@in_each_way
def test_vlmevalkit(clients: Clients, way: str) -> None:
    """As vlmeval/api/gpt.py, OpenAIWrapper.generate_inner, sends what its data sets ask, LOCAL_LLM set and unset."""
    contracts = "correctness-float", "mmdu-dictionary", "two-scores-last"
    asked = cycle(form for form in FORMS if form.contract in contracts)
    judge, headers, reads = clients.name(way), {"Authorization": f"Bearer {KEY}"}, list[tuple[str, bool, str]]()
    for model, form in zip([judge, *HARNESSES["vlmevalkit"]["models"]], asked, strict=False):
        # Its limit is 2,048 tokens, which an untrained judge would fill with reasons.
        limits: dict[str, Any] = {"temperature": 0, "max_tokens": 200}
        if re.search("o1|o3|o4|gpt-5", model):
            limits = {"max_completion_tokens": 200}
        elif "gemini" in model:
            limits = {"temperature": 0, "reasoning_effort": "high"}
        body = {"model": model, "messages": form.request["messages"], **limits}
        answer = httpx.post(f"{clients.url(way)}/chat/completions", headers=headers, json=body, timeout=330)
        # A head refuses by name.
        if way == "head":
            assert answer.status_code == 400 and "scoring head" in answer.text
        else:
            assert answer.json()["model"] == judge
        right = way == "head" or form.parse(answer.json()["choices"][0]) is not None
        reads.append((form.contract, right, answer.text))
    clients.check("vlmevalkit", way, reads)


@in_each_way
def test_lmms(clients: Clients, way: str) -> None:
    def is_right(line: dict[str, Any]) -> bool:
        if line["problem"] is not None:
            return False
        call, read, raw = line["call"], line["value"]["read"], line["value"]["raw"]
        if call in ("binary 0/1", "binary, reasoning model"):
            return raw == str(read) and read in (0, 1)
        if call in ("binary yes/no", "correctness"):
            return raw == ("Yes" if read else "No")
        if call.startswith("comparative"):
            return all(1 <= score <= 10 for score in read)
        return list(read) == ["accuracy", "clarity"] and all(0 <= score <= 10 for score in read.values())

    judged = clients.lines("lmms", OPENAI_API_URL=clients.url(way))
    clients.check("lmms", way, [(line["call"], is_right(line), line) for line in judged])


@pytest.mark.clients
@pytest.mark.parametrize("way", [way for way in WAYS if way != "head"])
def test_lmms_run(clients: Clients, way: str, tmp_path: Path) -> None:
    """Its own command on a small benchmark, whose answers and verdicts are the judge's."""
    url, folder = clients.url(way), had(clients.folders["lmms_run"].result)
    model = ["openai", "--model_args", f"model=gpt-4,base_url={url},api_key={KEY},timeout=60"]
    words = ["-m", "lmms_eval", "eval", "--tasks", "mm_vet_of_three", "--include_path", ".", "--model", *model]
    words += ["--log_samples", "--output_path", str(tmp_path)]
    certificate = str(certify(tmp_path / "c.json", clients.name(way)))
    own = {"API_TYPE": "critic", "OPENAI_API_URL": url, "CRITIC_CERTIFICATE": certificate, "HF_HOME": str(tmp_path)}
    printed([folder / "bin/python", *words], PROGRAMS / "lmms_task", own)
    (samples,) = tmp_path.glob("*/*_samples_*.jsonl")
    scored = [json.loads(line)["gpt_eval_score"] for line in samples.read_text("utf-8").splitlines()]
    assert {line["eval_model"] for line in scored} == {clients.name(way)}
    clients.check("lmms_run", way, [("mmvet", 0 <= line["score"] <= 1, line) for line in scored])


@pytest.mark.clients
@pytest.mark.parametrize("name", [name for name, client in CLIENTS.items() if client.file])
def test_result_files_of_their_own_writers_are_audited(name: str, tmp_path: Path) -> None:
    quiet = {"MLFLOW_ALLOW_FILE_STORE": "true", "DEEPEVAL_TELEMETRY_OPT_OUT": "1"}
    words = [had(lambda: installed(name)) / "bin/python", PROGRAMS / "writers.py", name, CLIENTS[name].file["by"]]
    (written,) = printed(words, tmp_path, quiet)
    people = [f"{key},{score}" for key, score in zip(written["ids"], (5, 3, 1, 4, 2, 5), strict=True)]
    by = "user_input" if name == "ragas" else "id"  # ragas has no ids
    (tmp_path / "people.csv").write_text("\n".join([f"{by},human", *people]))
    ids = ["--map", "user_input=id"] if name == "ragas" else []
    done = run("critic", "audit", written["file"], "people.csv", *ids, "--out", "out", cwd=tmp_path, code=0)
    taken = [f"{usual}: {path}" for usual, path in CLIENTS[name].file.items() if usual != "by"]
    facts = ["people: human on 1..5", "judge: graded on 0..1", *taken]
    assert not [fact for fact in facts if fact not in done.stdout], (written["version"], done.stdout)
    summary = json.loads((tmp_path / "out/summary.json").read_text("utf-8"))["people.csv"]
    assert (summary["n"], summary["failed"], summary["mae"]) == (6, 0, 0.0)
