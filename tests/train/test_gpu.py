"""What may differ on a GPU. `pytest -m gpu` runs these there, with the tests elsewhere that are marked `gpu`, in three
minutes at most; without a GPU the same bodies run on the CPU, in fp32 and with its own attention."""

import json
from pathlib import Path
from typing import Any

import pytest
from training import ON_GPU, losses, save_base, train, write_recipe

import attention  # isort: skip
import export  # isort: skip
import batches as batches_module  # isort: skip
from recipe import objective_of  # isort: skip
import recipe_keys  # isort: skip
import recipe as recipes  # isort: skip
import rows as rows_module  # isort: skip
import run as training_run  # isort: skip
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.gpu

only_there = pytest.mark.skipif(not ON_GPU, reason="has kernels for GPUs alone; run with -m gpu")


def learned(recipe: recipe_keys.Recipe, rows: Path, device: str, dtype: torch.dtype, share: bool) -> torch.Tensor:
    """The loss of all rows, and the gradient of everything that is trained, one behind the other."""
    data, tokenizer = rows_module.prepare(recipe, rows, rows.parent / "cache", 1)
    tokens = objective_of(recipe).read_tokens(tokenizer)
    objective = objective_of(recipe, tokens)
    torch.manual_seed(0)
    model = training_run.build_model(recipe, tokenizer, tokens)
    if recipe.objective == "head":
        torch.nn.init.normal_(model.score.weight, std=0.1)  # a GPU would draw other numbers
    model = model.to(device, dtype)
    shared = attention.install(export.unwrap(model)) and share
    weighing = objective.weights(data.rows)
    collate = batches_module.Batches(tokenizer.pad_token_id, weighing, objective, packing=recipe.packing, share=shared)
    given = {
        name: each.to(device) if torch.is_tensor(each) else each for name, each in collate(list(data.rows)).items()
    }
    loss = model(**given, num_items_in_batch=100).loss
    loss.backward()
    gradients = [each.grad.flatten() for each in model.parameters() if each.grad is not None]
    return torch.cat([loss.detach()[None], *gradients]).float().cpu()


KINDS = ["sdpa", pytest.param("flex_attention", marks=only_there)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("objective", ["sft", "raft", "head"])
def test_a_step_is_that_of_a_cpu(objective: str, kind: str, tmp_path: Path, rows: Path) -> None:
    """Of rows that share what they begin with, against rows in fp32 that share nothing, padded where these may be."""
    changes: dict[str, Any] = {"tiny": None, "base": str(save_base(tmp_path / "base", rows)), "objective": objective}

    def of(packing: bool, attention: str) -> recipe_keys.Recipe:
        return recipes.read_recipe(write_recipe(tmp_path, **changes, packing=packing, attention=attention))

    plain = of(False, "eager" if objective == "sft" else "sdpa")
    plain = learned(plain, rows, "cpu", torch.float32, share=False)
    device, dtype, most = ("cuda", torch.bfloat16, 0.05) if ON_GPU else ("cpu", torch.float32, 1e-5)
    ours = learned(of(True, kind), rows, device, dtype, share=True)
    assert ours[0] == pytest.approx(float(plain[0]), rel=most)
    assert plain[1:].norm() > 1e-3 and (ours - plain)[1:].norm() < most * plain[1:].norm()


SWITCHES: dict[str, dict[str, Any]] = {
    "liger_kernel": {"training": {"use_liger_kernel": True}, "lora": None},
    "bitsandbytes": {"lora": {"r": 8, "alpha": 16, "bits": 4}},
}


@only_there
@pytest.mark.parametrize("package", SWITCHES)
def test_with_a_package_for_gpus_it_learns_as_without(package: str, tmp_path: Path, rows: Path, base: Path) -> None:
    """Liger's kernels; a base in four bits, from which a judge in the base's own type comes out."""
    pytest.importorskip(package)
    plain: dict[str, Any] = {"tiny": None, "base": str(base), "evaluation": None, "packing": True}
    plain |= {"deepspeed": {"zero_optimization": {"stage": 2}}, "lora": {"r": 8, "alpha": 16}}
    switched = {**plain, **SWITCHES[package]}
    for name, changes in (("plain", {**plain, "lora": switched["lora"] and plain["lora"]}), ("switched", switched)):
        train(write_recipe(tmp_path, f"{name}.yaml", **changes), rows, tmp_path / name, internal=False)
    (first, *_), (start, *later) = losses(tmp_path / "plain"), losses(tmp_path / "switched")
    assert start == pytest.approx(first, rel=0.1 if package == "bitsandbytes" else 2e-3) and later[-1] < start
    before, after = (load_file(folder / "model.safetensors") for folder in (base, tmp_path / "switched"))
    assert {name: each.dtype for name, each in after.items()} == {name: each.dtype for name, each in before.items()}
    assert any(not torch.equal(each, after[name]) for name, each in before.items())
    assert "quantization_config" not in json.loads((tmp_path / "switched/config.json").read_text("utf-8"))
