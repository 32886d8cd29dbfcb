"""Layouts of people's files and of tools that say whose scores a column holds only by names and values."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import write_jsonl, write_xlsx

from critic import tables
from critic.errors import UsageError
from eval_agreement.reading.inputs import find_scores, parse_map, parse_sources
from eval_agreement.reading.loaders import read_scores
from eval_agreement.reading.result_formats import guess
from eval_agreement.reading.tables import Source
from eval_agreement.sample import RatedSample

PEOPLE, JUDGE = [2, 9, 5, 7], [3, 8, 5, 10]


def table(folder: Path, **columns: list[Any]) -> Path:
    names = ["id", "question_id", *columns]
    rows = zip("wxyz", ["q1", "q1", "q2", "q3"], *columns.values(), strict=True)
    tables.write_csv(path := folder / "t.csv", [dict(zip(names, row, strict=True)) for row in rows])
    return path


def read(*paths: Path, mapped: list[str] | None = None) -> RatedSample:
    kind, people, judges = guess(paths, parse_map(mapped or []))
    assert kind == "score"
    return read_scores(people, judges)


def test_several_mapped_columns_are_several_raters(tmp_path: Path) -> None:
    path = table(tmp_path, ann=PEOPLE, bob=[4, 9, 7, 7], carl=[9, 9, "", 1], gpt=JUDGE)
    options = ["ann=people", "bob=people", "carl=people", "gpt=judge"]
    sample = read(path, mapped=options)
    assert sample.human.tolist() == [5, 9, 6, 5] and list(sample.judges) == ["gpt"]
    assert sample.raters[2] == {"ann": 5.0, "bob": 7.0}, "who said nothing is no rater"
    assert list(read(path, mapped=["ann=people", "bob=judge", "gpt=judge"]).judges) == ["bob", "gpt"]
    with pytest.raises(UsageError, match="ann and bob are both response; only people and judge and id may"):
        parse_map(["ann=text", "bob=response"])


def test_two_files_of_one_judge_are_not_read_as_one(tmp_path: Path) -> None:
    path = table(tmp_path, human=PEOPLE)
    files = [tmp_path / "math.csv", tmp_path / "other.csv"]
    for file in files:
        tables.write_csv(file, [{"id": key, "gpt4": score} for key, score in zip("wxyz", JUDGE, strict=True)])
    with pytest.raises(UsageError, match=r"math\.csv and .*other\.csv both hold verdicts of gpt4"):
        read(path, *files)


def test_two_judges_without_people_are_on_one_scale_or_asked(tmp_path: Path) -> None:
    def score_file(name: str, scores: list[int]) -> Source:
        tables.write_csv(path := tmp_path / name, [{"id": key, "score": score} for key, score in enumerate(scores)])
        return Source(path)

    stars = {"then": score_file("a.csv", [1, 5, 4]), "now": score_file("b.csv", [2, 3, 3])}
    assert [source.scale for source in find_scores(stars, {}).values()] == [(1, 5), (1, 5)]
    with pytest.raises(UsageError, match="scores are taken to be on several scales"):
        find_scores({**stars, "now": score_file("c.csv", [20, 80, 90])}, {})


def test_a_column_that_names_its_scale_is_on_it(tmp_path: Path) -> None:
    path = table(tmp_path, human=PEOPLE, gpt4_score_1_10=[1, 2, 1, 3])
    sample = read_scores(Source(path, "human"), {"gpt4": Source(path, "gpt4_score_1_10")})
    assert sample.scores.tolist() == [1, 2, 1, 3]


NEVER = "turn turn_id version model_version judge_version time eval_time evalTime gpt4_latency_ms judge_id doc_hash "
NEVER += "n_tokens difficulty num_turns judge_prompt_tokens reward_seed score_timestamp conversation_turns year"


@pytest.mark.parametrize("name", NEVER.split())
def test_a_column_of_numbers_is_no_judge_by_its_values(tmp_path: Path, name: str) -> None:
    sample = read(table(tmp_path, human_score=PEOPLE, gpt4=JUDGE, **{name: [1, 2, 3, 4]}))
    assert list(sample.judges) == ["gpt4"] and sample.scores.tolist() == JUDGE
    with pytest.raises(UsageError, match=f"no judge's verdicts.*name the column as --map COLUMN=judge; .*{name}"):
        read(table(tmp_path, human_score=PEOPLE, **{name: [1, 2, 3, 4]}))


@pytest.mark.parametrize("name", ["llm_score_turn_1", "gpt-4o", "Claude rating", "deepseek", "grader", "judgeScore"])
def test_a_judge_is_known_by_its_name(tmp_path: Path, name: str) -> None:
    assert list(read(table(tmp_path, human_score=PEOPLE, **{name: JUDGE})).judges) == [name]
    with pytest.raises(UsageError, match="no judge's verdicts"):
        read(table(tmp_path, human_score=PEOPLE, **{name: ["good", "bad", "good", "bad"]}))


def fastchat(judge: Any = "gpt-4") -> list[dict[str, Any]]:
    return [
        {
            "question_id": 81 + number // 2,
            "model": "vicuna",
            "judge": [judge, "single-v1" if turn == 1 else "single-v1-multi-turn"],
            "judgment": "…",
            "score": score,
            "turn": turn,
        }
        for number, score in enumerate(JUDGE)
        for turn in [1 + number % 2]
    ]


@pytest.mark.parametrize(
    "columns", [["id"], ["question_id", "model", "turn"], ["turn", "question_id", "model", "note"]]
)
def test_prompts_of_fastchat_are_conditions_of_one_judge(tmp_path: Path, columns: list[str]) -> None:
    rows = fastchat()
    people = [
        {"id": f"{row['question_id']}/vicuna/{row['turn']}", "note": "", **row, "human_score": score}
        for row, score in zip(rows, PEOPLE, strict=True)
    ]
    tables.write_csv(
        path := tmp_path / "people.csv", [{name: row[name] for name in [*columns, "human_score"]} for row in people]
    )
    sample = read(path, write_jsonl(tmp_path / "gpt4.jsonl", rows))
    assert sample.judges == {"gpt-4": pytest.approx(JUDGE)} and sample.human.tolist() == PEOPLE
    assert sample.parts["condition"] == ["single-v1", "single-v1-multi-turn"] * 2


@pytest.mark.parametrize(
    "reference", [("gpt4_ans", "gpt4_score"), ("answer", "reference_score"), ("answer", "gold_rating")]
)
def test_a_score_of_the_reference_is_no_judges(tmp_path: Path, reference: tuple[str, str]) -> None:
    answer, its_score = reference
    rows = [
        {
            "index": number,
            "question": f"{number}?",
            "prediction": "Two.",
            answer: "3",
            its_score: 9,
            "score": judge,
            "human_score": person,
        }
        for number, (person, judge) in enumerate(zip(PEOPLE, JUDGE, strict=True))
    ]
    sample = read(write_xlsx(tmp_path / "llava.xlsx", rows))
    assert sample.judges == {"score": pytest.approx(JUDGE)}
    assert next(response and response.question.reference for response in sample.responses) == "3"


@pytest.mark.parametrize("form", [list, json.dumps, lambda scores: "; ".join(map(str, scores))])
def test_lists_in_cells_are_spread(tmp_path: Path, form: Any) -> None:
    """Of lmms-eval's LLaVA benchmark the second score is the response's; people's are several raters'."""
    rows = [
        {"id": number, "human_scores": form([person, person]), "gpt4": form([judge])}
        for number, (person, judge) in enumerate(zip(PEOPLE, JUDGE, strict=True))
    ]
    sample = read(write_jsonl(tmp_path / "t.jsonl", rows))
    assert sample.scores.tolist() == JUDGE and sample.human.tolist() == PEOPLE and len(sample.raters[0]) == 2
    lmms = [
        {
            "doc_id": number,
            "filtered_resps": ["Two."],
            "human_score": person,
            "doc_hash": f"000{number}",
            "gpt_eval_llava_all": {"scores": form([9.0, float(judge)]), "review": "…"},
        }
        for number, (person, judge) in enumerate(zip(PEOPLE, JUDGE, strict=True))
    ]
    sample = read(write_jsonl(tmp_path / "lmms.jsonl", lmms))
    assert sample.judges == {"gpt_eval_llava_all": pytest.approx(JUDGE)}
    pairs = [{"id": row["id"], "human": row["id"] + 1, "gpt4": form([9, 3])} for row in rows]
    with pytest.raises(UsageError, match=r"no judge's verdicts.*gpt4\.0, gpt4\.1"):
        read(write_jsonl(tmp_path / "two.jsonl", pairs))
    assert read(tmp_path / "two.jsonl", mapped=["gpt4.1=judge"]).judges == {"gpt4.1": pytest.approx([5.5] * 4)}


def test_deepevals_last_run_and_labels_by_id_or_question(tmp_path: Path) -> None:
    cases = [
        {
            "name": "test_sums",
            "input": f"{number}?",
            "actualOutput": "Two.",
            "order": number,
            "metricsData": [{"name": "GEval", "score": judge / 10}],
        }
        for number, judge in enumerate(JUDGE)
    ]
    (run := tmp_path / ".latest_test_run.json").write_text(json.dumps({"testRunData": {"testCases": cases}}), "utf-8")
    for columns in (["input"], ["name", "order"]):
        rows = [
            {**{name: case[name] for name in columns}, "human": person}
            for case, person in zip(cases, PEOPLE, strict=True)
        ]
        tables.write_csv(path := tmp_path / "people.csv", rows[::-1])
        sample = read(path, run)
        assert sample.human.tolist() == PEOPLE[::-1]
        np.testing.assert_allclose(sample.judges["GEval"], [1 + 9 * judge / 10 for judge in JUDGE[::-1]])


def test_an_id_may_be_one_part_of_a_composed_one_or_several_columns(tmp_path: Path) -> None:
    score = {"value": {"judge_rating": 0.5}, "prediction": "Two."}
    reviews = [
        {"index": number, "target": "2", "sample_score": {"score": score, "sample_id": number + 7}}
        for number in range(4)
    ]
    judge = write_jsonl(tmp_path / "reviews.jsonl", reviews)
    for first in (0, 7):
        tables.write_csv(
            path := tmp_path / "people.csv",
            [{"id": first + number, "human": person} for number, person in enumerate(PEOPLE)],
        )
        assert read(path, judge).judges == {"judge_rating": pytest.approx([5.5] * 4)}
    composed = table(tmp_path, human=PEOPLE, gpt4=JUDGE)
    options = ["question_id=id", "gpt4=id"]
    assert read(composed, mapped=[*options[:1], "id=id", "gpt4=judge"]).ids[:2] == ["q1/w", "q1/x"]
    people, judges = parse_sources(f"{composed}:human", [f"j={composed}:gpt4"], parse_map(options), (None, None))
    assert people and read_scores(people, judges).ids == ["q1/3", "q1/8", "q2/5", "q3/10"]


@pytest.mark.parametrize("word", ["k. A.", "k.A.", "keine Angabe", "n. a.", "N/A", ".", "unknown", "缺失", "?"])
def test_cells_that_say_nothing_are_counted_and_named(tmp_path: Path, word: str) -> None:
    path = table(tmp_path, human_score=[*PEOPLE[:3], word], gpt4=[word, *JUDGE[1:]])
    sample = read(path)
    assert np.isnan(sample.scores[0]) and len(sample.labelled.ids) == 3
    for role in ("people", "gpt4"):
        assert any(f"1 cells of {role} say '{word}' or the like and count as empty" in note for note in sample.notes)


TITLES = [["Ratings of March"], ["Rater:", "Ann", "", ""], ["Ratings", ""]]


@pytest.mark.parametrize("kind", ["csv", "xlsx"])
@pytest.mark.parametrize("titles", [[], TITLES[:1], [*TITLES[1:2], []], TITLES])
def test_the_header_stands_below_titles(tmp_path: Path, kind: str, titles: list[list[str]]) -> None:
    import openpyxl

    rows = [
        *titles,
        ["id", "human", "gpt4", "note"],
        *([f"r{n}", *scores, ""] for n, scores in enumerate(zip(PEOPLE, JUDGE, strict=True))),
    ]
    path = tmp_path / f"t.{kind}"
    if kind == "csv":
        path.write_text("".join(";".join(map(str, row)) + "\n" for row in rows), "utf-8")
    else:
        book = openpyxl.Workbook()
        for row in rows:
            book.active.append(row)
        book.save(path)
    sample = read(path)
    assert (sample.ids, sample.human.tolist(), sample.scores.tolist()) == (["r0", "r1", "r2", "r3"], PEOPLE, JUDGE)
    assert str(next(tables.rows(path))[0]).endswith(f"{len(titles) + 2}")


def test_a_header_of_one_name_stays_the_header(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("score\n3\n5\n", "utf-8")
    assert [row for _, row in tables.rows(tmp_path / "t.csv")] == [{"score": "3"}, {"score": "5"}]
    for text in ("id\na,b\n", "marks\n3,4\n"):
        (tmp_path / "t.csv").write_text(text, "utf-8")
        with pytest.raises(UsageError, match=r"t\.csv:2: 2 cells, but the header has 1"):
            list(tables.rows(tmp_path / "t.csv"))


def test_a_sheet_is_named_behind_a_colon(tmp_path: Path) -> None:
    import openpyxl

    path = write_xlsx(tmp_path / "t.xlsx", [{"id": "a", "human": 3, "gpt4": 4}, {"id": "b", "human": 9, "gpt4": 8}])
    book = openpyxl.load_workbook(path)
    book.create_sheet("How to rate").append(["Rate from 1 to 10"])
    book.active.title = "March all"
    book.save(path)
    with pytest.raises(UsageError, match=r"have rows; name the one meant, as in .*t\.xlsx:March all"):
        read(path)
    with pytest.raises(UsageError, match=r"t\.xlsx: no sheet 'April'; there are March all, How to rate"):
        read(Path(f"{path}:April"))
    assert read(Path(f"{path}:March all")).human.tolist() == [3, 9]
    for text, column in (
        (f"{path}:March all", None),
        (f"{path}:March all:human", "human"),
        (f"{path}:human", "human"),
    ):
        assert Source.parse(text).column == column
