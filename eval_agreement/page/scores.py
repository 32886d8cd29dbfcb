"""Build the page's parts on an audit of scores, on a comparison of two judges, and on attacks and image arms.

`draw_…` functions take the finding on a sample, and the findings on all samples, and yield the sample's parts. Their
measures are listed in `eval_agreement/measure_tables.py`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from critic.human_scored import BLIND
from critic.page import blocks
from critic.page.blocks import Bar, Columns, Part, Section, Table, TableCell, axis_of, bar, interval, number
from eval_agreement.measures.attacks import Injection, Looking, VariantEffect
from eval_agreement.measures.bias import BiasEffect, Biases, Offsets
from eval_agreement.measures.calibration import CONFORMAL_LEVEL, Calibration, TaskWidths, Widths
from eval_agreement.measures.compare import MARGINS, Comparison, MetricDifference
from eval_agreement.measures.ppi import TO_SEE, CorrectedMean, LabelPlan, ModelDifference, Savings
from eval_agreement.measures.raters import BesideRaters
from eval_agreement.measures.scorers import Breakdown, Line, Scorers
from eval_agreement.measures.two_judges import Change, Conversion, Converted
from eval_agreement.metrics import METRICS, Agreement
from eval_agreement.page.words import build_sections, estimates, p_text, part_name, people_parts, percent, points
from eval_agreement.sample import NARROW
from eval_agreement.sentences import say

MOST_UNFOLDED = 15
"""Largest number of rows of a table that is not folded."""


def _error_bar(result: Agreement) -> Bar | None:
    """Build the bar of the mean absolute error."""
    return bar(result.mae, result.interval.get("mae"))


def _scorer_columns(first: str, metrics: Iterable[str], coloured: Sequence[str] = ("judge", "other")) -> Columns[Line]:
    """Build the columns of a table of scorers. Scorers of the kinds in `coloured` have a colour on the page.

    `first`: heading of the first column. `metrics`: names of the metrics to show.
    """

    def column(metric: str) -> tuple[str, Callable[[Line], TableCell]]:
        return METRICS[metric].name, lambda line: points(line.result.estimates[metric])

    return Columns[Line](
        (first, lambda line: line.name),
        ("n", lambda line: line.result.n),
        ("failed", lambda line: line.result.failed),
        *map(column, metrics),
        about=lambda line: line.about,
        bar=lambda line: _error_bar(line.result),
        strong=lambda line: line.kind == "judge",
        model=lambda line: line.name if line.kind in coloured else "",
    )


def draw_scorers(scorers: Scorers, of_samples: Sequence[Scorers]) -> Iterator[Part]:
    """Build the part on the agreement of every scorer with people."""
    # One axis for all samples, so that their bars can be compared.
    axis = axis_of(_error_bar(line.result) for of_sample in of_samples for line in of_sample.lines)
    caption = say("scores_by", scorers=scorers, end=axis[1])
    table = _scorer_columns("Scores by", METRICS).table(caption, scorers.lines, axis=axis)
    yield Part(tables=[table], readings=scorers.notes)


def draw_breakdown(breakdown: Breakdown, of_samples: Sequence[Breakdown]) -> Iterator[Part]:
    """Build the part on the judge's agreement with people for each value of each property, such as each language."""
    every_part = [values for of_sample in of_samples for values in of_sample.values()]
    axis = axis_of(_error_bar(result) for values in every_part for result in values.values())
    tables = []
    for part, values in breakdown.items():
        # Only answerers are models, which have one colour on the whole page.
        coloured = ["judge"] if part == "answerer" else []
        columns = _scorer_columns(part_name(part).capitalize(), ("mae", "pearson", "qwk"), coloured=coloured)
        lines = [Line("judge", value.replace("_", " "), "", result) for value, result in values.items()]
        caption = f"By {part_name(part)}, MAE drawn from 0 to {axis[1]:g}."
        tables.append(columns.table(caption, lines, axis=axis, collapsed=len(lines) > MOST_UNFOLDED))
    yield Part(tables=tables, readings=[] if tables else ["No property has several values."])


