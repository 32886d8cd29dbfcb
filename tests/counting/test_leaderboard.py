"""critic.counting.leaderboard: scores, intervals and paired differences of several models, against brute force."""

import random
from statistics import fmean, pstdev

import numpy as np
import pytest

from critic.benchmarks import alignmmbench
from critic.counting import aggregate
from critic.counting.leaderboard import MEAN, Entry, Score, Standings, Term, score_of, standings
from critic.counting.resampling import Resamples, group_numbers
from critic.records import Conversation

GROUPS = {f"c{number}": f"g{number // 2}" for number in range(40)}


def verdicts(seed: int, missing: int = 0) -> dict[str, float | None]:
    draw = random.Random(seed)
    return {key: None if number < missing else draw.choice((0.0, 50.0, 100.0)) for number, key in enumerate(GROUPS)}


def table(
    scores: dict[str, dict[str, Score]], less: dict[str, str] | None = None, apart: tuple[str, ...] = ()
) -> Standings:
    rows = [
        Entry(key="k", caption="c", system=name, name=name, scores=some, apart=name in apart)
        for name, some in scores.items()
    ]
    return standings(rows, less)


def plain(seed: int, missing: int = 0) -> Score:
    return score_of(verdicts(seed, missing), GROUPS, (0, 100))


def test_a_mean_has_the_interval_of_the_bootstrap_over_groups() -> None:
    found = table({"m": {"S": plain(1, missing=3)}})["m"]["S"]
    known = {key: value for key, value in verdicts(1, 3).items() if value is not None}
    assert (found.value, found.n, found.failed, found.asked) == (pytest.approx(fmean(known.values())), 37, 3, 40)
    groups = group_numbers(sorted(set(GROUPS.values())))
    names = sorted(set(GROUPS.values()))
    sums = np.array([sum(v for k, v in known.items() if GROUPS[k] == name) for name in names])
    counts = np.array([sum(GROUPS[k] == name for k in known) for name in names], dtype=float)
    draws = Resamples(groups)
    drawn = np.concatenate([(sums @ block) / (counts @ block) for block in draws.counts()])
    # Both groups of c0 and c1 failed: the interval is about one group less than was drawn from.
    assert found.interval == pytest.approx(draws.interval(drawn, groups=19))
    assert found.low == pytest.approx(sum(known.values()) / 40)


def test_differences_are_paired_and_bounded_as_those_of_two_runs() -> None:
    """Where the baseline failed, the model's verdict is no part of the difference."""
    scores = {"a": {"S": plain(1, missing=4)}, "b": {"S": plain(2)}, "c": {"S": plain(3, missing=6)}}
    found = table(scores, {"a": "a", "b": "a", "c": "a"})
    third = found["c"]["S"].difference
    assert third is not None and (third.n, third.missing) == (34, 6)
    assert third.mean == pytest.approx(aggregate.difference(verdicts(1, 4), verdicts(3, 6), GROUPS, (0, 100)).mean)
    assert found["a"]["S"].difference is None
    less = found["b"]["S"].difference
    assert less is not None
    two = aggregate.difference(verdicts(1, 4), verdicts(2), GROUPS, (0, 100))
    assert (less.mean, less.n, less.missing) == (pytest.approx(two.mean), two.n, two.missing)
    assert (less.low, less.high) == (pytest.approx(two.low), pytest.approx(two.high))
    assert less.interval == pytest.approx(two.interval, abs=4) and less.groups == two.groups
    assert less.p_value == pytest.approx(two.p_value or 0, abs=0.1)


def test_a_sum_of_means_is_resampled_as_one() -> None:
    """S3 - S1 of the same verdicts is 0 in every resample; of others it is as wide as their pairs are far apart."""
    one, other = verdicts(1), verdicts(2)
    same = Score(parts=[Term(1, one, GROUPS, (0, 100)), Term(-1, one, GROUPS, (0, 100))])
    delta = Score(parts=[Term(1, other, GROUPS, (0, 100)), Term(-1, one, GROUPS, (0, 100))])
    found = table({"m": {"same": same, "delta": delta}})["m"]
    assert found["same"].interval == (0, 0) and found["same"].n == 80
    two = aggregate.difference(one, other, GROUPS, (0, 100))
    assert found["delta"].value == pytest.approx(two.mean)
    assert found["delta"].interval == pytest.approx(two.interval, abs=4)


def test_one_over_a_mean_is_the_alignment_score() -> None:
    ratings = {key: value and value / 10 for key, value in verdicts(5, 1).items()}
    asked = [
        Conversation(id=key, benchmark="alignmmbench", lang="zh", group=group, turns=[])
        for key, group in GROUPS.items()
    ]
    spread = alignmmbench.deviations(ratings, asked)
    scores = {
        name: Score(parts=[Term(1, some, {group: group for group in some}, (0, 4.5))], inverse=True)
        for name, some in spread.items()
    }
    found = table({"m": scores})["m"]
    by_group: dict[str, list[float | None]] = {}
    for key, group in GROUPS.items():
        by_group.setdefault(group, []).append(ratings[key])
    whole = alignmmbench.alignment_score(by_group.values())
    assert found["alignment"].value == pytest.approx(whole.score)
    assert found["alignment without singletons"].value == pytest.approx(whole.without_singletons)
    assert whole.singletons == 1
    sigmas = [pstdev([v for v in some if v is not None]) for some in by_group.values()]
    low, high = found["alignment"].interval or (0, 0)
    assert low < len(sigmas) / sum(sigmas) < high


def test_the_mean_is_that_of_the_models_which_do_not_stand_apart() -> None:
    scores = {name: {"S": plain(seed)} for seed, name in enumerate("abc")} | {"d": {"T": plain(9)}}
    found = table(scores, apart=("c",))
    values = [found[name]["S"].value or 0 for name in "ab"]
    assert found[MEAN]["S"].value == pytest.approx(fmean(values)) and found[MEAN]["S"].n == 80
    assert found[MEAN]["T"].value == found["d"]["T"].value
    low, high = found[MEAN]["S"].interval or (0, 0)
    alone = [found[name]["S"].interval or (0, 0) for name in "ab"]
    assert high - low < max(end - start for start, end in alone)
    assert MEAN not in table({"a": {"S": plain(1)}})


def test_what_is_won_always_or_asked_of_few_is_not_said_to_be_certain() -> None:
    always = score_of(dict.fromkeys(GROUPS, 100.0), GROUPS, (0, 100))
    few = score_of(verdicts(1), {f"c{number}": f"g{number}" for number in range(4)}, (0, 100))
    found = table({"m": {"always": always, "few": few}})["m"]
    low, high = found["always"].interval or (0, 0)
    assert high == 100 and low == pytest.approx(100 * 0.025 ** (1 / 20))
    assert found["few"].interval is None and found["few"].value is not None
