"""Draw the findings of an audit of preferences, or of yes and no, as a page's sections."""

from critic.page.blocks import Columns, Part, Section, Table, TableRow, bar, row, share
from critic.stats.estimate import Estimate
from critic.stats.verdicts import VerdictAgreement
from eval_agreement.measures.preferences import CONSTANT, LONGER, PairAgreement, PairedDifference, PreferenceAudit
from eval_agreement.page.words import estimates, p_text, part_name, people_part, percent, points, section

_WEIGHTED = (
    "each label stands for 1 / label_probability {things}: agreement, ties, differences and trivial judges are those "
    "of all {things}, single raters, places and lengths those of the labelled ones; n counts labels"
)


def preference_sections(name: str, audit: PreferenceAudit) -> list[Section]:
    """Build all sections on a sample, in reading order."""
    people_parts = []
    for judge, beside in audit.beside.items():
        heading = f"{name}: {judge}" if len(audit.beside) > 1 else name
        people_parts.append(people_part(heading, beside))
    caption = f"Differences on the same {audit.things}, from the same resamples."
    parts = {
        "yes_or_no" if audit.yes_or_no else "preferences": [_agreement_part(name, audit)],
        "matrix": [_matrix_part(name, audit)],
        "people": people_parts,
        "position": [_position_part(name, audit)],
        "length": [_length_part(name, audit)],
        "differences": [Part(heading=name, tables=[_DIFFERENCES.table(caption, audit.differences)])],
        "kinds": [_kinds_part(name, audit)],
    }
    things, thing = ("items", "item") if audit.yes_or_no else ("pairs of answers", "pair")
    sections = []
    for key, parts_of_section in parts.items():
        sections += section(key, parts_of_section, things=things, thing=thing)
    return sections


def _scorer_row(name: str, about: str, result: VerdictAgreement, *, ties: bool, strong: bool = False) -> TableRow:
    """Build the row of a scorer. Without ties nothing is left undecided, so the column on decided items is left out."""
    counts = result.n, result.failed, result.unasked
    decided = [percent(result.decided)] if ties else []
    estimates = percent(result.accuracy), *decided, points(result.kappa)
    drawn = bar(result.accuracy.value, result.accuracy.interval)
    model = name if "judge" in about else ""
    return row(name, *counts, *estimates, about=about, bar=drawn, strong=strong, model=model)


_TRIVIAL = {CONSTANT: "always people's commonest verdict", LONGER: "prefers the longer answer"}
"""Description of each trivial judge."""


def _scorers_table(caption: str, first: str, rows: list[TableRow], *, ties: bool) -> Table:
    head = [first, "n", "failed", "not asked", "accuracy", *(["decided"] if ties else []), "kappa"]
    return Table(caption=caption, head=head, rows=rows, axis=(0.0, 1.0), chart_column=5)


def _agreement_part(name: str, audit: PreferenceAudit) -> Part:
    """Draw every judge and trivial judge, with sensitivity and specificity for verdicts of yes or no."""
    ties = not audit.yes_or_no
    rows: list[TableRow] = []
    for judge, result in audit.agreement.items():
        # The first judge is under audit.
        about = "another judge" if rows else "the judge under audit"
        rows.append(_scorer_row(judge, about, result, ties=ties, strong=not rows))
    for trivial, result in audit.baselines.items():
        rows.append(_scorer_row(trivial, _TRIVIAL[trivial], result, ties=ties))
    tied = f" ({share(audit.people_ties.value)} ties)" if ties else ""
    caption = f"{audit.items} {audit.things}, {audit.rated} with people's verdict{tied}. Accuracy drawn from 0 to 1."
    readings = [*audit.notes, *([_WEIGHTED.format(things=audit.things)] if audit.weighted else [])]
    tables = [_scorers_table(caption, "Verdicts by", rows, ties=ties)]
    rates = {}
    for judge, rates_of in audit.rates.items():
        for key, rate in rates_of.items():
            rates[f"{judge}: {key}" if len(audit.rates) > 1 else key] = rate
    caption = "Share found of people's yes (sensitivity) and of people's no (specificity)."
    tables.append(estimates(caption, rates, percent))
    return Part(heading=name, tables=tables, readings=readings)


