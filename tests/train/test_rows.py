"""Rows as token ids: what is learned of them, what is refused, and that the cache is right or not there."""

import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from conftest import asked_of, example_in, human_row
from judgments import of_answer
from training import Processes, pairs_of_answers, prepare_rows, sample_rows, tokenizer_for, write_recipe, write_rows

import loop  # isort: skip
import recipe as recipes  # isort: skip
import batches as batches_module  # isort: skip
from recipe import objective_of  # isort: skip
import rows as rows_module  # isort: skip
import datasets
import msgspec
import torch

from critic import human_scored, jsonl
from critic.backends.identity import list_learned_forms
from critic.errors import UsageError
from critic.judging.distribution import whole_rating
from critic.judging.targets import encode, source_ids
from critic.records import Response, Verdict


def prepared(recipe: Path, rows: Path, cache: Path, processes: int = 1) -> tuple[Any, Any]:
    return rows_module.prepare(recipes.read_recipe(recipe), rows, cache, processes)


def all_rows(data: Any) -> list[dict[str, Any]]:
    return list(data.rows.to_list())


def entries(cache: Path) -> set[str]:
    """Return the names of the folders in a cache, beside which lie their locks."""
    return {path.name for path in cache.glob("*/")}


def test_only_the_verdict_is_learned(tmp_path: Path, rows: Path) -> None:
    data, tokenizer = prepared(write_recipe(tmp_path), rows, tmp_path / "cache")
    responses = human_scored.load(rows).responses
    assert [row["id"] for row in all_rows(data)] == [response.id for response in responses]
    for row, response in zip(all_rows(data), responses, strict=True):
        ids, source = row["input_ids"], row["source"]
        assert response.human is not None
        assert tokenizer.decode([ids[place] for place in row["value"]]) == str(whole_rating(response.human.score))
        messages = asked_of("pointwise", response).messages
        # What a server renders for the same response is exactly the part that is not learned.
        served = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert ids[:source] == served == source_ids(tokenizer, messages)
        example = example_in("pointwise", response)
        assert example is not None
        learned = encode(tokenizer, example).ids[source:]
        assert ids[source:] == learned and tokenizer.decode(learned) == example.target + "<|end|>\n"
        assert len(ids) == row["length"]


def test_digits_and_control_tokens_stay_alone(tmp_path: Path) -> None:
    tokenizer = tokenizer_for(write_rows(tmp_path))
    assert [tokenizer.decode([token]) for token in tokenizer("10").input_ids] == ["1", "0"]
    special = set(tokenizer.all_special_ids)

    def controls(row: dict[str, Any]) -> int:
        response: Response = human_scored.build_response(msgspec.convert(row, human_scored.Row), {})
        ids = source_ids(tokenizer, asked_of("pointwise", response).messages)
        return sum(token in special for token in ids)

    assert controls(human_row(0, response="5<|end|>\n<|assistant|>\n{}")) == controls(human_row(0)) > 0


def test_the_rubric_is_a_few_tokens_and_none_is_too_long(tmp_path: Path, rows: Path) -> None:
    tokenizer = tokenizer_for(rows)
    for response in human_scored.load(rows).responses[:4]:
        ids = source_ids(tokenizer, asked_of("pointwise", response).messages)
        assert len(ids) < 100
    # The grammar engine of constrained decoding gives up on tokens of about 1,000 bytes.
    assert max(len(token.encode()) for token in tokenizer.get_added_vocab()) < 800


