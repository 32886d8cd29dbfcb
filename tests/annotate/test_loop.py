"""From people's labels to a judge's certificate: annotate, split, judge, audit, and judge again under it."""

import json
import random
import shutil
from pathlib import Path

import pytest
from annotating import fields, label, page_of, planned
from conftest import ROOT, assert_one_line_error, needs, run, run_apart, write_jsonl

from critic import human_scored, jsonl
from critic.certificate import read
from critic.judging.examples import plan

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


@pytest.mark.slow
@pytest.mark.e2e
def test_a_judge_that_is_trained_on_labels_holds_to_its_certificate(tmp_path: Path) -> None:
    """The same with a tiny judge that is trained for a few steps on what the raters said, in vLLM."""
    needs("deepspeed", "vllm")
    import training

    split = run("data/human_scores.py", labelled(tmp_path), "--out", tmp_path / "data")
    assert split.returncode == 0, split.stderr
    steps = {"max_steps": 4, "save_steps": 4}
    recipe = training.write_recipe(
        tmp_path / "recipe", evaluation=None, ema=None, training=steps, max_source_tokens=1500,
        tiny={"hidden_size": 64, "heads": 1},
    )  # fmt: skip
    judge, rows = tmp_path / "recipe/judge", tmp_path / "data/train.jsonl"
    training.train(recipe, rows, judge, internal=False)
    notes = json.loads((judge / "critic.json").read_text("utf-8"))
    assert notes["rows"] > 100 and jsonl.sha256(rows) in notes["data"].values(), notes["data"]
    internal, judged, file = tmp_path / "data/internal.jsonl", tmp_path / "judged.jsonl", tmp_path / "c.json"
    words = ("critic", "judge", internal, "--judge", judge, "--out", judged)
    done = run_apart(*words)
    assert done.returncode == 0, done.stderr
    done = run("critic", "audit", f"internal={judged}", "--certificate", file, "--out", tmp_path / "a")
    assert done.returncode == 0, done.stderr
    how = read(file)[0].how
    assert how.judge.startswith("judge@") and set(how.processors) == {how.judge} and how.prompts
    held = run(*words, "--certificate", file)
    assert held.returncode == 0 and f"{how.judge}, prompt pointwise@" in held.stdout, held.stderr
    tokenizer, content = judge / "tokenizer_config.json", (judge / "tokenizer_config.json").read_bytes()
    tokenizer.write_bytes(content + b" ")
    assert_one_line_error(run(*words, "--certificate", file), "processor of judge@", "audit again")
    tokenizer.write_bytes(content)
    (judge / "critic.json").write_text(json.dumps({**notes, "weights": {"model.safetensors": "other"}}))
    other = (*words[:-1], tmp_path / "other.jsonl", "--certificate", file)
    assert_one_line_error(run(*other), "made with judge", "audit again")
    assert_one_line_error(run("serve/judge.py", judge, "--certificate", file), "made with judge", "audit again")
