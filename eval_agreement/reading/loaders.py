"""Read samples from files. Any file becomes a data frame (`Labels`) indexed by id; two frames make a sample.

A sample is a `RatedSample` or `Preferences`. The frame's columns (None if unknown) are `human` and `score` (people's
and a judge's, on 1..10), `labels` (a judge's verdicts), `repeats`, `raters` (scores or labels by rater), `group`,
`length`, `length_b`, `probability`, `response` and `judgment`. All other columns are parts: properties such as the
language, by which agreement is broken down.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from msgspec.structs import asdict, replace

from critic import human_scored, jsonl, tables
from critic.errors import UsageError, quoted, shorten_line
from critic.judging.thoughts import split_thoughts
from critic.records import NO_VERDICT, NOT_LEARNED, Judgment, Question, Response, to_ten
from critic.stats.arrays import Floats
from critic.stats.verdicts import Codes, Label, both_orders, codes
from critic.tables import Choice, Kind, find_label, name_labels, score_column
from eval_agreement.measures.baselines import BASELINES
from eval_agreement.measures.preferences import LONGER, PEOPLE, Preferences
from eval_agreement.reading import tables as sources
from eval_agreement.reading.audit_items import AuditItem, build_item, read_items
from eval_agreement.reading.tables import PART_COLUMNS, SCALE, TEXTS, Scale, Source, column_notes
from eval_agreement.sample import RatedSample
from eval_agreement.sentences import say

Labels: TypeAlias = pd.DataFrame

COLUMNS: dict[Kind, str] = {"score": "score", "preference": "preference", "yes or no": "verdict"}
"""Default column of each kind of verdict."""

_THINGS: dict[Kind, str] = {"score": "answer", "preference": "pair", "yes or no": "item"}

_PEOPLES = ("human", "human_label", "score", "labels", "raters", "probability")
"""Columns that are filled only from people's file."""

SIDES = ("model_a", "model_b")
"""Columns of a table with the names of a pair's models."""

_NOT_PARTS = (*_PEOPLES, "group", "length", "length_b", "response", "judgment", "repeats", *SIDES)

_CHOSEN = ("protocol", "condition", "judging", "turn")
"""Parts of judged conversations of which people may have judged only some values, such as one of several protocols. For
single answers this is the criterion."""

CROSS_FITTED = "{} stands for the judges of all folds ({}); none of them learned from a question that it judged"
"""Note on judgments that critic merge --cross-fit put together."""

_NO_PEOPLE = "{}: no people's verdicts (sample.human); give --human FILE --judge NAME=FILE"


def find_kind(source: Source) -> Kind:
    """Return the kind of people's verdicts in a file.

    In a table, the kind follows from the first value of the column that the source names. If it names none, the kind
    follows from the default column (COLUMNS) that the table has. Numbers beside two answers are preferences.
    Human-scored rows hold scores. In a file of judgments, the kind is that of all judgments, or of those by the
    protocol that the source names as its column. Raises UsageError if these judgments are of several kinds.
    """
    # Conversations may be judged by several protocols, and only one kind is audited at a time.
    if source.content == "judgments":
        kinds = {str(item.parts.get("protocol")): item.kind for item in read_items(source)}
        if len(set(kinds.values())) > 1:
            several = f"verdicts of several kinds ({', '.join(kinds)})"
            raise UsageError(f"{source.path}: {several}; name one, as in {source.path}:{min(kinds)}")
        return next(iter(kinds.values()))
    if source.content != "table":
        return "score"
    if source.column is None:
        kind: Kind = next((kind for kind, column in COLUMNS.items() if column in source.frame), "score")
    else:
        filled = (text for text in source.texts(source.column) if not tables.is_empty(text))
        word = (next(filled, None) or "").strip().lower()
        # Numbers stay scores: 1 and 0 may be anything.
        kind = next((kind for kind in COLUMNS if kind != "score" and word in name_labels(kind)), "score")
    return "preference" if kind == "score" and sources.is_pair(source) else kind


