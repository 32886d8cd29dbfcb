"""What is looked at before the first step: whether the judge can be served, and has room on the disk."""

import json
import os
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import ROOT
from training import Whole, refused, save_base, start, whole, whole_of_two, write_recipe

import preflight  # isort: skip
import recipe as recipes  # isort: skip
import rows as rows_module  # isort: skip
import run as training_run  # isort: skip
import trainer_args  # isort: skip
import transformers
from transformers import LlamaForCausalLM

from critic.backends import vllm
from critic.errors import UsageError

PUBLISHED = {
    "01-ai/Yi-1.5-6B-Chat": 4096,
    "runs/chatglm3-6b": 8192,
    "runs/base/gemma-3-270m": 32768,
    "runs/base/gemma-3-270m-10": 32768,
    "runs/base/qwen2.5-coder-1.5b": 32768,
    "runs/base/qwen2.5-coder-1.5b-18": 32768,
    "runs/base/smollm2-135m": 8192,
    "Qwen/Qwen3-4B": 40960,
    "Qwen/Qwen3.5-0.8B": 262144,
    "Qwen/Qwen3.5-4B": 262144,
    "Qwen/Qwen3-VL-4B-Instruct": 262144,
}
"""Positions by the bases' published configurations."""


@pytest.mark.parametrize("path", sorted((ROOT / "train/recipes").glob("*.yaml")), ids=lambda path: path.stem)
def test_what_a_recipe_trains_can_be_served(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipes.read_recipe(path)
    monkeypatch.setattr(preflight, "read_served_tokens", lambda base, revision: PUBLISHED[base])
    preflight.require_served_tokens(recipe)
    if recipe.base is not None:
        monkeypatch.setattr(preflight, "read_served_tokens", lambda base, revision: 500)
        with pytest.raises(UsageError, match=f"base {recipe.base} is served with 500 at most"):
            preflight.require_served_tokens(recipe)


@pytest.mark.parametrize(
    ("config", "tokenizer", "most"),
    [
        ({}, {}, 4096),
        ({}, {"model_max_length": 2048}, 2048),
        ({}, {"model_max_length": 10**30}, 4096),
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
    assert preflight.read_served_tokens(str(tmp_path)) == most


def test_more_tokens_than_the_base_has_places_for(tmp_path: Path, rows: Path) -> None:
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
    words = vllm.build_options(str(out), json.loads((out / "critic.json").read_text("utf-8")), on_cpu=False)
    served = int(words[words.index("--max-model-len") + 1])
    assert served <= preflight.read_served_tokens(str(out))


def use_of(path: Path, whole: float, trained: float, *changes: str) -> tuple[int, int]:
    """What a recipe's run would write; its settings as a machine without bf16 would be given them."""
    recipe = recipes.read_recipe(path, [*changes, "training.bf16=false"])
    settings = trainer_args.arguments(recipe, path.parent)
    os.environ.pop("TENSORBOARD_LOGGING_DIR", None)  # a training that a test starts would write beside the recipes
    return preflight.estimate_disk_use(recipe, settings, int(whole), int(trained))


FULL, LORA = (ROOT / f"train/recipes/critic-6b-{name}.yaml" for name in ("full", "lora"))
ZERO_2 = "deepspeed.zero_optimization.stage=2"


@pytest.mark.parametrize(
    ("path", "trained", "changes", "checkpoint", "most"),
    [
        (FULL, 6.06e9, [ZERO_2], "109 GB", "327 GB"),
        (FULL, 6.06e9, [ZERO_2, "keep=1"], "109 GB", "218 GB"),
        (FULL, 6.06e9, [ZERO_2, "ema=null"], "84.8 GB", "255 GB"),
        (FULL, 6.06e9, [], "97 GB", "291 GB"),  # of ZeRO-3 the fp32 weights alone
        (FULL, 6.06e9, ["deepspeed.bf16.enabled=false", ZERO_2], "121 GB", "364 GB"),
        (FULL, 6.06e9, [ZERO_2, "training.max_steps=-1", "training.num_train_epochs=2"], "109 GB", "327 GB"),
        (FULL, 6.06e9, [ZERO_2, "training.save_strategy=no"], "0 GB", "12.1 GB"),
        (FULL, 6.06e9, [ZERO_2, "evaluation={every: 9}"], "109 GB", "351 GB"),
        (FULL, 5.06e9, [], "83 GB", "249 GB"),  # 2 GB of them frozen
        (LORA, 41e6, [], "0.738 GB", "13.6 GB"),  # the judge holds the base
    ],
)
def test_what_checkpoints_take(path: Path, trained: float, changes: list[str], checkpoint: str, most: str) -> None:
    use = use_of(path, 6.06e9, trained, *changes)
    assert tuple(f"{each / 1e9:.3g} GB" for each in use) == (checkpoint, most)


@pytest.mark.parametrize("done", [whole, pytest.param(whole_of_two, marks=pytest.mark.e2e)], indirect=True)
def test_checkpoints_take_what_was_said(done: Whole) -> None:
    """To the code, the random states and the names that DeepSpeed and transformers write beside the numbers."""
    weights = LlamaForCausalLM.from_pretrained(done.out).num_parameters()
    checkpoint, _ = use_of(done.recipe, weights, weights)
    folder = done.out / "checkpoint-8"
    taken = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert checkpoint < taken < checkpoint + 150_000
    assert f"a checkpoint takes {checkpoint / 1e9:.1f} GB, " in done.run.stdout
    assert "at most with keep: 20\n" in done.run.stdout
    assert "mismatch" not in done.run.stderr, "accelerate's, of steps that DeepSpeed's config decides"


def test_no_room_for_the_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(free=300e9)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    use = use_of(FULL, 6.06e9, 6.06e9, ZERO_2)
    with pytest.raises(UsageError) as error:
        preflight.require_room(tmp_path, *use, 2)
    assert str(error.value) == (
        f"{tmp_path}: a checkpoint takes 109.1 GB, 327.2 GB at most with keep: 2, and its disk has 300.0 GB; "
        "make room, lower keep, or choose an --out elsewhere"
    )
    usage.free = 327.3e9
    assert preflight.require_room(tmp_path, *use, 2).endswith("109.1 GB, 327.2 GB at most with keep: 2")
    # What a killed run has written needs no more room.
    usage.free = 1000
    for name in ("checkpoint-1", "best"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_bytes(bytes(1000))
    assert "at most" in preflight.require_room(tmp_path, 1000, 3000, 2)
    usage.free = 999
    with pytest.raises(UsageError):
        preflight.require_room(tmp_path, 1000, 3000, 2)


def test_gpus_that_differ_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the ranks of those like the first."""

    def gather(names: list[str], mine: str) -> None:
        names[:] = [mine, "NVIDIA A100", mine]

    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100")
    with pytest.raises(UsageError, match=r"not alike: NVIDIA A100, NVIDIA H100; .*localhost:0,2\)"):
        preflight.require_alike(torch.device("cuda"))
    monkeypatch.setattr(torch.distributed, "all_gather_object", lambda *_: None)
    preflight.require_alike(torch.device("cpu"))


ADDED = [
    ("蓝色", False, True, "plain text"),
    ("<pad>", True, True, "named: padding"),
    ("<|turn|>", True, True, "in the chat template, so in every row"),
    ("<image_soft_token>", True, False, "special, and in no row"),
]


@pytest.mark.parametrize(("token", "special", "refuses", "where"), ADDED, ids=[each[3] for each in ADDED])
def test_a_tokenizer_larger_than_the_embedding(
    token: str, special: bool, refuses: bool, where: str, tmp_path: Path, rows: Path, base: Path
) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    size = len(tokenizer)
    tokenizer.add_tokens([token], special_tokens=special)
    if token == "<pad>":
        tokenizer.pad_token = token
    if "turn" in token:
        tokenizer.chat_template = f"{token}{tokenizer.chat_template}"
    recipe = recipes.read_recipe(write_recipe(tmp_path, tiny=None, base=str(base)))
    tokenizer.save_pretrained(base)
    data, tokenizer = rows_module.prepare(recipe, rows, tmp_path / "cache", 1)
    model = training_run.build_model(recipe, tokenizer, None)
    said = f"the tokenizer has ids up to {size}, the base has embeddings for {size} "
    with pytest.raises(UsageError, match=re.escape(said)) if refuses else nullcontext():
        preflight.require_embeddings(model, tokenizer, data.rows, str(base))


@pytest.mark.parametrize("changes", [{}, {"objective": "head", "lora": {"r": 2}}], ids=["text", "an adapted head"])
def test_it_is_one_line_before_the_first_step(changes: dict[str, Any], tmp_path: Path, rows: Path, base: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    tokenizer.add_tokens(["apples"])  # which the rows hold
    tokenizer.save_pretrained(base)
    recipe = write_recipe(tmp_path, tiny=None, base=str(base), evaluation=None, ema=None, **changes)
    run = start(recipe, rows, tmp_path / "out", internal=False)
    refused(run, "the tokenizer has ids up to ", ", the base has embeddings for ")
    assert "step 1" not in run.stdout and not (tmp_path / "out/loss.jsonl").exists()