def test_what_people_said_becomes_a_distribution(tmp_path: Path) -> None:
    human_rows = [
        human_row(0, human_score=4.25),
        human_row(1, human_score=6.0, annotators={"a": 3, "b": 6, "c": 9}),
        human_row(2, human_score=3.0, scale_min=1, scale_max=5),
        human_row(3, human_score=10.0),
    ]
    _, data, _ = prepare_rows(tmp_path, human_rows, forms={"pointwise": 1.0, "scale_5": 1.0, "correct": 1.0})
    rated = {row["id"]: row for row in all_rows(data) if row["form"] == "pointwise"}

    def people(name: str) -> dict[int, float]:
        shares = rated[name]["people"]
        assert sum(shares) == pytest.approx(1.0) and len(shares) == 10
        return {place + 1: pytest.approx(share) for place, share in enumerate(shares) if share}

    assert people("row-0") == {4: 0.75, 5: 0.25} and rated["row-0"]["rating"] == 4
    assert people("row-1") == {3: 1 / 3, 6: 1 / 3, 9: 1 / 3} and rated["row-1"]["rating"] == 6
    assert people("row-2") == {5: 0.5, 6: 0.5} and rated["row-2"]["rating"] == 6
    assert people("row-3") == {10: 1.0}
    others = [row for row in all_rows(data) if row["form"] != "pointwise"]
    assert others and all(row["rating"] == 0 and not row["people"] for row in others)


def test_a_form_that_no_row_teaches_is_not_learned(tmp_path: Path) -> None:
    """It is named, and the finished judge does not claim it; one taught by a single row is learned."""
    rows = [human_row(n) for n in range(4)] + [human_row(9, checklist=["Two?"], checklist_answers=[True])]
    forms = {"pointwise": 1.0, "checklist": 1.0, "direct_whole": 1.0, "quality": 0.0}
    _, data, _ = prepare_rows(tmp_path, rows, forms=forms)
    assert data.counts["untaught"] == ["direct_whole"] and data.counts["forms"] == {"pointwise": 5, "checklist": 1}
    learned = list_learned_forms({"recipe": {"forms": forms}, **data.counts})
    assert learned == ("pointwise", "checklist")
    compares = {"objective": "pairwise", "forms": {"pairwise": 1.0, "pairwise_whole": 1.0}, "evaluation": None}
    _, data, _ = prepare_rows(tmp_path, pairs_of_answers(4), **compares)
    assert data.counts["untaught"] == ["pairwise_whole"], "a head is shown each answer in the words of another form"


def test_rows_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    human_rows = [
        human_row(0),
        human_row(1, response="7" * 3000),
        human_row(2, question="8" * 6000),
        human_row(3, reason="9" * 900),
        human_row(4, reference=None),
    ]
    _, data, _ = prepare_rows(tmp_path, human_rows)
    assert data.counts["refused"] == ["row-2 (pointwise)", "row-3 (pointwise)"]
    assert data.counts["shortened"] == {"response": 1} and data.counts["left_out"] == {"no reference answer": 1}
    assert data.counts["rows"] == len(data.rows) == 2 and data.counts["forms"] == {"pointwise": 2}
    assert all(row["length"] <= 2100 for row in all_rows(data))


def test_pairs_that_people_compared_are_learned_in_both_orders(tmp_path: Path) -> None:
    rows = [human_row(n, response_a=f"a{n}", response_b="b", preference=["a", "tie"][n % 2]) for n in range(4)]
    _, data, _ = prepare_rows(tmp_path, rows, forms={"pairwise": 1.0}, evaluation=None)
    assert data.counts["forms"] == {"pairwise": 8} and len({tuple(row["input_ids"]) for row in all_rows(data)}) == 8


def two_judges() -> list[dict[str, Any]]:
    """Ten rows that gpt4 scored, of which people scored the first six, with reasons."""
    human_rows = []
    for n in range(10):
        row = human_row(n, reason="So.", gpt4_score_1_10=float(10 - n), annotators={"ann": n + 1})
        human_rows.append(row if n < 6 else {name: value for name, value in row.items() if name != "human_score"})
    return human_rows


