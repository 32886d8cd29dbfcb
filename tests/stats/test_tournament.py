"""critic.stats.tournament against golden values and other libraries; peers' aggregates; alignment."""

import math
from collections.abc import Iterable
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
from draws import share_that_holds
from hypothesis import given
from hypothesis import strategies as st
from samples import read_golden, score_tasks

from critic.benchmarks import alignmmbench
from critic.judging.parse import parse_rating
from critic.records import Conversation
from critic.stats import tournament
from critic.stats.aggregate import Aggregate, mean
from critic.stats.leaderboard import aggregate_of
from critic.stats.tournament import Battle, bradley_terry, mean_elo
from critic.stats.verdicts import TIE, A, B, both_orders, codes

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

OUTCOMES: dict[str, Any] = {
    "model_a": "a",
    "model_b": "b",
    "model_1": "a",
    "model_2": "b",
    "tie": "tie",
    "tie (bothbad)": "tie",
}
POINTS = {"a": 1.0, "tie": 0.5, "b": 0.0}
LOGIT = 400 / math.log(10)


def battles(rows: list[Any], group: Any = None) -> list[Battle]:
    """Rows (a, b, outcome); the group of row i is `group(i)`."""
    return [
        Battle(a=a, b=b, score=POINTS[OUTCOMES.get(outcome, outcome)], group=group(place) if group else str(place))
        for place, (a, b, outcome) in enumerate(rows)
    ]


def simulated(strengths: list[float], n: int, seed: int, size: int = 1) -> list[Battle]:
    """n groups of `size` battles between models m0, m1, …; within a group the outcome is always the same."""
    random = np.random.default_rng(seed)
    rows = []
    for group in range(n):
        i, j = random.permutation(len(strengths))[:2]
        won = random.random() < 1 / (1 + math.exp(strengths[j] - strengths[i]))
        battle = Battle(a=f"m{i}", b=f"m{j}", score=float(won), group=f"g{group}")
        rows += [battle] * size
    return rows


def elo(rows: list[Battle], k: float = 4) -> dict[str, float]:
    """Ratings after the battles in the order given."""
    ratings = dict.fromkeys(sorted({model for row in rows for model in (row.a, row.b)}), 1000.0)
    for row in rows:
        change = k * (row.score - 1 / (1 + 10 ** ((ratings[row.b] - ratings[row.a]) / 400)))
        ratings[row.a] += change
        ratings[row.b] -= change
    return ratings


def test_golden_ratings(shared: Any) -> None:
    case = read_golden(shared, "ratings")
    rows = battles(case["battles"])
    assert case["params"] == {"K": 4, "base": 10, "scale": 400, "init": 1000}
    assert elo(rows) == pytest.approx(case["elo_online"], abs=1e-9)
    assert elo(rows[::-1]) == pytest.approx(case["elo_online_reversed_order"], abs=1e-9)
    fitted = bradley_terry(rows)
    assert fitted.ratings == pytest.approx(case["bradley_terry_mle"], abs=1e-10)
    assert fitted.ratings == pytest.approx(case["bradley_terry_fastchat_lbfgs"], abs=1e-5)
    assert bradley_terry(rows[::-1]).ratings == pytest.approx(case["bradley_terry_mle"], abs=1e-10)
    unbeaten = bradley_terry(battles(case["unbeaten"]["battles"]))
    assert unbeaten.unrated == {"a": "never lost or tied"} and set(unbeaten.ratings or {}) == {"b", "c"}
    assert unbeaten.intervals is None and "resamples have no finite maximum" in str(unbeaten.undefined)


