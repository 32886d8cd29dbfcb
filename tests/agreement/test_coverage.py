"""What the audit promises of its intervals and p-values, in simulated worlds whose truth is known.

In the first two worlds statistics are made from sums over rows, so that a world costs milliseconds: |h - j| for the
mean absolute error, six sums for Pearson's r. In the others, which are harder, every metric's interval covers the truth
at least as often as it did on 2026-11-26: there the nominal 95 % is not reached.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from draws import share_that_holds
from scipy import stats

from critic.stats.estimate import Bootstrap, Interval
from eval_agreement import METRICS, agreement, measured, metrics

pytestmark = pytest.mark.worlds

ROWS, GROUPS, EACH = 200, 40, 5

Statistic = Callable[[Any], Any]
Make = Callable[..., "World"]


def absolute_error(human: Any, judge: Any) -> Any:
    return np.stack([np.ones(len(human)), np.abs(human - judge)], axis=1)


def mean(sums: Any) -> Any:
    return sums[..., 1] / sums[..., 0]


def moments(human: Any, judge: Any) -> Any:
    return np.stack([np.ones(len(human)), human, judge, human**2, judge**2, human * judge], axis=1)


def pearson(sums: Any) -> Any:
    n, h, j, hh, jj, hj = np.moveaxis(sums, -1, 0)
    return (n * hj - h * j) / np.sqrt((n * hh - h**2) * (n * jj - j**2))


STATISTICS: dict[str, tuple[Callable[[Any, Any], Any], Statistic]] = {
    "mae": (absolute_error, mean),
    "pearson": (moments, pearson),
}


class World(NamedTuple):
    """Some 200 pairs: people's scores, those of two judges that err independently by the same law, and groups."""

    human: Any
    first: Any
    second: Any
    group: Any


def alone(random: Any) -> World:
    """Pairs that have nothing to do with each other."""
    human = random.normal(5.5, 1.5, ROWS)
    first, second = human + random.normal(0.3, 1, (2, ROWS))
    return World(human, first, second, np.arange(ROWS))


def in_groups(random: Any, groups: int = GROUPS, each: int = EACH) -> World:
    """Groups of answers, which share most of the variance of people's scores and nearly all of the errors'."""
    group, rows = np.repeat(np.arange(groups), each), groups * each
    human = 5.5 + random.normal(0, 1.2, groups)[group] + random.normal(0, 0.9, rows)
    shared, own = random.normal(0, 0.95, (2, groups)), random.normal(0, math.sqrt(1 - 0.95**2), (2, rows))
    first, second = human + 0.3 + shared[:, group] + own
    return World(human, first, second, group)


# In both worlds people's scores have variance 2.25, and a judge's errors mean 0.3, variance 1.
TRUTH = {
    "mae": math.sqrt(2 / math.pi) * math.exp(-(0.3**2) / 2) + 0.3 * (1 - 2 * stats.norm.cdf(-0.3)),
    "pearson": math.sqrt(2.25 / 3.25),
}

SIZES: dict[Make, tuple[int, int]] = {alone: (2000, 500), in_groups: (2500, 1000)}
"""Worlds and resamples, so many that chance alone (2.6 standard errors in 1,200 worlds) leaves no bound."""


class Found(NamedTuple):
    """Of all worlds: how many of the 95 % intervals hold the truth, and the p of "both judges agree with people
    equally well", which is true."""

    covered: float
    p: Any


