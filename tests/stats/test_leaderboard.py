"""critic.stats.leaderboard: scores, intervals and paired differences of several models, against brute force."""

import random
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from draws import counts_of
from msgspec.structs import replace
from samples import build_conversation

from critic.benchmarks import alignmmbench
from critic.stats import leaderboard
from critic.stats.aggregate import Difference, combine, mean
from critic.stats.arrays import group_numbers
from critic.stats.estimate import Bootstrap, Interval
from critic.stats.leaderboard import MEAN, LeaderboardRow, Score, Standings, Term, ranks, score_of, standings

GROUPS = {f"c{number}": f"g{number // 2}" for number in range(40)}


def verdicts(seed: int, missing: int = 0) -> dict[str, float | None]:
    draw = random.Random(seed)
    return {key: None if number < missing else draw.choice((0.0, 50.0, 100.0)) for number, key in enumerate(GROUPS)}


def entry(name: str, scores: dict[str, Score], condition: str = "own") -> LeaderboardRow:
    return LeaderboardRow(key="k", caption="c", system=name, name=name, scores=scores, condition=condition)


def table(scores: dict[str, dict[str, Score]], baseline: str | None = None, apart: tuple[str, ...] = ()) -> Standings:
    conditions = dict.fromkeys(apart, "no_image")
    return standings([entry(name, some, conditions.get(name, "own")) for name, some in scores.items()], baseline)


def paired(base: dict[str, float | None], other: dict[str, float | None]) -> tuple[float, int, Interval | None]:
    """Return the mean of second minus first over common keys, their number, and its interval over groups."""
    both = [key for key in GROUPS if base[key] is not None and other[key] is not None]
    changes, draws = np.array([other[key] - base[key] for key in both]), Bootstrap([GROUPS[key] for key in both])
    times, counts = counts_of(draws), np.bincount(draws.member).astype(float)
    drawn = (np.bincount(draws.member, changes) @ times) / (counts @ times)
    return float(changes.mean()), len(both), draws.interval(drawn)


def plain(seed: int, missing: int = 0) -> Score:
    return score_of(verdicts(seed, missing), GROUPS, (0, 100))


def test_a_mean_has_the_interval_of_the_bootstrap_over_groups() -> None:
    standing = table({"m": {"S": plain(1, missing=3)}})["m"]["S"]
    judged = {key: value for key, value in verdicts(1, 3).items() if value is not None}
    assert (standing.n, standing.failed, standing.asked) == (37, 3, 40)
    assert standing.value == pytest.approx(fmean(judged.values()))
    names = sorted(set(GROUPS.values()))
    sums = np.array([sum(v for k, v in judged.items() if GROUPS[k] == name) for name in names])
    counts = np.array([sum(GROUPS[k] == name for k in judged) for name in names], dtype=float)
    draws = Bootstrap(group_numbers(names))
    times = counts_of(draws)
    drawn = (sums @ times) / (counts @ times)
    # Both groups of c0 and c1 failed: the interval is about one group less than was drawn from.
    assert standing.interval == pytest.approx(draws.interval(drawn, groups=19))
    assert standing.low == pytest.approx(sum(judged.values()) / 40)


def test_differences_are_paired_and_bounded_as_those_of_two_runs() -> None:
    """A verdict without one of the baseline is no part of the difference."""
    scores = {"a": {"S": plain(1, missing=4)}, "b": {"S": plain(2)}, "c": {"S": plain(3, missing=6)}}
    board = table(scores, "a")
    third = board["c"]["S"].difference
    assert third is not None and (third.n, third.missing) == (34, 6)
    assert third.mean == pytest.approx(paired(verdicts(1, 4), verdicts(3, 6))[0])
    assert board["a"]["S"].difference is None
    less = board["b"]["S"].difference
    change, n, interval = paired(verdicts(1, 4), verdicts(2))
    assert (less.mean, less.n, less.missing, less.groups) == (pytest.approx(change), n, 4, 18)
    total_change = sum(verdicts(2).values()) - sum(value for value in verdicts(1, 4).values() if value is not None)
    assert (less.low, less.high) == (pytest.approx((total_change - 400) / 40), pytest.approx(total_change / 40))
    assert less.interval == pytest.approx(interval, abs=4)


def test_a_sum_of_means_is_resampled_as_one() -> None:
    """S3 - S1 of the same verdicts is 0 in every resample; of others it is as wide as their pairs are far apart."""
    base, other = verdicts(1), verdicts(2)
    same = Score(parts=[Term(1, base, GROUPS, (0, 100)), Term(-1, base, GROUPS, (0, 100))])
    delta = Score(parts=[Term(1, other, GROUPS, (0, 100)), Term(-1, base, GROUPS, (0, 100))])
    board = table({"m": {"same": same, "delta": delta}})["m"]
    assert board["same"].interval == (0, 0) and board["same"].n == 80
    change, _, interval = paired(base, other)
    assert board["delta"].value == pytest.approx(change)
    assert board["delta"].interval == pytest.approx(interval, abs=4)