def draw_comparisons(comparisons: Sequence[Comparison], _: object) -> Iterator[Part]:
    """Build the part on each pair of judges: how their agreement with people differs."""
    for pair in comparisons:
        caption = f"{pair.first} less {pair.second}, {pair.n} answers ({pair.left_out} left out: not scored by both)."
        table = differences_table(caption, (pair.first, pair.second), pair.differences)
        ahead: dict[str, list[str]] = {}
        for difference in pair.differences:
            if difference.better:
                ahead.setdefault(difference.better, []).append(METRICS[difference.metric].name)
        yield Part(readings=[say("comparison", pair=pair, ahead=ahead)], tables=[table])


_MARGIN = {None: "–", True: "{:g}", False: "not shown"}
"""Text of a cell on the margin, by `MetricDifference.no_worse`; {:g} is the margin."""


def differences_table(caption: str, names: tuple[str, str], differences: Sequence[MetricDifference]) -> Table:
    """Build a table of the metrics of two scorers (`names`) and their differences."""
    columns = Columns[MetricDifference](
        ("Metric", lambda line: METRICS[line.metric].name),
        (names[0], lambda line: number(line.first, 3)),
        (names[1], lambda line: number(line.second, 3)),
        ("difference", points),
        ("p", lambda line: p_text(line.p_value)),
        ("p (Holm)", lambda line: p_text(line.p_holm)),
        ("no worse by", lambda line: _MARGIN[line.no_worse].format(MARGINS.get(line.metric))),
        bar=lambda line: bar(line.value, line.interval),
        strong=lambda line: line.better is not None,
    )
    axis = axis_of(map(columns.bar, differences), centred=True)
    # Of all metrics only the error is better if it is lower.
    drawn = f"{caption} Drawn from {axis[0]:g} to {axis[1]:g}; for MAE, left of 0 is better, else right."
    return columns.table(drawn, differences, axis=axis)


def draw_people(beside: BesideRaters, _: object) -> Iterator[Part]:
    """Build the parts that compare the judge with single raters."""
    yield from people_parts("", beside)


def draw_biases(biases_of: Mapping[str, Biases], _: object) -> Iterator[Part]:
    """Build the parts on the biases of each judge, one per judge."""
    for judge, biases in biases_of.items():
        # Tables list every label; sentences name only the two that stand out.
        offsets = [effect for family in biases.offsets for effect in _strongest(family)]
        overall = _bias_columns("Bias", lambda effect: effect.name).table("Biases of the whole.", biases.effects)
        yield Part(
            heading=judge if len(biases_of) > 1 else "",
            readings=[effect.reading for effect in (*biases.effects, *offsets)],
            tables=[overall, *map(_offsets_table, biases.offsets)],
        )


def _strongest(family: Offsets) -> list[BiasEffect]:
    """Return the effects of the most and the least favoured label, such as a language, if significant; at most two."""
    shown = sorted(filter(_is_shown, family.effects), key=lambda effect: -(effect.value or 0.0))
    return shown[:1] + shown[1:][-1:]


def _is_shown(effect: BiasEffect) -> bool:
    return effect.p_value is not None and effect.p_value < 0.05


def _bias_columns(first: str, name: Callable[[BiasEffect], str]) -> Columns[BiasEffect]:
    """Build the columns of a table of biases.

    `first`: heading of the first column. `name`: function that names a row.
    """
    return Columns[BiasEffect](
        (first, lambda effect: name(effect).replace("_", " ")),
        ("value", lambda effect: points(effect, 2)),
        ("unit", lambda effect: effect.unit),
        ("p", lambda effect: p_text(effect.p_value)),
        ("n", lambda effect: effect.n),
        ("failed", lambda effect: effect.failed),
        ("noise", lambda effect: number(effect.noise_explains)),
        about=lambda effect: effect.about if effect.label is None else "",
        bar=lambda effect: bar(effect.value, effect.interval),
        strong=_is_shown,
        model=lambda effect: name(effect).replace("_", " ") if first == "Answerer" else "",
    )


def _offsets_table(family: Offsets) -> Table:
    caption = f"By {part_name(family.name)}: points against all others at equal human score."
    columns = _bias_columns(part_name(family.name).capitalize(), lambda effect: effect.label or "")
    axis = axis_of(map(columns.bar, family.effects), centred=True)
    collapsed = len(family.effects) > MOST_UNFOLDED
    return columns.table(caption, family.effects, axis=axis, chart_column=2, collapsed=collapsed)


