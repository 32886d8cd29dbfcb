"""What an audit of scores decides, in sentences: the first is one that a person can act on."""

from collections.abc import Sequence
from math import ceil

from critic.page.blocks import interval, listed, number
from critic.stats.estimate import FEWEST_TO_DECIDE
from eval_agreement.analysis import Findings
from eval_agreement.compare import MARGINS, Comparison, MetricDifference
from eval_agreement.gate import Outcome
from eval_agreement.metrics import METRICS, Agreement
from eval_agreement.page.words import not_for, not_kept, undecided, with_labels, within
from eval_agreement.texts import say

WITHIN = 0.2
"""Half width in points of the mean that labels are counted for, unless --target-half-width names another."""


def verdict(name: str, findings: Findings, outcomes: Sequence[Outcome], most_failed: float) -> list[str]:
    """What a sample says of the judge, the decision first, in a few sentences."""
    judge, who, n = findings.judge, findings.sample.judge, len(findings.sample.ids)
    if judge.mae is None:
        return [say("every_failed", name=name, n=n)]
    trivial = ""
    for line in findings.of("baseline"):
        if line.name == "constant":
            about = line.about.replace("always", "always answering")
            trivial = f", against {number(line.result.mae)} for {about}"
    questions = f"to {judge.groups} questions" if not findings.sample.ungrouped else "without groups by question"
    facts = {"trivial": trivial, "questions": questions, "pearson": number(judge.pearson), "within": _within(judge)}
    return [
        not_kept(outcome for outcome in outcomes if outcome.sample == name) or _decision(findings, most_failed),
        say("of_scores", name=name, who=who, judge=judge, **facts),
        *_against_people(findings),
    ]


def _within(result: Agreement) -> str:
    return within(interval(result.interval.get("mae")))


def _decision(findings: Findings, most_failed: float) -> str:
    """One sentence to act on, with its figure and the option that would change it; then tasks to avoid."""
    who, judge = findings.sample.judge, findings.judge
    if why := undecided(who, judge.failed, judge.n + judge.failed, judge.groups or 0, most_failed, "answers"):
        return why
    if unbeaten := [pair for pair in findings.over_trivial if _side(pair) >= 0]:
        trivial = f"trivial judge{'s' * (len(unbeaten) > 1)} {listed([pair.second for pair in unbeaten])}"
        return say("unbeaten", who=who, beat=f"beat the {trivial} in mean error", seen=_seen(unbeaten[0]))
    if better := [pair.second for pair in findings.comparisons if pair.first == who and _side(pair) > 0]:
        return say("worse", who=who, others=listed(better), things="data", how="is further from people")
    return f"{_in_place_of(findings) or _with_labels(findings)}{_not_for(findings)}"


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


def _mae(pair: Comparison) -> MetricDifference | None:
    return next((line for line in pair.differences if line.metric == "mae"), None)


def _side(pair: Comparison) -> int:
    """-1 where the first judge's mean error is shown to be the smaller one, 1 where it is shown to be the larger."""
    line = _mae(pair)
    return line.side if line else 0


def _seen(pair: Comparison) -> str:
    """The difference in mean error and, where it is on the judge's side, how many labels would show it."""
    line = _mae(pair)
    if line is None or line.value is None or line.interval is None:
        return ""
    more = say("seen_8_in_10", size=number(line.detectable))
    if line.value < 0:
        half_width = (line.interval[1] - line.interval[0]) / 2
        more = say("seen_with_labels", needed=ceil(pair.groups * (half_width / line.value) ** 2))
    return f" ({number(line.value)} points, {interval(line.interval)}{more})"


def _in_place_of(findings: Findings) -> str:
    who, test, places = findings.sample.judge, findings.beside.replaces, []
    alone = "alone, " if test and test.passes else ""
    if alone:
        places.append(say("in_place_of_raters", test=test))
    for pair in findings.comparisons:
        # Every margin could be tested, and holds.
        held = {line.metric for line in pair.differences if line.no_worse}
        if pair.first == who and held == set(MARGINS) and pair.groups >= FEWEST_TO_DECIDE:
            allowed = listed([f"{margin:g} {METRICS[metric].name}" for metric, margin in MARGINS.items()])
            places.append(say("no_worse", name=pair.second, margins=allowed))
    return say("in_place_of", who=who, alone=alone, places=listed(places)) if places else ""


def _against_people(findings: Findings) -> list[str]:
    lines = findings.of("people")
    if not lines:
        return []
    people, judge = (f"{number(line.result.mae)}{_within(line.result)}" for line in lines)
    test = findings.beside.replaces
    return [say("ceiling", people=people, judge=judge), *([test.reading] if test else [])]
