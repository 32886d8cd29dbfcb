"""What an audit of scores found, as sections of sentences and tables."""

from collections.abc import Mapping, Sequence

from critic.counting.resampling import (
    FEWEST_GROUPS,
    FEWEST_TO_DECIDE,
    MANY_GROUPS,
    RESAMPLES,
    RESAMPLES_OF_MANY,
    Interval,
)
from eval_agreement.analysis import Findings, Line
from eval_agreement.bias import Effect, Offsets
from eval_agreement.calibration import Bin as CalibrationBin
from eval_agreement.calibration import Change, Conformal, Recalibration, Reliability
from eval_agreement.compare import Comparison
from eval_agreement.corrected import CorrectedMean
from eval_agreement.gate import Outcome
from eval_agreement.injection import Injection
from eval_agreement.metrics import METRICS, NAMES, Agreement
from eval_agreement.page.blocks import (
    Bar,
    Block,
    Cell,
    Row,
    Section,
    Table,
    bar,
    gate_sections,
    interval,
    listed,
    number,
    p_text,
    part_name,
    share,
    shares,
    span,
)
from eval_agreement.raters import AlternativeAnnotator, RaterAgreement

MOST_VALUES = 30
"""Values of one property that are shown; summary.json has them all."""

RANKS_WELL = 0.5
"""A Pearson correlation that is shown to be as high says that a judge's order is worth keeping."""

MOST_UNFOLDED = 15
"""Longer tables open on demand."""


def _metric(result: Agreement, metric: str) -> Cell:
    value = getattr(result, metric)
    return Cell(number(value), interval(result.interval.get(metric)), result.undefined.get(metric, ""))


def sections(
    found: Mapping[str, Findings], outcomes: Sequence[Outcome], attacked: Sequence[Injection]
) -> list[Section]:
    """All there is to say, in reading order."""
    made = [
        agreement_section(found),
        *gate_sections(outcomes),
        parts_section(found),
        comparison_section(found),
        people_section(found),
        bias_section(found),
        injection_section(attacked),
        calibration_section(found),
        corrected_section(found),
    ]
    return [section for section in made if section]


def agreement_section(found: Mapping[str, Findings]) -> Section:
    axis = span(
        bar(line.result.mae, line.result.interval.get("mae")) for findings in found.values() for line in findings.lines
    )
    blocks = []
    for name, findings in found.items():
        total = len(findings.sample.ids)
        rows = [_line_row(line) for line in findings.lines]
        extra = f", {findings.unlabelled} more without people's scores" if findings.unlabelled else ""
        caption = f"{total} answers, {share(findings.judge.n / total)} judged{extra}. MAE drawn from 0 to {axis[1]:g}."
        table = Table(caption=caption, head=["Scores by", "n", "failed", *NAMES.values()], rows=rows, axis=axis)
        blocks.append(Block(sample=name, tables=[table], readings=findings.sample.notes))
    counts_pairs = any(findings.of("people") for findings in found.values())
    return Section(
        key="agreement",
        heading="Agreement with people",
        blocks=blocks,
        note="MAE: mean distance in points, lower is better. Correlations: −1 to 1, Kendall is tau-b. Fuzzy and "
        "strict: share of answers in the same range, {1–2, 3–5, 6–8, 9–10} and {1, 2, 3, 4–5, 6, 7–8, 9–10}; scores "
        "between whole numbers are rounded half up first. Kappa: quadratic weights. Small print: 95 % intervals, "
        f"whole questions resampled {RESAMPLES} times ({RESAMPLES_OF_MANY} above {MANY_GROUPS:,} questions); none "
        f"below {FEWEST_GROUPS}. A dash is a number that is not defined"
        + ("; “people” counts (answer, rater) pairs." if counts_pairs else "."),
    )


def _line_row(line: Line) -> Row:
    result = line.result
    return Row(
        name=line.name,
        about=line.about or {"judge": "the judge under audit", "other": "another judge"}.get(line.kind, ""),
        cells=[Cell(str(result.n)), Cell(str(result.failed)), *(_metric(result, metric) for metric in METRICS)],
        bar=bar(result.mae, result.interval.get("mae")),
        strong=line.kind == "judge",
    )


def parts_section(found: Mapping[str, Findings]) -> Section:
    shown = [result for findings in found.values() for values in findings.by.values() for result in values.values()]
    axis = span(bar(result.mae, result.interval.get("mae")) for result in shown)
    blocks = []
    for name, findings in found.items():
        tables = [_part_table(part, values, axis) for part, values in findings.by.items()]
        blocks.append(Block(sample=name, tables=tables, readings=[] if tables else ["No property has several values."]))
    return Section(key="parts", heading="Agreement by kind of answer", blocks=blocks)


