"""The commands that the pages show, run as they stand: what they print has the shape of what is shown below them."""

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Servers, completion, free_port, human_row, needs, run, write_jsonl
from scoring import grades, judged
from test_layout import tracked
from test_readme import PAGES

from critic import jsonl, tables

pytestmark = pytest.mark.e2e

LEFT_OUT = {
    "critic train ": "trains for long: tests/train",
    "critic base ": "downloads a base from the package index: tests/train/test_base.py",
    "critic adopt ": "takes in a model trained elsewhere: tests/train/test_adopt.py",
    "critic serve ": "serves for good, with vLLM: tests/serve",
    "critic annotate rows.jsonl --db labels.sqlite": "serves a page for good: tests/annotate",
    "critic annotate runs/mine/benchmark/benchmark.jsonl": "serves a page for good: tests/annotate/test_pages.py",
    "critic annotate --db review.sqlite": "exports what reviewers said: tests/annotate/test_pages.py",
    "critic annotate runs/answers.jsonl": "serves a page for good: tests/building",
    "critic audit internal=runs/mine/judged.jsonl": "certifies by weights: tests/annotate/test_certificate.py",
    "critic judge new.jsonl": "asks a judge that was certified so: tests/annotate/test_certificate.py",
    "critic annotate --db labels.sqlite --import": "needs sheets that people filled in: tests/annotate/test_labels.py",
    "critic judge rows.jsonl --engine ray": "needs a cluster: tests/backends/test_ray.py",
    "critic judge rows.jsonl --gpus all": "needs GPUs: tests/stages/test_gpus.py",
    "critic merge part.*.jsonl": "needs all of a run's shards: tests/stages/test_shards.py",
    "critic merge runs/fold-?.jsonl": "needs the judgments of all folds: tests/stages/test_shards.py",
    "critic audit runs/judged.jsonl": "audits what the line above merges: tests/stages/test_shards.py",
    "make ": "installs, and runs whole suites",
    "pip ": "needs the network",
}
"""Beginnings of the commands that are not run here, and why."""
INSTALLING = ("python3 -m venv ", "make ")
PAGES_LEFT_OUT = dict.fromkeys(
    ("tests/bench/README.md", "tests/bench/LOG.md"), "its commands measure what was trained for it: tests/test_bench.py"
)


