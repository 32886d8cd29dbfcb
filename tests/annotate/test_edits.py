"""What reviewers correct, and its history; VisIT-Bench's collection pages, one behind the other."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from annotating import client_of, exported, fields, forked, label, page_of, planned
from conftest import ROOT, assert_one_line_error, run, write_jsonl

from critic import benchmarks
from eval_agreement.annotate.store import Store

SAMPLES = ROOT / "data/samples"
FILES = {
    "alignmmbench": ("metadata.jsonl", {"reference 1": "新的参考答案"}),
    "convbench": ("ConvBench.csv", {"caption": "Five apples.", "reference 2": "Red ones.", "focus 3": "Name five."}),
    "multiverse": ("conversations.jsonl", {"reference 1": "Five.", "checklist 1": "Is it five?\nAre they in a bowl?"}),
    "visitbench": ("visit_bench.csv", {"caption": "Apples.", "reference 1": "Five apples."}),
}


def reviewed(folder: Path, name: str) -> Store:
    rows = SAMPLES / name / FILES[name][0]
    return planned(folder, "--scheme", "review", "--benchmark", name, "--raters", 2, "--overlap", 1, rows=rows)


def correct(client: Any, rater: str, task: str, texts: dict[str, str], **more: str) -> Any:
    edits = {f"edit {name}": text for name, text in texts.items()}
    return label(client, rater, fields(client, rater, task=task), **edits, **more)


def first_tasks(store: Store) -> dict[str, str]:
    """Of each rater the task on the first conversation."""
    return dict(store._rows("SELECT rater, CAST(id AS TEXT) FROM tasks WHERE item = 1"))


@pytest.mark.parametrize("name", FILES)
def test_corrections_are_in_the_benchmarks_own_file(name: str, tmp_path: Path) -> None:
    store, texts = reviewed(tmp_path, name), FILES[name][1]
    tasks, page = first_tasks(store), page_of(store)
    assert correct(page, "rater-2", tasks["rater-2"], {}).status_code == 200
    assert not store.edits(), "texts that are sent as they were are no edits"
    assert correct(page, "rater-1", tasks["rater-1"], texts).status_code == 200
    assert store.counts()["rater-2"][0] == 0, "who saw the old texts is asked again"
    assert correct(page, "rater-2", tasks["rater-2"], {}).status_code == 200
    path = exported(store, "benchmark.jsonl")
    line, (talk,) = json.loads(path.read_text("utf-8")), benchmarks.read(name, path)
    (old, *_) = benchmarks.read(name, SAMPLES / name / FILES[name][0])
    for field, text in texts.items():
        kind, _, turn = field.partition(" ")
        of = talk.turns[int(turn) - 1] if turn else talk
        assert getattr(of, kind) == (text.split("\n") if kind == "checklist" else text)
    assert [turn.prompt for turn in talk.turns] == [turn.prompt for turn in old.turns]
    assert {edit["field"]: (edit["rater"], edit["new"]) for edit in line["edits"]} == {
        field: ("rater-1", text) for field, text in texts.items()
    }
    assert all(edit["old"] and edit["at"] > 0 for edit in line["edits"]) and line["reviews"]["rater-2"] == "yes"


def test_what_was_changed_meanwhile_is_not_overwritten_and_outlives_kill_9(tmp_path: Path) -> None:
    store = reviewed(tmp_path, "convbench")
    tasks, page = first_tasks(store), page_of(store)
    form = fields(page, "rater-2", task=tasks["rater-2"])
    with forked(store.path) as (process, url), client_of(url) as client:
        assert correct(client, "rater-1", tasks["rater-1"], {"caption": "New."}).status_code == 200
        os.kill(process, signal.SIGKILL)
    assert label(page, "rater-2", form).status_code == 409 and [edit["new"] for edit in store.edits()[1]] == ["New."]
    assert ">\nNew.</textarea>" in page.get("/", params={"rater": "rater-2", "task": tasks["rater-2"]}).text
    emptied = correct(page, "rater-2", tasks["rater-2"], {"caption": " "})
    assert emptied.status_code == 422 and "caption: is empty" in emptied.json()["error"]
    label(page, "rater-2", fields(page, "rater-2", task=tasks["rater-2"]), lambda name, values: "no")
    done = run("critic", "annotate", "--db", store.path, "--export", tmp_path / "benchmark.jsonl")
    assert "0 lines" in done.stdout and "left out: '1' (yes 1, no 1)" in done.stderr


def test_the_collection_pages_end_in_a_sheet_of_the_benchmark(tmp_path: Path) -> None:
    """Instruction, caption and verification (VisIT-Bench, figures 11 to 14); between them somebody's model answers."""
    (tmp_path / "kites.png").write_bytes((SAMPLES / "convbench/images/fruit.png").read_bytes())
    said = {"image_url": "https://a.b/c/kites.png"}
    rows = [{"id": "1", "instruction_category": "counting"}]
    for scheme in ("collect_instruction", "collect_caption", "verify"):
        folder = tmp_path / scheme
        more = ("--scheme", scheme, "--data-root", tmp_path)
        store = planned(folder, *more, rows=write_jsonl(tmp_path / f"{scheme}.jsonl", rows))
        page = page_of(store, tmp_path)
        form = fields(page, "rater-1")
        too_long = label(page, "rater-1", form, lambda name, values: "x" * 3000)
        assert too_long.status_code == 422 and "expected" in too_long.json()["error"]
        kept = label(page, "rater-1", form, lambda name, values: said.get(name.partition(" ")[2], values[0]))
        assert kept.status_code == 200, kept.text
        rows = [json.loads(line) | {"gpt4_prediction": "Two."} for line in exported(store).read_text().splitlines()]
        lacking = {"choice human_ratings_gpt4_correct": "no", "choice human_ratings_problem_in_caption": ""}
        assert scheme != "verify" or label(page, "rater-1", form, **lacking).status_code == 422
    (row,) = rows
    assert row["human_ratings_problem_in_caption"] == "no" and row["human_ratings_problematic"] == "yes"
    (talk,) = benchmarks.read("visitbench", write_jsonl(tmp_path / "sheet.jsonl", rows))
    assert (talk.turns[0].prompt, talk.caption, talk.turns[0].reference) == ("in words", "in words", "Two.")
    done = run("critic", "annotate", tmp_path / "verify.jsonl", "--db", tmp_path / "x", "--scheme", "review")
    assert_one_line_error(done, "--scheme review and --benchmark go together")
