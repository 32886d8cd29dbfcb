"""Export of labels for training and the audit: human-scored rows, and tables of preferences and verdicts."""

import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
from msgspec.structs import replace

from critic import jsonl
from critic.building.bench import correct
from critic.errors import UsageError
from critic.human_scored import settle_answers
from critic.page.blocks import Section, as_text
from critic.stages.totals import listed
from critic.stats.arrays import group_numbers
from critic.tables import write_csv
from eval_agreement.annotate.schemes import OVERALL, SCHEMES, LabelItem, Scheme
from eval_agreement.annotate.store import RaterTask, Store
from eval_agreement.metrics import mean_estimate
from eval_agreement.page.words import estimates, percent

_PAIR = ("question", "history", "images", "reference", "response_a", "response_b", "system_a", "system_b")
_ABOUT = ("task", "category", "lang", "system", "length_a", "length_b", "caption", "focus", "checklist", "edits")
"""Columns that an exported table has beside the label. Those of _PAIR serve training on pairs."""


def export(store: Store, path: Path) -> int:
    """Write the labels to `path`, and return the number of lines.

    A .csv file holds every label. A .jsonl file holds rows for training and the audit, without repeats, checks, and
    items that a rater skipped or reported as broken.
    Raises UsageError for another suffix, or if nothing is labelled.
    """
    if path.suffix == ".csv":
        return write_csv(path, list(map(_build_label_line, store.labels())))
    if path.suffix != ".jsonl":
        raise UsageError(f"--export {path}: expected .jsonl, or .csv for a line a label")
    labels: dict[int, list[RaterTask]] = defaultdict(list)
    for label in store.labels():
        if label.role == "item" and label.verdict.choices and not label.verdict.broken:
            labels[label.number].append(label)
    if not labels:
        raise UsageError(f"{store.path}: nothing is labelled yet")
    facts, edits = store.facts(), store.edits()
    scheme = SCHEMES[facts["scheme"]]
    writers = {"columns": _list_collected, "benchmark": _list_reviewed}
    list_rows = writers.get(scheme.source, _list_audit_rows if scheme.column else _list_source_rows)
    lines: list[dict[str, Any]] = []
    for number, item_labels in sorted(labels.items()):
        # Rows leave with the raters' corrections: people labelled the corrected texts.
        item = _apply_edits(item_labels[0].item, edits.get(number, []), facts.get("benchmark"))
        lines += list_rows(scheme, [label._replace(item=item) for label in item_labels])
    if scheme.source == "judgments":
        _print_preferred(lines)
    if scheme.source == "benchmark":
        _say_unreviewed(store, labels.keys())
    return jsonl.write(path, lines)


def _apply_edits(item: LabelItem, edits: Sequence[dict[str, Any]], benchmark: str | None) -> LabelItem:
    """Return the item with the raters' corrections applied to its source row; their history becomes the row's `edits`.

    `benchmark`: name of the benchmark that the row belongs to, or None.
    """
    row = item.row | ({"edits": edits} if edits else {})
    for name in {edit["field"] for edit in edits}:
        kind, _, turn = name.partition(" ")
        correct(benchmark, row, kind, int(turn or 0), item.texts()[name])
    return replace(item, row=row)


def _build_label_line(label: RaterTask) -> dict[str, Any]:
    """Build a line of the .csv from one label, with its rater, its time, and the side that was shown first."""
    verdict = label.verdict
    about = {"rater": label.rater, "role": label.role, "first": "b" if label.swapped else "a", "at": label.at}
    rest = {name: getattr(verdict, name) for name in ("seconds", "reason", "skipped", "broken")}
    return {"id": label.item.id, "group": label.item.group, **about, **verdict.choices, **rest}


def _list_source_rows(scheme: Scheme, labels: Sequence[RaterTask]) -> Iterator[dict[str, Any]]:
    """Yield the item's source row with people's scores added, or nothing if no rater answered its checklist.

    `labels`: all labels of one item.
    """
    item = labels[0].item
    choices = {ask.key: [label.verdict.choices[ask.key] for label in labels] for ask in item.asks}
    added = (_score_ratings if scheme.rated else _score_checks)(scheme, choices, labels)
    if not added["annotators"]:
        return
    default = {"task": "", "reference": None, "system": None, "lang": item.lang, "group": item.group}
    # Earlier scores of the row are on another scale than the new ones.
    old = {key: value for key, value in item.row.items() if key not in ("score_1_10", "criteria_scores")}
    reason = next((label.verdict.reason for label in labels if label.verdict.reason), None)
    yield {**default, **old, **added, "reason": reason}


def _list_collected(scheme: Scheme, labels: Sequence[RaterTask]) -> Iterator[dict[str, Any]]:
    """Yield one row per label, with one column per question. A question that was not asked has the answer "no"."""
    for label in labels:
        unasked = {ask.key: "no" for ask in label.item.asks if ask.after}
        # Several labels of an item are several rows, and ids are unique.
        key = f"{label.item.id}/{label.rater}" if labels[1:] else label.item.id
        yield {**label.item.row, "id": key, **unasked, **label.verdict.choices, "rater": label.rater}


