"""Layouts of people's files and of tools that say whose scores a column holds only by names and values."""

import json
import re
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import rows_of, write_csv, write_jsonl, write_xlsx

from critic import human_scored, tables
from critic.errors import UsageError
from eval_agreement.reading.inputs import find_scores, parse_map, parse_sources
from eval_agreement.reading.loaders import read_scores
from eval_agreement.reading.result_formats import guess
from eval_agreement.reading.tables import Source, TableOptions
from eval_agreement.sample import RatedSample

PEOPLE, JUDGE = [2, 9, 5, 7], [3, 8, 5, 10]


def table(folder: Path, **columns: list[Any]) -> Path:
    rows = rows_of(id=[*"wxyz"], question_id=["q1", "q1", "q2", "q3"], **columns)
    return write_csv(folder / "t.csv", rows)


def read(*paths: Path, mapped: list[str] | None = None) -> RatedSample:
    kind, people, judges = guess(paths, TableOptions(parse_map(mapped or [])))
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
        write_csv(file, rows_of(id=[*"wxyz"], gpt4=JUDGE))
    with pytest.raises(UsageError, match=r"math\.csv and .*other\.csv both hold verdicts of gpt4"):
        read(path, *files)


def test_two_judges_without_people_are_on_one_scale_or_asked(tmp_path: Path) -> None:
    def score_file(name: str, scores: list[int]) -> Source:
        return Source(write_csv(tmp_path / name, rows_of(id=range(3), score=scores)))

    stars = {"then": score_file("a.csv", [1, 5, 4]), "now": score_file("b.csv", [2, 3, 3])}
    assert [source.scale for source in find_scores(stars).values()] == [(1, 5), (1, 5)]
    with pytest.raises(UsageError, match="scores are taken to be on several scales"):
        find_scores({**stars, "now": score_file("c.csv", [20, 80, 90])})


def test_a_column_that_names_its_scale_is_on_it(tmp_path: Path) -> None:
    path = table(tmp_path, human=PEOPLE, gpt4_score_1_10=[1, 2, 1, 3])
    sample = read_scores(Source(path, "human"), {"gpt4": Source(path, "gpt4_score_1_10")})
    assert sample.scores.tolist() == [1, 2, 1, 3]


def test_a_judge_is_known_by_its_name_and_its_values(tmp_path: Path) -> None:
    others: dict[str, list[Any]] = {"evalTime": [1, 2, 3, 4], "grader": ["good", "bad", "good", "bad"]}
    sample = read(table(tmp_path, human_score=PEOPLE, **{"Claude rating": JUDGE}, **others))
    assert list(sample.judges) == ["Claude rating"] and sample.scores.tolist() == JUDGE
    with pytest.raises(UsageError, match=r"no judge's verdicts.*name the column as --map COLUMN=judge; .*evalTime"):
        read(table(tmp_path, human_score=PEOPLE, **others))


HEADERS = [
    ("question,answer", "rater1,rater2", "gpt4,average"),
    ("question,answer", "human_fluency", "judge_fluency,human_depth,judge_depth"),
    ("编号,问题,模型回答,参考答案", "标注员1,标注员2", "模型评分"),
    ("Question,Response A,Response B", "Which is better?", "GPT-4 choice"),
    ("问题,回答A,回答B", "rater1,rater2", "模型偏好"),
]


@pytest.mark.parametrize(("texts", "people", "judges"), HEADERS)
def test_both_roads_find_the_same_people(tmp_path: Path, texts: str, people: str, judges: str, capsys: Any) -> None:
    """Below a title of two cells; the columns behind the first of `judges` are nobody's verdicts."""
    is_pair, others = texts.endswith("B"), f"{people},{judges}".count(",") + 1
    verdicts, labels = (["A", "tie", "B", "A"], [1.0, 0.5, 0.0, 1.0]) if is_pair else (PEOPLE, PEOPLE)
    rows = [[f"text {n}"] * (texts.count(",") + 1) + [verdicts[n]] * others for n in range(4)]
    rows = [["Ratings of March", "team B", *[""] * (len(rows[0]) - 2)], f"{texts},{people},{judges}".split(","), *rows]
    pd.DataFrame(rows).to_csv(path := tmp_path / "t.csv", header=False, index=False)
    kind, source, found = guess([path])
    assert (kind, [*found]) == ("preference" if is_pair else "score", judges.split(",")[:1])
    loaded = human_scored.load(path, keep_flags=frozenset({"no_reference"}))
    assert [each.preference if is_pair else each.human.score for each in loaded.responses] == labels
    for said in (source.note, capsys.readouterr().err):
        assert re.findall(r"taken as (?:people|human_score|preference): (.+?) (?:on|\()", said) == people.split(",")


