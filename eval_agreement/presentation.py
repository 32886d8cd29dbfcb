"""What an audit found, as sections of sentences and tables: the same for the HTML page and for Markdown."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from eval_agreement.analysis import Findings, Line
from eval_agreement.compare import Comparison, Difference
from eval_agreement.gate import Outcome
from eval_agreement.metrics import METRICS, NAMES, Agreement
from eval_agreement.resampling import FEWEST_GROUPS, RESAMPLES, Interval

MOST_VALUES = 30
"""Values of one property that are shown; summary.json has them all."""


class Cell(Struct, frozen=True):
    """A number or word, and its interval in small print."""

    text: str
    small: str = ""
    title: str = ""


class Bar(Struct, frozen=True):
    """A value with its interval, to be drawn on the table's axis."""

    value: float
    interval: Interval | None


class Row(Struct, frozen=True, kw_only=True):
    """`about` says in small print what the row is; `strong` rows are what the table is about."""

    name: str
    cells: list[Cell]
    about: str = ""
    bar: Bar | None = None
    strong: bool = False


class Table(Struct, frozen=True, kw_only=True):
    """`head` names the first column and every cell. With `axis`, the rows' bars are drawn between its ends, behind
    the column number `drawn` (from 1)."""

    caption: str
    head: list[str]
    rows: list[Row]
    axis: tuple[float, float] | None = None
    drawn: int = 4


class Block(Struct, frozen=True, kw_only=True):
    """What a section says of one sample."""

    sample: str
    readings: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


class Section(Struct, frozen=True, kw_only=True):
    key: str
    heading: str
    blocks: list[Block]
    note: str = ""


def number(value: float | None, decimals: int = 3) -> str:
    return "–" if value is None else f"{round(value, decimals) + 0.0:.{decimals}f}".replace("-", "−")


def interval(bounds: Interval | None, decimals: int = 2) -> str:
    """`0.95–1.10`, with "to" between negative bounds; empty where there is none."""
    if bounds is None:
        return ""
    low, high = (number(bound, decimals) for bound in bounds)
    return f"{low}–{high}" if bounds[0] >= 0 else f"{low} to {high}"


def share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}".replace("%", " %")


def p_text(p: float | None) -> str:
    floor = 4 / RESAMPLES
    return "–" if p is None else f"< {floor:g}" if p <= floor else f"{p:.3f}"


def _metric(result: Agreement, metric: str) -> Cell:
    value = getattr(result, metric)
    return Cell(number(value), interval(result.interval.get(metric)), result.undefined.get(metric, ""))


def _bar(value: float | None, bounds: Interval | None) -> Bar | None:
    return None if value is None else Bar(value, bounds)


def _axis(bars: Iterable[Bar | None], *, centred: bool = False) -> tuple[float, float]:
    """From 0 (or symmetric about it) to a round number beyond every bar."""
    ends = [abs(end) for bar in bars if bar for end in (bar.value, *(bar.interval or ()))]
    furthest = max(ends, default=1.0)
    step = next(step for step in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10) if furthest <= 10 * step)
    end = step * -(-furthest // step) or step
    return (-end, end) if centred else (0.0, end)


def sections(found: Mapping[str, Findings], outcomes: Sequence[Outcome]) -> list[Section]:
    """All there is to say, in reading order."""
    made = [agreement_section(found), *gate_sections(outcomes), parts_section(found), comparison_section(found)]
    return [section for section in made if section]


def agreement_section(found: Mapping[str, Findings]) -> Section:
    axis = _axis(
        _bar(line.result.mae, line.result.interval.get("mae")) for findings in found.values() for line in findings.lines
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
        f"whole questions resampled {RESAMPLES} times; none below {FEWEST_GROUPS} questions. A dash is a number that "
        "is not defined" + ("; “people” counts (answer, rater) pairs." if counts_pairs else "."),
    )


def _line_row(line: Line) -> Row:
    result = line.result
    return Row(
        name=line.name,
        about=line.about or {"judge": "the judge under audit", "other": "another judge"}.get(line.kind, ""),
        cells=[Cell(str(result.n)), Cell(str(result.failed)), *(_metric(result, metric) for metric in METRICS)],
        bar=_bar(result.mae, result.interval.get("mae")),
        strong=line.kind == "judge",
    )


def parts_section(found: Mapping[str, Findings]) -> Section:
    shown = [result for findings in found.values() for values in findings.by.values() for result in values.values()]
    axis = _axis(_bar(result.mae, result.interval.get("mae")) for result in shown)
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
                bar=_bar(result.mae, result.interval.get("mae")),
                strong=True,
            )
            for name, result in chosen
        ],
        axis=axis,
    )


