"""`python -m predictor.collect`: profile an executor, or turn past runs, into one file of rounds.

Runs the scheduler over a grid of loads; the file is `predictor.rounds_file`'s business, and what becomes of the
rounds `predictor.dataset`'s.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from predictor.command_line import check_writable, exit_status
from predictor.grids import GRIDS, Job, length_pool
from predictor.rounds_file import gather
from sarathi.benchmark.progress import progress_bar
from sarathi.benchmark.runner import run_benchmark
from sarathi.benchmark.system import build_system
from sarathi.benchmark.tables import device_notice
from sarathi.benchmark.tokenizers import ordinary_token_ids
from sarathi.benchmark.workloads.random_tokens import with_random_tokens
from sarathi.config import BenchmarkConfig, ShareGptRequestGeneratorConfig, SimulatedExecutorConfig, config_from_args
from sarathi.metrics.run_record import RunRecord
from sarathi.system import load_shared_parts

logger = logging.getLogger(__name__)

PROGRAM = "python -m predictor.collect"
DEFAULT_OUTPUT = "benchmark_output/rounds.parquet"
LOCAL_MINUTES, MAX_MINUTES = 5.0, 10_000
GRID_SETTINGS = ("scheduler_config", "request_generator_config", "metrics_config", "time_limit", "output_dir")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 2 for an argument that makes no sense, with one line that names it."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    args, rest = _parser().parse_known_args(argv)
    return exit_status(lambda: _collect(args, rest))


def _collect(args: argparse.Namespace, rest: Sequence[str]) -> None:
    output = _checked_output(args.output)
    if args.from_runs:
        if rest:
            raise ValueError(f"--from-runs: {rest[0]} has no effect with it; devices are those of the runs")
        num_rounds = gather(map(Path, args.from_runs), output)
    else:
        config = config_from_args(rest, BenchmarkConfig, PROGRAM)
        print(device_notice(config), flush=True)
        num_rounds = collect(config, output, args.grid, args.processes, args.minutes)
    written = [path for path in (output.with_suffix(".parquet"), output.with_suffix(".csv")) if path.exists()]
    print(f"{num_rounds:,} rounds: {', '.join(map(str, written))}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [--output FILE] [--grid NAME] [--minutes M] [--processes N] [--from-runs DIR ...] "
        "[--<setting> VALUE ...]",
        description="Record the rounds of many runs as profiling data for the latency predictor.",
        epilog="What is profiled is set as in python -m sarathi.benchmark.main: --simulated_executor_config_device, "
        "_engine_profile and _jitter, or --executor_config_type LOCAL or RAY; --model_config_model, "
        "--parallel_config_..., --seed, --config FILE.yaml and so on. Schedulers and requests are the grid's.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--output",
        default=DEFAULT_OUTPUT,
        metavar="FILE",
        help="data file; the same rounds are written as FILE.parquet (where pyarrow is) and FILE.csv "
        "(default %(default)s)",
    )
    parser.add_argument(
        "--grid",
        choices=GRIDS,
        help="default: budgets 256 to 1,024 and random chunks, 8 to 256 seqs, six prompt mixtures, three rates; "
        "local, which is taken with a real model: budgets 64 and 256 and random chunks, 4 to 64 seqs, in "
        "--minutes; paper: the paper's profiling, chunk 256 and 32 seqs",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        metavar="M",
        help=f"time of the engine's clock that all runs of the grid local take together (default {LOCAL_MINUTES:g})",
    )
    parser.add_argument(
        "--processes", type=int, metavar="N", help="runs at a time (default 2; with a real model only 1)"
    )
    parser.add_argument(
        "--from-runs", nargs="+", metavar="DIR", help="run nothing; take the rounds.csv of these folders of past runs"
    )
    return parser


def _checked_output(text: str) -> Path:
    output = Path(text)
    if output.suffix not in (".parquet", ".csv"):
        raise ValueError(f"--output: {text} is not allowed; a name that ends in .parquet or .csv")
    for suffix in (".csv", ".parquet"):
        check_writable("--output", output.with_suffix(suffix))
    return output


def collect(
    config: BenchmarkConfig,
    output: Path,
    grid: str | None = None,
    processes: int | None = None,
    minutes: float | None = None,
) -> int:
    """Run a grid of GRIDS on the executor that `config` describes; returns the number of rounds in `output`.

    None takes what fits the executor: `--help` says what that is. The same config gives the same file on a simulated
    device. Raises ValueError for settings that the grid would override.
    """
    is_real = not isinstance(config.executor_config, SimulatedExecutorConfig)
    grid = grid or ("local" if is_real else "default")
    processes = (1 if is_real else 2) if processes is None else processes
    if processes < 1 or (is_real and processes > 1):
        allowed = "only 1 with a real model" if is_real else "at least 1"
        raise ValueError(f"--processes: {processes} is not allowed; {allowed}")
    if minutes is not None and (grid != "local" or not 0 < minutes <= MAX_MINUTES):
        allowed = f"above 0 and at most {MAX_MINUTES:,}" if grid == "local" else "only the grid local takes a time"
        raise ValueError(f"--minutes: {minutes:g} is not allowed; {allowed}")
    _check_settings(config)
    pool = length_pool(config)
    for note in pool.notes:
        print(f"workload: {note}")
    metrics = replace(config.metrics_config, plots=False, report=False, wandb_project=None)
    jobs = GRIDS[grid](replace(config, metrics_config=metrics, write_json_trace=False), pool)
    if grid == "local":
        seconds = 60 * (minutes or LOCAL_MINUTES) / len(jobs)
        jobs = [Job(replace(job.config, time_limit=seconds), job.workload) for job in jobs]
    with tempfile.TemporaryDirectory(prefix="sarathi-collect-") as folder:
        jobs = [
            Job(replace(job.config, output_dir=str(Path(folder, f"{number:04}"))), job.workload)
            for number, job in enumerate(jobs)
        ]
        with progress_bar(len(jobs), "runs", "run") as on_progress:
            directories = []
            for directory in _run_on_one_model(jobs) if is_real else _run_all(jobs, processes):
                directories.append(directory)
                on_progress(len(directories))
        return gather(directories, output)


def _check_settings(config: BenchmarkConfig) -> None:
    """Of what a grid sets, only the ShareGPT file and tokenizer that lengths come from may be given."""
    generator = config.request_generator_config
    default = BenchmarkConfig()
    if isinstance(generator, ShareGptRequestGeneratorConfig):
        default_generator = ShareGptRequestGeneratorConfig(file=generator.file, tokenizer=generator.tokenizer)
        default = replace(default, request_generator_config=default_generator)
    for name in GRID_SETTINGS:
        if getattr(config, name) != getattr(default, name):
            raise ValueError(f"--{name}...: not allowed here; the grid of runs sets it")


def _run_on_one_model(jobs: Sequence[Job]) -> Iterator[Path]:
    """The runs' folders, one run after the other on a model that is loaded once."""
    parts = load_shared_parts([job.config for job in jobs])
    assert parts is not None
    for note in parts.notes:
        print(f"system: {note}", flush=True)
    vocabulary = None
    for job in jobs:
        system = build_system(job.config, parts)
        if vocabulary is None:
            vocabulary = ordinary_token_ids(system)
        workload = with_random_tokens(job.workload, vocabulary, job.config.seed)
        yield _folder(run_benchmark(job.config, workload, system=system))


def _run_all(jobs: Sequence[Job], processes: int) -> Iterator[Path]:
    """The runs' folders, in the order of the jobs."""
    if processes == 1:
        yield from map(_run, jobs)
        return
    with ProcessPoolExecutor(processes) as executor:
        try:
            yield from executor.map(_run, jobs)
        except BaseException:
            executor.shutdown(cancel_futures=True)
            raise


def _run(job: Job) -> Path:
    return _folder(run_benchmark(job.config, job.workload))


def _folder(result: RunRecord) -> Path:
    assert result.directory is not None
    return result.directory


if __name__ == "__main__":
    sys.exit(main())
