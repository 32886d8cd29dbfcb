"""Decide what each judge of an audit may be used for, in sentences: one per judge, the best judge first.

A decision takes these steps, and the first that fails is reported: are the files suspicious; can the labels test a
judge; does the judge have enough verdicts; does it know more than every trivial judge, after recalibration; is another
judge better. If none fails, the sentence says what the judge may be used for. Further sentences give the figures of the
judge under audit.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
import scipy
from msgspec import Struct

from critic.page.blocks import interval, listed, number, share, shares
from critic.stats.arrays import Floats, group_numbers
from critic.stats.estimate import FEWEST_TO_DECIDE, LEVEL, Estimate, detectable
from critic.stats.verdicts import LABELS, A, B, Codes, labelled
from eval_agreement.measures.bias import BiasEffect, Biases
from eval_agreement.measures.calibration import Recalibration
from eval_agreement.measures.compare import MARGINS
from eval_agreement.measures.doubts import Doubt
from eval_agreement.measures.gate import Outcome
from eval_agreement.measures.measure import Findings, RatedFindings
from eval_agreement.measures.ppi import LabelPlan
from eval_agreement.measures.preferences import Preferences
from eval_agreement.measures.raters import AlternativeAnnotator, BesideRaters, RaterAgreement
from eval_agreement.measures.scorers import Line
from eval_agreement.metrics import METRICS, Agreement
from eval_agreement.page.words import part_name
from eval_agreement.sample import Indices
from eval_agreement.sentences import quote, quote_share, say

POINTS_WITHIN, SHARE_WITHIN = 0.2, 0.05
"""Half width for which labels are counted if --target-half-width is not given: of a mean, in points, and of a share
(0..1)."""

MOST_NAMED = 3
"""Largest number of tasks, and of models, that the decision lists."""

NOTABLE, GAIN = 0.25, 0.05
"""Smallest shift of a judge that the decision mentions, in points. Smallest share (0..1) of its mean absolute error
that recalibration must remove to be recommended."""

FEWEST_OTHERS = 3
"""Fewest questions whose label is not people's most frequent one. With fewer, no judge can be told from a constant
one."""

STRONG = 0.5
"""A judge is strong if it explains at least this share (0..1) of the variance that can be explained at all, which is
the reliability of people's scores. It may score single answers if at least this share of them is left to it."""

RELIABILITY, LEAST_RELIABILITY, UNFIT = 0.7, 0.3, 0.4
"""Reliability (0..1) of people's scores: the usual value and the smallest plausible value, assumed if it is unknown;
and the value below which the scores can test no judge."""

WEAK_KAPPA = 0.4
"""Kappa below which a judge cannot replace people ("fair" at best: Landis and Koch 1977)."""

LEAST_SAVED = 0.1
"""Share (0..1) of the labels that a judge must save to be worth mentioning."""

MOST_QUESTIONS = 10
"""Largest factor by which the decision advises to increase the number of questions."""


class Decision(Struct, frozen=True, kw_only=True):
    """The decisions of an audit as sentences.

    `judges`: one sentence per judge: judges with doubtful files first, then the best judge before others. A sentence
    that is the same for all judges is given once. `steps`: the figures on the judge under audit.
    """

    judges: list[str]
    steps: list[str]


def decide_scores(name: str, findings: RatedFindings, outcomes: Sequence[Outcome] = ()) -> Decision:
    """Decide on every judge of a sample of scores. `outcomes`: results of the gate."""
    judge: Agreement = findings.scorers.judge
    if judge.mae is None:
        return Decision(judges=[say("every_failed", name=name, n=judge.failed)], steps=[])
    labelled, accepted = findings.sample.labelled, findings.request.accepted
    raters = findings.beside.raters
    unfit = _why_unfit(labelled.human, labelled.groups, raters, accepted, things="answers", unit="score")
    # Limits are those of the judge under audit.
    broken = {findings.sample.judge: _broken_gate(outcome for outcome in outcomes if outcome.sample == name)}
    decided = {}
    lines = findings.scorers.of_kind("judge") + findings.scorers.of_kind("other")
    for line in sorted(lines, key=lambda line: _rank(line, findings)):
        decided[line.name] = unfit or broken.get(line.name) or _decide(line, findings)
    return Decision(judges=_arrange(decided, findings.doubts, accepted), steps=[*_list_steps(name, findings)])


