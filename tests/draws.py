"""The draws of a bootstrap, repeated by tests."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from critic.stats.estimate import Bootstrap, Interval


def counts_of(draws: Bootstrap) -> Any:
    """Return how often each group was drawn in each resample: integers, shape (G, R)."""
    return np.concatenate(list(draws.draw_counts()), axis=1)[:, 1:].astype(int)


def times_of(draws: Bootstrap) -> Any:
    """The same of each row: shape (n, R)."""
    return counts_of(draws)[draws.member]


def share_that_holds(intervals: Iterable[Interval | None], truth: float) -> float:
    """Return the share of intervals, (low, high) each, that hold the truth; what has none does not hold it."""
    return float(np.mean([ends is not None and ends[0] <= truth <= ends[1] for ends in intervals]))
