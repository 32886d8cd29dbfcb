"""What is looked at before the first step: whether the judge can be served."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from training import refused, save_base, start, whole, write_recipe, write_rows

import preflight  # isort: skip
import recipe as recipes  # isort: skip

from critic.backends import vllm
from critic.errors import UsageError

PUBLISHED = {
    "01-ai/Yi-1.5-6B-Chat": 4096,
    "runs/chatglm3-6b": 8192,
    "runs/base/gemma-3-270m": 32768,
    "runs/base/gemma-3-270m-10": 32768,
    "runs/base/qwen2.5-coder-1.5b": 32768,
    "runs/base/qwen2.5-coder-1.5b-22": 32768,
    "runs/base/smollm2-135m": 8192,
    "Qwen/Qwen3-VL-4B-Instruct": 262144,
    "Qwen/Qwen3-VL-8B-Instruct": 262144,
}
"""Positions by the bases' published configurations."""


@pytest.mark.parametrize("path", sorted((ROOT / "train/recipes").glob("*.yaml")), ids=lambda path: path.stem)
def test_what_a_recipe_trains_can_be_served(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipes.read_recipe(path)
    monkeypatch.setattr(preflight, "served_tokens", PUBLISHED.__getitem__)
    preflight.require_served_tokens(recipe)
    if recipe.base is not None:
        monkeypatch.setattr(preflight, "served_tokens", lambda base: 500)
        with pytest.raises(UsageError, match=f"base {recipe.base} is served with 500 at most"):
            preflight.require_served_tokens(recipe)


@pytest.mark.parametrize(
    ("config", "tokenizer", "most"),
    [
        ({}, {}, 4096),
        ({}, {"model_max_length": 2048}, 2048),
        ({}, {"model_max_length": 10**30}, 4096),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, {}, 8192),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, {}, 4096),
        ({"model_type": "idefics3", "text_config": {"model_type": "llama", "max_position_embeddings": 512}}, {}, 512),
        ({"model_type": "bloom"}, {}, float("inf")),
    ],
)
def test_positions_as_vllm_counts_them(
    config: dict[str, Any], tokenizer: dict[str, Any], most: float, tmp_path: Path
) -> None:
    plain = {} if "model_type" in config else {"model_type": "llama", "max_position_embeddings": 4096}
    (tmp_path / "config.json").write_text(json.dumps({**plain, **config}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    assert preflight.served_tokens(str(tmp_path)) == most


def test_more_tokens_than_the_base_has_places_for(tmp_path: Path) -> None:
    rows = write_rows(tmp_path)
    base = save_base(tmp_path / "base", rows)  # with 2100 positions
    fits = recipes.read_recipe(write_recipe(tmp_path, tiny=None, base=str(base)))
    preflight.require_served_tokens(fits)
    longer = write_recipe(tmp_path, tiny=None, base=str(base), max_source_tokens=2001, evaluation=None)
    run = start(longer, rows, tmp_path / "out", internal=False)
    said = "max_source_tokens 2001 and max_target_tokens 100 are 2101 tokens, but base"
    refused(run, said, "is served with 2100 at most: set max_source_tokens to 2000")
    assert not (tmp_path / "cache").exists()
    preflight.require_served_tokens(recipes.read_recipe(write_recipe(tmp_path, tiny=None, base=str(tmp_path / "no"))))


def test_a_judge_is_served_with_no_more_than_its_positions(tmp_path_factory: pytest.TempPathFactory) -> None:
    out = whole(tmp_path_factory).out
    words = vllm.options(str(out), json.loads((out / "critic.json").read_text("utf-8")), on_cpu=False)
    asked = int(words[words.index("--max-model-len") + 1])
    assert asked <= preflight.served_tokens(str(out))
