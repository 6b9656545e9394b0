"""The sections of `make gpu-check` in which an engine serves: overlap, and LPRS on a predictor of the card's rounds."""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_check_setup import Report, Setup
from predictor.rounds_file import TARGET, read
from sarathi import LLM, SamplingParams
from sarathi.benchmark.runner import run_benchmark
from sarathi.benchmark.system import build_system
from sarathi.benchmark.tokenizers import ordinary_token_ids
from sarathi.benchmark.workloads.random_tokens import with_random_tokens
from sarathi.benchmark.workloads.spec import RequestSpec, Workload
from sarathi.config import parse_args
from sarathi.system import load_shared_parts

NEAR = 0.1  # of the target
TARGET_PERCENTILE = 75  # of the times of collected rounds: above those of decodes alone
NO_FIGURES = ("--no-metrics_config_plots", "--no-metrics_config_report")
STATIC_BUDGETS = (4, 1)  # fractions of LPRS's budget


def overlap(report: Report) -> None:
    """A batch job with the next round made while one runs, and without: the same tokens, and how fast."""
    setup = report.setup
    num_requests, prompt_tokens, output_tokens = setup.job
    rng = np.random.default_rng(2)
    prompts = rng.integers(1, 190, (num_requests, prompt_tokens)).tolist()
    params = SamplingParams(temperature=0, max_tokens=output_tokens, ignore_eos=True)
    given: dict[bool, list[list[int]]] = {}
    speed: dict[bool, float] = {}
    for on in (False, True):
        llm = LLM(
            setup.token_model,
            load_format=setup.token_load_format,
            device=setup.device,
            dtype=setup.dtype,
            max_num_seqs=num_requests,
            chunk_size=256,
            num_gpu_blocks=num_requests * -(-(prompt_tokens + output_tokens) // 16),
            overlap=on,
        )
        times = []
        for _ in range(2):  # the first warms up
            started = time.perf_counter()
            given[on] = [output.token_ids for output in llm.generate(prompts, params)]
            times.append(time.perf_counter() - started)
        speed[on] = num_requests * output_tokens / times[-1]
    same = sum(a == b for a, b in zip(given[True], given[False], strict=True))
    report.check("tokens with overlap = those without", same == num_requests, f"{same} of {num_requests} requests")
    gain = speed[True] / speed[False]
    report.fact(f"overlap: {speed[True]:,.0f} output tokens/s, without {speed[False]:,.0f}: {gain:.2f} times")


def lprs(report: Report) -> None:
    """Collect rounds, train a predictor on them, and hold LPRS at a target against static budgets."""
    setup = report.setup
    with tempfile.TemporaryDirectory(prefix="sarathi-gpu-check-") as folder:
        rounds_file, trained = Path(folder, "rounds.csv"), Path(folder, "predictor.npz")
        common = _model_flags(setup)
        collect = [
            "--grid=local",
            f"--minutes={setup.collect_minutes}",
            f"--output={rounds_file}",
            "--sharegpt_request_generator_config_tokenizer=qwen",
        ]
        _run("predictor.collect", *collect, *common)
        _run("predictor.train", str(rounds_file), f"--output={trained}", f"--epochs={setup.train_epochs}")
        times = 1e3 * read(rounds_file)[0][TARGET]
        report.fact(f"{len(times):,} rounds collected, median {np.median(times):.1f} ms")
        _replay_at_target(report, common, trained, float(np.percentile(times, TARGET_PERCENTILE)))


def _run(module: str, *flags: str) -> None:
    """In a process of its own, whose device memory is free again at its end; what it tells is not the result."""
    subprocess.run([sys.executable, "-m", module, *flags], stdout=sys.stderr, check=True)


def _replay_at_target(report: Report, common: list[str], trained: Path, target_ms: float) -> None:
    setup = report.setup
    budget = setup.max_target_tokens
    runs = {
        "LPRS": ["LPRS", budget, f"target_ms={target_ms:.3f}", f"predictor_file={trained}"],
        **{f"static {budget // part}": ["SARATHI", budget // part] for part in STATIC_BUDGETS},
    }
    flags = {name: [*common, *_scheduler_flags(setup, *run)] for name, run in runs.items()}
    parts = load_shared_parts([parse_args(one) for one in flags.values()])
    report.fact(f"target {target_ms:.1f} ms; of rounds with prefills:")
    report.fact(f"{'scheduler':<14}{'rounds':>8}{'mean ms':>9}{'sd ms':>8}{'p99 ms':>8}{'within 10 %':>13}")
    means: dict[str, float] = {}
    for name, one in flags.items():
        with tempfile.TemporaryDirectory() as directory:
            config = parse_args([*one, f"--output_dir={directory}", f"--time_limit={setup.replay[3]}", *NO_FIGURES])
            system = build_system(config, parts)
            workload = with_random_tokens(_workload(setup), ordinary_token_ids(system), 3)
            result = run_benchmark(config, workload, system=system)
            assert result.directory is not None
            mixed = _mixed_rounds(result.directory)
        means[name] = float(mixed.mean())
        near, p99 = np.mean(np.abs(mixed / target_ms - 1) <= NEAR), np.percentile(mixed, 99)
        report.fact(f"{name:<14}{len(mixed):>8,}{means[name]:>9.1f}{mixed.std():>8.1f}{p99:>8.1f}{near:>13.0%}")
    ratio = means["LPRS"] / target_ms
    report.timing("LPRS meets its target on average", abs(ratio - 1) < 0.15, f"{ratio:.2f} of it")


def _model_flags(setup: Setup) -> list[str]:
    sizes = ["--model_config_max_model_len=4096", "--worker_config_gpu_memory_utilization=0.9"]
    if setup.is_dry:
        sizes = ["--model_config_max_model_len=512", "--cache_config_num_gpu_blocks=400"]
    return [
        "--executor_config_type=LOCAL",
        f"--local_executor_config_device={setup.device}",
        f"--model_config_model={setup.round_model}",
        "--model_config_load_format=dummy",
        f"--model_config_dtype={setup.dtype}",
        *sizes,
        "--no-write_json_trace",
    ]


def _scheduler_flags(setup: Setup, name: str, budget: int, *more: str) -> list[str]:
    prefix = f"--{name.lower()}_scheduler_config"
    return [
        f"--scheduler_config_type={name}",
        f"{prefix}_chunk_size={budget}",
        f"{prefix}_max_num_seqs=64",
        *(f"{prefix}_{setting}" for setting in more),
    ]


def _workload(setup: Setup) -> Workload:
    """All at once, so that there is always a prompt to cut."""
    num_requests, least, most, _ = setup.replay
    lengths = np.random.default_rng(4).integers(least, most, num_requests, endpoint=True)
    output_tokens = 4 if setup.is_dry else 48
    return Workload("prompts at once", [RequestSpec(str(i), 0.0, int(n), output_tokens) for i, n in enumerate(lengths)])


def _mixed_rounds(directory: Path) -> Any:
    with (directory / "rounds.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["num_prefills"] != "0"]
    return np.array([1e3 * float(row["batch_execution_time"]) for row in rows])
