"""Environments of other people's packages, made by pip or npm, and what runs in them.

They come from PyPI or npm into build/clients, where `make clean` finds them. Where those cannot be reached a test is
skipped, and with CLIENTS=all it fails. clients.toml says what is in which.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import ROOT

PROGRAMS, KEPT = ROOT / "tests/clients", ROOT / "build/clients"
INSTALL_SECONDS = 900

KEY = "sk-none"
"""VLMEvalKit takes no other than those that begin so."""


class Client(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of clients.toml, which explains the fields."""

    packages: list[list[str]] = []
    verdicts: int = 0
    rated: list[str] = []
    borrows: bool = False
    file: dict[str, str] = {}


CLIENTS = msgspec.toml.decode((PROGRAMS / "clients.toml").read_text("utf-8"), type=dict[str, Client])


class NotToBeHad(Exception):
    """A package that its index does not give."""


def had(environment: Callable[[], Path]) -> Path:
    try:
        return environment()
    except NotToBeHad as problem:
        (pytest.fail if os.environ.get("CLIENTS") == "all" else pytest.skip)(str(problem))


def installed(name: str) -> Path:
    """The environment of a client, made unless a whole one is there. Raises NotToBeHad."""
    packages = CLIENTS[name].packages
    mark = hashlib.sha256(json.dumps([packages, sys.version]).encode()).hexdigest()[:8]
    folder = KEPT / f"{name}-{mark}"
    if (folder / "whole").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if name == "promptfoo":
        if shutil.which("npm") is None or shutil.which("node") is None:
            raise NotToBeHad("npm is not here")
        fetched(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *packages[0]], folder)
    else:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        pip = [sys.executable, "-m", "pip", "--python", folder / "bin/python", "--disable-pip-version-check", "-q"]
        for words in packages:
            fetched([*pip, "install", "--no-compile", "--retries", "1", "--timeout", "20", *words], ROOT)
    if CLIENTS[name].borrows:
        (packages,) = folder.glob("lib/python*/site-packages")
        (packages / "borrowed.pth").write_text(str(Path(pytest.__file__).parents[1]))
    (folder / "whole").touch()
    return folder


def fetched(words: list[Any], folder: Path) -> None:
    """Runs what installs packages. Raises NotToBeHad."""
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NotToBeHad(f"{words[-1]} was not installed within {INSTALL_SECONDS} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no word why"]
        raise NotToBeHad(f"not to be had from the package index: {lines[-1]}")


def printed(words: list[Any], folder: Path, variables: dict[str, str]) -> list[dict[str, Any]]:
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "OPENAI_API_KEY": KEY, **variables},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