def find_judge(path: Path) -> tuple[str, list[str]]:
    """Return the judge of a file of judgments, and a list of notes.

    There is a note if the judge was not trained on the form of its prompts, if it was trained on the rows that it
    judged, and if the file puts together verdicts of several judges, each trained on other folds (CROSS_FITTED).
    """
    _, first = next(jsonl.read(path, Judgment))
    facts, unlearned = jsonl.facts(path), first.setup.unlearned
    notes = [f"{path}: {first.judge} {NOT_LEARNED.format(unlearned)}"] if unlearned else []
    if judges := facts.get("cross_fitted"):
        notes.append(CROSS_FITTED.format(first.judge, ", ".join(judges)))
    if (facts.get("responses") or {}).get("sha256") in (facts.get("trained_on") or ()):
        notes.append(f"{path}: {first.judge} was trained on these very rows, so it agrees better here than elsewhere")
    return first.judge, notes


def read_judgments(name: str, path: Path) -> list[RatedSample]:
    """Read judgments with people's scores inside as samples, the overall scores first.

    Further samples NAME/CRITERION hold the scores by each criterion that people scored. Scores of other judges, in
    columns JUDGE_score_1_10, are read under the name JUDGE, or under the whole name if this judge has the same name.
    Raises UsageError as `read_items` does, and if people scored none of the answers.
    """
    source = Source(path)
    if source.content != "judgments" and path.is_file():
        raise UsageError(f"{path}: no judgments of critic judge; give --human FILE --judge NAME=FILE[:COLUMN]")
    by_criterion: dict[str | None, list[AuditItem]] = {}
    for item in read_items(source):
        by_criterion.setdefault(item.criterion, []).append(item)
    # The overall score comes first: its sample is the one that gates and certificates are about.
    judge, notes = find_judge(path)
    samples = []
    for criterion, items in by_criterion.items():
        judges = {judge: [item.score for item in items]}
        for other_judge in sorted(set().union(*(item.others for item in items))):
            column = score_column(other_judge) if other_judge == judge else other_judge
            judges[column] = [item.others.get(other_judge) for item in items]
        rows = _build_labels(items)
        _check_chances(path, rows, rows["human"].notna())
        sample = _build_sample(f"{name}/{criterion}" if criterion else name, rows, judges)
        samples.append(replace(sample, criterion=criterion, notes=notes))
    # Without people's overall scores the criteria say nothing of the judge as a whole.
    if np.isnan(samples[0].human).all():
        raise UsageError(_NO_PEOPLE.format(path))
    return [sample for sample in samples if not np.isnan(sample.human).all()]


def read_scores(human: Source, judges: Mapping[str, Source]) -> RatedSample:
    """Read people's and judges' scores from different files or columns as a sample, joined by id.

    A judge without a score for an answer failed on it. Answers that only the first judge scored are kept without a
    human score.
    Raises UsageError with file and line if no id is in both files, if an id has different scores, or for a score off
    the scale.
    """
    human = human.with_scale("score")
    judges = {name: source.with_scale("score", human.scale or SCALE) for name, source in judges.items()}
    rows, by_judge, notes = _read(human, judges, "score")
    scores = {name: labels["score"].reindex(rows.index) for name, labels in by_judge.items()}
    sample = _build_sample(human.path.stem, rows, scores)
    notes += _sample_notes(sample, human.scale or SCALE, next(iter(judges.values())).scale or SCALE)
    notes += column_notes([human, *judges.values()], "score", not sample.ungrouped)
    return replace(sample, notes=notes)


def read_two_judges(then: Source, now: Source, name: str) -> RatedSample:
    """Read the scores of two judges, or of one judge at two times, as a sample joined by id.

    The scores of `then` become the sample's `human`, those of `now` the scores of judge `name`. Two texts with the same
    id are two answers. Answers in both files that lack a score in one are left out, with a note.
    """
    read = (_read_labels(source, "score", set())[0] for source in (then, now))
    old, new = (rows[["/criterion=" not in key for key in rows.index]] for rows in read)
    before, after = _judged_texts(old), _judged_texts(new)
    failed, renamed = set[str](), dict[str, str]()
    # Another text under an old id is another answer, and was judged once only.
    for key in new.index.intersection(old.index):
        if None not in (before[key], after[key]) and before[key] != after[key]:
            renamed[key] = f"{key} now"
        elif pd.isna([old["score"][key], new["score"][key]]).any():
            failed.add(key)
    new = new.rename(index=renamed)
    ids = [key for key in dict.fromkeys([*old.index, *new.index]) if key not in failed]
    rows = _join(old.assign(human=old["score"], raters=None), new, ids)
    notes = [f"{len(failed)} answers in both files have no score in one of them and are left out"] if failed else []
    notes += [line for source in (then, now) for line in source.note.splitlines()]
    return replace(_build_sample(name, rows, {name: new["score"].reindex(ids)}), notes=notes)


