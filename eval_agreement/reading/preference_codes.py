"""Codes of preferences: numbers beside two responses, whose meaning differs between files."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from critic import tables
from critic.errors import UsageError
from critic.stats.verdicts import Label
from eval_agreement.reading.tables import Codes, Source

if TYPE_CHECKING:
    import pandas as pd

CODED: dict[str, Label | None] = {"a": "a", "b": "b", "tie": "tie", "none": None}
"""Labels for the words in --map CODE=WORD."""

_PLAIN: Codes = {1.0: "a", 2.0: "b"}
"""Default meaning of numbers: 1 is the first answer, 2 the second, if the column has no other number."""

_SHOWN = 7
"""Most numbers that an error message lists."""

_SIDES = (("a", "b", "c"), ("1", "2", "3"), ("first", "second", "third"), ("left", "right", "middle"))
_ANSWER = re.compile(
    "response|answer|output|completion|reply|candidate|conversation|generation|caption|model|system|text_"
)
_NO_ANSWER = re.compile("reference|gold|expected|target|correct|question|prompt")


def is_pair(source: Source) -> bool:
    """Return True if a file's rows compare two answers, so that numbers in them are codes of preferences."""
    return bool(source.codes) or (source.content == "table" and holds_two_answers(source.frame))


def holds_two_answers(frame: "pd.DataFrame") -> bool:
    """Return True if each row holds two answers, or names two models.

    These are two text columns whose names differ only in their side, as response_a and response_b or Answer 1 and
    Answer 2. Three such columns are options, not a pair.
    """
    columns = {str(column).lower(): column for column in frame}
    for name in columns:
        if not _ANSWER.search(name) or _NO_ANSWER.search(name):
            continue
        for side, other, third in _SIDES:
            # A digit may directly follow a word, as in answer1; a letter may not.
            before = r"(?<!\d)" if side.isdigit() else r"(?<![^\W_])"
            pattern = rf"{before}{side}(?![^\W_])"
            twin = re.sub(pattern, other, name)
            if twin == name or twin not in columns or re.sub(pattern, third, name) in columns:
                continue
            # Two columns of numbers are scores of two models, not their answers.
            if _is_text(frame[columns[name]]) and _is_text(frame[columns[twin]]):
                return True
    return False


def _is_text(cells: Iterable[Any]) -> bool:
    """Return True if the first cell that is not empty is a text or a list of messages."""
    first = next((cell for cell in cells if not tables.is_empty(cell)), None)
    return first is not None and tables.read_number(first) is None


def are_codes(cells: Iterable[Any]) -> bool:
    """Return True if there are filled cells and all of them are numbers.

    >>> are_codes([1, "2", None]), are_codes(["a", 2]), are_codes([])
    (True, False, False)
    """
    filled = [tables.read_number(cell) for cell in cells if not tables.is_empty(cell)]
    return bool(filled) and None not in filled


def find_meanings(cells: Iterable[Any], codes: Codes) -> tuple[Codes, list[float]]:
    """Return the meanings of numbers in a column of preferences, and its numbers without one in ascending order.

    The meanings are `codes` if given, else the default ones if the column's numbers are exactly 1 and 2, else {}.

    >>> find_meanings([1, 2], {})[1], find_meanings([0, 1, 2, "a"], {})[1], find_meanings([0, 1], {0.0: "a"})[1]
    ([], [0.0, 1.0, 2.0], [1.0])
    """
    numbers = {number for number in map(tables.read_number, cells) if number is not None}
    meanings = codes or (_PLAIN if numbers == {*_PLAIN} else {})
    return meanings, sorted(numbers - meanings.keys())


def decode_preferences(path: Path, column: str, cells: Sequence[Any], codes: Codes) -> list[Any]:
    """Replace the numbers in a column of preferences by their labels. Words stay as they are.

    Raises UsageError for a number without a known meaning.
    """
    meanings, unknown = find_meanings(cells, codes)
    if unknown:
        raise uncoded(path, column, cells, codes)
    return [cell if (number := tables.read_number(cell)) is None else meanings[number] for cell in cells]


def uncoded(path: Path, column: str, cells: Iterable[Any], codes: Codes) -> UsageError:
    """Build the error for numbers without a known meaning beside two answers, with the --map options to give."""
    meanings, unknown = find_meanings(cells, codes)
    numbers = unknown or sorted(meanings)
    count = len(numbers)
    # A guess at what they mean, to be edited: the ends are the two answers, what lies between them is a tie.
    words = ["a", *["tie"] * (count - 2), "b"] if count > 1 and not codes else ["tie"] * count
    options = [f"--map {number:g}={word}" for number, word in zip(numbers, words, strict=True)]
    listed = ", ".join(f"{number:g}" for number in numbers[:_SHOWN])
    more = f" and {count - _SHOWN} more" if count > _SHOWN else ""
    return UsageError(
        f"{path}: {column} holds numbers beside two answers ({listed}{more}): preferences, not scores of one answer; "
        f"say what each means (a: the first answer is better; b, tie, none), as in {' '.join(options[:_SHOWN])}"
    )
