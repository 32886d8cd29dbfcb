"""eval_agreement.metrics against golden values, brute-force definitions and SciPy."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from samples import read_golden
from scipy import stats

from critic.stats.estimate import Bootstrap
from eval_agreement import METRICS, agreement, measured, pairs

GOLDEN_NAMES = {
    "mae": "mae",
    "pearson": "pearson_r",
    "spearman": "spearman_rho",
    "kendall": "kendall_tau_b",
    "fuzzy": "fuzzy_agreement",
    "strict": "strict_agreement",
    "qwk": "qwk_labels_1_10",
}
CORRELATIONS = ("pearson", "spearman", "kendall")

fractional = st.lists(st.tuples(st.integers(4, 40), st.integers(4, 40)), min_size=1, max_size=25)


def test_golden_file(shared: Path) -> None:
    """Row 7: the six metrics."""
    cases = read_golden(shared, "agreement")
    assert len(cases) == 9
    for name, case in cases.items():
        if "human" in case:
            human, judge = case["human"], case["judge"]
        else:
            table = case["counts_human_rows_judge_cols"]
            cells = [(h + 1, j + 1, count) for h, row in enumerate(table) for j, count in enumerate(row)]
            human = [h for h, _, count in cells for _ in range(count)]
            judge = [j for _, j, count in cells for _ in range(count)]
            assert len(human) == 5000
        result = agreement(human, judge)
        for metric, key in GOLDEN_NAMES.items():
            assert getattr(result, metric) == pytest.approx(case["expected"][key], abs=1e-12), (name, metric)


EDGE_NAMES = {
    "mae": "sklearn.mae",
    "pearson": "scipy.pearsonr",
    "spearman": "scipy.spearmanr",
    "kendall": "scipy.kendalltau",
    "fuzzy": "fuzzy(membership)",
    "strict": "strict(membership)",
    "qwk": "sklearn.qwk(labels=1..10)",
}


def test_golden_edges(shared: Path) -> None:
    """Where the libraries give a number so do we; where they give NaN or raise we say why there is none. Ours alone: a
    failed judgment is dropped and counted, scores between ranges are rounded, kappa takes any scores, and scores off
    the scale are refused."""
    cases = read_golden(shared, "agreement_edge")
    assert len(cases) == 9
    for name, case in cases.items():
        human, judge = case["human"], [None if score == "NaN" else score for score in case["judge"]]
        if name == "out_of_range":
            with pytest.raises(ValueError, match=r"outside 1\.\.10"):
                agreement(human, judge)
            continue
        result = agreement(human, judge)
        library = cases["nan_dropped" if name == "nan_judge" else name]["library_behaviour"]
        if name == "non_integer":
            ranges = case["alternative_half_open"]
            library |= {"fuzzy(membership)": ranges["fuzzy edges (2,5,8)"]}
            library |= {"strict(membership)": ranges["strict edges (1,2,3,5,6,8)"]}
            library.pop(EDGE_NAMES["qwk"])
        assert (result.n, result.failed) == (sum(score is not None for score in judge), judge.count(None)), name
        for metric, key in EDGE_NAMES.items():
            if key not in library:
                continue
            value, expected = getattr(result, metric), library[key]
            if isinstance(expected, int | float):
                assert value == pytest.approx(expected, abs=1e-12), (name, metric)
            else:
                assert value is None and metric in result.undefined, (name, metric)


def in_same_range(h: float, j: float, ranges: Sequence[Sequence[int]]) -> bool:
    h, j = math.floor(h + 0.5), math.floor(j + 0.5)
    return any(low <= h <= high and low <= j <= high for low, high in ranges)


@given(fractional)
def test_metrics_are_those_of_the_libraries(both: list[tuple[int, int]]) -> None:
    human, judge = (np.array(side) / 4 for side in zip(*both, strict=True))
    result = agreement(human, judge)
    varied = len(set(human)) > 1 and len(set(judge)) > 1
    for name, value in zip(METRICS, by_library(human, judge) if varied else [None] * 8, strict=True):
        if varied or name in CORRELATIONS:
            assert getattr(result, name) == (value if value is None else pytest.approx(value, abs=1e-9)), name
        assert (getattr(result, name) is None) == (name in result.undefined)


def by_library(human: Any, judge: Any) -> list[float | None]:
    """In the order of METRICS. Without groups there is nothing within them."""
    tests = (stats.pearsonr, stats.spearmanr, stats.kendalltau)
    same = [np.mean([in_same_range(*pair, ranges) for pair in zip(human, judge, strict=True)]) for ranges in RANGES]
    kappa = 1 - np.mean((human - judge) ** 2) / (np.var(human) + np.var(judge) + (human.mean() - judge.mean()) ** 2)
    return [np.abs(human - judge).mean(), *(test(human, judge).statistic for test in tests), *same, kappa, None]


@given(fractional, st.integers(2, 5))
def test_within_is_the_correlation_of_deviations(both: list[tuple[int, int]], groups: int) -> None:
    scores = pd.DataFrame(np.array(both) / 4, columns=["human", "judge"])
    group = np.arange(len(both)) % groups
    result = measured(scores["human"].to_numpy(), scores["judge"].to_numpy(), group)
    apart = scores - scores.groupby(group).transform("mean")
    several = len(set(group)) > 1 and (apart.abs().max() > 1e-6).all()
    assert result.within == (pytest.approx(apart.corr().iloc[0, 1], abs=1e-9) if several else None)
    assert several or result.undefined["within"]


RANGES = ([(1, 2), (3, 5), (6, 8), (9, 10)], [(1, 1), (2, 2), (3, 3), (4, 5), (6, 6), (7, 8), (9, 10)])


@given(fractional.filter(lambda both: len(both) > 1), st.booleans())
def test_weights_are_rows_that_occur_so_often(both: list[tuple[int, int]], coarse: bool) -> None:
    human, judge = (np.array(side) / 4 for side in zip(*both, strict=True))
    times = np.arange(len(both)) % 3 + 1
    expected = agreement(np.repeat(human, times), np.repeat(judge, times))
    with pytest.MonkeyPatch.context() as patch:
        if coarse:
            patch.setattr(pairs, "_CELLS", 9)
            patch.setattr(pairs, "_SIDE", 3)
        weighted = measured(human, judge, np.zeros(len(both), dtype=int), times.astype(np.float64))
    for name in METRICS.keys() - ({"kendall"} if coarse else set()):  # with weights as in the coarse table
        assert getattr(weighted, name) == pytest.approx(getattr(expected, name), abs=1e-9), name


SAMPLE_ENDS = {
    "mae": (1.9574, 2.3248),
    "pearson": (0.3325, 0.5703),
    "spearman": (0.3256, 0.5672),
    "kendall": (0.2247, 0.4069),
    "fuzzy": (0.3378, 0.4798),
    "strict": (0.1106, 0.2093),
    "qwk": (0.2708, 0.4488),
}
RANK_ENDS = {
    70: (0.009, (0.7665, 0.8447), (0.5765, 0.6592)),
    400: (0.0014, (0.804, 0.8365), (0.6113, 0.645)),
    2000: (0.0006, (0.8092, 0.824), (0.6162, 0.6315)),
}
"""Ends from resampling the ranks themselves (26 November 2026), and how far from these a coarse table's may lie."""


