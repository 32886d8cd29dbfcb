"""What an audit found on calibration, and the benchmark scores that it corrects, as sections."""

from collections.abc import Mapping

from critic.page.blocks import Columns, Part, Section, TableCell, bar, interval, number, share, shares
from eval_agreement.calibration import Bin as CalibrationBin
from eval_agreement.calibration import Calibration, Conformal, Errors, Recalibration
from eval_agreement.corrected import CorrectedMean, LabelPlan
from eval_agreement.page.words import measured, section

_BINS = Columns[CalibrationBin](
    ("Judge (rounded)", lambda one: str(one.score)),
    ("n", lambda one: one.n),
    ("judge’s mean", lambda one: number(one.judge)),
    ("people’s mean", lambda one: measured(one.human, one.interval, one.undefined)),
)


def _error(errors: Errors | None, undefined: str | None) -> TableCell:
    return measured(errors.mae if errors else None, None, undefined)


def _change(one: Recalibration) -> TableCell:
    change = one.changes.get("mae")
    return measured(change.value, change.interval) if change else TableCell("–")


_MAPS = Columns[Recalibration](
    ("Map", lambda one: one.method),
    ("n", lambda one: one.n),
    ("fitted on", lambda one: one.fitted),
    ("MAE before", lambda one: _error(one.before, one.undefined)),
    ("after", lambda one: _error(one.after, one.undefined)),
    ("change", _change),
    ("mean error before", lambda one: number(one.before.mean_error if one.before else None)),
    ("after", lambda one: number(one.after.mean_error if one.after else None)),
    about=lambda one: one.mode,
)


def _half_width(one: Conformal) -> str:
    return number(None) if one.half_width is None else f"± {number(one.half_width)}"


_CONFORMAL = Columns[Conformal](
    ("Intervals of single scores", lambda one: f"{one.level:.0%} conformal".replace("%", " %")),
    ("n", lambda one: one.n),
    ("fitted on", lambda one: one.fitted),
    ("half width", lambda one: TableCell(_half_width(one), title=one.undefined or "")),
    ("mean width on 1–10", lambda one: number(one.mean_width)),
    ("coverage", lambda one: TableCell(share(one.coverage), shares(one.interval))),
    about=lambda one: f"{one.method}, {one.mode}",
)


def calibration_section(found: Mapping[str, Calibration | None]) -> list[Section]:
    parts = [_calibration(name, one) for name, one in found.items() if one]
    note = (
        "A map from judge score to people’s is fitted on other questions than it is tried on: on the first file, where "
        "the same judge scored it by the same prompt, else in turns on four fifths of the same. A linear map leaves "
        "correlations as they are. Conformal intervals are around the recalibrated score of one answer; coverage is "
        "measured on answers that took no part."
    )
    return section("calibration", "Calibration", parts, note)


def _calibration(name: str, found: Calibration) -> Part:
    one = found.reliability
    error = f"{number(one.error)} ({interval(one.interval)})" if one.interval else number(one.error)
    caption = f"Expected calibration error {error} points; n = {one.n}, {one.failed} failed."
    return Part(
        heading=name,
        readings=[one.reading, *(each.reading for each in found.maps), found.conformal.reading],
        tables=[
            _BINS.table(caption, one.bins, folded=True),
            _MAPS.table("Recalibration.", found.maps),
            _CONFORMAL.table("How far a single score can be trusted.", [found.conformal]),
        ],
    )


_ANSWERERS = Columns[tuple[str, CorrectedMean]](
    ("Answerer", lambda pair: pair[0].replace("_", " ")),
    ("corrected", lambda pair: measured(pair[1].value, pair[1].interval, pair[1].undefined)),
    ("labels alone", lambda pair: measured(pair[1].human_only, pair[1].human_interval)),
    ("judge alone", lambda pair: number(pair[1].judge_only)),
    ("labels", lambda pair: pair[1].labelled),
    ("without", lambda pair: pair[1].unlabelled),
    ("worth", lambda pair: number(pair[1].effective, 0)),
    ("failed", lambda pair: pair[1].failed_labelled + pair[1].failed_unlabelled),
    about=lambda pair: pair[1].caution or "",
    bar=lambda pair: bar(pair[1].value, pair[1].interval),
    strong=lambda _: True,
)


def corrected_section(found: Mapping[str, tuple[Mapping[str, CorrectedMean], LabelPlan | None]]) -> list[Section]:
    """Of each sample, the means by answerer and the plan."""
    parts = []
    for name, (means, plan) in found.items():
        readings = [f"{answerer}: {mean.reading}" for answerer, mean in means.items()]
        readings += [plan.reading] if plan else []
        caption = "Mean human score, drawn from 1 to 10."
        table = _ANSWERERS.table(caption, means.items(), axis=(1.0, 10.0), drawn=2)
        parts.append(Part(heading=name, readings=readings, tables=[table] if means else []))
    note = (
        "Mean human score of each answerer out of few labels and many judge scores: prediction-powered inference "
        "(Angelopoulos et al. 2023, PPI++), valid however wrong the judge is if the labelled answers are a random "
        "draw. The judge decides only how wide the interval gets; “worth” is the number of labels that would do as "
        "well alone."
    )
    return section("corrected", "Corrected benchmark scores", parts, note)
