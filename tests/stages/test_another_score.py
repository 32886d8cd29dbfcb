"""critic judge with another --score on a file that is there: the same probabilities, nothing asked anew."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import Done, Scripted, Servers, assert_one_line_error, human_row, run, write_jsonl
from stages.test_judge import LikeVllm, judged, reply_with

from critic import jsonl

COUNT = 6


def answer(body: dict[str, Any]) -> Any:
    """Another distribution for each row; no rating of one of them."""
    number = next(number for number in range(COUNT) if f"on table {number}?" in body["messages"][0]["content"])
    if number == 4:
        return reply_with({"7": 0.9, "x": 0.1}, chosen="x")
    found = reply_with({"7": 0.5 + number / 20, "2": 0.3 - number / 20, "9": 0.2})
    if not body.get("logprobs"):
        del found["choices"][0]["logprobs"]
    return found


@pytest.fixture
def server(scripted: Servers) -> Scripted:
    return scripted(answer)


def judge(server: Scripted, out: Path, kind: str, *words: object, of: Sequence[int] = range(COUNT)) -> Done:
    data = write_jsonl(out.with_name("rows.jsonl"), [human_row(number) for number in of])
    told = ["--out", out, "--base-url", server.url, "--score", kind, "--max-failed", "0.5", *words]
    return run("critic", "judge", data, *told)


def by_id(path: Path) -> dict[str, Any]:
    return {line["sample"]["id"]: line for line in judged(path)}


def test_the_other_score_is_taken_of_what_is_there_and_back(tmp_path: Path, server: Scripted) -> None:
    out, fresh = tmp_path / "out.jsonl", tmp_path / "fresh.jsonl"
    assert judge(server, out, "expected").returncode == judge(server, fresh, "median").returncode == 0
    before, asked = out.read_bytes(), len(server.requests)
    done = judge(server, out, "median")
    assert done.returncode == 0, done.stderr
    assert f"of {COUNT} judgments the median rating is taken, before it was expected" in done.stderr
    assert by_id(out) == by_id(fresh) and len(server.requests) == asked
    assert jsonl.facts(out)["sampling"]["score"] == "median" and jsonl.facts(out)["judged_in_this_run"] == COUNT
    assert [line.get("score") for line in judged(out)].count(None) == 1
    assert "is taken" not in judge(server, out, "median").stderr
    assert judge(server, out, "expected").returncode == 0 and out.read_bytes() == before
    assert len(server.requests) == asked


def test_what_is_left_is_judged_with_it(tmp_path: Path, server: Scripted) -> None:
    out, fresh = tmp_path / "out.jsonl", tmp_path / "fresh.jsonl"
    judge(server, out, "expected", of=[0, 1])
    judge(server, fresh, "median")
    asked = len(server.requests)
    done = judge(server, out, "median", of=[0, 1, 2, 3])
    assert done.returncode == 0 and len(server.requests) == asked + 2, done.stderr
    assert by_id(out).items() <= by_id(fresh).items() and len(by_id(out)) == 4


def of_no_distribution(lines: list[dict[str, Any]]) -> None:
    lines[1]["score"] = 3.25


def without_probabilities(lines: list[dict[str, Any]]) -> None:
    del lines[1]["verdict"]["distribution"]
    lines[1]["score"] = float(lines[1]["verdict"]["rating"])


def in_two_kinds(lines: list[dict[str, Any]]) -> None:
    lines[1]["setup"]["score_kind"] = "argmax"
    lines[1]["score"] = 7.0


def a_panel(lines: list[dict[str, Any]]) -> None:
    lines[1]["members"] = [
        {"sample": {}, "setup": lines[1]["setup"] | {"judge": name}, "score": 7.0, "verdict": {"rating": 7}}
        for name in "ab"
    ]


def by_criteria(lines: list[dict[str, Any]]) -> None:
    lines[1]["verdict"]["criteria"] = {"style": {"rating": 3}}


def too_few(lines: list[dict[str, Any]]) -> None:
    lines[1]["verdict"]["scale"] = [1, 5]


@pytest.mark.parametrize(
    "change", [of_no_distribution, without_probabilities, in_two_kinds, a_panel, by_criteria, too_few]
)
def test_a_file_of_which_it_cannot_be_taken_stays_as_it_is(tmp_path: Path, server: Scripted, change: Any) -> None:
    out = tmp_path / "out.jsonl"
    judge(server, out, "expected", of=[0, 1, 2])
    lines = judged(out)
    change(lines)
    write_jsonl(out, lines)
    before = out.read_bytes()
    assert_one_line_error(judge(server, out, "median"), "out.jsonl:", "made with score_kind", "choose another --out")
    assert out.read_bytes() == before


def test_elsewhere_than_on_vllm_argmax_is_of_the_text_alone(
    tmp_path: Path, server: Scripted, scripted: Servers
) -> None:
    out = tmp_path / "out.jsonl"
    judge(server, out, "expected", of=[0, 1])
    assert_one_line_error(judge(server, out, "argmax", of=[0, 1, 2]), "now 'argmax'")
    like, out = scripted(LikeVllm({"7": 0.6, "3": 0.4}, 0.0), owner="vllm"), tmp_path / "vllm.jsonl"
    assert judge(like, out, "expected", of=[0, 1]).returncode == 0
    assert judge(like, out, "argmax", of=[0, 1, 2]).returncode == 0
    assert [line["score"] for line in judged(out)] == [7.0] * 3


def test_a_score_that_is_not_named_takes_no_other_s_place(tmp_path: Path, server: Scripted) -> None:
    out = tmp_path / "out.jsonl"
    assert judge(server, out, "median").returncode == 0
    before = out.read_bytes()
    words = ["critic", "judge", tmp_path / "rows.jsonl", "--out", out, "--base-url", server.url]
    assert_one_line_error(run(*words), "made with score_kind 'median', now 'expected'")
    assert out.read_bytes() == before


def test_the_time_that_runs_took_outlives_what_they_failed_on(tmp_path: Path, server: Scripted) -> None:
    out = tmp_path / "out.jsonl"
    judge(server, out, "expected")
    jsonl.write_sidecar(out, jsonl.facts(out) | {"seconds_in_all": 1000.0})
    assert judge(server, out, "expected", "--retry-failed").returncode == 0
    facts = json.loads(jsonl.sidecar(out).read_text("utf-8"))
    assert facts["seconds_in_all"] >= 1000.0 and facts["judged_in_this_run"] == 1
    assert judge(server, out, "median").returncode == 0
    assert jsonl.facts(out)["seconds_in_all"] >= 1000.0
