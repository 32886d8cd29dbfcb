"""critic.benchmarks.visitbench: the published layouts, win rates, and the tournament."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, read_csv, read_jsonl, write_csv, write_jsonl
from judgments import of_outcome, run_of

from critic import benchmarks
from critic.benchmarks import visitbench
from critic.errors import UsageError
from critic.records import Conversation, Judgment
from critic.stats import tournament as ratings
from critic.stats.leaderboard import aggregate_of

SAMPLE = ROOT / "data" / "samples" / "visitbench" / "visit_bench.csv"


def test_the_sample_of_several_images_is_read_whole() -> None:
    rows, conversations = read_csv(SAMPLE), benchmarks.read("visitbench", SAMPLE)
    assert [conversation.id for conversation in conversations] == ["1", "2", "3", "4", "5", "6"]
    for row, conversation in zip(rows, conversations, strict=True):
        (turn,) = conversation.turns
        assert turn.prompt == row["instruction"]
        assert conversation.category == turn.task == row["instruction_category"]
        assert turn.images == json.loads(row["images"])
        assert turn.reference == (row["gpt4_prediction"] if row["human_ratings_gpt4_correct"] == "True" else None)
    assert conversations[1].caption == "1. " + "\n2. ".join(json.loads(rows[1]["images_dense_captions"]))
    assert conversations[0].caption == json.loads(rows[0]["images_dense_captions"])[0]
    groups = [conversation.group for conversation in conversations]
    assert groups[1] == groups[2] != groups[0], "the same two pictures, the other way round"
    assert [conversation.turns[0].reference is None for conversation in conversations].count(True) == 1


def test_lists_are_padded_and_urls_are_file_names(tmp_path: Path) -> None:
    rows = read_csv(SAMPLE)[1:2]
    rows[0]["images"] = '["https://host.example/a/first%20one.png?size=1", "http://host.example/b/second.png"]'
    rows[0]["images_dense_captions"] = '["One.", "Two.", NaN, NaN]'
    (conversation,) = benchmarks.read("visitbench", write_csv(tmp_path / "sheet.csv", rows))
    assert conversation.turns[0].images == ["first one.png", "second.png"]
    assert conversation.caption == "1. One.\n2. Two."


ANNOTATED: dict[str, Any] = {
    "instruction": "What is it?", "instruction_category": "animals", "gpt4_prediction": "A dog.",
    "human_ratings_gpt4_correct": True,
}  # fmt: skip
"""The columns that a row has in each layout."""


def test_the_layout_of_single_images(tmp_path: Path) -> None:
    row = {**ANNOTATED, "image": "https://host.example/visit_images/7.png", "image_dense_captions": "A dog."}
    row["human_ratings_problem_in_caption"] = 1.0
    other = {**row, "human_ratings_problem_in_caption": 0}
    conversations = benchmarks.read("visitbench", write_jsonl(tmp_path / "single.jsonl", [row, other]))
    assert [conversation.turns[0].reference for conversation in conversations] == [None, "A dog."]
    assert [conversation.turns[0].images for conversation in conversations] == [["7.png"], ["7.png"]]


def test_the_real_annotated_rows(shared: Path, tmp_path: Path) -> None:
    """As published: the same rows under the names of the authors' own columns."""
    rows = read_jsonl(shared / "data/visitbench/annotated_examples.jsonl")
    kept = ("image_url", "image_dense_caption", "instruction_category", "instruction")
    published = [{"output_human_annotated": row["reference"], **{name: row[name] for name in kept}} for row in rows]
    conversations = benchmarks.read("visitbench", write_csv(tmp_path / "visit_fully_annotated_example.csv", published))
    assert len(conversations) == 10
    for row, conversation in zip(rows, conversations, strict=True):
        assert conversation.turns[0].reference == row["reference"].strip()
        assert conversation.turns[0].images == [row["image_url"].rsplit("/", 1)[-1]]
        assert conversation.caption == row["image_dense_caption"].strip()


