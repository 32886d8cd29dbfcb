"""What labels say about those who gave them, for the owner's page: agreement, consistency, checks and pace."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import fmean, median

import numpy as np
from msgspec import Struct, field

from critic.judging.forms import POINTS
from critic.page.blocks import Columns, Section, number
from critic.page.page import render
from critic.records import to_ten
from critic.stats.estimate import Estimate
from eval_agreement.annotate.schemes import SCHEMES, Scheme
from eval_agreement.annotate.store import Given, Store
from eval_agreement.metrics import measured
from eval_agreement.page.words import percent, points, within
from eval_agreement.preferences import equal_share
from eval_agreement.raters import Level, rater_agreement

TOO_FAST, CONSTANT, FEWEST, CHECKS_FAILED = 1 / 3, 0.95, 20, 0.5
"""Who takes less than this share of the others' median time, gives one answer more often than this, or knows fewer
checks, clicks through; nobody is suspected by fewer labels."""

_MOST = 50_000
"""The newest labels that the page is about: what was said before them has been seen."""

_NOTE = (
    "As another rater: share of equal answers. Points off: mean absolute difference from the mean of the others, on "
    "1..10. Same again: repeats answered as before."
)

Unit = tuple[int, str]
"""The number of an item, and one of its questions."""


class RaterFacts(Struct, kw_only=True):
    """One rater's labels, in the order in which they were given; `again` says of each answer to a repeated question
    whether it was the same, `right` of each item with a known answer. `equal` is the share of answers that are another
    rater's, `off` the distance from the mean of the others."""

    name: str
    progress: tuple[int, int] = (0, 0)
    given: list[Given] = field(default_factory=list)
    again: list[bool] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    equal: Estimate | None = None
    off: Estimate | None = None
    suspected: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> list[float]:
        return [one.said.seconds for one in self.given if one.said.seconds is not None]


def by_rater(labels: Iterable[Given]) -> dict[str, RaterFacts]:
    found: dict[str, RaterFacts] = {}
    first: dict[tuple[str, int], Given] = {}
    for one in labels:
        rater = found.setdefault(one.rater, RaterFacts(name=one.rater))
        rater.given.append(one)
        said = one.said.choices
        if one.known is not None and said:
            rater.right.append(all(said.get(key) == value for key, value in one.known.items()))
        before = first.setdefault((one.rater, one.number), one)
        if before is not one:
            then = before.said.choices
            rater.again += [then[key] == said[key] for key in sorted(then.keys() & said.keys())]
    return found


def units(labels: Iterable[Given], scheme: Scheme) -> dict[Unit, dict[str, float]]:
    """What every rater said of each question about each item, as a number: a rating on 1..10, or what a choice between
    two is worth; "cannot say", repeats and checks left out."""
    worth = {**POINTS, "both bad": POINTS["tie"]}
    if scheme.rated:
        worth = {choice: to_ten(float(choice), 1, len(scheme.choices)) for choice in scheme.choices}
    found: dict[Unit, dict[str, float]] = defaultdict(dict)
    for one in labels:
        for key, choice in one.said.choices.items():
            if one.role == "item" and not one.said.broken and choice in worth:
                found[one.number, key][one.rater] = worth[choice]
    return found


def suspicions(rater: RaterFacts, others: Iterable[RaterFacts]) -> list[str]:
    """Why somebody seems to click through; empty where nothing speaks for it."""
    mine, theirs = rater.seconds, [second for other in others if other is not rater for second in other.seconds]
    said = [choice for one in rater.given for choice in one.said.choices.values()]
    reasons = {
        "too fast": len(mine) >= FEWEST and bool(theirs) and median(mine) < TOO_FAST * median(theirs),
        "constant": len(said) >= FEWEST and max(map(said.count, set(said))) > CONSTANT * len(said),
        "fails checks": len(rater.right) > 1 and fmean(rater.right) < CHECKS_FAILED,
    }
    return [reason for reason, holds in reasons.items() if holds]


def _compare(
    rater: RaterFacts, said: Mapping[Unit, Mapping[str, float]], group: Mapping[int, str], rated: bool
) -> None:
    """Add how a rater's answers lie beside those of the others to the same questions. `group` is that of each item, by
    its number: what is resampled together."""
    equal, groups, others, mine, own_groups = [], [], [], [], []
    for (item, _), given in said.items():
        theirs = [value for name, value in given.items() if name != rater.name]
        if rater.name not in given or not theirs:
            continue
        equal += [value == given[rater.name] for value in theirs]
        groups += [group[item]] * len(theirs)
        others.append(fmean(theirs))
        mine.append(given[rater.name])
        own_groups.append(group[item])
    if mine:
        rater.equal = equal_share(np.array(equal), groups)
        rater.off = measured(np.array(others), np.array(mine), own_groups).estimates["mae"] if rated else None


_RATERS = Columns[RaterFacts](
    ("rater", lambda one: one.name),
    ("labels", lambda one: "{} of {}".format(*one.progress)),
    ("skipped", lambda one: sum(bool(label.said.skipped) for label in one.given)),
    ("broken", lambda one: sum(label.said.broken for label in one.given)),
    ("seconds", lambda one: number(median(one.seconds), 0) if one.seconds else "–"),
    ("as another rater", lambda one: percent(one.equal) if one.equal else "–"),
    ("points off the others", lambda one: points(one.off, 2) if one.off else "–"),
    ("same again", lambda one: f"{sum(one.again)} of {len(one.again)}" if one.again else "–"),
    ("checks right", lambda one: f"{sum(one.right)} of {len(one.right)}" if one.right else "–"),
    ("clicks through?", lambda one: ", ".join(one.suspected)),
)


def sections(labels: Sequence[Given], progress: Mapping[str, tuple[int, int]], name: str) -> list[Section]:
    """The owner's page: each rater, and the agreement of all."""
    scheme, raters = SCHEMES[name], {who: RaterFacts(name=who) for who in progress} | by_rater(labels)
    said, group = units(labels, scheme), {one.number: one.group for one in labels}
    for rater in raters.values():
        rater.progress, rater.suspected = progress[rater.name], suspicions(rater, raters.values())
        _compare(rater, said, group, scheme.rated)
    level: Level = "ordinal" if scheme.rated else "nominal"
    alpha = rater_agreement(list(said.values()), [group[item] for item, _ in said], level=level)
    shown = points(alpha.people)
    reading = (
        f"Krippendorff's alpha ({level}) is {shown.text}{within(shown.small)} over {alpha.items} questions with two "
        f"answers or more by {alpha.raters} raters" + (f"; {shown.title}." if shown.title else ".")
    )
    people = _RATERS.table("Each rater, beside all others who labelled the same items.", raters.values())
    return [Section(heading="Raters", readings=[reading], tables=[people], note=_NOTE)]


def owner_page(store: Store) -> str:
    """HTML without script or network."""
    labels, facts = list(store.given(_MOST)), store.facts()
    now = datetime.now(UTC).isoformat(" ", "seconds")
    said = {
        "title": "Raters",
        "about": f"{len(labels)} labels, {now}. Reload for the newest.",
        "sections": sections(labels, store.counts(), facts["scheme"]),
        "origin": {str(store.path): {"scheme": facts["scheme"], "rows": facts["rows"]}},
    }
    return render("critic.page", "report.html.jinja", said)
