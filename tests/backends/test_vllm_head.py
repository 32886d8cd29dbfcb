"""A scoring head in vLLM, in this process and behind its server: the same command gives transformers' own
probabilities."""

from itertools import pairwise, product
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import (
    ROOT,
    asked_of,
    command,
    free_port,
    needs,
    read_jsonl,
    run_apart,
    run_with_vllm,
    serving,
    write_jsonl,
)
from probabilities import by_transformers
from tiny_vlm import build_base

from critic import human_scored, jsonl
from critic.backends import identity
from critic.judging.targets import source_ids
from critic.records import Judgment, Question
from eval_agreement.measures.attacks import looking

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module", params=["last", "answer", "criteria"])
def head(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Train a tiny head that distinguishes the rows, in float32.

    It rates by the last token, or by the answer's besides; or it scores two sets of criteria by both.
    """
    needs("deepspeed", "vllm")
    import training

    folder = tmp_path_factory.mktemp("head")
    changes: dict[str, Any] = {"evaluation": None, "ema": None, "objective": "head", "max_source_tokens": 500}
    changes["read_answer"] = request.param != "last"
    changes["criteria"] = training.CRITERIA if request.param == "criteria" else None
    rows = training.criteria_rows() if changes["criteria"] else None
    # vLLM on a CPU knows no smaller heads than of 32 numbers.
    changes["tiny"] = {"hidden_size": 64, "heads": 1, "initializer_range": 0.06}
    steps = {"max_steps": 80, "save_steps": 80, "learning_rate": 0.004}
    recipe = training.write_recipe(folder, **changes, training=steps)
    training.train(recipe, training.write_rows(folder, rows), folder / "judge", internal=False)
    return folder / "judge"


def by_hand(classes: list[float], question: Question) -> tuple[list[float], dict[str, list[float]]]:
    """The rating's distribution, and each criterion's: all pairs of scores, by the classes' probabilities."""
    from training import CRITERIA

    own, begin = {}, 0
    for name, (low, high) in sorted(CRITERIA.items()):
        part = classes[begin : begin + high - low + 1]
        begin += len(part)
        if name in question.criteria:
            own[name] = [share / sum(part) for share in part]
    first, second = own
    weight = question.criteria_weights.get(second, 1.0)
    highest = len(own[first]) - 1 + weight * (len(own[second]) - 1)
    shares = [0.0] * 10
    for (left, one), (right, other) in product(enumerate(own[first]), enumerate(own[second])):
        place = 9 * (left + weight * right) / highest
        shares[int(place)] += one * other * (1 - place % 1)
        shares[min(int(place) + 1, 9)] += one * other * (place % 1)
    return shares, own


def test_process_server_and_transformers_agree(head: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    rows, tokenizer = head.parent / "rows.jsonl", AutoTokenizer.from_pretrained(head)

    def judged(name: str, *words: str) -> dict[str, dict[str, Any]]:
        out = tmp_path / f"{name}.jsonl"
        run_with_vllm(command("critic", "judge", rows, "--out", out, *words), cwd=ROOT)
        return {line["sample"]["id"]: line for line in read_jsonl(out)}

    with serving(head) as (_, url):
        served = judged("served", "--base-url", f"{url}/v1")
        ours = {"model": served["row-0"]["setup"]["judge"], "messages": [{"role": "user", "content": "?"}]}
        assert httpx.post(f"{url}/v1/chat/completions", json=ours).status_code in {400, 404}
    here = judged("here", "--judge", str(head))
    for name in ("served", "here"):
        assert jsonl.facts(tmp_path / f"{name}.jsonl")["trained_on"] == [jsonl.sha256(rows)]
    responses = human_scored.load(rows).responses
    wanted = by_transformers(head, [asked_of("pointwise", each).messages for each in responses], head=True)
    by_criteria = identity.read_notes(head)["recipe"]["criteria"]
    for response, classes in zip(responses, wanted, strict=True):
        shares, own = by_hand(classes, response.question) if by_criteria else (classes, {})
        assert here[response.id]["setup"]["judge"] == served[response.id]["setup"]["judge"]
        count = len(source_ids(tokenizer, asked_of("pointwise", response).messages))
        assert here[response.id]["prompt_tokens"] == served[response.id]["prompt_tokens"] == count
        for line in (here[response.id], served[response.id]):
            assert line["verdict"]["distribution"] == pytest.approx(shares, abs=1e-4)
            rated = line["verdict"].get("criteria", {})
            assert rated.keys() == own.keys()
            for name, verdict in rated.items():
                assert verdict["distribution"] == pytest.approx(own[name], abs=1e-4)
    scores = [line["score"] for line in here.values()]
    assert max(scores) - min(scores) > 1.0, "a judge that cannot tell rows apart proves nothing"


@pytest.mark.slow
@pytest.mark.parametrize("family", ["idefics3", "qwen3_vl"])
@pytest.mark.parametrize(("objective", "form"), [("head", "pointwise_short"), ("pairwise", "pairwise")])
def test_a_head_that_sees_judges_served_as_in_process(objective: str, form: str, family: str, tmp_path: Path) -> None:
    """A head that rates judges the arms of its rows and reports whether it looks; one that compares judges pairs."""
    needs("PIL", "deepspeed", "vllm", *(["torchvision"] if family == "qwen3_vl" else []))

    def done(*words: object) -> None:
        run_apart(*words, code=0)

    rows, questions, judge = tmp_path / "rows.jsonl", tmp_path / "asked.jsonl", tmp_path / "judge"
    done("data/sample_world.py", "--pictures", "--questions", 52, "--out", rows)
    done("critic", "attack", rows, "--images", "--limit", 60, "--out", questions)
    if form == "pairwise":
        usable = [row for _, row in jsonl.read(rows, dict[str, Any]) if not row["flags"]]
        pairs = [{"response_a": item["response"], "response_b": other["response"]} for item, other in pairwise(usable)]
        labels = [{"preference": "AB"[n % 2], "annotators": None} for n, _ in enumerate(pairs)]
        rows = questions = write_jsonl(
            questions, [a | b | c for a, b, c in zip(usable, pairs[:60], labels, strict=False)]
        )
    given = {"objective": objective, "forms": f"{{{form}: 1.0}}", "training.max_steps": 40}
    if family == "qwen3_vl":
        base = build_base("qwen3_vl", tmp_path / "base")
        given |= {"tiny": "null", "vision": "null", "base": base, "max_source_tokens": 3000}
    words = ["--data-root", tmp_path, *(word for key, value in given.items() for word in ("--set", f"{key}={value}"))]
    done("critic", "train", "tiny-vl", "--train", rows, "--out", judge, *words, "--", "--master_port", free_port())
    words = ["critic", "judge", questions, "--images", "show", "--data-root", tmp_path, "--prompt", form]
    done(*words, "--judge", judge, "--out", tmp_path / "here.jsonl")
    with serving(judge) as (_, url):
        done(*words, "--judge", f"{url}/v1", "--out", tmp_path / "served.jsonl")
    here, served = (
        [item for _, item in jsonl.read(tmp_path / name, Judgment)] for name in ("here.jsonl", "served.jsonl")
    )
    ours = {judgment.sample.id: judgment.verdict.distribution for judgment in here}
    assert len(ours) == len(served) > 50 and len({tuple(each or ()) for each in ours.values()}) > len(ours) / 2
    for judgment in served:
        assert judgment.verdict.distribution == pytest.approx(ours[judgment.sample.id], abs=1e-3)
        assert judgment.images == (not judgment.sample.id.endswith("#blind"))
    assert form == "pairwise" or looking(served).reached == looking(served).answers == 60