def part_name(part: str) -> str:
    """The word for a property."""
    return {"lang": "language"}.get(part, part)


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
        return f"No metric tells {both} apart on these {pair.n} answers."
    return "; ".join(f"{name} is ahead of the other in {listed(metrics)}" for name, metrics in ahead.items()) + (
        f" ({both}, {pair.n} answers)."
    )


def _comparison_table(pair: Comparison) -> Table:
    bars = [Bar(line.value, line.interval) for line in pair.differences]
    axis = _axis(bars, centred=True)
    return Table(
        caption=f"{pair.first} less {pair.second}, {pair.n} answers ({pair.left_out} left out: not scored by both). "
        f"Drawn from {number(axis[0], 1)} to {axis[1]:g}; for MAE, left of 0 is better, else right.",
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


def listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def gate_sections(outcomes: Sequence[Outcome]) -> list[Section]:
    """One section, or none without a gate."""
    made = Section(
        key="gate",
        heading="Gate",
        blocks=[Block(sample="", readings=[outcome.text for outcome in outcomes])],
        note="Decided on the worse end of the 95 % interval.",
    )
    return [made] if outcomes else []


def verdict(name: str, findings: Findings) -> list[str]:
    """What a sample says of the judge, the decision first, in a few sentences."""
    judge, n = findings.judge, len(findings.sample.ids)
    if judge.mae is None:
        return [f"On {name} every judgment failed ({n} of {n}): there is nothing to rely on."]
    who = findings.sample.judge
    measured = f"On {name} {who} is off by {judge.mae:.2f} points on average"
    if bounds := judge.interval.get("mae"):
        measured += f" (95 % interval {interval(bounds)})"
    measured += (
        _against_trivial(findings) + f"; Pearson {number(judge.pearson, 2)}. n = {judge.n}, {judge.failed} failed."
    )
    return [*_decision(findings), measured, *_against_people(findings), *_against_judges(findings)]


def _against_trivial(findings: Findings) -> str:
    constant = next((line for line in findings.of("baseline") if line.name == "constant"), None)
    if constant is None:
        return ""
    about = constant.about.replace("always", "always answering")
    return f", against {number(constant.result.mae, 2)} for {about}"


def _decision(findings: Findings) -> list[str]:
    """One sentence a person can act on, from what the intervals allow to be said."""
    who = findings.sample.judge
    unbeaten = [pair.second for pair in findings.over_trivial if _mae(pair).better != who]
    if unbeaten:
        plural = "s" * (len(unbeaten) > 1)
        return [f"Do not rely on {who} here: it is not shown to beat the trivial judge{plural} {listed(unbeaten)}."]
    mine = [pair for pair in findings.comparisons if pair.first == who]
    better = [pair.second for pair in mine if _mae(pair).better == pair.second]
    as_good = [pair.second for pair in mine if all(line.holds for line in pair.non_inferiority)]
    if better:
        return [f"Do not put {who} in the place of {listed(better)} on such data: it is further from people."]
    if as_good:
        return [f"{who} may take the place of {listed(as_good)} on such data: it is at least as good."]
    return [f"{who} knows more than the trivial judges; whether that is enough, the numbers below must say."]


def _mae(pair: Comparison) -> Difference:
    return next(line for line in pair.differences if line.metric == "mae")


def _against_people(findings: Findings) -> list[str]:
    return [
        f"People among themselves: each rater is off from the mean of the others by {number(line.result.mae, 2)}, "
        f"Pearson {number(line.result.pearson, 2)}."
        for line in findings.of("people")
    ]


def _against_judges(findings: Findings) -> list[str]:
    sentences = []
    for pair in findings.comparisons:
        if pair.first == findings.sample.judge and pair.differences:
            line = _mae(pair)
            where = "closer to" if line.value < 0 else "further from"
            told = "" if line.better else ", not to be told from none"
            sentences.append(
                f"{pair.first} is {abs(line.value):.2f} points {where} people than {pair.second} "
                f"(difference {interval(line.interval)}{told})."
            )
    return sentences
