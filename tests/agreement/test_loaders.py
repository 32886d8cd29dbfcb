"""Samples out of any two columns: CSV, JSONL, Parquet, judgments, human-scored rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import human_row, rows_of, write_csv, write_jsonl
from samples import build_sample

from critic import human_scored
from critic.errors import UsageError
from critic.stats.verdicts import FAILED, TIE, UNASKED, A, B
from eval_agreement.measure_tables import MEASURES
from eval_agreement.measures.measure import RatedFindings, run_audit
from eval_agreement.measures.ppi import corrected_mean
from eval_agreement.measures.preferences import Preferences
from eval_agreement.reading.loaders import find_kind, read_labels, read_scores
from eval_agreement.reading.result_formats import guess
from eval_agreement.reading.tables import Source
from eval_agreement.sample import AuditRequest, RatedSample
from eval_agreement.sentences import say

PEOPLE = """id,rater,score,group,task,system,response
a,ann,4,g1,OCR,m1,four
a,bob,6,g1,OCR,m1,four
b,ann,9,g1,Meme,m2,nine!
b,bob,,g1,Meme,m2,nine!
c,ann,1,,OCR,m2,
"""
JUDGE = "id,score,system\nb,8,m2\na,5.5,m1\nd,3,m9\n"


def joined(folder: Path, people: str = PEOPLE, judge: str = JUDGE, **options: Any) -> RatedSample:
    (folder / "people.csv").write_text(people, "utf-8")
    (folder / "judge.csv").write_text(judge, "utf-8")
    scale = options.get("scale", (1, 10))
    judge_scale = options.get("judge_scale", scale)
    ours = Source(folder / "judge.csv", scale=judge_scale)
    return read_scores(Source(folder / "people.csv", scale=scale), {"ours": ours})


def test_tables_are_joined_by_id(tmp_path: Path) -> None:
    sample = joined(tmp_path)
    assert (sample.name, sample.ids, sample.judge) == ("people", ["a", "b", "c", "d"], "ours")
    assert list(sample.human)[:3] == [5.0, 9.0, 1.0]  # a: the raters' mean; b: the one who answered
    assert np.isnan(sample.human[3])  # scored by the judge only
    assert list(sample.scores)[:2] == [5.5, 8.0] and np.isnan(sample.scores[2]) and sample.scores[3] == 3.0
    assert sample.group == ["g1", "g1", None, None] and len({*sample.groups}) == 3  # without a group, one of its own
    assert sample.raters == [{"ann": 4.0, "bob": 6.0}, {"ann": 9.0}, {"ann": 1.0}, {}]
    assert sample.parts["answerer"] == ["m1", "m2", "m2", "m9"] and sample.parts["task"][:2] == ["OCR", "Meme"]
    assert sample.length is not None and sample.length[:3].tolist() == [4.0, 5.0, 0.0]
    labelled = sample.labelled
    assert (labelled.ids, labelled.group) == (["a", "b", "c"], sample.group[:3])
    masks = {name: mask.tolist() for name, mask in sample.part_rows("task")}
    assert masks == {"OCR": [True, False, True, False], "Meme": [False, True, False, False]}


def test_what_a_line_of_an_id_says_holds_for_all_of_it_in_any_order(tmp_path: Path) -> None:
    """Sheets of several raters behind each other, of which only some say what the answer is."""
    ann = ["a,ann,4,,,,,0.5", "b,ann,9,g1,OCR,m1,nine,"]
    bob = ["a,bob,6,g1,OCR,m1,four,", "b,bob,7,,,,,0.25"]
    for lines in (ann + bob, bob + ann):
        rows = "\n".join(["id,rater,score,group,task,system,text,label_probability", *lines])
        sample = joined(tmp_path, rows, "id,score\na,5\nb,8\n")
        assert sample.group == ["g1", "g1"] and sample.length is not None and list(sample.length) == [4.0, 4.0]
        assert sample.parts["task"] == ["OCR", "OCR"] and sample.parts["answerer"] == ["m1", "m1"]
        assert sample.probability is not None and sample.probability.tolist() == [0.5, 0.25]
    pairs = preferences(tmp_path, "id,preference,rater,group\np,a,ann,\np,a,bob,g\nq,a,ann,g\n", "id,preference\np,a\n")
    assert pairs.group == ["g", "g"]


def test_a_row_without_a_group_joins_no_group_of_its_name(tmp_path: Path) -> None:
    sample = joined(tmp_path, "id,score,group\n1,4,\n2,5,1\n3,6,1\n", "id,score\n1,4\n")
    assert sample.groups.tolist() in ([0, 1, 1], [1, 0, 0])
    pairs = preferences(tmp_path, "id,preference,group\n1,a,\n2,a,1\n3,b,1\n", "id,preference\n1,a\n")
    assert len({*pairs.group}) == 2


def test_questions_of_labelled_answers_alone_give_no_corrected_mean(tmp_path: Path) -> None:
    """Taken for questions of their own, answers without a label would make the interval far too narrow."""
    random = np.random.default_rng(3)
    quality = 5 + np.repeat(random.normal(0, 1, 10), 6)
    people, judge = (np.clip(quality + random.normal(0, 0.5, 60), 1, 10).round(2) for _ in range(2))
    labelled = np.isin(np.arange(60) // 6, random.permutation(10)[:6])

    about = pd.DataFrame({"id": range(60), "group": np.arange(60) // 6 + 100, "system": ["m0", "m1"] * 30})

    def findings(given: str, of_judge: str = "") -> RatedFindings:
        """With the columns that people's file has for labelled rows, and the judge's for all."""
        theirs = about.assign(score=people).loc[labelled, ["id", "score", *given.split()]]
        ours = about.assign(score=judge)[["id", "score", *of_judge.split()]]
        sample = joined(tmp_path, theirs.to_csv(index=False), ours.to_csv(index=False))
        return run_audit(sample, AuditRequest(within=1.0), MEASURES)

    (mean,) = (alone := findings("group")).corrected.values()
    assert mean.value is None and mean.undefined and "column group of the judge's file" in mean.undefined
    assert alone.plan and alone.plan.with_judge is None and alone.plan.undefined == mean.undefined
    (whole,) = (known := findings("group", "group")).corrected.values()
    exact = corrected_mean(build_sample(np.where(labelled, people, np.nan), judge, np.arange(60) // 6))
    assert whole.interval == pytest.approx(exact.interval) and known.plan and not known.plan.undefined
    # The judge's file may be the only one that knows.
    assert findings("", "group").corrected["all answers"].interval == pytest.approx(exact.interval)
    assert findings("").corrected["all answers"].interval != pytest.approx(exact.interval)

    answerers = findings("group system", "group").corrected
    assert {*answerers} == {"m0", "m1"} and all("column system" in str(mean.undefined) for mean in answerers.values())
    assert all(mean.value for mean in findings("group system", "group system").corrected.values())


def one_file(folder: Path, lines: str, *columns: tuple[str, str]) -> RatedSample:
    """People's scores and a judge's out of one table, whose other columns are named."""
    (folder / "t.csv").write_text(lines, "utf-8")
    mapped = {usual: [name] for usual, name in columns}
    judge = Source(folder / "t.csv", "judge", mapped)
    return read_scores(Source(folder / "t.csv", mapped=mapped), {"ours": judge})


@pytest.mark.parametrize("order", [1, -1])
def test_a_judge_may_stand_beside_several_raters(tmp_path: Path, order: int) -> None:
    """On all lines of an id or on one; on one line an id, under one rater; of preferences too."""
    rows = ["a,ann,4,5,g", "a,bob,6,,g", "b,ann,9,8,g", "b,bob,7,8,g", "c,ann,3,,h", "c,bob,3,,h"][::order]
    head = "id,rater,score,judge,group"
    sample = one_file(tmp_path, "\n".join([head, *rows]))
    by_id = dict(zip(sample.ids, sample.scores, strict=True))
    assert (by_id["a"], by_id["b"]) == (5.0, 8.0) and np.isnan(by_id["c"]) and sample.notes == []
    assert {*map(len, sample.raters)} == {2} and sorted(sample.human) == [3.0, 5.0, 8.0]
    single = one_file(tmp_path, f"{head}\na,r,4,5,g\nb,r,9,8,g\n")
    assert list(single.scores) == [5.0, 8.0] and single.raters == [{"r": 4.0}, {"r": 9.0}]
    once = "; beside several raters a judge has one"
    with pytest.raises(UsageError, match=rf"t\.csv:3: 'a' has the judge 6, but 5 before{once}"):
        one_file(tmp_path, f"{head}\na,ann,4,5,g\na,bob,4,6,g\n")
    pairs = ["p,ann,a,b", "p,bob,b,", "q,ann,a,a", "q,bob,a,a", "r,ann,a,"][::order]
    (tmp_path / "p.csv").write_text("\n".join(["id,rater,preference,judge", *pairs]), "utf-8")
    source = Source(tmp_path / "p.csv")
    labels = read_labels(source, {"ours": Source(source.path, "judge")}, "preference")
    assert dict(zip(labels.ids, labels.judges["ours"].tolist(), strict=True)) == {"p": B, "q": A, "r": FAILED}
    with source.path.open("a", encoding="utf-8") as file:
        file.write("\nq,zoe,a,b")
    with pytest.raises(UsageError, match=rf"p\.csv:7: 'q' has the judge b, but a before{once}"):
        read_labels(source, {"ours": Source(source.path, "judge")}, "preference")


def test_minus_one_is_no_verdict_where_the_scale_has_none(tmp_path: Path) -> None:
    people = "id,score\na,1\nb,5\nc,9\n"
    rows = "id,score\na,-1\nb,5\nc,-1.0\n"
    sample = joined(tmp_path, people, rows)
    assert np.isnan(sample.scores[0]) and np.isnan(sample.scores[2]) and sample.scores[1] == 5
    assert any("2 cells of score are -1, which FastChat writes" in note for note in sample.notes)
    whole = joined(tmp_path, people, rows, judge_scale=(-1, 5))
    assert list(whole.scores) == [1.0, 10.0, 1.0] and not any("FastChat" in note for note in whole.notes)
    with pytest.raises(UsageError, match="score -1 is outside"):
        joined(tmp_path, "id,score\na,-1\n", people)
    row = human_row(0, gpt4_score_1_10=-1, other_score_1_10=3)
    (loaded,) = human_scored.load(write_jsonl(tmp_path / "r.jsonl", [row])).responses
    assert loaded.columns == {"other_score_1_10": 3.0}


def test_columns_of_other_names_are_named_and_what_is_not_used_is_said(tmp_path: Path) -> None:
    lines = "item,score,judge,q,who,answer,note\n1,4,5,x,m1,four,n\n2,6,5,x,m2,a longer one,n\n3,7,7,y,m1,,n\n"
    sample = one_file(tmp_path, lines)
    assert sample.notes == [
        f"{tmp_path / 't.csv'}: columns that are not used: item, q, who, answer, note",
        say("no_group"),
    ]
    assert sample.ungrouped and not sample.responses
    named = (("id", "item"), ("group", "q"), ("system", "who"), ("response", "answer"))
    sample = one_file(tmp_path, lines, *named)
    assert sample.notes == [f"{tmp_path / 't.csv'}: columns that are not used: note"]
    assert (sample.ids, sample.group, sample.ungrouped) == (["1", "2", "3"], ["x", "x", "y"], False)
    assert sample.parts["answerer"] == ["m1", "m2", "m1"] and sample.length is not None
    assert list(sample.length) == [4.0, 12.0, 0.0]
    texts = sample.labelled.rows(np.array([False, True, True])).responses
    assert [(response.text, response.system) for response in texts if response] == [("a longer one", "m2"), ("", "m1")]
    sample = joined(tmp_path, "id,score\na,3\nb,4\n", "id,score,text\nb,4,two\na,3,one\n")  # of the judge's file
    assert [response and response.text for response in sample.responses] == ["one", "two"]


def test_two_columns_of_one_file_need_no_ids(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("expert,model\n3,6\n9,\n", "utf-8")
    source = f"{tmp_path / 't.csv'}:"
    sample = read_scores(Source.parse(source + "expert"), {"m": Source.parse(source + "model")})
    assert list(sample.human) == [3.0, 9.0] and sample.scores[0] == 6.0 and np.isnan(sample.scores[1])
    (tmp_path / "u.csv").write_text("score\n3\n5\n", "utf-8")
    with pytest.raises(UsageError, match=r"no id in common.*--map COLUMN=id names their column"):
        read_scores(Source.parse(source + "expert"), {"m": Source(tmp_path / "u.csv")})


def test_human_scored_rows_keep_raters_texts_and_say_what_they_leave_out(tmp_path: Path) -> None:
    rows = [human_row(number, gpt4_score_1_10=5.0) for number in range(4)]
    rows[1]["annotators"] = {"x": 2.0, "y": 2.0}
    rows[3]["flags"] = ["human_stars_below_scale"]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    sample = read_scores(Source(path), {"gpt4": Source(path, "gpt4_score_1_10")})
    assert sample.ids == ["row-0", "row-1", "row-2"]  # row 3 is unusable, not an answer without a score
    assert sample.parts["answerer"] == ["alpha", "beta", "alpha"]
    assert sample.raters[1] == {"x": 2.0, "y": 2.0}
    assert any("1 rows left out: a human score lies below its scale" in note for note in sample.notes)
    assert not any("not used" in note or "no column group" in note for note in sample.notes)


def test_what_the_join_leaves_out_is_said(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("id,score\na,1\nx,2\ny,3\n")
    (tmp_path / "people.csv").write_text("id,score,length\na,1,5\nb,2,\nc,3,7\n")
    (tmp_path / "judge.csv").write_text("id,score\na,1\nd,4\n")
    files = {name: Source(tmp_path / f"{name}.csv") for name in ("judge", "other")}
    sample = read_scores(Source(tmp_path / "people.csv", scale=(1, 5)), files)
    assert list(sample.human)[:3] == [1.0, 3.25, 5.5] and sample.scores[0] == 1.0
    assert sample.notes == [
        "2 of 3 answers are not in the file of judge, 'b' the first: they count as failed",
        "2 of 3 answers are not in the file of other, 'b' the first: they count as failed",
        "2 answers only in the file of other are left out, 'x' the first",
        "1 of 3 answers have no length: what length does is not measured",
        "scores on 1..5 are moved onto 1..10: a point there is 2.25 here",
        say("no_group"),
    ]


@pytest.mark.parametrize(
    ("people", "judge", "scales"),
    [
        ([1, 4, 5], [2, 5, 5], [(1, 5), (1, 5)]),
        ([1, 4, 5], [2, 7, 9], [(1, 5), (1, 10)]),
        ([1, 4, 9], [2, 5, 6], [(1, 10), (1, 10)]),
        ([1, 4, 9], [0.2, 0.5, 0.9], [(1, 10), (0, 1)]),
        ([12, 55, 80], [10, 50, 90], [(0, 100), (0, 100)]),
        ([1, 4, 9], [2, 5, -1], [(1, 10), (1, 10)]),
    ],
)
def test_a_scale_is_found_alike_by_file_and_by_column(
    tmp_path: Path, people: list[float], judge: list[float], scales: list[tuple[float, float]]
) -> None:
    path = write_csv(tmp_path / "t.csv", rows_of(id=range(3), human=people, gpt4=judge))
    _, human, judges = guess([path])
    by_file = read_scores(human, judges)
    by_column = read_scores(Source(path, "human"), {"gpt4": Source(path, "gpt4")})
    assert [human.scale, judges["gpt4"].scale] == scales
    np.testing.assert_array_equal(by_file.human, by_column.human)
    np.testing.assert_array_equal(by_file.scores, by_column.scores)
    moved = [note for note in by_file.notes if "are moved onto" in note]
    assert moved == [note for note in by_column.notes if "are moved onto" in note]
    assert bool(moved) == (scales != [(1, 10), (1, 10)])


@pytest.mark.parametrize("scores", [[1, 4, 5, 55], [1, 4, 99, 99], [3, 9, 7, -9]])
def test_a_number_far_from_all_others_is_asked_about(tmp_path: Path, scores: list[float]) -> None:
    path = write_csv(tmp_path / "t.csv", rows_of(id=range(len(scores)), human=scores, gpt4=3))
    far = next(score for score in scores if not 0 <= score <= 10)
    line = scores.index(far) + 2
    for read in (
        lambda: guess([path]),
        lambda: read_scores(Source(path, "human"), {"gpt4": Source(path, "gpt4")}),
    ):
        with pytest.raises(UsageError, match=rf"t\.csv:{line}: \w+ {far} is outside .*on which the others are"):
            read()
    kept = read_scores(Source(path, "human", scale=(-10, 100)), {"gpt4": Source(path, "gpt4")})
    assert not np.isnan(kept.human).any()
    with pytest.raises(UsageError, match=r"people\.csv: every score is 550; give their --scale"):
        joined(tmp_path, "id,score\na,550\nb,550\n", JUDGE, scale=None)


def test_rows_without_a_reference_are_audited(tmp_path: Path) -> None:
    rows = [human_row(number) for number in range(3)]
    rows[0] |= {"reference": None, "flags": ["no_reference"]}
    rows[1] |= {"reference": "", "human_score": rows[1]["scale_max"]}
    judge = write_csv(tmp_path / "judge.csv", rows_of(id=[row["id"] for row in rows], score=5))
    sample = read_scores(Source(write_jsonl(tmp_path / "people.jsonl", rows)), {"ours": Source(judge)})
    assert (sample.ids, sample.notes) == ([row["id"] for row in rows], [])
    assert [response.text for response in sample.responses if response] == [row["response"] for row in rows]


def test_cells_that_say_that_they_are_empty_are_counted(tmp_path: Path) -> None:
    """With decimal commas, as programs in Germany write them."""
    people = "id;score\na;7,5\nb;N/A\nc;4,333\nd;\n".encode("utf-16")
    (tmp_path / "people.csv").write_bytes(people)
    (tmp_path / "judge.csv").write_text("id,score\na,7\nb,3\nc,n/a\nd,1\n", "utf-8")
    sample = read_scores(Source(tmp_path / "people.csv"), {"ours": Source(tmp_path / "judge.csv")})
    assert sample.human[[0, 2]].tolist() == [7.5, 4.333] and np.isnan(sample.human[[1, 3]]).all()
    assert np.isnan(sample.judges["ours"]).tolist() == [False, False, True, False]
    assert sample.notes[:2] == [
        f"{tmp_path / 'people.csv'}: 1 cells of score say 'N/A' or the like and count as empty",
        f"{tmp_path / 'judge.csv'}: 1 cells of score say 'n/a' or the like and count as empty",
    ]
    with pytest.raises(UsageError, match="preference 'None' is none of a, b, tie"):
        preferences(tmp_path, "id,preference\np,a\nq,None\n", "id,preference\np,b\n")


PAIRS = """id,preference,rater,group,turn,response_a,response_b
p,A,ann,g,1,xx,y
p,tie,bob,g,1,xx,y
q,b,ann,g,2,,zzz
q,B,bob,g,2,,zzz
r,tie,ann,h,1,k,k
"""

LABEL = "id,preference\np,a\n"
MISTAKES: dict[str, tuple[str, str, str]] = {
    "no common id": (PEOPLE, "id,score\nx,3\n", "no id in common: the first holds 'a', the second 'x'"),
    "two scores of one id": ("id,score\na,4\na,5\n", JUDGE, "people.csv:3: 'a' has the score 5, but 4 before (several"),
    "a rater twice": ("id,rater,score\na,r,4\na,r,5\n", JUDGE, "'a' has the score 5, but 4 before by the same rater"),
    "off the scale": ("id,score\na,4\nb,11\n", JUDGE, "people.csv:3: score 11 is outside 1..10 (see --scale)"),
    "judge off the scale": (PEOPLE, "id,score\na,0\n", "judge.csv:2: score 0 is outside 1..10 (see --judge-scale)"),
    "two scores of a judge": (PEOPLE, "id,score\na,4\na,5\n", "judge.csv:3: 'a' has the score 5, but 4 before\n"),
    "not a number": (
        "id,score\na,good\n",
        JUDGE,
        "people.csv:2: score 'good' is not a number; expected one as 7.5, or an empty cell where there is none",
    ),
    "no such column": (
        "id,rating\na,3\n",
        JUDGE,
        "people.csv: no column 'score'; there are id, rating (name one as FILE:COLUMN)",
    ),
    "no chance": ("id,score,label_probability\na,3,0\n", JUDGE, "people.csv:2: label_probability 0 is outside"),
    "an empty id": ("id,score\n,3\n", JUDGE, "people.csv:2: the id is empty"),
    "nobody scored": ("id,score\na,\nb,\n", JUDGE, "people.csv: no answer has a score"),
    "two groups of one id": (
        "id,rater,score,group\na,x,3,\na,y,4,g\na,z,4,h\n",
        JUDGE,
        "people.csv:4: 'a' has the group h, but g before",
    ),
    "several raters of a judge": (
        PEOPLE,
        "id,rater,score\na,x,3\na,y,4\n",
        "beside several raters a judge has one verdict",
    ),
    "no such label": (PAIRS, "id,preference\np,c\n", "j.csv:2: preference 'c' is none of a, b, tie"),
    "two labels": ("id,preference\np,a\np,b\n", LABEL, "preference b, but a before (several raters need a column"),
    "some chances": (
        "id,preference,label_probability\np,a,0.5\nq,b,\n",
        LABEL,
        "pairs.csv: label_probability is given for some labels, but not for that of 'q'",
    ),
    "no column of labels": (PAIRS, "id,score\np,3\n", "no column 'preference'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_line_that_names_the_place(tmp_path: Path, mistake: str) -> None:
    people, judge, message = MISTAKES[mistake]
    with pytest.raises(UsageError) as caught:
        (preferences if "preference" in people else joined)(tmp_path, people, judge)
    assert message in f"{caught.value}\n" and "\n" not in str(caught.value)


def test_a_column_is_named_behind_a_colon(tmp_path: Path) -> None:
    odd = tmp_path / "odd:name.csv"
    odd.write_text("id,score\na,1\n")
    parse = Source.parse
    texts = {"h.csv": ("h.csv", None), "h.csv:expert": ("h.csv", "expert"), str(odd): (str(odd), None)}
    for text, parsed in (texts | {f"{odd}:x": (str(odd), "x")}).items():
        assert (str(parse(text).path), parse(text).column) == parsed


def preferences(folder: Path, people: str, judge: str) -> Preferences:
    (folder / "pairs.csv").write_text(people, "utf-8")
    (folder / "j.csv").write_text(judge, "utf-8")
    assert find_kind(Source(folder / "pairs.csv")) == "preference"
    return read_labels(Source(folder / "pairs.csv"), {"ours": Source(folder / "j.csv")}, "preference")


def test_preferences_by_several_raters(tmp_path: Path) -> None:
    pairs = preferences(tmp_path, PAIRS, "id,preference\np,a\nq,\nz,a\n")
    assert (list(pairs.ids), list(pairs.group)) == (["p", "q", "r"], ["g", "g", "h"])
    people = {name: column.tolist() for name, column in pairs.people.items()}
    assert people == {"ann": [A, B, TIE], "bob": [TIE, B, UNASKED]}
    assert pairs.judges["ours"].tolist() == [A, FAILED, UNASKED]
    assert pairs.parts == {"turn": ["1", "2", "1"]}
    assert pairs.length_a is not None and pairs.length_a.tolist() == [2.0, 0.0, 1.0]
    texts = [each and (each.text, each.other and each.other.text) for each in pairs.responses]
    assert texts == [("xx", "y"), ("", "zzz"), ("k", "k")]
    alone = preferences(tmp_path, "id,preference\np,a\n", "id,preference\np,TIE\n")
    assert (list(alone.people), alone.judges["ours"].tolist(), alone.length_a) == (["people"], [TIE], None)


def test_what_the_join_of_preferences_leaves_out_is_said(tmp_path: Path) -> None:
    people, judge = "id, preference\np, A\np, a\nq,b\n", "id,preference\np,a\nq ,b\nr,tie\n"
    assert preferences(tmp_path, people, judge).notes == [
        f"{tmp_path / 'pairs.csv'}: 1 rows repeat another row and count once",
        "1 of 2 pairs are not in the file of ours, 'q' the first: it was not asked about them",
        "2 pairs only in the file of ours are left out, 'q ' the first",
        say("no_group"),
    ]
