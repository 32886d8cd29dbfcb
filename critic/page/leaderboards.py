"""Tables over models: sections of a page, and the same tables as CSV."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from critic.errors import UsageError
from critic.page.blocks import Section, Table, TableCell, TableRow, axis_of, bar, interval, number, row, span
from critic.stats.leaderboard import MEAN, LeaderboardCell, LeaderboardRow, Standings, standings
from critic.tables import write_csv

ELO, BRADLEY_TERRY = "Elo", "Bradley–Terry"

NOTE = "In small print 95 % intervals: bootstrap over groups."
NOTE_OF_SEVERAL = (
    " Coverage is that of the score with the least. The mean is that of the models in the table; its interval is about "
    "these models."
)
NOTE_OF_DIFFERENCES = (
    " Differences are paired, on what both models have; * where the interval leaves out 0, not corrected."
)


class Leaderboard(Struct, frozen=True, kw_only=True):
    """A table over models: the standings by row, best first, and what each is of. Rows are compared with `baseline`."""

    key: str
    caption: str
    columns: list[str]
    entries: dict[str, LeaderboardRow]
    standings: Standings
    baseline: str | None = None
    folded: bool = False


def leaderboards(entries: Sequence[LeaderboardRow], baseline: str | None = None) -> list[Leaderboard]:
    """A table of each key, in the order given, its rows by their first score. Raises UsageError for a `baseline` that
    is no row of any."""
    names = dict.fromkeys(entry.name for entry in entries)
    if baseline is not None and baseline not in names:
        raise UsageError(f"--baseline {baseline}: not among {', '.join(names) or 'the scores'}")
    by_key: dict[str, list[LeaderboardRow]] = {}
    for entry in entries:
        by_key.setdefault(entry.key, []).append(entry)
    return [_leaderboard(key, rows, baseline) for key, rows in by_key.items()]


def _leaderboard(key: str, rows: Sequence[LeaderboardRow], baseline: str | None) -> Leaderboard:
    columns = list(dict.fromkeys(column for entry in rows for column in entry.scores))
    base = baseline if any(entry.name == baseline for entry in rows) else None
    cells = standings(rows, base)
    ranked = sorted(rows, key=lambda entry: (entry.apart, *_rank(cells[entry.name].get(columns[0]))))
    names = [*(entry.name for entry in ranked), *([MEAN] if MEAN in cells else [])]
    return Leaderboard(
        key=key,
        caption=rows[0].caption,
        columns=columns,
        entries={entry.name: entry for entry in rows},
        standings={name: cells[name] for name in names},
        baseline=base,
        folded=rows[0].folded,
    )


def _rank(cell: LeaderboardCell | None) -> tuple[bool, bool, float]:
    """The best first; scores of less than the others' behind them, and what has none last."""
    value = cell.value if cell else None
    return value is None, bool(cell and cell.partly), -(value or 0.0)


def headline(boards: Sequence[Leaderboard]) -> str:
    """What the first table says of its first score: who leads, and whether its paired difference from the next shows
    it; "" without a score."""
    if not boards:
        return ""
    column, scores = boards[0].columns[0], boards[0].standings
    entries = [entry for name, entry in boards[0].entries.items() if not entry.apart and column in scores[name]]
    entries.sort(key=lambda entry: _rank(scores[entry.name][column]))
    if not entries or scores[entries[0].name][column].value is None:
        return ""
    first, *others = entries
    cell = scores[first.name][column]
    bounds = f" (95 % interval {interval(cell.interval)})" if cell.interval else ""
    leads = f"{first.name} {'is first with' if others else 'has'} {number(cell.value)} in “{column}”{bounds}."
    pair = standings([first, others[0]], first.name)[others[0].name] if others else {}
    change = pair[column].difference if column in pair else None
    if change is None or change.mean is None or change.interval is None:
        return leads
    low, high = (-end for end in change.interval[::-1])
    ahead = f"It is {'' if low > 0 else 'not '}shown to be ahead of {others[0].name}"
    return f"{leads} {ahead}: by {number(-change.mean)} ({interval((low, high))})."


def sections(boards: Sequence[Leaderboard]) -> list[Section]:
    """One section with all tables; a table of one row has its scores one below the other."""
    tables = []
    for board in boards:
        tables += [table_of(board) if len(board.standings) > 1 else _single(board), *_differences(board)]
    note = NOTE + NOTE_OF_SEVERAL * any(len(board.standings) > 1 for board in boards)
    note += NOTE_OF_DIFFERENCES * any(board.baseline is not None for board in boards)
    return [Section(heading="Scores", tables=tables, note=note)] if tables else []


