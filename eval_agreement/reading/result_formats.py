"""Read result files of other tools, and any table, and find the columns of people, judges, questions, models and texts.

`result_formats.toml` describes the tools' files. This is a line of one: `{"doc_id": 3, "filtered_resps": ["Two cats."],
"gpt_eval_score": 4, "doc": {"human_score": 5, …}, …}`
"""

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from itertools import accumulate, count
from pathlib import Path
from textwrap import shorten
from typing import Any
from zipfile import ZipFile

import pandas as pd
from msgspec import Struct, convert, field

from critic import jsonl, tables
from critic.errors import UsageError, quoted, refusing, shorten_line
from critic.tables import Kind, find_label, load_columns, match_columns
from eval_agreement.measures.preferences import PEOPLE
from eval_agreement.reading import tables as sources
from eval_agreement.reading.tables import ROLES, Codes, Mapped, Scale, Source, TableOptions
from eval_agreement.sentences import say, texts_of

Row = dict[str, Any]

_CHOICES = 4
"""Most different numbers in a column of preferences between two answers; a column with more is something else."""

_PLACES = 20
"""Longest list of numbers that counts as scores."""

_LIST = re.compile(r"\s*(?:[\[(](?P<marked>[^\[\]()]*)[\])]|(?P<plain>[^;|]*(?:[;|][^;|]*)+))\s*")
"""A list as text: in brackets with commas, or separated by semicolons or bars."""

_NO_LOG = "not .eval; if its parts are packed by zstd: pip install zipfile-zstd, or give what `inspect log dump` prints"


class Shape(Struct, frozen=True, forbid_unknown_fields=True):
    """Shape of one tool's result files. The head of `result_formats.toml` explains each field."""

    name: str
    has: list[str]
    rows: str = ""
    each: str = ""
    judge: str = ""
    answered_by: list[str] = field(default_factory=list)
    kind: str = ""
    human: str = r"(?!)"
    value: str = ""
    second: str = ""
    scorer: str = ""
    criterion: str = ""
    pair: list[str] = field(default_factory=list)
    middle: float | None = None
    fields: dict[str, list[str]] = field(default_factory=dict)


@cache
def load_shapes() -> list[Shape]:
    """Load the shapes of files in `result_formats.toml`."""
    return convert(texts_of("reading/result_formats.toml")["shapes"], list[Shape])


class ResultFile(Struct):
    """A result file of another tool: its rows, and a data frame of them with added columns under usual names.

    A usual name is one that the audit reads, such as "response". `taken`: for each of these columns, the path in the
    file that it comes from (keys and list positions joined by dots). `people`: columns of people's verdicts. `votes`:
    the source of each scorer's verdicts, by name: PEOPLE or a judge. `given`: what the user says about the file.
    """

    path: Path
    given: TableOptions
    shape: Shape
    rows: list[Row]
    frame: pd.DataFrame
    taken: dict[str, str]
    people: list[str] = field(default_factory=list)
    votes: dict[str, Source] = field(default_factory=dict)

    @property
    def used(self) -> set[str]:
        """The usual names in `taken`, and the names of the columns that they come from."""
        return {*self.taken, *" + ".join(self.taken.values()).split(" + ")}

    def note(self, people: Source | None, judges: Mapping[str, Source]) -> str:
        """Return lines that say which columns were taken for people, judges and texts, and how to change that.

        `people`, `judges`: the sources that the audit uses, whose scales the lines give; `people` is None if people's
        verdicts are in another file.
        """
        taken = [("judge", name, judge.scale) for name, judge in judges.items()]
        taken += [("people", column, people.scale) for column in self.people] if people else []
        # Lines of raters are no column's.
        lines = [tables.say_taken(*role, named=role[1] in self.frame) for role in taken]
        texts = "".join(f"; {usual}: {column}" for usual, column in self.taken.items())
        lines.append(f"taken for {self.shape.name}{texts} (change with --map COLUMN=FIELD)")
        used = self.used.union(name for _, name, _ in taken)
        if left := [name for name in self.frame if name not in used and not self.shape.has]:
            lines.append(f"columns that are not used: {shorten(', '.join(left), 200)}")
        return "\n".join(f"{self.path}: {line}" for line in lines)

    @property
    def is_pair(self) -> bool:
        """True if each row compares two responses."""
        one_answer = "response" in self.shape.fields
        return bool(self.shape.pair) or (not one_answer and sources.holds_two_answers(self.frame))

    def judges(self, kind: Kind, codes: Codes | None, people: Source | None = None) -> dict[str, Source]:
        """Return the sources of the judges whose verdicts can be of a kind, by name.

        Unless the user gave a scale, people's scale is used if the scores fit it. `codes`: as in `find_kinds`.
        """
        typed = dict[str, Source]()
        for name, vote in self.votes.items():
            if name != PEOPLE and kind in find_kinds(vote.verdicts, codes):
                typed[name] = _convert(vote, kind, self.given.scales[1], codes, people.scale if people else None)
        note = self.note(people if PEOPLE in self.votes else None, typed)
        return {name: dataclasses.replace(judge, note=note) for name, judge in typed.items()}


