"""The decision of an audit, on scores and on preferences, in sentences. The first is one that a person can act on."""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil

import numpy as np

from critic.page.blocks import interval, listed, number, share, shares
from critic.stats.estimate import FEWEST_TO_DECIDE, Estimate
from eval_agreement.measures.compare import MARGINS, Comparison, MetricDifference
from eval_agreement.measures.gate import Outcome
from eval_agreement.measures.measure import Findings, RatedFindings
from eval_agreement.measures.ppi import LabelPlan
from eval_agreement.measures.preferences import Preferences
from eval_agreement.measures.raters import AlternativeAnnotator
from eval_agreement.metrics import METRICS, Agreement
from eval_agreement.page.words import within
from eval_agreement.sentences import say

POINTS_WITHIN, SHARE_WITHIN = 0.2, 0.05
"""Half width to count labels for without --target-half-width: of a mean, in points, and of a share (0..1)."""

MOST_TASKS = 3
"""Most tasks that the decision names."""


def verdict(name: str, findings: RatedFindings, outcomes: Sequence[Outcome], most_failed: float) -> list[str]:
    """Say what the findings on a sample mean for the judge, the decision first.

    `most_failed` is the largest share (0..1) of failed judgments with which there is a decision.
    """
    judge: Agreement = findings.scorers.judge
    who = findings.sample.judge
    if judge.mae is None:
        return [say("every_failed", name=name, n=judge.failed)]
    trivial = ""
    for line in findings.scorers.of_kind("baseline"):
        if line.name == "constant":
            about = line.about.replace("always", "always answering")
            trivial = f", against {number(line.result.mae)} for {about}"
    questions = (
        f"to {judge.groups} questions" if not findings.sample.labelled.ungrouped else "without groups by question"
    )
    facts = {"trivial": trivial, "questions": questions, "pearson": number(judge.pearson)}
    # A limit that is not kept decides, whatever else is found.
    broken = _broken_gate(outcome for outcome in outcomes if outcome.sample == name)
    return [
        broken or _decide(findings, most_failed),
        say("of_scores", name=name, who=who, judge=judge, within=_mae_interval(judge), **facts),
        *_against_people(findings),
    ]


def _mae_interval(result: Agreement) -> str:
    """Format the interval of the mean error for a sentence."""
    return within(interval(result.interval.get("mae")))


def _decide(findings: RatedFindings, most_failed: float) -> str:
    """Say one sentence to act on, with its figure and the option that would change it; then tasks to avoid."""
    who, judge = findings.sample.judge, findings.scorers.judge
    total = judge.n + judge.failed
    if why := _why_undecided(who, judge.failed, total, judge.groups or 0, most_failed=most_failed, things="answers"):
        return why
    # A judge that beats no judge that understands nothing is worth nothing, however it compares with others.
    if unbeaten := [pair for pair in findings.scorers.over_trivial if _mae_side(pair) >= 0]:
        trivial = f"trivial judge{'s' * (len(unbeaten) > 1)} {listed([pair.second for pair in unbeaten])}"
        return say("unbeaten", who=who, beat=f"beat the {trivial} in mean error", seen=_mae_figure(unbeaten[0]))
    # Only another judge that is shown to be better rules this one out; one that may be does not.
    if better := [pair.second for pair in findings.comparisons if pair.first == who and _mae_side(pair) > 0]:
        return say("worse", who=who, others=listed(better), things="data", how="is further from people")
    return f"{_in_place_of(findings) or _with_labels(findings)}{_not_for(findings)}"


def _with_labels(findings: RatedFindings) -> str:
    """Say how many labels the judge saves, by the plan if there is one."""
    plan: LabelPlan | None = findings.plan
    half_width = plan.half_width if plan else POINTS_WITHIN
    planned = (plan.with_judge, plan.without_judge) if plan and plan.with_judge and plan.without_judge else None
    return _labels_a_month(
        findings.sample.judge,
        deviation=float(findings.sample.labelled.human.std()),
        r=findings.scorers.judge.pearson or 0.0,
        half_width=half_width,
        quantity="a mean of people's scores",
        size=f"±{half_width:g} points",
        planned=planned,
    )


def _not_for(findings: RatedFindings) -> str:
    """Name the tasks on which the judge is not shown to rank answers as people do at all."""
    tasks = findings.by.get("task", {}).items()
    # On few questions a task would be named by chance.
    enough = {name: task.estimates["pearson"] for name, task in tasks if (task.groups or 0) >= FEWEST_TO_DECIDE}
    return _tasks_to_avoid("Pearson", enough, "ranks these answers")


def _mae_difference(pair: Comparison) -> MetricDifference | None:
    """Return the difference in mean error of two judges, or None if it is undefined."""
    return next((line for line in pair.differences if line.metric == "mae"), None)


