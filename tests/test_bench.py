"""The measurements in tests/bench, which nobody runs every day, still fit the code they measure."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, needs

PROGRAMS = sorted((ROOT / "tests/bench").glob("[a-z]*.py"))


RATIOS = ast.unparse(ast.parse((ROOT / "tests/bench/_judge.py").read_text("utf-8")))
"""Where several programs have what they print of their rounds."""


@pytest.mark.e2e
def test_each_can_be_imported() -> None:
    """mypy sees that they name nothing of ours that is gone; here their libraries are there, too."""
    needs("deepspeed", "vllm", "PIL")
    names = [program.stem for program in PROGRAMS]
    program = f"import importlib, sys; sys.path[:0] = ['tests/bench']; [importlib.import_module(n) for n in {names}]"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_each_ends_with_one_line_of_json(program: Path) -> None:
    """With its name and how much better we are than what it compares us with: at least 1 is not worse."""
    text = ast.unparse(ast.parse(program.read_text("utf-8")))
    (main,) = [
        part
        for part in ast.parse(text).body
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and part.name == "main"
    ]
    assert ast.unparse(main.body[-1]).startswith("print(json.dumps(") and text.count("print(json.dumps(") == 1
    text += RATIOS if "**ratios(" in text else ""
    assert f"'name': '{program.stem}'" in text and "'ratio': " in text
