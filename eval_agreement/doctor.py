"""critic doctor: say what a file, a folder or a server is, what it can do, what it lacks, and the next command.

critic doctor mine.csv
critic doctor runs/judge
critic doctor http://127.0.0.1:8000/v1

`doctor.toml` lists the kinds of files, folders and servers that critic reads; a new kind is added there. READERS calls
the readers of the other commands, and reports what they find or refuse.
"""

import os
from collections.abc import Callable, Mapping, Set
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
from msgspec import convert

from critic import certificate, errors, human_scored, jsonl, tables
from critic.backends import identity
from critic.backends.openai import OpenAIBackend
from eval_agreement.reading import inputs, result_formats
from eval_agreement.reading.tables import Source, TableOptions
from eval_agreement.sentences import say, texts_of


def _fits(kind: Mapping[str, Any], path: Path, columns: Set[str]) -> bool:
    """Return True if a path is of a kind of `doctor.toml`. `columns`: columns of its first row; empty without one."""
    file = tables.split_sheet(path)[0]
    is_there = any(any(path.glob(pattern)) for pattern in kind["has"]) if "has" in kind else file.is_file()
    is_named = jsonl.suffix(file) in kind.get("suffix", [jsonl.suffix(file)])
    return is_there and is_named and columns >= {*kind.get("keys", ())}


def _look_at_scores(path: Path) -> list[str]:
    """Return the kind of verdicts in a file, then lines on what `critic audit` takes its columns for."""
    kind, people, _ = inputs.find_sources([path], TableOptions()) or ("score", Source(path), {})
    return [kind, *people.note.splitlines()]


def _look_at_rows(path: Path) -> list[str]:
    """Return a line on how many rows `critic judge` and `critic train` read, and why others are left out."""
    # The reader of scores has said by now which columns it took.
    with redirect_stderr(StringIO()):
        loaded = human_scored.load(path, pictures=True, unlabelled=True)
    labelled = sum(response.human is not None or response.preference is not None for response in loaded.responses)
    left_out = "".join(f"; left out {count}: {reason}" for reason, count in loaded.left_out.items())
    return [f"{len(loaded.rows)} rows, {labelled} with people's label{left_out}"]


def _look_at_folder(folder: Path) -> list[str]:
    """Return lines on a judge in a folder, with its certificate if that is in the folder or beside the folder.

    Raises UsageError if files of the judge are missing.
    """
    facts = identity.read_notes(folder)
    if lost := [file for file in facts.get("weights", {}) if not (folder / file).is_file()]:
        raise errors.UsageError(f"{', '.join(lost)} missing; copy the judge's folder anew")
    name, about = identity.own_name(str(folder), facts), {"forms": (), **identity.describe(facts)}
    files = filter(certificate.is_certificate, [*folder.glob("*.json"), *folder.parent.glob("*.json")])
    held = next((own for own in map(certificate.read, files) if own.how.judge == name), None)
    return say("judge", name=name, about=about, held=held, sees=identity.sees_images(str(folder))).splitlines()


def _look_at_server(url: str) -> list[str]:
    """Return lines on one model of a server, and on all models that the server offers.

    `url`: URL#MODEL; without #MODEL the server's first model.
    """
    place, _, model = url.partition("#")
    server = OpenAIBackend(place, api_key=os.environ.get("OPENAI_API_KEY"), attempts=1)
    served = server.choose(model or None)
    about = server.offered.get(served.name, {})
    held = convert(about.get("certificate"), certificate.Certificate | None)
    lines = say("judge", name=served.name, about=about, held=held, sees=server.sees()).splitlines()
    return [*lines, f"models: {', '.join(server.offered)}; context: {served.context or 'unknown'}"]


READERS: dict[str, Callable[[Any], list[str]]] = {
    "certificate": lambda path: [certificate.read(path).line()] if certificate.is_certificate(path) else [],
    "critic audit": _look_at_scores,
    "critic judge, train": _look_at_rows,
    "model": _look_at_folder,
    "scores of a judge": lambda path: result_formats.scores_of_judge(Source(path)).note.splitlines(),
    "server": _look_at_server,
}
"""Functions that return lines on a path or URL, by name. A function returns [] if the path is not of its kind, and
raises an error that says what is wrong with it."""

_LONGEST = 6
"""Most lines that one reader may print. A report has about ten lines."""


def _read(alternatives: Mapping[str, str], place: Path | str) -> tuple[list[str], str]:
    """Return the lines of the first reader that can read `place`, and the next command to run.

    If an earlier reader failed, its error comes first. If no reader can read `place`, the lines are the errors of all
    readers, and the command is "". `alternatives`: the next command of each reader, by the reader's name.
    """
    said = list[str]()
    for name, command in alternatives.items():
        try:
            if lines := [line.removeprefix(f"{place}: ") for line in READERS[name](place)]:
                more = [f"and {len(lines) - _LONGEST} lines more"] if lines[_LONGEST:] else []
                return [*said, f"{name}: {lines[0]}", *lines[1:_LONGEST], *more], command
        # These are the readers of other commands, and a damaged file makes libraries raise anything.
        except Exception as error:
            problem = str(error) if isinstance(error, errors.UsageError) else errors.one_line(error)
            said.append(f"no {name}: {problem.removeprefix(f'{place}: ')}")
    return said, ""


def main(target: Annotated[str, typer.Argument(metavar="FILE|FOLDER|URL", help="What to look at.")]) -> int:
    """Say what a file, a folder or a server is, what it can do, what it lacks, and the next command."""
    path, kinds = Path(target), texts_of("doctor.toml")
    place = target if "://" in target else inputs.find_run(path)
    columns = {*(tables.read_first_row(path) or ())}
    fitting = kinds["servers"] if place == target else [kind for kind in kinds["kinds"] if _fits(kind, path, columns)]
    kind = [*fitting, kinds["none"][path.exists()]][0]
    read = [_read(alternatives, place) for alternatives in kind.get("reads", ())]
    commands = [command for _, command in read if command]
    near = "" if path.exists() else errors.did_you_mean(path.name, (entry.name for entry in path.parent.glob("*")))
    name = errors.mask(target)
    lines = [f"{name}: {kind['name']}; {near}".strip("; "), *(line for said, _ in read for line in said)]
    print("\n  ".join([*lines, f"next: {[*commands, kind['next']][0].replace('{}', quote(name))}"]))
    return 0 if commands or "reads" not in kind else 2