def test_mean_elo_is_the_mean_over_orders_whatever_order_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tournament, "K", 100)
    monkeypatch.setattr(tournament, "SHUFFLES", 20_000)
    rows = battles([("x", "y", "a"), ("y", "z", "a"), ("z", "x", "tie"), ("y", "x", "a"), ("x", "y", "a")])
    orders = [elo(list(order), k=100) for order in permutations(rows)]
    exact = {model: np.mean([ratings[model] for ratings in orders]) for model in "xyz"}
    mean_ratings = mean_elo(rows)
    assert mean_ratings.ratings == pytest.approx(exact, abs=0.5)
    assert np.std([ratings["x"] for ratings in orders]) > 3
    assert mean_elo(rows) == mean_ratings and mean_elo(rows[::-1]).ratings == pytest.approx(
        mean_ratings.ratings, abs=0.5
    )
    assert mean_elo(rows[:1]).ratings == {"x": 1050, "y": 950}


outcomes = st.sampled_from(["a", "b", "tie"])
some_battles = st.lists(
    st.tuples(st.sampled_from("vwxyz"), st.sampled_from("vwxyz"), outcomes).filter(lambda row: row[0] != row[1]),
    min_size=1,
    max_size=25,
)


def beats_outside(rows: list[tuple[str, str, str]], inside: set[str]) -> bool:
    """Return True if a model outside has a win or tie against one inside."""
    across = [row for row in rows if (row[0] in inside) != (row[1] in inside)]
    return any(outcome == "tie" or (outcome == "a") != (a in inside) for a, _, outcome in across)


def finite_maximum(rows: list[tuple[str, str, str]]) -> bool:
    """Ford's condition as it stands: no set of models escapes every win and tie of the rest."""
    models = sorted({model for a, b, _ in rows for model in (a, b)})
    return all(
        beats_outside(rows, set(inside)) for size in range(1, len(models)) for inside in combinations(models, size)
    )


@given(some_battles)
def test_a_finite_maximum_is_one_and_anything_else_is_named(rows: list[tuple[str, str, str]]) -> None:
    fitted = bradley_terry(battles(rows))
    if fitted.ratings is None:
        assert not finite_maximum(rows) and not fitted.unrated
        assert fitted.undefined and fitted.undefined.startswith("no finite maximum: ")
        top = fitted.undefined.removeprefix("no finite maximum: ").split(" never")[0].split(" and ")
        assert not beats_outside(rows, set(top))
        return
    assert (not fitted.unrated) == finite_maximum(rows)
    assert fitted.ratings.keys() | fitted.unrated == {model for a, b, _ in rows for model in (a, b)}
    # The score equations: each model's points against the rated equal what its ratings say it should have.
    surplus = dict.fromkeys(fitted.ratings, 0.0)
    for a, b, outcome in rows:
        if not {a, b} <= fitted.ratings.keys():
            continue
        chance = 1 / (1 + 10 ** ((fitted.ratings[b] - fitted.ratings[a]) / 400))
        points = POINTS[outcome] - chance
        surplus[a] += points
        surplus[b] -= points
    assert surplus == pytest.approx(dict.fromkeys(surplus, 0.0), abs=1e-9)
    assert np.mean(list(fitted.ratings.values())) == pytest.approx(1000, abs=1e-9)


def test_very_uneven_wins_still_converge() -> None:
    """A chain where each model beats the next 10,000 to 1."""
    chain = [pair for n in range(3) for pair in [(f"m{n}", f"m{n + 1}", "a")] * 10_000 + [(f"m{n}", f"m{n + 1}", "b")]]
    fitted = bradley_terry(battles(chain, lambda _: "g"))
    assert np.diff(list((fitted.ratings or {}).values())) == pytest.approx(-LOGIT * math.log(1e4), abs=1e-6)


def test_evalica_agrees() -> None:
    evalica = pytest.importorskip("evalica")
    rows = simulated([0, 0.5, 1, -1, 0.2], 400, seed=1)
    winners = [evalica.Winner.X if row.score else evalica.Winner.Y for row in rows]
    columns = [row.a for row in rows], [row.b for row in rows], winners
    points = 400 * np.log10(evalica.bradley_terry(*columns, tolerance=1e-14, limit=10_000).scores)
    assert bradley_terry(rows).ratings == pytest.approx((points - points.mean() + 1000).to_dict(), abs=1e-6)