def _mae_side(pair: Comparison) -> int:
    """Return -1 if the first judge's mean error is shown to be smaller, 1 if it is shown to be larger, else 0."""
    line = _mae_difference(pair)
    return line.side if line else 0


def _mae_figure(pair: Comparison) -> str:
    """Format the difference in mean error, with what would show it.

    If it is on the judge's side, more labels may show it. Otherwise only a larger difference would show.
    """
    line = _mae_difference(pair)
    if line is None or line.value is None or line.interval is None:
        return ""
    more = say("needed_to_show", size=number(line.detectable))
    if line.value < 0:
        half_width = (line.interval[1] - line.interval[0]) / 2
        # An interval shrinks with the square root of the number of questions.
        more = say("labels_to_show", needed=ceil(pair.groups * (half_width / line.value) ** 2))
    return f" ({number(line.value)} points, {interval(line.interval)}{more})"


def _in_place_of(findings: RatedFindings) -> str:
    """Say which raters and judges the judge may replace; "" if none."""
    who = findings.sample.judge
    test: AlternativeAnnotator | None = findings.beside.replaces
    replaces_raters = bool(test and test.passes)
    places = [say("in_place_of_raters", test=test)] if replaces_raters else []
    for pair in findings.comparisons:
        # A margin that could not be tested does not hold.
        held = {line.metric for line in pair.differences if line.no_worse}
        if pair.first == who and held == set(MARGINS) and pair.groups >= FEWEST_TO_DECIDE:
            allowed = listed([f"{margin:g} {METRICS[metric].name}" for metric, margin in MARGINS.items()])
            places.append(say("no_worse", name=pair.second, margins=allowed))
    unaided = "unaided, " if replaces_raters else ""
    return say("in_place_of", who=who, unaided=unaided, places=listed(places)) if places else ""


def _against_people(findings: RatedFindings) -> list[str]:
    """Say how far a rater is from the other raters, and the judge from the same; empty without several raters."""
    # Without two raters of an answer nothing is known of how far people agree.
    lines = findings.scorers.of_kind("people")
    if not lines:
        return []
    people, judge = (f"{number(line.result.mae)}{_mae_interval(line.result)}" for line in lines)
    test = findings.beside.replaces
    return [say("ceiling", people=people, judge=judge), *([test.reading] if test else [])]


def preference_verdict(
    name: str,
    audit: Findings[Preferences],
    outcomes: Sequence[Outcome],
    most_failed: float,
    half_width: float | None = None,
) -> list[str]:
    """Say what the findings on preferences mean for the first judge, the decision first.

    `most_failed` is as for `verdict`; `half_width` is that of a share (0..1).
    """
    judge, scorers = audit.sample.judge, audit.scorers
    result = scorers.agreement[judge]
    if result.accuracy.value is None:
        return [say("no_verdicts", name=name, who=judge, why=result.accuracy.undefined)]
    facts = {"accuracy": share(result.accuracy.value), "kappa": number(result.kappa.value)}
    facts |= {"within": within(shares(result.accuracy.interval)), "things": scorers.things}
    sentences = [
        _broken_gate(outcomes) or _decide_preferences(judge, audit, most_failed, half_width or SHARE_WITHIN),
        say("of_verdicts", name=name, who=judge, result=result, **facts),
    ]
    # Only verdicts of yes or no have rates.
    if rates := scorers.rates.get(judge):
        phrases = [f"{name} {share(rate.value)}{within(shares(rate.interval))}" for name, rate in rates.items()]
        sentences.append(f"Of people's yes and no it finds: {listed(phrases)}.")
    if beside := audit.beside.get(judge):
        sentences += [part.reading for part in (beside.soft, beside.replaces) if part]
    # A judge that was asked in one order only has no flips to count.
    flips = audit.position[judge]["flips"] if judge in audit.position else None
    if flips and flips.value is not None:
        changed = f"{share(flips.value)} of its verdicts change ({shares(flips.interval)})"
        sentences.append(f"Shown in the other order, {changed}.")
    return sentences


