"""Pairs of human and judge scores, without failed judgments, with their bootstrap resamples."""

import numpy as np
from numpy.typing import NDArray

from critic.stats.arrays import Group, group_numbers
from critic.stats.estimate import SEED, Bootstrap
from eval_agreement.metrics import paired
from eval_agreement.sample import Scores


class JudgedRows:
    """Answers with a human score and a judgment.

    `human`, `judge`: scores of shape (n,) on 1..10. `kept`: mask of these rows among all rows given. `failed`: number
    of the other rows, whose judgment is None or NaN. `resamples`: bootstrap resamples of whole groups.
    Raises ValueError as `paired` does.

    >>> rows = JudgedRows(human=[3, 8, 5], judge=[4, None, 5], group=["q1", "q1", "q2"])
    >>> rows.n, rows.failed, rows.judge.tolist()
    (2, 1, [4.0, 5.0])
    """

    def __init__(
        self, human: Scores, judge: Scores, group: Group, resamples: int | None = None, seed: int = SEED
    ) -> None:
        self._human, self._judge, self.kept = paired(human, judge, group)
        self._group = group_numbers(group)
        # Kept for `select`, whose rows are resampled anew with the same seed.
        self._draws = (resamples, seed)
        self.human, self.judge = self._human[self.kept], self._judge[self.kept]
        self.n = len(self.human)
        self.failed = int((~self.kept).sum())
        self.resamples = Bootstrap(self._group[self.kept], resamples, seed)

    def select(self, rows: NDArray[np.bool_]) -> "JudgedRows":
        """Return the rows for which the mask `rows` is true. The mask covers all rows given, failed ones included."""
        return JudgedRows(self._human[rows], self._judge[rows], self._group[rows], *self._draws)
