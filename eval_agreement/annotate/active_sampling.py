"""Which answers people should label: more often those where the judge is unsure, with known inclusion probabilities.

Poisson sampling with permanent random numbers (Brewer, Early and Joyce 1972; Ohlsson 1995): an answer's own number in
0..1 is drawn once, and it is in the sample where that number is below its probability. A larger sample then holds every
smaller one, and its probabilities are known for all of it. They are mixed with equal ones, so that no weight grows
large; Zrnic and Candès 2024, "Active Statistical Inference", arXiv 2403.03208.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import pstdev

import numpy as np
import scipy

from critic import jsonl
from critic.errors import UsageError
from critic.records import RATINGS, Judgment
from eval_agreement.annotate.plan import draw
from eval_agreement.annotate.schemes import exchanged
from eval_agreement.items import file_kind, label_id
from eval_agreement.sample import RatedSample
from eval_agreement.tables import Source

EQUAL = 0.3
"""The part of every probability that is the same for all answers."""


def doubt(judgment: Judgment) -> float:
    """How unsure a judge was, 0 to 1, the greatest of: 1 for a failure; the entropy of its distribution, as a share of
    what is possible; how far the members of a panel, or several samples, lie apart (their standard deviation, as a
    share of the greatest); 1 where two orders of a pair gave different verdicts."""
    scores = [member.score for member in judgment.members if member.score is not None]
    scores += [one.rating for one in judgment.samples if one.rating is not None]
    shares = judgment.verdict.distribution or [1.0]
    spread = float(scipy.stats.entropy(shares)) / math.log(len(shares)) if len(shares) > 1 else 0.0
    said = {call.first: exchanged(call.value, call.first == "opponent") for call in judgment.calls if call.value}
    turned = {"model", "opponent"} <= said.keys() and said["model"] != said["opponent"]
    apart = pstdev(scores) / ((RATINGS[-1] - RATINGS[0]) / 2) if len(scores) > 1 else 0.0
    return max(1.0 if judgment.failure is not None or turned else 0.0, apart, spread)


def doubts(path: Path) -> dict[str, float]:
    """The doubt about each item of a file of judgments, by the id that labels go by; of a conversation the greatest.

    Raises UsageError for anything else.
    """
    kind = file_kind(Source(path)) if path.is_file() else "table"
    if kind != "judgments":
        raise UsageError(f"--doubtful {path}: expected judgments, as critic judge writes them (JSONL)")
    found: dict[str, float] = {}
    for _, judgment in jsonl.read(path, Judgment):
        key = label_id(judgment, whole=True)
        found[key] = max(found.get(key, 0.0), doubt(judgment))
    if not any(found.values()):
        raise UsageError(f"--doubtful {path}: the judge was never unsure: no distribution, no panel, no failure")
    return found


def draw_from(path: Path, ids: Sequence[str], rows: int) -> dict[str, float]:
    """Those of the items that are drawn by a file of judgments, with their probabilities. Raises UsageError where one
    was not judged. An audit, which knows no plan, must find the same (`next_rows`): no seed of a plan changes it."""
    known = doubts(path)
    if lost := next((key for key in ids if key not in known), None):
        raise UsageError(f"--doubtful {path}: says nothing of {lost!r}; judge all rows that may be labelled")
    return drawn(chances({key: known[key] for key in ids}, rows))


def next_rows(sample: RatedSample, rows: int) -> list[dict[str, float | str]]:
    """Which answers of a sample without a label to label next, by their ids, so that `rows` have one.

    Where labels have a chance and all are among those that `critic annotate --doubtful --draw ROWS` draws:
    the others of these, with the chances that then hold, so many on average. Labels without a chance are taken for a
    sample in which all were as likely, and the others are drawn so as well: together with them a chance by doubt would
    not hold. Empty where labels with a chance were drawn in another way, or by a judge whose records are not known.
    """
    labelled = {key for key, score in zip(sample.ids, sample.human, strict=True) if not np.isnan(score)}
    if sample.weight is None:
        left = sorted(set(sample.ids) - labelled, key=lambda key: draw(0, "number", key))
        return [{"id": key} for key in left[: max(0, rows - len(labelled))]]
    judgments = [one for one in sample.judgments if one is not None]
    if len(judgments) < len(sample.ids):
        return []
    known = dict(zip(sample.ids, map(doubt, judgments), strict=True))
    chance = chances(known, rows) if any(known.values()) else dict.fromkeys(known, rows / len(known))
    chosen = drawn(chance)
    if not labelled <= chosen.keys():
        return []
    return [{"id": key, "label_probability": share} for key, share in chosen.items() if key not in labelled]


def chances(doubts: Mapping[str, float], rows: float) -> dict[str, float]:
    """Inclusion probabilities that sum to `rows`, at most 1 each: `EQUAL` parts the same for all, the rest in
    proportion to the doubt. Raises UsageError where there are not so many."""
    if rows > len(doubts):
        raise UsageError(f"--draw {rows:g}: only {len(doubts)} rows were judged")
    given = np.fromiter(doubts.values(), dtype=np.float64)
    size = EQUAL / len(given) + (1 - EQUAL) * given / given.sum()
    share = np.zeros(len(given))
    certain = np.zeros(len(given), dtype=bool)
    while True:  # what would be above 1 is certain, and the others share what is left
        left = rows - certain.sum()
        share = np.where(certain, 1.0, left * size / max(size[~certain].sum(), 1e-300))
        if not (share[~certain] > 1).any():
            return dict(zip(doubts, np.minimum(share, 1.0).tolist(), strict=True))
        certain |= share >= 1


def drawn(chance: Mapping[str, float], seed: int = 0) -> dict[str, float]:
    """The ids that are drawn with their probabilities. With larger ones the same are drawn, and others."""
    return {key: share for key, share in chance.items() if draw(seed, "number", key) < share}
