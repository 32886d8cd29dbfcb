"""Build the page's parts on an audit of preferences or yes/no verdicts.

`draw_…` functions take the finding on a sample, and yield the sample's parts. Their measures are listed in
`eval_agreement/measure_tables.py`.
"""

from collections.abc import Iterator, Mapping, Sequence

from critic.page.blocks import Columns, Part, Table, TableRow, bar, row
from critic.stats.estimate import Estimate
from critic.stats.verdicts import VerdictAgreement
from eval_agreement.measures import preferences
from eval_agreement.measures.raters import BesideRaters
from eval_agreement.page.words import estimates, p_text, part_name, people_parts, percent, points
from eval_agreement.sentences import say


def _scorer_row(name: str, about: str, result: VerdictAgreement, *, ties: bool, strong: bool = False) -> TableRow:
    """Build the table row of a scorer.

    `about`: the scorer in a few words. `ties`: whether verdicts may be ties. Without ties every item is decided, and
    the column for decided items is left out.
    """
    counts = result.n, result.failed, result.unasked
    decided = [percent(result.decided)] if ties else []
    estimates = percent(result.accuracy), *decided, points(result.kappa)
    drawn = bar(result.accuracy.value, result.accuracy.interval)
    model = name if "judge" in about else ""
    return row(name, *counts, *estimates, about=about, bar=drawn, strong=strong, model=model)


_TRIVIAL = {preferences.CONSTANT: "always people's commonest verdict", preferences.LONGER: "prefers the longer answer"}
"""Description of each trivial judge."""


def _scorers_table(caption: str, first: str, rows: list[TableRow], *, ties: bool) -> Table:
    head = [first, "n", "failed", "not asked", "accuracy", *(["decided"] if ties else []), "kappa"]
    return Table(caption=caption, head=head, rows=rows, axis=(0.0, 1.0), chart_column=5)


def draw_verdicts(scorers: preferences.VerdictScorers, _: object) -> Iterator[Part]:
    """Build the part on the agreement of judges and trivial judges with people.

    For yes/no verdicts it also shows sensitivity and specificity.
    """
    ties = not scorers.yes_or_no
    rows: list[TableRow] = []
    for judge, result in scorers.agreement.items():
        # The first judge is under audit.
        about = "another judge" if rows else "the judge under audit"
        rows.append(_scorer_row(judge, about, result, ties=ties, strong=not rows))
    for trivial, result in scorers.baselines.items():
        rows.append(_scorer_row(trivial, _TRIVIAL[trivial], result, ties=ties))
    tables = [_scorers_table(say("verdicts_by", scorers=scorers), "Verdicts by", rows, ties=ties)]
    rates = {}
    for judge, rates_of in scorers.rates.items():
        for key, rate in rates_of.items():
            rates[f"{judge}: {key}" if len(scorers.rates) > 1 else key] = rate
    caption = "Share found of people's yes (sensitivity) and of people's no (specificity)."
    # Preferences have no yes and no.
    if rates:
        tables.append(estimates(caption, rates, percent))
    weighted = [say("weighted", things=scorers.things)] if scorers.weighted else []
    yield Part(tables=tables, readings=[*scorers.notes, *weighted])


def draw_people(beside: Mapping[str, BesideRaters], _: object) -> Iterator[Part]:
    """Build the parts that compare each judge with single raters, judge by judge."""
    for judge, beside_raters in beside.items():
        yield from people_parts(judge if len(beside) > 1 else "", beside_raters)


def draw_matrix(matrix: preferences.Matrix, _: object) -> Iterator[Part]:
    """Build the part on the agreement of every pair of scorers, overall and by turn.

    It is empty if there are only two scorers.
    """
    tables = [_matrix_table("Overall", matrix.overall)]
    # ConvBench's tables are by turn.
    for turn, agreements in matrix.by.get("turn", {}).items():
        tables.append(_matrix_table(f"Turn {turn}", agreements))
    yield Part(tables=tables if len(matrix.overall) > 1 else [])


