"""From files to samples: judgments with people's verdicts inside, or any two columns, joined by id.

A sample is of scores, or of labels: preferences between two answers (a, b, tie), or verdicts of yes and no.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from critic import human_scored, jsonl
from critic.counting.columns import Column, Reread, as_column, as_ratings
from critic.counting.resampling import Floats
from critic.counting.verdicts import Codes, Label, both_orders, codes
from critic.errors import UsageError
from critic.records import Judgment
from eval_agreement import tables
from eval_agreement.items import (
    COLUMN_SUFFIX,
    OVERALL,
    Kind,
    SampleRows,
    check_common,
    file_kind,
    items_of,
    of_response,
    read_items,
)
from eval_agreement.preferences import PEOPLE, Preferences
from eval_agreement.sample import Sample, scores
from eval_agreement.tables import SCALE, ColumnTable, Scale, Source, forget, places, read_table

_HELD = ("judgments", "judged conversations")

LABELS: dict[Kind, dict[str, Label]] = {
    "preference": {"a": "a", "b": "b", "tie": "tie"},
    "yes or no": {"yes": "a", "no": "b"},
}
"""What a cell may say, in small letters, and the label it stands for."""

COLUMNS: dict[Kind, str] = {"preference": "preference", "yes or no": "verdict"}
"""The column that holds it, unless the user names another."""


def kind_of(source: Source) -> Kind:
    """What people say in a file: scores, preferences, or yes and no; by its column, first value or first verdicts.

    Raises UsageError for judged conversations that hold several kinds, unless a protocol is named.
    """
    held = file_kind(source)
    if held == "judged conversations":
        found = {str(item.parts["protocol"]): item.kind for item in read_items(source)}
        if len(set(found.values())) > 1:
            example = f"{source.path}:{min(found)}"
            raise UsageError(
                f"{source.path}: verdicts of several kinds ({', '.join(found)}); name one, as in {example}"
            )
        return next(iter(found.values()))
    if held == "judgments":  # all of which are in one form
        _, first = next(jsonl.read(source.path, Judgment))
        return next((item.kind for item in items_of(first)), "score")
    if held != "table":
        return "score"
    table = read_table(source.path)
    if source.column is None:
        named = [kind for kind, column in COLUMNS.items() if column in table.columns]
        return named[0] if named and "score" not in table.columns else "score"
    text = next((text.lower() for text in table.texts(source.column) if text), "")
    return next((kind for kind, labels in LABELS.items() if text in labels), "score")


def judge_in(path: Path) -> str:
    """Who judged the answers in a file of judgments."""
    _, first = next(jsonl.read(path, Judgment))
    return first.judge


def of_judgments(name: str, path: Path, *, texts: bool = True) -> list[Sample]:
    """The judgments of one judge, people's scores inside, and with `texts` the responses; behind them, as samples
    NAME/CRITERION, its scores by each of several criteria that people scored as well. A column of another judge's
    scores that has the judge's name stands under its whole one, NAME_score_1_10.

    Raises UsageError naming file and line for an id that comes twice, a second judge or a score outside 1..10,
    and naming the file when people scored none of the answers.
    """
    if file_kind(Source(path)) == "judged conversations":
        raise UsageError(f"{path}: judged conversations hold no people's verdicts; give --human FILE --judge NAME=FILE")
    found: dict[str, SampleRows] = {}
    for item in read_items(Source(path)):
        found.setdefault(item.parts.get("criterion") or OVERALL, SampleRows(texts)).add(item)
    judge, samples = judge_in(path), []
    for criterion, rows in found.items():
        sample = rows.sample(name if criterion == OVERALL else f"{name}/{criterion}", Source(path))
        parts = {part: values for part, values in sample.parts.items() if part != "criterion"}
        others = {
            f"{other}{COLUMN_SUFFIX}" if other == judge else other: scored for other, scored in sample.judges.items()
        }
        by = None if criterion == OVERALL else criterion
        judges = {judge: np.asarray(rows.score), **others}
        samples.append(replace(sample, parts=parts, judges=judges, criterion=by))
    if np.isnan(samples[0].human).all():
        raise UsageError(f"{path}: no answer has people's scores (response.human); an audit needs them")
    return [sample for sample in samples if not np.isnan(sample.human).all()]


def of_tables(
    human: Source,
    judges: Mapping[str, Source],
    scale: Scale = SCALE,
    judge_scale: Scale | None = None,
    *,
    texts: bool = False,
) -> Sample:
    """People's scores and judges' scores out of different files or columns, joined by id.

    People: human-scored rows, judgments with people's scores inside, their own grades of conversations in the judges'
    format, or a table `id, score[, rater][, group][, task, category, lang, system, turn][, length | text]`, a line an
    answer and rater. Judges: judgments of answers or conversations, or a table `id, score`. A judge without a score for
    an answer failed on it; answers that only the first judge scored stay, without a human score. A file without ids can
    be joined with other columns of itself only. Of judged conversations only protocols that people graded count, and
    they tell groups and parts where people's table does not. Without `texts` responses are read where they are shown.

    Raises UsageError when no id is in both, when an id comes twice with different scores, and for scores off the
    scale, naming file and line.
    """
    people = _people(human, scale, texts)
    judge_scale = scale if judge_scale is None else judge_scale
    given = {name: _graded(_scored(source, judge_scale), people) for name, source in judges.items()}
    for name, other in given.items():
        check_common(human, people.ids, judges[name], other.ids)
        if other.raters:
            raise UsageError(f"{judges[name].path}: the judge {name} has several raters; give each a file of its own")
    if np.isnan(people.human).all():
        raise UsageError(f"{human.path}: no answer has a score; an audit needs people's")
    forget()  # from here on there are only samples
    first = next(iter(given.values()))
    people = _described(people, first)
    unsettled = places(people.ids, first.ids) < 0
    if file_kind(human) == "human-scored rows":  # those that people scored, but that cannot be used
        unusable = {str(row.get("id")) for _, row in jsonl.read(human.path, dict[str, Any])}
        unsettled &= np.array([key not in unusable for key in first.ids])
    alone = first.rows(unsettled)
    more, count = len(alone.ids), len(people.ids)
    ids, own = as_column(people.ids) + alone.ids, np.arange(count + more)
    own[count:] = -1
    unknown: list[str | None] = [None] * more
    lengths = np.concatenate([sample.length for sample in (people, alone) if sample.length is not None])
    return Sample(
        name=human.path.stem,
        ids=ids,
        human=np.concatenate([people.human, np.full(len(alone.ids), np.nan)]),
        judges={name: _scores_by_id(other, ids) for name, other in given.items()},
        group=ids if people.group is people.ids and alone.group is alone.ids else as_column(people.group) + alone.group,
        raters=as_ratings(people.raters) + [{} for _ in range(more)] if people.raters else [],
        parts={part: as_column(values) + alone.parts.get(part, unknown) for part, values in people.parts.items()},
        length=None if np.isnan(lengths).all() else lengths,
        probability=None
        if people.probability is None
        else np.concatenate([people.probability, np.full(len(alone.ids), np.nan)]),
        responses=_at(people.responses, own) if people.responses else [],
        judgments=_at(first.judgments, places(first.ids, ids)) if first.judgments else [],
        records=first.records and first.records.rows(places(first.ids, ids)),
        notes=_notes(people, given, ids, scale),
    )


def _notes(people: Sample, given: Mapping[str, Sample], ids: Sequence[str], scale: Scale) -> list[str]:
    """What the files leave out, what the join leaves without a partner, and what points and lengths are, in words."""
    notes = [*people.notes, *(note for other in given.values() for note in other.notes)]
    n = len(people.ids)
    for name, other in given.items():
        if missing := int((places(other.ids, people.ids) < 0).sum()):
            notes.append(f"{missing} of {n} answers are not in the file of {name}: they count as failed")
        if unknown := int((places(ids, other.ids) < 0).sum()):
            notes.append(f"{unknown} answers that only {name} scored are left out")
    short = n if people.length is None else int(np.isnan(people.length).sum())
    if 0 < short < n:
        notes.append(f"{short} of {n} answers have no length: what length does is not measured")
    if people.weight is not None:
        notes.append(
            "each label stands for 1 / label_probability rows: agreement, differences, the constant judge and "
            "corrected means are those of all rows, bias, calibration and what raters say of each other those of the "
            "labelled ones"
        )
    low, high = scale
    if scale != SCALE:
        factor = (SCALE[1] - SCALE[0]) / (high - low)
        notes.append(f"scores on {low:g}..{high:g} are moved onto 1..10: a point there is {factor:.3g} here")
    return notes


def _at(values: Any, place: Any) -> Any:
    """The values at some places, None for those below 0."""
    if isinstance(values, Reread):
        return values.rows(place)
    if isinstance(values, Column):
        return values.at(place)
    return [None if row < 0 else values[row] for row in place.tolist()]


def _scores_by_id(judge: Sample, ids: Sequence[str]) -> Floats:
    """A judge's scores of `ids`, NaN where it has none."""
    place = places(judge.ids, ids)
    return np.where(place < 0, np.nan, judge.human[place])


