"""`make bench-speed`: what simulating costs this host, and what the scheduler alone costs.

Simulation: requests with the lengths of a trace (of ShareGPT's first turns where none is given or found), Poisson
6.45/s, SARATHI with chunk 512 and 128 seqs, Llama-3-8B on a simulated A100, metrics on, files written. Every size
runs in a fresh process, so that memory and the time to the first result are a user's.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import scheduler_cost

TRACE = Path(__file__).resolve().parents[2] / "shared" / "traces" / "splitwise_conv.csv"
SIZES = (2_000, 20_000, 100_000)
REPEATS = 3  # sizes take turns, since the host's speed drifts
QPS = 6.45


def _flags(trace: Path, num_requests: int, output_dir: str) -> list[str]:
    return [
        "--request_generator_config_type=SYNTHETIC",
        f"--synthetic_request_generator_config_num_requests={num_requests}",
        "--length_generator_config_type=TRACE",
        f"--trace_request_length_generator_config_trace_file={trace}",
        "--trace_request_length_generator_config_max_tokens=8192",
        "--interval_generator_config_type=POISSON",
        f"--poisson_request_interval_generator_config_qps={QPS}",
        "--model_config_model=meta-llama/Meta-Llama-3-8B",
        "--simulated_executor_config_device=a100_80gb",
        "--scheduler_config_type=SARATHI",
        "--sarathi_scheduler_config_chunk_size=512",
        "--sarathi_scheduler_config_max_num_seqs=128",
        f"--output_dir={output_dir}",
    ]


def _write_sharegpt_lengths(path: Path) -> None:
    """The lengths of all first turns of ShareGPT as a trace."""
    from sarathi.benchmark.build import build_workload
    from sarathi.config import parse_args

    workload = build_workload(parse_args(["--sharegpt_request_generator_config_num_requests=null"]))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("num_prefill_tokens", "num_decode_tokens"))
        writer.writerows((spec.num_prompt_tokens, spec.num_output_tokens) for spec in workload.requests)


def _simulate(flags: list[str]) -> None:
    """In the child: one run; prints what only the process itself knows as a line of JSON."""
    from sarathi.benchmark.build import build_workload
    from sarathi.benchmark.runner import run_benchmark
    from sarathi.config import parse_args

    config = parse_args(flags)
    workload = build_workload(config)
    started = time.process_time()
    summary = run_benchmark(config, workload).summary
    cpu = time.process_time() - started
    decodes = summary["batch_num_decode_tokens"]["mean"]
    print(json.dumps({"num_rounds": summary["num_rounds"], "replay_cpu": cpu, "decodes": decodes}), flush=True)


def _run_child(trace: Path, num_requests: int) -> dict[str, Any]:
    """One run in a process of its own: CPU seconds, peak memory (MB), wall time to the result (s)."""
    with tempfile.TemporaryDirectory() as output_dir:
        command = [sys.executable, "-m", "benchmarks.speed", "--simulate", *_flags(trace, num_requests, output_dir)]
        started = time.perf_counter()
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        line = child.stdout.readline()
        first_result = time.perf_counter() - started
        child.stdout.close()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"the simulation of {num_requests} requests failed")
    return {
        **json.loads(line),
        "cpu": usage.ru_utime + usage.ru_stime,
        "max_rss_mb": usage.ru_maxrss / 1024,
        "first_result": first_result,
    }


def simulation_speed(trace: Path) -> None:
    print(
        "Simulation: Llama-3-8B on a simulated A100, SARATHI chunk 512, 128 seqs, Poisson "
        f"{QPS}/s, lengths of {trace.name}, seed 42, metrics on; medians"
    )
    print(
        f"{'requests':>9} {'rounds':>8} {'decodes':>8} {'rounds per CPU-s':>17} {'with start-up':>14} "
        f"{'us a round':>11} {'MB':>6} {'result after s':>15}"
    )
    runs: dict[int, list[dict[str, Any]]] = {num_requests: [] for num_requests in SIZES}
    for _ in range(REPEATS):
        for num_requests in SIZES:
            runs[num_requests].append(_run_child(trace, num_requests))
    cost: dict[int, float] = {}
    for num_requests, measured in runs.items():
        median = {key: statistics.median(run[key] for run in measured) for key in measured[0]}
        cost[num_requests] = median["replay_cpu"] / median["num_rounds"]
        print(
            f"{num_requests:>9,} {median['num_rounds']:>8,.0f} {median['decodes']:>8.1f} "
            f"{1 / cost[num_requests]:>17,.0f} {median['num_rounds'] / median['cpu']:>14,.0f} "
            f"{1e6 * cost[num_requests]:>11.1f} {median['max_rss_mb']:>6.0f} "
            f"{median['first_result']:>15.2f}"
        )
    ratio = cost[SIZES[-1]] / cost[SIZES[0]]
    print(f"a round at {SIZES[-1]:,} requests costs {ratio:.2f}x that at {SIZES[0]:,}")


def main() -> None:
    if sys.argv[1:2] == ["--simulate"]:
        _simulate(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="CSV with num_prefill_tokens, num_decode_tokens")
    trace = parser.parse_args().trace or TRACE
    with tempfile.TemporaryDirectory() as directory:
        if not trace.exists():
            trace = Path(directory) / "sharegpt_first_turns.csv"
            _write_sharegpt_lengths(trace)
        simulation_speed(trace)
    print()
    scheduler_cost.main()


if __name__ == "__main__":
    main()
