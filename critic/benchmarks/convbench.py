"""ConvBench: its sheet as it is, its scores (§4, tables 1 and 8), where its errors come from (§3.3, §5.2), how far two
judges agree, and its report.

A row of the sheet is one conversation of three turns, perception, reasoning and creation, about one image:

    image_id                        0001.jpg
    instruction-conditioned-caption A red kite flies over a beach; two children hold its string.
    The_first_turn_instruction      What is in the sky?          … second … third: Write a poem about this day.
    First_turn_instruction_category Object recognition           … Second … Third: Poetry
    first_turn_answer               A red kite.                  … second … third: Red above the sand …
    third_turn_demands              Mentions kite and children; has a rhyme.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from msgspec import Struct

from critic import tables
from critic.benchmarks import (
    Benchmark,
    Conversations,
    Report,
    Run,
    Verdicts,
    alike,
    answers_of,
    order_reading,
)
from critic.errors import UsageError
from critic.page import blocks
from critic.page.aggregates import differences
from critic.page.blocks import Columns, Section, Table, TableCell, interval, number
from critic.records import Conversation, ConversationTurn, JudgeConfig, Judgment, Protocol
from critic.stats import aggregate as counted
from critic.stats.aggregate import (
    Cell,
    Difference,
    Scale,
    by_cell,
    groups_by,
    groups_of,
)
from critic.stats.leaderboard import LeaderboardCell, LeaderboardRow, Score, Term, score_of, standings

FORMATS = (".xlsx", ".csv", ".jsonl", ".parquet")

INSTRUCTIONS = ("The_first_turn_instruction", "The_second_turn_instruction", "The_third_turn_instruction")
TASKS = ("First_turn_instruction_category", "Second_turn_instruction_category", "Third_turn_instruction_category")
REFERENCES = ("first_turn_answer", "second_turn_answer", "third_turn_answer")
IMAGE, CAPTION, FOCUS = "image_id", "instruction-conditioned-caption", "third_turn_demands"
PUBLIC, ANNOTATED = (IMAGE, *INSTRUCTIONS), (CAPTION, *TASKS, *REFERENCES, FOCUS)
"""What the benchmark's own script reads. The public sheet has only the first of these."""

OWN, PERCEPTION, REASONING = "own", "perfect_perception", "perfect_perception_reasoning"

CELLS = {
    "S1": Cell(OWN, 1),
    "S2": Cell(OWN, 2),
    "S3": Cell(OWN, 3),
    "SO": Cell(OWN, None),
    "S2_hat": Cell(PERCEPTION, 2),
    "S3_hat": Cell(PERCEPTION, 3),
    "SO_hat": Cell(PERCEPTION, None),
    "S3_tilde": Cell(REASONING, 3),
    "SO_tilde": Cell(REASONING, None),
}
"""The judged cells of table 1: hat with perfect perception, tilde with perfect perception and reasoning."""

DERIVED: dict[str, dict[str, float]] = {
    "R2": {"S1": 1 / 3, "S2": 1 / 3, "S3": 1 / 3},
    "R1": {"S1": 1 / 6, "S2": 1 / 6, "S3": 1 / 6, "SO": 1 / 2},
    "delta_S2_hat": {"S2_hat": 1, "S2": -1},
    "delta_S3_hat": {"S3_hat": 1, "S3": -1},
    "delta_SO_hat": {"SO_hat": 1, "SO": -1},
    "delta_S3_tilde": {"S3_tilde": 1, "S3_hat": -1},
    "delta_SO_tilde": {"SO_tilde": 1, "SO_hat": -1},
}
"""The cells that follow from them, as weights: R2 is the mean of the turns, R1 that of R2 and SO. A delta is the score
that perfection adds, positive where the model's own errors had cost something."""

CONTRASTS = {
    "single_turn - multi_turn, turn 3": (CELLS["S3"], Cell("single_turn", 3)),
    "no_focus - focus, turn 3": (CELLS["S3"], Cell(OWN, 3, "no_focus")),
    "no_turn_verdicts - turn_verdicts, whole conversation": (CELLS["SO"], Cell(OWN, None, "no_turn_verdicts")),
}
"""The paper's other ablations: turn 3 asked alone, judged without focus points, the whole judged without the judgments
of its turns. Each is (with, without)."""

