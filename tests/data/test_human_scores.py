"""Human-scored rows: what is refused, what is left out, how they are split."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import assert_one_line_error, human_row, read_jsonl, rows_of, run, write_csv, write_jsonl

from critic import human_scored, jsonl
from critic.records import to_ten

PROGRAM = "data/human_scores.py"


@pytest.mark.parametrize("column", ["id", "question", "reference", "human_score", "group", "system"])
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    row = human_row(0)
    del row[column]
    texts = {name: cell if isinstance(cell, str) else json.dumps(cell) for name, cell in row.items()}
    for path, line in ((write_jsonl(tmp_path / "a.jsonl", [row]), 1), (write_csv(tmp_path / "a.csv", [texts]), 2)):
        assert_one_line_error(run(PROGRAM, path, "--out", tmp_path / "o"), f"{path.name}:{line}", column)


def test_files_that_cannot_be_read_end_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "latin.jsonl").write_bytes(json.dumps(human_row(0, question="é"), ensure_ascii=False).encode("latin-1"))
    (tmp_path / "folder").mkdir()
    for name, part in [
        ("empty.jsonl", "empty"),
        ("latin.jsonl", "UTF-8"),
        ("none.jsonl", "no such file"),
        ("folder", "no .jsonl"),
    ]:
        assert_one_line_error(run(PROGRAM, tmp_path / name, "--out", tmp_path / "out"), name, part)


def test_csv_and_folder_hold_the_same_rows(tmp_path: Path) -> None:
    rows = [human_row(n, history=[{"user": 'a, "b"\nc', "assistant": "d"}], annotators={"r1": 3}) for n in range(99)]
    for number, row in enumerate(rows):
        row |= {"human_score": 9.3333, "label_probability": 0.5, "a_score_1_10": 7, "note": str(number)}
    rows[4]["response"] = "lines\u2028that\x0bonly\x85Unicode ends"
    whole = write_jsonl(tmp_path / "whole.jsonl", rows)
    folder = tmp_path / "folder"
    write_jsonl(folder / "a.jsonl", rows[:3])
    nested = (list, dict)
    cells = [{k: json.dumps(v) if isinstance(v, nested) else v for k, v in row.items()} for row in rows[3:]]
    write_csv(folder / "b.csv", cells)
    assert human_scored.load(folder).responses == human_scored.load(whole).responses
    nulls = {"annotators": {"r1": 3, "r2": None}, "criteria": {"a": None}, "criteria_scores": {"a": None}}
    filled = write_jsonl(tmp_path / "filled.jsonl", [row | nulls for row in rows])
    assert human_scored.load(filled).responses == human_scored.load(whole).responses
    for source in (folder, whole):
        run(PROGRAM, source, "--out", tmp_path / "split" / source.stem)
    for part in ("train.jsonl", "internal.jsonl"):
        actual, expected = (human_scored.load(tmp_path / "split" / source / part) for source in ("folder", "whole"))
        assert actual.responses == expected.responses and actual.raw == expected.raw


def test_unusable_rows_are_left_out_and_said(tmp_path: Path) -> None:
    rows = [human_row(n) for n in range(40)]
    rows[3] |= {"reference": None}
    rows[4] |= {"flags": ["human_stars_below_scale"], "human_score": 0.0}
    rows[5] |= {"flags": ["human_written_response"]}
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    done = run(PROGRAM, path, "--out", tmp_path / "out", code=0)
    assert "1 rows: no reference answer" in done.stderr and "1 rows: a human score lies below its scale" in done.stderr
    kept = [row["id"] for part in ("train", "internal") for row in read_jsonl(tmp_path / f"out/{part}.jsonl")]
    assert sorted(kept) == sorted(row["id"] for row in rows if row["id"] not in ("row-3", "row-4"))


def test_one_score_in_all_rows_is_said(tmp_path: Path, shared: Path) -> None:
    done = run(PROGRAM, shared / "cases/one_class.jsonl", "--out", tmp_path / "out")
    assert done.returncode == 0 and "one_class.jsonl: every row has the score 5 (120 rows" in done.stderr, done
    rows = [human_row(n, human_score=5.0 + (n == 99)) for n in range(100)]
    assert "every row" not in run(PROGRAM, write_jsonl(tmp_path / "r.jsonl", rows), "--out", tmp_path / "out").stderr


def test_the_split_is_by_group_and_by_the_published_rule(tmp_path: Path) -> None:
    rows = [
        human_row(n, group=f"g{n // 4}", image=f"{n // 4}.png", question=f"question {n // 4}?", reference=f"r{n // 4}")
        for n in range(400)
    ]
    run(PROGRAM, write_jsonl(tmp_path / "rows.jsonl", rows), "--out", tmp_path / "out", "--external", "beta", code=0)
    parts = {name: read_jsonl(tmp_path / f"out/{name}.jsonl") for name in ("train", "internal", "external")}
    for row in rows:
        internal = int(hashlib.sha1(row["group"].encode()).hexdigest(), 16) % 10 == 0
        assert (row in parts["internal"]) == internal
        assert (row in parts["external"]) == (row["system"] == "beta")
        assert (row in parts["train"]) == (not internal and row["system"] == "alpha")


def test_per_task_split_takes_a_tenth_of_each_task(tmp_path: Path) -> None:
    """Row 1: the split of CritiqueVLM's human-scored rows."""
    tasks = ["Counting", "OCR", "Meme"]
    rows = [human_row(n, task=tasks[n % 3], group=f"g{n}") for n in range(300)]
    run(PROGRAM, write_jsonl(tmp_path / "rows.jsonl", rows), "--out", tmp_path / "out", "--per-task")
    counts = [sum(row["task"] == task for row in read_jsonl(tmp_path / "out/internal.jsonl")) for task in tasks]
    assert counts == [10, 10, 10]


