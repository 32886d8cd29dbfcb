"""The owner's page: progress, pace and agreement of the raters, and the items to discuss.

page/raters.sql and page/answers.sql count; the functions of the audit estimate agreement.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import permutations
from typing import Any

import msgspec
import numpy as np

from critic.errors import UsageError
from critic.images import Image, Images
from critic.judging.kinds import POINTS
from critic.page.page import render
from critic.records import to_ten
from critic.stats.estimate import Estimate
from eval_agreement.annotate.schemes import SCHEMES, Scheme, load_pictures
from eval_agreement.annotate.store import Store
from eval_agreement.measures.raters import RaterAgreement, rater_agreement
from eval_agreement.metrics import mean_estimate
from eval_agreement.page.words import percent, points


def number_choices(scheme: Scheme) -> dict[str, float]:
    """Return the number that each choice stands for: a rating is converted to 1..10, other choices to 0..1.

    Choices that decide nothing ("cannot say") are left out.

    >>> number_choices(SCHEMES["scale_5"])["2"], number_choices(SCHEMES["pairwise_forced"])
    (3.25, {'A': 1.0, 'B': 0.0})
    """
    if scheme.rated:
        return {choice: to_ten(float(choice), 1, len(scheme.choices)) for choice in scheme.choices}
    known = {**POINTS, "both bad": POINTS["tie"]}
    return {choice: known[choice] for choice in scheme.choices if choice in known}


def measure_agreement(rows: Iterable[Mapping[str, Any]], scheme: Scheme) -> tuple[RaterAgreement, dict[str, Estimate]]:
    """Measure how well raters agree: alpha over all, and how often each rater's answers equal another rater's (0..1).

    `rows`: the rows of the query page/answers.sql. A rater who shares no question with another has no share.

    Thirty answers about three questions have no interval. If each is about a question of its own, they have one:

    >>> rows = []
    >>> for item in range(30):
    ...     row = {"item": item, "ask": "overall", "cluster": item % 3}
    ...     rows += [{**row, "rater": "ann", "points": item % 4}, {**row, "rater": "bob", "points": item % 2}]
    >>> alpha, equal = measure_agreement(rows, SCHEMES["pointwise"])
    >>> equal["ann"].value, equal["ann"].interval, alpha.people.undefined
    (0.5333333333333333, None, '3 groups; an interval needs at least 5')
    >>> alpha, equal = measure_agreement([{**row, "cluster": row["item"]} for row in rows], SCHEMES["pointwise"])
    >>> equal["ann"].interval is None or alpha.people.interval is None
    False
    >>> alpha, equal = measure_agreement(rows[::2], SCHEMES["pointwise"])
    >>> alpha.items, equal
    (0, {})
    """
    answers = defaultdict[Any, dict[str, float]](dict)
    for row in rows:
        if row["points"] is not None:
            answers[row["cluster"], row["item"], row["ask"]][row["rater"]] = row["points"]
    equal, clusters = defaultdict[str, list[bool]](list), defaultdict[str, list[str]](list)
    for (cluster, *_), given in answers.items():
        for rater, other in permutations(given, 2):
            equal[rater].append(given[rater] == given[other])
            clusters[rater].append(cluster)
    groups = [cluster for cluster, *_ in answers]
    alpha = rater_agreement(list(answers.values()), groups, level="ordinal" if scheme.rated else "nominal")
    return alpha, {rater: mean_estimate(np.array(equal[rater]), clusters[rater], share=True) for rater in equal}


def owner_page(store: Store, number: int | None = None, images: Images | None = None) -> str:
    """Return the owner's page as HTML without scripts or network access.

    `number`: number of an item to show with its texts, its pictures (which `images` loads) and everybody's answers;
    None for the page of all raters. An item without answers is not shown.
    """
    facts = store.facts()
    scheme = SCHEMES[facts["scheme"]]
    labels = [] if number is None else store.labels(number)
    pictures = list[Image]()
    # The page says that they are missing.
    with suppress(UsageError):
        pictures += load_pictures(labels[0].item, images) if labels else []
    rows = store.query("answers", points=msgspec.json.encode(number_choices(scheme)).decode())
    alpha, equal = measure_agreement(rows, scheme)
    content: dict[str, Any] = {"title": "Raters", "now": datetime.now(UTC), "key": facts["owner"], "sections": []}
    content |= {"raters": store.query("raters"), "rows": rows, "labels": labels, "pictures": pictures}
    content |= {"alpha": alpha, "equal": equal, "points": points, "percent": percent}
    content["origin"] = {store.path.name: {"scheme": facts["scheme"], "rows": facts["rows"]}}
    return render("eval_agreement.annotate", "page/owner.html.jinja", content)
