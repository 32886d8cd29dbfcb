"""Was it the model or the judge? A change of a mean score, split by anchors: answers that were judged at both times."""

import numpy as np
from msgspec import Struct

from critic.errors import UsageError
from critic.stats.arrays import Floats, ratio
from critic.stats.estimate import FEWEST_TO_DECIDE, Bootstrap, Estimate
from eval_agreement.compare import MARGINS
from eval_agreement.sample import RatedSample


class Change(Struct, frozen=True, kw_only=True):
    """How the mean score of the answers judged now differs from that of those judged then, in points, `total`: the
    `judge`'s part is the mean of now less then over the anchors, the `model`'s what is left: new answers now, less the
    answers of then as the judge would score them now. Without new answers the model has no part. `holds`: neither is
    the judge shown to have moved by more than a margin, nor the model to have fallen."""

    total: Estimate
    judge: Estimate
    model: Estimate
    holds: bool
    reading: str


def change(sample: RatedSample) -> Change:
    """Of scores then (`human`) and now (the judge's), NaN where not scored. Raises UsageError without anchors."""
    then, now, draws = sample.human, sample.scores, Bootstrap(sample.groups)
    scored, again = ~np.isnan(then), ~np.isnan(now)
    rows = scored, scored & again, again & ~scored
    if not rows[1].any():
        raise UsageError(
            "no answer was judged at both times: judge some of the earlier ones again, to tell who changed"
        )
    columns = [np.where(of, value, 0) for of, value in zip(rows, (then, now - then, now), strict=True)]
    sums = draws.sums(np.arange(len(then)), np.array([*columns, *rows], dtype=np.float64)).T
    before, judge, after = (ratio(top, count) for top, count in zip(sums[:3], sums[3:], strict=True))
    groups = len(np.unique(sample.groups[rows[1]]))
    new = bool(rows[2].any())
    total = after - before if new else judge

    def of(values: Floats, n: int) -> Estimate:
        return draws.estimate(values, n, undefined="no answer is new", null=0.0, groups=groups)

    judged, model = of(judge, int(rows[1].sum())), of(total - judge if new else after, int(rows[2].sum()))
    moved, fallen = _shown(judged) != 0, _shown(model) < 0
    said = ["the judge has changed"] * moved + ["the model has become worse"] * fallen
    if groups < FEWEST_TO_DECIDE:
        said = [f"not decided: anchors on {groups} questions, {FEWEST_TO_DECIDE} are needed"]
    reading = f"{', and '.join(said) or 'no change that counts is shown'} (by {MARGINS['mae']:g} points or more)"
    whole = of(total, int((rows[2] if new else rows[1]).sum()))
    return Change(total=whole, judge=judged, model=model, holds=not said, reading=reading)


def _shown(part: Estimate) -> int:
    """1 or -1 where a change is shown and may be as large as the margin."""
    low, high = part.interval or (0.0, 0.0)
    return (int(low > 0) - int(high < 0)) * (max(-low, high) > MARGINS["mae"])
