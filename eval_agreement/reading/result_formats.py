"""Result files of other tools, and any table: who is people, judge, question, model and text (`result_formats.toml`).

`{"doc_id": 3, "filtered_resps": ["Two cats."], "gpt_eval_score": 4, "doc": {"human_score": 5, …}, …}` is a line of one.
"""

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import msgspec
import pandas as pd
from msgspec import Struct, field

from critic import jsonl, tables
from critic.errors import UsageError, one_line, quoted, shorten_line
from critic.records import NO_VERDICT
from eval_agreement.measures.preferences import PEOPLE
from eval_agreement.reading import preference_codes
from eval_agreement.reading.audit_items import Kind
from eval_agreement.reading.tables import Codes, Scale, Source
from eval_agreement.reading.turns import content_text, texts_of_turns
from eval_agreement.sentences import texts_of

Row = dict[str, Any]

SCALES: tuple[Scale, ...] = ((0, 1), (1, 5), (0, 5), (1, 10), (0, 10), (0, 100))
"""Assumed scales of scores. The first that holds all scores counts; otherwise they span lowest to highest."""

_CHOICES = 4
"""Numbers that a judge's choice between two answers may have; a column of more of them is something else."""

_ZSTD = "its parts are packed by zstd: pip install zipfile-zstd, or give what `inspect log dump` prints, as .json"


class Shape(Struct, frozen=True, forbid_unknown_fields=True):
    """How the files of one tool look; the head of `result_formats.toml` says what each field is."""

    name: str
    has: list[str]
    rows: str = ""
    each: str = ""
    judge: str = ""
    kind: str = ""
    human: str = r"(?!)"
    value: str = ""
    second: str = ""
    scorer: str = ""
    criterion: str = ""
    pair: list[str] = field(default_factory=list)
    middle: float | None = None
    fields: dict[str, list[str]] = field(default_factory=dict)


class ShapeTable(Struct, frozen=True):
    """All of `result_formats.toml`."""

    shapes: list[Shape]
    names: dict[str, str]
    scores: dict[str, str]
    words: dict[Kind, dict[str, list[str]]]


class ResultFile(Struct, frozen=True):
    """A file as a data frame with the usual columns, and the path that each was `taken` from; the columns that hold
    people's verdicts; `votes` are theirs, those of PEOPLE, and each judge's."""

    path: Path
    shape: Shape
    frame: pd.DataFrame
    taken: dict[str, str]
    people: list[str]
    votes: dict[str, Source]

    def note(self, people: Source | None, judges: Mapping[str, Source]) -> str:
        """What was taken for what."""
        scales = {f"people: {', '.join(self.people)}": people.scale} if people else {}
        scales |= {f"judge: {name}": judge.scale for name, judge in judges.items()}
        facts = [f"{role} on {scale[0]:g}..{scale[1]:g}" if scale else role for role, scale in scales.items()]
        facts += [f"{usual}: {path}" for usual, path in self.taken.items()]
        change = "if one is not what it should be, name another as --map COLUMN=FIELD"
        return f"{self.path}: taken for {self.shape.name}; {'; '.join(facts)}; {change}"

    @property
    def is_pair(self) -> bool:
        """True if each row compares two responses."""
        one_answer = "response" in self.shape.fields
        return bool(self.shape.pair) or (not one_answer and preference_codes.holds_two_answers(self.frame))

    def judges(
        self, kind: Kind, scale: Scale | None, people: Source | None = None, codes: Codes | None = None
    ) -> dict[str, Source]:
        """Return the judges whose verdicts are of a kind. Without a `scale` theirs is people's if it may be; `codes` as
        `_kinds` takes them."""
        votes = {
            name: vote
            for name, vote in self.votes.items()
            if name != PEOPLE and kind in _kinds(vote.frame[vote.column], codes)
        }
        on = people.scale if people else None
        typed = {name: _typed(vote, kind, scale, people=on, codes=codes) for name, vote in votes.items()}
        note = self.note(people if PEOPLE in self.votes else None, typed)
        return {name: dataclasses.replace(judge, note=note) for name, judge in typed.items()}


