"""Ratings of models from pairwise verdicts: win rates, Elo, Bradley-Terry.

Sources: the Elo update of VisIT-Bench's appendix (whose exponent has its sign reversed); Bradley and Terry 1952, a tie
as half a win of each; Ford 1957 for when their likelihood has a finite maximum. Evalica has the same point estimates
and is what the tests check ours against; it would bring pandas, and knows neither groups nor the Ford check.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Literal

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from critic.errors import UsageError
from critic.records import Judgment
from critic.stats.aggregate import check, name
from critic.stats.arrays import Floats, group_numbers
from critic.stats.estimate import Bootstrap, Interval

Integers = NDArray[np.intp]
Outcome = Literal["a", "tie", "b"]

K, BASE, SCALE, INITIAL = 4.0, 10.0, 400.0, 1000.0
"""Of online Elo. With SCALE points more, the odds of winning are BASE to 1; Bradley-Terry is put on the same scale,
with INITIAL as the mean of all models."""

_POINTS: dict[str | None, float] = {"a": 1.0, "tie": 0.5, "b": 0.0}
SHUFFLES, RESAMPLES, SEED = 100, 500, 0
"""Random orders behind an Elo rating, resamples behind its interval, and the seed of everything random."""

_NEWTON_STEPS = 200
_ORDERS = 250
"""Orders of battles that are fought side by side."""
_PRECISE = 1e-9
"""A last Newton step of this size (in logits) leaves an error of about its square."""


class Battle(Struct, frozen=True, kw_only=True):
    """Two models' answers to one question, compared once. `outcome` names the winner; None is a failed judgment.

    Battles that share a `group` (a question, an image) are resampled together; None is a group of its own.
    """

    a: str
    b: str
    outcome: Outcome | None
    group: str | None = None


class WinRate(Struct, frozen=True, kw_only=True):
    """How often a model won, over `n` verdicts; `failed` judgments are left out.

    `rate` (0..1) counts a tie as half a win; with `wins`, `ties` and `losses` any other rate can be had.
    `standard_error` takes the verdicts for independent. Either is None exactly when `undefined` says why.
    """

    n: int
    failed: int
    wins: int
    ties: int
    losses: int
    rate: float | None
    standard_error: float | None
    undefined: dict[str, str] = field(default_factory=dict)


class Ratings(Struct, frozen=True, kw_only=True):
    """Rating points by model, from `n` battles; `failed` judgments are left out.

    `ratings` is None exactly when `undefined` says why. `intervals` holds 95 % intervals, None exactly when
    `no_intervals` says why.
    """

    n: int
    failed: int
    ratings: dict[str, float] | None
    undefined: str | None = None
    intervals: dict[str, Interval] | None = None
    no_intervals: str | None = "not asked for"


def win_rate(points: Iterable[float | None]) -> WinRate:
    """The rate of one model's points: 1 a win, 1/2 a tie, 0 a loss, a probability in between; None or NaN failed.

    What is nearer to a win counts among the wins. The standard error is that of a mean, with n - 1. Raises ValueError
    for points outside 0..1.
    """
    given = np.array([np.nan if value is None else value for value in points], dtype=np.float64)
    kept = given[~np.isnan(given)]
    off = kept[(kept < 0) | (kept > 1)]
    if off.size:
        raise ValueError(f"{off[0]:g} is outside 0..1; expected 1 for a win, 0.5 for a tie, 0 for a loss")
    few = {0: {"rate": "no verdicts", "standard_error": "no verdicts"}, 1: {"standard_error": "needs two verdicts"}}
    return WinRate(
        n=len(kept),
        failed=len(given) - len(kept),
        wins=int((kept > 0.5).sum()),
        ties=int((kept == 0.5).sum()),
        losses=int((kept < 0.5).sum()),
        rate=float(kept.mean()) if len(kept) else None,
        standard_error=float(kept.std(ddof=1) / math.sqrt(len(kept))) if len(kept) > 1 else None,
        undefined=few.get(len(kept), {}),
    )


def win_rates(battles: Iterable[Battle]) -> dict[str, WinRate]:
    """The `win_rate` of every model, by name, over its own battles."""
    points: dict[str, list[float | None]] = {}
    for battle in battles:
        score = _POINTS.get(battle.outcome)
        points.setdefault(battle.a, []).append(score)
        points.setdefault(battle.b, []).append(None if score is None else 1 - score)
    return {model: win_rate(points[model]) for model in sorted(points)}


class _Games(Struct, frozen=True, kw_only=True):
    """The judged battles as arrays over them: numbers of the models, 0..m-1 in the order of `models`, points of the
    first (1, 1/2, 0), and numbers of the groups."""

    models: list[str]
    first: Integers
    second: Integers
    score: Floats
    member: Integers
    failed: int

    @property
    def cell(self) -> Integers:
        """Each battle's place in a table of (first, second, loss | tie | win)."""
        return (self.first * len(self.models) + self.second) * 3 + (2 * self.score).astype(np.intp)

    def rated(self, points: Floats) -> Ratings:
        ratings = dict(zip(self.models, points.tolist(), strict=True))
        return Ratings(n=len(self.score), failed=self.failed, ratings=ratings)

    def undefined(self, reason: str) -> Ratings:
        return replace(self.rated(np.zeros(len(self.models))), ratings=None, undefined=reason, no_intervals=reason)


