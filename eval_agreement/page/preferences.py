"""What an audit of preferences found, as sections of sentences and tables."""

from critic.page.blocks import Columns, Part, Section, Table, TableRow, bar, row, share
from critic.stats.estimate import Estimate
from critic.stats.verdicts import VerdictAgreement
from eval_agreement.page.words import estimates, p_text, part_name, people_part, percent, points, section
from eval_agreement.preferences import CONSTANT, LONGER, PairAgreement, PairedDifference, PreferenceAudit

_WEIGHTED = (
    "each label stands for 1 / label_probability {things}: agreement, ties, differences and trivial judges are those "
    "of all {things}, single raters, places and lengths those of the labelled ones; n counts labels"
)


def preference_sections(name: str, found: PreferenceAudit) -> list[Section]:
    """All there is to say, in reading order."""
    several = len(found.beside) > 1
    differing = f"Differences on the same {found.things}, from the same resamples."
    parts = {
        "yes_or_no" if found.yes_or_no else "preferences": [_agreement(name, found)],
        "matrix": [_matrix(name, found)],
        "people": [people_part(f"{name}: {judge}" if several else name, one) for judge, one in found.beside.items()],
        "position": [_position(name, found)],
        "length": [_length(name, found)],
        "differences": [Part(heading=name, tables=[_DIFFERENCES.table(differing, found.differences)])],
        "kinds": [_kinds(name, found)],
    }
    things = "items" if found.yes_or_no else "pairs of answers"
    return [one for key, said in parts.items() for one in section(key, said, things=things, thing=found.things[:-1])]


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
    return Table(caption=caption, head=head, rows=rows, axis=(0.0, 1.0), drawn=5)


def _agreement(name: str, found: PreferenceAudit) -> Part:
    ties = not found.yes_or_no
    rows = [
        _row(judge, "the judge under audit" if not place else "another judge", result, ties, strong=not place)
        for place, (judge, result) in enumerate(found.agreement.items())
    ]
    rows += [_row(other, _TRIVIAL[other], result, ties) for other, result in found.baselines.items()]
    tied = f" ({share(found.people_ties.value)} ties)" if ties else ""
    caption = f"{found.items} {found.things}, {found.rated} with people's verdict{tied}. Accuracy drawn from 0 to 1."
    readings = [*found.notes, *([_WEIGHTED.format(things=found.things)] if found.weighted else [])]
    tables = [_table(caption, "Verdicts by", rows, ties)]
    several = len(found.rates) > 1
    rates = {f"{judge}: {key}" if several else key: one for judge, of in found.rates.items() for key, one in of.items()}
    tables.append(estimates("What it finds of people's yes (sensitivity) and no (specificity).", rates, percent))
    return Part(heading=name, tables=tables, readings=readings)


def _matrix(name: str, found: PreferenceAudit) -> Part:
    by_turn = found.matrix.by.get("turn", {})
    pairs = {f"All {found.things}": found.matrix.overall, **{f"Turn {turn}": one for turn, one in by_turn.items()}}
    tables = [_matrix_table(caption, one) for caption, one in pairs.items()] if len(found.matrix.overall) > 1 else []
    return Part(heading=name, tables=tables)


def _matrix_table(caption: str, pairs: list[PairAgreement]) -> Table:
    names = list(dict.fromkeys(name for pair in pairs for name in (pair.first, pair.second)))
    cells = {(pair.first, pair.second): percent(pair.equal) for pair in pairs}
    cells |= {(second, first): cell for (first, second), cell in cells.items()}
    rows = [row(one, *(cells.get((one, other), "–") for other in names)) for one in names]
    return Table(caption=caption, head=["", *names], rows=rows)


def _position(name: str, found: PreferenceAudit) -> Part:
    readings, rows = [], dict[str, Estimate]()
    for judge, bias in found.position.items():
        first = bias["first_place"]
        rows |= {f"{judge}: flips": bias["flips"], f"{judge}: leans to the first": first}
        if direction := first.side:
            position, wins = "first" if direction > 0 else "second", share(0.5 + abs(first.value or 0))
            text = f"leans to the answer shown {position}: it wins in {wins} of the verdicts that are no tie."
            readings.append(f"{judge} {text}")
    tables = [estimates("What the order of the answers does.", rows, percent)]
    return Part(heading=name, tables=tables, readings=readings)


def _length(name: str, found: PreferenceAudit) -> Part:
    readings, rows = [], dict[str, Estimate]()
    for judge, length in found.length.items():
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


def _kinds(name: str, found: PreferenceAudit) -> Part:
    tables = []
    for part, values in next(iter(found.by.values())).items():
        ties = not found.yes_or_no
        rows = [_row(value.replace("_", " "), "", result, ties, strong=True) for value, result in values.items()]
        caption = f"By {part_name(part)}, accuracy drawn from 0 to 1."
        tables.append(_table(caption, part_name(part).capitalize(), rows, ties))
    return Part(heading=name, tables=tables)