@cache
def known() -> ShapeTable:
    return msgspec.convert(texts_of("reading/result_formats.toml"), ShapeTable)


def guess(
    paths: Sequence[Path],
    mapped: Mapping[str, str],
    scales: Sequence[Scale | None] = (None, None),
    codes: Codes | None = None,
) -> tuple[Kind, Source, dict[str, Source]]:
    """Return what is audited in files of other tools: the kind of verdicts, people's and each judge's. `mapped` columns
    (usual name -> path) and `scales` override what is found; `codes` are what numbers beside two answers mean.

    Raises UsageError with the columns there are if nobody, or no judge, is found, and for codes that nobody explained.
    """
    read = [_read(path, mapped) for path in paths]
    if not codes:
        codes = {} if any(result.is_pair for result in read) else None
    rated = [result for result in read if PEOPLE in result.votes]
    if len(rated) != 1:
        which = f"{rated[0].path} and {rated[1].path} both hold" if rated else f"{paths[0]}: no column holds"
        raise _unknown(f"{which} people's verdicts", "people", read)
    vote = rated[0].votes[PEOPLE]
    _check_codes({", ".join(rated[0].people): vote}, codes)
    for kind in _kinds(vote.frame[vote.column], codes):
        people = _typed(vote, kind, scales[0], codes=codes)
        judges = {name: judge for file in read for name, judge in file.judges(kind, scales[1], people, codes).items()}
        if judges:
            note = rated[0].note(people, rated[0].judges(kind, scales[1], people, codes))
            return kind, dataclasses.replace(people, note=note), judges
    _check_codes({name: judge for file in read for name, judge in file.votes.items()}, codes, most=_CHOICES)
    problem = f"{rated[0].path}: no judge's verdicts of the kind of {', '.join(rated[0].people)}"
    raise _unknown(problem, "judge", read)


def scores_of_judge(path: Path, mapped: Mapping[str, str], scale: Scale | None) -> Source:
    """Return the scores of the first judge in a result file. Raises UsageError if there is none."""
    read = _read(path, mapped)
    for judge in read.judges("score", scale, codes={} if read.is_pair else None).values():
        return judge
    raise _unknown(f"{path}: no judge's scores", "judge", [read])


def _check_codes(votes: Mapping[str, Source], codes: Codes | None, most: float = math.inf) -> None:
    """Raise UsageError for the first column of numbers beside two answers whose meaning is not known, by its name; not
    of more than `most` numbers."""
    for name, vote in votes.items():
        cells = vote.cells(vote.column or "")
        if (
            codes is not None
            and preference_codes.are_codes(cells)
            and 0 < len(preference_codes.unknown_codes(cells, codes)) <= most
        ):
            raise preference_codes.uncoded(vote.path, name, cells, codes)


def _unknown(problem: str, name: str, read: Iterable[ResultFile]) -> UsageError:
    columns = [column for result in read for column in result.frame if _kinds(result.frame[column])]
    there = f"columns of scores or labels: {', '.join(columns) or 'none'}"
    return UsageError(f"{problem}; name the column as --map COLUMN={name}; {there}")


def _read(path: Path, mapped: Mapping[str, str]) -> ResultFile:
    shape, numbers, rows = _lines(path)
    frame = pd.json_normalize(rows).set_axis(numbers).astype(object)
    taken = _take(path, frame, rows, shape, mapped)
    votes = _by_line(path, frame, rows, shape, mapped) if shape.kind else {}
    people, judges = _by_column(frame, shape, {*taken}, mapped)
    if wrong := [name for name in (*people, *judges) if name not in frame]:
        raise UsageError(f"{path}: no column {quoted(wrong[0])}; there are {shorten_line(', '.join(frame))}")
    if not shape.kind or "judge" in mapped:
        votes = {name: vote for name, vote in votes.items() if name == PEOPLE}
        votes |= {name: Source(path, column, table=frame) for column, name in judges.items()}
    if PEOPLE in votes and "people" not in mapped:
        people = [PEOPLE]
    elif people:
        votes[PEOPLE] = _of_people(path, frame, people)
    return ResultFile(path, shape, frame, taken, people, votes)