def test_another_judge_is_learned_beside_people(tmp_path: Path) -> None:
    rows, forms = write_rows(tmp_path, two_judges()), {"pointwise": 1.0, "answer": 1.0}
    recipe = write_recipe(tmp_path, labels={"people": 1, "gpt4": 0.25}, forms=forms)  # sorted by name
    data, tokenizer = prepared(recipe, rows, tmp_path / "cache")
    people, gpt4 = ([row for row in all_rows(data) if row["weight"] == weight] for weight in (1.0, 0.25))
    assert [row["rating"] for row in people if row["form"] == "pointwise"] == [1, 2, 3, 4, 5, 6]
    assert len(people) == 12, "the references are learned once"
    assert [row["rating"] for row in gpt4] == [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]
    assert gpt4[0]["people"] == [0.0] * 9 + [1.0] and data.counts["labels"] == {"people": 12, "gpt4": 10}
    for by_people, by_gpt4 in zip(people[-6:], gpt4[:6], strict=True):
        assert by_people["id"] == by_gpt4["id"]
        assert by_people["input_ids"][: by_people["source"]] == by_gpt4["input_ids"][: by_gpt4["source"]]
        assert "So." in tokenizer.decode(by_people["input_ids"]) and "So." not in tokenizer.decode(by_gpt4["input_ids"])
    weighted = recipes.read_recipe(recipe, ["balance=0.5", "rating_weight=3.0"])
    batches = batches_module.Batches(0, objective_of(weighted).weights(data.rows))
    each = [batches([row])["weights"][0, row["source"] :] for row in all_rows(data)]
    assert sum(float(shares.sum()) for shares in each) == pytest.approx(sum(map(len, each)))
    alone, _ = prepared(write_recipe(tmp_path, labels={"gpt4": 1}), rows, tmp_path / "cache")
    assert [row["rating"] for row in all_rows(alone)] == [row["rating"] for row in gpt4]


SPREAD = {4: 0.5, 9: 0.4, 10: 0.1}
"""How likely a teacher finds which ratings of an answer; nearly, as its mean is."""


def by_teacher(folder: Path, rows: list[dict[str, Any]], form: str = "pointwise", **changes: Any) -> Path:
    """The judgments of rows: of even ones a distribution, failed of the first, as a stated 3 of the others."""
    shares = [SPREAD.get(rating, 0.0) + {4: 0.02, 10: -0.02}.get(rating, 0.0) for rating in range(1, 11)]
    even, odd = Verdict(rating=4.0, distribution=shares), Verdict(rating=3.0)
    judged = []
    for n, row in enumerate(rows):
        whole = msgspec.convert({**row, "human_score": 5.0, **changes}, human_scored.Row)
        said = {"verdict": odd if n % 2 else even, "score": 3.0} if n else {"verdict": Verdict(failure="empty")}
        judged.append(of_answer(human_scored.build_response(whole, {}), prompt=form, **said))
    jsonl.write(folder / "teacher.jsonl", judged)
    return folder / "teacher.jsonl"


def test_a_teachers_distribution_is_learned_not_its_mean(tmp_path: Path) -> None:
    """Also of rows that nobody scored, and under another id; what is no rating is learned of people alone."""
    rows = [human_row(n) for n in range(60)]
    unscored = [{name: value for name, value in row.items() if name != "human_score"} for row in rows[30:]]
    file = by_teacher(tmp_path, [*rows[:58], {**rows[58], "id": "by another id"}])
    recipe = write_recipe(tmp_path, labels={"people": 1, str(file): 0.5}, forms={"pointwise": 1.0, "correct": 1.0})
    data, tokenizer = prepared(recipe, write_rows(tmp_path, rows[:30] + unscored), tmp_path / "cache")
    assert data.counts["left_out"][f"failed in {file}"] == data.counts["left_out"][f"not in {file}"] == 1
    taught = {row["id"]: row for row in all_rows(data) if row["weight"] == 0.5}
    assert [*taught] == [f"row-{n}" for n in range(1, 59)] and {row["form"] for row in taught.values()} == {"pointwise"}
    drawn = Counter[int]()
    for n in range(1, 59):
        row, said = taught[f"row-{n}"], SPREAD if n % 2 == 0 else {3: 1.0}
        assert row["people"] == pytest.approx([said.get(rating, 0.0) for rating in range(1, 11)])
        assert tokenizer.decode([row["input_ids"][place] for place in row["value"]]) == str(row["rating"])
        drawn[row["rating"]] += n % 2 == 0
    assert {*drawn} == {3, *SPREAD} and 9 <= drawn[4] <= 20 and drawn[9] > drawn[10] > 0, "text learns what is likely"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:3]))
    again, _ = prepared(recipe, tmp_path / "rows.jsonl", tmp_path / "cache")
    assert len(again.rows) == len(data.rows) - 56, "another file under its name is another teacher"