def _judged_texts(rows: Labels) -> dict[str, str | None]:
    """Return the text of each judged answer by id, None if unknown.

    If a judgment has no single answer, as of a whole conversation, the hash of its requests stands for the text.
    """
    texts = dict[str, str | None]()
    for key, judgment, response in zip(rows.index, _listed(rows["judgment"]), _listed(rows["response"]), strict=True):
        texts[key] = judgment.sample.answer or judgment.asked if judgment else response and response.text
    return texts


def read_labels(human: Source, judges: Mapping[str, Source], kind: Kind) -> Preferences:
    """Read people's and judges' verdicts of one kind from different files or columns, joined by id.

    An empty verdict is a failed judgment; a judge that lacks an id was not asked about it. Raises UsageError as
    `read_scores` does, and if only some labelled items have a label_probability.
    """
    people, by_judge, notes = _read(human, judges, kind)
    ids, rated = list(people.index), list(people["raters"])
    notes += column_notes([human, *judges.values()], COLUMNS[kind], bool(people["group"].notna().any()))
    length_a, length_b = _floats(people["length"]), _floats(people["length_b"])
    # Lengths are needed of the labelled pairs only.
    labelled = people["raters"].astype(bool).to_numpy()
    has_lengths = not np.isnan([length_a[labelled], length_b[labelled]]).any()
    # Labels sampled with unequal chances are weighted by 1 / chance.
    weight = np.where(labelled, 1 / _floats(people["probability"]), np.nan)
    raters = dict.fromkeys(rater for verdicts in rated for rater in verdicts)
    parts = {part: _listed(people[part].fillna("unknown")) for part in people if part not in _NOT_PARTS}
    return Preferences(
        **_list_records(people),
        people={rater: codes(verdicts.get(rater) for verdicts in rated) for rater in raters},
        judges={name: _encode(rows["labels"].reindex(ids)) for name, rows in by_judge.items()},
        # A part with a single value tells nothing apart.
        parts={part: values for part, values in parts.items() if len(set(values)) > 1},
        length_a=length_a if has_lengths else None,
        length_b=length_b if has_lengths else None,
        yes_or_no=kind == "yes or no",
        models=_list_models(people),
        repeats=np.stack([codes(again) for again in _list_repeats(people)], axis=1) if _list_repeats(people) else None,
        weight=None if np.isnan(weight).all() else weight,
        notes=notes,
    )


def _encode(labels: "pd.Series[Any]") -> Codes:
    """Return verdicts as codes, (n, 2): with answer a shown first, and with answer b shown first.

    If the order of any verdict is unknown, the shape is (n,), and verdicts in both orders are combined (`both_orders`).
    """
    orders, is_ordered = list[list[Label | None]](), True
    for label in labels:
        verdicts = list(label) if isinstance(label, tuple) else [None, None]
        is_ordered &= len(verdicts) == 2 or verdicts[0] == "failed"
        orders.append([*verdicts, None][:2])
    both = np.stack([codes(pair) for pair in orders])
    return both if is_ordered else both_orders(both)


def _read(human: Source, judges: Mapping[str, Source], kind: Kind) -> tuple[Labels, dict[str, Labels], list[str]]:
    """Return people's rows, each judge's rows by name, and notes.

    People's rows are completed from the first judge's file (`_join`), and include items that only this judge has.
    Raises UsageError if people have no verdicts, if files share no id, or if a judge's name is already used.
    """
    people, notes = _read_labels(human, kind)
    labelled = people["human"].notna() if kind == "score" else people["raters"].astype(bool)
    if not labelled.any():
        raise UsageError(f"{human.path}: no {_THINGS[kind]} has a {kind}; an audit needs people's")
    _check_chances(human.path, people, labelled)
    # Tables and reports call these rows by name.
    if taken := sorted({PEOPLE, LONGER, *BASELINES, *set().union(*people["raters"])} & judges.keys()):
        raise UsageError(say("name_taken", name=taken[0]))
    by_judge = {}
    for name, source in judges.items():
        by_judge[name], judge_notes = _read_labels(source, kind, set(people.index))
        notes += judge_notes
        if not people.index.isin(judged := by_judge[name].index).any():
            examples = {"people_id": quoted(people.index[0]), "judge_id": quoted(judged[0])}
            raise UsageError(say("no_common_id", people=human.path, judge=source.path, **examples))
    ids, first = list(people.index), next(iter(by_judge.values()))
    # Items that only the judge has count in corrected means and shares.
    settled = set(ids)
    # Rows that people scored, but that cannot be used.
    if human.content == "human-scored rows":
        settled |= {str(row.get("id")) for _, row in jsonl.read(human.path, dict[str, Any])}
    # Without its question an item could not be told from labelled ones about the same.
    countable = first.index if kind == "score" else first.index[first["group"].notna()]
    ids += [key for key in countable if key not in settled]
    for name, judge in by_judge.items():
        notes += _unmatched(people.index, judge.index, ids, kind=kind, judge=name)
    return _join(people, first, ids), by_judge, notes