def _arrange(decided: Mapping[str, str], doubts: Mapping[str, Sequence[Doubt]], accepted: Collection[str]) -> list[str]:
    """Return one sentence per judge: its doubts if any are not accepted, else its decision. Doubts come first.

    `decided`: the decision on each judge, by judge name. `doubts`: by judge name. `accepted`: names of doubts that the
    user overrides.
    """
    doubted, others = [], []
    for who, decision in decided.items():
        open_doubts = [doubt for doubt in doubts[who] if doubt.name not in accepted]
        if open_doubts:
            texts = "; ".join(doubt.text for doubt in open_doubts)
            options = dict.fromkeys(f"--accept {doubt.name}" for doubt in open_doubts)
            doubted.append(say("doubted", who=who, doubts=texts, options=" ".join(options)))
        else:
            others.append(decision)
    # A sentence about the labels is the same for every judge, and is given once.
    return list(dict.fromkeys([*doubted, *others]))


def _rank(line: Line, findings: RatedFindings) -> tuple[bool, float]:
    """Return the sort key of a judge: those that beat the trivial judges first, then by error after recalibration."""
    recalibration = findings.recalibration.get(line.name)
    return (not _knows(line, recalibration), recalibration.error) if recalibration else (True, np.inf)


def _knows(line: Line, recalibration: Recalibration) -> bool:
    """Return True if a judge is shown to know more than the trivial judges.

    That takes a correlation above 0, and after recalibration a lower error than each trivial judge's.
    """
    beaten = all(gain.side > 0 for gain in recalibration.over.values())
    return line.result.estimates["pearson"].side > 0 and beaten


def _why_unfit(
    labels: Floats | Codes, groups: Any, raters: RaterAgreement | None, accepted: Collection[str], **words: str
) -> str:
    """Return why the labels (n,) cannot test any judge; "" if they can, or if the user has `accepted` "unfit" labels.

    `groups`: number of each item's group, (n,). `raters`: the raters' agreement, or None. `words`: words for the
    sentence: `things` for the items (answers), `unit` for a label (score).
    """
    values, counts = np.unique(labels, return_counts=True)
    others = len(np.unique(groups[labels != values[counts.argmax()]]))
    # Of a single value nothing can be decided, whatever is accepted.
    if "unfit" in accepted and others:
        return ""
    if others < FEWEST_OTHERS:
        counted = {"same": counts.max(), "n": len(labels), "others": others, "more": FEWEST_OTHERS - others}
        return say("one_value", **words, **counted)
    # Raters who hardly agree measure little that a judge could find.
    low, _ = (raters and raters.people.interval) or (1.0, 1.0)
    if raters and (low <= 0 or _find_reliability(raters, unknown=1.0) < UNFIT):
        return say("unreliable", alpha=raters.people)
    return ""


