"""One judge trained with the rating first and with the reason first, asked in both ways: by vLLM in a process, by a
real server, and by both as a panel."""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import (
    ROOT,
    Done,
    asked_of,
    asked_without_waiting,
    assert_one_line_error,
    human_row,
    on_gpu,
    run,
    serving,
    start_with_vllm,
    stopped_engine,
    write_jsonl,
)

from critic import human_scored, records
from critic.backends import Request
from critic.backends.openai import OURS, OpenAIBackend, _parse_tokens
from critic.judging.distribution import zero_share
from critic.judging.grader import Grader, build_continuation

pytestmark = pytest.mark.e2e

KEYS = {"pointwise": ["Rating", "Reason"], "pointwise_reason_first": ["Reason", "Rating"]}
SAME = 1e-3 if on_gpu() else 1e-4
"""Largest difference between probabilities of one rating: float32 sums in another order, in another batch."""

FLOAT = ["--", "--dtype", "float32", "--gpu-memory-utilization", "0.2"] if on_gpu() else []
"""A CPU computes these weights in float32 anyway; on a GPU a server and an engine in here share its memory."""

LONG, TOO_LONG = "row-60", "row-61"

PLAIN = {"x-critic-contract": "none"}
"""Headers that make our server leave a request and its reply to vLLM."""

WAYS: dict[str, list[str]] = {
    "here": ["--judge", "FOLDER"],
    "here, reason first": ["--judge", "FOLDER", "--prompt", "pointwise_reason_first"],
    "served": ["--judge", "SERVER"],
    "served, reason first": ["--judge", "SERVER", "--prompt", "pointwise_reason_first"],
    "served, alone": ["--judge", "SERVER", "--no-reason"],
    "panel": [*["--judge", "FOLDER", "--judge", "SERVER", "--judge", "FOLDER", "--no-reason", "--aggregate", "median"]],
}
if on_gpu():
    del WAYS["panel"]  # no test marked gpu asks it, and each of its engines takes long to start

IN_A_PROCESS = [way for way in WAYS if "served" not in way]

ONE_AFTER_THE_OTHER = """
import json, pathlib, sys
from conftest import run
made = [run("critic", *words) for words in json.loads(sys.argv[1])]
pathlib.Path(sys.argv[2]).write_text(json.dumps([[done.returncode, done.stderr] for done in made]))
"""
"""Several judgings in one process, since loading vLLM takes longest."""


class Judged:
    """The judgments of the same rows by every way."""

    def __init__(self, folder: Path, judge: Path, server: str) -> None:
        from training import sample_rows

        self.rows = [
            *sample_rows(),
            human_row(60, response="many apples " * 400),
            human_row(61, question="which apples " * 400),
        ]
        self.folder, self.places = folder, {"FOLDER": str(judge), "SERVER": server}
        self.data = write_jsonl(folder / "rows.jsonl", self.rows)
        folders = [folder / "no config", folder / "no architecture"]
        for each in folders:
            each.mkdir()
        for name in ("config.json", "tokenizer_config.json"):
            (folders[1] / name).write_text("{}")
        lines = [self.words(way) for way in IN_A_PROCESS]
        lines += [
            ["judge", str(self.data), "--judge", str(each), "--out", str(folder / "none.jsonl")] for each in folders
        ]
        program = [sys.executable, "-c", ONE_AFTER_THE_OTHER, json.dumps(lines), str(folder / "done.json")]
        with start_with_vllm(program, cwd=ROOT / "tests", stderr=subprocess.PIPE) as process:
            self.done = {way: run("critic", *self.words(way)) for way in WAYS if way not in IN_A_PROCESS}
            _, errors = process.communicate(timeout=400)
        assert process.returncode == 0, errors
        names = [*IN_A_PROCESS, "no config", "no architecture"]
        for name, (code, stderr) in zip(names, json.loads((folder / "done.json").read_text("utf-8")), strict=True):
            self.done[name] = Done(lines[0], code, "", stderr)

    def words(self, way: str) -> list[str]:
        places = [self.places.get(word, word) for word in WAYS[way]]
        words = ["judge", str(self.data), "--out", str(self.folder / f"{way}.jsonl"), "--max-failed", "0.1", *places]
        tokens = [] if way == "panel" else ["--max-tokens", "64"]
        return [*words, *tokens, *(FLOAT if way in IN_A_PROCESS else [])]

    def lines(self, way: str) -> dict[str, dict[str, Any]]:
        """Return the judgments by row."""
        assert self.done[way].returncode == 0, self.done[way].stderr
        found = [json.loads(line) for line in (self.folder / f"{way}.jsonl").read_text("utf-8").splitlines()]
        assert Counter(line["sample"]["id"] for line in found) == Counter(row["id"] for row in self.rows)
        return {line["sample"]["id"]: line for line in found}


