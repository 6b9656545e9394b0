"""`python -m sarathi.benchmark.shootout`: the same workload under every scheduler, one table.

Takes the flags of sarathi.benchmark.main; where --scheduler_config_type is given, that one alone is run. Each
scheduler has its own settings, so flags for several of them may be given at once.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from sarathi.benchmark.build import build_workload
from sarathi.benchmark.report import comparison_table, device_notice, progress_bar
from sarathi.benchmark.runner import RunResult, run_benchmark
from sarathi.config import SCHEDULER_CONFIGS, parse_args

# 200 real prompts with the lengths of their real answers, twice as fast as the card can serve them, so that the
# order of the queue matters. Longer answers than 1,024 tokens are cut.
DEFAULTS = (
    "--request_generator_config_type=SHAREGPT",
    "--sharegpt_request_generator_config_num_requests=200",
    "--sharegpt_request_generator_config_max_prompt_tokens=3072",
    "--sharegpt_request_generator_config_max_output_tokens=1024",
    "--static_request_interval_generator_config_interval=0.1",
    "--model_config_max_model_len=4096",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 2 for a setting that makes no sense, with one line that names it."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger().setLevel("WARNING")
    given = list(sys.argv[1:] if argv is None else argv)
    names = [] if any(flag.startswith("--scheduler_config_type") for flag in given) else list(SCHEDULER_CONFIGS)
    configs = {name: parse_args([*DEFAULTS, *given, f"--scheduler_config_type={name}"]) for name in names}
    if not configs:
        configs = {"chosen": parse_args([*DEFAULTS, *given])}
    first = next(iter(configs.values()))
    results: dict[str, RunResult] = {}
    try:
        print(device_notice(first), flush=True)
        workload = build_workload(first)
        for note in workload.notes:
            print(f"workload: {note}")
        num_requests = len(workload.requests)
        with progress_bar(num_requests * len(configs)) as update:
            for i, (name, config) in enumerate(configs.items()):
                results[name] = run_benchmark(config, workload, lambda n, i=i: update(i * num_requests + n))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(comparison_table({name: result.summary for name, result in results.items()}))
    _draw(results, Path(first.output_dir), first.metrics_config.plots)
    return 0


def _draw(results: dict[str, RunResult], output_dir: Path, with_plots: bool) -> None:
    """Each run's plots in its folder, and all runs over one another in `output_dir`."""
    from sarathi.metrics.plots import plot_comparison, plot_run

    for name, result in results.items():
        if result.directory is None:
            continue
        if with_plots:
            plot_run(result.data, result.directory / "plots")
        print(f"{name + ':':<20} {result.directory}")
    path = plot_comparison({name: result.data for name, result in results.items()}, output_dir / "comparison.png")
    where = "in the folder 'plots' of each run; " if with_plots else ""
    print(f"plots: {where}all schedulers over one another: {path}")


if __name__ == "__main__":
    sys.exit(main())
