"""Parse and check the command-line options of an audit. Files and columns become `Source`s."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from critic import jsonl, tables
from critic.errors import UsageError, located, quoted
from critic.records import Judgment
from critic.stats.verdicts import Label
from eval_agreement.measures.attacks import ARMS, SEPARATOR, Injection, Looking, injection, looking, suite
from eval_agreement.reading.tables import CODED, ROLES, USED, Codes, Source, TableOptions
from eval_agreement.sentences import say

ALIASES = {"text": "response", "model": "system", "human_score": "people", "preference": "people"}
"""Alternative names of fields in --map COLUMN=FIELD, with the usual name of each."""

FIELDS = (*ROLES, *ALIASES, *sorted(USED))
"""Field names that --map accepts."""

RESERVED = ("baselines", "gate", "injection", "judges", "looking", "people", "provenance", "savings")
"""Keys of summary.json that a sample must not be named after."""


def sample_name(path: Path) -> str:
    """Return a file's stem, or its full name if the stem is a reserved key of summary.json.

    >>> sample_name(Path("runs/mine.csv")), sample_name(Path("runs/people.csv"))
    ('mine', 'people.csv')
    """
    return path.name if path.stem in RESERVED else path.stem


def parse_map(texts: Iterable[str]) -> dict[str, list[str]]:
    """Return the column names of --map COLUMN=FIELD, keyed by field. Codes are left out (see `parse_codes`).

    Raises UsageError for a malformed option or an unknown field.

    >>> parse_map(["0=a", "human=people"])
    {'people': ['human']}
    """
    columns = [text for text in texts if text.rpartition("=")[2] not in CODED]
    return tables.parse_mapping(columns, FIELDS, several=("people", "judge", "id"), aliases=ALIASES)


def parse_codes(texts: Iterable[str]) -> Codes:
    """Return the meanings of numbers given as --map CODE=WORD, with WORD one of a, b, tie or none (no verdict).

    Raises UsageError if a code is not a number or is given twice.

    >>> parse_codes(["0=a", "human=people", "-1=none"])
    {0.0: 'a', -1.0: None}
    >>> for options in (["x=a"], ["=tie"], ["nan=b"], ["0=a", "0.0=b"]):
    ...     try:
    ...         print(parse_codes(options))
    ...     except UsageError as error:
    ...         print(error)
    --map 'x=a': expected a number that stands for a, as in 0=a, each number once
    --map '=tie': expected a number that stands for tie, as in 0=tie, each number once
    --map 'nan=b': expected a number that stands for b, as in 0=b, each number once
    --map '0.0=b': expected a number that stands for b, as in 0=b, each number once
    """
    codes = dict[float, Label | None]()
    for text in texts:
        code, _, word = text.rpartition("=")
        if word not in CODED:
            continue
        number = tables.read_number(code)
        if number is None or number in codes:
            raise UsageError(
                f"--map {text!r}: expected a number that stands for {word}, as in 0={word}, each number once"
            )
        codes[number] = CODED[word]
    return codes


def parse_sources(
    human: str | None, judges: Iterable[str], given: TableOptions
) -> tuple[Source | None, dict[str, Source]]:
    """Return the source of people's labels and the judges' sources by name; None and {} without `human`.

    `human`: FILE[:COLUMN]. `judges`: NAME=FILE[:COLUMN] each.
    Raises UsageError for a malformed option, or if no table has a mapped column.
    """
    if human is None:
        return None, {}
    people, sources = given.add_to(Source.parse(human)), parse_judges(judges)
    sources = {name: given.add_to(source, judge=True) for name, source in sources.items()}
    read = [people, *sources.values()]
    # The columns of other tools' results are found, and named, by `result_formats`.
    if any(tables.find_format(source.path) not in tables.FORMATS for source in read):
        return people, sources
    frames = {source.path: source.frame for source in read if given.mapped and source.content == "table"}
    for usual, name in ((usual, name) for usual, names in given.mapped.items() for name in names):
        if usual in ROLES:
            raise UsageError(f"--map {name}={usual}: beside --human, FILE:COLUMN names it")
        if not any(name in frame for frame in frames.values()):
            listed = "; ".join(f"{path} has {', '.join(frame)}" for path, frame in frames.items())
            raise UsageError(f"--map {name}={usual}: no table has such a column; {listed or 'there is none'}")
    return people, sources


def find_scores(sources: Mapping[str, Source]) -> dict[str, Source]:
    """Return the sources of two judges, with their scales, by name.

    From a result file of another tool, the scores of its first judge are taken. Raises UsageError if the scales that
    were detected differ.
    """
    from eval_agreement.reading.result_formats import scores_of_judge  # noqa: PLC0415 - pandas: keeps --help fast

    read, scales = dict[str, Source](), dict[Path, str]()
    for name, source in sources.items():
        is_table = tables.find_format(source.path) in tables.FORMATS and (source.column or "score" in source.frame)
        is_tools = source.content == "table" and not is_table
        # The second judge is on the scale of the first if it may be.
        first = next((judge.scale for judge in read.values()), None)
        read[name] = scores_of_judge(source) if is_tools else source.with_scale("score", first)
        # A scale that was found, not given, has to be the other judge's too.
        if (scale := read[name].scale) and not source.scale:
            scales[source.path] = "{:g}:{:g}".format(*scale)
    if len(set(scales.values())) > 1:
        listed = ", ".join(f"those in {path} on {ends}" for path, ends in scales.items())
        raise UsageError(f"scores are taken to be on several scales, {listed}; give --scale LOW:HIGH")
    return read


def find_sources(paths: Sequence[Path], given: TableOptions) -> tuple[tables.Kind, Source, dict[str, Source]] | None:
    """Return the kind of verdicts, people's source and the judges' sources in tables and other tools' result files.

    Scales are detected unless given. Returns None if the first file holds judgments. Raises UsageError if people or
    judges are not found.
    """
    from eval_agreement.reading.result_formats import guess  # noqa: PLC0415 - pandas: keeps --help fast

    content = Source(paths[0]).content
    if content == "judgments":
        return None
    if content == "human-scored rows":
        names = [name for name in tables.read_first_row(paths[0]) or {} if name.endswith(tables.SCORE_SUFFIX)]
        judges = {name.removesuffix(tables.SCORE_SUFFIX): Source(paths[0], name) for name in names}
        if not judges:
            raise UsageError(
                f"{paths[0]}: no column NAME{tables.SCORE_SUFFIX} of a judge; give --human FILE --judge NAME=FILE"
            )
        return "score", Source(paths[0]), judges
    return guess(paths, given)


def parse_judges(texts: Iterable[str], option: str = "--judge") -> dict[str, Source]:
    """Return the source of each judge by name, from texts NAME=FILE[:COLUMN].

    Raises UsageError for a malformed or repeated name, or if there is none. `option`: the option's name, for messages.
    """
    sources: dict[str, Source] = {}
    for text in texts:
        name, _, file = text.partition("=")
        if not name or not file or name in sources:
            raise UsageError(f"{option} {quoted(text)}: expected NAME=FILE[:COLUMN], each name once")
        sources[name] = Source.parse(file)
    if not sources:
        raise UsageError("no judge to audit: give --judge NAME=FILE")
    return sources


def read_attacks(paths: Iterable[Path]) -> tuple[list[Injection], dict[Path, Looking]]:
    """Measure the judgments in files of --attacked.

    Returns the effects of prompt injections, one per file with these, and by file the evidence on whether the judge
    looks at images. Raises UsageError, with the file, as `injection` and `looking` do.
    """
    injections, looks = list[Injection](), dict[Path, Looking]()
    for path in dict.fromkeys(paths):
        judgments = [judgment for _, judgment in jsonl.read(path, Judgment)]
        with located(path, UsageError):
            if any(judgment.sample.id.rpartition(SEPARATOR)[2] in ARMS for judgment in judgments):
                looks[path] = looking(judgments)
            else:
                injections.append(injection(judgments))
    return injections, looks


def check_no_attacks(ids: Iterable[str], path: Path) -> None:
    """Raise UsageError for ids of copies made by `critic attack`, which would count a response several times."""
    names = "|".join((*suite(), *ARMS))
    marked = re.compile(rf"{SEPARATOR}({names})(?=$|[+/])")  # behind an id: a second answer, a criterion, an item
    if copies := [key for key in ids if SEPARATOR in key and marked.search(key)]:
        first = quoted(copies[0]) + tables.say_first_of(len(copies))
        raise UsageError(say("attacked_copies", path=path, first=first))


def name_files(arguments: Iterable[str]) -> dict[str, Path]:
    """Return the files named as arguments (NAME=FILE or FILE), keyed by sample name, in the given order.

    Raises UsageError for a malformed, reserved or repeated name.
    """
    files: dict[str, Path] = {}
    for argument in arguments:
        name, separator, file = argument.partition("=")
        if not separator or Path(argument).is_file():
            name, file = sample_name(Path(argument)), argument
        if not name or not file:
            raise UsageError(f"{quoted(argument)}: expected NAME=FILE or FILE")
        if name in RESERVED:
            raise UsageError(f"{quoted(argument)}: a sample cannot be called {name}; reserved: {', '.join(RESERVED)}")
        if name in files:
            raise UsageError(f"{quoted(argument)}: the sample {name} is given twice; name them, as in NAME=FILE")
        files[name] = find_run(Path(file))
    return files


def find_run(path: Path) -> Path:
    """Return the file of the newest run if `path` is a folder .deepeval or contains one; any other path unchanged."""
    runs = [run for folder in (path, path / ".deepeval") for run in folder.glob(".latest*run*.json")]
    return max(runs, key=lambda run: run.stat().st_mtime) if runs else path
