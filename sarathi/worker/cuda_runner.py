"""Runs the model on a CUDA device: arrays from pinned memory, and rounds of decodes replayed as CUDA graphs.

A round of decodes is hundreds of short kernels, whose launches would take the host longer than the device takes to run
them. Such a round is padded to the next size that was captured.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sarathi.attention.base import AttentionBackend, GraphBackend
from sarathi.attention.flashinfer_metadata import pad_decodes
from sarathi.model.transformer import DecoderModel
from sarathi.worker.batch import Batch
from sarathi.worker.cuda_staging import Staging
from sarathi.worker.runner import ModelRunner

# Dense where a padded row costs most of a round's time; 256 decodes keep the device busier than launches take.
GRAPH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)


def graph_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Those that rounds of at most so many requests are padded to, ascending. Rounds of more than 256 are not."""
    return GRAPH_SIZES[: bisect_left(GRAPH_SIZES, max_num_seqs) + 1]


Replay = Callable[[], None]
Capture = Callable[[Callable[[], None]], Replay]


class _Buffers(NamedTuple):
    """What captured work reads and writes, in one place for good: of a size n, the first n of each."""

    given: Tensor  # (N,) int64 token ids, or (N, hidden_size) hidden states
    positions: Tensor  # (N,) int64
    output_rows: Tensor  # (N,) int64: 0, 1, ...
    output: Tensor  # (N, vocab_size) float32 logits, or (N, hidden_size)


class CudaRunner(ModelRunner):
    """As ModelRunner. The last block of the pages is not for requests: padded decodes are written there.

    Ranks that share a layer capture nothing: what they tell each other would be part of the graph.

    Args:
        capture: what makes a function replayable.
    """

    num_scratch_blocks = 1

    def __init__(
        self,
        model: DecoderModel,
        attention: AttentionBackend,
        kv_caches: Sequence[Tensor],
        device: torch.device,
        capture: Capture | None = None,
    ) -> None:
        super().__init__(model, attention, kv_caches, device)
        self.use_graphs = True  # False runs everything operator by operator, which can be timed
        self._parallel = model.parallel
        self._capture = capture or CudaGraphCapture()
        self._staging = Staging(device)
        self._buffers: _Buffers | None = None
        self._replays: dict[int, Replay] = {}  # by number of decodes, ascending

    @property
    def can_capture(self) -> bool:
        """Experts are chosen on the host, and only some backends keep their metadata in one place."""
        is_dense, is_alone = not self.model.architecture.num_experts, self._parallel.tensor_size == 1
        return is_dense and is_alone and isinstance(self.attention, GraphBackend)

    def graph_bytes(self, max_num_seqs: int) -> int:
        """About what `warm_up` will take beside activations: plans, graphs and their output."""
        if not self.can_capture:
            return 0
        assert isinstance(self.attention, GraphBackend)
        sizes = graph_sizes(max_num_seqs)
        output = max(sizes) * self.model.architecture.vocab_size * 4
        return len(sizes) * (self.attention.graph_bytes + (4 << 20)) + output

    def forward(self, batch: Batch, hidden: Tensor | None = None) -> Tensor | None:
        size = self._graph_size(batch)
        if size is not None:
            return self._replay(batch, hidden, size)
        staging = self._staging
        self.attention.begin_round(batch)
        given = staging.copy("token_ids", batch.token_ids) if hidden is None else hidden
        positions = staging.copy("positions", batch.positions)
        output_rows = staging.copy("output_rows", batch.output_rows)
        return self.model(given, positions, self.kv_caches, self.attention, output_rows)

    @torch.inference_mode()
    def warm_up(self, max_num_seqs: int) -> None:
        """Capture rounds of up to so many decodes, the largest first: smaller ones then fit into its memory."""
        if not self.can_capture or self._replays:
            return
        assert isinstance(self.attention, GraphBackend)
        num_pages = len(self.kv_caches[0])
        sizes = [size for size in graph_sizes(max_num_seqs) if size < num_pages]
        if not sizes:  # one block, which is not for requests
            return
        self.attention.reserve_graphs(sizes, num_pages)
        self._buffers = self._make_buffers(max(sizes))
        replays = {size: self._capture_size(size) for size in reversed(sizes)}
        self._replays = dict(reversed(replays.items()))

    def _make_buffers(self, most: int) -> _Buffers:
        architecture, device, dtype = self.model.architecture, self.device, self.kv_caches[0].dtype
        rows = torch.arange(most, device=device)

        def hidden() -> Tensor:
            return torch.zeros(most, architecture.hidden_size, dtype=dtype, device=device)

        is_first, is_last = self._parallel.is_first_stage, self._parallel.is_last_stage
        return _Buffers(
            given=torch.zeros_like(rows) if is_first else hidden(),
            positions=torch.zeros_like(rows),
            output_rows=rows,
            output=torch.zeros(most, architecture.vocab_size, device=device) if is_last else hidden(),
        )

    def _capture_size(self, size: int) -> Replay:
        assert self._buffers is not None and isinstance(self.attention, GraphBackend)
        given, positions, output_rows, result = (tensor[:size] for tensor in self._buffers)
        self.attention.begin_graph_round(pad_decodes(_NO_DECODES, size, self._scratch_block))

        def run() -> None:
            output = self.model(given, positions, self.kv_caches, self.attention, output_rows)
            assert output is not None
            result.copy_(output)

        return self._capture(run)

    @property
    def _scratch_block(self) -> int:
        return len(self.kv_caches[0]) - 1

    def _graph_size(self, batch: Batch) -> int | None:
        """The captured size for a round in which every sequence has one query; None if there is none."""
        if not self.use_graphs or batch.num_tokens != batch.num_seqs:
            return None
        return next((size for size in self._replays if size >= batch.num_seqs), None)

    def _replay(self, batch: Batch, hidden: Tensor | None, size: int) -> Tensor:
        buffers, staging, num_seqs = self._buffers, self._staging, batch.num_seqs
        assert buffers is not None and isinstance(self.attention, GraphBackend)
        padded = pad_decodes(batch, size, self._scratch_block)
        if hidden is None:
            staging.copy("token_ids", padded.token_ids, out=buffers.given)
        else:
            buffers.given[:num_seqs].copy_(hidden)
        staging.copy("positions", padded.positions, out=buffers.positions)
        self.attention.begin_graph_round(padded)
        gives_all = len(batch.output_rows) == num_seqs
        rows = None if gives_all else staging.copy("output_rows", batch.output_rows)
        self._replays[size]()
        if not self._parallel.is_last_stage:
            return buffers.output[:num_seqs].clone()  # still on its way when the next round is replayed
        return buffers.output[:num_seqs] if rows is None else buffers.output[rows]


_NO_DECODES = Batch(
    token_ids=np.zeros(0, np.int64),
    positions=np.zeros(0, np.int64),
    query_starts=np.zeros(1, np.int32),
    context_lens=np.zeros(0, np.int32),
    block_tables=np.zeros((0, 1), np.int32),
    output_rows=np.zeros(0, np.int64),
    output_seqs=np.zeros(0, np.int64),
    sampling=None,
)


class CudaGraphCapture:
    """Captures functions as CUDA graphs that share one pool of memory: only one of them runs at a time."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, run: Callable[[], None]) -> Replay:
        stream, here = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(here)
        with torch.cuda.stream(stream):  # libraries choose kernels and take workspaces, which must not be captured
            run()
        here.wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            run()
        self._pool = graph.pool()
        return graph.replay
