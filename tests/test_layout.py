"""The house: rooms, direction of imports, what is installed, how fast the command line answers."""

import ast
import io
import os
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
import time
import tokenize
import venv
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, Done, assert_one_line_error, needs, run, run_apart

from critic.cli import STAGES

ROOMS = {"critic", "train", "serve", "eval_agreement", "data", "tests"}
FILES = {"pyproject.toml", "README.md", "Makefile", "LICENSE"}
HEAVY = {"torch", "transformers", "vllm", "deepspeed", "datasets", "peft", "scipy", "sklearn", "matplotlib"}


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [Path(line) for line in listed.stdout.splitlines()]


def imports(file: Path) -> set[str]:
    """Return the top-level names that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").split(".")[0])
    return names


def test_top_level() -> None:
    top = {path.parts[0] for path in tracked() if not path.parts[0].startswith(".")}
    assert top <= ROOMS | FILES, top - ROOMS - FILES


def test_imports_are_a_star() -> None:
    for file in (ROOT / "critic").rglob("*.py"):
        assert not imports(file) & (ROOMS - {"critic"}), file
    # Training judges held-out rows as it goes, and there is one set of agreement metrics.
    also = {"train": {"eval_agreement"}}
    for room in ("train", "serve", "data", "eval_agreement"):
        for file in (ROOT / room).rglob("*.py"):
            assert not imports(file) & (ROOMS - {"critic", room} - also.get(room, set())), file


def test_heavy_libraries_stay_in_their_room() -> None:
    allowed = {"train": {"torch", "transformers", "deepspeed", "datasets", "peft"}, "eval_agreement": {"scipy"}}
    by_file = {
        "critic/stages/demo.py": {"torch"},
        "critic/backends/vllm.py": {"vllm"},
        "critic/building/bench.py": {"scipy"},
        "critic/building/pictures.py": {"scipy"},
        "critic/benchmarks/multiverse.py": {"scipy"},
        "critic/stats/estimate.py": {"scipy"},
        "critic/stats/tournament.py": {"scipy"},
        "serve/options.py": {"vllm"},
        "train/linear_head.py": {"sklearn"},
    }
    for room in ROOMS - {"tests"}:
        for file in (ROOT / room).rglob("*.py"):
            used = imports(file) & HEAVY - allowed.get(room, set())
            assert used <= by_file.get(file.relative_to(ROOT).as_posix(), set()), (file, used)


def test_programs_run_by_path_are_no_packages_and_hide_no_library() -> None:
    import_names = {"datasets", "types", "tokenize", "random", "json", "select", "queue", "copy", "torch", "evaluate"}
    for room in ("train", "serve", "data", "tests"):
        assert not list((ROOT / room).rglob("__init__.py"))
        assert not {file.stem for file in (ROOT / room).glob("*.py")} & import_names


def test_no_eval_no_pickle_no_remote_code() -> None:
    for room in ROOMS - {"tests"}:
        for file in (ROOT / room).rglob("*.py"):
            assert not imports(file) & {"pickle", "cloudpickle", "dill"}, file
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.Call):
                    assert not (isinstance(node.func, ast.Name) and node.func.id in {"eval", "exec"}), file
                    assert not any(keyword.arg == "trust_remote_code" for keyword in node.keywords), file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    shutil.rmtree(ROOT / "build/lib", ignore_errors=True)  # files of an earlier build would come along
    words = ["-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(folder), str(ROOT)]
    built = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_two_packages_and_their_data(wheel: Path) -> None:
    """Every file of the rooms, and no other: programs, which are no packages, lie below `critic/programs/`."""
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info" not in name}
    files = [path for path in tracked() if path.suffix != ".md"]
    packaged = {path.as_posix() for path in files if path.parts[0] in ("critic", "eval_agreement")}
    programs = {path.as_posix() for path in files if path.parts[0] in ("train", "serve", "LICENSE")}
    assert {"critic/prompts/build/zh.toml", "eval_agreement/annotate/page/page.js"} <= packaged
    assert {"LICENSE", "train/recipes/tiny.yaml", "serve/contracts.toml"} <= programs
    assert names == packaged | {f"critic/programs/{path}" for path in programs}


@pytest.mark.e2e
def test_a_wheel_trains_and_serves(wheel: Path, tmp_path: Path) -> None:
    """Installed into an environment of its own, which sees the libraries of this one, and run far from the clone."""
    needs("deepspeed")
    venv.create(tmp_path / "venv", symlinks=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "DS_ACCELERATOR")}
    (empty := tmp_path / "empty").mkdir()

    def program(*words: object) -> Done:
        command = [str(word) for word in words]
        return subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True, check=False)

    python = tmp_path / "venv/bin/python"
    words = ["--python", python, "install", "-q", "--no-deps", "--no-index", wheel]
    assert program(sys.executable, "-m", "pip", *words).returncode == 0
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text("\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))
    told = program(python, "-c", "from critic import errors; print(errors.__file__, errors.install_extra('train'))")
    assert str(packages) in told.stdout and told.stdout.endswith(f" pip install 'critic[train] @ {wheel.as_uri()}'\n")

    critic = partial(program, python.with_name("critic"))
    for stage, option in (("serve", "--alias"), ("train", "--threads")):
        helped = critic(stage, "--help")
        assert helped.returncode == 0 and option in helped.stdout and not helped.stderr, helped.stderr
    assert_one_line_error(critic("serve", "none"), "none: no such model folder")
    mistaken = critic("train", "tiny", "--train", "none.jsonl", "--out", "judge")
    assert mistaken.returncode == 2 and mistaken.stderr == "error: none.jsonl: No such file or directory\n"
    assert not list(empty.iterdir())
    rows = ROOT / "data/samples/human_scored.jsonl"
    step = ("--set", "training.max_steps=1")
    trained = critic("train", "tiny", "--train", rows, "--out", "judge", "--cache", "cache", *step)
    assert trained.returncode == 0 and trained.stdout.endswith("judge saved in judge\n"), trained.stderr
    assert (empty / "judge/model.safetensors").is_file()


@pytest.mark.parametrize(("stage", "extra", "library"), [("train", "train", "torch"), ("base", "train", "gguf")])
def test_a_stage_names_the_extra_that_it_needs(stage: str, extra: str, library: str, tmp_path: Path) -> None:
    hidden = f"import sys; sys.modules['{library}'] = None; from critic.cli import main; main()"
    run_it = ["tiny", "--train", "rows.jsonl", "--out", "judge"] if stage == "train" else ["gemma-3-270m", "out"]
    words = [sys.executable, "-c", hidden, stage, *run_it]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert_one_line_error(done, f"critic {stage}: ", library, "; pip install -e '", f"[{extra}]'")


@pytest.mark.parametrize(
    ("inputs", "code", "line"),
    [
        ({"GATE": "mae<=3"}, 0, "gate: scores: mae<=3 kept: "),
        ({"GATE": "mae<=0.1"}, 1, "gate: scores: mae<=0.1 NOT kept: "),
        ({"CERTIFICATE": "c.json"}, 2, "error: --certificate: it takes judgments"),
        ({"JUDGMENTS": "--help\n$(touch owned)", "HUMAN": ""}, 2, "error: --help: no such file"),
    ],
)
def test_the_action_fails_with_the_gate(inputs: dict[str, str], code: int, line: str, tmp_path: Path) -> None:
    """As a runner does it: the table is in the summary, and inputs are neither options nor commands of the shell."""
    step = yaml.safe_load((ROOT / ".github/actions/audit/action.yml").read_text("utf-8"))["runs"]["steps"][-1]
    scores = str(ROOT / "data/samples/scores.csv")
    inputs = {"JUDGMENTS": f"mine={scores}:overlap\n", "HUMAN": scores, "GATE": "", "CERTIFICATE": "", **inputs}
    assert step["env"] == {name: f"${{{{ inputs.{name.lower()} }}}}" for name in inputs}
    (tmp_path / "critic").symlink_to(Path(sys.executable).parents[1])
    runner = {"RUNNER_TEMP": str(tmp_path), "GITHUB_STEP_SUMMARY": "summary.md", "GITHUB_OUTPUT": "outputs"}
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    done = subprocess.run(words, cwd=tmp_path, env={**os.environ, **inputs, **runner}, check=False)
    summary = (tmp_path / "summary.md").read_text("utf-8")
    assert done.returncode == code and f"\n    {line}" in summary, summary
    assert ("does not hold\n" in summary, "\n    mine " in summary) == (code == 1, code < 2)
    assert (tmp_path / "outputs").read_text("utf-8") == f"report={tmp_path}/critic-audit\n"
    assert not (tmp_path / "owned").exists()


def test_the_images_have_the_versions_of_the_installation() -> None:
    files = ("Dockerfile", "cpu.Dockerfile", "kubernetes.yaml", "../../../pyproject.toml")
    gpu, cpu, job, project = ((ROOT / "data/samples/jobs" / file).read_text("utf-8") for file in files)
    image = "critic:" + re.findall(r'(?m)^version = "(.+)"$', project)[0]
    assert f"-t {image} ." in gpu and f"-t {image}-cpu ." in cpu and f"image: {image}\n" in job
    assert f'"vllm>={re.findall("(?m)^FROM vllm/vllm-openai:v([0-9]+[.][0-9]+)", gpu)[0]},<' in project
    assert re.findall(r"torch==\S+", cpu)[0] in (ROOT / "Makefile").read_text("utf-8")


def test_help_is_quick_and_names_the_stages() -> None:
    """Compared with a bare interpreter, so that a busy machine does not matter."""
    command = [sys.executable, "-c", "from critic.cli import main; main()", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert all(stage in done.stdout for stage in STAGES)

    def seconds(words: list[str]) -> float:
        start = time.perf_counter()
        subprocess.run(words, capture_output=True, check=True)
        return time.perf_counter() - start

    ratios = [seconds(command) / seconds([sys.executable, "-c", ""]) for _ in range(5)]
    assert statistics.median(ratios) < 15


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_starts(stage: str) -> None:
    """A mistake in a process of its own, where what libraries say would stand beside its one line."""
    if STAGES[stage][0].startswith("train/"):
        needs("deepspeed")
    helped = run("critic", stage, "--help")
    assert helped.returncode == 0 and "Options" in helped.stdout and not helped.stderr, helped.stderr
    mistaken = run_apart("critic", stage, "--no-such-option")
    assert_one_line_error(mistaken, "--no-such-option")
    assert not mistaken.stdout and mistaken.stderr.count("\n") == 1, mistaken.stderr


PRODUCT = ("critic", "eval_agreement", "train", "serve", "data")


def modules() -> dict[str, ast.Module]:
    """Return the product's modules, parsed, by the name under which they are imported."""
    trees = {}
    for file in (file for room in PRODUCT for file in (ROOT / room).rglob("*.py")):
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        trees[name] = ast.parse(file.read_text("utf-8"))
    return trees


