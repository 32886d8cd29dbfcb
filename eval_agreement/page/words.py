"""What the audit's pages say in the same words: p-values, estimates, sections, single raters, the gate."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from critic.page.blocks import Columns, Part, Section, Table, TableCell, interval, number, row, share, shares
from critic.stats.estimate import RESAMPLES, Estimate
from eval_agreement.measures.gate import Outcome
from eval_agreement.measures.raters import BesideRaters, RaterTest
from eval_agreement.sentences import say, texts_of


def p_text(p: float | None) -> str:
    """A p-value; below what the resamples can tell apart only its bound."""
    floor = 4 / RESAMPLES
    return "–" if p is None else f"< {floor:g}" if p <= floor else f"{p:.3f}"


def part_name(part: str) -> str:
    """The word for a property."""
    return {"lang": "language"}.get(part, part)


def points(estimate: Estimate, decimals: int = 3) -> TableCell:
    """An estimate in points, or without a unit."""
    small = interval(estimate.interval) + _unseen(number(estimate.unseen), estimate)
    return TableCell(number(estimate.value, decimals), small, estimate.undefined or "")


def percent(estimate: Estimate) -> TableCell:
    """An estimated share."""
    small = shares(estimate.interval) + _unseen(share(estimate.unseen), estimate)
    return TableCell(share(estimate.value), small, estimate.undefined or "")


def estimates(caption: str, rows: Mapping[str, Estimate | None], cell: Callable[[Estimate], TableCell]) -> Table:
    """Estimates by name with their p-values and cases; a page drops columns that say nothing."""
    known = {name: estimate for name, estimate in rows.items() if estimate}
    lines = [row(name, estimate.n, cell(estimate), p_text(estimate.p_value)) for name, estimate in known.items()]
    return Table(caption=caption, head=["", "n", "share" if cell is percent else "points", "p"], rows=lines)


def _unseen(size: str, estimate: Estimate) -> str:
    """What would have been seen where nothing is."""
    return f"; seen from {size}" if estimate.unseen else ""


def within(bounds: str) -> str:
    """An interval in a sentence."""
    return f" (95 % interval {bounds})" if bounds else ""


def section(key: str, parts: Iterable[Part], **values: object) -> list[Section]:
    """The section of those parts that say something, its texts (`sections.toml`) filled in; none where no part does."""
    kept = [part for part in parts if part.readings or any(table.rows for table in part.tables)]
    texts = {name: text.format(**values) for name, text in texts_of("sections.toml")[key].items()}
    where, heading, note = texts.get("key", key), texts["heading"], texts.get("note", "")
    return [Section(key=where, heading=heading, parts=kept, note=note)] if kept else []


def gate_sections(outcomes: Sequence[Outcome]) -> list[Section]:
    """One section, or none without a gate."""
    return section("gate", [Part(readings=[outcome.text for outcome in outcomes])])


_RATERS = Columns[RaterTest](
    ("Rater", lambda line: line.rater),
    ("n", lambda line: line.n),
    ("judge as close", lambda line: share(line.judge_advantage)),
    ("rater as close", lambda line: share(line.rater_advantage)),
    ("p", lambda line: p_text(line.p)),
    ("judge does as well", lambda line: "yes" if line.rejected else "no"),
    strong=lambda line: line.rejected,
)


def people_part(name: str, beside: BesideRaters) -> Part:
    """What a judge is beside single raters; empty where no item has two."""
    soft, agreement, test, tables = beside.soft, beside.raters, beside.replaces, []
    if agreement:
        both, change = agreement.with_judge, agreement.difference
        rows = {"people": agreement.people, "people and the judge": both, "difference": change}
        tables.append(estimates(say("alpha", of=agreement), rows, points))
    if soft:
        shares = {"the judge": soft.judge, "another rater": soft.people, "an ideal judge": soft.ceiling}
        caption = "Chance that a rater drawn at random gives the rating of …"
        tables.append(estimates(caption, {**shares, "judge less rater": soft.difference}, percent))
    if test and test.lines:
        caption = say("alternative_annotator", test=test, omega=number(test.omega), rho=number(test.rho))
        tables.append(_RATERS.table(caption, test.lines))
    return Part(heading=name, readings=[result.reading for result in (soft, test) if result], tables=tables)
