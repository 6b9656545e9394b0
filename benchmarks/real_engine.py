"""`make real-engine`: what the real engine on this CPU shows: simulator against reality, and LPRS at a target.

SmolLM2-135M in float32. Rounds collected on this machine (`python -m predictor.collect`) are the latency table of the
simulated runs, and what the predictor of the LPRS runs was trained on. Everything is measured on the real clock, so
figures move with the machine's speed; keep it idle.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sarathi.benchmark.build import build_workload
from sarathi.benchmark.runner import run_benchmark
from sarathi.benchmark.system import build_system
from sarathi.benchmark.workloads.spec import Workload
from sarathi.config import parse_args
from sarathi.system import load_shared_parts

MAX_BUDGET = 512
COMMON = (
    "--model_config_model=smollm2",
    "--sharegpt_request_generator_config_tokenizer=model",
    "--cache_config_num_gpu_blocks=4000",
    "--no-write_json_trace",
)
LOCAL = (*COMMON, "--executor_config_type=LOCAL")
REPLAY = (
    "--sharegpt_request_generator_config_num_requests=80",
    "--sharegpt_request_generator_config_max_prompt_tokens=1500",
    "--sharegpt_request_generator_config_max_output_tokens=128",
    "--request_generator_config_type=SHAREGPT",
)
METRICS = (
    ("TTFT", "prefill_e2e_time"),
    ("TPOT", "decode_time_execution_plus_preemption_normalized"),
    ("E2E", "request_e2e_time"),
)
Rows = list[dict[str, str]]


class RealEngine:
    """One loaded model for all real runs; each run with a scheduler of its own."""

    def __init__(self, threads: int) -> None:
        self._threads = f"--local_executor_config_num_threads={threads}"
        self._parts = load_shared_parts([parse_args([*LOCAL, self._threads, *_scheduler("SARATHI", MAX_BUDGET, 64)])])

    def run(self, flags: Sequence[str]) -> tuple[dict[str, Any], Rows]:
        return _run([*LOCAL, self._threads, *flags], self._parts)


def _run(flags: Sequence[str], parts: Any = None) -> tuple[dict[str, Any], Rows]:
    with tempfile.TemporaryDirectory() as directory:
        config = parse_args([*flags, f"--output_dir={directory}"])
        system = build_system(config, parts)
        workload: Workload = build_workload(config, system)
        result = run_benchmark(config, workload, system=system)
        assert result.directory is not None
        with (result.directory / "rounds.csv").open(newline="") as file:
            return result.summary, list(csv.DictReader(file))


def _scheduler(name: str, chunk_size: int, seats: int, *more: str) -> list[str]:
    prefix = f"--{name.lower()}_scheduler_config"
    return [
        f"--scheduler_config_type={name}",
        f"{prefix}_chunk_size={chunk_size}",
        f"{prefix}_max_num_seqs={seats}",
        *(f"{prefix}_{setting}" for setting in more),
    ]


def simulator_against_reality(engine: RealEngine, rounds_file: Path) -> None:
    """The same requests for real and simulated with the collected rounds as latency table."""
    print("\nSimulator against reality: the same requests, round times from the collected rounds")
    print(f"{'arrivals':<12}{'metric':<12}" + "".join(f"{name:>12}" for name in ("real s", "simulated s", "error %")))
    for interval in (0.6, 0.3, 0.0):
        flags = [
            *REPLAY,
            f"--static_request_interval_generator_config_interval={interval}",
            *_scheduler("SARATHI", 256, 16),
        ]
        real, _ = engine.run(flags)
        simulated, _ = _run(
            [
                *COMMON,
                *flags,
                "--executor_config_type=SIMULATED",
                "--model_config_dtype=float32",
                f"--simulated_executor_config_rounds_file={rounds_file}",
            ]
        )
        for name, metric in METRICS:
            for statistic in ("mean", "p99"):
                ours, theirs = simulated[metric][statistic], real[metric][statistic]
                print(
                    f"{f'every {interval:g} s':<12}{f'{name} {statistic}':<12}{theirs:>12.4f}{ours:>12.4f}"
                    f"{100 * (ours / theirs - 1):>12.1f}",
                    flush=True,
                )


def lprs_at_a_target(engine: RealEngine, predictor: Path, target_ms: float) -> None:
    """Mixed rounds of LPRS against static budgets, under a backlog of prompts with their history."""
    print(
        f"\nLPRS at a target of {target_ms:g} ms: 50 ShareGPT turns with their history (at most 1,500 tokens), one "
        "every 0.4 s, outputs at most 96; 'mean' to 'within' over rounds with prefills"
    )
    columns = ("rounds", "mean ms", "sd ms", "p1 ms", "p99 ms", "within 10 %", "ITL p99 ms", "TTFT mean s", "tok/s")
    print(f"{'scheduler':<20}" + "".join(f"{name:>13}" for name in columns))
    workload = (
        "--sharegpt_request_generator_config_num_requests=50",
        "--sharegpt_request_generator_config_turns=all",
        "--sharegpt_request_generator_config_shuffle",
        "--sharegpt_request_generator_config_max_prompt_tokens=1500",
        "--sharegpt_request_generator_config_max_output_tokens=96",
        "--static_request_interval_generator_config_interval=0.4",
    )
    lprs = (f"target_ms={target_ms}", f"predictor_file={predictor}", "delta=8")
    runs = {
        "LPRS": _scheduler("LPRS", MAX_BUDGET, 64, *lprs),
        "LPRS_APC": _scheduler("LPRS_APC", MAX_BUDGET, 64, *lprs),
        **{f"static {budget}": _scheduler("SARATHI", budget, 64) for budget in (512, 256, 128, 64)},
    }
    for name, scheduler in runs.items():
        summary, rounds = engine.run([*workload, *scheduler])
        mixed = np.array([1e3 * float(row["batch_execution_time"]) for row in rounds if row["num_prefills"] != "0"])
        figures = (
            len(mixed),
            mixed.mean(),
            mixed.std(),
            np.percentile(mixed, 1),
            np.percentile(mixed, 99),
            100 * np.mean(np.abs(mixed / target_ms - 1) <= 0.1),
            1e3 * summary["decode_token_execution_plus_preemption_time"]["p99"],
            summary["prefill_e2e_time"]["mean"],
            summary["output_tokens_per_s"],
        )
        print(f"{name:<20}" + "".join(f"{figure:>13,.2f}" for figure in figures), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=Path, required=True, help="rounds collected on this machine")
    parser.add_argument("--predictor", type=Path, required=True, help="the predictor trained on them")
    parser.add_argument("--target-ms", type=float, default=150.0, help="of LPRS (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of the CPU (default: %(default)s)")
    args = parser.parse_args()
    print(f"SmolLM2-135M float32 on this machine's CPU, {args.threads} threads, real clock, seed 42")
    engine = RealEngine(args.threads)
    simulator_against_reality(engine, args.rounds)
    lprs_at_a_target(engine, args.predictor, args.target_ms)


if __name__ == "__main__":
    main()
