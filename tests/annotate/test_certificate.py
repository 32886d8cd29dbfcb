"""A judge's certificate: what it is made of, and what no longer holds is refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from annotating import by_rater, exported, planned, replies, row
from clients.inner import Ask, Inner
from conftest import assert_one_line_error, completion, free_port, run, write_jsonl

from critic.certificate import Certificate, read

pytest_plugins = ["clients.asking"]


def script(path: Path, *texts: str) -> Path:
    return write_jsonl(path, [{"text": text} for text in texts])


RATING = [f'{{"Rating":{n},"Reason":"r"}}' for n in range(1, 11)]


def scored(folder: Path, count: int = 60) -> Path:
    labels = {"human_score": 5, "scale_min": 1, "scale_max": 10, "annotators": {"a": 4, "b": 6}, "reason": None}
    return write_jsonl(folder / "rows.jsonl", [row(n, **labels) for n in range(count)])


def certified(folder: Path, *words: object) -> Certificate:
    run("critic", "audit", *words, "--certificate", folder / "c.json", "--out", folder / "audit", code=0)
    return read(folder / "c.json")


def test_it_holds_for_the_same_judge_and_no_other(tmp_path: Path) -> None:
    rows, judge, file = scored(tmp_path), script(tmp_path / "judge@1.jsonl", *RATING), tmp_path / "c.json"
    words: tuple[object, ...] = ("critic", "judge", rows, "--judge", judge, "--score", "argmax")
    assert run(*words, "--out", tmp_path / "judged.jsonl").returncode == 0
    certificate = certified(tmp_path, f"ours={tmp_path / 'judged.jsonl'}", "--gate", "mae<=9")
    assert certificate.how.judge == "judge@1" and list(certificate.how.prompts.values()) == ["pointwise"]
    assert certificate.kept and certificate.labels.rows == 60 and certificate.labels.raters == 2
    again = run(*words, "--out", tmp_path / "again.jsonl", "--certificate", file)
    assert again.returncode == 0 and "judge@1, prompt pointwise@" in again.stdout and "mae<=9 kept" in again.stdout
    since = ("critic", "audit", tmp_path / "again.jsonl", "--since", file, "--out", tmp_path / "since")
    assert "no change that counts is shown" in run(*since, code=0).stdout
    lower = tmp_path / "again.jsonl"
    lower.write_text(re.sub(r'"score":(\d+)', lambda score: f'"score":{max(1, int(score[1]) - 1)}', lower.read_text()))
    assert run(*since).returncode == 1
    for change in (lambda judged: judged.write_bytes(judged.read_bytes() + b"\n"), Path.unlink):
        change(tmp_path / "judged.jsonl")
        assert_one_line_error(run(*since), "judged.jsonl, by which it was made, is ")
    other = script(tmp_path / "judge@2.jsonl", *RATING)
    for changed, part in (
        (("--prompt", "scale_5"), "made with prompt"),
        (("--score", "expected"), "made with score_kind"),
        (("--no-reason",), "made with decoding"),
        (("--judge", other, "--name", "panel"), "judge"),
    ):
        refused = run(*words, *changed, "--out", tmp_path / "no", "--certificate", file)
        assert_one_line_error(refused, part, "audit again")
    renamed = run(*words[:4], other, *words[5:], "--out", tmp_path / "no", "--certificate", file)
    assert_one_line_error(renamed, "judge@1", "judge@2")
    assert_one_line_error(run(*words, "--out", tmp_path / "no", "--certificate", rows), "no certificate")
    Path(certificate.labels.file).write_text("changed")
    assert "has changed since" in run(*words, "--out", tmp_path / "w.jsonl", "--certificate", file, code=0).stderr
    table = write_jsonl(tmp_path / "t.jsonl", [{"id": str(n), "score": 5 + n % 3} for n in range(30)])
    words_of_table = ("--human", table, "--judge", f"j={table}", "--certificate", file, "--out", tmp_path / "b")
    assert_one_line_error(run("critic", "audit", *words_of_table), "--certificate", "not a table")


def test_a_servers_processor_is_held(tmp_path: Path, scripted: Any) -> None:
    """A server of serve/judge.py says beside the name what makes text and images ready; another one says nothing."""
    server = scripted(lambda body: completion(RATING[len(str(body)) % 10]))
    server.told = {"processor": "p" * 64}
    words = ("critic", "judge", scored(tmp_path), "--base-url", server.url, "--score", "argmax")
    assert run(*words, "--out", tmp_path / "judged.jsonl").returncode == 0
    assert certified(tmp_path, tmp_path / "judged.jsonl").how.processors == {"tiny": "p" * 64}
    file = ("--certificate", tmp_path / "c.json")
    assert "processor" not in run(*words, "--out", tmp_path / "again.jsonl", *file, code=0).stderr
    server.told = {"processor": "q" * 64}
    assert_one_line_error(run(*words, "--out", tmp_path / "n.jsonl", *file), "processor of tiny", "audit again")
    server.told = {}
    unknown = run(*words, "--out", tmp_path / "u.jsonl", *file, code=0)
    assert "the processor of tiny is unknown" in unknown.stderr


def test_a_panel_is_certified_with_its_members(tmp_path: Path) -> None:
    rows, members = scored(tmp_path), [script(tmp_path / f"j{n}.jsonl", *RATING[n:]) for n in range(3)]
    judges = [("--judge", path) for path in members]
    words = ("critic", "judge", rows, "--score", "argmax", *judges[0], *judges[1])
    assert run(*words, "--out", tmp_path / "judged.jsonl").returncode == 0
    certificate = certified(tmp_path, tmp_path / "judged.jsonl")
    assert certificate.how.judge == "mean(j0, j1)" and certificate.how.members == ["j0", "j1"]
    held = run(*words, "--out", tmp_path / "again.jsonl", "--certificate", tmp_path / "c.json")
    assert held.returncode == 0 and "mean(j0, j1), prompt" in held.stdout, held.stderr
    for other in (judges[0], (*judges[0], *judges[2], "--name", "mean(j0, j1)")):
        refused = run(*words[:5], *other, "--out", tmp_path / "n", "--certificate", tmp_path / "c.json")
        assert_one_line_error(refused, "audit again")


@pytest.mark.parametrize(("scheme", "protocol"), [("direct", "direct"), ("pairwise_conversation", "pairwise")])
def test_judged_conversations_are_certified(tmp_path: Path, scheme: str, protocol: str) -> None:
    talks = replies(tmp_path / "talks.jsonl", "ours", 12)
    chosen = '"Rating":7' if scheme == "direct" else '"Verdict":"A"'
    store = planned(tmp_path, "--scheme", scheme, rows=talks)
    by_rater(store, lambda rater, name, values: values[len(name) % 2])
    labels, judge = exported(store), script(tmp_path / "judge@1.jsonl", f'{{"Reason":"r",{chosen}}}')
    words = ("critic", "judge", talks, "--benchmark", "convbench", "--judge", judge, "--max-failed", 1)
    run(*words, "--protocol", protocol, "--out", tmp_path / "judged.jsonl", code=0)
    certificate = certified(tmp_path, "--human", labels, "--judge", f"ours={tmp_path / 'judged.jsonl'}:{protocol}")
    assert certificate.how.judge == "judge@1" and certificate.labels.rows == 48
    assert set(certificate.how.prompts.values()) == {f"{protocol}_turn", f"{protocol}_whole"}
    assert ("mae" if scheme == "direct" else "accuracy") in certificate.agreement
    file = ("--certificate", tmp_path / "c.json")
    held = run(*words, "--protocol", protocol, "--out", tmp_path / "again.jsonl", *file)
    assert held.returncode == 0 and f"judge@1, prompt {protocol}_turn@" in held.stdout, held.stderr
    other = {"direct": "pairwise", "pairwise": "direct"}[protocol]
    for changed, part in ((("--protocol", other), "made with prompt"), (("--no-reason",), "made with decoding")):
        refused = run(*words, "--protocol", protocol, *changed, "--out", tmp_path / "n.jsonl", *file)
        assert_one_line_error(refused, part, "audit again")


def test_the_server_shows_the_certificate(ask: Ask) -> None:
    about = {"certificate": {"how": {"judge": "judge@1"}}, "certificate_sha256": "0123456789abcdef9", "processor": "p"}
    models = ask(Inner(), path="/v1/models", method="GET", about=about)
    (listed,) = models.json()["data"]
    assert {key: listed[key] for key in about} == about
    chat = ask(Inner(), {"messages": [{"role": "user", "content": "hello"}]}, about=about)
    assert chat.headers["x-critic-certificate"] == models.headers["x-critic-certificate"] == "0123456789abcdef"
    plain = ask(Inner(), path="/v1/models", method="GET")
    assert "certificate" not in plain.json()["data"][0] and "x-critic-certificate" not in plain.headers


def test_a_server_of_another_judge_does_not_start_under_it(tmp_path: Path) -> None:
    content: dict[str, Any] = {"agreement": {}, "gate": [], "kept": True, "date": "2026-11-22"}
    content["how"] = {"judge": "judge@1", "prompts": {"h": "pointwise"}, "setup": {}}
    content["labels"] = {"file": "l", "sha256": "s", "rows": 1, "raters": 1}
    content["judged"] = {"file": "j", "sha256": "s"}
    (tmp_path / "c.json").write_text(json.dumps(content))
    done = run("serve/judge.py", "owner/other", "--certificate", tmp_path / "c.json", "--port", free_port())
    assert_one_line_error(done, "owner/other", "audit again")
