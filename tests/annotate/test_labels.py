"""Who labels what; labels as rows that training and the audit read; bad input; what labels say about raters."""

import json
import re
import socket
import sqlite3
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import annotating
import pandas as pd
import pytest
from annotating import by_rater, exported, fields, label, page_of, planned, row, rows_file, send, taken
from conftest import assert_one_line_error, read_csv, read_jsonl, run, write_jsonl, write_xlsx
from hypothesis import given
from hypothesis import strategies as st
from lxml.html import document_fromstring

from critic import human_scored, tables
from critic.records import build_verdict_id
from critic.tables import write_csv
from eval_agreement.annotate.people import owner_page
from eval_agreement.annotate.plan import plan
from eval_agreement.annotate.store import RaterVerdict, Store
from eval_agreement.reading.loaders import find_kind
from eval_agreement.reading.tables import Source


def test_ratings_come_back_as_human_scored_rows(tmp_path: Path) -> None:
    store = planned(tmp_path, "--raters", 2, "--overlap", 1, "--repeat", 0.25, rows=rows_file(tmp_path, 40))
    by_rater(store, lambda rater, name, values: "8" if rater == "rater-1" else "5")
    path = exported(store)
    loaded = human_scored.load(path)
    assert len(loaded.rows) == 40 and not loaded.left_out
    assert all(line.human_score == 6.5 and line.annotators == {"rater-1": 8, "rater-2": 5} for line in loaded.rows)
    assert {line.system for line in loaded.rows} == {"alpha", "beta"}
    run("data/human_scores.py", path, "--out", tmp_path / "data", code=0)


def test_scale_checklist_and_criteria_come_back_in_their_columns(tmp_path: Path) -> None:
    rows = rows_file(tmp_path, criteria_scores={"clarity": 7})  # on an older scale, 1..10
    five = planned(tmp_path / "five", "--scheme", "scale_5", rows=rows)
    by_rater(five, lambda rater, name, values: values[-1])
    (first, *_) = human_scored.load(exported(five)).responses
    assert first.human.score == 10.0
    lists = planned(tmp_path / "lists", "--scheme", "checklist", "--raters", 3, "--overlap", 1, rows=rows)
    by_rater(lists, lambda rater, name, values: "yes" if "1" in name else "cannot say" if "1" in rater else "no")
    (first, *_) = human_scored.load(exported(lists)).responses
    assert first.human.answers == [True, False] and first.human.score == 5.5
    named = planned(tmp_path / "named", "--scheme", "criteria", rows=rows)
    by_rater(named, lambda rater, name, values: "10" if "clarity" in name else "1")
    (first, *_) = human_scored.load(exported(named)).responses
    assert first.human.criteria == {"clarity": 10.0} and first.human.score == 1.0


def test_who_cannot_say_gives_no_score(tmp_path: Path) -> None:
    """Of each row's two items: a rater alone says nothing, another says something, they are of two minds, or agree."""
    said = [("cannot say", "cannot say", "cannot say"), ("cannot say", "yes", "no"), ("yes", "no", "no"), ("yes",) * 3]
    rows = rows_file(tmp_path, 4)
    store = planned(tmp_path, "--scheme", "checklist", "--raters", 2, "--overlap", 1, rows=rows)
    for rater in ("rater-1", "rater-2"):
        for opened in store.tasks(rater):
            mine, *theirs = said[int(opened.item.id[-1])]
            answers = [mine, mine] if rater == "rater-1" else theirs
            choices = dict(zip([ask.key for ask in opened.item.asks], answers, strict=True))
            store.label(rater, opened.task, 0, RaterVerdict(choices=choices))
    columns = ("human_score", "checklist_answers", "checklist_votes", "annotators")
    assert {line["id"]: tuple(line[column] for column in columns) for line in read_jsonl(exported(store))} == {
        "row-1": (0.5, [True, False], [[1, 0], [0, 1]], {"rater-2": 0.5}),
        "row-2": (0.5, [None, None], [[1, 1], [1, 1]], {"rater-1": 1.0, "rater-2": 0.0}),
        "row-3": (1.0, [True, True], [[2, 0], [2, 0]], {"rater-1": 1.0, "rater-2": 1.0}),
    }
    loaded = human_scored.load(store.path.with_name("labels.jsonl"))
    assert len(loaded.rows) == 3 and not loaded.left_out


