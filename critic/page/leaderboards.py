"""Tables over models: sections of a page, and the same tables as Markdown and CSV."""

import csv
import io
import math
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from critic import jsonl
from critic.errors import UsageError
from critic.page import svg as pictures
from critic.page.aggregates import aggregates
from critic.page.blocks import Picture, Section, Table, TableCell, TableRow, interval, number, span
from critic.page.page import render
from critic.records import Judgment
from critic.stats.leaderboard import MEAN, LeaderboardCell, LeaderboardRow, Standings, score_of, standings
from critic.stats.tournament import Ratings, Tournament

ELO, BRADLEY_TERRY, RATE = "Elo", "Bradley–Terry", "win rate, %"

Models = Mapping[str, Mapping[str, str]]
"""What is known of models by name: size, family, and whatever else a table is to show of them."""


class Leaderboard(Struct, frozen=True, kw_only=True):
    """A table over models: the standings by row, best first, and what each is of. `less` has the row that a row is
    compared with, `baseline` what these are called."""

    key: str
    caption: str
    columns: list[str]
    entries: dict[str, LeaderboardRow]
    found: Standings
    baseline: str | None = None
    less: Mapping[str, str] = {}
    folded: bool = False


def read_models(path: Path) -> Models:
    """Models by name out of a TOML file, a table each (`["LLaVA-1.5-7B"]`, `size = "7B"`, `family = "LLaVA-1.5"`).
    Raises UsageError for anything else."""
    expected = '["MODEL"] tables with size = "7B", family = "…", or other texts'
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}; expected {expected}") from None
    for name, facts in found.items():
        if not isinstance(facts, dict) or not all(isinstance(value, str | int | float) for value in facts.values()):
            raise UsageError(f"{path}: {name}: expected {expected}")
        found[name] = {key: str(value) for key, value in facts.items()}
    return found


def leaderboards(
    entries: Sequence[LeaderboardRow], baseline: str | None = None, sort: str | None = None
) -> list[Leaderboard]:
    """A table of each key, in the order given, its rows by their first score, or by the column `sort`. Raises
    UsageError for a baseline that no table has or that several rows are, and for a column that no table has."""
    made = [_leaderboard(key, [one for one in entries if one.key == key], baseline, sort) for key in _keys(entries)]
    for option, given, known in (
        ("baseline", baseline, {word for one in entries for word in (one.name, one.system)}),
        ("sort", sort, {column for one in entries for column in one.scores}),
    ):
        if given is not None and given not in known:
            raise UsageError(f"--{option} {given}: not among {', '.join(sorted(known)) or 'the scores'}")
    return made


def _keys(entries: Sequence[LeaderboardRow]) -> list[str]:
    return list(dict.fromkeys(one.key for one in entries))


def _leaderboard(key: str, rows: Sequence[LeaderboardRow], baseline: str | None, sort: str | None) -> Leaderboard:
    columns = list(dict.fromkeys(column for one in rows for column in one.scores))
    less = {} if baseline is None else _less(rows, baseline)
    found, bases = standings(rows, less), [*dict.fromkeys(less.values())]
    by = sort if sort in columns else columns[0]
    ranked = sorted(rows, key=lambda one: (one.apart, *_rank(found[one.name].get(by))))
    names = [*(one.name for one in ranked), *([MEAN] if MEAN in found else [])]
    return Leaderboard(
        key=key,
        caption=rows[0].caption,
        columns=columns,
        entries={one.name: one for one in rows},
        found={name: found[name] for name in names},
        baseline=bases[0] if len(bases) == 1 else baseline if bases else None,
        less=less,
        folded=rows[0].folded,
    )


