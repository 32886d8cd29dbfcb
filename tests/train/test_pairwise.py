"""`objective: pairwise`: one score of each answer, learned from what people preferred."""

import json
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from training import GRADES, pairs_of_answers, preferences, prepare_rows, start, train, write_recipe, write_rows

import export  # isort: skip
from objective import name_classes  # isort: skip
from recipe import OBJECTIVES, objective_of  # isort: skip
import recipe as recipes  # isort: skip
import batches as batches_module  # isort: skip
import rows as rows_module  # isort: skip
import run as training_run  # isort: skip
import tiny  # isort: skip
import torch
import transformers
from torch.nn.functional import logsigmoid

from critic.errors import UsageError
from critic.human_scored import load
from critic.judging.forms import form_of, inquiry, split_sides
from critic.judging.targets import source_ids

PAIRS: dict[str, Any] = {"objective": "pairwise", "forms": {"pairwise": 1.0}, "evaluation": None, "ema": None}


def ready(folder: Path, rows: list[dict[str, Any]], **changes: Any) -> SimpleNamespace:
    recipe, data, tokenizer = prepare_rows(folder, rows, **PAIRS | changes)
    model = training_run.build_model(recipe, tokenizer, None).eval()
    file = folder / "rows.jsonl"
    return SimpleNamespace(recipe=recipe, file=file, data=data, tokenizer=tokenizer, model=model)


@pytest.mark.parametrize(("graded", "margin"), [(True, 0.5), (True, 0.0), (False, 0.5)])
def test_the_loss_is_that_of_both_answers_alone(tmp_path: Path, graded: bool, margin: float) -> None:
    """Each as it is asked for; graded preferences have margins above that of the slightest, others have none."""
    setup = ready(tmp_path, preferences(graded), margin=margin)
    rows, wanted = [*setup.data.rows], torch.zeros(())
    for row, response, grade in zip(rows, load(setup.file).responses, GRADES, strict=True):
        assert response.other is not None
        scores = []
        sides = split_sides(inquiry("pairwise", "en", form_of("pairwise").material(response, response.other)))
        for side, ids in zip(sides, (row["input_ids"][: row["source"]], row["other_ids"]), strict=True):
            assert ids == source_ids(setup.tokenizer, side.messages), "trained as asked"
            scores.append(setup.model(input_ids=torch.tensor([ids])).logits[0, 0])
        # The slightest preference is a quarter of the largest; at the largest three quarters are left above it.
        apart = margin * max(0.0, abs(grade) / 4 - 0.25) if graded else 0.0
        for sign in [1.0] * (grade >= 0) + [-1.0] * (grade <= 0):
            wanted = wanted - logsigmoid(sign * (scores[0] - scores[1]) - apart) / (1 + (grade == 0))
    weighing = objective_of(setup.recipe).weights(setup.data.rows)
    batch = batches_module.Batches(setup.tokenizer.pad_token_id, weighing, objective_of(setup.recipe))(rows)
    assert int((batch["labels"] >= 0).sum()) == len(rows), "a pair is one example"
    alone = sum(row["source"] + len(row["other_ids"]) for row in rows)
    assert batch["input_ids"].numel() < 0.7 * alone, "what both prompts begin with is computed once"
    ours = setup.model(**batch, num_items_in_batch=len(rows)).loss
    assert float(ours.detach()) == pytest.approx(float(wanted.detach()) / len(rows), rel=1e-5)


def test_graded_answers_to_one_question_are_pairs(tmp_path: Path) -> None:
    setup = ready(tmp_path, pairs_of_answers(6))
    assert len(setup.data.rows) == 3, "each pair once"
    for row in setup.data.rows:  # of each question the answer with the odd number is the better one
        odd = int(row["id"].partition("+")[0].removeprefix("row-")) % 2
        assert row["people"] == [pytest.approx(7 / 9 if odd else -7 / 9)]
    with pytest.raises(UsageError, match="no other answer to the same question"):
        ready(tmp_path / "alone", pairs_of_answers(6)[::2])


def test_each_form_that_compares_shows_the_answers_in_its_own_words(tmp_path: Path) -> None:
    setup = ready(tmp_path, preferences(), forms={"pairwise": 1.0, "pairwise_turn": 1.0})
    assert Counter(setup.data.rows["form"]) == {"pointwise_short": 8, "direct_turn": 8}, "each pair once a form"
    assert [*rows_module.prompt_hashes(setup.recipe)] == ["direct_turn", "pointwise_short"]


def test_a_killed_run_ends_as_a_folder_with_one_score_and_a_band(tmp_path: Path) -> None:
    rows, recipe = write_rows(tmp_path, preferences()), write_recipe(tmp_path, **PAIRS)
    whole, killed, base = (tmp_path / name for name in ("whole", "killed", "base"))
    train(recipe, rows, whole, internal=False)
    run = start(recipe, rows, killed, internal=False)
    while not (killed / "checkpoint-4" / "complete.json").exists() and run.processes[0].exitcode is None:
        time.sleep(0.002)
    run.kill()
    train(recipe, rows, killed, internal=False)
    notes, again = (json.loads((out / "critic.json").read_text("utf-8")) for out in (whole, killed))
    assert notes["weights"] == again["weights"] and notes["tie_band"] == again["tie_band"] >= 0.0
    config = json.loads((whole / "config.json").read_text("utf-8"))
    assert (config["architectures"], config["id2label"]) == (["LlamaForSequenceClassification"], {"0": "score"})
    assert config["problem_type"] == "regression", "vLLM gives the score as it is"
    # What rates can be the base of what compares, but for its head.
    setup = ready(tmp_path, preferences())
    tiny.random_model(
        setup.recipe.tiny, setup.tokenizer, 2100, name_classes(OBJECTIVES["head"].classes)
    ).save_pretrained(base)
    setup.tokenizer.save_pretrained(base)
    adapted = write_recipe(tmp_path, "lora.yaml", **PAIRS | {"tiny": None, "base": str(base), "lora": {"r": 2}})
    model = training_run.build_model(recipes.read_recipe(adapted), setup.tokenizer, None)
    assert not export.unwrap(model).score.weight.any()
    assert "ties: scores at most" in train(adapted, rows, tmp_path / "adapted", internal=False).stdout
    judge = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "adapted")
    assert judge.score.out_features == 1
