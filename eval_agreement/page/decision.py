"""What an audit decides, of scores and of preferences, in sentences: the first is one that a person can act on."""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil

import numpy as np

from critic.page.blocks import interval, listed, number, share, shares
from critic.stats.estimate import FEWEST_TO_DECIDE, Estimate
from eval_agreement.measures.analysis import Findings
from eval_agreement.measures.compare import MARGINS, Comparison, MetricDifference
from eval_agreement.measures.gate import Outcome
from eval_agreement.measures.preferences import PreferenceAudit
from eval_agreement.metrics import METRICS, Agreement
from eval_agreement.page.words import within
from eval_agreement.sentences import say

POINTS_WITHIN, SHARE_WITHIN = 0.2, 0.05
"""Half width of the mean, in points, or of the share that labels are counted for without --target-half-width."""

MOST_TASKS = 3
"""Tasks that the headline names."""


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
        _not_kept(outcome for outcome in outcomes if outcome.sample == name) or _decision(findings, most_failed),
        say("of_scores", name=name, who=who, judge=judge, **facts),
        *_against_people(findings),
    ]


def _within(result: Agreement) -> str:
    return within(interval(result.interval.get("mae")))


def _decision(findings: Findings, most_failed: float) -> str:
    """One sentence to act on, with its figure and the option that would change it; then tasks to avoid."""
    who, judge = findings.sample.judge, findings.judge
    if why := _undecided(who, judge.failed, judge.n + judge.failed, judge.groups or 0, most_failed, "answers"):
        return why
    if unbeaten := [pair for pair in findings.over_trivial if _side(pair) >= 0]:
        trivial = f"trivial judge{'s' * (len(unbeaten) > 1)} {listed([pair.second for pair in unbeaten])}"
        return say("unbeaten", who=who, beat=f"beat the {trivial} in mean error", seen=_seen(unbeaten[0]))
    if better := [pair.second for pair in findings.comparisons if pair.first == who and _side(pair) > 0]:
        return say("worse", who=who, others=listed(better), things="data", how="is further from people")
    return f"{_in_place_of(findings) or _with_labels(findings)}{_not_for(findings)}"


def _with_labels(findings: Findings) -> str:
    who, r, plan = findings.sample.judge, findings.judge.pearson or 0.0, findings.plan
    half_width = plan.half_width if plan else POINTS_WITHIN
    planned = (plan.with_judge, plan.without_judge) if plan and plan.with_judge and plan.without_judge else ()
    deviation, size = float(findings.sample.human.std()), f"±{half_width:g} points"
    return _labels_a_month(who, deviation, r, half_width, "a mean of people's scores", size, *planned)


def _not_for(findings: Findings) -> str:
    """Tasks on which the judge is not shown to rank answers as people do at all."""
    tasks = findings.by.get("task", {}).items()
    enough = {name: result.estimates["pearson"] for name, result in tasks if (result.groups or 0) >= FEWEST_TO_DECIDE}
    return _tasks_to_avoid("Pearson", enough, "ranks these answers")


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


def preference_verdict(
    name: str, audit: PreferenceAudit, outcomes: Sequence[Outcome], most_failed: float, half_width: float | None = None
) -> list[str]:
    """What a sample says of the first judge, the decision first; `half_width` is that of a share (0..1)."""
    judge, result = next(iter(audit.agreement.items()))
    if result.accuracy.value is None:
        return [say("no_verdicts", name=name, who=judge, why=result.accuracy.undefined)]
    facts = {"accuracy": share(result.accuracy.value), "kappa": number(result.kappa.value)}
    facts |= {"within": within(shares(result.accuracy.interval)), "things": audit.things}
    sentences = [
        _not_kept(outcomes) or _preference_decision(judge, audit, most_failed, half_width or SHARE_WITHIN),
        say("of_verdicts", name=name, who=judge, result=result, **facts),
    ]
    if rates := audit.rates.get(judge):
        phrases = [f"{name} {share(rate.value)}{within(shares(rate.interval))}" for name, rate in rates.items()]
        sentences.append(f"Of people's yes and no it finds: {listed(phrases)}.")
    if beside := audit.beside.get(judge):
        sentences += [part.reading for part in (beside.soft, beside.replaces) if part]
    flips = audit.position[judge]["flips"] if judge in audit.position else None
    if flips and flips.value is not None:
        changed = f"{share(flips.value)} of its verdicts change ({shares(flips.interval)})"
        sentences.append(f"Shown in the other order, {changed}.")
    return sentences


