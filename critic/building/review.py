"""What people decide of the conversations that were made: a sheet for two reviewers, a third where they differ, and the
yield by reason as MultiVerse prints it (§2.1, step 4)."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from critic import jsonl, tables
from critic.building.replies import Made
from critic.errors import UsageError
from critic.records import Language

CRITERIA = {"natural": "unnatural_flow", "correct": "wrong_answer", "needs_image": "blind"}
"""Column of the sheet, and the reason for which a conversation goes where the answer is no."""

ASKED: dict[Language, dict[str, str]] = {
    "en": {
        "natural": "Does the conversation flow as it would in real life, and fit the picture?",
        "correct": "Is every answer right?",
        "needs_image": "Does one have to see the picture to answer?",
    },
    "zh": {
        "natural": "对话是否自然，像真实生活中的交流，并且符合图片？",
        "correct": "每个回答都正确吗？",
        "needs_image": "是否必须看到图片才能回答？",
    },
}
"""The same in words, for those who are asked."""

YES, NO = {"yes", "y", "1", "true", "是"}, {"no", "n", "0", "false", "否"}

REVIEWERS = 2
"""Of a conversation; a third decides where they differ."""

Votes = dict[str, dict[str, list[bool]]]
"""Conversation -> criterion -> what each reviewer said."""


class Reviewed(Struct, frozen=True):
    """The ids that people accepted, those that they did not with the reasons, those that too few have seen, and
    those on which they differ."""

    accepted: list[str]
    removed: dict[str, list[str]]
    open: list[str]
    differing: list[str]

    def reasons(self) -> list[str]:
        return [reason for some in self.removed.values() for reason in some]

    def line(self) -> str:
        """The yield as MultiVerse prints it: one conversation may go for several reasons."""
        reasons = Counter(self.reasons())
        why = ", ".join(f"{reasons[reason]} {reason}" for reason in CRITERIA.values())
        total = sum(map(len, (self.accepted, self.removed, self.open, self.differing)))
        left = [(self.open, "open"), (self.differing, "differ")]
        more = "".join(f"; {len(some)} {word}" for some, word in left if some)
        return f"reviewed: {len(self.accepted)} of {total} retained, {len(self.removed)} removed ({why}){more}"


def ids_on(path: Path) -> set[str]:
    """The conversations that a sheet or a file of rows names; none where it is not there."""
    return {tables.text(place, row, "id") for place, row in tables.rows(path)} if path.is_file() else set()


def _with(path: Path, new: Sequence[dict[str, Any]], write: Callable[[Path, list[dict[str, Any]]], object]) -> None:
    """Write rows behind those of a file, which stay as people left them. Without new ones it is not touched."""
    if new or not path.is_file():
        there = [row for _, row in tables.rows(path)] if path.is_file() else []
        write(path, [*there, *new])


def write_sheet(path: Path, made: Sequence[Made], reviewers: Iterable[str]) -> None:
    """A line a conversation and reviewer, each reviewer's in another order; people fill in CRITERIA with yes or no.
    Conversations that a sheet has already are left as they are, the others come behind them."""
    rows: list[dict[str, Any]] = []
    there = ids_on(path)
    for reviewer in reviewers:
        drawn = sorted(made, key=lambda one: hashlib.sha256(f"{reviewer}/{one.id}".encode()).digest())
        for one in drawn:
            about = {"id": one.id, "reviewer": reviewer, "image": one.image, "conversation": spoken(one)}
            if one.id not in there:
                rows.append({**about, "note": "", **dict.fromkeys(CRITERIA, "")})
    _with(path, rows, tables.write_csv)


def write_rows(path: Path, made: Sequence[Made]) -> None:
    """The same as rows for `critic annotate --scheme checklist --raters 2 --overlap 1`; its labels.jsonl comes back."""
    there = ids_on(path)
    rows = [
        {"id": one.id, "task": one.task or "", "lang": one.lang, "group": one.id, "image": one.image}
        | {"question": "\n".join(turn.question for turn in one.turns), "response": spoken(one)}
        | {"checklist": list(ASKED[one.lang].values())}
        for one in made
        if one.id not in there
    ]
    _with(path, rows, jsonl.write)


def write_rewrites(path: Path, made: Sequence[Made]) -> None:
    """The rewrites of single questions as `critic rewrite` has them for people, who set `accepted`."""
    there = {(row.get("seed"), row.get("variant")) for _, row in tables.rows(path)} if path.is_file() else set()
    rows = [
        {"seed": one.id, "question": one.turns[0].question, "variant": number, "prompt": text, "accepted": None}
        for one in made
        for number, text in enumerate(one.wordings, 1)
        if (one.id, number) not in there
    ]
    _with(path, rows, jsonl.write)


def accepted(made: Sequence[Made], paths: Iterable[Path]) -> tuple[dict[str, list[str]], int]:
    """The rewrites that people accepted, by conversation, and how many are still to be looked at. Of several files the
    last that decides counts."""
    said: dict[tuple[str, int], bool] = {}
    for path in paths:
        for place, row in tables.rows(path):
            if row.get("accepted") not in (None, True, False):
                raise UsageError(f"{place}: 'accepted' is {row['accepted']!r}; expected true or false")
            if row.get("accepted") is not None and "seed" in row:
                said[str(row["seed"]), int(row["variant"])] = row["accepted"]
    every = {(one.id, number): text for one in made for number, text in enumerate(one.wordings, 1)}
    kept: dict[str, list[str]] = {one.id: [] for one in made}
    for key, text in every.items():
        if said.get(key):
            kept[key[0]].append(text)
    return kept, len(every.keys() - said.keys())


def spoken(one: Made) -> str:
    """A conversation as people read it."""
    turns = [(before.question, before.answer) for before in one.dialogue]
    turns += [(turn.question, turn.answer) for turn in one.turns]
    return "\n\n".join(f"Q{number}: {asked}\nA{number}: {said}" for number, (asked, said) in enumerate(turns, 1))


def read(paths: Iterable[Path], known: Iterable[str]) -> Votes:
    """What people said: filled sheets (.csv, .xlsx), or the labels of critic annotate (.jsonl). A line whose columns
    are all empty is nobody's yet. Raises UsageError naming the place for another word, an unknown id, or a reviewer who
    says something twice."""
    votes: Votes = defaultdict(lambda: defaultdict(list))
    ids, said_by = set(known), tables.Ids()
    for path in paths:
        for place, row in tables.rows(path):
            if "seed" in row:  # a rewrite, see `accepted`
                continue
            key = tables.text(place, row, "id")
            if key not in ids:
                raise UsageError(f"{place}: {key!r} is no conversation of this benchmark")
            labels = row.get("checklist_answers")
            if labels is not None:
                _add_labels(place, votes[key], labels, len(row.get("annotators") or {}))
                continue
            answers = {name: (tables.optional_text(row, name) or "").lower() for name in CRITERIA}
            if not any(answers.values()):
                continue
            said_by.add(place, f"{key} by {tables.text(place, row, 'reviewer')}")
            for name, answer in answers.items():
                if answer not in YES | NO:
                    raise UsageError(f"{place}: {name!r} is {answer!r}; expected yes or no")
                votes[key][name].append(answer in YES)
    return votes


def _add_labels(place: str, votes: dict[str, list[bool]], labels: Any, raters: int) -> None:
    """The majority of annotators' answers, where there is one, counts as all of theirs."""
    if not isinstance(labels, list) or len(labels) != len(CRITERIA):
        raise UsageError(f"{place}: 'checklist_answers' must have {len(CRITERIA)} entries")
    for name, label in zip(CRITERIA, labels, strict=True):
        votes[name] += [label] * max(1, raters) if label is not None else [True, False]


def decide(made: Sequence[Made], votes: Votes) -> Reviewed:
    """A criterion is decided by more of one word than of the other, from REVIEWERS reviewers on. One no is enough for a
    conversation to go."""
    accepted, removed, unseen, differing = list[str](), dict[str, list[str]](), list[str](), list[str]()
    for one in made:
        said = [votes[one.id][name] if one.id in votes else [] for name in CRITERIA]
        verdicts = [_majority(some) for some in said]
        reasons = [reason for reason, verdict in zip(CRITERIA.values(), verdicts, strict=True) if verdict is False]
        if reasons:
            removed[one.id] = reasons
        elif min(map(len, said)) < REVIEWERS:
            unseen.append(one.id)
        elif None in verdicts:
            differing.append(one.id)
        else:
            accepted.append(one.id)
    return Reviewed(accepted, removed, unseen, differing)


def _majority(said: Sequence[bool]) -> bool | None:
    yes = sum(said)
    return None if len(said) < REVIEWERS or 2 * yes == len(said) else 2 * yes > len(said)
