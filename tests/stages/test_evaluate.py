"""critic run: infer, judge and score in one command, killed and run again; files as published; a newcomer."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, assert_one_line_error, completion, run
from scoring import ASKED, CONV, grades, judged, sample, scored
from stages.test_judge_conversations import answer_all, judge, replies

from critic import benchmarks, jsonl
from critic.records import Judgment, ModelTurn


def answer(body: dict[str, Any]) -> Any:
    """A model under test without a schema, a judge with one."""
    time.sleep(0.01)
    return answer_all(body) if "response_format" in body else completion("A kite.")


@pytest.mark.e2e
@pytest.mark.parametrize("benchmark", ["convbench", "multiverse"])
def test_a_run_that_was_killed_goes_on_to_the_scores(tmp_path: Path, scripted: Any, benchmark: str) -> None:
    server = scripted(answer)
    words = ["run", benchmark, sample(benchmark), "--model", server.url, "--name", "m", "--judge", server.url]
    words += ["--as", "published", "--out", tmp_path / "out", "--concurrency", "2"]
    command = [sys.executable, "-c", "from critic.cli import main; main()", *map(str, words)]
    judged_file, replies_file = tmp_path / "out/judged.jsonl", tmp_path / "out/replies.jsonl"
    for growing in (replies_file, judged_file):
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not (growing.is_file() and growing.stat().st_size):
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not (tmp_path / "out/score").exists(), "the kill came too late to prove anything"
    done = run("critic", *words)
    assert done.returncode == 0, done.stderr
    asked = benchmarks.load(benchmark)
    turns = Counter(
        (line.condition, line.conversation.id, line.turn) for _, line in jsonl.read(replies_file, ModelTurn)
    )
    assert {condition for condition, _, _ in turns} == {*asked.conditions} and {*turns.values()} == {1}
    verdicts = [line for _, line in jsonl.read(judged_file, Judgment)]
    assert {line.protocol for line in verdicts} == {*asked.protocols}
    page = (tmp_path / "out/score/report.html").read_text("utf-8")
    assert "m: as published." in page and "not as published" not in page
    again = run("critic", *words)
    assert again.returncode == 0 and f"{len(verdicts)} judged before, 0 to go" in again.stderr


def test_what_a_run_cannot_do_is_said_in_one_line(tmp_path: Path, scripted: Any) -> None:
    server = scripted(answer)
    words = ["--model", server.url, "--judge", server.url, "--out", tmp_path / "out"]
    assert_one_line_error(run("critic", "run", "convbnch", sample("convbench"), *words), "did you mean convbench")
    mixed = ["--as", "published", "--condition", "own"]
    refused = run("critic", "run", "convbench", sample("convbench"), *words, *mixed)
    assert_one_line_error(refused, "--as published", "leave --condition out")
    assert not server.requests


def test_infer_begins_with_the_papers_own_condition(tmp_path: Path, scripted: Any) -> None:
    server = scripted(answer)
    for benchmark, words, expected in (
        ("multiverse", [], {"oracle"}),
        ("convbench", [], {"own"}),
        ("convbench", ["--as", "published"], {"own", "perfect_perception", "perfect_perception_reasoning"}),
    ):
        out = tmp_path / f"{benchmark}{len(words)}.jsonl"
        asked = ["--benchmark", benchmark, "--base-url", server.url, "--out", out, "--limit", "1"]
        assert run("critic", "infer", sample(benchmark), *asked, *words).returncode == 0
        assert {line.condition for _, line in jsonl.read(out, ModelTurn)} == expected


def test_calls_are_counted_before_the_first(tmp_path: Path, scripted: Any) -> None:
    """Six conversations: three turns and the whole, graded once, compared in both orders or, as published, in one."""
    server, file = scripted(answer), replies(tmp_path / "r.jsonl", "convbench")
    usual = judge(file, tmp_path / "a.jsonl", "convbench", server.url)
    assert "48 verdicts by at most 72 calls (--as published: 48)\n" in usual.stderr and len(server.requests) == 72
    paper = judge(file, tmp_path / "b.jsonl", "convbench", server.url, "--as", "published")
    assert "48 verdicts by at most 48 calls\n" in paper.stderr and len(server.requests) == 72 + 48


def test_a_page_says_what_is_not_as_published(tmp_path: Path, scripted: Any) -> None:
    server = scripted(answer)
    file = replies(tmp_path / "r.jsonl", "convbench")
    assert judge(file, tmp_path / "j.jsonl", "convbench", server.url, "--protocol", "pairwise").returncode == 0
    _, page, _ = scored(tmp_path / "out", "convbench", tmp_path / "j.jsonl")
    assert "m: not as published: order both (paper: forced); reason first False (paper: True)" in page
    assert "no verdicts by direct; no condition perfect_perception;" in page
    refused = run("critic", "score", tmp_path / "j.jsonl", "--as", "published", "--out", tmp_path / "k")
    assert_one_line_error(refused, "--as published", "j.jsonl", "order both (paper: forced)")
    multi = judged(tmp_path / "m.jsonl", "multiverse", ASKED["multiverse"], grades_or_shares)
    assert run("critic", "score", multi, "--as", "published").returncode == 0


def grades_or_shares(verdict: Judgment) -> float:
    return 0.5 if verdict.protocol == "checklist" else grades(verdict)


def test_a_model_judged_in_two_files_is_one_row(tmp_path: Path) -> None:
    """Each condition in a file of its own: table 8 has all cells, as of one file. What both files judge is two runs."""
    conditions = {condition for _, condition, _ in CONV}
    files = [
        judged(tmp_path / f"{condition}.jsonl", "convbench", [cell for cell in CONV if cell[1] == condition], grades)
        for condition in sorted(conditions)
    ]
    whole = judged(tmp_path / "whole.jsonl", "convbench", CONV, grades)
    apart, _, _ = scored(tmp_path / "apart", "convbench", *files)
    together, _, _ = scored(tmp_path / "together", "convbench", whole)
    assert apart["leaderboards"] == together["leaderboards"] and len(apart["files"]) == 3
    assert {*apart["leaderboards"]["direct"]} == {"m"}
    twice, _, _ = scored(tmp_path / "twice", "convbench", files[0], whole)
    assert len({*twice["leaderboards"]["direct"]} - {"mean"}) == 2


def test_a_newcomer_plays_only_its_own_battles(tmp_path: Path, scripted: Any) -> None:
    """Of a finished tournament of three, its battles and the newcomer's are rated together; the files stay as they
    are."""
    server = scripted(answer)
    files = [replies(tmp_path / f"{name}.jsonl", "visitbench", system=name) for name in "abcd"]
    others = [word for file in files[1:3] for word in ("--against", file)]
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    battles = ["--battles", "all", "--order", "random"]
    assert judge(files[0], old, "visitbench", server.url, *others, *battles).returncode == 0
    before = old.read_bytes()
    against = [word for file in files[:3] for word in ("--against", file)]
    newcomer = ["--battles", "newcomer", "--order", "random", "--seed", "1"]
    done = judge(files[3], new, "visitbench", server.url, *against, *newcomer)
    assert done.returncode == 0, done.stderr
    fought = [line for _, line in jsonl.read(new, Judgment)]
    backed = [one for one in benchmarks.read("visitbench", sample("visitbench")) if one.turns[0].reference]
    assert len(fought) == len(backed), "one opponent is drawn for each instruction"
    assert all("d" in (line.system, line.opponent) for line in fought)
    assert len({line.opponent if line.system == "d" else line.system for line in fought}) > 1
    summary, page, _ = scored(tmp_path / "out", "visitbench", old, new)
    rated = summary["leaderboards"]["tournament"]
    assert {*rated} == {*"abcd"} and rated["d"]["win rate, %"]["n"] == len(backed) and old.read_bytes() == before
    assert "which the ratings mix" not in page


def test_agreement_is_pooled_over_models(tmp_path: Path) -> None:
    """Judges agree on all six conversations of m, on the first two of n: on 8 of 12, one image's answers together."""
    asked = [("direct", "own", 1)]

    def other(verdict: Judgment) -> float:
        return 5.0 if verdict.system == "m" or int(verdict.sample.id) <= 2 else 4.0

    files = []
    for system in ("m", "n"):
        files.append(judged(tmp_path / f"{system}-j.jsonl", "convbench", asked, lambda _: 5.0, system, answer="x"))
        second = judged(tmp_path / f"{system}-k.jsonl", "convbench", asked, other, system, judge="k", answer="x")
        files.insert(0 if system == "n" else len(files), second)  # the judges' order in the call says nothing
    summary, _, _ = scored(tmp_path / "out", "convbench", *files)
    rows = summary["leaderboards"]["agreement-direct"]
    found = {name.split(":")[0]: (cells["S1"]["value"], cells["S1"]["n"]) for name, cells in rows.items()}
    assert found == {"all 2 models": (pytest.approx(100 * 8 / 12), 12), "m": (100, 6), "n": (pytest.approx(100 / 3), 6)}
    low, high = next(cells for name, cells in rows.items() if name.startswith("all"))["S1"]["interval"]
    assert high - low > 40, "six groups, not twelve"
