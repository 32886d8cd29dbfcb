"""Agreement with people of every scorer of a sample: the judge, other judges, people themselves and trivial judges."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from critic.stats.arrays import Floats
from critic.stats.estimate import Estimate
from eval_agreement.measures.baselines import trivial
from eval_agreement.measures.compare import Comparison, compare
from eval_agreement.measures.raters import leave_one_out
from eval_agreement.metrics import Agreement, measured
from eval_agreement.sample import AuditRequest, RatedSample

Kind = Literal["judge", "other", "people", "baseline"]


class Line(Struct, frozen=True):
    """A line of the table of scorers: a scorer and its agreement with people.

    `about` describes the scorer in a few words.
    """

    kind: Kind
    name: str
    about: str
    result: Agreement


class Scorers(Struct, frozen=True, kw_only=True):
    """Every scorer of a sample, the judge under audit first.

    `answers`, `unlabelled`: number of answers with and without a human score. `over_trivial`: comparisons of the judge
    with each trivial judge. `notes`: the sample's notes.
    """

    answers: int
    unlabelled: int
    lines: list[Line]
    over_trivial: list[Comparison]
    notes: list[str]

    @property
    def judge(self) -> Agreement:
        """Agreement of the judge under audit."""
        return self.lines[0].result

    @property
    def constant(self) -> Line:
        """The line of the constant judge, which is the first trivial judge of every audit."""
        return self.of_kind("baseline")[0]

    def of_kind(self, kind: Kind) -> list[Line]:
        """Return the scorers of one kind."""
        return [line for line in self.lines if line.kind == kind]


def measure_scorers(sample: RatedSample, request: AuditRequest) -> Scorers:
    """Measure the judge beside the other judges, people and trivial judges on the labelled answers.

    Trivial judges are fitted on training rows; without these there is only the constant judge (people's median here).
    """
    labelled = sample.labelled
    baselines = trivial(labelled, request.training)
    beside = replace(labelled, judges=labelled.judges | {name: scores for name, (scores, _) in baselines.items()})
    return Scorers(
        answers=len(labelled.ids),
        unlabelled=len(sample.ids) - len(labelled.ids),
        lines=list(_scorer_lines(labelled, baselines)),
        # Paired differences: that an interval lies below another's shows less than the difference does.
        over_trivial=[compare(beside, beside.judge, name) for name in baselines],
        notes=sample.notes,
    )


def _scorer_lines(sample: RatedSample, baselines: Mapping[str, tuple[Floats, str]]) -> Iterator[Line]:
    """Yield the lines of the judge under audit, other judges, people and trivial judges, in this order.

    `baselines`: scores and description of each trivial judge, as `trivial` returns them.
    """
    for name, scores in sample.judges.items():
        audited = name == sample.judge
        about = "the judge under audit" if audited else "another judge"
        yield Line("judge" if audited else "other", name, about, _agreement(sample, scores))
    yield from people(sample)
    for name, (scores, description) in baselines.items():
        yield Line("baseline", name, description, _agreement(sample, scores))


def _agreement(sample: RatedSample, scores: Floats) -> Agreement:
    return measured(sample.human, scores, sample.groups, sample.weight)


def people(sample: RatedSample) -> Iterator[Line]:
    """Yield two lines: agreement of each rater with the mean of the other raters, and of the judge with the same means.

    The judge is measured again because the mean of all raters has less noise, and is easier to match, than the mean of
    all but one. n counts (answer, rater) pairs. Yields nothing if no answer has two raters.
    """
    others, rater, row = leave_one_out(sample.raters)
    scorers = {
        "people": ("each rater against the mean of the others", rater),
        f"{sample.judge} as a rater": ("the judge against the same means", sample.scores[row]),
    }
    for name, (about, scores) in scorers.items() if len(row) else ():
        result = measured(others, scores, sample.groups[row])
        # Within a question the mean of the others falls where a rater's own score rises.
        undefined = Estimate(n=result.n, undefined="raters of one answer depend on each other")
        yield Line("people", name, about, replace(result, estimates={**result.estimates, "within": undefined}))


Breakdown = dict[str, dict[str, Agreement]]
"""Agreement of the judge under audit, keyed by property and value."""


def break_down(sample: RatedSample, _: AuditRequest) -> Breakdown:
    """Measure the judge on the labelled answers with each value of each property.

    Properties with one value are left out.
    """
    labelled = sample.labelled
    results: Breakdown = {}
    for part in labelled.parts:
        # One value is no breakdown: its figures are those of the whole sample.
        if len(labelled.part_values(part)) > 1:
            results[part] = {}
            for value, rows in labelled.part_rows(part):
                subset = labelled.rows(rows)
                results[part][value] = _agreement(subset, subset.scores)
    return results


def agreement_values(result: Agreement) -> dict[str, Any]:
    """Return an agreement as JSON values: every metric by name, counts, reasons, intervals, groups and coverage.

    `coverage` is the share (0..1) of the rows that have a judgment.
    """
    values: dict[str, Any] = {"n": result.n, "failed": result.failed}
    values |= {name: estimate.value for name, estimate in result.estimates.items()}
    values |= {"undefined": result.undefined, "interval": result.interval, "groups": result.groups}
    return values | {"coverage": result.n / (result.n + result.failed)}


def scorer_values(scorers: Scorers) -> dict[str, Any]:
    """Return the judge's agreement as JSON values, with its comparisons with trivial judges.

    The other scorers are written to summary.json by `report.summarise`.
    """
    pairs = [to_builtins(pair) for pair in scorers.over_trivial]
    return agreement_values(scorers.judge) | {"unlabelled": scorers.unlabelled, "over_trivial": pairs}


def breakdown_values(results: Breakdown) -> dict[str, Any]:
    """Return a breakdown as JSON values under the key `by`."""
    values: dict[str, dict[str, Any]] = {}
    for part, of_part in results.items():
        values[part] = {value: agreement_values(result) for value, result in of_part.items()}
    return {"by": values}
