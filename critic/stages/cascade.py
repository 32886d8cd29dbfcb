"""A cheap judge first, and a dear one only where the first is unsure: where that is, and what it costs.

critic judge labelled.jsonl --judge CHEAP --judge DEAR --out both.jsonl    # rows that people scored, by both
critic judge rows.jsonl --judge CHEAP --judge DEAR --cascade both.jsonl --out j.jsonl
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from critic import jsonl
from critic.errors import UsageError
from critic.records import Judgment, Verdict, spent
from critic.stats.arrays import Floats, group_numbers
from critic.stats.estimate import mean_interval

LOSS = 0.05
"""Points of mean absolute error that a cascade may cost, unless said otherwise."""


class Threshold(Struct, frozen=True, kw_only=True):
    """The dear judge is asked where the standard deviation of the cheap one's distribution (rating points) is above
    `deviation`, and where it failed. Measured on `rows` that people scored and that had no part in choosing it: the
    share that is `asked` of the dear judge, the mean absolute errors (points) of the cascade and of each judge alone,
    and the `loss`, that of the cascade less that of the dear one, with its 95 % interval."""

    deviation: float
    allowed: float
    labelled: str
    chosen_on: int
    rows: int
    asked: float
    error: float
    error_cheap: float
    error_dear: float
    loss: float
    interval: tuple[float, float] | None

    def line(self) -> str:
        bounds = "no interval: too few groups" if self.interval is None else "[{:+.3f}, {:+.3f}]".format(*self.interval)
        kept = (
            ""
            if self.interval and self.interval[1] <= self.allowed
            else f"; whether it stays below {self.allowed:g} is open"
        )
        return (
            f"cascade: the second judge where the first's deviation is above {self.deviation:.3f} points, "
            f"{self.asked:.1%} of {self.rows} labelled rows: mean absolute error {self.error:.3f} "
            f"(first alone {self.error_cheap:.3f}, second alone {self.error_dear:.3f}), {self.loss:+.3f} {bounds}{kept}"
        )


def deviation(found: Verdict) -> float:
    """How unsure a verdict is: infinitely where it failed or has no distribution."""
    return math.inf if found.failure is not None or found.summary is None else found.summary.deviation


def choose(words: str, judges: Sequence[str], how: Mapping[str, Any]) -> Threshold:
    """The highest threshold that costs at most so much on one half of the groups of a panel's labelled judgments
    (`words`: FILE or FILE:POINTS), measured on the other half. They have to be by these `judges`, asked as `how` says
    (fields of a judgment). Raises UsageError for a file that cannot tell."""
    name, _, points = words.rpartition(":")
    path, allowed = (Path(name), float(points)) if name and _is_number(points) else (Path(words), LOSS)
    unsure, cheap, dear, groups = _read(path, {**how, "judge": list(judges)})
    first = np.array([hashlib.sha256(group.encode()).digest()[0] % 2 == 0 for group in groups])
    if not first.any() or first.all():
        raise UsageError(f"--cascade {path}: too few groups to choose a threshold on some and measure it on others")
    order = np.argsort(unsure[first], kind="stable")
    lost = np.cumsum((cheap - dear)[first][order]) / first.sum()
    sure = unsure[first][order]
    # Of rows that are as unsure as each other all are kept or none, and those without a distribution never are.
    ends = np.flatnonzero(np.append(sure[1:] > sure[:-1], True) & np.isfinite(sure) & (lost <= allowed))
    limit = float(sure[ends[-1]]) if len(ends) else -1.0
    here = ~first
    asked = unsure[here] > limit
    error = np.where(asked, dear[here], cheap[here])
    loss = error - dear[here]
    number = group_numbers([group for group, kept in zip(groups, here, strict=True) if kept])
    sums, counts = np.bincount(number, loss), np.bincount(number).astype(np.float64)
    return Threshold(
        deviation=limit,
        allowed=allowed,
        labelled=jsonl.sha256(path),
        chosen_on=int(first.sum()),
        rows=int(here.sum()),
        asked=float(asked.mean()),
        error=float(error.mean()),
        error_cheap=float(cheap[here].mean()),
        error_dear=float(dear[here].mean()),
        loss=float(loss.mean()),
        interval=mean_interval(sums.astype(np.float64), counts),
    )


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


def _read(path: Path, wanted: Mapping[str, Any]) -> tuple[Floats, Floats, Floats, list[str]]:
    """Of each labelled row how unsure the first judge is, both absolute errors, and the group. A row that the second
    failed says nothing; one that the first failed goes to the second."""
    rows: list[tuple[float, float, float]] = []
    groups: list[str] = []
    for number, line in jsonl.read(path, Judgment):
        found = {name: getattr(line, name) for name in wanted} | {"judge": [one.judge for one in line.members]}
        for name, then in found.items():
            if then != wanted[name]:
                raise UsageError(f"--cascade {path}:{number}: made with {name} {then!r}, now {wanted[name]!r}")
        cheap, dear = line.members
        if line.sample.human is not None and dear.score is not None:
            people = line.sample.human.score
            first = math.nan if cheap.score is None else abs(cheap.score - people)
            rows.append((deviation(cheap.verdict), first, abs(dear.score - people)))
            groups.append(line.conversation.group)
    if not any(math.isfinite(unsure) for unsure, _, _ in rows):
        raise UsageError(f"--cascade {path}: no row that people scored and both judged, the first with a distribution")
    unsure, first_error, second = np.array(rows).T
    # Where the first failed it is not chosen between: it costs and spares nothing.
    return unsure, np.where(np.isnan(first_error), second, first_error), second, groups


def last(parts: Sequence[Judgment], name: str) -> Judgment:
    """A row as the last judge said that was asked for it, with what each of them said."""
    setup = replace(parts[-1].setup, judge=name)
    return replace(parts[-1], setup=setup, members=[each.part for each in parts], **spent(parts))
