"""critic.stats.estimate: intervals against SciPy and simulations."""

import numpy as np
import pytest
from draws import counts_of, times_of
from scipy import stats

from critic.stats.estimate import FEWEST_GROUPS, Bootstrap


def tail(groups: int) -> float:
    """The share of resamples beyond each end of a 95 % interval: the normal's, widened to Student's t."""
    return float(stats.norm.sf(stats.t.ppf(0.975, groups - 1) * np.sqrt(groups / (groups - 1))))


@pytest.mark.parametrize("groups", [5, 8, 30, 5000])
def test_few_groups_widen_an_interval(groups: int) -> None:
    values = np.linspace(0, 1, 2001)
    assert Bootstrap(np.arange(groups), resamples=2001).interval(values) == pytest.approx(
        (tail(groups), 1 - tail(groups)), abs=1e-12
    )


def test_intervals_are_those_of_scipy() -> None:
    values = np.random.default_rng(5).normal(0.3, 1, 40)
    level = 1 - 2 * tail(40)
    expected = stats.bootstrap((values,), np.mean, confidence_level=level, method="percentile", rng=1)
    draws = Bootstrap(np.arange(40))
    interval = draws.interval(draws.resample_group_sums(values[None])[1:, 0] / 40)
    assert interval == pytest.approx(tuple(expected.confidence_interval), abs=0.03)


@pytest.mark.parametrize("groups", [3, 40, 9000, 70_000])
def test_each_group_is_drawn_as_often_as_the_generator_names_it(groups: int) -> None:
    """Whatever is counted together: the draws of a seed are in reports."""
    counts = np.concatenate(list(Bootstrap(np.arange(groups), resamples=50, seed=3).draw_counts()), axis=1).T
    random, each = np.random.default_rng(3), max(1, 400_000 // groups)
    kind = np.uint16 if groups < 1 << 16 else np.int64
    blocks = [random.integers(groups, size=(min(each, 50 - at), groups), dtype=kind) for at in range(0, 50, each)]
    drawn = np.concatenate(blocks) if groups >= FEWEST_GROUPS else []
    expected = [np.ones(groups), *(np.bincount(row, minlength=groups) for row in drawn)]
    assert np.array_equal(counts, expected)


def test_sums_are_those_of_rows_repeated_as_often_as_their_group_was_drawn() -> None:
    random = np.random.default_rng(0)
    cell, group, weight = random.integers(5, size=300), random.integers(40, size=300), random.uniform(1, 3, 300)
    columns = random.normal(size=(3, 5))
    draws = Bootstrap(group, 20)
    times = np.column_stack([np.ones(300), times_of(draws)])
    for weighed in (None, weight):
        each = times if weighed is None else times * weighed[:, None]
        table = np.stack([each[cell == number].sum(axis=0) for number in range(5)])
        tables = np.concatenate(list(draws.tables(cell, 5, weighed)), axis=1)
        assert tables == pytest.approx(table, abs=1e-9)
        assert draws.resample_sums(cell, columns, weighed) == pytest.approx((columns @ table).T, abs=1e-9)
    by_group = np.stack([np.bincount(group, each) for each in (np.ones(300), weight)]).astype(np.float64)
    assert pytest.approx(np.stack([np.ones(300), weight]) @ times, abs=1e-9) == draws.resample_group_sums(by_group).T


def test_rows_without_groups_are_drawn_by_what_they_are() -> None:
    """Alike rows that are each a group of their own are drawn as counts of cells: from the same distribution."""
    cell = np.random.default_rng(1).permutation(np.repeat(np.arange(4), [10, 20, 30, 340]))
    draws = Bootstrap(np.arange(400), 4000)
    tables = np.concatenate(list(draws.tables(cell, 4)), axis=1)
    assert tables[:, 0].tolist() == [10, 20, 30, 340] and (tables.sum(axis=0) == 400).all()
    rows = np.stack([np.bincount(cell, times, 4) for times in counts_of(draws).T], axis=1)
    share = tables[:, 0] / 400
    for drawn in (tables[:, 1:], rows):
        assert drawn.mean(axis=1) == pytest.approx(tables[:, 0], abs=0.4)
        assert np.cov(drawn) == pytest.approx(400 * (np.diag(share) - np.outer(share, share)), abs=4)


def test_p_values_beyond_the_resamples_are_those_of_a_t_test() -> None:
    random = np.random.default_rng(4)
    for lead in (0.4, 0.8, 1.5):
        differences = lead + random.normal(0, 1, 60)
        draws = Bootstrap(np.arange(60))
        p = draws.p_value(draws.resample_group_sums(differences[None])[1:, 0] / 60)
        # A family of 190 tests asks for .00026; 2,000 resamples alone count to .001.
        assert p is not None and np.log10(p) == pytest.approx(
            np.log10(stats.ttest_1samp(differences, 0).pvalue), rel=0.15
        )
    for groups in (5, 6, 8, 30):  # of few groups the interval ends at fewer resamples than that
        draws = Bootstrap(np.arange(groups))
        for differences in random.exponential(1, (60, groups)) - 0.4:
            means = draws.resample_group_sums(differences[None])[1:, 0] / groups
            (low, high), p = draws.interval(means) or (0, 0), draws.p_value(means) or 1
            assert (p <= 0.05) == (not low <= 0 <= high) or min(abs(low), abs(high)) < 0.02
    constant = draws.p_value(np.ones(2000))
    assert constant is not None and constant > 5e-4


@pytest.mark.worlds
def test_equal_models_share_their_places_and_unequal_ones_do_not() -> None:
    """In 5 of 100 boards of equal models any two are told apart; pair by pair, uncorrected, it was nearly every one."""
    apart, last = [], []
    for world in range(200):
        random = np.random.default_rng(world)
        scores = np.clip(np.rint(6 + random.normal(0, 1, (1, 80)) + random.normal(0, 1.5, (12, 80))), 1, 10)
        for worse, results in ((0.0, apart), (2.0, last)):
            draws = Bootstrap(np.arange(80), resamples=400)
            means = draws.resample_group_sums(scores - worse * (np.arange(12) == 7)[:, None]).T / 80
            places = draws.places(dict(enumerate(means)))  # type: ignore[arg-type]
            results.append(places[7] == (12, 12) if worse else set(places.values()) != {(1, 12)})  # type: ignore[index]
    assert np.mean(apart) <= 0.09, np.mean(apart)
    assert np.mean(last) > 0.95
    constant = {"a": np.full(401, 0.1 + 0.2), "b": np.full(401, 0.3), "c": np.full(401, 0.4)}
    assert draws.places(constant) == {"a": (2, 3), "b": (2, 3), "c": (1, 1)}
