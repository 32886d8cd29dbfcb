"""critic.stats.aggregate: means, against brute force."""

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from critic.stats.aggregate import mean

SCORES = st.dictionaries(st.sampled_from("abcdefgh"), st.one_of(st.none(), st.integers(1, 10)), max_size=8)


@given(SCORES, st.lists(st.sampled_from("abcdefgh"), unique=True))
def test_a_mean_counts_and_bounds_what_is_missing(scores: dict[str, int | None], keys: list[str]) -> None:
    aggregate = mean(scores, keys, (1, 10))
    assert aggregate.n + aggregate.failed <= aggregate.asked == len(keys)
    valid = [scores[key] for key in keys if scores.get(key) is not None]
    assert aggregate.n == len(valid)
    assert aggregate.failed == sum(key in scores and scores[key] is None for key in keys)
    if not keys:
        assert aggregate.low is aggregate.high is aggregate.value is None and aggregate.coverage == 0
        return
    assert aggregate.low == pytest.approx(fmean(1 if scores.get(key) is None else scores[key] for key in keys))
    assert aggregate.high == pytest.approx(fmean(10 if scores.get(key) is None else scores[key] for key in keys))
    assert (aggregate.value is None) == (not valid)
    if valid:
        assert aggregate.value == pytest.approx(fmean(valid))
        assert aggregate.low - 1e-9 <= aggregate.value <= aggregate.high + 1e-9
    assert aggregate.coverage == len(valid) / len(keys)