SCALE: dict[Protocol, Scale] = {"pairwise": (0.0, 100.0), "direct": (1.0, 10.0)}
"""Scores as the paper prints them: pairwise in per cent."""

HEADINGS = {
    **{"R1": "R1", "R2": "R2", "S1": "S1", "S2": "S2", "S3": "S3", "SO": "SO"},
    **{"S2_hat": "Ŝ2", "delta_S2_hat": "Ŝ2−S2", "S3_hat": "Ŝ3", "delta_S3_hat": "Ŝ3−S3"},
    **{"SO_hat": "ŜO", "delta_SO_hat": "ŜO−SO", "S3_tilde": "S̃3", "delta_S3_tilde": "S̃3−Ŝ3"},
    **{"SO_tilde": "S̃O", "delta_SO_tilde": "S̃O−ŜO"},
}
"""The columns of tables 1 and 8, in their order."""

TITLES: dict[Protocol, str] = {"pairwise": "win rate against the reference, %", "direct": "direct grading, 1 to 10"}
TURNS = {1: "perception", 2: "reasoning", 3: "creation", None: "whole conversation"}


def read_conversations(path: Path) -> list[Conversation]:
    """The conversations of a ConvBench sheet (.xlsx, or saved as .csv; .jsonl with the same keys), in its order.

    Images are paths as in the sheet's `image_id`; an optional column `lang` marks Chinese rows. The turns of the public
    sheet, which has none of ANNOTATED, have no reference: two models can be compared on them, and that is all. Raises
    UsageError naming what is missing for a sheet with some of the columns, and place and column for an empty cell or a
    duplicate id.
    """
    ids = tables.Ids()
    found: list[Conversation] = []
    for place, row in tables.rows(path, FORMATS):
        annotated = not row.keys().isdisjoint(ANNOTATED)
        if missing := [column for column in (*PUBLIC, *(ANNOTATED if annotated else ())) if column not in row]:
            raise UsageError(f"{path}: the sheet lacks {', '.join(missing)}; ask ConvBench's authors for the full one")
        image = tables.text(place, row, IMAGE)
        turns = [
            ConversationTurn(
                prompt=tables.text(place, row, INSTRUCTIONS[turn]),
                reference=tables.text(place, row, REFERENCES[turn]) if annotated else None,
                task=tables.text(place, row, TASKS[turn]) if annotated else None,
                images=[image] if turn == 0 else [],
                focus=tables.text(place, row, FOCUS) if annotated and turn == 2 else None,
            )
            for turn in range(3)
        ]
        found.append(
            Conversation(
                id=ids.add(place, tables.optional_text(row, "ID") or str(len(found) + 1)),
                benchmark="convbench",
                lang=tables.language(place, row),
                group=image,
                turns=turns,
                caption=tables.text(place, row, CAPTION) if annotated else None,
            )
        )
    return found


def scores(verdicts: Verdicts, conversations: Conversations, protocol: Protocol) -> dict[str, Score]:
    """The row of table 1 (pairwise: win rates in per cent) or 8 (direct grading, 1..10) by cell name, in the paper's
    order: the cells that have a verdict, and the derived ones for which there is all that they follow from."""
    judged, groups = _scores(verdicts, protocol), groups_of(conversations)
    parts = {name: {name: 1.0} for name in CELLS} | DERIVED
    found = {}
    for name in HEADINGS:
        if all(CELLS[cell] in judged for cell in parts[name]):
            terms = [Term(by, judged[CELLS[cell]], groups, SCALE[protocol]) for cell, by in parts[name].items()]
            found[name] = Score(parts=terms)
    return found


class Flip(Struct, frozen=True):
    """A conversation whose verdict on `turn` changes once `cause` is made perfect: the cause's own task, the turn's
    task, and the scores before and after (per cent or ratings)."""

    conversation: str
    cause: str
    turn: int
    cause_task: str
    task: str
    before: float
    after: float


