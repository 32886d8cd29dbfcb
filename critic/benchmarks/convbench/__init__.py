"""ConvBench: its sheet as it is, and its report.

A row of the sheet is one conversation of three turns, perception, reasoning and creation, about one image:

    image_id                        0001.jpg
    instruction-conditioned-caption A red kite flies over a beach; two children hold its string.
    The_first_turn_instruction      What is in the sky?          … second … third: Write a poem about this day.
    First_turn_instruction_category Object recognition           … Second … Third: Poetry
    first_turn_answer               A red kite.                  … second … third: Red above the sand …
    third_turn_demands              Mentions kite and children; has a rhyme.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from critic import tables
from critic.benchmarks import Benchmark, Report, Run, order_reading
from critic.benchmarks.convbench import measures
from critic.benchmarks.convbench.measures import CELLS, AblationEffect, Attribution
from critic.counting.aggregate import Aggregate, Cell, Difference
from critic.errors import UsageError
from critic.page import blocks
from critic.page import svg as pictures
from critic.page.aggregates import aggregates, difference, differences
from critic.page.blocks import Section, Table
from critic.records import Conversation, ConversationTurn, Protocol, TurnVerdict

FORMATS = (".xlsx", ".csv", ".jsonl")

INSTRUCTIONS = ("The_first_turn_instruction", "The_second_turn_instruction", "The_third_turn_instruction")
TASKS = ("First_turn_instruction_category", "Second_turn_instruction_category", "Third_turn_instruction_category")
REFERENCES = ("first_turn_answer", "second_turn_answer", "third_turn_answer")
IMAGE, CAPTION, FOCUS = "image_id", "instruction-conditioned-caption", "third_turn_demands"
COLUMNS = (IMAGE, CAPTION, *INSTRUCTIONS, *TASKS, *REFERENCES, FOCUS)
"""What the benchmark's own script reads. The public sheet has only the image and the instructions."""

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


def read_conversations(path: Path) -> list[Conversation]:
    """The conversations of a ConvBench sheet (.xlsx, or saved as .csv; .jsonl with the same keys), in its order.

    Images are paths as in the sheet's `image_id`; an optional column `lang` marks Chinese rows. Raises UsageError
    naming what is missing for a sheet without references, captions, tasks or focus points, and place and column for an
    empty cell or a duplicate id.
    """
    ids = tables.Ids()
    found = []
    for number, (place, row) in enumerate(tables.rows(path, FORMATS), 1):
        _check_columns(path, row)
        image = tables.text(place, row, IMAGE)
        turns = [
            ConversationTurn(
                prompt=tables.text(place, row, INSTRUCTIONS[turn]),
                reference=tables.text(place, row, REFERENCES[turn]),
                task=tables.text(place, row, TASKS[turn]),
                images=[image] if turn == 0 else [],
                focus=tables.text(place, row, FOCUS) if turn == 2 else None,
            )
            for turn in range(3)
        ]
        found.append(
            Conversation(
                id=ids.add(place, tables.optional_text(row, "ID") or str(number)),
                benchmark="convbench",
                lang=tables.language(place, row),
                group=image,
                turns=turns,
                caption=tables.text(place, row, CAPTION),
            )
        )
    return found


def _check_columns(path: Path, row: Mapping[str, object]) -> None:
    missing = [column for column in COLUMNS if column not in row]
    if missing:
        raise UsageError(
            f"{path}: the sheet lacks {', '.join(missing)}; the public ConvBench.xlsx has only image and instructions, "
            "ask its authors for the full one"
        )


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
    scores = measures.scores(verdicts, conversations, protocol)
    found = measures.attribution(verdicts, conversations, protocol)
    contrasts = measures.contrasts(verdicts, conversations, protocol)
    tasks = {
        name: measures.by_task(verdicts, conversations, protocol, cell)
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


def _by_turn(scores: Mapping[str, Aggregate]) -> dict[str, dict[Cell, Aggregate]]:
    rows: dict[str, dict[Cell, Aggregate]] = {}
    for name, cell in CELLS.items():
        if name in scores:
            rows.setdefault(TURNS[cell.turn], {})[cell] = scores[name]
    return rows


def _contrasts(contrasts: Mapping[str, Difference]) -> Table:
    return differences("The paper's other ablations", [difference(name, one) for name, one in contrasts.items()])


def _attribution(run: Run, protocol: Protocol, found: Attribution) -> Section:
    flips = [
        blocks.row(
            flip.conversation,
            f"perfect {flip.cause}",
            f"turn {flip.turn}",
            flip.cause_task,
            flip.task,
            blocks.number(flip.before, 1),
            blocks.number(flip.after, 1),
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


def _name(effect: AblationEffect) -> str:
    name = f"perfect {effect.cause}: {TURNS[effect.turn]} ({effect.gained} up, {effect.lost} down)"
    return f"{effect.cause_task} → {effect.task}: {name}" if effect.cause_task else name


def agreement(one: Run, other: Run, conversations: Sequence[Conversation]) -> Report:
    """Per cent of equal verdicts of two judges, by protocol and cell (tables 3 to 7)."""
    shared = [protocol for protocol in one.protocols() if protocol in other.protocols()]
    found = {protocol: measures.agreement(one.verdicts, other.verdicts, conversations, protocol) for protocol in shared}
    agreed = {protocol: cells for protocol, cells in found.items() if len(cells) > 1}
    section = Section(
        heading=f"How often {one.name} and {other.name} agree",
        tables=[
            aggregates(f"Equal verdicts in %, {protocol}", {SYMBOLS.get(name, name): cells[name] for name in cells})
            for protocol, cells in agreed.items()
        ],
        note="On the same replies (tables 3 to 7 of the paper), with 95 % intervals: whole groups are resampled. "
        "Grades agree only when they are equal.",
    )
    return Report(sections=[section] if agreed else [], summary=msgspec.to_builtins(agreed))


def _is_scored(verdict: TurnVerdict) -> bool:
    cell = Cell(verdict.condition, verdict.turn, verdict.judging)
    return verdict.opponent is None and cell in CELLS.values()


BENCHMARK = Benchmark(
    title="ConvBench",
    read=read_conversations,
    protocols=("pairwise", "direct"),
    report=report,
    scored=_is_scored,
    agreement=agreement,
)
