"""What an audit of scores decides, in sentences: the first is one that a person can act on."""

from collections.abc import Sequence
from math import ceil

from critic.page.blocks import interval, listed, number
from critic.stats.estimate import FEWEST_TO_DECIDE
from eval_agreement.analysis import Findings
from eval_agreement.compare import MARGINS, Comparison
from eval_agreement.gate import Outcome
from eval_agreement.metrics import METRICS, Agreement
from eval_agreement.page.words import not_for, not_kept, undecided, with_labels, within

WITHIN = 0.2
"""Half width in points of the mean that labels are counted for, unless --target-half-width names another."""


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
    """One sentence a person can act on, from what the intervals allow to be said, with the figure behind it and the
    option that would change it; and the tasks that the judge is not for."""
    who, judge = findings.sample.judge, findings.judge
    total = judge.n + judge.failed
    if why := undecided(who, judge.failed, total, judge.groups or 0, most_failed, "answers"):
        return why
    refused = _not_better(findings) or _worse(findings)
    return refused or f"{_in_place_of(findings) or _with_labels(findings)}{_not_for(findings)}"


def _with_labels(findings: Findings) -> str:
    who, r, plan = findings.sample.judge, findings.judge.pearson or 0.0, findings.plan
    half_width = plan.half_width if plan else WITHIN
    planned = (plan.with_judge, plan.without_judge) if plan and plan.with_judge and plan.without_judge else ()
    deviation, size = float(findings.sample.human.std()), f"±{half_width:g} points"
    return with_labels(who, deviation, r, half_width, "a mean of people's scores", size, *planned)


def _not_for(findings: Findings) -> str:
    """Tasks on which the judge is not shown to rank answers as people do at all."""
    tasks = findings.by.get("task", {}).items()
    enough = {name: result.estimates["pearson"] for name, result in tasks if (result.groups or 0) >= FEWEST_TO_DECIDE}
    return not_for("Pearson", enough, "ranks these answers")


def _not_better(findings: Findings) -> str:
    unbeaten = [pair for pair in findings.over_trivial if _side(pair) >= 0]
    if not unbeaten:
        return ""
    trivial = f"the trivial judge{'s' * (len(unbeaten) > 1)} {listed([pair.second for pair in unbeaten])} in mean error"
    return f"Do not use {findings.sample.judge} here: it is not shown to beat {trivial}{_seen(unbeaten[0])}."


def _seen(pair: Comparison) -> str:
    """The difference in mean error and, where it is on the judge's side, how many labels would show it."""
    line = next((line for line in pair.differences if line.metric == "mae"), None)
    if line is None or line.value is None or line.interval is None:
        return ""
    figure = f" ({number(line.value)} points, {interval(line.interval)}"
    if line.value >= 0:
        return f"{figure}; {number(line.detectable)} would be seen 8 times in 10)"
    needed = ceil(pair.groups * ((line.interval[1] - line.interval[0]) / 2 / line.value) ** 2)
    return f"{figure}; if that stays, labels on {needed} questions would show it)"


def _side(pair: Comparison) -> int:
    """-1 where the first judge's mean error is shown to be the smaller one, 1 where it is shown to be the larger."""
    return next((line.side for line in pair.differences if line.metric == "mae"), 0)


def _worse(findings: Findings) -> str:
    who = findings.sample.judge
    better = [pair.second for pair in findings.comparisons if pair.first == who and _side(pair) > 0]
    if not better:
        return ""
    return f"Do not use {who} in the place of {listed(better)} on such data: it is further from people."


def _in_place_of(findings: Findings) -> str:
    who, test, places = findings.sample.judge, findings.beside.replaces, []
    if test and test.passes:
        places.append(f"one of these raters (alternative annotator test, epsilon {test.epsilon:g})")
    for pair in findings.comparisons:
        # Every margin could be tested, and holds.
        held = {line.metric for line in pair.differences if line.no_worse}
        if pair.first == who and held == set(MARGINS) and pair.groups >= FEWEST_TO_DECIDE:
            allowed = listed([f"{margin:g} {METRICS[metric].name}" for metric, margin in MARGINS.items()])
            places.append(f"{pair.second} (no worse by more than {allowed})")
    if places:
        alone = "alone, " if test and test.passes else ""
        return f"Use {who} {alone}in the place of {listed(places)} on such data."
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
    test = findings.beside.replaces
    return [ceiling, *([test.reading] if test else [])]
