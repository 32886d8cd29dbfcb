"""critic judge --repeat and the ledger: how often a judge changes its mind, and how often its labels were used."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import Servers, assert_one_line_error, completion, human_row, read_jsonl, run, write_jsonl

from critic.certificate import read
from critic.records import Candidate, JudgeConfig, PromptInputs, Sample


def fickle(body: dict[str, Any], requests: Counter[str], kinds: set[Any]) -> dict[str, Any]:
    """Change the verdict on every fourth row when it is asked for again."""
    text = body["messages"][-1]["content"]
    number = int(re.findall(r"on table (\d+)", text)[-1])
    requests[text] += 1
    kinds.add(body.get("seed"))
    changed = number % 4 == 0 and requests[text] > 1
    if "Verdict" in text:
        return completion(json.dumps({"Verdict": "A", "Reason": "r"}))
    return completion(json.dumps({"Rating": number % 9 + 1 + changed, "Reason": "r"}))


def test_the_share_that_changes_is_in_record_table_certificate_and_gate(tmp_path: Path, scripted: Servers) -> None:
    requests, seeds = Counter[str](), set[Any]()
    server = scripted(lambda body: fickle(body, requests, seeds))
    rows = write_jsonl(tmp_path / "rows.jsonl", [human_row(number, image=None) for number in range(60)])
    words = ("critic", "judge", rows, "--base-url", server.url, "--score", "argmax", "--temperature", "0.5")
    run(*words, "--repeat", 3, "--out", tmp_path / "j.jsonl", code=0)
    assert set(requests.values()) == {3} and len(seeds) > 60
    for line in read_jsonl(tmp_path / "j.jsonl"):
        number = int(line["sample"]["id"].removeprefix("row-"))
        assert line["score"] == number % 9 + 1 and line["prompt_tokens"] == 33
        assert [each["score"] for each in line["repeats"]] == [line["score"] + (number % 4 == 0)] * 2
    audit = ("critic", "audit", tmp_path / "j.jsonl", "--certificate", tmp_path / "c.json")
    done = run(*audit, "--out", tmp_path / "out", "--gate", "changed<=0.2", code=1)
    assert "changed" in done.stdout.splitlines()[1] and done.stdout.splitlines()[2].endswith("25.0 %")
    assert "Asked 3 times, the judge changes 25.0 % of its verdicts" in done.stdout
    assert "changed<=0.2 NOT kept: 0.250 [" in done.stderr
    assert read(tmp_path / "c.json").agreement["changed"].value == 0.25
    # It is the same judge if it is asked once, and another run of judging if it is asked more often.
    held = run(*words, "--out", tmp_path / "once.jsonl", "--certificate", tmp_path / "c.json", code=0)
    assert "changed 0.25 [" in held.stdout and "taken as fixed" not in held.stdout
    assert_one_line_error(run(*words, "--repeat", 2, "--out", tmp_path / "j.jsonl"), "repeat 3, now 2")
    assert_one_line_error(run(*words, "--repeat", 2, "--cache", tmp_path / "c", "--out", tmp_path / "n"), "--cache")
    once = run("critic", "audit", tmp_path / "once.jsonl", "--out", tmp_path / "o", "--gate", "changed<=0.2", code=1)
    assert "asked once; critic judge --repeat 2" in once.stderr
    assert "Intervals take the judge as fixed" in (tmp_path / "o/report.html").read_text()


def test_pairs_are_asked_in_the_other_order_and_panels_as_a_whole(tmp_path: Path, scripted: Servers) -> None:
    server = scripted(lambda body: fickle(body, Counter(), set()))
    rows = [human_row(n // 2, id=f"row-{n}", system="ab"[n % 2], response=f"{n}", image=None) for n in range(60)]
    words = ("critic", "judge", write_jsonl(tmp_path / "rows.jsonl", rows), "--repeat", 2)
    run(*words, "--base-url", server.url, "--prompt", "pairwise", "--out", tmp_path / "p.jsonl", code=0)
    for line in read_jsonl(tmp_path / "p.jsonl"):
        assert line["verdict"]["value"] == line["repeats"][0]["verdict"]["value"] == "tie"
    both = ("--judge", server.url, "--judge", f"{server.url}#tiny", "--score", "argmax")
    run(*words, *both, "--out", tmp_path / "panel.jsonl", code=0)
    for line in read_jsonl(tmp_path / "panel.jsonl"):
        assert line["repeats"][0]["score"] == line["score"] and len(line["members"]) == 2


def test_a_drawn_order_is_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    from judgments import ResponseJudge

    from critic.backends.scripted import ScriptedBackend
    from critic.judging.forms import PlannedVerdict

    judge = ResponseJudge(ScriptedBackend(lambda _: pytest.fail("asked")), "j", "pairwise", "argmax", 99)
    judge.setup = JudgeConfig(judge="j", score_kind="argmax", order="random")
    planned = PlannedVerdict(sample=Sample(id="1"), form="pairwise", material=PromptInputs(sides=[Candidate()] * 2))
    orders = [[request.first for request in judge._build_requests(planned, again)] for again in range(3)]
    assert orders[0] == orders[2] != orders[1]


def test_audits_of_the_same_labels_are_counted(tmp_path: Path) -> None:
    """Whoever judged, whatever else stands in the file, in whatever order; other labels are counted apart."""
    people = [f"{n},{n * 7 % 10 + 1},{n * 3 % 10 + 1}" for n in range(60)]
    changed = [f"{n},{n * 3 % 10 + 1},1" for n in range(60)]
    files = {"a": people, "b": people[::-1], "c": changed, "d": people[:55]}
    lines = []
    for name, rows in files.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,score,j", *rows]))
        words = ("--human", tmp_path / f"{name}.csv", "--judge", f"j={tmp_path / name}.csv:j")
        lines.append(run("critic", "audit", *words, "--out", tmp_path / "runs" / name).stdout)
    told = [re.findall("This is the (.*) audit", line) for line in lines]
    assert told == [[], ["second"], [], ["third"]]
    assert len(read_jsonl(tmp_path / "runs/audits.jsonl")) == 4
