"""A system: a device with a scheduler on it, and what settings left open resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sarathi.clock import Clock
from sarathi.config import EndpointConfig, SimulatedExecutorConfig
from sarathi.core.scheduler import BaseScheduler
from sarathi.errors import FlagError
from sarathi.executor.base import Executor
from sarathi.simulation.models import ModelShape
from sarathi.system.device import RoundDevice
from sarathi.system.local import local_device
from sarathi.system.scheduler import build_scheduler, scheduler_name
from sarathi.system.simulated import simulated_device

if TYPE_CHECKING:
    from sarathi.executor.local import LocalParts
    from sarathi.model.tokenizer import Tokenizer


@dataclass(frozen=True)
class System:
    """What runs, for one run, with what settings left open resolved."""

    model: ModelShape
    num_gpu_blocks: int
    max_model_len: int
    notes: list[str]  # what was derived, one line each; the first says what the KV pool holds
    scheduler: BaseScheduler
    executor: Executor
    clock: Clock
    device: str
    simulated: bool
    dtype_bytes: int  # of a weight or an activation
    tokenizer: Tokenizer | None  # the model's own; None where no model is loaded, or it has none
    eos_token_ids: tuple[int, ...]  # tokens that end an answer

    def metadata(self, config: EndpointConfig) -> dict[str, object]:
        """What heads a summary: what ran, on what. `config` is the one that this was built from."""
        simulated = config.executor_config
        is_simulated = isinstance(simulated, SimulatedExecutorConfig)
        return {
            "scheduler": scheduler_name(config),
            "model": self.model.name,
            "device": self.device,
            "simulated": self.simulated,
            "engine_profile": simulated.engine_profile if is_simulated else "",
            "jitter": simulated.jitter if is_simulated else 0.0,
            "dtype_bytes": self.dtype_bytes,
            "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
            "pipeline_parallel_size": config.parallel_config.pipeline_parallel_size,
            "num_gpu_blocks": self.num_gpu_blocks,
            "max_model_len": self.max_model_len,
        }


def build_system(config: EndpointConfig, seed: int = 0, parts: LocalParts | None = None) -> System:
    """Everything that serves requests; a real model is loaded for it unless `parts` of a loaded one are given.

    `seed` is what seeds that the settings leave open become.
    """
    is_simulated = isinstance(config.executor_config, SimulatedExecutorConfig)
    device = simulated_device(config, seed) if is_simulated else local_device(config, parts)
    max_model_len, notes = _context(config, device)
    scheduler = build_scheduler(config, device, max_model_len)
    scheduler.overlap = device.executor.overlap
    return System(
        model=device.model,
        num_gpu_blocks=device.num_blocks,
        max_model_len=max_model_len,
        notes=[*notes, *device.notes],
        scheduler=scheduler,
        executor=device.executor,
        clock=device.clock,
        device=device.name,
        simulated=device.simulated,
        dtype_bytes=device.dtype_bytes,
        tokenizer=device.tokenizer,
        eos_token_ids=device.eos_token_ids,
    )


def _context(config: EndpointConfig, device: RoundDevice) -> tuple[int, list[str]]:
    """Longest request: as set, else the model's context, or what the pool holds where that is less; and notes."""
    model, block_size = device.model, config.cache_config.block_size
    pool = device.num_blocks * block_size
    holds = f"{device.num_blocks:,} KV blocks of {block_size} tokens ({device.blocks_from}) hold {pool:,} tokens"
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