def _less(rows: Sequence[LeaderboardRow], baseline: str) -> dict[str, str]:
    """What each row is compared with: the row of that name, or of the model of that name the one by the same judge.
    Raises UsageError where the model has several."""
    if any(one.name == baseline != one.system for one in rows):
        return {one.name: baseline for one in rows}
    found: dict[str, str] = {}
    for judge in {one.judge for one in rows}:
        theirs = [one for one in rows if one.judge == judge]
        of_model = [one for one in theirs if one.system == baseline]
        together = sorted(one.name for one in of_model if not one.apart)
        if len(together) > 1:
            raise UsageError(f"--baseline {baseline}: one judge has several of it; name one: {', '.join(together)}")
        if base := next(iter([*together, *sorted(one.name for one in of_model)]), None):
            found |= {one.name: base for one in theirs}
    return found


def _rank(one: LeaderboardCell | None) -> tuple[bool, bool, float]:
    """The best first; scores of less than the others' behind them, and what has none last."""
    value = math.inf if one and one.infinite else one.value if one else None
    return value is None, bool(one and one.partly), -(value or 0.0)


def sections(boards: Sequence[Leaderboard], models: Models) -> list[Section]:
    """One section with all tables."""
    if not boards:
        return []
    note = (
        "In small print 95 % intervals: bootstrap over groups. Coverage is that of the score with the least. The mean "
        "is that of the models in the table; its interval is about these models."
    )
    if any(one.baseline for one in boards):
        note += " Differences are paired, on what both models have; * where the interval leaves out 0, not corrected."
    if any(len({*one.less.values()}) > 1 for one in boards):
        note += " Each row is compared with the baseline by its own judge."
    tables = [table for one in boards for table in (table_of(one, models), *_differences(one))]
    shown = [picture for one in boards for picture in _pictures(one)]
    return [Section(heading="Models side by side", tables=tables, pictures=shown, note=note)]


def details(boards: Sequence[Leaderboard]) -> list[Section]:
    """Of each row its scores one below the other, and of how many verdicts each is made."""
    names = dict.fromkeys(name for one in boards for name in one.entries)
    return [
        Section(heading=f"{name}: scores", tables=[_detail(one, name) for one in boards if name in one.entries])
        for name in names
    ]


def _detail(one: Leaderboard, name: str) -> Table:
    table = aggregates(one.caption, one.found[name], folded=one.folded)
    rows = [
        replace(row, cells=[_cell(each), *row.cells[1:]])
        for row, each in zip(table.rows, one.found[name].values(), strict=True)
    ]
    return replace(table, rows=rows)


def _pictures(one: Leaderboard) -> Iterator[Picture]:
    """What the first of its rows wants drawn; of several models, and of lines also their mean."""
    first = next(iter(one.entries.values()))
    # In one order, so that a model looks alike in all pictures.
    together = [name for name, entry in one.entries.items() if not entry.apart]
    for kind, columns in first.drawn.items():
        if kind == "lines":
            names = [*together, *([MEAN] if MEAN in one.found else [])]
            curves = {name: list(_values(one, name, columns).values()) for name in names}
            yield pictures.lines(one.caption, curves, columns, first.scale)
            continue
        shown = {name: _values(one, name, columns) for name in one.found if name in together}
        if len(columns) > len(shown):
            shown = {column: {name: values[column] for name, values in shown.items()} for column in columns}
        if drawn := pictures.bars(one.caption, shown, first.scale):
            yield drawn


def _values(one: Leaderboard, name: str, columns: Iterable[str]) -> dict[str, float | None]:
    row = one.found[name]
    return {column: row[column].value if column in row else None for column in columns}


def _facts(models: Models) -> list[str]:
    return list(dict.fromkeys(fact for facts in models.values() for fact in facts))


def _known(one: Leaderboard, name: str, models: Models) -> list[str]:
    """What is known of a row's model, fact by fact."""
    known = models.get(one.entries[name].system, {}) if name in one.entries else {}
    return [known.get(fact, "") for fact in _facts(models)]


