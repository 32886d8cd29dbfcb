"""From files to samples: judgments with people's scores inside, or any two columns, joined by id.

What a file says of each id is `FileRows`, whatever it is: judgments, judged conversations, human-scored rows or a
table. Two of them, people's and a judge's, make a `Sample` of scores or `Preferences`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, zip_longest
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from critic import human_scored, jsonl, tables
from critic.errors import UsageError
from critic.records import NO_VERDICT, Judgment, Response, to_ten
from critic.stats.arrays import Floats
from critic.stats.estimate import FEWEST_TO_DECIDE
from critic.stats.verdicts import Codes, Label, both_orders, codes
from eval_agreement.items import (
    COLUMN_SUFFIX,
    OVERALL,
    AuditItem,
    Kind,
    by_protocol,
    file_kind,
    of_response,
    read_items,
)
from eval_agreement.preferences import PEOPLE, Preferences
from eval_agreement.sample import RatedSample, own_groups, scores
from eval_agreement.tables import SCALE, SEVERAL_RATERS, ColumnTable, Scale, Source, column_notes, forget, table_of

V = TypeVar("V")

LABELS: dict[Kind, dict[str, Label]] = {
    "preference": {"a": "a", "b": "b", "tie": "tie"},
    "yes or no": {"yes": "a", "no": "b"},
}
"""What a cell may say, in small letters, and the label it stands for."""

COLUMNS: dict[Kind, str] = {"score": "score", "preference": "preference", "yes or no": "verdict"}
"""The column that holds it, unless the user names another."""

_NO_REFERENCE = frozenset({"no_reference"})
"""Rows that lack a reference are audited as well: whoever judged them did without."""

_CHOSEN = {"protocol": ("protocol", "condition", "judging", "turn"), "criterion": ("criterion",)}
"""Of verdicts on conversations, and of those by several criteria, what people may have chosen some of to judge."""


class FileRows(Struct, frozen=True, kw_only=True):
    """What one file says of each id: every column has a row an id.

    `score` is on 1..10. Of preferences and of yes and no `labels` are a judge's verdicts (see `AuditItem`). `raters`
    hold who gave which score, or label; `lengths` the characters of each answer, or of two. What is not known is None.
    """

    ids: list[str]
    score: list[float | None]
    labels: list[tuple[Label | None, ...]]
    raters: list[dict[str, Any]]
    group: list[str | None]
    parts: dict[str, list[str | None]]
    lengths: list[list[float | None]]
    probability: list[float | None]
    responses: list[Response | None]
    judgments: list[Judgment | None]
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of_items(cls, items: Sequence[AuditItem]) -> "FileRows":
        """What people say of items, and what is known of these."""

        def column(name: str) -> list[Any]:
            return [getattr(item, name) for item in items]

        parts, lengths = column("parts"), column("lengths")
        return cls(
            ids=column("id"),
            score=[human.score if human else None for human in column("human")],
            labels=column("labels"),
            raters=[human.raters if human else {} for human in column("human")],
            group=column("group"),
            parts={name: [one[name] for one in parts] for name in (parts[0] if parts else ())},
            lengths=[list(side) for side in zip(*lengths, strict=True)],
            probability=column("probability"),
            responses=column("response"),
            judgments=column("judgment"),
        )

    @classmethod
    def of_table(cls, table: ColumnTable, keys: Sequence[str], sides: Iterable[str] = ("",)) -> "FileRows":
        """What a table says of each id, but for scores and labels."""
        ids = list(dict.fromkeys(keys))
        return cls(
            ids=ids,
            score=[None] * len(ids),
            labels=[()] * len(ids),
            raters=[{}] * len(ids),
            group=table.texts_of(keys, "group"),
            parts=table.parts_of(keys),
            lengths=[table.lengths_of(keys, side) for side in sides],
            probability=table.probabilities_of(keys),
            responses=table.responses_of(keys) or [None] * len(ids),
            judgments=[None] * len(ids),
        )


def kind_of(source: Source) -> Kind:
    """What people say in a file: scores, preferences, or yes and no; by its column, first value or first verdicts.

    Raises UsageError for judgments that hold several kinds, unless a protocol is named.
    """
    kind = file_kind(source)
    if kind == "judgments":
        kinds = {str(item.parts.get("protocol")): item.kind for item in read_items(source)}
        if len(set(kinds.values())) > 1:
            example = f"{source.path}:{min(kinds)}"
            raise UsageError(
                f"{source.path}: verdicts of several kinds ({', '.join(kinds)}); name one, as in {example}"
            )
        return next(iter(kinds.values()))
    if kind != "table":
        return "score"
    table = table_of(source)
    if source.column is None:
        named = [kind for kind in LABELS if COLUMNS[kind] in table.columns]
        return named[0] if named and "score" not in table.columns else "score"
    words = (text.strip().lower() for text in table.texts(source.column) if text and not tables.is_empty(text))
    word = next(words, "")
    return next((kind for kind, labels in LABELS.items() if word in labels), "score")


def judge_in(path: Path) -> str:
    """Who judged the answers in a file of judgments."""
    _, first = next(jsonl.read(path, Judgment))
    return first.judge


def of_judgments(name: str, path: Path) -> list[RatedSample]:
    """The judgments of one judge, people's scores inside; behind them, as samples NAME/CRITERION, its scores by each of
    several criteria that people scored as well. A column of another judge's scores that has the judge's name stands
    under its whole one, NAME_score_1_10.

    Raises UsageError naming file and line for an id that comes twice, a second judge or a score outside 1..10,
    and naming the file when people scored none of the answers.
    """
    kind = file_kind(Source(path))
    if kind != "judgments" and path.is_file():
        what = "human-scored rows" if kind == "human-scored rows" else "a table"
        raise UsageError(f"{path}: {what}, no judgments of critic judge; give --human FILE --judge NAME=FILE[:COLUMN]")
    by_criterion: dict[str, list[AuditItem]] = {}
    for item in read_items(Source(path)):
        by_criterion.setdefault(item.parts.get("criterion") or OVERALL, []).append(item)
    judge, samples = judge_in(path), []
    for criterion, items in by_criterion.items():
        rows = FileRows.of_items(items)
        rows.parts.pop("criterion", None)
        judges = {judge: scores([item.score for item in items]), **_other_judges(items, judge)}
        by = None if criterion == OVERALL else criterion
        samples.append(replace(_sample(f"{name}/{by}" if by else name, rows, judges), criterion=by))
    if np.isnan(samples[0].human).all():
        raise UsageError(_NO_PEOPLE.format(path))
    return [sample for sample in samples if not np.isnan(sample.human).all()]


_NO_PEOPLE = "{}: no people's verdicts (sample.human); give --human FILE --judge NAME=FILE"


def _other_judges(items: Sequence[AuditItem], judge: str) -> dict[str, Floats]:
    """The scores of other judges that the records hold, by name."""
    names = sorted({name for item in items for name in item.others})
    return {
        f"{name}{COLUMN_SUFFIX}" if name == judge else name: scores([item.others.get(name) for item in items])
        for name in names
    }


def _sample(name: str, rows: FileRows, judges: Mapping[str, Floats]) -> RatedSample:
    length, probability = scores(rows.lengths[0]), scores(rows.probability)
    return RatedSample(
        name=name,
        ids=rows.ids,
        human=scores(rows.score),
        judges=dict(judges),
        group=rows.group,
        raters=rows.raters if any(rows.raters) else [],
        parts=rows.parts,
        length=None if np.isnan(length).all() else length,
        probability=None if np.isnan(probability).all() else probability,
        responses=rows.responses if any(rows.responses) else [],
        judgments=rows.judgments if any(rows.judgments) else [],
    )


def of_tables(
    human: Source, judges: Mapping[str, Source], scale: Scale = SCALE, judge_scale: Scale | None = None
) -> RatedSample:
    """People's scores and judges' scores out of different files or columns, joined by id.

    People: human-scored rows, judgments with people's scores inside, their own grades of conversations in the judges'
    format, or a table `id, score[, rater][, group][, task, category, lang, system, turn][, length | text]`, a line an
    answer and rater. Judges: judgments of answers or conversations, or a table `id, score`. A judge without a score for
    an answer failed on it; answers that only the first judge scored stay, without a human score. A file without ids can
    be joined with other columns of itself only. Of judged conversations only protocols that people graded count, and
    they tell groups and parts where people's table does not.

    Raises UsageError when no id is in both, when an id comes twice with different scores, and for scores off the
    scale, naming file and line.
    """
    people = _people(human, scale)
    judge_scale = scale if judge_scale is None else judge_scale
    given: dict[str, FileRows] = {}
    for name, source in judges.items():
        given[name] = _judged(source, judge_scale, name, people.ids)
        _check_common(human, people.ids, source, given[name].ids)
    if people.score.count(None) == len(people.ids):
        raise UsageError(f"{human.path}: no answer has a score; an audit needs people's")
    first = next(iter(given.values()))
    settled = set(people.ids)
    if file_kind(human) == "human-scored rows":  # those that people scored, but that cannot be used
        settled |= {str(row.get("id")) for _, row in jsonl.read(human.path, dict[str, Any])}
    rows = _joined(people, first, people.ids + [key for key in first.ids if key not in settled])
    rows = replace(rows, judgments=_at(first.ids, first.judgments, rows.ids))
    scored = {name: scores(_at(of.ids, of.score, rows.ids)) for name, of in given.items()}
    sample = _sample(human.path.stem, rows, scored)
    notes = _notes(sample, people, given, scale, judge_scale)
    notes += _table_notes([human, *judges.values()], "score", not sample.ungrouped)
    forget()  # from here on there are only samples
    return replace(sample, notes=notes)


def _joined(people: FileRows, judge: FileRows, ids: list[str]) -> FileRows:
    """People's rows, and behind them the others of `ids`, which only the judge has; with the groups, parts, lengths and
    texts that the judge's file says of them where people's does not."""
    more: list[Any] = [None] * (len(ids) - len(people.ids))

    def filled(mine: Sequence[V | None], theirs: Sequence[V | None]) -> list[V | None]:
        if not any(one is not None for one in theirs):
            return [*mine, *more]
        others = _at(judge.ids, theirs, ids)
        return [other if own is None else own for own, other in zip([*mine, *more], others, strict=True)]

    unknown: list[str | None] = [None] * len(people.ids)
    names = dict.fromkeys([*people.parts, *judge.parts])
    lengths = zip_longest(people.lengths, judge.lengths[: len(people.lengths)], fillvalue=())
    return replace(
        people,
        ids=ids,
        score=people.score + more,
        raters=people.raters + [{} for _ in more],
        group=filled(people.group, judge.group),
        parts={name: filled(people.parts.get(name, unknown), judge.parts.get(name, ())) for name in names},
        lengths=[filled(mine, theirs) for mine, theirs in lengths],
        probability=people.probability + more,
        responses=filled(people.responses, () if any(people.responses) else judge.responses),
    )


def _at(known: Sequence[str], values: Sequence[V], ids: Sequence[str]) -> list[V | None]:
    """The value of each of `ids`, None of one that is not known."""
    if known == ids:  # as of two columns of one table
        return list(values)
    by_id = dict(zip(known, values, strict=True))
    return [by_id.get(key) for key in ids]


def _notes(
    sample: RatedSample, people: FileRows, given: Mapping[str, FileRows], scale: Scale, judge_scale: Scale
) -> list[str]:
    """What the files leave out, what the join leaves without a partner, and what points and lengths are, in words."""
    notes = [*people.notes, *(note for other in given.values() for note in other.notes)]
    for name, other in given.items():
        notes += _unmatched(people.ids, other.ids, sample.ids, "answers", name, "they count as failed")
    n = len(people.ids)
    short = 0 if sample.length is None else int(np.isnan(sample.length[:n]).sum())
    if 0 < short < n:
        notes.append(f"{short} of {n} answers have no length: what length does is not measured")
    if sample.weight is not None:
        notes.append(
            "each label stands for 1 / label_probability rows: agreement, differences, the constant judge and "
            "corrected means are those of all rows, bias, calibration and what raters say of each other those of the "
            "labelled ones"
        )
    scales = {"": scale} if judge_scale == scale else {"people's ": scale, "judges' ": judge_scale}
    for whose, (low, high) in scales.items():
        if (low, high) != SCALE:
            factor = (SCALE[1] - SCALE[0]) / (high - low)
            notes.append(f"{whose}scores on {low:g}..{high:g} are moved onto 1..10: a point there is {factor:.3g} here")
    return notes


def _unmatched(
    people: Sequence[str], judged: Sequence[str], kept: Sequence[str], things: str, judge: str, then: str
) -> list[str]:
    """What stands in one file only, with the first id of each: ids that differ in a space or a letter show there."""
    notes, there, here = [], set(judged), set(kept)
    if missing := [key for key in people if key not in there]:
        count = f"{len(missing)} of {len(people)} {things}"
        notes.append(f"{count} are not in the file of {judge}, {missing[0]!r} the first: {then}")
    if unknown := [key for key in judged if key not in here]:
        notes.append(f"{len(unknown)} {things} only in the file of {judge} are left out, {unknown[0]!r} the first")
    return notes


def _check_common(human: Source, people: Sequence[str], judge: Source, judged: Sequence[str]) -> None:
    """Raises UsageError where the two have no id in common."""
    if not set(people).isdisjoint(judged):
        return
    for source in (human, judge):
        if file_kind(source) == "table" and human.path != judge.path and "id" not in table_of(source).columns:
            columns = ", ".join(table_of(source).columns)
            raise UsageError(f"{source.path}: no column 'id' to join by; there are {columns} (--id names it)")
    raise UsageError(
        f"{human.path} and {judge.path} have no id in common: the first holds {people[0]!r}, the second {judged[0]!r}"
    )


def _table_notes(sources: Sequence[Source], column: str, grouped: bool) -> list[str]:
    """`column_notes` of files that are nothing but tables."""
    held = {source.path for source in sources if file_kind(source) != "table"}
    return column_notes([source for source in sources if source.path not in held], column, grouped)


def _people(source: Source, scale: Scale) -> FileRows:
    """People's scores."""
    kind = file_kind(source)
    if kind == "judgments" and by_protocol(source.path):
        rows = _judged(source, scale)
        return replace(rows, judgments=[None] * len(rows.ids))
    if kind == "judgments":
        items = [item for item in read_items(source) if item.parts.get("criterion", OVERALL) == OVERALL]
        rows = FileRows.of_items(items)
        if rows.score.count(None) == len(items):
            raise UsageError(_NO_PEOPLE.format(source.path))
        rows.parts.pop("criterion", None)
        return replace(rows, judgments=[None] * len(items))
    return _people_in_rows(source.path) if kind == "human-scored rows" else _people_in_table(source, scale)