def _decide(line: Line, findings: RatedFindings) -> str:
    """Return a sentence on whether and for what a judge may be used, with the figure that decides."""
    who, result = line.name, line.result
    most, total = findings.request.max_failed, result.n + result.failed
    if why := _why_undecided(who, result.failed, total, result.groups or 0, most_failed=most, things="answers"):
        return why
    recalibration: Recalibration = findings.recalibration[who]
    pearson = result.estimates["pearson"]
    if pearson.value is None:
        return say("constant_judge", who=who)
    if not _knows(line, recalibration):
        gains = {name: gain for name, gain in recalibration.over.items() if gain.side <= 0}
        gains |= {"constant": pearson} if pearson.side <= 0 else {}
        single = not findings.beside.raters
        return _why_unknown(who, gains, f"Pearson {quote(pearson)}", result.groups or 0, single=single)
    # Only another judge that is shown to be better rules this one out; one that may be does not.
    if better := [name for name, gain in recalibration.over_judges.items() if gain.side < 0]:
        errors = [f"{name} {number(findings.recalibration[name].error)}" for name in (who, *better)]
        how = f"recalibrated, their errors are {listed(errors)} points"
        return say("worse", better=listed(better), who=who, how=how)
    place = _in_place_of(findings, who)
    # A judge that may replace a rater may still have a small shift.
    if place and (shift := _say_shift(findings.biases[who])):
        place += say("shifted", shift=shift)
    uses = _list_uses(line, findings, unaided=bool(place))
    return f"{place or _say_use(line, findings)}{uses}{_not_for(who, findings)}"


def _why_unknown(who: str, gains: Mapping[str, Estimate], figure: str, groups: int, *, single: bool = False) -> str:
    """Return a sentence that a judge is not shown to beat trivial judges, or that there are too few labels to tell.

    `gains`: how much better the judge is than each trivial judge that it is not shown to beat; above 0 is better.
    `figure`: the judge's agreement in words. `groups`: number of groups. `single`: True if each answer has one rater,
    in which case the labels may be at fault.
    """
    needed = 0.0
    for gain in gains.values():
        value = gain.value or 0.0
        reach = value - gain.interval[0] if gain.interval else np.nan
        # An interval shrinks with the square root of the number of questions.
        size = groups * (detectable((-reach, reach), groups) / value) ** 2 if value > 0 else np.inf
        needed = max(needed, size)
    if needed <= MOST_QUESTIONS * groups:
        return say("too_few_to_tell", who=who, trivial=[*gains], figure=figure, needed=ceil(needed))
    return say("knows_nothing", who=who, trivial=[*gains], figure=figure, single=single)


def _say_use(line: Line, findings: RatedFindings) -> str:
    """Return a sentence on how a judge may be used: unchanged, after recalibration, or only together with labels."""
    recalibration: Recalibration = findings.recalibration[line.name]
    # A map that lowers the squared error may still take most scores further from people's.
    mended = recalibration.helps.side > 0 and recalibration.error <= (1 - GAIN) * (line.result.mae or 0.0)
    use = ("recalibrated" if mended else "as_it_is") if _is_strong(line.name, findings) else "not_people"
    facts = {"who": line.name, "audited": findings.sample.judge, "judge": line.result}
    facts |= {"constant": findings.scorers.constant.result, "by": part_name(recalibration.by or "")}
    return say(use, **facts, recalibration=recalibration, shift=_say_shift(findings.biases[line.name]))


def _is_strong(who: str, findings: RatedFindings) -> bool:
    """Return True if a judge explains enough of the variance that people's scores can show, given their reliability."""
    least = STRONG * _find_reliability(findings.beside.raters, RELIABILITY)
    return bool(findings.recalibration[who].explained >= least)


def _find_reliability(raters: RaterAgreement | None, unknown: float) -> float:
    """Return the reliability (0..1) of the mean of an item's raters, by the Spearman-Brown formula from alpha.

    Returns `unknown` if alpha is unknown or 0.
    """
    if raters is None or not raters.people.value:
        return unknown
    times, alpha = raters.ratings / raters.items, raters.people.value
    return times * alpha / (1 + (times - 1) * alpha)


def _is_notable(effect: BiasEffect, least: float = NOTABLE) -> bool:
    """Return True if an effect is significant and at least `least` points large."""
    return bool(effect.p_value is not None and effect.p_value < 0.05 and abs(effect.value or 0.0) >= least)