@pytest.mark.parametrize("per_task", [[], ["--per-task"]])
def test_internal_adds_the_next_groups_in_the_order_of_the_rule(tmp_path: Path, per_task: list[str]) -> None:
    """The tenth stays in the test, no group is in both parts, and the count is said; below 20 there is a warning.

    Groups that several tasks share count once."""
    rows = [human_row(n, task=["OCR", "Meme"][n % 2], group=f"g{n // 2}") for n in range(120)]
    path, groups = write_jsonl(tmp_path / "rows.jsonl", rows), dict[str, set[str]]()
    for least in ("0", "20"):
        done = run(PROGRAM, path, "--out", tmp_path / least, *per_task, "--internal", least, code=0)
        internal, train = (read_jsonl(tmp_path / least / f"{part}.jsonl") for part in ("internal", "train"))
        groups[least] = {row["group"] for row in internal}
        assert not groups[least] & {row["group"] for row in train}
        assert f"internal test: {len(groups[least])} questions" in done.stdout
        assert (f"{len(groups[least])} groups is too small" in done.stderr) == (len(groups[least]) < 20)
        assert ("at least 20" in json.loads((tmp_path / least / "splits.json").read_text())["rule"]) == (least == "20")
    assert groups["0"] < groups["20"] and len(groups["0"]) < len(groups["20"]) == 20
    done = run(PROGRAM, path, "--out", tmp_path / "all", *per_task, "--internal", "60")
    assert_one_line_error(done, "60 questions (groups), of which 60 are held out", "or a smaller --internal")


def test_leaks_are_taken_out_of_training(tmp_path: Path) -> None:
    rows = [human_row(n) for n in range(200)]
    groups = {row["group"] for row in rows if int(hashlib.sha1(row["group"].encode()).hexdigest(), 16) % 10 == 0}
    inside, formula, embedded = [row for row in rows if row["group"] in groups][:3]
    formula |= {"question": "1 + 1 = ?", "reference": "2"}
    embedded["image"] = "data:image/png;base64,aa//bb"
    outside = [row for row in rows if row["group"] not in groups]
    folder, _, name = inside["image"].rpartition("/")
    leaking: list[dict[str, Any]] = [
        {"image": inside["image"]},
        {"image": f"./{inside['image']}"},
        {"image": inside["image"].replace("/", "\\")},
        {"image": None, "images": ["other.png", f"{folder}/../{folder}//{name}"]},
        {"question": inside["question"].upper() + "!", "reference": inside["reference"]},
        {"question": "１＋１＝？", "reference": "2。"},
        {"image": embedded["image"]},
    ]
    other: list[dict[str, Any]] = [
        {"question": "1 - 1 = ?", "reference": "2"},
        {"question": "1 + 1", "reference": "= 2"},
        {"image": "data:image/png;base64,aa/bb"},
    ]
    for row, change in zip(outside, [*leaking, *other], strict=False):
        row.update(change)
    done = run(PROGRAM, write_jsonl(tmp_path / "rows.jsonl", rows), "--out", tmp_path / "out")
    trained = {row["id"] for row in read_jsonl(tmp_path / "out/train.jsonl")}
    assert trained == {row["id"] for row in outside[len(leaking) :]}
    assert "share" in done.stdout and f": {len(leaking)}" in done.stdout


def test_folds_test_every_question_once(tmp_path: Path) -> None:
    rows = [human_row(n, group=f"g{n // 3}") for n in range(60)]
    for number in (7, 20, 33):
        rows[number]["image"] = rows[50]["image"]
    path, out = write_jsonl(tmp_path / "rows.jsonl", rows), tmp_path / "out"
    run(PROGRAM, path, "--out", out, "--folds", 3, code=0)
    tested, facts = list[str](), json.loads((out / "splits.json").read_text("utf-8"))["folds"]
    for number in (1, 2, 3):
        inside, outside = (read_jsonl(out / f"fold-{number}/{part}.jsonl") for part in ("internal", "train"))
        groups = [{row["group"] for row in part} for part in (inside, outside)]
        assert not groups[0] & groups[1] and len(groups[0]) in (6, 7)
        shared = {row["image"] for row in inside} & {row["image"] for row in outside}
        assert not shared and len(inside) + len(outside) + facts[number - 1]["leaks"] == 60
        tested += [row["id"] for row in inside]
        assert facts[number - 1]["sha256"]["train"] == jsonl.sha256(out / f"fold-{number}/train.jsonl")
    assert sorted(tested) == sorted(row["id"] for row in rows) and sum(fold["leaks"] for fold in facts) > 0
    assert_one_line_error(run(PROGRAM, path, "--out", out, "--folds", 11), "20 questions (groups) make no 11 folds")
    assert_one_line_error(run(PROGRAM, path, "--out", out, "--folds", 3, "--internal", 5), "leave --external")