def test_preferences_come_back_as_the_audits_table(tmp_path: Path) -> None:
    store = planned(tmp_path, "--scheme", "pairwise", "--raters", 2, "--overlap", 1, rows=rows_file(tmp_path, 60))
    by_rater(store, lambda rater, name, values: values[0])
    path = exported(store)
    lines = read_jsonl(path)
    assert {line["preference"] for line in lines} == {"a", "b"} and len(lines) == 60
    judge = [{"id": line["id"], "preference": line["preference"]} for line in lines if line["rater"] == "rater-1"]
    words = ("--judge", f"j={write_jsonl(tmp_path / 'j.jsonl', judge)}", "--out", tmp_path / "a")
    run("critic", "audit", "--human", path, *words, code=0)
    assert json.loads((tmp_path / "a/summary.json").read_text())["labels"]["raters"] == 2


@pytest.mark.parametrize("scheme", ["direct", "pairwise_conversation", "against"])
def test_conversations_come_back_where_they_are_read(tmp_path: Path, scheme: str) -> None:
    talks, more = annotating.replies(tmp_path / "talks.jsonl", "ours", 6), ["--scheme", scheme]
    kind, protocol = ("score", "direct") if scheme == "direct" else ("preference", "pairwise")
    if scheme == "against":
        other = annotating.replies(tmp_path / "other.jsonl", "theirs", 6)
        more = ["--scheme", "pairwise_conversation", "--against", str(other)]
    store = planned(tmp_path, *more, rows=talks)
    by_rater(store, lambda rater, name, values: values[-1] if "whole" in name else values[0])
    path = exported(store)
    lines = read_jsonl(path)
    talk, opponent = read_jsonl(talks)[0]["conversation"]["id"], "theirs" if scheme == "against" else None
    expected = {build_verdict_id(talk, "own", protocol, opponent, turn) for turn in (1, 2, 3, None)}
    assert {line["id"] for line in lines if line["id"].startswith(f"{talk}/")} == expected
    assert find_kind(Source(path)) == kind and all(line[kind] is not None for line in lines)
    assert {line["turn"] for line in lines} == {"1", "2", "3", "whole"}


def test_people_say_which_of_two_judgments_is_more_logical(tmp_path: Path) -> None:
    """Row 18: one file holds the standard judgments and those of the ablation; 9 of 12 of the standard ones win."""
    lines = annotating.judgments(tmp_path / "judged.jsonl")
    store = planned(tmp_path, "--scheme", "judgments", rows=lines)
    page, count = page_of(store), 0
    while (form := fields(page, "rater-1")).hidden:
        side = re.search(rf"Judgment ([AB])\s+{4 if count % 4 == 3 else 7}\. As for", form.text)[1]
        assert "Reply" in form.text and form.choices == {"choice overall": ["A", "B"]}
        assert label(page, "rater-1", form, lambda *_, side=side: side).status_code == 200
        count += 1
    done = run("critic", "annotate", "--db", store.path, "--export", tmp_path / "labels.jsonl", code=0)
    assert Counter(line["preference"] for line in read_jsonl(tmp_path / "labels.jsonl")) == {"a": 9, "b": 3}
    assert count == 12
    assert "Judgments (ConvBench I.2)" in done.stdout
    assert f"{annotating.SECRET}, standard rather than {annotating.SECRET}, no_focus  12  75.0 %" in done.stdout
    words = ("critic", "annotate", lines, "--db", tmp_path / "x.sqlite", "--scheme", "judgments")
    only = write_jsonl(tmp_path / "only.jsonl", [line for line in read_jsonl(lines) if line["score"] == 7])
    assert_one_line_error(run(*words[:2], only, *words[3:]), "nothing to label by the scheme judgments")


def test_confirmations_come_back_as_verdicts(tmp_path: Path) -> None:
    store = planned(tmp_path, "--scheme", "confirm")
    by_rater(store, lambda rater, name, values: "no")
    path = exported(store)
    assert find_kind(Source(path)) == "yes or no" and {line["verdict"] for line in read_jsonl(path)} == {"no"}


def test_labels_are_what_was_first_said_and_not_of_broken_items(tmp_path: Path) -> None:
    store = planned(tmp_path, "--repeat", 0.5)
    page, count = page_of(store), 0
    while (form := fields(page, "rater-1")).hidden:
        again = int(form.hidden["task"])
        ((role,),) = store._rows("SELECT role FROM tasks WHERE id = ?", again)
        broken = {"broken": "1"} if count == 0 and role == "item" else {}
        label(page, "rater-1", form, lambda name, values, role=role: "9" if role == "item" else "2", **broken)
        count += 1
    rows = read_jsonl(exported(store))
    assert count == 18 and len(rows) == 11 and {line["human_score"] for line in rows} == {9.0}
    lines = read_csv(exported(store, "all.csv"))
    assert len(lines) == 18 and {line["role"] for line in lines} == {"item", "repeat"}
    assert {line["first"] for line in lines} == {"a", "b"}