@pytest.mark.worlds
def test_intervals_cover_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tournament, "RESAMPLES", 300)
    worlds = [bradley_terry(simulated([0.6, 0.0, -0.6], 80, seed, size=2)).intervals for seed in range(250)]
    intervals = [world["m0"] if world else None for world in worlds]
    assert 0.92 <= share_that_holds(intervals, 1000 + 0.6 * LOGIT) <= 0.98


@pytest.mark.parametrize("rate", [mean_elo, bradley_terry])
def test_intervals_resample_groups(rate: Any) -> None:
    """The same verdict five times on one question is one verdict; four times the groups halve the interval."""
    once, five, more = (simulated([0.5, 0, -0.5], n, seed=3, size=size) for n, size in ((60, 1), (60, 5), (240, 1)))
    first, grouped, narrow = rate(once), rate(five), rate(more)
    alone = rate([Battle(a=row.a, b=row.b, score=row.score, group=str(n)) for n, row in enumerate(five)])
    for model, (low, high) in grouped.intervals.items():
        assert low < grouped.ratings[model] < high
        assert alone.intervals[model][1] - alone.intervals[model][0] < 0.6 * (high - low)
    if rate is bradley_terry:
        for model, (low, high) in first.intervals.items():
            assert grouped.intervals[model] == pytest.approx((low, high), abs=1e-6)
            assert narrow.intervals[model][1] - narrow.intervals[model][0] < 0.65 * (high - low)
        assert rate(five[::-1]).intervals == grouped.intervals


def test_intervals_that_cannot_be_had_are_explained() -> None:
    rows = simulated([0, 0], 40, seed=0)
    few = bradley_terry(
        battles([(row.a, row.b, "a" if row.score else "b") for row in rows], lambda place: f"{place % 4}")
    )
    assert few.ratings and few.intervals is None and few.undefined == "4 groups; an interval needs at least 5"
    sparse = bradley_terry(
        battles([("a", "b", "a"), ("b", "c", "a"), ("c", "d", "a"), ("d", "e", "a"), ("e", "a", "a")])
    )
    assert sparse.ratings and sparse.intervals is None
    assert sparse.undefined and "resamples have no finite maximum" in sparse.undefined


def win_rate(points: Iterable[float | None]) -> Aggregate:
    """A model's win rate: the mean of its points."""
    scores = dict(enumerate(points))
    return mean(scores, scores, (0, 1))


def test_win_rates_of_peers(shared: Any) -> None:
    """AlpacaEval's are ours over preference - 1; a draw written as 0 is 1.5 there, a failed judgment NaN. ConvBench's
    denominator is 577 whatever was judged: the same where 577 were, and not ours where judgments failed. Inspect's are
    accuracies."""
    aggregates = read_golden(shared, "aggregates")
    case, examples, inspect = aggregates["alpaca_eval"], aggregates["convbench"]["examples"], aggregates["inspect"]
    for name in ("mixed", "all_win", "one", "draws"):
        given, expected = case[name]["preferences"], case[name]["result"]
        rate_of_wins = win_rate(None if value == "NaN" else (value or 1.5) - 1 for value in given)
        assert rate_of_wins.value == pytest.approx(expected["win_rate"] / 100, abs=1e-12)
        assert (rate_of_wins.n, rate_of_wins.failed) == (expected["n_total"], len(given) - expected["n_total"])
    for key, wins in {"1 win": 1, "234 wins": 234}.items():
        assert win_rate([1.0] * wins + [0.0] * (577 - wins)).value == pytest.approx(examples[key], abs=1e-12)
    assert win_rate([1.0] * 578).value == 1.0 < examples["all 578 win"]
    unread = win_rate([1.0] * 234 + [None] * 77 + [0.0] * 266)
    assert (unread.n, unread.failed) == (500, 77)
    assert unread.value == 234 / 500 != examples["234 wins"]
    accuracy = win_rate([*({"C": 1.0, "P": 0.5, "I": 0.0}[value] for value in inspect["values"]), None])
    assert (accuracy.value, accuracy.failed) == (pytest.approx(inspect["accuracy"], abs=1e-12), 1)