def _say_shift(biases: Biases) -> str:
    """Return a phrase on how much more severe or lenient a judge is than people, or "" if it is not notably so.

    The phrase covers the whole sample, and the language and the task that stand out most.
    """
    severity, phrases = biases.effects[0], []
    if _is_notable(severity):
        phrases.append(f"{_say_size(severity)} than people")
    for family in biases.offsets:
        effects = [effect for effect in family.effects if _is_notable(effect, 2 * NOTABLE)]
        # With two labels the offsets mirror each other. The one with the sign of the overall shift is named.
        effects.sort(key=lambda effect: ((effect.value or 0) * (severity.value or 0) < 0, -abs(effect.value or 0)))
        if effects and family.name != "answerer":
            phrases.append(f"{_say_size(effects[0])} in {effects[0].label} than elsewhere".replace("_", " "))
    return listed(phrases) if phrases else ""


def _say_size(effect: BiasEffect) -> str:
    value = effect.value or 0.0
    return f"{number(abs(value))} points more {'lenient' if value > 0 else 'severe'}"


def _list_uses(line: Line, findings: RatedFindings, *, unaided: bool) -> str:
    """Return sentences on what a judge may be used for: means with labels, ranking models, scores of single answers.

    `unaided`: True if the judge may replace a rater; then nothing is said on single answers.
    """
    audited = line.name == findings.sample.judge
    plan: LabelPlan | None = findings.plan
    half_width = plan.half_width if plan else POINTS_WITHIN
    sample = findings.sample
    both = ~np.isnan(sample.human + sample.judges[line.name])
    scores = sample.human[both], sample.judges[line.name][both], sample.groups[both]
    rows = len(sample.ids) if sample.grouped and len(sample.ids) > len(sample.labelled.ids) else 0
    labels = _count_labels(*scores, half_width=half_width, rows=rows)
    if audited and plan and plan.with_judge and plan.without_judge:
        labels = plan.with_judge, plan.without_judge, rows
    uses = _say_saving(labels, quantity="a mean of people's scores", size=f"±{half_width:g} points")
    if _is_strong(line.name, findings) and len(findings.sample.labelled.part_values("answerer")) > 1:
        reliability = _find_reliability(findings.beside.raters, LEAST_RELIABILITY)
        favoured = _list_favoured(findings.biases[line.name], reliability)
        uses += say("rank_models", favoured=favoured)
    widths, _ = findings.widths
    # Intervals of single answers are those of the judge under audit.
    if widths and audited and not unaided:
        uses += say("single_scores" if widths.left >= STRONG else "no_single_scores", left=widths.left)
    return uses


def _list_favoured(biases: Biases, reliability: float) -> list[str]:
    """List the answerers that a judge favours (or disfavours) most at equal human score, unless noise explains it.

    `reliability`: assumed reliability (0..1) of human scores.
    """
    effects = [effect for family in biases.offsets if family.name == "answerer" for effect in family.effects]
    shown = [effect for effect in effects if _is_notable(effect) and (effect.noise_explains or 0.0) < reliability]
    most = max((effect.value or 0.0 for effect in shown), key=abs, default=0.0)
    # An offset compares with all others, so only those with the sign of the largest are named.
    alike = [effect for effect in shown if (effect.value or 0.0) * most > 0][:MOST_NAMED]
    return [say("favoured", effect=effect) for effect in alike]


def _not_for(who: str, findings: RatedFindings) -> str:
    """Return a sentence on the tasks for which the audited judge is not shown to rank answers as people do, or ""."""
    tasks = findings.by.get("task", {}).items() if who == findings.sample.judge else ()
    # On few questions a task would be named by chance.
    enough = {name: task.estimates["pearson"] for name, task in tasks if (task.groups or 0) >= FEWEST_TO_DECIDE}
    return _tasks_to_avoid("Pearson", enough, "ranks these answers")


