"""What an audit found on calibration, and the benchmark scores that it corrects, as sections."""

from collections.abc import Mapping

from critic.page.blocks import Columns, Part, Section, Table, TableCell, bar, interval, number, share, shares
from eval_agreement.analysis import Findings
from eval_agreement.calibration import Bin as CalibrationBin
from eval_agreement.calibration import Conformal, Recalibration, Reliability
from eval_agreement.corrected import CorrectedMean
from eval_agreement.page.words import measured


def calibration_section(found: Mapping[str, Findings]) -> Section | None:
    parts = [
        Part(
            heading=name,
            readings=[
                calibrated.reliability.reading,
                *(one.reading for one in calibrated.maps),
                calibrated.conformal.reading,
            ],
            tables=[
                _reliability_table(calibrated.reliability),
                _MAPS.table("Recalibration.", calibrated.maps),
                _CONFORMAL.table("How far a single score can be trusted.", [calibrated.conformal]),
            ],
        )
        for name, findings in found.items()
        if (calibrated := findings.calibration)
    ]
    return Section(
        key="calibration",
        heading="Calibration",
        parts=parts,
        note="A map from judge score to people’s is fitted on other questions than it is tried on: on the first "
        "sample, or in turns on four fifths of the same. A linear map leaves correlations as they are. Conformal "
        "intervals are around the recalibrated score of one answer; coverage is measured on answers that took no part.",
    )


_BINS = Columns[CalibrationBin](
    ("Judge (rounded)", lambda one: str(one.score)),
    ("n", lambda one: one.n),
    ("judge’s mean", lambda one: number(one.judge)),
    ("people’s mean", lambda one: measured(one.human, one.interval, one.undefined)),
)


def _reliability_table(found: Reliability) -> Table:
    error = f"{number(found.error)} ({interval(found.interval)})" if found.interval else number(found.error)
    caption = f"Expected calibration error {error} points; n = {found.n}, {found.failed} failed."
    return _BINS.table(caption, found.bins, folded=True)


def _errors(one: Recalibration, which: str) -> TableCell:
    errors = getattr(one, which)
    return TableCell(number(errors.mae if errors else None), title=one.undefined or "")


def _bias(one: Recalibration, which: str) -> str:
    errors = getattr(one, which)
    return number(errors.mean_error if errors else None)


def _change(one: Recalibration) -> TableCell:
    change = one.changes.get("mae")
    return measured(change.value, change.interval) if change else TableCell("–")


_MAPS = Columns[Recalibration](
    ("Map", lambda one: one.method),
    ("n", lambda one: one.n),
    ("fitted on", lambda one: one.fitted),
    ("MAE before", lambda one: _errors(one, "before")),
    ("after", lambda one: _errors(one, "after")),
    ("change", _change),
    ("mean error before", lambda one: _bias(one, "before")),
    ("after", lambda one: _bias(one, "after")),
    about=lambda one: one.mode,
)

_CONFORMAL = Columns[Conformal](
    ("Intervals of single scores", lambda one: f"{one.level:.0%} conformal".replace("%", " %")),
    ("n", lambda one: one.n),
    ("fitted on", lambda one: one.fitted),
    ("half width", lambda one: TableCell(f"± {number(one.half_width)}", title=one.undefined or "")),
    ("mean width on 1–10", lambda one: number(one.mean_width)),
    ("coverage", lambda one: TableCell(share(one.coverage), shares(one.interval))),
    about=lambda one: f"{one.method}, {one.mode}",
)


def corrected_section(found: Mapping[str, Findings]) -> Section | None:
    parts = [
        Part(
            heading=name,
            readings=[f"{answerer}: {one.reading}" for answerer, one in findings.corrected.items()]
            + ([findings.plan.reading] if findings.plan else []),
            tables=[_corrected_table(findings.corrected)] if findings.corrected else [],
        )
        for name, findings in found.items()
        if findings.corrected or findings.plan
    ]
    if not parts:
        return None
    return Section(
        key="corrected",
        heading="Corrected benchmark scores",
        parts=parts,
        note="Mean human score of each answerer out of few labels and many judge scores: prediction-powered inference "
        "(Angelopoulos et al. 2023, PPI++), valid however wrong the judge is if the labelled answers are a random "
        "draw. The judge decides only how wide the interval gets; “worth” is the number of labels that would do as "
        "well alone.",
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


def _corrected_table(found: Mapping[str, CorrectedMean]) -> Table:
    return _ANSWERERS.table("Mean human score, drawn from 1 to 10.", found.items(), axis=(1.0, 10.0), drawn=2)
