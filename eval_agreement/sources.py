"""From files to samples: judgments with people's scores inside, or any two columns, scores or preferences."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec.structs import replace

from critic import human_scored, jsonl
from critic.counting.resampling import Floats
from critic.counting.verdicts import Codes, Label, codes
from critic.errors import UsageError
from critic.records import RATINGS, Judgment, Response
from eval_agreement.preferences import PEOPLE, Preferences
from eval_agreement.sample import PARTS, Sample, scores
from eval_agreement.tables import SCALE, Scale, Source, Table, read_table

COLUMN_SUFFIX = "_score_1_10"
"""Columns of human-scored rows that hold another judge's scores."""

PART_COLUMNS = {"task": "task", "category": "category", "lang": "lang", "system": "answerer", "turn": "turn"}
"""Columns of a table that break a sample down, and the property each stands for."""


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


def of_tables(
    human: Source, judges: Mapping[str, Source], scale: Scale = SCALE, judge_scale: Scale | None = None
) -> Sample:
    """People's scores and judges' scores out of different files or columns, joined by id.

    People: human-scored rows, judgments with people's scores inside, or a table `id, score[, rater][, group][, task,
    category, lang, system, turn][, length | text]`, a line an answer and rater. Judges: judgments, or a table
    `id, score`. A judge without a score for an answer failed on it; answers that only the first judge scored stay,
    without a human score. A file without ids can be joined with other columns of itself only.

    Raises UsageError when no id is in both, when an id comes twice with different scores, and for scores off the
    scale, naming file and line.
    """
    people = _people(human, scale)
    judge_scale = scale if judge_scale is None else judge_scale
    given = {name: _scored(source, judge_scale) for name, source in judges.items()}
    for name, other in given.items():
        _check_common(human, people.ids, judges[name], other.ids)
        if other.raters:
            raise UsageError(f"{judges[name].path}: the judge {name} has several raters; give each a file of its own")
    if np.isnan(people.human).all():
        raise UsageError(f"{human.path}: no answer has a score; an audit needs people's")
    settled = set(people.ids) | _left_out(human, people.ids)
    first = next(iter(given.values()))
    alone = first.rows(np.array([key not in settled for key in first.ids]))
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
        notes=[
            *people.notes,
            *(note for other in given.values() for note in other.notes),
            *_unmatched(people.ids, ids, {name: other.ids for name, other in given.items()}),
            *_no_length(people),
            *_moved(scale),
        ],
    )


def _check_common(human: Source, people: Sequence[str], judge: Source, judged: Sequence[str]) -> None:
    """Raises UsageError where the two have no id in common."""
    if set(people) & set(judged):
        return
    for source in (human, judge):
        if _kind(source) == "table" and human.path != judge.path and "id" not in read_table(source.path).columns:
            columns = ", ".join(read_table(source.path).columns)
            raise UsageError(f"{source.path}: no column 'id' to join by; there are {columns}")
    raise UsageError(
        f"{human.path} and {judge.path} have no id in common: the first holds {people[0]!r}, the second {judged[0]!r}"
    )


def _unmatched(people: Sequence[str], ids: Sequence[str], judged: Mapping[str, Sequence[str]]) -> list[str]:
    """What the join leaves without a partner, in words."""
    notes = []
    for name, theirs in judged.items():
        missing = len(set(people) - set(theirs))
        unknown = len(set(theirs) - set(ids))
        if missing:
            notes.append(f"{missing} of {len(people)} answers are not in the file of {name}: they count as failed")
        if unknown:
            notes.append(f"{unknown} answers that only {name} scored are left out")
    return notes


def _moved(scale: Scale) -> list[str]:
    """How points on people's own scale and points on 1..10 compare."""
    low, high = scale
    factor = (SCALE[1] - SCALE[0]) / (high - low)
    return (
        []
        if scale == SCALE
        else [f"scores on {low:g}..{high:g} are moved onto 1..10: a point there is {factor:.3g} here"]
    )


def _no_length(people: Sample) -> list[str]:
    """Why the effect of length cannot be measured, where some lengths are known."""
    known = 0 if people.length is None else int((~np.isnan(people.length)).sum())
    short = len(people.ids) - known
    return [f"{short} of {len(people.ids)} answers have no length: what length does is not measured"] * bool(
        known and short
    )


def _left_out(human: Source, kept: Sequence[str]) -> set[str]:
    """Ids of rows that have people's scores, but cannot be used: no answers without scores."""
    if _kind(human) != "human-scored rows":
        return set()
    return {str(row.get("id")) for _, row in jsonl.read(human.path, dict[str, Any])} - set(kept)


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
    given = zip(_keys(table), table.texts("rater"), table.numbers(column, scale).tolist(), strict=True)
    for row, (key, rater, score) in enumerate(given):
        if rater is None and "rater" in table.columns:
            raise UsageError(f"{table.place(row)}: the rater is empty")
        mine = by_rater.setdefault(rater, {})
        before = mine.setdefault(key, score)
        if before != score and not (np.isnan(before) and np.isnan(score)):
            who = f" by {rater}" if rater else " (several raters need a column rater)"
            raise UsageError(f"{table.place(row)}: {key!r} has the score {score:g}, but {before:g} before{who}")
        rows.setdefault(key, row)
    return rows, by_rater


def _keys(table: Table) -> list[str]:
    """The ids; places where there is no such column."""
    if "id" not in table.columns:
        return [table.place(row) for row in range(len(table.line))]
    keys = table.texts("id")
    if None in keys:
        raise UsageError(f"{table.place(keys.index(None))}: the id is empty")
    return [key for key in keys if key is not None]


