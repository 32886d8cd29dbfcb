"""Ratings of models from pairwise verdicts: Elo and Bradley-Terry.

Sources: the Elo update of VisIT-Bench's appendix (whose exponent has its sign reversed); Bradley and Terry 1952,
with a tie as half a win for each; Ford 1957 for the existence of a finite maximum. Evalica gives the same point
estimates and is what the tests compare with. It has neither groups nor the Ford check.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import numpy as np
import scipy
from msgspec import Struct

from critic.errors import UsageError
from critic.records import Judgment
from critic.stats.aggregate import check, name
from critic.stats.arrays import Floats
from critic.stats.estimate import Bootstrap, Interval, Places

K, BASE, SCALE, INITIAL = 4.0, 10.0, 400.0, 1000.0
"""Constants of online Elo. With SCALE points more, the odds of winning are BASE to 1. Bradley-Terry uses the same
scale, with INITIAL as the mean of all models."""

SHUFFLES, RESAMPLES = 100, 500
"""Number of random orders that an Elo rating is averaged over, and number of resamples for the intervals."""

NEWTON_STEPS = 200
PRECISE = 1e-9
"""Size of the last Newton step (in logits); it leaves an error of about its square."""


class Battle(Struct, frozen=True, kw_only=True):
    """One comparison of two models' answers to one question.

    `score` is 1 if `a` won, 1/2 for a tie, 0 if `b` won, and None for a failed judgment. Battles with the same `group`
    (a question, an image) are resampled together.
    """

    a: str
    b: str
    score: float | None
    group: str


class Ratings(Struct, frozen=True, kw_only=True):
    """Rating points by model, from `n` battles without the `failed` judgments.

    - `undefined`: why `ratings`, or only the 95 % `intervals` and `places`, are None; else None.
    - `unrated`: the reason for each model that has no rating although others have one.
    """

    n: int
    failed: int
    ratings: dict[str, float] | None = None
    intervals: dict[str, Interval] | None = None
    places: Places | None = None
    undefined: str | None = None
    unrated: dict[str, str] = {}

    def of(self, model: str) -> tuple[float | None, Interval | None]:
        """Return a model's rating and interval, each None if undefined."""
        return (self.ratings or {}).get(model), (self.intervals or {}).get(model)


class _Games:
    """The judged battles as arrays, and the resamples of their groups.

    - `first`, `second`: each battle's model numbers, 0..m-1 in the order of `models`.
    - `score`: the first model's points (1, 1/2, 0).
    """

    def __init__(self, battles: Sequence[Battle]) -> None:
        judged = [battle for battle in battles if battle.score is not None]
        self.models = sorted({model for battle in judged for model in (battle.a, battle.b)})
        number = {model: position for position, model in enumerate(self.models)}
        self.first = np.array([number[battle.a] for battle in judged], dtype=np.intp)
        self.second = np.array([number[battle.b] for battle in judged], dtype=np.intp)
        self.score = np.array([battle.score for battle in judged], dtype=np.float64)
        self.draws = Bootstrap([battle.group for battle in judged], RESAMPLES)
        self.failed = len(battles) - len(judged)

    def ratings(self, points: Floats, drawn: Floats, unrated: Mapping[str, str] = {}) -> Ratings:
        """Build Ratings from the points in the sample, shape (m,), and in each resample (`drawn`), shape (m, R).

        Undefined points are NaN. Both arrays lack the `unrated` models (model -> reason) and otherwise follow the order
        of `models`.
        """
        rated = [model for model in self.models if model not in unrated]
        by_model = dict(zip(rated, np.column_stack([points, drawn]), strict=True))
        bounds = {model: self.draws.interval(values[1:]) for model, values in by_model.items()}
        intervals = {model: interval for model, interval in bounds.items() if interval}
        # Intervals for only some models would invite comparisons that they do not cover.
        complete, undefined = len(intervals) == len(rated), self.draws.too_few()
        if not complete and undefined is None:
            share = np.isnan(drawn).any(axis=0).mean()
            undefined = f"no intervals: {share:.0%} of the resamples have no finite maximum"
        return Ratings(
            n=len(self.score),
            failed=self.failed,
            ratings=dict(zip(rated, points.tolist(), strict=True)),
            unrated=dict(unrated),
            intervals=intervals if complete else None,
            places=self.draws.places(by_model) if complete else None,
            undefined=undefined,
        )

    def undefined(self, reason: str) -> Ratings:
        """Return Ratings without values, with the given reason."""
        return Ratings(n=len(self.score), failed=self.failed, undefined=reason)