def table_of(board: Leaderboard) -> Table:
    """The table as a page shows it; the first score that has a range is drawn, and shown with what is missing."""
    lead = _lead(board)
    missing = any(scores[lead].n < scores[lead].asked for scores in board.standings.values() if lead in scores)
    apart, rows = any(entry.apart for entry in board.entries.values()), []
    bars = {}
    for name, scores in board.standings.items():
        cells = [cell_of(scores.get(column), 0 if column in (ELO, BRADLEY_TERRY) else 2) for column in board.columns]
        cells.append(TableCell(_coverage(scores.values())))
        if missing:
            cells.append(TableCell(span(scores[lead].low, scores[lead].high) if lead in scores else ""))
        bars[name] = bar(scores[lead].value, scores[lead].interval) if lead in scores else None
        counted = name == MEAN or (apart and not board.entries[name].apart)
        model = board.entries[name].system if name in board.entries else ""
        rows.append(TableRow(name=name, cells=cells, strong=counted, bar=bars[name], model=model))
    head = ["", *board.columns, "coverage", *([f"range of {lead} with what is missing"] if missing else [])]
    axis, drawn = axis_of(bars.values()), head.index(lead) + 1
    return Table(caption=board.caption, head=head, rows=rows, axis=axis, drawn=drawn, folded=board.folded, sticky=True)


def _lead(board: Leaderboard) -> str:
    """The first score that has a range; without any the first."""
    ranged = {column for scores in board.standings.values() for column, cell in scores.items() if cell.low is not None}
    return next((column for column in board.columns if column in ranged), board.columns[0])


def _single(board: Leaderboard) -> Table:
    """The only row's scores one below the other, and of how many verdicts each is made."""
    ((name, scores),) = board.standings.items()
    rows = []
    for column, cell in scores.items():
        missing = span(cell.low, cell.high) if cell.n < cell.asked else ""
        counts = cell.n, cell.failed, cell.asked, f"{cell.coverage:.1%}"
        rows.append(row(column, cell_of(cell), *counts, missing))
    head = ["", "score", "n", "failed", "asked", "coverage", "range with what is missing"]
    return Table(caption=f"{name}: {board.caption}", head=head, rows=rows, folded=board.folded)


def _coverage(scores: Iterable[LeaderboardCell]) -> str:
    """That of the score with the least."""
    asked = [cell.coverage for cell in scores if cell.asked]
    return f"{min(asked):.1%}" if asked else "–"


def cell_of(cell: LeaderboardCell | None, decimals: int = 2) -> TableCell:
    if cell is None:
        return TableCell("–")
    small = ", ".join(text for text in (cell.partly, interval(cell.interval, decimals)) if text)
    text = "∞" if cell.infinite else number(cell.value, decimals)
    return TableCell(text, small, title=f"{cell.n} of {cell.asked} verdicts")


def _differences(board: Leaderboard) -> list[Table]:
    """From the baseline, of every other row."""
    if board.baseline is None or board.folded or len(board.entries) < 2:
        return []
    rows = [
        row(name, *(_change(scores.get(column)) for column in board.columns), model=board.entries[name].system)
        for name, scores in board.standings.items()
        if name not in (board.baseline, MEAN)
    ]
    caption, head = f"{board.caption}: less {board.baseline}", ["", *board.columns]
    return [Table(caption=caption, head=head, rows=rows, sticky=True, details=True)]


def _change(cell: LeaderboardCell | None) -> TableCell:
    if cell is None or cell.difference is None:
        return TableCell("–")
    change = cell.difference
    clear = change.interval is not None and (change.interval[0] > 0 or change.interval[1] < 0)
    title = "" if change.p_value is None else f"p {change.p_value:.4f}, {change.n} pairs"
    small = ", ".join(text for text in (change.partly, interval(change.interval)) if text)
    return TableCell(number(change.mean) + ("*" if clear else ""), small, title=title)


def write(folder: Path, boards: Sequence[Leaderboard]) -> None:
    """FOLDER/leaderboard-KEY.csv of each table over models."""
    for board in boards:
        write_csv(folder / f"leaderboard-{board.key}.csv", [_csv_row(board, name) for name in board.standings])


def _csv_row(board: Leaderboard, name: str) -> dict[str, Any]:
    """Of each score of a model its value, interval, counts and, with a baseline, the difference from it."""
    cells: dict[str, Any] = {"model": name}
    for column in board.columns:
        cell = board.standings[name].get(column)
        low, high = (cell and cell.interval) or (None, None)
        cells[column] = cell and (math.inf if cell.infinite else cell.value)
        cells |= {f"{column} low95": low, f"{column} high95": high}
        cells |= {f"{column} n": cell and cell.n, f"{column} asked": cell and cell.asked}
        if board.baseline:
            less = cell and cell.difference
            low, high = (less and less.interval) or (None, None)
            cells[f"{column} less {board.baseline}"] = less and less.mean
            cells |= {f"{column} less low95": low, f"{column} less high95": high}
            cells |= {f"{column} p": less and less.p_value, f"{column} less partly": less and less.partly}
    return cells
