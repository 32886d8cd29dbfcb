"""The page: blind, inert, and one label for whatever happens between a rater and the server; corrections, and their
history; VisIT-Bench's collection pages, one behind the other."""

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import annotating
import httpx
import pytest
from annotating import client_of, exported, fields, forked, label, page_of, planned
from conftest import ROOT, assert_one_line_error, read_csv, run, write_jsonl

from critic import benchmarks
from eval_agreement.annotate.schemes import SCHEMES
from eval_agreement.annotate.store import Store


@pytest.mark.parametrize("scheme", SCHEMES)
def test_nothing_says_who_answered_or_what_others_thought(tmp_path: Path, scheme: str) -> None:
    options = ["--scheme", scheme, "--raters", 2, "--overlap", 0.5, "--repeat", 0.2]
    options += ["--benchmark", "visitbench"] if scheme == "review" else []
    rows = annotating.source(tmp_path, scheme)
    store = planned(tmp_path, *options, rows=rows)
    page, seen = page_of(store, tmp_path), ""
    for rater in ("rater-1", "rater-2"):
        while True:
            reply = page.get("/", params={"rater": rater})
            seen += reply.text + str(reply.headers)
            if not (form := fields(page, rater)).hidden:
                break
            for tag, given in form.tags:
                if tag == "img":
                    picture = page.get(str(given["src"]))
                    assert picture.status_code == 200 and picture.headers["content-type"] == "image/png"
                    seen += str(picture.headers) + str(picture.url)
            reply = label(page, rater, form)
            assert reply.status_code == 200, reply.text
            seen += reply.text + str(reply.headers)
    assert annotating.SECRET not in seen and "9.25" not in seen
    assert len({stored.item.id for stored in store.labels()}) == len(store.items()) > 1


def test_answers_are_text_whatever_they_hold(tmp_path: Path) -> None:
    """What browsers take for markup reaches the page as the letters it is."""
    nasty = ["<script>x</script>", "<img src=x onerror=x>", "</div></form><form action=//x>", "{{ 7*7 }}", "&lt;"]
    nasty += ["\u202e<b>", "| <b>a</b> | b |\n|---|---|\n| <svg onload=x> | 2 |", "$<script>x</script>$", "<!--"]
    lines = [annotating.row(number, response=text) for number, text in enumerate([*nasty, "\x00"])]
    page = page_of(planned(tmp_path, rows=write_jsonl(tmp_path / "rows.jsonl", lines)))
    missing = set(nasty)
    while (form := fields(page, "rater-1")).hidden:
        assert "script-src 'self'" in page.get("/", params={"rater": "rater-1"}).headers["content-security-policy"]
        scripts = [given for tag, given in form.tags if tag == "script"]
        assert scripts == [{"src": "page.js", "defer": "defer"}]
        assert not [given for _, given in form.tags if any(name.startswith("on") for name in given)]
        assert {tag for tag, _ in form.tags}.isdisjoint({"b", "svg", "iframe", "object", "base"})
        assert len([tag for tag, _ in form.tags if tag == "form"]) == 1
        missing = {text for text in missing if " ".join(text.split()) not in " ".join(form.text.split())}
        label(page, "rater-1", form)
    assert not missing


def test_a_page_that_is_sent_twice_is_one_label_and_a_second_window_is_told(tmp_path: Path) -> None:
    store = planned(tmp_path)
    page = page_of(store)
    form, second = fields(page, "rater-1"), fields(page, "rater-1")
    assert form.hidden["task"] == second.hidden["task"]
    sent = [label(page, "rater-1", form, seconds=str(n)) for n in range(3)]
    assert [reply.status_code for reply in sent] == [200] * 3 and store.counts()["rater-1"][0] == 1
    # The back button's cache has the same page, too.
    stale = label(page, "rater-1", second, lambda name, values: values[-1])
    assert stale.status_code == 409 and f"task={form.hidden['task']}" in stale.json()["next"]
    shown = page.get(stale.json()["next"][1:]).text
    assert "another window" in shown and 'value="1" data-key="1" checked' in shown
    assert [stored.verdict.choices for stored in store.labels()] == [{"overall": "1"}]


def test_an_edit_counts_and_the_label_before_it_stays(tmp_path: Path) -> None:
    store = planned(tmp_path)
    page = page_of(store)
    tasks = []
    for _ in range(3):
        form = fields(page, "rater-1")
        tasks.append(form.hidden["task"])
        label(page, "rater-1", form, reason="at first")
    back = fields(page, "rater-1", task=tasks[1])
    assert label(page, "rater-1", back, lambda name, values: values[5], reason="on reflection").status_code == 200
    verdicts = {stored.number: stored.verdict for stored in store.labels()}
    assert len(verdicts) == 3 and sorted(said.reason for said in verdicts.values()).count("on reflection") == 1
    assert store.counts()["rater-1"][0] == 3
    history = store._rows("SELECT count(*) FROM labels WHERE task = ?", tasks[1])
    assert history == [(2,)]
    label_of = {task: store.opened(int(task)).label for task in tasks}
    assert store.last("rater-1") == int(tasks[1]) and store.last("rater-1", label_of[tasks[1]]) == int(tasks[2])
    assert store.last("rater-1", label_of[tasks[2]]) == int(tasks[0])


