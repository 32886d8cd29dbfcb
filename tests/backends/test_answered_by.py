"""Names in replies: the model and fingerprint are kept, and a second one is reported or stops the run."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backends.test_endpoints import CONVERSATIONS, RATED, judge
from conftest import Servers, assert_one_line_error, completion, human_rows, read_jsonl, run

from critic import jsonl


def change_model(change_at: int, names: tuple[str, str] = ("m-2025", "m-2026"), **more: str) -> Callable[..., Any]:
    """Return a script that answers as another model after `change_at` requests."""
    requests = itertools.count(1)
    return lambda body: {**completion(RATED), "model": names[next(requests) > change_at], **more}


def test_another_model_behind_the_same_name_is_recorded_and_said_once(tmp_path: Path, scripted: Servers) -> None:
    out = tmp_path / "out.jsonl"
    done = judge(scripted(change_model(2, system_fingerprint="fp_a")), out, count=5)
    assert done.returncode == 0 and done.stderr.count("answered as m-2025 (fp_a) before, now as m-2026 (fp_a)") == 1
    names = [line["answered_by"] for line in read_jsonl(out)]
    assert names == [["m-2025 (fp_a)"]] * 2 + [["m-2026 (fp_a)"]] * 3
    assert jsonl.facts(out)["answered_by"] == ["m-2025 (fp_a)", "m-2026 (fp_a)"]
    resumed = judge(scripted(change_model(9, system_fingerprint="fp_b")), out, count=6)
    assert resumed.returncode == 0 and "now as m-2025 (fp_b)" in resumed.stderr
    assert len(jsonl.facts(out)["answered_by"]) == 3
    same = judge(scripted(change_model(9)), again := tmp_path / "again.jsonl", count=5)
    assert same.returncode == 0 and "answered as" not in same.stderr
    since = run("critic", "audit", again, "--since", out, "--out", tmp_path / "since")
    assert "answered as m-2025 (fp_a), m-2026 (fp_a), m-2025 (fp_b) then, as m-2025 now" in since.stdout, since.stderr


def test_a_cache_keeps_who_answered(tmp_path: Path, scripted: Servers) -> None:
    cache = ("--cache", tmp_path / "cache.db")
    assert judge(scripted(change_model(9)), tmp_path / "a.jsonl", *cache, count=2).returncode == 0
    done = judge(scripted(change_model(0)), tmp_path / "b.jsonl", *cache, count=3)
    assert done.stderr.count("answered as m-2025 before, now as m-2026") == 1


def test_under_a_certificate_another_model_stops_the_run(tmp_path: Path, scripted: Servers) -> None:
    judged, certificate = tmp_path / "judged.jsonl", tmp_path / "c.json"
    assert judge(scripted(change_model(99)), judged, count=12).returncode == 0
    run("critic", "audit", judged, "--certificate", certificate, "--out", tmp_path / "audit", code=0)
    assert json.loads(certificate.read_text("utf-8"))["how"]["answered_by"] == ["m-2025"]
    for number, change_at in enumerate((0, 2)):
        out = tmp_path / f"{number}.jsonl"
        stopped = judge(scripted(change_model(change_at)), out, "--certificate", certificate, count=12)
        assert_one_line_error(stopped, "answered as m-2025 before, now as m-2026", "audit again")
        assert len(read_jsonl(out) if out.is_file() else []) == change_at, "what the other model said is not kept"
    held = judge(scripted(change_model(99)), tmp_path / "held.jsonl", "--certificate", certificate, count=12)
    assert held.returncode == 0 and "answered as" not in held.stderr, held.stderr


def test_other_weights_than_the_list_names_are_noticed_at_the_first_reply(tmp_path: Path, scripted: Servers) -> None:
    server = scripted(change_model(9, ("judge@bbbbbbbb", "")))
    server.told = {"id": "judge@aaaaaaaa"}
    done = judge(server, tmp_path / "out.jsonl", count=2)
    assert done.stderr.count("answered as judge@aaaaaaaa before, now as judge@bbbbbbbb") == 1


def test_a_panel_and_shards_keep_who_answered(tmp_path: Path, scripted: Servers) -> None:
    servers = [scripted(change_model(9, (name, ""))) for name in ("m-1", "m-2")]
    out, urls = tmp_path / "panel.jsonl", [word for server in servers for word in ("--judge", server.url)]
    done = run("critic", "judge", human_rows(tmp_path, 2), "--out", out, "--score", "argmax", *urls)
    assert done.returncode == 0 and jsonl.facts(out)["answered_by"] == ["m-1", "m-2"], done.stderr
    (line, _) = read_jsonl(out)
    assert [member["answered_by"] for member in line["members"]] == [["m-1"], ["m-2"]] and "answered_by" not in line
    parts = [tmp_path / f"part.{number}.jsonl" for number in (1, 2)]
    for number, (part, server) in enumerate(zip(parts, servers, strict=True), 1):
        judge(server, part, "--shard", f"{number}/2", count=6)
    merged = run("critic", "merge", *parts, "--out", tmp_path / "whole.jsonl")
    assert merged.returncode == 0 and "answered by m-1, m-2" in merged.stdout, merged.stderr
    assert jsonl.facts(tmp_path / "whole.jsonl")["answered_by"] == ["m-1", "m-2"]


def test_infer_keeps_who_answered(tmp_path: Path, scripted: Servers) -> None:
    out = tmp_path / "replies.jsonl"
    words = ["--benchmark", "convbench", "--condition", "no_image", "--limit", 1, "--concurrency", 1, "--base-url"]
    done = run("critic", "infer", CONVERSATIONS, "--out", out, *words, scripted(change_model(2)).url)
    assert done.stderr.count("answered as m-2025 before, now as m-2026") == 1, done.stderr
    assert {line["answered_by"][0] for line in read_jsonl(out)} == {"m-2025", "m-2026"}
