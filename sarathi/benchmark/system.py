"""From settings to the system that replays a workload: a scheduler and the simulated device, in virtual time.

Knows both configs and constructors, and no workload until it is asked whether one fits. Raises FlagError, one line
naming the flag.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sarathi.benchmark.workloads.spec import RequestSpec
from sarathi.clock import VirtualClock
from sarathi.config import (
    BenchmarkConfig,
    CustomSchedulerConfig,
    LprsSchedulerConfig,
    SimulatedExecutorConfig,
    chosen_type,
    flag_prefix,
    resolve_seeds,
)
from sarathi.config.system import MAX_GPU_BLOCKS
from sarathi.core.block_manager import BlockManager
from sarathi.core.chunking import LatencyPredictor
from sarathi.core.scheduler import BaseScheduler
from sarathi.core.variants import SCHEDULERS
from sarathi.errors import FlagError, naming
from sarathi.executor.simulated import LatencyModel, SimulatedExecutor
from sarathi.simulation.devices import DEVICES, ENGINE_PROFILES
from sarathi.simulation.latency import Jitter, MemoryModel, RoundLatency, num_kv_blocks
from sarathi.simulation.measured import MeasuredLatency
from sarathi.simulation.models import ModelShape, load_model_shape


@dataclass(frozen=True)
class System:
    """What runs, for one run, with what settings left open resolved."""

    model: ModelShape
    num_gpu_blocks: int
    max_model_len: int
    notes: list[str]  # what was derived, one line each
    scheduler: BaseScheduler
    executor: SimulatedExecutor
    clock: VirtualClock


def build_system(config: BenchmarkConfig) -> System:
    """Everything that a run needs beside its workload, so that what makes no sense is told before that is read."""
    _check_output_dir(config)
    with naming("model_config", "model"):
        model = load_model_shape(config.model_config.model)
    with naming("parallel_config"):
        model.check_parallel(config.parallel_config.tensor_parallel_size, config.parallel_config.pipeline_parallel_size)
    num_blocks, holds = _kv_pool(config, model)
    max_model_len, notes = _context(config, model, num_blocks, holds)
    clock = VirtualClock()
    executor = _build_executor(config, model, clock)
    scheduler = _build_scheduler(config, BlockManager(num_blocks, config.cache_config.block_size), max_model_len)
    return System(model, num_blocks, max_model_len, notes, scheduler, executor, clock)


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


def scheduler_name(config: BenchmarkConfig) -> str:
    """The scheduler's type, or the dotted path of one's own class."""
    settings = config.scheduler_config
    return (
        settings.class_path if isinstance(settings, CustomSchedulerConfig) else chosen_type(config, "scheduler_config")
    )


def _check_output_dir(config: BenchmarkConfig) -> None:
    """Refuse a folder that cannot be made or written to, before a run spends its time."""
    if not config.metrics_config.write_metrics:
        return
    path = Path(config.output_dir).absolute()
    existing = next(folder for folder in (path, *path.parents) if os.path.exists(folder))
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        raise FlagError("output_dir", f"cannot write to {config.output_dir} ({existing} is no folder to write to)")


def dtype_bytes(config: BenchmarkConfig) -> int:
    """Bytes of a weight or an activation."""
    return 4 if config.model_config.dtype in ("float", "float32") else 2


def _kv_pool(config: BenchmarkConfig, model: ModelShape) -> tuple[int, str]:
    """KV blocks, as set or as the device's memory holds them, and a clause that says what they hold."""
    executor_config = config.executor_config
    assert isinstance(executor_config, SimulatedExecutorConfig)
    device = DEVICES[executor_config.device]
    block_size = config.cache_config.block_size
    num_blocks, source = config.cache_config.num_gpu_blocks, "--cache_config_num_gpu_blocks"
    if num_blocks is None:
        try:
            num_blocks = num_kv_blocks(
                device,
                model,
                tensor_parallel_size=config.parallel_config.tensor_parallel_size,
                pipeline_parallel_size=config.parallel_config.pipeline_parallel_size,
                gpu_memory_utilization=config.worker_config.gpu_memory_utilization,
                block_size=block_size,
                dtype_bytes=dtype_bytes(config),
            )
        except ValueError as error:
            remedies = "--parallel_config_tensor_parallel_size or --worker_config_gpu_memory_utilization"
            half = ", or take a --model_config_dtype of half the size" if dtype_bytes(config) == 4 else ""
            raise FlagError("model_config_model", f"{error}; raise {remedies}{half}") from error
        num_blocks = min(num_blocks, MAX_GPU_BLOCKS)
        source = f"memory of {device.name}"
    return (
        num_blocks,
        f"{num_blocks:,} KV blocks of {block_size} tokens ({source}) hold {num_blocks * block_size:,} tokens",
    )