def _preference_decision(judge: str, audit: PreferenceAudit, most_failed: float, half_width: float) -> str:
    result = audit.agreement[judge]
    lost = result.failed + result.unasked
    if why := _undecided(judge, lost, result.n + lost, audit.groups, most_failed, audit.things):
        return why
    others = {line.second: line.accuracy for line in audit.differences if line.first == judge}
    trivial = [name for name in audit.baselines if others[name].side <= 0]
    better = [name for name in others if name not in audit.baselines and others[name].side < 0]
    if trivial or result.kappa.side <= 0:
        than = listed(trivial) if trivial else "chance"
        seen = _figure(others[trivial[0]]) if trivial else ""
        return say("unbeaten", who=judge, beat=f"agree with people more than {than}", seen=seen)
    if better:
        how = f"agrees with people less{_figure(others[better[0]])}"
        return say("worse", who=judge, others=listed(better), things=audit.things, how=how)
    than = listed(["chance", *audit.baselines])
    figure = f"more than {than}, on {share(result.accuracy.value)}{within(shares(result.accuracy.interval))}"
    parts = [*audit.by[judge].get("task", {}).items(), *audit.by[judge].get("category", {}).items()]
    enough = {name: part.kappa for name, part in parts if part.n >= FEWEST_TO_DECIDE}
    not_here = _tasks_to_avoid("kappa", enough, "agrees with people on these")
    beside = audit.beside.get(judge)
    if beside and beside.replaces and beside.replaces.passes:
        raters = say("in_place_of_raters", test=beside.replaces)
        return say("verdicts_in_place_of", who=judge, raters=raters, figure=figure) + not_here
    if beside and beside.soft and beside.soft.difference.side > 0:
        return say("verdicts_alone", who=judge, things=audit.things, figure=figure) + not_here
    return f"{_share_with_labels(judge, audit, half_width)}{not_here}"


def _share_with_labels(judge: str, audit: PreferenceAudit, half_width: float) -> str:
    """For the share of yes, or of wins of answer a, a tie counting half."""
    table = np.array(audit.agreement[judge].table)
    pairs = np.repeat(np.argwhere(table >= 0), table.ravel(), axis=0) / 2
    quantity = "the share of people's yes" if audit.yes_or_no else "the share of people's verdicts for a (ties half)"
    r = float(np.corrcoef(pairs.T)[0, 1])
    return _labels_a_month(judge, float(pairs[:, 0].std()), r, half_width, quantity, f"±{100 * half_width:g} %")


def _figure(estimate: Estimate) -> str:
    """What is seen of a difference or, where nothing is, would be."""
    seen = say("seen_8_in_10", size=share(estimate.unseen)) if estimate.unseen else ""
    return f" ({share(estimate.value)}, {shares(estimate.interval)}{seen})"


def _not_kept(outcomes: Iterable[Outcome]) -> str:
    """The decision where a gate is not kept."""
    broken = [outcome.text.split(": ", 1)[1] for outcome in outcomes if not outcome.holds]
    return say("gate_broken", limits=listed(broken)) if broken else ""


def _undecided(who: str, lost: int, total: int, groups: int, most_failed: float, things: str) -> str:
    """Why nothing is decided on a judge that failed on `lost` of its verdicts; empty where something is."""
    if lost > most_failed * total:
        return say("failed_too_often", who=who, lost=lost, total=total, things=things, most=most_failed)
    more = FEWEST_TO_DECIDE - groups
    return say("too_few_questions", who=who, groups=groups, fewest=FEWEST_TO_DECIDE, more=more) if more > 0 else ""


def _labels_a_month(
    who: str, deviation: float, r: float, half_width: float, quantity: str, size: str, *planned: int
) -> str:
    """Labels as `planned` or by people's deviation, and 1 - r² of these with the judge (PPI++ where all is judged)."""
    labels = (1.96 * deviation / half_width) ** 2
    corrected, alone = planned or (max(FEWEST_TO_DECIDE, ceil(part * labels)) for part in (1 - r**2, 1.0))
    counts = {"corrected": corrected, "alone": alone, "r": number(r)}
    return say("labels_a_month", who=who, what=quantity, size=size, **counts)


def _tasks_to_avoid(metric: str, tasks: Mapping[str, Estimate], does: str) -> str:
    """What not to use a judge for: the tasks, MOST_TASKS at most, on which no agreement beyond chance is shown."""
    shown = {name: estimate for name, estimate in tasks.items() if estimate.interval and estimate.interval[0] <= 0}
    phrases = [
        f"{name.replace('_', ' ')} ({metric} {number(estimate.value)}, {interval(estimate.interval)})"
        for name, estimate in shown.items()
    ]
    return say("not_for", tasks=listed(phrases[:MOST_TASKS]), does=does) if phrases else ""
