"""ConvBench's report: tables 1 and 8, per task, and where errors come from."""

from collections.abc import Sequence
from typing import Any

import msgspec

from critic.benchmarks import convbench
from critic.benchmarks.convbench import CELLS, Attribution, Effect
from critic.page import svg as pictures
from critic.page.aggregates import aggregates, difference, differences
from critic.page.blocks import Section, Table, number, row
from critic.page.runs import Report, Run, order_reading
from critic.records import Conversation, Protocol

TITLES: dict[Protocol, str] = {"pairwise": "win rate against the reference, %", "direct": "direct grading, 1 to 10"}
TURNS = {1: "perception", 2: "reasoning", 3: "creation", None: "whole conversation"}
SYMBOLS = {
    **{name: name.replace("_hat", " with perfect perception") for name in CELLS},
    **{name: name.replace("_tilde", " with perfect perception and reasoning") for name in CELLS if "tilde" in name},
    "delta_S2_hat": "perfect perception adds to S2",
    "delta_S3_hat": "perfect perception adds to S3",
    "delta_SO_hat": "perfect perception adds to SO",
    "delta_S3_tilde": "perfect reasoning adds to S3",
    "delta_SO_tilde": "perfect reasoning adds to SO",
    "R2": "R2, mean of the turns",
    "R1": "R1, mean of R2 and SO",
}


def report(runs: Sequence[Run], conversations: Sequence[Conversation]) -> Report:
    sections, summary = [], dict[str, Any]()
    for run in runs:
        for protocol in run.protocols():
            if protocol not in TITLES:
                continue
            made, facts = _protocol(run, protocol, conversations)
            sections += made
            summary.setdefault(run.name, {})[protocol] = facts
    return Report(sections=sections, summary=summary)


def _protocol(
    run: Run, protocol: Protocol, conversations: Sequence[Conversation]
) -> tuple[list[Section], dict[str, Any]]:
    verdicts = run.verdicts
    scores = convbench.scores(verdicts, conversations, protocol)
    found = convbench.attribution(verdicts, conversations, protocol)
    contrasts = convbench.contrasts(verdicts, conversations, protocol)
    tasks = {
        name: convbench.by_task(verdicts, conversations, protocol, cell)
        for name, cell in CELLS.items()
        if name in scores and cell.turn is not None
    }
    scale = (0.0, 100.0) if protocol == "pairwise" else (1.0, 10.0)
    first = Section(
        heading=f"{run.name}: {TITLES[protocol]}",
        readings=order_reading(run) if protocol == "pairwise" else [],
        tables=[
            aggregates("Scores (tables 1 and 8 of the paper)", {SYMBOLS[name]: one for name, one in scores.items()}),
            *([_contrasts(contrasts)] if contrasts else []),
            *(
                aggregates(f"{SYMBOLS[name]} by task of turn {CELLS[name].turn}", found_, folded=True)
                for name, found_ in tasks.items()
            ),
        ],
        pictures=[
            pictures.dots(
                "Scores by what the model saw; bars: where the score could lie with what is missing.",
                {
                    name: {cell.condition: (one.value, one.low, one.high) for cell, one in row.items()}
                    for name, row in _by_turn(scores).items()
                },
                scale,
            )
        ],
        note="S1 to S3 are the turns, SO the conversation as a whole. What perfection adds is positive where the "
        "model's own mistakes had cost something; in this table it is the difference of two scores, each of all "
        "that was judged, below of the conversations that were judged both times.",
    )
    facts = {
        "scores": msgspec.to_builtins(scores),
        "attribution": msgspec.to_builtins(found),
        "contrasts": msgspec.to_builtins(contrasts),
        "tasks": msgspec.to_builtins(tasks),
    }
    return [first, *([_attribution(run, protocol, found)] if found.effects else [])], facts


def _by_turn(scores: Any) -> dict[str, dict[Any, Any]]:
    rows: dict[str, dict[Any, Any]] = {}
    for name, cell in CELLS.items():
        if name in scores:
            rows.setdefault(TURNS[cell.turn], {})[cell] = scores[name]
    return rows


def _contrasts(contrasts: Any) -> Table:
    return differences("The paper's other ablations", [difference(name, one) for name, one in contrasts.items()])


def _attribution(run: Run, protocol: Protocol, found: Attribution) -> Section:
    flips = [
        row(
            flip.conversation,
            f"perfect {flip.cause}",
            f"turn {flip.turn}",
            flip.cause_task,
            flip.task,
            number(flip.before, 1),
            number(flip.after, 1),
        )
        for flip in found.flips
    ]
    better = sum(flip.after > flip.before for flip in found.flips)
    return Section(
        heading=f"{run.name}: where errors come from ({protocol})",
        readings=[
            f"{len(found.flips)} verdicts on turns change when an earlier step is made perfect: {better} for the "
            f"better, {len(found.flips) - better} for the worse."
        ],
        tables=[
            differences(
                "What making a step perfect adds", [difference(_name(one), one.difference) for one in found.effects]
            ),
            differences(
                "By pair of tasks, the costliest first",
                [difference(_name(one), one.difference) for one in found.pairs],
                folded=True,
            ),
            Table(
                caption="Every verdict that changes",
                head=["conversation", "made perfect", "verdict on", "its task", "the turn's task", "before", "after"],
                rows=flips,
                folded=True,
            ),
        ],
        note="95 % intervals from a paired bootstrap over groups (images); p from random signs of whole groups.",
    )


def _name(effect: Effect) -> str:
    name = f"perfect {effect.cause}: {TURNS[effect.turn]} ({effect.gained} up, {effect.lost} down)"
    return f"{effect.cause_task} → {effect.task}: {name}" if effect.cause_task else name
