"""Exact tokens per request per round, for every scheduler."""

from __future__ import annotations

import pytest

from sarathi.core.admission import REFUSED_BY_CAP, REFUSED_BY_MIN_CHUNK, GateVerdict, OpenGate
from sarathi.core.chunking import DynamicSchedule
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
    scheduler.update(first, [0], 0.01, 0.01)
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
            return GateVerdict(0, REFUSED_BY_CAP)
        if num_tokens < min(8, request.num_remaining_tokens):
            return GateVerdict(0, REFUSED_BY_MIN_CHUNK)
        return GateVerdict(num_tokens)


class GatedScheduler(BaseScheduler):
    def make_gate(self):
        return CapGate()


def test_a_refusal_by_the_cap_ends_the_scan_and_is_counted_once():
    scheduler = make_scheduler(GatedScheduler)
    for i in range(4):
        scheduler.add(make_request(str(i), 4, 2), 0.0)
    output = scheduler.schedule(0.0)
    assert output is not None
    assert decision(output) == ((), (("0", 4),))
    assert output.reasons == {REFUSED_BY_CAP: 1}


def test_a_partial_prompt_refused_for_a_small_chunk_lets_the_next_one_be_looked_at():
    scheduler = make_scheduler(GatedScheduler, chunk_size=16)
    decodes = [make_request(f"d{i}", 1, 50) for i in range(5)]
    for i, request in enumerate(decodes):
        scheduler.add(request, 0.0)
        output = scheduler.schedule(0.0)
        assert output is not None
        scheduler.update(output, [0] * 9, 0.01, 0.01 * i)
    scheduler.add(make_request("big", 40, 1, arrival=1.0), 1.0)
    output = scheduler.schedule(1.0)
    assert output is not None and decision(output)[1] == (("big", 11),)
    scheduler.update(output, [0] * 9, 0.01, 1.01)
    for request in (make_request("d5", 1, 50, 0.5), make_request("d6", 1, 50, 0.6), make_request("d7", 1, 50, 0.7)):
        scheduler.max_num_seqs = 20
        scheduler.add(request, 1.0)
        output = scheduler.schedule(1.0)
        assert output is not None
        scheduler.update(output, [0] * 20, 0.01, 1.02)
    # 8 decodes leave 8 tokens: enough. One more decode, and the partial prompt is refused and skipped.
    scheduler.add(make_request("d8", 1, 50, 0.8), 1.0)
    output = scheduler.schedule(1.0)
    assert output is not None
    scheduler.update(output, [0] * 20, 0.01, 1.03)
    scheduler.add(make_request("tiny", 2, 1, arrival=2.0), 2.0)
    output = scheduler.schedule(2.0)
    assert output is not None
    assert decision(output)[1] == (("tiny", 2),) and output.reasons == {REFUSED_BY_MIN_CHUNK: 1}
    assert scheduler.requests["big"].num_computed_tokens == 11  # paused, its KV kept


DIGESTS = {
    "SARATHI": "e2a104a0bd2a4d98",
    "AGING": "e8b3467fb9b2bb87",
    "SPF": "7837e9c44372f2c2",
    "VLLM": "192e423ce6d19db1",
    "ORCA": "6ce08f57b31a197d",
    "FASTER_TRANSFORMER": "c1f268bcee9d6b38",
    "SIMPLE_CHUNKING": "cfb0caf9bcee42d2",
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