def _lines(path: Path) -> tuple[Shape, list[int], list[Row]]:
    """The shape of a file, and its rows with their numbers, one for each entry of their list `each`."""
    numbers, document = _document(path)
    shape, rows = _recognised(path, document)
    lines = []
    for number, row in zip(numbers or count(1), rows, strict=False):
        entries = _at(row, shape.each) if shape.each else None
        lines += [(number, {**_in_order(row, shape), "each": entry}) for entry in entries or [{}]]
    return shape, [number for number, _ in lines], [row for _, row in lines]


def _of_people(path: Path, frame: pd.DataFrame, columns: Sequence[str]) -> Source:
    """People's verdicts; where several columns hold them, a line a rater."""
    raters = [frame.assign(rater=name) if len(columns) > 1 else frame for name in columns]
    table = pd.concat([of_rater.assign(people=of_rater[name]) for of_rater, name in zip(raters, columns, strict=True)])
    return Source(path, PEOPLE, table=table[table[PEOPLE].notna()])


def _in_order(row: Row, shape: Shape) -> Row:
    """A line on two answers, by the names of their models: of a pair that files have both ways round one is turned."""
    names = [content_text(_at(row, path)) or "" for path in shape.pair]
    if names == sorted(names):
        return row

    def turned(text: str) -> str:
        return re.sub("(?<=_)[ab12]$", lambda side: side[0].translate(str.maketrans("ab12", "ba21")), text)

    return {turned(key): turned(str(value)) if key.endswith("winner") else value for key, value in row.items()}


def _document(path: Path) -> tuple[list[int], Any]:
    """What a file holds, and the lines of its rows where it is a table. A log of inspect_ai is a .zip of samples."""
    kind = jsonl.suffix(path)
    if not path.exists():
        raise UsageError(f"{path}: no such file")
    if kind not in (".json", ".eval") or path.is_dir():
        frame = tables.read_frame(path)
        return list(frame.index), frame.to_dict("records")
    with suppress(ImportError):
        import_module("zipfile_zstd")  # teaches zipfile; inspect_ai brings it
    try:
        if kind == ".json":
            return [], tables.as_records(tables.read_json(path))
        with ZipFile(path) as parts:
            names = [name for name in parts.namelist() if re.fullmatch(r"samples/.+\.json", name)]
            return [], {"samples": [json.loads(parts.read(name)) for name in names]}
    except NotImplementedError:
        raise UsageError(f"{path}: {_ZSTD}") from None
    except (ValueError, RecursionError, BadZipFile) as error:
        raise UsageError(f"{path}: not {kind}: {one_line(error)}") from None


def _recognised(path: Path, document: Any) -> tuple[Shape, list[Row]]:
    """Return the first shape that a document has, and its rows: a list of objects, or objects by key."""
    for shape in known().shapes:
        value = _at(document, shape.rows)
        if isinstance(value, dict):
            value = [{"key": key, **row} if isinstance(row, dict) else row for key, row in value.items()]
        if _is_list(value, dict) and all(_at(value[0], wanted) is not None for wanted in shape.has):
            return shape, value
    raise UsageError(f"{path}: no list of rows; expected the results of an evaluation tool, or a table")


def _is_list(value: Any, of: type) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, of) for row in value)


def _at(value: Any, path: str) -> Any:
    """What stands at the first of several paths (|) that leads to something. A key may hold dots itself."""
    cells = (_step(value, way) for way in path.split("|"))
    return next((cell for cell in cells if cell is not None and cell != ""), None)


def _step(value: Any, path: str) -> Any:
    if not path:
        return value
    if isinstance(value, list):
        value = {str(number): entry for number, entry in enumerate(value)}
    if not isinstance(value, dict) or path in value:
        return value[path] if isinstance(value, dict) else None
    head, _, rest = path.partition(".")
    return _step(value[head], rest) if head in value else None


