"""Bases that people have: templates that think by default, revisions of a hub's model, matrices in four bits."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from training import Processes, refused, run_sft, save_base, start, tokenizer_for, train, write_recipe, write_rows

import preflight  # isort: skip
import recipe as recipes  # isort: skip
import rows as rows_module  # isort: skip
import torch
from huggingface_hub import constants
from transformers import AutoModelForCausalLM, AutoTokenizer

from critic.errors import UsageError

THINKS = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n"
    "{% if message['role'] == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""As hybrid models' templates: the last answer shows its thoughts, and who asks opens them unless told not to."""

OFF = {"enable_thinking": False}


def thinking_base(folder: Path, rows: Path) -> Path:
    save_base(folder, rows)
    tokenizer = tokenizer_for(rows)
    tokenizer.chat_template = THINKS
    tokenizer.save_pretrained(folder)
    return folder


def prompted(folder: Path, **said: Any) -> str:
    messages = [{"role": "user", "content": "?"}]
    prompt: str = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, **said
    )
    return prompt


@pytest.mark.e2e
def test_a_template_that_thinks_by_default_is_told_not_to(tmp_path: Path, rows: Path) -> None:
    """The judge's own template says so: whoever serves it opens the answer as it was trained, whatever is asked."""
    changes: dict[str, Any] = {"tiny": None, "base": str(thinking_base(tmp_path / "base", rows)), "evaluation": None}
    changes["training"] = {"max_steps": 1}
    with pytest.raises(UsageError, match=r"rewrites the answer; set chat_template_kwargs: \{enable_thinking: false\}"):
        rows_module.base_tokenizer(recipes.read_recipe(write_recipe(tmp_path, **changes)))
    recipe = write_recipe(tmp_path, **changes, chat_template_kwargs=OFF)
    train(recipe, rows, tmp_path / "judge", internal=False)
    facts = json.loads((tmp_path / "judge/critic.json").read_text("utf-8"))
    assert facts["recipe"]["chat_template_kwargs"] == OFF
    assert prompted(tmp_path / "base").endswith("<|assistant|>\n")
    for said in ({}, OFF, {"enable_thinking": True}):
        assert prompted(tmp_path / "judge", **said).endswith("<|assistant|>\n<think>\n\n</think>\n\n")
    # From the judge one may train on, with the same variable and no other value.
    onwards = {**changes, "base": str(tmp_path / "judge"), "chat_template_kwargs": OFF}
    again = rows_module.base_tokenizer(recipes.read_recipe(write_recipe(tmp_path, **onwards)))
    assert again.chat_template.count("set enable_thinking") == 1


@pytest.mark.parametrize("name", ["enable_thinkin", "role_of"])
def test_a_variable_that_the_template_does_not_read_is_refused(name: str, tmp_path: Path) -> None:
    base = thinking_base(tmp_path / "base", write_rows(tmp_path))
    recipe = write_recipe(tmp_path, tiny=None, base=str(base), chat_template_kwargs={name: False})
    with pytest.raises(UsageError, match=f"its chat template takes no {name}; leave it out"):
        rows_module.base_tokenizer(recipes.read_recipe(recipe))


COMMITS = {"main": "a" * 40, "v1": "b" * 40}


@pytest.fixture
def on_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`some/model` in a hub's cache, of which main and v1 have other weights; there is no network."""
    rows = write_rows(tmp_path)
    cached = tmp_path / "hub/models--some--model"
    (cached / "refs").mkdir(parents=True)
    for seed, (name, commit) in enumerate(COMMITS.items()):
        folder = save_base(cached / "snapshots" / commit, rows)
        (folder / "LICENSE").write_text(name)
        model = AutoModelForCausalLM.from_pretrained(folder)
        torch.manual_seed(seed)
        torch.nn.init.normal_(model.model.embed_tokens.weight, std=0.15)
        model.save_pretrained(folder)
        (cached / "refs" / name).write_text(commit)
    for name, value in without_network(cached).items():
        monkeypatch.setattr(constants, name, value)
    return cached


def without_network(cached: Path) -> dict[str, Any]:
    return {"HF_HUB_CACHE": str(cached.parent), "HF_HUB_OFFLINE": True}


def train_without_network(cached: Path, words: list[str]) -> None:
    vars(constants).update(without_network(cached))
    run_sft(words)


def started(recipe: Path, rows: Path, out: Path, cached: Path, *words: str) -> Processes:
    return start(recipe, rows, out, *words, internal=False, by=partial(train_without_network, cached))


@pytest.mark.e2e
def test_a_judge_is_from_one_revision_of_its_base(on_hub: Path, tmp_path: Path) -> None:
    """Weights, adapter, terms and critic.json are the commit's, also after main has moved; another one is refused."""
    rows, out = tmp_path / "rows.jsonl", tmp_path / "judge"
    training = {"max_steps": 2, "learning_rate": 1e-9}
    changes: dict[str, Any] = {"tiny": None, "base": "some/model", "evaluation": None, "lora": {"r": 2}}
    recipe = write_recipe(tmp_path, **changes, training=training, revision="v1")
    run = started(recipe, rows, out, on_hub)
    assert run.wait() == 0, run.stderr
    facts = json.loads((out / "critic.json").read_text("utf-8"))
    adapter = json.loads((out / "adapter/adapter_config.json").read_text("utf-8"))
    assert facts["recipe"]["revision"] == adapter["revision"] == COMMITS["v1"]
    assert (out / "LICENSE").read_text() == (out / "adapter/LICENSE").read_text() == "v1"
    folders = on_hub / "snapshots" / COMMITS["v1"], out
    base, judge = (AutoModelForCausalLM.from_pretrained(each).model.embed_tokens.weight for each in folders)
    assert torch.equal(base, judge)
    refused(started(recipe, rows, out, on_hub, "--set", f"revision={COMMITS['main']}"), "another recipe (revision)")
    pinned = [preflight.pin_revision(recipes.read_recipe(recipe, [f"revision={each}"]), None) for each in COMMITS]
    assert [each.revision for each in pinned] == [*COMMITS.values()]
    # A run without a revision stays with the commit that it began with.
    moving = write_recipe(tmp_path, "moving.yaml", **changes, training=training)
    run = started(moving, rows, tmp_path / "moving", on_hub)
    assert run.wait() == 0, run.stderr
    (on_hub / "refs/main").write_text(COMMITS["v1"])
    again = started(moving, rows, tmp_path / "moving", on_hub)
    assert again.wait() == 0 and "holds this judge already" in again.stdout


def test_four_bits_where_they_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipes.read_recipe(write_recipe(tmp_path, tiny=None, base="a/b", lora={"bits": 4}))
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    for gpu, message in ((False, "needs a GPU, and none is seen"), (True, "needs bitsandbytes: pip install bitsandb")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        with pytest.raises(UsageError, match=f"lora bits 4 {message}"):
            preflight.require_device(recipe)
    monkeypatch.setattr(preflight, "find_spec", lambda name: object())
    preflight.require_device(recipe)
