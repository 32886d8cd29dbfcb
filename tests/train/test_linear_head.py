"""`objective: head`: ten classes on a prompt's last token, exactly, from the batch to the folder that is saved."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import example_in, human_row
from sklearn.linear_model import LogisticRegression
from training import (
    RECIPE,
    losses,
    objective_with,
    pairs_of_answers,
    prepare_rows,
    refused,
    sample_rows,
    save_base,
    start,
    train,
    two_kinds,
    write_recipe,
    write_rows,
)

import evaluation  # isort: skip
from objective import name_classes  # isort: skip
from recipe import OBJECTIVES, objective_of  # isort: skip
import linear_head  # isort: skip
import recipe as recipes  # isort: skip
import recipe_keys  # isort: skip
import batches as batches_module  # isort: skip
import run as training_run  # isort: skip
import tiny  # isort: skip
import datasets
import torch
import transformers
from safetensors.torch import load_file

from critic import human_scored
from critic.errors import UsageError
from critic.judging.targets import source_ids
from critic.records import RATINGS, Example

HEAD: dict[str, Any] = {"objective": "head", "evaluation": None, "ema": None}


@pytest.fixture(scope="module", params=[False, True], ids=["last", "answer"])
def env(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> SimpleNamespace:
    """Tokenized rows, and a random model with a scoring head."""
    folder = tmp_path_factory.mktemp("head")
    # Two answers that begin alike, and two rows that are the same but for the score.
    written = [*sample_rows(10), human_row(20, response="One. Two. Three."), human_row(21, response="One. Two. Four.")]
    recipe, data, tokenizer = prepare_rows(folder, written, **HEAD, balance=0.5, read_answer=request.param)
    assert recipe.tiny is not None
    model = tiny.random_model(recipe.tiny, tokenizer, 2000, objective_of(recipe).head_config())
    objective_of(recipe).install(model)
    return SimpleNamespace(recipe=recipe, file=folder / "rows.jsonl", data=data, tokenizer=tokenizer, model=model)


def prompt_ids(env: SimpleNamespace) -> list[list[int]]:
    """The prompts as they are judged."""
    prompts = []
    for response in human_scored.load(env.file).responses:
        example = example_in("pointwise", response)
        assert isinstance(example, Example)
        prompts.append(source_ids(env.tokenizer, example.messages))
    return prompts


def logits_alone(env: SimpleNamespace, ids: list[int]) -> torch.Tensor:
    """The ratings' logits of a prompt by itself, by what transformers makes of it."""
    by_token = env.model.score(env.model.model(torch.tensor([ids])).last_hidden_state[0])
    # The answer is one line, the last that is quoted.
    begins = env.tokenizer.decode(ids).rindex("\n> ") + 1
    answer = next(place for place in range(len(ids)) if len(env.tokenizer.decode(ids[: place + 1])) > begins)
    return by_token[-1, :10] + by_token[answer:, 10:].mean(0) if env.recipe.read_answer else by_token[-1]


@pytest.mark.parametrize("share", [True, False])
def test_the_loss_is_that_of_each_prompt_alone(env: SimpleNamespace, share: bool) -> None:
    rows = [env.data.rows[place] for place in range(len(env.data.rows))]
    weighing = objective_of(env.recipe).weights(env.data.rows)
    assert sum(weighing.by_rating[row["rating"]] for row in rows) == pytest.approx(len(rows))
    assert len(set(weighing.by_rating)) > 3
    wanted = torch.zeros(())
    for row, ids in zip(rows, prompt_ids(env), strict=True):
        assert row["input_ids"][: len(ids)] == ids, "what is trained is what is asked"
        logs = logits_alone(env, ids).log_softmax(-1)
        wanted = wanted - weighing.by_rating[row["rating"]] * (torch.tensor(row["people"]) * logs).sum()
    batch = batches_module.Batches(env.tokenizer.pad_token_id, weighing, objective_of(env.recipe), share=share)(rows)
    assert int((batch["labels"] >= 0).sum()) == len(rows)
    ours = env.model(**batch, num_items_in_batch=len(rows)).loss
    assert float(ours.detach()) == pytest.approx(float(wanted.detach()) / len(rows), rel=1e-5)


