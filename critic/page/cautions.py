"""Say what a reader must know before models are compared: who judged whom, and which replies are the same."""

import shlex
from collections.abc import Iterator, Sequence
from itertools import combinations, product

from critic.benchmarks import Run, Runs, count_equal_replies
from critic.judging import protocols
from critic.stats.estimate import FEWEST_TO_DECIDE

SAME_REPLIES = 0.9
"""The share of equal replies from which two names are taken for one model. A resumed run may have replaced a few."""


def list_cautions(runs: Runs) -> list[str]:
    """List sentences that readers need before any ranking: on several judges, and on models with the same replies."""
    models: dict[str, dict[str, None]] = {}
    for run in runs.runs:
        compared = [judgment.opponent or "" for judgment in run.battles]
        models.setdefault(run.judge, {}).update(dict.fromkeys([run.system, *compared]))
    cautions = list(_find_same_replies(runs.runs))
    if len(models) == 1:
        return cautions
    judged = "; ".join(f"{', '.join(systems)} by {judge}" for judge, systems in models.items())
    text = f"{len(models)} judges gave these verdicts, each on a scale of its own: {judged}."
    # The judge of most models needs the fewest conversions; among equals the last one given is the newest.
    target = sorted(models, key=lambda judge: len(models[judge]))[-1]
    roads = [_describe_exchange(runs, judge, target) for judge in models if judge != target]
    return [f"{text} Models are ranked only among those of one judge.", *roads, *cautions]


def _describe_exchange(runs: Runs, judge: str, target: str) -> str:
    """Return a sentence on how to convert a model's ratings by `judge` to the scale of `target`, with the command.

    The audit converts ratings by answers that both judges rated (eval_agreement/README.md, "A retired judge's scores").
    """
    sources = [run for run in runs.runs if run.judge == judge and _list_ratings(run)]
    if not sources:
        return f"Only ratings can be converted from one judge to another: let {target} judge what {judge} judged."
    targets = [run for run in runs.runs if run.judge == target]
    source, anchored = max(product(sources, targets), key=lambda pair: _count_anchors(*pair))
    path = anchored.path
    steps = ""
    # Without answers that both rated, the conversion has nothing to go by.
    if _count_anchors(source, anchored) < FEWEST_TO_DECIDE:
        path = source.path.with_name(f"{source.path.stem}-again.jsonl")
        replies = f"`critic judge REPLIES.jsonl --out {shlex.quote(str(path))}`"
        steps = f"let {target} judge its replies to {FEWEST_TO_DECIDE} questions or more ({replies}), then "
    # The audit reads NAME=FILE up to the first equals sign.
    new = shlex.quote(f"{target.replace('=', '-')}={path}")
    old = shlex.quote(f"{judge.replace('=', '-')}={source.path}")
    command = f"`critic audit --judge {new} --exchange {old}`"
    return f"To put the ratings of {source.system} by {judge} on the scale of {target}: {steps}{command}."


def _list_ratings(run: Run) -> dict[tuple[str, str | None], str]:
    """Return the group of each rated reply of a run, by verdict id and reply."""
    groups = {}
    for judgment in run.verdicts:
        if judgment.score is not None and protocols.load(judgment.protocol or "pointwise").rates:
            groups[judgment.id, judgment.sample.answer] = judgment.conversation.group
    return groups


def _count_anchors(first: Run, second: Run) -> int:
    """Count the groups that contain a reply which was rated in both runs."""
    mine, theirs = _list_ratings(first), _list_ratings(second)
    return len({mine[key] for key in mine.keys() & theirs.keys()})


def _find_same_replies(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a sentence for every two models that gave equal replies to at least the share SAME_REPLIES of the turns."""
    said = set[frozenset[str]]()
    for first, second in combinations(runs, 2):
        systems = frozenset((first.system, second.system))
        # Several runs of one model have its replies in common, and what is said of two models is said once.
        if len(systems) == 1 or systems in said:
            continue
        equal, shared = count_equal_replies(first, second)
        if shared and equal >= SAME_REPLIES * shared:
            said.add(systems)
            both = f"{first.system} and {second.system} gave the same reply to {equal} of {shared} turns"
            yield f"{both}: is it one model under two names?"
