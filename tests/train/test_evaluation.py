"""Judging held-out rows while training: what is logged is the agreement of the exported weights."""

import json
import os
import re
import shutil
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import asked_of, human_row
from scipy import stats
from training import (
    TWO,
    Processes,
    Whole,
    logged,
    objective_with,
    refused,
    run_sft,
    sample_rows,
    start,
    tiny_model,
    tokenizer_for,
    train,
    two_kinds,
    whole,
    write_recipe,
    write_rows,
)

import evaluation  # isort: skip
from objective import rating_tokens  # isort: skip
import recipe_keys  # isort: skip
import trainer_args  # isort: skip
import torch
from datasets import Dataset
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from critic import human_scored
from critic.errors import UsageError
from critic.judging.distribution import whole_rating


def judged(folder: Path, rows: Path) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities [rows × 10] of a model folder's ratings, one row and one rating at a time, and people's scores.
    Behind a 1 stands what a judge's reply, which is constrained to `(10|[1-9]),.*`, may go on with."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    zero, shares, people = tokenizer("0").input_ids, [], []
    texts = [tokenizer.decode([token]) for token in range(len(tokenizer))]
    may_follow = zero + [token for token, text in enumerate(texts) if re.fullmatch(",.*", text)]
    assert len(may_follow) >= 3, "some are not what the targets are written with"

    @torch.no_grad()
    def after(text: str) -> Any:
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        return model(ids).logits[0, -1].double().softmax(-1)

    for response in human_scored.load(rows).responses:
        messages = asked_of("pointwise", response).messages
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        first = after(prompt + '{"Rating":')
        digits = [float(first[tokenizer(str(digit)).input_ids[0]]) for digit in range(1, 10)]
        behind = after(prompt + '{"Rating":1')[may_follow]
        ten = float(behind[0] / behind.sum())
        whole_row = np.array([digits[0] * (1 - ten), *digits[1:], digits[0] * ten])
        shares.append(whole_row / whole_row.sum())
        assert response.human is not None
        people.append(response.human.score)
    return np.array(shares), np.array(people)


def figures_by_hand(scores: np.ndarray, people: np.ndarray) -> dict[str, float]:
    """AlignMMBench §5.2: fuzzy and strict are shares of rows in the same band of whole ratings."""

    def same(*highest: int) -> float:
        bands = [[sum(whole_rating(each) > high for high in highest) for each in side] for side in (scores, people)]
        return float(np.mean(np.array(bands[0]) == np.array(bands[1])))

    return {
        "n": len(people),
        "mae": np.abs(scores - people).mean(),
        "pearson": stats.pearsonr(scores, people).statistic,
        "spearman": stats.spearmanr(scores, people).statistic,
        "kendall": stats.kendalltau(scores, people).statistic,
        "fuzzy": same(2, 5, 8, 10),
        "strict": same(1, 2, 3, 5, 6, 8, 10),
        "qwk": 1
        - ((scores - people) ** 2).mean() / (scores.var() + people.var() + (scores.mean() - people.mean()) ** 2),
    }


def evaluations(out: Path) -> dict[int, dict[str, float]]:
    lines = [line for line in logged(out) if "eval_n" in line]
    return {int(line["step"]): {k.removeprefix("eval_"): v for k, v in line.items() if "eval_" in k} for line in lines}


def scores_of(shares: np.ndarray) -> np.ndarray:
    return shares @ np.arange(1, 11)


@pytest.mark.parametrize("done", [whole, TWO], indirect=True)
def test_the_log_says_what_the_folder_does(done: Whole) -> None:
    metrics = evaluations(done.out)
    assert list(metrics) == [2, 4, 6, 8]
    notes = json.loads((done.out / "best/critic.json").read_text("utf-8"))
    best = notes["steps"]
    assert best == min(metrics, key=lambda step: metrics[step]["mae"])
    assert len({each["mae"] for each in metrics.values()}) == 4
    for folder, step in ((done.out / "best", best), (done.out, 8)):
        shares, people = judged(folder, done.rows)
        by_hand = figures_by_hand(scores_of(shares), people)
        assert metrics[step] == pytest.approx(by_hand, abs=1e-4), folder
        facts = json.loads((folder / "critic.json").read_text("utf-8"))
        assert facts["evaluation"] == {"step": step, **metrics[step]}
        assert facts["set"] == "ema"
        assert f"| mae | {metrics[step]['mae']:.3f} |" in (folder / "README.md").read_text("utf-8")
    assert {line["step"] for line in logged(done.out) if "loss" in line} == set(range(1, 9)), "no loss is hidden by it"


