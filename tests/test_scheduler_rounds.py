"""Exact tokens per request per round, for every scheduler."""

from __future__ import annotations

import numpy as np
import pytest

from sarathi.core.admission import GateVerdict, OpenGate
from sarathi.core.chunking import ChunkDecision, DynamicSchedule, StaticBudget
from sarathi.core.order import ShortestPrefillFirst
from sarathi.core.plan import MemoryStats, StepResult
from sarathi.core.scheduler import BaseScheduler
from sarathi.core.variants import SCHEDULERS
from sarathi.request import RequestStatus
from tests.simulate import (
    LinearLatency,
    decision,
    digest,
    make_engine,
    make_request,
    make_scheduler,
    next_round,
    run,
)


def two_prompts():
    return [make_request("a", 20, 3), make_request("b", 8, 2)]


def test_sarathi_mixes_chunks_and_decodes_in_arrival_order():
    assert run(make_scheduler("SARATHI"), two_prompts()) == [
        ((), (("a", 16),)),
        ((), (("a", 4), ("b", 8))),
        (("a", "b"), ()),
        (("a",), ()),
    ]


def test_decodes_are_served_before_prefill_and_count_towards_the_budget():
    requests = [make_request("a", 4, 6), make_request("b", 40, 1, arrival=0.001)]
    assert run(make_scheduler("SARATHI"), requests) == [
        ((), (("a", 4),)),
        (("a",), (("b", 15),)),
        (("a",), (("b", 15),)),
        (("a",), (("b", 10),)),
        (("a",), ()),
        (("a",), ()),
    ]


def test_spf_takes_the_shortest_remaining_prompt_first():
    requests = [make_request("long", 40, 1), make_request("mid", 20, 1), make_request("short", 8, 1)]
    assert run(make_scheduler("SPF"), requests) == [
        ((), (("short", 8), ("mid", 8))),
        ((), (("mid", 12), ("long", 4))),
        ((), (("long", 16),)),
        ((), (("long", 16),)),
        ((), (("long", 4),)),
    ]


def test_aging_weighs_waiting_against_remaining_work():
    # alpha/|beta| = 1000 tokens a second: 30 ms earlier is worth 30 tokens.
    def requests(lead: float):
        return [make_request("long", 40, 1, arrival=0.0), make_request("short", 12, 1, arrival=lead)]

    def order_of_first_tokens(lead: float) -> list[str]:
        scheduler = make_scheduler("AGING", alpha=1000.0, beta=-1.0)
        first_seen = []
        for request in requests(lead):
            scheduler.add(request, 1.0)
        output = scheduler.schedule(1.0)
        assert output is not None
        first_seen += [r.request_id for r, _ in output.prefills]
        return first_seen

    assert order_of_first_tokens(0.027) == ["short", "long"]  # 27 < 40 - 12
    assert order_of_first_tokens(0.029) == ["long"]


def test_aging_key_follows_progress():
    """A prompt that got a chunk has less work left and moves forward (Eq. 2)."""
    scheduler = make_scheduler("AGING", alpha=1000.0)
    long = make_request("long", 40, 1, arrival=0.0)
    scheduler.add(long, 0.0)
    first = scheduler.schedule(0.0)
    assert first is not None and decision(first) == ((), (("long", 16),))
    scheduler.update(first, StepResult([0], 0.01), 0.01)
    scheduler.add(make_request("short", 12, 1, arrival=0.015), 0.015)  # 27 > 24 now, was < 28
    second = scheduler.schedule(0.015)
    assert second is not None and decision(second) == ((), (("long", 16),))


def test_vllm_stalls_decodes_for_whole_prompts():
    requests = [make_request("a", 20, 4), make_request("b", 10, 2, arrival=0.013)]
    assert run(make_scheduler("VLLM", max_model_len=64), requests) == [
        ((), (("a", 20),)),
        (("a",), ()),
        ((), (("b", 10),)),
        (("a", "b"), ()),
        (("a",), ()),
    ]


