"""`python -m sarathi.benchmark.main`: replay one workload under one scheduler."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sarathi.benchmark.entry_point import exit_status


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
    from sarathi.benchmark.tables import device_notice, summary_table
    from sarathi.config import parse_args

    config = parse_args(argv)
    logging.getLogger().setLevel(config.log_level.upper())
    print(device_notice(config), flush=True)
    system = build_system(config)
    workload = build_workload(config, system)
    for note in system.notes:
        print(f"system: {note}")
    for note in workload.notes:
        print(f"workload: {note}")
    with progress_bar(len(workload.requests), "requests", "req") as on_progress:
        result = run_benchmark(config, workload, on_progress, system)
    print(summary_table(result.summary), flush=True)
    for line in result.write_views():
        print(line)
    if result.directory is not None:
        print(f"files: {result.directory}")


if __name__ == "__main__":
    sys.exit(main())
