"""`make wandb-cost`: what recording in Weights & Biases costs the run itself.

The same simulated run with and without a project, turn about, in this process. A simulated run is the hardest case:
it makes rounds a hundred times faster than a device. wandb writes offline, so that no account is needed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import NamedTuple

from sarathi.benchmark.build import build_workload
from sarathi.benchmark.runner import run_benchmark
from sarathi.config import parse_args

FLAGS = (
    "--executor_config_type=SIMULATED",
    "--request_generator_config_type=SYNTHETIC",
    "--fixed_request_length_generator_config_prefill_tokens=300",
    "--fixed_request_length_generator_config_decode_tokens=150",
    "--interval_generator_config_type=POISSON",
    "--poisson_request_interval_generator_config_qps=4",
    "--no-write_json_trace",
)
WANDB = ("--metrics_config_wandb_project=cost", "--metrics_config_wandb_mode=offline")


class Cost(NamedTuple):
    wall: float  # seconds of the run, without what follows it
    cpu: float  # seconds of this process's processors


def measure(flags: list[str]) -> Cost:
    config = parse_args(flags)
    workload = build_workload(config)
    wall, cpu = time.perf_counter(), time.process_time()
    record = run_benchmark(config, workload)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    record.fail(RuntimeError("measured"))  # the copy, which would take longer than the run, is cut short
    return Cost(wall, cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=30_000)
    parser.add_argument("--repeats", type=int, default=8, help="pairs of runs")
    args = parser.parse_args()
    print(f"SIMULATED: Qwen3-8B on an RTX 4090, SARATHI, {args.requests:,} requests of 300 + 150 tokens; wandb offline")
    plain, recorded = [], []
    with tempfile.TemporaryDirectory() as directory:
        flags = [*FLAGS, f"--synthetic_request_generator_config_num_requests={args.requests}"]
        flags.append(f"--output_dir={directory}")
        measure(flags)  # loads what both share
        for i in range(args.repeats):
            kinds = [(plain, flags), (recorded, [*flags, *WANDB])]
            for costs, these in reversed(kinds) if i % 2 else kinds:
                costs.append(measure(these))
    for name in Cost._fields:
        without, with_wandb = ([getattr(cost, name) for cost in costs] for costs in (plain, recorded))
        ratio = statistics.median(b / a for a, b in zip(without, with_wandb, strict=True))
        print(
            f"{name + ' s':<8} without {statistics.median(without):.3f}   with wandb "
            f"{statistics.median(with_wandb):.3f}   ratio within a pair {ratio:.3f}   ({args.repeats} pairs, medians)"
        )


if __name__ == "__main__":
    main()