def _list_reviewed(scheme: Scheme, labels: Sequence[RaterTask]) -> Iterator[dict[str, Any]]:
    """Yield the corrected row of a benchmark conversation, unless half of its raters or more reject it."""
    verdicts = {label.rater: label.verdict.choices[OVERALL] for label in labels}
    if settle_answers(verdicts.values(), "yes", "no"):
        yield {**labels[0].item.row, "reviews": verdicts}
    else:
        print(f"left out: {labels[0].item.id!r} ({listed(Counter(verdicts.values()))})", file=sys.stderr)


def _say_unreviewed(store: Store, reviewed: Collection[int]) -> None:
    """Print each item of which no review counts, and why."""
    tried = {label.number: label.verdict for label in store.labels()}
    for number, item in store.items().items():
        if number not in reviewed:
            verdict = tried.get(number)
            skipped = verdict and ("broken" if verdict.broken else f"skipped: {verdict.skipped}")
            print(f"left out: {item.id!r} ({skipped or 'not reviewed yet'})", file=sys.stderr)


def _print_preferred(lines: Sequence[Mapping[str, Any]]) -> None:
    """Print how often the first of two ways to judge was found more logical, with a 95 % interval over questions."""
    shares = {}
    for (way, other), own in pd.DataFrame(lines).groupby(["system_a", "system_b"], sort=False):
        chosen = (own["preference"] == "a").to_numpy(float)
        groups = group_numbers(own["group"].to_list())
        shares[f"{way} rather than {other}"] = mean_estimate(chosen, groups, share=True, null=0.5)
    table = estimates("Found more logical", shares, percent)
    print(as_text([Section(heading="Judgments (ConvBench I.2)", tables=[table])]))


def _score_ratings(scheme: Scheme, choices: Mapping[str, Sequence[str]], labels: Sequence[RaterTask]) -> dict[str, Any]:
    """Return the score fields of a row: the mean overall rating, each criterion's mean, and the raters' own ratings.

    `choices`: the raters' ratings by question key.
    """
    scores = {label.rater: float(label.verdict.choices[OVERALL]) for label in labels}
    means = {key.partition("=")[2]: fmean(map(float, ratings)) for key, ratings in choices.items() if key != OVERALL}
    score = {"human_score": fmean(scores.values()), "scale_min": 1, "scale_max": len(scheme.choices)}
    return score | ({"criteria_scores": means} if means else {}) | {"annotators": scores}


def _score_checks(scheme: Scheme, choices: Mapping[str, Sequence[str]], labels: Sequence[RaterTask]) -> dict[str, Any]:
    """Return the score fields of a row with a checklist: human score (0..1), majority answers, votes, raters' scores.

    The score is the share of yes among the items with a majority. If every item is tied, it is the mean of the raters'
    own shares. It is None if nobody answered.
    """
    scores = {}
    for label in labels:
        count = Counter(label.verdict.choices.values())
        if answered := count["yes"] + count["no"]:
            scores[label.rater] = count["yes"] / answered
    right = [settle_answers(replies, "yes", "no") for replies in choices.values()]
    decided = [holds for holds in right if holds is not None]
    # If raters are divided on every item, the mean of their own scores stands in.
    score = fmean(decided or scores.values()) if scores else None
    votes = [[replies.count("yes"), replies.count("no")] for replies in choices.values()]
    checked = {"checklist_answers": right, "checklist_votes": votes}
    return {"human_score": score, "scale_min": 0, "scale_max": 1, **checked, "annotators": scores}


def _list_audit_rows(scheme: Scheme, labels: Sequence[RaterTask]) -> Iterator[dict[str, Any]]:
    """Yield one row per label and question for the audit. `labels`: all labels of one item.

    The id of a row about a turn is built from the conversation's id.
    """
    item = labels[0].item
    row = {"lang": item.lang, **item.row}
    about = {key: row[key] for key in _ABOUT + _PAIR if row.get(key) is not None}
    conversation, _, rest = item.id.rpartition("/whole")
    for label in labels:
        for key, value in label.verdict.choices.items():
            where = {"id": item.id, "turn": "1"}
            # Of a conversation each turn is a row of the audit.
            if key != OVERALL:
                where = {"id": f"{conversation}/{key}{rest}", "turn": key}
            more = {"both_bad": True} if value == "both bad" else {}
            facts = {"rater": label.rater, "group": item.group, **about, **more}
            yield {**where, str(scheme.column): _encode_choice(scheme, value), **facts}


def _encode_choice(scheme: Scheme, choice: str) -> str | float:
    """Encode a choice for the audit: "a", "b" or "tie" for two sides, a number for a rating, else the choice itself."""
    if scheme.two:
        return {"A": "a", "B": "b"}.get(choice, "tie")
    return float(choice) if scheme.rated else choice