def _people(source: Source, scale: Scale, texts: bool) -> Sample:
    path = source.path
    kind = file_kind(source)
    if kind == "judgments":
        sample = of_judgments(path.stem, path, texts=texts)[0]
        if not texts and sample.records:  # read where they are shown
            answers = sample.records.of(lambda one: one.response if isinstance(one, Judgment) else None)
            sample = replace(sample, responses=answers)
        return replace(sample, judges={}, judgments=[], records=None)
    if kind == "judged conversations":
        return replace(_scored(source, scale), judgments=[], records=None)
    if kind == "human-scored rows":
        left_out, rows = Counter[str](), SampleRows(texts)
        for _, _, response in human_scored.walk(path, left_out):
            rows.add(of_response(response))
        notes = [f"{path}: {count} rows left out: {reason}" for reason, count in left_out.items()]
        sample = rows.sample(path.stem)
        if not sample.ids:
            raise UsageError(f"{path}: no usable row: {', '.join(left_out)}")
        if not texts:
            usable = Reread(lambda: human_scored.walk(path, Counter()), np.arange(len(sample.ids)))
            sample = replace(sample, responses=usable.of(itemgetter(2)))
        return replace(sample, judges={}, notes=notes)
    return _of_table(read_table(path), source.column or "score", scale)