def blocks(page: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of a page, continued lines joined, and the lines shown below it if it has a prompt."""
    joined = re.sub(r"\\\n\s+", " ", (ROOT / page).read_text("utf-8"))
    for block in re.findall(r"(?m)(?:^    .*\n|^\n(?=    ))+", joined):
        commands: list[tuple[str, list[str]]] = []
        for line in block.splitlines():
            if command := re.match(r"    (\$ )?((?:critic|python|deepspeed|make|pip) .*)", line):
                commands.append((command[2], []))
                prompted = bool(command[1])
            elif commands and prompted and line:
                commands[-1][1].append(line[4:])
        yield from commands


def shape(line: str) -> str:
    """Return a line with every number and every hash behind a judge's name as #, and single blanks."""
    return re.sub(r"@[0-9a-f]{8}\b|\d+(?:[.,]\d+)*", "#", " ".join(line.split()))


def answer(body: dict[str, Any]) -> Any:
    """Answer as a judge, and as a model that says a line to anything and words a question in five ways."""
    schema = json.dumps(body.get("response_format", ""))
    number = int(hashlib.sha256(json.dumps(body["messages"]).encode()).hexdigest(), 16)
    if schema == '""':
        return completion("a line")
    if "wordings" in schema:
        return completion(json.dumps({"wordings": [f"请问第{place}种说法是什么？" for place in "一二三四五"]}))
    verdict_schema = body["response_format"]["json_schema"]["schema"]
    return completion(json.dumps(filled(verdict_schema, number)))


def filled(schema: dict[str, Any], number: int) -> Any:
    """Return something that fits a schema of ours."""
    if "properties" in schema:
        return {name: filled(part, number) for name, part in schema["properties"].items()}
    if "enum" in schema:
        return schema["enum"][number % len(schema["enum"])]
    if schema.get("type") == "integer":
        low = schema.get("minimum", 1)
        return low + number % (schema.get("maximum", 10) - low + 1)
    return "so"


def check(page: str, cwd: Path, url: str = "", ready: Callable[[str], None] = lambda command: None) -> list[str]:
    """Run the commands of a page, each after `ready`, and return them.

    Asserts that each ends well and prints what is shown. A judge's folder is a server here, and each command has an
    --out of its own.
    """
    ran = []
    for command, shown in blocks(page):
        if command.startswith(tuple(LEFT_OUT)):
            continue
        ready(command)
        words = shlex.split(command, comments=True)
        for place, word in enumerate(words[:-1]):
            served = {"judge": ["--judge"], "run": ["--model", "--judge"]}.get(words[1], [])
            if word in served and not words[place + 1].endswith(".jsonl"):
                words[place + 1] = url
            elif words[1] == "judge" and word == "--out":
                jsonl.sidecar(cwd / words[place + 1]).unlink(missing_ok=True)
                (cwd / words[place + 1]).unlink(missing_ok=True)
        words = words[1:] if words[0] == "python" else words
        asks = words[:2] in (["critic", "infer"], ["critic", "judge"], ["critic", "rewrite"])
        if "--base-url" in words:
            words[words.index("--base-url") + 1] = url
        elif asks and "--judge" not in words and "--apply" not in words:
            words += ["--base-url", url]
        if words[:2] == ["critic", "judge"] and "--score" not in words and "--benchmark" not in words:
            words += ["--score", "argmax"]
        done = run(*words, cwd=cwd)
        assert done.returncode in (0, 3), (command, done.stderr[-500:])
        printed = [shape(line) for line in (done.stdout + done.stderr).splitlines()]
        for line in shown:
            assert line == "…" or shape(line) in printed, (command, line, done.stdout[-1500:], done.stderr[-500:])
        ran.append(command)
    return ran


def test_those_of_the_benchmarks(tmp_path: Path, scripted: Servers) -> None:
    samples = ROOT / "data" / "samples"
    (tmp_path / "ConvBench.csv").symlink_to(samples / "convbench" / "ConvBench.csv")
    (tmp_path / "images").symlink_to(samples / "convbench" / "images")
    (tmp_path / "seeds.jsonl").symlink_to(samples / "alignmmbench" / "metadata.jsonl")
    ran = check("critic/benchmarks/README.md", tmp_path, scripted(answer).url)
    assert [command.split()[1] for command in ran][:3] == ["infer", "judge", "score"] and len(ran) >= 5
    assert (tmp_path / "runs" / "convbench" / "report.html").is_file()


@pytest.mark.e2e
def test_the_first_page_runs_from_top_to_bottom(tmp_path: Path) -> None:
    """In a copy of the clone, as a newcomer copies it: each command with a prompt, and the Python between them. Only
    what installs is left out, and the port is one that is free."""
    needs("deepspeed", "vllm")
    port = str(free_port())
    for path in tracked():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).symlink_to(ROOT / path)
    page = (ROOT / "README.md").read_text("utf-8").replace("8000", port)
    page = page.replace("$ critic judge ", f"$ critic judge --base-url http://127.0.0.1:{port}/v1 ")
    search_path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    servers = list[subprocess.Popen[str]]()
    try:
        for code, shown in road(page):
            words = [sys.executable, "-c", code] if "\n" in code else ["bash", "-c", code.removesuffix("&")]
            process = subprocess.Popen(
                words,
                cwd=tmp_path,
                env={**os.environ, "PATH": search_path, "PYTHONPATH": str(ROOT)},
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            assert process.stdout is not None
            if code.endswith("&"):
                servers.append(process)
                output = iter(process.stdout.readline, "")
                printed = next((line for line in output if line.startswith("ready: ")), "not ready")
            else:
                printed, _ = process.communicate(timeout=600)
                assert process.returncode in (0, 3), (code, printed[-1500:])
            printed_shapes = [shape(line) for line in printed.splitlines()]
            for line in shown:
                assert line == "…" or shape(line) in printed_shapes, (code, line, printed)
    finally:
        for server in servers:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(60)
    assert all((tmp_path / f"runs/first/{stage}/report.html").is_file() for stage in ("audit", "score"))


def road(page: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of the first page with the lines below them, and its Python blocks, in their order."""
    for block in re.finditer(r"(?m)^```python\n((?:.*\n)*?)```|^    \$ (.*)\n((?:    (?!\$).*\n)*)", page):
        python, command, shown = block.groups()
        if python:
            yield python, []
        elif not command.startswith(INSTALLING):
            yield command, [line[4:] for line in shown.splitlines()]


def test_those_of_the_package(tmp_path: Path, scripted: Servers) -> None:
    (tmp_path / "data").symlink_to(ROOT / "data")
    (tmp_path / "ConvBench.csv").symlink_to(ROOT / "data/samples/convbench/ConvBench.csv")
    (tmp_path / "images").symlink_to(ROOT / "data/samples/convbench/images")
    write_jsonl(tmp_path / "rows.jsonl", [human_row(n, criteria={"clarity": "Is it easy?"}) for n in range(6)])
    own = [{"question": f"{n} + 1?", "answer": str(n), "stars": 1 + n % 5, "reference": str(n + 1)} for n in range(60)]
    tables.write_csv(tmp_path / "mine.csv", own)
    ran = check("critic/README.md", tmp_path, scripted(answer).url)
    assert [command.split()[1] for command in ran][:3] == ["judge", "audit", "data/human_scores.py"] and len(ran) == 13


@pytest.mark.parametrize(("page", "count"), [("backends", 6), ("judging", 2), ("stages", 2)])
def test_those_of_the_rooms_in_the_package(page: str, count: int, tmp_path: Path, scripted: Servers) -> None:
    write_jsonl(tmp_path / "rows.jsonl", [human_row(n, system="alpha") for n in range(6)])
    write_jsonl(tmp_path / "replies.jsonl", [{"text": '{"Rating": 7, "Reason": "so"}'}])
    (tmp_path / "endpoints.txt").write_text(scripted(answer).url)
    assert len(check(f"critic/{page}/README.md", tmp_path, scripted(answer).url)) == count


def test_those_of_the_audit(tmp_path: Path, shared: Path, scripted: Servers) -> None:
    (tmp_path / "llmeval2.jsonl").symlink_to(shared / "data" / "human_scored" / "llmeval2.jsonl")
    rows = [human_row(number) for number in range(60)]
    write_jsonl(tmp_path / "train.jsonl", [human_row(number) for number in range(60, 120)])
    words = ["--score", "argmax", "--base-url", scripted(answer).url, "--out", tmp_path / "judged.jsonl"]
    assert run("critic", "judge", write_jsonl(tmp_path / "rows.jsonl", rows), *words).returncode in (0, 3)
    for name, add in {"people": 0, "ours": 1, "gpt4": 2}.items():
        lines = [f"{row['id']},{min(10, row['human_score'] + add * (n % 2))}" for n, row in enumerate(rows)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,score", *lines]))
    scored = "".join(f"{n // 2}?,{n},r,{1 + n % 5},{1 + n % 4},{1 + n % 5}\n" for n in range(60))
    (tmp_path / "mine.csv").write_text("question,answer,reference,rater1,rater2,gpt4\n" + scored)
    talks = judged(tmp_path / "judged_conversations.jsonl", "convbench", [("direct", "own", 1)], grades)

    def ready(command: str) -> None:
        if "judged_conversations" in command:
            ids = [line["sample"]["id"] for line in map(json.loads, talks.read_text("utf-8").splitlines())]
            lines = [f"{key}/own/direct/1,{number % 10 + 1}" for number, key in enumerate(ids)]
            (tmp_path / "people.csv").write_text("\n".join(["id,score", *lines]))

    assert len(check("eval_agreement/README.md", tmp_path, ready=ready)) == 6


def test_those_of_other_tools_files(tmp_path: Path) -> None:
    """Audit deepeval's last run beside people's scores of the same inputs."""
    cases = [
        {"name": "sums", "input": f"{n}?", "actualOutput": "Two.", "metricsData": [{"name": "GEval", "score": n / 30}]}
        for n in range(30)
    ]
    (tmp_path / ".latest_test_run.json").write_text(json.dumps({"testRunData": {"testCases": cases}}), "utf-8")
    scores = [f"{n}?,{1 + n * 7 % 10}" for n in range(30)]
    (tmp_path / "people.csv").write_text("\n".join(["input,human", *scores]))
    assert len(check("eval_agreement/reading/README.md", tmp_path)) == 1


def test_those_of_the_recipe_for_all_benchmarks(tmp_path: Path, scripted: Servers) -> None:
    shutil.copytree(ROOT / "data/samples/convbench", tmp_path, dirs_exist_ok=True)
    write_jsonl(tmp_path / "rows.jsonl", [human_row(number) for number in range(40)])
    assert len(check("train/recipes/README.md", tmp_path, scripted(answer).url)) == 2


def test_those_of_annotation(tmp_path: Path, scripted: Servers) -> None:
    """Use labels that the test itself gave on the page."""
    pytest.importorskip("starlette")
    from annotating import by_rater, planned, rows_file

    by_rater(planned(tmp_path, "--raters", 3, rows=rows_file(tmp_path, 40)), lambda rater, name, values: values[3])
    ran = check("eval_agreement/annotate/README.md", tmp_path, scripted(answer).url)
    assert len(ran) == 4 and (tmp_path / "labels.jsonl").is_file() and list((tmp_path / "sheets").iterdir())


def test_those_of_the_server(tmp_path: Path) -> None:
    entry = re.findall(r"(?s)```toml\n(.*?)```", (ROOT / "serve/README.md").read_text("utf-8"))[0]
    (tmp_path / "own.toml").write_text(entry, "utf-8")
    prompt = "Judge the translation. End with FLUENCY: and a letter from A to E."
    (tmp_path / "prompt.txt").write_text(prompt)
    (tmp_path / "request.json").write_text(json.dumps({"messages": [{"role": "user", "content": prompt}]}))
    assert len(check("serve/README.md", tmp_path)) == 1


def test_those_of_training(tmp_path: Path) -> None:
    rows = [human_row(number, system=["SYSTEM", "other"][number % 2]) for number in range(80)]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    assert len(check("train/README.md", tmp_path)) == 1


def test_those_of_building(tmp_path: Path, scripted: Servers) -> None:
    """People fill in their sheets before what is frozen is shown to a model, and label what models answered."""
    pytest.importorskip("starlette")
    from annotating import by_rater, planned
    from building.test_build import draw, model

    draw(tmp_path / "images", 10)
    url, sheet = scripted(model()).url, tmp_path / "runs/mine/review/sheet.csv"

    def ready(command: str) -> None:
        if not (command.startswith("critic build") or (tmp_path / "runs/mine/benchmark").is_dir()):
            build = next(command for command, _ in blocks("critic/building/README.md")).split()
            build[build.index("--base-url") + 1] = url
            sheet.write_text(sheet.read_text("utf-8").replace(",,,\n", ",yes,yes,yes\n"), "utf-8")
            assert run(*build, cwd=tmp_path).returncode == 0
        if "--export labels.jsonl" in command:
            answers = [path.read_bytes() for path in sorted((tmp_path / "runs/answers").glob("*.jsonl"))]
            (tmp_path / "runs/answers.jsonl").write_bytes(b"".join(answers))
            plan = ("--raters", 10, "--data-root", tmp_path / "runs/mine/benchmark")
            store = planned(tmp_path, *plan, rows=tmp_path / "runs/answers.jsonl")
            by_rater(store, lambda rater, name, values: values[3])

    assert len(check("critic/building/README.md", tmp_path, url, ready)) == 8


def test_every_page_with_commands_is_checked_or_said_why_not() -> None:
    said = (ROOT / "tests/test_readme_commands.py").read_text("utf-8")
    for page in PAGES:
        if page != "README.md" and any(blocks(page)):
            room = re.fullmatch(r"critic/(backends|judging|stages)/README.md", page)
            assert f'check("{page}"' in said or page in PAGES_LEFT_OUT or room, page
    shown = [command for page in PAGES for command, _ in blocks(page)]
    idle = [left for left in LEFT_OUT if not any(command.startswith(left) for command in shown)]
    assert not idle


@pytest.mark.parametrize("line", ["  Coherence   7.50  2   5    181 ", "Coherence 10 20 3.25 7"])
def test_a_shape_is_what_is_said_but_for_the_numbers(line: str) -> None:
    assert shape(line) == "Coherence # # # #" != shape(line + " more")
