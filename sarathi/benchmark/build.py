"""From settings to the parts of a run: the workload, and an engine on the simulated device.

The only place that knows both configs and constructors. Raises ValueError, one line naming the setting.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sarathi.benchmark.workloads.intervals import poisson_arrivals, static_arrivals
from sarathi.benchmark.workloads.lengths import Lengths, fixed_lengths, synthetic_workload, trace_lengths
from sarathi.benchmark.workloads.sharegpt import sharegpt_workload
from sarathi.benchmark.workloads.spec import RequestSpec, Workload
from sarathi.benchmark.workloads.trace import trace_workload
from sarathi.clock import VirtualClock
from sarathi.config import (
    BenchmarkConfig,
    CustomSchedulerConfig,
    FixedRequestLengthGeneratorConfig,
    PoissonRequestIntervalGeneratorConfig,
    RequestIntervalGeneratorConfig,
    RequestLengthGeneratorConfig,
    ShareGptRequestGeneratorConfig,
    SimulatedExecutorConfig,
    StaticRequestIntervalGeneratorConfig,
    SyntheticRequestGeneratorConfig,
    TraceRequestGeneratorConfig,
    TraceRequestLengthGeneratorConfig,
    resolve_seeds,
)
from sarathi.config.schedulers import SCHEDULER_CONFIGS
from sarathi.core.block_manager import BlockManager
from sarathi.core.scheduler import BaseScheduler
from sarathi.core.variants import SCHEDULERS
from sarathi.executor.simulated import LatencyModel, SimulatedExecutor
from sarathi.request import Request, SamplingParams
from sarathi.simulation.devices import DEVICES, ENGINE_PROFILES
from sarathi.simulation.latency import Jitter, MemoryModel, RoundLatency, num_kv_blocks
from sarathi.simulation.measured import MeasuredLatency
from sarathi.simulation.models import ModelShape, load_model_shape


def build_workload(config: BenchmarkConfig) -> Workload:
    """The requests to replay."""
    generator = resolve_seeds(config, config.seed).request_generator_config
    if isinstance(generator, ShareGptRequestGeneratorConfig):
        assert generator.seed is not None
        return sharegpt_workload(
            _arrivals(generator.interval_generator_config),
            file=generator.file,
            num_requests=generator.num_requests,
            turns=generator.turns,
            tokenizer=generator.tokenizer,
            max_prompt_tokens=generator.max_prompt_tokens,
            max_output_tokens=generator.max_output_tokens,
            output_tokens=generator.output_tokens,
            shuffle=generator.shuffle,
            seed=generator.seed,
        )
    if isinstance(generator, SyntheticRequestGeneratorConfig):
        return synthetic_workload(
            _lengths(generator.length_generator_config),
            _arrivals(generator.interval_generator_config),
            None if generator.duration else generator.num_requests,
            generator.duration,
        )
    assert isinstance(generator, TraceRequestGeneratorConfig) and generator.trace_file is not None
    return trace_workload(
        generator.trace_file,
        num_requests=generator.num_requests,
        time_scale_factor=generator.time_scale_factor,
        prefill_scale_factor=generator.prefill_scale_factor,
        decode_scale_factor=generator.decode_scale_factor,
    )


def _lengths(config: RequestLengthGeneratorConfig) -> Lengths:
    if isinstance(config, FixedRequestLengthGeneratorConfig):
        return fixed_lengths(config.prefill_tokens, config.decode_tokens)
    assert isinstance(config, TraceRequestLengthGeneratorConfig)
    assert config.trace_file is not None and config.seed is not None
    return trace_lengths(
        config.trace_file,
        prefill_scale_factor=config.prefill_scale_factor,
        decode_scale_factor=config.decode_scale_factor,
        max_tokens=config.max_tokens,
        max_output_tokens=config.max_output_tokens,
        seed=config.seed,
    )


def _arrivals(config: RequestIntervalGeneratorConfig) -> Iterable[float]:
    if isinstance(config, StaticRequestIntervalGeneratorConfig):
        return static_arrivals(config.interval)
    assert isinstance(config, PoissonRequestIntervalGeneratorConfig) and config.seed is not None
    return poisson_arrivals(config.qps, config.seed)


def requests_of(workload: Workload) -> Iterable[Request]:
    """Fresh engine requests, made one by one as they are replayed; a prompt is known by its length only."""
    for spec in workload.requests:
        params = SamplingParams(ignore_eos=True, max_tokens=spec.num_output_tokens)
        yield Request(spec.request_id, range(spec.num_prompt_tokens), params, spec.arrival_time)


class SimulatedSystem(NamedTuple):
    """What is simulated, with what settings left open resolved."""

    model: ModelShape
    executor_config: SimulatedExecutorConfig
    num_gpu_blocks: int
    max_model_len: int
    notes: list[str]  # what was derived, one line each


def resolve_system(config: BenchmarkConfig, workload: Sequence[RequestSpec]) -> SimulatedSystem:
    """KV pool and context of the simulated device.

    A context that is not set is the model's, or what the pool holds where that is less. Raises ValueError where a
    context that is set, or the workload's longest request with a pool that is set, does not fit the pool.
    """
    executor_config = config.executor_config
    assert isinstance(executor_config, SimulatedExecutorConfig)
    model = load_model_shape(config.model_config.model)
    block_size = config.cache_config.block_size
    device = DEVICES[executor_config.device]
    num_blocks = config.cache_config.num_gpu_blocks
    source = "--cache_config_num_gpu_blocks"
    if num_blocks is None:
        num_blocks = num_kv_blocks(
            device,
            model,
            tensor_parallel_size=config.parallel_config.tensor_parallel_size,
            pipeline_parallel_size=config.parallel_config.pipeline_parallel_size,
            gpu_memory_utilization=config.worker_config.gpu_memory_utilization,
            block_size=block_size,
            dtype_bytes=_dtype_bytes(config),
        )
        source = f"memory of {device.name}"
    pool = num_blocks * block_size
    holds = f"{num_blocks:,} KV blocks of {block_size} tokens ({source}) hold {pool:,} tokens"
    asked = config.model_config.max_model_len
    if asked is not None:
        if asked > model.max_model_len:
            raise ValueError(
                f"--model_config_max_model_len: {asked} is not allowed; at most {model.max_model_len}, "
                f"the context of {model.name}"
            )
        if asked > pool:
            raise ValueError(f"--model_config_max_model_len: {asked} does not fit; {holds}")
        return SimulatedSystem(model, executor_config, num_blocks, asked, [holds])
    longest = max(min(spec.num_prompt_tokens + spec.num_output_tokens, model.max_model_len) for spec in workload)
    if longest > pool and config.cache_config.num_gpu_blocks is not None:
        raise ValueError(
            f"--cache_config_num_gpu_blocks: {num_blocks} is too small; the workload's longest request has {longest:,} "
            f"tokens and {holds}; at least {-(-longest // block_size):,}, or set --model_config_max_model_len to have "
            "longer requests ignored"
        )
    notes = [holds]
    if pool < model.max_model_len:
        notes.append(
            f"the context is {pool:,} tokens, all that the pool holds, not the model's {model.max_model_len:,}"
        )
    return SimulatedSystem(model, executor_config, num_blocks, min(pool, model.max_model_len), notes)


def _dtype_bytes(config: BenchmarkConfig) -> int:
    return 4 if config.model_config.dtype in ("float", "float32") else 2


def build_scheduler(config: BenchmarkConfig, blocks: BlockManager, max_model_len: int) -> BaseScheduler:
    """The scheduler by its config's type, or the class that a dotted path names."""
    settings = config.scheduler_config
    if not isinstance(settings, CustomSchedulerConfig):
        return SCHEDULERS[scheduler_name(config)](settings, blocks, max_model_len)
    module_name, _, class_name = settings.class_path.rpartition(".")
    try:
        scheduler_class = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--scheduler_config_type: {settings.class_path} cannot be imported ({error})") from error
    if not (isinstance(scheduler_class, type) and issubclass(scheduler_class, BaseScheduler)):
        raise ValueError(f"--scheduler_config_type: {settings.class_path} is no subclass of BaseScheduler")
    try:
        return scheduler_class(settings, blocks, max_model_len)
    except (TypeError, KeyError) as error:
        raise ValueError(f"--custom_scheduler_config_params: {settings.class_path} answers {error}") from error


