"""AlignMMBench: its files as they are, its scores, coverage."""

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from conftest import ROOT, Servers, completion, run, write_jsonl
from judgments import of_answer, of_turn
from samples import read_golden, score_tasks

from critic import jsonl
from critic.benchmarks import alignmmbench
from critic.errors import UsageError
from critic.records import Conversation, Response, Verdict
from critic.stats.leaderboard import aggregate_of


def test_both_roads_to_alignmmbench_end_in_one_table(tmp_path: Path) -> None:
    """Single answers and conversations judged alike, one task without any score: one set of numbers, one text; what is
    of some tasks says of how many, and is called neither overall nor average."""
    sample = ROOT / "data/samples/alignmmbench/metadata.jsonl"
    questions = alignmmbench.read_questions(sample)
    unscored = next(iter(questions.values())).task
    singles, talks = [], []
    for place, (key, question) in enumerate(questions.items()):
        score = None if question.task == unscored else float(place % 10 + 1)
        verdict = Verdict(failure="no_rating") if score is None else Verdict(rating=score)
        response = Response(id=key, question=question, text="x" * place, system="m")
        singles.append(of_answer(response, verdict=verdict, score=score))
        about = {"turn": 1, "answer": response.text, "score": score, "failure": verdict.failure}
        talks.append(of_turn(Conversation.of(question, "alignmmbench"), "pointwise", **about))
    jsonl.write(tmp_path / "single.jsonl", singles)
    jsonl.write(tmp_path / "talks.jsonl", talks)
    words = ["--questions", sample, "--max-failed", "1", "--out"]
    single = run("critic", "score", tmp_path / "single.jsonl", *words, tmp_path / "single.json")
    other = run("critic", "score", tmp_path / "talks.jsonl", "--benchmark", "alignmmbench", *words, tmp_path / "talks")
    assert single.returncode == other.returncode == 0, single.stderr + other.stderr
    assert single.stdout.strip() == other.stdout.partition("\nopen ")[0].strip()
    summary = json.loads((tmp_path / "single.json").read_text("utf-8"))
    assert summary["systems"] == json.loads((tmp_path / "talks/summary.json").read_text("utf-8"))["systems"]
    tasks = {question.task for question in questions.values()}
    means = [
        fmean(line.score for line in singles if line.conversation.turns[0].task == task and line.score is not None)
        for task in sorted(tasks - {unscored})
    ]
    partly = summary["leaderboards"]["tasks"]["m"]["mean of tasks"]
    assert partly["value"] == pytest.approx(fmean(means)) and partly["partly"] == f"{len(means)} of {len(tasks)}"
    assert partly["low"] == pytest.approx((sum(means) + 1) / len(tasks))
    assert partly["high"] == pytest.approx((sum(means) + 10) / len(tasks))
    page = (tmp_path / "talks/report.html").read_text("utf-8")
    for text in (single.stdout, page):
        assert f"{len(means)} of {len(tasks)}" in text and "alignment" in text
        assert "overall" not in text.lower() and "average" not in text.lower()


def test_peer_totals(shared: Path) -> None:
    """The original script's total is our mean over questions; its tasks are not AlignMMBench's, and stand last."""
    example = read_golden(shared, "aggregates")["alignmmbench"]["example"]
    scores = score_tasks([(task, None if score == -1 else score) for task, score in example["rows"]])
    aggregates = {name: aggregate_of(score) for name, score in scores.items()}
    assert aggregates["mean of the questions"].value == pytest.approx(example["total"], abs=1e-12)
    assert aggregates["t1"].value == example["t1"] and aggregates["mean of tasks"].failed == example["bad"]


def test_the_published_questions_are_read(shared: Path) -> None:
    """Row 10."""
    questions = alignmmbench.read_questions(shared / "data/alignmmbench/questions.jsonl")
    assert len(questions) == 4978
    assert sum(question.task == "Coherence" for question in questions.values()) == 181
    assert sum(bool(question.history) for question in questions.values()) == 271
    assert len({question.group for question in questions.values()}) == 1056
    assert not any("\\n" in (question.reference or "") for question in questions.values())


