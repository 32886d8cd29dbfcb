"""What a bootstrap draws, as tests repeat it."""

from typing import Any

import numpy as np

from critic.stats.estimate import Bootstrap


def counts_of(draws: Bootstrap) -> Any:
    """How often each group was drawn in each resample: whole numbers, shape (G, R)."""
    return np.concatenate(list(draws.draw_counts()), axis=1)[:, 1:].astype(int)


def times_of(draws: Bootstrap) -> Any:
    """The same of each row: shape (n, R)."""
    return counts_of(draws)[draws.member]
