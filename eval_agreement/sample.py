"""The sample that an audit works on: scored answers, one row per answer, and the audit's options."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from critic.records import RATINGS, Judgment, Response
from critic.stats.arrays import Floats, group_numbers

Scores = Sequence[float | None] | NDArray[np.floating] | NDArray[np.integer]
Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]

NARROW = 2.0
"""Width of a prediction interval, in points from end to end, up to which the answer may be left to the judge."""

_SINGLE = "\0"
"""Prefix of the name of a group with a single row. Without it, a row's id could be the name of another row's group."""


def on_scale(scores: Scores, whose: str) -> Floats:
    """Convert scores to an array with NaN for None. Raises ValueError for a score outside 1..10.

    `whose`: "human" or "judge", for the message.
    """
    values = np.asarray(scores, dtype=np.float64)
    off = (values < RATINGS[0]) | (values > RATINGS[-1])
    if off.any():
        raise ValueError(f"{whose} score {values[off][0]:g} is outside {RATINGS[0]}..{RATINGS[-1]}")
    # Arithmetic leaves rounding errors (1.1 + 2.2 != 3.3), which would make ties and constant samples look varied.
    return np.round(values, 12)


EPSILON = 0.2
"""Allowance of the alternative annotator test for the cost of people: 0.2 for experts, 0.15 for skilled raters, 0.1 for
a crowd (Calderon et al. 2025)."""


class AuditRequest(Struct, frozen=True, kw_only=True):
    """The options that measures and decisions depend on.

    - train, training: file of rows to fit trivial judges on, and the rows.
    - epsilon: allowance of the alternative annotator test, 0..1.
    - within: half width of the interval to plan labels for, in points or as a share of verdicts; None for no plan.
    - use_folds: scores of recalibrated judges come from maps fitted on other folds.
    - max_failed: largest share (0..1) of failed verdicts that allows a decision.
    - accepted: names of doubts (DOUBTS) that the user has overridden.
    """

    train: Path | None = None
    training: Sequence[Response] = ()
    epsilon: float = EPSILON
    within: float | None = None
    use_folds: bool = False
    max_failed: float = 0.02
    accepted: Sequence[str] = ()


class AuditSample(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """n items with verdicts by people and by one or several judges. Subclasses hold scores or other verdicts.

    - group: name of the question or image that items share; None for a group of its own.
    - judges: each judge's verdicts by name, (n, …). The first judge is under audit.
    - parts: by property (such as language), the value for each item.
    - repeats: verdicts of the judge under audit when it was asked again, (n, K); None if it was asked once.
    - responses, judgments: the records that the items come from, or empty.
    - notes: sentences on items left out.
    """

    ids: Sequence[str]
    group: Sequence[str | None]
    judges: dict[str, NDArray[Any]]
    parts: dict[str, Sequence[Any]] = field(default_factory=dict)
    repeats: NDArray[Any] | None = None
    responses: Sequence[Response | None] = ()
    judgments: Sequence[Judgment | None] = ()
    notes: list[str] = field(default_factory=list)

    @property
    def judge(self) -> str:
        """Name of the judge under audit, the first one."""
        return next(iter(self.judges))

    @cached_property
    def groups(self) -> Indices:
        """Number of each item's group, (n,), from 0 in the order of the groups' names."""
        return group_numbers([group or _SINGLE + key for group, key in zip(self.group, self.ids, strict=True)])


class RatedSample(AuditSample, frozen=True, kw_only=True):
    """n answers with scores by people and by judges, all on 1..10; NaN if a judgment failed.

    - human: mean of the `raters`, (n,); NaN if nobody scored the answer.
    - raters: each answer's human scores by rater; empty if single raters are unknown.
    - length: characters, (n,).
    - probability: chance with which each labelled row was labelled, (n,); None if it is the same for all.
    - criterion: the criterion scored; None for overall scores.
    """

    name: str
    human: Floats
    raters: list[dict[str, float]] = field(default_factory=list)
    length: Floats | None = None
    probability: Floats | None = None
    criterion: str | None = None

    @property
    def scores(self) -> Floats:
        """Scores of the judge under audit, (n,)."""
        return self.judges[self.judge]

    def rows(self, mask: Mask) -> "RatedSample":
        """Return the sample with only the rows for which `mask` (n,) is true."""

        def select(column: Any) -> Any:
            if isinstance(column, dict):
                return {name: select(values) for name, values in column.items()}
            if isinstance(column, np.ndarray):
                return column[mask]
            # An empty list, and None, stand for "not known of any row".
            return [*compress(column, mask)] if column else column

        # Every other field has one entry per row, so that a new field needs no line here.
        columns = set(self.__struct_fields__) - {"name", "notes", "criterion"}
        return replace(self, **{name: select(getattr(self, name)) for name in columns})

    @property
    def ungrouped(self) -> bool:
        """True if no row names a group, so that each row counts as a group of its own."""
        return not any(self.group)

    @property
    def grouped(self) -> bool:
        """True if the groups of unlabelled answers are known, or need not be.

        They need not be known if all answers are labelled, or if labelled answers have no groups either.
        """
        labelled = ~np.isnan(self.human)
        single = np.array([not name for name in self.group], dtype=bool)
        return bool(labelled.all() or single[labelled].all() or not single[~labelled].all())

    @property
    def weight(self) -> Floats | None:
        """Number of rows that each labelled row stands for (1 / probability), (n,); None without probabilities."""
        return None if self.probability is None or np.isnan(self.probability).all() else 1 / self.probability

    @cached_property
    def labelled(self) -> "RatedSample":
        """The sample with only the answers that people scored, on which agreement is measured."""
        return self.rows(~np.isnan(self.human))

    @cached_property
    def judged(self) -> "RatedSample":
        """The sample with only the answers that the judge under audit scored, and without other judges.

        Scores are checked and rounded by `on_scale`. Raises ValueError for a score outside 1..10.
        """
        rows = self.rows(~np.isnan(self.scores))
        scores = {self.judge: on_scale(rows.scores, "judge")}
        return replace(rows, human=on_scale(rows.human, "human"), judges=scores)

    def part_values(self, part: str) -> list[str]:
        """Return the values of a property, the most frequent first. Missing values are left out."""
        counts = Counter(name for name in self.parts.get(part, ()) if name is not None)
        return [name for name, _ in counts.most_common()]

    def part_rows(self, part: str) -> Iterator[tuple[str, Mask]]:
        """Yield each value of a property with the mask (n,) of its rows, the most frequent value first."""
        column = np.array(self.parts.get(part, []), dtype=object)
        for name in self.part_values(part):
            yield name, column == name
