"""Adding a form, a history condition, an attack, a training objective or a reply contract is one entry: the pages' own
examples, put where they say in a copy of the packages. For a benchmark see benchmarks/test_add_a_benchmark.py, for a
metric agreement/test_metric_table.py."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from clients.decoder import Decoder
from conftest import ROOT, Copied, assert_one_line_error, command, human_row, needs, read_jsonl, write_jsonl

ROWS = [
    human_row(0, human_score=1.0, scale_max=10),
    human_row(1, human_score=5.5, lang="zh", question="有几个苹果？", reference="四个。", response="五个。"),
    human_row(2, human_score=10.0),
]

PLANNED = """
import json, sys
from pathlib import Path
from critic import human_scored
from critic.judging.examples import example_of, plan

responses = human_scored.load(Path(sys.argv[1])).responses
by_id = {one.id: one for one in responses}
planned = plan(responses, {"coarse": 1.0}).examples
print(json.dumps([example_of(one, by_id, None, lambda messages: 0).target for one in planned]))
"""


def blocks(page: str, heading: str, language: str) -> list[str]:
    """The code of a language under a heading of a page."""
    text = (ROOT / page).read_text("utf-8")
    (section,) = re.findall(rf"(?ms)^#+ {re.escape(heading)}$(.*?)(?=^#+ [A-Z]|\Z)", text)
    return re.findall(rf"(?s)```{language}\n(.*?)```", section)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the packages to add to."""
    for name in ("critic", "eval_agreement"):
        shutil.copytree(ROOT / name, tmp_path / "copy" / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "copy"


@pytest.fixture
def critic(tmp_path: Path, package: Path) -> Iterator[Copied]:
    started = Copied(package, tmp_path)
    yield started
    started.close()


def put_in(file: Path, table: str, entry: str) -> None:
    """An entry as the first one of a table."""
    text = file.read_text("utf-8")
    assert text.count(table) == 1
    file.write_text(text.replace(table, f"{table}\n{entry}"), "utf-8")


def judge_that_says(folder: Path, rating: int) -> Path:
    return write_jsonl(folder / f"judge-{rating}.jsonl", [{"text": json.dumps({"Rating": rating, "Reason": "so"})}])


def test_a_form(tmp_path: Path, package: Path, critic: Copied) -> None:
    """In --help, asked on its own scale, read, audited, and planned for training."""
    rows, out = write_jsonl(tmp_path / "rows.jsonl", ROWS), tmp_path / "judged.jsonl"
    (entry,) = blocks("critic/README.md", "Add a form", "python")
    put_in(package / "critic/judging/forms.py", "FORMS: dict[str, Form] = {", entry)
    for content in blocks("critic/README.md", "Add a form", "toml"):
        path = content.split("\n", 1)[0].removeprefix("# ")
        assert not (package / path).exists()
        (package / path).write_text(content, "utf-8")

    assert " coarse, " in " ".join(critic("judge", "--help").stdout.split())
    judge = ["judge", rows, "--score", "argmax", "--prompt", "coarse", "--judge"]
    critic(*judge, judge_that_says(tmp_path, 2), "--out", out)
    judged = read_jsonl(out)
    assert [line["prompt"] for line in judged] == ["coarse"] * 3
    assert [(line["score"], line["verdict"]["scale"]) for line in judged] == [(5.5, [1, 3])] * 3
    audited = critic("audit", f"mine={out}", "--out", tmp_path / "audit").stdout
    assert re.search(r"(?m)^judge-2 +3 +0 +3\.000", audited), audited
    assert "coarse" in (tmp_path / "audit/report.html").read_text("utf-8")
    out = tmp_path / "high.jsonl"
    critic(*judge, judge_that_says(tmp_path, 4), "--out", out, "--max-failed", "1")
    assert {line["verdict"]["failure"] for line in read_jsonl(out)} == {"out_of_range"}

    program = [sys.executable, "-c", PLANNED, str(rows)]
    environment = os.environ | {"PYTHONPATH": str(package)}
    planned = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert planned.returncode == 0, planned.stderr
    assert [json.loads(target)["Rating"] for target in json.loads(planned.stdout)] == [1, 2, 3]


def test_a_history_condition(tmp_path: Path, package: Path, critic: Copied) -> None:
    """In --help, shown to the model as it says, and in the scores."""
    (entry,) = blocks("critic/README.md", "Add a history condition", "python")
    put_in(package / "critic/judging/history.py", "CONDITIONS = {", entry)
    helped = " ".join(critic("infer", "--help").stdout.split())
    assert "oracle_no_image: the references for all earlier turns, and no image" in helped

    sheet = ROOT / "data/samples/convbench/ConvBench.csv"
    asked = ["--benchmark", "convbench", "--model", write_jsonl(tmp_path / "m.jsonl", [{"text": "mine"}])]
    critic("infer", sheet, *asked, "--condition", "oracle_no_image", "--out", tmp_path / "replies.jsonl")
    turn = next(line for line in read_jsonl(tmp_path / "replies.jsonl") if line["turn"] == 3)
    references = [one["reference"] for one in turn["conversation"]["turns"][:2]]
    assert [said["content"] for said in turn["seen"]][1::2] == references
    assert not any("images" in said for said in turn["seen"])

    judged = tmp_path / "judged.jsonl"
    words = ["--benchmark", "convbench", "--protocol", "direct", "--judge", judge_that_says(tmp_path, 7)]
    critic("judge", tmp_path / "replies.jsonl", *words, "--out", judged)
    assert "oracle_no_image" in critic("score", judged, "--benchmark", "convbench").stdout


def test_an_attack(tmp_path: Path, package: Path, critic: Copied) -> None:
    """Put into answers in both languages, judged, and reported by its name."""
    (entry,) = blocks("eval_agreement/README.md", "Add an attack", "toml")
    with (package / "eval_agreement/attacks.toml").open("a", encoding="utf-8") as file:
        file.write(f"\n{entry}")
    rows = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    critic("attack", rows, "--below", "6", "--out", tmp_path / "attacked.jsonl")
    texts = {row["id"]: row["response"] for row in read_jsonl(tmp_path / "attacked.jsonl")}
    assert texts["row-0#expert"].startswith(ROWS[0]["response"]) and texts["row-0#expert"].endswith("deserves a 10.")
    assert texts["row-1#expert"].endswith("应得 10 分。") and "row-2#expert" not in texts

    judge = ["--judge", judge_that_says(tmp_path, 7), "--score", "argmax"]
    for name in ("rows", "attacked"):
        critic("judge", tmp_path / f"{name}.jsonl", *judge, "--out", tmp_path / f"{name}-judged.jsonl")
    words = ["--attacked", tmp_path / "attacked-judged.jsonl", "--out", tmp_path / "out"]
    critic("audit", tmp_path / "rows-judged.jsonl", *words)
    assert "expert" in (tmp_path / "out/report.html").read_text("utf-8")


REQUEST = "Compare the translation with the source.\n\n{}\n\nEnd with FLUENCY: and a letter from A to E."


def test_a_reply_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recognised from a file of one's own, and decoding held to it, whatever the model says."""
    (entry,) = blocks("serve/README.md", "Add a contract", "toml")
    own = tmp_path / "own.toml"
    own.write_text(entry, "utf-8")
    request = {"messages": [{"role": "user", "content": REQUEST.format("Guten Tag. = Good day.")}]}
    monkeypatch.syspath_prepend(ROOT / "serve")
    contracts: ModuleType = importlib.import_module("contracts")
    assert contracts.recognise(request, contracts.load()) is None
    contract = contracts.recognise(request, contracts.load([own]))
    assert contract.name == "fluency"
    for more in (0, 150):
        held = contracts.constrain(contract, request, contract.least_tokens + more)
        for seed in range(5):
            said, _ = Decoder(held.request).babble(seed)
            assert len(re.findall("FLUENCY: [A-E]", said)) == 1 and re.search(r"\nFLUENCY: [A-E]\Z", said), said


OBJECTIVE = """
import os, sys
os.environ["DS_ACCELERATOR"] = "cpu"
sys.path.insert(0, sys.argv[1])
import torch
import rating_tokens, recipe_keys
from objective_table import OBJECTIVES

assert {"sft", "raft", "head", "pairwise", "ordinal"} == OBJECTIVES.keys()
people = torch.eye(10)[[3]]
near, far = (torch.eye(10)[[place]] * 0.9 + 0.01 for place in (4, 9))
for name in ("ordinal", "head"):
    error = OBJECTIVES[name].error
    print(*(f"{float(error(None, shares.log(), people)):.4f}" for shares in (near, far)))
"""


@pytest.fixture
def trainer(package: Path) -> Path:
    """A copy of the training room too, with the page's own objective in it."""
    needs("deepspeed")
    shutil.copytree(ROOT / "train", package / "train", ignore=shutil.ignore_patterns("__pycache__"))
    (entry,) = blocks("train/README.md", "Add an objective", "python")
    path = package / "train" / entry.split("\n", 1)[0].removeprefix("# ")
    assert path.parent.is_dir() and not path.exists()
    path.write_text(entry, "utf-8")
    return package


def test_an_objective(tmp_path: Path, trainer: Path, critic: Copied) -> None:
    """In the table, in refusals, and what it says of itself: a miss by six costs more than one by one."""
    program = [sys.executable, "-c", OBJECTIVE, str(trainer / "train")]
    environment = os.environ | {"PYTHONPATH": str(trainer)}
    done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ordinal, head = (line.split() for line in done.stdout.splitlines())
    assert float(ordinal[1]) > 3 * float(ordinal[0]) and head[0] == head[1]
    rows = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    train = ["train", "tiny", "--train", rows, "--out", tmp_path / "judge"]
    wrong = critic(*train, "--set", "objective=ordinal", "--set", "forms={correct: 1.0}", code=2)
    assert_one_line_error(wrong, "objective ordinal learns ratings on 1..10 alone, not correct")
    wrong = critic(*train, "--set", "objective=ordinl", code=2)
    assert_one_line_error(wrong, "unknown 'ordinl'; did you mean ordinal? choose head, ordinal, pairwise, raft, sft")


@pytest.mark.e2e
def test_a_judge_of_an_objective_of_ones_own(tmp_path: Path, trainer: Path, critic: Copied) -> None:
    """Trained by the command itself, read by transformers, judged with by vLLM, and audited."""
    needs("vllm")
    rows, judge = ROOT / "data/samples/human_scored.jsonl", tmp_path / "judge"
    few = {"objective": "ordinal", "training.max_steps": 6, "training.logging_steps": 1, "max_source_tokens": 1000}
    changes = [word for name, value in few.items() for word in ("--set", f"{name}={value}")]
    # The launcher's processes print past the process of `critic`, which the others share.
    words = [*command("critic", "train", "tiny", "--train", rows, "--out", judge), "--cache", str(tmp_path), *changes]
    environment = os.environ | {"PYTHONPATH": str(trainer), "DS_ACCELERATOR": "cpu"}
    trained = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert trained.returncode == 0 and f"judge saved in {judge}" in trained.stdout, trained.stderr
    losses = [line["loss"] for line in read_jsonl(judge / "loss.jsonl")]
    assert len(losses) == 6 and max(losses) < 30.0
    notes = json.loads((judge / "critic.json").read_text("utf-8"))
    assert notes["recipe"]["objective"] == "ordinal" and "objective `ordinal`" in (judge / "README.md").read_text()
    config = json.loads((judge / "config.json").read_text("utf-8"))
    assert config["architectures"] == ["LlamaForSequenceClassification"] and len(config["id2label"]) == 10

    critic("judge", rows, "--judge", judge, "--out", tmp_path / "judged.jsonl")
    judged = read_jsonl(tmp_path / "judged.jsonl")
    assert len(judged) == 35 and all("failure" not in line["verdict"] for line in judged)
    for line in judged:
        expected = sum(share * rating for rating, share in enumerate(line["verdict"]["distribution"], 1))
        assert line["score"] == pytest.approx(expected, abs=1e-6)
    critic("audit", f"own={tmp_path / 'judged.jsonl'}", "--out", tmp_path / "audit")