def _scored(source: Source, scale: Scale) -> Sample:
    """A judge's scores as a sample; they stand in `human`."""
    if file_kind(source) not in _HELD:
        return _of_table(read_table(source.path), source.column or "score", scale)
    rows = SampleRows(texts=False)
    for item in read_items(source):
        if item.kind == "score":
            rows.add(item)
    if not rows.score:
        raise UsageError(f"{source.path}: no scores; it holds other verdicts")
    sample = rows.sample(source.path.stem, source)
    return replace(sample, human=np.asarray(rows.score), judges={}, raters=[], responses=[])


_CHOSEN = {"protocol": ("protocol", "condition", "judging", "turn"), "criterion": ("criterion",)}
"""Of verdicts on conversations, and of those by several criteria, what people may have chosen some of to judge."""


def _chosen(judge: Sample) -> tuple[str, ...]:
    return next((parts for part, parts in _CHOSEN.items() if part in judge.parts), ())


def _graded(judge: Sample, people: Sample) -> Sample:
    """The verdicts by protocols, conditions or criteria by which people gave some, if they gave any: those that nobody
    meant to label are no answers without a label."""
    for part in _chosen(judge):
        values = as_column(judge.parts[part])
        theirs = {*values.rows(places(people.ids, judge.ids) >= 0).present()}
        left = sorted({str(value) for value in values.present() if value not in theirs})
        if theirs and left:
            notes = [f"verdicts of {judge.name} by {part}s that people did not use are left out: {', '.join(left)}"]
            judge = replace(judge.rows(values.each(theirs.__contains__, bool)), notes=[*judge.notes, *notes])
    return judge


def _described(people: Sample, judge: Sample) -> Sample:
    """`people` with the groups, parts and lengths of judged conversations, or of answers judged by several criteria,
    where their own table has none."""
    if not _chosen(judge):
        return people
    place = places(judge.ids, people.ids)
    known, given = people.length, judge.length
    if given is not None and (known is None or np.isnan(known).all()):
        known = np.where(place < 0, np.nan, given[place])
    return replace(
        people,
        group=_or_alone(as_column(judge.group).at(place), people.ids) if people.group == people.ids else people.group,
        parts=tables.filled(people.ids, people.parts, judge.ids, judge.parts),
        length=known,
    )


def _or_alone(groups: Sequence[str | None], ids: Sequence[str]) -> Sequence[str]:
    """Answers without a group are each one of their own."""
    if not any(as_column(groups).present()):
        return ids
    return Column(group or key for group, key in zip(groups, ids, strict=True))