def _people_in_rows(path: Path) -> FileRows:
    left_out = Counter[str]()
    rows = FileRows.of_items([of_response(one) for _, _, one in human_scored.walk(path, left_out, _NO_REFERENCE)])
    if not rows.ids:
        raise UsageError(f"{path}: no usable row: {', '.join(left_out)}")
    return replace(rows, notes=[f"{path}: {count} rows left out: {reason}" for reason, count in left_out.items()])


def _people_in_table(source: Source, scale: Scale) -> FileRows:
    table, column = table_of(source), source.column or "score"
    keys = table.keys()
    values, notes = _scores_in(table, column, scale)
    rated, repeated = _by_rater(table, keys, values, column)
    raters = [{who: score for who, score in one.items() if score is not None} for one in rated]
    rows = FileRows.of_table(table, keys)
    return replace(
        rows,
        score=[sum(one.values()) / len(one) if one else None for one in raters],
        raters=raters if "rater" in table.columns else rows.raters,
        notes=notes + repeated,
    )


def _judged(source: Source, scale: Scale, judge: str = "", people: Sequence[str] = ()) -> FileRows:
    """A judge's scores; of verdicts on conversations, and by criteria, those like the ones that `people` gave."""
    if file_kind(source) == "judgments":
        items = [item for item in read_items(source) if item.kind == "score"]
        if not items:
            raise UsageError(f"{source.path}: no scores; it holds other verdicts")
        items, left_out = _graded(items, set(people), source.path.stem)
        unknown: list[Any] = [None] * len(items)
        rows = replace(FileRows.of_items(items), raters=[{}] * len(items), responses=unknown, notes=left_out)
        return replace(rows, score=[item.score for item in items])
    table, column = table_of(source), source.column or "score"
    keys, several = table.keys(), "rater" in table.columns
    given, notes = _scores_in(table, column, scale, judge=True)
    more = f"; the judge {judge} has several raters; give each a file of its own" if several else ""
    score = table.of_keys(keys, given, column, more)
    if not several:
        notes += _repeated(table, len(keys) - len(score))
    return replace(FileRows.of_table(table, keys), score=list(score.values()), notes=notes)