def _in_place_of(findings: RatedFindings, who: str) -> str:
    """Return a sentence on the raters and judges that a judge may replace, or "" if there are none."""
    test: AlternativeAnnotator | None = findings.beside.replaces
    replaces_raters = bool(test and test.passes and who == findings.sample.judge)
    places = [say("in_place_of_raters", test=test)] if replaces_raters else []
    for pair in findings.comparisons:
        # A margin that could not be tested does not hold.
        held = {line.metric for line in pair.differences if line.no_worse}
        sound = pair.groups >= FEWEST_TO_DECIDE and not findings.doubts[pair.second]
        if pair.first == who and held == set(MARGINS) and sound:
            allowed = listed([f"{margin:g} {METRICS[metric].name}" for metric, margin in MARGINS.items()])
            places.append(say("no_worse", name=pair.second, margins=allowed))
    return say("in_place_of", who=who, unaided=replaces_raters, places=places) if places else ""


def _list_steps(name: str, findings: RatedFindings) -> Iterator[str]:
    """Yield the figures on the judge under audit: agreement, what it knows, severity, and people's agreement."""
    who, judge, sample = findings.sample.judge, findings.scorers.judge, findings.sample
    facts = {"who": who, "judge": judge, "constant": findings.scorers.constant}
    yield say("of_scores", name=name, ungrouped=sample.labelled.ungrouped, **facts)
    if judge.rare:
        yield say("rare_errors", **facts)
    if doubts := [doubt.text for doubt in findings.doubts[who] if doubt.name in findings.request.accepted]:
        yield say("step_accepted", doubts="; ".join(doubts))
    if recalibration := findings.recalibration.get(who):
        over = [f"{name} {quote(estimate)}" for name, estimate in recalibration.over.items()]
        yield say("step_knows", who=who, recalibration=recalibration, over=listed(over))
    yield findings.biases[who].effects[0].reading
    # Without two raters of an answer nothing is known of how far people agree.
    if lines := findings.scorers.of_kind("people"):
        yield say("ceiling", lines=lines)
        if test := findings.beside.replaces:
            yield test.reading


def decide_verdicts(name: str, audit: Findings[Preferences], outcomes: Sequence[Outcome] = ()) -> Decision:
    """Decide for each judge of preferences or of yes/no verdicts how it may be used.

    `name`: the sample's name. `outcomes`: results of the gate.
    """
    judge, scorers = audit.sample.judge, audit.scorers
    result = scorers.agreement[judge]
    if result.accuracy.value is None:
        return Decision(judges=[say("no_verdicts", name=name, who=judge, why=result.accuracy.undefined)], steps=[])
    rated = audit.sample.verdict < LABELS
    labels, beside = audit.sample.verdict[rated], audit.beside.get(judge, BesideRaters())
    groups, accepted = audit.sample.groups[rated], audit.request.accepted
    unfit = _why_unfit(labels, groups, beside.raters, accepted, things=scorers.things, unit="verdict")
    broken = {judge: _broken_gate(outcomes)}
    decided = {}
    # A judge without a kappa comes last.
    for who in sorted(scorers.agreement, key=lambda who: -(scorers.agreement[who].kappa.value or -1.0)):
        decided[who] = unfit or broken.get(who) or _decide_verdicts(who, audit)
    return Decision(judges=_arrange(decided, audit.doubts, accepted), steps=[*_list_verdict_steps(name, audit)])


def _list_verdict_steps(name: str, audit: Findings[Preferences]) -> Iterator[str]:
    """Yield sentences on the judge under audit: agreement, rates, raters, and the effect of the order of answers."""
    judge, scorers = audit.sample.judge, audit.scorers
    result = scorers.agreement[judge]
    yield say("of_verdicts", name=name, who=judge, result=result, things=scorers.things)
    # Only verdicts of yes or no have rates.
    if rates := scorers.rates.get(judge):
        phrases = [f"{name} {quote_share(rate)}" for name, rate in rates.items()]
        yield f"Of people's yes and no it finds: {listed(phrases)}."
    if beside := audit.beside.get(judge):
        yield from (part.reading for part in (beside.soft, beside.replaces) if part)
    # A judge that was asked in one order only has no flips to count.
    flips = audit.position[judge]["flips"] if judge in audit.position else None
    if flips and flips.value is not None:
        yield f"Shown in the other order, {share(flips.value)} of its verdicts change ({shares(flips.interval)})."


