"""From files to samples: judgments with people's scores inside, or any two columns (CSV, JSONL, Parquet)."""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from critic import human_scored, jsonl
from critic.errors import UsageError
from critic.records import RATINGS, Judgment, Response
from eval_agreement.metrics import Floats
from eval_agreement.sample import PARTS, Sample, scores

Scale = tuple[float, float]


class Source(Struct, frozen=True):
    """A file and the column that holds the scores; None: the usual one."""

    path: Path
    column: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Source":
        """FILE or FILE:COLUMN."""
        file, separator, column = text.rpartition(":")
        if not separator or Path(text).is_file():
            return cls(Path(text))
        return cls(Path(file), column)


SCALE: Scale = (RATINGS[0], RATINGS[-1])
"""The scale of scores, unless the user names another."""

COLUMN_SUFFIX = "_score_1_10"
"""Columns of human-scored rows that hold another judge's scores."""

PART_COLUMNS = {"task": "task", "category": "category", "lang": "lang", "system": "answerer", "turn": "turn"}
"""Columns of a table that break a sample down, and the property each stands for."""


class Table(Struct, frozen=True):
    """A file in columns. `line[i]` is the line (Parquet: the row, from 1) that row i came from."""

    path: Path
    columns: dict[str, list[Any]]
    line: Sequence[int]

    def place(self, row: int) -> str:
        return f"{self.path}:{self.line[row]}"

    def column(self, name: str) -> list[Any]:
        """Raises UsageError naming the columns there are."""
        if name not in self.columns:
            raise UsageError(f"{self.path}: no column {name!r}; there are {', '.join(self.columns)}")
        return self.columns[name]

    def texts(self, name: str) -> list[str | None]:
        """A column as texts; None where empty. All None where there is no such column."""
        if name not in self.columns:
            return [None] * len(self.line)
        return [None if value is None or value == "" else str(value) for value in self.columns[name]]

    def numbers(self, name: str, scale: Scale = SCALE) -> Floats:
        """A column of scores on `scale`, moved onto 1..10; NaN where empty. Raises UsageError with the line."""
        low, high = scale
        found = np.full(len(self.line), np.nan)
        for row, value in enumerate(self.column(name)):
            number = self.number(row, name, value)
            if number is None:
                continue
            if not low <= number <= high:
                raise UsageError(f"{self.place(row)}: {name} {number:g} is outside {low:g}..{high:g} (see --scale)")
            found[row] = number
        first, last = SCALE
        return first + (last - first) * (found - low) / (high - low)

    def number(self, row: int, name: str, value: Any) -> float | None:
        """A cell as a number; None where empty. Raises UsageError with the line."""
        if value is None or value == "":
            return None
        try:
            if isinstance(value, bool):
                raise ValueError
            number = float(value)
        except (TypeError, ValueError):
            raise UsageError(f"{self.place(row)}: {name} {value!r} is not a number") from None
        return None if math.isnan(number) else number


def read_table(path: Path) -> Table:
    """A CSV (with a header), JSONL or Parquet file. Raises UsageError naming file and line."""
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    readers: dict[str, Callable[[Path], Table]] = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
    if path.suffix not in readers:
        raise UsageError(f"{path}: expected a file that ends in {', '.join(readers)}")
    table = readers[path.suffix](path)
    if not table.line:
        raise UsageError(f"{path}: no rows")
    return table


def _csv(path: Path) -> Table:
    lines: list[int] = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        try:
            header = next(reader, [])
            columns: list[list[Any]] = [[] for _ in header]
            for row in reader:
                if len(row) not in (0, len(header)):
                    raise UsageError(f"{path}:{reader.line_num}: {len(row)} cells, but the header has {len(header)}")
                lines += [reader.line_num] if row else []
                for column, cell in zip(columns, row, strict=False):
                    column.append(cell)
        except (UnicodeDecodeError, csv.Error) as error:
            raise UsageError(f"{path}: cannot be read after line {reader.line_num}: {error}") from None
    return Table(path, dict(zip(header, columns, strict=True)), lines)


def _jsonl(path: Path) -> Table:
    rows = list(jsonl.read(path, dict[str, Any]))
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    return Table(path, {name: [row.get(name) for _, row in rows] for name in names}, [number for number, _ in rows])


def _parquet(path: Path) -> Table:
    try:
        from pyarrow import ArrowInvalid, parquet  # noqa: PLC0415 - only for those who have Parquet
    except ImportError:
        raise UsageError(f"{path}: to read Parquet, pip install pyarrow") from None
    try:
        table = parquet.read_table(path)
    except (ArrowInvalid, OSError) as error:
        raise UsageError(f"{path}: not a Parquet file: {error}") from None
    return Table(path, table.to_pydict(), range(1, table.num_rows + 1))