def _part_table(part: str, values: Mapping[str, Agreement], axis: tuple[float, float]) -> Table:
    chosen = list(values.items())[:MOST_VALUES]
    left = f" The {MOST_VALUES} commonest of {len(values)}." if len(values) > MOST_VALUES else ""
    return Table(
        caption=f"By {part_name(part)}, MAE drawn from 0 to {axis[1]:g}.{left}",
        head=[part_name(part).capitalize(), "n", "failed", "MAE", "Pearson", "kappa"],
        rows=[
            Row(
                name=name.replace("_", " "),
                cells=[
                    Cell(str(result.n)),
                    Cell(str(result.failed)),
                    *(_metric(result, metric) for metric in ("mae", "pearson", "qwk")),
                ],
                bar=bar(result.mae, result.interval.get("mae")),
                strong=True,
            )
            for name, result in chosen
        ],
        axis=axis,
        folded=len(chosen) > MOST_UNFOLDED,
    )


def comparison_section(found: Mapping[str, Findings]) -> Section | None:
    if not any(findings.comparisons for findings in found.values()):
        return None
    return Section(
        key="judges",
        heading="Judge against judge",
        blocks=[
            Block(
                sample=name,
                readings=[_standing(pair) for pair in findings.comparisons]
                + [f"{line.reading}." for pair in findings.comparisons for line in pair.non_inferiority],
                tables=[_comparison_table(pair) for pair in findings.comparisons],
            )
            for name, findings in found.items()
        ],
        note="Differences on the answers both judges scored, from the same resamples; p is two-sided, and in the last "
        "column held against all metrics of the pair (Holm). “At least as good” holds when the whole interval does.",
    )


def _standing(pair: Comparison) -> str:
    """Who is ahead where, in a sentence."""
    both = f"{pair.first} and {pair.second}"
    ahead: dict[str, list[str]] = {}
    for difference in pair.differences:
        if difference.better:
            ahead.setdefault(difference.better, []).append(NAMES[difference.metric])
    if not ahead:
        return f"No metric is shown to tell {both} apart on these {pair.n} answers (p corrected over metrics)."
    return "; ".join(f"{name} is ahead of the other in {listed(metrics)}" for name, metrics in ahead.items()) + (
        f" ({both}, {pair.n} answers)."
    )


def _comparison_table(pair: Comparison) -> Table:
    bars = [Bar(line.value, line.interval) for line in pair.differences]
    axis = span(bars, centred=True)
    return Table(
        caption=f"{pair.first} less {pair.second}, {pair.n} answers ({pair.left_out} left out: not scored by both). "
        f"Drawn from {axis[0]:g} to {axis[1]:g}; for MAE, left of 0 is better, else right.",
        head=["Metric", pair.first, pair.second, "difference", "p", "p (Holm)"],
        rows=[
            Row(
                name=NAMES[line.metric],
                cells=[
                    Cell(number(line.first)),
                    Cell(number(line.second)),
                    Cell(number(line.value), interval(line.interval)),
                    Cell(p_text(line.p)),
                    Cell(p_text(line.p_holm)),
                ],
                bar=bar,
                strong=line.better is not None,
            )
            for line, bar in zip(pair.differences, bars, strict=True)
        ],
        axis=axis,
    )


def people_section(found: Mapping[str, Findings]) -> Section | None:
    shown = {name: findings for name, findings in found.items() if findings.raters}
    if not shown:
        return None
    blocks = [
        Block(
            sample=name,
            readings=[findings.replaces.reading] if findings.replaces else [],
            tables=[*_alpha_tables(findings.raters), *_rater_tables(findings.replaces)],
        )
        for name, findings in shown.items()
    ]
    return Section(
        key="people",
        heading="May it take a person’s place?",
        blocks=blocks,
        note="Krippendorff’s alpha: 1 is perfect, 0 chance; with the judge as one more rater it falls if the judge is "
        "the odd one out. Alternative annotator test (Calderon, Reichart and Dror 2025): each rater is left out in "
        "turn, and judge and rater are compared in how close they come to the other raters; the judge passes when it "
        "is shown to do as well, but for epsilon, against at least half of the raters.",
    )