def _of_table(table: ColumnTable, column: str, scale: Scale) -> Sample:
    ids = tables.keys_of(table)
    if "rater" not in table.columns and tables.all_differ(ids):
        return Sample(
            name=table.path.stem,
            ids=ids,
            human=table.numbers(column, scale),
            judges={},
            group=_or_alone(table.texts("group"), ids),
            parts=tables.parts_of(table),
            length=tables.lengths_of(table),
            probability=tables.probabilities_of(table),
        )

    def two_scores(score: float, before: float, rater: str | None) -> str:
        texts = [f"{one:g}" for one in (score, before)]
        who = f" by {rater}" if rater else " (several raters need a column rater)"
        return f"score {texts[0]}, but {texts[1]} before{who}"

    first, raters, repeated = tables.ratings_in(table, table.numbers(column, scale), two_scores)
    _, item, _, score = raters.entries()
    mean = np.bincount(item, score, len(first)) / np.maximum(raters.sizes, 1)
    return Sample(
        name=table.path.stem,
        ids=(own := ids.rows(first)),
        human=np.where(raters.sizes == 0, np.nan, mean),
        judges={},
        group=_or_alone(table.texts("group", first), own),
        raters=raters if "rater" in table.columns else [],
        parts=tables.parts_of(table, first),
        length=tables.lengths_of(table)[first],
        probability=tables.probabilities_of(table)[first],
        notes=[f"{table.path}: {repeated} rows repeat another row and count once"] if repeated else [],
    )


class _Labels(Struct, frozen=True, kw_only=True):
    """What a file says of each id, in its order: `by[id]` with a shown first and with b shown first, or once where the
    order is not known; people's verdicts by rater in `raters`. The other columns are as far as known."""

    by: dict[str, list[Label | None]]
    raters: dict[str, dict[str, Label | None]]
    group: Sequence[str | None]
    parts: dict[str, Sequence[str | None]]
    lengths: Floats
    probability: Floats | None = None


def of_labels(human: Source, judges: Mapping[str, Source], kind: Kind) -> Preferences:
    """People's and judges' verdicts of one kind, out of different files or columns, joined by id.

    People: `id, preference[, rater][, group][, task, category, lang, system, turn][, length_a, length_b | response_a,
    response_b]`, a line a pair of answers and rater. Judges: `id, preference[, first]`, where `first` says which
    answer was shown first (a or b). A preference is a, b or tie; an empty one is a failed judgment. A judge that lacks
    a pair was not asked. Of yes and no the column is `verdict`. Both may be judged conversations as well, and where
    people's table has no groups, parts or lengths, these are those of the first judge's conversations.

    Raises UsageError when no id is in both, where some labelled items lack the label_probability that others have, and
    for anything else in a cell, naming file and line.
    """
    people = _people_labels(human, kind)
    ids = list(people.by)
    given = {name: _judge_labels(source, kind) for name, source in judges.items()}
    if not any(label for rater in people.raters.values() for label in rater.values()):
        nobody = {"preference": "no pair has a preference"}.get(kind, "nothing has a yes or no")
        raise UsageError(f"{human.path}: {nobody}; an audit needs people's")
    for name, found in given.items():
        check_common(human, ids, judges[name], list(found.by))
    people = _described_labels(people, next(iter(given.values())))
    known = people.lengths.shape[1] == 2 and not np.isnan(people.lengths).any()
    parts = {part: [value or "unknown" for value in values] for part, values in people.parts.items()}
    try:
        return Preferences(
            ids=ids,
            group=[group or key for group, key in zip(people.group, ids, strict=True)],
            people={rater: codes(given.get(key) for key in ids) for rater, given in people.raters.items()},
            judges={name: _as_codes(found.by, ids) for name, found in given.items()},
            parts={part: values for part, values in parts.items() if len(set(values)) > 1},
            length_a=people.lengths[:, 0] if known else None,
            length_b=people.lengths[:, 1] if known else None,
            yes_or_no=kind == "yes or no",
            weight=_weight(human, people),
        )
    except ValueError as error:
        raise UsageError(f"{human.path}: {error}") from None


def _weight(source: Source, people: _Labels) -> Floats | None:
    """As `Preferences` has it. Raises UsageError where it is known of some labelled items only."""
    if people.probability is None or np.isnan(people.probability).all():
        return None
    said = np.array([any(given.get(key) for given in people.raters.values()) for key in people.by], dtype=bool)
    if np.isnan(people.probability[said]).any():
        raise UsageError(f"{source.path}: label_probability is known of some labelled items, but not of all")
    return 1 / people.probability


