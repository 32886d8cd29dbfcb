"""Everything an audit says of a sample: the judge, other judges, trivial judges and people through the same metrics."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from critic.records import Response
from critic.stats.arrays import Floats
from eval_agreement.measures import bias
from eval_agreement.measures.baselines import trivial
from eval_agreement.measures.calibration import Calibration, calibrate
from eval_agreement.measures.compare import Comparison, compare, comparisons
from eval_agreement.measures.differences import ModelDifference, differences
from eval_agreement.measures.ppi import CorrectedMean, LabelPlan, corrected_mean, labels_needed
from eval_agreement.measures.prediction_intervals import Widths, widths
from eval_agreement.measures.raters import EPSILON, BesideRaters, beside_raters, leave_one_out
from eval_agreement.metrics import Agreement, measured
from eval_agreement.sample import JudgedRows, RatedSample

Kind = Literal["judge", "other", "people", "baseline"]


class Line(Struct, frozen=True):
    """One scorer. `about` says in a few words what the scorer does."""

    kind: Kind
    name: str
    about: str
    result: Agreement


class Biases(Struct, frozen=True):
    """Of one judge: those of the whole, and offsets by language, task and answerer."""

    effects: list[bias.BiasEffect]
    offsets: list[bias.Offsets]


class AuditRequest(Struct, frozen=True, kw_only=True):
    """What the user decides: `training` rows for trivial judges, `epsilon`, half width in points to plan labels for."""

    training: Sequence[Response] = ()
    epsilon: float = EPSILON
    within: float | None = None


class Findings(Struct, frozen=True, kw_only=True):
    """What an audit found on one sample. `sample` holds the answers that people scored, `unlabelled` more had a judge's
    score only; `ends` (2, n) are the intervals' of either. `lines` begins with the judge under audit, `by[part][value]`
    is its agreement on a part, `corrected[answerer]` there for answerers with labels and answers without."""

    sample: RatedSample
    unlabelled: int
    lines: list[Line]
    calibration: Calibration
    widths: Widths | None = None
    ends: Floats | None = None
    by: dict[str, dict[str, Agreement]] = field(default_factory=dict)
    comparisons: list[Comparison] = field(default_factory=list)
    over_trivial: list[Comparison] = field(default_factory=list)
    beside: BesideRaters = BesideRaters()
    biases: dict[str, Biases] = field(default_factory=dict)
    corrected: dict[str, CorrectedMean] = field(default_factory=dict)
    models: list[ModelDifference] = field(default_factory=list)
    plan: LabelPlan | None = None

    @property
    def judge(self) -> Agreement:
        return self.lines[0].result

    def of(self, *kinds: Kind) -> list[Line]:
        return [line for line in self.lines if line.kind in kinds]


def run_audit(sample: RatedSample, request: AuditRequest) -> Findings:
    """Audit the first judge of a sample beside the others, people and trivial judges, which are fitted on training rows
    and computed on every labelled row; without training rows there is one, people's own median here."""
    labelled = sample.labelled
    baselines = trivial(labelled, request.training)
    intervals, ends = widths(sample)
    judge, plan = {labelled.judge: labelled.scores}, None
    if request.within:
        why = None if sample.grouped else _UNGROUPED
        scored = sample.human, sample.scores, sample.groups
        plan = labels_needed(request.within, *scored, weight=sample.weight, undefined=why)
    return Findings(
        sample=labelled,
        unlabelled=len(sample.ids) - len(labelled.ids),
        lines=scorers(labelled, baselines),
        by=breakdown(labelled),
        comparisons=comparisons(labelled),
        over_trivial=[
            compare(replace(labelled, judges={**judge, name: scores}), labelled.judge, name)
            for name, (scores, _) in baselines.items()
        ],
        beside=beside_raters(labelled.raters, labelled.scores, labelled.groups, request.epsilon),
        biases={name: biases(labelled, name) for name in sample.judges},
        calibration=calibrate(JudgedRows(labelled.human, labelled.scores, labelled.groups)),
        widths=intervals,
        ends=ends,
        corrected=corrected(sample),
        models=differences(sample if sample.grouped else labelled),
        plan=plan,
    )


def scorers(sample: RatedSample, baselines: Mapping[str, tuple[Floats, str]]) -> list[Line]:
    """Everybody's agreement with people: the judge first, then other judges, people, trivial judges."""

    def line(kind: Kind, name: str, scores: Floats, about: str = "") -> Line:
        return Line(kind, name, about, measured(sample.human, scores, sample.groups, sample.weight))

    (first, own), *others = sample.judges.items()
    return [
        line("judge", first, own, "the judge under audit"),
        *(line("other", name, scores, "another judge") for name, scores in others),
        *people(sample),
        *(line("baseline", name, *scores) for name, scores in baselines.items()),
    ]


def biases(sample: RatedSample, judge: str) -> Biases:
    """What pulls one judge's scores away from people's."""
    rows = JudgedRows(sample.human, sample.judges[judge], sample.groups)
    effects = [bias.severity(rows)]
    if sample.length is not None and not np.isnan(sample.length).any():
        effects.append(bias.verbosity(rows, sample.length))
    several = [part for part in ("lang", "task", "answerer") if len(sample.said(part)) > 1]
    return Biases(effects, [bias.offsets(part, rows, sample.parts[part]) for part in several])


_UNGROUPED = "only labelled answers have a group; give every answer's in a column group of the judge's file"
_NO_SYSTEM = "of answers without a label it is not known who answered; give a column system in the judge's file"


def corrected(sample: RatedSample) -> dict[str, CorrectedMean]:
    """The mean human score of each answerer with labels and answers without; without a value where it may have some."""
    labelled, unlabelled = ~np.isnan(sample.human), np.isnan(sample.human)
    if not unlabelled.any():
        return {}
    means = {}
    rows_of: Iterable[tuple[str, NDArray[np.bool_]]] = [("all answers", np.ones(len(sample.ids), dtype=bool))]
    if any(answerers := sample.parts.get("answerer", [])):
        rows_of = sample.values("answerer")
        unlabelled &= np.array([name is None for name in answerers], dtype=bool)
    for name, rows in rows_of:
        known = labelled[rows]
        if known.any() and (unlabelled.any() or not known.all()):
            why = _NO_SYSTEM if known.all() else None if sample.grouped else _UNGROUPED
            chosen = sample.rows(rows)
            scored = chosen.human, chosen.scores, chosen.groups
            means[name] = corrected_mean(*scored, weight=chosen.weight, undefined=why)
    return means


def breakdown(sample: RatedSample) -> dict[str, dict[str, Agreement]]:
    """The judge's agreement on the rows of each value of each property that has several."""
    results = {}
    for part in sample.parts:
        values = {value: sample.rows(rows) for value, rows in sample.values(part)}
        if len(values) > 1:
            results[part] = {
                value: measured(subset.human, subset.scores, subset.groups, subset.weight)
                for value, subset in values.items()
            }
    return results


def people(sample: RatedSample) -> list[Line]:
    """Each rater against the mean of the others, pooled, and the judge against those same means: the means of all
    raters are easier to come near. Empty where no answer has two raters. n counts (answer, rater) pairs."""
    others, rater, row = leave_one_out(sample.raters)
    if not len(row):
        return []
    group = sample.groups[row]
    judge = measured(others, sample.scores[row], group)
    return [
        Line("people", "people", "each rater against the mean of the others", measured(others, rater, group)),
        Line("people", f"{sample.judge} as a rater", "the judge against the same means", judge),
    ]
