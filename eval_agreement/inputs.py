"""What an audit is asked for on the command line: its files as samples, and its other options, checked."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec.structs import replace

from critic import jsonl, tables
from critic.errors import UsageError
from critic.records import Judgment
from eval_agreement.attacks import SEPARATOR, suite
from eval_agreement.image_grounding import ARMS, Looking, has_arms, looking
from eval_agreement.injection import Injection, injection
from eval_agreement.items import file_kind
from eval_agreement.tables import Source, read_table

COLUMN_OPTIONS = {"--group": "group", "--id": "id", "--system": "system", "--text": "response"}
"""Options that name a column, and the usual name of each."""

RESERVED = ("baselines", "gate", "injection", "judges", "looking", "people", "provenance")
"""Keys of summary.json beside the names of the samples."""


def sample_name(path: Path) -> str:
    """A file's stem; its whole name where summary.json has another use for the stem."""
    return path.name if path.stem in RESERVED else path.stem


def parse_sources(
    human: str | None, judges: Iterable[str], named: Mapping[str, str | None]
) -> tuple[Source | None, dict[str, Source]]:
    """FILE[:COLUMN] of people and NAME=FILE[:COLUMN] of judges -> their sources, with the columns that are `named` by
    options (option -> name in the files). Raises UsageError, also for a column that no table has."""
    if human is None:
        return None, {}
    people, sources = Source.parse(human), parse_judges(judges)
    given = {option: name for option, name in named.items() if name is not None}
    if not given:
        return people, sources
    files = [one.path for one in (people, *sources.values()) if file_kind(one) == "table"]
    there = {path: list(read_table(Source(path)).frame) for path in dict.fromkeys(files)}
    for option, name in given.items():
        if not any(name in names for names in there.values()):
            listed = "; ".join(f"{path} has {', '.join(names)}" for path, names in there.items())
            raise UsageError(f"{option} {name!r}: no table has such a column; {listed or 'there is none'}")
    columns = tuple((COLUMN_OPTIONS[option], name) for option, name in given.items())
    sources = {judge: replace(source, named=columns) for judge, source in sources.items()}
    return replace(people, named=columns), sources


def parse_judges(texts: Iterable[str], option: str = "--judge") -> dict[str, Source]:
    """NAME=FILE[:COLUMN] -> sources by judge. Raises UsageError."""
    sources: dict[str, Source] = {}
    for text in texts:
        name, _, file = text.partition("=")
        if not name or not file or name in sources:
            raise UsageError(f"{option} {text!r}: expected NAME=FILE[:COLUMN], each name once")
        sources[name] = Source.parse(file)
    if not sources:
        raise UsageError("no judge to audit: give --judge NAME=FILE")
    return sources


def attacks_of(paths: Iterable[Path]) -> tuple[list[Injection], dict[Path, Looking]]:
    """What the attacks in files of judgments do, and what arms say of looking at images. Raises UsageError naming the
    file."""
    injections, looks = list[Injection](), dict[Path, Looking]()
    for path in dict.fromkeys(paths):
        judgments = [judgment for _, judgment in jsonl.read(path, Judgment)]
        try:
            if has_arms(judgments):
                looks[path] = looking(judgments)
            else:
                injections.append(injection(judgments))
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None
    return injections, looks


def check_no_attacks(ids: Iterable[str], path: Path) -> None:
    """Raises UsageError for copies of answers that `critic attack` made: as answers like the others they would count
    for one many times over, and for what no model wrote."""
    names = "|".join((*suite().entries, *ARMS))
    marked = re.compile(rf"{SEPARATOR}({names})(?=$|[+/])")  # behind an id: a second answer, a criterion, an item
    if copies := [key for key in ids if SEPARATOR in key and marked.search(key)]:
        raise UsageError(
            f"{path}: {copies[0]!r}{tables.first_of(len(copies))} is a copy of an answer that critic attack made; give "
            f"judgments of these to --attacked, and audit the answers as they are"
        )


def named_files(arguments: Iterable[str]) -> dict[str, Path]:
    """NAME=FILE or FILE -> files by sample name, in the order given."""
    files: dict[str, Path] = {}
    for argument in arguments:
        name, separator, file = argument.partition("=")
        if not separator or Path(argument).is_file():
            name, file = Path(argument).stem, argument
        if not name or not file:
            raise UsageError(f"{argument!r}: expected NAME=FILE or FILE")
        if name in RESERVED:
            raise UsageError(f"{argument!r}: a sample cannot be called {name}; reserved: {', '.join(RESERVED)}")
        if name in files:
            raise UsageError(f"{argument!r}: the sample {name} is given twice; name them, as in NAME=FILE")
        files[name] = Path(file)
    return files
