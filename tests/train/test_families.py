"""Every family of bases is trained by every objective: killed and resumed, read again by transformers, served by vLLM.

`pytest -m "" tests/train/test_families.py` runs the table of train/README.md (half an hour of two cores), which by
default has two cells.
"""

import json
import time
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from conftest import on_gpu, read_jsonl, run_apart
from training import SEEING, logged, pictured, preferences, run_sft, start, write_recipe, write_rows

import evaluation  # isort: skip
import export  # isort: skip
import recipe as recipes  # isort: skip
import rows as rows_module  # isort: skip
from vision import TOWERS  # isort: skip
import numpy as np
import tiny_vlm
import torch
from safetensors.torch import load_file
from transformers import AutoProcessor

from critic.images import Images

PADDED = {"qwen3_5_text", "qwen3_5", "qwen3_vl", "glm4v_moe", "gemma3"}
SERVED = {"llama", "qwen2", "idefics3"}
"""On a CPU, where vLLM imports the others with torchvision only."""

STEPS = {"max_steps": 4, "save_steps": 2, "per_device_train_batch_size": 2, "learning_rate": 2e-3}


def train_a_base(words: list[str]) -> None:
    if find_spec("torchvision") is None:
        AutoProcessor.from_pretrained = staticmethod(tiny_vlm.read_processor)
    run_sft(words)


def rows_for(folder: Path, sees: bool, compares: bool) -> Path:
    if not sees:
        return write_rows(folder, preferences(graded=False) if compares else None)
    lines = [json.loads(line) for line in pictured(folder).read_text("utf-8").splitlines()]
    both = {"response_a": "It is red.", "response_b": "It is a red one."}
    pairs = [{**line, **both, "preference": "AB"[n % 2]} for n, line in enumerate(lines)]
    return write_rows(folder, pairs if compares else lines)


def judge_again(file: Path, rows: Path, judge: Path) -> Any:
    """Return the distributions that the model in a folder gives for rows, of pairs those of B and A.

    It must give the figures of the model that was in memory while it trained.
    """
    recipe = recipes.read_recipe(file, [f"base={judge}"])
    objective = recipes.objective_of(recipe)
    images = Images(rows.parent) if recipe.images == "show" else None
    data, tokenizer = rows_module.prepare(recipe, rows, judge.parent / "cache", 1, images)
    model = export.read_base(str(judge), objective.head_config(), recipe.images, dtype=torch.float32).eval()
    if recipe.evaluation is None:
        notes = json.loads((judge / "critic.json").read_text("utf-8"))
        assert objective.notes(model, tokenizer, data.rows)["tie_band"] == pytest.approx(notes["tie_band"], abs=1e-5)
        scores = evaluation.compute_head_scores(model, tokenizer, objective, [*data.rows])[:, :, 0]
        better = 1 / (1 + np.exp(scores[:, 1] - scores[:, 0]))
        return np.stack([1 - better, better], axis=1)
    tokens = objective.read_tokens(tokenizer)
    objective = recipes.objective_of(recipe, tokens)
    held = evaluation.read_held_out(rows, objective, tokenizer)
    shares = evaluation.compute_distributions(model, tokenizer, held.rows, objective, 3, held.ends)
    metrics = evaluation.compute_metrics(evaluation.rate_held_out(model, tokenizer, objective, held), held)
    line = next(line for line in logged(judge) if "eval_mae" in line)
    # Ranks of scores that are nearly equal may change where an adapter is merged.
    for name in ("n", "mae", "pearson"):
        assert metrics[name] == pytest.approx(line[f"eval_{name}"], abs=1e-4)
    return shares


ALWAYS = {("qwen3_5", "raft"), ("qwen3_vl", "sft")}
CELLS = [
    pytest.param(*cell, marks=[pytest.mark.gpu] if cell in ALWAYS else [pytest.mark.slow])
    for cell in product(tiny_vlm.BASES, ["sft", "raft", "head", "pairwise"])
]


@pytest.mark.e2e
@pytest.mark.parametrize(("family", "objective"), CELLS)
def test_a_family_is_trained_resumed_read_and_served(
    family: str, objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sees, compares = "processor" in tiny_vlm.BASES[family], objective == "pairwise"
    rows, form = rows_for(tmp_path, sees, compares), "pairwise" if compares else "pointwise_short"
    changes = {**SEEING, "images": "show" if sees else "blind", "tiny": None, "vision": None, "max_source_tokens": 3000}
    changes |= {"objective": objective, "forms": {form: 1.0}, "packing": True, "together": True, "ema": {"decay": 0.3}}
    changes |= {"base": str(tiny_vlm.build_base(family, tmp_path / "base")), "training": SEEING["training"] | STEPS}
    changes |= {} if compares else {"evaluation": {"every": 4, "batch_size": 3}}
    changes |= {"lora": {"r": 4, "alpha": 8}} if objective == "sft" else {}
    file, whole, killed = write_recipe(tmp_path, **changes), tmp_path / "whole", tmp_path / "killed"
    begin = partial(start, file, rows, internal=not compares, by=train_a_base)
    run = begin(whole)
    assert run.wait() == 0, run.stderr
    assert run.stdout.count("rows are padded, ") == (family in PADDED)
    assert ("of each rated row a second one" in run.stdout) == (family in PADDED and objective == "raft")
    run = begin(killed)
    while not (killed / "checkpoint-2/complete.json").is_file() and run.processes[0].exitcode is None:
        time.sleep(0.002)
    run.kill()
    run = begin(killed)
    assert run.wait() == 0, run.stderr
    assert "continuing from" in run.stdout and logged(killed) == logged(whole)
    ours, others = (load_file(folder / "model.safetensors") for folder in (whole, killed))
    assert all(torch.equal(tensor, others[name]) for name, tensor in ours.items())
    if objective == "sft":  # by adapters, on what reads alone
        before, adapter = load_file(tmp_path / "base/model.safetensors"), whole / "adapter"
        changed = {name for name, tensor in ours.items() if not torch.equal(tensor, before[name])}
        for names in (changed, load_file(adapter / "adapter_model.safetensors")):
            assert names and all(".layers." in name and not set(TOWERS) & set(name.split(".")) for name in names)
        assert not sees or {"processor_config.json", "chat_template.jinja"} <= {file.name for file in adapter.iterdir()}
    monkeypatch.setattr(AutoProcessor, "from_pretrained", tiny_vlm.read_processor)
    shares = judge_again(file, rows, whole)
    if not on_gpu() and family not in SERVED:
        return
    words = ["--images", "show", "--data-root", tmp_path] if sees else []
    words += ["--prompt", form, "--no-reason", "--out", tmp_path / "judged.jsonl", "--", "--dtype", "float32"]
    run_apart("critic", "judge", rows, "--judge", whole, *words, code=0)
    judged = np.array([item["verdict"]["distribution"] for item in read_jsonl(tmp_path / "judged.jsonl")])
    scale = np.arange(judged.shape[1])
    assert np.sort(judged @ scale) == pytest.approx(np.sort(shares @ scale), abs=1e-4)