def test_hidden_checks_and_repeats_are_seen_by_the_owner(tmp_path: Path) -> None:
    checks = write_jsonl(tmp_path / "checks.jsonl", [row(500 + n, known=3) for n in range(4)])
    store = planned(
        tmp_path, "--raters", 3, "--overlap", 1, "--repeat", 0.2, "--checks", checks, rows=rows_file(tmp_path, 40)
    )
    page = page_of(store)
    for rater in store.counts():
        while (form := fields(page, rater)).hidden:
            item = store.next(rater).item
            answer = "3" if "known" in item.row else str(1 + (len(item.id) + int(item.id[-1])) % 9)
            value = "7" if rater == "rater-3" else answer
            label(page, rater, form, lambda name, values, value=value: value)
        assert store.counts()[rater] == (52, 52)
    html = owner_page(store)
    assert html.count("4 of 4") == 2 and "0 of 4" in html and "8 of 8" in html and "Krippendorff" in html
    assert len(read_jsonl(exported(store))) == 40, "checks are no labels"
    # Furthest from the 7 of rater-3 are those whom the others gave 1, and no check is to be discussed.
    listed = document_fromstring(html).xpath("//section[@id='apart']//tr[td]")
    assert len(listed) == 33 and "rater-1 1, rater-2 1, rater-3 7" in listed[0].text_content()
    link = listed[0].xpath(".//a")[0]
    assert page.get(f"/owner{link.get('href')[:20]}").status_code == 403
    shown = page.get(f"/owner{link.get('href')}")
    rows = {row["id"]: row for row in read_jsonl(tmp_path / "rows.jsonl")}
    assert rows[link.text]["response"] in shown.text
    assert {cell.text for cell in document_fromstring(shown.text).xpath("//tbody//th")} == set(store.counts())


def checks_of(store: Store) -> dict[str, tuple[int | None, int | None]]:
    """Return how many checks each rater answered right, and how many at all."""
    return {line["name"]: (line["correct"], line["checks"]) for line in store.query("raters")}


def test_the_owner_sees_how_long_it_takes_and_what_is_broken(tmp_path: Path) -> None:
    """Medians of an even and an odd number of labels; who has not begun is as fast as the others, here 15 s."""
    store = planned(tmp_path, "--raters", 3, "--overlap", 1)
    for rater, times in (("rater-1", [5, 90, 11, 9]), ("rater-2", [20, 300, 2])):
        for task, seconds in zip(store.tasks(rater), times, strict=False):
            said = {"broken": True} if seconds == 300 else {"choices": {"overall": "7"}}
            store.label(rater, task.task, 0, RaterVerdict(seconds=seconds, **said))  # type: ignore[arg-type]
    lines = [(line["done"], line["skipped"], line["seconds"], line["left"]) for line in store.query("raters")]
    assert lines == [(4, 0, 10, 80), (3, 1, 20, 180), (0, 0, None, 180)]
    html = " ".join(document_fromstring(owner_page(store)).text_content().split())
    assert (
        "alpha (ordinal): not yet; people gave every item the same score. 7 of 36 labels are given; the others" in html
    )
    assert "the others take about 7 min of raters' time, and 3 min until the last rater is done" in html
    assert "Items that a rater called broken." in html and "rater-2 broken" in html and "To discuss" not in html


def test_a_pair_with_a_known_answer_is_known_whichever_stands_first(tmp_path: Path) -> None:
    good, told = {"response": "good", "known": "A"}, {"response": "bad"}
    checks = [row(500 + n, **(good if n % 4 in (0, 3) else told)) for n in range(8)]
    known = write_jsonl(tmp_path / "checks.jsonl", checks)
    store = planned(tmp_path, "--scheme", "pairwise", "--checks", known)
    page = page_of(store)
    while (form := fields(page, "rater-1")).hidden:
        first = form.text.find("good") < form.text.find("bad")
        label(page, "rater-1", form, lambda name, values, first=first: "A" if first else "B")
    known_answers = [stored.known for stored in store.labels() if stored.known]
    assert {"overall": "A"} in known_answers and {"overall": "B"} in known_answers
    assert checks_of(store) == {"rater-1": (4, 4)}
    words = ("--db", store.path, "--scheme", "pairwise", "--export", tmp_path / "no.jsonl")
    assert_one_line_error(run("critic", "annotate", tmp_path / "rows.jsonl", *words), "checks", "another --db")


