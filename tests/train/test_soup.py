"""`critic train --soup`: one judge whose weights are the mean of others', chosen by their error on held-out rows."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from conftest import assert_one_line_error, run
from safetensors.torch import load_file, save_file
from training import save_base, train, two_kinds, write_recipe, write_rows

from critic import jsonl


def test_judges_with_adapters_are_averaged(tmp_path: Path) -> None:
    """Those of two seeds; one twice makes a soup that a spoilt one is left out of."""
    rows, soup = write_rows(tmp_path, two_kinds()), ["critic", "train", "--soup"]
    first, second, spoilt, chosen, mean, same, none = map(tmp_path.joinpath, "abcdefg")
    base = str(save_base(tmp_path / "base", rows))
    file = write_recipe(tmp_path, objective="head", ema=None, tiny=None, base=base, lora={"r": 2})
    for seed, out in enumerate((first, second)):
        train(file, rows, out, "--set", f"training.seed={seed}")

    def refuse(*words: object, out: Path = none, says: str) -> None:
        assert_one_line_error(run(*soup, *words, "--out", out, code=2), says)
        assert not [*tmp_path.glob(f"{none.name}*")]

    shutil.copytree(first, spoilt, ignore=shutil.ignore_patterns("checkpoint-*", "best"))
    one, other = (load_file(folder / "model.safetensors") for folder in (first, second))
    save_file(one | {"score.weight": -one["score.weight"]}, spoilt / "model.safetensors", {"format": "pt"})
    refuse(first, spoilt, says="is no judge as critic train left it")
    facts = json.loads((spoilt / "critic.json").read_text("utf-8"))
    facts["weights"] = {"model.safetensors": jsonl.sha256(spoilt / "model.safetensors")}
    jsonl.write_json(spoilt / "critic.json", facts)
    run(*soup, spoilt, second, first, first, "--internal", rows, "--out", chosen, code=0)
    notes, card = json.loads((chosen / "critic.json").read_text("utf-8")), (chosen / "README.md").read_text("utf-8")
    assert [member["taken"] for member in notes["soup"]][::2] == [False, True], card
    watched = json.loads((second / "critic.json").read_text("utf-8"))["evaluation"]
    assert notes["soup"][1]["mae"] == pytest.approx(watched["mae"], abs=1e-5) and notes["soup"][1]["seed"] == 1
    assert notes["evaluation"]["mae"] <= notes["soup"][2]["mae"] and "the soup was chosen by these rows" in card
    run("critic", "push", chosen, "me/soup", "--licence", "MIT", "--dry-run", code=0)
    run(*soup, first, second, "--out", mean, code=0)
    for name, weight in load_file(mean / "model.safetensors").items():
        assert torch.equal(weight, (one[name].double() + other[name]).div(2).float())
    assert not torch.equal(one["score.weight"], other["score.weight"]) and not (mean / "adapter").exists()
    run(*soup, first, first, first, "--out", same, code=0)
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (same / name).read_bytes() == (first / name).read_bytes()
    refuse(first, says="two judges or more")
    refuse(first, second, out=mean, says="is not empty")
    refuse(first, second, "--set", "keep=1", says="--soup takes judges, --out")
    refuse(first, second, "--internal", file, says=file.name)
    jsonl.write_json(spoilt / "critic.json", facts | {"recipe": {**facts["recipe"], "objective": "raft", "base": "x"}})
    refuse(first, spoilt, says="made with another recipe (base, objective) than")