FASTCHAT = {"question_id": [81, 81, 82, 82], "model": "vicuna", "turn": [1, 2, 1, 2]}


@pytest.mark.parametrize(
    "columns", [["id"], ["question_id", "model", "turn"], ["turn", "question_id", "model", "note"]]
)
def test_prompts_of_fastchat_are_conditions_of_one_judge(tmp_path: Path, columns: list[str]) -> None:
    prompts = ["single-v1", "single-v1-multi-turn"] * 2
    judged = rows_of(**FASTCHAT, judge=[["gpt-4", prompt] for prompt in prompts], judgment="…", score=JUDGE)
    ids = ["81/vicuna/1", "81/vicuna/2", "82/vicuna/1", "82/vicuna/2"]
    people = pd.DataFrame({**FASTCHAT, "id": ids, "note": "", "human_score": PEOPLE})[[*columns, "human_score"]]
    path = write_csv(tmp_path / "people.csv", people.to_dict("records"))
    sample = read(path, write_jsonl(tmp_path / "gpt4.jsonl", judged))
    assert sample.judges == {"gpt-4": pytest.approx(JUDGE)} and sample.human.tolist() == PEOPLE
    assert sample.parts["condition"] == prompts


def test_a_score_of_the_reference_is_no_judges(tmp_path: Path) -> None:
    about = {"index": range(4), "question": ["0?", "1?", "2?", "3?"], "prediction": "Two.", "gpt4_ans": "3"}
    rows = rows_of(**about, gpt4_score=9, score=JUDGE, human_score=PEOPLE)
    sample = read(write_xlsx(tmp_path / "llava.xlsx", rows))
    assert sample.judges == {"score": pytest.approx(JUDGE)}
    assert next(response and response.question.reference for response in sample.responses) == "3"


@pytest.mark.parametrize("form", [list, json.dumps, lambda scores: "; ".join(map(str, scores))])
def test_lists_in_cells_are_spread(tmp_path: Path, form: Any) -> None:
    """Of lmms-eval's LLaVA benchmark the second score is the response's; people's are several raters'."""
    people, judge = ([form([score] * count) for score in scores] for scores, count in ((PEOPLE, 2), (JUDGE, 1)))
    sample = read(write_jsonl(tmp_path / "t.jsonl", rows_of(id=range(4), human_scores=people, gpt4=judge)))
    assert sample.scores.tolist() == JUDGE and sample.human.tolist() == PEOPLE and len(sample.raters[0]) == 2
    scored = [{"scores": form([9.0, float(score)]), "review": "…"} for score in JUDGE]
    about = {"doc_id": range(4), "filtered_resps": [["Two."]] * 4, "doc_hash": ["0000", "0001", "0002", "0003"]}
    lmms = rows_of(**about, human_score=PEOPLE, gpt_eval_llava_all=scored)
    sample = read(write_jsonl(tmp_path / "lmms.jsonl", lmms))
    assert sample.judges == {"gpt_eval_llava_all": pytest.approx(JUDGE)}
    pairs = rows_of(id=range(4), human=range(1, 5), gpt4=[form([9, 3])] * 4)
    with pytest.raises(UsageError, match=r"no judge's verdicts.*gpt4\.0, gpt4\.1"):
        read(write_jsonl(tmp_path / "two.jsonl", pairs))
    assert read(tmp_path / "two.jsonl", mapped=["gpt4.1=judge"]).judges == {"gpt4.1": pytest.approx([5.5] * 4)}
    assert read(table(tmp_path, human=PEOPLE, gpt4=JUDGE, flags=["[]"] * 4)).scores.tolist() == JUDGE, "nothing listed"


def test_deepevals_last_run_and_labels_by_id_or_question(tmp_path: Path) -> None:
    metrics = [[{"name": "GEval", "score": judge / 10}] for judge in JUDGE]
    about = {"name": "test_sums", "input": ["0?", "1?", "2?", "3?"], "order": range(4)}
    cases = rows_of(**about, actualOutput="Two.", metricsData=metrics)
    (run := tmp_path / ".latest_test_run.json").write_text(json.dumps({"testRunData": {"testCases": cases}}), "utf-8")
    for columns in (["input"], ["name", "order"]):
        rows = rows_of(**{name: about[name] for name in columns}, human=PEOPLE)
        path = write_csv(tmp_path / "people.csv", rows[::-1])
        sample = read(path, run)
        assert sample.human.tolist() == PEOPLE[::-1]
        np.testing.assert_allclose(sample.judges["GEval"], [1 + 9 * judge / 10 for judge in JUDGE[::-1]])