def draw_calibration(calibration: Calibration, _: object) -> Iterator[Part]:
    """Build the part on the judge's errors with and without recalibration."""
    yield Part(readings=calibration.readings)
    if calibration.before and calibration.after and calibration.change:
        rows = [
            blocks.row("MAE before recalibration", number(calibration.before.mae)),
            blocks.row("after", number(calibration.after.mae)),
            blocks.row("change", points(calibration.change, 2)),
            blocks.row("mean error before", number(calibration.before.mean_error)),
            blocks.row("after", number(calibration.after.mean_error)),
        ]
        yield Part(tables=[Table(caption="Recalibration.", head=["", "value"], rows=rows)])


def draw_intervals(intervals: tuple[Widths | None, Any], _: object) -> Iterator[Part]:
    """Build the part on prediction intervals of single scores by task."""
    if widths := intervals[0]:
        table = _WIDTHS.table(f"{CONFORMAL_LEVEL:.0%} intervals of single scores.", widths.tasks)
        yield Part(readings=[widths.reading], tables=[table])


_WIDTHS = Columns[TaskWidths](
    ("Task", lambda widths: widths.task.replace("_", " ") + " (intervals of all tasks)" * widths.borrowed),
    ("n", lambda widths: widths.n),
    ("hold people’s score", lambda widths: percent(widths.coverage)),
    ("median width", lambda widths: number(widths.width, 1)),
    (f"at most {NARROW:g} wide", lambda widths: percent(widths.narrow)),
    strong=lambda widths: widths.task == "all",
)


_ANSWERERS = Columns[tuple[str, CorrectedMean]](
    ("Answerer", lambda pair: pair[0].replace("_", " ")),
    ("corrected", lambda pair: TableCell(number(pair[1].value), interval(pair[1].interval), pair[1].undefined or "")),
    ("labels only", lambda pair: TableCell(number(pair[1].human_only), interval(pair[1].human_interval))),
    ("judge only", lambda pair: number(pair[1].judge_only)),
    ("labels", lambda pair: pair[1].labelled),
    ("without", lambda pair: pair[1].unlabelled),
    ("worth", lambda pair: number(pair[1].effective, 0)),
    ("failed", lambda pair: pair[1].failed_labelled + pair[1].failed_unlabelled),
    about=lambda pair: pair[1].caution or "",
    bar=lambda pair: bar(pair[1].value, pair[1].interval),
    strong=lambda _: True,
    model=lambda pair: pair[0].replace("_", " "),
)


def draw_corrected_means(means: Mapping[str, CorrectedMean], _: object) -> Iterator[Part]:
    """Build the part on the corrected mean of each answerer."""
    caption = "Mean human score, drawn from 1 to 10."
    table = _ANSWERERS.table(caption, means.items(), axis=(1.0, 10.0), chart_column=2)
    readings = [f"{answerer}: {mean.reading}" for answerer, mean in means.items()]
    yield Part(readings=readings, tables=[table] if means else [])


def draw_plan(plan: LabelPlan | None, _: object) -> Iterator[Part]:
    """Build the part on the number of labels to plan, if `--target-half-width` was given."""
    if plan:
        yield Part(readings=[plan.reading])


def savings_part(savings: Savings) -> Part:
    """Build the part on savings: the pooled saving, then the means, the largest saving first."""
    means = sorted(savings.means, key=lambda saving: -saving.of_hundred)
    rows = []
    for saving in (savings.pooled, *means):
        rows.append(blocks.row(saving.name.replace("_", " "), saving.labels, number(saving.worth, 0)))
    table = Table(caption="Labels with the judge.", head=["Mean of", "labels", "worth"], rows=rows)
    return Part(readings=[savings.reading], tables=[table])


_MODELS = Columns[ModelDifference](
    ("Models", lambda line: f"{line.second} less {line.first}" + (f", {line.task}" if line.task else "")),
    ("labels", lambda line: line.n),
    ("questions", lambda line: line.questions),
    ("difference", lambda line: points(line, 2)),
    ("judge only", lambda line: number(line.judge_only)),
    ("p (Holm)", lambda line: p_text(line.p_holm)),
    (f"labels to see {TO_SEE:g}", lambda line: number(line.needed, 0)),
    bar=lambda line: bar(line.value, line.interval),
    strong=lambda line: line.ahead is not None,
)