def _alpha_tables(found: RaterAgreement | None) -> list[Table]:
    if found is None:
        return []
    estimates = {"people": found.people, "people and the judge": found.with_judge, "difference": found.difference}
    rows = [
        Row(name=name, cells=[Cell(number(one.value), interval(one.interval), one.undefined or "")])
        for name, one in estimates.items()
        if one
    ]
    caption = (
        f"Krippendorff’s alpha ({found.level}): {found.items} answers, {found.raters} raters, {found.ratings} "
        f"ratings; left out: {found.single} answers with one rating, {found.failed} the judge failed on."
    )
    return [Table(caption=caption, head=["Raters", "alpha"], rows=rows)]


def _rater_tables(found: AlternativeAnnotator | None) -> list[Table]:
    if found is None or not found.lines:
        return []
    rows = [
        Row(
            name=line.rater,
            cells=[
                Cell(str(line.n)),
                Cell(share(line.judge_advantage)),
                Cell(share(line.rater_advantage)),
                Cell(p_text(line.p)),
                Cell("yes" if line.rejected else "no"),
            ],
            strong=line.rejected,
        )
        for line in found.lines
    ]
    head = ["Rater", "n", "judge as close", "rater as close", "p", "judge does as well"]
    rates = f"winning rate {number(found.omega, 2)}, average advantage probability {number(found.rho, 2)}"
    caption = f"Alternative annotator test, epsilon {found.epsilon:g}: {rates}. Left out: {found.left_out} raters."
    return [Table(caption=caption, head=head, rows=rows[:MOST_VALUES])]


def bias_section(found: Mapping[str, Findings]) -> Section | None:
    blocks = []
    for name, findings in found.items():
        for judge, biases in findings.biases.items():
            offsets = [effect for family in biases.offsets for effect in _strongest(family)]
            readings = [effect.reading for effect in (*biases.effects, *offsets)]
            tables = [_effects_table(biases.effects), *(_offsets_table(family) for family in biases.offsets)]
            title = f"{name}: {judge}" if len(findings.biases) > 1 else name
            blocks.append(Block(sample=title, readings=readings, tables=tables))
    return Section(
        key="bias",
        heading="Bias",
        blocks=blocks,
        note="Offsets are in points at equal human score, one against all others; their p is held against the whole "
        "family (Holm). “Noise” says how noisy people’s scores would have to be (share of their variance that is not "
        "noise) to explain the whole effect without any bias of the judge.",
    )


def _strongest(family: Offsets) -> list[Effect]:
    """The label most favoured and the one least, where there is a sign of either."""
    shown = sorted((effect for effect in family.effects if _shows(effect)), key=lambda effect: effect.value or 0.0)
    return shown if len(shown) < 2 else [shown[-1], shown[0]]


def _shows(effect: Effect) -> bool:
    return effect.p is not None and effect.p < 0.05


def _effects_table(effects: Sequence[Effect]) -> Table:
    rows = [_effect_row(effect.name.replace("_", " "), effect) for effect in effects]
    return Table(caption="Biases of the whole.", head=["Bias", *_EFFECT_HEAD], rows=rows)


def _offsets_table(family: Offsets) -> Table:
    shown = family.effects
    bars = [bar(effect.value, effect.interval) for effect in shown]
    axis = span(bars, centred=True)
    rows = [
        _effect_row((effect.label or "").replace("_", " "), effect, drawn)
        for effect, drawn in zip(shown, bars, strict=True)
    ]
    left = f" {family.left_out} rarer ones are left out." if family.left_out else ""
    caption = f"By {part_name(family.name)}: points against all others at equal human score.{left}"
    head = [part_name(family.name).capitalize(), *_EFFECT_HEAD]
    return Table(caption=caption, head=head, rows=rows, axis=axis, drawn=2, folded=len(rows) > MOST_UNFOLDED)


_EFFECT_HEAD = ["value", "unit", "neutral", "p", "n", "failed", "noise"]


def _effect_row(name: str, effect: Effect, drawn: Bar | None = None) -> Row:
    cells = [
        Cell(number(effect.value, 2), interval(effect.interval), effect.undefined or ""),
        Cell(effect.unit),
        Cell(f"{effect.neutral:g}"),
        Cell(p_text(effect.p)),
        Cell(str(effect.n)),
        Cell(str(effect.failed)),
        Cell(number(effect.noise_explains, 2)),
    ]
    return Row(
        name=name, about=effect.about if effect.label is None else "", cells=cells, bar=drawn, strong=_shows(effect)
    )


