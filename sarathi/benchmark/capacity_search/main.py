"""`python -m sarathi.benchmark.capacity_search.main`: the highest rate of requests that holds latency objectives.

The workload of a job has the same requests at every rate, seeds included; only their arrivals scale.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from sarathi.benchmark.entry_point import BAD_SETTING, exit_status
from sarathi.errors import FlagError, one_line, told_if_incomplete

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
    from sarathi.benchmark.capacity_search.pool import Outcome, run_jobs
    from sarathi.benchmark.capacity_search.refusals import refusals
    from sarathi.benchmark.capacity_search.report import capacity_table, remarks, write_results
    from sarathi.benchmark.capacity_search.worker import Failure
    from sarathi.benchmark.tables import device_notice

    options, rest = parse_options(argv)
    try:
        jobs = read_jobs(options, rest)
    except FlagError:
        raise
    except ValueError as error:  # of a flag that is none
        _refuse([one_line(str(error))])
    refused = refusals(jobs)
    able = [job for job, failure in zip(jobs, refused, strict=True) if failure is None]
    if not able:
        _refuse([failure.why for failure in refused if failure is not None])
    log_level = "DEBUG" if options.debug else jobs[0].config.log_level.upper()
    logging.getLogger().setLevel(log_level)
    folder = Path(options.output_dir or ".")
    for notice in dict.fromkeys(device_notice(job.config) for job in able):
        print(notice, flush=True)
    for job, failure in zip(jobs, refused, strict=True):
        if failure is not None:
            _log(job, failure, options)
    with claimed(folder):
        try:
            searched = run_jobs(
                able, options, _num_workers(jobs, options), lambda job, message: _log(job, message, options)
            )
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(f"finished probes are kept in {folder}; the same command goes on from them")
            raise
        ended = iter(searched)
        outcomes = [
            next(ended) if failure is None else Outcome(job, [], failure)
            for job, failure in zip(jobs, refused, strict=True)
        ]
        with told_if_incomplete(folder / "results.csv", "with results.json and capacity.png"):
            write_results(outcomes, options)
            plot_capacity(outcomes, options.slos, folder / "capacity.png")
    print(capacity_table(outcomes, options.slos))
    for line in remarks(outcomes, options):
        print(line)
    print(f"files: {folder}/results.csv, results.json, capacity.png; every probe's run in {folder}/runs", flush=True)
    return [outcome.job.key for outcome in outcomes if isinstance(outcome.end, Failure)]


def _refuse(reasons: Sequence[str]) -> NoReturn:
    """End with a line for each of the reasons, before anything is written."""
    for reason in dict.fromkeys(reasons):
        print(f"error: {reason}", file=sys.stderr)
    raise SystemExit(BAD_SETTING)


def _num_workers(jobs: Sequence[Job], options: SearchOptions) -> int:
    """As set; else all cores, but one job at a time where a real model is timed, lest they slow each other."""
    import os

    from sarathi.config import SimulatedExecutorConfig

    if options.num_workers is not None:
        return options.num_workers
    simulated = all(isinstance(job.config.executor_config, SimulatedExecutorConfig) for job in jobs)
    if not simulated:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # macOS has none


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
