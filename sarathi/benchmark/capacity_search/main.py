"""`python -m sarathi.benchmark.capacity_search.main`: the highest rate of requests that holds latency objectives.

The workload of a job has the same requests at every rate, seeds included; only their arrivals scale.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sarathi.benchmark.entry_point import BAD_SETTING, exit_status
from sarathi.errors import FlagError, one_line

if TYPE_CHECKING:
    from sarathi.benchmark.capacity_search.config import Job
    from sarathi.benchmark.capacity_search.options import SearchOptions
    from sarathi.benchmark.capacity_search.worker import Message

SOME_FAILED = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 where a job failed, 2 for a setting that makes no sense, told in one line."""
    failed: list[str] = []
    status = exit_status(lambda: failed.extend(_main(sys.argv[1:] if argv is None else argv)))
    return status or (SOME_FAILED if failed else 0)


def _main(argv: Sequence[str]) -> list[str]:
    """The keys of the jobs that failed."""
    # Imported here, so that Ctrl-C is one line from the first instant.
    import logging
    from pathlib import Path

    from sarathi.benchmark.capacity_search.config import read_jobs
    from sarathi.benchmark.capacity_search.folder import claimed
    from sarathi.benchmark.capacity_search.options import parse_options
    from sarathi.benchmark.capacity_search.plot import plot_capacity
    from sarathi.benchmark.capacity_search.pool import run_jobs
    from sarathi.benchmark.capacity_search.report import capacity_table, remarks, write_results
    from sarathi.benchmark.capacity_search.worker import Failure
    from sarathi.benchmark.report import device_notice

    options, rest = parse_options(argv)
    try:
        jobs = read_jobs(options, rest)
    except FlagError:
        raise
    except ValueError as error:  # of a flag that is none
        print(f"error: {one_line(str(error))}", file=sys.stderr)
        raise SystemExit(BAD_SETTING) from None
    log_level = "DEBUG" if options.debug else jobs[0].config.log_level.upper()
    logging.getLogger().setLevel(log_level)
    folder = Path(options.output_dir or ".")
    for notice in dict.fromkeys(device_notice(job.config) for job in jobs):
        print(notice, flush=True)
    with claimed(folder):
        try:
            outcomes = run_jobs(
                jobs, options, _num_workers(jobs, options), lambda job, message: _log(job, message, options)
            )
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(f"finished probes are kept in {folder}; the same command goes on from them")
            raise
        write_results(outcomes, options)
        plot_capacity(outcomes, options.slos, folder / "capacity.png")
    print(capacity_table(outcomes, options.slos))
    for line in remarks(outcomes, options):
        print(line)
    print(f"files: {folder}/results.csv, results.json, capacity.png; every probe's run in {folder}/runs", flush=True)
    return [outcome.job.key for outcome in outcomes if isinstance(outcome.end, Failure)]


def _num_workers(jobs: Sequence[Job], options: SearchOptions) -> int:
    """As set; else all cores, but one job at a time where a real model is timed, lest they slow each other."""
    import os

    from sarathi.config import SimulatedExecutorConfig

    if options.num_workers is not None:
        return options.num_workers
    simulated = all(isinstance(job.config.executor_config, SimulatedExecutorConfig) for job in jobs)
    return len(os.sched_getaffinity(0)) if simulated else 1


def _log(job: Job, message: Message, options: SearchOptions) -> None:
    import logging

    from sarathi.benchmark.capacity_search.probe import Probe
    from sarathi.benchmark.capacity_search.report import told_probe
    from sarathi.benchmark.capacity_search.worker import Failure

    logger = logging.getLogger("capacity_search")
    if isinstance(message, Probe):
        logger.info("%s: %s", job.key, told_probe(message, options.slos))
        logger.debug("%s: python -m sarathi.benchmark.main --config %s", job.key, message.run / "config.yaml")
    elif isinstance(message, Failure):
        logger.error("%s failed: %s", job.key, message.why)
        logger.debug("%s", message.trace)


if __name__ == "__main__":
    sys.exit(main())
