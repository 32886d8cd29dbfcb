"""data/sample_world.py as it is used: run by path, its rows read by the library."""

import json
import os
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest
from conftest import ROOT, Done, read_jsonl, run, run_apart
from judging.test_protocols import KINDS

from critic import human_scored
from critic.judging.examples import plan
from critic.records import Response

EXTERNAL = "Nightjar-9B"
FORMS_OF_PAPERS = {"pointwise", *KINDS}


def make_world(out: Path, *options: str, hash_seed: str | None = None) -> Done:
    """Write a world; with `hash_seed` in a process of its own."""
    words = ("data/sample_world.py", "--out", out, *options)
    return run_apart(*words, env=os.environ | {"PYTHONHASHSEED": hash_seed}) if hash_seed else run(*words)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("world") / "rows.jsonl"
    assert make_world(out).returncode == 0
    return out


@pytest.fixture(scope="module")
def raw(file: Path) -> list[dict[str, Any]]:
    return read_jsonl(file)


@pytest.fixture(scope="module")
def responses(file: Path) -> list[Response]:
    loaded = human_scored.load(file)
    assert not loaded.left_out
    return loaded.responses


def test_same_seed_same_bytes_whatever_the_hash_seed(tmp_path: Path) -> None:
    same, again, other = (tmp_path / name for name in ("same.jsonl", "again.jsonl", "other.jsonl"))
    make_world(same, "--questions", "52", hash_seed="1")
    make_world(again, "--questions", "52", hash_seed="2")
    make_world(other, "--questions", "52", "--seed", "1")
    assert same.read_bytes() == again.read_bytes() != other.read_bytes()


def test_every_task_in_both_languages_about_equally_often(raw: list[dict[str, Any]]) -> None:
    counts = Counter((row["task"], row["lang"]) for row in raw)
    assert len(counts) == 26
    assert max(counts.values()) < 1.2 * min(counts.values())
    assert {row["category"] for row in raw} == {
        "Perception & Understanding",
        "Reasoning & Analysis",
        "Dialogue Context",
    }


def test_three_raters_or_more_whose_mean_is_the_score(responses: list[Response]) -> None:
    for response in responses:
        assert response.human and len(response.human.raters) >= 3 and response.human.reason
        assert response.human.score == pytest.approx(fmean(response.human.raters.values()), abs=1e-4)
        assert all(score == int(score) for score in response.human.raters.values())


def test_the_whole_scale_is_used_and_no_rating_dominates(responses: list[Response]) -> None:
    scores = [response.human.score for response in responses if response.human]
    shares = Counter(int(score + 0.5) for score in scores)
    assert set(shares) == set(range(1, 11))
    assert max(shares.values()) <= 0.25 * len(scores)
    middle = median(scores)
    assert 2.3 <= fmean(abs(score - middle) for score in scores) <= 2.8


def test_conversations_have_labels_for_every_form(tmp_path: Path) -> None:
    """The answers and their scores stay; each also has a checklist, and a row of the conversation that it ends."""
    plain, whole = tmp_path / "plain.jsonl", tmp_path / "whole.jsonl"
    assert make_world(plain, "--questions", "52").returncode == 0
    assert make_world(whole, "--questions", "52", "--conversations").returncode == 0
    rows = read_jsonl(whole)
    turns = [row for row in rows if row["scope"] == "turn"]
    assert [{**row, "checklist": [], "checklist_answers": []} for row in turns] == read_jsonl(plain)
    for row in turns:
        if row["human_score"] > 9:
            assert all(row["checklist_answers"]), "a full answer states every fact"
        if row["human_score"] < 2.5:
            assert not all(row["checklist_answers"])
    assert {len(row["checklist"]) for row in turns} >= {2, 3, 4}
    conversations = [row for row in rows if row["scope"] == "conversation"]
    assert [(row["id"], row["response"]) for row in conversations] == [
        (f"{row['id']}/whole", row["response"]) for row in turns
    ]
    assert all(row["history"] for row in conversations) and len({row["group"] for row in conversations}) == 52
    loaded = human_scored.load(whole)
    taught = Counter(planned.form for planned in plan(loaded.responses, dict.fromkeys(FORMS_OF_PAPERS, 1.0)).examples)
    assert taught.keys() == FORMS_OF_PAPERS and min(taught.values()) > 300, taught


def test_no_answerer_is_named_in_any_text(raw: list[dict[str, Any]]) -> None:
    names = {row["system"] for row in raw} - {"reference"}
    text = "\n".join(json.dumps({**row, "system": ""}, ensure_ascii=False) for row in raw).lower()
    assert not [name for name in names if name.lower() in text or name.split("-")[0].lower() in text]


def test_a_group_is_one_question(responses: list[Response]) -> None:
    groups = defaultdict(set)
    for response in responses:
        question = response.question
        groups[question.group].add((question.prompt, question.reference, tuple(question.images), str(question.history)))
    assert all(len(questions) == 1 for questions in groups.values())
    images = [next(iter(questions))[2] for questions in groups.values()]
    assert len(set(images)) == len(images)


