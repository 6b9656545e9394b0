"""`make lprs`: LPRS against static token budgets under high load, Qwen3-8B on a simulated RTX PRO 5000.

Target 105 ms, budget 1,024, 256 seqs, context 4,096, 60 % of the memory as in the paper's script, 1 % jitter. Two
workloads of 1,000 ShareGPT requests 0.1 s apart, drawn with the seed: first turns, and turns with their history, which
keep a backlog of prompts. Against the static budget of 1,024, and a static budget tuned so that its mean round takes as
long as LPRS's. A mixed round is one with prefills.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from benchmarks.common import run_with_rounds
from sarathi.benchmark.build import build_workload
from sarathi.benchmark.workloads.spec import Workload
from sarathi.config import parse_args

TARGET_MS = 105.0
SYSTEM = (
    "--simulated_executor_config_device=rtx_pro_5000_72gb",
    "--simulated_executor_config_jitter=0.01",
    "--worker_config_gpu_memory_utilization=0.6",
    "--model_config_max_model_len=4096",
    "--sharegpt_request_generator_config_num_requests=1000",
    "--sharegpt_request_generator_config_shuffle",
    "--sharegpt_request_generator_config_max_output_tokens=2048",
    "--static_request_interval_generator_config_interval=0.1",
)
COLUMNS = (
    "mixed rounds", "mean ms", "sd ms", "p1 ms", "p99 ms", "within 5 %", "all mean ms", "ITL p99 ms", "TTFT mean s",
    "E2E mean s", "tok/s",
)  # fmt: skip


def run(turns: str, workload: Workload, scheduler: str, chunk_size: int, seed: int) -> dict[str, float]:
    prefix = f"--{scheduler.lower()}_scheduler_config"
    target = [] if scheduler == "SARATHI" else [f"{prefix}_target_ms={TARGET_MS}"]
    flags = [
        *SYSTEM,
        *target,
        f"--sharegpt_request_generator_config_turns={turns}",
        f"--scheduler_config_type={scheduler}",
        f"{prefix}_chunk_size={chunk_size}",
        f"{prefix}_max_num_seqs=256",
        f"--seed={seed}",
    ]
    return _figures(*run_with_rounds(flags, workload))


def _figures(summary: dict[str, Any], rounds: list[dict[str, str]]) -> dict[str, float]:
    mixed = np.array([1e3 * float(row["batch_execution_time"]) for row in rounds if row["num_prefills"] != "0"])
    return {
        "mixed rounds": len(mixed),
        "mean ms": float(mixed.mean()),
        "sd ms": float(mixed.std()),
        "p1 ms": float(np.percentile(mixed, 1)),
        "p99 ms": float(np.percentile(mixed, 99)),
        "within 5 %": 100 * float(np.mean(np.abs(mixed / TARGET_MS - 1) <= 0.05)),
        "all mean ms": 1e3 * summary["batch_execution_time"]["mean"],
        "ITL p99 ms": 1e3 * summary["decode_token_execution_plus_preemption_time"]["p99"],
        "TTFT mean s": summary["prefill_e2e_time"]["mean"],
        "E2E mean s": summary["request_e2e_time"]["mean"],
        "tok/s": summary["output_tokens_per_s"],
    }


def tuned_budget(turns: str, workload: Workload, mean_ms: float, seed: int) -> int:
    """The static budget, in steps of 16 up to 1,024, whose mean mixed round is nearest to `mean_ms`."""
    low, high = 4, 64
    while high - low > 1:
        middle = (low + high) // 2
        if run(turns, workload, "SARATHI", 16 * middle, seed)["mean ms"] < mean_ms:
            low = middle
        else:
            high = middle
    return min((16 * low, 16 * high), key=lambda b: abs(run(turns, workload, "SARATHI", b, seed)["mean ms"] - mean_ms))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=42)
    seed = parser.parse_args().seed
    print(
        f"SIMULATED: Qwen3-8B on an RTX PRO 5000, 1 % jitter, target {TARGET_MS:g} ms, 1,000 ShareGPT requests 0.1 s "
        f"apart, seed {seed}; 'mean' to 'within 5 %' over mixed rounds"
    )
    print(f"{'turns':<6}{'scheduler':<18}" + "".join(f"{name:>13}" for name in COLUMNS))
    for turns in ("first", "all"):
        flags = [*SYSTEM, f"--sharegpt_request_generator_config_turns={turns}", f"--seed={seed}"]
        workload = build_workload(parse_args(flags))
        rows = {name: run(turns, workload, name, 1024, seed) for name in ("LPRS", "LPRS_APC")}
        rows["static 1024"] = run(turns, workload, "SARATHI", 1024, seed)
        budget = tuned_budget(turns, workload, rows["LPRS"]["mean ms"], seed)
        rows[f"static {budget} tuned"] = run(turns, workload, "SARATHI", budget, seed)
        for name, figures in rows.items():
            print(f"{turns:<6}{name:<18}" + "".join(f"{figures[column]:>13,.2f}" for column in COLUMNS), flush=True)


if __name__ == "__main__":
    main()
