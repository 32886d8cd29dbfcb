"""make bench-demo: from images to the reports of all four benchmarks, on real parts."""

import json
from pathlib import Path

import pytest
from conftest import run_apart

pytestmark = pytest.mark.e2e


def test_all_four_benchmarks_from_images_to_reports(tmp_path: Path) -> None:
    for module in ("PIL", "torch", "deepspeed", "vllm"):
        pytest.importorskip(module, reason="needs the train and serve extras")
    done = run_apart("data/bench_demo.py", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for benchmark in ("alignmmbench", "convbench", "multiverse", "visitbench"):
        replies = [
            json.loads(line) for line in (tmp_path / benchmark / "replies.jsonl").read_text("utf-8").splitlines()
        ]
        assert len({line["condition"] for line in replies}) == 2
        assert any(message.get("images") for line in replies for message in line["seen"])
        summary = json.loads((tmp_path / benchmark / "summary.json").read_text("utf-8"))
        (facts,) = summary["files"].values()
        assert facts["verdicts"] > 0 and sum(facts["failed"].values()) <= 0.1 * facts["verdicts"], facts["failed"]
        assert "tiny-vlm" in (tmp_path / benchmark / "report.html").read_text("utf-8")
