"""The fast backend of a CPU: decodes and short chunks read their pages in place, in a compiled kernel.

Chunks of many tokens gather their context once a layer and go through torch's kernel: what the copy costs is little
beside their own work. It knows no model. float32 only; needs numba.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
import torch  # before numba starts its threads: both then share torch's OpenMP library and its threads
from torch import Tensor
from torch.nn import functional

try:
    import numba

    from sarathi.attention.paged_kernel import attend, write
except ImportError as error:
    raise ImportError(f"paged attention on a CPU needs numba: pip install numba ({error})") from error
from sarathi.worker.batch import Batch

if sys.platform == "linux":
    numba.config.THREADING_LAYER = "omp"  # pyright: ignore[reportAttributeAccessIssue]

GATHER_FROM = 16  # queries of a chunk from which on gathering its context pays
_NO_WINDOW = 1 << 30  # more than any context


class _Parts(NamedTuple):
    """The short sequences' blocks cut into one run for each thread; a sequence at a cut becomes several parts."""

    parts: np.ndarray  # (P, 4) int64: sequence, first block, end block, first row of its partial results
    thread_bounds: np.ndarray  # (threads + 1,) int64 into parts
    seq_bounds: np.ndarray  # (short sequences + 1,) int64 into parts
    num_rows: int  # of partial results: one for each query of each part


class PagedCpuBackend:
    """Attention on the CPU with as many threads as torch uses. Contracts as in AttentionBackend; float32 tensors.

    The first call of a process compiles the kernel or loads it from numba's cache; a warm-up round covers that.
    """

    def begin_round(self, batch: Batch) -> None:
        self._batch = batch
        self._lengths = np.diff(batch.query_starts)
        self._starts: list[int] = batch.query_starts.tolist()
        self._short: list[int] = np.flatnonzero(self._lengths < GATHER_FROM).tolist()
        self._long: list[int] = np.flatnonzero(self._lengths >= GATHER_FROM).tolist()
        self._slots: tuple[np.ndarray, np.ndarray] | None = None
        self._parts: dict[int, _Parts] = {}  # by window: layers may differ in it
        self._num_threads = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)  # pyright: ignore[reportAttributeAccessIssue]
        numba.set_num_threads(self._num_threads)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, kv_cache: Tensor, scale: float, window: int | None
    ) -> Tensor:
        batch, block_size = self._batch, kv_cache.shape[3]
        if self._slots is None:
            seqs = np.repeat(np.arange(batch.num_seqs), self._lengths)
            blocks, offsets = np.divmod(batch.positions, block_size)
            self._slots = batch.block_tables[seqs, blocks], offsets
        pages = kv_cache.numpy()
        write(key.contiguous().numpy(), value.contiguous().numpy(), pages, *self._slots)
        output = torch.empty(query.shape)
        if self._short:
            window_size = window or _NO_WINDOW
            parts = self._parts.get(window_size)
            if parts is None:
                parts = self._parts[window_size] = self._divide(block_size, window_size)
            attend(
                query.contiguous().numpy(),
                pages,
                batch.block_tables,
                batch.query_starts,
                batch.context_lens,
                *parts[:3],
                np.float32(scale),
                window_size,
                np.empty((parts.num_rows, *query.shape[1:]), np.float32),
                np.empty((parts.num_rows, 2, query.shape[1]), np.float32),
                output.numpy(),
            )
        for seq in self._long:
            self._gather_and_attend(seq, query, kv_cache, scale, window, output)
        return output

    def _divide(self, block_size: int, window: int) -> _Parts:
        """Equal work, in queries times blocks, for each thread, however contexts differ in length."""
        lengths: list[int] = self._lengths.tolist()
        context_lens: list[int] = self._batch.context_lens.tolist()
        spans = [
            (max(0, context_lens[seq] - lengths[seq] + 1 - window) // block_size, -(-context_lens[seq] // block_size))
            for seq in self._short
        ]
        total = sum((end - first) * lengths[seq] for seq, (first, end) in zip(self._short, spans, strict=True))
        parts: list[tuple[int, int, int, int]] = []
        thread_bounds, seq_bounds = [0], [0]
        row = done = 0
        for seq, (first, end) in zip(self._short, spans, strict=True):
            length = lengths[seq]
            while first < end:
                share_end = total * len(thread_bounds) // self._num_threads
                stop = min(end, first + max(1, round((share_end - done) / length)))
                parts.append((seq, first, stop, row))
                row += length
                done += (stop - first) * length
                first = stop
                if done >= share_end - length // 2:
                    thread_bounds.append(len(parts))
            seq_bounds.append(len(parts))
        thread_bounds[-1] = len(parts)
        return _Parts(np.array(parts), np.array(thread_bounds), np.array(seq_bounds), row)

    def _gather_and_attend(
        self, seq: int, query: Tensor, kv_cache: Tensor, scale: float, window: int | None, output: Tensor
    ) -> None:
        block_size = kv_cache.shape[3]
        rows = slice(self._starts[seq], self._starts[seq + 1])
        num_queries = rows.stop - rows.start
        end = int(self._batch.context_lens[seq])
        first_block = 0 if window is None else max(0, end - num_queries + 1 - window) // block_size
        begin = first_block * block_size
        blocks = torch.from_numpy(self._batch.block_tables[seq, first_block : -(-end // block_size)])
        keys, values = kv_cache[blocks].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, None, :, : end - begin]
        mask = None
        if num_queries < end or (window is not None and window < end):
            seen = torch.arange(begin, end)
            positions = torch.arange(end - num_queries, end)[:, None]
            mask = seen <= positions
            if window is not None:
                mask &= seen > positions - window
        attended = functional.scaled_dot_product_attention(
            query[None, rows].transpose(1, 2),
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None,
            scale=scale,
            enable_gqa=True,
        )
        output[rows] = attended[0].transpose(0, 1)
