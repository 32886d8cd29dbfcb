"""What the audit's pages say in the same words: p-values, properties, estimates, the gate."""

from collections.abc import Sequence

from critic.counting.resampling import RESAMPLES, Estimate
from critic.page.blocks import Bounds, Part, Section, TableCell, interval, number, share, shares
from eval_agreement.gate import Outcome


def p_text(p: float | None) -> str:
    """A p-value; below what the resamples can tell apart only its bound."""
    floor = 4 / RESAMPLES
    return "–" if p is None else f"< {floor:g}" if p <= floor else f"{p:.3f}"


def part_name(part: str) -> str:
    """The word for a property."""
    return {"lang": "language"}.get(part, part)


def measured(value: float | None, bounds: Bounds | None, undefined: str | None = None, decimals: int = 2) -> TableCell:
    """A value with its interval in small print, and why there is none where the mouse rests."""
    return TableCell(number(value, decimals), interval(bounds), undefined or "")


def points(estimate: Estimate, decimals: int = 3) -> TableCell:
    """An estimate in points, or without a unit."""
    return measured(estimate.value, estimate.interval, estimate.undefined, decimals)


def percent(estimate: Estimate) -> TableCell:
    """An estimated share."""
    return TableCell(share(estimate.value), shares(estimate.interval), estimate.undefined or "")


def gate_sections(outcomes: Sequence[Outcome]) -> list[Section]:
    """One section, or none without a gate."""
    made = Section(
        key="gate",
        heading="Gate",
        parts=[Part(readings=[outcome.text for outcome in outcomes])],
        note="Decided on the worse end of the 95 % interval.",
    )
    return [made] if outcomes else []