def _decide_verdicts(judge: str, audit: Findings[Preferences]) -> str:
    """Return a sentence on whether a judge may be used, with the deciding figure and the kinds of items to avoid."""
    scorers = audit.scorers
    result = scorers.agreement[judge]
    lost, most = result.failed + result.unasked, audit.request.max_failed
    total = result.n + lost
    if why := _why_undecided(judge, lost, total, scorers.groups, most_failed=most, things=scorers.things):
        return why
    table = np.array(result.table)
    # A judge that knows one answer only agrees with people as often as people give it.
    if np.count_nonzero(table.sum(axis=0)) == 1:
        return say("constant_judge", who=judge)
    # Kappa, and not accuracy: a judge that says yes too often may still know which answers are right.
    over = {line.second: line.kappa for line in audit.differences if line.first == judge}
    gains = {name: over[name] for name in scorers.baselines if over[name].side <= 0}
    if gains or result.kappa.side <= 0:
        figure = say("agrees_on", equal=np.trace(table), result=result, things=scorers.things)
        return _why_unknown(judge, gains or {"constant": result.kappa}, figure, scorers.groups)
    if better := [name for name in over if name not in scorers.baselines and over[name].side < 0]:
        kappas = [f"{name} {number(scorers.agreement[name].kappa.value)}" for name in (judge, *better)]
        return say("worse", better=listed(better), who=judge, how=f"their kappas are {listed(kappas)}")
    figure = f"on {quote_share(result.accuracy)}, kappa {number(result.kappa.value)}"
    beside = audit.beside.get(judge, BesideRaters())
    shift = _say_verdict_shift(table) if scorers.yes_or_no else ""
    # A judge that says yes too often cannot measure shares of yes without labels.
    if not shift and beside.replaces and beside.replaces.passes:
        raters = say("in_place_of_raters", test=beside.replaces)
        said = say("verdicts_in_place_of", who=judge, raters=raters, figure=figure)
    elif not shift and beside.soft and beside.soft.difference.side > 0:
        said = say("verdicts_unaided", who=judge, things=scorers.things, figure=figure)
    else:
        key = "verdicts_with_labels" if (result.kappa.value or 0.0) >= WEAK_KAPPA else "verdicts_not_people"
        said = say(key, who=judge, figure=figure, shift=shift) + _save_shares(judge, audit)
    kinds = audit.by[judge].get("task", {}) | audit.by[judge].get("category", {})
    enough = {name: agreement.kappa for name, agreement in kinds.items() if agreement.n >= FEWEST_TO_DECIDE}
    return said + _tasks_to_avoid("kappa", enough, "agrees with people on these")


def _say_verdict_shift(table: Indices) -> str:
    """Return a phrase that a judge says yes more or less often than people, or "" if that is not shown.

    `table`: counts of items by people's verdict (rows) and the judge's (columns).
    """
    more, less = table[B, A], table[A, B]
    # McNemar 1947: of the items on which they differ, as many go either way.
    if (more - less) ** 2 <= scipy.stats.chi2.ppf(LEVEL, 1) * (more + less):
        return ""
    return say("verdicts_shifted", judge=table[:, A].sum() / table.sum(), people=table[A].sum() / table.sum())


def _save_shares(judge: str, audit: Findings[Preferences]) -> str:
    """Return a sentence on how many labels a judge saves if people's share of yes, or of verdicts for a, is estimated.

    Ties count half. The half width of the estimate is that of --target-half-width, or SHARE_WITHIN.
    """
    people, verdicts = audit.sample.verdict, audit.sample.verdicts[judge]
    both = labelled(people, verdicts)
    # Codes 0, 1, 2 for a, tie, b become 0, 1/2, 1.
    half_width = audit.request.within or SHARE_WITHIN
    labels = _count_labels(people[both] / 2, verdicts[both] / 2, audit.sample.groups[both], half_width=half_width)
    answers = "yes" if audit.scorers.yes_or_no else "verdicts for a (ties half)"
    return _say_saving(labels, quantity=f"the share of people's {answers}", size=f"±{100 * half_width:g} %")