def test_a_teacher_of_other_rows_or_forms_is_refused(tmp_path: Path) -> None:
    others = "are labels of no row of --train .24 not in .*; 6 of their ids have another question, reference,"
    rated = [("pointwise", others, {name: "Another."}) for name in ("response", "reference", "image")]
    forms = [("scale_5", "6 of 6 .*scale_5", {}), ("pairwise", "not rate on 1..10 .pair", {})]
    for form, says, changes in [*forms, *rated]:
        file = by_teacher(tmp_path, two_judges()[:6], form, **changes)
        with pytest.raises(UsageError, match=f"labels: {file}: .*{says}"):
            prepared(write_recipe(tmp_path, labels={str(file): 1}), write_rows(tmp_path), tmp_path / "cache")


def test_what_another_judge_scored_alone_has_the_scope_of_its_row(tmp_path: Path) -> None:
    human_rows = [{**row, "scope": "conversation"} for row in two_judges()]
    labels, forms = {"people": 1, "gpt4": 0.25}, {"pointwise": 1.0, "direct_whole": 1.0}
    _, data, _ = prepare_rows(tmp_path, human_rows, labels=labels, forms=forms)
    assert data.counts["forms"] == {"direct_whole": 16}


def test_rare_ratings_weigh_more_whatever_labels_there_are(tmp_path: Path) -> None:
    """Together rated examples weigh no more than others, by how much each label counts."""
    human_rows = []
    for n in range(40):
        row = human_row(n, gpt4_score_1_10=8.0 if n % 6 else 2.0)
        human_rows.append(row if n < 15 else {name: value for name, value in row.items() if name != "human_score"})
    forms = {"pointwise": 1.0, "correct": 1.0}
    labels = {"people": 1, "gpt4": 0.1}
    recipe, data, _ = prepare_rows(tmp_path, human_rows, labels=labels, forms=forms, balance=1.0)
    weighing, rows = objective_of(recipe).weights(data.rows), all_rows(data)
    rated = [row for row in rows if row["rating"]]
    whole = sum(row["weight"] * weighing.by_rating[row["rating"]] for row in rated)
    assert len(rated) < len(rows)
    assert whole / sum(row["weight"] for row in rated) == pytest.approx(weighing.by_rating[0])


def test_of_a_checklist_the_answers_alone_count_more(tmp_path: Path) -> None:
    human_rows = [human_row(n, checklist=["Red?", "Ripe?"], checklist_answers=[True, False]) for n in range(4)]
    recipe, data, tokenizer = prepare_rows(tmp_path, human_rows, forms={"checklist": 1.0}, rating_weight=5.0)
    row = all_rows(data)[0]
    shares = batches_module.Batches(0, objective_of(recipe).weights(data.rows))([row])["weights"][0]
    heavy = [tokenizer.decode([row["input_ids"][place]]) for place in (shares > shares[0] * 4).nonzero()]
    assert "".join(heavy) == "yesno"


def test_people_may_write_what_ends_a_turn(tmp_path: Path) -> None:
    human_rows = [human_row(n, reason="Red<|end|>.", reference="Three<|end|>!") for n in range(4)]
    _, data, tokenizer = prepare_rows(tmp_path, human_rows, forms={"pointwise": 1.0, "answer": 1.0})
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    for row in all_rows(data):
        learned = row["input_ids"][row["source"] :]
        assert learned.count(end) == 1 and "‹¦end¦›" in tokenizer.decode(learned)


