"""How long a round takes on a simulated device.

Knows a round's totals only, never queues, policies or clocks. The CPU's part comes from an engine profile.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence
from typing import NamedTuple

from sarathi.core.plan import SchedulerOutput
from sarathi.simulation.devices import Device, EngineProfile
from sarathi.simulation.models import ModelShape
from sarathi.simulation.operators import operator_times

TILE = 128  # rows of a GEMM's output tile; small batches run with 16, 32 or 64
CACHE_SPEEDUP = 3.0  # calibrated: activations between operators mostly hit the L2 cache
SAMPLER_OVERHEAD = 200e-6  # assumed: the sampler's dozen small kernels
SAMPLER_PASSES = 10  # assumed: times that temperature, top-k/top-p and softmax move the float32 logits
INTERCONNECT_EFFICIENCY = 0.7  # Ascend msmodeling's default, taken for every link


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

    gemms: float  # of all its matrices: one soft maximum of their joint compute and memory time
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

    def operator_times(self, output: SchedulerOutput) -> dict[str, float]:
        """Seconds by operator on the stage that takes longest; see `operators`."""
        return operator_times(self, output)

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
        """Seconds of matrices on one rank that `num_rows` rows (tokens) are multiplied with.

        The soft maximum of the time to compute with `compute_params` weights a row, and to read `memory_params` of
        them. With experts the two differ, see `mlps`. Of several matrices at once it is less than their sum.
        """
        compute = 2 * round_to_tile(num_rows) * compute_params / self._flops
        memory = memory_params * self.dtype_bytes / self._bandwidth
        p = self.device.overlap_exponent
        return (compute**p + memory**p) ** (1 / p)

    def mlps(self, num_tokens: int) -> tuple[float, float]:
        """MLPs of a layer that one token goes through, and those that `num_tokens` together read.

        Without experts both are 1. With them the second is the expected number of experts that at least one token is
        routed to, were routing uniform: E (1 - (1 - k / E)^tokens), k of E experts a token; not an integer.
        """
        model = self.model
        if not model.num_experts:
            return 1.0, 1.0
        active = model.experts_per_token
        return active, model.num_experts * (1 - (1 - active / model.num_experts) ** num_tokens)

    def elements(self) -> tuple[int, int, int]:
        """Elements (of `dtype_bytes`) that a token reads and writes in a layer's elementwise operators, on one rank.

        Of the two norms with residual together (each reads two vectors and writes two), of rotary embedding with the
        writing of keys and values, and of the gated activation.
        """
        model, tp = self.model, self.tensor_parallel_size
        kv = model.kv_heads_per_rank(tp) * model.head_dim
        query = model.num_heads // tp * model.head_dim
        ffn = model.moe_intermediate_size * model.experts_per_token if model.num_experts else model.intermediate_size
        return 8 * model.hidden_size, 2 * (query + kv), 3 * ffn // tp

    def layer_times(self, num_tokens: int) -> LayerTimes:
        """Seconds of one layer in a round of `num_tokens` tokens. Not memoised, unlike `layers_time`."""
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
        """Seconds of (LM head, sampler) on the last stage for `num_sampled` sequences; 0 where none samples."""
        if not num_sampled:
            return 0.0, 0.0
        params = self.model.embedding_params(self.tensor_parallel_size)
        logits_bytes = 4 * num_sampled * self.model.vocab_size
        sampler = SAMPLER_OVERHEAD + SAMPLER_PASSES * logits_bytes / self._bandwidth
        return self.gemm_time(num_sampled, params, params), sampler

    def _compute_head_time(self, num_sampled: int) -> float:
        return sum(self.head_times(num_sampled))


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