def test_parquet_with_embedded_images(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    content = (SAMPLE.parent / "images" / "fruit.png").read_bytes()
    image = {"bytes": content, "path": "fruit.png"}
    row = {**ANNOTATED, "image": image, "instruction_conditioned_caption": "Apples."}
    row["human_ratings_problem_in_caption"] = False
    parquet.write_table(pyarrow.Table.from_pylist([row, row]), tmp_path / "test.parquet")
    first, second = benchmarks.read("visitbench", tmp_path / "test.parquet")
    assert first.turns[0].images[0].startswith("data:image/png;base64,")
    assert first.group == second.group and len(first.group) < 40


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("instruction", "", "'instruction' is empty"),
        ("instruction_category", "", "'instruction_category' is empty"),
        ("images", "images/fruit.png", "'images' is not a JSON list"),
        ("images", '"images/fruit.png"', "'images' is not a JSON list"),
        ("images", "[]", "'images' has no image"),
        ("images", '["a.png", "a.png"]', "'images' has one image twice"),
        ("images", "[3]", "no image; expected a path"),
        ("images_dense_captions", '["One.", NaN]', "has 1 captions for 2 images"),
        ("gpt4_prediction", "", "'gpt4_prediction' is empty"),
        ("human_ratings_gpt4_correct", "perhaps", "is 'perhaps'; expected yes or no, true or false"),
        ("human_ratings_problem_in_caption", "", "'human_ratings_problem_in_caption' is ''; expected yes or no"),
        ("lang", "de", "expected zh or en"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(tmp_path: Path, column: str, value: str, message: str) -> None:
    rows = read_csv(SAMPLE)
    rows[1][column] = value
    with pytest.raises(UsageError, match=message) as caught:
        benchmarks.read("visitbench", write_csv(tmp_path / "sheet.csv", rows))
    assert str(caught.value).startswith(f"{tmp_path / 'sheet.csv'}:3: ")


def test_a_sheet_that_lacks_columns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        benchmarks.read("visitbench", write_csv(tmp_path / "sheet.csv", [{"instruction": "?", "gpt4_prediction": "!"}]))
    for part in ("instruction_category", "image_url or", "image_dense_caption or", "human_ratings_gpt4_correct"):
        assert part in str(caught.value)


def verdict(conversation: str, system: str, outcome: float | str, opponent: str | None = None) -> Judgment:
    return of_outcome(conversation, "pairwise", outcome, system=system, turn=1, opponent=opponent)


@pytest.fixture
def instructions() -> list[Conversation]:
    return benchmarks.read("visitbench", SAMPLE)


def test_win_rates_against_the_reference(instructions: list[Conversation]) -> None:
    scores: dict[str, float | str] = {"1": 1.0, "2": 0.5, "3": 1.0, "4": 0.0, "5": "no_verdict"}
    verdicts = [verdict(key, "m", score) for key, score in scores.items()]
    verdicts.append(verdict("1", "m", 0.0, opponent="other"))  # of the tournament
    (entry,) = visitbench.BENCHMARK.entries(run_of(verdicts), instructions)
    aggregates = {name: aggregate_of(score) for name, score in entry.scores.items()}
    # 3 has no reference, 6 was never judged, 5 failed.
    overall = aggregates["all"]
    assert (overall.n, overall.failed, overall.asked) == (3, 1, 5)
    assert overall.value == 50 and (overall.low, overall.high) == (30, 70)
    assert aggregates["counting"].value == 100 and aggregates["change_captioning"].asked == 1
    assert aggregates["chart_reading"].value is None
    assert (aggregates["ties"].value, aggregates["ties"].n) == (pytest.approx(100 / 3), 3)
    assert "1 instructions without a confirmed one are not asked" in entry.caption


def test_a_tournament_is_the_ratings_of_its_battles(instructions: list[Conversation]) -> None:
    """Row 30."""
    games: dict[str, tuple[str, str, float | str]] = {
        "1": ("a", "b", 1.0), "2": ("a", "b", 0.5), "4": ("b", "a", 1.0),
        "5": ("c", "a", 0.0), "6": ("c", "b", 1.0), "3": ("c", "b", "no_verdict"),
    }  # fmt: skip
    verdicts = [verdict(key, model, outcome, opponent) for key, (model, opponent, outcome) in games.items()]
    fought = ratings.battles(verdicts, {conversation.id: conversation.group for conversation in instructions})
    outcomes = ["no_verdict" if battle.score is None else battle.score for battle in fought]
    fighters = [(battle.a, battle.b) for battle in fought]
    assert [(*pair, outcome) for pair, outcome in zip(fighters, outcomes, strict=True)] == list(games.values())
    assert [battle.group for battle in fought] == [instructions[int(key) - 1].group for key in games]
    assert ratings.bradley_terry(fought).failed == 1


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (verdict("1", "b", 1.0, opponent="a"), "b and a compared twice"),
        (verdict("2", "a", 0.7, opponent="b"), "score 0.7; expected 1, 0.5 or 0"),
        (verdict("2", "a", 7.0, opponent="b"), "expected 0 to 1"),
    ],
)
def test_battles_that_cannot_be_are_refused(instructions: list[Conversation], bad: Judgment, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ratings.battles([verdict("1", "a", 1.0, opponent="b"), bad], {talk.id: talk.group for talk in instructions})
