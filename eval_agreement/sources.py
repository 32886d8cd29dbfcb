"""From files to samples of scores: judgments with people's scores inside, or any two columns, joined by id."""

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from critic import human_scored, jsonl
from critic.counting.coded import Coded
from critic.counting.columns import Column, Reread, as_column, as_ratings
from critic.counting.estimate import FEWEST_TO_DECIDE
from critic.errors import UsageError
from critic.records import NO_VERDICT, Judgment
from eval_agreement import tables
from eval_agreement.items import (
    COLUMN_SUFFIX,
    OVERALL,
    SampleRows,
    by_protocol,
    check_common,
    file_kind,
    of_response,
    read_items,
    table_notes,
)
from eval_agreement.sample import Sample, own_groups
from eval_agreement.tables import SCALE, ColumnTable, Scale, Source, forget, places, table_of

_NO_REFERENCE = frozenset({"no_reference"})
"""Rows that lack a reference are audited as well: whoever judged them did without."""


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
    kind = file_kind(Source(path))
    if kind != "judgments" and path.is_file():
        what = "human-scored rows" if kind == "human-scored rows" else "a table"
        raise UsageError(f"{path}: {what}, no judgments of critic judge; give --human FILE --judge NAME=FILE[:COLUMN]")
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
        judges = {judge: Coded.of(rows.score), **others}
        samples.append(replace(sample, parts=parts, judges=judges, criterion=by))
    if not samples[0].human.known.any():
        raise UsageError(f"{path}: no people's verdicts (sample.human); give --human FILE --judge NAME=FILE")
    return [sample for sample in samples if sample.human.known.any()]


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
    given: dict[str, Sample] = {}
    for name, source in judges.items():
        judge = _graded(_scored(source, judge_scale, name), people)
        if judge.ids == people.ids:  # one object from here on: its rows are found without comparing names
            judge = replace(judge, ids=people.ids, group=people.ids if judge.group is judge.ids else judge.group)
        check_common(human, people.ids, source, judge.ids)
        # Of others than the first nothing but scores counts.
        given[name] = replace(judge, group=judge.ids, parts={}, length=None, probability=None) if given else judge
    if not people.human.known.any():
        raise UsageError(f"{human.path}: no answer has a score; an audit needs people's")
    first = next(iter(given.values()))
    people = _described(people, first)
    if first.responses and not people.responses:
        people = replace(people, responses=_at(first.responses, places(first.ids, people.ids)))
    columns = table_notes([human, *judges.values()], "score", not people.ungrouped)
    forget()  # from here on there are only samples
    unsettled = places(people.ids, first.ids) < 0
    if file_kind(human) == "human-scored rows":  # those that people scored, but that cannot be used
        unusable = {str(row.get("id")) for _, row in jsonl.read(human.path, dict[str, Any])}
        unsettled &= np.array([key not in unusable for key in first.ids])
    alone = first.rows(unsettled)
    more, count = len(alone.ids), len(people.ids)
    ids = as_column(people.ids) + alone.ids
    unknown: list[str | None] = [None] * more
    return Sample(
        name=human.path.stem,
        ids=ids,
        human=people.human.at(np.r_[:count, np.full(more, -1)]) if more else people.human,
        judges={name: other.human.at(places(other.ids, ids)) for name, other in given.items()},
        group=own_groups(people.named_groups + alone.named_groups, ids) if more else people.group,
        raters=as_ratings(people.raters) + [{} for _ in range(more)] if people.raters else [],
        parts={part: as_column(values) + alone.parts.get(part, unknown) for part, values in people.parts.items()},
        length=_both(people.length, count, alone.length, more),
        probability=None if people.probability is None else np.append(people.probability, np.full(more, np.nan)),
        responses=_at(people.responses, np.r_[:count, np.full(more, -1)]) if people.responses else [],
        judgments=_at(first.judgments, places(first.ids, ids)) if first.judgments else [],
        records=first.records and first.records.rows(places(first.ids, ids)),
        notes=_notes(people, given, ids, scale, judge_scale) + columns,
    )


