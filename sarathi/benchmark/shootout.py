"""`python -m sarathi.benchmark.shootout`: the same workload under every scheduler, one table.

Takes the settings of sarathi.benchmark.main, with some other defaults. Each scheduler has its own settings, so flags
for several of them may be given at once.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sarathi.benchmark.entry_point import exit_status

if TYPE_CHECKING:
    from sarathi.config import BenchmarkConfig
    from sarathi.metrics.run_record import RunRecord

PROGRAM = "python -m sarathi.benchmark.shootout"
ABOUT = "Replays one workload under every scheduler; where a --scheduler_config_type is given, under that one alone."
# On the simulated device, whatever there is: it takes seconds.
# 200 real prompts with the lengths of their real answers; one every 0.1 s, the default, is faster than the card can
# serve them, so that the order of the queue matters. The context holds the longest of them.
DEFAULTS = {
    "executor_config_type": "SIMULATED",
    "slo_config_ttft": 10.0,
    "slo_config_tpot": 0.05,
    "sharegpt_request_generator_config_num_requests": 200,
    "model_config_max_model_len": 6144,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 2 for a setting that makes no sense, with one line that names it."""
    return exit_status(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> None:
    # Imported here, so that Ctrl-C is one line from the first instant.
    import logging

    from sarathi.benchmark.build import build_workload
    from sarathi.benchmark.progress import progress_bar
    from sarathi.benchmark.runner import run_benchmark
    from sarathi.benchmark.system import build_system
    from sarathi.benchmark.tables import comparison_table, device_notice
    from sarathi.config import SCHEDULER_CONFIGS, parse_args_for_each
    from sarathi.errors import FlagError
    from sarathi.system import load_shared_parts, scheduler_name

    each = parse_args_for_each(
        argv, "scheduler_config_type", list(SCHEDULER_CONFIGS), prog=PROGRAM, about=ABOUT, defaults=DEFAULTS
    )
    configs = {scheduler_name(config): config for config in each}
    first = each[0]
    if len(each) > 1 and first.metrics_config.wandb_run_id is not None:
        raise FlagError("metrics_config_wandb_run_id", f"one id cannot be that of {len(each)} runs; leave it out")
    logging.getLogger().setLevel(first.log_level.upper())
    print(device_notice(first), flush=True)
    parts = load_shared_parts(each)
    systems = {name: build_system(config, parts) for name, config in configs.items()}
    any_system = next(iter(systems.values()))
    workload = build_workload(first, any_system)
    for note in any_system.notes:
        print(f"system: {note}")
    for note in workload.notes:
        print(f"workload: {note}")
    num_requests = len(workload.requests)
    results: dict[str, RunRecord] = {}
    shown: dict[str, list[str]] = {}
    with progress_bar(num_requests * len(configs), "requests", "req") as on_progress:
        for i, (name, config) in enumerate(configs.items()):
            results[name] = run_benchmark(
                config, workload, lambda num_ended, i=i: on_progress(i * num_requests + num_ended), systems.pop(name)
            )
            if config.metrics_config.wandb_project is not None:  # whose processes should not pile up
                shown[name] = results[name].write_views()
    print(comparison_table({name: result.summary for name, result in results.items()}), flush=True)
    for name, result in results.items():
        lines = shown[name] if name in shown else result.write_views()
        if result.directory is not None:
            print(f"{name + ':':<20} {result.directory}")
        for line in lines:
            if line.startswith("wandb"):  # plots and report lie in the folder
                print(f"{'':<20} {line}")
    _compare(results, first)


def _compare(results: Mapping[str, RunRecord], config: BenchmarkConfig) -> None:
    """All runs over one another in the folder of their folders, and where that is."""
    from sarathi.errors import told_if_incomplete

    directories = {name: result.directory for name, result in results.items() if result.directory is not None}
    if directories and config.metrics_config.plots:
        from sarathi.metrics.plots import plot_comparison

        runs = {name: results[name].data for name in directories}
        with told_if_incomplete(Path(config.output_dir) / "comparison.png"):
            path = plot_comparison(runs, Path(config.output_dir) / "comparison.png")
        print(f"plots: in the folder 'plots' of each run; all schedulers over one another: {path}")
    if len(directories) > 1 and config.metrics_config.report:
        from sarathi.benchmark.compare import compare, write_comparison

        output_dir = Path(config.output_dir)
        with told_if_incomplete(output_dir / "comparison.html"):
            comparison = compare(list(directories.values()))
            for line in write_comparison(comparison, output_dir / "comparison.csv", output_dir / "comparison.html"):
                print(line)


if __name__ == "__main__":
    sys.exit(main())