def _context(config: BenchmarkConfig, model: ModelShape, num_blocks: int, holds: str) -> tuple[int, list[str]]:
    """Longest request: as set, else the model's context, or what the pool holds where that is less; and notes."""
    pool = num_blocks * config.cache_config.block_size
    asked = config.model_config.max_model_len
    if asked is None:
        if pool >= model.max_model_len:
            return model.max_model_len, [holds]
        cut = f"the context is {pool:,} tokens, all that the pool holds, not the model's {model.max_model_len:,}"
        return pool, [holds, cut]
    if asked > model.max_model_len:
        allowed = f"at most {model.max_model_len}, the context of {model.name}"
        raise FlagError("model_config_max_model_len", f"{asked} is not allowed; {allowed}")
    if asked > pool:
        raise FlagError("model_config_max_model_len", f"{asked} does not fit; {holds}")
    return asked, [holds]


def _build_executor(config: BenchmarkConfig, model: ModelShape, clock: VirtualClock) -> SimulatedExecutor:
    simulated = resolve_seeds(config, config.seed).executor_config
    assert isinstance(simulated, SimulatedExecutorConfig) and simulated.jitter_seed is not None
    device = DEVICES[simulated.device]
    parallel = config.parallel_config
    sizes = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    num_bytes = dtype_bytes(config)
    latency: LatencyModel
    if simulated.rounds_file is not None:
        with naming(flag_prefix(config, "executor_config"), "rounds_file"):
            latency = MeasuredLatency.from_rounds_csv(simulated.rounds_file, parallel.pipeline_parallel_size)
    else:
        latency = RoundLatency(model, device, *sizes, ENGINE_PROFILES[simulated.engine_profile], num_bytes)
    return SimulatedExecutor(
        latency,
        clock,
        num_stages=parallel.pipeline_parallel_size,
        jitter=Jitter(simulated.jitter, simulated.jitter_seed).factor if simulated.jitter else None,
        memory=MemoryModel(device, model, *sizes, config.cache_config.block_size, num_bytes).stats,
    )


def _load_predictor(config: BenchmarkConfig) -> LatencyPredictor | None:
    """The predictor that the scheduler's settings name, or the one shipped for device and model; None if unused."""
    settings = config.scheduler_config
    if not isinstance(settings, LprsSchedulerConfig):
        return None
    from predictor.model import Predictor
    from predictor.shipped import shipped_file

    simulated, parallel = config.executor_config, config.parallel_config
    assert isinstance(simulated, SimulatedExecutorConfig)
    device, model = simulated.device, config.model_config.model
    prefix = flag_prefix(config, "scheduler_config")
    if simulated.rounds_file is not None and settings.predictor_file is None:
        raise FlagError(
            f"{prefix}_predictor_file",
            "null is not allowed with a rounds_file: the shipped predictors know the formula's round times; train one "
            "on such rounds (python -m predictor.collect --from-runs, python -m predictor.train) and name it",
        )
    with naming(prefix, "predictor_file"):
        asked = {
            "device": device,
            "model": model,
            "engine_profile": simulated.engine_profile,
            "tensor_parallel_size": parallel.tensor_parallel_size,
            "pipeline_parallel_size": parallel.pipeline_parallel_size,
            "dtype_bytes": dtype_bytes(config),
        }
        return Predictor.load(settings.predictor_file or shipped_file(device, model), asked)


def _build_scheduler(config: BenchmarkConfig, blocks: BlockManager, max_model_len: int) -> BaseScheduler:
    """The scheduler by its config's type, or the class that a dotted path names."""
    settings = config.scheduler_config
    if not isinstance(settings, CustomSchedulerConfig):
        with naming(flag_prefix(config, "scheduler_config")):
            predictor = _load_predictor(config)
            return SCHEDULERS[scheduler_name(config)](settings, blocks, max_model_len, predictor)
    path = settings.class_path
    module_name, _, class_name = path.rpartition(".")
    try:
        scheduler_class = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise FlagError("scheduler_config_type", f"{path} cannot be imported ({error})") from error
    if not (isinstance(scheduler_class, type) and issubclass(scheduler_class, BaseScheduler)):
        raise FlagError("scheduler_config_type", f"{path} is no subclass of BaseScheduler")
    try:
        return scheduler_class(settings, blocks, max_model_len)
    except (TypeError, LookupError, AttributeError, ValueError) as error:
        raise FlagError("custom_scheduler_config_params", f"{path} answers {error}") from error
