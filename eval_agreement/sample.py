"""What an audit works on: scored answers, one row an answer, and judged rows with their resamples."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from critic.records import Judgment, Response
from critic.stats.arrays import Floats, Group, group_numbers
from critic.stats.estimate import SEED, Bootstrap
from eval_agreement.metrics import Indices, Scores, paired

FOLDS, FEWEST_FIT_GROUPS, FEWEST_ROWS = 5, 10, 20
"""Folds of whole groups for cross-fitting; nothing is fitted on fewer groups or made from fewer rows."""

PARTS: dict[str, Callable[[Response], str | None]] = {
    "task": lambda response: response.question.task,
    "category": lambda response: response.question.category,
    "lang": lambda response: response.question.lang,
    "answerer": lambda response: response.system,
    "turn": lambda response: str(len(response.question.history) + 1),
}
"""Properties by which agreement is broken down. A property with one value only is not a breakdown."""

_ALONE = "\0"
"""How the name of a group of one begins: the row's id alone could be the name of another row's group."""


def own_groups(groups: Sequence[str | None], ids: Sequence[str]) -> list[str]:
    """The names of the rows' groups, where a row without one is a group of its own."""
    return [group or _ALONE + key for group, key in zip(groups, ids, strict=True)]


class RatedSample(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """n answers, each scored by people or not, and by one or several judges; every score on 1..10.

    `human` (n,) is the mean of the `raters`, NaN where nobody scored; `judges` each judge's (n,), NaN where it failed,
    the first being under audit. Rows that share a question share a `group`; None is one of its own. `parts` gives
    properties of each row, `length` (n,) characters, `probability` (n,) the chance that each labelled row had (None:
    all the same). `responses` and `judgments` are the records behind the rows, or empty. `notes` say what was left out.
    `criterion` is the one that scores are by, None where they are overall ones.
    """

    name: str
    ids: list[str]
    human: Floats
    judges: dict[str, Floats]
    group: list[str | None]
    raters: list[dict[str, float]] = field(default_factory=list)
    parts: dict[str, list[str | None]] = field(default_factory=dict)
    length: Floats | None = None
    probability: Floats | None = None
    responses: list[Response | None] = field(default_factory=list)
    judgments: list[Judgment | None] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    criterion: str | None = None

    @property
    def judge(self) -> str:
        """The name of the judge under audit."""
        return next(iter(self.judges))

    @property
    def scores(self) -> Floats:
        """The scores of the judge under audit."""
        return self.judges[self.judge]

    def rows(self, which: NDArray[np.bool_]) -> "RatedSample":
        """The rows for which `which` (n,) is true."""
        index = np.flatnonzero(which).tolist()

        def picked(column: Any) -> Any:
            if isinstance(column, dict):
                return {name: picked(values) for name, values in column.items()}
            if isinstance(column, np.ndarray):
                return column[which]
            return [column[row] for row in index] if column else column

        columns = set(self.__struct_fields__) - {"name", "notes", "criterion"}
        return replace(self, **{name: picked(getattr(self, name)) for name in columns})

    @cached_property
    def groups(self) -> NDArray[np.intp]:
        """The number of each row's group, in the order of the groups' names, shape (n,)."""
        return group_numbers(own_groups(self.group, self.ids))

    @property
    def ungrouped(self) -> bool:
        """Whether no row has a group: each counts as one of its own."""
        return not any(self.group)

    @property
    def grouped(self) -> bool:
        """Whether it is known how answers without a label go together with labelled ones."""
        labelled = ~np.isnan(self.human)
        alone = np.array([not name for name in self.group], dtype=bool)
        return bool(labelled.all() or alone[labelled].all() or not alone[~labelled].all())

    @property
    def weight(self) -> Floats | None:
        """How many rows each labelled one stands for: 1 / probability; None where all stand for as many."""
        return None if self.probability is None or np.isnan(self.probability).all() else 1 / self.probability

    @property
    def labelled(self) -> "RatedSample":
        """The answers that people scored: what agreement is measured on."""
        return self.rows(~np.isnan(self.human))

    def said(self, part: str) -> list[str]:
        """The values of a property that is not missing, the commonest first."""
        counts = Counter(name for name in self.parts.get(part, ()) if name is not None)
        return [name for name, _ in counts.most_common()]

    def values(self, part: str) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """Each value of a property and which rows have it; the commonest value first."""
        column = np.array(self.parts.get(part, []), dtype=object)
        for name in self.said(part):
            yield name, column == name


class JudgedRows:
    """Answers with people's scores, the judge's (None or NaN: failed) and their groups. `human`, `judge`, (n,), and
    `resamples` are of the rows with a judgment, which `kept` marks among all. Raises ValueError as `paired`."""

    def __init__(
        self, human: Scores, judge: Scores, group: Group, resamples: int | None = None, seed: int = SEED
    ) -> None:
        self._human, self._judge, self.kept = paired(human, judge, group)
        self._group, self._drawn = group_numbers(group), (resamples, seed)
        self.human, self.judge = self._human[self.kept], self._judge[self.kept]
        self.n, self.failed = len(self.human), int((~self.kept).sum())
        self.resamples = Bootstrap(self._group[self.kept], resamples, seed)

    def of(self, which: NDArray[np.bool_]) -> "JudgedRows":
        """The rows for which `which`, of all rows, is true."""
        return JudgedRows(self._human[which], self._judge[which], self._group[which], *self._drawn)


def folds(group: Indices) -> Indices:
    """The fold of each row, whole groups together, the largest first, each into the fold that has the fewest rows."""
    _, member, size = np.unique(group, return_inverse=True, return_counts=True)
    fold, filled = np.empty(len(size), dtype=np.intp), np.zeros(FOLDS, dtype=np.intp)
    for number in np.argsort(size, kind="stable")[::-1]:
        fold[number] = np.argmin(filled)
        filled[fold[number]] += size[number]
    return np.asarray(fold[member])
