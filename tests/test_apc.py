"""APC: Eq. 12 at its edges, each branch of Eq. 14, the warm start where the cap is 0, deferral."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sarathi.core.admission import (
    REFUSED_BY_CAP,
    REFUSED_BY_MIN_CHUNK,
    WARM_START,
    ActivePrefillControl,
    GateVerdict,
)
from sarathi.core.order import ShortestPrefillFirst
from sarathi.core.plan import BatchPlan, MemoryStats
from sarathi.request import RequestStatus
from tests.simulate import make_request, make_scheduler, next_round, run


def gate(c_max=6, l_min=16, seats=32, scope="round", on_defer="pause") -> ActivePrefillControl:
    return ActivePrefillControl(c_max, l_min, seats, scope, on_defer)


def review(control, request, num_tokens, plan):
    """The verdict in a round whose cap was taken before its first prefill."""
    before = plan_of(len(plan.decodes), (), plan.token_budget)
    control.begin_round(before, MemoryStats())
    return control.review(request, num_tokens, plan)


def plan_of(decodes=0, prefills=(), budget=512, num_partial=0) -> BatchPlan:
    plan = BatchPlan(budget, 0.0)
    plan.num_partial = num_partial
    plan.add_decodes([make_request(f"d{i}", 1, 9) for i in range(decodes)], decodes, 1)
    for i, num_tokens in enumerate(prefills):
        plan.add(make_request(f"p{i}", 500, 1), num_tokens)
    return plan


@pytest.mark.parametrize(
    ("decodes", "budget", "c_max", "seats", "cap"),
    [
        (0, 512, 6, 32, 6),  # C_max
        (30, 512, 6, 32, 2),  # seats
        (31, 512, 6, 32, 1),
        (20, 100, 6, 64, 5),  # 80 // 16
        (20, 99, 6, 64, 4),
        (85, 100, 6, 128, 0),  # 15 // 16
    ],
)
def test_eq_12(decodes, budget, c_max, seats, cap):
    control = gate(c_max, 16, seats)
    control.begin_round(plan_of(decodes, (), budget), MemoryStats())
    assert control.cap == cap


def test_eq_14_accepts_what_passes_both_tests():
    assert review(gate(), make_request("a", 100, 1), 16, plan_of(3, (20,))) == GateVerdict(16)
    # m = min(remaining, L_min): the end of a prompt may be shorter.
    assert review(gate(), make_request("a", 5, 1), 5, plan_of(3, (20,))).num_tokens == 5


def test_eq_14_refuses_at_the_cap_and_ends_the_scan():
    verdict = review(gate(c_max=2), make_request("a", 100, 1), 50, plan_of(0, (20, 20)))
    assert verdict == GateVerdict(0, REFUSED_BY_CAP, ends_scan=True)


def test_eq_14_refuses_a_small_chunk_where_a_prefill_is_active():
    verdict = review(gate(), make_request("a", 100, 1), 15, plan_of(0, (20,)))
    assert verdict == GateVerdict(0, REFUSED_BY_MIN_CHUNK)


def test_where_both_tests_fail_the_cap_is_counted():
    assert review(gate(c_max=1), make_request("a", 100, 1), 1, plan_of(0, (20,))).reason == REFUSED_BY_CAP


def test_warm_start_grows_a_crumb_to_the_least_chunk():
    assert review(gate(), make_request("a", 100, 1), 1, plan_of(5)) == GateVerdict(16, WARM_START)
    assert review(gate(), make_request("a", 9, 1), 1, plan_of(5)).num_tokens == 9


def test_warm_start_where_the_cap_is_zero():
    """Budget 16, L_min 32, a prompt of 10 tokens, an idle device: Eq. 14 as printed refuses it for ever."""
    verdict = review(gate(l_min=32), make_request("a", 10, 1), 10, plan_of(0, (), budget=16))
    assert verdict == GateVerdict(10, WARM_START)
    # 85 decodes of a budget of 100 leave 15 tokens, fewer than L_min: min(h, m) = 15.
    assert review(gate(seats=128), make_request("a", 100, 1), 1, plan_of(85, (), budget=100)).num_tokens == 15
    requests = [make_request("a", 10, 3)]
    run(make_scheduler("APC", chunk_size=16, l_min=32), requests)
    assert len(requests[0].output_token_ids) == 3


def test_the_scope_unfinished_counts_every_other_unfinished_prompt():
    waiting, partial = make_request("w", 100, 1), make_request("p", 100, 1)
    partial.status = RequestStatus.RUNNING
    control = gate(c_max=2, scope="unfinished")
    plan = plan_of(0, (20,), num_partial=2)
    assert review(control, partial, 20, plan).num_tokens == 20  # one other
    assert review(control, waiting, 20, plan).reason == REFUSED_BY_CAP  # two others
    newcomers = plan_of(0, (20,), num_partial=0)
    newcomers.num_admitted = 2
    assert review(control, waiting, 20, newcomers).reason == REFUSED_BY_CAP  # two admitted in this round
    # The warm start looks at the round alone, or paused prompts would hold each other up.
    assert review(control, waiting, 20, plan_of(0, (), num_partial=2)).reason == WARM_START


def deferring_run(on_defer):
    """A partial prompt is refused while a warm start serves another: SPF order, one prefill a round."""
    scheduler = make_scheduler("APC", chunk_size=32, c_max=1, l_min=16, on_defer=on_defer, max_num_seqs=4)
    long, short = make_request("long", 100, 1), make_request("short", 20, 1, arrival=-1.0)
    scheduler.add(long, 0.0)
    next_round(scheduler)
    scheduler.add(short, 0.0)
    output = next_round(scheduler)
    assert [r.request_id for r, _ in output.prefills] == ["short"] and output.reasons == {REFUSED_BY_CAP: 1}
    return long


def test_a_deferred_prompt_keeps_its_kv_or_gives_it_back():
    paused, released = deferring_run("pause"), deferring_run("release")
    assert paused.num_computed_tokens == 32 and paused.block_ids and paused.num_preemptions == 0
    assert released.num_computed_tokens == 0 and not released.block_ids and released.num_preemptions == 1
    assert released.status is RequestStatus.WAITING


def test_a_prompt_with_a_chunk_in_flight_is_never_released():
    scheduler = make_scheduler("APC", chunk_size=32, c_max=1, l_min=16, on_defer="release", max_num_seqs=4)
    scheduler.add(make_request("long", 100, 1), 0.0)
    scheduler.schedule(0.0)  # stays in flight
    scheduler.add(make_request("short", 20, 1, arrival=-1.0), 0.0)
    output = scheduler.schedule(0.0)
    assert [r.request_id for r, _ in output.prefills] == ["short"] and output.reasons == {REFUSED_BY_CAP: 1}
    assert scheduler.requests["long"].num_computed_tokens == 32


@given(
    specs=st.lists(st.tuples(st.integers(1, 150), st.integers(1, 12), st.floats(0, 0.5)), min_size=1, max_size=20),
    pair=st.sampled_from([("APC", "SARATHI"), ("LPRS_APC", "LPRS"), ("AGING_LPRS_APC", "AGING_LPRS")]),
)
def test_an_open_cap_and_a_least_chunk_of_one_is_apc_off(specs, pair):
    def decisions(name):
        requests = [
            make_request(str(i), prompt, output, arrival)
            for i, (prompt, output, arrival) in enumerate(sorted(specs, key=lambda spec: spec[2]))
        ]
        return run(make_scheduler(name, num_blocks=50, chunk_size=24, c_max=10**6, l_min=1), requests)

    on, off = map(decisions, pair)
    assert on == off


def test_apc_mends_crumbs():
    """The same backlog behind decodes at the target: chunks of 1 without APC, of at least L_min with it."""

    def chunks(name):
        requests = [make_request("a", 1, 300), *(make_request(str(i), 40, 1, arrival=0.02) for i in range(3))]
        decisions = run(make_scheduler(name, target_ms=10.0, chunk_size=64, l_min=16), requests)
        return [n for decodes, prefills in decisions if decodes for _, n in prefills]

    assert set(chunks("LPRS")) == {1}
    assert chunks("LPRS_APC") == [16, 16, 8] * 3


def test_prompts_admitted_in_this_round_count_as_unfinished():
    scheduler = make_scheduler("APC", chunk_size=64, c_max=1, l_min=4, cap_scope="unfinished")
    for name in ("a", "b"):
        scheduler.add(make_request(name, 8, 1), 0.0)
    output = next_round(scheduler)
    assert [r.request_id for r, _ in output.prefills] == ["a"] and output.reasons == {REFUSED_BY_CAP: 1}


def test_a_prompt_is_released_once_at_most():
    """Short prompts that keep coming refuse the long one again and again; it must not start over each time."""
    requests = [make_request("long", 300, 1)]
    requests += [make_request(str(i), 4, 1, arrival=0.011 * i) for i in range(1, 200)]
    scheduler = make_scheduler("APC", chunk_size=32, c_max=1, l_min=4, on_defer="release", max_num_seqs=8)
    scheduler.order = ShortestPrefillFirst()
    run(scheduler, requests)
    assert requests[0].num_preemptions == 1