def _take(
    path: Path, frame: pd.DataFrame, rows: Sequence[Row], shape: Shape, mapped: Mapping[str, str]
) -> dict[str, str]:
    """Put the usual columns into the frame; return the path that each is from. Raises UsageError for a `mapped` path
    that leads nowhere, and for turns that are not there."""
    own = {usual: [path] for usual, path in mapped.items() if usual not in ("people", "judge", "criterion")}
    fields, taken = _named(frame) | shape.fields | own, dict[str, str]()
    for usual, paths in fields.items():
        columns = [[content_text(_at(row, path)) for row in rows] for path in paths]
        columns = [cells for cells in columns if {*cells} != {None}]
        if usual in mapped and not columns:
            raise UsageError(
                f"--map {mapped[usual]}={usual}: nothing there; there are {shorten_line(', '.join(frame))}"
            )
        if columns:
            joined = ("/".join(filter(None, cells)) for cells in zip(*columns, strict=True))
            frame[usual] = columns[0] if len(columns) == 1 else list(joined)
            ways = (way for path in paths for way in path.split("|") if _step(rows[0], way) not in (None, ""))
            taken[usual] = " + ".join(dict.fromkeys(ways))
    for usual, (column, texts) in texts_of_turns(path, frame).items():
        if usual not in mapped:
            frame[usual], taken[usual] = texts, column
    _number_turns(frame, taken)
    if "group" not in taken and "question" in taken:
        frame["group"], taken["group"] = frame["question"], taken["question"]
    return taken


def _number_turns(frame: pd.DataFrame, taken: dict[str, str]) -> None:
    """Add the turn to ids that are those of conversations, with a row for each turn."""
    if {"id", "turn"} <= taken.keys() and (frame.groupby("id")["turn"].nunique() > 1).any():
        frame["id"] = [f"{key}/{turn}" for key, turn in zip(frame["id"], frame["turn"], strict=True)]
        taken["id"] = f"{taken['id']} + {taken['turn']}"


def _named(frame: pd.DataFrame) -> dict[str, list[str]]:
    """Of the names of each usual column the first that a column has, whole or behind a dot."""
    fields = {}
    last = {column: column.rpartition(".")[2].lower() for column in frame}
    for usual, names in known().names.items():
        order = names.split("|")
        ranked = sorted((order.index(name), len(column), column) for column, name in last.items() if name in order)
        fields[usual] = [column for *_, column in ranked[:1]]
    return fields


def _by_line(
    path: Path, frame: pd.DataFrame, rows: Sequence[Row], shape: Shape, mapped: Mapping[str, str]
) -> dict[str, Source]:
    """Of lines that say who rated, verdicts of PEOPLE and of each judge, by the first criterion that both used."""
    raters = [content_text(_at(row, shape.kind)) for row in rows]
    is_human = [bool(re.fullmatch(shape.human, rater or "")) for rater in raters]
    criteria = [content_text(_at(row, shape.criterion)) if shape.criterion else None for row in rows]
    sides = set(zip(criteria, is_human, strict=True))
    shared = [name for name in dict.fromkeys(criteria) if {(name, True), (name, False)} <= sides]
    wanted = mapped.get("criterion", shared[0] if shared else None)
    verdicts = frame.assign(verdict=[_verdict(row, shape) for row in rows])
    lines: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        if raters[number] and wanted in (None, criteria[number]):
            judge = content_text(_at(row, shape.scorer), "/") or criteria[number] or "judge"
            lines.setdefault(PEOPLE if is_human[number] else judge, []).append(number)
    return {name: Source(path, "verdict", table=verdicts.iloc[numbers]) for name, numbers in lines.items()}


def _verdict(row: Row, shape: Shape) -> Any:
    """What a line says; a tie where orders differ. By numbers: below the middle is the first answer, 0 a tie."""
    value, second = _at(row, shape.value), _at(row, shape.second) if shape.second else None
    if "error" in (value, second):
        return None
    if second is not None and second != value:
        return "tie"
    if shape.middle is None or not isinstance(value, int | float):
        return value
    return "tie" if value in (0, shape.middle) else "a" if value < shape.middle else "b"