@pytest.mark.parametrize("form", ["csv", "xlsx"])
def test_a_sheet_goes_out_and_comes_back(tmp_path: Path, form: str) -> None:
    """Row 3: AlignMMBench's shuffled sheet (A.6.2)."""
    store = planned(tmp_path, "--scheme", "pairwise", "--raters", 2, "--overlap", 1)
    send(store, form, tmp_path / "sheets")
    for rater in ("rater-1", "rater-2"):
        path = tmp_path / f"sheets/{rater}.{form}"
        _fill(path, lambda cells: "A" if cells["answer A"] < cells["answer B"] else "B")
    assert "alpha" not in (tmp_path / "sheets/rater-1.csv").read_text() if form == "csv" else True
    for expected in ("12 labels", "0 labels, 12 more"):
        assert expected in taken(store, tmp_path / "sheets")
    _fill(tmp_path / f"sheets/rater-1.{form}", lambda cells: "B" if cells["answer A"] < cells["answer B"] else "A")
    counts = "0 labels, 12 more were there already; 6 of these differ, and the earlier label stays"
    assert counts in taken(store, tmp_path / "sheets")
    answers = {line["id"]: line["response"] for line in read_jsonl(tmp_path / "rows.jsonl")}
    for stored in store.labels():
        texts = [answers[key] for key in stored.item.id.split("+")]
        assert texts["AB".index(stored.verdict.choices["overall"])] == min(texts)
    _fill(tmp_path / f"sheets/rater-1.{form}", lambda cells: "C")
    fresh = planned(
        tmp_path / "fresh", "--scheme", "pairwise", "--raters", 2, "--overlap", 1, rows=tmp_path / "rows.jsonl"
    )
    assert_one_line_error(run("critic", "annotate", "--db", fresh.path, "--import", tmp_path / "sheets"), "'C'", "tie")


def test_a_sheet_has_the_judges_rubric_in_the_items_language_and_formulas_as_text(tmp_path: Path) -> None:
    rows = write_jsonl(
        tmp_path / "rows.jsonl", [row(n, lang=lang, response="=A1") for n, lang in ((1, "en"), (2, "zh"))]
    )
    store = planned(tmp_path, rows=rows)
    send(store, "csv", tmp_path)
    lines = [line for _, line in tables.rows(tmp_path / "rater-1.csv") if line["task"]]
    english, chinese = sorted(line["what counts"] for line in lines)
    assert [line["answer"] for line in lines] == ["'=A1"] * 2
    assert "9–10: does everything that was asked" in english and "Only the number decides" in english
    assert "9–10: " in chinese and "只看数目" in chinese


@pytest.mark.parametrize("form", ["csv", "xlsx"])
def test_questions_come_back_from_a_sheet_however_they_are_written(tmp_path: Path, form: str) -> None:
    asked = {"checklist": [" Is it 3 ? \r\nAnd so\n", "Is it 4?"], "criteria": {"clarity": "Is it\r\n easy? "}}
    for scheme in ("checklist", "criteria"):
        store = planned(tmp_path / scheme, "--scheme", scheme, rows=rows_file(tmp_path, 4, **asked))
        send(store, form, tmp_path / scheme)
        _fill(tmp_path / scheme / f"rater-1.{form}", lambda _: "7" if scheme == "criteria" else "no")  # noqa: B023
        if form == "csv":  # as a program may write a heading again
            path = tmp_path / scheme / "rater-1.csv"
            path.write_text(path.read_text("utf-8").replace("Is it", "Is  it", 1), "utf-8")
        assert "4 labels" in taken(store, tmp_path / scheme)
        assert all(len(stored.verdict.choices) == 2 for stored in store.labels())


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
def test_an_empty_answer_is_labelled_as_it_is_judged(tmp_path: Path, name: str) -> None:
    rows = [{"id": key, "question": "q", "response": text, "reference": "r"} for key, text in (("a", ""), ("b", "x"))]
    write_csv(tmp_path / name, rows) if name.endswith(".csv") else write_jsonl(tmp_path / name, rows)
    items = planned(tmp_path, rows=tmp_path / name).items().values()
    assert {item.id: item.parts[-1].text for item in items} == {"a": "", "b": "x"}