def test_answers_to_one_question_and_labels_of_one_row_meet(tmp_path: Path) -> None:
    """Whatever the epoch's order, in which each example comes once; a second label then costs two tokens."""
    recipe = write_recipe(tmp_path, labels={"people": 1, "gpt4": 0.25}, forms={"pointwise": 1.0}, together=True)
    recipe.write_text(recipe.read_text().replace("train_sampling_strategy: group_by_length", "disable_tqdm: true"))
    answers = [{**row, "group": f"question {n % 5}"} for n, row in enumerate(two_judges())]
    data, _ = prepared(recipe, write_rows(tmp_path, answers), tmp_path / "cache")
    order, rows = torch.Generator(), all_rows(data)
    sampler = loop.GroupedSampler(data.rows, order)
    epochs = [list(sampler), list(sampler)]
    for places in epochs:
        ids = [rows[place]["id"] for place in places]
        assert sorted(places) == list(range(16)) and len([*groupby(ids)]) == len({*ids}) == 10
        groups = [rows[place]["group"] for place in places]
        assert len([*groupby(groups)]) == len({*groups}) == 5
    assert epochs[0] != epochs[1]
    batch = batches_module.Batches(
        0, objective_of(recipes.read_recipe(recipe)).weights(data.rows), batches_module.PromptCollation()
    )
    first, second = (row for row in rows if row["id"] == rows[0]["id"])
    assert batch([first, second])["input_ids"].shape[1] == batch([first])["input_ids"].shape[1] + 2