def test_fastchat_pairwise(shared: Any) -> None:
    """Two games in swapped order, a model named in each: `both_orders`, then each model's win rate."""
    case = read_golden(shared, "aggregates")["fastchat"]
    names = {**OUTCOMES, "error": "failed"}
    games = np.stack([codes(names[row[place]] for row in case["pairwise_rows"]) for place in (2, 3)], axis=1)
    points: dict[str, list[float | None]] = {}
    for (a, b, *_), code in zip(case["pairwise_rows"], both_orders(games), strict=True):
        won = {A: 1.0, TIE: 0.5, B: 0.0}.get(int(code))
        points.setdefault(a, []).append(won)
        points.setdefault(b, []).append(None if won is None else 1 - won)
    for line in case["pairwise_output"][4:7]:
        model, *_, adjusted = line.split()
        assert win_rate(points[model]).value == pytest.approx(float(adjusted), abs=1e-12)
    assert {model: win_rate(some).failed for model, some in points.items()} == {"m1": 1, "m2": 0, "m3": 1}


def test_fastchat_single_averages(shared: Any) -> None:
    """A turn taken for a task: its mean per turn, and its average over rows, which is our mean over questions."""
    case = read_golden(shared, "aggregates")["fastchat"]
    expected = case["expected_single"]
    for model, failed in (("m1", 1), ("m2", 1)):
        rows = [row for row in case["single_rows"] if row["model"] == model]
        scores = score_tasks([(f"turn{row['turn']}", None if row["score"] == -1 else row["score"]) for row in rows])
        aggregates = {name: aggregate_of(score) for name, score in scores.items()}
        for turn in ("turn1", "turn2"):
            assert aggregates[turn].value == expected[f"{model}_{turn}"]
        assert aggregates["mean of the questions"].value == pytest.approx(expected[f"{model}_average"], abs=1e-12)
        assert aggregates["mean of the questions"].failed == failed


def test_vlmevalkit_scores(shared: Any) -> None:
    """Its "valid" mean is ours; its "all" counts a failure as 0; a 12 is clipped there and a named failure here."""
    case = read_golden(shared, "aggregates")["vlmevalkit"]
    overall = {row["set"]: row["Overall Score"] for row in case["result"]}
    given = [score for scores in case["input"].values() for score in scores]
    clipped = [None if score is None else min(int(score), 10) for score in given]
    overall_mean = aggregate_of(score_tasks([("t", score) for score in clipped])["mean of the questions"])
    assert 10 * overall_mean.value == pytest.approx(overall["valid"], abs=1e-12)
    assert (overall_mean.n, overall_mean.failed) == (4, 3)
    assert 10 * overall_mean.value * overall_mean.coverage == pytest.approx(overall["all"], abs=1e-12)
    read = [parse_rating("" if score is None else f'{{"Rating": {score}}}') for score in given]
    assert [verdict.failure for verdict in read] == [None, None, "empty", "out_of_range", None, "empty", "empty"]
    ours = aggregate_of(score_tasks([("t", verdict.rating) for verdict in read])["mean of the questions"])
    assert ours.value == pytest.approx((7 + 9 + 7.9) / 3, abs=1e-12)
    assert (ours.n, ours.failed) == (3, 4)


def alignment(groups: list[list[float | None]]) -> dict[str, float | None]:
    """Both scores of ratings by group; None: infinite."""
    ratings = {f"{group}-{n}": rating for group, ratings in enumerate(groups) for n, rating in enumerate(ratings)}
    conversations = [Conversation(id=key, lang="zh", group=key.partition("-")[0], turns=[]) for key in ratings]
    return {name: aggregate_of(score).value for name, score in alignmmbench.alignment(ratings, conversations).items()}


def test_golden_alignment_scores(shared: Any) -> None:
    for name, case in read_golden(shared, "alignment_score").items():
        expected = None if case["expected"] == "Infinity" else pytest.approx(case["expected"], abs=1e-12)
        assert alignment(case["groups"])["alignment"] == expected, name
