"""inspect-ai and lmms-eval judge with a real server of ours: their own code, in throw-away environments.

    make test-clients

Both come from PyPI; where that cannot be reached the tests are skipped.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clients.tiny_server import make_judge
from conftest import ROOT, needs, serving

pytestmark = pytest.mark.e2e

PROGRAMS = ROOT / "tests/clients"
LMMS_IMPORTS = ["aiohttp", "openai", "requests", "loguru", "pillow", "numpy", "tqdm"]
INSTALL_SECONDS = 300


@pytest.fixture(scope="module")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each client's Python. Made before any server starts, as only they need the network."""
    needs("deepspeed", "vllm")
    inspect = installed(tmp_path_factory.mktemp("inspect"), ["inspect-ai", "openai"])
    lmms = installed(tmp_path_factory.mktemp("lmms"), LMMS_IMPORTS, ["--no-deps", "lmms-eval"])
    return {"inspect_client.py": inspect, "lmms_client.py": lmms}


def installed(folder: Path, *packages: list[str]) -> Path:
    """The Python of a new environment with these packages. Skips the test where pip cannot get them."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin/python"
    for words in packages:
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--retries", "1", "--timeout", "20", "-q"]
        try:
            done = subprocess.run(
                [*pip, "install", *words], capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"pip did not install {' '.join(words)} within {INSTALL_SECONDS} s")
        if done.returncode:
            pytest.skip(f"not to be had from the package index: {done.stderr.strip().splitlines()[-1]}")
    return python


@pytest.fixture(scope="module")
def url(pythons: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    judge = make_judge(tmp_path_factory.mktemp("judge"))
    with serving(judge, "--alias", "gpt-4", "--alias", "o3", end=signal.SIGINT) as (_, url):
        yield f"{url}/v1"


def printed(python: Path, program: str, *arguments: str, **variables: str) -> list[dict[str, Any]]:
    """The JSON lines that a program of `tests/clients` prints."""
    done = subprocess.run(
        [python, PROGRAMS / program, *arguments],
        cwd=python.parent,
        env={**os.environ, "OPENAI_API_KEY": "none", **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_inspect_ai(pythons: dict[str, Path], url: str) -> None:
    graded = printed(pythons["inspect_client.py"], "inspect_client.py", url)
    allowed = {
        "model_graded_qa": {"C", "I"},
        "model_graded_qa, partial credit": {"C", "P", "I"},
        "model_graded_fact": {"C", "I"},
    }
    assert [line["grader"] for line in graded] == list(allowed)
    for line in graded:
        assert line["status"] == "success" and len(line["grades"]) == 4
        assert set(line["grades"]) <= allowed[line["grader"]], line


def test_lmms_eval(pythons: dict[str, Path], url: str) -> None:
    judged = printed(pythons["lmms_client.py"], "lmms_client.py", OPENAI_API_URL=url)
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