def _graded(items: Sequence[AuditItem], people: set[str], judge: str) -> tuple[list[AuditItem], list[str]]:
    """The verdicts by protocols, conditions or criteria by which people gave some, if they gave any, and what is left
    out: what nobody meant to label is no answer without a label."""
    kept, notes = list(items), []
    for part in next((parts for part, parts in _CHOSEN.items() if part in items[0].parts), ()):
        theirs = {item.parts[part] for item in kept if item.id in people}
        left = sorted({str(item.parts[part]) for item in kept if item.parts[part] not in theirs})
        if theirs and left:
            notes.append(f"verdicts of {judge} by {part}s that people did not use are left out: {', '.join(left)}")
            kept = [item for item in kept if item.parts[part] in theirs]
    return kept, notes


def _scores_in(
    table: ColumnTable, column: str, scale: Scale, *, judge: bool = False
) -> tuple[list[float | None], list[str]]:
    """A column of scores, of people or of a judge, on 1..10, None where empty, and what to say of it. A judge's -1 is
    no verdict where it is off the scale. Raises UsageError with the line for any other score off the scale."""
    (low, high), option = scale, "--judge-scale" if judge else "--scale"
    values, notes = table.numbers(column, high), table.empty_notes(column)
    if judge and not low <= NO_VERDICT <= high and (count := values.count(NO_VERDICT)):
        notes.append(
            f"{table.path}: {count} cells of {column} are {NO_VERDICT:g}, which FastChat writes where it found no "
            "verdict; they count as failed"
        )
        values = [None if score == NO_VERDICT else score for score in values]
    table.check(column, values, low, high, f"is outside {low:g}..{high:g} (see {option})")
    highest = max((score for score in values if score is not None), default=high)
    if scale == SCALE and len(values) >= FEWEST_TO_DECIDE and highest <= high / 2:
        most = f"no {column} is above {highest:g}, and they are taken to be on 1..10"
        notes.insert(0, f"{table.path}: {most}; if they are not, give their scale with {option}")
    return [None if score is None else to_ten(score, low, high) for score in values], notes