def test_a_broken_item_comes_back_from_a_sheet_with_or_without_choices(tmp_path: Path) -> None:
    store = planned(tmp_path, "--scheme", "checklist", rows=rows_file(tmp_path, 6))
    send(store, "csv", tmp_path / "sheets")
    path = tmp_path / "sheets/rater-1.csv"
    rows = read_csv(path)
    first, second = (name for name in rows[0] if name.startswith("item="))
    chosen, empty = {first: "yes", second: "no"}, {"broken": "No", "skip, because": "0"}
    filled = [{"broken": "x"}, {"broken": "x", first: "yes"}, chosen, chosen | empty, empty]
    write_csv(path, [rows[0], *(row | cells for row, cells in zip(rows[1:], filled, strict=False))])
    assert "4 labels" in taken(store, path)
    answers = [(label.verdict.broken, list(label.verdict.choices.values())) for label in store.labels()]
    assert answers == [(True, []), (True, []), (False, ["yes", "no"]), (False, ["yes", "no"])]


def _fill(path: Path, choose: Any) -> None:
    """Answer the questions of a sheet, and save it as a spreadsheet program does."""
    rows = [row for _, row in tables.rows(path)]
    for cells in rows[1:]:
        cells |= {name: choose(cells) for name in cells if name.startswith(("overall", "item=", "criterion="))}
    if path.suffix == ".csv":
        write_csv(path, rows)
    else:
        write_xlsx(path, [{name: tables.encode_xstring(str(cell or "")) for name, cell in row.items()} for row in rows])


@pytest.mark.parametrize(("scheme", "choice"), [("pointwise", "7"), ("pairwise", "A")])
def test_label_studio_and_potato_go_out_and_come_back(tmp_path: Path, scheme: str, choice: str) -> None:
    """Their exports as they write them; that their own packages take what is written was tried with both."""
    store = planned(tmp_path, "--scheme", scheme)
    for form in ("label-studio", "potato"):
        send(store, form, tmp_path / form)
    tasks = json.loads((tmp_path / "label-studio/tasks.json").read_text("utf-8"))
    assert len(tasks) == len(store.items()) and "row-" not in json.dumps(tasks) and "alpha" not in json.dumps(tasks)
    chosen = {"from_name": "choice_1", "to_name": "answer", "type": "choices", "value": {"choices": [choice]}}
    why = {"from_name": "reason", "to_name": "answer", "type": "textarea", "value": {"text": ["clear"]}}
    about = {"result": [chosen, why], "lead_time": 3.5, "was_cancelled": False}
    done = [{**task, "annotations": [{"completed_by": who, **about} for who in (1, 2)]} for task in tasks]
    (tmp_path / "export.json").write_text(json.dumps(done))
    items = [line["id"] for line in read_jsonl(tmp_path / "potato/items.jsonl")]
    assert sorted(items, key=int) == [str(number) for number in store.items()]
    said = [[{"schema": "choice_1", "name": choice}, choice], [{"schema": "reason", "name": "text_box"}, "why not"]]
    given = dict.fromkeys(items, said)
    (folder := tmp_path / "annotation_output/ann").mkdir(parents=True)
    (folder / "user_state.json").write_text(json.dumps({"user_id": "ann", "instance_id_to_label_to_value": given}))
    assert f"{2 * len(items)} labels" in taken(store, tmp_path / "export.json")
    assert f"{len(items)} labels" in taken(store, tmp_path / "annotation_output")
    labels = store.labels()
    assert {(label.rater, label.verdict.seconds, label.verdict.reason) for label in labels} == {
        *(("1", 3.5, "clear"), ("2", 3.5, "clear"), ("ann", None, "why not")),
    }
    answers = {(label.number, label.verdict.choices["overall"]) for label in labels}
    assert len(answers) == len(items), "all see the sides of an item alike"
    assert {answer for _, answer in answers} == ({"A", "B"} if scheme == "pairwise" else {"7"})


@pytest.mark.parametrize("form", ["csv", "tsv", "json"])
def test_label_studios_flat_exports_come_back(tmp_path: Path, form: str) -> None:
    """CSV, TSV and JSON-MIN: a row an annotation, as Label Studio's converter writes it; without a choice none."""
    store = planned(tmp_path, "--scheme", "pairwise")
    send(store, "label-studio", tmp_path / "out")
    rows = []
    for number, task in enumerate(json.loads((tmp_path / "out/tasks.json").read_text("utf-8"))):
        annotation = {"annotation_id": number, "annotator": 3, "id": number, "lead_time": 12.5, "reason": "clear"}
        rows.append(
            {**task["data"], **annotation, **({"choice_1": "A"} if number else {"item": "999", "choice_1": ""})}
        )
    path = tmp_path / f"export.{form}"
    if form == "json":
        path.write_text(json.dumps(rows))
    else:
        pd.DataFrame(rows).to_csv(path, sep="," if form == "csv" else "\t", index=False)
    assert f"{len(rows) - 1} labels" in taken(store, path)
    labels = list(store.labels())
    assert {(label.rater, label.verdict.seconds, label.verdict.reason) for label in labels} == {("3", 12.5, "clear")}
    assert {label.verdict.choices["overall"] for label in labels} == {"A", "B"}, "sides are exchanged item by item"


