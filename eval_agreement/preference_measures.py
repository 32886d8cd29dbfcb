"""The table of measures of an audit of preferences or yes/no verdicts.

To add a measure, add an entry to PREFERENCE_MEASURES, and the heading of its section to `sections.toml` if it is new.
"""

from msgspec import to_builtins

from critic.page.blocks import Part, Section
from eval_agreement.measures import preferences as verdicts
from eval_agreement.measures.doubts import find_verdict_doubts
from eval_agreement.measures.measure import Findings, Measure, draw_parts
from eval_agreement.measures.preferences import Preferences, measure_shares
from eval_agreement.page import preferences as page
from eval_agreement.page.words import build_sections, draw_repeats

PREFERENCE_MEASURES: dict[str, Measure[Preferences]] = {
    # Only the decision reads it, so that summary.json leaves it out.
    "doubts": Measure(find=find_verdict_doubts, write=lambda _: {}),
    # Its fields have names of their own in summary.json.
    "scorers": Measure(
        find=verdicts.measure_verdicts, section="preferences", draw=page.draw_verdicts, write=to_builtins
    ),
    "repeats": Measure(find=verdicts.measure_verdict_repeats, section="preferences", draw=draw_repeats),
    "beside": Measure(find=verdicts.compare_with_raters, section="people", draw=page.draw_people),
    "shares": Measure(find=measure_shares, section="rates", draw=page.draw_rates),
    "matrix": Measure(find=verdicts.measure_matrix, section="matrix", draw=page.draw_matrix),
    "position": Measure(find=verdicts.measure_positions, section="position", draw=page.draw_positions),
    "length": Measure(find=verdicts.measure_lengths, section="length", draw=page.draw_lengths),
    "differences": Measure(find=verdicts.compare_verdicts, section="differences", draw=page.draw_differences),
    "by": Measure(find=verdicts.break_down_verdicts, section="kinds", draw=page.draw_kinds),
}
"""Every measure of a sample of preferences, by the name of its finding."""


def preference_sections(name: str, findings: Findings[Preferences], gate: Part | None = None) -> list[Section]:
    """Build the sections of the page on one sample. `gate`: the gate's part, or None."""
    parts = draw_parts({name: findings}, PREFERENCE_MEASURES)
    parts["gate"] = [gate or Part()]
    things, thing = "pairs of answers", "pair"
    # Verdicts of yes or no have other metrics, and so another note.
    if findings.sample.yes_or_no:
        things, thing = "items", "item"
        parts["yes_or_no"] = parts.pop("preferences")
    return build_sections(parts, things=things, thing=thing)
