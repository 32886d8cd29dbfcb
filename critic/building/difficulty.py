"""How hard a benchmark is, by how models fare on it: which conversations all of them solve or none, how far they lie
apart, and how much a rewrite of a question changes (AlignMMBench §5.3.2)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev

from critic import jsonl
from critic.errors import UsageError
from critic.page.blocks import Section, Table, number, row, share
from critic.records import ConversationJudgment

SOLVED, LOST = 0.9, 0.1
"""Scores from which on, and up to which, a conversation tells models apart no longer."""

Scores = dict[str, float]
"""Conversation -> the mean of its turns' scores, 0 to 1."""


def scores(path: Path) -> tuple[str, Scores, dict[str, str]]:
    """Of a file of judged conversations the model, its scores, and the groups of the conversations. Ratings are moved
    from 1..10 onto 0..1, a turn without a verdict counts as 0. Raises UsageError for a file of several models, and for
    one of whole conversations alone."""
    turns, groups, systems = defaultdict[str, list[float]](list), dict[str, str](), set[str]()
    for _, line in jsonl.read(path, ConversationJudgment):
        said = line.verdict
        systems.add(said.system)
        if said.turn is not None:
            rated = said.protocol in ("pointwise", "direct", "quality")
            score = 0.0 if said.score is None else (said.score - 1) / 9 if rated else said.score
            turns[said.conversation].append(score)
            groups[said.conversation] = line.conversation.group
    if len(systems) != 1:
        raise UsageError(f"{path}: expected judgments of one model, found {len(systems)}")
    if not turns:
        raise UsageError(f"{path}: no turn is judged; how hard it is, is told by the verdicts on turns")
    return systems.pop(), {key: fmean(some) for key, some in turns.items()}, groups


def section(judged: Sequence[Path]) -> Section:
    """How each model fares, and what their scores say of the benchmark."""
    by_model, groups = dict[str, Scores](), dict[str, str]()
    for path in judged:
        name, found, of = scores(path)
        by_model[name if name not in by_model else str(path)] = found
        groups |= of
    rows = [
        row(name, len(found), number(fmean(found.values())), _part(found, SOLVED), _spread(found, groups))
        for name, found in by_model.items()
    ]
    head = ["model", "conversations", "mean score, 0 to 1", f"solved ({SOLVED:g} or more)", "σ over rewrites"]
    table = Table(caption="Difficulty, by model", head=head, rows=rows)
    return Section(heading="Difficulty", readings=_readings(list(by_model.values())), tables=[table])


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
