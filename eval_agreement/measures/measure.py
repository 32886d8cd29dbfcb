"""A measure, a function of a sample to a finding, and the findings on one sample by measure.

The measures that an audit of scores makes are listed in `eval_agreement/score_measures.py`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct, to_builtins

from critic.page.blocks import Part
from critic.records import Response
from eval_agreement.measures.compare import Comparison
from eval_agreement.measures.raters import EPSILON
from eval_agreement.measures.scorers import Kind, Line
from eval_agreement.metrics import Agreement
from eval_agreement.sample import RatedSample

Finding = TypeVar("Finding")


class AuditRequest(Struct, frozen=True, kw_only=True):
    """The options that measures depend on.

    - training: rows to fit trivial judges on.
    - epsilon: allowance of the alternative annotator test, 0..1.
    - within: half width of the mean, in points, to plan labels for; None for no plan.
    """

    training: Sequence[Response] = ()
    epsilon: float = EPSILON
    within: float | None = None


class Measure(Struct, Generic[Finding], frozen=True, kw_only=True):
    """An entry of MEASURES: how a finding is made, drawn and written.

    - find: the finding on one sample. The sample holds unlabelled answers too; `sample.labelled` leaves them out.
    - section: key in `sections.toml` of the page's section to draw in. Measures may share a section.
    - draw: the section's parts, from the finding on each sample by name. A part's heading is the sample's name.
    - write: entries of the sample in summary.json; by default the finding under the measure's name.
    """

    find: Callable[[RatedSample, AuditRequest], Finding]
    section: str = ""
    draw: Callable[[Mapping[str, Finding]], Iterable[Part]] | None = None
    write: Callable[[Finding], Mapping[str, Any]] | None = None


class Findings(Struct, frozen=True, kw_only=True):
    """The findings on one sample, by the name of the measure. `findings.NAME` is short for `findings.by_measure[NAME]`.

    `sample` holds only the answers that people scored.
    """

    sample: RatedSample
    by_measure: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        """Return the finding of a measure. Raises AttributeError for a name that is no measure's."""
        # Python asks here only for names that are no fields.
        if name not in self.by_measure:
            raise AttributeError(f"{name!r} is neither a measure nor a field of Findings")
        return self.by_measure[name]

    @property
    def judge(self) -> Agreement:
        """Agreement of the judge under audit with people."""
        return self.lines[0].result

    @property
    def lines(self) -> list[Line]:
        """Every scorer, the judge under audit first."""
        lines: list[Line] = self.scorers.lines
        return lines

    @property
    def over_trivial(self) -> list[Comparison]:
        """The judge under audit against each trivial judge."""
        pairs: list[Comparison] = self.scorers.over_trivial
        return pairs

    def of_kind(self, kind: Kind) -> list[Line]:
        """Return the scorers of one kind."""
        return [line for line in self.lines if line.kind == kind]


def run_audit(sample: RatedSample, request: AuditRequest, measures: Mapping[str, Measure[Any]]) -> Findings:
    """Make every measure of a sample."""
    by_measure = {name: measure.find(sample, request) for name, measure in measures.items()}
    return Findings(sample=sample.labelled, by_measure=by_measure)


def written_values(findings: Findings, measures: Mapping[str, Measure[Any]]) -> dict[str, Any]:
    """Return the findings on a sample as JSON values, the entry of the sample in summary.json."""
    values: dict[str, Any] = {}
    for name, measure in measures.items():
        finding = findings.by_measure[name]
        values |= measure.write(finding) if measure.write else {name: to_builtins(finding)}
    return values