def _decide_preferences(judge: str, audit: Findings[Preferences], most_failed: float, half_width: float) -> str:
    """Say one sentence to act on, then kinds of items to avoid."""
    scorers = audit.scorers
    result = scorers.agreement[judge]
    lost = result.failed + result.unasked
    total = result.n + lost
    if why := _why_undecided(judge, lost, total, scorers.groups, most_failed=most_failed, things=scorers.things):
        return why
    # Differences are those of the judge under audit less each other judge, trivial ones included.
    others = {line.second: line.accuracy for line in audit.differences if line.first == judge}
    trivial = [name for name in scorers.baselines if others[name].side <= 0]
    better = [name for name in others if name not in scorers.baselines and others[name].side < 0]
    if trivial or result.kappa.side <= 0:
        than = listed(trivial) if trivial else "chance"
        seen = _figure(others[trivial[0]]) if trivial else ""
        return say("unbeaten", who=judge, beat=f"agree with people more than {than}", seen=seen)
    if better:
        how = f"agrees with people less{_figure(others[better[0]])}"
        return say("worse", who=judge, others=listed(better), things=scorers.things, how=how)
    than = listed(["chance", *scorers.baselines])
    figure = f"more than {than}, on {share(result.accuracy.value)}{within(shares(result.accuracy.interval))}"
    enough = {}
    for part in ("task", "category"):
        for name, agreement in audit.kinds.by[judge].get(part, {}).items():
            if agreement.n >= FEWEST_TO_DECIDE:
                enough[name] = agreement.kappa
    not_here = _tasks_to_avoid("kappa", enough, "agrees with people on these")
    beside = audit.beside.get(judge)
    if beside and beside.replaces and beside.replaces.passes:
        raters = say("in_place_of_raters", test=beside.replaces)
        return say("verdicts_in_place_of", who=judge, raters=raters, figure=figure) + not_here
    if beside and beside.soft and beside.soft.difference.side > 0:
        return say("verdicts_unaided", who=judge, things=scorers.things, figure=figure) + not_here
    return f"{_share_with_labels(judge, audit, half_width)}{not_here}"


def _share_with_labels(judge: str, audit: Findings[Preferences], half_width: float) -> str:
    """Say how many labels the judge saves, for the share of yes or of wins of answer a (a tie counts half)."""
    table = np.array(audit.scorers.agreement[judge].table)
    # The verdicts of people and judge, item by item: codes 0, 1, 2 for a, tie, b become 0, 1/2, 1.
    pairs = np.repeat(np.argwhere(table >= 0), table.ravel(), axis=0) / 2
    quantity = (
        "the share of people's yes" if audit.scorers.yes_or_no else "the share of people's verdicts for a (ties half)"
    )
    return _labels_a_month(
        judge,
        deviation=float(pairs[:, 0].std()),
        r=float(np.corrcoef(pairs.T)[0, 1]),
        half_width=half_width,
        quantity=quantity,
        size=f"±{100 * half_width:g} %",
    )


def _figure(estimate: Estimate) -> str:
    """Format a difference with its interval and, if it is not shown, the size that would show."""
    needed = say("needed_to_show", size=share(estimate.unseen)) if estimate.unseen else ""
    return f" ({share(estimate.value)}, {shares(estimate.interval)}{needed})"


def _broken_gate(outcomes: Iterable[Outcome]) -> str:
    """Name the limits that are not kept; "" if all are."""
    broken = [outcome.text.split(": ", 1)[1] for outcome in outcomes if not outcome.holds]
    return say("gate_broken", limits=listed(broken)) if broken else ""


def _why_undecided(who: str, lost: int, total: int, groups: int, *, most_failed: float, things: str) -> str:
    """Say why there is no decision on a judge without `lost` of its `total` verdicts; "" if there is one."""
    if lost > most_failed * total:
        return say("failed_too_often", who=who, lost=lost, total=total, things=things, most=most_failed)
    more = FEWEST_TO_DECIDE - groups
    return say("too_few_questions", who=who, groups=groups, fewest=FEWEST_TO_DECIDE, more=more) if more > 0 else ""


def _labels_a_month(
    who: str,
    *,
    deviation: float,
    r: float,
    half_width: float,
    quantity: str,
    size: str,
    planned: tuple[int, int] | None = None,
) -> str:
    """Say how many labels a mean takes with the judge and without.

    Without a plan it is (1.96 deviation / half_width)², and 1 - r² of it with the judge (PPI++ if all is judged).
    """
    if planned:
        with_judge, labels_only = planned
    else:
        labels = (1.96 * deviation / half_width) ** 2
        with_judge = max(FEWEST_TO_DECIDE, ceil((1 - r**2) * labels))
        labels_only = max(FEWEST_TO_DECIDE, ceil(labels))
    counts = {"corrected": with_judge, "labels_only": labels_only, "r": number(r)}
    return say("labels_a_month", who=who, what=quantity, size=size, **counts)


def _tasks_to_avoid(metric: str, tasks: Mapping[str, Estimate], does: str) -> str:
    """Name the tasks, MOST_TASKS at most, on which no agreement beyond chance is shown."""
    phrases = []
    for name, estimate in tasks.items():
        if estimate.interval and estimate.interval[0] <= 0:
            figure = f"{metric} {number(estimate.value)}, {interval(estimate.interval)}"
            phrases.append(f"{name.replace('_', ' ')} ({figure})")
    return say("not_for", tasks=listed(phrases[:MOST_TASKS]), does=does) if phrases else ""
