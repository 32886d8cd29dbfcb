"""critic rewrite: seeds in other wordings, and only what a person accepted is used."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, assert_one_line_error, command, completion, run, write_jsonl

from critic import jsonl
from critic.benchmarks import alignmmbench
from critic.stages.rewrite import prompt, seeds, variants

SAMPLE = ROOT / "data/samples/alignmmbench/metadata.jsonl"
LINES = ["一共几个？", "数一数有多少个。", "请问总数是多少？", "有几个呢？", "告诉我数量。"]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_the_exact_text_is_kept(lang: Any) -> None:
    content = prompt("图中有几只猫？\n# 改写" if lang == "zh" else "How many cats?\n# Wordings", lang)[0]["content"]
    golden = ROOT / f"tests/golden/rewrite_{lang}.txt"
    if not golden.exists():
        golden.write_text(content + "\n", "utf-8")
        pytest.fail(f"{golden.name} was missing and has been written; look at it and run again")
    assert content + "\n" == golden.read_text("utf-8")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1. a b\n2) c\n- d\n\n(4) e\n5、f", ["a b", "c", "d", "e", "f"]),
        ("“甲”\n甲\n乙", ["甲", "乙"]),
        ("the question\nother", ["other"]),
        ("3 cats or 4?\n2024 or 2025?", ["3 cats or 4?", "2024 or 2025?"]),
        ("1.5 litres?", ["1.5 litres?"]),
        ("图中的标语是“安全第一”\n“停”是什么意思？", ["图中的标语是“安全第一”", "“停”是什么意思？"]),
        ('"a" or "b"\n2. "How many?"\nsay "x"', ['"a" or "b"', "How many?", 'say "x"']),
        ('“a\n“”\n"\nb', ["“a", "b"]),
        ("", []),
    ],
)
def test_wordings_are_read_a_line_each(text: str, found: list[str]) -> None:
    assert variants(text, "the question") == found


def test_a_wording_that_is_asked_already_is_not_added_again(tmp_path: Path, scripted: Any) -> None:
    server = scripted(lambda body: completion("\n".join([*LINES, LINES[0]])))
    review, out = tmp_path / "review.jsonl", tmp_path / "questions.jsonl"
    assert run("critic", "rewrite", SAMPLE, "--out", review, "--base-url", server.url).returncode == 0
    lines = [{**line, "accepted": True} for line in read(review)]
    write_jsonl(review, lines)
    assert run("critic", "rewrite", SAMPLE, "--apply", review, "--out", out).returncode == 0
    done = run("critic", "rewrite", out, "--apply", review, "--out", tmp_path / "again.jsonl")
    assert done.returncode == 0 and done.stderr.count("asked already") == len(lines)
    assert read(tmp_path / "again.jsonl") == read(out)


def test_questions_within_a_dialogue_are_left_alone(tmp_path: Path, scripted: Any) -> None:
    asked = seeds(alignmmbench.read_questions(SAMPLE).values())
    assert {one.task for one in asked}.isdisjoint({"Coherence", "Incoherence"})
    words = ["--out", tmp_path / "review.jsonl", "--base-url", scripted(lambda _: completion("\n".join(LINES))).url]
    assert run("critic", "rewrite", SAMPLE, *words).returncode == 0
    assert {line["seed"] for line in read(tmp_path / "review.jsonl")} == {one.id for one in asked}
    rows = [row for row in read(SAMPLE) if row["task"] in ("Coherence", "Incoherence")]
    only = write_jsonl(tmp_path / "only.jsonl", rows)
    assert_one_line_error(run("critic", "rewrite", only, *words), "only.jsonl", "outside of dialogues")


def test_from_seeds_to_questions(tmp_path: Path, scripted: Any) -> None:
    server = scripted(lambda body: completion("\n".join(LINES)))
    review, out = tmp_path / "review.jsonl", tmp_path / "questions.jsonl"
    done = run("critic", "rewrite", SAMPLE, "--out", review, "--base-url", server.url)
    assert done.returncode == 0, done.stderr
    asked = seeds(alignmmbench.read_questions(SAMPLE).values())
    lines = read(review)
    assert len(lines) == 5 * len(asked) == 5 * len(server.requests)
    assert all(line["accepted"] is None for line in lines)
    first = asked[0]
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
    assert [one.prompt for one in new] == [LINES[0], LINES[3]]
    for one in new:
        assert (one.group, one.reference, one.images, one.task) == (
            first.group, first.reference, first.images, first.task,
        )  # fmt: skip
    assert_one_line_error(
        run("critic", "rewrite", SAMPLE, "--out", review, "--base-url", server.url), "reviewed already"
    )
    assert read(review) == lines


def test_ids_without_a_number_are_groups_of_their_own(tmp_path: Path) -> None:
    row = json.loads(SAMPLE.read_text("utf-8").splitlines()[0])
    rows = [{**row, "question_id": key, "prompt": f"{key}?"} for key in ("17", "18", "19-4")]
    asked = write_jsonl(tmp_path / "q.jsonl", rows)
    said = [("17", "how many?"), ("18", "how many?"), ("18", "count"), ("19-4", "count"), ("17", "17?")]
    lines = [
        {"seed": key, "question": f"{key}?", "variant": n, "prompt": text, "accepted": True}
        for n, (key, text) in enumerate(said, 1)
    ]
    review, out = write_jsonl(tmp_path / "review.jsonl", lines), tmp_path / "out.jsonl"
    done = run("critic", "rewrite", asked, "--apply", review, "--out", out)
    assert done.returncode == 0 and done.stderr == "17: asked already, not added again: 17?\n", done.stderr
    found = alignmmbench.read_questions(out)
    assert {key: (one.group, one.prompt) for key, one in found.items() if one.prompt != f"{key}?"} == {
        "17-1": ("17", "how many?"), "18-1": ("18", "how many?"), "18-2": ("18", "count"), "19-5": ("19", "count"),
    }  # fmt: skip


def test_failures_are_named_and_half_written_seeds_asked_again(tmp_path: Path, scripted: Any) -> None:
    broken = True

    def answer(body: dict[str, Any]) -> Any:
        return completion("\n".join(LINES[:4])) if broken and "苹果" in body["messages"][0]["content"] else (
            completion("\n".join(LINES))
        )  # fmt: skip

    server, review = scripted(answer), tmp_path / "review.jsonl"
    words = ["critic", "rewrite", SAMPLE, "--out", review, "--base-url", server.url]
    done = run(*words)
    assert done.returncode == 3 and "too_few_variants" in done.stdout
    asked = len(server.requests)
    assert run(*words).returncode == 3 and len(server.requests) == asked, "a seed that failed is not asked again"
    failed = [line for line in read(review) if line["failure"]]
    assert failed and all(line["prompt"] is None and line["variant"] == 0 for line in failed)
    whole = review.read_text("utf-8")
    # The last line goes and the one before is torn; whose they are depends on which seed was answered last.
    again = {line["seed"] for line in (*failed, *read(review)[-2:])}
    review.write_text(whole[: whole.rstrip("\n").rindex("\n") - 5], "utf-8")  # torn, as by a kill
    broken, asked = False, len(server.requests)
    assert run(*words, "--retry-failed").returncode == 0
    assert len(server.requests) == asked + len(again)
    lines = read(review)
    assert len(lines) == 5 * len({line["seed"] for line in lines}) and not any(line["failure"] for line in lines)
    strange = write_jsonl(tmp_path / "s.jsonl", [{**lines[0], "seed": "x-0"}])
    words = ["critic", "rewrite", SAMPLE, "--apply", strange, "--out", tmp_path / "q.jsonl"]
    assert_one_line_error(run(*words), "s.jsonl:1", "'x-0'")
    assert_one_line_error(run("critic", "rewrite", SAMPLE, "--out", tmp_path / "n.jsonl"), "--base-url")


def test_killed_at_any_moment_and_run_again(tmp_path: Path, scripted: Any) -> None:
    """A seed has five lines, and a run may be killed between two of them: it is asked again, and has five."""

    def answer(body: dict[str, Any]) -> Any:
        time.sleep(0.05)
        return completion("\n".join(LINES))

    server, review = scripted(answer), tmp_path / "review.jsonl"
    words = ["critic", "rewrite", SAMPLE, "--out", review, "--base-url", server.url, "--concurrency", "1"]
    for cut in (3, 400):
        process = subprocess.Popen(command(*words), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before = review.stat().st_size if review.is_file() else 0
        while process.poll() is None and (not review.is_file() or review.stat().st_size <= before):
            time.sleep(0.002)
        process.kill()
        process.wait()
        assert not jsonl.sidecar(review).exists(), "killed too late to prove anything"
        review.write_bytes(review.read_bytes()[:-cut])
    assert run(*words).returncode == 0 and jsonl.sidecar(review).is_file()
    asked = seeds(alignmmbench.read_questions(SAMPLE).values())
    found = sorted((line["seed"], line["prompt"]) for line in read(review))
    assert found == sorted((seed.id, line) for seed in asked for line in LINES)