def _check_chances(path: Path, rows: Labels, labelled: "pd.Series[bool]") -> None:
    """Raise UsageError if only some of the labelled rows have a label_probability. `labelled`: mask, one per row."""
    unknown = rows.index[labelled & rows["probability"].isna()]
    if len(unknown) and rows["probability"].notna().any():
        raise UsageError(
            f"{path}: label_probability is given for some labels, but not for that of {quoted(unknown[0])}"
        )


def _read_labels(source: Source, kind: Kind, people: set[str] | None = None) -> tuple[Labels, list[str]]:
    """Read the rows of a file with people's scores or labels, or with a judge's, and notes.

    `people`: the ids that people labelled, to read a judge's file; None to read people's file.
    """
    if source.content == "table":
        return _read_table(source, kind, judge=people is not None)
    if source.content == "judgments":
        return _read_verdicts(source, kind, people)
    left_out = Counter[str]()
    # People and judges did not need a reference.
    usable = human_scored.walk(source.path, left_out, frozenset({"no_reference"}))
    rows = _build_labels([build_item(response) for _, _, response in usable])
    if rows.empty:
        raise UsageError(f"{source.path}: no usable row: {', '.join(left_out)}")
    return rows, [f"{source.path}: {count} rows left out: {reason}" for reason, count in left_out.items()]


def _read_verdicts(source: Source, kind: Kind, people: set[str] | None) -> tuple[Labels, list[str]]:
    """Read the verdicts of a judge or of people from a file of judgments, and notes.

    `people`: the ids that people labelled, to read the judge's verdicts. If it is None, people's verdicts are read.
    Judgments of answers record people's verdict beside the judge's. For conversations, people's verdicts are a file of
    judgments of their own, with people in place of the judge; a missing verdict is then no failed judgment.
    """
    items, notes = [item for item in read_items(source) if item.kind == kind], find_judge(source.path)[1]
    if not items:
        raise UsageError(f"{source.path}: no verdict is a {kind}; it holds other verdicts")
    # People's own verdicts have the judges' format, and no other label inside.
    own = "protocol" in items[0].parts
    if kind == "score" and (own or people is not None):
        items, left_out = _keep_graded(items, people or set(), source.path.stem)
        notes += left_out
    if people is not None:
        return _build_labels(items).assign(response=None), notes
    rows = _build_labels([item for item in items if item.criterion is None])
    if kind == "score" and own:
        rows["human"] = rows["score"]
    elif kind == "score" and rows["human"].isna().all():
        raise UsageError(_NO_PEOPLE.format(source.path))
    elif kind != "score":
        labels = rows["human_label"].tolist()
        if own:
            labels = [("a", "tie", "b", None, None)[code] for code in both_orders(_encode(rows["labels"]))]
        rows["raters"] = [{PEOPLE: label} if label else {} for label in labels]
    return rows, []


def _keep_graded(items: list[AuditItem], people: set[str], judge: str) -> tuple[list[AuditItem], list[str]]:
    """Return the judge's verdicts by protocols, conditions, criteria … that people also used, with notes on the others.

    `people`: ids that people labelled. `judge`: the judge's name, for the notes.
    """
    notes = []
    for part in _CHOSEN if "protocol" in items[0].parts else ["criterion"]:
        by_id = {item.id: str(item.parts.get(part, item.criterion or "overall")) for item in items}
        theirs = {by_id[key] for key in by_id.keys() & people}
        # If people used none of a part's values, nothing is left out: ids may name it differently.
        if theirs and (left := sorted({*by_id.values()} - theirs)):
            notes.append(f"verdicts of {judge} by {part}s that people did not use are left out: {', '.join(left)}")
            items = [item for item in items if by_id[item.id] in theirs]
    return items, notes