def table_of(one: Leaderboard, models: Models) -> Table:
    """The table as a page shows it, the range for the first score that has one."""
    lead = next((column for column in one.columns if any(each.low is not None for each in _of(one, column))), "")
    lead = lead or one.columns[0]
    missing = any(each.n < each.asked for each in _of(one, lead))
    apart, rows = any(entry.apart for entry in one.entries.values()), []
    for name, row in one.found.items():
        cells = [TableCell(fact) for fact in _known(one, name, models)]
        cells += [_cell(row.get(column), 0 if column in (ELO, BRADLEY_TERRY) else 2) for column in one.columns]
        cells.append(TableCell(_coverage(row.values())))
        if missing:
            cells.append(TableCell(span(row[lead].low, row[lead].high) if lead in row else ""))
        counted = name == MEAN or (apart and not one.entries[name].apart)
        rows.append(TableRow(name=name, cells=cells, strong=counted))
    last = ["coverage", *([f"range of {lead} with what is missing"] if missing else [])]
    head = ["", *_facts(models), *one.columns, *last]
    return Table(caption=one.caption, head=head, rows=rows, folded=one.folded, sticky=True)


def _of(one: Leaderboard, column: str) -> list[LeaderboardCell]:
    return [row[column] for row in one.found.values() if column in row]


def _coverage(row: Iterable[LeaderboardCell]) -> str:
    """That of the score with the least."""
    asked = [each.coverage for each in row if each.asked]
    return f"{min(asked):.1%}" if asked else "–"


def _cell(one: LeaderboardCell | None, decimals: int = 2) -> TableCell:
    if one is None:
        return TableCell("–")
    bounds = interval(one.interval, decimals)
    small = ", ".join(text for text in (one.partly, bounds) if text)
    return TableCell(
        "∞" if one.infinite else number(one.value, decimals), small, title=f"{one.n} of {one.asked} verdicts"
    )


def _differences(one: Leaderboard) -> list[Table]:
    """From the baseline, of every other row."""
    if one.baseline is None or one.folded:
        return []
    rows = [
        TableRow(name=name, cells=[_change(row.get(column)) for column in one.columns])
        for name, row in one.found.items()
        if one.less.get(name, name) != name
    ]
    caption = f"{one.caption}: less {one.baseline}"
    return [Table(caption=caption, head=["", *one.columns], rows=rows, sticky=True)]


def _change(one: LeaderboardCell | None) -> TableCell:
    if one is None or one.difference is None:
        return TableCell("–")
    mean, bounds, p_value = one.difference.mean, one.difference.interval, one.difference.p_value
    clear = bounds is not None and (bounds[0] > 0 or bounds[1] < 0)
    title = "" if p_value is None else f"p {p_value:.4f}, {one.difference.n} pairs"
    small = ", ".join(text for text in (one.difference.partly, interval(bounds)) if text)
    return TableCell(number(mean) + ("*" if clear else ""), small, title=title)