def _games(battles: Sequence[Battle]) -> _Games:
    judged = [(battle, score) for battle in battles if (score := _POINTS.get(battle.outcome)) is not None]
    models = sorted({model for battle, _ in judged for model in (battle.a, battle.b)})
    number = {model: place for place, model in enumerate(models)}
    groups = [(place,) if battle.group is None else battle.group for place, (battle, _) in enumerate(judged)]
    return _Games(
        models=models,
        first=np.array([number[battle.a] for battle, _ in judged], dtype=np.intp),
        second=np.array([number[battle.b] for battle, _ in judged], dtype=np.intp),
        score=np.array([score for _, score in judged], dtype=np.float64),
        member=group_numbers(groups),
        failed=len(battles) - len(judged),
    )


def mean_elo(
    battles: Sequence[Battle], shuffles: int = 100, seed: int = 0, k: float = K, resamples: int = 0
) -> Ratings:
    """Elo ratings, each battle updating both models by at most `k` points, as the mean over seeded random orders of the
    battles: the order given does not matter.

    a is expected to score 1 / (1 + BASE^((R_b - R_a) / SCALE)) (VisIT-Bench, appendix, sign corrected). A tie is worth
    1/2. With `resamples` there are bootstrap percentile intervals over groups; each resample is fought in one order of
    its own, so they are also about the order. Raises ValueError for a model against itself, an unknown outcome, or
    fewer than one of `shuffles`.
    """
    games = _games(battles)
    if not games.models:
        return games.undefined("no battles")
    sorted_games = np.lexsort((games.score, games.second, games.first))
    random = np.random.default_rng(seed)
    orders = [random.permutation(sorted_games) for _ in range(shuffles)]
    found = games.rated(_fought(games, orders, k).mean(axis=1))
    draws = Bootstrap(games.member, resamples, seed)
    if not resamples or not draws.enough:
        return replace(found, no_intervals=draws.too_few()) if resamples else found
    drawn = []
    for block in islice(draws.drawn(), 1, None):
        for start in range(0, block.shape[1], _ORDERS):
            counts = block[games.member[sorted_games], start : start + _ORDERS].astype(np.intp)
            drawn.append(_fought(games, [random.permutation(np.repeat(sorted_games, count)) for count in counts.T], k))
    intervals = {
        model: interval
        for model, points in zip(games.models, np.concatenate(drawn, axis=1), strict=True)
        if (interval := draws.interval(points))
    }
    return replace(found, intervals=intervals, no_intervals=None)


def _fought(games: _Games, orders: Sequence[Integers], k: float) -> Floats:
    """The ratings after the battles of each order, shape (m, orders)."""
    longest = max(map(len, orders))
    padded = np.stack(
        [np.pad(order.astype(np.int32), (0, longest - len(order)), constant_values=-1) for order in orders]
    )
    ratings = np.full((len(games.models), len(orders)), INITIAL, dtype=np.float64)
    lane = np.arange(len(orders))
    for game in np.ascontiguousarray(padded.T):  # one game of every order at once; the shorter ones have none left
        first, second = games.first[game], games.second[game]
        lead = ratings[first, lane] - ratings[second, lane]
        change = np.where(game < 0, 0.0, k * (games.score[game] - 1 / (1 + BASE ** (-lead / SCALE))))
        ratings[first, lane] += change
        ratings[second, lane] -= change
    return ratings


def bradley_terry(battles: Sequence[Battle], resamples: int = 1000, seed: int = 0) -> Ratings:
    """Bradley-Terry maximum-likelihood ratings on Elo's scale, their mean over all models at INITIAL points.

    A tie is worth half a win of each. A finite maximum exists exactly when no set of models is without a win or tie
    against the rest (Ford 1957); otherwise `undefined` names the models that stand in its way. Intervals are bootstrap
    percentile intervals over groups, widened for few groups (Hesterberg 2015, §3.2). None are given with fewer than
    FEWEST_GROUPS groups or where more than a tenth of the resamples have no finite maximum, which sparse comparisons
    often cause. `resamples` = 0 leaves them out.
    """
    games = _games(battles)
    models, points_per_logit = len(games.models), SCALE / math.log(BASE)
    if not models:
        return games.undefined("no battles")
    wins = _wins(np.bincount(games.cell, minlength=3 * models**2), models)
    strength = _maximum_likelihood(wins)[0]
    if np.isnan(strength).any():
        return games.undefined(_no_maximum(games.models, wins[0]))
    found = games.rated(INITIAL + points_per_logit * strength)
    if not resamples:
        return found
    draws = Bootstrap(games.member, resamples, seed)
    if not draws.enough:
        return replace(found, no_intervals=draws.too_few())
    tables = islice(draws.tables(games.cell, 3 * models**2), 1, None)
    drawn = np.concatenate([_maximum_likelihood(_wins(block.T, models)) for block in tables])
    intervals = [draws.interval(points) for points in (INITIAL + points_per_logit * drawn).T]
    known = {model: interval for model, interval in zip(games.models, intervals, strict=True) if interval}
    if len(known) < models:
        share = np.isnan(drawn).any(axis=1).mean()
        return replace(found, no_intervals=f"{share:.0%} of the resamples have no finite maximum")
    return replace(found, intervals=known, no_intervals=None)


