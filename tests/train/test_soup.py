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


def copy(judge: Path, to: Path, scale: float = 1.0, **changes: str) -> Path:
    """Copy a judge with its head scaled, and with `changes` of its recipe."""
    shutil.copytree(judge, to, ignore=shutil.ignore_patterns("checkpoint-*", "best"))
    weights, file = load_file(to / "model.safetensors"), to / "model.safetensors"
    save_file(weights | {"score.weight": scale * weights["score.weight"]}, file, {"format": "pt"})
    facts = json.loads((to / "critic.json").read_text("utf-8"))
    facts |= {"recipe": facts["recipe"] | changes, "weights": {file.name: jsonl.sha256(file)}}
    jsonl.write_json(to / "critic.json", facts)
    return to


def test_judges_with_adapters_are_averaged(tmp_path: Path) -> None:
    """Those of two seeds; one and its twin make a soup that a spoilt one is left out of."""
    rows, folders = write_rows(tmp_path, two_kinds()), [tmp_path / name for name in ("a", "b", "spoilt", "twin")]
    base = str(save_base(tmp_path / "base", rows))
    file = write_recipe(tmp_path, objective="head", ema=None, tiny=None, base=base, lora={"r": 2})
    for seed, out in enumerate(folders[:2]):
        train(file, rows, out, "--set", f"training.seed={seed}")
    copy(folders[0], folders[2], scale=-1.0), copy(folders[0], folders[3])
    chosen, mean, same = (tmp_path / name for name in ("chosen", "mean", "same"))
    soup = ["critic", "train", "--soup"]
    run(*soup, *reversed(folders), "--internal", rows, "--out", chosen, code=0)
    notes, card = json.loads((chosen / "critic.json").read_text("utf-8")), (chosen / "README.md").read_text("utf-8")
    by_name = {member["judge"].partition("@")[0]: member for member in notes["soup"]}
    assert [by_name[name]["taken"] for name in ("a", "spoilt", "twin")] == [True, False, True], card
    watched = json.loads((folders[1] / "critic.json").read_text("utf-8"))["evaluation"]
    assert by_name["b"]["mae"] == pytest.approx(watched["mae"], abs=1e-5) and by_name["b"]["seed"] == 1
    assert notes["evaluation"]["mae"] <= by_name["a"]["mae"] and "the soup was chosen by these rows" in card
    run(*soup, *folders[:2], "--out", mean, code=0)
    run(*soup, folders[0], folders[3], folders[0], "--out", same, code=0)
    first, second, both = (load_file(folder / "model.safetensors") for folder in (*folders[:2], mean))
    assert all(torch.equal(both[name], (first[name].double() + second[name]).div(2).float()) for name in first)
    assert not torch.equal(first["score.weight"], second["score.weight"]) and not (mean / "adapter").exists()
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (same / name).read_bytes() == (folders[0] / name).read_bytes()
    run("critic", "push", chosen, "me/soup", "--licence", "MIT", "--dry-run", code=0)
    other, none = copy(folders[0], tmp_path / "other", objective="raft", base="elsewhere"), tmp_path / "none"
    (folders[3] / "model.safetensors").write_bytes((folders[1] / "model.safetensors").read_bytes())
    for judges, out, says in (
        ([folders[0]], none, "two judges or more"),
        (folders[:2], mean, "is not empty"),
        ([folders[0], folders[3]], none, "is no judge as critic train left it"),
        ([folders[0], other], none, "made with another recipe (base, objective) than"),
        ([*folders[:2], "--set", "keep=1"], none, "--soup takes judges, --out"),
        ([*folders[:2], "--internal", tmp_path / "recipe.yaml"], none, "recipe.yaml"),
    ):
        assert_one_line_error(run(*soup, *judges, "--out", out, code=2), says)
        assert not [*tmp_path.glob("none*")]
