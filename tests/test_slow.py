"""What takes longer than a test should."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness.options import Options
from benchmarks.harness.run import run_cases
from benchmarks.table4_readings import table_cases

pytestmark = pytest.mark.slow


def test_aging_gains_most_with_small_chunks_where_prefill_is_the_bottleneck(shared: Path, tmp_path: Path) -> None:
    """Clearly at 256, less at 512, little at 1,024, for every seed's mean E2E, if KV does not bind."""
    trace = shared / "traces" / "sharegpt_8k_filtered_stats_llama2_tokenizer.csv"
    cases = [case for case in table_cases(trace, every_reading=True) if case.labels["reading"] == "trace, KV unbound"]
    runs = run_cases("table4", cases, Options(results=tmp_path, processes=2))
    gains = {}
    for chunk in (256, 512, 1024):
        fcfs, aging = (runs.find(chunk=chunk, policy=policy) for policy in ("FCFS", "AGING"))
        pairs = zip(runs.values(fcfs, "mean_e2e_s"), runs.values(aging, "mean_e2e_s"), strict=True)
        assert all(after < before for before, after in pairs)
        gains[chunk] = -runs.change(fcfs, aging, "mean_e2e_s").value
    assert gains[256] > 9 and gains[256] > gains[512] + 2 and gains[512] > gains[1024] + 2
