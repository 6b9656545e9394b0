"""How long a round takes on a simulated device, and how much KV cache the device holds.

Knows a round's totals only, never queues, policies or clocks. The CPU's part comes from an engine profile.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence
from typing import NamedTuple

from sarathi.core.plan import MemoryStats, SchedulerOutput
from sarathi.simulation.devices import Device, EngineProfile
from sarathi.simulation.models import ModelShape

GIB = 2**30
TILE = 128  # rows of a GEMM's output tile; small batches run with 16, 32 or 64
CACHE_SPEEDUP = 3.0  # calibrated: activations between operators mostly hit the L2 cache
SAMPLER_OVERHEAD = 200e-6  # assumed: the sampler's dozen small kernels
SAMPLER_PASSES = 10  # assumed: times that temperature, top-k/top-p and softmax move the float32 logits
INTERCONNECT_EFFICIENCY = 0.7  # Ascend msmodeling's default, taken for every link
ACTIVATION_RESERVE_GIB = 2.0  # CUDA context, communication buffers, activations and logits of the largest round


def round_to_tile(num_rows: int) -> int:
    """Rows that a GEMM really computes: the next of 0, 16, 32, 64, then multiples of 128."""
    if num_rows > 64:
        return -(-num_rows // TILE) * TILE
    for rows in (0, 16, 32):
        if num_rows <= rows:
            return rows
    return 64


class LayerTimes(NamedTuple):
    """Seconds of one layer, attention apart."""

    gemms: float
    elementwise: float
    launch: float
    all_reduce: float  # one of the two


class RoundLatency:
    """Seconds a round takes, by pipeline stage.

    time = sum over layers of [GEMMs (roofline, below) + elementwise operators + prefill and decode attention
    + launch overhead + two all-reduces] + LM head and sampler for sampled tokens + send to the next stage + CPU.
    A GEMM takes (c^p + m^p)^(1/p) with c = 2 * rows * params / FLOP/s, rows rounded up to tiles, and m = its
    weights' bytes / bandwidth: hence the staircase in tokens. Per round the cost is O(prefill chunks); what depends
    on the token count or on the number of sampled tokens is memoised.

    Raises ValueError if the model does not split over the parallel sizes.
    """

    def __init__(
        self,
        model: ModelShape,
        device: Device,
        tensor_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
        profile: EngineProfile | None = None,
        dtype_bytes: int = 2,
    ) -> None:
        model.check_parallel(tensor_parallel_size, pipeline_parallel_size)
        self.model = model
        self.device = device
        self.tensor_parallel_size = tp = tensor_parallel_size
        self.num_stages = pipeline_parallel_size
        self.dtype_bytes = dtype_bytes
        self.layers_per_stage = layers = model.num_layers // pipeline_parallel_size
        self._flops = device.bf16_tflops * 1e12 * device.compute_efficiency
        self._bandwidth = device.memory_gb_per_s * 1e9 * device.memory_efficiency
        self._link = device.interconnect_gb_per_s * 1e9 * INTERCONNECT_EFFICIENCY

        # Attention, summed over a stage's layers. Decode reads every cached key and value once; prefill does
        # 4 * heads * head_dim FLOPs for each (query, key) pair or reads its context, whichever is longer.
        attention_flops = device.bf16_tflops * 1e12 * device.attention_compute_efficiency
        attention_bandwidth = device.memory_gb_per_s * 1e9 * device.attention_memory_efficiency
        kv_bytes = model.kv_bytes_per_token(tp, pipeline_parallel_size, dtype_bytes)
        self.time_per_context_token = kv_bytes / attention_bandwidth
        self._time_per_pair = 4 * layers * (model.num_heads // tp) * model.head_dim / attention_flops

        self._cpu_base = profile.base if profile else 0.0
        self._cpu_per_seq = profile.per_seq if profile else 0.0
        self._layers_time = functools.cache(self._compute_layers_time)
        self._head_time = functools.cache(self._compute_head_time)

    def stage_times(self, output: SchedulerOutput) -> tuple[float, ...]:
        """Seconds of one round on each pipeline stage; the CPU's part, paid once a round, is in the first."""
        num_decodes = num_sampled = len(output.decodes)
        attention = output.sum_decode_context_len * self.time_per_context_token
        prefills = output.prefills
        for request, chunk in prefills:
            context = request.num_computed_tokens  # this chunk included
            attention += self.prefill_attention_time(chunk, context)
            if not request.num_remaining_tokens:
                num_sampled += 1
        num_tokens = num_decodes + output.num_prefill_tokens
        cpu = self.cpu_time(num_decodes + len(prefills))
        if self.num_stages == 1:
            return (cpu + attention + self._layers_time(num_tokens) + self._head_time(num_sampled),)
        times = self._gpu_stage_times(num_tokens, num_sampled, attention)
        times[0] += cpu
        return tuple(times)

    def gpu_time(
        self,
        num_decodes: int,
        sum_decode_context_len: int,
        prefills: Sequence[tuple[int, int]] = (),
        num_sampled: int | None = None,
    ) -> float:
        """Seconds on the GPU, all stages together, without the CPU's part.

        `prefills` holds (chunk, tokens computed before it). Each chunk is taken to complete its prompt unless
        `num_sampled` says how many tokens are sampled.
        """
        attention = sum_decode_context_len * self.time_per_context_token
        num_tokens = num_decodes
        for chunk, context_before in prefills:
            attention += self.prefill_attention_time(chunk, context_before + chunk)
            num_tokens += chunk
        if num_sampled is None:
            num_sampled = num_decodes + len(prefills)
        return sum(self._gpu_stage_times(num_tokens, num_sampled, attention))

    def layers_time(self, num_tokens: int) -> float:
        """Seconds of one stage's layers without attention: the staircase."""
        return self._layers_time(num_tokens)

    def cpu_time(self, num_seqs: int) -> float:
        """Seconds of the CPU in a round, which the device waits for."""
        return self._cpu_base + self._cpu_per_seq * num_seqs

    def send_time(self, num_tokens: int) -> float:
        """Seconds to hand a stage's activations to the next one."""
        num_bytes = num_tokens * self.model.hidden_size * self.dtype_bytes
        return num_bytes / self._link + self.device.interconnect_latency

    def prefill_attention_time(self, chunk: int, context: int) -> float:
        """Seconds of one stage's attention for a chunk that ends `context` tokens into its prompt."""
        compute = chunk * (context - 0.5 * (chunk - 1)) * self._time_per_pair
        memory = context * self.time_per_context_token
        return compute if compute > memory else memory

    def _gpu_stage_times(self, num_tokens: int, num_sampled: int, attention: float) -> list[float]:
        times = [self._layers_time(num_tokens) + attention] * self.num_stages
        if self.num_stages > 1:
            send = self.send_time(num_tokens)
            times[:-1] = [time + send for time in times[:-1]]
        times[-1] += self._head_time(num_sampled)
        return times

    def gemm_time(self, num_rows: int, compute_params: float, memory_params: float) -> float:
        """Soft maximum of compute and memory time of matrices that `num_rows` rows are multiplied with."""
        compute = 2 * round_to_tile(num_rows) * compute_params / self._flops
        memory = memory_params * self.dtype_bytes / self._bandwidth
        p = self.device.overlap_exponent
        return (compute**p + memory**p) ** (1 / p)

    def mlps(self, num_tokens: int) -> tuple[float, float]:
        """MLPs of a layer that one token goes through, and those that are read; without experts one and the same."""
        model = self.model
        if not model.num_experts:
            return 1.0, 1.0
        active = model.experts_per_token
        # Expected number of experts that at least one of the tokens is routed to, were routing uniform.
        return active, model.num_experts * (1 - (1 - active / model.num_experts) ** num_tokens)

    def elements(self) -> tuple[int, int, int]:
        """Elements that a token moves in a layer's elementwise operators.

        Two norms with residual (read two, write two); rotary embedding and KV write; gated activation.
        """
        model, tp = self.model, self.tensor_parallel_size
        kv = model.kv_heads_per_rank(tp) * model.head_dim
        query = model.num_heads // tp * model.head_dim
        ffn = model.moe_intermediate_size * model.experts_per_token if model.num_experts else model.intermediate_size
        return 8 * model.hidden_size, 2 * (query + kv), 3 * ffn // tp

    def layer_times(self, num_tokens: int) -> LayerTimes:
        model, tp = self.model, self.tensor_parallel_size
        attention, mlp = model.attention_params(tp), model.mlp_params(tp)
        active, touched = self.mlps(num_tokens)
        gemms = self.gemm_time(num_tokens, attention + active * mlp, attention + touched * mlp)
        elementwise = num_tokens * sum(self.elements()) * self.dtype_bytes / (self._bandwidth * CACHE_SPEEDUP)
        all_reduce = 0.0
        if tp > 1:  # ring: each rank moves 2 (tp - 1) / tp of the activations
            num_bytes = num_tokens * model.hidden_size * self.dtype_bytes
            all_reduce = 2 * (tp - 1) / tp * num_bytes / self._link + self.device.interconnect_latency
        return LayerTimes(gemms, elementwise, self.device.launch_overhead, all_reduce)

    def _compute_layers_time(self, num_tokens: int) -> float:
        gemms, elementwise, launch, all_reduce = self.layer_times(num_tokens)
        return self.layers_per_stage * (gemms + elementwise + launch + 2 * all_reduce)

    def head_times(self, num_sampled: int) -> tuple[float, float]:
        """Seconds of LM head and sampler; nothing where no sequence samples."""
        if not num_sampled:
            return 0.0, 0.0
        params = self.model.embedding_params(self.tensor_parallel_size)
        logits_bytes = 4 * num_sampled * self.model.vocab_size
        sampler = SAMPLER_OVERHEAD + SAMPLER_PASSES * logits_bytes / self._bandwidth
        return self.gemm_time(num_sampled, params, params), sampler

    def _compute_head_time(self, num_sampled: int) -> float:
        return sum(self.head_times(num_sampled))


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


class Jitter:
    """Seeded multiplicative noise: log-normal factors of mean 1 and relative standard deviation `sigma`; 0 is off."""

    def __init__(self, sigma: float = 0.0, seed: int = 0) -> None:
        if not 0 <= sigma <= 1:
            raise ValueError(f"jitter: {sigma!r} is not allowed; a relative standard deviation in [0, 1]")
        self.sigma = sigma
        self._log_sigma = math.sqrt(math.log1p(sigma * sigma))
        self._random = random.Random(seed)

    def factor(self) -> float:
        """The next factor; exactly 1.0, drawing nothing, where sigma is 0."""
        if not self.sigma:
            return 1.0
        return math.exp(self._random.gauss(-0.5 * self._log_sigma**2, self._log_sigma))