def guess(paths: Sequence[Path], given: TableOptions = TableOptions()) -> tuple[Kind, Source, dict[str, Source]]:
    """Find what other tools' files hold: the kind of verdicts, people's source, and the judges' sources by name.

    What the user has `given` overrides what is detected. The columns that it names are paths in the file.
    Raises UsageError if no column of people or of judges is found (the message lists the columns), if two files hold
    the same scorer's verdicts, or for numbers beside two answers without a known meaning.
    """
    files = [_read(path, given) for path in paths]
    # Ids first: verdicts are tables of their own, with the ids that stand there by then.
    for other in files[1:]:
        _align_ids(files[0], other)
    for file in files:
        _find_votes(file)
    # Numbers beside two answers are codes, elsewhere scores (None).
    codes = given.codes or ({} if any(file.is_pair for file in files) else None)
    rated = [file for file in files if PEOPLE in file.votes]
    if len(rated) != 1:
        which = f"{rated[0].path} and {rated[1].path} both hold" if rated else f"{paths[0]}: no column holds"
        raise _unknown(f"{which} people's verdicts", "people" if codes is None else "preference", files)
    vote, columns = rated[0].votes[PEOPLE], ", ".join(rated[0].people)
    _check_codes({columns: vote}, codes)
    # 1 and 0 may be yes and no, or scores: what a judge has as well counts.
    for kind in find_kinds(vote.verdicts, codes):
        people = _convert(vote, kind, given.scales[0], codes)
        judges = dict[str, Source]()
        for file in files:
            for name, judge in file.judges(kind, codes, people).items():
                # Neither file may replace the other's verdicts in silence.
                if name in judges:
                    both = f"{judges[name].path} and {judge.path} both hold verdicts of {name}"
                    raise UsageError(f"{both}; put them into one file, or audit one at a time")
                judges[name] = judge
        if judges:
            beside = rated[0].judges(kind, codes, people)
            return kind, dataclasses.replace(people, note=rated[0].note(people, beside)), judges
    for file in files:
        _check_codes(file.votes, codes, most=_CHOICES)
    raise _unknown(f"{rated[0].path}: no judge's verdicts of the kind of {columns}", "judge", files)


def scores_of_judge(source: Source) -> Source:
    """Return the scores of the first judge in the result file of a source. Raises UsageError if it has none."""
    file = _read(source.path, TableOptions(source.mapped, scales=(None, source.scale)))
    _find_votes(file)
    for judge in file.judges("score", {} if file.is_pair else None).values():
        return judge
    raise _unknown(f"{source.path}: no judge's scores", "judge", [file])


