"""What an audit of scores found, and what became of a judge's, as sections of sentences and tables."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from critic.human_scored import BLIND
from critic.page import blocks
from critic.page.blocks import Bar, Columns, Part, Section, Table, TableCell, axis_of, bar, interval, number, share
from critic.stats.estimate import FEWEST_GROUPS, MANY_GROUPS, RESAMPLES, RESAMPLES_OF_MANY
from eval_agreement.measures.analysis import Findings, Line
from eval_agreement.measures.bias import BiasEffect, Offsets
from eval_agreement.measures.compare import MARGINS, Comparison, MetricDifference
from eval_agreement.measures.differences import TO_SEE, ModelDifference
from eval_agreement.measures.gate import Outcome
from eval_agreement.measures.image_grounding import Looking
from eval_agreement.measures.injection import Injection, VariantEffect
from eval_agreement.measures.ppi import CorrectedMean
from eval_agreement.measures.prediction_intervals import CONFORMAL_LEVEL, NARROW, TaskWidths
from eval_agreement.measures.savings import Savings
from eval_agreement.measures.two_judges import Change, Conversion, Converted
from eval_agreement.metrics import METRICS, Agreement
from eval_agreement.page.words import estimates, gate_sections, p_text, part_name, people_part, percent, points, section

MOST_UNFOLDED = 15
"""Longer tables open on demand."""


def sections(
    audits: Mapping[str, Findings],
    outcomes: Sequence[Outcome],
    attacked: Sequence[Injection],
    looks: Mapping[Path, Looking],
    saved: Savings | None,
) -> list[Section]:
    """All there is to say, in reading order."""
    return [
        *_agreement(audits),
        *gate_sections(outcomes),
        *_parts(audits),
        *_of_each("judges", audits, _compared),
        *section("people", [people_part(name, findings.beside) for name, findings in audits.items()]),
        *section("bias", _biases_of(audits)),
        *section("injection", map(_injection, attacked)),
        *_of_each("calibration", audits, _calibration),
        *_of_each("corrected", audits, _corrected),
        *section("savings", [_saved(saved)] if saved else []),
        *models_of(audits),
        *section("looking", [_looking(path, looking) for path, looking in looks.items()]),
    ]


Content = tuple[Sequence[str], Sequence[Table]]
"""Sentences and tables."""


def _of_each(key: str, audits: Mapping[str, Findings], say: Callable[[Findings], Content]) -> list[Section]:
    contents = {name: say(findings) for name, findings in audits.items()}
    return section(
        key, [Part(heading=name, readings=[*texts], tables=[*drawn]) for name, (texts, drawn) in contents.items()]
    )


def _error_bar(result: Agreement) -> Bar | None:
    return bar(result.mae, result.interval.get("mae"))


def _scorers(first: str, metrics: Iterable[str], models: Sequence[str] = ("judge", "other")) -> Columns[Line]:
    """The kinds `models` are coloured."""

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
        model=lambda line: line.name if line.kind in models else "",
    )


def _agreement(audits: Mapping[str, Findings]) -> list[Section]:
    axis = axis_of(_error_bar(line.result) for findings in audits.values() for line in findings.lines)
    columns = _scorers("Scores by", METRICS)
    parts = []
    for name, findings in audits.items():
        total = len(findings.sample.ids)
        extra = f", {findings.unlabelled} more without people's scores" if findings.unlabelled else ""
        caption = f"{total} answers, {share(findings.judge.n / total)} judged{extra}. MAE drawn from 0 to {axis[1]:g}."
        table = columns.table(caption, findings.lines, axis=axis)
        parts.append(Part(heading=name, tables=[table], readings=findings.sample.notes))
    return section(
        "agreement",
        parts,
        metrics=" ".join(metric.note for metric in METRICS.values() if metric.note),
        resamples=RESAMPLES,
        resamples_of_many=RESAMPLES_OF_MANY,
        many=MANY_GROUPS,
        fewest=FEWEST_GROUPS,
    )


def _parts(audits: Mapping[str, Findings]) -> list[Section]:
    results = [result for findings in audits.values() for values in findings.by.values() for result in values.values()]
    axis = axis_of(map(_error_bar, results))
    parts = []
    for name, findings in audits.items():
        tables = []
        for part, values in findings.by.items():
            columns = _scorers(
                part_name(part).capitalize(), ("mae", "pearson", "qwk"), ["judge"] * (part == "answerer")
            )
            caption = f"By {part_name(part)}, MAE drawn from 0 to {axis[1]:g}."
            lines = [Line("judge", value.replace("_", " "), "", result) for value, result in values.items()]
            collapsed = len(lines) > MOST_UNFOLDED
            tables.append(columns.table(caption, lines, axis=axis, collapsed=collapsed))
        parts.append(Part(heading=name, tables=tables, readings=[] if tables else ["No property has several values."]))
    return section("parts", parts)


def _compared(findings: Findings) -> Content:
    tables = []
    for pair in findings.comparisons:
        caption = f"{pair.first} less {pair.second}, {pair.n} answers ({pair.left_out} left out: not scored by both)."
        tables.append(_differences(caption, (pair.first, pair.second), pair.differences))
    return [_standing(pair) for pair in findings.comparisons], tables


def _standing(pair: Comparison) -> str:
    """Who is ahead where, in a sentence."""
    both = f"{pair.first} and {pair.second}"
    ahead: dict[str, list[str]] = {}
    for difference in pair.differences:
        if difference.better:
            ahead.setdefault(difference.better, []).append(METRICS[difference.metric].name)
    if not ahead:
        return f"No metric is shown to tell {both} apart on these {pair.n} answers (p corrected over metrics)."
    leads = [f"{name} is ahead of the other in {blocks.listed(metrics)}" for name, metrics in ahead.items()]
    return f"{'; '.join(leads)} ({both}, {pair.n} answers)."


_MARGIN = {None: "–", True: "{:g}", False: "not shown"}
"""Whether a judge is no worse than another but for a margin."""


def _differences(caption: str, names: tuple[str, str], differences: Sequence[MetricDifference]) -> Table:
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
    drawn = f"{caption} Drawn from {axis[0]:g} to {axis[1]:g}; for MAE, left of 0 is better, else right."
    return columns.table(drawn, differences, axis=axis)


def _biases_of(audits: Mapping[str, Findings]) -> Iterator[Part]:
    for name, findings in audits.items():
        for judge, biases in findings.biases.items():
            offsets = [effect for family in biases.offsets for effect in _strongest(family)]
            whole = _biases("Bias", lambda effect: effect.name).table("Biases of the whole.", biases.effects)
            yield Part(
                heading=f"{name}: {judge}" if len(findings.biases) > 1 else name,
                readings=[effect.reading for effect in (*biases.effects, *offsets)],
                tables=[whole, *map(_offsets_table, biases.offsets)],
            )


def _strongest(family: Offsets) -> list[BiasEffect]:
    """The label most favoured and the one least, where there is a sign of either."""
    shown = sorted(filter(_shows, family.effects), key=lambda effect: -(effect.value or 0.0))
    return shown[:1] + shown[1:][-1:]


def _shows(effect: BiasEffect) -> bool:
    return effect.p_value is not None and effect.p_value < 0.05


def _biases(of: str, name: Callable[[BiasEffect], str]) -> Columns[BiasEffect]:
    return Columns[BiasEffect](
        (of, lambda effect: name(effect).replace("_", " ")),
        ("value", lambda effect: points(effect, 2)),
        ("unit", lambda effect: effect.unit),
        ("p", lambda effect: p_text(effect.p_value)),
        ("n", lambda effect: effect.n),
        ("failed", lambda effect: effect.failed),
        ("noise", lambda effect: number(effect.noise_explains)),
        about=lambda effect: effect.about if effect.label is None else "",
        bar=lambda effect: bar(effect.value, effect.interval),
        strong=_shows,
        model=lambda effect: name(effect).replace("_", " ") if of == "Answerer" else "",
    )


def _offsets_table(family: Offsets) -> Table:
    caption = f"By {part_name(family.name)}: points against all others at equal human score."
    columns = _biases(part_name(family.name).capitalize(), lambda effect: effect.label or "")
    axis = axis_of(map(columns.bar, family.effects), centred=True)
    collapsed = len(family.effects) > MOST_UNFOLDED
    return columns.table(caption, family.effects, axis=axis, chart_column=2, collapsed=collapsed)


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


def _variants(caption: str, effects: Sequence[VariantEffect]) -> Table:
    return _VARIANTS.table(caption, effects, axis=axis_of(map(_VARIANTS.bar, effects), centred=True), chart_column=2)


def _injection(injection: Injection) -> Part:
    caption = (
        f"{injection.answers} answers; without attack {injection.judge} gives them {number(injection.clean.value)} on "
        f"average ({injection.answers - injection.clean.n} failed)."
    )
    return Part(heading=injection.judge, readings=[injection.reading], tables=[_variants(caption, injection.attacks)])


def _looking(path: Path, looking: Looking) -> Part:
    caption = f"{looking.answers} answers with images; the image reached the judge in {looking.reached}."
    tables = [_variants(caption, [looking.swap, looking.edit])]
    if looking.differences:
        tables.append(_differences("Agreement with people.", ("seeing", BLIND), looking.differences))
    return Part(heading=f"{looking.judge}, {path.stem}", readings=[looking.reading], tables=tables)


def _calibration(findings: Findings) -> Content:
    calibration, tables = findings.calibration, []
    if calibration.before and calibration.after and calibration.change:
        rows = [
            blocks.row("MAE before recalibration", number(calibration.before.mae)),
            blocks.row("after", number(calibration.after.mae)),
            blocks.row("change", points(calibration.change, 2)),
            blocks.row("mean error before", number(calibration.before.mean_error)),
            blocks.row("after", number(calibration.after.mean_error)),
        ]
        tables.append(Table(caption="Recalibration.", head=["", "value"], rows=rows))
    if not (widths := findings.widths):
        return calibration.readings, tables
    tables.append(_WIDTHS.table(f"{CONFORMAL_LEVEL:.0%} intervals of single scores.", widths.tasks))
    return [*calibration.readings, widths.reading], tables


_WIDTHS = Columns[TaskWidths](
    ("Task", lambda widths: widths.task.replace("_", " ")),
    ("n", lambda widths: widths.n),
    ("hold people’s score", lambda widths: percent(widths.coverage)),
    ("median width", lambda widths: number(widths.width, 1)),
    (f"at most {NARROW:g} wide", lambda widths: percent(widths.narrow)),
    strong=lambda widths: widths.task == "all",
)


_ANSWERERS = Columns[tuple[str, CorrectedMean]](
    ("Answerer", lambda pair: pair[0].replace("_", " ")),
    ("corrected", lambda pair: TableCell(number(pair[1].value), interval(pair[1].interval), pair[1].undefined or "")),
    ("labels alone", lambda pair: TableCell(number(pair[1].human_only), interval(pair[1].human_interval))),
    ("judge alone", lambda pair: number(pair[1].judge_only)),
    ("labels", lambda pair: pair[1].labelled),
    ("without", lambda pair: pair[1].unlabelled),
    ("worth", lambda pair: number(pair[1].effective, 0)),
    ("failed", lambda pair: pair[1].failed_labelled + pair[1].failed_unlabelled),
    about=lambda pair: pair[1].caution or "",
    bar=lambda pair: bar(pair[1].value, pair[1].interval),
    strong=lambda _: True,
    model=lambda pair: pair[0].replace("_", " "),
)


def _corrected(findings: Findings) -> Content:
    """The means by answerer, and the plan."""
    means, plan = findings.corrected, findings.plan
    readings = [f"{answerer}: {mean.reading}" for answerer, mean in means.items()]
    caption = "Mean human score, drawn from 1 to 10."
    table = _ANSWERERS.table(caption, means.items(), axis=(1.0, 10.0), chart_column=2)
    return readings + ([plan.reading] if plan else []), [table] if means else []


def _saved(saved: Savings) -> Part:
    lines = [saved.pooled, *sorted(saved.means, key=lambda saving: -saving.of_hundred)]
    rows = [blocks.row(saving.name.replace("_", " "), saving.labels, number(saving.worth, 0)) for saving in lines]
    table = Table(caption="Labels with the judge.", head=["Mean of", "labels", "worth"], rows=rows)
    return Part(readings=[saved.reading], tables=[table])


_MODELS = Columns[ModelDifference](
    ("Models", lambda line: f"{line.second} less {line.first}" + (f", {line.task}" if line.task else "")),
    ("labels", lambda line: line.n),
    ("questions", lambda line: line.questions),
    ("difference", lambda line: points(line, 2)),
    ("judge alone", lambda line: number(line.judge_only)),
    ("p (Holm)", lambda line: p_text(line.p_holm)),
    (f"labels to see {TO_SEE:g}", lambda line: number(line.needed, 0)),
    bar=lambda line: bar(line.value, line.interval),
    strong=lambda line: line.ahead is not None,
)


def models_of(audits: Mapping[str, Findings]) -> list[Section]:
    """Model against model, those told apart first."""
    return _of_each("models", audits, _models)


def _models(findings: Findings) -> Content:
    lines, apart = findings.models, [line for line in findings.models if line.ahead]
    pairs = sum(line.task is None for line in lines)
    shown = sum(line.task is None for line in apart)
    ordered = sorted(lines, key=lambda line: (line.task or "", line.ahead is None, -abs(line.value or 0)))
    axis = axis_of(map(_MODELS.bar, lines), centred=True)
    caption = f"People’s mean score, by labels and judge together. Drawn from {axis[0]:g} to {axis[1]:g}."
    table = _MODELS.table(caption, ordered, axis=axis, collapsed=len(lines) > MOST_UNFOLDED)
    return [f"{shown} of {pairs} pairs of models are told apart."] if lines else [], [table]


_CONVERTED = Columns[Converted](
    ("Mean of", lambda line: line.name),
    ("n", lambda line: line.mean.n),
    ("before", lambda line: number(line.score)),
    ("converted", lambda line: points(line.mean, 2)),
    ("rank", lambda line: "–" if line.rank is None else "{}–{}".format(*line.rank)),
    bar=lambda line: bar(line.mean.value, line.mean.interval),
)


def change_sections(name: str, change: Change) -> list[Section]:
    parts = {"of the mean": change.total, "by the judge": change.judge, "by the model": change.model}
    table = estimates("Mean score now less then, in points.", parts, lambda part: points(part, 2))
    return section("since", [Part(heading=name, readings=[change.reading], tables=[table])])


def exchange_sections(conversions: list[Conversion]) -> list[Section]:
    parts = []
    for conversion in conversions:
        by = f"by {conversion.anchors} answers that both scored"
        caption = f"{conversion.source}'s scores on {conversion.target}'s scale, {by}."
        table = _CONVERTED.table(caption, conversion.lines, axis=(1.0, 10.0), chart_column=3)
        parts.append(Part(heading=f"{conversion.source} to {conversion.target}", tables=[table]))
    return section("exchange", parts)