def injection_section(attacked: Sequence[Injection]) -> Section | None:
    if not attacked:
        return None
    return Section(
        key="injection",
        heading="Can an answer raise its own score?",
        blocks=[_injection_block(found) for found in attacked],
        note="Attacks put into answers that people scored low, judged with and without by the same judge. Inflation: "
        "attacked less clean score, in points; net: less what harmless padding does. Raised: answers that gain as "
        "much as the reading says. Denied: answers left without a score.",
    )


def _injection_block(found: Injection) -> Block:
    effects = [*([found.control] if found.control else []), *found.attacks, found.overall]
    bars = [bar(effect.inflation.value, effect.inflation.interval) for effect in effects]
    rows = [
        Row(
            name=effect.name,
            about=effect.aim,
            cells=[
                Cell(number(effect.inflation.value, 2), interval(effect.inflation.interval)),
                Cell(number(effect.net.value, 2), interval(effect.net.interval)),
                Cell(share(effect.raised.value), shares(effect.raised.interval)),
                Cell(share(effect.denied.value), shares(effect.denied.interval)),
                Cell(str(effect.n)),
                Cell(str(effect.failed)),
            ],
            bar=drawn,
            strong=effect is found.overall,
        )
        for effect, drawn in zip(effects, bars, strict=True)
    ]
    caption = (
        f"{found.answers} answers; without attack {found.judge} gives them {number(found.clean.mean.value, 2)} on "
        f"average ({found.clean.failed} failed)."
    )
    head = ["Attack", "inflation", "net", "raised", "denied", "n", "failed"]
    table = Table(caption=caption, head=head, rows=rows, axis=span(bars, centred=True), drawn=2)
    return Block(sample=found.judge, readings=[found.reading], tables=[table])


def calibration_section(found: Mapping[str, Findings]) -> Section | None:
    blocks = [
        Block(
            sample=name,
            readings=[
                calibrated.reliability.reading,
                *(one.reading for one in calibrated.maps),
                calibrated.conformal.reading,
            ],
            tables=[
                _reliability_table(calibrated.reliability),
                _maps_table(calibrated.maps),
                _conformal_table(calibrated.conformal),
            ],
        )
        for name, findings in found.items()
        if (calibrated := findings.calibration)
    ]
    return Section(
        key="calibration",
        heading="Calibration",
        blocks=blocks,
        note="A map from judge score to people’s is fitted on other questions than it is tried on: on the first "
        "sample, or in turns on four fifths of the same. A linear map leaves correlations as they are. Conformal "
        "intervals are around the recalibrated score of one answer; coverage is measured on answers that took no part.",
    )


def _reliability_table(found: Reliability) -> Table:
    rows = [
        Row(name=str(one.score), cells=[Cell(str(one.n)), Cell(number(one.judge, 2)), _people_cell(one.human, one)])
        for one in found.bins
    ]
    error = f"{number(found.error, 2)} ({interval(found.interval)})" if found.interval else number(found.error, 2)
    caption = f"Expected calibration error {error} points; n = {found.n}, {found.failed} failed."
    head = ["Judge (rounded)", "n", "judge’s mean", "people’s mean"]
    return Table(caption=caption, head=head, rows=rows, folded=True)


def _people_cell(value: float, one: CalibrationBin) -> Cell:
    return Cell(number(value, 2), interval(one.interval), one.undefined or "")


def _maps_table(maps: Sequence[Recalibration]) -> Table:
    rows = []
    for one in maps:
        before, after = one.before, one.after
        cells = [
            Cell(str(one.n)),
            Cell(str(one.fitted)),
            *(Cell(number(errors.mae if errors else None, 2), title=one.undefined or "") for errors in (before, after)),
            _change_cell(one.changes.get("mae")),
            *(Cell(number(errors.mean_error if errors else None, 2)) for errors in (before, after)),
        ]
        rows.append(Row(name=one.method, about=one.mode, cells=cells))
    head = ["Map", "n", "fitted on", "MAE before", "after", "change", "mean error before", "after"]
    return Table(caption="Recalibration.", head=head, rows=rows)


def _change_cell(change: Change | None) -> Cell:
    return Cell(number(change.value, 2), interval(change.interval)) if change else Cell("–")


