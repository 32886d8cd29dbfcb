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
from critic.benchmarks import Benchmark, Conversations, Report, Run, Verdicts, alike, answers_of, order_reading
from critic.errors import UsageError
from critic.page.blocks import Columns, Part, Section, differences, number
from critic.records import Conversation, ConversationTurn, JudgeConfig, Judgment, Protocol
from critic.stats.aggregate import Cell, Difference, Scale, by_cell, difference, groups_by, groups_of
from critic.stats.leaderboard import LeaderboardRow, Score, Term, score_of

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

STEPS = (("perception", "S2", "S2_hat"), ("perception", "S3", "S3_hat"), ("reasoning", "S3_hat", "S3_tilde"))
"""The steps of the hierarchical ablation: the capability made perfect, and a turn's cells before and after."""

CAUSES = {"perception": 1, "reasoning": 2}
"""The turn that is about a capability."""

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


def read_conversations(path: Path) -> list[Conversation]:
    """The conversations of a ConvBench sheet (.xlsx, or saved as .csv; .jsonl with the same keys), in its order.

    Images are paths as in the sheet's `image_id`; an optional column `lang` marks Chinese rows. The turns of the public
    sheet, which has none of ANNOTATED, have no reference: two models can be compared on them, and that is all. Raises
    UsageError naming what is missing for a sheet with some of the columns, and place and column for an empty cell or a
    duplicate id.
    """
    ids = tables.Ids()
    conversations: list[Conversation] = []
    for location, row in tables.rows(path, FORMATS):
        annotated = not row.keys().isdisjoint(ANNOTATED)
        if missing := [column for column in (*PUBLIC, *(ANNOTATED if annotated else ())) if column not in row]:
            raise UsageError(f"{path}: the sheet lacks {', '.join(missing)}; ask ConvBench's authors for the full one")
        image = tables.text(location, row, IMAGE)
        turns = [
            ConversationTurn(
                prompt=tables.text(location, row, INSTRUCTIONS[turn]),
                reference=tables.text(location, row, REFERENCES[turn]) if annotated else None,
                task=tables.text(location, row, TASKS[turn]) if annotated else None,
                images=[image] if turn == 0 else [],
                focus=tables.text(location, row, FOCUS) if annotated and turn == 2 else None,
            )
            for turn in range(3)
        ]
        conversations.append(
            Conversation(
                id=ids.add(location, tables.optional_text(row, "ID") or str(len(conversations) + 1)),
                benchmark="convbench",
                lang=tables.language(location, row),
                group=image,
                turns=turns,
                caption=tables.text(location, row, CAPTION) if annotated else None,
            )
        )
    return conversations


def scores(verdicts: Verdicts, conversations: Conversations, protocol: Protocol) -> dict[str, Score]:
    """The row of table 1 (pairwise: win rates in per cent) or 8 (direct grading, 1..10) by cell name, in the paper's
    order: the cells that have a verdict, and the derived ones for which there is all that they follow from."""
    judged, groups = _scores(verdicts, protocol), groups_of(conversations)
    parts = {name: {name: 1.0} for name in CELLS} | DERIVED
    by_name = {}
    for name in HEADINGS:
        if all(CELLS[cell] in judged for cell in parts[name]):
            terms = [Term(by, judged[CELLS[cell]], groups, SCALE[protocol]) for cell, by in parts[name].items()]
            by_name[name] = Score(parts=terms)
    return by_name


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


class Attribution(Struct, frozen=True, kw_only=True):
    """Where errors come from: each verdict that flips, and what a perfect step adds by pair of tasks, the costliest
    first (by mean difference times conversations)."""

    flips: list[Flip]
    pairs: dict[str, Difference]


