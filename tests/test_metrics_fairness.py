"""Fairness figures on samples small enough to check by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sarathi.metrics.fairness import fairness, jain_index, slowdown_by_prompt_length
from sarathi.metrics.records import RunData


def test_jain_index() -> None:
    assert jain_index(np.array([3.0, 3.0, 3.0])) == pytest.approx(1.0)
    assert jain_index(np.array([0.0, 0.0, 0.0, 8.0])) == pytest.approx(0.25)
    assert jain_index(np.array([1.0, 2.0, 3.0])) == pytest.approx(36 / (3 * 14))
    assert jain_index(np.empty(0)) is None


def test_buckets_include_their_upper_edge() -> None:
    lengths = np.array([1, 32, 33, 8192, 8193], dtype=float)
    buckets = slowdown_by_prompt_length(lengths, np.array([1.0, 3.0, 5.0, 7.0, 9.0]))
    assert buckets["<=32"] == {"num_requests": 2, "mean": 2.0, "max": 3.0}
    assert buckets["<=128"] == {"num_requests": 1, "mean": 5.0, "max": 5.0}
    assert buckets["<=512"] == {"num_requests": 0, "mean": None, "max": None}
    assert buckets["<=8192"]["max"] == 7.0
    assert buckets[">8192"]["max"] == 9.0


def test_requests_without_a_slowdown_are_left_out_and_unfinished_waits_count() -> None:
    requests = {
        "slowdown": np.array([2.0, np.nan, 4.0]),
        "request_num_prefill_tokens": np.array([10.0, 20.0, 600.0]),
        "request_waiting_time": np.array([1.0, 0.0, 3.0]),
        "request_scheduling_delay": np.array([0.5, 0.0, 2.0]),
    }
    data = RunData({}, {}, requests, (np.empty(0), np.empty(0)), {}, unfinished_waiting_time=9.0)
    result = fairness(data)
    assert result["jain_index_slowdown"] == pytest.approx(36 / (2 * 20))
    assert (result["mean_slowdown"], result["max_slowdown"]) == (3.0, 4.0)
    assert result["longest_wait"] == 9.0
    assert result["longest_scheduling_delay"] == 2.0
    assert result["slowdown_by_prompt_length"]["<=32"]["num_requests"] == 1
