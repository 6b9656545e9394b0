"""What takes longer than a test should."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from benchmarks.aging_gain import SEEDS, mean_e2e, workload_flags
from sarathi.benchmark.build import build_workload
from sarathi.config import parse_args

pytestmark = pytest.mark.slow


def test_aging_gains_most_with_small_chunks_where_prefill_is_the_bottleneck(shared: Path) -> None:
    """Clearly at 256, less at 512, little at 1,024, for every seed's mean E2E, if KV does not bind."""
    trace = shared / "traces" / "sharegpt_8k_filtered_stats_llama2_tokenizer.csv"
    flags = [*workload_flags(trace), "--static_request_interval_generator_config_interval=0.3"]
    gains = {}
    for chunk in (256, 512, 1024):
        of_seeds = []
        for seed in SEEDS:
            workload = build_workload(parse_args([*flags, f"--seed={seed}"]))
            fcfs, aging = (mean_e2e(flags, workload, name, chunk, "40000") for name in ("SARATHI", "AGING"))
            of_seeds.append(1 - aging / fcfs)
        assert min(of_seeds) > 0
        gains[chunk] = statistics.mean(of_seeds)
    assert gains[256] > 0.09 and gains[256] > gains[512] + 0.02 and gains[512] > gains[1024] + 0.02
