"""Everything an audit says of a sample: the judge, other judges, trivial judges and people through the same metrics."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from critic.records import Response
from eval_agreement.baselines import BASELINES
from eval_agreement.compare import MARGINS, Comparison, compare, comparisons
from eval_agreement.joint import measured
from eval_agreement.metrics import Agreement, Floats
from eval_agreement.raters import leave_one_out
from eval_agreement.resampling import group_numbers
from eval_agreement.sample import Sample

Kind = Literal["judge", "other", "people", "baseline"]


class Line(Struct, frozen=True):
    """One scorer. `about` says in a few words what the scorer does."""

    kind: Kind
    name: str
    about: str
    result: Agreement


class Findings(Struct, frozen=True, kw_only=True):
    """What an audit found on one sample.

    `sample` holds the answers that people scored; `unlabelled` more had a judge's score only. `lines` begins with the
    judge under audit. `by[part][value]` is its agreement on a part, `comparisons` every pair of
    judges, `over_trivial` the judge under audit against each trivial one.
    """

    sample: Sample
    unlabelled: int
    lines: list[Line]
    by: dict[str, dict[str, Agreement]] = field(default_factory=dict)
    comparisons: list[Comparison] = field(default_factory=list)
    over_trivial: list[Comparison] = field(default_factory=list)

    @property
    def judge(self) -> Agreement:
        return self.lines[0].result

    def of(self, *kinds: Kind) -> list[Line]:
        return [line for line in self.lines if line.kind in kinds]


def examine(sample: Sample, training: Sequence[Response] = (), margins: Mapping[str, float] = MARGINS) -> Findings:
    """Audit the first judge of a sample beside the others, people and trivial judges.

    Trivial judges that look at texts are fitted on `training` and computed on every labelled row, also on those
    where the judge failed. Without training rows there is one: people's own median, which has seen the answers.
    """
    labelled = sample.labelled
    group = group_numbers(labelled.group)
    baselines = trivial(labelled, training)
    lines = [
        Line("judge" if name == sample.judge else "other", name, "", measured(labelled.human, scores, group))
        for name, scores in labelled.judges.items()
    ]
    lines += people(labelled)
    for name, (predicted, about) in baselines.items():
        lines.append(Line("baseline", name, about, measured(labelled.human, predicted, group)))
    return Findings(
        sample=labelled,
        unlabelled=len(sample.ids) - len(labelled.ids),
        lines=lines,
        by=breakdown(labelled),
        comparisons=comparisons(labelled, margins),
        over_trivial=[over(labelled, name, predicted) for name, (predicted, _) in baselines.items()],
    )


def over(sample: Sample, name: str, predicted: Floats) -> Comparison:
    """The judge under audit against a trivial one."""
    return compare(replace(sample, judges={sample.judge: sample.scores, name: predicted}), sample.judge, name, {})


def breakdown(sample: Sample) -> dict[str, dict[str, Agreement]]:
    """The judge's agreement on the rows of each value of each property that has several."""
    group = group_numbers(sample.group)
    found: dict[str, dict[str, Agreement]] = {}
    for part in sample.parts:
        values = sample.values(part)
        if len(values) > 1:
            found[part] = {
                value: measured(sample.human[rows], sample.scores[rows], group[rows]) for value, rows in values.items()
            }
    return found


def trivial(sample: Sample, training: Sequence[Response]) -> dict[str, tuple[Floats, str]]:
    """Judges that understand nothing: their scores, and what they do."""
    responses = [response for response in sample.responses if response]
    if not training or len(responses) < len(sample.ids):
        median = float(np.median(sample.human))
        return {"constant": (np.full(len(sample.ids), median), f"always {median:.3g}, people's median here")}
    found = {}
    for name, fit in BASELINES.items():
        predicted = fit(training)(responses)
        about = f"always {predicted[0]:.3g}" if name == "constant" else f"a line on {name}"
        found[name] = (predicted, about)
    return found


def people(sample: Sample) -> list[Line]:
    """Each rater against the mean of the others, pooled: how far a perfect judge could get. Empty where no answer
    has two raters. n counts (answer, rater) pairs."""
    if not sample.raters:
        return []
    others, rater, row = leave_one_out(sample.raters)
    if not len(row):
        return []
    group = group_numbers(sample.group)[row]
    return [Line("people", "people", "each rater against the mean of the others", measured(others, rater, group))]