def _check_codes(votes: Mapping[str, Source], codes: Codes | None, most: float = math.inf) -> None:
    """Raise UsageError for the first column whose numbers beside two answers have no known meaning.

    `votes`: columns by name, for the message. Columns with more than `most` unknown numbers are ignored.
    """
    if codes is None:
        return
    for name, vote in votes.items():
        _, unknown = sources.find_meanings(vote.verdicts, codes)
        if tables.can_read(tables.read_number, vote.verdicts) and 0 < len(unknown) <= most:
            raise sources.uncoded(vote.path, name, vote.verdicts, codes)


def _unknown(problem: str, name: str, files: Sequence[ResultFile]) -> UsageError:
    """Build the error that no column has a role (people or judge), with the columns that might have it.

    `problem`: the first words of the message. `name`: the role's field in --map.
    """
    columns = [column for file in files for column in file.frame if find_kinds(file.frame[column])]
    return UsageError(say("unknown_role", problem=problem, name=name, columns=columns))


def _read(path: Path, given: TableOptions) -> ResultFile:
    """Read a result file into rows and a data frame. Its verdicts are not searched for yet (`_find_votes`).

    The frame's index holds line numbers. If the file's shape names a list `each` inside a row, the row is repeated for
    each entry of the list. Raises UsageError if the file cannot be read.
    """
    numbers, document = _document(path)
    shape, objects = _recognise(path, document)
    lines, rows = list[int](), list[Row]()
    for number, row in zip(numbers or count(1), objects, strict=False):
        entries = _at(row, shape.each) if shape.each else None
        # A row without entries stays: its texts may be those of people's verdicts.
        for entry in entries or [{}]:
            lines.append(number)
            rows.append({**_in_order(row, shape), "each": entry})
    frame = pd.json_normalize(rows).set_axis(lines).astype(object)
    _spread_lists(frame)
    return ResultFile(path, given, shape, rows, frame, _take(path, frame, rows, shape, given.mapped))


def _find_votes(file: ResultFile) -> None:
    """Find people's and judges' verdicts in a file, and set `file.people` and `file.votes`.

    Raises UsageError if a column that the user named is missing.
    """
    path, shape, frame, mapped = file.path, file.shape, file.frame, file.given.mapped
    votes = _by_line(file) if shape.kind else {}
    people, judges = _by_column(file)
    if wrong := [name for name in (*people, *judges) if name not in frame]:
        raise UsageError(f"{path}: no column {quoted(wrong[0])}; there are {shorten_line(', '.join(frame))}")
    # Lines say who rated them, and columns count only if they are named.
    if not shape.kind or "judge" in mapped:
        votes = {name: vote for name, vote in votes.items() if name == PEOPLE}
        for column, name in judges.items():
            votes[name] = Source(path, column, table=frame, answered_by=_find_models(file, column))
    if PEOPLE in votes and "people" not in mapped:
        people = [PEOPLE]
    elif people:
        votes[PEOPLE] = _of_people(path, frame, people)
    file.people, file.votes = people, votes


def _find_models(file: ResultFile, column: str) -> frozenset[str] | None:
    """Return the names of the models that gave a column's verdicts, "(not named)" for verdicts without one.

    Returns None if files of this shape name no models.
    """
    # Beside the verdict, or beside what holds it: a scorer may give several numbers.
    holders = [*accumulate(column.split("."), "{}.{}".format)][::-1]
    path = "|".join(f"{holder}.{name}" for holder in holders for name in file.shape.answered_by)
    rated = zip(file.rows, file.frame[column], strict=True)
    models = (str(_at(row, path) or "(not named)") for row, cell in rated if not tables.is_empty(cell))
    return frozenset(models) if path else None


