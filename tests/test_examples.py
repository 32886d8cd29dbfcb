"""Run the examples (`>>>`) in docstrings of the product's modules."""

import doctest
import importlib
import sys
from pathlib import Path

import pytest
from conftest import ROOT, needs
from test_layout import PRODUCT, files_of

WITH_EXAMPLES = sorted(file.relative_to(ROOT) for file in files_of(*PRODUCT) if ">>> " in file.read_text("utf-8"))
BY_PATH = ("train", "serve", "data")
"""Rooms whose modules are imported by their bare names, with their folder on the path."""


def test_many_modules_show_what_they_do() -> None:
    assert len(WITH_EXAMPLES) >= 30


@pytest.mark.parametrize("file", WITH_EXAMPLES, ids=str)
def test_the_examples_of_a_module_hold(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room, name = file.parts[0], ".".join(file.with_suffix("").parts).removesuffix(".__init__")
    if room in BY_PATH:
        if room == "train":
            needs("deepspeed")
        monkeypatch.syspath_prepend(ROOT / room)
        name = name.removeprefix(f"{room}.")
    module = sys.modules.get(name) or importlib.import_module(name)
    outcome = doctest.testmod(module)
    assert outcome.attempted and not outcome.failed