def of_battles(
    key: str, verdicts: Sequence[Judgment], groups: Mapping[str, str], found: Tournament, drawn: bool
) -> tuple[Leaderboard, Leaderboard]:
    """Models by their battles, the highest Elo first: their ratings, and how often each wins over each other. `groups`
    are those of the conversations that were asked; `drawn`: two models meet only where one was drawn for the other."""
    points: dict[str, dict[tuple[str, str], float | None]] = defaultdict(dict)
    for one in verdicts:
        model, other = one.system, one.opponent or ""
        points[model][other, one.sample.id] = None if one.score is None else 100 * one.score
        points[other][model, one.sample.id] = None if one.score is None else 100 - 100 * one.score
    order = sorted(points, key=lambda model: -(found.elo.ratings or {}).get(model, 0.0))
    caption = "Ratings of models by their battles"
    entries: dict[str, LeaderboardRow] = {}
    for model in order:
        met = {other for other, _ in points[model]}
        opponents = [other for other in order if other in met]
        every = points[model] if drawn else product(opponents, groups)
        asked = {(other, one): groups[one] for other, one in every}
        scores = {opponent: score_of(points[model], _against(opponent, asked), (0, 100)) for opponent in opponents}
        scores[RATE] = score_of(points[model], asked, (0, 100))
        entries[model] = LeaderboardRow(
            key=key, caption=caption, system=model, name=model, scores=scores, scale=(0, 100)
        )
    rows = standings(list(entries.values()))
    rows.pop(MEAN, None)
    rated, wins = {}, {}
    for model, row in rows.items():
        wins[model] = {other: standing for other, standing in row.items() if other != RATE}
        elo, bradley_terry = (_rated(ratings, model, row[RATE]) for ratings in (found.elo, found.bradley_terry))
        rated[model] = {ELO: elo, BRADLEY_TERRY: bradley_terry, RATE: row[RATE]}
    columns = [ELO, BRADLEY_TERRY, RATE]
    of_wins = "Wins of the row over the column in %, a tie half a win"
    return (
        Leaderboard(key=key, caption=caption, columns=columns, entries=entries, found=rated),
        Leaderboard(key=f"{key}-wins", caption=of_wins, columns=order, entries=entries, found=wins),
    )


def _against(opponent: str, asked: Mapping[tuple[str, str], str]) -> dict[tuple[str, str], str]:
    return {pair: group for pair, group in asked.items() if pair[0] == opponent}


def _rated(found: Ratings, model: str, rate: LeaderboardCell) -> LeaderboardCell:
    value, bounds = (found.ratings or {}).get(model), (found.intervals or {}).get(model)
    return replace(rate, value=value, interval=bounds, low=None, high=None)


def wins_of(one: Leaderboard) -> tuple[Table, Picture | None]:
    """Each model's wins over each other as a table and as bars."""
    rows = [
        TableRow(name=name, cells=[_cell(row.get(other)) for other in one.columns]) for name, row in one.found.items()
    ]
    drawn = {name: _values(one, name, one.columns) for name in one.found}
    return (
        Table(caption=one.caption, head=["", *one.columns], rows=rows, sticky=True),
        pictures.bars("Wins of the row over the column, in %.", drawn, (0, 100)),
    )


def write(folder: Path, boards: Sequence[Leaderboard], shown: Sequence[Section], models: Models) -> None:
    """FOLDER/leaderboard.md with the tables of sections, and FOLDER/leaderboard-KEY.csv of each table over models."""
    if not boards:
        return
    tables = [table for one in shown for table in one.tables]
    jsonl.write_text(folder / "leaderboard.md", render("critic.page", "tables.md.jinja", {"tables": tables}))
    for one in boards:
        jsonl.write_text(folder / f"leaderboard-{one.key}.csv", as_csv(one, models))


def as_csv(one: Leaderboard, models: Models) -> str:
    """A row a model; of each score its value, interval, counts and, with a baseline, the difference from it."""
    text = io.StringIO()
    writer = None
    for name, row in one.found.items():
        cells: dict[str, Any] = {"model": name, **dict(zip(_facts(models), _known(one, name, models), strict=False))}
        for column in one.columns:
            each = row.get(column)
            low, high = (each and each.interval) or (None, None)
            cells[column] = each and (math.inf if each.infinite else each.value)
            cells |= {f"{column} low95": low, f"{column} high95": high}
            cells |= {f"{column} n": each and each.n, f"{column} asked": each and each.asked}
            if one.baseline:
                less = each and each.difference
                low, high = (less and less.interval) or (None, None)
                cells[f"{column} less {one.baseline}"] = less and less.mean
                cells |= {f"{column} less low95": low, f"{column} less high95": high}
                cells |= {f"{column} p": less and less.p_value, f"{column} less partly": less and less.partly}
        if writer is None:
            writer = csv.DictWriter(text, cells, lineterminator="\n")
            writer.writeheader()
        writer.writerow(cells)
    return text.getvalue()