@functools.cache
def simulated(make: Make, by_group: bool = True, fewer: int = 1) -> dict[str, Found]:
    """What each statistic's interval and p-value were in all worlds; one draw of rows serves them all."""
    number, resamples = SIZES[make]
    intervals: dict[str, list[Interval | None]] = {name: [] for name in STATISTICS}
    values: dict[str, list[Any]] = {name: [] for name in STATISTICS}
    for index, stream in enumerate(np.random.SeedSequence(1).spawn(number // fewer)):
        world = make(np.random.default_rng(stream))
        draws = Bootstrap(world.group if by_group else np.arange(ROWS), resamples, seed=index)
        sums = [rows(world.human, judge) for rows, _ in STATISTICS.values() for judge in (world.first, world.second)]
        drawn = draws.resample_sums(np.arange(ROWS), np.hstack(sums).T)[1:]
        totals = iter(np.split(drawn, np.cumsum([part.shape[1] for part in sums])[:-1], axis=1))
        for name, (_, statistic) in STATISTICS.items():
            first, second = statistic(next(totals)), statistic(next(totals))
            intervals[name].append(draws.interval(first))
            values[name].append(draws.p_value(first - second))
    held = {name: share_that_holds(intervals[name], TRUTH[name]) for name in STATISTICS}
    return {name: Found(held[name], np.array(values[name], dtype=float)) for name in STATISTICS}


@pytest.mark.parametrize("make", SIZES)
@pytest.mark.parametrize("name", STATISTICS)
def test_intervals_cover_the_truth_in_95_of_100_worlds(name: str, make: Make) -> None:
    assert 0.93 <= simulated(make)[name].covered <= 0.97


@pytest.mark.parametrize("name", STATISTICS)
def test_neither_do_intervals_nor_p_values_that_ignore_groups(name: str) -> None:
    result = simulated(in_groups, by_group=False, fewer=10)[name]
    assert result.covered < 0.85 and np.mean(result.p <= 0.05) > 0.15


@pytest.mark.parametrize("make", SIZES)
@pytest.mark.parametrize("name", STATISTICS)
def test_p_values_are_uniform_under_the_null(name: str, make: Make) -> None:
    p = simulated(make)[name].p
    assert len(p) >= 1000
    assert stats.kstest(p, "uniform").pvalue > 0.01
    assert 0.035 <= np.mean(p <= 0.05) <= 0.065


def on_scale(scores: Any) -> Any:
    return np.clip(scores, 1, 10)


def six_groups(random: Any) -> World:
    """Six groups of twenty answers, in fractional scores."""
    *scores, group = in_groups(random, 6, 20)
    return World._make([*map(on_scale, scores), group])


def six_groups_whole(random: Any) -> World:
    """The same in whole scores."""
    *scores, group = in_groups(random, 6, 20)
    return World._make([*map(on_scale, np.rint(scores)), group])


def rare_errors(random: Any) -> World:
    """Forty questions with 1 to some 20 answers. The judge says what people say, except on one question in twelve."""
    group = np.repeat(np.arange(GROUPS), random.geometric(1 / EACH, GROUPS))
    rows = len(group)
    human = on_scale(np.rint(5.5 + random.normal(0, 2, GROUPS)[group] + random.normal(0, 1, rows)))

    def judge() -> Any:
        hard = random.random(GROUPS) < 1 / 12
        off = random.integers(1, 5, rows) * random.choice([-1, 1], rows)
        return on_scale(np.where(hard[group], human + off, human))

    return World(human, judge(), judge(), group)


def one_giant_question(random: Any) -> World:
    """Half of the answers are to one question; errors are independent, in fractional scores."""
    *scores, _ = alone(random)
    rest = 1 + np.arange(ROWS // 2) % (GROUPS - 1)
    group = np.concatenate([np.zeros(ROWS // 2, dtype=np.intp), rest])
    return World._make([*map(on_scale, scores), group])


BARS: dict[Make, tuple[float, ...]] = {
    rare_errors: (*(0.9,) * 7, 0.85),
    one_giant_question: (0.936, 0.935, 0.95, 0.945, 0.947, 0.935, 0.935, 0.91),
    six_groups: (0.914, 0.899, 0.921, 0.904, 0.915, 0.944, 0.962, 0.92),
    six_groups_whole: (0.923, 0.958, 0.957, 0.908, 0.915, 0.944, 0.948, 0.91),
}
"""What each metric's interval covered, in the order of METRICS, in 1,000 worlds with 500 resamples each.

Rare errors: 2026-11-28, with the wider of two intervals; by resamples only they held the truth in 81 to 86 of 100."""


@functools.cache
def covered(make: Make) -> dict[str, float]:
    """The share of worlds in which each metric's interval holds its value on half a million rows."""
    random = np.random.default_rng(99)
    worlds = [make(random) for _ in range(2500)]
    whole = World._make(map(np.concatenate, zip(*worlds, strict=True)))
    apart = pd.DataFrame(whole._asdict()).assign(
        world=np.repeat(np.arange(2500), [len(world.group) for world in worlds])
    )
    apart = apart - apart.groupby(["world", "group"]).transform("mean")
    true = {**agreement(whole.human, whole.first).estimates, "within": apart["human"].corr(apart["first"])}
    by_world = []
    for index, stream in enumerate(np.random.SeedSequence(1).spawn(1000)):
        world = make(np.random.default_rng(stream))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(metrics, "Bootstrap", functools.partial(Bootstrap, resamples=500, seed=index))
            by_world.append(measured(world.human, world.first, world.group).interval)
    return {
        name: share_that_holds((ends[name] for ends in by_world), getattr(true[name], "value", true[name]))
        for name in METRICS
    }


@pytest.mark.parametrize("make", BARS)
def test_hard_designs_are_covered_no_less_than_before(make: Make) -> None:
    shares = covered(make)
    for (name, share), bar in zip(shares.items(), BARS[make], strict=True):
        assert share >= bar, (name, share, bar)