def test_the_sides_that_a_rater_saw_do_not_matter_to_the_label(tmp_path: Path) -> None:
    """Whoever prefers the longer answer says so of the same answer, wherever it stood."""
    rows = [annotating.row(n, response="a long answer, " * 5 if n % 2 else "short") for n in range(24)]
    store = planned(tmp_path, "--scheme", "pairwise", rows=write_jsonl(tmp_path / "rows.jsonl", rows))
    page, first = page_of(store), []
    while (form := fields(page, "rater-1")).hidden:
        long_first = form.text.index("a long") < form.text.index("short")
        first.append(long_first)
        label(page, "rater-1", form, lambda name, values, long_first=long_first: "A" if long_first else "B")
    assert True in first and False in first
    rows_by_id = {line["id"]: line["response"] for line in rows}
    for stored in store.labels():
        chosen = stored.item.id.split("+")["AB".index(stored.verdict.choices["overall"])]
        assert rows_by_id[chosen].startswith("a long")
    again = fields(page, "rater-1", task=store.last("rater-1"))
    shown = [given["value"] for _, given in again.tags if given.get("type") == "radio" and "checked" in given]
    assert shown == ["A" if first[-1] else "B"], "a label that is changed is shown as it was given"


def test_what_is_asked_follows_the_scheme(tmp_path: Path) -> None:
    def list_choices(scheme: str, rows: Path) -> dict[str, list[str]]:
        store = planned(tmp_path / scheme, "--scheme", scheme, rows=rows)
        return fields(page_of(store), "rater-1").choices

    rows = annotating.rows_file(tmp_path)
    assert list_choices("pointwise", rows) == {"choice overall": [str(n) for n in range(1, 11)]}
    assert list_choices("scale_5", rows) == {"choice overall": [str(n) for n in range(1, 6)]}
    assert list_choices("pairwise", rows) == {"choice overall": ["A", "B", "tie", "both bad"]}
    assert list_choices("checklist", rows) == {f"choice item={n}": ["yes", "no", "cannot say"] for n in (1, 2)}
    assert list(list_choices("criteria", rows)) == ["choice criterion=clarity", "choice overall"]
    talks = annotating.replies(tmp_path / "talks.jsonl", "m")
    assert list(list_choices("direct", talks)) == ["choice 1", "choice 2", "choice 3", "choice whole"]
    page = page_of(Store(tmp_path / "direct/labels.sqlite"))
    assert "标注" in fields(page, "rater-1", lang="zh").text
    page_text = fields(page, "rater-1").text
    assert page_text.index("The reference would get 10") < page_text.index("Reply 1")
    assert list_choices("pairwise_conversation", talks)["choice whole"] == ["A", "B", "tie", "both bad"]
    assert list_choices("pairwise_conversation_forced", talks)["choice whole"] == ["A", "B"], "row 23: forced choice"
    assert list_choices("pairwise_forced", rows) == {"choice overall": ["A", "B"]}
    assert list_choices("confirm", rows) == {"choice overall": ["yes", "no"]}


def test_bad_requests_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    store = planned(tmp_path, "--raters", 2, "--overlap", 0)
    page = page_of(store)
    form = fields(page, "rater-1")
    assert page.get("/", params={"rater": "nobody"}).status_code == 403
    assert page.get("/").status_code == 403 and page.get("/owner", params={"key": "guess"}).status_code == 403
    assert page.get("/", params={"rater": "rater-1"}, headers={"host": "evil.example"}).status_code == 400
    assert label(page, "rater-2", form).status_code == 404, "another rater's item"
    assert page.get("/", params={"rater": "rater-2", "task": form.hidden["task"]}).status_code == 404
    assert label(page, "rater-1", form, lambda name, values: "11").status_code == 422
    assert label(page, "rater-1", form, lambda name, values: "").status_code == 422
    assert page.post("/label", params={"rater": "rater-1"}, data={"task": "x" * 5}).status_code == 404
    assert page.post("/label", params={"rater": "rater-1"}, content=b"a" * 200_000).status_code == 413
    elsewhere = {"sec-fetch-site": "cross-site"}
    assert page.post("/label", params={"rater": "rater-1"}, data=form.hidden, headers=elsewhere).status_code == 403
    assert page.get("/image", params={"rater": "rater-1", "task": form.hidden["task"], "n": 0}).status_code == 404
    assert not list(store.labels())
    assert label(page, "rater-1", form, lambda name, values: "", skipped="no picture").status_code == 200
    (said,) = [stored.verdict for stored in store.labels()]
    assert said.skipped == "no picture" and not said.choices
    form = fields(page, "rater-1")
    assert label(page, "rater-1", form, lambda name, values: "", broken="1").status_code == 200
    assert [stored.verdict.broken for stored in store.labels()] == [False, True]


