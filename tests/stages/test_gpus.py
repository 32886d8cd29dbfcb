"""One judge on all GPUs of a node, by processes that stand in for engines: the GPUs are those that a program of the
name nvidia-smi lists."""

import json
import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from conftest import ROOT, assert_one_line_error, command, human_row, run, write_jsonl

from critic.backends import vllm
from critic.errors import UsageError

ROWS = 2000


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of replies, on two equal GPUs."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cards(tmp_path, "H100", "H100")
    texts = [{"text": f'{{"Rating": {rating}, "Reason": "fine"}}'} for rating in (3, 5, 7)]
    return write_jsonl(tmp_path / "judge.jsonl", texts)


def cards(folder: Path, *kinds: str) -> None:
    lines = "\n".join(f"GPU {number}: NVIDIA {kind} (UUID: GPU-{number})" for number, kind in enumerate(kinds))
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{lines}'\n")
    program.chmod(0o755)


def words(judge: Path, out: str, *more: str) -> list[str]:
    rows = judge.with_name("rows.jsonl")
    return ["judge", str(rows), "--judge", str(judge), "--score", "argmax", "--out", str(judge.with_name(out)), *more]


def workers(parent: int) -> dict[str, int]:
    """Log -> the process that writes it."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return {Path(f"/proc/{child}/fd/2").readlink().name: int(child) for child in children}


def test_a_worker_that_is_killed_loses_nothing(tmp_path: Path, judge: Path) -> None:
    """The rest is done by the next run, also on another number of GPUs, and the file has each row once."""
    write_jsonl(tmp_path / "rows.jsonl", [human_row(number, group=f"g{number}") for number in range(ROWS)])
    given = words(judge, "out.jsonl", "--gpus", "all", "--concurrency", "1")
    parts = [tmp_path / f"out.jsonl.parts/{number}-of-2.jsonl" for number in (1, 2)]
    with subprocess.Popen(command("critic", *given), cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        while not (parts[1].is_file() and parts[1].stat().st_size):
            assert process.poll() is None
            time.sleep(0.005)
        worker = workers(process.pid)["gpu-1.log"]
        assert os.getpgid(worker) == worker, "or its engine would not end with it"
        os.kill(worker, signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 2 and "error: GPU 1 ended with code -9 (logs in " in errors
    whole, left = (part.read_bytes() for part in parts)
    assert 0 < left.count(b"\n") < whole.count(b"\n") and not (tmp_path / "out.jsonl").exists()
    assert_one_line_error(run("critic", *words(judge, "out.jsonl")), "go on with --gpus")
    cards(tmp_path, "H100")
    done = run("critic", *given)
    assert done.returncode == 0 and "2 shards" in done.stdout and f"{ROWS} rows, 0 failed" in done.stdout, done.stderr
    assert parts[0].read_bytes() == whole and parts[1].read_bytes().startswith(left[: left.rfind(b"\n") + 1])
    lines = (tmp_path / "out.jsonl").read_bytes().splitlines()
    assert Counter(json.loads(line)["sample"]["id"] for line in lines) == {f"row-{n}": 1 for n in range(ROWS)}
    assert run("critic", *words(judge, "alone.jsonl")).returncode == 0
    assert sorted(lines) == sorted((tmp_path / "alone.jsonl").read_bytes().splitlines())
    assert_one_line_error(run("critic", *words(judge, "alone.jsonl", "--gpus", "1")), "made without --gpus")


def test_what_cannot_be_is_refused_before_anything_is_made(judge: Path) -> None:
    before = {*judge.parent.iterdir()}
    for more, says in (
        ("4", "2 GPUs are here"),
        ("0", "all, or how many"),
        ("many", "all, or how many"),
        ("2 --shard 1/2", "cannot be used with --shard"),
        ("2 --judge http://127.0.0.1:9/v1", "servers have GPUs of their own"),
        ("2 --judge none", "folder that is there"),
    ):
        assert_one_line_error(run("critic", *words(judge, "out.jsonl", "--gpus", *more.split())), says)
    assert {*judge.parent.iterdir()} == before


def test_gpus_are_counted_by_engines(judge: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards(judge.parent, *["H100"] * 5, "L4")
    assert vllm.list_devices("5") == ["0", "1", "2", "3", "4"] and vllm.list_devices("4", 2) == ["0,1", "2,3"]
    for wanted, each, says in (("5", 2, "no multiple of the 2"), ("all", 1, "mixed GPUs \\(NVIDIA H100, NVIDIA L4\\)")):
        with pytest.raises(UsageError, match=says):
            vllm.list_devices(wanted, each)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert vllm.list_devices("all") == ["3", "1"] and vllm.list_devices("1") == ["3"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    (judge.parent / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    with pytest.raises(UsageError, match="no GPUs are here"):
        vllm.list_devices("all")
