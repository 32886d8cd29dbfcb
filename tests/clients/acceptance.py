"""inspect-ai and lmms-eval judge with a real server of ours: their own code, in environments of their own.

    make test-clients

Not part of the other tests: it installs both from PyPI, which takes minutes.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clients.tiny_server import make_judge, serving

HERE = Path(__file__).parent
LMMS_IMPORTS = ["aiohttp", "openai", "requests", "loguru", "pillow", "numpy", "tqdm"]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    judge = make_judge(tmp_path_factory.mktemp("judge"))
    with serving(judge, "--alias", "gpt-4", "--alias", "o3") as (_, url):
        yield f"{url}/v1"


@pytest.fixture
def client(tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Runs a program of this folder in a new environment with some packages; what it printed."""

    def run(program: str, *arguments: str, packages: list[str], alone: list[str], **variables: str) -> Any:
        subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
        python = tmp_path / "venv/bin/python"
        pip = [python, "-m", "pip", "--disable-pip-version-check", "-q", "install"]
        subprocess.run([*pip, *packages], check=True)
        if alone:
            subprocess.run([*pip, "--no-deps", *alone], check=True)
        environment = {**os.environ, "OPENAI_API_KEY": "none", **variables}
        words = [python, HERE / program, *arguments]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    return run


def test_inspect_ai(url: str, client: Callable[..., list[dict[str, Any]]]) -> None:
    graded = client("inspect_client.py", url, packages=["inspect-ai", "openai"], alone=[])
    allowed = {
        "model_graded_qa": {"C", "I"},
        "model_graded_qa, partial credit": {"C", "P", "I"},
        "model_graded_fact": {"C", "I"},
    }
    assert [line["grader"] for line in graded] == list(allowed)
    for line in graded:
        assert line["status"] == "success" and len(line["grades"]) == 4
        assert set(line["grades"]) <= allowed[line["grader"]], line


def test_lmms_eval(url: str, client: Callable[..., list[dict[str, Any]]]) -> None:
    judged = client("lmms_client.py", packages=LMMS_IMPORTS, alone=["lmms-eval"], OPENAI_API_URL=url)
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
