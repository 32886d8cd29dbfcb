"""The measures of an audit in two tables: those of scores, and those of preferences and yes/no verdicts.

To add a measure, add an entry to its table. If its section of the page is new, add that to `sections.toml`.
"""

from msgspec import to_builtins

from critic.page.blocks import Part, Section
from eval_agreement.measures import calibration
from eval_agreement.measures import preferences as verdicts
from eval_agreement.measures.bias import measure_biases
from eval_agreement.measures.compare import compare_judges
from eval_agreement.measures.doubts import find_score_doubts, find_verdict_doubts
from eval_agreement.measures.measure import Findings, Measure, draw_parts
from eval_agreement.measures.ppi import compare_models, measure_corrected_means, plan_labels
from eval_agreement.measures.raters import BesideRaters, beside_raters, measure_score_repeats
from eval_agreement.measures.scorers import break_down, breakdown_values, measure_scorers, scorer_values
from eval_agreement.page import preferences, scores
from eval_agreement.page.words import build_sections, draw_repeats
from eval_agreement.sample import AuditRequest, RatedSample


def _compare_with_raters(sample: RatedSample, request: AuditRequest) -> BesideRaters:
    labelled = sample.labelled
    return beside_raters(labelled.raters, labelled.scores, labelled.groups, epsilon=request.epsilon)


MEASURES: dict[str, Measure[RatedSample]] = {
    # Only the decision reads it, so that summary.json leaves it out.
    "doubts": Measure(find=find_score_doubts, write=lambda _: {}),
    # Its map goes to the certificate as well.
    "recalibration": Measure(find=calibration.recalibrate, write=calibration.fitted_values),
    "scorers": Measure(find=measure_scorers, section="agreement", draw=scores.draw_scorers, write=scorer_values),
    "repeats": Measure(find=measure_score_repeats, section="agreement", draw=draw_repeats),
    "by": Measure(find=break_down, section="parts", draw=scores.draw_breakdown, write=breakdown_values),
    "comparisons": Measure(find=compare_judges, section="judges", draw=scores.draw_comparisons),
    # Its three findings have names of their own in summary.json.
    "beside": Measure(find=_compare_with_raters, section="people", draw=scores.draw_people, write=to_builtins),
    "biases": Measure(find=measure_biases, section="bias", draw=scores.draw_biases),
    "calibration": Measure(find=calibration.calibrate, section="calibration", draw=scores.draw_calibration),
    # The ends of the intervals go to rows.csv.
    "widths": Measure(
        find=calibration.measure_intervals,
        section="calibration",
        draw=scores.draw_intervals,
        write=lambda intervals: {"widths": to_builtins(intervals[0])},
    ),
    "corrected": Measure(find=measure_corrected_means, section="corrected", draw=scores.draw_corrected_means),
    "plan": Measure(find=plan_labels, section="corrected", draw=scores.draw_plan),
    "models": Measure(find=compare_models, section="models", draw=scores.draw_models),
}
"""Every measure of a sample of scores, by the name of its finding. `find` gets the whole sample; `sample.labelled`
leaves out answers without a label."""

PREFERENCE_MEASURES: dict[str, Measure[verdicts.Preferences]] = {
    # Only the decision reads it, so that summary.json leaves it out.
    "doubts": Measure(find=find_verdict_doubts, write=lambda _: {}),
    # Its fields have names of their own in summary.json.
    "scorers": Measure(
        find=verdicts.measure_verdicts, section="preferences", draw=preferences.draw_verdicts, write=to_builtins
    ),
    "repeats": Measure(find=verdicts.measure_verdict_repeats, section="preferences", draw=draw_repeats),
    "beside": Measure(find=verdicts.compare_with_raters, section="people", draw=preferences.draw_people),
    "shares": Measure(find=verdicts.measure_shares, section="rates", draw=preferences.draw_rates),
    "matrix": Measure(find=verdicts.measure_matrix, section="matrix", draw=preferences.draw_matrix),
    "position": Measure(find=verdicts.measure_positions, section="position", draw=preferences.draw_positions),
    "length": Measure(find=verdicts.measure_lengths, section="length", draw=preferences.draw_lengths),
    "differences": Measure(find=verdicts.compare_verdicts, section="differences", draw=preferences.draw_differences),
    "by": Measure(find=verdicts.break_down_verdicts, section="kinds", draw=preferences.draw_kinds),
}
"""Every measure of a sample of preferences or yes/no verdicts, by the name of its finding."""


def preference_sections(name: str, findings: Findings[verdicts.Preferences], gate: Part | None = None) -> list[Section]:
    """Build the sections of the page on a sample of preferences or yes/no verdicts.

    `name`: the sample's name. `gate`: the sentences on the gate, or None.
    """
    parts = draw_parts({name: findings}, PREFERENCE_MEASURES)
    parts["gate"] = [gate or Part()]
    things, thing = "pairs of answers", "pair"
    # Verdicts of yes or no have other metrics, and so another note.
    if findings.sample.yes_or_no:
        things, thing = "items", "item"
        parts["yes_or_no"] = parts.pop("preferences")
    return build_sections(parts, things=things, thing=thing)
