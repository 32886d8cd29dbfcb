"""Tournaments: ratings of the models that were compared with each other, and each one's wins over each."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec.structs import asdict, replace

from critic.benchmarks import Run, order_reading
from critic.page.blocks import Section, Table, row
from critic.page.leaderboards import BRADLEY_TERRY, ELO, Leaderboard, table_of
from critic.records import Conversation, Judgment
from critic.stats import tournament
from critic.stats.aggregate import Cell, asked_of
from critic.stats.leaderboard import MEAN, LeaderboardCell, LeaderboardRow, score_of, standings

RATE = "win rate, %"

RATINGS = (
    f"Elo: online, K = {tournament.K:g}, the mean over {tournament.SHUFFLES} random orders; its interval: each "
    "resample in an order of its own. Bradley–Terry: on the same scale, mean 1000. Intervals: 95 %, bootstrap over "
    "groups."
)


class Tournaments(NamedTuple):
    """The battles between models by condition and turn: sections of the page, their tables for files, and the numbers
    for summary.json by name."""

    sections: list[Section]
    boards: list[Leaderboard]
    summary: dict[str, Any]


def tournaments(runs: Sequence[Run], asked: Sequence[Conversation]) -> Tournaments:
    """Ratings of the models that were compared with each other, and each one's wins over each. Raises UsageError as
    `tournament.battles` does."""
    cells: dict[Cell, list[Judgment]] = {}
    fighting = [run for run in runs if run.battles]
    for run in fighting:
        for judgment in run.battles:
            cells.setdefault(Cell(judgment.condition, judgment.turn, judgment.judging), []).append(judgment)
    result = Tournaments([], [], {})
    for cell in sorted(cells, key=attrgetter("order")):
        _tournament(result, cell, cells[cell], fighting, asked)
    return result


def _tournament(
    result: Tournaments, cell: Cell, verdicts: list[Judgment], runs: Sequence[Run], asked: Sequence[Conversation]
) -> None:
    """Add the battles of one condition and turn."""
    # Who meets whom is no way of judging: a newcomer's battles go with those of the finished tournament.
    setups = {replace(run.setup, battles=None, seed=0) for run in runs}
    name = _tournament_name(cell, asked)
    backed = all(setup.reference_backed for setup in setups)
    groups = asked_of(asked, cell, "pairwise", {judgment.sample.id for judgment in verdicts}, backed=backed)
    ratings = tournament.tournament(tournament.battles(verdicts, groups))
    drawn = any(
        run.setup.battles in ("random", "newcomer") for run in runs
    )  # who meets whom is known by the files alone
    rated, wins = of_battles(re.sub(r"\W+", "-", name), verdicts, groups, ratings, drawn)
    reasons = dict.fromkeys(each.undefined for each in (ratings.elo, ratings.bradley_terry) if each.undefined)
    mixed = [f"The battles were judged in {len(setups)} ways, which the ratings mix."] if len(setups) > 1 else []
    order = order_reading(replace(runs[0], name="All battles", turns=verdicts), battles=True)
    counts = [(model, ratings.win_rates[model]) for model in rated.standings]
    rows = [row(model, rate.wins, rate.ties, rate.losses, rate.failed) for model, rate in counts]
    result.sections.append(
        Section(
            heading=name.capitalize(),
            readings=[*(f"Ratings: {reason}." for reason in reasons), *mixed, *order],
            tables=[
                table_of(rated),
                table_of(wins),
                Table(caption="Verdicts", head=["", "wins", "ties", "losses", "failed"], rows=rows),
            ],
            note="" if result.sections else RATINGS,
        )
    )
    result.boards.extend((rated, wins))
    counted = {model: scores[RATE].asked for model, scores in rated.standings.items()}
    result.summary[name] = asdict(ratings) | {"asked": counted}


def _tournament_name(cell: Cell, asked: Sequence[Conversation]) -> str:
    """With the turn where there are several, and what is not usual."""
    turn = [] if all(len(conversation.turns) == 1 for conversation in asked) else [Cell("", cell.turn).words[2:]]
    unusual = [word for word in (cell.condition, cell.judging) if word not in ("own", "standard")]
    return ", ".join(["tournament", *turn, *unusual])


def of_battles(
    key: str, verdicts: Sequence[Judgment], groups: Mapping[str, str], ratings: tournament.Tournament, drawn: bool
) -> tuple[Leaderboard, Leaderboard]:
    """Models by their battles, the highest Elo first: their ratings, and how often each wins over each other. `groups`
    are those of the conversations that were asked; `drawn`: two models meet only where one was drawn for the other."""
    points: dict[str, dict[tuple[str, str], float | None]] = defaultdict(dict)
    for judgment in verdicts:
        model, other = judgment.system, judgment.opponent or ""
        points[model][other, judgment.sample.id] = None if judgment.score is None else 100 * judgment.score
        points[other][model, judgment.sample.id] = None if judgment.score is None else 100 - 100 * judgment.score
    order = sorted(points, key=lambda model: -(ratings.elo.ratings or {}).get(model, 0.0))
    entries = [_of_model(key, points[model], order, groups, drawn) for model in order]
    entries = [replace(entry, name=model, system=model) for entry, model in zip(entries, order, strict=True)]
    rated, wins = {}, {}
    for model, cells in standings(entries).items():
        if model != MEAN:
            rate = cells.pop(RATE)
            wins[model] = cells
            by_name = {ELO: ratings.elo, BRADLEY_TERRY: ratings.bradley_terry}
            rated[model] = {name: _rated(rate, *rating.of(model)) for name, rating in by_name.items()} | {RATE: rate}
    named = {entry.name: entry for entry in entries}
    of_wins, columns = "Wins of the row over the column in %, a tie half a win", [ELO, BRADLEY_TERRY, RATE]
    return (
        Leaderboard(key=key, caption=entries[0].caption, columns=columns, entries=named, standings=rated),
        Leaderboard(key=f"{key}-wins", caption=of_wins, columns=order, entries=named, standings=wins),
    )


def _of_model(
    key: str,
    points: Mapping[tuple[str, str], float | None],
    models: Sequence[str],
    groups: Mapping[str, str],
    drawn: bool,
) -> LeaderboardRow:
    """A model's win rate over each opponent that it met, and over all."""
    opposed = {other for other, _ in points}
    opponents = [model for model in models if model in opposed]
    pairs = points if drawn else product(opponents, groups)
    asked = {(other, question): groups[question] for other, question in pairs}
    scores = {RATE: score_of(points, asked, (0, 100))}
    for opponent in opponents:
        against = {pair: group for pair, group in asked.items() if pair[0] == opponent}
        scores[opponent] = score_of(points, against, (0, 100))
    return LeaderboardRow(key=key, caption="Ratings of models by their battles", scores=scores)


def _rated(rate: LeaderboardCell, value: float | None, bounds: tuple[float, float] | None) -> LeaderboardCell:
    return replace(rate, value=value, interval=bounds, low=None, high=None)
