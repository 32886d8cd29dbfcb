"""What people decide of the conversations that were made: a sheet for two reviewers, a third where they differ, and the
yield by reason as MultiVerse prints it (§2.1, step 4)."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

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

_Count = Annotated[int, Meta(ge=0)]

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


def _bare(text: object) -> str:
    """A text as it is compared: as it stands in a table, without white space, which spreadsheets change."""
    return "".join(str(tables.harmless(text or "")).split())


def on_another(row: Mapping[str, Any], texts: Mapping[str, str]) -> bool:
    """Whether a row's columns show other `texts` than these: what people say in it is on those. A row without a column
    is taken at its id."""
    return any(_bare(row.get(column)) not in ("", _bare(text)) for column, text in texts.items())


def _with(path: Path, new: Sequence[dict[str, Any]], write: Callable[[Path, list[dict[str, Any]]], object]) -> None:
    """Write rows behind those of a file, which stay as people left them. Without new ones it is not touched."""
    if new or not path.is_file():
        there = [row for _, row in tables.rows(path)] if path.is_file() else []
        write(path, [*there, *new])


def _write_replacing(path: Path, rows: Sequence[dict[str, Any]], keys: Sequence[str], texts: Sequence[str]) -> None:
    """Write rows behind those of a file of JSON lines, or in place of the one that has the same `keys`, which come but
    once in it, and other `texts`. Without such rows it is not touched."""
    there = {tuple(row.get(key) for key in keys): row for _, row in tables.rows(path)} if path.is_file() else {}
    wanted = {tuple(row[key] for key in keys): row for row in rows}
    new = {
        key: row
        for key, row in wanted.items()
        if key not in there or on_another(there[key], {text: row[text] for text in texts})
    }
    if new or not path.is_file():
        jsonl.write(path, {**there, **new}.values())


def write_sheet(path: Path, made: Sequence[Made], reviewers: Iterable[str]) -> None:
    """A line a conversation and reviewer, each reviewer's in another order; people fill in CRITERIA with yes or no.
    Conversations that a sheet has already, with the same text, are left as they are, the others come behind them."""
    rows: list[dict[str, Any]] = []
    texts, there = {one.id: spoken(one) for one in made}, set[str]()
    for place, row in tables.rows(path) if path.is_file() else ():
        key = tables.text(place, row, "id")
        if key in texts and not on_another(row, {"conversation": texts[key]}):
            there.add(key)
    for reviewer in reviewers:
        drawn = sorted(made, key=lambda one: hashlib.sha256(f"{reviewer}/{one.id}".encode()).digest())
        for one in drawn:
            about = {"id": one.id, "reviewer": reviewer, "image": one.image, "conversation": texts[one.id]}
            if one.id not in there:
                rows.append({**about, "note": "", **dict.fromkeys(CRITERIA, "")})
    _with(path, rows, tables.write_csv)


def write_rows(path: Path, made: Sequence[Made]) -> None:
    """The same as rows for `critic annotate --scheme checklist --raters 2 --overlap 1`; its labels.jsonl comes back."""
    rows: list[dict[str, Any]] = [
        {"id": one.id, "task": one.task or "", "lang": one.lang, "group": one.id, "image": one.image}
        | {"question": "\n".join(turn.question for turn in one.turns), "response": spoken(one)}
        | {"checklist": list(ASKED[one.lang].values())}
        for one in made
    ]
    _write_replacing(path, rows, ["id"], ["response"])


def write_rewrites(path: Path, made: Sequence[Made]) -> None:
    """The rewrites of single questions as `critic rewrite` has them for people, who set `accepted`."""
    rows = [
        {"seed": one.id, "question": one.turns[0].question, "variant": number, "prompt": text, "accepted": None}
        for one in made
        for number, text in enumerate(one.wordings, 1)
    ]
    _write_replacing(path, rows, ["seed", "variant"], ["question", "prompt"])


class Accepted(Struct, frozen=True):
    """The rewrites that people accepted, by conversation; how many are still to be looked at, and how many lines were
    on other texts."""

    kept: dict[str, list[str]]
    unseen: int
    stale: int


def accepted(made: Sequence[Made], paths: Iterable[Path]) -> Accepted:
    """What people decided of rewrites. Of several files the last that decides counts."""
    every = {
        (one.id, number): {"question": one.turns[0].question, "prompt": text}
        for one in made
        for number, text in enumerate(one.wordings, 1)
    }
    said, stale = dict[tuple[str, int], bool](), 0
    for path in paths:
        for place, row in tables.rows(path):
            if row.get("accepted") not in (None, True, False):
                raise UsageError(f"{place}: 'accepted' is {row['accepted']!r}; expected true or false")
            if row.get("accepted") is None or "seed" not in row:
                continue
            key = str(row["seed"]), int(row["variant"])
            if on_another(row, every.get(key, {})):
                stale += 1
            else:
                said[key] = row["accepted"]
    kept: dict[str, list[str]] = {one.id: [] for one in made}
    for key, texts in every.items():
        if said.get(key):
            kept[key[0]].append(texts["prompt"])
    return Accepted(kept, len(every.keys() - said.keys()), stale)


def spoken(one: Made) -> str:
    """A conversation as people read it."""
    turns = [(before.question, before.answer) for before in one.dialogue]
    turns += [(turn.question, turn.answer) for turn in one.turns]
    return "\n\n".join(f"Q{number}: {asked}\nA{number}: {said}" for number, (asked, said) in enumerate(turns, 1))


def read(paths: Iterable[Path], made: Iterable[Made], gone: Iterable[str] = ()) -> tuple[Votes, int]:
    """What people said: filled sheets (.csv, .xlsx), or the labels of critic annotate (.jsonl); and how many lines were
    on other texts than the conversations have, which do not count. A line whose columns are all empty is nobody's yet.
    Raises UsageError naming the place for another word, an id that is neither made nor `gone`, or a reviewer who says
    something twice."""
    votes: Votes = defaultdict(lambda: defaultdict(list))
    texts, said_by, stale = {one.id: spoken(one) for one in made}, tables.Ids(), 0
    ids = {*texts, *gone}
    for path in paths:
        for place, row in tables.rows(path):
            if "seed" in row:  # a rewrite, see `accepted`
                continue
            key = tables.text(place, row, "id")
            if key not in ids:
                raise UsageError(f"{place}: {key!r} is no conversation of this benchmark")
            labels = row.get("checklist_answers")
            answers = {name: (tables.optional_text(row, name) or "").lower() for name in CRITERIA}
            if labels is None and not any(answers.values()):
                continue
            if key in texts and on_another(row, dict.fromkeys(("conversation", "response"), texts[key])):
                stale += 1
                continue
            if labels is not None:
                _add_labels(place, votes[key], labels, row.get("checklist_votes"), len(row.get("annotators") or {}))
                continue
            said_by.add(place, f"{key} by {tables.text(place, row, 'reviewer')}")
            for name, answer in answers.items():
                if answer not in YES | NO:
                    raise UsageError(f"{place}: {name!r} is {answer!r}; expected yes or no")
                votes[key][name].append(answer in YES)
    return votes, stale


def _add_labels(place: str, votes: dict[str, list[bool]], labels: Any, counts: Any, raters: int) -> None:
    """Each annotator's yes or no, where the row counts them: who cannot say has said neither. Else the majority's
    answer, where there is one, counts as all of theirs."""
    if not isinstance(labels, list) or len(labels) != len(CRITERIA):
        raise UsageError(f"{place}: 'checklist_answers' must have {len(CRITERIA)} entries")
    if counts is None:
        counts = [[raters or 1, 0] if label else [1, 1] if label is None else [0, raters or 1] for label in labels]
    try:
        for name, (yes, no) in zip(CRITERIA, msgspec.convert(counts, list[tuple[_Count, _Count]]), strict=True):
            votes[name] += [True] * yes + [False] * no
    except (msgspec.ValidationError, ValueError):
        raise UsageError(f"{place}: 'checklist_votes' must have how many said yes and no for each criterion") from None


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
