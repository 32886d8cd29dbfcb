"""How often a judge changes its verdicts when it is asked again (`critic judge --repeat`)."""

import numpy as np
from msgspec import Struct

from critic.page.blocks import share, shares
from critic.stats.arrays import Floats, ratio
from critic.stats.estimate import Estimate
from eval_agreement.metrics import half_up, mean_estimate
from eval_agreement.sample import AuditRequest, Indices, RatedSample
from eval_agreement.sentences import say


class Repeats(Struct, frozen=True, kw_only=True):
    """The verdicts of a judge that was asked `times` times.

    - changed: share (0..1) of its further verdicts that differ from the first; undefined if it was asked once.
    - runs: agreement with people in each run: mean absolute error of scores, or share of equal verdicts.
    """

    times: int
    changed: Estimate
    runs: list[float]
    reading: str


def measure_score_repeats(sample: RatedSample, _: AuditRequest) -> Repeats:
    """Measure how many whole ratings (half up) of the judge under audit change when it is asked again."""
    scores: Floats = np.column_stack([sample.scores] if sample.repeats is None else [sample.scores, sample.repeats])
    return compare_repeats(
        half_up(scores), np.abs(scores - sample.human[:, None]), sample.groups, "the mean absolute error"
    )


def compare_repeats(verdicts: Floats, agreement: Floats, groups: Indices, name: str) -> Repeats:
    """Compare each column of `verdicts` (n, times) with the first. `agreement`: that with people, called `name`."""
    times = verdicts.shape[1]
    if times == 1:
        once = Estimate(n=0, undefined="the judge was asked once; critic judge --repeat 2 asks again")
        return Repeats(times=times, changed=once, runs=[], reading=say("asked_once"))
    both = ~np.isnan(verdicts[:, :1]) & ~np.isnan(verdicts[:, 1:])
    differs = both & (verdicts[:, 1:] != verdicts[:, :1])
    changed = mean_estimate(ratio(differs.sum(axis=1), both.sum(axis=1)), groups, share=True)
    runs = [float(np.mean(run[~np.isnan(run)])) for run in agreement.T if not np.isnan(run).all()]
    facts = {"share": share(changed.value), "bounds": shares(changed.interval), "n": changed.n}
    ends = {"low": min(runs, default=0), "high": max(runs, default=0), "name": name}
    return Repeats(times=times, changed=changed, runs=runs, reading=say("asked_again", times=times, **facts, **ends))
