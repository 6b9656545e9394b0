"""How much KV cache a simulated device holds beside a model's weights, and what its memory statistics say.

Knows no rounds and no time.
"""

from __future__ import annotations

import math

from sarathi.core.plan import MemoryStats
from sarathi.simulation.devices import Device
from sarathi.simulation.models import ModelShape

GIB = 2**30
ACTIVATION_RESERVE_GIB = 2.0  # CUDA context, communication buffers, activations and logits of the largest round


def num_kv_blocks(
    device: Device,
    model: ModelShape,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    *,
    gpu_memory_utilization: float,
    block_size: int,
    dtype_bytes: int = 2,
) -> int:
    """KV blocks that fit beside weights and ACTIVATION_RESERVE_GIB on the fullest rank.

    Raises ValueError naming model, device and both sizes where not even one block fits.
    """
    tp, pp = tensor_parallel_size, pipeline_parallel_size
    model.check_parallel(tp, pp)
    weights = max(model.weight_bytes(tp, pp, stage, dtype_bytes) for stage in range(pp))
    there = device.memory_gib * GIB * gpu_memory_utilization
    block_bytes = block_size * model.kv_bytes_per_token(tp, pp, dtype_bytes)
    num_blocks = math.floor((there - weights - ACTIVATION_RESERVE_GIB * GIB) / block_bytes)
    if num_blocks < 1:
        raise ValueError(
            f"model {model.name} does not fit on {device.name} (tensor_parallel_size {tp}, pipeline_parallel_size "
            f"{pp}): a rank needs {weights / GIB:.1f} GiB of weights, {ACTIVATION_RESERVE_GIB:.1f} GiB of activation "
            f"reserve and a KV block, and has {there / GIB:.1f} GiB ({gpu_memory_utilization:g} of "
            f"{device.memory_gib:g})"
        )
    return num_blocks


class MemoryModel:
    """Device memory of the fullest rank as a function of the KV blocks in use.

    A real engine allocates its KV pool once; here memory follows the blocks in use, so that the statistics vary.
    """

    def __init__(
        self,
        device: Device,
        model: ModelShape,
        tensor_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
        block_size: int = 16,
        dtype_bytes: int = 2,
    ) -> None:
        tp, pp = tensor_parallel_size, pipeline_parallel_size
        self._total_mb = device.memory_gib * GIB / 1e6
        self._weights_mb = max(model.weight_bytes(tp, pp, stage, dtype_bytes) for stage in range(pp)) / 1e6
        self._block_mb = block_size * model.kv_bytes_per_token(tp, pp, dtype_bytes) / 1e6
        self._reserve_mb = ACTIVATION_RESERVE_GIB * GIB / 1e6

    def stats(self, num_used_blocks: int) -> MemoryStats:
        """MB (10^6 bytes) used, free, allocated and reserved while `num_used_blocks` hold keys and values."""
        allocated = self._weights_mb + num_used_blocks * self._block_mb
        reserved = allocated + self._reserve_mb
        return MemoryStats(reserved, max(0.0, self._total_mb - reserved), allocated, reserved)
