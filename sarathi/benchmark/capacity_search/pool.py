"""Jobs in processes of their own, so many at a time. One that dies takes no other along, and none outlives this one."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import NamedTuple

from sarathi.benchmark.capacity_search.config import Job
from sarathi.benchmark.capacity_search.options import SearchOptions
from sarathi.benchmark.capacity_search.probe import Probe
from sarathi.benchmark.capacity_search.search import Found
from sarathi.benchmark.capacity_search.worker import Failure, Message, run_job

GRACE = 5.0  # seconds to end in, before a process is killed


class Outcome(NamedTuple):
    """What a job came to, and its probes in the order they were made."""

    job: Job
    probes: list[Probe]
    end: Found | Failure


class _Running(NamedTuple):
    place: int  # of the job
    process: BaseProcess
    probes: list[Probe]


def run_jobs(
    jobs: Sequence[Job], options: SearchOptions, num_workers: int, on_message: Callable[[Job, Message], None]
) -> list[Outcome]:
    """Search all jobs, `num_workers` at a time; their outcomes in the order of the jobs.

    Each message of a job is passed on as it comes. Whatever ends this early ends the processes first.
    """
    context = multiprocessing.get_context("spawn")
    outcomes: dict[int, Outcome] = {}
    running: dict[Connection, _Running] = {}
    waiting = list(enumerate(jobs))[::-1]
    try:
        while waiting or running:
            while waiting and len(running) < num_workers:
                place, job = waiting.pop()
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=run_job, args=(job, options, sender), name=job.key, daemon=True)
                running[receiver] = _Running(place, process, [])
                _start(process)
                sender.close()
            for receiver in wait(list(running)):
                assert isinstance(receiver, Connection)
                place, process, probes = running[receiver]
                message = _receive(receiver, process)
                if isinstance(message, Probe):
                    probes.append(message)
                else:
                    outcomes[place] = Outcome(jobs[place], probes, message)
                    del running[receiver]
                    receiver.close()
                    process.join()
                on_message(jobs[place], message)
    finally:
        _end([process for _, process, _ in running.values()])
    return [outcomes[place] for place in range(len(jobs))]


def _start(process: BaseProcess) -> None:
    """Start it deaf to Ctrl-C, from its first instant on: what the terminal sends to all is for this process."""
    resource_tracker.ensure_running()  # else the start does that, and lets Ctrl-C through again
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _receive(receiver: Connection, process: BaseProcess) -> Message:
    try:
        return receiver.recv()
    except (EOFError, OSError):
        process.join()
        return Failure(f"its process ended with status {process.exitcode}, as when memory runs out or it is killed")


def _end(processes: Sequence[BaseProcess]) -> None:
    started = [process for process in processes if process.pid is not None]
    for process in started:
        process.terminate()
    for process in started:
        process.join(GRACE)
        if process.is_alive():
            process.kill()
            process.join()