def _build_labels(items: Sequence[AuditItem]) -> Labels:
    """Build the data frame (`Labels`) of items, one row per item, indexed by id."""
    rows = [{**asdict(item), **item.parts} for item in items]
    labels = pd.DataFrame(rows, index=[item.id for item in items], dtype=object)
    return labels.drop(columns=["id", "kind", "criterion", "parts", "others"], errors="ignore")


def _read_table(source: Source, kind: Kind, *, judge: bool = False) -> tuple[Labels, list[str]]:
    """Read a table of people's labels, or of a judge's if `judge` is true, and notes.

    For people, the column `raters` holds each rater's label by name (PEOPLE if no rater is named). Raises UsageError if
    scores are asked for, but each row has two answers.
    """
    column, keys, several = source.column or COLUMNS[kind], source.keys(), "rater" in source.frame
    if kind == "score" and sources.is_pair(source):
        raise sources.uncoded(source.path, column, source.cells(column), source.codes)
    if kind == "preference" and not source.column and column not in source.frame and sources.is_pair(source):
        # `find_kind` has taken what it holds for preferences.
        column = COLUMNS["score"]
    values, notes = _read_values(source, column, kind, judge=judge)
    names = source.filled("rater") if several and not judge else [PEOPLE] * len(keys)
    hint = say("repeated", judge=judge, several=several)
    verdicts = _merge_rows(source, pd.DataFrame({column: values}, index=[keys, names], dtype=object), hint)[column]
    # A judge's score stands on the lines of all raters of an answer.
    if len(verdicts) < len(keys) and not (judge and several):
        notes.append(f"{source.path}: {len(keys) - len(verdicts)} rows repeat another row and count once")
    rows = _read_about(source, keys, {"preference": ("_a", "_b")}.get(kind, ("",)))
    if judge and kind == "score":
        return rows.assign(score=verdicts.array), notes
    if judge:
        return rows.assign(labels=[(label or "failed",) for label in _listed(verdicts)]), notes
    by_id: dict[str, dict[str, Any]] = {key: {} for key in keys}
    for (key, rater), verdict in verdicts.dropna().items():
        by_id[key][rater] = verdict
    raters = list(by_id.values())
    if kind == "score":
        rows["human"] = [human_scored.settle_scores(rated.values(), False) if rated else None for rated in raters]
    rows["raters"] = raters if several or kind != "score" else [{}] * len(raters)
    return rows, notes


def _read_about(source: Source, keys: list[str], sides: Sequence[str]) -> Labels:
    """Read what a table says about each id besides scores and labels: groups, parts, lengths and texts.

    `keys`: the id of each row. `sides`: suffixes of the columns of answers: "_a" and "_b" for pairs, else "".
    """
    limits = {"label_probability": (1e-9, 1.0), **{f"length{side}": (0.0, math.inf) for side in sides}}
    cells: dict[str, list[Any]] = {name: source.texts(name) for name in ("group", *PART_COLUMNS, *SIDES)}
    cells |= {name: source.numbers(name, ends) for name, ends in limits.items() if name in source.frame}
    rows = _merge_rows(source, pd.DataFrame(cells, index=keys, dtype=object))
    rows = rows.rename(columns={**PART_COLUMNS, "label_probability": "probability", "length_a": "length"})
    for side, length in zip(sides, ("length", "length_b"), strict=False):
        column = next((f"{name}{side}" for name in TEXTS if f"{name}{side}" in source.frame), "")
        answers = _first_texts(source, keys, column)
        if length not in rows:
            rows[length] = [None if answer is None else float(len(answer)) for answer in answers]
        if any(answer is not None for answer in answers):
            texts = [answers, _first_texts(source, keys, "question"), _first_texts(source, keys, "reference")]
            about = (_listed(rows[name]) for name in ("task", "group", "answerer"))
            built = list(map(_build_response, rows.index, *texts, *about))
            # The second answer of a pair is the other one of the first.
            if "response" in rows:
                built = [replace(a, other=b) for a, b in zip(rows["response"], built, strict=True)]
            rows["response"] = built
    unknown = ("human", "score", "length_b", "probability", "response", "judgment", "repeats")
    return rows.assign(**{name: None for name in unknown if name not in rows})


