"""What an audit works on: scored answers in columns, one row an answer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, cast

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from critic.counting.arrays import Floats, counted, group_numbers
from critic.counting.coded import Coded
from critic.counting.columns import Column, RatingColumns, Reread, as_column
from critic.errors import UsageError
from critic.records import Judgment, Response
from eval_agreement.metrics import Scores

PARTS: dict[str, Callable[[Response], str | None]] = {
    "task": lambda response: response.question.task,
    "category": lambda response: response.question.category,
    "lang": lambda response: response.question.lang,
    "answerer": lambda response: response.system,
    "turn": lambda response: str(len(response.question.history) + 1),
}
"""Properties by which agreement is broken down. A property with one value only is not a breakdown."""


_ALONE = "\0"
"""How the key of a row without a group begins: its id alone could be the name of another row's group."""


def own_groups(groups: Sequence[str | None], ids: Sequence[str]) -> Sequence[str]:
    """Rows without a group are each one of their own; where none has one, by their ids."""
    column = as_column(groups)
    there = column.present()
    if not any(there):
        return ids
    if all(there):
        return cast(Column[str], column)
    return Column(group or _ALONE + key for group, key in zip(column, ids, strict=True))


class Sample(Struct, frozen=True, kw_only=True):
    """n answers, each scored by people or not, and by one or several judges; every score on 1..10.

    `human` holds people's score of each answer (the mean of its raters), NaN where nobody gave one; `raters`
    who gave which (empty where that is not known); `judges` each judge's, NaN where it failed; the first judge
    is the one under audit. Rows that share a question or an image share a `group`, whose number `numbered` puts into
    `member`. `parts` gives
    properties of each row (None: not known), `length` the answers' characters, `probability` the
    chance that each labelled row had of being labelled (NaN: not known; None: all had the same). `responses`
    are the records behind the rows, and `judgments` what says how these were made and which failed: empty, or one a
    row, None where a row has none; `records` are the whole judgments. `notes` say what was
    left out on reading. `criterion` is the one that scores are by, None where they are overall ones.
    """

    name: str
    ids: Sequence[str]
    human: Coded
    judges: dict[str, Coded]
    group: Sequence[str]
    member: NDArray[np.intp] | None = None
    raters: Sequence[Mapping[str, float]] = field(default_factory=list)
    parts: dict[str, Sequence[str | None]] = field(default_factory=dict)
    length: Coded | None = None
    probability: Floats | None = None
    responses: Sequence[Response | None] = field(default_factory=list)
    judgments: Sequence[Judgment | None] = field(default_factory=list)
    records: Reread[Judgment] | None = None
    notes: list[str] = field(default_factory=list)
    criterion: str | None = None

    @property
    def judge(self) -> str:
        """The name of the judge under audit."""
        return next(iter(self.judges))

    @property
    def scores(self) -> Coded:
        """The scores of the judge under audit."""
        return self.judges[self.judge]

    def rows(self, chosen: NDArray[np.bool_]) -> "Sample":
        """The rows for which `chosen` (n,) is true."""
        if chosen.all():
            return self
        index = np.flatnonzero(chosen)

        def picked(values: Any) -> Any:
            if isinstance(values, dict):
                return {name: picked(column) for name, column in values.items()}
            if isinstance(values, np.ndarray):
                return values[index]
            if isinstance(values, Coded | Column | Reread | RatingColumns):
                return values.rows(index)
            return [values[number] for number in index] if values else values

        kept = ("name", "notes", "criterion")
        return replace(
            self, **{name: picked(getattr(self, name)) for name in self.__struct_fields__ if name not in kept}
        )

    @property
    def numbered(self) -> "Sample":
        """The same with the numbers of the groups, by their sorted names, for all that follows."""
        return replace(self, member=self.groups)

    @property
    def groups(self) -> NDArray[np.intp]:
        """The number of each row's group, in the order of the groups' names, shape (n,)."""
        return group_numbers(self.group) if self.member is None else self.member

    @property
    def named_groups(self) -> Column[str | None]:
        """The groups that are known; None for a row that is one of its own."""
        if self.group is self.ids or self.group == self.ids:
            return Column(repeat(None, len(self.ids)))
        return as_column(self.group).map(lambda name: None if not name or name.startswith(_ALONE) else name)

    @property
    def ungrouped(self) -> bool:
        """Whether no row has a group: each counts as one of its own."""
        return not any(self.named_groups.present())

    @property
    def grouped(self) -> bool:
        """Whether it is known how answers without a label go together with labelled ones: not where groups are known of
        labelled ones only."""
        labelled = self.human.known
        alone = as_column(self.group).each(lambda name: name.startswith(_ALONE), bool)
        return bool(labelled.all() or alone[labelled].all() or not alone[~labelled].all())

    @property
    def weight(self) -> Floats | None:
        """How many rows each labelled one stands for: 1 / probability; None where all stand for as many.

        Raises UsageError where it is known of some labelled rows only.
        """
        if self.probability is None or np.isnan(self.probability).all():
            return None
        unknown = np.isnan(self.probability) & self.human.known
        if unknown.any():
            lacks = self.ids[int(np.argmax(unknown))]
            raise UsageError(f"{self.name}: label_probability is given for some scored answers, but not for {lacks!r}")
        return 1 / self.probability

    @property
    def labelled(self) -> "Sample":
        """The answers that people scored: what agreement is measured on."""
        return self.rows(self.human.known)

    def said(self, part: str) -> list[str]:
        """The values of a property that is not missing, by their first rows."""
        return [name for name in as_column(self.parts.get(part, ())).present() if name is not None]

    def values(self, part: str) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """Each value of a property and which rows have it; the commonest value first."""
        index = {name: number for number, name in enumerate(self.said(part))}
        unknown = len(index)
        code = as_column(self.parts[part]).each(
            lambda name: unknown if name is None else index[name], np.min_scalar_type(unknown)
        )
        size = counted(code, unknown + 1)
        for name in sorted(index, key=lambda name: -size[index[name]]):
            yield name, code == index[name]


def scores(values: Scores) -> Floats:
    """As a float array, NaN for None."""
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
