"""A worker: one device with its share of a model and of the KV cache, which runs rounds and measures them.

It knows no requests and no scheduler, and can be held by another process: what it keeps between rounds is what their
messages brought.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from sarathi.attention import make_backend
from sarathi.attention.base import AttentionLayout
from sarathi.call_timer import CallTimer
from sarathi.model.architecture import Architecture
from sarathi.model.checkpoint import open_checkpoint, shape_of
from sarathi.model.transformer import load_model
from sarathi.request import SamplingParams, TokenLogprobs
from sarathi.worker.batch import Batch, SamplingInput, WorkerOutput
from sarathi.worker.budget import MemoryBudget
from sarathi.worker.cuda_runner import CudaRunner, graph_sizes
from sarathi.worker.device import choose_dtype, find_device
from sarathi.worker.memory import CudaMemory, HostMemory, available_memory, cuda_kv_room
from sarathi.worker.message import BatchBuilder, RoundMessage
from sarathi.worker.operators import operator_timer
from sarathi.worker.parallel import SINGLE, Parallel
from sarathi.worker.runner import ModelRunner
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
        parallel: which share of the model this is, and the way to the other ranks, which make the same calls.
        num_workers_here: workers that share this machine's memory, if the model runs on its CPU.
        overlap: whether messages may leave out tokens that only the round before has given.

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
        parallel: Parallel = SINGLE,
        num_workers_here: int = 1,
        overlap: bool = False,
    ) -> None:
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self.device = find_device(device)
        self.dtype = choose_dtype(dtype, self.device)
        self.block_size = block_size
        self.parallel = parallel
        self._shares_tokens = overlap and parallel.tensor_size > 1
        checkpoint = open_checkpoint(model, load_format, seed, self.device)
        self.architecture = Architecture.from_config(checkpoint.config, checkpoint.path)
        self.shape = shape_of(model, checkpoint)
        self.shape.check_parallel(parallel.tensor_size, parallel.num_stages)
        budget = self._budget = MemoryBudget(
            self.shape,
            parallel,
            self.dtype,
            self.device,
            block_size=block_size,
            available=available_memory(self.device) // (num_workers_here if self.device.type == "cpu" else 1),
            utilization=gpu_memory_utilization,
        )
        budget.check_weights()
        self._model = load_model(checkpoint, self.architecture, self.dtype, self.device, parallel)
        self._attention = make_backend(attention_backend, self.device, self.dtype, self._layout())
        self._sampler = Sampler(self.architecture.vocab_size)
        self._kv_caches: list[torch.Tensor] = []
        self._max_num_blocks = self._max_num_seqs = 0
        self._runner = self._make_runner()
        self._builder = BatchBuilder()
        self._operators: CallTimer | None = None
        self._memory = self._memory_with(0)

    def _make_runner(self) -> ModelRunner:
        kind = CudaRunner if self.device.type == "cuda" else ModelRunner
        return kind(self._model, self._attention, self._kv_caches, self.device)

    @property
    def description(self) -> str:
        """One line: what runs where."""
        threads = f" with {torch.get_num_threads()} threads" if self.device.type == "cpu" else ""
        backend = type(self._attention).__name__
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.shape.name} in {dtype} on {self.device}{threads}, attention by {backend}"

    def _layout(self) -> AttentionLayout:
        shard = self._model.shard
        return AttentionLayout(
            num_heads=shard.num_heads,
            num_kv_heads=shard.num_kv_heads,
            head_dim=shard.head_dim,
            block_size=self.block_size,
            windows=shard.windows,
        )

    def max_num_blocks(self, *, max_num_seqs: int, max_num_tokens: int, max_len: int) -> int:
        """KV blocks that the share of memory holds, but no more than `max_num_seqs` requests of `max_len` tokens use.

        `max_num_tokens` is the longest round's, which sizes the activations that memory is left for. Raises FieldError
        of gpu_memory_utilization where not one fits.
        """
        activations = self._budget.activation_bytes(max_num_tokens, max_num_seqs)
        is_cuda = self.device.type == "cuda"
        room = self._cuda_room(max_num_tokens, max_num_seqs) if is_cuda else self._budget.kv_room(activations)
        most = max_num_seqs * -(-max_len // self.block_size)
        self._max_num_blocks = self._budget.num_blocks(room, activations, most)
        return self._max_num_blocks

    def _cuda_room(self, max_num_tokens: int, max_num_seqs: int) -> int:
        """Bytes for KV blocks beside what the longest round and the largest CUDA graph are seen to take."""
        sampling = SamplingInput(SamplingParams(top_p=0.9), seed=0, position=0)
        longest = _dummy_round(max_num_seqs - 1, max_num_tokens - max_num_seqs + 1, self.block_size, sampling)
        decodes = _dummy_round(max(graph_sizes(max_num_seqs)) - 1, 1, self.block_size)
        self._make_pages(1)
        room = cuda_kv_room(
            lambda: self.run(longest),
            lambda: self.run(decodes),
            self._budget.available,
            self._budget.utilization,
            self._runner.graph_bytes(max_num_seqs),
            self.device,
        )
        self._kv_caches.clear()
        return room

    def allocate_kv_cache(self, num_blocks: int, *, max_num_seqs: int, max_num_tokens: int, max_len: int) -> None:
        """Make the pool, for the same limits. Raises FieldError of num_gpu_blocks or model where it does not fit."""
        if num_blocks > self._max_num_blocks:  # the user's own number
            free = self._cuda_free(max_num_seqs) if self.device.type == "cuda" else None
            self._budget.check_blocks(num_blocks, max_num_tokens, max_num_seqs, free)
        self._max_num_seqs = max_num_seqs
        self._make_pages(num_blocks)
        self._memory = self._memory_with(num_blocks * self._budget.block_bytes)

    def _cuda_free(self, max_num_seqs: int) -> int:
        """Bytes that are free now, less what CUDA graphs are going to take, by estimate."""
        graph_bytes = self._runner.graph_bytes(max_num_seqs)
        if graph_bytes:
            size = max(graph_sizes(max_num_seqs))
            graph_bytes += self._budget.activation_bytes(size, size)
        return available_memory(self.device) - graph_bytes

    def _make_pages(self, num_blocks: int) -> None:
        layout = self._layout()
        num_pages = num_blocks + self._runner.num_scratch_blocks
        pages = (num_pages, 2, layout.num_kv_heads, self.block_size, layout.head_dim)
        self._kv_caches.clear()
        # A GPU's kernels read what a page does not hold yet and multiply it by 0: it must be a number.
        make = torch.zeros if self.device.type == "cuda" else torch.empty
        self._kv_caches.extend(make(pages, dtype=self.dtype, device=self.device) for _ in layout.windows)

    def _memory_with(self, kv_bytes: int) -> HostMemory | CudaMemory:
        is_cuda = self.device.type == "cuda"
        return CudaMemory(self.device) if is_cuda else HostMemory(self._budget.weight_bytes + kv_bytes)

    def execute(self, message: RoundMessage) -> WorkerOutput:
        """Run one round. Tokens come from the rank that has the logits; the others give none."""
        given = self.run(self._builder.build(message))
        if given.token_ids:
            self._builder.keep(given.token_ids)
        return given

    @torch.inference_mode()
    def run(self, batch: Batch) -> WorkerOutput:
        """The round's share of this rank, measured without the waits for the stages before and after."""
        parallel = self.parallel
        hidden = None
        if not parallel.is_first_stage:
            hidden = parallel.receive((batch.num_tokens, self.shape.hidden_size), self.dtype, self.device)
        started = self._caught_up()
        result = self._runner.forward(batch, hidden)
        token_ids: list[int] = []
        logprobs: list[TokenLogprobs | None] | None = None
        if parallel.is_last_stage and result is not None and len(result):
            token_ids, logprobs = self._sampler.sample(result, batch.sampling)
        if self._shares_tokens and len(batch.output_rows):
            token_ids = parallel.broadcast_tokens(token_ids, len(batch.output_rows), self.device)
        execution_time = self._caught_up() - started
        if not parallel.is_last_stage:
            assert result is not None
            parallel.send(result)
        return WorkerOutput(token_ids, logprobs, execution_time, self._memory.stats())

    def time_operators(self) -> None:
        """From now on give each round's time by operator, and in `other` what is left of it.

        A GPU is waited for after every operator, so its rounds take longer. Until this is called nothing is timed.
        """
        if self._operators is not None:
            return
        self._runner.use_graphs = False
        timer = self._operators = operator_timer(self._model, self._attention, self._sampler, self._caught_up)
        run = self.run

        def run_by_operator(batch: Batch) -> WorkerOutput:
            timer.take()
            given = run(batch)
            times = timer.take()
            times["other"] = given.execution_time - sum(times.values())
            return given._replace(operator_times=times)

        self.run = run_by_operator

    def host_calls(self) -> list[tuple[Any, str, str]]:
        """What a round costs this process, to be timed: (object, method, name)."""
        return [(self, "execute", "model_execution_e2e"), (self._sampler, "sample", "sample_e2e")]

    def _caught_up(self) -> float:
        """Seconds, once the device has done what it was asked."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def warm_up(self, max_num_tokens: int) -> None:
        """Compile kernels before the clock starts: a chunk and a decode in block 0, whose contents are no one's yet."""
        for length in sorted({1, max(1, min(max_num_tokens, self.block_size))}):
            self.run(_dummy_round(0, length, self.block_size))
        self._runner.warm_up(self._max_num_seqs)


def _dummy_round(num_decodes: int, chunk: int, block_size: int, sampling: SamplingInput | None = None) -> Batch:
    """Decodes of a first token and one prompt, all in block 0, each with an output row."""
    num_seqs = num_decodes + 1
    query_starts = np.append(np.arange(num_seqs), num_decodes + chunk).astype(np.int32)
    return Batch(
        token_ids=np.zeros(num_decodes + chunk, np.int64),
        positions=np.append(np.zeros(num_decodes, np.int64), np.arange(chunk)),
        query_starts=query_starts,
        context_lens=np.append(np.ones(num_decodes, np.int32), np.int32(chunk)),
        block_tables=np.zeros((num_seqs, -(-chunk // block_size)), np.int32),
        output_rows=query_starts[1:].astype(np.int64) - 1,
        output_seqs=np.arange(num_seqs),
        sampling=None if sampling is None else [sampling] * num_seqs,
    )