def _merge_rows(source: Source, rows: Labels, hint: str = "") -> Labels:
    """Merge rows with the same index, taking the first value of each column.

    Raises UsageError if two rows have different values; `hint` ends the message.
    """
    by_key = rows.groupby(level=[*range(rows.index.nlevels)], sort=False)
    for name in rows:
        first = by_key[name].transform("first")
        differs = (rows[name].notna() & (rows[name] != first)).to_numpy()
        if differs.any():
            row = int(differs.argmax())
            now, before = (shorten_line(str(tables.cell_text(cells.iloc[row]))) for cells in (rows[name], first))
            key = rows.index.get_level_values(0)[row]
            raise UsageError(f"{source.place(row)}: {quoted(key)} has the {name} {now}, but {before} before{hint}")
    return by_key.first()


def _first_texts(source: Source, keys: Sequence[str], name: str) -> list[str | None]:
    """Return for each id the first text in column `name`, without a model's thoughts.

    Rows of one id (one per rater) may have different texts. The text is "" if all cells of an id are empty, and None if
    the column is missing. `keys`: the id of each row.
    """
    texts: dict[str, str | None] = dict.fromkeys(keys)
    for key, cell in zip(keys, source.frame.get(name, ()), strict=False):
        texts[key] = texts[key] or ("" if cell == "" else tables.cell_text(cell))
    return [text and split_thoughts(text).answer for text in texts.values()]


def _build_response(key: str, *texts: str | None) -> Response:
    """Build a response, for display, from the texts in a table.

    `texts`: response, question, reference, task, group and system, in this order.
    """
    text, prompt, reference, task, group, system = (text or "" for text in texts)
    lang: Any = "zh" if tables.CHINESE.search(prompt + text) else "en"
    question = Question(id="", prompt=prompt, reference=reference or None, task=task, group=group, lang=lang)
    return Response(id=key, question=question, text=text, system=system or None)


def _read_values(source: Source, column: str, kind: Kind, *, judge: bool) -> tuple[Sequence[Any], list[str]]:
    """Return a column of scores, converted to 1..10, or of labels, None if empty, with notes.

    `judge`: True if the column is a judge's. A judge's -1 then means no verdict, unless -1 is on the scale.
    Raises UsageError with the line for any other value off the scale, or that is no label.
    """
    notes = source.empty_notes(column)
    if kind != "score":
        return _read_choices(source, column, kind), notes
    # On a scale from -1 or below it is a score like any other.
    (low, high), option = source.scale or SCALE, "--judge-scale" if judge else "--scale"
    none = NO_VERDICT if judge and not low <= NO_VERDICT <= high else None
    values = source.numbers(column, (low, high), hint=f" (see {option})", none=none)
    if none is not None and (count := sum(text in ("-1", "-1.0") for text in source.texts(column))):
        notes.append(f"{source.path}: {count} cells of {column} are -1, which FastChat writes for no verdict")
    return [None if score is None else to_ten(score, low, high) for score in values], notes


def _read_choices(source: Source, column: str, kind: Kind) -> list[Choice | None]:
    """Return a column of labels, None if empty. Raises UsageError with the line for a cell that is not a label."""
    cells = source.cells(column)
    if kind == "preference":
        cells = sources.decode_preferences(source.path, column, cells, source.codes)
    labels = [find_label(kind, cell) for cell in cells]
    for row, (label, cell) in enumerate(zip(labels, cells, strict=True)):
        # "none" may mean that neither answer is better: whoever wrote it has to say a, b, tie, or leave it empty.
        says_none = kind == "preference" and isinstance(cell, str) and cell.strip().lower() == "none"
        if label is None and (says_none or not tables.is_empty(cell)):
            raise UsageError(f"{source.place(row)}: {column} {quoted(cell)} is none of {', '.join(name_labels(kind))}")
    return labels


def _join(people: Labels, judge: Labels, ids: list[str]) -> Labels:
    """Return people's rows, followed by the rows of `ids` that only the judge has.

    Groups, parts, lengths and texts come from the judge's file if people's file lacks them.
    """
    rows = people.reindex(index=ids, columns=list(dict.fromkeys([*people.columns, *judge.columns])))
    # Texts of one file stay together: a question of the other would be put beside this one's answer.
    own = {*_PEOPLES, *(("response",) if people["response"].notna().any() else ())}
    fillable = [column for column in rows if column not in own]
    rows[fillable] = rows[fillable].where(rows[fillable].notna(), judge.reindex(index=ids, columns=fillable))
    rows["raters"] = [raters if isinstance(raters, dict) else {} for raters in rows["raters"]]
    rows[["judgment", "repeats"]] = judge[["judgment", "repeats"]].reindex(ids)
    return rows