def mean_elo(battles: Sequence[Battle]) -> Ratings:
    """Return Elo ratings: the mean over SHUFFLES random orders of the battles, so the given order does not matter.

    Each battle moves both models by at most K points. Model a is expected to score 1 / (1 + BASE^((R_b - R_a) / SCALE))
    (VisIT-Bench, appendix, sign corrected). A tie is worth 1/2. Each resample for the intervals has its own order, so
    the intervals also cover the order.

    >>> one_win = [Battle(a="kite", b="owl", score=1.0, group="q1")]
    >>> mean_elo(one_win).ratings
    {'kite': 1002.0, 'owl': 998.0}

    Failed battles are left out and counted:

    >>> judged = [Battle(a="kite", b="owl", score=score, group="q1") for score in (1.0, 0.0, 1.0)]
    >>> failed = [Battle(a="kite", b=model, score=None, group="q2") for model in ("owl", "wren")]
    >>> for rate in (mean_elo, bradley_terry):
    ...     clean, rated, none = rate(judged), rate([failed[0], *judged, failed[1]]), rate(failed)
    ...     print(clean.failed, rated.n, rated.failed, rated.ratings == clean.ratings)
    ...     print(none.n, none.failed, none.ratings, none.undefined, rate([]).undefined)
    0 3 2 True
    0 2 None no battles no battles
    0 3 2 True
    0 2 None no battles no battles
    """
    games = _Games(battles)
    if not games.models:
        return games.undefined("no battles")
    random = np.random.default_rng(0)
    points = _play_battles(games, np.ones((games.draws.groups, SHUFFLES)), random).mean(axis=1)
    drawn = [_play_battles(games, counts, random) for counts in islice(games.draws.draw_counts(), 1, None)]
    return games.ratings(points, np.concatenate(drawn, axis=1) if drawn else np.zeros((len(games.models), 0)))


def _play_battles(games: _Games, counts: Floats, random: np.random.Generator) -> Floats:
    """Return ratings, shape (m, R), after the battles in R random orders.

    `counts`, shape (G, R): how often each group was drawn in each resample. A battle that was drawn twice changes the
    ratings by twice as much. Playing it twice in a row would differ only by a term of relative size K / SCALE.
    """
    # Sorted first, so that the order of the file cannot influence the random orders.
    by_outcome = np.lexsort((games.draws.member, games.score, games.second, games.first))
    orders = np.tile(by_outcome.astype(np.int32)[:, None], counts.shape[1])
    lane = np.arange(counts.shape[1])
    ratings = np.full((len(games.models), len(lane)), INITIAL)
    for game in random.permuted(orders, axis=0):  # one battle of every order at once
        first, second = games.first[game], games.second[game]
        lead = ratings[first, lane] - ratings[second, lane]
        change = K * counts[games.draws.member[game], lane] * (games.score[game] - 1 / (1 + BASE ** (-lead / SCALE)))
        ratings[first, lane] += change
        ratings[second, lane] -= change
    return ratings


