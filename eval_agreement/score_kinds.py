"""What a judge's probabilities of the ratings would have been worth, had another score been taken of them."""

import math
from collections.abc import Sequence
from typing import get_args

import numpy as np

from critic.asking.rating import ScoreKind, score
from critic.counting.columns import as_column
from critic.counting.resampling import Floats
from critic.records import TEN, ConversationJudgment, Judgment
from eval_agreement.sample import Sample

Made = Judgment | ConversationJudgment

_AS_RECORDED = 1e-6
"""By how many points a score may differ from that of its distribution, which files may hold with fewer digits."""


def by_kind(sample: Sample) -> dict[str, Floats]:
    """The scores of the judge under audit by each kind of `rating.ScoreKind`, shape (n,), the one that was taken first.

    Empty where a score is not that of one recorded distribution: in tables, of ratings alone, panels and several
    criteria, and where two kinds are in the file.
    """
    made: list[Made] = [one for one in as_column(sample.judgments).present() if one]
    asked = [one.score_kind if isinstance(one, Judgment) else one.setup.score_kind for one in made]
    if sample.records is None or len(set(asked)) != 1:
        return {}
    kinds = sorted(get_args(ScoreKind), key=lambda kind: kind != asked[0])
    found = sample.records.table(lambda one: _of_record(one, kinds), len(kinds))
    if not np.allclose(found[:, 0], sample.scores, rtol=0, atol=_AS_RECORDED, equal_nan=True):
        return {}
    return dict(zip(kinds, found.T, strict=True))


def _of_record(one: Made, kinds: Sequence[str]) -> list[float]:
    said = one.verdict if isinstance(one, Judgment) else one.rating
    if said is None or said.failure is not None or said.distribution is None:
        return [math.nan] * len(kinds)
    return [score(said.distribution, kind, said.scale or TEN) for kind in kinds]
