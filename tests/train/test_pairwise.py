"""`objective: pairwise`: one score of each answer, learned from what people preferred."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import human_row
from training import pairs_of_answers, refused, start, train, write_recipe, write_rows

import checkpoints  # isort: skip
import evaluation  # isort: skip
import export  # isort: skip
import objective  # isort: skip
import recipe as recipes  # isort: skip
import batches as batches_module  # isort: skip
import rows as rows_module  # isort: skip
import tiny  # isort: skip
import torch
import transformers

from critic.human_scored import load
from critic.judging.forms import ONE_SIDE, form_of, inquiry
from critic.judging.render import render
from critic.judging.targets import source_ids

PAIRS: dict[str, Any] = {"objective": "pairwise", "forms": {"pairwise": 1.0}, "evaluation": None, "ema": None}
GRADES = (4.0, 2.0, 0.0, -1.0, -4.0, 1.0, 0.0, -2.0)


def preferences(graded: bool = True) -> list[dict[str, Any]]:
    """Pairs whose first answer people find better by -4..4; what is good is long."""
    made = []
    for n, grade in enumerate(GRADES):
        row = human_row(n, question=f"What lies on table {n}?", group=f"group-{n}", human_score=grade)
        row |= {"scale_min": -4, "scale_max": 4, "response_a": "It is " + "very " * int(4 + grade) + "red."}
        row |= {"response_b": "It is " + "very " * int(4 - grade) + "red, I see.", "system_b": "other"}
        if not graded:
            row |= {"preference": "tie" if grade == 0 else "A" if grade > 0 else "B"}
        made.append(row)
    return made


def ready(folder: Path, rows: list[dict[str, Any]], **changes: Any) -> SimpleNamespace:
    recipe = recipes.read_recipe(write_recipe(folder, **PAIRS, **changes))
    file = write_rows(folder, rows)
    data, tokenizer = rows_module.prepare(recipe, file, folder / "cache", 1)
    assert recipe.tiny is not None
    model = tiny.random_model(recipe.tiny, tokenizer, 2000, export.labels("pairwise"))
    objective.classify(model)
    return SimpleNamespace(recipe=recipe, file=file, data=data, tokenizer=tokenizer, model=model)


@pytest.mark.parametrize(("graded", "margin"), [(True, 0.5), (True, 0.0), (False, 0.5)])
def test_the_loss_is_that_of_both_answers_alone(tmp_path: Path, graded: bool, margin: float) -> None:
    """Each as it is asked for; graded preferences have margins above that of the slightest, others have none."""
    made = ready(tmp_path, preferences(graded), margin=margin)
    rows = [*made.data.rows]
    wanted = torch.zeros(())
    for row, response in zip(rows, load(made.file).responses, strict=True):
        scores = []
        for text, ids in ((response.text, row["input_ids"][: row["source"]]), (response.other.text, row["other_ids"])):
            alone = form_of(ONE_SIDE).material(response.__replace__(text=text, preference=None, other=None))
            asked = inquiry(ONE_SIDE, "en", alone)
            assert ids == source_ids(made.tokenizer, render(asked.prompt, asked.material)), "trained as asked"
            scores.append(made.model(input_ids=torch.tensor([ids])).logits[0, 0])
        grade = GRADES[int(response.id.rpartition("-")[2])]
        # The slightest preference is a quarter of the largest; at the largest three quarters are left above it.
        apart = margin * max(0.0, abs(grade) / 4 - 0.25) if graded else 0.0
        ahead = scores[0] - scores[1]
        if grade == 0:
            wanted = wanted - 0.5 * (torch.nn.functional.logsigmoid(ahead) + torch.nn.functional.logsigmoid(-ahead))
        else:
            wanted = wanted - torch.nn.functional.logsigmoid((ahead if grade > 0 else -ahead) - apart)
    weighing = batches_module.weights(made.recipe, made.data.rows)
    batch = batches_module.Batches(made.tokenizer.pad_token_id, weighing, head=True)(rows)
    assert int((batch["labels"] >= 0).sum()) == len(rows), "a pair is one example"
    alone = sum(row["source"] + len(row["other_ids"]) for row in rows)
    assert batch["input_ids"].numel() < 0.7 * alone, "what both prompts begin with is computed once"
    ours = made.model(**batch, num_items_in_batch=len(rows)).loss
    assert float(ours.detach()) == pytest.approx(float(wanted.detach()) / len(rows), rel=1e-5)


def test_graded_answers_to_one_question_are_pairs(tmp_path: Path) -> None:
    made = ready(tmp_path, pairs_of_answers(6))
    assert sorted(abs(ahead) for (ahead,) in made.data.rows["people"]) == pytest.approx([7 / 9] * 3), "each pair once"
    for row in made.data.rows:  # of each question the second answer, with the odd number, is the better one
        assert (row["people"][0] > 0) == (int(row["id"].partition("+")[0].removeprefix("row-")) % 2 == 1)
    assert made.data.counts["forms"] == {ONE_SIDE: 3}
    with pytest.raises(recipes.UsageError, match="no other answer to the same question"):
        ready(tmp_path / "alone", pairs_of_answers(6)[::2])


def test_the_band_is_where_most_pairs_get_peoples_verdict() -> None:
    def band(*pairs: tuple[float, float]) -> float:
        return evaluation.fitted_band(*np.array(pairs).T)

    assert band((0.1, 0), (-0.3, 0), (0.25, 0), (0.2, 1), (2.0, 1), (-3.0, -1)) == pytest.approx(0.3)
    assert band((0.1, 0), (0.2, 1), (-0.3, -1), (0.4, 0)) == pytest.approx(0.1), "the smallest of several"
    assert band((0.1, 1), (-0.3, -1), (0.4, 0)) == 0.0, "for one tie two would be lost"
    assert band((0.1, -1), (0.2, 0)) == pytest.approx(0.2), "what is wrong is no loss"


def test_a_killed_run_ends_as_a_folder_with_one_score_and_a_band(tmp_path: Path) -> None:
    rows, recipe = write_rows(tmp_path, preferences()), write_recipe(tmp_path, **PAIRS)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(recipe, rows, whole, internal=False)
    run = start(recipe, rows, killed, internal=False)
    while not (killed / "checkpoint-4" / checkpoints.MANIFEST).exists() and run.processes[0].exitcode is None:
        pass
    run.kill()
    train(recipe, rows, killed, internal=False)
    notes, again = (json.loads((out / "critic.json").read_text("utf-8")) for out in (whole, killed))
    assert notes["weights"] == again["weights"] and notes["tie_band"] == again["tie_band"] >= 0.0
    config = json.loads((whole / "config.json").read_text("utf-8"))
    assert (config["architectures"], config["id2label"]) == (["LlamaForSequenceClassification"], {"0": "score"})
    assert config["problem_type"] == "regression", "vLLM gives the score as it is"
    assert [*notes["prompts"]] == [ONE_SIDE] and notes["forms"] == {ONE_SIDE: len(GRADES)}
    # What rates ratings can be the base of what compares, and the other way round the weights are another judge's.
    adapted = write_recipe(tmp_path, "lora.yaml", **PAIRS | {"tiny": None, "base": str(whole), "lora": {"r": 2}})
    done = train(adapted, rows, tmp_path / "adapted", internal=False)
    assert "ties: scores at most" in done.stdout
    found = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "adapted")
    assert found.score.out_features == 1


def test_preferences_and_scores_are_not_mixed_up(tmp_path: Path) -> None:
    rows = write_rows(tmp_path, preferences())
    rates = write_recipe(tmp_path, "rates.yaml", evaluation=None)
    refused(start(rates, rows, tmp_path / "a", internal=False), "no row for the recipe's forms", "8 pointwise: two")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"forms": {"pairwise": 1.0, "pointwise": 0.5}}, r"learns preferences .* alone, not pointwise"),
        ({"evaluation": {"every": 2}}, "evaluation judges ratings"),
        ({"probe": 5}, "probe is for a scoring head"),
        ({"margin": -1.0}, "margin"),
    ]
    for change, message in wrong:
        with pytest.raises(recipes.UsageError, match=message):
            recipes.read_recipe(write_recipe(tmp_path, **PAIRS | change))