def _by_rater(
    table: ColumnTable, keys: Sequence[str], values: Sequence[V | None], name: str
) -> tuple[list[dict[str, V | None]], list[str]]:
    """What each rater said of each id, all being PEOPLE where there is no column rater, and what to say of repeated
    rows."""
    if "rater" in table.columns:
        by_id: dict[str, dict[str, V | None]] = {key: {} for key in keys}
        pairs = list(zip(keys, table.raters(), strict=True))
        for (key, rater), value in table.of_keys(pairs, values, name).items():
            by_id[key][rater] = value
        rated = list(by_id.values())
    else:
        rated = [{PEOPLE: value} for value in table.of_keys(keys, values, name, SEVERAL_RATERS).values()]
    return rated, _repeated(table, len(keys) - sum(map(len, rated)))


def _repeated(table: ColumnTable, count: int) -> list[str]:
    return [f"{table.path}: {count} rows repeat another row and count once"] if count else []


def of_labels(human: Source, judges: Mapping[str, Source], kind: Kind) -> Preferences:
    """People's and judges' verdicts of one kind, out of different files or columns, joined by id.

    People: `id, preference[, rater][, group][, task, category, lang, system, turn][, length_a, length_b | response_a,
    response_b]`, a line a pair of answers and rater. Judges: `id, preference[, first]`, where `first` says which
    answer was shown first (a or b). A preference is a, b or tie; an empty one is a failed judgment. A judge that lacks
    a pair was not asked. Of yes and no the column is `verdict`. Both may be judged conversations as well, and where
    people's table has no groups, parts or lengths, these are those of the first judge's file.

    Raises UsageError when no id is in both, where some labelled items lack the label_probability that others have, and
    for anything else in a cell, naming file and line.
    """
    people = _people_labels(human, kind)
    given = {name: _judge_labels(source, kind) for name, source in judges.items()}
    if not any(label for rated in people.raters for label in rated.values()):
        nobody = {"preference": "no pair has a preference"}.get(kind, "nothing has a yes or no")
        raise UsageError(f"{human.path}: {nobody}; an audit needs people's")
    things = "items" if kind == "yes or no" else "pairs"
    notes = [*people.notes, *(note for rows in given.values() for note in rows.notes)]
    for name, rows in given.items():
        _check_common(human, people.ids, judges[name], rows.ids)
        notes += _unmatched(people.ids, rows.ids, people.ids, things, name, "it was not asked about them")
    people = _joined(people, next(iter(given.values())), people.ids)
    notes += _table_notes([human, *judges.values()], COLUMNS[kind], any(people.group))
    weight = _weight(human, people)
    try:
        return _preferences(people, given, weight, notes, yes_or_no=kind == "yes or no")
    except ValueError as error:
        raise UsageError(f"{human.path}: {error}") from None