def test_mistakes_in_options(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [human_row(n) for n in range(40)])
    assert_one_line_error(run(PROGRAM, path, "--out", tmp_path / "o", "--external", "gamma"), "'gamma'", "alpha, beta")
    single_row = write_jsonl(tmp_path / "one.jsonl", [human_row(0)])
    assert_one_line_error(run(PROGRAM, single_row, "--out", tmp_path / "o"), "it has 1 questions")
    source = write_jsonl(tmp_path / "train.jsonl", [human_row(n, question="Q?", reference="r") for n in range(40)])
    assert_one_line_error(run(PROGRAM, source, "--out", tmp_path), "train.jsonl is among the rows that are read")
    assert_one_line_error(run(PROGRAM, source, "--out", tmp_path / "o"), "rows share an image, or question and")
    for number, link in enumerate((Path.hardlink_to, Path.symlink_to)):
        (linked := tmp_path / f"linked{number}").mkdir()
        link(linked / "train.jsonl", path)
        assert_one_line_error(run(PROGRAM, path, "--out", linked), "train.jsonl is among the rows that are read")
        (both := tmp_path / f"both{number}").mkdir()
        (both / "train.jsonl").touch()
        link(both / "internal.jsonl", both / "train.jsonl")
        assert_one_line_error(run(PROGRAM, path, "--out", both), "is another name of what is written")


def test_real_files(shared: Path, tmp_path: Path) -> None:
    """The counts of rows and the splits that figures are compared on."""
    folder = shared / "data/human_scored"
    expected = {"llmeval2": (6919, 700, 399), "alignbench_zh": (328, 42, None), "topical_chat": (306, 54, None)}
    for name, counts in expected.items():
        external = ["--external", "GPT4"] if name == "llmeval2" else []
        run(PROGRAM, folder / f"{name}.jsonl", "--out", tmp_path / name, *external, code=0)
        for part, count in zip(("train", "internal", "external"), counts, strict=True):
            path = tmp_path / name / f"{part}.jsonl"
            assert (len(read_jsonl(path)) if path.exists() else None) == count, (name, part)
    loaded = human_scored.load(folder / "llmeval2.jsonl")
    for raw, response in zip(loaded.raw, loaded.responses, strict=True):
        assert response.human.score == pytest.approx(raw["score_1_10"], abs=1e-3)
        assert response.columns["gpt4_score_1_10"] == raw["gpt4_score_1_10"]


OWN = [*("--map", "Prompt=question", "--map", "answer=response", "--map", "gold=reference"), *("--scale", "1:5")]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_rows_of_ones_own_are_read_by_their_own_columns(tmp_path: Path, suffix: str) -> None:
    """What the columns' names and values tell is the same as what options say, and is said in a line a column."""
    questions = [f"Which is {number // 2}?" for number in range(60)]
    answers, stars = [f"{number}." for number in range(60)], [1 + number % 5 for number in range(60)]
    rows = rows_of(Prompt=questions, answer=answers, gold="the other", stars=stars)
    path = (write_jsonl if suffix == "jsonl" else write_csv)(tmp_path / f"mine.{suffix}", rows)
    found = run(PROGRAM, path, "--out", tmp_path / "found", code=0)
    line = f"{path}: taken as human_score: stars on 1..5 (change with --map stars=FIELD, --scale LOW:HIGH)\n"
    assert found.stderr.count(": taken as ") == 4 and line in found.stderr
    run(PROGRAM, path, *OWN, "--map", "stars=human_score", "--out", tmp_path / "o", code=0)
    train = read_jsonl(tmp_path / "o/train.jsonl")
    assert train == read_jsonl(tmp_path / "found/train.jsonl")
    read = human_scored.load(tmp_path / "o/train.jsonl").responses
    for response in read:
        assert response.human.score == to_ten(1 + (int(response.id) - 1) % 5, 1, 5)
    assert len({row["group"] for row in train}) == len(train) / 2 and {row["lang"] for row in train} == {"en"}

    (tmp_path / "judge.jsonl").write_text('{"text": "{\\"Rating\\": 7, \\"Reason\\": \\"x\\"}"}\n')
    words = ("critic", "judge", path, "--judge", tmp_path / "judge.jsonl", "--score", "argmax")
    out = tmp_path / "judged.jsonl"
    judged = run(*words, "--lang", "zh", "--out", out)
    assert judged.returncode == 0 and read_jsonl(out)[0]["sample"]["conversation"]["lang"] == "zh", judged.stderr
    theirs = [line["sample"]["human"]["score"] for line in read_jsonl(out)]
    assert sorted(theirs) == sorted([1.0, 3.25, 5.5, 7.75, 10.0] * 12), "what they gave is audited beside the judge's"
