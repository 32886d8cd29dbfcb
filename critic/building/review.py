"""What people decide of the conversations that were made: a sheet for two reviewers, a third where they differ, and the
yield by reason as MultiVerse prints it (§2.1, step 4)."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from critic import tables
from critic.building.replies import Made
from critic.errors import UsageError

CRITERIA = {"natural": "unnatural_flow", "correct": "wrong_answer", "needs_image": "blind"}
"""Column of the sheet, and the reason for which a conversation goes where the answer is no."""

YES, NO = {"yes", "y", "1", "true", "是"}, {"no", "n", "0", "false", "否"}

REVIEWERS = 2
"""Of a conversation; a third decides where they differ."""

Key = tuple[str, str, str]
"""Id, reviewer, and the text that the reviewer saw, so that answers on a text that was made anew since do not count."""


class Reviewed(Struct, frozen=True):
    """The ids that people accepted, those that they did not with the reasons, those that too few have seen, and those
    on which they differ."""

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


def _key(row: Mapping[str, Any]) -> Key:
    """Without white space, which spreadsheets change, and as a text stands in a table."""
    cells = (tables.cell_text(row.get(column)) or "" for column in ("id", "reviewer", "conversation"))
    key, reviewer, text = ("".join(tables.harmless(cell).split()) for cell in cells)
    return key, reviewer, text


def _rows(sheet: Path) -> list[tuple[str, dict[str, Any]]]:
    return list(tables.rows(sheet)) if sheet.is_file() else []


def ask(sheet: Path, made: Sequence[Made], reviewers: Iterable[int]) -> None:
    """Write a row a conversation and reviewer, each reviewer's in another order, behind those of the file, which stay
    as people left them."""
    present = [row for _, row in _rows(sheet)]
    known = set(map(_key, present))
    new = []
    for reviewer in map(str, reviewers):
        for talk in sorted(made, key=lambda talk: hashlib.sha256(f"{reviewer}/{talk.id}".encode()).digest()):
            about = {"id": talk.id, "reviewer": reviewer, "image": talk.image, "conversation": spoken(talk)}
            note = "; ".join(f"models differ on: {item}" for turn in talk.turns for item in turn.disputed)
            new.append({**about, "note": note, **dict.fromkeys(CRITERIA, "")})
    if new := [row for row in new if _key(row) not in known]:
        tables.write_csv(sheet, [*present, *new])


def answers(sheet: Path) -> dict[Key, list[bool]]:
    """What people answered; a row whose answers are all empty is nobody's yet. Raises UsageError naming the row for
    another word, and for what is answered twice."""
    found = dict[Key, list[bool]]()
    for place, row in _rows(sheet):
        cells = [(tables.optional_text(row, column) or "").lower() for column in CRITERIA]
        if not any(cells):
            continue
        for column, cell in zip(CRITERIA, cells, strict=True):
            if cell not in YES | NO:
                raise UsageError(f"{place}: {column!r} is {cell!r}; expected yes or no")
        key = _key(row)
        if key in found:
            raise UsageError(f"{place}: {key[0]} by {key[1]} is answered twice")
        found[key] = [cell in YES for cell in cells]
    return found


def spoken(conversation: Made) -> str:
    """A conversation as people read it."""
    turns = [(before.question, before.answer) for before in conversation.dialogue]
    turns += [(turn.question, turn.answer) for turn in conversation.turns]
    return "\n\n".join(f"Q{number}: {asked}\nA{number}: {said}" for number, (asked, said) in enumerate(turns, 1))


def decide(made: Sequence[Made], sheet: Path) -> Reviewed:
    """A criterion is decided by more of one word than of the other, from REVIEWERS reviewers on. One no is enough for a
    conversation to go. Raises UsageError as `answers` does."""
    votes = defaultdict[tuple[str, str], list[list[bool]]](list)
    for (key, _, text), reply in answers(sheet).items():
        votes[key, text].append(reply)
    accepted, removed, unseen, differing = list[str](), dict[str, list[str]](), list[str](), list[str]()
    for conversation in made:
        key, _, text = _key({"id": conversation.id, "conversation": spoken(conversation)})
        reviews = votes[key, text]
        yes = dict(zip(CRITERIA.values(), map(sum, zip(*reviews, strict=True)), strict=False))
        reasons = [reason for reason, count in yes.items() if 2 * count < len(reviews)]
        if len(reviews) < REVIEWERS:
            unseen.append(conversation.id)
        elif reasons:
            removed[conversation.id] = reasons
        elif any(2 * count == len(reviews) for count in yes.values()):
            differing.append(conversation.id)
        else:
            accepted.append(conversation.id)
    return Reviewed(accepted, removed, unseen, differing)