def _preferences(
    people: FileRows, given: Mapping[str, FileRows], weight: Floats | None, notes: list[str], *, yes_or_no: bool
) -> Preferences:
    raters = dict.fromkeys(rater for rated in people.raters for rater in rated)
    parts = {part: [value or "unknown" for value in values] for part, values in people.parts.items()}
    lengths = [scores(side) for side in people.lengths]
    length_a, length_b = lengths if len(lengths) == 2 and not np.isnan(lengths).any() else (None, None)
    return Preferences(
        ids=people.ids,
        group=own_groups(people.group, people.ids),
        people={rater: codes(rated.get(rater) for rated in people.raters) for rater in raters},
        judges={name: _as_codes(rows, people.ids) for name, rows in given.items()},
        parts={part: values for part, values in parts.items() if len(set(values)) > 1},
        length_a=length_a,
        length_b=length_b,
        yes_or_no=yes_or_no,
        weight=weight,
        notes=notes,
    )


def _weight(source: Source, people: FileRows) -> Floats | None:
    """As `Preferences` has it. Raises UsageError where it is known of some labelled items only."""
    probability = scores(people.probability)
    if np.isnan(probability).all():
        return None
    labelled = np.array([any(rated.values()) for rated in people.raters], dtype=bool)
    if (unknown := np.isnan(probability) & labelled).any():
        lacks = people.ids[int(np.argmax(unknown))]
        raise UsageError(f"{source.path}: label_probability is given for some verdicts, but not for that on {lacks!r}")
    return np.where(labelled, 1 / probability, np.nan)


