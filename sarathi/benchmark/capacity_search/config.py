"""The search's YAML file: schedulers, traces, parallel_spec and models, and the jobs that they combine to.

Every fault is a FlagError of --config-path, one line with list, entry and key. Knows which settings of a run each key
stands for; runs nothing.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sarathi.benchmark.capacity_search.entries import (
    ModelEntry,
    ParallelEntry,
    SchedulerEntry,
    TraceEntry,
    read_entries,
)
from sarathi.benchmark.capacity_search.options import PROGRAM, SearchOptions
from sarathi.config import BenchmarkConfig, SimulatedExecutorConfig, configs_from_args
from sarathi.config.tree import Given
from sarathi.config.yaml_file import read_yaml
from sarathi.errors import FieldError, FlagError
from sarathi.simulation.models import load_model_shape

logger = logging.getLogger(__name__)

# What a probe does not write unless asked to: a search makes dozens of them.
PROBE_DEFAULTS = {"metrics_config_plots": False, "metrics_config_report": False, "write_json_trace": False}


@dataclass(frozen=True)
class Job:
    """One combination. `config` holds all of a probe's settings but its rate and its folder."""

    model: str
    trace: str
    scheduler: str
    parallel: str
    start_qps: float
    config: BenchmarkConfig

    @property
    def key(self) -> str:
        """The names of its parts: what tables and wandb's groups call it."""
        return "_".join((self.model, self.trace, self.scheduler, self.parallel))

    @property
    def machine(self) -> dict[str, Any]:
        """What serves it, for tables and titles: the names are those of summary.json, but identifier for model."""
        executor = self.config.executor_config
        simulated = isinstance(executor, SimulatedExecutorConfig)
        return {
            "identifier": self.config.model_config.model,
            "device": getattr(executor, "device", ""),
            "simulated": simulated,
            "engine_profile": executor.engine_profile if simulated else "",
            "num_replicas": self.config.num_replicas,
        }

    @property
    def folder(self) -> str:
        """`key` as the name of a folder, told apart from a key that reads the same."""
        names = "\0".join((self.model, self.trace, self.scheduler, self.parallel))
        readable = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in self.key)
        return f"{readable[:100].lstrip('.')}-{hashlib.sha256(names.encode()).hexdigest()[:8]}"


def read_jobs(options: SearchOptions, argv: Sequence[str]) -> list[Job]:
    """The jobs of the YAML file, in its order; `argv` holds further settings of sarathi.benchmark.main for all.

    Raises FlagError.
    """
    file = options.config_path
    assert file is not None
    try:
        content = read_yaml(file)
    except FlagError as error:
        raise FlagError("config-path", str(error).removeprefix("--config: ")) from None
    entries = read_entries(content, file)
    combinations = _combinations(entries.models, entries.traces, entries.schedulers, entries.parallel_spec)
    if not combinations:
        raise FlagError("config-path", "no model takes any of the traces, schedulers and parallel_spec", file)
    _check_files(entries.traces, file)
    shared = {
        "output_dir": Given(options.output_dir, PROGRAM),
        "time_limit": Given(60 * options.time_limit, PROGRAM),
        "metrics_config_write_metrics": Given(True, PROGRAM),
        **_wandb(options),
    }
    variants = [{**shared, **_settings(combination, file)} for combination in combinations]
    configs = configs_from_args(argv, variants, PROGRAM, PROBE_DEFAULTS)
    return [
        Job(model.name, trace.name, scheduler.name, parallel.name, trace.start_qps, config)
        for (model, trace, scheduler, parallel), config in zip(combinations, configs, strict=True)
    ]


Combination = tuple[ModelEntry, TraceEntry, SchedulerEntry, ParallelEntry]


def _combinations(
    models: Sequence[ModelEntry],
    traces: Sequence[TraceEntry],
    schedulers: Sequence[SchedulerEntry],
    parallel_spec: Sequence[ParallelEntry],
) -> list[Combination]:
    """Every combination that its model takes."""

    def takes(names: Sequence[str] | None, entry: ParallelEntry | SchedulerEntry | TraceEntry) -> bool:
        return not names or entry.name in names

    return [
        (model, trace, scheduler, parallel)
        for model, trace, scheduler, parallel in itertools.product(models, traces, schedulers, parallel_spec)
        if takes(model.traces, trace)
        and takes(model.scheduler_specs, scheduler)
        and takes(model.parallel_specs, parallel)
    ]


def _settings(combination: Combination, file: str) -> dict[str, Given]:
    model, trace, scheduler, parallel = combination
    settings: dict[str, Any] = {
        "model_config_model": model.identifier,
        "parallel_config_tensor_parallel_size": parallel.tp_dimension,
        "parallel_config_pipeline_parallel_size": parallel.pp_dimension,
        **scheduler.settings,
        **trace.settings,
    }
    if trace.max_seq_len is not None:
        longest = _longest(trace.max_seq_len, model.identifier)
        settings["model_config_max_model_len"] = longest
        if trace.cut_by is not None:
            settings[trace.cut_by] = longest
    return {key: Given(value, file) for key, value in settings.items()}


@functools.cache  # a search has many combinations of them, and one warning each is enough
def _longest(max_seq_len: int, identifier: str) -> int:
    """`max_seq_len`, or the model's context where that is known and less."""
    try:
        context = load_model_shape(identifier).max_model_len
    except (FieldError, ModuleNotFoundError):  # the job will say so
        return max_seq_len
    if context < max_seq_len:
        logger.warning("max_seq_len %d is cut to %d, the context of %s", max_seq_len, context, identifier)
    return min(max_seq_len, context)


def _wandb(options: SearchOptions) -> dict[str, Given]:
    settings = {"wandb_project": options.wandb_project, "wandb_sweep_id": options.wandb_sweep_id}
    return {f"metrics_config_{name}": Given(value, PROGRAM) for name, value in settings.items() if value is not None}


def _check_files(traces: Sequence[TraceEntry], file: str) -> None:
    for trace in traces:
        for key, name in trace.input_files.items():
            if not os.path.isfile(name):
                raise FlagError("config-path", f"traces, {trace.name!r}: {key}: {name!r} is not a file", file)