def bradley_terry(battles: Sequence[Battle]) -> Ratings:
    """Return Bradley-Terry maximum-likelihood ratings on Elo's scale, with a mean of INITIAL points.

    A tie is worth half a win for each. A finite maximum exists exactly if every set of models has a win or tie against
    the rest (Ford 1957). A single model that prevents this, because it won or lost all of its battles, has no rating;
    the rest are rated by their battles with each other. If a set of several models prevents it, `undefined` names them.
    There are no intervals if more than a tenth of the resamples have no finite maximum, as is common with few
    comparisons.

    >>> games = [Battle(a="kite", b="owl", score=score, group="q") for score in (1.0, 1.0, 0.0)]
    >>> {model: round(points) for model, points in bradley_terry(games).ratings.items()}
    {'kite': 1060, 'owl': 940}

    A set of models that no other beats has no maximum, though its mean Elo ratings exist:

    >>> def battles(games):
    ...     scores = {">": 1.0, "=": 0.5, "<": 0.0}
    ...     return [
    ...         Battle(a=game[0], b=game[2], score=scores[game[1]], group=f"{place % 20}")
    ...         for place, game in enumerate(games)
    ...     ]
    >>> for games in (["a=b", "c=d"], ["a>b", "b>c"], ["a=b", "c=d", "a>c", "e<a"]):
    ...     rated = bradley_terry(battles(games))
    ...     print(rated.ratings, len(mean_elo(battles(games)).ratings), rated.unrated, rated.undefined)
    None 4 {} no finite maximum: a and b never lost to or tied with the other models
    None 3 {} no finite maximum: a never lost to or tied with the other models
    None 5 {} no finite maximum: a and b never lost to or tied with the other models

    Single models that always lost or won leave the ratings of the others as they are:

    >>> even = ["a>b", "b<a", "a<b", "b=a"]
    >>> alone = bradley_terry(battles(even * 10)).ratings
    >>> for more in (["a>x", "x<b"], ["a<x", "x>b"], ["a>x", "y>b", "y>x"], ["a>x", "x>y"]):
    ...     rated = bradley_terry(battles((even + more) * 10))
    ...     same = all(abs(rated.ratings[model] - points) < 1e-6 for model, points in alone.items())
    ...     print(same, sorted(rated.intervals), sorted(rated.places), rated.n, rated.undefined, rated.unrated)
    True ['a', 'b'] ['a', 'b'] 60 None {'x': 'never won or tied'}
    True ['a', 'b'] ['a', 'b'] 60 None {'x': 'never lost or tied'}
    True ['a', 'b'] ['a', 'b'] 70 None {'x': 'never won or tied', 'y': 'never lost or tied'}
    True ['a', 'b'] ['a', 'b'] 60 None {'x': 'never won or tied', 'y': 'never won or tied'}
    """
    games = _Games(battles)
    if not games.models:
        return games.undefined("no battles")
    models, points_per_logit = len(games.models), SCALE / math.log(BASE)
    cell = (games.first * models + games.second) * 3 + (2 * games.score).astype(np.intp)
    tables = [_count_wins(block.T, models) for block in games.draws.tables(cell, 3 * models**2)]
    unrated = dict[str, str]()
    if unbeaten := _find_unbeaten(tables[0][0]):
        rated, one_sided = _remove_one_sided(tables[0][0])
        # Removing one-sided models may leave a set that no others beat; no rating can place that.
        if len(rated) < 2 or _find_unbeaten(tables[0][0][np.ix_(rated, rated)]):
            top = " and ".join(games.models[model] for model in unbeaten)
            return games.undefined(f"no finite maximum: {top} never lost to or tied with the other models")
        tables = [table[:, rated][:, :, rated] for table in tables]
        unrated = {games.models[model]: reason for model, reason in sorted(one_sided.items())}
    points = INITIAL + points_per_logit * np.concatenate([_fit_strengths(table) for table in tables]).T
    if np.isnan(points[:, 0]).any():
        return games.undefined("the maximum was not found: the wins are too uneven for floating point")
    return games.ratings(points[:, 0], points[:, 1:], unrated)


def _count_wins(counts: Floats, models: int) -> Floats:
    """Return the wins of model i over j (ties count half), shape (R, m, m), from R tables of battle counts.

    Each row of `counts` has m × m × 3 entries: first model, second model, and outcome (loss, tie, win of the first).
    """
    lost, tied, won = np.moveaxis(counts.reshape(-1, models, models, 3), 3, 0)
    return np.asarray(won + tied / 2 + np.swapaxes(lost + tied / 2, 1, 2))