def test_the_demo_file_from_end_to_end(shared: Path, tmp_path: Path, scripted: Servers) -> None:
    """AlignMMBench's own files, the responses in their older layout, through judge and score."""
    folder = shared / "data/alignmmbench"
    server = scripted(lambda body: completion('{"Rating":4,"Reason":"好"}'))
    out = tmp_path / "judged.jsonl"
    words = ["--questions", folder / "questions.jsonl", "--base-url", server.url, "--score", "argmax"]
    run("critic", "judge", folder / "demo_response.jsonl", *words, "--out", out, code=0)
    bodies = [body["messages"][0]["content"] for body in server.requests]
    assert any("> 柯尼卡美能达的CEO是谁？" in body and "> 用户：柯尼卡美能达高层人员架构" in body for body in bodies)
    done = run("critic", "score", out, "--questions", folder / "questions.jsonl", "--out", tmp_path / "scores.json")
    assert done.returncode == 0, done.stderr
    assert "coverage" in done.stdout and "0.2%" in done.stdout
    scores = json.loads((tmp_path / "scores.json").read_text("utf-8"))
    mean = scores["leaderboards"]["tasks"]["demo_response"]["mean of tasks"]
    assert mean["value"] == 4 and mean["n"] == 10 and mean["partly"] == "2 of 13"
    assert run("critic", "score", out, "--out", tmp_path / "page").returncode == 0
    assert "alignment without singletons" in (tmp_path / "page/report.html").read_text("utf-8")


def test_the_references_in_other_words_get_near_ten(tmp_path: Path, scripted: Servers) -> None:
    """Row 2. A model whose answers are the references in other words stands beside one that answers by itself: three
    commands, one of which asks for both. The judge gives what has the reference's words 10, or 9, and all else 3."""
    file = ROOT / "data/samples/alignmmbench/metadata.jsonl"

    def model(body: dict[str, Any]) -> Any:
        said = body["messages"][-1]["content"]
        said = said if isinstance(said, str) else said[-1]["text"]
        is_rephrasing = "请换一种说法写出下面的回答" in said
        return completion("换句话说，" + said.partition("\n\n回答：")[2].strip() if is_rephrasing else "我看不出来。")

    def judge(body: dict[str, Any]) -> Any:
        parts = body["messages"][0]["content"].partition("\n# 参考答案\n> ")[2]
        reference, _, reply = parts.partition("\n\n# 助手的作答\n> ")
        grade = 10 - len(reference) % 2 if reply.startswith(f"换句话说，{reference}") else 3
        return completion(json.dumps({"Rating": grade, "Reason": "对"}))

    words = ["--benchmark", "alignmmbench", "--condition", "rephrased_reference", "--condition"]
    replies, out = tmp_path / "replies.jsonl", tmp_path / "judged.jsonl"
    run("critic", "infer", file, *words, "no_image", "--out", replies, "--base-url", scripted(model).url, code=0)
    done = run("critic", "judge", replies, "--questions", file, "--out", out, "--base-url", scripted(judge).url)
    count = len(alignmmbench.read_questions(file))
    assert done.returncode == 0 and f"{2 * count} verdicts, 0 failed" in done.stdout, done.stderr
    run("critic", "score", out, "--out", tmp_path / "page", code=0)
    categories = json.loads((tmp_path / "page/summary.json").read_text("utf-8"))["leaderboards"]["categories"]
    rows = ("tiny, rephrased_reference", "tiny, without image")
    rephrased, own = (categories[name]["mean of the questions"] for name in rows)
    assert 9 <= rephrased["value"] <= 10 and own["value"] == 3 and rephrased["n"] == own["n"] == count
    assert "tiny, rephrased_reference" in (tmp_path / "page/report.html").read_text("utf-8")


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    question = {"question_id": "1-0", "prompt": "p", "ref_answer": "r", "task": "OCR"}
    with pytest.raises(UsageError, match=r"q\.jsonl:1: unknown task"):
        alignmmbench.read_questions(write_jsonl(tmp_path / "q.jsonl", [{**question, "task": "ocr"}]))
