"""MultiVerse's report: table 2, per goal and task, what the history does, and figures 5 and 9."""

from collections.abc import Sequence
from typing import Any

import msgspec

from critic.benchmarks import multiverse
from critic.benchmarks.multiverse import ORACLE, SELF_PREDICTION, Fit, Scores
from critic.page import svg as pictures
from critic.page.aggregates import AGGREGATE_HEAD as HEAD
from critic.page.aggregates import aggregate, aggregates, difference, differences
from critic.page.blocks import Row, Section, Table, number, row
from critic.page.runs import Report, Run
from critic.records import Conversation

NAMES = {ORACLE: "the references as history (oracle)", SELF_PREDICTION: "its own replies as history (self-prediction)"}


def report(runs: Sequence[Run], conversations: Sequence[Conversation]) -> Report:
    sections, summary = [], dict[str, Any]()
    curves: dict[str, list[float | None]] = {}
    for run in runs:
        facts: dict[str, Any] = {}
        tables = []
        for condition in run.conditions():
            found = multiverse.scores(run.verdicts, conversations, condition)
            ratio = multiverse.ratio_against_quality(run.verdicts, condition)
            lengths = multiverse.length_against_score(run.verdicts, condition)
            curves[f"{run.name}, {condition}"] = [turn.value for turn in found.turns]
            tables += _tables(NAMES.get(condition, condition), found, ratio, lengths)
            facts[condition] = msgspec.to_builtins(found) | {
                "ratio_against_quality": msgspec.to_builtins(ratio),
                "length_against_score": {str(turn): msgspec.to_builtins(one) for turn, one in lengths.items()},
            }
        if {ORACLE, SELF_PREDICTION} <= set(run.conditions()):
            effect = multiverse.oracle_effect(run.verdicts, conversations)
            rows = [difference(f"turn {turn}" if turn != "all" else "all", one) for turn, one in effect.items()]
            tables.insert(0, differences("What the references as history add (oracle less self-prediction)", rows))
            facts["oracle_effect"] = msgspec.to_builtins(effect)
        sections.append(
            Section(heading=f"{run.name}, judged by {run.judge}", tables=sorted(tables, key=lambda table: table.folded))
        )
        summary[run.name] = facts
    labels = [f"turn {turn}" for turn in range(1, max(map(len, curves.values()), default=0) + 1)]
    first = Section(
        heading="Scores by turn",
        pictures=[pictures.lines("Mean score of each turn, 0 to 100.", curves, labels, (0.0, 100.0))],
        note="A turn's score is completion ratio (share of yes) × 10 × quality (1 to 10).",
    )
    return Report(sections=[first, *sections], summary=summary)


def _tables(condition: str, found: Scores, ratio: Fit, lengths: dict[int, Fit]) -> list[Table]:
    rows = [aggregate(f"turn {number_}", turn) for number_, turn in enumerate(found.turns, 1)]
    rows += [aggregate("average of the turns", found.average, strong=True), aggregate("slope per turn", found.slope)]
    fits = [_fit("quality on completion ratio, all turns", ratio)]
    fits += [_fit(f"score on length in characters, turn {turn}", one) for turn, one in lengths.items()]
    return [
        Table(caption=f"Scores with {condition}", head=HEAD, rows=rows),
        Table(
            caption=f"What explains what, with {condition}",
            head=["", "R²", "slope", "n", "missing"],
            rows=fits,
        ),
        aggregates(f"By interaction goal, with {condition}", found.goals, folded=True),
        aggregates(f"By task, with {condition}", found.tasks, folded=True),
    ]


def _fit(name: str, found: Fit) -> Row:
    why = next(iter(found.undefined.values()), "")
    r = number(found.r_squared, 3) if not why else f"– ({why})"
    slope = "–" if found.slope is None else f"{found.slope:.3g}".replace("-", "−")
    return row(name, r, slope, found.n, found.missing)
