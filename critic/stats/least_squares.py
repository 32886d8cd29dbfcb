"""The least-squares line through pairs of numbers."""

from collections.abc import Iterable

import numpy as np
import scipy
from msgspec import Struct, field


class Fit(Struct, frozen=True, kw_only=True):
    """How much of one number the best line through another explains: `r_squared` 0..1, the `slope` of that line, and
    the two-sided `p_value` of its being 0 (Student's t, turns taken for independent; needs three), over `n` turns;
    `missing` lack one of the two. What is None is so exactly because of what `undefined` says."""

    n: int
    missing: int
    r_squared: float | None
    slope: float | None
    p_value: float | None = None
    undefined: dict[str, str] = field(default_factory=dict)


def fit(pairs: Iterable[tuple[float | None, float | None]]) -> Fit:
    """The least-squares line of the second number on the first."""
    given = list(pairs)
    kept = np.array([pair for pair in given if None not in pair], dtype=np.float64).reshape(-1, 2)
    n, missing = len(kept), len(given) - len(kept)
    constant = [name for name, column in zip(("first", "second"), kept.T, strict=True) if n and np.ptp(column) == 0]
    if n < 2 or constant:
        reason = f"the {constant[0]} does not vary" if n > 1 else "needs two turns"
        undefined = dict.fromkeys(("r_squared", "slope"), reason)
        return Fit(n=n, missing=missing, r_squared=None, slope=None, undefined=undefined)
    x, y = (column - column.mean() for column in kept.T)
    r_squared = min(1.0, float((x @ y) ** 2 / ((x @ x) * (y @ y))))
    t = np.inf if r_squared >= 1 else np.sqrt((n - 2) * r_squared / (1 - r_squared))
    p_value = float(2 * scipy.special.stdtr(n - 2, -t)) if n > 2 else None
    return Fit(n=n, missing=missing, r_squared=r_squared, slope=float(x @ y / (x @ x)), p_value=p_value)
