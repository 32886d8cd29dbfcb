"""AlignMMBench's report: table 3, the alignment score, quadrants, and what a model gets without the image."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import msgspec
from msgspec import Struct

from critic.benchmarks.alignmmbench import CATEGORIES, TASKS, Alignment, alignment_score
from critic.counting.aggregate import SCALES, Aggregate, Cell, by_cell, combine, mean
from critic.page import svg as pictures
from critic.page.aggregates import AGGREGATE_HEAD, aggregate
from critic.page.blocks import Picture, Section, Table, number, row
from critic.page.runs import Report, Run
from critic.records import Conversation

WITHOUT_IMAGE = "no_image"

QUADRANTS = {
    (True, True): "Robust Convergence",
    (True, False): "Component-Centric",
    (False, True): "Alignment-Driven",
    (False, False): "Baseline Limited",
}
"""By (average, alignment), each high or low (AlignMMBench §5.3.2); the paper names no bar, ours is the median."""


class Scores(Struct, frozen=True, kw_only=True):
    """Table 3's row: `average` is the unweighted mean of the task means, `questions` the mean over questions."""

    tasks: dict[str, Aggregate]
    categories: dict[str, Aggregate]
    average: Aggregate
    questions: Aggregate
    alignment: Alignment


def scores(ratings: Mapping[str, float | None], conversations: Sequence[Conversation]) -> Scores:
    """The scores of one model under one condition, from its ratings 1..10 by question id (None: failed)."""
    asked: dict[str, list[str]] = {}
    groups: dict[str, list[float | None]] = {}
    for one in conversations:
        asked.setdefault(one.turns[0].task or "none", []).append(one.id)
        if one.id in ratings:
            groups.setdefault(one.group, []).append(ratings[one.id])
    order = [task for task in TASKS if task in asked]
    tasks = {task: mean(ratings, asked[task], SCALES["pointwise"]) for task in order}
    members = {name: [tasks[task] for task in found if task in tasks] for name, found in CATEGORIES.items()}
    return Scores(
        tasks=tasks,
        categories={name: _macro(found) for name, found in members.items() if found},
        average=_macro(list(tasks.values())),
        questions=mean(ratings, [one.id for one in conversations], SCALES["pointwise"]),
        alignment=alignment_score(groups.values()),
    )


def _macro(parts: Sequence[Aggregate]) -> Aggregate:
    return combine([(1 / len(parts), part) for part in parts])


def quadrants(placed: Mapping[str, tuple[float, float]]) -> dict[str, str]:
    """The quadrant of each model by its (average, alignment): high is above the median of the models."""
    if len(placed) < 2:
        return {}
    averages, alignments = zip(*placed.values(), strict=True)
    bars = median(averages), median(alignments)
    return {name: QUADRANTS[average > bars[0], alignment > bars[1]] for name, (average, alignment) in placed.items()}


def report(runs: Sequence[Run], conversations: Sequence[Conversation]) -> Report:
    found: dict[tuple[str, str], Scores] = {}
    lengths: dict[str, list[int]] = {}
    for run in runs:
        for cell, ratings in by_cell(run.verdicts, "pointwise").items():
            if cell == Cell(cell.condition, 1):
                found[run.name, cell.condition] = scores(ratings, conversations)
        for verdict in run.verdicts:
            if verdict.length is not None and verdict.protocol == "pointwise":
                lengths.setdefault(_label(run.name, verdict.condition), []).append(verdict.length)
    with_image = {_label(*key): one for key, one in found.items() if key[1] != WITHOUT_IMAGE}
    placed = {
        name: (one.average.value, one.alignment.without_singletons)
        for name, one in with_image.items()
        if one.average.value is not None and one.alignment.without_singletons is not None
    }
    named = quadrants(placed)
    sections = [
        _leaderboard(found),
        _alignment({_label(*key): one for key, one in found.items()}, named),
        *(_tasks(name, one) for name, one in ((_label(*key), one) for key, one in found.items())),
        Section(heading="Pictures", pictures=_pictures(with_image, placed, lengths)),
    ]
    summary: dict[str, Any] = {}
    for (name, condition), one in found.items():
        summary.setdefault(name, {})[condition] = msgspec.to_builtins(one)
    return Report(sections=sections, summary=summary | ({"quadrants": named} if named else {}))


def _label(name: str, condition: str) -> str:
    return {"own": name, WITHOUT_IMAGE: f"{name}, without image"}.get(condition, f"{name}, {condition}")


def _leaderboard(found: Mapping[tuple[str, str], Scores]) -> Section:
    ranked = sorted(found.items(), key=lambda pair: -(pair[1].average.value or 0.0))
    tasks = list(dict.fromkeys(task for _, one in ranked for task in one.tasks))
    rows = [
        row(
            _label(*key),
            number(one.average.value),
            *(number(one.tasks[task].value) for task in tasks),
            *aggregate("", one.average).cells[1:],
            strong=key[1] != WITHOUT_IMAGE,
        )
        for key, one in ranked
    ]
    notes = "The average is the unweighted mean of the tasks. There is none where a task has no score."
    return Section(
        heading="Leaderboard",
        tables=[Table(caption="Mean rating 1 to 10", head=["", "average", *tasks, *AGGREGATE_HEAD[2:]], rows=rows)],
        note=notes,
    )


def _tasks(name: str, found: Scores) -> Section:
    rows = []
    for category, members in CATEGORIES.items():
        if category in found.categories:
            rows.append(aggregate(category, found.categories[category], strong=True))
            rows += [aggregate(task, found.tasks[task], depth=1) for task in members if task in found.tasks]
    rows.append(aggregate("mean of the tasks", found.average, strong=True))
    rows.append(aggregate("mean of the questions", found.questions))
    return Section(
        heading=f"{name}: tasks and categories",
        tables=[Table(caption="Mean rating 1 to 10", head=AGGREGATE_HEAD, rows=rows)],
    )


def _alignment(found: Mapping[str, Scores], named: Mapping[str, str]) -> Section:
    rows = []
    for name, one in found.items():
        alignment = one.alignment
        shown = [
            number(value) if value is not None else f"– ({alignment.undefined[which]})"
            for which, value in (("score", alignment.score), ("without_singletons", alignment.without_singletons))
        ]
        counts = alignment.groups, alignment.singletons, alignment.empty, alignment.failed
        rows.append(row(name, *shown, *counts, named.get(name, "–")))
    return Section(
        heading="Alignment",
        tables=[
            Table(
                caption="How alike the ratings of one question's rewrites are: groups / sum of their deviations",
                head=["", "all groups", "without singletons", "groups", "singletons", "empty", "failed", "quadrant"],
                rows=rows,
            )
        ],
        note="A group with one question has a deviation of 0 whatever the model does; one where all judgments failed "
        "is empty and left out. Quadrants are split at the "
        "medians of the models shown, by average and by alignment without singletons; one model alone has none.",
    )


def _pictures(
    found: Mapping[str, Scores], placed: Mapping[str, Any], lengths: Mapping[str, Sequence[int]]
) -> list[Picture]:
    outlines = {name: {task: cell.value for task, cell in one.tasks.items()} for name, one in found.items()}
    made = [
        pictures.radar("Mean rating by task, 1 in the middle to 10 outside.", outlines, (1.0, 10.0)),
        pictures.scatter(
            "Average against alignment (without singletons); dashed: medians.", placed, ("average rating", "alignment")
        ),
        pictures.lengths("Lengths of the answers in characters: share of them from each number up.", lengths),
    ]
    return [picture for picture in made if picture is not None]
