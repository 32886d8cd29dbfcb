"""Adding a form, a kind of verdict, a protocol, a benchmark, a history condition, an attack, a measure, a training
objective or a reply contract is one object.

The pages' own examples are all put where they say in one copy of the packages, whose commands run in one process. For
a metric see agreement/test_metric_table.py.
"""

import contextlib
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
from typing import Any

import pytest
from clients.decoder import Decoder
from conftest import ROOT, Copied, assert_one_line_error, blocks, command, human_row, needs, read_jsonl, write_jsonl

ROWS = [
    human_row(0, human_score=1.0, scale_max=10),
    human_row(1, human_score=5.5, lang="zh", question="有几个苹果？", reference="四个。", response="五个。"),
    human_row(2, human_score=10.0),
]

PLANNED = """
import json, sys
from pathlib import Path
from critic import human_scored
from critic.judging.examples import build_example, plan

responses = human_scored.load(Path(sys.argv[1])).responses
by_id = {one.id: one for one in responses}
planned = plan(responses, {sys.argv[2]: 1.0}).examples
print(json.dumps([build_example(one, by_id, None, lambda messages: 0).target for one in planned]))
"""

JUDGING, MEASURES = "critic/judging/README.md", "eval_agreement/measures/README.md"


def put_before(file: Path, table: str, entry: str) -> None:
    """Write an entry before a table."""
    text = file.read_text("utf-8")
    assert text.count(table) == 1
    file.write_text(text.replace(table, f"{entry}{table}"), "utf-8")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the packages and the training room, and add each page's own examples."""
    package = tmp_path_factory.mktemp("copy")
    for name in ("critic", "eval_agreement", "train"):
        shutil.copytree(ROOT / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
    (kind,) = blocks(JUDGING, "Add a kind of verdict", "python")
    protocol, quiz = blocks(JUDGING, "Add a protocol", "python")
    (toy,) = blocks("critic/benchmarks/README.md", "Add a benchmark", "python")
    (objective,) = blocks("train/README.md", "Add an objective", "python")
    (heading,) = blocks(MEASURES, "Add a measure", "toml")
    new = {"critic/judging/kinds/two_scores.py": kind, "critic/judging/protocols/right.py": protocol}
    new |= {"critic/benchmarks/quiz.py": quiz, "critic/benchmarks/toy.py": toy}
    new |= {"train/objectives/ordinal.py": objective}
    forms = []
    for title in ("Add a form", "Add a kind of verdict"):
        form, *prompts = blocks(JUDGING, title, "toml")
        forms.append(form)
        # Each prompt file is named in its first line.
        new |= {text.split("\n", 1)[0].removeprefix("# "): text for text in prompts}
    for name, content in new.items():
        assert (package / name).parent.is_dir() and not (package / name).exists()
        (package / name).write_text(content, "utf-8")
    put_before(package / "eval_agreement/sections.toml", "[people]\n", f"{heading}\n")
    for name, entries in (
        ("critic/judging/forms.toml", forms),
        ("critic/judging/conditions.toml", blocks(JUDGING, "Add a history condition", "toml")),
        ("eval_agreement/attacks.toml", blocks(MEASURES, "Add an attack", "toml")),
        ("eval_agreement/measure_tables.py", blocks(MEASURES, "Add a measure", "python")),
    ):
        with (package / name).open("a", encoding="utf-8") as file:
            file.write("\n\n".join(["", *entries]))
    return package


@pytest.fixture(scope="module")
def critic(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copied]:
    """The commands of the copy."""
    with contextlib.closing(Copied(package, tmp_path_factory.mktemp("cwd"))) as started:
        yield started


def judge_that_says(folder: Path, rating: int) -> Path:
    return write_jsonl(folder / f"judge-{rating}.jsonl", [{"text": json.dumps({"Rating": rating, "Reason": "so"})}])


def test_a_form(tmp_path: Path, package: Path, critic: Copied) -> None:
    """In --help, asked on its own scale, read, audited, and planned for training."""
    rows, out = write_jsonl(tmp_path / "rows.jsonl", ROWS), tmp_path / "judged.jsonl"
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

    assert [target["Rating"] for target in taught(package, rows, "coarse")] == [1, 2, 3]


def taught(package: Path, rows: Path, form: str) -> list[dict[str, Any]]:
    """Return the verdicts that training on the rows teaches in a form."""
    planned = run_in(package, sys.executable, "-c", PLANNED, str(rows), form)
    return [json.loads(target) for target in json.loads(planned)]


def run_in(package: Path, *words: str, **variables: str) -> str:
    """Run a program that sees the copied packages, and return what it prints."""
    environment = os.environ | {"PYTHONPATH": str(package)} | variables
    done = subprocess.run(words, cwd=package, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


TWO = {"Accuracy": "Is it right?", "Clarity": "Is it easy to follow?"}


def test_a_kind_of_verdict(tmp_path: Path, package: Path, critic: Copied) -> None:
    """Two ratings in one verdict are asked for, read, scored, taught as asked, and audited one by one."""
    scores = [{"Accuracy": 8, "Clarity": 4}, {"Accuracy": 5, "Clarity": 7}, {"Accuracy": 2, "Clarity": 3}]
    labels = [{"criteria": TWO, "criteria_scores": score, "system": "alpha"} for score in scores]
    people = [human_row(number, human_score=sum(scores[number].values()) / 2, **labels[number]) for number in range(3)]
    rows = write_jsonl(tmp_path / "rows.jsonl", people)
    replies = [json.dumps(score | {"Reason": "so"}) for score in ({"Accuracy": 9, "Clarity": 4}, {"Accuracy": 9})]
    for name, text in zip(("whole", "half"), replies, strict=True):
        write_jsonl(tmp_path / f"{name}.jsonl", [{"text": text}])
        out = tmp_path / f"{name}-judged.jsonl"
        judge = ["judge", rows, "--prompt", "two_scores", "--judge", tmp_path / f"{name}.jsonl", "--out", out]
        critic(*judge, "--max-failed", "1")
    judged = read_jsonl(tmp_path / "whole-judged.jsonl")
    assert [(line["score"], line["verdict"]["reason"]) for line in judged] == [(6.5, "so")] * 3
    by_name = [{name: part["rating"] for name, part in line["verdict"]["criteria"].items()} for line in judged]
    assert by_name == [{"Accuracy": 9, "Clarity": 4}] * 3
    half = read_jsonl(tmp_path / "half-judged.jsonl")
    assert [(line["verdict"]["failure"], "score" in line) for line in half] == [("no_rating", False)] * 3

    assert taught(package, rows, "two_scores") == [score | {"Reason": ""} for score in scores]
    assert "6.50" in critic("score", tmp_path / "whole-judged.jsonl").stdout
    critic("audit", f"mine={tmp_path / 'whole-judged.jsonl'}", "--out", tmp_path / "audit")
    summary = json.loads((tmp_path / "audit/summary.json").read_text("utf-8"))
    errors = {name: summary[name]["mae"] for name in ("mine", "mine/Accuracy", "mine/Clarity")}
    assert errors == pytest.approx({"mine": 5 / 3, "mine/Accuracy": 4, "mine/Clarity": 4 / 3})


def test_a_protocol(tmp_path: Path, critic: Copied) -> None:
    """A benchmark with a protocol of its own: in --help, inferred, judged in the protocol's form, and scored."""
    assert "quality, right." in " ".join(critic("judge", "--help").stdout.split())

    questions = [{"id": str(number), "question": f"{number} + 1?", "answer": str(number + 1)} for number in range(4)]
    sheet, out = write_jsonl(tmp_path / "quiz.jsonl", questions), tmp_path / "judged.jsonl"
    model = write_jsonl(tmp_path / "m.jsonl", [{"text": "two"}])
    critic("infer", sheet, "--benchmark", "quiz", "--model", model, "--out", tmp_path / "replies.jsonl")
    judge = write_jsonl(tmp_path / "judge.jsonl", [{"text": '{"Correct":"yes"}'}, {"text": '{"Correct":"no"}'}])
    words = ["judge", tmp_path / "replies.jsonl", "--judge", judge, "--out", out]
    critic(*words)
    judged = read_jsonl(out)
    right = [line["score"] for line in judged]
    assert {line["verdict"]["value"]: line["score"] for line in judged} == {"yes": 1.0, "no": 0.0}
    assert [(line["protocol"], line["prompt"], line["sample"]["shown"]["references"]) for line in judged] == [
        ("right", "correct", [line["sample"]["conversation"]["turns"][0]["reference"]]) for line in judged
    ]
    critic("score", out, "--questions", sheet, "--out", tmp_path / "out")
    board = json.loads((tmp_path / "out/summary.json").read_text("utf-8"))["leaderboards"]["right"]
    share = board["m"]["right"]
    assert (share["value"], share["n"], share["low"], share["high"]) == (sum(right) / 4, 4, *[sum(right) / 4] * 2)
    for option, value in (("--order", "forced"), ("--prompt", "reason_first"), ("--score", "expected")):
        refused = critic(*words[:-1], tmp_path / "other.jsonl", option, value, code=2)
        assert option in refused.stderr and "--protocol" in refused.stderr, refused.stderr
    unscored = [line | {"score": 0.5 if line["score"] else 7} for line in judged]
    assert "right score 7; expected 0 to 1" in critic("score", write_jsonl(out, unscored), code=2).stderr


def test_a_benchmark(tmp_path: Path, critic: Copied) -> None:
    """Listed, run, judged, scored and reported; each reply is judged a 7, but for one that cannot be read."""
    for stage in ("infer", "judge", "score"):
        helped = critic(stage, "--help").stdout
        assert "toy" in helped and "visitbench" in helped, stage
    asked = {"1 + 1?": "2", "2 + 2?": "4", "Who?": "Ada"}.items()
    questions = [{"id": str(n), "topic": "sums", "question": q, "answer": a} for n, (q, a) in enumerate(asked, 1)]
    rows = write_jsonl(tmp_path / "toy.jsonl", questions)
    replies = write_jsonl(tmp_path / "model.jsonl", [{"text": "two"}])
    critic("infer", rows, "--benchmark", "toy", "--model", replies, "--out", tmp_path / "replies.jsonl")
    words = ["--benchmark", "toy", "--judge", judge_that_says(tmp_path, 7), "--questions", rows]
    critic("judge", tmp_path / "replies.jsonl", *words, "--out", tmp_path / "judged.jsonl")
    lines = read_jsonl(tmp_path / "judged.jsonl")
    assert [line["protocol"] for line in lines] == ["direct"] * 3
    verdict = next(line for line in lines if line["sample"]["id"] == "3")
    del verdict["score"]
    verdict["verdict"]["failure"] = "no_rating"
    judged = write_jsonl(tmp_path / "judged.jsonl", lines)
    words = ["--benchmark", "toy", "--questions", rows, "--out", tmp_path / "out", "--max-failed", "0.5"]
    printed = critic("score", judged, *words).stdout
    grades = json.loads((tmp_path / "out/summary.json").read_text("utf-8"))["leaderboards"]["grades"]["model"]["grade"]
    assert (grades["value"], grades["n"], grades["failed"], grades["asked"]) == (7, 2, 1, 3)
    assert (grades["low"], grades["high"]) == (pytest.approx(15 / 3), pytest.approx(24 / 3))
    page = (tmp_path / "out/report.html").read_text("utf-8")
    assert "<title>Toy: scores</title>" in page
    for text in (printed, page):
        assert "Mean grade" in text and "5.00 … 8.00" in text and "model: judged by judge-7" in text
        assert "Other verdicts" not in text
    rows.write_text(rows.read_text("utf-8").replace('"question": "Who?", ', ""), "utf-8")
    infer = ["infer", rows, "--benchmark", "toy", "--model", replies, "--out", tmp_path / "more.jsonl"]
    assert_one_line_error(critic(*infer, code=2), "toy.jsonl:3: 'question' is empty")


def test_a_history_condition(tmp_path: Path, critic: Copied) -> None:
    """In --help, shown to the model as it says, and in the scores."""
    helped = " ".join(critic("infer", "--help").stdout.split())
    assert "oracle_no_image: the references for all earlier turns, and no image" in helped

    sheet = ROOT / "data/samples/convbench/ConvBench.csv"
    options = ["--benchmark", "convbench", "--model", write_jsonl(tmp_path / "m.jsonl", [{"text": "mine"}])]
    critic("infer", sheet, *options, "--condition", "oracle_no_image", "--out", tmp_path / "replies.jsonl")
    turn = next(line for line in read_jsonl(tmp_path / "replies.jsonl") if line["turn"] == 3)
    references = [answered["reference"] for answered in turn["conversation"]["turns"][:2]]
    assert [said["content"] for said in turn["seen"]][1::2] == references
    assert not any("images" in said for said in turn["seen"])

    judged = tmp_path / "judged.jsonl"
    words = ["--benchmark", "convbench", "--protocol", "direct", "--judge", judge_that_says(tmp_path, 7)]
    critic("judge", tmp_path / "replies.jsonl", *words, "--out", judged)
    assert "oracle_no_image" in critic("score", judged, "--benchmark", "convbench").stdout


def test_an_attack(tmp_path: Path, critic: Copied) -> None:
    """Put into answers in both languages, judged, and reported by its name."""
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


def test_a_measure(tmp_path: Path, critic: Copied) -> None:
    """Found on each sample, written under its name, and drawn in its own section at its place on the page."""
    judge = [1, 10, 10, 5, 5, 5, 5, 5]
    lines = [f"row{number},{number % 4 + 2},{score}" for number, score in enumerate(judge)]
    scores = tmp_path / "scores.csv"
    scores.write_text("\n".join(["id,score,judge", *lines, "failed,7,"]), "utf-8")
    critic(
        "audit", "--human", scores, "--judge", f"mine={scores}:judge", "--out", tmp_path / "out", "--max-failed", "1"
    )
    summary = json.loads((tmp_path / "out/summary.json").read_text("utf-8"))
    (extremes,) = (
        sample["extremes"] for sample in summary.values() if isinstance(sample, dict) and "extremes" in sample
    )
    assert extremes["value"] == 3 / 8 and extremes["n"] == 8
    page = (tmp_path / "out/report.html").read_text("utf-8")
    headings = re.findall("<h2>(.*?)</h2>", page)
    assert headings.index("Scores at the ends of the scale") == headings.index("Bias") - 1
    assert "Scores of 1 or 10." in page and "37.5 %" in page


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
from recipe import OBJECTIVES

assert {"sft", "raft", "head", "pairwise", "ordinal"} == OBJECTIVES.keys()
people = torch.eye(10)[[3]]
near, far = (torch.eye(10)[[place]] * 0.9 + 0.01 for place in (4, 9))
for name in ("ordinal", "head"):
    error = OBJECTIVES[name].error
    print(*(f"{float(error(None, shares.log(), people)):.4f}" for shares in (near, far)))
sys.exit(0)
"""


def test_an_objective(tmp_path: Path, package: Path, critic: Copied) -> None:
    """In the table, in refusals, and what it says of itself: a miss by six costs more than one by one."""
    needs("deepspeed")
    (table := tmp_path / "table.py").write_text(OBJECTIVE, "utf-8")
    errors = critic.program(table, package / "train").stdout
    ordinal, head = (line.split() for line in errors.splitlines())
    assert float(ordinal[1]) > 3 * float(ordinal[0]) and head[0] == head[1]
    rows = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    train = ["train", "tiny", "--train", rows, "--out", tmp_path / "judge"]
    wrong = critic(*train, "--set", "objective=ordinal", "--set", "forms={correct: 1.0}", code=2)
    assert_one_line_error(wrong, "objective ordinal learns ratings on 1..10 alone, not correct")
    wrong = critic(*train, "--set", "objective=ordinl", code=2)
    assert_one_line_error(wrong, "unknown 'ordinl'; did you mean ordinal? choose head, ordinal, pairwise, raft, sft")


@pytest.mark.e2e
@pytest.mark.slow  # a minute of a core; test_an_objective holds the table
def test_a_judge_of_an_objective_of_ones_own(tmp_path: Path, package: Path, critic: Copied) -> None:
    """Trained by the command itself, read by transformers, judged with by vLLM, and audited."""
    needs("deepspeed", "vllm")
    rows, judge = ROOT / "data/samples/human_scored.jsonl", tmp_path / "judge"
    few = {"objective": "ordinal", "training.max_steps": 6, "training.logging_steps": 1, "max_source_tokens": 1000}
    changes = [word for name, value in few.items() for word in ("--set", f"{name}={value}")]
    # The launcher's processes print past the process of `critic`, which the others share.
    words = [*command("critic", "train", "tiny", "--train", rows, "--out", judge), "--cache", str(tmp_path), *changes]
    assert f"judge saved in {judge}" in run_in(package, *words, DS_ACCELERATOR="cpu")
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
