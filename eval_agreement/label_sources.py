"""From files to preferences between two answers (a, b, tie), or verdicts of yes and no, joined by id."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from critic.counting.arrays import Floats
from critic.counting.verdicts import Codes, Label, both_orders, codes
from critic.errors import UsageError
from critic.tables import is_empty
from eval_agreement import tables
from eval_agreement.items import Kind, by_protocol, check_common, file_kind, read_items, table_notes
from eval_agreement.preferences import PEOPLE, Preferences
from eval_agreement.sample import own_groups, scores
from eval_agreement.sources import unmatched
from eval_agreement.tables import ColumnTable, Source, table_of

LABELS: dict[Kind, dict[str, Label]] = {
    "preference": {"a": "a", "b": "b", "tie": "tie"},
    "yes or no": {"yes": "a", "no": "b"},
}
"""What a cell may say, in small letters, and the label it stands for."""

COLUMNS: dict[Kind, str] = {"preference": "preference", "yes or no": "verdict"}
"""The column that holds it, unless the user names another."""


def kind_of(source: Source) -> Kind:
    """What people say in a file: scores, preferences, or yes and no; by its column, first value or first verdicts.

    Raises UsageError for judgments that hold several kinds, unless a protocol is named.
    """
    held = file_kind(source)
    if held == "judgments":
        found = {str(item.parts.get("protocol")): item.kind for item in read_items(source)}
        if len(set(found.values())) > 1:
            example = f"{source.path}:{min(found)}"
            raise UsageError(
                f"{source.path}: verdicts of several kinds ({', '.join(found)}); name one, as in {example}"
            )
        return next(iter(found.values()))
    if held != "table":
        return "score"
    table = table_of(source)
    if source.column is None:
        named = [kind for kind, column in COLUMNS.items() if column in table.columns]
        return named[0] if named and "score" not in table.columns else "score"
    text = next((text.strip().lower() for text in table.texts(source.column) if text and not is_empty(text)), "")
    return next((kind for kind, labels in LABELS.items() if text in labels), "score")


class _Labels(Struct, frozen=True, kw_only=True):
    """What a file says of each id, in its order: `by[id]` with a shown first and with b shown first, or once where the
    order is not known; people's verdicts by rater in `raters`. The other columns are as far as known."""

    by: dict[str, list[Label | None]]
    raters: dict[str, dict[str, Label | None]]
    group: Sequence[str | None]
    parts: dict[str, Sequence[str | None]]
    lengths: Floats
    probability: Floats | None = None
    notes: list[str] = field(default_factory=list)


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
    empty = [note for found in given.values() for note in found.notes]
    things, notes = "items" if kind == "yes or no" else "pairs", [*people.notes, *empty]
    for name, found in given.items():
        notes += unmatched(ids, list(found.by), ids, things, name, "it was not asked about them")
    people = _described_labels(people, next(iter(given.values())))
    notes += table_notes([human, *judges.values()], COLUMNS[kind], any(people.group))
    known = people.lengths.shape[1] == 2 and not np.isnan(people.lengths).any()
    parts = {part: [value or "unknown" for value in values] for part, values in people.parts.items()}
    try:
        return Preferences(
            ids=ids,
            group=own_groups(people.group, ids),
            people={rater: codes(given.get(key) for key in ids) for rater, given in people.raters.items()},
            judges={name: _as_codes(found.by, ids) for name, found in given.items()},
            parts={part: values for part, values in parts.items() if len(set(values)) > 1},
            length_a=people.lengths[:, 0] if known else None,
            length_b=people.lengths[:, 1] if known else None,
            yes_or_no=kind == "yes or no",
            weight=_weight(human, people),
            notes=notes,
        )
    except ValueError as error:
        raise UsageError(f"{human.path}: {error}") from None


def _weight(source: Source, people: _Labels) -> Floats | None:
    """As `Preferences` has it. Raises UsageError where it is known of some labelled items only."""
    if people.probability is None or np.isnan(people.probability).all():
        return None
    said = np.array([any(given.get(key) for given in people.raters.values()) for key in people.by], dtype=bool)
    unknown = np.isnan(people.probability) & said
    if unknown.any():
        lacks = list(people.by)[int(np.argmax(unknown))]
        raise UsageError(f"{source.path}: label_probability is given for some verdicts, but not for that on {lacks!r}")
    return np.where(said, 1 / people.probability, np.nan)


