"""What the scheduler's tests share: small requests, a plain latency, and a run whose invariants are checked."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from sarathi.clock import VirtualClock
from sarathi.core.block_manager import BlockManager
from sarathi.core.chunking import LatencyPredictor
from sarathi.core.plan import BatchPlan, MemoryStats, SchedulerOutput, StepResult
from sarathi.core.scheduler import BaseScheduler
from sarathi.core.variants import SCHEDULERS
from sarathi.engine.engine import Engine, replay
from sarathi.executor.simulated import SimulatedExecutor
from sarathi.request import Request, SamplingParams

STALL_FREE = ("SARATHI", "AGING", "SPF", "LPRS", "APC", "LPRS_APC", "AGING_LPRS", "AGING_LPRS_APC")
CHUNKED = (*STALL_FREE, "SIMPLE_CHUNKING")  # a round never exceeds its budget but by decodes alone

Decision = tuple[tuple[str, ...], tuple[tuple[str, int], ...]]


# A run without pictures, which take most of its time.
NO_VIEWS = ("--no-metrics_config_plots", "--no-metrics_config_report")


class LinearLatency:
    """10 ms and 0.1 ms a token, on each of `num_stages` stages."""

    def __init__(self, num_stages: int = 1) -> None:
        self.num_stages = num_stages

    @staticmethod
    def seconds(num_tokens: int) -> float:
        return 0.01 + 1e-4 * num_tokens

    def stage_times(self, output: SchedulerOutput) -> tuple[float, ...]:
        return (self.seconds(output.num_tokens),) * self.num_stages


def make_output(
    decodes: Sequence[Request] = (), prefills: Sequence[tuple[Request, int]] = (), **fields
) -> SchedulerOutput:
    """A round as the scheduler would tell it, its totals taken from its requests unless `fields` give them."""
    contexts = [request.num_computed_tokens for request in decodes]
    processed = [request.num_computed_tokens - num_tokens for request, num_tokens in prefills]
    values: dict[str, Any] = {
        "step_id": 0,
        "scheduled_time": 0.0,
        "token_budget": 512,
        "decodes": list(decodes),
        "prefills": list(prefills),
        "preempted_ids": [],
        "num_prefill_tokens": sum(num_tokens for _, num_tokens in prefills),
        "sum_decode_context_len": sum(contexts),
        "max_decode_context_len": max(contexts, default=0),
        "prefill_processed_tokens": sum(processed),
        "max_prefill_processed_tokens": max(processed, default=0),
        "predicted_time": None,
        "target_time": None,
        "prefill_cap": None,
        "num_candidates": 0,
        "reasons": {},
        "num_waiting": 0,
        "num_partial": 0,
        "num_running": 0,
        "num_used_blocks": 0,
        "memory": MemoryStats(),
    }
    return SchedulerOutput(**(values | fields))


class LinearPredictor:
    """Predicts what LinearLatency takes."""

    def predict(self, request: Request, chunks: np.ndarray, plan: BatchPlan, memory: MemoryStats) -> np.ndarray:
        return 0.01 + 1e-4 * (plan.num_tokens + chunks)


class ListRecorder:
    """Keeps what the engine tells."""

    def __init__(self) -> None:
        self.finished: list[Request] = []
        self.ignored: list[Request] = []

    def on_step(self, output, result, finished, now, schedule_time) -> None:
        self.finished += finished

    def on_ignored(self, request: Request) -> None:
        self.ignored.append(request)

    def on_aborted(self, request: Request) -> None:
        self.finished.append(request)


def make_request(
    request_id: str, prompt: int, output: int, arrival: float = 0.0, eos_token_ids: Sequence[int] = ()
) -> Request:
    params = SamplingParams(ignore_eos=not eos_token_ids, max_tokens=output)
    return Request(request_id, range(prompt), params, arrival, eos_token_ids=eos_token_ids)


def make_scheduler(
    name: str | type[BaseScheduler] = "SARATHI",
    *,
    num_blocks: int = 1000,
    block_size: int = 16,
    max_model_len: int = 4096,
    predictor: LatencyPredictor | None = None,
    **settings,
) -> BaseScheduler:
    defaults = {
        "chunk_size": 16,
        "max_num_seqs": 8,
        "max_batched_tokens": None,
        "enable_dynamic_chunking_schedule": False,
        "alpha": 150.0,
        "beta": -1.0,
        "target_ms": 12.0,
        "delta": 4,
        "lambda_under": 1.0,
        "lambda_over": 2.5,
        "bias_correction": 0.0,
        "drift_limit": None,
        "c_max": 6,
        "l_min": 4,
        "cap_scope": "round",
        "on_defer": "pause",
    }
    config = SimpleNamespace(**(defaults | settings))
    if predictor is None:
        predictor = LinearPredictor()
    scheduler_class = SCHEDULERS[name] if isinstance(name, str) else name
    return scheduler_class(config, BlockManager(num_blocks, block_size), max_model_len, predictor)


class RecordedEngine(Engine):
    recorder: ListRecorder


def make_engine(scheduler: BaseScheduler, num_stages: int = 1, latency=None) -> RecordedEngine:
    """An engine on a simulated device; with `scheduler.overlap` rounds are made one ahead of the results."""
    clock = VirtualClock()
    executor = SimulatedExecutor(latency or LinearLatency(num_stages), clock, num_stages=num_stages)
    executor.max_inflight_steps += scheduler.overlap
    return RecordedEngine(scheduler, executor, clock, ListRecorder())


def decision(output: SchedulerOutput) -> Decision:
    """A round as ids: its decodes, and its chunks with their sizes."""
    return (
        tuple(r.request_id for r in output.decodes),
        tuple((r.request_id, n) for r, n in output.prefills),
    )


def run(scheduler: BaseScheduler, requests: Sequence[Request], num_stages: int = 1, latency=None) -> list[Decision]:
    """Replay to the end; every round's decision, in the order in which rounds end."""
    decisions: list[Decision] = []
    engine = make_engine(scheduler, num_stages, latency)
    replay(engine, requests, on_round=lambda output: decisions.append(decision(output)))
    assert_drained(scheduler)
    return decisions