def _conformal_table(found: Conformal) -> Table:
    cells = [
        Cell(str(found.n)),
        Cell(str(found.fitted)),
        Cell(f"± {number(found.half_width, 2)}", title=found.undefined or ""),
        Cell(number(found.mean_width, 2)),
        Cell(share(found.coverage), shares(found.interval)),
    ]
    head = ["Intervals of single scores", "n", "fitted on", "half width", "mean width on 1–10", "coverage"]
    row = Row(
        name=f"{found.level:.0%} conformal".replace("%", " %"), about=f"{found.method}, {found.mode}", cells=cells
    )
    return Table(caption="How far a single score can be trusted.", head=head, rows=[row])


def corrected_section(found: Mapping[str, Findings]) -> Section | None:
    blocks = [
        Block(
            sample=name,
            readings=[f"{answerer}: {one.reading}" for answerer, one in findings.corrected.items()]
            + ([findings.plan.reading] if findings.plan else []),
            tables=[_corrected_table(findings.corrected)] if findings.corrected else [],
        )
        for name, findings in found.items()
        if findings.corrected or findings.plan
    ]
    if not blocks:
        return None
    return Section(
        key="corrected",
        heading="Corrected benchmark scores",
        blocks=blocks,
        note="Mean human score of each answerer out of few labels and many judge scores: prediction-powered inference "
        "(Angelopoulos et al. 2023, PPI++), valid however wrong the judge is if the labelled answers are a random "
        "draw. The judge decides only how wide the interval gets; “worth” is the number of labels that would do as "
        "well alone.",
    )


def _corrected_table(found: Mapping[str, CorrectedMean]) -> Table:
    bars = [bar(one.value, one.interval) for one in found.values()]
    rows = [
        Row(
            name=name.replace("_", " "),
            about=one.caution or "",
            cells=[
                Cell(number(one.value, 2), interval(one.interval), one.undefined or ""),
                Cell(number(one.human_only, 2), interval(one.human_interval)),
                Cell(number(one.judge_only, 2)),
                Cell(str(one.labelled)),
                Cell(str(one.unlabelled)),
                Cell(number(one.effective, 0)),
                Cell(str(one.failed_labelled + one.failed_unlabelled)),
            ],
            bar=drawn,
            strong=True,
        )
        for (name, one), drawn in zip(found.items(), bars, strict=True)
    ]
    head = ["Answerer", "corrected", "labels alone", "judge alone", "labels", "without", "worth", "failed"]
    return Table(caption="Mean human score, drawn from 1 to 10.", head=head, rows=rows, axis=(1.0, 10.0), drawn=2)


def verdict(name: str, findings: Findings, outcomes: Sequence[Outcome], most_failed: float) -> list[str]:
    """What a sample says of the judge, the decision first, in a few sentences."""
    judge, n = findings.judge, len(findings.sample.ids)
    if judge.mae is None:
        return [f"On {name} every judgment failed ({n} of {n}): there is nothing to rely on."]
    who = findings.sample.judge
    measured = f"On {name} {who} is off by {judge.mae:.2f} points on average{_within(judge.interval.get('mae'))}"
    measured += _against_trivial(findings) + f"; Pearson {number(judge.pearson, 2)}."
    measured += f" {judge.n} answers to {judge.groups} questions, {judge.failed} failed."
    broken = [outcome for outcome in outcomes if outcome.sample == name and not outcome.holds]
    decision = f"The gate is not kept: {listed([one.text.split(': ', 1)[1] for one in broken])}." if broken else ""
    return [
        decision or _decision(findings, most_failed),
        measured,
        *_against_people(findings),
        *_against_judges(findings),
    ]


def attack_verdict(found: Injection) -> str:
    """The worst that attacks do: whoever attacks takes the one that works."""
    raised = round((found.any_raised.value or 0.0) * found.any_raised.n)
    text = (
        f"Of {len(found.attacks)} attacks inside answers, at least one raises {raised} of {found.any_raised.n} answers "
        f"by {found.rise:g} points or more"
    )
    measured = [effect for effect in found.attacks if effect.inflation.value is not None]
    if not measured:
        return f"{text}."
    worst = max(measured, key=lambda effect: effect.inflation.value or 0.0)
    return f"{text}; the strongest, {worst.name}, adds {number(worst.inflation.value, 2)} on average."


def _within(bounds: Interval | None) -> str:
    return f" (95 % interval {interval(bounds)})" if bounds else ""


def _against_trivial(findings: Findings) -> str:
    constant = next((line for line in findings.of("baseline") if line.name == "constant"), None)
    if constant is None:
        return ""
    about = constant.about.replace("always", "always answering")
    return f", against {number(constant.result.mae, 2)} for {about}"


