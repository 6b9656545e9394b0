"""Faults that users of such systems met, in scheduling and memory; each with its whole kind."""

from __future__ import annotations

import pytest

from sarathi.core.order import AutoAging
from sarathi.core.plan import StepResult
from sarathi.core.variants import SCHEDULERS
from sarathi.engine.engine import replay
from sarathi.request import RequestStatus
from tests.simulate import (
    LinearLatency,
    assert_drained,
    check_rounds,
    make_engine,
    make_request,
    make_scheduler,
    run,
)


def test_a_prompt_that_needs_more_blocks_than_exist_is_refused_with_both_numbers():
    scheduler = make_scheduler(num_blocks=50)
    engine = make_engine(scheduler)
    request = make_request("big", 1002, 10)
    assert not engine.add(request)
    assert request.status is RequestStatus.FINISHED_IGNORED
    assert "63 KV blocks" in request.ignored_reason and "50" in request.ignored_reason
    assert not engine.has_unfinished_requests() and engine.recorder.ignored == [request]


@pytest.mark.parametrize(("prompt", "fits"), [(99, True), (100, False)])
def test_a_prompt_must_leave_room_for_one_token_in_the_context(prompt, fits):
    request = make_request("a", prompt, 10)
    scheduler = make_scheduler(max_model_len=100)
    assert scheduler.add(request, 0.0) is fits
    if fits:
        assert request.max_output_tokens == 1
    else:
        assert "100" in request.ignored_reason


def test_an_empty_prompt_is_refused():
    request = make_request("a", 0, 10)
    assert not make_scheduler().add(request, 0.0)
    assert "empty" in request.ignored_reason


def test_output_is_cut_where_the_pool_ends():
    """A lone request may fill the pool, and must not preempt itself for ever."""
    request = make_request("a", 20, 100)
    run(make_scheduler(num_blocks=3), [request])
    assert request.status is RequestStatus.FINISHED_LENGTH and len(request.output_token_ids) == 28
    assert request.num_preemptions == 0


def test_a_duplicate_request_id_is_an_error():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", 4, 4), 0.0)
    with pytest.raises(ValueError, match="'a' is in use"):
        scheduler.add(make_request("a", 4, 4), 0.0)


def test_a_head_that_does_not_fit_lets_partial_prompts_go_on_and_enters_later():
    scheduler = make_scheduler(num_blocks=4, max_num_seqs=4)
    requests = [make_request("a", 40, 2), make_request("big", 30, 2), make_request("c", 3, 1)]
    decisions = run(scheduler, requests)
    assert decisions[1] == ((), (("a", 16),))  # 'big' needs 2 blocks, 1 is free
    assert [r.finish_time is not None for r in requests] == [True] * 3
    assert requests[1].first_scheduled_time < requests[2].first_scheduled_time + 1e-9


@pytest.mark.parametrize("name", SCHEDULERS)
def test_seats_count_running_requests_and_the_last_request_is_not_starved(name):
    scheduler = make_scheduler(name, max_num_seqs=3, max_model_len=64)
    requests = [make_request(str(i), 10, 5) for i in range(7)]
    check_rounds(scheduler, name, requests)
    run(scheduler, requests)
    assert all(len(r.output_token_ids) == 5 for r in requests)


def test_decodes_that_need_blocks_preempt_the_latest_arrival_and_it_keeps_its_tokens():
    scheduler = make_scheduler(num_blocks=4, chunk_size=64)
    a, b = make_request("a", 30, 10), make_request("b", 30, 10, arrival=0.001)
    check_rounds(scheduler, "SARATHI", [a, b])
    decisions = run(scheduler, [a, b])
    assert (a.num_preemptions, b.num_preemptions) == (0, 1)
    assert len(b.output_token_ids) == 10 and b.arrival_time == 0.001
    # b had 30 + 2 tokens when the pool ran dry, and all of them are computed again.
    assert [n for _, prefills in decisions for r, n in prefills if r == "b"] == [30, 32]
    assert b.preemption_time > 0 and b.prefill_end_time < b.token_times[1]


def test_a_request_is_not_scheduled_and_preempted_in_the_same_round():
    """check_rounds asserts it for every round; here three requests run a tiny pool dry again and again."""
    for name in SCHEDULERS:
        scheduler = make_scheduler(name, num_blocks=6, block_size=4, chunk_size=24, max_model_len=24)
        requests = [make_request(str(i), 5, 15, arrival=0.001 * i) for i in range(6)]
        check_rounds(scheduler, name, requests)
        run(scheduler, requests)


def test_a_request_that_ends_with_its_last_chunk_frees_everything():
    for output in (0, 1):
        request = make_request("a", 40, output)
        decisions = run(make_scheduler(), [request])
        assert [p for _, p in decisions] == [(("a", 16),), (("a", 16),), (("a", 8),)]
        assert len(request.output_token_ids) == output and request.prefill_end_time == request.finish_time


def test_a_full_pool_in_mid_prefill_parks_and_resumes():
    scheduler = make_scheduler(num_blocks=5, block_size=16, chunk_size=16)
    requests = [make_request("a", 15, 40), make_request("b", 60, 5, arrival=0.001)]
    check_rounds(scheduler, "SARATHI", requests)
    run(scheduler, requests)
    assert requests[1].num_preemptions >= 1
    assert len(requests[0].output_token_ids) == 40 and len(requests[1].output_token_ids) == 5


