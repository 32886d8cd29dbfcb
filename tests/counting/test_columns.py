"""Columns say what lists say, however few or many values differ."""

from datetime import date
from random import Random
from typing import Any

import numpy as np
import pytest

from critic.counting import columns
from critic.counting.arrays import group_numbers
from critic.counting.columns import Column, RatingColumns, Reread, Spooled

VALUES: dict[str, list[Any]] = {
    "few": ["b", None, "a", "c"],
    "kinds": [1, 1.0, True, "1", None, date(2026, 1, 1), [1, "x"], -0.0, 0.0],
    "many": [f"text {number}" for number in range(9000)],
    "dates": [date.fromordinal(1 + number % 6000) for number in range(9000)],
}


@pytest.mark.parametrize("name", VALUES)
def test_a_column_says_what_a_list_says(name: str) -> None:
    random = Random(0)
    given = random.choices(VALUES[name], k=300) if len(VALUES[name]) < 100 else VALUES[name] + VALUES[name][:50]
    column = Column(given)
    assert column.repeats == (len(VALUES[name]) < 100)
    assert list(map(repr, column)) == list(map(repr, given)) and column == given and column != given[1:]
    assert column[-1] == given[-1] and column[3:9] == given[3:9]
    index = np.array([5, 0, 5, 17, 299])
    assert column.rows(index) == [given[row] for row in index]
    assert column.at(np.array([5, -1, 0])) == [given[5], None, given[0]]
    assert column.map(str) == list(map(str, given)) and column.each(repr, object).tolist() == list(map(repr, given))
    if name != "kinds":
        assert column.rows(index).present() == list(dict.fromkeys(given[row] for row in index))
        assert column.rows(index).numbers().tolist() == group_numbers([given[row] for row in index]).tolist()
        assert group_numbers(column).tolist() == group_numbers(given).tolist()


def test_ratings_stay_with_their_items() -> None:
    given = [{"ann": 4.0, "bob": 6.5}, {}, {"cy": 1.0}, {"bob": 2.0, "ann": 9.0, "cy": 9.0}]
    ratings = RatingColumns(given)
    assert ratings == given and ratings.several and not ratings.rows(np.array([1, 2])).several
    assert ratings.rows(np.array([3, 1, 0])) == [given[3], given[1], given[0]]
    names, item, rater, score = ratings.entries()
    said = zip(item.tolist(), (names[number] for number in rater), score.tolist(), strict=True)
    assert list(said) == [(number, *one) for number, rated in enumerate(given) for one in rated.items()]


def test_records_are_read_again_row_by_row() -> None:
    records = Reread(lambda: iter("abcd"), [2, -1, 0, 2, 3])
    assert [*records] == records[:] == ["c", None, "a", "c", "d"]
    assert records.few([3, 1, 2]) == {3: "c", 1: None, 2: "a"}
    assert list(records.rows(np.array([4, -1, 0]))) == ["d", None, "c"]
    assert records.of(str.upper)[0] == "C"
    assert records.each(ord).tolist()[2:] == [97, 99, 100] and np.isnan(records.each(ord)[1])


def test_what_is_spooled_is_read_again() -> None:
    given = [Random(0).randrange(10**6) for _ in range(40_000)]
    numbers = Spooled("i", given)
    numbers.add(np.array([7, 8], dtype=np.int32).tobytes())
    given += [7, 8]
    assert list(numbers) == given and len(numbers) == len(given)
    assert [numbers[row] for row in (0, 39_999, -1, 16_383, 16_384, 5)] == [
        given[row] for row in (0, 39_999, -1, 16_383, 16_384, 5)
    ]
    assert list(numbers.part(16_000, 40_001)) == given[16_000:40_001]
    assert np.concatenate(list(numbers.blocks())).tolist() == np.asarray(numbers).tolist() == given


@pytest.mark.parametrize("at_once", [1 << 20, 1000])
def test_numbers_that_come_again_are_found(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_SORTED", at_once)
    assert not len(columns.equal(Spooled("q", range(-20_000, 20_000))))
    again = columns.equal(Spooled("q", [*range(-20_000, 20_000), -5, 19_999, 20_000]))
    assert sorted(again.tolist()) == [-5, 19_999]
