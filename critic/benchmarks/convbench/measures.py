"""ConvBench's scores (§4, tables 1 and 8), where its errors come from (§3.3, §5.2), and how far two judges agree."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from critic.counting.aggregate import (
    SCALES,
    Aggregate,
    Cell,
    Difference,
    EqualVerdicts,
    Scale,
    by_cell,
    combine,
    difference,
    equal_verdicts,
    mean,
    means,
)
from critic.records import Conversation, Protocol, TurnVerdict

T = TypeVar("T")

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
"""The cells that follow from them, as weights: R2 the mean of the turns, R1 that of R2 and the whole. A delta is the
score that perfection adds, positive where the model's own errors had cost something."""

CONTRASTS = {
    "single_turn - multi_turn, turn 3": (CELLS["S3"], Cell("single_turn", 3)),
    "no_focus - focus, turn 3": (CELLS["S3"], Cell(OWN, 3, "no_focus")),
    "no_turn_verdicts - turn_verdicts, whole conversation": (CELLS["SO"], Cell(OWN, None, "no_turn_verdicts")),
}
"""The paper's other ablations: turn 3 asked alone, judged without focus points, the whole judged without the judgments
of its turns. Each is (with, without)."""


def scores(
    verdicts: Sequence[TurnVerdict],
    conversations: Sequence[Conversation],
    protocol: Protocol,
    conditions: Collection[str] | None = None,
) -> dict[str, Aggregate]:
    """The row of table 1 (pairwise: win rates in per cent) or 8 (direct grading, 1..10) by cell name.

    Cells of the `conditions` that were run are given, a missing verdict widening their range; without `conditions`,
    those that have a verdict count as run. Derived cells need all that they follow from.
    """
    judged = _scores(verdicts, protocol)
    run = {cell.condition for cell in judged} if conditions is None else conditions
    asked = [conversation.id for conversation in conversations]
    cells = {
        name: mean(judged.get(cell, {}), asked, _scale(protocol))
        for name, cell in CELLS.items()
        if cell.condition in run
    }
    return {**cells, **derived(cells)}


def derived(cells: Mapping[str, Aggregate]) -> dict[str, Aggregate]:
    """R1, R2 and the deltas of table 1 from its judged cells, as far as these are given."""
    return {
        name: combine([(weight, cells[cell]) for cell, weight in weights.items()])
        for name, weights in DERIVED.items()
        if all(cell in cells for cell in weights)
    }


def by_task(
    verdicts: Sequence[TurnVerdict], conversations: Sequence[Conversation], protocol: Protocol, cell: Cell
) -> dict[str, Aggregate]:
    """A cell's score per task name of its turn, sorted by name. Raises ValueError for the whole conversation, which
    has no task of its own."""
    if cell.turn is None:
        raise ValueError("a whole conversation has no task; expected a turn")
    judged = _scores(verdicts, protocol).get(cell, {})
    return means(judged, ((_task(one, cell.turn), one.id) for one in conversations), _scale(protocol))


class Flip(Struct, frozen=True, kw_only=True):
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


def attribution(
    verdicts: Sequence[TurnVerdict], conversations: Sequence[Conversation], protocol: Protocol
) -> Attribution:
    """Error attribution by the hierarchical ablation (§3.3, §5.2). Intervals are those of `aggregate.difference`, by
    bootstrap over the conversations' groups; steps whose condition was never run are left out."""
    judged = _scores(verdicts, protocol)
    steps = [step for step in STEPS if step.before in judged and step.after in judged]
    found = Attribution(flips=[], effects=[], pairs=[])
    for step in steps:
        found.effects.append(_effect(judged, step, conversations, protocol))
        if step.after.turn is None:
            continue
        found.flips.extend(_flips(judged, step, conversations))
        for members in _task_pairs(step, conversations).values():
            found.pairs.append(_effect(judged, step, members, protocol, by_pair=True))
    found.pairs.sort(key=_cost, reverse=True)
    return found


def _cost(effect: AblationEffect) -> float:
    return (effect.difference.mean or 0.0) * effect.difference.n