def _matrix_table(caption: str, pairs: list[preferences.PairAgreement]) -> Table:
    """Build a symmetric table with a row and a column per scorer, in order of first occurrence."""
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


_RATES = Columns[preferences.Rate](
    ("Share of", lambda rate: rate.name),
    ("corrected", lambda rate: percent(rate.corrected)),
    ("people's labels only", lambda rate: percent(rate.people)),
    ("judge only", lambda rate: percent(rate.judge)),
    ("by the judge's error rates", lambda rate: percent(rate.inverted)),
    ("labels", lambda rate: rate.labelled),
    ("without", lambda rate: rate.unlabelled),
    bar=lambda rate: bar(rate.corrected.value, rate.corrected.interval),
    strong=lambda _: True,
    model=lambda rate: rate.name,
)


def draw_rates(rates: Sequence[preferences.Rate], _: object) -> Iterator[Part]:
    """Build the part on shares of yes, or win rates, by people's labels and the judge's verdicts."""
    # One share of items that are all labelled is people's, and has nothing to be corrected.
    if len(rates) > 1 or any(rate.unlabelled for rate in rates):
        caption = "Drawn from 0 to 1; a tie counts half."
        yield Part(tables=[_RATES.table(caption, rates, axis=(0.0, 1.0), chart_column=2)])


def draw_positions(biases: Mapping[str, Mapping[str, Estimate]], _: object) -> Iterator[Part]:
    """Build the part on how the order of answers affects each judge."""
    readings: list[str] = []
    rows: dict[str, Estimate] = {}
    for judge, bias in biases.items():
        first = bias["first_place"]
        rows |= {f"{judge}: flips": bias["flips"], f"{judge}: leans to the first": first}
        # A lean that is not shown is in the table, without a sentence.
        if first.side:
            readings.append(say("leans", judge=judge, first=first))
    yield Part(tables=[estimates("Effect of the order of the answers.", rows, percent)], readings=readings)


def draw_lengths(lengths: Mapping[str, Mapping[str, Estimate]], _: object) -> Iterator[Part]:
    """Build the part on how often judges and people prefer the longer answer."""
    readings: list[str] = []
    rows: dict[str, Estimate] = {}
    for judge, length in lengths.items():
        rows[judge] = length["judge"]
        rows["people, the same pairs"] = length["people"]
        change = rows[f"{judge} less people"] = length["difference"]
        if change.side:
            readings.append(say("longer", judge=judge, change=change))
    caption = "Share of pairs in which the longer answer wins, if neither says tie."
    yield Part(tables=[estimates(caption, rows, percent)], readings=readings)


_DIFFERENCES = Columns[preferences.PairedDifference](
    ("Judges", lambda line: f"{line.first} less {line.second}"),
    ("n", lambda line: line.accuracy.n),
    ("failed", lambda line: line.failed),
    ("accuracy", lambda line: percent(line.accuracy)),
    ("p", lambda line: p_text(line.accuracy.p_value)),
    ("kappa", lambda line: points(line.kappa)),
    ("p", lambda line: p_text(line.kappa.p_value)),
    strong=lambda line: line.accuracy.side != 0,
)


def draw_differences(differences: Sequence[preferences.PairedDifference], _: object) -> Iterator[Part]:
    """Build the part on the differences between judges, and between judges and trivial judges."""
    yield Part(tables=[_DIFFERENCES.table("Differences on the same items, from the same resamples.", differences)])


def draw_kinds(kinds: preferences.VerdictKinds, _: object) -> Iterator[Part]:
    """Build the parts on how often the audited judge agrees with people on each kind of item, a part per property.

    A kind is one value of a property of the items, such as the language zh.
    """
    for part, values in next(iter(kinds.values())).items():
        # Without ties every item is decided.
        ties = any(result.coverage.value != 1 for result in values.values() if result.n)
        rows = []
        for value, result in values.items():
            rows.append(_scorer_row(value.replace("_", " "), "", result, ties=ties, strong=True))
        caption = f"By {part_name(part)}, accuracy drawn from 0 to 1."
        yield Part(tables=[_scorers_table(caption, part_name(part).capitalize(), rows, ties=ties)])