def _by_column(
    frame: pd.DataFrame, shape: Shape, taken: set[str], mapped: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The columns of people's verdicts, one or alike but for a number or letter, and of judges' with their names."""
    scores = known().scores
    taken = taken | {*"|".join(path for paths in shape.fields.values() for path in paths).split("|")}
    # A number of a row, question or model is no score, wherever it stands.
    words = "|".join(known().names[usual] for usual in ("id", "group", "system", "rater", "task"))
    no_score = re.compile(rf"each\..*|(.*\.)?({words})", re.IGNORECASE)
    left = [name for name in frame if name not in taken and not no_score.fullmatch(name)]
    columns = [name for name in left if _kinds(frame[name])]
    people = list(_matching(columns, scores["people"]))
    if not people and not shape.has and len(columns) > 1:
        people = list(_matching(columns, scores["plain"]))[:1]
    stems = {re.sub(r"(?<=[\W_a-z])(\d+|[_ -][a-h])$", "", name) for name in people}
    people = [mapped["people"]] if "people" in mapped else people if len(stems) == 1 else people[:1]
    rest = [name for name in columns if name not in people]
    judges = _matching(rest, shape.judge or scores["judge"])
    if not judges and not shape.judge and len(rest) == 1:
        judges = {rest[0]: rest[0]}
    return people, {mapped["judge"]: mapped["judge"]} if "judge" in mapped else judges


def _matching(columns: Sequence[str], expression: str) -> dict[str, str]:
    """Columns that an expression describes, and the name in it if it is of one only."""
    matches = {column: re.fullmatch(expression, column, re.IGNORECASE) for column in columns}
    names = {column: next(filter(None, match.groups()), column) for column, match in matches.items() if match}
    twice = [name for name in names.values() if list(names.values()).count(name) > 1]
    return {column: column if name in twice else name for column, name in names.items()}


def _label(kind: Kind, cell: Any) -> str | None:
    """Return the label of a cell's word, or None for an unknown word."""
    word = str(cell).strip().lower()
    return next((label for label, words in known().words[kind].items() if word in words), None)


def _kinds(cells: Iterable[Any], codes: Codes | None = None) -> list[Kind]:
    """Return what a column may hold: preferences, yes and no, scores; nothing if a cell is another word or no verdict.
    Beside two answers, where `codes` are not None, numbers are preferences, if it is known which."""
    if any(isinstance(cell, list | dict) for cell in cells):
        return []
    words = {str(cell).strip().lower() for cell in cells if not tables.is_empty(cell)}
    labels: list[Kind] = [kind for kind in known().words if words and all(_label(kind, word) for word in words)]
    if words and "preference" not in labels and all(_number(word) is not None for word in words):
        labels.append("score")
    if codes is None:
        return labels
    if preference_codes.are_codes(cells):
        return [] if preference_codes.unknown_codes(cells, codes) else ["preference"]
    return [kind for kind in labels if kind != "score"]


def _number(cell: Any) -> float | None:
    """A cell as a number: yes is 1, no is 0."""
    number = preference_codes.code_of(cell)
    return {"yes": 1.0, "no": 0.0}.get(_label("yes or no", cell) or "") if number is None else number


def _typed(
    vote: Source, kind: Kind, scale: Scale | None, *, people: Scale | None = None, codes: Codes | None = None
) -> Source:
    """Return verdicts as the rest of the audit reads them."""
    cells, values = vote.cells(vote.column or ""), list[Any]()
    if kind == "preference" and codes is not None:
        cells = preference_codes.decode_preferences(vote.path, vote.column or "", cells, codes)
    if kind == "score":
        values = [_number(cell) for cell in cells]
        scale = scale or _scale([number for number in values if number is not None], people)
    else:
        values, scale = [_label(kind, cell) for cell in cells], None
    return dataclasses.replace(vote, table=vote.frame.assign(**{vote.column or "": values}), scale=scale)


def _scale(numbers: Sequence[float], people: Scale | None) -> Scale:
    """Return the scale of numbers. A judge that reaches the upper half of people's scale is on it; -1 is no verdict.

    >>> _scale([2.0, 9.0], people=(1.0, 10.0))
    (1.0, 10.0)
    """
    kept = [number for number in numbers if number != NO_VERDICT] or numbers
    lowest, highest = min(kept), max(kept)
    if people and people[0] <= lowest and people[1] / 2 <= highest <= people[1]:
        return people
    return next((scale for scale in SCALES if scale[0] <= lowest and highest <= scale[1]), (lowest, highest))