def test_what_a_workbook_can_hold_comes_back_and_no_answer_is_cut(tmp_path: Path) -> None:
    """Line breaks, escapes and all that XML allows; a torn sheet is one line."""
    openpyxl: Any = pytest.importorskip("openpyxl")
    answer = "first\r\nsecond _x000D_ third\t\U0001f34e\ufffd"
    strange = "".join(map(chr, [*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF]))
    store = planned(tmp_path, rows=rows_file(tmp_path, 40, response=strange + answer))
    send(store, "xlsx", tmp_path / "out")
    path = tmp_path / "out/rater-1.xlsx"
    assert {row["answer"] for _, row in tables.rows(path) if row["task"]} == {answer}
    stored = {cell.value for line in openpyxl.load_workbook(path).active.iter_rows() for cell in line}
    assert "first_x000D_\nsecond _x005F_x000D_ third\t\U0001f34e\ufffd" in stored
    _fill(path, lambda cells: "7")
    (torn := tmp_path / "torn.xlsx").write_bytes(path.read_bytes()[:1000])
    assert_one_line_error(run("critic", "annotate", "--db", store.path, "--import", torn), "torn.xlsx", "not a zip")
    assert not store.labels() and "40 labels" in taken(store, path)
    long = planned(tmp_path / "long", rows=rows_file(tmp_path, 3, response="x" * 32_767))
    words = ("critic", "annotate", "--db", long.path, "--export", tmp_path / "long")
    assert_one_line_error(run(*words, "--to", "xlsx"), "answer of task", "has 32767 characters", "--to csv")
    assert not (tmp_path / "long/rater-1.xlsx").exists() and run(*words, "--to", "csv").returncode == 0


def test_known_answers_that_come_back_from_elsewhere_are_checks(tmp_path: Path) -> None:
    checks = write_jsonl(tmp_path / "checks.jsonl", [row(500, known=3)])
    store = planned(tmp_path, "--checks", checks, rows=rows_file(tmp_path, 4))
    chosen = [{"type": "choices", "from_name": "choice_1", "value": {"choices": ["9"]}}]
    ann = [{"completed_by": {"email": "ann@x.org"}, "result": chosen}]
    done = [{"data": {"item": str(number)}, "annotations": ann} for number in store.items()]
    (tmp_path / "export.json").write_text(json.dumps(done))
    for expected in ("5 labels", "0 labels, 5 more"):
        assert expected in taken(store, tmp_path / "export.json")
    assert {stored.item.id for stored in store.labels() if stored.role == "check"} == {"row-500"}
    assert checks_of(store) == {"ann@x.org": (0, 1), "rater-1": (None, None)}
    assert {line["id"] for line in read_jsonl(exported(store))} == {f"row-{number}" for number in range(4)}


def test_pictures_go_along_under_names_that_say_nothing(tmp_path: Path) -> None:
    """Inside Label Studio's tasks; as files for Potato, which takes no other, and beside a sheet."""
    store = planned(tmp_path, rows=annotating.source(tmp_path, "pointwise"))
    for form in ("label-studio", "potato", "csv"):
        send(store, form, tmp_path / form)
    tasks = json.loads((tmp_path / "label-studio/tasks.json").read_text("utf-8"))
    assert all(task["data"]["image_1"].startswith("data:image/png;base64,") for task in tasks)
    for line in (json.loads(text) for text in (tmp_path / "potato/items.jsonl").open()):
        assert f'<img src="/media/{line["id"]}-1.png"' in line["text"]
        assert (tmp_path / f"potato/images/{line['id']}-1.png").read_bytes().startswith(b"\x89PNG")
    assert "media_directory: images" in (tmp_path / "potato/config.yaml").read_text()
    sheet = read_csv(tmp_path / "csv/rater-1.csv")[1:]
    assert len(sheet) == 8 and all((tmp_path / "csv" / cells["images"]).is_file() for cells in sheet)
    for path in (path for form in ("label-studio", "potato", "csv") for path in (tmp_path / form).rglob("*")):
        assert annotating.SECRET not in path.name and not (
            path.is_file() and annotating.SECRET.encode() in path.read_bytes()
        ), path


