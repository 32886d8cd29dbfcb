"""critic.counting.coded against NumPy on the numbers themselves."""

import numpy as np
import pytest

from critic.counting import arrays
from critic.counting.coded import Coded, chosen
from critic.counting.columns import Column, Spooled


@pytest.mark.parametrize("rows_at_once", [7, 1 << 14])
@pytest.mark.parametrize("kind", ["whole", "fractions", "large", "missing", "none"])
def test_a_row_says_what_its_number_was(monkeypatch: pytest.MonkeyPatch, kind: str, rows_at_once: int) -> None:
    monkeypatch.setattr(arrays, "_ROWS", rows_at_once)
    random = np.random.default_rng(0)
    given = {
        "whole": random.integers(1, 11, 300).astype(float),
        "fractions": random.normal(size=300),
        "large": random.integers(-(10**12), 10**12, 300).astype(float),
        "missing": np.where(random.random(300) < 0.2, np.nan, random.integers(1, 11, 300)),
        "none": np.zeros(0),
    }[kind]
    found = Coded.of(given)
    values, place = np.unique(given, return_inverse=True)
    assert np.array_equal(found.values, values, equal_nan=True) and (found.code == place).all()
    assert np.array_equal(np.asarray(found), given, equal_nan=True) and len(found) == len(given)
    assert np.array_equal(list(found), given, equal_nan=True)
    assert (found.known == ~np.isnan(given)).all() and found.counts.sum() == len(given)
    spooled = Coded.of(Spooled("d", given))
    assert np.array_equal(spooled.values, values, equal_nan=True) and (spooled.code == place).all()
    column = Coded.each(Column(given.tolist()), float)
    assert np.array_equal(np.asarray(column), given, equal_nan=True)
    some = np.arange(len(given)) % 3 == 1
    assert np.array_equal(np.asarray(found.rows(some)), given[some], equal_nan=True)
    assert np.array_equal(found.rows(some).values, np.unique(given[some]), equal_nan=True)
    assert np.array_equal(np.asarray(found.map(np.abs)), np.abs(given), equal_nan=True)
    assert np.array_equal(found.map(np.abs).values, np.unique(np.abs(given)), equal_nan=True)
    assert chosen(some | True, found) is found and len(chosen(some, found)) == some.sum()


def test_what_it_says_of_all_rows_is_what_numpy_says() -> None:
    given = np.random.default_rng(1).normal(5, 2, 101).round(1)
    found, shares = Coded.of(given), [0.0, 0.1, 0.25, 0.5, 0.95, 1.0]
    assert (found.mean(), found.std()) == pytest.approx((given.mean(), given.std()), abs=1e-12)
    assert found.quantile(shares) == pytest.approx(np.quantile(given, shares), abs=1e-12)
    assert Coded.of(given[:100]).quantile(0.5) == pytest.approx(np.median(given[:100]), abs=1e-12)


def test_rows_that_are_not_there_have_no_number() -> None:
    found = Coded.of([3.0, 1.0, None, 2.0]).at(np.array([1, -1, 3, 2, 1]))
    assert np.array_equal(np.asarray(found), [1, np.nan, 2, np.nan, 1], equal_nan=True)
    assert np.array_equal(found.values, [1, 2, np.nan], equal_nan=True)
    assert list(Coded.one(4.0, 3)) == [4.0, 4.0, 4.0] and len(Coded.one(4.0, 0).values) == 0


@pytest.mark.parametrize("most", [3, 40, 10**9])
def test_whole_numbers_are_coded_whether_they_are_looked_up_or_sorted(most: int) -> None:
    given = np.random.default_rng(2).integers(0, most, 200)
    there, place = arrays.coded(given)
    expected = np.unique(given, return_inverse=True)
    assert (there == expected[0]).all() and (place == expected[1]).all()
    few = place < 2
    assert arrays.counted(place, len(there)).tolist() == np.bincount(place).tolist()
    assert arrays.occurring(place, len(there), few).tolist() == [True, True, *[False] * (len(there) - 2)]