def _lengths(table: Table, which: str = "") -> Floats:
    """Characters of each answer, from a column `length`, `response` or `text` (`length_a` …); NaN where unknown."""
    length = f"length{which}"
    if length in table.columns:
        found = scores([table.number(row, length, value) for row, value in enumerate(table.columns[length])])
        if (found < 0).any():
            raise UsageError(f"{table.place(int(np.argmax(found < 0)))}: {length} is below 0")
        return found
    name = next((name for name in (f"response{which}", f"text{which}") if name in table.columns), None)
    texts = table.columns[name] if name else [None] * len(table.line)
    return scores([None if text is None else len(str(text)) for text in texts])


def _joined_lengths(*samples: Sample) -> Floats | None:
    known = [sample.length for sample in samples if sample.length is not None]
    found = np.concatenate(known)
    return None if np.isnan(found).all() else found


def states_preferences(source: Source) -> bool:
    """Whether a file of people holds preferences (a, b, tie) instead of scores, by its column or first value."""
    if _kind(source) != "table":
        return False
    table = read_table(source.path)
    if source.column is None:
        return "preference" in table.columns and "score" not in table.columns
    return next((text.lower() in LABELS for text in table.texts(source.column) if text), False)


def of_preferences(human: Source, judges: Mapping[str, Source]) -> Preferences:
    """People's and judges' preferences between answers a and b, out of different files or columns, joined by id.

    People: `id, preference[, rater][, group][, task, category, lang, system, turn][, length_a, length_b | response_a,
    response_b]`, a line a pair of answers and rater. Judges: `id, preference[, first]`, where `first` says which
    answer was shown first (a or b). A preference is a, b or tie; an empty one is a failed judgment. A judge that lacks
    a pair was not asked.

    Raises UsageError when no id is in both and for anything else in a cell, naming file and line.
    """
    people = read_table(human.path)
    rows, raters = _verdicts_by_rater(people, human.column or "preference")
    ids, first = list(rows), list(rows.values())
    orders = {name: _orders(read_table(source.path), source.column or "preference") for name, source in judges.items()}
    if not any(label for given in raters.values() for label in given.values()):
        raise UsageError(f"{human.path}: no pair has a preference; an audit needs people's")
    for name, found in orders.items():
        _check_common(human, ids, judges[name], list(found))

    def texts(name: str) -> list[str | None]:
        values = people.texts(name)
        return [values[row] for row in first]

    parts = {part: texts(name) for name, part in PART_COLUMNS.items()}
    lengths = [_lengths(people, f"_{side}")[first] for side in "ab"]
    known = not np.isnan(lengths).any()
    try:
        return Preferences(
            ids=ids,
            group=[group or key for group, key in zip(texts("group"), ids, strict=True)],
            people={rater: codes(given.get(key) for key in ids) for rater, given in raters.items()},
            judges={name: _as_codes(found, ids) for name, found in orders.items()},
            parts={
                part: [value or "unknown" for value in values] for part, values in parts.items() if len(set(values)) > 1
            },
            length_a=lengths[0] if known else None,
            length_b=lengths[1] if known else None,
        )
    except ValueError as error:
        raise UsageError(f"{human.path}: {error}") from None


LABELS: dict[str, Label] = {"a": "a", "b": "b", "tie": "tie"}
"""What a preference may be, in small letters."""


def _labels(table: Table, column: str) -> list[Label | None]:
    table.column(column)
    found: list[Label | None] = []
    for row, text in enumerate(table.texts(column)):
        label = LABELS.get(text.lower()) if text else None
        if text and not label:
            raise UsageError(f"{table.place(row)}: {column} {text!r} is none of {', '.join(LABELS)}")
        found.append(label)
    return found


def _verdicts_by_rater(table: Table, column: str) -> tuple[dict[str, int], dict[str, dict[str, Label | None]]]:
    """The first row of each id, and each rater's verdicts by id."""
    rows: dict[str, int] = {}
    raters: dict[str, dict[str, Label | None]] = {}
    given = zip(_keys(table), table.texts("rater"), _labels(table, column), strict=True)
    for row, (key, rater, label) in enumerate(given):
        if rater is None and "rater" in table.columns:
            raise UsageError(f"{table.place(row)}: the rater is empty")
        mine = raters.setdefault(rater or PEOPLE, {})
        if mine.setdefault(key, label) != label:
            raise UsageError(f"{table.place(row)}: {key!r} has the preference {label}, but {mine[key]} before")
        rows.setdefault(key, row)
    return rows, raters


def _orders(table: Table, column: str) -> dict[str, list[Label | None]]:
    """By id, the verdict with a shown first and with b shown first; one verdict where the order is not known."""
    known = "first" in table.columns
    found: dict[str, list[Label | None]] = {}
    given = zip(_keys(table), table.texts("first"), _labels(table, column), strict=True)
    for row, (key, first, label) in enumerate(given):
        if known and (first or "").lower() not in ("a", "b"):
            raise UsageError(f"{table.place(row)}: first {first!r} is neither a nor b")
        place = int(known and (first or "").lower() == "b")
        mine = found.setdefault(key, [None, None] if known else [None])
        if mine[place] is not None:
            order = f" with {first} shown first" if known else "; a column first would tell two orders apart"
            raise UsageError(f"{table.place(row)}: {key!r} was judged before{order}")
        mine[place] = label or "failed"
    return found


def _as_codes(found: Mapping[str, list[Label | None]], ids: Sequence[str]) -> Codes:
    width = len(next(iter(found.values())))
    columns = [codes(found[key][place] if key in found else None for key in ids) for place in range(width)]
    return columns[0] if width == 1 else np.stack(columns, axis=1)
