"""What an audit of scores decides, in sentences: the first is one that a person can act on."""

from collections.abc import Sequence

from critic.page.blocks import interval, listed, number
from critic.stats.estimate import FEWEST_TO_DECIDE
from eval_agreement.analysis import Findings
from eval_agreement.compare import MARGINS, Comparison
from eval_agreement.gate import Outcome
from eval_agreement.metrics import METRICS, Agreement
from eval_agreement.page.words import not_kept, side, within

RANKS_WELL = 0.5
"""A Pearson correlation that is shown to be as high says that a judge's order is worth keeping."""


def verdict(name: str, findings: Findings, outcomes: Sequence[Outcome], most_failed: float) -> list[str]:
    """What a sample says of the judge, the decision first, in a few sentences."""
    judge, who, n = findings.judge, findings.sample.judge, len(findings.sample.ids)
    if judge.mae is None:
        return [f"On {name} every judgment failed ({n} of {n}): there is nothing to rely on."]
    constant = next((line for line in findings.of("baseline") if line.name == "constant"), None)
    trivial = ""
    if constant:
        about = constant.about.replace("always", "always answering")
        trivial = f", against {number(constant.result.mae)} for {about}"
    questions = f"to {judge.groups} questions" if not findings.sample.ungrouped else "without groups by question"
    return [
        not_kept(outcome for outcome in outcomes if outcome.sample == name) or _decision(findings, most_failed),
        f"On {name} {who} is off by {judge.mae:.2f} points on average{_within(judge)}{trivial}; Pearson "
        f"{number(judge.pearson)}. {judge.n} answers {questions}, {judge.failed} failed.",
        *_against_people(findings),
    ]


def _within(result: Agreement) -> str:
    return within(interval(result.interval.get("mae")))


def _decision(findings: Findings, most_failed: float) -> str:
    """One sentence a person can act on, from what the intervals allow to be said. It names what was allowed."""
    who, judge = findings.sample.judge, findings.judge
    total = judge.n + judge.failed
    if judge.failed > most_failed * total:
        return f"No decision on {who}: it failed on {judge.failed} of {total} answers."
    if (judge.groups or 0) < FEWEST_TO_DECIDE:
        return f"No decision on {who}: {judge.groups} questions are too few, {FEWEST_TO_DECIDE} are needed."
    return (
        _not_better(findings)
        or _worse(findings)
        or _in_place_of(findings)
        or f"{who} knows more than the trivial judges; whether that is enough is for the numbers below to say."
    )


def _not_better(findings: Findings) -> str:
    unbeaten = [pair.second for pair in findings.over_trivial if _side(pair) >= 0]
    if not unbeaten:
        return ""
    who, after = findings.sample.judge, findings.calibration.after
    trivial = f"the trivial judge{'s' * (len(unbeaten) > 1)} {listed(unbeaten)} in mean error"
    order = findings.judge.interval.get("pearson")
    others = [line.result.mae for line in findings.of("baseline") if line.result.mae is not None]
    if order and order[0] >= RANKS_WELL and after and others and after.mae < min(others):
        return (
            f"Rely on {who} only after recalibration: it ranks answers well (Pearson {number(order[0])} or more), "
            f"but as it stands it is not shown to beat {trivial}; a map of its scores may mend that."
        )
    return f"Do not rely on {who} here: it is not shown to beat {trivial}."


def _side(pair: Comparison) -> int:
    """-1 where the first judge's mean error is shown to be the smaller one, 1 where it is shown to be the larger."""
    return side(next((line.interval for line in pair.differences if line.metric == "mae"), None))


def _worse(findings: Findings) -> str:
    who = findings.sample.judge
    better = [pair.second for pair in findings.comparisons if pair.first == who and _side(pair) > 0]
    if not better:
        return ""
    return f"Do not put {who} in the place of {listed(better)} on such data: it is further from people."


def _in_place_of(findings: Findings) -> str:
    who, test, places = findings.sample.judge, findings.replaces, []
    if test and test.passes:
        places.append(f"one of these raters (alternative annotator test, epsilon {test.epsilon:g})")
    for pair in findings.comparisons:
        # Every margin could be tested, and holds.
        held = {line.metric for line in pair.differences if line.no_worse}
        if pair.first == who and held == set(MARGINS) and pair.groups >= FEWEST_TO_DECIDE:
            allowed = listed([f"{margin:g} {METRICS[metric].name}" for metric, margin in MARGINS.items()])
            places.append(f"{pair.second} (no worse by more than {allowed})")
    if places:
        return f"{who} may take the place of {listed(places)} on such data."
    if test and test.passes is False:
        return f"{who} knows more than the trivial judges, but is not shown to do as well as one of these raters."
    return ""


def _against_people(findings: Findings) -> list[str]:
    lines = findings.of("people")
    if not lines:
        return []
    people, judge = (line.result for line in lines)
    ceiling = (
        f"Against the mean of the other raters, a rater is off by {number(people.mae)}{_within(people)} and the judge "
        f"by {number(judge.mae)}{_within(judge)}."
    )
    return [ceiling, *([findings.replaces.reading] if findings.replaces else [])]