def run_tracked(variables: dict[str, str], words: list[str]) -> None:
    """Run train/sft.py with `variables` in the environment of its process."""
    os.environ.update(variables)
    run_sft(words)


@pytest.fixture(scope="module")
def raft_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Processes]:
    """Return `out` of a run without an average, and its process. If MLflow is there, the run is logged to it.

    It trains with raft, whose training has a forward pass of its own, and judges two rows of three.
    """
    folder = tmp_path_factory.mktemp("raft")
    rows = write_rows(folder, [human_row(99, question="8" * 6000), *sample_rows()])
    trackers = ["tensorboard", *(["mlflow"] if find_spec("mlflow") else [])]
    training = {"max_steps": 3, "report_to": trackers}
    watched = {"every": 1, "rows": 17, "batch_size": 7}
    recipe = write_recipe(folder, objective="raft", ema=None, training=training, evaluation=watched)
    variables = {"MLFLOW_TRACKING_URI": f"file:{folder}/mlruns"}
    run = train(recipe, rows, folder / "out", by=partial(run_tracked, variables))
    return folder / "out", run


def test_a_tracker_gets_name_recipe_hashes_and_every_metric(
    raft_run: tuple[Path, Processes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with loss.jsonl, in which all that is logged stands, and with the recipe and hashes in critic.json."""
    out, _ = raft_run
    mlflow = pytest.importorskip("mlflow", reason="needs the dev extra")
    client = mlflow.MlflowClient(f"file:{out.parent}/mlruns")
    (kept,) = client.search_runs(["0"])
    notes, params = json.loads((out / "critic.json").read_text("utf-8")), kept.data.params
    assert kept.info.run_name == "out"
    for part in ("recipe", "prompts", "data"):
        assert notes[part] and all(params[f"{part}.{name}"] == str(value) for name, value in notes[part].items())
    assert params.items() >= {"max_steps": "3", "learning_rate": "0.02", "hidden_size": "32"}.items()
    histories = {name: client.get_metric_history(kept.info.run_id, name) for name in kept.data.metrics}
    arrived = {name: {metric.step: metric.value for metric in history} for name, history in histories.items()}
    for line in map(json.loads, (out / "loss.jsonl").read_text("utf-8").splitlines()):
        step = line.pop("step")
        assert {name: arrived[name].get(step) for name in line} == line
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "false")
    refused = "report_to mlflow cannot be used .MlflowException: .*; MLFLOW_TRACKING_URI is a server's address, or"
    for begun, error, message in ((False, UsageError, refused), (True, mlflow.MlflowException, "maintenance mode")):
        with pytest.raises(error, match=message), trainer_args.report_bad_values(lambda begun=begun: begun):
            mlflow.MlflowClient(f"file:{out.parent}/others").search_runs(["0"])


def test_without_an_average_the_models_own_weights_are_judged(raft_run: tuple[Path, Processes]) -> None:
    out, run = raft_run
    assert run.stdout.count("  1 refused\n") == 3
    metrics = evaluations(out)
    assert list(metrics) == [1, 2, 3]
    best = json.loads((out / "best/critic.json").read_text("utf-8"))
    raw = get_fp32_state_dict_from_zero_checkpoint(str(out / f"checkpoint-{best['steps']}"))
    saved = load_file(out / "best/model.safetensors")
    assert best["set"] == "raw" and all(torch.equal(each, raw[name]) for name, each in saved.items())
    held = write_rows(out.parent, sample_rows()[:16], "held.jsonl")
    shares, people = judged(out / "best", held)
    by_hand = figures_by_hand(scores_of(shares), people)
    assert metrics[best["steps"]] == pytest.approx({k: v for k, v in by_hand.items() if not np.isnan(v)}, abs=1e-4)


def test_tensorboard_has_the_curves(done: Whole) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(done.out / "tensorboard"))
    events.Reload()
    wanted = {"train/loss": "loss", "eval/mae": "eval_mae", "eval/pearson": "eval_pearson"}
    for tag, name in wanted.items():
        curve = [(line["step"], line[name]) for line in logged(done.out) if name in line]
        assert [(each.step, pytest.approx(each.value, rel=1e-5)) for each in events.Scalars(tag)] == curve


@pytest.fixture
def tokenizer(tmp_path: Path) -> Any:
    return tokenizer_for(write_rows(tmp_path))


def held(tokenizer: Any, path: Path, limit: int = 2000, form: str = "pointwise", **changes: Any) -> Any:
    watched = recipe_keys.EvaluationSpec(every=1, **changes)
    recipe = {"forms": {form: 1.0}, "evaluation": watched, "max_source_tokens": limit}
    return evaluation.read_held_out(path, objective_with("sft", rating_tokens(tokenizer), **recipe), tokenizer)


def test_rows_held_out_are_the_first_that_fit(tokenizer: Any, tmp_path: Path) -> None:
    written = [*sample_rows(6), human_row(90, question="8" * 6000), *(human_row(n) for n in range(91, 95))]
    path = write_rows(tmp_path, written)
    held_out = held(tokenizer, path, rows=8)
    assert held_out.refused == ["row-90"] and len(held_out.rows) == len(held_out.human) == 7
    assert [row["length"] for row in held_out.rows] == sorted(row["length"] for row in held_out.rows)
    every = [row["input_ids"] for row in held_out.rows]
    scores = [response.human.score for response in human_scored.load(path).responses[:8] if response.human]
    assert sorted(held_out.human) == sorted([*scores[:6], scores[7]])
    assert all(tokenizer.decode(ids).endswith('<|assistant|>\n{"Rating":1') for ids in every)
    with pytest.raises(UsageError, match="no row to evaluate: of 11 none fits into 10 source"):
        held(tokenizer, path, 10)


@pytest.mark.parametrize(("form", "ends", "next_"), [("pointwise", False, ",.*"), ("pointwise_short", True, "}.*")])
def test_behind_a_one_stands_what_the_form_s_verdict_goes_on_with(
    tokenizer: Any, tmp_path: Path, form: str, ends: bool, next_: str
) -> None:
    objective = objective_with("sft", rating_tokens(tokenizer))
    held_out = held(tokenizer, write_rows(tmp_path), form=form)
    assert held_out.ends == ends
    model, texts = tiny_model("llama", "sdpa", len(tokenizer)), map(tokenizer.decode, range(len(tokenizer)))
    zero = tokenizer("0", add_special_tokens=False).input_ids
    may_follow = zero + [token for token, text in enumerate(texts) if re.fullmatch(next_, text)]
    rows = held_out.rows[:3]
    distributions = evaluation.compute_distributions(model, tokenizer, rows, objective, 2, ends=held_out.ends)
    for row, shares in zip(rows, distributions, strict=True):
        with torch.no_grad():
            behind = model(torch.tensor([row["input_ids"]])).logits[0, -1].double()[may_follow].softmax(-1)
        assert len(may_follow) > 1 and shares[9] / (shares[0] + shares[9]) == pytest.approx(float(behind[0]), abs=1e-5)


def distributions_to(file: Path, rows: list[Any], sizes: list[int], vocabulary: int, objective: Any) -> None:
    """Every process computes; the first writes. `count` rows in batches of each size."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed()
    model = tiny_model("llama", "sdpa", vocabulary).train()
    padded = SimpleNamespace(pad_token_id=0)
    shares = [evaluation.compute_distributions(model, padded, rows, objective, size).tolist() for size in sizes]
    assert model.training
    if torch.distributed.get_rank() == 0:
        file.write_text(json.dumps(shares), "utf-8")


def test_batches_and_processes_change_nothing(tokenizer: Any, tmp_path: Path) -> None:
    """Seven rows by two processes, in batches of 2, 3 and 16."""
    rows = held(tokenizer, write_rows(tmp_path)).rows[:7]
    objective = objective_with("sft", rating_tokens(tokenizer))
    model = tiny_model("llama", "sdpa", len(tokenizer))
    alone = np.concatenate([evaluation.compute_distributions(model, tokenizer, [row], objective, 1) for row in rows])
    assert alone.sum(1) == pytest.approx(1.0) and alone.std(0).max() > 1e-3
    assert evaluation.compute_distributions(model, tokenizer, rows, objective, 3) == pytest.approx(alone, abs=1e-6)
    file = tmp_path / "found.json"
    run = Processes(tmp_path / "log", 2, distributions_to, file, rows, [2, 3, 16], len(tokenizer), objective)
    assert run.wait() == 0, run.stderr
    for each in json.loads(file.read_text("utf-8")):
        assert np.array(each) == pytest.approx(alone, abs=1e-6)


def test_all_scores_equal_trains(tmp_path: Path) -> None:
    """It is said. What is not defined without a spread of scores is left out; the rest is there."""
    rows = write_rows(tmp_path, [human_row(n, human_score=6.0, reason="Fine.") for n in range(8)])
    recipe = write_recipe(tmp_path, balance=1.0, training={"max_steps": 2}, objective="raft")
    done = train(recipe, rows, tmp_path / "out")
    assert "warning: every row has the score 6 (8 rows, on 1..10)" in done.stderr
    (metrics,) = evaluations(tmp_path / "out").values()
    assert set(metrics) == {"n", "mae", "fuzzy", "strict", "qwk"}
    assert "pearson" not in (tmp_path / "out/README.md").read_text("utf-8")


def test_foreign_rows_are_none_that_are_trained_on_and_enough_to_decide() -> None:
    """Nor the same prompts in other groups."""
    prompts = [{"input_ids": [n, 7], "source": 2, "images": ["a"]} for n in range(20)]
    groups = [f"g{n}" for n in range(20)]
    rows = [evaluation.HeldOut(prompts[:count], [], [], groups[:count], behind=1) for count in (19, 20)]
    shared, none = "20 groups, of which 1 are trained on", "nothing"
    others = [(1, "x", 3, "b", none), (1, "x", 99, "a", none), (0, "x", 99, "a", "19 groups")]
    for which, group, token, image, says in [*others, (1, "g1", 99, "a", shared), (1, "x", 3, "a", shared)]:
        row = {"input_ids": [[token, 1, 2]], "source": [1], "group": [group], "images": [[image]]}
        refused = pytest.raises(UsageError, match=f"foreign: rows: {says}")
        with nullcontext() if says == none else refused:
            evaluation.require_foreign(rows[which], Dataset.from_dict(row), "rows")


@pytest.mark.parametrize("harms", [True, False])
def test_the_judge_is_the_best_of_those_that_harm_no_foreign_rows(harms: bool, tmp_path: Path) -> None:
    """Where all do, it is the base; killed before its end a run goes on by what the base said before the first step."""
    rows, out = write_rows(tmp_path, two_kinds()), tmp_path / "out"
    foreign = write_rows(tmp_path, two_kinds(harms, id="f", group="foreign", question="Say"), "foreign.jsonl")
    changes: dict[str, Any] = {"objective": "head", "ema": None, "evaluation": {"every": 4}, "foreign": str(foreign)}
    run = train(recipe := write_recipe(tmp_path, **changes), rows, out)
    metrics, notes = evaluations(out), json.loads((out / "critic.json").read_text("utf-8"))
    assert list(metrics) == [0, 4, 8] and metrics[8]["mae"] < metrics[4]["mae"] < metrics[0]["mae"]
    assert metrics[8]["foreign_mae"] != metrics[0]["foreign_mae"] and notes["steps"] == notes["evaluation"]["step"]
    first, second = (load_file(folder / "model.safetensors") for folder in (out, out / "best"))
    assert all(torch.equal(each, second[name]) for name, each in first.items())
    card = (out / "README.md").read_text("utf-8")
    assert "| own (24) | mae |" in card and "| foreign (24) | pearson |" in card
    assert ("**It is the base itself**" in card) == harms and notes["steps"] == (0 if harms else 8)
    assert ("step 8 is not kept: worse than its base on foreign rows (mae, pearson)" in run.stdout) == harms
    assert f"kept: step {0 if harms else 8} of 8, 0 is the base" in run.stdout
    if not harms:
        return
    (out / "critic.json").unlink()
    for step in range(5, 9):
        shutil.rmtree(out / f"checkpoint-{step}")
    assert "step 8 is not kept" in train(recipe, rows, out).stdout and evaluations(out) == metrics
    write_rows(tmp_path, two_kinds()[:20], "foreign.jsonl")
    refused(start(recipe, rows, out), f"{out} holds a judge made with another data")