def test_mistakes_end_in_one_line(tmp_path: Path) -> None:
    rows, db = rows_file(tmp_path), tmp_path / "l.sqlite"

    def fails(*words: object, parts: tuple[str, ...]) -> None:
        assert_one_line_error(run("critic", "annotate", *words), *parts)

    fails("--db", db, parts=("no such database", "give rows"))
    fails(tmp_path / "none.jsonl", "--db", db, parts=("no such file",))
    fails(rows, "--db", db, "--checks", tmp_path / "none.jsonl", parts=("none.jsonl", "no such file"))
    fails(rows, "--db", db, "--scheme", "stars", parts=("stars", "pointwise"))
    fails(rows, "--db", db, "--invite", "a", "--invite", "a", parts=("--invite",))
    fails(rows, "--db", db, "--invite", "a", "--raters", 2, parts=("either",))
    fails(rows, "--db", db, "--scheme", "direct", "--against", rows, parts=("--against", "pairwise_conversation"))
    fails(rows, "--db", db, "--scheme", "direct", parts=("rows.jsonl:1",))
    fails(rows, "--db", db, "--to", "word", "--export", db, parts=("label-studio",))
    fails(rows, "--db", db, "--host", "0.0.0.0", parts=("invite",))
    assert not db.exists() or Store.find(db) is not None
    fails("--db", rows, "--export", tmp_path / "x.jsonl", parts=("no database",))
    other = tmp_path / "other.sqlite"
    sqlite3.connect(other).execute("CREATE TABLE mine (x)").connection.commit()
    fails(rows, "--db", other, parts=("no database of labels",))
    for wrong, parts in (
        ({"id": "a", "question": "q"}, ("response",)),
        ({"id": "a", "question": 3, "response": "r"}, ("question",)),
        ({"id": 5, "question": "q", "response": "r"}, ("$.id",)),
        ({"id": "a", "question": "q", "response": "r", "image": "no.png"}, ("no.png", "--data-root")),
        ({"id": "a", "question": "q", "response": "r", "image": "../../etc/passwd"}, ("passwd",)),
        ({"id": "a", "question": "q", "response": "r", "image": "no\0.png"}, (r"no image 'no\x00.png'", "--data-root")),
    ):
        fails(write_jsonl(tmp_path / "wrong.jsonl", [wrong]), "--db", tmp_path / "w.sqlite", parts=parts)
    twice = write_jsonl(tmp_path / "twice.jsonl", [row(1), row(1)])
    fails(twice, "--db", tmp_path / "w.sqlite", parts=("duplicate id 'row-1'",))
    store = planned(tmp_path)
    fails(rows, "--db", store.path, "--raters", 2, "--export", tmp_path / "x.jsonl", parts=("raters", "another --db"))
    fails("--db", store.path, "--export", tmp_path / "x.jsonl", parts=("nothing is labelled",))
    fails("--db", store.path, "--export", tmp_path / "x.txt", parts=(".jsonl",))
    fails("--db", store.path, "--import", tmp_path / "none.json", parts=("none.json",))
    fails("--db", store.path, "--scheme", "pairwise", parts=("--scheme",))
    known = write_jsonl(tmp_path / "known.jsonl", [row(500, known=11)])
    fails(rows, "--db", tmp_path / "k.sqlite", "--checks", known, parts=("known", "11"))
    for content, part in (
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('[{"item": "\\ud800"}]', "not JSON"),
        ("[1]", "not as"),
        ('[{"data": {"item": "1"}}]', "export as JSON from Label Studio: KeyError: 'annotations'"),
        ('[{"choice_1": "7", "annotator": 1}]', "export as JSON from Label Studio: KeyError: 'item'"),
        ('[{"item": "999", "choice_1": "7"}]', "'999'"),
        ('[{"item": "1", "choice_1": "11"}]', "'11'"),
        ('[{"item": "1", "choice_1": "7", "lead_time": "long"}]', "lead_time 'long' is not a number"),
        ('[{"item": "1", "question": "Why?", "choice_1": "7"}]', "item '1': another question than here"),
        ('[{"annotations": [], "data": {}}]', "no label"),
    ):
        (tmp_path / "bad.json").write_text(content)
        fails("--db", store.path, "--import", tmp_path / "bad.json", parts=(part,))