class AblationEffect(Struct, frozen=True, kw_only=True):
    """What making `cause` perfect adds to a turn's score (`turn` None: the whole conversation's), with how many
    conversations `gained` and `lost` by it. `cause_task` and `task` are None where all pairs are taken together."""

    cause: str
    turn: int | None
    cause_task: str | None
    task: str | None
    difference: Difference
    gained: int
    lost: int

    @property
    def name(self) -> str:
        name = f"perfect {self.cause}: {TURNS[self.turn]} ({self.gained} up, {self.lost} down)"
        return f"{self.cause_task} → {self.task}: {name}" if self.cause_task else name


class Attribution(Struct, frozen=True, kw_only=True):
    """Where errors come from: each verdict that flips, the effects over all conversations, and the effects by task
    pair, the costliest first (by mean difference times conversations)."""

    flips: list[Flip]
    effects: list[AblationEffect]
    pairs: list[AblationEffect]


class _Step(Struct, frozen=True):
    """One step of the hierarchical ablation: the capability made perfect, its turn, and the cells before and after."""

    cause: str
    cause_turn: int
    before: Cell
    after: Cell


STEPS = (
    _Step("perception", 1, CELLS["S2"], CELLS["S2_hat"]),
    _Step("perception", 1, CELLS["S3"], CELLS["S3_hat"]),
    _Step("perception", 1, CELLS["SO"], CELLS["SO_hat"]),
    _Step("reasoning", 2, CELLS["S3_hat"], CELLS["S3_tilde"]),
    _Step("reasoning", 2, CELLS["SO_hat"], CELLS["SO_tilde"]),
)


def attribution(verdicts: Verdicts, conversations: Conversations, protocol: Protocol) -> Attribution:
    """Error attribution by the hierarchical ablation (§3.3, §5.2). Intervals are those of `aggregate.difference`, by
    bootstrap over the conversations' groups; steps whose condition was never run are left out."""
    judged = _scores(verdicts, protocol)
    found = Attribution(flips=[], effects=[], pairs=[])
    for step in STEPS:
        if step.before not in judged or step.after not in judged:
            continue
        found.effects.append(_effect(judged, step, groups_of(conversations), protocol))
        if step.after.turn is None:
            continue
        pairs = groups_by(conversations, partial(_two_tasks, step.cause_turn, step.after.turn))
        for one in conversations:
            before, after = judged[step.before].get(one.id), judged[step.after].get(one.id)
            if before is not None and after is not None and before != after:
                tasks = _two_tasks(step.cause_turn, step.after.turn, one)
                found.flips.append(Flip(one.id, step.cause, step.after.turn, *tasks, before, after))
        found.pairs.extend(_effect(judged, step, members, protocol, *pair) for pair, members in pairs.items())
    found.pairs.sort(key=lambda one: (one.difference.mean or 0.0) * one.difference.n, reverse=True)
    return found


def _effect(
    judged: Mapping[Cell, Mapping[str, float | None]],
    step: _Step,
    groups: Mapping[str, str],
    protocol: Protocol,
    cause_task: str | None = None,
    task: str | None = None,
) -> AblationEffect:
    before, after = judged[step.before], judged[step.after]
    changes = [a - b for key in groups if (a := after.get(key)) is not None and (b := before.get(key)) is not None]
    return AblationEffect(
        cause=step.cause,
        turn=step.after.turn,
        cause_task=cause_task,
        task=task,
        difference=counted.difference(before, after, groups, SCALE[protocol]),
        gained=sum(change > 0 for change in changes),
        lost=sum(change < 0 for change in changes),
    )


def contrasts(verdicts: Verdicts, conversations: Conversations, protocol: Protocol) -> dict[str, Difference]:
    """The ablations of CONTRASTS for which there are verdicts, as paired differences by name."""
    judged, groups = _scores(verdicts, protocol), groups_of(conversations)
    return {
        name: counted.difference(judged[base], judged[other], groups, SCALE[protocol])
        for name, (base, other) in CONTRASTS.items()
        if base in judged and other in judged
    }


