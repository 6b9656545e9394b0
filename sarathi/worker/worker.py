"""A worker: one device with a model's weights and its KV cache, which runs rounds and measures them.

It knows no requests and no scheduler, keeps nothing of a round, and can be held by another process.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from sarathi.attention import make_backend
from sarathi.call_timer import CallTimer
from sarathi.errors import FieldError
from sarathi.model.architecture import Architecture
from sarathi.model.checkpoint import SMOLLM2, open_checkpoint
from sarathi.model.transformer import load_model
from sarathi.simulation.models import ModelShape, shape_from_config
from sarathi.worker.batch import Batch, WorkerOutput
from sarathi.worker.device import choose_dtype, find_device
from sarathi.worker.memory import GIB, HostMemory, available_host_memory
from sarathi.worker.operators import operator_timer
from sarathi.worker.sampler import Sampler


class Worker:
    """Loads a model when it is made; `allocate_kv_cache` must follow before the first round.

    Args:
        model: folder, GGUF file or known name.
        load_format: "auto", or "dummy" for random weights.
        dtype: of weights, activations and KV cache; "auto" is float32 on a CPU and bfloat16 elsewhere.
        seed: of dummy weights.
        device: "auto", "cpu" or "cuda".
        num_threads: of the CPU; None leaves torch's own number.
        attention_backend: "AUTO", "SDPA", "CPU_PAGED", "FLASHINFER" or "NO_OP".
        block_size: tokens in a KV block.
        gpu_memory_utilization: share of the available memory that weights, activations and KV cache may take.

    Raises FieldError for a model that cannot be loaded and one that does not fit, with both sizes. The field is the
    setting's name in its config.
    """

    def __init__(
        self,
        model: str,
        *,
        load_format: str = "auto",
        dtype: str = "auto",
        seed: int = 0,
        device: str = "auto",
        num_threads: int | None = None,
        attention_backend: str = "AUTO",
        block_size: int = 16,
        gpu_memory_utilization: float = 0.8,
    ) -> None:
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self.device = find_device(device)
        self.dtype = choose_dtype(dtype, self.device)
        self.block_size = block_size
        checkpoint = open_checkpoint(model, load_format, seed)
        self.architecture = Architecture.from_config(checkpoint.config, checkpoint.path)
        shape = shape_from_config(checkpoint.path, checkpoint.config)
        self.shape: ModelShape = replace(shape, name=model) if model == SMOLLM2 else shape
        self.utilization = gpu_memory_utilization
        self._available = self._available_memory()
        self._weight_bytes = self.shape.weight_bytes(dtype_bytes=self.dtype.itemsize)
        if self.architecture.tied_embeddings and self.device.type == "cpu":  # the packed LM head is a copy
            self._weight_bytes += self.shape.embedding_params() * self.dtype.itemsize
        if self._weight_bytes > self._available:
            raise FieldError(
                "model",
                f"{model} needs {self._weight_bytes / GIB:.1f} GiB for its weights in {self.dtype_name}; "
                f"{self._available / GIB:.1f} GiB are available on {self.device}; take a smaller model or dtype",
            )
        self._model = load_model(checkpoint, self.architecture, self.dtype, self.device)
        self._attention = make_backend(attention_backend, self.device, self.dtype)
        self._sampler = Sampler(self.architecture.vocab_size)
        self._kv_caches: list[torch.Tensor] = []
        self._operators: CallTimer | None = None
        self._memory = HostMemory(self._weight_bytes)

    @property
    def description(self) -> str:
        """One line: what runs where."""
        threads = f" with {torch.get_num_threads()} threads" if self.device.type == "cpu" else ""
        backend = type(self._attention).__name__
        return f"{self.shape.name} in {self.dtype_name} on {self.device}{threads}, attention by {backend}"

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def block_bytes(self) -> int:
        """Bytes of one KV block over all layers."""
        return self.block_size * self.shape.kv_bytes_per_token(dtype_bytes=self.dtype.itemsize)

    def allocate_kv_cache(self, num_blocks: int | None, *, max_num_seqs: int, max_num_tokens: int, max_len: int) -> int:
        """Make the pool and return its number of blocks.

        Args:
            num_blocks: None takes what the share of memory holds, but never more than `max_num_seqs` requests of
                `max_len` tokens can use.
            max_num_tokens: longest round, which sizes the activations that memory is left for.

        Raises FieldError of num_gpu_blocks or gpu_memory_utilization where the pool does not fit.
        """
        activations = self._activation_bytes(max_num_tokens, max_num_seqs)
        room = int(self._available * self.utilization) - self._weight_bytes - activations
        if num_blocks is None:
            most = max_num_seqs * -(-max_len // self.block_size)
            num_blocks = min(room // self.block_bytes, most)
            if num_blocks < 1:
                raise FieldError(
                    "gpu_memory_utilization",
                    f"{self.utilization:g} of the {self._available / GIB:.2f} GiB available leaves no KV block: "
                    f"weights take {self._weight_bytes / GIB:.2f} GiB, activations {activations / GIB:.2f} GiB and a "
                    f"block {self.block_bytes / GIB:.4f} GiB; raise it, or take a smaller model, chunk_size or "
                    "max_num_seqs",
                )
        size = num_blocks * self.block_bytes
        free = self._available - self._weight_bytes - activations
        if free < self.block_bytes:
            raise FieldError(
                "model",
                f"rounds of {max_num_tokens:,} tokens and {max_num_seqs:,} sequences need {activations / GIB:.2f} GiB "
                f"for activations, weights {self._weight_bytes / GIB:.2f} GiB; {self._available / GIB:.2f} GiB are "
                "available; take a smaller chunk_size, max_num_seqs or model",
            )
        if size > free:
            raise FieldError(
                "num_gpu_blocks",
                f"{num_blocks} blocks of {self.block_size} tokens need {size / GIB:.2f} GiB; {max(0, free) / GIB:.2f} "
                f"GiB are left beside weights and activations; at most {max(0, free) // self.block_bytes}, or a "
                "smaller block_size or dtype",
            )
        shape = self.shape
        pages = (num_blocks, 2, shape.num_kv_heads, self.block_size, shape.head_dim)
        self._kv_caches.clear()
        self._kv_caches.extend(
            torch.empty(pages, dtype=self.dtype, device=self.device) for _ in range(shape.num_layers)
        )
        self._memory = HostMemory(self._weight_bytes + size)
        return num_blocks

    @torch.inference_mode()
    def forward(self, batch: Batch) -> torch.Tensor:
        """Run the model; returns logits, (R, vocab_size) float32."""
        self._attention.begin_round(batch)
        token_ids, positions, rows = (
            torch.from_numpy(array).to(self.device) for array in (batch.token_ids, batch.positions, batch.output_rows)
        )
        return self._model(token_ids, positions, self._kv_caches, self._attention, rows)

    @torch.inference_mode()
    def execute(self, batch: Batch) -> WorkerOutput:
        """Run one round to its tokens."""
        started = time.perf_counter()
        logits = self.forward(batch)
        token_ids, logprobs = self._sampler.sample(logits, batch.sampling) if len(logits) else ([], None)
        if self.device.type == "cuda":  # else a round that gives no token would seem to take no time
            torch.cuda.synchronize(self.device)
        return WorkerOutput(token_ids, logprobs, time.perf_counter() - started, self._memory.stats())

    def time_operators(self) -> None:
        """From now on give each round's time by operator, and in `other` what is left of it.

        A GPU is waited for after every operator, so its rounds take longer. Until this is called nothing is timed.
        """
        if self._operators is not None:
            return
        timer = self._operators = operator_timer(self._model, self._attention, self._sampler, self._caught_up)
        execute = self.execute

        def execute_by_operator(batch: Batch) -> WorkerOutput:
            timer.take()
            given = execute(batch)
            times = timer.take()
            times["other"] = given.execution_time - sum(times.values())
            return given._replace(operator_times=times)

        self.execute = execute_by_operator

    def host_calls(self) -> list[tuple[Any, str, str]]:
        """What a round costs this process, to be timed: (object, method, name)."""
        return [(self, "execute", "model_execution_e2e"), (self._sampler, "sample", "sample_e2e")]

    def _caught_up(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def warm_up(self, max_num_tokens: int) -> None:
        """Compile kernels before the clock starts: a chunk and a decode in block 0, whose contents are no one's yet."""
        num_tokens = max(1, min(max_num_tokens, self.block_size))
        for length in {1, num_tokens}:
            self.execute(_prompt_of(length))

    def _available_memory(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.mem_get_info(self.device)[0]
        return available_host_memory()

    def _activation_bytes(self, num_tokens: int, num_seqs: int) -> int:
        """An estimate: the widest layer's inputs and outputs, and logits with the sampler's copies in float32."""
        shape = self.shape
        ffn = max(shape.intermediate_size, shape.moe_intermediate_size * max(1, shape.experts_per_token))
        widest = 4 * shape.hidden_size + 3 * ffn + (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
        return num_tokens * widest * self.dtype.itemsize + 6 * 4 * num_seqs * shape.vocab_size


def _prompt_of(num_tokens: int) -> Batch:
    """A batch of one prompt in block 0."""
    return Batch(
        token_ids=np.zeros(num_tokens, np.int64),
        positions=np.arange(num_tokens),
        query_starts=np.array([0, num_tokens], np.int32),
        context_lens=np.array([num_tokens], np.int32),
        block_tables=np.zeros((1, 1), np.int32),
        output_rows=np.array([num_tokens - 1]),
        output_seqs=np.zeros(1, np.int64),
        sampling=None,
    )
