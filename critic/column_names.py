"""Names of columns and words of labels in people's tables (`column_names.toml`), for training rows and audits alike."""

import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from critic.errors import UsageError, did_you_mean, quoted

Kind = Literal["score", "preference", "yes or no"]
"""Kind of verdict that a column holds."""

Choice = Literal["a", "tie", "b"]
"""Label of a preference; of yes (a) and no (b)."""

SCORE_SUFFIX = "_score_1_10"
"""Suffix of the columns of human-scored rows that hold another judge's scores, on 1..10."""


class ColumnTable(Struct, frozen=True):
    """All of `column_names.toml`: names of usual columns and of people's labels; words of labels by kind of verdict."""

    names: dict[str, list[str]]
    labels: dict[str, list[str]]
    words: dict[Kind, dict[Choice, list[str]]]


@cache
def load_columns() -> ColumnTable:
    """Return the names and words of `column_names.toml`."""
    text = Path(__file__).with_suffix(".toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), ColumnTable)


def match_columns(columns: Iterable[str], names: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the column of each usual name that has one: the first of its `names`, whole or behind a dot.

    No column is matched twice. Of several columns with one name the shortest counts.

    >>> match_columns(["doc.answer", "prediction"], {"text": ["prediction", "answer"], "reference": ["answer"]})
    {'text': 'prediction', 'reference': 'doc.answer'}
    """
    matched = dict[str, str]()
    for usual, choices in names.items():
        ranked = list[tuple[int, int, str]]()
        for column in columns:
            name = column.rpartition(".")[2].lower()
            if name in choices and column not in matched.values():
                ranked.append((choices.index(name), len(column), column))
        if ranked:
            matched[usual] = min(ranked)[2]
    return matched


def score_column(judge: str) -> str:
    """Return the column of another judge's scores on 1..10."""
    return f"{judge}{SCORE_SUFFIX}"


def find_label(kind: Kind, cell: Any) -> Choice | None:
    """Return the label that a cell's word stands for, or None for any other cell.

    >>> find_label("preference", " Model_A "), find_label("yes or no", True), find_label("preference", 4)
    ('a', 'a', None)
    """
    word = str(cell).strip().lower()
    return next((label for label, words in load_columns().words[kind].items() if word in words), None)


def name_labels(kind: Kind) -> dict[str, Choice]:
    """Return the word that messages name for each label.

    >>> name_labels("yes or no")
    {'yes': 'a', 'no': 'b'}
    """
    return {words[0]: label for label, words in load_columns().words[kind].items()}


def parse_mapping(
    texts: Iterable[str],
    fields: Collection[str],
    *,
    several: Collection[str],
    aliases: Mapping[str, str] | None = None,
    suffixes: tuple[str, ...] = (),
) -> dict[str, list[str]]:
    """Parse --map COLUMN=FIELD: return the columns of each field, in the order given.

    A field is one of `fields`, an alias of one, or ends in one of `suffixes`. Only those of `several` may have more
    than one column. Raises UsageError.

    >>> parse_mapping(["ann=rater", "bob=rater", "text=answer"], ["rater", "answer"], several=["rater"])
    {'rater': ['ann', 'bob'], 'answer': ['text']}
    """
    columns = dict[str, list[str]]()
    for text in texts:
        column, _, field = text.rpartition("=")
        field = (aliases or {}).get(field, field)
        if not column or not (field in fields or field.endswith(suffixes)):
            choices = f"{did_you_mean(field, fields)}the fields are {', '.join(fields)}"
            raise UsageError(f"--map {quoted(text)}: expected COLUMN=FIELD, as in answer=response; {choices}")
        columns.setdefault(field, []).append(column)
    for field, named in columns.items():
        if len(named) > 1 and field not in several:
            only = f"only {' and '.join(several)} may have several columns"
            raise UsageError(f"--map: {' and '.join(named)} are both {field}; {only}")
    return columns
