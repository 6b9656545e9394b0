"""One job's search, in a process of its own: probe after probe, each told to the parent as it ends."""

from __future__ import annotations

import dataclasses
import logging
import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from sarathi.benchmark.capacity_search.config import Job
from sarathi.benchmark.capacity_search.identity import digest, identity
from sarathi.benchmark.capacity_search.options import SearchOptions
from sarathi.benchmark.capacity_search.probe import Probe, probe_config, run_probe
from sarathi.benchmark.capacity_search.search import Found, find_capacity
from sarathi.config import BenchmarkConfig, SimulatedExecutorConfig
from sarathi.errors import one_line


class Failure(NamedTuple):
    """Why a job ended without a result: one line, and the traceback for whoever debugs it."""

    why: str
    trace: str = ""


Message = Probe | Found | Failure


def job_folder(job: Job, options: SearchOptions) -> Path:
    return Path(options.output_dir or ".") / "runs" / job.folder


def run_job(job: Job, options: SearchOptions, connection: Connection) -> None:
    """Send every Probe, and at last Found or Failure. Ends quietly where the parent is gone."""

    def send(message: Message) -> None:
        try:
            connection.send(message)
        except OSError:  # nobody is there to read it
            raise SystemExit(1) from None

    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=job.config.log_level.upper())
    try:
        end: Message = search_job(job, options, send)
    except ValueError as error:
        end = Failure(one_line(str(error)), traceback.format_exc())
    except OSError as error:  # what cannot be read is a ValueError before it comes here
        end = Failure(_cannot_write(error, job_folder(job, options)), traceback.format_exc())
    except Exception as error:
        end = Failure(one_line(f"{type(error).__name__}: {error}"), traceback.format_exc())
    send(end)


def _cannot_write(error: OSError, folder: Path) -> str:
    """A full disk names no file: then it is one in `folder`."""
    what = f"cannot write {error.filename or f'into {folder}'} ({error.strerror or error})"
    return one_line("; ".join([what, *getattr(error, "__notes__", ())]))


def search_job(job: Job, options: SearchOptions, on_probe: Callable[[Probe], Any]) -> Found:
    """Search for the job's capacity; probes that an earlier search finished are taken as they are."""
    folder = job_folder(job, options)
    parts: Any = None

    def holds(rate: float) -> bool:
        nonlocal parts
        config = for_wandb(probe_config(job.config, rate, folder), job, rate, options)
        if parts is None and not isinstance(config.executor_config, SimulatedExecutorConfig):
            from sarathi.system import load_shared_parts

            parts = load_shared_parts([config])
        probe = run_probe(config, rate, options.targets, _end_without_parent, parts)
        on_probe(probe)
        _end_without_parent()
        return probe.holds(options.slos)

    return find_capacity(
        holds,
        start=job.start_qps,
        granularity=options.min_search_granularity / 100,
        max_probes=options.max_iterations,
    )


def for_wandb(config: BenchmarkConfig, job: Job, rate: float, options: SearchOptions) -> BenchmarkConfig:
    """`config` with what its run is called in wandb, if it goes there: the job is its group."""
    metrics = config.metrics_config
    if metrics.wandb_project is None:
        return config
    tags = [metrics.wandb_tags, options.wandb_sweep_name and options.wandb_sweep_name.replace(",", " ")]
    metrics = dataclasses.replace(
        metrics,
        wandb_group=job.key,
        wandb_run_name=f"qps_{rate!r}",
        wandb_run_id=digest([job.key, identity(config)]),
        wandb_tags=",".join(tag for tag in tags if tag) or None,
    )
    return dataclasses.replace(config, metrics_config=metrics)


def _end_without_parent(num_ended: int = 0) -> None:
    """End this process where the search itself was killed, lest a restarted one finds it at the same work."""
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        raise SystemExit(1)