def imported(name: str, trees: dict[str, ast.Module], anywhere: bool = False) -> set[str]:
    """Return the product's modules that a module imports when it is loaded, or `anywhere` in it.

    Programs run by path import their neighbours by their bare names; what is imported within a function is loaded on
    demand.
    """
    room = name.split(".", maxsplit=1)[0]
    wanted = set()
    for node in ast.walk(trees[name]) if anywhere else trees[name].body:
        if isinstance(node, ast.Import):
            wanted |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            wanted |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {
        module for target in wanted for module in (target, f"{room}.{target}") if module in trees and module != name
    }


def test_the_house_can_be_taken_in_at_a_glance() -> None:
    """Few rooms, few floors: what a reader holds in mind to follow a call to its end."""
    entries = [entry for entry in (ROOT / "critic").iterdir() if not entry.name.startswith("__")]
    rooms = [entry.name for entry in entries if (entry.suffix == ".py" or entry.is_dir()) and entry.name != "prompts"]
    assert len(rooms) <= 15, sorted(rooms)
    trees = modules()
    chains: dict[str, list[str]] = {}

    def chain(name: str) -> list[str]:
        if name not in chains:
            chains[name] = []  # a circle ends here, and fails below
            chains[name] = [name, *max((chain(each) for each in imported(name, trees)), key=len, default=[])]
        return chains[name]

    longest = max((chain(name) for name in trees), key=len)
    assert len(longest) <= 8, " > ".join(longest)


