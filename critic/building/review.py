"""What people decide of the conversations that were made: a sheet for two reviewers, a third where they differ, and the
yield by reason as MultiVerse prints it (§2.1, step 4)."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from critic import jsonl, tables
from critic.building.replies import Made
from critic.errors import UsageError

CRITERIA = {"natural": "unnatural_flow", "correct": "wrong_answer", "needs_image": "blind"}
"""Column of the sheet, and the reason for which a conversation goes where the answer is no."""

YES, NO = {"yes", "y", "1", "true", "是"}, {"no", "n", "0", "false", "否"}

REVIEWERS = 2
"""Of a conversation; a third decides where they differ."""


class Sheet(Struct, frozen=True):
    """A table that people fill in with yes or no, CSV or JSONL: what an answer is about is told by the columns `keys`
    and by the `texts` that people saw, so that answers on a text that was made anew since do not count."""

    path: Path
    keys: Sequence[str]
    texts: Sequence[str]
    answers: Sequence[str]

    def key(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """Without white space, which spreadsheets change, and as a text stands in a table."""
        cells = (tables.cell_text(row.get(column)) or "" for column in (*self.keys, *self.texts))
        return tuple("".join(tables.harmless(cell).split()) for cell in cells)

    def rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        if self.path.is_file():
            yield from tables.rows(self.path)

    def ask(self, rows: Iterable[dict[str, Any]]) -> None:
        """Write rows behind those of the file, which stay as people left them, unless they are there already."""
        there = [row for _, row in self.rows()]
        known = set(map(self.key, there))
        new = [row for row in rows if self.key(row) not in known]
        if new:
            write = jsonl.write if self.path.suffix == ".jsonl" else tables.write_csv
            write(self.path, [*there, *new])

    def filled(self) -> dict[tuple[str, ...], list[bool]]:
        """What people answered; a row whose answers are all empty is nobody's yet. Raises UsageError naming the place
        for another word, and for what is answered twice."""
        answered = dict[tuple[str, ...], list[bool]]()
        for place, row in self.rows():
            cells = [tables.optional_text(row, column) for column in self.answers]
            words = [(cell or "").lower() for cell in cells]
            if not any(words):
                continue
            for column, word in zip(self.answers, words, strict=True):
                if word not in YES | NO:
                    raise UsageError(f"{place}: {column!r} is {word!r}; expected yes or no")
            if (key := self.key(row)) in answered:
                raise UsageError(f"{place}: {' by '.join(key[: len(self.keys)])} is answered twice")
            answered[key] = [word in YES for word in words]
        return answered


class Reviewed(Struct, frozen=True):
    """The ids that people accepted, those that they did not with the reasons, those that too few have seen, those on
    which they differ, and how many lines are on texts that are no longer there (`stale`)."""

    accepted: list[str]
    removed: dict[str, list[str]]
    open: list[str]
    differing: list[str]
    stale: int = 0

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


def conversation_sheet(folder: Path) -> Sheet:
    return Sheet(folder / "sheet.csv", ["id", "reviewer"], ["conversation"], list(CRITERIA))


def conversation_rows(made: Sequence[Made], reviewers: Iterable[int]) -> Iterator[dict[str, Any]]:
    """A row a conversation and reviewer, each reviewer's in another order."""
    for reviewer in reviewers:
        for conversation in sorted(
            made, key=lambda conversation: hashlib.sha256(f"{reviewer}/{conversation.id}".encode()).digest()
        ):
            about = {
                "id": conversation.id,
                "reviewer": str(reviewer),
                "image": conversation.image,
                "conversation": spoken(conversation),
            }
            yield {**about, "note": "", **dict.fromkeys(CRITERIA, "")}


def rewrite_sheet(path: Path) -> Sheet:
    """The rewrites of single questions, of which people set `accepted`."""
    return Sheet(path, ["seed", "variant"], ["question", "prompt"], ["accepted"])


def rewrite_rows(seed: str, question: str, wordings: Sequence[str]) -> list[dict[str, Any]]:
    about = {"seed": seed, "question": question}
    return [{**about, "variant": number, "prompt": text, "accepted": None} for number, text in enumerate(wordings, 1)]


def spoken(conversation: Made) -> str:
    """A conversation as people read it."""
    turns = [(before.question, before.answer) for before in conversation.dialogue]
    turns += [(turn.question, turn.answer) for turn in conversation.turns]
    return "\n\n".join(f"Q{number}: {asked}\nA{number}: {said}" for number, (asked, said) in enumerate(turns, 1))


def decide(made: Sequence[Made], sheet: Sheet) -> Reviewed:
    """A criterion is decided by more of one word than of the other, from REVIEWERS reviewers on. One no is enough for a
    conversation to go. Raises UsageError as `Sheet.filled` does."""
    votes = defaultdict[tuple[str, str], list[list[bool]]](list)
    for (key, _, text), answers in sheet.filled().items():
        votes[key, text].append(answers)
    accepted, removed, unseen, differing = list[str](), dict[str, list[str]](), list[str](), list[str]()
    for conversation in made:
        key, _, text = sheet.key({"id": conversation.id, "conversation": spoken(conversation)})
        reviews = votes.pop((key, text), [])
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
    return Reviewed(accepted, removed, unseen, differing, stale=sum(map(len, votes.values())))
