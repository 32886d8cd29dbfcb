"""Build leaderboards: sections of a page, and the same tables as CSV and LaTeX."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from critic.errors import UsageError
from critic.page.blocks import Bar, Panel, Section, Shown, Table, TableCell, bar, interval, number, row, span, ticks_of
from critic.page.page import render
from critic.stats.leaderboard import MEAN, Leaderboard, LeaderboardCell, LeaderboardRow, ranks, standings
from critic.tables import write_csv

RATED = ELO, BRADLEY_TERRY = "Elo", "Bradley–Terry"

MOST_OPEN = 5
"""The most rows of a table that is open on the page."""


def leaderboards(entries: Sequence[LeaderboardRow], baseline: str | None = None) -> list[Leaderboard]:
    """Build one leaderboard per key. The first is sorted by its first score; the others follow its order.

    Raises UsageError if `baseline` names no row.
    """
    names = dict.fromkeys(entry.name for entry in entries)
    if baseline is not None and baseline not in names:
        raise UsageError(f"--baseline {baseline}: not among {', '.join(names) or 'the scores'}")
    by_key: dict[str, list[LeaderboardRow]] = {}
    for entry in entries:
        by_key.setdefault(entry.key, []).append(entry)
    boards = list[Leaderboard]()
    for key, rows in by_key.items():
        boards.append(_build_leaderboard(key, rows, baseline, order_of(boards)))
    return boards


def order_of(boards: Sequence[Leaderboard]) -> dict[str, int]:
    """Return model -> its position (from 0) in the first table, which the other tables of the page follow."""
    entries = [boards[0].entries[name] for name in boards[0].standings if name != MEAN] if boards else []
    return {system: position for position, system in enumerate(dict.fromkeys(entry.system for entry in entries))}


def _build_leaderboard(
    key: str, rows: Sequence[LeaderboardRow], baseline: str | None, order: Mapping[str, int]
) -> Leaderboard:
    """Build the leaderboard of one key from its rows. Models in `order` (model -> position) come first."""
    columns = list(dict.fromkeys(column for entry in rows for column in entry.scores))
    charted = {name for entry in rows for name in (columns[:1] if entry.charted is None else entry.charted)}
    # A table without the baseline's row, such as of another benchmark part, has no differences.
    base = baseline if any(entry.name == baseline for entry in rows) else None
    cells = standings(rows, base)
    judges = list(dict.fromkeys(entry.judge for entry in rows))

    def position(entry: LeaderboardRow) -> tuple[Any, ...]:
        """Return a sort key: rows of one judge stand together, and rows that stand apart come after its models."""
        place = order.get(entry.system, len(order))
        return judges.index(entry.judge), entry.apart, place, *_sort_by_rank(cells[entry.name].get(columns[0]))

    names = [*(entry.name for entry in sorted(rows, key=position)), *([MEAN] if MEAN in cells else [])]
    return Leaderboard(
        key=key,
        caption=rows[0].caption,
        columns=columns,
        entries={entry.name: entry for entry in rows},
        standings={name: cells[name] for name in names},
        baseline=base,
        collapsed=rows[0].collapsed,
        places=ranks(rows, columns[0]) if rows[0].ranked and not rows[0].collapsed else {},
        charted=sorted(charted, key=columns.index),
        stated=rows[0].stated,
    )


def _sort_by_rank(cell: LeaderboardCell | None) -> tuple[bool, bool, float]:
    """Return a sort key: highest value first, incomplete scores after complete ones, missing ones last."""
    value = math.inf if cell and cell.infinite else cell.value if cell else None
    return value is None, bool(cell and cell.partly), -(value or 0.0)


def state_leaders(boards: Sequence[Leaderboard]) -> list[str]:
    """Return sentences on which model leads, or which models are tied for first; [] if there is no score.

    Each judge has one sentence per score that is stated (the first column and `Leaderboard.stated`) of the first table
    with rows by that judge.
    """
    sentences: dict[str, list[str]] = {}
    for board in boards:
        column = board.columns[0]
        names: dict[str, list[str]] = {}
        for name, entry in board.entries.items():
            if not entry.apart and column in board.standings[name]:
                names.setdefault(entry.judge, []).append(name)
        for judge, own in names.items():
            # Rows without a judge, such as those on how often two judges agree, lead no model.
            if judge not in sentences and (judge or not sentences):
                sentences[judge] = [_state_leader(board, score, own) for score in (column, *board.stated)]
    stated = [(judge, sentence) for judge, own in sentences.items() for sentence in own if sentence]
    return [f"By {judge}: {sentence}" if len(sentences) > 1 else sentence for judge, sentence in stated]


def _state_leader(board: Leaderboard, column: str, names: Sequence[str]) -> str:
    """Return the sentence on which of one judge's rows `names` leads by the score in `column`; "" without a score."""
    cells = {name: board.standings[name][column] for name in names if column in board.standings[name]}
    names = sorted(cells, key=lambda name: _sort_by_rank(cells[name]))
    if not names or (cells[names[0]].value is None and not cells[names[0]].infinite):
        return ""
    first, *others = names
    places = board.places if column == board.columns[0] else ranks(list(board.entries.values()), column)
    # Infinite scores are above all others, and have no places among them.
    top = [name for name in names if cells[name].infinite] or [n for n in names if places.get(n, (0, 0))[0] == 1]
    placed = places.keys() & cells.keys()
    behind = len(placed) - places[first][1] if first in placed else 0
    facts: dict[str, Any] = {"column": column, "decimals": _decimals(column), "cells": cells, "first": first}
    facts |= {"score": board.entries[first].scores.get(column), "others": others, "top": top, "behind": behind}
    return render("critic.page", "leader.jinja", facts).strip()


