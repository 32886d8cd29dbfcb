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
from eval_agreement.annotate.store import Given, Store

_PREFERENCES = {"A": "a", "B": "b"}

_ABOUT = ("task", "category", "lang", "system", "length_a", "length_b")
"""What an audit's table says of an item beside its label."""


def export(store: Store, path: Path) -> int:
    """Write what is labelled; how many lines. A .csv has every label, a .jsonl what training and the audit read: no
    repeats, no items with a known answer, none that were skipped or are broken, no checklists of which nothing is
    decided.

    Raises UsageError where nothing is labelled, or the suffix is another.
    """
    if path.suffix == ".csv":
        return write_csv(path, [_every(one) for one in store.given()])
    if path.suffix != ".jsonl":
        raise UsageError(f"--export {path}: expected .jsonl, or .csv for a line a label")
    labels: dict[int, list[Given]] = defaultdict(list)
    for one in store.given():
        if one.role == "item" and one.said.choices and not one.said.broken:
            labels[one.number].append(one)
    if not labels:
        raise UsageError(f"{store.path}: nothing is labelled yet")
    scheme = SCHEMES[store.facts()["scheme"]]
    lines_of = _row if scheme.column is None else _table
    return jsonl.write(path, (line for _, some in sorted(labels.items()) for line in lines_of(scheme, some)))


def _every(one: Given) -> dict[str, Any]:
    said = one.said
    about = {"rater": one.rater, "role": one.role, "first": "b" if one.swapped else "a", "at": one.at}
    rest = {"seconds": said.seconds, "reason": said.reason, "skipped": said.skipped, "broken": said.broken}
    return {"id": one.item.id, "group": one.item.group, **about, **said.choices, **rest, "source": said.source}


def _row(scheme: Scheme, labels: Sequence[Given]) -> Iterator[dict[str, Any]]:
    """The row that an item was made of, with people's scores; none where nobody says yes or no to an item of its
    checklist."""
    item = labels[0].item
    answers = {ask.key: [one.said.choices[ask.key] for one in labels] for ask in item.asks}
    added = (_rated if scheme.rated else _checked)(scheme, answers, labels)
    if not added["annotators"]:
        return
    default = {"task": "", "reference": None, "system": None, "lang": item.lang, "group": item.group}
    old = {key: value for key, value in item.row.items() if key != "score_1_10"}
    reason = next((one.said.reason for one in labels if one.said.reason), None)
    yield {**default, **old, **added, "reason": reason}


def _rated(scheme: Scheme, answers: Mapping[str, Sequence[str]], labels: Sequence[Given]) -> dict[str, Any]:
    given = {one.rater: float(one.said.choices[OVERALL]) for one in labels}
    means = {key.partition("=")[2]: fmean(map(float, said)) for key, said in answers.items() if key != OVERALL}
    score = {"human_score": fmean(given.values()), "scale_min": 1, "scale_max": len(scheme.choices)}
    return score | ({"criteria_scores": means} if means else {}) | {"annotators": given}


def _checked(scheme: Scheme, answers: Mapping[str, Sequence[str]], labels: Sequence[Given]) -> dict[str, Any]:
    shares = {one.rater: _share(one.said.choices.values()) for one in labels}
    given = {rater: share for rater, share in shares.items() if share is not None}
    right = [_majority(said) for said in answers.values()]
    score = _share("yes" if one else "no" for one in right if one is not None)
    if score is None and given:  # they are of two minds on every item
        score = fmean(given.values())
    votes = [[said.count("yes"), said.count("no")] for said in answers.values()]
    checked = {"checklist_answers": right, "checklist_votes": votes}
    return {"human_score": score, "scale_min": 0, "scale_max": 1, **checked, "annotators": given}


def _share(answers: Iterable[str]) -> float | None:
    """The share of yes among yes and no; None where there is neither."""
    said = [answer == "yes" for answer in answers if answer in ("yes", "no")]
    return fmean(said) if said else None


def _majority(answers: Sequence[str]) -> bool | None:
    """What more raters say; None for as many of each."""
    count = Counter(answers)
    return None if count["yes"] == count["no"] else count["yes"] > count["no"]


def _table(scheme: Scheme, labels: Sequence[Given]) -> Iterator[dict[str, Any]]:
    """A line a label and question, as the audit's tables have them. The id of a verdict on a turn follows from that on
    the whole conversation (eval_agreement.items)."""
    item = labels[0].item
    row = {"lang": item.lang, **item.row}
    about = {"group": item.group} | {key: row[key] for key in _ABOUT if row.get(key) is not None}
    conversation, _, rest = item.id.rpartition("/whole")
    for one in labels:
        for key, value in one.said.choices.items():
            where = {"id": item.id, "turn": "1"}
            if key != OVERALL:
                where = {"id": f"{conversation}/{key}{rest}", "turn": key}
            said: Any = _PREFERENCES.get(value, "tie") if scheme.two else float(value) if scheme.rated else value
            more = {"both_bad": True} if value == "both bad" else {}
            yield {**where, str(scheme.column): said, "rater": one.rater, **about, **more}