def test_the_page_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = planned(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = run("critic", "annotate", "--db", store.path, "--port", taken.getsockname()[1])
    assert_one_line_error(busy, "cannot listen", "--port")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert_one_line_error(run("critic", "annotate", "--db", store.path), "[annotate]'")
    page_of(store)
    assert run("critic", "annotate", "--db", store.path, "--export", tmp_path / "l.csv").returncode == 0


def test_the_same_command_goes_on_and_invited_raters_have_links_that_nobody_guesses(tmp_path: Path) -> None:
    store = planned(tmp_path, "--invite", "ann", "--invite", "bo", "--overlap", 1)
    tokens = {name: token for token, name in store.raters().items()}
    assert set(tokens) == {"ann", "bo"} and all(len(token) > 20 for token in tokens.values())
    page = page_of(store)
    assert page.get("/", params={"rater": "ann"}).status_code == 403
    annotating.label_all(page, tokens["ann"])
    again = planned(tmp_path, "--invite", "ann", "--invite", "bo", "--overlap", 1)
    assert again.raters() == store.raters() and again.counts()["ann"] == (12, 12)


def test_nothing_is_planned_twice_when_planning_is_killed(tmp_path: Path) -> None:
    """What planning writes is one transaction: before it there is an empty database."""
    rows = rows_file(tmp_path)
    with sqlite3.connect(tmp_path / "labels.sqlite") as half:
        half.execute("PRAGMA journal_mode = WAL")
    assert (tmp_path / "labels.sqlite").stat().st_size
    for _ in range(2):
        assert planned(tmp_path, rows=rows).counts() == {"rater-1": (0, 12)}


EARLIER = """ALTER TABLE labels RENAME TO today; ALTER TABLE tasks ADD COLUMN wave INTEGER;
CREATE TABLE labels (id INTEGER PRIMARY KEY, task INTEGER, rater TEXT NOT NULL, once TEXT NOT NULL, at REAL, said BLOB);
INSERT INTO labels SELECT id, task, 'rater-1', id, at, said FROM today; CREATE INDEX by_rater ON labels (rater, id);
DROP TABLE today; PRAGMA user_version = 0;
ALTER TABLE items ADD COLUMN probability REAL; UPDATE items SET probability = 0.25"""
"""From today's tables to those of 2026-11-27, 03:21, and the column of 0.1.0."""


def test_a_database_of_an_earlier_version_is_upgraded_and_one_of_a_later_version_refused(tmp_path: Path) -> None:
    store = planned(tmp_path)
    label(page := page_of(store), "rater-1", fields(page, "rater-1"), reason="first")
    with sqlite3.connect(store.path) as database:
        database.executescript(EARLIER)
    page = page_of(planned(tmp_path))
    assert annotating.label_all(page, "rater-1") == 11
    assert [stored.verdict.reason for stored in store.labels()] == ["first", *[""] * 11]
    assert label(page, "rater-1", fields(page, "rater-1", task=store.labels()[0].task)).status_code == 200
    assert all('"label_probability":0.25' in row for row in exported(store).read_text("utf-8").splitlines())
    with sqlite3.connect(store.path) as database:
        database.execute("PRAGMA user_version = 2")
    words = ("critic", "annotate", "--db", store.path, "--export", tmp_path / "labels.csv")
    assert_one_line_error(run(*words), "later version", "another --db")


ITEMS = [f"item-{number}" for number in range(200)]


@given(
    count=st.integers(0, 60), raters=st.integers(1, 7), overlap=st.floats(0, 1), repeat=st.floats(0, 0.5),
    checks=st.integers(0, 4),
)  # fmt: skip
def test_shares_are_even_and_every_item_is_labelled(
    count: int, raters: int, overlap: float, repeat: float, checks: int
) -> None:
    names = [f"r{number}" for number in range(raters)]
    known = [f"check-{number}" for number in range(checks)]
    tasks = list(plan(ITEMS[:count], known, names, overlap, repeat))
    items = [task for task in tasks if task.role == "item"]
    share = Counter(task.rater for task in items)
    assert max((share[name] for name in names), default=0) - min(share[name] for name in names) <= 1
    times = Counter(task.item for task in items)
    shared = int(overlap * count + 0.5)
    assert sorted(times.values()) == sorted([raters] * shared + [1] * (count - shared))
    assert len({(task.rater, task.item, task.role) for task in tasks}) == len(tasks)
    assert Counter(task.rater for task in tasks if task.role == "check") == Counter(
        dict.fromkeys(names * bool(checks), checks)
    )
    place = {(task.rater, task.item): task for task in items}
    for again in (task for task in tasks if task.role == "repeat"):
        first = place[again.rater, again.item]
        assert first.place < 1 / 3 and again.place >= 2 / 3 and again.swapped != first.swapped
    for name in names:
        assert sum(task.role == "repeat" for task in tasks if task.rater == name) == int(repeat * share[name] + 0.5)