def test_ends_of_intervals_are_those_of_ranks_that_were_resampled() -> None:
    rows = pd.read_csv(ROOT / "data/samples/scores.csv")
    intervals = measured(rows["score"], rows["overlap"], rows["group"].tolist()).interval
    for name, ends in SAMPLE_ENDS.items():
        assert intervals[name] == pytest.approx(ends, abs=0.003 if METRICS[name].exact else 1e-4), name
    random = np.random.default_rng(7)
    for groups, (within, *expected) in RANK_ENDS.items():
        group = np.arange(5 * groups) // 5
        true = random.normal(5.5, 2, 5 * groups) + random.normal(0, 1, groups)[group]
        human, judge = (np.clip(true + random.normal(0, 1, 5 * groups), 1, 10) for _ in range(2))
        intervals = measured(human, judge, group).interval
        assert [intervals["spearman"], intervals["kendall"]] == [pytest.approx(ends, abs=within) for ends in expected]


def test_a_share_of_none_or_all_still_has_an_interval() -> None:
    """Twenty questions all in the same range do not prove that every question is."""
    result = measured([5] * 40, [5] * 40, [number // 2 for number in range(40)])
    assert result.interval["strict"] == (pytest.approx(0.8316, abs=1e-4), 1.0)  # 0.025 ** (1 / 20)
    assert Bootstrap(np.arange(20), 100).interval(np.zeros(100), share=True) == (0.0, pytest.approx(0.1684, abs=1e-4))
    assert Bootstrap(np.arange(20), 100).interval(np.zeros(100)) == (0.0, 0.0)


def test_a_p_value_is_the_interval_read_backwards() -> None:
    draws = Bootstrap(np.arange(40), 4000)
    values = np.random.default_rng(1).normal(size=4000)
    low, high = draws.interval(values) or (math.nan, math.nan)
    for edge in (low, high):
        assert draws.p_value(values, null=edge) == pytest.approx(0.05, abs=0.01)
    assert draws.p_value(values, null=float(np.median(values))) == pytest.approx(1.0, abs=0.01)
    assert 0 < (draws.p_value(values, null=9.0) or 0) < 0.002
    assert draws.p_value(np.zeros(4000)) == 1.0  # two equal judges
    assert Bootstrap([1, 2, 3], 10).p_value(np.ones(10)) is None


def test_no_interval_where_none_can_be_had() -> None:
    assert set(measured([1, 2, 3, 4], [1, 2, 4, 4], ["a", "a", "b", "c"]).interval.values()) == {None}
    assert set(measured([], [], []).interval.values()) == {None}
    constant = measured([1, 2, 3, 4, 5, 6], [5] * 6, list("abcdef")).interval
    assert constant["pearson"] is None and constant["mae"] is not None
    with pytest.raises(ValueError, match="2 human scores but 1 groups"):
        measured([1, 2], [1, 2], ["a"])


def test_intervals_do_not_depend_on_the_order_of_rows() -> None:
    """Judgments are written as they come in: two runs must give the same error bars."""
    rng = np.random.default_rng(3)
    human, judge = rng.integers(1, 11, 60), rng.integers(1, 11, 60)
    group = [f"g{number // 3}" for number in range(60)]
    order = rng.permutation(60)
    shuffled = measured(human[order], judge[order], [group[number] for number in order]).interval
    assert shuffled == measured(human, judge, group).interval


def test_rare_errors_widen_intervals_and_are_counted() -> None:
    """Errors on 2 of 40 groups: the interval reaches as far as Student's with 2 degrees of freedom."""
    group = np.repeat(np.arange(40), 5)
    human = np.resize([3.0, 5, 6, 8, 9], 200)
    rare = measured(human, np.where(group < 2, human - 2, human), group)
    spread = measured(human, human - np.resize([0.0, 0, 1], 200), group)
    assert rare.rare == 2 and spread.rare is None
    (low, high), value = rare.interval["mae"] or (0, 0), rare.mae
    error = 2 * math.sqrt(0.05 * 0.95 / 40)
    assert value == pytest.approx(0.1) and low == 0 and high == pytest.approx(0.1 + 4.303 * error, rel=0.05)
    assert (rare.interval["pearson"] or (0, 0))[1] == 1
