"""Labels as training and the audit read them: human-scored rows, and tables of preferences and verdicts."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from critic import jsonl
from critic.errors import UsageError
from critic.tables import write_csv
from eval_agreement.annotate.schemes import OVERALL, SCHEMES, Scheme
from eval_agreement.annotate.store import Label, Store

_PAIR = ("question", "history", "images", "reference", "response_a", "response_b", "system_a", "system_b")
_ABOUT = ("task", "category", "lang", "system", "length_a", "length_b", *_PAIR)
"""What an audit's table, and of two answers training, is told of an item beside its label."""


def export(store: Store, path: Path) -> int:
    """Write what is labelled; how many lines. A .csv has every label, a .jsonl what training and the audit read: no
    repeats, no items with a known answer, none that were skipped or are broken, no checklists of which nothing is
    decided.

    Raises UsageError where nothing is labelled, or the suffix is another.
    """
    if path.suffix == ".csv":
        return write_csv(path, [_every(label) for label in store.labels()])
    if path.suffix != ".jsonl":
        raise UsageError(f"--export {path}: expected .jsonl, or .csv for a line a label")
    labels: dict[int, list[Label]] = defaultdict(list)
    for label in store.labels():
        if label.role == "item" and label.verdict.choices and not label.verdict.broken:
            labels[label.number].append(label)
    if not labels:
        raise UsageError(f"{store.path}: nothing is labelled yet")
    scheme = SCHEMES[store.facts()["scheme"]]
    lines_of = _row if scheme.column is None else _table
    return jsonl.write(path, (line for _, some in sorted(labels.items()) for line in lines_of(scheme, some)))


def _every(label: Label) -> dict[str, Any]:
    verdict = label.verdict
    about = {"rater": label.rater, "role": label.role, "first": "b" if label.swapped else "a", "at": label.at}
    rest = {name: getattr(verdict, name) for name in ("seconds", "reason", "skipped", "broken", "source")}
    return {"id": label.item.id, "group": label.item.group, **about, **verdict.choices, **rest}


def _row(scheme: Scheme, labels: Sequence[Label]) -> Iterator[dict[str, Any]]:
    """The row that an item was made of, with people's scores; none where nobody says yes or no to an item of its
    checklist."""
    item = labels[0].item
    choices = {ask.key: [label.verdict.choices[ask.key] for label in labels] for ask in item.asks}
    added = (_rated if scheme.rated else _checked)(scheme, choices, labels)
    if not added["annotators"]:
        return
    default = {"task": "", "reference": None, "system": None, "lang": item.lang, "group": item.group}
    old = {key: value for key, value in item.row.items() if key != "score_1_10"}
    reason = next((label.verdict.reason for label in labels if label.verdict.reason), None)
    yield {**default, **old, **added, "reason": reason}


def _rated(scheme: Scheme, choices: Mapping[str, Sequence[str]], labels: Sequence[Label]) -> dict[str, Any]:
    scores = {label.rater: float(label.verdict.choices[OVERALL]) for label in labels}
    means = {key.partition("=")[2]: fmean(map(float, some)) for key, some in choices.items() if key != OVERALL}
    score = {"human_score": fmean(scores.values()), "scale_min": 1, "scale_max": len(scheme.choices)}
    return score | ({"criteria_scores": means} if means else {}) | {"annotators": scores}


def _checked(scheme: Scheme, choices: Mapping[str, Sequence[str]], labels: Sequence[Label]) -> dict[str, Any]:
    shares = {label.rater: _share(label.verdict.choices.values()) for label in labels}
    scores = {rater: share for rater, share in shares.items() if share is not None}
    right = [_majority(some) for some in choices.values()]
    score = _share("yes" if holds else "no" for holds in right if holds is not None)
    if score is None and scores:  # they are of two minds on every item
        score = fmean(scores.values())
    votes = [[some.count("yes"), some.count("no")] for some in choices.values()]
    checked = {"checklist_answers": right, "checklist_votes": votes}
    return {"human_score": score, "scale_min": 0, "scale_max": 1, **checked, "annotators": scores}


def _share(choices: Iterable[str]) -> float | None:
    """The share of yes among yes and no; None where there is neither."""
    decided = [choice == "yes" for choice in choices if choice in ("yes", "no")]
    return fmean(decided) if decided else None


def _majority(answers: Sequence[str]) -> bool | None:
    """What more raters say; None for as many of each."""
    count = Counter(answers)
    return None if count["yes"] == count["no"] else count["yes"] > count["no"]


def _table(scheme: Scheme, labels: Sequence[Label]) -> Iterator[dict[str, Any]]:
    """A line a label and question, as the audit's tables have them. The id of a verdict on a turn follows from that on
    the whole conversation (eval_agreement.items)."""
    item = labels[0].item
    row = {"lang": item.lang, **item.row}
    about = {"group": item.group} | {key: row[key] for key in _ABOUT if row.get(key) is not None}
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
