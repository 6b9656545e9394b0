"""`python -m sarathi.benchmark.main`: replay one workload under one scheduler."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from sarathi.benchmark.build import build_workload
from sarathi.benchmark.report import device_notice, progress_bar, summary_table
from sarathi.benchmark.runner import RunResult, run_benchmark
from sarathi.benchmark.workloads.spec import Workload
from sarathi.config import BenchmarkConfig, parse_args

INTERRUPTED = 130  # exit status of a process that SIGINT ended


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 2 for a setting that makes no sense, with one line that names it."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    config = parse_args(argv)
    logging.getLogger().setLevel(config.log_level.upper())
    try:
        print(device_notice(config), flush=True)
        workload = build_workload(config)
        result = run(config, workload)
    except ValueError as error:
        logging.getLogger(__name__).debug("where the error arose", exc_info=True)
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; files of this run that end in .part are incomplete", file=sys.stderr)
        return INTERRUPTED
    if result.directory is not None:
        if config.metrics_config.plots:
            draw_plots(result)
        print(f"files: {result.directory}")
    return 0


def run(config: BenchmarkConfig, workload: Workload) -> RunResult:
    """Replay, with a progress bar, and print the summary."""
    for note in workload.notes:
        print(f"workload: {note}")
    with progress_bar(len(workload.requests)) as update:
        result = run_benchmark(config, workload, update)
    print(summary_table(result.summary), flush=True)
    return result


def draw_plots(result: RunResult) -> None:
    from sarathi.metrics.plots import plot_run

    assert result.directory is not None
    plot_run(result.data, result.directory / "plots")
    print(f"plots: {result.directory / 'plots'}")


if __name__ == "__main__":
    sys.exit(main())
