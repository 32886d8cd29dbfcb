"""Does the judge look? Arms are made as they say, one that looks is told from one that goes by the text."""

import asyncio
import base64
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
from conftest import Done, assert_one_line_error, run, write_jsonl
from PIL import Image as Pillow

from critic import human_scored, jsonl
from critic.backends import Reply, Request, parts_of
from critic.backends.scripted import ScriptedBackend
from critic.errors import UsageError
from critic.images import Images
from critic.judging.judge import ResponseJudge
from critic.records import Judgment
from eval_agreement.image_grounding import edited, looking

COLOURS = ("red", "blue", "green", "yellow")


def world(folder: Path, count: int = 60) -> Path:
    """Pictures of one colour, and answers that name it or another; every second row has no reference."""
    rows = []
    for number in range(count):
        colour, said = COLOURS[number % 4], COLOURS[(number + (number // 4) % 2) % 4]
        Pillow.new("RGB", (8, 8), colour).save(folder / f"{number}.png")
        right = colour == said
        rows.append(
            {
                "id": f"r{number}", "task": "Recognition", "lang": "en", "question": "Which colour?",
                "group": f"g{number}",
                "reference": colour if number % 2 else None, "response": f"It is {said}.", "system": "s",
                "human_score": 9 if right else 2, "scale_min": 1, "scale_max": 10, "image": f"{number}.png",
                "annotators": {"a": 9 if right else 2}, "gpt4_score_1_10": 5,
            }
        )  # fmt: skip
    return write_jsonl(folder / "rows.jsonl", rows)


def by_eye(request: Request) -> Reply:
    """Holds the answer's colour against the picture's; blind it draws lots."""
    parts = parts_of(request.messages[-1])
    text = " ".join(part["text"] for part in parts if part["type"] == "text")
    said = text.rpartition("> It is ")[2].split(".")[0]
    shown = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    if not shown:
        return rated(random.Random(text).choice((3, 8)))
    pixel = Pillow.open(io.BytesIO(base64.b64decode(shown[0].partition(",")[2]))).getpixel((0, 0))
    return rated(9 if pixel == Pillow.new("RGB", (1, 1), said).getpixel((0, 0)) else 2)


def by_style(request: Request) -> Reply:
    said = " ".join(part["text"] for part in parts_of(request.messages[-1]) if part["type"] == "text")
    return rated(8 if "red" in said.rpartition("> It is ")[2] else 6)


def rated(score: int) -> Reply:
    return Reply(text=json.dumps({"Rating": score, "Reason": "looked"}))


def judged(rows: Path, answer: Any) -> Path:
    images = Images(rows.parent)
    judge = ResponseJudge(ScriptedBackend(answer, sees=True), answer.__name__, "pointwise", "argmax", 64, images=images)
    loaded = human_scored.load(rows, pictures=True)
    made = [asyncio.run(judge.judge(one)) for one in loaded.responses]
    out = rows.with_name(f"judged-{answer.__name__}.jsonl")
    jsonl.write(out, made)
    jsonl.write_sidecar(out, {"images": images.facts()})
    return out


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    made = folder / "arms.jsonl"
    done = run("critic", "attack", world(folder), "--out", made, "--images", "--limit", "60")
    assert done.returncode == 0, done.stderr
    return made


def test_the_arms_are_what_they_say(arms: Path) -> None:
    lines = {line["id"]: line for _, line in jsonl.read(arms, dict[str, Any])}
    responses = {one.id: one for one in human_scored.load(arms, pictures=True).responses}
    assert responses.keys() == lines.keys(), "rows without a reference stay, blind ones too"
    high = [name.removesuffix("#clean") for name, one in lines.items() if one["human_score"] == 9 and "#clean" in name]
    assert len(lines) == 60 * 2 + 2 * len(high) and len(high) == 32
    for name in high:
        clean, blind, swapped, edit = (responses[f"{name}#{arm}"] for arm in ("clean", "blind", "swapped", "edited"))
        assert clean.question.images == [f"{name[1:]}.png"] and blind.question.images == []
        assert swapped.question.images != clean.question.images and len(swapped.question.images) == 1
        assert swapped.text == clean.text == blind.text != edit.text and edit.question == clean.question
        assert sum(a != b for a, b in zip(clean.text.split(), edit.text.split(), strict=True)) == 1
    assert not any("gpt4_score_1_10" in line for line in lines.values())
    assert jsonl.facts(arms)["counts"]["swapped"] == 32


def test_edits_change_one_fact_and_keep_the_rest() -> None:
    assert edited("Three cats.", "en", "k") not in (None, "Three cats.")
    assert edited("Three cats.", "en", "k") == edited("Three cats.", "en", "k")
    changed = edited("Three cats.", "en", "k")
    assert changed is not None and changed[0].isupper() and changed.endswith(" cats.")
    assert edited("The bride reddens.", "en", "k") is None, "no word within a word"
    assert edited("左边有一只猫。", "zh", "k") == "右边有一只猫。"
    assert edited("It shows 12 %.", "en", "k") != "It shows 12 %."
    assert edited("1. The picture shows a dog on a lawn.\n2. The dog runs.", "en", "k") is None, "a list's are no facts"
    for head in ("1. ", "**2.** ", "(3) ", "- 4) ", "5、"):
        made = edited(f"{head}12 cafes", "en", "k")
        assert made is not None and made.startswith(head) and made != f"{head}12 cafes", head
    assert edited("3.\nThe end.", "en", "k") not in (None, "3.\nThe end.")
    assert edited("It costs 1.5 euros.", "en", "k") is None
    assert edited("A cat.", "en", "k", {"old": "cat", "new": "dog"}) == "A dog."
    assert edited("A cat.", "en", "k", {"old": "cow", "new": "dog"}) is None


def audit(judged_arms: Path, rows: Path, out: Path) -> Done:
    clean = out.with_suffix(".jsonl")
    clean.parent.mkdir(parents=True, exist_ok=True)
    jsonl.write(clean, (one for _, one in jsonl.read(judged_arms, Judgment) if one.sample.id.endswith("#clean")))
    return run("critic", "audit", clean, "--attacked", judged_arms, "--out", out)


def test_a_judge_that_looks_is_told_from_one_that_reads(arms: Path, tmp_path: Path) -> None:
    looks = looking([one for _, one in jsonl.read(judged(arms, by_eye), Judgment)])
    pearson = next(one for one in looks.differences if one.metric == "pearson")
    assert looks.answers == looks.reached == 60 and pearson.first == pytest.approx(1.0)
    assert pearson.value > 0.5 and pearson.interval is not None and pearson.interval[0] > 0
    # A quarter of the pictures is of the same colour: another one of those costs nothing.
    lost = looks.swap.change
    assert lost.value is not None and -7 < lost.value < -3 and lost.n == 32
    assert looks.edit.change.value == -7.0 and looks.edit.moved.value == 1.0
    assert looks.reading.startswith("It looks at the image")
    reads = looking([one for _, one in jsonl.read(judged(arms, by_style), Judgment)])
    assert reads.swap.change.value == 0.0 and "not shown to look" in reads.reading
    assert all(one.value == pytest.approx(0.0) for one in reads.differences)


def test_the_report_says_whether_the_judge_looks(arms: Path, tmp_path: Path) -> None:
    done = audit(judged(arms, by_style), arms, tmp_path / "audit")
    assert done.returncode == 0, done.stderr
    assert "not shown to look at the image" in done.stdout
    page = (tmp_path / "audit/report.html").read_text("utf-8")
    assert "judged-by_style: It is not shown to look" in page, "of several files each is named"
    assert "Does the judge look at the image?" in page
    found = json.loads((tmp_path / "audit/summary.json").read_text("utf-8"))["looking"][0]
    assert found["swap"]["change"]["value"] == 0.0


def test_what_cannot_be_told_is_refused(arms: Path, tmp_path: Path) -> None:
    made = [one for _, one in jsonl.read(judged(arms, by_eye), Judgment)]
    for broken in (
        [one for one in made if not one.sample.id.endswith("#blind")],
        [one for one in made if one.sample.id != "r0#clean"],
        [*made, made[0]],
    ):
        with pytest.raises(UsageError):
            looking(broken)
    plain = write_jsonl(tmp_path / "plain.jsonl", [{**json.loads(arms.read_text().splitlines()[1]), "image": None}])
    assert_one_line_error(run("critic", "attack", plain, "--images", "--out", tmp_path / "x.jsonl"), "no")


def test_people_who_had_not_seen_the_photographs_are_the_yardstick(shared: Path, tmp_path: Path) -> None:
    """18 photographs, 270 descriptions, each rated before and after the same raters saw the image: what they gave
    before stands in the audit as a judge's score. A judge that draws lots is worth nothing there, and is said to be."""
    given = shared / "data/described_images"
    rows = [json.loads(line) for line in (given / "rows.jsonl").read_text("utf-8").splitlines()]
    for row in rows:
        before = list(row["before_seeing_image"].values())
        if before:
            row["before_seeing_score_1_10"] = 1 + 9 * (sum(before) / len(before) - 1) / 4
    (tmp_path / "images").symlink_to(given / "images")
    plain = write_jsonl(tmp_path / "rows.jsonl", rows)
    done = run("critic", "attack", plain, "--images", "--limit", "270", "--out", tmp_path / "arms.jsonl")
    assert done.returncode == 0, done.stderr
    counts = jsonl.facts(tmp_path / "arms.jsonl")["counts"]
    high = sum(row["score_1_10"] >= 7 for row in rows)
    assert counts["clean"] == counts["blind"] == 270 and counts["swapped"] == high and 50 < counts["edited"] <= high

    def by_lot(request: Request) -> Reply:
        url = [part["image_url"]["url"] for part in parts_of(request.messages[-1]) if part["type"] == "image_url"]
        return rated(random.Random(f"{len(url)} {request.messages}").randint(1, 10))

    root = Images(given)
    judge = ResponseJudge(ScriptedBackend(by_lot, sees=True), "lots", "pointwise", "argmax", 64, images=root)
    loaded = human_scored.load(tmp_path / "arms.jsonl", pictures=True)
    out = tmp_path / "judged.jsonl"
    jsonl.write(out, [asyncio.run(judge.judge(one)) for one in loaded.responses])
    jsonl.write_sidecar(out, {"images": root.facts()})
    judged_plain = judged_rows(plain, judge)
    done = run("critic", "audit", judged_plain, "--attacked", out, "--out", tmp_path / "audit")
    assert "not shown to look at the image" in done.stdout, done.stdout + done.stderr
    found = json.loads((tmp_path / "audit/summary.json").read_text("utf-8"))
    assert found["looking"][0]["reached"] == 270
    assert "before_seeing" in json.dumps(found), "what people gave before they saw it is a judge beside ours"


def judged_rows(rows: Path, judge: ResponseJudge) -> Path:
    loaded = human_scored.load(rows, pictures=True)
    jsonl.write(
        out := rows.with_name("plain-judged.jsonl"), [asyncio.run(judge.judge(one)) for one in loaded.responses]
    )
    return out