def _people_labels(source: Source, kind: Kind) -> _Labels:
    held = file_kind(source)
    if held in _HELD:
        found = _labels_of_items(source, kind)
        if held == "judgments":
            return found
        # People's own verdicts in the judges' format; what they did not say is no failure of theirs.
        both = both_orders(_both(found.by.values())).tolist()
        one: list[Label | None] = ["a", "tie", "b", None, None]
        return replace(found, raters={PEOPLE: {key: one[code] for key, code in zip(found.by, both, strict=True)}})
    table = read_table(source.path)
    name = {label: name for name, label in LABELS[kind].items()}

    def two_labels(now: Label | None, before: Label | None, _: str | None) -> str:
        return f"{COLUMNS[kind]} {name[now] if now else 'none'}, but {name[before] if before else 'none'} before"

    rows, raters = tables.by_rater(table, _cells(table, source.column or COLUMNS[kind], kind), two_labels)
    first = np.array(list(rows.values()))
    return _Labels(
        by={key: [] for key in rows},
        raters={rater or PEOPLE: theirs for rater, theirs in raters.items()},
        group=table.texts("group", first),
        parts=tables.parts_of(table, first),
        probability=tables.probabilities_of(table)[first],
        lengths=np.stack([tables.lengths_of(table, f"_{side}")[first] for side in "ab"], axis=1),
    )


def _judge_labels(source: Source, kind: Kind) -> _Labels:
    if file_kind(source) in _HELD:
        return _labels_of_items(source, kind)
    by = _orders(read_table(source.path), source.column or COLUMNS[kind], kind)
    return _Labels(by=by, raters={}, group=[None] * len(by), parts={}, lengths=np.full((len(by), 2), np.nan))


def _labels_of_items(source: Source, kind: Kind) -> _Labels:
    found = [item for item in read_items(source) if item.kind == kind]
    if not found:
        raise UsageError(f"{source.path}: no verdict is a {kind}")
    return _Labels(
        by={item.id: list(item.labels) for item in found},
        raters={PEOPLE: {item.id: item.human_label for item in found}},
        group=[item.group for item in found],
        parts={part: [item.parts[part] for item in found] for part in found[0].parts},
        lengths=np.stack([scores(item.lengths) for item in found]),
        probability=scores([item.probability for item in found]),
    )


def _described_labels(people: _Labels, judge: _Labels) -> _Labels:
    """`people` with what their file does not say of the ids and the judge's does."""
    described = tables.filled(
        list(people.by),
        {"group": people.group, **people.parts},
        list(judge.by),
        {"group": judge.group, **judge.parts},
    )
    lengths = people.lengths
    if np.isnan(lengths).all():
        unknown = np.full(judge.lengths.shape[1], np.nan)
        known = dict(zip(judge.by, judge.lengths, strict=True))
        lengths = np.stack([known.get(key, unknown) for key in people.by])
    return replace(people, group=described.pop("group"), parts=described, lengths=lengths)


def _cells(table: ColumnTable, column: str, kind: Kind) -> list[Label | None]:
    table.column(column)
    found: list[Label | None] = []
    for row, text in enumerate(table.texts(column)):
        label = LABELS[kind].get(text.lower()) if text else None
        if text and not label:
            raise UsageError(f"{table.place(row)}: {column} {text!r} is none of {', '.join(LABELS[kind])}")
        found.append(label)
    return found


def _orders(table: ColumnTable, column: str, kind: Kind) -> dict[str, list[Label | None]]:
    """By id, the verdict with a shown first and with b shown first; one verdict where the order is not known."""
    known = "first" in table.columns
    found: dict[str, list[Label | None]] = {}
    given = zip(tables.keys_of(table), table.texts("first"), _cells(table, column, kind), strict=True)
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


def _as_codes(found: Mapping[str, Sequence[Label | None]], ids: Sequence[str]) -> Codes:
    """Shape (n, 2): a shown first, b shown first; shape (n,) where a verdict was given without saying which it was."""
    both = _both([found.get(key, ()) for key in ids])
    ordered = all(len(labels) == 2 or labels[0] == "failed" for labels in found.values())
    return both if ordered else both_orders(both)


def _both(given: Iterable[Sequence[Label | None]]) -> Codes:
    """Shape (n, 2), of one or two verdicts each, or none."""
    rows = [[*labels, None, None][:2] for labels in given]
    return np.stack([codes(row[place] for row in rows) for place in range(2)], axis=1)