def draw_models(lines: Sequence[ModelDifference], _: object) -> Iterator[Part]:
    """Build the part on the differences of every pair of models. Significant differences come first."""
    # Differences by task repeat the pairs, and are not counted again.
    overall = [line for line in lines if line.task is None]
    told_apart = sum(line.ahead is not None for line in overall)
    ordered = sorted(lines, key=lambda line: (line.task or "", line.ahead is None, -abs(line.value or 0)))
    axis = axis_of(map(_MODELS.bar, lines), centred=True)
    caption = f"People’s mean score, by labels and judge together. Drawn from {axis[0]:g} to {axis[1]:g}."
    table = _MODELS.table(caption, ordered, axis=axis, collapsed=len(lines) > MOST_UNFOLDED)
    reading = f"{told_apart} of {len(overall)} pairs of models are told apart."
    yield Part(readings=[reading] if lines else [], tables=[table])


_CONVERTED = Columns[Converted](
    ("Mean of", lambda line: line.name),
    ("n", lambda line: line.mean.n),
    ("before", lambda line: number(line.score)),
    ("converted", lambda line: points(line.mean, 2)),
    ("rank", lambda line: "–" if line.rank is None else "{}–{}".format(*line.rank)),
    bar=lambda line: bar(line.mean.value, line.mean.interval),
)


def change_sections(name: str, change: Change) -> list[Section]:
    """Build the section on how a judge's scores changed between two times."""
    rest = "by the model" if change.shared or change.model.value is None else "by the model or the questions"
    parts = {"of the mean": change.total, "by the judge": change.judge, rest: change.model}
    table = estimates("Mean score now less then, in points.", parts, lambda part: points(part, 2))
    return build_sections({"since": [Part(heading=name, readings=[change.reading], tables=[table])]})


def exchange_sections(conversions: list[Conversion]) -> list[Section]:
    """Build the section on scores converted to another judge's scale."""
    parts = []
    for conversion in conversions:
        by = f"by {conversion.anchors} answers that both scored"
        caption = f"{conversion.source}'s scores on {conversion.target}'s scale, {by}."
        table = _CONVERTED.table(caption, conversion.lines, axis=(1.0, 10.0), chart_column=3)
        heading = f"{conversion.source} to {conversion.target}"
        parts.append(Part(heading=heading, readings=conversion.cautions, tables=[table]))
    return build_sections({"exchange": parts})


_VARIANTS = Columns[VariantEffect](
    ("Variant", lambda effect: effect.name),
    ("change", lambda effect: points(effect.change, 2)),
    ("moved", lambda effect: percent(effect.moved)),
    ("denied", lambda effect: percent(effect.denied)),
    ("n", lambda effect: effect.change.n),
    ("failed", lambda effect: effect.failed),
    about=lambda effect: effect.aim,
    bar=lambda effect: bar(effect.change.value, effect.change.interval),
)


def _variants_table(caption: str, effects: Sequence[VariantEffect]) -> Table:
    return _VARIANTS.table(caption, effects, axis=axis_of(map(_VARIANTS.bar, effects), centred=True), chart_column=2)


def injection_part(injection: Injection) -> Part:
    """Build the part on the attacks in one file of judged attacked answers."""
    table = _variants_table(say("without_attack", injection=injection), injection.attacks)
    return Part(heading=injection.judge, readings=[injection.reading], tables=[table])


def looking_part(path: Path, looking: Looking) -> Part:
    """Build the part on whether a judge looks at images. `path`: the file of judged arms, for the heading."""
    caption = f"{looking.answers} answers with images; the image reached the judge in {looking.reached}."
    tables = [_variants_table(caption, [looking.swap, looking.edit])]
    # Without human scores there is no agreement to compare.
    if looking.differences:
        tables.append(differences_table("Agreement with people.", ("seeing", BLIND), looking.differences))
    return Part(heading=f"{looking.judge}, {path.stem}", readings=[looking.reading], tables=tables)
