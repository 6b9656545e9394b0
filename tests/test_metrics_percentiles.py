"""Percentiles equal numpy's on the plain sample, however compactly the sample is kept."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sarathi.metrics import percentiles
from sarathi.metrics.percentiles import (
    PERCENTILES,
    STAT_NAMES,
    InterTokenGaps,
    counted_percentile,
    describe,
    describe_counted,
)

FINITE = st.floats(-1e6, 1e6)


@given(st.dictionaries(FINITE, st.integers(1, 40), min_size=1, max_size=30), st.floats(0, 100))
def test_counted_percentile_is_numpys_to_the_last_bit(counted: dict[float, int], q: float) -> None:
    values = np.array(sorted(set(counted)))
    counts = np.array([counted[value] for value in values])
    expanded = np.repeat(values, counts)
    for percent in (q, *PERCENTILES, 0, 100):
        assert counted_percentile(values, counts, percent) == np.percentile(expanded, percent, method="linear")


def test_interpolation_rounds_as_numpys_does() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        values = np.sort(rng.uniform(0, 1, rng.integers(2, 9)))
        counts = rng.integers(1, 4, len(values))
        expected = np.percentile(np.repeat(values, counts), PERCENTILES)
        assert [counted_percentile(values, counts, q) for q in PERCENTILES] == expected.tolist()


@given(st.lists(st.sampled_from([0.5, 1.0, 2.5, 7.0, np.inf, -np.inf, np.nan]), max_size=40))
def test_infinities_and_nan_never_reach_a_percentile(sample: list[float]) -> None:
    finite = [value for value in sample if np.isfinite(value)]
    stats = describe(np.array(sample, dtype=float))
    if not finite:
        assert stats == dict.fromkeys(STAT_NAMES)
        return
    expected = [np.mean(finite), *np.percentile(finite, PERCENTILES), max(finite)]
    assert list(stats.values()) == pytest.approx(expected, rel=1e-12)
    values, counts = np.unique(sample, return_counts=True)
    assert describe_counted(values, counts) == pytest.approx(stats, rel=1e-12)


def test_nothing_gives_nulls() -> None:
    assert describe(np.empty(0)) == dict.fromkeys(STAT_NAMES)
    assert describe_counted(np.empty(0), np.empty(0, dtype=int)) == dict.fromkeys(STAT_NAMES)
    assert describe_counted(*InterTokenGaps(array("d")).counted()) == dict.fromkeys(STAT_NAMES)


@st.composite
def rounds_and_requests(draw: st.DrawFn) -> tuple[list[float], list[list[int]]]:
    """Ends of rounds (some take no time) and, for each request, the rounds that made its tokens."""
    durations = draw(st.lists(st.sampled_from([0.0, 0.01, 0.0125, 0.03]), min_size=1, max_size=40))
    rounds = st.integers(0, len(durations) - 1)
    stretch = st.tuples(rounds, rounds).map(lambda pair: list(range(min(pair), max(pair) + 1)))
    scattered = st.sets(rounds).map(sorted)
    return list(np.cumsum(durations)), draw(st.lists(stretch | scattered, max_size=12))


@given(rounds_and_requests(), st.sampled_from([1, 7, 1 << 18]))
def test_gaps_are_those_of_numpy_diff(run: tuple[list[float], list[list[int]]], buffered: int) -> None:
    ends, requests = run
    end_times = array("d")
    gaps = InterTokenGaps(end_times)
    expected: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(percentiles, "_BUFFERED_GAPS", buffered)
        for index, end in enumerate(ends):
            end_times.append(end)
            for rounds in requests:
                if rounds and rounds[-1] == index:
                    token_times = [ends[i] for i in rounds]
                    gaps.add(token_times)
                    expected += list(np.diff(token_times))
        values, counts = gaps.counted()
    expected_values, expected_counts = np.unique(expected, return_counts=True)
    assert values.tolist() == expected_values.tolist()
    assert counts.tolist() == expected_counts.tolist()


def test_unbroken_requests_cost_no_memory_by_token() -> None:
    end_times = array("d", np.arange(5000) * 0.01)
    gaps = InterTokenGaps(end_times)
    for _ in range(100):
        gaps.add(list(end_times[1000:]))
    assert len(gaps._times) == 0 and len(gaps._marks) == 200
    assert gaps.counted()[1].sum() == 100 * 3999