def agreement(
    one: Verdicts, other: Verdicts, conversations: Conversations, protocol: Protocol
) -> dict[str, LeaderboardCell]:
    """How often two judges, or a judge and a person, give equal verdicts, in per cent: by cell name (tables 4 to 7) and
    over `all` cells (table 3), for the cells that both judged. Verdicts are equal when their scores are."""
    first, second = by_cell(one, protocol), by_cell(other, protocol)
    groups = groups_of(conversations)
    found = {}
    every, asked = dict[tuple[str, str], float | None](), dict[tuple[str, str], str]()
    for name, cell in CELLS.items():
        if cell in first and cell in second:
            shared = first[cell].keys() & second[cell].keys()
            equal = {key: _equal(first[cell][key], second[cell][key]) for key in shared}
            found[name] = score_of(equal, groups, (0, 100))
            every |= {(name, key): value for key, value in equal.items()}
            asked |= {(name, key): group for key, group in groups.items()}
    found["all"] = score_of(every, asked, (0, 100))
    return standings([LeaderboardRow(key="", caption="", system="", name="both", scores=found)])["both"]


def _equal(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else 100.0 * (one == other)


def _scores(verdicts: Iterable[Judgment], protocol: Protocol) -> dict[Cell, Mapping[str, float | None]]:
    unit = 100.0 if protocol == "pairwise" else 1.0
    scored = by_cell(verdicts, protocol)
    return {cell: {key: _times(unit, score) for key, score in found.items()} for cell, found in scored.items()}


def _times(unit: float, score: float | None) -> float | None:
    return None if score is None else unit * score


def _task(turn: int, conversation: Conversation) -> str:
    return conversation.turns[turn - 1].task or "none"


def _two_tasks(cause: int, turn: int, conversation: Conversation) -> tuple[str, str]:
    return _task(cause, conversation), _task(turn, conversation)


def report(runs: Sequence[Run], conversations: Conversations) -> Report:
    sections, summary = [], dict[str, Any]()
    for run in runs:
        for protocol in run.protocols():
            if protocol in TITLES:
                found = attribution(run.verdicts, conversations, protocol)
                contrasted = contrasts(run.verdicts, conversations, protocol)
                sections.append(_errors(run, protocol, found, contrasted))
                facts = {"attribution": found, "contrasts": contrasted}
                summary.setdefault(run.name, {})[protocol] = facts
    for system in dict.fromkeys(run.system for run in runs):
        for protocol, pairs in _agreed(system, runs, conversations).items():
            heading = f"{system}: judges and people, {protocol} (tables 3 to 7)"
            sections.append(Section(heading=heading, tables=_matrices(pairs), note=AGREEMENT))
            named = {" and ".join(pair): cells for pair, cells in pairs.items()}
            summary.setdefault("agreement", {}).setdefault(system, {})[protocol] = named
    return Report(sections=[one for one in sections if one.readings or one.tables], summary=summary)


Pairs = Mapping[tuple[str, str], Mapping[str, LeaderboardCell]]
"""How often two judges agree, by cell."""

AGREEMENT = (
    "On the same replies: a file that judges others is not compared. In small print the 95 % interval, over whole "
    "groups, and on how many verdicts. Grades agree only when they are equal."
)


def _agreed(system: str, runs: Sequence[Run], conversations: Conversations) -> dict[Protocol, Pairs]:
    """By protocol, every two judges of a model's replies, people among them. Files of one judge have their own names;
    those that are known to judge other replies are left out."""
    here = [run for run in runs if run.system == system and run.verdicts]
    files = Counter(run.judge for run in here)
    named = {run.judge if files[run.judge] == 1 else run.name: run for run in here}
    replies = {name: answers_of(run) for name, run in named.items()}
    found: dict[Protocol, dict[tuple[str, str], dict[str, LeaderboardCell]]] = {}
    for (one, mine), (other, theirs) in combinations(named.items(), 2):
        if alike(replies[one], replies[other]) is False:
            continue
        for protocol in TITLES:
            if protocol in mine.protocols() and protocol in theirs.protocols():
                equal = agreement(mine.verdicts, theirs.verdicts, conversations, protocol)
                found.setdefault(protocol, {})[one, other] = equal
    return {**found}


def _matrices(pairs: Pairs) -> list[Table]:
    """A table for each cell, of every two judges."""
    judges = list(dict.fromkeys(judge for pair in pairs for judge in pair))
    made = []
    for cell in ("all", *CELLS):
        equal = {frozenset(pair): cells[cell] for pair, cells in pairs.items() if cell in cells}
        if equal:
            rows = [
                blocks.row(one, *(_agreement_cell(equal.get(frozenset((one, other)))) for other in judges))
                for one in judges
            ]
            caption = f"Equal verdicts in %, {HEADINGS.get(cell, cell)}"
            made.append(Table(caption=caption, head=["", *judges], rows=rows))
    return made


def _agreement_cell(found: LeaderboardCell | None) -> TableCell:
    if found is None or found.value is None:
        return TableCell("–")
    bounds = interval(found.interval, 1)
    return TableCell(number(found.value, 1), f"{bounds}; {found.n}" if bounds else str(found.n))


_FLIPS = Columns[Flip](
    ("conversation", lambda flip: flip.conversation),
    ("made perfect", lambda flip: f"perfect {flip.cause}"),
    ("verdict on", lambda flip: f"turn {flip.turn}"),
    ("its task", lambda flip: flip.cause_task),
    ("the turn's task", lambda flip: flip.task),
    ("before", lambda flip: number(flip.before, 1)),
    ("after", lambda flip: number(flip.after, 1)),
)


def _entries(run: Run, conversations: Conversations) -> list[LeaderboardRow]:
    """The rows of tables 1 and 8, and of figure 6: by task of each turn."""
    made, groups = [], groups_of(conversations)
    for protocol, scale in SCALE.items():
        by_heading = {HEADINGS[name]: one for name, one in scores(run.verdicts, conversations, protocol).items()}
        if by_heading:
            caption = f"{TITLES[protocol].capitalize()} (table {8 if protocol == 'direct' else 1} of the paper)"
            made.append(
                LeaderboardRow(key=protocol, caption=caption, system=run.system, name=run.name, scores=by_heading)
            )
        for turn in (1, 2, 3):
            verdicts = _scores(run.verdicts, protocol).get(Cell(OWN, turn), {})
            tasks = groups_by(conversations, partial(_task, turn))
            scored = {task: score_of(verdicts, asked, scale) for task, asked in sorted(tasks.items())}
            if verdicts:
                made.append(
                    LeaderboardRow(
                        key=f"{protocol}-S{turn}-tasks",
                        caption=f"S{turn} by task, {TITLES[protocol]} (figure 6 of the paper)",
                        system=run.system,
                        name=run.name,
                        scores={"all": score_of(verdicts, groups, scale), **scored},
                        drawn={"bars": list(scored)},
                        scale=scale,
                        folded=True,
                    )
                )
    return made


def _errors(run: Run, protocol: Protocol, found: Attribution, contrasted: Mapping[str, Difference]) -> Section:
    """Where a run's errors come from; without a reading or a table where nothing says it."""
    readings = order_reading(run) if protocol == "pairwise" else []
    tables_ = [differences("The paper's other ablations", contrasted)] if contrasted else []
    if found.effects:
        better = sum(flip.after > flip.before for flip in found.flips)
        readings.append(
            f"{len(found.flips)} verdicts on turns change when an earlier step is made perfect: {better} for the "
            f"better, {len(found.flips) - better} for the worse."
        )
        effects, pairs = ({one.name: one.difference for one in some} for some in (found.effects, found.pairs))
        tables_ += [
            differences("What making a step perfect adds", effects),
            differences("By pair of tasks, the costliest first", pairs, folded=True),
            _FLIPS.table("Every verdict that changes", found.flips, folded=True),
        ]
    return Section(
        heading=f"{run.name}: where errors come from ({protocol})",
        readings=readings,
        tables=tables_,
        note="S1 to S3 are the turns, SO the conversation as a whole; a hat is after perfect perception, a tilde "
        "after perfect perception and reasoning. 95 % intervals from a paired bootstrap over groups (images); p from "
        "random signs of whole groups.",
    )


PUBLISHED = JudgeConfig(judge="", score_kind="argmax", order="forced", reason_first=True, sight="all")
"""§4, appendix: in a random order without ties, step by step, in sight of all turns."""

BENCHMARK = Benchmark(
    title="ConvBench",
    read=read_conversations,
    protocols=("pairwise", "direct"),
    report=report,
    published=PUBLISHED,
    scored=lambda one: one.opponent is None and Cell(one.condition, one.turn, one.judging) in CELLS.values(),
    entries=_entries,
)
