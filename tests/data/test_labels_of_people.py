"""Whatever people gave is read by one reader: preferences, several raters, grades of conversations, annotate's."""

import json
from pathlib import Path
from typing import Any

import pytest
from annotating import exported, label_all, page_of, planned
from conftest import ROOT, assert_one_line_error, human_row, run, write_csv, write_jsonl, write_xlsx
from msgspec.structs import replace
from stages.test_judge_conversations import replies
from stages.test_people import preferences

from critic import human_scored, jsonl, tables
from critic.human_scored import Row
from critic.judging.examples import build_example, plan
from critic.records import Example, JudgeConfig, Judgment, Response, Sample, Verdict

PROGRAM = ROOT / "data/human_scores.py"
WORDS = {"A": 1.0, "model_b": 0.0, "Tie": 0.5}
TWO = [human_row(0), human_row(1)]


def pair(number: int, **changes: Any) -> dict[str, Any]:
    row = {"id": f"p{number}", "question": f"Which of {number}?", "response_a": f"a{number}", "response_b": "b"}
    return {**row, "system_b": "beta", "winner": [*WORDS][number % 3], **changes}


def taught(responses: list[Response], **mix: float) -> list[Example]:
    by_id = {response.id: response for response in responses}
    examples = [build_example(item, by_id, None, lambda _: 0) for item in plan(responses, mix).examples]
    return [example for example in examples if isinstance(example, Example)]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_preferences_are_split_and_taught_in_both_orders(tmp_path: Path, suffix: str) -> None:
    rows = [pair(number) for number in range(60)]
    path = tmp_path / f"pairs.{suffix}"
    (write_jsonl if suffix == "jsonl" else tables.write_csv)(path, rows)
    lacking = write_jsonl(tmp_path / "lacking.jsonl", [{"winner": 3, "response_a": "a", "response_b": "b"}])
    refused = run(PROGRAM, lacking, "--out", tmp_path / "o")
    assert_one_line_error(refused, "(winner), as in --map COLUMN=question --map winner=preference")
    assert "as preference: winner (change with" in run(PROGRAM, path, "--out", tmp_path / "found", code=0).stderr
    done = run(PROGRAM, path, "--map", "winner=preference", "--external", "beta", "--out", tmp_path / "o")
    assert_one_line_error(done, "falls into the split train; it has 60 questions", "all that beta answered: give at")
    same = write_jsonl(tmp_path / "same.jsonl", [{**row, "question": "Which?", "group": row["id"]} for row in rows])
    done = run(PROGRAM, same, "--map", "winner=preference", "--out", tmp_path / "o")
    assert_one_line_error(done, "rows share an image, or question and")
    assert run(PROGRAM, path, "--map", "winner=preference", "--out", tmp_path / "o").returncode == 0
    read = human_scored.load(tmp_path / "o/train.jsonl").responses
    assert read == human_scored.load(tmp_path / "found/train.jsonl").responses
    assert 50 < len(read) < 60 and {answer.preference: answer.human for answer in read} == dict.fromkeys(WORDS.values())
    said = {1.0: ["A", "B"], 0.0: ["B", "A"], 0.5: ["tie", "tie"]}
    for answer in read:
        assert answer.preference == WORDS[pair(int(answer.id[1:]))["winner"]]
        examples = taught([answer], pairwise=1.0)
        assert [json.loads(example.target)["Verdict"] for example in examples] == said[answer.preference]
        texts = [example.messages[0]["content"] for example in examples]
        assert [text.index(f"> {answer.text}\n") < text.index("> b\n") for text in texts] == [True, False]
    forced, rated = plan(read, {"pairwise_turn_forced": 1.0}), plan(read, {"pointwise": 1.0})
    assert len(forced.examples) == 2 * sum(answer.preference != 0.5 for answer in read)
    assert rated.examples == [] and "two answers that were compared" in str(rated.left_out)


def test_a_sheet_of_pairs_keeps_numbers_and_empty_answers(tmp_path: Path) -> None:
    path = write_xlsx(tmp_path / "p.xlsx", [pair(1, response_a=3, response_b="", preference="A")])
    (row,) = human_scored.load(path, own=human_scored.OwnColumns()).responses
    assert row.other is not None and (row.text, row.other.text, row.preference) == ("3", "", 1.0)