def attribution(verdicts: Verdicts, conversations: Conversations, protocol: Protocol) -> Attribution:
    """Error attribution by the hierarchical ablation (§3.3, §5.2); steps whose condition was never run are left out."""
    judged = _scores(verdicts, protocol)
    flips, pairs = list[Flip](), dict[str, Difference]()
    for cause, base, perfect in STEPS:
        turn = CELLS[base].turn or 0
        if CELLS[base] not in judged or CELLS[perfect] not in judged:
            continue
        before, after = judged[CELLS[base]], judged[CELLS[perfect]]
        two_tasks = partial(_two_tasks, CAUSES[cause], turn)
        for conversation in conversations:
            change = before.get(conversation.id), after.get(conversation.id)
            if None not in change and change[0] != change[1]:
                flips.append(Flip(conversation.id, cause, turn, *two_tasks(conversation), *change))  # type: ignore[arg-type]
        for tasks, groups in groups_by(conversations, two_tasks).items():
            name = f"{tasks[0]} → {tasks[1]}: perfect {cause}, turn {turn}"
            pairs[name] = difference(before, after, groups, SCALE[protocol])
    costliest = sorted(pairs, key=lambda name: (pairs[name].mean or 0.0) * pairs[name].n, reverse=True)
    return Attribution(flips=flips, pairs={name: pairs[name] for name in costliest})


def agreement(
    pairs: Sequence[tuple[Verdicts, Verdicts]], conversations: Conversations, protocol: Protocol
) -> dict[str, Score]:
    """How often two judges, or a judge and a person, give equal verdicts, in per cent: over `all` cells (table 3), and
    by cell (tables 4 to 7), for the cells that both judged. Verdicts are equal when their scores are. Of several models
    each has a pair of both judges' verdicts; one conversation's are resampled together."""
    groups = groups_of(conversations)
    judged = [(by_cell(one, protocol), by_cell(other, protocol)) for one, other in pairs]
    found, every = dict[str, Score](), (dict[Any, float | None](), dict[Any, str]())
    for name, cell in CELLS.items():
        both = [(first[cell], second[cell]) for first, second in judged if cell in first and cell in second]
        equal, asked = dict[Any, float | None](), dict[Any, str]()
        for model, (mine, theirs) in enumerate(both):
            shared = mine.keys() & theirs.keys()
            equal |= {(name, model, key): _equal(mine[key], theirs[key]) for key in shared}
            asked |= {(name, model, key): group for key, group in groups.items()}
        if both:
            found[HEADINGS[name]] = score_of(equal, asked, (0, 100))
            every = every[0] | equal, every[1] | asked
    return {"all": score_of(*every, (0, 100)), **found}


