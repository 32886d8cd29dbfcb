"""How often the 95 % intervals of corrected shares hold the truth in simulated worlds: `rates_coverage.py [WORLDS]`.

A world has 1,000 items, some with a label drawn at random. Where a design has groups, answers to one question share a
part of their truth and of the judge's errors. Ends in one JSON line: coverage and mean width by design and labels.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from eval_agreement.measures.ppi import Answers
from eval_agreement.measures.preferences import WORTH, _correct, _invert

ITEMS = 1000
DESIGNS = {
    "good judge": ((0.4, 0.0, 0.6), [[0.9, 0, 0.1], [0, 1, 0], [0.1, 0, 0.9]], 1),
    "says yes too often": ((0.4, 0.0, 0.6), [[0.95, 0, 0.05], [0, 1, 0], [0.4, 0, 0.6]], 1),
    "rare yes": ((0.08, 0.0, 0.92), [[0.8, 0, 0.2], [0, 1, 0], [0.05, 0, 0.95]], 1),
    "preferences with ties": ((0.4, 0.2, 0.4), [[0.8, 0.1, 0.1], [0.3, 0.4, 0.3], [0.1, 0.1, 0.8]], 1),
    "five answers a question": ((0.4, 0.0, 0.6), [[0.85, 0, 0.15], [0, 1, 0], [0.2, 0, 0.8]], 5),
}


def world(random: Any, shares: Any, errors: Any, each: int, labels: int) -> tuple[Any, Any, Any]:
    """Return an items' world: codes of both sides, UNASKED where people gave no label, and groups."""
    groups = ITEMS // each
    group = np.repeat(np.arange(groups), each)
    # A question's answers are alike: half of them follow a common draw.
    common = random.random(ITEMS) < (0.5 if each > 1 else 0.0)
    draw = np.where(common, random.random(groups)[group], random.random(ITEMS))
    truth = np.searchsorted(np.cumsum(shares), draw).clip(0, 2)
    slip = np.where(common, random.random(groups)[group], random.random(ITEMS))
    judge = (np.cumsum(errors, axis=1)[truth] < slip[:, None]).sum(axis=1).clip(0, 2)
    chosen = random.permutation(groups)[: labels // each]
    return np.where(np.isin(group, chosen), truth, 4), judge, group


def coverage(worlds: int, labels: Sequence[int] = (25, 50, 100, 200)) -> dict[str, dict[str, float]]:
    """Return coverage and mean width of both intervals by design and number of labels."""
    result = {}
    for name, (shares, errors, each) in DESIGNS.items():
        true = float(np.dot(shares, WORTH))
        for drawn in labels:
            held = {"corrected": 0, "inverted": 0, "width": 0.0, "width inverted": 0.0}
            inverted = 0
            for stream in np.random.SeedSequence(1).spawn(worlds):
                people, judge, group = world(np.random.default_rng(stream), shares, errors, each, drawn)
                labelled = people < 3
                human = np.where(labelled, WORTH[people % 3], 0.0)
                corrected = _correct(Answers(human, WORTH[judge], labelled, group, None))
                by_rates = _invert(people, judge=judge, member=group, weight=np.ones(ITEMS))
                for key, estimate in (("corrected", corrected), ("inverted", by_rates)):
                    low, high = estimate.interval or (2.0, 2.0)
                    held[key] += low <= true <= high
                    held["width" if key == "corrected" else "width inverted"] += high - low
                inverted += by_rates.interval is not None
            row = {"corrected": held["corrected"] / worlds, "inverted": held["inverted"] / max(inverted, 1)}
            row |= {"width": held["width"] / worlds, "width inverted": held["width inverted"] / max(inverted, 1)}
            result[f"{name}, {drawn}"] = row | {"defined": inverted / worlds}
    return result


def main() -> None:
    designs = coverage(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
    rounded = {name: {key: round(value, 3) for key, value in row.items()} for name, row in designs.items()}
    # The least coverage with 50 labels or more, of the 95 % that are promised.
    least = min(row["corrected"] for name, row in designs.items() if not name.endswith(" 25"))
    print(json.dumps({"name": "rates_coverage", "ratio": round(least / 0.95, 3), "designs": rounded}))


if __name__ == "__main__":
    main()
