"""critic rewrite: seeds in other wordings, and only what a person accepted is used."""

import json
from pathlib import Path
from typing import Any

from conftest import ROOT, assert_one_line_error, completion, read_jsonl, run, write_jsonl

from critic.benchmarks import alignmmbench
from critic.stages.rewrite import seeds

SAMPLE = ROOT / "data/samples/alignmmbench/metadata.jsonl"
LINES = ["一共几个？", "数一数有多少个。", "请问总数是多少？", "有几个呢？", "告诉我数量。"]


def worded(lines: list[str] = LINES) -> dict[str, Any]:
    return completion(json.dumps({"wordings": lines}))


def test_questions_within_a_dialogue_are_left_alone(tmp_path: Path, scripted: Any) -> None:
    """Row 12: seeds are rewritten, dialogues are not."""
    seeded = seeds(alignmmbench.read_questions(SAMPLE).values())
    assert {question.task for question in seeded}.isdisjoint({"Coherence", "Incoherence"})
    words = ["--out", tmp_path / "review.jsonl", "--base-url", scripted(lambda _: worded()).url]
    assert run("critic", "rewrite", SAMPLE, *words).returncode == 0
    assert {line["seed"] for line in read_jsonl(tmp_path / "review.jsonl")} == {question.id for question in seeded}
    rows = [row for row in read_jsonl(SAMPLE) if row["task"] in ("Coherence", "Incoherence")]
    only = write_jsonl(tmp_path / "only.jsonl", rows)
    assert_one_line_error(run("critic", "rewrite", only, *words), "only.jsonl", "outside of dialogues")


def test_from_seeds_to_questions(tmp_path: Path, scripted: Any) -> None:
    server = scripted(lambda body: worded())
    review, out = tmp_path / "review.jsonl", tmp_path / "questions.jsonl"
    run("critic", "rewrite", SAMPLE, "--out", review, "--base-url", server.url, code=0)
    seeded = seeds(alignmmbench.read_questions(SAMPLE).values())
    lines = read_jsonl(review)
    assert len(lines) == 5 * len(seeded) == 5 * len(server.requests)
    assert all(line["accepted"] is None for line in lines)
    first = seeded[0]
    mine = [line for line in lines if line["seed"] == first.id]
    assert [line["prompt"] for line in mine] == LINES
    verdicts = dict(zip(LINES, [True, False, None, True, False], strict=True))
    for line in mine:
        line["accepted"] = verdicts[line["prompt"]]
    write_jsonl(review, lines)
    done = run("critic", "rewrite", SAMPLE, "--apply", review, "--out", out)
    assert done.returncode == 0 and "2 of them rewrites" in done.stdout and "undecided" in done.stdout
    before, after = alignmmbench.read_questions(SAMPLE), alignmmbench.read_questions(out)
    assert len(after) == len(before) + 2 and before.items() <= after.items()
    new = [question for key, question in after.items() if key not in before]
    assert [question.prompt for question in new] == [LINES[0], LINES[3]]
    for question in new:
        for name in ("group", "reference", "images", "task"):
            assert getattr(question, name) == getattr(first, name), name
    assert run("critic", "rewrite", SAMPLE, "--out", review, "--base-url", server.url).returncode == 0
    assert read_jsonl(review) == lines, "what people said stays"


def test_ids_without_a_number_are_groups_of_their_own(tmp_path: Path) -> None:
    row = json.loads(SAMPLE.read_text("utf-8").splitlines()[0])
    rows = [{**row, "question_id": key, "prompt": f"{key}?"} for key in ("17", "18", "19-4")]
    questions = write_jsonl(tmp_path / "q.jsonl", rows)
    said = [("17", "how many?"), ("18", "how many?"), ("18", "count"), ("19-4", "count"), ("17", "17?")]
    lines = [
        {"seed": key, "question": f"{key}?", "variant": n, "prompt": text, "accepted": True}
        for n, (key, text) in enumerate(said, 1)
    ]
    review, out = write_jsonl(tmp_path / "review.jsonl", lines), tmp_path / "out.jsonl"
    done = run("critic", "rewrite", questions, "--apply", review, "--out", out)
    assert done.returncode == 0 and done.stderr == "17: asked already, not added again: 17?\n", done.stderr
    extended = alignmmbench.read_questions(out)
    new = {key: question for key, question in extended.items() if question.prompt != f"{key}?"}
    assert {key: (question.group, question.prompt) for key, question in new.items()} == {
        "17-1": ("17", "how many?"), "18-1": ("18", "how many?"), "18-2": ("18", "count"), "19-5": ("19", "count"),
    }  # fmt: skip


def test_what_cannot_be_used_is_named_and_asked_for_again(tmp_path: Path, scripted: Any) -> None:
    broken = True

    def answer(body: dict[str, Any]) -> Any:
        few = broken and "苹果" in body["messages"][0]["content"][0]["text"]
        return worded(LINES[:4]) if few else worded()

    server, review = scripted(answer), tmp_path / "review.jsonl"
    words = ["critic", "rewrite", SAMPLE, "--out", review, "--base-url", server.url]
    assert "too_few_variants 1" in run(*words, code=0).stdout
    count, whole = len(server.requests), len(read_jsonl(review))
    assert run(*words).returncode == 0 and len(server.requests) == count, "what was turned down is not asked again"
    broken = False
    assert run(*words, "--retry-failed").returncode == 0 and len(server.requests) == count + 1
    lines = read_jsonl(review)
    assert len(lines) == whole + 5 == 5 * count
    strange = write_jsonl(tmp_path / "s.jsonl", [{**lines[0], "seed": "x-0"}])
    words = ["critic", "rewrite", SAMPLE, "--apply", strange, "--out", tmp_path / "q.jsonl"]
    assert_one_line_error(run(*words), "s.jsonl:1", "'x-0'")
    assert_one_line_error(run("critic", "rewrite", SAMPLE, "--out", tmp_path / "n.jsonl"), "--base-url")
    assert_one_line_error(run("critic", "rewrite", SAMPLE, "--out", tmp_path / "n.csv"), "ends in .jsonl")