def _matrix_part(name: str, audit: PreferenceAudit) -> Part:
    """Draw the agreement of every pair of scorers, overall and by turn; empty with two scorers."""
    pairs = {f"All {audit.things}": audit.matrix.overall}
    # ConvBench's tables are by turn.
    pairs |= {f"Turn {turn}": agreements for turn, agreements in audit.matrix.by.get("turn", {}).items()}
    tables = [_matrix_table(caption, agreements) for caption, agreements in pairs.items()]
    return Part(heading=name, tables=tables if len(audit.matrix.overall) > 1 else [])


def _matrix_table(caption: str, pairs: list[PairAgreement]) -> Table:
    """Build a symmetric table with a row and a column per scorer, in the order in which they first occur."""
    names: dict[str, None] = {}
    cells = {}
    for pair in pairs:
        names |= {pair.first: None, pair.second: None}
        cells[pair.first, pair.second] = cells[pair.second, pair.first] = percent(pair.equal)
    rows = []
    for first in names:
        # Nobody is compared with themselves, and people's verdict not with its own raters.
        rows.append(row(first, *(cells.get((first, second), "–") for second in names)))
    return Table(caption=caption, head=["", *names], rows=rows)


def _position_part(name: str, audit: PreferenceAudit) -> Part:
    """Draw the effect of the order of answers on each judge."""
    readings: list[str] = []
    rows: dict[str, Estimate] = {}
    for judge, bias in audit.position.items():
        first = bias["first_place"]
        rows |= {f"{judge}: flips": bias["flips"], f"{judge}: leans to the first": first}
        # A lean that is not shown is in the table, without a sentence.
        if direction := first.side:
            position, wins = "first" if direction > 0 else "second", share(0.5 + abs(first.value or 0))
            text = f"leans to the answer shown {position}: it wins in {wins} of the verdicts that are no tie."
            readings.append(f"{judge} {text}")
    tables = [estimates("Effect of the order of the answers.", rows, percent)]
    return Part(heading=name, tables=tables, readings=readings)


def _length_part(name: str, audit: PreferenceAudit) -> Part:
    """Draw how often the longer answer wins by each judge and by people."""
    readings: list[str] = []
    rows: dict[str, Estimate] = {}
    for judge, length in audit.length.items():
        rows[judge] = length["judge"]
        rows["people, the same pairs"] = length["people"]
        change = rows[f"{judge} less people"] = length["difference"]
        if direction := change.side:
            how = f"{'more' if direction > 0 else 'less'} often than people, by {share(abs(change.value or 0))}"
            readings.append(f"{judge} takes the longer answer {how}.")
    caption = "Share of pairs in which the longer answer wins, if neither says tie."
    return Part(heading=name, tables=[estimates(caption, rows, percent)], readings=readings)


_DIFFERENCES = Columns[PairedDifference](
    ("Judges", lambda line: f"{line.first} less {line.second}"),
    ("n", lambda line: line.accuracy.n),
    ("failed", lambda line: line.failed),
    ("accuracy", lambda line: percent(line.accuracy)),
    ("p", lambda line: p_text(line.accuracy.p_value)),
    ("kappa", lambda line: points(line.kappa)),
    ("p", lambda line: p_text(line.kappa.p_value)),
    strong=lambda line: line.accuracy.side != 0,
)


def _kinds_part(name: str, audit: PreferenceAudit) -> Part:
    """Draw the agreement of the judge under audit on each value of each property."""
    tables = []
    ties = not audit.yes_or_no
    for part, values in next(iter(audit.by.values())).items():
        rows = []
        for value, result in values.items():
            rows.append(_scorer_row(value.replace("_", " "), "", result, ties=ties, strong=True))
        caption = f"By {part_name(part)}, accuracy drawn from 0 to 1."
        tables.append(_scorers_table(caption, part_name(part).capitalize(), rows, ties=ties))
    return Part(heading=name, tables=tables)