PRODUCT_LINES, TEST_LINES = 25_038, 30_000
"""Lines of code. Docstrings, comments and blank lines are free: nothing is gained by leaving out an explanation."""
STATEMENTS, BRANCHES = 60, 15
"""The most that one function may have."""
KIND_CHECKS, OBJECTIVE_CHECKS, CIRCLES = 0, 8, 0
"""Places where code asks for a verdict's kind or a training objective, and circles of imports. They fall to 3, 8 and 0
once kinds and objectives are tables of objects."""
BRANCHING = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.comprehension, ast.match_case)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NO_CODE = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT}


def test_functions_are_short() -> None:
    """A rule handed to `check` or `require` counts as the branch that it is."""
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, FUNCTIONS):
                inside, function = list(own_nodes(node)), f"{name}.{node.name}"
                assert sum(isinstance(each, ast.stmt) for each in inside) <= STATEMENTS, f"statements of {function}"
                rules = [each for each in inside if isinstance(each, ast.Call)]
                branches = sum(getattr(rule.func, "id", "") in ("check", "require") for rule in rules)
                branches += sum(isinstance(each, BRANCHING) for each in inside)
                assert branches <= BRANCHES, f"{branches} branches of {function}"


def test_the_house_keeps_its_size() -> None:
    assert sum(map(code_lines, files_of(*PRODUCT))) <= PRODUCT_LINES
    assert sum(map(code_lines, files_of("tests"))) <= TEST_LINES
    text = "".join(file.read_text("utf-8") for file in files_of(*PRODUCT))
    assert not any("fmt: " + switch in text for switch in ("skip", "off"))


