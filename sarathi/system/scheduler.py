"""The scheduler that settings choose, with the latency predictor that it may need."""

from __future__ import annotations

import importlib
from typing import Any

from sarathi.config import (
    CustomSchedulerConfig,
    EndpointConfig,
    LprsSchedulerConfig,
    SimulatedExecutorConfig,
    chosen_type,
    flag_prefix,
)
from sarathi.core.block_manager import BlockManager
from sarathi.core.chunking import LatencyPredictor
from sarathi.core.scheduler import BaseScheduler
from sarathi.core.variants import SCHEDULERS
from sarathi.errors import FlagError, naming
from sarathi.system.device import RoundDevice


def scheduler_name(config: EndpointConfig) -> str:
    """The scheduler's type, or the dotted path of one's own class."""
    settings = config.scheduler_config
    return (
        settings.class_path if isinstance(settings, CustomSchedulerConfig) else chosen_type(config, "scheduler_config")
    )


def build_scheduler(config: EndpointConfig, device: RoundDevice, max_model_len: int) -> BaseScheduler:
    """The scheduler by its config's type, or the class that a dotted path names."""
    settings = config.scheduler_config
    blocks = BlockManager(device.num_blocks, config.cache_config.block_size)
    if not isinstance(settings, CustomSchedulerConfig):
        with naming(flag_prefix(config, "scheduler_config")):
            predictor = _load_predictor(config, device)
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


def _load_predictor(config: EndpointConfig, device: RoundDevice) -> LatencyPredictor | None:
    """The predictor that the scheduler's settings name, or the one shipped for device and model; None if unused."""
    settings = config.scheduler_config
    if not isinstance(settings, LprsSchedulerConfig):
        return None
    from predictor.model import Predictor
    from predictor.shipped import shipped_file

    simulated, parallel, file = config.executor_config, config.parallel_config, settings.predictor_file
    prefix = flag_prefix(config, "scheduler_config")
    asked: dict[str, Any] = {"device": device.name, "model": device.model.name}
    if isinstance(simulated, SimulatedExecutorConfig):
        if simulated.rounds_file is not None and file is None:
            raise FlagError(
                f"{prefix}_predictor_file",
                "null is not allowed with a rounds_file: the shipped predictors know the formula's round times; train "
                "one on such rounds (python -m predictor.collect --from-runs, python -m predictor.train) and name it",
            )
        asked["engine_profile"] = simulated.engine_profile
    else:
        asked["simulated"] = False
    asked |= {
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "dtype_bytes": device.dtype_bytes,
    }
    with naming(prefix, "predictor_file"):
        return Predictor.load(file or shipped_file(**asked), asked)