def test_vllm_refuses_a_prompt_above_its_budget_and_recomputes_beyond_it():
    scheduler = make_scheduler("VLLM", max_batched_tokens=16)
    refused = make_request("x", 17, 1)
    assert not scheduler.add(refused, 0.0)
    assert "17" in (refused.ignored_reason or "") and "16" in (refused.ignored_reason or "")
    # 8 + 20 tokens, preempted at over 16 tokens: recomputed whole, in a round of its own.
    scheduler = make_scheduler("VLLM", max_batched_tokens=16, num_blocks=3)
    decisions = run(scheduler, [make_request("a", 8, 20), make_request("b", 8, 20)])
    assert any(n > 16 and len(prefills) == 1 for _, prefills in decisions for _, n in prefills)


def test_orca_mixes_whole_prompts_with_decodes_and_reserves_the_context():
    scheduler = make_scheduler("ORCA", num_blocks=8, max_model_len=64)  # 4 blocks each: 2 fit
    requests = [make_request("a", 20, 3), make_request("b", 30, 2), make_request("c", 5, 1)]
    assert run(scheduler, requests) == [
        ((), (("a", 20), ("b", 30))),
        (("a", "b"), ()),
        (("a",), (("c", 5),)),
    ]


def test_faster_transformer_starts_a_batch_when_the_last_has_ended():
    scheduler = make_scheduler("FASTER_TRANSFORMER", max_num_seqs=2, max_model_len=64)
    requests = [make_request("a", 20, 3), make_request("b", 30, 1), make_request("c", 5, 1)]
    assert run(scheduler, requests) == [
        ((), (("a", 20), ("b", 30))),
        (("a",), ()),
        (("a",), ()),
        ((), (("c", 5),)),
    ]


def test_simple_chunking_takes_turns():
    requests = [make_request("a", 8, 3), make_request("b", 40, 1, arrival=0.001)]
    assert run(make_scheduler("SIMPLE_CHUNKING"), requests) == [
        ((), (("a", 8),)),
        (("a",), ()),
        ((), (("b", 16),)),
        (("a",), ()),
        ((), (("b", 16),)),
        ((), (("b", 8),)),
    ]


def test_simple_chunking_gives_partial_prompts_a_round_to_themselves():
    requests = [make_request("a", 20, 1), make_request("b", 8, 1)]
    assert run(make_scheduler("SIMPLE_CHUNKING"), requests) == [
        ((), (("a", 16),)),
        ((), (("a", 4),)),
        ((), (("b", 8),)),
    ]


@pytest.mark.parametrize("num_stages", [2, 4])
def test_faster_transformer_keeps_a_pipeline_full(num_stages):
    """A batch in every stage: as many rounds in flight as stages."""
    scheduler = make_scheduler("FASTER_TRANSFORMER", max_num_seqs=num_stages, num_blocks=1000, max_model_len=64)
    scheduler.token_budget = 20
    engine = make_engine(scheduler, num_stages, LinearLatency(num_stages))
    for i in range(num_stages):
        engine.add(make_request(str(i), 20, 5))
    engine.step()
    assert scheduler.num_inflight_rounds == num_stages - 1


@pytest.mark.parametrize(
    ("low", "high", "stages"), [(32, 128, 4), (1, 32, 30), (32, 4096, 37), (64, 64, 3), (32, 64, 1)]
)
def test_dynamic_schedule_has_upstreams_sizes(low, high, stages):
    """Whole numbers evenly spaced, largest first, rounded to the unit."""
    unit = min(32, low)
    expected = [round(n / unit) * unit for n in np.linspace(low, high, stages, dtype=int)[::-1].tolist()]
    assert DynamicSchedule(low, high, 8192, stages).sizes == expected


def test_dynamic_schedule_shrinks_as_the_prompt_progresses():
    sizer = DynamicSchedule(low=32, high=128, max_tokens=256, stages=4)
    assert sizer.sizes == [128, 96, 64, 32]
    scheduler = make_scheduler(
        "SARATHI",
        enable_dynamic_chunking_schedule=True,
        low_chunk_size=32,
        high_chunk_size=128,
        chunk_schedule_max_tokens=256,
        chunk_schedule_stages=4,
    )
    chunks = [n for _, prefills in run(scheduler, [make_request("a", 400, 1)]) for _, n in prefills]
    assert chunks == [128, 64, 32, 32, 32, 32, 32, 32, 16]