def test_a_public_class_has_one_place() -> None:
    places: dict[str, list[str]] = {}
    for name, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name)
    assert not {name: modules for name, modules in places.items() if len(modules) > 1}


def test_tables_of_objects_are_not_asked_what_they_are() -> None:
    text = "".join(file.read_text("utf-8") for file in files_of(*PRODUCT))
    assert len(re.findall(r"isinstance\([^()]*Kind", text)) <= KIND_CHECKS
    assert text.count(".objective") <= OBJECTIVE_CHECKS


def test_imports_have_no_circles() -> None:
    """Imports inside functions count as well."""
    trees = modules()
    graph = {name: imported(name, trees, anywhere=True) for name in trees}
    reached = {name: reachable(name, graph) for name in graph}
    circles = {frozenset(other for other in reached[name] if name in reached[other]) for name in graph}
    circles.discard(frozenset())
    assert len(circles) <= CIRCLES, [sorted(circle) for circle in circles]


def reachable(name: str, graph: dict[str, set[str]]) -> set[str]:
    """Return the modules that `name` imports, directly or through others; itself only in a circle."""
    reached: set[str] = set()
    waiting = [name]
    while waiting:
        new = graph[waiting.pop()] - reached
        reached |= new
        waiting += new
    return reached


def files_of(*rooms: str) -> list[Path]:
    return [file for room in rooms for file in (ROOT / room).rglob("*.py")]


def code_lines(file: Path) -> int:
    """Count the lines of a file that hold code: no docstring (an attribute's included), comment or blank line."""
    text = file.read_text("utf-8")
    explained: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            explained |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    return len(lines - explained)


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions inside it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*FUNCTIONS, ast.Lambda)):
            yield child
            yield from own_nodes(child)
