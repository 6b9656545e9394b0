"""The simulated device: how long its rounds take, and how many KV blocks its memory holds."""

from __future__ import annotations

from sarathi.clock import VirtualClock
from sarathi.config import EndpointConfig, SimulatedExecutorConfig, flag_prefix
from sarathi.config.system import MAX_GPU_BLOCKS
from sarathi.errors import FlagError, naming
from sarathi.executor.simulated import LatencyModel, SimulatedExecutor
from sarathi.simulation.devices import DEVICES, ENGINE_PROFILES
from sarathi.simulation.latency import Jitter, RoundLatency
from sarathi.simulation.measured import MeasuredLatency
from sarathi.simulation.memory import MemoryModel, num_kv_blocks
from sarathi.simulation.models import ModelShape, load_model_shape
from sarathi.system.device import RoundDevice


def simulated_device(config: EndpointConfig, seed: int) -> RoundDevice:
    """`seed` is the jitter's where the settings leave it open."""
    simulated = config.executor_config
    assert isinstance(simulated, SimulatedExecutorConfig)
    with naming("model_config", "model"):
        model = load_model_shape(config.model_config.model)
    with naming("parallel_config"):
        model.check_parallel(config.parallel_config.tensor_parallel_size, config.parallel_config.pipeline_parallel_size)
    num_blocks, source = config.cache_config.num_gpu_blocks, "--cache_config_num_gpu_blocks"
    if num_blocks is None:
        num_blocks, source = _blocks_of_memory(config, simulated, model)
    clock = VirtualClock()
    return RoundDevice(
        name=simulated.device,
        simulated=True,
        model=model,
        dtype_bytes=_dtype_bytes(config),
        num_blocks=num_blocks,
        blocks_from=source,
        executor=_executor(
            config, simulated, model, clock, seed if simulated.jitter_seed is None else simulated.jitter_seed
        ),
        clock=clock,
    )


def _dtype_bytes(config: EndpointConfig) -> int:
    """Of the simulated GPU, to which auto means bfloat16."""
    return 4 if config.model_config.dtype in ("float", "float32") else 2


def _blocks_of_memory(config: EndpointConfig, simulated: SimulatedExecutorConfig, model: ModelShape) -> tuple[int, str]:
    device, dtype_bytes = DEVICES[simulated.device], _dtype_bytes(config)
    try:
        num_blocks = num_kv_blocks(
            device,
            model,
            tensor_parallel_size=config.parallel_config.tensor_parallel_size,
            pipeline_parallel_size=config.parallel_config.pipeline_parallel_size,
            gpu_memory_utilization=config.worker_config.gpu_memory_utilization,
            block_size=config.cache_config.block_size,
            dtype_bytes=dtype_bytes,
        )
    except ValueError as error:
        remedies = "--parallel_config_tensor_parallel_size or --worker_config_gpu_memory_utilization"
        half = ", or take a --model_config_dtype of half the size" if dtype_bytes == 4 else ""
        raise FlagError("model_config_model", f"{error}; raise {remedies}{half}") from error
    return min(num_blocks, MAX_GPU_BLOCKS), f"memory of {device.name}"


def _executor(
    config: EndpointConfig, simulated: SimulatedExecutorConfig, model: ModelShape, clock: VirtualClock, seed: int
) -> SimulatedExecutor:
    device, parallel = DEVICES[simulated.device], config.parallel_config
    sizes = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    dtype_bytes = _dtype_bytes(config)
    latency: LatencyModel
    if simulated.rounds_file is not None:
        with naming(flag_prefix(config, "executor_config"), "rounds_file"):
            latency = MeasuredLatency.from_rounds_csv(simulated.rounds_file, parallel.pipeline_parallel_size)
    else:
        latency = RoundLatency(model, device, *sizes, ENGINE_PROFILES[simulated.engine_profile], dtype_bytes)
    return SimulatedExecutor(
        latency,
        clock,
        num_stages=parallel.pipeline_parallel_size,
        jitter=Jitter(simulated.jitter, seed).factor if simulated.jitter else None,
        memory=MemoryModel(device, model, *sizes, config.cache_config.block_size, dtype_bytes).stats,
    )