def _spread_lists(frame: pd.DataFrame) -> None:
    """Replace columns of short lists of numbers (or JSON of them) by columns NAME.0, NAME.1 and so on.

    If all lists have one number, the column keeps its name.
    """
    for name in list(frame):
        filled = frame[name][~frame[name].map(tables.is_empty)]
        # Most columns are texts, which the first cell shows.
        if filled.empty or _read_list(filled.iloc[0]) is None:
            continue
        spread = pd.DataFrame([_read_list(cell) or [] for cell in frame[name]], frame.index, dtype=object)
        # Longer lists are coordinates or vectors, and a single text makes a column of texts.
        if 0 < spread.shape[1] <= _PLACES and filled.map(_read_list).notna().all():
            columns = spread.add_prefix(f"{name}.") if spread.shape[1] > 1 else spread.set_axis([name], axis=1)
            frame[list(columns)] = columns


def _read_list(cell: Any) -> list[float | None] | None:
    """Return the numbers in a cell that holds a list, or None for anything else; a single 7.5 is no list.

    >>> _read_list("[4, 5]"), _read_list("3; 4"), _read_list([4, "good"]), _read_list("7,5")
    ([4.0, 5.0], [3.0, 4.0], None, None)
    """
    if isinstance(cell, str) and (match := _LIST.fullmatch(cell)):
        separator, text = ("[;|]", match["plain"]) if match["marked"] is None else (",", match["marked"])
        cell = re.split(separator, text) if text.strip() else []
    if not isinstance(cell, list):
        return None
    numbers = [tables.read_number(entry) for entry in cell]
    # An empty place is a rater who said nothing.
    are_numbers = all(number is not None or tables.is_empty(entry) for number, entry in zip(numbers, cell, strict=True))
    return numbers if are_numbers else None


def _align_ids(first: ResultFile, other: ResultFile) -> None:
    """Give the rows of two result files that share no id new ids, built from columns that both have.

    These are tried in order: one part of a composite id, the columns that make up its parts, the question and the
    model, and the question only. If none fits, the ids stay as they are.
    """
    if all("id" in file.taken for file in (first, other)) and {*first.frame["id"]} & {*other.frame["id"]}:
        return
    for own, own_ids in _possible_ids(first, other).items():
        for theirs, their_ids in _possible_ids(other, first).items():
            shared = ({*own_ids} & {*their_ids}) - {None}
            # A few equal ids, such as numbers of epochs, are chance.
            if shared and 2 * len(shared) >= min(len({*own_ids}), len({*their_ids})):
                first.frame["id"], first.taken["id"] = own_ids, own
                other.frame["id"], other.taken["id"] = their_ids, theirs
                return


def _possible_ids(file: ResultFile, other: ResultFile) -> dict[str, list[str | None]]:
    """Return candidates for the ids of a file's rows, keyed by the paths they come from, the most likely first."""
    ids = {file.taken["id"]: list(file.frame["id"])} if "id" in file.taken else {}
    choices = [(file.rows, [path]) for path in file.shape.fields.get("id", [])]
    composed = [path.rpartition(".")[2] for path in other.shape.fields.get("id", [])]
    for paths in (composed, ["question", "system"], ["question"]):
        if paths and {*paths} <= {*file.frame}:
            choices.append((file.frame.to_dict("records"), paths))
    for rows, paths in choices:
        texts = _join_texts(rows, paths)
        # Texts that several rows have tell none of them, unless several raters have them all.
        if len({*texts}) == len(texts) or "rater" in file.taken:
            ids.setdefault(" + ".join(paths), texts)
    return ids


def _join_texts(rows: Iterable[Row], paths: Iterable[str]) -> list[str | None]:
    """Return for each row the texts at several paths, joined by slashes; None if all of them are empty."""
    texts = list[str | None]()
    for row in rows:
        cells = (sources.content_text(_at(row, path)) for path in paths)
        texts.append("/".join(filter(None, cells)) or None)
    return texts


def _of_people(path: Path, frame: pd.DataFrame, columns: Sequence[str]) -> Source:
    """Return people's verdicts as a source, whose column PEOPLE holds them.

    If people have several columns, each is a rater, and each row is repeated per rater.
    """
    raters = [{"rater": column} if columns[1:] else {} for column in columns]
    sheets = [frame.assign(**rater, **{PEOPLE: frame[column]}) for rater, column in zip(raters, columns, strict=True)]
    return Source(path, PEOPLE, table=pd.concat(sheets).dropna(subset=[PEOPLE]))