def test_an_id_may_be_one_part_of_a_composed_one_or_several_columns(tmp_path: Path) -> None:
    score = {"value": {"judge_rating": 0.5}, "prediction": "Two."}
    scores = [{"score": score, "sample_id": number} for number in range(7, 11)]
    judge = write_jsonl(tmp_path / "reviews.jsonl", rows_of(index=range(4), target="2", sample_score=scores))
    for first in (0, 7):
        path = write_csv(tmp_path / "people.csv", rows_of(id=range(first, first + 4), human=PEOPLE))
        assert read(path, judge).judges == {"judge_rating": pytest.approx([5.5] * 4)}
    composed = table(tmp_path, human=PEOPLE, gpt4=JUDGE)
    options = ["question_id=id", "gpt4=id"]
    assert read(composed, mapped=[*options[:1], "id=id", "gpt4=judge"]).ids[:2] == ["q1/w", "q1/x"]
    typed = rows_of(question_id=["q1", "q1", "q2", "q3"], human=PEOPLE, gpt4=JUDGE)
    for path in (composed, write_jsonl(tmp_path / "typed.jsonl", typed)):
        people, judges = parse_sources(f"{path}:human", [f"j={path}:gpt4"], TableOptions(parse_map(options)))
        assert people and read_scores(people, judges).ids == ["q1/3", "q1/8", "q2/5", "q3/10"]


def test_cells_that_say_nothing_are_counted_and_named(tmp_path: Path) -> None:
    path = table(tmp_path, human_score=[*PEOPLE[:3], "k. A."], gpt4=["k. A.", *JUDGE[1:]])
    sample = read(path)
    assert np.isnan(sample.scores[0]) and len(sample.labelled.ids) == 3
    for role in ("people", "gpt4"):
        assert any(f"1 cells of {role} say 'k. A.' or the like and count as empty" in note for note in sample.notes)


TITLES = [["Ratings of March"], ["Rater:", "Ann", "", ""], ["Ratings", ""]]


@pytest.mark.parametrize("kind", ["csv", "xlsx"])
@pytest.mark.parametrize("titles", [[], TITLES[:1], [*TITLES[1:2], []], TITLES])
def test_the_header_stands_below_titles(tmp_path: Path, kind: str, titles: list[list[str]]) -> None:
    cells = zip(["r0", "r1", "r2", "r3"], PEOPLE, JUDGE, [""] * 4, strict=True)
    rows = [*titles, ["id", "human", "gpt4", "note"], *cells]
    path = tmp_path / f"t.{kind}"
    if kind == "csv":
        path.write_text("".join(";".join(map(str, row)) + "\n" for row in rows), "utf-8")
    else:
        pd.DataFrame([*zip_longest(*rows)]).T.to_excel(path, header=False, index=False)
    sample = read(path)
    assert (sample.ids, sample.human.tolist(), sample.scores.tolist()) == (["r0", "r1", "r2", "r3"], PEOPLE, JUDGE)
    assert str(next(tables.rows(path))[0]).endswith(f"{len(titles) + 2}")


def test_a_sheet_is_named_behind_a_colon(tmp_path: Path) -> None:
    import openpyxl

    path = write_xlsx(tmp_path / "t.xlsx", [{"id": "a", "human": 3, "gpt4": 4}, {"id": "b", "human": 9, "gpt4": 8}])
    book = openpyxl.load_workbook(path)
    book.active.title = "March all"
    empty = book.create_sheet("How to rate", 0)
    book.save(path)
    assert read(path).human.tolist() == [3, 9], "the only sheet with rows, wherever it stands"
    empty.append(["Rate from 1 to 10"])
    book.create_sheet("Legend").append(["1", "bad"])
    book.save(path)
    assert read(path).human.tolist() == [3, 9], "the only sheet with usual names of columns"
    book.create_sheet("April all").append(["id", "human"])
    book.save(path)
    with pytest.raises(UsageError, match=r"t\.xlsx: the sheets March all, April all have rows; name the one"):
        read(path)
    with pytest.raises(UsageError, match=r"t\.xlsx: no sheet 'April'; there are How to rate, March all, Leg"):
        read(Path(f"{path}:April"))
    assert read(Path(f"{path}:March all")).human.tolist() == [3, 9]
    for end, column in {"March all": None, "March all:human": "human", "human": "human"}.items():
        assert Source.parse(f"{path}:{end}").column == column
