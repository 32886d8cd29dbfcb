"""AlignMMBench: its files as they are, its scores, coverage."""

import json
from pathlib import Path

import pytest
from conftest import assert_one_line_error, completion, run, write_jsonl

from critic.benchmarks import alignmmbench
from critic.errors import UsageError
from critic.records import Judgment, Question, Response, Verdict
from critic.stages import score


def judgment(number: int, task: str, score: float | None) -> Judgment:
    question = Question(id=f"{number}", prompt="?", task=task, group=f"{number}", lang="zh", reference="r")
    return Judgment(
        response=Response(id=f"{number}", question=question, text="x", system="m"),
        judge="j", prompt="pointwise", prompt_hash="h", score_kind="argmax",
        verdict=Verdict(rating=score) if score else Verdict(failure="empty"), score=score,
    )  # fmt: skip


def made(cells: list[tuple[str, float | None]]) -> list[Judgment]:
    return [judgment(number, task, score) for number, (task, score) in enumerate(cells)]


def test_overall_is_the_mean_of_tasks_and_the_weighted_one_is_apart() -> None:
    found = alignmmbench.scores(made([("OCR", 8), ("OCR", 6), ("OCR", None), ("Chart", 3)]))
    assert found.tasks["OCR"].mean == 7 and found.tasks["OCR"].n == 2 and found.tasks["OCR"].failed == 1
    assert found.tasks["OCR"].coverage == pytest.approx(2 / 3)
    assert found.overall.mean == 5 and found.weighted == pytest.approx(17 / 3)
    assert found.categories["Perception & Understanding"].mean == 7
    assert found.categories["Reasoning & Analysis"].mean == 3
    assert "Dialogue Context" not in found.categories


def test_coverage_is_of_what_was_asked() -> None:
    found = alignmmbench.scores(made([("OCR", 8)]), {"OCR": 4, "Meme": 6})
    assert found.tasks["OCR"].coverage == 0.25 and found.tasks["Meme"].mean is None
    assert found.overall.coverage == 0.1 and found.tasks_scored == 1


def test_what_is_missing_is_bounded() -> None:
    """OCR: 8 and two without a score, of 4 asked 3 missing; Meme: nothing judged; anything from 1 to 10."""
    found = alignmmbench.scores(made([("OCR", 8), ("OCR", None)]), {"OCR": 4, "Meme": 6})
    assert (found.tasks["OCR"].low, found.tasks["OCR"].high) == ((8 + 3) / 4, (8 + 30) / 4)
    assert (found.tasks["Meme"].low, found.tasks["Meme"].high) == (1, 10)
    assert (found.overall.low, found.overall.high) == ((11 / 4 + 1) / 2, (38 / 4 + 10) / 2)
    assert "2.75 … 9.50" in score.table(found)


def test_peer_totals(shared) -> None:
    """The original script's total is our question-weighted mean."""
    example = json.loads((shared / "fixtures/golden.json").read_text("utf-8"))["aggregates"]["alignmmbench"]["example"]
    found = alignmmbench.scores(made([(task, None if score == -1 else score) for task, score in example["rows"]]))
    assert found.weighted == pytest.approx(example["total"], abs=1e-12)
    assert found.tasks["t1"].mean == example["t1"] and found.overall.failed == example["bad"]


def test_published_averages_are_means_of_task_means(shared) -> None:
    rows = [
        json.loads(line) for line in (shared / "data/alignmmbench/leaderboard.jsonl").read_text("utf-8").splitlines()
    ]
    assert len(rows) == 13
    for row in rows:
        found = alignmmbench.scores(made([(task, row[task]) for task in alignmmbench.TASKS]))
        if row["arithmetic_ok"]:
            assert found.overall.mean == pytest.approx(row["Avg"], abs=0.0061), row["model"]


def test_the_published_questions_are_read(shared) -> None:
    questions = alignmmbench.read_questions(shared / "data/alignmmbench/questions.jsonl")
    assert len(questions) == 4978
    assert alignmmbench.asked_per_task(questions.values())["Coherence"] == 181
    assert sum(bool(question.history) for question in questions.values()) == 271
    assert len({question.group for question in questions.values()}) == 1056
    assert not any("\\n" in (question.reference or "") for question in questions.values())


def test_the_demo_file_from_end_to_end(shared, tmp_path: Path, scripted) -> None:
    """AlignMMBench's own files, the responses in their older layout, through judge and score."""
    folder = shared / "data/alignmmbench"
    server = scripted(lambda body: completion('{"Rating":4,"Reason":"好"}'))
    out = tmp_path / "judged.jsonl"
    words = ["--questions", folder / "questions.jsonl", "--base-url", server.url, "--score", "argmax"]
    done = run("critic", "judge", folder / "demo_response.jsonl", *words, "--out", out)
    assert done.returncode == 0, done.stderr
    bodies = [body["messages"][0]["content"] for body in server.requests]
    assert any("> 柯尼卡美能达的CEO是谁？" in body and "> 用户：柯尼卡美能达高层人员架构" in body for body in bodies)
    done = run("critic", "score", out, "--questions", folder / "questions.jsonl", "--out", tmp_path / "scores.json")
    assert done.returncode == 0, done.stderr
    assert "coverage" in done.stdout and "0.2%" in done.stdout
    scores = json.loads((tmp_path / "scores.json").read_text("utf-8"))
    assert scores["overall"]["mean"] == 4 and scores["overall"]["n"] == 10 and scores["tasks_scored"] == 2


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    question = {"question_id": "1-0", "prompt": "p", "ref_answer": "r", "task": "OCR"}
    questions = write_jsonl(tmp_path / "q.jsonl", [question])
    read = alignmmbench.read_questions(questions)
    for line, message in [
        ({"question_id": "2-0", "predict": "x"}, "r.jsonl:1.*'2-0' is not in the questions"),
        ({"question_id": "1-0"}, "r.jsonl:1.*predict"),
        ({"question_id": "1-0", "predict": "x", "question": ["a", "other"]}, "asks 'p', the line has 'other'"),
    ]:
        with pytest.raises(UsageError, match=message):
            alignmmbench.read_responses(write_jsonl(tmp_path / "r.jsonl", [line]), read)
    twice = [{"question_id": "1-0", "predict": "x"}] * 2
    with pytest.raises(UsageError, match=r"r\.jsonl:2: duplicate"):
        alignmmbench.read_responses(write_jsonl(tmp_path / "r.jsonl", twice), read)
    with pytest.raises(UsageError, match=r"q\.jsonl:1: unknown task"):
        alignmmbench.read_questions(write_jsonl(tmp_path / "q.jsonl", [{**question, "task": "ocr"}]))


def test_several_models_are_not_averaged(tmp_path: Path) -> None:
    import msgspec

    rows = made([("OCR", 8), ("OCR", 6)])
    other = msgspec.structs.replace(rows[1], response=msgspec.structs.replace(rows[1].response, system="n"))
    path = tmp_path / "j.jsonl"
    path.write_bytes(b"\n".join(msgspec.json.encode(row) for row in (rows[0], other)))
    assert_one_line_error(run("critic", "score", path), "several models (m, n)")
