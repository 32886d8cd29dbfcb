"""The measurements in tests/bench, which nobody runs every day, still fit the code they measure."""

import ast
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
from conftest import ROOT, needs

PROGRAMS = sorted((ROOT / "tests/bench").glob("[a-z]*.py"))


RATIOS = ast.unparse(ast.parse((ROOT / "tests/bench/_judge.py").read_text("utf-8")))
"""Code that prints the rounds of several programs."""


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_what_each_imports_is_there(program: Path) -> None:
    """mypy sees that they name nothing of ours that is gone."""
    if PathFinder.find_spec("vllm") is None or PathFinder.find_spec("deepspeed") is None:
        pytest.skip("needs the train extra and a serve extra")
    places = [str(ROOT / place) for place in ("tests", "tests/bench", "train", "serve", "data")] + sys.path
    for node in ast.parse(program.read_text("utf-8")).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in {name.split(".")[0] for name in names} - sys.stdlib_module_names:
            assert PathFinder.find_spec(name, places) is not None, name


@pytest.mark.slow
@pytest.mark.e2e
def test_each_can_be_imported() -> None:
    needs("deepspeed", "vllm", "PIL")
    names = [program.stem for program in PROGRAMS]
    program = f"import importlib, sys; sys.path[:0] = ['tests/bench']; [importlib.import_module(n) for n in {names}]"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_each_ends_with_one_line_of_json(program: Path) -> None:
    """With its name and how much better we are than what it compares us with: at least 1 is not worse."""
    text = ast.unparse(ast.parse(program.read_text("utf-8")))
    functions = [part for part in ast.parse(text).body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
    (main,) = [function for function in functions if function.name == "main"]
    assert ast.unparse(main.body[-1]).startswith("print(json.dumps(") and text.count("print(json.dumps(") == 1
    text += RATIOS if "**ratios(" in text else ""
    assert f"'name': '{program.stem}'" in text and "'ratio': " in text


def test_a_variant_is_over_when_all_it_started_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher ends at once; what it started ignores that it is asked to."""
    needs("deepspeed")
    monkeypatch.syspath_prepend(ROOT / "tests/bench")
    import train_6b

    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(99)"
    launcher = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]); sys.stdin.read()"
    words = [sys.executable, "-c", launcher]
    program = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert program.stdout is not None and program.stdout.readline() and len(train_6b.members(program.pid)) == 2
    train_6b.end_all(program, patience=0.5)
    assert train_6b.members(program.pid) == []
    (tmp_path / "log").write_text("step 1\nEADDRINUSE: DistNetworkError: port 29500\n[rank0] ends\n", "utf-8")
    assert train_6b.why_none(tmp_path / "log") == "EADDRINUSE: DistNetworkError: port 29500"