def of_judgments(name: str, path: Path) -> Sample:
    """The judgments of one judge, people's scores inside.

    Raises UsageError naming file and line for an id that comes twice, a second judge or a score outside 1..10,
    and naming the file when people scored none of the answers.
    """
    found = read_judgments(path)
    sample = _of_responses(name, [judgment.response for judgment in found])
    if np.isnan(sample.human).all():
        raise UsageError(f"{path}: no answer has people's scores (response.human); an audit needs them")
    judge = {found[0].judge: scores([judgment.score for judgment in found])}
    return replace(sample, judges={**judge, **sample.judges}, judgments=list(found))


def _of_responses(name: str, responses: list[Response]) -> Sample:
    """Answers with people's scores and those of other judges in their columns; no judge of ours yet."""
    columns = sorted({column for response in responses for column in response.columns})
    return Sample(
        name=name,
        ids=[response.id for response in responses],
        human=scores([response.human.score if response.human else None for response in responses]),
        judges={
            column.removesuffix(COLUMN_SUFFIX): scores([response.columns.get(column) for response in responses])
            for column in columns
        },
        group=[response.question.group for response in responses],
        raters=_raters(responses),
        parts={part: [value(response) for response in responses] for part, value in PARTS.items()},
        length=np.array([len(response.text) for response in responses], dtype=np.float64),
        responses=list(responses),
    )


def _raters(responses: Sequence[Response]) -> list[dict[str, float]]:
    rated = [response.human.raters if response.human else {} for response in responses]
    return rated if any(rated) else []


def read_judgments(path: Path) -> list[Judgment]:
    """Judgments of one judge, each id once, every score on 1..10. Raises UsageError naming file and line."""
    found: list[Judgment] = []
    lines: dict[str, int] = {}
    for number, judgment in jsonl.read(path, Judgment):
        place, response = f"{path}:{number}", judgment.response
        if response.id in lines:
            raise UsageError(f"{place}: duplicate response id {response.id!r}, first at line {lines[response.id]}")
        if found and judgment.judge != found[0].judge:
            raise UsageError(f"{place}: judged by {judgment.judge!r}, line 1 by {found[0].judge!r}; one judge a file")
        for key, score in _scores_of(judgment).items():
            if score is not None and not RATINGS[0] <= score <= RATINGS[-1]:
                raise UsageError(f"{place}: {key} {score:g} is outside {RATINGS[0]}..{RATINGS[-1]}")
        lines[response.id] = number
        found.append(judgment)
    return found


def _scores_of(judgment: Judgment) -> dict[str, float | None]:
    response = judgment.response
    found = {"score": judgment.score, **{f"response.columns.{n}": s for n, s in response.columns.items()}}
    if response.human:
        found["response.human.score"] = response.human.score
        found |= {f"response.human.raters.{name}": score for name, score in response.human.raters.items()}
    return found


def of_tables(human: Source, judges: Mapping[str, Source], scale: Scale = SCALE) -> Sample:
    """People's scores and judges' scores out of different files or columns, joined by id.

    People: human-scored rows, judgments with people's scores inside, or a table `id, score[, rater][, group][, task,
    category, lang, system, turn][, length | text]`, a line an answer and rater. Judges: judgments, or a table
    `id, score`. A judge without a score for an answer failed on it; answers that only the first judge scored stay,
    without a human score. A file without ids can be joined with other columns of itself only.

    Raises UsageError when no id is in both, when an id comes twice with different scores, and for scores off the
    scale, naming file and line.
    """
    people = _people(human, scale)
    given = {name: _scored(source, scale) for name, source in judges.items()}
    for name, other in given.items():
        if not set(people.ids) & set(other.ids):
            raise UsageError(
                f"{human.path} and {judges[name].path} have no id in common: the first holds {people.ids[0]!r}, "
                f"the second {other.ids[0]!r}"
            )
        if other.raters:
            raise UsageError(f"{judges[name].path}: the judge {name} has several raters; give each a file of its own")
    known = set(people.ids)
    first = next(iter(given.values()))
    alone = first.rows(np.array([key not in known for key in first.ids]))
    ids = people.ids + alone.ids
    missing = np.full(len(alone.ids), np.nan)
    return Sample(
        name=human.path.stem,
        ids=ids,
        human=np.concatenate([people.human, missing]),
        judges={name: _by_id(other, ids) for name, other in given.items()},
        group=people.group + alone.group,
        raters=people.raters + [{} for _ in alone.ids] if people.raters else [],
        parts={part: values + alone.parts[part] for part, values in people.parts.items()},
        length=_joined_lengths(people, alone),
        responses=people.responses + [None] * len(alone.ids) if people.responses else [],
        judgments=_by_key(first, ids) if first.judgments else [],
        notes=people.notes + [note for other in given.values() for note in other.notes],
    )


