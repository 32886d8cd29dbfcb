"""Build the tables of tournaments: ratings of models that were compared with each other, and win rates by opponent."""

import re
from collections import ChainMap, defaultdict
from collections.abc import Sequence
from itertools import chain, product
from typing import Any

from msgspec.structs import replace

from critic.benchmarks import Conversations, Run, Runs, Verdicts, any_compares
from critic.page.blocks import Section
from critic.page.leaderboards import BRADLEY_TERRY, ELO, table_of
from critic.page.page import render
from critic.records import Judgment
from critic.stats import tournament
from critic.stats.aggregate import Cell, Groups, asked_of, each
from critic.stats.leaderboard import MEAN, Leaderboard, LeaderboardCell, LeaderboardRow, scores_by_part, standings

RATE, TIES = "win rate, %", "ties, %"


def tournaments(runs: Runs, order: dict[str, int]) -> tuple[list[Section], list[Leaderboard], dict[str, Any]]:
    """Build the tournaments: ratings of models that were compared with each other, and win rates by opponent.

    Each judge, people included, has a tournament per condition and turn. Return sections of the page, tables for files,
    and the values for summary.json by tournament. `order` maps models to positions on the page; models that it lacks
    are added by Elo. Raises UsageError as `tournament.battles` does.
    """
    by_judge: dict[str, list[Run]] = defaultdict(list)
    # A benchmark that compares no answers has no scores of pairs; its battles stand among the other verdicts.
    for run in runs.runs if any_compares(runs.benchmark.protocols) else ():
        if run.battles:
            by_judge[run.judge].append(run)
    sections, boards, summary = list[Section](), list[Leaderboard](), dict[str, Any]()
    for judge, fighting in by_judge.items():
        cells: dict[Cell, list[Judgment]] = defaultdict(list)
        for judgment in chain.from_iterable(run.battles for run in fighting):
            cells[Cell(judgment.condition, judgment.turn, judgment.judging)].append(judgment)
        for cell in sorted(cells, key=lambda cell: cell.order):
            name = _name_tournament(cell, runs.conversations, judge if len(by_judge) > 1 else None)
            section, rated, summary[name] = _build(name, cell, cells[cell], fighting, runs.conversations, order)
            sections.append(section)
            boards += rated
    # The note on the first holds for all tournaments of the page.
    facts = {"k": tournament.K, "shuffles": tournament.SHUFFLES}
    if sections:
        sections[0] = replace(sections[0], note=render("critic.page", "tournament.jinja", facts).strip())
    return sections, boards, summary


def _build(
    name: str, cell: Cell, verdicts: Verdicts, runs: Sequence[Run], conversations: Conversations, order: dict[str, int]
) -> tuple[Section, Sequence[Leaderboard], dict[str, Any]]:
    """Build the tournament `name` from the verdicts of one cell (condition, turn and way of judging).

    Return its section of the page, its two tables, and its values for summary.json. `order`: as in `tournaments`.
    """
    # Who meets whom is no way of judging: a newcomer's battles go with those of the finished tournament.
    setups = {replace(run.setup, battles=None, seed=0) for run in runs}
    backed = all(setup.reference_backed for setup in setups)
    groups = asked_of(conversations, cell, "pairwise", {judgment.sample.id for judgment in verdicts}, backed=backed)
    battles = tournament.battles(verdicts, groups)
    elo, bradley_terry = tournament.mean_elo(battles), tournament.bradley_terry(battles)
    # If opponents were drawn at random, only the files say who met whom.
    drawn = any(run.setup.battles in ("random", "newcomer") for run in runs)
    models = _order(order, battles, elo)
    ratings = {ELO: elo, BRADLEY_TERRY: bradley_terry}
    boards = _build_boards(re.sub(r"\W+", "-", name), verdicts, groups, models, ratings, drawn)
    reasons = dict.fromkeys(rating.undefined for rating in ratings.values() if rating.undefined)
    readings = [f"Ratings: {reason}." for reason in reasons]
    if bradley_terry.unrated:
        why = ", ".join(f"{model} ({reason})" for model, reason in bradley_terry.unrated.items())
        readings.append(f"Bradley–Terry has no finite rating of {why}; the others are rated by their own battles.")
    if len(setups) > 1:
        readings.append(f"The battles were judged in {len(setups)} ways, which the ratings mix.")
    section = Section(heading=name.capitalize(), readings=readings, tables=[*map(table_of, boards)])
    counts = {model: scores[RATE].asked for model, scores in boards[0].standings.items()}
    return section, boards, {"elo": elo, "bradley_terry": bradley_terry, "asked": counts}


