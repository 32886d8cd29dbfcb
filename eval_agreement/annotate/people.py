"""Statistics of raters for the owner's page: agreement, consistency, checks and pace."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

import numpy as np
from msgspec import Struct

from critic.judging.kinds import POINTS
from critic.page.blocks import Columns, Section, number
from critic.page.page import render
from critic.records import to_ten
from critic.stats.estimate import Estimate
from eval_agreement.annotate.schemes import SCHEMES, Scheme
from eval_agreement.annotate.store import RaterTask, Store
from eval_agreement.measures.preferences import equal_share
from eval_agreement.measures.raters import Level, rater_agreement
from eval_agreement.page.words import percent, points
from eval_agreement.sentences import within

_NOTE = "As another rater: share of equal answers. Same again: repeats answered as before."

Unit = tuple[int, str]
"""A question about an item: (number of the item, key of the question)."""


class RaterFacts(Struct, kw_only=True):
    """Labels of one rater, oldest first, with statistics.

    `progress`: (labels given, tasks).
    `equal`: share (0..1) of the answers that equal another rater's; None if nobody else answered the same questions.
    """

    name: str
    labels: list[RaterTask]
    progress: tuple[int, int] = (0, 0)
    equal: Estimate | None = None

    @property
    def seconds(self) -> list[float]:
        """Times spent on the labels, in seconds. Labels without a time are left out."""
        return [label.verdict.seconds for label in self.labels if label.verdict.seconds is not None]

    @property
    def right(self) -> list[bool]:
        """One entry per labelled check, True if all its answers are correct."""
        checks = [(label.known, label.verdict.choices) for label in self.labels if label.known is not None]
        # A skipped check says nothing about the rater.
        return [known.items() <= choices.items() for known, choices in checks if choices]

    @property
    def again(self) -> list[bool]:
        """One entry per repeated answer, True if it equals the first answer."""
        first, again = dict[int, dict[str, str]](), list[bool]()
        for label in self.labels:
            choices = label.verdict.choices
            before = first.setdefault(label.number, choices)
            # The second label of an item is a repeat.
            if before is not choices:
                again += [before[key] == choices[key] for key in before.keys() & choices.keys()]
        return again


def collect_answers(labels: Iterable[RaterTask], scheme: Scheme) -> dict[Unit, dict[str, float]]:
    """Return the raters' answers as numbers, keyed by question and rater: ratings on 1..10, or the points of a choice.

    Checks, broken items and written answers are left out. If a rater answered twice, the newest answer counts.
    """
    values = {**POINTS, "both bad": POINTS["tie"]}
    if scheme.rated:
        values = {choice: to_ten(float(choice), 1, len(scheme.choices)) for choice in scheme.choices}
    answers: dict[Unit, dict[str, float]] = defaultdict(dict)
    # Labels come in the order in which they were given, so that the newest one stays.
    for label in labels:
        for key, choice in label.verdict.choices.items():
            if label.role == "item" and not label.verdict.broken and choice in values:
                answers[label.number, key][label.rater] = values[choice]
    return answers


def _measure_equal(name: str, answers: Mapping[Unit, Mapping[str, float]], group: Mapping[int, str]) -> Estimate | None:
    """Estimate the share of a rater's answers that equal another rater's answer to the same question.

    `answers`: by question and rater. `group`: the cluster of each item, for the interval.
    Returns None if no other rater answered the same questions.
    """
    equal, groups = list[bool](), list[str]()
    for (item, _), by_rater in answers.items():
        for rater, value in by_rater.items():
            if name in by_rater and rater != name:
                equal.append(value == by_rater[name])
                groups.append(group[item])
    return equal_share(np.array(equal), groups) if equal else None


_RATERS = Columns[RaterFacts](
    ("rater", lambda rater: rater.name),
    ("labels", lambda rater: "{} of {}".format(*rater.progress)),
    ("skipped or broken", lambda rater: sum(not label.verdict.choices for label in rater.labels)),
    ("seconds", lambda rater: number(median(rater.seconds), 0) if rater.seconds else "–"),
    ("as another rater", lambda rater: percent(rater.equal) if rater.equal else "–"),
    ("same again", lambda rater: f"{sum(rater.again)} of {len(rater.again)}" if rater.again else "–"),
    ("checks right", lambda rater: f"{sum(rater.right)} of {len(rater.right)}" if rater.right else "–"),
)


def build_sections(labels: Sequence[RaterTask], progress: Mapping[str, tuple[int, int]], name: str) -> list[Section]:
    """Build the sections of the owner's page: a table of the raters, and how well they agree.

    `progress`: (labels given, tasks) by rater. `name`: name of the labelling scheme.
    """
    scheme = SCHEMES[name]
    answers = collect_answers(labels, scheme)
    group = {label.number: label.item.group for label in labels}
    raters = list[RaterFacts]()
    # A rater who has not begun has a line too.
    for who, counts in progress.items():
        own, equal = [label for label in labels if label.rater == who], _measure_equal(who, answers, group)
        raters.append(RaterFacts(name=who, labels=own, progress=counts, equal=equal))
    level: Level = "ordinal" if scheme.rated else "nominal"
    alpha = rater_agreement(list(answers.values()), [group[item] for item, _ in answers], level=level)
    shown = points(alpha.people)
    why = shown.title and f"; {shown.title}"
    over = f"over {alpha.items} questions with two answers or more by {alpha.raters} raters{why}"
    reading = f"Krippendorff's alpha ({level}) is {shown.text}{within(shown.small)} {over}."
    if alpha.people.value is None:
        why = shown.title if alpha.items else "no item is labelled by two raters (--overlap plans for it)"
        reading = f"Krippendorff's alpha ({level}): not yet; {why}."
    people = _RATERS.table("Each rater, beside all others who labelled the same items.", raters)
    return [Section(heading="Raters", readings=[reading], tables=[people], note=_NOTE)]


def owner_page(store: Store) -> str:
    """Return the owner's page as HTML without scripts or network access."""
    labels, facts = store.labels(), store.facts()
    now = datetime.now(UTC).isoformat(" ", "seconds")
    content: dict[str, Any] = {"title": "Raters", "about": f"{len(labels)} labels, {now}. Reload for the newest."}
    content["sections"] = build_sections(labels, store.counts(), facts["scheme"])
    content["origin"] = {store.path.name: {"scheme": facts["scheme"], "rows": facts["rows"]}}
    return render("critic.page", "base.html.jinja", content)