def _equal(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else 100.0 * (first == second)


def _scores(verdicts: Iterable[Judgment], protocol: Protocol) -> dict[Cell, Mapping[str, float | None]]:
    unit = 100.0 if protocol == "pairwise" else 1.0
    scored = by_cell(verdicts, protocol)
    return {cell: {key: _times(unit, score) for key, score in by_id.items()} for cell, by_id in scored.items()}


def _times(unit: float, score: float | None) -> float | None:
    return None if score is None else unit * score


def _task(turn: int, conversation: Conversation) -> str:
    return conversation.turns[turn - 1].task or "none"


def _two_tasks(cause: int, turn: int, conversation: Conversation) -> tuple[str, str]:
    return _task(cause, conversation), _task(turn, conversation)


def report(runs: Sequence[Run], conversations: Conversations) -> Report:
    """Where each run's errors come from, and how far the judges of one model agree."""
    parts, summary = [], dict[str, Any]()
    for run in runs:
        for protocol in run.protocols():
            if protocol in TITLES:
                attributed = attribution(run.verdicts, conversations, protocol)
                parts.append(_errors(run, protocol, attributed))
                summary.setdefault(run.name, {})[protocol] = {"attribution": attributed}
    shown = [part for part in parts if part.readings or part.tables]
    sections = [Section(heading="Where errors come from", parts=shown, note=NOTE)] if shown else []
    return Report(rows=_agreed(runs, conversations), sections=sections, summary=summary)


NOTE = (
    "S1 to S3 are the turns, SO the conversation as a whole; a hat is after perfect perception, a tilde after perfect "
    "perception and reasoning. 95 % intervals from a paired bootstrap over groups (images)."
)


def _agreed(runs: Sequence[Run], conversations: Conversations) -> list[LeaderboardRow]:
    """How often every two judges of a model's replies agree, people among them; of several models also over all."""
    rows, of_judges = [], _judges_of_one_model(runs)
    for protocol in TITLES:
        caption = f"Equal verdicts of two judges, or a judge and people, in % ({protocol}; tables 3 to 7)"
        for judges, pairs in of_judges.items():
            both = [pair for pair in pairs if all(protocol in run.protocols() for run in pair)]
            pooled = [(f"all {len(both)} models", both)] if len(both) > 1 else []
            for name, of_models in [*pooled, *((pair[0].system, [pair]) for pair in both)]:
                verdicts = [(mine.verdicts, theirs.verdicts) for mine, theirs in of_models]
                row = LeaderboardRow(
                    key=f"agreement-{protocol}",
                    caption=caption,
                    scores=agreement(verdicts, conversations, protocol),
                    system=of_models[0][0].system,  # twice beside a pooled row, which takes the place of the mean
                    name=f"{name}: {' and '.join(judges)}",
                )
                rows.append(row)
    return rows


def _judges_of_one_model(runs: Sequence[Run]) -> dict[tuple[str, str], list[tuple[Run, Run]]]:
    """The runs of every two judges of the same replies, by the judges. Files of one judge have their own names; those
    that are known to judge other replies are left out."""
    judged = [run for run in runs if run.verdicts]
    files = Counter((run.system, run.judge) for run in judged)
    pairs: dict[tuple[str, str], list[tuple[Run, Run]]] = {}
    for mine, theirs in combinations(judged, 2):
        if mine.system == theirs.system and alike(answers_of(mine), answers_of(theirs)) is not False:
            one, other = (run.judge if files[run.system, run.judge] == 1 else run.name for run in (mine, theirs))
            # Files come in any order, and equal is equal from both sides.
            judges = (other, one) if (other, one) in pairs else (one, other)
            pairs.setdefault(judges, []).append((mine, theirs))
    return pairs


FLIPS = Columns[Flip](
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
    rows, groups = [], groups_of(conversations)
    for protocol, scale in SCALE.items():
        by_heading = {HEADINGS[name]: score for name, score in scores(run.verdicts, conversations, protocol).items()}
        if by_heading:
            caption = f"{TITLES[protocol].capitalize()} (table {8 if protocol == 'direct' else 1} of the paper)"
            rows.append(LeaderboardRow(key=protocol, caption=caption, scores=by_heading))
        for turn in (1, 2, 3):
            verdicts = _scores(run.verdicts, protocol).get(Cell(OWN, turn), {})
            tasks = groups_by(conversations, partial(_task, turn))
            by_task = {task: score_of(verdicts, asked, scale) for task, asked in sorted(tasks.items())}
            if verdicts:
                key = f"{protocol}-S{turn}-tasks"
                caption = f"S{turn} by task, {TITLES[protocol]} (figure 6 of the paper)"
                by_task = {"all": score_of(verdicts, groups, scale), **by_task}
                rows.append(LeaderboardRow(key=key, caption=caption, scores=by_task, folded=True))
    return rows


def _errors(run: Run, protocol: Protocol, attributed: Attribution) -> Part:
    """Where a run's errors come from; without a reading or a table where nothing says it."""
    readings = order_reading(run) if protocol == "pairwise" else []
    tables_ = []
    if attributed.pairs:
        better = sum(flip.after > flip.before for flip in attributed.flips)
        readings.append(
            f"{len(attributed.flips)} verdicts on turns change when an earlier step is made perfect: {better} for the "
            f"better, {len(attributed.flips) - better} for the worse."
        )
        tables_ = [
            differences(
                "What a perfect step adds by pair of tasks, the costliest first", attributed.pairs, folded=True
            ),
            FLIPS.table("Every verdict that changes", attributed.flips, folded=True),
        ]
    return Part(heading=f"{run.name}, {protocol}", readings=readings, tables=tables_)


PUBLISHED = JudgeConfig(judge="", score_kind="argmax", order="forced", reason_first=True, sight="all")
"""§4, appendix: in a random order without ties, step by step, in sight of all turns."""

BENCHMARK = Benchmark(
    title="ConvBench",
    read=read_conversations,
    protocols=("pairwise", "direct"),
    conditions=(OWN, PERCEPTION, REASONING),
    report=report,
    published=PUBLISHED,
    scored=lambda one: one.opponent is None and Cell(one.condition, one.turn, one.judging) in CELLS.values(),
    entries=_entries,
)
