"""The system that replays a workload: what is checked of it beside what any system needs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import sarathi.system
from sarathi.benchmark.workloads.spec import RequestSpec
from sarathi.config import BenchmarkConfig, SimulatedExecutorConfig
from sarathi.errors import FlagError
from sarathi.system import System

if TYPE_CHECKING:
    from sarathi.executor.local import LocalParts


def build_system(config: BenchmarkConfig, parts: LocalParts | None = None) -> System:
    """Everything that a run needs beside its workload, so that what makes no sense is told before that is read."""
    _check_output_dir(config)
    _check_replicas(config)
    return sarathi.system.build_system(config, config.seed, parts)


def check_fit(config: BenchmarkConfig, system: System, requests: Iterable[RequestSpec]) -> None:
    """Refuse a pool that is set and does not hold the longest request, unless a context is set that excludes it."""
    if config.cache_config.num_gpu_blocks is None or config.model_config.max_model_len is not None:
        return
    context = system.model.max_model_len
    longest = max(min(spec.num_prompt_tokens + spec.num_output_tokens, context) for spec in requests)
    block_size = config.cache_config.block_size
    if longest > system.num_gpu_blocks * block_size:
        raise FlagError(
            "cache_config_num_gpu_blocks",
            f"{system.num_gpu_blocks} is too small; the workload's longest request has {longest:,} tokens and "
            f"{system.notes[0]}; at least {-(-longest // block_size):,}, or set --model_config_max_model_len to have "
            "longer requests ignored",
        )


def _check_replicas(config: BenchmarkConfig) -> None:
    """Refuse several replicas of a real model, which one process cannot run side by side."""
    if config.num_replicas > 1 and not isinstance(config.executor_config, SimulatedExecutorConfig):
        allowed = "only 1 works with a real model; several are simulated"
        raise FlagError("num_replicas", f"{config.num_replicas} is not allowed; {allowed}")


def _check_output_dir(config: BenchmarkConfig) -> None:
    """Refuse a folder that cannot be made or written to, before a run spends its time."""
    if not config.metrics_config.write_metrics:
        return
    path = Path(config.output_dir).absolute()
    existing = next(folder for folder in (path, *path.parents) if os.path.exists(folder))
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        raise FlagError("output_dir", f"cannot write to {config.output_dir} ({existing} is no folder to write to)")
