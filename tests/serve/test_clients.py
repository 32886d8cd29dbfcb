"""Other people's clients judge with a real server of ours: their own code, in throw-away environments.

    make test-clients

inspect-ai and lmms-eval are part of `make test`, the others only of this. All come from PyPI or npm; where those cannot
be reached the tests are skipped.
"""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clients.tiny_server import make_judge
from conftest import ROOT, needs, serving

pytestmark = pytest.mark.e2e

PROGRAMS = ROOT / "tests/clients"
PACKAGES = {
    "inspect": [["inspect-ai", "openai"]],
    "lmms": [
        ["aiohttp", "openai", "requests", "loguru", "pillow", "numpy", "tqdm"],
        ["--no-deps", "lmms-eval"],
    ],
    "autoevals": [["autoevals", "openai"]],
    "mlflow": [["mlflow-skinny", "openai", "pandas"]],
    # Newer ones have moved what ragas imports.
    "ragas": [["ragas", "openai", "langchain-community<0.4"]],
}
INSTALL_SECONDS = 300
CONTEXT = 4096
"""The longest prompt of these clients, of ragas' ContextRecall, has 3,600 tokens of the tiny judge."""

Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs the program of a client in an environment of its own: the JSON lines that it prints."""
    needs("deepspeed", "vllm")
    pythons: dict[str, Path] = {}

    def running(name: str, *arguments: str, **variables: str) -> list[dict[str, Any]]:
        if name not in pythons:
            pythons[name] = installed(tmp_path_factory.mktemp(name), *PACKAGES[name])
        return printed([pythons[name], PROGRAMS / f"{name}_client.py", *arguments], pythons[name].parent, variables)

    return running


def installed(folder: Path, *packages: list[str]) -> Path:
    """The Python of a new environment with these packages."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin/python"
    for words in packages:
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--retries", "1", "--timeout", "20", "-q"]
        fetched([*pip, "install", *words], folder)
    return python


def fetched(words: list[Any], folder: Path) -> None:
    """Runs what installs packages. Skips the test where they cannot be had."""
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{words[-1]} was not installed within {INSTALL_SECONDS} s")
    if done.returncode:
        pytest.skip(f"not to be had from the package index: {done.stderr.strip().splitlines()[-1]}")


def printed(words: list[Any], folder: Path, variables: dict[str, str]) -> list[dict[str, Any]]:
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "OPENAI_API_KEY": "none", **variables},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def url(client: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    judge = make_judge(tmp_path_factory.mktemp("judge"), CONTEXT)
    with serving(judge, "--alias", "gpt-4", "--alias", "o3", end=signal.SIGINT) as (_, url):
        yield f"{url}/v1"


def test_inspect_ai(client: Run, url: str) -> None:
    graded = client("inspect", url)
    allowed = {
        "model_graded_qa": {"C", "I"},
        "model_graded_qa, partial credit": {"C", "P", "I"},
        "model_graded_fact": {"C", "I"},
    }
    assert [line["grader"] for line in graded] == list(allowed)
    for line in graded:
        assert line["status"] == "success" and len(line["grades"]) == 4
        assert set(line["grades"]) <= allowed[line["grader"]], line


def test_lmms_eval(client: Run, url: str) -> None:
    judged = client("lmms", OPENAI_API_URL=url)
    read = {line["call"]: line["read"] for line in judged}
    raw = {line["call"]: line["raw"] for line in judged}
    assert len(read) == 8
    for call in ("binary 0/1", "binary, reasoning model"):
        assert raw[call] == str(read[call]) and read[call] in (0, 1)
    for call in ("binary yes/no", "correctness"):
        assert raw[call] == ("Yes" if read[call] else "No")
    for call in ("comparative", "comparative, image"):
        assert all(1 <= score <= 10 for score in read[call])
    for call in ("rubric", "rubric, json"):
        assert list(read[call]) == ["accuracy", "clarity"] and all(0 <= score <= 10 for score in read[call].values())


@pytest.mark.clients
def test_autoevals(client: Run, url: str) -> None:
    scored = client("autoevals", url)
    assert len(scored) == 14
    for line in scored:
        assert line["problem"] is None and 0 <= line["score"] <= 1, line


@pytest.mark.clients
def test_mlflow(client: Run, url: str) -> None:
    read = {line["metric"]: line for line in client("mlflow", url)}
    assert len(read) == 8
    for name, line in read.items():
        if name.startswith(("is_", "meets_")):
            assert line["value"] in ("yes", "no"), line
        else:
            assert line["value"] in ((1, 2, 3) if name == "make_genai_metric" else (1, 2, 3, 4, 5)), line


@pytest.mark.clients
def test_ragas(client: Run, url: str) -> None:
    read = client("ragas", url)
    assert len(read) == 8
    for line in read:
        most = 5 if line["metric"] == "RubricsScore" else 1
        assert line["problem"] is None, line
        # What an untrained judge finds may be an empty list, of which ragas makes no number.
        assert math.isnan(line["value"]) or 0 <= line["value"] <= most, line


@pytest.mark.clients
def test_promptfoo(url: str, tmp_path: Path) -> None:
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("npm is not here")
    fetched(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "promptfoo"], tmp_path)
    program = shutil.copy(PROGRAMS / "promptfoo_client.mjs", tmp_path)
    quiet = {"PROMPTFOO_DISABLE_TELEMETRY": "1", "PROMPTFOO_DISABLE_UPDATE": "1", "PROMPTFOO_CONFIG_DIR": str(tmp_path)}
    asserted = {line["assertion"]: line for line in printed(["node", program, url], tmp_path, quiet)}
    assert len(asserted) == 3
    for line in asserted.values():
        assert "did not match" not in line["reason"] and "Could not" not in line["reason"], line
        assert isinstance(line["pass"], bool) and 0 <= line["score"] <= 1
