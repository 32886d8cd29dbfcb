"""Export of labels for training and the audit: human-scored rows, and tables of preferences and verdicts."""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from statistics import fmean
from typing import Any

from msgspec.structs import replace

from critic import jsonl
from critic.building.bench import correct
from critic.errors import UsageError
from critic.stages.run import listed
from critic.tables import write_csv
from eval_agreement.annotate.schemes import OVERALL, SCHEMES, LabelItem, Scheme
from eval_agreement.annotate.store import RaterTask, Store

_PAIR = ("question", "history", "images", "reference", "response_a", "response_b", "system_a", "system_b")
_ABOUT = ("task", "category", "lang", "system", "length_a", "length_b", "caption", "focus", "checklist", "edits")
"""Columns of an exported table beside the label; those of _PAIR are for training on pairs."""


def export(store: Store, path: Path) -> int:
    """Write what is labelled; how many lines. A .csv has every label, a .jsonl what training and the audit read: no
    repeats, checks, skipped or broken ones. Raises UsageError where nothing is labelled, or for another suffix."""
    if path.suffix == ".csv":
        return write_csv(path, [_every(label) for label in store.labels()])
    if path.suffix != ".jsonl":
        raise UsageError(f"--export {path}: expected .jsonl, or .csv for a line a label")
    labels: dict[int, list[RaterTask]] = defaultdict(list)
    for label in store.labels():
        if label.role == "item" and label.verdict.choices and not label.verdict.broken:
            labels[label.number].append(label)
    if not labels:
        raise UsageError(f"{store.path}: nothing is labelled yet")
    facts, edits, lines = store.facts(), store.edits(), list[dict[str, Any]]()
    scheme = SCHEMES[facts["scheme"]]
    own = {"columns": _collected, "benchmark": _reviewed}
    lines_of = own.get(scheme.source, _table if scheme.column else _row)
    for number, of_item in sorted(labels.items()):
        item = _edited(of_item[0].item, edits.get(number, []), facts.get("benchmark"))
        lines += lines_of(scheme, [label._replace(item=item) for label in of_item])
    return jsonl.write(path, lines)


def _edited(item: LabelItem, edits: Sequence[dict[str, Any]], benchmark: str | None) -> LabelItem:
    """Return an item whose row has the corrections of raters, with their history in `edits`."""
    row = deepcopy(item.row) | ({"edits": edits} if edits else {})
    for name in {edit["field"] for edit in edits}:
        kind, _, turn = name.partition(" ")
        correct(benchmark, row, kind, int(turn or 0), item.texts()[name])
    return replace(item, row=row)


def _every(label: RaterTask) -> dict[str, Any]:
    verdict = label.verdict
    about = {"rater": label.rater, "role": label.role, "first": "b" if label.swapped else "a", "at": label.at}
    rest = {name: getattr(verdict, name) for name in ("seconds", "reason", "skipped", "broken")}
    return {"id": label.item.id, "group": label.item.group, **about, **verdict.choices, **rest}


def _row(scheme: Scheme, labels: Sequence[RaterTask]) -> Iterator[dict[str, Any]]:
    """Yield the source row of an item with people's scores. Yields nothing if no rater answered its checklist."""
    item = labels[0].item
    choices = {ask.key: [label.verdict.choices[ask.key] for label in labels] for ask in item.asks}
    added = (_rated if scheme.rated else _checked)(scheme, choices, labels)
    if not added["annotators"]:
        return
    default = {"task": "", "reference": None, "system": None, "lang": item.lang, "group": item.group}
    another_scale = ("score_1_10", "criteria_scores")  # of what somebody said before
    old = {key: value for key, value in item.row.items() if key not in another_scale}
    reason = next((label.verdict.reason for label in labels if label.verdict.reason), None)
    yield {**default, **old, **added, "reason": reason}


def _collected(scheme: Scheme, labels: Sequence[RaterTask]) -> Iterator[dict[str, Any]]:
    """Yield one row per label, with the answers in their columns and `no` for a question that was not asked."""
    for label in labels:
        unasked = {ask.key: "no" for ask in label.item.asks if ask.after}
        key = f"{label.item.id}/{label.rater}" if labels[1:] else label.item.id
        yield {**label.item.row, "id": key, **unasked, **label.verdict.choices, "rater": label.rater}


def _reviewed(scheme: Scheme, labels: Sequence[RaterTask]) -> Iterator[dict[str, Any]]:
    """Yield the corrected row of the benchmark, unless half of the raters or more refuse the conversation."""
    verdicts = {label.rater: label.verdict.choices[OVERALL] for label in labels}
    if _majority([*verdicts.values()]):
        yield {**labels[0].item.row, "reviews": verdicts}
    else:
        print(f"left out: {labels[0].item.id!r} ({listed(Counter(verdicts.values()))})", file=sys.stderr)


def _rated(scheme: Scheme, choices: Mapping[str, Sequence[str]], labels: Sequence[RaterTask]) -> dict[str, Any]:
    scores = {label.rater: float(label.verdict.choices[OVERALL]) for label in labels}
    means = {key.partition("=")[2]: fmean(map(float, ratings)) for key, ratings in choices.items() if key != OVERALL}
    score = {"human_score": fmean(scores.values()), "scale_min": 1, "scale_max": len(scheme.choices)}
    return score | ({"criteria_scores": means} if means else {}) | {"annotators": scores}


def _checked(scheme: Scheme, choices: Mapping[str, Sequence[str]], labels: Sequence[RaterTask]) -> dict[str, Any]:
    scores = {}
    for label in labels:
        if answers := [choice == "yes" for choice in label.verdict.choices.values() if choice in ("yes", "no")]:
            scores[label.rater] = fmean(answers)
    right = [_majority(replies) for replies in choices.values()]
    decided = [holds for holds in right if holds is not None]
    # Where they are of two minds on every item, the mean of what each says.
    score = fmean(decided or scores.values()) if scores else None
    votes = [[replies.count("yes"), replies.count("no")] for replies in choices.values()]
    checked = {"checklist_answers": right, "checklist_votes": votes}
    return {"human_score": score, "scale_min": 0, "scale_max": 1, **checked, "annotators": scores}


def _majority(answers: Sequence[str]) -> bool | None:
    """Return the answer of most raters, or None for a tie.

    >>> _majority(["yes", "yes", "no"]), _majority(["yes", "no"])
    (True, None)
    """
    count = Counter(answers)
    return None if count["yes"] == count["no"] else count["yes"] > count["no"]


def _table(scheme: Scheme, labels: Sequence[RaterTask]) -> Iterator[dict[str, Any]]:
    """Yield one row per label and question for the audit. The id of a turn is built from its conversation's id."""
    item = labels[0].item
    row = {"lang": item.lang, **item.row}
    about = {"group": item.group} | {key: row[key] for key in _ABOUT + _PAIR if row.get(key) is not None}
    conversation, _, rest = item.id.rpartition("/whole")
    for label in labels:
        for key, value in label.verdict.choices.items():
            where = {"id": item.id, "turn": "1"}
            if key != OVERALL:
                where = {"id": f"{conversation}/{key}{rest}", "turn": key}
            more = {"both_bad": True} if value == "both bad" else {}
            yield {**where, str(scheme.column): _cell(scheme, value), "rater": label.rater, **about, **more}


def _cell(scheme: Scheme, choice: str) -> str | float:
    if scheme.two:
        return {"A": "a", "B": "b"}.get(choice, "tie")
    return float(choice) if scheme.rated else choice