def _order(positions: dict[str, int], battles: Sequence[tournament.Battle], elo: tournament.Ratings) -> list[str]:
    """Return the models of `battles` in the page's order. Models missing from `positions` are added to it by Elo."""
    models = {model for battle in battles for model in (battle.a, battle.b)}
    for model in sorted(models, key=lambda model: (-(elo.of(model)[0] or 0.0), model)):
        positions.setdefault(model, len(positions))
    return [model for model in positions if model in models]


def _name_tournament(cell: Cell, conversations: Conversations, judge: str | None) -> str:
    """Return the name of a tournament, such as "tournament, turn 2, judged by gpt".

    It names the turn only if conversations have several, and the condition or way of judging only if it is unusual.
    `judge` is None if all tournaments have the same judge.
    """
    single = all(len(conversation.turns) == 1 for conversation in conversations)
    turn = [] if single else [Cell("", cell.turn).words[2:]]
    unusual = [word for word in (cell.condition, cell.judging) if word not in ("own", "standard")]
    return ", ".join(["tournament", *turn, *unusual, *([f"judged by {judge}"] if judge else [])])


def _build_boards(
    key: str, verdicts: Verdicts, groups: Groups, order: list[str], ratings: dict[str, tournament.Ratings], drawn: bool
) -> tuple[Leaderboard, Leaderboard]:
    """Build two leaderboards named by `key`, with models in `order`: their ratings, and their win rates by opponent.

    `groups` maps conversation ids to groups. `ratings` are by the name of each method, ELO and BRADLEY_TERRY. `drawn`:
    opponents were sampled per conversation. Otherwise every pair of models that met counts as compared in every
    conversation.
    """
    points: dict[str, dict[tuple[str, str], float | None]] = defaultdict(dict)
    for judgment in verdicts:
        won = None if judgment.score is None else 100 * judgment.score
        points[judgment.system][judgment.opponent or "", judgment.sample.id] = won
        points[judgment.opponent or ""][judgment.system, judgment.sample.id] = None if won is None else 100 - won
    caption, judge = "Ratings of models by their battles", verdicts[0].judge
    entries = {}
    for model in order:
        met = {opponent for opponent, _ in points[model]}
        asked: dict[str, dict[tuple[str, str], str]] = {opponent: {} for opponent in order if opponent in met}
        for opponent, question in points[model] if drawn else product(asked, groups):
            asked[opponent][opponent, question] = groups[question]
        every = ChainMap(*asked.values())
        ties = each(points[model], lambda value: 100.0 * (value == 50))
        scores = scores_by_part(points[model], {RATE: every, **asked}, (0, 100))
        scores |= scores_by_part(ties, {TIES: every}, (0, 100))
        entries[model] = LeaderboardRow(key, caption, scores, name=model, system=model, judge=judge)
    wins = standings(list(entries.values()))
    wins.pop(MEAN, None)
    rated = dict[str, dict[str, LeaderboardCell]]()
    for model, cells in wins.items():
        # Both tables come from the same resamples, so the wins are computed with the rates and then parted.
        rate, ties_ = cells.pop(RATE), cells.pop(TIES)
        rated[model] = {name: _rate(rate, rating, model) for name, rating in ratings.items()}
        rated[model] |= {RATE: rate, TIES: ties_}
    columns = [*ratings, RATE, TIES]
    of_wins = "Wins of the row over the column in %, a tie half a win"
    shown: dict[str, Any] = {"places": ratings[ELO].places or {}, "charted": columns[:3]}
    return (
        Leaderboard(key=key, caption=caption, columns=columns, entries=entries, standings=rated, **shown),
        Leaderboard(key=f"{key}-wins", caption=of_wins, columns=order, entries=entries, standings=wins),
    )


def _rate(rate: LeaderboardCell, ratings: tournament.Ratings, model: str) -> LeaderboardCell:
    """Return the cell `rate` with the model's rating as its value, keeping the counts of the win rate."""
    value, bounds = ratings.of(model)
    return replace(rate, value=value, interval=bounds, low=None, high=None)