def sections(boards: Sequence[Leaderboard]) -> list[Section]:
    """Build one section with all tables. The scores of a table with one row are listed one per line."""
    tables = []
    for board in boards:
        build = table_of if len(board.standings) > 1 else _build_single_table
        tables += [build(board), *_build_differences(board)]
    facts = {"several": any(len(board.standings) > 1 for board in boards)}
    facts["differences"] = any(board.baseline is not None for board in boards)
    note = render("critic.page", "note.jinja", facts).strip()
    return [Section(heading="Scores", tables=tables, note=note)] if tables else []


def table_of(board: Leaderboard) -> Table:
    """Build a leaderboard's table and charts, with one row per model.

    If verdicts are missing, the last column has the range of the first score that has one.
    """
    ranged = {column for scores in board.standings.values() for column, cell in scores.items() if cell.low is not None}
    lead = next((column for column in board.columns if column in ranged), board.columns[0])
    missing = any(scores[lead].n < scores[lead].asked for scores in board.standings.values() if lead in scores)
    apart, rows = any(entry.apart for entry in board.entries.values()), []
    several = len({entry.judge for entry in board.entries.values()}) > 1
    for name, scores in board.standings.items():
        cells: list[Shown] = [_build_cell(column, scores.get(column)) for column in board.columns]
        if board.places:
            ranks = "–".join(map(str, sorted(set(board.places.get(name, ())))))
            judge = f"by {board.entries[name].judge}" if ranks and several else ""
            cells.insert(0, TableCell(ranks, judge))
        cells.append(_format_coverage(scores.values()))
        if missing:
            cells.append(span(scores[lead].low, scores[lead].high) if lead in scores else "")
        # Bold rows are those the mean is over; without rows apart, that would be all.
        counted = name == MEAN or (apart and not board.entries[name].apart)
        model = board.entries[name].system if name in board.entries else ""
        rows.append(row(name, *cells, strong=counted, model=model))
    head = ["", *["rank"] * bool(board.places), *board.columns, "coverage"]
    head += [f"range of {lead} with what is missing"] if missing else []
    rest: dict[str, Any] = {"collapsed": board.collapsed, "details": len(rows) > MOST_OPEN}
    # A chart without a single bar would only take up space.
    rest["panels"] = [panel for panel in _build_panels(board) if any(panel.bars)]
    return Table(caption=board.caption, head=head, rows=rows, sticky=True, picture=f"leaderboard-{board.key}", **rest)


def _build_panels(board: Leaderboard) -> Iterator[Panel]:
    """Yield one chart per charted score. Scores of one kind share an axis, which includes 0 if they can be negative."""
    bars, kinds = dict[str, list[Bar | None]](), dict[str, tuple[bool, bool, bool]]()
    # A collapsed table is closed on the page, so a chart in it would not be seen.
    for column in () if board.collapsed else board.charted:
        cells = [cells_of.get(column) for cells_of in board.standings.values()]
        bars[column] = [bar(cell.value, cell.interval) if cell else None for cell in cells]
        scores = [row.scores[column] for row in board.entries.values() if column in row.scores]
        negative = any(part.weight * end < 0 for score in scores for part in score.parts for end in part.scale)
        kinds[column] = column in RATED, negative, any(score.inverse for score in scores)
    most = max(4, 9 - len(bars))
    for column, kind in kinds.items():
        alike = [mark for name in bars if kinds[name] == kind for mark in bars[name]]
        ticks = ticks_of([*alike, *[bar(0.0, None)] * kind[1]], most)
        yield Panel(heading=column, bars=bars[column], ticks=ticks)


