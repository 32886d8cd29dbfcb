"""How hard a benchmark is, by how models fare on it: which conversations all of them solve or none, how far they lie
apart, and how much a rewrite of a question changes (AlignMMBench §5.3.2)."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, pstdev

from msgspec import Struct

from critic import benchmarks
from critic.benchmarks import Benchmark, Run
from critic.counting.aggregate import SCALES, by_cell
from critic.errors import UsageError
from critic.page.blocks import Section, Table, listed, number, row, share
from critic.records import Judgment, Protocol

SOLVED, LOST = 0.9, 0.1
"""Scores from which on, and up to which, a conversation tells models apart no longer."""

Scores = dict[str, float]
"""Conversation -> the mean of its turns' scores, 0 to 1."""


class Fared(Struct, frozen=True, kw_only=True):
    """How a model fares: the scores of the conversations that have any, and how many of their turns have none."""

    scores: Scores
    missing: int


def of_turns(
    verdicts: Iterable[Judgment], protocol: Protocol, condition: str = "own"
) -> dict[tuple[str, int], float | None]:
    """The scores of turns by conversation and number, moved onto 0..1; None where the judgment failed. Raises
    UsageError as `aggregate.by_cell` does."""
    low, high = SCALES[protocol]
    return {
        (key, cell.turn): None if score is None else (score - low) / (high - low)
        for cell, found in by_cell(verdicts, protocol).items()
        if cell.turn is not None and (cell.condition, cell.judging) == (condition, "standard")
        for key, score in found.items()
    }


def by_conversation(turns: Mapping[tuple[str, int], float | None]) -> Fared:
    """Turns without a score are left out, and counted."""
    scores = defaultdict[str, list[float]](list)
    for (key, _), score in turns.items():
        if score is not None:
            scores[key].append(score)
    missing = sum(score is None for score in turns.values())
    return Fared(scores={key: fmean(some) for key, some in scores.items()}, missing=missing)


def section(runs: Sequence[Run], benchmark: str) -> Section:
    """How each model fares with its own replies as history, scored as the benchmark scores a turn, and what that says
    of the benchmark. Raises UsageError for a run without such a score, and where no protocol is common to all."""
    known = benchmarks.load(benchmark)
    by_model, how = _fared(runs, known)
    groups = {one.sample.id: one.conversation.group for run in runs for one in run.turns}
    head = ["model", "conversations", "mean score, 0 to 1", "turns without a score", f"solved ({SOLVED:g} or more)"]
    rows = [
        row(
            name,
            len(one.scores),
            number(fmean(one.scores.values())),
            one.missing,
            _part(one.scores, SOLVED),
            *([_spread(one.scores, groups)] if known.rewrites else []),
        )
        for name, one in by_model.items()
    ]
    head += ["σ over rewrites"] if known.rewrites else []
    table = Table(caption=f"Difficulty, by model: {how} of turns", head=head, rows=rows)
    scores = [one.scores for one in by_model.values()]
    return Section(heading="Difficulty", readings=_readings(scores), tables=[table])


def _fared(runs: Sequence[Run], known: Benchmark) -> tuple[dict[str, Fared], str]:
    """How each run's model fares, and by which protocols: all of the benchmark's where it makes one score of them, or
    else the first by which each run has a score."""
    if known.of_turns is not None:
        ways = {listed(known.protocols): {run.name: by_conversation(known.of_turns(run.verdicts)) for run in runs}}
    else:
        ways = {
            one: {run.name: by_conversation(of_turns(run.verdicts, one)) for run in runs} for one in known.protocols
        }
    for how, found in ways.items():
        if all(one.scores for one in found.values()):
            return found, how
    without = next((run for run in runs if not any(found[run.name].scores for found in ways.values())), None)
    if without is not None:
        raise UsageError(f"{without.path}: no turn has a score by {' or '.join(ways)}, its model's own replies before")
    raise UsageError(f"{runs[0].path}: not judged by one protocol that the other files have as well: {', '.join(ways)}")


def _part(found: Scores, least: float) -> str:
    return share(sum(score >= least for score in found.values()) / len(found))


def _spread(found: Scores, groups: Mapping[str, str]) -> str:
    """The mean deviation within groups of several conversations."""
    by_group = defaultdict[str, list[float]](list)
    for key, score in found.items():
        by_group[groups[key]].append(score)
    return number(
        fmean(several) if (several := [pstdev(some) for some in by_group.values() if len(some) > 1]) else None
    )


def _readings(models: Sequence[Scores]) -> list[str]:
    common = set.intersection(*(set(found) for found in models))
    if len(models) < 2 or not common:
        return ["One model alone does not say how hard it is for others."]
    every = [[found[key] for found in models] for key in common]
    solved = sum(min(some) >= SOLVED for some in every)
    lost = sum(max(some) <= LOST for some in every)
    apart = number(fmean(map(pstdev, every)))
    return [
        f"Of {len(common)} conversations, {solved} are solved by all {len(models)} models and {lost} by none.",
        f"Within a conversation the models lie {apart} apart (mean standard deviation).",
    ]
