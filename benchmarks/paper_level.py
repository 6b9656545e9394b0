"""`make paper-level`: the workload of the paper's Table 4 on the simulated RTX 4090, FCFS beside Aging.

The first 200 first turns of ShareGPT, prompts above 512 tokens left out, 512 output tokens each, 0.1 s apart,
Qwen3-8B, 10 seqs. Our level lacks a constant that each row of the paper has; it is printed as the difference.
"""

from __future__ import annotations

from sarathi.benchmark.build import build_workload
from sarathi.benchmark.runner import run_benchmark
from sarathi.config import parse_args

WORKLOAD = (
    "--sharegpt_request_generator_config_num_requests=200",
    "--sharegpt_request_generator_config_max_prompt_tokens=512",
    "--sharegpt_request_generator_config_output_tokens=512",
    "--static_request_interval_generator_config_interval=0.1",
    "--no-metrics_config_write_metrics",
)
# Table 4: mean E2E, P95 E2E, mean TTFT, P95 TTFT, in seconds.
PAPER = {
    (256, "SARATHI"): (118.72, 195.73, 107.82, 184.86),
    (256, "AGING"): (106.56, 183.58, 95.67, 172.73),
    (512, "SARATHI"): (115.52, 196.63, 104.12, 185.24),
    (512, "AGING"): (107.73, 185.72, 96.72, 174.78),
    (1024, "SARATHI"): (109.38, 190.10, 98.14, 178.34),
    (1024, "AGING"): (110.59, 189.64, 99.39, 178.39),
}
METRICS = (
    ("request_e2e_time", "mean"),
    ("request_e2e_time", "p95"),
    ("prefill_e2e_time", "mean"),
    ("prefill_e2e_time", "p95"),
)


def main() -> None:
    workload = build_workload(parse_args(WORKLOAD))
    print("SIMULATED: Qwen3-8B on an RTX 4090, 10 seqs, 512 output tokens, 0.1 s apart; seconds")
    for note in workload.notes:
        print(f"workload: {note}")
    print(
        f"{'chunk':>5} {'policy':<8} {'execution':>9}   mean E2E, P95 E2E, mean TTFT, P95 TTFT: ours | paper less ours"
    )
    for (chunk, scheduler), paper in PAPER.items():
        flags = [
            f"--scheduler_config_type={scheduler}",
            f"--{scheduler.lower()}_scheduler_config_chunk_size={chunk}",
            f"--{scheduler.lower()}_scheduler_config_max_num_seqs=10",
        ]
        summary = run_benchmark(parse_args([*WORKLOAD, *flags]), workload).summary
        ours = [summary[metric][statistic] for metric, statistic in METRICS]
        differences = "".join(f"{a - b:8.2f}" for a, b in zip(paper, ours, strict=True))
        name = "FCFS" if scheduler == "SARATHI" else scheduler
        print(
            f"{chunk:>5} {name:<8} {summary['request_execution_time']['mean']:>9.2f}  "
            f"{''.join(f'{value:8.2f}' for value in ours)}  | {differences}"
        )


if __name__ == "__main__":
    main()
