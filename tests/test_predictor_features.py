"""Features: the paper's order and formulas, and that collecting and scheduling mean the same by them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from predictor import features
from predictor.features import (
    DERIVED_FEATURES,
    EXTRA_FEATURES,
    RAW_FEATURES,
    ROUND_COLUMNS,
    derive,
    feature_names,
    from_plan,
    from_rounds,
    round_to_tile,
)
from sarathi.benchmark.runner import run_benchmark
from sarathi.benchmark.workloads.spec import RequestSpec, Workload
from sarathi.config import BenchmarkConfig, CacheConfig, CustomSchedulerConfig
from sarathi.core.chunking import ChunkDecision, ChunkSizer, StaticBudget
from sarathi.core.plan import BatchPlan, MemoryStats, SchedulerOutput
from sarathi.core.scheduler import BaseScheduler
from sarathi.request import Request, SamplingParams
from sarathi.simulation import latency

PAPER = (
    "prefill_tokens", "decode_tokens", "batch_request_count", "sum_decode_context_len", "max_decode_context_len",
    "prefill_processed_tokens", "max_prefill_processed_tokens", "gpu_mem_used_mb", "gpu_mem_free_mb",
    "cuda_allocated_mb", "cuda_reserved_mb", "bias", "scheduled_tokens", "avg_decode_ctx", "decode_ctx_interaction",
    "prefill_interaction",
)  # fmt: skip


def test_the_sixteen_features_have_the_papers_names_and_order() -> None:
    assert feature_names() == PAPER
    assert len(RAW_FEATURES) == 11 and len(DERIVED_FEATURES) == 5


def test_derived_features_by_hand() -> None:
    with_decodes = [100, 4, 6, 1000, 400, 50, 30, 1, 2, 3, 4]
    prefill_only = [7, 0, 1, 0, 0, 5, 5, 1, 2, 3, 4]
    raw = np.array([with_decodes, prefill_only], dtype=float)
    x = derive(raw, ("tile_tokens",))
    assert x.tolist() == [[*with_decodes, 1, 104, 250, 1000, 5000, 128], [*prefill_only, 1, 7, 0, 0, 35, 16]]


def test_an_unknown_extra_is_refused() -> None:
    with pytest.raises(ValueError, match=r"extra feature: 'tiles' is not allowed; one of tile_tokens"):
        derive(np.ones((1, 11)), ("tiles",))


def test_tiles_are_those_of_the_simulated_gemm() -> None:
    rows = np.arange(2000)
    assert round_to_tile(rows).tolist() == [latency.round_to_tile(n) for n in rows.tolist()]


def test_a_missing_column_is_named() -> None:
    with pytest.raises(ValueError, match="batch_size, gpu_mem_used_mb are missing"):
        from_rounds({c: np.ones(2) for c in ROUND_COLUMNS.values() if c not in ("batch_size", "gpu_mem_used_mb")})


def test_from_plan_by_hand() -> None:
    def request(num_prompt: int, computed: int) -> Request:
        made = Request("x", range(num_prompt), SamplingParams(), 0.0)
        made.num_computed_tokens = computed
        return made

    plan = BatchPlan(512, 0.0)
    plan.add_decodes([request(10, 11), request(20, 25)], 36, 25)
    plan.add(request(300, 64), 100)
    raw = from_plan(request(500, 200), np.array([1, 32]), plan, MemoryStats(1.0, 2.0, 3.0, 4.0))
    assert raw.tolist() == [
        [101, 2, 4, 36, 25, 264, 200, 1, 2, 3, 4],
        [132, 2, 4, 36, 25, 264, 200, 1, 2, 3, 4],
    ]


class Probe(ChunkSizer):
    """A static budget that keeps what a predictor would have been given for the chunk that ended each round."""

    seen: ClassVar[dict[int, np.ndarray]] = {}

    def begin_round(self, plan: BatchPlan, memory: MemoryStats) -> None:
        self.memory, self.last = memory, None

    def size(self, request: Request, plan: BatchPlan) -> ChunkDecision:
        decision = StaticBudget().size(request, plan)
        self.last = from_plan(request, np.array([decision.num_tokens]), plan, self.memory)[0]
        return decision

    def observe(self, output: SchedulerOutput, measured_time: float) -> None:
        if self.last is not None:
            self.seen[output.step_id] = self.last


class ProbeScheduler(BaseScheduler):
    def make_sizer(self) -> ChunkSizer:
        return Probe()


def test_scheduling_and_collecting_see_the_same_round(tmp_path: Path) -> None:
    """Chunked prompts beside decodes, with preemptions: what was asked before each round is what it recorded."""
    Probe.seen.clear()
    config = BenchmarkConfig(
        cache_config=CacheConfig(num_gpu_blocks=60),
        scheduler_config=CustomSchedulerConfig(chunk_size=64, max_num_seqs=8, class_path=f"{__name__}.ProbeScheduler"),
        output_dir=str(tmp_path),
    )
    requests = [RequestSpec(str(i), 0.01 * i, 20 + 37 * (i % 5), 30 + i) for i in range(40)]
    result = run_benchmark(config, Workload("test", requests))
    assert result.directory is not None and result.summary["num_preemptions"]
    with open(result.directory / "rounds.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    raw = from_rounds({name: np.array([float(row[name]) for row in rows]) for name in ROUND_COLUMNS.values()})
    assert not Probe.seen[0][7:].any() and Probe.seen[1][7:].all()  # no memory is known before the first result
    assert len(Probe.seen) > 20 and max(x[2] - x[1] for x in Probe.seen.values()) > 1
    for step, seen in Probe.seen.items():
        assert seen == pytest.approx(raw[step], abs=1e-3), step


def test_the_command_prints_every_feature(capsys: pytest.CaptureFixture[str]) -> None:
    features.main()
    out = capsys.readouterr().out
    for name in (*PAPER, *EXTRA_FEATURES):
        assert f"  {name} " in out
