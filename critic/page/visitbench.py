"""VisIT-Bench's report: win rates against the reference, and the tournament of models."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from critic.benchmarks import visitbench
from critic.benchmarks.visitbench import ReferenceScores, Tournament
from critic.counting.aggregate import Aggregate
from critic.counting.tournament import WinRate
from critic.page.aggregates import AGGREGATE_HEAD as HEAD
from critic.page.aggregates import aggregate, aggregates
from critic.page.blocks import Section, Table, number, row, span
from critic.page.runs import Report, Run, order_reading
from critic.records import Conversation


def report(runs: Sequence[Run], conversations: Sequence[Conversation]) -> Report:
    scored = {
        (run.name, condition): visitbench.against_reference(
            [one for one in run.verdicts if one.condition == condition], conversations, condition
        )
        for run in runs
        for condition in run.conditions()
    }
    sections = [_references(runs, scored)] if scored else []
    summary: dict[str, Any] = {}
    for (name, condition), found in scored.items():
        summary.setdefault(name, {})[condition] = msgspec.to_builtins(found)
    battles = [one for run in runs for one in run.battles]
    for condition in dict.fromkeys(one.condition for one in battles):
        fought = visitbench.battles(battles, conversations, condition)
        if fought:
            name = "tournament" if condition == "own" else f"tournament, {condition}"
            tournament = visitbench.tournament(fought)
            pairs = {frozenset((battle.a, battle.b)) for battle in fought}
            asked = {model: len(conversations) * sum(model in pair for pair in pairs) for model in tournament.win_rates}
            sections.append(_tournament(name.capitalize(), runs, tournament, asked))
            summary[name] = msgspec.to_builtins(tournament) | {"asked": asked}
    return Report(sections=sections, summary=summary)


def _references(runs: Sequence[Run], scored: dict[tuple[str, str], ReferenceScores]) -> Section:
    rows = [aggregate(f"{name}, {condition}", found.overall) for (name, condition), found in scored.items()]
    counts = [
        row(f"{name}, {condition}", found.counts.wins, found.counts.ties, found.counts.losses)
        for (name, condition), found in scored.items()
    ]
    unreferenced = max(found.unreferenced for found in scored.values())
    return Section(
        heading="Against the reference",
        readings=[line for run in runs for line in order_reading(run)],
        tables=[
            Table(caption="Win rate in %, a tie half a win", head=HEAD, rows=rows),
            Table(caption="Verdicts", head=["", "wins", "ties", "losses"], rows=counts),
            *(
                aggregates(f"{name}, {condition}: by category", found.categories, folded=True)
                for (name, condition), found in scored.items()
            ),
        ],
        note=f"{unreferenced} instructions have no confirmed reference and are not asked." if unreferenced else "",
    )


def _tournament(heading: str, runs: Sequence[Run], found: Tournament, asked: Mapping[str, int]) -> Section:
    """`asked`: the battles of each model, those that were never judged included."""
    elo, strength = found.elo.ratings or {}, found.bradley_terry.ratings or {}
    intervals = found.bradley_terry.intervals or {}
    rows = [
        row(
            model,
            number(elo.get(model), 0),
            number(strength.get(model), 0),
            span(*intervals[model], 0) if model in intervals else "–",
            *aggregate(model, _percent(rate, asked[model])).cells,
        )
        for model, rate in sorted(found.win_rates.items(), key=lambda pair: -elo.get(pair[0], 0.0))
    ]
    ways = {run.setup for run in runs if run.battles}
    why = [text for text in (found.elo.undefined, found.bradley_terry.undefined) if text]
    if not why and not intervals and found.bradley_terry.no_intervals:
        why = [f"no intervals: {found.bradley_terry.no_intervals}"]
    return Section(
        heading=heading,
        readings=[
            *(f"Ratings: {text}." for text in why),
            *([f"The battles were judged in {len(ways)} ways, which the ratings mix."] if len(ways) > 1 else []),
            *(line for run in runs for line in order_reading(run, battles=True)),
        ],
        tables=[
            Table(
                caption="Ratings of models by their battles",
                head=["", "Elo", "Bradley–Terry", "95 % interval", "win rate, %", *HEAD[2:]],
                rows=rows,
            )
        ],
        note=f"Elo: online, K = {found.k:g}, the mean over {found.shuffles} random orders (seed {found.seed}). "
        "Bradley–Terry: on the same scale, mean 1000, bootstrap over groups.",
    )


def _percent(rate: WinRate, asked: int) -> Aggregate:
    """A win rate in per cent, with the range that it could lie in had the missing battles all been lost, or won."""
    won = rate.wins + rate.ties / 2
    return Aggregate(
        value=None if rate.rate is None else 100 * rate.rate,
        n=rate.n,
        failed=rate.failed,
        asked=asked,
        low=100 * won / asked,
        high=100 * (won + asked - rate.n) / asked,
    )