def _find_unbeaten(wins: Floats) -> list[int]:
    """Return the numbers of a set of models that never lost to or tied with a model outside it; [] without such a set.

    `wins`, shape (m, m): the wins of model i over j, ties as halves.
    """
    parts, part = scipy.sparse.csgraph.connected_components(wins > 0, connection="strong")
    tops = (part == number for number in range(parts) if not wins[part != number][:, part == number].any())
    return [] if parts == 1 else np.flatnonzero(next(tops)).tolist()


def _remove_one_sided(wins: Floats) -> tuple[list[int], dict[int, str]]:
    """Remove models that never won or tied against the remaining ones, or never lost or tied, one after another.

    `wins`: as in `_find_unbeaten`. Return the numbers of the remaining models, and the reason for each removed one.
    """
    left = list(range(len(wins)))
    reasons = dict[int, str]()
    while True:
        among = wins[np.ix_(left, left)]
        one_sided = np.flatnonzero(~(among.any(axis=1) & among.any(axis=0)))
        if not len(one_sided):
            return left, reasons
        # One at a time: without it, the next may be one-sided no longer, or another become so.
        never = "lost or tied" if among[one_sided[0]].any() else "won or tied"
        reasons[left.pop(one_sided[0])] = f"never {never}"


def _fit_strengths(wins: Floats) -> Floats:
    """Return log-strengths with mean 0, shape (R, m), for R tables of wins (R, m, m); NaN without a finite maximum.

    Newton's method with steps of ln(1 + d) / d, where d is the largest change of a difference of strengths. It
    converges from any start (Sun and Tran-Dinh 2019, generalized self-concordant functions with nu = 2).
    """
    finite = np.array([not _find_unbeaten(table) for table in wins])
    won, models = wins[finite], wins.shape[1]
    strength, length = np.zeros(won.shape[:2]), np.full((len(won), 1), np.inf)
    for _ in range(NEWTON_STEPS):
        if (length < PRECISE).all():
            break
        beats = (1 + np.tanh((strength[:, :, None] - strength[:, None]) / 2)) / 2
        lost_chance = np.swapaxes(beats, 1, 2)
        surplus = won * lost_chance
        gradient = (surplus - np.swapaxes(surplus, 1, 2)).sum(axis=2)
        weight = (won + np.swapaxes(won, 1, 2)) * beats * lost_chance
        slope = weight.sum(axis=2)
        # Only differences count: a constant in every cell keeps the mean at 0 and makes the matrix invertible.
        hessian = slope[:, :, None] * np.eye(models) - weight + (slope.mean(axis=1) / models)[:, None, None]
        step = np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
        length = np.ptp(step, axis=1, keepdims=True)
        strength += step * np.divide(np.log1p(length), length, where=length > 0, out=np.ones_like(length))
    strengths = np.full(wins.shape[:2], np.nan)
    strengths[finite] = np.where(length < PRECISE, strength, np.nan)
    return strengths


def battles(verdicts: Iterable[Judgment], groups: Mapping[str, str]) -> list[Battle]:
    """Build battles from the verdicts between two models, in the given order. `groups` maps conversation ids to groups.

    Raises UsageError for a score other than 1, 1/2 or 0, for a model against itself, and for a pair of models compared
    twice on one conversation.
    """
    by_pair: dict[tuple[str, frozenset[str]], Battle] = {}
    for verdict in verdicts:
        check(verdict)
        a, b = verdict.system, verdict.opponent or ""
        pair = verdict.sample.id, frozenset((a, b))
        if a == b:
            raise UsageError(f"{name(verdict)}: {a} is compared with itself")
        if verdict.score not in (1.0, 0.5, 0.0, None):
            raise UsageError(f"{name(verdict)}: score {verdict.score}; expected 1, 0.5 or 0")
        # Two verdicts on one pair may contradict each other, whichever model stands first.
        if pair in by_pair:
            raise UsageError(f"{name(verdict)}: {a} and {b} compared twice")
        by_pair[pair] = Battle(a=a, b=b, score=verdict.score, group=groups[verdict.sample.id])
    return list(by_pair.values())