@pytest.mark.parametrize("name", ["SARATHI", "AGING", "SPF", "SIMPLE_CHUNKING"])
def test_more_decodes_than_the_token_budget(name):
    scheduler = make_scheduler(name, chunk_size=4, max_num_seqs=12)
    requests = [make_request(str(i), 2, 20) for i in range(10)]
    check_rounds(scheduler, name, requests)
    decisions = run(scheduler, requests)
    assert max(len(decodes) for decodes, _ in decisions) == (10 if name == "SIMPLE_CHUNKING" else 4)
    assert all(n > 0 for _, prefills in decisions for _, n in prefills)


def test_decodes_above_the_budget_all_progress_and_prefill_gets_nothing():
    """Pipeline rounds that merge can bring more decodes than the budget; none is left out."""
    scheduler = make_scheduler(chunk_size=8, max_num_seqs=12)
    requests = [make_request(str(i), 8, 30) for i in range(6)]
    for request in requests:
        scheduler.add(request, 0.0)
        output = scheduler.schedule(0.0)
        scheduler.update(output, StepResult([0] * 20, 0.01), 0.01)
    scheduler.token_budget = 2
    scheduler.add(make_request("late", 8, 1), 1.0)
    ready = len(scheduler.decodes)
    output = scheduler.schedule(1.0)
    assert len(output.decodes) == ready > 2 and not output.prefills


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("num_stages", [2, 4])
def test_pipeline_stages_at_high_load_give_the_same_tokens(name, num_stages):
    def tokens(stages):
        requests = [make_request(str(i), 1 + i % 50, 1 + i % 17, arrival=0.002 * i) for i in range(80)]
        scheduler = make_scheduler(name, num_blocks=60, chunk_size=32, max_num_seqs=16, max_model_len=70)
        check_rounds(scheduler, name, requests)
        run(scheduler, requests, num_stages=stages, latency=LinearLatency(stages))
        return [r.output_token_ids for r in requests]

    assert tokens(num_stages) == tokens(1)


@pytest.mark.parametrize("num_stages", [1, 3])
def test_abort_at_any_moment_frees_blocks_within_a_round(num_stages):
    """Waiting, partial, decoding and in flight: nothing is committed after, and every block comes back."""
    for after_rounds in range(12):
        scheduler = make_scheduler(num_blocks=20)
        engine = make_engine(scheduler, num_stages)
        requests = [make_request("a", 40, 4), make_request("b", 30, 4), make_request("c", 9, 4)]
        for request in requests:
            engine.add(request)
        for _ in range(after_rounds):
            engine.step()
        for request in requests:
            before = list(request.output_token_ids)
            was_finished = request.status.is_finished
            assert engine.abort(request.request_id) is not was_finished
            assert not engine.abort(request.request_id)
            assert request.status.is_finished and request.output_token_ids == before
        for _ in range(num_stages):
            engine.step()
        assert [len(r.token_times) for r in requests] == [len(r.output_token_ids) for r in requests]
        assert_drained(scheduler)
        assert sorted(r.request_id for r in engine.recorder.finished) == ["a", "b", "c"]


def test_abort_of_an_unknown_request_is_false():
    assert not make_engine(make_scheduler()).abort("nobody")


def test_aborted_waiting_requests_do_not_pile_up():
    scheduler = make_scheduler("AGING")
    for i in range(5000):
        scheduler.add(make_request(str(i), 10, 1, arrival=float(i)), 0.0)
        if i >= 100:
            scheduler.finish(str(i), RequestStatus.FINISHED_ABORTED, 0.0)
    assert len(scheduler.waiting) == 100 and len(scheduler.waiting._heap) < 300


def test_time_limit_leaves_the_rest_unfinished():
    scheduler = make_scheduler()
    engine = make_engine(scheduler)
    replay(engine, [make_request("a", 8, 1000), make_request("b", 8, 1, arrival=500.0)], time_limit=0.1)
    assert engine.has_unfinished_requests() and 0.1 <= engine.clock.now() < 0.2
    assert list(scheduler.requests) == ["a"]


def test_nobody_waits_for_an_arrival_after_the_time_limit():
    engine = make_engine(make_scheduler())
    replay(engine, [make_request("a", 8, 1), make_request("b", 8, 1, arrival=500.0)], time_limit=1.0)
    assert engine.clock.now() < 1.0 and not engine.has_unfinished_requests()


@pytest.mark.parametrize("later", [[], [1.2], [1.7], [1.2, 1.7, 2.5]])
def test_the_round_under_way_at_the_time_limit_is_the_last_whoever_arrives(later):
    class OneSecond:
        def stage_times(self, output):
            return (1.0,)

    ends: list[float] = []
    engine = make_engine(make_scheduler(), latency=OneSecond())
    requests = [make_request("a", 8, 9), *(make_request(f"b{t}", 8, 9, arrival=t) for t in later)]
    replay(engine, requests, time_limit=1.5, on_round=lambda output: ends.append(engine.clock.now()))
    assert ends == [1.0, 2.0]
    assert len(engine.scheduler.requests) == 1 + sum(t < 1.5 for t in later)


def test_an_arrival_is_scheduled_while_the_pipeline_has_room():
    engine = make_engine(make_scheduler(chunk_size=64), num_stages=2, latency=LinearLatency(2))
    a, b = make_request("a", 10, 30), make_request("b", 10, 2, arrival=0.004)
    replay(engine, [a, b])
    assert b.first_scheduled_time == 0.004


def test_auto_alpha_follows_the_measured_prefill_rate():
    order = AutoAging(beta=-2.0, window=4)
    scheduler = make_scheduler(chunk_size=16)
    scheduler.order = order
    run(scheduler, [make_request(str(i), 64, 1) for i in range(3)])
    assert order.alpha == pytest.approx(0.3 * 2.0 * 16 / 0.0116)