def _people_labels(source: Source, kind: Kind) -> _Labels:
    held = file_kind(source)
    if held == "judgments":
        found = _labels_of_items(source, kind)
        if not by_protocol(source.path):
            return found
        # People's own verdicts in the judges' format; what they did not say is no failure of theirs.
        both = both_orders(_both(found.by.values())).tolist()
        one: list[Label | None] = ["a", "tie", "b", None, None]
        return replace(found, raters={PEOPLE: {key: one[code] for key, code in zip(found.by, both, strict=True)}})
    table = table_of(source)
    name = {label: name for name, label in LABELS[kind].items()}

    def two_labels(now: Label | None, before: Label | None, rater: str | None) -> str:
        who = f" by {rater}" if rater else tables.SEVERAL_RATERS
        return f"{COLUMNS[kind]} {name[now] if now else 'none'}, but {name[before] if before else 'none'} before{who}"

    raters = tables.by_rater(table, _cells(table, source.column or COLUMNS[kind], kind), two_labels)
    rows = tables.RowsOfIds.of(table)
    repeated = len(table.line) - sum(map(len, raters.values()))
    again = [f"{table.path}: {repeated} rows repeat another row and count once"] if repeated else []
    return _Labels(
        by={key: [] for key in tables.keys_of(table).rows(rows.first)},
        raters={rater or PEOPLE: theirs for rater, theirs in raters.items()},
        group=rows.texts("group"),
        parts=tables.parts_of(table, rows),
        probability=tables.probabilities_of(table, rows),
        lengths=np.stack([np.asarray(tables.lengths_of(table, f"_{side}", rows)) for side in "ab"], axis=1),
        notes=[*table.empty_notes(source.column or COLUMNS[kind]), *again],
    )


def _judge_labels(source: Source, kind: Kind) -> _Labels:
    if file_kind(source) == "judgments":
        return _labels_of_items(source, kind)
    table, column = table_of(source), source.column or COLUMNS[kind]
    by = _orders(table, column, kind)
    unknown, notes = np.full((len(by), 2), np.nan), table.empty_notes(column)
    return _Labels(by=by, raters={}, group=[None] * len(by), parts={}, lengths=unknown, notes=notes)


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
        label = LABELS[kind].get(text.strip().lower()) if text else None
        # "none" may mean that neither answer is better: whoever wrote it has to say a, b, tie, or leave it empty.
        if not label and (not is_empty(text) or (text and text.strip().lower() == "none")):
            raise UsageError(f"{table.place(row)}: {column} {text!r} is none of {', '.join(LABELS[kind])}")
        found.append(label)
    return found


def _orders(table: ColumnTable, column: str, kind: Kind) -> dict[str, list[Label | None]]:
    """By id, the verdict with a shown first and with b shown first; one verdict where the order is not known. Where
    there is a column `rater`, the judge's verdict may stand beside each rater's."""
    known, by_rater = "first" in table.columns, "rater" in table.columns
    found: dict[str, list[Label | None]] = {}
    given = zip(tables.keys_of(table), table.texts("first"), _cells(table, column, kind), strict=True)
    for row, (key, first, label) in enumerate(given):
        if known and (first or "").lower() not in ("a", "b"):
            raise UsageError(f"{table.place(row)}: first {first!r} is neither a nor b")
        place = int(known and (first or "").lower() == "b")
        mine, verdict = found.setdefault(key, [None, None] if known else [None]), label or "failed"
        if mine[place] is None or (by_rater and mine[place] == "failed"):
            mine[place] = verdict
        elif not by_rater or verdict not in (mine[place], "failed"):
            order = f" with {first} shown first" if known else "; a column first would tell two orders apart"
            order = "; beside several raters a judge has one verdict on each id" if by_rater else order
            raise UsageError(f"{table.place(row)}: {key!r} was judged before{order}")
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
