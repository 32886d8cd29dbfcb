"""Several raters' scores of the same items, in long form: what agreement among raters is computed from."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from critic.stats.arrays import Floats, Group, group_numbers
from eval_agreement.metrics import Indices

Ratings = Sequence[Mapping[str, float]]
"""Each item's scores by the rater's name (`HumanScore.raters`). Scores are compared to 12 decimals."""
Judge = Sequence[float | None] | NDArray[np.floating]

_DECIMALS = 12


class RatingEntries(NamedTuple):
    """Ratings in long form, ordered by item: `item` and `rater` (numbers from 0; `names[rater]` is who) and `score`
    have one entry a rating. There are `items` items."""

    items: int
    names: list[str]
    item: Indices
    rater: Indices
    score: Floats

    def of(self, kept: NDArray[np.bool_]) -> "RatingEntries":
        """The entries of the items kept, which are numbered anew."""
        here = kept[self.item]
        number = np.cumsum(kept) - 1
        return RatingEntries(int(kept.sum()), self.names, number[self.item[here]], self.rater[here], self.score[here])

    def ratings(self) -> Indices:
        """How many ratings each item has."""
        return np.bincount(self.item, minlength=self.items)


class RatedItems(NamedTuple):
    """The items with two ratings and a judgment, the `judge`'s score and the group number of each, shape (items,); of
    the others `single` have fewer than two ratings, and `failed` no judgment."""

    entries: RatingEntries
    judge: Floats
    group: Indices
    single: int
    failed: int


def leave_one_out(ratings: Ratings) -> tuple[Floats, Floats, Indices]:
    """Each rater against the mean of the others, pooled: what a perfect judge could reach. Three arrays with one entry
    for every rating of an item that has two or more: the mean of the item's other ratings, the rating, and the number
    of the item (from 0), ordered by item."""
    entries = entries_of(ratings)
    several = entries.ratings()[entries.item] > 1
    return mean_of_others(entries)[several], entries.score[several], entries.item[several]


def entries_of(ratings: Ratings) -> RatingEntries:
    """All ratings that were made."""
    names = sorted({name for rated in ratings for name in rated})
    number = {name: place for place, name in enumerate(names)}
    item = np.repeat(np.arange(len(ratings)), [len(rated) for rated in ratings])
    rater = np.array([number[name] for rated in ratings for name in rated], dtype=np.intp)
    score = np.array([score for rated in ratings for score in rated.values()], dtype=np.float64)
    return RatingEntries(len(ratings), names, item, rater, np.round(score, _DECIMALS))


def rated_items(ratings: Ratings, judge: Judge | None, group: Group) -> RatedItems:
    """The items to compare a judge on, all with two ratings where there is none."""
    entries = entries_of(ratings)
    judge = np.zeros(entries.items) if judge is None else np.asarray(judge, dtype=np.float64)
    judged = ~np.isnan(judge)
    several = entries.ratings() > 1
    kept = judged & several
    return RatedItems(
        entries=entries.of(kept),
        judge=np.round(judge[kept], _DECIMALS),
        group=group_numbers(group)[kept],
        single=int((judged & ~several).sum()),
        failed=int((~judged).sum()),
    )


def mean_of_others(entries: RatingEntries) -> Floats:
    """For each rating the mean of the item's other ratings; NaN where there are none."""
    total = np.bincount(entries.item, entries.score, minlength=entries.items)[entries.item]
    others = (entries.ratings()[entries.item] - 1).astype(np.float64)
    mean = np.full(len(others), np.nan)
    np.divide(total - entries.score, others, out=mean, where=others > 0)
    # A difference of sums leaves dust, which would put a mean of tens above ten.
    return np.round(mean, _DECIMALS)