def _wins(counts: NDArray[np.generic], models: int) -> Floats:
    """Wins, ties as halves, of model i over model j, shape (R, m, m), from R tables of `_Games.cell`."""
    lost, tied, won = np.moveaxis(counts.reshape(-1, models, models, 3).astype(np.float64), 3, 0)
    return np.asarray(won + tied / 2 + np.swapaxes(lost + tied / 2, 1, 2))


def _reaches(wins: Floats) -> NDArray[np.bool_]:
    """From which model wins lead to which, in R tables of wins (R, m, m). The likelihood has a finite maximum where
    they lead from any model to any (Ford 1957)."""
    models = wins.shape[1]
    reaches = (np.eye(models) + (wins > 0)).astype(np.float32)
    for _ in range(models.bit_length()):  # each step doubles how many wins a way may have
        reaches = np.minimum(reaches @ reaches, 1)
    return reaches > 0


def _no_maximum(models: list[str], wins: Floats) -> str:
    """Why no maximum of the likelihood of a table of wins (m, m) was found."""
    reaches = _reaches(wins[None])[0]
    if reaches.all():
        return "the maximum was not found: the wins are too uneven for floating point"
    # The fewest models reach those at the top: only each other.
    above = reaches[:, np.argmin(reaches.sum(axis=0))]
    top = " and ".join(model for model, is_top in zip(models, above, strict=True) if is_top)
    if not wins[above][:, ~above].any():
        return f"no finite maximum: {top} never met the other models"
    return f"no finite maximum: {top} never lost to or tied with the other models"


def _maximum_likelihood(wins: Floats) -> Floats:
    """Log-strengths with mean 0, shape (R, m), of R tables of wins (R, m, m); NaN where there is no finite maximum.

    Newton's method with steps of ln(1 + d) / d, d the largest change of a difference of strengths, which converges
    from anywhere (Sun and Tran-Dinh 2019, generalized self-concordant functions with nu = 2).
    """
    finite = _reaches(wins).all(axis=(1, 2))
    won, models = wins[finite], wins.shape[1]
    strength, length = np.zeros(won.shape[:2]), np.full((len(won), 1), np.inf)
    for _ in range(_NEWTON_STEPS):
        if (length < _PRECISE).all():
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
    found = np.full(wins.shape[:2], np.nan)
    found[finite] = np.where(length < _PRECISE, strength, np.nan)
    return found


def battles(verdicts: Iterable[Judgment], groups: Mapping[str, str]) -> list[Battle]:
    """The verdicts between two models as battles, in the given order; `groups` are those of the conversations.

    A score other than 1, 1/2 or 0 cannot be told apart from a tie and is refused. Raises UsageError for it, for an
    unknown conversation, for a model against itself, and for a pair of models compared twice on one instruction.
    """
    outcomes: dict[float | None, Outcome | None] = {1.0: "a", 0.5: "tie", 0.0: "b", None: None}
    seen: set[tuple[str, frozenset[str]]] = set()
    found = []
    for verdict in verdicts:
        if verdict.protocol != "pairwise" or verdict.opponent is None:
            continue
        check(verdict)
        pair = verdict.sample.id, frozenset((verdict.system, verdict.opponent))
        if verdict.sample.id not in groups:
            raise UsageError(f"{name(verdict)}: not in the questions")
        if verdict.system == verdict.opponent:
            raise UsageError(f"{name(verdict)}: {verdict.system} is compared with itself")
        if verdict.score not in outcomes:
            raise UsageError(f"{name(verdict)}: score {verdict.score:g}; expected 1, 0.5 or 0")
        if pair in seen:
            raise UsageError(f"{name(verdict)}: {verdict.system} and {verdict.opponent} compared twice")
        seen.add(pair)
        outcome = outcomes[verdict.score]
        found.append(Battle(a=verdict.system, b=verdict.opponent, outcome=outcome, group=groups[verdict.sample.id]))
    return found


class Tournament(Struct, frozen=True, kw_only=True):
    """Models by their battles: win rates, online Elo as the mean over `shuffles` seeded orders, and Bradley-Terry
    ratings with intervals."""

    win_rates: dict[str, WinRate]
    elo: Ratings
    bradley_terry: Ratings
    k: float = K
    shuffles: int = SHUFFLES
    seed: int = SEED


def tournament(fought: Sequence[Battle]) -> Tournament:
    """Win rates and ratings of `battles`; see `mean_elo` and `bradley_terry` for when a rating is undefined."""
    return Tournament(
        win_rates=win_rates(fought),
        elo=mean_elo(fought, shuffles=SHUFFLES, seed=SEED, resamples=RESAMPLES),
        bradley_terry=bradley_terry(fought, seed=SEED),
    )
