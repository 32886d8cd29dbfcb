"""The table of measures of an audit of scores: how each finding is made, drawn on the page and written to summary.json.

Adding a measure is one entry of MEASURES, with its section's heading in `sections.toml` if the section is new.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import to_builtins

from critic.page.blocks import Part, Section
from critic.stats.estimate import FEWEST_GROUPS, MANY_GROUPS, RESAMPLES, RESAMPLES_OF_MANY
from eval_agreement.judged_rows import JudgedRows
from eval_agreement.measures.bias import measure_biases
from eval_agreement.measures.calibration import Calibration, calibrate
from eval_agreement.measures.compare import compare_judges
from eval_agreement.measures.differences import compare_models
from eval_agreement.measures.measure import AuditRequest, Findings, Measure
from eval_agreement.measures.ppi import measure_corrected_means, plan_labels
from eval_agreement.measures.prediction_intervals import interval_values, measure_intervals
from eval_agreement.measures.raters import BesideRaters, beside_raters
from eval_agreement.measures.scorers import break_down, breakdown_values, measure_scorers, scorer_values
from eval_agreement.metrics import METRICS
from eval_agreement.page import scores
from eval_agreement.page.words import section
from eval_agreement.sample import RatedSample
from eval_agreement.sentences import texts_of


def _calibrate_labelled(sample: RatedSample, _: AuditRequest) -> Calibration:
    labelled = sample.labelled
    return calibrate(JudgedRows(labelled.human, labelled.scores, labelled.groups))


def _compare_with_raters(sample: RatedSample, request: AuditRequest) -> BesideRaters:
    labelled = sample.labelled
    return beside_raters(labelled.raters, labelled.scores, labelled.groups, epsilon=request.epsilon)


MEASURES: dict[str, Measure[Any]] = {
    "scorers": Measure(
        find=lambda sample, request: measure_scorers(sample, request.training),
        section="agreement",
        draw=scores.draw_scorers,
        write=scorer_values,
    ),
    "by": Measure(
        find=lambda sample, _: break_down(sample), section="parts", draw=scores.draw_breakdown, write=breakdown_values
    ),
    "comparisons": Measure(
        find=lambda sample, _: compare_judges(sample.labelled), section="judges", draw=scores.draw_comparisons
    ),
    # Its three findings have names of their own in summary.json.
    "beside": Measure(find=_compare_with_raters, section="people", draw=scores.draw_people, write=to_builtins),
    "biases": Measure(find=lambda sample, _: measure_biases(sample), section="bias", draw=scores.draw_biases),
    "calibration": Measure(find=_calibrate_labelled, section="calibration", draw=scores.draw_calibration),
    # The ends of the intervals go to rows.csv.
    "widths": Measure(
        find=lambda sample, _: measure_intervals(sample),
        section="calibration",
        draw=scores.draw_intervals,
        write=interval_values,
    ),
    "corrected": Measure(
        find=lambda sample, _: measure_corrected_means(sample), section="corrected", draw=scores.draw_corrected_means
    ),
    "plan": Measure(
        find=lambda sample, request: plan_labels(sample, request.within), section="corrected", draw=scores.draw_plan
    ),
    "models": Measure(find=lambda sample, _: compare_models(sample), section="models", draw=scores.draw_models),
}
"""Every measure of a sample of scores, by the name of its finding."""


def page_sections(audits: Mapping[str, Findings], others: Mapping[str, Iterable[Part]]) -> list[Section]:
    """Build the page's sections in the order of `sections.toml`.

    Measures draw the findings of each sample; `others` are parts by section that no measure of a sample draws.
    """
    parts: dict[str, list[Part]] = defaultdict(list)
    for name, measure in MEASURES.items():
        if measure.draw:
            findings = {sample: audit.by_measure[name] for sample, audit in audits.items()}
            parts[measure.section] = _join(parts[measure.section], measure.draw(findings))
    for key, more in others.items():
        parts[key] += more
    sections = []
    for key in texts_of("sections.toml"):
        # Other pages' sections stand in the file too, and their notes name other values.
        if parts[key]:
            sections += section(key, parts[key], **_note_values())
    return sections


def _note_values() -> dict[str, object]:
    """Return the values that notes of `sections.toml` may name."""
    return {
        "metrics": " ".join(metric.note for metric in METRICS.values() if metric.note),
        "resamples": RESAMPLES,
        "resamples_of_many": RESAMPLES_OF_MANY,
        "many": MANY_GROUPS,
        "fewest": FEWEST_GROUPS,
    }


def _join(parts: Iterable[Part], more: Iterable[Part]) -> list[Part]:
    """Join the parts of measures that share a section: one part per sample, with the readings and tables of all."""
    joined: dict[str, Part] = {}
    for part in (*parts, *more):
        before = joined.get(part.heading, Part())
        joined[part.heading] = Part(
            heading=part.heading,
            readings=[*before.readings, *part.readings],
            tables=[*before.tables, *part.tables],
        )
    return list(joined.values())