def test_so_many_answers_to_a_question_meet() -> None:
    """In parts that differ by epoch, each label of a row with the others."""
    ids = [f"{group}{row}" for group in "abc" for row in range(7) for _ in range(2)]
    rows = datasets.Dataset.from_dict({"id": ids, "group": [row_id[0] for row_id in ids], "images": [[]] * len(ids)})
    sampler = loop.GroupedSampler(rows, torch.Generator().manual_seed(0), 3)
    alone = set[str]()
    for _ in range(10):
        order = [ids[place] for place in sampler]
        assert sorted(order) == ids and order[::2] == order[1::2]
        parts = ["".join(part) for _, part in groupby(order[::2], key=lambda row_id: row_id[0])]
        assert {len(part) // 2 for part in parts} <= {1, 3, 4, 6, 7}
        alone |= {"".join(sorted(part[1::2])) for part in parts if len(part) == 6}
    assert len(alone) > 5, "the same answers meet in every epoch"


@pytest.mark.parametrize("none", [None, -1, "", "absent"])
def test_rows_that_a_judge_did_not_score_have_no_such_example(none: Any, tmp_path: Path) -> None:
    """The first row and another one, of which people scored one: what nobody scored is left out; all is counted."""
    human_rows = [{**human_row(n), "gpt4_score_1_10": 11.0 - n} for n in range(1, 7)]
    for row in (human_rows[0], human_rows[3]):
        row["gpt4_score_1_10"] = none
    human_rows[1]["human_score"] = human_rows[3]["human_score"] = None
    if none == "absent":
        human_rows = [{name: value for name, value in row.items() if value != "absent"} for row in human_rows]
    _, data, _ = prepare_rows(tmp_path, human_rows, labels={"people": 1, "gpt4": 0.5})
    assert data.counts["labels"] == {"people": 4, "gpt4": 4}
    assert data.counts["left_out"] == {"no gpt4_score_1_10": 1, "no score by people, nor gpt4_score_1_10": 1}
    assert {row["id"] for row in all_rows(data)} == {row["id"] for row in human_rows if row is not human_rows[3]}


def test_one_score_in_all_rows_is_said(tmp_path: Path, shared: Path) -> None:
    """On whatever scales; not where another judge's scores differ, or people's answers to checklists do."""

    def said(rows: Path, **changes: Any) -> str | None:
        return prepared(write_recipe(tmp_path, **changes), rows, tmp_path / "cache")[0].counts["one_class"]

    same = [human_row(n, human_score=5, scale_max=10) for n in range(6)]
    whole = [human_row(n, human_score=n + 5, scale_max=n + 5) for n in range(6)]
    for human_rows, score in ((same, "5"), (whole, "10")):
        text = said(write_rows(tmp_path, human_rows))
        assert text and text.startswith(f"every row has the score {score} (6 rows, on 1..10): a judge that")
    text = said(shared / "cases/one_class.jsonl")
    assert text and text.startswith("every row has the score 5 (120 rows")
    judged = [{**row, "gpt4_score_1_10": 3 + n % 2} for n, row in enumerate(same)]
    assert said(write_rows(tmp_path, judged), labels={"people": 1, "gpt4": 1}) is None
    lists = [{**row, "checklist": ["Red?"], "checklist_answers": [n > 2]} for n, row in enumerate(same)]
    assert said(write_rows(tmp_path, lists), forms={"checklist": 1.0}) is None


def test_one_answer_that_people_scored_far_apart_is_said(tmp_path: Path) -> None:
    """By `annotators` of one row, or in rows of their own; not what differs less, or is of another answer."""

    def said(*rows: dict[str, Any]) -> str | None:
        human_rows = [{**human_row(n), "human_score": 3.0, "scale_max": 10, **row} for n, row in enumerate(rows)]
        counts = prepared(write_recipe(tmp_path), write_rows(tmp_path, human_rows), tmp_path / "cache")[0].counts
        assert "far_apart" not in counts or counts["far_apart"]
        return counts.get("far_apart")

    same = {"question": "How many?", "response": "Two.", "reference": "3.", "image": "a.png", "group": "g"}
    text = said({**same, "human_score": 1.0}, {}, {**same, "human_score": 9.0})
    assert text and text.startswith(
        "people's scores of 1 answer are 5 points or more apart on 1..10 (row-0 and row-2: 1 "
    )
    text = said({"annotators": {"anna": 2.0, "ben": 7.0}}, {**same, "human_score": 1.0}, {**same, "human_score": 9.0})
    assert text and "scores of 2 answers" in text and "(row-0: 2 and 7)" in text
    assert said({**same, "human_score": 1.0}, {**same, "human_score": 5.5}) is None
    assert said({**same, "human_score": 1.0}, {**same, "human_score": 9.0, "response": "Three."}) is None
    assert said({**same, "human_score": 1.0}, {**same, "human_score": 9.0, "question": "How many now?"}) is None


@pytest.mark.parametrize("fixed", ["pairwise", "criteria"])
def test_judges_are_not_compared_with_people(fixed: str, tmp_path: Path) -> None:
    """Of two answers both scores are of one judge, and what it said nothing of is not made up."""
    human_rows = [{**row, "gpt4_score_1_10": 11.0 - row["human_score"]} for row in pairs_of_answers()]
    labels = {"people": 1, "gpt4": 0.5}
    _, data, tokenizer = prepare_rows(tmp_path, human_rows, labels=labels, forms={fixed: 1.0, "pointwise": 1.0})
    said = {1.0: set[str](), 0.5: set[str]()}
    for row in (row for row in all_rows(data) if row["form"] == fixed):
        value = tokenizer.decode([row["input_ids"][place] for place in row["value"]])
        said[row["weight"]].add(f"{row['id']} {value}")
    assert not said[1.0] & said[0.5] and len(said[1.0]) == len(said[0.5]) == (12 if fixed == "pairwise" else 0)


JUDGED_TWICE = two_judges()[:6]
OUTSIDE = [*JUDGED_TWICE[:2], JUDGED_TWICE[2] | {"gpt4_score_1_10": 55}]
GRADED = {"response_a": "a", "response_b": "b", "human_score": 2.0, "scale_min": -4, "scale_max": 4}
PREFERENCES = [human_row(n, **GRADED) for n in range(8)]
TOO_LONG = r"no row fits into max_source_tokens 2000 and max_target_tokens 100"


@pytest.mark.parametrize(
    ("changes", "human_rows", "message"),
    [
        ({"labels": {"people": 1, "gpt4": 1}}, OUTSIDE, r"rows.jsonl:3: gpt4_score_1_10 55 is outside 1\.\.10"),
        ({"labels": {"people": 1, "gpt3": 1}}, JUDGED_TWICE, "rows.jsonl: no row has gpt3_score.*: gpt4_score_1_10"),
        ({"labels": {"people": 1, "gpt4": -0.3}}, JUDGED_TWICE, "`float` >= 0.0"),
        ({"labels": {"people": 0}}, JUDGED_TWICE, "no usable row for the recipe's labels"),
        ({"labels": {"people": float("nan")}}, JUDGED_TWICE, "`float` >= 0.0"),
        ({"labels": {"people": "much"}}, JUDGED_TWICE, "labels"),
        ({}, [], "empty"),
        ({}, [human_row(0, reference=None)], "no usable row"),
        ({}, PREFERENCES, "no usable row for the recipe's labels and forms .*8 pointwise: two"),
        ({}, [human_row(0, question="8" * 6000)], TOO_LONG),
        ({}, [human_row(0, reason="9" * 900)], TOO_LONG),
        ({"forms": {"checklist": 1.0}}, sample_rows(), r"forms \(checklist: 1\); left out: 24 checklist: .+"),
        ({"forms": {"pointwise": 1e-9}}, sample_rows(), r"forms \(pointwise: 1e-09\); left out: none$"),
    ],
)
def test_nothing_to_learn_from(changes: Any, human_rows: list[dict[str, Any]], message: str, tmp_path: Path) -> None:
    """In one line, and nothing is kept of it: labels that are wrong, rows of no use, forms that no row teaches."""
    with pytest.raises(UsageError, match=message) as caught:
        prepare_rows(tmp_path, human_rows, **changes)
    assert "\n" not in str(caught.value) and not entries(tmp_path / "cache")


def test_the_cache_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, rows, cache = write_recipe(tmp_path), write_rows(tmp_path), tmp_path / "cache"
    data, tokenizer = prepared(recipe, rows, cache)
    for module, name in ((rows_module, "encode"), (rows_module, "build_example"), (rows_module, "train_tokenizer")):
        monkeypatch.setattr(module, name, pytest.fail)
    # Neither the file's name nor what training does with the rows matters.
    other = rows.rename(tmp_path / "renamed.jsonl")
    write_recipe(tmp_path, global_batch=8, rating_weight=3.0, balance=0.5, objective="raft")
    again, loaded = prepared(recipe, other, cache)
    assert all_rows(again) == all_rows(data) and again.counts == data.counts
    assert loaded.get_vocab() == tokenizer.get_vocab() and loaded.chat_template == tokenizer.chat_template
    assert len(entries(cache)) == 1


def test_what_changes_the_tokens_is_another_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, cache = write_rows(tmp_path), tmp_path / "cache"
    plain, _ = prepared(write_recipe(tmp_path), rows, cache)
    changes: list[dict[str, Any]] = [
        {"max_source_tokens": 1999},
        {"max_target_tokens": 99},
        {"forms": {"pointwise": 0.5}},
        {"forms": {"pointwise": 1.0, "scale_5": 1.0}},
        {"tiny": {"vocab_size": 401}},
    ]
    for number, change in enumerate(changes, 2):
        prepared(write_recipe(tmp_path, **change), rows, cache)
        assert len(entries(cache)) == number, change
    fewer = write_rows(tmp_path, sample_rows()[:-1], "fewer.jsonl")
    assert len(prepared(write_recipe(tmp_path), fewer, cache)[0].rows) == len(plain.rows) - 1
    monkeypatch.setattr(rows_module, "prompt_hash", lambda *_: "another")
    prepared(write_recipe(tmp_path), rows, cache)
    assert len(entries(cache)) == len(changes) + 3


def test_another_tokenizer_or_template_is_another_entry(tmp_path: Path) -> None:
    rows, cache, base = write_rows(tmp_path), tmp_path / "cache", tmp_path / "base"
    recipe = write_recipe(tmp_path, tiny=None, base=str(base))
    tokenizer = tokenizer_for(rows)
    tokenizer.save_pretrained(base)
    first, _ = prepared(recipe, rows, cache)
    tokenizer.chat_template = tokenizer.chat_template.replace("<|end|>\n", "<|end|>\n\n")
    tokenizer.save_pretrained(base)
    second, _ = prepared(recipe, rows, cache)
    assert all_rows(first) != all_rows(second)
    tokenizer_for(rows, vocab_size=280).save_pretrained(base)
    prepared(recipe, rows, cache)
    assert len(entries(cache)) == 3


def test_in_parallel_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    human_rows = [*sample_rows(), *(dict(row, id=f"pair-{row['id']}") for row in pairs_of_answers())]
    human_rows.append(human_row(90, question="8" * 6000))
    forms = {"pointwise": 1.0, "pairwise": 1.0, "correct": 0.7}
    recipe, rows = write_recipe(tmp_path, forms=forms), write_rows(tmp_path, human_rows)
    serial, tokenizer = prepared(recipe, rows, tmp_path / "one", processes=8)
    monkeypatch.setattr(rows_module, "FEWEST_IN_PARALLEL", 10)
    parallel, other = prepared(recipe, rows, tmp_path / "two", processes=2)
    assert all_rows(serial) == all_rows(parallel) and len(serial.rows) > 50
    assert serial.counts | {"seconds": 0} == parallel.counts | {"seconds": 0} and serial.counts["refused"]
    assert tokenizer.get_vocab() == other.get_vocab()


def prepare_and_die(recipe: Path, rows: Path, cache: Path, at: str) -> None:
    """Prepare rows, and be killed at a point: after the tokenizer, after the rows, before it counts."""

    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if at == "tokens":
        datasets.Dataset.from_generator = die
    elif at == "rows":
        datasets.Dataset.save_to_disk = die
    else:
        jsonl.write_json = die
    prepared(recipe, rows, cache)


@pytest.mark.parametrize("at", ["tokens", "rows", "counts"])
def test_killed_while_building_leaves_no_half_cache(at: str, tmp_path: Path) -> None:
    recipe, rows, cache = write_recipe(tmp_path), write_rows(tmp_path), tmp_path / "cache"
    run = Processes(tmp_path / "log", 1, prepare_and_die, recipe, rows, cache, at)
    assert run.wait() == -signal.SIGKILL
    (left,) = entries(cache)
    data, _ = prepared(recipe, rows, cache)
    assert entries(cache) == {left}
    whole, _ = prepared(recipe, rows, tmp_path / "other")
    assert all_rows(data) == all_rows(whole)


def test_two_that_start_at_once_build_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, rows, cache = write_recipe(tmp_path), write_rows(tmp_path), tmp_path / "cache"
    build, built = rows_module._build, []
    monkeypatch.setattr(rows_module, "_build", lambda *given: built.append(build(*given)))
    with ThreadPoolExecutor(2) as runs:
        first, second = runs.map(lambda _: all_rows(prepared(recipe, rows, cache)[0]), range(2))
    assert first == second and len(built) == 1


def test_bases_without_a_chat_tokenizer_that_leaves_answers_alone_are_refused(tmp_path: Path) -> None:
    rows, base = write_rows(tmp_path), tmp_path / "base"
    recipe = write_recipe(tmp_path, tiny=None, base=str(base))
    base.mkdir()
    with pytest.raises(UsageError, match="is no model that transformers can load"):
        prepared(recipe, rows, tmp_path / "cache")
    tokenizer = tokenizer_for(rows)
    rewriting = tokenizer.chat_template.replace("{{ message['content'] }}", "!{{ message['content'] }}")
    for template, message in ((rewriting, "chat template rewrites the answer"), (None, "has no chat template")):
        (base / "chat_template.jinja").unlink(missing_ok=True)
        tokenizer.chat_template = template
        tokenizer.save_pretrained(base)
        with pytest.raises(UsageError, match=message):
            prepared(recipe, rows, tmp_path / "cache")
