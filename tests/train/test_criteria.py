"""A scoring head with `criteria`: a distribution for each criterion, and a rating that is their sum."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import human_row
from training import CRITERIA, criteria_rows, prepare_rows

import batches  # isort: skip
import evaluation  # isort: skip
import linear_head  # isort: skip
import tiny  # isort: skip
from recipe import objective_of  # isort: skip
import torch

from critic.backends import identity
from critic.errors import UsageError

HEAD: dict[str, Any] = {"objective": "head", "evaluation": None, "ema": None, "criteria": CRITERIA}
COUNTS = [2, 5, 3, 5]
"""Number of scores by each criterion, in the order of their names."""


def test_rows_teach_their_own_criteria(tmp_path: Path) -> None:
    """Half points count in part for both scores; rows that are not scored by all of theirs are left out."""
    written = criteria_rows(10)
    written[2]["criteria_scores"] = {"right": 1}
    written[4] = human_row(4)
    _, data, _ = prepare_rows(tmp_path, written, **HEAD)
    people = dict(zip(data.rows["id"], data.rows["people"], strict=True))
    assert people["row-0"] == [0.5, 0, *[0] * 5, 0.5, 0, 0, *[0] * 5]
    assert people["row-7"] == [0, 0, 0, 0.25, 0.25, 0, 0, 0, 0, 0, 0.5, 0, 0, 0, 0]
    assert sorted(people) == [f"row-{n}" for n in (0, 1, 3, 5, 6, 7, 8, 9)]
    assert data.counts["apart"] is True
    assert data.counts["left_out"] == {"not scored by all its criteria, or by one that the recipe has not": 2}
    one = {name: CRITERIA[name] for name in ("true", "fluent")}
    assert prepare_rows(tmp_path, written[1::2], **HEAD | {"criteria": one})[1].counts["apart"] is False


def test_the_loss_is_that_of_each_criterion_alone(tmp_path: Path) -> None:
    recipe, data, tokenizer = prepare_rows(tmp_path, criteria_rows(8), **HEAD)
    objective, rows = objective_of(recipe), [*data.rows]
    model = tiny.random_model(recipe.tiny, tokenizer, 2000, objective.head_config())
    objective.install(model)
    weighing, wanted = objective.weights(data.rows), 0.0
    for row in rows:
        logits = model(torch.tensor([row["input_ids"][: row["source"]]])).logits[0]
        logs = torch.cat([part.log_softmax(-1) for part in logits.split(COUNTS)])
        wanted -= weighing.of_row(row) * (torch.tensor(row["people"]) * logs).sum().item()
    batch = batches.Batches(tokenizer.pad_token_id, weighing, objective)(rows)
    ours = model(**batch, num_items_in_batch=len(rows)).loss
    assert ours.item() == pytest.approx(wanted / len(rows), rel=1e-5)


def test_each_criterion_is_fitted_on_its_own_rows(tmp_path: Path) -> None:
    _, data, _ = prepare_rows(tmp_path, criteria_rows(), **HEAD)
    states = np.random.default_rng(0).normal(size=(len(data.rows), 6))
    whole, _ = linear_head.fit_head(states, data.rows, COUNTS)
    people = np.array(data.rows["people"], dtype=float)
    begin = 0
    for count in COUNTS:
        own = people[:, begin : begin + count]
        rows = np.flatnonzero(own.sum(axis=1))
        assert len(rows) == 12
        alone, _ = linear_head.fit_ridge(states[rows], data.rows.select(rows), own[rows])
        assert whole[begin : begin + count] == pytest.approx(alone)
        begin += count


def test_held_out_rows_get_the_sum_of_their_criteria() -> None:
    """The second row counts the second of its criteria twice; a row without criteria has all."""
    scales = {"a": (0, 1), "b": (1, 3)}
    shares = np.array([[0.5, 0.5, 0.0, 0.0, 1.0]] * 3)
    named: list[dict[str, Any]] = [{"criteria": {"a": 1.0}}, {"criteria": {"a": 1.0, "b": 1.75}}, {"criteria": {}}]
    added = evaluation.add_criteria_of_rows(named, shares, scales)
    assert added[0] == pytest.approx([0.5, *[0.0] * 8, 0.5])
    assert added[1] == pytest.approx([*[0.0] * 7, 0.5, 0.0, 0.5])
    assert added[2] == pytest.approx([*[0.0] * 6, 0.5, 0.0, 0.0, 0.5])


TOGETHER = {"group_by_question": True, "training": {"train_sampling_strategy": "random"}}


def test_a_judge_that_writes_is_not_said_to_rate_by_criteria(tmp_path: Path) -> None:
    written = [{**row, "annotators": {"right": row["scale_max"]}} for row in criteria_rows(8)]
    _, data, _ = prepare_rows(tmp_path, written, objective="raft", evaluation=None, ema=None, criteria=CRITERIA)
    facts = {"recipe": {"criteria": CRITERIA, "forms": {}}, **data.counts}
    assert "criteria" not in identity.describe(facts)
    assert len(data.rows) == 8, "a criterion and a rater of one name have scales of their own"


WRONG = [
    ({"criteria": {"right": [3, 3]}}, {}, r"right: 3\.\.3 is no scale"),
    ({"criteria": {"right": [0, 100]}}, {}, r"0\.\.100 is no scale of 2 to 100 whole scores"),
    ({"rank": {}, **TOGETHER}, {}, "rank compares ratings"),
    ({"criteria": {**CRITERIA, "kind": [1, 2]}}, {}, "no row has people's score by kind"),
    ({"criteria": {**CRITERIA, "right": [1, 4]}}, {}, r"row-0: right is on the scale 1..3, in the recipe on 1..4"),
    ({}, {"criteria_scales": {"right": [1, 3], "explained": [1, 4]}}, r"explained .* 1..4, in a row before on 1..2"),
    ({}, {"criteria_scales": {"explained": [1, 2]}}, r"row.*: right 2 is outside its scale 3..5; criteria_scales"),
    ({}, {"criteria_scales": {"right": [3, 1], "explained": [1, 2]}}, "right 2 is outside its scale 3..1"),
    ({}, {"criteria_weights": {"right": 0}}, "criteria_weights"),
    ({}, {"criteria_weights": {"fluent": 2}}, "criteria_weights of fluent, which criteria does not name"),
]


@pytest.mark.parametrize(("recipe", "row", "message"), WRONG)
def test_criteria_that_do_not_fit(recipe: dict[str, Any], row: dict[str, Any], message: str, tmp_path: Path) -> None:
    written = criteria_rows(12)
    written[4] |= {"scale_min": 3, "criteria_scores": {"right": 2, "explained": 2}, **row}
    with pytest.raises(UsageError, match=message) as error:
        prepare_rows(tmp_path, written, **HEAD | recipe)
    assert "\n" not in str(error.value)
