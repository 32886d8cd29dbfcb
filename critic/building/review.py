"""Let people review generated conversations: a sheet for two reviewers, and a third to decide between them.

The yield is printed by reason, as MultiVerse does (§2.1, step 4).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from critic import tables
from critic.building.replies import DraftConversation
from critic.errors import hash_value

CRITERIA = {"natural": "unnatural_flow", "correct": "wrong_answer", "needs_image": "blind"}
"""Column of the review sheet -> reason for removing a conversation if the majority answers no."""

REVIEWERS = 2
"""Number of reviewers per conversation; another one decides if they differ."""


OPEN, DIFFERING = "open", "differ"
"""Outcomes of an unfinished review: OPEN with too few reviewers, DIFFERING without a majority among them."""

Outcomes = dict[str, list[str]]
"""Conversation id -> the reasons for removing it; [] if it is accepted; [OPEN] or [DIFFERING] if undecided."""


def format_yield(outcomes: Outcomes) -> str:
    """Return one line in MultiVerse's style: how many conversations were retained, and how many removed by reason.

    >>> format_yield({"a": [], "b": ["unnatural_flow", "blind"], "c": [DIFFERING]})
    'reviewed: 1 of 3 retained, 1 removed (1 unnatural_flow, 0 wrong_answer, 1 blind); 0 open, 1 differ'
    """
    counts, accepted = Counter(chain(*outcomes.values())), list(outcomes.values()).count([])
    why = ", ".join(f"{counts[reason]} {reason}" for reason in CRITERIA.values())
    removed = len(outcomes) - accepted - counts[OPEN] - counts[DIFFERING]
    line = f"reviewed: {accepted} of {len(outcomes)} retained, {removed} removed ({why})"
    return f"{line}; {counts[OPEN]} open, {counts[DIFFERING]} differ"


def _build_key(talk: DraftConversation) -> str:
    """Return the id of a conversation in the review sheet.

    It contains a hash of the text, so that answers about an earlier text are ignored.
    """
    return f"{talk.id}-{hash_value(format_talk(talk), 8)}"


def _read_rows(sheet: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the rows of the review sheet, each with its location, or [] if there is no sheet yet."""
    return list(tables.rows(sheet)) if sheet.is_file() else []


def _read_reviewer(row: dict[str, Any]) -> tuple[str | None, str | None]:
    """Return the conversation id and the reviewer of a row of the sheet, each None if empty."""
    return tables.optional_text(row, "id"), tables.optional_text(row, "reviewer")


def ask(sheet: Path, conversations: Sequence[DraftConversation], reviewers: Iterable[int]) -> None:
    """Append a row per conversation and reviewer to the review sheet, in a different order for each reviewer.

    Existing rows are kept as they are, and not repeated.
    """
    present = [row for _, row in _read_rows(sheet)]
    existing = set(map(_read_reviewer, present))
    new = []
    for reviewer in map(str, reviewers):
        # Different orders keep fatigue from hitting the same conversations twice.
        for talk in sorted(conversations, key=lambda talk: hash_value(f"{reviewer}/{talk.id}")):
            note = "; ".join(f"models differ on: {item}" for turn in talk.turns for item in turn.disputed)
            row = {"id": _build_key(talk), "reviewer": reviewer, "image": talk.image}
            row |= {"conversation": format_talk(talk), "note": note, **dict.fromkeys(CRITERIA, "")}
            if _read_reviewer(row) not in existing:
                new.append(row)
    if new:
        tables.write_csv(sheet, [*present, *new])


def format_talk(conversation: DraftConversation) -> str:
    """Return a conversation as numbered questions and answers for people to read.

    >>> from critic.building.replies import DraftTurn
    >>> turn = DraftTurn(question="How many cats?", answer="Two.")
    >>> about = {"id": "1", "image": "1.png", "category": "Animal", "sub_category": "Cat"}
    >>> format_talk(DraftConversation(lang="en", turns=[turn], **about))
    'Q1: How many cats?\\nA1: Two.'
    """
    turns = [(before.question, before.answer) for before in conversation.dialogue]
    turns += [(turn.question, turn.answer) for turn in conversation.turns]
    return "\n\n".join(
        f"Q{number}: {question}\nA{number}: {answer}" for number, (question, answer) in enumerate(turns, 1)
    )


def decide(conversations: Sequence[DraftConversation], sheet: Path) -> Outcomes:
    """Decide on each conversation from the reviewers' answers in the sheet.

    A conversation with at least REVIEWERS reviews is removed if, for any criterion, most answers are no. Rows without
    any answer are ignored. Raises UsageError, naming the row, for a word other than yes or no, or if one reviewer
    answers twice.
    """
    votes, seen, outcomes = defaultdict[str | None, list[list[bool]]](list), tables.Ids(), Outcomes()
    for location, row in _read_rows(sheet):
        # A sheet comes with empty rows for reviews still to be made.
        if any(tables.optional_text(row, column) for column in CRITERIA):
            key, reviewer = _read_reviewer(row)
            seen.add(location, f"{key} by {reviewer}")
            votes[key].append([tables.parse_yes_no(location, row, column) for column in CRITERIA])
    for talk in conversations:
        reviews = votes[_build_key(talk)]
        yes = dict(zip(CRITERIA.values(), map(sum, zip(*reviews, strict=True)), strict=False))
        reasons = [reason for reason, count in yes.items() if 2 * count < len(reviews)]
        # A tie goes to a third reviewer rather than to chance.
        if not reasons and any(2 * count == len(reviews) for count in yes.values()):
            reasons = [DIFFERING]
        # A single opinion decides nothing, not even a clear no.
        outcomes[talk.id] = reasons if len(reviews) >= REVIEWERS else [OPEN]
    return outcomes