def test_lines_of_several_raters_are_one_row(tmp_path: Path) -> None:
    said = enumerate([("ann", "a"), ("bob", "a"), ("cyd", "b"), ("ann", "tie"), ("bob", "b")])
    rows = [human_row(0, rater=name, human_score=score) for name, score in (("ann", 2.0), ("bob", 5.0))]
    rows += [human_row(1, **pair(1), rater="dan", preference=None, human_score=None)]
    rows += [human_row(1 + n // 3, **pair(1 + n // 3), rater=name, preference=word) for n, (name, word) in said]
    scored, first, second = human_scored.load(write_jsonl(tmp_path / "r.jsonl", rows)).responses
    assert scored.human is not None and (scored.human.score, scored.human.raters) == (3.5, {"ann": 2.0, "bob": 5.0})
    assert (first.preference, second.preference) == (1.0, 0.5)


def test_what_raters_say_is_brought_together(tmp_path: Path) -> None:
    """Grades of pairs have a mean, also of sides that one saw the other way round; criteria and checklists too."""
    shown = {"question": "Q?", "response_a": "x", "response_b": "y"}
    rows = [{**shown, "rater": n, "human_score": score} for n, score in enumerate((-1, -2, -4))]
    rows += [{**shown, "response_a": "y", "response_b": "x", "rater": 3, "human_score": 1}]
    rows += [{**shown, "rater": 4, "human_score": None}]
    own = human_scored.OwnColumns(scale=(-4.0, 4.0))
    (pair,) = human_scored.load(write_jsonl(tmp_path / "p.jsonl", rows), own=own).responses
    assert (pair.text, pair.preference) == ("x", 0.25)
    about = {"criteria": {"a": "?"}, "checklist": ["?", "!"]}
    said = [("ann", 7.0, True), ("bob", 1.0, False), ("cyd", 4.0, None)]
    rows = [
        human_row(0, **about, rater=name, criteria_scores={"a": score}, checklist_answers=[score > 5, holds])
        for name, score, holds in said
    ]
    (row,) = human_scored.load(write_jsonl(tmp_path / "r.jsonl", rows)).responses
    assert row.human is not None and (row.human.criteria, row.human.answers) == ({"a": 4.0}, [False, None])
    nobody = [human_row(0, human_score=None, annotators={"a": "N/A"}), human_row(1, rater="a", human_score=None)]
    assert human_scored.load(write_jsonl(tmp_path / "n.jsonl", nobody)).left_out == {"no score by people": 2}
    shares = [human_row(0, other="b", scale_min=0, scale_max=1, rater=n, human_score=n / 10) for n in (9, 8, 7)]
    (graded,) = human_scored.load(write_jsonl(tmp_path / "s.jsonl", shares)).responses
    assert graded.preference == pytest.approx(0.8)
    unread = human_scored.load(tmp_path / "p.jsonl", scored=False, own=own).responses
    assert len({each.id for each in unread}) == len(unread) == 5, "who is to label or judge has each line"


def test_a_table_with_a_column_for_each_rater(tmp_path: Path) -> None:
    """An empty cell is nobody's label, and a column named as one of ours is none."""
    rows = [{"question": "Q?", "reference": "r", "response": "a", "ann": 5, "bob": "1,5", "other": "nice"}]
    ours = {**human_row(0, other="b", other_system="s"), "scale_min": 0, "scale_max": 1}
    tables.write_csv(tmp_path / "ours.csv", [{name: cell for name, cell in ours.items() if name != "history"}])
    assert human_scored.load(tmp_path / "ours.csv").responses[0].preference == ours["human_score"]
    table = tables.write_csv(path := tmp_path / "t.csv", [*rows, rows[0] | {"ann": "NA", "bob": ""}])
    own = human_scored.OwnColumns.parse(["ann=human_score", "bob=human_score"], "1:5", None)
    loaded = human_scored.load(path, own=own)
    assert table == 2 and loaded.left_out == {"no score by people": 1}
    (row,) = loaded.responses
    assert row.other is None and row.human is not None and row.human.raters == {"ann": 10.0, "bob": 2.125}


def test_judged_pairs_of_scored_answers_are_as_far_apart_as_their_scores(tmp_path: Path) -> None:
    answer, other = (human_scored.build_response(Row(**human_row(n, human_score=7.0 + n)), {}) for n in (0, 1))
    setup = JudgeConfig(judge="j", score_kind="argmax")
    judged = Judgment(sample=Sample.of(answer, other), setup=setup, verdict=Verdict(), prompt="pairwise")
    jsonl.write(tmp_path / "judged.jsonl", [judged])
    (read,) = human_scored.load(tmp_path / "judged.jsonl").responses
    assert read.preference == pytest.approx(0.5 - 1 / 18)
    pair = replace(answer, id="p", text="z", system="s", other=other, preference=1.0, human=None)
    assert len(taught([answer, pair], pairwise=1.0)) == 2, "nothing is compared with what is a pair"


def test_scores_of_answers_and_of_conversations_are_not_compared(tmp_path: Path) -> None:
    """Each is a pair with its own kind, though both ask the same question. Only a checklist's forms show checklists."""
    about: dict[str, Any] = {"group": "g", "image": None, "question": "Q?", "reference": "r"}
    about |= {"history": [{"user": "a", "assistant": "b"}], "checklist": ["Is it right?"], "checklist_answers": [True]}
    rows = []
    for n, scope in enumerate(["turn", "turn", "conversation", "conversation"]):
        rows.append(human_row(n, **about, scope=scope, system="st"[n % 2], human_score=[9, 2][n % 2]))
    read = human_scored.load(write_jsonl(tmp_path / "rows.jsonl", rows)).responses
    planned = plan(read, {"pairwise_turn": 1.0, "pairwise_whole": 1.0})
    shown = {(example.form, frozenset(example.ids)) for example in planned.examples}
    assert shown == {
        ("pairwise_turn", frozenset(("row-0", "row-1"))),
        ("pairwise_whole", frozenset(("row-2", "row-3"))),
    }
    prompts = {example.form: example.messages[0]["content"] for example in taught(read, quality=1.0, direct_turn=1.0)}
    assert "Is it right?" in prompts["quality"] and "Is it right?" not in prompts["direct_turn"]


@pytest.mark.parametrize(
    ("rows", "words", "part"),
    [
        ([pair(1, winner="upper")], ["--map", "winner=preference"], ":1: preference 'upper'; expected a, b, tie"),
        ([pair(1, response_b=None)], ["--map", "winner=preference"], ":1: only response_a; a pair has both"),
        ([human_row(0, rater="ann")] * 2, [], ":2: ann on 'row-0' is there twice"),
        ([human_row(0, rater=n, scale_max=10 + n) for n in (0, 1)], [], ":2: scale_max 11, and another at"),
        ([human_row(0, rater=n, response=n) for n in "ab"], [], ":2: response of 'row-0' is another at"),
        ([human_row(0, human_score=None, preference="a")], [], ":1: preference 'a' beside one answer"),
        ([human_row(0, sample={}, verdict={"rating": "x"})], [], ":1: Expected `float | null`, got `str`"),
        ([pair(1, rater="ann", winner=None)], ["--scale", "1:5"], ":1: Object missing required field `human_score`"),
        ([human_row(0, human_score=None, annotators=[7])], [], "no usable row (1 rows, no score by people)"),
        ([human_row(0, rater=n, checklist=[n]) for n in "ab"], [], ":2: checklist of 'row-0' is another at"),
        ([human_row(0)], ["--map", "id=task", "--map", "lang=task"], "id and lang are both task"),
        ([human_row(0)], ["--scale", "1:5"], "--scale 1:5, but its scale_min, scale_max are (1, 10)"),
        ([human_row(0)], ["--map", "a=response"], "there is no column 'a' among id, task"),
        ([human_row(0)], ["--map", "question=qestion"], "did you mean question?"),
        ([human_row(0)], ["--map", "response"], "expected COLUMN=FIELD"),
        ([human_row(0)], ["--scale", "5:1"], "with LOW below HIGH"),
        ([human_row(0)], ["--lang", "fr"], "'zh', 'en'"),
        ([*TWO, human_row(2, human_score=11.0)], [], "rows.jsonl:3: human_score 11 is outside its scale 1..10"),
        ([*TWO, human_row(2, scale_min=10)], [], "rows.jsonl:3: scale_min"),
        ([*TWO, human_row(2, annotators={"r1": 0.0})], [], "rows.jsonl:3: r1 0 is outside its scale 1..10"),
        ([*TWO, human_row(2, id="row-0")], [], "rows.jsonl:3: duplicate id 'row-0', first at DIR/rows.jsonl:1"),
        ([*TWO, human_row(2, lang="fr")], [], "rows.jsonl:3: Invalid enum value 'fr' - at `$.lang`"),
        ([*TWO, human_row(2, history=[{"user": "a"}])], [], "rows.jsonl:3: Object missing required field `assistant`"),
        ([*TWO, human_row(2, gpt4_score_1_10=12)], [], "rows.jsonl:3: gpt4_score_1_10 12"),
        ([*TWO, human_row(2, gpt4_score_1_10="high")], [], "rows.jsonl:3: gpt4_score_1_10"),
    ],
)  # fmt: skip
def test_bad_rows_and_labels_that_contradict_are_one_line(
    tmp_path: Path, rows: Any, words: list[str], part: str
) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    done = run(PROGRAM, path, *words, "--out", tmp_path / "o")
    assert_one_line_error(done, part.replace("DIR", str(tmp_path)))
    assert not (tmp_path / "o").exists()


def test_grades_of_conversations_teach_the_prompts_of_their_protocol(tmp_path: Path) -> None:
    files = [replies(tmp_path / f"{name}.jsonl", "convbench", system=name) for name in "mn"]
    rows = [{"id": "1/own/direct/1", "turn": 1, "score": 4}, {"id": "1", "turn": "whole", "grade": 7}]
    rows += [*preferences(2, "model", key="2"), *preferences("whole", "n", key="2")]
    words = ["--replies", files[0], "--against", files[1], "--turn-context", "all", "--out", tmp_path / "p.jsonl"]
    run("critic", "import-grades", write_csv(tmp_path / "g.csv", rows), *words, code=0)
    read = human_scored.load(tmp_path / "p.jsonl").responses
    mix = {"direct_turn_in_full": 1.0, "direct_whole_reason_first": 1.0, "pairwise_whole": 1.0}
    turn, whole, *pairs = (example.messages[0]["content"] for example in taught(read, **mix))
    assert "m on 1 turn 3." in turn and "> Turn 1: 4\n" in whole and all("n on 2 turn 3." in text for text in pairs)
    assert ["> Turn 2: A\n" in text for text in pairs] == [True, False] and "> Turn 2: B\n" in pairs[1]
    assert plan(read, {"direct_turn": 1.0}).examples == []


def test_pairs_that_were_annotated_are_rows_to_learn_from(tmp_path: Path) -> None:
    rows = [human_row(n, question=f"Q{n // 2}?", group=f"g{n // 2}", image=None, reference="r") for n in range(8)]
    store = planned(tmp_path, "--scheme", "pairwise", "--raters", "1", rows=write_jsonl(tmp_path / "r.jsonl", rows))
    for rater in store.counts():
        label_all(page_of(store), rater)
    read = human_scored.load(exported(store)).responses
    assert len(read) == 4 and all(answer.preference in (0.0, 1.0) for answer in read)
    assert {answer.text for answer in read} < {row["response"] for row in rows} and read[0].question.reference == "r"


def test_a_later_turns_row_has_the_images_of_the_turns_before_it(tmp_path: Path) -> None:
    """The judge of the turn is shown the conversation, whose first turn may be the only one with an image."""
    path = replies(tmp_path / "r.jsonl", "multiverse", ("oracle",))
    rows = human_scored.load(path, scored=False).responses
    by_turn = {int(row.id.split("/")[1]): row for row in rows if row.id.startswith("sample-3/")}
    assert sorted(by_turn) == [1, 2, 3]
    assert all(row.question.images == ["images/sign.png"] for row in by_turn.values())