def scheduler_name(config: BenchmarkConfig) -> str:
    settings = config.scheduler_config
    if isinstance(settings, CustomSchedulerConfig):
        return settings.class_path
    return next(name for name, config_type in SCHEDULER_CONFIGS.items() if config_type is type(settings))


class EngineParts(NamedTuple):
    """What an Engine is made of, less its recorder."""

    scheduler: BaseScheduler
    executor: SimulatedExecutor
    clock: VirtualClock


def build_engine_parts(config: BenchmarkConfig, system: SimulatedSystem) -> EngineParts:
    """A scheduler and the simulated device, in virtual time."""
    simulated = resolve_seeds(system.executor_config, config.seed)
    device = DEVICES[simulated.device]
    parallel = config.parallel_config
    sizes = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    dtype_bytes = _dtype_bytes(config)
    block_size = config.cache_config.block_size
    latency: LatencyModel
    if simulated.rounds_file is not None:
        latency = MeasuredLatency.from_rounds_csv(simulated.rounds_file, parallel.pipeline_parallel_size)
    else:
        profile = ENGINE_PROFILES[simulated.engine_profile]
        latency = RoundLatency(system.model, device, *sizes, profile, dtype_bytes)
    assert simulated.jitter_seed is not None
    clock = VirtualClock()
    executor = SimulatedExecutor(
        latency,
        clock,
        num_stages=parallel.pipeline_parallel_size,
        jitter=Jitter(simulated.jitter, simulated.jitter_seed).factor if simulated.jitter else None,
        memory=MemoryModel(device, system.model, *sizes, block_size, dtype_bytes).stats,
    )
    blocks = BlockManager(system.num_gpu_blocks, block_size)
    return EngineParts(build_scheduler(config, blocks, system.max_model_len), executor, clock)
