"""critic.counting.resampling: intervals and p-values against SciPy and simulations."""

import numpy as np
import pytest
from scipy import stats

from critic.counting import resampling
from critic.counting.estimate import mean_interval
from critic.counting.resampling import FEWEST_GROUPS, Resamples, sign_flip_p


def tail(groups: int) -> float:
    """The share of resamples beyond each end of a 95 % interval: the normal's, widened to Student's t."""
    return float(stats.norm.sf(stats.t.ppf(0.975, groups - 1) * np.sqrt(groups / (groups - 1))))


@pytest.mark.parametrize("groups", [5, 8, 30, 5000])
def test_few_groups_widen_an_interval(groups: int) -> None:
    values = np.linspace(0, 1, 2001)
    assert Resamples(np.arange(groups), resamples=2001).interval(values) == pytest.approx(
        (tail(groups), 1 - tail(groups)), abs=1e-12
    )


def test_intervals_and_p_values_are_those_of_scipy() -> None:
    values = np.random.default_rng(5).normal(0.3, 1, 40)
    level = 1 - 2 * tail(40)
    expected = stats.bootstrap((values,), np.mean, confidence_level=level, method="percentile", rng=1)
    found = mean_interval(values, np.ones(40))
    assert found == pytest.approx(tuple(expected.confidence_interval), abs=0.03)
    assert mean_interval(values[: FEWEST_GROUPS - 1], np.ones(FEWEST_GROUPS - 1)) is None
    few = np.array([1.0, 2.0, -0.5, 3.0, 1.5, 0.25, 2.5, -1.0])
    exact = stats.permutation_test((few,), np.mean, permutation_type="samples").pvalue
    assert sign_flip_p(few) == pytest.approx(exact, abs=0.01)
    assert sign_flip_p(np.zeros(8)) == 1


@pytest.mark.parametrize("groups", [3, 40, 9000, 70_000])
def test_each_group_is_drawn_as_often_as_the_generator_names_it(groups: int) -> None:
    """Whatever is counted together: the draws of a seed are in reports."""
    found = np.concatenate(list(Resamples(np.arange(groups), resamples=50, seed=3).drawn()))
    random, each = np.random.default_rng(3), max(1, 400_000 // groups)
    kind = np.uint16 if groups < 1 << 16 else np.int64
    blocks = [random.integers(groups, size=(min(each, 50 - at), groups), dtype=kind) for at in range(0, 50, each)]
    expected = [np.bincount(row, minlength=groups) for row in np.concatenate(blocks)]
    assert np.array_equal(found, expected)


def test_coverage_of_intervals_of_paired_differences() -> None:
    """Simulation: unequal groups, true mean 0."""
    random = np.random.default_rng(11)
    covered = 0
    for _ in range(200):
        counts = random.integers(1, 4, size=25).astype(np.float64)
        sums = counts * random.normal(0, 1, 25) + random.normal(0, 0.5, 25)
        low, high = mean_interval(sums, counts)
        covered += low <= 0 <= high
    assert 182 <= covered <= 198


def test_groups_counted_some_at_a_time_are_counted_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    cell, group = random.integers(5, size=300), random.integers(40, size=300)
    whole, drawn = list(Resamples(group, 20).tables(cell, 5)), Resamples(group, 20).totals(cell.astype(float))
    table = resampling.tables_by_group(cell, group, (5, 40)).toarray()
    for name, few in (("_TOGETHER", 30), ("_CHUNK", 3), ("_ROWS", 7)):
        monkeypatch.setattr(resampling, name, few)
    assert len(list(resampling.parts_by_group(cell, group, (5, 40)))) > 5
    assert (resampling.tables_by_group(cell, group, (5, 40)).toarray() == table).all()
    assert (np.concatenate(list(Resamples(group, 20).tables(cell, 5)), 1) == np.concatenate(whole, 1)).all()
    assert (Resamples(group, 20).totals(cell.astype(float)) == drawn).all()
    assert [one.tolist() for one in resampling.coded(group)] == [
        one.tolist() for one in np.unique(group, return_inverse=True)
    ]