def next_round(scheduler: BaseScheduler, now: float = 0.0) -> SchedulerOutput:
    """Schedule a round and commit it."""
    output = scheduler.schedule(now)
    assert output is not None
    scheduler.update(output, StepResult([0] * output.num_seqs, 0.01), now + 0.01)
    return output


def digest(decisions: list[Decision]) -> str:
    return hashlib.sha256(repr(decisions).encode()).hexdigest()[:16]


def assert_drained(scheduler: BaseScheduler) -> None:
    assert scheduler.blocks.num_free == scheduler.blocks.num_blocks
    assert not scheduler.requests and not scheduler.decodes
    assert len(scheduler.waiting) == len(scheduler.partial) == 0
    assert scheduler.num_running == scheduler.num_inflight_rounds == 0


def assert_blocks_conserved(scheduler: BaseScheduler, requests: Sequence[Request]) -> None:
    """Each block is free or belongs to exactly one request, and running requests hold what they computed."""
    held = [block for request in requests for block in request.block_ids]
    blocks = scheduler.blocks
    assert sorted([*held, *blocks._free]) == list(range(blocks.num_blocks))
    assert blocks.num_used == len(held) and blocks.num_free == blocks.num_blocks - len(held)
    for request in requests:
        if not request.status.is_finished:
            assert len(request.block_ids) * scheduler.blocks.block_size >= request.num_computed_tokens


def check_rounds(scheduler: BaseScheduler, name: str, requests: Sequence[Request]) -> None:
    """Have every later call of `scheduler.schedule` checked against what holds for each round."""
    plain_schedule = scheduler.schedule

    def checked_schedule(now: float) -> SchedulerOutput | None:
        ready = list(scheduler.decodes)
        in_flight = {r.request_id for r in requests if r.num_inflight_steps}
        computed = {r.request_id: r.num_computed_tokens for r in requests}
        output = plain_schedule(now)
        assert_blocks_conserved(scheduler, requests)
        assert scheduler.num_running <= scheduler.max_num_seqs
        assert scheduler.num_running == sum(bool(r.block_ids) for r in requests)
        if output is None:
            return None
        assert not in_flight & set(output.preempted_ids)
        ids = [r.request_id for r in output.decodes] + [r.request_id for r, _ in output.prefills]
        assert ids and len(set(ids)) == len(ids)
        assert not {r.request_id for r in output.decodes} & set(output.preempted_ids)
        for request, num_tokens in output.prefills:
            assert num_tokens >= 1
            before = 0 if request.request_id in output.preempted_ids else computed[request.request_id]
            assert request.num_computed_tokens == before + num_tokens
        assert output.num_prefill_tokens == sum(n for _, n in output.prefills)
        assert output.sum_decode_context_len == sum(r.num_computed_tokens for r in output.decodes)
        if name in STALL_FREE:
            taken = {r.request_id for r in output.decodes}
            left = {r.request_id for r in ready} - set(output.preempted_ids) - taken
            # Only blocks that rounds in flight hold are waited for; or it is in flight itself, and at its end.
            for request in (r for r in ready if r.request_id in left):
                has_block = request.num_computed_tokens < len(request.block_ids) * scheduler.blocks.block_size
                assert request.status.is_finished or request.request_id in in_flight or (in_flight and not has_block)
        if name in CHUNKED:
            assert output.num_tokens <= max(output.token_budget, len(output.decodes))
        elif len(output.prefills) > 1:
            assert output.num_tokens <= output.token_budget
        return output

    scheduler.schedule = checked_schedule  # type: ignore[method-assign]