def test_a_demand_for_a_ten_does_not_earn_it(responses: list[Response]) -> None:
    demands = r"给.*10 分|满分|评分为 10|\"Rating\":10|10 分，|give this reply a 10|full marks|grade.* 10|^10,"
    demand = re.compile(demands, re.MULTILINE)
    demanding = [response for response in responses if demand.search(response.text)]
    scores = [response.human.score for response in demanding if response.human]
    assert len(scores) > 300
    assert fmean(scores) < 6.5
    assert min(scores) < 2 and max(scores) > 9


def test_right_and_wrong_answers_use_the_same_sentences(responses: list[Response]) -> None:
    """With the numbers taken out, every sentence of a right answer also stands in a wrong one."""
    said: dict[bool, set[str]] = {True: set(), False: set()}
    for response in responses:
        about = response.question
        if (about.task, about.lang) == ("Problem", "en") and response.system != EXTERNAL and response.human:
            sentences = re.findall(r"[A-Z][^.:}]*#", re.sub(r"\d+", "#", response.text))
            said[response.human.score > 8].update(sentences)
    assert said[True] and said[True] <= said[False]


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("PIL")
    out = tmp_path_factory.mktemp("pictures") / "rows.jsonl"
    assert make_world(out, "--pictures", "--questions", "120").returncode == 0
    return out


def test_pictures_are_drawn_beside_the_rows_the_same_for_the_same_seed(pictured: Path, tmp_path: Path) -> None:
    named = {image for row in read_jsonl(pictured) for image in row["images"]}
    drawn = {str(file.relative_to(pictured.parent)): file.read_bytes() for file in pictured.parent.glob("images/*")}
    assert named == set(drawn) and len(named) == 120
    assert len(set(drawn.values())) > 110  # they are not all the same picture
    again, other = tmp_path / "again" / "rows.jsonl", tmp_path / "other" / "rows.jsonl"
    make_world(again, "--pictures", "--questions", "120", hash_seed="7")
    make_world(other, "--pictures", "--questions", "120", "--seed", "1")
    assert again.read_bytes() == pictured.read_bytes() != other.read_bytes()
    assert all((again.parent / name).read_bytes() == content for name, content in drawn.items())


def test_the_pictures_that_the_sample_names_are_there() -> None:
    loaded = human_scored.load(ROOT / "data/samples/human_scored.jsonl", pictures=True)
    named = [image for response in loaded.responses for image in response.question.images]
    assert len(named) == 12 and all((ROOT / "data/samples" / image).is_file() for image in named)


def test_half_of_the_questions_have_no_reference_and_a_fact_that_the_picture_decides_is_named(pictured: Path) -> None:
    rows = read_jsonl(pictured)
    without = fmean(row["reference"] is None for row in rows)
    assert 0.35 < without < 0.65
    assert all(row["edit"] is not None for row in rows if row["system"] == "reference")
    for row in rows:
        if row["edit"] is not None:
            old, new = row["edit"]["old"], row["edit"]["new"]
            assert old != new and re.search(rf"\b{old}\b", row["response"])
            changed = row["response"].replace(old, new, 1)
            assert changed == re.sub(rf"\b{old}\b", new, row["response"], count=1)


def painted(image: Any, ink: tuple[int, int, int]) -> int:
    """Pixels of a colour."""
    return sum(count for count, colour in image.getcolors(10_000) if colour == ink)


def test_a_picture_shows_the_facts() -> None:
    pytest.importorskip("PIL")
    sys.path.insert(0, str(ROOT / "data"))
    from drawing import COLOURS, PLACES, draw

    for place, cell in PLACES.items():
        image = draw("place", {"place": place, "shape": "square", "colour": "red"}, place)
        middle = image.getpixel((cell % 3 * 32 + 16, cell // 3 * 32 + 16))
        assert middle == COLOURS["red"], place
    chart = draw("chart", {"left": "3", "right": "1", "colour": "blue"}, "seed")
    left, right = (painted(chart.crop((x, 0, x + 48, 96)), COLOURS["blue"]) for x in (0, 48))
    assert left / right == pytest.approx(3, abs=0.3)
    pair = draw("pair", {"colour": "green", "colour2": "black"}, "seed")
    assert [painted(pair.crop((x, 0, x + 48, 96)), COLOURS["green"]) > 0 for x in (0, 48)] == [True, False]
    counts = [draw("several", {"n": str(n), "shape": "circle", "colour": "red"}, "s") for n in range(1, 6)]
    names = ("circle", "square", "triangle", "cross")
    shapes = [draw("object", {"shape": shape, "colour": "red"}, "s") for shape in names]
    digits = [draw("card", {"number": str(n), "colour": "red"}, "s") for n in range(1, 6)]
    assert (areas := [painted(image, COLOURS["red"]) for image in counts]) == sorted(set(areas))
    for drawn in (shapes, digits):
        assert len({image.tobytes() for image in drawn}) == len(drawn)
