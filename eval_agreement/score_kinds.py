"""What a judge's probabilities of the ratings would have been worth, had another score been taken of them."""

from typing import get_args

import numpy as np

from critic.asking import rating
from critic.counting.coded import Coded
from critic.counting.columns import as_column
from critic.records import Judgment
from eval_agreement.sample import Sample

MANY_ROWS = 50_000
"""From so many rows on no other score is looked at: reading every distribution again takes minutes."""

_AS_RECORDED = 1e-6
"""By how many points a score may differ from that of its distribution, which files may hold with fewer digits."""


def by_kind(sample: Sample) -> dict[str, Coded]:
    """The scores of the judge under audit by each kind of `rating.ScoreKind`, n each, the one that was taken first.

    Empty where a score is not that of one answer's own distribution: in tables, of panels, several criteria, ratings
    alone and conversations (which show a judge its own grades of their turns), and where two kinds are in the file; and
    from MANY_ROWS rows on, which are more than one chooses a score by.
    """
    made = [one for one in as_column(sample.judgments).present() if one]
    asked = {one.score_kind for one in made if one.protocol is None and not one.members}
    if sample.records is None or len(asked) != 1 or len(sample.ids) >= MANY_ROWS or not sample.scores.known.any():
        return {}
    (used,) = asked
    kinds = sorted(get_args(rating.ScoreKind), key=lambda kind: kind != used)

    def of(one: Judgment | None) -> list[float]:
        found = [rating.of_distribution(one.verdict, kind) for kind in kinds] if one else [None]
        return [np.nan] * len(kinds) if None in found else found  # type: ignore[return-value]  # no None

    scores = sample.records.table(of, len(kinds))
    if not np.allclose(scores[:, 0], np.asarray(sample.scores), rtol=0, atol=_AS_RECORDED, equal_nan=True):
        return {}
    return dict(zip(kinds, map(Coded.of, scores.T), strict=True))
