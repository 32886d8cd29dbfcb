"""Norms and gates compiled for a CPU compute what transformers' own modules compute, and are done without where there
is no compiler; adapters joined to their layers compute what peft's compute."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, needs
from training import losses, train, write_recipe, write_rows

import kernels  # isort: skip
import torch
import transformers

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "attn_implementation": "eager",
}
FAMILIES = {
    "llama": (transformers.LlamaConfig, 2 * 2 + 1),
    "qwen3": (transformers.Qwen3Config, 2 * 4 + 1),  # heads have norms of their own
    "gemma3": (transformers.Gemma3TextConfig, 2 * 6 + 1),
}


@pytest.fixture(scope="module")
def compiled() -> None:
    if kernels.compile_all() is not None:
        pytest.skip("no C++ compiler")


def gradients(model: Any) -> tuple[float, dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    ids = torch.randint(50, (3, 7))
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    found = {name: each.grad.clone() for name, each in model.named_parameters()}
    model.zero_grad()
    return float(loss.detach()), found


def model_of(family: str) -> Any:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family][0](**SIZES))
    with torch.no_grad():
        for name, each in model.named_parameters():
            if "norm" in name:
                each.add_(0.3 * torch.randn_like(each))
            elif "embed" not in name:
                each.mul_(5.0)  # at first norms and gates do next to nothing
    return model


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("family", FAMILIES)
def test_losses_and_gradients_are_those_of_the_modules(family: str) -> None:
    model = model_of(family)
    loss, wanted = gradients(model)
    assert kernels.install(model) == FAMILIES[family][1] + 2, "every norm, and a gate in each layer"
    ours, found = gradients(model)
    assert ours == pytest.approx(loss, rel=1e-6)
    for name, each in wanted.items():
        assert (found[name] - each).abs().max() <= 1e-5 * each.abs().max(), name


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("moved", [False, True], ids=["half of a layer's output", "the same, heads moved"])
@pytest.mark.parametrize("given_moved", [False, True], ids=["", "gradients moved"])
def test_a_norm_of_a_view(moved: bool, given_moved: bool) -> None:
    """Qwen 3.5 and Qwen3-Next norm the first half of what a projection gives, [rows × tokens × heads × width]."""
    torch.manual_seed(0)
    whole, scale = torch.randn(2, 5, 3, 64, requires_grad=True), torch.rand(32, requires_grad=True)
    states = whole.chunk(2, -1)[0]
    states = states.transpose(1, 2) if moved else states
    given = torch.randn(states.shape)
    given = given.transpose(1, 2).contiguous().transpose(1, 2) if given_moved else given
    wanted = states * torch.rsqrt(states.square().mean(-1, keepdim=True) + 1e-6) * scale
    found = kernels._by_rows(kernels._normed, states, scale, 1e-6)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(
        torch.autograd.grad(found, (whole, scale), given),
        torch.autograd.grad(wanted, (whole, scale), given),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("compiled")
def test_bf16_is_rounded_once() -> None:
    """Nearer to fp32 than the modules, which round between gate and product."""
    exact_loss, exact = gradients(model_of("gemma3"))
    rounded = model_of("gemma3").bfloat16()
    loss, theirs = gradients(rounded)
    kernels.install(rounded)
    ours_loss, ours = gradients(rounded)

    def off(found: dict[str, torch.Tensor]) -> float:
        return float(sum(((found[name].float() - each) ** 2).sum() for name, each in exact.items())) ** 0.5

    assert off(ours) <= 1.1 * off(theirs)
    assert abs(ours_loss - exact_loss) <= 2.0 * abs(loss - exact_loss) + 1e-2


@pytest.mark.usefixtures("compiled")
def test_what_is_no_such_norm_stays() -> None:
    class OtherRMSNorm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.eps = torch.nn.Parameter(torch.ones(8)), 1e-6

        def forward(self, states: torch.Tensor) -> torch.Tensor:
            return self.weight * states / states.abs().mean(-1, keepdim=True)

    assert kernels.install(torch.nn.Sequential(OtherRMSNorm())) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("compiled")
def test_a_run_learns_the_same(tmp_path: Path) -> None:
    needs("deepspeed")
    rows, found = write_rows(tmp_path), {}
    for name, wanted in (("plain", False), ("compiled", True)):
        recipe = write_recipe(tmp_path, f"{name}.yaml", evaluation=None, ema=None, compiled=wanted)
        train(recipe, rows, tmp_path / name, internal=False)
        found[name] = losses(tmp_path / name)
    assert found["compiled"] == pytest.approx(found["plain"], rel=1e-3)
    assert found["compiled"] != found["plain"], "the same to the last digit would say that nothing was compiled"


def test_without_a_compiler_the_reason_is_one_line(tmp_path: Path) -> None:
    program = "import sys; sys.path.insert(0, sys.argv[1]); import kernels; print(kernels.compile_all())"
    environment = {**os.environ, "CXX": "/nowhere/g++", "PATH": "", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    words = [sys.executable, "-c", program, str(ROOT / "train")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() != "None" and len(done.stdout.strip().splitlines()) == 1


def adapted(dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A model with adapters that do something, below the last layer none."""
    from peft import LoraConfig, get_peft_model

    wanted = {"r": 3, "lora_alpha": 6, "target_modules": r"model\.layers\.1\..*_proj", **changes}
    torch.manual_seed(0)
    return get_peft_model(model_of("llama"), LoraConfig(init_lora_weights=False, **wanted)).to(dtype)


def learned(model: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    ids = torch.randint(50, (3, 7))
    torch.manual_seed(2)  # of dropout
    found = model(input_ids=ids, labels=ids)
    found.loss.backward()
    return found.logits.detach(), {
        name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None
    }


@pytest.mark.parametrize("changes", [{}, {"lora_dropout": 0.5}, {"use_dora": True}], ids=str)
def test_joined_adapters_compute_what_pefts_compute(changes: dict[str, Any]) -> None:
    wanted, gradients_wanted = learned(adapted(**changes))
    found, gradients_found = learned(kernels.join_adapters(adapted(**changes)))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    assert gradients_found.keys() == gradients_wanted.keys() and all("lora_" in name for name in gradients_found)
    for name, each in gradients_wanted.items():
        torch.testing.assert_close(gradients_found[name], each, rtol=1e-4, atol=1e-6, msg=name)


def test_joined_adapters_are_switched_off_merged_and_changed_as_pefts() -> None:
    from peft import LoraConfig

    model, theirs = kernels.join_adapters(adapted()), adapted()
    with model.disable_adapter(), theirs.disable_adapter():
        plain = theirs(torch.arange(5)[None]).logits
        torch.testing.assert_close(model(torch.arange(5)[None]).logits, plain)
    for each in (model, theirs):
        torch.manual_seed(3)
        each.add_adapter("other", LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
        each.base_model.set_adapter(["default", "other"])
    both = theirs(torch.arange(5)[None]).logits
    torch.testing.assert_close(model(torch.arange(5)[None]).logits, both)
    assert not torch.allclose(both, plain)
    model.merge_adapter()
    torch.testing.assert_close(model(torch.arange(5)[None]).logits, both, rtol=1e-4, atol=1e-5)