def test_ten_raters_at_once_lose_nothing(tmp_path: Path) -> None:
    store = planned(tmp_path, "--raters", 10, "--overlap", 1)
    with forked(store.path) as (_, url):

        def rate(number: int) -> int:
            with client_of(url) as client:
                return annotating.label_all(client, f"rater-{number}")

        with ThreadPoolExecutor(10) as threads:
            done = [*threads.map(rate, range(1, 11))]
    assert done == [12] * 10 and len(list(store.labels())) == 120


KILLS = 25


@pytest.mark.e2e
def test_no_confirmed_label_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    """The server is killed at any moment; whatever a rater was told is saved, is saved, and nothing else is."""
    store = planned(tmp_path, rows=annotating.rows_file(tmp_path, 400))
    confirmed: dict[str, str] = {}
    for kill in range(KILLS):
        before = len(confirmed)
        with forked(store.path) as (child, url), client_of(url) as client:
            _label_until_killed(client, confirmed, kill, child)
        assert len(confirmed) > before
    kept = {str(stored.number): stored.verdict.reason for stored in Store(store.path).labels()}
    by_item = {
        str(store._rows("SELECT item FROM tasks WHERE id = ?", task)[0][0]): said for task, said in confirmed.items()
    }
    assert {item: kept.get(item) for item in by_item} == by_item
    assert len(kept) - len(by_item) <= KILLS, "at most the one label under way at each kill is there unconfirmed"
    assert store._rows("PRAGMA integrity_check") == [("ok",)]


def _label_until_killed(client: Any, confirmed: dict[str, str], kill: int, child: int) -> None:
    """A few labels are confirmed; while the next are sent comes the kill, after a share of the time that the last one
    took, from none to twice: before the label is kept, while it is, while the rater is told, and just after."""
    timer, took = None, 0.0
    try:
        for number in range(10_000):
            form = fields(client, "rater-1")
            assert form.hidden, "not killed before all was labelled"
            if number == 1 + kill % 3:
                timer = threading.Timer(took * 2 * kill / KILLS, os.kill, (child, signal.SIGKILL))
                timer.start()
            said, start = f"kill {kill} label {number}", time.monotonic()
            assert label(client, "rater-1", form, reason=said).status_code == 200
            confirmed[form.hidden["task"]], took = said, time.monotonic() - start
    except httpx.HTTPError:
        assert timer is not None, "the server ended before it was killed"
        timer.join()


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


def test_an_export_names_all_that_is_not_reviewed(tmp_path: Path) -> None:
    store = reviewed(tmp_path, "convbench")
    page = page_of(store)
    for more in ({"skipped": "too dark"}, {"broken": "1"}, {}):
        assert label(page, "rater-1", fields(page, "rater-1"), **more).status_code == 200
    done = run("critic", "annotate", "--db", store.path, "--export", tmp_path / "benchmark.jsonl", code=0)
    talks = benchmarks.read("convbench", tmp_path / "benchmark.jsonl")
    said = {line.split(" (")[1] for line in done.stderr.splitlines() if line.startswith("left out: ")}
    assert len(talks) == 1 and done.stderr.count("left out: ") == len(store.items()) - 1
    assert said == {"skipped: too dark)", "broken)", "not reviewed yet)"}
    assert not any(f"left out: {talk.id!r}" in done.stderr for talk in talks)


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
    """Row 31: instruction and caption collection, and verification. Instruction, caption and verification (VisIT-
    Bench, figures 11 to 14); between them somebody's model answers."""
    (tmp_path / "kites.png").write_bytes((SAMPLES / "convbench/images/fruit.png").read_bytes())
    said = {"image_url": "https://a.b/c/kites.png"}
    rows = [{"id": "1", "instruction_category": "counting"}]
    for scheme in ("collect_instruction", "collect_caption", "verify"):
        folder = tmp_path / scheme
        more = ("--scheme", scheme, "--data-root", tmp_path)
        store = planned(folder, *more, rows=write_jsonl(tmp_path / f"{scheme}.jsonl", rows))
        page = page_of(store, tmp_path)
        form = fields(page, "rater-1")
        annotating.send(store, "csv", folder)
        assert [cells["task"] for cells in read_csv(folder / "rater-1.csv")] == ["", form.hidden["task"]]
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