def _people_labels(source: Source, kind: Kind) -> FileRows:
    held, column = file_kind(source), source.column or COLUMNS[kind]
    if held == "judgments" and not by_protocol(source.path):
        items = _items_of_kind(source, kind)
        return replace(FileRows.of_items(items), raters=[{PEOPLE: item.human_label} for item in items])
    if held == "judgments":
        # People's own verdicts in the judges' format; what they did not say is no failure of theirs.
        rows = FileRows.of_items(_items_of_kind(source, kind))
        names: list[Label | None] = ["a", "tie", "b", None, None]
        return replace(rows, raters=[{PEOPLE: names[code]} for code in both_orders(_both(rows.labels)).tolist()])
    table = table_of(source)
    keys = table.keys()
    rated, repeated = _by_rater(table, keys, _words_in(table, column, kind), COLUMNS[kind])
    raters = [{who: word and LABELS[kind][word] for who, word in one.items()} for one in rated]
    notes = table.empty_notes(column) + repeated
    return replace(FileRows.of_table(table, keys, ("_a", "_b")), raters=raters, notes=notes)


def _judge_labels(source: Source, kind: Kind) -> FileRows:
    """A judge's verdicts with a shown first and with b shown first; a single one where the order is not known. Where
    there is a column `rater`, the judge's verdict may stand beside each rater's."""
    if file_kind(source) == "judgments":
        return FileRows.of_items(_items_of_kind(source, kind))
    table, column = table_of(source), source.column or COLUMNS[kind]
    keys, words, presentation_orders = table.keys(), _words_in(table, column, kind), _firsts(table)
    more = "" if "first" in table.columns else "; a column first would tell two orders apart"
    more = "; beside several raters a judge has one verdict on each id" if "rater" in table.columns else more
    sides = []
    for side in ("a", "b") if "first" in table.columns else ("",):
        shown = f"{column} ({side} shown first)" if side else column
        there = [first == side for first in presentation_orders]
        asked = set(compress(keys, there))
        said = table.of_keys(
            keys, [word if here else None for word, here in zip(words, there, strict=True)], shown, more
        )
        sides.append([LABELS[kind].get(word or "", "failed") if key in asked else None for key, word in said.items()])
    rows = FileRows.of_table(table, keys, ("_a", "_b"))
    return replace(rows, labels=list(zip(*sides, strict=True)), notes=table.empty_notes(column))


