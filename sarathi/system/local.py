"""A real model as the device, in this process or on Ray; several systems may follow each other on one loaded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sarathi.clock import WallClock
from sarathi.config import EndpointConfig, RayExecutorConfig, SimulatedExecutorConfig
from sarathi.errors import FieldError, FlagError
from sarathi.system.device import RoundDevice

if TYPE_CHECKING:
    from sarathi.executor.local import LocalParts

LOAD_FORMATS = ("auto", "safetensors", "pt", "gguf", "dummy")
SHARED = ("model_config", "worker_config", "cache_config", "parallel_config", "executor_config")


def local_device(config: EndpointConfig, parts: LocalParts | None) -> RoundDevice:
    """`parts` are those of `load_shared_parts`; None loads the model."""
    if parts is None:
        parts = _load([config])
    for name in SHARED:
        if getattr(parts.config, name) != getattr(config, name):
            raise ValueError(f"parts: the model was loaded with another {name}: {getattr(parts.config, name)}")
    is_set = config.cache_config.num_gpu_blocks is not None
    clock = WallClock()
    return RoundDevice(
        name=parts.device,
        simulated=False,
        model=parts.model,
        dtype_bytes=parts.dtype_bytes,
        num_blocks=parts.num_blocks,
        blocks_from="--cache_config_num_gpu_blocks" if is_set else f"memory of {parts.device}",
        executor=parts.make_executor(clock),
        clock=clock,
        tokenizer=parts.tokenizer,
        eos_token_ids=parts.eos_token_ids,
        notes=parts.notes,
    )


def load_shared_parts(configs: Sequence[EndpointConfig]) -> LocalParts | None:
    """A model that serves systems of all `configs`, one after the other; None where they are simulated.

    The configs differ in their schedulers only. The KV pool is made for the most seats and the longest rounds among
    them.
    """
    first = configs[0]
    if isinstance(first.executor_config, SimulatedExecutorConfig):
        return None
    assert all(getattr(config, name) == getattr(first, name) for config in configs for name in SHARED)
    return _load(configs)


def _load(configs: Sequence[EndpointConfig]) -> LocalParts:
    config, max_num_seqs = configs[0], max(config.scheduler_config.max_num_seqs for config in configs)
    if (load_format := config.model_config.load_format) not in LOAD_FORMATS:
        raise FlagError("model_config_load_format", f"'{load_format}' cannot be read; one of {', '.join(LOAD_FORMATS)}")
    _check_stages(config)
    is_ray = isinstance(config.executor_config, RayExecutorConfig)
    try:
        if is_ray:
            from sarathi.executor.ray import build_ray as build
        else:
            from sarathi.executor.local import build_local as build

        return build(_widest(configs, max_num_seqs) if len(configs) > 1 else config, max_num_seqs)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("sarathi"):
            raise
        name, extras = ("RAY", "engine,ray") if is_ray else ("LOCAL", "engine")
        raise FlagError(
            "executor_config_type",
            f"{name} needs the package {error.name}; pip install 'sarathi-serve-fair[{extras}]', or take SIMULATED",
        ) from error


def _widest(configs: Sequence[EndpointConfig], max_num_seqs: int) -> EndpointConfig:
    """The one of the longest rounds. How long those of whole prompts can be, the model tells."""
    from sarathi.executor.local import round_limits
    from sarathi.model.checkpoint import open_checkpoint, shape_of

    model = configs[0].model_config
    try:
        shape = shape_of(model.model, open_checkpoint(model.model, model.load_format))
    except FieldError as error:
        raise FlagError(f"model_config_{error.field}", error.text) from error
    return max(configs, key=lambda config: round_limits(config, shape, max_num_seqs)["max_num_tokens"])


def _check_stages(config: EndpointConfig) -> None:
    """Refuse a model cut into parts that the executor cannot run."""
    parallel, executor = config.parallel_config, config.executor_config
    if isinstance(executor, RayExecutorConfig):
        if executor.overlap and parallel.pipeline_parallel_size > 1:
            allowed = f"false with {parallel.pipeline_parallel_size} pipeline stages, whose rounds overlap anyway"
            raise FlagError("ray_executor_config_overlap", f"true is not allowed; {allowed}")
        return
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        if (size := getattr(parallel, name)) > 1:
            allowed = "only 1 works with --executor_config_type LOCAL; RAY runs more"
            raise FlagError(f"parallel_config_{name}", f"{size} is not allowed; {allowed}")
