"""Adapters joined to their layers compute what peft's compute."""

from typing import Any

import pytest
import training  # noqa: F401 - the path to train/

import adapters  # isort: skip
import torch
import transformers


def small_llama() -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    return transformers.AutoModelForCausalLM.from_config(config)


def adapted(dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A model with adapters that do something, below the last layer none."""
    from peft import LoraConfig, get_peft_model

    wanted = {"r": 3, "lora_alpha": 6, "target_modules": r"model\.layers\.1\..*_proj", **changes}
    torch.manual_seed(0)
    return get_peft_model(small_llama(), LoraConfig(init_lora_weights=False, **wanted)).to(dtype)


def learned(model: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    ids = torch.randint(50, (3, 7))
    torch.manual_seed(2)  # of dropout
    outputs = model(input_ids=ids, labels=ids)
    outputs.loss.backward()
    return outputs.logits.detach(), {
        name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None
    }


@pytest.mark.parametrize("changes", [{}, {"lora_dropout": 0.5}], ids=str)
def test_joined_adapters_compute_what_pefts_compute(changes: dict[str, Any]) -> None:
    wanted, gradients_wanted = learned(adapted(**changes))
    logits, gradients = learned(adapters.join_adapters(adapted(**changes)))
    torch.testing.assert_close(logits, wanted, rtol=1e-5, atol=1e-6)
    assert gradients.keys() == gradients_wanted.keys() and all("lora_" in name for name in gradients)
    for name, each in gradients_wanted.items():
        torch.testing.assert_close(gradients[name], each, rtol=1e-4, atol=1e-6, msg=name)
