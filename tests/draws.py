"""The draws of a bootstrap, repeated by tests."""

from typing import Any

import numpy as np

from critic.stats.estimate import Bootstrap


def counts_of(draws: Bootstrap) -> Any:
    """Return how often each group was drawn in each resample: integers, shape (G, R)."""
    return np.concatenate(list(draws.draw_counts()), axis=1)[:, 1:].astype(int)


def times_of(draws: Bootstrap) -> Any:
    """The same of each row: shape (n, R)."""
    return counts_of(draws)[draws.member]
