"""Judged rows and their resamples: what bias and calibration are made from."""

import numpy as np
from numpy.typing import NDArray

from critic.stats.arrays import Group, group_numbers
from critic.stats.estimate import SEED, Bootstrap
from eval_agreement.metrics import Indices, Scores, paired

FOLDS, FEWEST_FIT_GROUPS, FEWEST_ROWS = 5, 10, 20
"""Folds of whole groups for cross-fitting; nothing is fitted on fewer groups or made from fewer rows."""


class JudgedRows:
    """Answers with people's scores, the judge's (None or NaN: a failed judgment) and their groups, one of each a row.

    `human` and `judge`, shape (n,) each, are of the rows with a judgment, which `kept` marks among all, and so are
    `resamples`. Raises ValueError for unequal lengths, a missing human score, or a score outside 1..10.
    """

    def __init__(
        self,
        human: Scores,
        judge: Scores,
        group: Group,
        resamples: int | None = None,
        seed: int = SEED,
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