def _task_pairs(step: _Step, conversations: Iterable[Conversation]) -> dict[tuple[str, str], list[Conversation]]:
    pairs: dict[tuple[str, str], list[Conversation]] = {}
    for conversation in conversations:
        key = _task(conversation, step.cause_turn), _task(conversation, step.after.turn or 0)
        pairs.setdefault(key, []).append(conversation)
    return pairs


def _effect(
    judged: Mapping[Cell, Mapping[str, float | None]],
    step: _Step,
    conversations: Sequence[Conversation],
    protocol: Protocol,
    by_pair: bool = False,
) -> AblationEffect:
    before, after = judged[step.before], judged[step.after]
    groups = {conversation.id: conversation.group for conversation in conversations}
    changes = [a - b for key in groups if (a := after.get(key)) is not None and (b := before.get(key)) is not None]
    return AblationEffect(
        cause=step.cause,
        turn=step.after.turn,
        cause_task=_task(conversations[0], step.cause_turn) if by_pair else None,
        task=_task(conversations[0], step.after.turn or 0) if by_pair else None,
        difference=difference(before, after, groups, _scale(protocol)),
        gained=sum(change > 0 for change in changes),
        lost=sum(change < 0 for change in changes),
    )


def _flips(
    judged: Mapping[Cell, Mapping[str, float | None]], step: _Step, conversations: Iterable[Conversation]
) -> list[Flip]:
    found = []
    for conversation in conversations:
        before = judged[step.before].get(conversation.id)
        after = judged[step.after].get(conversation.id)
        if before is None or after is None or before == after or step.after.turn is None:
            continue
        found.append(
            Flip(
                conversation=conversation.id,
                cause=step.cause,
                turn=step.after.turn,
                cause_task=_task(conversation, step.cause_turn),
                task=_task(conversation, step.after.turn),
                before=before,
                after=after,
            )
        )
    return found


def contrasts(
    verdicts: Sequence[TurnVerdict], conversations: Sequence[Conversation], protocol: Protocol
) -> dict[str, Difference]:
    """The ablations of CONTRASTS for which there are verdicts, as paired differences by name."""
    judged = _scores(verdicts, protocol)
    groups = {conversation.id: conversation.group for conversation in conversations}
    return {
        name: difference(judged[base], judged[other], groups, _scale(protocol))
        for name, (base, other) in CONTRASTS.items()
        if base in judged and other in judged
    }


def agreement(
    one: Sequence[TurnVerdict], other: Sequence[TurnVerdict], conversations: Sequence[Conversation], protocol: Protocol
) -> dict[str, EqualVerdicts]:
    """How often two judges, or a judge and a person, give equal verdicts: by cell name (tables 4 to 7) and over `all`
    cells (table 3), for the cells that both judged. Intervals are over the conversations' groups."""
    first, second = by_cell(one, protocol), by_cell(other, protocol)
    groups = {conversation.id: conversation.group for conversation in conversations}
    shared = {name: (first[cell], second[cell]) for name, cell in CELLS.items() if cell in first and cell in second}
    found = {name: equal_verdicts(mine, theirs, groups) for name, (mine, theirs) in shared.items()}

    def pooled(cells: Mapping[str, Mapping[str, T]]) -> dict[str, T]:
        return {f"{name} {key}": value for name, cell in cells.items() for key, value in cell.items()}

    mine, theirs = (pooled({name: pair[side] for name, pair in shared.items()}) for side in (0, 1))
    return {**found, "all": equal_verdicts(mine, theirs, pooled(dict.fromkeys(shared, groups)))}


def _scores(verdicts: Iterable[TurnVerdict], protocol: Protocol) -> dict[Cell, dict[str, float | None]]:
    """Scores as the paper prints them: pairwise in per cent."""
    unit = _unit(protocol)
    return {
        cell: {key: None if score is None else unit * score for key, score in found.items()}
        for cell, found in by_cell(verdicts, protocol).items()
    }


def _unit(protocol: Protocol) -> float:
    return 100.0 if protocol == "pairwise" else 1.0


def _scale(protocol: Protocol) -> Scale:
    low, high = SCALES[protocol]
    return _unit(protocol) * low, _unit(protocol) * high


def _task(conversation: Conversation, turn: int) -> str:
    return conversation.turns[turn - 1].task or "none"