def _firsts(table: ColumnTable) -> list[str]:
    """Which of two answers each row says was shown first: a or b; empty where there is no such column."""
    if "first" not in table.columns:
        return [""] * len(table.line)
    texts = table.texts("first")
    for row, first in enumerate(texts):
        if (first or "").lower() not in ("a", "b"):
            raise UsageError(f"{table.place(row)}: first {first!r} is neither a nor b")
    return [(first or "").lower() for first in texts]


def _items_of_kind(source: Source, kind: Kind) -> list[AuditItem]:
    found = [item for item in read_items(source) if item.kind == kind]
    if not found:
        raise UsageError(f"{source.path}: no verdict is a {kind}")
    return found


def _words_in(table: ColumnTable, column: str, kind: Kind) -> list[str | None]:
    """What the cells of a column say, in small letters; None where they are empty."""
    table.column(column)
    words: list[str | None] = []
    for row, text in enumerate(table.texts(column)):
        word = text.strip().lower() if text else ""
        # "none" may mean that neither answer is better: whoever wrote it has to say a, b, tie, or leave it empty.
        if word not in LABELS[kind] and (not tables.is_empty(text) or word == "none"):
            raise UsageError(f"{table.place(row)}: {column} {text!r} is none of {', '.join(LABELS[kind])}")
        words.append(word if word in LABELS[kind] else None)
    return words


def _as_codes(judge: FileRows, ids: Sequence[str]) -> Codes:
    """Shape (n, 2): a shown first, b shown first; shape (n,) where a verdict was given without saying which it was."""
    both = _both([labels or () for labels in _at(judge.ids, judge.labels, ids)])
    ordered = all(len(labels) == 2 or labels[0] == "failed" for labels in judge.labels)
    return both if ordered else both_orders(both)


def _both(given: Iterable[Sequence[Label | None]]) -> Codes:
    """Shape (n, 2), of one or two verdicts each, or none."""
    rows = [[*labels, None, None][:2] for labels in given]
    return np.stack([codes(row[side] for row in rows) for side in range(2)], axis=1)