def _in_order(row: Row, shape: Shape) -> Row:
    """Return a row about two answers with its sides ordered by the models' names.

    A file may contain the same pair both ways round.
    """
    names = [sources.content_text(_at(row, path)) or "" for path in shape.pair]
    if names == sorted(names):
        return row

    def turned(text: str) -> str:
        return re.sub("(?<=_)[ab12]$", lambda side: side[0].translate(str.maketrans("ab12", "ba21")), text)

    return {turned(key): turned(str(value)) if key.endswith("winner") else value for key, value in row.items()}


def _document(path: Path) -> tuple[list[int], Any]:
    """Read a file; return the line numbers of its rows if it is a table (else []), and its content.

    A log of inspect_ai (.eval) is a .zip of samples. Raises UsageError if the file is missing or unreadable.
    """
    kind = jsonl.suffix(path)
    if not tables.split_sheet(path)[0].exists():
        raise UsageError(f"{path}: no such file")
    if kind == ".json":
        return [], tables.as_records(tables.read_json(path))
    if kind != ".eval":
        numbers, rows = zip(*tables.read_numbered(path), strict=True)
        return [*numbers], [*rows]
    # The library teaches zipfile a packing that inspect_ai uses, and brings along.
    with suppress(ImportError):
        import_module("zipfile_zstd")
    with refusing(path, _NO_LOG), ZipFile(path) as parts:
        names = [name for name in parts.namelist() if re.fullmatch(r"samples/.+\.json", name)]
        samples = [json.loads(parts.read(name)) for name in names]
    return [], {"samples": samples}


def _recognise(path: Path, document: Any) -> tuple[Shape, list[Row]]:
    """Return the first shape that fits a document, and the document's rows.

    Rows are a list of objects, or the values of an object. Raises UsageError if no shape fits.
    """
    for shape in load_shapes():
        value = _at(document, shape.rows)
        if isinstance(value, dict):
            value = [{"key": key, **row} if isinstance(row, dict) else row for key, row in value.items()]
        is_table = isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)
        if is_table and all(_at(value[0], wanted) is not None for wanted in shape.has):
            return shape, value
    raise UsageError(f"{path}: no list of rows; expected the results of an evaluation tool, or a table")


def _at(value: Any, path: str) -> Any:
    """Return the first value that is not empty at one of several paths, or None. `path`: the paths, separated by |.

    A path is keys and list positions, joined by dots; a key may itself contain dots.
    """
    cells = (_step(value, way) for way in path.split("|"))
    return next((cell for cell in cells if cell is not None and cell != ""), None)


def _step(value: Any, path: str) -> Any:
    """Return the value at a path of keys and list positions, or None if it leads nowhere."""
    if not path:
        return value
    if isinstance(value, list):
        value = {str(number): entry for number, entry in enumerate(value)}
    if not isinstance(value, dict) or path in value:
        return value[path] if isinstance(value, dict) else None
    head, _, rest = path.partition(".")
    return _step(value[head], rest) if head in value else None


