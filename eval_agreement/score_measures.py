"""The table of measures of an audit of scores.

To add a measure, add an entry to MEASURES, and the heading of its section to `sections.toml` if it is new.
"""

from msgspec import to_builtins

from eval_agreement.measures.bias import measure_biases
from eval_agreement.measures.calibration import Calibration, calibrate, fitted_values, recalibrate
from eval_agreement.measures.compare import compare_judges
from eval_agreement.measures.doubts import find_score_doubts
from eval_agreement.measures.measure import Measure
from eval_agreement.measures.ppi import compare_models, measure_corrected_means, plan_labels
from eval_agreement.measures.prediction_intervals import interval_values, measure_intervals
from eval_agreement.measures.raters import BesideRaters, beside_raters, measure_score_repeats
from eval_agreement.measures.scorers import break_down, breakdown_values, measure_scorers, scorer_values
from eval_agreement.metrics import JudgedRows
from eval_agreement.page import scores
from eval_agreement.page.words import draw_repeats
from eval_agreement.sample import AuditRequest, RatedSample


def _calibrate_labelled(sample: RatedSample, _: AuditRequest) -> Calibration:
    labelled = sample.labelled
    return calibrate(JudgedRows(labelled.human, labelled.scores, labelled.groups))


def _compare_with_raters(sample: RatedSample, request: AuditRequest) -> BesideRaters:
    labelled = sample.labelled
    return beside_raters(labelled.raters, labelled.scores, labelled.groups, epsilon=request.epsilon)


MEASURES: dict[str, Measure[RatedSample]] = {
    # Only the decision reads it, so that summary.json leaves it out.
    "doubts": Measure(find=find_score_doubts, write=lambda _: {}),
    # Its map goes to the certificate as well.
    "recalibration": Measure(find=recalibrate, write=fitted_values),
    "scorers": Measure(find=measure_scorers, section="agreement", draw=scores.draw_scorers, write=scorer_values),
    "repeats": Measure(find=measure_score_repeats, section="agreement", draw=draw_repeats),
    "by": Measure(find=break_down, section="parts", draw=scores.draw_breakdown, write=breakdown_values),
    "comparisons": Measure(find=compare_judges, section="judges", draw=scores.draw_comparisons),
    # Its three findings have names of their own in summary.json.
    "beside": Measure(find=_compare_with_raters, section="people", draw=scores.draw_people, write=to_builtins),
    "biases": Measure(find=measure_biases, section="bias", draw=scores.draw_biases),
    "calibration": Measure(find=_calibrate_labelled, section="calibration", draw=scores.draw_calibration),
    # The ends of the intervals go to rows.csv.
    "widths": Measure(find=measure_intervals, section="calibration", draw=scores.draw_intervals, write=interval_values),
    "corrected": Measure(find=measure_corrected_means, section="corrected", draw=scores.draw_corrected_means),
    "plan": Measure(find=plan_labels, section="corrected", draw=scores.draw_plan),
    "models": Measure(find=compare_models, section="models", draw=scores.draw_models),
}
"""Every measure of a sample of scores, by the name of its finding. `find` gets all answers; `sample.labelled` leaves
out those without a label."""