def _build_single_table(board: Leaderboard) -> Table:
    """Build the table of a leaderboard with one row: one line per score, with its number of verdicts."""
    ((name, scores),) = board.standings.items()
    rows = []
    for column, cell in scores.items():
        # Without missing verdicts the range is the score itself.
        missing = span(cell.low, cell.high) if cell.n < cell.asked else ""
        counts = cell.n, cell.failed, cell.asked, f"{cell.coverage:.1%}"
        rows.append(row(column, _build_cell(column, cell), *counts, missing))
    head = ["", "score", "n", "failed", "asked", "coverage", "range with what is missing"]
    files = f"leaderboard-{board.key}"
    return Table(caption=f"{name}: {board.caption}", head=head, rows=rows, collapsed=board.collapsed, picture=files)


def _decimals(column: str) -> int:
    """Return the number of decimals of a score: 0 for ratings, which are whole points, else 2."""
    return 0 if column in RATED else 2


def _format_coverage(scores: Iterable[LeaderboardCell]) -> str:
    """Format the lowest coverage of the given scores."""
    shares = [cell.coverage for cell in scores if cell.asked]
    return f"{min(shares):.1%}" if shares else "–"


def _build_cell(column: str, cell: LeaderboardCell | None) -> TableCell:
    """Build the cell of a score with its interval in small print."""
    if cell is None:
        return TableCell("–")
    decimals = _decimals(column)
    small = ", ".join(text for text in (cell.partly, interval(cell.interval, decimals)) if text)
    # One over 0 is a perfect score, not a missing one.
    text = "∞" if cell.infinite else number(cell.value, decimals)
    return TableCell(text, small, title=f"{cell.n} of {cell.asked} verdicts")


def _build_differences(board: Leaderboard) -> list[Table]:
    """Return a list with the table of the rows' differences from the baseline row; [] without a baseline."""
    # A difference needs a second row; collapsed tables stay short.
    if board.baseline is None or board.collapsed or len(board.entries) < 2:
        return []
    rows = [
        row(name, *(_build_change(scores.get(column)) for column in board.columns), model=board.entries[name].system)
        for name, scores in board.standings.items()
        if name not in (board.baseline, MEAN)
    ]
    caption, head = f"{board.caption}: less {board.baseline}", ["", *board.columns]
    files = f"leaderboard-{board.key}-less"
    return [Table(caption=caption, head=head, rows=rows, sticky=True, details=True, picture=files)]


def _build_change(cell: LeaderboardCell | None) -> TableCell:
    """Build the cell of a difference; a star marks an interval that excludes 0."""
    if cell is None or cell.difference is None:
        return TableCell("–")
    change = cell.difference
    clear = change.interval is not None and (change.interval[0] > 0 or change.interval[1] < 0)
    title = "" if change.p_value is None else f"p {change.p_value:.4f}, {change.n} pairs"
    small = ", ".join(text for text in (change.partly, interval(change.interval)) if text)
    return TableCell(number(change.mean) + ("*" if clear else ""), small, title=title)


def write(folder: Path, boards: Sequence[Leaderboard]) -> None:
    """Write FOLDER/leaderboard-KEY.csv for each leaderboard."""
    for board in boards:
        write_csv(folder / f"leaderboard-{board.key}.csv", [_build_csv_row(board, name) for name in board.standings])


def _build_csv_row(board: Leaderboard, name: str) -> dict[str, Any]:
    """Return a model's CSV row: value, interval and counts of each score, and differences from the baseline."""
    cells: dict[str, Any] = {"model": name}
    for column in board.columns:
        cell = board.standings[name].get(column)
        low, high = (cell and cell.interval) or (None, None)
        cells[column] = cell and (math.inf if cell.infinite else cell.value)
        cells |= {f"{column} low95": low, f"{column} high95": high}
        cells |= {f"{column} n": cell and cell.n, f"{column} asked": cell and cell.asked}
        # Without a baseline there is nothing to subtract.
        if board.baseline:
            less = cell and cell.difference
            low, high = (less and less.interval) or (None, None)
            cells[f"{column} less {board.baseline}"] = less and less.mean
            cells |= {f"{column} less low95": low, f"{column} less high95": high}
            cells |= {f"{column} p": less and less.p_value, f"{column} less partly": less and less.partly}
    return cells