def test_held_out_rows_are_judged_by_the_head(env: SimpleNamespace) -> None:
    watching = objective_with("head", evaluation=recipe_keys.EvaluationSpec(every=1), max_source_tokens=2000)
    held = evaluation.read_held_out(env.file, watching, env.tokenizer)
    assert sorted(row["input_ids"] for row in held.rows) == sorted(prompt_ids(env))
    shares = evaluation.compute_distributions(env.model, env.tokenizer, held.rows, watching, 4)
    for row, distribution in zip(held.rows, shares, strict=True):
        alone = logits_alone(env, row["input_ids"]).softmax(-1)
        assert distribution == pytest.approx(alone.detach().numpy(), abs=1e-6)


def test_the_folder_is_a_model_with_ten_classes(tmp_path: Path) -> None:
    """Trained through ZeRO and saved; the loss falls, and the name is the one by which vLLM knows the family."""
    ranks = {"rank": {"margin": 0.1}, "group_by_question": True, "training": {"train_sampling_strategy": "random"}}
    recipe = write_recipe(tmp_path, **HEAD | ranks | {"evaluation": RECIPE["evaluation"]})
    out = tmp_path / "judge"
    train(recipe, write_rows(tmp_path, pairs_of_answers()), out)
    assert losses(out)[-1] < losses(out)[0]
    config = json.loads((out / "config.json").read_text("utf-8"))
    assert config["architectures"] == ["LlamaForSequenceClassification"]
    assert config["id2label"] == {str(place): str(rating) for place, rating in enumerate(RATINGS)}
    judge = transformers.AutoModelForSequenceClassification.from_pretrained(out)
    assert judge.score.out_features == len(RATINGS)
    assert not (out / "generation_config.json").exists()
    assert "pipeline_tag: text-classification" in (out / "README.md").read_text("utf-8")
    assert any("eval_mae" in line for line in (out / "loss.jsonl").read_text("utf-8").splitlines())


@pytest.mark.e2e
def test_adapters_bring_the_head_with_them(tmp_path: Path, base: Path) -> None:
    (base / "LICENSE").write_text("terms")
    lora = write_recipe(tmp_path, "lora.yaml", **HEAD, tiny=None, base=str(base), lora={"r": 2})
    out = tmp_path / "judge"
    train(lora, write_rows(tmp_path), out, internal=False)
    from peft import PeftModel

    fresh = transformers.AutoModelForSequenceClassification.from_pretrained(base, num_labels=len(RATINGS))
    adapted = PeftModel.from_pretrained(fresh, out / "adapter").eval()
    merged = transformers.AutoModelForSequenceClassification.from_pretrained(out).eval()
    ids = torch.tensor([[5, 9, 17, 33]])
    assert torch.allclose(merged(ids).logits, adapted(ids).logits, atol=1e-5)
    assert all((folder / "LICENSE").read_text() == "terms" for folder in (out, out / "adapter"))


@pytest.mark.e2e
def test_a_new_head_finds_every_rating_alike_likely_and_an_old_one_is_kept(
    env: SimpleNamespace, tmp_path: Path
) -> None:
    """Under ZeRO-3 too, where a process holds parts of the weights."""
    plain, scored, judge = (tmp_path / name for name in ("plain", "scored", "judge"))
    for folder, classes in ((plain, {}), (scored, name_classes(OBJECTIVES["head"].classes))):
        model = tiny.random_model(env.recipe.tiny, env.tokenizer, 2100, classes)
        model.save_pretrained(folder)
        env.tokenizer.save_pretrained(folder)
    on_base = {**HEAD, "tiny": None}
    for folder, head in ((plain, torch.zeros_like(model.score.weight)), (scored, model.score.weight)):
        recipe = recipes.read_recipe(write_recipe(tmp_path, **on_base, base=str(folder)))
        assert torch.equal(training_run.build_model(recipe, env.tokenizer, None).score.weight.float(), head)
    sharded = {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}
    training = {"max_steps": 1, "learning_rate": 0.0}
    whole = write_recipe(tmp_path, **on_base, base=str(plain), training=training, deepspeed=sharded)
    train(whole, env.file, judge, internal=False)
    weights = load_file(judge / "model.safetensors")
    assert not weights["score.weight"].any() and weights["model.embed_tokens.weight"].any()