def _take(path: Path, frame: pd.DataFrame, rows: Sequence[Row], shape: Shape, mapped: Mapped) -> dict[str, str]:
    """Add the columns that the audit reads to the frame, under their usual names; return the path of each in the file.

    Raises UsageError if a `mapped` path leads nowhere, or if a row names a missing turn.
    """
    matched = match_columns(frame, load_columns().names)
    fields = {usual: [column] for usual, column in matched.items()} | shape.fields
    fields |= {usual: [*columns] for usual, columns in mapped.items() if usual not in ROLES}
    taken = dict[str, str]()
    for usual, paths in fields.items():
        texts = _join_texts(rows, paths)
        if any(texts):
            frame[usual] = texts
            ways = dict.fromkeys(way for path in paths for way in path.split("|"))
            taken[usual] = " + ".join(way for way in ways if any(_step(row, way) not in (None, "") for row in rows))
        elif usual in mapped:
            there = shorten_line(", ".join(frame))
            raise UsageError(f"--map {mapped[usual][0]}={usual}: nothing there; there are {there}")
    taken |= sources.fill_turns(path, frame, mapped)
    # Ids of conversations, with a row for each turn, need the turn.
    if {"id", "turn"} <= taken.keys() and (frame.groupby("id")["turn"].nunique() > 1).any():
        frame["id"] = frame["id"].str.cat(frame["turn"], sep="/")
        taken["id"] = f"{taken['id']} + {taken['turn']}"
    # Lines of several raters are on the same answer if they show the same.
    if "rater" in taken and "id" not in taken:
        shown = [name for name in ("question", "system", *sorted(sources.RESPONSES)) if name in taken]
        frame["id"], taken["id"] = _join_texts(frame.to_dict("records"), shown), " + ".join(shown)
    if "group" not in taken and "question" in taken:
        frame["group"], taken["group"] = frame["question"], taken["question"]
    return taken


def _by_line(file: ResultFile) -> dict[str, Source]:
    """Return the verdicts of PEOPLE and of each judge, by name, from a file in which each line names its rater.

    If lines name criteria, only one criterion counts: the one that the user gave, or else the first that both people
    and a judge rated.
    """
    rows, shape = file.rows, file.shape
    raters, judges = _join_texts(rows, [shape.kind]), _join_texts(rows, [shape.scorer])
    criteria = _join_texts(rows, [shape.criterion] if shape.criterion else [])
    is_human = [bool(re.fullmatch(shape.human, rater or "")) for rater in raters]
    sides = {*zip(criteria, is_human, strict=True)}
    shared = [name for name in dict.fromkeys(criteria) if {(name, True), (name, False)} <= sides]
    wanted = next(iter([*file.given.mapped.get("criterion", ()), *shared]), None)
    lines: dict[str, list[int]] = {}
    for number, (rater, judge, criterion) in enumerate(zip(raters, judges, criteria, strict=True)):
        if rater and wanted in (None, criterion):
            name = PEOPLE if is_human[number] else judge or criterion or "judge"
            lines.setdefault(name, []).append(number)
    verdicts = file.frame.assign(verdict=[_read_verdict(row, shape) for row in rows])
    return {name: Source(file.path, "verdict", table=verdicts.iloc[numbers]) for name, numbers in lines.items()}


def _read_verdict(row: Row, shape: Shape) -> Any:
    """Return a line's verdict; None for an error.

    If the line also holds the verdict in the other order of answers, and it differs, the result is a tie. If the shape
    has a `middle`, a number below it is a verdict for the first answer (a), a number above it one for the second (b);
    0 and the middle are ties.
    """
    value, second = _at(row, shape.value), _at(row, shape.second) if shape.second else None
    if "error" in (value, second):
        return None
    # A judge that changes its mind with the order of the answers prefers neither.
    if second is not None and second != value:
        return "tie"
    if shape.middle is None or not isinstance(value, int | float):
        return value
    return "tie" if value in (0, shape.middle) else "a" if value < shape.middle else "b"


