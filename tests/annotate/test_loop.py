"""From people's labels to a judge's certificate: annotate, split, judge, audit, and judge again under it."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from annotating import fields, label, page_of, planned
from clients.inner import Ask, Inner
from conftest import ROOT, assert_one_line_error, run, write_jsonl

from critic import human_scored
from critic.asking.examples import plan
from critic.certificate import read

pytest_plugins = ["clients.asking"]
IMAGES = ROOT / "data/samples/convbench/images"


def labelled(folder: Path) -> Path:
    """The labels of two scripted raters for two hundred sample answers, each with a picture."""
    done = run("data/sample_world.py", "--out", folder / "world.jsonl")
    assert done.returncode == 0, done.stderr
    world = [json.loads(line) for line in (folder / "world.jsonl").read_text("utf-8").strip().split("\n")]
    rows = sorted(world, key=lambda one: one["group"])[:: max(1, len(world) // 200)][:200]
    pictures = sorted(IMAGES.iterdir())
    (folder / "images").mkdir()
    for number, one in enumerate(rows):
        one["image"] = f"images/{one['group'].replace('/', '-')}.png"
        shutil.copy(pictures[number % len(pictures)], folder / one["image"])
    truth = {one["id"]: one["human_score"] for one in rows}
    blank = [
        {
            key: one[key]
            for key in ("id", "task", "lang", "question", "reference", "response", "system", "group", "image")
        }
        for one in rows
    ]
    store = planned(folder, "--raters", 2, "--overlap", 0.3, rows=write_jsonl(folder / "rows.jsonl", blank))
    page, chance = page_of(store, folder), random.Random(3)
    for rater in store.counts():
        while (form := fields(page, rater)).hidden:
            key = store.next(rater).item.id
            score = str(min(10, max(1, round(truth[key] + chance.uniform(-1, 1)))))
            assert label(page, rater, form, lambda name, values, score=score: score).status_code == 200
    done = run("critic", "annotate", "--db", store.path, "--export", folder / "labels.jsonl")
    assert done.returncode == 0, done.stderr
    return folder / "labels.jsonl"


def test_the_loop_is_closed(tmp_path: Path) -> None:
    """What the README's page shows, with replies of a script in the judge's place (training one takes minutes)."""
    labels = labelled(tmp_path)
    loaded = human_scored.load(labels)
    assert len(loaded.rows) == 200 and all(one.question.images for one in loaded.responses)
    assert sum(len(one.annotators) == 2 for one in loaded.rows) == 60
    split = run("data/human_scores.py", labels, "--out", tmp_path / "data")
    assert split.returncode == 0 and "train" in split.stdout, split.stderr
    trained = human_scored.load(tmp_path / "data/train.jsonl").responses
    made = plan(trained, {"pointwise": 1.0, "correct": 0.5})
    assert sum(one.form == "pointwise" for one in made.examples) == len(trained) > 100
    replies = write_jsonl(
        tmp_path / "judge@1.jsonl", [{"text": f'{{"Rating":{n},"Reason":"r"}}'} for n in range(1, 11)]
    )
    words = ("--judge", replies, "--score", "argmax")
    internal, judged = tmp_path / "data/internal.jsonl", tmp_path / "judged.jsonl"
    done = run("critic", "judge", internal, "--out", judged, *words)
    assert done.returncode == 0, done.stderr
    file = tmp_path / "certificate.json"
    done = run(
        "critic", "audit", f"internal={judged}", "--gate", "mae<=9", "--certificate", file, "--out", tmp_path / "a"
    )
    assert done.returncode == 0, done.stderr
    found, _ = read(file)
    people = json.loads((tmp_path / "a/summary.json").read_text())["internal"]
    assert found.how.judge == "judge@1" and found.agreement["mae"].value == people["mae"] and found.kept
    assert found.labels.raters == 2 and found.labels.rows == people["n"]
    # The certificate holds for the same judge, and for no other prompt, judge or decoding.
    again = run("critic", "judge", internal, "--out", tmp_path / "again.jsonl", *words, "--certificate", file)
    assert again.returncode == 0 and "judge@1, prompt pointwise@" in again.stdout and "mae<=9 kept" in again.stdout
    other = write_jsonl(tmp_path / "judge@2.jsonl", [{"text": '{"Rating":3,"Reason":"r"}'}])
    for changed, part in (
        (("--judge", replies, "--score", "argmax", "--prompt", "scale_5"), "prompt"),
        (("--judge", other, "--score", "argmax"), "judge@2"),
        (("--judge", replies), "setup"),
        (("--judge", replies, "--score", "argmax", "--no-reason"), "setup"),
    ):
        refused = run("critic", "judge", internal, "--out", tmp_path / "no.jsonl", *changed, "--certificate", file)
        assert_one_line_error(refused, part, "audit again")
    assert_one_line_error(
        run("critic", "judge", internal, "--out", tmp_path / "n", *words, "--certificate", labels), "no certificate"
    )
    Path(found.labels.file).write_text("changed")
    warned = run("critic", "judge", internal, "--out", tmp_path / "w.jsonl", *words, "--certificate", file)
    assert warned.returncode == 0 and "has changed since" in warned.stderr
    table = write_jsonl(tmp_path / "t.jsonl", [{"id": str(n), "score": 5 + n % 3} for n in range(30)])
    no = run(
        "critic", "audit", "--human", table, "--judge", f"j={table}", "--certificate", file, "--out", tmp_path / "b"
    )
    assert_one_line_error(no, "--certificate", "judgments")


def test_the_server_shows_the_certificate(ask: Ask) -> None:
    about = {"certificate": {"how": {"judge": "judge@1"}}, "certificate_sha256": "0123456789abcdef9", "processor": "p"}
    models = ask(Inner(), path="/v1/models", method="GET", about=about)
    (listed,) = models.json()["data"]
    assert {key: listed[key] for key in about} == about
    chat = ask(Inner(), {"messages": [{"role": "user", "content": "hello"}]}, about=about)
    assert chat.headers["x-critic-certificate"] == models.headers["x-critic-certificate"] == "0123456789abcdef"
    plain = ask(Inner(), path="/v1/models", method="GET")
    assert "certificate" not in plain.json()["data"][0] and "x-critic-certificate" not in plain.headers


@pytest.mark.parametrize("wanted", ["judge@1"])
def test_a_server_of_another_judge_does_not_start_under_it(tmp_path: Path, wanted: str) -> None:
    content: dict[str, Any] = {"agreement": {}, "gate": [], "kept": True, "date": "2026-11-22"}
    content["how"] = {"judge": wanted, "prompts": {"h": "pointwise"}, "setup": {}}
    content["labels"] = {"file": "l", "sha256": "s", "rows": 1, "raters": 1}
    (tmp_path / "c.json").write_text(json.dumps(content))
    done = run("serve/judge.py", "owner/other", "--certificate", tmp_path / "c.json", "--port", 1 + 2**15)
    assert_one_line_error(done, "owner/other", "audit again")