def test_two_stages_hold_two_rounds_in_flight():
    """Successive chunks of one prompt follow each other through the pipeline."""
    engine = make_engine(make_scheduler("SARATHI"), num_stages=2, latency=LinearLatency(2))
    request = make_request("a", 40, 2)
    engine.add(request)
    engine.step()
    assert request.num_computed_tokens == 32 and request.num_inflight_steps == 1
    engine.step()
    assert request.num_computed_tokens == 40 and request.num_inflight_steps == 1
    engine.step()
    assert request.output_token_ids == [0] and request.num_inflight_steps == 0
    engine.step()
    assert request.status is RequestStatus.FINISHED_LENGTH


class CapGate(OpenGate):
    """At most one prefill a round, none below 8 tokens unless that ends the prompt."""

    def review(self, request, num_tokens, plan):
        if plan.prefills:
            return GateVerdict(0, "cap", ends_scan=True)
        if num_tokens < min(8, request.num_remaining_tokens):
            return GateVerdict(0, "min_chunk")
        return GateVerdict(num_tokens)


def gated(gate, sizer=None, **settings):
    """A scheduler with this gate (and sizer)."""

    class GatedScheduler(BaseScheduler):
        def make_gate(self):
            return gate

        def make_sizer(self):
            return sizer or super().make_sizer()

    return make_scheduler(GatedScheduler, **settings)


def test_a_verdict_that_ends_the_scan_is_counted_once():
    scheduler = gated(CapGate())
    for i in range(4):
        scheduler.add(make_request(str(i), 4, 2), 0.0)
    output = next_round(scheduler)
    assert decision(output) == ((), (("0", 4),)) and output.reasons == {"cap": 1}


def test_of_waiting_prompts_one_is_refused_a_round_and_partial_ones_behind_it_still_run():
    class NobodyNew(OpenGate):
        def review(self, request, num_tokens, plan):
            is_new = request.status is RequestStatus.WAITING and request.request_id != "long"
            return GateVerdict(0, "new") if is_new else GateVerdict(num_tokens)

    scheduler = gated(NobodyNew())
    scheduler.order = ShortestPrefillFirst()
    scheduler.add(make_request("long", 60, 1), 0.0)
    next_round(scheduler)
    for name in ("x", "y"):
        scheduler.add(make_request(name, 8, 1), 1.0)
    output = next_round(scheduler, 1.0)
    assert decision(output) == ((), (("long", 16),)) and output.reasons == {"new": 1}


def test_a_refused_partial_prompt_is_paused_with_its_kv_and_the_next_is_looked_at():
    scheduler = gated(CapGate(), chunk_size=16, max_num_seqs=20)
    for i in range(9):
        scheduler.add(make_request(f"d{i}", 1, 50), 0.0)
        next_round(scheduler)
    scheduler.token_budget = 25
    scheduler.add(make_request("big", 40, 1, arrival=1.0), 1.0)
    assert decision(next_round(scheduler, 1.0))[1] == (("big", 16),)
    scheduler.token_budget = 16  # 9 decodes leave 7 tokens
    scheduler.add(make_request("tiny", 2, 1, arrival=2.0), 2.0)
    output = next_round(scheduler, 2.0)
    assert decision(output)[1] == (("tiny", 2),) and output.reasons == {"min_chunk": 1}
    assert scheduler.requests["big"].num_computed_tokens == 16 and output.num_partial == 1


class PredictingSizer(StaticBudget):
    """Predicts a millisecond a token."""

    def size(self, request, plan):
        num_tokens = super().size(request, plan).num_tokens
        return ChunkDecision(num_tokens, self.predict(request, num_tokens, plan), 3)

    def predict(self, request, num_tokens, plan):
        return 1e-3 * (plan.num_tokens + num_tokens)


