"""What an audit of preferences found, as sections of sentences and tables."""

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
    """All there is to say, in reading order."""
    many = len(audit.beside) > 1
    differing = f"Differences on the same {audit.things}, from the same resamples."
    parts = {
        "yes_or_no" if audit.yes_or_no else "preferences": [_agreement(name, audit)],
        "matrix": [_matrix(name, audit)],
        "people": [people_part(f"{name}: {judge}" if many else name, beside) for judge, beside in audit.beside.items()],
        "position": [_position(name, audit)],
        "length": [_length(name, audit)],
        "differences": [Part(heading=name, tables=[_DIFFERENCES.table(differing, audit.differences)])],
        "kinds": [_kinds(name, audit)],
    }
    things, thing = ("items", "item") if audit.yes_or_no else ("pairs of answers", "pair")
    return [block for key, pieces in parts.items() for block in section(key, pieces, things=things, thing=thing)]


def _row(name: str, about: str, result: VerdictAgreement, ties: bool, *, strong: bool = False) -> TableRow:
    counts = result.n, result.failed, result.unasked
    decided = [percent(result.decided)] if ties else []
    estimates = percent(result.accuracy), *decided, points(result.kappa)
    drawn = bar(result.accuracy.value, result.accuracy.interval)
    model = name if "judge" in about else ""
    return row(name, *counts, *estimates, about=about, bar=drawn, strong=strong, model=model)


_TRIVIAL = {CONSTANT: "always people's commonest verdict", LONGER: "prefers the longer answer"}


def _table(caption: str, first: str, rows: list[TableRow], ties: bool) -> Table:
    head = [first, "n", "failed", "not asked", "accuracy", *(["decided"] if ties else []), "kappa"]
    return Table(caption=caption, head=head, rows=rows, axis=(0.0, 1.0), chart_column=5)


def _agreement(name: str, audit: PreferenceAudit) -> Part:
    ties = not audit.yes_or_no
    rows = [
        _row(judge, "the judge under audit" if not position else "another judge", result, ties, strong=not position)
        for position, (judge, result) in enumerate(audit.agreement.items())
    ]
    rows += [_row(trivial, _TRIVIAL[trivial], result, ties) for trivial, result in audit.baselines.items()]
    tied = f" ({share(audit.people_ties.value)} ties)" if ties else ""
    caption = f"{audit.items} {audit.things}, {audit.rated} with people's verdict{tied}. Accuracy drawn from 0 to 1."
    readings = [*audit.notes, *([_WEIGHTED.format(things=audit.things)] if audit.weighted else [])]
    tables = [_table(caption, "Verdicts by", rows, ties)]
    many = len(audit.rates) > 1
    rates = {f"{judge}: {key}" if many else key: rate for judge, of in audit.rates.items() for key, rate in of.items()}
    tables.append(estimates("What it finds of people's yes (sensitivity) and no (specificity).", rates, percent))
    return Part(heading=name, tables=tables, readings=readings)


def _matrix(name: str, audit: PreferenceAudit) -> Part:
    pairs = {f"All {audit.things}": audit.matrix.overall}
    pairs |= {f"Turn {turn}": agreements for turn, agreements in audit.matrix.by.get("turn", {}).items()}
    tables = [_matrix_table(caption, agreements) for caption, agreements in pairs.items()]
    return Part(heading=name, tables=tables if len(audit.matrix.overall) > 1 else [])


def _matrix_table(caption: str, pairs: list[PairAgreement]) -> Table:
    names = list(dict.fromkeys(name for pair in pairs for name in (pair.first, pair.second)))
    cells = {(pair.first, pair.second): percent(pair.equal) for pair in pairs}
    cells |= {(second, first): cell for (first, second), cell in cells.items()}
    rows = [row(first, *(cells.get((first, second), "–") for second in names)) for first in names]
    return Table(caption=caption, head=["", *names], rows=rows)


def _position(name: str, audit: PreferenceAudit) -> Part:
    readings, rows = [], dict[str, Estimate]()
    for judge, bias in audit.position.items():
        first = bias["first_place"]
        rows |= {f"{judge}: flips": bias["flips"], f"{judge}: leans to the first": first}
        if direction := first.side:
            position, wins = "first" if direction > 0 else "second", share(0.5 + abs(first.value or 0))
            text = f"leans to the answer shown {position}: it wins in {wins} of the verdicts that are no tie."
            readings.append(f"{judge} {text}")
    tables = [estimates("What the order of the answers does.", rows, percent)]
    return Part(heading=name, tables=tables, readings=readings)


def _length(name: str, audit: PreferenceAudit) -> Part:
    readings, rows = [], dict[str, Estimate]()
    for judge, length in audit.length.items():
        names = judge, "people, the same pairs", f"{judge} less people"
        rows |= dict(zip(names, length.values(), strict=True))
        change = length["difference"]
        if direction := change.side:
            how = f"{'more' if direction > 0 else 'less'} often than people, by {share(abs(change.value or 0))}"
            readings.append(f"{judge} takes the longer answer {how}.")
    caption = "How often the longer answer wins, where neither says tie."
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


def _kinds(name: str, audit: PreferenceAudit) -> Part:
    tables = []
    for part, values in next(iter(audit.by.values())).items():
        ties = not audit.yes_or_no
        rows = [_row(value.replace("_", " "), "", result, ties, strong=True) for value, result in values.items()]
        caption = f"By {part_name(part)}, accuracy drawn from 0 to 1."
        tables.append(_table(caption, part_name(part).capitalize(), rows, ties))
    return Part(heading=name, tables=tables)