def _notes(
    people: Sample, given: Mapping[str, Sample], ids: Sequence[str], scale: Scale, judge_scale: Scale
) -> list[str]:
    """What the files leave out, what the join leaves without a partner, and what points and lengths are, in words."""
    notes = [*people.notes, *(note for other in given.values() for note in other.notes)]
    n = len(people.ids)
    for name, other in given.items():
        notes += unmatched(people.ids, other.ids, ids, "answers", name, "they count as failed")
    short = n if people.length is None else int((~people.length.known).sum())
    if 0 < short < n:
        notes.append(f"{short} of {n} answers have no length: what length does is not measured")
    if people.weight is not None:
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


def unmatched(
    people: Sequence[str], judged: Sequence[str], kept: Sequence[str], things: str, judge: str, then: str
) -> list[str]:
    """What stands in one file only, with the first id of each: ids that differ in a space or a letter show there."""
    notes = []
    if len(missing := np.flatnonzero(places(judged, people) < 0)):
        first = people[int(missing[0])]
        there = f"{len(missing)} of {len(people)} {things} are not in the file of {judge}, {first!r} the first"
        notes.append(f"{there}: {then}")
    if len(unknown := np.flatnonzero(places(kept, judged) < 0)):
        notes.append(
            f"{len(unknown)} {things} only in the file of {judge} are left out, {judged[int(unknown[0])]!r} the first"
        )
    return notes


def _both(values: Coded | None, count: int, more: Coded | None, rest: int) -> Coded | None:
    """`count` numbers and `rest` more behind them, NaN for those that are not known; None where none is."""
    parts = [Coded.one(np.nan, size) if of is None else of for of, size in ((values, count), (more, rest))]
    return _known(Coded.of(np.concatenate(parts)) if rest else parts[0])


def _known(values: Coded) -> Coded | None:
    """None where none is."""
    return values if values.known.any() else None


def _at(values: Any, place: Any) -> Any:
    """The values at some places, None for those below 0."""
    if isinstance(values, Reread):
        return values.rows(place)
    if isinstance(values, Column):
        return values.at(place)
    return [None if row < 0 else values[row] for row in place.tolist()]


def _people(source: Source, scale: Scale, texts: bool) -> Sample:
    path = source.path
    kind = file_kind(source)
    if kind == "judgments" and by_protocol(path):
        return replace(_scored(source, scale), judgments=[], records=None)
    if kind == "judgments":
        sample = of_judgments(path.stem, path, texts=texts)[0]
        if not texts and sample.records:  # read where they are shown
            answers = sample.records.of(lambda one: one and one.sample.response)
            sample = replace(sample, responses=answers)
        return replace(sample, judges={}, judgments=[], records=None)
    if kind == "human-scored rows":
        left_out, rows = Counter[str](), SampleRows(texts)
        for _, _, response in human_scored.walk(path, left_out, _NO_REFERENCE):
            rows.add(of_response(response))
        notes = [f"{path}: {count} rows left out: {reason}" for reason, count in left_out.items()]
        sample = rows.sample(path.stem)
        if not sample.ids:
            raise UsageError(f"{path}: no usable row: {', '.join(left_out)}")
        if not texts:
            usable = Reread(lambda: human_scored.walk(path, Counter(), _NO_REFERENCE), np.arange(len(sample.ids)))
            sample = replace(sample, responses=usable.of(itemgetter(2)))
        return replace(sample, judges={}, notes=notes)
    return _of_table(source, scale)