def _build_sample(name: str, rows: Labels, judges: Mapping[str, Any]) -> RatedSample:
    """Build a sample from people's joined rows and each judge's scores, by name, in the order of the rows."""
    length, probability = _floats(rows["length"]), _floats(rows["probability"])
    raters: list[dict[str, float]] = rows["raters"].tolist()
    return RatedSample(
        name=name,
        **_list_records(rows),
        human=_floats(rows["human"]),
        judges={judge: _floats(scores) for judge, scores in judges.items()},
        raters=raters if any(raters) else [],
        parts={part: _listed(rows[part]) for part in rows if part not in _NOT_PARTS},
        length=None if np.isnan(length).all() else length,
        probability=None if np.isnan(probability).all() else probability,
        repeats=np.array(_list_repeats(rows), dtype=np.float64).T if _list_repeats(rows) else None,
    )


def _list_records(rows: Labels) -> dict[str, Any]:
    """Return fields that all kinds of samples have: `ids`, `group`, `responses` and `judgments`.

    Responses or judgments are [] if the files hold none.
    """
    records = {f"{name}s": _listed(rows[name]) if rows[name].notna().any() else [] for name in ("response", "judgment")}
    return {"ids": list(rows.index), "group": _listed(rows["group"]), **records}


def _list_models(rows: Labels) -> list[tuple[str | None, str | None]]:
    """Return the names of each pair's models, by a table's columns or by judgments; [] if none is known."""
    models = list(zip(*(_listed(rows[side]) if side in rows else [None] * len(rows) for side in SIDES), strict=True))
    for number, judgment in enumerate(_listed(rows["judgment"])):
        # Of an opponent without a name, which is the reference, nothing is counted.
        if judgment:
            models[number] = (judgment.sample.system, judgment.opponent)
    return models if any(None not in pair for pair in models) else []


def _list_repeats(rows: Labels) -> list[tuple[Any, ...]]:
    """Return one tuple (n,) per time that the judge was asked again: its scores or labels, None if missing."""
    repeats = [each if isinstance(each, tuple) else () for each in rows["repeats"]]
    return list(zip_longest(*repeats))


def _floats(column: Any) -> Floats:
    """Return a column as numbers. None becomes NaN."""
    return np.asarray(column, dtype=np.float64)


def _listed(column: "pd.Series[Any]") -> list[Any]:
    """Return a column's values as a list. NaN becomes None."""
    return list(column.astype(object).where(column.notna(), None))


def _sample_notes(sample: RatedSample, scale: Scale, judge_scale: Scale) -> list[str]:
    """Return notes on missing lengths, and on scales that were converted to 1..10. `scale`: people's scale."""
    notes, labelled = [], sample.labelled
    short = 0 if labelled.length is None else int(np.isnan(labelled.length).sum())
    if 0 < short < len(labelled.ids):
        notes.append(f"{short} of {len(labelled.ids)} answers have no length: what length does is not measured")
    scales = {"": scale} if judge_scale == scale else {"people's ": scale, "judges' ": judge_scale}
    for whose, (low, high) in scales.items():
        if (low, high) != SCALE:
            factor = (SCALE[1] - SCALE[0]) / (high - low)
            notes.append(f"{whose}scores on {low:g}..{high:g} are moved onto 1..10: a point there is {factor:.3g} here")
    return notes


def _unmatched(
    people: "pd.Index[str]", judged: "pd.Index[str]", kept: Sequence[str], *, kind: Kind, judge: str
) -> list[str]:
    """Return notes on ids that are in one file only, each with the first such id, so that typing errors show.

    `kept`: the ids that the audit uses.
    """
    lost, left = people.difference(judged, sort=False), judged.difference(kept, sort=False)
    facts = {"kind": kind, "things": f"{_THINGS[kind]}s", "judge": judge}
    notes = [say("lost", lost=len(lost), people=len(people), first=quoted(lost[0]), **facts)] if len(lost) else []
    return notes + ([say("left", left=len(left), first=quoted(left[0]), **facts)] if len(left) else [])
