"""What the pages of all audits share: formats of p-values and estimates, sections, and the parts on raters and gate."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from critic.page.blocks import Columns, Part, Section, Table, TableCell, interval, number, row, share, shares
from critic.stats.estimate import FEWEST_GROUPS, MANY_GROUPS, RESAMPLES, RESAMPLES_OF_MANY, Estimate
from eval_agreement.measures.gate import Outcome
from eval_agreement.measures.raters import BesideRaters, RaterTest, Repeats
from eval_agreement.metrics import METRICS
from eval_agreement.sentences import say, texts_of


def p_text(p: float | None) -> str:
    """Format a p-value. Below the smallest value that the resamples can distinguish, return that bound.

    >>> p_text(0.0312), p_text(0.0001), p_text(None)
    ('0.031', '< 0.002', '–')
    """
    if p is None:
        return "–"
    # Two resamples at either end: fewer cannot be told from none.
    floor = 4 / RESAMPLES
    return f"< {floor:g}" if p <= floor else f"{p:.3f}"


def part_name(part: str) -> str:
    """Return the word for a property of a sample, such as "language" for `lang`."""
    return {"lang": "language"}.get(part, part)


def points(estimate: Estimate, decimals: int = 3) -> TableCell:
    """Format an estimate that is in points or has no unit."""
    small = interval(estimate.interval) + _detectable(number(estimate.unseen), estimate)
    return TableCell(number(estimate.value, decimals), small, estimate.undefined or "")


def percent(estimate: Estimate) -> TableCell:
    """Format an estimated share (0..1) as a percentage."""
    small = shares(estimate.interval) + _detectable(share(estimate.unseen), estimate)
    return TableCell(share(estimate.value), small, estimate.undefined or "")


def estimates(caption: str, rows: Mapping[str, Estimate | None], cell: Callable[[Estimate], TableCell]) -> Table:
    """Build a table of estimates by name, with n and p-value. Rows with None are left out.

    `cell`: function that formats an estimate.
    """
    lines = []
    for name, estimate in rows.items():
        # None stands for a side that was not measured, such as alpha with a judge that there is not.
        if estimate:
            lines.append(row(name, estimate.n, cell(estimate), p_text(estimate.p_value)))
    return Table(caption=caption, head=["", "n", "share" if cell is percent else "points", "p"], rows=lines)


def _detectable(size: str, estimate: Estimate) -> str:
    """Return a phrase on the smallest effect that would show (`size`); "" if the effect is shown, or not tested."""
    return f"; needs {size} to show" if estimate.unseen else ""


def build_sections(parts: Mapping[str, Iterable[Part]], **values: object) -> list[Section]:
    """Build the sections of a page from their parts, keyed by section, in the order of `sections.toml`.

    A part has content if it has readings or a table with rows; others are left out, and so are sections without any.
    `values`: values for the placeholders in the sections' texts.
    """
    # What notes may name on every page. Metrics may have been added since this module was imported.
    values |= {
        "metrics": " ".join(metric.note for metric in METRICS.values() if metric.note),
        "resamples": RESAMPLES,
        "resamples_of_many": RESAMPLES_OF_MANY,
        "many": MANY_GROUPS,
        "fewest": FEWEST_GROUPS,
    }
    sections = []
    for key, templates in texts_of("sections.toml").items():
        kept = [part for part in parts.get(key, ()) if part.readings or any(table.rows for table in part.tables)]
        if kept:
            texts = {"key": key} | {name: text.format(**values) for name, text in templates.items()}
            sections.append(Section(parts=kept, **texts))
    return sections


def gate_part(outcomes: Sequence[Outcome]) -> Part:
    """Build the part on the gate, which is empty without limits."""
    return Part(readings=[outcome.text for outcome in outcomes])


def draw_repeats(repeats: Repeats, _: object) -> Iterator[Part]:
    """Build the part on how often the judge changes its verdicts, if it was asked several times."""
    if repeats.times > 1:
        table = estimates("Asked again.", {"verdicts that change": repeats.changed}, percent)
        yield Part(readings=[repeats.reading], tables=[table])


_RATERS = Columns[RaterTest](
    ("Rater", lambda line: line.rater),
    ("n", lambda line: line.n),
    ("judge as close", lambda line: share(line.judge_advantage)),
    ("rater as close", lambda line: share(line.rater_advantage)),
    ("p", lambda line: p_text(line.p)),
    ("judge does as well", lambda line: "yes" if line.rejected else "no"),
    strong=lambda line: line.rejected,
)


def people_parts(heading: str, beside: BesideRaters) -> Iterator[Part]:
    """Yield the parts that compare a judge with single raters; none if no item has two ratings."""
    if agreement := beside.raters:
        rows = {
            "people": agreement.people,
            "people and the judge": agreement.with_judge,
            "difference": agreement.difference,
        }
        yield Part(heading=heading, tables=[estimates(say("alpha", agreement=agreement), rows, points)])
    # The chances of people and of an ideal judge are what the judge's is to be read against.
    if soft := beside.soft:
        chances = {
            "the judge": soft.judge,
            "another rater": soft.people,
            "an ideal judge": soft.ceiling,
            "judge less rater": soft.difference,
        }
        table = estimates("Chance that a rater drawn at random gives the rating of …", chances, percent)
        yield Part(heading=heading, readings=[soft.reading], tables=[table])
    if test := beside.replaces:
        tables = [_RATERS.table(say("alternative_annotator", test=test), test.lines)] if test.lines else []
        yield Part(heading=heading, readings=[test.reading], tables=tables)