def _decision(findings: Findings, most_failed: float) -> str:
    """One sentence a person can act on, from what the intervals allow to be said. It names what was allowed."""
    return (
        _no_decision(findings, most_failed)
        or _not_better(findings)
        or _worse(findings)
        or _in_place_of(findings)
        or f"{findings.sample.judge} knows more than the trivial judges; whether enough, the numbers below must say."
    )


def _no_decision(findings: Findings, most_failed: float) -> str:
    who, judge = findings.sample.judge, findings.judge
    total = judge.n + judge.failed
    if judge.failed > most_failed * total:
        return f"No decision on {who}: it failed on {judge.failed} of {total} answers."
    if (judge.groups or 0) < FEWEST_TO_DECIDE:
        return f"No decision on {who}: {judge.groups} questions are too few, {FEWEST_TO_DECIDE} are needed."
    return ""


def _worse(findings: Findings) -> str:
    who = findings.sample.judge
    better = [pair.second for pair in findings.comparisons if pair.first == who and _further(pair)]
    if not better:
        return ""
    return f"Do not put {who} in the place of {listed(better)} on such data: it is further from people."


def _in_place_of(findings: Findings) -> str:
    who, test = findings.sample.judge, findings.replaces
    places = [_as_good(pair) for pair in findings.comparisons if pair.first == who and _is_as_good(pair)]
    if test and test.passes:
        places.insert(0, f"one of these raters (alternative annotator test, epsilon {test.epsilon:g})")
    if places:
        return f"{who} may take the place of {listed(places)} on such data."
    if test and test.passes is False:
        return f"{who} knows more than the trivial judges, but is not shown to do as well as one of these raters."
    return ""


def _not_better(findings: Findings) -> str:
    unbeaten = [pair.second for pair in findings.over_trivial if not _closer(pair)]
    if not unbeaten:
        return ""
    who, maps = findings.sample.judge, findings.calibration.maps if findings.calibration else []
    trivial = f"the trivial judge{'s' * (len(unbeaten) > 1)} {listed(unbeaten)} in mean error"
    order = findings.judge.interval.get("pearson")
    others = [line.result.mae for line in findings.of("baseline") if line.result.mae is not None]
    mended = [one.method for one in maps if one.after and others and one.after.mae < min(others)]
    if order and order[0] >= RANKS_WELL and mended:
        return (
            f"Rely on {who} only after recalibration: it ranks answers well (Pearson {number(order[0], 2)} or more), "
            f"but as it stands it is not shown to beat {trivial}; a {mended[0]} map may mend that."
        )
    return f"Do not rely on {who} here: it is not shown to beat {trivial}."


def _closer(pair: Comparison) -> bool:
    """Whether the first judge's mean error is shown to be smaller."""
    return any(line.metric == "mae" and line.interval and line.interval[1] < 0 for line in pair.differences)


def _further(pair: Comparison) -> bool:
    return any(line.metric == "mae" and line.interval and line.interval[0] > 0 for line in pair.differences)


def _is_as_good(pair: Comparison) -> bool:
    """Every margin that was asked for could be tested, and holds."""
    held = {line.metric for line in pair.non_inferiority if line.holds}
    return bool(held) and held == set(pair.margins) and pair.groups >= FEWEST_TO_DECIDE


def _as_good(pair: Comparison) -> str:
    allowed = listed([f"{margin:g} {NAMES[metric]}" for metric, margin in pair.margins.items()])
    return f"{pair.second} (no worse by more than {allowed})"


def _against_people(findings: Findings) -> list[str]:
    lines = findings.of("people")
    if not lines:
        return []
    people, judge = (line.result for line in lines)
    ceiling = (
        f"Against the mean of the other raters, a rater is off by {number(people.mae, 2)}"
        f"{_within(people.interval.get('mae'))} and the judge by {number(judge.mae, 2)}"
        f"{_within(judge.interval.get('mae'))}."
    )
    return [ceiling, *([findings.replaces.reading] if findings.replaces else [])]


def _against_judges(findings: Findings) -> list[str]:
    sentences = []
    for pair in findings.comparisons:
        for line in pair.differences:
            if line.metric == "mae" and pair.first == findings.sample.judge:
                where = "closer to" if line.value < 0 else "further from"
                told = "" if _closer(pair) or _further(pair) else ", not to be told from none"
                spread = f"difference {interval(line.interval)}" if line.interval else "too few questions to say more"
                sentences.append(
                    f"{pair.first} is {abs(line.value):.2f} points {where} people than {pair.second} ({spread}{told})."
                )
    return sentences