def test_a_fitted_head_is_a_regression_on_what_the_model_makes(env: SimpleNamespace, tmp_path: Path) -> None:
    _, data, tokenizer = prepare_rows(tmp_path, two_kinds(), **HEAD, balance=0.5)
    model = tiny.random_model(env.recipe.tiny, tokenizer, 2000, objective_of(env.recipe).head_config())
    counted = [1.0, 0.25, 0.25, 1.0] * 6
    rows = data.rows.remove_columns("weight").add_column("weight", counted)
    states = linear_head.compute_features(model, rows, tokenizer, tmp_path / "kept")
    states = states[:, : states.shape[1] // 2]
    head, loss = linear_head.fit_head(states, rows, [10])
    hidden, people = [], []
    for row in rows:
        ids = torch.tensor([row["input_ids"][: row["source"]]])
        hidden.append(model.model(ids).last_hidden_state[0, -1].detach().numpy())
        people.append(row["people"])
    features, shares = np.array(hidden, dtype=float), np.array(people) * np.array(counted)[:, None]
    scale = features.std(axis=0) + 1e-6
    classes = [1, 7, 8]  # 2, and half of 8 and of 9
    # The direction of the mean, which stands for an intercept, is shortened.
    mean = (features / scale).mean(axis=0)
    along = np.outer(mean, mean) / (mean @ mean)
    way = (np.eye(len(mean)) + (linear_head._MEAN / np.linalg.norm(mean) - 1) * along) / scale
    repeated = np.concatenate([features @ way.T] * 3)
    known = np.repeat(classes, len(features))
    weight = np.concatenate([shares[:, each] for each in classes])
    penalty = min(
        linear_head.STRENGTHS, key=lambda penalty: float(np.abs(said_by(penalty, repeated, known, weight, way, head)))
    )
    assert said_by(penalty, repeated, known, weight, way, head) < 1e-3
    assert loss < 1.3 < np.log(10), "the two kinds are told apart"
    rarest = head[[1, 7, 8][int(np.argmin([weight[known == each].sum() for each in classes]))]]
    assert all(np.allclose(head[rating], rarest) for rating in range(10) if rating not in classes)


def test_features_are_computed_once(env: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, it goes on; what was half written counts as nothing; other rows begin with the prompts that are known."""
    monkeypatch.setattr(linear_head, "_PART", 5)
    computed, kept, width = list[int](), tmp_path / "kept", env.model.config.hidden_size

    def counted(model: Any, tokenizer: Any, prompts: list[Any], size: int) -> Any:
        if len(computed) == 1 and not (kept / "a.npz.partial").exists():
            (kept / "a.npz.partial").write_bytes(b"half")
            raise KeyboardInterrupt
        computed.append(len(prompts))
        return evaluation.compute_last_hidden(model, tokenizer, prompts, size)

    monkeypatch.setattr(linear_head, "compute_last_hidden", counted)
    rows = env.data.rows
    with pytest.raises(KeyboardInterrupt):
        linear_head.compute_features(env.model, rows.select(range(9)), env.tokenizer, kept)
    for given in (rows.select(range(11)), rows, rows.select([7, 2])):
        features = linear_head.compute_features(env.model, given, env.tokenizer, kept)
    assert computed == [5, 5, 1, 1], "five of nine, then the rest of eleven and of twelve"
    for row, feature in zip(rows.select([7, 2]), features, strict=True):
        states = (
            env.model.model(torch.tensor([row["input_ids"][: row["source"]]])).last_hidden_state[0].detach().numpy()
        )
        assert feature[:width] == pytest.approx(states[-1], abs=1e-5)
        assert feature[width:] == pytest.approx(states[row["answer"] :].mean(0), abs=1e-5)


def said_by(penalty: float, features: Any, known: Any, weight: Any, way: Any, head: Any) -> float:
    """How far a head is from the regression with a penalty."""
    fitted = LogisticRegression(C=penalty, fit_intercept=False, max_iter=500).fit(features, known, sample_weight=weight)
    return float(np.abs(fitted.coef_ @ way - head[fitted.classes_]).max())


NO_STEP = {"max_steps": -1, "num_train_epochs": 0}


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("stage", "changes"),
    [
        (1, {"lora": {"r": 2}, "training": {"max_steps": 1, "learning_rate": 0.0}}),
        (1, {"frozen": ["model"], "training": NO_STEP}),
        pytest.param(3, {"training": NO_STEP}, marks=pytest.mark.slow),
    ],
)
def test_training_begins_with_the_fitted_head(stage: int, changes: dict[str, Any], tmp_path: Path) -> None:
    """It is what is saved where nothing is learned or no step is taken, under an adapter too."""
    rows = write_rows(tmp_path, two_kinds())
    base = save_base(tmp_path / "base", rows)
    changes = HEAD | {"tiny": None, "base": str(base), "probe": 24} | changes
    changes |= {"deepspeed": {"zero_optimization": {"stage": stage}}}
    out = tmp_path / "judge"
    done = train(write_recipe(tmp_path, **changes), rows, out, internal=False)
    assert done.stdout.count("head fitted on 24 examples") == 1, done.stdout
    judge = transformers.AutoModelForSequenceClassification.from_pretrained(out, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    said = dict[float, list[float]]({2.0: [], 8.5: []})
    for response in human_scored.load(rows).responses:
        example = example_in("pointwise", response)
        assert isinstance(example, Example) and response.human is not None
        likely = judge(torch.tensor([source_ids(tokenizer, example.messages)])).logits[0].detach().softmax(-1)
        said[response.human.score].append(float(likely @ torch.arange(1.0, 11.0)))
    assert max(said[2.0]) < min(said[8.5]) - 0.5
    changes |= {"base": str(out)}
    refused(
        start(write_recipe(tmp_path, **changes), rows, tmp_path / "on", internal=False), "has a scoring head already"
    )


def test_what_a_probe_cannot_do(tmp_path: Path) -> None:
    alike = [{**row, "human_score": 7.0} for row in two_kinds()]
    _, data, _ = prepare_rows(tmp_path, alike, **HEAD)
    with pytest.raises(UsageError, match="one rating"):
        linear_head.fit_head(np.ones((len(data.rows), 8)), data.rows, [10])
    of_groups = {"people": [[float(place % 3 == rating) for rating in range(10)] for place in range(30)]}
    of_groups |= {"group": [f"group-{place % 3}" for place in range(30)], "weight": [1.0] * 30}
    with pytest.raises(UsageError, match="no group can be rated"):
        linear_head.fit_head(np.random.default_rng(0).normal(size=(30, 8)), datasets.Dataset.from_dict(of_groups), [10])


@pytest.mark.e2e
def test_a_frozen_part_stays_as_it_was(tmp_path: Path, rows: Path, base: Path) -> None:
    """And a judge that was trained from a judge tells of the first base's licence."""
    (base / "critic.json").write_text('{"base": {"licence": "apache-2.0"}, "steps": 3}')
    changes: dict[str, Any] = {"tiny": None, "base": str(base), "evaluation": None, "ema": None}
    out = tmp_path / "judge"
    train(write_recipe(tmp_path, "f.yaml", **changes, frozen=["embed_tokens"]), rows, out, internal=False)
    before, after = (transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (base, out))
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert {"model.embed_tokens.weight", "lm_head.weight"} == same
    notes = json.loads((out / "critic.json").read_text("utf-8"))
    assert notes["base"] == {"licence": "apache-2.0"}
    recipe = write_recipe(tmp_path, "wrong.yaml", **changes, frozen=["embeddings"])
    refused(
        start(recipe, rows, tmp_path / "none", internal=False), "'embeddings' is no part of the model", "embed_tokens"
    )
