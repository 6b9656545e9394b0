"""What makes a job's first probe impossible, as far as that is known before a model is loaded or foreign code runs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from sarathi.benchmark.capacity_search.config import Job
from sarathi.benchmark.capacity_search.worker import Failure
from sarathi.config import BenchmarkConfig, CustomSchedulerConfig, SarathiSchedulerConfig, SimulatedExecutorConfig
from sarathi.errors import naming, one_line
from sarathi.simulation.models import load_model_shape
from sarathi.system import build_system


def refusals(jobs: Sequence[Job]) -> list[Failure | None]:
    """For each job why it cannot run, as an unknown model or one that does not fit the device; None where it may."""
    found: list[Failure | None] = []
    for job in jobs:
        try:
            _check(job.config)
        except (ValueError, ModuleNotFoundError) as error:  # of what reads a GGUF file
            found.append(Failure(one_line(str(error))))
        else:
            found.append(None)
    return found


def _check(config: BenchmarkConfig) -> None:
    if not isinstance(config.executor_config, SimulatedExecutorConfig):
        model = config.model_config.model
        if not os.path.exists(os.path.expanduser(model)):
            with naming("model_config", "model"):
                load_model_shape(model)
        return
    if isinstance(config.scheduler_config, CustomSchedulerConfig):  # its class is for the job's own process
        config = dataclasses.replace(config, scheduler_config=SarathiSchedulerConfig())
    build_system(config, config.seed)
