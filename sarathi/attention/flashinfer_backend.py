"""The backend of CUDA devices: FlashInfer's paged kernels, planned once a round and run layer by layer.

Decodes and chunks go to a wrapper each. A round of decodes can also be planned for a fixed number of them, in buffers
that stay where they are, so that a CUDA graph can be replayed. It knows no model and no graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import flashinfer  # pyright: ignore[reportMissingImports]
import numpy as np
import torch
from torch import Tensor

from sarathi.attention.base import AttentionLayout
from sarathi.attention.flashinfer_metadata import PagedMetadata, build_metadata
from sarathi.worker.batch import Batch
from sarathi.worker.cuda_staging import Staging

HEAD_DIMS = (64, 128, 256)
# FlashInfer advises 128 MB; where a graph is captured it always splits contexts, and 256 decodes of 64 heads of 128
# then take 134 MB of partial results: sequences x heads x 16 queries of a tile x head_dim x 4 bytes.
WORKSPACE_BYTES = 384 << 20
WRAPPER_BYTES = 8 << 20  # that a wrapper takes for its plan, on the device and pinned on the host
KV_LAYOUT = "HND"
TENSOR_CORES_FROM = 4  # query heads of a KV head from which on tensor cores decode faster, though tiles are half empty
# On Hopper a plan takes other kernels where its longest chunk has more than 64 queries (prefill.py of FlashInfer 0.7).
TRIED_CHUNKS = (2, 65)


class _Round(NamedTuple):
    """What `forward` needs, on the device: where keys and values are written, and the planned wrappers by window."""

    num_decodes: int
    batch_indices: Tensor
    positions: Tensor
    kv_indices: Tensor
    kv_indptr: Tensor
    last_page_lens: Tensor
    decode: dict[int | None, Any]
    chunks: dict[int | None, Any]


class _GraphBuffers(NamedTuple):
    """What captured kernels read, in one place for good."""

    batch_indices: Tensor
    positions: Tensor
    kv_indices: Tensor
    kv_indptr: Tensor
    last_page_lens: Tensor
    decode: dict[tuple[int, int | None], Any]  # by number of decodes and window


def unsupported(layout: AttentionLayout) -> str | None:
    """Why FlashInfer cannot serve this, if so."""
    if layout.head_dim not in HEAD_DIMS:
        return f"FLASHINFER has kernels for heads of {', '.join(map(str, HEAD_DIMS))}, not of {layout.head_dim}"
    return None


class FlashInferBackend:
    """Contracts as in AttentionBackend; the scale is head_dim^-0.5, query, pages and output are of one 16-bit type.

    When it is made it runs each kernel once, which compiles those that this machine has not compiled yet (minutes).
    Raises RuntimeError or OSError where they cannot be compiled.
    """

    def __init__(self, layout: AttentionLayout, dtype: torch.dtype, device: torch.device) -> None:
        self._layout, self._dtype, self._device = layout, dtype, device
        self._scale = layout.head_dim**-0.5
        self._windows = tuple(dict.fromkeys(layout.windows))
        self._tensor_cores = layout.num_heads // layout.num_kv_heads >= TENSOR_CORES_FROM
        self._workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._staging = Staging(device)
        self._decode = {window: self._decode_wrapper() for window in self._windows}
        self._chunks = {
            window: flashinfer.BatchPrefillWithPagedKVCacheWrapper(self._workspace, KV_LAYOUT)
            for window in self._windows
        }
        self._graphs: _GraphBuffers | None = None
        self._try_out()

    @property
    def graph_bytes(self) -> int:
        """Device memory that each size of `reserve_graphs` takes."""
        return WRAPPER_BYTES * len(self._windows)

    def begin_round(self, batch: Batch) -> None:
        metadata = build_metadata(batch, self._layout.block_size)
        staging = self._staging
        self._round = copies = _Round(
            metadata.num_decodes,
            *(staging.copy(name, getattr(metadata, name)) for name in _Round._fields[1:6]),
            decode=self._decode,
            chunks=self._chunks,
        )
        self._plan_decodes(metadata, copies.kv_indices, self._decode)
        self._plan_chunks(metadata, copies.kv_indices)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, kv_cache: Tensor, scale: float, window: int | None
    ) -> Tensor:
        assert math.isclose(scale, self._scale), "plans are made for head_dim^-0.5"
        now = self._round
        flashinfer.append_paged_kv_cache(
            key,
            value,
            now.batch_indices,
            now.positions,
            kv_cache,
            now.kv_indices,
            now.kv_indptr,
            now.last_page_lens,
            kv_layout=KV_LAYOUT,
        )
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        num_decodes = now.num_decodes
        if num_decodes:
            now.decode[window].run(query[:num_decodes], kv_cache, out=output[:num_decodes])
        if num_decodes < len(query):
            now.chunks[window].run(query[num_decodes:], kv_cache, out=output[num_decodes:])
        return output

    def reserve_graphs(self, sizes: Sequence[int], num_pages: int) -> None:
        """Make buffers and wrappers for rounds of so many decodes, of `num_pages` pages in the pool."""
        most, device = max(sizes), self._device
        buffers = _GraphBuffers(
            batch_indices=torch.arange(most, dtype=torch.int32, device=device),
            positions=torch.zeros(most, dtype=torch.int32, device=device),
            kv_indices=torch.zeros(num_pages + most, dtype=torch.int32, device=device),
            kv_indptr=torch.zeros(most + 1, dtype=torch.int32, device=device),
            last_page_lens=torch.ones(most, dtype=torch.int32, device=device),
            decode={},
        )
        for size in sizes:
            for window in self._windows:
                buffers.decode[size, window] = self._decode_wrapper(
                    use_cuda_graph=True,
                    paged_kv_indptr_buffer=buffers.kv_indptr[: size + 1],
                    paged_kv_indices_buffer=buffers.kv_indices,
                    paged_kv_last_page_len_buffer=buffers.last_page_lens[:size],
                )
        self._graphs = buffers

    def begin_graph_round(self, batch: Batch) -> None:
        """As `begin_round`, for as many decodes as one of the reserved sizes says, in the buffers made for graphs."""
        buffers, size = self._graphs, batch.num_seqs
        assert buffers is not None
        metadata = build_metadata(batch, self._layout.block_size)
        assert metadata.num_decodes == size
        staging = self._staging
        staging.copy("positions", metadata.positions, out=buffers.positions)
        wrappers = {window: buffers.decode[size, window] for window in self._windows}
        # A plan copies what it is given into the wrapper's buffers, which are these.
        self._plan_decodes(metadata, staging.copy("kv_indices", metadata.kv_indices), wrappers)
        self._round = _Round(
            size,
            buffers.batch_indices[:size],
            buffers.positions[:size],
            buffers.kv_indices,
            buffers.kv_indptr[: size + 1],
            buffers.last_page_lens[:size],
            decode=wrappers,
            chunks={},
        )

    def _decode_wrapper(self, **buffers: Any) -> Any:
        return flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace, KV_LAYOUT, use_tensor_cores=self._tensor_cores, **buffers
        )

    def _plan_decodes(self, metadata: PagedMetadata, kv_indices: Tensor, wrappers: dict[int | None, Any]) -> None:
        """Offsets and lengths are given as host tensors: planned there, they would have to come back else."""
        count = metadata.num_decodes
        if not count:
            return
        for window, wrapper in wrappers.items():
            wrapper.plan(
                torch.from_numpy(metadata.kv_indptr[: count + 1]),
                kv_indices[: int(metadata.kv_indptr[count])],
                torch.from_numpy(metadata.last_page_lens[:count]),
                *self._sizes,
                **self._options(window),
            )

    def _plan_chunks(self, metadata: PagedMetadata, kv_indices: Tensor) -> None:
        if metadata.num_decodes == len(metadata.last_page_lens):
            return
        chunks = metadata.chunks()
        own_indices = kv_indices[len(kv_indices) - len(chunks.kv_indices) :]
        for window, wrapper in self._chunks.items():
            wrapper.plan(
                torch.from_numpy(chunks.query_starts),
                torch.from_numpy(chunks.kv_indptr),
                own_indices,
                torch.from_numpy(chunks.last_page_lens),
                *self._sizes,
                causal=True,
                **self._options(window),
            )

    @property
    def _sizes(self) -> tuple[int, int, int, int]:
        layout = self._layout
        return layout.num_heads, layout.num_kv_heads, layout.head_dim, layout.block_size

    def _options(self, window: int | None) -> dict[str, Any]:
        """`window_left` counts the tokens before a query's own, -1 all."""
        return {
            "window_left": -1 if window is None else window - 1,
            "q_data_type": self._dtype,
            "kv_data_type": self._dtype,
            "sm_scale": self._scale,
        }

    def _try_out(self) -> None:
        """Rounds of a decode and a chunk, all in one page and all zeros."""
        layout = self._layout
        shape = (1, 2, layout.num_kv_heads, layout.block_size, layout.head_dim)
        pages = torch.zeros(shape, dtype=self._dtype, device=self._device)
        for chunk in TRIED_CHUNKS:
            batch = Batch(
                token_ids=np.zeros(1 + chunk, np.int64),
                positions=np.append(0, np.arange(chunk)),
                query_starts=np.array([0, 1, 1 + chunk], np.int32),
                context_lens=np.array([1, chunk], np.int32),
                block_tables=np.zeros((2, -(-chunk // layout.block_size)), np.int32),
                output_rows=np.array([0, chunk]),
                output_seqs=np.arange(2),
                sampling=None,
            )
            query = torch.zeros(1 + chunk, layout.num_heads, layout.head_dim, dtype=self._dtype, device=self._device)
            key = query[:, : layout.num_kv_heads]
            self.begin_round(batch)
            for window in self._windows:
                self.forward(query, key, key, pages, self._scale, window)
            if self._device.type == "cuda":  # what a kernel runs into is told by the next call that waits
                torch.cuda.synchronize(self._device)