def _scored(source: Source, scale: Scale, judge: str = "") -> Sample:
    """A judge's scores as a sample; they stand in `human`."""
    if file_kind(source) != "judgments":
        return _of_table(source, scale, judge)
    rows = SampleRows(texts=False)
    for item in read_items(source):
        if item.kind == "score":
            rows.add(item)
    if not rows.score:
        raise UsageError(f"{source.path}: no scores; it holds other verdicts")
    sample = rows.sample(source.path.stem, source)
    return replace(sample, human=Coded.of(rows.score), judges={}, raters=[], responses=[])


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
    """`people` with the groups, parts and lengths that the judge's file says of them where their own does not."""
    says = judge.group is not judge.ids or any(any(as_column(one).present()) for one in judge.parts.values())
    if not says and (judge.length is None or not judge.length.known.any()):
        return people
    known, given = people.length, judge.length
    if given is not None and (known is None or not known.known.any()):
        known = given.at(places(judge.ids, people.ids))
    said, others = (({"group": one.named_groups, **one.parts}) for one in (people, judge))
    parts = tables.filled(people.ids, said, judge.ids, others)
    return replace(people, group=own_groups(parts.pop("group"), people.ids), parts=parts, length=known)


def _of_table(source: Source, scale: Scale, judge: str | None = None) -> Sample:
    """The scores in a table, people's or those of a `judge`, which may stand beside each rater's."""
    table, column, option = table_of(source), source.column or "score", "--scale" if judge is None else "--judge-scale"
    ids, scores = tables.keys_of(table), table.numbers(column, scale, option, None if judge is None else NO_VERDICT)
    notes = _low(table, column, scores, option) if scale == SCALE else []
    notes += table.empty_notes(column)
    count = 0 if judge is None else int((np.asarray(table.plain(column, scale[1])) == NO_VERDICT).sum())
    if count and not scale[0] <= NO_VERDICT <= scale[1]:
        notes.append(
            f"{table.path}: {count} cells of {column} are {NO_VERDICT:g}, which FastChat writes where it found no "
            "verdict; they count as failed"
        )
    rows, raters, repeated = None, list[dict[str, float]](), 0
    if "rater" in table.columns or len(set(ids)) < len(ids):
        rows = tables.RowsOfIds.of(table)
        if judge is None:
            raters, repeated = tables.ratings_in(table, np.asarray(scores), _two_scores)
            scores = Coded.of([sum(rated.values()) / len(rated) if rated else np.nan for rated in raters])
        else:
            repeated = 0 if "rater" in table.columns else len(table.line) - len(rows.first)
            scores = _one_score(rows, column, scores, judge)
        ids = ids.rows(rows.first)
    if repeated:
        notes.append(f"{table.path}: {repeated} rows repeat another row and count once")
    return Sample(
        name=table.path.stem,
        ids=ids,
        human=scores,
        judges={},
        group=own_groups((rows or table).texts("group"), ids),
        raters=as_ratings(raters) if "rater" in table.columns else [],
        parts=tables.parts_of(table, rows),
        length=_known(tables.lengths_of(table, ids=rows)),
        probability=tables.probabilities_of(table, rows),
        responses=tables.responses_of(source, np.arange(len(table.line)) if rows is None else rows.first),
        notes=notes,
    )


def _two_scores(score: float | None, before: float | None, rater: str | None) -> str:
    who = f" by {rater}" if rater else tables.SEVERAL_RATERS
    now, then = ("none" if value is None else f"{value:g}" for value in (score, before))
    return f"score {now}, but {then} before{who}"


def _one_score(rows: tables.RowsOfIds, column: str, scores: Coded, judge: str) -> Coded:
    """A judge's score of each id, which has to be the same on all lines that hold one."""
    try:
        return Coded.of(rows.numbers(column, np.asarray(scores)))
    except UsageError as error:
        several = f"the judge {judge} has several raters; give each a file of its own"
        raise UsageError(f"{error}; {several}" if "rater" in rows.table.columns else str(error)) from None


def _low(table: ColumnTable, column: str, scores: Coded, option: str) -> list[str]:
    """What to say of scores that may be on another scale than 1..10, which nobody named."""
    highest = float(np.fmax.reduce(scores.values, initial=np.nan))
    if len(scores) < FEWEST_TO_DECIDE or not highest <= SCALE[1] / 2:
        return []
    most = f"no {column} is above {highest:g}, and they are taken to be on 1..10"
    return [f"{table.path}: {most}; if they are not, give their scale with {option}"]
