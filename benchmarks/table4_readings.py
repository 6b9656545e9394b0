"""The readings of Table 4: its workloads, and every case that is run. Knows no report."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.harness.cases import STATIC_INTERVAL, Case, Workload, fcfs_or_aging, sharegpt
from benchmarks.harness.run import Figures, finished_requests, latencies
from benchmarks.harness.statistics import LEAST
from sarathi.metrics.run_record import RunRecord

CHUNKS = (256, 512, 1024)
POLICIES = ("FCFS", "AGING")
ALPHA = 150.0  # 0.3 times the weight base of 500, with beta -1: Table 4's rows at chunk 512 are Figure 6's at 500
COLUMNS = ("mean_e2e_s", "p95_e2e_s", "mean_ttft_s", "p95_ttft_s")
LEVEL_TOLERANCE = 0.5  # seconds that may be left of the paper's four figures of a row after a constant
NOT_BINDING = ("--cache_config_num_gpu_blocks=40000",)
CONTEXT_512 = ("--model_config_max_model_len=512",)

REDUCED = {"num_requests": 40}
EXACT = sharegpt("exact", 200, 0.1, reduced={**REDUCED, "output_tokens": 64}, max_prompt_tokens=512, output_tokens=512)
NATURAL = sharegpt(
    "natural", 200, 0.1, reduced={**REDUCED, "max_output_tokens": 64}, max_prompt_tokens=512, max_output_tokens=512
)
FULL = sharegpt(
    "full",
    200,
    0.1,
    reduced={**REDUCED, "max_output_tokens": 32, "max_prompt_tokens": 1024},
    turns="all",
    shuffle=True,
    max_prompt_tokens=8192,
    max_output_tokens=512,
)


def trace_workload(trace: Path) -> Workload:
    """Lengths of whole conversations, which are three times as long as the dataset's; sent as many tokens a second."""
    prefix = "--trace_request_length_generator_config"
    return Workload(
        "trace",
        (
            "--request_generator_config_type=SYNTHETIC",
            "--synthetic_request_generator_config_num_requests=200",
            "--length_generator_config_type=TRACE",
            f"{prefix}_trace_file={trace}",
            f"{prefix}_max_tokens=8704",
            f"{prefix}_max_output_tokens=512",
            "--interval_generator_config_type=STATIC",
        ),
        {STATIC_INTERVAL: 0.3},
        ("--synthetic_request_generator_config_num_requests=40", f"{prefix}_max_output_tokens=64"),
    )


def table_cases(trace: Path | None, *, every_reading: bool) -> list[Case]:
    """Readings by (name, workload, seats, system flags, engine profile, alpha), each at every chunk and policy."""
    readings = [
        ("exact", EXACT, 10, (), "lean", ALPHA),
        ("exact", EXACT, 10, (), "sarathi_2024", ALPHA),
        ("to 512 in all", EXACT, 10, CONTEXT_512, "lean", ALPHA),
        ("natural", NATURAL, 10, (), "lean", ALPHA),
        ("exact", EXACT, 32, (), "lean", ALPHA),
        ("exact, KV unbound", EXACT, 32, NOT_BINDING, "lean", ALPHA),
        ("to 512 in all", EXACT, 32, CONTEXT_512, "lean", ALPHA),
        ("natural", NATURAL, 32, (), "lean", ALPHA),
        ("full, KV unbound", FULL, 128, NOT_BINDING, "lean", ALPHA),
        ("full, KV unbound", FULL, 128, NOT_BINDING, "lean", 500.0),
        ("full", FULL, 128, (), "lean", ALPHA),
    ]
    if not every_reading:  # a real device has one speed, and the memory it has
        readings = [reading for reading in readings if reading[0] in ("exact", "full") and reading[4] == "lean"]
    if trace is not None:
        for name, system in (("trace, KV unbound", NOT_BINDING), ("trace", ())):
            readings.append((name, trace_workload(trace), 128, system, "lean", ALPHA))
    return [
        Case(
            {"reading": name, "seqs": seats, "profile": profile, "alpha": alpha, "chunk": chunk, "policy": policy},
            workload,
            fcfs_or_aging(policy, chunk, seats, alpha),
            profile=profile,
            system=system,
        )
        for name, workload, seats, system, profile, alpha in readings
        for chunk in CHUNKS
        for policy in POLICIES
    ]


def measure(record: RunRecord) -> Figures:
    """Latencies, and each finished request's E2E time by its id, for pairing."""
    return {**latencies(record), "e2e": finished_requests(record, "request_e2e_time")["request_e2e_time"]}


def shares(before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
    """Percent of pairs that fall, and that rise, by more than LEAST percent."""
    ratio = 100 * (after / before - 1)
    return 100 * float(np.mean(ratio < -LEAST)), 100 * float(np.mean(ratio > LEAST))
