"""What stages took: tokens and their price, seconds, memory, and the table of them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Servers, assert_one_line_error, completion, human_row, run, write_jsonl

from critic import jsonl
from critic.stages import cost

SHEET = ROOT / "data" / "samples" / "convbench" / "ConvBench.csv"
PRICES = (
    '[list]\ninput = 1000000\ncached_input = 0\noutput = 2000000\n[other]\ncurrency = "EUR"\ninput = 0\noutput = 1e6\n'
)


def answer(body: dict[str, Any]) -> dict[str, Any]:
    """Eleven tokens in, seven out; what comes of a pair is A."""
    keys = json.dumps(body.get("response_format", ""))
    verdict = {"Rating": 7} if "Rating" in keys else {"Verdict": "A"}
    return completion(json.dumps({"Reason": "so", **verdict}) if keys != '""' else "a reply")


def test_judging_has_a_price_as_replies_have(tmp_path: Path, scripted: Servers) -> None:
    """Of conversations, what several verdicts share is paid once; a second run counts it from the file."""
    server, prices = scripted(answer), tmp_path / "prices.toml"
    prices.write_text(PRICES)
    replies, judged = tmp_path / "replies.jsonl", tmp_path / "judged.jsonl"
    words = ["--benchmark", "convbench", "--base-url", server.url]
    done = run("critic", "infer", SHEET, *words, "--out", replies, "--name", "m", "--prices", prices)
    assert done.returncode == 0, done.stderr
    turns = len(server.requests)
    assert f"at the prices of list: {turns * (11 + 14):.4f} USD" in done.stdout
    words += ["--out", judged, "--protocol", "direct", "--prices", prices]
    done = run("critic", "judge", replies, *words)
    assert done.returncode == 0, done.stderr
    calls = len(server.requests) - turns
    assert calls > 20 and f"tokens: {11 * calls} in, {7 * calls} out, 0 cached" in done.stdout
    assert f"at the prices of list: {calls * (11 + 14):.4f} USD" in done.stdout
    assert f"at the prices of other: {calls * 7:.4f} EUR" in done.stdout
    facts = jsonl.facts(judged)
    assert facts["costs"] == {"list": calls * 25, "other": calls * 7} and facts["tokens"]["completion"] == 7 * calls
    assert facts["seconds_in_all"] >= 0 and facts["peak_memory_mib"] > 20
    again = run("critic", "judge", replies, *words)
    assert f"{calls * 25:.4f} USD" in again.stdout and len(server.requests) == turns + calls
    scored = run("critic", "score", judged, "--benchmark", "convbench", "--out", tmp_path / "out")
    assert scored.returncode == 0, scored.stderr
    printed = {line.partition("  ")[0]: line.split() for line in scored.stdout.splitlines()}
    for stage, count in (("m, infer", turns), ("m, judge", calls)):
        assert str(11 * count) in printed[stage] and str(7 * count) in printed[stage], printed[stage]
        assert f"{count * 25:.4f}" in printed[stage]
    assert "What it took" in (tmp_path / "out" / "report.html").read_text("utf-8")


def test_single_answers_and_panels_have_a_price(tmp_path: Path, scripted: Servers) -> None:
    rows, prices = write_jsonl(tmp_path / "rows.jsonl", [human_row(n) for n in range(4)]), tmp_path / "prices.toml"
    prices.write_text(PRICES)
    urls = [scripted(answer).url, scripted(answer).url]
    words = [word for url in urls for word in ("--judge", f"{url}#tiny")]
    done = run("critic", "judge", rows, *words, "--score", "argmax", "--out", tmp_path / "p.jsonl", "--prices", prices)
    assert done.returncode == 0, done.stderr
    assert jsonl.facts(tmp_path / "p.1.jsonl")["costs"]["list"] == 4 * 25
    assert jsonl.facts(tmp_path / "p.jsonl")["costs"]["list"] == 8 * 25
    assert f"at the prices of list: {8 * 25:.4f} USD" in done.stdout
    prices.write_text("[list]\ninput = 1\n")
    wrong = run("critic", "judge", rows, *words, "--out", tmp_path / "q.jsonl", "--prices", prices)
    assert_one_line_error(wrong, "prices.toml", "output")
    assert not (tmp_path / "q.jsonl").exists()


def test_calls_without_token_counts_are_said(tmp_path: Path) -> None:
    """A file of scripted replies counts no tokens: the price is not one of nothing, in silence."""
    rows, prices = write_jsonl(tmp_path / "rows.jsonl", [human_row(n) for n in range(3)]), tmp_path / "prices.toml"
    prices.write_text(PRICES)
    replies = write_jsonl(tmp_path / "replies.jsonl", [{"text": '{"Rating": 7, "Reason": "so"}'}])
    done = run(
        "critic",
        "judge",
        rows,
        "--judge",
        replies,
        "--score",
        "argmax",
        "--out",
        tmp_path / "j.jsonl",
        "--prices",
        prices,
    )
    assert done.returncode == 0, done.stderr
    assert "3 calls without token counts" in done.stdout


def test_the_peak_of_memory_is_that_of_all_processes_and_of_each_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that holds 200 MiB is seen; of two GPUs the one that was used, by what came on top."""
    count, tool = tmp_path / "count", tmp_path / "nvidia-smi"
    tool.write_text(
        f"#!{sys.executable}\nfrom pathlib import Path\npath = Path({str(count)!r})\n"
        "n = len(path.read_text()) if path.exists() else 0\npath.write_text('x' * (n + 1))\n"
        "print(f'NVIDIA H100 80GB HBM3, {[500, 16390, 900][min(n, 2)]}\\nNVIDIA H100 80GB HBM3, 10')\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(cost, "EVERY", 0.05)
    with cost.PeakMemory() as alone:
        pass
    count.unlink()
    hold = "held = bytearray(200 * 2**20); print('held', flush=True); input()"
    with cost.PeakMemory() as seen:
        child = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None and child.stdout.readline() == "held\n"
        seen._look()
        child.communicate("\n")
    facts = seen.facts()
    assert facts["peak_memory_mib"] >= alone.facts()["peak_memory_mib"] + 150
    assert facts["gpus"] == [{"name": "NVIDIA H100 80GB HBM3", "mib": 15890}]
    tool.write_text("#!/bin/sh\nexit 9\n")
    with cost.PeakMemory() as broken:
        pass
    assert "gpus" not in broken.facts()
