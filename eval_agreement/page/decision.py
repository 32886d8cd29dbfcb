"""What an audit of scores decides, in sentences: the first is one that a person can act on."""

from collections.abc import Sequence

from critic.counting.resampling import FEWEST_TO_DECIDE
from critic.page.blocks import Bounds, interval, listed, number
from eval_agreement.analysis import Findings
from eval_agreement.compare import Comparison
from eval_agreement.gate import Outcome
from eval_agreement.injection import Injection
from eval_agreement.metrics import METRICS

RANKS_WELL = 0.5
"""A Pearson correlation that is shown to be as high says that a judge's order is worth keeping."""


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


def _within(bounds: Bounds | None) -> str:
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
    allowed = listed([f"{margin:g} {METRICS[metric].name}" for metric, margin in pair.margins.items()])
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
