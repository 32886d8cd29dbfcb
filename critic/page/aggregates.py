"""Scores with what is missing of them, and differences of scores, as rows of tables."""

from collections.abc import Mapping

from critic.page.blocks import Table, TableRow, number, row, span
from critic.stats.aggregate import Aggregate, Difference

AGGREGATE_HEAD = ["", "score", "n", "failed", "asked", "coverage", "range with what is missing"]
DIFFERENCE_HEAD = ["", "difference", "95 % interval", "p", "pairs", "missing", "range with what is missing"]


def _aggregate(name: str, found: Aggregate) -> TableRow:
    """A score and how much of it is missing; the range only where something is."""
    missing = span(found.low, found.high) if found.n < found.asked else ""
    counts = found.n, found.failed, found.asked
    return row(name, number(found.value), *counts, f"{found.coverage:.1%}", missing)


def aggregates(caption: str, rows: Mapping[str, Aggregate], folded: bool = False) -> Table:
    made = [_aggregate(name, found) for name, found in rows.items()]
    return Table(caption=caption, head=AGGREGATE_HEAD, rows=made, folded=folded)


def _difference(name: str, found: Difference) -> TableRow:
    why = next(iter(found.undefined.values()), "")
    bounds = f"– ({why})" if why else "–" if found.interval is None else span(*found.interval)
    p = "–" if found.p_value is None else f"{found.p_value:.4f}"
    missing = span(found.low, found.high) if found.missing else ""
    return row(name, number(found.mean), bounds, p, found.n, found.missing, missing)


def differences(caption: str, rows: Mapping[str, Difference], folded: bool = False) -> Table:
    made = [_difference(name, found) for name, found in rows.items()]
    return Table(caption=caption, head=DIFFERENCE_HEAD, rows=made, folded=folded)