def _by_key(sample: Sample, ids: Sequence[str]) -> list[Judgment | None]:
    known = dict(zip(sample.ids, sample.judgments, strict=True))
    return [known.get(key) for key in ids]


def _by_id(sample: Sample, ids: Sequence[str]) -> Floats:
    row = {key: number for number, key in enumerate(sample.ids)}
    return np.array([sample.human[row[key]] if key in row else np.nan for key in ids])


def _people(source: Source, scale: Scale) -> Sample:
    path = source.path
    kind = _kind(source)
    if kind == "judgments":
        return replace(of_judgments(path.stem, path), judges={}, judgments=[])
    if kind == "human-scored rows":
        loaded = human_scored.load(path)
        notes = [f"{path}: {count} rows left out: {reason}" for reason, count in loaded.left_out.items()]
        return replace(_of_responses(path.stem, loaded.responses), judges={}, notes=notes)
    return _of_table(read_table(path), source.column or "score", scale)


def _scored(source: Source, scale: Scale) -> Sample:
    """A judge's scores as a sample; they stand in `human`."""
    path = source.path
    if _kind(source) == "judgments":
        found = read_judgments(path)
        sample = _of_responses(path.stem, [judgment.response for judgment in found])
        values = scores([judgment.score for judgment in found])
        return replace(sample, human=values, judges={}, raters=[], judgments=list(found))
    return _of_table(read_table(path), source.column or "score", scale)


def _kind(source: Source) -> Literal["judgments", "human-scored rows", "table"]:
    """What a file holds, by the keys of its first line; a column of its own makes it a table."""
    path = source.path
    if path.suffix != ".jsonl" or source.column:
        return "table"
    _, first = next(jsonl.read(path, dict[str, Any]))
    if {"response", "verdict"} <= set(first):
        return "judgments"
    return "human-scored rows" if {"human_score", "scale_min", "response"} <= set(first) else "table"


def _of_table(table: Table, column: str, scale: Scale) -> Sample:
    rows, by_rater = _by_rater(table, column, scale)
    given: dict[str, dict[str, float]] = {key: {} for key in rows}
    for rater, theirs in by_rater.items():
        for key, score in theirs.items():
            if not math.isnan(score):
                given[key][rater or ""] = score
    first = list(rows.values())

    def texts(name: str) -> list[str | None]:
        values = table.texts(name)
        return [values[row] for row in first]

    repeated = len(table.line) - sum(len(given) for given in by_rater.values())
    return Sample(
        name=table.path.stem,
        ids=list(rows),
        human=scores([sum(mine.values()) / len(mine) if mine else None for mine in given.values()]),
        judges={},
        group=[group or key for group, key in zip(texts("group"), rows, strict=True)],
        raters=list(given.values()) if None not in by_rater else [],
        parts={part: texts(name) for name, part in PART_COLUMNS.items()},
        length=_lengths(table)[first],
        notes=[f"{table.path}: {repeated} rows repeat another row and count once"] if repeated else [],
    )


def _by_rater(table: Table, column: str, scale: Scale) -> tuple[dict[str, int], dict[str | None, dict[str, float]]]:
    """The first row of each id, and each rater's score of each id (all under None without a column `rater`)."""
    rows: dict[str, int] = {}
    by_rater: dict[str | None, dict[str, float]] = {}
    keys = table.texts("id") if "id" in table.columns else [table.place(row) for row in range(len(table.line))]
    given = zip(keys, table.texts("rater"), table.numbers(column, scale).tolist(), strict=True)
    for row, (key, rater, score) in enumerate(given):
        if key is None or (rater is None and "rater" in table.columns):
            raise UsageError(f"{table.place(row)}: the {'id' if key is None else 'rater'} is empty")
        mine = by_rater.setdefault(rater, {})
        before = mine.setdefault(key, score)
        if before != score and not (np.isnan(before) and np.isnan(score)):
            who = f" by {rater}" if rater else " (several raters need a column rater)"
            raise UsageError(f"{table.place(row)}: {key!r} has the score {score:g}, but {before:g} before{who}")
        rows.setdefault(key, row)
    return rows, by_rater


def _lengths(table: Table) -> Floats:
    """Characters of each answer, from a column `length`, `response` or `text`; NaN where unknown."""
    if "length" in table.columns:
        return scores([table.number(row, "length", value) for row, value in enumerate(table.columns["length"])])
    texts = table.texts("response" if "response" in table.columns else "text")
    return scores([None if text is None else len(text) for text in texts])


def _joined_lengths(*samples: Sample) -> Floats | None:
    known = [sample.length for sample in samples if sample.length is not None]
    found = np.concatenate(known)
    return None if np.isnan(found).all() else found
