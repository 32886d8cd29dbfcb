"""The pages: short enough to be read to the end, and every file, link, option and target that they name is there."""

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT, run
from test_layout import tracked

from critic.cli import STAGES
from critic.judging.forms import FORMS
from critic.judging.history import CONDITIONS
from critic.judging.protocols import PROTOCOLS
from eval_agreement.measures.attacks import suite

PAGES = sorted(path.as_posix() for path in tracked() if path.suffix == ".md")
ROOMS = ("critic", "eval_agreement", "train", "serve", "data", "tests")
NAMED = re.compile(rf"(?<![\w./-])(?:{'|'.join(ROOMS)})/[\w./-]*\w/?")
"""A path from the root, with what follows it taken off."""

every_page = pytest.mark.parametrize("page", PAGES)
every_manual = pytest.mark.parametrize("page", [page for page in PAGES if not page.endswith("/LOG.md")])
"""The log is history: it names programs as they were."""


def text(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def anchors(page: Path) -> set[str]:
    """Return the headings of a page as links name them."""
    headings = re.findall(r"(?m)^#+ (.+)$", page.read_text("utf-8"))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(page: str) -> list[list[str]]:
    """Return the commands in a page's blocks, continued lines joined and comments left out."""
    code = re.sub(r"(?s)```(?:python|toml)\n.*?```", "", text(page))
    joined = re.sub(r"\\\n\s+", " ", code)
    lines = re.findall(r"(?m)^    (?:\$ )?((?:critic|python|deepspeed|make) .*)$", joined)
    return [shlex.split(line, comments=True) for line in lines]


@cache
def options(program: str) -> set[str]:
    words = ["critic", program] if not program.endswith(".py") else [program]
    done = run(*words, "--help")
    assert done.returncode == 0, program
    return set(re.findall(r"--[a-z][a-z-]*", done.stdout))


def test_the_first_page_is_read_to_the_end() -> None:
    assert all(f"data/samples/{picture}" in text("README.md") for picture in ("pipeline.svg", "report.png"))
    assert len(text("README.md").splitlines()) <= 150
    assert len(text("tests/bench/README.md").splitlines()) <= 250, "history goes to LOG.md"


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("critic/")])
def test_a_page_of_the_package_is_short_and_begins_with_a_command(page: str) -> None:
    assert len(text(page).splitlines()) <= 250
    opening = text(page).split("\n## ")[0]
    assert re.search(r"(?m)^    (?:\$ )?critic ", opening), page


def test_every_room_has_its_line() -> None:
    for room in ROOMS:
        assert f"`{room}/`" in text("README.md")
    for folder in (ROOT / "critic").iterdir():
        if folder.is_dir() and folder.name != "__pycache__":
            assert f"`{folder.name}/`" in text("critic/README.md"), folder.name


@pytest.mark.parametrize(
    ("room", "folders"),
    [("train", [""]), ("eval_agreement", ["", "reading", "measures"]), ("critic/building", [""])],
)
def test_every_file_of_a_room_is_in_its_table(room: str, folders: list[str]) -> None:
    rows = re.findall(r"(?m)^\| (`[^|]*) \|", text(f"{room}/README.md"))
    listed = {name for row in rows for name in re.findall(r"`([\w.]+\.py)`", row)}
    files = [file.name for folder in folders for file in (ROOT / room / folder).glob("*.py")]
    assert {*files} - {"__init__.py"} <= listed


def test_cleaning_leaves_what_was_made() -> None:
    """Keep runs/, where judges, judgments and labels lie."""
    done = subprocess.run(["make", "-n", "clean"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ".venv" in done.stdout and "runs" not in done.stdout


@pytest.mark.parametrize(("version", "fits"), [((3, 10), False), ((3, 11), True), ((3, 14), True), ((3, 15), False)])
def test_the_installation_takes_the_pythons_that_vllm_has(version: tuple[int, int], fits: bool, tmp_path: Path) -> None:
    """Before anything is made: the line is that of the Makefile, asked of a Python that says to be another."""
    check = next(line for line in text("Makefile").splitlines() if "sys.version_info" in line)
    program = check.split("-c '")[1].split("'")[0]
    program_as_version = f"import sys; sys.version_info = {version}; exec({program!r})"
    assert (subprocess.run([sys.executable, "-c", program_as_version], check=False).returncode == 0) == fits
    assert "3.11 to 3.14" in check and "Python 3.11 to 3.14" in text("README.md")


def test_the_tables_are_those_of_the_code() -> None:
    """Forms, conditions, protocols, and how many contracts and attacks there are."""
    forms = re.findall(r"(?ms)^## Forms$.*?^\| flag ", text("critic/README.md"))[0]
    assert named(forms) == set(FORMS)
    benchmarks = text("critic/benchmarks/README.md")
    conditions, protocols = re.findall(r"(?s)\n\| `--(?:condition|protocol)`.*?(?=\n\n)", benchmarks)
    assert named(conditions) == set(CONDITIONS)
    assert named(protocols) == set(PROTOCOLS)
    assert f"{text('serve/contracts.toml').count('[[contract]]')} forms" in text("serve/README.md")
    assert f"puts {len(suite()) - 1} injections" in text("eval_agreement/README.md")


def named(table: str) -> set[str]:
    """Return the names in the first column of a table's rows."""
    rows = re.findall(r"(?m)^\| (`\w[^|]*) \|", table)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


@every_page
def test_what_it_links_to_is_there(page: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"(?s)```.*?```", "", text(page))):
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@every_manual
def test_the_files_it_names_are_there(page: str) -> None:
    """From the root, and in tables of files from the page's own folder."""
    added = set(re.findall(r"(?m)^# (critic/prompts/\w+\.toml)$", text(page)))
    for path in NAMED.findall(text(page)):
        # The name of a scorer of inspect_ai's, and no file.
        assert path in {*added, "critic/judge"} or (ROOT / path).exists(), path
    for row in re.findall(r"(?m)^\| (`[^|]+?) \|", text(page)):
        for name in re.findall(r"`([\w/-]+(?:\.py|\.toml|\.yaml|/))`", row):
            room = (ROOT / page).parent
            places = room, room / "reading", room / "measures", ROOT, ROOT / "train/recipes"
            assert any((place / name).exists() for place in places), name


def test_the_files_that_helps_name_are_there() -> None:
    for stage in STAGES:
        for path in NAMED.findall(run("critic", stage, "--help").stdout):
            assert (ROOT / path).exists(), (stage, path)


@every_manual
def test_the_commands_it_shows_have_these_options(page: str) -> None:
    for words in commands(page):
        if words[0] == "make":
            assert re.search(rf"(?m)^{words[1]}:", text("Makefile")), words
            continue
        program = words[1]
        if program.startswith("tests/bench"):
            assert (ROOT / program).exists(), words
        else:
            for word in words[2 : words.index("--")] if "--" in words else words[2:]:
                assert not word.startswith("--") or word in options(program), (program, word)
