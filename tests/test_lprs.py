"""LPRS: Eq. 6-11 and Algorithm 1, the running bias correction and the drift alarm."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sarathi.core.chunking import DRIFT_FALLBACK, LatencyTarget, StaticBudget
from sarathi.core.plan import BatchPlan, MemoryStats
from tests.simulate import LinearLatency, LinearPredictor, make_output, make_request, make_scheduler, run


class Table:
    """Predicts `times[chunk]` seconds, and remembers what it was asked."""

    def __init__(self, times):
        self.times = times
        self.asked: list[list[int]] = []

    def predict(self, request, chunks, plan, memory):
        self.asked.append(chunks.tolist())
        return np.array([self.times(int(chunk)) if callable(self.times) else self.times[chunk] for chunk in chunks])


def sizer(times, target=0.04, **settings) -> Any:
    defaults = {"delta": 16, "lambda_under": 1.0, "lambda_over": 2.5}
    return LatencyTarget(Table(times), target, **(defaults | settings))


def plan_with(num_decodes: int, budget: int = 64) -> BatchPlan:
    plan = BatchPlan(budget, 0.0)
    plan.add_decodes([make_request(f"d{i}", 1, 9) for i in range(num_decodes)], num_decodes, 1)
    return plan


def algorithm_1(remaining, budget, taken, delta, target, times, lambda_under, lambda_over):
    """The paper's loop, line by line."""
    h = min(remaining, budget - taken)
    if h <= 0:
        return 0
    candidates = {1, h} | {k * delta for k in range(1, h // delta + 1)}
    best_score, best = math.inf, 0
    for c in sorted(candidates):
        predicted = times(c)
        score = lambda_under * (target - predicted) if predicted <= target else lambda_over * (predicted - target)
        if score < best_score:
            best_score, best = score, c
        elif score == best_score and c > best:
            best = c
    if best == 0 and taken == 0 and h >= 1:
        return 1
    return best


def test_algorithm_1_by_hand():
    """10 decodes, budget 64: candidates 1, 16, 32, 48, 54 take 11, 26, 42, 58, 64 ms; the target is 40."""
    request = make_request("a", 100, 1)
    policy = sizer(lambda c: 1e-3 * (10 + c))
    decision = policy.size(request, plan_with(10))
    assert policy._predictor.asked == [[1, 16, 32, 48, 54]]  # one call for all of them
    assert decision.num_tokens == 32 and decision.num_candidates == 5  # 2.5 * 2 < 1 * 14
    assert decision.predicted_time == pytest.approx(0.042)
    # 8 * 2 > 14: a heavier penalty on passing the target takes the smaller chunk.
    assert sizer(lambda c: 1e-3 * (10 + c), lambda_over=8.0).size(request, plan_with(10)).num_tokens == 16


def test_without_room_there_is_nothing_to_choose():
    policy = sizer(lambda c: 0.01)
    assert policy.size(make_request("a", 9, 1), plan_with(64)).num_tokens == 0
    assert policy._predictor.asked == []


def test_of_equal_scores_the_larger_chunk_wins_infinite_ones_too():
    assert sizer(lambda c: 0.03).size(make_request("a", 50, 1), plan_with(0)).num_tokens == 50
    assert sizer(lambda c: math.inf).size(make_request("a", 50, 1), plan_with(0)).num_tokens == 50


def test_nan_is_an_error_that_names_the_predictor():
    with pytest.raises(ValueError, match="Table predicts NaN for request 'a'"):
        sizer(lambda c: math.nan).size(make_request("a", 50, 1), plan_with(0))


@given(
    remaining=st.integers(1, 90),
    budget=st.integers(1, 80),
    taken=st.integers(0, 80),
    delta=st.integers(1, 40),
    target=st.floats(0, 0.1),
    lambda_under=st.floats(0.1, 5),
    lambda_over=st.floats(0.1, 5),
    times=st.lists(
        st.sampled_from([0.0, 0.01, 0.02, 0.05, 0.1, math.inf]) | st.floats(0, 0.2), min_size=90, max_size=90
    ),
)
def test_the_choice_is_algorithm_1s(remaining, budget, taken, delta, target, lambda_under, lambda_over, times):
    def time_of(chunk):
        return times[chunk - 1]

    policy = sizer(time_of, target, delta=delta, lambda_under=lambda_under, lambda_over=lambda_over)
    chosen = policy.size(make_request("a", remaining, 1), plan_with(taken, budget)).num_tokens
    assert chosen == algorithm_1(remaining, budget, taken, delta, target, time_of, lambda_under, lambda_over)


@given(
    specs=st.lists(st.tuples(st.integers(1, 150), st.integers(1, 12), st.floats(0, 0.5)), min_size=1, max_size=20),
    delta=st.integers(1, 64),
)
def test_a_huge_target_is_the_static_budget_decision_for_decision(specs, delta):
    def decisions(name):
        requests = [
            make_request(str(i), prompt, output, arrival)
            for i, (prompt, output, arrival) in enumerate(sorted(specs, key=lambda spec: spec[2]))
        ]
        return run(make_scheduler(name, num_blocks=50, chunk_size=24, target_ms=1e9, delta=delta), requests)

    assert decisions("LPRS") == decisions("SARATHI")


def test_a_target_below_the_decode_round_leaves_crumbs():
    """The paper's text taken at its word: once a round is at its target, the best chunk is one token."""
    requests = [make_request("a", 1, 300), *(make_request(str(i), 40, 1, arrival=0.02) for i in range(3))]
    decisions = run(make_scheduler("LPRS", target_ms=10.0, chunk_size=64), requests)
    assert {n for decodes, prefills in decisions if decodes for _, n in prefills} == {1}


def test_rounds_come_close_to_the_target():
    """With APC against crumbs, a perfect predictor keeps each round of a backlog within a step of the search."""
    scheduler = make_scheduler("LPRS_APC", target_ms=15.0, chunk_size=400, delta=8, l_min=4, max_num_seqs=50)
    requests = [make_request(str(i), 200, 20) for i in range(30)]
    decisions = run(scheduler, requests)
    totals = [len(decodes) + sum(n for _, n in prefills) for decodes, prefills in decisions[:-40]]
    assert totals and all(0.0142 <= LinearLatency.seconds(total) <= 0.0158 for total in totals)


class Halved(LinearPredictor):
    """Half of the truth."""

    def predict(self, request, chunks, plan, memory):
        return 0.5 * super().predict(request, chunks, plan, memory)


def backlog():
    return [make_request(str(i), 120, 8) for i in range(40)]


def test_bias_correction_learns_from_measured_rounds():
    scheduler = make_scheduler("LPRS", predictor=Halved(), target_ms=15.0, chunk_size=300, bias_correction=0.2)
    run(scheduler, backlog())
    learnt: Any = scheduler.sizer
    assert math.exp(learnt._log_bias) == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize("num_stages", [1, 4, 8])
def test_bias_correction_settles_with_rounds_in_flight(num_stages):
    """At the largest weight that is allowed."""
    scheduler = make_scheduler("LPRS", predictor=Halved(), target_ms=15.0, chunk_size=60, bias_correction=0.2)
    run(scheduler, [make_request(str(i), 400, 2) for i in range(60)], num_stages, LinearLatency(num_stages))
    learnt: Any = scheduler.sizer
    assert math.exp(learnt._log_bias) == pytest.approx(2.0, rel=0.1)


def test_drift_falls_back_to_the_static_budget_and_returns():
    policy = sizer(lambda c: 0.02, drift_limit=0.3)
    request, plan = make_request("a", 50, 1), plan_with(0)
    policy.size(request, plan)
    for _ in range(40):
        policy.observe(make_output(predicted_time=0.02), 0.1)
    fallen = policy.size(request, plan)
    assert fallen.reason == DRIFT_FALLBACK
    assert fallen.num_tokens == StaticBudget().size(request, plan).num_tokens
    for _ in range(22):
        policy.observe(make_output(predicted_time=0.02), 0.02)
    assert 0.15 < policy._mean_error < 0.3  # below the limit, but half of it has to be reached
    assert policy.size(request, plan).reason == DRIFT_FALLBACK
    for _ in range(40):
        policy.observe(make_output(predicted_time=0.02), 0.02)
    assert policy.size(request, plan).reason is None


@pytest.mark.parametrize("predicted", [0.0, -1.0, math.inf, 1e308])
def test_a_prediction_beyond_all_sense_is_a_full_error(predicted):
    policy = sizer(lambda c: 0.02, drift_limit=0.5, bias_correction=0.2)
    for _ in range(60):
        policy.observe(make_output(predicted_time=predicted), 0.1)
    assert policy.size(make_request("a", 50, 1), plan_with(0)).reason == DRIFT_FALLBACK
    assert abs(policy._log_bias) <= math.log(100) + 1e-9


def test_a_predictor_with_the_wrong_shape_is_named():
    policy = sizer(lambda c: 0.02)
    policy._predictor.predict = lambda request, chunks, plan, memory: np.zeros((len(chunks), 1))
    with pytest.raises(ValueError, match=r"Table answers with shape \(5, 1\); \(5,\) is needed"):
        policy.size(make_request("a", 100, 1), plan_with(10))


def test_the_predictor_sees_the_workers_memory():
    seen = []

    class Watching(LinearPredictor):
        def predict(self, request, chunks, plan, memory):
            seen.append(memory)
            return super().predict(request, chunks, plan, memory)

    policy = LatencyTarget(Watching(), 0.01, delta=8, lambda_under=1.0, lambda_over=1.0)
    plan = plan_with(0)
    policy.begin_round(plan, MemoryStats(5.0))
    policy.size(make_request("a", 9, 1), plan)
    assert seen == [MemoryStats(5.0)]


def test_a_scheduler_without_its_predictor_says_so():
    from sarathi.core.block_manager import BlockManager
    from sarathi.core.variants import LPRSScheduler

    config = make_scheduler("LPRS").config
    with pytest.raises(ValueError, match="LPRSScheduler needs a latency predictor"):
        LPRSScheduler(config, BlockManager(10, 16), 100)
