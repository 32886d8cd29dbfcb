"""Measures, which compute a finding from a sample, and the findings on one sample.

The measures of an audit are listed in the two tables of `eval_agreement/measure_tables.py`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct, to_builtins

from critic.page.blocks import Part
from eval_agreement.sample import AuditRequest, RatedSample

Sample = TypeVar("Sample")


class Measure(Struct, Generic[Sample], frozen=True, kw_only=True):
    """An entry of a table of measures: how a finding is made, drawn and written.

    - find: compute the finding on a sample, a `RatedSample` or `Preferences`. A sample also holds unlabelled answers.
    - section: key in `sections.toml` of the page's section that shows the finding. Measures may share a section.
    - draw: build a sample's parts of the section (`Part`: sentences and tables), given its finding and the list of all
      samples' findings. The page puts the sample's name before the heading of each part. The default shows nothing.
    - write: return the sample's entries in summary.json; None for the finding itself under the measure's name.
    """

    find: Callable[[Sample, AuditRequest], Any]
    section: str = ""
    draw: Callable[[Any, Sequence[Any]], Iterable[Part]] = lambda *_: ()
    write: Callable[[Any], Mapping[str, Any]] | None = None


class Findings(Struct, Generic[Sample], frozen=True, kw_only=True):
    """The findings on one sample, keyed by the name of the measure.

    `findings.NAME` is short for `findings.by_measure[NAME]`. `sample` also holds unlabelled answers.
    """

    sample: Sample
    request: AuditRequest = AuditRequest()
    by_measure: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        """Return the finding of a measure. Raises AttributeError if there is no measure of that name."""
        # Python asks here only for names that are no fields.
        if name not in self.by_measure:
            raise AttributeError(f"{name!r} is neither a measure nor a field of Findings")
        return self.by_measure[name]


RatedFindings = Findings[RatedSample]
"""The findings on a sample of scores."""

Table = Mapping[str, Measure[Any]]
"""Measures by the name of their finding."""


def run_audit(sample: Sample, request: AuditRequest, measures: Table) -> Findings[Sample]:
    """Compute every measure of a sample."""
    by_measure = {name: measure.find(sample, request) for name, measure in measures.items()}
    return Findings(sample=sample, request=request, by_measure=by_measure)


def written_values(findings: Findings[Any], measures: Table) -> dict[str, Any]:
    """Return the findings on a sample as JSON values, for its entry in summary.json."""
    values: dict[str, Any] = {}
    for name, measure in measures.items():
        finding = findings.by_measure[name]
        values |= measure.write(finding) if measure.write else {name: to_builtins(finding)}
    return values


def draw_parts(audits: Mapping[str, Findings[Any]], measures: Table) -> dict[str, list[Part]]:
    """Build the parts of the page from the findings on each sample. Returns lists of parts, keyed by section.

    `audits`: the findings on each sample, by the sample's name.
    """
    parts: dict[str, dict[str, Part]] = defaultdict(dict)
    for name, measure in measures.items():
        findings = [audit.by_measure[name] for audit in audits.values()]
        for sample, finding in zip(audits, findings, strict=True):
            for part in measure.draw(finding, findings):
                heading = f"{sample}: {part.heading}" if part.heading else sample
                # Measures that share a section add to the same part of a sample.
                joined = parts[measure.section].setdefault(heading, Part(heading=heading))
                joined.readings.extend(part.readings)
                joined.tables.extend(part.tables)
    return {section: list(by_heading.values()) for section, by_heading in parts.items()}