class HalvingGate(OpenGate):
    def review(self, request, num_tokens, plan):
        return GateVerdict(num_tokens // 2)


def test_the_prediction_is_that_of_the_chunk_which_is_taken():
    scheduler = gated(HalvingGate(), PredictingSizer())
    scheduler.add(make_request("a", 16, 1), 0.0)
    output = next_round(scheduler)
    assert decision(output)[1] == (("a", 8),)
    assert output.predicted_time == pytest.approx(0.008) and output.num_candidates == 3


@pytest.mark.parametrize("num_tokens", [-3, 21, 17])
def test_a_policy_that_gives_an_impossible_chunk_is_named(num_tokens):
    """Negative, more than remains, and more than the budget on top of others."""

    class OddSizer(StaticBudget):
        def size(self, request, plan):
            return ChunkDecision(num_tokens if request.request_id == "b" else 4)

    scheduler = gated(OpenGate(), OddSizer(), chunk_size=20)
    scheduler.add(make_request("a", 4, 1), 0.0)
    scheduler.add(make_request("b", 20, 1), 0.0)
    with pytest.raises(RuntimeError, match=rf"OddSizer and OpenGate .*'b'.* {num_tokens} tokens"):
        scheduler.schedule(0.0)


def test_policies_see_the_memory_of_the_last_result_and_the_decodes_of_this_round():
    seen = []

    class WatchingGate(OpenGate):
        def begin_round(self, plan, memory):
            seen.append((len(plan.decodes), plan.num_partial, memory.gpu_mem_used_mb))

    scheduler = gated(WatchingGate())
    for name in ("a", "b"):
        scheduler.add(make_request(name, 10, 4), 0.0)
    for used in (100.0, 200.0):
        output = scheduler.schedule(0.0)
        scheduler.update(output, StepResult([0] * 2, 0.01, MemoryStats(used)), 0.01)
    scheduler.schedule(0.02)
    assert seen == [(0, 0, 0.0), (1, 1, 100.0), (2, 0, 200.0)]


DIGESTS = {
    "SARATHI": "e2a104a0bd2a4d98",
    "AGING": "e8b3467fb9b2bb87",
    "SPF": "7837e9c44372f2c2",
    "LPRS": "4ec662a03ee8a335",
    "APC": "03f898721cf1d01b",
    "LPRS_APC": "ca7d01b2ed1cbafc",
    "AGING_LPRS": "8b8a2620a578f988",
    "AGING_LPRS_APC": "f6faad208d4e6504",
    "VLLM": "192e423ce6d19db1",
    "ORCA": "6ce08f57b31a197d",
    "FASTER_TRANSFORMER": "c1f268bcee9d6b38",
    "SIMPLE_CHUNKING": "496eae7fee342e6e",
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_recorded_decisions_are_unchanged(name):
    """A refactor leaves these digests as they are; a change of policy updates them on purpose."""
    requests = [make_request(str(i), 1 + (i * 37) % 90, 1 + (i * 13) % 40, arrival=0.004 * i) for i in range(60)]
    decisions = run(make_scheduler(name, num_blocks=40, max_model_len=130, chunk_size=32), requests)
    assert digest(decisions) == DIGESTS[name]


def test_when_all_blocks_are_held_by_refused_prompts_the_latest_gives_way():
    class OneAtATime(OpenGate):
        """Shrinks first chunks to 8 tokens, and lets a prompt go on only where it is alone."""

        def review(self, request, num_tokens, plan):
            if not request.num_computed_tokens:
                return GateVerdict(min(8, num_tokens))
            return GateVerdict(num_tokens if scheduler.num_running == 1 else 0)

    class PausingScheduler(BaseScheduler):
        def make_gate(self):
            return OneAtATime()

    scheduler = make_scheduler(PausingScheduler, num_blocks=4)
    requests = [make_request("a", 24, 1), make_request("b", 24, 1)]
    decisions = run(scheduler, requests)
    assert decisions[0] == ((), (("a", 8), ("b", 8)))
    assert decisions[1][1][0] == ("a", 16) and requests[1].num_preemptions >= 1