def test_models_that_cannot_be_told_apart_share_places() -> None:
    """Paired: what two models share in every group does not blur their difference."""
    noise = {key: 10.0 * (number % 9) for number, key in enumerate(GROUPS)}
    ahead = {"top": lambda number: 9 + number % 7, "near": lambda _: 8, "low": lambda _: 0}

    def lead(name: str, add: Any) -> LeaderboardRow:
        values = {key: value + add(number) for number, (key, value) in enumerate(noise.items())}
        return entry(name, {"S": score_of(values, GROUPS, (0, 100))})

    entries = [lead(name, add) for name, add in ahead.items()]
    assert ranks(entries, "S") == {"top": (1, 1), "near": (2, 2), "low": (3, 3)}
    tied = lead("tied", lambda number: 9 + 40 * (-1) ** (number // 2))
    assert ranks([*entries, tied], "S") == {"top": (1, 2), "near": (2, 3), "low": (3, 4), "tied": (1, 4)}
    blind = replace(tied, condition="no_image")
    partly = replace(tied, scores={"S": replace(tied.scores["S"], of=2)})
    assert set(ranks([*entries, blind], "S")) == set(ranks([*entries, partly], "S")) == set(ahead)
    assert ranks([*entries, replace(tied, system="top")], "S") == {}, "two judges of one model"


TASKS = {name: {f"{name}{n}": f"{name}{n // 2}" for n in range(10)} for name in "tuvw"}


def of_tasks(shift: float, *scored: str, left: int = 10, first: int = 0) -> Score:
    """The mean of the means of the scored tasks, of the first `left` questions of each; of the task "t" not the first
    few."""
    means: dict[str, dict[str, float | None]] = {}
    for place, (name, keys) in enumerate(TASKS.items()):
        judged = range(first if name == "t" else 0, left if name in scored else 0)
        means[name] = {key: shift + place + n for n, key in enumerate(keys) if n in judged}
    parts = [Term(1 / len(scored), means[name], TASKS[name], (0, 100), name) for name in scored]
    whole = combine([(0.25, mean(means[name], TASKS[name], (0, 100))) for name in TASKS])
    return Score(parts=parts, of=4, counts=whole)


def less(mine: Score, base: Score) -> Difference:
    return table({"m": {"S": mine}, "base": {"S": base}}, "base")["m"]["S"].difference


def test_means_over_tasks_are_compared_on_the_tasks_that_both_have() -> None:
    """The model is 3 better in each task, also if either lacks a task or they share no question in one."""
    every = less(of_tasks(4, *"tuvw"), of_tasks(1, *"tuvw"))
    assert (every.mean, every.n, every.missing, every.partly) == (3, 40, 0, "")
    for mine, base, n, groups, partly in (
        (of_tasks(4, *"uvw"), of_tasks(1, *"tuvw"), 30, 15, "3 of 4"),
        (of_tasks(4, *"tuvw"), of_tasks(1, *"uvw"), 30, 15, "3 of 4"),
        (of_tasks(4, *"uvw"), of_tasks(1, *"tuw"), 20, 10, "2 of 4"),
        (of_tasks(4, *"uvw"), of_tasks(1, *"uvw"), 30, 15, "3 of 4"),
        (of_tasks(4, *"tuvw", left=8), of_tasks(1, *"tuvw", first=8), 24, 12, "3 of 4"),
    ):
        difference = less(mine, base)
        assert (difference.n, difference.missing, difference.partly) == (n, 40 - n, partly)
        assert difference.mean == pytest.approx(3)
        assert difference.interval == pytest.approx((3, 3)) and difference.groups == groups and not difference.undefined
        # The range is that of all four tasks: what a side lacks may be 0 or 100.
        assert difference.low == pytest.approx(mine.counts.low - base.counts.high)
    nothing = less(of_tasks(4, "t", "u"), of_tasks(1, "v", "w"))
    assert (nothing.mean, nothing.n, nothing.interval) == (None, 0, None)
    assert nothing.undefined == "no pairs"


def mean_of_thirteen(shift: float, of: int = 0) -> Score:
    """Return a mean of 13 tasks of two questions, rated `shift` plus 0 to 5, one more for the second question."""
    parts = []
    for task in range(13):
        ids = {f"{task}-{k}": f"{task}-{k}" for k in range(2)}
        parts.append(Term(1 / 13, {key: shift + task % 5 + k for k, key in enumerate(ids)}, ids, (0, 10), f"t{task}"))
    return Score(parts=parts, of=of)


def test_the_mean_of_tasks_is_over_those_that_a_resample_has() -> None:
    """Row 11: AlignMMBench's mean has an interval and differences where most resamples lack a task."""
    cell = table({"m": {"S": mean_of_thirteen(3, of=13)}})["m"]["S"]
    draws = Bootstrap(np.arange(26))
    # The table numbers its groups in the order of their names.
    names = sorted(f"{task}-{k}" for task in range(13) for k in range(2))
    marks = np.array([3.0 + int(name.split("-")[0]) % 5 + int(name[-1]) for name in names])
    tasks = np.array([int(name.split("-")[0]) for name in names])
    drawn = []
    for times in counts_of(draws).T:
        own = [
            times[tasks == task] @ marks[tasks == task] / times[tasks == task].sum() for task in set(tasks[times > 0])
        ]
        drawn.append(fmean(own))
    assert cell.value == pytest.approx(marks.mean()) and cell.interval == pytest.approx(draws.interval(np.array(drawn)))
    difference = less(mean_of_thirteen(4, of=13), mean_of_thirteen(1, of=13))
    assert difference.mean == pytest.approx(3) and difference.interval == pytest.approx((3, 3))


def test_no_interval_has_its_own_reason() -> None:
    """A sum of 13 parts of two questions each: most resamples leave out a part, however many groups there are."""
    difference = less(mean_of_thirteen(4), mean_of_thirteen(1))
    assert difference.mean == pytest.approx(3) and difference.groups == 26
    assert difference.interval is None and difference.p_value is None
    assert difference.undefined == "undefined in more than a tenth of the resamples"
    few = {f"c{number}": f"g{number}" for number in range(4)}
    some = [score_of(dict.fromkeys(few, value), few, (0, 10)) for value in (4.0, 1.0)]
    assert less(*some).undefined == "4 groups; an interval needs at least 5"


def test_the_alignment_score_has_an_interval_about_it() -> None:
    ratings = {key: value and value / 10 for key, value in verdicts(5, 1).items()}
    scores = alignmmbench.alignment(ratings, [build_conversation(key, group=group) for key, group in GROUPS.items()])
    for name, standing in table({"m": scores})["m"].items():
        low, high = standing.interval
        assert low < standing.value < high, name
        assert standing.value == pytest.approx(leaderboard.aggregate_of(scores[name]).value), name


def test_the_mean_is_that_of_the_models_which_do_not_stand_apart() -> None:
    scores = {name: {"S": plain(seed)} for seed, name in enumerate("abc")} | {"d": {"T": plain(9)}}
    board = table(scores, apart=("c",))
    values = [board[name]["S"].value or 0 for name in "ab"]
    assert board[MEAN]["S"].value == pytest.approx(fmean(values)) and board[MEAN]["S"].n == 80
    assert board[MEAN]["T"].value == board["d"]["T"].value
    low, high = board[MEAN]["S"].interval or (0, 0)
    intervals = [board[name]["S"].interval or (0, 0) for name in "ab"]
    assert high - low < max(end - start for start, end in intervals)
    assert MEAN not in table({"a": {"S": plain(1)}})


def test_a_model_with_two_rows_has_no_part_in_a_mean_and_half_a_score_none() -> None:
    names = enumerate(("ax", "ay", "bx", "by"))
    rows = [replace(entry(name, {"S": plain(seed)}), system=name[0]) for seed, name in names]
    assert MEAN not in standings(rows) and MEAN in standings(rows[::2])
    some = {"a": {"S": of_tasks(4, *"tuvw")}, "b": {"S": of_tasks(1, *"tuvw")}, "c": {"S": of_tasks(50, *"uvw")}}
    board = table(some)
    assert board["c"]["S"].partly == "3 of 4" and board[MEAN]["S"].partly == "2 of 3"
    values = [board[name]["S"].value or 0 for name in "ab"]
    assert board[MEAN]["S"].value == pytest.approx(fmean(values))
    halves = table({name: {"S": Score(parts=[Term(1, verdicts(1), GROUPS, (0, 100))], of=2)} for name in "ab"})
    assert halves["a"]["S"].value is not None and halves[MEAN]["S"].value is None


def test_the_mean_of_models_that_are_alike_has_their_interval() -> None:
    some = {key: value if int(key[1:]) < 12 else None for key, value in verdicts(1).items()}
    scores = {"always": dict.fromkeys(GROUPS, 100.0), "some": some}
    board = table({name: {key: score_of(of, GROUPS, (0, 100)) for key, of in scores.items()} for name in "ab"})
    for column in scores:
        assert board[MEAN][column].interval == board["a"][column].interval is not None


def test_what_is_won_always_or_asked_of_few_is_not_said_to_be_certain() -> None:
    always = score_of(dict.fromkeys(GROUPS, 100.0), GROUPS, (0, 100))
    few = score_of(verdicts(1), {f"c{number}": f"g{number}" for number in range(4)}, (0, 100))
    board = table({"m": {"always": always, "few": few}})["m"]
    low, high = board["always"].interval or (0, 0)
    assert high == 100 and low == pytest.approx(100 * 0.025 ** (1 / 20))
    assert board["few"].interval is None and board["few"].value is not None
