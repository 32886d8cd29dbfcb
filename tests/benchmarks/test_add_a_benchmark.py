"""Adding a benchmark is one new file: the README's own example, put beside the others in a copy of the package."""

import json
from pathlib import Path

import pytest
from conftest import Copied, assert_one_line_error, blocks, read_jsonl, write_jsonl

ROWS = [
    {"id": "1", "topic": "sums", "question": "1 + 1?", "answer": "2"},
    {"id": "2", "topic": "sums", "question": "2 + 2?", "answer": "4"},
    {"id": "3", "topic": "names", "question": "Who?", "answer": "Ada"},
]


def test_a_file_more_is_a_benchmark_more(tmp_path: Path, package: Path, critic: Copied) -> None:
    """Listed, run, judged, scored and reported; each reply is judged a 7, but for one that cannot be read."""
    (example,) = blocks("critic/benchmarks/README.md", "Add a benchmark", "python")
    (package / "critic/benchmarks/toy.py").write_text(example, "utf-8")
    for stage in ("infer", "judge", "score"):
        helped = critic(stage, "--help").stdout
        assert "toy" in helped and "visitbench" in helped, stage
    rows = write_jsonl(tmp_path / "toy.jsonl", ROWS)
    replies = write_jsonl(tmp_path / "model.jsonl", [{"text": "two"}])
    critic("infer", rows, "--benchmark", "toy", "--model", replies, "--out", tmp_path / "replies.jsonl")
    verdicts = write_jsonl(tmp_path / "judge.jsonl", [{"text": json.dumps({"Rating": 7, "Reason": "so"})}])
    words = ["--benchmark", "toy", "--judge", verdicts, "--questions", rows]
    critic("judge", tmp_path / "replies.jsonl", *words, "--out", tmp_path / "judged.jsonl")
    lines = read_jsonl(tmp_path / "judged.jsonl")
    assert [line["protocol"] for line in lines] == ["direct"] * 3
    verdict = next(line for line in lines if line["sample"]["id"] == "3")
    del verdict["score"]
    verdict["verdict"]["failure"] = "no_rating"
    judged = write_jsonl(tmp_path / "judged.jsonl", lines)
    words = ["--benchmark", "toy", "--questions", rows, "--out", tmp_path / "out", "--max-failed", "0.5"]
    printed = critic("score", judged, *words).stdout
    grades = json.loads((tmp_path / "out/summary.json").read_text("utf-8"))["leaderboards"]["grades"]["model"]["grade"]
    assert (grades["value"], grades["n"], grades["failed"], grades["asked"]) == (7, 2, 1, 3)
    assert (grades["low"], grades["high"]) == (pytest.approx(15 / 3), pytest.approx(24 / 3))
    page = (tmp_path / "out/report.html").read_text("utf-8")
    assert "<title>Toy: scores</title>" in page
    for text in (printed, page):
        assert "Mean grade" in text and "5.00 … 8.00" in text and "model: judged by judge" in text
        assert "Other verdicts" not in text
    rows.write_text(rows.read_text("utf-8").replace('"question": "Who?", ', ""), "utf-8")
    infer = ["infer", rows, "--benchmark", "toy", "--model", replies, "--out", tmp_path / "more.jsonl"]
    assert_one_line_error(critic(*infer, code=2), "toy.jsonl:3: 'question' is empty")