def _broken_gate(outcomes: Iterable[Outcome]) -> str:
    """Return a sentence on the limits of the gate that are broken, or "" if there are none."""
    broken = [outcome.text.split(": ", 1)[1] for outcome in outcomes if not outcome.holds]
    return say("gate_broken", limits=listed(broken)) if broken else ""


def _why_undecided(who: str, lost: int, total: int, groups: int, *, most_failed: float, things: str) -> str:
    """Return why there is no decision on a judge, or "" if there is one.

    `lost`: number of missing verdicts, out of `total`. `most_failed`: largest share (0..1) that may be missing.
    `groups`: number of groups. `things`: word for the items.
    """
    if lost > most_failed * total:
        return say("failed_too_often", who=who, lost=lost, total=total, things=things, most=most_failed)
    more = FEWEST_TO_DECIDE - groups
    return say("too_few_questions", who=who, groups=groups, fewest=FEWEST_TO_DECIDE, more=more) if more > 0 else ""


def _count_labels(
    human: Floats, judge: Floats, groups: Indices, *, half_width: float, rows: int = 0
) -> tuple[int, int, int]:
    """Return how many labels a 95 % interval of ± `half_width` takes with the judge and without, and `rows` or 0.

    `human`, `judge`, `groups`: (n,), for answers that people and the judge scored. Further labels are assumed to come
    in groups like these. `rows`: number of answers that may be labelled, or 0 for any number; 0 is returned if they are
    too few. Without the judge, n times the clustered variance of the mean, over (half_width / 1.96)², labels are
    needed. With the judge, the share (1 - r²) / (1 - r² labels / rows) of these is needed (PPI++).
    """
    people, judged = human - human.mean(), judge - judge.mean()
    by_group = np.bincount(group_numbers(groups), people)
    needed = float(by_group @ by_group) / max(len(human), 1) * (1.96 / half_width) ** 2
    multiple = np.clip(people @ judged / (judged @ judged), 0, 1) if judged.any() else 0.0
    left = float(((people - multiple * judged) ** 2).sum() / (people @ people)) if people.any() else 1.0
    rows = rows if needed <= rows else 0
    share = left / (1 - (1 - left) * needed / rows) if rows and left else left
    return ceil(share * needed), ceil(needed), rows


def _say_saving(labels: tuple[int, int, int], *, quantity: str, size: str) -> str:
    """Return a sentence on how many labels a mean takes with the judge and without.

    `labels`: as `_count_labels` returns them. `quantity`: the mean in words. `size`: the half width in words.
    """
    with_judge, labels_only = (max(FEWEST_TO_DECIDE, count) for count in labels[:2])
    key = "saves" if with_judge <= (1 - LEAST_SAVED) * labels_only else "saves_nothing"
    facts = {"what": quantity, "size": size, "with_judge": with_judge, "labels_only": labels_only}
    return say(key, **facts) + say("of_answers", rows=labels[2])


def _tasks_to_avoid(metric: str, tasks: Mapping[str, Estimate], does: str) -> str:
    """Return a sentence on the tasks (at most MOST_NAMED) where the judge is not shown to agree with people, or "".

    `tasks`: the `metric` by task; agreement is shown if its interval lies above 0. `does`: what the judge is not shown
    to do there, in words.
    """
    phrases = []
    for name, estimate in tasks.items():
        if estimate.interval and estimate.interval[0] <= 0:
            figure = f"{metric} {number(estimate.value)}, {interval(estimate.interval)}"
            phrases.append(f"{name.replace('_', ' ')} ({figure})")
    return say("not_for", tasks=listed(phrases[:MOST_NAMED]), does=does) if phrases else ""
