"""Clients' questions to real servers, three ways: a writer in the client's words, a writer as it learned, a head."""

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest
from clients.forms import FORMS, single_grading
from clients.tiny_server import make_judge
from conftest import ROOT, needs, run_apart, serving, write_jsonl

pytestmark = pytest.mark.e2e
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


@pytest.fixture(scope="module", params=["writer, as asked", "writer, as learned", "head"])
def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, httpx.Client]]:
    """One of the three ways: its name, and a client of its server."""
    needs("deepspeed", "vllm")
    judge = make_judge(tmp_path_factory.mktemp("judge"), [FORM], head=request.param == "head")
    options = ["--as-asked"] if "asked" in request.param else []
    with serving(judge, "--alias", "gpt-4", *options) as (_, url), httpx.Client(base_url=url, timeout=300) as client:
        yield request.param, client


def ask(client: httpx.Client, request: dict[str, Any]) -> httpx.Response:
    # An untrained judge would reason for hundreds of tokens.
    return client.post("/v1/chat/completions", json={**request, "max_tokens": 80, "model": "gpt-4"})


def test_every_client_that_rates_or_grades_reads_its_verdict(
    way: tuple[str, httpx.Client], capfd: pytest.CaptureFixture[str]
) -> None:
    name, client = way
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


def test_the_first_request_of_the_readme(way: tuple[str, httpx.Client]) -> None:
    _, client = way
    answer = ask(client, {"messages": [{"role": "user", "content": README}]})
    text = answer.json()["choices"][0]["message"]["content"]
    assert len(re.findall(r"(?m)^Score: (?:10|[1-9])$", text)) == 1, text


def test_other_requests(way: tuple[str, httpx.Client]) -> None:
    name, client = way
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
    way: tuple[str, httpx.Client], tmp_path: Path
) -> None:
    name, client = way
    if name == "writer, as asked" or not ROWS.is_file():
        pytest.skip("asked in other words" if ROWS.is_file() else f"{ROWS} is not here")
    with ROWS.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in islice(lines, 0, 8000, 8000 // RATED)][:RATED]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    url = str(client.base_url).rstrip("/")
    out = tmp_path / "judged.jsonl"
    words = ["--base-url", f"{url}/v1", "--prompt", FORM, "--out", str(out)]
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