def _by_column(file: ResultFile) -> tuple[list[str], dict[str, str]]:
    """Return the columns that hold people's verdicts, and the judges' names by column.

    Several columns are people's only if their names differ in a number or a letter (rater_1, rater_2), or if the user
    named them.
    """
    frame, shape, taken, mapped = file.frame, file.shape, file.taken, file.given.mapped
    table = load_columns()
    columns = [name for name in frame if name not in file.used and table.is_verdict(name) and find_kinds(frame[name])]
    people = list(mapped.get("people") or tables.find_people(columns))
    # Columns of a tool, or a single one, are a judge's unless a name of people says otherwise, or lines name raters.
    if "people" not in mapped and (shape.has or (len(columns) < 2 and "rater" not in taken)):
        people = [name for name in people if table.is_named("people", name)]
    # What people score by another criterion is no judge's, nor is a judge's score by that one to compare.
    others = [name for name in columns if name not in people and table.is_named("people", name)]
    apart = tables.list_criteria(others) - tables.list_criteria(people)
    rest = [name for name in columns if name not in (*people, *others) and not tables.list_criteria([name]) & apart]
    rest = [name for name in rest if not _rates_reference(name, taken.get("reference", ""))]
    judges = {name: name for name in mapped.get("judge", ())} or _matching(rest, shape.judge or table.scores["judge"])
    return people, judges


def _rates_reference(column: str, reference: str) -> bool:
    """Return True if a column's name shows that it scores the reference and not the response.

    >>> _rates_reference("gpt4_score", reference="gpt4_ans"), _rates_reference("gpt4_score", reference="answer")
    (True, False)
    >>> _rates_reference("reference_score", reference="answer"), _rates_reference("gold_rating", reference="answer")
    (True, True)
    """
    owner, scored = ({*re.findall(r"[a-z]+\d*", name.lower())} for name in (reference, column.rpartition(".")[2]))
    owner = {*load_columns().names["reference"], *owner} - {"ans", "answer", "response", "text", "output"}
    judged = scored - {"score", "scores", "rating", "ratings"}
    return judged != scored and bool(judged) and judged <= owner


def _matching(columns: Sequence[str], expression: str) -> dict[str, str]:
    """Return the judge's name of each column that matches a regular expression.

    The name is what a group of the expression captures, or the column's name without a group. If several columns
    capture the same name, each keeps its column's name.
    """
    matches = {column: re.fullmatch(expression, column, re.IGNORECASE) for column in columns}
    names = {column: next(filter(None, match.groups()), column) for column, match in matches.items() if match}
    listed = list(names.values())
    return {column: column if listed.count(name) > 1 else name for column, name in names.items()}


def find_kinds(cells: Sequence[Any], codes: Codes | None = None) -> list[Kind]:
    """Return the kinds of verdicts that a column may hold; [] if a cell fits none of them.

    `codes`: if each row compares two answers, the meanings of numbers, which are preferences if all have a meaning;
    else None.

    >>> find_kinds(["A", "tie", None]), find_kinds([1, 0]), find_kinds([1, 2], codes={}), find_kinds([3, "good"])
    (['preference'], ['yes or no', 'score'], ['preference'], [])
    """
    if codes is not None and tables.can_read(tables.read_number, cells):
        return [] if sources.find_meanings(cells, codes)[1] else ["preference"]
    kinds: list[Kind] = [kind for kind in load_columns().words if tables.can_read(partial(find_label, kind), cells)]
    if codes is None and "preference" not in kinds and tables.can_read(_read_vote, cells):
        kinds.append("score")
    return kinds


def _read_vote(cell: Any) -> float | None:
    """Return a cell as a number, with yes as 1 and no as 0; None for anything else."""
    number = tables.read_number(cell)
    return {"a": 1.0, "b": 0.0}.get(find_label("yes or no", cell) or "") if number is None else number


def _convert(vote: Source, kind: Kind, scale: Scale | None, codes: Codes | None, people: Scale | None = None) -> Source:
    """Return the source of verdicts as the audit expects them: scores become numbers with a scale.

    `scale`: scale of the scores; None to detect it. `people`: people's scale, which is preferred if the scores fit it.
    """
    if kind != "score":
        return dataclasses.replace(vote, codes=codes or {})
    # Empty cells keep their word, which is counted and named.
    values = [cell if tables.is_empty(cell) else _read_vote(cell) for cell in vote.verdicts]
    numbers = dataclasses.replace(vote, table=vote.frame.assign(**{vote.column or "": values}), scale=scale)
    return numbers.with_scale(vote.column or "", people)
