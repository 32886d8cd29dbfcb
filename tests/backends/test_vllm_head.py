"""A scoring head in vLLM, in this process and behind its server: by the same command transformers' own chances."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import asked_of, needs, run_apart, serving
from probabilities import by_transformers

from critic import human_scored
from critic.judging.targets import source_ids

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny head that tells rows apart, in float32."""
    needs("deepspeed", "vllm")
    import training

    folder = tmp_path_factory.mktemp("head")
    changes: dict[str, Any] = {"evaluation": None, "ema": None, "objective": "head", "max_source_tokens": 500}
    # vLLM on a CPU knows no smaller heads than of 32 numbers.
    changes["tiny"] = {"hidden_size": 64, "heads": 1, "initializer_range": 0.06}
    steps = {"max_steps": 80, "save_steps": 80, "learning_rate": 0.004}
    training.train(
        training.write_recipe(folder, **changes, training=steps),
        training.write_rows(folder),
        folder / "judge",
        internal=False,
    )
    return folder / "judge"


def test_process_server_and_transformers_agree(head: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    rows, tokenizer = head.parent / "rows.jsonl", AutoTokenizer.from_pretrained(head)

    def judged(name: str, *words: str) -> dict[str, dict[str, Any]]:
        out = tmp_path / f"{name}.jsonl"
        done = run_apart("critic", "judge", str(rows), "--out", str(out), *words)
        assert done.returncode == 0, done.stderr
        return {line["sample"]["id"]: line for line in map(json.loads, out.read_text("utf-8").splitlines())}

    with serving(head) as (_, url):
        served = judged("served", "--base-url", f"{url}/v1")
        ours = {"model": served["row-0"]["setup"]["judge"], "messages": [{"role": "user", "content": "?"}]}
        assert httpx.post(f"{url}/v1/chat/completions", json=ours).status_code in {400, 404}
    here = judged("here", "--judge", str(head))
    responses = human_scored.load(rows).responses
    wanted = by_transformers(head, [asked_of("pointwise", each).messages for each in responses], head=True)
    for response, shares in zip(responses, wanted, strict=True):
        assert here[response.id]["setup"]["judge"] == served[response.id]["setup"]["judge"]
        count = len(source_ids(tokenizer, asked_of("pointwise", response).messages))
        assert here[response.id]["prompt_tokens"] == served[response.id]["prompt_tokens"] == count
        for line in (here[response.id], served[response.id]):
            assert line["verdict"]["distribution"] == pytest.approx(shares, abs=1e-4)
    scores = [line["score"] for line in here.values()]
    assert max(scores) - min(scores) > 1.0, "a judge that cannot tell rows apart proves nothing"