@pytest.fixture(scope="module")
def tiny_serving(tiny_judge: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Serve the tiny judge: its process, and its URL without `/v1`. The last test ends its engine."""
    with serving(tiny_judge, "--alias", "gpt-4", *FLOAT, end=signal.SIGKILL) as served:
        yield served


@pytest.fixture
def tiny_server(tiny_serving: tuple[object, str]) -> str:
    return f"{tiny_serving[1]}/v1"


@pytest.fixture(scope="module")
def judged(tiny_judge: Path, tiny_serving: tuple[object, str], tmp_path_factory: pytest.TempPathFactory) -> Judged:
    return Judged(tmp_path_factory.mktemp("judged"), tiny_judge, f"{tiny_serving[1]}/v1")


def test_both_are_trained(tiny_judge: Path) -> None:
    """Unconstrained and greedy, it writes the verdict of its prompt, and ends it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    facts = json.loads((tiny_judge / "critic.json").read_text("utf-8"))
    assert facts["forms"] == dict.fromkeys(KEYS, 24) and set(facts["prompts"]) == set(KEYS)
    tokenizer = AutoTokenizer.from_pretrained(tiny_judge)
    model = AutoModelForCausalLM.from_pretrained(tiny_judge, dtype=torch.float32).eval()
    responses = human_scored.load(tiny_judge.parent / "rows.jsonl").responses
    for prompt, keys in KEYS.items():
        for response in responses[:6]:
            messages = asked_of(prompt, response).messages
            inputs = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
            with torch.no_grad():
                written = model.generate(**inputs, max_new_tokens=60, do_sample=False)
            text = tokenizer.decode(written[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            assert list(json.loads(text)) == keys, text


@pytest.mark.gpu
@pytest.mark.parametrize("way", [way for way in WAYS if way != "panel"])
def test_each_row_is_judged_as_asked_for(way: str, judged: Judged) -> None:
    """Every row has a distribution or a named failure."""
    lines, prompt = judged.lines(way), "pointwise_reason_first" if "reason first" in way else "pointwise"
    failed = lines.pop(TOO_LONG)
    del lines[LONG]  # unlike anything it was trained on: it may write without end
    assert failed["verdict"]["failure"] == "context_length_exceeded" and "score" not in failed
    for line in lines.values():
        assert line["prompt"] == prompt and "failure" not in line["verdict"], line
        shares = line["verdict"]["distribution"]
        assert sum(shares) == pytest.approx(1.0) and min(shares) >= 0.0
        assert line["score"] == pytest.approx(sum(n * share for n, share in enumerate(shares, 1)))
        if "alone" not in way:
            assert list(json.loads(line["reply"])) == KEYS[prompt]
            assert line["verdict"]["rating"] == json.loads(line["reply"])["Rating"]
    scores = [line["score"] for line in lines.values()]
    assert max(scores) - min(scores) > 1.0, "a judge that cannot tell rows apart proves nothing"


@pytest.mark.gpu
@pytest.mark.parametrize("way", [way for way in WAYS if way.startswith("served")])
def test_server_and_process_agree(way: str, judged: Judged) -> None:
    """They agree without reasons too. A long response is shortened alike, and one that cannot fit fails alike."""
    here, served = judged.lines("here, reason first" if "reason first" in way else "here"), judged.lines(way)
    assert served[LONG]["shortened"] == here[LONG]["shortened"]
    for key, line in here.items():
        assert served[key]["setup"]["judge"] == line["setup"]["judge"]
        shares = line["verdict"].get("distribution")
        assert served[key]["verdict"].get("distribution") == (shares and pytest.approx(shares, abs=SAME)), key
        if way in ("served", "served, reason first"):
            assert served[key].get("reply") == line.get("reply"), key


def test_a_panel_of_a_folder_and_a_server(judged: Judged) -> None:
    """One judge twice, in two ways: the panel agrees with each. Two folders run one after the other."""
    for key, line in judged.lines("panel").items():
        if key != TOO_LONG:
            assert [each["score"] for each in line["members"]] == pytest.approx([line["score"]] * 3, abs=SAME)


def test_a_verdict_tells_what_a_probe_does(judged: Judged) -> None:
    """The panel's first judge is asked only for the rating, a probe of the same engine: the results are equally
    exact."""
    lines = (judged.folder / "panel.1.jsonl").read_text("utf-8").splitlines()
    probed = {line["sample"]["id"]: line["verdict"] for line in map(json.loads, lines)}
    for key, line in judged.lines("here").items():
        if key not in (LONG, TOO_LONG):
            assert line["verdict"]["distribution"] == pytest.approx(probed[key]["distribution"], abs=1e-6), key


def test_a_whole_rating_is_what_plain_vllm_says(judged: Judged, tiny_server: str) -> None:
    """One request gives the same reply, the same alternatives at the rating, and the result of a second request about a
    1 that was not written."""
    backend = OpenAIBackend(tiny_server)
    backend.choose(None)
    grader = Grader(backend, records.JudgeConfig(judge="j", score_kind="expected"), 64, needs="--score")

    def post(request: Request, headers: dict[str, str]) -> httpx.Response:
        answer = httpx.post(
            f"{tiny_server}/chat/completions", json=backend._build_body(request), headers=headers, timeout=60
        )
        return answer.raise_for_status()

    compared = 0
    for response in human_scored.load(judged.data).responses[:8]:
        question = asked_of("pointwise", response)
        ours, plain = (post(grader.build_request(question, alternatives=None), headers) for headers in (OURS, PLAIN))
        tokens, wanted = (_parse_tokens(answer.json()["choices"][0]["logprobs"]) for answer in (ours, plain))
        assert ours.json()["choices"][0]["message"] == plain.json()["choices"][0]["message"]
        assert [token.text for token in tokens] == [token.text for token in wanted]
        at = next(index for index, token in enumerate(tokens) if len(token.alternatives) > 1)
        assert dict(tokens[at].alternatives) == pytest.approx(dict(wanted[at].alternatives), abs=1e-3)
        assert all(len(token.alternatives) == 1 for token in (*tokens[:at], *tokens[at + 2 :]))
        assert "x-critic-ten" not in plain.headers
        if "x-critic-ten" in ours.headers:
            behind = post(build_continuation(question, '{"Rating":1', "[0,].*", max_tokens=1), PLAIN)
            zero = zero_share(_parse_tokens(behind.json()["choices"][0]["logprobs"]))
            assert float(ours.headers["x-critic-ten"]) == pytest.approx(zero, abs=1e-4)
            compared += 1
    assert compared


@pytest.mark.parametrize(("name", "why"), [("no config", "no model folder"), ("no architecture", "vLLM cannot run")])
def test_a_folder_that_vllm_cannot_run(name: str, why: str, judged: Judged) -> None:
    assert_one_line_error(judged.done[name], why)


def test_the_server_is_asked_by_its_names(judged: Judged, tiny_server: str, tmp_path: Path) -> None:
    own, alias = (model["id"] for model in httpx.get(f"{tiny_server}/models").json()["data"])
    assert own.startswith("judge@") and alias == "gpt-4"
    words = ["--out", tmp_path / "out.jsonl", "--base-url", tiny_server, "--model", "gpt-5"]
    assert_one_line_error(run("critic", "judge", judged.data, *words), "'gpt-5'", own)


def test_a_burst_of_300_requests(tiny_server: str, tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "rows.jsonl", [human_row(number, reason="x") for number in range(300)])
    out = tmp_path / "out.jsonl"
    run("critic", "judge", data, "--out", out, "--judge", tiny_server, "--concurrency", "300", "--no-reason", code=0)
    lines = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert len({line["sample"]["id"] for line in lines}) == 300 and all("score" in line for line in lines)


def test_a_dead_engine_is_told_and_ends_its_server(tiny_serving: tuple["subprocess.Popen[str]", str]) -> None:
    """The server ends with an error. Must be the last test: it leaves no server."""
    process, url = tiny_serving
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
    with httpx.Client(base_url=url, timeout=120) as client, ThreadPoolExecutor(4) as pool:
        with stopped_engine(process) as engine:
            requests = [asked_without_waiting(client, pool, "/v1/chat/completions", body) for _ in range(4)]
            engine.kill()
        for answer in requests:
            assert answer.result().status_code == 503 and int(answer.result().headers["retry-after"]) > 0
    assert process.wait(240) == 1
